/*
 * What shared-get and shared-put (bench_shared.c) and their limits
 * (bench_shared_raw.c) have in common.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "bench.h"
#include "tier/shared/objects.h"

#define LDR_SHARING_THREADS                                                    \
    8u /* as many as a node has unless told otherwise                          \
        */
#define LDR_SHARING_BYTES LDR_OBJECTS_BYTES
#define LDR_SHARING_OBJECTS 24u /* of a round */
#define LDR_SHARING_CALL_NS ((uint64_t)60 * 1000000000)

/* What takes turns. */
typedef enum ldr_way {
    LDR_WAY_LIMIT, /* plain files, or redis-benchmark */
    LDR_WAY_TIER,
    LDR_WAY_BACKEND,
    LDR_WAY_SEALED, /* plain files with the tier's tags; not of a server */
    LDR_WAYS
} ldr_way_t;

typedef struct ldr_sharing {
    ldr_bench_t *bench;
    const char *name;
    bool get;
    uint64_t size;           /* of a record's payload */
    unsigned records;        /* of an object */
    char url[256], dir[256]; /* dir: "" if there is none */
    ldr_objects_t *tier;
    ldr_backend_t *bare; /* a back end of the same storage */
    uint32_t tenant, space;
    uint8_t tenant_id[LDR_ID_BYTES];
    uint8_t *source, *target; /* OBJECTS objects each */
    uint8_t *blocks;          /* a descriptor for each read in flight */
    uint64_t first;           /* key of the round */
    unsigned round;           /* of puts, each to space of its own */
    atomic_uint next;         /* of a round that is not the tier's */
    uint32_t *crcs;           /* of the source's records */
    ldr_samples_t samples[LDR_WAYS];
    const char *why;

    pthread_mutex_t lock; /* what is below */
    pthread_cond_t changed;
    unsigned flying, failed;
    unsigned awaited;  /* who waits is woken when fewer than this are flying */
    struct gets *gets; /* that are under way */
    int error;         /* of the first that failed */
} ldr_sharing_t;

static inline uint64_t ldr_sharing_deadline(void)
{
    return ldr_now_ns(&ldr_clock_real) + LDR_SHARING_CALL_NS;
}

static inline uint64_t ldr_sharing_bytes(void)
{
    return LDR_SHARING_OBJECTS * LDR_SHARING_BYTES;
}

/* ---- bench_shared_raw.c ---- */

/* Any way but the tier's. Writes or reads as much as a round of the tier does,
 * by as many threads. Seconds; 0: it failed. */
double ldr_sharing_round(ldr_sharing_t *s, ldr_way_t how, bool write);
void ldr_sharing_remove(ldr_sharing_t *s);
/* Bytes a second of redis-benchmark's SET or GET; 0: it is not here, or
 * cannot. */
double ldr_sharing_redis(const ldr_sharing_t *s);
