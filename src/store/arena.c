#include "store/arena.h"

#include "base/bytes.h"
#include "store/index.h"

/* Few files even for large arenas, and small ones for small arenas. */
#define EXTENT_BYTES_MIN ((uint64_t)64 << 20)
#define EXTENT_COUNT_AIM 64u

static uint64_t extent_bytes_for(uint64_t bytes)
{
    uint64_t unit = (uint64_t)LDR_SLICE_PAGES * LDR_PAGE;
    uint64_t each = ldr_max64(bytes / EXTENT_COUNT_AIM, EXTENT_BYTES_MIN);

    return ldr_div_up(each, unit) * unit;
}

larder_status_t ldr_arena_init(ldr_arena_t *a, uint64_t bytes, bool backed)
{
    uint64_t pages = bytes / LDR_PAGE;
    uint64_t extent_bytes = extent_bytes_for(bytes);

    *a = (ldr_arena_t){.free_head = LDR_NIL};
    if (pages == 0 || pages >= LDR_NIL) {
        return LARDER_E_INVALID;
    }
    a->page_count = (uint32_t)pages;
    a->extent_pages = (uint32_t)(extent_bytes / LDR_PAGE);
    a->next = ldr_reserve(pages * sizeof(*a->next));
    if (a->next == NULL) {
        goto err;
    }
    if (!backed) {
        return LARDER_OK;
    }
    uint32_t extents = (uint32_t)ldr_div_up(pages, a->extent_pages);
    a->extents = ldr_alloc(extents * sizeof(*a->extents));
    if (a->extents == NULL) {
        goto err;
    }
    for (uint32_t i = 0; i < extents; i++) {
        uint64_t left = pages - (uint64_t)i * a->extent_pages;
        uint64_t take = ldr_min64(left, a->extent_pages);

        if (!ldr_extent_create(&a->extents[i], take * LDR_PAGE)) {
            goto err;
        }
        a->extent_count++;
    }
    return LARDER_OK;

err:
    ldr_arena_destroy(a);
    return LARDER_E_NO_MEMORY;
}

void ldr_arena_destroy(ldr_arena_t *a)
{
    for (uint32_t i = 0; i < a->extent_count; i++) {
        ldr_extent_destroy(&a->extents[i]);
    }
    ldr_free(a->extents);
    ldr_unreserve(a->next, (size_t)a->page_count * sizeof(*a->next));
    *a = (ldr_arena_t){.free_head = LDR_NIL};
}

bool ldr_arena_slice_take(ldr_arena_t *a, ldr_slice_t *slice)
{
    if (a->slice_next == a->page_count) {
        return false;
    }
    /* Slices never straddle extents: extents are whole slices. */
    slice->first = a->slice_next;
    slice->count =
        (uint32_t)ldr_min64(LDR_SLICE_PAGES, a->page_count - a->slice_next);
    a->slice_next += slice->count;
    return true;
}

bool ldr_arena_slice_populate(ldr_arena_t *a, const ldr_slice_t *slice)
{
    if (a->extents == NULL) {
        return true;
    }
    ldr_extent_t *extent = &a->extents[slice->first / a->extent_pages];
    size_t offset = (size_t)(slice->first % a->extent_pages) * LDR_PAGE;

    return ldr_extent_populate(extent, offset, (size_t)slice->count * LDR_PAGE);
}

void ldr_arena_slice_give(ldr_arena_t *a, const ldr_slice_t *slice, bool ok)
{
    if (!ok) {
        if (slice->first + slice->count == a->slice_next) {
            a->slice_next = slice->first;
        } else {
            a->failed_count += slice->count;
        }
        return;
    }
    a->ready_count += slice->count;
    a->free_count += slice->count;
    /* Last first, so that taking pages gives them in ascending order. */
    for (uint32_t i = slice->count; i-- > 0;) {
        a->next[slice->first + i] = a->free_head;
        a->free_head = slice->first + i;
    }
}

uint32_t ldr_arena_take(ldr_arena_t *a, uint32_t count)
{
    if (count == 0 || a->free_count < count) {
        return LDR_NIL;
    }
    uint32_t head = a->free_head;
    uint32_t last = head;

    for (uint32_t i = 1; i < count; i++) {
        last = a->next[last];
    }
    a->free_head = a->next[last];
    a->next[last] = LDR_NIL;
    a->free_count -= count;
    return head;
}

void ldr_arena_give(ldr_arena_t *a, uint32_t head)
{
    uint32_t last = head;
    uint32_t count = 1;

    while (a->next[last] != LDR_NIL) {
        last = a->next[last];
        count++;
    }
    a->next[last] = a->free_head;
    a->free_head = head;
    a->free_count += count;
}

uint8_t *ldr_arena_page(const ldr_arena_t *a, uint32_t page)
{
    const ldr_extent_t *extent = &a->extents[page / a->extent_pages];

    return extent->base + (size_t)(page % a->extent_pages) * LDR_PAGE;
}

size_t ldr_arena_run(const ldr_arena_t *a, uint32_t *page_p)
{
    uint32_t page = *page_p;
    size_t bytes = 0;
    uint32_t last;

    do {
        last = page;
        bytes += LDR_PAGE;
        page = a->next[last];
    } while (page == last + 1 && page % a->extent_pages != 0 &&
             bytes < LDR_RUN_MAX);
    *page_p = page;
    return bytes;
}

uint32_t ldr_arena_iov(const ldr_arena_t *a, uint32_t head, size_t bytes,
                       struct iovec *iov, uint32_t max)
{
    uint32_t count = 0;
    uint8_t *end = NULL; /* of the segment being built */

    for (uint32_t page = head; bytes > 0; page = a->next[page]) {
        uint8_t *base = ldr_arena_page(a, page);
        size_t take = bytes < LDR_PAGE ? bytes : LDR_PAGE;

        if (base != end) {
            count++;
            if (count <= max) {
                iov[count - 1] = (struct iovec){base, 0};
            }
        }
        if (count <= max) {
            iov[count - 1].iov_len += take;
        }
        end = base + take;
        bytes -= take;
    }
    return count;
}
