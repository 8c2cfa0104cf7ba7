/*
 * A daemon that ends in the middle of a copy, and one that says what cannot be:
 * by shared memory the client has only its word for where bytes lie. It is not
 * believed, nothing is taken for saved or loaded that is not known to be, and
 * the next call goes to the daemon anew.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fault.h"
#include "client/transport.h"
#include "support/real.h"

enum { BYTES = 1 << 20, SPARE = 2 << 20 };

typedef struct fixture {
    larder_t *lar;
    larder_space_t *space;
} fixture_t;

static uint8_t value[SPARE];

static int setup_with(void **state, const char *options)
{
    static const larder_open_params_t params = {.field_mask = LARDER_OPEN_LOG,
                                                .log = real_log_none};
    static fixture_t fixture;
    char url[200];

    fixture = (fixture_t){0};
    snprintf(url, sizeof(url), "embed:?dram=64M&retry_ms=10%s", options);
    assert_int_equal(transport_open(url, &params, &fixture.lar), LARDER_OK);
    assert_int_equal(real_space(fixture.lar, "false", &fixture.space),
                     LARDER_OK);
    *state = &fixture;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, "");
}

static int setup_few(void **state)
{
    return setup_with(state, "&sessions=4");
}

static int setup_entry(void **state)
{
    return setup_with(state, "&verify=entry");
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    ldr_fault_disarm_all();
    assert_int_equal(transport_close(&f->lar, 0), LARDER_OK);
    larder_space_close(&f->space);
    return 0;
}

static larder_status_t get(fixture_t *f, uint64_t id, larder_item_t *item)
{
    uint64_t generation;

    memset(value, 0, sizeof(value));
    larder_status_t st =
        real_run(f->space, LARDER_OP_GET, id, value, SPARE, item);
    if (st == LARDER_OK) {
        assert_int_equal(item->length, BYTES);
        assert_true(real_check(value, BYTES, id, &generation));
        assert_int_equal(generation, id + 1);
    }
    return st;
}

static void put(fixture_t *f, uint64_t id)
{
    assert_int_equal(real_put(f->space, id, id + 1, value, BYTES), LARDER_OK);
}

/* It is to be had once the client has connected again. */
static void comes_back(fixture_t *f, ldr_fault_t how, uint64_t id)
{
    larder_item_t item;
    uint64_t end_ms = real_now_ms() + 20000;

    assert_int_equal(ldr_fault_fired(how), 1);
    ldr_fault_disarm_all();
    while (get(f, id, &item) != LARDER_OK) {
        assert_true(real_now_ms() < end_ms);
        real_pause();
    }
}

/* Whether the daemon has heard of the commit nobody knows: it is not said to be
 * saved. */
static void test_dies_in_a_put(void **state)
{
    fixture_t *f = *state;

    ldr_fault_arm(LDR_FAULT_shm_die, 1, 1);
    larder_status_t st = real_put(f->space, 1, 2, value, BYTES);
    assert_int_equal(st, LARDER_E_OFFLINE);
    assert_int_equal(ldr_fault_fired(LDR_FAULT_shm_die), 1);
    ldr_fault_disarm_all();
    /* The daemon hears that nobody writes any more; nobody ever sees what was
     * written. */
    uint64_t end_ms = real_now_ms() + 20000;
    larder_item_t item;
    while (real_put(f->space, 2, 3, value, BYTES) != LARDER_OK) {
        assert_true(real_now_ms() < end_ms);
        real_pause();
    }
    assert_int_equal(get(f, 2, &item), LARDER_OK);
    assert_int_equal(get(f, 1, &item), LARDER_MISS);
}

/* Bytes that are compared with their checksum are right, whoever has died. */
static void test_dies_in_a_get(void **state)
{
    fixture_t *f = *state;
    larder_item_t item;

    put(f, 1);
    ldr_fault_arm(LDR_FAULT_shm_die, 1, 1);
    assert_int_equal(get(f, 1, &item), LARDER_OK);
    comes_back(f, LDR_FAULT_shm_die, 1);
}

/* Those that are not are not. */
static void test_dies_in_an_unchecked_get(void **state)
{
    fixture_t *f = *state;
    larder_item_t item;

    put(f, 1);
    assert_int_equal(get(f, 1, &item), LARDER_OK); /* checked, this once */
    ldr_fault_arm(LDR_FAULT_shm_die, 1, 1);
    assert_int_equal(get(f, 1, &item), LARDER_MISS);
    assert_int_equal(item.cause, LARDER_CAUSE_OFFLINE);
    assert_int_equal(item.length, 0);
    comes_back(f, LDR_FAULT_shm_die, 1);
}

static void expect_refused(fixture_t *f, ldr_fault_t how)
{
    larder_item_t item;

    put(f, 1);
    assert_int_equal(get(f, 1, &item), LARDER_OK);
    ldr_fault_arm(how, 1, 1);
    assert_int_equal(get(f, 1, &item), LARDER_MISS);
    assert_int_equal(item.cause, LARDER_CAUSE_OFFLINE);
    assert_int_equal(item.length, 0);
    comes_back(f, how, 1);
    /* And where a put is to go. */
    ldr_fault_arm(how, 1, 1);
    assert_int_equal(real_put(f->space, 2, 3, value, BYTES), LARDER_E_OFFLINE);
    put(f, 3);
    comes_back(f, how, 3);
}

static void test_too_few_bytes(void **state)
{
    expect_refused(*state, LDR_FAULT_seg_short);
}

static void test_outside(void **state)
{
    expect_refused(*state, LDR_FAULT_seg_outside);
}

/* The session ends again and again and its process lives on: as nothing of it
 * is mapped any more, the daemon keeps nothing for those that ended. */
static void test_leaves_nothing_behind(void **state)
{
    static const char *const none[] = {
        "larder_quarantined_leases", "larder_leases", "larder_revokes_pending"};
    fixture_t *f = *state;
    larder_item_t item;
    uint64_t end_ms = real_now_ms() + 20000;

    put(f, 1);
    for (unsigned i = 0; i < 8; i++) { /* of 4 sessions that there may be */
        ldr_fault_arm(LDR_FAULT_shm_die, 1, 1);
        assert_int_equal(get(f, 1, &item), LARDER_OK);
        comes_back(f, LDR_FAULT_shm_die, 1);
    }
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        while (transport_figure(f->lar, none[i]) != 0) {
            assert_true(real_now_ms() < end_ms);
            real_pause();
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_dies_in_a_put, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dies_in_a_get, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dies_in_an_unchecked_get,
                                        setup_entry, teardown),
        cmocka_unit_test_setup_teardown(test_too_few_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_outside, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leaves_nothing_behind, setup_few,
                                        teardown),
    };

    if (transport_is("tcp") || transport_is("tls")) {
        return 0; /* bytes come themselves there */
    }
    if (transport_is("embed")) {
        setenv("LARDER_TEST_TRANSPORT", "shm", 1);
    }
    return cmocka_run_group_tests_name("client/false_replies", tests, NULL,
                                       NULL);
}
