/*
 * Logging: one line, where a thing is first known, with the object's name.
 * The sink is the process's: set by larder_open(), warnings to stderr before.
 * Also the text behind larder_last_error(), one per thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "larder/larder.h"

typedef struct ldr_log {
    larder_log_fn fn; /* NULL: stderr, warnings and errors */
    void *arg;
} ldr_log_t;

void ldr_log(const ldr_log_t *log, larder_log_level_t level, const char *format,
             ...) __attribute__((format(printf, 3, 4)));

/* A line that was made before, of the kind that this format stands for. */
void ldr_log_line(const ldr_log_t *log, larder_log_level_t level,
                  const char *format, const char *line);

/* A larder_log_fn that drops every line. */
void ldr_log_silent(void *arg, larder_log_level_t level, const char *line);

#define ldr_error(log, ...) ldr_log(log, LARDER_LOG_ERROR, __VA_ARGS__)
#define ldr_warn(log, ...) ldr_log(log, LARDER_LOG_WARN, __VA_ARGS__)
#define ldr_info(log, ...) ldr_log(log, LARDER_LOG_INFO, __VA_ARGS__)
#define ldr_debug(log, ...) ldr_log(log, LARDER_LOG_DEBUG, __VA_ARGS__)

/* Sets this thread's error text and gives the status back:
 * return ldr_fail(LARDER_E_INVALID, "shard %u of %u", shard, shards); */
larder_status_t ldr_fail(larder_status_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
const char *ldr_fail_text(void);
void ldr_fail_clear(void);

/*
 * The daemon's sink (log_sink.c). A line is one write(2) of at most PIPE_BUF
 * bytes. A reader that does not read costs lines, never time: what cannot be
 * written at once is dropped, counted, and told with the next line.
 *
 * A file may lie on a mount that hangs, and nothing says so before: a thread
 * writes it. A line waits for its writing, so that it is there when the process
 * dies of what it says; but once it has waited LDR_LOG_WAIT_MS for nothing, no
 * line waits until the thread is back. Meanwhile lines are kept as long as
 * there is room (64 KiB), and then dropped and counted.
 *
 * Text: "2026-01-31T12:00:00.123Z 1234.567890 warn: the line", wall clock in
 * UTC and monotonic seconds; control characters are escaped, so that nothing
 * in a name can look like a line of its own. JSON: time, mono, level, msg.
 * In a journal's stream ($JOURNAL_STREAM) "<4>" stands before a line, and text
 * has no time: the journal has it.
 *
 * Of lines of one kind (the same format string; the same text except its
 * digits, where there is none) at most `rate` are written each second, and
 * then one that says how many were not.
 */
typedef struct ldr_log_sink ldr_log_sink_t;

#define LDR_LOG_WAIT_MS 20u

typedef struct ldr_log_sink_params {
    int fd;                   /* stderr for the daemon; stays the caller's */
    uint64_t format;          /* LDR_LOG_TEXT or LDR_LOG_JSON (options.h) */
    larder_log_level_t level; /* and worse */
    unsigned rate;            /* lines of one kind a second; 0: 10 */
    const struct ldr_clock *clock; /* NULL: the real one */
} ldr_log_sink_params_t;

/* NULL: no memory. */
ldr_log_sink_t *ldr_log_sink_open(const ldr_log_sink_params_t *params);
/* Writes what was not said yet. Nobody may use the sink any more. */
void ldr_log_sink_close(ldr_log_sink_t *sink);
void ldr_log_sink_set_level(ldr_log_sink_t *sink, larder_log_level_t level);
bool ldr_log_sink_wants(const ldr_log_sink_t *sink, larder_log_level_t level);

/* A larder_log_fn whose arg is the sink: for ldr_log_t and larder_open(). */
void ldr_log_sink_fn(void *sink, larder_log_level_t level, const char *line);
/* The same for a line of this kind; ldr_log() passes its format. */
void ldr_log_sink_line(ldr_log_sink_t *sink, larder_log_level_t level,
                       const char *kind, const char *line);

/* Says what was left out in the seconds that are over. Lines do it by the way;
 * this is for a daemon that has none to write. */
void ldr_log_sink_tick(ldr_log_sink_t *sink);
