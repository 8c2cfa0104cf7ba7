/* Promises and hand-off leases (node/promise.h), on a clock that a test
 * moves. */
#include "node/promise.h"
#include "tier/ssd/disk_rig.h"

#define SECONDS ((uint64_t)1000000000)

enum { CHUNKS = 4, ENGINE = 7, OTHER = 8 };

static const ldr_need_t all = {LDR_NEED_ALL, 0};

/* Somebody who waits. */
typedef struct waiter {
    ldr_promise_wait_t wait;
    unsigned called;
} waiter_t;

static void note_ready(ldr_promise_wait_t *wait)
{
    ((waiter_t *)wait)->called++;
}

static int setup(void **state)
{
    fixture_t *f = fixture_make(state, 64, 256 * LDR_BLOCK);

    f->rig.tenants = true;
    return fixture_open(f);
}

/* A chain of the first space, which has one shard for each chunk. */
typedef struct chain {
    larder_key_t keys[CHUNKS];
    ldr_prefix_t prefix;
    larder_token_t token;
} chain_t;

static chain_t chain_of(fixture_t *f, uint32_t first)
{
    chain_t c = {.token = {.bytes = {1, (uint8_t)first}}};

    for (uint32_t i = 0; i < CHUNKS; i++) {
        c.keys[i] = test_key(first + i);
    }
    c.prefix = (ldr_prefix_t){.space = f->rig.spaces[0]->number,
                              .shards = rig_shards(0),
                              .needs = &all,
                              .need_count = 1,
                              .count = CHUNKS};
    return c;
}

static larder_status_t promise(fixture_t *f, chain_t *c, uint64_t owner)
{
    c->prefix.keys = c->keys;
    return ldr_promise_make(f->rig.node, &c->prefix, &c->token, owner);
}

static larder_status_t tell(fixture_t *f, const chain_t *c,
                            larder_handoff_t what)
{
    return ldr_promise_tell(f->rig.node, c->prefix.space, &c->token, what);
}

static bool await(fixture_t *f, chain_t *c, waiter_t *w)
{
    w->wait.ready = note_ready;
    w->called = 0;
    c->prefix.keys = c->keys;
    return ldr_promise_await(f->rig.node, &c->prefix, &w->wait);
}

static void save(fixture_t *f, uint32_t key)
{
    for (uint16_t i = 0; i < rig_shards(0); i++) {
        assert_int_equal(rig_put(&f->rig, (name_t){0, i, key}, 1), LARDER_OK);
    }
}

static void move_clock(fixture_t *f, uint64_t ns)
{
    f->rig.now_ns += ns;
    ldr_promise_expire(f->rig.node);
}

static uint64_t held(fixture_t *f)
{
    larder_stats_t s = {.struct_bytes = sizeof(s)};

    /* What is being written down is held too. */
    larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
    store_check(&f->rig.node->store);
    assert_int_equal(larder_stats(f->rig.lar, &s), LARDER_OK);
    return s.dram_leased_chunks;
}

static const ldr_counters_t *counted(fixture_t *f)
{
    return &f->rig.node->store.n;
}

/* More than DRAM holds, all of it newer. */
static void fill_dram(fixture_t *f)
{
    uint64_t evicted = counted(f)->evicted_chunks;

    for (uint32_t i = 0; i < 200; i++) {
        save(f, RIG_CHAIN * (i + 100));
        larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
    }
    assert_true(counted(f)->evicted_chunks > evicted);
}

/* A wait is for the last chunk, and over when that came; what came is held
 * until the lease ends. */
static void test_kept(void **state)
{
    fixture_t *f = *state;
    chain_t c = chain_of(f, 8);
    waiter_t w = {.called = 0};

    assert_false(await(f, &c, &w)); /* nobody has promised it */
    assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
    assert_int_equal(promise(f, &c, ENGINE), LARDER_E_INVALID);
    assert_true(await(f, &c, &w));
    for (uint32_t i = 0; i < CHUNKS; i++) {
        assert_int_equal(w.called, 0);
        save(f, 8 + i);
    }
    assert_int_equal(w.called, 1);
    assert_null(w.wait.on);
    assert_false(await(f, &c, &w));
    assert_int_equal(counted(f)->handoff_kept, CHUNKS);
    assert_int_equal(held(f), CHUNKS);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_OVER), LARDER_OK);
    assert_int_equal(held(f), 0);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_OVER), LARDER_MISS);
}

/* What was there before the promise is not waited for, and is held. */
static void test_there(void **state)
{
    fixture_t *f = *state;
    chain_t c = chain_of(f, 8);
    waiter_t w = {.called = 0};

    for (uint32_t i = 0; i < CHUNKS; i++) {
        save(f, 8 + i);
    }
    assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
    assert_false(await(f, &c, &w));
    assert_int_equal(held(f), CHUNKS);
    fill_dram(f);
    assert_int_equal(held(f), CHUNKS);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_OVER), LARDER_OK);
}

/* A chunk that comes out of order is held, and the wait goes on with the
 * next. */
static void test_order(void **state)
{
    fixture_t *f = *state;
    chain_t c = chain_of(f, 8);
    waiter_t w = {.called = 0};

    assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
    assert_true(await(f, &c, &w));
    save(f, 8 + CHUNKS - 1);
    assert_int_equal(w.called, 1);
    assert_true(await(f, &c, &w)); /* for another */
    ldr_promise_unawait(f->rig.node, &w.wait);
    for (uint32_t i = 0; i < CHUNKS - 1; i++) {
        save(f, 8 + i);
    }
    assert_int_equal(w.called, 0);
    assert_false(await(f, &c, &w));
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_OVER), LARDER_OK);
}

/* The promiser says so, is gone, or ends it: nobody waits any more. */
static void test_broken(void **state)
{
    fixture_t *f = *state;

    for (unsigned how = 0; how < 4; how++) {
        chain_t c = chain_of(f, RIG_CHAIN * (1 + how));
        waiter_t w = {.called = 0}, second = {.called = 0};

        assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
        save(f, RIG_CHAIN * (1 + how));
        assert_true(await(f, &c, &w));
        assert_true(await(f, &c, &second));
        ldr_promise_owner_gone(f->rig.node, OTHER);
        assert_int_equal(w.called, 0);
        if (how == 0) {
            assert_int_equal(tell(f, &c, LARDER_HANDOFF_FAILED), LARDER_OK);
        } else if (how == 1) {
            assert_int_equal(tell(f, &c, LARDER_HANDOFF_OVER), LARDER_OK);
        } else {
            if (how == 2) {
                tell(f, &c, LARDER_HANDOFF_ANSWERED);
            }
            ldr_promise_owner_gone(f->rig.node, ENGINE);
            /* What other sessions of the engine sent may be on its way. */
            assert_int_equal(w.called, how == 3);
            move_clock(f, SECONDS);
        }
        assert_int_equal(w.called, 1);
        assert_int_equal(second.called, 1);
        assert_false(await(f, &c, &w));
        /* What came stays under a lease that others may have heard of. */
        assert_int_equal(held(f), how == 0 || how == 2 ? 1 : 0);
        tell(f, &c, LARDER_HANDOFF_OVER);
        assert_int_equal(held(f), 0);
    }
    assert_int_equal(counted(f)->handoff_failed, 4 * (CHUNKS - 1));
}

/* A save that was reserved and given up will not come; if it comes all the
 * same, it is held. */
static void test_given_up(void **state)
{
    fixture_t *f = *state;
    chain_t c = chain_of(f, 8);
    waiter_t w = {.called = 0};
    larder_key_t key = test_key(8 + CHUNKS - 1);
    larder_item_t item = {.key = &key};
    ldr_target_t t = {f->rig.spaces[0]->number, rig_shards(0), &item};
    uint32_t shard;

    assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
    assert_true(await(f, &c, &w));
    assert_int_equal(ldr_node_reserve(f->rig.node, &t, 4096, &shard),
                     LARDER_OK);
    assert_int_equal(w.called, 0);
    ldr_node_abort(f->rig.node, shard);
    assert_int_equal(w.called, 1);
    save(f, 8 + CHUNKS - 1);
    assert_int_equal(held(f), 1);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_OVER), LARDER_OK);
}

/* Silent for 30 s after the answer: it is over, whatever came. A renewal
 * counts from when it comes. */
static void test_expires(void **state)
{
    fixture_t *f = *state;
    chain_t c = chain_of(f, 8);

    assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
    save(f, 8);
    move_clock(f, 300 * SECONDS); /* it waits in the engine's queue */
    assert_int_equal(held(f), 1);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_ANSWERED), LARDER_OK);
    move_clock(f, 29 * SECONDS);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_RENEW), LARDER_OK);
    move_clock(f, 29 * SECONDS);
    assert_int_equal(held(f), 1);
    move_clock(f, 2 * SECONDS);
    assert_int_equal(held(f), 0);
    assert_int_equal(counted(f)->handoffs_expired, 1);
    assert_int_equal(counted(f)->handoffs_late, 0);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_RENEW), LARDER_MISS);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_OVER), LARDER_MISS);
    assert_int_equal(counted(f)->handoffs_late, 1); /* who wanted it */
    /* One whose engine lives and never answers ends as well. */
    assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
    move_clock(f, 601 * SECONDS);
    assert_int_equal(counted(f)->handoffs_expired, 2);
    assert_int_equal(held(f), 0);
}

/* In an embedded node nobody looks at the time but who needs memory, or who
 * asks. */
static void test_embedded(void **state)
{
    fixture_t *f = *state;
    ldr_store_t *s = &f->rig.node->store;
    chain_t c = chain_of(f, 8);

    assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        save(f, 8 + i);
    }
    larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_ANSWERED), LARDER_OK);
    f->rig.now_ns += 29 * SECONDS;
    save(f, RIG_CHAIN * 100);
    larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
    assert_int_equal(s->held_chunks, CHUNKS);
    f->rig.now_ns += 2 * SECONDS;
    save(f, RIG_CHAIN * 101);
    larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
    assert_int_equal(s->held_chunks, 0);
    assert_int_equal(counted(f)->handoffs_expired, 1);
    assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_ANSWERED), LARDER_OK);
    f->rig.now_ns += 31 * SECONDS;
    assert_int_equal(held(f), 0);
}

/* What has not come 5 s after the answer is not waited for. */
static void test_late(void **state)
{
    fixture_t *f = *state;
    chain_t c = chain_of(f, 8);
    waiter_t w = {.called = 0};

    assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
    assert_true(await(f, &c, &w));
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_ANSWERED), LARDER_OK);
    move_clock(f, 4 * SECONDS);
    assert_int_equal(w.called, 0);
    move_clock(f, 2 * SECONDS);
    assert_int_equal(w.called, 1);
    assert_false(await(f, &c, &w));
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_OVER), LARDER_OK);
}

/* Of DRAM that held chunks take. */
static uint32_t held_pages(const fixture_t *f)
{
    const ldr_store_t *s = &f->rig.node->store;
    uint32_t pages = 0;

    for (uint32_t i = 0; i < s->shard_top; i++) {
        if (s->shards[i].state == LDR_SHARD_READY &&
            s->chunks[s->shards[i].chunk].holds > 0) {
            pages += ldr_arena_pages(s->shards[i].length);
        }
    }
    return pages;
}

/* Under pressure what is held stays, and what is not goes; a quarter of DRAM is
 * the most, whose pages are counted: small shards have a page each. */
static void test_held(void **state)
{
    fixture_t *f = *state;
    uint32_t most = f->rig.node->store.arena.page_count / LDR_PROMISE_DRAM_PART;
    const ldr_tenant_t *tenant;
    uint32_t count = 0;

    while (counted(f)->handoff_unheld == 0) {
        chain_t c = chain_of(f, RIG_CHAIN * (1 + count++));

        assert_true(count < 10000);
        assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
        for (uint32_t i = 0; i < CHUNKS; i++) {
            save(f, RIG_CHAIN * count + i);
        }
        larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
    }
    tenant = &f->rig.node->store.tenants
                  [f->rig.node->store.spaces[f->rig.spaces[0]->number].tenant];
    uint64_t before = held(f);
    assert_int_equal(tenant->promised_pages, held_pages(f));
    assert_true(held_pages(f) <= most);
    assert_true(held_pages(f) > most / 2);
    fill_dram(f);
    assert_int_equal(held(f), before);
    ldr_promise_owner_gone(f->rig.node, ENGINE); /* nobody was answered */
    assert_int_equal(held(f), 0);
    assert_int_equal(tenant->promised_pages, 0);
    assert_int_equal(tenant->promised_slots, 0);
}

/* A tenant promises so much and no more. */
static void test_capped(void **state)
{
    enum { LONG = 4096 };
    fixture_t *f = *state;
    larder_key_t *keys = calloc(LONG, sizeof(*keys));
    larder_status_t st = LARDER_OK;
    chain_t c = chain_of(f, 8);
    ldr_prefix_t p = c.prefix;
    uint32_t made = 0;

    for (uint32_t i = 0; i < LONG; i++) {
        keys[i] = test_key(1000 + i);
    }
    p.keys = keys;
    p.count = LONG;
    while (st == LARDER_OK) {
        c.token.bytes[2] = (uint8_t)(made + 1);
        st = ldr_promise_make(f->rig.node, &p, &c.token, ENGINE);
        made += st == LARDER_OK;
    }
    free(keys);
    assert_int_equal(st, LARDER_E_LIMIT);
    assert_int_equal(made, LDR_PROMISE_SLOTS_MAX / LONG);
    assert_int_equal(promise(f, &c, OTHER), LARDER_E_LIMIT);
    ldr_promise_owner_gone(f->rig.node, ENGINE);
    assert_int_equal(promise(f, &c, OTHER), LARDER_OK);
}

/* A token of one tenant stands for nothing in another. */
static void test_tenant(void **state)
{
    fixture_t *f = *state;
    chain_t c = chain_of(f, 8);

    assert_int_equal(promise(f, &c, ENGINE), LARDER_OK);
    assert_int_equal(ldr_promise_tell(f->rig.node,
                                      f->rig.spaces[RIG_SPACES - 1]->number,
                                      &c.token, LARDER_HANDOFF_OVER),
                     LARDER_MISS);
    assert_int_equal(tell(f, &c, LARDER_HANDOFF_RENEW), LARDER_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_there, setup, teardown),
        cmocka_unit_test_setup_teardown(test_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_broken, setup, teardown),
        cmocka_unit_test_setup_teardown(test_given_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_expires, setup, teardown),
        cmocka_unit_test_setup_teardown(test_embedded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_late, setup, teardown),
        cmocka_unit_test_setup_teardown(test_held, setup, teardown),
        cmocka_unit_test_setup_teardown(test_capped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tenant, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
