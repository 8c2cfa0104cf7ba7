/* Bodies of a side that knows one tier, cause, status or figure more than this
 * one, or one less. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "support/real.h"
#include "wire/forms.h"

static ldr_rand_t rnd;

static void test_tiers(void **s)
{
    uint8_t at[FORM_MATCHED_BYTES + LDR_MATCHED_TIER_BYTES] = {0};
    larder_match_t m = form_matched(&rnd), got;
    const uint32_t last = LARDER_TIER_COUNT - 1;
    size_t n = ldr_put_matched(at, &m);

    (void)s;
    /* One more: it counts with the last that is known, and no bytes are lost.
     */
    ldr_put32(at + 16, LARDER_TIER_COUNT + 1);
    ldr_put32(at + n, 5);
    ldr_put64(at + n + 8, 50000);
    assert_true(ldr_get_matched(at, sizeof(at), &got));
    assert_true(got.chunks == m.chunks && got.load_us == m.load_us);
    for (uint32_t i = 0; i < LARDER_TIERS_MAX; i++) {
        assert_int_equal(got.tier_chunks[i],
                         m.tier_chunks[i] + (i == last ? 5 : 0));
        assert_true(got.tier_bytes[i] ==
                    m.tier_bytes[i] + (i == last ? 50000 : 0));
    }
    /* One less, and none. */
    for (uint32_t tiers = 0; tiers < LARDER_TIER_COUNT; tiers += last) {
        ldr_put32(at + 16, tiers);
        assert_true(ldr_get_matched(
            at, LDR_MATCHED_HEAD_BYTES + tiers * LDR_MATCHED_TIER_BYTES, &got));
        for (uint32_t i = 0; i < LARDER_TIERS_MAX; i++) {
            assert_int_equal(got.tier_chunks[i],
                             i < tiers ? m.tier_chunks[i] : 0);
        }
    }
    /* A cause. */
    ldr_put_matched(at, &m);
    ldr_put32(at + 4, LARDER_CAUSE_COUNT);
    assert_true(ldr_get_matched(at, n, &got));
    assert_int_equal(got.cause, LARDER_CAUSE_OTHER);
}

static ldr_result_row_t row_of(int32_t status, uint32_t cause)
{
    uint8_t at[LDR_RESULT_BYTES];
    ldr_result_row_t row = {0};

    ldr_put_result(at, &row);
    ldr_put32(at, (uint32_t)status);
    ldr_put32(at + 4, cause);
    assert_true(ldr_get_result(at, &row));
    return row;
}

static void test_statuses(void **s)
{
    (void)s;
    for (int32_t status = -1000; status < 1000; status++) {
        const char *text = larder_status_text((larder_status_t)status);
        bool known = strcmp(text, "unknown status") != 0;
        ldr_frame_t frame = {.flags = LDR_FRAME_REPLY, .arg = (uint32_t)status};
        ldr_result_row_t row = row_of(status, LARDER_CAUSE_NONE);

        assert_int_equal(ldr_frame_status(&frame),
                         known ? status : LARDER_E_OTHER);
        assert_int_equal(row.status, known        ? status
                                     : status > 0 ? LARDER_MISS
                                                  : LARDER_E_OTHER);
        assert_int_equal(row.cause,
                         known ? LARDER_CAUSE_NONE : LARDER_CAUSE_OTHER);
    }
    assert_int_equal(row_of(4711, LARDER_CAUSE_FULL).cause, LARDER_CAUSE_FULL);
    assert_int_equal(row_of(LARDER_MISS, LARDER_CAUSE_COUNT).cause,
                     LARDER_CAUSE_OTHER);
    assert_int_equal(row_of(LARDER_MISS, UINT32_MAX).cause, LARDER_CAUSE_OTHER);
}

/* Of a member: in the rows of GET's reply and of PUT's. */
static void test_members_statuses(void **s)
{
    uint8_t at[LDR_PEER_SHARD_BYTES];
    ldr_peer_shard_t row = {.shards = 1, .length = 1};

    (void)s;
    for (int32_t status = -1000; status < 1000; status++) {
        const char *text = larder_status_text((larder_status_t)status);
        int32_t want =
            strcmp(text, "unknown status") != 0 ? status : LARDER_E_OTHER;

        ldr_put_peer_status(at, (larder_status_t)status);
        assert_int_equal(ldr_get_peer_status(at), want);
        row.status = (larder_status_t)status;
        ldr_put_peer_shard(at, &row);
        assert_true(ldr_get_peer_shard(at, &row));
        assert_int_equal(row.status, want);
    }
}

/* What a member found: each of the values, and others that it did not send. */
static void test_found(void **s)
{
    static const uint32_t lengths[] = {0, 1, LARDER_VALUE_MAX, LDR_FOUND_AT,
                                       LDR_FOUND_PROMISED};
    uint8_t at[LDR_PEER_HEAD_BYTES + 5 * LDR_PEER_FOUND_BYTES +
               2 * LDR_PEER_OTHER_BYTES];
    ldr_peer_head_t head = {.count = 1, .shards = 5}, got;
    size_t n = ldr_put_peer_head(at, &head);
    uint64_t id = 0;

    (void)s;
    for (uint32_t i = 0; i < 5; i++, n += LDR_PEER_FOUND_BYTES) {
        ldr_put_peer_found(at + n,
                           &(ldr_peer_found_t){lengths[i], i > 2 ? i : 0});
        assert_int_equal(ldr_peer_found_none(at + n), i == 0);
    }
    ldr_put_peer_other(at + n, 11);
    ldr_put_peer_other(at + n + LDR_PEER_OTHER_BYTES, UINT64_MAX);
    assert_false(ldr_get_peer_head(at, sizeof(at) - 1, 0, &got));
    assert_true(ldr_get_peer_head(at, sizeof(at), 0, &got));
    for (uint32_t i = 0; i < 5; i++) {
        ldr_peer_found_t found =
            ldr_get_peer_found(got.rows + (size_t)i * LDR_PEER_FOUND_BYTES);

        assert_int_equal(found.length, lengths[i]);
        assert_int_equal(found.other, i > 2 ? i : 0);
    }
    assert_false(ldr_get_peer_other(&got, 0, &id));
    assert_true(ldr_get_peer_other(&got, 1, &id) && id == 11);
    assert_true(ldr_get_peer_other(&got, 2, &id) && id == UINT64_MAX);
    assert_false(ldr_get_peer_other(&got, 3, &id));
    /* The most that there is room for. */
    ldr_put_peer_found(at, &(ldr_peer_found_t){1, LDR_OTHERS_MAX});
    assert_int_equal(ldr_get_peer_found(at).other, LDR_OTHERS_MAX);
}

enum { COUNTERS_AT = 0, MISSES_AT = 2, DISK_COUNTERS_AT = 6, HEAD = 16 };

/* A body with so many bytes more, or fewer, from there on; and its number of
 * those changed by one. */
static size_t change(uint8_t *at, size_t n, size_t number_at, size_t from,
                     bool more)
{
    unsigned number = ldr_get16(at + number_at);

    ldr_put16(at + number_at, (uint16_t)(more ? number + 1 : number - 1));
    if (more) {
        memmove(at + from + 8, at + from, n - from);
        ldr_put64(at + from, 1000);
        return n + 8;
    }
    memmove(at + from - 8, at + from, n - from);
    return n - 8;
}

static void same_disks(const larder_stats_t *a, const larder_stats_t *b)
{
    assert_int_equal(a->disks, b->disks);
    assert_memory_equal(a->disk, b->disk, sizeof(a->disk));
    assert_int_equal(a->shared, b->shared);
    assert_memory_equal(&a->shared_tier, &b->shared_tier,
                        sizeof(a->shared_tier));
}

static void test_stats(void **s)
{
    uint8_t at[LDR_STATS_BYTES_MAX];

    (void)s;
    for (int round = 0; round < 200; round++) {
        larder_stats_t m = form_stats(&rnd), got = {0};
        size_t n = ldr_put_stats(at, &m);

        assert_true(ldr_get_stats(at, n, &got));
        assert_memory_equal(&got, &m, sizeof(m));

        /* One counter and one cause more. */
        size_t counters_end = HEAD + ldr_get16(at + COUNTERS_AT) * 8u;
        n = change(at, n, COUNTERS_AT, counters_end, true);
        size_t misses_end = counters_end + 8 + ldr_get16(at + MISSES_AT) * 8u;
        n = change(at, n, MISSES_AT, misses_end, true);
        got = (larder_stats_t){0};
        assert_true(ldr_get_stats(at, n, &got));
        got.misses[LARDER_CAUSE_OTHER] -= 1000;
        assert_memory_equal(&got, &m, sizeof(m));

        /* One less. */
        n = ldr_put_stats(at, &m);
        n = change(at, n, COUNTERS_AT, counters_end, false);
        n = change(at, n, MISSES_AT, misses_end - 16, false);
        got = (larder_stats_t){0};
        assert_true(ldr_get_stats(at, n, &got));
        assert_true(got.loads_peer == 0 && got.found_chunks == m.found_chunks);
        assert_memory_equal(got.misses, m.misses,
                            (LARDER_CAUSE_COUNT - 1) * sizeof(*m.misses));
        assert_int_equal(got.misses[LARDER_CAUSE_COUNT - 1], 0);
        same_disks(&got, &m);
    }
}

/* Of a disk, whose path is longer than there is room for here and not of this
 * world. */
static void test_disks(void **s)
{
    uint8_t at[2048] = {0};
    larder_stats_t got = {.client_calls = 7};
    size_t n = HEAD;
    enum { SENT = 11, PATH = 300 };

    (void)s;
    ldr_put16(at + 4, 20); /* disks: more than there are places */
    ldr_put16(at + DISK_COUNTERS_AT, 0);
    for (unsigned i = 0; i < 20; i++, n += 8) {
        ldr_put32(at + n + 4, 1);
    }
    assert_true(ldr_get_stats(at, n, &got));
    assert_int_equal(got.disks, LARDER_STATS_DISKS_MAX);
    assert_int_equal(got.disk[LARDER_STATS_DISKS_MAX - 1].on, 1);
    assert_int_equal(got.client_calls, 7);

    memset(at, 0, sizeof(at));
    ldr_put16(at + 4, 1);
    ldr_put16(at + DISK_COUNTERS_AT, SENT);
    ldr_put16(at + HEAD, PATH);
    for (unsigned i = 0; i < SENT; i++) {
        ldr_put64(at + HEAD + 8 + (size_t)i * 8, i + 1);
    }
    memset(at + HEAD + 8 + SENT * 8, '\n', PATH);
    assert_true(ldr_get_stats(at, HEAD + 8 + SENT * 8 + PATH, &got));
    assert_int_equal(got.disk[0].bytes_max, 1);
    assert_int_equal(got.disk[0].read_errors, 9);
    assert_int_equal(got.disk[0].reserved[0], 0);
    assert_int_equal(strlen(got.disk[0].path), sizeof(got.disk[0].path) - 1);
    assert_int_equal(got.disk[0].path[17], '?');
    assert_false(ldr_get_stats(at, HEAD + 8 + SENT * 8 + PATH - 1, &got));
}

static void test_rows(void **s)
{
    uint8_t at[LDR_LIST_HEAD_BYTES + 2 * (LDR_LIST_ROW_BYTES + 16)] = {0};
    ldr_list_row_t row = {.flags = LDR_LIST_SSD, .depth = 1}, got;
    ldr_list_head_t head;
    const uint32_t row_bytes = LDR_LIST_ROW_BYTES + 16;

    (void)s;
    ldr_put_list(at, 9, 2);
    ldr_put32(at + 8, row_bytes);
    for (uint32_t i = 0; i < 2; i++, row.depth++) {
        uint8_t *to = at + LDR_LIST_HEAD_BYTES + (size_t)i * row_bytes;

        ldr_put_listed(to, &row);
        ldr_put16(to + 54, 0xff00 | LDR_LIST_SSD);
    }
    assert_true(ldr_get_list(at, sizeof(at), &head));
    for (uint32_t i = 0; i < 2; i++) {
        ldr_get_listed(head.rows + (size_t)i * head.row_bytes, &got);
        assert_int_equal(got.depth, i + 1);
        assert_int_equal(got.flags, LDR_LIST_SSD);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_members_statuses),
        cmocka_unit_test(test_found),
        cmocka_unit_test(test_stats),
        cmocka_unit_test(test_disks),
        cmocka_unit_test(test_rows),
    };

    ldr_rand_seed(&rnd, real_seed());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
