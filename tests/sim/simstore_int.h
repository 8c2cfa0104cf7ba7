/* Inside the simulated store. */
#pragma once

#include <pthread.h>

#include "base/clock.h"
#include "sim/simstore.h"

#define REMEMBERED 512u /* names that are gone, for old listings */

typedef struct item {
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint8_t *data;
    size_t bytes;
    uint64_t born; /* the store's count of changes then */
    bool evicted;  /* listed, and not there */
} item_t;

typedef struct ghost {
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint64_t born, died, bytes;
} ghost_t;

struct simstore {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    ldr_rand_t rand;
    item_t **items; /* in the order of their names */
    size_t count, room;
    ghost_t ghosts[REMEMBERED];
    uint64_t buried; /* ghosts so far */
    uint64_t changes, used, capacity;
    bool read_only, away, evicts;
    unsigned backends;
};

typedef struct view {
    ldr_backend_t base;
    ldr_backend_ops_t ops;
    simstore_t *store;
    uint64_t calls, crash_at;
    bool crashed;
    struct {
        uint64_t nth, times, seen;
        int error;
    } armed[SIMSTORE_KINDS];
    bool hangs[SIMSTORE_KINDS];
    unsigned hanging;
    unsigned noise, stale, stale_by;
    void (*before)(void *arg);
    void *before_arg;
    char garbled[LDR_OBJECT_NAME_MAX + 1];
    uint64_t garbled_times;
    size_t page; /* names of one; 0: all */
    const ldr_clock_t *clock;
} view_t;
