/*
 * What a handle stands on: an embedded node (local.c), or a session with a
 * daemon (remote.c, by shared memory or TCP). The handle checks arguments and
 * handles, computes names and deadlines, and keeps tickets, spaces and leases;
 * the backend does the work.
 *
 * Every function is called with good arguments, with no lock held, from any
 * number of threads, except close, which is alone. Deadlines are absolute.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

struct ldr_op;
struct ldr_announce;
struct ldr_describe_msg;
struct ldr_prefix;

/* What a lease can do, by what it was taken of. Each row stands beside its
 * functions: local_lease.c, shm_lease.c, tcp_lease.c. */
typedef struct ldr_lease_ops {
    /* Makes it possible to read a lease in place, of one group that needs all,
     * and checks it: lease->chunks and match are what is right. NULL: it is. */
    larder_status_t (*map)(larder_space_t *space, larder_lease_t *lease,
                           const larder_key_t *keys, uint16_t group,
                           uint64_t deadline_ns, larder_match_t *match);
    /* As larder_lease_segments(), of shard number `at` of the lease, or of
     * reserved item `at`. */
    larder_status_t (*segments)(const larder_lease_t *lease, uint32_t at,
                                struct iovec *seg, uint32_t seg_max,
                                uint32_t *seg_count_p);
    /* Gives up what a lease or a reservation holds, and what the backend
     * keeps with it. */
    void (*drop)(larder_lease_t *lease);

    /* In place. Items and lengths have been checked: those with status OK are
     * to be reserved; lease->rooms has one for each item, its status set. */
    larder_status_t (*reserve)(larder_space_t *space, larder_item_t *items,
                               size_t count, uint64_t deadline_ns,
                               larder_lease_t *lease);
    /* Commits or gives back every room whose status is OK, and sets it. */
    larder_status_t (*commit)(larder_lease_t *lease, const uint8_t *keep,
                              const uint32_t *crcs, uint64_t deadline_ns);
} ldr_lease_ops_t;

extern const ldr_lease_ops_t ldr_leases_local, ldr_leases_shm, ldr_leases_tcp;

typedef struct ldr_handle_ops {
    /* Ends it; what the handle still holds has been given up before. */
    larder_status_t (*close)(larder_t *lar, uint64_t deadline_ns);

    /* The space's names are set; the backend notes how it knows it. */
    larder_status_t (*space_open)(larder_t *lar, larder_space_t *space,
                                  const char *tenant);
    larder_status_t (*reset)(larder_space_t *space, uint64_t deadline_ns);
    /* The prefix's space and shards are the backend's to set. */
    larder_status_t (*match)(larder_space_t *space,
                             const struct ldr_prefix *prefix,
                             uint64_t deadline_ns, larder_match_t *out);

    /* Tells the node of a request, if it can be told. */
    void (*announce)(larder_space_t *space, const struct ldr_announce *a,
                     uint64_t deadline_ns);

    /* Sends a description; its space is the backend's to set. DECLINED: the
     * node does not want it. NULL: no node of this kind does. */
    larder_status_t (*describe)(larder_space_t *space,
                                struct ldr_describe_msg *m,
                                uint64_t deadline_ns);

    /* Promises a prefix; says something of a promise. */
    larder_status_t (*promise)(larder_space_t *space,
                               const struct ldr_prefix *prefix,
                               const larder_token_t *token,
                               uint64_t deadline_ns, char *member);
    larder_status_t (*handoff)(larder_space_t *space,
                               const larder_token_t *token,
                               larder_handoff_t what, const char *member,
                               uint64_t deadline_ns);

    /* Carries a request out. True: all items are done. False: some wait, and
     * ldr_op_ready() will be called; step it again then. */
    bool (*step)(struct ldr_op *op);
    /* After false, in a blocking call: waits until it is worth a step. */
    void (*wait)(struct ldr_op *op);

    /* Stages what is worth it of the longest prefix, or as much of that as
     * comes. *lease_p: with chunks, total and token, or NULL: nothing is
     * held. */
    larder_status_t (*stage)(larder_space_t *space,
                             const struct ldr_prefix *prefix,
                             const larder_stage_params_t *worth,
                             uint64_t deadline_ns, larder_lease_t **lease_p,
                             larder_match_t *match);
    larder_status_t (*flush)(larder_t *lar, larder_tier_t tier,
                             uint64_t deadline_ns);
    larder_status_t (*stats)(larder_t *lar, uint64_t deadline_ns,
                             larder_stats_t *out);
    larder_status_t (*metrics)(larder_t *lar, uint64_t deadline_ns, char *text,
                               size_t size, size_t *length_p);
} ldr_handle_ops_t;

extern const ldr_handle_ops_t ldr_handle_local;
extern const ldr_handle_ops_t ldr_handle_remote;
