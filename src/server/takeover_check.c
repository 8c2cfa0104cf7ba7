/*
 * Whether addresses can be listened on, and directories used, once the daemon
 * that runs has ended. What is in use now has to be its: a port by
 * net/holder.h, a directory's lock by /proc/PID/fd.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "net/holder.h"
#include "server/session.h"

/* Whether the process may have a directory's lock: what cannot be seen may be.
 * Only files of its name are looked at, and
 * nobody is asked for what the kernel knows: others may lie on disks that hang.
 */
static bool may_have_locked(int64_t pid, const char *lock_path)
{
    const char *name = strrchr(lock_path, '/');
    struct statx wanted, st;
    struct dirent *entry;
    char path[64], link[4096];
    bool has = false;

    snprintf(path, sizeof(path), "/proc/%lld/fd", (long long)pid);
    DIR *dir = pid != 0 ? opendir(path) : NULL;
    if (dir == NULL || name == NULL ||
        statx(AT_FDCWD, lock_path, 0, STATX_INO, &wanted) != 0) {
        if (dir != NULL) {
            closedir(dir);
        }
        return true;
    }
    while (!has && (entry = readdir(dir)) != NULL) {
        ssize_t n =
            readlinkat(dirfd(dir), entry->d_name, link, sizeof(link) - 1);

        link[n > 0 ? n : 0] = '\0';
        const char *last = strrchr(link, '/');
        has = last != NULL && strcmp(last, name) == 0 &&
              statx(dirfd(dir), entry->d_name, AT_STATX_DONT_SYNC, STATX_INO,
                    &st) == 0 &&
              st.stx_ino == wanted.stx_ino &&
              st.stx_dev_major == wanted.stx_dev_major &&
              st.stx_dev_minor == wanted.stx_dev_minor;
    }
    closedir(dir);
    return has;
}

static larder_status_t check_one(const char *option, const char *text,
                                 size_t length, pid_t old)
{
    ldr_address_t address;

    if (!ldr_address_parse(text, length, &address)) {
        return ldr_fail(LARDER_E_INVALID,
                        "%s: '%.*s' is not host:port or [host]:port", option,
                        (int)length, text);
    }
    int fd = ldr_listen_tcp(&address, "");
    if (fd >= 0) {
        close(fd);
        return LARDER_OK;
    }
    if (fd != -EADDRINUSE) {
        return ldr_fail(LARDER_E_IO, "%s: %.*s: cannot listen: %s", option,
                        (int)length, text, strerror(-fd));
    }
    unsigned port = (unsigned)strtoul(address.port, NULL, 10);
    return old == 0 || ldr_holder_may_be((int)old, port)
               ? LARDER_OK
               : ldr_fail(LARDER_E_LOCKED,
                          "%s: %.*s is in use by another program than the "
                          "daemon that runs",
                          option, (int)length, text);
}

larder_status_t ldr_takeover_check(const ldr_config_t *config, int fd)
{
    const ldr_options_t *o = &config->options;
    const char *at = o->listen;
    ldr_peer_t old = {.pid_fd = -1};

    if (ldr_peer_of(fd, &old) == 0 && old.pid_fd >= 0) {
        close(old.pid_fd);
    }
    ldr_predecessor_t owner = {may_have_locked, old.pid};
    larder_status_t st = ldr_node_check(o, &owner);
    while (*at != '\0' && st == LARDER_OK) {
        size_t length = strcspn(at, ",");

        st = check_one("listen", at, length, old.pid);
        at += length + (at[length] == ',');
    }
    if (st != LARDER_OK || strcmp(o->admin, "none") == 0) {
        return st;
    }
    st = ldr_admin_check(o->admin);
    /* It does without an address that nobody asked for: ports.c. */
    return st == LARDER_OK && !ldr_config_is_default(config, LDR_OPTION_admin)
               ? check_one("admin", o->admin, strlen(o->admin), old.pid)
               : st;
}
