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
    char text[128]; /* of it, printable */
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
/* Names of a page into names[LDR_VALKEY_PAGE]; each begins with the prefix and
 * comes after `after`, and after the one before it. */
typedef char ldr_valkey_name_t[LDR_OBJECT_NAME_MAX + 1];
int ldr_resp_names(ldr_resp_t *r, const char *prefix, const char *after,
                   ldr_valkey_name_t *names, unsigned *count_p);

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
    unsigned era;            /* the back end's, when it was dialled */
    ldr_valkey_conn_t *next; /* while idle */
};

typedef struct ldr_valkey {
    ldr_backend_t base;
    ldr_address_t address;
    char user[64];
    char login[LDR_PATH_MAX];
    char db[8];
    bool wants_tls;
    char ca[LDR_PATH_MAX], cert[LDR_PATH_MAX], key[LDR_PATH_MAX];
    pthread_mutex_t lock;
    ldr_tls_t *tls;          /* under lock: made when it is first needed */
    ldr_valkey_conn_t *idle; /* under lock: the last used first */
    unsigned idle_count, idle_max;
    unsigned era; /* under lock: connections of another one are not kept */
} ldr_valkey_t;

/* An idle one that is still good, or a new one, logged in. 0 or an errno. */
int ldr_valkey_take(ldr_valkey_t *v, uint64_t deadline_ns,
                    ldr_valkey_conn_t **conn_p);
/* good: the answers were read to their end. */
void ldr_valkey_give(ldr_valkey_t *v, ldr_valkey_conn_t *conn, bool good);
/* No connection that there is now is used for another call. */
void ldr_valkey_leave(ldr_valkey_t *v);
/* All of it. */
int ldr_valkey_send(ldr_valkey_conn_t *conn, const struct iovec *iov,
                    unsigned count);
