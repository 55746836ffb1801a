/* The constants of constants.h by name, for probes and tests. */
#include "constants.h"

#include <stdint.h>

#include "vector.h"

typedef struct {
    const char *name, *of;
    int64_t value;
} Constant;

#define CONSTANT(kind, name) {#name, kind, name}

static const Constant CONSTANTS[] = {
    CONSTANT("keys", TILE), CONSTANT("keys", PART),
    CONSTANT("rows", TOKENS_PER_TASK), CONSTANT("rows", MAX_QUERIES), CONSTANT("rows", MAX_ROWS), CONSTANT("rows", FEW_ROWS),
    CONSTANT("rows", MAX_BLOCK_ROWS), CONSTANT("rows", MIN_BLOCK_ROWS),
    CONSTANT("columns", GROUP), CONSTANT("columns", DEPTH), CONSTANT("columns", GROUP_PANELS), CONSTANT("columns", LANES),
    CONSTANT("columns", PANEL),
    CONSTANT("floats", TILE_FLOATS), CONSTANT("floats", BLOCK_FLOATS),
};

/* The index-th constant, NULL behind the last one. */
const Constant *kernel_constant(int64_t index) {
    return index < (int64_t)(sizeof CONSTANTS / sizeof *CONSTANTS) ? CONSTANTS + index : 0;
}
