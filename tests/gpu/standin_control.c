/* Control of the driver's stand-in: standin.h. */
#include <string.h>

#include "gpu/standin_int.h"

#define X(type, name, parameters) type name parameters;
STANDIN_MAP(X)
#undef X

void standin_seed(uint64_t seed)
{
    pthread_mutex_lock(&standin.lock);
    standin.rand = (seed * 2654435769u + 1) | 1u << 20;
    pthread_mutex_unlock(&standin.lock);
}

void standin_fail_at(uint64_t n, int result, int how)
{
    pthread_mutex_lock(&standin.lock);
    standin.fail_in = n;
    standin.fail_result = result;
    standin.fail_how = how;
    standin.failed = NULL;
    standin.dead = false;
    pthread_mutex_unlock(&standin.lock);
}

const char *standin_failed(void)
{
    return standin.failed;
}

void standin_hook(standin_hook_fn fn, void *arg)
{
    pthread_mutex_lock(&standin.lock);
    standin.hook = fn;
    standin.hook_arg = arg;
    pthread_mutex_unlock(&standin.lock);
}

void standin_counts(standin_counts_t *out)
{
    pthread_mutex_lock(&standin.lock);
    *out = standin.counts;
    pthread_mutex_unlock(&standin.lock);
}

const char *standin_errors(void)
{
    static __thread char text[sizeof(standin.errors)];

    pthread_mutex_lock(&standin.lock);
    memcpy(text, standin.errors, sizeof(text));
    standin.errors[0] = 0;
    standin.counts.errors = 0;
    pthread_mutex_unlock(&standin.lock);
    return text;
}

void *standin_see(uint64_t at, size_t bytes)
{
    pthread_mutex_lock(&standin.lock);
    void *memory = standin_resolve(at, bytes, false, "standin_see");
    pthread_mutex_unlock(&standin.lock);
    return memory;
}

uint64_t standin_touching(uint64_t at, size_t bytes)
{
    pthread_mutex_lock(&standin.lock);
    uint64_t n = standin_touched(at, bytes);
    pthread_mutex_unlock(&standin.lock);
    return n;
}

int standin_depth(void)
{
    return standin_thread_depth;
}

int standin_mode(void)
{
    return standin_thread_mode;
}

void standin_hollow(bool hollow)
{
    pthread_mutex_lock(&standin.lock);
    standin.hollow = hollow;
    pthread_mutex_unlock(&standin.lock);
}

void standin_refuse_batches(bool refuse)
{
    pthread_mutex_lock(&standin.lock);
    standin.refuses_batches = refuse;
    pthread_mutex_unlock(&standin.lock);
}

void standin_reset(void)
{
    pthread_mutex_lock(&standin.lock);
    for (uint32_t i = 0; i < STANDIN_STREAMS; i++) {
        standin_drop(&standin.streams[i]);
        standin.streams[i].alive = false;
    }
    for (uint32_t i = 0; i < STANDIN_EVENTS; i++) {
        standin_forget(standin.events[i].latest);
        standin.events[i] = (struct CUevent_st){false, NULL};
    }
    standin_memory_reset();
    standin.live_count = 0;
    standin.counts = (standin_counts_t){0};
    standin.errors[0] = 0;
    standin.fail_in = 0;
    standin.dead = standin.refuses_batches = false;
    standin_context.retained = 0;
    standin_thread_depth = standin_thread_mode = 0;
    pthread_mutex_unlock(&standin.lock);
}

void standin_machine(int init, int count, int processors)
{
    standin.init_result = init;
    standin.devices = count;
    standin.processors = processors;
}
