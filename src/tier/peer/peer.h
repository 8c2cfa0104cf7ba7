/*
 * The peer tier: what other members of the cluster have. A row of the tier
 * table (tier.h); the far side of its sessions is server/peer.h.
 *
 * Reading. A chunk that this node lacks is asked for at the members of rank 1
 * and 2, all chunks of a request at once, one request to each member (ask.c).
 * What they answer is kept for a while as locations (where.c): find() looks
 * there and nowhere else. A member that says it has a chunk keeps it in DRAM
 * for whoever asked, until it was fetched (lease.c). Bytes are fetched by
 * lanes, straight into the pages that the node reserved, and checked as they
 * come (fetch.c).
 *
 * Writing. What is saved is brought to the member that owns it: what it lacks,
 * in batches (save.c). A member among the first `copies` passes it on to the
 * next of them, and brings what was saved at it to all of them; any other node
 * brings it to the first that answers.
 *
 * That holds where the owner's disk keeps what is saved. Where this node's own
 * disk keeps it, the owner only learns that it does: homes.h.
 *
 * Resets and removals. Members meet (meet.c): each tells the other its epochs
 * and the removals that the other has not heard of, and takes over the other's,
 * before anything else is said in a session and again after each reset and
 * removal.
 *
 * Threads. Each member has lanes: threads of this tier's own, one connection
 * each, begun when there is work (lane.c). The first lane of a member meets and
 * asks, and never moves bytes; of the others at least one fetches. No thread of
 * the node ever waits for a member but those that reset, remove or flush.
 *
 * Invariants, all with the node's lock:
 *  1. An entry of `nodes` stays until the tier is destroyed; its place there is
 *     its number. A member keeps its entry until LDR_PEERS_MAX others have one
 *     and it was out of the view, with nothing under way, for LDR_GONE_NS: then
 *     its lanes and its way have ended, and another one may take the entry.
 *  2. A shard in state READING whose tier is PEER is in exactly one list
 *     `fetch`, or in the hands of one lane, which ends it with
 *     ldr_load_came() or ldr_load_failed().
 *  3. An ask is over once: by its last answer, or by whoever gives it up.
 *     Then `over` is set, and ready() is not called any more.
 *  4. A node has not heard of removals beyond `sent` of its. Bytes of a shard
 *     among those are neither taken from it nor by it.
 *  5. Bytes under way into this node from others are at most peer_dram, or one
 *     shard.
 *  6. What is asked for, fetched, saved or announced is of a space that was
 *     opened here (`spaces`): a member learns of no other which one it is, and
 *     takes nothing of a space that its connection has not opened.
 *
 * What fails. A member that does not answer: its part of an ask is unknown,
 * which is no answer and is not remembered as one; its fetches are misses, or
 * go to a second holder; its saves go to the next rank, or wait. The breaker of
 * net/session.h leaves it alone for a while, so that it costs one deadline per
 * pause. Errors have a scope: no memory here, a full peer, a load that was
 * given up are not the member's fault and do not count against it.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "cluster/cluster.h"
#include "net/session.h"
#include "tier/host.h"
#include "wire/peer.h"

#define LDR_PEER_QUEUE 2u
#define LDR_PEERS_MAX 1024u
#define LDR_GONE_NS UINT64_C(60000000000)
#define LDR_PEER_LANES 16u
#define LDR_PEER_BATCH 32u                       /* shards moved at once */
#define LDR_PEER_BATCH_BYTES ((uint64_t)8 << 20) /* or the first alone */
#define LDR_PEER_NONE UINT16_MAX                 /* no member */
#define LDR_PEER_UNKNOWN (UINT16_MAX - 1)        /* some have not answered */
#define LDR_REMOVALS_MAX 16384u
#define LDR_LINEAGE 6u /* epochs of a space that members tell each other */
#define LDR_REMOVALS_KEPT_S 86400u
#define LDR_PEER_TENANT "larder peer" /* what a member says hello as */

typedef struct ldr_peers ldr_peers_t;
typedef struct ldr_peer_node ldr_peer_node_t;
typedef struct ldr_peer_way ldr_peer_way_t; /* way.c */

#define LDR_QUERY_SECOND                                                       \
    (1u << 31)                    /* the member is not the first for this row */
#define LDR_QUERY_HOME (1u << 30) /* ... and should have it: homes.h */
#define LDR_QUERY_ROW (LDR_QUERY_HOME - 1)

/* One member's part of an ask. */
typedef struct ldr_query_part {
    ldr_query_t *ask;
    struct ldr_query_part *next;
    bool waits;           /* for what the member has promised ... */
    uint64_t again_ns;    /* ... and is asked again then (handoff.c) */
    larder_key_t awaited; /* the last chunk that had not come */
    uint32_t promised;    /* of the last answer: chunks that had not come */
    uint32_t whole;       /* ... and those that were there */
    uint32_t count;
    uint32_t rows[]; /* places in ask->rows, and LDR_QUERY_... */
} ldr_query_part_t;

/* Shards of one space on their way to one member; they are held. */
typedef struct ldr_peer_batch {
    struct ldr_peer_batch *next;
    uint32_t space, count;
    bool kept; /* this node's disk keeps them as well */
    uint32_t shards[LDR_PEER_BATCH];
} ldr_peer_batch_t;

/* A space as other nodes are informed of it. */
typedef struct ldr_peer_space {
    ldr_space_ref_t ref;
    char tenant[LDR_TENANT_MAX + 1];
} ldr_peer_space_t;

struct ldr_peer_node {
    ldr_peers_t *tier;
    uint16_t number;
    uint64_t id;
    char name[LDR_MEMBER_NAME];
    char address[LDR_MEMBER_ADDRESS];
    bool in_view;
    uint64_t seen_ns; /* when it was in the view last, or said who it is */
    uint32_t since_s; /* it has this entry since then; 0: from the first on */
    unsigned users;   /* sessions of its that say who they are just now */
    bool rests;       /* its lanes are being ended, and none begins */
    bool leaving;     /* by its own word, in this run of it */
    ldr_peer_way_t *way; /* NULL: there is none yet (way.c) */
    bool lost;           /* none could be made to its address */

    /* Meeting. Counts of peers->wanted: */
    uint64_t tried, informed; /* begun and ended; and well */
    uint64_t again_ns;        /* when it is tried again */
    uint64_t run;             /* of its process */
    uint64_t sent, got;       /* removals: of ours that it has, of its in run */
    unsigned live;            /* sessions of its with this node */
    uint64_t heard_ns;        /* when one of them said something */
    bool same_view, knows;    /* by what it said last */
    uint64_t skew_s, trip_us;
    char why[200];     /* it could not be met; "": it was */
    uint32_t order;    /* LDR_MEET_LEAVE, _RETURN: to be told; 0 */
    uint64_t order_ns; /* ... until then */
    uint64_t leased;   /* bytes of this node's that it has leases on */

    /* Work */
    ldr_query_part_t *asks, **asks_end;
    ldr_query_part_t *awaiting; /* asked again later: see handoff.c */
    uint64_t closed;            /* promises that it said were closed */
    struct ldr_peer_word *words, **words_end; /* to be said to it */
    unsigned word_count;
    bool said; /* a word was the last thing: asks that wait are next */

    /* Homes (homes.h) */
    bool homes;                /* it keeps some, by its own word */
    struct ldr_here_row *here; /* a ring: what it is to be told */
    uint32_t here_first, here_rows, here_room;
    bool here_busy;  /* a lane tells it */
    bool here_all;   /* it is to be told everything that this node has */
    bool here_walks; /* ... which is under way */
    uint64_t here_again_ns;

    uint32_t fetch_head, fetch_tail; /* shards, by fetch_next */
    uint64_t renew_ns; /* when those that still wait are asked for again */
    ldr_peer_batch_t *saves, **saves_end;
    unsigned save_count; /* batches, those in hand too */
    unsigned saving;     /* lanes that have one in hand */
    ldr_peer_counts_t n;
    struct ldr_peer_lane { /* last: what is before goes with the member */
        ldr_peer_node_t *node;
        pthread_t thread;
        unsigned number;
        bool runs;
        bool idle; /* it waits for `wake`; whoever wakes it clears this */
        pthread_cond_t wake;
    } lanes[LDR_PEER_LANES];
};

typedef struct ldr_where ldr_where_t;   /* where.c */
typedef struct ldr_leases ldr_leases_t; /* lease.c */
typedef struct ldr_hot ldr_hot_t;       /* hot.c */
typedef struct ldr_homes ldr_homes_t;   /* homes.c */

typedef struct ldr_peer_removal {
    ldr_removal_row_t row;
    uint32_t at_s;  /* by this node's wall clock */
    uint32_t epoch; /* of its space, when this node heard of it */
} ldr_peer_removal_t;

struct ldr_peers {
    union {
        ldr_tier_t base;
        struct ldr_tier;
    };
    ldr_cluster_t *cluster;
    const ldr_threads_t *threads;
    ldr_self_t self;
    ldr_peer_node_t **nodes;
    unsigned node_count;
    const ldr_view_t *view; /* that nodes were made of */
    uint16_t *by_place;     /* nodes by their places in it */
    uint64_t look_ns; /* 0; or some had no entry: it is looked at again then */
    ldr_where_t *where;
    ldr_leases_t *leases;
    ldr_hot_t *hot;
    ldr_peer_space_t **spaces; /* by the store's number; NULL: not known */
    bool stop;                 /* atomic: lanes end */

    /* Removals, numbered from 1: [first, first + removal_count). */
    ldr_peer_removal_t *removals; /* a ring */
    uint64_t removal_first;
    uint32_t removal_count;
    uint64_t *removal_ids; /* a set of the ids of all of them */
    uint64_t wanted;       /* counts what members are to be informed of */
    /* By space: when the last removal was made that is not on the list any
     * more and not of before a reset; 0: there is none. */
    uint32_t *lost;
    uint32_t (*lineage)[LDR_LINEAGE]; /* by space: see lineage_of() */

    bool began_empty;      /* this node had nothing when it began, then */
    uint64_t began_ns;     /* ... by the monotonic clock */
    uint32_t began_s;      /* ... and by the wall clock */
    uint64_t caught_up_ns; /* nothing was queued for other members then */
    uint64_t flying;       /* bytes on their way into this node */
    bool leaving;          /* this node, by the view */
    uint32_t leave_at;     /* shards before it were looked at (leave.c) */
    uint64_t leave_given;  /* shards that were given since it leaves */

    /* Homes (homes.h) */
    ldr_homes_t *homes;
    uint64_t homes_dropped, copied;
    const ldr_view_t *announced;  /* members were told by it; or NULL */
    uint64_t walks;               /* through all that there is */
    struct ldr_peer_copy *copies; /* a ring: to be fetched for this node */
    uint32_t copy_first, copy_count;

    /* The threads that hand out what is queued, and announce, and (server/)
     * take copies. */
    pthread_cond_t work, announce_work, copy_work;
    pthread_t saver, announcer;
    bool saver_runs, announcer_runs;
};

extern const ldr_tier_ops_t ldr_tier_peer;

/* The node's, or NULL if it is alone. */
static inline ldr_peers_t *ldr_peers_of(const ldr_host_t *host)
{
    return (ldr_peers_t *)host->tiers[LDR_PEER_QUEUE];
}

/* Whether the space was opened here. */
static inline bool ldr_peers_know(const ldr_peers_t *p, uint32_t space)
{
    return p->spaces[space] != NULL;
}

static inline uint64_t ldr_peers_now(const ldr_peers_t *p)
{
    return ldr_now_ns(p->host->clock);
}

/* ---- members (peer.c), with the lock ---- */

/* Takes a new view up, if there is one. */
void ldr_peers_look(ldr_peers_t *p);
/* The member with this name, other than this node; NULL: there is none. */
ldr_peer_node_t *ldr_peers_named(const ldr_peers_t *p, const char *name);
/* The node with this name, added if it is new, maybe in the entry of one that
 * is gone; NULL: too many, no memory. */
ldr_peer_node_t *ldr_peers_node(ldr_peers_t *p, const char *name);
/* The nodes that own a chunk, this one left out; *mine_p: its own rank, or
 * LDR_NOBODY. Gives how many. copies: those that keep it; else by rank. */
unsigned ldr_peers_owners(ldr_peers_t *p, const larder_key_t *key, bool copies,
                          unsigned max, ldr_peer_node_t **nodes,
                          uint32_t *mine_p);
/* Bytes on their way in: false: too many, wait. And less. */
bool ldr_peers_fly(ldr_peers_t *p, uint64_t bytes);
void ldr_peers_land(ldr_peers_t *p, uint64_t bytes);

/* ---- the way to a member (way.c); without the lock ---- */

/* What a connection to the member at this address takes, from the options of a
 * node: cluster_secret, cluster_tls... */
void ldr_peer_link_options(ldr_options_t *o, const char *address);
/* In a lane: makes the way to the address that the member has now, if there is
 * none. A failure leaves the one of before. */
larder_status_t ldr_peer_way_open(ldr_peer_node_t *n);
/* Ends it, and waits for that, unless a call has it in use. */
void ldr_peer_way_end(ldr_peer_node_t *n);
/* Whether the member can be called now: it has an address, and its breaker is
 * shut. With the lock. */
bool ldr_peer_well(const ldr_peer_node_t *n);
/* Reads this member's certificates again, for connections that begin from here
 * on. */
larder_status_t ldr_peers_renew(ldr_peers_t *p);
/* In a lane: as ldr_talk_begin() and _end(), by the way of now. space: NULL if
 * it is of none. */
larder_status_t ldr_peer_talk_begin(ldr_peer_node_t *n, ldr_talk_t *v,
                                    const ldr_peer_space_t *space,
                                    const ldr_stop_t *stop);
void ldr_peer_talk_end(ldr_talk_t *v, larder_status_t st);

/* ---- lanes (lane.c), with the lock ---- */

/* There is one more thing to do for the first lane, or for those that move
 * bytes: wakes one that is idle, or begins one. */
void ldr_lane_wake(ldr_peer_node_t *n, bool moves);
/* Whether any lane of the member runs. */
bool ldr_lanes_run(const ldr_peer_node_t *n);
/* Whether the member is out of the view for long, and nothing is under way with
 * it. */
bool ldr_peer_gone(const ldr_peer_node_t *n);
/* Ends the lanes and the way of one that is gone, and drops the lock for that.
 * False: there is none. */
bool ldr_peers_rest(ldr_peers_t *p);
/* Ends all, without the lock. */
void ldr_lanes_end(ldr_peers_t *p);

/* ---- locations (where.c), with the lock ---- */

ldr_where_t *ldr_where_open(const ldr_clock_t *clock);
void ldr_where_close(ldr_where_t *w);

typedef struct ldr_location {
    uint32_t length; /* 0: not to be had: holder says what is known */
    uint16_t holder, second;
} ldr_location_t;

/* Loads what ldr_where_find() will read into the CPU's cache. */
void ldr_where_prefetch(const ldr_where_t *w, uint64_t fingerprint,
                        uint32_t number);
bool ldr_where_find(const ldr_where_t *w, uint64_t fingerprint, uint32_t number,
                    uint32_t epoch, ldr_location_t *out);
void ldr_where_put(ldr_where_t *w, uint64_t fingerprint, uint32_t number,
                   uint32_t epoch, uint64_t until_ns,
                   const ldr_location_t *location);
void ldr_where_drop(ldr_where_t *w, uint64_t fingerprint, uint32_t number);

/* ---- leases that others have here (lease.c), with the lock ---- */

#define LDR_LEASE_MS 5000u        /* without renewal */
#define LDR_LEASE_SECOND_MS 1000u /* of rank 2: in case rank 1 fails */

ldr_leases_t *ldr_peer_leases_open(void);
void ldr_peer_leases_close(ldr_leases_t *l);
/* This member was told that the chunk is here: what of its first shards is in
 * DRAM stays there for so long. If it has a lease, it is renewed. */
void ldr_peer_lease_take(ldr_peer_node_t *n, uint32_t chunk, uint32_t shards,
                         uint32_t ms, uint64_t now_ns);
/* Loads what ldr_peer_lease_take() will read into the CPU's cache. */
void ldr_peer_lease_prefetch(const ldr_peer_node_t *n, uint32_t chunk);
/* The shard was sent to it. */
void ldr_peer_lease_sent(ldr_peer_node_t *n, uint32_t chunk, uint32_t number);
/* Ends those whose time is over. UINT64_MAX: all. */
void ldr_peer_leases_end(ldr_peers_t *p, uint64_t now_ns);

/* ---- what several members want at once (hot.c), with the lock ---- */

ldr_hot_t *ldr_hot_open(void);
void ldr_hot_close(ldr_hot_t *h);
/* Whether anything is hot now, or may be. */
bool ldr_hot_any(const ldr_peers_t *p, uint64_t now_ns);
/* A member fetched this shard here. */
void ldr_hot_sent(ldr_peer_node_t *to, uint64_t fingerprint, uint32_t number);
/* A member that this one should fetch it from instead; NULL: from here. */
ldr_peer_node_t *ldr_hot_other(ldr_peer_node_t *asks, uint64_t fingerprint,
                               uint32_t number);

/* ---- asking (ask.c) ---- */

bool ldr_peer_must_ask(ldr_tier_t *t, const ldr_query_t *ask,
                       const ldr_name_t *name);
bool ldr_peer_ask(ldr_tier_t *t, ldr_query_t *ask);
/* In a lane, without the lock: one part, and then it is gone. */
void ldr_peer_ask_part(ldr_peer_node_t *n, ldr_query_part_t *part);
/* In the first lane, with the lock, which it drops: asks again for what waits
 * to be fetched from this member, so that its leases do not end. */
void ldr_peer_renew(ldr_peer_node_t *n);
/* Nobody will ask for it. With the lock. */
void ldr_peer_unask_part(ldr_peer_node_t *n, ldr_query_part_t *part);
void ldr_query_unref(ldr_query_t *ask); /* with the lock */

/* ---- hand-offs (handoff.c), with the lock ---- */

/* Queues something to be said to the member: see wire/peer.h. What cannot be
 * queued is dropped. about: a key or a token. */
void ldr_peer_word(ldr_peer_node_t *n, uint32_t what, uint32_t space,
                   const void *about, size_t bytes);
/* In the first lane: says the next of it, and drops the lock. False: there is
 * nothing to say. */
bool ldr_peer_say_word(ldr_peer_node_t *n);
/* The part waits for promises. closed: n->closed before it was asked. */
void ldr_peer_await(ldr_peer_node_t *n, ldr_query_part_t *part,
                    uint64_t closed);
/* The member says that a promised chunk has come, or failed. */
void ldr_peer_closed(ldr_peer_node_t *n, const larder_key_t *key);
/* Parts that are due by then become asks. Gives when the next is. */
uint64_t ldr_peer_awaited(ldr_peer_node_t *n, uint64_t now_ns);
/* Drops what was not said; what waits becomes asks. */
void ldr_peer_words_end(ldr_peer_node_t *n);
/* Says RENEW or OVER to the member that has the promise, without waiting.
 * E_INVALID: there is no such member. Without the lock. */
larder_status_t ldr_peers_handoff(ldr_peers_t *p, const char *name,
                                  uint32_t space, const larder_token_t *token,
                                  larder_handoff_t what);

/* ---- fetching (fetch.c) ---- */

void ldr_peer_fetch(ldr_tier_t *t, uint32_t shard);
/* In a lane, with the lock, which it drops. False: there is nothing, or no
 * room. */
bool ldr_peer_fetch_some(ldr_peer_node_t *n);
/* Ends those that wait. */
void ldr_peer_fetch_none(ldr_peer_node_t *n, larder_cause_t cause);

/* ---- saving (save.c) ---- */

void ldr_peer_queue(ldr_tier_t *t, uint32_t shard);
void ldr_peer_used(ldr_tier_t *t, uint32_t shard);
bool ldr_peer_kept_elsewhere(ldr_tier_t *t, uint32_t shard);
larder_status_t ldr_peer_flush(ldr_tier_t *t, const ldr_stop_t *stop);
void *ldr_peer_saver(void *peers);
/* In a lane, with the lock, which it drops. */
void ldr_peer_save_batch(ldr_peer_node_t *n, ldr_peer_batch_t *batch);
/* It will not be sent: back into the queue. With the lock. */
void ldr_peer_save_back(ldr_peer_node_t *n, ldr_peer_batch_t *batch);

/* ---- leaving (leave.c) ---- */

/* Whether this node leaves: it takes nothing of other members. Without the
 * lock. */
bool ldr_peers_leaving(ldr_peers_t *p);
/* In ldr_peers_look(): whether this node leaves by the view. With the lock. */
void ldr_peers_leave_look(ldr_peers_t *p);
/* Queues the next of what only this node has. False: there is no more. With the
 * lock. */
bool ldr_peers_leave_step(ldr_peers_t *p);
/* The cluster says that this node leaves: informs the members that answer.
 * Without the lock. */
void ldr_peers_leave(ldr_peers_t *p, const ldr_stop_t *stop);
/* Gives what only this node has to those that own it now, until it has to stop.
 * *given_p: shards that were given since it leaves; *left_p: that were not.
 * Without the lock. */
larder_status_t ldr_peers_hand_on(ldr_peers_t *p, const ldr_stop_t *stop,
                                  uint64_t *given_p, uint64_t *left_p);
/* Has another member leave, or take its place again, by telling it. Waits for
 * nobody; what it could not be told within 10 s is dropped. E_INVALID: there is
 * no such member. Without the lock. */
larder_status_t ldr_peers_order(ldr_peers_t *p, const char *name, bool back);

/* ---- meeting (meet.c) ---- */

/* Says it on a new session; see ldr_net_env_t. */
larder_status_t ldr_peer_meet(ldr_peer_node_t *n, ldr_link_t *link,
                              const ldr_stop_t *stop);
/* In the first lane, without the lock: tells a member what is wanted. */
void ldr_peer_tell(ldr_peer_node_t *n);
/* What this node says to that one, into a body; gives its bytes. *upto_p: the
 * last removal in it. from: that the other has those before it. *space_p: the
 * first space whose epochs it says, then the first whose epochs follow in
 * another message; LDR_NIL: all were said. With the lock. */
size_t ldr_peers_say(ldr_peers_t *p, const ldr_peer_node_t *n, uint64_t from,
                     uint32_t *space_p, uint8_t *body, uint64_t *upto_p);
/* Waits until every member was informed of what was wanted, or could not be.
 * With the lock, which it drops. */
void ldr_peers_wait_met(ldr_peers_t *p, uint64_t wanted,
                        const ldr_stop_t *stop);
/* Takes over what the other says. Without the lock; it waits for disks. */
larder_status_t ldr_peers_hear(ldr_peers_t *p, ldr_peer_node_t *n,
                               const ldr_meet_t *m, const ldr_stop_t *stop);
/* Whether this member has not heard yet that the shard was removed. With the
 * lock. */
bool ldr_peer_owes(const ldr_peer_node_t *n, const uint8_t *space_id,
                   const larder_key_t *key, uint32_t group, uint32_t number);
larder_status_t ldr_peer_remove(ldr_tier_t *t, uint32_t space, uint32_t entry,
                                const larder_item_t *item, uint64_t *token_p,
                                bool *there_p);
larder_status_t ldr_peer_remove_wait(ldr_tier_t *t, uint32_t space,
                                     const larder_item_t *items, size_t count,
                                     uint64_t token, const ldr_stop_t *stop);
larder_status_t ldr_peer_epochs(ldr_tier_t *t, uint32_t space,
                                uint64_t deadline_ns, bool *raised_p);
void ldr_peer_epochs_later(ldr_tier_t *t);

void ldr_peer_metrics(ldr_tier_t *t, ldr_exposition_t *e); /* figures.c */
/* Of one member, by its name; why: "": it is well. False: there is none.
 * Without the lock. */
bool ldr_peers_figures(ldr_peers_t *p, const char *name,
                       ldr_peer_figures_t *row, char *why, size_t size);
/* Of the homes that this node keeps (homes.h). Without the lock. */
typedef struct ldr_homes_figures {
    uint64_t known, dropped, copies;
} ldr_homes_figures_t;
ldr_homes_figures_t ldr_peers_homes(ldr_peers_t *p);
