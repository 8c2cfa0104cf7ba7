/* Options of a node in a cluster, for tests. */
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/options.h"

/* A file with this text, for this process. */
static inline void put_file(char path[LDR_PATH_MAX], const char *text)
{
    snprintf(path, LDR_PATH_MAX, "/tmp/larder-test-cluster-XXXXXX");
    int fd = mkstemp(path); /* 0600 */

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static inline void set_option(ldr_options_t *o, const char *name,
                              const char *value)
{
    int i = ldr_option_find(name, strlen(name));

    assert_true(i >= 0);
    if (ldr_option_set(o, (size_t)i, value) != LARDER_OK) {
        fail_msg("%s=%s: %s", name, value, larder_last_error());
    }
}

static inline ldr_options_t options_of(const char *cluster, const char *name,
                                       const char *secret_path)
{
    ldr_options_t o;

    ldr_options_default(&o);
    set_option(&o, "cluster", cluster);
    set_option(&o, "member_name", name);
    set_option(&o, "cluster_secret", secret_path);
    return o;
}
