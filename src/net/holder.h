/*
 * Who has it: the process that listens at a port or has locked a file, as /proc
 * tells. Other users' processes may not be seen; what cannot be is not said.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ldr_holder {
    int pid;       /* 0: not known */
    char name[64]; /* of its program, "": not known */
} ldr_holder_t;

/* Who listens at this TCP port, whatever the address. False: nobody, or it
 * cannot be seen. */
bool ldr_holder_of_port(unsigned port, ldr_holder_t *out);

/* Whether this process listens at the port. True too where that cannot be
 * seen. */
bool ldr_holder_may_be(int pid, unsigned port);

/* Who has this file locked (flock). False: as above. */
bool ldr_holder_of_lock(const char *path, ldr_holder_t *out);

/* Whether this process may have the file locked: it has it open, or that cannot
 * be seen. */
bool ldr_holder_may_lock(int64_t pid, const char *path);

/* The Unix socket that a process listens on. False: none, or it cannot be
 * seen. */
bool ldr_holder_socket(int pid, char *path, size_t size);

/* "another program", "nginx, process 12"; of a daemon "larder, process 12". */
void ldr_holder_text(const ldr_holder_t *holder, char *text, size_t size);
