/*
 * Members by etcd 3: each one has a key with a lease, and all watch all keys.
 *
 *   /larder/CLUSTER/members/NAME   {"name":..., "address":..., ...}, leased
 *   /larder/CLUSTER/drain/NAME     exists: that member leaves the ring
 *
 * Two threads. The cluster's own keeps this node's key (etcd.c): a lease, the
 * key, keepalives, and now and then a look whether the watch is still alive.
 * The other one reads all keys and then the watch's stream (etcd_watch.c).
 * Neither believes that silence means something: while etcd does not answer,
 * what was last heard stands.
 *
 * Nothing is taken over from another member: a key is created only where there
 * is none, or where the one that is there is of this run or of this address
 * (this node before its restart).
 */
#pragma once

#include "base/json_read.h"
#include "cluster/cluster_int.h"

#define LDR_ETCD_SERVERS_MAX 9u
#define LDR_ETCD_LEASE_S 15u
#define LDR_ETCD_CALL_MS 2000u /* one call of one server */
#define LDR_ETCD_KEY 512u
#define LDR_ETCD_VALUE 1536u
#define LDR_ETCD_BASE64(bytes) (((bytes) + 2) / 3 * 4 + 1)
#define LDR_ETCD_TOKEN 512u

/* One thread's way to the servers. */
typedef struct ldr_etcd_conn {
    unsigned server; /* asked next */
    char token[LDR_ETCD_TOKEN];
    const bool *canceled;
    char *reply;
    size_t reply_bytes, reply_capacity;
} ldr_etcd_conn_t;

/* A key and its value as they are now. */
typedef struct ldr_etcd_entry {
    char name[LDR_MEMBER_NAME];
    bool drain;          /* a key of drain/ */
    const char *refused; /* why it is no member; NULL: it is */
    uint64_t created;    /* its revision */
    ldr_member_t member;
} ldr_etcd_entry_t;

/* A key as it comes from etcd. */
typedef struct ldr_etcd_kv {
    char key[LDR_ETCD_KEY];
    char value[LDR_ETCD_VALUE]; /* "": it does not fit, or is none */
    uint64_t created, modified;
} ldr_etcd_kv_t;

typedef struct ldr_etcd {
    ldr_cluster_t *c;
    bool tls;
    char servers[LDR_ETCD_SERVERS_MAX][LDR_MEMBER_ADDRESS];
    unsigned server_count;
    char ca[LDR_PATH_MAX], cert[LDR_PATH_MAX], key[LDR_PATH_MAX];
    char prefix[LDR_HOST_MAX + 32]; /* of all keys */

    /* This node's key: the cluster's thread. */
    ldr_etcd_conn_t keeper;
    uint64_t lease;    /* 0: none */
    uint64_t modified; /* the revision of our last write; 0: not written */
    bool had_key;      /* this run has written it once */
    ldr_member_t written;
    uint64_t joined_ns;   /* the ramp began; 0: not yet */
    uint64_t keep_ns;     /* the next keepalive */
    uint64_t look_ns;     /* the next look at the watch */
    uint64_t retry_ns;    /* after a failure: not before */
    uint64_t answered_ns; /* the last answer */
    unsigned stale;       /* looks in a row that found the watch behind */

    /* The watch. */
    ldr_etcd_conn_t watcher;
    pthread_t thread;
    bool runs;
    bool cancel; /* atomic: end the stream; it begins again unless stopping */
    char *line;  /* of the stream, until it is whole */
    size_t line_bytes, line_capacity;
    bool ended; /* the stream said that it is at its end */

    pthread_mutex_t lock; /* the rest */
    ldr_etcd_entry_t *entries;
    size_t count, capacity;
    uint64_t foreign;  /* keys that are none of ours */
    uint64_t revision; /* of what is there; 0: nothing was read */
    bool watching;     /* the stream stands */
    bool dirty;        /* not in an answer yet */
    ldr_member_t *answer;
    size_t answer_capacity;
} ldr_etcd_t;

/* ---- calls (etcd_call.c) ---- */

/* Asks one server after the other, each once. The reply is in the conn. False,
 * with a text: none answers, or the answer is an error. path: "kv/range"... */
bool ldr_etcd_call(ldr_etcd_t *e, ldr_etcd_conn_t *conn, const char *path,
                   const char *body);
/* A call whose answer goes to take() as it comes; ends when it does. */
bool ldr_etcd_stream(ldr_etcd_t *e, ldr_etcd_conn_t *conn, const char *path,
                     const char *body,
                     bool (*take)(void *arg, const char *bytes, size_t count),
                     void *arg);
/* The next server. */
void ldr_etcd_other(ldr_etcd_t *e, ldr_etcd_conn_t *conn);

void ldr_etcd_base64(const char *text, char *out);
/* {"key":..., "value":..., ...} of an answer; a key or a value that does not
 * fit is "". */
void ldr_etcd_read_kv(ldr_json_reader_t *r, ldr_etcd_kv_t *kv);
/* The revision in {"header":{...}}, the reader standing at its '{'. */
uint64_t ldr_etcd_read_header(ldr_json_reader_t *r);

/* A member's value, as text and back. check: see ldr_etcd_check(). */
void ldr_etcd_compose(const ldr_cluster_t *c, const ldr_member_t *m,
                      char text[LDR_ETCD_VALUE]);
/* Why it is no member for us, or NULL. */
const char *ldr_etcd_parse(const ldr_cluster_t *c, const char *text,
                           ldr_member_t *m);

/* ---- the watch (etcd_watch.c) ---- */

void *ldr_etcd_watch(void *etcd);
/* Offers what changed, if anything did. In the cluster's thread. */
void ldr_etcd_answer(ldr_etcd_t *e);
/* Whether this node's key is there as this run wrote it; true as long as the
 * watch has not told of that revision. */
bool ldr_etcd_has_own(ldr_etcd_t *e, uint64_t revision);
