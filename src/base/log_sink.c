/*
 * Log lines of the daemon: format, rate, one write each.
 *
 * Any thread may call it. s->lock guards everything but the level, and is held
 * while a line is written to a pipe or a terminal, which never waits: a line
 * that would wait is lost and counted. Lines for a file go through a ring to a
 * thread, since a file may hang; a caller waits for its line for at most
 * LDR_LOG_WAIT_MS, and for none after one has waited in vain.
 *
 * Invariants: gone <= taken <= added, and added - taken <= RING_BYTES. A kind
 * of line that is remembered began within the last second, or is swept with the
 * next line.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/text.h"
#include "base/thread.h"

#define RATE_DEFAULT 10u
#define KINDS 128u /* remembered at once */
#define PROBES 8u
#define SECOND_NS 1000000000ull
#define TEXT_MAX 600      /* bytes of a line's own text */
#define HINT_MAX 100      /* of the text shown when lines were left out */
#define RING_BYTES 65536u /* of lines that a file has not taken yet */
#define WAIT_NS (LDR_LOG_WAIT_MS * 1000000ull)
#define CLOSE_NS SECOND_NS

/* A kind of lines in the second that began at begin_ns. */
typedef struct kind {
    uint64_t id; /* 0: free */
    uint64_t begin_ns;
    uint64_t count;
    uint64_t left_out;
    larder_log_level_t level;
    char hint[HINT_MAX]; /* the last that was left out */
} kind_t;

struct ldr_log_sink {
    int fd;
    uint64_t format;
    unsigned rate;
    bool journal;
    const ldr_clock_t *clock;
    int level;            /* atomic */
    pthread_mutex_t lock; /* of all below; held across the write */
    uint64_t dropped;     /* lines that could not be written */
    kind_t kinds[KINDS];

    /* A file's lines, each after its length; the thread that writes them. */
    bool threaded, stop, ended;
    bool stuck; /* a line has waited in vain: no other does */
    pthread_t thread;
    pthread_cond_t work, written;
    uint64_t added, taken; /* bytes, ever */
    uint64_t gone;         /* bytes up to here are written, or lost */
    uint8_t ring[RING_BYTES];
};

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static const char level_digits[] = "3467"; /* syslog's */

/* systemd says which stream is the journal's by its file. */
static bool is_journal(int fd)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat st;
    char text[64];

    if (stream == NULL || fstat(fd, &st) != 0) {
        return false;
    }
    snprintf(text, sizeof(text), "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    return strcmp(text, stream) == 0;
}

/* ---- a file ---- */

static void ring_copy(ldr_log_sink_t *s, uint64_t at, void *data, size_t bytes,
                      bool in)
{
    for (size_t i = 0; i < bytes; i++) {
        uint8_t *there = &s->ring[(at + i) % RING_BYTES];

        if (in) {
            *there = ((uint8_t *)data)[i];
        } else {
            ((uint8_t *)data)[i] = *there;
        }
    }
}

/* False: there is no room. With the lock. */
static bool ring_add(ldr_log_sink_t *s, char *line, size_t length)
{
    uint16_t bytes = (uint16_t)length;

    if (s->added - s->taken + sizeof(bytes) + bytes > RING_BYTES) {
        return false;
    }
    ring_copy(s, s->added, &bytes, sizeof(bytes), true);
    ring_copy(s, s->added + sizeof(bytes), line, bytes, true);
    s->added += sizeof(bytes) + bytes;
    pthread_cond_signal(&s->work);
    return true;
}

static bool write_line(int fd, const char *line, size_t length)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    ssize_t n;

    while (LDR_FAULT(log_hang)) {
        nanosleep(&pause, NULL);
    }
    do {
        n = write(fd, line, length);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)length;
}

static void *file_main(void *arg)
{
    ldr_log_sink_t *s = arg;
    char line[PIPE_BUF];

    ldr_mutex_lock(&s->lock);
    while (!s->stop || s->taken < s->added) {
        uint16_t bytes;

        if (s->taken == s->added) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        ring_copy(s, s->taken, &bytes, sizeof(bytes), false);
        ring_copy(s, s->taken + sizeof(bytes), line, bytes, false);
        s->taken += sizeof(bytes) + bytes;
        ldr_mutex_unlock(&s->lock);
        bool ok = write_line(s->fd, line, bytes);
        ldr_mutex_lock(&s->lock);
        s->dropped += !ok;
        s->gone = s->taken;
        s->stuck = false;
        pthread_cond_broadcast(&s->written);
    }
    s->ended = true;
    pthread_cond_broadcast(&s->written);
    ldr_mutex_unlock(&s->lock);
    return NULL;
}

/* Until what was added is written; not for long, and not again while nothing
 * is. With the lock, which it drops. */
static void file_wait(ldr_log_sink_t *s)
{
    uint64_t mine = s->added;
    uint64_t end = ldr_now_ns(&ldr_clock_real) + WAIT_NS;

    while (s->threaded && !s->stuck && s->gone < mine) {
        s->stuck =
            !ldr_cond_wait_until(&s->written, &s->lock, end) && s->gone < mine;
    }
}

/* Without a thread, or its conditions, lines are written where they are made.
 */
static void file_open(ldr_log_sink_t *s)
{
    struct stat st;

    if (fstat(s->fd, &st) != 0 || !S_ISREG(st.st_mode) ||
        !ldr_cond_init(&s->work)) {
        return;
    }
    if (!ldr_cond_init(&s->written)) {
        pthread_cond_destroy(&s->work);
        return;
    }
    s->threaded = ldr_thread_start(&s->thread, "larder-log", file_main, s);
    if (!s->threaded) {
        pthread_cond_destroy(&s->work);
        pthread_cond_destroy(&s->written);
    }
}

/* False: it hangs, and all of the sink is left to it. With the lock. */
static bool file_close(ldr_log_sink_t *s)
{
    uint64_t end = ldr_now_ns(&ldr_clock_real) + CLOSE_NS;
    bool in_time = true;

    s->stop = true;
    pthread_cond_signal(&s->work);
    while (!s->ended && in_time) {
        in_time = ldr_cond_wait_until(&s->written, &s->lock, end);
    }
    bool ended = s->ended;
    ldr_mutex_unlock(&s->lock);
    if (!ended) {
        pthread_detach(s->thread);
    } else {
        pthread_join(s->thread, NULL);
        pthread_cond_destroy(&s->work);
        pthread_cond_destroy(&s->written);
    }
    ldr_mutex_lock(&s->lock);
    return ended;
}

/* ---- open ---- */

ldr_log_sink_t *ldr_log_sink_open(const ldr_log_sink_params_t *params)
{
    ldr_log_sink_t *s = ldr_alloc(sizeof(*s));

    if (s == NULL) {
        return NULL;
    }
    ldr_mutex_init(&s->lock);
    s->fd = params->fd;
    s->format = params->format;
    s->level = (int)params->level;
    s->rate = params->rate > 0 ? params->rate : RATE_DEFAULT;
    s->clock = params->clock != NULL ? params->clock : &ldr_clock_real;
    s->journal = is_journal(params->fd);
    file_open(s);
    return s;
}

void ldr_log_sink_set_level(ldr_log_sink_t *s, larder_log_level_t level)
{
    __atomic_store_n(&s->level, (int)level, __ATOMIC_RELAXED);
}

bool ldr_log_sink_wants(const ldr_log_sink_t *s, larder_log_level_t level)
{
    return (int)level <= __atomic_load_n(&s->level, __ATOMIC_RELAXED);
}

/* ---- one line ---- */

static void add_wall(ldr_text_t *out)
{
    struct timespec now;
    struct tm utc;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    ldr_text_add(out, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900,
                 utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min,
                 utc.tm_sec, (int)(now.tv_nsec / 1000000));
}

static void add_escaped(ldr_text_t *out, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c < 0x20 || c == 0x7f) {
            ldr_text_add(out, "\\x%02x", c);
        } else {
            ldr_text_char(out, (char)c);
        }
    }
}

static void line_compose(const ldr_log_sink_t *s, ldr_text_t *out,
                         larder_log_level_t level, const char *text)
{
    uint64_t now = ldr_now_ns(s->clock);
    unsigned long long mono_s = now / SECOND_NS;
    unsigned long long mono_us = now % SECOND_NS / 1000;

    if (s->journal) {
        ldr_text_add(out, "<%c>", level_digits[level]);
    }
    if (s->format == LDR_LOG_JSON) {
        ldr_text_add(out, "{\"time\":\"");
        add_wall(out);
        ldr_text_add(out, "\",\"mono\":%llu.%06llu,\"level\":\"%s\",\"msg\":",
                     mono_s, mono_us, level_names[level]);
        ldr_text_json(out, text);
        ldr_text_char(out, '}');
    } else {
        if (!s->journal) {
            add_wall(out);
            ldr_text_add(out, " %llu.%06llu ", mono_s, mono_us);
        }
        ldr_text_add(out, "%s: ", level_names[level]);
        add_escaped(out, text);
    }
    ldr_text_char(out, '\n');
}

/* False: it could not be written at once. */
static bool line_put(ldr_log_sink_t *s, larder_log_level_t level,
                     const char *text)
{
    char line[PIPE_BUF];
    ldr_text_t out = ldr_text(line, sizeof(line));
    struct pollfd ready = {.fd = s->fd, .events = POLLOUT};
    ssize_t n;

    line_compose(s, &out, level, text);
    if (s->threaded) {
        return ring_add(s, line, out.length);
    }
    /* A pipe that is ready has room for PIPE_BUF bytes. One that nobody will
     * ever read is ready too, with an error. */
    if (poll(&ready, 1, 0) != 1 || ready.revents != POLLOUT) {
        return false;
    }
    do {
        n = write(s->fd, line, out.length);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)out.length;
}

/* With the lock held. */
static void line_say(ldr_log_sink_t *s, larder_log_level_t level,
                     const char *text)
{
    char note[96];

    if (s->dropped > 0) {
        snprintf(note, sizeof(note),
                 "%llu lines were lost: standard error was not read",
                 (unsigned long long)s->dropped);
        if (line_put(s, LARDER_LOG_WARN, note)) {
            s->dropped = 0;
        }
    }
    if (!line_put(s, level, text)) {
        s->dropped++;
    }
}

/* ---- the rate ---- */

/* The kind of a line without a format: its text without digits. */
static uint64_t text_id(const char *text)
{
    uint64_t id = 14695981039346656037u; /* FNV-1a */

    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') {
            id = (id ^ (unsigned char)*text) * 1099511628211u;
        }
    }
    return id;
}

static void kind_summarize(ldr_log_sink_t *s, kind_t *k)
{
    char text[HINT_MAX + 64];

    if (k->left_out == 0) {
        return;
    }
    snprintf(text, sizeof(text), "%llu similar lines suppressed, the last: %s",
             (unsigned long long)k->left_out, k->hint);
    k->left_out = 0;
    line_say(s, k->level, text);
}

/* Writes how many lines were left out of those whose second is over, and frees
 * them. */
static void kinds_sweep(ldr_log_sink_t *s, uint64_t now, bool all)
{
    for (unsigned i = 0; i < KINDS; i++) {
        kind_t *k = &s->kinds[i];

        if (k->id != 0 && (all || now - k->begin_ns >= SECOND_NS)) {
            kind_summarize(s, k);
            k->id = 0;
        }
    }
}

/* Its place, or a free one, or that of the one that wrote least. */
static kind_t *kind_find(ldr_log_sink_t *s, uint64_t id)
{
    kind_t *place = NULL;

    for (unsigned i = 0; i < PROBES; i++) {
        kind_t *k = &s->kinds[(id + i) % KINDS];

        if (k->id == id) {
            return k;
        }
        if (place == NULL ||
            (place->id != 0 && (k->id == 0 || k->count < place->count))) {
            place = k;
        }
    }
    kind_summarize(s, place);
    memset(place, 0, sizeof(*place));
    return place;
}

void ldr_log_sink_line(ldr_log_sink_t *s, larder_log_level_t level,
                       const char *kind, const char *line)
{
    char text[TEXT_MAX];
    uint64_t now, id;
    kind_t *k;

    if ((unsigned)level > LARDER_LOG_DEBUG || !ldr_log_sink_wants(s, level)) {
        return;
    }
    snprintf(text, sizeof(text), "%s", line);
    id = kind != NULL ? (uint64_t)(uintptr_t)kind : text_id(text);
    /* Spread, never 0, and each level for itself. */
    id = ((id << 2 | (uint64_t)level) * 0x9e3779b97f4a7c15u) >> 1 | 1;

    ldr_mutex_lock(&s->lock);
    now = ldr_now_ns(s->clock);
    kinds_sweep(s, now, false);
    k = kind_find(s, id);
    if (k->id == 0) {
        k->id = id;
        k->begin_ns = now;
        k->level = level;
    }
    if (k->count++ < s->rate) {
        line_say(s, level, text);
    } else {
        k->left_out++;
        snprintf(k->hint, sizeof(k->hint), "%s", text);
    }
    file_wait(s);
    ldr_mutex_unlock(&s->lock);
}

void ldr_log_sink_fn(void *sink, larder_log_level_t level, const char *line)
{
    ldr_log_sink_line(sink, level, NULL, line);
}

void ldr_log_sink_tick(ldr_log_sink_t *s)
{
    ldr_mutex_lock(&s->lock);
    kinds_sweep(s, ldr_now_ns(s->clock), false);
    ldr_mutex_unlock(&s->lock);
}

void ldr_log_sink_close(ldr_log_sink_t *s)
{
    if (s == NULL) {
        return;
    }
    ldr_mutex_lock(&s->lock);
    kinds_sweep(s, 0, true);
    bool whole = !s->threaded || file_close(s);
    ldr_mutex_unlock(&s->lock);
    if (!whole) {
        return;
    }
    pthread_mutex_destroy(&s->lock);
    ldr_free(s);
}
