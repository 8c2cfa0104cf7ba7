/* What the daemon counts, and its slowest requests. Counters are atomic; the
 * list of slow requests, sorted with the slowest first, is under slow_lock, and
 * slow_floor_ns says without it whether a request belongs there. */
#include "server/metrics.h"

#include <string.h>

#include "base/mem.h"
#include "base/thread.h"

bool ldr_metrics_create(const ldr_clock_t *clock,
                        ldr_server_metrics_t **metrics_p)
{
    ldr_server_metrics_t *m = ldr_alloc(sizeof(*m));

    if (m == NULL) {
        return false;
    }
    m->clock = clock;
    m->start_ms = ldr_wall_ms(clock);
    ldr_mutex_init(&m->slow_lock);
    *metrics_p = m;
    return true;
}

void ldr_metrics_destroy(ldr_server_metrics_t *m)
{
    if (m != NULL) {
        pthread_mutex_destroy(&m->slow_lock);
        ldr_free(m);
    }
}

ldr_outcome_t ldr_metrics_outcome(larder_status_t status)
{
    switch (status) {
    case LARDER_MISS:
        return LDR_OUTCOME_MISS;
    case LARDER_E_BUSY:
    case LARDER_E_FULL:
    case LARDER_E_LIMIT:
    case LARDER_E_NO_MEMORY:
        return LDR_OUTCOME_BUSY;
    case LARDER_E_DEADLINE:
    case LARDER_E_CANCELED:
        return LDR_OUTCOME_LATE;
    case LARDER_E_DENIED:
        return LDR_OUTCOME_DENIED;
    default:
        return status >= 0 ? LDR_OUTCOME_OK : LDR_OUTCOME_FAILED;
    }
}

/* Forgets what is old, and sets the floor: while there is room everything may
 * come in. The slowest are the first. */
static void slow_settle(ldr_server_metrics_t *m, uint64_t now_ms)
{
    unsigned kept = 0;

    LDR_HELD(&m->slow_lock);
    LDR_ASSERT(m->slow_count <= LDR_METRICS_SLOW);
    for (unsigned i = 0; i < m->slow_count; i++) {
        /* A clock that was set back makes none of them older. */
        if (now_ms < m->slow[i].when_ms + LDR_METRICS_SLOW_S * 1000) {
            m->slow[kept++] = m->slow[i];
        }
    }
    m->slow_count = kept;
    __atomic_store_n(&m->slow_floor_ns,
                     kept < LDR_METRICS_SLOW ? 0 : m->slow[kept - 1].ns,
                     __ATOMIC_RELAXED);
}

void ldr_metrics_slow(ldr_server_metrics_t *m, const ldr_request_note_t *r)
{
    uint64_t now_ms = ldr_wall_ms(m->clock);

    ldr_mutex_lock(&m->slow_lock);
    slow_settle(m, now_ms);
    if (r->ns > m->slow_floor_ns) {
        unsigned at = m->slow_count < LDR_METRICS_SLOW ? m->slow_count++
                                                       : LDR_METRICS_SLOW - 1;

        for (; at > 0 && m->slow[at - 1].ns < r->ns; at--) {
            m->slow[at] = m->slow[at - 1];
        }
        m->slow[at] = (ldr_slow_t){
            .ns = r->ns,
            .bytes = r->bytes_in + r->bytes_out,
            .when_ms = now_ms,
            .opcode = r->opcode,
            .transport = r->transport,
            .tenant = r->tenant,
            .space = r->space,
            .status = r->status,
        };
        slow_settle(m, now_ms);
    }
    ldr_mutex_unlock(&m->slow_lock);
}

unsigned ldr_metrics_slowest(ldr_server_metrics_t *m,
                             ldr_slow_t out[LDR_METRICS_SLOW])
{
    ldr_mutex_lock(&m->slow_lock);
    slow_settle(m, ldr_wall_ms(m->clock));
    unsigned count = m->slow_count;
    memcpy(out, m->slow, count * sizeof(*out));
    ldr_mutex_unlock(&m->slow_lock);
    return count;
}
