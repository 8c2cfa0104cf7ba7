/*
 * What the figures of `larder bench` share.
 *
 * A figure sets its own work up, takes turns with its limit in rounds until
 * its time is spent, verifies what was moved outside the timed part, and
 * reports medians of rounds. Buffers are resident and several times the
 * last-level cache, and walked from one end to the other, so that none of
 * them is warm when its turn comes.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/mem.h"
#include "larder/larder.h"
#include "net/transport.h"
#include "node/node.h"

#define LDR_MIB ((uint64_t)1 << 20)
#define LDR_GIB ((uint64_t)1 << 30)
#define LDR_CHAIN 16u /* items of one batch: a run of one chain */

typedef struct ldr_bench {
    bool json;
    bool named;       /* the figure was asked for by name */
    double seconds;   /* per figure; 0: as the figure sees fit */
    uint64_t size;    /* of values; 0: the usual ones */
    unsigned clients; /* of the remote figures; 0: one, and two for 1 MiB */
    uint64_t entries; /* that the remote matches look among; 0: 10 M */
    char dir[200];    /* where directories and files are made */
    char shared[256]; /* URL of a shared tier; "": a directory of our own */
    unsigned failed;  /* figures that could not be taken */
} ldr_bench_t;

/* One line of the result. */
typedef struct ldr_figure {
    const char *name;
    const char *variant; /* "" where there is one only */
    uint64_t bytes;      /* of a value, or how many entries there were */
    double value;
    const char *unit;
    double limit; /* 0: there is none */
    enum {
        LDR_GOAL_NONE,
        LDR_GOAL_RATIO, /* at least */
        LDR_GOAL_RATIO_MAX,
        LDR_GOAL_MIN,
        LDR_GOAL_MAX
    } goal_kind;
    double goal;
    const char *more; /* further JSON fields, each with a comma before it */
} ldr_figure_t;

void ldr_bench_report(ldr_bench_t *b, const ldr_figure_t *figure);
/* The figure could not be taken; says why, with the library's last error.
 * Always false. */
bool ldr_bench_fail(ldr_bench_t *b, const char *name, const char *what);
/* A line about what takes long, on stderr and only for people. */
void ldr_bench_progress(const ldr_bench_t *b, const char *name,
                        const char *what);
/* The i-th size of values to measure: that of --size, or 256 KiB, 1 MiB and
 * 4 MiB; 0: there are no more. */
uint64_t ldr_bench_size(const ldr_bench_t *b, unsigned i);

/* ---- time ---- */

double ldr_bench_now(void); /* seconds */

#define LDR_SAMPLES_MAX 4096u

typedef struct ldr_samples {
    double value[LDR_SAMPLES_MAX];
    unsigned count;
} ldr_samples_t;

void ldr_samples_add(ldr_samples_t *s, double value);
/* The value that the part p of them (0...1) does not exceed; 0 of none. */
double ldr_samples_at(ldr_samples_t *s, double p);
static inline double ldr_samples_median(ldr_samples_t *s)
{
    return ldr_samples_at(s, 0.5);
}

/* ---- memory ---- */

/* A size for pools: several times the last-level cache, and whole values of
 * 4 MiB. */
uint64_t ldr_bench_pool_bytes(void);

/* Resident memory, on huge pages where the kernel gives them. */
uint8_t *ldr_pool_create(uint64_t bytes);
void ldr_pool_destroy(uint8_t *pool, uint64_t bytes);
void ldr_pool_random(uint8_t *pool, uint64_t bytes, uint64_t seed);
/* Makes each block of 4 KiB differ from what it was with another number. */
void ldr_pool_stamp(uint8_t *pool, uint64_t bytes, uint64_t number);
/* Whether two pools are equal; what was written is spoilt, so that the next
 * round has to write it again. */
bool ldr_pool_verify(uint8_t *written, const uint8_t *expected, uint64_t bytes);
/* Resident memory of the arena's kind: a memfd on huge pages. */
bool ldr_bench_extent(ldr_extent_t *extent, uint64_t bytes);
/* Drives everything else out of the caches. */
void ldr_bench_cool(uint8_t *pool, uint64_t bytes);

/* ---- threads ---- */

#define LDR_TOGETHER_MAX 8u

/* Runs fn once for each of `count` arguments (at args, args + arg_bytes...),
 * the first in the calling thread, all from the same moment on. spread: each
 * on a CPU of its own, if there are so many; the kernel takes longer than a
 * pass to see that two share one. Gives the seconds until the last has ended;
 * 0: one gave false, or could not start. */
double ldr_bench_together(unsigned count, bool spread, bool (*fn)(void *arg),
                          void *args, size_t arg_bytes);

/* ---- items ---- */

/* The n-th key of all. */
void ldr_bench_key(uint64_t n, larder_key_t *key);

/* Items of one size over a pool, the n-th over its n-th part, in chains of
 * LDR_CHAIN. */
typedef struct ldr_set {
    larder_item_t *items;
    struct iovec *iov;
    larder_key_t *keys;
    size_t count;
    uint64_t size;
} ldr_set_t;

bool ldr_set_create(ldr_set_t *set, uint8_t *pool, uint64_t bytes,
                    uint64_t size);
void ldr_set_destroy(ldr_set_t *set);
/* Names them by the keys from first on. */
void ldr_set_name(ldr_set_t *set, uint64_t first);
/* Carries the operation out batch by batch, or `each` items a call. False: not
 * all were LARDER_OK. */
bool ldr_set_run(ldr_set_t *set, larder_space_t *space, larder_op_t op,
                 size_t begin, size_t end);
bool ldr_set_run_by(ldr_set_t *set, larder_space_t *space, larder_op_t op,
                    size_t begin, size_t end, size_t each);
/* Why a get of the set failed; the text is overwritten by the next call. */
const char *ldr_set_missed(const ldr_set_t *set);

/* ---- a node ---- */

typedef struct ldr_bench_node {
    larder_t *lar;
    larder_space_t *space;
} ldr_bench_node_t;

#define LDR_BENCH_SPACE "larder bench"

/* Opens it and waits until all of its arena is resident. */
bool ldr_bench_open(ldr_bench_node_t *n, const char *url);
void ldr_bench_close(ldr_bench_node_t *n);
/* Puts the items of a set and flushes them to the SSD tier, no more at a time
 * than half the arena. */
bool ldr_bench_fill(ldr_bench_node_t *n, ldr_set_t *set);
/* Removes a directory of ours with all in it. */
void ldr_bench_remove(const char *dir);

/* ---- the raw disk (bench_raw.c) ---- */

typedef struct ldr_raw {
    const char *path;
    bool write;
    uint64_t size; /* of one request */
    unsigned depth;
    uint64_t bytes; /* of the file, all of it read or written */
    uint8_t *pool;  /* as large: the caller's memory */
    uint8_t *via;   /* NULL, or where the disk's buffers are */
    uint64_t via_bytes;
} ldr_raw_t;

/* Makes the file, allocated and never written. */
bool ldr_raw_create(const char *path, uint64_t bytes);
/* One pass by io_uring and O_DIRECT, writes with a sync at the end; with via,
 * a second thread copies between it and the pool. Gives seconds, or 0 if it
 * cannot be done here. */
double ldr_raw_pass(const ldr_raw_t *raw);

/* ---- plain copies (bench_copy.c) ---- */

#define LDR_COPIES_MAX 8u

/* Between the caller's memory and memory of the arena's kind, a memfd on huge
 * pages. */
typedef struct ldr_copying {
    bool get;         /* out of the arena's memory, or into it */
    unsigned threads; /* each copies its part */
    uint64_t bytes;   /* of each of these */
    uint8_t *pool;    /* the caller's */
    uint8_t *anonymous;
    ldr_extent_t extent;
} ldr_copying_t;

typedef struct ldr_copies {
    ldr_samples_t memfd[LDR_COPIES_MAX], anonymous[LDR_COPIES_MAX]; /* GB/s */
    unsigned count; /* the first is memcpy */
} ldr_copies_t;

/* Makes all but the pool, which the caller has made. */
bool ldr_copying_create(ldr_copying_t *c);
void ldr_copying_destroy(ldr_copying_t *c);
/* All of the pool in pieces of this size, once with each way to copy. */
void ldr_copies_round(const ldr_copying_t *c, ldr_copies_t *l, uint64_t size);
/* The best of them, in GB/s, by what the part p of its rounds does not exceed
 * (0.5: the median); its name in *name_p. */
double ldr_copies_best(ldr_copies_t *l, bool anonymous, double p,
                       const char **name_p);

/* ---- values there and back (bench_move.c) ---- */

#define LDR_CALLERS_MAX 2u

/* What is moved, and the plain copy that it is compared with. */
typedef struct ldr_moving {
    bool get;
    uint64_t bytes; /* of each pool */
    uint8_t *pool;  /* the caller's memory */
    uint8_t *other; /* get: what the pool must become; put: what was put */
    ldr_copying_t copying;
    uint64_t keys; /* given so far */
    pid_t daemon;  /* 0: none */
    double cpu;    /* seconds of the daemon's in the last round's move */
    /* Seconds of all who take part, this process too; NULL: not wanted. */
    double (*all_cpu)(void *arg);
    void *all_arg;
    double all;      /* ... in the last round's move */
    const char *why; /* of a round that failed */
} ldr_moving_t;

/* Who moves it: each caller its part, all at once. */
typedef struct ldr_callers {
    larder_space_t *space[LDR_CALLERS_MAX];
    unsigned count;
    size_t each; /* items in a call */
    bool spread; /* as of ldr_bench_together() */
} ldr_callers_t;

bool ldr_moving_create(ldr_moving_t *m, bool get);
void ldr_moving_destroy(ldr_moving_t *m);
/* Names the items of a set over the pool, and for gets puts what `other` holds
 * under these names. */
bool ldr_moving_fill(ldr_moving_t *m, larder_space_t *space, ldr_set_t *set);
/* Moves the set once, and verifies it. Seconds of the move; 0: it failed. */
double ldr_moving_round(ldr_moving_t *m, const ldr_callers_t *c,
                        ldr_set_t *set);

/* ---- bare streams over loopback (bench_stream.c) ---- */

#define LDR_STREAMS_MAX 4u

/* Connected pairs of sockets with cubic; with TLS, its certificate. */
typedef struct ldr_streams {
    unsigned count;
    ldr_stream_t from[LDR_STREAMS_MAX], to[LDR_STREAMS_MAX];
    ldr_tls_t *server, *client; /* NULL: plain */
} ldr_streams_t;

bool ldr_streams_open(ldr_streams_t *s, unsigned count, const char *cert,
                      const char *key);
void ldr_streams_close(ldr_streams_t *s);

/* Which ends of plain ones compute checksums. */
enum { LDR_CHECKED_TO = 1, LDR_CHECKED_FROM = 2 };

/* Moves all of a pool, each stream its part, in pieces of this size, by a
 * thread at each end. Seconds; 0: it failed. */
double ldr_streams_pass(ldr_streams_t *s, uint8_t *to, const uint8_t *from,
                        uint64_t bytes, uint64_t size, unsigned checked);

/* A thread at the other end of a plain stream that answers each `ask` bytes
 * with `head` bytes and `size` from the next part of a pool. */
typedef struct ldr_echo {
    ldr_streams_t streams;
    uint8_t *pool;
    uint64_t bytes, size;
    size_t ask, head;
    pthread_t thread;
    bool started;
} ldr_echo_t;

bool ldr_echo_open(ldr_echo_t *e); /* the lengths and the pool are set */
void ldr_echo_close(ldr_echo_t *e);
/* Asks; takes the answer, whose `size` bytes go to `to`. */
bool ldr_echo_send(ldr_echo_t *e);
bool ldr_echo_take(ldr_echo_t *e, uint8_t *to);
/* Both. Seconds; 0: it failed. */
double ldr_echo_ask(ldr_echo_t *e, uint8_t *to);

/* ---- a daemon (bench_daemon.c) ---- */

typedef struct ldr_daemon {
    pid_t pid; /* 0: none */
    char dir[240];
    char local[320]; /* URLs */
    char tcp[80];
    char cert[280], key[280]; /* PEM files, if it has TLS */
} ldr_daemon_t;

typedef struct ldr_daemon_params {
    const char *name; /* of its directory, unique among those that run */
    uint64_t dram;
    bool tls;
    const char *ssd_dir; /* NULL: none */
    uint64_t ssd;
    const char *const *more; /* flags and their values, NULL at the end */
} ldr_daemon_params_t;

/* A port of loopback that nobody listens on now. */
unsigned ldr_bench_port(void);

/* Starts `larder serve`, by the program beside this one, in a directory of its
 * own, with a Unix socket and a port on loopback, and waits until it takes
 * connections. It ends with this process, however that ends. False: said why.
 */
bool ldr_daemon_start(ldr_daemon_t *d, ldr_bench_t *b,
                      const ldr_daemon_params_t *params);
void ldr_daemon_stop(ldr_daemon_t *d);
/* Seconds of CPU that a process has used, and how often its threads ran. */
double ldr_bench_cpu(pid_t pid);
uint64_t ldr_bench_runs(pid_t pid);

/* ---- nodes that know many chunks (bench_known.c) ---- */

#define LDR_KNOWN_CHAIN 1000u /* chunks of one chain */

/* Opens a node on `dir` with one space, and room on its disk for `entries`
 * chunks. It has no threads, so it writes only when it is stepped. */
bool ldr_known_open(ldr_bench_node_t *n, ldr_node_t **inner_p, const char *dir,
                    const char *space, uint64_t entries);
/* Matches the first `count` chunks of random chains, with nothing of the index
 * in the caches, 100 times (10 if --seconds is below 1) and for as long as it
 * says; count 0: one chunk that is not known. The times are in microseconds.
 * False: a chain did not match. */
bool ldr_known_match(const ldr_bench_t *b, larder_space_t *space,
                     uint64_t entries, unsigned count, ldr_samples_t *us);

/* Makes a directory whose tables list `entries` chunks of 1 MiB in the space of
 * ldr_bench_open(), with nothing behind them: for lookups only. Chunk n is
 * number n % LDR_KNOWN_CHAIN of its chain and has the key n. */
bool ldr_known_create(const char *dir, uint64_t entries);
/* The option ssd of whoever opens it. */
uint64_t ldr_known_ssd(uint64_t entries);

/* ---- the figures ---- */

bool ldr_bench_dram_get(ldr_bench_t *b);
bool ldr_bench_dram_put(ldr_bench_t *b);
bool ldr_bench_ssd_get(ldr_bench_t *b);
bool ldr_bench_ssd_put(ldr_bench_t *b);
bool ldr_bench_shared_get(ldr_bench_t *b);
bool ldr_bench_shared_put(ldr_bench_t *b);
bool ldr_bench_match(ldr_bench_t *b);
bool ldr_bench_hash(ldr_bench_t *b);
bool ldr_bench_evict(ldr_bench_t *b);
bool ldr_bench_reopen(ldr_bench_t *b);
bool ldr_bench_index(ldr_bench_t *b);
bool ldr_bench_shm_get(ldr_bench_t *b);
bool ldr_bench_shm_put(ldr_bench_t *b);
bool ldr_bench_tcp_get(ldr_bench_t *b);
bool ldr_bench_tcp_put(ldr_bench_t *b);
bool ldr_bench_tls_get(ldr_bench_t *b);
bool ldr_bench_shm_match(ldr_bench_t *b);
bool ldr_bench_tcp_match(ldr_bench_t *b);
bool ldr_bench_tcp_small(ldr_bench_t *b);
bool ldr_bench_peer_get(ldr_bench_t *b);
bool ldr_bench_peer_put(ldr_bench_t *b);
bool ldr_bench_peer_match(ldr_bench_t *b);
bool ldr_bench_layout(ldr_bench_t *b);
bool ldr_bench_gpu_copy(ldr_bench_t *b);
bool ldr_bench_idle(ldr_bench_t *b);
