/*
 * Eviction policy, behind a table so that a simulator can drive the very same
 * code. A policy orders slots: small numbers below its capacity, that stand
 * for chunks resident in DRAM. It knows nothing of bytes, keys or locks.
 *
 *   place   a chunk became resident; parent is the slot of the chunk before
 *           it, or LDR_NIL
 *   hold    it must not be chosen until release (leased, or under I/O)
 *   victim  the slot to evict next, or LDR_NIL; it stays until removed
 *   remove  it is no longer resident, held or not
 *   keep    for the SSD tier: how much a record is worth carrying when its
 *           segment is reclaimed; 0: nothing. Pure.
 *   time    the time in tenths of a second from anywhere. It only says what
 *           was announced lately. A step back counts as none.
 *   request a client is about to use this chain: once per request, before the
 *           chunks it lacks are placed, and never for probes (exists, match
 *           without a use). The same request announced again (by ranks, groups
 *           of layers, a scheduler that asks at every step) changes nothing:
 *           it is known by its id, or without one by its chain within a
 *           second. One that a save announces (saves) counts only if nobody
 *           else has announced it within a minute.
 *   admit   whether a chunk that is not resident should become so although
 *           another must go for it. False: victim() is worth more, or is of
 *           the same request; then those below it in the chain should not come
 *           either, and they are not admitted. A chunk of which another group
 *           of layers is resident always is. True: the next victim() is not of
 *           that request, unless there is no other. LRU: true
 *   close   the session whose last request this was is over. LRU: nothing
 *   prefetch a request that begins with this print is expected: asks for the
 *           memory it will need, in steps 2, 1, 0, some time apart. Changes
 *           nothing.
 *   used    a client reads this slot. Of a chain that was announced lately
 *           that is no news; else it makes it and all before it younger. Call
 *           it for every read.
 *
 * A print is 64 bits that tell a chunk with all that is before it from others;
 * it need not be secret or collision-free: two that are equal cost order, never
 * bytes. Groups of layers may share prints, then they share a fate.
 *
 * Cost (docs/concepts/policy.md has the figures): request is O(1) for each run
 * of a chain, place O(runs above) for a chunk of no announced chain; admit and
 * victim look at the oldest of each class. All memory is reserved at create and
 * becomes resident as it is used. Whatever goes wrong in it costs hits: victim
 * gives a slot as long as there is one that is not held, and no other.
 *
 * Hold and release do not nest. Only create allocates. Not thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct ldr_policy ldr_policy_t;

/* What is known of a record on disk when its segment is reclaimed. */
typedef struct ldr_policy_record {
    uint32_t written_s; /* wall clock of the write */
    uint32_t used_s;    /* of the last use */
    uint32_t now_s;
    uint32_t depth;
    bool pinned;
    bool orphan; /* its parent is not in the index any more */
} ldr_policy_record_t;

/* What the caller knows of a request beyond its chain. */
enum {
    LDR_HINT_APP = 0x03,      /* 1-3: kinds of application; 0: not said */
    LDR_HINT_CLOSED = 0x04,   /* nothing will follow in this session */
    LDR_HINT_TEMPLATE = 0x08, /* others will begin with this chain */
};

typedef struct ldr_policy_request {
    uint64_t id;            /* equal for one and the same; 0: not known */
    const uint64_t *prints; /* of all its chunks, the first one first */
    const uint32_t *slots;  /* of those resident, else LDR_NIL; NULL: none is */
    uint32_t count;
    uint32_t tokens; /* of the whole prompt; 0: as many as in the chunks */
    uint32_t chunk_tokens; /* 0: not known. A last chunk that is not full will
                            * not be in the chain of the next turn */
    uint32_t hint;
    bool saves; /* a save announces it, since nobody else did */
} ldr_policy_request_t;

typedef struct ldr_policy_ops {
    const char *name;
    ldr_policy_t *(*create)(uint32_t capacity); /* NULL: out of memory */
    void (*destroy)(ldr_policy_t *policy);
    void (*hold)(ldr_policy_t *policy, uint32_t slot);
    void (*release)(ldr_policy_t *policy, uint32_t slot);
    void (*remove)(ldr_policy_t *policy, uint32_t slot);
    uint32_t (*victim)(ldr_policy_t *policy);
    uint32_t (*keep)(const ldr_policy_record_t *record);
    void (*time)(ldr_policy_t *policy, uint32_t now_ds);
    void (*request)(ldr_policy_t *policy, const ldr_policy_request_t *request);
    bool (*admit)(ldr_policy_t *policy, uint32_t parent, uint32_t depth,
                  uint64_t print);
    void (*place)(ldr_policy_t *policy, uint32_t slot, uint32_t parent,
                  uint32_t depth, uint64_t print);
    void (*close)(ldr_policy_t *policy, const ldr_policy_request_t *request);
    void (*used)(ldr_policy_t *policy, uint32_t slot);
    void (*prefetch)(const ldr_policy_t *policy, uint64_t print, unsigned step);
} ldr_policy_ops_t;

struct ldr_policy {
    const ldr_policy_ops_t *ops;
};

/* LRU in which every chunk is more recent than its children, so that chains
 * are evicted from their leaves: the tree of the other, ranked by age alone. */
extern const ldr_policy_ops_t ldr_policy_lru;

/* Learns which runs of chunks come back, and when, and evicts what is least
 * likely to for the memory it takes; LRU while that would do better. A node
 * runs it by default, and `larder plan` calls it the default. */
extern const ldr_policy_ops_t ldr_policy_default;

typedef struct ldr_policy_stats {
    uint64_t runs; /* ghosts are those with nothing resident anywhere */
    uint64_t ghosts, ghost_chunks;
    uint64_t bytes;       /* in use, that grow with what is resident */
    uint64_t fixed_bytes; /* and that do not: tables */
    uint64_t announced;   /* requests */
    /* Since the cache was full: requests seen, chunks hit, and chunks that LRU
     * would have hit in its place. */
    uint64_t requests, hits, hits_lru;
    bool ranks_lru; /* who decides now, and how often that has changed */
    uint32_t switches;
} ldr_policy_stats_t;

void ldr_policy_default_stats(const ldr_policy_t *policy,
                              ldr_policy_stats_t *out);
