/*
 * Objects of the shared tier: what was sealed is given back, and nothing else
 * is: no flipped bit, no record of another place, object, space or tenant, no
 * field out of range even with a good tag. LARDER_SEED repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "tier/shared/object.h"
#include "tier/shared/seal.h"

enum { PAYLOAD_MAX = 40 * LDR_BLOCK, PIECES_MAX = 64, ROUNDS = 60 };

static uint64_t seed;
static ldr_rand_t rnd;
static uint8_t payload[PAYLOAD_MAX], copy[PAYLOAD_MAX], sealed[PAYLOAD_MAX];
static uint8_t block[LDR_BLOCK];
static ldr_seal_t keys;
static ldr_object_t object;

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

static void flip(uint8_t *p, size_t bit)
{
    p[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

static int setup(void **arg)
{
    (void)arg;
    ldr_rand_seed(&rnd, seed);
    fill(&keys.mac, sizeof(keys.mac));
    fill(&keys.cipher, sizeof(keys.cipher));
    keys.encrypts = false;
    memset(&object, 0, sizeof(object));
    fill(object.id, sizeof(object.id));
    fill(object.space_id, sizeof(object.space_id));
    object.epoch = 7;
    object.written_s = 1700000000;
    return 0;
}

/* A record of that many bytes, with the payload and its padding. */
static ldr_record_t random_record(uint32_t length)
{
    ldr_record_t r;

    memset(&r, 0, sizeof(r));
    r.kind = LDR_RECORD_SHARD;
    fill(&r.key, sizeof(r.key));
    fill(&r.parent, sizeof(r.parent));
    memcpy(r.space_id, object.space_id, LDR_ID_BYTES);
    r.epoch = object.epoch;
    r.shards = (uint16_t)(1 + below(LARDER_SHARDS_MAX));
    r.shard = (uint16_t)below(r.shards);
    r.group = (uint16_t)below(LARDER_GROUPS_MAX);
    r.flags = below(2) != 0 ? LDR_RECORD_PINNED : 0;
    r.depth = below(0x1000000);
    r.block = below(1000);
    r.length = length;
    r.written_s = below(UINT32_MAX);
    r.expires_s = below(UINT32_MAX);
    fill(payload, length);
    memset(payload + length, 0, (LDR_BLOCK - length % LDR_BLOCK) % LDR_BLOCK);
    r.payload_crc = ldr_crc32c(0, payload, length);
    return r;
}

static size_t padded(const ldr_record_t *r)
{
    return (size_t)(ldr_record_blocks(r->length) - 1) * LDR_BLOCK;
}

/* Cuts base[0...bytes) into pieces of whole blocks. */
static unsigned cut(uint8_t *base, size_t bytes, struct iovec *iov)
{
    unsigned count = 0;

    while (bytes > 0) {
        size_t n = (size_t)(1 + below(9)) * LDR_BLOCK;

        n = n < bytes ? n : bytes;
        iov[count++] = (struct iovec){base, n};
        base += n;
        bytes -= n;
    }
    return count;
}

/* Seals what lies in payload; then copy is what lies in the object. */
static void seal_record(const ldr_record_t *r)
{
    struct iovec iov[PIECES_MAX];
    unsigned count = cut(payload, padded(r), iov);

    fill(block, sizeof(block));
    fill(sealed, padded(r));
    assert_true(ldr_object_seal(&keys, &object, r, iov, count, sealed, block));
    memcpy(copy, keys.encrypts ? sealed : payload, padded(r));
}

static ldr_unseal_t unseal(const ldr_seal_t *seal, const ldr_object_t *from,
                           uint32_t at, size_t bytes, ldr_record_t *out)
{
    struct iovec iov[PIECES_MAX];
    unsigned count = cut(copy, bytes, iov);
    ldr_object_t o = *from;
    uint32_t epoch = o.epoch = 123456;
    ldr_unseal_t got;

    memset(out, 0xee, sizeof(*out));
    got = ldr_object_unseal(seal, &o, at, block, iov, count, out);
    if (got != LDR_UNSEAL_OK) {
        assert_int_equal(out->length, 0xeeeeeeee); /* left alone */
        assert_int_equal(o.epoch, epoch);
    } else {
        assert_int_equal(o.epoch, from->epoch);
    }
    return got;
}

static void assert_given_back(const ldr_record_t *r)
{
    ldr_record_t out;

    assert_int_equal(unseal(&keys, &object, r->block, padded(r), &out),
                     LDR_UNSEAL_OK);
    assert_memory_equal(&out, r, sizeof(out));
    assert_memory_equal(copy, payload, padded(r));
}

static void test_round_trip(void **arg)
{
    static const uint32_t lengths[] = {1, LDR_BLOCK - 1, LDR_BLOCK,
                                       LDR_BLOCK + 1, PAYLOAD_MAX};

    (void)arg;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        uint32_t length = i < 10 ? lengths[i / 2] : 1 + below(PAYLOAD_MAX);
        ldr_record_t r = random_record(length);

        keys.encrypts = i % 2 != 0;
        seal_record(&r);
        assert_int_equal(memcmp(copy, payload, padded(&r)) != 0, i % 2);
        assert_given_back(&r);
    }
}

/* Every bit of the descriptor, and some of the payload and its padding. */
static void test_flips(void **arg)
{
    (void)arg;
    for (int mode = 0; mode < 2; mode++) {
        ldr_record_t r = random_record(2 * LDR_BLOCK + 100), out;

        keys.encrypts = mode != 0;
        seal_record(&r);
        for (size_t bit = 0; bit < LDR_BLOCK * 8; bit++) {
            flip(block, bit);
            assert_int_not_equal(
                unseal(&keys, &object, r.block, padded(&r), &out),
                LDR_UNSEAL_OK);
            flip(block, bit);
            memcpy(copy, mode != 0 ? sealed : payload, padded(&r));
        }
        for (int i = 0; i < 500; i++) {
            flip(copy,
                 i == 0 ? padded(&r) * 8 - 1 : below((uint32_t)padded(&r) * 8));
            assert_int_equal(unseal(&keys, &object, r.block, padded(&r), &out),
                             LDR_UNSEAL_BAD);
            memcpy(copy, mode != 0 ? sealed : payload, padded(&r));
        }
        assert_given_back(&r);
    }
}

/* A forger repairs the checksum; the tag he cannot. */
static void test_forged(void **arg)
{
    (void)arg;
    for (int mode = 0; mode < 2; mode++) {
        ldr_record_t r = random_record(3 * LDR_BLOCK), out;

        keys.encrypts = mode != 0;
        seal_record(&r);
        for (size_t bit = 0; bit < (LDR_BLOCK - 4) * 8; bit += 1 + below(7)) {
            flip(block, bit);
            ldr_put32(block + LDR_BLOCK - 4,
                      ldr_crc32c(0, block, LDR_BLOCK - 4));
            assert_int_not_equal(
                unseal(&keys, &object, r.block, padded(&r), &out),
                LDR_UNSEAL_OK);
            flip(block, bit);
            memcpy(copy, mode != 0 ? sealed : payload, padded(&r));
        }
        ldr_put32(block + LDR_BLOCK - 4, ldr_crc32c(0, block, LDR_BLOCK - 4));
        assert_given_back(&r);
    }
}

/* Right bytes in the wrong place, object, space; or a piece of them. */
static void test_elsewhere(void **arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        ldr_record_t r = random_record(1 + below(PAYLOAD_MAX - LDR_BLOCK));
        ldr_record_t out;
        ldr_object_t other = object;
        size_t bytes = padded(&r);

        seal_record(&r);
        assert_int_equal(unseal(&keys, &object, r.block + 1, bytes, &out),
                         LDR_UNSEAL_BAD);
        flip(other.id, below(8 * LDR_ID_BYTES));
        assert_int_equal(unseal(&keys, &other, r.block, bytes, &out),
                         LDR_UNSEAL_BAD);
        other = object;
        flip(other.space_id, below(8 * LDR_ID_BYTES));
        assert_int_equal(unseal(&keys, &other, r.block, bytes, &out),
                         LDR_UNSEAL_BAD);
        assert_int_equal(
            unseal(&keys, &object, r.block, bytes - LDR_BLOCK, &out),
            LDR_UNSEAL_BAD);
        assert_int_equal(
            unseal(&keys, &object, r.block, bytes + LDR_BLOCK, &out),
            LDR_UNSEAL_BAD);
        assert_given_back(&r);
    }
}

static void test_keys(void **arg)
{
    (void)arg;
    for (int mode = 0; mode < 2; mode++) {
        ldr_record_t r = random_record(5000), out;
        ldr_seal_t other;

        keys.encrypts = mode != 0;
        seal_record(&r);
        other = keys;
        other.mac[31] ^= 1; /* with encryption it takes both */
        assert_int_equal(unseal(&other, &object, r.block, padded(&r), &out),
                         LDR_UNSEAL_BAD);
        memcpy(copy, mode != 0 ? sealed : payload, padded(&r));
        other = keys;
        other.cipher[0] ^= 0x80;
        assert_int_equal(unseal(&other, &object, r.block, padded(&r), &out),
                         mode != 0 ? LDR_UNSEAL_BAD : LDR_UNSEAL_OK);
        memcpy(copy, mode != 0 ? sealed : payload, padded(&r));
        other = keys;
        other.encrypts = mode == 0;
        assert_int_equal(unseal(&other, &object, r.block, padded(&r), &out),
                         LDR_UNSEAL_KEY);
        assert_given_back(&r);
    }
}

/* Two records of the same bytes share nothing once they are encrypted. */
static void test_encrypted_differ(void **arg)
{
    ldr_record_t r = random_record(4 * LDR_BLOCK);
    static uint8_t first[4 * LDR_BLOCK];
    ldr_object_t other = object;

    (void)arg;
    keys.encrypts = true;
    seal_record(&r);
    memcpy(first, sealed, sizeof(first));
    seal_record(&r);
    assert_memory_equal(first, sealed, sizeof(first)); /* nothing is drawn */
    r.block++;
    seal_record(&r);
    assert_memory_not_equal(first, sealed, 16);
    r.block--;
    object.id[3] ^= 1;
    seal_record(&r);
    assert_memory_not_equal(first, sealed, 16);
    object = other;
}

/* What was damaged before it was sealed gets no tag. */
static void test_wrong_crc(void **arg)
{
    ldr_record_t r = random_record(3 * LDR_BLOCK - 100);
    struct iovec iov[PIECES_MAX];
    unsigned count = cut(payload, padded(&r), iov);

    (void)arg;
    for (unsigned i = 0; i < 2; i++) {
        keys.encrypts = i == 1;
        assert_true(ldr_object_intact(&r, iov, count));
        seal_record(&r);
        flip(payload, below(r.length * 8));
        assert_false(ldr_object_intact(&r, iov, count));
        assert_false(
            ldr_object_seal(&keys, &object, &r, iov, count, sealed, block));
        r.payload_crc = ldr_crc32c(0, payload, r.length);
    }
}

/* Fields that nothing of ours writes, with the tag of somebody who could. */
static void test_fields(void **arg)
{
    ldr_record_t good = random_record(LDR_BLOCK), out;
    struct iovec iov = {payload, LDR_BLOCK};

    (void)arg;
    good.shards = 4;
    good.shard = 3;
#define REFUSED(field, value)                                                  \
    do {                                                                       \
        ldr_record_t r = good;                                                 \
        r.field = (value);                                                     \
        seal_record(&r);                                                       \
        assert_int_equal(unseal(&keys, &object, r.block, LDR_BLOCK, &out),     \
                         LDR_UNSEAL_BAD);                                      \
    } while (0)
    REFUSED(kind, 0);
    REFUSED(kind, LDR_RECORD_TOMBSTONE);
    REFUSED(block, 32767);
    REFUSED(block, UINT32_MAX);
    REFUSED(shard, 4);
    REFUSED(shards, 0);
    REFUSED(shards, LARDER_SHARDS_MAX + 1);
    REFUSED(group, LARDER_GROUPS_MAX);
    REFUSED(depth, 0x1000000);
    REFUSED(flags, 2);
    REFUSED(codec, 1);
#undef REFUSED
    good.length = 0;
    assert_false(ldr_object_seal(&keys, &object, &good, &iov, 0, NULL, block));
    good.length = LDR_BLOCK + 1; /* more than there is */
    assert_false(ldr_object_seal(&keys, &object, &good, &iov, 1, NULL, block));
    good.length = UINT32_MAX;
    assert_false(ldr_object_seal(&keys, &object, &good, &iov, 1, NULL, block));
}

/* Bytes of a descriptor that are not as they must be, with a good tag and a
 * good checksum. */
static void test_reserved(void **arg)
{
    static const struct {
        uint32_t at;
        uint8_t value;
    } bad[] = {{0, 'l'}, {8, 2},   {11, 1},  {12, 2},   {15, 1},
               {150, 1}, {159, 1}, {164, 1}, {2000, 1}, {4075, 1}};
    ldr_record_t r = random_record(LDR_BLOCK), out;
    ldr_gcm_t gcm;

    (void)arg;
    for (unsigned i = 0; i <= sizeof(bad) / sizeof(*bad); i++) {
        bool good = i == sizeof(bad) / sizeof(*bad); /* the last: no change */

        seal_record(&r);
        if (!good) {
            assert_int_not_equal(block[bad[i].at], bad[i].value);
            block[bad[i].at] = bad[i].value;
        }
        ldr_gcm_begin(&gcm, &keys, object.id, LDR_SEALING_RECORD, r.block,
                      false);
        ldr_gcm_data(&gcm, NULL, block, LDR_BLOCK - 20);
        ldr_gcm_data(&gcm, NULL, copy, LDR_BLOCK);
        assert_true(ldr_gcm_tag(&gcm, block + LDR_BLOCK - 20));
        ldr_put32(block + LDR_BLOCK - 4, ldr_crc32c(0, block, LDR_BLOCK - 4));
        assert_int_equal(unseal(&keys, &object, r.block, LDR_BLOCK, &out),
                         good ? LDR_UNSEAL_OK : LDR_UNSEAL_BAD);
    }
}

/* ---- tails ---- */

static ldr_record_t rows[LDR_OBJECT_ROWS_MAX], rows_out[LDR_OBJECT_ROWS_MAX];
static uint8_t tail[(LDR_OBJECT_ROWS_MAX / 32 + 1) * LDR_BLOCK];

/* So many records, one after the other with some room between. */
static size_t random_tail(uint32_t count)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < count; i++) {
        rows[i] = random_record(1 + below(2 * LDR_BLOCK));
        rows[i].payload_crc = 0;
        rows[i].block = at + below(2);
        at = rows[i].block + ldr_record_blocks(rows[i].length);
    }
    object.rows = count;
    object.used_blocks = at + below(2);
    return ldr_object_tail_bytes(count);
}

static bool tail_parse(size_t bytes, ldr_object_t *o)
{
    memset(o, 0xee, sizeof(*o));
    memcpy(o->id, object.id, LDR_ID_BYTES);
    memset(rows_out, 0xee, sizeof(rows_out));
    return ldr_object_tail_parse(&keys, tail, bytes, o, rows_out);
}

static void test_tail(void **arg)
{
    static const uint32_t counts[] = {
        1, 2, 31, 32, 33, 256, LDR_OBJECT_ROWS_MAX};
    ldr_object_t out;

    (void)arg;
    for (unsigned i = 0; i < 2 * sizeof(counts) / sizeof(*counts); i++) {
        uint32_t count = counts[i / 2];
        size_t bytes = random_tail(count);

        assert_int_equal(bytes % LDR_BLOCK, 0);
        assert_true(bytes <= sizeof(tail));
        fill(tail, bytes);
        keys.encrypts = i % 2 != 0;
        assert_true(ldr_object_tail_compose(&keys, &object, rows, tail));
        assert_int_equal(ldr_object_tail_find(tail + bytes - LDR_BLOCK), bytes);
        assert_true(tail_parse(bytes, &out));
        assert_memory_equal(&out, &object, sizeof(out));
        assert_memory_equal(rows_out, rows, sizeof(*rows) * count);
        assert_false(tail_parse(bytes - LDR_BLOCK, &out));
        keys.encrypts = !keys.encrypts;
        assert_false(tail_parse(bytes, &out));
        keys.encrypts = !keys.encrypts;
        keys.mac[0] ^= 1;
        assert_false(tail_parse(bytes, &out));
        keys.mac[0] ^= 1;
        object.id[0] ^= 1;
        assert_false(tail_parse(bytes, &out));
        object.id[0] ^= 1;
    }
}

static void test_tail_flips(void **arg)
{
    size_t bytes = random_tail(40);
    ldr_object_t out;

    (void)arg;
    assert_true(ldr_object_tail_compose(&keys, &object, rows, tail));
    for (size_t bit = 0; bit < bytes * 8; bit += 1 + below(3)) {
        uint8_t *footer = tail + bytes - LDR_BLOCK;

        flip(tail, bit);
        assert_false(tail_parse(bytes, &out));
        ldr_put32(footer + LDR_BLOCK - 4, ldr_crc32c(0, footer, LDR_BLOCK - 4));
        bool crc_only = bit / 8 >= bytes - 4;
        assert_int_equal(tail_parse(bytes, &out), crc_only);
        flip(tail, bit);
        ldr_put32(footer + LDR_BLOCK - 4, ldr_crc32c(0, footer, LDR_BLOCK - 4));
    }
    assert_true(tail_parse(bytes, &out));
}

/* Records that overlap, lead out, or are somebody else's, with a good tag. The
 * composer refuses them too, so it is a seal of our own. */
static void assert_tail_refused(size_t bytes)
{
    uint8_t *footer = tail + bytes - LDR_BLOCK;
    ldr_object_t out;
    ldr_gcm_t gcm;

    assert_false(ldr_object_tail_compose(&keys, &object, rows, tail));
    for (uint32_t i = 0; i < object.rows; i++) {
        ldr_row_compose(&rows[i], tail + (size_t)i * LDR_ROW_BYTES);
    }
    ldr_put32(footer + 60, object.used_blocks);
    ldr_gcm_begin(&gcm, &keys, object.id, LDR_SEALING_TAIL, object.used_blocks,
                  false);
    ldr_gcm_data(&gcm, NULL, tail, bytes - 20);
    assert_true(ldr_gcm_tag(&gcm, footer + LDR_BLOCK - 20));
    ldr_put32(footer + LDR_BLOCK - 4, ldr_crc32c(0, footer, LDR_BLOCK - 4));
    assert_false(tail_parse(bytes, &out));
}

static void test_tail_fields(void **arg)
{
    size_t bytes = random_tail(8);
    static ldr_record_t good[8];
    static uint8_t good_tail[2 * LDR_BLOCK];
    ldr_object_t out, o = object;

    (void)arg;
    assert_true(ldr_object_tail_compose(&keys, &object, rows, tail));
    memcpy(good, rows, sizeof(good));
    memcpy(good_tail, tail, bytes);
#define REFUSED(change)                                                        \
    do {                                                                       \
        change;                                                                \
        assert_tail_refused(bytes);                                            \
        memcpy(rows, good, sizeof(good));                                      \
        memcpy(tail, good_tail, bytes);                                        \
        object = o;                                                            \
    } while (0)
    REFUSED(rows[4].block = rows[5].block);
    REFUSED(rows[3].block = rows[2].block);
    REFUSED(rows[7].block = UINT32_MAX);
    REFUSED(rows[7].length = (uint32_t)LARDER_VALUE_MAX);
    REFUSED(rows[0].length = 0);
    REFUSED(rows[0].kind = LDR_RECORD_TOMBSTONE);
    REFUSED(object.used_blocks = rows[7].block);
    REFUSED(object.used_blocks = 15); /* less than two a record */
    REFUSED(object.used_blocks = 32768);
    REFUSED(rows[1].group = LARDER_GROUPS_MAX);
#undef REFUSED
    assert_true(tail_parse(bytes, &out));
    object.rows = 0;
    assert_false(ldr_object_tail_compose(&keys, &object, rows, tail));
    object.rows = LDR_OBJECT_ROWS_MAX + 1;
    assert_false(ldr_object_tail_compose(&keys, &object, rows, tail));
    object = o;
    memset(tail, 0, sizeof(tail));
    assert_int_equal(ldr_object_tail_find(tail), 0);
    for (size_t n = 0; n < 6; n++) {
        assert_false(tail_parse(n * 1000, &out));
    }
}

/* The format does not change by accident. The figures were computed from
 * docs/concepts/shared.md by another implementation. */
static void test_golden(void **arg)
{
    struct iovec iov = {payload, LDR_BLOCK};
    ldr_record_t r = {.kind = LDR_RECORD_SHARD,
                      .shards = 2,
                      .shard = 1,
                      .group = 3,
                      .depth = 9,
                      .block = 5,
                      .length = 6};

    (void)arg;
    memset(&keys, 1, sizeof(keys));
    memset(&object, 2, sizeof(object));
    memset(payload, 0, LDR_BLOCK);
    memcpy(payload, "larder", 6);
    r.payload_crc = ldr_crc32c(0, payload, 6);
    keys.encrypts = false;
    assert_true(ldr_object_seal(&keys, &object, &r, &iov, 1, NULL, block));
    assert_memory_equal(block, "LARDERSR\1\0\0\0\0\0\0\0", 16);
    assert_int_equal(ldr_get32(block + LDR_BLOCK - 4), 0xd38e0b04);
    keys.encrypts = true;
    assert_true(ldr_object_seal(&keys, &object, &r, &iov, 1, sealed, block));
    assert_memory_equal(block, "LARDERSR\1\0\0\0\1\0\0\0", 16);
    assert_int_equal(ldr_get32(block + LDR_BLOCK - 4), 0x2cd44b99);
    assert_int_equal(ldr_crc32c(0, sealed, LDR_BLOCK), 0xa7a9cbc0);
    r.block = 0;
    object.rows = 1;
    object.used_blocks = 2;
    assert_true(ldr_object_tail_compose(&keys, &object, &r, tail));
    assert_memory_equal(tail + LDR_BLOCK, "LARDERST\1\0\0\0\1\0\0\0", 16);
    assert_int_equal(ldr_crc32c(0, tail, 2 * LDR_BLOCK - 4), 0x3a60916e);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_round_trip, setup),
        cmocka_unit_test_setup(test_flips, setup),
        cmocka_unit_test_setup(test_forged, setup),
        cmocka_unit_test_setup(test_elsewhere, setup),
        cmocka_unit_test_setup(test_keys, setup),
        cmocka_unit_test_setup(test_encrypted_differ, setup),
        cmocka_unit_test_setup(test_wrong_crc, setup),
        cmocka_unit_test_setup(test_fields, setup),
        cmocka_unit_test_setup(test_reserved, setup),
        cmocka_unit_test_setup(test_tail, setup),
        cmocka_unit_test_setup(test_tail_flips, setup),
        cmocka_unit_test_setup(test_tail_fields, setup),
        cmocka_unit_test(test_golden),
    };
    const char *text = getenv("LARDER_SEED");

    seed = text != NULL ? strtoull(text, NULL, 0) : 20260808;
    print_message("seed: LARDER_SEED=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
