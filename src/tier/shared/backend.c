/*
 * The choice of a back end by its URL. No state; a back end that was opened
 * says itself who may call it.
 */
#include "tier/shared/backend.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/options.h"

static const struct {
    const char *scheme;
    larder_status_t (*open)(const ldr_backend_params_t *p, const char *rest,
                            ldr_backend_t **backend_p);
} schemes[] = {
    {"dir:", ldr_dir_open},          {"3fs:", ldr_3fs_open},
    {"s3://", ldr_s3_open},          {"valkey://", ldr_valkey_open},
    {"valkeys://", ldr_valkey_open}, {NULL, NULL},
};

larder_status_t ldr_backend_open(const ldr_backend_params_t *params,
                                 ldr_backend_t **backend_p)
{
    ldr_backend_params_t p = *params;

    p.login = p.login != NULL ? p.login : "";
    if (strlen(p.login) >= LDR_PATH_MAX) {
        return ldr_fail(LARDER_E_INVALID, "shared_login: too long a path");
    }
    for (size_t i = 0; schemes[i].scheme != NULL; i++) {
        size_t length = strlen(schemes[i].scheme);

        if (strncmp(p.url, schemes[i].scheme, length) == 0) {
            return schemes[i].open(&p, p.url + length, backend_p);
        }
    }
    return ldr_fail(LARDER_E_INVALID,
                    "shared=%s: use dir:/PATH, 3fs:/PATH, "
                    "s3://BUCKET/PREFIX?endpoint=URL or valkey://HOST:PORT",
                    params->url);
}

bool ldr_object_name_ok(const char *name)
{
    size_t length = strnlen(name, LDR_OBJECT_NAME_MAX + 1);

    if (length == 0 || length > LDR_OBJECT_NAME_MAX) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        bool first = i == 0 || name[i - 1] == '/';

        if (c == '/' || c == '.') {
            if (first || i + 1 == length) {
                return false;
            }
        } else if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') &&
                   c != '-') {
            return false;
        }
    }
    return true;
}

bool ldr_object_prefix_ok(const char *prefix)
{
    size_t length = strnlen(prefix, LDR_OBJECT_NAME_MAX);
    char name[LDR_OBJECT_NAME_MAX + 2];

    if (length == 0 || length == LDR_OBJECT_NAME_MAX) {
        return length == 0;
    }
    snprintf(name, sizeof(name), "%sx", prefix);
    return prefix[length - 1] == '/' && ldr_object_name_ok(name);
}

int ldr_object_wrong(const char *name)
{
    ldr_fail(LARDER_E_INVALID,
             "'%.*s': no name of an object or prefix, or it is too large",
             (int)LDR_OBJECT_NAME_MAX, name);
    return -EINVAL;
}
