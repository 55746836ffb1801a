/* How the kernels cut their work. Each border is a place where a result may go wrong on one side only, so probes and tests
 * read these from the library (constants.c) and compute one less, as many, one more and twice as many. */
#ifndef WARMLANE_CONSTANTS_H
#define WARMLANE_CONSTANTS_H

/* Of a context, in keys. */
#define TILE 64
#define PART 256

/* Of a step, in rows (tokens, or tokens times the heads that share a K/V head). */
#define TOKENS_PER_TASK 8
#define MAX_QUERIES 96 /* of a task of attention with many queries */
#define MAX_ROWS 6     /* 12 sums, 2 columns and 1 factor fill the 16 registers of AVX2 */
#define FEW_ROWS 4     /* with more, sums and weights do not fit the registers, and a buffer of weights is faster */
#define MAX_BLOCK_ROWS (20 * MAX_ROWS)
#define MIN_BLOCK_ROWS (4 * MAX_ROWS)

/* Of a matrix, in inputs or columns. */
#define GROUP 32        /* inputs that share a scale */
#define DEPTH 640       /* inputs multiplied at a time: their part of a panel stays in the L2 cache. 128, for L1, was 10 % slower. */
#define GROUP_PANELS 8  /* panels of a task */

/* Of memory, in floats. */
#define TILE_FLOATS 32768  /* keys and values of a task with one query: a quarter of a 512 KiB L2 cache */
#define BLOCK_FLOATS 65536 /* input rows of a task: half of a 512 KiB L2 cache */

#endif
