/* The pool of connections. */
#include "client/tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"

/* ---- a connection's life ---- */

static void conn_close(ldr_tcp_conn_t *c)
{
    if (c->stream.fd >= 0) {
        ldr_stream_close(&c->stream);
    }
    c->stream.fd = -1;
    c->ahead_at = c->ahead_have = 0;
    c->skip = 0;
    c->late_count = 0;
    c->waiting = NULL;
    c->broken = false;
    c->silences = c->pings = 0;
    pthread_mutex_lock(&c->tcp->lock);
    c->session++; /* leases of the old one ended with it */
    c->end_count = 0;
    c->doomed = false;
    pthread_mutex_unlock(&c->tcp->lock);
    pthread_mutex_lock(&c->link.space_lock);
    ldr_free(c->link.spaces);
    c->link.spaces = NULL;
    c->link.space_room = 0;
    pthread_mutex_unlock(&c->link.space_lock);
}

static larder_status_t shake_hands(ldr_tcp_conn_t *c, const ldr_stop_t *stop)
{
    for (;;) {
        int error = ldr_stream_handshake(&c->stream);

        if (error == -EAGAIN) {
            error = ldr_stream_wait(&c->stream, stop);
            if (error == 0) {
                continue;
            }
            return ldr_lost(c->link.remote, error);
        }
        if (error == 0) {
            return LARDER_OK;
        }
        char why[256];

        snprintf(why, sizeof(why), "%s", ldr_fail_text());
        return ldr_fail(error == -EACCES ? LARDER_E_DENIED : LARDER_E_OFFLINE,
                        "%s: %s", c->link.remote->options.address, why);
    }
}

/* One address, by the deadline, which is put off while its name is resolved. */
static larder_status_t connect_to(ldr_tcp_conn_t *c,
                                  const ldr_address_t *address,
                                  ldr_stop_t *stop)
{
    ldr_remote_t *r = c->link.remote;
    const char *name =
        r->options.tls_name[0] != '\0' ? r->options.tls_name : address->host;
    int fd = ldr_connect_tcp_wanted(address, r->options.congestion,
                                    &stop->deadline_ns, stop->canceled);

    if (fd < 0) {
        return fd == -ETIMEDOUT   ? LARDER_E_DEADLINE
               : fd == -ECANCELED ? LARDER_E_CANCELED
                                  : LARDER_E_OFFLINE;
    }
    larder_status_t st =
        ldr_stream_init(&c->stream, fd, c->tcp->tls, false, name);
    if (st == LARDER_OK) {
        st = shake_hands(c, stop);
    }
    if (st == LARDER_OK) {
        st = ldr_greet(r, &c->stream, stop, &c->link);
    }
    c->heard_ns = ldr_now_ns(&ldr_clock_real);
    if (st != LARDER_OK) {
        conn_close(c);
    }
    return ldr_tally_refused(r, st);
}

/* All addresses, beginning with the one that answered last. Where none lets us
 * in, that one refuses us says more than that another is away. */
static larder_status_t conn_open(ldr_tcp_conn_t *c)
{
    ldr_tcp_t *tcp = c->tcp;
    ldr_stop_t bound = ldr_dial_stop(tcp->remote);
    unsigned first = __atomic_load_n(&tcp->address, __ATOMIC_RELAXED);
    larder_status_t st = LARDER_E_OFFLINE, refused = LARDER_OK;
    char text[300];

    for (unsigned i = 0; i < tcp->address_count; i++) {
        unsigned at = (first + i) % tcp->address_count;
        ldr_stop_t one = bound;
        uint64_t now_ns = ldr_now_ns(&ldr_clock_real);

        if (now_ns < bound.deadline_ns) { /* leave time for the others */
            one.deadline_ns = now_ns + (bound.deadline_ns - now_ns) /
                                           (tcp->address_count - i);
        }
        uint64_t share_ns = one.deadline_ns;
        st = connect_to(c, &tcp->addresses[at], &one);
        bound.deadline_ns += one.deadline_ns - share_ns;
        if (st == LARDER_OK) {
            __atomic_store_n(&tcp->address, at, __ATOMIC_RELAXED);
            return st;
        }
        if (st == LARDER_E_CANCELED) {
            return st;
        }
        if (st == LARDER_E_DENIED || st == LARDER_E_VERSION) {
            refused = st;
            snprintf(text, sizeof(text), "%s", ldr_fail_text());
        }
    }
    return refused != LARDER_OK && refused != st ? ldr_fail(refused, "%s", text)
                                                 : st;
}

/* A connection that was not in use: whether the other side has left it, which
 * shows as something to read where nothing was asked for. */
static bool conn_stale(ldr_tcp_conn_t *c)
{
    return c->late_count == 0 && c->pings == 0 && c->skip == 0 &&
           c->ahead_at == c->ahead_have &&
           ldr_poll(c->stream.fd, POLLIN, 0) != 0;
}

/* ---- the pool ---- */

/* A connection that is free and connected; *spare_p: one that may be connected.
 * With tcp->lock. */
static ldr_tcp_conn_t *pick(ldr_tcp_t *tcp, ldr_tcp_conn_t **spare_p)
{
    uint64_t now_ns = ldr_now_ns(&ldr_clock_real);

    *spare_p = NULL;
    for (unsigned i = 0; i < tcp->conn_count; i++) {
        ldr_tcp_conn_t *c = &tcp->conns[i];

        if (c->busy) {
            continue;
        }
        if (c->stream.fd >= 0) {
            return c;
        }
        if (*spare_p == NULL && now_ns >= c->refused_ns) {
            *spare_p = c;
        }
    }
    return NULL;
}

/* Whether there are connections in use. With tcp->lock. */
static bool others(const ldr_tcp_t *tcp)
{
    for (unsigned i = 0; i < tcp->conn_count; i++) {
        if (tcp->conns[i].busy && !tcp->conns[i].dialing) {
            return true;
        }
    }
    return false;
}

static void put_back(ldr_tcp_conn_t *c)
{
    pthread_mutex_lock(&c->tcp->lock);
    c->busy = false;
    pthread_cond_signal(&c->tcp->freed);
    pthread_mutex_unlock(&c->tcp->lock);
}

/* Leaves the connection to the connecting thread. With tcp->lock. */
static larder_status_t dial(ldr_tcp_conn_t *c)
{
    ldr_tcp_t *tcp = c->tcp;
    larder_status_t st = ldr_dial_want(tcp->remote);

    if (st == LARDER_OK) {
        c->busy = c->dialing = true;
        if (tcp->dialing++ == 0) {
            tcp->dial_ns = ldr_now_ns(&ldr_clock_real);
        }
    }
    return st;
}

/* What came of it. One more connection that is not to be had, where there are
 * others: it is those that are waited for. With tcp->lock. */
static void dialed(ldr_tcp_conn_t *c, larder_status_t st)
{
    ldr_tcp_t *tcp = c->tcp;

    c->refused_ns = 0;
    if (st != LARDER_OK && others(tcp)) {
        c->refused_ns = ldr_now_ns(&ldr_clock_real) +
                        tcp->remote->options.breaker_ms * 1000000u;
    } else if (st != LARDER_OK) {
        tcp->failures++;
        tcp->failed = st == LARDER_E_CANCELED ? LARDER_E_OFFLINE : st;
        snprintf(tcp->failed_text, sizeof(tcp->failed_text), "%s",
                 ldr_fail_text());
    }
    c->busy = c->dialing = false;
    tcp->dialing--;
    pthread_cond_broadcast(&tcp->freed);
}

static void tcp_dial(ldr_remote_t *r)
{
    ldr_tcp_t *tcp = r->state;

    for (;;) {
        unsigned i = 0;

        pthread_mutex_lock(&tcp->lock);
        while (i < tcp->conn_count && !tcp->conns[i].dialing) {
            i++;
        }
        pthread_mutex_unlock(&tcp->lock);
        if (i == tcp->conn_count) {
            return;
        }
        larder_status_t st = conn_open(&tcp->conns[i]);
        pthread_mutex_lock(&tcp->lock);
        dialed(&tcp->conns[i], st);
        pthread_mutex_unlock(&tcp->lock);
    }
}

/* Waits for a connection and takes it. With tcp->lock, which it drops
 * meanwhile. */
static larder_status_t take_free(ldr_tcp_t *tcp, uint64_t failures,
                                 const ldr_stop_t *stop,
                                 ldr_tcp_conn_t **conn_p, bool *sick_p)
{
    larder_status_t st = LARDER_OK;
    ldr_tcp_conn_t *c, *spare;

    tcp->waiters++;
    while (st == LARDER_OK && (c = pick(tcp, &spare)) == NULL) {
        if (tcp->failures != failures) {
            st = ldr_fail(tcp->failed, "%s", tcp->failed_text);
            *sick_p = st == LARDER_E_DEADLINE;
            break;
        }
        if (spare != NULL && tcp->dialing < tcp->waiters) {
            st = dial(spare);
        }
        if (st == LARDER_OK) {
            uint64_t now_ns = ldr_now_ns(&ldr_clock_real);

            ldr_cond_wait_until(
                &tcp->freed, &tcp->lock,
                ldr_min64(stop->deadline_ns, now_ns + LDR_LOOK_NS));
            st = ldr_stopped(stop);
            now_ns = ldr_now_ns(&ldr_clock_real);
            *sick_p = st == LARDER_E_DEADLINE && tcp->dialing > 0 &&
                      !others(tcp) && now_ns - tcp->dial_ns >= LDR_SICK_NS;
        }
    }
    tcp->waiters--;
    if (st == LARDER_OK) {
        c->busy = true;
        *conn_p = c;
    }
    return st;
}

static larder_status_t tcp_take(ldr_remote_t *r, const ldr_stop_t *stop,
                                ldr_link_t **link_p, bool *sick_p)
{
    ldr_tcp_t *tcp = r->state;

    pthread_mutex_lock(&tcp->lock);
    uint64_t failures = tcp->failures;
    for (;;) {
        ldr_tcp_conn_t *c = NULL;
        larder_status_t st = take_free(tcp, failures, stop, &c, sick_p);

        pthread_mutex_unlock(&tcp->lock);
        if (st == LARDER_E_DEADLINE) {
            return ldr_lost(r, -ETIMEDOUT);
        }
        if (st != LARDER_OK) {
            return st;
        }
        if (!conn_stale(c)) {
            ldr_tcp_send_ends(c);
            *link_p = &c->link;
            return LARDER_OK;
        }
        conn_close(c);
        put_back(c);
        pthread_mutex_lock(&tcp->lock);
    }
}

static void tcp_give(ldr_link_t *link)
{
    ldr_tcp_conn_t *c = ldr_tcp_of(link);

    pthread_mutex_lock(&c->tcp->lock);
    c->broken |= c->doomed;
    pthread_mutex_unlock(&c->tcp->lock);
    if (c->waiting != NULL) {
        c->broken = true; /* somebody forgot to forget: not to be trusted */
    }
    if (!c->broken) {
        ldr_tcp_send_ends(c);
    }
    if (c->broken) {
        conn_close(c);
    }
    put_back(c);
}

void ldr_tcp_release(ldr_tcp_conn_t *c, uint64_t session,
                     const uint64_t *leases, uint32_t count)
{
    ldr_tcp_t *tcp = c->tcp;

    pthread_mutex_lock(&tcp->lock);
    bool live = c->session == session;
    if (live && c->end_count + count > c->end_room) {
        uint32_t room = 2 * (c->end_count + count);
        uint64_t *more = ldr_alloc(room * sizeof(*more));

        if (more == NULL) {
            live = false;
            c->doomed = true; /* its end releases all it holds */
        } else {
            if (c->end_count > 0) {
                memcpy(more, c->ends, c->end_count * sizeof(*more));
            }
            ldr_free(c->ends);
            c->ends = more;
            c->end_room = room;
        }
    }
    if (live) {
        memcpy(c->ends + c->end_count, leases, count * sizeof(*leases));
        c->end_count += count;
    }
    bool mine = live && !c->busy;
    c->busy |= mine;
    pthread_mutex_unlock(&tcp->lock);
    if (mine) { /* nobody uses it just now: they go at once */
        tcp_give(&c->link);
    }
}

/* ---- the carrier ---- */

/* A late answer has come on a connection that nobody uses, or it was connected
 * since then. */
static bool tcp_stirs(ldr_remote_t *r, uint64_t since_ns)
{
    ldr_tcp_t *tcp = r->state;
    bool stirs = false;

    pthread_mutex_lock(&tcp->lock);
    for (unsigned i = 0; i < tcp->conn_count && !stirs; i++) {
        const ldr_tcp_conn_t *c = &tcp->conns[i];

        stirs =
            !c->busy && c->stream.fd >= 0 &&
            (c->heard_ns > since_ns || (c->late_count + c->pings > 0 &&
                                        ldr_poll(c->stream.fd, POLLIN, 0) > 0));
    }
    pthread_mutex_unlock(&tcp->lock);
    return stirs;
}

static larder_status_t addresses_parse(ldr_tcp_t *tcp, const char *list)
{
    while (*list != '\0') {
        size_t length = strcspn(list, ",");

        if (tcp->address_count == LDR_TCP_ADDRESSES ||
            !ldr_address_parse(list, length,
                               &tcp->addresses[tcp->address_count])) {
            return ldr_fail(LARDER_E_INVALID,
                            "address '%.*s': write host:port, at most %u of "
                            "them",
                            (int)length, list, LDR_TCP_ADDRESSES);
        }
        tcp->address_count++;
        list += length + (list[length] == ',' ? 1 : 0);
    }
    return tcp->address_count > 0
               ? LARDER_OK
               : ldr_fail(LARDER_E_INVALID, "the URL names no host:port");
}

static void tcp_destroy(ldr_remote_t *r)
{
    ldr_tcp_t *tcp = r->state;

    for (unsigned i = 0; tcp->conns != NULL && i < tcp->conn_count; i++) {
        conn_close(&tcp->conns[i]);
        ldr_free(tcp->conns[i].ends);
        ldr_link_destroy(&tcp->conns[i].link);
    }
    ldr_free(tcp->conns);
    ldr_tls_destroy(tcp->tls);
    pthread_mutex_destroy(&tcp->lock);
    pthread_cond_destroy(&tcp->freed);
    ldr_free(tcp);
}

static const char *or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

static larder_status_t tcp_create(ldr_remote_t *r)
{
    const ldr_options_t *o = &r->options;
    ldr_tcp_t *tcp = ldr_alloc(sizeof(*tcp));

    if (tcp == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a handle");
    }
    tcp->remote = r;
    r->state = tcp;
    pthread_mutex_init(&tcp->lock, NULL);
    ldr_cond_init(&tcp->freed);
    larder_status_t st = addresses_parse(tcp, o->address);
    if (st == LARDER_OK && o->tls == LDR_TLS_ON) {
        ldr_tls_params_t params = {
            .cert = or_null(o->tls_cert),
            .key = or_null(o->tls_key),
            .ca = or_null(o->tls_ca),
        };

        st = ldr_tls_create(&params, &tcp->tls);
    }
    if (st == LARDER_OK) {
        tcp->conns = ldr_alloc(o->connections * sizeof(*tcp->conns));
        if (tcp->conns == NULL) {
            st = ldr_fail(LARDER_E_NO_MEMORY,
                          "not enough memory for connections");
        }
    }
    for (unsigned i = 0; st == LARDER_OK && i < o->connections; i++) {
        ldr_tcp_conn_t *c = &tcp->conns[i];

        c->tcp = tcp;
        c->stream.fd = -1;
        ldr_link_init(&c->link, r);
        tcp->conn_count++;
    }
    if (st != LARDER_OK) {
        tcp_destroy(r);
    }
    return st;
}

const ldr_carrier_t ldr_carrier_tcp = {
    .create = tcp_create,
    .destroy = tcp_destroy,
    .take = tcp_take,
    .give = tcp_give,
    .dial = tcp_dial,
    .call = ldr_tcp_call,
    .get = ldr_tcp_get,
    .put = ldr_tcp_put,
    .stage = ldr_tcp_stage,
    .segments = ldr_tcp_segments,
    .drop = ldr_tcp_drop,
    .reserve = ldr_tcp_reserve,
    .commit = ldr_tcp_commit,
    .stirs = tcp_stirs,
};
