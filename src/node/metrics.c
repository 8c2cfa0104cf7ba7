/*
 * A node's part of the figures in base/figures.h. Any thread may call. A
 * tenant's counters are copied with the node's lock, and text is composed
 * without it.
 */
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

/* What a tenant is called that has no name. */
static void name_by_id(const uint8_t id[LDR_ID_BYTES], char name[LDR_NAME_MAX])
{
    if (name[0] == '\0') {
        snprintf(name, LDR_NAME_MAX, "id-%02x%02x%02x%02x", id[0], id[1], id[2],
                 id[3]);
    }
}

bool ldr_node_tenant_label(ldr_node_t *node, uint32_t tenant,
                           char name[LDR_NAME_MAX])
{
    ldr_node_lock(node);
    bool found = tenant < node->store.tenant_count;
    if (found) {
        const ldr_tenant_t *t = &node->store.tenants[tenant];

        snprintf(name, LDR_NAME_MAX, "%s", t->name);
        name_by_id(t->id, name);
    }
    ldr_node_unlock(node);
    return found;
}

/* ---- rows ---- */

const char *ldr_mode_label(unsigned mode)
{
    static const char *const names[] = {"on", "paused"};

    return names[mode];
}

const char *ldr_cause_label(unsigned cause)
{
    return cause > LARDER_CAUSE_NONE && cause < LARDER_CAUSE_COUNT
               ? larder_cause_text((larder_cause_t)cause)
               : NULL;
}

const char *ldr_tier_label(unsigned tier)
{
    const char *name = tier == LARDER_TIER_DRAM ? "dram" : NULL;

    for (unsigned i = 0; ldr_tier_rows[i] != NULL; i++) {
        if (ldr_tier_rows[i]->number == tier) {
            name = ldr_tier_rows[i]->name;
        }
    }
    return name;
}

static const char *policy_label(unsigned i)
{
    return i == 0 ? "learned" : "lru";
}

#define LDR_ROW ldr_tenant_stats_t
const ldr_row_t ldr_rows_tenant[] = {LDR_ROWS(LDR_TENANT_FIGURES)};
#undef LDR_ROW
#define LDR_ROW ldr_space_stats_t
const ldr_row_t ldr_rows_space[] = {LDR_ROWS(LDR_SPACE_FIGURES)};
#undef LDR_ROW
#define LDR_ROW ldr_node_figures_t
const ldr_row_t ldr_rows_node[] = {LDR_ROWS(LDR_NODE_FIGURES)};
#undef LDR_ROW

/* ---- spaces ---- */

void ldr_space_label(const uint8_t id[LDR_ID_BYTES], char text[LDR_SPACE_LABEL])
{
    const uint8_t *own = id + LDR_TENANT_TAG_BYTES;

    snprintf(text, LDR_SPACE_LABEL, "%02x%02x%02x%02x", own[0], own[1], own[2],
             own[3]);
}

ldr_sums_t ldr_counters_sums(const ldr_counters_t *n)
{
    ldr_sums_t sum = {.not_found = n->asked_chunks - n->found_chunks};

    for (unsigned i = 0; i < LARDER_TIERS_MAX; i++) {
        sum.hits += n->loads[i];
    }
    for (int i = 0; i < LARDER_CAUSE_COUNT; i++) {
        sum.misses += n->misses[i];
    }
    return sum;
}

/* Who asks now goes before who did much once, or a new model would not be seen
 * behind all those before it. */
static uint64_t busy(const ldr_space_stats_t *s, uint32_t now_s)
{
    uint64_t done = s->sum.hits + s->sum.misses + s->n.asked_chunks +
                    s->n.saves_stored + s->chunks;
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

/* ---- all of it ---- */

/* One that nobody has opened since the start has no tenant yet, and nothing
 * to show. */
static void by_space(ldr_node_t *node, uint32_t tenant, ldr_exposition_t *e)
{
    typedef struct shown {
        ldr_space_stats_t rows[LDR_SPACES_SHOWN];
        ldr_subject_t subjects[LDR_SPACES_SHOWN];
        char names[LDR_SPACES_SHOWN][LDR_NAME_MAX];
        char ids[LDR_SPACES_SHOWN][LDR_SPACE_LABEL];
    } shown_t;
    shown_t *s = ldr_alloc(sizeof(*s));
    unsigned count = 0;
    uint32_t known;

    if (s == NULL) {
        return;
    }
    unsigned all = ldr_node_busiest(node, tenant, s->rows, &known);
    for (unsigned i = 0; i < all; i++) {
        const ldr_space_stats_t *row = &s->rows[i];
        char *name = s->names[count], *id = s->ids[count];

        if (ldr_node_tenant_label(node, row->tenant, name)) {
            ldr_space_label(row->id, id);
            s->subjects[count++] = (ldr_subject_t){row, {name, id}};
            if (row->label[0] != '\0') {
                ldr_metric_put(e, LDR_METRIC_space_info,
                               LDR_LABELS(name, id, row->label), 1);
            }
        }
    }
    ldr_figures_put(e, ldr_rows_space, s->subjects, count);
    ldr_free(s);
}

/* Metric by metric, so each tenant's figures are taken once, before. */
static void by_tenant(ldr_node_t *node, uint32_t tenant, const ldr_more_t *more,
                      ldr_exposition_t *e)
{
    uint32_t first = tenant != LDR_NIL ? tenant : 0, count = 0;

    ldr_node_lock(node);
    uint32_t max = tenant != LDR_NIL ? 1 : node->store.tenant_count;
    ldr_node_unlock(node);
    ldr_tenant_stats_t *rows = ldr_alloc(max * sizeof(*rows));
    ldr_subject_t *subjects = ldr_alloc(max * sizeof(*subjects));
    while (rows != NULL && subjects != NULL && count < max &&
           ldr_node_tenant_stats(node, first + count, &rows[count])) {
        name_by_id(rows[count].id, rows[count].name);
        subjects[count] = (ldr_subject_t){&rows[count], {rows[count].name}};
        count++;
    }
    ldr_figures_put(e, ldr_rows_tenant, subjects, count);
    for (uint32_t i = 0; i < count && more != NULL; i++) {
        subjects[i].at = (const char *)more->at + (first + i) * more->bytes;
    }
    if (more != NULL) {
        ldr_figures_put(e, more->rows, subjects, count);
    }
    ldr_free(subjects);
    ldr_free(rows);
}

void ldr_node_figures(ldr_node_t *node, ldr_node_figures_t *f)
{
    uint64_t saved = 0, carried = 0;

    *f = (ldr_node_figures_t){.poisoned = ldr_broken_text() != NULL,
                              .load_times = &node->load_times,
                              .save_times = &node->save_times};
    ldr_node_stats(node, LDR_NIL, &f->s);
    ldr_node_queues(node, &f->q);
    ldr_node_lock(node);
    f->spaces = node->store.space_count;
    f->mode[node->mode] = 1;
    ldr_node_unlock(node);
    for (uint64_t i = 0; i < f->s.disks; i++) {
        saved += f->s.disk[i].written_bytes;
        carried += f->s.disk[i].carried_bytes;
    }
    f->write_amplification.value =
        saved >= 1000 ? 1000 + carried / (saved / 1000) : 1000;
}

void ldr_node_expose(ldr_node_t *node, uint32_t tenant, const ldr_more_t *more,
                     ldr_exposition_t *e)
{
    ldr_node_figures_t f;

    by_tenant(node, tenant, more, e);
    by_space(node, tenant, e);
    if (tenant != LDR_NIL) {
        return;
    }
    ldr_node_figures(node, &f);
    ldr_figures_put(e, ldr_rows_node, &(ldr_subject_t){&f, {NULL}}, 1);
    if (f.s.disks > 0) {
        ldr_metric_put_fixed(e, LDR_METRIC_write_amplification_ratio,
                             LDR_NO_LABELS, f.write_amplification.value, 3);
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
    ldr_node_expose(node, LDR_NIL, NULL, &e);
    return e.text.length;
}
