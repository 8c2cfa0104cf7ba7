/*
 * 3fs:/PATH through rings, of the library that stands in for 3FS's own
 * (hf3fs_standin.c), and without it.
 */
#include "tier/shared/dir_rig.h"

#include <dlfcn.h>
#include <sys/wait.h>

#include "base/mem.h"
#include "tier/shared/dir_int.h"
#include "tier/shared/fs3_int.h"
#include "tier/shared/hf3fs_standin.h"

static standin_set_fn *set;
static standin_get_fn *count;

static void calm(void)
{
    for (int i = 0; i < STANDIN_KNOBS; i++) {
        set((standin_knob_t)i, 0);
    }
}

static int setup(void **state)
{
    static dir_rig_t rig;

    dir_rig_make(&rig, "3fs");
    assert_int_equal(dir_rig_health(&rig), 0);
    *state = &rig;
    return 0;
}

/* Whatever a test did: all is given back, and nothing was misused. */
static int teardown(void **state)
{
    calm();
    dir_rig_end(*state);
    assert_int_equal(count(STANDIN_MISUSED), 0);
    assert_int_equal(count(STANDIN_FDS), 0);
    assert_int_equal(count(STANDIN_IORS), 0);
    assert_int_equal(count(STANDIN_IOVS), 0);
    return 0;
}

static void test_contract(void **state)
{
    contract_t c = {
        .open = dir_rig_open, .arg = *state, .many = 50, .kills = 4};
    int64_t reads = count(STANDIN_READS), writes = count(STANDIN_WRITES);

    contract_bytes(&c);
    contract_errors(&c);
    contract_replace(&c);
    contract_list(&c);
    contract_race(&c);
#ifndef __SANITIZE_THREAD__ /* a child that starts threads is too much for it  \
                             */
    contract_kill(&c);
#endif
    /* 20 MiB alone are 20 of them each way. */
    assert_true(count(STANDIN_READS) - reads > 20);
    assert_true(count(STANDIN_WRITES) - writes > 20);
}

/* The same bytes, however it behaves. */
static void test_weather(void **state)
{
    static const struct {
        int64_t delay_us, reorder, shorter, full;
    } cases[] = {{0, 1, 0, 0},       {200, 0, 0, 0},    {300, 1, 0, 0},
                 {0, 0, 100000, 0},  {100, 1, 4097, 0}, {0, 0, 0, 3},
                 {100, 1, 300001, 2}};
    dir_rig_t *r = *state;
    const size_t bytes = (5 << 20) + 12345;
    int64_t before = count(STANDIN_OUT_OF_ORDER);
    char name[32];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        set(STANDIN_DELAY_US, cases[i].delay_us);
        set(STANDIN_REORDER, cases[i].reorder);
        set(STANDIN_SHORT, cases[i].shorter);
        set(STANDIN_FULL, cases[i].full);
        snprintf(name, sizeof(name), "w/%zu", i);
        size_t size = cases[i].shorter == 4097 ? bytes / 4 : bytes;
        int64_t moved = count(STANDIN_BYTES);
        assert_int_equal(contract_put(r->b, name, size, LDR_OBJECT_NEW), 0);
        contract_check(r->b, name, 0, size);
        contract_check(r->b, name, 70001, 300000);
        assert_int_equal(count(STANDIN_BYTES) - moved, 2 * size + 300000);
        uint8_t *data = ldr_alloc_blocks(size);
        struct iovec iov = {data, size};
        assert_int_equal(
            r->b->ops->get(r->b, name, 1, &iov, 1, contract_deadline()),
            -ENODATA);
        ldr_free(data);
        calm();
    }
    assert_true(count(STANDIN_OUT_OF_ORDER) > before);
}

static void test_errors(void **state)
{
    dir_rig_t *r = *state;
    const size_t bytes = 5 << 20;
    uint8_t *data = ldr_alloc_blocks(bytes);
    struct iovec iov = {data, bytes};

    assert_int_equal(contract_put(r->b, "e/there", bytes, 0), 0);
    for (int nth = 1; nth <= 5; nth++) {
        set(STANDIN_FAIL_NTH, nth);
        set(STANDIN_FAIL_WITH, nth == 2 ? ENOSPC : EIO);
        assert_int_equal(contract_put(r->b, "e/new", bytes, LDR_OBJECT_NEW),
                         nth == 2 ? -ENOSPC : -EIO);
        assert_non_null(strstr(ldr_fail_text(), "e/new"));
        assert_int_equal(dir_rig_listed(r->b, "e/"), 1);
        assert_int_equal(dir_rig_count(r->path, LDR_DIR_TEMP), 0);
        set(STANDIN_FAIL_NTH, nth);
        assert_int_equal(
            r->b->ops->get(r->b, "e/there", 0, &iov, 1, contract_deadline()),
            nth == 2 ? -ENOSPC : -EIO);
        calm();
        contract_check(r->b, "e/there", 0, bytes);
    }
    ldr_free(data);
}

/* I/O that does not come back ends with the call's deadline. What comes later
 * touches nothing of ours, and the rings are used again once it has come. */
static void test_held(void **state)
{
    dir_rig_t *r = *state;
    const size_t bytes = 3 << 20;
    uint8_t *data = ldr_alloc_blocks(bytes), *seen = ldr_alloc_blocks(bytes);
    struct iovec iov = {data, bytes};
    int64_t reads;

    assert_int_equal(contract_put(r->b, "h/a", bytes, 0), 0);
    contract_fill("other", 0, data, bytes);
    memcpy(seen, data, bytes);
    set(STANDIN_HOLD, 1);
    for (int i = 0; i < 2; i++) { /* as many as there are rings */
        uint64_t soon = ldr_now_ns(&ldr_clock_real) + 20000000;

        assert_int_equal(r->b->ops->get(r->b, "h/a", 0, &iov, 1, soon),
                         -ETIMEDOUT);
    }
    /* None is left: the mount does it. */
    reads = count(STANDIN_READS);
    contract_check(r->b, "h/a", 0, bytes);
    assert_int_equal(count(STANDIN_READS), reads);
    assert_memory_equal(data, seen, bytes);
    set(STANDIN_HOLD, 0);
    while (count(STANDIN_READS) < reads + 6) {
        real_pause();
    }
    assert_memory_equal(data, seen, bytes);
    contract_check(r->b, "h/a", 0, bytes);
    assert_int_equal(count(STANDIN_READS), reads + 9);
    ldr_free(data);
    ldr_free(seen);
}

/* What does not take us is left alone, and the mount used. */
static void test_refused(void **state)
{
    static const standin_knob_t knobs[] = {
        STANDIN_REFUSE_IOV, STANDIN_REFUSE_IOR, STANDIN_REFUSE_FD};
    dir_rig_t *r = *state;

    for (size_t i = 0; i < sizeof(knobs) / sizeof(knobs[0]); i++) {
        ldr_backend_t *b = dir_rig_open(r);
        int64_t reads = count(STANDIN_READS), writes = count(STANDIN_WRITES);

        set(knobs[i], EPERM);
        assert_int_equal(contract_put(b, "r/a", 3 << 20, 0), 0);
        contract_check(b, "r/a", 0, 3 << 20);
        assert_int_equal(count(STANDIN_READS), reads);
        assert_int_equal(count(STANDIN_WRITES), writes);
        b->ops->destroy(b);
        calm();
    }
}

/* Another mount at the path: rings of its own. */
static void test_mounted_again(void **state)
{
    dir_rig_t *r = *state;
    char away[600], command[1300];
    int64_t reads;

    assert_int_equal(contract_put(r->b, "m/a", 2 << 20, 0), 0);
    contract_check(r->b, "m/a", 0, 2 << 20);
    snprintf(away, sizeof(away), "%s-away", r->path);
    snprintf(command, sizeof(command), "cp -r '%s' '%s' && rm -r '%s' ",
             r->path, away, r->path);
    assert_int_equal(system(command), 0);
    assert_int_equal(dir_rig_health(r), -ENODEV);
    assert_int_equal(count(STANDIN_FDS), 0);
    assert_int_equal(rename(away, r->path), 0);
    reads = count(STANDIN_READS);
    contract_check(r->b, "m/a", 0, 2 << 20);
    assert_int_equal(count(STANDIN_READS), reads + 2);
    assert_int_equal(count(STANDIN_IOVS), 1);
}

/* Small ones are not worth a ring. */
static void test_small(void **state)
{
    dir_rig_t *r = *state;
    int64_t all = count(STANDIN_READS) + count(STANDIN_WRITES);

    assert_int_equal(contract_put(r->b, "s/a", 10000, 0), 0);
    contract_check(r->b, "s/a", 0, 10000);
    assert_int_equal(count(STANDIN_READS) + count(STANDIN_WRITES), all);
}

/* ---- without the library ---- */

static unsigned lines;

static void log_line(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    lines += strstr(line, "reads and writes go through the mount") != NULL;
}

/* In a child, where it was not loaded yet: one line, and all works. */
static int without(void)
{
    dir_rig_t r;
    char url[600];
    ldr_backend_t *b = NULL;

    setenv("LARDER_HF3FS", "/no/such/library.so", 1);
    dir_rig_make(&r, "3fs");
    snprintf(url, sizeof(url), "3fs:%s", r.path);
    ldr_backend_params_t p = {.url = url,
                              .threads = 2,
                              .clock = &ldr_clock_real,
                              .log = {.fn = log_line}};
    bool ok = ldr_backend_open(&p, &b) == LARDER_OK;
    for (int i = 0; i < 3 && ok; i++) {
        ok = b->ops->health(b, contract_deadline()) == 0;
    }
    ok = ok && contract_put(b, "a/b", 3 << 20, 0) == 0 && lines == 1;
    contract_check(b, "a/b", 0, 3 << 20);
    b->ops->destroy(b);
    dir_rig_end(&r);
    return ok ? 0 : 1;
}

static int without_status;

static void test_without(void **state)
{
    (void)state;
    assert_int_equal(without_status, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without),
        TEST(contract),
        TEST(weather),
        TEST(errors),
        TEST(held),
        TEST(refused),
        TEST(mounted_again),
        TEST(small),
    };
    pid_t child = fork();

    if (child == 0) {
        _exit(without());
    }
    waitpid(child, &without_status, 0);
    setenv("LARDER_HF3FS", STANDIN_HF3FS, 1);
    void *library = dlopen(STANDIN_HF3FS, RTLD_NOW | RTLD_LOCAL);
    void *at[2] = {
        library != NULL ? dlsym(library, "hf3fs_standin_set") : NULL,
        library != NULL ? dlsym(library, "hf3fs_standin_get") : NULL,
    };
    memcpy(&set, &at[0], sizeof(set));
    memcpy(&count, &at[1], sizeof(count));
    if (set == NULL || count == NULL) {
        fprintf(stderr, "no stand-in: %s\n", dlerror());
        return 1;
    }
    return cmocka_run_group_tests_name("shared/3fs", tests, NULL, NULL);
}
