/*
 * Homes: whose disk keeps a chunk (option home).
 *
 * With home=owner what a node saves is brought to the member that owns it, and
 * that one's disk keeps it (save.c). With home=writer the disk of the node that
 * saved it keeps it, and the members of rank 1 and 2 keep one home per chunk:
 * the members whose disks should have it. Whoever asks one of those is told of
 * them and asks them next, all at once: a home costs one more round trip.
 *
 * Save. The shard goes to this node's disk, and its home is announced to the
 * members of rank 1 and 2 (announce.c), unless this node is rank 1 and is asked
 * itself. They may be told before the disk has it: DRAM has it until then.
 *
 * Read. A member of rank 1 or 2 that lacks the chunk answers with its homes,
 * except the asker (server/peer_ops.c). The asker asks those for it (ask.c),
 * with leases, within the same peer_match_ms. If one of them lacks it, the
 * asker says so to the members that named it (GONE).
 *
 * Copy. At the second read by a member that is no home, the owner fetches the
 * chunk for itself, and its disk keeps it (server/peer_copy.c). A member of an
 * older build cannot be told of homes: for it that is done at its first read.
 *
 * Announce. Homes are kept in memory only, `peer_homes` of them at most, and no
 * member asks another for its homes. A member announces all that its disks have
 * again when the other was restarted, when it was restarted itself, when a view
 * makes others the owners, when a disk comes back, and when there was no room
 * for something that was to be announced. One thread goes
 * through the index for that, some entries at a time; it reads keys back from
 * the disk where DRAM has not got them.
 *
 * Which home a save has is decided for each shard, when it is handed out. It is
 * the owner's where
 *   - home=owner, or home=auto and this node has no disk or weight 0;
 *   - this node leaves: what it still saves would go with it;
 *   - no disk of this node takes it, because it is off or failing;
 *   - the owner was met and says that it keeps no homes (an older build);
 *   - another member brought the shard here for this node to keep.
 * With copies=N the writer's disk is one of them: N - 1 owners are brought it.
 *
 * Invariants, all with the node's lock:
 *  1. A home is of one epoch of its space, and found by no other. So a reset
 *     ends all homes of before. Nothing that this node gives out, keeps or
 *     admits depends on a home: bytes that come from one go through admit like
 *     all others (store/store.h), and the one who has them has heard of every
 *     removal that this node has heard of before they talk (meet.c).
 *  2. A home names members by their numbers in peers->nodes. One whose entry
 *     another member has taken since is not found.
 *  3. There are at most `peer_homes` of them. In a set of 8 the one that was
 *     announced or read last longest ago makes room.
 *  4. What a member is to be told stays in its ring `here`, of LDR_HERE_MAX
 *     rows at most, until the member has answered, or the epoch of the row is
 *     over. One lane at a time tells it (here_busy), and only that one takes
 *     rows away.
 *  5. If there was no room in a member's ring, n->here_all is set, and
 *     everything is announced to that member once more.
 *
 * What fails.
 *   A home is wrong (evicted, removed, disk lost): the reader's ask of it is in
 *     vain, one round trip. GONE drops it, unless it was announced within the
 *     last LDR_HOME_NEW_S: the two may have crossed.
 *   A home is lost (owner restarted, table full): misses, until it is announced
 *     again; the disk still has the bytes.
 *   The home is down: the reader cannot ask it, which is unknown, not absent.
 *     Its home stays: it comes back with its disk.
 *   The owner is down: rank 2 has the home as well.
 *   The writer's disk fails after it was announced: as evicted. What is saved
 *     after that goes to the owner.
 *   Members disagree about the view: whoever is asked knows no home, or one of
 *     before: misses until both have the same view and what has moved was
 *     announced.
 */
#pragma once

#include "tier/peer/peer.h"

#define LDR_HOMES_KNOWN 4u  /* members of one chunk */
#define LDR_HOME_NEW_S 10u  /* GONE does not count for so long */
#define LDR_HERE_MAX 16384u /* rows to be told to one member */
#define LDR_HOME_RANKS 2u   /* who are told: those whom readers ask */

/* ---- the table (homes.c), with the lock ---- */

/* NULL: no memory. */
ldr_homes_t *ldr_homes_open(uint64_t most);
void ldr_homes_close(ldr_homes_t *h);

/* This member's disk has the chunk. */
void ldr_home_put(ldr_peer_node_t *n, uint64_t fingerprint, uint32_t epoch);
/* It was asked, and has it not. */
void ldr_home_gone(ldr_peer_node_t *n, uint64_t fingerprint, uint32_t epoch);
/* The members that should have the chunk, but for one (NULL: all of them).
 * Gives how many. */
unsigned ldr_home_find(ldr_peers_t *p, uint64_t fingerprint, uint32_t epoch,
                       const ldr_peer_node_t *but,
                       ldr_peer_node_t *nodes[LDR_HOMES_KNOWN]);
/* A member that is no home of it is about to read it from one. True: this node
 * is to take a copy. */
bool ldr_home_read(ldr_peer_node_t *reader, uint64_t fingerprint,
                   uint32_t epoch);
/* How often ldr_home_read() was so, as far as that matters: this node keeps
 * what it fetches now. */
bool ldr_home_wants_copy(ldr_peers_t *p, uint64_t fingerprint, uint32_t epoch);
uint64_t ldr_homes_count(const ldr_homes_t *h);

/* ---- whose disk (announce.c), with the lock ---- */

/* Whether this node's disk keeps a shard that was saved here. */
bool ldr_home_is_here(ldr_peers_t *p, uint32_t shard);
/* What was saved here and stays here: its owners are to be told. */
void ldr_home_announce(ldr_peers_t *p, uint32_t shard);
/* It was asked for a chunk by a home, and lacks it: those who may have told of
 * it are to hear that. */
void ldr_home_say_gone(ldr_peer_node_t *n, uint32_t space,
                       const larder_key_t *key, uint32_t group);
/* In a lane: tells the member what is next, and drops the lock. False: there is
 * nothing, or not now. */
bool ldr_here_say(ldr_peer_node_t *n);
/* When ldr_here_say() is to be called; UINT64_MAX: there is nothing to say, or
 * another lane says it. */
uint64_t ldr_here_ns(const ldr_peer_node_t *n);
void ldr_here_end(ldr_peer_node_t *n);
/* Whether all that was to be said to members that answer was said. */
bool ldr_here_said(const ldr_peers_t *p);
/* What one member says to this one, in a PEER_HOME. */
void ldr_home_hear(ldr_peer_node_t *n, uint32_t space,
                   const ldr_peer_home_t *row);

/* The thread that announces again. */
void *ldr_peer_announcer(void *peers);

/* ---- copies that the owner takes (server/peer_copy.c takes them) ---- */

#define LDR_COPIES_MAX 256u /* that wait; more are dropped */

typedef struct ldr_peer_copy {
    larder_key_t key;
    uint32_t space;
    uint16_t group, shards;
} ldr_peer_copy_t;

/* With the lock. */
void ldr_copy_want(ldr_peers_t *p, const ldr_peer_copy_t *copy);
/* The next; false: there is none. With the lock. */
bool ldr_copy_next(ldr_peers_t *p, ldr_peer_copy_t *copy);
