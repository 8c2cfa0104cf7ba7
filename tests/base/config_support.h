/* What the tests of the configuration share: a file, and loads of it. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/config.h"
#include "base/log.h"

#define ARGS_MAX 40

static char path[] = "/tmp/larder-config-XXXXXX";

static inline void write_file(const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

/* Loads with flags that are given as one text, with spaces between. */
static inline larder_status_t load(const char *flags, ldr_config_t **config_p)
{
    char text[2048];
    char *argv[ARGS_MAX];
    int argc = 0;
    char *save = NULL;

    snprintf(text, sizeof(text), "%s", flags);
    for (char *word = strtok_r(text, " ", &save); word != NULL;
         word = strtok_r(NULL, " ", &save)) {
        assert_true(argc < ARGS_MAX);
        argv[argc++] = word;
    }
    ldr_fail_clear();
    return ldr_config_load(argc, argv, config_p);
}

static inline ldr_config_t *accept(const char *flags)
{
    ldr_config_t *c = NULL;

    if (load(flags, &c) != LARDER_OK) {
        fail_msg("%s: %s", flags, ldr_fail_text());
    }
    assert_non_null(c);
    return c;
}

static inline void refuse(const char *flags, const char *why)
{
    ldr_config_t *c = (ldr_config_t *)&c;

    if (load(flags, &c) != LARDER_E_INVALID || c != NULL ||
        strstr(ldr_fail_text(), why) == NULL) {
        fail_msg("%s: '%s' lacks '%s'", flags, ldr_fail_text(), why);
    }
}

/* Refused at this line of the file. */
static inline void refuse_file(const char *text, unsigned line, const char *why)
{
    char flags[128], want[128];

    write_file(text);
    snprintf(flags, sizeof(flags), "--config %s", path);
    snprintf(want, sizeof(want), "%s:%u: ", path, line);
    refuse(flags, want);
    refuse(flags, why);
}

static inline ldr_config_t *accept_file(const char *text, const char *flags)
{
    char all[512];

    write_file(text);
    snprintf(all, sizeof(all), "--config %s %s", path, flags);
    return accept(all);
}

static inline void expect_source(const ldr_config_t *c, int option,
                                 unsigned line)
{
    char want[128];

    snprintf(want, sizeof(want), "%s:%u", path, line);
    assert_string_equal(c->source[option], want);
}

static inline int setup(void **s)
{
    int fd = mkstemp(path);

    (void)s;
    close(fd);
    for (int i = 0; i < LDR_OPTION_COUNT; i++) {
        char name[64];
        snprintf(name, sizeof(name), "LARDER_%s", ldr_option_table[i].name);
        for (char *at = name; *at != '\0'; at++) {
            *at = *at >= 'a' && *at <= 'z' ? (char)(*at - 0x20) : *at;
        }
        unsetenv(name);
    }
    unsetenv("LARDER_CONFIG");
    unsetenv("LARDER_DIR");
    unsetenv("RUNTIME_DIRECTORY");
    return fd < 0 ? -1 : 0;
}

static inline int teardown(void **s)
{
    (void)s;
    return unlink(path);
}
