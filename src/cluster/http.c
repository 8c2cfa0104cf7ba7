/*
 * HTTP by libcurl, which is loaded when it is first needed. A request belongs
 * to its thread; it ends at its deadline, or when another thread sets
 * *canceled.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cluster/source.h"
#include "net/curl.h"

#define CONNECT_MS 3000L
#define OLDEST 0x073d00u /* 7.61.0: looks at canceled once a second */

static size_t on_bytes(char *from, size_t size, size_t count, void *arg)
{
    const ldr_http_request_t *r = arg;

    return r->take(r->arg, from, size * count) ? size * count : 0;
}

/* libcurl calls it at least once a second, also while nothing moves. */
static int on_progress(void *arg, int64_t down_all, int64_t down,
                       int64_t up_all, int64_t up)
{
    const ldr_http_request_t *r = arg;

    (void)down_all;
    (void)down;
    (void)up_all;
    (void)up;
    return r->canceled != NULL &&
           __atomic_load_n(r->canceled, __ATOMIC_ACQUIRE);
}

static ldr_curl_list_t *make_headers(const ldr_http_request_t *r)
{
    char text[512 + 32];
    ldr_curl_list_t *list =
        ldr_curl.slist_append(NULL, "Content-Type: application/json");

    if (list != NULL && r->token[0] != '\0') {
        snprintf(text, sizeof(text), "Authorization: %.511s", r->token);
        list = ldr_curl.slist_append(list, text);
    }
    return list;
}

static void set_files(void *curl, const ldr_http_request_t *r)
{
    if (r->ca[0] != '\0') {
        ldr_curl.easy_setopt(curl, LDR_CURLOPT_CAINFO, r->ca);
    }
    if (r->cert[0] != '\0') {
        ldr_curl.easy_setopt(curl, LDR_CURLOPT_SSLCERT, r->cert);
    }
    if (r->key[0] != '\0') {
        ldr_curl.easy_setopt(curl, LDR_CURLOPT_SSLKEY, r->key);
    }
}

static void compose(void *curl, const ldr_http_request_t *r,
                    ldr_curl_list_t *headers, char *error)
{
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_NOSIGNAL, 1L);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_URL, r->url);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_NOPROXY, "*");
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_PROTOCOLS,
                         (long)(LDR_CURL_PROTO_HTTP | LDR_CURL_PROTO_HTTPS));
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_HTTP_VERSION,
                         (long)LDR_CURL_HTTP_1_1);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_CONNECTTIMEOUT_MS,
                         r->timeout_ms > 0 ? (long)r->timeout_ms : CONNECT_MS);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_TIMEOUT_MS, (long)r->timeout_ms);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_TCP_KEEPALIVE, 1L);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_HTTPHEADER, headers);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_POSTFIELDS, r->body);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_POSTFIELDSIZE,
                         (long)strlen(r->body));
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_WRITEFUNCTION, on_bytes);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_WRITEDATA, r);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_NOPROGRESS, 0L);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_XFERINFOFUNCTION, on_progress);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_XFERINFODATA, r);
    ldr_curl.easy_setopt(curl, LDR_CURLOPT_ERRORBUFFER, error);
    set_files(curl, r);
}

static int real_post(void *arg, const ldr_http_request_t *r, long *status_p)
{
    char error[256] = ""; /* CURL_ERROR_SIZE */
    void *curl = ldr_curl.easy_init();
    ldr_curl_list_t *headers = make_headers(r);

    (void)arg;
    *status_p = 0;
    if (curl == NULL || headers == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory for a request");
        ldr_curl.slist_free_all(headers);
        ldr_curl.easy_cleanup(curl);
        return -ENOMEM;
    }
    compose(curl, r, headers, error);
    int code = ldr_curl.easy_perform(curl);
    (void)ldr_curl.easy_getinfo(curl, LDR_CURLINFO_RESPONSE_CODE, status_p);
    ldr_curl.easy_cleanup(curl);
    ldr_curl.slist_free_all(headers);
    if (code == LDR_CURLE_OK) {
        return 0;
    }
    if (code == LDR_CURLE_ABORTED || code == LDR_CURLE_WRITE) {
        return -ECANCELED;
    }
    ldr_fail(LARDER_E_OFFLINE, "%s: %s", r->url,
             error[0] != '\0' ? error : ldr_curl.easy_strerror(code));
    return code == LDR_CURLE_TIMEOUT ? -ETIMEDOUT : -ECONNRESET;
}

larder_status_t ldr_http_real(const ldr_http_t **http_p)
{
    static const ldr_http_t real = {real_post, NULL};
    larder_status_t st = ldr_curl_load("cluster=etcd", OLDEST);

    *http_p = &real;
    return st;
}
