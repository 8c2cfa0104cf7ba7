#include "node/list.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "node/load.h"
#include "node/ssd.h"

#define SLICE 64u       /* entries looked at before others get the lock */
#define LOOK_MAX 65536u /* in one page, also if nothing is there */
#define READS 32u       /* descriptors read at once */

_Static_assert(LARDER_SHARDS_MAX <= LDR_LIST_ROWS, "a chunk fits a page");

/* A row whose key is on a disk. */
typedef struct pending {
    uint32_t row;
    ldr_loc_t loc;
    uint64_t fingerprint;
    uint32_t space;
} pending_t;

typedef struct page {
    ldr_node_t *node;
    uint32_t tenant;
    ldr_listed_t *rows;
    uint32_t count;
    pending_t pending[LDR_LIST_ROWS];
    uint32_t pending_count;
    uint8_t *blocks; /* READS of them */
} page_t;

static ldr_segment_t *segment_of(const page_t *p, ldr_loc_t loc)
{
    return &p->node->ssds[ldr_loc_disk(loc)]
                .disk.segments[ldr_loc_segment(loc)];
}

/* One shard of an entry, if it is anywhere. With the lock. */
static void add_shard(page_t *p, uint32_t entry, uint32_t number)
{
    ldr_store_t *store = &p->node->store;
    const ldr_entry_t *e = ldr_index_at(&store->index, entry);
    uint32_t shard = ldr_store_resident(store, entry, number);
    ldr_loc_t loc = ldr_index_loc(&store->index, entry, number);
    bool dram =
        shard != LDR_NIL && store->shards[shard].state == LDR_SHARD_READY;
    bool ssd = ldr_node_disk(p->node, loc) != NULL;

    if (!dram && !ssd) {
        return;
    }
    ldr_listed_t *row = &p->rows[p->count++];
    *row = (ldr_listed_t){
        .group = e->group,
        .shard = (uint16_t)number,
        .shards = e->shards,
        .expires_s = e->expires_s,
        .depth = ldr_entry_depth(e),
        .pinned = (ldr_entry_flags(e) & LDR_ENTRY_PINNED) != 0,
        .dram = dram,
        .ssd = ssd,
    };
    memcpy(row->space_id, store->spaces[e->space].id, LDR_ID_BYTES);
    if (dram) {
        const ldr_chunk_t *chunk = &store->chunks[store->shards[shard].chunk];

        row->key = chunk->key;
        row->has_key = true;
        row->length = store->shards[shard].length;
        row->written_s = chunk->written_s;
        return;
    }
    row->length = (ldr_loc_blocks(loc) - 1) * LDR_BLOCK;
    p->pending[p->pending_count++] =
        (pending_t){p->count - 1, loc, e->fingerprint, e->space};
    segment_of(p, loc)->readers++; /* it is not used anew meanwhile */
}

/* False: the page has no room for it. With the lock. */
static bool add_entry(page_t *p, uint32_t entry, uint32_t now_s)
{
    const ldr_store_t *store = &p->node->store;
    const ldr_entry_t *e = ldr_index_at(&store->index, entry);

    if (e->shards == 0 || store->spaces[e->space].tenant != p->tenant ||
        e->epoch != store->spaces[e->space].epoch ||
        (e->expires_s != 0 && now_s >= e->expires_s)) {
        return true;
    }
    if (p->count + e->shards > LDR_LIST_ROWS) {
        return false;
    }
    for (uint32_t i = 0; i < e->shards; i++) {
        add_shard(p, entry, i);
    }
    return true;
}

/* Gives where to go on. */
static uint32_t look(page_t *p, uint32_t cursor)
{
    ldr_node_t *node = p->node;
    uint32_t now_s = ldr_wall_s(node->clock);

    ldr_node_lock(node);
    uint32_t top = node->store.index.entry_top;
    uint32_t end = (uint32_t)ldr_min64(top, (uint64_t)cursor + SLICE);
    while (cursor < end && add_entry(p, cursor, now_s)) {
        cursor++;
    }
    ldr_node_unlock(node);
    return cursor < top ? cursor : LDR_NIL;
}

/* A descriptor that came: the one that was looked for has that fingerprint. */
static void take_record(page_t *p, const pending_t *w, const uint8_t *block)
{
    ldr_ssd_t *ssd = &p->node->ssds[ldr_loc_disk(w->loc)];
    ldr_listed_t *row = &p->rows[w->row];
    ldr_record_t record;

    ldr_node_lock(p->node);
    ldr_segment_header_t header =
        ldr_disk_header(&ssd->disk, ldr_loc_segment(w->loc));
    ldr_node_unlock(p->node);
    if (!ldr_record_parse(block, &header,
                          ldr_loc_block(w->loc) + ldr_loc_blocks(w->loc) - 1,
                          &record)) {
        return;
    }
    ldr_name_t name =
        ldr_store_name(&p->node->store, w->space, record.group, &record.key);
    if (name.fingerprint == w->fingerprint) {
        row->key = record.key;
        row->has_key = true;
        row->length = record.length;
        row->written_s = record.written_s;
    }
}

static void read_some(page_t *p, const pending_t *w, uint32_t count)
{
    ldr_io_req_t reqs[READS], *list[READS];
    struct iovec iov[READS];

    for (uint32_t i = 0; i < count; i++) {
        uint64_t block =
            ldr_loc_block(w[i].loc) + (uint64_t)ldr_loc_blocks(w[i].loc) - 1;

        iov[i] = (struct iovec){p->blocks + (size_t)i * LDR_BLOCK, LDR_BLOCK};
        reqs[i] = (ldr_io_req_t){
            .kind = LDR_IO_READ,
            .file =
                segment_of(p, w[i].loc)->file, /* open while it has readers */
            .offset = block * LDR_BLOCK,
            .iov = &iov[i],
            .iov_count = 1,
        };
        list[i] = &reqs[i];
    }
    ldr_io_run_all(p->node->io, list, count);
    for (uint32_t i = 0; i < count; i++) {
        if (reqs[i].error == 0) {
            take_record(p, &w[i], iov[i].iov_base);
        }
    }
}

/* What is not read keeps its row, without a key. */
static void read_keys(page_t *p, const ldr_stop_t *stop)
{
    for (uint32_t at = 0; at < p->pending_count; at += READS) {
        if (ldr_node_stopped(p->node, stop) == LARDER_OK) {
            read_some(p, p->pending + at,
                      (uint32_t)ldr_min64(p->pending_count - at, READS));
        }
    }
    ldr_node_lock(p->node);
    for (uint32_t i = 0; i < p->pending_count; i++) {
        ldr_segment_t *segment = segment_of(p, p->pending[i].loc);

        if (--segment->readers == 0) {
            ldr_ssd_wake(&p->node->ssds[ldr_loc_disk(p->pending[i].loc)]);
        }
    }
    ldr_node_unlock(p->node);
    p->pending_count = 0;
}

static bool begin(ldr_node_t *node)
{
    ldr_node_lock(node);
    bool mine = !node->listing;
    node->listing = true;
    ldr_node_unlock(node);
    return mine;
}

larder_status_t ldr_node_list(ldr_node_t *node, uint32_t tenant,
                              uint32_t *cursor_p,
                              ldr_listed_t rows[LDR_LIST_ROWS],
                              uint32_t *count_p, const ldr_stop_t *stop)
{
    uint32_t cursor = *cursor_p, looked = 0;
    page_t *p = ldr_alloc(sizeof(*p));

    *count_p = 0;
    if (p == NULL ||
        (p->blocks = ldr_alloc_blocks(READS * LDR_BLOCK)) == NULL) {
        ldr_free(p);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a list");
    }
    if (!begin(node)) {
        ldr_free(p->blocks);
        ldr_free(p);
        return ldr_fail(LARDER_E_BUSY, "somebody else lists: try again");
    }
    p->node = node;
    p->tenant = tenant;
    p->rows = rows;
    while (cursor != LDR_NIL && looked < LOOK_MAX) {
        uint32_t next = look(p, cursor);

        if (next == cursor || ldr_node_stopped(node, stop) != LARDER_OK) {
            cursor = next;
            break; /* full, or late */
        }
        looked += SLICE;
        cursor = next;
    }
    read_keys(p, stop);
    ldr_node_lock(node);
    node->listing = false;
    ldr_node_unlock(node);
    *cursor_p = cursor;
    *count_p = p->count;
    ldr_free(p->blocks);
    ldr_free(p);
    return LARDER_OK;
}
