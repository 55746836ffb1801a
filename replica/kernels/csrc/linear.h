#ifndef WARMLANE_LINEAR_H
#define WARMLANE_LINEAR_H

#include "constants.h"
#include "team.h"
#include "vector.h"

enum { NO_GATE = 0, GATE_SILU = 1, GATE_GELU_TANH = 2 };

/* How a panel's weights are stored. Whatever the format, the same fp32 numbers are multiplied. */
enum { FLOAT32 = 0, BFLOAT16 = 1, SCALED_INT8 = 2, AFFINE_INT4 = 3 };

/* weight: packed, per panel [k][PANEL] floats, or [words][PANEL] of 32 bits that hold 2, 4 or 8 inputs each, the first in
 * the lowest bits. scales, offsets: [num_panels][(k + GROUP - 1) / GROUP][PANEL]; a weight is scale * code (+ offset with int4).
 * bias: [num_panels * PANEL] in packed order, or NULL.
 * With a gate each panel holds LANES gate columns and the LANES up columns they multiply. */
typedef struct {
    const void *weight;
    const float *scales, *offsets, *bias;
    int64_t n, k; /* columns that come out, columns that go in */
    int64_t gate, format;
} Linear;

/* What goes in: `m` rows of [*, k], row i being row_ids[i] (NULL: i), normalised where norm is not NULL. */
typedef struct {
    const float *rows;
    int64_t m, row_stride;
    const int64_t *row_ids;
    const float *norm;
    float norm_eps;
} LinearInput;

int64_t linear_scratch_floats(int64_t k);

/* out[i] = input[i] . weight + bias (gated), plus residual[i] where given. Called by every thread of the team. */
void linear_tasks(const Linear *linear, const LinearInput *in, float *out, const float *residual, float *scratch,
                  int num_threads, Counter *counter);

void rms_norm(const float *x, const float *weight, float eps, int64_t n, float *out);

#endif
