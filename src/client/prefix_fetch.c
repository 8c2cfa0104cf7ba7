/*
 * Prefixes by way of memory that an engine's processes share.
 *
 * The memory: a head, a slot for each (group, chunk, shard) in the order of the
 * layout's enumeration, then the shards in the same order, each on a boundary
 * of LDR_BLOCK bytes. It is written by one process of the engine and read by
 * the others: they trust each other, but what is read is checked for lying
 * inside and being in that order, and for being of the prefix that is asked
 * for: the head names it by the key of its last chunk, which is a hash over all
 * that come before. While memory is being filled it has no head, so that what
 * an earlier fetch left there is never taken for it.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/grow.h"
#include "base/io.h"
#include "base/mem.h"
#include "client/client.h"
#include "gpu/gpu.h"
#include "layout/layout.h"

#define MAGIC 0x68637465662d7264ull /* "dr-fetch" */
#define BATCH 256u

typedef struct head {
    uint64_t magic;
    uint32_t chunks, groups, shards, count; /* count: of slots */
    uint64_t bytes;                         /* of all */
    larder_key_t key;                       /* of the last chunk */
} head_t;

typedef struct slot {
    uint64_t offset, bytes;
} slot_t;

/* So that what is known in whole blocks only (it is on ssd) needs as much room
 * as when its length is known. */
static uint64_t align(uint64_t n)
{
    return (n + LDR_BLOCK - 1) / LDR_BLOCK * LDR_BLOCK;
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
    const larder_key_t *keys;
    uint32_t chunks;
    uint64_t deadline_ns;
    uint64_t count; /* slots */
    slot_t *slots;
    uint8_t *memory; /* NULL: only lengths are asked for */
} fetch_t;

/* What became of one shard; here a miss has no cause to go with it. */
static larder_status_t outcome(const larder_item_t *item)
{
    if (item->status != LARDER_MISS) {
        return item->status;
    }
    if (item->cause == LARDER_CAUSE_DEADLINE) {
        return ldr_fail(LARDER_E_DEADLINE, "not fetched in time");
    }
    if (item->cause == LARDER_CAUSE_OFFLINE) {
        return ldr_fail(LARDER_E_OFFLINE, "the node cannot be reached");
    }
    return ldr_fail(LARDER_MISS, "shard %u of group %u is gone", item->shard,
                    item->group);
}

/* Asks for so many shards of a group, from the at-th of those it needs on:
 * lengths, or with memory the bytes too. A length that was known in blocks is
 * exact then. */
static larder_status_t ask(const fetch_t *f, uint32_t group, ldr_span_t needs,
                           uint32_t at, uint32_t count, slot_t *slots)
{
    larder_item_t items[BATCH];
    struct iovec iov[BATCH];
    uint64_t now_ns = ldr_now_ns(f->space->lar->clock);
    uint64_t left = f->deadline_ns > now_ns ? f->deadline_ns - now_ns : 0;
    larder_op_params_t params = {
        .field_mask = LARDER_OP_TIMEOUT | LARDER_OP_FLAGS,
        .flags = LDR_BATCH_AGAIN, /* what is staged */
        .timeout_ms = f->deadline_ns == UINT64_MAX
                          ? LARDER_FOREVER
                          : (uint32_t)ldr_max64(left / 1000000, 1)};

    for (uint32_t i = 0; i < count; i++) {
        items[i] = (larder_item_t){
            .key = &f->keys[needs.first + (at + i) / f->space->shards],
            .group = (uint16_t)group,
            .shard = (uint16_t)((at + i) % f->space->shards)};
        if (f->memory != NULL) {
            iov[i] =
                (struct iovec){f->memory + slots[i].offset, slots[i].bytes};
            items[i].iov = &iov[i];
            items[i].iov_count = 1;
        }
    }
    larder_status_t st = larder_run(
        f->space, f->memory != NULL ? LARDER_OP_GET : LARDER_OP_EXISTS, items,
        count, &params);
    for (uint32_t i = 0; i < count && st == LARDER_OK; i++) {
        st = outcome(&items[i]);
        slots[i].bytes = items[i].length;
    }
    return st;
}

static larder_status_t ask_all(const fetch_t *f)
{
    slot_t *slots = f->slots;
    larder_status_t st = LARDER_OK;

    for (uint32_t g = 0; g < f->layout->group_count; g++) {
        ldr_span_t needs = ldr_layout_needs(f->layout, g, f->chunks);
        uint32_t shards = (needs.end - needs.first) * f->space->shards;

        for (uint32_t at = 0; at < shards && st == LARDER_OK; at += BATCH) {
            uint32_t count = (uint32_t)ldr_min64(BATCH, shards - at);

            st = ask(f, g, needs, at, count, slots);
            slots += count;
        }
    }
    return st;
}

static larder_status_t fetch_run(fetch_t *f, uint8_t *memory, size_t size,
                                 size_t *bytes_p)
{
    uint64_t at = align(sizeof(head_t) + f->count * sizeof(slot_t));
    larder_status_t st = ask_all(f);

    if (st != LARDER_OK) {
        return st;
    }
    for (uint64_t i = 0; i < f->count; i++) {
        f->slots[i].offset = at;
        at = align(at + f->slots[i].bytes);
    }
    *bytes_p = at;
    if (memory == NULL || size < at) {
        return memory == NULL
                   ? LARDER_OK
                   : ldr_fail(LARDER_E_SIZE, "%zu bytes of memory, of %llu",
                              size, (unsigned long long)at);
    }
    f->memory = memory;
    memset(memory, 0, sizeof(head_t));
    st = ask_all(f);
    if (st != LARDER_OK) {
        return st;
    }
    const slot_t *last = &f->slots[f->count - 1];
    head_t head = {.magic = MAGIC,
                   .chunks = f->chunks,
                   .groups = f->layout->group_count,
                   .shards = f->space->shards,
                   .count = (uint32_t)f->count,
                   .bytes = align(last->offset + last->bytes),
                   .key = f->keys[f->chunks - 1]};
    memcpy(memory + sizeof(head), f->slots, f->count * sizeof(slot_t));
    memcpy(memory, &head, sizeof(head));
    return LARDER_OK;
}

larder_status_t larder_prefix_fetch(larder_space_t *space,
                                    const larder_layout_t *layout,
                                    const larder_lease_t *lease,
                                    const larder_key_t *keys, uint32_t chunks,
                                    void *memory, size_t size,
                                    uint32_t timeout_ms, size_t *bytes_p)
{
    larder_status_t st = ldr_space_check(space);

    if (st != LARDER_OK) {
        return st;
    }
    if (layout == NULL || lease == NULL || keys == NULL || chunks == 0 ||
        bytes_p == NULL || layout->chunk_tokens != space->chunk_tokens) {
        return ldr_fail(LARDER_E_INVALID,
                        "layout, lease, keys, chunks or bytes_p");
    }
    /* The lease is what keeps all of it where it is. */
    if (layout->all ? lease->chunks < chunks : lease->chunks != chunks) {
        return ldr_fail(LARDER_E_INVALID, "%u chunks are staged, not %u",
                        lease->chunks, chunks);
    }
    fetch_t f = {.space = space,
                 .layout = layout,
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
    ldr_page_list_t rows; /* of a GPU, in place of segments */
    uint8_t *scratch;
    size_t scratch_bytes;
} place_t;

static slot_t slot_at(const place_t *p, uint64_t i)
{
    slot_t s;

    memcpy(&s, p->memory + sizeof(head_t) + i * sizeof(s), sizeof(s));
    return s;
}

static larder_status_t place_gpu(place_t *p, struct iovec from)
{
    ldr_gpu_shard_t shard = {.pages = p->rows.rows,
                             .page_count = p->rows.count,
                             .host = &from,
                             .host_count = 1};
    ldr_gpu_copy_t copy = {
        .load = true,
        .shards = &shard,
        .count = 1,
        .nowhere = p->scratch,
        .nowhere_bytes = p->scratch_bytes,
        .after = p->move->after,
        .deadline_ns = UINT64_MAX /* it must not fail */
    };

    return ldr_gpu_move(p->layout->gpu, &copy);
}

/* One shard; write: not only checked. */
static larder_status_t place_one(place_t *p, ldr_shard_at_t at,
                                 ldr_span_t wanted, uint64_t slot, bool write)
{
    const ldr_layout_slice_t *slice = &p->layout->slice[at.slice];
    slot_t s = slot_at(p, slot);

    if (s.bytes != slice->bytes) {
        return ldr_fail(
            LARDER_E_CORRUPT, "chunk %u of group %u has %llu bytes, not %zu",
            at.chunk, at.group, (unsigned long long)s.bytes, slice->bytes);
    }
    const larder_table_t *tables = p->move->tables;
    bool gpu = p->layout->gpu != NULL;
    larder_status_t st =
        gpu ? ldr_layout_rows(p->layout, at, tables, wanted, p->scratch,
                              &p->rows)
            : ldr_layout_segments(p->layout, at, tables, wanted, p->scratch,
                                  &p->segments);
    const uint8_t *from = p->memory + s.offset;
    if (st == LARDER_OK && write && gpu) {
        st = place_gpu(p, (struct iovec){(void *)(uintptr_t)from, s.bytes});
    }
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

/* Its shards; slot: the first of all that the chunk has. */
static larder_status_t place_chunk(place_t *p, uint32_t group, uint32_t chunk,
                                   ldr_span_t wanted, uint64_t slot, bool write)
{
    const ldr_group_t *g = &p->layout->group[group];
    larder_status_t st = LARDER_OK;

    for (uint32_t i = g->slice; i < g->slice_end && st == LARDER_OK; i++) {
        st = place_one(p, (ldr_shard_at_t){group, chunk, i}, wanted,
                       slot + p->layout->slice[i].number, write);
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
                st = place_chunk(p, g, i, wanted, slot, write);
            }
            slot += p->head.shards;
        }
    }
    return st;
}

/* Whether it is of the prefix that the move names; one without keys names none.
 * Its last chunk is what counts, if the keys reach as far. */
static bool is_prefix(const head_t *h, const larder_move_t *m)
{
    return m->keys == NULL ||
           (m->first_key < h->chunks &&
            memcmp(&h->key, &m->keys[h->chunks - 1 - m->first_key],
                   sizeof(h->key)) == 0);
}

/* All that the memory says is checked before any of it is used. */
static larder_status_t check_memory(const place_t *p)
{
    const head_t *h = &p->head;
    uint64_t count = 0, at = 0;
    bool good = h->magic == MAGIC && h->groups == p->layout->group_count &&
                h->shards <= LARDER_SHARDS_MAX && p->move->shard < h->shards &&
                (!p->layout->described ||
                 (h->shards == p->layout->slices && p->move->shard == 0)) &&
                h->bytes <= p->size &&
                p->move->end == (uint64_t)h->chunks * p->layout->chunk_tokens &&
                is_prefix(h, p->move);

    if (good) {
        count = need_count(p->layout, h->chunks) * h->shards;
        at = sizeof(*h) + count * sizeof(slot_t);
        good = h->count == count && at <= h->bytes;
    }
    for (uint64_t i = 0; i < count && good; i++) {
        slot_t s = slot_at(p, i);

        good = s.offset % LDR_BLOCK == 0 && s.offset >= at &&
               s.offset <= h->bytes && s.bytes <= h->bytes - s.offset;
        at = s.offset + s.bytes;
    }
    return good && align(at) == h->bytes
               ? LARDER_OK
               : ldr_fail(LARDER_E_CORRUPT,
                          "this memory was not fetched for %u tokens",
                          p->move->end);
}

static larder_status_t check_place(const larder_layout_t *layout,
                                   const larder_move_t *m)
{
    for (uint32_t g = 0; g < layout->group_count; g++) {
        const ldr_group_t *group = &layout->group[g];

        if (group->slice == group->slice_end ||
            m->begin % group->block_tokens != 0) {
            return ldr_fail(LARDER_E_INVALID,
                            "group %u has no layers, or blocks of %u", g,
                            group->block_tokens);
        }
    }
    for (uint32_t i = 0; i < layout->table_count; i++) {
        if (m->tables[i].ids == NULL && m->tables[i].count > 0) {
            return ldr_fail(LARDER_E_INVALID, "table %u is NULL", i);
        }
    }
    return m->begin <= m->end ? LARDER_OK
                              : ldr_fail(LARDER_E_INVALID, "tokens %u to %u",
                                         m->begin, m->end);
}

larder_status_t larder_prefix_place(const larder_layout_t *layout,
                                    larder_move_t *move, const void *memory,
                                    size_t size)
{
    size_t scratch = 0;
    place_t p = {
        .layout = layout, .move = move, .memory = memory, .size = size};

    larder_status_t st = ldr_in_check(move, sizeof(*move));
    if (st != LARDER_OK) {
        return st;
    }
    if (layout == NULL || move->tables == NULL || memory == NULL) {
        return ldr_fail(LARDER_E_INVALID, "layout, tables or memory");
    }
    st = check_place(layout, move);
    if (st != LARDER_OK) {
        return st;
    }
    memcpy(&p.head, memory, ldr_min64(size, sizeof(p.head)));
    st = check_memory(&p);
    if (st != LARDER_OK) {
        return st;
    }
    p.segments.max = p.rows.max = 1;
    for (uint32_t g = 0; g < layout->group_count; g++) {
        const ldr_group_t *group = &layout->group[g];

        scratch = ldr_max64(scratch, group->bytes_max);
        p.segments.max = (uint32_t)ldr_max64(p.segments.max, group->pieces_max);
        p.rows.max = (uint32_t)ldr_max64(p.rows.max, group->runs_max);
    }
    p.scratch_bytes = scratch;
    p.scratch = ldr_reserve(scratch);
    if (layout->gpu != NULL) {
        p.rows.rows = ldr_alloc(p.rows.max * sizeof(*p.rows.rows));
    } else {
        p.segments.iov = ldr_alloc(p.segments.max * sizeof(*p.segments.iov));
    }
    move->shards = move->present = move->skipped = move->failed = 0;
    move->bytes = 0;
    move->item = LARDER_OK;
    move->cause = LARDER_CAUSE_NONE;
    st = p.scratch != NULL && (p.segments.iov != NULL || p.rows.rows != NULL)
             ? place_all(&p, false)
             : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory to place");
    if (st == LARDER_OK) {
        st = place_all(&p, true);
    }
    ldr_unreserve(p.scratch, scratch);
    ldr_free(p.segments.iov);
    ldr_free(p.rows.rows);
    return st;
}
