/*
 * Servers for the tests of back ends: real ones as child processes on loopback,
 * which die with the test and are ended by their pid; and one that answers
 * whatever it is told to, for what no real one says.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/socket.h"
#include "tier/shared/backend.h"
#include "support/real.h"

#define SERVER_START_MS 60000u

static inline uint64_t in_ms(uint64_t ms)
{
    return ldr_now_ns(&ldr_clock_real) + ms * 1000000u;
}

/* A listening socket on a port of its own. */
static inline int server_listen(unsigned *port_p)
{
    ldr_address_t a = {.host = "127.0.0.1", .port = "0"};
    struct sockaddr_in address;
    socklen_t size = sizeof(address);
    int fd = ldr_listen_tcp(&a, "");

    assert_true(fd >= 0);
    assert_int_equal(getsockname(fd, (void *)&address, &size), 0);
    *port_p = ntohs(address.sin_port);
    return fd;
}

/* A port that nobody listens on. */
static inline unsigned server_port(void)
{
    unsigned port;

    close(server_listen(&port));
    return port;
}

static inline bool server_is_there(unsigned port)
{
    ldr_address_t a = {.host = "127.0.0.1"};

    snprintf(a.port, sizeof(a.port), "%u", port);
    int fd = ldr_connect_tcp(&a, "", in_ms(1000));
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

/* Starts a program, its output in LOG, and waits until it listens. */
static inline pid_t server_start(const char *file, const char *const *argv,
                                 const char *log, unsigned port)
{
    uint64_t until = in_ms(SERVER_START_MS);
    pid_t parent = getpid(), pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (out < 0 || getppid() != parent || dup2(out, 1) < 0 ||
            dup2(out, 2) < 0) {
            _exit(126);
        }
        execvp(file, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    while (!server_is_there(port)) {
        if (waitpid(pid, &status, WNOHANG) != 0) {
            fail_msg("%s ended at once: see %s", file, log);
        }
        assert_true(ldr_now_ns(&ldr_clock_real) < until);
        real_pause();
    }
    return pid;
}

static inline void server_end(pid_t *pid, int signal)
{
    if (*pid > 0) {
        kill(*pid, signal);
        waitpid(*pid, NULL, 0);
        *pid = 0;
    }
}

/* Whether a program can be run at all. */
static inline bool server_has(const char *program)
{
    char command[128];

    snprintf(command, sizeof(command), "command -v %s >/dev/null 2>&1",
             program);
    return system(command) == 0;
}

/* Makes it a tier, as the first node does. */
static inline void server_make_tier(ldr_backend_t *b)
{
    struct iovec iov = {(void *)(uintptr_t) "larder tier 1\n0\n", 16};

    assert_int_equal(b->ops->health(b, in_ms(30000)), -ENODEV);
    assert_non_null(strstr(ldr_fail_text(), LDR_OBJECTS_ID_NAME));
    assert_int_equal(b->ops->put(b, LDR_OBJECTS_ID_NAME, &iov, 1,
                                 LDR_OBJECT_NEW, in_ms(30000)),
                     0);
    assert_int_equal(b->ops->health(b, in_ms(30000)), 0);
}

/* ---- one that says what it is told ---- */

typedef struct fake {
    int fd;
    unsigned port;
    pthread_t thread;
    const char *answer; /* to the first bytes of each connection */
    size_t bytes;
    bool hold;           /* keeps the connection until the other side ends it */
    bool dribble;        /* a byte each 20 ms */
    char question[4096]; /* the beginning of the last one; after fake_end() */
    unsigned served;     /* connections; atomic */
    bool stop;           /* atomic */
} fake_t;

static inline bool fake_wait(fake_t *f, int fd, short events)
{
    while (!__atomic_load_n(&f->stop, __ATOMIC_ACQUIRE)) {
        if (ldr_poll(fd, events, in_ms(20)) > 0) {
            return true;
        }
    }
    return false;
}

static inline void fake_serve(fake_t *f, int fd)
{
    char question[65536];
    size_t sent = 0;
    ssize_t got = -1;

    if (fake_wait(f, fd, POLLIN)) {
        got = read(fd, question, sizeof(question) - 1);
    }
    if (got < 1) {
        return;
    }
    question[got] = '\0';
    snprintf(f->question, sizeof(f->question), "%s", question);
    while (sent < f->bytes && fake_wait(f, fd, POLLOUT)) {
        ssize_t n = send(fd, f->answer + sent, f->dribble ? 1 : f->bytes - sent,
                         MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) {
            return;
        }
        sent += n > 0 ? (size_t)n : 0;
        if (f->dribble) {
            (void)ldr_poll(-1, 0, in_ms(20));
        }
    }
    while (f->hold && fake_wait(f, fd, POLLIN) &&
           read(fd, question, sizeof(question)) > 0) {
    }
}

static inline void *fake_main(void *arg)
{
    fake_t *f = arg;

    while (fake_wait(f, f->fd, POLLIN)) {
        int fd = ldr_accept(f->fd);
        if (fd >= 0) {
            __atomic_fetch_add(&f->served, 1, __ATOMIC_RELAXED);
            fake_serve(f, fd);
            close(fd);
        }
    }
    return NULL;
}

static inline void fake_start(fake_t *f, const char *answer, size_t bytes)
{
    f->answer = answer;
    f->bytes = bytes;
    f->served = 0;
    f->stop = false;
    f->fd = server_listen(&f->port);
    assert_int_equal(pthread_create(&f->thread, NULL, fake_main, f), 0);
}

static inline void fake_end(fake_t *f)
{
    __atomic_store_n(&f->stop, true, __ATOMIC_RELEASE);
    pthread_join(f->thread, NULL);
    close(f->fd);
}
