/* The url of a Valkey server, or of some of a cluster's. Only open() calls it:
 * nobody else has the back end yet. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "tier/shared/params.h"
#include "tier/shared/valkey.h"

static larder_status_t fail_url(const char *why)
{
    /* Not the url itself: someone may have put a password into it. */
    return ldr_fail(LARDER_E_INVALID,
                    "shared: %s: write valkey://[USER@]HOST[:PORT][/DB], "
                    "valkey://HOST:PORT,HOST:PORT for some of a cluster's "
                    "servers, or valkeys://...[?ca=FILE&cert=FILE&key=FILE] "
                    "for TLS",
                    why);
}

/* "host", "host:port". */
static larder_status_t take_host(ldr_valkey_t *v, const char *rest,
                                 size_t bytes)
{
    char text[LDR_HOST_MAX + 16];
    ldr_address_t address;

    bool v6 = bytes > 0 && rest[0] == '[';
    const char *close = v6 ? memchr(rest, ']', bytes) : rest;
    if (bytes == 0 || bytes >= LDR_HOST_MAX || close == NULL) {
        return fail_url("the host");
    }
    bool has_port = memchr(close, ':', bytes - (size_t)(close - rest)) != NULL;
    snprintf(text, sizeof(text), "%.*s%s", (int)bytes, rest,
             has_port ? "" : ":6379");
    if (!ldr_address_parse(text, strlen(text), &address)) {
        return fail_url("host and port");
    }
    return ldr_valkey_node(v, &address) != LDR_VALKEY_NO_NODE
               ? LARDER_OK
               : fail_url("too many hosts");
}

/* "user@host:port,host:port": what stands before '/' and '?'. */
static larder_status_t take_hosts(ldr_valkey_t *v, const char *rest,
                                  size_t bytes)
{
    const char *at = memchr(rest, '@', bytes), *end = rest + bytes;
    larder_status_t st = LARDER_OK;

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
        rest = at + 1;
    }
    for (const char *comma = rest; st == LARDER_OK && comma < end;
         rest = comma + 1) {
        comma = memchr(rest, ',', (size_t)(end - rest));
        comma = comma != NULL ? comma : end;
        st = take_host(v, rest, (size_t)(comma - rest));
    }
    v->seed_count = v->node_count;
    return st == LARDER_OK && v->seed_count == 0 ? fail_url("the host") : st;
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

larder_status_t ldr_valkey_take_url(ldr_valkey_t *v, const char *rest)
{
    const ldr_url_param_t params[] = {
        {"ca", v->ca, sizeof(v->ca)},
        {"cert", v->cert, sizeof(v->cert)},
        {"key", v->key, sizeof(v->key)},
    };
    size_t host = strcspn(rest, "/?");
    size_t path = strcspn(rest, "?");
    larder_status_t st = take_hosts(v, rest, host);

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
