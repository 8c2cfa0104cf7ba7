/*
 * Frames: what travels between a client and a daemon, by socket or by ring.
 * Pure functions: bytes to structs and back, no I/O, nothing allocated.
 *
 * A frame is a header, a body and, on TCP, a payload. Everything is little-
 * endian. A reply has the id of its request and may overtake other replies.
 * The header's checksum covers header and body on sockets, where a flipped bit
 * in a key would file bytes under another name; in rings it is 0. Payload has
 * checksums of its own, one per shard.
 *
 * Parsing is strict: a reserved field that is not 0, a count beyond what the
 * body holds, or a byte left over makes the frame malformed. Values that are
 * well-formed but wrong (a space nobody opened) are the handler's to refuse.
 *
 * Versions: both sides say which they speak; the highest in common is used.
 * What one side may lack beyond that is a feature bit. Within a version the
 * sides may differ in how many statuses, causes, tiers and figures they know,
 * because those are only ever added at the end of their lists:
 *  - what has a place for each says how many places it has. Who reads it finds
 *    zeros in those that it knows and were not sent, and leaves out the others,
 *    or adds them to the place that larder.h names (LARDER_CAUSE_OTHER, the
 *    last tier), so that sums stay right;
 *  - a number that the reader does not know becomes one that it does:
 *    ldr_frame_status(), ldr_get_result(), ldr_get_matched().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

/* 1: until cc982fb. It sent structs as they were, with no counts. ADMIN is the
 * same in both, and needs no hello: a daemon of either takes over from one of
 * the other. */
#define LDR_WIRE_VERSION_MIN 2u
#define LDR_WIRE_VERSION_MAX 2u

#define LDR_FRAME_MAGIC 0x3152444cu /* "LDR1" */
#define LDR_FRAME_BYTES 40u
#define LDR_BODY_MAX (512u << 10)   /* of an authenticated peer */
#define LDR_BODY_HELLO_MAX 1024u    /* of anybody else */
#define LDR_PAYLOAD_MAX (64u << 20) /* in one frame */

#define LDR_WIRE_ID_BYTES 16u
#define LDR_WIRE_KEY_BYTES 32u
#define LDR_NONCE_BYTES 32u
#define LDR_MAC_BYTES 32u
#define LDR_TENANT_MAX 63u

/* X(NAME, value, before authentication?, text) */
#define LDR_OPCODE_MAP(X)                                                      \
    X(HELLO, 1, 1, "hello")                                                    \
    X(AUTH, 2, 1, "auth")                                                      \
    X(PING, 3, 0, "ping")                                                      \
    X(ATTACH, 8, 0, "attach")    /* unix socket: ring and doorbell */          \
    X(EXTENT, 9, 0, "extent")    /* unix socket: an extent's memfd */          \
    X(REVOKE, 10, 0, "revoke")   /* to the client: unmap an extent */          \
    X(REVOKED, 11, 0, "revoked") /* from the client: it is unmapped */         \
    X(SPACE, 16, 0, "space")                                                   \
    X(RESET, 17, 0, "reset")                                                   \
    X(MATCH, 18, 0, "match")                                                   \
    X(ANNOUNCE, 25, 0, "announce")                                             \
    X(LIST, 27, 0, "list") /* what the tenant has, page by page */             \
    X(STAGE, 28, 0, "stage")                                                   \
    X(HANDOFF, 29, 0, "handoff")   /* only with LDR_FEATURE_HANDOFF */         \
    X(DESCRIBE, 30, 0, "describe") /* only with LDR_FEATURE_DESCRIBE */        \
    X(EXISTS, 19, 0, "exists")                                                 \
    X(REMOVE, 20, 0, "remove")                                                 \
    X(FLUSH, 21, 0, "flush")                                                   \
    X(STATS, 22, 0, "stats")                                                   \
    X(METRICS, 23, 0, "metrics")                                               \
    X(REPORT, 24, 0, "report") /* these shards' bytes were wrong */            \
    X(GET, 32, 0, "get")       /* payload in the reply */                      \
    X(PUT, 33, 0, "put")       /* payload in the request */                    \
    X(LEASE, 48, 0, "lease")                                                   \
    X(RELEASE, 49, 0, "release")                                               \
    X(RESERVE, 50, 0, "reserve")                                               \
    X(COMMIT, 51, 0, "commit")                                                 \
    X(ADMIN, 64, 0, "admin")                                                   \
    /* Between members of a cluster only: wire/peer.h. */                      \
    X(MEET, 72, 0, "meet")                                                     \
    X(PEER_SPACE, 73, 0, "peer_space")                                         \
    X(PEER_ASK, 74, 0, "peer_ask")                                             \
    X(PEER_GET, 75, 0, "peer_get")                                             \
    X(PEER_PUT, 76, 0, "peer_put")                                             \
    X(PEER_HANDOFF, 77, 0, "peer_handoff")                                     \
    X(PEER_HOME, 78, 0, "peer_home")                                           \
    X(PEER_MEASURE, 79, 0, "peer_measure")

typedef enum ldr_opcode {
#define X(name, value, before, text) LDR_OP_##name = (value),
    LDR_OPCODE_MAP(X)
#undef X
} ldr_opcode_t;

/* NULL: no such opcode. */
const char *ldr_opcode_text(unsigned opcode);

enum {
    LDR_FRAME_REPLY = 1u << 0,
    LDR_FRAME_SILENT = 1u << 1, /* no reply is wanted, not even of a failure */
};

/* What not every peer of this version has. */

/* HANDOFF, and a STAGE that waits for promises, or names a member. */
#define LDR_FEATURE_HANDOFF 1u
/* A daemon has it only if it wants to know what engines call their chunks. */
#define LDR_FEATURE_DESCRIBE 2u
#define LDR_FEATURE_RANGES 4u /* rows of batches that name several shards */
#define LDR_FEATURES                                                           \
    (LDR_FEATURE_HANDOFF | LDR_FEATURE_DESCRIBE | LDR_FEATURE_RANGES)

typedef struct ldr_frame {
    uint16_t opcode;
    uint16_t flags;
    uint64_t id;
    uint64_t epoch;   /* of the session, from the HELLO's reply; 0 before */
    uint32_t body;    /* bytes that follow */
    uint32_t payload; /* bytes that follow the body */
    uint32_t arg;     /* request: milliseconds left, or LARDER_FOREVER;
                         reply: status */
} ldr_frame_t;

/* Writes the header. On sockets the body must lie right behind it, and seal
 * is set: the checksum then covers both. */
void ldr_frame_put(uint8_t *at, const ldr_frame_t *frame, bool seal);

typedef enum ldr_frame_verdict {
    LDR_FRAME_OK,
    LDR_FRAME_NOT_LARDER, /* magic */
    LDR_FRAME_TOO_LARGE,  /* body or payload */
    LDR_FRAME_MALFORMED
} ldr_frame_verdict_t;

/* Reads LDR_FRAME_BYTES; body_max is what the peer may send now, and with
 * LDR_BODY_HELLO_MAX that is no payload. Only a PUT and the reply to a GET have
 * one at all. An unknown opcode is the handler's to refuse (ldr_opcode_text()
 * is NULL): its frame can be skipped. Does not look at the checksum, which
 * needs the body. */
ldr_frame_verdict_t ldr_frame_get(const uint8_t *at, uint32_t body_max,
                                  ldr_frame_t *frame);
/* header and its body lie in one piece. */
bool ldr_frame_check(const uint8_t *at, const ldr_frame_t *frame);

/* Of a reply. One that this side does not know is LARDER_E_OTHER: what came
 * with it cannot be read as if all had gone well. */
larder_status_t ldr_frame_status(const ldr_frame_t *frame);

/* ---- bodies ----
 *
 * ldr_put_X() writes to `at`, which has room for LDR_X_BYTES (or what the
 * function's _bytes twin says), and gives the bytes written. ldr_get_X() reads
 * a whole body of exactly `bytes`; false: malformed. Pointers in what was read
 * lead into the body.
 *
 * Where a body holds rows, the fixed part is read first; its count has been
 * checked against the length, and rows are read one by one, whatever they
 * contain. */

/* Text of a fixed width is padded with zeros and has no control characters. */

/* Text that follows a failed reply: what went wrong, in words. */
#define LDR_TEXT_MAX 500u

/* HELLO and its reply keep this form in every version. */
typedef struct ldr_hello {
    uint16_t version_min, version_max;
    uint64_t features;
    uint8_t nonce[LDR_NONCE_BYTES];
    char tenant[LDR_TENANT_MAX + 1];
    char program[64]; /* version text, for the log */
} ldr_hello_t;

#define LDR_HELLO_BYTES (12u + LDR_NONCE_BYTES + 64u + 64u)
size_t ldr_put_hello(uint8_t *at, const ldr_hello_t *m);
bool ldr_get_hello(const uint8_t *at, size_t bytes, ldr_hello_t *m);

typedef struct ldr_welcome {
    uint16_t version;
    uint16_t auth; /* 0: come in; 1: prove that you know the token */
    uint64_t features;
    uint64_t epoch;
    uint8_t nonce[LDR_NONCE_BYTES];
    char program[64];
} ldr_welcome_t;

#define LDR_WELCOME_BYTES (20u + LDR_NONCE_BYTES + 64u)
size_t ldr_put_welcome(uint8_t *at, const ldr_welcome_t *m);
bool ldr_get_welcome(const uint8_t *at, size_t bytes, ldr_welcome_t *m);

/* AUTH, both ways: a MAC, see net/auth.h. */

typedef struct ldr_attach {
    uint32_t ring_bytes; /* of each direction; in the reply */
    uint32_t page_bytes;
    uint32_t strict; /* 1: segments lie in the session's own bounce buffer */
} ldr_attach_t;

#define LDR_ATTACH_BYTES 16u
size_t ldr_put_attach(uint8_t *at, const ldr_attach_t *m);
bool ldr_get_attach(const uint8_t *at, size_t bytes, ldr_attach_t *m);

/* EXTENT (request: extent and generation only), REVOKE, REVOKED. */
typedef struct ldr_extent_msg {
    uint32_t extent, generation;
    uint64_t bytes, ready_bytes; /* resident from the start up to here */
} ldr_extent_msg_t;

#define LDR_EXTENT_MSG_BYTES 24u
#define LDR_EXTENT_NOW UINT32_MAX /* request: whichever generation it is in */
size_t ldr_put_extent(uint8_t *at, const ldr_extent_msg_t *m);
bool ldr_get_extent(const uint8_t *at, size_t bytes, ldr_extent_msg_t *m);

typedef struct ldr_space_msg {
    uint8_t id[LDR_WIRE_ID_BYTES];
    uint8_t check[LDR_WIRE_ID_BYTES];
    uint32_t shards;
    /* The tenant's key for the shared tier, which is derived from its secret
     * and says nothing of it. */
    uint8_t key[LDR_WIRE_KEY_BYTES];
    char label[LARDER_LABEL_MAX + 1]; /* what is read is clean */
} ldr_space_msg_t;

#define LDR_SPACE_HEAD_BYTES 72u /* and the label */
#define LDR_SPACE_MSG_BYTES (LDR_SPACE_HEAD_BYTES + LARDER_LABEL_MAX)
size_t ldr_put_space(uint8_t *at, const ldr_space_msg_t *m);
bool ldr_get_space(const uint8_t *at, size_t bytes, ldr_space_msg_t *m);

/* A body of one number: SPACE's reply, RESET (space), FLUSH (tier). */
#define LDR_NUMBER_BYTES 4u
size_t ldr_put_number(uint8_t *at, uint32_t number);
bool ldr_get_number(const uint8_t *at, size_t bytes, uint32_t *number_p);

/* A chain, and what a prefix of it needs of each group: MATCH and STAGE. */
typedef struct ldr_match_msg {
    uint32_t space;
    uint32_t flags;       /* LDR_MATCH_* */
    uint32_t count;       /* of keys */
    uint32_t groups;      /* 1...LARDER_GROUPS_MAX */
    const uint8_t *needs; /* groups * LDR_NEED_BYTES */
    const uint8_t *keys;  /* count * LARDER_KEY_BYTES */
} ldr_match_msg_t;

/* It was asked for before: it does not count as such. */
#define LDR_MATCH_AGAIN 1u

#define LDR_MATCH_HEAD_BYTES 16u
#define LDR_NEED_BYTES 8u
/* Keys that a request has room for. */
#define LDR_MATCH_KEYS                                                         \
    ((LDR_BODY_MAX - LDR_WORTH_BYTES - LDR_MATCH_HEAD_BYTES -                  \
      LARDER_GROUPS_MAX * LDR_NEED_BYTES) /                                    \
     LARDER_KEY_BYTES)
/* needs and keys of m are copied. */
size_t ldr_put_match(uint8_t *at, const ldr_match_msg_t *m);
bool ldr_get_match(const uint8_t *at, size_t bytes, ldr_match_msg_t *m);

/* A group, and how many of its last chunks a prefix needs (ldr_need_t). */
void ldr_put_need(uint8_t *at, uint16_t group, uint32_t chunks);
bool ldr_get_need(const uint8_t *at, uint16_t *group_p, uint32_t *chunks_p);

/* STAGE: what is worth it, then as a MATCH. A member's name is there only if
 * the mask has its bit. Both give the bytes of it; get: 0: malformed, and
 * m->member points into the message. */
#define LDR_WORTH_NAME 64u
#define LDR_WORTH_BYTES (40u + LDR_WORTH_NAME) /* at most */
size_t ldr_put_worth(uint8_t *at, const larder_stage_params_t *m);
size_t ldr_get_worth(const uint8_t *at, size_t bytes, larder_stage_params_t *m);

/* STAGE's reply: the lease, its token, and what was staged. lease: of this
 * session, to be released; without chunks there is none. */
typedef struct ldr_staged {
    uint64_t lease;
    larder_token_t token;
    larder_match_t match;
} ldr_staged_t;

#define LDR_STAGED_HEAD_BYTES 64u
#define LDR_STAGED_BYTES (LDR_STAGED_HEAD_BYTES + LDR_MATCHED_BYTES)
size_t ldr_put_staged(uint8_t *at, const ldr_staged_t *m);
bool ldr_get_staged(const uint8_t *at, size_t bytes, ldr_staged_t *m);

/* HANDOFF: what is said of a hand-off (larder_handoff_t), and its token; and
 * the member that has the promise, if it is not this node.
 * LDR_HANDOFF_PROMISE: as a MATCH follows; the reply is this node's name among
 * the members of its cluster, or has no body if it is alone. */
#define LDR_HANDOFF_PROMISE 0u

typedef struct ldr_handoff_msg {
    uint32_t what;
    uint32_t space; /* of the promise */
    larder_token_t token;
    char member[LDR_WORTH_NAME]; /* "": this node */
    ldr_match_msg_t chain;       /* of a promise */
} ldr_handoff_msg_t;

#define LDR_HANDOFF_HEAD_BYTES 24u
/* Keys that a promise has room for. */
#define LDR_HANDOFF_KEYS (LDR_MATCH_KEYS - 1u)
/* The head, and the member; the chain of a promise follows with
 * ldr_put_match(). */
size_t ldr_put_handoff(uint8_t *at, const ldr_handoff_msg_t *m);
bool ldr_get_handoff(const uint8_t *at, size_t bytes, ldr_handoff_msg_t *m);
/* The reply to a promise. name has room for LDR_WORTH_NAME bytes. */
size_t ldr_put_promised(uint8_t *at, const char *name);
bool ldr_get_promised(const uint8_t *at, size_t bytes, char *name);

/* A request that is about to use a chain; no body in the reply. */
typedef struct ldr_announce_msg {
    uint32_t space;
    uint32_t count;
    uint32_t chunk_tokens, tokens; /* see ldr_announce_t (node.h) */
    uint32_t hint;
    uint32_t saves; /* 1: told by a save */
    uint64_t id;
    const uint8_t *keys; /* count * LARDER_KEY_BYTES */
} ldr_announce_msg_t;

#define LDR_ANNOUNCE_HEAD_BYTES 32u
#define LDR_ANNOUNCE_KEYS                                                      \
    ((LDR_BODY_MAX - LDR_ANNOUNCE_HEAD_BYTES) / LARDER_KEY_BYTES)
size_t ldr_put_announce(uint8_t *at, const ldr_announce_msg_t *m);
bool ldr_get_announce(const uint8_t *at, size_t bytes, ldr_announce_msg_t *m);

/* The next rows of what the session's tenant has; cursor 0: the first. In the
 * reply where to go on, LDR_LIST_END: nowhere, and rows. */
#define LDR_LIST_END UINT32_MAX

typedef struct ldr_list_head {
    uint32_t cursor, count;
    uint32_t row_bytes; /* from one row to the next */
    const uint8_t *rows;
} ldr_list_head_t;

enum {
    LDR_LIST_KEY = 1u << 0, /* it is known */
    LDR_LIST_DRAM = 1u << 1,
    LDR_LIST_SSD = 1u << 2,
    LDR_LIST_PINNED = 1u << 3,
};

typedef struct ldr_list_row {
    larder_key_t key;
    uint8_t space[LDR_WIRE_ID_BYTES];
    uint16_t group, shard, shards;
    uint16_t flags; /* LDR_LIST_*, those that are known here */
    uint32_t length, age_s, expires_s, depth;
    char label[LARDER_LABEL_MAX + 1]; /* of the space; what is read is clean */
} ldr_list_row_t;

#define LDR_LIST_HEAD_BYTES 16u
#define LDR_LIST_ROW_BYTES (72u + LARDER_LABEL_MAX)
size_t ldr_put_list(uint8_t *at, uint32_t cursor, uint32_t count);
bool ldr_get_list(const uint8_t *at, size_t bytes, ldr_list_head_t *m);
void ldr_put_listed(uint8_t *at, const ldr_list_row_t *row);
void ldr_get_listed(const uint8_t *at, ldr_list_row_t *row);

/* MATCH's reply: its struct_bytes are not of the wire. */
#define LDR_MATCHED_HEAD_BYTES 24u
#define LDR_MATCHED_TIER_BYTES 16u
#define LDR_MATCHED_BYTES /* at most */                                        \
    (LDR_MATCHED_HEAD_BYTES + LARDER_TIERS_MAX * LDR_MATCHED_TIER_BYTES)
size_t ldr_put_matched(uint8_t *at, const larder_match_t *m);
bool ldr_get_matched(const uint8_t *at, size_t bytes, larder_match_t *m);

/* STATS's reply: all but struct_bytes and what the client itself counts
 * (client_*), which are left as they are. */
#define LDR_STATS_BYTES_MAX 16384u
size_t ldr_put_stats(uint8_t *at, const larder_stats_t *m);
bool ldr_get_stats(const uint8_t *at, size_t bytes, larder_stats_t *m);

/* Batches: EXISTS, REMOVE, REPORT, GET, LEASE have names as rows; PUT and
 * RESERVE have saves. A row names a chunk, one of its shards, and with `more`
 * (LDR_FEATURE_RANGES) as many of those that follow it. What a row says of the
 * bytes of its first shard, the batch says of the others behind its rows, in
 * their order (LDR_MORE_BYTES each; not of places). */
typedef struct ldr_batch_msg {
    uint32_t space;
    uint32_t count; /* of rows */
    uint32_t more;  /* of all rows; count + more, the shards, are
                     * 1...LARDER_BATCH_MAX */
    uint32_t flags; /* larder_op_params.flags; the handler knows which */
    const uint8_t *rows;
} ldr_batch_msg_t;

/* In flags: EXISTS before a save, to send only what is not there. It counts as
 * a save that found it present, or not at all. */
#define LDR_BATCH_QUIET 0x80000000u
/* In flags: EXISTS, GET and LEASE of what was asked for before: loads of what
 * was matched or staged. */
#define LDR_BATCH_AGAIN 0x40000000u
/* In flags: LEASE of what was staged, in whatever session of the tenant. A
 * token follows the head, and rows are places in what it stands for. */
#define LDR_BATCH_TOKEN 0x20000000u
/* With it: they are to be read in place, and stay; else they end with a copy.
 */
#define LDR_BATCH_STAYS 0x10000000u

#define LDR_BATCH_HEAD_BYTES 16u
#define LDR_PLACE_BYTES 8u
#define LDR_NAME_BYTES 48u
#define LDR_SAVE_BYTES 96u
#define LDR_MORE_BYTES 8u
/* Writes the head; the rows follow with ldr_put_name() or _save(). */
size_t ldr_put_batch(uint8_t *at, const ldr_batch_msg_t *m);
/* What is read has rows whose `more` add up to all. */
bool ldr_get_batch(const uint8_t *at, size_t bytes, uint32_t row_bytes,
                   ldr_batch_msg_t *m);

/* What a batch says of a shard's bytes. */
typedef struct ldr_more_row {
    uint32_t bytes; /* a name's room, a save's length */
    uint32_t crc;   /* PUT */
} ldr_more_row_t;

/* Sets `more` of a row that was put. */
void ldr_put_row_more(uint8_t *at, uint32_t row_bytes, uint32_t more);
void ldr_put_more(uint8_t *at, const ldr_more_row_t *row);
void ldr_get_more(const uint8_t *at, ldr_more_row_t *row);

typedef struct ldr_name_row {
    larder_key_t key;
    uint16_t group, shard;
    uint32_t more;
    /* Bytes of the caller's buffers: GET. LEASE: 0 where it is to stay, else it
     * ends with a copy. */
    uint64_t room;
} ldr_name_row_t;

void ldr_put_name(uint8_t *at, const ldr_name_row_t *row);
void ldr_get_name(const uint8_t *at, ldr_name_row_t *row);

/* A batch with LDR_BATCH_TOKEN. */
size_t ldr_put_redeem(uint8_t *at, const ldr_batch_msg_t *m,
                      const larder_token_t *token);
uint32_t ldr_get_batch_flags(const uint8_t *at); /* of its head */
bool ldr_get_redeem(const uint8_t *at, size_t bytes, ldr_batch_msg_t *m,
                    larder_token_t *token);

/* Shards of a staged prefix: of chunk number `chunk` of the chain. */
typedef struct ldr_place_row {
    uint8_t group, more;
    uint16_t shard;
    uint32_t chunk;
} ldr_place_row_t;

void ldr_put_place(uint8_t *at, const ldr_place_row_t *row);
void ldr_get_place(const uint8_t *at, ldr_place_row_t *row);

typedef struct ldr_save_row {
    larder_key_t key, parent; /* parent: zeros without has_parent */
    bool has_parent;
    uint16_t more;
    uint32_t depth;
    uint16_t group, shard;
    uint32_t flags; /* LARDER_PUT_* */
    uint32_t ttl_ms;
    uint64_t length;
    uint32_t crc; /* PUT: of the payload */
} ldr_save_row_t;

void ldr_put_save(uint8_t *at, const ldr_save_row_t *row);
bool ldr_get_save(const uint8_t *at, ldr_save_row_t *row);

/* Results: of every batch, one row for each of its rows, then the segments of
 * all of them, in order (LEASE and RESERVE in shared memory). LARDER_PENDING:
 * it did not fit this reply or the session's caps: ask again. */
typedef struct ldr_results {
    uint32_t count; /* 1...LARDER_BATCH_MAX */
    uint32_t seg_count;
    const uint8_t *rows;
    const uint8_t *segs;
} ldr_results_t;

#define LDR_RESULTS_HEAD_BYTES 8u
#define LDR_RESULT_BYTES 40u
#define LDR_SEG_BYTES 16u
/* Writes the head. What is read has rows whose seg_count add up to all. */
size_t ldr_put_results(uint8_t *at, uint32_t count, uint32_t seg_count);
bool ldr_get_results(const uint8_t *at, size_t bytes, ldr_results_t *m);

enum { LDR_RESULT_CHECKED = 1u << 0 }; /* its bytes have matched crc here */

typedef struct ldr_result_row {
    larder_status_t status;
    larder_cause_t cause;
    uint64_t length;
    uint64_t lease; /* LEASE, RESERVE: to release or commit */
    uint32_t crc;   /* GET, LEASE */
    uint32_t flags;
    uint32_t seg_count;
} ldr_result_row_t;

void ldr_put_result(uint8_t *at, const ldr_result_row_t *row);
/* A status that this side does not know is LARDER_MISS where it is above zero,
 * of whatever it is: nothing was given, or kept. Below it is LARDER_E_OTHER. */
bool ldr_get_result(const uint8_t *at, ldr_result_row_t *row);

/* A piece of an extent. */
typedef struct ldr_seg {
    uint32_t extent, generation;
    uint32_t page;  /* of the extent, in units of attach.page_bytes */
    uint32_t bytes; /* from the page's start, over as many pages as it takes */
} ldr_seg_t;

void ldr_put_seg(uint8_t *at, const ldr_seg_t *seg);
void ldr_get_seg(const uint8_t *at, ldr_seg_t *seg);

/* RELEASE and COMMIT: rows of a lease each. */
typedef struct ldr_ends {
    uint32_t count; /* 1...LARDER_BATCH_MAX */
    const uint8_t *rows;
} ldr_ends_t;

#define LDR_ENDS_HEAD_BYTES 8u
#define LDR_END_BYTES 16u
size_t ldr_put_ends(uint8_t *at, uint32_t count); /* the head */
bool ldr_get_ends(const uint8_t *at, size_t bytes, ldr_ends_t *m);

typedef enum ldr_end_how {
    LDR_END_PLAIN,   /* release; commit */
    LDR_END_CHECKED, /* release: the bytes were found right */
    LDR_END_ABORT    /* commit: give the reservation back */
} ldr_end_how_t;

typedef struct ldr_end_row {
    uint64_t lease;
    uint32_t crc; /* commit */
    uint32_t how;
} ldr_end_row_t;

void ldr_put_end(uint8_t *at, const ldr_end_row_t *row);
bool ldr_get_end(const uint8_t *at, ldr_end_row_t *row);

/* ADMIN: a verb in the body as text; the reply's body is text. Only for peers
 * with the daemon's own uid, or root. */
