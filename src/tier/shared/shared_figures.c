/*
 * What people see of the shared tier: figures and metrics, which are read with
 * the node's lock; and what is wrong with its options, before there is a tier.
 */
#include <stdio.h>
#include <string.h>

#include "net/auth.h"
#include "tier/shared/shared.h"
#include "tier/shared/backend.h"

/* ---- figures ---- */

static void stats_fill(const ldr_shared_t *shared, const ldr_objects_stats_t *o,
                       larder_shared_stats_t *s)
{
    const ldr_host_t *host = shared->host;

    ldr_host_held(host);
    snprintf(s->url, sizeof(s->url), "%s", host->options.shared);
    snprintf(s->reason, sizeof(s->reason), "%s", o->reason);
    s->on = o->state != LDR_OBJECTS_OFF;
    s->writable = o->state == LDR_OBJECTS_ON;
    s->objects = o->objects;
    s->shards = o->shards;
    s->bytes = o->bytes;
    s->dead_bytes = o->dead_bytes;
    s->map_bytes = o->map_bytes;
    s->waiting_shards = host->store.queues[LDR_SHARED_QUEUE].count;
    s->read_bytes = o->read_bytes;
    s->written_bytes = o->written_bytes;
    s->read_errors = o->read_errors;
    s->write_errors = o->write_errors;
    s->gone = o->gone;
    s->corrupt = o->corrupt;
    s->cleaner = o->cleaner;
    s->cleaned_objects = o->cleaned_objects;
    s->cleaned_bytes = o->cleaned_bytes;
}

void ldr_shared_stats(ldr_tier_t *t, bool whole, larder_stats_t *out)
{
    const ldr_shared_t *shared = (const ldr_shared_t *)t;
    ldr_objects_stats_t o;

    if (whole) {
        ldr_objects_stats(shared->tier, &o);
        stats_fill(shared, &o, &out->shared_tier);
        out->shared = 1;
    }
}

void ldr_shared_times(ldr_tier_t *t, ldr_histogram_t *reads,
                      ldr_histogram_t *writes)
{
    const ldr_shared_t *s = (const ldr_shared_t *)t;

    ldr_histogram_read(&s->read_times, reads);
    ldr_histogram_read(&s->write_times, writes);
}

void ldr_shared_metrics(ldr_tier_t *tier, ldr_exposition_t *e)
{
    const ldr_shared_t *shared = (const ldr_shared_t *)tier;
    ldr_shared_figures_t f = {.reads = &shared->read_times,
                              .writes = &shared->write_times};
    ldr_objects_stats_t o;

    ldr_objects_stats(shared->tier, &o);
    ldr_host_lock(shared->host);
    stats_fill(shared, &o, &f.s);
    f.open = shared->open_count;
    ldr_host_unlock(shared->host);
    f.live_bytes = o.bytes - o.dead_bytes;
    f.stuck = o.workers.stuck;
    f.polled.value = o.polled_ms;
    ldr_metric_put(e, LDR_METRIC_shared_reason, LDR_LABELS(f.s.reason),
                   f.s.reason[0] != '\0');
    ldr_figures_put(e, ldr_rows_shared, &(ldr_subject_t){&f, {NULL}}, 1);
}

/* ---- options ---- */

/* Its URL and the files with its secrets; the storage is not asked. */
larder_status_t ldr_shared_check(const ldr_options_t *o,
                                 const ldr_predecessor_t *owner)
{
    ldr_backend_params_t params = {
        .url = o->shared,
        .login = o->shared_login,
        .threads = (unsigned)o->shared_lanes,
        .log = {ldr_log_silent, NULL},
        .clock = &ldr_clock_real,
    };
    ldr_token_t tokens[LDR_TOKENS_MAX];
    ldr_backend_t *backend;
    unsigned count = 0;

    (void)owner;
    if (o->shared[0] == '\0') {
        return LARDER_OK;
    }
    larder_status_t st = ldr_backend_open(&params, &backend);
    if (st == LARDER_OK) {
        backend->ops->destroy(backend);
    }
    if (st == LARDER_OK && o->shared_key[0] != '\0') {
        st = ldr_tokens_read(o->shared_key, tokens, &count);
        explicit_bzero(tokens, sizeof(tokens));
    }
    return st;
}
