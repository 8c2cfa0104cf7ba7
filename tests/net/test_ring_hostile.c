/*
 * The rings when the client lies: positions and lengths that cannot be, and
 * threads that write over everything while the daemon reads. LARDER_SEED
 * repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/thread.h"
#include "net/ring_rig.h"
#include "support/real.h"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

static ldr_rand_t rnd;

static void test_impossible_positions(void **s)
{
    static const uint32_t tails[] = {1,
                                     4,
                                     7,
                                     LDR_RING_BYTES + 8,
                                     LDR_RING_BYTES + 1,
                                     0x7ffffff8,
                                     0x80000000u,
                                     (uint32_t)-8,
                                     UINT32_MAX};
    ldr_ring_pair_t server, client;
    uint8_t to[64];

    (void)s;
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        ldr_ring_shared_t *shared = pair_new(&server, &client, 4096);
        shared->to_server.tail = 4096 + tails[i];
        assert_int_equal(ldr_ring_read(&server.in, to, sizeof(to)), -1);
        assert_true(ldr_ring_broken(&server.in));

        shared->to_client.head = 4096 - tails[i];
        assert_false(ldr_ring_fits(&server.out, 1));
        assert_false(write_one(&server.out, "x", 1));
        assert_true(ldr_ring_broken(&server.out));
        assert_int_equal(shared->to_client.tail, 4096); /* nothing went out */
        map_free(shared);
    }
}

static void test_impossible_lengths(void **s)
{
    static const uint32_t lengths[] = {0,
                                       5, /* more than the 8 bytes there are */
                                       12,
                                       LDR_RING_MESSAGE_MAX,
                                       LDR_RING_MESSAGE_MAX + 1,
                                       LDR_RING_BYTES,
                                       0x7fffffff,
                                       0x80000000u,
                                       0xfffffff8u,
                                       0xfffffffcu,
                                       UINT32_MAX};
    ldr_ring_pair_t server, client;
    uint8_t to[64];

    (void)s;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        ldr_ring_shared_t *shared = pair_new(&server, &client, 0);
        shared->to_server.tail = 8;
        memcpy(server.in.data, &lengths[i], 4);
        assert_int_equal(ldr_ring_read(&server.in, to, sizeof(to)), -1);
        assert_true(ldr_ring_broken(&server.in));
        assert_int_equal(shared->to_server.head, 0);
        map_free(shared);
    }
    /* 1 to 4 bytes are all that may be in 8. */
    for (uint32_t length = 1; length <= 4; length++) {
        ldr_ring_shared_t *shared = pair_new(&server, &client, 0);
        shared->to_server.tail = 8;
        memcpy(server.in.data, &length, 4);
        assert_int_equal(ldr_ring_read(&server.in, to, sizeof(to)), length);
        map_free(shared);
    }
}

typedef struct hostile {
    uint8_t *map;
    uint32_t in, out; /* where the daemon truly is: it guesses well */
    bool stop;
    uint64_t seed;
} hostile_t;

/* Writes over all that it can, now and then something that looks right. */
static void *hostile_main(void *arg)
{
    hostile_t *h = arg;
    ldr_ring_shared_t *shared = (void *)h->map;
    uint8_t *data = h->map + LDR_RING_HEAD;
    ldr_rand_t r;

    ldr_rand_seed(&r, h->seed);
    while (!__atomic_load_n(&h->stop, __ATOMIC_RELAXED)) {
        uint64_t x = ldr_rand_next(&r);
        uint32_t head = __atomic_load_n(&h->in, __ATOMIC_RELAXED);
        volatile uint32_t *length = (void *)(data + (head & MASK & ~7u));
        switch (x % 8) {
        case 0: /* anything, anywhere */
            *(volatile uint8_t *)(h->map + (x >> 8) % LDR_RING_MAP_BYTES) =
                (uint8_t)(x >> 40);
            break;
        case 1: /* anything in the header */
            *(volatile uint8_t *)(h->map + (x >> 8) % sizeof(*shared)) =
                (uint8_t)(x >> 40);
            break;
        case 2: /* a length that flickers */
            *length = (uint32_t)(x >> 16) % 5000;
            *length = LDR_RING_MESSAGE_MAX;
            *length = 64;
            break;
        case 3: /* positions that cannot be */
            __atomic_store_n(&shared->to_client.head, (uint32_t)(x >> 12),
                             __ATOMIC_RELAXED);
            __atomic_store_n(&shared->to_server.tail,
                             head + (uint32_t)(x >> 12), __ATOMIC_RELAXED);
            break;
        default: /* ones that can */
            *length = 1 + (uint32_t)(x >> 40) % 3000;
            __atomic_store_n(&shared->to_server.tail,
                             head + ((uint32_t)(x >> 8) & MASK & ~7u),
                             __ATOMIC_RELAXED);
            __atomic_store_n(&shared->to_client.head,
                             __atomic_load_n(&h->out, __ATOMIC_RELAXED),
                             __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

/* Does nothing but change a length between one that is fine and one that is
 * not, as fast as it can. */
static void *flicker_main(void *arg)
{
    hostile_t *h = arg;
    ldr_ring_shared_t *shared = (void *)h->map;
    uint8_t *data = h->map + LDR_RING_HEAD;

    while (!__atomic_load_n(&h->stop, __ATOMIC_RELAXED)) {
        uint32_t head = __atomic_load_n(&h->in, __ATOMIC_RELAXED);
        volatile uint32_t *length = (void *)(data + (head & MASK));
        __atomic_store_n(&shared->to_server.tail, head + LDR_RING_BYTES,
                         __ATOMIC_RELAXED);
        for (int i = 0; i < 20; i++) {
            *length = 64;
            *length = LDR_RING_MESSAGE_MAX;
        }
    }
    return NULL;
}

/* What was decided about a length is about the bytes that are then copied. */
static void test_flickering_length(void **s)
{
    enum { MAX = 100 };
    hostile_t h = {.map = NULL};
    uint64_t rounds = test_count("LARDER_RING_HOSTILE", 3000000);
    uint64_t until = in_time(), messages = 0, broken = 0;
    ldr_ring_pair_t server;
    pthread_t thread;
    uint8_t *to;

    (void)s;
    if (UNDER_TSAN) {
        skip();
    }
    to = malloc(MAX);
    h.map = map_new();
    assert_non_null(to);
    ldr_ring_init(&server, h.map, true);
    assert_true(ldr_thread_start(&thread, "ring-flicker", flicker_main, &h));
    for (uint64_t i = 0; i < rounds || messages == 0 || broken == 0; i++) {
        require(i % 1024 != 0 || ldr_now_ns(&ldr_clock_real) < until,
                "%llu messages, %llu broken", (unsigned long long)messages,
                (unsigned long long)broken);
        __atomic_store_n(&h.in, server.in.position, __ATOMIC_RELAXED);
        ptrdiff_t n = ldr_ring_read(&server.in, to, MAX);
        require(n >= -1 && n <= MAX, "%td bytes", n);
        messages += n > 0;
        broken += n < 0;
        server.in.broken = false;
    }
    __atomic_store_n(&h.stop, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    printf("%llu messages, %llu times broken\n", (unsigned long long)messages,
           (unsigned long long)broken);
    free(to);
    map_free(h.map);
}

/* The daemon's ends go on from where they are, as if it had not noticed: in
 * earnest the session ends. */
static void test_scribbling_client(void **s)
{
    enum { MAX = 4000 };
    hostile_t h = {.seed = ldr_rand_next(&rnd)};
    uint64_t rounds = test_count("LARDER_RING_HOSTILE", 3000000);
    uint64_t until = in_time();
    uint64_t messages = 0, broken = 0, out = 0, out_broken = 0;
    uint8_t *to, reply[200] = {0};
    ldr_ring_pair_t server;
    pthread_t thread;

    (void)s;
    if (UNDER_TSAN) {
        printf("races are the point of this one: not under tsan\n");
        skip();
    }
    to = malloc(MAX);
    h.map = map_new();
    assert_non_null(to);
    ldr_ring_init(&server, h.map, true);
    assert_true(ldr_thread_start(&thread, "ring-hostile", hostile_main, &h));
    for (uint64_t i = 0; i < rounds || messages == 0 || broken == 0 ||
                         out == 0 || out_broken == 0;
         i++) {
        require(i % 1024 != 0 || ldr_now_ns(&ldr_clock_real) < until,
                "%llu messages, %llu broken, %llu replies, %llu broken",
                (unsigned long long)messages, (unsigned long long)broken,
                (unsigned long long)out, (unsigned long long)out_broken);
        __atomic_store_n(&h.in, server.in.position, __ATOMIC_RELAXED);
        __atomic_store_n(&h.out, server.out.position, __ATOMIC_RELAXED);
        ptrdiff_t n = ldr_ring_read(&server.in, to, MAX);
        require(n >= -1 && n <= MAX, "%td bytes", n);
        messages += n > 0;
        broken += n < 0;
        server.in.broken = false;
        if (write_one(&server.out, reply, 1 + i % sizeof(reply))) {
            out++;
        }
        out_broken += server.out.broken;
        server.out.broken = false;
        if (ldr_ring_must_wake(&server.out)) {
            ldr_ring_futex_wake(&server.out);
        }
        if (ldr_ring_sleep_begin(&server.in)) {
            ldr_ring_sleep_end(&server.in);
        }
    }
    __atomic_store_n(&h.stop, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    printf("%llu messages, %llu times broken; replies %llu, broken %llu\n",
           (unsigned long long)messages, (unsigned long long)broken,
           (unsigned long long)out, (unsigned long long)out_broken);
    free(to);
    map_free(h.map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_impossible_positions),
        cmocka_unit_test(test_impossible_lengths),
        cmocka_unit_test(test_flickering_length),
        cmocka_unit_test(test_scribbling_client),
    };
    uint64_t seed = real_seed();

    test_seed(seed);
    ldr_rand_seed(&rnd, seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
