/* Admin HTTP by libmicrohttpd; admin.h says who may see what. All pages are
 * made in its one thread, so they need no lock of their own. Questions are
 * answered in another one (asking.h), while their connections are suspended. */
#include "server/admin.h"

#if LDR_HAVE_MICROHTTPD

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "net/socket.h"
#include "server/asking.h"
#include "server/lobby.h"
#include "server/query.h"

#define PEERS_MAX 128u
#define ORIGIN_MAX 64u
/* Those that give way are there until their end is seen. */
#define CONNECTIONS_MAX (2 * PEERS_MAX)
#define TIMEOUT_S 15u
#define REQUEST_BYTES 8192u /* memory for one connection's request */
#define HASH_TEXT 64u
#define TEXT_MAX ((size_t)64 << 20)
#define BODIES_MAX (4 * (size_t)LDR_QUERY_BYTES) /* being received, of all */

struct ldr_admin {
    ldr_admin_source_t source;
    ldr_log_t log;
    struct MHD_Daemon *daemon;
    ldr_lobby_t *lobby; /* all connections: nobody says who it is here */
    size_t body_bytes;  /* rooms of all bodies; its thread's */
    ldr_asking_t asking;
    bool asks; /* it is open */
    uint16_t port;
    char host[LDR_HOST_MAX];
    char url[LDR_HOST_MAX + 32];
    char policy[512]; /* Content-Security-Policy of the page */
};

/* ---- answers ---- */

/* The text is the response's from here on. */
static struct MHD_Response *response_of(char *text, size_t bytes,
                                        const char *type)
{
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback(
        bytes, text, ldr_free);

    if (r == NULL) {
        ldr_free(text);
        return NULL;
    }
    MHD_add_response_header(r, "Content-Type", type);
    return r;
}

static enum MHD_Result send_response(struct MHD_Connection *c, unsigned status,
                                     struct MHD_Response *r)
{
    if (r == NULL) {
        return MHD_NO; /* no memory: the connection ends */
    }
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "X-Frame-Options", "DENY");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(r, "Cross-Origin-Resource-Policy", "same-origin");
    enum MHD_Result sent = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return sent;
}

static enum MHD_Result status_say(struct MHD_Connection *c, unsigned status,
                                  const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = ldr_alloc(bytes + 1);

    if (copy == NULL) {
        return MHD_NO;
    }
    snprintf(copy, bytes + 1, "%s\n", text);
    struct MHD_Response *r =
        response_of(copy, bytes, "text/plain; charset=utf-8");
    if (r != NULL && status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        MHD_add_response_header(r, "Allow", "GET, HEAD");
    }
    if (r != NULL && status == MHD_HTTP_UNAUTHORIZED) {
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    }
    return send_response(c, status, r);
}

/* Text that may have grown between asking for its length and for itself. */
typedef size_t (*text_fn)(ldr_admin_t *a, uint64_t since_ms, char *text,
                          size_t size);

static enum MHD_Result send_text(ldr_admin_t *a, struct MHD_Connection *c,
                                 text_fn fn, uint64_t since_ms,
                                 const char *type)
{
    size_t size = fn(a, since_ms, NULL, 0) + 4096;

    while (size < TEXT_MAX) {
        char *text = ldr_alloc(size);
        if (text == NULL) {
            break;
        }
        size_t length = fn(a, since_ms, text, size);
        if (length < size) {
            return send_response(c, MHD_HTTP_OK,
                                 response_of(text, length, type));
        }
        ldr_free(text);
        size = length + 65536;
    }
    return status_say(c, MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory");
}

static size_t metrics_text(ldr_admin_t *a, uint64_t since_ms, char *text,
                           size_t size)
{
    (void)since_ms;
    return a->source.metrics(a->source.arg, text, size);
}

static size_t config_text(ldr_admin_t *a, uint64_t since_ms, char *text,
                          size_t size)
{
    (void)since_ms;
    return a->source.config(a->source.arg, text, size);
}

static size_t status_text(ldr_admin_t *a, uint64_t since_ms, char *text,
                          size_t size)
{
    return a->source.status(a->source.arg, since_ms, text, size);
}

/* ---- paths ---- */

static enum MHD_Result page_index(ldr_admin_t *a, struct MHD_Connection *c)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(
        ldr_dashboard_bytes, (void *)(uintptr_t)ldr_dashboard_page,
        MHD_RESPMEM_PERSISTENT);

    if (r == NULL) {
        return MHD_NO;
    }
    MHD_add_response_header(r, "Content-Type", "text/html; charset=utf-8");
    MHD_add_response_header(r, "Content-Security-Policy", a->policy);
    return send_response(c, MHD_HTTP_OK, r);
}

static enum MHD_Result page_metrics(ldr_admin_t *a, struct MHD_Connection *c)
{
    return send_text(a, c, metrics_text, 0,
                     "text/plain; version=0.0.4; charset=utf-8");
}

static enum MHD_Result page_healthz(ldr_admin_t *a, struct MHD_Connection *c)
{
    (void)a;
    return status_say(c, MHD_HTTP_OK, "ok");
}

static enum MHD_Result page_readyz(ldr_admin_t *a, struct MHD_Connection *c)
{
    char why[256] = "";

    if (a->source.ready(a->source.arg, why, sizeof(why))) {
        return status_say(c, MHD_HTTP_OK, "ready");
    }
    return status_say(c, MHD_HTTP_SERVICE_UNAVAILABLE, why);
}

static enum MHD_Result page_config(ldr_admin_t *a, struct MHD_Connection *c)
{
    return send_text(a, c, config_text, 0, "application/json");
}

static enum MHD_Result page_status(ldr_admin_t *a, struct MHD_Connection *c)
{
    const char *since =
        MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "since");

    return send_text(a, c, status_text,
                     since != NULL ? strtoull(since, NULL, 10) : 0,
                     "application/json");
}

static const struct {
    const char *path;
    bool anybody; /* also peers on other hosts */
    enum MHD_Result (*page)(ldr_admin_t *a, struct MHD_Connection *c);
} pages[] = {
    {"/", false, page_index},         {"/metrics", true, page_metrics},
    {"/healthz", true, page_healthz}, {"/readyz", true, page_readyz},
    {"/config", false, page_config},  {"/status.json", false, page_status},
};

/* ---- who asks ---- */

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;

        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    if (address->sa_family == AF_INET6) {
        const struct in6_addr *in6 =
            &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;

        return IN6_IS_ADDR_LOOPBACK(in6) ||
               (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == 127);
    }
    return false;
}

static bool from_here(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

    return info != NULL && info->client_addr != NULL &&
           is_loopback(info->client_addr);
}

/* Whether a Host header is one that names this host and can name no other:
 * localhost, a loopback address, or what the admin was told to listen on. */
static bool host_is_ours(const ldr_admin_t *a, const char *header)
{
    char host[LDR_HOST_MAX];
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    size_t n;

    if (header[0] == '[') {
        header++;
        n = strcspn(header, "]");
    } else {
        n = strcspn(header, ":");
    }
    if (n == 0 || n >= sizeof(host)) {
        return false;
    }
    memcpy(host, header, n);
    host[n] = '\0';
    if (strcasecmp(host, "localhost") == 0 || strcasecmp(host, a->host) == 0) {
        return true;
    }
    if (inet_pton(AF_INET, host, &in.sin_addr) == 1) {
        return is_loopback((const struct sockaddr *)(const void *)&in);
    }
    return inet_pton(AF_INET6, host, &in6.sin6_addr) == 1 &&
           is_loopback((const struct sockaddr *)(const void *)&in6);
}

/* A connection begins or ends. Requests that never become whole, and replies
 * that nobody reads, must not take the place of others: the oldest connection
 * gives way. */
static void noticed(void *arg, struct MHD_Connection *c, void **state,
                    enum MHD_ConnectionNotificationCode what)
{
    ldr_admin_t *a = arg;

    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        ldr_lobby_leave(a->lobby, *state);
        *state = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    ldr_stranger_t *stranger = NULL;

    if (info != NULL &&
        ldr_lobby_enter(a->lobby, ldr_origin_of(info->connect_fd), &stranger) !=
            LDR_LOBBY_FULL) {
        ldr_lobby_listen(a->lobby, stranger, info->connect_fd);
    }
    *state = stranger;
}

/* ---- questions ---- */

static bool is_json(struct MHD_Connection *c)
{
    static const char json[] = "application/json";
    const char *type =
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Type");
    size_t length = sizeof(json) - 1;

    return type != NULL && strncasecmp(type, json, length) == 0 &&
           (type[length] == '\0' || type[length] == ';' || type[length] == ' ');
}

/* Who asks, before anything is received of what it asks. */
static enum MHD_Result question_begin(ldr_admin_t *a, struct MHD_Connection *c,
                                      bool here, void **state)
{
    const char *who =
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    uint32_t tenant = 0;

    ldr_fail_clear();
    larder_status_t st =
        a->source.query_tenant(a->source.arg, who, here, &tenant);
    if (st != LARDER_OK) {
        return status_say(c,
                          st == LARDER_E_DENIED ? MHD_HTTP_UNAUTHORIZED
                                                : MHD_HTTP_NOT_FOUND,
                          ldr_fail_text());
    }
    if (!is_json(c)) {
        return status_say(c, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE,
                          "send Content-Type: application/json");
    }
    ldr_question_t *q = ldr_alloc(sizeof(*q));
    if (q == NULL) {
        return MHD_NO;
    }
    q->tenant = tenant;
    q->connection = c;
    *state = q;
    return MHD_YES;
}

static void question_add(ldr_admin_t *a, ldr_question_t *q, const char *data,
                         size_t bytes)
{
    size_t before = q->capacity;

    if (q->large || bytes > LDR_QUERY_BYTES - q->bytes ||
        a->body_bytes + 2 * (q->bytes + bytes) > BODIES_MAX + q->capacity ||
        !ldr_grow(&q->body, &q->capacity, q->bytes + bytes, 1)) {
        q->large = true;
        return;
    }
    a->body_bytes += q->capacity - before;
    memcpy(q->body + q->bytes, data, bytes);
    q->bytes += bytes;
}

/* In the thread that answers. */
static void question_answered(ldr_question_t *q)
{
    MHD_resume_connection(q->connection);
}

/* Without an answer it is asked, and the connection waits. Then this is called
 * again. */
static enum MHD_Result question_answer(ldr_admin_t *a, struct MHD_Connection *c,
                                       ldr_question_t *q)
{
    if (q->large) {
        return status_say(c, MHD_HTTP_CONTENT_TOO_LARGE,
                          "a question has 8 MiB at most, and all that are "
                          "asked at once 32");
    }
    if (!q->answered) {
        MHD_suspend_connection(c);
        if (!ldr_asking_put(&a->asking, q)) {
            q->answered = true;
            q->status = LARDER_E_NO_MEMORY;
            question_answered(q);
        }
        return MHD_YES;
    }
    if (q->status == LARDER_OK) {
        char *text = q->text;

        q->text = NULL;
        return send_response(c, MHD_HTTP_OK,
                             response_of(text, q->length, "application/json"));
    }
    return status_say(c,
                      q->status == LARDER_E_INVALID
                          ? MHD_HTTP_BAD_REQUEST
                          : MHD_HTTP_SERVICE_UNAVAILABLE,
                      q->why);
}

/* The request is over, answered or not. */
static void completed(void *arg, struct MHD_Connection *c, void **state,
                      enum MHD_RequestTerminationCode why)
{
    ldr_admin_t *a = arg;
    ldr_question_t *q = *state;

    (void)c, (void)why;
    if (q != NULL) {
        a->body_bytes -= q->capacity;
        ldr_free(q->body);
        ldr_free(q->text);
        ldr_free(q);
    }
    *state = NULL;
}

/* POST: called once for the head, then for each part of the body, then for its
 * end. */
static enum MHD_Result question_go_on(ldr_admin_t *a, struct MHD_Connection *c,
                                      bool here, const char *upload,
                                      size_t *upload_bytes, void **state)
{
    ldr_question_t *q = *state;

    if (q == NULL) {
        return question_begin(a, c, here, state);
    }
    if (*upload_bytes > 0) {
        question_add(a, q, upload, *upload_bytes);
        *upload_bytes = 0;
        return MHD_YES;
    }
    return question_answer(a, c, q);
}

static enum MHD_Result connection_answer(void *arg, struct MHD_Connection *c,
                                         const char *path, const char *method,
                                         const char *version,
                                         const char *upload,
                                         size_t *upload_bytes, void **state)
{
    ldr_admin_t *a = arg;
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    bool here = from_here(c);

    (void)version;
    bool asks = strcmp(path, "/query") == 0 && strcmp(method, "POST") == 0;
    if (!asks && strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        return status_say(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET");
    }
    if (here && host != NULL && !host_is_ours(a, host)) {
        return status_say(
            c, MHD_HTTP_MISDIRECTED_REQUEST,
            "this host is not called that: use 127.0.0.1 or localhost");
    }
    if (asks) {
        return question_go_on(a, c, here, upload, upload_bytes, state);
    }
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        if (strcmp(path, pages[i].path) != 0) {
            continue;
        }
        if (!here && !pages[i].anybody) {
            return status_say(c, MHD_HTTP_FORBIDDEN,
                              "only from the daemon's own host: use ssh -L or "
                              "kubectl port-forward");
        }
        return pages[i].page(a, c);
    }
    return status_say(c, MHD_HTTP_NOT_FOUND,
                      "there are /, /metrics, /healthz, /readyz, /config, "
                      "/status.json and, by POST, /query");
}

/* ---- the page's policy ---- */

/* The hash of what is between <tag> and </tag>, as the policy wants it. */
static bool source_hash(const char *tag, char text[HASH_TEXT])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqr"
                                 "stuvwxyz0123456789+/";
    char open[16], close[16];
    uint8_t hash[33] = {0}; /* a byte more: three times eleven */

    snprintf(open, sizeof(open), "<%s>", tag);
    snprintf(close, sizeof(close), "</%s>", tag);
    const char *from = strstr(ldr_dashboard_page, open);
    const char *to = from != NULL ? strstr(from, close) : NULL;
    if (to == NULL) {
        return false;
    }
    from += strlen(open);
    if (!ldr_sha256(&(ldr_piece_t){from, (size_t)(to - from)}, 1, hash)) {
        return false;
    }
    size_t n = (size_t)snprintf(text, HASH_TEXT, "'sha256-");
    for (int i = 0; i < 33; i += 3) {
        uint32_t bits =
            (uint32_t)hash[i] << 16 | (uint32_t)hash[i + 1] << 8 | hash[i + 2];

        for (int shift = 18; shift >= 0; shift -= 6) {
            text[n++] = digits[bits >> shift & 63];
        }
    }
    text[n - 1] = '='; /* 32 bytes: one place is padding */
    text[n++] = '\'';
    text[n] = '\0';
    return true;
}

static bool make_policy(ldr_admin_t *a)
{
    char script[HASH_TEXT], style[HASH_TEXT];

    if (!source_hash("script", script) || !source_hash("style", style)) {
        return false;
    }
    snprintf(a->policy, sizeof(a->policy),
             "default-src 'none'; script-src %s; style-src %s; "
             "connect-src 'self'; img-src data:; base-uri 'none'; "
             "form-action 'none'; frame-ancestors 'none'",
             script, style);
    return true;
}

/* ---- life ---- */

static bool learn_port(ldr_admin_t *a, int fd)
{
    struct sockaddr_storage s;
    socklen_t bytes = sizeof(s);

    if (getsockname(fd, (struct sockaddr *)&s, &bytes) != 0) {
        return false;
    }
    a->port = ntohs(s.ss_family == AF_INET6
                        ? ((struct sockaddr_in6 *)(void *)&s)->sin6_port
                        : ((struct sockaddr_in *)(void *)&s)->sin_port);
    bool v6 = strchr(a->host, ':') != NULL;
    snprintf(a->url, sizeof(a->url), "http://%s%s%s:%u/", v6 ? "[" : "",
             a->host, v6 ? "]" : "", a->port);
    return true;
}

/* The library makes its thread itself. It inherits the mask of signals, which
 * as in all our threads are somebody else's. poll() and not epoll: with the
 * latter it does not see a peer close that has just sent something. */
static larder_status_t connection_start(ldr_admin_t *a, int fd)
{
    sigset_t all, before;

    if (!learn_port(a, fd) || !make_policy(a)) {
        close(fd);
        return ldr_fail(LARDER_E_IO, "admin: %s", strerror(errno));
    }
    a->lobby = ldr_lobby_create(PEERS_MAX, ORIGIN_MAX);
    if (a->lobby == NULL) {
        close(fd);
        return ldr_fail(LARDER_E_NO_MEMORY, "admin: not enough memory");
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    a->daemon = MHD_start_daemon(
        MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
        connection_answer, a, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
        MHD_OPTION_NOTIFY_CONNECTION, noticed, a, MHD_OPTION_NOTIFY_COMPLETED,
        completed, a, MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES,
        MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (a->daemon == NULL) {
        close(fd);
        return ldr_fail(LARDER_E_IO, "admin: libmicrohttpd did not start");
    }
    return LARDER_OK;
}

larder_status_t ldr_admin_open(const char *address,
                               const ldr_admin_source_t *source,
                               const ldr_log_t *log, ldr_admin_t **admin_p)
{
    ldr_address_t parsed;

    if (!ldr_address_parse(address, strlen(address), &parsed)) {
        return ldr_fail(LARDER_E_INVALID,
                        "admin=%s: an address is host:port, like "
                        "127.0.0.1:9464",
                        address);
    }
    int fd = ldr_listen_tcp(&parsed, "");
    if (fd < 0) {
        return ldr_fail(LARDER_E_IO,
                        "admin=%s: cannot listen: %s (choose another --admin "
                        "HOST:PORT, or none)",
                        address, strerror(-fd));
    }
    return ldr_admin_open_at(address, fd, source, log, admin_p);
}

larder_status_t ldr_admin_open_at(const char *address, int fd,
                                  const ldr_admin_source_t *source,
                                  const ldr_log_t *log, ldr_admin_t **admin_p)
{
    ldr_address_t parsed = {.host = ""};

    ldr_address_parse(address, strlen(address), &parsed);
    ldr_admin_t *a = ldr_alloc(sizeof(*a));
    if (a == NULL) {
        close(fd);
        return LARDER_E_NO_MEMORY;
    }
    a->source = *source;
    a->log = *log;
    a->asking.query = source->query;
    a->asking.arg = source->arg;
    a->asking.answered = question_answered;
    a->asks = ldr_asking_open(&a->asking);
    snprintf(a->host, sizeof(a->host), "%s", parsed.host);
    larder_status_t st = LARDER_E_NO_MEMORY;
    if (a->asks) {
        st = connection_start(a, fd);
    } else {
        close(fd);
    }
    if (st != LARDER_OK) {
        ldr_admin_close(a);
        return st;
    }
    if (!ldr_address_loopback(&parsed)) {
        ldr_warn(log,
                 "admin: %s is not loopback: other hosts can read /metrics, "
                 "/healthz and /readyz (option admin_open)",
                 a->url);
    }
    *admin_p = a;
    return LARDER_OK;
}

void ldr_admin_close(ldr_admin_t *a)
{
    if (a == NULL) {
        return;
    }
    if (a->asks) { /* first: no connection may be suspended when it ends */
        ldr_asking_stop(&a->asking);
    }
    if (a->daemon != NULL) {
        MHD_stop_daemon(a->daemon);
    }
    if (a->asks) {
        ldr_asking_close(&a->asking);
    }
    ldr_lobby_destroy(a->lobby);
    ldr_free(a);
}

uint16_t ldr_admin_port(const ldr_admin_t *a)
{
    return a->port;
}

const char *ldr_admin_url(const ldr_admin_t *a)
{
    return a->url;
}

larder_status_t ldr_admin_check(const char *address)
{
    (void)address;
    return LARDER_OK;
}

#else /* no libmicrohttpd */

#include <unistd.h>

larder_status_t ldr_admin_check(const char *address)
{
    return ldr_fail(LARDER_E_UNSUPPORTED,
                    "admin=%s: built without libmicrohttpd (Debian: "
                    "libmicrohttpd-dev); admin=none does without it",
                    address);
}

larder_status_t ldr_admin_open(const char *address,
                               const ldr_admin_source_t *source,
                               const ldr_log_t *log, ldr_admin_t **admin_p)
{
    (void)source, (void)log, (void)admin_p;
    return ldr_admin_check(address);
}

larder_status_t ldr_admin_open_at(const char *address, int fd,
                                  const ldr_admin_source_t *source,
                                  const ldr_log_t *log, ldr_admin_t **admin_p)
{
    (void)source, (void)log, (void)admin_p;
    close(fd);
    return ldr_admin_check(address);
}

void ldr_admin_close(ldr_admin_t *admin)
{
    (void)admin;
}

uint16_t ldr_admin_port(const ldr_admin_t *admin)
{
    (void)admin;
    return 0;
}

const char *ldr_admin_url(const ldr_admin_t *admin)
{
    (void)admin;
    return "";
}

#endif
