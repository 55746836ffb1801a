/* SIMD in the compiler's portable vector types: AVX2, AVX-512 and NEON from one source. */
#ifndef WARMLANE_VECTOR_H
#define WARMLANE_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8 /* on NEON the compiler makes two registers of one of these */
#endif
#define PANEL (2 * LANES) /* output columns that one step of a matrix kernel computes */

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }

INLINE vec splat(float x) { return x - (vec){}; }

INLINE vec choose(ivec mask, vec a, vec b) { return (vec)(((ivec)a & mask) | ((ivec)b & ~mask)); }

/* A lane that is no number in either stays so: what is not finite must reach the logits, where it is seen. */
INLINE vec vmax(vec a, vec b) { return choose((a > b) | (a != a), a, b); }

/* Lanes are taken together pairwise, the upper half with the lower one: the same order for every row, and in registers.
 * One lane after the other cost 5 % of a prefill (AVX-512). */
typedef float four __attribute__((vector_size(16)));
typedef int32_t four_ints __attribute__((vector_size(16)));

INLINE float hmax(vec v) {
    four x[LANES / 4];
    memcpy(x, &v, sizeof v);
    for (int half = LANES / 8; half; half /= 2)
        for (int i = 0; i < half; i++) {
            four_ints stays = (x[i] > x[i + half]) | (x[i] != x[i]);
            x[i] = (four)(((four_ints)x[i] & stays) | ((four_ints)x[i + half] & ~stays));
        }
    float top = x[0][0];
    for (int i = 1; i < 4; i++) top = x[0][i] > top || x[0][i] != x[0][i] ? x[0][i] : top;
    return top;
}

INLINE float hsum(vec v) {
    four x[LANES / 4];
    memcpy(x, &v, sizeof v);
    for (int half = LANES / 8; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return (x[0][0] + x[0][2]) + (x[0][1] + x[0][3]);
}

/* exp(x): x = n ln 2 + r, a polynomial for exp(r) (Cephes expf), n into the exponent. Above 88 it is exp(88), below -87 it is
 * 0 whatever comes out, and of what is no number it is no number: no comparison holds, and p becomes none. */
INLINE vec vexp(vec x) {
    ivec tiny = x < -87.0f;
    x = choose(x > 88.0f, splat(88.0f), x);
    vec shifted = x * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 rounds to the nearest integer */
    vec n = shifted - 12582912.0f;
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec exponent = ((ivec)shifted - 0x4B400000 + 127) << 23;
    return (vec)((ivec)(p * (vec)exponent) & ~tiny);
}

#endif
