/*
 * Tokens: the file they come from, and proofs that hold for one token, one
 * side, one session and one tenant only. LARDER_SEED repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <sys/stat.h>

#include "base/log.h"
#include "net/auth.h"
#include "support/real.h"

static char dir[256], path[300];
static ldr_rand_t rnd;

static int setup(void **s)
{
    (void)s;
    if (!real_dir_make(dir, sizeof(dir), "auth")) {
        return -1;
    }
    snprintf(path, sizeof(path), "%s/token", dir);
    return 0;
}

static int teardown(void **s)
{
    (void)s;
    real_dir_remove(dir);
    return 0;
}

static void write_file(const char *text, size_t bytes, mode_t mode)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
}

/* ---- the file ---- */

#define TOKEN_A "aaaaaaaaaaaaaaaa"        /* the shortest */
#define TOKEN_B "bbbbbbbbbbbb-bbbbbbbbbb" /* any */

static void test_file_good(void **s)
{
    static const struct {
        const char *text;
        unsigned count;
        const char *first, *second;
    } table[] = {
        {TOKEN_A "\n", 1, TOKEN_A, NULL},
        {TOKEN_A, 1, TOKEN_A, NULL},
        {TOKEN_A "\r\n", 1, TOKEN_A, NULL},
        {"\n\n" TOKEN_B "\n\n", 1, TOKEN_B, NULL},
        {TOKEN_A "\n" TOKEN_B "\n", 2, TOKEN_A, TOKEN_B},
        {TOKEN_B "\n\n" TOKEN_A, 2, TOKEN_B, TOKEN_A},
    };
    char longest[LDR_TOKEN_MAX * 2 + 2];

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        ldr_token_t tokens[LDR_TOKENS_MAX];
        unsigned count = 0;
        write_file(table[i].text, strlen(table[i].text), 0600);
        assert_int_equal(ldr_tokens_read(path, tokens, &count), LARDER_OK);
        assert_int_equal(count, table[i].count);
        assert_int_equal(tokens[0].bytes, strlen(table[i].first));
        assert_memory_equal(tokens[0].data, table[i].first, tokens[0].bytes);
        if (count == 2) {
            assert_int_equal(tokens[1].bytes, strlen(table[i].second));
            assert_memory_equal(tokens[1].data, table[i].second,
                                tokens[1].bytes);
        }
    }
    memset(longest, 'x', sizeof(longest));
    longest[LDR_TOKEN_MAX] = longest[LDR_TOKEN_MAX * 2 + 1] = '\n';
    write_file(longest, sizeof(longest), 0440);
    ldr_token_t tokens[LDR_TOKENS_MAX];
    unsigned count = 0;
    assert_int_equal(ldr_tokens_read(path, tokens, &count), LARDER_OK);
    assert_int_equal(count, 2);
    assert_int_equal(tokens[1].bytes, LDR_TOKEN_MAX);
}

/* Refused with a text that has the file's name and never the token. */
static void refuse(const char *text, size_t bytes, mode_t mode)
{
    ldr_token_t tokens[LDR_TOKENS_MAX] = {{.bytes = 4711}};
    unsigned count = 99;

    write_file(text, bytes, mode);
    ldr_fail_clear();
    assert_int_equal(ldr_tokens_read(path, tokens, &count), LARDER_E_INVALID);
    assert_int_equal(count, 99);
    assert_int_equal(tokens[0].bytes, 4711);
    assert_non_null(strstr(ldr_fail_text(), path));
    assert_null(strstr(ldr_fail_text(), "aaaa"));
    assert_null(strstr(ldr_fail_text(), "bbbb"));
}

static void test_file_bad(void **s)
{
    static const char *texts[] = {
        "",
        "\n\n\n",
        "aaaaaaaaaaaaaaa\n",               /* one short */
        TOKEN_A " \n",                     /* a space */
        TOKEN_A "\taaaa\n",                /* a tab */
        TOKEN_A "\xc3\xa4\n",              /* not ASCII */
        TOKEN_A "\n" TOKEN_B "\n" TOKEN_A, /* three */
        TOKEN_A "\nbbbb\n",                /* the second is short */
    };
    static const mode_t modes[] = {0604, 0602, 0601, 0644, 0666, 0447};
    char text[4 * LDR_TOKEN_MAX + 100];

    (void)s;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        refuse(texts[i], strlen(texts[i]), 0600);
    }
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        refuse(TOKEN_A, strlen(TOKEN_A), modes[i]);
        assert_non_null(strstr(ldr_fail_text(), "chmod"));
    }
    refuse(TOKEN_A "\0aaaa", strlen(TOKEN_A) + 5, 0600); /* a NUL */
    memset(text, 'a', sizeof(text));
    text[LDR_TOKEN_MAX + 1] = '\n';
    refuse(text, LDR_TOKEN_MAX + 2, 0600); /* one too long */
    refuse(text, sizeof(text), 0600);
    memset(text, '\n', sizeof(text));
    refuse(text, sizeof(text), 0600);

    /* No file, and no plain file. */
    ldr_token_t tokens[LDR_TOKENS_MAX];
    unsigned count;
    unlink(path);
    assert_int_equal(ldr_tokens_read(path, tokens, &count), LARDER_E_INVALID);
    assert_non_null(strstr(ldr_fail_text(), path));
    assert_int_equal(ldr_tokens_read(dir, tokens, &count), LARDER_E_INVALID);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(ldr_tokens_read(path, tokens, &count), LARDER_E_INVALID);
    unlink(path);
}

/* A tenant's secret is any bytes, less one newline. */
static void test_secret_file(void **s)
{
    static const struct {
        size_t bytes, newlines, want; /* want 0: refused */
        mode_t mode;
    } table[] = {
        {LDR_SECRET_MIN, 0, LDR_SECRET_MIN, 0600},
        {LDR_SECRET_MIN, 1, LDR_SECRET_MIN, 0400},
        {LDR_SECRET_MIN, 2, LDR_SECRET_MIN + 1, 0640},
        {LDR_SECRET_MAX, 0, LDR_SECRET_MAX, 0600},
        {LDR_SECRET_MAX, 1, LDR_SECRET_MAX, 0600},
        {LDR_SECRET_MAX, 2, 0, 0600},
        {LDR_SECRET_MAX + 1, 0, 0, 0600},
        {LDR_SECRET_MAX * 3, 1, 0, 0600},
        {LDR_SECRET_MIN - 1, 0, 0, 0600},
        {LDR_SECRET_MIN - 1, 1, 0, 0600},
        {0, 0, 0, 0600},
        {0, 1, 0, 0600},
        {LDR_SECRET_MIN, 0, 0, 0604},
        {LDR_SECRET_MIN, 0, 0, 0644},
    };
    char text[LDR_SECRET_MAX * 3 + 2];

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        uint8_t secret[LDR_SECRET_MAX + 2];
        size_t bytes = 99, want = table[i].want;

        memset(text, 'a', sizeof(text));
        text[1] = '\0';
        memset(text + table[i].bytes, '\n', table[i].newlines);
        write_file(text, table[i].bytes + table[i].newlines, table[i].mode);
        ldr_fail_clear();
        assert_int_equal(ldr_tenant_secret_read(path, secret, &bytes),
                         want > 0 ? LARDER_OK : LARDER_E_INVALID);
        assert_int_equal(bytes, want);
        if (want > 0) {
            assert_memory_equal(secret, text, want);
        } else {
            assert_non_null(strstr(ldr_fail_text(), path));
            assert_null(strstr(ldr_fail_text(), "aaaa"));
        }
    }
    unlink(path);
}

/* ---- proofs ---- */

typedef struct session {
    uint8_t client_nonce[LDR_NONCE_BYTES], server_nonce[LDR_NONCE_BYTES];
    char tenant[LDR_TENANT_MAX + 1];
    uint64_t epoch;
    ldr_token_t tokens[LDR_TOKENS_MAX];
} session_t;

static session_t random_session(void)
{
    session_t v = {.epoch = ldr_rand_next(&rnd)};

    assert_true(ldr_nonce(v.client_nonce, sizeof(v.client_nonce)));
    assert_true(ldr_nonce(v.server_nonce, sizeof(v.server_nonce)));
    size_t length = 1 + ldr_rand_below(&rnd, LDR_TENANT_MAX);
    for (size_t i = 0; i < length; i++) {
        v.tenant[i] = (char)('a' + ldr_rand_below(&rnd, 26));
    }
    for (unsigned i = 0; i < LDR_TOKENS_MAX; i++) {
        v.tokens[i].bytes =
            LDR_TOKEN_MIN +
            ldr_rand_below(&rnd, LDR_TOKEN_MAX - LDR_TOKEN_MIN + 1);
        /* As in files: never a NUL, with which HMAC pads. */
        for (size_t j = 0; j < v.tokens[i].bytes; j++) {
            v.tokens[i].data[j] = (uint8_t)('!' + ldr_rand_below(&rnd, 90));
        }
    }
    return v;
}

static ldr_proof_t proof_of(const session_t *v)
{
    return (ldr_proof_t){v->client_nonce, v->server_nonce, v->tenant, v->epoch};
}

/* Whether a proof made in one session with its first token passes in the
 * other. */
static bool passes(const session_t *made, bool server, const session_t *checked,
                   bool server_checked)
{
    ldr_proof_t a = proof_of(made), b = proof_of(checked);
    uint8_t mac[LDR_MAC_BYTES];
    unsigned which = 77;

    assert_true(ldr_proof_make(&made->tokens[0], &a, server, mac));
    bool ok =
        ldr_proof_check(checked->tokens, 1, &b, server_checked, mac, &which);
    assert_int_equal(which, ok ? 0 : 77);
    return ok;
}

static void test_proofs(void **s)
{
    (void)s;
    for (int round = 0; round < 50; round++) {
        session_t v = random_session(), w;

        assert_true(passes(&v, false, &v, false));
        assert_true(passes(&v, true, &v, true));
        assert_false(passes(&v, false, &v, true)); /* roles */
        assert_false(passes(&v, true, &v, false));

        w = v;
        w.tokens[0].data[ldr_rand_below(&rnd, w.tokens[0].bytes)] ^= 4;
        assert_false(passes(&v, false, &w, false));
        w = v;
        w.tokens[0].bytes--;
        assert_false(passes(&v, false, &w, false));
        w = v;
        w.client_nonce[ldr_rand_below(&rnd, LDR_NONCE_BYTES)] ^= 0x80;
        assert_false(passes(&v, false, &w, false));
        w = v;
        w.server_nonce[ldr_rand_below(&rnd, LDR_NONCE_BYTES)] ^= 0x80;
        assert_false(passes(&v, false, &w, false));
        w = v; /* the nonces swapped */
        memcpy(w.client_nonce, v.server_nonce, LDR_NONCE_BYTES);
        memcpy(w.server_nonce, v.client_nonce, LDR_NONCE_BYTES);
        assert_false(passes(&v, false, &w, false));
        w = v;
        w.epoch ^= 1ull << ldr_rand_below(&rnd, 64);
        assert_false(passes(&v, false, &w, false));
        w = v;
        w.tenant[ldr_rand_below(&rnd, strlen(w.tenant))] ^= 1;
        assert_false(passes(&v, false, &w, false));
        w = v;
        w.tenant[strlen(w.tenant) - 1] = '\0';
        assert_false(passes(&v, false, &w, false));
    }
}

static void test_two_tokens(void **s)
{
    session_t v = random_session();
    ldr_proof_t proof = proof_of(&v);
    uint8_t mac[LDR_MAC_BYTES];
    unsigned which;

    (void)s;
    for (unsigned i = 0; i < LDR_TOKENS_MAX; i++) {
        assert_true(ldr_proof_make(&v.tokens[i], &proof, false, mac));
        assert_true(ldr_proof_check(v.tokens, 2, &proof, false, mac, &which));
        assert_int_equal(which, i);
        assert_true(ldr_proof_check(v.tokens, 2, &proof, false, mac, NULL));
    }
    /* The second is no token while there is one only, and none is none. */
    assert_false(ldr_proof_check(v.tokens, 1, &proof, false, mac, &which));
    assert_false(ldr_proof_check(v.tokens, 0, &proof, false, mac, &which));
    assert_false(ldr_proof_check(NULL, 0, &proof, false, mac, &which));
    /* Not even what stands in for a token that is not there. */
    const ldr_token_t nobody = {.bytes = LDR_TOKEN_MIN};
    assert_true(ldr_proof_make(&nobody, &proof, false, mac));
    assert_false(ldr_proof_check(NULL, 0, &proof, false, mac, &which));
    assert_false(ldr_proof_check(v.tokens, 1, &proof, false, mac, &which));
    /* Every bit of a MAC counts. */
    assert_true(ldr_proof_make(&v.tokens[0], &proof, true, mac));
    for (unsigned bit = 0; bit < LDR_MAC_BYTES * 8; bit++) {
        mac[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(ldr_proof_check(v.tokens, 2, &proof, true, mac, &which));
        mac[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(ldr_proof_check(v.tokens, 2, &proof, true, mac, &which));
}

/* Both sides may be different builds: the same inputs give these bytes for
 * ever, or no old client gets in. */
static void test_pinned(void **s)
{
    ldr_token_t token = {.bytes = 16, .data = "0123456789abcdef"};
    uint8_t client_nonce[LDR_NONCE_BYTES], server_nonce[LDR_NONCE_BYTES];
    const ldr_proof_t proof = {client_nonce, server_nonce, "tenant",
                               0x0102030405060708u};
    static const uint8_t client[LDR_MAC_BYTES] = {
        0xee, 0xba, 0x2f, 0x54, 0x6d, 0x78, 0x95, 0xf1, 0x8d, 0x99, 0x2a,
        0x1e, 0xa1, 0xa1, 0xc1, 0xa6, 0xa1, 0x05, 0x11, 0xbf, 0xb4, 0xf6,
        0xdd, 0x43, 0xda, 0xeb, 0x29, 0x2b, 0x1b, 0x27, 0xe1, 0x9f};
    static const uint8_t server[LDR_MAC_BYTES] = {
        0xa3, 0xc0, 0xaa, 0x48, 0x96, 0x9d, 0x6a, 0xe3, 0xfe, 0x9d, 0xe1,
        0x48, 0x4f, 0xe3, 0xc6, 0xc2, 0x90, 0x9d, 0x49, 0x49, 0x4d, 0xed,
        0x6f, 0x63, 0x92, 0x11, 0x11, 0x07, 0x5d, 0x18, 0xfb, 0x4f};
    uint8_t mac[LDR_MAC_BYTES];

    (void)s;
    memset(client_nonce, 'c', sizeof(client_nonce));
    memset(server_nonce, 's', sizeof(server_nonce));
    assert_true(ldr_proof_make(&token, &proof, false, mac));
    assert_memory_equal(mac, client, sizeof(mac));
    assert_true(ldr_proof_make(&token, &proof, true, mac));
    assert_memory_equal(mac, server, sizeof(mac));
}

static void test_nonces(void **s)
{
    uint8_t a[1000] = {0}, b[1000] = {0};

    (void)s;
    assert_true(ldr_nonce(a, 0));
    assert_int_equal(a[0], 0);
    assert_true(ldr_nonce(a, sizeof(a)));
    assert_true(ldr_nonce(b, sizeof(b)));
    assert_memory_not_equal(a, b, sizeof(a));
    assert_memory_not_equal(a + sizeof(a) - 32, b + sizeof(b) - 32, 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_good),   cmocka_unit_test(test_file_bad),
        cmocka_unit_test(test_secret_file), cmocka_unit_test(test_proofs),
        cmocka_unit_test(test_two_tokens),  cmocka_unit_test(test_pinned),
        cmocka_unit_test(test_nonces),
    };

    ldr_rand_seed(&rnd, real_seed());
    return cmocka_run_group_tests(tests, setup, teardown);
}
