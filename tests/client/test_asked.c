/* What engines ask for is counted once, however they go about it. */
#include "client/client.h"
#include "client/prefix_rig.h"
#include "node/node.h"

typedef struct count {
    uint64_t asked, found;
} count_t;

static count_t count_of(fix_t *f)
{
    larder_stats_t s = stats_of(f->lar);

    return (count_t){s.asked_chunks, s.found_chunks};
}

/* So many more than before. */
static void assert_more(fix_t *f, count_t *before, uint64_t asked,
                        uint64_t found)
{
    count_t now = count_of(f);

    assert_int_equal(now.asked - before->asked, asked);
    assert_int_equal(now.found - before->found, found);
    *before = now;
}

/* Matched, perhaps a part of it again, staged and loaded: one request. Layouts
 * of any groups and rules. */
static void test_prefix(void **state)
{
    enum { PAIRS = 20, SAVED = CHUNKS / 2 };
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    ldr_rand_t r;

    ldr_rand_seed(&r, 7);
    fix_open(f, "dram=64M");
    count_t n = count_of(f);
    for (uint64_t i = 0; i < PAIRS; i++) {
        larder_lease_t *lease = NULL;
        larder_match_t m = {.struct_bytes = sizeof(m)};

        pair_make(p, f->lar, &r, i, 1);
        const larder_layout_t *layout = p->to[0].layout;
        uint32_t tokens = p->model.chunk_tokens;

        assert_status(
            larder_prefix_match(p->space, layout, p->keys, CHUNKS, 0, &m), 0);
        assert_more(f, &n, CHUNKS, 0);
        engine_run(&p->from[0], p->space, p->keys, SAVED * tokens);
        n = count_of(f);

        assert_status(
            larder_prefix_match(p->space, layout, p->keys, CHUNKS, 0, &m), 0);
        assert_int_equal(m.chunks, SAVED);
        assert_more(f, &n, CHUNKS, SAVED);
        /* Is less of it worth more? */
        assert_status(
            larder_prefix_match(p->space, layout, p->keys, SAVED - 1, 0, &m),
            0);
        assert_status(larder_prefix_stage(p->space, layout, p->keys, SAVED,
                                          NULL, 0, &lease, &m),
                      0);
        engine_load(&p->to[0], p->space, p->keys, 0, SAVED * tokens);
        larder_release(&lease);
        assert_more(f, &n, 0, 0);

        /* The same prompt, staged at once, twice. */
        for (int k = 0; k < 2; k++) {
            assert_status(larder_prefix_stage(p->space, layout, p->keys, CHUNKS,
                                              NULL, 0, &lease, &m),
                          0);
            engine_load(&p->to[0], p->space, p->keys, 0, SAVED * tokens);
            larder_release(&lease);
            assert_more(f, &n, CHUNKS, SAVED);
        }
        pair_free(p);
    }
    free(p);
}

/* ---- without layouts ---- */

enum { ALL = 10, HERE = 5 };

typedef struct chain {
    larder_space_t *space;
    larder_key_t keys[ALL];
    uint8_t bytes[ALL][64];
} chain_t;

static larder_status_t run(chain_t *c, larder_op_t op, uint32_t count)
{
    larder_item_t items[ALL];
    struct iovec iov[ALL];
    larder_status_t st = LARDER_OK;

    for (uint32_t i = 0; i < count; i++) {
        iov[i] = (struct iovec){c->bytes[i], sizeof(c->bytes[i])};
        items[i] = (larder_item_t){.key = &c->keys[i],
                                   .iov = &iov[i],
                                   .iov_count = op != LARDER_OP_EXISTS};
    }
    assert_status(larder_run(c->space, op, items, count, NULL), 0);
    for (uint32_t i = 0; i < count; i++) {
        st = items[i].status != LARDER_OK ? items[i].status : st;
    }
    return st;
}

/* Another chain, of which the first half is here. */
static void chain_new(chain_t *c, uint32_t number)
{
    for (uint32_t i = 0; i < ALL; i++) {
        c->keys[i] = key_of(1000 * number + i);
    }
    assert_status(run(c, LARDER_OP_PUT, HERE), 0);
}

static void match(chain_t *c, uint32_t count, uint32_t found)
{
    larder_match_t m = {.struct_bytes = sizeof(m)};

    assert_status(larder_match(c->space, c->keys, count, 0, &m), 0);
    assert_int_equal(m.chunks, found);
}

static void stage_and_load(chain_t *c, uint32_t count)
{
    larder_lease_t *lease;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    assert_status(larder_stage(c->space, c->keys, count, 0, 0, &lease, &m), 0);
    assert_int_equal(m.chunks, HERE);
    assert_status(run(c, LARDER_OP_GET, HERE), 0);
    larder_release(&lease);
}

static void test_calls(void **state)
{
    fix_t *f = fix(state);
    chain_t *c = calloc(1, sizeof(*c));

    fix_open(f, "dram=64M");
    c->space = open_space(f->lar, "asked", 1);
    count_t n = count_of(f);

    chain_new(c, 1);
    assert_more(f, &n, 0, 0); /* saves ask for nothing */
    match(c, ALL, HERE);
    assert_more(f, &n, ALL, HERE);
    assert_status(run(c, LARDER_OP_GET, HERE), 0);
    assert_more(f, &n, 0, 0);

    match(c, ALL, HERE); /* another request */
    match(c, 3, 3);
    stage_and_load(c, HERE);
    assert_more(f, &n, ALL, HERE);
    stage_and_load(c, ALL);
    stage_and_load(c, ALL);
    assert_more(f, &n, 2 * ALL, 2 * HERE);
    match(c, ALL, HERE); /* all of it, then all of it staged */
    stage_and_load(c, ALL);
    assert_more(f, &n, ALL, HERE);

    chain_new(c, 2); /* gets alone */
    assert_status(run(c, LARDER_OP_GET, ALL), LARDER_MISS);
    assert_more(f, &n, ALL, HERE);
    assert_status(run(c, LARDER_OP_GET, HERE), 0);
    assert_more(f, &n, HERE, HERE);

    chain_new(c, 3); /* which of them are there, and those */
    for (int i = 0; i < 3; i++) {
        assert_status(run(c, LARDER_OP_EXISTS, ALL), LARDER_MISS);
        assert_status(run(c, LARDER_OP_GET, HERE), 0);
        assert_more(f, &n, ALL, HERE);
    }
    larder_space_close(&c->space);
    free(c);
}

/* A chain of one group, of which only the first half is here, is looked up
 * once. */
static void test_looked_up_once(void **state)
{
    fix_t *f = fix(state);
    chain_t *c = calloc(1, sizeof(*c));

    fix_open(f, "dram=64M");
    c->space = open_space(f->lar, "asked", 1);
    chain_new(c, 1);
    if (f->lar->node != NULL) { /* a daemon's node cannot be looked into */
        const uint64_t *matched = &f->lar->node->store.n.matched_chunks;
        uint64_t before = *matched;

        match(c, ALL, HERE);
        assert_int_equal(*matched - before, HERE);
    }
    larder_space_close(&c->space);
    free(c);
}

/* Two who ask for the same have asked twice. */
static void test_handles(void **state)
{
    fix_t *f = fix(state);
    chain_t *c = calloc(1, sizeof(*c));
    larder_space_t *spaces[2];

    fix_open(f, "dram=64M");
    for (int i = 0; i < 2; i++) {
        spaces[i] = open_space(f->lar, "asked", 1);
    }
    c->space = spaces[0];
    chain_new(c, 1);
    count_t n = count_of(f);
    for (int i = 0; i < 2; i++) {
        c->space = spaces[i];
        match(c, ALL, HERE);
    }
    assert_more(f, &n, 2 * ALL, 2 * HERE);
    for (int i = 0; i < 2; i++) {
        c->space = spaces[i];
        stage_and_load(c, HERE);
    }
    assert_more(f, &n, 0, 0);
    /* One of them loads what the other has asked for: it asks, too. */
    larder_space_close(&spaces[1]);
    spaces[1] = c->space = open_space(f->lar, "asked", 1);
    assert_status(run(c, LARDER_OP_GET, HERE), 0);
    assert_more(f, &n, HERE, HERE);
    larder_space_close(&spaces[0]);
    larder_space_close(&spaces[1]);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_prefix, "plain"),
        ONE(test_calls, "plain"),
        ONE(test_looked_up_once, "plain"),
        ONE(test_handles, "plain"),
    };

    return cmocka_run_group_tests_name("client/asked", tests, NULL, NULL);
}
