/*
 * etcd as its clients see it, on the simulated clock: keys with revisions,
 * leases, transactions, and watches that stream. Several servers that hold the
 * same; each can be stopped (connections stay, nothing answers) or down
 * (nothing can be connected to, streams break). While most are stopped or down
 * there is no quorum and none of them answers.
 *
 * As the real one, it says all expired leases at once after a stall.
 */
#pragma once

#include "cluster/source.h"
#include "sim/simnet.h"

#define SIM_ETCD_SERVERS 3u
#define SIM_ETCD_NODES 32u

typedef struct sim_etcd sim_etcd_t;

sim_etcd_t *sim_etcd_new(sim_net_t *net);
void sim_etcd_free(sim_etcd_t *etcd);
/* What option cluster says, for a cluster of this name. */
const char *sim_etcd_url(void);
/* The way of this node to the servers, named e0:1, e1:1... */
const ldr_http_t *sim_etcd_http(sim_etcd_t *etcd, unsigned node);

void sim_etcd_stop(sim_etcd_t *etcd, unsigned server, bool stopped);
void sim_etcd_down(sim_etcd_t *etcd, unsigned server, bool down);
/* Streams of this server say nothing more, and nobody is told. */
void sim_etcd_mute(sim_etcd_t *etcd, unsigned server, bool mute);
/* Nothing of this node arrives. */
void sim_etcd_cut(sim_etcd_t *etcd, unsigned node, bool cut);
/* All streams end. */
void sim_etcd_end_watches(sim_etcd_t *etcd);
/* History up to now is gone: who asks for some of it is told so. */
void sim_etcd_compact(sim_etcd_t *etcd);
/* Every lease is at its end. */
void sim_etcd_expire(sim_etcd_t *etcd);
/* A key written by hand, without a lease; value NULL: deleted. */
void sim_etcd_put(sim_etcd_t *etcd, const char *key, const char *value);
/* How many keys there are, and how many calls have come. */
unsigned sim_etcd_keys(sim_etcd_t *etcd);
uint64_t sim_etcd_calls(const sim_etcd_t *etcd);
