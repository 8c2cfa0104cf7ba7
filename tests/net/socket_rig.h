/* A directory for a test's unix sockets, and the time by which all must end. */
#pragma once

#include <stdio.h>

#include "base/clock.h"
#include "support/real.h"

#define WATCHDOG_NS (60ull * 1000000000u)

static char dir[256], path[300];

static uint64_t in_time(void)
{
    return ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS;
}

static int setup(void **s)
{
    (void)s;
    if (!real_dir_make(dir, sizeof(dir), "socket")) {
        return -1;
    }
    snprintf(path, sizeof(path), "%s/s", dir);
    return 0;
}

static int teardown(void **s)
{
    (void)s;
    real_dir_remove(dir);
    return 0;
}
