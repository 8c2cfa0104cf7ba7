/*
 * The shared tier in a Valkey or Redis server, or a cluster of them.
 *
 * An object is the string larder:o:NAME. Its name also stands in the sorted set
 * larder:l, with the same score for all, so that a range of the set by its
 * bytes is a page of a listing. String and set change in one transaction. An
 * object that the server evicts stays listed until it is removed: to who reads
 * it, it is gone.
 *
 * In a cluster (valkey_cluster.c) they are larder:o:{TAG}NAME and
 * larder:l:{TAG}, where the tag follows from the name; a listing merges the
 * sets.
 *
 * Any worker may call; v->lock guards what they share, and is never held across
 * a call.
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
#include "base/iov.h"
#include "tier/shared/valkey.h"

#define KEY_BYTES (LDR_OBJECT_NAME_MAX + 32)
#define NAMES_BYTES 32u
#define ASK_BYTES 1024u
#define NAMES_KEY "larder:l"
#define ASKING "*1\r\n$6\r\nASKING\r\n"
/* Objects expire, in ten years: so that policies which evict what expires, the
 * volatile ones, take them and nothing else. */
#define EXPIRES_S (3650u * 86400)

#define HOPS 5u          /* servers that a call is sent on to */
#define TRY_AGAIN_MS 10u /* while a slot moves from one to another */
#define SET_PAGE 64u /* names of one of a cluster's sets asked for at once */

/* A call under way. In a cluster the keys carry a tag. */
typedef struct ldr_valkey_call {
    ldr_valkey_t *v;
    ldr_valkey_conn_t *conn; /* NULL: there is none */
    unsigned node;
    const char *name;
    unsigned tag;
    uint64_t deadline_ns;
    char key[KEY_BYTES];     /* the object's */
    char names[NAMES_BYTES]; /* of the set with its name */
    char text[ASK_BYTES];
    ldr_text_t ask;
} ldr_valkey_call_t;

/* Asks, and reads the answer to its end: 0, whatever it was. */
typedef int ldr_valkey_try_t(ldr_valkey_call_t *call, void *arg);

static ldr_valkey_t *of(ldr_backend_t *b)
{
    return (ldr_valkey_t *)b;
}

static const ldr_address_t *address_of(ldr_valkey_t *v, unsigned node)
{
    ldr_mutex_lock(&v->lock);
    const ldr_address_t *address = &v->nodes[node]->address;
    ldr_mutex_unlock(&v->lock);
    return address;
}

static bool is_cluster(ldr_valkey_t *v)
{
    ldr_mutex_lock(&v->lock);
    bool cluster = v->kind == LDR_VALKEY_CLUSTER;
    ldr_mutex_unlock(&v->lock);
    return cluster;
}

/* What went wrong, with the object's name before it. */
static int fail(const ldr_valkey_call_t *call, int error, const char *what)
{
    const ldr_address_t *address = address_of(call->v, call->node);
    char text[200], at[LDR_HOST_MAX + 32];

    /* A connection that failed names the address itself. */
    snprintf(at, sizeof(at), "%s port %s: ", address->host, address->port);
    snprintf(text, sizeof(text), "%s",
             what + (strncmp(what, at, strlen(at)) == 0 ? strlen(at) : 0));
    ldr_fail(LARDER_E_IO, "%s: valkey at %s%s%s", call->name, at, text,
             error == -ENOTSUP && call->conn != NULL && !is_cluster(call->v)
                 ? ": a server of a cluster that does not let us ask for its "
                   "slots: allow the user the command CLUSTER|SLOTS"
                 : "");
    return error;
}

static int gone(const char *name)
{
    ldr_fail(LARDER_E_IO, "%s: no such object", name);
    return -ENOENT;
}

/* Learns what the servers are, and sets the call's keys and its server. */
static int find_server(ldr_valkey_call_t *call)
{
    ldr_valkey_t *v = call->v;
    int error = ldr_valkey_learn(v, call->deadline_ns);

    if (error != 0) {
        return error;
    }
    if (is_cluster(v)) {
        const char *tag = v->tags[call->tag].text;

        snprintf(call->key, sizeof(call->key), "larder:o:{%s}%s", tag,
                 call->name);
        snprintf(call->names, sizeof(call->names), NAMES_KEY ":{%s}", tag);
    } else {
        snprintf(call->key, sizeof(call->key), "larder:o:%s", call->name);
        snprintf(call->names, sizeof(call->names), NAMES_KEY);
    }
    unsigned node;
    error = ldr_valkey_route(v, call->tag, &node);
    call->node = error == 0 ? node : call->node;
    return error;
}

/* Takes a connection; and where a slot is on its way to the server, says that
 * this is known. */
static int connect_call(ldr_valkey_call_t *call, bool asking)
{
    int error =
        ldr_valkey_take(call->v, call->node, call->deadline_ns, &call->conn);

    if (error != 0) {
        call->conn = NULL;
        return error;
    }
    ldr_resp_begin(&call->conn->resp);
    call->ask = ldr_text(call->text, sizeof(call->text));
    if (asking) {
        struct iovec iov = {(char *)ASKING, strlen(ASKING)};
        error = ldr_valkey_send(call->conn, &iov, 1);
        error = error != 0 ? error : ldr_resp_word(&call->conn->resp, "OK");
    }
    return error;
}

/* Sends what was composed. */
static int call_server(ldr_valkey_call_t *call)
{
    struct iovec iov = {call->text, call->ask.length};

    return call->ask.length < sizeof(call->text)
               ? ldr_valkey_send(call->conn, &iov, 1)
               : -ENAMETOOLONG;
}

/* Gives the connection back. error: of the connection; what the server said
 * counts where there is none. */
static int call_end(ldr_valkey_call_t *call, int error)
{
    bool good = error == 0;

    if (!good) {
        error = fail(call, error, ldr_fail_text());
    } else if (call->conn->resp.error != 0) {
        error = fail(call, call->conn->resp.error, call->conn->resp.text);
    }
    if (error == -EROFS || error == -ENOTSUP) {
        /* Is another one in its place by now? */
        ldr_valkey_leave(call->v, call->node);
        ldr_valkey_doubt(call->v);
    }
    if (!good && is_cluster(call->v)) {
        ldr_valkey_doubt(call->v);
    }
    /* One that may not do this is not kept: the login may be right by then. */
    if (call->conn != NULL) {
        ldr_valkey_give(call->v, call->conn, good && error != -EACCES);
        call->conn = NULL;
    }
    return error;
}

/* Whether the server has refused because another one has the slot, or will have
 * it soon: then nothing was done, and the call is made once more. */
static bool goes_on(ldr_valkey_call_t *call, unsigned hop, bool *asking_p)
{
    const ldr_resp_t *answer = &call->conn->resp;
    uint64_t nap_ns = TRY_AGAIN_MS * UINT64_C(1000000);

    if (answer->error == 0 || !is_cluster(call->v)) {
        return false;
    }
    if (strncmp(answer->text, "TRYAGAIN", 8) == 0 &&
        ldr_now_ns(&ldr_clock_real) + nap_ns < call->deadline_ns) {
        ldr_poll(-1, 0, ldr_now_ns(&ldr_clock_real) + nap_ns);
        return true;
    }
    return hop < HOPS &&
           ldr_valkey_redirected(call->v, call->conn, &call->node, asking_p);
}

/* One call, to whichever server has the object. name: the object's, or what is
 * listed. */
static int call_run(ldr_valkey_call_t *call, ldr_valkey_try_t *try, void *arg)
{
    bool asking = false, again = true;
    int error = 0;

    call->conn = NULL;
    call->node = 0;
    ldr_fail_clear();
    error = find_server(call);
    if (error != 0) {
        return fail(call, error, ldr_fail_text());
    }
    for (unsigned hop = 0; again; hop++) {
        error = connect_call(call, asking);
        if (call->conn == NULL && hop == 0 && is_cluster(call->v)) {
            /* Nothing was asked yet: has another server its slots by now? */
            unsigned was = call->node;

            ldr_valkey_doubt(call->v);
            if (find_server(call) == 0 && call->node != was) {
                continue;
            }
        }
        error = error != 0 ? error : try(call, arg);
        unsigned node = call->node;
        ldr_valkey_conn_t *conn = call->conn;
        again = error == 0 && goes_on(call, hop, &asking);
        if (again) {
            ldr_valkey_give(call->v, conn, true);
            call->conn = NULL;
        } else {
            call->node = node;
            error = call_end(call, error);
        }
    }
    return error;
}

static int run_object(ldr_valkey_call_t *call, ldr_backend_t *b,
                      const char *name, uint64_t deadline_ns,
                      ldr_valkey_try_t *try, void *arg)
{
    if (!ldr_object_name_ok(name)) {
        return ldr_object_wrong(name);
    }
    call->v = of(b);
    call->name = name;
    call->tag = ldr_valkey_tag(name);
    call->deadline_ns = deadline_ns;
    return call_run(call, try, arg);
}

/* ---- put ---- */

typedef struct put {
    const struct iovec *iov;
    unsigned count, flags;
    uint64_t bytes;
    int64_t did[2];
} put_t;

static int send_put(ldr_valkey_call_t *call, const put_t *p)
{
    char after[ASK_BYTES];
    ldr_text_t t = ldr_text(after, sizeof(after));
    bool new = (p->flags & LDR_OBJECT_NEW) != 0;
    bool evictable = strstr(call->name, "/o/") != NULL;
    struct iovec *all = ldr_alloc((p->count + 2) * sizeof(*all));

    if (all == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory");
        return -ENOMEM;
    }
    ldr_resp_command(&call->ask, "MULTI", NULL);
    ldr_resp_ask(&call->ask, 3 + (evictable ? 2 : 0) + (new ? 1 : 0));
    ldr_resp_arg(&call->ask, "SET");
    ldr_resp_arg(&call->ask, call->key);
    ldr_resp_arg_head(&call->ask, p->bytes);
    ldr_text_add(&t, "\r\n");
    if (evictable) {
        ldr_resp_arg(&t, "EX");
        ldr_resp_arg_number(&t, EXPIRES_S);
    }
    if (new) {
        ldr_resp_arg(&t, "NX");
    }
    ldr_resp_command(&t, "ZADD", call->names, "0", call->name, NULL);
    ldr_resp_command(&t, "EXEC", NULL);
    all[0] = (struct iovec){call->text, call->ask.length};
    memcpy(all + 1, p->iov, p->count * sizeof(*all));
    all[p->count + 1] = (struct iovec){after, t.length};
    int error = ldr_valkey_send(call->conn, all, p->count + 2);
    ldr_free(all);
    return error;
}

static int try_put(ldr_valkey_call_t *call, void *arg)
{
    put_t *p = arg;
    int error = send_put(call, p);

    return error != 0 ? error : ldr_resp_exec(&call->conn->resp, p->did);
}

static int valkey_put(ldr_backend_t *b, const char *name,
                      const struct iovec *iov, unsigned count, unsigned flags,
                      uint64_t deadline_ns)
{
    put_t p = {iov, count, flags, ldr_iov_bytes(iov, count), {0}};
    ldr_valkey_call_t call;

    int error = p.bytes > LDR_OBJECT_BYTES_MAX
                    ? ldr_object_wrong(name)
                    : run_object(&call, b, name, deadline_ns, try_put, &p);
    if (error == 0 && p.did[0] == 0) {
        ldr_fail(LARDER_E_IO, "%s: exists already", name);
        return -EEXIST;
    }
    return error;
}

/* ---- get and size ---- */

typedef struct length {
    int64_t bytes, there;
} length_t;

/* An empty string and none have the same length. */
static int try_size(ldr_valkey_call_t *call, void *arg)
{
    length_t *size = arg;

    call->ask = ldr_text(call->text, sizeof(call->text));
    ldr_resp_command(&call->ask, "STRLEN", call->key, NULL);
    ldr_resp_command(&call->ask, "EXISTS", call->key, NULL);
    int error = call_server(call);
    if (error == 0) {
        error = ldr_resp_number(&call->conn->resp, &size->bytes);
    }
    if (error == 0) {
        error = ldr_resp_number(&call->conn->resp, &size->there);
    }
    if (size->bytes > 0) {
        size->there = 1; /* evicted between the two */
    }
    return error;
}

static int try_exists(ldr_valkey_call_t *call, void *arg)
{
    ldr_resp_command(&call->ask, "EXISTS", call->key, NULL);
    int error = call_server(call);

    return error != 0 ? error : ldr_resp_number(&call->conn->resp, arg);
}

/* Not STRLEN, which is a use to a server that evicts what was not used. */
static int valkey_exists(ldr_backend_t *b, const char *name,
                         uint64_t deadline_ns)
{
    int64_t there = 0;
    ldr_valkey_call_t call;
    int error = run_object(&call, b, name, deadline_ns, try_exists, &there);

    return error == 0 && there == 0 ? gone(name) : error;
}

static int valkey_size(ldr_backend_t *b, const char *name, uint64_t *bytes_p,
                       uint64_t deadline_ns)
{
    length_t size = {0, 0};
    ldr_valkey_call_t call;
    int error = run_object(&call, b, name, deadline_ns, try_size, &size);

    if (error == 0 && size.there == 0) {
        return gone(name);
    }
    *bytes_p = (uint64_t)size.bytes;
    return error;
}

typedef struct get {
    const struct iovec *iov;
    unsigned count;
    uint64_t offset, bytes;
    uint64_t got;
    length_t size; /* asked for where less came than was wanted */
} get_t;

static int ask_range(ldr_valkey_call_t *call, uint64_t offset, uint64_t bytes)
{
    ldr_resp_ask(&call->ask, 4);
    ldr_resp_arg(&call->ask, "GETRANGE");
    ldr_resp_arg(&call->ask, call->key);
    ldr_resp_arg_number(&call->ask, offset);
    ldr_resp_arg_number(&call->ask, offset + bytes - 1);
    return call_server(call);
}

static int try_get(ldr_valkey_call_t *call, void *arg)
{
    get_t *g = arg;
    int error = 0;

    g->got = 0;
    if (g->bytes > 0) {
        error = ask_range(call, g->offset, g->bytes);
        if (error == 0) {
            error = ldr_resp_range(&call->conn->resp, g->iov, g->count,
                                   g->bytes, &g->got);
        }
    }
    if (error == 0 && call->conn->resp.error == 0 &&
        (g->got < g->bytes || g->bytes == 0)) {
        error = try_size(call, &g->size);
    }
    return error;
}

static int valkey_get(ldr_backend_t *b, const char *name, uint64_t offset,
                      const struct iovec *iov, unsigned count,
                      uint64_t deadline_ns)
{
    get_t g = {.iov = iov,
               .count = count,
               .offset = offset,
               .bytes = ldr_iov_bytes(iov, count),
               .size = {0, 1}};
    ldr_valkey_call_t call;

    int error = g.bytes > LDR_OBJECT_BYTES_MAX || offset > INT64_MAX / 2
                    ? ldr_object_wrong(name)
                    : run_object(&call, b, name, deadline_ns, try_get, &g);
    if (error == 0 && g.size.there == 0) {
        return gone(name);
    }
    if (error == 0 && (g.got < g.bytes ||
                       (g.bytes == 0 && (uint64_t)g.size.bytes < offset))) {
        ldr_fail(LARDER_E_IO, "%s: has %lld bytes, not the %llu from %llu on",
                 name, (long long)g.size.bytes, (unsigned long long)g.bytes,
                 (unsigned long long)offset);
        return -ENODATA;
    }
    return error;
}

/* ---- list ---- */

/* A page of one set of names. */
typedef struct page {
    const char *prefix;
    const char *after;      /* NULL: from the first on */
    ldr_valkey_name_t last; /* of the page before: after, from the second on */
    ldr_valkey_name_t *names;
    unsigned most, count;
    unsigned at; /* the first that was not given yet */
    bool ended;  /* there is none after it */
} page_t;

/* From behind `after`, or from the prefix on, up to where its '/' would be the
 * next character instead. */
static int try_page(ldr_valkey_call_t *call, void *arg)
{
    page_t *p = arg;
    bool from_after = p->after != NULL && strcmp(p->after, p->prefix) > 0;
    char from[KEY_BYTES] = "-", to[KEY_BYTES] = "+", most[16];

    if (from_after || p->prefix[0] != '\0') {
        snprintf(from, sizeof(from), "%c%s", from_after ? '(' : '[',
                 from_after ? p->after : p->prefix);
    }
    if (p->prefix[0] != '\0') {
        snprintf(to, sizeof(to), "(%s", p->prefix);
        to[strlen(to) - 1] = '/' + 1;
    }
    snprintf(most, sizeof(most), "%u", p->most);
    ldr_resp_command(&call->ask, "ZRANGEBYLEX", call->names, from, to, "LIMIT",
                     "0", most, NULL);
    int error = call_server(call);
    return error != 0 ? error
                      : ldr_resp_names(&call->conn->resp, p->prefix, p->after,
                                       p->names, p->most, &p->count);
}

/* The set's next names, once all that there were have been given. */
static int turn_page(ldr_valkey_t *v, page_t *p, unsigned tag,
                     uint64_t deadline_ns)
{
    ldr_valkey_call_t call = {.v = v,
                              .name = p->prefix[0] != '\0' ? p->prefix
                                                           : "a listing",
                              .tag = tag,
                              .deadline_ns = deadline_ns};

    if (p->ended || p->at < p->count) {
        return 0;
    }
    if (p->count > 0) {
        memcpy(p->last, p->names[p->count - 1], sizeof(p->last));
        p->after = p->last;
    }
    int error = call_run(&call, try_page, p);
    p->at = 0;
    p->count = error == 0 ? p->count : 0;
    p->ended = p->count < p->most;
    return error;
}

/* Gives the names of all pages in their order. fn is called without a
 * connection held: it may use the back end. */
static int merge_pages(ldr_valkey_t *v, page_t *pages, unsigned count,
                       int (*fn)(void *arg, const char *name, uint64_t bytes),
                       void *arg, uint64_t deadline_ns)
{
    for (;;) {
        page_t *least = NULL;

        for (unsigned i = 0; i < count; i++) {
            page_t *p = &pages[i];
            int error = turn_page(v, p, i, deadline_ns);

            if (error != 0) {
                return error;
            }
            if (p->at < p->count &&
                (least == NULL ||
                 strcmp(p->names[p->at], least->names[least->at]) < 0)) {
                least = p;
            }
        }
        int error = least != NULL ? fn(arg, least->names[least->at++], 0) : 0;
        if (least == NULL || error != 0) {
            return error;
        }
    }
}

static int valkey_list(ldr_backend_t *b, const char *prefix, const char *after,
                       int (*fn)(void *arg, const char *name, uint64_t bytes),
                       void *arg, uint64_t deadline_ns)
{
    ldr_valkey_t *v = of(b);

    if (!ldr_object_prefix_ok(prefix) ||
        (after != NULL && strlen(after) > LDR_OBJECT_NAME_MAX)) {
        return ldr_object_wrong(prefix);
    }
    /* What it is decides how many sets there are. */
    int error = ldr_valkey_learn(v, deadline_ns);
    if (error != 0) {
        return error;
    }
    unsigned sets = is_cluster(v) ? LDR_VALKEY_TAGS : 1;
    unsigned most = sets > 1 ? SET_PAGE : LDR_VALKEY_PAGE;
    ldr_valkey_name_t *names = ldr_alloc((size_t)sets * most * sizeof(*names));
    page_t *pages = ldr_alloc(sets * sizeof(*pages));
    for (unsigned i = 0; names != NULL && pages != NULL && i < sets; i++) {
        pages[i] = (page_t){.prefix = prefix,
                            .after = after,
                            .names = names + (size_t)i * most,
                            .most = most};
    }
    if (names == NULL || pages == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "%s: no memory to list it", prefix);
        error = -ENOMEM;
    }
    if (error == 0) {
        error = merge_pages(v, pages, sets, fn, arg, deadline_ns);
    }
    ldr_free(pages);
    ldr_free(names);
    return error;
}

/* ---- remove and health ---- */

static int try_remove(ldr_valkey_call_t *call, void *arg)
{
    ldr_resp_command(&call->ask, "MULTI", NULL);
    ldr_resp_command(&call->ask, "UNLINK", call->key, NULL);
    ldr_resp_command(&call->ask, "ZREM", call->names, call->name, NULL);
    ldr_resp_command(&call->ask, "EXEC", NULL);
    int error = call_server(call);

    return error != 0 ? error : ldr_resp_exec(&call->conn->resp, arg);
}

static int valkey_remove(ldr_backend_t *b, const char *name,
                         uint64_t deadline_ns)
{
    int64_t did[2] = {0};
    ldr_valkey_call_t call;
    int error = run_object(&call, b, name, deadline_ns, try_remove, did);

    return error == 0 && did[0] == 0 && did[1] == 0 ? gone(name) : error;
}

static int valkey_health(ldr_backend_t *b, uint64_t deadline_ns)
{
    const ldr_address_t *address = address_of(of(b), 0);
    uint64_t bytes;
    int error = valkey_size(b, LDR_OBJECTS_ID_NAME, &bytes, deadline_ns);

    if (error == -ENOENT) {
        ldr_fail(LARDER_E_IO,
                 "valkey at %s port %s has no %s: the first node that may "
                 "write makes it, or `larder tier create`",
                 address->host, address->port, LDR_OBJECTS_ID_NAME);
        return -ENODEV;
    }
    return error;
}

static void valkey_destroy(ldr_backend_t *b)
{
    ldr_valkey_t *v = of(b);

    for (unsigned i = 0; i < v->node_count; i++) {
        ldr_valkey_leave(v, i);
        ldr_free(v->nodes[i]);
    }
    ldr_tls_destroy(v->tls);
    pthread_mutex_destroy(&v->lock);
    ldr_free(v);
}

/* ---- opening ---- */

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

larder_status_t ldr_valkey_open(const ldr_backend_params_t *p, const char *rest,
                                ldr_backend_t **backend_p)
{
    ldr_valkey_t *v = ldr_alloc(sizeof(*v));

    if (v == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the shared tier");
    }
    v->base.ops = &ops;
    v->wants_tls = strncmp(p->url, "valkeys:", 8) == 0;
    v->idle_max = p->threads + 1;
    ldr_mutex_init(&v->lock);
    ldr_valkey_make_tags(v);
    larder_status_t st = ldr_valkey_take_url(v, rest);
    if (st != LARDER_OK) {
        valkey_destroy(&v->base);
        return st;
    }
    snprintf(v->login, sizeof(v->login), "%s", p->login);
    *backend_p = &v->base;
    return LARDER_OK;
}
