/* What people see of the shared tier: figures and metrics, and what is wrong
 * with its options before it is opened. */
#include <stdio.h>
#include <string.h>

#include "net/auth.h"
#include "tier/shared/shared.h"
#include "tier/shared/backend.h"

/* ---- figures ---- */

void ldr_shared_stats(ldr_tier_t *t, bool whole, larder_stats_t *out)
{
    const ldr_shared_t *shared = (const ldr_shared_t *)t;
    larder_shared_stats_t *s = &out->shared_tier;
    ldr_objects_stats_t o;

    if (!whole) {
        return;
    }
    ldr_objects_stats(shared->tier, &o);
    out->shared = 1;
    snprintf(s->url, sizeof(s->url), "%s", t->host->options.shared);
    snprintf(s->reason, sizeof(s->reason), "%s", o.reason);
    s->on = o.state != LDR_OBJECTS_OFF;
    s->writable = o.state == LDR_OBJECTS_ON;
    s->objects = o.objects;
    s->shards = o.shards;
    s->bytes = o.bytes;
    s->dead_bytes = o.dead_bytes;
    s->map_bytes = o.map_bytes;
    s->waiting_shards = t->host->store.queues[LDR_SHARED_QUEUE].count;
    s->read_bytes = o.read_bytes;
    s->written_bytes = o.written_bytes;
    s->read_errors = o.read_errors;
    s->write_errors = o.write_errors;
    s->gone = o.gone;
    s->corrupt = o.corrupt;
    s->cleaner = o.cleaner;
    s->cleaned_objects = o.cleaned_objects;
    s->cleaned_bytes = o.cleaned_bytes;
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
    const ldr_shared_t *s = (const ldr_shared_t *)tier;
    ldr_objects_stats_t t;

    ldr_objects_stats(s->tier, &t);
    ldr_host_lock(s->host);
    uint64_t waiting = s->host->store.queues[LDR_SHARED_QUEUE].count,
             open = s->open_count;
    ldr_host_unlock(s->host);
    ldr_metric_put(e, LDR_METRIC_SHARED_ON, LDR_LABELS("read"),
                   t.state != LDR_OBJECTS_OFF);
    ldr_metric_put(e, LDR_METRIC_SHARED_ON, LDR_LABELS("write"),
                   t.state == LDR_OBJECTS_ON);
    ldr_metric_put(e, LDR_METRIC_SHARED_REASON, LDR_LABELS(t.reason),
                   t.reason[0] != '\0');
    ldr_metric_put(e, LDR_METRIC_SHARED_OPEN, LDR_NO_LABELS, open);
    ldr_metric_put(e, LDR_METRIC_SHARED_OBJECTS, LDR_NO_LABELS, t.objects);
    ldr_metric_put(e, LDR_METRIC_SHARED_SHARDS, LDR_NO_LABELS, t.shards);
    ldr_metric_put(e, LDR_METRIC_SHARED_BYTES, LDR_LABELS("live"),
                   t.bytes - t.dead_bytes);
    ldr_metric_put(e, LDR_METRIC_SHARED_BYTES, LDR_LABELS("dead"),
                   t.dead_bytes);
    ldr_metric_put(e, LDR_METRIC_SHARED_MAP_BYTES, LDR_NO_LABELS, t.map_bytes);
    ldr_metric_put(e, LDR_METRIC_SHARED_WAITING, LDR_NO_LABELS, waiting);
    ldr_metric_put(e, LDR_METRIC_SHARED_MOVED, LDR_LABELS("read"),
                   t.read_bytes);
    ldr_metric_put(e, LDR_METRIC_SHARED_MOVED, LDR_LABELS("write"),
                   t.written_bytes);
    ldr_metric_put(e, LDR_METRIC_SHARED_ERRORS, LDR_LABELS("read"),
                   t.read_errors);
    ldr_metric_put(e, LDR_METRIC_SHARED_ERRORS, LDR_LABELS("write"),
                   t.write_errors);
    ldr_metric_put(e, LDR_METRIC_SHARED_LOST, LDR_LABELS("gone"), t.gone);
    ldr_metric_put(e, LDR_METRIC_SHARED_LOST, LDR_LABELS("corrupt"), t.corrupt);
    ldr_metric_put_histogram(e, LDR_METRIC_SHARED_SECONDS, LDR_LABELS("read"),
                             &s->read_times);
    ldr_metric_put_histogram(e, LDR_METRIC_SHARED_SECONDS, LDR_LABELS("write"),
                             &s->write_times);
    ldr_metric_put(e, LDR_METRIC_SHARED_STUCK, LDR_NO_LABELS, t.workers.stuck);
    ldr_metric_put_fixed(e, LDR_METRIC_SHARED_FOLLOWED, LDR_NO_LABELS,
                         t.polled_ms, 3);
    ldr_metric_put(e, LDR_METRIC_SHARED_CLEANER, LDR_NO_LABELS, t.cleaner);
    ldr_metric_put(e, LDR_METRIC_SHARED_CLEANED, LDR_NO_LABELS,
                   t.cleaned_bytes);
}

/* ---- options ---- */

static void silent(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

/* Its URL and the files with its secrets; the storage is not asked. */
larder_status_t ldr_shared_check(const ldr_options_t *o,
                                 const ldr_predecessor_t *owner)
{
    ldr_backend_params_t params = {
        .url = o->shared,
        .login = o->shared_login,
        .lanes = (unsigned)o->shared_lanes,
        .log = {silent, NULL},
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
