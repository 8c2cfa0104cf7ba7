/*
 * A simulated network, and threads that run one at a time on a virtual clock.
 *
 * Everything that happens follows from the seed: which of the threads that
 * could run does, how long bytes travel, and in which pieces they are taken and
 * given. A thread of the simulation runs until it waits: on a stream, by
 * sim_threads(), or in sim_sleep(). When none can run, the clock goes on to the
 * next moment at which one can. A read of the clock costs 50 ns, so that who
 * polls gets on.
 *
 * The network is a row of the transport table. A listener is found by its port.
 * Streams keep the order of their bytes, as TCP does; reordered are only bytes
 * of different streams. What cannot arrive waits: a path that is cut, in one
 * direction or both, holds its bytes until it is mended, and nobody is told.
 * What breaks, breaks both ends.
 *
 * All functions are for threads of the simulation; the one that calls
 * sim_net_new() is the first.
 */
#pragma once

#include "net/transport.h"

#define SIM_MS UINT64_C(1000000)

typedef struct sim_net sim_net_t;

/* How a path behaves; all may change at any time. */
typedef struct sim_path {
    uint64_t delay_min_ns, delay_max_ns; /* of bytes sent, one way */
    size_t window; /* bytes that a reader has not taken: no more is sent */
    bool cut_to_server, cut_to_client;
} sim_path_t;

sim_net_t *sim_net_new(uint64_t seed);
void sim_net_free(sim_net_t *net); /* its other threads have been joined */

const ldr_clock_t *sim_clock(sim_net_t *net);
const ldr_threads_t *sim_threads(sim_net_t *net);
const ldr_transport_ops_t *sim_transport(sim_net_t *net);
ldr_rand_t *sim_rand(sim_net_t *net);
uint64_t sim_now(sim_net_t *net);
void sim_sleep(sim_net_t *net, uint64_t ns);

/* A thread by its number, which sim_start() gives: it does nothing before this
 * time, as if its process were stopped. */
unsigned sim_start(sim_net_t *net, void *(*run)(void *), void *arg);
void sim_join(sim_net_t *net, unsigned thread);
void sim_stop(sim_net_t *net, unsigned thread, uint64_t until_ns);
/* A thread belongs to the place of the one that began it, or to that which it
 * says itself. All threads of a place do nothing before this time. */
void sim_place(sim_net_t *net, unsigned place);
void sim_stop_place(sim_net_t *net, unsigned place, uint64_t until_ns);

/* The row's listen(), at a port: its backlog holds connections that nobody has
 * accepted, also while its threads are stopped. */
ldr_listening_t sim_listen(sim_net_t *net, unsigned port);
/* The end of the process that listens there: its connections break, nobody can
 * connect, and accept() gives -EPIPE. Another can listen there then. */
void sim_kill(sim_net_t *net, unsigned port);

/* The network as one place sees it, 1 to SIM_PLACES - 1: who connects with it
 * is there, and who listens at the port of the same number. */
#define SIM_PLACES 32u
const ldr_transport_ops_t *sim_transport_at(sim_net_t *net, unsigned place);
/* What one place sends to another does not arrive, until it is mended as often
 * as it was cut. */
void sim_cut(sim_net_t *net, unsigned from, unsigned to, bool cut);
/* All connections from and to this place break. */
void sim_break_place(sim_net_t *net, unsigned place);

sim_path_t *sim_path(sim_net_t *net);
/* Who waits looks again: after a change of the path. */
void sim_path_changed(sim_net_t *net);
void sim_break_all(sim_net_t *net);
