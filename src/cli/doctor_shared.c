/*
 * doctor: the shared tier. Is it one, may it be read and written, does the
 * storage keep what the tier relies on, how fast is it, does its clock agree.
 *
 * What is put lies below "probe/" and is removed at the end. Every call has a
 * deadline within the check's own time; only storage that hangs for longer can
 * keep a probe.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cli/doctor.h"
#include "tier/shared/backend.h"

#define CHECK_NS ((uint64_t)8 * 1000000000) /* of the ten that a check has */
#define PART_NS ((uint64_t)1200000000)      /* of writing, and of reading */
#define LARGE ((size_t)16 << 20)            /* as the tier's objects are */
#define LARGE_MAX 16u
#define SMALL ((size_t)4096)
#define TURNS 5u
#define RACERS 4u
#define SLOW_BYTES ((uint64_t)300 << 20) /* a second; prefill is faster */
#define SKEW_S 2

typedef struct probe {
    const ldr_doctor_t *d;
    ldr_backend_t *b;
    uint64_t deadline_ns;
    char area[40]; /* "probe/RANDOM/" */
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint8_t *data;  /* LARGE bytes, in blocks */
    unsigned large; /* objects of that size */
    uint64_t put_ns, get_ns, list_ns;
    uint64_t put_rate, get_rate; /* bytes a second */
    unsigned problems;
} probe_t;

static uint64_t now_ns(void)
{
    return ldr_now_ns(&ldr_clock_real);
}

static const char *name_of(probe_t *p, const char *what, unsigned n)
{
    snprintf(p->name, sizeof(p->name), "%s%s-%u", p->area, what, n);
    return p->name;
}

static int probe_put(probe_t *p, const char *name, size_t bytes, unsigned flags)
{
    struct iovec iov = {p->data, bytes};

    return p->b->ops->put(p->b, name, &iov, 1, flags, p->deadline_ns);
}

static int probe_get(probe_t *p, const char *name, size_t bytes)
{
    struct iovec iov = {p->data, bytes};

    return p->b->ops->get(p->b, name, 0, &iov, 1, p->deadline_ns);
}

static void probe_bad(probe_t *p, const char *cure, const char *what)
{
    const char *url = p->d->subject;
    bool named = strncmp(what, url, strlen(url)) == 0;

    p->problems++;
    ldr_doctor_say(p->d, LDR_VERDICT_BAD, cure, "%s%s%s", named ? "" : url,
                   named ? "" : ": ", what);
}

/* ---- what the storage must keep ---- */

typedef struct racer {
    probe_t *p;
    pthread_t thread;
    pthread_mutex_t *start; /* held until all are there */
    const bool *off;        /* with it: it is called off */
    uint8_t mark;
    int error;
} racer_t;

static void *racer_main(void *arg)
{
    racer_t *r = arg;
    uint8_t data[64];
    struct iovec iov = {data, sizeof(data)};
    char name[80];

    memset(data, r->mark, sizeof(data));
    snprintf(name, sizeof(name), "%sonce", r->p->area);
    ldr_mutex_lock(r->start);
    bool off = *r->off;
    ldr_mutex_unlock(r->start);
    if (off) {
        return NULL;
    }
    r->error = r->p->b->ops->put(r->p->b, name, &iov, 1, LDR_OBJECT_NEW,
                                 r->p->deadline_ns);
    return NULL;
}

/* Several put the same name at once: one may have it. False: it was said. */
static bool exclusive(probe_t *p)
{
    racer_t racers[RACERS];
    pthread_mutex_t start = PTHREAD_MUTEX_INITIALIZER;
    unsigned started = 0, won = 0, lost = 0, winner = 0;
    bool off = false;
    char name[80];

    ldr_mutex_lock(&start);
    while (started < RACERS && !off) {
        racer_t *r = &racers[started];

        *r = (racer_t){.p = p,
                       .start = &start,
                       .off = &off,
                       .mark = (uint8_t)(started + 1)};
        off = !ldr_thread_start(&r->thread, "probe", racer_main, r);
        started += !off;
    }
    ldr_mutex_unlock(&start);
    for (unsigned i = 0; i < started; i++) {
        pthread_join(racers[i].thread, NULL);
        won += racers[i].error == 0;
        lost += racers[i].error == -EEXIST;
        winner = racers[i].error == 0 ? racers[i].mark : winner;
    }
    if (off) {
        probe_bad(p, NULL, "cannot start a thread");
        return false;
    }
    snprintf(name, sizeof(name), "%sonce", p->area);
    if (won == 1 && lost == RACERS - 1 && probe_get(p, name, 64) == 0 &&
        p->data[0] == winner && p->data[63] == winner) {
        return true;
    }
    probe_bad(
        p,
        "use storage that knows exclusive creation (link() or renameat2() "
        "on a mount, If-None-Match on S3)",
        "does not keep to \"only if there is none of that name\": nodes could "
        "not agree on anything");
    return false;
}

/* What is put over something longer is all that is there after. */
static bool replaces(probe_t *p)
{
    const char *name = name_of(p, "over", 0);
    uint64_t bytes = 0;

    memset(p->data, 1, SMALL);
    int error = probe_put(p, name, SMALL, 0);
    memset(p->data, 2, 100);
    if (error == 0) {
        error = probe_put(p, name, 100, 0);
    }
    if (error == 0) {
        error = p->b->ops->size(p->b, name, &bytes, p->deadline_ns);
    }
    memset(p->data, 0, 100);
    if (error == 0 && bytes == 100 && probe_get(p, name, 100) == 0 &&
        p->data[0] == 2 && p->data[99] == 2) {
        return true;
    }
    probe_bad(
        p, "mount it with stricter caching (NFS: actimeo=1, lookupcache=none)",
        "an object that was replaced can still be seen");
    return false;
}

static int found(void *arg, const char *name, uint64_t bytes)
{
    probe_t *p = arg;

    (void)bytes;
    return strcmp(name, p->name) == 0 ? 1 : 0;
}

/* What was put is listed at once, and what was removed no more. */
static bool lists(probe_t *p)
{
    uint64_t begin = now_ns();

    name_of(p, "listed", 0);
    if (probe_put(p, p->name, SMALL, 0) != 0) {
        probe_bad(p, NULL, ldr_fail_text());
        return false;
    }
    begin = now_ns();
    int seen = p->b->ops->list(p->b, p->area, NULL, found, p, p->deadline_ns);
    p->list_ns = now_ns() - begin;
    int removed = p->b->ops->remove(p->b, p->name, p->deadline_ns);
    int after = p->b->ops->list(p->b, p->area, NULL, found, p, p->deadline_ns);
    if (seen < 0 || removed < 0 || after < 0) {
        probe_bad(p, NULL, ldr_fail_text());
    } else if (seen != 1 || after != 0) {
        p->problems++;
        ldr_doctor_say(p->d, LDR_VERDICT_WARN,
                       "NFS: mount with a small acdirmax",
                       "%s: its listings are not up to date: a node finds "
                       "what others saved later than it could",
                       p->d->subject);
    } else {
        return true;
    }
    return false;
}

/* ---- what only a mount has ---- */

static bool is_mount(const probe_t *p)
{
    return strcmp(p->b->ops->name, "dir") == 0 ||
           strcmp(p->b->ops->name, "3fs") == 0;
}

static const char *mount_path(const probe_t *p)
{
    return strchr(p->d->subject, ':') + 1;
}

static void directories(probe_t *p)
{
    int fd = open(mount_path(p), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 || fsync(fd) == 0 ? 0 : errno;

    if (LDR_FAULT(dir_folder)) {
        error = EINVAL;
    }
    if (error != 0) {
        p->problems++;
        ldr_doctor_say(p->d, LDR_VERDICT_WARN, NULL,
                       "%s: directories cannot be synced (%s): after a loss of "
                       "power, what was put last may be gone",
                       p->d->subject, strerror(error));
    }
    if (fd >= 0) {
        close(fd);
    }
}

/* The server's clock: the time that a new file has. */
static void skew(probe_t *p)
{
    char path[LDR_PATH_MAX];
    struct stat st;
    long long off;

    name_of(p, "clock", 0);
    if (probe_put(p, p->name, 64, 0) != 0) {
        return;
    }
    snprintf(path, sizeof(path), "%s/%s", mount_path(p), p->name);
    if (stat(path, &st) != 0) {
        return;
    }
    off = (long long)st.st_mtime - (long long)ldr_wall_s(&ldr_clock_real);
    if (llabs(off) > SKEW_S) {
        p->problems++;
        ldr_doctor_say(
            p->d, LDR_VERDICT_WARN, "timedatectl set-ntp true, on all hosts",
            "%s: its clock is %lld s %s ours: ages and the "
            "cleaner's turn go by clocks",
            p->d->subject, llabs(off), off > 0 ? "ahead of" : "behind");
    }
}

/* ---- how fast it is ---- */

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Medians of small ones. */
static int latency(probe_t *p)
{
    uint64_t puts[TURNS], gets[TURNS];
    int error = 0;

    for (unsigned i = 0; i < TURNS && error == 0; i++) {
        uint64_t begin = now_ns();

        error = probe_put(p, name_of(p, "small", i), SMALL, LDR_OBJECT_NEW);
        puts[i] = now_ns() - begin;
        begin = now_ns();
        if (error == 0) {
            error = probe_get(p, p->name, SMALL);
        }
        gets[i] = now_ns() - begin;
    }
    if (error == 0) {
        qsort(puts, TURNS, sizeof(puts[0]), by_size);
        qsort(gets, TURNS, sizeof(gets[0]), by_size);
        p->put_ns = puts[TURNS / 2];
        p->get_ns = gets[TURNS / 2];
    }
    return error;
}

static int bandwidth(probe_t *p)
{
    ldr_rand_t random;
    uint64_t begin;
    unsigned n = 0;
    int error = 0;

    ldr_rand_seed(&random, 1);
    for (size_t i = 0; i < LARGE; i += 8) {
        ldr_put64(p->data + i, ldr_rand_next(&random));
    }
    begin = now_ns();
    while (error == 0 && p->large < LARGE_MAX && now_ns() - begin < PART_NS) {
        error =
            probe_put(p, name_of(p, "large", p->large), LARGE, LDR_OBJECT_NEW);
        p->large += error == 0;
    }
    p->put_rate =
        p->large * LARGE * (uint64_t)1000000000 / (now_ns() - begin + 1);
    begin = now_ns();
    while (error == 0 && n < p->large && now_ns() - begin < PART_NS) {
        error = probe_get(p, name_of(p, "large", n), LARGE);
        n += error == 0;
    }
    p->get_rate = n * LARGE * (uint64_t)1000000000 / (now_ns() - begin + 1);
    return error;
}

static void say_speed(probe_t *p)
{
    bool slow = p->get_rate < SLOW_BYTES;

    ldr_doctor_say(
        p->d, slow ? LDR_VERDICT_WARN : LDR_VERDICT_OK,
        slow ? "a faster network or mount" : NULL,
        "%s: puts %.2f GB/s, gets %.2f GB/s; 4 KiB in %.1f and %.1f ms, a "
        "listing in %.1f ms%s",
        p->d->subject, (double)p->put_rate / 1e9, (double)p->get_rate / 1e9,
        (double)p->put_ns / 1e6, (double)p->get_ns / 1e6,
        (double)p->list_ns / 1e6,
        slow ? "; is slow: loading may take longer than computing" : "");
}

/* ---- the check ---- */

static void examine(probe_t *p)
{
    if (latency(p) != 0) {
        probe_bad(p, NULL, ldr_fail_text()); /* it says what to do */
        return;
    }
    if (!exclusive(p) || !replaces(p)) {
        return;
    }
    lists(p);
    if (is_mount(p)) {
        directories(p);
        skew(p);
    }
    if (bandwidth(p) != 0) {
        probe_bad(p, NULL, ldr_fail_text());
        return;
    }
    say_speed(p);
}

static int remove_one(void *arg, const char *name, uint64_t bytes)
{
    probe_t *p = arg;

    (void)bytes;
    p->b->ops->remove(p->b, name, now_ns() + PART_NS);
    return 0;
}

static void clean_up(probe_t *p)
{
    p->b->ops->list(p->b, p->area, NULL, remove_one, p, now_ns() + PART_NS);
    if (is_mount(p)) {
        char path[LDR_PATH_MAX];

        snprintf(path, sizeof(path), "%s/%s", mount_path(p), p->area);
        rmdir(path);
        snprintf(path, sizeof(path), "%s/probe", mount_path(p));
        rmdir(path); /* if nobody else is at it */
    }
}

void ldr_doctor_shared(const ldr_doctor_t *d)
{
    const ldr_options_t *o = &d->config->options;
    probe_t p = {.d = d, .deadline_ns = now_ns() + CHECK_NS};
    ldr_backend_params_t params = {.url = d->subject,
                                   .login = o->shared_login,
                                   .threads = RACERS,
                                   .clock = &ldr_clock_real};

    if (d->subject == NULL) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP,
                       "larder doctor --shared URL looks at one",
                       "no shared tier is configured");
        return;
    }
    p.data = ldr_alloc_blocks(LARGE);
    snprintf(p.area, sizeof(p.area), "probe/%016llx/",
             (unsigned long long)ldr_rand_entropy());
    if (p.data == NULL || ldr_backend_open(&params, &p.b) != LARDER_OK) {
        probe_bad(&p, NULL, p.data == NULL ? "out of memory" : ldr_fail_text());
        ldr_free(p.data);
        return;
    }
    int error = p.b->ops->health(p.b, p.deadline_ns);
    if (error != 0 && !(error == -ENODEV && p.b->ops->makes_itself)) {
        /* The text has what is to be done for a new one. */
        probe_bad(&p, error == -ENODEV ? "mount it, if there is one" : "",
                  ldr_fail_text());
    } else {
        examine(&p);
        clean_up(&p);
    }
    p.b->ops->destroy(p.b);
    ldr_free(p.data);
}
