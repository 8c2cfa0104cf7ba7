/*
 * The rings: messages of every size through every wrap, and two threads that
 * do nothing but sleep and wake each other. LARDER_SEED repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#include "base/thread.h"
#include "net/ring_rig.h"
#include "net/socket.h"
#include "support/real.h"

static ldr_rand_t rnd;

/* ---- one thread ---- */

static void test_small(void **s)
{
    ldr_ring_pair_t server, client;
    void *map = pair_new(&server, &client, 0);
    uint8_t to[64];
    const struct iovec pieces[] = {
        {"one", 3}, {NULL, 0}, {" two", 4}, {" three", 6}};

    (void)s;
    assert_int_equal(ldr_ring_read(&server.in, to, sizeof(to)), 0);
    assert_false(ldr_ring_ready(&server.in));
    assert_true(ldr_ring_write(&client.out, pieces, 4));
    assert_true(write_one(&client.out, "x", 1));
    assert_true(ldr_ring_ready(&server.in));
    assert_false(ldr_ring_ready(&client.in)); /* the other way is empty */
    assert_int_equal(ldr_ring_read(&server.in, to, sizeof(to)), 13);
    assert_memory_equal(to, "one two three", 13);
    assert_int_equal(ldr_ring_read(&server.in, to, sizeof(to)), 1);
    assert_int_equal(to[0], 'x');
    assert_int_equal(ldr_ring_read(&server.in, to, sizeof(to)), 0);

    assert_true(write_one(&server.out, "back", 4));
    assert_int_equal(ldr_ring_read(&client.in, to, sizeof(to)), 4);
    assert_memory_equal(to, "back", 4);

    /* Nothing is no message, and too much neither. */
    assert_false(ldr_ring_write(&client.out, pieces, 0));
    assert_false(write_one(&client.out, map, LDR_RING_MESSAGE_MAX + 1));
    const struct iovec wraps[] = {{map, 8}, {map, SIZE_MAX - 4}};
    assert_false(ldr_ring_write(&client.out, wraps, 2));
    assert_false(ldr_ring_broken(&client.out));
    assert_false(ldr_ring_fits(&client.out, LDR_RING_MESSAGE_MAX + 1));
    assert_false(ldr_ring_fits(&client.out, SIZE_MAX));
    map_free(map);
}

static void test_largest_and_full(void **s)
{
    ldr_ring_pair_t server, client;
    uint8_t *data = malloc(LDR_RING_MESSAGE_MAX);
    uint8_t *to = malloc(LDR_RING_MESSAGE_MAX);

    (void)s;
    assert_true(data != NULL && to != NULL);
    real_fill(data, LDR_RING_MESSAGE_MAX, 1, 2);
    for (uint32_t start = 0; start < 3 * 8; start += 8) {
        void *map = pair_new(&server, &client, (uint32_t)-16 + start);
        assert_true(ldr_ring_fits(&client.out, LDR_RING_MESSAGE_MAX));
        assert_true(write_one(&client.out, data, LDR_RING_MESSAGE_MAX));
        assert_int_equal(ldr_ring_read(&server.in, to, LDR_RING_MESSAGE_MAX),
                         LDR_RING_MESSAGE_MAX);
        assert_memory_equal(to, data, LDR_RING_MESSAGE_MAX);

        /* Full to the last byte: 4 + 4 bytes each. */
        unsigned n = 0;
        for (uint32_t i = 0; write_one(&client.out, &i, 4); i++) {
            n++;
        }
        assert_int_equal(n, LDR_RING_BYTES / 8);
        assert_false(ldr_ring_fits(&client.out, 1));
        assert_false(ldr_ring_broken(&client.out));
        for (uint32_t i = 0; i < n; i++) {
            uint32_t value = 0;
            assert_int_equal(
                ldr_ring_read(&server.in, (uint8_t *)&value, sizeof(value)), 4);
            assert_int_equal(value, i);
            if (i == 0) {
                assert_true(ldr_ring_fits(&client.out, 4));
                assert_false(ldr_ring_fits(&client.out, 5));
            }
        }
        assert_int_equal(ldr_ring_read(&server.in, to, 1), 0);
        map_free(map);
    }
    free(data);
    free(to);
}

/* Every alignment of length and place, over the end of the ring and over the
 * end of the positions. */
static void test_wraps(void **s)
{
    enum { MAX = 40 };
    static const uint32_t ends[] = {0, 0x80000000u, LDR_RING_BYTES * 3};
    ldr_ring_pair_t server, client;
    uint8_t data[MAX], *to;

    (void)s;
    for (size_t e = 0; e < 3; e++) {
        for (uint32_t before = 0; before <= 48; before += 8) {
            for (size_t bytes = 1; bytes <= MAX; bytes++) {
                void *map = pair_new(&server, &client, ends[e] - before);
                real_fill(data, bytes, bytes, before);
                assert_true(write_one(&client.out, data, bytes));
                to = malloc(bytes);
                assert_non_null(to);
                assert_int_equal(ldr_ring_read(&server.in, to, bytes), bytes);
                assert_memory_equal(to, data, bytes);
                assert_int_equal(ldr_ring_read(&server.in, to, bytes), 0);
                free(to);
                map_free(map);
            }
        }
    }
}

static void test_too_long_for_the_reader(void **s)
{
    ldr_ring_pair_t server, client;
    void *map = pair_new(&server, &client, 0);
    uint8_t *to = malloc(10);

    (void)s;
    assert_true(write_one(&client.out, "01234567890", 11));
    assert_int_equal(ldr_ring_read(&server.in, to, 10), -1);
    assert_true(ldr_ring_broken(&server.in));
    assert_int_equal(ldr_ring_read(&server.in, to, 10), -1); /* for good */
    free(to);
    map_free(map);
}

/* ---- sleeping ---- */

static void test_sleep_flag(void **s)
{
    ldr_ring_pair_t server, client;
    void *map = pair_new(&server, &client, 0);
    uint8_t to[8];

    (void)s;
    assert_false(ldr_ring_must_wake(&client.out)); /* nobody sleeps */
    assert_true(ldr_ring_sleep_begin(&server.in));
    assert_true(write_one(&client.out, "a", 1));
    assert_true(ldr_ring_must_wake(&client.out));
    assert_false(ldr_ring_must_wake(&client.out)); /* once */
    ldr_ring_sleep_end(&server.in);
    assert_false(ldr_ring_sleep_begin(&server.in)); /* there is something */
    assert_false(ldr_ring_must_wake(&client.out));
    assert_int_equal(ldr_ring_read(&server.in, to, sizeof(to)), 1);
    assert_true(ldr_ring_sleep_begin(&server.in));
    ldr_ring_sleep_end(&server.in);
    assert_false(ldr_ring_must_wake(&client.out));

    /* The futex: a deadline that has passed, and a word that says no. */
    assert_true(ldr_ring_sleep_begin(&client.in));
    ldr_ring_futex_wait(&client.in, 1);
    ldr_ring_futex_wake(&client.in);
    ldr_ring_futex_wait(&client.in, UINT64_MAX);
    ldr_ring_sleep_end(&client.in);
    map_free(map);
}

/* Runs the caller on this CPU only. False: it may not. */
static bool run_on(int cpu)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof(one), &one) == 0;
}

static void test_beside(void **s)
{
    ldr_ring_pair_t server, client;
    ldr_ring_shared_t *map = pair_new(&server, &client, 0);
    cpu_set_t all;
    int cpus[2] = {-1, -1};

    (void)s;
    assert_false(ldr_ring_beside(&server.in)); /* nobody wrote yet */
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
        if (CPU_ISSET(cpu, &all)) {
            cpus[1] = cpus[0];
            cpus[0] = cpu;
        }
    }
    assert_true(run_on(cpus[0]));
    assert_true(write_one(&client.out, "x", 1));
    assert_true(ldr_ring_beside(&server.in));
    assert_false(ldr_ring_beside(&client.in)); /* the other way */
    if (cpus[1] >= 0) {
        assert_true(run_on(cpus[1]));
        assert_false(ldr_ring_beside(&server.in));
        assert_true(write_one(&client.out, "x", 1));
        assert_true(ldr_ring_beside(&server.in));
    }
    map->to_server.cpu = UINT32_MAX; /* a client may say what it likes */
    assert_false(ldr_ring_beside(&server.in));
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
    map_free(map);
}

/* ---- two threads ---- */

typedef struct rig {
    ldr_ring_pair_t server, client;
    void *map;
    int bell;       /* the daemon's eventfd */
    uint64_t seed;  /* of the sizes, the same on both sides */
    uint64_t count; /* messages each way */
    uint64_t size_max;
    uint64_t lay_down, slept_server, slept_client, rung;
} rig_t;

/* The daemon's way to wait. */
static void server_wait(rig_t *rig)
{
    uint64_t n;

    rig->lay_down++;
    if (ldr_ring_sleep_begin(&rig->server.in)) {
        rig->slept_server++;
        int events = ldr_poll(rig->bell, POLLIN, in_time());
        require(events > 0, "a doorbell was lost");
        require(read(rig->bell, &n, sizeof(n)) == sizeof(n), "eventfd");
        ldr_ring_sleep_end(&rig->server.in);
    }
}

static void client_wait(rig_t *rig)
{
    if (ldr_ring_sleep_begin(&rig->client.in)) {
        uint64_t until = in_time();
        rig->slept_client++;
        ldr_ring_futex_wait(&rig->client.in, until);
        require(ldr_now_ns(&ldr_clock_real) < until, "a futex wake was lost");
        ldr_ring_sleep_end(&rig->client.in);
    }
}

static void client_send(rig_t *rig, const void *data, size_t bytes)
{
    uint64_t one = 1, until = in_time();

    while (!write_one(&rig->client.out, data, bytes)) {
        require(!ldr_ring_broken(&rig->client.out), "broken");
        require(ldr_now_ns(&ldr_clock_real) < until, "never room");
        sched_yield();
    }
    if (ldr_ring_must_wake(&rig->client.out)) {
        rig->rung++;
        require(write(rig->bell, &one, sizeof(one)) == sizeof(one), "eventfd");
    }
}

static void server_send(rig_t *rig, const void *data, size_t bytes)
{
    uint64_t until = in_time();

    while (!write_one(&rig->server.out, data, bytes)) {
        require(!ldr_ring_broken(&rig->server.out), "broken");
        require(ldr_now_ns(&ldr_clock_real) < until, "never room");
        sched_yield();
    }
    if (ldr_ring_must_wake(&rig->server.out)) {
        ldr_ring_futex_wake(&rig->server.out);
    }
}

/* Message i: its size is in the plan of the seed, its bytes say i. */
static size_t plan(const rig_t *rig, uint64_t i)
{
    uint64_t mix = real_mix(rig->seed + i);
    uint64_t max = mix % 8 == 0 ? rig->size_max : rig->size_max / 100 + 1;

    return 16 + (mix >> 8) % max;
}

/* Takes what comes, checks it and sends it back. */
static void *server_main(void *arg)
{
    rig_t *rig = arg;
    uint8_t *to = malloc(LDR_RING_MESSAGE_MAX);
    uint64_t generation;

    require(to != NULL, "memory");
    for (uint64_t i = 0; i < rig->count;) {
        ptrdiff_t n = ldr_ring_read(&rig->server.in, to, LDR_RING_MESSAGE_MAX);
        require(n >= 0, "broken");
        if (n == 0) {
            server_wait(rig);
            continue;
        }
        require((size_t)n == plan(rig, i), "message %llu: %td bytes",
                (unsigned long long)i, n);
        require(real_check(to, (size_t)n, i, &generation) && generation == 7,
                "message %llu", (unsigned long long)i);
        server_send(rig, to, (size_t)n);
        i++;
    }
    free(to);
    return NULL;
}

/* Has up to ahead messages under way: 1 makes both sides sleep at each. */
static uint64_t client_run(rig_t *rig, uint64_t ahead)
{
    uint8_t *data = malloc(LDR_RING_MESSAGE_MAX);
    uint64_t sent = 0, bytes = 0, generation;
    ptrdiff_t n;

    require(data != NULL, "memory");
    for (uint64_t got = 0; got < rig->count;) {
        if (sent < rig->count && sent - got < ahead) {
            size_t size = plan(rig, sent);
            real_fill(data, size, sent, 7);
            client_send(rig, data, size);
            sent++;
            continue;
        }
        n = ldr_ring_read(&rig->client.in, data, LDR_RING_MESSAGE_MAX);
        require(n >= 0, "broken");
        if (n == 0) {
            client_wait(rig);
            continue;
        }
        require((size_t)n == plan(rig, got) &&
                    real_check(data, (size_t)n, got, &generation),
                "reply %llu", (unsigned long long)got);
        bytes += (size_t)n;
        got++;
    }
    free(data);
    return bytes;
}

static void run_rig(uint64_t count, uint64_t size_max, uint64_t ahead)
{
    rig_t rig = {.seed = ldr_rand_next(&rnd),
                 .count = count,
                 .size_max = size_max,
                 .bell = eventfd(0, EFD_CLOEXEC)};
    pthread_t thread;

    assert_true(rig.bell >= 0);
    /* The positions wrap 2^32 on the way. */
    rig.map = pair_new(&rig.server, &rig.client, (uint32_t) - (1 << 20));
    assert_true(ldr_thread_start(&thread, "ring-server", server_main, &rig));
    uint64_t bytes = client_run(&rig, ahead);
    pthread_join(thread, NULL);
    printf("%llu messages, %llu bytes each way; slept: daemon %llu, client "
           "%llu; bells %llu\n",
           (unsigned long long)count, (unsigned long long)bytes,
           (unsigned long long)rig.slept_server,
           (unsigned long long)rig.slept_client, (unsigned long long)rig.rung);
    assert_true(rig.rung <= rig.lay_down); /* never more than asked for */
    close(rig.bell);
    map_free(rig.map);
}

static void test_two_threads_bulk(void **s)
{
    (void)s;
    /* So few under way that neither side can block the other for room. */
    run_rig(test_count("LARDER_RING_BULK", 4000), 100000, 8);
}

static void test_two_threads_small(void **s)
{
    (void)s;
    run_rig(test_count("LARDER_RING_SMALL", 200000), 100, 64);
}

static void test_wake_ups(void **s)
{
    (void)s;
    run_rig(test_count("LARDER_RING_WAKES", 60000), 32, 1);
    run_rig(test_count("LARDER_RING_WAKES", 60000), 32, 2);
}

/*
 * The one moment that counts, again and again: one side publishes and looks
 * whether the other sleeps, while that one lies down and looks for more. Never
 * may both see nothing.
 */
typedef struct moment {
    ldr_ring_pair_t server, client;
    uint64_t rounds;
    uint32_t turn[2]; /* the round that each thread has reached */
    bool woken;       /* of this round */
} moment_t;

static void meet(moment_t *m, unsigned me, uint32_t round)
{
    __atomic_store_n(&m->turn[me], round, __ATOMIC_SEQ_CST);
    for (unsigned i = 0;
         __atomic_load_n(&m->turn[!me], __ATOMIC_SEQ_CST) < round; i++) {
        if (i % 1000 == 999) {
            sched_yield(); /* the other may not be running */
        }
    }
}

/* A little later or earlier each time. */
static void drift(uint64_t steps)
{
    for (volatile uint64_t n = 0; n < steps; n++) {
    }
}

static void *moment_main(void *arg)
{
    moment_t *m = arg;

    for (uint32_t i = 0; i < m->rounds; i++) {
        meet(m, 1, 2 * i + 1);
        drift(i % 7);
        require(write_one(&m->client.out, &i, sizeof(i)), "room");
        m->woken = ldr_ring_must_wake(&m->client.out);
        meet(m, 1, 2 * i + 2);
    }
    return NULL;
}

static void test_the_moment(void **s)
{
    moment_t m = {.rounds = test_count("LARDER_RING_MOMENTS", 400000)};
    void *map = pair_new(&m.server, &m.client, 0);
    uint64_t slept = 0, woken = 0;
    pthread_t thread;

    (void)s;
    assert_true(ldr_thread_start(&thread, "ring-moment", moment_main, &m));
    for (uint32_t i = 0; i < m.rounds; i++) {
        uint32_t got = UINT32_MAX;
        meet(&m, 0, 2 * i + 1);
        drift(i % 101);
        bool sleeps = ldr_ring_sleep_begin(&m.server.in);
        meet(&m, 0, 2 * i + 2);
        require(!sleeps || m.woken, "round %u: nobody wakes the sleeper", i);
        slept += sleeps;
        woken += m.woken;
        ldr_ring_sleep_end(&m.server.in);
        require(ldr_ring_read(&m.server.in, (uint8_t *)&got, sizeof(got)) ==
                        sizeof(got) &&
                    got == i,
                "message %u", i);
    }
    pthread_join(thread, NULL);
    printf("%llu moments: slept %llu, woken %llu\n",
           (unsigned long long)m.rounds, (unsigned long long)slept,
           (unsigned long long)woken);
    map_free(map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_largest_and_full),
        cmocka_unit_test(test_wraps),
        cmocka_unit_test(test_too_long_for_the_reader),
        cmocka_unit_test(test_sleep_flag),
        cmocka_unit_test(test_beside),
        cmocka_unit_test(test_two_threads_bulk),
        cmocka_unit_test(test_two_threads_small),
        cmocka_unit_test(test_wake_ups),
        cmocka_unit_test(test_the_moment),
    };
    uint64_t seed = real_seed();

    test_seed(seed);
    ldr_rand_seed(&rnd, seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
