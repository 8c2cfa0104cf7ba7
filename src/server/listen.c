/*
 * Listening: accepts connections, and decides whether they may come in at all.
 *
 * Runs in the loop that owns the listening sockets. A connection that was
 * accepted is handed to its session's loop as a task (coming_t), which owns the
 * socket from then on; if that fails it is closed here.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "server/session.h"

#define SHOWN_BYTES 320u
#define STRANGERS_MIN 16u   /* connections that any lobby has room for */
#define ACCEPTS_MAX 64u     /* in a row: the loop has sessions as well */
#define BEHIND_NS 1000000u  /* until those that gave way may have left */
#define FILES_NS 100000000u /* until there may be descriptors again */

/* ---- accepting ---- */

/* A socket on its way to its loop. */
typedef struct coming {
    ldr_task_t task;
    ldr_server_loop_t *home;
    ldr_arrival_t arrival;
} coming_t;

static void arrive(ldr_task_t *task)
{
    coming_t *c = (coming_t *)task;

    ldr_session_accept(c->home, &c->arrival);
    ldr_free(c);
}

/* The loop that nobody asked for anything for longest: a client opens its
 * second connection when the first is busy. To get one counts as being asked,
 * so idle ones take turns. */
static ldr_server_loop_t *home_of_next(ldr_server_t *server)
{
    ldr_server_loop_t *best = &server->loops[0];
    uint64_t best_ns = UINT64_MAX;

    for (unsigned i = 0; i < server->loop_count; i++) {
        ldr_server_loop_t *home = &server->loops[i];
        uint64_t ns = __atomic_load_n(&home->asked_ns, __ATOMIC_RELAXED);

        if (ns < best_ns) {
            best = home;
            best_ns = ns;
        }
    }
    __atomic_store_n(&best->asked_ns, ldr_server_now(server), __ATOMIC_RELAXED);
    return best;
}

/* Gives a new connection to a loop, or closes it. */
static void take_in(ldr_listener_t *l, ldr_stream_t *stream)
{
    ldr_server_t *server = l->home->server;
    coming_t *c = ldr_alloc(sizeof(*c));
    ldr_lobby_found_t found = LDR_LOBBY_FULL;

    if (__atomic_load_n(&server->draining, __ATOMIC_RELAXED)) {
        ldr_metrics_refused(server->metrics, LDR_REFUSAL_DRAINING);
        ldr_free(c);
        ldr_stream_close(stream);
        return;
    }
    if (c != NULL) {
        found =
            ldr_lobby_enter(server->lobbies[l->local],
                            ldr_origin_of(stream->fd), &c->arrival.stranger);
    }
    if (found != LDR_LOBBY_ROOM) {
        ldr_metrics_refused(server->metrics, LDR_REFUSAL_STRANGERS);
        ldr_warn(&server->log,
                 "too many connections by %s that are not authenticated, of "
                 "one %s or of all: %s (option sessions)",
                 l->local ? "the unix socket" : "tcp",
                 l->local ? "uid" : "address",
                 found == LDR_LOBBY_FULL ? "a new one was refused"
                                         : "the oldest was closed");
    }
    if (found == LDR_LOBBY_FULL) {
        ldr_free(c);
        ldr_stream_close(stream);
        return;
    }
    c->task.run = arrive;
    c->home = home_of_next(server);
    c->arrival.stream = *stream;
    c->arrival.local = l->local;
    c->arrival.begin_ns = ldr_server_now(server);
    ldr_loop_post(&c->home->loop, &c->task);
}

/* It stays readable: look again a little later, not at once. */
static void pause_listener(ldr_listener_t *l, uint64_t ns)
{
    ldr_loop_rewatch(&l->home->loop, &l->watch, 0);
    l->pause_ns = ldr_server_now(l->home->server) + ns;
    ldr_server_due(l->home, l->pause_ns);
}

static void knock(ldr_watch_t *watch, uint32_t events)
{
    ldr_listener_t *l =
        (ldr_listener_t *)((char *)watch - offsetof(ldr_listener_t, watch));
    ldr_server_t *server = l->home->server;
    int error = 0;

    (void)events;
    for (unsigned i = 0; i < ACCEPTS_MAX; i++) {
        if (ldr_lobby_behind(server->lobbies[l->local])) {
            pause_listener(l, BEHIND_NS);
            return;
        }
        ldr_stream_t stream;

        error = l->from.ops->accept(&l->from, 0, &stream);
        if (error != 0) {
            break;
        }
        take_in(l, &stream);
    }
    if (error == 0) {
        return; /* there may be more: it stays readable */
    }
    if (error != -EAGAIN && error != -ECONNABORTED) {
        ldr_metrics_refused(server->metrics, LDR_REFUSAL_MEMORY);
        ldr_warn(&server->log,
                 "a connection cannot be accepted (%s): raise the limit of "
                 "open files (LimitNOFILE, ulimit -n) or give it memory",
                 strerror(-error));
        pause_listener(l, FILES_NS);
    }
}

uint64_t ldr_listen_tick(ldr_server_loop_t *home, uint64_t now_ns)
{
    ldr_server_t *server = home->server;
    uint64_t next_ns = UINT64_MAX;

    for (unsigned i = 0; i < server->listener_count; i++) {
        ldr_listener_t *l = &server->listeners[i];

        if (l->home != home || l->pause_ns == 0) {
            continue;
        }
        if (l->pause_ns <= now_ns) {
            l->pause_ns = 0;
            ldr_loop_rewatch(&home->loop, &l->watch, EPOLLIN);
        } else {
            next_ns = l->pause_ns;
        }
    }
    return next_ns;
}

/* ---- opening ---- */

static larder_status_t listener_add(ldr_server_t *server, int fd, bool local,
                                    const char *text)
{
    /* ldr_listen_check() has counted them. */
    ldr_listener_t *l = &server->listeners[server->listener_count++];
    l->watch = (ldr_watch_t){.fd = fd, .ready = knock};
    l->from = (ldr_listening_t){
        .ops = &ldr_transport_tcp, .fd = fd, .tls = local ? NULL : server->tls};
    l->home = &server->loops[0];
    l->local = local;
    snprintf(l->text, sizeof(l->text), "%s", text);
    if (!ldr_loop_watch(&l->home->loop, &l->watch, EPOLLIN)) {
        return ldr_fail(LARDER_E_NO_MEMORY, "%s cannot be watched", text);
    }
    ldr_info(&server->log, "listening: %s%s", local ? "unix:" : "tcp://", text);
    return LARDER_OK;
}

/* The runtime directory of the default socket may not be there yet. Another one
 * is not made: who may reach the socket is its mode's to say. */
static void make_default_parent(const char *path)
{
    char parent[LDR_UNIX_PATH_MAX];

    ldr_socket_default(parent);
    char *slash = strrchr(parent, '/');
    if (strcmp(parent, path) == 0 && slash != NULL && slash != parent) {
        *slash = '\0';
        mkdir(parent, 0700);
    }
}

static larder_status_t taken(const char *path)
{
    return ldr_fail(LARDER_E_LOCKED,
                    "%s: another daemon listens there: stop it, take over with "
                    "--takeover, or choose another --socket",
                    path);
}

larder_status_t ldr_listen_probe(const ldr_server_t *server)
{
    const char *path = server->socket_path;
    int fd =
        path[0] != '\0' ? ldr_connect_unix(path, ldr_server_now(server)) : -1;

    if (fd < 0) {
        ldr_fail_clear(); /* opening the socket says it, if it is wrong */
        return LARDER_OK;
    }
    close(fd);
    return taken(path);
}

/* Where the default socket lies below /tmp anybody could have made its
 * directory: who may write there decides who listens. */
static larder_status_t check_parent(const ldr_config_t *config)
{
    char path[LDR_UNIX_PATH_MAX];
    struct stat st;

    if (config->options.socket[0] != '\0' || !ldr_config_socket(config, path)) {
        return LARDER_OK;
    }
    *strrchr(path, '/') = '\0';
    if (strncmp(path, "/tmp/", 5) != 0 || lstat(path, &st) != 0) {
        return LARDER_OK; /* one that is not there yet is made */
    }
    return S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
                   (st.st_mode & (S_IWGRP | S_IWOTH)) == 0
               ? LARDER_OK
               : ldr_fail(LARDER_E_DENIED,
                          "%s: not a directory in which this user alone may "
                          "write: remove it, or choose another --socket",
                          path);
}

static larder_status_t listen_unix(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    const char *path = server->socket_path;

    make_default_parent(path);
    larder_status_t st = check_parent(server->config);
    if (st != LARDER_OK) {
        return st;
    }
    int fd = ldr_listen_unix(path, (unsigned)strtoul(o->socket_mode, NULL, 8));
    if (fd == -EADDRINUSE) {
        return taken(path);
    }
    const char *slash = strrchr(path, '/');
    if (fd == -ENOENT && slash != NULL) {
        return ldr_fail(LARDER_E_IO,
                        "%s: cannot listen: there is no directory %.*s: make "
                        "it, with a mode that lets the clients in",
                        path, (int)(slash - path), path);
    }
    if (fd < 0) {
        return ldr_fail(LARDER_E_IO, "%s: cannot listen: %s (option socket)",
                        path, strerror(-fd));
    }
    return listener_add(server, fd, true, path);
}

/* Whether there is a way to prove who one is. Without one of these proofs only
 * loopback gets in, as tenant default, if at all: see hello.c. */
static bool authenticated(const ldr_config_t *config)
{
    bool any = config->options.tls_client_ca[0] != '\0';

    for (unsigned i = 0; i < config->tenant_count; i++) {
        any |= config->tenants[i].token_file[0] != '\0';
    }
    return any;
}

/* The address it really has: port 0 was any. */
static void bound_name(int fd, char *text, size_t size)
{
    struct sockaddr_storage a;
    socklen_t length = sizeof(a);
    char host[64], port[8];

    if (getsockname(fd, (struct sockaddr *)&a, &length) == 0 &&
        getnameinfo((struct sockaddr *)&a, length, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
        snprintf(text, size, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s",
                 host, port);
    }
}

/* Connections inherit it. One that cannot be had is no reason not to serve. */
static void judge_congestion(const ldr_server_t *server, int fd)
{
    const char *want = server->config->options.congestion;
    char has[16] = "";
    socklen_t length = sizeof(has) - 1;

    if (want[0] != '\0' &&
        getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, has, &length) == 0 &&
        strcmp(has, want) != 0) {
        ldr_warn(&server->log,
                 "congestion: '%s' cannot be used here, connections have '%s': "
                 "`modprobe tcp_%s`, and for a daemon that is not root add it "
                 "to `sysctl net.ipv4.tcp_allowed_congestion_control`",
                 want, has, want);
    }
}

/* Whether it may be listened on; shown: its text. */
static larder_status_t check_one(const ldr_config_t *config, const char *text,
                                 size_t length, ldr_address_t *address,
                                 char shown[SHOWN_BYTES])
{
    snprintf(shown, SHOWN_BYTES, "%.*s", (int)length, text);
    if (!ldr_address_parse(text, length, address)) {
        return ldr_fail(LARDER_E_INVALID,
                        "listen: '%s' is not host:port or [host]:port", shown);
    }
    if (!ldr_address_loopback(address) && !authenticated(config)) {
        return ldr_fail(
            LARDER_E_DENIED,
            "listen: %s can be reached from other hosts, and nothing says who "
            "may come in: add token_file = FILE under [tenant default] in the "
            "configuration file (or tls_client_ca = FILE with tls = on), or "
            "listen on 127.0.0.1",
            shown);
    }
    return LARDER_OK;
}

static bool is_any(const ldr_address_t *address)
{
    return strcmp(address->host, "0.0.0.0") == 0 ||
           strcmp(address->host, "::") == 0;
}

/* Whether the last can be listened on together with those before it. Port 0 is
 * any that is free. */
static larder_status_t check_last(const char *option,
                                  const ldr_address_t *addresses,
                                  unsigned count)
{
    const ldr_address_t *last = &addresses[count - 1];

    for (unsigned i = 0; i < count - 1; i++) {
        const ldr_address_t *a = &addresses[i];

        if (strcmp(a->port, "0") != 0 && strcmp(a->port, last->port) == 0 &&
            (strcmp(a->host, last->host) == 0 || is_any(a) || is_any(last))) {
            return ldr_fail(LARDER_E_INVALID,
                            "%s: port %s of %s is listened on already "
                            "(option listen)",
                            option, last->port, last->host);
        }
    }
    return LARDER_OK;
}

larder_status_t ldr_listen_check(const ldr_config_t *config)
{
    const ldr_options_t *o = &config->options;
    const char *at = o->listen;
    ldr_address_t addresses[LDR_LISTENERS_MAX]; /* of listen, then of admin */
    unsigned count = 0;
    larder_status_t st = check_parent(config);

    while (*at != '\0' && st == LARDER_OK) {
        size_t length = strcspn(at, ",");
        char shown[SHOWN_BYTES];

        if (count == LDR_LISTENERS_MAX - 1) {
            return ldr_fail(LARDER_E_LIMIT,
                            "more than %u addresses to listen on", count);
        }
        st = check_one(config, at, length, &addresses[count++], shown);
        if (st == LARDER_OK) {
            st = check_last("listen", addresses, count);
        }
        at += length + (at[length] == ',');
    }
    if (st == LARDER_OK &&
        ldr_address_parse(o->admin, strlen(o->admin), &addresses[count])) {
        st = check_last("admin", addresses, count + 1);
    }
    return st;
}

static larder_status_t listen_one(ldr_server_t *server, unsigned i,
                                  const char *text, size_t length)
{
    ldr_address_t address;
    char shown[SHOWN_BYTES];
    larder_status_t st =
        check_one(server->config, text, length, &address, shown);

    if (st != LARDER_OK) {
        return st;
    }
    int fd = ldr_ports_listen(server, i);
    if (fd < 0) {
        return ldr_ports_refuse("listen", shown, fd);
    }
    bound_name(fd, shown, sizeof(shown));
    judge_congestion(server, fd);
    return listener_add(server, fd, false, shown);
}

void ldr_listen_judge(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    const ldr_server_tenant_t *tenant =
        ldr_server_tenant_find(server, "default");

    ldr_mutex_lock(&server->tenant_lock);
    bool open = o->listen[0] != '\0' && o->tls_client_ca[0] == '\0' &&
                o->listen_open == LDR_LISTEN_OPEN_OFF && tenant != NULL &&
                tenant->token_count == 0 && ldr_server_tenants_open(server);
    ldr_mutex_unlock(&server->tenant_lock);
    if (open && !server->open_logged) {
        server->open_logged = true;
        ldr_warn(&server->log,
                 "listen: every user of this host gets in by tcp as tenant "
                 "'default', whatever socket_mode says: add token_file = FILE "
                 "under [tenant default], leave listen out and use the unix "
                 "socket, or say that it is meant with listen_open = on");
    }
}

larder_status_t ldr_listen_all(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    unsigned strangers =
        (unsigned)ldr_max64(server->sessions_max / 4, STRANGERS_MIN);
    larder_status_t st = LARDER_OK;
    const char *at = o->listen;
    unsigned number = 0;

    for (unsigned i = 0; i < 2; i++) {
        server->lobbies[i] = ldr_lobby_create(strangers, strangers / 2);
        if (server->lobbies[i] == NULL) {
            return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory to listen");
        }
    }
    if (server->socket_path[0] != '\0') {
        st = listen_unix(server);
    }
    while (*at != '\0' && st == LARDER_OK) {
        size_t length = strcspn(at, ",");

        st = listen_one(server, number++, at, length);
        at += length + (at[length] == ',');
    }
    if (st == LARDER_OK) {
        ldr_listen_judge(server);
    }
    return st;
}

void ldr_listen_stop(ldr_server_t *server)
{
    for (unsigned i = 0; i < server->listener_count; i++) {
        ldr_listener_t *l = &server->listeners[i];

        /* Before it is closed: after that the path may be another daemon's,
         * which found nobody listening there. */
        if (l->local && !l->unlinked) {
            unlink(server->socket_path);
            l->unlinked = true;
        }
        if (l->watch.fd >= 0) {
            ldr_loop_unwatch(&l->home->loop, &l->watch);
            l->from.ops->unlisten(&l->from);
            l->watch.fd = -1;
        }
    }
}
