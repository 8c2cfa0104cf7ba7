/*
 * The way to a member: its sessions at one address (net/session.h). A lane of
 * the member makes it, without the lock, since certificates are read for it:
 * the first call where there is none, and the next meeting where the member has
 * moved. Where that fails the way that there was stays, the member is not well,
 * and its first lane tries again when it is to be met.
 *
 * A call has the way in use until it ends, so that calls under way to a member
 * that moves end where they are. Who gives a way back last ends it.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "net/pool.h"
#include "tier/peer/peer.h"

struct ldr_peer_way {
    ldr_peer_node_t *node;
    ldr_remote_t *remote; /* its meet_arg is this */
    unsigned users;       /* the node's, and calls; with the lock */
    char address[LDR_MEMBER_ADDRESS];
};

void ldr_peer_link_options(ldr_options_t *o, const char *address)
{
    o->scheme = LDR_SCHEME_TCP;
    snprintf(o->address, sizeof(o->address), "%s", address);
    snprintf(o->tenant, sizeof(o->tenant), "%s", LDR_PEER_TENANT);
    snprintf(o->token_file, sizeof(o->token_file), "%s", o->cluster_secret);
    o->connections = o->peer_lanes;
    o->timeout_ms = o->breaker_ms = o->peer_timeout_ms;
    o->spin_us = 0;
    o->tls = o->cluster_tls;
    memcpy(o->tls_cert, o->cluster_cert, sizeof(o->tls_cert));
    memcpy(o->tls_key, o->cluster_key, sizeof(o->tls_key));
    memcpy(o->tls_ca, o->cluster_ca, sizeof(o->tls_ca));
    memcpy(o->tls_name, o->cluster_cert_name, sizeof(o->tls_name));
}

/* What is said on a new session, in its connecting thread. */
static larder_status_t meet(void *way, ldr_link_t *link, const ldr_stop_t *stop)
{
    return ldr_peer_meet(((ldr_peer_way_t *)way)->node, link, stop);
}

static larder_status_t remote_open(ldr_peer_way_t *w, uint64_t seed)
{
    ldr_peers_t *p = w->node->tier;
    ldr_host_t *host = p->host;
    ldr_options_t *o = ldr_alloc(sizeof(*o));
    ldr_net_env_t env = {
        .log = host->log,
        .clock = host->clock,
        .threads = p->threads,
        .transport = host->transport,
        .seed = seed,
        .meet = meet,
        .meet_arg = w,
    };

    if (o == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a member");
    }
    *o = host->options;
    ldr_peer_link_options(o, w->address);
    larder_status_t st =
        ldr_remote_create(o, &ldr_links_pool, &env, &w->remote);
    ldr_free(o);
    return st;
}

/* Without the lock: ending a way waits for its connecting thread, which may
 * want the lock. NULL is fine. */
static void give(ldr_peer_way_t *w)
{
    bool last = false;

    if (w != NULL) {
        ldr_host_t *host = w->node->tier->host;

        ldr_host_lock(host);
        last = --w->users == 0;
        ldr_host_unlock(host);
    }
    if (last) {
        ldr_remote_destroy(w->remote);
        ldr_free(w);
    }
}

/* The way of now, in use; NULL: there is none. Without the lock. */
static ldr_peer_way_t *take(ldr_peer_node_t *n)
{
    ldr_host_lock(n->tier->host);
    ldr_peer_way_t *w = n->way;
    if (w != NULL) {
        w->users++;
    }
    ldr_host_unlock(n->tier->host);
    return w;
}

/* A new way to this address. */
static larder_status_t make(ldr_peer_node_t *n, const char *address,
                            uint64_t seed, ldr_peer_way_t **way_p)
{
    ldr_peer_way_t *w = ldr_alloc(sizeof(*w));

    if (w == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a member");
    }
    w->node = n;
    w->users = 1;
    snprintf(w->address, sizeof(w->address), "%s", address);
    larder_status_t st = remote_open(w, seed);
    if (st != LARDER_OK) {
        ldr_free(w);
        w = NULL;
    }
    *way_p = w;
    return st;
}

static bool leads_to(const ldr_peer_way_t *w, const char *address)
{
    return w != NULL && strcmp(w->address, address) == 0;
}

larder_status_t ldr_peer_way_open(ldr_peer_node_t *n)
{
    ldr_host_t *host = n->tier->host;
    ldr_peer_way_t *w = NULL, *other = NULL;
    char address[LDR_MEMBER_ADDRESS];

    ldr_host_lock(host);
    memcpy(address, n->address, sizeof(address));
    bool there = leads_to(n->way, address);
    uint64_t seed = there ? 0 : ldr_rand_next(&host->rand);
    ldr_host_unlock(host);
    larder_status_t st = there ? LARDER_OK : make(n, address, seed, &w);
    ldr_host_lock(host);
    n->lost = st != LARDER_OK;
    /* Another lane may have been faster, or the member may have moved again: an
     * old way is better than none, and not than one to where it is now. */
    if (w != NULL) {
        bool wanted = n->way == NULL || (leads_to(w, n->address) &&
                                         !leads_to(n->way, n->address));

        other = wanted ? n->way : w;
        n->way = wanted ? w : n->way;
    }
    ldr_host_unlock(host);
    give(other);
    return st;
}

void ldr_peer_way_end(ldr_peer_node_t *n)
{
    ldr_host_lock(n->tier->host);
    ldr_peer_way_t *w = n->way;
    n->way = NULL;
    ldr_host_unlock(n->tier->host);
    give(w);
}

bool ldr_peer_well(const ldr_peer_node_t *n)
{
    return n->in_view && !n->lost && n->address[0] != '\0' &&
           (n->way == NULL || ldr_breaker_shut(n->way->remote));
}

larder_status_t ldr_peers_renew(ldr_peers_t *p)
{
    larder_status_t st = LARDER_OK;

    ldr_host_lock(p->host);
    unsigned count = p->node_count;
    ldr_host_unlock(p->host);
    for (unsigned i = 0; i < count && st == LARDER_OK; i++) {
        ldr_peer_way_t *w = take(p->nodes[i]);

        st = w != NULL ? ldr_pool_renew(w->remote) : LARDER_OK;
        give(w);
    }
    return st;
}

/* ---- calls ---- */

larder_status_t ldr_peer_talk_begin(ldr_peer_node_t *n, ldr_talk_t *v,
                                    const ldr_peer_space_t *space,
                                    const ldr_stop_t *stop)
{
    ldr_peer_way_t *w = take(n);
    larder_status_t st = LARDER_OK;

    if (w == NULL) {
        st = ldr_peer_way_open(n);
        w = take(n);
    }
    if (w == NULL && st == LARDER_OK) { /* it was put to rest meanwhile */
        st = ldr_fail(LARDER_E_OFFLINE, "%s: the member is gone", n->name);
    }
    if (w != NULL) {
        st = ldr_talk_begin(v, w->remote, space != NULL ? &space->ref : NULL,
                            stop);
    }
    if (st != LARDER_OK) {
        give(w);
    }
    return st;
}

void ldr_peer_talk_end(ldr_talk_t *v, larder_status_t st)
{
    ldr_peer_way_t *w = v->remote->meet_arg;

    ldr_talk_end(v, st);
    give(w);
}
