/*
 * SHA-256, HMAC and chains: published vectors, libcrypto's other interface,
 * and the definition of a chain computed from one flat buffer.
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
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"

enum { CHUNKS = 9 };

static ldr_rand_t rnd;

static void fill(void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)to)[i] = (uint8_t)ldr_rand_next(&rnd);
    }
}

static void assert_hex(const uint8_t hash[32], const char *hex)
{
    char text[65];

    for (int i = 0; i < 32; i++) {
        snprintf(text + 2 * i, 3, "%02x", hash[i]);
    }
    assert_string_equal(text, hex);
}

static void test_sha256(void **s)
{
    const ldr_piece_t abc[] = {{"a", 1}, {NULL, 0}, {"bc", 2}};
    uint8_t out[32];

    (void)s;
    assert_true(ldr_sha256(abc, 3, out));
    assert_hex(out, "ba7816bf8f01cfea414140de5dae2223"
                    "b00361a396177a9cb410ff61f20015ad");
    assert_true(ldr_sha256(NULL, 0, out));
    assert_hex(out, "e3b0c44298fc1c149afbf4c8996fb924"
                    "27ae41e4649b934ca495991b7852b855");
}

static void test_pieces(void **s)
{
    uint8_t data[1000], out[32], want[32];

    (void)s;
    for (int round = 0; round < 200; round++) {
        size_t bytes = ldr_rand_below(&rnd, sizeof(data));
        size_t a = ldr_rand_below(&rnd, bytes + 1);
        size_t b = a + ldr_rand_below(&rnd, bytes - a + 1);
        ldr_piece_t p[] = {{data, a}, {data + a, b - a}, {data + b, bytes - b}};
        fill(data, bytes);
        EVP_Digest(data, bytes, want, NULL, EVP_sha256(), NULL);
        assert_true(ldr_sha256(p, 3, out));
        assert_memory_equal(out, want, 32);
    }
}

/* RFC 4231, cases 1, 2 and 6. */
static void test_hmac_vectors(void **s)
{
    const ldr_piece_t hi = {"Hi There", 8};
    const ldr_piece_t jefe[] = {{"what do ya want ", 16}, {"for nothing?", 12}};
    const char *text = "Test Using Larger Than Block-Size Key - Hash Key First";
    const ldr_piece_t large = {text, strlen(text)};
    uint8_t secret[131], out[32];

    (void)s;
    memset(secret, 0x0b, 20);
    assert_true(ldr_hmac_sha256(secret, 20, &hi, 1, out));
    assert_hex(out, "b0344c61d8db38535ca8afceaf0bf12b"
                    "881dc200c9833da726e9376c2e32cff7");
    assert_true(ldr_hmac_sha256("Jefe", 4, jefe, 2, out));
    assert_hex(out, "5bdcc146bf60754e6a042426089575c7"
                    "5a003f089d2739839dec58b964ec3843");
    memset(secret, 0xaa, sizeof(secret));
    assert_true(ldr_hmac_sha256(secret, sizeof(secret), &large, 1, out));
    assert_hex(out, "60e431591ee0b67f0d8a26aacbf5b77f"
                    "8e0bc6213728c5140546040f0ee37f54");
}

static void test_hmac_random(void **s)
{
    uint8_t secret[200], data[300], out[32], want[32];

    (void)s;
    for (size_t bytes = 0; bytes <= sizeof(secret); bytes++) {
        size_t n = ldr_rand_below(&rnd, sizeof(data));
        ldr_piece_t piece = {data, n};
        fill(secret, bytes);
        fill(data, n);
        assert_non_null(
            HMAC(EVP_sha256(), secret, (int)bytes, data, n, want, NULL));
        assert_true(ldr_hmac_sha256(secret, bytes, &piece, 1, out));
        assert_memory_equal(out, want, 32);
    }
    ldr_piece_t empty = {NULL, 0};
    assert_true(ldr_hmac_sha256(NULL, 0, &empty, 1, out));
    assert_hex(out, "b613679a0814d9ec772f95d778c35fc5"
                    "ff1697c493715653c6c712144292c5ad");
}

/* Keys without runs. */
static bool chain(const uint8_t root[32], const uint32_t *tokens,
                  uint32_t chunk_tokens, const larder_extra_t *extra,
                  larder_key_t *keys, size_t count)
{
    return ldr_chain_runs(root, tokens, chunk_tokens, extra, 1, 0, keys, count);
}

/* The definition, from a flat buffer and through EVP. */
static void chain_reference(const uint8_t root[32], const uint32_t *tokens,
                            uint32_t chunk_tokens, const larder_extra_t *extra,
                            larder_key_t *keys, size_t count)
{
    uint8_t *flat = malloc(32 + 4 * (size_t)chunk_tokens + 8 + 100);

    for (size_t i = 0; i < count; i++) {
        size_t bytes = extra != NULL ? extra[i].bytes : 0;
        uint8_t *p = flat;
        memcpy(p, i == 0 ? root : keys[i - 1].hash, 32);
        p += 32;
        for (uint32_t t = 0; t < chunk_tokens; t++, p += 4) {
            ldr_put32(p, tokens[i * chunk_tokens + t]);
        }
        ldr_put64(p, bytes);
        p += 8;
        if (bytes > 0) {
            memcpy(p, extra[i].data, bytes);
            p += bytes;
        }
        EVP_Digest(flat, (size_t)(p - flat), keys[i].hash, NULL, EVP_sha256(),
                   NULL);
    }
    free(flat);
}

static void test_chain_definition(void **s)
{
    static const uint32_t sizes[] = {1, 2, 15, 16, 17, 64, 65, 256, 1000};
    uint8_t root[32], bytes[100];
    larder_key_t keys[CHUNKS], want[CHUNKS];
    larder_extra_t extra[CHUNKS];

    (void)s;
    fill(bytes, sizeof(bytes));
    for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
        uint32_t *tokens = malloc(sizes[n] * CHUNKS * sizeof(*tokens));
        fill(tokens, sizes[n] * CHUNKS * sizeof(*tokens));
        fill(root, sizeof(root));
        for (size_t i = 0; i < CHUNKS; i++) {
            extra[i].bytes = i % 3 * ldr_rand_below(&rnd, 50);
            extra[i].data = extra[i].bytes > 0 ? bytes : NULL;
        }
        assert_true(chain(root, tokens, sizes[n], extra, keys, CHUNKS));
        chain_reference(root, tokens, sizes[n], extra, want, CHUNKS);
        assert_memory_equal(keys, want, sizeof(keys));

        assert_true(chain(root, tokens, sizes[n], NULL, keys, CHUNKS));
        chain_reference(root, tokens, sizes[n], NULL, want, CHUNKS);
        assert_memory_equal(keys, want, sizeof(keys));

        /* A chain that goes on after a key is the rest of the whole one. */
        assert_true(chain(keys[3].hash, tokens + 4 * sizes[n], sizes[n], NULL,
                          want, CHUNKS - 4));
        assert_memory_equal(keys + 4, want, (CHUNKS - 4) * sizeof(keys[0]));
        free(tokens);
    }
    assert_true(chain(root, NULL, 64, NULL, keys, 0));
}

/* The keys of a run begin alike, no run is longer than it may be, and a chain
 * that goes on after any key is the rest of the whole one. */
static void test_chain_runs(void **s)
{
    enum { LONG = 70000, MOST = 16 };
    uint32_t *tokens = malloc(LONG * sizeof(*tokens));
    larder_key_t *keys = malloc(LONG * sizeof(*keys)), next[40];
    uint8_t root[32];

    (void)s;
    fill(tokens, LONG * sizeof(*tokens));
    fill(root, sizeof(root));
    assert_true(ldr_chain_runs(root, tokens, 1, NULL, MOST, 0, keys, LONG));
    for (uint32_t i = 0, first = 0; i < LONG; i++) {
        uint32_t length = 1;

        while (length < MOST && 64 * length <= i) {
            length *= 2;
        }
        if (i % length == 0) {
            first = i;
        }
        assert_int_equal(memcmp(&keys[i], &keys[first], 8), 0);
        assert_true(i == first || memcmp(&keys[i], &keys[first], 32) != 0);
        assert_true(i == 0 || i != first ||
                    memcmp(&keys[i], &keys[i - 1], 8) != 0);
        assert_true(i - first < MOST && i - first <= i / 32);
    }
    for (uint32_t at = 1; at < LONG - 40; at += 1 + at / 3) {
        assert_true(ldr_chain_runs(keys[at - 1].hash, tokens + at, 1, NULL,
                                   MOST, ldr_run_next(&keys[at - 1]), next,
                                   40));
        assert_memory_equal(keys + at, next, sizeof(next));
    }
    assert_true(ldr_chain_runs(root, tokens, 1, NULL, 1, 0, next, 40));
    assert_true(chain(root, tokens, 1, NULL, keys, 40));
    assert_memory_equal(keys, next, sizeof(next));
    free(tokens);
    free(keys);
}

/* What SGLang 0.5.23 computes: get_hash_str([1, 2, 3, 4], page_size=2) gives
 * these. Chunks of any number of pages end with the same hashes, a chain goes
 * on after any key, and extra bytes change all that comes after them. */
static void test_chain_pages(void **s)
{
    enum { PAGES = 24 };
    static const uint32_t four[] = {1, 2, 3, 4};
    static const uint8_t first[] = {0x34, 0xfb, 0x5c, 0x82};
    uint32_t tokens[PAGES * 4];
    larder_key_t pages[PAGES], keys[PAGES], other[PAGES];
    larder_extra_t extra[PAGES / 3] = {{0}};

    (void)s;
    assert_true(ldr_chain_pages(NULL, four, 2, 2, NULL, keys, 2));
    assert_memory_equal(keys[0].hash, first, sizeof(first));
    ldr_piece_t second[] = {{keys[0].hash, 32}, {"\3\0\0\0\4\0\0\0", 8}};
    assert_true(ldr_sha256(second, 2, other[0].hash));
    assert_memory_equal(keys[1].hash, other[0].hash, 32);

    fill(tokens, sizeof(tokens));
    assert_true(ldr_chain_pages(NULL, tokens, 4, 4, NULL, pages, PAGES));
    for (uint32_t n = 1; n <= PAGES; n++) {
        size_t count = PAGES / n;
        assert_true(ldr_chain_pages(NULL, tokens, 4 * n, 4, NULL, keys, count));
        for (size_t i = 0; i < count; i++) {
            assert_memory_equal(&keys[i], &pages[(i + 1) * n - 1], 32);
        }
        assert_true(ldr_chain_pages(keys[0].hash, tokens + (size_t)4 * n, 4 * n,
                                    4, NULL, other, count - 1));
        assert_memory_equal(other, keys + 1, (count - 1) * sizeof(keys[0]));
    }
    assert_true(ldr_chain_pages(NULL, tokens, 12, 4, NULL, keys, PAGES / 3));
    for (size_t at = 0; at < PAGES / 3; at++) {
        extra[at] = (larder_extra_t){"x", 1};
        assert_true(
            ldr_chain_pages(NULL, tokens, 12, 4, extra, other, PAGES / 3));
        extra[at] = (larder_extra_t){0};
        for (size_t i = 0; i < PAGES / 3; i++) {
            bool same = memcmp(&keys[i], &other[i], sizeof(keys[i])) == 0;
            assert_int_equal(same, i < at);
        }
    }
}

/* Each key names its own tokens and all before, and nothing after. */
static void test_chain_prefix(void **s)
{
    uint32_t tokens[CHUNKS * 16];
    larder_key_t keys[CHUNKS], other[CHUNKS];
    uint8_t root[32];

    (void)s;
    fill(tokens, sizeof(tokens));
    fill(root, sizeof(root));
    assert_true(chain(root, tokens, 16, NULL, keys, CHUNKS));
    for (size_t at = 0; at < CHUNKS * 16; at++) {
        uint32_t bit = (uint32_t)1 << at % 32;
        tokens[at] ^= bit;
        assert_true(chain(root, tokens, 16, NULL, other, CHUNKS));
        tokens[at] ^= bit;
        for (size_t i = 0; i < CHUNKS; i++) {
            bool same = memcmp(&keys[i], &other[i], sizeof(keys[i])) == 0;
            assert_int_equal(same, i < at / 16);
        }
    }
    root[31] ^= 1;
    assert_true(chain(root, tokens, 16, NULL, other, CHUNKS));
    for (size_t i = 0; i < CHUNKS; i++) {
        assert_memory_not_equal(&keys[i], &other[i], sizeof(keys[i]));
    }
}

/* Tokens cannot pass for extra bytes, nor extra bytes for a length. */
static void test_chain_separation(void **s)
{
    uint32_t tokens[6] = {11, 22, 8, 0, 33, 44};
    uint8_t flat[24], root[32] = {1};
    larder_key_t keys[6];
    size_t count = 0;

    (void)s;
    for (int i = 0; i < 6; i++) {
        ldr_put32(flat + 4 * i, tokens[i]);
    }
    /* The same 24 bytes, cut between tokens and extra at six places. The
     * tokens 8, 0 are what a length of 8 looks like. */
    for (uint32_t n = 1; n <= 6; n++) {
        larder_extra_t extra = {flat + 4 * n, 24 - 4 * n};
        assert_true(chain(root, tokens, n, &extra, &keys[count++], 1));
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            assert_memory_not_equal(&keys[i], &keys[j], sizeof(keys[i]));
        }
    }
    larder_extra_t tail = {flat + 16, 8};
    assert_true(chain(root, tokens, 2, &tail, &keys[0], 1));
    assert_true(chain(root, tokens, 6, NULL, &keys[1], 1));
    assert_memory_not_equal(&keys[0], &keys[1], sizeof(keys[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_hmac_vectors),
        cmocka_unit_test(test_hmac_random),
        cmocka_unit_test(test_chain_definition),
        cmocka_unit_test(test_chain_runs),
        cmocka_unit_test(test_chain_pages),
        cmocka_unit_test(test_chain_prefix),
        cmocka_unit_test(test_chain_separation),
    };
    const char *text = getenv("LARDER_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : ldr_rand_entropy();

    printf("LARDER_SEED=%llu\n", (unsigned long long)seed);
    ldr_rand_seed(&rnd, seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
