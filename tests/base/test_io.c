/*
 * The two real I/O engines: one table of tests, run on each. What the kernel
 * rarely does (short transfers, EINTR, partial submission) comes through the
 * fault points; contents are verified every time.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/mem.h"

typedef struct engine {
    const char *name;
    int (*create)(unsigned depth, ldr_io_t **io_p);
    bool is_uring;
} engine_t;

static engine_t plain = {"plain", ldr_io_plain_create, false};
static engine_t uring = {"io_uring", ldr_io_uring_create, true};

static char dir[512];

static const char *path_of(const char *name)
{
    static __thread char path[640];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static ldr_io_t *engine_start(void **state, unsigned depth)
{
    const engine_t *engine = *state;
    ldr_io_t *io = NULL;
    int result = engine->create(depth, &io);

    if (engine->is_uring && result < 0) {
        print_message("SKIPPED, NOT TESTED: this kernel gives no io_uring "
                      "(%s)\n",
                      strerror(-result));
        skip();
    }
    assert_int_equal(result, 0);
    assert_non_null(io);
    return io;
}

static int teardown(void **state)
{
    (void)state;
    ldr_fault_disarm_all();
    return 0;
}

static int open_new(ldr_io_t *io, const char *name, uint64_t bytes)
{
    unlink(path_of(name));
    int file = io->ops->open(io, path_of(name), LDR_IO_CREATE | LDR_IO_DIRECT);
    assert_true(file >= 0);
    assert_int_equal(io->ops->allocate(io, file, bytes), 0);
    return file;
}

/* Bytes that tell where they belong: no two blocks are alike. */
static void fill(uint8_t *data, size_t bytes, uint64_t salt)
{
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        ldr_put64(data + i, (salt + i) * 0x9e3779b97f4a7c15u);
    }
}

#define PIECES 2600u /* more than twice IOV_MAX */

/* Pieces of one block and of two, and empty ones between them. */
static size_t piece_bytes(unsigned i)
{
    return i % 7 == 3 ? 0 : (1 + (i % 9 == 5)) * LDR_BLOCK;
}

static size_t pieces_bytes(void)
{
    size_t bytes = 0;

    for (unsigned i = 0; i < PIECES; i++) {
        bytes += piece_bytes(i);
    }
    return bytes;
}

static int transfer(ldr_io_t *io, ldr_io_kind_t kind, int file, uint8_t *data)
{
    static struct iovec iov[PIECES];
    ldr_io_req_t req = {.kind = kind,
                        .file = file,
                        .offset = LDR_BLOCK,
                        .iov = iov,
                        .iov_count = PIECES};

    for (unsigned i = 0; i < PIECES; i++) {
        iov[i] = (struct iovec){data, piece_bytes(i)};
        data += iov[i].iov_len;
    }
    int result = ldr_io_run(io, &req);
    assert_int_equal(req.offset, LDR_BLOCK);
    return result;
}

static void round_trip(ldr_io_t *io, int file, uint8_t *out, uint8_t *in,
                       size_t bytes)
{
    fill(out, bytes, (uint64_t)rand());
    memset(in, 0xee, bytes);
    assert_int_equal(transfer(io, LDR_IO_WRITE, file, out), 0);
    assert_int_equal(ldr_io_sync(io, file), 0);
    assert_int_equal(transfer(io, LDR_IO_READ, file, in), 0);
    assert_memory_equal(in, out, bytes);
}

static void test_round_trip(void **state)
{
    static const struct {
        ldr_fault_t point;
        uint64_t nth, times;
        bool only_uring;
    } faults[] = {
        {LDR_FAULT_io_read_short, 1, 1, false},
        {LDR_FAULT_io_read_short, 2, 40, false},
        {LDR_FAULT_io_read_short, 1, 0, false},
        {LDR_FAULT_io_write_short, 1, 1, false},
        {LDR_FAULT_io_write_short, 3, 40, false},
        {LDR_FAULT_io_write_short, 1, 0, false},
        {LDR_FAULT_io_intr, 1, 1, false},
        {LDR_FAULT_io_intr, 2, 900, false},
        {LDR_FAULT_io_submit_partial, 1, 1, true},
        {LDR_FAULT_io_submit_partial, 2, 900, true},
    };
    const engine_t *engine = *state;
    ldr_io_t *io = engine_start(state, 4);

    size_t bytes = pieces_bytes();
    uint8_t *out = ldr_alloc_blocks(bytes), *in = ldr_alloc_blocks(bytes);
    int file = open_new(io, "round", LDR_BLOCK + bytes);
    round_trip(io, file, out, in, bytes);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        if (faults[i].only_uring && !engine->is_uring) {
            continue;
        }
        ldr_fault_arm(faults[i].point, faults[i].nth, faults[i].times);
        round_trip(io, file, out, in, bytes);
        assert_true(ldr_fault_fired(faults[i].point) > 0);
        ldr_fault_disarm_all();
    }
    io->ops->close(io, file);
    io->ops->destroy(io);
    ldr_free(out);
    ldr_free(in);
}

static void test_errors(void **state)
{
    const engine_t *engine = *state;
    ldr_io_t *io = engine_start(state, 4);
    uint8_t *data = ldr_alloc_blocks(LDR_BLOCK);
    int file = open_new(io, "errors", 4 * LDR_BLOCK);

    ldr_fault_arm(LDR_FAULT_io_read, 1, 0);
    ldr_fault_arm(LDR_FAULT_io_write, 1, 0);
    ldr_fault_arm(LDR_FAULT_io_sync, 1, 0);
    assert_int_equal(ldr_io_read_at(io, file, 0, data, LDR_BLOCK), -EIO);
    assert_int_equal(ldr_io_write_at(io, file, 0, data, LDR_BLOCK), -EIO);
    assert_int_equal(ldr_io_sync(io, file), -EIO);
    assert_int_equal(io->ops->sync_dir(io, dir), -EIO);
    ldr_fault_disarm_all();

    /* A kernel that says EINTR for ever, a ring that takes nothing for ever:
     * an error, not a hang. */
    ldr_fault_arm(LDR_FAULT_io_intr, 1, 0);
    assert_int_equal(ldr_io_read_at(io, file, 0, data, LDR_BLOCK), -EIO);
    assert_int_equal(ldr_io_sync(io, file), -EIO);
    ldr_fault_disarm_all();
    ldr_fault_arm(LDR_FAULT_io_submit_partial, 1, 0);
    assert_int_equal(ldr_io_read_at(io, file, 0, data, LDR_BLOCK),
                     engine->is_uring ? -EIO : 0);
    ldr_fault_disarm_all();

    /* And real ones. The engine works on after each. */
    assert_int_equal(ldr_io_read_at(io, -1, 0, data, LDR_BLOCK), -EBADF);
    assert_int_equal(ldr_io_sync(io, -1), -EBADF);
    assert_int_equal(ldr_io_read_at(io, file, 0, data, LDR_BLOCK), 0);
    assert_int_equal(ldr_io_write_at(io, file, 0, data, LDR_BLOCK), 0);
    assert_int_equal(ldr_io_sync(io, file), 0);
    assert_int_equal(ldr_io_read_at(io, file, 0, data, 0), 0);
    ldr_io_submit(io, NULL, 0);
    io->ops->close(io, file);
    io->ops->destroy(io);
    ldr_free(data);
}

static void test_end_of_file(void **state)
{
    ldr_io_t *io = engine_start(state, 4);
    uint8_t *data = ldr_alloc_blocks(8 * LDR_BLOCK);
    int file = open_new(io, "end", 3 * LDR_BLOCK);
    int read_only;

    for (int direct = 0; direct < 2; direct++) {
        read_only = io->ops->open(
            io, path_of("end"), LDR_IO_READONLY | (direct ? LDR_IO_DIRECT : 0));
        assert_true(read_only >= 0);
        assert_int_equal(io->ops->allocate(io, file, 3 * LDR_BLOCK), 0);
        assert_int_equal(ldr_io_read_at(io, read_only, 0, data, 3 * LDR_BLOCK),
                         0);
        assert_int_equal(ldr_io_read_at(io, read_only, 0, data, 4 * LDR_BLOCK),
                         -ENODATA);
        assert_int_equal(
            ldr_io_read_at(io, read_only, 8 * LDR_BLOCK, data, LDR_BLOCK),
            -ENODATA);
        /* A file that was cut inside a block, and inside a sector. */
        assert_int_equal(io->ops->allocate(io, file, LDR_BLOCK + 900), 0);
        assert_int_equal(ldr_io_read_at(io, read_only, 0, data, 2 * LDR_BLOCK),
                         -ENODATA);
        assert_int_equal(ldr_io_read_at(io, read_only, 0, data, LDR_BLOCK), 0);
        assert_int_equal(ldr_io_write_at(io, read_only, 0, data, LDR_BLOCK),
                         -EBADF);
        io->ops->close(io, read_only);
    }
    io->ops->close(io, file);
    io->ops->destroy(io);
    ldr_free(data);
}

/* Several threads, each with slots of its own that write and read back a
 * block again and again, in batches, over a ring much smaller than that. */
#define STORM_THREADS 4u
#define STORM_SLOTS 64u
#define STORM_ROUNDS 15u

typedef struct storm {
    ldr_io_t *io;
    int file;
    unsigned number;
    sem_t round;
    unsigned done_count[STORM_SLOTS];
    unsigned left;
    unsigned bad;
} storm_t;

static void storm_done(ldr_io_req_t *req)
{
    storm_t *storm = req->arg;
    unsigned slot = (unsigned)(req->offset / LDR_BLOCK % STORM_SLOTS);

    __atomic_add_fetch(&storm->done_count[slot], 1, __ATOMIC_RELAXED);
    if (req->error != 0) {
        __atomic_add_fetch(&storm->bad, 1, __ATOMIC_RELAXED);
    }
    if (__atomic_sub_fetch(&storm->left, 1, __ATOMIC_ACQ_REL) == 0) {
        sem_post(&storm->round);
    }
}

static void storm_round(storm_t *storm, ldr_io_kind_t kind, uint8_t *data,
                        ldr_rand_t *r)
{
    ldr_io_req_t reqs[STORM_SLOTS], *list[STORM_SLOTS];
    struct iovec iov[STORM_SLOTS];

    storm->left = STORM_SLOTS;
    for (unsigned i = 0; i < STORM_SLOTS; i++) {
        iov[i] = (struct iovec){data + i * LDR_BLOCK, LDR_BLOCK};
        reqs[i] = (ldr_io_req_t){
            .kind = kind,
            .file = storm->file,
            .offset = (uint64_t)(storm->number * STORM_SLOTS + i) * LDR_BLOCK,
            .iov = &iov[i],
            .iov_count = 1,
            .done = storm_done,
            .arg = storm,
        };
        list[i] = &reqs[i];
    }
    for (unsigned at = 0; at < STORM_SLOTS;) {
        unsigned count =
            (unsigned)ldr_min64(1 + ldr_rand_below(r, 20), STORM_SLOTS - at);
        ldr_io_submit(storm->io, list + at, count);
        at += count;
    }
    while (sem_wait(&storm->round) != 0) {
    }
}

static void *storm_run(void *arg)
{
    storm_t *storm = arg;
    size_t bytes = STORM_SLOTS * LDR_BLOCK;
    uint8_t *out = ldr_alloc_blocks(bytes), *in = ldr_alloc_blocks(bytes);
    ldr_rand_t r;

    ldr_rand_seed(&r, storm->number);
    for (unsigned i = 0; i < STORM_ROUNDS; i++) {
        fill(out, bytes, ldr_rand_next(&r));
        storm_round(storm, LDR_IO_WRITE, out, &r);
        storm_round(storm, LDR_IO_READ, in, &r);
        if (memcmp(in, out, bytes) != 0) {
            __atomic_add_fetch(&storm->bad, 1, __ATOMIC_RELAXED);
        }
    }
    ldr_free(out);
    ldr_free(in);
    return NULL;
}

static void storm(void **state, unsigned depth)
{
    static storm_t storms[STORM_THREADS];
    pthread_t threads[STORM_THREADS];
    ldr_io_t *io = engine_start(state, depth);
    int file = open_new(io, "storm", STORM_THREADS * STORM_SLOTS * LDR_BLOCK);

    memset(storms, 0, sizeof(storms));
    for (unsigned i = 0; i < STORM_THREADS; i++) {
        storms[i].io = io;
        storms[i].file = file;
        storms[i].number = i;
        sem_init(&storms[i].round, 0, 0);
        assert_int_equal(
            pthread_create(&threads[i], NULL, storm_run, &storms[i]), 0);
    }
    for (unsigned i = 0; i < STORM_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(storms[i].bad, 0);
        for (unsigned k = 0; k < STORM_SLOTS; k++) {
            assert_int_equal(storms[i].done_count[k], 2 * STORM_ROUNDS);
        }
        sem_destroy(&storms[i].round);
    }
    io->ops->close(io, file);
    io->ops->destroy(io);
}

static void test_storm(void **state)
{
    storm(state, 1);
    storm(state, 7);
}

static void test_storm_with_faults(void **state)
{
    ldr_fault_arm(LDR_FAULT_io_intr, 10, 500);
    ldr_fault_arm(LDR_FAULT_io_submit_partial, 5, 900);
    storm(state, 7);
    assert_true(ldr_fault_fired(LDR_FAULT_io_intr) > 0);
}

/* done() submits the next two, as a tree, until all are used. */
#define TREE 5000u

typedef struct tree {
    ldr_io_t *io;
    unsigned used, finished;
    sem_t all;
    struct iovec iov[TREE];
    ldr_io_req_t reqs[TREE];
} tree_t;

static void tree_done(ldr_io_req_t *req)
{
    tree_t *tree = req->arg;

    assert_int_equal(req->error, 0);
    for (int i = 0; i < 2; i++) {
        unsigned at = __atomic_fetch_add(&tree->used, 1, __ATOMIC_RELAXED);
        if (at < TREE) {
            ldr_io_req_t *next = &tree->reqs[at];
            ldr_io_submit(tree->io, &next, 1);
        }
    }
    if (__atomic_add_fetch(&tree->finished, 1, __ATOMIC_ACQ_REL) == TREE) {
        sem_post(&tree->all);
    }
}

static tree_t *tree_start(ldr_io_t *io, int file, uint8_t *data)
{
    tree_t *tree = ldr_alloc(sizeof(*tree));

    tree->io = io;
    tree->used = 1;
    sem_init(&tree->all, 0, 0);
    for (unsigned i = 0; i < TREE; i++) {
        tree->iov[i] = (struct iovec){data, LDR_BLOCK};
        tree->reqs[i] = (ldr_io_req_t){
            .kind = i % 100 == 99 ? LDR_IO_SYNC : LDR_IO_WRITE,
            .file = file,
            .offset = i % 16 * LDR_BLOCK,
            .iov = &tree->iov[i],
            .iov_count = 1,
            .done = tree_done,
            .arg = tree,
        };
    }
    ldr_io_req_t *root = &tree->reqs[0];
    ldr_io_submit(io, &root, 1);
    return tree;
}

static void test_submit_inside_done(void **state)
{
    uint8_t *data = ldr_alloc_blocks(LDR_BLOCK);

    for (unsigned depth = 1; depth <= 8; depth *= 8) {
        ldr_io_t *io = engine_start(state, depth);
        int file = open_new(io, "tree", 16 * LDR_BLOCK);
        uint64_t allocs = ldr_alloc_count();
        tree_t *tree = tree_start(io, file, data);
        while (sem_wait(&tree->all) != 0) {
        }
        /* The tree itself, and nothing per request. */
        assert_int_equal(ldr_alloc_count(), allocs + 1);
        io->ops->close(io, file);
        io->ops->destroy(io);
        ldr_free(tree);
    }
    ldr_free(data);
}

static void test_destroy_in_flight(void **state)
{
    uint8_t *data = ldr_alloc_blocks(LDR_BLOCK);

    for (int i = 0; i < 4; i++) {
        ldr_io_t *io = engine_start(state, 4);
        int file = open_new(io, "destroy", 16 * LDR_BLOCK);
        tree_t *tree = tree_start(io, file, data);

        io->ops->destroy(io);
        assert_int_equal(tree->finished, TREE);
        close(file);
        ldr_free(tree);
    }
    ldr_free(data);
}

static void test_idle_destroy(void **state)
{
    for (int i = 0; i < 50; i++) {
        ldr_io_t *io = engine_start(state, 3);
        io->ops->destroy(io);
    }
}

/* The kernel cancels what a thread left in a ring when it ends. */
typedef struct leaver {
    ldr_io_t *io;
    int file;
    uint8_t *data;
    ldr_io_req_t reqs[64];
    struct iovec iov[64];
    sem_t each;
    unsigned bad;
} leaver_t;

static void leaver_done(ldr_io_req_t *req)
{
    leaver_t *leaver = req->arg;

    if (req->error != 0) {
        __atomic_add_fetch(&leaver->bad, 1, __ATOMIC_RELAXED);
    }
    sem_post(&leaver->each);
}

static void *leaver_run(void *arg)
{
    leaver_t *leaver = arg;
    ldr_io_req_t *list[64];

    for (unsigned i = 0; i < 64; i++) {
        leaver->iov[i] = (struct iovec){leaver->data, 64 * LDR_BLOCK};
        leaver->reqs[i] = (ldr_io_req_t){
            .kind = i % 8 == 7 ? LDR_IO_SYNC : LDR_IO_WRITE,
            .file = leaver->file,
            .offset = i * 64 * LDR_BLOCK,
            .iov = &leaver->iov[i],
            .iov_count = 1,
            .done = leaver_done,
            .arg = leaver,
        };
        list[i] = &leaver->reqs[i];
    }
    ldr_io_submit(leaver->io, list, 64);
    return NULL;
}

static void test_submitter_ends(void **state)
{
    ldr_io_t *io = engine_start(state, 32);
    leaver_t *leaver = ldr_alloc(sizeof(*leaver));
    pthread_t thread;

    leaver->io = io;
    leaver->data = ldr_alloc_blocks(64 * LDR_BLOCK);
    leaver->file = open_new(io, "leaver", 64 * 64 * LDR_BLOCK);
    sem_init(&leaver->each, 0, 0);
    for (int round = 0; round < 5; round++) {
        assert_int_equal(pthread_create(&thread, NULL, leaver_run, leaver), 0);
        pthread_join(thread, NULL);
        for (unsigned i = 0; i < 64; i++) {
            while (sem_wait(&leaver->each) != 0) {
            }
        }
        assert_int_equal(leaver->bad, 0);
    }
    io->ops->close(io, leaver->file);
    io->ops->destroy(io);
    ldr_free(leaver->data);
    ldr_free(leaver);
}

static void test_threads_are_quiet(void **state)
{
    ldr_io_t *io = engine_start(state, 2);
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    unsigned found = 0;

    assert_non_null(tasks);
    while ((entry = readdir(tasks)) != NULL) {
        char path[PATH_MAX], line[256], name[64] = "";
        unsigned long long blocked = 0;

        snprintf(path, sizeof(path), "/proc/self/task/%s/status",
                 entry->d_name);
        FILE *f = fopen(path, "re");
        while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
            sscanf(line, "Name: %63s", name);
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        if (f != NULL) {
            fclose(f);
        }
        if (strncmp(name, "larder-io", 9) == 0) {
            found++;
            assert_true(blocked & 1ull << (SIGTERM - 1));
            assert_true(blocked & 1ull << (SIGUSR1 - 1));
        }
    }
    closedir(tasks);
    assert_true(found > 0);
    io->ops->destroy(io);
}

static void test_create_fails(void **state)
{
    const engine_t *engine = *state;
    ldr_io_t *io = engine_start(state, 1);
    ldr_io_t *none = NULL;

    io->ops->destroy(io);
    ldr_fault_arm(LDR_FAULT_alloc, 1, 1);
    assert_int_equal(engine->create(4, &none), -ENOMEM);
    ldr_fault_arm(LDR_FAULT_thread_create, 1, 1);
    assert_int_equal(engine->create(4, &none), -EAGAIN);
    assert_null(none);
    ldr_fault_disarm_all();

    if (engine->is_uring) {
        ldr_fault_arm(LDR_FAULT_io_uring_denied, 1, 1);
        assert_int_equal(engine->create(4, &none), -EPERM);
        assert_null(none);
    } else {
        /* Fewer threads than asked for: still an engine. */
        ldr_fault_arm(LDR_FAULT_thread_create, 2, 0);
        storm(state, 4);
        assert_true(ldr_fault_fired(LDR_FAULT_thread_create) > 0);
    }
}

static int remove_dir(void **state)
{
    char command[640];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

#define ON(engine, test)                                                       \
    {                                                                          \
#test " on " #engine, test, NULL, teardown, &engine                    \
    }
#define ON_BOTH(test) ON(plain, test), ON(uring, test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(test_round_trip),        ON_BOTH(test_errors),
        ON_BOTH(test_end_of_file),       ON_BOTH(test_storm),
        ON_BOTH(test_storm_with_faults), ON_BOTH(test_submit_inside_done),
        ON_BOTH(test_destroy_in_flight), ON_BOTH(test_idle_destroy),
        ON_BOTH(test_submitter_ends),    ON_BOTH(test_threads_are_quiet),
        ON_BOTH(test_create_fails),
    };
    const char *parent = getenv("TMPDIR");

    snprintf(dir, sizeof(dir), "%s/larder-io-XXXXXX",
             parent != NULL ? parent : "/tmp");
    if (mkdtemp(dir) == NULL) {
        perror(dir);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, remove_dir);
}
