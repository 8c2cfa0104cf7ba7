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

/* Takes a descriptor by its name in the directory, and what it leads to. */
typedef bool (*link_fn)(void *arg, int dir, const char *name,
                        const char *target);

/* Whether one of its descriptors leads to what is looked for. -1: that cannot
 * be seen. */
static int has_link(int pid, link_fn wanted, void *arg)
{
    char path[64], target[4096];
    struct dirent *entry;
    int found = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return -1;
    }
    while (found == 0 && (entry = readdir(dir)) != NULL) {
        ssize_t n =
            readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

        target[n > 0 ? n : 0] = '\0';
        found = wanted(arg, dirfd(dir), entry->d_name, target);
    }
    closedir(dir);
    return found;
}

static bool same_text(void *arg, int dir, const char *name, const char *target)
{
    (void)dir;
    (void)name;
    return strcmp(arg, target) == 0;
}

static bool find_process(char *socket, ldr_holder_t *out)
{
    struct dirent *entry;
    bool found = false;
    DIR *dir = opendir("/proc");

    while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
        int pid = (int)strtol(entry->d_name, NULL, 10);

        if (pid > 0 && has_link(pid, same_text, socket) == 1) {
            name_of(pid, out);
            found = true;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}

/* ---- ports ---- */

/* Takes a link to a socket. True: no more of them are needed. */
typedef bool (*socket_fn)(void *arg, char *socket);

/* The sockets that listen at the port, whatever their address. */
static bool each_listener(unsigned port, socket_fn take, void *arg)
{
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    char line[512], socket[64];
    bool done = false;

    for (unsigned i = 0; i < 2 && !done; i++) {
        FILE *f = fopen(tables[i], "re");

        while (f != NULL && !done && fgets(line, sizeof(line), f) != NULL) {
            unsigned local, state;
            uint64_t inode;

            if (sscanf(line,
                       " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s "
                       "%*s %*u %*u %" SCNu64,
                       &local, &state, &inode) == 3 &&
                local == port && state == LISTENS) {
                snprintf(socket, sizeof(socket), "socket:[%" PRIu64 "]", inode);
                done = take(arg, socket);
            }
        }
        if (f != NULL) {
            fclose(f);
        }
    }
    return done;
}

static bool take_holder(void *arg, char *socket)
{
    return find_process(socket, arg);
}

bool ldr_holder_of_port(unsigned port, ldr_holder_t *out)
{
    *out = (ldr_holder_t){0};
    return each_listener(port, take_holder, out);
}

typedef struct one_process {
    int pid;
    bool seen; /* that another has a socket there */
} one_process_t;

static bool take_if_its(void *arg, char *socket)
{
    one_process_t *p = arg;
    int has = has_link(p->pid, same_text, socket);

    p->seen = p->seen || has == 0;
    return has == 1;
}

bool ldr_holder_may_be(int pid, unsigned port)
{
    one_process_t p = {.pid = pid};

    return each_listener(port, take_if_its, &p) || !p.seen;
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

typedef struct lock_file {
    const char *name; /* with its slash */
    struct statx st;
} lock_file_t;

/* Only files of its name are looked at, and nobody is asked for what the kernel
 * knows: others may lie on disks that hang. */
static bool is_lock(void *arg, int dir, const char *name, const char *target)
{
    const lock_file_t *lock = arg;
    const char *last = strrchr(target, '/');
    struct statx st;

    return last != NULL && strcmp(last, lock->name) == 0 &&
           statx(dir, name, AT_STATX_DONT_SYNC, STATX_INO, &st) == 0 &&
           st.stx_ino == lock->st.stx_ino &&
           st.stx_dev_major == lock->st.stx_dev_major &&
           st.stx_dev_minor == lock->st.stx_dev_minor;
}

bool ldr_holder_may_lock(int64_t pid, const char *path)
{
    lock_file_t lock = {.name = strrchr(path, '/')};

    return pid == 0 || lock.name == NULL ||
           statx(AT_FDCWD, path, 0, STATX_INO, &lock.st) != 0 ||
           has_link((int)pid, is_lock, &lock) != 0;
}

/* ---- Unix sockets ---- */

typedef struct socket_path {
    char *path;
    size_t size;
} socket_path_t;

/* Whether the link is a Unix socket that listens, and where. */
static bool listens(void *arg, int dir, const char *name, const char *target)
{
    (void)dir;
    (void)name;
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

    return has_link(pid, listens, &out) == 1;
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
