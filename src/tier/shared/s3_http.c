/*
 * One request to an S3 server, by libcurl. A handle keeps its connection from
 * one request to the next; those that are idle wait in a stack, at most as many
 * as there are workers.
 *
 * SIGPIPE is blocked around a request and taken back after it: older TLS
 * libraries write without asking for none, and libcurl is told to leave the
 * process's handlers alone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/iov.h"
#include "net/login.h"
#include "tier/shared/s3.h"
#include "net/curl.h"

#define BUFFER_BYTES (512L << 10) /* of libcurl, each way */
#define LOW_SPEED_BYTES 1024L     /* a second ... */
#define LOW_SPEED_S 15L           /* ... for so long is a dead server */
#define DAY_MS (24u * 3600u * 1000u)

/* A request under way. */
typedef struct transfer {
    ldr_s3_t *s3;
    ldr_s3_request_t *request;
    void *curl;
    ldr_curl_list_t *headers;
    char url[LDR_HOST_MAX + 2048];
    char error_text[256]; /* libcurl's: CURL_ERROR_SIZE */
    char error_body[LDR_S3_ERROR_BODY];
    size_t error_bytes;
    ldr_iov_t left; /* of the request's iov */
    uint64_t moved;
    uint64_t first, last; /* the answer's range */
    bool has_range;
    int broken; /* why the answer was not taken: an errno */
} transfer_t;

/* ---- handles ---- */

static void *take_handle(ldr_s3_t *s3)
{
    ldr_mutex_lock(&s3->lock);
    void *curl = s3->idle_count > 0 ? s3->idle[--s3->idle_count] : NULL;
    ldr_mutex_unlock(&s3->lock);
    return curl != NULL ? curl : ldr_curl.easy_init();
}

static void give_handle(ldr_s3_t *s3, void *curl)
{
    ldr_curl.easy_reset(curl); /* keeps its connection, not its secrets */
    ldr_mutex_lock(&s3->lock);
    bool keep = s3->idle_count < s3->idle_max;
    if (keep) {
        s3->idle[s3->idle_count++] = curl;
    }
    ldr_mutex_unlock(&s3->lock);
    if (!keep) {
        ldr_curl.easy_cleanup(curl);
    }
}

void ldr_s3_close_handles(ldr_s3_t *s3)
{
    while (s3->idle_count > 0) {
        ldr_curl.easy_cleanup(s3->idle[--s3->idle_count]);
    }
}

/* ---- bytes ---- */

static long status_of(const transfer_t *t)
{
    long status = 0;

    (void)ldr_curl.easy_getinfo(t->curl, LDR_CURLINFO_RESPONSE_CODE, &status);
    return status;
}

static void rewind_iov(transfer_t *t)
{
    t->left = (ldr_iov_t){t->request->iov, t->request->count, 0};
    t->moved = 0;
}

/* libcurl wants bytes to send. */
static size_t on_read(char *to, size_t size, size_t count, void *arg)
{
    transfer_t *t = arg;
    size_t done = ldr_iov_copy(&t->left, to, size * count, false);

    t->moved += done;
    return done;
}

/* It sends again, on another connection than the one it had kept. */
static int on_seek(void *arg, int64_t offset, int origin)
{
    transfer_t *t = arg;

    if (offset != 0 || origin != SEEK_SET) {
        return 1;
    }
    rewind_iov(t);
    return 0;
}

/* Of the object, if that is what the answer begins with. */
static size_t take_object(transfer_t *t, char *from, size_t bytes)
{
    const ldr_s3_request_t *r = t->request;
    bool right = status_of(t) == 206 ? t->has_range && t->first == r->offset
                                     : r->offset == 0; /* 200: all of it */

    if (!right || bytes > r->bytes - t->moved) {
        t->broken = -EPROTO;
        return 0;
    }
    t->moved += ldr_iov_copy(&t->left, from, bytes, true);
    return bytes;
}

static size_t on_write(char *from, size_t size, size_t count, void *arg)
{
    transfer_t *t = arg;
    ldr_s3_request_t *r = t->request;
    size_t bytes = size * count;
    long status = status_of(t);

    if (status < 200 || status >= 300) {
        /* What does not fit is not looked at. */
        size_t take =
            (size_t)ldr_min64(bytes, sizeof(t->error_body) - t->error_bytes);
        memcpy(t->error_body + t->error_bytes, from, take);
        t->error_bytes += take;
        return bytes;
    }
    if (r->verb == LDR_S3_GET && r->body == NULL) {
        return take_object(t, from, bytes);
    }
    if (r->body == NULL) {
        return bytes; /* a put's: nobody's business */
    }
    if (bytes > LDR_S3_BODY - r->body_bytes) {
        t->broken = -EPROTO;
        return 0;
    }
    memcpy(r->body + r->body_bytes, from, bytes);
    r->body_bytes += bytes;
    return bytes;
}

static size_t on_header(char *line, size_t size, size_t count, void *arg)
{
    static const char name[] = "content-range:";
    transfer_t *t = arg;
    size_t bytes = size * count, at = sizeof(name) - 1, end = bytes;

    if (bytes >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        t->has_range = false; /* another answer begins */
    }
    if (bytes > at && strncasecmp(line, name, at) == 0) {
        while (at < end && line[at] == ' ') {
            at++;
        }
        while (end > at && (line[end - 1] == '\n' || line[end - 1] == '\r' ||
                            line[end - 1] == ' ')) {
            end--;
        }
        t->has_range =
            ldr_s3_content_range(line + at, end - at, &t->first, &t->last);
    }
    return bytes;
}

/* ---- composing ---- */

static bool add_header(transfer_t *t, const char *text)
{
    ldr_curl_list_t *list = ldr_curl.slist_append(t->headers, text);

    if (list != NULL) {
        t->headers = list;
    }
    return list != NULL;
}

/* Who we are: 0 or -EACCES. */
static int set_login(transfer_t *t)
{
    static const char header[] = "x-amz-security-token: ";
    char key[LDR_LOGIN_VALUE], secret[LDR_LOGIN_VALUE];
    char token[LDR_LOGIN_VALUE], text[LDR_LOGIN_VALUE + sizeof(header)];
    const char *path = t->s3->login;
    int error = 0;

    if (ldr_login_get(path, "access_key", "AWS_ACCESS_KEY_ID", key) !=
            LARDER_OK ||
        ldr_login_get(path, "secret_key", "AWS_SECRET_ACCESS_KEY", secret) !=
            LARDER_OK ||
        ldr_login_get(path, "session_token", "AWS_SESSION_TOKEN", token) !=
            LARDER_OK) {
        error = -EACCES;
    } else if (key[0] == '\0' || secret[0] == '\0') {
        ldr_fail(LARDER_E_DENIED,
                 "no login: the file that shared_login names has access_key= "
                 "and secret_key=, or the environment AWS_ACCESS_KEY_ID and "
                 "AWS_SECRET_ACCESS_KEY");
        error = -EACCES;
    } else {
        snprintf(text, sizeof(text), "%s%s", header, token);
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_USERNAME, key);
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_PASSWORD, secret);
        if (token[0] != '\0' && !add_header(t, text)) {
            error = -ENOMEM;
        }
    }
    OPENSSL_cleanse(secret, sizeof(secret));
    OPENSSL_cleanse(token, sizeof(token));
    OPENSSL_cleanse(text, sizeof(text));
    return error;
}

static void set_verb(transfer_t *t)
{
    const ldr_s3_request_t *r = t->request;
    char range[64];

    switch (r->verb) {
    case LDR_S3_GET:
        if (r->body == NULL) {
            snprintf(range, sizeof(range), "%llu-%llu",
                     (unsigned long long)r->offset,
                     (unsigned long long)(r->offset + r->bytes - 1));
            ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_RANGE, range);
        }
        break;
    case LDR_S3_HEAD:
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_NOBODY, 1L);
        break;
    case LDR_S3_PUT:
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_UPLOAD, 1L);
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_INFILESIZE_LARGE,
                             (int64_t)r->bytes);
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_UPLOAD_BUFFERSIZE,
                             BUFFER_BYTES);
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_READFUNCTION, on_read);
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_READDATA, t);
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_SEEKFUNCTION, on_seek);
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_SEEKDATA, t);
        break;
    case LDR_S3_DELETE:
        ldr_curl.easy_setopt(t->curl, LDR_CURLOPT_CUSTOMREQUEST, "DELETE");
        break;
    }
}

static void set_limits(transfer_t *t, uint64_t left_ms)
{
    void *curl = t->curl;
    long ms = (long)ldr_min64(left_ms, DAY_MS);

    ldr_curl.easy_setopt(curl, LDR_CURLOPT_NOSIGNAL, 1L);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_TIMEOUT_MS, ms);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_CONNECTTIMEOUT_MS, ms);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_LOW_SPEED_LIMIT, LOW_SPEED_BYTES);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_LOW_SPEED_TIME, LOW_SPEED_S);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_PROTOCOLS,
                         (long)(LDR_CURL_PROTO_HTTP | LDR_CURL_PROTO_HTTPS));
    /* One connection each: nothing to gain from a newer one. */
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_HTTP_VERSION,
                         (long)LDR_CURL_HTTP_1_1);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_TCP_KEEPALIVE, 1L);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_USERAGENT, "larder");
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_ERRORBUFFER, t->error_text);
}

static int request_compose(transfer_t *t, uint64_t left_ms)
{
    const ldr_s3_t *s3 = t->s3;
    const ldr_s3_request_t *r = t->request;
    void *curl = t->curl;
    char sign[96];

    snprintf(t->url, sizeof(t->url), "%s/%s%s%s%s%s%s", s3->endpoint,
             s3->bucket, r->name != NULL ? "/" : "",
             r->name != NULL ? s3->prefix : "", r->name != NULL ? r->name : "",
             r->query != NULL ? "?" : "", r->query != NULL ? r->query : "");
    snprintf(sign, sizeof(sign), "aws:amz:%s:s3", s3->region);
    set_limits(t, left_ms);
    set_verb(t);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_URL, t->url);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_WRITEFUNCTION, on_write);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_WRITEDATA, t);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_HEADERFUNCTION, on_header);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_HEADERDATA, t);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_AWS_SIGV4, sign);
    if (s3->ca[0] != '\0') {
        ldr_curl.easy_setopt(curl, LDR_CURLOPT_CAINFO, s3->ca);
    }
    /* The payload is not hashed: what is stored has its own MAC. Large puts
     * wait for "100 Continue", so that a refusal does not cost their bytes; to
     * have libcurl not ask for it would end up in the signature of some. */
    if (!add_header(t, "x-amz-content-sha256: UNSIGNED-PAYLOAD") ||
        (r->if_none && !add_header(t, "If-None-Match: *"))) {
        return -ENOMEM;
    }
    int error = set_login(t);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_HTTPHEADER, t->headers);
    return error;
}

/* ---- results ---- */

static int errno_of_curl(const transfer_t *t, int code)
{
    long os_errno = 0;

    switch (code) {
    case LDR_CURLE_NO_PROXY:
    case LDR_CURLE_NO_HOST:
        return -EHOSTUNREACH;
    case LDR_CURLE_NO_CONNECT:
        (void)ldr_curl.easy_getinfo(t->curl, LDR_CURLINFO_OS_ERRNO, &os_errno);
        return os_errno > 0 ? -(int)os_errno : -ECONNREFUSED;
    case LDR_CURLE_TIMEOUT:
        return -ETIMEDOUT;
    case LDR_CURLE_NO_MEMORY:
        return -ENOMEM;
    case LDR_CURLE_CERTIFICATE:
    case LDR_CURLE_CA_FILE:
        return -EACCES;
    case LDR_CURLE_NOTHING:
    case LDR_CURLE_SEND:
    case LDR_CURLE_RECV:
    case LDR_CURLE_PARTIAL:
        return -ECONNRESET;
    default:
        return -EPROTO;
    }
}

static int request_fail(const transfer_t *t, int error, const char *what)
{
    char text[300];

    snprintf(text, sizeof(text), "%s", what);
    ldr_fail(LARDER_E_IO, "%s: s3 bucket %s at %s: %s",
             t->request->name != NULL ? t->request->name : "the tier",
             t->s3->bucket, t->s3->endpoint, text);
    return error;
}

static const char *error_advice(int error)
{
    switch (error) {
    case -ENOENT:
        return "no such object";
    case -EEXIST:
        return "exists already";
    case -ENODATA:
        return "it is shorter than that";
    case -ENODEV:
        return "no such bucket: make it, or correct the url";
    case -EACCES:
        return "not allowed: see the option shared_login, the bucket's policy "
               "and this machine's clock";
    case -ENOTSUP:
        return "the server does not do that: look at endpoint and region";
    case -EBUSY:
        return "the server is busy";
    default:
        return "failed";
    }
}

/* What the server said. */
static int answer_judge(transfer_t *t)
{
    ldr_s3_request_t *r = t->request;
    char code[64], text[200];

    ldr_s3_error_code(t->error_body, t->error_bytes, code, sizeof(code));
    int error = ldr_s3_errno(r->status, code);
    if (error == -ENOENT && r->name == NULL) {
        error = -ENODEV;
    }
    if (error == 0 && r->verb == LDR_S3_GET && r->body == NULL &&
        t->moved < r->bytes) {
        error = -ENODATA;
    }
    if (error != 0) {
        snprintf(text, sizeof(text), "%s (%ld%s%s)", error_advice(error),
                 r->status, code[0] != '\0' ? " " : "", code);
        return request_fail(t, error, text);
    }
    return 0;
}

static int perform(transfer_t *t)
{
    const struct timespec no_time = {0};
    sigset_t pipe, before, pending;
    int code;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigemptyset(&pending);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    code = ldr_curl.easy_perform(t->curl);
    if (sigismember(&pending, SIGPIPE) != 1) {
        while (sigtimedwait(&pipe, NULL, &no_time) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

static int carry_out(transfer_t *t)
{
    ldr_s3_request_t *r = t->request;
    int64_t length = -1;
    int code = perform(t);

    r->status = status_of(t);
    (void)ldr_curl.easy_getinfo(t->curl, LDR_CURLINFO_CONTENT_LENGTH, &length);
    r->length = length > 0 ? (uint64_t)length : 0;
    if (t->broken != 0) {
        return request_fail(t, t->broken,
                            "the answer is not what was asked for");
    }
    if (code != LDR_CURLE_OK) {
        return request_fail(t, errno_of_curl(t, code),
                            t->error_text[0] != '\0'
                                ? t->error_text
                                : ldr_curl.easy_strerror(code));
    }
    if (r->status < 200) {
        return request_fail(t, -EPROTO, "no answer in HTTP");
    }
    return answer_judge(t);
}

int ldr_s3_do(ldr_s3_t *s3, ldr_s3_request_t *request)
{
    uint64_t now = ldr_now_ns(&ldr_clock_real);
    transfer_t *t = ldr_alloc(sizeof(*t));
    void *curl = NULL;
    int error = 0;

    request->status = 0;
    request->length = 0;
    request->body_bytes = 0;
    if (request->name != NULL && !ldr_object_name_ok(request->name)) {
        ldr_free(t);
        return ldr_object_wrong(request->name);
    }
    if (t == NULL || ldr_curl_load("S3", LDR_CURL_SIGNS) != LARDER_OK ||
        (curl = take_handle(s3)) == NULL) {
        error = t == NULL || curl != NULL ? -ENOMEM : -ENOTSUP;
        ldr_free(t);
        return error;
    }
    t->s3 = s3;
    t->request = request;
    rewind_iov(t);
    t->curl = curl;
    if (request->deadline_ns <= now + 1000000u) {
        error = request_fail(t, -ETIMEDOUT, "no time left");
    } else {
        error = request_compose(t, (request->deadline_ns - now) / 1000000u);
        error =
            error != 0 ? request_fail(t, error, ldr_fail_text()) : carry_out(t);
    }
    ldr_curl.slist_free_all(t->headers);
    give_handle(s3, curl);
    ldr_free(t);
    return error;
}
