/*
 * Writing the list of what one daemon hands over to the next (handover.h;
 * handover_int.h has its form).
 *
 * In two steps: ldr_handover_plan() counts what goes, ldr_handover_write() puts
 * it into memory of that size. By the thread that closes the node, when nobody
 * else uses the store any more: no lock is needed.
 */
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "store/handover_int.h"

/* ---- the tables ---- */

size_t ldr_ho_tables(uint8_t *list, ldr_ho_t *ho)
{
    ldr_ho_head_t *head = (ldr_ho_head_t *)list;
    uint8_t *at = list + sizeof(*head);

    ho->head = head;
    ho->disks = (ldr_ho_disk_t *)at;
    at += head->disks * sizeof(*ho->disks);
    ho->tenants = (ldr_ho_tenant_t *)at;
    at += head->tenants * sizeof(*ho->tenants);
    ho->spaces = (ldr_ho_space_t *)at;
    at += head->spaces * sizeof(*ho->spaces);
    ho->extents = (ldr_ho_extent_t *)at;
    at += head->extents * sizeof(*ho->extents);
    ho->chunks = (ldr_ho_chunk_t *)at;
    at += head->chunks * sizeof(*ho->chunks);
    ho->shards = (ldr_ho_shard_t *)at;
    at += head->shards * sizeof(*ho->shards);
    ho->pages = (uint32_t *)at;
    at += head->pages * sizeof(*ho->pages);
    ho->slices = at;
    at += head->slices;
    return (size_t)(at - list);
}

uint32_t ldr_ho_crc(const ldr_ho_head_t *head)
{
    const size_t from = offsetof(ldr_ho_head_t, crc) + sizeof(head->crc);

    return ldr_crc32c(0, (const uint8_t *)head + from, head->bytes - from);
}

uint32_t ldr_handover_extents(const uint8_t *list)
{
    return ((const ldr_ho_head_t *)list)->extents;
}

bool ldr_handover_mapped(const uint8_t *list)
{
    return ((const ldr_ho_head_t *)list)->mapped != 0;
}

/* ---- what goes ---- */

static bool extent_goes(const ldr_arena_extent_t *x)
{
    return (x->state == LDR_EXTENT_FREE || x->state == LDR_EXTENT_OWNED) &&
           !x->stays && x->hand_count == 0 && x->ready_count > 0;
}

static bool shard_goes(const ldr_store_t *s, const uint32_t *extent_row,
                       const ldr_shard_t *sh)
{
    if (sh->state != LDR_SHARD_READY) {
        return false;
    }
    for (uint32_t page = sh->page; page != LDR_NIL;
         page = s->arena.next[page]) {
        if (extent_row[ldr_arena_extent_of(&s->arena, page)] == LDR_NIL) {
            return false;
        }
    }
    return true;
}

/* How many shards of the chunk go, and what is counted of them. */
static uint32_t plan_chunk(const ldr_store_t *s, ldr_handover_plan_t *plan,
                           const ldr_chunk_t *c)
{
    bool fit =
        !c->leaving && c->holds == 0 && c->epoch == s->spaces[c->space].epoch;
    uint32_t here = 0;

    for (uint32_t i = c->shards; i != LDR_NIL; i = s->shards[i].next) {
        const ldr_shard_t *sh = &s->shards[i];

        if (fit && shard_goes(s, plan->extent_row, sh)) {
            here++;
            plan->page_count += ldr_arena_pages(sh->length);
        } else if (sh->state == LDR_SHARD_READY) {
            plan->left_bytes += sh->length;
        }
    }
    plan->shard_count += here;
    return here;
}

/* Parents first. */
static int by_depth(const void *a, const void *b)
{
    const ldr_handover_chunk_t *x = a, *y = b;

    if (x->depth != y->depth) {
        return x->depth < y->depth ? -1 : 1;
    }
    return x->used_s < y->used_s ? -1 : x->used_s > y->used_s;
}

bool ldr_handover_plan(const ldr_store_t *s, ldr_handover_plan_t *plan)
{
    const ldr_arena_t *a = &s->arena;

    *plan = (ldr_handover_plan_t){0};
    plan->extent_row = ldr_alloc(a->slot_count * sizeof(*plan->extent_row));
    plan->extents = ldr_alloc(a->slot_count * sizeof(*plan->extents));
    plan->chunks = ldr_alloc((size_t)s->chunk_top * sizeof(*plan->chunks));
    if (plan->extent_row == NULL || plan->extents == NULL ||
        plan->chunks == NULL) {
        ldr_handover_unplan(plan);
        return false;
    }
    for (uint32_t i = 0; i < a->slot_count; i++) {
        plan->extent_row[i] = LDR_NIL;
        if (extent_goes(&a->extents[i])) {
            plan->extent_row[i] = plan->extent_count;
            plan->extents[plan->extent_count++] = i;
            plan->slice_count += ldr_ho_slices(a->extents[i].count);
        }
    }
    for (uint32_t i = 0; i < s->chunk_top; i++) {
        const ldr_chunk_t *c = &s->chunks[i];

        if (c->entry != LDR_NIL && plan_chunk(s, plan, c) > 0) {
            const ldr_entry_t *e = ldr_index_at(&s->index, c->entry);

            plan->chunks[plan->chunk_count++] =
                (ldr_handover_chunk_t){i, c->depth, e->used_s};
        }
    }
    qsort(plan->chunks, plan->chunk_count, sizeof(*plan->chunks), by_depth);
    plan->bytes = sizeof(ldr_ho_head_t) +
                  s->disk_count * sizeof(ldr_ho_disk_t) +
                  s->tenant_count * sizeof(ldr_ho_tenant_t) +
                  s->space_count * sizeof(ldr_ho_space_t) +
                  plan->extent_count * sizeof(ldr_ho_extent_t) +
                  plan->chunk_count * sizeof(ldr_ho_chunk_t) +
                  plan->shard_count * sizeof(ldr_ho_shard_t) +
                  plan->page_count * sizeof(uint32_t) + plan->slice_count;
    return true;
}

void ldr_handover_unplan(ldr_handover_plan_t *plan)
{
    ldr_free(plan->extent_row);
    ldr_free(plan->extents);
    ldr_free(plan->chunks);
    *plan = (ldr_handover_plan_t){0};
}

/* ---- writing it down ---- */

static void write_owners(const ldr_store_t *s, ldr_ho_t *ho)
{
    memcpy(ho->disks, s->disk_ids, s->disk_count * sizeof(*ho->disks));
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        const ldr_tenant_t *t = &s->tenants[i];
        ldr_ho_tenant_t *row = &ho->tenants[i];

        memcpy(row->id, t->id, sizeof(row->id));
        memcpy(row->check, t->secret.check, sizeof(row->check));
        memcpy(row->name, t->name, sizeof(row->name));
        row->check_known = t->secret_known;
    }
    for (uint32_t i = 0; i < s->space_count; i++) {
        ldr_ho_space_t *row = &ho->spaces[i];

        memcpy(row->id, s->spaces[i].id, sizeof(row->id));
        row->epoch = s->spaces[i].epoch;
        row->above = s->spaces[i].above;
        row->tenant = s->spaces[i].tenant;
    }
}

static void write_extents(const ldr_store_t *s, const ldr_handover_plan_t *plan,
                          ldr_ho_t *ho)
{
    uint8_t *slices = ho->slices;

    for (uint32_t i = 0; i < plan->extent_count; i++) {
        const ldr_arena_extent_t *x = &s->arena.extents[plan->extents[i]];

        ho->extents[i] = (ldr_ho_extent_t){x->tenant, x->count};
        for (uint32_t at = 0; at < x->count; at += LDR_SLICE_PAGES) {
            *slices++ = ldr_arena_is_ready(&s->arena, x->first + at);
        }
    }
}

static uint32_t flags_of(const ldr_shard_t *sh)
{
    uint32_t flags = (sh->refused ? LDR_HO_REFUSED : 0u) |
                     (sh->given ? LDR_HO_GIVEN : 0u) |
                     (sh->announced ? LDR_HO_ANNOUNCED : 0u) |
                     (sh->kept ? LDR_HO_KEPT : 0u) |
                     (sh->tier == LARDER_TIER_PEER ? LDR_HO_BROUGHT : 0u);

    for (unsigned i = 0; i < LDR_QUEUES_MAX; i++) {
        flags |= sh->queued >> i & 1u ? ldr_ho_queues[i] : 0u;
    }
    return flags;
}

static uint32_t *write_shard(const ldr_store_t *s,
                             const ldr_handover_plan_t *plan,
                             const ldr_shard_t *sh, ldr_ho_shard_t *row,
                             uint32_t *pages)
{
    const ldr_arena_t *a = &s->arena;
    uint32_t mask = ldr_arena_extent_pages(a) - 1;

    *row = (ldr_ho_shard_t){
        .length = sh->length,
        .crc = sh->crc,
        .number = sh->number,
        .flags = flags_of(sh),
    };
    for (uint32_t page = sh->page; page != LDR_NIL; page = a->next[page]) {
        *pages++ = plan->extent_row[ldr_arena_extent_of(a, page)]
                       << a->extent_shift |
                   (page & mask);
    }
    return pages;
}

static void write_chunks(const ldr_store_t *s, const ldr_handover_plan_t *plan,
                         ldr_ho_t *ho)
{
    ldr_ho_shard_t *shard = ho->shards;
    uint32_t *pages = ho->pages;

    for (uint32_t i = 0; i < plan->chunk_count; i++) {
        const ldr_chunk_t *c = &s->chunks[plan->chunks[i].chunk];
        const ldr_entry_t *e = ldr_index_at(&s->index, c->entry);
        ldr_ho_chunk_t *row = &ho->chunks[i];

        *row = (ldr_ho_chunk_t){
            .key = c->key,
            .parent = c->parent,
            .space = c->space,
            .depth = c->depth,
            .epoch = c->epoch,
            .written_s = c->written_s,
            .used_s = e->used_s,
            .expires_s = e->expires_s,
            .group = c->group,
            .shards = e->shards,
            .pinned = c->pinned,
        };
        for (uint32_t k = c->shards; k != LDR_NIL; k = s->shards[k].next) {
            if (shard_goes(s, plan->extent_row, &s->shards[k])) {
                pages = write_shard(s, plan, &s->shards[k], shard++, pages);
                row->here++;
            }
        }
    }
}

void ldr_handover_write(const ldr_store_t *s, const ldr_handover_plan_t *plan,
                        bool mapped, uint8_t *to)
{
    ldr_ho_head_t *head = (ldr_ho_head_t *)to;
    ldr_ho_t ho;

    *head = (ldr_ho_head_t){
        .magic = LDR_HANDOVER_MAGIC,
        .version = LDR_HANDOVER_VERSION,
        .bytes = plan->bytes,
        .page_bytes = LDR_PAGE,
        .slice_pages = LDR_SLICE_PAGES,
        .extent_shift = s->arena.extent_shift,
        .mapped = mapped,
        .disks = s->disk_count,
        .tenants = s->tenant_count,
        .spaces = s->space_count,
        .extents = plan->extent_count,
        .chunks = plan->chunk_count,
        .shards = plan->shard_count,
        .pages = plan->page_count,
        .slices = plan->slice_count,
    };
    ldr_ho_tables(to, &ho);
    write_owners(s, &ho);
    write_extents(s, plan, &ho);
    write_chunks(s, plan, &ho);
    head->crc = ldr_ho_crc(head);
}
