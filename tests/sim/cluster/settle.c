/* What must hold once all is well: see world.h, 4 to 6. */
#include <stdlib.h>

#include "sim/cluster/world.h"
#include "tier/peer/peer.h"

/* A removal is certain 60 s after it was heard of, which is when members have
 * met again: some seconds from now, and with etcd once views have settled,
 * within 26 s. */
#define CALM_NS (90 * SECOND)

static sim_node_t *knower(world_t *w, const event_t *e)
{
    for (unsigned i = 0; i < w->count; i++) {
        if (e->knows[i] && w->nodes[i].up) {
            return &w->nodes[i];
        }
    }
    return NULL;
}

/* Everybody has met everybody by now: what one remembers holds for all. */
static void bind_all(world_t *w)
{
    for (unsigned i = 0; i < w->event_count; i++) {
        event_t *e = &w->events[i];

        if (knower(w, e) == NULL) {
            continue;
        }
        for (unsigned at = 0; at < w->count; at++) {
            for (unsigned k = e->first; k < e->end; k++) {
                uint32_t *floor = &w->key[k].floor[at];

                *floor = *floor < e->floor ? e->floor : *floor;
            }
        }
    }
}

/* A holder that others ask: the members of rank 1 and 2, and those of which
 * these should know. */
static sim_node_t *holder_of(world_t *w, unsigned key, bool *any_p)
{
    sim_node_t *found = NULL;

    *any_p = false;
    for (unsigned i = 0; i < w->count; i++) {
        sim_node_t *n = &w->nodes[i];

        if (n->up && node_holds(n, key)) {
            *any_p = true;
            found = node_rank(n, key) != UINT32_MAX ||
                            (w->writer && node_keeps(n, key))
                        ? n
                        : found;
        }
    }
    return found;
}

static void check_key(world_t *w, unsigned key, uint8_t *data)
{
    bool any, held, same = false;
    sim_node_t *from = holder_of(w, key, &any);

    for (unsigned i = 0; i < w->count; i++) {
        const sim_node_t *n = &w->nodes[i];

        same = same || (n->up && n->node->store.spaces[n->space].epoch ==
                                     w->key[key].epoch);
    }
    if (w->key[key].must && !any && same && !w->pressure && !w->forgetful) {
        world_fail(w, "lost: two held key %u when one died, and now none", key);
    }
    for (unsigned i = 0; i < w->count; i++) {
        sim_node_t *n = &w->nodes[i];

        if (!n->up) {
            continue;
        }
        held = from != NULL;
        if (do_load(n, key, data)) {
            w->n.found += held;
        } else if (held && !w->pressure) {
            world_fail(w, "not found: n%u holds key %u, and n%u misses it: %s",
                       from->place, key, n->place, larder_cause_text(w->cause));
        } else {
            w->n.hidden += any;
        }
    }
}

/* Nobody has asked for anything for a minute: nothing is held for anybody, and
 * nothing is under way. */
static void check_rest(sim_node_t *n)
{
    world_t *w = n->world;
    ldr_peers_t *p = ldr_peers_of(&n->node->host);

    ldr_node_lock(n->node);
    for (unsigned i = 0; i < p->node_count; i++) {
        if (p->nodes[i]->leased > 0) {
            world_fail(w, "n%u still holds %llu bytes for %s", n->place,
                       (unsigned long long)p->nodes[i]->leased,
                       p->nodes[i]->name);
        }
    }
    for (unsigned i = 0; i < p->node_count; i++) {
        if (p->nodes[i]->here_rows > 0 && ldr_peer_well(p->nodes[i])) {
            world_fail(w, "n%u has not told %s of %u chunks", n->place,
                       p->nodes[i]->name, p->nodes[i]->here_rows);
        }
    }
    if (p->flying > 0) {
        world_fail(w, "n%u counts %llu bytes that are under way", n->place,
                   (unsigned long long)p->flying);
    }
    ldr_node_unlock(n->node);
}

void settle(world_t *w)
{
    uint8_t *data = malloc(BYTES_MAX);

    w->quiet = true;
    tell(w, "all is mended");
    sim_sleep(w->net, CALM_NS);
    bind_all(w);
    for (unsigned i = 0; i < w->count; i++) {
        if (w->nodes[i].up) {
            check_rest(&w->nodes[i]);
        }
    }
    for (unsigned key = 0; key < w->keys; key++) {
        check_key(w, key, data);
    }
    free(data);
}
