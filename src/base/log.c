/*
 * Log lines, and the text behind larder_last_error().
 *
 * State: the text of the last failure, one for each thread; nobody else sees
 * it. A log is the caller's, and is only read here. Any thread may call, under
 * any lock: no function here takes one but the sink's (log_sink.c).
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static __thread char fail_text[512];

void ldr_log(const ldr_log_t *log, larder_log_level_t level, const char *format,
             ...)
{
    char line[512];
    va_list args;
    bool is_sink = log != NULL && log->fn == ldr_log_sink_fn;

    if (is_sink && !ldr_log_sink_wants(log->arg, level)) {
        return;
    }
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);

    ldr_log_line(log, level, format, line);
}

void ldr_log_line(const ldr_log_t *log, larder_log_level_t level,
                  const char *format, const char *line)
{
    if (log != NULL && log->fn == ldr_log_sink_fn) {
        ldr_log_sink_line(log->arg, level, format, line);
    } else if (log != NULL && log->fn != NULL) {
        log->fn(log->arg, level, line);
    } else if (level <= LARDER_LOG_WARN) {
        fprintf(stderr, "larder: %s: %s\n",
                level == LARDER_LOG_ERROR ? "error" : "warning", line);
    }
}

void ldr_log_silent(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

larder_status_t ldr_fail(larder_status_t status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(fail_text, sizeof(fail_text), format, args);
    va_end(args);
    return status;
}

const char *ldr_fail_text(void)
{
    return fail_text;
}

void ldr_fail_clear(void)
{
    fail_text[0] = '\0';
}
