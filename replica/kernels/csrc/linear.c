/* Linear layers over packed fp32 weights, with RMS norm before and bias, gate and residual after in the same pass. */
#include "linear.h"

#include <stdlib.h>

#include "products.h"

#define BLOCK_FLOATS 65536 /* of the input: half of a 512 KiB L2 cache */
#define GROUP_PANELS 8

int64_t panel_width(void) { return PANEL; }

/* weight: [n, k]. order: for each packed column the row of weight, -1 for padding. out: [num_panels, k, PANEL]. */
void pack_weight(const float *weight, int64_t k, const int64_t *order, int64_t num_panels, float *out, int64_t num_threads) {
#pragma omp parallel for num_threads(num_threads)
    for (int64_t p = 0; p < num_panels; p++)
        for (int64_t t = 0; t < k; t++)
            for (int j = 0; j < PANEL; j++) {
                int64_t row = order[p * PANEL + j];
                out[(p * k + t) * PANEL + j] = row < 0 ? 0.0f : weight[row * k + t];
            }
}

static int64_t block_rows(int64_t k) {
    int64_t rows = BLOCK_FLOATS / k / MAX_ROWS * MAX_ROWS;
    return rows < 4 * MAX_ROWS ? 4 * MAX_ROWS : rows > 20 * MAX_ROWS ? 20 * MAX_ROWS : rows;
}

int64_t linear_scratch_floats(int64_t k) { return block_rows(k) * k; }

void rms_norm(const float *x, const float *weight, float eps, int64_t n, float *out) {
    vec sum = {};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) sum += load(x + i) * load(x + i);
    float total = hsum(sum);
    for (; i < n; i++) total += x[i] * x[i];
    float scale = 1.0f / sqrtf(total / (float)n + eps);
    for (i = 0; i + LANES <= n; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
    for (; i < n; i++) out[i] = x[i] * scale * weight[i];
}

INLINE vec gated(vec gate, vec up, int64_t kind) {
    if (kind == GATE_SILU) return gate / (1.0f + vexp(-gate)) * up;
    vec inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
    return gate * (1.0f - 1.0f / (vexp(2.0f * inner) + 1.0f)) * up; /* (1 + tanh(inner)) / 2 */
}

static void finish_row(const Linear *linear, const vec sum[2], int64_t panel, float *out, const float *residual) {
    float values[PANEL];
    int64_t width = linear->gate ? LANES : PANEL, first = panel * width;
    vec low = sum[0], high = sum[1];
    if (linear->bias) low += load(linear->bias + panel * PANEL), high += load(linear->bias + panel * PANEL + LANES);
    if (linear->gate) low = gated(low, high, linear->gate);
    if (first + width <= linear->n) {
        store(out + first, residual ? low + load(residual + first) : low);
        if (!linear->gate) store(out + first + LANES, residual ? high + load(residual + first + LANES) : high);
        return;
    }
    store(values, low), store(values + LANES, high);
    for (int64_t j = first; j < first + width && j < linear->n; j++)
        out[j] = values[j - first] + (residual ? residual[j] : 0.0f);
}

INLINE void one_piece(const int rows, const Linear *linear, const float *a, int64_t lda, int64_t panel, float *out,
                      const float *residual, const float *ahead, int64_t ahead_step) {
    vec acc[MAX_ROWS][2] = {};
    multiply(rows, a, lda, linear->weight + panel * linear->k * PANEL, PANEL, linear->k, acc, ahead, ahead_step);
    for (int i = 0; i < rows; i++)
        finish_row(linear, acc[i], panel, out + i * linear->n, residual ? residual + i * linear->n : 0);
}

static void one_panel(const Linear *linear, const float *a, int64_t lda, int64_t m, int64_t panel, float *out,
                      const float *residual) {
    int64_t num_pieces = (m + MAX_ROWS - 1) / MAX_ROWS;
    /* While the rows pass over this panel the next one is fetched, evenly, so that memory never waits for arithmetic. */
    int64_t step = num_pieces >= PANEL ? 1 : PANEL / num_pieces;
    const float *ahead = linear->weight + (panel + 1) * linear->k * PANEL;
    for (int64_t p = 0, row = 0; p < num_pieces; p++) {
        int rows = piece(m, num_pieces, p);
        const float *x = a + row * lda, *r = residual ? residual + row * linear->n : 0;
        float *y = out + row * linear->n;
        WITH_ROWS(rows, one_piece(ROWS, linear, x, lda, panel, y, r, ahead, step));
        ahead += step * linear->k;
        row += rows;
    }
}

void linear_tasks(const Linear *linear, const LinearInput *in, float *out, const float *residual, float *scratch,
                  int num_threads, Counter *counter) {
    int64_t width = linear->gate ? LANES : PANEL, num_panels = (linear->n + width - 1) / width;
    int64_t rows_per_block = block_rows(linear->k), num_blocks = (in->m + rows_per_block - 1) / rows_per_block;
    int64_t group = num_panels / (4 * num_threads);
    group = group < 1 || num_blocks > 1 ? 1 : group;
    if (group > GROUP_PANELS || num_blocks > 1) group = GROUP_PANELS;
    int64_t num_groups = (num_panels + group - 1) / group, prepared = -1;
    for (int64_t task; (task = take_task(counter)) < num_blocks * num_groups;) {
        int64_t block = task / num_groups, row = block * rows_per_block;
        int64_t m = in->m - row < rows_per_block ? in->m - row : rows_per_block;
        const float *a = in->rows + row * in->row_stride;
        int64_t lda = in->row_stride;
        if (in->norm || in->row_ids) {
            if (block != prepared)
                for (int64_t i = 0; i < m; i++) {
                    const float *x = in->rows + (in->row_ids ? in->row_ids[row + i] : row + i) * in->row_stride;
                    if (in->norm) rms_norm(x, in->norm, in->norm_eps, linear->k, scratch + i * linear->k);
                    else memcpy(scratch + i * linear->k, x, linear->k * sizeof(float));
                }
            prepared = block, a = scratch, lda = linear->k;
        }
        int64_t last = (task % num_groups + 1) * group;
        if (last > num_panels) last = num_panels;
        for (int64_t panel = task % num_groups * group; panel < last; panel++)
            one_panel(linear, a, lda, m, panel, out + row * linear->n, residual ? residual + row * linear->n : 0);
    }
}

/* One linear layer on its own. */
void run_linear(const Linear *linear, const float *x, int64_t m, float *out, int64_t num_threads) {
    Counter counter = {0};
    LinearInput in = {.rows = x, .m = m, .row_stride = linear->k};
#pragma omp parallel num_threads(num_threads)
    linear_tasks(linear, &in, out, 0, 0, (int)num_threads, &counter);
}
