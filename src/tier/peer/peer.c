/* The peer tier's row: its life, its members, and finding. */
#include "tier/peer/peer.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/grow.h"
#include "base/mem.h"
#include "tier/peer/homes.h"

#define LOOK_NS UINT64_C(1000000000) /* for an entry that becomes free */

/* ---- members ---- */

/* A new entry; NULL: too many, no memory. */
static ldr_peer_node_t *add_node(ldr_peers_t *p)
{
    ldr_peer_node_t *n =
        p->node_count < LDR_PEERS_MAX ? ldr_alloc(sizeof(*n)) : NULL;
    unsigned lanes = 0;

    while (n != NULL && lanes < LDR_PEER_LANES &&
           ldr_cond_init(&n->lanes[lanes].wake)) {
        lanes++;
    }
    if (lanes < LDR_PEER_LANES) {
        while (lanes > 0) {
            pthread_cond_destroy(&n->lanes[--lanes].wake);
        }
        ldr_free(n);
        return NULL;
    }
    n->number = (uint16_t)p->node_count;
    p->nodes[p->node_count++] = n;
    return n;
}

/* The entry of the member that is gone for longest, for another one. NULL: none
 * is gone, or those that are have not come to rest. */
static ldr_peer_node_t *take_over(ldr_peers_t *p)
{
    ldr_peer_node_t *oldest = NULL;

    for (unsigned i = 0; i < p->node_count; i++) {
        ldr_peer_node_t *n = p->nodes[i];

        if (n->way == NULL && ldr_peer_gone(n) && !ldr_lanes_run(n) &&
            (oldest == NULL || n->seen_ns < oldest->seen_ns)) {
            oldest = n;
        }
    }
    if (oldest != NULL) {
        uint16_t number = oldest->number;

        memset(oldest, 0, offsetof(ldr_peer_node_t, lanes));
        oldest->number = number;
        oldest->since_s = (uint32_t)(ldr_peers_now(p) / UINT64_C(1000000000));
    }
    return oldest;
}

ldr_peer_node_t *ldr_peers_node(ldr_peers_t *p, const char *name)
{
    ldr_peer_node_t *n = NULL;

    ldr_host_held(p->host);
    for (unsigned i = 0; i < p->node_count && n == NULL; i++) {
        n = strcmp(p->nodes[i]->name, name) == 0 ? p->nodes[i] : NULL;
    }
    bool known = n != NULL;
    if (!known) {
        n = p->node_count < LDR_PEERS_MAX ? add_node(p) : take_over(p);
    }
    if (n == NULL) {
        return NULL;
    }
    n->seen_ns = ldr_peers_now(p);
    if (!known) {
        n->tier = p;
        n->id = ldr_member_id(name);
        snprintf(n->name, sizeof(n->name), "%s", name);
        n->asks_end = &n->asks;
        n->words_end = &n->words;
        n->saves_end = &n->saves;
        n->fetch_head = n->fetch_tail = LDR_NIL;
        n->here_all = true;
    }
    return n;
}

ldr_peer_node_t *ldr_peers_named(const ldr_peers_t *p, const char *name)
{
    ldr_host_held(p->host);
    for (unsigned i = 0; i < p->node_count; i++) {
        if (p->nodes[i]->in_view && strcmp(p->nodes[i]->name, name) == 0) {
            return p->nodes[i];
        }
    }
    return NULL;
}

/* A member that is at another address now is called there as soon as its first
 * lane has made the way. */
static void move_to(ldr_peer_node_t *n, const char *address)
{
    if (strcmp(n->address, address) != 0) {
        snprintf(n->address, sizeof(n->address), "%s", address);
        n->tried = 0;
    }
}

/* A member of the view has no entry; NULL: all have one. It is said once. */
static void note_missing(ldr_peers_t *p, const char *name)
{
    if (name != NULL && p->look_ns == 0) {
        ldr_host_say(p->host, LARDER_LOG_ERROR,
                     "member %s cannot be called: there is no memory, or %u "
                     "names of members are known and too few of them are gone "
                     "for a minute; it is tried again",
                     name, p->node_count);
    }
    p->look_ns = name != NULL ? ldr_peers_now(p) + LOOK_NS : 0;
}

void ldr_peers_look(ldr_peers_t *p)
{
    ldr_host_held(p->host);
    if (p->view != NULL &&
        p->view->generation == ldr_cluster_generation(p->cluster) &&
        (p->look_ns == 0 || ldr_peers_now(p) < p->look_ns)) {
        return;
    }
    const ldr_view_t *view = ldr_cluster_view(p->cluster);
    uint16_t *by_place = ldr_alloc((view->count + 1) * sizeof(*by_place));
    if (by_place == NULL) { /* the last one stands */
        ldr_view_give(view);
        return;
    }
    for (unsigned i = 0; i < p->node_count; i++) {
        if (p->nodes[i]->in_view) {
            p->nodes[i]->in_view = false;
            p->nodes[i]->seen_ns = ldr_peers_now(p);
        }
    }
    const char *missing = NULL;
    for (uint32_t i = 0; i < view->count; i++) {
        const ldr_member_t *m = &view->members[i];
        ldr_peer_node_t *n =
            i != view->self ? ldr_peers_node(p, m->name) : NULL;

        by_place[i] = n != NULL ? n->number : LDR_PEER_NONE;
        if (n != NULL) {
            n->in_view = true;
            move_to(n, m->address);
        } else if (i != view->self) {
            missing = m->name;
        }
    }
    note_missing(p, missing);
    if (p->view != NULL) {
        ldr_view_give(p->view);
    }
    ldr_free(p->by_place);
    p->view = view;
    p->by_place = by_place;
    ldr_peers_leave_look(p);
    p->threads->wake(p->threads->arg, &p->announce_work, true);
    for (unsigned i = 0; i < p->node_count; i++) {
        ldr_lane_wake(p->nodes[i], false); /* those that are new are met */
    }
}

unsigned ldr_peers_owners(ldr_peers_t *p, const larder_key_t *key, bool copies,
                          unsigned max, ldr_peer_node_t **nodes,
                          uint32_t *mine_p)
{
    uint32_t places[LDR_RANKS_MAX];
    unsigned count = 0;

    ldr_peers_look(p);
    *mine_p = LDR_NOBODY;
    if (p->view == NULL) {
        return 0;
    }
    uint64_t run = ldr_run_hash(key);
    uint32_t n = copies ? ldr_view_copies(p->view, run, max, places)
                        : ldr_view_owners(p->view, run, max, places);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t at = p->by_place[places[i]];

        if (places[i] == p->view->self) {
            *mine_p = i;
        } else if (at != LDR_PEER_NONE) {
            nodes[count++] = p->nodes[at];
        }
    }
    return count;
}

bool ldr_peers_fly(ldr_peers_t *p, uint64_t bytes)
{
    ldr_host_held(p->host);
    if (p->flying > 0 && p->flying + bytes > p->host->options.peer_dram) {
        return false;
    }
    p->flying += bytes;
    return true;
}

void ldr_peers_land(ldr_peers_t *p, uint64_t bytes)
{
    ldr_host_held(p->host);
    LDR_ASSERT(p->flying >= bytes);
    p->flying -= bytes;
    for (unsigned i = 0; i < p->node_count; i++) {
        if (p->nodes[i]->fetch_head != LDR_NIL) { /* it may wait for room */
            ldr_lane_wake(p->nodes[i], true);
        }
    }
}

/* ---- life ---- */

static void peer_destroy(ldr_tier_t *t)
{
    ldr_peers_t *p = (ldr_peers_t *)t;

    for (unsigned i = 0; i < p->node_count; i++) {
        ldr_peer_node_t *n = p->nodes[i];

        ldr_peer_way_end(n);
        ldr_here_end(n);
        for (unsigned k = 0; k < LDR_PEER_LANES; k++) {
            pthread_cond_destroy(&n->lanes[k].wake);
        }
        ldr_free(n);
    }
    for (uint32_t i = 0; p->spaces != NULL && i < LDR_SPACES_MAX; i++) {
        ldr_free(p->spaces[i]);
    }
    if (p->spaces != NULL) {
        ldr_unreserve(p->spaces, LDR_SPACES_MAX * sizeof(*p->spaces));
    }
    if (p->view != NULL) {
        ldr_view_give(p->view);
    }
    ldr_where_close(p->where);
    ldr_peer_leases_close(p->leases);
    ldr_hot_close(p->hot);
    ldr_homes_close(p->homes);
    if (p->announced != NULL) {
        ldr_view_give(p->announced);
    }
    ldr_free(p->copies);
    ldr_free(p->by_place);
    ldr_free(p->nodes);
    ldr_free(p->removals);
    ldr_free(p->removal_ids);
    ldr_free(p->lost);
    if (p->lineage != NULL) {
        ldr_unreserve(p->lineage, LDR_SPACES_MAX * sizeof(*p->lineage));
    }
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->announce_work);
    pthread_cond_destroy(&p->copy_work);
    ldr_free(p);
}

static larder_status_t peer_open(ldr_host_t *host)
{
    ldr_peers_t *p = host->cluster != NULL ? ldr_alloc(sizeof(*p)) : NULL;

    if (host->cluster == NULL) {
        return LARDER_OK;
    }
    if (p == NULL || !ldr_cond_init(&p->work) ||
        !ldr_cond_init(&p->announce_work) || !ldr_cond_init(&p->copy_work)) {
        ldr_free(p);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for peers");
    }
    p->base = (ldr_tier_t){&ldr_tier_peer, host};
    p->cluster = host->cluster;
    p->threads = host->threads != NULL ? host->threads : &ldr_threads_real;
    p->self = ldr_cluster_self(p->cluster);
    p->removal_first = 1;
    p->wanted = 1;
    p->nodes = ldr_alloc(LDR_PEERS_MAX * sizeof(*p->nodes));
    p->where = ldr_where_open(host->clock);
    p->leases = ldr_peer_leases_open();
    p->hot = ldr_hot_open();
    p->homes = ldr_homes_open(host->options.peer_homes);
    p->copies = ldr_alloc(LDR_COPIES_MAX * sizeof(*p->copies));
    p->spaces = ldr_reserve(LDR_SPACES_MAX * sizeof(*p->spaces));
    p->removals = ldr_alloc(LDR_REMOVALS_MAX * sizeof(*p->removals));
    p->removal_ids = ldr_alloc(2 * LDR_REMOVALS_MAX * sizeof(uint64_t));
    p->lost = ldr_alloc(LDR_SPACES_MAX * sizeof(*p->lost));
    p->lineage = ldr_reserve(LDR_SPACES_MAX * sizeof(*p->lineage));
    if (p->nodes == NULL || p->where == NULL || p->leases == NULL ||
        p->hot == NULL || p->homes == NULL || p->copies == NULL ||
        p->spaces == NULL || p->removals == NULL || p->removal_ids == NULL ||
        p->lost == NULL || p->lineage == NULL) {
        peer_destroy(&p->base);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for peers");
    }
    ldr_host_add_tier(host, &p->base);
    return LARDER_OK;
}

static larder_status_t peer_start(ldr_tier_t *t)
{
    ldr_peers_t *p = (ldr_peers_t *)t;

    ldr_host_lock(p->host);
    p->began_empty = p->host->store.index.entry_count == 0 &&
                     p->host->store.disks_absent == 0;
    p->began_ns = ldr_peers_now(p);
    p->began_s = ldr_wall_s(p->host->clock);
    ldr_host_unlock(p->host);
    p->saver_runs = p->threads->start(p->threads->arg, &p->saver,
                                      "larder-peers", ldr_peer_saver, p);
    p->announcer_runs = p->threads->start(
        p->threads->arg, &p->announcer, "larder-homes", ldr_peer_announcer, p);
    if (!p->saver_runs || !p->announcer_runs) {
        return ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
    }
    ldr_host_lock(p->host);
    ldr_peers_look(p);
    ldr_host_unlock(p->host);
    return LARDER_OK;
}

static bool peer_step(ldr_tier_t *t)
{
    (void)t; /* its threads are its own, in a simulation as well */
    return false;
}

static bool peer_end(ldr_tier_t *t, uint64_t deadline_ns)
{
    ldr_peers_t *p = (ldr_peers_t *)t;

    (void)deadline_ns; /* a call ends by itself: peer_timeout_ms */
    ldr_lanes_end(p);
    return true;
}

/* ---- spaces ---- */

static larder_status_t peer_use_space(ldr_tier_t *t, uint32_t space,
                                      const ldr_space_info_t *info)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    ldr_peer_space_t *s = ldr_alloc(sizeof(*s));

    if (s == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a space");
    }
    s->ref = (ldr_space_ref_t){
        .uid = space + 1, .slot = space, .shards = LARDER_SHARDS_MAX};
    memcpy(s->ref.id, info->space_id, sizeof(s->ref.id));
    memcpy(s->ref.check, info->tenant_check, sizeof(s->ref.check));
    memcpy(s->ref.key, info->key, sizeof(s->ref.key));
    memcpy(s->ref.label, info->label, sizeof(s->ref.label));
    snprintf(s->tenant, sizeof(s->tenant), "%s", info->tenant);
    s->ref.tenant = s->tenant;
    ldr_host_lock(p->host);
    if (p->spaces[space] == NULL && info->has_key) {
        p->spaces[space] = s; /* lanes use it without the lock from now on */
        s = NULL;
        p->threads->wake(p->threads->arg, &p->work, true);
        for (unsigned i = 0;
             p->host->store.spaces[space].chunks > 0 && i < p->node_count;
             i++) { /* what a disk had of it was not announced */
            p->nodes[i]->here_all = true;
        }
    }
    ldr_host_unlock(p->host);
    ldr_free(s);
    return LARDER_OK;
}

static void peer_adopt_secret(ldr_tier_t *t, uint32_t space)
{
    (void)t;
    (void)space;
}

/* ---- finding ---- */

static uint32_t peer_find(ldr_tier_t *t, const ldr_sought_t *s,
                          larder_cause_t *cause_p)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    ldr_location_t at;

    if (!ldr_where_find(p->where, s->name->fingerprint, s->number,
                        p->host->store.spaces[s->name->space].epoch, &at)) {
        return 0;
    }
    if (at.length == 0 && at.holder == LDR_PEER_UNKNOWN) {
        *cause_p = LARDER_CAUSE_OFFLINE;
    }
    return at.length;
}

static const char *peer_holder(ldr_tier_t *t, const ldr_sought_t *s)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    ldr_location_t at;

    return ldr_where_find(p->where, s->name->fingerprint, s->number,
                          p->host->store.spaces[s->name->space].epoch, &at) &&
                   at.length > 0
               ? p->nodes[at.holder]->name
               : NULL;
}

static void peer_prefetch(ldr_tier_t *t, const ldr_name_t *first,
                          const larder_key_t *keys, size_t count,
                          uint32_t shards)
{
    const ldr_peers_t *p = (ldr_peers_t *)t;

    for (size_t i = 0; i < count; i++) {
        ldr_name_t name = ldr_store_name(&p->host->store, first->space,
                                         first->group, &keys[i]);

        for (uint32_t k = 0; k < shards; k++) {
            ldr_where_prefetch(p->where, name.fingerprint, k);
        }
    }
}

static void peer_submit(ldr_tier_t *t)
{
    (void)t; /* fetch() has woken a lane */
}

static bool peer_accepts(ldr_tier_t *t, uint32_t space)
{
    const ldr_peers_t *p = (const ldr_peers_t *)t;

    (void)space;
    return p->node_count > 0 &&
           p->host->options.peer_save != LDR_PEER_SAVE_NEVER;
}

const ldr_tier_ops_t ldr_tier_peer = {
    .name = "peer",
    .number = LARDER_TIER_PEER,
    .speed = 7e8,
    .by_space = true,
    .others = true,
    .open = peer_open,
    .start = peer_start,
    .step = peer_step,
    .end = peer_end,
    .destroy = peer_destroy,
    .find = peer_find,
    .prefetch = peer_prefetch,
    .holder = peer_holder,
    .must_ask = ldr_peer_must_ask,
    .ask = ldr_peer_ask,
    .fetch = ldr_peer_fetch,
    .submit = peer_submit,
    .accepts = peer_accepts,
    .queue = ldr_peer_queue,
    .kept_elsewhere = ldr_peer_kept_elsewhere,
    .used = ldr_peer_used,
    .flush = ldr_peer_flush,
    .remove = ldr_peer_remove,
    .remove_wait = ldr_peer_remove_wait,
    .epochs = ldr_peer_epochs,
    .epochs_later = ldr_peer_epochs_later,
    .use_space = peer_use_space,
    .adopt_secret = peer_adopt_secret,
    .metrics = ldr_peer_metrics,
};
