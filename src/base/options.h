/*
 * The one table of options, and the URL that sets them.
 *
 * X(name, kind, default, min, max, text): kind is SIZE (bytes, with K M G T),
 * UINT or ENUM; the default is text and parsed like any value.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

#define LDR_DISKS_MAX 16
#define LDR_PATH_MAX 256

#define LDR_OPTION_MAP(X)                                                      \
    X(dram, SIZE, "256M", 2u << 20, (uint64_t)1 << 44,                         \
      "bytes of the DRAM tier, payload")                                       \
    X(ssd, SIZE, "4G", 4u << 20, (uint64_t)1 << 46,                            \
      "bytes of the SSD tier in each directory")                               \
    X(segment, SIZE, "0", 0, (uint64_t)1 << 30,                                \
      "bytes of one segment file; 0: chosen by ssd")                           \
    X(io, ENUM, "auto", 0, 2,                                                  \
      "auto, uring or plain (threads): how disks are read and written")        \
    X(io_depth, UINT, "32", 1, 1024, "disk requests in flight")                \
    X(io_threads, UINT, "16", 1, 128, "threads when io is plain")              \
    X(verify, ENUM, "load", 0, 1,                                              \
      "load: check every load; entry: trust what was checked entering DRAM")   \
    X(workers, UINT, "2", 1, 64, "threads that carry out tickets")             \
    X(tickets, UINT, "256", 1, 65536, "tickets in flight")                     \
    X(timeout_ms, UINT, "10000", 1, 86400000,                                  \
      "deadline of calls that name none")                                      \
    X(pin_max, SIZE, "0", 0, (uint64_t)1 << 44,                                \
      "bytes each tenant may pin; 0: a quarter of dram")                       \
    X(sync_ms, UINT, "1000", 1, 60000, "age of written data when synced")      \
    X(retry_ms, UINT, "5000", 1, 3600000,                                      \
      "pause before a disk that is off or full is tried again")                \
    X(leases, UINT, "65536", 1, 1u << 24, "shards a handle may hold leased")

enum { LDR_IO_AUTO, LDR_IO_URING, LDR_IO_PLAIN };
enum { LDR_VERIFY_LOAD, LDR_VERIFY_ENTRY };

typedef struct ldr_options {
    char dirs[LDR_DISKS_MAX][LDR_PATH_MAX];
    unsigned dir_count;
#define X(name, kind, def, min, max, text) uint64_t name;
    LDR_OPTION_MAP(X)
#undef X
} ldr_options_t;

typedef struct ldr_option_info {
    const char *name, *kind, *value, *text;
    uint64_t min, max;
} ldr_option_info_t;

extern const ldr_option_info_t ldr_option_table[];
extern const size_t ldr_option_count;

void ldr_options_default(ldr_options_t *o);

/* Parses "embed:DIR[,DIR...][?name=value[&name=value...]]". Percent escapes
 * (%2C for a comma in a path) are decoded in DIRs and values. On failure the
 * error text names the part, and *o is untouched. */
larder_status_t ldr_options_parse(const char *url, ldr_options_t *o);

/* "64M" -> bytes. False if it is no size. */
bool ldr_parse_size(const char *text, uint64_t *bytes_p);
