/*
 * One test, any transport. LARDER_TEST_TRANSPORT says how the handle reaches
 * its node: embed (the default), shm, strict (shared memory with a private
 * window instead of the arena), tcp or tls. Tests give the URL of an
 * embedded node; for the others a real daemon is started with the same options
 * on the same directories, and the handle is opened on it. Each handle has a
 * daemon of its own, which ends with it.
 *
 * The daemon is $LARDER_BUILD/bin/larder, in a folder of its own under TMPDIR
 * with its socket, its certificate and its log.
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "base/options.h"
#include "larder/larder.h"
#include "net/certs.h"

#define TRANSPORT_ARGS 64
#define TRANSPORT_START_MS 60000

typedef struct test_daemon {
    char dir[200];    /* socket, log, certificates */
    char socket[256]; /* of the daemon */
    uint16_t port;
    pid_t pid;
    larder_t *admin; /* by socket: sees the figures of the whole node */
    char text[TRANSPORT_ARGS][600];
    char *args[TRANSPORT_ARGS + 1];
    int arg_count;
    char url[2048]; /* how handles are opened on it */
} test_daemon_t;

static inline const char *transport_name(void)
{
    const char *name = getenv("LARDER_TEST_TRANSPORT");

    return name != NULL && *name != '\0' ? name : "embed";
}

static inline bool transport_is(const char *name)
{
    return strcmp(transport_name(), name) == 0;
}

static inline uint64_t transport_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

static inline void transport_pause(void)
{
    struct timespec t = {0, 2000000};

    nanosleep(&t, NULL);
}

/* ---- the daemon's command line ---- */

static inline void daemon_arg(test_daemon_t *d, const char *text)
{
    if (d->arg_count < TRANSPORT_ARGS) {
        snprintf(d->text[d->arg_count], sizeof(d->text[0]), "%s", text);
        d->args[d->arg_count] = d->text[d->arg_count];
        d->args[++d->arg_count] = NULL;
    }
}

static inline void daemon_option(test_daemon_t *d, const char *name,
                                 const char *value)
{
    char flag[64];

    snprintf(flag, sizeof(flag), "--%s", name);
    daemon_arg(d, flag);
    daemon_arg(d, value);
}

/* A port that nobody has just now. */
static inline uint16_t free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t size = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &size) != 0) {
        a.sin_port = 0;
    }
    close(fd);
    return ntohs(a.sin_port);
}

static inline void daemon_certs(const char *dir)
{
    cert_t ca = cert_one("test authority", NULL, NULL);
    cert_t server = cert_one("localhost", "DNS:localhost,IP:127.0.0.1", &ca);

    cert_save(&ca, dir, "ca", NULL);
    cert_save(&server, dir, "server", NULL);
    cert_free(&ca);
    cert_free(&server);
}

/* Takes "embed:DIR,DIR?name=value&..." apart: what concerns the node becomes
 * flags of the daemon, what concerns the handle part of its URL. */
static inline void daemon_options(test_daemon_t *d, const char *embed_url,
                                  char *client, size_t client_size)
{
    char copy[1024];
    char *save = NULL;

    snprintf(copy, sizeof(copy), "%s", embed_url + strlen("embed:"));
    char *query = strchr(copy, '?');
    if (query != NULL) {
        *query++ = '\0';
    }
    client[0] = '\0';
    for (char *dir = strtok_r(copy, ",", &save); dir != NULL;
         dir = strtok_r(NULL, ",", &save)) {
        daemon_option(d, "dir", dir);
    }
    for (char *pair = query != NULL ? strtok_r(query, "&", &save) : NULL;
         pair != NULL; pair = strtok_r(NULL, "&", &save)) {
        char *value = strchr(pair, '=');
        int at =
            value != NULL ? ldr_option_find(pair, (size_t)(value - pair)) : -1;

        if (at >= 0 && (ldr_option_table[at].where & LDR_WHERE_SERVE) != 0) {
            *value++ = '\0';
            daemon_option(d, pair, value);
        } else {
            size_t used = strlen(client);

            snprintf(client + used, client_size - used, "&%s", pair);
        }
    }
}

/* ---- its life ---- */

/* Whether somebody accepts at the socket, and at the port. */
static inline bool daemon_accepts(const test_daemon_t *d)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct sockaddr_in b = {.sin_family = AF_INET, .sin_port = htons(d->port)};
    int local = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%.100s", d->socket);
    b.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bool ok =
        connect(local, (struct sockaddr *)&a, sizeof(a)) == 0 &&
        (d->port == 0 || connect(tcp, (struct sockaddr *)&b, sizeof(b)) == 0);
    close(local);
    close(tcp);
    return ok;
}

static inline void daemon_show_log(const test_daemon_t *d)
{
    char path[300], line[512];

    snprintf(path, sizeof(path), "%s/log", d->dir);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        fprintf(stderr, "daemon: %s", line);
    }
    if (file != NULL) {
        fclose(file);
    }
}

/* Starts the program with d->args and waits until it accepts. */
static inline bool daemon_start(test_daemon_t *d)
{
    char program[300], log[300];
    const char *build = getenv("LARDER_BUILD");
    uint64_t end_ms = transport_now_ms() + TRANSPORT_START_MS;

    snprintf(program, sizeof(program), "%s/bin/larder",
             build != NULL ? build : "build/dev");
    snprintf(log, sizeof(log), "%s/log", d->dir);
    d->args[0] = program;
    fflush(NULL);
    d->pid = fork();
    if (d->pid == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

        prctl(PR_SET_PDEATHSIG, SIGKILL); /* never longer than the test */
        dup2(fd, 1);
        dup2(fd, 2);
        execv(program, d->args);
        fprintf(stderr, "%s: %s\n", program, strerror(errno));
        _exit(127);
    }
    d->args[0] = d->text[0];
    while (d->pid > 0 && transport_now_ms() < end_ms) {
        int status;

        if (daemon_accepts(d)) {
            return true;
        }
        if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
            d->pid = 0;
            return false;
        }
        transport_pause();
    }
    return false;
}

/* Ends it by a signal and waits until it is gone; gives how it ended. */
static inline int daemon_stop(test_daemon_t *d, int signal)
{
    int status = 0;

    if (d->pid > 0) {
        /* Not after it: SIGCONT takes back the SIGSTOP by which LeakSanitizer
         * stops a process that ends, and it would wait for ever. */
        kill(d->pid, SIGCONT);
        kill(d->pid, signal);
        while (waitpid(d->pid, &status, 0) < 0 && errno == EINTR) {
        }
    }
    d->pid = 0;
    return status;
}

/* Stops it in its tracks; once this returned it does nothing any more. */
static inline void daemon_freeze(test_daemon_t *d)
{
    int status;

    kill(d->pid, SIGSTOP);
    while (waitpid(d->pid, &status, WUNTRACED) < 0 && errno == EINTR) {
    }
}

/* Prepares a daemon for the transport; does not start it. */
static inline bool daemon_prepare(test_daemon_t *d, const char *embed_url)
{
    const char *tmp = getenv("TMPDIR");
    char client[1024], text[300];
    bool tls = transport_is("tls");

    memset(d, 0, sizeof(*d));
    snprintf(d->dir, sizeof(d->dir), "%s/larder-daemon-XXXXXX",
             tmp != NULL && *tmp != '\0' ? tmp : "/tmp");
    if (mkdtemp(d->dir) == NULL) {
        return false;
    }
    memcpy(d->socket, d->dir, sizeof(d->dir));
    memcpy(d->socket + strlen(d->dir), "/s", sizeof("/s"));
    daemon_arg(d, "larder");
    daemon_arg(d, "serve");
    daemon_option(d, "socket", d->socket);
    daemon_option(d, "admin", "none");
    daemon_option(d, "drain_ms", "60000");
    daemon_options(d, embed_url, client, sizeof(client));
    if (transport_is("strict")) {
        daemon_option(d, "isolation", "strict");
    }
    if (transport_is("shm") || transport_is("strict")) {
        snprintf(d->url, sizeof(d->url), "unix:%s?%s", d->socket,
                 client[0] != '\0' ? client + 1 : "tenant=default");
        return true;
    }
    d->port = free_port();
    snprintf(text, sizeof(text), "127.0.0.1:%u", d->port);
    daemon_option(d, "listen", text);
    daemon_option(d, "listen_open", "on"); /* to the tests: of one host */
    snprintf(d->url, sizeof(d->url), "tcp://127.0.0.1:%u?tls=%s%s", d->port,
             tls ? "on" : "off", client);
    if (tls) {
        size_t used = strlen(d->url);

        daemon_certs(d->dir);
        snprintf(d->url + used, sizeof(d->url) - used, "&tls_ca=%s/ca.pem",
                 d->dir);
        daemon_option(d, "tls", "on");
        snprintf(text, sizeof(text), "%s/server.pem", d->dir);
        daemon_option(d, "tls_cert", text);
        snprintf(text, sizeof(text), "%s/server.key", d->dir);
        daemon_option(d, "tls_key", text);
    }
    return true;
}

static inline void daemon_clean(test_daemon_t *d)
{
    static const char *const names[] = {"s",      "log",        "ca.pem",
                                        "ca.key", "server.pem", "server.key",
                                        "config", "token",      "s.lock"};
    char path[300];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", d->dir, names[i]);
        unlink(path);
    }
    rmdir(d->dir);
}

/* ---- handles ---- */

/* The daemon of the test's handle: there is one at a time. */
static test_daemon_t the_daemon;

/* Opens a handle on a node as embed_url describes it, by the transport. */
static inline larder_status_t transport_open(const char *embed_url,
                                             const larder_open_params_t *params,
                                             larder_t **lar_p)
{
    test_daemon_t *d = &the_daemon;
    char url[300];

    if (transport_is("embed")) {
        return larder_open(embed_url, params, lar_p);
    }
    if (!daemon_prepare(d, embed_url) || !daemon_start(d)) {
        daemon_show_log(d);
        return LARDER_E_IO;
    }
    larder_status_t st = larder_open(d->url, params, lar_p);
    snprintf(url, sizeof(url), "unix:%s", d->socket);
    if (st == LARDER_OK && d->port != 0) {
        st = larder_open(url, params, &d->admin);
    }
    if (st != LARDER_OK) {
        fprintf(stderr, "%s: %s\n", d->url, larder_last_error());
        daemon_show_log(d);
    }
    return st;
}

/* Closes it, and ends the daemon, which writes down what it has. */
static inline larder_status_t transport_close(larder_t **lar_p,
                                              uint32_t timeout_ms)
{
    test_daemon_t *d = &the_daemon;
    larder_status_t st = larder_close(lar_p, timeout_ms);

    if (d->pid > 0) {
        larder_close(&d->admin, 0);
        int status = daemon_stop(d, SIGTERM);

        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "the daemon ended with status 0x%x\n",
                    (unsigned)status);
            daemon_show_log(d);
            st = LARDER_E_IO;
        }
        daemon_clean(d);
    }
    return st;
}

/* The figures of the node, whoever may see them, once what the handle has sent
 * before has arrived. */
static inline larder_status_t transport_stats(larder_t *lar,
                                              larder_stats_t *stats)
{
    *stats = (larder_stats_t){.struct_bytes = sizeof(*stats)};
    larder_status_t st = larder_stats(lar, stats);
    if (st == LARDER_OK && the_daemon.admin != NULL) {
        larder_stats_t all = {.struct_bytes = sizeof(all)};

        st = larder_stats(the_daemon.admin, &all);
        all.client_calls = stats->client_calls;
        all.client_offline = stats->client_offline;
        all.client_breaker = stats->client_breaker;
        all.client_connects = stats->client_connects;
        all.client_late_replies = stats->client_late_replies;
        all.client_crc_failures = stats->client_crc_failures;
        all.client_denied = stats->client_denied;
        all.client_version = stats->client_version;
        *stats = all;
    }
    return st;
}

/* One of the metrics, by its name and labels; -1: it cannot be had. */
static inline double transport_figure(larder_t *lar, const char *name)
{
    size_t length = 0, size = (size_t)1 << 20;
    char *text = malloc(size), line[200];
    double value = -1;

    snprintf(line, sizeof(line), "\n%s ", name);
    if (text != NULL && larder_metrics(lar, text, size, &length) == LARDER_OK &&
        length < size) {
        const char *at = strstr(text, line);

        value = at != NULL ? strtod(at + strlen(line), NULL) : -1;
    }
    free(text);
    return value;
}
