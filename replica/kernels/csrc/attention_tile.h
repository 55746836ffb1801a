/* One tile of attention: the keys and values of TILE adjacent tokens, against a few rows of queries. */
#ifndef WARMLANE_ATTENTION_TILE_H
#define WARMLANE_ATTENTION_TILE_H

#include "attention.h"
#include "constants.h"
#include "products.h"

#define PADDED(n) (((n) + PANEL - 1) / PANEL * PANEL)

/* A running softmax of some rows: weighted sums of values [rows, padded value_dim], and per row the highest score so far
 * and the sum of weights relative to it. */
typedef struct {
    float *sums, *highest, *weight;
} Softmax;

typedef struct {
    float *keys;   /* per head [key_dim, TILE] */
    float *values; /* per head [TILE, padded value_dim] */
} Tile;

typedef float eight __attribute__((vector_size(32)));

/* Before version 12 GCC knows only its own name for this; clang has never known that one. */
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t eight_indices __attribute__((vector_size(32)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (eight_indices){__VA_ARGS__})
#endif

/* out[d][i] = rows[i][d] for 8 rows and 8 dimensions. */
INLINE void transpose_8x8(const float *const rows[8], int64_t d, float *out) {
    eight r[8], s[8];
    for (int i = 0; i < 8; i++) memcpy(&r[i], rows[i] + d, sizeof r[i]);
    for (int i = 0; i < 8; i += 2) {
        s[i] = SHUFFLE(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        s[i + 1] = SHUFFLE(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = SHUFFLE(s[i + j], s[i + 2 + j], 0, 1, 8, 9, 4, 5, 12, 13);
            r[i + 2 * j + 1] = SHUFFLE(s[i + j], s[i + 2 + j], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int j = 0; j < 4; j++) {
        eight low = SHUFFLE(r[j], r[4 + j], 0, 1, 2, 3, 8, 9, 10, 11);
        eight high = SHUFFLE(r[j], r[4 + j], 4, 5, 6, 7, 12, 13, 14, 15);
        memcpy(out + j * TILE, &low, sizeof low);
        memcpy(out + (4 + j) * TILE, &high, sizeof high);
    }
}

INLINE void copy_padded(float *to, const float *from, int64_t num, int64_t padded) {
    int64_t d = 0;
    for (; d + LANES <= num; d += LANES) store(to + d, load(from + d));
    for (; d < num; d++) to[d] = from[d];
    for (; d < padded; d++) to[d] = 0.0f;
}

/* Asks for the memory of a tile while the one before it is computed. */
INLINE void fetch_tile(const AttentionLayer *layer, const Batch *batch, int64_t request, int64_t first_head,
                       int64_t num_heads, int64_t first, int64_t end) {
    const int64_t *table = batch->tables + batch->table_starts[request];
    for (int64_t i = first; i < first + TILE && i < end; i++) {
        int64_t page = table[i / batch->page_size], row = i % batch->page_size * layer->kv_heads + first_head;
        const float *key = layer->keys + page * layer->key_page_stride + row * layer->key_dim;
        const float *value = layer->values + page * layer->value_page_stride + row * layer->value_dim;
        for (int64_t d = 0; d < num_heads * layer->key_dim; d += 16) __builtin_prefetch(key + d, 0, 3);
        for (int64_t d = 0; d < num_heads * layer->value_dim; d += 16) __builtin_prefetch(value + d, 0, 3);
    }
}

/* Fills a tile with tokens first to first + TILE of num_heads adjacent heads, keys transposed; token by token, because
 * heads lie side by side in memory. What lies beyond `end` is zero: a page may hold anything there, and 0 * NaN is NaN. */
static void gather_tile(const AttentionLayer *layer, const Batch *batch, int64_t request, int64_t first_head,
                        int64_t num_heads, int64_t first, int64_t end, const Tile *tile) {
    const int64_t *table = batch->tables + batch->table_starts[request];
    int64_t num = end - first < TILE ? end - first : TILE, key_dim = layer->key_dim, value_dim = PADDED(layer->value_dim);
    int64_t page = first / batch->page_size, offset = first % batch->page_size;
    const float *rows[TILE];
    if (num < TILE) {
        memset(tile->keys, 0, num_heads * TILE * key_dim * sizeof(float));
        memset(tile->values, 0, num_heads * TILE * value_dim * sizeof(float));
    }
    for (int64_t i = 0; i < num; i++) {
        int64_t row = offset * layer->kv_heads + first_head;
        const float *value = layer->values + table[page] * layer->value_page_stride + row * layer->value_dim;
        rows[i] = layer->keys + table[page] * layer->key_page_stride + row * key_dim;
        for (int64_t h = 0; h < num_heads; h++)
            copy_padded(tile->values + (h * TILE + i) * value_dim, value + h * layer->value_dim, layer->value_dim, value_dim);
        if (++offset == batch->page_size) offset = 0, page++;
    }
    int64_t whole = num / 8 * 8, dims = key_dim / 8 * 8;
    for (int64_t i = 0; i < whole; i += 8)
        for (int64_t h = 0; h < num_heads; h++)
            for (int64_t d = 0; d < dims; d += 8) transpose_8x8(rows + i, h * key_dim + d, tile->keys + (h * key_dim + d) * TILE + i);
    for (int64_t i = 0; i < num; i++)
        for (int64_t h = 0; h < num_heads; h++)
            for (int64_t d = i < whole ? dims : 0; d < key_dim; d++)
                tile->keys[(h * key_dim + d) * TILE + i] = rows[i][h * key_dim + d];
}

/* scores: [rows, TILE] */
INLINE void score_rows(const int rows, const AttentionLayer *layer, const float *query, const float *keys, float *scores) {
    for (int64_t column = 0; column < TILE; column += PANEL) {
        vec acc[MAX_ROWS][2] = {};
        multiply(rows, query, layer->key_dim, keys + column, TILE, layer->key_dim, acc, 0, 0);
        for (int i = 0; i < rows; i++)
            for (int half = 0; half < 2; half++) {
                vec x = acc[i][half] * layer->scaling;
                if (layer->softcap > 0) {
                    vec doubled = 2.0f / layer->softcap * x;
                    x = layer->softcap * (1.0f - 2.0f / (vexp(doubled) + 1.0f)); /* softcap * tanh(x / softcap) */
                }
                store(scores + i * TILE + column + half * LANES, x);
            }
    }
}

/* Scores of one row become weights relative to its highest score so far; tokens outside low to high get none. Returns
 * the factor for what was summed before. */
INLINE float soften(float *scores, int64_t first, int64_t low, int64_t high, float *highest, float *weight) {
    vec top = splat(-INFINITY), total = {};
    for (int64_t j = 0; j < TILE && first + j < low; j++) scores[j] = -INFINITY;
    for (int64_t j = high > first ? high - first : 0; j < TILE; j++) scores[j] = -INFINITY;
    for (int64_t j = 0; j < TILE; j += LANES) top = vmax(top, load(scores + j));
    float now = hmax(top);
    if (now < *highest) now = *highest;
    if (now == -INFINITY) { /* nothing to see yet */
        memset(scores, 0, TILE * sizeof(float));
        return 1.0f;
    }
    for (int64_t j = 0; j < TILE; j += LANES) {
        vec p = vexp(load(scores + j) - now);
        total += p;
        store(scores + j, p);
    }
    float factor = *highest == -INFINITY ? 0.0f : vexp(splat(*highest - now))[0];
    *weight = *weight * factor + hsum(total);
    *highest = now;
    return factor;
}

/* sums[i] = sums[i] * factors[i] + weights[i] . values */
INLINE void sum_rows(const int rows, const float *weights, const float *values, int64_t value_dim, float *sums,
                     const float *factors) {
    for (int64_t column = 0; column < value_dim; column += PANEL) {
        vec acc[MAX_ROWS][2];
        for (int i = 0; i < rows; i++) {
            acc[i][0] = load(sums + i * value_dim + column) * factors[i];
            acc[i][1] = load(sums + i * value_dim + column + LANES) * factors[i];
        }
        multiply(rows, weights, TILE, values + column, value_dim, TILE, acc, 0, 0);
        for (int i = 0; i < rows; i++) {
            store(sums + i * value_dim + column, acc[i][0]);
            store(sums + i * value_dim + column + LANES, acc[i][1]);
        }
    }
}

#endif
