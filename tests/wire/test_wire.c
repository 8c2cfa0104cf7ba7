/*
 * Frames: what is written is read back; every cut and every changed byte is
 * refused or means something valid, and nothing outside is read (the sanitizer
 * watches: buffers have their exact size). LARDER_SEED repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "support/real.h"
#include "wire/forms.h"

enum { ROUNDS = 200 };

static ldr_rand_t rnd;

/* ---- values ---- */

static void test_hello_values(void **s)
{
    uint8_t at[LDR_HELLO_BYTES];
    ldr_hello_t in, out;

    (void)s;
    for (int i = 0; i < ROUNDS; i++) {
        in = form_hello(&rnd);
        assert_int_equal(ldr_put_hello(at, &in), sizeof(at));
        assert_true(ldr_get_hello(at, sizeof(at), &out));
        assert_int_equal(out.version_min, in.version_min);
        assert_int_equal(out.version_max, in.version_max);
        assert_true(out.features == in.features);
        assert_memory_equal(out.nonce, in.nonce, sizeof(in.nonce));
        assert_string_equal(out.tenant, in.tenant);
        assert_string_equal(out.program, in.program);
    }
    /* Text that fills its field is cut, not read past. */
    memset(in.tenant, 'x', sizeof(in.tenant));
    memset(in.program, 'y', sizeof(in.program));
    ldr_put_hello(at, &in);
    assert_true(ldr_get_hello(at, sizeof(at), &out));
    assert_int_equal(strlen(out.tenant), LDR_TENANT_MAX);
    assert_int_equal(strlen(out.program), sizeof(in.program) - 1);
}

static void test_welcome_values(void **s)
{
    uint8_t at[LDR_WELCOME_BYTES];
    ldr_welcome_t in, out;

    (void)s;
    for (int i = 0; i < ROUNDS; i++) {
        in = form_welcome(&rnd);
        assert_int_equal(ldr_put_welcome(at, &in), sizeof(at));
        assert_true(ldr_get_welcome(at, sizeof(at), &out));
        assert_int_equal(out.version, in.version);
        assert_int_equal(out.auth, in.auth);
        assert_true(out.features == in.features && out.epoch == in.epoch);
        assert_memory_equal(out.nonce, in.nonce, sizeof(in.nonce));
        assert_string_equal(out.program, in.program);
    }
}

static void test_small_values(void **s)
{
    uint8_t at[LDR_SPACE_MSG_BYTES];

    (void)s;
    for (int i = 0; i < ROUNDS; i++) {
        ldr_attach_t a = form_attach(&rnd), a2;
        assert_int_equal(ldr_put_attach(at, &a), LDR_ATTACH_BYTES);
        assert_true(ldr_get_attach(at, LDR_ATTACH_BYTES, &a2));
        assert_memory_equal(&a2, &a, sizeof(a));

        ldr_extent_msg_t e = form_extent(&rnd), e2;
        assert_int_equal(ldr_put_extent(at, &e), LDR_EXTENT_MSG_BYTES);
        assert_true(ldr_get_extent(at, LDR_EXTENT_MSG_BYTES, &e2));
        assert_memory_equal(&e2, &e, sizeof(e));

        ldr_space_msg_t p = form_space(&rnd), p2;
        size_t p_bytes = LDR_SPACE_HEAD_BYTES + strlen(p.label);
        assert_int_equal(ldr_put_space(at, &p), p_bytes);
        assert_true(ldr_get_space(at, p_bytes, &p2));
        assert_memory_equal(&p2, &p,
                            offsetof(ldr_space_msg_t, label) + sizeof(p.label));

        uint32_t n = form_u32(&rnd), n2;
        assert_int_equal(ldr_put_number(at, n), LDR_NUMBER_BYTES);
        assert_true(ldr_get_number(at, LDR_NUMBER_BYTES, &n2));
        assert_int_equal(n2, n);

        ldr_seg_t g = {form_u32(&rnd), form_u32(&rnd), form_u32(&rnd),
                       form_u32(&rnd)},
                  g2;
        ldr_put_seg(at, &g);
        ldr_get_seg(at, &g2);
        assert_memory_equal(&g2, &g, sizeof(g));
    }
}

static void test_match_values(void **s)
{
    enum { KEYS = 1000 };
    static uint8_t keys[KEYS * LARDER_KEY_BYTES];
    static uint8_t at[LDR_MATCH_HEAD_BYTES + LDR_NEED_BYTES + sizeof(keys)];
    ldr_match_msg_t in, out;

    (void)s;
    form_random(&rnd, keys, sizeof(keys));
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t count = (uint32_t)ldr_rand_below(&rnd, KEYS + 1);
        uint8_t needs[LDR_NEED_BYTES];
        uint16_t group = (uint16_t)ldr_rand_below(&rnd, LARDER_GROUPS_MAX), g2;
        uint32_t chunks = form_u32(&rnd), c2;

        ldr_put_need(needs, group, chunks);
        in =
            (ldr_match_msg_t){form_u32(&rnd), count % 2, count, 1, needs, keys};
        size_t n = ldr_put_match(at, &in);
        assert_int_equal(n, LDR_MATCH_HEAD_BYTES + LDR_NEED_BYTES +
                                (size_t)count * LARDER_KEY_BYTES);
        assert_true(ldr_get_match(at, n, &out));
        assert_int_equal(out.space, in.space);
        assert_int_equal(out.count, count);
        assert_true(ldr_get_need(out.needs, &g2, &c2));
        assert_true(g2 == group && c2 == chunks);
        assert_memory_equal(out.keys, keys, (size_t)count * LARDER_KEY_BYTES);

        larder_match_t m = form_matched(&rnd), m2;
        assert_int_equal(ldr_put_matched(at, &m), FORM_MATCHED_BYTES);
        assert_true(ldr_get_matched(at, FORM_MATCHED_BYTES, &m2));
        assert_int_equal(m2.chunks, m.chunks);
        assert_memory_equal(m2.tier_chunks, m.tier_chunks,
                            sizeof(m.tier_chunks));
        assert_memory_equal(m2.tier_bytes, m.tier_bytes, sizeof(m.tier_bytes));
        assert_true(m2.load_us == m.load_us && m2.cause == m.cause);
    }
}

static void test_row_values(void **s)
{
    uint8_t at[LDR_SAVE_BYTES];

    (void)s;
    for (int i = 0; i < ROUNDS; i++) {
        ldr_name_row_t n = form_name(&rnd), n2;
        ldr_put_name(at, &n);
        ldr_get_name(at, &n2);
        assert_memory_equal(&n2.key, &n.key, sizeof(n.key));
        assert_true(n2.group == n.group && n2.shard == n.shard);
        assert_true(n2.room == n.room && n2.more == n.more);

        ldr_save_row_t v = form_save(&rnd), v2;
        ldr_put_save(at, &v);
        assert_true(ldr_get_save(at, &v2));
        assert_memory_equal(&v2.key, &v.key, sizeof(v.key));
        assert_memory_equal(&v2.parent, &v.parent, sizeof(v.parent));
        assert_true(v2.has_parent == v.has_parent && v2.depth == v.depth);
        assert_true(v2.group == v.group && v2.shard == v.shard);
        assert_true(v2.flags == v.flags && v2.ttl_ms == v.ttl_ms);
        assert_true(v2.length == v.length && v2.crc == v.crc);
        assert_int_equal(v2.more, v.more);

        ldr_more_row_t m = {form_u32(&rnd), form_u32(&rnd)}, m2;
        ldr_put_more(at, &m);
        ldr_get_more(at, &m2);
        assert_true(m2.bytes == m.bytes && m2.crc == m.crc);

        ldr_place_row_t p = {(uint8_t)form_u16(&rnd), (uint8_t)form_u16(&rnd),
                             form_u16(&rnd), form_u32(&rnd)},
                        p2;
        ldr_put_place(at, &p);
        ldr_get_place(at, &p2);
        assert_memory_equal(&p2, &p, sizeof(p));

        ldr_result_row_t t = form_result(&rnd), t2;
        ldr_put_result(at, &t);
        assert_true(ldr_get_result(at, &t2));
        assert_true(t2.status == t.status && t2.cause == t.cause);
        assert_true(t2.length == t.length && t2.lease == t.lease);
        assert_true(t2.crc == t.crc && t2.flags == t.flags);
        assert_int_equal(t2.seg_count, t.seg_count);

        ldr_end_row_t e = {ldr_rand_next(&rnd), form_u32(&rnd),
                           (uint32_t)(i % (LDR_END_ABORT + 1))},
                      e2;
        ldr_put_end(at, &e);
        assert_true(ldr_get_end(at, &e2));
        assert_true(e2.lease == e.lease && e2.crc == e.crc && e2.how == e.how);
    }
    /* A parent that is not meant is not sent. */
    ldr_save_row_t v = form_save(&rnd), v2;
    form_random(&rnd, &v.parent, sizeof(v.parent));
    v.has_parent = false;
    ldr_put_save(at, &v);
    assert_true(ldr_get_save(at, &v2));
    assert_memory_equal(&v2.parent, &(larder_key_t){0}, sizeof(v.parent));
}

/* ---- cuts, additions, changes ---- */

static void test_cuts(void **s)
{
    uint8_t at[FORM_BYTES_MAX];

    (void)s;
    for (size_t f = 0; f < FORM_COUNT; f++) {
        for (int round = 0; round < 20; round++) {
            size_t n = forms[f].make(&rnd, at);
            assert_true(n + 64 <= sizeof(at));
            assert_true(form_try(&forms[f], at, n));
            for (size_t cut = 0; cut < n; cut++) {
                assert_false(form_try(&forms[f], at, cut));
            }
            form_random(&rnd, at + n, 64);
            for (size_t more = 1; more <= 64; more++) {
                assert_false(form_try(&forms[f], at, n + more));
            }
        }
    }
}

static void test_changes(void **s)
{
    uint8_t at[FORM_BYTES_MAX];
    size_t refused, accepted;

    (void)s;
    for (size_t f = 0; f < FORM_COUNT; f++) {
        refused = accepted = 0;
        for (int round = 0; round < 3; round++) {
            size_t n = forms[f].make(&rnd, at);
            for (size_t i = 0; i < n; i++) {
                for (unsigned change = 1; change < 256; change++) {
                    at[i] ^= (uint8_t)change;
                    bool ok = form_try(&forms[f], at, n);
                    at[i] ^= (uint8_t)change;
                    refused += !ok;
                    accepted += ok;
                }
            }
        }
        printf("%-8s %zu refused, %zu accepted\n", forms[f].name, refused,
               accepted);
        assert_true(accepted > 0);
    }
}

/* Sets a byte of a valid body: refused. */
static void refuse(const char *name, size_t at_byte, uint8_t value)
{
    uint8_t at[FORM_BYTES_MAX];

    for (size_t f = 0; f < FORM_COUNT; f++) {
        if (strcmp(forms[f].name, name) == 0) {
            size_t n = forms[f].make(&rnd, at);
            assert_true(at_byte < n);
            at[at_byte] = value;
            assert_false(form_try(&forms[f], at, n));
            return;
        }
    }
    fail();
}

static void test_reserved(void **s)
{
    static const struct {
        const char *name;
        size_t from, bytes;
    } fields[] = {
        {"attach", 12, 4},
        {"results", 8 + 36, 4},
        {"ends", 4, 4},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        for (size_t b = 0; b < fields[i].bytes; b++) {
            for (unsigned bit = 0; bit < 8; bit++) {
                refuse(fields[i].name, fields[i].from + b,
                       (uint8_t)(1u << bit));
            }
        }
    }
    refuse("match", 4, 2); /* flags */
    refuse("match", 7, 0x80);
    refuse("match", 12, 0); /* groups */
    refuse("match", 13, 1);
    refuse("staged", 36, 1);
}

static void test_out_of_range(void **s)
{
    uint8_t at[FORM_BYTES_MAX];
    ldr_batch_msg_t batch;
    ldr_ends_t ends;
    ldr_results_t results;

    (void)s;
    refuse("hello", 44, '\n');  /* tenant with a control character */
    refuse("hello", 108, 0x7f); /* program */
    refuse("welcome", 2, 2);    /* auth */
    refuse("welcome", 52, 0x1b);
    refuse("attach", 8, 2);     /* strict */
    refuse("matched", 16, 200); /* tiers */
    refuse("matched", 20, 1);
    refuse("stats", 8, 2); /* shared tiers */
    refuse("stats", 12, 1);
    refuse("list", 8, 71); /* bytes of a row */
    refuse("list", 12, 1);
    refuse("saves", 16 + 92, 2);  /* has_parent */
    refuse("results", 8 + 28, 2); /* flags */
    refuse("ends", 8 + 12, LDR_END_ABORT + 1);

    /* Versions: none, and more than the highest. */
    ldr_hello_t hello = form_hello(&rnd);
    hello.version_min = 0;
    ldr_put_hello(at, &hello);
    assert_false(ldr_get_hello(at, LDR_HELLO_BYTES, &hello));
    hello.version_min = 3;
    hello.version_max = 2;
    ldr_put_hello(at, &hello);
    assert_false(ldr_get_hello(at, LDR_HELLO_BYTES, &hello));

    /* More resident than there is. */
    ldr_extent_msg_t extent = {.bytes = 5, .ready_bytes = 6};
    ldr_put_extent(at, &extent);
    assert_false(ldr_get_extent(at, LDR_EXTENT_MSG_BYTES, &extent));

    /* Nothing, and more than a batch holds. The count that wraps 32 bits to
     * the right length is refused as well. */
    ldr_put_batch(at, &(ldr_batch_msg_t){.count = 0});
    assert_false(
        ldr_get_batch(at, LDR_BATCH_HEAD_BYTES, LDR_NAME_BYTES, &batch));
    ldr_put_batch(at, &(ldr_batch_msg_t){.count = 0x10000000});
    assert_false(
        ldr_get_batch(at, LDR_BATCH_HEAD_BYTES, LDR_NAME_BYTES, &batch));
    ldr_put_ends(at, 0);
    assert_false(ldr_get_ends(at, LDR_ENDS_HEAD_BYTES, &ends));
    ldr_put_ends(at, 0x10000000);
    assert_false(ldr_get_ends(at, LDR_ENDS_HEAD_BYTES, &ends));
    ldr_put_results(at, 0, 0);
    assert_false(ldr_get_results(at, LDR_RESULTS_HEAD_BYTES, &results));
    ldr_put_results(at, 0, 0x10000000);
    assert_false(ldr_get_results(at, LDR_RESULTS_HEAD_BYTES, &results));
}

static void test_more(void **s)
{
    uint8_t at[FORM_BYTES_MAX];
    ldr_batch_msg_t batch;

    (void)s;
    memset(at, 0, sizeof(at));
    /* Rows whose shards are not as many as the batch says, or not all there. */
    for (uint32_t row_more = 0; row_more < 3; row_more++) {
        for (uint32_t more = 0; more < 3; more++) {
            for (uint32_t there = 0; there < 3; there++) {
                size_t n = ldr_put_batch(
                    at, &(ldr_batch_msg_t){.count = 1, .more = more});

                ldr_put_name(at + n, &(ldr_name_row_t){.more = row_more});
                n += LDR_NAME_BYTES + there * LDR_MORE_BYTES;
                assert_true(ldr_get_batch(at, n, LDR_NAME_BYTES, &batch) ==
                            (more == row_more && more == there));
            }
        }
    }
    /* More shards than a batch holds, by a few rows that wrap 32 bits. */
    size_t wraps = ldr_put_batch(at, &(ldr_batch_msg_t){.count = 2});
    for (uint32_t i = 0; i < 2; i++, wraps += LDR_NAME_BYTES) {
        ldr_put_name(at + wraps, &(ldr_name_row_t){.more = 0x80000000u});
    }
    assert_false(ldr_get_batch(at, wraps, LDR_NAME_BYTES, &batch));
}

static void test_large_batches(void **s)
{
    const size_t n =
        LDR_BATCH_HEAD_BYTES + (size_t)(LARDER_BATCH_MAX + 1) * LDR_SAVE_BYTES;
    uint8_t *at = calloc(1, n);
    ldr_batch_msg_t batch;
    ldr_results_t results;

    (void)s;
    assert_non_null(at);
    assert_true(n - LDR_SAVE_BYTES <= LDR_BODY_MAX); /* a full one fits */
    ldr_put_batch(at, &(ldr_batch_msg_t){.count = LARDER_BATCH_MAX});
    assert_true(ldr_get_batch(at, n - LDR_SAVE_BYTES, LDR_SAVE_BYTES, &batch));
    ldr_put_batch(at, &(ldr_batch_msg_t){.count = LARDER_BATCH_MAX + 1});
    assert_false(ldr_get_batch(at, n, LDR_SAVE_BYTES, &batch));
    /* One row for all shards, and one shard too many. */
    ldr_put_row_more(at + LDR_BATCH_HEAD_BYTES, LDR_SAVE_BYTES,
                     LARDER_BATCH_MAX - 1);
    ldr_put_batch(at,
                  &(ldr_batch_msg_t){.count = 1, .more = LARDER_BATCH_MAX - 1});
    assert_true(ldr_get_batch(at,
                              LDR_BATCH_HEAD_BYTES + LDR_SAVE_BYTES +
                                  (LARDER_BATCH_MAX - 1) * LDR_MORE_BYTES,
                              LDR_SAVE_BYTES, &batch));
    ldr_put_row_more(at + LDR_BATCH_HEAD_BYTES, LDR_SAVE_BYTES,
                     LARDER_BATCH_MAX);
    ldr_put_batch(at, &(ldr_batch_msg_t){.count = 1, .more = LARDER_BATCH_MAX});
    assert_false(ldr_get_batch(at,
                               LDR_BATCH_HEAD_BYTES + LDR_SAVE_BYTES +
                                   LARDER_BATCH_MAX * LDR_MORE_BYTES,
                               LDR_SAVE_BYTES, &batch));
    ldr_put_row_more(at + LDR_BATCH_HEAD_BYTES, LDR_SAVE_BYTES, 0);

    /* Rows that claim more segments than there are, by a wrap of 32 bits. */
    ldr_put_results(at, 2, 0);
    for (uint32_t i = 0; i < 2; i++) {
        ldr_put_result(at + LDR_RESULTS_HEAD_BYTES + i * LDR_RESULT_BYTES,
                       &(ldr_result_row_t){.seg_count = 0x80000000u});
    }
    assert_false(ldr_get_results(
        at, LDR_RESULTS_HEAD_BYTES + 2 * LDR_RESULT_BYTES, &results));
    free(at);
}

/* ---- headers ---- */

static ldr_frame_t random_frame(void)
{
    return (ldr_frame_t){
        .opcode = LDR_OP_PUT,
        .id = ldr_rand_next(&rnd),
        .epoch = ldr_rand_next(&rnd),
        .body = (uint32_t)ldr_rand_below(&rnd, 300),
        .payload = (uint32_t)ldr_rand_below(&rnd, LDR_PAYLOAD_MAX + 1),
        .arg = form_u32(&rnd),
    };
}

static void test_frame_values(void **s)
{
    uint8_t at[LDR_FRAME_BYTES + 300];
    ldr_frame_t in, out;

    (void)s;
    for (int i = 0; i < ROUNDS; i++) {
        in = random_frame();
        form_random(&rnd, at, sizeof(at));
        ldr_frame_put(at, &in, true);
        assert_int_equal(ldr_frame_get(at, LDR_BODY_MAX, &out), LDR_FRAME_OK);
        assert_true(out.opcode == in.opcode && out.flags == in.flags);
        assert_true(out.id == in.id && out.epoch == in.epoch);
        assert_true(out.body == in.body && out.payload == in.payload);
        assert_int_equal(out.arg, in.arg);
        assert_true(ldr_frame_check(at, &out));

        /* Any bit of header or body that flips is seen. */
        size_t bit = ldr_rand_below(&rnd, (LDR_FRAME_BYTES + in.body) * 8);
        at[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(ldr_frame_check(at, &in));
        at[bit / 8] ^= (uint8_t)(1u << bit % 8);

        ldr_frame_put(at, &in, false);
        assert_int_equal(ldr_get32(at + 36), 0);
    }
    in = (ldr_frame_t){.opcode = LDR_OP_GET,
                       .flags = LDR_FRAME_REPLY,
                       .payload = LDR_PAYLOAD_MAX,
                       .arg = (uint32_t)LARDER_E_DENIED};
    ldr_frame_put(at, &in, true);
    assert_int_equal(ldr_frame_get(at, LDR_BODY_MAX, &out), LDR_FRAME_OK);
    assert_int_equal(ldr_frame_status(&out), LARDER_E_DENIED);
}

static ldr_frame_verdict_t verdict(ldr_frame_t frame, uint32_t body_max)
{
    uint8_t *at = malloc(LDR_FRAME_BYTES);
    ldr_frame_t out = {.id = 42};

    assert_non_null(at);
    ldr_frame_put(at, &frame, false);
    ldr_frame_verdict_t v = ldr_frame_get(at, body_max, &out);
    assert_true(v == LDR_FRAME_OK || out.id == 42);
    free(at);
    return v;
}

static void test_frame_verdicts(void **s)
{
    uint8_t at[LDR_FRAME_BYTES];
    ldr_frame_t out;

    (void)s;
    for (unsigned i = 0; i < 4; i++) {
        ldr_frame_put(at, &(ldr_frame_t){.opcode = LDR_OP_PING}, false);
        at[i] ^= 1;
        assert_int_equal(ldr_frame_get(at, LDR_BODY_MAX, &out),
                         LDR_FRAME_NOT_LARDER);
    }
    /* Flags: unknown ones, and a reply that wants no reply. */
    for (unsigned bit = 2; bit < 16; bit++) {
        assert_int_equal(verdict((ldr_frame_t){.opcode = LDR_OP_PING,
                                               .flags = (uint16_t)(1u << bit)},
                                 LDR_BODY_MAX),
                         LDR_FRAME_MALFORMED);
    }
    assert_int_equal(
        verdict((ldr_frame_t){.opcode = LDR_OP_PING,
                              .flags = LDR_FRAME_REPLY | LDR_FRAME_SILENT},
                LDR_BODY_MAX),
        LDR_FRAME_MALFORMED);
}

static void test_frame_sizes(void **s)
{
    const struct {
        ldr_frame_t frame;
        uint32_t body_max;
        ldr_frame_verdict_t verdict;
    } sizes[] = {
        {{.opcode = LDR_OP_HELLO, .body = LDR_BODY_HELLO_MAX},
         LDR_BODY_HELLO_MAX,
         LDR_FRAME_OK},
        {{.opcode = LDR_OP_HELLO, .body = LDR_BODY_HELLO_MAX + 1},
         LDR_BODY_HELLO_MAX,
         LDR_FRAME_TOO_LARGE},
        {{.opcode = LDR_OP_PUT, .payload = 1},
         LDR_BODY_HELLO_MAX,
         LDR_FRAME_TOO_LARGE},
        {{.opcode = LDR_OP_HELLO, .payload = 1},
         LDR_BODY_HELLO_MAX,
         LDR_FRAME_TOO_LARGE},
        {{.opcode = LDR_OP_PUT, .body = LDR_BODY_MAX},
         LDR_BODY_MAX,
         LDR_FRAME_OK},
        {{.opcode = LDR_OP_PUT, .body = LDR_BODY_MAX + 1},
         LDR_BODY_MAX,
         LDR_FRAME_TOO_LARGE},
        {{.opcode = LDR_OP_PUT, .body = UINT32_MAX},
         LDR_BODY_MAX,
         LDR_FRAME_TOO_LARGE},
        {{.opcode = LDR_OP_PUT, .payload = LDR_PAYLOAD_MAX},
         LDR_BODY_MAX,
         LDR_FRAME_OK},
        {{.opcode = LDR_OP_PUT, .payload = LDR_PAYLOAD_MAX + 1},
         LDR_BODY_MAX,
         LDR_FRAME_TOO_LARGE},
        {{.opcode = LDR_OP_GET, .payload = 1},
         LDR_BODY_MAX,
         LDR_FRAME_MALFORMED},
        {{.opcode = LDR_OP_STATS, .payload = 1},
         LDR_BODY_MAX,
         LDR_FRAME_MALFORMED},
        {{.opcode = LDR_OP_PUT, .flags = LDR_FRAME_REPLY, .payload = 1},
         LDR_BODY_MAX,
         LDR_FRAME_MALFORMED},
        {{.opcode = 999, .body = 7}, LDR_BODY_MAX, LDR_FRAME_OK},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(verdict(sizes[i].frame, sizes[i].body_max),
                         sizes[i].verdict);
    }
}

static void test_opcodes(void **s)
{
    unsigned known = 0;

    (void)s;
    for (unsigned op = 0; op < 70000; op++) {
        const char *text = ldr_opcode_text(op);
        known += text != NULL;
        assert_true(text == NULL || text[0] != '\0');
    }
    assert_string_equal(ldr_opcode_text(LDR_OP_HELLO), "hello");
    assert_string_equal(ldr_opcode_text(LDR_OP_ADMIN), "admin");
#define X(name, value, before, text) known--;
    LDR_OPCODE_MAP(X)
#undef X
    assert_int_equal(known, 0);
}

/* ---- version 2, byte for byte ---- */

static const larder_key_t pin_key = {"0123456789abcdefghijklmnopqrstu"};
static const larder_key_t pin_parent = {"ABCDEFGHIJKLMNOPQRSTUVWXYZ01234"};

static size_t pin_structs(uint8_t *at)
{
    ldr_hello_t hello = {.version_min = 0x0102,
                         .version_max = 0x0304,
                         .features = 0x05060708090a0b0cu,
                         .nonce = "a nonce of a client",
                         .tenant = "tenant",
                         .program = "larder 0.1"};
    ldr_welcome_t welcome = {.version = 0x0102,
                             .auth = 1,
                             .features = 0x05060708090a0b0cu,
                             .epoch = 0x1112131415161718u,
                             .nonce = "a nonce of a server",
                             .program = "larder 0.1"};
    ldr_attach_t attach = {0x01020304, 0x05060708, 1};
    ldr_extent_msg_t extent = {0x01020304, 0x05060708, 0x1112131415161718u,
                               0x0102030405060708u};
    ldr_space_msg_t space = {.id = "id",
                             .check = "check",
                             .shards = 0x01020304,
                             .key = "key",
                             .label = "Qwen3-8B bf16"};
    larder_match_t matched = {
        .chunks = 0x01020304,
        .tier_chunks = {0x11121314, 0x15161718, 0x191a1b1c},
        .tier_bytes = {0x2122232425262728u, 0x3132333435363738u,
                       0x393a3b3c3d3e3f40u},
        .load_us = 0x4142434445464748u,
        .cause = LARDER_CAUSE_IO};
    size_t n = 0;

    n += ldr_put_hello(at + n, &hello);
    n += ldr_put_welcome(at + n, &welcome);
    n += ldr_put_attach(at + n, &attach);
    n += ldr_put_extent(at + n, &extent);
    n += ldr_put_space(at + n, &space);
    n += ldr_put_number(at + n, 0x01020304);
    n += ldr_put_matched(at + n, &matched);
    return n;
}

static size_t pin_rows(uint8_t *at)
{
    uint8_t need[LDR_NEED_BYTES];
    ldr_match_msg_t match = {0x01020304, 0, 1, 1, need, pin_key.hash};
    larder_stage_params_t worth = {0x0102030405060708u,
                                   0x11121314,
                                   0x15161718,
                                   0x2122232425262728u,
                                   0x3132333435363738u,
                                   0x4142434445464748u,
                                   NULL};
    ldr_staged_t staged = {.lease = 0x0102030405060708u,
                           .token = {{1, 2, 3, 4, 5, 6, 7, 8, 9}},
                           .match = {.chunks = 0x01020304,
                                     .cause = LARDER_CAUSE_IO,
                                     .found = 0x05060708,
                                     .tried = 0x090a0b0c,
                                     .limit = LARDER_LIMIT_BYTES,
                                     .tried_us = 0x1112131415161718u,
                                     .tried_bytes = 0x2122232425262728u,
                                     .tried_below_bytes = 0x3132333435363738u}};
    ldr_place_row_t place = {0x02, 0x01, 0x0304, 0x05060708};
    ldr_batch_msg_t batch = {
        .space = 0x01020304, .count = 0x05060708, .flags = 0x11121314};
    ldr_name_row_t name = {pin_key, 0x0102, 0x0304, 0, 0x1112131415161718u};
    ldr_save_row_t save = {.key = pin_key,
                           .parent = pin_parent,
                           .has_parent = true,
                           .depth = 0x01020304,
                           .group = 0x0506,
                           .shard = 0x0708,
                           .flags = 0x11121314,
                           .ttl_ms = 0x15161718,
                           .length = 0x2122232425262728u,
                           .crc = 0x31323334};
    ldr_result_row_t result = {.status = LARDER_E_DEADLINE,
                               .cause = LARDER_CAUSE_STALE,
                               .length = 0x0102030405060708u,
                               .lease = 0x1112131415161718u,
                               .crc = 0x21222324,
                               .flags = LDR_RESULT_CHECKED,
                               .seg_count = 0x31323334};
    ldr_seg_t seg = {0x01020304, 0x05060708, 0x11121314, 0x15161718};
    ldr_end_row_t end = {0x0102030405060708u, 0x11121314, LDR_END_ABORT};
    size_t n = 0;

    ldr_put_need(need, 0x0506, 0x0708090a);
    n += ldr_put_match(at + n, &match);
    n += ldr_put_worth(at + n, &worth);
    n += ldr_put_staged(at + n, &staged);
    n += ldr_put_redeem(at + n, &batch, &staged.token);
    ldr_put_place(at + n, &place);
    n += LDR_PLACE_BYTES;
    n += ldr_put_batch(at + n, &batch);
    ldr_put_name(at + n, &name);
    n += LDR_NAME_BYTES;
    ldr_put_save(at + n, &save);
    n += LDR_SAVE_BYTES;
    n += ldr_put_results(at + n, 0x01020304, 0x05060708);
    ldr_put_result(at + n, &result);
    n += LDR_RESULT_BYTES;
    ldr_put_seg(at + n, &seg);
    n += LDR_SEG_BYTES;
    n += ldr_put_ends(at + n, 0x01020304);
    ldr_put_end(at + n, &end);
    return n + LDR_END_BYTES;
}

/* Every field another number, so that two that change places are seen. */
static size_t pin_stats(uint8_t *at)
{
    ldr_rand_t r;

    ldr_rand_seed(&r, 4711);
    larder_stats_t m = form_stats(&r);
    while (m.disks == 0 || m.shared == 0) {
        m = form_stats(&r);
    }
    return ldr_put_stats(at, &m);
}

/* Other sides may be older or newer builds: these bytes must never change. A
 * failure here means that the layout did, and needs a new version; or that
 * there is one more tier, cause or figure, at the end of its list. */
static void test_pinned(void **s)
{
    static const uint8_t header[] = {
        'L', 'D', 'R', '1', 33, 0, 2, 0, 8, 7, 6, 5, 4, 3, 2, 1, 1, 2,
        3,   4,   5,   6,   7,  8, 0, 0, 0, 0, 5, 0, 0, 1, 9, 0, 0, 0x80};
    uint8_t at[FORM_BYTES_MAX];

    (void)s;
    ldr_frame_put(at,
                  &(ldr_frame_t){.opcode = LDR_OP_PUT,
                                 .flags = LDR_FRAME_SILENT,
                                 .id = 0x0102030405060708u,
                                 .epoch = 0x0807060504030201u,
                                 .payload = 0x01000005,
                                 .arg = 0x80000009u},
                  true);
    assert_memory_equal(at, header, sizeof(header));
    assert_int_equal(ldr_get32(at + 36), ldr_crc32c(0, header, 36));

    assert_int_equal(ldr_crc32c(0, at, pin_structs(at)), 0xe9a794d5);
    assert_int_equal(ldr_crc32c(0, at, pin_rows(at)), 0xf8e43eb3);
    assert_int_equal(ldr_crc32c(0, at, pin_stats(at)), 0x06947332);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello_values),
        cmocka_unit_test(test_welcome_values),
        cmocka_unit_test(test_small_values),
        cmocka_unit_test(test_match_values),
        cmocka_unit_test(test_row_values),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_changes),
        cmocka_unit_test(test_reserved),
        cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_more),
        cmocka_unit_test(test_large_batches),
        cmocka_unit_test(test_frame_values),
        cmocka_unit_test(test_frame_verdicts),
        cmocka_unit_test(test_frame_sizes),
        cmocka_unit_test(test_opcodes),
        cmocka_unit_test(test_pinned),
    };

    ldr_rand_seed(&rnd, real_seed());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
