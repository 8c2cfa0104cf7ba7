/*
 * The shared tier in an S3-compatible object store. An object is the key
 * PREFIX/NAME of the bucket.
 *
 * Only one of two that put the same new name at once must win. Most servers
 * decide that themselves (If-None-Match: *). Whether this one does is found out
 * once, with an object that stays (larder.probe). Where it does not, a put of a
 * new name looks whether there is one, and two at once may both win: the later
 * one's bytes stay.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/iov.h"
#include "tier/shared/params.h"
#include "tier/shared/s3.h"
#include "net/curl.h"

#define PROBE_NAME "larder.probe"
#define PAGE_KEYS 1000u
#define CONFLICTS_MAX 4 /* of puts at once, before it is busy */

static ldr_s3_t *s3_of(ldr_backend_t *b)
{
    return (ldr_s3_t *)b;
}

/* ---- put ---- */

/* A conflict says that another put of the name is under way: its end decides.
 * *status_p: the server's last word. */
static int put_once(ldr_s3_t *s3, const char *name, const struct iovec *iov,
                    unsigned count, bool if_none, uint64_t deadline_ns,
                    long *status_p)
{
    ldr_s3_request_t r = {
        .verb = LDR_S3_PUT,
        .name = name,
        .iov = iov,
        .count = count,
        .bytes = ldr_iov_bytes(iov, count),
        .if_none = if_none,
        .deadline_ns = deadline_ns,
    };
    int error = -EBUSY;

    for (unsigned i = 0; i < CONFLICTS_MAX && error == -EBUSY; i++) {
        error = ldr_s3_do(s3, &r);
        if (r.status != 409) {
            break;
        }
    }
    *status_p = r.status;
    return error;
}

/* Puts the probe as a new one, twice if need be: at the latest the second time
 * it is none. */
static int puts_find_out(ldr_s3_t *s3, uint64_t deadline_ns)
{
    static const char text[] = "larder: may a put be conditional?\n";
    struct iovec iov = {(void *)(uintptr_t)text, sizeof(text) - 1};
    long status = 0;
    int error = 0;

    if (atomic_load(&s3->conditional) != LDR_S3_UNKNOWN) {
        return 0;
    }
    for (unsigned i = 0; i < 2 && error == 0; i++) {
        error = put_once(s3, PROBE_NAME, &iov, 1, true, deadline_ns, &status);
    }
    if (error == -EEXIST) {
        atomic_store(&s3->conditional, LDR_S3_CONDITIONAL);
        return 0;
    }
    if (error == 0 || status == 501 || status == 400) {
        if (atomic_exchange(&s3->conditional, LDR_S3_NOT) != LDR_S3_NOT) {
            ldr_warn(&s3->log,
                     "shared tier: s3 at %s has no conditional put "
                     "(If-None-Match): two nodes that write the same name at "
                     "once both succeed, and the later one's bytes stay",
                     s3->endpoint);
        }
        return 0;
    }
    return error;
}

static int object_head(ldr_s3_t *s3, const char *name, uint64_t *bytes_p,
                       uint64_t deadline_ns)
{
    ldr_s3_request_t r = {
        .verb = LDR_S3_HEAD,
        .name = name,
        .deadline_ns = deadline_ns,
    };
    int error = ldr_s3_do(s3, &r);

    *bytes_p = r.length;
    return error;
}

static int s3_put(ldr_backend_t *b, const char *name, const struct iovec *iov,
                  unsigned count, unsigned flags, uint64_t deadline_ns)
{
    ldr_s3_t *s3 = s3_of(b);
    bool new = (flags & LDR_OBJECT_NEW) != 0;
    uint64_t bytes;
    long status;

    if (!ldr_object_name_ok(name) ||
        ldr_iov_bytes(iov, count) > LDR_OBJECT_BYTES_MAX) {
        return ldr_object_wrong(name);
    }
    int error = new ? puts_find_out(s3, deadline_ns) : 0;
    if (error == 0 && new &&atomic_load(&s3->conditional) == LDR_S3_NOT) {
        error = object_head(s3, name, &bytes, deadline_ns);
        if (error == 0) {
            ldr_fail(LARDER_E_IO, "%s: exists already", name);
            return -EEXIST;
        }
        new = false;
        error = error == -ENOENT ? 0 : error;
    }
    return error != 0
               ? error
               : put_once(s3, name, iov, count, new, deadline_ns, &status);
}

/* ---- get, size, remove ---- */

static int s3_size(ldr_backend_t *b, const char *name, uint64_t *bytes_p,
                   uint64_t deadline_ns)
{
    return object_head(s3_of(b), name, bytes_p, deadline_ns);
}

static int s3_get(ldr_backend_t *b, const char *name, uint64_t offset,
                  const struct iovec *iov, unsigned count, uint64_t deadline_ns)
{
    ldr_s3_request_t r = {
        .verb = LDR_S3_GET,
        .name = name,
        .iov = iov,
        .count = count,
        .offset = offset,
        .bytes = ldr_iov_bytes(iov, count),
        .deadline_ns = deadline_ns,
    };
    uint64_t bytes = 0;

    if (r.bytes > LDR_OBJECT_BYTES_MAX || offset > INT64_MAX / 2) {
        return ldr_object_wrong(name);
    }
    if (r.bytes > 0) {
        return ldr_s3_do(s3_of(b), &r);
    }
    int error = object_head(s3_of(b), name, &bytes, deadline_ns);
    if (error == 0 && bytes < offset) {
        ldr_fail(LARDER_E_IO, "%s: it is shorter than that", name);
        return -ENODATA;
    }
    return error;
}

static int s3_remove(ldr_backend_t *b, const char *name, uint64_t deadline_ns)
{
    ldr_s3_request_t r = {
        .verb = LDR_S3_DELETE,
        .name = name,
        .deadline_ns = deadline_ns,
    };

    return ldr_s3_do(s3_of(b), &r);
}

/* ---- list ---- */

static void add_escaped(ldr_text_t *t, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";

    for (; *text != '\0'; text++) {
        if (strchr(plain, *text) != NULL) {
            ldr_text_char(t, *text);
        } else {
            ldr_text_add(t, "%%%02X", (unsigned char)*text);
        }
    }
}

/* In the order of their names, as the signature wants it. */
static bool compose_list(const ldr_s3_t *s3, const char *prefix,
                         const char *after, const char *token, char *query,
                         size_t size)
{
    ldr_text_t t = ldr_text(query, size);

    if (token[0] != '\0') {
        ldr_text_add(&t, "continuation-token=");
        add_escaped(&t, token);
        ldr_text_char(&t, '&');
    }
    ldr_text_add(&t, "list-type=2&max-keys=%u&prefix=", PAGE_KEYS);
    add_escaped(&t, s3->prefix);
    add_escaped(&t, prefix);
    if (after != NULL) {
        ldr_text_add(&t, "&start-after=");
        add_escaped(&t, s3->prefix);
        add_escaped(&t, after);
    }
    return t.length < size;
}

typedef struct listing {
    const ldr_s3_t *s3;
    const char *prefix, *after;
    int (*fn)(void *arg, const char *name, uint64_t bytes);
    void *arg;
} listing_t;

/* A key of the page. Those that are not ours, and those that a server gives
 * although they come before what it was asked for, are passed over. */
static int list_key(void *arg, const char *key, size_t key_bytes,
                    uint64_t bytes)
{
    const listing_t *l = arg;
    size_t skip = strlen(l->s3->prefix);
    char name[LDR_OBJECT_NAME_MAX + 1];

    if (key_bytes < skip || key_bytes - skip > LDR_OBJECT_NAME_MAX ||
        memcmp(key, l->s3->prefix, skip) != 0) {
        return 0;
    }
    memcpy(name, key + skip, key_bytes - skip);
    name[key_bytes - skip] = '\0';
    if (!ldr_object_name_ok(name) ||
        strncmp(name, l->prefix, strlen(l->prefix)) != 0 ||
        (l->after != NULL && strcmp(name, l->after) <= 0)) {
        return 0;
    }
    return l->fn(l->arg, name, bytes);
}

static int list_page(ldr_s3_t *s3, const listing_t *l, ldr_s3_page_t *page,
                     char *body, uint64_t deadline_ns)
{
    char query[3 * (LDR_S3_TOKEN_MAX + 2 * LDR_OBJECT_NAME_MAX) + 256];
    ldr_s3_request_t r = {
        .verb = LDR_S3_GET,
        .query = query,
        .body = body,
        .deadline_ns = deadline_ns,
    };

    if (!compose_list(s3, l->prefix, l->after, page->token, query,
                      sizeof(query))) {
        return ldr_object_wrong(l->prefix);
    }
    int error = ldr_s3_do(s3, &r);
    if (error == 0 && !ldr_s3_page_parse(body, r.body_bytes, page)) {
        ldr_fail(
            LARDER_E_IO,
            "%s: s3 bucket %s at %s: what the server gave is not a list of "
            "objects",
            l->prefix, s3->bucket, s3->endpoint);
        return -EPROTO;
    }
    return error;
}

static int s3_list(ldr_backend_t *b, const char *prefix, const char *after,
                   int (*fn)(void *arg, const char *name, uint64_t bytes),
                   void *arg, uint64_t deadline_ns)
{
    ldr_s3_t *s3 = s3_of(b);
    listing_t l = {s3, prefix, after, fn, arg};
    ldr_s3_page_t page = {.fn = list_key, .arg = &l, .truncated = true};

    if (!ldr_object_prefix_ok(prefix) ||
        (after != NULL && strlen(after) > LDR_OBJECT_NAME_MAX)) {
        return ldr_object_wrong(prefix);
    }
    char *body = ldr_alloc(LDR_S3_BODY);
    if (body == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "%s: no memory to list it", prefix);
        return -ENOMEM;
    }
    int error = 0;
    while (error == 0 && page.truncated) {
        error = list_page(s3, &l, &page, body, deadline_ns);
        if (error == 0) {
            error = page.answer;
        }
    }
    ldr_free(body);
    return error;
}

/* ---- health ---- */

/* Asked for with GET: the answer to HEAD does not tell a bucket that is not
 * there from a tier that is none yet. Who may only read finds out nothing about
 * putting, and has no need to. */
static int s3_health(ldr_backend_t *b, uint64_t deadline_ns)
{
    ldr_s3_t *s3 = s3_of(b);
    ldr_s3_request_t r = {
        .verb = LDR_S3_GET,
        .name = LDR_OBJECTS_ID_NAME,
        .body = ldr_alloc(LDR_S3_BODY),
        .deadline_ns = deadline_ns,
    };

    if (r.body == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "the tier: no memory");
        return -ENOMEM;
    }
    int error = ldr_s3_do(s3, &r);
    ldr_free(r.body);
    if (error == -ENOENT) {
        ldr_fail(LARDER_E_IO,
                 "s3 bucket %s at %s has no %s%s: the first node that may "
                 "write makes it, or `larder tier create`",
                 s3->bucket, s3->endpoint, s3->prefix, LDR_OBJECTS_ID_NAME);
        return -ENODEV;
    }
    if (error == 0) {
        error = puts_find_out(s3, deadline_ns);
        error =
            error == -EACCES || error == -EROFS || error == -ENOSPC ? 0 : error;
    }
    return error;
}

static void s3_destroy(ldr_backend_t *b)
{
    ldr_s3_t *s3 = s3_of(b);

    ldr_s3_close_handles(s3);
    pthread_mutex_destroy(&s3->lock);
    ldr_free(s3);
}

/* ---- the url ---- */

static const ldr_backend_ops_t ops = {
    .name = "s3",
    .makes_itself = true,
    .put = s3_put,
    .get = s3_get,
    .size = s3_size,
    .list = s3_list,
    .remove = s3_remove,
    .health = s3_health,
    .destroy = s3_destroy,
};

static larder_status_t fail_url(const char *why)
{
    return ldr_fail(LARDER_E_INVALID,
                    "shared: %s: write s3://BUCKET[/PREFIX]"
                    "[?endpoint=https://HOST:PORT&region=NAME&ca=FILE]",
                    why);
}

static bool all_of(const char *text, const char *others)
{
    for (; *text != '\0'; text++) {
        bool plain = (*text >= 'a' && *text <= 'z') ||
                     (*text >= '0' && *text <= '9') || *text == '-';
        if (!plain && strchr(others, *text) == NULL) {
            return false;
        }
    }
    return true;
}

static larder_status_t take_bucket(ldr_s3_t *s3, const char *rest)
{
    size_t path = strcspn(rest, "?"), bucket = strcspn(rest, "/?");
    size_t prefix = path > bucket ? path - bucket - 1 : 0;

    if (bucket < 3 || bucket >= sizeof(s3->bucket)) {
        return fail_url("a bucket's name has 3 to 63 characters");
    }
    memcpy(s3->bucket, rest, bucket);
    if (!all_of(s3->bucket, ".") || s3->bucket[0] == '.') {
        return fail_url("a bucket's name has a-z 0-9 . -");
    }
    while (prefix > 0 && rest[bucket + prefix] == '/') {
        prefix--;
    }
    if (prefix + 1 >= sizeof(s3->prefix)) {
        return fail_url("the prefix is too long");
    }
    if (prefix > 0) {
        memcpy(s3->prefix, rest + bucket + 1, prefix);
        if (!ldr_object_name_ok(s3->prefix)) {
            return fail_url("a prefix has a-z 0-9 . - and / between parts");
        }
        s3->prefix[prefix] = '/';
    }
    return LARDER_OK;
}

static bool endpoint_ok(const char *endpoint)
{
    size_t scheme = strncmp(endpoint, "https://", 8) == 0  ? 8
                    : strncmp(endpoint, "http://", 7) == 0 ? 7
                                                           : 0;

    return scheme > 0 && endpoint[scheme] != '\0' &&
           all_of(endpoint + scheme, "ABCDEFGHIJKLMNOPQRSTUVWXYZ.:[]_");
}

static larder_status_t take_params(ldr_s3_t *s3, const char *rest)
{
    const ldr_url_param_t params[] = {
        {"endpoint", s3->endpoint, sizeof(s3->endpoint)},
        {"region", s3->region, sizeof(s3->region)},
        {"ca", s3->ca, sizeof(s3->ca)},
    };
    const char *mark = strchr(rest, '?');

    if (mark != NULL && !ldr_url_params(mark + 1, params, 3)) {
        return fail_url("what follows the ?");
    }
    const char *region = getenv("AWS_REGION");
    if (region == NULL || region[0] == '\0') {
        region = getenv("AWS_DEFAULT_REGION");
    }
    if (s3->region[0] == '\0') {
        snprintf(s3->region, sizeof(s3->region), "%s",
                 region != NULL && region[0] != '\0' ? region : "us-east-1");
    }
    if (!all_of(s3->region, "_")) {
        return fail_url("the region");
    }
    if (s3->endpoint[0] == '\0') {
        snprintf(s3->endpoint, sizeof(s3->endpoint),
                 "https://s3.%s.amazonaws.com", s3->region);
    }
    size_t length = strlen(s3->endpoint);
    if (s3->endpoint[length - 1] == '/') {
        s3->endpoint[length - 1] = '\0';
    }
    return endpoint_ok(s3->endpoint) ? LARDER_OK : fail_url("the endpoint");
}

larder_status_t ldr_s3_open(const ldr_backend_params_t *p, const char *rest,
                            ldr_backend_t **backend_p)
{
    ldr_s3_t *s3 = ldr_alloc(sizeof(*s3));

    if (s3 == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the shared tier");
    }
    s3->base.ops = &ops;
    s3->log = p->log;
    s3->idle_max = (unsigned)ldr_min64(p->threads + 1, LDR_S3_IDLE_MAX);
    atomic_init(&s3->conditional, LDR_S3_UNKNOWN);
    ldr_mutex_init(&s3->lock);
    larder_status_t st = take_bucket(s3, rest);
    if (st == LARDER_OK) {
        st = take_params(s3, rest);
    }
    if (st == LARDER_OK) {
        st = ldr_curl_load("S3", LDR_CURL_SIGNS);
    }
    if (st != LARDER_OK) {
        s3_destroy(&s3->base);
        return st;
    }
    snprintf(s3->login, sizeof(s3->login), "%s", p->login);
    *backend_p = &s3->base;
    return LARDER_OK;
}
