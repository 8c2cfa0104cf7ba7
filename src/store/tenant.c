/*
 * Spaces and tenants by number, and what each tenant may have of memory and
 * disks. With the node's lock.
 *
 * Invariants: a space or a tenant keeps its number for the life of the store,
 * and a space belongs to one tenant at most. Shares of memory are whole
 * extents, at least one for each tenant that ever asked for memory; they are
 * worked out when one is looked at and shares_stale is set.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "store/store.h"

#define HELD_LOOK 8u /* extents that are looked at */

/* ---- spaces and tenants ---- */

/* The tenant whose tag the space bears, or LDR_NIL. */
static uint32_t tenant_of_tag(const ldr_store_t *s, const uint8_t *space_id)
{
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        if (memcmp(s->tenants[i].id, space_id, LDR_TENANT_TAG_BYTES) == 0) {
            return i;
        }
    }
    return LDR_NIL;
}

void ldr_store_disk(ldr_store_t *s, const uint8_t id[LDR_ID_BYTES])
{
    for (uint32_t i = 0; i < s->disk_count; i++) {
        if (memcmp(s->disk_ids[i], id, LDR_ID_BYTES) == 0) {
            return;
        }
    }
    if (s->disk_count < LDR_DISKS_MAX) {
        memcpy(s->disk_ids[s->disk_count++], id, LDR_ID_BYTES);
    }
}

void ldr_store_met(ldr_store_t *s)
{
    ldr_store_held(s);
    for (uint32_t i = 0; i < s->space_count && s->disks_absent == 0; i++) {
        s->spaces[i].above = 0;
    }
}

uint32_t ldr_store_space(ldr_store_t *s, const uint8_t id[LDR_ID_BYTES])
{
    /* Newest first: recovery asks for the same one again and again. */
    for (uint32_t i = s->space_count; i-- > 0;) {
        if (memcmp(s->spaces[i].id, id, LDR_ID_BYTES) == 0) {
            return i;
        }
    }
    if (s->space_count == LDR_SPACES_MAX) {
        return LDR_NIL;
    }
    ldr_space_t *space = &s->spaces[s->space_count];
    memcpy(space->id, id, LDR_ID_BYTES);
    space->tenant = tenant_of_tag(s, id);
    space->counted = space->tenant != LDR_NIL;
    if (space->counted) {
        s->tenants[space->tenant].space_count++;
    }
    return s->space_count++;
}

uint32_t ldr_store_tenant(ldr_store_t *s, const uint8_t id[LDR_ID_BYTES])
{
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        if (memcmp(s->tenants[i].id, id, LDR_ID_BYTES) == 0) {
            return i;
        }
    }
    if (s->tenant_count == LDR_TENANTS_MAX) {
        return LDR_NIL;
    }
    ldr_tenant_t *t = &s->tenants[s->tenant_count];
    memset(t, 0, sizeof(*t));
    memcpy(t->id, id, LDR_ID_BYTES);
    t->pin_head = t->pin_tail = LDR_NIL;
    t->transient_head = t->transient_tail = LDR_NIL;
    t->policy = s->policy->create((uint32_t)ldr_arena_table_pages(&s->arena));
    if (t->policy == NULL) {
        return LDR_NIL;
    }
    if (s->disks > 0) {
        t->ssd_blocks = ldr_reserve(ldr_store_segment(s->disks, 0) *
                                    sizeof(*t->ssd_blocks));
        if (t->ssd_blocks == NULL) {
            s->policy->destroy(t->policy);
            return LDR_NIL;
        }
    }
    return s->tenant_count++;
}

void ldr_store_space_of(ldr_store_t *s, uint32_t space, uint32_t tenant)
{
    ldr_space_t *sp = &s->spaces[space];

    if (sp->tenant == tenant) {
        return;
    }
    /* What it has on disk was counted for nobody, or for another with the same
     * tag, and it is too late for that. */
    if (sp->tenant != LDR_NIL) {
        s->tenants[sp->tenant].space_count--;
    }
    s->tenants[tenant].space_count++;
    sp->tenant = tenant;
    sp->counted = false;
}

void ldr_store_limits(ldr_store_t *s, uint32_t tenant, uint64_t dram_max,
                      uint64_t ssd_max)
{
    ldr_tenant_t *t = &s->tenants[tenant];
    uint64_t pages = ldr_min64(dram_max / LDR_PAGE, s->arena.page_count);

    t->dram_max = dram_max;
    t->ssd_max = ssd_max;
    s->arena.owners[tenant].pages_max =
        dram_max == 0 ? 0 : (uint32_t)ldr_max64(pages, 1);
    s->shares_stale = true;
}

void ldr_store_set_epoch(ldr_store_t *s, uint32_t space, uint32_t epoch)
{
    ldr_space_t *sp = &s->spaces[space];

    ldr_store_held(s);
    if (epoch <= sp->epoch) {
        return;
    }
    for (uint32_t i = 0; i < s->disks && sp->counted; i++) {
        LDR_ASSERT(s->tenants[sp->tenant].disk_bytes[i] >= sp->disk_bytes[i]);
        s->tenants[sp->tenant].ssd_bytes -= sp->disk_bytes[i];
        s->tenants[sp->tenant].disk_bytes[i] -= sp->disk_bytes[i];
    }
    sp->epoch = epoch;
    if (sp->tenant != LDR_NIL) {
        s->tenants[sp->tenant].void_next = 0;
        s->tenants[sp->tenant].void_end = s->chunk_top;
    }
    if (s->changes != NULL) {
        s->changes->missed = true;
    }
    sp->ssd_bytes = sp->chunks = 0;
    memset(sp->disk_bytes, 0, sizeof(sp->disk_bytes));
}

/* ---- shares of memory ---- */

/* The extents that a limit stands for. */
static uint32_t extents_wanted(const ldr_store_t *s, uint32_t tenant)
{
    return (uint32_t)ldr_div_up(s->arena.owners[tenant].pages_max,
                                ldr_arena_extent_pages(&s->arena));
}

static void update_shares(ldr_store_t *s)
{
    uint64_t limited = 0, others = 0, given = 0;

    for (uint32_t i = 0; i < s->tenant_count; i++) {
        if (s->tenants[i].asks) {
            limited += extents_wanted(s, i);
            others += s->tenants[i].dram_max == 0;
        }
    }
    /* Limits that are more than there is are cut, all by the same part. */
    uint64_t all = s->arena.extent_count;
    uint64_t room = all > others ? all - others : 1;
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        ldr_tenant_t *t = &s->tenants[i];
        uint64_t share = extents_wanted(s, i);

        if (t->asks && t->dram_max != 0) {
            share = limited <= room ? share : share * room / limited;
            t->share = (uint32_t)ldr_max64(share, 1);
            given += t->share;
        }
    }
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        ldr_tenant_t *t = &s->tenants[i];

        if (t->asks && t->dram_max == 0) {
            uint64_t left = all > given ? all - given : 0;

            t->share = (uint32_t)ldr_max64(left / others, 1);
        }
    }
    s->shares_stale = false;
}

uint32_t ldr_store_share(ldr_store_t *s, uint32_t tenant)
{
    ldr_tenant_t *t = &s->tenants[tenant];

    if (!t->asks) {
        t->asks = true;
        s->shares_stale = true;
    }
    if (s->shares_stale) {
        update_shares(s);
    }
    return t->share;
}

/* The tenant that is most over its share, or LDR_NIL. */
static uint32_t most_over(const ldr_store_t *s)
{
    uint32_t best = LDR_NIL, most = 0;

    for (uint32_t i = 0; i < s->tenant_count; i++) {
        const ldr_owner_t *owner = &s->arena.owners[i];
        uint32_t has = owner->extent_count + owner->overdue_count;
        uint32_t share = s->tenants[i].share;

        if (owner->extent_count > 0 && has > share && has - share > most) {
            most = has - share;
            best = i;
        }
    }
    return best;
}

/* Whether somebody holds something in it, so that it cannot leave soon. */
static bool is_held(const ldr_store_t *s, uint32_t extent)
{
    const ldr_arena_extent_t *x = &s->arena.extents[extent];

    for (uint32_t i = 0; i < x->count; i++) {
        uint32_t shard = ldr_arena_holder(&s->arena, x->first + i);

        if (shard != LDR_NIL && s->chunks[s->shards[shard].chunk].holds > 0) {
            return true;
        }
    }
    return false;
}

/* The extent, or if it cannot leave soon, one of the next of the tenant's that
 * can; a few are looked at. */
static uint32_t free_to_leave(const ldr_store_t *s, uint32_t tenant,
                              uint32_t extent)
{
    const ldr_arena_t *a = &s->arena;
    uint32_t looks = HELD_LOOK;

    if (extent == LDR_NIL || !is_held(s, extent)) {
        return extent;
    }
    for (uint32_t i = 1; i < a->slot_count && looks > 0; i++) {
        uint32_t other = (extent + i) % a->slot_count;

        if (a->extents[other].state == LDR_EXTENT_OWNED &&
            a->extents[other].tenant == tenant) {
            if (!is_held(s, other)) {
                return other;
            }
            looks--;
        }
    }
    return extent;
}

/* Which of a tenant's extents it misses least: one that is much emptier than
 * the others, or the one where its next victim lies. */
static uint32_t choose_extent(const ldr_store_t *s, uint32_t tenant)
{
    const ldr_arena_t *a = &s->arena;
    const ldr_tenant_t *t = &s->tenants[tenant];
    uint32_t victim = s->policy->victim(t->policy);
    uint32_t best = LDR_NIL, least = 0;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < a->slot_count; i++) {
        const ldr_arena_extent_t *x = &a->extents[i];
        uint32_t used = x->ready_count - x->free_count;

        if (x->state == LDR_EXTENT_OWNED && x->tenant == tenant) {
            sum += used;
            if (best == LDR_NIL || used < least) {
                best = i;
                least = used;
            }
        }
    }
    if (victim != LDR_NIL &&
        (uint64_t)least * 2 * a->owners[tenant].extent_count > sum) {
        uint32_t page = s->shards[s->chunks[victim].shards].page;
        uint32_t extent = ldr_arena_extent_of(a, page);

        if (a->extents[extent].state == LDR_EXTENT_OWNED) {
            return extent;
        }
    }
    return best;
}

uint32_t ldr_store_demand(ldr_store_t *s, uint32_t tenant)
{
    const ldr_owner_t *owner = &s->arena.owners[tenant];
    uint32_t share = ldr_store_share(s, tenant);

    if (owner->extent_count + owner->overdue_count + owner->coming_count >=
        share) {
        return LDR_NIL;
    }
    uint32_t giver = most_over(s);
    if (giver == LDR_NIL || giver == tenant) {
        return LDR_NIL;
    }
    uint32_t extent = free_to_leave(s, giver, choose_extent(s, giver));
    ldr_arena_leave(&s->arena, extent, tenant);
    return extent;
}

bool ldr_store_vacate(ldr_store_t *s, uint32_t extent, uint32_t pages)
{
    ldr_arena_extent_t *x = &s->arena.extents[extent];

    /* It may have become overdue since the lock was last held. */
    while ((x->state == LDR_EXTENT_LEAVING || x->state == LDR_EXTENT_OVERDUE) &&
           x->cursor < x->count) {
        if (pages-- == 0) {
            return true;
        }
        uint32_t shard = ldr_arena_holder(&s->arena, x->first + x->cursor++);
        if (shard == LDR_NIL) {
            continue;
        }
        ldr_chunk_t *c = &s->chunks[s->shards[shard].chunk];
        if (c->holds > 0) {
            c->leaving = 1;
        } else {
            ldr_store_evict_chunk(s, s->shards[shard].chunk);
        }
    }
    return false;
}

/* ---- shares of the disks ---- */

/* Counts a location in or out. */
static void count_loc(ldr_store_t *s, const ldr_entry_t *e, ldr_loc_t loc,
                      int sign)
{
    ldr_space_t *space = &s->spaces[e->space];
    ldr_tenant_t *t = space->counted ? &s->tenants[space->tenant] : NULL;
    uint64_t blocks = ldr_loc_blocks(loc);
    uint64_t bytes = sign > 0 ? blocks * LDR_BLOCK : -(blocks * LDR_BLOCK);
    uint32_t disk = ldr_loc_disk(loc);

    if (loc == 0 || disk >= s->disks) {
        return;
    }
    if (t != NULL) {
        t->ssd_blocks[ldr_store_segment(disk, ldr_loc_segment(loc))] +=
            (uint32_t)(sign > 0 ? blocks : -blocks);
    }
    /* Stale ones left the sums when the epoch was raised. */
    if (e->epoch == space->epoch) {
        space->ssd_bytes += bytes;
        space->disk_bytes[disk] += bytes;
        if (t != NULL) {
            t->ssd_bytes += bytes;
            t->disk_bytes[disk] += bytes;
        }
    }
}

void ldr_store_set_loc(ldr_store_t *s, uint32_t entry, uint32_t number,
                       ldr_loc_t loc)
{
    const ldr_entry_t *e = ldr_index_at(&s->index, entry);

    count_loc(s, e, ldr_index_loc(&s->index, entry, number), -1);
    ldr_index_set_loc(&s->index, entry, number, loc);
    count_loc(s, e, loc, 1);
    ldr_store_changed(s, e->fingerprint);
}

/* How much of its share it uses on the disk. */
static double part_used(const ldr_tenant_t *t, uint32_t disk)
{
    return (double)t->disk_bytes[disk] / (double)t->ssd_share;
}

/* The safe tenant that uses most of its share on the disk is not safe there.
 * Gives what the others have. */
static uint64_t protect_less(ldr_store_t *s, uint32_t disk, uint64_t kept)
{
    ldr_tenant_t *most = NULL;

    for (uint32_t i = 0; i < s->tenant_count; i++) {
        ldr_tenant_t *t = &s->tenants[i];

        if ((t->ssd_safe >> disk & 1) != 0 && t->disk_bytes[disk] > 0 &&
            (most == NULL || part_used(t, disk) > part_used(most, disk))) {
            most = t;
        }
    }
    most->ssd_safe &= ~((uint32_t)1 << disk);
    return kept - most->disk_bytes[disk];
}

bool ldr_store_protect(ldr_store_t *s, uint32_t disk, uint64_t disk_bytes,
                       uint64_t all_bytes)
{
    uint64_t limited = 0, others = 0, count = 0, kept = 0;
    uint32_t bit = (uint32_t)1 << disk;

    for (uint32_t i = 0; i < s->tenant_count; i++) {
        const ldr_tenant_t *t = &s->tenants[i];

        if (t->ssd_bytes > 0) {
            limited += t->ssd_max;
            others += t->ssd_max == 0;
            count++;
        }
    }
    uint64_t equal =
        others > 0 && all_bytes > limited ? (all_bytes - limited) / others : 0;
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        ldr_tenant_t *t = &s->tenants[i];

        t->ssd_share = t->ssd_bytes == 0 || count < 2 ? 0
                       : t->ssd_max != 0              ? t->ssd_max
                                                      : equal;
        t->ssd_safe &= ~bit;
        if (t->ssd_bytes > 0 && t->ssd_bytes <= t->ssd_share) {
            t->ssd_safe |= bit;
            kept += t->disk_bytes[disk];
        }
    }
    while (kept > disk_bytes) {
        kept = protect_less(s, disk, kept);
    }
    return count >= 2;
}
