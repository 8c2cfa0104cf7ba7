/*
 * Whole prefixes: matched and staged over all groups, saved and loaded by
 * block tables. Everything goes by the layout's enumeration (layout/layout.h)
 * and through the same calls that anybody else makes, so that it holds for
 * every backend.
 */
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/grow.h"
#include "base/mem.h"
#include "base/thread.h"
#include "client/prefix.h"
#include "client/remote.h"
#include "node/stage.h"

uint32_t ldr_prefix_left_ms(const larder_t *lar, uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX) {
        return LARDER_FOREVER;
    }
    uint64_t now_ns = ldr_now_ns(lar->clock);
    uint64_t left = deadline_ns > now_ns ? (deadline_ns - now_ns) / 1000000 : 0;

    return (uint32_t)ldr_min64(ldr_max64(left, 1), LARDER_FOREVER - 1);
}

larder_status_t ldr_prefix_check(const larder_space_t *space,
                                 const larder_layout_t *layout)
{
    larder_status_t st = ldr_space_check(space);

    if (st != LARDER_OK) {
        return st;
    }
    if (layout == NULL) {
        return ldr_fail(LARDER_E_INVALID, "layout is NULL");
    }
    if (layout->chunk_tokens != space->chunk_tokens) {
        return ldr_fail(LARDER_E_INVALID,
                        "a layout with chunks of %u tokens, a space of %u",
                        layout->chunk_tokens, space->chunk_tokens);
    }
    return !layout->described || layout->slices == space->shards
               ? LARDER_OK
               : ldr_fail(LARDER_E_INVALID,
                          "a layout with %u slices, a space with %u shards: "
                          "open it with larder_layout_slices()",
                          layout->slices, space->shards);
}

/* ---- matching and staging ---- */

static larder_status_t check_keys(const larder_space_t *space,
                                  const larder_layout_t *layout,
                                  const larder_key_t *keys, size_t count,
                                  const larder_match_t *out)
{
    larder_status_t st = ldr_prefix_check(space, layout);

    if (st != LARDER_OK) {
        return st;
    }
    return keys != NULL && count > 0 && count <= UINT32_MAX / LARDER_SHARDS_MAX
               ? ldr_out_check(out)
               : ldr_fail(LARDER_E_INVALID, "keys or count");
}

/* What is asked for; needs: room for the groups'. It counts as asked for unless
 * it is part of what was just now. */
static ldr_prefix_t prefix_of(larder_space_t *space,
                              const larder_layout_t *layout,
                              const larder_key_t *keys, size_t count,
                              bool holds, ldr_need_t *needs)
{
    return (ldr_prefix_t){
        .needs = needs,
        .need_count = ldr_layout_list_needs(layout, needs),
        .keys = keys,
        .count = (uint32_t)count,
        .asks = !ldr_asked_before(space, keys, count, LDR_ASKED_GROUPS, holds),
    };
}

static void note_asked(larder_space_t *space, const ldr_prefix_t *p,
                       uint32_t found, bool holds)
{
    if (p->asks) {
        ldr_asked_note(space, p->keys, p->count, LDR_ASKED_GROUPS, found,
                       holds);
    }
}

larder_status_t larder_prefix_match(larder_space_t *space,
                                    const larder_layout_t *layout,
                                    const larder_key_t *keys, size_t count,
                                    uint32_t timeout_ms, larder_match_t *out)
{
    larder_status_t st = check_keys(space, layout, keys, count, out);
    ldr_need_t needs[LARDER_GROUPS_MAX];
    larder_match_t found;

    if (st != LARDER_OK) {
        return st;
    }
    ldr_prefix_t p = prefix_of(space, layout, keys, count, false, needs);
    st = space->lar->backend->match(
        space, &p, ldr_deadline(space->lar, timeout_ms), &found);
    if (st == LARDER_OK) {
        note_asked(space, &p, found.chunks, false);
        ldr_out_fill(out, &found, sizeof(found));
    }
    return st;
}

/* An older caller's struct ends where its fields do. */
static larder_status_t take_params(const larder_stage_params_t *params,
                                   larder_stage_params_t *out)
{
    larder_status_t st =
        ldr_mask_check(params->field_mask, LARDER_STAGE_PROMISED);

    memcpy(out, params, offsetof(larder_stage_params_t, member));
    if (st != LARDER_OK || (params->field_mask & LARDER_STAGE_MEMBER) == 0) {
        return st;
    }
    out->member = params->member;
    size_t bytes =
        out->member != NULL ? strnlen(out->member, LDR_WORTH_NAME) : 0;
    return bytes > 0 && bytes < LDR_WORTH_NAME
               ? LARDER_OK
               : ldr_fail(LARDER_E_INVALID,
                          "the name of a member has 1 to %u bytes",
                          LDR_WORTH_NAME - 1);
}

larder_status_t larder_prefix_stage(
    larder_space_t *space, const larder_layout_t *layout,
    const larder_key_t *keys, size_t count, const larder_stage_params_t *params,
    uint32_t timeout_ms, larder_lease_t **lease_p, larder_match_t *out)
{
    larder_status_t st = check_keys(space, layout, keys, count, out);
    larder_stage_params_t worth = {0};
    ldr_need_t needs[LARDER_GROUPS_MAX];
    larder_match_t match;

    if (st == LARDER_OK && params != NULL) {
        st = take_params(params, &worth);
    }
    if (st != LARDER_OK) {
        return st;
    }
    if (lease_p == NULL) {
        return ldr_fail(LARDER_E_INVALID, "lease_p is NULL");
    }
    *lease_p = NULL;
    uint64_t deadline_ns = ldr_deadline(space->lar, timeout_ms);
    ldr_announce(space, keys, count, false, 0, deadline_ns);
    ldr_prefix_t p = prefix_of(space, layout, keys, count, true, needs);
    st = ldr_stage(space, &p, &worth, deadline_ns, lease_p, &match);
    if (st >= 0) {
        note_asked(space, &p, match.found, true);
        ldr_out_fill(out, &match, sizeof(match));
    }
    return st;
}

/* ---- moving ---- */

void ldr_move_note(larder_move_t *m, larder_status_t st, larder_cause_t cause,
                   size_t bytes)
{
    if (st == LARDER_OK) {
        m->shards++;
        m->bytes += bytes;
    } else if (st == LARDER_PRESENT) {
        m->present++;
    } else if (st == LARDER_DECLINED) {
        m->skipped++;
        m->item = m->failed > 0 ? m->item : st;
    } else if (m->failed++ == 0) {
        m->item = st;
        m->cause = cause;
    }
}

larder_item_t ldr_move_item(const larder_layout_t *layout,
                            const larder_move_t *m, ldr_shard_at_t at)
{
    const larder_key_t *key = &m->keys[at.chunk - m->first_key];

    return (larder_item_t){
        .key = key,
        .parent = at.chunk > m->first_key ? key - 1 : NULL,
        .depth = at.chunk,
        .group = (uint16_t)at.group,
        .shard = (uint16_t)(m->shard + layout->slice[at.slice].number),
        .flags = m->flags & LARDER_PUT_PIN,
        .ttl_ms = m->ttl_ms,
    };
}

ldr_shard_at_t ldr_move_at(const larder_layout_t *layout,
                           const larder_move_t *m, const larder_item_t *item)
{
    ldr_shard_at_t at = {item->group, item->depth,
                         layout->group[item->group].slice};

    while (m->shard + layout->slice[at.slice].number != item->shard) {
        at.slice++;
    }
    return at;
}

/* The next slice from this one on that is saved, or the end. */
static uint32_t next_whole(const larder_layout_t *layout, uint32_t group,
                           uint32_t slice)
{
    uint32_t end = layout->group[group].slice_end;

    while (slice < end && !layout->slice[slice].whole) {
        slice++;
    }
    return slice;
}

bool ldr_saves_next(ldr_saves_t *s)
{
    const larder_move_t *m = s->move;
    const larder_layout_t *layout = s->layout;
    uint32_t tokens = layout->chunk_tokens, end = m->end / tokens;
    ldr_shard_at_t *at = &s->at;

    for (; at->group < layout->group_count; at->group++, s->begun = false) {
        const ldr_group_t *g = &layout->group[at->group];

        if (!s->begun) {
            at->chunk = m->begin / tokens;
            at->slice = g->slice;
        } else {
            at->slice++;
        }
        s->begun = true;
        for (; at->chunk < end; at->chunk++, at->slice = g->slice) {
            at->slice = next_whole(layout, at->group, at->slice);
            if (at->slice < g->slice_end &&
                (m->writers <= 1 || at->chunk % m->writers == m->writer)) {
                return true;
            }
        }
    }
    return false;
}

static larder_status_t save_all(ldr_batch_t *b)
{
    ldr_saves_t saves = {.layout = b->layout, .move = b->move};
    larder_status_t st = LARDER_OK;

    while (st == LARDER_OK && ldr_saves_next(&saves)) {
        st = ldr_batch_add(b, saves.at, (ldr_span_t){0, UINT32_MAX});
        if (st == LARDER_MISS) {
            b->move->skipped++;
            st = LARDER_OK;
        }
    }
    return st;
}

/* The chunk's shards of which the rank holds something. */
static larder_status_t load_chunk(ldr_batch_t *b, uint32_t group,
                                  uint32_t chunk, ldr_span_t wanted)
{
    const ldr_group_t *g = &b->layout->group[group];
    larder_status_t st = LARDER_OK;

    for (uint32_t i = g->slice; i < g->slice_end && st == LARDER_OK; i++) {
        st = ldr_batch_add(b, (ldr_shard_at_t){group, chunk, i}, wanted);
    }
    return st;
}

static larder_status_t load_group(ldr_batch_t *b, uint32_t group)
{
    const larder_move_t *m = b->move;
    uint32_t chunks = (uint32_t)ldr_div_up(m->end, b->layout->chunk_tokens);
    ldr_span_t needs = ldr_layout_needs(b->layout, group, chunks);
    ldr_span_t wanted = ldr_batch_written(b, group);
    larder_status_t st = LARDER_OK;

    for (uint32_t i = needs.first; i < needs.end && st == LARDER_OK; i++) {
        ldr_span_t blocks = ldr_layout_blocks(b->layout, group, i);

        if (ldr_max64(blocks.first, wanted.first) <
            ldr_min64(blocks.end, wanted.end)) {
            st = load_chunk(b, group, i, wanted);
        }
        if (st == LARDER_OK && m->failed > 0) {
            break; /* the rest is of no use */
        }
    }
    return st;
}

static larder_status_t load_all(ldr_batch_t *b)
{
    larder_status_t st = LARDER_OK;

    for (uint32_t g = 0;
         g < b->layout->group_count && st == LARDER_OK && b->move->failed == 0;
         g++) {
        st = load_group(b, g);
    }
    return st;
}

/* known: its tables are; what they point to is not looked at otherwise. */
static larder_status_t check_move(const larder_layout_t *layout, larder_op_t op,
                                  const larder_move_t *m, bool known)
{
    larder_status_t st = ldr_in_check(m, sizeof(*m));

    if (st != LARDER_OK) {
        return st;
    }
    if (m->keys == NULL || m->tables == NULL || m->begin > m->end ||
        m->begin / layout->chunk_tokens < m->first_key ||
        (m->writers > 0 && m->writer >= m->writers) ||
        (layout->described && m->shard != 0)) {
        return ldr_fail(LARDER_E_INVALID,
                        "keys, tables, begin and end, shard or writer");
    }
    for (uint32_t g = 0; g < layout->group_count; g++) {
        const ldr_group_t *group = &layout->group[g];

        if (group->slice == group->slice_end) {
            return ldr_fail(LARDER_E_INVALID, "group %u has no layers", g);
        }
        if (op == LARDER_OP_GET && (m->begin % group->block_tokens != 0 ||
                                    m->end % group->block_tokens != 0)) {
            return ldr_fail(LARDER_E_INVALID,
                            "tokens %u to %u, group %u has blocks of %u",
                            m->begin, m->end, g, group->block_tokens);
        }
    }
    for (uint32_t i = 0; known && i < layout->table_count; i++) {
        if (m->tables[i].ids == NULL && m->tables[i].count > 0) {
            return ldr_fail(LARDER_E_INVALID, "table %u is NULL", i);
        }
    }
    if (m->end > UINT32_MAX - layout->chunk_tokens) {
        return ldr_fail(LARDER_E_INVALID, "%u tokens: too many", m->end);
    }
    if (op == LARDER_OP_GET && !layout->all &&
        m->end % layout->chunk_tokens != 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "%u tokens are not a multiple of a chunk of %u", m->end,
                        layout->chunk_tokens);
    }
    return LARDER_OK;
}

larder_status_t ldr_move_check(const larder_layout_t *layout, larder_op_t op,
                               const larder_move_t *m)
{
    return check_move(layout, op, m, true);
}

void ldr_move_clear(larder_move_t *m)
{
    m->shards = m->present = m->skipped = m->failed = 0;
    m->bytes = 0;
    m->item = LARDER_OK;
    m->cause = LARDER_CAUSE_NONE;
}

void ldr_move_announce(larder_space_t *space, const larder_move_t *m,
                       uint64_t deadline_ns)
{
    uint32_t chunks = m->end / space->chunk_tokens;

    if (m->first_key == 0 && chunks > 0 &&
        (m->flags & LARDER_PUT_ANNOUNCED) == 0) {
        ldr_announce(space, m->keys, chunks, true, m->flags >> 8, deadline_ns);
    }
}

/* A load whose tables are there when the gate is open. */
typedef struct gated {
    uint32_t *gate;
    uint64_t until_ns;
} gated_t;

/* Whether the move names what is staged; only by shared memory it is asked for
 * so. */
static bool has_token(const larder_space_t *space, const larder_move_t *m)
{
    static const larder_token_t none;

    return space->lar->data_path == &ldr_data_path_shm &&
           memcmp(&m->token, &none, sizeof(none)) != 0;
}

/* gated: see larder_prefix_load_early(); or NULL. */
static larder_status_t move_run(larder_space_t *space,
                                const larder_layout_t *layout, larder_move_t *m,
                                larder_op_t op, bool by_token,
                                const gated_t *gated,
                                larder_status_t (*gather)(ldr_batch_t *))
{
    larder_status_t st = ldr_prefix_check(space, layout);

    st = st == LARDER_OK ? check_move(layout, op, m, gated == NULL) : st;
    if (st != LARDER_OK) {
        return st;
    }
    ldr_move_clear(m);
    ldr_batch_t b = {.space = space,
                     .layout = layout,
                     .move = m,
                     .op = op,
                     .deadline_ns = ldr_deadline(space->lar, m->timeout_ms)};
    if (gated != NULL) {
        b.gate = gated->gate;
        b.gate_ns = gated->until_ns;
    }
    b.token = by_token && has_token(space, m) ? &m->token : NULL;
    if (op == LARDER_OP_PUT) {
        ldr_move_announce(space, m, b.deadline_ns);
    }
    st = ldr_batch_begin(&b);
    if (st == LARDER_OK) {
        st = gather(&b);
    }
    if (st == LARDER_OK) {
        st = ldr_batch_flush(&b);
    }
    ldr_batch_end(&b);
    return st;
}

larder_status_t larder_prefix_save(larder_space_t *space,
                                   const larder_layout_t *layout,
                                   larder_move_t *move)
{
    return move_run(space, layout, move, LARDER_OP_PUT, false, NULL, save_all);
}

/* By its token, if it has one. A lease that is over, or a daemon that is
 * another one by now, makes it a miss: then by its keys. */
static larder_status_t load_run(larder_space_t *space,
                                const larder_layout_t *layout, larder_move_t *m,
                                const gated_t *gated)
{
    larder_status_t st =
        move_run(space, layout, m, LARDER_OP_GET, true, gated, load_all);

    if (st == LARDER_OK && m->failed > 0 && m->item == LARDER_MISS &&
        m->cause == LARDER_CAUSE_ABSENT && has_token(space, m)) {
        st = move_run(space, layout, m, LARDER_OP_GET, false, gated, load_all);
    }
    return st == LARDER_OK && m->failed > 0 ? m->item : st;
}

larder_status_t larder_prefix_load(larder_space_t *space,
                                   const larder_layout_t *layout,
                                   larder_move_t *move)
{
    return load_run(space, layout, move, NULL);
}

/* ---- gates ---- */

enum { GATE_WAITS, GATE_OPEN, GATE_CLOSED };

#define GATE_SPIN_NS 1000000u /* an engine allocates its blocks in less */
#define GATE_NAP_NS 50000

/* What it is from now on. */
static uint32_t gate_set(uint32_t *gate, uint32_t to)
{
    uint32_t was = GATE_WAITS;

    return __atomic_compare_exchange_n(gate, &was, to, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE)
               ? to
               : was;
}

larder_status_t larder_gate_open(uint32_t *gate)
{
    return gate == NULL ? ldr_fail(LARDER_E_INVALID, "gate is NULL")
           : gate_set(gate, GATE_OPEN) == GATE_OPEN ? LARDER_OK
                                                    : LARDER_MISS;
}

void larder_gate_close(uint32_t *gate)
{
    if (gate != NULL) {
        gate_set(gate, GATE_CLOSED);
    }
}

larder_status_t ldr_gate_pass(const ldr_clock_t *clock, uint32_t *gate,
                              uint64_t until_ns)
{
    const struct timespec nap = {0, GATE_NAP_NS};
    uint64_t begin_ns = ldr_now_ns(clock), now_ns = begin_ns;
    uint32_t is;

    while ((is = __atomic_load_n(gate, __ATOMIC_ACQUIRE)) == GATE_WAITS) {
        if (now_ns >= until_ns) {
            is = gate_set(gate, GATE_CLOSED);
            break;
        }
        if (now_ns - begin_ns < GATE_SPIN_NS) {
            ldr_relax();
        } else {
            nanosleep(&nap, NULL);
        }
        now_ns = ldr_now_ns(clock);
    }
    return is == GATE_OPEN
               ? LARDER_OK
               : ldr_fail(LARDER_E_CANCELED, "the load is not wanted any more");
}

larder_status_t larder_prefix_load_early(larder_space_t *space,
                                         const larder_layout_t *layout,
                                         larder_move_t *move, uint32_t *gate,
                                         uint32_t wait_ms)
{
    larder_status_t st = ldr_space_check(space);
    bool gpu = layout != NULL && layout->gpu != NULL;

    if (gate == NULL) {
        return ldr_fail(LARDER_E_INVALID, "gate is NULL");
    }
    if (st == LARDER_OK) {
        const ldr_clock_t *clock = space->lar->clock;
        gated_t gated = {gate, ldr_now_ns(clock) + wait_ms * 1000000ull};

        if (!gpu) { /* nothing can be done before */
            st = ldr_gate_pass(clock, gate, gated.until_ns);
        }
        if (st == LARDER_OK) {
            st = load_run(space, layout, move, gpu ? &gated : NULL);
        }
    }
    larder_gate_close(gate); /* where it failed before anybody asked */
    return st;
}
