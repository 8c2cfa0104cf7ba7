/*
 * What sessions hold of the node: leases, reservations, mapped extents. In the
 * session's loop only.
 *
 * Invariants
 *  1. Of the hold_capacity places hold_count are taken; the others are FREE,
 * and in the list from hold_free. A place's generation grows when its hold
 * goes, so that a lease that was given back leads nowhere.
 *  2. staged is the number of leases that those of kind STAGE count as.
 *  3. The first map_count of map_capacity maps are extents that the node counts
 * as mapped by this session, each once.
 */
#include <unistd.h>

#include "base/mem.h"
#include "node/handover.h"
#include "node/stage.h"
#include "server/session.h"
#include "server/stage.h"
#include "server/bounce.h"

#define HOLD_CAPACITY_MIN 64u

/* ---- leases and reservations ---- */

static uint64_t staged_by(const ldr_hold_t *hold)
{
    const ldr_stage_t *stage = hold->stage;

    return stage == NULL ? 0 : ldr_staged_leases(stage->chunks, stage->total);
}

static bool grow(ldr_session_t *s)
{
    uint32_t max = (uint32_t)s->server->config->options.session_leases;
    uint32_t capacity =
        s->hold_capacity == 0 ? HOLD_CAPACITY_MIN : s->hold_capacity * 2;

    capacity = capacity < max ? capacity : max;
    if (capacity <= s->hold_capacity) {
        return false;
    }
    ldr_hold_t *holds = ldr_alloc(capacity * sizeof(*holds));
    if (holds == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < s->hold_capacity; i++) {
        holds[i] = s->holds[i];
    }
    for (uint32_t i = s->hold_capacity; i < capacity; i++) {
        holds[i].generation = 1;
        holds[i].next = i + 1 < capacity ? i + 1 : LDR_NIL;
    }
    s->hold_free = s->hold_capacity; /* it was empty, or it would not grow */
    ldr_free(s->holds);
    s->holds = holds;
    s->hold_capacity = capacity;
    return true;
}

static void count_hold(ldr_session_t *s, const ldr_hold_t *hold, int by)
{
    ldr_metrics_level(s->server->metrics,
                      hold->kind == LDR_HOLD_RESERVE ? LDR_LEVEL_RESERVATIONS
                                                     : LDR_LEVEL_LEASES,
                      by);
    if (s->state == LDR_SESSION_QUARANTINE) {
        ldr_metrics_level(s->server->metrics, LDR_LEVEL_QUARANTINED, by);
    }
}

uint64_t ldr_hold_add(ldr_session_t *s, const ldr_hold_t *hold)
{
    if (s->hold_count == s->hold_capacity && !grow(s)) {
        return UINT64_MAX;
    }
    uint32_t at = s->hold_free;
    LDR_ASSERT(at < s->hold_capacity && s->holds[at].kind == LDR_HOLD_FREE);
    LDR_ASSERT(hold->kind != LDR_HOLD_FREE);
    ldr_hold_t *h = &s->holds[at];
    uint32_t generation = h->generation;

    s->hold_free = h->next;
    *h = *hold;
    h->generation = generation;
    s->hold_count++;
    s->staged += staged_by(hold);
    count_hold(s, hold, 1);
    return (uint64_t)generation << 32 | at;
}

ldr_hold_t *ldr_hold_find(ldr_session_t *s, uint64_t lease, unsigned kind)
{
    uint32_t at = (uint32_t)lease;

    if (at >= s->hold_capacity || s->holds[at].kind != kind ||
        s->holds[at].generation != (uint32_t)(lease >> 32)) {
        return NULL;
    }
    return &s->holds[at];
}

void ldr_hold_remove(ldr_session_t *s, ldr_hold_t *hold)
{
    LDR_DEBUG_ASSERT(ldr_loop_is_here(&s->home->loop));
    LDR_ASSERT(hold >= s->holds && hold < s->holds + s->hold_capacity);
    LDR_ASSERT(hold->kind != LDR_HOLD_FREE && s->hold_count > 0);
    count_hold(s, hold, -1);
    hold->kind = LDR_HOLD_FREE;
    hold->generation++;
    hold->next = s->hold_free;
    s->hold_free = (uint32_t)(hold - s->holds);
    s->hold_count--;
}

void ldr_hold_give(ldr_session_t *s, ldr_hold_t *hold)
{
    if (hold->kind == LDR_HOLD_RESERVE) {
        ldr_node_count_save(s->server->node, hold->space, LARDER_E_CANCELED);
    }
    ldr_hold_undo(s, hold);
}

void ldr_hold_undo(ldr_session_t *s, ldr_hold_t *hold)
{
    ldr_node_t *node = s->server->node;

    LDR_ASSERT(hold->kind != LDR_HOLD_FREE);
    if (hold->kind == LDR_HOLD_STAGE) {
        s->staged -= staged_by(hold);
        ldr_stage_unref(s->server, hold->stage);
    } else if (hold->kind == LDR_HOLD_RESERVE) {
        ldr_node_abort(node, hold->shard);
    } else if (hold->strict ==
               NULL) { /* a lease in a bounce buffer has nothing */
        ldr_node_release(node, hold->chunk);
    }
    if (hold->strict != NULL) {
        ldr_bounce_give(s->bounce, hold);
    }
    ldr_hold_remove(s, hold);
}

uint64_t ldr_holds_left(const ldr_session_t *s)
{
    uint64_t most = s->server->config->options.session_leases;
    uint64_t held = s->hold_count + s->staged;

    return most > held ? most - held : 0;
}

void ldr_holds_stay(ldr_session_t *s)
{
    ldr_node_t *node = s->server->node;

    for (uint32_t i = 0; i < s->hold_capacity && s->map_count > 0; i++) {
        const ldr_hold_t *hold = &s->holds[i];

        for (uint32_t k = 0;
             hold->kind == LDR_HOLD_STAGE && k < hold->stage->total; k++) {
            ldr_node_stays(node, hold->stage->ids[k]);
        }
        if (hold->kind != LDR_HOLD_FREE && hold->kind != LDR_HOLD_STAGE &&
            hold->strict == NULL) {
            ldr_node_stays(node, hold->shard);
        }
    }
}

bool ldr_holds_check(const ldr_session_t *s)
{
    uint32_t taken = 0, not_taken = 0;
    uint64_t staged = 0;

    for (uint32_t i = 0; i < s->hold_capacity; i++) {
        taken += s->holds[i].kind != LDR_HOLD_FREE;
        staged +=
            s->holds[i].kind == LDR_HOLD_STAGE ? staged_by(&s->holds[i]) : 0;
    }
    for (uint32_t at = s->hold_count < s->hold_capacity ? s->hold_free
                                                        : LDR_NIL;
         at != LDR_NIL; at = s->holds[at].next) {
        if (at >= s->hold_capacity || s->holds[at].kind != LDR_HOLD_FREE ||
            not_taken++ == s->hold_capacity) {
            return false;
        }
    }
    return taken == s->hold_count && taken + not_taken == s->hold_capacity &&
           staged == s->staged && s->map_count <= s->map_capacity;
}

void ldr_holds_give_all(ldr_session_t *s)
{
    for (uint32_t i = 0; i < s->hold_capacity; i++) {
        if (s->holds[i].kind != LDR_HOLD_FREE) {
            ldr_hold_give(s, &s->holds[i]);
        }
    }
}

/* ---- extents ---- */

static uint32_t map_find(const ldr_session_t *s, uint32_t extent,
                         uint32_t generation)
{
    for (uint32_t i = 0; i < s->map_count; i++) {
        if (s->maps[i].extent == extent &&
            s->maps[i].generation == generation) {
            return i;
        }
    }
    return LDR_NIL;
}

static bool maps_grow(ldr_session_t *s)
{
    if (s->map_count < s->map_capacity) {
        return true;
    }
    uint32_t capacity = s->map_capacity == 0 ? 16 : s->map_capacity * 2;
    void *maps = ldr_alloc(capacity * sizeof(*s->maps));
    if (maps == NULL) {
        return false;
    }
    if (s->map_count > 0) {
        __builtin_memcpy(maps, s->maps, s->map_count * sizeof(*s->maps));
    }
    ldr_free(s->maps);
    s->maps = maps;
    s->map_capacity = capacity;
    return true;
}

larder_status_t ldr_session_map(ldr_session_t *s, const ldr_extent_msg_t *want,
                                ldr_extent_view_t *view)
{
    bool known = map_find(s, want->extent, want->generation) != LDR_NIL;

    if (!maps_grow(s)) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory in the daemon");
    }
    if (!ldr_node_extent_map(s->server->node, s->tenant->number, want->extent,
                             want->generation, view)) {
        return ldr_fail(LARDER_E_STALE, "extent %u is not this session's",
                        want->extent);
    }
    LDR_ASSERT(s->map_count < s->map_capacity);
    if (known) { /* asked for twice: it counts once */
        ldr_node_extent_unmap(s->server->node, want->extent, want->generation);
        return LARDER_OK;
    }
    s->maps[s->map_count].extent = want->extent;
    s->maps[s->map_count].generation = want->generation;
    s->maps[s->map_count++].revoking = false;
    return LARDER_OK;
}

void ldr_session_unmap(ldr_session_t *s, uint32_t extent, uint32_t generation)
{
    uint32_t at = map_find(s, extent, generation);

    if (at != LDR_NIL) {
        s->maps[at] = s->maps[--s->map_count];
        ldr_node_extent_unmap(s->server->node, extent, generation);
    }
}

void ldr_session_unmap_all(ldr_session_t *s)
{
    while (s->map_count > 0) {
        ldr_session_unmap(s, s->maps[0].extent, s->maps[0].generation);
    }
}

void ldr_session_revoke(ldr_session_t *s, uint32_t extent, uint32_t generation)
{
    uint32_t at = map_find(s, extent, generation);
    ldr_extent_msg_t m = {.extent = extent, .generation = generation};
    uint8_t body[LDR_EXTENT_MSG_BYTES];

    if (at != LDR_NIL && !s->maps[at].revoking &&
        s->state == LDR_SESSION_OPEN) {
        s->maps[at].revoking = true;
        ldr_session_notify(s, LDR_OP_REVOKE, body, ldr_put_extent(body, &m));
    }
}

void ldr_session_revoke_all(ldr_session_t *s)
{
    for (uint32_t i = 0; i < s->map_count; i++) {
        ldr_session_revoke(s, s->maps[i].extent, s->maps[i].generation);
    }
}

void ldr_handle_extent(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_extent_msg_t m;
    ldr_extent_view_t view;
    uint8_t body[LDR_EXTENT_MSG_BYTES];

    if (!ldr_get_extent(r->body, r->frame.body, &m)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "extent");
        return;
    }
    if (!s->local) {
        ldr_reply_fail(r, ldr_fail(LARDER_E_UNSUPPORTED,
                                   "extents are handed out by unix socket"));
        return;
    }
    if (s->strict_transport && s->bounce == NULL) {
        ldr_reply_fail(
            r, ldr_fail(LARDER_E_DENIED, "isolation is strict: attach first"));
        return;
    }
    larder_status_t st = LARDER_OK;
    if (s->bounce == NULL && m.generation == LDR_EXTENT_NOW) {
        st = ldr_node_extent_owned(s->server->node, s->tenant->number, m.extent,
                                   &m.generation);
        if (st == LARDER_MISS) {
            st = ldr_fail(LARDER_E_STALE, "extent %u is not this session's",
                          m.extent);
        } else if (st != LARDER_OK) {
            ldr_fail(st, "there is no extent %u", m.extent);
        }
    }
    if (st == LARDER_OK) {
        st = s->bounce != NULL ? ldr_bounce_view(s->bounce, &m, &view)
                               : ldr_session_map(s, &m, &view);
    }
    if (st != LARDER_OK) {
        ldr_reply_fail(r, st);
        return;
    }
    m.bytes = view.bytes;
    m.ready_bytes = view.ready_bytes;
    ldr_reply_fds(r, body, ldr_put_extent(body, &m), &view.fd, 1);
}

void ldr_handle_revoked(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_extent_msg_t m;

    if (!ldr_get_extent(r->body, r->frame.body, &m)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "revoked");
        return;
    }
    if (m.extent == UINT32_MAX) { /* a client that is about to leave */
        ldr_session_unmap_all(s);
        ldr_bounce_unmapped(s->bounce);
    } else {
        ldr_session_unmap(s, m.extent, m.generation);
    }
    ldr_reply(r, LARDER_OK, NULL, 0);
}
