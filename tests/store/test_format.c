/*
 * The on-disk format: what is composed parses back, and nothing else parses:
 * no flipped bit, no block of another place, use, file or directory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "store/format.h"

enum { SEGMENT_BLOCKS = 512, ROUNDS = 200 };

static uint64_t seed, state;

static uint64_t next_random(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint32_t below(uint32_t limit)
{
    return (uint32_t)(next_random() % limit);
}

static void fill(void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)to)[i] = (uint8_t)next_random();
    }
}

static int setup(void **arg)
{
    (void)arg;
    state = seed;
    return 0;
}

static ldr_segment_header_t random_header(void)
{
    ldr_segment_header_t h;

    memset(&h, 0, sizeof(h));
    fill(h.dir_id, sizeof(h.dir_id));
    h.segment = below(1u << 20);
    h.sequence = 1 + next_random() / 2;
    h.nonce = next_random();
    h.segment_bytes = (uint64_t)SEGMENT_BLOCKS * LDR_BLOCK;
    return h;
}

static ldr_record_t random_record(void)
{
    ldr_record_t r;

    memset(&r, 0, sizeof(r));
    r.kind = below(8) == 0 ? LDR_RECORD_TOMBSTONE : LDR_RECORD_SHARD;
    fill(&r.key, sizeof(r.key));
    fill(&r.parent, sizeof(r.parent));
    fill(r.space_id, sizeof(r.space_id));
    r.epoch = (uint32_t)next_random();
    r.group = (uint16_t)below(LARDER_GROUPS_MAX);
    r.shards = (uint16_t)(1 + below(LARDER_SHARDS_MAX));
    r.shard = (uint16_t)below(r.shards);
    r.codec = LDR_CODEC_RAW;
    r.flags = below(2) != 0 ? LDR_RECORD_PINNED : 0;
    r.depth = below(0x1000000);
    if (r.kind == LDR_RECORD_SHARD) {
        r.length = 1 + below(64 * LDR_BLOCK);
        r.payload_crc = (uint32_t)next_random();
    }
    r.block = 1 + below(SEGMENT_BLOCKS - 1 - ldr_record_blocks(r.length));
    r.written_s = (uint32_t)next_random();
    r.expires_s = (uint32_t)next_random();
    return r;
}

static uint32_t descriptor_at(const ldr_record_t *r)
{
    return r->block + ldr_record_blocks(r->length) - 1;
}

static void flip(uint8_t *block, size_t bit)
{
    block[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

/* Makes the seal fit again after a change, to reach the checks behind it. */
static void reseal(uint8_t *block, size_t bytes)
{
    ldr_put32(block + bytes - 4, ldr_crc32c(0, block, bytes - 4));
}

/* ---- superblock ---- */

static void random_super(ldr_super_t *s, uint32_t spaces, uint32_t tenants)
{
    memset(s, 0, sizeof(*s));
    fill(s->dir_id, sizeof(s->dir_id));
    s->generation = next_random();
    s->segment_bytes = (uint64_t)(4 + below(100000)) * LDR_BLOCK;
    s->space_count = spaces;
    s->tenant_count = tenants;
    for (uint32_t i = 0; i < spaces; i++) {
        fill(s->spaces[i].id, LDR_ID_BYTES);
        s->spaces[i].epoch = 1 + below(UINT32_MAX);
    }
    for (uint32_t i = 0; i < tenants; i++) {
        fill(&s->tenants[i], sizeof(s->tenants[i]));
    }
}

static ldr_super_t super_in, super_out;
static uint8_t super_block[LDR_SUPER_BYTES];

static void test_super_round_trip(void **arg)
{
    static const uint32_t counts[][2] = {
        {0, 0},
        {1, 0},
        {0, 1},
        {17, 5},
        {LDR_SUPER_SPACES_MAX, LDR_SUPER_TENANTS_MAX},
    };

    (void)arg;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        random_super(&super_in, counts[i][0], counts[i][1]);
        fill(super_block, sizeof(super_block)); /* all must be overwritten */
        memset(&super_out, 0xee, sizeof(super_out));
        ldr_super_compose(&super_in, super_block);
        assert_int_equal(ldr_super_parse(super_block, &super_out),
                         LDR_PARSE_OK);
        assert_memory_equal(&super_in, &super_out, sizeof(super_in));
    }
}

static void test_super_flips(void **arg)
{
    (void)arg;
    random_super(&super_in, 3, 2);
    ldr_super_compose(&super_in, super_block);
    memset(&super_out, 0xee, sizeof(super_out));
    /* Every bit of the head and of the seal, and every 509th in between. */
    for (size_t bit = 0; bit < LDR_SUPER_BYTES * 8;) {
        flip(super_block, bit);
        assert_int_not_equal(ldr_super_parse(super_block, &super_out),
                             LDR_PARSE_OK);
        flip(super_block, bit);
        bit += bit < 1024 || bit + 1024 > LDR_SUPER_BYTES * 8 ? 1 : 509;
    }
    assert_int_equal(super_out.space_count, 0xeeeeeeee); /* left alone */
    assert_int_equal(ldr_super_parse(super_block, &super_out), LDR_PARSE_OK);
}

static void test_super_fields(void **arg)
{
    (void)arg;
    random_super(&super_in, 3, 2);

    super_in.segment_bytes = LDR_BLOCK * 4 + 512;
    ldr_super_compose(&super_in, super_block);
    assert_int_equal(ldr_super_parse(super_block, &super_out), LDR_PARSE_BAD);

    super_in.segment_bytes = LDR_BLOCK * 4;
    super_in.spaces[2].epoch = 0;
    ldr_super_compose(&super_in, super_block);
    assert_int_equal(ldr_super_parse(super_block, &super_out), LDR_PARSE_BAD);

    super_in.spaces[2].epoch = 1;
    ldr_super_compose(&super_in, super_block);
    assert_int_equal(ldr_super_parse(super_block, &super_out), LDR_PARSE_OK);
    ldr_put32(super_block + 48, LDR_SUPER_SPACES_MAX + 1);
    reseal(super_block, LDR_SUPER_BYTES);
    assert_int_equal(ldr_super_parse(super_block, &super_out), LDR_PARSE_BAD);

    ldr_super_compose(&super_in, super_block);
    ldr_put32(super_block + 52, LDR_SUPER_TENANTS_MAX + 1);
    reseal(super_block, LDR_SUPER_BYTES);
    assert_int_equal(ldr_super_parse(super_block, &super_out), LDR_PARSE_BAD);
}

/* ---- header ---- */

static void test_header_round_trip(void **arg)
{
    uint8_t block[LDR_BLOCK];

    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        ldr_segment_header_t in = random_header(), out;

        fill(block, sizeof(block));
        memset(&out, 0, sizeof(out));
        ldr_header_compose(&in, block);
        assert_int_equal(ldr_header_parse(block, &out), LDR_PARSE_OK);
        assert_memory_equal(&in, &out, sizeof(in));
    }
}

static void test_header_refused(void **arg)
{
    ldr_segment_header_t in = random_header(), out;
    uint8_t block[LDR_BLOCK];

    (void)arg;
    ldr_header_compose(&in, block);
    for (size_t bit = 0; bit < LDR_BLOCK * 8; bit++) {
        flip(block, bit);
        assert_int_not_equal(ldr_header_parse(block, &out), LDR_PARSE_OK);
        flip(block, bit);
    }
    in.sequence = 0;
    ldr_header_compose(&in, block);
    assert_int_equal(ldr_header_parse(block, &out), LDR_PARSE_BAD);
    in.sequence = 1;
    in.segment_bytes = 3 * LDR_BLOCK;
    ldr_header_compose(&in, block);
    assert_int_equal(ldr_header_parse(block, &out), LDR_PARSE_BAD);
    in.segment_bytes = ((uint64_t)1 << 32) + LDR_BLOCK;
    ldr_header_compose(&in, block);
    assert_int_equal(ldr_header_parse(block, &out), LDR_PARSE_BAD);
}

static void test_empty_and_version(void **arg)
{
    ldr_segment_header_t h = random_header(), out;
    uint8_t block[LDR_BLOCK] = {0};

    (void)arg;
    assert_int_equal(ldr_header_parse(block, &out), LDR_PARSE_EMPTY);
    memset(super_block, 0, sizeof(super_block));
    assert_int_equal(ldr_super_parse(super_block, &super_out), LDR_PARSE_EMPTY);
    block[LDR_BLOCK - 1] = 1;
    super_block[LDR_SUPER_BYTES - 1] = 1;
    assert_int_equal(ldr_header_parse(block, &out), LDR_PARSE_BAD);
    assert_int_equal(ldr_super_parse(super_block, &super_out), LDR_PARSE_BAD);

    random_super(&super_in, 1, 1);
    for (int sealed = 0; sealed < 2; sealed++) {
        ldr_header_compose(&h, block);
        ldr_super_compose(&super_in, super_block);
        ldr_put32(block + 8, LDR_FORMAT_VERSION + 1);
        ldr_put32(super_block + 8, LDR_FORMAT_VERSION + 1);
        if (sealed) {
            reseal(block, LDR_BLOCK);
            reseal(super_block, LDR_SUPER_BYTES);
        }
        assert_int_equal(ldr_header_parse(block, &out), LDR_PARSE_VERSION);
        assert_int_equal(ldr_super_parse(super_block, &super_out),
                         LDR_PARSE_VERSION);
    }
}

/* ---- records ---- */

static void test_record_round_trip(void **arg)
{
    uint8_t block[LDR_BLOCK], row[LDR_ROW_BYTES];

    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        ldr_segment_header_t h = random_header();
        ldr_record_t in = random_record(), out;

        fill(block, sizeof(block));
        memset(&out, 0, sizeof(out));
        ldr_record_compose(&in, &h, block);
        assert_true(ldr_record_parse(block, &h, descriptor_at(&in), &out));
        assert_memory_equal(&in, &out, sizeof(in));

        fill(row, sizeof(row));
        memset(&out, 0, sizeof(out));
        ldr_row_compose(&in, row);
        assert_true(ldr_row_parse(row, &h, &out));
        in.payload_crc = 0;
        assert_memory_equal(&in, &out, sizeof(in));
    }
}

/* The stored payload checksum is that of everything: the segment's identity,
 * the descriptor up to it, the payload. */
static void test_record_checksum_covers_all(void **arg)
{
    ldr_segment_header_t h = random_header();
    uint8_t header[LDR_BLOCK], block[LDR_BLOCK], payload[5000];
    ldr_record_t r = random_record();

    (void)arg;
    fill(payload, sizeof(payload));
    r.kind = LDR_RECORD_SHARD;
    r.length = sizeof(payload);
    r.block = 7;
    r.payload_crc = ldr_crc32c(0, payload, sizeof(payload));
    ldr_header_compose(&h, header);
    ldr_record_compose(&r, &h, block);

    uint32_t crc = ldr_crc32c(0, header + 16, 48);
    crc = ldr_crc32c(crc, block, 160);
    crc = ldr_crc32c(crc, payload, sizeof(payload));
    assert_int_equal(ldr_get32(block + 160), crc);
}

static void test_record_flips(void **arg)
{
    ldr_segment_header_t h = random_header();
    ldr_record_t in = random_record(), out;
    uint8_t block[LDR_BLOCK];

    (void)arg;
    ldr_record_compose(&in, &h, block);
    memset(&out, 0xee, sizeof(out));
    for (size_t bit = 0; bit < LDR_BLOCK * 8; bit++) {
        flip(block, bit);
        assert_false(ldr_record_parse(block, &h, descriptor_at(&in), &out));
        flip(block, bit);
    }
    assert_int_equal(out.length, 0xeeeeeeee); /* left alone */
    assert_true(ldr_record_parse(block, &h, descriptor_at(&in), &out));
}

/* Right bytes, wrong place. */
static void test_record_elsewhere(void **arg)
{
    uint8_t block[LDR_BLOCK], zero[LDR_BLOCK] = {0};

    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        ldr_segment_header_t h = random_header(), other;
        ldr_record_t in = random_record(), out;
        uint32_t at = descriptor_at(&in);

        ldr_record_compose(&in, &h, block);
        for (uint32_t b = 0; b < SEGMENT_BLOCKS; b++) {
            assert_int_equal(ldr_record_parse(block, &h, b, &out), b == at);
        }
        other = h;
        other.sequence++;
        assert_false(ldr_record_parse(block, &other, at, &out));
        other = h;
        flip((uint8_t *)&other.nonce, below(64));
        assert_false(ldr_record_parse(block, &other, at, &out));
        other = h;
        flip(other.dir_id, below(8 * LDR_ID_BYTES));
        assert_false(ldr_record_parse(block, &other, at, &out));
        other = h;
        other.segment ^= 1;
        assert_false(ldr_record_parse(block, &other, at, &out));
        assert_false(ldr_record_parse(zero, &h, at, &out));
        ldr_header_compose(&h, block);
        assert_false(ldr_record_parse(block, &h, at, &out));
    }
}

/* A field out of range is refused although all checksums hold. */
static void assert_refused(const ldr_record_t *r)
{
    ldr_segment_header_t h = random_header();
    uint8_t block[LDR_BLOCK], row[LDR_ROW_BYTES];
    ldr_record_t out;

    ldr_row_compose(r, row);
    assert_false(ldr_row_parse(row, &h, &out));
    ldr_record_compose(r, &h, block);
    assert_false(ldr_record_parse(block, &h, descriptor_at(r), &out));
}

static void test_record_fields(void **arg)
{
    ldr_record_t good = random_record();

    (void)arg;
    good.kind = LDR_RECORD_SHARD;
    good.length = LDR_BLOCK;
    good.block = 1;
    good.shards = 4;
    good.shard = 3;
#define REFUSED(field, value)                                                  \
    do {                                                                       \
        ldr_record_t r = good;                                                 \
        r.field = (value);                                                     \
        assert_refused(&r);                                                    \
    } while (0)
    REFUSED(kind, 0);
    REFUSED(kind, 3);
    REFUSED(kind, LDR_RECORD_TOMBSTONE); /* with a payload */
    REFUSED(length, 0);
    REFUSED(length, (uint32_t)LARDER_VALUE_MAX + 1);
    REFUSED(length, UINT32_MAX); /* whose blocks would overflow */
    REFUSED(length, SEGMENT_BLOCKS * LDR_BLOCK);
    REFUSED(block, 0);
    REFUSED(block, SEGMENT_BLOCKS - 2); /* into the footer */
    REFUSED(block, UINT32_MAX);
    REFUSED(block, UINT32_MAX - 1);
    REFUSED(shard, 4);
    REFUSED(shards, 0);
    REFUSED(shards, LARDER_SHARDS_MAX + 1);
    REFUSED(group, LARDER_GROUPS_MAX);
    REFUSED(depth, 0x1000000);
    REFUSED(flags, 2);
    REFUSED(codec, 1);
#undef REFUSED

    ldr_segment_header_t h = random_header();
    uint8_t row[LDR_ROW_BYTES];
    ldr_record_t out;

    good.block = SEGMENT_BLOCKS - 3; /* the last place there is */
    ldr_row_compose(&good, row);
    assert_true(ldr_row_parse(row, &h, &out));
    row[LDR_ROW_BYTES - 1] = 1; /* what must be zero */
    assert_false(ldr_row_parse(row, &h, &out));
}

/* ---- table ---- */

static void test_table_blocks(void **arg)
{
    (void)arg;
    assert_int_equal(ldr_table_blocks(0), 1);
    assert_int_equal(ldr_table_blocks(1), 2);
    assert_int_equal(ldr_table_blocks(32), 2);
    assert_int_equal(ldr_table_blocks(33), 3);
    assert_int_equal(ldr_table_blocks(UINT32_MAX), (1u << 27) + 1);
}

/* Every bit of rows and footer: the footer refuses its own, and its checksum
 * of the rows those of the rows. */
static void test_table_flips(void **arg)
{
    enum { ROWS = 3 };
    ldr_segment_header_t h = random_header(), other = h;
    uint8_t rows[ROWS * LDR_ROW_BYTES], block[LDR_BLOCK];
    ldr_footer_t in = {.rows = ROWS, .used_blocks = 300}, out;

    (void)arg;
    for (int i = 0; i < ROWS; i++) {
        ldr_record_t r = random_record();

        ldr_row_compose(&r, rows + i * LDR_ROW_BYTES);
    }
    in.table_crc = ldr_crc32c(0, rows, sizeof(rows));
    fill(block, sizeof(block));
    ldr_footer_compose(&in, &h, block);
    assert_true(ldr_footer_parse(block, &h, &out));
    assert_memory_equal(&in, &out, sizeof(in));
    for (size_t bit = 0; bit < sizeof(rows) * 8; bit++) {
        flip(rows, bit);
        assert_int_not_equal(ldr_crc32c(0, rows, sizeof(rows)), out.table_crc);
        flip(rows, bit);
    }
    for (size_t bit = 0; bit < LDR_BLOCK * 8; bit++) {
        flip(block, bit);
        assert_false(ldr_footer_parse(block, &h, &out));
        flip(block, bit);
    }
    other.sequence++;
    assert_false(ldr_footer_parse(block, &other, &out));
    other = h;
    other.nonce++;
    assert_false(ldr_footer_parse(block, &other, &out));
    other = h;
    other.dir_id[0]++;
    assert_false(ldr_footer_parse(block, &other, &out));
}

static void test_footer_fields(void **arg)
{
    static const struct {
        uint32_t rows, used_blocks;
        bool ok;
    } cases[] = {
        {0, 1, true},
        {0, 0, false},
        {1, 1, false}, /* a row without a block */
        {1, 2, true},
        {0, SEGMENT_BLOCKS - 1, true},
        {0, SEGMENT_BLOCKS, false},
        {32, SEGMENT_BLOCKS - 2, true},
        {33, SEGMENT_BLOCKS - 2, false},
        {UINT32_MAX, UINT32_MAX, false},
    };
    ldr_segment_header_t h = random_header();
    uint8_t block[LDR_BLOCK];

    (void)arg;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ldr_footer_t f = {.rows = cases[i].rows,
                          .used_blocks = cases[i].used_blocks};

        ldr_footer_compose(&f, &h, block);
        assert_int_equal(ldr_footer_parse(block, &h, &f), cases[i].ok);
    }
}

/* ---- golden bytes ---- */

/* Fails when the bytes on disk change. If that is meant, LDR_FORMAT_VERSION
 * must change as well. */
static void test_golden(void **arg)
{
    ldr_segment_header_t h = {.segment = 42,
                              .sequence = 0x0102030405060708,
                              .nonce = 0x1122334455667788,
                              .segment_bytes = 64u << 20};
    ldr_record_t r = {.kind = LDR_RECORD_SHARD,
                      .epoch = 3,
                      .group = 1,
                      .shard = 2,
                      .shards = 4,
                      .flags = LDR_RECORD_PINNED,
                      .depth = 77,
                      .block = 9,
                      .length = 1000000,
                      .written_s = 1700000000,
                      .expires_s = 1800000000,
                      .payload_crc = 0xdeadbeef};
    ldr_footer_t f = {.rows = 5, .used_blocks = 900, .table_crc = 0xcafef00d};
    uint8_t block[LDR_BLOCK];

    (void)arg;
    memset(h.dir_id, 0xa1, sizeof(h.dir_id));
    memset(&r.key, 0xb2, sizeof(r.key));
    memset(&r.parent, 0xc3, sizeof(r.parent));
    memset(r.space_id, 0xd4, sizeof(r.space_id));
    memset(&super_in, 0, sizeof(super_in));
    memcpy(super_in.dir_id, h.dir_id, sizeof(h.dir_id));
    super_in.generation = 6;
    super_in.segment_bytes = h.segment_bytes;
    super_in.space_count = super_in.tenant_count = 1;
    memset(super_in.spaces[0].id, 0xd4, LDR_ID_BYTES);
    super_in.spaces[0].epoch = 3;
    memset(&super_in.tenants[0], 0xe5, sizeof(super_in.tenants[0]));

    assert_int_equal(LDR_FORMAT_VERSION, 1);
    ldr_super_compose(&super_in, super_block);
    assert_memory_equal(super_block, "LARDERSB\1\0\0\0\0\0\0\0", 16);
    assert_int_equal(ldr_crc32c(0, super_block, LDR_SUPER_BYTES - 4),
                     0x9db985f7);
    ldr_header_compose(&h, block);
    assert_memory_equal(block, "LARDERSG\1\0\0\0\0\0\0\0", 16);
    assert_memory_equal(block + 32, "\x08\x07\x06\x05\x04\x03\x02\x01", 8);
    assert_int_equal(ldr_crc32c(0, block, LDR_BLOCK - 4), 0x523734ab);
    ldr_record_compose(&r, &h, block);
    assert_memory_equal(block, "LARDERRC\1\0\0\0\0\0\0\0", 16);
    assert_int_equal(ldr_crc32c(0, block, LDR_BLOCK - 4), 0x9686913b);
    assert_int_equal(ldr_get32(block + LDR_BLOCK - 4), 0xddfc0cb1);
    ldr_footer_compose(&f, &h, block);
    assert_memory_equal(block, "LARDERTB\1\0\0\0\0\0\0\0", 16);
    assert_int_equal(ldr_crc32c(0, block, LDR_BLOCK - 4), 0x211c1d47);
    assert_int_equal(ldr_get32(block + LDR_BLOCK - 4), 0x6a6680cd);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_super_round_trip, setup),
        cmocka_unit_test_setup(test_super_flips, setup),
        cmocka_unit_test_setup(test_super_fields, setup),
        cmocka_unit_test_setup(test_header_round_trip, setup),
        cmocka_unit_test_setup(test_header_refused, setup),
        cmocka_unit_test_setup(test_empty_and_version, setup),
        cmocka_unit_test_setup(test_record_round_trip, setup),
        cmocka_unit_test_setup(test_record_checksum_covers_all, setup),
        cmocka_unit_test_setup(test_record_flips, setup),
        cmocka_unit_test_setup(test_record_elsewhere, setup),
        cmocka_unit_test_setup(test_record_fields, setup),
        cmocka_unit_test(test_table_blocks),
        cmocka_unit_test_setup(test_table_flips, setup),
        cmocka_unit_test_setup(test_footer_fields, setup),
        cmocka_unit_test(test_golden),
    };
    const char *text = getenv("LARDER_SEED");

    seed = text != NULL ? strtoull(text, NULL, 0) : 20240607;
    print_message("seed: LARDER_SEED=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
