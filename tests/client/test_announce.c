/*
 * Requests that a node is told of: each once, by whoever tells it, over every
 * transport.
 */
#include "client/prefix_rig.h"

/* Of the metrics of the handle's tenant. */
static uint64_t figure(larder_t *lar, const char *name)
{
    size_t length = 0, size = (size_t)1 << 20;
    char *text = malloc(size);

    assert_non_null(text);
    assert_status(larder_metrics(lar, text, size, &length), LARDER_OK);
    assert_true(length < size);
    char line[200];
    snprintf(line, sizeof(line), "\n%s{tenant=\"default\"", name);
    const char *at = strstr(text, line);
    assert_non_null(at);
    at = strstr(at, "} ");
    assert_non_null(at);
    uint64_t value = strtoull(at + 2, NULL, 10);
    free(text);
    return value;
}

static void put_chain(larder_space_t *space, size_t count, larder_key_t *keys)
{
    uint8_t data[100] = {0};
    struct iovec iov = {data, sizeof(data)};

    for (size_t i = 0; i < count; i++) {
        keys[i] = key_of(i);
        larder_item_t item = {.key = &keys[i],
                              .parent = i > 0 ? &keys[i - 1] : NULL,
                              .depth = (uint32_t)i,
                              .iov = &iov,
                              .iov_count = 1};

        assert_status(larder_run(space, LARDER_OP_PUT, &item, 1, NULL), 0);
        assert_status(item.status, LARDER_OK);
    }
}

static uint64_t told(fix_t *f)
{
    return figure(f->lar, "larder_policy_requests_total");
}

static void announce(larder_space_t *space, const larder_key_t *keys,
                     size_t count, uint64_t id, uint32_t hint)
{
    larder_announce_params_t p = {
        .field_mask =
            LARDER_ANNOUNCE_ID | LARDER_ANNOUNCE_HINT | LARDER_ANNOUNCE_TOKENS,
        .id = id,
        .tokens = (uint32_t)count * 256,
        .hint = hint,
    };

    assert_status(larder_announce(space, keys, count, &p, 0), LARDER_OK);
}

static void test_once(void **state)
{
    enum { CHAIN = 6 };
    fix_t *f = fix(state);
    larder_key_t keys[CHAIN];
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open_dram(f, "dram=8M");
    put_chain(f->space, CHAIN, keys);
    assert_int_equal(told(f), 0); /* puts and probes are no requests */
    assert_status(larder_match(f->space, keys, CHAIN, 0, &m), LARDER_OK);
    assert_int_equal(told(f), 0);
    /* Staging tells of its chain, */
    assert_status(larder_stage(f->space, keys, CHAIN, 0, 0, &lease, &m), 0);
    larder_release(&lease);
    assert_int_equal(told(f), 1);
    /* unless somebody does who knows more. */
    announce(f->space, keys, CHAIN, 7, 2);
    assert_int_equal(told(f), 2);
    announce(f->space, keys, CHAIN, 7, 2); /* another rank */
    assert_status(larder_stage(f->space, keys, CHAIN, 0, 0, &lease, &m), 0);
    larder_release(&lease);
    assert_int_equal(told(f), 2);
    announce(f->space, keys, CHAIN, 8, LARDER_HINT_TEMPLATE);
    assert_int_equal(told(f), 3);
    announce(f->space, keys, CHAIN, 9, LARDER_HINT_OVER); /* is none */
    assert_int_equal(told(f), 3);
    /* Without a number: another chain is another request. */
    assert_status(larder_announce(f->space, keys, CHAIN - 1, NULL, 0), 0);
    assert_int_equal(told(f), 4);
}

static void test_longest(void **state)
{
    enum { CHAIN = 20000 }; /* more than a frame has room for */
    fix_t *f = fix(state);
    larder_key_t *keys = calloc(CHAIN, sizeof(*keys));

    assert_non_null(keys);
    for (uint32_t i = 0; i < CHAIN; i++) {
        memcpy(keys[i].hash, &i, sizeof(i));
        keys[i].hash[30] = 1;
    }
    fix_open_dram(f, "dram=8M");
    announce(f->space, keys, CHAIN, 1, 0);
    assert_int_equal(told(f), 1);
    free(keys);
}

/* Saves tell of what nobody has told of. */
static void test_saves(void **state)
{
    fix_t *f = fix(state);
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    pair_t p;
    ldr_rand_t r;

    ldr_rand_seed(&r, 5);
    fix_open_dram(f, "dram=64M");
    pair_fixed(&p, f->lar, &r, 1, 1);
    pair_save(&p, 0); /* in steps: the first one tells, the others go on */
    assert_int_equal(told(f), 1);
    assert_true(larder_prefix_stage(p.space, p.to[0].layout, p.keys, CHUNKS,
                                    NULL, 0, &lease, &m) >= 0);
    larder_release(&lease);
    assert_int_equal(told(f), 2);
    pair_free(&p);
}

static void test_lru(void **state)
{
    enum { CHAIN = 4 };
    fix_t *f = fix(state);
    larder_key_t keys[CHAIN];

    fix_open_dram(f, "dram=8M&policy=lru");
    put_chain(f->space, CHAIN, keys);
    announce(f->space, keys, CHAIN, 7, LARDER_HINT_CLOSED);
    assert_int_equal(told(f), 0); /* it has no use for it */
}

static void test_misuse(void **state)
{
    fix_t *f = fix(state);
    larder_key_t key = {{1}};
    larder_announce_params_t p = {.field_mask = LARDER_ANNOUNCE_HINT,
                                  .hint = 0x20};

    fix_open_dram(f, "dram=8M");
    assert_status(larder_announce(NULL, &key, 1, NULL, 0), LARDER_E_INVALID);
    assert_status(larder_announce(f->space, NULL, 1, NULL, 0),
                  LARDER_E_INVALID);
    assert_status(larder_announce(f->space, &key, 0, NULL, 0),
                  LARDER_E_INVALID);
    assert_status(larder_announce(f->space, &key, 1, &p, 0), LARDER_E_INVALID);
    p.field_mask = 0; /* then it is not looked at */
    assert_status(larder_announce(f->space, &key, 1, &p, 0), LARDER_OK);
    assert_int_equal(told(f), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_once, "plain"),   ONE(test_longest, "plain"),
        ONE(test_saves, "plain"),  ONE(test_lru, "plain"),
        ONE(test_misuse, "plain"),
    };

    return cmocka_run_group_tests_name("client/announce", tests, NULL, NULL);
}
