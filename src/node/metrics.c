/* A node's part of the metrics: rows of the table in base/metrics.h. */
#include "node/metrics.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define LATELY_S 3600u

void ldr_node_counters(ldr_node_t *node, ldr_counters_t *out)
{
    ldr_node_lock(node);
    *out = node->store.n;
    ldr_node_unlock(node);
}

void ldr_node_times(ldr_node_t *node, larder_tier_t tier,
                    ldr_histogram_t *reads, ldr_histogram_t *writes)
{
    ldr_tier_t *t = node->tiers[tier - 1];

    memset(reads, 0, sizeof(*reads));
    memset(writes, 0, sizeof(*writes));
    if (t != NULL && t->ops->times != NULL) {
        t->ops->times(t, reads, writes);
    }
}

/* What a tenant is called in the metrics. */
static void label(const char *own, const uint8_t id[LDR_ID_BYTES],
                  char name[LDR_NAME_MAX])
{
    if (own[0] != '\0') {
        snprintf(name, LDR_NAME_MAX, "%s", own);
    } else {
        snprintf(name, LDR_NAME_MAX, "id-%02x%02x%02x%02x", id[0], id[1], id[2],
                 id[3]);
    }
}

bool ldr_node_tenant_label(ldr_node_t *node, uint32_t tenant,
                           char name[LDR_NAME_MAX])
{
    const ldr_store_t *s = &node->store;

    ldr_node_lock(node);
    bool found = tenant < s->tenant_count;
    if (found) {
        label(s->tenants[tenant].name, s->tenants[tenant].id, name);
    }
    ldr_node_unlock(node);
    return found;
}

const char *ldr_mode_label(ldr_mode_t mode)
{
    static const char *const names[] = {"on", "paused"};

    return names[mode];
}

uint64_t ldr_write_amplification(const larder_stats_t *s)
{
    uint64_t saved = 0, carried = 0;

    for (uint64_t i = 0; i < s->disks; i++) {
        saved += s->disk[i].written_bytes;
        carried += s->disk[i].carried_bytes;
    }
    return saved >= 1000 ? 1000 + carried / (saved / 1000) : 1000;
}

/* ---- spaces ---- */

void ldr_space_label(const uint8_t id[LDR_ID_BYTES], char text[LDR_SPACE_LABEL])
{
    const uint8_t *own = id + LDR_TENANT_TAG_BYTES;

    snprintf(text, LDR_SPACE_LABEL, "%02x%02x%02x%02x", own[0], own[1], own[2],
             own[3]);
}

uint64_t ldr_counters_hits(const ldr_counters_t *n)
{
    uint64_t hits = 0;

    for (unsigned i = 0; i < LARDER_TIERS_MAX; i++) {
        hits += n->loads[i];
    }
    return hits;
}

uint64_t ldr_counters_misses(const ldr_counters_t *n)
{
    uint64_t misses = 0;

    for (int i = 0; i < LARDER_CAUSE_COUNT; i++) {
        misses += n->misses[i];
    }
    return misses;
}

/* Who asks now goes before who did much once, or a new model would not be seen
 * behind all those before it. */
static uint64_t busy(const ldr_space_stats_t *s, uint32_t now_s)
{
    uint64_t done = ldr_counters_hits(&s->n) + ldr_counters_misses(&s->n) +
                    s->n.asked_chunks + s->n.saves_stored + s->chunks;
    bool lately = s->asked_s != 0 && now_s - s->asked_s < LATELY_S;

    return done + (lately ? UINT64_MAX / 2 : 0);
}

unsigned ldr_node_busiest(ldr_node_t *node, uint32_t tenant,
                          ldr_space_stats_t rows[LDR_SPACES_SHOWN],
                          uint32_t *known_p)
{
    ldr_space_stats_t s;
    uint32_t now_s = ldr_wall_s(node->clock);
    unsigned count = 0;

    *known_p = 0;
    for (uint32_t i = 0; ldr_node_space_stats(node, i, &s); i++) {
        unsigned at = count;

        if (tenant != LDR_NIL && s.tenant != tenant) {
            continue;
        }
        ++*known_p;
        if (count == LDR_SPACES_SHOWN &&
            busy(&s, now_s) <= busy(&rows[count - 1], now_s)) {
            continue;
        }
        at = count < LDR_SPACES_SHOWN ? count++ : count - 1;
        for (; at > 0 && busy(&rows[at - 1], now_s) < busy(&s, now_s); at--) {
            rows[at] = rows[at - 1];
        }
        rows[at] = s;
    }
    return count;
}

typedef void (*space_fn)(const char *tenant, const char *id,
                         const ldr_space_stats_t *s, ldr_exposition_t *e);

static void put_space_info(const char *tenant, const char *id,
                           const ldr_space_stats_t *s, ldr_exposition_t *e)
{
    if (s->label[0] != '\0') {
        ldr_metric_put(e, LDR_METRIC_SPACE_INFO,
                       LDR_LABELS(tenant, id, s->label), 1);
    }
}

static void put_space_chunks(const char *tenant, const char *id,
                             const ldr_space_stats_t *s, ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_SPACE_CHUNKS, LDR_LABELS(tenant, id),
                   s->chunks);
}

static void put_space_dram(const char *tenant, const char *id,
                           const ldr_space_stats_t *s, ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_SPACE_DRAM, LDR_LABELS(tenant, id),
                   s->dram_bytes);
}

static void put_space_ssd(const char *tenant, const char *id,
                          const ldr_space_stats_t *s, ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_SPACE_SSD, LDR_LABELS(tenant, id),
                   s->ssd_bytes);
}

static void put_space_asked(const char *tenant, const char *id,
                            const ldr_space_stats_t *s, ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_SPACE_ASKED, LDR_LABELS(tenant, id, "found"),
                   s->n.found_chunks);
    ldr_metric_put(e, LDR_METRIC_SPACE_ASKED,
                   LDR_LABELS(tenant, id, "not_found"),
                   s->n.asked_chunks - s->n.found_chunks);
}

static void put_space_loads(const char *tenant, const char *id,
                            const ldr_space_stats_t *s, ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_SPACE_LOADS, LDR_LABELS(tenant, id, "hit"),
                   ldr_counters_hits(&s->n));
    ldr_metric_put(e, LDR_METRIC_SPACE_LOADS, LDR_LABELS(tenant, id, "miss"),
                   ldr_counters_misses(&s->n));
}

static void put_space_moved(const char *tenant, const char *id,
                            const ldr_space_stats_t *s, ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_SPACE_MOVED, LDR_LABELS(tenant, id, "load"),
                   s->n.loaded_bytes);
    ldr_metric_put(e, LDR_METRIC_SPACE_MOVED, LDR_LABELS(tenant, id, "save"),
                   s->n.saved_bytes);
}

/* One that nobody has opened since the start has no tenant yet, and nothing
 * to show. */
static void by_space(ldr_node_t *node, uint32_t tenant, ldr_exposition_t *e)
{
    static const space_fn all[] = {
        put_space_info,  put_space_chunks, put_space_dram, put_space_ssd,
        put_space_asked, put_space_loads,  put_space_moved};
    ldr_space_stats_t *rows = ldr_alloc(LDR_SPACES_SHOWN * sizeof(*rows));
    uint32_t known;

    if (rows == NULL) {
        return;
    }
    unsigned count = ldr_node_busiest(node, tenant, rows, &known);
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        for (unsigned i = 0; i < count; i++) {
            char name[LDR_NAME_MAX], id[LDR_SPACE_LABEL];

            if (ldr_node_tenant_label(node, rows[i].tenant, name)) {
                ldr_space_label(rows[i].id, id);
                all[k](name, id, &rows[i], e);
            }
        }
    }
    ldr_free(rows);
}

/* ---- by tenant ---- */

typedef void (*tenant_fn)(const char *name, const ldr_tenant_stats_t *t,
                          ldr_exposition_t *e);

static void put_loads(const char *name, const ldr_tenant_stats_t *t,
                      ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_LOADS, LDR_LABELS(name, "dram"),
                   t->n.loads[LARDER_TIER_DRAM]);
    for (unsigned i = 0; ldr_tier_rows[i] != NULL; i++) {
        ldr_metric_put(e, LDR_METRIC_LOADS,
                       LDR_LABELS(name, ldr_tier_rows[i]->name),
                       t->n.loads[ldr_tier_rows[i]->number]);
    }
}

static void put_misses(const char *name, const ldr_tenant_stats_t *t,
                       ldr_exposition_t *e)
{
    for (int i = LARDER_CAUSE_ABSENT; i < LARDER_CAUSE_COUNT; i++) {
        ldr_metric_put(e, LDR_METRIC_MISSES,
                       LDR_LABELS(name, larder_cause_text((larder_cause_t)i)),
                       t->n.misses[i]);
    }
}

#define SAVES_MAP(X)                                                           \
    X(stored)                                                                  \
    X(present)                                                                 \
    X(declined)                                                                \
    X(mismatch)                                                                \
    X(full)                                                                    \
    X(canceled)                                                                \
    X(failed)                                                                  \
    X(stale)                                                                   \
    X(paused)
static void put_saves(const char *name, const ldr_tenant_stats_t *t,
                      ldr_exposition_t *e)
{
#define X(word)                                                                \
    ldr_metric_put(e, LDR_METRIC_SAVES, LDR_LABELS(name, #word),               \
                   t->n.saves_##word);
    SAVES_MAP(X)
#undef X
}

static void put_dropped(const char *name, const ldr_tenant_stats_t *t,
                        ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_SAVES_DROPPED, LDR_LABELS(name, "evicted"),
                   t->n.queue_evicted[LARDER_TIER_SSD - 1]);
    ldr_metric_put(e, LDR_METRIC_SAVES_DROPPED, LDR_LABELS(name, "size"),
                   t->n.saves_dropped_size);
    ldr_metric_put(e, LDR_METRIC_SAVES_DROPPED, LDR_LABELS(name, "io"),
                   t->n.saves_dropped_io);
}

static void put_refused(const char *name, const ldr_tenant_stats_t *t,
                        ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_WRITES_REFUSED, LDR_LABELS(name, "used_once"),
                   t->n.refused_first);
    ldr_metric_put(e, LDR_METRIC_WRITES_REFUSED, LDR_LABELS(name, "budget"),
                   t->n.refused_budget);
}

static void put_moved(const char *name, const ldr_tenant_stats_t *t,
                      ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_MOVED_BYTES, LDR_LABELS(name, "save", "dram"),
                   t->n.saved_bytes);
    ldr_metric_put(e, LDR_METRIC_MOVED_BYTES, LDR_LABELS(name, "load", "dram"),
                   t->n.loaded_from[LARDER_TIER_DRAM]);
    for (unsigned i = 0; ldr_tier_rows[i] != NULL; i++) {
        ldr_metric_put(e, LDR_METRIC_MOVED_BYTES,
                       LDR_LABELS(name, "load", ldr_tier_rows[i]->name),
                       t->n.loaded_from[ldr_tier_rows[i]->number]);
    }
}

static void put_offers(const char *name, const ldr_tenant_stats_t *t,
                       ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_OFFERS, LDR_LABELS(name, "written"),
                   t->n.offers_written);
    ldr_metric_put(e, LDR_METRIC_OFFERS, LDR_LABELS(name, "present"),
                   t->n.offers_present);
    ldr_metric_put(e, LDR_METRIC_OFFERS, LDR_LABELS(name, "evicted"),
                   t->n.queue_evicted[LARDER_TIER_SHARED - 1]);
    ldr_metric_put(e, LDR_METRIC_OFFERS, LDR_LABELS(name, "failed"),
                   t->n.offers_failed);
}

static void put_ranks(const char *name, const ldr_tenant_stats_t *t,
                      ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_POLICY_RANKS, LDR_LABELS(name, "learned"),
                   !t->policy.ranks_lru);
    ldr_metric_put(e, LDR_METRIC_POLICY_RANKS, LDR_LABELS(name, "lru"),
                   t->policy.ranks_lru);
}

static void put_shadow_hits(const char *name, const ldr_tenant_stats_t *t,
                            ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_POLICY_HITS, LDR_LABELS(name, "learned"),
                   t->policy.hits);
    ldr_metric_put(e, LDR_METRIC_POLICY_HITS, LDR_LABELS(name, "lru"),
                   t->policy.hits_lru);
}

static void put_asked(const char *name, const ldr_tenant_stats_t *t,
                      ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_ASKED, LDR_LABELS(name, "found"),
                   t->n.found_chunks);
    ldr_metric_put(e, LDR_METRIC_ASKED, LDR_LABELS(name, "not_found"),
                   t->n.asked_chunks - t->n.found_chunks);
}

/* Metrics of one value for each tenant. */
#define TENANT_VALUE_MAP(X)                                                    \
    X(EVICTED_CHUNKS, n.evicted_chunks)                                        \
    X(EVICTED_BYTES, n.evicted_bytes)                                          \
    X(PASSED_CHUNKS, n.passed_chunks)                                          \
    X(POLICY_SWITCHES, policy.switches)                                        \
    X(POLICY_REQUESTS, policy.told)                                            \
    X(POLICY_BYTES, policy.bytes)                                              \
    X(RECLAIMED_SHARDS, n.reclaimed_chunks)                                    \
    X(REMOVES, n.removes)                                                      \
    X(RESETS, n.resets)                                                        \
    X(TENANT_DRAM, dram_used_bytes)                                            \
    X(TENANT_DRAM_MAX, dram_max)                                               \
    X(TENANT_OVERDUE, dram_overdue_bytes)                                      \
    X(TENANT_SSD, ssd_bytes)                                                   \
    X(TENANT_SSD_MAX, ssd_max)                                                 \
    X(PINNED, pinned_bytes)

#define X(id, field)                                                           \
    static void put_##id(const char *name, const ldr_tenant_stats_t *t,        \
                         ldr_exposition_t *e)                                  \
    {                                                                          \
        ldr_metric_put(e, LDR_METRIC_##id, LDR_LABELS(name), t->field);        \
    }
TENANT_VALUE_MAP(X)
#undef X

/* Metric by metric, so each tenant's figures are taken once, before. */
static void by_tenant(ldr_node_t *node, uint32_t tenant, ldr_exposition_t *e)
{
    static const tenant_fn all[] = {
        put_loads,          put_misses, put_asked,  put_saves, put_dropped,
        put_refused,        put_moved,  put_offers, put_ranks, put_shadow_hits,
#define X(id, field) put_##id,
        TENANT_VALUE_MAP(X)
#undef X
    };
    uint32_t first = tenant != LDR_NIL ? tenant : 0, count = 0;

    ldr_node_lock(node);
    uint32_t room = tenant != LDR_NIL ? 1 : node->store.tenant_count;
    ldr_node_unlock(node);
    ldr_tenant_stats_t *rows = ldr_alloc(room * sizeof(*rows));
    if (rows == NULL) {
        return;
    }
    while (count < room &&
           ldr_node_tenant_stats(node, first + count, &rows[count])) {
        count++;
    }
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        for (uint32_t i = 0; i < count; i++) {
            char name[LDR_NAME_MAX];

            label(rows[i].name, rows[i].id, name);
            all[k](name, &rows[i], e);
        }
    }
    ldr_free(rows);
}

/* ---- of the whole node ---- */

static void put_state(ldr_node_t *node, ldr_exposition_t *e)
{
    ldr_queues_t q;

    ldr_node_queues(node, &q);
    ldr_node_lock(node);
    uint64_t spaces = node->store.space_count;
    ldr_mode_t mode = node->mode;
    ldr_node_unlock(node);
    ldr_metric_put(e, LDR_METRIC_SPACES, LDR_NO_LABELS, spaces);
    ldr_metric_put(e, LDR_METRIC_DIRTY_SHARDS, LDR_NO_LABELS, q.dirty_shards);
    ldr_metric_put(e, LDR_METRIC_READS_WAITING, LDR_NO_LABELS, q.reads_waiting);
    ldr_metric_put(e, LDR_METRIC_READS_FLYING, LDR_NO_LABELS, q.reads_flying);
    ldr_metric_put(e, LDR_METRIC_WRITES_FLYING, LDR_NO_LABELS, q.writes_flying);
    for (int i = LDR_MODE_ON; i <= LDR_MODE_PAUSED; i++) {
        ldr_metric_put(e, LDR_METRIC_MODE,
                       LDR_LABELS(ldr_mode_label((ldr_mode_t)i)),
                       (int)mode == i);
    }
    ldr_metric_put_histogram(e, LDR_METRIC_COPY_SECONDS, LDR_LABELS("load"),
                             &node->load_times);
    ldr_metric_put_histogram(e, LDR_METRIC_COPY_SECONDS, LDR_LABELS("save"),
                             &node->save_times);
    ldr_metric_put(e, LDR_METRIC_POISONED, LDR_NO_LABELS,
                   ldr_broken_text() != NULL);
}

#define GAUGE_MAP(X)                                                           \
    X(ENTRIES, entries)                                                        \
    X(INDEX_BYTES, entry_bytes)                                                \
    X(DRAM, dram_bytes)                                                        \
    X(DRAM_RESIDENT, dram_resident_bytes)                                      \
    X(DRAM_USED, dram_used_bytes)                                              \
    X(HELD_CHUNKS, dram_leased_chunks)                                         \
    X(IO_URING, io_uring)

void ldr_node_expose(ldr_node_t *node, uint32_t tenant, ldr_exposition_t *e)
{
    larder_stats_t s;

    by_tenant(node, tenant, e);
    by_space(node, tenant, e);
    if (tenant != LDR_NIL) {
        return;
    }
    ldr_node_stats(node, LDR_NIL, &s);
#define X(id, field) ldr_metric_put(e, LDR_METRIC_##id, LDR_NO_LABELS, s.field);
    GAUGE_MAP(X)
#undef X
    put_state(node, e);
    if (s.disks > 0) {
        ldr_metric_put_fixed(e, LDR_METRIC_WRITE_AMPLIFICATION, LDR_NO_LABELS,
                             ldr_write_amplification(&s), 3);
    }
    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *t = node->order[i];

        if (t->ops->metrics != NULL) {
            t->ops->metrics(t, e);
        }
    }
}

size_t ldr_node_metrics(ldr_node_t *node, char *text, size_t size)
{
    ldr_exposition_t e;

    ldr_exposition_init(&e, text, size);
    ldr_node_expose(node, LDR_NIL, &e);
    return e.text.length;
}
