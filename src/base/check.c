/*
 * The first broken invariant of this process.
 *
 * `aborts` is set by main() or a test before other threads run. `taken` is won
 * by one thread, which writes `first` and then sets `known` (release); readers
 * look at `known` (acquire) before `first`. So the text never changes once it
 * can be read. Any thread may call, under any lock.
 */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool aborts;

/* Written once, by whoever is first; read after `known`. */
static char first[256];
static bool taken, known;

bool ldr_broken(const char *what, const char *file, int line)
{
    const char *folder = strstr(file, "src/");
    char text[sizeof(first)];

    snprintf(text, sizeof(text), "broken invariant: %s (%s:%d)", what,
             folder != NULL ? folder : file, line);
    if (aborts) {
        fprintf(stderr, "larder: %s; this is a defect of larder\n", text);
        fflush(stderr);
        abort();
    }
    if (!__atomic_exchange_n(&taken, true, __ATOMIC_ACQ_REL)) {
        memcpy(first, text, sizeof(first));
        __atomic_store_n(&known, true, __ATOMIC_RELEASE);
    }
    return false;
}

const char *ldr_broken_text(void)
{
    return __atomic_load_n(&known, __ATOMIC_ACQUIRE) ? first : NULL;
}

void ldr_check_abort(void)
{
    aborts = true;
}

void ldr_check_remember(void)
{
    aborts = false;
    taken = known = false;
}
