/* Spaces, tenants and their secrets; chains of keys. */
#include "client/support.h"

#include <sys/stat.h>

#include "base/hash.h"

#define NODE "dram=8M&ssd=64M"

enum { TOKENS = 40, CHUNK = 4, CHUNKS = TOKENS / CHUNK };

static larder_space_params_t params_of(const char *tenant, const char *secret,
                                       const char *descriptor)
{
    larder_space_params_t p = {
        .field_mask = LARDER_SPACE_TENANT | LARDER_SPACE_SECRET |
                      LARDER_SPACE_SHARDS | LARDER_SPACE_CHUNK_TOKENS,
        .descriptor = descriptor,
        .descriptor_bytes = strlen(descriptor),
        .tenant = tenant,
        .secret = secret,
        .secret_bytes = strlen(secret),
        .shards = 1,
        .chunk_tokens = CHUNK,
    };

    return p;
}

static larder_space_t *open_with(larder_t *lar, const larder_space_params_t *p)
{
    larder_space_t *space = NULL;

    assert_status(larder_space_open(lar, p, &space), LARDER_OK);
    return space;
}

static void keys_of(const larder_space_t *space,
                    const larder_chain_params_t *params, larder_key_t *keys,
                    size_t *count_p)
{
    uint32_t tokens[TOKENS];

    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i] = i * 977;
    }
    assert_status(
        larder_chain(space, tokens, TOKENS, params, keys, CHUNKS, count_p),
        LARDER_OK);
}

static bool same(const larder_key_t *a, const larder_key_t *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* ---- which space ---- */

static void test_parameters_make_the_space(void **state)
{
    enum { SPACES = 8 };
    fix_t *f = fix(state);
    larder_space_params_t p[SPACES];
    larder_space_t *space[SPACES];
    larder_key_t keys[SPACES][CHUNKS];
    size_t count;

    fix_open_dram(f, "dram=8M");
    for (int i = 0; i < SPACES; i++) {
        p[i] = params_of("anna", "s3cret", "model A");
    }
    p[1].tenant = "anne";
    p[2].secret = "s3cres";
    p[3].shards = 2;
    p[4].chunk_tokens = 5;
    p[5].descriptor = "model B";
    /* The border between tenant and descriptor is hashed along. */
    p[6] = params_of("annam", "s3cret", "odel A");
    /* 7 is 0 again. */
    for (int i = 0; i < SPACES; i++) {
        space[i] = open_with(f->lar, &p[i]);
        keys_of(space[i], NULL, keys[i], &count);
        assert_int_equal(count, TOKENS / p[i].chunk_tokens);
    }
    assert_memory_equal(keys[0], keys[7], sizeof(keys[0]));
    for (int i = 0; i < SPACES - 1; i++) {
        for (int k = i + 1; k < SPACES - 1; k++) {
            assert_false(same(&keys[i][0], &keys[k][0]));
        }
    }
    /* Bytes do not cross, not even under the very same key... */
    for (uint64_t i = 0; i < SPACES - 1; i++) {
        uint8_t data[1000];

        content(i, data, sizeof(data));
        assert_status(run_one(space[i], LARDER_OP_PUT, 5, 0, data, 1000).status,
                      i == 2 ? LARDER_E_SECRET : LARDER_OK);
    }
    for (uint64_t i = 0; i < SPACES; i++) {
        uint8_t data[1000];

        assert_status(run_one(space[i], LARDER_OP_GET, 5, 0, data, 1000).status,
                      i == 2 ? LARDER_MISS : LARDER_OK);
        assert_true(i == 2 || content_is(i % (SPACES - 1), data, 1000));
    }
    /* ... and removing or resetting one leaves the others. */
    assert_status(run_one(space[1], LARDER_OP_REMOVE, 5, 0, NULL, 0).status, 0);
    assert_status(larder_space_reset(space[3], 0), LARDER_OK);
    for (int i = 0; i < SPACES; i++) {
        assert_status(exists_n(space[i], 5).status,
                      i >= 1 && i <= 3 ? LARDER_MISS : LARDER_OK);
        larder_space_close(&space[i]);
    }
}

/* The first under which something was done is the tenant's, with and without a
 * directory; those that only looked have fixed nothing. */
static void test_first_secret(void **state)
{
    fix_t *f = fix(state);
    larder_space_params_t right = params_of("anna", "right", "model");
    larder_space_params_t wrong = params_of("anna", "wrong", "model");
    larder_space_t *a, *b, *c = NULL;
    uint8_t data[1000];

    content(1, data, sizeof(data));
    for (unsigned disk = 0; disk < 2; disk++) {
        if (disk == 0) {
            fix_open_dram(f, "dram=8M");
        } else {
            fix_open(f, NODE);
        }
        b = open_with(f->lar, &wrong);
        assert_status(get_n(b, 1, 1000).status, LARDER_MISS);
        a = open_with(f->lar, &right);
        assert_status(put_n(a, 1, 1000), LARDER_OK);
        assert_status(put_n(b, 2, 1000), LARDER_E_SECRET);
        assert_status(run_one(b, LARDER_OP_REMOVE, 1, 0, NULL, 0).status,
                      LARDER_E_SECRET);
        assert_status(larder_space_reset(b, 1000), LARDER_E_SECRET);
        assert_status(larder_space_open(f->lar, &wrong, &c), LARDER_E_SECRET);
        assert_non_null(strstr(larder_last_error(), "anna"));
        assert_status(get_n(a, 1, 1000).status, LARDER_OK);
        assert_status(put_n(a, 2, 1000), LARDER_OK);
        larder_space_close(&a);
        larder_space_close(&b);
        fix_close(f);
    }
    fix_open(f, NODE);
    assert_status(larder_space_open(f->lar, &wrong, &c), LARDER_E_SECRET);
    fix_close(f);
}

static void test_bad_spaces(void **state)
{
    fix_t *f = fix(state);
    larder_space_params_t good = params_of("t", "s", "d");
    larder_space_params_t p;
    larder_space_t *space = NULL;
    static char big[65537];
    char name[65];

    fix_open_dram(f, "dram=8M");
    memset(name, 'n', sizeof(name));
    name[64] = '\0';
#define REFUSED(change)                                                        \
    p = good;                                                                  \
    change;                                                                    \
    assert_status(larder_space_open(f->lar, &p, &space), LARDER_E_INVALID);    \
    assert_null(space)
    REFUSED(p.descriptor = NULL);
    REFUSED(p.descriptor_bytes = 0);
    REFUSED(p.descriptor = big; p.descriptor_bytes = sizeof(big));
    REFUSED(p.tenant = NULL);
    REFUSED(p.tenant = "");
    REFUSED(p.tenant = name);
    REFUSED(p.secret = NULL);
    REFUSED(p.secret_bytes = 0);
    REFUSED(p.shards = 0);
    REFUSED(p.shards = LARDER_SHARDS_MAX + 1);
    REFUSED(p.chunk_tokens = 0);
    REFUSED(p.chunk_tokens = 65537);
#undef REFUSED
    assert_status(larder_space_open(f->lar, NULL, &space), LARDER_E_INVALID);
    assert_status(larder_space_open(f->lar, &good, NULL), LARDER_E_INVALID);
    assert_status(larder_space_open(NULL, &good, &space), LARDER_E_INVALID);
    /* The largest that is allowed, and fields without their bit. */
    p = good;
    p.descriptor = big;
    p.descriptor_bytes = 65536;
    p.shards = LARDER_SHARDS_MAX;
    p.chunk_tokens = 65536;
    name[63] = '\0';
    p.tenant = name;
    space = open_with(f->lar, &p);
    larder_space_close(&space);
    p = (larder_space_params_t){.descriptor = "d", .descriptor_bytes = 1};
    space = open_with(f->lar, &p);
    larder_space_close(&space);
    p.shards = 0;
    p.tenant = NULL;
    space = open_with(f->lar, &p);
    larder_space_close(&space);
}

/* ---- secrets ---- */

static void test_secret(void **state)
{
    fix_t *f = fix(state);
    larder_space_params_t right = params_of("anna", "right", "model");
    larder_space_params_t wrong = params_of("anna", "wrong", "model");
    larder_space_params_t other = params_of("bert", "wrong", "model");
    larder_space_t *a = NULL, *b = NULL;

    fix_open(f, NODE);
    a = open_with(f->lar, &right);
    assert_status(put_n(a, 1, 1000), LARDER_OK);
    assert_status(larder_space_open(f->lar, &wrong, &b), LARDER_E_SECRET);
    larder_space_close(&a);
    fix_close(f);

    for (unsigned pass = 0; pass < 2; pass++) {
        fix_open(f, NODE);
        assert_status(larder_space_open(f->lar, &wrong, &b), LARDER_E_SECRET);
        assert_null(b);
        /* Told by name: which tenant, which directory. */
        assert_non_null(strstr(larder_last_error(), "anna"));
        assert_non_null(strstr(larder_last_error(), f->dir));
        assert_null(strstr(larder_last_error(), "right"));
        a = open_with(f->lar, &right);
        b = open_with(f->lar, &other); /* another tenant's is its own */
        assert_status(get_n(a, 1, 1000).status, LARDER_OK);
        assert_status(get_n(b, 1, 1000).status, LARDER_MISS);
        larder_space_close(&a);
        larder_space_close(&b);
        fix_close(f);
    }
}

/* Gives the keys of a space of a node that was opened with this file. */
static larder_status_t keys_with(const char *file, larder_key_t *keys)
{
    larder_space_params_t p = params_of("anna", "unused", "model");
    larder_t *lar = NULL;
    char url[300];
    size_t count;

    snprintf(url, sizeof(url), "embed:?dram=8M&secret_file=%s", file);
    larder_status_t st = larder_open(url, NULL, &lar);
    if (st == LARDER_OK) {
        p.field_mask &= ~(uint64_t)LARDER_SPACE_SECRET;
        larder_space_t *space = open_with(lar, &p);

        keys_of(space, NULL, keys, &count);
        larder_space_close(&space);
        assert_status(larder_close(&lar, 1000), LARDER_OK);
    } else {
        assert_null(lar);
    }
    return st;
}

/* Option secret_file: spaces that are opened without a secret have the file's;
 * it was read when the node was opened. */
static void test_secret_file(void **state)
{
    fix_t *f = fix(state);
    larder_space_params_t p = params_of("anna", "sixteen bytes ok", "model");
    larder_key_t want[CHUNKS], got[CHUNKS], public[CHUNKS];
    char file[256];
    size_t count;

    fix_open(f, NODE);
    larder_space_t *space = open_with(f->lar, &p);
    keys_of(space, NULL, want, &count);
    larder_space_close(&space);
    snprintf(file, sizeof(file), "%s/secret", f->dir);
    for (unsigned i = 0; i < 2; i++) {
        FILE *out = fopen(file, "w");

        assert_non_null(out);
        fprintf(out, "%s%s", (const char *)p.secret, i == 0 ? "\n" : "");
        fclose(out);
        chmod(file, 0640);
        memset(got, 0, sizeof(got));
        assert_status(keys_with(file, got), LARDER_OK);
        assert_memory_equal(got, want, sizeof(want));
    }
    assert_status(keys_with("", public), LARDER_OK);
    assert_false(same(&public[0], &want[0]));
    chmod(file, 0644);
    assert_status(keys_with(file, got), LARDER_E_INVALID);
    assert_non_null(strstr(larder_last_error(), "chmod"));
    assert_null(strstr(larder_last_error(), p.secret));
    unlink(file);
    assert_status(keys_with(file, got), LARDER_E_INVALID);
    assert_non_null(strstr(larder_last_error(), file));
}

/* A directory that is added later learns the secrets of those it serves. */
static void test_two_directories(void **state)
{
    fix_t *f = fix(state);
    larder_space_params_t right = params_of("anna", "right", "model");
    larder_space_params_t wrong = params_of("anna", "wrong", "model");
    char second[200], first[200];
    larder_space_t *a, *b = NULL;

    make_dir(second, sizeof(second));
    snprintf(first, sizeof(first), "%s", f->dir);
    fix_open(f, NODE);
    a = open_with(f->lar, &right);
    assert_status(put_n(a, 1, 1000), LARDER_OK);
    larder_space_close(&a);
    fix_close(f);
    /* With a second directory, and then with the second alone. */
    assert_true(snprintf(f->dir, sizeof(f->dir), "%s,%s", first, second) <
                (int)sizeof(f->dir));
    fix_open(f, NODE);
    a = open_with(f->lar, &right);
    assert_status(get_n(a, 1, 1000).status, LARDER_OK);
    assert_int_equal(stats_of(f->lar).disks, 2);
    larder_space_close(&a);
    fix_close(f);
    snprintf(f->dir, sizeof(f->dir), "%s", second);
    fix_open(f, NODE);
    assert_status(larder_space_open(f->lar, &wrong, &b), LARDER_E_SECRET);
    fix_close(f);
    snprintf(f->dir, sizeof(f->dir), "%s", first);
    remove_dir(second);
}

/* A reset that one directory missed reaches it when it is back. */
static void test_reset_reaches_all(void **state)
{
    fix_t *f = fix(state);
    char second[200], first[200], both[200];

    make_dir(second, sizeof(second));
    snprintf(first, sizeof(first), "%s", f->dir);
    assert_true(snprintf(both, sizeof(both), "%s,%s", first, second) <
                (int)sizeof(both));
    snprintf(f->dir, sizeof(f->dir), "%s", both);
    fix_open(f, NODE);
    for (uint64_t i = 0; i < 100; i++) {
        assert_status(put_n(f->space, i, 60000), LARDER_OK);
    }
    fix_close(f);
    snprintf(f->dir, sizeof(f->dir), "%s", first);
    fix_open(f, NODE);
    assert_status(larder_space_reset(f->space, 0), LARDER_OK);
    fix_close(f);
    snprintf(f->dir, sizeof(f->dir), "%s", both);
    for (unsigned pass = 0; pass < 2; pass++) {
        fix_open(f, NODE);
        for (uint64_t i = 0; i < 100; i++) {
            assert_status(get_n(f->space, i, 60000).status, LARDER_MISS);
        }
        fix_close(f);
        snprintf(f->dir, sizeof(f->dir), "%s", second);
    }
    snprintf(f->dir, sizeof(f->dir), "%s", first);
    remove_dir(second);
}

/* ---- chains ---- */

static void test_chain(void **state)
{
    fix_t *f = fix(state);
    uint32_t tokens[TOKENS + 3];
    larder_key_t whole[CHUNKS], part[CHUNKS], other[CHUNKS];
    larder_chain_params_t p = {0};
    size_t count = 99;

    fix_open_dram(f, "dram=8M");
    for (uint32_t i = 0; i < TOKENS + 3; i++) {
        tokens[i] = i * 977;
    }
    keys_of(f->space, NULL, whole, &count);
    assert_int_equal(count, CHUNKS);
    /* A rest that fills no chunk is ignored. */
    assert_status(
        larder_chain(f->space, tokens, TOKENS + 3, NULL, other, CHUNKS, &count),
        LARDER_OK);
    assert_int_equal(count, CHUNKS);
    assert_memory_equal(whole, other, sizeof(whole));
    /* Continued after any of its keys it is the same chain. */
    for (size_t at = 1; at < CHUNKS; at++) {
        p = (larder_chain_params_t){.field_mask = LARDER_CHAIN_PARENT,
                                    .parent = &whole[at - 1]};
        assert_status(larder_chain(f->space, tokens + at * CHUNK,
                                   TOKENS - at * CHUNK, &p, part, CHUNKS,
                                   &count),
                      LARDER_OK);
        assert_int_equal(count, CHUNKS - at);
        assert_memory_equal(part, whole + at, count * sizeof(part[0]));
    }
    /* Every token counts, for its chunk and all after, and none before. */
    for (size_t i = 0; i < TOKENS; i++) {
        tokens[i] ^= 1;
        assert_status(
            larder_chain(f->space, tokens, TOKENS, NULL, other, CHUNKS, &count),
            LARDER_OK);
        tokens[i] ^= 1;
        for (size_t k = 0; k < CHUNKS; k++) {
            assert_int_equal(same(&whole[k], &other[k]), k < i / CHUNK);
        }
    }
    /* No full chunk: no keys, and none needed. */
    assert_status(larder_chain(f->space, tokens, 3, NULL, NULL, 0, &count), 0);
    assert_int_equal(count, 0);
    assert_status(larder_chain(f->space, NULL, 0, NULL, NULL, 0, &count), 0);
}

/* Small chunks are named in runs, large ones as if their size were not known.
 */
static void test_chain_runs(void **state)
{
    enum { LONG = 80 };
    fix_t *f = fix(state);
    uint32_t tokens[LONG] = {0};
    larder_key_t plain[LONG], keys[LONG];
    size_t count;
    larder_space_params_t p = {
        .field_mask = LARDER_SPACE_CHUNK_TOKENS | LARDER_SPACE_CHUNK_BYTES,
        .descriptor = "runs",
        .descriptor_bytes = 4,
        .chunk_tokens = 1,
    };

    fix_open_dram(f, "dram=8M");
    for (uint64_t bytes = 0; bytes <= 9 << 20; bytes += 3 << 20) {
        larder_space_t *space = NULL;

        p.chunk_bytes = bytes;
        assert_status(larder_space_open(f->lar, &p, &space), LARDER_OK);
        assert_status(
            larder_chain(space, tokens, LONG, NULL, keys, LONG, &count),
            LARDER_OK);
        if (bytes == 0) {
            memcpy(plain, keys, sizeof(keys));
        }
        bool runs = bytes > 0 && bytes <= 8 << 20;
        assert_int_equal(memcmp(keys, plain, sizeof(keys)) != 0, runs);
        assert_int_equal(memcmp(&keys[64], &keys[65], 8) == 0, runs);
        assert_true(memcmp(&keys[65], &keys[66], 8) != 0);
        larder_space_close(&space);
    }
}

/* A space with page_tokens names chunks by SGLang's page hashes, which no
 * space's secret is in; a salt, and what follows a key, as elsewhere. */
static void test_chain_pages(void **state)
{
    enum { PAGES = 4 * CHUNKS };
    fix_t *f = fix(state);
    uint32_t tokens[8 * PAGES] = {7, 8, 9};
    larder_key_t pages[PAGES], keys[CHUNKS], salted[CHUNKS];
    larder_space_params_t p = {
        .field_mask = LARDER_SPACE_CHUNK_TOKENS | LARDER_SPACE_CHUNK_BYTES |
                      LARDER_SPACE_PAGE_TOKENS,
        .descriptor = "pages",
        .descriptor_bytes = 5,
        .chunk_tokens = 32,
        .chunk_bytes = 4096,
        .page_tokens = 8,
    };
    larder_chain_params_t salt = {
        .field_mask = LARDER_CHAIN_SALT, .salt = "a", .salt_bytes = 1};
    larder_chain_params_t after = {.field_mask = LARDER_CHAIN_PARENT};
    larder_space_t *space = NULL;
    size_t n;

    fix_open_dram(f, "dram=8M");
    assert_true(ldr_chain_pages(NULL, tokens, 8, 8, NULL, pages, PAGES));
    assert_status(larder_space_open(f->lar, &p, &space), LARDER_OK);
    assert_status(
        larder_chain(space, tokens, 8 * PAGES, NULL, keys, CHUNKS, &n),
        LARDER_OK);
    assert_int_equal(n, CHUNKS);
    assert_status(
        larder_chain(space, tokens, 8 * PAGES, &salt, salted, CHUNKS, &n),
        LARDER_OK);
    for (size_t i = 0; i < CHUNKS; i++) {
        assert_memory_equal(&keys[i], &pages[4 * i + 3], sizeof(keys[i]));
        assert_true(memcmp(&keys[i], &salted[i], sizeof(keys[i])) != 0);
    }
    after.parent = &keys[0];
    assert_status(larder_chain(space, tokens + 32, 8 * PAGES - 32, &after,
                               salted, CHUNKS, &n),
                  LARDER_OK);
    assert_memory_equal(salted, keys + 1, (CHUNKS - 1) * sizeof(keys[0]));
    larder_space_close(&space);

    p.page_tokens = 5;
    assert_status(larder_space_open(f->lar, &p, &space), LARDER_E_INVALID);
    p.page_tokens = 64;
    assert_status(larder_space_open(f->lar, &p, &space), LARDER_E_INVALID);
}

static void test_chain_salt_extra(void **state)
{
    fix_t *f = fix(state);
    larder_key_t plain[CHUNKS], a[CHUNKS], b[CHUNKS];
    larder_extra_t extra[CHUNKS] = {{0}};
    larder_chain_params_t salt = {
        .field_mask = LARDER_CHAIN_SALT, .salt = "session 1", .salt_bytes = 9};
    larder_chain_params_t with = {.field_mask = LARDER_CHAIN_EXTRA,
                                  .extra = extra};
    size_t n;

    fix_open_dram(f, "dram=8M");
    keys_of(f->space, NULL, plain, &n);
    keys_of(f->space, &salt, a, &n);
    salt.salt = "session 2";
    keys_of(f->space, &salt, b, &n);
    for (size_t i = 0; i < CHUNKS; i++) {
        assert_false(same(&plain[i], &a[i]));
        assert_false(same(&b[i], &a[i]));
    }
    /* No extra bytes are the same as empty ones. */
    keys_of(f->space, &with, a, &n);
    assert_memory_equal(plain, a, sizeof(plain));
    /* Those of one chunk change it and all after. */
    extra[3] = (larder_extra_t){"an image", 8};
    keys_of(f->space, &with, a, &n);
    for (size_t i = 0; i < CHUNKS; i++) {
        assert_int_equal(same(&plain[i], &a[i]), i < 3);
    }
    extra[3] = (larder_extra_t){"an image", 7};
    keys_of(f->space, &with, b, &n);
    assert_false(same(&a[3], &b[3]));
}

static void test_chain_misuse(void **state)
{
    fix_t *f = fix(state);
    uint32_t tokens[TOKENS] = {0};
    larder_key_t keys[CHUNKS];
    larder_extra_t extra[CHUNKS] = {{NULL, 5}};
    size_t n = 99;

    fix_open_dram(f, "dram=8M");
    larder_space_t *s = f->space;
    assert_status(larder_chain(NULL, tokens, TOKENS, NULL, keys, CHUNKS, &n),
                  LARDER_E_INVALID);
    assert_status(larder_chain(s, NULL, TOKENS, NULL, keys, CHUNKS, &n),
                  LARDER_E_INVALID);
    assert_status(larder_chain(s, tokens, TOKENS, NULL, keys, CHUNKS, NULL),
                  LARDER_E_INVALID);
    assert_status(larder_chain(s, tokens, TOKENS, NULL, NULL, CHUNKS, &n),
                  LARDER_E_SIZE);
    assert_status(larder_chain(s, tokens, TOKENS, NULL, keys, CHUNKS - 1, &n),
                  LARDER_E_SIZE);
    larder_chain_params_t p = {.field_mask = LARDER_CHAIN_EXTRA,
                               .extra = extra};
    assert_status(larder_chain(s, tokens, TOKENS, &p, keys, CHUNKS, &n),
                  LARDER_E_INVALID);
    p = (larder_chain_params_t){.field_mask = LARDER_CHAIN_SALT,
                                .salt_bytes = 3};
    assert_status(larder_chain(s, tokens, TOKENS, &p, keys, CHUNKS, &n),
                  LARDER_E_INVALID);
    p = (larder_chain_params_t){.field_mask =
                                    LARDER_CHAIN_SALT | LARDER_CHAIN_PARENT,
                                .parent = &keys[0],
                                .salt = "x",
                                .salt_bytes = 1};
    assert_status(larder_chain(s, tokens, TOKENS, &p, keys, CHUNKS, &n),
                  LARDER_E_INVALID);
    assert_int_equal(n, 99); /* outputs are set on success only */
}

/* The longest prefix, by tier, and why it ended. */
static void test_match(void **state)
{
    fix_t *f = fix(state);
    larder_key_t keys[CHUNKS];
    uint8_t data[100000];
    larder_match_t m = {.struct_bytes = sizeof(m)};
    size_t count;

    fix_open(f, NODE);
    keys_of(f->space, NULL, keys, &count);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        struct iovec iov = {data, sizeof(data)};
        larder_item_t item = {.key = &keys[i],
                              .parent = i > 0 ? &keys[i - 1] : NULL,
                              .depth = i,
                              .iov = &iov,
                              .iov_count = 1};

        assert_status(larder_match(f->space, keys, CHUNKS, 0, &m), LARDER_OK);
        assert_int_equal(m.chunks, i);
        content(i, data, sizeof(data));
        assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, NULL), 0);
        assert_status(item.status, LARDER_OK);
    }
    assert_status(larder_match(f->space, keys, CHUNKS, 0, &m), LARDER_OK);
    assert_int_equal(m.tier_chunks[LARDER_TIER_DRAM], CHUNKS);
    assert_int_equal(m.tier_bytes[LARDER_TIER_DRAM], CHUNKS * sizeof(data));
    assert_int_equal(m.cause, LARDER_CAUSE_NONE);
    fix_close(f);
    fix_open(f, NODE);
    struct iovec iov = {data, sizeof(data)};
    larder_item_t item = {.key = &keys[2], .iov = &iov, .iov_count = 1};
    assert_status(larder_run(f->space, LARDER_OP_GET, &item, 1, NULL), 0);
    assert_status(item.status, LARDER_OK); /* promoted */
    assert_status(larder_match(f->space, keys, CHUNKS, 0, &m), LARDER_OK);
    assert_int_equal(m.chunks, CHUNKS);
    assert_int_equal(m.tier_chunks[LARDER_TIER_DRAM], 1);
    assert_int_equal(m.tier_chunks[LARDER_TIER_SSD], CHUNKS - 1);
    item = (larder_item_t){.key = &keys[6]};
    assert_status(larder_run(f->space, LARDER_OP_REMOVE, &item, 1, NULL), 0);
    assert_status(larder_match(f->space, keys, CHUNKS, 0, &m), LARDER_OK);
    assert_int_equal(m.chunks, 6);
    assert_int_equal(m.cause, LARDER_CAUSE_ABSENT);
    assert_status(larder_match(f->space, keys + 7, CHUNKS - 7, 0, &m), 0);
    assert_int_equal(m.chunks, CHUNKS - 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EMBED_ONE(test_parameters_make_the_space, "plain"),
        EMBED_ONE(test_bad_spaces, "plain"),
        EMBED_BOTH(test_secret),
        EMBED_ONE(test_first_secret, "plain"),
        EMBED_ONE(test_secret_file, "plain"),
        EMBED_BOTH(test_two_directories),
        BOTH(test_reset_reaches_all),
        ONE(test_chain, "plain"),
        ONE(test_chain_runs, "plain"),
        ONE(test_chain_pages, "plain"),
        ONE(test_chain_salt_extra, "plain"),
        ONE(test_chain_misuse, "plain"),
        BOTH(test_match),
    };

    return cmocka_run_group_tests_name("client/spaces", tests, NULL, NULL);
}
