/*
 * The tenant's secret, as a client gives it (option secret_file), over a tier
 * in a directory: whoever has the same one shares, what was made under another
 * is not believed, and who has none is told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <glob.h>
#include <sys/stat.h>

#include "base/copy.h"
#include "node/node.h"
#include "tier/shared/object.h"
#include "tier/shared/objects.h"
#include "support/real.h"

#define VALUES 6u
#define BYTES 9000u
#define SECRET "correct horse battery staple"

static char path[512], secret_path[600], key_path[600];
static uint8_t value[BYTES];
static unsigned warnings; /* about a tenant without a secret */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(name, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(name, 0600), 0);
}

static int setup(void **state)
{
    char url[600];

    (void)state;
    assert_true(real_dir_make(path, sizeof(path), "secret"));
    snprintf(url, sizeof(url), "dir:%s", path);
    assert_int_equal(ldr_objects_make(url, "", LARDER_FOREVER), LARDER_OK);
    snprintf(secret_path, sizeof(secret_path), "%s.secret", path);
    write_text(secret_path, SECRET "\n");
    snprintf(key_path, sizeof(key_path), "%s.key", path);
    write_text(key_path, "0123456789abcdef0123456789abcdef"
                         "0123456789abcdef0123456789ABCDEF\n");
    warnings = 0;
    return 0;
}

static int teardown(void **state)
{
    char command[600];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
    unlink(secret_path);
    unlink(key_path);
    return 0;
}

static void on_line(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    pthread_mutex_lock(&log_lock);
    warnings += strstr(line, "has no secret") != NULL;
    if (strstr(line, SECRET) != NULL) {
        fprintf(stderr, "the secret is in the log: %s\n", line);
        abort();
    }
    pthread_mutex_unlock(&log_lock);
}

/* A node of its own that has the tier, and a client in it. */
static larder_t *node_open(const char *more, larder_space_t **space_p)
{
    larder_open_params_t params = {.field_mask = LARDER_OPEN_LOG,
                                   .log = on_line};
    larder_t *lar = NULL;
    char url[2000];

    snprintf(url, sizeof(url),
             "embed:?dram=8M&shared=dir:%s&shared_poll_ms=10%s", path, more);
    assert_int_equal(larder_open(url, &params, &lar), LARDER_OK);
    assert_int_equal(real_space(lar, "model", space_p), LARDER_OK);
    return lar;
}

static void node_close(larder_t *lar, larder_space_t *space)
{
    larder_space_close(&space);
    assert_int_equal(larder_close(&lar, 10000), LARDER_OK);
}

static const char *with_secret(void)
{
    static char text[700];

    snprintf(text, sizeof(text), "&secret_file=%s", secret_path);
    return text;
}

/* A node saves them in the tier, and is gone. */
static void save_all(const char *more)
{
    larder_space_t *space;
    larder_t *lar = node_open(more, &space);

    for (uint64_t i = 0; i < VALUES; i++) {
        assert_int_equal(real_put(space, i, 1, value, BYTES), LARDER_OK);
    }
    assert_int_equal(larder_flush(lar, LARDER_TIER_SHARED, 10000), LARDER_OK);
    node_close(lar, space);
}

/* What a new node gives, once it knows what the tier holds: how many, all of
 * this generation; the rest are misses. */
static unsigned load_all(const char *more, uint64_t generation)
{
    larder_space_t *space;
    larder_t *lar = node_open(more, &space);
    larder_stats_t stats;
    unsigned found = 0;

    do {
        real_pause();
        assert_true(real_stats(lar, &stats));
        assert_string_equal(stats.shared_tier.reason, "");
    } while (stats.shared_tier.objects == 0);
    for (uint64_t i = 0; i < VALUES; i++) {
        uint64_t got;
        larder_item_t item;
        larder_status_t st =
            real_run(space, LARDER_OP_GET, i, value, BYTES, &item);

        if (st == LARDER_OK) {
            assert_true(real_check(value, item.length, i, &got));
            assert_int_equal(got, generation);
            found++;
        } else {
            assert_int_equal(st, LARDER_MISS);
        }
    }
    assert_true(real_stats(lar, &stats));
    assert_int_equal(stats.shared_tier.corrupt > 0, found < VALUES);
    node_close(lar, space);
    return found;
}

static void test_same_secret_shares(void **state)
{
    (void)state;
    save_all(with_secret());
    assert_int_equal(load_all(with_secret(), 1), VALUES);
    assert_int_equal(warnings, 0);
}

/* Without it the tenant's part of the tier is off, and says why. */
static void test_without_it(void **state)
{
    larder_space_t *space;
    larder_stats_t stats;
    larder_item_t item;

    (void)state;
    save_all(with_secret());
    larder_t *lar = node_open("", &space);
    do {
        real_pause();
        assert_true(real_stats(lar, &stats));
    } while (strstr(stats.shared_tier.reason, "another secret") == NULL);
    assert_int_equal(real_run(space, LARDER_OP_GET, 0, value, BYTES, &item),
                     LARDER_MISS);
    node_close(lar, space);
}

/* Puts other values in the place of those that the tier holds, with names,
 * checksums and tags as they must be, but under this secret. The ids and rows
 * can be read by whoever can read the storage: here by the owner's key. */
static void forge(const char *owner, const char *secret)
{
    static uint8_t data[1 << 20] __attribute__((aligned(4096)));
    static ldr_record_t records[LDR_OBJECT_ROWS_MAX];
    ldr_seal_t reads = {.encrypts = false}, seal = {.encrypts = false};
    ldr_object_t object = {.epoch = 0};
    char pattern[600];
    glob_t names;

    assert_true(ldr_tenant_key(owner, strlen(owner), "default", reads.mac));
    assert_true(ldr_tenant_key(secret, strlen(secret), "default", seal.mac));
    snprintf(pattern, sizeof(pattern), "%s/*/o/*/*", path);
    assert_int_equal(glob(pattern, 0, NULL, &names), 0);
    assert_int_equal(names.gl_pathc, 1);
    FILE *f = fopen(names.gl_pathv[0], "r+");
    assert_non_null(f);
    size_t bytes = fread(data, 1, sizeof(data), f);
    size_t tail = ldr_object_tail_find(data + bytes - LDR_BLOCK);
    assert_true(bytes < sizeof(data) && tail > 0);
    const char *hex = strrchr(names.gl_pathv[0], '/') + 1;
    for (unsigned i = 0; i < LDR_ID_BYTES; i++) {
        assert_int_equal(sscanf(hex + 2 * i, "%2hhx", &object.id[i]), 1);
    }
    assert_true(ldr_object_tail_parse(&reads, data + bytes - tail, tail,
                                      &object, records));
    assert_int_equal(object.rows, VALUES);
    for (uint32_t i = 0; i < object.rows; i++) {
        ldr_record_t *r = &records[i];
        uint8_t *payload = data + (size_t)r->block * LDR_BLOCK;
        size_t room = (ldr_record_blocks(r->length) - 1) * (size_t)LDR_BLOCK;
        struct iovec iov = {payload, room};
        uint64_t id;

        memcpy(&id, payload, sizeof(id)); /* real_fill() begins with it */
        real_fill(payload, r->length, id, 2);
        r->payload_crc = ldr_crc32c(0, payload, r->length);
        assert_true(
            ldr_object_seal(&seal, &object, r, &iov, 1, NULL, payload + room));
    }
    assert_true(
        ldr_object_tail_compose(&seal, &object, records, data + bytes - tail));
    rewind(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    globfree(&names);
}

/* What anybody can make is a miss for a tenant that has a secret. The forgery
 * itself is good: under the right secret it would be believed, and so it is by
 * a tenant that has none. */
static void test_forged(void **state)
{
    (void)state;
    save_all(with_secret());
    forge(SECRET, LDR_PUBLIC_SECRET);
    assert_int_equal(load_all(with_secret(), 1), 0);
}

static void test_forged_under_the_secret(void **state)
{
    (void)state;
    save_all(with_secret());
    forge(SECRET, SECRET);
    assert_int_equal(load_all(with_secret(), 2), VALUES);
}

static void test_forged_without_one(void **state)
{
    (void)state;
    save_all("");
    forge(LDR_PUBLIC_SECRET, LDR_PUBLIC_SECRET);
    assert_int_equal(load_all("", 2), VALUES);
}

/* One line for a tenant, however many spaces it opens; none where its data is
 * encrypted, or it has a secret. */
static void test_warning(void **state)
{
    char key[700], text[65536];
    larder_space_t *space, *other;

    (void)state;
    snprintf(key, sizeof(key), "&shared_key=%s", key_path);
    const char *const more[] = {"", with_secret(), key};
    for (unsigned i = 0; i < 3; i++) {
        size_t length;
        larder_t *lar = node_open(more[i], &space);

        assert_int_equal(real_space(lar, "another", &other), LARDER_OK);
        assert_int_equal(warnings, 1); /* of the first */
        assert_int_equal(larder_metrics(lar, text, sizeof(text), &length),
                         LARDER_OK);
        assert_non_null(strstr(text, i == 0
                                         ? "\nlarder_shared_open_tenants 1\n"
                                         : "\nlarder_shared_open_tenants 0\n"));
        larder_space_close(&other);
        node_close(lar, space);
    }
}

int main(void)
{
#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_same_secret_shares),
        TEST(test_without_it),
        TEST(test_forged),
        TEST(test_forged_under_the_secret),
        TEST(test_forged_without_one),
        TEST(test_warning),
    };

    return cmocka_run_group_tests_name("shared/secret", tests, NULL, NULL);
}
