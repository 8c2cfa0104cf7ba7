/*
 * Whose turn it is to be written to the shared tier: a node without threads
 * over a directory, one object at a time.
 */

#include "tier/shared/node_rig.h"
#include "tier/shared/objects_int.h"

#define MIB ((size_t)1 << 20)
#define STEPS_MAX 10000u
#define A 0u /* spaces; C is another tenant's */
#define B 1u
#define C 2u

typedef struct fixture {
    node_rig_t;
    uint8_t *value;
    uint32_t keys;
} fixture_t;

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    node_rig_init((node_rig_t *)f, "uploads");
    node_rig_use_tier((node_rig_t *)f, true);
    f->value = calloc(1, MIB);
    f->rig.tenants = true;
    f->rig.options.dram = 160 * MIB;
    f->rig.options.shared_lanes = 2; /* one writes */
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    /* As after a first save: the tier is made the tenants'. */
    ldr_node_lock(f->rig.node);
    for (unsigned i = 0; i < RIG_SPACES; i++) {
        assert_int_equal(
            ldr_secret_settle(f->rig.node, f->rig.spaces[i]->number),
            LARDER_OK);
    }
    ldr_node_unlock(f->rig.node);
    while (ldr_objects_step(ldr_shared_of(&f->rig.node->host)->tier)) {
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    node_rig_free((node_rig_t *)f);
    free(f->value);
    free(f);
    return 0;
}

static ldr_shared_t *shared(fixture_t *f)
{
    return ldr_shared_of(&f->rig.node->host);
}

/* So many MiB, each under a key of its own. */
static void save(fixture_t *f, uint32_t space, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        larder_key_t key = test_key(++f->keys);
        struct iovec iov = {f->value, MIB};
        larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};

        memcpy(f->value, &f->keys, sizeof(f->keys));
        assert_int_equal(
            larder_run(f->rig.spaces[space], LARDER_OP_PUT, &item, 1, NULL),
            LARDER_OK);
        assert_int_equal(item.status, LARDER_OK);
    }
}

/* The space of the object that is written next; RIG_SPACES: there is none. It
 * is there when this returns. */
static uint32_t next(fixture_t *f)
{
    ldr_shared_t *s = shared(f);
    uint32_t space = RIG_SPACES;
    uint64_t wake;

    ldr_node_lock(f->rig.node);
    while (s->uploads_flying == 0 && ldr_shared_write(s, &wake)) {
    }
    bool some = s->uploads_flying > 0;
    ldr_node_unlock(f->rig.node);
    for (uint32_t i = 0; i < RIG_SPACES && some; i++) {
        space = f->rig.spaces[i]->number == s->uploads[0].space ? i : space;
    }
    for (unsigned i = 0; s->uploads_flying > 0 && i < STEPS_MAX; i++) {
        ldr_objects_step(s->tier);
    }
    assert_int_equal(s->uploads_flying, 0);
    return space;
}

/* A busy one does not keep the others waiting until it is done. */
static void test_turns(void **state)
{
    static const uint32_t order[] = {A, B, C, A, B, A};
    fixture_t *f = *state;

    save(f, A, 48);
    save(f, B, 32);
    save(f, C, 12);
    rig_sleep(&f->rig, 10);
    for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        assert_int_equal(next(f), order[i]);
    }
    assert_int_equal(next(f), RIG_SPACES);
    assert_int_equal(f->rig.node->store.queues[LDR_SHARED_QUEUE].count, 0);
    assert_int_equal(f->rig.node->store.n.offers_written, 48 + 32 + 12);
}

/* Few have their turn too once they have waited for a second, and not before;
 * then the oldest comes first. */
static void test_few(void **state)
{
    fixture_t *f = *state;

    save(f, B, 1);
    save(f, A, 20);
    rig_sleep(&f->rig, 10);
    assert_int_equal(next(f), A);
    save(f, A, 20);
    rig_sleep(&f->rig, 10);
    assert_int_equal(next(f), A);
    save(f, A, 20);
    rig_sleep(&f->rig, 990);
    assert_int_equal(next(f), B);
    assert_int_equal(next(f), A);
    assert_int_equal(f->rig.node->store.queues[LDR_SHARED_QUEUE]
                         .subqueues[f->rig.spaces[B]->number]
                         .count,
                     0);
}

/* One that the tier takes nothing of holds up nobody, and is not forgotten. */
static void test_part_off(void **state)
{
    fixture_t *f = *state;
    ldr_objects_t *t = shared(f)->tier;
    ldr_volume_t *p = NULL;

    save(f, C, 20);
    save(f, A, 2);
    save(f, B, 20);
    rig_sleep(&f->rig, 1100); /* all are due */
    for (size_t i = 0; i < t->volume_count; i++) {
        uint32_t tenant =
            f->rig.node->store.spaces[f->rig.spaces[C]->number].tenant;

        p = shared(f)->tenants[tenant].number == i ? t->volumes[i] : p;
    }
    assert_non_null(p);
    p->refused = true;
    p->ready = false;
    assert_int_equal(next(f), A);
    assert_int_equal(next(f), B);
    p->refused = false;
    p->ready = true;
    rig_sleep(&f->rig, 1100);
    assert_int_equal(next(f), C);
    assert_int_equal(next(f), B); /* it had four left */
    rig_sleep(&f->rig, 1100);
    assert_int_equal(next(f), C);
    assert_int_equal(next(f), RIG_SPACES);
    /* What the policy refuses passes on to those that it takes. */
    p->ready = false;
    save(f, A, 1);
    assert_true(f->rig.node->store.queues[LDR_SHARED_QUEUE].takes);
    save(f, C, 1);
    assert_false(f->rig.node->store.queues[LDR_SHARED_QUEUE].takes);
    p->ready = true;
}

/* Two that the tier takes nothing of, one of them with enough for an object:
 * each is asked once. */
static void test_parts_off(void **state)
{
    fixture_t *f = *state;
    ldr_objects_t *t = shared(f)->tier;
    bool before[64];

    save(f, A, 1);
    save(f, B, 9);
    rig_sleep(&f->rig, 1100);
    assert_true(t->volume_count <= 64);
    for (size_t i = 0; i < t->volume_count; i++) {
        before[i] = t->volumes[i]->ready;
        t->volumes[i]->ready = false;
    }
    assert_int_equal(next(f), RIG_SPACES);
    assert_int_equal(f->rig.node->store.queues[LDR_SHARED_QUEUE].count, 10);
    for (size_t i = 0; i < t->volume_count; i++) {
        t->volumes[i]->ready = before[i];
    }
    rig_sleep(&f->rig, 1100);
    assert_int_equal(next(f), A);
    assert_int_equal(next(f), B);
}

/* What is evicted leaves the queue it was in. */
static void test_evicted(void **state)
{
    fixture_t *f = *state;
    const ldr_store_t *store = &f->rig.node->store;

    save(f, A, 4);
    save(f, B, 4);
    assert_int_equal(store->queues[LDR_SHARED_QUEUE].count, 8);
    for (uint32_t key = 1; key <= 4; key++) {
        assert_int_equal(rig_remove(&f->rig, (name_t){A, 0, key}), LARDER_OK);
    }
    assert_int_equal(store->queues[LDR_SHARED_QUEUE].count, 4);
    assert_int_equal(store->queues[LDR_SHARED_QUEUE].bytes, 4 * MIB);
    assert_int_equal(store->queues[LDR_SHARED_QUEUE].first,
                     f->rig.spaces[B]->number);
    assert_int_equal(store->queues[LDR_SHARED_QUEUE].last,
                     f->rig.spaces[B]->number);
    rig_sleep(&f->rig, 1100);
    assert_int_equal(next(f), B);
    assert_int_equal(store->queues[LDR_SHARED_QUEUE].first, LDR_NIL);
}

static uint64_t written(fixture_t *f)
{
    return f->rig.node->store.n.offers_written;
}

/* While saves never cease it is one object at a time, and the next only after
 * as long as it may take; what waits is not lost, and goes once they cease. */
static void test_saves_go_on(void **state)
{
    fixture_t *f = *state;

    save(f, A, 63);
    assert_int_equal(next(f), RIG_SPACES); /* it may be a burst */
    save(f, A, 33);
    assert_int_equal(next(f), A);
    assert_int_equal(next(f), RIG_SPACES);
    rig_sleep(&f->rig, 20);
    save(f, A, 1);
    assert_int_equal(next(f), RIG_SPACES);
    rig_sleep(&f->rig, 20);
    save(f, A, 1);
    assert_int_equal(next(f), A);
    assert_int_equal(next(f), RIG_SPACES);
    assert_int_equal(written(f), 32);
    rig_sleep(&f->rig, 4);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(next(f), A);
    }
    rig_sleep(&f->rig, 1100); /* too few for an object */
    assert_int_equal(next(f), A);
    assert_int_equal(written(f), 63 + 33 + 2);
    assert_int_equal(f->rig.node->store.n.queue_evicted[LDR_SHARED_QUEUE], 0);
}

/* Nor do few wait for ever then; whoever flushes does not wait for a pause. */
static void test_saves_go_on_with_few(void **state)
{
    fixture_t *f = *state;

    save(f, B, 1);
    save(f, A, 32);
    rig_sleep(&f->rig, 1100);
    save(f, A, 1);
    assert_int_equal(next(f), B);
    assert_int_equal(next(f), RIG_SPACES); /* due, and not yet its time */
    rig_sleep(&f->rig, 2); /* no pause, but enough for what was so small */
    assert_int_equal(next(f), A);
    assert_int_equal(next(f), RIG_SPACES);
    shared(f)->hurry++;
    assert_int_equal(next(f), A);
    assert_int_equal(next(f), A);
    assert_int_equal(next(f), RIG_SPACES);
    shared(f)->hurry--;
    assert_int_equal(written(f), 34);
}

/* One object under way is enough while saves go on, however slow it is. */
static void test_one_under_way(void **state)
{
    fixture_t *f = *state;
    ldr_shared_t *s = shared(f);
    uint64_t wake;

    save(f, A, 100);
    s->uploads_flying = 1; /* a slow one */
    s->upload_count = 2;
    rig_sleep(&f->rig, 100);
    save(f, A, 1);
    ldr_node_lock(f->rig.node);
    assert_false(ldr_shared_write(s, &wake));
    ldr_node_unlock(f->rig.node);
    s->uploads_flying = 0;
    s->upload_count = 1;
    assert_int_equal(next(f), A);
}

/* Who saves wakes the thread only if that would not look soon by itself; when
 * nothing is saved any more it sleeps. */
static void test_wakes(void **state)
{
    fixture_t *f = *state;
    ldr_shared_t *s = shared(f);
    const ldr_clock_t *clock = f->rig.node->clock;

    assert_int_equal(next(f), RIG_SPACES);
    assert_true(s->look_ns == UINT64_MAX);
    save(f, A, 1);
    assert_true(s->look_ns == 0);
    for (unsigned i = 0; i < 30; i++) {
        assert_int_equal(next(f), RIG_SPACES);
        uint64_t look_ns = s->look_ns;
        assert_in_range(look_ns - ldr_now_ns(clock), 1, 50000000);
        save(f, B, 1);
        assert_true(s->look_ns == look_ns);
        rig_sleep(&f->rig, 1);
    }
    rig_sleep(&f->rig, 10);
    assert_int_equal(next(f), B);
    rig_sleep(&f->rig, 2000);
    assert_int_equal(next(f), A);
    assert_int_equal(next(f), B);
    assert_int_equal(next(f), RIG_SPACES);
    assert_true(s->look_ns == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_turns, setup, teardown),
        cmocka_unit_test_setup_teardown(test_few, setup, teardown),
        cmocka_unit_test_setup_teardown(test_part_off, setup, teardown),
        cmocka_unit_test_setup_teardown(test_parts_off, setup, teardown),
        cmocka_unit_test_setup_teardown(test_evicted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_saves_go_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_saves_go_on_with_few, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_one_under_way, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wakes, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
