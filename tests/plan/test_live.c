/*
 * What `larder plan` says of a trace is what a node does: the same trace
 * through an embedded node with small values, its clock moved by the trace,
 * gets the very hits that the simulation counts.
 */
#include "plan/rig.h"

#include "support/rig.h"
#include "support/policycheck.h"

#define TOKENS 512u /* of a block, and of a chunk */
#define REQUESTS 2500u
#define SESSIONS 400u
#define BLOCKS_MAX 40u
#define SLOTS 192u /* chunks that the node has room for, one to a page */
#define VALUE 48u

/* ---- a trace ----
 *
 * Chats: some short ones that come back within minutes, some long ones that
 * hardly do, on a few common beginnings. Blocks that are not full get a new id
 * with each turn. */

typedef struct chat {
    uint64_t ids[BLOCKS_MAX];
    uint32_t tokens;
    uint64_t next_ms;
    bool goes_on;
} chat_t;

static uint64_t next_id = 1000;

static void chat_grow(chat_t *c, uint32_t tokens)
{
    uint32_t full = c->tokens / TOKENS;

    if (c->tokens + tokens > BLOCKS_MAX * TOKENS) {
        tokens = BLOCKS_MAX * TOKENS - c->tokens;
    }
    c->tokens += tokens;
    for (uint32_t i = full; i * TOKENS < c->tokens; i++) {
        c->ids[i] = next_id++;
    }
}

static void chat_begin(chat_t *c, ldr_rand_t *r)
{
    uint32_t begins = (uint32_t)ldr_rand_below(r, 6);
    bool paste = ldr_rand_below(r, 3) == 0;

    memset(c, 0, sizeof(*c));
    for (uint32_t i = 0; begins < 4 && i < 2 + begins; i++) {
        c->ids[i] = 10 + begins * 10 + i;
        c->tokens += TOKENS;
    }
    chat_grow(c, (uint32_t)(paste ? 6000 + ldr_rand_below(r, 8000)
                                  : 300 + ldr_rand_below(r, 2500)));
    c->goes_on = ldr_rand_below(r, 100) < (paste ? 8u : 75u);
}

static size_t write_request(char *to, size_t room, uint64_t ms, const chat_t *c,
                            unsigned hint)
{
    size_t used = (size_t)snprintf(to, room,
                                   "{\"timestamp\":%llu,\"input_length\":%u,"
                                   "\"output_length\":1,\"hint\":%u,"
                                   "\"hash_ids\":[",
                                   (unsigned long long)ms, c->tokens, hint);

    for (uint32_t i = 0; i * TOKENS < c->tokens; i++) {
        used +=
            (size_t)snprintf(to + used, room - used, "%s%llu", i > 0 ? "," : "",
                             (unsigned long long)c->ids[i]);
    }
    return used + (size_t)snprintf(to + used, room - used, "]}\n");
}

static void make_trace(uint64_t seed, ldr_tape_t *tape)
{
    static chat_t chats[SESSIONS];
    size_t room = (size_t)REQUESTS * (BLOCKS_MAX * 8 + 128), used = 0;
    char *text = malloc(room);
    uint64_t ms = 0;
    ldr_rand_t r;

    assert_non_null(text);
    memset(chats, 0, sizeof(chats));
    ldr_rand_seed(&r, seed);
    for (unsigned i = 0; i < REQUESTS; i++) {
        chat_t *c = NULL, *idle = &chats[ldr_rand_below(&r, SESSIONS)];

        ms += 100 + ldr_rand_below(&r, 1500);
        for (uint32_t k = 0; k < SESSIONS; k++) {
            if (chats[k].goes_on && chats[k].next_ms <= ms &&
                (c == NULL || chats[k].next_ms < c->next_ms)) {
                c = &chats[k];
            } else if (!chats[k].goes_on) {
                idle = &chats[k];
            }
        }
        if (c == NULL) {
            c = idle;
            chat_begin(c, &r);
        } else {
            chat_grow(c, (uint32_t)(50 + ldr_rand_below(&r, 900)));
            c->goes_on = ldr_rand_below(&r, 100) < 85;
        }
        c->next_ms = ms + 20000 + ldr_rand_below(&r, 60000);
        used += write_request(text + used, room - used, ms, c, 0);
    }
    assert_int_equal(rig_read(text, used, 1, NULL, tape), LARDER_OK);
    free(text);
}

/* ---- the node ---- */

typedef struct live {
    rig_t rig;
    simdisk_t *disk;
    larder_space_t *space;
    larder_key_t *keys;
    larder_item_t *items;
    uint64_t hits, declined, requests;
    uint64_t begin_ns;
    ldr_policy_stats_t stats;
} live_t;

static void live_open(live_t *l, uint64_t policy)
{
    larder_space_params_t p = {.field_mask = LARDER_SPACE_CHUNK_TOKENS,
                               .descriptor = "live",
                               .descriptor_bytes = 4,
                               .chunk_tokens = TOKENS};

    memset(l, 0, sizeof(*l));
    l->disk = simdisk_create(1, 512);
    rig_init(&l->rig, l->disk, 77, 4, 4 << 20);
    l->rig.options.dir_count = 0;
    l->rig.options.dram = (uint64_t)SLOTS * LDR_PAGE;
    l->rig.options.policy = policy;
    l->rig.first_only = true;
    assert_int_equal(rig_open(&l->rig), LARDER_OK);
    assert_int_equal(larder_space_open(l->rig.lar, &p, &l->space), LARDER_OK);
    l->keys = calloc(BLOCKS_MAX, sizeof(*l->keys));
    l->items = calloc(BLOCKS_MAX, sizeof(*l->items));
    assert_true(l->keys != NULL && l->items != NULL);
    l->begin_ns = l->rig.now_ns;
}

static void live_close(live_t *l)
{
    const ldr_tenant_t *t = &l->rig.node->store.tenants[0];

    assert_int_equal(l->rig.node->store.tenant_count, 1);
    assert_true(ldr_policy_default_check(t->policy));
    ldr_policy_default_stats(t->policy, &l->stats);
    larder_space_close(&l->space);
    assert_int_equal(rig_close(&l->rig), LARDER_OK);
    rig_free(&l->rig);
    simdisk_destroy(l->disk);
    free(l->keys);
    free(l->items);
}

/* Saves what was not found, as an engine does after it computed it. */
static void live_save(live_t *l, uint32_t from, uint32_t count)
{
    static uint8_t value[VALUE];
    struct iovec iov = {value, sizeof(value)};

    for (uint32_t i = from; i < count; i++) {
        l->items[i] = (larder_item_t){
            .key = &l->keys[i],
            .parent = i > 0 ? &l->keys[i - 1] : NULL,
            .depth = i,
            .iov = &iov,
            .iov_count = 1,
        };
    }
    if (from == count) {
        return;
    }
    assert_int_equal(larder_run(l->space, LARDER_OP_PUT, l->items + from,
                                count - from, NULL),
                     LARDER_OK);
    for (uint32_t i = from; i < count; i++) {
        larder_status_t st = l->items[i].status;

        assert_true(st == LARDER_OK || st == LARDER_PRESENT ||
                    st == LARDER_DECLINED);
        l->declined += st == LARDER_DECLINED;
    }
}

static void live_request(live_t *l, const ldr_tape_request_t *request,
                         const uint32_t *blocks)
{
    larder_announce_params_t p = {
        .field_mask =
            LARDER_ANNOUNCE_ID | LARDER_ANNOUNCE_TOKENS | LARDER_ANNOUNCE_HINT,
        .id = ++l->requests,
        .tokens = request->input_tokens,
        .hint = request->hint,
    };
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    l->rig.now_ns = l->begin_ns + request->at_ms * 1000000u;
    for (uint32_t i = 0; i < request->count; i++) {
        memset(&l->keys[i], 0, sizeof(l->keys[i]));
        for (unsigned b = 0; b < 4; b++) {
            uint64_t x = test_mix((uint64_t)blocks[i] * 4 + b + 1);

            memcpy(l->keys[i].hash + 8 * b, &x, 8);
        }
    }
    assert_int_equal(larder_announce(l->space, l->keys, request->count, &p, 0),
                     LARDER_OK);
    /* Told again, by another rank: that is no other request. */
    assert_int_equal(larder_announce(l->space, l->keys, request->count, &p, 0),
                     LARDER_OK);
    assert_true(
        larder_stage(l->space, l->keys, request->count, 0, 0, &lease, &m) >= 0);
    l->hits += m.chunks;
    if (l->requests % 2 == 0) { /* it does not matter when it is given back */
        larder_release(&lease);
    }
    live_save(l, m.chunks, request->count);
    larder_release(&lease);
}

static void replay(live_t *l, uint64_t policy, ldr_tape_t *tape)
{
    const ldr_tape_request_t *request;
    const uint32_t *blocks;
    ldr_player_t player;

    live_open(l, policy);
    assert_int_equal(l->rig.node->store.arena.page_count, SLOTS);
    assert_int_equal(ldr_player_open(tape, &player), LARDER_OK);
    while (ldr_player_next(&player, &request, &blocks) > 0) {
        live_request(l, request, blocks);
    }
    ldr_player_close(&player);
    live_close(l);
}

/* ---- tests ---- */

static void test_lru(void **state)
{
    ldr_tape_t tape;
    live_t l;

    (void)state;
    make_trace(1, &tape);
    replay(&l, LDR_POLICY_LRU, &tape);
    assert_int_equal(l.hits, rig_hits(&ldr_sim_lru, &tape, SLOTS));
    assert_int_equal(l.declined, 0);
    assert_true(l.hits > 0);
    ldr_tape_close(&tape);
}

static void test_learned(void **state)
{
    ldr_tape_t tape;
    live_t l;

    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        make_trace(seed, &tape);
        uint64_t lru = rig_hits(&ldr_sim_lru, &tape, SLOTS);

        replay(&l, LDR_POLICY_LEARNED, &tape);
        assert_int_equal(l.hits, rig_hits(&ldr_sim_default, &tape, SLOTS));
        /* And all of it was at work: it ranks, it refuses, it pays. */
        assert_true(l.stats.requests > 0);
        assert_true(l.stats.switches > 0);
        assert_true(l.declined > 0);
        assert_true(l.hits > lru);
        ldr_tape_close(&tape);
    }
}

/* What a node runs that was told nothing is what `default` means to plan. */
static void test_default(void **state)
{
    ldr_options_t o;

    (void)state;
    ldr_options_default(&o);
    assert_int_equal(o.policy, LDR_POLICY_LEARNED);
    assert_ptr_equal(ldr_sim_find("default")->policy, &ldr_policy_default);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lru),
        cmocka_unit_test(test_learned),
        cmocka_unit_test(test_default),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
