/*
 * Finds the process that holds a port or a lock, in /proc. No state; what it
 * finds may have changed by the time it is read.
 */
#define _GNU_SOURCE
#include "net/holder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define LISTENS 0x0au           /* TCP_LISTEN */
#define UNIX_LISTENS 0x00010000 /* __SO_ACCEPTCON */

/* ---- processes ---- */

static void name_of(int pid, ldr_holder_t *out)
{
    char path[64];

    *out = (ldr_holder_t){.pid = pid};
    snprintf(path, sizeof(path), "/proc/%d/comm", pid);
    FILE *f = fopen(path, "re");
    if (f != NULL) {
        if (fgets(out->name, sizeof(out->name), f) != NULL) {
            out->name[strcspn(out->name, "\n")] = '\0';
        }
        fclose(f);
    }
}

typedef bool (*link_fn)(void *arg, const char *target);

/* Whether one of its descriptors leads to what is looked for. */
static bool has_link(const char *pid, link_fn wanted, void *arg)
{
    char path[300], target[256];
    struct dirent *entry;
    bool found = false;

    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *dir = opendir(path);
    while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
        ssize_t n =
            readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

        target[n > 0 ? n : 0] = '\0';
        found = wanted(arg, target);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}

static bool same_text(void *arg, const char *target)
{
    return strcmp(arg, target) == 0;
}

static bool find_process(uint64_t inode, ldr_holder_t *out)
{
    char wanted[64];
    struct dirent *entry;
    bool found = false;
    DIR *dir = opendir("/proc");

    snprintf(wanted, sizeof(wanted), "socket:[%" PRIu64 "]", inode);
    while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            has_link(entry->d_name, same_text, wanted)) {
            name_of((int)strtol(entry->d_name, NULL, 10), out);
            found = true;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}

/* ---- ports ---- */

/* The inode of the socket that listens at this port; 0: none seen. */
static uint64_t listener(const char *table, unsigned port)
{
    FILE *f = fopen(table, "re");
    uint64_t inode = 0, found = 0;
    char line[512];

    while (f != NULL && found == 0 && fgets(line, sizeof(line), f) != NULL) {
        unsigned local, state;

        if (sscanf(line,
                   " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s "
                   "%*s %*u %*u %" SCNu64,
                   &local, &state, &inode) == 3 &&
            local == port && state == LISTENS) {
            found = inode;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

bool ldr_holder_of_port(unsigned port, ldr_holder_t *out)
{
    uint64_t inode = listener("/proc/net/tcp", port);

    *out = (ldr_holder_t){0};
    inode = inode != 0 ? inode : listener("/proc/net/tcp6", port);
    return inode != 0 && find_process(inode, out);
}

/* ---- locks ---- */

bool ldr_holder_of_lock(const char *path, ldr_holder_t *out)
{
    FILE *f = fopen("/proc/locks", "re");
    struct stat st;
    char line[256];
    int found = 0;

    *out = (ldr_holder_t){0};
    if (f == NULL || stat(path, &st) != 0) {
        if (f != NULL) {
            fclose(f);
        }
        return false;
    }
    while (found == 0 && fgets(line, sizeof(line), f) != NULL) {
        unsigned major, minor;
        uint64_t inode;
        int pid;

        if (sscanf(line, "%*d: FLOCK %*s WRITE %d %x:%x:%" SCNu64, &pid, &major,
                   &minor, &inode) == 4 &&
            pid > 0 && inode == st.st_ino &&
            makedev(major, minor) == st.st_dev) {
            found = pid;
        }
    }
    fclose(f);
    if (found != 0) {
        name_of(found, out);
    }
    return found != 0;
}

/* ---- Unix sockets ---- */

typedef struct socket_path {
    char *path;
    size_t size;
} socket_path_t;

/* Whether the link is a Unix socket that listens, and where. */
static bool listens(void *arg, const char *target)
{
    socket_path_t *out = arg;
    uint64_t wanted;
    char line[512];
    bool found = false;

    if (sscanf(target, "socket:[%" SCNu64 "]", &wanted) != 1) {
        return false;
    }
    FILE *f = fopen("/proc/net/unix", "re");
    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
        unsigned long flags;
        uint64_t inode;
        char path[256];

        line[strcspn(line, "\n")] = '\0';
        found =
            sscanf(line, "%*[^:]: %*x %*x %lx %*x %*x %" SCNu64 " %255[^\n]",
                   &flags, &inode, path) == 3 &&
            inode == wanted && (flags & UNIX_LISTENS) != 0 && path[0] == '/' &&
            (size_t)snprintf(out->path, out->size, "%s", path) < out->size;
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

bool ldr_holder_socket(int pid, char *path, size_t size)
{
    socket_path_t out = {path, size};
    char text[16];

    snprintf(text, sizeof(text), "%d", pid);
    return has_link(text, listens, &out);
}

void ldr_holder_text(const ldr_holder_t *holder, char *text, size_t size)
{
    if (holder->pid == 0) {
        snprintf(text, size, "another program");
    } else {
        snprintf(text, size, "%s, process %d",
                 holder->name[0] != '\0' ? holder->name : "another program",
                 holder->pid);
    }
}
