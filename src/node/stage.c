/* Staging prefixes: see stage.h. */
#include "node/stage.h"

#include "base/bytes.h"
#include "base/mem.h"

#define ATTEMPTS 8u        /* to stage what others are evicting */
#define STEP_LOADS 64u     /* taken in one go */
#define RELEASE_SLICE 256u /* given up before others get the lock */
#define BELOW_WORTH 80u    /* percent: a disk is not that well known */

/* ---- the longest prefix ---- */

static void add(larder_match_t *sum, const larder_match_t *one)
{
    for (unsigned t = 0; t < LARDER_TIERS_MAX; t++) {
        sum->tier_chunks[t] += one->tier_chunks[t];
        sum->tier_bytes[t] += one->tier_bytes[t];
    }
    sum->load_us += one->load_us;
}

/* Which chunks of a group have all their shards: one byte for each. NULL: no
 * memory. */
static uint8_t *look(ldr_node_t *node, const ldr_prefix_t *p, uint16_t group,
                     uint32_t chunks)
{
    uint8_t *here = ldr_alloc(chunks);

    for (uint32_t i = 0; here != NULL && i < chunks; i++) {
        larder_match_t one;

        ldr_node_match(node, p->space, p->shards, group, &p->keys[i], 1, false,
                       &one);
        here[i] = one.chunks == 1;
    }
    return here;
}

/* Whether all groups have what a prefix of *chunks_p needs. MISS: no, and it
 * was shortened. here: of each group that was looked at, which chunks it has.
 */
static larder_status_t try_chunks(ldr_node_t *node, const ldr_prefix_t *p,
                                  uint32_t *chunks_p, uint8_t **here,
                                  larder_match_t *sum)
{
    *sum = (larder_match_t){.cause = sum->cause};
    for (uint32_t i = 0; i < p->need_count; i++) {
        ldr_span_t span = ldr_need_span(&p->needs[i], *chunks_p);
        uint32_t count = span.end - span.first;
        uint16_t group = p->needs[i].group;
        larder_match_t one;

        ldr_node_match(node, p->space, p->shards, group, p->keys + span.first,
                       count, false, &one);
        if (one.chunks == count) {
            add(sum, &one);
            continue;
        }
        sum->cause = one.cause;
        if (i == 0 && p->needs[i].chunks == LDR_NEED_ALL) {
            /* What was found is what the shorter prefix needs of this group:
             * it is not looked up again. */
            add(sum, &one);
            *chunks_p = one.chunks;
            continue;
        }
        if (p->needs[i].chunks != LDR_NEED_ALL && here[i] == NULL) {
            here[i] = look(node, p, group, *chunks_p);
            if (here[i] == NULL) {
                return ldr_fail(LARDER_E_NO_MEMORY,
                                "not enough memory for a match");
            }
        }
        *chunks_p =
            ldr_needs_longest(p->needs, p->need_count, span.first + one.chunks,
                              (const uint8_t *const *)here);
        return LARDER_MISS;
    }
    return LARDER_OK;
}

larder_status_t ldr_prefix_match(ldr_node_t *node, const ldr_prefix_t *p,
                                 larder_match_t *out)
{
    uint8_t *here[LARDER_GROUPS_MAX] = {NULL};
    larder_status_t st = LARDER_MISS;
    uint32_t chunks = p->count;

    *out = (larder_match_t){.cause = LARDER_CAUSE_NONE};
    while (st == LARDER_MISS && chunks > 0) {
        st = try_chunks(node, p, &chunks, here, out);
    }
    if (st == LARDER_MISS) {
        *out = (larder_match_t){.cause = out->cause};
    }
    for (uint32_t i = 0; i < p->need_count; i++) {
        ldr_free(here[i]);
    }
    out->chunks = chunks;
    if (st >= 0 && p->asks) {
        ldr_node_asked(node, p->space, p->count, chunks);
    }
    return st < 0 ? st : LARDER_OK;
}

/* ---- what is worth it ---- */

static bool has(const larder_stage_params_t *w, unsigned field)
{
    return (w->field_mask & field) != 0;
}

static uint64_t sum_bytes(const larder_match_t *m, unsigned from_tier)
{
    uint64_t bytes = 0;

    for (unsigned t = from_tier; t < LARDER_TIERS_MAX; t++) {
        bytes += m->tier_bytes[t];
    }
    return bytes;
}

/* Nanoseconds that loading it is expected to take. */
static uint64_t expect_ns(const larder_stage_params_t *w,
                          const larder_match_t *m)
{
    if (sum_bytes(m, LARDER_TIER_SSD) > 0) {
        uint64_t percent =
            has(w, LARDER_STAGE_BELOW_PERCENT) ? w->below_percent : 100;

        return m->load_us * 10 * percent;
    }
    return has(w, LARDER_STAGE_DRAM_SPEED) && w->dram_speed > 0
               ? (uint64_t)((double)m->tier_bytes[LARDER_TIER_DRAM] * 1e9 /
                            (double)w->dram_speed)
               : m->load_us * 1000;
}

static larder_limit_t limit_of(const ldr_staging_t *s, const larder_match_t *m)
{
    const larder_stage_params_t *w = &s->worth;

    for (unsigned t = 0; has(w, LARDER_STAGE_TIERS) && t < LARDER_TIERS_MAX;
         t++) {
        if (m->tier_bytes[t] > 0 && (w->tiers >> t & 1) == 0) {
            return LARDER_LIMIT_TIER;
        }
    }
    if (has(w, LARDER_STAGE_CHUNK_NS) && w->chunk_ns > 0) {
        uint64_t takes_ns = expect_ns(w, m);
        uint64_t compute_ns = m->chunks * w->chunk_ns;
        bool below = sum_bytes(m, LARDER_TIER_SSD) > 0;

        if (below ? takes_ns >= compute_ns / 100 * BELOW_WORTH ||
                        s->begin_ns + takes_ns >= s->deadline_ns
                  : takes_ns >= compute_ns) {
            return LARDER_LIMIT_SLOWER;
        }
    }
    return LARDER_LIMIT_NONE;
}

/* Shortens what was found to what is worth it; halves, since a match of each
 * length would cost more than it could win. */
static larder_status_t choose(ldr_staging_t *s, larder_match_t *m)
{
    larder_limit_t first = LARDER_LIMIT_NONE, limit;
    ldr_prefix_t shorter = s->prefix;
    larder_status_t st = LARDER_OK;

    shorter.asks = false;
    while (st == LARDER_OK && m->chunks > 0 &&
           (limit = limit_of(s, m)) != LARDER_LIMIT_NONE) {
        first = limit;
        shorter.count = m->chunks / 2;
        st = ldr_prefix_match(s->node, &shorter, m);
    }
    if (st == LARDER_OK && has(&s->worth, LARDER_STAGE_BYTES_MAX) &&
        m->chunks > 0 && sum_bytes(m, 0) > s->worth.bytes_max) {
        first = LARDER_LIMIT_BYTES;
    }
    s->match.limit = first;
    return st;
}

/* ---- staging ---- */

static uint64_t shards_of(const ldr_staging_t *s, uint32_t chunks)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < s->prefix.need_count; i++) {
        ldr_span_t span = ldr_need_span(&s->prefix.needs[i], chunks);

        count += span.end - span.first;
    }
    return count * s->prefix.shards;
}

/* The first shard of the next need that has one. */
static void next_need(ldr_staging_t *s)
{
    while (s->next.need < s->prefix.need_count) {
        ldr_span_t span =
            ldr_need_span(&s->prefix.needs[s->next.need], s->chunks);

        s->next.chunk = span.first;
        s->next.shard = 0;
        if (span.first < span.end) {
            return;
        }
        s->next.need++;
    }
}

static void restart(ldr_staging_t *s, uint32_t chunks)
{
    s->chunks = chunks;
    s->total = (uint32_t)shards_of(s, chunks);
    s->at = s->begun = 0;
    s->end = s->total;
    s->next.need = 0;
    next_need(s);
}

larder_status_t ldr_staging_begin(ldr_staging_t *s)
{
    larder_match_t m;

    s->begin_ns = ldr_now_ns(s->node->clock);
    larder_status_t st = ldr_prefix_match(s->node, &s->prefix, &m);
    s->match = (larder_match_t){.cause = m.cause, .found = m.chunks};
    if (st == LARDER_OK) {
        st = choose(s, &m);
    }
    if (st != LARDER_OK) {
        return st;
    }
    if (s->match.limit == LARDER_LIMIT_NONE && m.chunks < s->match.found) {
        s->match.cause = m.cause; /* it was evicted in between */
    }
    s->match.tried = m.chunks;
    s->match.tried_us = m.load_us;
    s->match.tried_bytes = sum_bytes(&m, 0);
    s->match.tried_below_bytes = sum_bytes(&m, LARDER_TIER_SSD);
    if (s->match.limit == LARDER_LIMIT_BYTES ||
        shards_of(s, m.chunks) > UINT32_MAX) {
        m.chunks = 0;
    }
    if (has(&s->worth, LARDER_STAGE_CHUNK_NS) && s->worth.chunk_ns > 0) {
        /* A wrong guess shall cost little. */
        uint64_t patience_ns = ldr_max64(2 * expect_ns(&s->worth, &m),
                                         m.chunks * s->worth.chunk_ns / 2);

        s->deadline_ns = ldr_min64(s->deadline_ns, s->begin_ns + patience_ns);
    }
    s->attempts = ATTEMPTS;
    restart(s, m.chunks);
    return LARDER_OK;
}

static bool needs_all(const ldr_prefix_t *p)
{
    return p->need_count == 1 && p->needs[0].chunks == LDR_NEED_ALL;
}

larder_status_t ldr_staging_bound(ldr_staging_t *s, uint64_t leases)
{
    if (ldr_staged_leases(s->chunks, s->total) <= leases) {
        return LARDER_OK;
    }
    if (!needs_all(&s->prefix) || leases == 0) {
        return ldr_fail(LARDER_E_LIMIT,
                        "%u chunks to stage, %u shards, and %llu leases left: "
                        "release some, or raise session_leases",
                        s->chunks, s->total, (unsigned long long)leases);
    }
    s->match.cause = LARDER_CAUSE_FULL;
    restart(s, (uint32_t)leases); /* a group's chunk is one: see stage.h */
    return LARDER_OK;
}

/* Makes a load of the next shard, and of those of its chunk that follow it as
 * far as there are slots without a gap. Gives their number. */
static uint32_t next_loads(ldr_staging_t *s)
{
    const ldr_prefix_t *p = &s->prefix;
    uint32_t slot = s->begun % LDR_STAGE_LOADS;
    uint32_t left = LDR_STAGE_LOADS - (s->begun - s->at);
    uint32_t count = (uint32_t)ldr_min64(s->end - s->begun, left);

    count = (uint32_t)ldr_min64(count, LDR_STAGE_LOADS - slot);
    count = (uint32_t)ldr_min64(count, p->shards - s->next.shard);
    for (uint32_t i = 0; i < count; i++) {
        s->items[slot + i] = (larder_item_t){
            .key = &p->keys[s->next.chunk],
            .group = p->needs[s->next.need].group,
            .shard = (uint16_t)(s->next.shard + i),
        };
        s->loads[slot + i] = (ldr_load_t){
            .target = {p->space, p->shards, &s->items[slot + i]},
            .ready = s->ready,
            .arg = s->arg,
        };
    }
    return count;
}

/* So many loads were begun. */
static void step_over(ldr_staging_t *s, uint32_t count)
{
    s->begun += count;
    s->next.shard += count;
    if (s->next.shard == s->prefix.shards) {
        s->next.shard = 0;
        if (++s->next.chunk == s->chunks) {
            s->next.need++;
            next_need(s);
        }
    }
}

/* Whether there are slots for the rest of the next shard's chunk, or many. */
static bool has_slots(const ldr_staging_t *s)
{
    uint64_t rest =
        ldr_min64(s->prefix.shards - s->next.shard, LDR_STAGE_LOADS / 2);

    return s->begun < s->end && LDR_STAGE_LOADS - (s->begun - s->at) >=
                                    ldr_min64(rest, s->end - s->begun);
}

/* Begins loads ahead of the one that is taken next. */
static void begin_ahead(ldr_staging_t *s)
{
    bool waits = false;
    uint32_t held = 1;

    while (has_slots(s)) {
        unsigned slot = s->begun % LDR_STAGE_LOADS;
        ldr_load_t *load = &s->loads[slot];
        uint32_t count = next_loads(s);

        /* Where one is not held the chunk's others are not, as a rule. */
        held = count > 1 && (held > 0 || s->next.shard == 0)
                   ? ldr_loads_begin_held(s->node, load, count)
                   : 0;
        if (held > 0) {
            __builtin_memset(&s->waits[slot], 0, held * sizeof(s->waits[0]));
            step_over(s, held);
            continue;
        }
        bool settled = ldr_load_begin(s->node, load);
        if (settled && load->cause == LARDER_CAUSE_FULL && s->begun > s->at) {
            break; /* reads before it hold the room: after them */
        }
        s->waits[slot] = !settled;
        waits |= !settled;
        if (settled && load->status == LARDER_MISS) {
            s->end = s->begun + 1; /* behind it nothing is of use */
        }
        step_over(s, 1);
    }
    LDR_ASSERT(s->at <= s->begun && s->begun - s->at <= LDR_STAGE_LOADS);
    LDR_ASSERT(s->begun <= s->end && s->end <= s->total);
    if (waits) {
        ldr_node_reads_go(s->node);
    }
}

/* Gives back what was begun behind the one that is taken. */
static void drop_ahead(ldr_staging_t *s)
{
    for (uint32_t i = s->at + 1; i < s->begun; i++) {
        ldr_load_t *load = &s->loads[i % LDR_STAGE_LOADS];

        ldr_load_abandon(s->node, load, LARDER_E_CANCELED);
        load->status = LARDER_E_CANCELED; /* not a load that anybody got */
        ldr_load_end(s->node, load, false);
    }
    s->begun = s->at + 1;
}

static void clear_parts(ldr_staging_t *s)
{
    __builtin_memset(s->part, 0, sizeof(s->part));
}

static void done(ldr_staging_t *s, uint32_t chunks)
{
    larder_match_t *m = &s->match;

    m->chunks = chunks;
    m->load_us = ldr_node_expect_us(s->node, m->tier_bytes);
    s->total = s->at = s->begun = s->end = (uint32_t)shards_of(s, chunks);
    if (!s->check) { /* that takes its time, too */
        ldr_node_measured_loads(s->node, m->tier_bytes,
                                ldr_now_ns(s->node->clock) - s->begin_ns);
    }
}

/* Of this chunk, the first that a group lacks, something does not come. True:
 * all is over. */
static bool cut(ldr_staging_t *s, uint32_t chunk, larder_cause_t cause)
{
    const ldr_prefix_t *p = &s->prefix;

    s->match.cause = cause;
    if (needs_all(p)) { /* what came is a prefix as well */
        uint32_t whole = chunk * p->shards;

        ldr_staged_release(s->node, s->ids + whole, s->at - whole);
        done(s, chunk);
        return true;
    }
    ldr_staged_release(s->node, s->ids, s->at);
    __builtin_memset(s->match.tier_bytes, 0, sizeof(s->match.tier_bytes));
    __builtin_memset(s->match.tier_chunks, 0, sizeof(s->match.tier_chunks));
    clear_parts(s);
    larder_match_t m = {0};
    if (!s->stopped && --s->attempts > 0) {
        ldr_prefix_t shorter = *p;

        shorter.asks = false;
        /* The groups before it had the room: with less each gets its part. */
        shorter.count = cause == LARDER_CAUSE_FULL
                            ? (uint32_t)ldr_max64(chunk, s->chunks / 2)
                            : chunk;
        ldr_prefix_match(s->node, &shorter, &m);
    }
    restart(s, m.chunks);
    if (m.chunks == 0) {
        done(s, 0);
    }
    return m.chunks == 0;
}

/* The slowest of the tiers that a whole chunk came from, as a match has it. */
static unsigned slowest(const ldr_staging_t *s)
{
    unsigned tier = LARDER_TIER_DRAM, from = 0;

    for (unsigned t = 0; t < LARDER_TIERS_MAX; t++) {
        tier = s->part[t] > 0 ? t : tier;
        from += s->part[t] > 0;
    }
    if (from > 1) {
        tier = LARDER_TIER_DRAM;
        ldr_node_lock(s->node);
        for (unsigned t = 0; t < LARDER_TIERS_MAX; t++) {
            if (s->part[t] > 0 && s->node->speed[t] < s->node->speed[tier]) {
                tier = t;
            }
        }
        ldr_node_unlock(s->node);
    }
    return tier;
}

/* It came: adds it up. */
static void keep(ldr_staging_t *s, const ldr_load_t *load)
{
    s->ids[s->at] = load->shard;
    s->part[load->tier] += load->length;
    if ((s->at + 1) % s->prefix.shards == 0) { /* a whole chunk */
        for (unsigned t = 0; t < LARDER_TIERS_MAX; t++) {
            s->match.tier_bytes[t] += s->part[t];
        }
        s->match.tier_chunks[slowest(s)]++;
        clear_parts(s);
    }
    s->at++;
}

static bool pending(ldr_staging_t *s, const ldr_load_t *load)
{
    if (!s->waits[load - s->loads]) {
        return false;
    }
    ldr_node_lock(s->node);
    bool waits = load->status == LARDER_PENDING;
    ldr_node_unlock(s->node);
    return waits;
}

ldr_staging_state_t ldr_staging_step(ldr_staging_t *s)
{
    for (unsigned i = 0; i < STEP_LOADS; i++) {
        begin_ahead(s);
        if (s->at == s->begun && s->at < s->total) { /* it was stopped */
            cut(s, s->at / s->prefix.shards, LARDER_CAUSE_DEADLINE);
            return LDR_STAGING_DONE;
        }
        if (s->at == s->begun) {
            done(s, s->chunks);
            return LDR_STAGING_DONE;
        }
        ldr_load_t *load = &s->loads[s->at % LDR_STAGE_LOADS];
        if (pending(s, load)) {
            return LDR_STAGING_WAITS;
        }
        if (s->check && load->status == LARDER_OK) {
            const ldr_stop_t stop = {NULL, s->deadline_ns};

            load->status = ldr_host_stopped(&s->node->host, &stop);
            if (load->status == LARDER_OK) {
                ldr_load_check(s->node, load);
            }
        }
        ldr_load_end(s->node, load, true);
        if (load->status == LARDER_OK && LDR_HOLDS(load->shard != LDR_NIL)) {
            keep(s, load);
        } else {
            drop_ahead(s);
            if (cut(s, (uint32_t)(load->target.item->key - s->prefix.keys),
                    load->cause)) {
                return LDR_STAGING_DONE;
            }
        }
    }
    return LDR_STAGING_MORE;
}

bool ldr_staging_waits(ldr_staging_t *s)
{
    return s->at < s->begun && pending(s, &s->loads[s->at % LDR_STAGE_LOADS]);
}

void ldr_staging_wait(ldr_staging_t *s)
{
    ldr_load_wait(s->node, &s->loads[s->at % LDR_STAGE_LOADS], s->deadline_ns);
    if (ldr_now_ns(s->node->clock) >= s->deadline_ns) {
        ldr_staging_stop(s, LARDER_E_DEADLINE);
    }
}

void ldr_staging_stop(ldr_staging_t *s, larder_status_t why)
{
    s->stopped = true;
    for (uint32_t i = s->at; i < s->begun; i++) {
        ldr_load_abandon(s->node, &s->loads[i % LDR_STAGE_LOADS], why);
    }
    if (s->end > s->begun) {
        s->end = s->begun;
    }
}

void ldr_staged_release(ldr_node_t *node, const uint32_t *ids, uint32_t count)
{
    ldr_store_t *store = &node->store;

    for (uint32_t i = 0; i < count;) {
        uint32_t end = (uint32_t)ldr_min64(count, i + RELEASE_SLICE);

        ldr_node_lock(node);
        for (; i < end; i++) {
            ldr_store_release(store, store->shards[ids[i]].chunk);
        }
        ldr_node_unlock(node);
    }
}
