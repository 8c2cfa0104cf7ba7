/* Reads login files. No state; what was read is the caller's, who wipes it. */
#define _GNU_SOURCE
#include "net/login.h"

#include <openssl/crypto.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/auth.h"

#define FILE_MAX 16384u

/* text[FILE_MAX]; always ended with a NUL. */
static larder_status_t read_login(const char *path, char *text)
{
    size_t have = 0;
    larder_status_t st =
        ldr_secret_read(path, "login file", text, FILE_MAX, &have);

    if (st == LARDER_OK &&
        (have == FILE_MAX || memchr(text, '\0', have) != NULL)) {
        st = ldr_fail(LARDER_E_INVALID,
                      "%s: no login file: it has lines NAME=VALUE", path);
    }
    text[have < FILE_MAX ? have : FILE_MAX - 1] = '\0';
    return st;
}

static bool value_ok(const char *value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (value[i] < ' ' || value[i] == 0x7f) {
            return false;
        }
    }
    return bytes > 0 && bytes < LDR_LOGIN_VALUE;
}

static larder_status_t key_find(const char *path, const char *text,
                                const char *name, char *value)
{
    size_t name_bytes = strlen(name);
    unsigned number = 1;

    for (const char *at = text; *at != '\0'; number++) {
        size_t bytes = strcspn(at, "\n");
        const char *next = at + bytes + (at[bytes] == '\n');

        if (bytes > 0 && at[bytes - 1] == '\r') {
            bytes--;
        }
        if (bytes > 0 && at[0] != '#') {
            const char *equals = memchr(at, '=', bytes);
            size_t left =
                equals != NULL ? bytes - (size_t)(equals + 1 - at) : 0;
            if (equals == NULL || !value_ok(equals + 1, left)) {
                return ldr_fail(LARDER_E_INVALID,
                                "%s: line %u: not NAME=VALUE, or the value is "
                                "empty or has control characters",
                                path, number);
            }
            if ((size_t)(equals - at) == name_bytes &&
                memcmp(at, name, name_bytes) == 0) {
                memcpy(value, equals + 1, left);
                value[left] = '\0';
                return LARDER_OK;
            }
        }
        at = next;
    }
    return LARDER_OK;
}

larder_status_t ldr_login_get(const char *path, const char *name,
                              const char *variable, char *value)
{
    char text[FILE_MAX];

    value[0] = '\0';
    if (path == NULL || path[0] == '\0') {
        const char *from = getenv(variable);
        size_t bytes = from != NULL ? strlen(from) : 0;

        if (bytes > 0 && !value_ok(from, bytes)) {
            return ldr_fail(LARDER_E_INVALID,
                            "$%s: too long, or it has control characters",
                            variable);
        }
        if (bytes > 0) {
            memcpy(value, from, bytes + 1);
        }
        return LARDER_OK;
    }
    larder_status_t st = read_login(path, text);
    if (st == LARDER_OK) {
        st = key_find(path, text, name, value);
    }
    OPENSSL_cleanse(text, sizeof(text));
    return st;
}
