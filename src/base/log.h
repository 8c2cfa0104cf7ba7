/*
 * Logging: one line, where a thing is first known, with the object's name.
 * The sink is the process's: set by larder_open(), warnings to stderr before.
 * Also the text behind larder_last_error(), one per thread.
 */
#pragma once

#include "larder/larder.h"

typedef struct ldr_log {
    larder_log_fn fn; /* NULL: stderr, warnings and errors */
    void *arg;
} ldr_log_t;

void ldr_log(const ldr_log_t *log, larder_log_level_t level, const char *format,
             ...) __attribute__((format(printf, 3, 4)));

#define ldr_error(log, ...) ldr_log(log, LARDER_LOG_ERROR, __VA_ARGS__)
#define ldr_warn(log, ...) ldr_log(log, LARDER_LOG_WARN, __VA_ARGS__)
#define ldr_info(log, ...) ldr_log(log, LARDER_LOG_INFO, __VA_ARGS__)

/* Sets this thread's error text and gives the status back:
 * return ldr_fail(LARDER_E_INVALID, "shard %u of %u", shard, shards); */
larder_status_t ldr_fail(larder_status_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
const char *ldr_fail_text(void);
void ldr_fail_clear(void);
