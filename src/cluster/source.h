/*
 * Members as a source names them, and what sources need of the world: DNS
 * (net/dns.h) and HTTP. Tests put their own in the place of both.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/options.h"
#include "larder/larder.h"
#include "net/dns.h"

#define LDR_MEMBER_NAME 64u /* bytes, with the NUL */
#define LDR_MEMBER_ADDRESS (LDR_HOST_MAX + 8u)
#define LDR_WEIGHT_MAX 1000000u

typedef struct ldr_member {
    uint64_t id; /* ldr_member_id() of its name, never of an address */
    char name[LDR_MEMBER_NAME];
    char address[LDR_MEMBER_ADDRESS]; /* host:port */
    char zone[LDR_MEMBER_NAME];       /* "": not said */
    uint32_t weight;                  /* what it lends; 0: nothing */
    uint32_t share;                   /* of its weight, in LDR_SHARE_FULLs */
    bool leaving;
    /* Of sources that carry it (etcd); else 0 and "". */
    char version[32];
    uint64_t run;
} ldr_member_t;

/* 64 bits of a SHA-256. */
uint64_t ldr_member_id(const char *name);

/* ---- HTTP ---- */

typedef struct ldr_http_request {
    const char *url;
    const char *body;            /* JSON; sent by POST */
    const char *token;           /* of the header Authorization; "": none */
    const char *ca, *cert, *key; /* PEM files for https; "": none */
    uint32_t timeout_ms;         /* of the whole; 0: a stream, see below */
    /* Bytes of the answer as they come. False: no more is wanted. */
    bool (*take)(void *arg, const char *bytes, size_t count);
    void *arg;
    /* Set by another thread: give up, within about a second. */
    const bool *canceled;
} ldr_http_request_t;

typedef struct ldr_http {
    /* 0 and the status; a negative errno with a text of ldr_fail(): no answer.
     * -ECANCELED: take() or canceled ended it. A stream has no limit except
     * its connection, 3 s. */
    int (*post)(void *arg, const ldr_http_request_t *request, long *status_p);
    void *arg;
} ldr_http_t;

/* By libcurl; E_UNSUPPORTED: it is not here. */
larder_status_t ldr_http_real(const ldr_http_t **http_p);
