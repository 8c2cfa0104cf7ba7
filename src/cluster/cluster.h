/*
 * The members of a cluster, and the views that a node has of them.
 *
 * A source says who the members are: a static list, DNS SRV records, or etcd.
 * Whatever it says goes through the guard (below) and becomes a view: an
 * immutable, counted snapshot with its placement. Members agree on nothing
 * else. The source decides who owns what; whether a member answers is for each
 * node to find out from its own calls. A source that fails or is silent
 * changes nothing: the last view stands.
 *
 * Invariants
 *  1. A view never changes. Members stand in the order of their ids, no two
 *     with the same id or the same address, and the hash is a function of what
 *     ldr_view_t says it covers.
 *  2. There is always a view. Before the source has answered for the first
 *     time it is an empty one with generation 0.
 *  3. A later view has a larger generation.
 *  4. Of the members that were believed in during the last LDR_GUARD_MS at
 *     least half are in the view, unless each one that is not has been missing
 *     for LDR_GUARD_MS without a break.
 *
 * Locks: taking, reading and giving back a view is a few atomic operations,
 * from any thread, and waits for nobody. Everything else here may take the
 * cluster's own lock, which is never held across a call of a source or of
 * `changed`; and nothing here takes a lock of the node.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/options.h"
#include "base/wait.h"
#include "cluster/source.h"
#include "larder/larder.h"
#include "net/auth.h"

/* A view that is empty, or without more than half of the members that were
 * there, must persist for so long before it is believed. */
#define LDR_GUARD_MS 30000u
/* A newcomer has 1/8 of its weight first, and all of it after cluster_ramp_s,
 * in steps of an eighth. */
#define LDR_SHARE_FULL 8u
/* A member that was away for less than this, by a source that does not say
 * whether it kept its disk, comes back with all of its weight. */
#define LDR_AWAY_MS 3600000u

#define LDR_RANKS_MAX 4u /* that ldr_view_owners() can give */
#define LDR_NOBODY UINT32_MAX

/* ---- views ---- */

typedef struct ldr_view {
    uint64_t generation;
    /* SHA-256 of id, name, address, zone, weight and share of every member:
     * nodes with the same hash give every run the same owners. */
    uint8_t hash[32];
    const ldr_member_t *members; /* by id */
    uint32_t count;
    uint32_t self; /* this node's place among them; LDR_NOBODY: not one */
} ldr_view_t;

typedef struct ldr_cluster ldr_cluster_t;

/* The view as it is now; never NULL. Give it back. */
const ldr_view_t *ldr_cluster_view(ldr_cluster_t *c);
void ldr_view_give(const ldr_view_t *view);
/* Takes one that the caller holds once more. */
const ldr_view_t *ldr_view_keep(const ldr_view_t *view);

/* The generation of the view as it is now: to see that it changed. */
uint64_t ldr_cluster_generation(const ldr_cluster_t *c);

/* The members that own a run, the first rank first: at most max (up to
 * LDR_RANKS_MAX), as places in the view. Those of weight 0 and those that are
 * leaving own nothing. Gives how many. */
uint32_t ldr_view_owners(const ldr_view_t *view, uint64_t run, uint32_t max,
                         uint32_t *members);
/* The same of a set of runs: ldr_run_set(). */
uint32_t ldr_view_set_owners(const ldr_view_t *view, uint32_t set, uint32_t max,
                             uint32_t *members);

/* Loads what finding the owners of this run will read into the CPU's cache. */
void ldr_view_prefetch(const ldr_view_t *view, uint64_t run);

/* The members that keep `copies` of a run: rank 1, then by rank those of zones
 * that have none yet, then by rank whoever is left. */
uint32_t ldr_view_copies(const ldr_view_t *view, uint64_t run, uint32_t copies,
                         uint32_t *members);

/* A member's place, or LDR_NOBODY. */
uint32_t ldr_view_find(const ldr_view_t *view, uint64_t id);

/* How the run of a chunk is named for the two above: by the key of its first
 * chunk, of which every key of the run begins with 8 bytes (base/hash.h). So no
 * node has to know a chunk's place in its chain, and all come to the same
 * owner: a save, a load by name and a removal say only the key. */
uint64_t ldr_run_hash(const larder_key_t *key);

/* ---- the cluster ---- */

typedef struct ldr_cluster_params {
    const ldr_options_t *options; /* cluster, member_*, cluster_* */
    ldr_log_t log;
    const ldr_clock_t *clock;     /* NULL: the real one */
    const ldr_threads_t *threads; /* NULL: real ones */
    const ldr_http_t *http;       /* NULL: libcurl */
    const ldr_dns_t *dns;         /* NULL: the resolver of this host */
    uint64_t seed;                /* of chance, and of the run; 0: entropy */
    /* After each new view, from a thread of the cluster, without a lock. It
     * must not wait for others, nor close the cluster. NULL: nobody asks. */
    void (*changed)(void *arg);
    void *arg;
} ldr_cluster_params_t;

/* Reads the options and starts; waits for no server. A static list is the view
 * when this returns. E_INVALID, E_UNSUPPORTED (no libcurl), with a text that
 * names the option. */
larder_status_t ldr_cluster_open(const ldr_cluster_params_t *params,
                                 ldr_cluster_t **cluster_p);
/* Ends its threads, within a few seconds even if every server is stopped. All
 * views have been given back. */
void ldr_cluster_close(ldr_cluster_t *c);

/* Checks the options alone. */
larder_status_t ldr_cluster_check(const ldr_options_t *options);

/* After a reload of the options: takes a changed static list or weight. */
larder_status_t ldr_cluster_reload(ldr_cluster_t *c,
                                   const ldr_options_t *options);

/* ---- this node ---- */

typedef struct ldr_self {
    uint64_t id, run; /* run: random, of this start */
    const char *name;
    const char *address; /* as published */
    const char *cluster; /* name of the cluster; "" for a static list */
} ldr_self_t;

ldr_self_t ldr_cluster_self(const ldr_cluster_t *c);

/* Leaves the ring: this node stays a member that others can fetch from, but
 * owns nothing from now on. LARDER_OK: the source has recorded it, or there is
 * nothing that could (static, DNS: tell the peers, who pass it to
 * ldr_cluster_peer_says());
 * E_DEADLINE: not yet, it is tried on. back: takes its place again. */
larder_status_t ldr_cluster_leave(ldr_cluster_t *c, bool back,
                                  uint64_t deadline_ns);

/* This node has what it kept on its disks when it was a member before: it is no
 * newcomer, where members say themselves what they are (etcd). */
void ldr_cluster_returns(ldr_cluster_t *c);

/* Has a member leave the ring, or come back; this node, or with etcd any other
 * one. Waits for nobody. Of another one it is recorded in etcd and stands until
 * it is taken back. LARDER_PENDING: the source cannot record it (static, DNS):
 * tell that member by its session. E_INVALID with a text: nobody of that name.
 */
larder_status_t ldr_cluster_drain(ldr_cluster_t *c, const char *name,
                                  bool back);

/* ---- peers: what a session asks before it believes who is there ---- */

/* The cluster's secrets: what both sides prove with ldr_proof_make(). One, or
 * two while it changes (the first is the newest). */
const ldr_token_t *ldr_cluster_secrets(const ldr_cluster_t *c,
                                       unsigned *count_p);

typedef struct ldr_claim {
    const char *name;    /* of the member that it says it is */
    const char *cluster; /* the cluster that it says it is in */
    uint64_t run;
    uint32_t version_major;
    uint64_t
        live_run; /* of a session with that member that is alive; 0: none */
} ldr_claim_t;

/* What a peer says in its hello, before its proof is looked at. LARDER_OK, or
 * a refusal with a text that names the member and what to do: E_DENIED (another
 * cluster; this node's own name; a name that another run has now) or E_VERSION
 * (another major version). A name that is not in the view is no reason: its
 * view may be newer. */
larder_status_t ldr_cluster_claim(ldr_cluster_t *c, const ldr_claim_t *claim);

/* What a peer that has proven who it is says of itself: that it is leaving, and
 * so owns nothing, or that it is not. Once for each session, and when it says
 * otherwise. It counts until the peer says otherwise or another run of it is
 * there; where the source carries it too, for the moment that it is late. */
void ldr_cluster_peer_says(ldr_cluster_t *c, uint64_t id, uint64_t run,
                           bool leaving);

/* ---- what people see ---- */

typedef struct ldr_cluster_stats {
    const char *source; /* static, dns or etcd */
    uint64_t members, owners, leaving;
    uint64_t views;     /* so many were believed */
    uint64_t held;      /* changes that the guard held back */
    uint64_t held_ms;   /* how long it has held the last one; 0: nothing */
    uint64_t refused;   /* members that are refused now */
    uint64_t source_ok; /* 1: its last answer was good */
    uint64_t source_failures; /* calls of it that failed */
    uint64_t source_age_ms;   /* since its last good answer */
    uint64_t registered;      /* 1: this node is published */
    char trouble[256];        /* what is wrong now; "": nothing */
} ldr_cluster_stats_t;

void ldr_cluster_stats(ldr_cluster_t *c, ldr_cluster_stats_t *stats);
