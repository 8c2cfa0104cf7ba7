/* A redis-server (or valkey-server) of the test's own. */
#pragma once

#include "tier/shared/backend.h"
#include "tier/shared/servers.h"

#define REDIS_ARGS 48

typedef struct redis {
    char dir[200];
    unsigned port;
    pid_t pid;
    const char *argv[REDIS_ARGS + 1];
    char port_text[8], log[256];
} redis_t;

/* Debian's redis-tools has the server under another name, and no service comes
 * with it: what it is called by, argv[0], says what it does. */
static inline const char *redis_program(void)
{
    static const char *const names[] = {"valkey-server", "redis-server",
                                        "redis-check-rdb"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (server_has(names[i])) {
            return names[i];
        }
    }
    return NULL;
}

static inline void redis_up(redis_t *r)
{
    r->pid = server_start(redis_program(), r->argv, r->log, r->port);
}

/* extra: more arguments, ended by NULL; tls: the port speaks only that. */
static inline void redis_start(redis_t *r, bool tls, const char *const *extra)
{
    const char *base[] = {
        "redis-server", "--bind",    "127.0.0.1", "--save",       "",
        "--daemonize",  "no",        "--port",    tls ? "0" : "", "--dir",
        r->dir,         "--logfile", "",          "--tls-port",   ""};
    unsigned n = 0;

    if (r->dir[0] == '\0') {
        assert_true(real_dir_make(r->dir, sizeof(r->dir), "redis"));
    }
    r->port = server_port();
    snprintf(r->port_text, sizeof(r->port_text), "%u", r->port);
    snprintf(r->log, sizeof(r->log), "%s/log", r->dir);
    for (; n < sizeof(base) / sizeof(base[0]) - (tls ? 0 : 2); n++) {
        r->argv[n] = base[n];
    }
    r->argv[tls ? n - 1 : 8] = r->port_text;
    while (extra != NULL && *extra != NULL) {
        assert_true(n < REDIS_ARGS);
        r->argv[n++] = *extra++;
    }
    r->argv[n] = NULL;
    redis_up(r);
}

static inline void redis_end(redis_t *r)
{
    char folder[300];

    server_end(&r->pid, SIGKILL);
    if (r->dir[0] != '\0') {
        snprintf(folder, sizeof(folder), "%s/appendonlydir", r->dir);
        real_dir_remove(folder);
        real_dir_remove(r->dir);
        r->dir[0] = '\0';
    }
}
