/*
 * dir:/PATH on mounts that fill up, turn read-only, go away and come back, and
 * on a file system in a process that is killed under load. The program mounts
 * in a name space of its own; where it may not, its tests are skipped.
 */
#include "tier/shared/dir_rig.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <sys/wait.h>

#include "base/io.h"
#include "base/mem.h"
#include "tier/shared/dir_int.h"

static const char *why_not; /* NULL: mounts can be made */

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

/* As root, or as root of a user name space. */
static bool own_mounts(void)
{
    char map[64];
    unsigned uid = geteuid(), gid = getegid();

    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
            return false;
        }
        snprintf(map, sizeof(map), "0 %u 1", uid);
        if (!write_file("/proc/self/uid_map", map)) {
            return false;
        }
        snprintf(map, sizeof(map), "0 %u 1", gid);
        if (write_file("/proc/self/setgroups", "deny")) {
            write_file("/proc/self/gid_map", map);
        }
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static void need_mounts(void)
{
    if (why_not != NULL) {
        print_message("SKIPPED: no mounts of our own here: %s\n", why_not);
        skip();
    }
}

static int setup(void **state)
{
    static dir_rig_t rig;

    dir_rig_make(&rig, "dir");
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    dir_rig_t *r = *state;

    ldr_fault_disarm_all();
    while (umount2(r->path, MNT_DETACH) == 0) {
    }
    dir_rig_end(r);
    return 0;
}

static void mount_memory(const char *path, const char *options)
{
    assert_int_equal(mount("larder-test", path, "tmpfs", 0, options), 0);
}

/* ---- full, read-only, gone ---- */

static void test_full(void **state)
{
    dir_rig_t *r = *state;
    char name[32];
    unsigned count = 0;
    int error;

    need_mounts();
    mount_memory(r->path, "size=4m");
    dir_rig_write(r->path, LDR_OBJECTS_ID_NAME, "the first tier");
    do {
        snprintf(name, sizeof(name), "f/%u", count);
        error = contract_put(r->b, name, (1 << 20) - 4096, 0);
        count += error == 0;
        assert_in_range(count, 0, 4);
    } while (error == 0);
    assert_int_equal(error, -ENOSPC);
    assert_non_null(strstr(ldr_fail_text(), "free some space"));
    assert_true(count > 1);
    /* It can be read and looked after, and nothing half is left. */
    assert_int_equal(dir_rig_health(r), 0);
    assert_int_equal(dir_rig_listed(r->b, "f/"), count);
    assert_int_equal(dir_rig_count(r->path, LDR_DIR_TEMP), 0);
    contract_check(r->b, "f/0", 0, (1 << 20) - 4096);
    assert_int_equal(r->b->ops->remove(r->b, "f/0", contract_deadline()), 0);
    assert_int_equal(contract_put(r->b, "f/again", 500000, 0), 0);
    contract_check(r->b, "f/again", 0, 500000);
}

static void test_readonly(void **state)
{
    dir_rig_t *r = *state;

    need_mounts();
    mount_memory(r->path, "size=8m");
    dir_rig_write(r->path, LDR_OBJECTS_ID_NAME, "the first tier");
    assert_int_equal(contract_put(r->b, "a/b", 100000, 0), 0);
    assert_int_equal(
        mount(NULL, r->path, NULL, MS_REMOUNT | MS_RDONLY, "size=8m"), 0);
    assert_int_equal(contract_put(r->b, "a/c", 100000, 0), -EROFS);
    assert_non_null(strstr(ldr_fail_text(), "mount it for writing"));
    assert_int_equal(contract_put(r->b, "new/c", 100000, 0), -EROFS);
    assert_int_equal(r->b->ops->remove(r->b, "a/b", contract_deadline()),
                     -EROFS);
    assert_int_equal(dir_rig_health(r), 0);
    contract_check(r->b, "a/b", 0, 100000);
    assert_int_equal(dir_rig_listed(r->b, ""), 2);
    assert_int_equal(mount(NULL, r->path, NULL, MS_REMOUNT, "size=8m"), 0);
    assert_int_equal(contract_put(r->b, "a/c", 100000, 0), 0);
}

/* Nothing is written beneath the mount point, whatever the order of things. */
static void test_unmounted(void **state)
{
    dir_rig_t *r = *state;
    char kept[600], id[700];

    need_mounts();
    /* Beneath: not a tier. Mounted on it: another directory, which is. */
    snprintf(id, sizeof(id), "%s/" LDR_OBJECTS_ID_NAME, r->path);
    assert_int_equal(unlink(id), 0);
    assert_int_equal(dir_rig_health(r), -ENODEV);
    assert_int_equal(contract_put(r->b, "a/early", 5000, 0), -ENODEV);
    snprintf(kept, sizeof(kept), "%s-kept", r->path);
    assert_int_equal(mkdir(kept, 0700), 0);
    dir_rig_write(kept, LDR_OBJECTS_ID_NAME, "a mounted tier");
    assert_int_equal(mount(kept, r->path, NULL, MS_BIND, NULL), 0);
    assert_int_equal(contract_put(r->b, "a/first", 5000, 0), 0);
    for (int i = 0; i < 3; i++) {
        /* It goes while it is in use. */
        assert_int_equal(umount2(r->path, MNT_DETACH), 0);
        assert_int_equal(contract_put(r->b, "a/meanwhile", 5000, 0), 0);
        assert_int_equal(dir_rig_health(r), -ENODEV);
        assert_non_null(strstr(ldr_fail_text(), "is it mounted?"));
        assert_int_equal(contract_put(r->b, "a/after", 5000, 0), -ENODEV);
        assert_int_equal(dir_rig_count(r->path, ""), 0);
        assert_int_equal(dir_rig_count(kept, "after"), 0);
        assert_int_equal(mount(kept, r->path, NULL, MS_BIND, NULL), 0);
        assert_int_equal(dir_rig_health(r), 0);
        contract_check(r->b, "a/first", 0, 5000);
        contract_check(r->b, "a/meanwhile", 0, 5000);
    }
    /* Another file system at the same place is not this tier. */
    mount_memory(r->path, "size=8m");
    dir_rig_write(r->path, LDR_OBJECTS_ID_NAME, "some other tier");
    assert_int_equal(dir_rig_health(r), -ENODEV);
    assert_int_equal(contract_put(r->b, "a/after", 5000, 0), -ENODEV);
    assert_int_equal(dir_rig_count(r->path, "after"), 0);
    assert_int_equal(umount2(r->path, MNT_DETACH), 0);
    assert_int_equal(dir_rig_health(r), 0);
    contract_check(r->b, "a/first", 0, 5000);
    assert_int_equal(umount2(r->path, MNT_DETACH), 0);
    dir_rig_write(r->path, LDR_OBJECTS_ID_NAME, "x");
    snprintf(id, sizeof(id), "rm -r '%s'", kept);
    assert_int_equal(system(id), 0);
}

/* Without O_DIRECT, or with one that wants other addresses. */
static void test_memory(void **state)
{
    dir_rig_t *r = *state;
    contract_t c = {.open = dir_rig_open, .arg = r, .many = 300, .kills = 5};

    need_mounts();
    mount_memory(r->path, "size=200m");
    dir_rig_write(r->path, LDR_OBJECTS_ID_NAME, "the first tier");
    contract_run(&c);
}

/* ---- a file system in a process ---- */

typedef struct fuse {
    char source[600];
    const char *mounted;
    pid_t pid;
} fuse_t;

/* Mounts the source there and waits until it is. */
static bool fuse_mount(fuse_t *f)
{
    struct statfs fs;

    f->pid = fork();
    assert_true(f->pid >= 0);
    if (f->pid == 0) {
        int null = open("/dev/null", O_WRONLY);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(null, 1);
        dup2(null, 2);
        execlp("bindfs", "bindfs", "-f", "--no-allow-other", f->source,
               f->mounted, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 20000; i++) {
        if (statfs(f->mounted, &fs) == 0 && fs.f_type == 0x65735546) {
            return true;
        }
        if (waitpid(f->pid, NULL, WNOHANG) == f->pid) {
            f->pid = 0;
            return false;
        }
        real_pause();
    }
    return false;
}

/* A tier behind a process, at the rig's path. */
static void fuse_start(fuse_t *f, const dir_rig_t *r)
{
    char path[700];

    *f = (fuse_t){.mounted = r->path};
    snprintf(path, sizeof(path), "%s/" LDR_OBJECTS_ID_NAME, r->path);
    assert_int_equal(unlink(path), 0); /* it wants an empty directory */
    snprintf(f->source, sizeof(f->source), "%s-source", r->path);
    assert_int_equal(mkdir(f->source, 0700), 0);
    dir_rig_write(f->source, LDR_OBJECTS_ID_NAME, "behind a process");
    if (!fuse_mount(f)) {
        print_message("SKIPPED: no FUSE here, or no bindfs\n");
        snprintf(path, sizeof(path), "rm -r '%s'", f->source);
        assert_int_equal(system(path), 0);
        skip();
    }
}

static void fuse_kill(fuse_t *f, int signal)
{
    if (f->pid > 0) {
        kill(f->pid, signal);
        waitpid(f->pid, NULL, 0);
        f->pid = 0;
    }
}

enum { WORKERS = 4, KILLS = 4 };

typedef struct worker {
    dir_rig_t *rig;
    unsigned number;
    atomic_bool *stop;
    atomic_uint *moved; /* puts and gets that went well, of all */
    unsigned put;       /* objects 0 to put - 1 were put */
    unsigned wrong;
    unsigned failed;
} worker_t;

static void *worker_main(void *arg)
{
    const size_t bytes = 300000;
    worker_t *w = arg;
    ldr_backend_t *b = w->rig->b;
    uint8_t *data = ldr_alloc_blocks(bytes), *want = ldr_alloc_blocks(bytes);
    struct iovec iov = {data, bytes};
    char name[40];

    while (!atomic_load(w->stop) && data != NULL && want != NULL) {
        snprintf(name, sizeof(name), "w%u/%05u", w->number, w->put);
        contract_fill(name, 0, data, bytes);
        int error = b->ops->put(b, name, &iov, 1, 0, contract_deadline());
        if (error == 0) {
            w->put++;
            memset(data, 0, bytes);
            error = b->ops->get(b, name, 0, &iov, 1, contract_deadline());
        }
        if (error != 0) {
            w->failed++;
            real_pause();
            continue;
        }
        contract_fill(name, 0, want, bytes);
        w->wrong += memcmp(data, want, bytes) != 0;
        atomic_fetch_add(w->moved, 1);
    }
    ldr_free(data);
    ldr_free(want);
    return NULL;
}

/* Until so many more have gone well. */
static bool wait_for_moves(atomic_uint *moved, unsigned more)
{
    unsigned from = atomic_load(moved);

    for (int i = 0; i < 60000 && atomic_load(moved) - from < more; i++) {
        real_pause();
    }
    return atomic_load(moved) - from >= more;
}

static void kill_rounds(dir_rig_t *r, fuse_t *f, atomic_uint *moved)
{
    for (int i = 0; i < KILLS; i++) {
        assert_true(wait_for_moves(moved, 20));
        fuse_kill(f, SIGKILL);
        /* Every call says so at once; nothing hangs, nothing is written into
         * the directory beneath. */
        assert_true(dir_rig_health(r) < 0);
        assert_true(contract_put(r->b, "a/dead", 5000, 0) < 0);
        assert_int_equal(umount2(r->path, MNT_DETACH), 0);
        assert_int_equal(dir_rig_health(r), -ENODEV);
        assert_int_equal(dir_rig_count(r->path, ""), 0);
        assert_true(fuse_mount(f));
        assert_int_equal(dir_rig_health(r), 0);
    }
}

static void test_fuse_killed(void **state)
{
    dir_rig_t *r = *state;
    fuse_t f;
    worker_t workers[WORKERS] = {0};
    pthread_t threads[WORKERS];
    atomic_bool stop = false;
    atomic_uint moved = 0;
    char text[700], name[40];

    need_mounts();
    fuse_start(&f, r);
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i] =
            (worker_t){.rig = r, .number = i, .stop = &stop, .moved = &moved};
        assert_int_equal(
            pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
    }
    kill_rounds(r, &f, &moved);
    assert_true(wait_for_moves(&moved, 20));
    atomic_store(&stop, true);
    for (unsigned i = 0; i < WORKERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
        print_message("worker %u: %u put, %u failed\n", i, workers[i].put,
                      workers[i].failed);
    }
    /* All that was answered is there, and nothing that is there is half. */
    for (unsigned i = 0; i < WORKERS; i++) {
        for (unsigned k = 0; k < workers[i].put; k++) {
            snprintf(name, sizeof(name), "w%u/%05u", i, k);
            contract_check(r->b, name, 0, 300000);
        }
        snprintf(text, sizeof(text), "w%u/", i);
        assert_in_range(dir_rig_listed(r->b, text), workers[i].put,
                        workers[i].put + 1);
    }
    assert_int_equal(umount2(r->path, MNT_DETACH), 0);
    fuse_kill(&f, SIGTERM);
    snprintf(text, sizeof(text), "rm -r '%s'", f.source);
    assert_int_equal(system(text), 0);
}

/* The whole contract on FUSE, whose renames and links are the process's. */
static void test_fuse_contract(void **state)
{
    dir_rig_t *r = *state;
    fuse_t f;
    contract_t c = {.open = dir_rig_open,
                    .arg = r,
                    .many = 200,
                    .kills = 3,
                    .blinks = true}; /* libfuse goes by paths */
    char text[700];

    need_mounts();
    fuse_start(&f, r);
    contract_run(&c);
    assert_int_equal(umount2(r->path, MNT_DETACH), 0);
    fuse_kill(&f, SIGTERM);
    snprintf(text, sizeof(text), "rm -r '%s'", f.source);
    assert_int_equal(system(text), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(full),   TEST(readonly),      TEST(unmounted),
        TEST(memory), TEST(fuse_contract), TEST(fuse_killed),
    };

    if (!own_mounts()) {
        why_not = strerror(errno);
    }
    return cmocka_run_group_tests_name("shared/mounts", tests, NULL, NULL);
}
