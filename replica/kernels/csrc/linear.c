/* Linear layers over packed weights, with RMS norm before and bias, gate and residual after in the same pass. */
#include "linear.h"

#include <stdlib.h>

#include "products.h"

int64_t panel_width(void) { return PANEL; }

static int64_t block_rows(int64_t k) {
    int64_t rows = BLOCK_FLOATS / k / MAX_ROWS * MAX_ROWS;
    return rows < MIN_BLOCK_ROWS ? MIN_BLOCK_ROWS : rows > MAX_BLOCK_ROWS ? MAX_BLOCK_ROWS : rows;
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

static void finish_row(const Linear *linear, const float *sums, int64_t panel, float *out, const float *residual) {
    float values[PANEL];
    int64_t width = linear->gate ? LANES : PANEL, first = panel * width;
    vec low = load(sums), high = load(sums + LANES);
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

INLINE ivec load_words(const int32_t *p) {
    ivec v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* One of the inputs that a word of LANES columns holds, as fp32. */
INLINE vec take_int4(ivec word, int i, vec scale, vec offset) {
    return scale * __builtin_convertvector((word >> (4 * i)) & 15, vec) + offset;
}

INLINE vec take_int8(ivec word, int i, vec scale) { return scale * __builtin_convertvector((word << (24 - 8 * i)) >> 24, vec); }

INLINE vec take_bfloat16(ivec word, int i) { return (vec)(i ? word & (int32_t)0xFFFF0000 : word << 16); }

/* The fp32 weights of one panel for inputs first to first + num (both whole words but for the end of k), in `buffer`
 * [num][PANEL] where they are stored otherwise. */
static const float *widened(const Linear *linear, int64_t panel, int64_t first, int64_t num, float *buffer) {
    if (linear->format == FLOAT32) return (const float *)linear->weight + (panel * linear->k + first) * PANEL;
    int64_t per_word = linear->format == AFFINE_INT4 ? 8 : linear->format == SCALED_INT8 ? 4 : 2;
    int64_t words = (linear->k + per_word - 1) / per_word, groups = (linear->k + GROUP - 1) / GROUP;
    const int32_t *word = (const int32_t *)linear->weight + (panel * words + first / per_word) * PANEL;
    int64_t group = (panel * groups + first / GROUP) * PANEL;
    for (int64_t t = 0; t < num; t += GROUP, group += PANEL)
        for (int64_t column = 0; column < PANEL; column += LANES) {
            const int32_t *from = word + t / per_word * PANEL + column;
            float *to = buffer + t * PANEL + column;
            int64_t in_group = num - t < GROUP ? num - t : GROUP;
            vec scale = {}, offset = {};
            if (linear->scales) scale = load(linear->scales + group + column);
            if (linear->offsets) offset = load(linear->offsets + group + column);
            if (linear->format == AFFINE_INT4)
                for (int64_t u = 0; u < in_group; u += 8, from += PANEL)
                    for (int i = 0; i < 8; i++) store(to + (u + i) * PANEL, take_int4(load_words(from), i, scale, offset));
            else if (linear->format == SCALED_INT8)
                for (int64_t u = 0; u < in_group; u += 4, from += PANEL)
                    for (int i = 0; i < 4; i++) store(to + (u + i) * PANEL, take_int8(load_words(from), i, scale));
            else
                for (int64_t u = 0; u < in_group; u += 2, from += PANEL)
                    for (int i = 0; i < 2; i++) store(to + (u + i) * PANEL, take_bfloat16(load_words(from), i));
        }
    return buffer;
}

/* sums: [rows, PANEL], from zero where this is the first part of k. */
INLINE void add_products(const int rows, const float *a, int64_t lda, const float *b, int64_t depth, float *sums, int first,
                         const float *ahead, int64_t ahead_step) {
    vec acc[MAX_ROWS][2] = {};
    if (!first)
        for (int i = 0; i < rows; i++) acc[i][0] = load(sums + i * PANEL), acc[i][1] = load(sums + i * PANEL + LANES);
    multiply(rows, a, lda, b, PANEL, depth, acc, ahead, ahead_step);
    for (int i = 0; i < rows; i++) store(sums + i * PANEL, acc[i][0]), store(sums + i * PANEL + LANES, acc[i][1]);
}

/* acc[i] += a[i] . the panel's weights, taken out of their words one input at a time: no buffer between, for the few rows
 * of a decode. k is a multiple of what a word holds. */
INLINE void multiply_stored(const int rows, const int64_t format, const Linear *linear, const float *a, int64_t lda,
                            int64_t panel, vec acc[MAX_ROWS][2]) {
    const int per_word = format == AFFINE_INT4 ? 8 : format == SCALED_INT8 ? 4 : 2;
    const int32_t *from = (const int32_t *)linear->weight + panel * (linear->k / per_word) * PANEL;
    int64_t group = panel * ((linear->k + GROUP - 1) / GROUP) * PANEL;
    vec sum[MAX_ROWS][2], scale[2] = {}, offset[2] = {};
    for (int r = 0; r < rows; r++) sum[r][0] = acc[r][0], sum[r][1] = acc[r][1];
    for (int64_t t = 0; t < linear->k; group += PANEL) {
        int64_t end = t + GROUP < linear->k ? t + GROUP : linear->k;
        for (int half = 0; half < 2; half++) {
            if (format != BFLOAT16) scale[half] = load(linear->scales + group + half * LANES);
            if (format == AFFINE_INT4) offset[half] = load(linear->offsets + group + half * LANES);
        }
        for (; t < end; t += per_word, from += PANEL) {
            ivec word[2] = {load_words(from), load_words(from + LANES)};
            __builtin_prefetch(from + 16 * PANEL, 0, 3);
            for (int i = 0; i < per_word; i++) {
                vec w[2];
                for (int half = 0; half < 2; half++)
                    w[half] = format == AFFINE_INT4 ? take_int4(word[half], i, scale[half], offset[half])
                              : format == SCALED_INT8 ? take_int8(word[half], i, scale[half])
                                                      : take_bfloat16(word[half], i);
                for (int r = 0; r < rows; r++) {
                    vec factor = splat(a[r * lda + t + i]);
                    sum[r][0] += factor * w[0];
                    sum[r][1] += factor * w[1];
                }
            }
        }
    }
    for (int r = 0; r < rows; r++) acc[r][0] = sum[r][0], acc[r][1] = sum[r][1];
}

INLINE void few_rows(const int rows, const Linear *linear, const float *a, int64_t lda, int64_t panel, float *sums) {
    vec acc[MAX_ROWS][2] = {};
    if (linear->format == AFFINE_INT4) multiply_stored(rows, AFFINE_INT4, linear, a, lda, panel, acc);
    else if (linear->format == SCALED_INT8) multiply_stored(rows, SCALED_INT8, linear, a, lda, panel, acc);
    else multiply_stored(rows, BFLOAT16, linear, a, lda, panel, acc);
    for (int i = 0; i < rows; i++) store(sums + i * PANEL, acc[i][0]), store(sums + i * PANEL + LANES, acc[i][1]);
}

static void many_rows(const Linear *linear, const float *a, int64_t lda, int64_t m, int64_t panel, float *sums) {
    float buffer[DEPTH * PANEL];
    int64_t num_pieces = (m + MAX_ROWS - 1) / MAX_ROWS;
    for (int64_t first = 0; first < linear->k; first += DEPTH) {
        int64_t depth = linear->k - first < DEPTH ? linear->k - first : DEPTH;
        const float *b = widened(linear, panel, first, depth, buffer), *ahead = 0;
        /* While the rows pass over this part the next is fetched, evenly, so that memory never waits for arithmetic. */
        int64_t step = num_pieces >= PANEL ? 1 : PANEL / num_pieces;
        if (linear->format == FLOAT32) ahead = b + DEPTH * PANEL;
        for (int64_t p = 0, row = 0; p < num_pieces; p++) {
            int rows = piece(m, num_pieces, p);
            const float *x = a + row * lda + first;
            WITH_ROWS(rows, add_products(ROWS, x, lda, b, depth, sums + row * PANEL, first == 0, ahead, step));
            if (ahead) ahead += step * depth;
            row += rows;
        }
    }
}

static void one_panel(const Linear *linear, const float *a, int64_t lda, int64_t m, int64_t panel, float *out,
                      const float *residual) {
    float sums[MAX_BLOCK_ROWS * PANEL];
    if (linear->format != FLOAT32 && m <= FEW_ROWS && linear->k % 8 == 0) {
        WITH_ROWS(m, few_rows(ROWS, linear, a, lda, panel, sums));
    } else {
        many_rows(linear, a, lda, m, panel, sums);
    }
    for (int64_t i = 0; i < m; i++)
        finish_row(linear, sums + i * PANEL, panel, out + i * linear->n, residual ? residual + i * linear->n : 0);
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
