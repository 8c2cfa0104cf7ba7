/*
 * A daemon of the simulation: speaks the protocol over simulated streams, in
 * threads of the simulation, and keeps what it is given. What it has no answer
 * for it refuses. One connection is one thread, which takes one request after
 * the other.
 */
#pragma once

#include "sim/simnet.h"

#define SIM_PEER_CONNS 256u
#define SIM_PEER_SHARDS 256u
#define SIM_PEER_VALUE ((size_t)1 << 20)

typedef struct sim_peer sim_peer_t;

/* Listens at the port. */
sim_peer_t *sim_peer_new(sim_net_t *net, unsigned port);
/* Its process ends: connections break. What it has stays, and counts go on. */
void sim_peer_kill(sim_peer_t *peer);
/* And begins again. */
void sim_peer_restart(sim_peer_t *peer);
/* It does nothing until then, as after SIGSTOP. Bytes reach it meanwhile, and
 * connections its backlog. */
void sim_peer_stop(sim_peer_t *peer, uint64_t until_ns);
/* How long each request takes it, at least and at most. */
void sim_peer_pace(sim_peer_t *peer, uint64_t min_ns, uint64_t max_ns);
void sim_peer_free(sim_peer_t *peer);

/* Connections that said hello; requests that were answered; leases held. */
typedef struct sim_peer_counts {
    unsigned hellos, requests, leases, pings;
} sim_peer_counts_t;
sim_peer_counts_t sim_peer_counts(const sim_peer_t *peer);
