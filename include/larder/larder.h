/*
 * Larder: a store for the KV cache that LLM engines compute during prefill.
 *
 * This header is the whole public interface and its manual.
 *
 * THE WORDS
 *   node    one running Larder; it owns tiers. Embedded in this process, or a
 *           daemon (`larder serve`) on this host or another.
 *   space   one tenant's use of one model. Bytes never cross spaces.
 *   chunk   the KV of a fixed number of tokens for one group of layers: the
 *           unit that is named (by a key), looked up and evicted.
 *   shard   the part of a chunk that one slice of the KV heads holds: the unit
 *           that is stored and moved. A chunk is usable when all its shards
 *           are present.
 *   chain   the keys of a prompt's chunks, each over its parent.
 *   lease   a hold on bytes while a caller reads or fills them.
 *   tier    a place where shards live: dram, ssd, peer, shared.
 *
 * RULES THAT HOLD FOR EVERY CALL
 *   - Memory passed in is the caller's. It is read or written only during the
 *     call, or, for a submitted ticket, until that ticket completes. After a
 *     call returned or a ticket completed Larder never touches it again.
 *   - Outputs are set only on success, except per-item results, which are
 *     always set for every item of a batch that was accepted.
 *   - Any thread may make any call. Only larder_close() must be alone: no other
 *     call on the same handle may be running.
 *   - A wrong argument gives LARDER_E_INVALID, never a crash.
 *   - After fork() the child's copy of a handle answers LARDER_E_FORKED.
 *   - Times are relative, in milliseconds: timeout_ms. LARDER_FOREVER waits.
 *     0 means "the handle's default", option timeout_ms of the URL.
 *
 * STRUCTS THAT GROW
 *   While LARDER_ABI is the same, a program may use a library of another build,
 *   and a library a daemon of another build. These rules make that possible:
 *   - Parameters begin with field_mask. A field that has a bit is read only if
 *     the bit is set. New fields come at the end, each with a new bit; a bit
 *     that the library does not know is LARDER_E_UNSUPPORTED, so that nothing
 *     that was asked for is left out in silence.
 *   - What Larder fills begins with struct_bytes: sizeof, set by the caller.
 *     Larder fills no more than that, and sets it to what it filled. New fields
 *     come at the end. larder_move_t is read and filled: if a newer caller sets
 *     a field that the library does not know to anything but 0, the call gives
 *     LARDER_E_UNSUPPORTED.
 *   - Elements of arrays, and structs inside other structs, keep their size.
 *     Those that Larder fills have spare fields (reserved, 0). A new property
 *     of an element comes as a second array in the parameters.
 *   - An array with a place for each tier or cause has LARDER_TIERS_MAX or
 *     LARDER_CAUSES_MAX places, of which the first LARDER_TIER_COUNT or
 *     LARDER_CAUSE_COUNT are used and the others 0. A new tier takes a free
 *     place.
 *   - Statuses, causes and tiers are added at the end, and no number is used
 *     twice. If a newer daemon answers with a number that the library does not
 *     know, the caller gets LARDER_CAUSE_OTHER for a cause, the last tier for a
 *     tier, LARDER_MISS for an item's status above zero, and LARDER_E_OTHER for
 *     any other status. An unknown answer never becomes LARDER_OK.
 *
 * CAVEATS
 *   - It is a cache. A put may be forgotten at any time (eviction, a full
 *     disk, a restart before write-behind), and a get may answer
 *     LARDER_MISS for a key that was put. A get never gives other bytes.
 *   - Only the first put of a shard counts. A later one gives LARDER_PRESENT,
 *     and its bytes are not read.
 *   - Callers of one process trust each other, and so do the processes of one
 *     tenant on a daemon, unless it runs with isolation=strict.
 *   - A daemon that cannot be reached, or does not answer in time, means
 *     misses (cause offline or deadline) and saves that are not kept
 *     (E_OFFLINE, E_DEADLINE). It costs at most one deadline every breaker_ms;
 *     calls in between are answered at once. The handle connects again by
 *     itself.
 */
#ifndef LARDER_LARDER_H
#define LARDER_LARDER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LARDER_VERSION_MAJOR 0
#define LARDER_VERSION_MINOR 1
#define LARDER_VERSION_PATCH 0

#if defined(__GNUC__)
#define LARDER_API __attribute__((visibility("default")))
#else
#define LARDER_API
#endif

#define LARDER_KEY_BYTES 32
#define LARDER_SHARDS_MAX 128
#define LARDER_GROUPS_MAX 64
#define LARDER_TABLES_MAX 64
#define LARDER_VALUE_MAX ((size_t)60 << 20) /* bytes in one shard */
#define LARDER_BATCH_MAX 4096               /* items (shards) in one call */
#define LARDER_IOV_MAX 4096                 /* buffers in one item */
#define LARDER_LABEL_MAX 64                 /* bytes of a space's label */
#define LARDER_FOREVER UINT32_MAX

/* ---- status -------------------------------------------------------------
 *
 * One type for everything. Zero and above: the call did its work. Below zero,
 * grouped by the largest thing that is damaged: the request (-1...), the
 * handle (-40...), the node or one of its tiers (-60...).
 */
#define LARDER_STATUS_MAP(X)                                                   \
    X(LARDER_OK, 0, "ok")                                                      \
    X(LARDER_PRESENT, 1, "already present")                                    \
    X(LARDER_MISS, 2, "miss")                                                  \
    X(LARDER_PENDING, 3, "in progress")                                        \
    X(LARDER_DECLINED, 4, "not kept: what is there is worth more")             \
    X(LARDER_PARTIAL, 5, "done here, but not on every node of the cluster")    \
    X(LARDER_E_INVALID, -1, "invalid argument")                                \
    X(LARDER_E_SIZE, -2, "size does not fit")                                  \
    X(LARDER_E_OVERLAP, -3, "buffers overlap")                                 \
    X(LARDER_E_SPACE, -4, "wrong space")                                       \
    X(LARDER_E_FULL, -5, "everything in the arena is leased")                  \
    X(LARDER_E_DEADLINE, -6, "deadline passed")                                \
    X(LARDER_E_CANCELED, -7, "canceled")                                       \
    X(LARDER_E_BUSY, -8, "busy: over a rate, or too many in flight")           \
    X(LARDER_E_MISMATCH, -9, "present with other bytes")                       \
    X(LARDER_E_STALE, -10, "the space was reset meanwhile")                    \
    X(LARDER_E_LIMIT, -11, "a limit was reached")                              \
    X(LARDER_E_UNSUPPORTED, -12, "not supported here")                         \
    X(LARDER_E_CLOSED, -40, "handle is closed")                                \
    X(LARDER_E_FORKED, -41, "handle belongs to the parent process")            \
    X(LARDER_E_POISONED, -42, "handle is poisoned by a broken invariant")      \
    X(LARDER_E_NO_MEMORY, -60, "out of memory")                                \
    X(LARDER_E_TIER_OFF, -61, "tier is off")                                   \
    X(LARDER_E_IO, -62, "input/output error")                                  \
    X(LARDER_E_LOCKED, -63, "directory is in use by another node")             \
    X(LARDER_E_VERSION, -64, "unknown format version")                         \
    X(LARDER_E_CORRUPT, -65, "corrupt")                                        \
    X(LARDER_E_DROPPED, -66, "some saves were dropped before they arrived")    \
    X(LARDER_E_SECRET, -67, "another secret is in use for this tenant")        \
    X(LARDER_E_OFFLINE, -68, "node cannot be reached")                         \
    X(LARDER_E_DENIED, -69, "not allowed")                                     \
    X(LARDER_E_OTHER, -70, "a failure that only a newer version knows")

typedef enum larder_status {
#define X(name, value, text) name = (value),
    LARDER_STATUS_MAP(X)
#undef X
} larder_status_t;

/* A constant string, also for values that are no status. Never NULL. */
LARDER_API const char *larder_status_text(larder_status_t status);

/* Why this thread's last call on any handle failed: the object, the cause and
 * what to do. "" if it did not fail. Valid until the thread's next call. */
LARDER_API const char *larder_last_error(void);

/* Why a get, exists or stage of an item was a miss. */
#define LARDER_CAUSE_MAP(X)                                                    \
    X(LARDER_CAUSE_NONE, "none")                                               \
    X(LARDER_CAUSE_ABSENT, "absent")     /* never seen here */                 \
    X(LARDER_CAUSE_EVICTED, "evicted")   /* was here, and was evicted */       \
    X(LARDER_CAUSE_CORRUPT, "corrupt")   /* a check failed */                  \
    X(LARDER_CAUSE_STALE, "stale")       /* its space was reset, or its TTL */ \
    X(LARDER_CAUSE_DEADLINE, "deadline") /* not in time */                     \
    X(LARDER_CAUSE_TIER_OFF, "tier_off") /* only on a tier that is off */      \
    X(LARDER_CAUSE_FULL, "full")         /* no room in dram to stage it */     \
    X(LARDER_CAUSE_IO, "io")             /* the read failed */                 \
    X(LARDER_CAUSE_OFFLINE, "offline")   /* the node could not be reached */   \
    X(LARDER_CAUSE_PAUSED, "paused")     /* the node is paused */              \
    X(LARDER_CAUSE_OTHER, "other")       /* one that only the daemon knows */

typedef enum larder_cause {
#define X(name, text) name,
    LARDER_CAUSE_MAP(X)
#undef X
        LARDER_CAUSE_COUNT
} larder_cause_t;

/* The name of a cause, constant. Never NULL. */
LARDER_API const char *larder_cause_text(larder_cause_t cause);

#define LARDER_TIER_MAP(X)                                                     \
    X(LARDER_TIER_DRAM, "dram")                                                \
    X(LARDER_TIER_SSD, "ssd")                                                  \
    X(LARDER_TIER_SHARED, "shared") /* storage that several nodes use */       \
    X(LARDER_TIER_PEER, "peer")     /* other nodes of the cluster */

typedef enum larder_tier {
#define X(name, text) name,
    LARDER_TIER_MAP(X)
#undef X
        LARDER_TIER_COUNT
} larder_tier_t;

/* The name of a tier, constant. Never NULL. */
LARDER_API const char *larder_tier_text(larder_tier_t tier);

#define LARDER_TIERS_MAX 8
#define LARDER_CAUSES_MAX 32

/* ---- handles ------------------------------------------------------------ */

typedef struct larder larder_t;             /* an open node */
typedef struct larder_space larder_space_t; /* a space opened on it */
typedef struct larder_lease larder_lease_t; /* a hold on staged shards */

typedef enum larder_log_level {
    LARDER_LOG_ERROR,
    LARDER_LOG_WARN,
    LARDER_LOG_INFO,
    LARDER_LOG_DEBUG
} larder_log_level_t;

/* Larder calls it from any thread and may hold its locks meanwhile. So it must
 * not call Larder, and must not block. */
typedef void (*larder_log_fn)(void *arg, larder_log_level_t level,
                              const char *line);

/* Parameters: set the bit of each field you fill; the rest keep their defaults.
 * A NULL pointer means all defaults. */
enum {
    LARDER_OPEN_LOG = 1u << 0,
};

typedef struct larder_open_params {
    uint64_t field_mask;
    larder_log_fn log; /* default: warnings and errors to stderr */
    void *log_arg;
} larder_open_params_t;

/*
 * Opens a node. url says where it is:
 *
 *   embed:DIR[,DIR...]?option=value&...   in this process. Each DIR holds a
 *       part of the SSD tier; use one DIR for each disk. A DIR is created if it
 *       does not exist, and locked until the handle is closed. "embed:" without
 *       a DIR is DRAM only.
 *   unix:PATH?...            a daemon on this host, through shared memory
 *   tcp://HOST:PORT[,...]?...  a daemon elsewhere; several addresses are
 *       alternatives for the same one
 *
 * The options are listed by `larder options` and in docs/reference/options.md;
 * sizes take K, M, G, T (powers of 1024).
 *
 *   larder_t *lar = NULL;
 *   st = larder_open("embed:/var/cache/kv?dram=4G&ssd=100G", NULL, &lar);
 *   st = larder_open("unix:/run/larder/larder.sock", NULL, &lar);
 *
 * Fails with LARDER_E_INVALID (a bad URL), _LOCKED, _VERSION, _CORRUPT (both
 * superblocks damaged), _NO_MEMORY, _IO, _DENIED (this process may not create
 * or write the directory: no permission, not a directory, read-only). If a disk
 * is full or failing, opening succeeds and that disk starts off.
 * With a daemon also _OFFLINE (it cannot be reached; not with connect=lazy),
 * _DENIED (the daemon refuses the token, the uid or the certificate), _VERSION
 * (no protocol version in common). Opening takes at most timeout_ms, plus the
 * time that the system's resolver needs for HOST.
 */
LARDER_API larder_status_t larder_open(const char *url,
                                       const larder_open_params_t *params,
                                       larder_t **lar_p);

/*
 * Writes down what it can within the timeout, ends every lease and ticket of
 * the handle, frees it and sets *lar_p to NULL. A NULL handle is fine, so that
 * a second close of the same variable does nothing. LARDER_E_DEADLINE: the
 * handle is closed, and saves that were only in DRAM are lost. If a disk still
 * has not answered a request two seconds later, the node's memory and threads
 * are left behind for good, and the log says so. Spaces and leases of the
 * handle answer LARDER_E_CLOSED from then on; the caller still frees them. A
 * daemon keeps what was saved and writes it down by itself: closing waits only
 * until the daemon knows of every save.
 */
LARDER_API larder_status_t larder_close(larder_t **lar_p, uint32_t timeout_ms);

/* ---- spaces ------------------------------------------------------------- */

enum {
    LARDER_SPACE_TENANT = 1u << 0,
    LARDER_SPACE_SECRET = 1u << 1,
    LARDER_SPACE_SHARDS = 1u << 2,
    LARDER_SPACE_CHUNK_TOKENS = 1u << 3,
    LARDER_SPACE_LABEL = 1u << 4,
    LARDER_SPACE_CHUNK_BYTES = 1u << 5,
    LARDER_SPACE_PAGE_TOKENS = 1u << 6,
};

/*
 * Everything that changes what the bytes mean goes into the descriptor: model
 * fingerprint, dtype, layout, groups... Larder hashes it and does not read it.
 * Tenant, shards and chunk_tokens are hashed with it. The label is not: it is
 * only shown beside the space's id. Its first LARDER_LABEL_MAX bytes count, and
 * a byte that is not printable ASCII is shown as '?'. The node keeps the last
 * label that it was given.
 */
typedef struct larder_space_params {
    uint64_t field_mask;
    const void *descriptor; /* required, 1 byte to 64 KiB */
    size_t descriptor_bytes;
    const char *tenant; /* default "default"; at most 63 bytes. On a daemon the
                           tenant is the session's, option tenant of the URL:
                           another one here is LARDER_E_DENIED */
    const void *secret; /* default: a documented constant */
    size_t secret_bytes;
    uint32_t shards;       /* per chunk, 1...128; default 1 */
    uint32_t chunk_tokens; /* tokens per chunk, 1...65536; default 256 */
    const char *label;     /* what people call it, such as "Qwen3-8B bf16" */
    /* Bytes of a chunk over all shards and groups. All users of the space must
     * give the same number: it changes the keys of larder_chain(), not the
     * space's name. A cluster then keeps runs of consecutive chunks, at most
     * 16 MiB each, on one member. 0: it places every chunk by itself. */
    uint64_t chunk_bytes;
    /* A space that SGLang's servers with pages of so many tokens share, which
     * divide chunk_tokens: larder_chain() makes SGLang's page hashes, each
     * chunk's key that of its last page, and chunk_bytes counts for nothing. It
     * is no part of the space's name: the descriptor should have it. 0:
     * Larder's own keys */
    uint32_t page_tokens;
} larder_space_params_t;

/* Opens a space. The same parameters give the same space on every node. A node
 * and its directories remember a check value of each tenant's secret: the
 * secret that the operator configured, or else the one of the tenant's first
 * save, remove or reset. Another secret gives LARDER_E_SECRET: here, or, if the
 * space was open before, at the next save, remove or reset. A directory that is
 * off is not asked. */
LARDER_API larder_status_t
larder_space_open(larder_t *lar, const larder_space_params_t *params,
                  larder_space_t **space_p);

/* Frees the handle (never the data) and sets it to NULL. NULL is fine. */
LARDER_API void larder_space_close(larder_space_t **space_p);

/* Drops everything in the space, in O(1) and durably: after LARDER_OK no get
 * gives bytes that were put before the reset, not even after a loss of power.
 *
 * LARDER_E_IO: dropped in this process, but a directory could not record it.
 * That directory stays off until it can.
 *
 * LARDER_E_TIER_OFF: dropped on this node. The shared tier could not record it:
 * until it has, this node uses nothing of the space there, but other nodes may.
 *
 * LARDER_E_LIMIT: nothing was dropped. A directory records the resets of 2,000
 * spaces at most (a tenant's: of half of them, if there are several tenants).
 *
 * LARDER_E_DEADLINE in an embedded node: dropped in this process, and recorded
 * as soon as the disk answers. On a daemon, and with LARDER_E_OFFLINE: it may
 * or may not have happened. */
LARDER_API larder_status_t larder_space_reset(larder_space_t *space,
                                              uint32_t timeout_ms);

/* ---- chains ------------------------------------------------------------- */

typedef struct larder_key {
    uint8_t hash[LARDER_KEY_BYTES];
} larder_key_t;

/* Names a lease in other processes: larder_lease_token(). */
typedef struct larder_token {
    uint8_t bytes[16];
} larder_token_t;

enum {
    LARDER_CHAIN_PARENT = 1u << 0,
    LARDER_CHAIN_SALT = 1u << 1,
    LARDER_CHAIN_EXTRA = 1u << 2,
};

/* Extra bytes of one chunk: what besides its tokens changes its KV (an
 * adapter, an image in it). */
typedef struct larder_extra {
    const void *data;
    size_t bytes;
} larder_extra_t;

typedef struct larder_chain_params {
    uint64_t field_mask;
    const larder_key_t *parent; /* continue after this key */
    const void *salt;           /* of the whole chain; only without parent */
    size_t salt_bytes;
    const larder_extra_t *extra; /* one per chunk */
} larder_chain_params_t;

/* Hashes the full chunks of token_count tokens into keys: token_count /
 * chunk_tokens of them, which must not exceed keys_max. Tokens after the last
 * full chunk are ignored. Pure computation. */
LARDER_API larder_status_t larder_chain(const larder_space_t *space,
                                        const uint32_t *tokens,
                                        size_t token_count,
                                        const larder_chain_params_t *params,
                                        larder_key_t *keys, size_t keys_max,
                                        size_t *count_p);

/* Why a stage did not try all that it found. */
typedef enum larder_limit {
    LARDER_LIMIT_NONE,
    LARDER_LIMIT_TIER,   /* the rest is in a tier that `tiers` excludes */
    LARDER_LIMIT_SLOWER, /* computing the rest is faster than loading it */
    LARDER_LIMIT_BYTES,  /* more than bytes_max: nothing was tried */
    LARDER_LIMIT_OTHER,  /* a reason that only a newer daemon knows */
    LARDER_LIMIT_COUNT
} larder_limit_t;

typedef struct larder_match {
    uint64_t struct_bytes; /* in: sizeof, out: bytes filled */
    uint32_t chunks;       /* usable, from the first on */
    larder_cause_t cause;  /* why the chunk after the last did not match */
    uint64_t load_us; /* expected time to load all of it, from measured speed */
    uint32_t tier_chunks[LARDER_TIERS_MAX]; /* by the slowest tier needed */
    uint64_t tier_bytes[LARDER_TIERS_MAX];
    /* Of a stage; 0 of a match. found: chunks that were there. tried: how many
     * of them were worth staging (larder_stage_params_t), and limit: why not
     * all. Then, of those that were tried: the expected time and bytes of
     * loading them, and how many of these bytes were below dram. */
    uint32_t found, tried;
    larder_limit_t limit;
    uint32_t reserved;
    uint64_t tried_us, tried_bytes, tried_below_bytes;
} larder_match_t;

/* The longest prefix of the chain that could be loaded now. A lookup in
 * memory: no input or output, nothing held. */
LARDER_API larder_status_t larder_match(larder_space_t *space,
                                        const larder_key_t *keys, size_t count,
                                        uint16_t group, larder_match_t *out);

/* ---- requests -----------------------------------------------------------
 *
 * The node learns from requests which chains come back, and when, and keeps in
 * DRAM what is likely to be used again. So it should see each request once,
 * with its whole chain. larder_stage(), larder_prefix_stage(),
 * larder_prefix_save() and _reserve() announce the chain that they are given;
 * if that is the whole chain, there is nothing to do. A caller that knows more
 * calls larder_announce(). From then on the other calls on this space handle
 * announce nothing.
 */
enum {
    LARDER_HINT_CLASS = 0x03,    /* 1-3: kinds of application whose requests
                                    come back in different ways */
    LARDER_HINT_CLOSED = 0x04,   /* the last request of its session */
    LARDER_HINT_TEMPLATE = 0x08, /* other requests will begin with this chain */
    LARDER_HINT_OVER = 0x10, /* not a request: the session whose last request
                                had this chain is over */
};

enum {
    LARDER_ANNOUNCE_ID = 1u << 0,
    LARDER_ANNOUNCE_TOKENS = 1u << 1,
    LARDER_ANNOUNCE_HINT = 1u << 2,
};

typedef struct larder_announce_params {
    uint64_t field_mask;
    uint64_t id;     /* the same number means the same request, announced again;
                        without one: the same chain within a second */
    uint32_t tokens; /* of the whole prompt; default: those of its chunks */
    uint32_t hint;   /* LARDER_HINT_*; a wrong one costs hits */
} larder_announce_params_t;

/* Announces a request: give the whole chain, not only what was found, before
 * staging it. Nothing is looked up and nothing is held. If the daemon cannot be
 * reached the call still gives LARDER_OK. */
LARDER_API larder_status_t
larder_announce(larder_space_t *space, const larder_key_t *keys, size_t count,
                const larder_announce_params_t *params, uint32_t timeout_ms);

/* ---- routers ------------------------------------------------------------ */

enum {
    LARDER_DESCRIBE_KIND = 1u << 0,
    LARDER_DESCRIBE_WINDOW = 1u << 1,
    LARDER_DESCRIBE_NUMBERS = 1u << 2,
};

/* What an engine calls its blocks, for routers. */
typedef struct larder_describe_params {
    uint64_t field_mask;
    const char *pod;       /* the engine, 1 to 63 bytes without '@' */
    const char *model;     /* as routers know it, 1 to 127 bytes */
    uint32_t block_tokens; /* divides the space's chunk_tokens */
    uint32_t hash_bytes;   /* of a block's hash, 1 to 32 */
    uint16_t group;        /* the store's number of the group */
    uint16_t reserved;
    uint32_t group_idx;  /* the engine's number of it */
    const char *kind;    /* the engine's word for it, up to 31 bytes */
    uint32_t window;     /* tokens; 0: none */
    uint32_t is_numbers; /* 1: hashes are numbers of 8 bytes, big-endian */
} larder_describe_params_t;

/*
 * Tells a daemon which tokens the chunks hold and how the engine names the
 * blocks in them, so that the daemon can tell routers where a prompt is.
 *   first   the number of the first chunk
 *   keys    the keys of `count` chunks from that one on
 *   tokens  the tokens of the prompt up to the end of these chunks
 *   hashes  the hashes of all blocks in these chunks, hash_bytes each
 *   parent  the hash of the block before them; NULL if first is 0
 * The chunks need not be saved yet.
 *
 * LARDER_DECLINED: the node does not collect this (option query, and every
 * embedded node). That costs no round trip.
 */
LARDER_API larder_status_t larder_describe(
    larder_space_t *space, const larder_key_t *keys, size_t first, size_t count,
    const uint32_t *tokens, const void *hashes, const void *parent,
    const larder_describe_params_t *params, uint32_t timeout_ms);

/* ---- leases ------------------------------------------------------------- */

/*
 * Brings the longest prefix of the chain into DRAM, checks it, and holds it
 * there until larder_release() or larder_close(). match_p->chunks says how many
 * chunks were staged. If none was: LARDER_MISS, and no lease.
 */
LARDER_API larder_status_t larder_stage(larder_space_t *space,
                                        const larder_key_t *keys, size_t count,
                                        uint16_t group, uint32_t timeout_ms,
                                        larder_lease_t **lease_p,
                                        larder_match_t *match_p);

/* Where a leased shard is in memory, for reading in place. Fills up to seg_max
 * segments and sets *seg_count_p to their number; LARDER_E_SIZE (the number is
 * set) if there are more. The memory is valid until the lease is released. It
 * must not be written; a daemon's memory is mapped read-only.
 *
 * Over TCP the first call fetches the shard. LARDER_E_STALE: the daemon that
 * held it is gone. Addresses that were given before stay readable until the
 * lease is released, but the bytes there may change. */
LARDER_API larder_status_t larder_lease_segments(const larder_lease_t *lease,
                                                 uint32_t chunk, uint16_t shard,
                                                 struct iovec *seg,
                                                 uint32_t seg_max,
                                                 uint32_t *seg_count_p);

/* Ends a lease and sets it to NULL. NULL is fine. A reservation that was not
 * committed is dropped, and no reader has seen its bytes. */
LARDER_API void larder_release(larder_lease_t **lease_p);

/* ---- shards ------------------------------------------------------------- */

enum {
    LARDER_PUT_PIN = 1u << 0, /* soft pin: evict others first */
    /* larder_move_t: this or another process has announced the request */
    LARDER_PUT_ANNOUNCED = 1u << 1,
};
/* larder_move_t: the hint of a save that announces its request. */
#define LARDER_PUT_HINT(hint) ((uint32_t)(hint) << 8)

typedef struct larder_item {
    const larder_key_t *key;
    const larder_key_t *parent; /* put: the chunk before; NULL: none */
    uint32_t depth;             /* put: chunks before it */
    uint16_t group;
    uint16_t shard;
    const struct iovec *iov; /* put: read from; get: written to */
    uint32_t iov_count;
    uint32_t flags;  /* LARDER_PUT_* */
    uint32_t ttl_ms; /* put: forgotten after this long; 0: never */

    /* results */
    larder_status_t status;
    larder_cause_t cause; /* of a LARDER_MISS */
    size_t length;        /* get, exists: bytes of the shard; exists, if it is
                             on ssd only: rounded up to a block */
} larder_item_t;

typedef enum larder_op {
    LARDER_OP_PUT, /* put if absent; item: OK, PRESENT, DECLINED (other chunks
                      in dram are worth more, and there is no lower tier),
                      E_FULL... */
    LARDER_OP_GET, /* item: OK, MISS with its cause, E_SIZE... */
    LARDER_OP_EXISTS, /* item: OK or MISS; no input or output */
    LARDER_OP_REMOVE, /* item: OK or MISS; durable when it returns */
    LARDER_OP_COUNT
} larder_op_t;

enum {
    LARDER_OP_TIMEOUT = 1u << 0,
    LARDER_OP_FLAGS = 1u << 1,
    LARDER_OP_USER = 1u << 2,
};

enum {
    LARDER_VERIFY_PUT = 1u << 0, /* compare with what is present; E_MISMATCH */
};

typedef struct larder_op_params {
    uint64_t field_mask;
    uint32_t timeout_ms;
    uint32_t flags;
    void *user; /* comes back with the completion */
} larder_op_params_t;

/*
 * Runs a batch and waits for it. LARDER_OK means that the batch was carried
 * out; each item has its own status. A bad item does not affect the others.
 * E_INVALID: the batch itself was malformed, and no item was looked at.
 *
 * A get whose buffers are smaller than the shard gets E_SIZE and the length,
 * and nothing is written. Larger buffers are filled up to the length. A get
 * that misses may have written to its buffers. Buffers must not overlap each
 * other: E_OVERLAP if Larder notices.
 */
LARDER_API larder_status_t larder_run(larder_space_t *space, larder_op_t op,
                                      larder_item_t *items, size_t count,
                                      const larder_op_params_t *params);

/* ---- saving in place ----------------------------------------------------
 *
 * For devices that can write into the arena themselves (a GPU, a NIC): reserve
 * memory, write into it, commit. No reader sees a reserved shard before it is
 * committed. larder_release(), larder_close() and the end of the process drop
 * it. Reserved shards count against the handle's option leases.
 *
 *   st = larder_reserve(space, items, lengths, n, 0, &lease);
 *   for each item with status LARDER_OK:
 *       st = larder_reserve_segments(lease, i, seg, SEGS, &segs);
 *       ... fill them; crcs[i] = larder_crc32c() of their source ...
 *   st = larder_commit(&lease, NULL, crcs, statuses, 0);
 */

/* Reserves lengths[i] bytes for each item (its iov is not used). The item's
 * status is LARDER_OK, LARDER_PRESENT, E_FULL, E_SIZE... *lease_p is NULL if
 * nothing was reserved. */
LARDER_API larder_status_t larder_reserve(larder_space_t *space,
                                          larder_item_t *items,
                                          const size_t *lengths, size_t count,
                                          uint32_t timeout_ms,
                                          larder_lease_t **lease_p);

/* Where the bytes of item number `item` go: as larder_lease_segments(), but
 * for writing. E_INVALID: nothing is reserved for it. The memory is valid until
 * the lease is committed or released. */
LARDER_API larder_status_t larder_reserve_segments(const larder_lease_t *lease,
                                                   size_t item,
                                                   struct iovec *seg,
                                                   uint32_t seg_max,
                                                   uint32_t *seg_count_p);

/* Makes the shards visible and ends the lease, also if it fails. Each array has
 * one element for each item of the reserve, or is NULL:
 *   keep      zero: this item is dropped; NULL: all are kept
 *   crcs      CRC-32C (Castagnoli) of the item's bytes at their source:
 *             larder_crc32c(). NULL: Larder reads the memory and computes it.
 *             With a daemon by shared memory crcs are required (E_INVALID, and
 *             nothing is kept), because another process of the tenant could
 *             have changed that memory.
 *   statuses  the result of each: LARDER_OK, E_STALE (the space was reset
 *             meanwhile), E_CANCELED (not kept), or its status of the reserve
 * Over TCP the commit sends the bytes. */
LARDER_API larder_status_t larder_commit(larder_lease_t **lease_p,
                                         const uint8_t *keep,
                                         const uint32_t *crcs,
                                         larder_status_t *statuses,
                                         uint32_t timeout_ms);

/* The CRC-32C of bytes that come after those of crc; 0: there are none. */
LARDER_API uint32_t larder_crc32c(uint32_t crc, const void *bytes,
                                  size_t count);

/* ---- tickets ------------------------------------------------------------ */

/* larder_run() without waiting. items, and all that they point to, belong to
 * Larder until the ticket completes. E_BUSY: too many tickets are under way
 * (option tickets); drain some. */
typedef uint64_t larder_ticket_t;

LARDER_API larder_status_t larder_submit(larder_space_t *space, larder_op_t op,
                                         larder_item_t *items, size_t count,
                                         const larder_op_params_t *params,
                                         larder_ticket_t *ticket_p);

typedef struct larder_completion {
    larder_ticket_t ticket;
    larder_status_t status; /* as larder_run() would have returned */
    uint32_t reserved;
    void *user;
} larder_completion_t;

/* Readable while completions wait to be drained. Owned by the handle. */
LARDER_API int larder_event_fd(const larder_t *lar);

/* Takes up to max completions, oldest first; each is given once. Waits up to
 * timeout_ms for the first (0: does not wait). *count_p may be 0. */
LARDER_API larder_status_t larder_drain(larder_t *lar, larder_completion_t *out,
                                        size_t max, uint32_t timeout_ms,
                                        size_t *count_p);

/* Cancels a ticket. It still completes; items that were not finished have
 * E_CANCELED. LARDER_MISS: there is no such ticket, or it has completed. */
LARDER_API larder_status_t larder_cancel(larder_t *lar, larder_ticket_t ticket);

/* ---- the rest ----------------------------------------------------------- */

/* Waits until every save that was accepted before has reached the tier (ssd:
 * and is synced). E_TIER_OFF: the tier is off. E_DROPPED: some saves did not
 * reach it. For ssd: since the node's last flush, some were evicted before they
 * were written, or a write failed. For shared: a write failed during this flush
 * (evictions before the write are only counted: offers_evicted). */
LARDER_API larder_status_t larder_flush(larder_t *lar, larder_tier_t tier,
                                        uint32_t timeout_ms);

/* ---- engine memory ------------------------------------------------------
 *
 * An engine keeps KV in pages: for each layer one page per block, and for each
 * request and group of layers a table of block ids. A layout describes that
 * once; then whole prefixes are saved and loaded by block tables, and Larder
 * makes the list of buffers.
 *
 *   group   layers that share a block table, and a rule: which chunks does a
 *           prefix of n tokens need?
 *             all       every chunk
 *             trailing  those that the last window_tokens - 1 tokens lie in
 *             last      only the last: a state that has seen all before it
 *   shard   one slice of a chunk. It holds the chunk's tokens: all of them
 *           (all), those that a prefix that ends with the chunk can need
 *           (trailing), or the last block's (last).
 *
 * If the layout says what is inside a page (larder_pages_t), the space fixes
 * the slices: ranges of the model's KV heads and layers. Then any engine reads
 * what any other saved, whatever their tensor and pipeline parallel sizes,
 * block sizes and orders of bytes in a page (docs/concepts/layout.md). If it
 * does not, a page is opaque: a shard is one rank's pages of the chunk's
 * blocks, layer by layer, and only a rank with the same memory can use it.
 *
 * A layout is never changed and may be used by any number of threads, with any
 * number of spaces of its chunk_tokens, until it is destroyed. The memory it
 * describes stays the engine's, and must outlive it.
 */

/*
 * Engine memory may be a GPU's. Open the GPU once in a process, give it to the
 * layouts in its memory, and attach it to handles. Close it after them. Larder
 * builds, and runs without a GPU, without anything of CUDA.
 */
typedef struct larder_gpu larder_gpu_t;

enum {
    LARDER_GPU_DEVICE = 1u << 0,
    LARDER_GPU_NVRTC = 1u << 1,
    LARDER_GPU_LOG = 1u << 2,
};

typedef struct larder_gpu_params {
    uint64_t field_mask;
    int device;        /* its number in this process; 0 */
    const char *nvrtc; /* path of libnvrtc; NULL: where the loader looks */
    larder_log_fn log; /* NULL: standard error */
    void *log_arg;
} larder_gpu_params_t;

/* Opens a GPU. E_UNSUPPORTED: there is no CUDA driver. Without libnvrtc, which
 * compiles a small kernel, copies go page by page: one line in the log says so.
 */
LARDER_API larder_status_t larder_gpu_open(const larder_gpu_params_t *params,
                                           larder_gpu_t **gpu_p);
LARDER_API void larder_gpu_close(larder_gpu_t **gpu_p);

/* Registers the memory that a daemon shares with this handle with the GPU: what
 * is mapped now, and what will be mapped later, in the background. Call it once
 * for a handle, before its first use with a layout in GPU memory. */
LARDER_API larder_status_t larder_gpu_attach(larder_t *lar, larder_gpu_t *gpu);

typedef struct larder_gpu_stats {
    uint64_t struct_bytes; /* in: sizeof, out: bytes filled */
    uint64_t registered_bytes, register_ns;
    uint64_t loaded_bytes, saved_bytes;
    uint64_t staged, direct, bounced, plain; /* copies, by way */
    uint64_t failures;                       /* copies that the driver ended */
} larder_gpu_stats_t;

/* What was copied since the GPU was opened. */
LARDER_API larder_status_t larder_gpu_stats(larder_gpu_t *gpu,
                                            larder_gpu_stats_t *out);

/* An allocation: each once, however many layers lie in it. */
typedef struct larder_region {
    const char *name; /* for messages */
    void *base;
    size_t bytes;
} larder_region_t;

/* Where a layer keeps its pages: that of block b at offset + b * stride. Layers
 * of different block tables may share memory, because a block belongs to one
 * table at a time. */
typedef struct larder_layer {
    const char *name; /* for messages */
    uint32_t region;
    uint64_t offset;
    uint64_t stride;
    uint64_t bytes; /* of a page */
} larder_layer_t;

typedef enum larder_rule {
    LARDER_RULE_ALL,
    LARDER_RULE_TRAILING,
    LARDER_RULE_LAST
} larder_rule_t;

/*
 * Layers that are stored together: those with the same rule, the same window,
 * and rows of the same bytes. Each group has a block table of its own, unless
 * the engine groups layers in another way: it may keep the layers of one group
 * in several tables, and layers of several groups in one. Then
 * LARDER_LAYOUT_TABLES says which table a layer has, and what is stored is the
 * same as without. A save skips a shard if one of its layers' tables lacks a
 * block; a load writes every layer's page where that layer's table has a block.
 * Groups that share a table have the same block_tokens.
 */
typedef struct larder_group {
    larder_rule_t rule;
    uint32_t block_tokens;  /* divides chunk_tokens */
    uint32_t window_tokens; /* trailing: what a token sees, itself included */
    const larder_layer_t *layers;
    uint32_t layer_count; /* 0: for matching and staging only */
} larder_group_t;

/*
 * What is inside a page.
 *
 * A model's layer has parts (K, V, scales...), a part has the model's KV heads,
 * and a head has rows: one for each token, or, where the engine packs a block's
 * tokens in a way of its own, one for each block. What is stored has one order,
 * for every engine that computes it: slice, layer, part, head, row, byte.
 *
 * A slice is a range of heads and of layers. The model's heads are cut into as
 * many equal ranges as there are heads, at most 16; its layers at the borders
 * that pipelines of 2 and 4 ranks have (larder_layout_slices()). A rank loads
 * every slice of which it holds some, and saves those that it holds whole.
 */

/* Where a part lies: byte i of row r of this rank's head h at
 * offset + h * head_stride + r * row_stride + i of a block's page. */
typedef struct larder_part {
    uint32_t layer; /* of larder_group_t.layers: whose pages these are */
    uint32_t reserved;
    uint64_t offset;
    uint64_t head_stride;
    uint64_t row_stride;
    uint64_t bytes; /* of a row of one head */
} larder_part_t;

/* One of the model's layers that this rank holds. All of a group's have the
 * same number of parts, of the same bytes, in the same order. */
typedef struct larder_page {
    uint32_t layer; /* its index in the model */
    uint32_t part_count;
    const larder_part_t *parts;
} larder_page_t;

typedef struct larder_pages {
    uint32_t heads;      /* of the model; 1: what all ranks hold alike (MLA) */
    uint32_t head_first; /* that this rank holds, ... */
    uint32_t head_count; /* ... and how many */
    /* Tokens in a row: 1, or the group's block_tokens where a block is opaque.
     * With rule last: block_tokens. */
    uint32_t row_tokens;
    /* The indexes in the model of all the group's layers, ascending, whichever
     * rank holds them. */
    const uint32_t *model_layers;
    uint32_t model_layer_count;
    uint32_t page_count;        /* 0: for matching and staging only */
    const larder_page_t *pages; /* by ascending layer */
} larder_pages_t;

enum {
    LARDER_LAYOUT_NULL_BLOCK = 1u << 0,
    LARDER_LAYOUT_GPU = 1u << 1,
    LARDER_LAYOUT_PAGES = 1u << 2,
    LARDER_LAYOUT_TABLES = 1u << 3,
};

typedef struct larder_layout_params {
    uint64_t field_mask;
    uint32_t chunk_tokens;
    uint32_t block_count; /* of every layer */
    const larder_region_t *regions;
    uint32_t region_count;
    const larder_group_t *groups; /* 1...LARDER_GROUPS_MAX */
    uint32_t group_count;
    uint32_t null_block; /* a block id that stands for none */
    larder_gpu_t *gpu;   /* whose memory the regions are; it outlives this */
    const larder_pages_t *pages; /* one for each group; NULL: opaque */
    uint32_t model_layers;       /* PAGES: layers of the whole model */
    /* TABLES: block tables of a request, 1...LARDER_TABLES_MAX, and the one of
     * every layer, in the order of groups and their layers. Default: group i
     * has table i. */
    uint32_t table_count;
    const uint32_t *layer_tables;
} larder_layout_params_t;

typedef struct larder_layout larder_layout_t;

/* Checks every region and layer, and copies what it needs. If one of them is
 * out of bounds, the call fails with LARDER_E_INVALID or _SIZE; if regions,
 * layers of one table, or rows of one page share bytes, with LARDER_E_OVERLAP.
 * larder_last_error() names it. */
LARDER_API larder_status_t larder_layout_create(
    const larder_layout_params_t *params, larder_layout_t **layout_p);
/* Frees it. NULL is fine. No transfer with it may be under way. */
LARDER_API void larder_layout_destroy(larder_layout_t **layout_p);

/* Shards of a chunk: what larder_space_params_t.shards has to be for spaces
 * that are used with this layout. It follows from the model alone: heads,
 * model_layers of all groups. 1: its pages are opaque, and the space's shards
 * are the caller's to number (larder_move_t.shard). 0: layout is NULL. */
LARDER_API uint32_t larder_layout_slices(const larder_layout_t *layout);
/* How many of these slices this rank saves, and how many it loads. The numbers
 * differ if the rank holds only a part of a slice. If no rank holds a slice
 * whole, no rank saves it, and no chunk that needs it is ever usable. */
LARDER_API uint32_t larder_layout_saves(const larder_layout_t *layout,
                                        uint16_t group);
LARDER_API uint32_t larder_layout_loads(const larder_layout_t *layout,
                                        uint16_t group);

/* Bytes of a group's shards of one chunk that this rank loads; of one that is
 * opaque, its shard. 0: no such group, or no layers. */
LARDER_API size_t larder_layout_bytes(const larder_layout_t *layout,
                                      uint16_t group);
/* How many of a chunk's first blocks in a group no shard holds, because the
 * window, or the state, at the chunk's end does not need them. A save does not
 * read them. 0 also: no such group. */
LARDER_API uint32_t larder_layout_first_block(const larder_layout_t *layout,
                                              uint16_t group);

/* A part of one of a request's block tables: ids[i] is the block at place
 * first + i. */
typedef struct larder_table {
    const uint32_t *ids;
    uint32_t first, count;
} larder_table_t;

/* The longest prefix of the chain, in chunks, for which every group has what
 * it needs; *out sums it up over the groups. Nothing is held. */
LARDER_API larder_status_t larder_prefix_match(larder_space_t *space,
                                               const larder_layout_t *layout,
                                               const larder_key_t *keys,
                                               size_t count,
                                               uint32_t timeout_ms,
                                               larder_match_t *out);

enum {
    LARDER_STAGE_TIERS = 1u << 0,
    LARDER_STAGE_BELOW_PERCENT = 1u << 1,
    LARDER_STAGE_BYTES_MAX = 1u << 2,
    LARDER_STAGE_CHUNK_NS = 1u << 3,
    LARDER_STAGE_DRAM_SPEED = 1u << 4,
    LARDER_STAGE_MEMBER = 1u << 5,
    /* Has no field. Waits, until the deadline at most, for those chunks that
     * are promised (larder_promise()) and have not come yet. */
    LARDER_STAGE_PROMISED = 1u << 6,
};

/* What is worth staging. The rest is reported as found, and stays where it is.
 */
typedef struct larder_stage_params {
    uint64_t field_mask;
    uint32_t tiers; /* 1 << tier for each that may be used; default: all */
    uint32_t below_percent; /* correction of the node's estimate for bytes below
                               dram: they take this much of it; default 100 */
    uint64_t bytes_max;     /* stage nothing if it is more; default: no limit */
    uint64_t chunk_ns;   /* time to compute a chunk: only what loads faster is
                            staged. Default 0: all that is there */
    uint64_t dram_speed; /* bytes a second of loads from dram, measured by the
                            caller; default: as the node measured */
    /* In a cluster: asks this member, too, for what the node does not have, and
     * takes the bytes from it if it has them. It is advice: the name of no
     * member is ignored, and a member that does not have it costs one question.
     * 1 to 63 bytes */
    const char *member;
} larder_stage_params_t;

/* As larder_prefix_match(), and brings the prefix into DRAM and holds it until
 * the lease is released, in one round trip. It waits for disks if it must; with
 * chunk_ns at most half the time of computing the prefix, or twice the expected
 * time of loading it. params NULL: stages all that is there. LARDER_MISS:
 * nothing is held, *lease_p is NULL, and *out says what was found. The bytes
 * are checked when they are loaded. */
LARDER_API larder_status_t larder_prefix_stage(
    larder_space_t *space, const larder_layout_t *layout,
    const larder_key_t *keys, size_t count, const larder_stage_params_t *params,
    uint32_t timeout_ms, larder_lease_t **lease_p, larder_match_t *out);

/* The token of a lease. With it (larder_move_t.token) any process of the tenant
 * loads what the lease holds without another lookup, until the lease ends. All
 * zeros: the lease has none, as in an embedded node. */
LARDER_API larder_status_t larder_lease_token(const larder_lease_t *lease,
                                              larder_token_t *token);

/* ---- hand-offs ----------------------------------------------------------
 *
 * One engine computes a prompt (the prefill side), another goes on with the
 * request (the decode side): docs/guide/handoff.md.
 *
 *   prefill: larder_promise() when the request arrives; larder_prefix_save() as
 *            it computes; larder_handoff(ANSWERED) when it answers, with the
 *            token and the member's name in its answer
 *   decode:  larder_prefix_stage() with LARDER_STAGE_PROMISED, which waits for
 *            what has not come yet, and with LARDER_STAGE_MEMBER, if that is
 *            not its own node; larder_handoff(RENEW) every few seconds until it
 *            is staged; then larder_handoff(OVER)
 *
 * What is promised and there is held: it is not evicted, up to a quarter of the
 * tenant's dram. The hold ends with OVER, or 30 s after the answer or the last
 * renewal. A promise that was not answered ends with the session that made it.
 */
typedef enum larder_handoff {
    LARDER_HANDOFF_ANSWERED = 1, /* all that was computed is being saved: what
                                    has not come 5 s later will not come */
    LARDER_HANDOFF_RENEW,        /* it is still wanted: 30 s from now */
    LARDER_HANDOFF_FAILED,       /* what has not come will not come */
    LARDER_HANDOFF_OVER,         /* it is not needed any more */
    LARDER_HANDOFF_COUNT
} larder_handoff_t;

/* Promises that the chunks which a prefix of all these keys needs will be
 * saved, by whichever session of the tenant. token: the caller's, and of this
 * promise alone: it is made of randomness. member: NULL, or becomes the node's
 * name among the members of its cluster; "": it is in none. E_LIMIT: the tenant
 * has promised 65,536 chunks already. E_UNSUPPORTED: the daemon is older than
 * this. */
#define LARDER_MEMBER_BYTES 64u
LARDER_API larder_status_t larder_promise(
    larder_space_t *space, const larder_layout_t *layout,
    const larder_key_t *keys, size_t count, const larder_token_t *token,
    uint32_t timeout_ms, char member[LARDER_MEMBER_BYTES]);

/* Says something of a promise; any session of the tenant may, any number of
 * times. LARDER_MISS: there is no such promise, or not any more. member: the
 * one that was promised to, which the node tells without waiting for it; NULL
 * or "": the node itself. E_INVALID: the node's cluster has no such member. */
LARDER_API larder_status_t larder_handoff(larder_space_t *space,
                                          const larder_token_t *token,
                                          larder_handoff_t what,
                                          const char *member,
                                          uint32_t timeout_ms);

/* Authenticates bytes under the secret of the space's tenant: an HMAC-SHA-256.
 * Pure computation: the same secret and the same space give the same seal. */
LARDER_API larder_status_t larder_seal(const larder_space_t *space,
                                       const void *data, size_t bytes,
                                       uint8_t seal[LARDER_KEY_BYTES]);

/* What is to be moved, and the result. */
typedef struct larder_move {
    uint64_t struct_bytes;        /* sizeof(larder_move_t) */
    const larder_key_t *keys;     /* of the prompt's chunks in a row */
    const larder_table_t *tables; /* all that the layout has: one for each
                                     group, or table_count */
    uint32_t first_key;           /* the chunk that keys[0] names */
    uint32_t begin, end;          /* tokens */
    uint16_t shard;               /* this rank's; 0 where pages are described */
    uint16_t writers, writer;     /* save: of several ranks with the same bytes
                                     each saves every writers-th chunk */
    uint32_t timeout_ms;
    uint32_t flags;  /* save: LARDER_PUT_* */
    uint32_t ttl_ms; /* save: forgotten after this long; 0: never */
    void *after;     /* GPU: a CUevent that comes first; NULL: none */

    /* results */
    uint32_t shards;      /* that were moved */
    uint32_t present;     /* save: were there already */
    uint32_t skipped;     /* save: some of their blocks are not there, or what
                             is in dram is worth more (DECLINED) */
    uint32_t failed;      /* were not moved, for the first status and cause;
                             none, and item is DECLINED: some were declined */
    uint64_t bytes;       /* of those that were moved */
    larder_status_t item; /* LARDER_OK: none failed, and none was declined */
    larder_cause_t cause;

    /* load: of the lease under which the prefix is staged; zeros: it is looked
     * for by its keys */
    larder_token_t token;
} larder_move_t;

/* Saves every chunk that ends after token `begin` and not after `end`. A shard
 * is skipped if the table does not have one of its blocks, or has the null
 * block for it. LARDER_OK with failed > 0: some shards were not kept. */
LARDER_API larder_status_t larder_prefix_save(larder_space_t *space,
                                              const larder_layout_t *layout,
                                              larder_move_t *move);

/*
 * The same in two steps, for an engine that knows what it will save before it
 * has computed it: memory is reserved while the engine computes, and afterwards
 * there is only a copy to make.
 *
 *   st = larder_prefix_reserve(space, layout, &move, &rooms);   may wait
 *   ... the engine computes ...
 *   st = larder_prefix_fill(&rooms, &move);       copies; by shared memory it
 *                                                 waits for no answer
 *
 * Whatever happens in between, the worst result is that a save is lost:
 *   - the daemon ends or is restarted: the shards are E_OFFLINE in move, and
 *     the fill neither waits for the daemon nor connects to it;
 *   - the space is reset: the node drops the reserved shards and counts them
 *     (saves_stale). By shared memory the caller does not learn of it: they
 *     count as moved. By TCP, and with isolation=strict, the bytes only reach
 *     the node with the fill, and are saved;
 *   - the engine gives the step up: larder_rooms_release();
 *   - the handle is closed: E_CLOSED, and the caller still ends the rooms;
 *   - the process is killed: the node takes the memory back.
 * Until then the reserved memory is used for nothing else, the shards count
 * against the handle's option leases, and another save of the same shard gets
 * LARDER_PRESENT.
 *
 * The space and the layout must stay open, and only one thread at a time may
 * use the rooms, until they are filled or released.
 */
typedef struct larder_rooms larder_rooms_t;

/* Reserves memory for every shard that larder_prefix_save() would save; nothing
 * is read. move says how many were reserved (shards, bytes), are present, were
 * skipped, or failed. Waits for the node, at most move->timeout_ms. On success
 * *rooms_p is set, and the caller must fill or release it.
 * LARDER_E_UNSUPPORTED: the layout is in GPU memory. */
LARDER_API larder_status_t larder_prefix_reserve(larder_space_t *space,
                                                 const larder_layout_t *layout,
                                                 larder_move_t *move,
                                                 larder_rooms_t **rooms_p);

/* Copies the pages into the reserved memory and commits them. move is as it was
 * for the reserve, but may have other tables, and a smaller range from `begin`
 * to `end`: shards outside of that are dropped. Results as with
 * larder_prefix_save(). Shards that could not be reserved because everything
 * was leased (E_FULL, E_LIMIT) are saved last, as larder_prefix_save() does it,
 * which may wait. After move->timeout_ms the rest is dropped: E_DEADLINE. The
 * call always ends the rooms and sets *rooms_p to NULL. */
LARDER_API larder_status_t larder_prefix_fill(larder_rooms_t **rooms_p,
                                              larder_move_t *move);

/*
 * The same with several idle threads of the engine. team(work, arg, 0, 0) calls
 * work(arg) in all of them at once, the calling thread included, and returns
 * when all have returned: OpenMP's GOMP_parallel() is such a function. NULL, or
 * too few bytes to share: the calling thread copies alone.
 */
typedef void (*larder_team_fn)(void (*work)(void *), void *arg,
                               unsigned threads, unsigned flags);

LARDER_API larder_status_t larder_prefix_fill_by(larder_rooms_t **rooms_p,
                                                 larder_move_t *move,
                                                 larder_team_fn team);

/* Drops the reservation; no reader has seen it. NULL is fine. */
LARDER_API void larder_rooms_release(larder_rooms_t **rooms_p);

/* Loads what a prefix of `end` tokens needs into those of its blocks that are
 * after token `begin`. Both are multiples of every group's block_tokens, and
 * `end` also of chunk_tokens, unless every rule is all. Null blocks are not
 * written. LARDER_E_INVALID: the table does not have a block that would be
 * written. LARDER_OK: everything was loaded and checked. Otherwise the contents
 * of these blocks are undefined; other blocks are never written. */
LARDER_API larder_status_t larder_prefix_load(larder_space_t *space,
                                              const larder_layout_t *layout,
                                              larder_move_t *move);

/*
 * A load that begins before its blocks are known. While the engine allocates
 * them, Larder asks the node and, for a layout in GPU memory, already copies
 * the first bytes into a buffer of its own.
 *
 *   gate = 0;
 *   st = larder_prefix_load_early(space, layout, &move, &gate, wait_ms);
 *   ... meanwhile another thread sets what move.tables points to, and
 *       move.after ...
 *   st = larder_gate_open(&gate);    LARDER_OK: the load goes on with these
 *   larder_gate_close(&gate);        or: the load is canceled
 *
 * Until the gate is open the load reads neither of them, and writes no block.
 * move.tables is set from the beginning; its tables are empty until then.
 */

/* As larder_prefix_load(). If the gate is closed, or is not open after wait_ms:
 * LARDER_E_CANCELED, and the load's leases are released. When the call returns
 * the gate is open or closed. */
LARDER_API larder_status_t
larder_prefix_load_early(larder_space_t *space, const larder_layout_t *layout,
                         larder_move_t *move, uint32_t *gate, uint32_t wait_ms);
/* Opens the gate. LARDER_MISS: it is closed already; begin the load again. */
LARDER_API larder_status_t larder_gate_open(uint32_t *gate);
/* Does nothing if the gate is open. */
LARDER_API void larder_gate_close(uint32_t *gate);

/*
 * A load that cannot fail, for engines that cannot handle a failed one: first
 * everything is fetched and checked, into memory that the engine's processes
 * share (a memfd). Later each rank places it, which needs no node.
 *
 *   st = larder_prefix_fetch(space, layout, lease, keys, chunks, NULL, 0,
 *                            timeout_ms, &bytes);           how much it needs
 *   st = larder_prefix_fetch(space, layout, lease, keys, chunks, memory,
 *                            bytes, timeout_ms, &bytes);
 *   st = larder_prefix_place(layout, &move, memory, bytes); in each rank
 */

/* Copies all shards of `chunks` chunks that larder_prefix_stage() staged to
 * memory. *bytes_p is set to the bytes that they need; LARDER_E_SIZE if size is
 * less. LARDER_OK: everything was copied and checked. LARDER_MISS: some of it
 * is gone. */
LARDER_API larder_status_t larder_prefix_fetch(
    larder_space_t *space, const larder_layout_t *layout,
    const larder_lease_t *lease, const larder_key_t *keys, uint32_t chunks,
    void *memory, size_t size, uint32_t timeout_ms, size_t *bytes_p);

/* As larder_prefix_load(), but from the memory of a fetch. move->end is a
 * multiple of chunk_tokens. With keys (up to `end`) the memory must be from a
 * fetch of this prefix; without keys, of one of the same length. If it is not:
 * E_CORRUPT, and nothing is written. */
LARDER_API larder_status_t larder_prefix_place(const larder_layout_t *layout,
                                               larder_move_t *move,
                                               const void *memory, size_t size);

/* ---- statistics --------------------------------------------------------- */

enum {
    LARDER_STATS_DISKS_MAX = 16,
};

typedef struct larder_disk_stats {
    char path[256];
    uint32_t on;
    char reason[128]; /* why it is off or smaller than configured */
    uint64_t bytes_max, bytes_used;
    uint64_t segments, segments_lost;
    uint64_t written_bytes, carried_bytes, read_bytes;
    uint64_t write_errors, read_errors;
    uint64_t reserved[8];
} larder_disk_stats_t;

/* The shared tier as this node knows it. */
typedef struct larder_shared_stats {
    char url[256];
    uint32_t on;       /* it gives shards */
    uint32_t writable; /* and takes them */
    char reason[160];  /* why it does not */
    uint64_t objects, shards;
    uint64_t bytes, dead_bytes;         /* dead: of no use any more */
    uint64_t map_bytes;                 /* memory that this takes here */
    uint64_t waiting_shards;            /* to be written */
    uint64_t read_bytes, written_bytes; /* by this node */
    uint64_t read_errors, write_errors; /* its own */
    uint64_t gone, corrupt;             /* what it read was */
    uint64_t cleaner;                   /* 1: this node cleans up */
    uint64_t cleaned_objects, cleaned_bytes;
    uint64_t reserved[8];
} larder_shared_stats_t;

typedef struct larder_stats {
    uint64_t struct_bytes; /* in: sizeof, out: bytes filled */
    uint64_t saves_stored, saves_present, saves_mismatch;
    uint64_t saves_full, saves_canceled, saves_failed, saves_stale;
    uint64_t saves_dropped_evicted; /* left DRAM before written down */
    uint64_t saves_dropped_size;    /* larger than a segment */
    uint64_t saves_dropped_io;      /* write failed */
    uint64_t loads_dram, loads_ssd;
    uint64_t misses[LARDER_CAUSES_MAX];
    uint64_t evicted_chunks, evicted_bytes;
    uint64_t saved_bytes, loaded_bytes;
    uint64_t entries, entry_bytes; /* index: chunks known, bytes used for it */
    uint64_t dram_bytes, dram_resident_bytes, dram_used_bytes;
    uint64_t dram_leased_chunks, pinned_bytes;
    uint64_t removes, resets;
    uint64_t io_uring; /* 1: io_uring, 0: threads with plain reads/writes */
    uint64_t disks;
    larder_disk_stats_t disk[LARDER_STATS_DISKS_MAX];
    /* Of this handle, when it speaks to a daemon; 0 in an embedded one. */
    uint64_t client_calls;        /* calls that needed the daemon */
    uint64_t client_offline;      /* of those: failed, it was not reachable */
    uint64_t client_breaker;      /* times that the breaker opened */
    uint64_t client_connects;     /* sessions begun, the first included */
    uint64_t client_late_replies; /* came after their call had ended */
    uint64_t client_crc_failures; /* shards whose checksum was wrong */
    /* What the whole node or, with a daemon, the tenant may use at most. */
    uint64_t dram_max_bytes, ssd_max_bytes;
    uint64_t loads_shared;
    uint64_t offers_written, offers_present; /* to the shared tier */
    uint64_t offers_evicted, offers_failed;
    uint64_t shared; /* 1: there is one */
    larder_shared_stats_t shared_tier;
    /* Of this handle: connections that the daemon refused, because this client
     * is not allowed (denied), or has no common protocol version (version). */
    uint64_t client_denied, client_version;
    /* Chunks that engines asked for, each request once, and those found. */
    uint64_t asked_chunks, found_chunks;
    uint64_t loads_peer; /* from other nodes of the cluster */
} larder_stats_t;

/* The figures of the node; with a daemon, those of the session's tenant. If the
 * daemon cannot be asked (LARDER_E_OFFLINE, _DENIED, _VERSION...), client_* are
 * still set, and the others are 0. */
LARDER_API larder_status_t larder_stats(larder_t *lar, larder_stats_t *out);

/* The same figures and more, as Prometheus text. Writes at most size bytes with
 * the terminating NUL. *length_p is the length of the whole text without it. */
LARDER_API larder_status_t larder_metrics(larder_t *lar, char *text,
                                          size_t size, size_t *length_p);

/* ---- the shared tier ----------------------------------------------------
 *
 * Storage that several nodes use (docs/guide/shared.md); option shared gives a
 * node one. Larder writes nothing to a directory before larder_shared_create()
 * made it a tier: it could be a mount point without its mount.
 */

/* Makes the storage at url a tier. url: as option shared has it. login: as
 * option shared_login has it, or NULL. LARDER_PRESENT: it is a tier already. */
LARDER_API larder_status_t larder_shared_create(const char *url,
                                                const char *login,
                                                uint32_t timeout_ms);

/* ---- options of connectors ----------------------------------------------
 *
 * The options of an engine's connector are in the table of all options
 * (docs/reference/options.md, place "connector").
 */

/* The name of the index-th of them; NULL after the last. */
LARDER_API const char *larder_connector_option_name(size_t index);

/* Parses a value of one of them; value NULL: its default. A number (of a word:
 * its index among the words) goes to *number_p; a text goes to text, at most
 * size bytes with its NUL. LARDER_E_INVALID: there is no such option, or it
 * cannot have this value; larder_last_error() says what is possible. */
LARDER_API larder_status_t larder_connector_option(const char *name,
                                                   const char *value,
                                                   uint64_t *number_p,
                                                   char *text, size_t size);

/* The default socket of this host's node. */
LARDER_API larder_status_t larder_default_socket(char *text, size_t size);

/* "0.1.0 (commit, build type, features)"; constant. */
LARDER_API const char *larder_version(void);

/* While this number is the same, structs and calls are those of this header, or
 * have grown as its top says. The library's SONAME ends with it. A binding that
 * was not compiled with this header must compare it with larder_abi() first. */
#define LARDER_ABI 3
LARDER_API uint32_t larder_abi(void);

/* For such a binding: the library's value of a constant of this header, by name
 * ("LARDER_TIERS_MAX", "LARDER_TIER_COUNT"...). 0: it is not one of those. */
LARDER_API uint64_t larder_constant(const char *name);

#ifdef __cplusplus
}
#endif

#endif
