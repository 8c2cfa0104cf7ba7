/*
 * Files and directories, as both real engines have them: the functions of
 * io_posix.c, through the plain engine.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/mem.h"

static char dir[512];

static const char *path_of(const char *name)
{
    static char path[640];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static int open_new(ldr_io_t *io, const char *name, uint64_t bytes)
{
    int file = io->ops->open(io, path_of(name), LDR_IO_CREATE | LDR_IO_DIRECT);
    assert_true(file >= 0);
    assert_int_equal(io->ops->allocate(io, file, bytes), 0);
    return file;
}

static void test_lock(void **state)
{
    ldr_io_t *io = *state;
    int first = open_new(io, "lock", LDR_BLOCK);
    int second = io->ops->open(io, path_of("lock"), 0);
    int status, up[2], down[2];
    char byte = 0;

    assert_true(second >= 0);
    ldr_fault_arm(LDR_FAULT_io_lock, 1, 1);
    assert_int_equal(io->ops->lock(io, first), -ENOLCK);
    assert_int_equal(io->ops->lock(io, first), 0);
    assert_int_equal(io->ops->lock(io, first), 0);
    assert_int_equal(io->ops->lock(io, second), -EWOULDBLOCK);

    /* Also against another process; and a child that lives on does not keep
     * the lock of a file that its parent closed. */
    assert_int_equal(pipe(up), 0);
    assert_int_equal(pipe(down), 0);
    pid_t child = fork();
    if (child == 0) {
        int mine = open(path_of("lock"), O_RDWR);
        byte = io->ops->lock(io, mine) == -EWOULDBLOCK ? 'y' : 'n';
        close(down[1]);
        bool told = write(up[1], &byte, 1) == 1;
        _exit(told && read(down[0], &byte, 1) == 0 ? 0 : 1);
    }
    assert_int_equal(read(up[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    io->ops->close(io, first);
    assert_int_equal(io->ops->lock(io, second), 0);
    io->ops->close(io, second);
    close(down[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(down[0]);
    close(up[0]);
    close(up[1]);
}

static void test_allocate(void **state)
{
    ldr_io_t *io = *state;
    int file = open_new(io, "allocate", 0);
    uint8_t *data = ldr_alloc_blocks(LDR_BLOCK);
    uint64_t bytes = 1;
    struct stat st;

    assert_int_equal(io->ops->size(io, file, &bytes), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(io->ops->allocate(io, file, 1 << 20), 0);
    assert_int_equal(io->ops->size(io, file, &bytes), 0);
    assert_int_equal(bytes, 1 << 20);
    assert_int_equal(fstat(file, &st), 0);
    assert_true(st.st_blocks * 512 >= 1 << 20);

    memset(data, 0x5a, LDR_BLOCK);
    assert_int_equal(ldr_io_write_at(io, file, 0, data, LDR_BLOCK), 0);
    ldr_fault_arm(LDR_FAULT_io_allocate, 1, 1);
    assert_int_equal(io->ops->allocate(io, file, 8 << 20), -ENOSPC);
    assert_int_equal(fstat(file, &st), 0);
    assert_int_equal(st.st_size, 1 << 20);
    assert_true(st.st_blocks * 512 < 2 << 20);
    memset(data, 0, LDR_BLOCK);
    assert_int_equal(ldr_io_read_at(io, file, 0, data, LDR_BLOCK), 0);
    assert_int_equal(data[0], 0x5a);

    assert_int_equal(io->ops->allocate(io, file, 8 << 20), 0);
    assert_int_equal(io->ops->allocate(io, file, LDR_BLOCK), 0);
    assert_int_equal(io->ops->size(io, file, &bytes), 0);
    assert_int_equal(bytes, LDR_BLOCK);
    assert_int_equal(io->ops->allocate(io, file, UINT64_MAX), -EFBIG);
    assert_int_equal(io->ops->allocate(io, -1, 1), -EBADF);
    assert_int_equal(io->ops->size(io, -1, &bytes), -EBADF);
    io->ops->close(io, file);
    ldr_free(data);
}

static int count_name(void *arg, const char *name)
{
    assert_string_not_equal(name, ".");
    assert_string_not_equal(name, "..");
    ++*(unsigned *)arg;
    return 0;
}

static int stop_at_once(void *arg, const char *name)
{
    (void)name;
    ++*(unsigned *)arg;
    return 42;
}

static void test_directories(void **state)
{
    ldr_io_t *io = *state;
    char name[PATH_MAX], file_name[PATH_MAX];
    unsigned count = 0;
    struct stat st;

    snprintf(name, sizeof(name), "%s//a/b/c/", path_of("made"));
    assert_int_equal(io->ops->make_dir(io, name), 0);
    assert_int_equal(io->ops->make_dir(io, name), 0);
    assert_int_equal(stat(name, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(io->ops->sync_dir(io, name), 0);
    assert_int_equal(io->ops->list(io, name, count_name, &count), 0);
    assert_int_equal(count, 0);
    for (int i = 0; i < 3; i++) {
        snprintf(file_name, sizeof(file_name), "%s/made/a/b/c/%d", dir, i);
        assert_int_equal(io->ops->open(io, file_name, 0), -ENOENT);
        int file = io->ops->open(io, file_name, LDR_IO_CREATE);
        assert_true(file >= 0);
        assert_int_equal(fstat(file, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_true(fcntl(file, F_GETFD) & FD_CLOEXEC);
        io->ops->close(io, file);
    }
    assert_int_equal(io->ops->list(io, name, count_name, &count), 0);
    assert_int_equal(count, 3);
    assert_int_equal(io->ops->list(io, name, stop_at_once, &count), 42);
    assert_int_equal(count, 4);
    assert_int_equal(io->ops->make_dir(io, file_name), -ENOTDIR);
    assert_int_equal(io->ops->sync_dir(io, file_name), -ENOTDIR);
    for (int i = 0; i < 3; i++) {
        snprintf(file_name, sizeof(file_name), "%s/made/a/b/c/%d", dir, i);
        assert_int_equal(io->ops->unlink(io, file_name), 0);
        assert_int_equal(io->ops->unlink(io, file_name), -ENOENT);
    }
    assert_int_equal(io->ops->make_dir(io, ""), -ENOENT);
    assert_int_equal(io->ops->list(io, path_of("no"), count_name, &count),
                     -ENOENT);
    ldr_fault_arm(LDR_FAULT_io_open, 1, 1);
    assert_int_equal(io->ops->open(io, path_of("x"), LDR_IO_CREATE), -EIO);

    /* No direct I/O here: the open falls back to one without. */
    int file =
        io->ops->open(io, "/proc/self/status", LDR_IO_READONLY | LDR_IO_DIRECT);
    assert_true(file >= 0);
    io->ops->close(io, file);
}

static int setup(void **state)
{
    return ldr_io_plain_create(1, (ldr_io_t **)state);
}

static int teardown(void **state)
{
    ldr_io_t *io = *state;

    ldr_fault_disarm_all();
    io->ops->destroy(io);
    return 0;
}

static int remove_dir(void **state)
{
    char command[640];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lock, setup, teardown),
        cmocka_unit_test_setup_teardown(test_allocate, setup, teardown),
        cmocka_unit_test_setup_teardown(test_directories, setup, teardown),
    };
    const char *parent = getenv("TMPDIR");

    snprintf(dir, sizeof(dir), "%s/larder-posix-XXXXXX",
             parent != NULL ? parent : "/tmp");
    if (mkdtemp(dir) == NULL) {
        perror(dir);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, remove_dir);
}
