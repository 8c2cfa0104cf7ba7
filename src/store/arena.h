/*
 * The arena: the memory of the DRAM tier, as pages with a side table. A shard
 * is a list of pages, linked through the table, so that no mix of sizes can
 * fragment it.
 *
 * Pages lie in extents, each a memfd of its own. An extent belongs to one
 * tenant or to nobody, and a tenant gets pages from its own extents only:
 *
 *           claim              leave             last page and mapper gone
 *   FREE ----------> OWNED ----------> LEAVING -------------------------->
 * EMPTY ^                                                     |
 *                      `--- RENEWING: other memory, next generation <--------'
 *
 * The memory of an extent that belonged to a tenant is never seen by another:
 * on its way it is given back, whoever still has it mapped, and made again. A
 * tenant is a number below LDR_TENANTS_MAX; limits and shares are the store's
 * affair, except the limit of pages in use.
 *
 * Nobody waits for long for a tenant that does not let go:
 *
 *   LEAVING ------> OVERDUE   pages that are held stay as they are, the memory
 *                      |      of the others is given back
 *   SPARE --> EMPTY    |      for the heir, in its place
 *     ^                |
 *     `----------------'      last page and mapper gone
 *
 * What is overdue counts against its tenant like what it owns. There are half
 * as many spare extents as others: tenants keep no more than that together.
 *
 * Pages are handed out only once they are resident. Making them so is done in
 * slices, without the node's lock:
 *
 *   if (ldr_arena_slice_take(a, tenant, &s)) {  with the lock
 *       ok = ldr_arena_slice_populate(a, &s);   without it
 *       ldr_arena_slice_give(a, &s, ok);        with the lock
 *   }
 *
 * and so is making an extent again (ldr_arena_renew_*). Everything else needs
 * the node's lock, except what concerns the pages of a shard that the caller
 * holds: their links, their place, and their extent's generation do not change
 * while it is held.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/mem.h"
#include "larder/larder.h"
#include "wire/wire.h"

#define LDR_PAGE 65536u
#define LDR_SLICE_PAGES 32u /* 2 MiB: one huge page */
#define LDR_TENANTS_MAX 4096u

typedef enum ldr_extent_state {
    LDR_EXTENT_FREE,     /* nobody's; its pages are free */
    LDR_EXTENT_OWNED,    /* its tenant takes pages from it */
    LDR_EXTENT_LEAVING,  /* still its tenant's, but gives no more pages */
    LDR_EXTENT_OVERDUE,  /* the same, and nobody waits for it any more */
    LDR_EXTENT_EMPTY,    /* nobody uses or maps it: to be made again */
    LDR_EXTENT_RENEWING, /* in somebody's hands for that */
    LDR_EXTENT_SPARE     /* has no memory */
} ldr_extent_state_t;

typedef struct ldr_arena_extent {
    ldr_extent_t memory;
    uint32_t first, count; /* pages */
    ldr_extent_state_t state;
    uint32_t tenant; /* OWNED, LEAVING and OVERDUE; otherwise LDR_NIL */
    uint32_t heir;   /* who gets it after LEAVING; LDR_NIL: nobody */
    uint32_t generation;
    uint32_t mappers;     /* sessions that have it mapped */
    uint32_t blank_count; /* pages of no slice yet */
    uint32_t blank_hint;  /* no blank page before this one */
    uint32_t hand_count;  /* slices in somebody's hands */
    uint32_t ready_count; /* pages that are resident */
    uint32_t free_count, free_head;
    uint32_t prev, next; /* of its tenant's that have free pages */
    uint32_t cursor;     /* of whoever empties it: pages looked at */
    uint32_t trimmed;    /* OVERDUE: pages whose memory was looked at */
    uint64_t left_ns;    /* since when it is LEAVING; the node's */
    bool stays; /* a process may still touch it: it cannot be handed over */
} ldr_arena_extent_t;

/* What a tenant has of the arena. */
typedef struct ldr_owner {
    uint32_t pages_max;     /* that it may use; 0: no limit */
    uint32_t used_count;    /* pages in use, in any of its extents */
    uint32_t extent_count;  /* OWNED */
    uint32_t leaving_count; /* LEAVING */
    uint32_t overdue_count; /* OVERDUE */
    uint32_t coming_count;  /* of others, leaving for this one */
    /* In its OWNED extents: */
    uint32_t free_count;
    uint32_t blank_count;
    uint32_t hand_count;
    uint32_t open; /* those with free pages, last used first: number + 1 */
} ldr_owner_t;

typedef struct ldr_arena {
    ldr_arena_extent_t *extents;
    uint32_t extent_count; /* that have memory, except those overdue */
    uint32_t slot_count; /* of extents: those, and as many as can be overdue */
    uint32_t extent_shift; /* pages per extent, as a power of two */
    uint32_t page_count;   /* of extent_count extents */
    uint32_t ready_count;  /* pages made resident */
    uint32_t free_count;   /* of those, in no use */
    uint32_t unowned;      /* extents that are FREE */
    uint32_t empty_count;  /* extents that are EMPTY */
    uint32_t overdue_count;
    bool emptied; /* there is an EMPTY one, or pages to trim: who does that may
                     look */
    bool backed;
    uint64_t numa_nodes;  /* bits: where extents go, in turn; 0: anywhere */
    uint32_t *next;       /* per page: the next of its list */
    uint32_t *holder;     /* per page: whose it is, + 1; 0: free */
    uint8_t *slice_state; /* per slice */
    ldr_owner_t *owners;  /* by tenant */
} ldr_arena_t;

typedef struct ldr_slice {
    uint32_t first, count;
} ldr_slice_t;

/* backed: false gives an arena without memory, for simulations that never
 * look at payload: ldr_arena_page() must not be used. */
larder_status_t ldr_arena_init(ldr_arena_t *a, uint64_t bytes, bool backed,
                               uint64_t numa_nodes);
void ldr_arena_destroy(ldr_arena_t *a);

static inline uint32_t ldr_arena_extent_pages(const ldr_arena_t *a)
{
    return (uint32_t)1 << a->extent_shift;
}

/* Pages have numbers below this one. */
static inline uint64_t ldr_arena_table_pages(const ldr_arena_t *a)
{
    return (uint64_t)a->slot_count << a->extent_shift;
}

/* ---- extents ---- */

/* Makes a free extent the tenant's: the one with most resident pages, or, if
 * ready is set, only one that has some. False: there is none, or the tenant has
 * all that its limit can use. */
bool ldr_arena_claim(ldr_arena_t *a, uint32_t tenant, bool ready);

/* OWNED -> LEAVING, for heir. */
void ldr_arena_leave(ldr_arena_t *a, uint32_t extent, uint32_t heir);

/* LEAVING -> OVERDUE. False: no spare extent is left, or just now a slice of it
 * is being made resident. */
bool ldr_arena_overdue(ldr_arena_t *a, uint32_t extent);

/* Pages of an OVERDUE extent that nobody holds, for ldr_arena_trim(), which
 * gives their memory back and needs no lock. Both, and renewing, are for one
 * thread only. */
bool ldr_arena_trim_take(ldr_arena_t *a, ldr_slice_t *run);
void ldr_arena_trim(const ldr_arena_t *a, const ldr_slice_t *run);

/* An extent that is EMPTY, to be made again. */
bool ldr_arena_renew_take(ldr_arena_t *a, uint32_t *extent_p);
bool ldr_arena_renew_make(ldr_arena_t *a, uint32_t extent);
/* It is its heir's now, or spare; or, if not ok, EMPTY again. */
void ldr_arena_renew_give(ldr_arena_t *a, uint32_t extent, bool ok);

/* Whether one is being made again for this tenant, or is empty and about to be.
 */
bool ldr_arena_renewing(const ldr_arena_t *a, uint32_t heir);

/* A session maps the extent. False: it is not that tenant's in that
 * generation. */
bool ldr_arena_map(ldr_arena_t *a, uint32_t tenant, uint32_t extent,
                   uint32_t generation);
void ldr_arena_unmap(ldr_arena_t *a, uint32_t extent, uint32_t generation);

/* Pages that are resident from the extent's start on, without a gap. */
uint32_t ldr_arena_ready_pages(const ldr_arena_t *a, uint32_t extent);

/* ---- slices ---- */

/* A slice of the tenant's OWNED extents; LDR_NIL: of any that is owned, else
 * of any that is free. One that could not be made resident is taken again
 * later. */
bool ldr_arena_slice_take(ldr_arena_t *a, uint32_t tenant, ldr_slice_t *slice);
bool ldr_arena_slice_populate(ldr_arena_t *a, const ldr_slice_t *slice);
void ldr_arena_slice_give(ldr_arena_t *a, const ldr_slice_t *slice, bool ok);

/* ---- pages ---- */

static inline uint32_t ldr_arena_pages(size_t bytes)
{
    return (uint32_t)((bytes + LDR_PAGE - 1) / LDR_PAGE);
}

/* A list of count pages of the tenant's, or LDR_NIL if fewer are free or its
 * limit does not allow them. count > 0. */
uint32_t ldr_arena_take(ldr_arena_t *a, uint32_t tenant, uint32_t count);
/* Notes whose the pages of a list are: ldr_arena_holder() gives it back. */
void ldr_arena_hand(ldr_arena_t *a, uint32_t head, uint32_t holder);
/* Gives a whole list back; how many they are. */
uint32_t ldr_arena_give(ldr_arena_t *a, uint32_t head);

/* LDR_NIL: the page is free, or its list was not handed to anybody. */
static inline uint32_t ldr_arena_holder(const ldr_arena_t *a, uint32_t page)
{
    return a->holder[page] - 1;
}

static inline uint32_t ldr_arena_extent_of(const ldr_arena_t *a, uint32_t page)
{
    return page >> a->extent_shift;
}

static inline uint8_t *ldr_arena_page(const ldr_arena_t *a, uint32_t page)
{
    const ldr_arena_extent_t *x = &a->extents[page >> a->extent_shift];

    return x->memory.base + (size_t)(page - x->first) * LDR_PAGE;
}

/* ---- what another process has handed over (handover.h) ----
 *
 * An extent that nobody has used yet gets that memory. Its resident pages are
 * nobody's until they are kept, one list for each shard, or the extent is
 * settled, which frees the rest. */

/* Whether the slice with this page is resident. */
bool ldr_arena_is_ready(const ldr_arena_t *a, uint32_t page);

/* ready: a byte for each slice of the extent. tenant: LDR_NIL: nobody's. The
 * descriptor is the arena's, or the caller's still if this fails. */
bool ldr_arena_adopt(ldr_arena_t *a, uint32_t extent, int fd, uint32_t tenant,
                     const uint8_t *ready);
/* These pages as a list, in use by the tenant; for ldr_arena_hand(). LDR_NIL:
 * one of them is not available. */
uint32_t ldr_arena_keep(ldr_arena_t *a, uint32_t tenant, const uint32_t *pages,
                        uint32_t count);
void ldr_arena_settle(ldr_arena_t *a, uint32_t extent);

#define LDR_RUN_MAX ((size_t)1 << 20) /* bytes of one run */

/* Bytes of the run of neighbouring pages that begins with *page_p, which
 * becomes the page after it: in one piece they are copied faster. */
size_t ldr_arena_run(const ldr_arena_t *a, uint32_t *page_p);

/* The first bytes of a list of pages as segments, neighbours merged. Gives
 * their number; if that is over max, only max were filled in. */
uint32_t ldr_arena_iov(const ldr_arena_t *a, uint32_t head, size_t bytes,
                       struct iovec *iov, uint32_t max);
/* The same as places in extents. */
uint32_t ldr_arena_segs(const ldr_arena_t *a, uint32_t head, size_t bytes,
                        ldr_seg_t *segs, uint32_t max);
