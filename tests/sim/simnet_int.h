/* What the files of the simulated network share. */
#pragma once

#include <ucontext.h>

#include "sim/simnet.h"

#define THREADS_MAX 4096u
#define STREAMS_MAX 16384u
#define BACKLOG 64u
#define TEXT_BYTES 512u

typedef struct thread {
    sim_net_t *net;
    ucontext_t context;
    void *stack;           /* stays with its place in the table */
    uint64_t id;           /* never the same again */
    char text[TEXT_BYTES]; /* the thread's last error, while others run */
    void *(*run)(void *);
    void *arg;
    bool ready, done, joined;
    unsigned place;      /* its process: that of the thread that began it */
    const void *channel; /* what wakes it */
    uint64_t until_ns, stopped_ns;
} thread_t;

/* Bytes on their way, of one direction. */
typedef struct flight {
    struct flight *next;
    uint64_t at_ns; /* when they arrive */
    size_t used, bytes;
    uint8_t data[];
} flight_t;

typedef struct pipe_one {
    flight_t *head, **end;
    size_t bytes;     /* sent and not taken */
    uint64_t last_ns; /* the last of them arrives */
} pipe_one_t;

typedef struct wire wire_t;

typedef struct wire_end {
    wire_t *wire;
    bool server;
} wire_end_t;

struct wire {
    sim_net_t *net;
    wire_end_t client, server;
    unsigned port;
    unsigned from; /* the client's place; 0: not said */
    pipe_one_t to_server, to_client;
    bool broken, client_closed, server_closed;
};

typedef struct sim_listener {
    sim_net_t *net;
    unsigned port;
    bool closed;
    wire_t *backlog[BACKLOG];
    unsigned count;
    struct sim_listener *next;
} sim_listener_t;

struct sim_net {
    pthread_mutex_t lock;
    uint64_t now_ns;
    ldr_rand_t rand;
    thread_t threads[THREADS_MAX];
    unsigned thread_count;
    uint64_t started;
    ldr_clock_t clock;
    ldr_threads_t ops;
    ldr_transport_ops_t transport;
    ldr_transport_ops_t places[SIM_PLACES];
    unsigned cuts[SIM_PLACES][SIM_PLACES]; /* from, to: how often */
    uint64_t stopped_ns[SIM_PLACES];       /* places that do nothing until */
    sim_path_t path;
    sim_listener_t *listeners;
    wire_t *wires[STREAMS_MAX];
    unsigned wire_count;
};

/* ---- threads (simthread.c) ---- */

/* The clock and the threads; the caller is the first of them. */
void sim_threads_open(sim_net_t *net);
void sim_threads_close(sim_net_t *net);
/* Waits for the channel or the time. With the lock. */
void sim_block(sim_net_t *net, const void *channel, uint64_t until_ns);
/* Those that wait for the channel may go on. With the lock. */
void sim_wake(sim_net_t *net, const void *channel);
