/*
 * A disk that is really full: a small file system of its own, smaller than the
 * configured tier, with another file that takes and gives back space.
 *
 * It lives in a private mount namespace and goes with the process. Needs the
 * right to mount (an ext4 image by a loop device, or else tmpfs, which
 * LARDER_TMPFS=1 asks for); where that is missing the cases are skipped, and
 * say so.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/real.h"

#define MIB ((uint64_t)1 << 20)
#define FS_MIB 48u
#define BYTES_MIN 50000u
#define BYTES_MAX 200000u
#define WAIT_MS 20000u
#define WATCHDOG_S (REAL_SANITIZED ? 300u : 100u)

/* The tier is larger than the file system. */
#define OPTIONS "dram=8M&ssd=200M&segment=4M&retry_ms=10&sync_ms=20"

typedef struct fixture {
    char base[256], fs[300], dir[320], ballast[320], other[300], url[800];
    const char *kind; /* NULL: no file system could be mounted */
    larder_t *lar;
    larder_space_t *space;
    uint8_t value[BYTES_MAX];
    uint64_t next_id;
} fixture_t;

/* ---- the file system ---- */

static bool run_command(const char *format, const char *a, const char *b)
{
    char command[1024];

    snprintf(command, sizeof(command), format, a, b);
    return system(command) == 0;
}

static const char *mount_small(fixture_t *f)
{
    char image[300], size[32];

    snprintf(f->fs, sizeof(f->fs), "%s/fs", f->base);
    snprintf(image, sizeof(image), "%s/image", f->base);
    if (mkdir(f->fs, 0700) != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        return NULL;
    }
    int fd = open(image, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    bool made = fd >= 0 && ftruncate(fd, (off_t)(FS_MIB * MIB)) == 0;
    if (fd >= 0) {
        close(fd);
    }
    if (made && real_number("LARDER_TMPFS", 0) == 0 &&
        run_command("PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -F -m 0 '%s' "
                    ">/dev/null 2>&1%s",
                    image, "") &&
        run_command("mount -o loop '%s' '%s' 2>/dev/null", image, f->fs)) {
        return "ext4";
    }
    snprintf(size, sizeof(size), "size=%um", FS_MIB);
    return mount("none", f->fs, "tmpfs", 0, size) == 0 ? "tmpfs" : NULL;
}

static uint64_t fs_free(const fixture_t *f)
{
    struct statvfs v;

    assert_int_equal(statvfs(f->fs, &v), 0);
    return (uint64_t)v.f_bavail * v.f_frsize;
}

/* Another's file takes all but so many bytes. */
static void fill_fs(fixture_t *f, uint64_t leave)
{
    uint64_t left = fs_free(f);
    int fd = open(f->ballast, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat st;

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    for (uint64_t step = MIB; step >= 4096; step /= 2) {
        while (left > leave && left - leave >= step &&
               fallocate(fd, 0, st.st_size, (off_t)step) == 0) {
            st.st_size += (off_t)step;
            left = fs_free(f);
        }
    }
    close(fd);
}

static void give_back(fixture_t *f)
{
    assert_int_equal(unlink(f->ballast), 0);
}

/* ---- steps ---- */

static void open_node(fixture_t *f)
{
    if (real_open(f->url, &f->lar) != LARDER_OK) {
        fail_msg("cannot open: %s", larder_last_error());
    }
    assert_int_equal(real_space(f->lar, "enospc", &f->space), LARDER_OK);
}

static void close_node(fixture_t *f)
{
    larder_status_t st = larder_close(&f->lar, 0);

    assert_int_equal(st, LARDER_OK);
    larder_space_close(&f->space);
}

static larder_disk_stats_t disk(fixture_t *f)
{
    larder_stats_t stats;

    assert_true(real_stats(f->lar, &stats));
    assert_int_equal(stats.disks, 1);
    return stats.disk[0];
}

/* Puts so many new ones. Each is served at once, whatever the disk does. */
static void put_some(fixture_t *f, unsigned count)
{
    larder_item_t item;
    uint64_t generation;

    for (unsigned i = 0; i < count; i++) {
        uint64_t id = f->next_id++;
        size_t bytes = real_bytes(id, BYTES_MIN, BYTES_MAX);

        assert_int_equal(real_put(f->space, id, 1, f->value, bytes), LARDER_OK);
        assert_int_equal(
            real_run(f->space, LARDER_OP_GET, id, f->value, BYTES_MAX, &item),
            LARDER_OK);
        assert_true(real_check(f->value, item.length, id, &generation));
    }
}

/* Gets all there ever were; gives how many are left. */
static unsigned get_all(fixture_t *f)
{
    unsigned hits = 0;
    larder_item_t item;
    uint64_t generation;

    for (uint64_t id = 0; id < f->next_id; id++) {
        larder_status_t st =
            real_run(f->space, LARDER_OP_GET, id, f->value, BYTES_MAX, &item);

        if (st == LARDER_OK) {
            assert_int_equal(item.length, real_bytes(id, BYTES_MIN, BYTES_MAX));
            assert_true(real_check(f->value, item.length, id, &generation));
            hits++;
        } else {
            assert_int_equal(st, LARDER_MISS);
            assert_int_not_equal(item.cause, LARDER_CAUSE_CORRUPT);
        }
    }
    return hits;
}

/* Puts and flushes until the disk is as it should be. There is no condition to
 * wait for but the figures. */
static void work_until(fixture_t *f, bool (*done)(fixture_t *f),
                       const char *what)
{
    uint64_t late = real_now_ms() + WAIT_MS;

    while (!done(f)) {
        if (real_now_ms() >= late) {
            larder_disk_stats_t d = disk(f);
            fail_msg("not %s: on %u, %llu segments, %llu free, '%s'", what,
                     d.on, (unsigned long long)d.segments,
                     (unsigned long long)fs_free(f), d.reason);
        }
        put_some(f, 4);
        larder_status_t st = larder_flush(f->lar, LARDER_TIER_SSD, 0);
        assert_true(st == LARDER_OK || st == LARDER_E_DROPPED ||
                    st == LARDER_E_TIER_OFF);
        real_pause();
    }
}

static bool is_on(fixture_t *f)
{
    larder_disk_stats_t d = disk(f);

    return d.on && d.segments > 0;
}

static bool is_off(fixture_t *f)
{
    return !disk(f).on;
}

static bool is_smaller(fixture_t *f)
{
    larder_disk_stats_t d = disk(f);

    return d.on && strstr(d.reason, "disk full") != NULL;
}

static uint64_t segments_before;

static bool is_larger(fixture_t *f)
{
    return disk(f).segments >= segments_before + 3;
}

static void work_on(fixture_t *f)
{
    uint64_t first = f->next_id;

    put_some(f, 10);
    larder_status_t st = larder_flush(f->lar, LARDER_TIER_SSD, 0);
    if (st == LARDER_E_DROPPED) { /* told once, of what was before */
        put_some(f, 1);
        st = larder_flush(f->lar, LARDER_TIER_SSD, 0);
    }
    assert_int_equal(st, LARDER_OK);
    assert_true(f->next_id > first);
}

/* ---- cases ---- */

/* The tier runs into the end of the file system, goes on with what it has, and
 * grows when there is more. */
static void test_shrinks(void **state)
{
    fixture_t *f = *state;

    if (f->kind == NULL) {
        skip();
    }
    alarm(WATCHDOG_S);
    fill_fs(f, 22 * MIB);
    open_node(f);
    work_until(f, is_smaller, "smaller");
    segments_before = disk(f).segments;
    assert_true(segments_before >= 2);
    assert_true(disk(f).bytes_used < disk(f).bytes_max);
    /* Round and round in the little there is. */
    for (unsigned i = 0; i < 10; i++) {
        put_some(f, 20);
        larder_status_t st = larder_flush(f->lar, LARDER_TIER_SSD, 0);
        assert_true(st == LARDER_OK || st == LARDER_E_DROPPED);
    }
    work_on(f);
    assert_true(get_all(f) > 0);
    assert_true(disk(f).on);
    assert_int_equal(disk(f).segments_lost, 0);
    give_back(f);
    work_until(f, is_larger, "larger");
    work_on(f);
    get_all(f);
    close_node(f);
    open_node(f); /* what is there is what was there */
    assert_true(get_all(f) > 20);
    close_node(f);
    alarm(0);
}

/* No space for a single file when it opens. */
static void test_starts_off(void **state)
{
    fixture_t *f = *state;

    if (f->kind == NULL) {
        skip();
    }
    alarm(WATCHDOG_S);
    fill_fs(f, 0);
    open_node(f);
    work_until(f, is_off, "off");
    assert_true(disk(f).reason[0] != '\0');
    put_some(f, 20);
    assert_true(get_all(f) > 0);
    assert_int_equal(larder_flush(f->lar, LARDER_TIER_SSD, 0),
                     LARDER_E_TIER_OFF);
    give_back(f);
    work_until(f, is_on, "on");
    work_on(f);
    assert_true(get_all(f) > 0);
    close_node(f);
    open_node(f);
    assert_true(get_all(f) > 0);
    close_node(f);
    alarm(0);
}

/* Filled up by another while it is in use: what is there stays to be had. */
static void test_filled_meanwhile(void **state)
{
    fixture_t *f = *state;

    if (f->kind == NULL) {
        skip();
    }
    alarm(WATCHDOG_S);
    open_node(f);
    work_until(f, is_on, "on");
    work_on(f);
    fill_fs(f, 0);
    for (unsigned i = 0; i < 20; i++) {
        put_some(f, 20);
        larder_status_t st = larder_flush(f->lar, LARDER_TIER_SSD, 0);
        assert_true(st == LARDER_OK || st == LARDER_E_DROPPED ||
                    st == LARDER_E_TIER_OFF);
    }
    assert_true(disk(f).reason[0] != '\0');
    assert_true(get_all(f) > 0);
    segments_before = disk(f).segments;
    give_back(f);
    work_until(f, is_larger, "larger");
    work_on(f);
    assert_true(get_all(f) > 0);
    close_node(f);
    alarm(0);
}

static bool is_first_on(fixture_t *f)
{
    larder_stats_t stats;

    assert_true(real_stats(f->lar, &stats));
    assert_true(stats.disk[1].on);
    return stats.disk[0].on;
}

/* Two disks, one of them full: it is off by itself, and what it could not
 * record it records before it comes on. */
static void test_one_of_two(void **state)
{
    fixture_t *f = *state;
    larder_space_t *doomed = NULL;
    larder_item_t item;

    if (f->kind == NULL) {
        skip();
    }
    alarm(WATCHDOG_S);
    snprintf(f->url, sizeof(f->url), "embed:%s,%s?" OPTIONS, f->dir, f->other);
    fill_fs(f, 0);
    open_node(f);
    assert_false(is_first_on(f));
    assert_int_equal(real_space(f->lar, "doomed", &doomed), LARDER_OK);
    assert_int_equal(real_put(doomed, 7, 1, f->value, BYTES_MIN), LARDER_OK);
    for (unsigned i = 0; i < 10; i++) {
        put_some(f, 10);
        assert_int_equal(larder_flush(f->lar, LARDER_TIER_SSD, 0), LARDER_OK);
    }
    assert_int_equal(get_all(f), f->next_id); /* more than DRAM holds */
    assert_int_equal(larder_space_reset(doomed, 0), LARDER_E_IO);
    assert_true(larder_last_error()[0] != '\0');
    give_back(f);
    for (uint64_t late = real_now_ms() + WAIT_MS; !is_first_on(f);) {
        assert_true(real_now_ms() < late);
        real_pause();
    }
    work_on(f);
    assert_int_equal(larder_space_reset(doomed, 0), LARDER_OK);
    larder_space_close(&doomed);
    close_node(f);
    open_node(f);
    assert_int_equal(get_all(f), f->next_id);
    assert_int_equal(real_space(f->lar, "doomed", &doomed), LARDER_OK);
    assert_int_equal(
        real_run(doomed, LARDER_OP_GET, 7, f->value, BYTES_MAX, &item),
        LARDER_MISS);
    larder_space_close(&doomed);
    close_node(f);
    alarm(0);
}

/* Opened again on a full disk: nothing of it is lost. */
static void test_reopened_full(void **state)
{
    fixture_t *f = *state;

    if (f->kind == NULL) {
        skip();
    }
    alarm(WATCHDOG_S);
    open_node(f);
    work_until(f, is_on, "on");
    f->next_id = 1000000; /* only what follows is counted */
    uint64_t first = f->next_id;
    work_on(f);
    close_node(f);
    fill_fs(f, 0);
    open_node(f);
    for (uint64_t id = first; id < first + 10; id++) {
        larder_item_t item;
        uint64_t generation;

        assert_int_equal(
            real_run(f->space, LARDER_OP_GET, id, f->value, BYTES_MAX, &item),
            LARDER_OK);
        assert_true(real_check(f->value, item.length, id, &generation));
    }
    close_node(f);
    give_back(f);
    alarm(0);
}

/* ---- */

static int begin(void **state)
{
    fixture_t *f = *state;

    f->next_id = 0;
    snprintf(f->url, sizeof(f->url), "embed:%s?" OPTIONS, f->dir);
    if (f->kind != NULL) {
        real_dir_empty(f->dir);
        unlink(f->ballast);
    }
    return 0;
}

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    if (f == NULL || !real_dir_make(f->base, sizeof(f->base), "enospc")) {
        return -1;
    }
    f->kind = mount_small(f);
    if (f->kind == NULL) {
        print_message("SKIPPED: no right to mount a file system here (%s): "
                      "ENOSPC on a real disk is not tested\n",
                      strerror(errno));
    } else {
        print_message("on %s of %u MiB\n", f->kind, FS_MIB);
    }
    snprintf(f->dir, sizeof(f->dir), "%s/kv", f->fs);
    snprintf(f->ballast, sizeof(f->ballast), "%s/ballast", f->fs);
    snprintf(f->other, sizeof(f->other), "%s/other", f->base);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    if (f->kind != NULL) {
        umount2(f->fs, MNT_DETACH);
    }
    rmdir(f->fs);
    real_dir_remove(f->other);
    real_dir_remove(f->base);
    free(f);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_shrinks, begin),
        cmocka_unit_test_setup(test_starts_off, begin),
        cmocka_unit_test_setup(test_filled_meanwhile, begin),
        cmocka_unit_test_setup(test_one_of_two, begin),
        cmocka_unit_test_setup(test_reopened_full, begin),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
