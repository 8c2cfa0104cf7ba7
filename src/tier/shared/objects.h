/*
 * The shared tier as a node uses it: what it holds (map.h), reading and writing
 * records in objects (object.h), polling and publishing manifests
 * (manifest.h), resets, and the cleaner. Several nodes share one tier without a
 * coordinator; there is nothing to agree on but names.
 *
 * Names, T being a tenant's id in hex:
 *
 *   larder.tier                 the tier's id
 *   T/check                     check value of the tenant's secret, and of its
 *                               key if it encrypts
 *   T/o/XX/ID                   an object; XX: the first byte of ID
 *   T/m/NODE-SEQUENCE           a manifest; NODE is random for each start
 *   T/e/SPACE-EPOCH             a reset of a space
 *   T/cleaner                   who cleans up, until when
 *   sizes/T                     how much the tenant holds, and when it was open
 *   larder.cleaner              who cleans up for tenants nobody has open
 *
 * Calls but those that say so neither wait nor allocate much, and may be made
 * with the node's lock held. The tier never calls out with its own lock held.
 *
 * Order of a write: object, then the own map, then (at the latest publish_ms
 * after) a manifest. A crash between them leaves an object that nobody knows;
 * the cleaner finds and publishes it. Nothing is found in a tenant's volume
 * before its manifests and resets were read once, nor written to it.
 *
 * Epochs: a space has one epoch, the same in every node of a tier. Whoever
 * learns of a higher one takes it; everything of a lower one is void.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "tier/shared/workers.h"
#include "tier/shared/map.h"

#define LDR_OBJECTS_RECORDS 256u               /* in one object */
#define LDR_OBJECTS_BYTES ((uint64_t)16 << 20) /* payload that is aimed at */
#define LDR_OBJECTS_MIN ((uint64_t)8 << 20)    /* ... that is worth a file */

typedef struct ldr_objects ldr_objects_t;

typedef struct ldr_objects_params {
    const char *url, *login;
    ldr_backend_t *backend; /* instead of them; the tier's own from here on */
    unsigned threads;
    uint32_t timeout_ms; /* of one call of the back end */
    uint32_t slow_ms;    /* see ldr_workers_params.slow_ns; 0: any time */
    uint32_t retry_ms;
    uint32_t poll_ms;    /* how often manifests and resets are looked for */
    uint32_t publish_ms; /* how long what was written may stay unpublished */
    uint64_t max_bytes;  /* of each tenant; 0: no limit */
    /* Since an object was used or written, or a tenant was open; 0: no limit */
    uint32_t max_age_s;
    uint32_t orphan_s; /* age at which an object without manifest is adopted */
    /* Of a manual one; 0, and with threads: from the kernel, since ids must
     * never come again. */
    uint64_t seed;
    const ldr_clock_t *clock;
    ldr_log_t log;
    bool manual; /* no threads: the caller drives ldr_objects_step() */
    /* The space has a higher epoch now. From a worker, no lock held. */
    void (*epoch)(void *arg, const uint8_t space_id[LDR_ID_BYTES],
                  uint32_t epoch);
    void *arg;
} ldr_objects_params_t;

/* Does not wait for the storage: what is wrong with it is a reason for being
 * off. E_INVALID: the url. */
larder_status_t ldr_objects_open(const ldr_objects_params_t *params,
                                 ldr_objects_t **tier_p);
/* Publishes what was written, gives up the cleaner's role, ends the workers.
 * False: calls hang, and what their reads and writes name must stay for
 * ever. */
bool ldr_objects_close(ldr_objects_t *tier, uint64_t deadline_ns);
bool ldr_objects_step(
    ldr_objects_t *tier); /* manual: false: nothing to do now */

/* Makes the url a tier; PRESENT: it is one already. Waits for the storage, at
 * most timeout_ms (or LARDER_FOREVER). */
larder_status_t ldr_objects_make(const char *url, const char *login,
                                 uint32_t timeout_ms);

/* ---- tenants and spaces ---- */

/* The tenant's number; its volume is polled from now on. Waits until its check
 * value was looked at and all that is published was read once, but no longer
 * than the deadline: then that is done later, and what is wrong is the reason
 * for the tenant's volume being off. Nor does it wait for a tier that is off.
 * E_SECRET: the tier has data of this tenant under another secret or key: the
 * volume (*tenant_p is its number all the same) is off, with that as its
 * reason, until T/check is another or a later call brings the right ones. A
 * check value that is none of this tenant's is a reason for being off, and
 * looked at again. */
larder_status_t ldr_objects_tenant(ldr_objects_t *tier,
                                   const uint8_t id[LDR_ID_BYTES],
                                   const char *name, const ldr_seal_t *seal,
                                   uint64_t deadline_ns, uint32_t *tenant_p);

/* Whether that is so of the tenant's volume: another call may put it right. */
bool ldr_objects_refused(ldr_objects_t *tier, uint32_t tenant);

/* The two halves of it. The first does not wait. claims: false: a tenant of
 * which there is nothing yet does not become that of this secret before
 * ldr_objects_claim(), though what others put there is read if it is under
 * it. *resealed_p: somebody else had the volume, and no use for it: what he
 * knows of its number is void. E_SECRET: the volume is in use here under
 * another secret or key; *tenant_p is LDR_NIL. */
larder_status_t ldr_objects_enter(ldr_objects_t *tier,
                                  const uint8_t id[LDR_ID_BYTES],
                                  const char *name, const ldr_seal_t *seal,
                                  bool claims, uint32_t *tenant_p,
                                  bool *resealed_p);
larder_status_t ldr_objects_await(ldr_objects_t *tier, uint32_t tenant,
                                  uint64_t deadline_ns);
void ldr_objects_claim(ldr_objects_t *tier, uint32_t tenant);

/* The space's number in the tenant's volume. epoch: the node's; if it is higher
 * than the tier's, that is a reset which the tier has yet to hear of. */
uint32_t ldr_objects_space(ldr_objects_t *tier, uint32_t tenant,
                           const uint8_t id[LDR_ID_BYTES], uint32_t epoch);
/* Its epoch, as far as is known here. The tier announces each change by
 * params.epoch, but this is where to look right after ldr_objects_space(). */
uint32_t ldr_objects_epoch(ldr_objects_t *tier, uint32_t tenant,
                           uint32_t space);

/*
 * The epoch of a reset that the tier has not heard of yet. If the node ends
 * before, it knows that number from its disks, and no more: so it is above
 * those that others, who reach the tier, get meanwhile, and voids what they
 * have saved since, as a reset of its own would.
 */
static inline uint32_t ldr_epoch_far(uint32_t epoch)
{
    return epoch < UINT32_MAX / 2 ? epoch + 1024 : epoch;
}

/* Raises the epoch, in the tier and here. Waits. Without OK the tenant's volume
 * is off until it could be written. *epoch_p: at least what it was before the
 * call, plus one; far above it without OK. */
larder_status_t ldr_objects_reset(ldr_objects_t *tier, uint32_t tenant,
                                  uint32_t space, uint64_t deadline_ns,
                                  uint32_t *epoch_p);

/* ---- finding, reading, writing ---- */

/* epoch: the space's, as the caller knows it. If the tier's is another, one of
 * them has yet to hear of a reset, and nothing is found. */
bool ldr_objects_find(ldr_objects_t *tier, uint32_t tenant, uint32_t space,
                      uint32_t epoch, const larder_key_t *key, uint32_t group,
                      uint32_t shard, ldr_object_place_t *place);

/* A copy that the node has elsewhere was used at that time (wall clock): a use
 * of the object that holds the shard, if the tier has it. */
void ldr_objects_used(ldr_objects_t *tier, uint32_t tenant, uint32_t space,
                      const larder_key_t *key, uint32_t group, uint32_t shard,
                      uint32_t used_s);

/* The shards of these chunks are looked for next: brings near what of the map
 * that takes. A few dozen chunks at a time. */
void ldr_objects_prefetch(ldr_objects_t *tier, uint32_t tenant, uint32_t space,
                          const larder_key_t *keys, size_t count,
                          uint32_t group, uint32_t shards);

typedef struct ldr_objects_read ldr_objects_read_t;
struct ldr_objects_read {
    uint32_t tenant, space;
    ldr_object_place_t place;
    struct iovec *iov; /* (blocks - 1) * LDR_BLOCK bytes, the payload's */
    unsigned iov_count;
    uint8_t *block; /* LDR_BLOCK bytes, aligned: the descriptor's */
    uint64_t deadline_ns;
    void (*done)(
        ldr_objects_read_t *read); /* once, on any thread, no lock held */
    void *arg;

    /* 0: record is what lies in iov, authentic. -ENOENT: gone; -EBADMSG: not
     * what was written; -EKEYREJECTED: encrypted or not, against the key. In
     * the last three the tier finds nothing in that object any more. */
    int error;
    ldr_record_t record;
    uint64_t begin_ns, end_ns; /* of the call */
    ldr_job_t job;             /* the tier's own */
    ldr_objects_t *tier;
};

/* False: not taken, done() is not called; error says why. */
bool ldr_objects_read(ldr_objects_t *tier, ldr_objects_read_t *read);

typedef struct ldr_objects_write ldr_objects_write_t;
struct ldr_objects_write {
    uint32_t tenant, space;
    uint32_t count; /* afterwards: of those that were not left out */
    /* block and written_s: the tier's to fill in. epoch: the space's, as the
     * caller knows it; if the tier's is another: -ECANCELED. */
    ldr_record_t records[LDR_OBJECTS_RECORDS];
    /* Of each record, one after the other: its payload and zeros up to the next
     * block. Room at the end for the tier: one for each record and one more. */
    struct iovec *iov;
    uint32_t iov_first[LDR_OBJECTS_RECORDS + 1];
    uint64_t deadline_ns;
    void (*done)(ldr_objects_write_t *write);
    void *arg;

    /* 0: all of it is in the tier and found, except records that were damaged
     * before they could be sealed: those are left out. -EINVAL: it cannot be,
     * ever, or all of it is damaged. */
    int error;
    bool damaged[LDR_OBJECTS_RECORDS]; /* by the place they had in records */
    bool unfit;                        /* the tier's own, as the next */
    uint32_t replaced;                 /* ldr_tier.replaced when it began */
    uint64_t bytes;                    /* of the object */
    uint64_t begin_ns, end_ns;
    uint8_t *blocks; /* the tier's own: descriptors, tail, sealed payloads */
    ldr_object_t object;
    ldr_job_t job;
    ldr_objects_t *tier;
};

bool ldr_objects_write(ldr_objects_t *tier, ldr_objects_write_t *write);

/* Whether it takes writes in the tenant's volume, as far as is known; space: in
 * that space, now. LDR_NIL: in any, once it is known what the volume holds. */
bool ldr_objects_takes(ldr_objects_t *tier, uint32_t tenant, uint32_t space);

/* Takes shards out: from now on they are not found here, and what says so to
 * other nodes is on its way. *token_p: for ldr_objects_removed(). */
larder_status_t ldr_objects_remove(ldr_objects_t *tier, uint32_t tenant,
                                   uint32_t space,
                                   const ldr_manifest_row_t *rows, size_t count,
                                   uint64_t *token_p);
/* Returns once that is published. Waits. */
larder_status_t ldr_objects_removed(ldr_objects_t *tier, uint32_t tenant,
                                    uint64_t token, uint64_t deadline_ns);
/* Returns once all that was written is published. Waits. */
larder_status_t ldr_objects_flush(ldr_objects_t *tier, uint64_t deadline_ns);

/* ---- figures ---- */

typedef struct ldr_objects_stats {
    ldr_objects_state_t state;
    char reason[160]; /* why it is not on; "": it is */
    char kind[12];    /* of the back end */
    uint64_t objects, shards;
    uint64_t bytes, dead_bytes; /* that it holds, as far as is known here */
    uint64_t map_bytes;         /* of memory */
    uint64_t reads, read_bytes, read_errors;
    uint64_t writes, written_bytes, write_errors; /* objects */
    uint64_t manifests_read, manifests_written, manifests_bad;
    /* Reads of objects that were; corrupt: records too that were so before they
     * could be written. */
    uint64_t gone, corrupt;
    bool cleaner; /* this node has the role */
    uint64_t cleaned_objects, cleaned_bytes, compacted, adopted;
    uint64_t polled_ms;   /* how long ago manifests were last looked for */
    uint64_t unpublished; /* objects */
    ldr_workers_stats_t workers;
} ldr_objects_stats_t;

void ldr_objects_stats(ldr_objects_t *tier, ldr_objects_stats_t *out);
