/*
 * Manifests: what is composed is told entry by entry, and nothing that was
 * changed, cut or is another tenant's tells anything. What bears a good seal
 * and makes no sense is refused as well. LARDER_SEED repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "tier/shared/manifest.h"

enum { ENTRIES_MAX = 64, ROWS_MAX = 300, MAC_BYTES = 32 };

static uint64_t seed;
static ldr_rand_t rnd;
static ldr_seal_t keys;
static ldr_manifest_head_t head;
static ldr_manifest_entry_t entries[ENTRIES_MAX];
static ldr_manifest_row_t rows[ENTRIES_MAX][ROWS_MAX];

static uint32_t below(uint32_t limit)
{
    return (uint32_t)ldr_rand_below(&rnd, limit);
}

static void fill(void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)to)[i] = (uint8_t)ldr_rand_next(&rnd);
    }
}

static int setup(void **arg)
{
    (void)arg;
    ldr_rand_seed(&rnd, seed);
    fill(&keys.mac, sizeof(keys.mac));
    memset(&head, 0, sizeof(head));
    fill(head.tenant_id, sizeof(head.tenant_id));
    fill(head.node_id, sizeof(head.node_id));
    head.sequence = ldr_rand_next(&rnd);
    head.written_s = below(UINT32_MAX);
    return 0;
}

static void random_row(ldr_manifest_row_t *row, uint32_t used)
{
    memset(row, 0, sizeof(*row));
    fill(row->key, sizeof(row->key));
    row->group = (uint8_t)below(LARDER_GROUPS_MAX);
    row->shards = (uint8_t)(1 + below(LARDER_SHARDS_MAX));
    row->shard = (uint8_t)below(row->shards);
    row->depth = below(0x1000000);
    row->expires_s = below(UINT32_MAX);
    row->blocks = (uint16_t)(2 + below(used - 1));
    row->block = (uint16_t)below(used - row->blocks + 1);
}

static void random_entry(ldr_manifest_entry_t *e, ldr_manifest_row_t *r)
{
    ldr_object_t *o = &e->object;

    memset(e, 0, sizeof(*e));
    e->kind = (ldr_manifest_kind_t)(1 + below(4));
    if (e->kind == LDR_MANIFEST_REMOVED) {
        fill(o->space_id, sizeof(o->space_id));
        o->written_s = below(UINT32_MAX);
        random_row(r, 2);
        e->rows = r;
        return;
    }
    fill(o->id, sizeof(o->id));
    if (e->kind == LDR_MANIFEST_USED) {
        e->used_s = below(UINT32_MAX);
    } else if (e->kind == LDR_MANIFEST_OBJECT) {
        fill(o->space_id, sizeof(o->space_id));
        o->epoch = below(UINT32_MAX);
        o->written_s = below(UINT32_MAX);
        o->rows = below(3) == 0 ? below(2) : below(ROWS_MAX);
        o->used_blocks = 2 + below(32767);
        e->used_s = below(UINT32_MAX);
        for (uint32_t i = 0; i < o->rows; i++) {
            random_row(&r[i], o->used_blocks);
        }
        e->rows = r;
    }
}

static void compose(ldr_manifest_t *m, uint32_t count)
{
    memset(m, 0, sizeof(*m));
    for (uint32_t i = 0; i < count; i++) {
        random_entry(&entries[i], rows[i]);
        assert_true(ldr_manifest_add(m, &entries[i]));
    }
    assert_true(ldr_manifest_finish(m, &head, &keys));
}

/* Compares with what was put in. */
static void told(void *arg, const ldr_manifest_entry_t *e)
{
    uint32_t *count = arg;
    const ldr_manifest_entry_t *want = &entries[(*count)++];
    uint32_t n = e->kind == LDR_MANIFEST_OBJECT    ? e->object.rows
                 : e->kind == LDR_MANIFEST_REMOVED ? 1
                                                   : 0;

    assert_int_equal(e->kind, want->kind);
    assert_memory_equal(&e->object, &want->object, sizeof(e->object));
    assert_int_equal(e->used_s, want->used_s);
    if (n > 0) {
        assert_memory_equal(e->rows, want->rows, n * sizeof(*e->rows));
    }
}

static void never(void *arg, const ldr_manifest_entry_t *e)
{
    (void)arg;
    (void)e;
    fail_msg("an entry of a manifest that is none");
}

static bool parse(const uint8_t *data, size_t bytes, uint32_t *count)
{
    ldr_manifest_head_t out;
    bool ok;

    memset(&out, 0, sizeof(out));
    memcpy(out.tenant_id, head.tenant_id, LDR_ID_BYTES);
    ok = ldr_manifest_parse(data, bytes, &keys, &out,
                            count != NULL ? told : never, count);
    if (ok) {
        assert_memory_equal(&out, &head, sizeof(out));
    }
    return ok;
}

static void test_round_trip(void **arg)
{
    ldr_manifest_t m;

    (void)arg;
    for (uint32_t n = 0; n <= ENTRIES_MAX; n++) {
        uint32_t count = 0;

        compose(&m, n);
        assert_true(parse(m.data, m.bytes, &count));
        assert_int_equal(count, n);
        ldr_manifest_clear(&m);
        assert_null(m.data);
    }
}

/* What a chunk costs: at most 32 bytes a row, with 32 rows in an object. */
static void test_size(void **arg)
{
    ldr_manifest_t m = {0};
    ldr_manifest_entry_t e = {.kind = LDR_MANIFEST_OBJECT, .rows = rows[0]};

    (void)arg;
    e.object.rows = 32;
    e.object.used_blocks = 1000;
    for (uint32_t i = 0; i < 32; i++) {
        random_row(&rows[0][i], 1000);
    }
    for (int i = 0; i < 100; i++) {
        assert_true(ldr_manifest_add(&m, &e));
    }
    assert_true(ldr_manifest_finish(&m, &head, &keys));
    assert_true(m.bytes <= (size_t)100 * 32 * 32);
    ldr_manifest_clear(&m);
}

static void test_changed(void **arg)
{
    ldr_manifest_t m;
    uint32_t count = 0;

    (void)arg;
    compose(&m, 5);
    for (size_t bit = 0; bit < m.bytes * 8; bit += 1 + below(11)) {
        m.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(parse(m.data, m.bytes, NULL));
        m.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bytes = 0; bytes < m.bytes; bytes += 1 + below(9)) {
        assert_false(parse(m.data, bytes, NULL));
    }
    keys.mac[5] ^= 1;
    assert_false(parse(m.data, m.bytes, NULL));
    keys.mac[5] ^= 1;
    head.tenant_id[0] ^= 1;
    assert_false(parse(m.data, m.bytes, NULL));
    head.tenant_id[0] ^= 1;
    assert_true(parse(m.data, m.bytes, &count));
    ldr_manifest_clear(&m);
}

/* ---- a good seal over anything ---- */

static void reseal(uint8_t *data, size_t bytes)
{
    const ldr_piece_t all = {data, bytes - MAC_BYTES};

    assert_true(ldr_hmac_sha256(keys.mac, sizeof(keys.mac), &all, 1,
                                data + bytes - MAC_BYTES));
}

/* Puts a value at a place of a manifest with one object of four rows, and
 * says whether that parses. */
static bool with(size_t at, size_t width, uint64_t value)
{
    ldr_manifest_t m = {0};
    uint32_t count = 0;
    uint8_t bytes[8];

    memset(&entries[0], 0, sizeof(entries[0]));
    entries[0].kind = LDR_MANIFEST_OBJECT;
    entries[0].object.rows = 4;
    entries[0].object.used_blocks = 40;
    entries[0].rows = rows[0];
    for (unsigned i = 0; i < 4; i++) {
        rows[0][i] = (ldr_manifest_row_t){
            .shards = 2, .block = (uint16_t)(10 * i), .blocks = 10};
    }
    assert_true(ldr_manifest_add(&m, &entries[0]));
    assert_true(ldr_manifest_finish(&m, &head, &keys));
    ldr_put64(bytes, value);
    memcpy(m.data + at, bytes, width);
    reseal(m.data, m.bytes);
    bool ok = parse(m.data, m.bytes, width == 0 ? &count : NULL);
    ldr_manifest_clear(&m);
    return ok;
}

static void test_fields(void **arg)
{
    enum { OBJECT = 64, ROW = OBJECT + 53 + 3 * 30 };

    (void)arg;
    assert_true(with(0, 0, 0));
    assert_false(with(8, 4, 0)); /* version */
    assert_false(with(8, 4, 2));
    assert_false(with(12, 4, 0)); /* entries: bytes are left over */
    assert_false(with(12, 4, 2)); /* ... or there are too few */
    assert_false(with(12, 4, UINT32_MAX));
    assert_false(with(48, 8, 0)); /* bytes of them all */
    assert_false(with(48, 8, UINT64_MAX));
    assert_false(with(60, 4, 1)); /* reserved */
    for (unsigned kind = 0; kind < 256; kind++) {
        if (kind != LDR_MANIFEST_OBJECT) {
            assert_false(with(OBJECT, 1, kind));
        }
    }
    assert_false(with(OBJECT + 45, 4, 39)); /* less than its rows need */
    assert_false(with(OBJECT + 45, 4, 32769));
    assert_false(with(OBJECT + 49, 4, 3)); /* rows */
    assert_false(with(OBJECT + 49, 4, 5));
    assert_false(with(OBJECT + 49, 4, LDR_OBJECT_ROWS_MAX + 1));
    assert_false(with(OBJECT + 49, 4, UINT32_MAX));
    assert_false(with(ROW + 20, 2, 31)); /* block */
    assert_false(with(ROW + 20, 2, UINT16_MAX));
    assert_false(with(ROW + 22, 2, 0)); /* blocks */
    assert_false(with(ROW + 22, 2, 1));
    assert_false(with(ROW + 22, 2, 11));
    assert_false(with(ROW + 27, 1, LARDER_GROUPS_MAX));
    assert_false(with(ROW + 28, 1, 2)); /* shard */
    assert_false(with(ROW + 29, 1, 0)); /* shards */
    assert_false(with(ROW + 29, 1, LARDER_SHARDS_MAX + 1));
}

/* Random changes under a good seal: it parses or not, and if it does all that
 * it tells is in range. */
static void in_range(void *arg, const ldr_manifest_entry_t *e)
{
    uint32_t n = e->kind == LDR_MANIFEST_OBJECT ? e->object.rows : 0;

    (void)arg;
    for (uint32_t i = 0; i < n; i++) {
        const ldr_manifest_row_t *r = &e->rows[i];

        assert_true(r->blocks >= 2);
        assert_true(r->block + r->blocks <= e->object.used_blocks);
        assert_true(r->group < LARDER_GROUPS_MAX && r->shard < r->shards);
    }
}

static void test_hostile(void **arg)
{
    ldr_manifest_t m;
    unsigned taken = 0;

    (void)arg;
    for (int i = 0; i < 3000; i++) {
        ldr_manifest_head_t out = head;

        compose(&m, 1 + below(4));
        for (uint32_t n = 1 + below(3); n > 0; n--) {
            size_t at =
                below(3) != 0 ? below(64 + 60) : below((uint32_t)m.bytes);

            m.data[at % (m.bytes - MAC_BYTES)] = (uint8_t)ldr_rand_next(&rnd);
        }
        if (below(4) == 0 && m.bytes > 200) { /* another end */
            m.bytes -= below(100);
            ldr_put64(m.data + 48, m.bytes - 64 - MAC_BYTES);
        }
        reseal(m.data, m.bytes);
        taken +=
            ldr_manifest_parse(m.data, m.bytes, &keys, &out, in_range, NULL);
        ldr_manifest_clear(&m);
    }
    assert_true(taken > 100 && taken < 2900);
}

/* An entry that nobody could read again is not taken. */
static void test_add_refuses(void **arg)
{
    ldr_manifest_t m = {0};
    uint32_t count = 0;
    ldr_manifest_entry_t bad;

    (void)arg;
    random_entry(&entries[0], rows[0]);
    assert_true(ldr_manifest_add(&m, &entries[0]));
    size_t bytes = m.bytes;
    for (int i = 0; i < 5; i++) {
        memset(&bad, 0, sizeof(bad));
        bad.kind = i == 0 ? (ldr_manifest_kind_t)5 : LDR_MANIFEST_OBJECT;
        bad.object.used_blocks = 100;
        bad.object.rows = i == 1 ? LDR_OBJECT_ROWS_MAX + 1 : 1;
        bad.rows = rows[1];
        random_row(&rows[1][0], 100);
        rows[1][0].blocks = i == 2 ? 1 : i == 3 ? 101 : 2;
        rows[1][0].block = 0;
        rows[1][0].shard = i == 4 ? rows[1][0].shards : 0;
        assert_false(ldr_manifest_add(&m, &bad));
        assert_int_equal(m.bytes, bytes);
    }
    assert_true(ldr_manifest_finish(&m, &head, &keys));
    assert_true(parse(m.data, m.bytes, &count));
    assert_int_equal(count, 1);
    ldr_manifest_clear(&m);
}

/* It ends at its limit, and what it holds then can still be read. */
static void test_full(void **arg)
{
    ldr_manifest_t m = {0};
    ldr_manifest_entry_t e = {.kind = LDR_MANIFEST_OBJECT};
    ldr_manifest_row_t *many = calloc(LDR_OBJECT_ROWS_MAX, sizeof(*many));
    ldr_manifest_head_t out = head;
    uint32_t count = 0;

    (void)arg;
    assert_non_null(many);
    for (uint32_t i = 0; i < LDR_OBJECT_ROWS_MAX; i++) {
        random_row(&many[i], 1000);
    }
    e.object.rows = LDR_OBJECT_ROWS_MAX;
    e.object.used_blocks = 1000;
    e.rows = many;
    while (ldr_manifest_add(&m, &e)) {
        count++;
    }
    assert_int_equal(m.entries, count);
    assert_true(m.bytes <= LDR_MANIFEST_BYTES_MAX);
    assert_true(m.bytes > LDR_MANIFEST_BYTES_MAX - 200000);
    assert_true(ldr_manifest_finish(&m, &head, &keys));
    assert_true(
        ldr_manifest_parse(m.data, m.bytes, &keys, &out, in_range, NULL));
    ldr_manifest_clear(&m);
    free(many);
}

static void test_no_memory(void **arg)
{
    ldr_manifest_t m = {0};
    uint32_t count = 0;

    (void)arg;
    random_entry(&entries[0], rows[0]);
    ldr_fault_arm(LDR_FAULT_alloc, 1, 1);
    assert_false(ldr_manifest_add(&m, &entries[0]));
    assert_true(ldr_manifest_add(&m, &entries[0]));
    assert_true(ldr_manifest_finish(&m, &head, &keys));
    ldr_fault_arm(LDR_FAULT_alloc, 1, 1);
    assert_false(parse(m.data, m.bytes, NULL));
    assert_true(parse(m.data, m.bytes, &count));
    ldr_manifest_clear(&m);
}

/* The format does not change by accident. The figure was computed from
 * docs/concepts/shared.md by another implementation. */
static void test_golden(void **arg)
{
    ldr_manifest_t m = {0};
    ldr_manifest_entry_t e;
    ldr_manifest_row_t row = {.group = 1,
                              .shard = 2,
                              .shards = 3,
                              .block = 4,
                              .blocks = 5,
                              .depth = 0x060708,
                              .expires_s = 9};

    (void)arg;
    memset(&keys, 1, sizeof(keys));
    memset(&head, 2, sizeof(head));
    memset(row.key, 3, sizeof(row.key));
    for (unsigned kind = 1; kind <= 4; kind++) {
        memset(&e, 4, sizeof(e));
        e.kind = (ldr_manifest_kind_t)kind;
        e.object.rows = 1;
        e.object.used_blocks = 100;
        e.rows = &row;
        assert_true(ldr_manifest_add(&m, &e));
    }
    assert_true(ldr_manifest_finish(&m, &head, &keys));
    assert_int_equal(m.bytes, 64 + 83 + 17 + 51 + 21 + 32);
    assert_memory_equal(m.data, "LARDERMF\1\0\0\0\4\0\0\0", 16);
    assert_int_equal(ldr_crc32c(0, m.data, m.bytes), 0x3905efc7);
    ldr_manifest_clear(&m);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_round_trip, setup),
        cmocka_unit_test_setup(test_size, setup),
        cmocka_unit_test_setup(test_changed, setup),
        cmocka_unit_test_setup(test_fields, setup),
        cmocka_unit_test_setup(test_hostile, setup),
        cmocka_unit_test_setup(test_add_refuses, setup),
        cmocka_unit_test_setup(test_full, setup),
        cmocka_unit_test_setup(test_no_memory, setup),
        cmocka_unit_test(test_golden),
    };
    const char *text = getenv("LARDER_SEED");

    seed = text != NULL ? strtoull(text, NULL, 0) : 20260809;
    print_message("seed: LARDER_SEED=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
