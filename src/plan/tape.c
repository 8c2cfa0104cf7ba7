/*
 * Writing and reading a tape.
 *
 * While a trace is read, requests and ids wait in hand and are written when a
 * buffer is full, blocks always before the requests that name them are counted.
 * After that the tape's files do not change, except ldr_tape_future(), which
 * adds one. One thread.
 */
#include "plan/tape.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "plan/ids.h"
#include "plan/line.h"
#include "store/index.h"

#define LINE_BYTES_MIN ((size_t)1 << 20)
#define LINE_BYTES_MAX ((size_t)64 << 20)
#define REQUESTS_AT_ONCE 8192u
#define BLOCKS_AT_ONCE (128u << 10)
#define IDS_AHEAD 16u        /* that are asked for before their turn */
#define PROGRESS_EVERY 2048u /* requests */

/* ---- files ---- */

int ldr_tape_file(const char *folder)
{
    char path[512];

    if (folder == NULL) {
        folder = getenv("TMPDIR");
    }
    if (folder == NULL || folder[0] == '\0') {
        folder = "/var/tmp";
    }
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && errno != ENOENT && errno != EACCES) {
        /* Not every file system has files without names. */
        snprintf(path, sizeof(path), "%s/larder-plan-XXXXXX", folder);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0) {
            unlink(path);
        }
    }
    if (fd < 0) {
        ldr_fail(LARDER_E_IO,
                 "cannot make a temporary file in %s: %s; TMPDIR names another "
                 "folder",
                 folder, strerror(errno));
    }
    return fd;
}

bool ldr_tape_pread(int fd, void *to, size_t bytes, uint64_t offset)
{
    char *at = to;

    while (bytes > 0) {
        ssize_t n = pread(fd, at, bytes, (off_t)offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            ldr_fail(LARDER_E_IO, "a temporary file cannot be read: %s",
                     n == 0 ? "it is too short" : strerror(errno));
            return false;
        }
        at += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

bool ldr_tape_pwrite(int fd, const void *from, size_t bytes, uint64_t offset)
{
    const char *at = from;

    while (bytes > 0) {
        ssize_t n = pwrite(fd, at, bytes, (off_t)offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            ldr_fail(LARDER_E_IO,
                     "a temporary file cannot be written: %s; TMPDIR names "
                     "another folder",
                     strerror(errno));
            return false;
        }
        at += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

/* ---- reading the text ---- */

typedef struct reader {
    ldr_tape_t *tape;
    const ldr_tape_watch_t *watch;
    uint64_t hash_max; /* blocks above are not on the tape */
    int fd;
    const char *path;
    uint64_t at, size; /* bytes that were read, of so many; 0: not known */
    ldr_id_map_t ids;
    ldr_line_t line;
    uint64_t first_ms, last_ms;
    char *text;
    size_t capacity, from, to; /* of text; from..to is not used yet */
    bool ended;
    bool skipping; /* inside a line that is too long */
    bool asked;    /* how many tokens a block has; else the lines say it */
    ldr_tape_request_t *requests;
    uint64_t *ids_in_hand; /* become blocks together */
    uint32_t *blocks;
    uint32_t request_count, block_count; /* in hand */
    uint64_t requests_written, blocks_written;
} reader_t;

static bool write_requests(reader_t *r)
{
    if (!ldr_tape_pwrite(r->tape->request_fd, r->requests,
                         r->request_count * sizeof(*r->requests),
                         r->requests_written * sizeof(*r->requests))) {
        return false;
    }
    r->requests_written += r->request_count;
    r->request_count = 0;
    return true;
}

/* Numbers the ids in hand, in their order. */
static bool number_ids(reader_t *r)
{
    for (uint32_t i = 0; i < r->block_count; i++) {
        if (i + IDS_AHEAD < r->block_count) {
            ldr_id_map_prefetch(&r->ids, r->ids_in_hand[i + IDS_AHEAD]);
        }
        r->blocks[i] = ldr_id_map_get(&r->ids, r->ids_in_hand[i]);
        if (r->blocks[i] == LDR_NIL) {
            ldr_fail(LARDER_E_NO_MEMORY,
                     "no memory for more than %u different blocks",
                     r->ids.count);
            return false;
        }
    }
    return true;
}

static bool write_blocks(reader_t *r)
{
    if (!number_ids(r) ||
        !ldr_tape_pwrite(r->tape->block_fd, r->blocks,
                         r->block_count * sizeof(*r->blocks),
                         r->blocks_written * sizeof(*r->blocks))) {
        return false;
    }
    r->blocks_written += r->block_count;
    r->block_count = 0;
    return true;
}

/* Times start at 0 and do not go back: some traces are not quite in order. */
static uint64_t time_of(reader_t *r, uint64_t at_ms)
{
    if (r->tape->requests == 0) {
        r->first_ms = at_ms;
        r->last_ms = at_ms;
    }
    if (at_ms < r->last_ms) {
        r->tape->back++;
        at_ms = r->last_ms;
    }
    r->last_ms = at_ms;
    return at_ms - r->first_ms;
}

static bool keep_request(reader_t *r)
{
    ldr_tape_t *tape = r->tape;
    const ldr_line_t *line = &r->line;

    uint32_t count = 0;
    for (uint32_t i = 0; i < line->count; i++) {
        if (r->hash_max != UINT64_MAX &&
            ldr_id_map_hash(~line->ids[i]) > r->hash_max) {
            continue;
        }
        count++;
        r->ids_in_hand[r->block_count++] = line->ids[i];
        if (r->block_count == BLOCKS_AT_ONCE && !write_blocks(r)) {
            return false;
        }
    }
    r->requests[r->request_count++] = (ldr_tape_request_t){
        .at_ms = time_of(r, line->at_ms),
        .input_tokens = line->input_tokens,
        .output_tokens = line->output_tokens,
        .count = count,
        .hint = line->hint,
    };
    tape->requests++;
    tape->references += count;
    tape->all += line->count;
    tape->input_tokens += line->input_tokens;
    tape->longest = count > tape->longest ? count : tape->longest;
    if (!r->asked && line->block_tokens > tape->block_tokens) {
        tape->block_tokens = line->block_tokens;
    }
    if (r->watch->progress != NULL && tape->requests % PROGRESS_EVERY == 0) {
        r->watch->progress(r->watch->arg, r->at, r->size);
    }
    return r->request_count < REQUESTS_AT_ONCE || write_requests(r);
}

static void bad_line(reader_t *r, const char *why)
{
    r->tape->bad++;
    if (r->watch->bad != NULL) {
        r->watch->bad(r->watch->arg, r->tape->lines, why);
    }
}

static bool is_empty(const char *text, size_t bytes)
{
    while (bytes > 0 && (*text == ' ' || *text == '\t' || *text == '\r')) {
        text++;
        bytes--;
    }
    return bytes == 0;
}

static bool take_line(reader_t *r, const char *text, size_t bytes)
{
    r->tape->lines++;
    if (r->skipping) {
        r->skipping = false;
        bad_line(r, "it is longer than 64 MiB");
        return true;
    }
    if (is_empty(text, bytes)) {
        return true;
    }
    const char *why = ldr_line_parse(&r->line, text, bytes);
    if (why != NULL) {
        bad_line(r, why);
        return true;
    }
    return keep_request(r);
}

/* "-" is standard input. */
static larder_status_t open_trace(reader_t *r, const char *path)
{
    struct stat info;
    bool is_file = strcmp(path, "-") != 0;

    r->path = is_file ? path : "standard input";
    r->fd = is_file ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    if (r->fd < 0) {
        return ldr_fail(LARDER_E_IO, "%s: %s", r->path, strerror(errno));
    }
    if (fstat(r->fd, &info) == 0 && S_ISREG(info.st_mode)) {
        r->size = (uint64_t)info.st_size;
    }
    return LARDER_OK;
}

/* The program that unpacks what begins so; NULL: it is not compressed. */
static const char *unpacker_of(const void *begin, size_t bytes)
{
    if (bytes >= 4 && memcmp(begin, "\x28\xb5\x2f\xfd", 4) == 0) {
        return "zstd";
    }
    return bytes >= 2 && memcmp(begin, "\x1f\x8b", 2) == 0 ? "gzip" : NULL;
}

/* Up to `bytes` bytes; 0: the end; -1: an error, with ldr_fail(). */
static ssize_t read_trace(reader_t *r, void *to, size_t bytes)
{
    const char *unpacker;
    ssize_t n;

    do {
        n = read(r->fd, to, bytes);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        ldr_fail(LARDER_E_IO, "%s: cannot be read: %s", r->path,
                 strerror(errno));
        return -1;
    }
    unpacker = r->at == 0 ? unpacker_of(to, (size_t)n) : NULL;
    if (unpacker != NULL) {
        ldr_fail(LARDER_E_UNSUPPORTED,
                 "%s: it is compressed; decompress it first: `%s -dc FILE | "
                 "larder plan -`",
                 r->path, unpacker);
        return -1;
    }
    r->at += (uint64_t)n;
    return n;
}

/* Makes room behind what is in hand, and reads on. */
static bool more_text(reader_t *r)
{
    if (r->from > 0) {
        memmove(r->text, r->text + r->from, r->to - r->from);
        r->to -= r->from;
        r->from = 0;
    }
    if (r->to == r->capacity && r->capacity >= LINE_BYTES_MAX) {
        r->skipping = true;
        r->to = 0;
    }
    if (r->to == r->capacity) {
        size_t capacity = r->capacity == 0 ? LINE_BYTES_MIN : r->capacity * 2;
        char *text = ldr_alloc(capacity);

        if (text == NULL) {
            ldr_fail(LARDER_E_NO_MEMORY, "no memory for a line of %zu bytes",
                     r->to);
            return false;
        }
        if (r->to > 0) {
            memcpy(text, r->text, r->to);
        }
        ldr_free(r->text);
        r->text = text;
        r->capacity = capacity;
    }
    ssize_t n = read_trace(r, r->text + r->to, r->capacity - r->to);
    if (n < 0) {
        return false;
    }
    r->to += (size_t)n;
    r->ended = n == 0;
    return true;
}

static bool read_lines(reader_t *r)
{
    size_t seen = 0; /* bytes behind from that hold no newline */

    while (!r->ended) {
        seen = r->to - r->from;
        if (!more_text(r)) {
            return false;
        }
        seen = r->skipping ? 0 : seen;
        for (;;) {
            const char *at = r->text + r->from;
            const char *end = memchr(at + seen, '\n', r->to - r->from - seen);

            if (end == NULL) {
                break;
            }
            if (!take_line(r, at, (size_t)(end - at))) {
                return false;
            }
            r->from += (size_t)(end - at) + 1;
            seen = 0;
        }
        if (r->skipping) { /* none of it will be looked at */
            r->from = r->to;
        }
    }
    return (r->from == r->to && !r->skipping) ||
           take_line(r, r->text + r->from, r->to - r->from);
}

static bool read_all(reader_t *r)
{
    r->requests = ldr_alloc(REQUESTS_AT_ONCE * sizeof(*r->requests));
    r->ids_in_hand = ldr_alloc(BLOCKS_AT_ONCE * sizeof(*r->ids_in_hand));
    r->blocks = ldr_alloc(BLOCKS_AT_ONCE * sizeof(*r->blocks));
    if (r->requests == NULL || r->ids_in_hand == NULL || r->blocks == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory to read a trace");
        return false;
    }
    if (!read_lines(r) || !write_requests(r) || !write_blocks(r)) {
        return false;
    }
    r->tape->distinct = r->ids.count;
    r->tape->duration_ms = r->last_ms - r->first_ms;
    return true;
}

larder_status_t ldr_tape_read(const ldr_tape_params_t *params, ldr_tape_t *tape)
{
    uint64_t began = ldr_now_ns(&ldr_clock_real);
    const char *folder = params->folder;
    reader_t r = {.tape = tape,
                  .watch = &params->watch,
                  .asked = params->block_tokens > 0};

    *tape = (ldr_tape_t){
        .request_fd = -1,
        .block_fd = -1,
        .future_fd = -1,
        .sample = params->sample,
        .block_tokens = params->block_tokens,
    };
    r.hash_max = params->sample >= 1
                     ? UINT64_MAX
                     : (uint64_t)(params->sample * 18446744073709549568.0);
    larder_status_t st = open_trace(&r, params->path);
    if (st != LARDER_OK) {
        return st;
    }
    tape->request_fd = ldr_tape_file(folder);
    tape->block_fd = tape->request_fd >= 0 ? ldr_tape_file(folder) : -1;
    bool ok = tape->block_fd >= 0 && read_all(&r);
    tape->took_s = (double)(ldr_now_ns(&ldr_clock_real) - began) * 1e-9;
    if (r.fd != STDIN_FILENO) {
        close(r.fd);
    }
    ldr_id_map_free(&r.ids);
    ldr_line_free(&r.line);
    ldr_free(r.text);
    ldr_free(r.requests);
    ldr_free(r.ids_in_hand);
    ldr_free(r.blocks);
    if (!ok) {
        ldr_tape_close(tape);
    }
    return ok ? LARDER_OK : LARDER_E_IO;
}

void ldr_tape_close(ldr_tape_t *tape)
{
    if (tape->request_fd >= 0) {
        close(tape->request_fd);
    }
    if (tape->block_fd >= 0) {
        close(tape->block_fd);
    }
    if (tape->future_fd >= 0) {
        close(tape->future_fd);
    }
    tape->request_fd = -1;
    tape->block_fd = -1;
    tape->future_fd = -1;
}

/* ---- playing it ---- */

larder_status_t ldr_player_open(const ldr_tape_t *tape, ldr_player_t *p)
{
    *p = (ldr_player_t){.tape = tape};
    p->block_capacity =
        tape->longest > BLOCKS_AT_ONCE ? tape->longest : BLOCKS_AT_ONCE;
    p->requests = ldr_alloc(REQUESTS_AT_ONCE * sizeof(*p->requests));
    p->blocks = ldr_alloc((size_t)p->block_capacity * sizeof(*p->blocks));
    if (p->requests == NULL || p->blocks == NULL) {
        ldr_player_close(p);
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory to play a trace");
    }
    return LARDER_OK;
}

static bool more_requests(ldr_player_t *p)
{
    uint64_t left = p->tape->requests - p->request_at;
    uint32_t count =
        left < REQUESTS_AT_ONCE ? (uint32_t)left : REQUESTS_AT_ONCE;

    if (!ldr_tape_pread(p->tape->request_fd, p->requests,
                        count * sizeof(*p->requests),
                        p->request_at * sizeof(*p->requests))) {
        return false;
    }
    p->request_at += count;
    p->requests_from = 0;
    p->requests_to = count;
    p->ahead_request = 0;
    p->ahead_block = p->blocks_from;
    return true;
}

static bool more_blocks(ldr_player_t *p)
{
    uint32_t kept = p->blocks_to - p->blocks_from;
    uint64_t left = p->tape->references - p->block_at;
    uint32_t count = p->block_capacity - kept;

    memmove(p->blocks, p->blocks + p->blocks_from,
            (size_t)kept * sizeof(*p->blocks));
    count = left < count ? (uint32_t)left : count;
    if (!ldr_tape_pread(p->tape->block_fd, p->blocks + kept,
                        (size_t)count * sizeof(*p->blocks),
                        p->block_at * sizeof(*p->blocks))) {
        return false;
    }
    p->block_at += count;
    p->ahead_block -= p->blocks_from;
    p->blocks_from = 0;
    p->blocks_to = kept + count;
    return true;
}

int ldr_player_next(ldr_player_t *p, const ldr_tape_request_t **request_p,
                    const uint32_t **blocks_p)
{
    if (p->requests_from == p->requests_to) {
        if (p->request_at == p->tape->requests) {
            return 0;
        }
        if (!more_requests(p)) {
            return -1;
        }
    }
    const ldr_tape_request_t *request = &p->requests[p->requests_from++];
    if (p->blocks_to - p->blocks_from < request->count && !more_blocks(p)) {
        return -1;
    }
    *request_p = request;
    *blocks_p = p->blocks + p->blocks_from;
    p->blocks_from += request->count;
    if (p->ahead_request < p->requests_from) {
        p->ahead_request = p->requests_from;
        p->ahead_block = p->blocks_from;
    }
    return 1;
}

bool ldr_player_ahead(ldr_player_t *p, uint32_t most, uint32_t *block_p)
{
    if (p->ahead_request == p->requests_to ||
        p->ahead_request - p->requests_from >= most ||
        p->ahead_block >= p->blocks_to) {
        return false;
    }
    *block_p = p->blocks[p->ahead_block];
    p->ahead_block += p->requests[p->ahead_request++].count;
    return true;
}

void ldr_player_close(ldr_player_t *p)
{
    ldr_free(p->requests);
    ldr_free(p->blocks);
    p->requests = NULL;
    p->blocks = NULL;
}
