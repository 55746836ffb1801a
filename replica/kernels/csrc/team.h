/* How the threads of one parallel region share an operation: each takes the next task until none is left. */
#ifndef WARMLANE_TEAM_H
#define WARMLANE_TEAM_H

#include <stdint.h>

typedef struct {
    _Alignas(64) int64_t next; /* one cache line per counter */
} Counter;

static inline int64_t take_task(Counter *counter) { return __atomic_fetch_add(&counter->next, 1, __ATOMIC_RELAXED); }

#endif
