/*
 * Extents as a client maps them: asked for once, however many threads want one,
 * and given back also if it could not be mapped. By shared memory only.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fault.h"
#include "client/transport.h"
#include "support/real.h"

enum { BYTES = 400000, KEYS = 100, THREADS = 8 };

#define WAIT_MS 20000u

typedef struct handle {
    larder_t *lar;
    larder_space_t *space;
} handle_t;

static uint8_t value[BYTES];

/* ---- a daemon of two tenants ---- */

static int setup(void **state)
{
    test_daemon_t *d = &the_daemon;
    char path[300];

    (void)state;
    assert_true(daemon_prepare(d, "embed:?dram=32M"));
    snprintf(path, sizeof(path), "%s/config", d->dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("[tenant a]\nuids = any\n[tenant b]\nuids = any\n", file);
    fclose(file);
    daemon_option(d, "config", path);
    assert_true(daemon_start(d));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ldr_fault_disarm_all();
    assert_int_equal(daemon_stop(&the_daemon, SIGTERM), 0);
    daemon_clean(&the_daemon);
    return 0;
}

static handle_t open_as(const char *tenant)
{
    static const larder_open_params_t params = {.field_mask = LARDER_OPEN_LOG,
                                                .log = real_log_none};
    handle_t h = {0};
    char url[400];

    snprintf(url, sizeof(url), "unix:%s?timeout_ms=2000&tenant=%s",
             the_daemon.socket, tenant);
    assert_int_equal(larder_open(url, &params, &h.lar), LARDER_OK);
    assert_int_equal(real_space(h.lar, "extents", &h.space), LARDER_OK);
    return h;
}

static void close_it(handle_t *h)
{
    assert_int_equal(larder_close(&h->lar, 0), LARDER_OK);
    larder_space_close(&h->space);
}

static larder_status_t put(const handle_t *h, uint64_t id)
{
    return real_put(h->space, id, id + 1, value, BYTES);
}

static larder_status_t get(const handle_t *h, uint64_t id, uint8_t *to)
{
    larder_item_t item;

    return real_run(h->space, LARDER_OP_GET, id, to, BYTES, &item);
}

/* ---- cases ---- */

/* The daemon has handed the extents out and takes them for mapped, until it is
 * told: the heir gets them though the session that could not map them lives. */
static void test_cannot_be_mapped(void **state)
{
    uint64_t end_ms = real_now_ms() + WAIT_MS;
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};

    (void)state;
    handle_t a = open_as("a");
    for (uint64_t i = 0; i < KEYS; i++) { /* more than there is room for */
        assert_int_equal(put(&a, i), LARDER_OK);
    }
    close_it(&a);
    a = open_as("a");
    ldr_fault_arm(LDR_FAULT_extent_map, 1, 0);
    for (uint64_t i = 0; i < KEYS; i++) {
        assert_int_not_equal(get(&a, i, value), LARDER_OK);
    }
    assert_true(ldr_fault_fired(LDR_FAULT_extent_map) >= 2);
    ldr_fault_disarm_all();
    handle_t b = open_as("b");
    while (put(&b, 1000) != LARDER_OK) { /* a share of it is its own */
        assert_true(real_now_ms() < end_ms);
        real_pause();
    }
    while (transport_figure(b.lar, "larder_revokes_pending") != 0) {
        assert_true(real_now_ms() < end_ms);
        real_pause();
    }
    /* It is still the same session, and maps what it has left. */
    assert_int_equal(put(&a, 2000), LARDER_OK);
    assert_int_equal(get(&a, 2000, value), LARDER_OK);
    assert_int_equal(larder_stats(a.lar, &stats), LARDER_OK);
    assert_int_equal(stats.client_connects, 1);
    close_it(&a);
    close_it(&b);
}

typedef struct racer {
    const handle_t *handle;
    pthread_barrier_t *begin;
    larder_status_t status;
    uint8_t got[BYTES];
} racer_t;

static void *race(void *arg)
{
    racer_t *r = arg;

    pthread_barrier_wait(r->begin);
    r->status = get(r->handle, 1, r->got);
    return NULL;
}

/* Many want it at once: one asks. */
static void test_asked_for_once(void **state)
{
    static const char name[] =
        "larder_requests_total{op=\"extent\",status=\"ok\"}";
    static racer_t racers[THREADS];
    pthread_t threads[THREADS];
    pthread_barrier_t begin;

    (void)state;
    handle_t other = open_as("a");
    assert_int_equal(put(&other, 1), LARDER_OK);
    handle_t a = open_as("a");
    double before = transport_figure(other.lar, name);
    assert_true(before > 0);
    pthread_barrier_init(&begin, NULL, THREADS);
    for (unsigned i = 0; i < THREADS; i++) {
        racers[i] = (racer_t){.handle = &a, .begin = &begin};
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]),
                         0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(racers[i].status, LARDER_OK);
    }
    pthread_barrier_destroy(&begin);
    assert_true(transport_figure(other.lar, name) == before + 1);
    close_it(&a);
    close_it(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cannot_be_mapped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_asked_for_once, setup, teardown),
    };

    if (!transport_is("embed") && !transport_is("shm")) {
        return 0; /* they have no extents */
    }
    setenv("LARDER_TEST_TRANSPORT", "shm", 1);
    return cmocka_run_group_tests_name("client/extents", tests, NULL, NULL);
}
