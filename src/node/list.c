/*
 * Listing what a tenant has, page by page.
 *
 * The lock is held for SLICE entries at a time, and not while keys are read
 * from a disk. node->listing (with the lock) is true while one caller lists:
 * there is one at a time, because it may wait for a disk. Between two slices
 * entries come and go: a row tells of something that was there when its slice
 * was looked at.
 */
#include "node/list.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "node/load.h"

#define SLICE 64u       /* entries looked at before others get the lock */
#define LOOK_MAX 65536u /* in one page, also if nothing is there */

_Static_assert(LARDER_SHARDS_MAX <= LDR_LIST_ROWS, "a chunk fits a page");

typedef struct page {
    ldr_node_t *node;
    uint32_t tenant;
    ldr_listed_t *rows;
    uint32_t count;
    /* Rows whose key a tier below DRAM has, and which row each is. */
    ldr_looked_t looked[LDR_LIST_ROWS];
    uint32_t looked_row[LDR_LIST_ROWS];
    uint32_t looked_count;
} page_t;

/* The tier that can read back what it recorded; NULL: there is none. */
static ldr_tier_t *recording_tier(const ldr_node_t *node)
{
    for (unsigned i = 0; i < node->tier_count; i++) {
        if (node->order[i]->ops->read_records != NULL) {
            return node->order[i];
        }
    }
    return NULL;
}

/* One shard of an entry, if it is anywhere. With the lock. */
static void add_shard(page_t *p, uint32_t entry, uint32_t number)
{
    ldr_store_t *store = &p->node->store;
    const ldr_entry_t *e = ldr_index_at(&store->index, entry);
    uint32_t shard = ldr_store_resident(store, entry, number);
    bool dram =
        shard != LDR_NIL && store->shards[shard].state == LDR_SHARD_READY;
    ldr_tier_t *tier = recording_tier(p->node);
    ldr_sought_t sought = {.entry = entry, .number = number};
    larder_cause_t cause;
    uint32_t bytes = tier != NULL ? tier->ops->find(tier, &sought, &cause) : 0;

    if (!dram && bytes == 0) {
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
        .ssd = bytes > 0,
    };
    memcpy(row->space_id, store->spaces[e->space].id, LDR_ID_BYTES);
    memcpy(row->label, store->spaces[e->space].label, sizeof(row->label));
    if (dram) {
        const ldr_chunk_t *chunk = &store->chunks[store->shards[shard].chunk];

        row->key = chunk->key;
        row->has_key = true;
        row->length = store->shards[shard].length;
        row->written_s = chunk->written_s;
        return;
    }
    row->length = bytes;
    p->looked[p->looked_count] = (ldr_looked_t){.entry = entry,
                                                .number = number,
                                                .space = e->space,
                                                .fingerprint = e->fingerprint};
    p->looked_row[p->looked_count++] = p->count - 1;
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
static uint32_t page_look(page_t *p, uint32_t cursor)
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

/* What is not read keeps its row, without a key. */
static void read_keys(page_t *p, const ldr_stop_t *stop)
{
    ldr_tier_t *tier = recording_tier(p->node);

    if (p->looked_count > 0) {
        tier->ops->read_records(tier, p->looked, p->looked_count, stop);
    }
    for (uint32_t i = 0; i < p->looked_count; i++) {
        const ldr_looked_t *l = &p->looked[i];
        ldr_listed_t *row = &p->rows[p->looked_row[i]];

        if (l->found) {
            row->key = l->record.key;
            row->has_key = true;
            row->length = l->record.length;
            row->written_s = l->record.written_s;
        }
    }
}

static bool page_begin(ldr_node_t *node)
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
    if (p == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a list");
    }
    if (!page_begin(node)) {
        ldr_free(p);
        return ldr_fail(LARDER_E_BUSY, "another list is under way: try again");
    }
    p->node = node;
    p->tenant = tenant;
    p->rows = rows;
    while (cursor != LDR_NIL && looked < LOOK_MAX) {
        uint32_t next = page_look(p, cursor);

        if (next == cursor ||
            ldr_host_stopped(&node->host, stop) != LARDER_OK) {
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
    ldr_free(p);
    return LARDER_OK;
}
