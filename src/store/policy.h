/*
 * Eviction policy, behind a table so that a simulator can drive the very same
 * code. A policy orders slots: small numbers below its capacity, that stand
 * for chunks resident in DRAM. It knows nothing of bytes, keys or locks.
 *
 *   add     a chunk became resident; parent is the slot of the chunk before
 *           it, or LDR_NIL
 *   hold    it must not be chosen until release (leased, or under I/O)
 *   touch   a request used these slots, given in chain order
 *   victim  the slot to evict next, or LDR_NIL; it stays until removed
 *   remove  it is no longer resident, held or not
 *   keep    for the SSD tier: how much a record is worth carrying when its
 *           segment is reclaimed; 0: nothing. Pure.
 *
 * All are O(1) but touch, which is O(slots + their ancestors that lie outside
 * them), and add and release, which may cost O(ancestors) for the first slot
 * of a chain and O(1) for the next in its order, up or down. Hold and release
 * do not nest. Nothing allocates after create. Not thread-safe.
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

typedef struct ldr_policy_ops {
    const char *name;
    ldr_policy_t *(*create)(uint32_t capacity); /* NULL: out of memory */
    void (*destroy)(ldr_policy_t *policy);
    void (*add)(ldr_policy_t *policy, uint32_t slot, uint32_t parent,
                uint32_t depth);
    void (*hold)(ldr_policy_t *policy, uint32_t slot);
    void (*release)(ldr_policy_t *policy, uint32_t slot);
    void (*touch)(ldr_policy_t *policy, const uint32_t *slots, uint32_t count);
    void (*remove)(ldr_policy_t *policy, uint32_t slot);
    uint32_t (*victim)(ldr_policy_t *policy);
    uint32_t (*keep)(const ldr_policy_record_t *record);
} ldr_policy_ops_t;

struct ldr_policy {
    const ldr_policy_ops_t *ops;
};

/* LRU in which every chunk is more recent than its children, so that chains
 * are evicted from their leaves. */
extern const ldr_policy_ops_t ldr_policy_lru;

/* Whether its invariants hold; for tests, it looks at everything. */
bool ldr_policy_lru_check(const ldr_policy_t *policy);
