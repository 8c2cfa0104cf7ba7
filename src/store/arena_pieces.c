/* The pages of a shard as pieces of memory, and as places in extents. */
#include "base/bytes.h"
#include "store/arena.h"
#include "store/index.h"

size_t ldr_arena_run(const ldr_arena_t *a, uint32_t *page_p)
{
    uint32_t page = *page_p;
    uint32_t mask = ldr_arena_extent_pages(a) - 1;
    size_t bytes = 0;
    uint32_t last;

    do {
        last = page;
        bytes += LDR_PAGE;
        page = a->next[last];
    } while (page == last + 1 && (page & mask) != 0 && bytes < LDR_RUN_MAX);
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

uint32_t ldr_arena_segs(const ldr_arena_t *a, uint32_t head, size_t bytes,
                        ldr_seg_t *segs, uint32_t max)
{
    uint32_t mask = ldr_arena_extent_pages(a) - 1;
    uint32_t count = 0;
    uint32_t last = LDR_NIL;

    for (uint32_t page = head; bytes > 0; page = a->next[page]) {
        uint32_t extent = ldr_arena_extent_of(a, page);
        uint32_t take = (uint32_t)ldr_min64(bytes, LDR_PAGE);

        if (last == LDR_NIL || page != last + 1 || (page & mask) == 0) {
            count++;
            if (count <= max) {
                segs[count - 1] = (ldr_seg_t){
                    .extent = extent,
                    .generation = a->extents[extent].generation,
                    .page = page & mask,
                };
            }
        }
        if (count <= max) {
            segs[count - 1].bytes += take;
        }
        last = page;
        bytes -= take;
    }
    return count;
}
