/*
 * What the tests of the public API share: a directory and an engine per test,
 * keys and contents made from numbers, and the shortest way to put and get.
 *
 * Every test that has to do with a disk is listed with BOTH(), which runs it
 * on io_uring and on plain threads. Tests run on every transport
 * (transport.h), except those listed with EMBED_ONE() or EMBED_BOTH(): they
 * look inside the node, or need its clock, its disk or its faults.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/io.h"
#include "client/client.h"
#include "client/transport.h"
#include "larder/larder.h"
#include "sim/simdisk.h"

#define MAYBE_UNUSED __attribute__((unused))
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* A clock that goes as the test says. */
typedef struct fake_clock {
    uint64_t now_ns, wall_s;
    uint64_t tick_ns; /* passes with every look at the clock */
    bool real;        /* now_ns is the real one, for nodes with threads */
    ldr_clock_t clock;
} fake_clock_t;

typedef struct fix {
    const char *engine; /* "uring" or "plain" */
    bool embedded;      /* the node is in this process */
    bool embed_only;    /* the test needs it there */
    char dir[200];
    larder_t *lar;
    larder_space_t *space;
    fake_clock_t clock;
    simdisk_t *disk;
} fix_t;

#define assert_status(call, want)                                              \
    do {                                                                       \
        larder_status_t st_ = (call);                                          \
        if (st_ != (want)) {                                                   \
            print_error("%s: %s (%s)\n", #call, larder_status_text(st_),       \
                        larder_last_error());                                  \
        }                                                                      \
        assert_int_equal(st_, want);                                           \
    } while (0)

/* ---- a directory ---- */

MAYBE_UNUSED static void remove_dir(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *e;
    char name[512];

    while (dir != NULL && (e = readdir(dir)) != NULL) {
        snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
        unlink(name);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(path);
}

MAYBE_UNUSED static void make_dir(char *path, size_t size)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(path, size, "%s/larder-test-XXXXXX", tmp != NULL ? tmp : "/tmp");
    assert_non_null(mkdtemp(path));
}

/* ---- a test ---- */

MAYBE_UNUSED static uint64_t fake_now(void *arg)
{
    fake_clock_t *c = arg;

    if (c->real) {
        return ldr_now_ns(&ldr_clock_real);
    }
    return c->now_ns += c->tick_ns;
}

MAYBE_UNUSED static uint64_t fake_wall(void *arg)
{
    return 1000 *
           __atomic_load_n(&((fake_clock_t *)arg)->wall_s, __ATOMIC_RELAXED);
}

MAYBE_UNUSED static int fix_setup(void **state)
{
    fix_t *f = calloc(1, sizeof(*f));

    f->engine = *state;
    f->embedded = transport_is("embed");
    if (strncmp(f->engine, "embed ", 6) == 0) {
        f->embed_only = true;
        f->engine += 6;
    }
    f->clock = (fake_clock_t){.now_ns = 1000, .wall_s = 1700000000};
    f->clock.clock = (ldr_clock_t){fake_now, fake_wall, &f->clock};
    make_dir(f->dir, sizeof(f->dir));
    *state = f;
    return 0;
}

MAYBE_UNUSED static int fix_teardown(void **state)
{
    fix_t *f = *state;

    ldr_fault_disarm_all();
    transport_close(&f->lar, 1000);
    larder_space_close(&f->space);
    remove_dir(f->dir);
    if (f->disk != NULL) {
        simdisk_destroy(f->disk);
    }
    free(f);
    return 0;
}

#define ONE(test, engine)                                                      \
    {                                                                          \
#test " (" engine ")", test, fix_setup, fix_teardown, (void *)engine   \
    }
#define BOTH(test) ONE(test, "uring"), ONE(test, "plain")
#define EMBED_ONE(test, engine)                                                \
    {                                                                          \
#test " (" engine ")", test, fix_setup, fix_teardown,                  \
            (void *)("embed " engine)                                          \
    }
#define EMBED_BOTH(test) EMBED_ONE(test, "uring"), EMBED_ONE(test, "plain")

/* The first line of a test: skips it where the kernel forbids its engine. */
MAYBE_UNUSED static fix_t *fix(void **state)
{
    fix_t *f = *state;
    ldr_io_t *io;

    if (f->embed_only && !f->embedded) {
        skip();
    }
    if (strcmp(f->engine, "uring") == 0) {
        int error = ldr_io_uring_create(8, &io);

        if (error != 0) {
            print_message("SKIPPED, NOT TESTED: io_uring is not to be had "
                          "here: %s\n",
                          strerror(-error));
            skip();
        }
        io->ops->destroy(io);
    }
    return f;
}

/* For tests that flip bits in the arena, which this process has to reach. */
MAYBE_UNUSED static void need_arena(const fix_t *f)
{
    if (!f->embedded && !transport_is("shm")) {
        skip();
    }
}

/* Log lines of the node under test: kept out of the output, counted. */
typedef struct log_seen {
    pthread_mutex_t lock;
    unsigned about_uring;
} log_seen_t;

MAYBE_UNUSED static log_seen_t log_seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

MAYBE_UNUSED static void log_keep(void *arg, larder_log_level_t level,
                                  const char *line)
{
    log_seen_t *seen = arg;

    (void)level;
    pthread_mutex_lock(&seen->lock);
    seen->about_uring += strstr(line, "io_uring") != NULL;
    pthread_mutex_unlock(&seen->lock);
}

MAYBE_UNUSED static larder_status_t try_open(const fix_t *f,
                                             const char *options,
                                             larder_t **lar_p)
{
    larder_open_params_t params = {
        .field_mask = LARDER_OPEN_LOG, .log = log_keep, .log_arg = &log_seen};
    char url[512];

    snprintf(url, sizeof(url), "embed:%s?io=%s&%s", f->dir, f->engine, options);
    return transport_open(url, &params, lar_p);
}

MAYBE_UNUSED static larder_space_t *open_space(larder_t *lar,
                                               const char *descriptor,
                                               uint32_t shards)
{
    larder_space_params_t p = {
        .field_mask = LARDER_SPACE_SHARDS | LARDER_SPACE_CHUNK_TOKENS,
        .descriptor = descriptor,
        .descriptor_bytes = strlen(descriptor),
        .shards = shards,
        .chunk_tokens = 4,
    };
    larder_space_t *space = NULL;

    assert_status(larder_space_open(lar, &p, &space), LARDER_OK);
    return space;
}

/* Opens a node on the test's directory and the space "model" on it. */
MAYBE_UNUSED static void fix_open(fix_t *f, const char *options)
{
    assert_status(try_open(f, options, &f->lar), LARDER_OK);
    f->space = open_space(f->lar, "model", 1);
}

/* The same without a directory. */
MAYBE_UNUSED static void fix_open_dram(fix_t *f, const char *options)
{
    char url[256];

    snprintf(url, sizeof(url), "embed:?io=%s&%s", f->engine, options);
    assert_status(transport_open(url, NULL, &f->lar), LARDER_OK);
    f->space = open_space(f->lar, "model", 1);
}

MAYBE_UNUSED static void fix_close(fix_t *f)
{
    larder_space_close(&f->space);
    assert_status(transport_close(&f->lar, LARDER_FOREVER), LARDER_OK);
    assert_null(f->lar);
}

MAYBE_UNUSED static void fix_open_env(fix_t *f, const char *url,
                                      ldr_node_env_t *env)
{
    ldr_options_t o;
    ldr_node_t *node = NULL;

    env->clock = &f->clock.clock;
    env->log = (ldr_log_t){log_keep, &log_seen};
    assert_status(ldr_options_parse(url, &o), LARDER_OK);
    assert_status(ldr_node_open(&o, env, &node), LARDER_OK);
    assert_status(ldr_handle_open(node, &f->lar), LARDER_OK);
    f->space = open_space(f->lar, "model", 1);
}

/* A node without threads, on a simulated disk and the test's clock: what
 * happens happens when the test asks for it. */
MAYBE_UNUSED static void fix_open_sim(fix_t *f, const char *options)
{
    char url[256];

    if (f->disk == NULL) {
        f->disk = simdisk_create(1, 0);
    }
    ldr_node_env_t env = {.io = simdisk_io(f->disk), .seed = 7, .manual = true};
    snprintf(url, sizeof(url), "embed:/disk?%s", options);
    fix_open_env(f, url, &env);
}

/* A node like any other, but for its calendar, which is the test's. */
MAYBE_UNUSED static void fix_open_wall(fix_t *f, const char *options)
{
    ldr_node_env_t env = {0};
    char url[512];

    f->clock.real = true;
    snprintf(url, sizeof(url), "embed:%s?io=%s&%s", f->dir, f->engine, options);
    fix_open_env(f, url, &env);
}

/* ---- keys, contents, items ---- */

MAYBE_UNUSED static larder_key_t key_of(uint64_t n)
{
    larder_key_t key;
    ldr_rand_t r;

    ldr_rand_seed(&r, n + 1);
    for (size_t i = 0; i < sizeof(key.hash); i++) {
        key.hash[i] = (uint8_t)ldr_rand_next(&r);
    }
    return key;
}

/* The contents of shard n: any two differ everywhere. */
MAYBE_UNUSED static void content(uint64_t n, uint8_t *data, size_t bytes)
{
    ldr_rand_t r;

    ldr_rand_seed(&r, n * 2654435761u + 17);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = ldr_rand_next(&r);

        memcpy(data + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

MAYBE_UNUSED static bool content_is(uint64_t n, const uint8_t *data,
                                    size_t bytes)
{
    uint8_t *want = malloc(bytes);

    content(n, want, bytes);
    bool same = memcmp(want, data, bytes) == 0;
    free(want);
    return same;
}

/* One item alone; status, cause and length are the item's. */
MAYBE_UNUSED static larder_item_t run_one(larder_space_t *space, larder_op_t op,
                                          uint64_t n, uint16_t shard,
                                          void *data, size_t bytes)
{
    larder_key_t key = key_of(n);
    struct iovec iov = {data, bytes};
    larder_item_t item = {
        .key = &key,
        .shard = shard,
        .iov = &iov,
        .iov_count = 1,
        .cause = LARDER_CAUSE_COUNT, /* results are to be set */
        .length = 12345,
    };

    assert_status(larder_run(space, op, &item, 1, NULL), LARDER_OK);
    return item;
}

MAYBE_UNUSED static larder_status_t put_n(larder_space_t *space, uint64_t n,
                                          size_t bytes)
{
    uint8_t *data = malloc(bytes);

    content(n, data, bytes);
    larder_item_t item = run_one(space, LARDER_OP_PUT, n, 0, data, bytes);
    free(data);
    return item.status;
}

/* A get that must give the right bytes if it gives any, and write nothing
 * beyond them. */
MAYBE_UNUSED static larder_item_t get_n(larder_space_t *space, uint64_t n,
                                        size_t bytes)
{
    uint8_t *data = malloc(bytes + 64);

    memset(data, 0xa5, bytes + 64);
    larder_item_t item = run_one(space, LARDER_OP_GET, n, 0, data, bytes);
    for (size_t i = bytes; i < bytes + 64; i++) {
        assert_int_equal(data[i], 0xa5);
    }
    if (item.status == LARDER_OK) {
        assert_int_equal(item.length, bytes);
        assert_true(content_is(n, data, bytes));
    }
    free(data);
    return item;
}

MAYBE_UNUSED static larder_item_t exists_n(larder_space_t *space, uint64_t n)
{
    return run_one(space, LARDER_OP_EXISTS, n, 0, NULL, 0);
}

MAYBE_UNUSED static larder_stats_t stats_of(larder_t *lar)
{
    larder_stats_t s;

    assert_status(transport_stats(lar, &s), LARDER_OK);
    return s;
}

/* A child process that does fn and answers whether it held. */
MAYBE_UNUSED static void in_child(bool (*fn)(fix_t *f), fix_t *f)
{
    int status = -1;

    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(fn(f) ? 0 : 1);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
