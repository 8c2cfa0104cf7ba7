/*
 * What `larder doctor` has measured on this host, for `larder plan`: the lines
 * of `doctor --json` with bytes a second, of disks and of memory. The last of
 * it is kept in $XDG_STATE_HOME/larder/doctor.json (~/.local/state without
 * that).
 */
#pragma once

#include <stdbool.h>

typedef struct ldr_measured {
    double dram;        /* bytes a second that one thread copies; 0: unknown */
    double read, write; /* of all disks together */
} ldr_measured_t;

#define LDR_MEASURED_PATH 1024u

/* Fields of an object of `doctor --json`: bytes a second. */
#define LDR_MEASURED_WRITES "write_bytes_s"
#define LDR_MEASURED_READS "read_bytes_s"
#define LDR_MEASURED_COPIES "copy_bytes_s"

/* Where it is kept. False: this user has no such place. */
bool ldr_measured_path(char path[LDR_MEASURED_PATH]);

/* 0: read; else an errno. ENODATA: there is no disk in it. */
int ldr_measured_read(const char *path, ldr_measured_t *m);

/* Keeps these lines, in place of what was kept. 0, or an errno. */
int ldr_measured_keep(const char *path, const char *lines);
