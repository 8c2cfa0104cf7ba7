/*
 * A cluster in one process: real nodes with their peer tier, their sessions and
 * their disks, over the simulated network, disks, clock and etcd. Everything
 * follows from the seed.
 *
 *   world.c    nodes: start, crash, leave; what a node holds
 *   calls.c    what clients do, and what every answer is checked against
 *   trouble.c  what goes wrong, and how it is put right again
 *   settle.c   what must hold once all is well
 *
 * What must hold at any time:
 *  1. A load gives exactly bytes that somebody saved under that key, or a miss.
 *  2. No call returns later than its deadline + 50 ms. (Time in which the
 *     process was stopped does not count.)
 *  3. After a removal or a reset, no member that recorded it gives out anything
 *     from before. OK: that is every member of the view; partial: every one
 *     that is not named.
 * And once everything is mended and one ramp has passed:
 *  4. What some member still remembers of (3) holds for all.
 *  5. What two members held when one of them died is still held.
 *  6. What a member holds that others ask for it is found by every member; with
 *     home=writer also what any member's disk has.
 *  7. Nothing is held for anybody, and nothing is under way.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "cluster/cluster.h"
#include "node/load.h"
#include "server/peer.h"
#include "sim/simdisk.h"
#include "sim/simetcd.h"
#include "sim/simnet.h"

enum {
    NODES_MAX = 20,
    KEYS_MAX = 96,
    EVENTS_MAX = 4096,
    CLIENTS = 2, /* of each node */
    TIMEOUT_MS = 300,
    CHAIN_MAX = 4,
    RAMP_S = 8
};

#define LATE_NS (50 * SIM_MS)
#define SECOND (1000 * SIM_MS)
#define BYTES_MAX ((size_t)150 << 10)

/* What is known of a key. Versions of its bytes count up with each removal and
 * reset. */
typedef struct key_state {
    unsigned saves; /* under way */
    bool removing;  /* nobody saves it meanwhile */
    uint32_t next;  /* version that is saved */
    /* Nobody may see less, by the members that recorded a removal. */
    uint32_t floor[NODES_MAX];
    bool must;      /* two held it when one died ... */
    uint32_t epoch; /* ... in this epoch: members that restarted after a reset
                     * may drop more than they need to */
} key_state_t;

/* A removal or a reset of keys [first, end), and which members recorded it. */
typedef struct event {
    unsigned first, end;
    uint32_t floor;
    bool reset;
    bool knows[NODES_MAX];
} event_t;

typedef struct world world_t;

typedef struct sim_node {
    world_t *world;
    unsigned place; /* from 1; also its name: n1, n2... */
    bool up, ghost; /* ghost: killed, its threads are still to end */
    bool busy;      /* some trouble has taken it and will bring it back */
    unsigned users; /* calls under way */
    unsigned clients[CLIENTS];
    ldr_cluster_t *cluster;
    ldr_node_t *node;
    ldr_peer_server_t *server;
    unsigned pump;
    bool stop;
    uint32_t space;
    uint64_t starts;
    simdisk_t *disk; /* NULL: it has none */
    ldr_clock_t clock;
    int64_t wall_s;       /* what its wall clock is ahead */
    uint64_t stopped_ns;  /* for how long it was stopped, in all */
    uint64_t stopped_end; /* ... until then */
} sim_node_t;

struct world {
    sim_net_t *net;
    sim_etcd_t *etcd; /* NULL: members by a static list */
    uint64_t seed;
    unsigned count; /* of nodes, those that have not joined as well */
    unsigned keys;
    bool writer;    /* home=writer; else owner */
    bool pressure;  /* there is less memory than bytes */
    bool forgetful; /* something happened that may cost hits: a wall clock
                     * jumped, so that removals were forgotten */
    unsigned copies;
    sim_node_t nodes[NODES_MAX];
    key_state_t key[KEYS_MAX];
    event_t events[EVENTS_MAX];
    unsigned event_count;
    bool over, quiet;     /* clients end; they wait */
    uint64_t pace_ns;     /* between a client's calls, on average */
    unsigned idle;        /* not 0: 400 ms instead */
    larder_cause_t cause; /* of the last load that was a miss */
    struct {
        unsigned loads, hits, from_peers, saves, partial, resets, removals;
        unsigned crashes, cuts, joins, leaves, stops, stalls;
        unsigned found, hidden; /* after the end: see settle.c */
        uint64_t longest_ns;
    } n;
};

extern bool world_loud; /* says what happens */

/* Ends the process: a promise was broken. */
void world_fail(world_t *w, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));
void tell(world_t *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
uint64_t some(world_t *w, uint64_t bound); /* by chance, below it */

/* ---- world.c ---- */

/* Files that all worlds share. */
bool world_begin_all(void);
void world_end_all(void);
/* A world of so many nodes; none is up. */
void world_open(world_t *w, uint64_t seed, unsigned nodes, bool etcd);
/* No node is up, and no thread runs. */
void world_close(world_t *w);

/* wipe: with an empty disk. */
void node_up(sim_node_t *n, bool wipe);
/* As by kill -9: what others see of it ends at once. Waits until its threads
 * have. power: its disk loses what was not synced. */
void node_crash(sim_node_t *n, bool power);
/* As by SIGTERM: leaves the ring, then ends. */
void node_leave(sim_node_t *n);
/* As by SIGSTOP. */
void node_stop(sim_node_t *n, uint64_t ns);
/* Whether a tier of its own has the key now; whether its disk does. */
bool node_holds(sim_node_t *n, unsigned key);
bool node_keeps(sim_node_t *n, unsigned key);
/* The node's rank for the key in its own view; UINT32_MAX: beyond 2. */
uint32_t node_rank(sim_node_t *n, unsigned key);
/* One that is up, or is not, and that no other trouble has; it is busy then.
 * NULL: there is none. */
sim_node_t *take_node(world_t *w, bool up);

/* ---- calls.c ---- */

larder_key_t key_name(unsigned key);
void *client_main(void *node);
/* One call each; a load of one key gives whether it was a hit. */
void do_save(sim_node_t *n, unsigned key, uint8_t *data);
bool do_load(sim_node_t *n, unsigned key, uint8_t *data);
void do_remove(sim_node_t *n, unsigned key);
void do_reset(sim_node_t *n);
/* Whether it was removed at any time: members do not take it from each other
 * for a minute then. */
bool was_removed(const world_t *w, unsigned key);
/* A node begins again: what it has forgotten of removals and resets. */
void forget_events(sim_node_t *n, bool disk_lost);
/* A node dies: what two hold is to stay, and what no other holds is gone. */
void note_death(sim_node_t *n);

/* ---- trouble.c ---- */

/* So many troubles, one after the other. Two threads may do that at once. */
void troubles(world_t *w, unsigned rounds);

/* ---- settle.c ---- */

/* All is mended: waits for one ramp, then checks 4 to 6. */
void settle(world_t *w);
