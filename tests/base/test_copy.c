/*
 * Copies and CRC-32C: every variant this CPU can run against a reference that
 * works bit by bit, at all small lengths and at random lengths and places.
 * LARDER_SEED repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/copy.h"

enum { AREA = 160 << 10, EDGE = 256, ROUNDS = 400 };

static ldr_rand_t rnd;
static uint8_t source[AREA], target[AREA], expected[AREA];

static uint32_t reference(uint32_t crc, const uint8_t *data, size_t bytes)
{
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
    }
    return ~crc;
}

static void fill(uint8_t *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        to[i] = (uint8_t)ldr_rand_next(&rnd);
    }
}

/* A copy without and with its CRC, and the CRC alone, of these bytes: the
 * copy is exact, and no byte beside it changed. */
static void check_copy(size_t to, size_t from, size_t bytes)
{
    uint32_t crc = (uint32_t)ldr_rand_next(&rnd);
    uint32_t want = reference(crc, source + from, bytes);
    size_t first = to - EDGE, all = bytes + 2 * EDGE;

    memset(expected + first, 0xa5, all);
    memcpy(expected + to, source + from, bytes);

    memset(target + first, 0xa5, all);
    ldr_copy(target + to, source + from, bytes);
    assert_memory_equal(target + first, expected + first, all);

    memset(target + first, 0xa5, all);
    assert_int_equal(ldr_copy_crc32c(crc, target + to, source + from, bytes),
                     want);
    assert_memory_equal(target + first, expected + first, all);

    /* Where the source goes on is only asked for: it may be anywhere. */
    const void *next[] = {NULL, source, source + AREA - 1, (void *)8};
    memset(target + first, 0xa5, all);
    ldr_copy_prefetch(next[crc % 4], bytes);
    assert_int_equal(
        ldr_copy_piece(crc, target + to, source + from, bytes, next[crc % 4]),
        want);
    ldr_copy_fence();
    assert_memory_equal(target + first, expected + first, all);

    memset(target + first, 0xa5, all);
    ldr_copy_piece_plain(target + to, source + from, bytes, next[crc % 4]);
    ldr_copy_fence();
    assert_memory_equal(target + first, expected + first, all);

    assert_int_equal(ldr_crc32c(crc, source + from, bytes), want);
}

static void test_vectors(void **s)
{
    uint8_t zeros[32] = {0}, ones[32], up[32];

    (void)s;
    memset(ones, 0xff, sizeof(ones));
    for (unsigned i = 0; i < sizeof(up); i++) {
        up[i] = (uint8_t)i;
    }
    assert_int_equal(ldr_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(ldr_crc32c(0, zeros, 32), 0x8a9136aau);
    assert_int_equal(ldr_crc32c(0, ones, 32), 0x62a8ab43u);
    assert_int_equal(ldr_crc32c(0, up, 32), 0x46dd794eu);
    assert_int_equal(ldr_crc32c(0, NULL, 0), 0);
    assert_int_equal(ldr_crc32c(77, NULL, 0), 77);
    assert_int_equal(ldr_copy_crc32c(77, NULL, NULL, 0), 77);
    ldr_copy(NULL, NULL, 0);
}

static void test_small(void **s)
{
    (void)s;
    for (size_t bytes = 0; bytes <= 700; bytes++) {
        check_copy(EDGE + bytes % 67, bytes % 61, bytes);
    }
}

/* Around the length from which stores are non-temporal, at every distance of
 * the destination from a line. */
static void test_aligned(void **s)
{
    (void)s;
    for (size_t shift = 0; shift < 64; shift++) {
        for (int more = -1; more <= 1; more++) {
            check_copy(EDGE + shift, 63 - shift,
                       (size_t)((int)LDR_COPY_NT_MIN + more));
        }
        check_copy(EDGE + shift, shift, LDR_COPY_NT_MIN + 64 * 3 + shift);
    }
}

static void test_random(void **s)
{
    (void)s;
    for (int round = 0; round < ROUNDS; round++) {
        size_t most = round % 4 == 0 ? AREA - 4 * EDGE : 20000;
        size_t bytes = ldr_rand_below(&rnd, most);
        check_copy(EDGE + ldr_rand_below(&rnd, EDGE),
                   ldr_rand_below(&rnd, EDGE), bytes);
    }
    check_copy(4096, 8192, 64 << 10); /* a page of the arena */
}

/* The CRC carried from piece to piece is that of the whole. */
static void test_pieces(void **s)
{
    const size_t all = AREA - 4096;

    (void)s;
    for (int round = 0; round < 20; round++) {
        uint32_t crc = 0;
        for (size_t done = 0, step; done < all; done += step) {
            size_t most = round % 2 == 0 ? 300 : 30000;
            step = 1 + ldr_rand_below(&rnd, most);
            step = step < all - done ? step : all - done;
            crc = ldr_copy_crc32c(crc, target + done, source + done, step);
        }
        assert_int_equal(crc, reference(0, source, all));
        assert_memory_equal(target, source, all);
    }
}

/* Pieces that lie apart, in an order of their own. */
static void test_scattered(void **s)
{
    enum { MOST = 40 };

    (void)s;
    for (int round = 0; round < 20; round++) {
        const size_t piece = round % 2 == 0 ? 4096 : 1000 + round;
        size_t from[MOST];
        uint32_t crc = 0, want = 0;

        for (int i = 0; i < MOST; i++) {
            from[i] = ldr_rand_below(&rnd, AREA - piece);
        }
        for (int i = 0; i < MOST && (i + 1) * piece <= AREA; i++) {
            crc =
                ldr_copy_piece(crc, target + i * piece, source + from[i], piece,
                               i + 1 < MOST ? source + from[i + 1] : NULL);
            want = reference(want, source + from[i], piece);
            memcpy(expected + i * piece, source + from[i], piece);
        }
        ldr_copy_fence();
        assert_int_equal(crc, want);
        assert_memory_equal(target, expected, MOST * piece);
    }
}

/* Any flipped bit is seen. */
static void test_flip(void **s)
{
    (void)s;
    for (int round = 0; round < 200; round++) {
        size_t bytes = 1 + ldr_rand_below(&rnd, 70000);
        size_t at = ldr_rand_below(&rnd, bytes);
        uint32_t crc = ldr_crc32c(0, source, bytes);
        source[at] ^= (uint8_t)(1 << round % 8);
        assert_int_not_equal(ldr_crc32c(0, source, bytes), crc);
        source[at] ^= (uint8_t)(1 << round % 8);
    }
}

static void test_combine(void **s)
{
    (void)s;
    for (int round = 0; round < 300; round++) {
        size_t a = ldr_rand_below(&rnd, round % 3 == 0 ? 20 : 70000);
        size_t b = ldr_rand_below(&rnd, round % 5 == 0 ? 20 : 70000);
        uint32_t crc_a = ldr_crc32c(0, source, a);
        uint32_t crc_b = ldr_crc32c(0, source + a, b);
        assert_int_equal(ldr_crc32c_combine(crc_a, crc_b, b),
                         ldr_crc32c(0, source, a + b));
    }
    assert_int_equal(ldr_crc32c_combine(1, 0, 0), 1);

    /* Lengths that no memory holds: 2^k zero bytes as two halves. */
    uint32_t zeros = ldr_crc32c(0, "", 1);
    for (int k = 0; k < 63; k++) {
        uint64_t half = (uint64_t)1 << k;
        uint32_t twice = ldr_crc32c_combine(zeros, zeros, half);
        uint32_t crc = ldr_crc32c_combine(7, zeros, half);
        assert_int_equal(ldr_crc32c_combine(crc, zeros, half),
                         ldr_crc32c_combine(7, twice, half * 2));
        zeros = twice;
    }
    memset(target, 0, 65536);
    zeros = ldr_crc32c(0, target, 65536);
    uint32_t crc = 0, power = zeros;
    for (int i = 0; i < 256; i++) { /* 16 MiB, walked and jumped to */
        crc = ldr_crc32c(crc, target, 65536);
    }
    for (int k = 16; k < 24; k++) {
        power = ldr_crc32c_combine(power, power, (uint64_t)1 << k);
    }
    assert_int_equal(crc, power);
}

static void test_variants(void **s)
{
    unsigned count = 0;

    (void)s;
    while (ldr_copy_variant_at(count) != NULL) {
        ldr_copy_select(count);
        assert_string_equal(ldr_copy_variant(), ldr_copy_variant_at(count));
        count++;
    }
    assert_in_range(count, 1, 5);
    assert_string_equal(ldr_copy_variant_at(count - 1), "portable");
    assert_null(ldr_copy_variant_at(1000));
    ldr_copy_select(1000); /* nothing changes */
    assert_string_equal(ldr_copy_variant(), "portable");
}

int main(void)
{
    const struct CMUnitTest each[] = {
        cmocka_unit_test(test_vectors), cmocka_unit_test(test_small),
        cmocka_unit_test(test_aligned), cmocka_unit_test(test_random),
        cmocka_unit_test(test_pieces),  cmocka_unit_test(test_scattered),
        cmocka_unit_test(test_flip),    cmocka_unit_test(test_combine),
    };
    const struct CMUnitTest once[] = {cmocka_unit_test(test_variants)};
    const char *text = getenv("LARDER_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : ldr_rand_entropy();
    int failed = 0;

    printf("LARDER_SEED=%llu\n", (unsigned long long)seed);
    ldr_rand_seed(&rnd, seed);
    fill(source, sizeof(source));
    for (unsigned i = 0; ldr_copy_variant_at(i) != NULL; i++) {
        ldr_copy_select(i);
        printf("variant %s\n", ldr_copy_variant());
        failed +=
            cmocka_run_group_tests_name(ldr_copy_variant(), each, NULL, NULL);
    }
    return failed + cmocka_run_group_tests(once, NULL, NULL);
}
