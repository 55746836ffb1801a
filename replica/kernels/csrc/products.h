/* The matrix kernel under everything: up to six rows times one panel of columns, kept in registers.
 *
 * Each output is one chain of fused multiply-adds over k in order. So a row's result has the same bits whatever other
 * rows are computed beside it, in whichever blocks: what makes cold and warm, alone and batched, equal.
 */
#ifndef WARMLANE_PRODUCTS_H
#define WARMLANE_PRODUCTS_H

#include "constants.h"
#include "vector.h"

/* acc[i] += a[i, 0:k] . b[0:k, PANEL]; row strides lda and ldb. `ahead`: memory that is wanted next, touched at
 * `ahead_step` floats per step of k. `rows` must be a constant where this is inlined. */
INLINE void multiply(const int rows, const float *a, int64_t lda, const float *b, int64_t ldb, int64_t k,
                     vec acc[MAX_ROWS][2], const float *ahead, int64_t ahead_step) {
    vec sum[MAX_ROWS][2];
    for (int i = 0; i < rows; i++) sum[i][0] = acc[i][0], sum[i][1] = acc[i][1];
    for (int64_t t = 0; t < k; t++) {
        vec low = load(b), high = load(b + LANES);
        b += ldb;
        if (ahead) __builtin_prefetch(ahead + t * ahead_step, 0, 3);
        for (int i = 0; i < rows; i++) {
            vec factor = splat(a[i * lda + t]);
            sum[i][0] += factor * low;
            sum[i][1] += factor * high;
        }
    }
    for (int i = 0; i < rows; i++) acc[i][0] = sum[i][0], acc[i][1] = sum[i][1];
}

/* Runs `call` with `ROWS` bound to each constant, so that the compiler unrolls it. */
#define WITH_ROWS(rows, call) \
    switch (rows) { \
    case 1: { enum { ROWS = 1 }; call; break; } \
    case 2: { enum { ROWS = 2 }; call; break; } \
    case 3: { enum { ROWS = 3 }; call; break; } \
    case 4: { enum { ROWS = 4 }; call; break; } \
    case 5: { enum { ROWS = 5 }; call; break; } \
    default: { enum { ROWS = 6 }; call; } \
    }

/* Cuts `num` rows into pieces of at most MAX_ROWS that differ by one at most. */
INLINE int piece(int64_t num, int64_t num_pieces, int64_t index) {
    return (int)(num / num_pieces + (index < num % num_pieces));
}

#endif
