/* What people see of the peer tier: a row of figures for each member. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tier/peer/homes.h"

/* With the lock. */
static void look(const ldr_peer_node_t *n, ldr_peer_figures_t *row)
{
    *row = (ldr_peer_figures_t){
        .n = n->n,
        .well = ldr_peer_well(n) && n->informed > 0,
        .behind = n->informed < n->tier->wanted,
        .leased = n->leased,
        .same_view = n->same_view,
        .knows = n->knows,
        .skew_s = n->skew_s,
        .trip = {n->trip_us},
    };
}

bool ldr_peers_figures(ldr_peers_t *p, const char *name,
                       ldr_peer_figures_t *row, char *why, size_t size)
{
    bool found = false;

    ldr_host_lock(p->host);
    for (unsigned i = 0; i < p->node_count && !found; i++) {
        const ldr_peer_node_t *n = p->nodes[i];

        found = strcmp(n->name, name) == 0;
        if (found) {
            look(n, row);
            snprintf(why, size, "%s", n->why);
        }
    }
    ldr_host_unlock(p->host);
    return found;
}

ldr_homes_figures_t ldr_peers_homes(ldr_peers_t *p)
{
    ldr_host_lock(p->host);
    ldr_homes_figures_t f = {.known = ldr_homes_count(p->homes),
                             .dropped = p->homes_dropped,
                             .copies = p->copied};
    ldr_host_unlock(p->host);
    return f;
}

static void put_queue(ldr_peers_t *p, ldr_exposition_t *e)
{
    ldr_host_lock(p->host);
    const ldr_behind_t *q = &p->host->store.queues[LDR_PEER_QUEUE];
    uint64_t count = q->count + q->hands[0] + q->hands[1], bytes = q->bytes;
    uint64_t lag_ns = count > 0 ? ldr_peers_now(p) - p->caught_up_ns : 0;
    ldr_host_unlock(p->host);
    ldr_homes_figures_t homes = ldr_peers_homes(p);
    ldr_metric_put(e, LDR_METRIC_peer_homes, LDR_NO_LABELS, homes.known);
    ldr_metric_put(e, LDR_METRIC_peer_homes_dropped_total, LDR_NO_LABELS,
                   homes.dropped);
    ldr_metric_put(e, LDR_METRIC_peer_copies_total, LDR_NO_LABELS,
                   homes.copies);
    ldr_metric_put(e, LDR_METRIC_peer_queue_shards, LDR_NO_LABELS, count);
    ldr_metric_put(e, LDR_METRIC_peer_queue_bytes, LDR_NO_LABELS, bytes);
    ldr_metric_put_fixed(e, LDR_METRIC_peer_lag_seconds, LDR_NO_LABELS,
                         lag_ns / 1000000u, 3);
}

typedef struct reason {
    char text[sizeof(((ldr_peer_node_t *)NULL)->why)];
} reason_t;

void ldr_peer_metrics(ldr_tier_t *t, ldr_exposition_t *e)
{
    ldr_peers_t *p = (ldr_peers_t *)t;

    ldr_host_lock(p->host);
    unsigned count = p->node_count;
    ldr_peer_figures_t *rows = ldr_alloc((count + 1) * sizeof(*rows));
    ldr_subject_t *subjects = ldr_alloc((count + 1) * sizeof(*subjects));
    reason_t *reasons = ldr_alloc((count + 1) * sizeof(*reasons));
    bool made = rows != NULL && subjects != NULL && reasons != NULL;
    for (unsigned i = 0; made && i < count; i++) {
        look(p->nodes[i], &rows[i]);
        memcpy(reasons[i].text, p->nodes[i]->why, sizeof(reasons[i].text));
        subjects[i] = (ldr_subject_t){&rows[i], {p->nodes[i]->name}};
    }
    ldr_host_unlock(p->host);
    put_queue(p, e);
    for (unsigned i = 0; made && i < count; i++) {
        ldr_metric_put(e, LDR_METRIC_peer_reason,
                       LDR_LABELS(subjects[i].labels[0], reasons[i].text),
                       reasons[i].text[0] != '\0');
    }
    if (made) {
        ldr_figures_put(e, ldr_rows_peer, subjects, count);
    }
    ldr_free(rows);
    ldr_free(subjects);
    ldr_free(reasons);
}
