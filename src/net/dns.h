/* The resolver of this host. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/options.h"

typedef struct ldr_srv {
    char target[LDR_HOST_MAX]; /* without the dot at its end */
    uint16_t port, weight;
} ldr_srv_t;

typedef struct ldr_dns {
    /* The SRV records of a name: 0 and *count_p of them (more than max: the
     * rest is not written), *ttl_s the least of their times to live. -ENOENT:
     * no such name; -ENODATA: it has no such record, and *addresses says
     * whether it has an address; another negative errno, with a text of
     * ldr_fail(): no answer. It ends after a few seconds at most. */
    int (*srv)(void *arg, const char *name, ldr_srv_t *records, uint32_t max,
               uint32_t *count_p, uint32_t *ttl_s, bool *addresses);
    void *arg;
} ldr_dns_t;

extern const ldr_dns_t ldr_dns_real;

/* An answer as it came from a server: 0, -ENODATA or -EBADMSG. */
int ldr_srv_parse(const uint8_t *message, size_t bytes, ldr_srv_t *records,
                  uint32_t max, uint32_t *count_p, uint32_t *ttl_s);

/* This host's name, up to its first dot. False: it does not fit. */
bool ldr_host_label(char *name, size_t size);
