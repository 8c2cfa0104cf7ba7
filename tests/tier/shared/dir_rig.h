/* A directory that is a tier, for the tests of dir: and 3fs:. */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fault.h"
#include "tier/shared/contract.h"
#include "support/real.h"

typedef struct dir_rig {
    const char *scheme; /* "dir", "3fs" */
    char path[512];
    ldr_backend_t *b; /* one of the test's own */
} dir_rig_t;

static inline void dir_rig_write(const char *folder, const char *name,
                                 const char *text)
{
    char path[1200];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

/* May be called where no assert may fail, as in a child. */
static inline ldr_backend_t *dir_rig_open(void *arg)
{
    dir_rig_t *r = arg;
    char url[600];
    ldr_backend_t *b = NULL;
    ldr_backend_params_t p = {
        .url = url, .login = "", .threads = 2, .clock = &ldr_clock_real};

    snprintf(url, sizeof(url), "%s:%s", r->scheme, r->path);
    return ldr_backend_open(&p, &b) == LARDER_OK ? b : NULL;
}

static inline void dir_rig_make(dir_rig_t *r, const char *scheme)
{
    *r = (dir_rig_t){.scheme = scheme};
    assert_true(real_dir_make(r->path, sizeof(r->path), "shared"));
    dir_rig_write(r->path, LDR_OBJECTS_ID_NAME, "the first tier");
    r->b = dir_rig_open(r);
    assert_non_null(r->b);
}

static inline void dir_rig_end(dir_rig_t *r)
{
    char command[600];

    r->b->ops->destroy(r->b);
    snprintf(command, sizeof(command), "rm -rf '%s'", r->path);
    assert_int_equal(system(command), 0);
}

static inline int dir_rig_health(dir_rig_t *r)
{
    return r->b->ops->health(r->b, contract_deadline());
}

/* Files below the path whose names begin with this, also those that list()
 * does not show. */
static inline unsigned dir_rig_count(const char *path, const char *begins)
{
    char below[1300];
    const struct dirent *e;
    unsigned count = 0;
    DIR *d = opendir(path);

    while (d != NULL && (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            continue;
        }
        snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
        if (e->d_type == DT_DIR) {
            count += dir_rig_count(below, begins);
        } else {
            count += strncmp(e->d_name, begins, strlen(begins)) == 0;
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return count;
}

static inline int dir_rig_none(void *arg, const char *name, uint64_t bytes)
{
    (void)name;
    (void)bytes;
    ++*(unsigned *)arg;
    return 0;
}

/* How many objects list() shows. */
static inline unsigned dir_rig_listed(ldr_backend_t *b, const char *prefix)
{
    unsigned count = 0;

    assert_int_equal(b->ops->list(b, prefix, NULL, dir_rig_none, &count,
                                  contract_deadline()),
                     0);
    return count;
}
