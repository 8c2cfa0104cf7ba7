/*
 * Valkey and Redis: the parts of the back end.
 *
 * RESP, their protocol, is read strictly and within bounds: a line has at most
 * LDR_RESP_LINE bytes, numbers are plain, and what does not fit the question
 * ends the connection. Payloads go straight between the socket and the
 * caller's memory.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/text.h"
#include "net/transport.h"
#include "tier/shared/backend.h"

#define LDR_RESP_LINE 512u /* without its CR LF */
#define LDR_RESP_BUFFER                                                        \
    4096u                     /* read ahead: small, for what lies in it is     \
                               * copied once more */
#define LDR_VALKEY_PAGE 1000u /* names asked for at once */

/* ---- answers (valkey_resp.c) ---- */

typedef struct ldr_resp {
    /* 1 byte or more into iov, or a negative errno with a text. */
    ssize_t (*fill)(void *arg, const struct iovec *iov, unsigned count);
    void *arg;
    size_t at, end; /* what of the buffer was not taken yet */
    uint8_t buffer[LDR_RESP_BUFFER];
    int error;      /* the first '-' since ldr_resp_begin(), as an errno */
    char text[320]; /* of it, printable */
} ldr_resp_t;

typedef struct ldr_resp_item {
    char kind;     /* + - : $ * */
    int64_t value; /* :, or how many bytes ($) or items (*); -1: nil */
    size_t length; /* of + and -: of the text */
    char text[LDR_RESP_LINE + 1];
} ldr_resp_item_t;

/* One line without its end. False: it is none. */
bool ldr_resp_line(const uint8_t *line, size_t bytes, ldr_resp_item_t *item);
/* What an error means to the callers of a back end: a negative errno. */
int ldr_resp_errno(const char *text);

void ldr_resp_begin(ldr_resp_t *r);
/* The next item's line. 0, also if it is an error (then r->error is set), or
 * what fill() gave, or -EPROTO. */
int ldr_resp_next(ldr_resp_t *r, ldr_resp_item_t *item);
/* The payload of a $ with so many bytes, and its CR LF. iov holds them exactly
 * or more. */
int ldr_resp_payload(ldr_resp_t *r, const struct iovec *iov, unsigned count,
                     uint64_t bytes);

/* The answers to one question each. 0: it was read to its end, and r->error is
 * what the server said if that was an error. Else what fill() gave or -EPROTO:
 * the connection is of no use any more. */
int ldr_resp_word(ldr_resp_t *r, const char *word);   /* +word */
int ldr_resp_number(ldr_resp_t *r, int64_t *value_p); /* 0 or more */
/* Of MULTI, two commands and EXEC. number: what each of the two gave if it
 * gave a number; 1 for +OK, and 0 for nil. */
int ldr_resp_exec(ldr_resp_t *r, int64_t number[2]);
/* A range: at most `bytes`; *got_p is how many there were. */
int ldr_resp_range(ldr_resp_t *r, const struct iovec *iov, unsigned count,
                   uint64_t bytes, uint64_t *got_p);
/* Names of a page, at most so many; each begins with the prefix and comes after
 * `after`, and after the one before it. */
typedef char ldr_valkey_name_t[LDR_OBJECT_NAME_MAX + 1];
int ldr_resp_names(ldr_resp_t *r, const char *prefix, const char *after,
                   ldr_valkey_name_t *names, unsigned most, unsigned *count_p);
/* CLUSTER SLOTS. fn is told each server of each range of slots, the primary
 * (replica 0) first; host "": the one that was asked. */
typedef struct ldr_valkey_range {
    unsigned from, to; /* slots, both included */
    unsigned replica;
    ldr_address_t address;
} ldr_valkey_range_t;
int ldr_resp_slots(ldr_resp_t *r,
                   void (*fn)(void *arg, const ldr_valkey_range_t *range),
                   void *arg);

/* ---- questions ---- */

void ldr_resp_ask(ldr_text_t *t, unsigned args);
/* A whole command: its words, and NULL behind them. */
void ldr_resp_command(ldr_text_t *t, ...) __attribute__((sentinel));
void ldr_resp_arg(ldr_text_t *t, const char *arg);
void ldr_resp_arg_number(ldr_text_t *t, uint64_t value);
void ldr_resp_arg_head(ldr_text_t *t, uint64_t bytes); /* these follow, CR LF */

/* ---- connections (valkey_conn.c) ---- */

typedef struct ldr_valkey_conn ldr_valkey_conn_t;
struct ldr_valkey_conn {
    ldr_stream_t stream;
    ldr_resp_t resp;
    uint64_t deadline_ns;
    int lowat;               /* the socket's low-water mark; 0: as it was */
    unsigned node;           /* which server's */
    unsigned era;            /* the server's, when it was dialled */
    ldr_valkey_conn_t *next; /* while idle */
};

/* A server. Its address does not change. */
typedef struct ldr_valkey_node {
    ldr_address_t address;
    /* Under the back end's lock: */
    ldr_valkey_conn_t *idle; /* the last used first */
    unsigned idle_count;
    unsigned era; /* connections of another one are not kept */
} ldr_valkey_node_t;

#define LDR_VALKEY_SLOTS 16384u
#define LDR_VALKEY_NODES 256u /* servers of a cluster */
#define LDR_VALKEY_TAGS 64u   /* parts that a cluster's objects are in */
#define LDR_VALKEY_NO_NODE UINT16_MAX

typedef enum ldr_valkey_kind {
    LDR_VALKEY_UNKNOWN, /* no server has said it yet */
    LDR_VALKEY_SINGLE,
    LDR_VALKEY_CLUSTER
} ldr_valkey_kind_t;

typedef struct ldr_valkey {
    ldr_backend_t base;
    char user[64];
    char login[LDR_PATH_MAX];
    char db[8];
    bool wants_tls;
    char ca[LDR_PATH_MAX], cert[LDR_PATH_MAX], key[LDR_PATH_MAX];
    unsigned idle_max;   /* of a server */
    unsigned seed_count; /* the first of nodes: those of the url */
    /* A cluster's slots are cut into equal parts; tag i is hashed into part i,
     * wherever the slots are. */
    struct {
        char text[8];
        uint16_t slot;
    } tags[LDR_VALKEY_TAGS];
    pthread_mutex_t lock; /* of what follows; never held across a call */
    ldr_tls_t *tls;       /* made when it is first needed */
    ldr_valkey_kind_t kind;
    bool stale;          /* the map of slots may be out of date */
    uint64_t learned_ns; /* when it was last asked for */
    unsigned node_count; /* servers are added, and none is removed */
    ldr_valkey_node_t *nodes[LDR_VALKEY_NODES];
    uint16_t owner[LDR_VALKEY_SLOTS]; /* the primary, or NO_NODE */
} ldr_valkey_t;

/* An idle one that is still good, or a new one, logged in. 0 or an errno. */
int ldr_valkey_take(ldr_valkey_t *v, unsigned node, uint64_t deadline_ns,
                    ldr_valkey_conn_t **conn_p);
/* good: the answers were read to their end. */
void ldr_valkey_give(ldr_valkey_t *v, ldr_valkey_conn_t *conn, bool good);
/* No connection to this server that there is now is used for another call. */
void ldr_valkey_leave(ldr_valkey_t *v, unsigned node);
/* All of it. */
int ldr_valkey_send(ldr_valkey_conn_t *conn, const struct iovec *iov,
                    unsigned count);

/* What follows the scheme (valkey_url.c). */
larder_status_t ldr_valkey_take_url(ldr_valkey_t *v, const char *rest);

/* ---- clusters (valkey_cluster.c) ---- */

void ldr_valkey_make_tags(ldr_valkey_t *v);
/* The tag of an object in a cluster. */
unsigned ldr_valkey_tag(const char *name);
/* The server of this address, new or not; NO_NODE: there are too many. */
unsigned ldr_valkey_node(ldr_valkey_t *v, const ldr_address_t *address);
/* Asks who has which slots, if that is not known or may have changed. 0, or an
 * errno where no server could say it and nothing is known. */
int ldr_valkey_learn(ldr_valkey_t *v, uint64_t deadline_ns);
/* The server could not be reached: the map may be out of date. */
void ldr_valkey_doubt(ldr_valkey_t *v);
/* Where the objects of a tag are. -EBUSY: the cluster has nobody for them. */
int ldr_valkey_route(ldr_valkey_t *v, unsigned tag, unsigned *node_p);
/* What a server of the cluster said: MOVED or ASK, and where to. False: that
 * was neither. */
bool ldr_valkey_redirected(ldr_valkey_t *v, const ldr_valkey_conn_t *conn,
                           unsigned *node_p, bool *ask_p);
