/*
 * A node: tiers, policy and queues. What `larder serve` hosts and an engine
 * embeds: the same code.
 *
 * It is the host of its tiers (tier/host.h), which says what the lock guards.
 * Threads, and what each may wait for, are in docs/concepts/threads.md.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"
#include "larder/larder.h"
#include "store/store.h"
#include "tier/host.h"
#include "wire/wire.h"

#define LDR_HELPERS_MAX 4u /* threads that make memory resident */

typedef struct ldr_node ldr_node_t;

/* Somebody who waits for a promised chunk (promise.h). Zero: for none. */
typedef struct ldr_promise_wait ldr_promise_wait_t;
struct ldr_promise_wait {
    /* With the lock: note it and wake somebody. NULL: whoever waits for the
     * node's condition finds `on` NULL. */
    void (*ready)(ldr_promise_wait_t *wait);
    void *arg; /* ready()'s */
    struct ldr_promise_slot *on;
    ldr_promise_wait_t *next;
};

/* What the node does with requests. In all modes it removes and resets, since
 * what was dropped must stay dropped, and its disks go on writing down. */
typedef enum ldr_mode {
    LDR_MODE_ON,
    LDR_MODE_PAUSED /* moves nothing */
} ldr_mode_t;

/* What a node stands on. Zero: the real thing. */
typedef struct ldr_node_env {
    ldr_io_t *io; /* NULL: made as the options say, by the disks */
    const ldr_clock_t *clock;
    uint64_t seed; /* 0: from the kernel */
    bool manual;   /* no threads: the caller drives ldr_node_step() */
    /* The cluster that the node is a member of; NULL: none. It stays open
     * until the node is closed. Threads and transport: see ldr_host_t. */
    struct ldr_cluster *cluster;
    const ldr_threads_t *threads;
    const struct ldr_transport_ops *transport;
    ldr_log_t log;
    /* Asks every session that has mapped this extent to unmap it, because the
     * extent is moving to another tenant. Called with the node's lock held: it
     * must only note that and wake a thread. NULL: no session maps extents. */
    void (*revoke)(void *arg, uint32_t extent, uint32_t generation);
    void *revoke_arg;
    /* Tenants with limits, known before the disks begin to work; more can come
     * with ldr_node_tenant(). */
    const struct ldr_tenant_params *tenants;
    unsigned tenant_count;
    struct ldr_handover *handover; /* what a node before gave; NULL: nothing */
    /* A node before may have left a call behind that hangs in a directory, and
     * its lock with it: that disk starts off and is tried again. */
    bool successor;
} ldr_node_env_t;

struct ldr_node {
    union {
        ldr_host_t host;
        struct ldr_host; /* its members, as the node's own */
    };
    bool listing; /* somebody lists what is there (list.c) */
    ldr_mode_t mode;
    void (*revoke)(void *arg, uint32_t extent, uint32_t generation);
    void *revoke_arg;

    ldr_histogram_t load_times, save_times; /* of copies; need no lock */

    pthread_t populate_thread;
    bool populate_started, populate_stop;
    bool populate_tired;  /* memory ran out: a save that needs some tries */
    uint32_t ahead_pages; /* free resident pages that the thread aims at; */
    uint32_t low_pages;   /* it is woken when there are fewer than these */
    bool remake_failed;   /* there was no memory for the last extent */
    pthread_t helpers[LDR_HELPERS_MAX];
    unsigned helper_count;
    bool left; /* somebody hangs in a call: nothing is freed */
    struct ldr_promises *promises; /* promise.h; NULL: none were made */
};

/* Finds what is wrong with a node's options before it is opened, as far as that
 * can be seen while another node (the owner) still has the directories. A
 * daemon calls it before it takes over: if it failed only after that, no daemon
 * would be left. */
larder_status_t ldr_node_check(const ldr_options_t *options,
                               const ldr_predecessor_t *owner);

larder_status_t ldr_node_open(const ldr_options_t *options,
                              const ldr_node_env_t *env, ldr_node_t **node_p);
/* Writes down what it can until the deadline; LARDER_E_DEADLINE if that was
 * not all. Then it frees the node. If a disk does not answer, what it was asked
 * for cannot be freed: two seconds after the deadline at the latest it is left
 * behind, and the log says so. */
larder_status_t ldr_node_close(ldr_node_t *node, uint64_t deadline_ns);

/* In a manual node: does one thing that a thread would do. False: nothing to
 * do. */
bool ldr_node_step(ldr_node_t *node);

#define ldr_node_held(node) ldr_host_held(&(node)->host)

static inline void ldr_node_lock(ldr_node_t *node)
{
    ldr_host_lock(&node->host);
}

static inline void ldr_node_unlock(ldr_node_t *node)
{
    ldr_host_unlock(&node->host);
}

/* Somebody is in a call that hangs: closing must free nothing. */
void ldr_node_leave(ldr_node_t *node);

/* ---- memory (memory.c) ---- */

/* Whether this machine can have such memory. */
larder_status_t ldr_memory_check(const ldr_options_t *o);
larder_status_t ldr_memory_open(ldr_node_t *node, uint64_t seed);
larder_status_t ldr_memory_start(ldr_node_t *node);
void ldr_memory_stop(ldr_node_t *node);

/* Finds memory for so many bytes of a tenant before anything of its is evicted:
 * makes more of its extents resident, claims a free one, or, below its share,
 * asks another tenant for one. Never waits for other tenants' holders. With
 * the lock held; true: it was dropped meanwhile. */
bool ldr_node_populate(ldr_node_t *node, uint32_t tenant, size_t bytes);

/* An extent is being made for the tenant that lacks room for so many bytes:
 * until it is there nothing of the tenant's need be evicted. With the lock. */
bool ldr_memory_remakes(const ldr_node_t *node, uint32_t tenant, size_t bytes);

/* In a manual node: makes an empty extent again. False: there is none. */
bool ldr_memory_step(ldr_node_t *node);

/* An extent, for sessions that map it. */
typedef struct ldr_extent_view {
    int fd; /* the caller's, to close */
    uint32_t tenant;
    uint64_t bytes;
    uint64_t ready_bytes; /* resident from the start up to here */
} ldr_extent_view_t;

/*
 * One more mapper of this extent in this generation. False: it is not (any
 * more) that tenant's in that generation, or there is no descriptor available.
 * An extent that is leaving its tenant can still be mapped, to read what is
 * leased in it; revoke() is then called at once.
 */
bool ldr_node_extent_map(ldr_node_t *node, uint32_t tenant, uint32_t extent,
                         uint32_t generation, ldr_extent_view_t *out);
/* The generation in which the tenant owns this extent. MISS: it does not.
 * E_INVALID: there is no such extent, nor any after it. */
larder_status_t ldr_node_extent_owned(ldr_node_t *node, uint32_t tenant,
                                      uint32_t extent, uint32_t *generation_p);
/* One fewer. Once the last is gone and nothing in it is held, an extent that
 * was leaving is made again for another tenant: new memory, next generation. */
void ldr_node_extent_unmap(ldr_node_t *node, uint32_t extent,
                           uint32_t generation);

/* Where a held shard lies: up to max pieces, neighbours merged. Gives their
 * number; if that is over max only max were filled in. Needs no lock. */
uint32_t ldr_node_segs(ldr_node_t *node, uint32_t shard, ldr_seg_t *segs,
                       uint32_t max);
uint32_t ldr_node_iov(ldr_node_t *node, uint32_t shard, struct iovec *iov,
                      uint32_t max);

/* ---- tenants and spaces (space.c) ---- */

typedef struct ldr_tenant_params {
    const char *name;
    uint64_t dram_max, ssd_max; /* bytes; 0: no limit of its own */
    /* The operator's word: no other secret is accepted. NULL: there is none,
     * and the first one counts. */
    const ldr_secret_check_t *secret;
} ldr_tenant_params_t;

/* Adds the tenant or changes its limits and its secret. */
larder_status_t ldr_node_tenant(ldr_node_t *node,
                                const ldr_tenant_params_t *params,
                                uint32_t *tenant_p);

/* SHA-256("larder tenant 1" || name), the first bytes of it. */
void ldr_tenant_id(const char *name, uint8_t id[LDR_ID_BYTES]);

/* The check value of a tenant's secret. False: libcrypto failed. */
bool ldr_tenant_check(const void *secret, size_t secret_bytes, const char *name,
                      uint8_t check[LDR_ID_BYTES]);
/* Both, as an operator gives them; and as text, in hexadecimal digits. */
bool ldr_secret_check(const void *secret, size_t secret_bytes, const char *name,
                      ldr_secret_check_t *out);
#define LDR_SECRET_CHECK_TEXT (4u * LDR_ID_BYTES)
void ldr_secret_check_text(const ldr_secret_check_t *c,
                           char text[LDR_SECRET_CHECK_TEXT + 1]);
bool ldr_secret_check_parse(const char *text, ldr_secret_check_t *out);
/* What the configuration says of a tenant's secret; *given_p false: nothing.
 * E_INVALID: its file cannot be used, or file and check value differ. */
struct ldr_tenant_config;
larder_status_t ldr_secret_configured(const struct ldr_tenant_config *t,
                                      ldr_secret_check_t *out, bool *given_p);
/* In constant time. Keys count where both are known. */
bool ldr_secret_check_same(const ldr_secret_check_t *a,
                           const ldr_secret_check_t *b);

/* The space's number. E_SECRET: the tenant has another secret, by the
 * operator's word; or, if there is none, in this node's memory or in a
 * directory, which remember the first one. A tenant that is not known is added,
 * without limits. */
larder_status_t ldr_node_space(ldr_node_t *node, const ldr_space_info_t *info,
                               uint32_t *space_p);
/* The same where nothing has to be asked or told but this node's memory; false:
 * it has, or something is wrong, and the other says what. Never waits. */
bool ldr_node_space_known(ldr_node_t *node, const ldr_space_info_t *info,
                          uint32_t *space_p);

/* ---- secrets (secret.c), all with the lock ---- */

/* What a client sent. False: libcrypto failed; needs no lock. */
bool ldr_secret_sent(const ldr_space_info_t *info, ldr_secret_check_t *out);
/* Whether it can be the tenant's, as far as is known: E_SECRET otherwise. */
larder_status_t ldr_secret_meet(ldr_node_t *node, uint32_t tenant,
                                const ldr_secret_check_t *secret);
/* It is the one under which the space is open. E_SECRET: there is another. */
larder_status_t ldr_secret_open(ldr_node_t *node, uint32_t space,
                                const ldr_secret_check_t *secret);
/* Before something in the space changes: its secret is the tenant's from now
 * on, in memory, in directories and in the shared tier. E_SECRET: another one
 * is, and nothing may change. Never waits. */
larder_status_t ldr_secret_settle(ldr_node_t *node, uint32_t space);
/* Whether that would be refused. */
bool ldr_secret_refused(const ldr_node_t *node, uint32_t space);
/* The operator's word; NULL: none, and what is known stays. */
void ldr_secret_give(ldr_node_t *node, uint32_t tenant,
                     const ldr_secret_check_t *secret);

/* E_DEADLINE: nothing that was put before is found any more, but a disk has not
 * recorded it yet. */
larder_status_t ldr_node_reset(ldr_node_t *node, uint32_t space,
                               uint64_t deadline_ns);
/* ---- modes (node.c) ---- */

void ldr_node_set_mode(ldr_node_t *node, ldr_mode_t mode);
ldr_mode_t ldr_node_get_mode(ldr_node_t *node);

/* ---- requests (announce.c) ---- */

/* What the policy hears of, with the lock held. */
static inline void ldr_node_tick(ldr_node_t *node)
{
    node->store.now_ds = (uint32_t)(ldr_now_ns(node->clock) / 100000000u);
}

/* A request that is about to use a chain, and what is known of it. */
typedef struct ldr_announce {
    const larder_key_t *keys;
    uint32_t count;
    uint32_t chunk_tokens; /* 0: not known */
    uint32_t tokens;       /* of the prompt; 0: those of its chunks */
    uint32_t hint;         /* LARDER_HINT_* */
    uint64_t id;           /* 0: none */
    bool saves;            /* by a save */
} ldr_announce_t;

void ldr_node_announce(ldr_node_t *node, uint32_t space,
                       const ldr_announce_t *a);

/* ---- saving (save.c) ---- */

/* One shard named in a request. */
typedef struct ldr_target {
    uint32_t space;
    uint32_t shards; /* of the space */
    larder_item_t *item;
} ldr_target_t;

/* Bytes in the item's buffers. */
static inline size_t ldr_item_bytes(const larder_item_t *item)
{
    size_t bytes = 0;

    for (uint32_t i = 0; i < item->iov_count; i++) {
        bytes += item->iov[i].iov_len;
    }
    return bytes;
}

/* Puts one item; sets its status. verify: one that is present is compared. */
void ldr_node_put(ldr_node_t *node, const ldr_target_t *t, bool verify,
                  const ldr_stop_t *stop);

/*
 * The steps of a put, for whoever copies the bytes itself. None is counted:
 * that is ldr_node_count_save().
 *
 * Reserve makes room and never waits for it, but may populate. OK: the shard
 * is being filled, its chunk is held, nobody sees it; PRESENT; E_FULL; PENDING:
 * full, but that may pass: writes are under way that will free room, or an
 * extent is on its way to the tenant; E_LIMIT (index); E_SIZE; E_TIER_OFF
 * (paused).
 */
larder_status_t ldr_node_reserve(ldr_node_t *node, const ldr_target_t *t,
                                 size_t bytes, uint32_t *shard_p);
/* The same of several shards of one chunk: t->item is the first of as many
 * items, whose numbers follow each other. One lookup, and one hold of the lock
 * unless it populates. Behind one that is PENDING all are. */
typedef struct ldr_reserving {
    size_t bytes;
    larder_status_t status; /* what came of it */
    uint32_t shard;         /* with OK */
} ldr_reserving_t;

void ldr_node_reserve_run(ldr_node_t *node, const ldr_target_t *t,
                          ldr_reserving_t *of, uint32_t count);
/* Makes it visible and gives up the hold. E_STALE: reset or removed meanwhile;
 * it is gone. ns: how long the copy took, 0: not known. */
larder_status_t ldr_node_commit(ldr_node_t *node, uint32_t shard, uint32_t crc,
                                uint64_t ns);
/* The same of many, with their copies' times unknown; and counts them. */
typedef struct ldr_committing {
    uint32_t shard, crc;
    uint32_t space; /* for counting */
    larder_status_t status;
} ldr_committing_t;

void ldr_node_commit_all(ldr_node_t *node, ldr_committing_t *of,
                         uint32_t count);
void ldr_node_abort(ldr_node_t *node, uint32_t shard);

/* Counts the outcome of a save; space LDR_NIL: none is known. */
void ldr_node_count_save(ldr_node_t *node, uint32_t space, larder_status_t st);

/* Gives up the hold of a load that was ended with keep. */
void ldr_node_release(ldr_node_t *node, uint32_t chunk);
/* The same of many. Shards other than LDR_NIL were found right. */
typedef struct ldr_releasing {
    uint32_t chunk, shard;
} ldr_releasing_t;

void ldr_node_release_all(ldr_node_t *node, const ldr_releasing_t *of,
                          uint32_t count);

void ldr_node_exists(ldr_node_t *node, const ldr_target_t *t, bool asks);

/* Removes the items, durably: their statuses are set. One that had to stop is
 * out of memory, but may come back from disk. */
void ldr_node_remove(ldr_node_t *node, uint32_t space, larder_item_t *items,
                     size_t count, const ldr_stop_t *stop);

larder_status_t ldr_node_flush(ldr_node_t *node, larder_tier_t tier,
                               const ldr_stop_t *stop);

/* ---- tiers below ---- */

/*
 * What other nodes may have of chunks that are not found here. Before a match
 * or a load: adds the chunks of a group that have to be asked for, then asks
 * for all of them.
 *
 *   ldr_node_ask_add()    E_NO_MEMORY
 *   ldr_node_ask()        false: there is nothing to ask, or nobody: it is over
 *                         and freed. True: ready() follows, or, where that is
 *                         NULL, ldr_node_ask_wait()
 *   ldr_node_ask_end()    once it is over, or nobody wants it any more: frees
 *                         it
 *
 * None of them waits but ldr_node_ask_wait(). NULL from begin: nobody is asked.
 */
ldr_query_t *ldr_node_ask_begin(ldr_node_t *node, uint32_t space,
                                uint32_t shards, uint64_t deadline_ns);
larder_status_t ldr_node_ask_add(ldr_node_t *node, ldr_query_t *ask,
                                 uint32_t group, const larder_key_t *keys,
                                 size_t count);
bool ldr_node_ask(ldr_node_t *node, ldr_query_t *ask);
void ldr_node_ask_wait(ldr_node_t *node, ldr_query_t *ask);
void ldr_node_ask_end(ldr_node_t *node, ldr_query_t *ask);

/* The first tier, in order of cost, that has the shard, and what a load has to
 * reserve; NULL: none, and why if one knows better. With the lock. */
ldr_tier_t *ldr_node_find(ldr_node_t *node, const ldr_sought_t *sought,
                          uint32_t *bytes_p, larder_cause_t *cause_p);
/* The same with DRAM as the first: where a load would find it. *cause_p becomes
 * why it would not, unless the index has no entry. With the lock. */
bool ldr_node_usable(ldr_node_t *node, const ldr_sought_t *sought,
                     larder_tier_t *tier_p, uint32_t *bytes_p,
                     larder_cause_t *cause_p);
/* Where a chunk is now, without using it. dram: all of its shards are there;
 * below: and in tiers that are this node's own; here: each is in one of the
 * two. found: a load would find all of them,
 * and this is the slowest tier that it needs; member: who has the last of those
 * that other members have, NULL: none is elsewhere. A paused node finds
 * nothing. With the lock, and member is good while it is held. */
typedef struct ldr_places {
    bool dram, below, here;
    bool found;
    larder_tier_t tier;
    const char *member;
} ldr_places_t;

void ldr_node_places(ldr_node_t *node, uint32_t space, uint32_t shards,
                     uint32_t group, const larder_key_t *key,
                     ldr_places_t *out);
/* It is used again. With the lock. */
void ldr_node_used(ldr_node_t *node, uint32_t shard);

/* ---- figures (stats.c) ---- */

/* tenant: its part, without what concerns all, such as disks; LDR_NIL: all. */
void ldr_node_stats(ldr_node_t *node, uint32_t tenant, larder_stats_t *out);

#define LDR_NAME_MAX 64u

/* What follows from counters. */
typedef struct ldr_sums {
    uint64_t hits, misses; /* loads, whatever the tier, whatever the cause */
    uint64_t not_found;    /* chunks that were asked for */
} ldr_sums_t;

typedef struct ldr_space_stats {
    uint8_t id[LDR_ID_BYTES];
    uint32_t tenant; /* LDR_NIL: nobody has opened it since the node started */
    uint32_t epoch;
    uint64_t dram_bytes; /* pages in use */
    uint64_t ssd_bytes;  /* records that are found, descriptors included */
    uint64_t chunks;     /* in the index, whichever tier has them */
    uint32_t asked_s;    /* when it was last asked for something; 0: never */
    char label[LARDER_LABEL_MAX + 1]; /* "": it has none */
    ldr_counters_t n;
    ldr_sums_t sum;
} ldr_space_stats_t;

typedef struct ldr_tenant_stats {
    uint8_t id[LDR_ID_BYTES];
    char name[LDR_NAME_MAX]; /* "": only seen on disk so far */
    uint32_t spaces;
    uint32_t extents, extents_leaving, extents_coming;
    uint64_t dram_max, ssd_max;   /* its limits; 0: none */
    uint64_t dram_share;          /* what others cannot take from it */
    uint64_t dram_owned_bytes;    /* its extents, those that leave as well */
    uint64_t dram_resident_bytes; /* of them */
    uint64_t dram_overdue_bytes;  /* of them, those nobody waits for any more */
    uint64_t dram_used_bytes;     /* pages in use */
    uint64_t ssd_share, ssd_bytes; /* ssd_share: 0 while it is alone */
    uint64_t chunks, held_chunks, pinned_bytes;
    uint64_t promised_bytes;   /* held for hand-offs */
    ldr_policy_stats_t policy; /* lru: that it ranks, and nothing more */
    uint64_t ranks[2];         /* 1: what the policy learned ranks, or lru */
    ldr_counters_t n;
    ldr_sums_t sum;
} ldr_tenant_stats_t;

/* By number, from 0 on; false: there is none with this number. */
bool ldr_node_space_stats(ldr_node_t *node, uint32_t space,
                          ldr_space_stats_t *out);
bool ldr_node_tenant_stats(ldr_node_t *node, uint32_t tenant,
                           ldr_tenant_stats_t *out);

void ldr_node_queues(ldr_node_t *node, ldr_queues_t *out);

/* Prometheus text; gives the length all of it needs. */
size_t ldr_node_metrics(ldr_node_t *node, char *text, size_t size);

/* The time that loading so many bytes of each tier will take, from what was
 * measured. */
uint64_t ldr_node_expect_us(ldr_node_t *node,
                            const uint64_t bytes[LARDER_TIERS_MAX]);

/* A measured transfer, for what match expects of the next. With the lock. */
void ldr_node_measured(ldr_node_t *node, larder_tier_t tier, uint64_t bytes,
                       uint64_t ns);
/* Loads that went together, by the tiers they came from. Takes the lock, if
 * there is something to learn of a tier below DRAM. */
void ldr_node_measured_loads(ldr_node_t *node,
                             const uint64_t bytes[LARDER_TIERS_MAX],
                             uint64_t ns);
