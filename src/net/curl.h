/*
 * libcurl, as Larder sees it: a table of its functions, filled when it
 * is first needed. Nothing links it, and its headers are not needed to build:
 * the few numbers below are part of its ABI. A test compares them with the
 * headers where those are installed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

typedef struct ldr_curl_list ldr_curl_list_t; /* struct curl_slist */

typedef struct ldr_curl_version {
    int age;
    const char *version;
    unsigned number; /* 0xMMNNPP */
} ldr_curl_version_t;

/* Signs all x-amz- headers, and takes the payload's hash from one. */
#define LDR_CURL_SIGNS 0x075700u /* 7.87.0 */

typedef struct ldr_curl_api {
    int (*global_init)(long flags);
    void *(*easy_init)(void);
    void (*easy_cleanup)(void *handle);
    void (*easy_reset)(void *handle);
    int (*easy_setopt)(void *handle, int option, ...);
    int (*easy_perform)(void *handle);
    int (*easy_getinfo)(void *handle, int info, ...);
    const char *(*easy_strerror)(int code);
    ldr_curl_list_t *(*slist_append)(ldr_curl_list_t *list, const char *text);
    void (*slist_free_all)(ldr_curl_list_t *list);
    const ldr_curl_version_t *(*version_info)(int age);
} ldr_curl_api_t;

enum {
    LDR_CURLOPT_WRITEDATA = 10001,
    LDR_CURLOPT_URL = 10002,
    LDR_CURLOPT_RANGE = 10007,
    LDR_CURLOPT_READDATA = 10009,
    LDR_CURLOPT_ERRORBUFFER = 10010,
    LDR_CURLOPT_POSTFIELDS = 10015,
    LDR_CURLOPT_USERAGENT = 10018,
    LDR_CURLOPT_HTTPHEADER = 10023,
    LDR_CURLOPT_SSLCERT = 10025,
    LDR_CURLOPT_HEADERDATA = 10029,
    LDR_CURLOPT_CUSTOMREQUEST = 10036,
    LDR_CURLOPT_XFERINFODATA = 10057,
    LDR_CURLOPT_CAINFO = 10065,
    LDR_CURLOPT_SSLKEY = 10087,
    LDR_CURLOPT_SEEKDATA = 10168,
    LDR_CURLOPT_USERNAME = 10173,
    LDR_CURLOPT_PASSWORD = 10174,
    LDR_CURLOPT_NOPROXY = 10177,
    LDR_CURLOPT_AWS_SIGV4 = 10305,
    LDR_CURLOPT_WRITEFUNCTION = 20011,
    LDR_CURLOPT_READFUNCTION = 20012,
    LDR_CURLOPT_HEADERFUNCTION = 20079,
    LDR_CURLOPT_SEEKFUNCTION = 20167,
    LDR_CURLOPT_XFERINFOFUNCTION = 20219,
    LDR_CURLOPT_LOW_SPEED_LIMIT = 19,
    LDR_CURLOPT_LOW_SPEED_TIME = 20,
    LDR_CURLOPT_NOPROGRESS = 43,
    LDR_CURLOPT_NOBODY = 44,
    LDR_CURLOPT_UPLOAD = 46,
    LDR_CURLOPT_POSTFIELDSIZE = 60,
    LDR_CURLOPT_HTTP_VERSION = 84,
    LDR_CURLOPT_BUFFERSIZE = 98,
    LDR_CURLOPT_NOSIGNAL = 99,
    LDR_CURLOPT_TIMEOUT_MS = 155,
    LDR_CURLOPT_CONNECTTIMEOUT_MS = 156,
    LDR_CURLOPT_PROTOCOLS = 181,
    LDR_CURLOPT_TCP_KEEPALIVE = 213,
    LDR_CURLOPT_UPLOAD_BUFFERSIZE = 280,
    LDR_CURLOPT_INFILESIZE_LARGE = 30115,

    LDR_CURLINFO_RESPONSE_CODE = 0x200002,
    LDR_CURLINFO_OS_ERRNO = 0x200019,
    LDR_CURLINFO_CONTENT_LENGTH = 0x60000f, /* ..._DOWNLOAD_T */

    LDR_CURL_GLOBAL_DEFAULT = 3,
    LDR_CURL_VERSION_NOW = 0, /* the first: all that is read here */
    LDR_CURL_HTTP_1_1 = 2,
    LDR_CURL_PROTO_HTTP = 1,
    LDR_CURL_PROTO_HTTPS = 2,

    LDR_CURLE_OK = 0,
    LDR_CURLE_NO_PROXY = 5,
    LDR_CURLE_NO_HOST = 6,
    LDR_CURLE_NO_CONNECT = 7,
    LDR_CURLE_PARTIAL = 18,
    LDR_CURLE_WRITE = 23,
    LDR_CURLE_NO_MEMORY = 27,
    LDR_CURLE_TIMEOUT = 28,
    LDR_CURLE_ABORTED = 42,
    LDR_CURLE_NOTHING = 52,
    LDR_CURLE_SEND = 55,
    LDR_CURLE_RECV = 56,
    LDR_CURLE_CERTIFICATE = 60,
    LDR_CURLE_CA_FILE = 77,
};

/* Filled once ldr_curl_load() gave OK. E_UNSUPPORTED: there is none, or it is
 * older than this; the text says what needs it (`what`) and what to install. */
extern ldr_curl_api_t ldr_curl;
larder_status_t ldr_curl_load(const char *what, unsigned oldest);
