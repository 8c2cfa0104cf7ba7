/*
 * S3-compatible object stores: the parts of the back end. Requests are signed
 * (Signature Version 4) and carried by libcurl; names are the path behind the
 * bucket ("path style").
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/options.h"
#include "tier/shared/backend.h"

#define LDR_S3_BODY (2u << 20)  /* bytes of a page of a listing */
#define LDR_S3_ERROR_BODY 4096u /* of an error, the rest is not looked at */
#define LDR_S3_TOKEN_MAX 1024u  /* of a continuation */
#define LDR_S3_IDLE_MAX 65u
#define LDR_S3_PREFIX_MAX 100u /* of the url, with its '/' */

/* ---- XML (s3_xml.c) ---- */

/* Without escapes, into a buffer of `size`. False: it does not fit. */
bool ldr_xml_unescape(const char *text, size_t bytes, char *to, size_t size);

/* A page of ListObjectsV2. fn: keys that need no escapes, with their sizes; a
 * nonzero answer ends the page. */
typedef struct ldr_s3_page {
    int (*fn)(void *arg, const char *key, size_t key_bytes, uint64_t bytes);
    void *arg;
    int answer; /* of fn, if it was not 0 */
    bool truncated;
    char token[LDR_S3_TOKEN_MAX]; /* "": none */
} ldr_s3_page_t;

/* False: not such a page. */
bool ldr_s3_page_parse(const char *text, size_t bytes, ldr_s3_page_t *page);
/* The code of an error, letters and digits; "": there is none. */
void ldr_s3_error_code(const char *text, size_t bytes, char *code, size_t size);
/* What status and code mean: a negative errno; 0: no error. */
int ldr_s3_errno(long status, const char *code);

/* "bytes FIRST-LAST/SIZE" */
bool ldr_s3_content_range(const char *text, size_t bytes, uint64_t *first_p,
                          uint64_t *last_p);

/* ---- requests (s3_http.c) ---- */

typedef struct ldr_s3 {
    ldr_backend_t base;
    char endpoint[LDR_HOST_MAX + 16]; /* https://host:port */
    char bucket[64];
    char prefix[LDR_S3_PREFIX_MAX]; /* "", or ends with '/' */
    char region[64];
    char ca[LDR_PATH_MAX], login[LDR_PATH_MAX];
    ldr_log_t log;
    atomic_int conditional; /* LDR_S3_... */
    pthread_mutex_t lock;
    /* Handles of libcurl that are idle, with their connections, the last used
     * last; under lock. */
    void *idle[LDR_S3_IDLE_MAX];
    unsigned idle_count, idle_max;
} ldr_s3_t;

/* Whether "put only if there is none" is the server's to decide. */
enum { LDR_S3_UNKNOWN, LDR_S3_CONDITIONAL, LDR_S3_NOT };

typedef enum ldr_s3_verb {
    LDR_S3_GET,
    LDR_S3_HEAD,
    LDR_S3_PUT,
    LDR_S3_DELETE
} ldr_s3_verb_t;

typedef struct ldr_s3_request {
    ldr_s3_verb_t verb;
    const char *name;  /* of the object; NULL: the bucket */
    const char *query; /* sorted and escaped; NULL: none */
    bool if_none;      /* put: only if there is none */
    /* put: from, get of an object: to. */
    const struct iovec *iov;
    unsigned count;
    uint64_t offset, bytes;
    uint64_t deadline_ns;
    /* The answer's text where it is not an object's: LDR_S3_BODY bytes of
     * room, or NULL where only errors have one. */
    char *body;

    long status;
    uint64_t length; /* its Content-Length */
    size_t body_bytes;
} ldr_s3_request_t;

/* 0 or a negative errno, with a text that names the object. */
int ldr_s3_do(ldr_s3_t *s3, ldr_s3_request_t *request);
void ldr_s3_close_handles(ldr_s3_t *s3);
