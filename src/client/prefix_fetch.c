/*
 * Prefixes by way of memory that an engine's processes share.
 *
 * The memory: a head, a slot for each (group, chunk, shard) in the order of the
 * layout's enumeration, then the shards, each on a boundary of 64 bytes. It is
 * written by one process of the engine and read by the others: they trust each
 * other, but what is read is checked for lying inside.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "client/client.h"
#include "layout/layout.h"

#define MAGIC 0x68637465662d7264ull /* "dr-fetch" */
#define ALIGN 64u
#define SEGS 4096u /* of a lease's shard */
#define BATCH 256u

typedef struct head {
    uint64_t magic;
    uint32_t chunks, groups, shards, count; /* count: of slots */
    uint64_t bytes;                         /* of all */
} head_t;

typedef struct slot {
    uint64_t offset, bytes;
} slot_t;

static uint64_t align(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Chunks of all groups that a prefix of so many chunks needs. */
static uint64_t need_count(const larder_layout_t *layout, uint32_t chunks)
{
    uint64_t count = 0;

    for (uint32_t g = 0; g < layout->group_count; g++) {
        ldr_span_t needs = ldr_layout_needs(layout, g, chunks);

        count += needs.end - needs.first;
    }
    return count;
}

/* ---- fetching ---- */

typedef struct fetch {
    larder_space_t *space;
    const larder_layout_t *layout;
    larder_lease_t *const *leases;
    const larder_key_t *keys;
    uint32_t chunks;
    uint64_t deadline_ns;
    uint64_t count; /* slots */
    slot_t *slots;
} fetch_t;

static larder_status_t shard_bytes(const fetch_t *f, uint32_t group,
                                   uint32_t chunk, uint32_t shard,
                                   struct iovec *seg, uint64_t *bytes_p)
{
    uint32_t count = 0;
    larder_status_t st = larder_lease_segments(
        f->leases[group], chunk, (uint16_t)shard, seg, SEGS, &count);

    *bytes_p = 0;
    for (uint32_t i = 0; i < count && st == LARDER_OK; i++) {
        *bytes_p += seg[i].iov_len;
    }
    return st;
}

/* Where each shard goes. */
static larder_status_t plan(fetch_t *f, uint64_t *bytes_p)
{
    struct iovec *seg = ldr_alloc(SEGS * sizeof(*seg));
    uint64_t at = align(sizeof(head_t) + f->count * sizeof(slot_t));
    uint64_t slot = 0;
    larder_status_t st =
        seg != NULL
            ? LARDER_OK
            : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a fetch");

    for (uint32_t g = 0; g < f->layout->group_count && st == LARDER_OK; g++) {
        ldr_span_t needs = ldr_layout_needs(f->layout, g, f->chunks);
        uint32_t shards = (needs.end - needs.first) * f->space->shards;

        for (uint32_t i = 0; i < shards && st == LARDER_OK; i++) {
            slot_t *s = &f->slots[slot++];

            st = shard_bytes(f, g, i / f->space->shards, i % f->space->shards,
                             seg, &s->bytes);
            s->offset = at;
            at = align(at + s->bytes);
        }
    }
    ldr_free(seg);
    *bytes_p = at;
    return st;
}

/* Gets so many shards of a group, from the at-th of those it needs on. */
static larder_status_t get(const fetch_t *f, uint32_t group, ldr_span_t needs,
                           uint32_t at, uint32_t count, const slot_t *slots,
                           uint8_t *memory)
{
    larder_item_t items[BATCH];
    struct iovec iov[BATCH];
    uint64_t now_ns = ldr_now_ns(f->space->lar->clock);
    uint64_t left = f->deadline_ns > now_ns ? f->deadline_ns - now_ns : 0;
    larder_op_params_t params = {
        .field_mask = LARDER_OP_TIMEOUT,
        .timeout_ms = f->deadline_ns == UINT64_MAX
                          ? LARDER_FOREVER
                          : (uint32_t)ldr_max64(left / 1000000, 1)};

    for (uint32_t i = 0; i < count; i++) {
        iov[i] = (struct iovec){memory + slots[i].offset, slots[i].bytes};
        items[i] = (larder_item_t){
            .key = &f->keys[needs.first + (at + i) / f->space->shards],
            .group = (uint16_t)group,
            .shard = (uint16_t)((at + i) % f->space->shards),
            .iov = &iov[i],
            .iov_count = 1};
    }
    larder_status_t st =
        larder_run(f->space, LARDER_OP_GET, items, count, &params);
    for (uint32_t i = 0; i < count && st == LARDER_OK; i++) {
        st = items[i].status;
        if (st == LARDER_OK && items[i].length != slots[i].bytes) {
            st = ldr_fail(LARDER_E_SIZE, "a shard changed its length");
        }
    }
    return st;
}

static larder_status_t get_all(const fetch_t *f, uint8_t *memory)
{
    const slot_t *slot = f->slots;
    larder_status_t st = LARDER_OK;

    for (uint32_t g = 0; g < f->layout->group_count; g++) {
        ldr_span_t needs = ldr_layout_needs(f->layout, g, f->chunks);
        uint32_t shards = (needs.end - needs.first) * f->space->shards;

        for (uint32_t at = 0; at < shards && st == LARDER_OK; at += BATCH) {
            uint32_t count = (uint32_t)ldr_min64(BATCH, shards - at);

            st = get(f, g, needs, at, count, slot, memory);
            slot += count;
        }
    }
    return st;
}

static larder_status_t fetch_run(fetch_t *f, uint8_t *memory, size_t size,
                                 size_t *bytes_p)
{
    uint64_t bytes;
    larder_status_t st = plan(f, &bytes);

    if (st != LARDER_OK) {
        return st;
    }
    *bytes_p = bytes;
    if (memory == NULL || size < bytes) {
        return memory == NULL
                   ? LARDER_OK
                   : ldr_fail(LARDER_E_SIZE, "%zu bytes of memory, of %llu",
                              size, (unsigned long long)bytes);
    }
    st = get_all(f, memory);
    if (st != LARDER_OK) {
        return st;
    }
    head_t head = {.magic = MAGIC,
                   .chunks = f->chunks,
                   .groups = f->layout->group_count,
                   .shards = f->space->shards,
                   .count = (uint32_t)f->count,
                   .bytes = bytes};
    memcpy(memory + sizeof(head), f->slots, f->count * sizeof(slot_t));
    memcpy(memory, &head, sizeof(head));
    return LARDER_OK;
}

larder_status_t larder_prefix_fetch(larder_space_t *space,
                                    const larder_layout_t *layout,
                                    larder_lease_t *const *leases,
                                    const larder_key_t *keys, uint32_t chunks,
                                    void *memory, size_t size,
                                    uint32_t timeout_ms, size_t *bytes_p)
{
    larder_status_t st = ldr_space_check(space);

    if (st != LARDER_OK) {
        return st;
    }
    if (layout == NULL || leases == NULL || keys == NULL || chunks == 0 ||
        bytes_p == NULL || layout->chunk_tokens != space->chunk_tokens) {
        return ldr_fail(LARDER_E_INVALID,
                        "layout, leases, keys, chunks or bytes_p");
    }
    fetch_t f = {.space = space,
                 .layout = layout,
                 .leases = leases,
                 .keys = keys,
                 .chunks = chunks,
                 .deadline_ns = ldr_deadline(space->lar, timeout_ms),
                 .count = need_count(layout, chunks) * space->shards};
    f.slots =
        f.count < UINT32_MAX ? ldr_alloc(f.count * sizeof(*f.slots)) : NULL;
    if (f.slots == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a fetch");
    }
    st = fetch_run(&f, memory, size, bytes_p);
    ldr_free(f.slots);
    return st;
}

/* ---- placing ---- */

/* A part of a load: where its shard lies, and the pages it goes to. */
typedef struct place {
    const larder_layout_t *layout;
    larder_move_t *move;
    const uint8_t *memory;
    size_t size;
    head_t head;
    ldr_segments_t segments;
    uint8_t *scratch;
} place_t;

/* One shard; write: not only checked. */
static larder_status_t place_one(place_t *p, uint32_t group, uint32_t chunk,
                                 ldr_span_t wanted, uint64_t slot, bool write)
{
    const ldr_group_t *g = &p->layout->group[group];
    slot_t s;

    memcpy(&s, p->memory + sizeof(head_t) + slot * sizeof(s), sizeof(s));
    if (s.bytes != g->shard_bytes || s.offset > p->size ||
        s.bytes > p->size - s.offset) {
        return ldr_fail(LARDER_E_CORRUPT, "chunk %u of group %u", chunk, group);
    }
    larder_status_t st =
        ldr_layout_segments(p->layout, group, chunk, &p->move->tables[group],
                            wanted, p->scratch, &p->segments);
    const uint8_t *from = p->memory + s.offset;
    for (uint32_t i = 0; i < p->segments.count && st == LARDER_OK && write;
         i++) {
        memcpy(p->segments.iov[i].iov_base, from, p->segments.iov[i].iov_len);
        from += p->segments.iov[i].iov_len;
    }
    if (st == LARDER_OK && write) {
        p->move->shards++;
        p->move->bytes += s.bytes;
    }
    return st;
}

static larder_status_t place_all(place_t *p, bool write)
{
    larder_status_t st = LARDER_OK;
    uint64_t slot = p->move->shard;

    for (uint32_t g = 0; g < p->layout->group_count; g++) {
        const ldr_group_t *group = &p->layout->group[g];
        ldr_span_t needs = ldr_layout_needs(p->layout, g, p->head.chunks);
        ldr_span_t wanted = ldr_layout_reads(p->layout, g, p->move->end);

        wanted.first = (uint32_t)ldr_max64(
            wanted.first, p->move->begin / group->block_tokens);
        for (uint32_t i = needs.first; i < needs.end && st == LARDER_OK; i++) {
            ldr_span_t blocks = ldr_layout_blocks(p->layout, g, i);

            if (ldr_max64(blocks.first, wanted.first) <
                ldr_min64(blocks.end, wanted.end)) {
                st = place_one(p, g, i, wanted, slot, write);
            }
            slot += p->head.shards;
        }
    }
    return st;
}

static larder_status_t place_check(const larder_layout_t *layout,
                                   const larder_move_t *m, const head_t *head,
                                   size_t size)
{
    uint64_t slots = need_count(layout, head->chunks) * head->shards;

    if (head->magic != MAGIC || head->groups != layout->group_count ||
        head->bytes > size || head->count != slots ||
        sizeof(*head) + slots * sizeof(slot_t) > size ||
        m->shard >= head->shards ||
        m->end != (uint64_t)head->chunks * layout->chunk_tokens) {
        return ldr_fail(LARDER_E_CORRUPT,
                        "this memory was not fetched for %u tokens", m->end);
    }
    for (uint32_t g = 0; g < layout->group_count; g++) {
        if (layout->group[g].shard_pages == 0 ||
            m->begin % layout->group[g].block_tokens != 0) {
            return ldr_fail(LARDER_E_INVALID,
                            "group %u has no layers, or blocks of %u", g,
                            layout->group[g].block_tokens);
        }
    }
    return LARDER_OK;
}

larder_status_t larder_prefix_place(const larder_layout_t *layout,
                                    larder_move_t *move, const void *memory,
                                    size_t size)
{
    size_t scratch = 0;
    place_t p = {
        .layout = layout, .move = move, .memory = memory, .size = size};

    if (layout == NULL || move == NULL || move->tables == NULL ||
        memory == NULL || size < sizeof(head_t)) {
        return ldr_fail(LARDER_E_INVALID, "layout, move or memory");
    }
    memcpy(&p.head, memory, sizeof(p.head));
    larder_status_t st = place_check(layout, move, &p.head, size);
    if (st != LARDER_OK) {
        return st;
    }
    for (uint32_t g = 0; g < layout->group_count; g++) {
        scratch = ldr_max64(scratch, layout->group[g].shard_bytes);
    }
    p.scratch = ldr_alloc(scratch);
    p.segments.max = LARDER_IOV_MAX;
    p.segments.iov = ldr_alloc(LARDER_IOV_MAX * sizeof(*p.segments.iov));
    move->shards = move->present = move->skipped = move->failed = 0;
    move->bytes = 0;
    st = p.scratch != NULL && p.segments.iov != NULL
             ? place_all(&p, false)
             : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory to place");
    if (st == LARDER_OK) {
        st = place_all(&p, true);
    }
    ldr_free(p.scratch);
    ldr_free(p.segments.iov);
    return st;
}
