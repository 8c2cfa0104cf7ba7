/* Back ends of S3 for tests, and their login. */
#pragma once

#include "tier/shared/servers.h"

#include <sys/stat.h>

#include "tier/shared/contract.h"
#include "tier/shared/s3.h"

#define SECRET "testing"
#define BUCKET "larder-test"

static char dir[200];

static inline ldr_backend_t *open_url(const char *url, const char *login)
{
    const ldr_backend_params_t p = {
        .url = url,
        .login = login,
        .threads = 4,
        .log = {real_log_none, NULL},
        .clock = &ldr_clock_real,
    };
    ldr_backend_t *b = NULL;

    if (ldr_backend_open(&p, &b) != LARDER_OK) {
        fail_msg("%s: %s", url, ldr_fail_text());
    }
    return b;
}

static inline const char *in_dir(const char *name)
{
    static char paths[4][300];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

static inline const char *login_file(const char *text)
{
    const char *path = in_dir("login");
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
    return path;
}

static inline const char *right_login(void)
{
    return login_file("access_key=test:tester\nsecret_key=" SECRET "\n");
}

static inline ldr_backend_t *open_at(unsigned port, const char *bucket,
                                     const char *login)
{
    char url[200];

    snprintf(url, sizeof(url),
             "s3://%s/kv/a?endpoint=http://127.0.0.1:%u&region=us-east-1",
             bucket, port);
    return open_url(url, login);
}

static inline void check_says(int error, int want)
{
    if (error != want) {
        fail_msg("%d, not %d: %s", error, want, ldr_fail_text());
    }
    assert_true(ldr_fail_text()[0] != '\0');
    assert_null(strstr(ldr_fail_text(), SECRET));
}

static inline int setup(void **s)
{
    static const char *const variables[] = {
        "AWS_ACCESS_KEY_ID",  "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",  "AWS_REGION",
        "AWS_DEFAULT_REGION", "http_proxy",
        "HTTP_PROXY",         "https_proxy",
        "HTTPS_PROXY",        "all_proxy",
        "ALL_PROXY"};

    (void)s;
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        unsetenv(variables[i]);
    }
    return real_dir_make(dir, sizeof(dir), "s3") ? 0 : -1;
}

static inline int teardown(void **s)
{
    (void)s;
    real_dir_remove(dir);
    return 0;
}
