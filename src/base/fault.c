/*
 * The fault points of this process, one row each.
 *
 * A row is armed by writing `first` last (release); ldr_fault_fire() reads it
 * first (acquire), so it sees the row's `end`. Passes are counted only while a
 * row is armed. Arming and disarming are a test's or main()'s, one thread at a
 * time; any thread may pass a point, under any lock.
 */
#include "base/fault.h"

#if LDR_FAULTS
#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint32_t ldr_fault_armed;

/* first == 0: disarmed. Fires when first <= pass < end. */
static struct {
    uint64_t first, end, passes, fired;
} points[LDR_FAULT_COUNT];

static const char *const names[LDR_FAULT_COUNT] = {
#define X(name) #name,
    LDR_FAULT_MAP(X)
#undef X
};

bool ldr_fault_fire(ldr_fault_t point)
{
    uint64_t first = __atomic_load_n(&points[point].first, __ATOMIC_ACQUIRE);

    if (first == 0) {
        return false;
    }
    uint64_t pass =
        __atomic_add_fetch(&points[point].passes, 1, __ATOMIC_RELAXED);
    if (pass < first || pass >= points[point].end) {
        return false;
    }
    __atomic_add_fetch(&points[point].fired, 1, __ATOMIC_RELAXED);
    return true;
}

void ldr_fault_arm(ldr_fault_t point, uint64_t nth, uint64_t times)
{
    points[point].passes = 0;
    points[point].fired = 0;
    points[point].end = times == 0 ? UINT64_MAX : nth + times;
    /* Release: who sees first also sees end. Pairs with ldr_fault_fire(). */
    __atomic_store_n(&points[point].first, nth, __ATOMIC_RELEASE);
    __atomic_store_n(&ldr_fault_armed, 1, __ATOMIC_RELEASE);
}

void ldr_fault_disarm_all(void)
{
    __atomic_store_n(&ldr_fault_armed, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < LDR_FAULT_COUNT; i++) {
        __atomic_store_n(&points[i].first, 0, __ATOMIC_RELEASE);
    }
}

uint64_t ldr_fault_passes(ldr_fault_t point)
{
    return __atomic_load_n(&points[point].passes, __ATOMIC_RELAXED);
}

uint64_t ldr_fault_fired(ldr_fault_t point)
{
    return __atomic_load_n(&points[point].fired, __ATOMIC_RELAXED);
}

const char *ldr_fault_name(ldr_fault_t point)
{
    return point < LDR_FAULT_COUNT ? names[point] : "?";
}

static int fault_find(const char *name, size_t length)
{
    for (int i = 0; i < LDR_FAULT_COUNT; i++) {
        if (strlen(names[i]) == length && !memcmp(names[i], name, length)) {
            return i;
        }
    }
    return -1;
}

/* ":" and a plain number; moves *text past it. */
static bool parse_number(const char **text, uint64_t *value_p)
{
    char *end;

    if ((*text)[0] != ':' || (*text)[1] < '0' || (*text)[1] > '9') {
        return false;
    }
    errno = 0;
    *value_p = strtoull(*text + 1, &end, 10);
    *text = end;
    return errno == 0 && *value_p <= UINT64_MAX / 2;
}

/* One pass to check, one to arm, so that a bad text arms nothing. */
static bool fault_walk(const char *text, bool arm)
{
    while (*text != '\0') {
        size_t length = strcspn(text, ":,");
        int point = fault_find(text, length);
        uint64_t nth = 1, times = 1;

        text += length;
        if (point < 0 || (*text == ':' && (!parse_number(&text, &nth) ||
                                           !parse_number(&text, &times)))) {
            return false;
        }
        if (nth == 0 || (*text != ',' && *text != '\0')) {
            return false;
        }
        if (arm) {
            ldr_fault_arm((ldr_fault_t)point, nth, times);
        }
        text += *text == ',';
    }
    return true;
}

bool ldr_fault_parse(const char *text)
{
    return fault_walk(text, false) && fault_walk(text, true);
}
#endif
