/* What people see of the peer tier: a row of figures for each member. */
#include "base/mem.h"
#include "tier/peer/peer.h"

void ldr_peer_metrics(ldr_tier_t *t, ldr_exposition_t *e)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    ldr_peer_figures_t *rows;
    ldr_subject_t *subjects;

    ldr_host_lock(p->host);
    unsigned count = p->node_count;
    rows = ldr_alloc((count + 1) * sizeof(*rows));
    subjects = ldr_alloc((count + 1) * sizeof(*subjects));
    for (unsigned i = 0; rows != NULL && subjects != NULL && i < count; i++) {
        const ldr_peer_node_t *n = p->nodes[i];

        rows[i].n = n->n;
        rows[i].well = ldr_peer_well(n) && n->informed > 0;
        rows[i].behind = n->informed < p->wanted;
        rows[i].leased = n->leased;
        subjects[i] = (ldr_subject_t){&rows[i], {n->name}};
    }
    ldr_host_unlock(p->host);
    if (rows != NULL && subjects != NULL) {
        ldr_figures_put(e, ldr_rows_peer, subjects, count);
    }
    ldr_free(rows);
    ldr_free(subjects);
}
