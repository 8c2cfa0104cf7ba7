/*
 * Promises, and the leases of hand-offs (docs/guide/handoff.md).
 *
 * A prefill engine promises the chain of a request before it computes it. The
 * promise has a slot for each chunk that the prefix needs of each group. A
 * stage that waits for promises (LARDER_STAGE_PROMISED) waits until no slot of
 * its prefix is open. A slot is closed when
 *   - its chunk is committed: the promise holds the chunk from then on;
 *   - its save is refused or given up, or the promiser says that it failed;
 *   - the promiser's session is gone, and 250 ms have passed;
 *   - LATE_NS have passed since the prefill engine has answered.
 *
 * What is held is not evicted. The hold ends when the lease ends: somebody says
 * that it is over, or nobody has renewed it for LEASE_NS.
 *
 * Everything here is under the node's lock. Invariants:
 *  1. A slot is in the table exactly while its promise exists.
 *  2. waits->on == slot exactly while the wait is in slot->waits; the slot is
 *     open then. Whoever closes a slot takes its waits off and calls ready().
 *  3. slot->chunk != LDR_NIL exactly while the promise holds that chunk, whose
 *     pages are counted in its tenant's promised_pages.
 */
#pragma once

#include "node/node.h"
#include "node/stage.h"

#define LDR_PROMISE_LEASE_NS ((uint64_t)30 * 1000000000) /* without renewal */
#define LDR_PROMISE_LATE_NS ((uint64_t)5 * 1000000000)   /* after the answer */
#define LDR_PROMISE_GONE_NS ((uint64_t)250 * 1000000)    /* see owner_gone() */
#define LDR_PROMISE_LIFE_NS ((uint64_t)600 * 1000000000) /* before it */
#define LDR_PROMISE_SLOTS_MAX 65536u                     /* of one tenant */
#define LDR_PROMISE_DRAM_PART 4u /* one in so many pages may be held */

/*
 * Promises a prefix. owner: who will fill it, not 0; see
 * ldr_promise_owner_gone(). What is there already is held at once.
 * E_LIMIT: the tenant has promised too much; E_NO_MEMORY; E_INVALID: the token
 * is in use.
 */
larder_status_t ldr_promise_make(ldr_node_t *node, const ldr_prefix_t *p,
                                 const larder_token_t *token, uint64_t owner);

/* space: that of a session of the promise's tenant; what comes late is counted
 * there. LARDER_MISS: the tenant has no such promise, or not any more. */
larder_status_t ldr_promise_tell(ldr_node_t *node, uint32_t space,
                                 const larder_token_t *token,
                                 larder_handoff_t what);

/* Who promised is gone. What was not answered is over at once. Of what was,
 * commits of the engine's other sessions may still be on their way: open slots
 * are closed 250 ms later. */
void ldr_promise_owner_gone(ldr_node_t *node, uint64_t owner);

/* Ends what is due. Gives when to look next; UINT64_MAX: there is nothing. A
 * daemon has a timer for that. */
uint64_t ldr_promise_expire(ldr_node_t *node);
/* The same, with the lock. An embedded node has no timer: whoever wants memory,
 * waits or counts calls this first. */
uint64_t ldr_promise_due(ldr_node_t *node);

/* True: a slot of the prefix is open, and the wait is for it: ready() will be
 * called. The caller asks again then. */
bool ldr_promise_await(ldr_node_t *node, const ldr_prefix_t *p,
                       ldr_promise_wait_t *wait);
/* The same for one chunk, with the lock. OK: it is open, and ready() will be
 * called; PRESENT: it is open, and another wait has the same ready() and arg;
 * MISS: it is not open. */
larder_status_t ldr_promise_watch(ldr_node_t *node, uint32_t space,
                                  uint32_t group, const larder_key_t *key,
                                  ldr_promise_wait_t *wait);
/* Whether somebody has promised it and it has not come. With the lock. */
bool ldr_promise_open(ldr_node_t *node, uint32_t space, uint32_t group,
                      const larder_key_t *key);
/* ready() is not called from here on. */
void ldr_promise_unawait(ldr_node_t *node, ldr_promise_wait_t *wait);
/* For embedded nodes: waits until no slot is open, or the deadline. */
void ldr_promise_wait_all(ldr_node_t *node, const ldr_prefix_t *p,
                          uint64_t deadline_ns);

/* ---- what saves say; with the lock ---- */

/* Whether somebody has promised this chunk: it is not declined then. */
bool ldr_promise_wants(const ldr_node_t *node, uint32_t space, uint32_t group,
                       const larder_key_t *key);
/* A shard of the chunk has been committed, and the chunk is held. */
void ldr_promise_committed(ldr_node_t *node, uint32_t chunk);
/* A save of the chunk has failed. */
void ldr_promise_failed(ldr_node_t *node, uint32_t space, uint32_t group,
                        const larder_key_t *key);

/* Ends all of them: the node closes. */
void ldr_promises_destroy(ldr_node_t *node);
