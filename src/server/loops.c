/*
 * The daemon's loops: their hooks, their start and their end. Hooks run in the
 * thread of their loop, and only they touch its sessions. revoke_lock guards
 * the ring of extents that sessions must give back; a loop that is so far
 * behind that the ring has gone round asks for all of them.
 */
#include <stddef.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "node/promise.h"
#include "server/session.h"

#define CHECK_NS 50000000u /* between looks at all sessions of a loop */

static ldr_server_loop_t *home_of(ldr_loop_t *loop)
{
    return (ldr_server_loop_t *)loop;
}

static ldr_loop_found_t hook_poll(ldr_loop_t *loop)
{
    ldr_server_loop_t *home = home_of(loop);
    bool waits = ldr_turns_run(home);
    ldr_loop_found_t found = ldr_rings_poll(home);

    return waits ? LDR_LOOP_BUSY : found;
}

static bool hook_sleep(ldr_loop_t *loop)
{
    return ldr_rings_sleep(home_of(loop));
}

static uint64_t hook_tick(ldr_loop_t *loop, uint64_t now_ns)
{
    ldr_server_loop_t *home = home_of(loop);
    ldr_session_t *next;

    if (LDR_DEBUG && now_ns >= home->check_ns) {
        home->check_ns = now_ns + CHECK_NS;
        LDR_ASSERT(ldr_sessions_check(home));
    }
    if (now_ns < home->due_ns) {
        return home->due_ns;
    }
    home->due_ns = UINT64_MAX;
    for (ldr_session_t *s = home->sessions; s != NULL; s = next) {
        next = s->next;
        ldr_server_due(home, ldr_session_tick(s, now_ns));
    }
    ldr_server_due(home, ldr_listen_tick(home, now_ns));
    ldr_server_due(home, ldr_promise_expire(home->server->node));
    return home->due_ns;
}

static const ldr_loop_hooks_t hooks = {hook_poll, hook_sleep, hook_tick};

/* Extents that the node wants back, or the end of all sessions. */
static void sessions_look(ldr_task_t *task)
{
    ldr_server_loop_t *home =
        (ldr_server_loop_t *)((char *)task - offsetof(ldr_server_loop_t, look));
    ldr_server_t *server = home->server;

    for (;;) {
        uint32_t extent = 0, generation = 0;

        ldr_mutex_lock(&server->revoke_lock);
        uint64_t count = server->revoke_count;
        bool missed = count - home->revoke_seen > LDR_REVOKES;
        if (missed) {
            home->revoke_seen = count;
        }
        bool any = home->revoke_seen < count;
        if (any) {
            uint64_t at = home->revoke_seen++ % LDR_REVOKES;

            extent = server->revokes[at].extent;
            generation = server->revokes[at].generation;
        }
        ldr_mutex_unlock(&server->revoke_lock);
        if (!any && !missed) {
            break;
        }
        ldr_session_t *next;
        for (ldr_session_t *s = home->sessions; s != NULL; s = next) {
            next = s->next;
            if (missed) { /* which ones is not known any more: all */
                ldr_session_revoke_all(s);
            } else {
                ldr_session_revoke(s, extent, generation);
            }
        }
    }
    while (__atomic_load_n(&home->drop, __ATOMIC_ACQUIRE) &&
           home->sessions != NULL) {
        ldr_session_drop(home->sessions);
    }
}

void ldr_server_revoke(void *arg, uint32_t extent, uint32_t generation)
{
    ldr_server_t *server = arg;

    ldr_mutex_lock(&server->revoke_lock);
    uint64_t at = server->revoke_count++ % LDR_REVOKES;
    server->revokes[at].extent = extent;
    server->revokes[at].generation = generation;
    ldr_mutex_unlock(&server->revoke_lock);
    ldr_metrics_event(server->metrics, LDR_EVENT_EXTENTS_RECLAIMED, 1);
    for (unsigned i = 0; i < server->loop_count; i++) {
        ldr_loop_post(&server->loops[i].loop, &server->loops[i].look);
    }
}

/* One loop is as fast as one core sends and receives; where there are many
 * cores, connections shall not have to share one. */
static unsigned loops_wanted(const ldr_server_t *server)
{
    uint64_t given = server->config->options.loops;

    return (unsigned)(given > 0 ? given
                                : ldr_max64(1, ldr_min64(4, ldr_cpus() / 4)));
}

larder_status_t ldr_server_loops_open(ldr_server_t *server)
{
    unsigned count = loops_wanted(server);
    uint64_t spin_ns = server->config->options.spin_us * 1000u;

    server->loops = ldr_alloc(count * sizeof(*server->loops));
    if (server->loops == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for loops");
    }
    for (unsigned i = 0; i < count; i++) {
        ldr_server_loop_t *home = &server->loops[i];
        larder_status_t st =
            ldr_loop_init(&home->loop, server, &hooks, server->clock, spin_ns);

        if (st != LARDER_OK) {
            return st;
        }
        server->loop_count++;
        home->server = server;
        home->due_ns = UINT64_MAX;
        home->look.run = sessions_look;
        home->reply = ldr_alloc(LDR_FRAME_BYTES + LDR_BODY_MAX);
        home->in = ldr_alloc(LDR_FRAME_BYTES + LDR_BODY_MAX);
        home->dump = ldr_alloc(LDR_DUMP_BYTES);
        home->shares =
            ldr_alloc((LDR_SERVER_TENANTS_MAX + 1) * sizeof(ldr_share_t));
        if (home->reply == NULL || home->in == NULL || home->dump == NULL ||
            home->shares == NULL) {
            return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for loops");
        }
    }
    return LARDER_OK;
}

larder_status_t ldr_server_loops_start(ldr_server_t *server)
{
    for (unsigned i = 0; i < server->loop_count; i++) {
        if (!ldr_loop_start(&server->loops[i].loop, "larder-loop")) {
            return ldr_fail(LARDER_E_NO_MEMORY,
                            "event loop %u cannot be started", i);
        }
    }
    return LARDER_OK;
}

void ldr_server_loops_close(ldr_server_t *server)
{
    for (unsigned i = 0; i < server->loop_count; i++) {
        ldr_server_loop_t *home = &server->loops[i];

        if (home->loop.started) {
            __atomic_store_n(&home->drop, true, __ATOMIC_RELEASE);
            ldr_loop_post(&home->loop, &home->look);
            ldr_loop_stop(&home->loop);
        }
    }
}
