/*
 * The trace's buffer and the thread that writes it; trace.h says what a line
 * is. Callers append rows to `in` under the lock, and never wait. The thread
 * swaps `in` and `out` under the lock a few times a second and writes `out`
 * without it.
 */
#include "server/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/thread.h"
#include "net/auth.h"

#define BUFFER_BYTES ((size_t)4 << 20)
#define LOOK_NS 200000000u
#define TEXT_BYTES ((size_t)64 << 10)
#define ID_TEXT 21u /* a number of 64 bits, and a comma */
#define HEAD_TEXT 256u
#define KEY_BYTES 16u /* of a chunk's key: enough to tell it from others */
#define RECENT 4096u
#define AGAIN_MS 1000u
#define SAVED_MS 60000u
#define CHUNK_TOKENS 512u /* where it is not known; that of larder plan */

/* A request in the buffer; its keys follow. */
typedef struct row {
    uint64_t at_ms; /* since 1970 */
    uint64_t id;
    uint32_t space, count;
    uint32_t tokens, chunk_tokens, hint;
    uint32_t saves;
} row_t;

/* A request that came lately, by the number of its last chunk. */
typedef struct recent {
    uint64_t id, last;
    uint64_t at_ms;
} recent_t;

struct ldr_trace {
    ldr_trace_params_t p;
    int fd;
    uint8_t salt[32];
    pthread_t thread;
    pthread_mutex_t lock; /* of the next four */
    pthread_cond_t wake;
    uint8_t *in; /* where requests are put */
    size_t in_bytes;
    bool stop;

    bool ended; /* atomic: nothing more is written */
    /* The thread's own from here on. */
    uint8_t *out;
    uint64_t written; /* bytes of the file */
    uint64_t line_at; /* where in it the last line begins */
    uint64_t *ids;    /* of the request at hand */
    uint32_t id_capacity;
    recent_t recent[RECENT];        /* by id, or by the last chunk's number */
    recent_t recent_chains[RECENT]; /* by that in any case */
    char text[TEXT_BYTES];
    size_t text_bytes;
};

/* ---- by whoever has the request ---- */

void ldr_trace_request(ldr_trace_t *t, uint32_t space, const ldr_announce_t *a)
{
    if (t == NULL || a->count == 0 || (a->hint & LARDER_HINT_OVER) != 0) {
        return;
    }
    row_t row = {
        .at_ms = ldr_wall_ms(t->p.clock),
        .id = a->id,
        .space = space,
        .count = a->count,
        .tokens = a->tokens,
        .chunk_tokens = a->chunk_tokens,
        .hint = a->hint,
        .saves = a->saves,
    };
    size_t bytes = sizeof(row) + (size_t)a->count * KEY_BYTES;
    bool fits = !__atomic_load_n(&t->ended, __ATOMIC_RELAXED);

    ldr_mutex_lock(&t->lock);
    LDR_ASSERT(t->in_bytes <= BUFFER_BYTES);
    fits = fits && bytes <= BUFFER_BYTES - t->in_bytes;
    if (fits) {
        uint8_t *at = t->in + t->in_bytes;

        memcpy(at, &row, sizeof(row));
        at += sizeof(row);
        for (uint32_t i = 0; i < a->count; i++) {
            memcpy(at + (size_t)i * KEY_BYTES, &a->keys[i], KEY_BYTES);
        }
        /* Before it is half full the thread looks by itself. */
        if (t->in_bytes < BUFFER_BYTES / 2 &&
            t->in_bytes + bytes >= BUFFER_BYTES / 2) {
            pthread_cond_signal(&t->wake);
        }
        t->in_bytes += bytes;
    }
    ldr_mutex_unlock(&t->lock);
    if (!fits) {
        ldr_metrics_event(t->p.metrics, LDR_EVENT_TRACE_DROPPED, 1);
    }
}

/* ---- by the thread: the file ---- */

static void trace_end(ldr_trace_t *t)
{
    t->text_bytes = 0;
    if (!__atomic_exchange_n(&t->ended, true, __ATOMIC_RELAXED)) {
        ldr_metrics_level(t->p.metrics, LDR_LEVEL_TRACE_ON, -1);
    }
}

/* Writes the lines in hand: all of them, or the trace ends. */
static void trace_flush(ldr_trace_t *t)
{
    size_t done = 0;

    while (done < t->text_bytes) {
        ssize_t n = write(t->fd, t->text + done, t->text_bytes - done);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            ldr_error(t->p.log, "trace: %s: %s; no more is written", t->p.path,
                      strerror(errno));
            if (ftruncate(t->fd, (off_t)ldr_min64(t->written, t->line_at)) !=
                0) {
                /* A line without an end stays, which `larder plan` names. */
            }
            trace_end(t);
            return;
        }
        done += (size_t)n;
    }
    t->written += done;
    t->text_bytes = 0;
}

static void add_number(ldr_trace_t *t, uint64_t value)
{
    char digits[ID_TEXT];
    size_t n = sizeof(digits);

    do {
        digits[--n] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    memcpy(t->text + t->text_bytes, digits + n, sizeof(digits) - n);
    t->text_bytes += sizeof(digits) - n;
}

/* The longest line of so many chunks. */
static uint64_t line_bytes(uint32_t count)
{
    return HEAD_TEXT + (uint64_t)count * ID_TEXT;
}

static void write_line(ldr_trace_t *t, const row_t *row)
{
    uint32_t block = row->chunk_tokens > 0 ? row->chunk_tokens : CHUNK_TOKENS;
    uint64_t tokens =
        row->tokens > 0 ? row->tokens : (uint64_t)row->count * block;

    if (t->written + t->text_bytes + line_bytes(row->count) > t->p.bytes_max) {
        trace_flush(t);
        ldr_info(t->p.log,
                 "trace: %s has all the %llu bytes of trace_max; no "
                 "more is written",
                 t->p.path, (unsigned long long)t->p.bytes_max);
        trace_end(t);
        return;
    }
    if (t->text_bytes + HEAD_TEXT > sizeof(t->text)) {
        trace_flush(t);
    }
    t->line_at = t->written + t->text_bytes;
    t->text_bytes += (size_t)snprintf(
        t->text + t->text_bytes, HEAD_TEXT,
        "{\"timestamp\":%llu,\"input_length\":%llu,\"output_length\":0,"
        "\"block_tokens\":%u,\"hint\":%u,\"hash_ids\":[",
        (unsigned long long)row->at_ms,
        (unsigned long long)ldr_min64(tokens, UINT32_MAX), block,
        row->hint &
            (LARDER_HINT_CLASS | LARDER_HINT_CLOSED | LARDER_HINT_TEMPLATE));
    for (uint32_t i = 0; i < row->count; i++) {
        if (t->text_bytes + 2 * ID_TEXT > sizeof(t->text)) {
            trace_flush(t);
            if (t->ended) {
                return;
            }
        }
        if (i > 0) {
            t->text[t->text_bytes++] = ',';
        }
        add_number(t, t->ids[i]);
    }
    memcpy(t->text + t->text_bytes, "]}\n", 3);
    t->text_bytes += 3;
    ldr_metrics_event(t->p.metrics, LDR_EVENT_TRACE_WRITTEN, 1);
}

/* ---- by the thread: requests ---- */

/* Whether a request came before; if not, it is remembered from now on. */
static bool is_repeated(ldr_trace_t *t, const row_t *row)
{
    uint64_t last = t->ids[row->count - 1];
    recent_t *e = &t->recent[(row->id != 0 ? row->id : last) % RECENT];

    for (uint32_t i = row->count; row->saves != 0 && i-- > 0;) {
        const recent_t *c = &t->recent_chains[t->ids[i] % RECENT];

        if (c->last == t->ids[i] && row->at_ms - c->at_ms <= SAVED_MS) {
            return true;
        }
    }
    bool same = e->id == row->id && e->last == last &&
                (row->id != 0 || row->at_ms - e->at_ms <= AGAIN_MS);
    *e = (recent_t){row->id, last, row->at_ms};
    t->recent_chains[last % RECENT] = *e;
    return same;
}

/* The numbers of its chunks. False: no memory, or no libcrypto. */
static bool chunk_number(ldr_trace_t *t, const row_t *row, const uint8_t *keys)
{
    if (row->count > t->id_capacity) {
        ldr_free(t->ids);
        t->id_capacity = row->count;
        t->ids = ldr_alloc(t->id_capacity * sizeof(*t->ids));
    }
    if (t->ids == NULL) {
        t->id_capacity = 0;
        return false;
    }
    for (uint32_t i = 0; i < row->count; i++) {
        uint8_t digest[32];
        ldr_piece_t pieces[] = {
            {t->salt, sizeof(t->salt)},
            {&row->space, sizeof(row->space)},
            {keys + (size_t)i * KEY_BYTES, KEY_BYTES},
        };

        if (!ldr_sha256(pieces, 3, digest)) {
            return false;
        }
        memcpy(&t->ids[i], digest, sizeof(t->ids[i]));
    }
    return true;
}

static void take_row(ldr_trace_t *t, const row_t *row, const uint8_t *keys)
{
    ldr_event_t event = LDR_EVENT_TRACE_DROPPED;

    if (!t->ended && chunk_number(t, row, keys)) {
        if (!is_repeated(t, row)) {
            write_line(t, row);
            event = LDR_EVENT_COUNT;
        } else {
            event = LDR_EVENT_TRACE_REPEATED;
        }
    }
    if (event != LDR_EVENT_COUNT) {
        ldr_metrics_event(t->p.metrics, event, 1);
    }
}

static void take_rows(ldr_trace_t *t, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        row_t row;

        memcpy(&row, t->out + at, sizeof(row));
        at += sizeof(row);
        take_row(t, &row, t->out + at);
        at += (size_t)row.count * KEY_BYTES;
    }
    if (!t->ended) {
        trace_flush(t);
    }
}

static void *trace_main(void *arg)
{
    ldr_trace_t *t = arg;
    bool more = true;

    while (more) {
        ldr_mutex_lock(&t->lock);
        if (!t->stop && t->in_bytes < BUFFER_BYTES / 2) {
            ldr_cond_wait_until(&t->wake, &t->lock,
                                ldr_now_ns(t->p.clock) + LOOK_NS);
        }
        size_t bytes = t->in_bytes;
        uint8_t *in = t->in;
        t->in = t->out;
        t->in_bytes = 0;
        t->out = in;
        more = !t->stop;
        ldr_mutex_unlock(&t->lock);
        take_rows(t, bytes);
    }
    return NULL;
}

/* ---- open and close ---- */

static void trace_free(ldr_trace_t *t)
{
    if (t->fd >= 0) {
        close(t->fd);
    }
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    explicit_bzero(t->salt, sizeof(t->salt));
    ldr_free(t->in);
    ldr_free(t->out);
    ldr_free(t->ids);
    ldr_free(t);
}

/* Not blocking: nobody waits for the reader of a pipe. *fd_p is the caller's,
 * whatever is returned; -1: none. */
static larder_status_t file_open(const char *path, int *fd_p, uint64_t *bytes_p)
{
    struct stat st;

    *fd_p = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC,
                 0600);
    if (*fd_p < 0 || fstat(*fd_p, &st) != 0) {
        return ldr_fail(LARDER_E_INVALID, "trace: %s cannot be written: %s",
                        path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode)) {
        return ldr_fail(LARDER_E_INVALID, "trace: %s is not a file", path);
    }
    *bytes_p = (uint64_t)st.st_size;
    return LARDER_OK;
}

larder_status_t ldr_trace_check(const char *path)
{
    uint64_t bytes;
    int fd;
    larder_status_t st = file_open(path, &fd, &bytes);

    if (fd >= 0) {
        close(fd);
    }
    return st;
}

larder_status_t ldr_trace_open(const ldr_trace_params_t *params,
                               ldr_trace_t **trace_p)
{
    ldr_trace_t *t = ldr_alloc(sizeof(*t));
    larder_status_t st = LARDER_E_NO_MEMORY;

    if (t == NULL) {
        return ldr_fail(st, "not enough memory for a trace");
    }
    t->p = *params;
    t->fd = -1;
    t->in = ldr_alloc(BUFFER_BYTES);
    t->out = ldr_alloc(BUFFER_BYTES);
    ldr_mutex_init(&t->lock);
    if (!ldr_cond_init(&t->wake) || t->in == NULL || t->out == NULL ||
        !ldr_nonce(t->salt, sizeof(t->salt))) {
        ldr_fail(st, "not enough memory for a trace");
    } else {
        st = file_open(t->p.path, &t->fd, &t->written);
        t->line_at = t->written;
    }
    if (st == LARDER_OK &&
        !ldr_thread_start(&t->thread, "larder-trace", trace_main, t)) {
        st = ldr_fail(LARDER_E_NO_MEMORY,
                      "a thread for the trace cannot be started");
    }
    if (st != LARDER_OK) {
        trace_free(t);
        return st;
    }
    ldr_metrics_level(t->p.metrics, LDR_LEVEL_TRACE_ON, 1);
    ldr_info(t->p.log, "trace: requests are written to %s", t->p.path);
    *trace_p = t;
    return LARDER_OK;
}

void ldr_trace_close(ldr_trace_t *t)
{
    if (t == NULL) {
        return;
    }
    ldr_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->wake);
    ldr_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    trace_free(t);
}
