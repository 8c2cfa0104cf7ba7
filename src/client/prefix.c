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
#include "gpu/layers.h"

#define ATTEMPTS 8u /* to stage what others are evicting */

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
    return layout->chunk_tokens == space->chunk_tokens
               ? LARDER_OK
               : ldr_fail(LARDER_E_INVALID,
                          "a layout with chunks of %u tokens, a space of %u",
                          layout->chunk_tokens, space->chunk_tokens);
}

/* ---- matching ---- */

/* A search for the longest prefix. */
typedef struct search {
    larder_space_t *space;
    const larder_layout_t *layout;
    const larder_key_t *keys;
    uint64_t deadline_ns;
    bool asks;                        /* the next match counts as asking */
    uint32_t chunks;                  /* the longest that is possible still */
    uint8_t *here[LARDER_GROUPS_MAX]; /* where it was asked for */
    larder_match_t sum;
} search_t;

static void search_end(search_t *s)
{
    for (uint32_t g = 0; g < s->layout->group_count; g++) {
        ldr_free(s->here[g]);
    }
}

/* Asks for every chunk of a group whose shards are all there. */
static larder_status_t look(search_t *s, uint32_t group)
{
    uint32_t shards = s->space->shards;
    uint32_t step = LARDER_BATCH_MAX / shards;
    uint8_t *here = ldr_alloc(s->chunks);
    larder_item_t *items = ldr_alloc(LARDER_BATCH_MAX * sizeof(*items));
    larder_status_t st =
        here != NULL && items != NULL
            ? LARDER_OK
            : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a match");

    for (uint32_t at = 0; at < s->chunks && st == LARDER_OK; at += step) {
        uint32_t count = (uint32_t)ldr_min64(step, s->chunks - at) * shards;
        larder_op_params_t params = {
            .field_mask = LARDER_OP_TIMEOUT | LARDER_OP_FLAGS,
            .timeout_ms = ldr_prefix_left_ms(s->space->lar, s->deadline_ns),
            .flags = LDR_BATCH_AGAIN};

        for (uint32_t i = 0; i < count; i++) {
            items[i] = (larder_item_t){.key = &s->keys[at + i / shards],
                                       .group = (uint16_t)group,
                                       .shard = (uint16_t)(i % shards)};
        }
        st = larder_run(s->space, LARDER_OP_EXISTS, items, count, &params);
        for (uint32_t i = 0; i < count && st == LARDER_OK; i++) {
            uint8_t ok = items[i].status == LARDER_OK;

            here[at + i / shards] =
                i % shards == 0 ? ok : here[at + i / shards] & ok;
        }
    }
    ldr_free(items);
    if (st != LARDER_OK) {
        ldr_free(here);
        return st;
    }
    ldr_free(s->here[group]);
    s->here[group] = here;
    return LARDER_OK;
}

/* A group has only `got` of the chunks it needs: what is possible at most. */
static larder_status_t shorten(search_t *s, uint32_t group, ldr_span_t needs,
                               uint32_t got)
{
    uint32_t most = needs.first + got;

    if (s->layout->group[group].rule != LARDER_RULE_ALL &&
        s->here[group] == NULL) {
        larder_status_t st = look(s, group);

        if (st != LARDER_OK) {
            return st;
        }
    }
    s->chunks =
        ldr_layout_longest(s->layout, most, (const uint8_t *const *)s->here);
    return LARDER_OK;
}

/* Of nothing, but for the reason. */
static void clear(larder_match_t *sum)
{
    *sum = (larder_match_t){.cause = sum->cause};
}

static void add(larder_match_t *sum, const larder_match_t *one)
{
    for (unsigned t = 0; t < LARDER_TIERS_MAX; t++) {
        sum->tier_chunks[t] += one->tier_chunks[t];
        sum->tier_bytes[t] += one->tier_bytes[t];
    }
    sum->load_us += one->load_us;
}

/* Whether all groups have what a prefix of s->chunks needs. MISS: no, and it
 * was shortened. */
static larder_status_t try_chunks(search_t *s)
{
    clear(&s->sum);
    for (uint32_t g = 0; g < s->layout->group_count; g++) {
        ldr_span_t needs = ldr_layout_needs(s->layout, g, s->chunks);
        uint32_t count = needs.end - needs.first;
        larder_match_t one;
        larder_status_t st = s->space->lar->backend->match(
            s->space, s->keys + needs.first, count, (uint16_t)g, s->asks,
            s->deadline_ns, &one);

        s->asks = false;
        if (st != LARDER_OK) {
            return st;
        }
        if (one.chunks < count) {
            s->sum.cause = one.cause;
            st = shorten(s, g, needs, one.chunks);
            return st == LARDER_OK ? LARDER_MISS : st;
        }
        add(&s->sum, &one);
    }
    return LARDER_OK;
}

static larder_status_t search_run(search_t *s)
{
    larder_status_t st = LARDER_MISS;

    while (st == LARDER_MISS && s->chunks > 0) {
        st = try_chunks(s);
    }
    if (st == LARDER_MISS) {
        clear(&s->sum);
    }
    s->sum.chunks = s->chunks;
    return st == LARDER_MISS ? LARDER_OK : st;
}

/* The longest prefix, as *out. asks: as in ldr_handle_ops_t. */
static larder_status_t match(larder_space_t *space,
                             const larder_layout_t *layout,
                             const larder_key_t *keys, size_t count, bool asks,
                             uint64_t deadline_ns, larder_match_t *out)
{
    /* Of one group that needs all, the first match asks for all there is. */
    bool one = layout->group_count == 1 && layout->all;
    search_t s = {.space = space,
                  .layout = layout,
                  .keys = keys,
                  .deadline_ns = deadline_ns,
                  .asks = asks && one,
                  .chunks = (uint32_t)count};
    larder_status_t st = search_run(&s);

    search_end(&s);
    if (st == LARDER_OK) {
        *out = s.sum;
    }
    if (st == LARDER_OK && asks && !one) {
        space->lar->backend->asked(space, (uint32_t)count, s.sum.chunks,
                                   deadline_ns);
        ldr_fail_clear();
    }
    return st;
}

/* The same, counted unless it is part of what was asked for just now. */
static larder_status_t match_counted(larder_space_t *space,
                                     const larder_layout_t *layout,
                                     const larder_key_t *keys, size_t count,
                                     bool holds, uint64_t deadline_ns,
                                     larder_match_t *out)
{
    bool asks = !ldr_asked_before(space, keys, count, LDR_ASKED_GROUPS, holds);
    larder_status_t st =
        match(space, layout, keys, count, asks, deadline_ns, out);

    if (st == LARDER_OK && asks) {
        ldr_asked_note(space, keys, count, LDR_ASKED_GROUPS, out->chunks,
                       holds);
    }
    return st;
}

static larder_status_t check_keys(const larder_key_t *keys, size_t count,
                                  const larder_match_t *out)
{
    return keys != NULL && count > 0 && count <= UINT32_MAX / LARDER_SHARDS_MAX
               ? ldr_out_check(out)
               : ldr_fail(LARDER_E_INVALID, "keys or count");
}

larder_status_t larder_prefix_match(larder_space_t *space,
                                    const larder_layout_t *layout,
                                    const larder_key_t *keys, size_t count,
                                    uint32_t timeout_ms, larder_match_t *out)
{
    larder_status_t st = ldr_prefix_check(space, layout);
    larder_match_t found;

    st = st == LARDER_OK ? check_keys(keys, count, out) : st;
    if (st == LARDER_OK) {
        st = match_counted(space, layout, keys, count, false,
                           ldr_deadline(space->lar, timeout_ms), &found);
    }
    if (st == LARDER_OK) {
        ldr_out_fill(out, &found, sizeof(found));
    }
    return st;
}

/* ---- staging ---- */

/* Stages what a prefix of *chunks_p needs. MISS: a group got less; nothing is
 * held, and *chunks_p is what may be possible. With one group that needs all,
 * what it got is a prefix as well, and *chunks_p is its length. */
static larder_status_t stage(larder_space_t *space,
                             const larder_layout_t *layout,
                             const larder_key_t *keys, uint64_t deadline_ns,
                             uint32_t *chunks_p, larder_lease_t **leases,
                             larder_match_t *sum)
{
    uint32_t chunks = *chunks_p;
    larder_status_t st = LARDER_OK;

    clear(sum);
    for (uint32_t g = 0; g < layout->group_count && st == LARDER_OK; g++) {
        ldr_span_t needs = ldr_layout_needs(layout, g, chunks);
        uint32_t count = needs.end - needs.first;
        larder_match_t one = {0};

        st = ldr_stage(space, keys + needs.first, count, (uint16_t)g, false,
                       deadline_ns, &leases[g], &one);
        if (st == LARDER_MISS || (st == LARDER_OK && one.chunks < count)) {
            bool whole = layout->group_count == 1 && layout->all;

            *chunks_p = needs.first + one.chunks;
            sum->cause = one.cause;
            st = whole && one.chunks > 0 ? LARDER_OK : LARDER_MISS;
        }
        add(sum, &one);
    }
    if (st == LARDER_OK) {
        sum->chunks = *chunks_p;
        return LARDER_OK;
    }
    for (uint32_t g = 0; g < layout->group_count; g++) {
        larder_release(&leases[g]);
    }
    clear(sum);
    if (st == LARDER_MISS && sum->cause == LARDER_CAUSE_FULL) {
        /* The groups before it had the room: with less each gets its part. */
        *chunks_p = (uint32_t)ldr_max64(*chunks_p, chunks / 2);
    }
    return st;
}

/* As larder_prefix_stage(); leases are NULL, and sum is empty. */
static larder_status_t stage_longest(larder_space_t *space,
                                     const larder_layout_t *layout,
                                     const larder_key_t *keys, uint32_t chunks,
                                     uint64_t deadline_ns,
                                     larder_lease_t **leases,
                                     larder_match_t *sum)
{
    for (unsigned i = 0; i < ATTEMPTS && chunks > 0; i++) {
        larder_match_t found;
        larder_status_t st = i == 0 ? match_counted(space, layout, keys, chunks,
                                                    true, deadline_ns, &found)
                                    : match(space, layout, keys, chunks, false,
                                            deadline_ns, &found);

        if (st != LARDER_OK) {
            return st;
        }
        chunks = found.chunks;
        if (found.cause != LARDER_CAUSE_NONE) {
            sum->cause = found.cause;
        }
        if (chunks > 0) {
            st = stage(space, layout, keys, deadline_ns, &chunks, leases, sum);
            if (st != LARDER_MISS) {
                return st;
            }
        }
    }
    return LARDER_MISS;
}

larder_status_t larder_prefix_stage(larder_space_t *space,
                                    const larder_layout_t *layout,
                                    const larder_key_t *keys, size_t count,
                                    uint32_t timeout_ms,
                                    larder_lease_t **leases,
                                    larder_match_t *out)
{
    larder_status_t st = ldr_prefix_check(space, layout);
    larder_match_t sum = {0};

    st = st == LARDER_OK ? check_keys(keys, count, out) : st;
    if (st != LARDER_OK) {
        return st;
    }
    if (leases == NULL) {
        return ldr_fail(LARDER_E_INVALID, "leases is NULL");
    }
    memset(leases, 0, layout->group_count * sizeof(*leases));
    uint64_t deadline_ns = ldr_deadline(space->lar, timeout_ms);
    ldr_announce(space, keys, count, false, 0, deadline_ns);
    st = stage_longest(space, layout, keys, (uint32_t)count, deadline_ns,
                       leases, &sum);
    if (st >= 0) {
        ldr_out_fill(out, &sum, sizeof(sum));
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
    } else if (m->failed++ == 0) {
        m->item = st;
        m->cause = cause;
    }
}

larder_item_t ldr_move_item(const larder_move_t *m, uint32_t group,
                            uint32_t chunk)
{
    const larder_key_t *key = &m->keys[chunk - m->first_key];

    return (larder_item_t){
        .key = key,
        .parent = chunk > m->first_key ? key - 1 : NULL,
        .depth = chunk,
        .group = (uint16_t)group,
        .shard = m->shard,
        .flags = m->flags & LARDER_PUT_PIN,
        .ttl_ms = m->ttl_ms,
    };
}

bool ldr_saves_next(ldr_saves_t *s)
{
    const larder_move_t *m = s->move;
    uint32_t tokens = s->layout->chunk_tokens, end = m->end / tokens;

    for (; s->group < s->layout->group_count; s->group++, s->begun = false) {
        s->chunk = s->begun ? s->chunk + 1 : m->begin / tokens;
        s->begun = true;
        for (; s->chunk < end; s->chunk++) {
            if (m->writers <= 1 || s->chunk % m->writers == m->writer) {
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
        st = ldr_batch_add(b, saves.group, saves.chunk,
                           (ldr_span_t){0, UINT32_MAX});
        if (st == LARDER_MISS) {
            b->move->skipped++;
            st = LARDER_OK;
        }
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
            st = ldr_batch_add(b, group, i, wanted);
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
        (m->writers > 0 && m->writer >= m->writers)) {
        return ldr_fail(LARDER_E_INVALID,
                        "keys, tables, begin and end, or writer");
    }
    for (uint32_t g = 0; g < layout->group_count; g++) {
        const ldr_group_t *group = &layout->group[g];

        if (group->shard_pages == 0) {
            return ldr_fail(LARDER_E_INVALID, "group %u has no layers", g);
        }
        if (known && m->tables[g].ids == NULL && m->tables[g].count > 0) {
            return ldr_fail(LARDER_E_INVALID, "table %u is NULL", g);
        }
        if (op == LARDER_OP_GET && (m->begin % group->block_tokens != 0 ||
                                    m->end % group->block_tokens != 0)) {
            return ldr_fail(LARDER_E_INVALID,
                            "tokens %u to %u, group %u has blocks of %u",
                            m->begin, m->end, g, group->block_tokens);
        }
    }
    if (m->end > UINT32_MAX - layout->chunk_tokens) {
        return ldr_fail(LARDER_E_INVALID, "%u tokens: too many", m->end);
    }
    if (op == LARDER_OP_GET && !layout->all &&
        m->end % layout->chunk_tokens != 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "%u tokens are no multiple of a chunk of %u", m->end,
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

/* layers, gated: see larder_prefix_load_layers() and _early(); or NULL. */
static larder_status_t move_run(larder_space_t *space,
                                const larder_layout_t *layout, larder_move_t *m,
                                larder_op_t op, larder_layers_t *layers,
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
                     .layers = layers,
                     .deadline_ns = ldr_deadline(space->lar, m->timeout_ms)};
    if (gated != NULL) {
        b.gate = gated->gate;
        b.gate_ns = gated->until_ns;
    }
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
    return move_run(space, layout, move, LARDER_OP_PUT, NULL, NULL, save_all);
}

larder_status_t larder_prefix_load(larder_space_t *space,
                                   const larder_layout_t *layout,
                                   larder_move_t *move)
{
    larder_status_t st =
        move_run(space, layout, move, LARDER_OP_GET, NULL, NULL, load_all);

    return st == LARDER_OK && move->failed > 0 ? move->item : st;
}

larder_status_t larder_prefix_load_layers(larder_space_t *space,
                                          const larder_layout_t *layout,
                                          larder_move_t *move,
                                          larder_layers_t *layers)
{
    larder_status_t st = layers != NULL
                             ? move_run(space, layout, move, LARDER_OP_GET,
                                        layers, NULL, load_all)
                             : ldr_fail(LARDER_E_INVALID, "layers is NULL");

    st = st == LARDER_OK && move->failed > 0 ? move->item : st;
    if (layers != NULL) {
        larder_layers_end(layers, st);
    }
    return st;
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

larder_status_t ldr_gate_pass(uint32_t *gate, uint64_t until_ns)
{
    const struct timespec nap = {0, GATE_NAP_NS};
    uint64_t begin_ns = ldr_now_ns(&ldr_clock_real), now_ns = begin_ns;
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
        now_ns = ldr_now_ns(&ldr_clock_real);
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
    gated_t gated = {gate, ldr_now_ns(&ldr_clock_real) + wait_ms * 1000000ull};
    larder_status_t st = LARDER_OK;

    if (gate == NULL) {
        return ldr_fail(LARDER_E_INVALID, "gate is NULL");
    }
    bool gpu = layout != NULL && layout->gpu != NULL;
    if (!gpu) { /* nothing can be done before */
        st = ldr_gate_pass(gate, gated.until_ns);
    }
    if (st == LARDER_OK) {
        st = move_run(space, layout, move, LARDER_OP_GET, NULL,
                      gpu ? &gated : NULL, load_all);
    }
    larder_gate_close(gate); /* where it failed before anybody asked */
    return st == LARDER_OK && move->failed > 0 ? move->item : st;
}
