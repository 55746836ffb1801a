/* How the threads of one parallel region share the work of an operation and wait for each other between two. */
#ifndef WARMLANE_TEAM_H
#define WARMLANE_TEAM_H

#include <stdint.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sched.h>
#endif

#define SPINS 4096 /* about 100 us: longer than threads differ where each has a core, shorter than a time slice */

/* Each thread takes the next task until none is left. One cache line per counter. */
typedef struct {
    _Alignas(64) int64_t next;
} Counter;

static inline int64_t take_task(Counter *counter) { return __atomic_fetch_add(&counter->next, 1, __ATOMIC_RELAXED); }

/* OpenMP's own barrier spins for milliseconds. Where other processes want the cores, that is time which the thread that
 * is waited for could have run; so after a short while the threads sleep. */
typedef struct {
    _Alignas(64) int32_t arrived;
    _Alignas(64) uint32_t round;
    int32_t sleepers;
} Barrier;

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void sleep_while(uint32_t *word, uint32_t value) {
#if defined(__linux__)
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, (void *)0, (void *)0, 0);
#else
    (void)word, (void)value;
    sched_yield();
#endif
}

static inline void wake_all(uint32_t *word) {
#if defined(__linux__)
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, (void *)0, (void *)0, 0);
#else
    (void)word;
#endif
}

static inline void team_wait(Barrier *barrier, int num_threads) {
    uint32_t round = __atomic_load_n(&barrier->round, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_ACQ_REL) == num_threads) {
        __atomic_store_n(&barrier->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier->round, round + 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&barrier->sleepers, __ATOMIC_SEQ_CST)) wake_all(&barrier->round);
        return;
    }
    for (int i = 0; i < SPINS; i++) {
        if (__atomic_load_n(&barrier->round, __ATOMIC_ACQUIRE) != round) return;
        pause_briefly();
    }
    __atomic_add_fetch(&barrier->sleepers, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&barrier->round, __ATOMIC_SEQ_CST) == round) sleep_while(&barrier->round, round);
    __atomic_sub_fetch(&barrier->sleepers, 1, __ATOMIC_SEQ_CST);
}

#endif
