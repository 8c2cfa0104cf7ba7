/*
 * What the programs larder and larder-bench have in common: their exit codes,
 * how they begin and end, and how each of them finds the other.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>

/* Exit codes, those of docs/reference/cli.md. */
enum {
    LDR_EXIT_OK = 0,
    LDR_EXIT_NO = 1,    /* get: a miss; fsck: damage that is still there */
    LDR_EXIT_USAGE = 2, /* the command line was not understood */
    LDR_EXIT_FAILED = 3 /* it could not be done: input, output, lock... */
};

/* Comes first in main(): from here on a broken invariant aborts the process,
 * and the fault points that $LARDER_FAULTS names are armed. False: the variable
 * was not understood, and a message says so. */
bool ldr_program_begin(void);

/* Comes last in main(): writes out what was printed. Gives `code`, or a failure
 * with a message if that cannot be written. */
int ldr_program_end(int code);

/* The path that the program `name` has if it lies in the folder of this one.
 * False: where this one lies is not known. */
bool ldr_program_beside(const char *name, char path[PATH_MAX]);
