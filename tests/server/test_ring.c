/*
 * Rings whose other end does not stop: a session that ends hears its last
 * words, and no more than a ring holds of them.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/thread.h"
#include "server/session.h"

/* Messages that fill a ring, again and again without being written anew. */
#define MESSAGES 4u
#define RECORD (LDR_RING_BYTES / MESSAGES)
#define BODY (RECORD - sizeof(uint32_t) - LDR_FRAME_BYTES)
#define ROUNDS 30u

_Static_assert(BODY <= LDR_BODY_MAX, "one that is read");

typedef struct rig {
    ldr_server_t *server;
    ldr_server_loop_t home;
    ldr_session_t session;
    uint8_t *map;
    pthread_t peer;
    bool end;
    uint64_t turns; /* of the peer */
} rig_t;

/* Full it is, whatever was read of it. */
static void fill(rig_t *rig)
{
    ldr_ring_shared_t *shared = (ldr_ring_shared_t *)(void *)rig->map;
    uint32_t head = __atomic_load_n(&shared->to_server.head, __ATOMIC_ACQUIRE);

    __atomic_store_n(&shared->to_server.tail, head + LDR_RING_BYTES,
                     __ATOMIC_RELEASE);
}

static void *peer_main(void *arg)
{
    rig_t *rig = arg;

    while (!__atomic_load_n(&rig->end, __ATOMIC_RELAXED)) {
        fill(rig);
        __atomic_add_fetch(&rig->turns, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static int setup(void **state)
{
    ldr_frame_t frame = {.opcode = LDR_OP_PING, .body = BODY};
    uint32_t bytes = LDR_FRAME_BYTES + BODY;
    rig_t *rig = calloc(1, sizeof(*rig));

    rig->server = ldr_alloc(sizeof(*rig->server));
    rig->server->clock = &ldr_clock_real;
    assert_true(ldr_metrics_create(&ldr_clock_real, &rig->server->metrics));
    rig->home.server = rig->server;
    rig->home.in = ldr_alloc(LDR_FRAME_BYTES + LDR_BODY_MAX);
    rig->session.server = rig->server;
    rig->session.home = &rig->home;
    rig->session.attached = true;
    rig->map = ldr_alloc_blocks(LDR_RING_MAP_BYTES);
    memset(rig->map, 0, LDR_RING_MAP_BYTES);
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint8_t *at = rig->map + LDR_RING_HEAD + i * RECORD;

        memcpy(at, &bytes, sizeof(bytes));
        ldr_frame_put(at + sizeof(bytes), &frame, false);
    }
    ldr_ring_init(&rig->session.ring, rig->map, true);
    ldr_ring_stream(&rig->session.rings.stream, &rig->session.ring, 0);
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    rig_t *rig = *state;

    __atomic_store_n(&rig->end, true, __ATOMIC_RELAXED);
    if (rig->peer != 0) {
        pthread_join(rig->peer, NULL);
    }
    ldr_requests_destroy(&rig->home);
    ldr_metrics_destroy(rig->server->metrics);
    ldr_free(rig->home.in);
    ldr_free(rig->server);
    ldr_free(rig->map);
    free(rig);
    return 0;
}

/* It is over when a ring of them was heard, while the peer goes on: large ones
 * are fewer. */
static void test_last_words(void **state)
{
    rig_t *rig = *state;
    const ldr_ring_t *in = &rig->session.ring.in;

    fill(rig);
    assert_int_equal(pthread_create(&rig->peer, NULL, peer_main, rig), 0);
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t turns = __atomic_load_n(&rig->turns, __ATOMIC_RELAXED);
        uint32_t begin = in->position;

        /* It is at work, and the ring is full. */
        while (__atomic_load_n(&rig->turns, __ATOMIC_RELAXED) < turns + 2) {
            sched_yield();
        }
        ldr_session_last_words(&rig->session);
        assert_int_equal(in->position - begin, LDR_RING_BYTES);
    }
    assert_int_equal(rig->session.requests, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_last_words, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
