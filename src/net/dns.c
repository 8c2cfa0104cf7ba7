/*
 * SRV records, by the C library's resolver: it knows the servers, the search
 * list, retries and TCP for long answers, and it costs no new library. What it
 * gives is the server's message, which is read here.
 */
#include "net/dns.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <arpa/nameser.h>
#include <resolv.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define MESSAGE_MAX 65536u
#define TRY_S 1    /* that a server is waited for */
#define TRIES 2    /* each */
#define HEADER 12u /* bytes before the questions */
#define FIXED 10u  /* of a record behind its name */
#define SRV 6u     /* of an SRV record before its target */

typedef struct reader {
    const uint8_t *from, *end, *at;
} reader_t;

static unsigned get16(const uint8_t *p)
{
    return (unsigned)p[0] << 8 | p[1];
}

static bool read_name(reader_t *r, char name[LDR_HOST_MAX])
{
    /* A name may have 255 bytes; dn_expand() writes no more than the room. */
    int used = dn_expand(r->from, r->end, r->at, name, LDR_HOST_MAX);

    if (used < 0) {
        return false;
    }
    r->at += used;
    return true;
}

/* One record of the answer. False: broken. */
static bool read_record(reader_t *r, ldr_srv_t *srv, bool *is_srv,
                        uint32_t *ttl_s)
{
    char owner[LDR_HOST_MAX];

    *is_srv = false;
    if (!read_name(r, owner) || (size_t)(r->end - r->at) < FIXED) {
        return false;
    }
    unsigned type = get16(r->at), bytes = get16(r->at + 8);
    uint32_t ttl = (uint32_t)get16(r->at + 4) << 16 | get16(r->at + 6);
    r->at += FIXED;
    if ((size_t)(r->end - r->at) < bytes) {
        return false;
    }
    const uint8_t *next = r->at + bytes;
    if (type == ns_t_srv) {
        if (bytes <= SRV) {
            return false;
        }
        srv->weight = (uint16_t)get16(r->at + 2);
        srv->port = (uint16_t)get16(r->at + 4);
        r->at += SRV;
        if (!read_name(r, srv->target) || r->at > next) {
            return false;
        }
        *is_srv = srv->target[0] != '\0'; /* ".": there is no service */
        *ttl_s = ttl < *ttl_s ? ttl : *ttl_s;
    }
    r->at = next;
    return true;
}

int ldr_srv_parse(const uint8_t *message, size_t bytes, ldr_srv_t *records,
                  uint32_t max, uint32_t *count_p, uint32_t *ttl_s)
{
    reader_t r = {message, message + bytes, message + HEADER};
    char name[LDR_HOST_MAX];

    *count_p = 0;
    *ttl_s = UINT32_MAX;
    if (bytes < HEADER) {
        return -EBADMSG;
    }
    unsigned questions = get16(message + 4), answers = get16(message + 6);
    for (; questions > 0; questions--) {
        if (!read_name(&r, name) || r.end - r.at < 4) {
            return -EBADMSG;
        }
        r.at += 4;
    }
    for (; answers > 0; answers--) {
        ldr_srv_t srv;
        bool is_srv;

        memset(&srv, 0, sizeof(srv));
        if (!read_record(&r, &srv, &is_srv, ttl_s)) {
            return -EBADMSG;
        }
        if (is_srv) {
            if (*count_p < max) {
                records[*count_p] = srv;
            }
            (*count_p)++;
        }
    }
    return *count_p > 0 ? 0 : -ENODATA;
}

/* ---- asking ---- */

static int no_answer(const char *name, int error)
{
    static const char *const texts[] = {
        [0] = "no answer",
        [TRY_AGAIN] = "no server answers: see /etc/resolv.conf",
        [NO_RECOVERY] = "the servers refuse the question",
    };

    ldr_fail(LARDER_E_OFFLINE, "%s: %s", name,
             error == TRY_AGAIN || error == NO_RECOVERY ? texts[error]
                                                        : texts[0]);
    return -EHOSTUNREACH;
}

static bool has_address(res_state state, const char *name, uint8_t *message)
{
    static const int types[] = {ns_t_a, ns_t_aaaa};

    for (size_t i = 0; i < 2; i++) {
        if (res_nsearch(state, name, ns_c_in, types[i], message,
                        (int)MESSAGE_MAX) > 0) {
            return true;
        }
    }
    return false;
}

static int query_send(res_state state, const char *name, uint8_t *message,
                      ldr_srv_t *records, uint32_t max, uint32_t *count_p,
                      uint32_t *ttl_s, bool *addresses)
{
    int bytes =
        res_nsearch(state, name, ns_c_in, ns_t_srv, message, (int)MESSAGE_MAX);
    int error = bytes < 0 ? state->res_h_errno : 0;

    if (bytes > 0) {
        error =
            ldr_srv_parse(message, (size_t)bytes, records, max, count_p, ttl_s);
        if (error == -EBADMSG) {
            ldr_fail(LARDER_E_OFFLINE, "%s: the answer is broken", name);
        }
        return error;
    }
    if (error == HOST_NOT_FOUND) {
        return -ENOENT;
    }
    if (error == NO_DATA) {
        *addresses = has_address(state, name, message);
        return -ENODATA;
    }
    return no_answer(name, error);
}

static int real_srv(void *arg, const char *name, ldr_srv_t *records,
                    uint32_t max, uint32_t *count_p, uint32_t *ttl_s,
                    bool *addresses)
{
    struct __res_state state;
    uint8_t *message = ldr_alloc(MESSAGE_MAX);
    int error;

    (void)arg;
    *count_p = 0;
    *ttl_s = 0;
    *addresses = false;
    memset(&state, 0, sizeof(state));
    if (message == NULL || res_ninit(&state) != 0) {
        ldr_free(message);
        ldr_fail(LARDER_E_NO_MEMORY, "no memory to resolve a name");
        return -ENOMEM;
    }
    state.retrans = TRY_S;
    state.retry = TRIES;
    state.options |= RES_USE_EDNS0;
    error = query_send(&state, name, message, records, max, count_p, ttl_s,
                       addresses);
    res_nclose(&state);
    ldr_free(message);
    return error;
}

const ldr_dns_t ldr_dns_real = {real_srv, NULL};

bool ldr_host_label(char *name, size_t size)
{
    char whole[LDR_HOST_MAX] = "";

    if (gethostname(whole, sizeof(whole) - 1) != 0) {
        return false;
    }
    whole[strcspn(whole, ".")] = '\0';
    if (whole[0] == '\0' || strlen(whole) >= size) {
        return false;
    }
    memcpy(name, whole, strlen(whole) + 1);
    return true;
}
