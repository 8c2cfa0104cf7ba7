/*
 * What a node does for its tiers without knowing them: waiting with the lock,
 * log lines that are said once the lock is given up, the table of tiers. Every
 * function needs the node's lock, except ldr_host_add_tier(), which takes it.
 *
 * Invariant: said[0..said_count) are lines nobody has written yet; whoever
 * gives up the lock writes them.
 */
#include "tier/host.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"

#define CANCEL_LOOK_NS 10000000u
#define OTHERS_NS 1000000u

/* In a manual node whose peers have threads, in a simulation: lets them go on
 * for a moment. False: it has none, or it is late. */
static bool wait_others(ldr_host_t *host, uint64_t deadline_ns)
{
    uint64_t now_ns = ldr_now_ns(host->clock);

    if (host->threads == NULL || now_ns >= deadline_ns) {
        return false;
    }
    ldr_host_tell(host);
    host->threads->wait(host->threads->arg, &host->changed, &host->lock,
                        ldr_min64(deadline_ns, now_ns + OTHERS_NS));
    return true;
}

bool ldr_host_wait(ldr_host_t *host, uint64_t deadline_ns)
{
    if (host->manual) {
        return ldr_host_step(host) || wait_others(host, deadline_ns);
    }
    return ldr_host_pause(host, deadline_ns);
}

bool ldr_host_pause(ldr_host_t *host, uint64_t deadline_ns)
{
    ldr_host_tell(host);
    if (host->manual || deadline_ns == UINT64_MAX) {
        pthread_cond_wait(&host->changed, &host->lock);
        return true;
    }
    return ldr_cond_wait_until(&host->changed, &host->lock, deadline_ns);
}

bool ldr_host_wait_stop(ldr_host_t *host, const ldr_stop_t *stop)
{
    if (ldr_host_stopped(host, stop) != LARDER_OK) {
        return false;
    }
    if (host->manual) {
        return ldr_host_step(host) || wait_others(host, stop->deadline_ns);
    }
    /* Nobody who cancels takes the lock, so look now and then. */
    uint64_t look_ns = ldr_now_ns(host->clock) + CANCEL_LOOK_NS;
    ldr_host_wait(host, ldr_min64(look_ns, stop->deadline_ns));
    return true;
}

void ldr_host_say(ldr_host_t *host, larder_log_level_t level,
                  const char *format, ...)
{
    va_list args;

    ldr_host_held(host);
    if (host->said_count < LDR_SAID_MAX) {
        ldr_said_t *said = &host->said[host->said_count++];

        said->level = level;
        said->format = format;
        va_start(args, format);
        vsnprintf(said->text, sizeof(said->text), format, args);
        va_end(args);
    }
}

void ldr_host_unlock_said(ldr_host_t *host)
{
    ldr_said_t said[LDR_SAID_MAX];
    unsigned count = host->said_count;
    ldr_log_t log = host->log;

    memcpy(said, host->said, count * sizeof(*said));
    host->said_count = 0;
    ldr_mutex_unlock(&host->lock); /* the node may be gone from here on */
    for (unsigned i = 0; i < count; i++) {
        ldr_log_line(&log, said[i].level, said[i].format, said[i].text);
    }
}

void (*ldr_host_walker)(const ldr_host_t *host);

void ldr_host_walk(ldr_host_t *host)
{
    if (host->walk_in > 0) {
        host->walk_in--;
        return;
    }
    host->walk_in = 256 + ldr_arena_table_pages(&host->store.arena) / 8 +
                    host->store.index.entry_top / 4;
    ldr_host_walker(host);
}

void ldr_host_add_tier(ldr_host_t *host, ldr_tier_t *tier)
{
    const ldr_tier_ops_t *ops = tier->ops;
    unsigned at = 0;

    ldr_host_lock(host); /* threads of others may be at work already */
    LDR_ASSERT(host->tier_count < LDR_QUEUES_MAX &&
               host->tiers[ldr_tier_queue(ops)] == NULL);
    while (at < host->tier_count && host->order[at]->ops->speed >= ops->speed) {
        at++;
    }
    memmove(&host->order[at + 1], &host->order[at],
            (host->tier_count - at) * sizeof(host->order[0]));
    host->order[at] = tier;
    host->tier_count++;
    host->tiers[ldr_tier_queue(ops)] = tier;
    host->speed[ops->number] = ops->speed;
    ldr_host_unlock(host);
}
