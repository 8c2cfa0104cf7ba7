/*
 * The pool of connections: taking, giving back, connecting, ends of leases.
 * pool.h has the locks.
 *
 * Invariants
 *  1. A connection that is not busy has no call waiting, is not broken, and is
 *     connected or may be connected by the connecting thread. A busy one is a
 *     caller's, or while `connecting` that thread's.
 *  2. Leases in `ends` are of the connection's current session: a new session
 *     empties the list.
 *  3. The pool's `connecting` is the number of connections that are; connect_ns
 *     is since when there are any. `waiters` are the callers in take_free().
 */
#include "net/pool.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"
#include "base/thread.h"

/* Nothing was heard for so long: a member closes what is silent for 60 s. */
#define LATE_NS 30000000000u

/* ---- a connection's life ---- */

static void conn_close(ldr_conn_t *c)
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
    ldr_mutex_lock(&c->pool->lock);
    c->session++; /* leases of the old one ended with it */
    c->end_count = 0;
    c->doomed = false;
    ldr_mutex_unlock(&c->pool->lock);
    ldr_mutex_lock(&c->link.space_lock);
    ldr_free(c->link.spaces);
    c->link.spaces = NULL;
    c->link.space_capacity = 0;
    ldr_mutex_unlock(&c->link.space_lock);
}

static larder_status_t shake_hands(ldr_conn_t *c, const ldr_stop_t *stop)
{
    for (;;) {
        int error = ldr_stream_handshake(&c->stream);

        if (error == -EAGAIN) {
            error = ldr_stream_wait(c->link.remote, &c->stream, stop);
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
static larder_status_t connect_to(ldr_conn_t *c, const ldr_address_t *address,
                                  ldr_stop_t *stop)
{
    ldr_remote_t *r = c->link.remote;
    const char *name =
        r->options.tls_name[0] != '\0' ? r->options.tls_name : address->host;
    ldr_dest_t to = {address, r->options.congestion, c->pool->tls, name};
    int error = r->transport->connect(r->transport, &to, stop, &c->stream);

    if (error < 0) {
        return error == -ETIMEDOUT   ? LARDER_E_DEADLINE
               : error == -ECANCELED ? LARDER_E_CANCELED
                                     : LARDER_E_OFFLINE;
    }
    larder_status_t st = shake_hands(c, stop);
    if (st == LARDER_OK) {
        st = ldr_hello_say(r, &c->stream, stop, &c->link);
    }
    c->heard_ns = ldr_conn_now(c);
    if (st == LARDER_OK && r->meet != NULL) {
        st = r->meet(r->meet_arg, &c->link, stop);
        if (c->waiting != NULL || c->broken) {
            st = st == LARDER_OK ? LARDER_E_OFFLINE : st;
        }
    }
    if (st != LARDER_OK) {
        conn_close(c);
    }
    return ldr_tally_refused(r, st);
}

/* All addresses, beginning with the one that answered last. Where none lets us
 * in, that one refuses us says more than that another is away. */
static larder_status_t conn_open(ldr_conn_t *c)
{
    ldr_pool_t *pool = c->pool;
    ldr_stop_t bound = ldr_connect_stop(pool->remote);
    unsigned first = __atomic_load_n(&pool->address, __ATOMIC_RELAXED);
    larder_status_t st = LARDER_E_OFFLINE, refused = LARDER_OK;
    char text[300];

    for (unsigned i = 0; i < pool->address_count; i++) {
        unsigned at = (first + i) % pool->address_count;
        ldr_stop_t one = bound;
        uint64_t now_ns = ldr_now_ns(pool->remote->clock);

        if (now_ns < bound.deadline_ns) { /* leave time for the others */
            one.deadline_ns = now_ns + (bound.deadline_ns - now_ns) /
                                           (pool->address_count - i);
        }
        uint64_t share_ns = one.deadline_ns;
        st = connect_to(c, &pool->addresses[at], &one);
        bound.deadline_ns += one.deadline_ns - share_ns;
        if (st == LARDER_OK) {
            __atomic_store_n(&pool->address, at, __ATOMIC_RELAXED);
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
 * shows as something to read where nothing was asked for. Where answers of
 * earlier calls are still to be read that shows nothing: then by the time. */
static bool conn_stale(ldr_conn_t *c)
{
    if (c->late_count > 0 || c->pings > 0 || c->skip > 0 ||
        c->ahead_at != c->ahead_have) {
        return ldr_conn_now(c) - c->heard_ns >= LATE_NS;
    }
    return ldr_stream_poll(&c->stream, POLLIN, 0) != 0;
}

/* ---- the pool ---- */

/* Invariants 1 and 3, of all connections. With pool->lock. */
static bool is_whole(const ldr_pool_t *pool)
{
    unsigned connecting = 0;

    for (unsigned i = 0; i < pool->conn_count; i++) {
        const ldr_conn_t *c = &pool->conns[i];

        connecting += c->connecting;
        if (!c->busy && (c->connecting || c->waiting != NULL || c->broken)) {
            return false;
        }
    }
    return connecting == pool->connecting;
}

/* A connection that is free and connected; *spare_p: one that may be connected.
 * With pool->lock. */
static ldr_conn_t *pick(ldr_pool_t *pool, ldr_conn_t **spare_p)
{
    uint64_t now_ns = ldr_now_ns(pool->remote->clock);

    LDR_HELD(&pool->lock);
    LDR_DEBUG_ASSERT(is_whole(pool));
    *spare_p = NULL;
    for (unsigned i = 0; i < pool->conn_count; i++) {
        ldr_conn_t *c = &pool->conns[i];

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

/* Whether there are connections in use. With pool->lock. */
static bool others(const ldr_pool_t *pool)
{
    for (unsigned i = 0; i < pool->conn_count; i++) {
        if (pool->conns[i].busy && !pool->conns[i].connecting) {
            return true;
        }
    }
    return false;
}

static void pool_wake(ldr_pool_t *pool, bool all)
{
    pool->remote->threads->wake(pool->remote->threads->arg, &pool->freed, all);
}

static void put_back(ldr_conn_t *c)
{
    ldr_mutex_lock(&c->pool->lock);
    LDR_ASSERT(c->busy && !c->connecting);
    LDR_ASSERT(c->waiting == NULL && !c->broken);
    c->busy = false;
    pool_wake(c->pool, false);
    ldr_mutex_unlock(&c->pool->lock);
}

/* Leaves the connection to the connecting thread. With pool->lock. */
static larder_status_t want(ldr_conn_t *c)
{
    ldr_pool_t *pool = c->pool;
    larder_status_t st = ldr_connect_want(pool->remote);

    LDR_HELD(&pool->lock);
    LDR_ASSERT(!c->busy && c->stream.fd < 0);
    if (st == LARDER_OK) {
        c->busy = c->connecting = true;
        if (pool->connecting++ == 0) {
            pool->connect_ns = ldr_now_ns(pool->remote->clock);
        }
    }
    return st;
}

/* The connecting thread is done with it. If that failed, and there are other
 * connections, callers wait for one of those. With pool->lock. */
static void connected(ldr_conn_t *c, larder_status_t st)
{
    ldr_pool_t *pool = c->pool;

    LDR_HELD(&pool->lock);
    LDR_ASSERT(c->busy && c->connecting);
    LDR_ASSERT((st == LARDER_OK) == (c->stream.fd >= 0));
    c->refused_ns = 0;
    if (st != LARDER_OK && others(pool)) {
        c->refused_ns =
            ldr_conn_now(c) + pool->remote->options.breaker_ms * 1000000u;
    } else if (st != LARDER_OK) {
        pool->failures++;
        pool->failed = st == LARDER_E_CANCELED ? LARDER_E_OFFLINE : st;
        snprintf(pool->failed_text, sizeof(pool->failed_text), "%s",
                 ldr_fail_text());
    }
    c->busy = c->connecting = false;
    pool->connecting -= LDR_HOLDS(pool->connecting > 0);
    pool_wake(pool, true);
}

static void pool_connect(ldr_remote_t *r)
{
    ldr_pool_t *pool = r->state;

    for (;;) {
        unsigned i = 0;

        ldr_mutex_lock(&pool->lock);
        while (i < pool->conn_count && !pool->conns[i].connecting) {
            i++;
        }
        ldr_mutex_unlock(&pool->lock);
        if (i == pool->conn_count) {
            return;
        }
        larder_status_t st = conn_open(&pool->conns[i]);
        ldr_mutex_lock(&pool->lock);
        connected(&pool->conns[i], st);
        ldr_mutex_unlock(&pool->lock);
    }
}

/* Waits for a connection and takes it. With pool->lock, which it drops
 * meanwhile. */
static larder_status_t take_free(ldr_pool_t *pool, uint64_t failures,
                                 const ldr_stop_t *stop, ldr_conn_t **conn_p,
                                 bool *sick_p)
{
    larder_status_t st = LARDER_OK;
    ldr_conn_t *c, *spare;

    pool->waiters++;
    while (st == LARDER_OK && (c = pick(pool, &spare)) == NULL) {
        if (pool->failures != failures) {
            st = ldr_fail(pool->failed, "%s", pool->failed_text);
            *sick_p = st == LARDER_E_DEADLINE;
            break;
        }
        if (spare != NULL && pool->connecting < pool->waiters) {
            st = want(spare);
        }
        if (st == LARDER_OK) {
            uint64_t now_ns = ldr_now_ns(pool->remote->clock);

            pool->remote->threads->wait(
                pool->remote->threads->arg, &pool->freed, &pool->lock,
                ldr_min64(stop->deadline_ns, now_ns + LDR_LOOK_NS));
            st = ldr_stopped(pool->remote->clock, stop);
            now_ns = ldr_now_ns(pool->remote->clock);
            *sick_p = st == LARDER_E_DEADLINE && pool->connecting > 0 &&
                      !others(pool) && now_ns - pool->connect_ns >= LDR_SICK_NS;
        }
    }
    LDR_ASSERT(pool->waiters > 0);
    pool->waiters--;
    if (st == LARDER_OK) {
        LDR_ASSERT(!c->busy);
        c->busy = true;
        *conn_p = c;
    }
    return st;
}

static larder_status_t pool_take(ldr_remote_t *r, const ldr_stop_t *stop,
                                 ldr_link_t **link_p, bool *sick_p)
{
    ldr_pool_t *pool = r->state;

    ldr_mutex_lock(&pool->lock);
    uint64_t failures = pool->failures;
    for (;;) {
        ldr_conn_t *c = NULL;
        larder_status_t st = take_free(pool, failures, stop, &c, sick_p);

        ldr_mutex_unlock(&pool->lock);
        if (st == LARDER_E_DEADLINE) {
            return ldr_lost(r, -ETIMEDOUT);
        }
        if (st != LARDER_OK) {
            return st;
        }
        if (!conn_stale(c)) {
            ldr_conn_send_ends(c);
            *link_p = &c->link;
            return LARDER_OK;
        }
        conn_close(c);
        put_back(c);
        ldr_mutex_lock(&pool->lock);
    }
}

static void pool_give(ldr_link_t *link)
{
    ldr_conn_t *c = ldr_conn_of(link);

    ldr_mutex_lock(&c->pool->lock);
    c->broken |= c->doomed;
    ldr_mutex_unlock(&c->pool->lock);
    if (c->waiting != NULL) {
        c->broken = true; /* somebody forgot to forget: not to be trusted */
    }
    if (!c->broken) {
        ldr_conn_send_ends(c);
    }
    if (c->broken) {
        conn_close(c);
    }
    put_back(c);
}

void ldr_conn_release(ldr_conn_t *c, uint64_t session, const uint64_t *leases,
                      uint32_t count)
{
    ldr_pool_t *pool = c->pool;

    ldr_mutex_lock(&pool->lock);
    bool live = c->session == session;
    if (live && c->end_count + count > c->end_capacity) {
        uint32_t capacity = 2 * (c->end_count + count);
        uint64_t *more = ldr_alloc(capacity * sizeof(*more));

        if (more == NULL) {
            live = false;
            c->doomed = true; /* its end releases all it holds */
        } else {
            if (c->end_count > 0) {
                memcpy(more, c->ends, c->end_count * sizeof(*more));
            }
            ldr_free(c->ends);
            c->ends = more;
            c->end_capacity = capacity;
        }
    }
    if (live) {
        memcpy(c->ends + c->end_count, leases, count * sizeof(*leases));
        c->end_count += count;
        LDR_ASSERT(c->end_count <= c->end_capacity);
    }
    bool mine = live && !c->busy;
    if (mine) {
        c->busy = true; /* written by none but its user, who reads it */
    }
    ldr_mutex_unlock(&pool->lock);
    if (mine) { /* nobody uses it just now: they go at once */
        pool_give(&c->link);
    }
}

/* ---- the table's row ---- */

/* A late answer has come on a connection that nobody uses, or it was connected
 * since then. */
static bool pool_heard(ldr_remote_t *r, uint64_t since_ns)
{
    ldr_pool_t *pool = r->state;
    bool heard = false;

    ldr_mutex_lock(&pool->lock);
    for (unsigned i = 0; i < pool->conn_count && !heard; i++) {
        ldr_conn_t *c = &pool->conns[i];

        heard = !c->busy && c->stream.fd >= 0 &&
                (c->heard_ns > since_ns ||
                 (c->late_count + c->pings > 0 &&
                  ldr_stream_poll(&c->stream, POLLIN, 0) > 0));
    }
    ldr_mutex_unlock(&pool->lock);
    return heard;
}

static larder_status_t addresses_parse(ldr_pool_t *pool, const char *list)
{
    while (*list != '\0') {
        size_t length = strcspn(list, ",");

        if (pool->address_count == LDR_CONN_ADDRESSES ||
            !ldr_address_parse(list, length,
                               &pool->addresses[pool->address_count])) {
            return ldr_fail(LARDER_E_INVALID,
                            "address '%.*s': write host:port, at most %u of "
                            "them",
                            (int)length, list, LDR_CONN_ADDRESSES);
        }
        pool->address_count++;
        list += length + (list[length] == ',' ? 1 : 0);
    }
    return pool->address_count > 0
               ? LARDER_OK
               : ldr_fail(LARDER_E_INVALID, "the URL names no host:port");
}

static void pool_destroy(ldr_remote_t *r)
{
    ldr_pool_t *pool = r->state;

    LDR_ASSERT(pool->waiters == 0); /* no caller is left */
    for (unsigned i = 0; pool->conns != NULL && i < pool->conn_count; i++) {
        conn_close(&pool->conns[i]);
        ldr_free(pool->conns[i].ends);
        ldr_link_destroy(&pool->conns[i].link);
    }
    ldr_free(pool->conns);
    ldr_tls_destroy(pool->tls);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->freed);
    ldr_free(pool);
}

static const char *or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

/* *tls_p NULL: the options want none. */
static larder_status_t make_tls(const ldr_options_t *o, ldr_tls_t **tls_p)
{
    ldr_tls_params_t params = {
        .cert = or_null(o->tls_cert),
        .key = or_null(o->tls_key),
        .ca = or_null(o->tls_ca),
    };

    *tls_p = NULL;
    return o->tls == LDR_TLS_ON ? ldr_tls_create(&params, tls_p) : LARDER_OK;
}

larder_status_t ldr_pool_renew(ldr_remote_t *r)
{
    const ldr_pool_t *pool = r->state;
    ldr_tls_t *fresh;
    larder_status_t st = make_tls(&r->options, &fresh);

    if (st == LARDER_OK && fresh != NULL) {
        ldr_tls_renew(pool->tls, fresh);
    }
    return st;
}

static larder_status_t pool_create(ldr_remote_t *r)
{
    const ldr_options_t *o = &r->options;
    ldr_pool_t *pool = ldr_alloc(sizeof(*pool));

    if (pool == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a handle");
    }
    pool->remote = r;
    r->state = pool;
    ldr_mutex_init(&pool->lock);
    ldr_cond_init(&pool->freed);
    larder_status_t st = addresses_parse(pool, o->address);
    if (st == LARDER_OK) {
        st = make_tls(o, &pool->tls);
    }
    if (st == LARDER_OK) {
        pool->conns = ldr_alloc(o->connections * sizeof(*pool->conns));
        if (pool->conns == NULL) {
            st = ldr_fail(LARDER_E_NO_MEMORY,
                          "not enough memory for connections");
        }
    }
    for (unsigned i = 0; st == LARDER_OK && i < o->connections; i++) {
        ldr_conn_t *c = &pool->conns[i];

        c->pool = pool;
        c->stream.fd = -1;
        ldr_link_init(&c->link, r);
        pool->conn_count++;
    }
    if (st != LARDER_OK) {
        pool_destroy(r);
    }
    return st;
}

const ldr_links_t ldr_links_pool = {
    .create = pool_create,
    .destroy = pool_destroy,
    .take = pool_take,
    .give = pool_give,
    .connect = pool_connect,
    .call = ldr_conn_call,
    .heard = pool_heard,
};
