/*
 * The shared tier in a Valkey or Redis server.
 *
 * An object is the string larder:o:NAME. Its name also stands in the sorted set
 * larder:l, with the same score for all, so that a range of the set by its
 * bytes is a page of a listing. String and set change in one transaction. An
 * object that the server evicts stays listed until it is removed: to who reads
 * it, it is gone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/thread.h"
#include "tier/shared/iov.h"
#include "tier/shared/params.h"
#include "tier/shared/valkey.h"

#define KEY_BYTES (LDR_OBJECT_NAME_MAX + 16)
#define ASK_BYTES 1024u
#define NAMES_KEY "larder:l"
/* Objects expire, in ten years: so that policies which evict what expires, the
 * volatile ones, take them and nothing else. */
#define EXPIRES_S (3650u * 86400)

/* A call under way. */
typedef struct ldr_valkey_call {
    ldr_valkey_t *v;
    ldr_valkey_conn_t *conn;
    const char *name;
    char key[KEY_BYTES];
    char text[ASK_BYTES];
    ldr_text_t ask;
} ldr_valkey_call_t;

static ldr_valkey_t *of(ldr_backend_t *b)
{
    return (ldr_valkey_t *)b;
}

/* What went wrong, with the object's name before it. */
static int fail(const ldr_valkey_call_t *call, int error, const char *what)
{
    char text[200], at[LDR_HOST_MAX + 32];

    /* A connection that failed names the address itself. */
    snprintf(at, sizeof(at), "%s port %s: ", call->v->address.host,
             call->v->address.port);
    snprintf(text, sizeof(text), "%s",
             what + (strncmp(what, at, strlen(at)) == 0 ? strlen(at) : 0));
    ldr_fail(LARDER_E_IO, "%s: valkey at %s%s%s", call->name, at, text,
             error == -ENOTSUP && call->conn != NULL
                 ? ": a cluster's node, and a tier needs a server of its own"
                 : "");
    return error;
}

static int gone(const char *name)
{
    ldr_fail(LARDER_E_IO, "%s: no such object", name);
    return -ENOENT;
}

/* Takes a connection. name: the object's, or what is listed. */
static int begin_any(ldr_valkey_call_t *call, ldr_backend_t *b,
                     const char *name, uint64_t deadline_ns)
{
    call->v = of(b);
    call->conn = NULL;
    call->name = name;
    call->ask = ldr_text(call->text, sizeof(call->text));
    snprintf(call->key, sizeof(call->key), "larder:o:%s", name);
    ldr_fail_clear();
    int error = ldr_valkey_take(call->v, deadline_ns, &call->conn);
    if (error != 0) {
        call->conn = NULL;
        return fail(call, error, ldr_fail_text());
    }
    ldr_resp_begin(&call->conn->resp);
    return 0;
}

static int begin(ldr_valkey_call_t *call, ldr_backend_t *b, const char *name,
                 uint64_t deadline_ns)
{
    return ldr_object_name_ok(name) ? begin_any(call, b, name, deadline_ns)
                                    : ldr_object_wrong(name);
}

/* Sends what was composed. */
static int ask(ldr_valkey_call_t *call)
{
    struct iovec iov = {call->text, call->ask.length};

    return call->ask.length < sizeof(call->text)
               ? ldr_valkey_send(call->conn, &iov, 1)
               : -ENAMETOOLONG;
}

/* Gives the connection back. error: of the connection; what the server said
 * counts where there is none. */
static int end(ldr_valkey_call_t *call, int error)
{
    bool good = error == 0;

    if (!good) {
        error = fail(call, error, ldr_fail_text());
    } else if (call->conn->resp.error != 0) {
        error = fail(call, call->conn->resp.error, call->conn->resp.text);
    }
    if (error == -EROFS || error == -ENOTSUP) {
        ldr_valkey_leave(call->v); /* is another one in its place by now? */
    }
    /* One that may not do this is not kept: the login may be right by then. */
    ldr_valkey_give(call->v, call->conn, good && error != -EACCES);
    return error;
}

/* ---- put ---- */

static int send_put(ldr_valkey_call_t *call, const struct iovec *iov,
                    unsigned count, unsigned flags, uint64_t bytes)
{
    char after[ASK_BYTES];
    ldr_text_t t = ldr_text(after, sizeof(after));
    bool new = (flags & LDR_OBJECT_NEW) != 0;
    bool evictable = strstr(call->name, "/o/") != NULL;
    struct iovec *all = ldr_alloc((count + 2) * sizeof(*all));

    if (all == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory");
        return -ENOMEM;
    }
    ldr_resp_command(&call->ask, "MULTI", NULL);
    ldr_resp_ask(&call->ask, 3 + (evictable ? 2 : 0) + (new ? 1 : 0));
    ldr_resp_arg(&call->ask, "SET");
    ldr_resp_arg(&call->ask, call->key);
    ldr_resp_arg_head(&call->ask, bytes);
    ldr_text_add(&t, "\r\n");
    if (evictable) {
        ldr_resp_arg(&t, "EX");
        ldr_resp_arg_number(&t, EXPIRES_S);
    }
    if (new) {
        ldr_resp_arg(&t, "NX");
    }
    ldr_resp_command(&t, "ZADD", NAMES_KEY, "0", call->name, NULL);
    ldr_resp_command(&t, "EXEC", NULL);
    all[0] = (struct iovec){call->text, call->ask.length};
    memcpy(all + 1, iov, count * sizeof(*all));
    all[count + 1] = (struct iovec){after, t.length};
    int error = ldr_valkey_send(call->conn, all, count + 2);
    ldr_free(all);
    return error;
}

static int valkey_put(ldr_backend_t *b, const char *name,
                      const struct iovec *iov, unsigned count, unsigned flags,
                      uint64_t deadline_ns)
{
    uint64_t bytes = ldr_iov_bytes(iov, count);
    int64_t did[2] = {0};
    ldr_valkey_call_t call;

    int error = bytes > LDR_OBJECT_BYTES_MAX
                    ? ldr_object_wrong(name)
                    : begin(&call, b, name, deadline_ns);
    if (error != 0) {
        return error;
    }
    error = send_put(&call, iov, count, flags, bytes);
    if (error == 0) {
        error = ldr_resp_exec(&call.conn->resp, did);
    }
    error = end(&call, error);
    if (error == 0 && did[0] == 0) {
        ldr_fail(LARDER_E_IO, "%s: exists already", name);
        return -EEXIST;
    }
    return error;
}

/* ---- get and size ---- */

static void compose_size(ldr_valkey_call_t *call)
{
    call->ask = ldr_text(call->text, sizeof(call->text));
    ldr_resp_command(&call->ask, "STRLEN", call->key, NULL);
    ldr_resp_command(&call->ask, "EXISTS", call->key, NULL);
}

/* An empty string and none have the same length. */
static int read_size(ldr_valkey_call_t *call, int64_t *bytes_p,
                     int64_t *there_p)
{
    int error = ask(call);

    if (error == 0) {
        error = ldr_resp_number(&call->conn->resp, bytes_p);
    }
    if (error == 0) {
        error = ldr_resp_number(&call->conn->resp, there_p);
    }
    if (*bytes_p > 0) {
        *there_p = 1; /* evicted between the two */
    }
    return error;
}

/* Not STRLEN, which is a use to a server that evicts what was not used. */
static int valkey_exists(ldr_backend_t *b, const char *name,
                         uint64_t deadline_ns)
{
    int64_t there = 0;
    ldr_valkey_call_t call;

    int error = begin(&call, b, name, deadline_ns);
    if (error != 0) {
        return error;
    }
    ldr_resp_command(&call.ask, "EXISTS", call.key, NULL);
    error = ask(&call);
    if (error == 0) {
        error = ldr_resp_number(&call.conn->resp, &there);
    }
    error = end(&call, error);
    return error == 0 && there == 0 ? gone(name) : error;
}

static int valkey_size(ldr_backend_t *b, const char *name, uint64_t *bytes_p,
                       uint64_t deadline_ns)
{
    int64_t bytes = 0, there = 0;
    ldr_valkey_call_t call;

    int error = begin(&call, b, name, deadline_ns);
    if (error != 0) {
        return error;
    }
    compose_size(&call);
    error = end(&call, read_size(&call, &bytes, &there));
    if (error == 0 && there == 0) {
        return gone(name);
    }
    *bytes_p = (uint64_t)bytes;
    return error;
}

static int ask_range(ldr_valkey_call_t *call, uint64_t offset, uint64_t bytes)
{
    ldr_resp_ask(&call->ask, 4);
    ldr_resp_arg(&call->ask, "GETRANGE");
    ldr_resp_arg(&call->ask, call->key);
    ldr_resp_arg_number(&call->ask, offset);
    ldr_resp_arg_number(&call->ask, offset + bytes - 1);
    return ask(call);
}

static int valkey_get(ldr_backend_t *b, const char *name, uint64_t offset,
                      const struct iovec *iov, unsigned count,
                      uint64_t deadline_ns)
{
    uint64_t bytes = ldr_iov_bytes(iov, count), got = 0;
    int64_t size = 0, there = 1;
    ldr_valkey_call_t call;

    int error = bytes > LDR_OBJECT_BYTES_MAX || offset > INT64_MAX / 2
                    ? ldr_object_wrong(name)
                    : begin(&call, b, name, deadline_ns);
    if (error != 0) {
        return error;
    }
    if (bytes > 0) {
        error = ask_range(&call, offset, bytes);
        if (error == 0) {
            error = ldr_resp_range(&call.conn->resp, iov, count, bytes, &got);
        }
    }
    if (error == 0 && call.conn->resp.error == 0 && (got < bytes || !bytes)) {
        compose_size(&call);
        error = read_size(&call, &size, &there);
    }
    error = end(&call, error);
    if (error == 0 && there == 0) {
        return gone(name);
    }
    if (error == 0 && (got < bytes || (!bytes && (uint64_t)size < offset))) {
        ldr_fail(LARDER_E_IO, "%s: has %lld bytes, not the %llu from %llu on",
                 name, (long long)size, (unsigned long long)bytes,
                 (unsigned long long)offset);
        return -ENODATA;
    }
    return error;
}

/* ---- list ---- */

/* From behind `after`, or from the prefix on, up to where its '/' would be the
 * next character instead. */
static int ask_page(ldr_valkey_call_t *call, const char *prefix,
                    const char *after)
{
    bool from_after = after != NULL && strcmp(after, prefix) > 0;
    char from[KEY_BYTES] = "-", to[KEY_BYTES] = "+", most[16];

    if (from_after || prefix[0] != '\0') {
        snprintf(from, sizeof(from), "%c%s", from_after ? '(' : '[',
                 from_after ? after : prefix);
    }
    if (prefix[0] != '\0') {
        snprintf(to, sizeof(to), "(%s", prefix);
        to[strlen(to) - 1] = '/' + 1;
    }
    call->ask = ldr_text(call->text, sizeof(call->text));
    snprintf(most, sizeof(most), "%u", LDR_VALKEY_PAGE);
    ldr_resp_command(&call->ask, "ZRANGEBYLEX", NAMES_KEY, from, to, "LIMIT",
                     "0", most, NULL);
    return ask(call);
}

static int page(ldr_backend_t *b, const char *prefix, const char *after,
                ldr_valkey_name_t *names, unsigned *count_p,
                uint64_t deadline_ns)
{
    ldr_valkey_call_t call;
    int error = begin_any(&call, b, prefix[0] != '\0' ? prefix : "a listing",
                          deadline_ns);

    if (error != 0) {
        return error;
    }
    error = ask_page(&call, prefix, after);
    if (error == 0) {
        error = ldr_resp_names(&call.conn->resp, prefix, after, names, count_p);
    }
    return end(&call, error);
}

static int valkey_list(ldr_backend_t *b, const char *prefix, const char *after,
                       int (*fn)(void *arg, const char *name, uint64_t bytes),
                       void *arg, uint64_t deadline_ns)
{
    unsigned count = LDR_VALKEY_PAGE;
    ldr_valkey_name_t last;
    int error = 0;

    if (!ldr_object_prefix_ok(prefix) ||
        (after != NULL && strlen(after) > LDR_OBJECT_NAME_MAX)) {
        return ldr_object_wrong(prefix);
    }
    ldr_valkey_name_t *names = ldr_alloc(LDR_VALKEY_PAGE * sizeof(*names));
    if (names == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "%s: no memory to list it", prefix);
        return -ENOMEM;
    }
    /* fn is called without a connection held: it may use the back end. */
    while (error == 0 && count == LDR_VALKEY_PAGE) {
        error = page(b, prefix, after, names, &count, deadline_ns);
        for (unsigned i = 0; i < count && error == 0; i++) {
            error = fn(arg, names[i], 0);
        }
        if (error == 0 && count > 0) {
            memcpy(last, names[count - 1], sizeof(last));
            after = last;
        }
    }
    ldr_free(names);
    return error;
}

/* ---- remove and health ---- */

static int valkey_remove(ldr_backend_t *b, const char *name,
                         uint64_t deadline_ns)
{
    int64_t did[2] = {0};
    ldr_valkey_call_t call;

    int error = begin(&call, b, name, deadline_ns);
    if (error != 0) {
        return error;
    }
    ldr_resp_command(&call.ask, "MULTI", NULL);
    ldr_resp_command(&call.ask, "UNLINK", call.key, NULL);
    ldr_resp_command(&call.ask, "ZREM", NAMES_KEY, name, NULL);
    ldr_resp_command(&call.ask, "EXEC", NULL);
    error = ask(&call);
    if (error == 0) {
        error = ldr_resp_exec(&call.conn->resp, did);
    }
    error = end(&call, error);
    return error == 0 && did[0] == 0 && did[1] == 0 ? gone(name) : error;
}

static int valkey_health(ldr_backend_t *b, uint64_t deadline_ns)
{
    uint64_t bytes;
    int error = valkey_size(b, LDR_OBJECTS_ID_NAME, &bytes, deadline_ns);

    if (error == -ENOENT) {
        ldr_fail(LARDER_E_IO,
                 "valkey at %s port %s has no %s: the first node that may "
                 "write makes it, or `larder tier create`",
                 of(b)->address.host, of(b)->address.port, LDR_OBJECTS_ID_NAME);
        return -ENODEV;
    }
    return error;
}

static void valkey_destroy(ldr_backend_t *b)
{
    ldr_valkey_t *v = of(b);

    ldr_valkey_leave(v);
    ldr_tls_destroy(v->tls);
    pthread_mutex_destroy(&v->lock);
    ldr_free(v);
}

/* ---- the url ---- */

static const ldr_backend_ops_t ops = {
    .name = "valkey",
    .makes_itself = true,
    .put = valkey_put,
    .get = valkey_get,
    .size = valkey_size,
    .list = valkey_list,
    .remove = valkey_remove,
    .exists = valkey_exists,
    .health = valkey_health,
    .destroy = valkey_destroy,
};

static larder_status_t fail_url(const char *why)
{
    /* Not the url itself: someone may have put a password into it. */
    return ldr_fail(LARDER_E_INVALID,
                    "shared: %s: write valkey://[USER@]HOST[:PORT][/DB], or "
                    "valkeys://...[?ca=FILE&cert=FILE&key=FILE] for TLS",
                    why);
}

/* "user@host:port": what stands before '/' and '?'. */
static larder_status_t take_host(ldr_valkey_t *v, const char *rest,
                                 size_t bytes)
{
    const char *at = memchr(rest, '@', bytes);
    char text[LDR_HOST_MAX + 16];

    if (at != NULL) {
        size_t user = (size_t)(at - rest);
        if (memchr(rest, ':', user) != NULL) {
            return fail_url("a password does not belong into a url, but into "
                            "the file that shared_login names");
        }
        if (user == 0 || user >= sizeof(v->user)) {
            return fail_url("the user's name");
        }
        memcpy(v->user, rest, user);
        rest += user + 1;
        bytes -= user + 1;
    }
    bool v6 = bytes > 0 && rest[0] == '[';
    const char *close = v6 ? memchr(rest, ']', bytes) : rest;
    if (bytes == 0 || bytes >= LDR_HOST_MAX || close == NULL) {
        return fail_url("the host");
    }
    bool has_port = memchr(close, ':', bytes - (size_t)(close - rest)) != NULL;
    snprintf(text, sizeof(text), "%.*s%s", (int)bytes, rest,
             has_port ? "" : ":6379");
    return ldr_address_parse(text, strlen(text), &v->address)
               ? LARDER_OK
               : fail_url("host and port");
}

static larder_status_t take_db(ldr_valkey_t *v, const char *text, size_t bytes)
{
    if (bytes >= sizeof(v->db)) {
        return fail_url("the database's number");
    }
    memcpy(v->db, text, bytes);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return fail_url("the database's number");
        }
    }
    if (strcmp(v->db, "0") == 0) {
        v->db[0] = '\0'; /* it is what one gets */
    }
    return LARDER_OK;
}

static larder_status_t take_url(ldr_valkey_t *v, const char *rest)
{
    const ldr_url_param_t params[] = {
        {"ca", v->ca, sizeof(v->ca)},
        {"cert", v->cert, sizeof(v->cert)},
        {"key", v->key, sizeof(v->key)},
    };
    size_t host = strcspn(rest, "/?");
    size_t path = strcspn(rest, "?");
    larder_status_t st = take_host(v, rest, host);

    if (st == LARDER_OK && rest[host] == '/') {
        st = take_db(v, rest + host + 1, path - host - 1);
    }
    if (st == LARDER_OK && rest[path] == '?') {
        if (!v->wants_tls) {
            return fail_url("only valkeys:// has certificates");
        }
        if (!ldr_url_params(rest + path + 1, params, 3)) {
            return fail_url("what follows the ?");
        }
    }
    return st;
}

larder_status_t ldr_valkey_open(const ldr_backend_params_t *p, const char *rest,
                                ldr_backend_t **backend_p)
{
    ldr_valkey_t *v = ldr_alloc(sizeof(*v));

    if (v == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the shared tier");
    }
    v->base.ops = &ops;
    v->wants_tls = strncmp(p->url, "valkeys:", 8) == 0;
    v->idle_max = p->lanes + 1;
    ldr_mutex_init(&v->lock);
    larder_status_t st = take_url(v, rest);
    if (st != LARDER_OK) {
        valkey_destroy(&v->base);
        return st;
    }
    snprintf(v->login, sizeof(v->login), "%s", p->login);
    *backend_p = &v->base;
    return LARDER_OK;
}
