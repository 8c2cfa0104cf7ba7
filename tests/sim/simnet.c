#include "sim/simnet_int.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"

#define PIECE 4096u /* a kernel takes no less than that if it has room */

/* ---- streams ---- */

static wire_t *wire_of(const ldr_stream_t *s)
{
    return ((wire_end_t *)s->state)->wire;
}

static bool is_server(const ldr_stream_t *s)
{
    return ((wire_end_t *)s->state)->server;
}

static pipe_one_t *pipe_in(const ldr_stream_t *s)
{
    wire_t *w = wire_of(s);

    return is_server(s) ? &w->to_server : &w->to_client;
}

static pipe_one_t *pipe_out(const ldr_stream_t *s)
{
    wire_t *w = wire_of(s);

    return is_server(s) ? &w->to_client : &w->to_server;
}

static bool places_cut(const sim_net_t *net, unsigned from, unsigned to)
{
    return from > 0 && from < SIM_PLACES && to < SIM_PLACES &&
           net->cuts[from][to] > 0;
}

static bool is_cut(const wire_t *w, bool to_server)
{
    const sim_net_t *net = w->net;

    return to_server
               ? net->path.cut_to_server || places_cut(net, w->from, w->port)
               : net->path.cut_to_client ||
                     (w->from > 0 && places_cut(net, w->port, w->from));
}

static bool peer_closed(const ldr_stream_t *s)
{
    const wire_t *w = wire_of(s);

    return is_server(s) ? w->client_closed : w->server_closed;
}

/* When the next bytes can be read; UINT64_MAX: unknown. */
static uint64_t readable_ns(const ldr_stream_t *s)
{
    const wire_t *w = wire_of(s);
    const pipe_one_t *in = pipe_in(s);

    if (w->broken) {
        return 0;
    }
    if (is_cut(w, is_server(s))) {
        return UINT64_MAX;
    }
    return in->head != NULL ? in->head->at_ns : peer_closed(s) ? 0 : UINT64_MAX;
}

static bool writable(const ldr_stream_t *s)
{
    const wire_t *w = wire_of(s);

    return w->broken || peer_closed(s) ||
           pipe_out(s)->bytes < w->net->path.window;
}

static ssize_t sim_read(ldr_stream_t *s, const struct iovec *iov,
                        unsigned count)
{
    wire_t *w = wire_of(s);
    sim_net_t *net = w->net;
    pipe_one_t *in = pipe_in(s);
    ssize_t got = 0;

    s->wants_write = false;
    pthread_mutex_lock(&net->lock);
    if (w->broken) {
        got = -ECONNRESET;
    } else if (readable_ns(s) > net->now_ns) {
        got = -EAGAIN;
    } else if (in->head == NULL) {
        got = -EPIPE;
    }
    for (unsigned i = 0; i < count && got >= 0; i++) {
        size_t room = iov[i].iov_len, at = 0;

        while (room > 0 && in->head != NULL && in->head->at_ns <= net->now_ns) {
            flight_t *f = in->head;
            size_t n = ldr_min64(room, f->bytes - f->used);

            memcpy((uint8_t *)iov[i].iov_base + at, f->data + f->used, n);
            f->used += n;
            at += n;
            room -= n;
            in->bytes -= n;
            got += (ssize_t)n;
            if (f->used == f->bytes) {
                in->head = f->next;
                in->end = in->head == NULL ? &in->head : in->end;
                free(f);
                if (ldr_rand_below(&net->rand, 4) == 0) {
                    room = 0; /* the rest comes with the next read */
                    count = 0;
                }
            }
        }
    }
    if (got > 0) {
        sim_wake(net, w);
    }
    pthread_mutex_unlock(&net->lock);
    return got;
}

static void send_piece(sim_net_t *net, pipe_one_t *out, const uint8_t *data,
                       size_t bytes)
{
    flight_t *f = malloc(sizeof(*f) + bytes);
    uint64_t spread = net->path.delay_max_ns - net->path.delay_min_ns;

    if (f == NULL) {
        abort();
    }
    f->at_ns = net->now_ns + net->path.delay_min_ns +
               (spread > 0 ? ldr_rand_below(&net->rand, spread) : 0);
    f->at_ns = out->last_ns = ldr_max64(f->at_ns, out->last_ns);
    f->next = NULL;
    f->used = 0;
    f->bytes = bytes;
    memcpy(f->data, data, bytes);
    *out->end = f;
    out->end = &f->next;
    out->bytes += bytes;
}

static ssize_t sim_write(ldr_stream_t *s, const struct iovec *iov,
                         unsigned count)
{
    wire_t *w = wire_of(s);
    sim_net_t *net = w->net;
    pipe_one_t *out = pipe_out(s);
    ssize_t sent = 0;

    s->wants_write = true;
    pthread_mutex_lock(&net->lock);
    if (w->broken) {
        sent = -ECONNRESET;
    } else if (peer_closed(s) && !is_cut(wire_of(s), !is_server(s))) {
        sent = -EPIPE;
    } else if (!writable(s)) {
        sent = -EAGAIN;
    }
    for (unsigned i = 0; i < count && sent >= 0; i++) {
        size_t n = ldr_min64(iov[i].iov_len, net->path.window - out->bytes);

        if (n > PIECE && ldr_rand_below(&net->rand, 8) == 0) {
            n = 1 + ldr_rand_below(&net->rand, n); /* a part of it */
        }
        if (n > 0) {
            send_piece(net, out, iov[i].iov_base, n);
            sent += (ssize_t)n;
        }
        if (n < iov[i].iov_len) {
            break;
        }
    }
    if (sent > 0) {
        sim_wake(net, w);
    }
    pthread_mutex_unlock(&net->lock);
    return sent;
}

static int sim_poll(ldr_stream_t *s, short events, uint64_t until_ns)
{
    wire_t *w = wire_of(s);
    sim_net_t *net = w->net;
    int ready = 0;

    pthread_mutex_lock(&net->lock);
    for (;;) {
        uint64_t next_ns = readable_ns(s);

        ready |= next_ns <= net->now_ns ? POLLIN : 0;
        ready |= writable(s) ? POLLOUT : 0;
        ready &= events;
        if (ready != 0 || until_ns <= net->now_ns) {
            break;
        }
        next_ns = (events & POLLIN) != 0 ? next_ns : UINT64_MAX;
        sim_block(net, w, ldr_min64(until_ns, next_ns));
    }
    pthread_mutex_unlock(&net->lock);
    return ready;
}

static void sim_close(ldr_stream_t *s)
{
    wire_t *w = wire_of(s);

    if (s->fd < 0) {
        return;
    }
    pthread_mutex_lock(&w->net->lock);
    if (is_server(s)) {
        w->server_closed = true;
    } else {
        w->client_closed = true;
    }
    s->fd = -1;
    sim_wake(w->net, w);
    pthread_mutex_unlock(&w->net->lock);
}

static sim_listener_t *find_listener(sim_net_t *net, unsigned port)
{
    sim_listener_t *l = net->listeners;

    while (l != NULL && (l->port != port || l->closed)) {
        l = l->next;
    }
    return l;
}

static wire_t *wire_new(sim_net_t *net, unsigned port)
{
    wire_t *w = calloc(1, sizeof(*w));

    if (w == NULL || net->wire_count == STREAMS_MAX) {
        fprintf(stderr, "simulation: too many connections\n");
        abort();
    }
    w->net = net;
    w->port = port;
    w->client = (wire_end_t){w, false};
    w->server = (wire_end_t){w, true};
    w->to_server.end = &w->to_server.head;
    w->to_client.end = &w->to_client.head;
    net->wires[net->wire_count++] = w;
    return w;
}

/* A connection takes a round trip; a path that is cut takes for ever. */
static int sim_connect(const ldr_transport_ops_t *ops, const ldr_dest_t *to,
                       ldr_stop_t *stop, ldr_stream_t *s)
{
    sim_net_t *net = ops->arg;
    unsigned from = ops >= net->places && ops < net->places + SIM_PLACES
                        ? (unsigned)(ops - net->places)
                        : 0;
    unsigned port = (unsigned)strtoul(to->address->port, NULL, 10);
    int error = 0;

    pthread_mutex_lock(&net->lock);
    uint64_t there_ns = net->now_ns + 2 * net->path.delay_min_ns;
    while (error == 0 &&
           (net->now_ns < there_ns || net->path.cut_to_server ||
            net->path.cut_to_client || places_cut(net, from, port) ||
            (from > 0 && places_cut(net, port, from)))) {
        uint64_t look_ns = net->now_ns + 10 * SIM_MS;

        if (stop->canceled != NULL &&
            __atomic_load_n(stop->canceled, __ATOMIC_RELAXED)) {
            error = -ECANCELED;
        } else if (net->now_ns >= stop->deadline_ns) {
            error = -ETIMEDOUT;
        } else {
            look_ns = ldr_min64(look_ns, stop->deadline_ns);
            sim_block(net, &net->path,
                      net->now_ns < there_ns ? ldr_min64(look_ns, there_ns)
                                             : look_ns);
        }
    }
    sim_listener_t *l = find_listener(net, port);
    if (error == 0 && (l == NULL || l->count == BACKLOG)) {
        error = -ECONNREFUSED;
    }
    if (error == 0) {
        wire_t *w = wire_new(net, port);

        w->from = from;
        l->backlog[l->count++] = w;
        sim_wake(net, l);
        *s = (ldr_stream_t){
            .ops = ops, .fd = (int)net->wire_count, .state = &w->client};
    }
    pthread_mutex_unlock(&net->lock);
    if (error != 0) {
        ldr_fail(LARDER_E_OFFLINE, "port %u: cannot connect: %s", port,
                 strerror(-error));
    }
    return error;
}

/* ---- listeners ---- */

static int listen_at(const ldr_transport_ops_t *ops, const ldr_dest_t *at,
                     ldr_listening_t *out)
{
    sim_net_t *net = ops->arg;
    sim_listener_t *l = calloc(1, sizeof(*l));

    if (l == NULL) {
        abort();
    }
    pthread_mutex_lock(&net->lock);
    l->net = net;
    l->port = (unsigned)strtoul(at->address->port, NULL, 10);
    bool taken = find_listener(net, l->port) != NULL;
    if (!taken) {
        l->next = net->listeners;
        net->listeners = l;
    }
    pthread_mutex_unlock(&net->lock);
    if (taken) {
        free(l);
        return -EADDRINUSE;
    }
    *out = (ldr_listening_t){.ops = ops, .state = l};
    return 0;
}

ldr_listening_t sim_listen(sim_net_t *net, unsigned port)
{
    ldr_listening_t l;
    ldr_address_t address = {.host = "sim"};
    ldr_dest_t at = {.address = &address};

    snprintf(address.port, sizeof(address.port), "%u", port);
    if (net->transport.listen(&net->transport, &at, &l) != 0) {
        fprintf(stderr, "simulation: port %u is taken\n", port);
        abort();
    }
    return l;
}

static int accept_one(ldr_listening_t *from, uint64_t until_ns, ldr_stream_t *s)
{
    sim_listener_t *l = from->state;
    sim_net_t *net = l->net;

    pthread_mutex_lock(&net->lock);
    while (l->count == 0 && !l->closed && net->now_ns < until_ns) {
        sim_block(net, l, until_ns);
    }
    int error = l->closed ? -EPIPE : l->count == 0 ? -EAGAIN : 0;
    if (error == 0) {
        wire_t *w = l->backlog[0];

        memmove(l->backlog, l->backlog + 1, --l->count * sizeof(w));
        *s = (ldr_stream_t){.ops = &net->transport,
                            .fd = (int)net->wire_count,
                            .state = &w->server};
    }
    pthread_mutex_unlock(&net->lock);
    return error;
}

static void break_wires(sim_net_t *net, unsigned port)
{
    for (unsigned i = 0; i < net->wire_count; i++) {
        if (!net->wires[i]->broken &&
            (port == 0 || net->wires[i]->port == port)) {
            net->wires[i]->broken = true;
            sim_wake(net, net->wires[i]);
        }
    }
}

static void unlisten(ldr_listening_t *from)
{
    sim_listener_t *l = from->state;

    pthread_mutex_lock(&l->net->lock);
    l->closed = true;
    l->count = 0;
    sim_wake(l->net, l);
    pthread_mutex_unlock(&l->net->lock);
}

void sim_break_place(sim_net_t *net, unsigned place)
{
    pthread_mutex_lock(&net->lock);
    for (unsigned i = 0; i < net->wire_count; i++) {
        wire_t *w = net->wires[i];

        if (!w->broken && (w->port == place || w->from == place)) {
            w->broken = true;
            sim_wake(net, w);
        }
    }
    pthread_mutex_unlock(&net->lock);
}

void sim_kill(sim_net_t *net, unsigned port)
{
    pthread_mutex_lock(&net->lock);
    sim_listener_t *l = find_listener(net, port);
    if (l != NULL) {
        l->closed = true;
        l->count = 0;
        sim_wake(net, l);
    }
    break_wires(net, port);
    pthread_mutex_unlock(&net->lock);
}

void sim_break_all(sim_net_t *net)
{
    pthread_mutex_lock(&net->lock);
    break_wires(net, 0);
    pthread_mutex_unlock(&net->lock);
}

const ldr_transport_ops_t *sim_transport_at(sim_net_t *net, unsigned place)
{
    net->places[place] = net->transport;
    return &net->places[place];
}

void sim_cut(sim_net_t *net, unsigned from, unsigned to, bool cut)
{
    net->cuts[from][to] += cut ? 1u : -1u;
    sim_path_changed(net);
}

sim_path_t *sim_path(sim_net_t *net)
{
    return &net->path;
}

void sim_path_changed(sim_net_t *net)
{
    pthread_mutex_lock(&net->lock);
    sim_wake(net, &net->path);
    for (unsigned i = 0; i < net->wire_count; i++) {
        if (!net->wires[i]->broken) {
            sim_wake(net, net->wires[i]);
        }
    }
    pthread_mutex_unlock(&net->lock);
}

/* ---- life ---- */

sim_net_t *sim_net_new(uint64_t seed)
{
    sim_net_t *net = calloc(1, sizeof(*net));

    if (net == NULL) {
        abort();
    }
    pthread_mutex_init(&net->lock, NULL);
    net->now_ns = 1000 * SIM_MS;
    ldr_rand_seed(&net->rand, seed);
    sim_threads_open(net);
    net->transport = (ldr_transport_ops_t){
        .name = "sim",
        .connect = sim_connect,
        .listen = listen_at,
        .accept = accept_one,
        .unlisten = unlisten,
        .read = sim_read,
        .write = sim_write,
        .poll = sim_poll,
        .close = sim_close,
        .arg = net,
    };
    net->path = (sim_path_t){.delay_min_ns = 20000,
                             .delay_max_ns = 200000,
                             .window = (size_t)256 << 10};
    return net;
}

static void pipe_free(pipe_one_t *p)
{
    while (p->head != NULL) {
        flight_t *f = p->head;

        p->head = f->next;
        free(f);
    }
}

void sim_net_free(sim_net_t *net)
{
    for (unsigned i = 0; i < net->wire_count; i++) {
        pipe_free(&net->wires[i]->to_server);
        pipe_free(&net->wires[i]->to_client);
        free(net->wires[i]);
    }
    while (net->listeners != NULL) {
        sim_listener_t *l = net->listeners;

        net->listeners = l->next;
        free(l);
    }
    sim_threads_close(net);
    pthread_mutex_destroy(&net->lock);
    free(net);
}

const ldr_clock_t *sim_clock(sim_net_t *net)
{
    return &net->clock;
}

const ldr_threads_t *sim_threads(sim_net_t *net)
{
    return &net->ops;
}

const ldr_transport_ops_t *sim_transport(sim_net_t *net)
{
    return &net->transport;
}

ldr_rand_t *sim_rand(sim_net_t *net)
{
    return &net->rand;
}
