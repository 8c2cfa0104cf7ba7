/*
 * kill -9 under load, again and again, over the same directories.
 *
 * The victim is this program, executed anew: threads that put, flush, get,
 * remove and reset. What it was told, it writes into a page that outlives it;
 * an engine around the real one counts the writes that went out and came back,
 * so that after the kill one can see whether it fell into a write. Then the
 * directory is opened here and every key that ever was is asked for: it is
 * missing or exactly its bytes, it is gone if its remove or reset had
 * returned, and it is there if a flush had (in the directory that is large
 * enough to reclaim nothing).
 *
 * LARDER_KILLS: how many (80). LARDER_SEED: which moments.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "base/mem.h"
#include "client/client.h"
#include "support/real.h"

#define BYTES_MIN 9000u
#define BYTES_MAX 150000u
#define LIFE_MS (REAL_SANITIZED ? 120000u : 20000u)
#define WATCHDOG_S (REAL_SANITIZED ? 1800u : 280u)

enum { SPACES = 2, IDS = 20000, BATCH = 16 };

/* What the victim knows, in memory that both see. Ids are put in order by one
 * thread, which also resets: id < put were put, id < flushed were flushed. */
typedef struct page {
    uint64_t put, flushed;
    uint64_t dropped; /* a flush said that not all arrived */
    uint64_t reset_begun[SPACES], reset_done[SPACES]; /* generations */
    uint64_t writes_begun, writes_done;
    uint64_t ready;          /* it has opened the directory */
    uint64_t broken;         /* a line where it found something wrong */
    uint8_t generation[IDS]; /* that each id was put with */
    uint8_t remove_begun[IDS], remove_done[IDS];
} page_t;

static uint64_t load(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static page_t *page_map(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    page_t *page = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, sizeof(*page)) == 0) {
        page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                    0);
    }
    if (fd >= 0) {
        close(fd);
    }
    return page == MAP_FAILED ? NULL : page;
}

static unsigned space_of(uint64_t id)
{
    return (unsigned)(real_mix(id) % SPACES);
}

static size_t bytes_of(uint64_t id)
{
    return real_bytes(id, BYTES_MIN, BYTES_MAX);
}

/* ---- an engine that counts writes ---- */

typedef struct counted {
    ldr_io_t io;
    ldr_io_ops_t ops;
    ldr_io_t *real;
    page_t *page;
} counted_t;

/* Stands in for a request's owner while it is under way. */
typedef struct stand_in {
    page_t *page;
    void (*done)(ldr_io_req_t *req);
    void *arg;
} stand_in_t;

static ldr_io_t *real_of(ldr_io_t *io)
{
    return ((counted_t *)io)->real;
}

static int counted_open(ldr_io_t *io, const char *path, int flags)
{
    return real_of(io)->ops->open(real_of(io), path, flags);
}

static void counted_close(ldr_io_t *io, int file)
{
    real_of(io)->ops->close(real_of(io), file);
}

static int counted_size(ldr_io_t *io, int file, uint64_t *bytes_p)
{
    return real_of(io)->ops->size(real_of(io), file, bytes_p);
}

static int counted_allocate(ldr_io_t *io, int file, uint64_t bytes)
{
    return real_of(io)->ops->allocate(real_of(io), file, bytes);
}

static int counted_lock(ldr_io_t *io, int file)
{
    return real_of(io)->ops->lock(real_of(io), file);
}

static int counted_make_dir(ldr_io_t *io, const char *path)
{
    return real_of(io)->ops->make_dir(real_of(io), path);
}

static int counted_sync_dir(ldr_io_t *io, const char *path)
{
    return real_of(io)->ops->sync_dir(real_of(io), path);
}

static int counted_unlink(ldr_io_t *io, const char *path)
{
    return real_of(io)->ops->unlink(real_of(io), path);
}

static int counted_list(ldr_io_t *io, const char *path,
                        int (*fn)(void *arg, const char *name), void *arg)
{
    return real_of(io)->ops->list(real_of(io), path, fn, arg);
}

static void counted_done(ldr_io_req_t *req)
{
    stand_in_t *s = req->arg;

    __atomic_add_fetch(&s->page->writes_done, 1, __ATOMIC_SEQ_CST);
    req->done = s->done;
    req->arg = s->arg;
    free(s);
    req->done(req);
}

static void counted_submit(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count)
{
    counted_t *c = (counted_t *)io;

    for (unsigned i = 0; i < count; i++) {
        stand_in_t *s =
            reqs[i]->kind == LDR_IO_WRITE ? malloc(sizeof(*s)) : NULL;

        if (s != NULL) {
            *s = (stand_in_t){c->page, reqs[i]->done, reqs[i]->arg};
            reqs[i]->done = counted_done;
            reqs[i]->arg = s;
            __atomic_add_fetch(&c->page->writes_begun, 1, __ATOMIC_SEQ_CST);
        }
    }
    c->real->ops->submit(c->real, reqs, count);
}

static bool counted_create(counted_t *c, page_t *page, bool uring)
{
    *c = (counted_t){
        .ops = {.open = counted_open,
                .close = counted_close,
                .size = counted_size,
                .allocate = counted_allocate,
                .lock = counted_lock,
                .make_dir = counted_make_dir,
                .sync_dir = counted_sync_dir,
                .unlink = counted_unlink,
                .list = counted_list,
                .submit = counted_submit},
        .page = page,
    };
    c->io.ops = &c->ops;
    if (!uring || ldr_io_uring_create(32, &c->real) != 0) {
        uring = false;
        if (ldr_io_plain_create(4, &c->real) != 0) {
            return false;
        }
    }
    c->ops.name = c->real->ops->name;
    return true;
}

/* ---- the victim ---- */

typedef struct victim {
    page_t *page;
    larder_t *lar;
    larder_space_t *space[SPACES];
    uint64_t seed;
} victim_t;

/* Something is wrong while it lives: the parent reads where. */
#define expect(v, condition)                                                   \
    do {                                                                       \
        if (!(condition)) {                                                    \
            store(&(v)->page->broken, __LINE__);                               \
            _exit(3);                                                          \
        }                                                                      \
    } while (0)

static void put_and_flush(victim_t *v, ldr_rand_t *rand, uint8_t *value)
{
    page_t *page = v->page;
    uint64_t id = page->put;
    unsigned count = 1 + (unsigned)ldr_rand_below(rand, BATCH);

    for (unsigned i = 0; i < count && id < IDS; i++, id++) {
        unsigned space = space_of(id);
        uint8_t generation = (uint8_t)page->reset_done[space];

        page->generation[id] = generation;
        store(&page->put, id + 1); /* it may be on disk before put returns */
        larder_status_t st =
            real_put(v->space[space], id, generation, value, bytes_of(id));
        expect(v, st == LARDER_OK);
    }
    larder_status_t st = larder_flush(v->lar, LARDER_TIER_SSD, LARDER_FOREVER);
    expect(v, st == LARDER_OK || st == LARDER_E_DROPPED);
    if (st == LARDER_E_DROPPED) { /* a busy machine and a small arena */
        store(&page->dropped, 1);
    }
    store(&page->flushed, id);
}

static void *put_main(void *arg)
{
    victim_t *v = arg;
    page_t *page = v->page;
    uint8_t *value = malloc(BYTES_MAX);
    ldr_rand_t rand;

    ldr_rand_seed(&rand, v->seed);
    expect(v, value != NULL);
    for (;;) {
        if (page->put < IDS) {
            put_and_flush(v, &rand, value);
        }
        if (ldr_rand_below(&rand, 12) == 0) {
            unsigned space = ldr_rand_below(&rand, 4) == 0;
            uint64_t next = page->reset_done[space] + 1;

            if (next < UINT8_MAX) {
                store(&page->reset_begun[space], next);
                expect(v, larder_space_reset(v->space[space], 0) == LARDER_OK);
                store(&page->reset_done[space], next);
            }
        }
    }
    return NULL;
}

static void *get_main(void *arg)
{
    victim_t *v = arg;
    uint8_t *value = malloc(BYTES_MAX);
    ldr_rand_t rand;
    larder_item_t item;
    uint64_t generation = 0;

    ldr_rand_seed(&rand, v->seed + 1);
    expect(v, value != NULL);
    for (;;) {
        uint64_t put = load(&v->page->put);
        uint64_t near = put < 300 ? put : 300;
        uint64_t id = put == 0 ? 0 : put - 1 - ldr_rand_below(&rand, near);
        unsigned space = space_of(id);
        uint64_t floor = load(&v->page->reset_done[space]);
        uint8_t gone =
            __atomic_load_n(&v->page->remove_done[id], __ATOMIC_ACQUIRE);
        larder_status_t st = real_run(v->space[space], LARDER_OP_GET, id, value,
                                      BYTES_MAX, &item);

        expect(v, st == LARDER_OK || st == LARDER_MISS);
        if (st == LARDER_OK) {
            expect(v, !gone && item.length == bytes_of(id));
            expect(v, real_check(value, item.length, id, &generation));
            expect(v, generation >= floor);
        } else {
            expect(v, item.cause != LARDER_CAUSE_CORRUPT);
        }
    }
    return NULL;
}

static void *remove_main(void *arg)
{
    victim_t *v = arg;
    ldr_rand_t rand;
    larder_item_t item;

    ldr_rand_seed(&rand, v->seed + 2);
    for (;;) {
        uint64_t flushed = load(&v->page->flushed);
        uint64_t near = flushed < 500 ? flushed : 500;

        if (flushed == 0) {
            sched_yield();
            continue;
        }
        uint64_t id = (flushed - 1 - ldr_rand_below(&rand, near)) / 4 * 4;
        __atomic_store_n(&v->page->remove_begun[id], 1, __ATOMIC_RELEASE);
        larder_status_t st = real_run(v->space[space_of(id)], LARDER_OP_REMOVE,
                                      id, NULL, 0, &item);
        expect(v, st == LARDER_OK || st == LARDER_MISS);
        __atomic_store_n(&v->page->remove_done[id], 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* argv: "victim" URL PAGE ENGINE SEED. Ends by being killed. */
static int victim_main(char **argv)
{
    static counted_t io;
    victim_t v = {.page = page_map(argv[3]), .seed = strtoull(argv[5], 0, 10)};
    static void *(*const mains[])(void *) = {get_main, remove_main};
    ldr_options_t options;
    ldr_node_env_t env = {.io = &io.io, .log = {real_log_none, NULL}};
    ldr_node_t *node = NULL;
    pthread_t thread;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(WATCHDOG_S);
    if (v.page == NULL || !counted_create(&io, v.page, argv[4][0] == 'u')) {
        return 2;
    }
    expect(&v, ldr_options_parse(argv[2], &options) == LARDER_OK);
    expect(&v, ldr_node_open(&options, &env, &node) == LARDER_OK);
    expect(&v, ldr_handle_open(node, &v.lar) == LARDER_OK);
    expect(&v, real_space(v.lar, "first", &v.space[0]) == LARDER_OK);
    expect(&v, real_space(v.lar, "second", &v.space[1]) == LARDER_OK);
    store(&v.page->ready, 1);
    for (unsigned i = 0; i < 2; i++) {
        expect(&v, pthread_create(&thread, NULL, mains[i], &v) == 0);
    }
    put_main(&v);
    return 0;
}

/* ---- the killer ---- */

typedef struct scene {
    char dir[256], page_path[300], url[512];
    page_t *page;
    bool keeps_all; /* it is large enough to reclaim nothing */
    ldr_rand_t rand;
    bool full; /* the next life begins in a new directory */
    uint64_t kills, in_write, in_open;
    uint64_t keys, there, promised; /* added up over all looks */
    uint8_t value[BYTES_MAX];
} scene_t;

static bool in_write(const page_t *page)
{
    return load(&page->writes_begun) > load(&page->writes_done);
}

/* Waits for a moment worth dying in. */
static void choose_moment(scene_t *s, pid_t pid)
{
    page_t *page = s->page;
    uint64_t late = real_now_ms() + LIFE_MS;
    bool opening = ldr_rand_below(&s->rand, 6) == 0;
    uint64_t after = ldr_rand_below(&s->rand, opening ? 6 : 60);
    uint64_t begun = page->writes_begun;

    if (opening) {
        /* Somewhere on its way: perhaps while it repairs the last death. */
        for (uint64_t i = 0; i < after; i++) {
            real_pause();
        }
        return;
    }
    while (load(&page->writes_begun) < begun + after || !load(&page->ready) ||
           !in_write(page)) {
        int status;

        if (waitpid(pid, &status, WNOHANG) != 0) {
            fail_msg("the victim ended by itself: line %llu",
                     (unsigned long long)page->broken);
        }
        if (real_now_ms() >= late) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            fail_msg("the victim makes no progress");
        }
        if (load(&page->writes_begun) < begun + after) {
            real_pause();
        }
    }
}

static void live_and_die(scene_t *s)
{
    char seed[32];
    char *argv[] = {"test_kill9",
                    "victim",
                    s->url,
                    s->page_path,
                    s->kills % 2 == 0 ? "uring" : "plain",
                    seed,
                    NULL};
    int status = 0;

    snprintf(seed, sizeof(seed), "%llu",
             (unsigned long long)ldr_rand_next(&s->rand) >> 8);
    s->page->ready = 0;
    s->page->writes_begun = s->page->writes_done = 0;
    pid_t pid = fork();
    if (pid == 0) {
        execv("/proc/self/exe", argv);
        _exit(2);
    }
    assert_true(pid > 0);
    choose_moment(s, pid);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status)) {
        fail_msg("the victim ended by itself: line %llu",
                 (unsigned long long)s->page->broken);
    }
    s->kills++;
    s->in_write += in_write(s->page);
    s->in_open += s->page->ready == 0;
}

static void verify_one(scene_t *s, larder_space_t **spaces, uint64_t id)
{
    const page_t *page = s->page;
    unsigned space = space_of(id);
    uint64_t put_as = page->generation[id];
    larder_item_t item;
    uint64_t generation = 0;
    larder_status_t st = real_run(spaces[space], LARDER_OP_GET, id, s->value,
                                  sizeof(s->value), &item);
    bool must_miss = page->remove_done[id] || put_as < page->reset_done[space];
    bool may_miss = must_miss || !s->keeps_all || page->dropped ||
                    id >= page->flushed || page->remove_begun[id] ||
                    put_as < page->reset_begun[space];

    if (st == LARDER_OK) {
        assert_false(must_miss);
        assert_int_equal(item.length, bytes_of(id));
        assert_true(real_check(s->value, item.length, id, &generation));
        assert_int_equal(generation, put_as);
        s->there++;
        s->promised += !may_miss;
    } else {
        assert_int_equal(st, LARDER_MISS);
        assert_int_not_equal(item.cause, LARDER_CAUSE_CORRUPT);
        assert_int_not_equal(item.cause, LARDER_CAUSE_TIER_OFF);
        assert_true(may_miss);
    }
}

static void verify(scene_t *s)
{
    larder_t *lar = NULL;
    larder_space_t *spaces[SPACES] = {NULL};
    larder_stats_t stats;

    if (real_open(s->url, &lar) != LARDER_OK) {
        fail_msg("cannot open: %s", larder_last_error());
    }
    assert_int_equal(real_space(lar, "first", &spaces[0]), LARDER_OK);
    assert_int_equal(real_space(lar, "second", &spaces[1]), LARDER_OK);
    s->keys += s->page->put;
    for (uint64_t id = 0; id < s->page->put; id++) {
        verify_one(s, spaces, id);
    }
    assert_true(real_stats(lar, &stats));
    assert_true(stats.disk[0].on);
    assert_true(stats.disk[0].bytes_used <= stats.disk[0].bytes_max);
    s->full = s->keeps_all &&
              stats.disk[0].bytes_used > stats.disk[0].bytes_max / 4 * 3;
    for (unsigned i = 0; i < SPACES; i++) {
        larder_space_close(&spaces[i]);
    }
    assert_int_equal(larder_close(&lar, 0), LARDER_OK);
}

/* What was under way has had its effect or not, and nobody will know: the keys
 * it concerned may be there or not from now on. */
static void settle(page_t *page)
{
    for (uint64_t id = 0; id < page->put; id++) {
        if (id >= page->flushed ||
            page->generation[id] < page->reset_begun[space_of(id)]) {
            page->remove_begun[id] = 1;
        }
    }
    page->flushed = page->put;
    for (unsigned i = 0; i < SPACES; i++) {
        page->reset_begun[i] = page->reset_done[i];
    }
}

static void scene_begin(scene_t *s, const char *name, const char *options)
{
    s->full = false;
    assert_true(real_dir_make(s->dir, sizeof(s->dir), name));
    snprintf(s->page_path, sizeof(s->page_path), "%s.page", s->dir);
    snprintf(s->url, sizeof(s->url), "embed:%s?%s", s->dir, options);
    s->page = page_map(s->page_path);
    assert_non_null(s->page);
}

static void scene_end(scene_t *s)
{
    munmap(s->page, sizeof(*s->page));
    unlink(s->page_path);
    real_dir_remove(s->dir);
}

static void run_scene(const char *name, const char *options, bool keeps_all)
{
    uint64_t kills = (real_number("LARDER_KILLS", 80) + 1) / 2;
    scene_t *s = calloc(1, sizeof(*s));

    assert_non_null(s);
    alarm(WATCHDOG_S);
    s->keeps_all = keeps_all;
    ldr_rand_seed(&s->rand, real_seed());
    scene_begin(s, name, options);
    while (s->kills < kills) {
        live_and_die(s);
        /* Now and then it dies again before anybody looked. */
        if (s->kills == kills || ldr_rand_below(&s->rand, 4) > 0) {
            verify(s);
        }
        settle(s->page);
        if (s->full || s->page->put == IDS) {
            scene_end(s);
            scene_begin(s, name, options);
        }
    }
    printf("%llu kills, %llu inside a write, %llu while opening; of %llu keys "
           "looked for %llu were there, %llu had to be\n",
           (unsigned long long)s->kills, (unsigned long long)s->in_write,
           (unsigned long long)s->in_open, (unsigned long long)s->keys,
           (unsigned long long)s->there, (unsigned long long)s->promised);
    assert_true(s->in_write * 2 >= s->kills);
    assert_true(s->there > 0 && (s->promised > 0 || !keeps_all));
    scene_end(s);
    free(s);
    alarm(0);
}

static void test_keeps_all(void **state)
{
    (void)state;
    run_scene("kill9-large", "dram=64M&ssd=2G&segment=8M&sync_ms=20", true);
}

static void test_reclaims(void **state)
{
    (void)state;
    run_scene("kill9-small", "dram=8M&ssd=32M&segment=2M&sync_ms=20", false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keeps_all),
        cmocka_unit_test(test_reclaims),
    };

    if (argc == 6 && strcmp(argv[1], "victim") == 0) {
        return victim_main(argv);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
