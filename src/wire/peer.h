/*
 * Frames between members of a cluster: what one node asks another. They travel
 * on sessions of their own, after a HELLO and an AUTH with the cluster's
 * secret; a client's session knows none of them. Rules as in wire.h.
 *
 *   MEET        who I am, my epochs, my removals; the reply has the other's.
 *               The first request of every session, and again after each reset
 *               and removal.
 *   PEER_SPACE  a tenant's space, by what its clients said of it; the reply is
 *               the other node's number of it
 *   PEER_ASK    which shards of these chunks are in the other's own tiers;
 *               those in DRAM stay there for a while, for the asker to fetch
 *   PEER_GET    their bytes
 *   PEER_PUT    bytes for the other to keep
 *   PEER_HANDOFF  what a decode side says of a promise at the other; or that a
 *               promised chunk which the other waits for has come, or failed
 *   PEER_HOME   which members' disks have chunks that the other owns; only to a
 *               member that says LDR_MEET_HOMES
 *   PEER_MEASURE  any bytes, which nobody keeps, and as many back as its number
 *               says: how fast a link is. In place of the first MEET, on a
 *               connection of its own
 *
 * ASK, GET, PUT and HOME carry the space's epoch as the sender knows it. Where
 * the two differ nothing is done (LARDER_E_STALE): they meet again first.
 */
#pragma once

#include "wire/wire.h"

#define LDR_PEER_NAME 64u

/* ---- MEET, both ways ---- */

typedef struct ldr_meet {
    uint32_t version_major;
    uint64_t run; /* of the sender's process */
    char name[LDR_PEER_NAME], cluster[LDR_PEER_NAME];
    /* Removals are numbered by who tells of them, from 1 on, in each run. */
    uint64_t have; /* those of the other, in its run have_run, up to here */
    uint64_t have_run;
    uint64_t first; /* number of the first that follows */
    uint64_t last;  /* of all that there are: more follow in another MEET */
    uint32_t epochs, removals; /* rows */
    uint32_t flags;            /* LDR_MEET_... */
    uint64_t view;             /* the sender's: the first bytes of its hash */
    uint64_t wall_s;           /* the sender's clock */
    const uint8_t *rows;
} ldr_meet_t;

#define LDR_MEET_HEAD_BYTES (72u + 2 * LDR_PEER_NAME)
/* Flags; a receiver ignores those that it does not know. */
#define LDR_MEET_LEAVING 1u /* the sender leaves: it owns nothing */
#define LDR_MEET_KNOWN 2u   /* the receiver is in the sender's view */
#define LDR_MEET_LEAVE 4u   /* an operator wants the receiver to leave ... */
#define LDR_MEET_RETURN 8u  /* ... or to take its place again */
#define LDR_MEET_MORE 16u   /* more epochs follow in another MEET */
#define LDR_MEET_NEXT 32u   /* a request: the reply goes on with epochs */
#define LDR_MEET_HOMES 64u  /* the sender keeps homes: it takes PEER_HOME */
/* The sender began with nothing, so many minutes ago at most, by the bits from
 * LDR_MEET_AGE on: it has missed no removal of before, except by what it has
 * from a member that has missed one, and that it met before this one. */
#define LDR_MEET_NEW 128u
#define LDR_MEET_AGE 16u

typedef struct ldr_epoch_row {
    uint8_t space[LDR_WIRE_ID_BYTES]; /* as nodes know it */
    uint32_t epoch;
} ldr_epoch_row_t;

#define LDR_EPOCH_BYTES 20u

typedef struct ldr_removal_row {
    uint8_t space[LDR_WIRE_ID_BYTES];
    larder_key_t key;
    uint16_t group, shard;
    uint64_t id; /* of the removal, wherever it is told of */
    uint32_t age_s;
} ldr_removal_row_t;

#define LDR_REMOVAL_BYTES 64u

/* Writes the head; rows follow, epochs first. */
size_t ldr_put_meet(uint8_t *at, const ldr_meet_t *m);
bool ldr_get_meet(const uint8_t *at, size_t bytes, ldr_meet_t *m);
void ldr_put_epoch(uint8_t *at, const ldr_epoch_row_t *row);
void ldr_get_epoch(const uint8_t *at, ldr_epoch_row_t *row);
void ldr_put_removal(uint8_t *at, const ldr_removal_row_t *row);
bool ldr_get_removal(const uint8_t *at, ldr_removal_row_t *row);

/* ---- PEER_SPACE: the tenant's name, then as SPACE ---- */

#define LDR_PEER_SPACE_BYTES (LDR_TENANT_MAX + 1 + LDR_SPACE_MSG_BYTES)
size_t ldr_put_peer_space(uint8_t *at, const char *tenant,
                          const ldr_space_msg_t *m);
bool ldr_get_peer_space(const uint8_t *at, size_t bytes,
                        char tenant[LDR_TENANT_MAX + 1], ldr_space_msg_t *m);

/* ---- ASK, GET, PUT, HOME: a head and rows, in requests and replies ---- */

typedef struct ldr_peer_head {
    uint32_t space; /* the other node's number of it */
    uint32_t epoch;
    uint32_t count;  /* of rows */
    uint32_t shards; /* ASK: of a chunk; PUT: LDR_PUT_... */
    const uint8_t *rows;
    /* ASK's reply: ids of other members, 8 bytes each, behind the rows. */
    const uint8_t *others;
    uint32_t other_count;
} ldr_peer_head_t;

/* In ASK's reply 4 bytes for each shard: its length, 0: the member lacks it,
 * LDR_FOUND_PROMISED: it is promised there and has not come. Then the member
 * says so once (LDR_PEER_CLOSED) when the last such chunk of the ask has come
 * or failed; only who asked with LDR_ASK_PROMISED is told so. In the upper
 * bits, from 1 on, which of `others` it should be fetched from instead. Only
 * who asked with LDR_ASK_OTHERS is told so. Who asked with LDR_ASK_HOMES is
 * told LDR_FOUND_AT of what the member lacks itself: that one of `others`
 * should have the chunk, and is to be asked. */
#define LDR_FOUND_BITS 26u
#define LDR_FOUND_LENGTH ((1u << LDR_FOUND_BITS) - 1)
#define LDR_OTHERS_MAX ((1u << (32 - LDR_FOUND_BITS)) - 1)
#define LDR_FOUND_PROMISED LDR_FOUND_LENGTH
#define LDR_FOUND_AT (LDR_FOUND_LENGTH - 1)
_Static_assert(LARDER_VALUE_MAX < LDR_FOUND_AT, "a length has its bits");

typedef struct ldr_peer_found {
    uint32_t length; /* or 0, LDR_FOUND_PROMISED, LDR_FOUND_AT */
    uint32_t other;  /* which of `others`, from 1 on; 0: none */
} ldr_peer_found_t;

#define LDR_PEER_FOUND_BYTES 4u
#define LDR_PEER_OTHER_BYTES 8u
/* Of one shard; the caller has counted the shards and rows. */
void ldr_put_peer_found(uint8_t *at, const ldr_peer_found_t *m);
ldr_peer_found_t ldr_get_peer_found(const uint8_t *at);
/* Whether it says nothing at all of the shard. */
bool ldr_peer_found_none(const uint8_t *at);

/* A PUT whose sender keeps the shards on its own disk as well: they have one
 * copy fewer to go to. Else 1. */
#define LDR_PUT_KEPT 2u

#define LDR_PEER_HEAD_BYTES 16u
size_t ldr_put_peer_head(uint8_t *at, const ldr_peer_head_t *m);
/* row_bytes: of one row; 0: 4 bytes for each shard, as in ASK's reply, and
 * others may follow. */
bool ldr_get_peer_head(const uint8_t *at, size_t bytes, uint32_t row_bytes,
                       ldr_peer_head_t *m);
void ldr_put_peer_other(uint8_t *at, uint64_t id);
/* which: as in an ldr_peer_found_t. False: none, or not one of the reply's. */
bool ldr_get_peer_other(const ldr_peer_head_t *m, uint32_t which,
                        uint64_t *id_p);

/* ASK and GET: a chunk or a shard. */
typedef struct ldr_peer_name {
    larder_key_t key;
    uint16_t group, shard;
    /* GET: bytes that the asker has for it; and LDR_GET_CHECK. ASK:
     * milliseconds for which it is to stay, 0: the asker does not mean to fetch
     * it; and LDR_ASK_*. */
    uint32_t room;
} ldr_peer_name_t;

#define LDR_ASK_OTHERS (1u << 31)   /* the asker knows what others are */
#define LDR_ASK_PROMISED (1u << 30) /* ... and waits for what is promised */
#define LDR_ASK_HOMES (1u << 29)    /* ... knows what LDR_FOUND_AT is */
#define LDR_ASK_MS (LDR_ASK_HOMES - 1)

/* It came wrong: its holder is to look at it before it sends it again. */
#define LDR_GET_CHECK (1u << 31)

#define LDR_PEER_NAME_BYTES 40u
void ldr_put_peer_name(uint8_t *at, const ldr_peer_name_t *row);
bool ldr_get_peer_name(const uint8_t *at, ldr_peer_name_t *row);

/* PUT's request and GET's reply: a shard whose payload follows. */
typedef struct ldr_peer_shard {
    larder_key_t key, parent;
    uint16_t group, shard;
    uint32_t shards; /* of the chunk */
    uint32_t length, crc;
    uint32_t written_s, expires_s, depth;
    uint32_t pinned;
    larder_status_t status; /* GET: others than OK have no payload */
} ldr_peer_shard_t;

#define LDR_PEER_SHARD_BYTES 100u
void ldr_put_peer_shard(uint8_t *at, const ldr_peer_shard_t *row);
bool ldr_get_peer_shard(const uint8_t *at, ldr_peer_shard_t *row);

/* PUT's reply, for each shard. One that this side does not know is
 * LARDER_E_OTHER. */
#define LDR_PEER_STATUS_BYTES 4u
void ldr_put_peer_status(uint8_t *at, larder_status_t status);
larder_status_t ldr_get_peer_status(const uint8_t *at);

/* ---- HANDOFF ---- */

#define LDR_PEER_CLOSED 0u /* else a larder_handoff_t */

typedef struct ldr_peer_handoff {
    uint32_t what;
    uint32_t space;                  /* the other node's number of it */
    uint8_t about[LARDER_KEY_BYTES]; /* CLOSED: the key; else the token */
} ldr_peer_handoff_t;

#define LDR_PEER_HANDOFF_BYTES (8u + LARDER_KEY_BYTES)
size_t ldr_put_peer_handoff(uint8_t *at, const ldr_peer_handoff_t *m);
bool ldr_get_peer_handoff(const uint8_t *at, size_t bytes,
                          ldr_peer_handoff_t *m);

/* ---- HOME: a head, and rows; the reply has no body ---- */

typedef struct ldr_peer_home {
    larder_key_t key;
    uint16_t group;
    bool gone;       /* the member was asked, and lacks the chunk */
    uint64_t member; /* its id; without gone: the sender's */
} ldr_peer_home_t;

#define LDR_PEER_HOME_BYTES 44u
#define LDR_PEER_HOMES_MAX 1024u /* rows of one message */
void ldr_put_peer_home(uint8_t *at, const ldr_peer_home_t *row);
bool ldr_get_peer_home(const uint8_t *at, ldr_peer_home_t *row);

/* Rows of a chunk of so many shards that one ASK and its reply have room for.
 */
static inline uint32_t ldr_peer_ask_rows(uint32_t shards)
{
    uint32_t found = LDR_PEER_FOUND_BYTES * shards;
    uint32_t row = found > LDR_PEER_NAME_BYTES ? found : LDR_PEER_NAME_BYTES;

    return (LDR_BODY_MAX - LDR_PEER_HEAD_BYTES) / row;
}
