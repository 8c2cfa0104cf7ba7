/*
 * Invariants that are checked while the program runs.
 *
 * An invariant is what this code has made so: never what somebody else sent,
 * wrote or did, which is validated and answered with a status. A broken one
 * means that the memory of this process can no longer be believed.
 *
 *  - In a process of our own (the program, the tests) it is said and the
 *    process aborts: ldr_check_abort().
 *  - In an engine's process nothing aborts: it is remembered, every handle of
 *    the process answers LARDER_E_POISONED from then on and says so once in its
 *    log. It counts for all handles, since nobody knows how far the damage
 *    reaches.
 *
 * So code goes on after a broken invariant. Where that could do harm (a number
 * out of range, a count below zero) it asks LDR_HOLDS() and does nothing;
 * elsewhere LDR_ASSERT() is enough. Both are for release builds too: a few
 * instructions each. What costs more is LDR_DEBUG_ASSERT(), for debug builds
 * only, as are the holders of locks (thread.h).
 */
#pragma once

#include <stdbool.h>

#ifndef LDR_DEBUG
#define LDR_DEBUG 0
#endif

/* Whether it holds. */
#define LDR_HOLDS(condition)                                                   \
    (__builtin_expect(!!(condition), 1) ||                                     \
     ldr_broken(#condition, __FILE__, __LINE__))

#define LDR_ASSERT(condition)                                                  \
    do {                                                                       \
        if (__builtin_expect(!(condition), 0)) {                               \
            ldr_broken(#condition, __FILE__, __LINE__);                        \
        }                                                                      \
    } while (0)

#if LDR_DEBUG
#define LDR_DEBUG_ASSERT(condition) LDR_ASSERT(condition)
#else
#define LDR_DEBUG_ASSERT(condition) ((void)sizeof(!(condition)))
#endif

/* An invariant does not hold: aborts, or remembers the first one. Gives
 * false. */
bool ldr_broken(const char *what, const char *file, int line)
    __attribute__((cold, noinline));

/* The first one, as a line of text; NULL: all hold. */
const char *ldr_broken_text(void);

/* From now on a broken invariant is told on stderr, and aborts. Before the
 * first thread is started. */
void ldr_check_abort(void);

/* For tests of what an engine sees: remembers instead, beginning with none. */
void ldr_check_remember(void);
