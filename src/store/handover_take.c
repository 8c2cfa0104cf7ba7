/*
 * Checking the list that another daemon wrote, and taking what is in it. By the
 * thread that opens the node, before anybody else uses the store.
 *
 * The list is not trusted: ldr_handover_check() compares every number in it
 * with the sizes of the tables, and nothing is taken from a list that fails.
 * After that, what does not fit here is left out.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store/handover_int.h"

/* ---- checking ---- */

static const char *check_head(const ldr_store_t *s, const uint8_t *list,
                              size_t bytes, ldr_ho_t *ho)
{
    const ldr_ho_head_t *head = (const ldr_ho_head_t *)list;

    if (bytes < sizeof(*head) || head->magic != LDR_HANDOVER_MAGIC) {
        return "its list is no list of Larder's";
    }
    if (head->version != LDR_HANDOVER_VERSION) {
        return "its list is of another version";
    }
    if (head->bytes > bytes || head->bytes < sizeof(*head) ||
        head->page_bytes != LDR_PAGE || head->slice_pages != LDR_SLICE_PAGES) {
        return "its list has other sizes";
    }
    if (ldr_ho_tables((uint8_t *)list, ho) != head->bytes ||
        head->crc != ldr_ho_crc(head)) {
        return "its list is damaged";
    }
    if (head->extent_shift != s->arena.extent_shift) {
        return "its memory lies in extents of another size, for dram is "
               "another";
    }
    if (head->disks > LDR_DISKS_MAX || head->tenants > LDR_TENANTS_MAX ||
        head->spaces > LDR_SPACES_MAX ||
        head->extents > LDR_NIL >> head->extent_shift) {
        return "its list has too many rows";
    }
    return NULL;
}

static bool check_owners(const ldr_ho_t *ho)
{
    uint64_t slices = 0;

    for (uint32_t i = 0; i < ho->head->tenants; i++) {
        if (memchr(ho->tenants[i].name, '\0', sizeof(ho->tenants[i].name)) ==
            NULL) {
            return false;
        }
    }
    for (uint32_t i = 0; i < ho->head->spaces; i++) {
        if (ho->spaces[i].tenant != LDR_NIL &&
            ho->spaces[i].tenant >= ho->head->tenants) {
            return false;
        }
    }
    for (uint32_t i = 0; i < ho->head->extents; i++) {
        const ldr_ho_extent_t *x = &ho->extents[i];

        if ((x->tenant != LDR_NIL && x->tenant >= ho->head->tenants) ||
            x->pages == 0 || x->pages > 1u << ho->head->extent_shift) {
            return false;
        }
        slices += ldr_ho_slices(x->pages);
    }
    return slices == ho->head->slices;
}

/* A place in the list's pages lies in an extent that is there. */
static bool check_page(const ldr_ho_t *ho, uint32_t page)
{
    uint32_t row = page >> ho->head->extent_shift;

    return row < ho->head->extents &&
           (page & ((1u << ho->head->extent_shift) - 1)) <
               ho->extents[row].pages;
}

static bool check_chunk(const ldr_ho_t *ho, const ldr_ho_chunk_t *c)
{
    return c->space < ho->head->spaces && c->depth <= LDR_DEPTH_MAX &&
           c->group < LARDER_GROUPS_MAX && c->shards >= 1 &&
           c->shards <= LARDER_SHARDS_MAX && c->here >= 1 &&
           c->here <= c->shards;
}

static bool check_chunks(const ldr_ho_t *ho)
{
    uint64_t shards = 0, pages = 0;

    for (uint32_t i = 0; i < ho->head->chunks; i++) {
        const ldr_ho_chunk_t *c = &ho->chunks[i];

        if (!check_chunk(ho, c) || shards + c->here > ho->head->shards) {
            return false;
        }
        for (uint32_t k = 0; k < c->here; k++) {
            const ldr_ho_shard_t *sh = &ho->shards[shards++];

            if (sh->length == 0 || sh->number >= c->shards) {
                return false;
            }
            pages += ldr_arena_pages(sh->length);
        }
        if (pages > ho->head->pages) {
            return false;
        }
    }
    for (uint32_t i = 0; i < ho->head->pages; i++) {
        if (!check_page(ho, ho->pages[i])) {
            return false;
        }
    }
    return shards == ho->head->shards && pages == ho->head->pages;
}

const char *ldr_handover_check(const ldr_store_t *s, const uint8_t *list,
                               size_t bytes)
{
    ldr_ho_t ho;
    const char *why = check_head(s, list, bytes, &ho);

    if (why == NULL && (!check_owners(&ho) || !check_chunks(&ho))) {
        why = "its list contradicts itself";
    }
    return why;
}

/* ---- taking ---- */

typedef struct taking {
    ldr_store_t *store;
    ldr_ho_t ho;
    uint32_t *tenants; /* by row: the store's; LDR_NIL: not available */
    uint32_t *spaces;
    uint32_t *extents;
    uint32_t *pages; /* of one shard */
    ldr_handover_chunk_t *order;
    uint32_t order_count;
    uint32_t now_s;
    ldr_handover_sum_t *sum;
} taking_t;

/* Whether the epochs here come from a disk that was not open there; or may, of
 * one that is still being read. */
static bool has_new_disk(const taking_t *t)
{
    const ldr_store_t *s = t->store;
    bool found = s->disks_coming == 0;

    for (uint32_t i = 0; i < s->disk_count && found; i++) {
        found = false;
        for (uint32_t k = 0; k < t->ho.head->disks && !found; k++) {
            found =
                memcmp(t->ho.disks[k].id, s->disk_ids[i], LDR_ID_BYTES) == 0;
        }
    }
    return !found;
}

/* The space's epoch is the higher of theirs and what the disks here say. If it
 * was reset while a disk was not open there that is here, and theirs is not the
 * higher: who knows from which disk it is. */
static void take_epoch(taking_t *t, uint32_t space, const ldr_ho_space_t *row)
{
    ldr_store_t *s = t->store;
    ldr_space_t *sp = &s->spaces[space];
    bool doubtful =
        row->above != 0 && sp->epoch >= row->epoch && has_new_disk(t);

    ldr_store_set_epoch(s, space, doubtful ? sp->epoch + 1 : row->epoch);
    sp->above = row->above;
}

static void take_owners(taking_t *t)
{
    ldr_store_t *s = t->store;

    for (uint32_t i = 0; i < t->ho.head->tenants; i++) {
        const ldr_ho_tenant_t *row = &t->ho.tenants[i];

        t->tenants[i] = ldr_store_tenant(s, row->id);
        if (t->tenants[i] == LDR_NIL) {
            continue;
        }
        ldr_tenant_t *tenant = &s->tenants[t->tenants[i]];
        if (tenant->name[0] == '\0') {
            memcpy(tenant->name, row->name, sizeof(tenant->name));
        }
        if (!tenant->secret_known && row->check_known != 0) {
            memcpy(tenant->secret.check, row->check, sizeof(row->check));
            tenant->secret_known = true;
        }
    }
    for (uint32_t i = 0; i < t->ho.head->spaces; i++) {
        const ldr_ho_space_t *row = &t->ho.spaces[i];
        uint32_t tenant =
            row->tenant != LDR_NIL ? t->tenants[row->tenant] : LDR_NIL;

        t->spaces[i] =
            tenant != LDR_NIL ? ldr_store_space(s, row->id) : LDR_NIL;
        if (t->spaces[i] != LDR_NIL) {
            ldr_store_space_of(s, t->spaces[i], tenant);
            take_epoch(t, t->spaces[i], row);
        }
    }
}

/* An extent of that size that nobody has used. */
static uint32_t find_extent(const ldr_arena_t *a, uint32_t pages)
{
    for (uint32_t i = 0; i < a->slot_count; i++) {
        const ldr_arena_extent_t *x = &a->extents[i];

        if (x->state == LDR_EXTENT_FREE && x->count == pages &&
            x->blank_count == x->count) {
            return i;
        }
    }
    return LDR_NIL;
}

/* Those of tenants first: there may be fewer here. */
static void take_extents(taking_t *t, int *fds, bool owned)
{
    ldr_store_t *s = t->store;
    const uint8_t *ready = t->ho.slices;

    for (uint32_t i = 0; i < t->ho.head->extents; i++) {
        const ldr_ho_extent_t *row = &t->ho.extents[i];
        uint32_t tenant =
            row->tenant != LDR_NIL ? t->tenants[row->tenant] : LDR_NIL;

        if ((row->tenant != LDR_NIL) == owned) {
            uint32_t extent = !owned || tenant != LDR_NIL
                                  ? find_extent(&s->arena, row->pages)
                                  : LDR_NIL;

            t->extents[i] = LDR_NIL;
            if (extent != LDR_NIL &&
                ldr_arena_adopt(&s->arena, extent, fds[i], tenant, ready)) {
                t->extents[i] = extent;
                fds[i] = -1;
                if (owned) {
                    ldr_store_share(s, tenant); /* it uses memory */
                }
            }
        }
        ready += ldr_ho_slices(row->pages);
    }
}

/* The shard's pages here. False: not all of them came. */
static bool pages_here(taking_t *t, const uint32_t *from, uint32_t count)
{
    const ldr_arena_t *a = &t->store->arena;
    uint32_t mask = ldr_arena_extent_pages(a) - 1;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t extent = t->extents[from[i] >> a->extent_shift];

        if (extent == LDR_NIL) {
            return false;
        }
        t->pages[i] = a->extents[extent].first + (from[i] & mask);
    }
    return true;
}

/* What the old daemon knew of a shard that is ready now, and the queues that it
 * waits in. A disk gets what it has not got, except what is with other
 * members: one of them keeps it. */
static void take_flags(ldr_store_t *s, uint32_t shard, uint32_t flags,
                       bool on_disk)
{
    ldr_shard_t *sh = &s->shards[shard];
    bool refused = (flags & LDR_HO_REFUSED) != 0;

    sh->refused = refused && !on_disk;
    sh->given = (flags & LDR_HO_GIVEN) != 0;
    sh->announced = (flags & LDR_HO_ANNOUNCED) != 0;
    sh->kept = (flags & LDR_HO_KEPT) != 0;
    sh->tier =
        (flags & LDR_HO_BROUGHT) != 0 ? LARDER_TIER_PEER : LARDER_TIER_DRAM;
    sh->withheld = !on_disk && !refused &&
                   (flags & (LDR_HO_PEER | LDR_HO_SSD)) == LDR_HO_PEER;
    if ((flags & (LDR_HO_GIVEN | LDR_HO_PEER)) == 0) {
        flags |= LDR_HO_SSD;
    }
    if (refused || on_disk) {
        flags &= ~(uint32_t)LDR_HO_SSD;
    }
    for (unsigned i = 0; i < LDR_QUEUES_MAX; i++) {
        if ((flags & ldr_ho_queues[i]) != 0) {
            ldr_behind_push(s, i, shard);
        }
    }
}

/* Gives the chunk the shard is in now, or LDR_NIL. */
static uint32_t take_shard(taking_t *t, const ldr_ho_chunk_t *c,
                           const ldr_ho_shard_t *sh)
{
    ldr_store_t *s = t->store;
    uint32_t space = t->spaces[c->space];
    ldr_reserve_t r = {
        .name = ldr_store_name(s, space, c->group, &c->key),
        .parent = c->depth > 0 ? &c->parent : NULL,
        .depth = c->depth,
        .shards = c->shards,
        .number = sh->number,
        .length = sh->length,
        .now_s = c->written_s,
        .expires_s = c->expires_s,
        .pin = c->pinned != 0,
        .state = LDR_SHARD_FILLING,
        .pages = t->pages,
    };
    larder_cause_t cause;
    uint32_t entry = ldr_store_find(s, &r.name, LDR_NIL, t->now_s, &cause);
    uint32_t shard;

    if (entry != LDR_NIL &&
        (ldr_index_at(&s->index, entry)->shards != c->shards ||
         ldr_store_resident(s, entry, sh->number) != LDR_NIL)) {
        return LDR_NIL;
    }
    if (ldr_store_reserve(s, entry, &r, &shard) != LARDER_OK) {
        return LDR_NIL;
    }
    uint32_t chunk = s->shards[shard].chunk;
    entry = s->chunks[chunk].entry;
    bool on_disk = ldr_index_loc(&s->index, entry, sh->number) != 0;
    if (!ldr_store_commit(s, shard, sh->crc, false)) {
        ldr_store_abort(s, shard);
        return LDR_NIL;
    }
    take_flags(s, shard, sh->flags, on_disk);
    ldr_index_at(&s->index, entry)->used_s = c->used_s;
    ldr_store_release(s, chunk);
    return chunk;
}

static void take_chunks(taking_t *t)
{
    const ldr_ho_shard_t *sh = t->ho.shards;
    const uint32_t *pages = t->ho.pages;

    for (uint32_t i = 0; i < t->ho.head->chunks; i++) {
        const ldr_ho_chunk_t *c = &t->ho.chunks[i];
        uint32_t space = t->spaces[c->space];
        bool fit = space != LDR_NIL &&
                   c->epoch == t->store->spaces[space].epoch &&
                   (c->expires_s == 0 || c->expires_s > t->now_s);
        uint32_t chunk = LDR_NIL;

        for (uint32_t k = 0; k < c->here; k++, sh++) {
            uint32_t count = ldr_arena_pages(sh->length);
            uint32_t got = LDR_NIL;

            if (fit && pages_here(t, pages, count)) {
                got = take_shard(t, c, sh);
            }
            if (got != LDR_NIL) {
                chunk = got;
                t->sum->bytes += sh->length;
            } else {
                t->sum->left_bytes += sh->length;
            }
            pages += count;
        }
        if (chunk != LDR_NIL) {
            t->order[t->order_count++] =
                (ldr_handover_chunk_t){chunk, c->depth, c->used_s};
        }
    }
    t->sum->chunks = t->order_count;
}

/* Oldest first, and of one age the deepest, as chains are used. */
static int by_use(const void *a, const void *b)
{
    const ldr_handover_chunk_t *x = a, *y = b;

    if (x->used_s != y->used_s) {
        return x->used_s < y->used_s ? -1 : 1;
    }
    return x->depth > y->depth ? -1 : x->depth < y->depth;
}

/* Who was used last goes last. */
static void take_order(taking_t *t)
{
    ldr_store_t *s = t->store;

    qsort(t->order, t->order_count, sizeof(*t->order), by_use);
    for (uint32_t i = 0; i < t->order_count; i++) {
        uint32_t chunk = t->order[i].chunk;

        if (s->chunks[chunk].entry != LDR_NIL) {
            ldr_store_hold(s, chunk);
            ldr_store_used(s, chunk);
            ldr_store_release(s, chunk);
        }
    }
}

/* Room for the largest shard's pages. */
static uint32_t pages_most(const ldr_ho_t *ho)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < ho->head->shards; i++) {
        most = (uint32_t)ldr_max64(most, ldr_arena_pages(ho->shards[i].length));
    }
    return most;
}

void ldr_handover_take(ldr_store_t *s, const uint8_t *list, int *fds,
                       uint32_t now_s, ldr_handover_sum_t *sum)
{
    taking_t t = {.store = s, .now_s = now_s, .sum = sum};

    *sum = (ldr_handover_sum_t){0};
    ldr_ho_tables((uint8_t *)list, &t.ho);
    const ldr_ho_head_t *head = t.ho.head;
    t.tenants = ldr_alloc((head->tenants + 1) * sizeof(*t.tenants));
    t.spaces = ldr_alloc((head->spaces + 1) * sizeof(*t.spaces));
    t.extents = ldr_alloc((head->extents + 1) * sizeof(*t.extents));
    t.pages = ldr_alloc(pages_most(&t.ho) * sizeof(*t.pages));
    t.order = ldr_alloc(((size_t)head->chunks + 1) * sizeof(*t.order));
    if (t.tenants != NULL && t.spaces != NULL && t.extents != NULL &&
        t.pages != NULL && t.order != NULL) {
        take_owners(&t);
        take_extents(&t, fds, true);
        take_extents(&t, fds, false);
        take_chunks(&t);
        for (uint32_t i = 0; i < head->extents; i++) {
            if (t.extents[i] != LDR_NIL) {
                ldr_arena_settle(&s->arena, t.extents[i]);
            }
        }
        take_order(&t);
    } else {
        for (uint32_t i = 0; i < head->shards; i++) {
            sum->left_bytes += t.ho.shards[i].length;
        }
    }
    ldr_free(t.tenants);
    ldr_free(t.spaces);
    ldr_free(t.extents);
    ldr_free(t.pages);
    ldr_free(t.order);
}
