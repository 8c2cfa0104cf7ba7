/* What is set of one back end of the simulated store. */
#include <stdio.h>

#include "sim/simstore_int.h"

uint64_t simstore_calls(const ldr_backend_t *b)
{
    return ((const view_t *)b)->calls;
}

void simstore_crash_at(ldr_backend_t *b, uint64_t nth)
{
    view_t *v = (view_t *)b;

    v->crash_at = v->calls + nth;
}

bool simstore_crashed(const ldr_backend_t *b)
{
    return ((const view_t *)b)->crashed;
}

void simstore_fail(ldr_backend_t *b, simstore_kind_t kind, uint64_t nth,
                   uint64_t times, int error)
{
    view_t *v = (view_t *)b;

    pthread_mutex_lock(&v->store->lock);
    v->armed[kind].nth = nth;
    v->armed[kind].times = times;
    v->armed[kind].error = error;
    v->armed[kind].seen = 0;
    pthread_mutex_unlock(&v->store->lock);
}

void simstore_noise(ldr_backend_t *b, unsigned per_mille)
{
    view_t *v = (view_t *)b;

    pthread_mutex_lock(&v->store->lock);
    v->noise = per_mille;
    pthread_mutex_unlock(&v->store->lock);
}

void simstore_stale(ldr_backend_t *b, unsigned per_mille, unsigned changes)
{
    view_t *v = (view_t *)b;

    pthread_mutex_lock(&v->store->lock);
    v->stale = per_mille;
    v->stale_by = changes;
    pthread_mutex_unlock(&v->store->lock);
}

void simstore_before(ldr_backend_t *b, void (*fn)(void *arg), void *arg)
{
    ((view_t *)b)->before = fn;
    ((view_t *)b)->before_arg = arg;
}

void simstore_garble(ldr_backend_t *b, const char *name, uint64_t times)
{
    view_t *v = (view_t *)b;

    pthread_mutex_lock(&v->store->lock);
    snprintf(v->garbled, sizeof(v->garbled), "%s", name);
    v->garbled_times = times;
    pthread_mutex_unlock(&v->store->lock);
}

void simstore_pages(ldr_backend_t *b, size_t names, const ldr_clock_t *clock)
{
    ((view_t *)b)->page = names;
    ((view_t *)b)->clock = clock;
}

void simstore_hang(ldr_backend_t *b, simstore_kind_t kind, bool hangs)
{
    view_t *v = (view_t *)b;

    pthread_mutex_lock(&v->store->lock);
    v->hangs[kind] = hangs;
    pthread_cond_broadcast(&v->store->woken);
    pthread_mutex_unlock(&v->store->lock);
}

unsigned simstore_hanging(const ldr_backend_t *b)
{
    const view_t *v = (const view_t *)b;

    pthread_mutex_lock(&v->store->lock);
    unsigned n = v->hanging;
    pthread_mutex_unlock(&v->store->lock);
    return n;
}
