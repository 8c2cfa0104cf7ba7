#define _GNU_SOURCE
#include "shared/login.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define FILE_MAX 16384u

static larder_status_t check_mode(const char *path, int fd)
{
    struct stat st;

    if (fstat(fd, &st) != 0) {
        return ldr_fail(LARDER_E_IO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return ldr_fail(LARDER_E_INVALID, "%s: a login file is a plain file",
                        path);
    }
    if ((st.st_mode & S_IRWXO) != 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "%s: everybody may read or change it (mode %03o): "
                        "chmod o-rwx %s",
                        path, (unsigned)st.st_mode & 0777u, path);
    }
    return LARDER_OK;
}

/* text[FILE_MAX]; always ended with a NUL. */
static larder_status_t read_file(const char *path, char *text)
{
    /* Not blocking: the path may be a pipe, which is refused only then. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    size_t have = 0;
    ssize_t got = 0;

    text[0] = '\0';
    if (fd < 0) {
        return ldr_fail(LARDER_E_INVALID, "%s: cannot read the login file: %s",
                        path, strerror(errno));
    }
    larder_status_t st = check_mode(path, fd);
    while (st == LARDER_OK && have < FILE_MAX) {
        got = read(fd, text + have, FILE_MAX - have);
        if (got > 0) {
            have += (size_t)got;
        } else if (got == 0 || errno != EINTR) {
            break;
        }
    }
    if (st == LARDER_OK && got < 0) {
        st = ldr_fail(LARDER_E_IO, "%s: %s", path, strerror(errno));
    } else if (st == LARDER_OK &&
               (have == FILE_MAX || memchr(text, '\0', have) != NULL)) {
        st = ldr_fail(LARDER_E_INVALID,
                      "%s: no login file: it has lines NAME=VALUE", path);
    }
    close(fd);
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

static larder_status_t find(const char *path, const char *text,
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
    larder_status_t st = read_file(path, text);
    if (st == LARDER_OK) {
        st = find(path, text, name, value);
    }
    OPENSSL_cleanse(text, sizeof(text));
    return st;
}
