#include "tier/shared/contract.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/mem.h"

#define AREA "contract/"
#define DEADLINE_NS ((uint64_t)30 * 1000000000)

enum { PUTTERS = 6, ROUNDS = 12, LEASE_BYTES = 64 << 10 };

/* ---- objects ---- */

uint64_t contract_deadline(void)
{
    return ldr_now_ns(&ldr_clock_real) + DEADLINE_NS;
}

static uint64_t name_hash(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (; *name != '\0'; name++) {
        h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    }
    return h;
}

void contract_fill(const char *name, uint64_t offset, uint8_t *data,
                   size_t bytes)
{
    uint64_t h = name_hash(name);

    for (size_t i = 0; i < bytes; i++) {
        uint64_t at = offset + i;
        uint64_t v = (h ^ at / 8 * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;

        data[i] = (uint8_t)((v ^ v >> 29) >> 8 * (at % 8));
    }
}

int contract_put(ldr_backend_t *b, const char *name, size_t bytes,
                 unsigned flags)
{
    uint8_t *data = ldr_alloc_blocks(bytes > 0 ? bytes : 1);
    struct iovec iov = {data, bytes};

    assert_non_null(data);
    contract_fill(name, 0, data, bytes);
    int error = b->ops->put(b, name, &iov, 1, flags, contract_deadline());
    ldr_free(data);
    return error;
}

void contract_check(ldr_backend_t *b, const char *name, uint64_t offset,
                    size_t bytes)
{
    uint8_t *data = ldr_alloc_blocks(bytes), *want = ldr_alloc_blocks(bytes);
    struct iovec iov = {data, bytes};

    assert_true(data != NULL && want != NULL);
    contract_fill(name, offset, want, bytes);
    assert_int_equal(b->ops->get(b, name, offset, &iov, 1, contract_deadline()),
                     0);
    assert_memory_equal(data, want, bytes);
    ldr_free(data);
    ldr_free(want);
}

static int get(ldr_backend_t *b, const char *name, uint64_t offset,
               size_t bytes)
{
    uint8_t *data = ldr_alloc_blocks(bytes);
    struct iovec iov = {data, bytes};
    int error = b->ops->get(b, name, offset, &iov, 1, contract_deadline());

    ldr_free(data);
    return error;
}

typedef struct names {
    char (*name)[LDR_OBJECT_NAME_MAX + 1];
    uint64_t *bytes;
    size_t count, room;
    size_t stop; /* says so after this many; 0: never */
} names_t;

static void names_make(names_t *n, size_t room)
{
    *n = (names_t){.name = ldr_alloc(room * sizeof(*n->name)),
                   .bytes = ldr_alloc(room * sizeof(*n->bytes)),
                   .room = room};
    assert_true(n->name != NULL && n->bytes != NULL);
}

static void names_free(names_t *n)
{
    ldr_free(n->name);
    ldr_free(n->bytes);
}

static int names_add(void *arg, const char *name, uint64_t bytes)
{
    names_t *n = arg;

    assert_true(n->count < n->room);
    snprintf(n->name[n->count], sizeof(n->name[0]), "%s", name);
    n->bytes[n->count++] = bytes;
    return n->count == n->stop ? 42 : 0;
}

static int list(ldr_backend_t *b, const char *prefix, const char *after,
                names_t *n)
{
    n->count = 0;
    return b->ops->list(b, prefix, after, names_add, n, contract_deadline());
}

void contract_clear(ldr_backend_t *b, const char *prefix)
{
    names_t n;

    names_make(&n, 8192);
    assert_int_equal(list(b, prefix, NULL, &n), 0);
    for (size_t i = 0; i < n.count; i++) {
        assert_int_equal(b->ops->remove(b, n.name[i], contract_deadline()), 0);
    }
    assert_int_equal(list(b, prefix, NULL, &n), 0);
    assert_int_equal(n.count, 0);
    names_free(&n);
}

static ldr_backend_t *open_well(const contract_t *c)
{
    ldr_backend_t *b = c->open(c->arg);

    assert_non_null(b);
    if (b->ops->health(b, contract_deadline()) != 0) {
        fail_msg("health: %s", ldr_fail_text());
    }
    return b;
}

/* ---- bytes ---- */

/* In pieces of 4 KiB at addresses that are not in order, as an arena's are:
 * more of them than one call of the kernel takes. */
static void put_scattered(ldr_backend_t *b, const char *name, size_t blocks,
                          bool check_only)
{
    uint8_t *data = ldr_alloc_blocks(blocks * LDR_BLOCK);
    struct iovec *iov = ldr_alloc(blocks * sizeof(*iov));
    uint8_t want[LDR_BLOCK];

    assert_true(data != NULL && iov != NULL);
    for (size_t i = 0; i < blocks; i++) {
        uint8_t *at = data + (blocks - 1 - i) * LDR_BLOCK;

        iov[i] = (struct iovec){at, LDR_BLOCK};
        if (!check_only) {
            contract_fill(name, i * LDR_BLOCK, at, LDR_BLOCK);
        }
    }
    if (!check_only) {
        assert_int_equal(b->ops->put(b, name, iov, (unsigned)blocks,
                                     LDR_OBJECT_NEW, contract_deadline()),
                         0);
    } else {
        assert_int_equal(
            b->ops->get(b, name, 0, iov, (unsigned)blocks, contract_deadline()),
            0);
    }
    for (size_t i = 0; i < blocks && check_only; i++) {
        contract_fill(name, i * LDR_BLOCK, want, LDR_BLOCK);
        assert_memory_equal(data + (blocks - 1 - i) * LDR_BLOCK, want,
                            LDR_BLOCK);
    }
    ldr_free(data);
    ldr_free(iov);
}

/* Buffers of odd lengths at odd addresses. */
static void check_odd(ldr_backend_t *b, const char *name)
{
    uint8_t data[3000], want[3000];
    struct iovec iov[3] = {{data + 1, 700}, {data + 701, 1}, {data + 702, 999}};

    contract_fill(name, 4095, want, 1700);
    assert_int_equal(b->ops->get(b, name, 4095, iov, 3, contract_deadline()),
                     0);
    assert_memory_equal(data + 1, want, 1700);
}

void contract_bytes(const contract_t *c)
{
    size_t large = c->large != 0 ? c->large : ((size_t)20 << 20) + 5;
    const size_t sizes[] = {1, 4095, 4096, 4097, 65536, 1 << 20, large};
    ldr_backend_t *one = open_well(c), *other = open_well(c);
    char name[LDR_OBJECT_NAME_MAX + 1];

    contract_clear(one, AREA);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t bytes = 0;

        snprintf(name, sizeof(name), AREA "bytes/%zu", i);
        assert_int_equal(contract_put(one, name, sizes[i], LDR_OBJECT_NEW), 0);
        /* Seen at once, by everybody, whole and in parts. */
        assert_int_equal(
            other->ops->size(other, name, &bytes, contract_deadline()), 0);
        assert_int_equal(bytes, sizes[i]);
        contract_check(other, name, 0, sizes[i]);
        contract_check(one, name, sizes[i] - 1, 1);
        contract_check(one, name, sizes[i] / 2, sizes[i] - sizes[i] / 2);
    }
    check_odd(other, AREA "bytes/5");
    contract_check(other, AREA "bytes/5", 64 << 10, 256 << 10);
    /* The longest name, and one in many parts. */
    memset(name, 'a', LDR_OBJECT_NAME_MAX);
    memcpy(name, AREA "bytes/", strlen(AREA "bytes/"));
    name[LDR_OBJECT_NAME_MAX] = '\0';
    assert_int_equal(contract_put(one, name, 10, LDR_OBJECT_NEW), 0);
    contract_check(other, name, 0, 10);
    assert_int_equal(contract_put(one, AREA "bytes/a/b/c/d/e.f-0/9", 10, 0), 0);
    contract_check(other, AREA "bytes/a/b/c/d/e.f-0/9", 0, 10);
    put_scattered(one, AREA "bytes/scattered", 3000, false);
    put_scattered(other, AREA "bytes/scattered", 3000, true);
    contract_clear(one, AREA "bytes/");
    other->ops->destroy(other);
    one->ops->destroy(one);
}

/* ---- errors ---- */

/* A failure has a text, with the object's name in it. */
static void assert_says(int error, int want, const char *name)
{
    if (error != want) {
        fail_msg("%s: %d in place of %d: %s", name, error, want,
                 ldr_fail_text());
    }
    if (strstr(ldr_fail_text(), name) == NULL) {
        fail_msg("'%s' does not name %s", ldr_fail_text(), name);
    }
    ldr_fail_clear();
}

/* Asked as the cleaner does. */
static int exists(ldr_backend_t *b, const char *name)
{
    uint64_t bytes;

    return b->ops->exists != NULL
               ? b->ops->exists(b, name, contract_deadline())
               : b->ops->size(b, name, &bytes, contract_deadline());
}

void contract_errors(const contract_t *c)
{
    static const char *const wrong[] = {"",     "/a",   "a/", "a//b",   ".a",
                                        "a/.b", "../a", "A",  "a/../b", "a b"};
    const char *const name = AREA "errors/there";
    ldr_backend_t *b = open_well(c);
    uint64_t bytes;

    assert_int_equal(contract_put(b, name, 5000, 0), 0);
    assert_int_equal(exists(b, name), 0);
    assert_says(get(b, name, 0, 5001), -ENODATA, name);
    assert_says(get(b, name, 4096, 4096), -ENODATA, name);
    assert_says(get(b, name, 5000, 1), -ENODATA, name);
    assert_says(get(b, name, 1 << 30, 4096), -ENODATA, name);
    contract_check(b, name, 4999, 1);
    assert_says(get(b, AREA "errors/absent", 0, 1), -ENOENT,
                AREA "errors/absent");
    assert_says(get(b, AREA "nowhere/absent", 0, 1), -ENOENT,
                AREA "nowhere/absent");
    assert_says(
        b->ops->size(b, AREA "errors/absent", &bytes, contract_deadline()),
        -ENOENT, AREA "errors/absent");
    assert_says(exists(b, AREA "errors/absent"), -ENOENT, AREA "errors/absent");
    /* Some media do not say whether there was one. */
    int error = b->ops->remove(b, AREA "errors/absent", contract_deadline());
    assert_true(error == 0 || error == -ENOENT);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(contract_put(b, wrong[i], 1, 0), -EINVAL);
        assert_int_equal(get(b, wrong[i], 0, 1), -EINVAL);
        assert_int_equal(b->ops->size(b, wrong[i], &bytes, contract_deadline()),
                         -EINVAL);
        assert_int_equal(b->ops->remove(b, wrong[i], contract_deadline()),
                         -EINVAL);
    }
    assert_int_equal(b->ops->remove(b, name, contract_deadline()), 0);
    assert_says(get(b, name, 0, 1), -ENOENT, name);
    assert_says(b->ops->size(b, name, &bytes, contract_deadline()), -ENOENT,
                name);
    b->ops->destroy(b);
}

/* ---- putting over ---- */

void contract_replace(const contract_t *c)
{
    const char *const name = AREA "replace/a";
    ldr_backend_t *one = open_well(c), *other = open_well(c);
    uint64_t bytes;

    assert_int_equal(contract_put(one, name, 3 << 20, LDR_OBJECT_NEW), 0);
    contract_check(other, name, 0, 3 << 20);
    assert_says(contract_put(other, name, 100, LDR_OBJECT_NEW), -EEXIST, name);
    contract_check(one, name, 0, 3 << 20);
    /* Nothing is left of what was longer, whoever had read it before. */
    assert_int_equal(contract_put(other, name, 100, 0), 0);
    assert_int_equal(one->ops->size(one, name, &bytes, contract_deadline()), 0);
    assert_int_equal(bytes, 100);
    contract_check(one, name, 0, 100);
    assert_says(get(one, name, 0, 101), -ENODATA, name);
    /* Gone, and free again. */
    assert_int_equal(one->ops->remove(one, name, contract_deadline()), 0);
    assert_int_equal(contract_put(other, name, 200, LDR_OBJECT_NEW), 0);
    contract_check(one, name, 0, 200);
    contract_clear(one, AREA "replace/");
    other->ops->destroy(other);
    one->ops->destroy(one);
}

/* ---- listing ---- */

/* In the order of their bytes. */
static const char *const order[] = {
    AREA "list/a",     AREA "list/a-b",   AREA "list/a.b", AREA "list/a/b",
    AREA "list/a/b-c", AREA "list/a/b/c", AREA "list/a0",  AREA "list/ab",
    AREA "list/b/a",   AREA "list/b0",
};
#define ORDER (sizeof(order) / sizeof(order[0]))

/* A file system cannot have both a and a/b. */
static bool listed(size_t i)
{
    return strcmp(order[i], AREA "list/a") != 0 &&
           strcmp(order[i], AREA "list/a/b") != 0;
}

static void check_order(ldr_backend_t *b, const char *prefix, const char *after)
{
    names_t n;
    size_t at = 0;

    names_make(&n, 64);
    assert_int_equal(list(b, prefix, after, &n), 0);
    for (size_t i = 0; i < ORDER; i++) {
        if (listed(i) && strncmp(order[i], prefix, strlen(prefix)) == 0 &&
            (after == NULL || strcmp(order[i], after) > 0)) {
            assert_true(at < n.count);
            assert_string_equal(n.name[at], order[i]);
            assert_true(n.bytes[at] == 0 || n.bytes[at] == 10 + i);
            at++;
        }
    }
    assert_int_equal(at, n.count);
    names_free(&n);
}

static void check_many(const contract_t *c, ldr_backend_t *b)
{
    unsigned many = c->many != 0 ? c->many : 1100;
    char name[64], last[64] = "";
    names_t n;
    size_t seen = 0;

    for (unsigned i = 0; i < many; i++) {
        snprintf(name, sizeof(name), AREA "many/%02x/%04u", i % 7, i);
        assert_int_equal(contract_put(b, name, 1, 0), 0);
    }
    names_make(&n, many + 1);
    assert_int_equal(list(b, AREA "many/", NULL, &n), 0);
    assert_int_equal(n.count, many);
    for (size_t i = 1; i < n.count; i++) {
        assert_true(strcmp(n.name[i - 1], n.name[i]) < 0);
    }
    /* The same in parts, as one who comes back for more. */
    n.stop = 100;
    for (int error = 42; error == 42; seen += n.count) {
        error = list(b, AREA "many/", last[0] != '\0' ? last : NULL, &n);
        assert_true(error == 42 || error == 0);
        if (n.count > 0) {
            assert_true(strcmp(n.name[0], last) > 0);
            snprintf(last, sizeof(last), "%s", n.name[n.count - 1]);
        }
    }
    assert_int_equal(seen, many);
    names_free(&n);
    contract_clear(b, AREA "many/");
}

void contract_list(const contract_t *c)
{
    ldr_backend_t *one = open_well(c), *other = open_well(c);
    names_t n;

    for (size_t i = ORDER; i-- > 0;) {
        if (listed(i)) {
            assert_int_equal(contract_put(one, order[i], 10 + i, 0), 0);
        }
    }
    check_order(other, AREA "list/", NULL);
    check_order(other, AREA "list/a/", NULL);
    check_order(other, AREA "list/a/b/", NULL);
    for (size_t i = 0; i < ORDER; i++) {
        check_order(other, AREA "list/", order[i]);
        check_order(other, AREA "list/a/", order[i]);
    }
    check_order(other, AREA "list/", AREA "list/a/bb/none");
    check_order(other, AREA "list/", "a");
    check_order(other, AREA "list/", "z");
    names_make(&n, 64);
    assert_int_equal(list(other, AREA "none/", NULL, &n), 0);
    assert_int_equal(n.count, 0);
    n.stop = 2;
    assert_int_equal(list(other, AREA "list/", NULL, &n), 42);
    assert_int_equal(n.count, 2);
    n.stop = 0;
    assert_int_equal(one->ops->remove(one, order[1], contract_deadline()), 0);
    assert_int_equal(list(other, AREA "list/", NULL, &n), 0);
    assert_string_equal(n.name[0], order[2]);
    names_free(&n);
    contract_clear(one, AREA "list/");
    check_many(c, one);
    other->ops->destroy(other);
    one->ops->destroy(one);
}

/* ---- several at once ---- */

typedef struct putter {
    const contract_t *c;
    ldr_backend_t *b; /* every second has its own */
    pthread_barrier_t *start;
    uint8_t mark;
    unsigned won[ROUNDS], failed;
    char why[256];
} putter_t;

static int put_marked(ldr_backend_t *b, const char *name, uint8_t mark,
                      size_t bytes, unsigned flags)
{
    uint8_t *data = ldr_alloc_blocks(bytes);
    struct iovec iov = {data, bytes};

    if (data == NULL) {
        return -ENOMEM;
    }
    memset(data, mark, bytes);
    int error = b->ops->put(b, name, &iov, 1, flags, contract_deadline());
    ldr_free(data);
    return error;
}

/* The mark of what is there, one over its whole length; or an errno. */
static int marked(ldr_backend_t *b, const char *name, size_t bytes)
{
    uint8_t *data = ldr_alloc_blocks(bytes);
    struct iovec iov = {data, bytes};
    int mark = data == NULL
                   ? -ENOMEM
                   : b->ops->get(b, name, 0, &iov, 1, contract_deadline());

    if (mark == 0) {
        mark = data[0];
        for (size_t i = 1; i < bytes; i++) {
            mark = data[i] == data[0] ? mark : -EILSEQ;
        }
    }
    ldr_free(data);
    return mark;
}

/* No asserts here: they belong to the thread of the test. */
static void putter_note(putter_t *p, int error, const char *what)
{
    if (error != 0) {
        p->failed++;
        snprintf(p->why, sizeof(p->why), "%s: %d, %.200s", what, error,
                 ldr_fail_text());
    }
}

static void *putter_main(void *arg)
{
    putter_t *p = arg;
    char name[64];

    for (unsigned i = 0; i < ROUNDS; i++) {
        snprintf(name, sizeof(name), AREA "race/new-%u", i);
        pthread_barrier_wait(p->start);
        int error =
            put_marked(p->b, name, p->mark, LEASE_BYTES, LDR_OBJECT_NEW);
        p->won[i] = error == 0;
        putter_note(p, error == -EEXIST ? 0 : error, "new");
        /* One that is put over and over is whole all the time. */
        error = put_marked(p->b, AREA "race/lease", p->mark, LEASE_BYTES, 0);
        putter_note(p, error, "put over");
        error = marked(p->b, AREA "race/lease", LEASE_BYTES);
        if (error < 0 && !(p->c->blinks && error == -ENOENT)) {
            putter_note(p, error, "got");
        }
    }
    return NULL;
}

void contract_race(const contract_t *c)
{
    ldr_backend_t *shared = open_well(c);
    putter_t putters[PUTTERS] = {0};
    pthread_t threads[PUTTERS];
    pthread_barrier_t start;
    char name[64];

    assert_int_equal(pthread_barrier_init(&start, NULL, PUTTERS), 0);
    for (unsigned i = 0; i < PUTTERS; i++) {
        putters[i] = (putter_t){.c = c,
                                .b = i % 2 == 0 ? shared : open_well(c),
                                .start = &start,
                                .mark = (uint8_t)(i + 1)};
        assert_int_equal(
            pthread_create(&threads[i], NULL, putter_main, &putters[i]), 0);
    }
    for (unsigned i = 0; i < PUTTERS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (unsigned i = 0; i < PUTTERS; i++) {
        if (putters[i].failed > 0) {
            fail_msg("%u failed; %s", putters[i].failed, putters[i].why);
        }
    }
    for (unsigned k = 0; k < ROUNDS; k++) {
        int winner = 0;

        snprintf(name, sizeof(name), AREA "race/new-%u", k);
        for (unsigned i = 0; i < PUTTERS; i++) {
            if (putters[i].won[k]) {
                assert_int_equal(winner, 0);
                winner = putters[i].mark;
            }
        }
        assert_true(winner != 0);
        assert_int_equal(marked(shared, name, LEASE_BYTES), winner);
    }
    for (unsigned i = 1; i < PUTTERS; i += 2) {
        putters[i].b->ops->destroy(putters[i].b);
    }
    pthread_barrier_destroy(&start);
    contract_clear(shared, AREA "race/");
    shared->ops->destroy(shared);
}

/* ---- writers that are killed ---- */

#define KILLED_BYTES ((size_t)(2 << 20) + 4096)

static void killed_child(const contract_t *c, unsigned round, int out)
{
    ldr_backend_t *b = c->open(c->arg);
    char name[64];

    if (b == NULL || b->ops->health(b, contract_deadline()) != 0) {
        _exit(2);
    }
    for (unsigned i = 0; i < 100000; i++) {
        uint8_t *data = ldr_alloc_blocks(KILLED_BYTES);
        struct iovec iov = {data, KILLED_BYTES};

        snprintf(name, sizeof(name), AREA "kill/%u-%05u", round, i);
        if (data == NULL) {
            _exit(3);
        }
        contract_fill(name, 0, data, KILLED_BYTES);
        if (b->ops->put(b, name, &iov, 1, LDR_OBJECT_NEW,
                        contract_deadline()) != 0 ||
            write(out, &i, sizeof(i)) != sizeof(i)) {
            _exit(4);
        }
        ldr_free(data);
    }
    _exit(5);
}

/* Lets it put a few and ends it at some moment after; gives how many it said
 * were there. */
static unsigned kill_one(const contract_t *c, unsigned round)
{
    unsigned done = 0, last = 0;
    int fds[2], status;

    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(fds[0]);
        killed_child(c, round, fds[1]);
    }
    close(fds[1]);
    while (done <= round % 3 &&
           read(fds[0], &last, sizeof(last)) == sizeof(last)) {
        done++;
    }
    assert_true(done > round % 3);
    usleep((useconds_t)(ldr_rand_entropy() % 8000));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    while (read(fds[0], &last, sizeof(last)) == sizeof(last)) {
        done++;
    }
    close(fds[0]);
    return done;
}

void contract_kill(const contract_t *c)
{
    unsigned kills = c->kills != 0 ? c->kills : 10;
    ldr_backend_t *b = open_well(c);
    names_t n;

    names_make(&n, 4096);
    for (unsigned round = 0; round < kills; round++) {
        unsigned done = kill_one(c, round);

        assert_int_equal(list(b, AREA "kill/", NULL, &n), 0);
        /* All that it said, and no more than one that it could not say. */
        assert_true(n.count == done || n.count == done + 1);
        for (size_t i = 0; i < n.count; i++) {
            uint64_t bytes = 0;

            assert_int_equal(
                b->ops->size(b, n.name[i], &bytes, contract_deadline()), 0);
            assert_int_equal(bytes, KILLED_BYTES);
            contract_check(b, n.name[i], 0, KILLED_BYTES);
        }
        contract_clear(b, AREA "kill/");
    }
    names_free(&n);
    b->ops->destroy(b);
}

void contract_run(const contract_t *c)
{
    contract_bytes(c);
    contract_errors(c);
    contract_replace(c);
    contract_list(c);
    contract_race(c);
    contract_kill(c);
}
