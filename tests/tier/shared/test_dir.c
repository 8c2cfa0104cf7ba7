/* dir:/PATH on the file system of the tests. What needs mounts of its own is
 * in test_mounts.c. */
#include "tier/shared/dir_rig.h"

#include <sys/time.h>

#include "base/io.h"
#include "base/mem.h"
#include "tier/shared/dir_int.h"

static int setup(void **state)
{
    static dir_rig_t rig;

    dir_rig_make(&rig, "dir");
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    ldr_fault_disarm_all();
    dir_rig_end(*state);
    return 0;
}

static void test_contract(void **state)
{
    contract_t c = {.open = dir_rig_open, .arg = *state};
    dir_rig_t *r = *state;

    contract_run(&c);
    /* The children that were killed have left at most one each. */
    assert_in_range(dir_rig_count(r->path, LDR_DIR_TEMP), 0, 10);
}

static void test_urls(void **state)
{
    static const char *const wrong[] = {"dir:", "dir:relative", "dir:./a",
                                        "dirr:/a", "/a"};
    ldr_backend_t *b = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ldr_backend_params_t p = {.url = wrong[i], .clock = &ldr_clock_real};

        assert_int_equal(ldr_backend_open(&p, &b), LARDER_E_INVALID);
        assert_non_null(strstr(ldr_fail_text(), wrong[i]));
        assert_non_null(strstr(ldr_fail_text(), "dir:/"));
    }
    /* Opening does not touch the storage. */
    ldr_backend_params_t p = {.url = "dir:/no/such/place",
                              .clock = &ldr_clock_real};
    assert_int_equal(ldr_backend_open(&p, &b), LARDER_OK);
    assert_int_equal(b->ops->health(b, contract_deadline()), -ENODEV);
    assert_non_null(strstr(ldr_fail_text(), "is it mounted?"));
    assert_int_equal(contract_put(b, "a/b", 10, 0), -ENODEV);
    b->ops->destroy(b);
}

/* ---- the id ---- */

static void test_id(void **state)
{
    dir_rig_t *r = *state;
    char id[700];

    assert_int_equal(dir_rig_health(r), 0);
    assert_int_equal(contract_put(r->b, "a/b", 10, 0), 0);
    snprintf(id, sizeof(id), "%s/" LDR_OBJECTS_ID_NAME, r->path);
    assert_int_equal(unlink(id), 0);
    assert_int_equal(dir_rig_health(r), -ENODEV);
    assert_non_null(strstr(ldr_fail_text(), "no larder.tier in "));
    assert_non_null(strstr(ldr_fail_text(), "`larder tier create dir:/"));
    /* Not before it is a tier again, and then the same one. */
    assert_int_equal(contract_put(r->b, "a/c", 10, 0), -ENODEV);
    assert_int_equal(dir_rig_count(r->path, "c"), 0);
    dir_rig_write(r->path, LDR_OBJECTS_ID_NAME, "another tier");
    assert_int_equal(dir_rig_health(r), -ENODEV);
    assert_non_null(strstr(ldr_fail_text(), "another tier"));
    assert_int_equal(contract_put(r->b, "a/c", 10, 0), -ENODEV);
    dir_rig_write(r->path, LDR_OBJECTS_ID_NAME, "");
    assert_int_equal(dir_rig_health(r), -ENODEV);
    dir_rig_write(r->path, LDR_OBJECTS_ID_NAME, "the first tier");
    assert_int_equal(dir_rig_health(r), 0);
    assert_int_equal(contract_put(r->b, "a/c", 10, 0), 0);
    contract_check(r->b, "a/b", 0, 10);
}

/* Whoever makes a tier puts its id where there is none, and nobody after. */
static void test_make(void **state)
{
    dir_rig_t *r = *state;
    struct iovec iov = {(char *)"new", 3};
    uint64_t bytes = 0;
    char id[700];

    snprintf(id, sizeof(id), "%s/" LDR_OBJECTS_ID_NAME, r->path);
    assert_int_equal(unlink(id), 0);
    assert_int_equal(
        r->b->ops->size(r->b, LDR_OBJECTS_ID_NAME, &bytes, contract_deadline()),
        -ENOENT);
    assert_int_equal(r->b->ops->put(r->b, LDR_OBJECTS_ID_NAME, &iov, 1,
                                    LDR_OBJECT_NEW, contract_deadline()),
                     0);
    assert_int_equal(r->b->ops->put(r->b, LDR_OBJECTS_ID_NAME, &iov, 1,
                                    LDR_OBJECT_NEW, contract_deadline()),
                     -EEXIST);
    assert_int_equal(dir_rig_health(r), 0);
    assert_int_equal(contract_put(r->b, "a/b", 10, 0), 0);
}

/* Another directory at the path, as after an unmount. */
static void test_moved(void **state)
{
    dir_rig_t *r = *state;
    char away[600], command[1300];

    assert_int_equal(contract_put(r->b, "a/before", 10, 0), 0);
    snprintf(away, sizeof(away), "%s-away", r->path);
    assert_int_equal(rename(r->path, away), 0);
    assert_int_equal(mkdir(r->path, 0700), 0);
    /* Until somebody looks, it is what was opened that is written to. */
    assert_int_equal(contract_put(r->b, "a/between", 10, 0), 0);
    assert_int_equal(dir_rig_count(r->path, ""), 0);
    assert_int_equal(dir_rig_count(away, "between"), 1);
    assert_int_equal(dir_rig_health(r), -ENODEV);
    assert_int_equal(contract_put(r->b, "a/after", 10, 0), -ENODEV);
    assert_int_equal(contract_put(r->b, "after", 10, 0), -ENODEV);
    assert_int_equal(dir_rig_count(r->path, ""), 0);
    assert_int_equal(dir_rig_count(away, "after"), 0);
    /* And back. */
    assert_int_equal(rmdir(r->path), 0);
    assert_int_equal(rename(away, r->path), 0);
    assert_int_equal(dir_rig_health(r), 0);
    contract_check(r->b, "a/before", 0, 10);
    contract_check(r->b, "a/between", 0, 10);
    /* A copy of it is the same tier. */
    snprintf(command, sizeof(command), "cp -r '%s' '%s' && rm -r '%s'/*",
             r->path, away, r->path);
    assert_int_equal(system(command), 0);
    assert_int_equal(dir_rig_health(r), -ENODEV);
    assert_int_equal(rmdir(r->path), 0);
    assert_int_equal(rename(away, r->path), 0);
    contract_check(r->b, "a/between", 0, 10);
}

/* ---- what a failure leaves ---- */

static void test_faults(void **state)
{
    static const struct {
        ldr_fault_t point;
        int put, get; /* what they say */
    } cases[] = {
        {LDR_FAULT_dir_write, -EIO, 0},      {LDR_FAULT_dir_full, -ENOSPC, 0},
        {LDR_FAULT_dir_sync, -EIO, 0},       {LDR_FAULT_dir_rename, -EIO, 0},
        {LDR_FAULT_dir_read, 0, -EIO},       {LDR_FAULT_dir_short, 0, 0},
        {LDR_FAULT_dir_no_replace, 0, 0},    {LDR_FAULT_dir_stale, 0, 0},
        {LDR_FAULT_alloc, -ENOMEM, -ENOMEM},
    };
    dir_rig_t *r = *state;
    uint8_t *data = ldr_alloc_blocks(64 * LDR_BLOCK);
    struct iovec iov = {data, 64 * LDR_BLOCK};

    assert_int_equal(dir_rig_health(r), 0);
    assert_int_equal(contract_put(r->b, "f/there", iov.iov_len, 0), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (cases[i].point == LDR_FAULT_alloc) {
            r->b->ops->destroy(r->b); /* it has to find its root again */
            r->b = dir_rig_open(r);
        }
        contract_fill("f/new", 0, data, iov.iov_len);
        ldr_fault_arm(cases[i].point, 1, 1);
        int error = r->b->ops->put(r->b, "f/new", &iov, 1, LDR_OBJECT_NEW,
                                   contract_deadline());
        assert_int_equal(error, cases[i].put);
        if (error != 0) {
            assert_non_null(strstr(ldr_fail_text(), r->path));
            assert_int_equal(dir_rig_listed(r->b, "f/"), 1);
        } else {
            ldr_fault_disarm_all();
            contract_check(r->b, "f/new", 0, iov.iov_len);
            assert_int_equal(
                r->b->ops->remove(r->b, "f/new", contract_deadline()), 0);
        }
        ldr_fault_arm(cases[i].point, 1, 1);
        error =
            r->b->ops->get(r->b, "f/there", 0, &iov, 1, contract_deadline());
        assert_int_equal(error, cases[i].get);
        ldr_fault_disarm_all();
        assert_int_equal(dir_rig_count(r->path, LDR_DIR_TEMP), 0);
        contract_check(r->b, "f/there", 0, iov.iov_len);
    }
    ldr_free(data);
}

/* A directory whose sync fails: the object may be seen, but it was not said
 * that it is safe. A second try is. */
static void test_sync(void **state)
{
    dir_rig_t *r = *state;
    unsigned failed = 0;

    for (unsigned nth = 1;; nth++) {
        char name[32];

        snprintf(name, sizeof(name), "s%u/a/b", nth);
        ldr_fault_arm(LDR_FAULT_dir_sync, nth, 1);
        int error = contract_put(r->b, name, 5000, 0);
        bool fired = ldr_fault_fired(LDR_FAULT_dir_sync) > 0;
        ldr_fault_disarm_all();
        assert_int_equal(error, fired ? -EIO : 0);
        if (!fired) {
            break;
        }
        failed++;
        assert_int_equal(contract_put(r->b, name, 5000, 0), 0);
        contract_check(r->b, name, 0, 5000);
    }
    /* Two directories in their parents, the file, its name. */
    assert_int_equal(failed, 4);
    assert_int_equal(dir_rig_count(r->path, LDR_DIR_TEMP), 0);
}

/* All that is short, on the way there and back. */
static void test_short(void **state)
{
    dir_rig_t *r = *state;

    ldr_fault_arm(LDR_FAULT_dir_short, 1, 0);
    assert_int_equal(contract_put(r->b, "short/a", 300000, 0), 0);
    contract_check(r->b, "short/a", 0, 300000);
    assert_int_equal(contract_put(r->b, "short/b", 1 << 20, 0), 0);
    contract_check(r->b, "short/b", 8192, 300000);
    ldr_fault_disarm_all();
    contract_check(r->b, "short/a", 0, 300000);
    contract_check(r->b, "short/b", 0, 1 << 20);
}

static void test_late(void **state)
{
    dir_rig_t *r = *state;
    uint8_t data[16];
    struct iovec iov = {data, sizeof(data)};

    assert_int_equal(contract_put(r->b, "late/a", 16, 0), 0);
    assert_int_equal(r->b->ops->put(r->b, "late/b", &iov, 1, 0, 1), -ETIMEDOUT);
    assert_int_equal(r->b->ops->get(r->b, "late/a", 0, &iov, 1, 1), -ETIMEDOUT);
    assert_int_equal(
        r->b->ops->list(r->b, "late/", NULL, dir_rig_none, data, 1),
        -ETIMEDOUT);
    assert_int_equal(dir_rig_listed(r->b, "late/"), 1);
    assert_int_equal(dir_rig_count(r->path, LDR_DIR_TEMP), 0);
}

/* ---- what others leave there ---- */

static void test_temporary(void **state)
{
    dir_rig_t *r = *state;
    char folder[600], path[700];
    struct timeval old[2] = {{0}};

    assert_int_equal(contract_put(r->b, "t/a", 10, 0), 0);
    snprintf(folder, sizeof(folder), "%s/t", r->path);
    old[0].tv_sec = old[1].tv_sec = time(NULL) - 2 * LDR_DIR_TEMP_AGE_S;
    for (int i = 0; i < 100; i++) {
        char name[40];

        snprintf(name, sizeof(name), LDR_DIR_TEMP "%016d", i);
        dir_rig_write(folder, name, "half of");
        snprintf(path, sizeof(path), "%s/%s", folder, name);
        assert_int_equal(utimes(path, old), 0);
    }
    dir_rig_write(folder, LDR_DIR_TEMP "00000000deadbeef", "being written");
    dir_rig_write(folder, ".nfs0001", "somebody else's");
    snprintf(path, sizeof(path), "%s/.nfs0001", folder);
    assert_int_equal(utimes(path, old), 0);
    /* Some at a time; none of them is ever shown. */
    assert_int_equal(dir_rig_listed(r->b, "t/"), 1);
    assert_int_equal(dir_rig_count(folder, LDR_DIR_TEMP), 100 - 64 + 1);
    assert_int_equal(dir_rig_listed(r->b, "t/"), 1);
    assert_int_equal(dir_rig_listed(r->b, ""), 2);
    assert_int_equal(dir_rig_count(folder, LDR_DIR_TEMP), 1);
    assert_int_equal(dir_rig_count(folder, ".nfs"), 1);
}

/* Links that lead out, pipes, directories in the place of objects, names that
 * are none. */
static void test_hostile(void **state)
{
    dir_rig_t *r = *state;
    char path[700], out[] = "/tmp/larder-outside-XXXXXX";
    uint64_t bytes;

    assert_non_null(mkdtemp(out));
    dir_rig_write(out, "secret", "not yours");
    assert_int_equal(contract_put(r->b, "h/a", 10, 0), 0);
    snprintf(path, sizeof(path), "%s/h/link", r->path);
    assert_int_equal(symlink(out, path), 0);
    snprintf(path, sizeof(path), "%s/h/file", r->path);
    assert_int_equal(symlink("link/secret", path), 0);
    snprintf(path, sizeof(path), "%s/h/pipe", r->path);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(path, sizeof(path), "%s/h/folder", r->path);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/h/Upper", r->path);
    assert_int_equal(mkdir(path, 0700), 0);
    dir_rig_write(path, "a", "x");
    static const char *const names[] = {"h/link", "h/link/secret", "h/file",
                                        "h/pipe", "h/folder",      "h/a/b"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct iovec iov = {path, 1};

        assert_true(r->b->ops->get(r->b, names[i], 0, &iov, 1,
                                   contract_deadline()) < 0);
    }
    assert_true(contract_put(r->b, "h/link/new", 10, 0) < 0);
    assert_int_equal(dir_rig_count(out, "new"), 0);
    assert_true(r->b->ops->remove(r->b, "h/link/secret", contract_deadline()) <
                0);
    assert_int_equal(dir_rig_count(out, "secret"), 1);
    assert_int_equal(
        r->b->ops->size(r->b, "h/folder", &bytes, contract_deadline()),
        -ENOENT);
    assert_int_equal(dir_rig_listed(r->b, "h/"), 1);
    snprintf(path, sizeof(path), "rm -r %s", out);
    assert_int_equal(system(path), 0);
}

/* Whoever may use the directory may use what is in it, others never. */
static void test_modes(void **state)
{
    static const struct {
        mode_t dir, file, folder;
    } cases[] = {{0700, 0600, 0700},
                 {0755, 0640, 0750},
                 {0777, 0660, 0770},
                 {0770, 0660, 0770}};
    dir_rig_t *r = *state;
    struct stat st;
    char path[700], name[32];
    mode_t mask = umask(077);

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(chmod(r->path, cases[i].dir), 0);
        r->b->ops->destroy(r->b);
        r->b = dir_rig_open(r);
        snprintf(name, sizeof(name), "m%u/a", i);
        assert_int_equal(contract_put(r->b, name, 10, 0), 0);
        snprintf(path, sizeof(path), "%s/%s", r->path, name);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, cases[i].file);
        *strrchr(path, '/') = '\0';
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, cases[i].folder);
    }
    umask(mask);
}

/* A file that is open for reading is let go of when it has gone. */
static void test_open_files(void **state)
{
    dir_rig_t *r = *state;
    char name[40];
    unsigned before = dir_rig_count("/proc/self/fd", "");

    for (unsigned i = 0; i < 2 * LDR_DIR_FILES; i++) {
        snprintf(name, sizeof(name), "o/%u", i);
        assert_int_equal(contract_put(r->b, name, 1 << 20, 0), 0);
        contract_check(r->b, name, 4096, 8192);
    }
    unsigned open = dir_rig_count("/proc/self/fd", "") - before;
    assert_in_range(open, LDR_DIR_FILES, LDR_DIR_FILES + 2);
    /* Somebody else removes one that we have open. */
    ldr_backend_t *other = dir_rig_open(r);
    assert_int_equal(other->ops->remove(other, name, contract_deadline()), 0);
    contract_check(r->b, name, 0, 4096);
    assert_int_equal(r->b->ops->remove(r->b, name, contract_deadline()),
                     -ENOENT);
    uint8_t byte;
    struct iovec iov = {&byte, 1};
    assert_int_equal(
        r->b->ops->get(r->b, name, 0, &iov, 1, contract_deadline()), -ENOENT);
    other->ops->destroy(other);
    for (unsigned i = 0; i + 1 < 2 * LDR_DIR_FILES; i++) {
        snprintf(name, sizeof(name), "o/%u", i);
        assert_int_equal(r->b->ops->remove(r->b, name, contract_deadline()), 0);
    }
    assert_in_range(dir_rig_count("/proc/self/fd", "") - before, 0, 2);
}

/* Folders are synced into their parents once, however many there are. */
static void test_folders_stay_durable(void **state)
{
    dir_rig_t *r = *state;
    char text[] = "x", name[80];
    struct iovec iov = {text, 1};

    ldr_fault_arm(LDR_FAULT_dir_sync, UINT64_MAX, 1);
    for (unsigned round = 0; round < 3; round++) {
        uint64_t before = ldr_fault_passes(LDR_FAULT_dir_sync);

        for (unsigned i = 128; i < 256; i++) {
            snprintf(name, sizeof(name),
                     "0123456789abcdef0123456789abcdef/o/%02x/%u", i, round);
            assert_int_equal(
                r->b->ops->put(r->b, name, &iov, 1, 0, contract_deadline()), 0);
        }
        uint64_t syncs = ldr_fault_passes(LDR_FAULT_dir_sync) - before;
        assert_int_equal(syncs, 2 * 128 + (round == 0 ? 128 + 2 : 0));
    }
    ldr_fault_disarm_all();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(contract),   TEST(urls),
        TEST(id),         TEST(make),
        TEST(moved),      TEST(faults),
        TEST(sync),       TEST(short),
        TEST(late),       TEST(hostile),
        TEST(temporary),  TEST(modes),
        TEST(open_files), TEST(folders_stay_durable),
    };

    return cmocka_run_group_tests_name("shared/dir", tests, NULL, NULL);
}
