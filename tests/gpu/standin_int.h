/* What the two files of the driver's stand-in share. All of it is under one
 * lock, which whoever does an operation holds. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "gpu/cuda.h"
#include "gpu/kernel.h"
#include "gpu/standin.h"

enum {
    STANDIN_STREAMS = 2048,
    STANDIN_EVENTS = 16384,
    STANDIN_RANGES = 1024, /* of device memory, and of the host's */
};

/* That an event was recorded, once. */
typedef struct record {
    bool done;
    unsigned users;
} record_t;

typedef enum op_kind {
    OP_COPY,
    OP_SET,
    OP_KERNEL,
    OP_RECORD,
    OP_WAIT
} op_kind_t;

typedef struct op {
    struct op *next;
    op_kind_t kind;
    /* OP_COPY, OP_SET: a device address, or else one of the host. */
    uint64_t to, from;
    uint8_t *here;     /* the host's side */
    uint8_t *snapshot; /* of memory that is not registered; to be freed */
    size_t bytes;
    uint32_t value;
    /* OP_KERNEL */
    uint64_t units, tables, sums;
    uint32_t count, flags, first, stride;
    size_t at; /* bytes or units that are done */
    record_t *record;
} op_t;

struct CUctx_st {
    int retained;
};

struct CUstream_st {
    bool alive;
    op_t *head, *tail;
};

struct CUevent_st {
    bool alive;
    record_t *latest;
};

typedef struct range {
    uint64_t at;
    size_t bytes;
    bool registered; /* not our own; host only */
} range_t;

typedef struct standin {
    pthread_mutex_t lock;
    int init_result, devices, processors;
    uint64_t fail_in; /* calls; 0: none is to fail */
    int fail_result, fail_how;
    const char *failed;
    standin_hook_fn hook;
    void *hook_arg;
    uint64_t rand;
    standin_counts_t counts;
    char errors[4096];
    bool dead, hollow, refuses_batches;
    struct CUstream_st streams[STANDIN_STREAMS];
    struct CUevent_st events[STANDIN_EVENTS];
    uint32_t next_stream, next_event;
    uint32_t live[64], live_count; /* indices of streams */
    uint32_t favourite;
    range_t device[STANDIN_RANGES], host[STANDIN_RANGES];
    uint32_t device_count, host_count;
    uint8_t *device_base, *shadow; /* as device addresses, and the memory */
    size_t next_byte;
} standin_t;

extern standin_t standin;
extern struct CUctx_st standin_context;
extern __thread int standin_thread_depth, standin_thread_mode;

__attribute__((format(printf, 1, 2))) void standin_error(const char *format,
                                                         ...);
uint64_t standin_random(uint64_t bound);

/* ---- memory ---- */

bool standin_device_alloc(uint64_t *at, size_t bytes);
bool standin_device_free(uint64_t at);
/* Adds a range of the host; false: it overlaps another. */
bool standin_host_add(uint64_t at, size_t bytes, bool registered);
bool standin_host_remove(uint64_t at, bool registered);
/* The range that has the first byte; NULL: none. */
const range_t *standin_host_find(uint64_t at);
/* The memory behind a device address; NULL, and an error: not all there. */
uint8_t *standin_resolve(uint64_t at, size_t bytes, bool mapped,
                         const char *what);
bool standin_is_device(uint64_t at);

/* Forgets all memory. */
void standin_memory_reset(void);

/* ---- queues ---- */

void standin_queue(ldr_cu_stream_t s, op_t op);
/* Some operations, maybe. */
void standin_progress(void);
/* All of that stream, and whatever comes first. */
void standin_run_all(ldr_cu_stream_t s);
void standin_drop(ldr_cu_stream_t s);
void standin_forget(record_t *record);
uint64_t standin_touched(uint64_t at, size_t bytes);
