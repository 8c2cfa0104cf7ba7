/*
 * The arena: the memory of the DRAM tier, as pages with a side table. A shard
 * is a list of pages, linked through the table, so that no mix of sizes can
 * fragment it.
 *
 * Pages are handed out only once they are resident. Making them so is done in
 * slices, without the node's lock:
 *
 *   if (ldr_arena_slice_take(a, &s)) {          with the lock
 *       ok = ldr_arena_slice_populate(a, &s);   without it
 *       ldr_arena_slice_give(a, &s, ok);        with the lock
 *   }
 *
 * Everything else needs the node's lock, but for reading the links of a shard
 * that the caller holds: they do not change while it is held.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/mem.h"
#include "larder/larder.h"

#define LDR_PAGE 65536u
#define LDR_SLICE_PAGES 32u /* 2 MiB: one huge page */

typedef struct ldr_arena {
    ldr_extent_t *extents;
    uint32_t extent_count;
    uint32_t extent_pages; /* per extent; the last may have fewer */
    uint32_t page_count;
    uint32_t slice_next;   /* first page of no slice yet */
    uint32_t ready_count;  /* pages made resident */
    uint32_t failed_count; /* pages that could not be, and are given up */
    uint32_t free_count;
    uint32_t free_head;
    uint32_t *next; /* per page: the next of its list */
} ldr_arena_t;

typedef struct ldr_slice {
    uint32_t first, count;
} ldr_slice_t;

/* backed: false gives an arena without memory, for simulations that never
 * look at payload: ldr_arena_page() must not be used. */
larder_status_t ldr_arena_init(ldr_arena_t *a, uint64_t bytes, bool backed);
void ldr_arena_destroy(ldr_arena_t *a);

/* A slice that could not be made resident is taken again later, unless others
 * were taken after it. */
bool ldr_arena_slice_take(ldr_arena_t *a, ldr_slice_t *slice);
bool ldr_arena_slice_populate(ldr_arena_t *a, const ldr_slice_t *slice);
void ldr_arena_slice_give(ldr_arena_t *a, const ldr_slice_t *slice, bool ok);

static inline uint32_t ldr_arena_pages(size_t bytes)
{
    return (uint32_t)((bytes + LDR_PAGE - 1) / LDR_PAGE);
}

/* A list of count pages, or LDR_NIL if fewer are free. count > 0. */
uint32_t ldr_arena_take(ldr_arena_t *a, uint32_t count);
/* Gives a whole list back. */
void ldr_arena_give(ldr_arena_t *a, uint32_t head);

uint8_t *ldr_arena_page(const ldr_arena_t *a, uint32_t page);

#define LDR_RUN_MAX ((size_t)1 << 20) /* bytes of one run */

/* Bytes of the run of neighbouring pages that begins with *page_p, which
 * becomes the page after it: in one piece they are copied faster. */
size_t ldr_arena_run(const ldr_arena_t *a, uint32_t *page_p);

/* The first bytes of a list of pages as segments, neighbours merged. Gives
 * their number; if that is over max, only max were filled in. */
uint32_t ldr_arena_iov(const ldr_arena_t *a, uint32_t head, size_t bytes,
                       struct iovec *iov, uint32_t max);
