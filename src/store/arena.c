/*
 * Pages, and the extents that they lie in. The states of an extent, and what
 * may be called without the node's lock, are in arena.h; all else here needs
 * it.
 *
 * Invariants
 *  1. A page is blank, in hand (being made resident), free, or in one shard's
 *     list; an extent's blank and ready pages and those of its slices in hand
 *     add up to its count, and the free ones are a part of the ready ones.
 *  2. Free pages of an extent are linked from its free_head; an OWNED extent
 *     with a free page is in its tenant's list of open ones, all others are in
 *     none.
 *  3. A tenant's counts of extents and of blank, free and in-hand pages are the
 *     sums over its OWNED extents; what is leaving or overdue is counted apart.
 *  4. An extent's generation grows by one each time that its memory is made
 *     again, and an extent is made again only when no page, no slice and no
 *     mapper is left.
 */
#include "store/arena.h"

#include "base/bytes.h"
#include "base/check.h"
#include "store/index.h"

/* Enough extents that several tenants find room even in a small arena, few
 * files, and no more than EXTENTS_MAX of them even in a huge one. */
#define EXTENT_BYTES_MAX ((uint64_t)1 << 30)
#define EXTENTS_AIM 32u
#define EXTENTS_MAX 256u

/* FRESH: resident, and its last page was never taken yet: it is still where it
 * came to lie among the free ones. */
enum { SLICE_BLANK, SLICE_IN_HAND, SLICE_FRESH, SLICE_READY };

static uint32_t extent_shift_for(uint64_t pages)
{
    uint64_t aim = ldr_min64(pages / EXTENTS_AIM, EXTENT_BYTES_MAX / LDR_PAGE);
    uint32_t shift = 5; /* one slice */

    aim = ldr_max64(aim, ldr_div_up(pages, EXTENTS_MAX));
    while (((uint64_t)1 << shift) < aim) {
        shift++;
    }
    return shift;
}

/* ---- making and destroying ---- */

/* The extent's memory, where it is wanted. */
static bool make_memory(const ldr_arena_t *a, uint32_t extent)
{
    ldr_arena_extent_t *x = &a->extents[extent];
    uint64_t nodes = a->numa_nodes;

    if (!a->backed) {
        return true;
    }
    if (!ldr_extent_create(&x->memory, (size_t)x->count * LDR_PAGE)) {
        return false;
    }
    if (nodes != 0) {
        uint32_t skip =
            extent % (uint32_t)__builtin_popcountll((unsigned long long)nodes);

        while (skip-- > 0) {
            nodes &= nodes - 1;
        }
        if (!ldr_extent_bind(&x->memory, (unsigned)__builtin_ctzll(nodes))) {
            ldr_extent_destroy(&x->memory);
            return false;
        }
    }
    return true;
}

static void make_blank(ldr_arena_t *a, uint32_t extent)
{
    ldr_arena_extent_t *x = &a->extents[extent];

    x->blank_count = x->count;
    x->blank_hint = x->first;
    x->ready_count = x->free_count = 0;
    x->free_head = LDR_NIL;
    memset(&a->slice_state[x->first / LDR_SLICE_PAGES], SLICE_BLANK,
           ldr_div_up(x->count, LDR_SLICE_PAGES));
}

larder_status_t ldr_arena_init(ldr_arena_t *a, uint64_t bytes, bool backed,
                               uint64_t numa_nodes)
{
    uint64_t pages = bytes / LDR_PAGE;

    *a = (ldr_arena_t){.backed = backed, .numa_nodes = numa_nodes};
    if (pages == 0 || pages >= LDR_NIL) {
        return LARDER_E_INVALID;
    }
    a->page_count = (uint32_t)pages;
    a->extent_shift = extent_shift_for(pages);
    a->extent_count = (uint32_t)ldr_div_up(pages, ldr_arena_extent_pages(a));
    a->slot_count = a->extent_count + (a->extent_count + 1) / 2;
    if (ldr_arena_table_pages(a) >= LDR_NIL) {
        return LARDER_E_INVALID;
    }
    a->next = ldr_reserve(ldr_arena_table_pages(a) * sizeof(*a->next));
    a->holder = ldr_reserve(ldr_arena_table_pages(a) * sizeof(*a->holder));
    a->slice_state = ldr_reserve(ldr_arena_table_pages(a) / LDR_SLICE_PAGES);
    a->owners = ldr_reserve(LDR_TENANTS_MAX * sizeof(*a->owners));
    a->extents = ldr_alloc(a->slot_count * sizeof(*a->extents));
    if (a->next == NULL || a->holder == NULL || a->slice_state == NULL ||
        a->owners == NULL || a->extents == NULL) {
        goto err;
    }
    for (uint32_t i = 0; i < a->slot_count; i++) {
        ldr_arena_extent_t *x = &a->extents[i];

        x->first = i << a->extent_shift;
        x->tenant = x->heir = LDR_NIL;
        x->generation = 1;
        if (i < a->extent_count) {
            x->count = (uint32_t)ldr_min64(pages - x->first,
                                           ldr_arena_extent_pages(a));
            if (!make_memory(a, i)) {
                goto err;
            }
        } else {
            x->state = LDR_EXTENT_SPARE;
        }
        make_blank(a, i);
    }
    a->unowned = a->extent_count;
    return LARDER_OK;

err:
    ldr_arena_destroy(a);
    return LARDER_E_NO_MEMORY;
}

void ldr_arena_destroy(ldr_arena_t *a)
{
    for (uint32_t i = 0; a->extents != NULL && i < a->slot_count; i++) {
        ldr_extent_destroy(&a->extents[i].memory);
    }
    ldr_free(a->extents);
    ldr_unreserve(a->next, ldr_arena_table_pages(a) * sizeof(*a->next));
    ldr_unreserve(a->holder, ldr_arena_table_pages(a) * sizeof(*a->holder));
    ldr_unreserve(a->slice_state, ldr_arena_table_pages(a) / LDR_SLICE_PAGES);
    ldr_unreserve(a->owners, LDR_TENANTS_MAX * sizeof(*a->owners));
    *a = (ldr_arena_t){0};
}

/* ---- the extents of a tenant that have free pages ---- */

static void open_unlink(ldr_arena_t *a, uint32_t extent)
{
    ldr_arena_extent_t *x = &a->extents[extent];
    ldr_owner_t *owner = &a->owners[x->tenant];

    if (x->prev != LDR_NIL) {
        a->extents[x->prev].next = x->next;
    } else {
        owner->open = x->next + 1;
    }
    if (x->next != LDR_NIL) {
        a->extents[x->next].prev = x->prev;
    }
}

static void open_link(ldr_arena_t *a, uint32_t extent)
{
    ldr_arena_extent_t *x = &a->extents[extent];
    ldr_owner_t *owner = &a->owners[x->tenant];

    x->prev = LDR_NIL;
    x->next = owner->open - 1;
    if (x->next != LDR_NIL) {
        a->extents[x->next].prev = extent;
    }
    owner->open = extent + 1;
}

/* The extent gained free pages: it is the first that gives some, so that a
 * save gets the neighbouring pages of what was evicted for it. */
static void open_front(ldr_arena_t *a, uint32_t extent, uint32_t gained)
{
    ldr_arena_extent_t *x = &a->extents[extent];
    ldr_owner_t *owner = &a->owners[x->tenant];

    owner->free_count += gained;
    if (owner->open != extent + 1) {
        if (x->free_count > gained) {
            open_unlink(a, extent);
        }
        open_link(a, extent);
    }
}

/* ---- extents ---- */

static void own(ldr_arena_t *a, uint32_t extent, uint32_t tenant)
{
    ldr_arena_extent_t *x = &a->extents[extent];
    ldr_owner_t *owner = &a->owners[tenant];

    x->state = LDR_EXTENT_OWNED;
    x->tenant = tenant;
    owner->extent_count++;
    owner->blank_count += x->blank_count;
    owner->hand_count += x->hand_count;
    if (x->free_count > 0) {
        open_front(a, extent, x->free_count);
    }
}

bool ldr_arena_claim(ldr_arena_t *a, uint32_t tenant, bool ready)
{
    const ldr_owner_t *owner = &a->owners[tenant];
    uint32_t best = LDR_NIL;

    uint64_t has = owner->extent_count + owner->overdue_count;

    if (a->unowned == 0 ||
        (owner->pages_max != 0 && has << a->extent_shift >= owner->pages_max)) {
        return false;
    }
    for (uint32_t i = 0; i < a->slot_count; i++) {
        const ldr_arena_extent_t *x = &a->extents[i];

        if (x->state == LDR_EXTENT_FREE && (!ready || x->ready_count > 0) &&
            (best == LDR_NIL ||
             x->ready_count > a->extents[best].ready_count)) {
            best = i;
        }
    }
    if (best == LDR_NIL) {
        return false;
    }
    a->unowned--;
    own(a, best, tenant);
    return true;
}

static void make_empty(ldr_arena_t *a, ldr_arena_extent_t *x)
{
    x->state = LDR_EXTENT_EMPTY;
    x->tenant = LDR_NIL;
    a->empty_count++;
    a->emptied = true;
}

/* Whether the last one is gone from an extent that is leaving. */
static void check_empty(ldr_arena_t *a, uint32_t extent)
{
    ldr_arena_extent_t *x = &a->extents[extent];

    if (x->free_count != x->ready_count || x->hand_count > 0 ||
        x->mappers > 0) {
        return;
    }
    if (x->state == LDR_EXTENT_LEAVING) {
        a->owners[x->tenant].leaving_count--;
        make_empty(a, x);
    } else if (x->state == LDR_EXTENT_OVERDUE) {
        a->owners[x->tenant].overdue_count--;
        a->overdue_count--;
        make_empty(a, x);
    }
}

void ldr_arena_leave(ldr_arena_t *a, uint32_t extent, uint32_t heir)
{
    ldr_arena_extent_t *x = &a->extents[extent];
    ldr_owner_t *owner = &a->owners[x->tenant];

    if (!LDR_HOLDS(x->state == LDR_EXTENT_OWNED) ||
        !LDR_HOLDS(owner->extent_count > 0 &&
                   owner->free_count >= x->free_count)) {
        return;
    }
    if (x->free_count > 0) {
        open_unlink(a, extent);
    }
    owner->extent_count--;
    owner->leaving_count++;
    owner->free_count -= x->free_count;
    owner->blank_count -= x->blank_count;
    owner->hand_count -= x->hand_count;
    a->owners[heir].coming_count++;
    x->state = LDR_EXTENT_LEAVING;
    x->heir = heir;
    x->cursor = 0;
    check_empty(a, extent);
}

static uint32_t find_spare(const ldr_arena_t *a)
{
    for (uint32_t i = 0; i < a->slot_count; i++) {
        if (a->extents[i].state == LDR_EXTENT_SPARE) {
            return i;
        }
    }
    return LDR_NIL;
}

bool ldr_arena_overdue(ldr_arena_t *a, uint32_t extent)
{
    ldr_arena_extent_t *x = &a->extents[extent];
    ldr_owner_t *owner = &a->owners[x->tenant];
    uint32_t spare = x->hand_count == 0 ? find_spare(a) : LDR_NIL;

    if (spare == LDR_NIL) {
        return false;
    }
    ldr_arena_extent_t *other = &a->extents[spare];
    other->count = x->count;
    other->heir = x->heir;
    make_empty(a, other);
    x->heir = LDR_NIL;
    /* Pages that are free are about to lose their memory, and no more come. */
    x->ready_count -= x->free_count;
    a->ready_count -= x->free_count;
    a->free_count -= x->free_count;
    x->free_count = x->blank_count = 0;
    x->free_head = LDR_NIL;
    x->trimmed = 0;
    x->state = LDR_EXTENT_OVERDUE;
    owner->leaving_count--;
    owner->overdue_count++;
    a->overdue_count++;
    return true;
}

bool ldr_arena_trim_take(ldr_arena_t *a, ldr_slice_t *run)
{
    for (uint32_t i = 0; a->overdue_count > 0 && i < a->slot_count; i++) {
        ldr_arena_extent_t *x = &a->extents[i];

        if (x->state != LDR_EXTENT_OVERDUE) {
            continue;
        }
        while (x->trimmed < x->count && a->holder[x->first + x->trimmed] != 0) {
            x->trimmed++;
        }
        *run = (ldr_slice_t){x->first + x->trimmed, 0};
        while (x->trimmed < x->count && a->holder[x->first + x->trimmed] == 0) {
            x->trimmed++;
            run->count++;
        }
        if (run->count > 0) {
            return true;
        }
    }
    return false;
}

void ldr_arena_trim(const ldr_arena_t *a, const ldr_slice_t *run)
{
    const ldr_arena_extent_t *x =
        &a->extents[ldr_arena_extent_of(a, run->first)];

    /* What cannot be given back now is when the extent is made again. */
    (void)ldr_extent_empty(&x->memory,
                           (size_t)(run->first - x->first) * LDR_PAGE,
                           (size_t)run->count * LDR_PAGE);
}

bool ldr_arena_renew_take(ldr_arena_t *a, uint32_t *extent_p)
{
    if (a->empty_count == 0) {
        return false;
    }
    uint32_t i = 0;
    while (a->extents[i].state != LDR_EXTENT_EMPTY) {
        i++;
    }
    ldr_arena_extent_t *x = &a->extents[i];
    a->empty_count--;
    a->ready_count -= x->ready_count;
    a->free_count -= x->free_count;
    make_blank(a, i);
    x->state = LDR_EXTENT_RENEWING;
    *extent_p = i;
    return true;
}

bool ldr_arena_renew_make(ldr_arena_t *a, uint32_t extent)
{
    ldr_arena_extent_t *x = &a->extents[extent];

    /* A client that said it had unmapped it may have it still: what it has is
     * empty. */
    (void)ldr_extent_empty(&x->memory, 0, x->memory.bytes);
    ldr_extent_destroy(&x->memory);
    return x->heir == LDR_NIL || make_memory(a, extent);
}

void ldr_arena_renew_give(ldr_arena_t *a, uint32_t extent, bool ok)
{
    ldr_arena_extent_t *x = &a->extents[extent];

    if (!ok) {
        x->state = LDR_EXTENT_EMPTY;
        a->empty_count++;
        return;
    }
    uint32_t heir = x->heir;
    x->generation++;
    if (heir == LDR_NIL) {
        x->state = LDR_EXTENT_SPARE;
        return;
    }
    x->heir = LDR_NIL;
    a->owners[heir].coming_count--;
    own(a, extent, heir);
}

bool ldr_arena_renewing(const ldr_arena_t *a, uint32_t heir)
{
    for (uint32_t i = 0; i < a->slot_count; i++) {
        const ldr_arena_extent_t *x = &a->extents[i];

        if ((x->state == LDR_EXTENT_RENEWING || x->state == LDR_EXTENT_EMPTY) &&
            x->heir == heir) {
            return true;
        }
    }
    return false;
}

bool ldr_arena_map(ldr_arena_t *a, uint32_t tenant, uint32_t extent,
                   uint32_t generation)
{
    if (extent >= a->slot_count) {
        return false;
    }
    ldr_arena_extent_t *x = &a->extents[extent];
    if (tenant == LDR_NIL || x->tenant != tenant ||
        x->generation != generation) {
        return false;
    }
    x->mappers++;
    return true;
}

void ldr_arena_unmap(ldr_arena_t *a, uint32_t extent, uint32_t generation)
{
    if (extent < a->slot_count) {
        ldr_arena_extent_t *x = &a->extents[extent];

        if (x->generation == generation && x->mappers > 0) {
            x->mappers--;
            check_empty(a, extent);
        }
    }
}

uint32_t ldr_arena_ready_pages(const ldr_arena_t *a, uint32_t extent)
{
    const ldr_arena_extent_t *x = &a->extents[extent];
    uint32_t pages = 0;

    while (pages < x->count &&
           a->slice_state[(x->first + pages) / LDR_SLICE_PAGES] >=
               SLICE_FRESH) {
        pages += LDR_SLICE_PAGES;
    }
    return pages < x->count ? pages : x->count;
}

/* ---- slices ---- */

static uint32_t blank_extent(const ldr_arena_t *a, ldr_extent_state_t state,
                             uint32_t tenant)
{
    for (uint32_t i = 0; i < a->slot_count; i++) {
        const ldr_arena_extent_t *x = &a->extents[i];

        if (x->blank_count > 0 && x->state == state &&
            (tenant == LDR_NIL || x->tenant == tenant)) {
            return i;
        }
    }
    return LDR_NIL;
}

bool ldr_arena_slice_take(ldr_arena_t *a, uint32_t tenant, ldr_slice_t *slice)
{
    if (tenant != LDR_NIL && a->owners[tenant].blank_count == 0) {
        return false;
    }
    uint32_t extent = blank_extent(a, LDR_EXTENT_OWNED, tenant);
    if (extent == LDR_NIL && tenant == LDR_NIL) {
        extent = blank_extent(a, LDR_EXTENT_FREE, LDR_NIL);
    }
    if (extent == LDR_NIL) {
        return false;
    }
    ldr_arena_extent_t *x = &a->extents[extent];
    uint32_t at = x->blank_hint;
    while (a->slice_state[at / LDR_SLICE_PAGES] != SLICE_BLANK) {
        at += LDR_SLICE_PAGES;
    }
    slice->first = at;
    slice->count =
        (uint32_t)ldr_min64(LDR_SLICE_PAGES, x->first + x->count - at);
    a->slice_state[at / LDR_SLICE_PAGES] = SLICE_IN_HAND;
    x->blank_hint = at;
    x->blank_count -= slice->count;
    x->hand_count++;
    if (x->state == LDR_EXTENT_OWNED) {
        a->owners[x->tenant].blank_count -= slice->count;
        a->owners[x->tenant].hand_count++;
    }
    return true;
}

bool ldr_arena_slice_populate(ldr_arena_t *a, const ldr_slice_t *slice)
{
    ldr_arena_extent_t *x = &a->extents[ldr_arena_extent_of(a, slice->first)];

    return !a->backed ||
           ldr_extent_populate(&x->memory,
                               (size_t)(slice->first - x->first) * LDR_PAGE,
                               (size_t)slice->count * LDR_PAGE);
}

/* Where it goes among the free pages: behind the last slice before it that is
 * fresh. So what is saved lies in long runs, in whatever order slices become
 * resident. */
static uint32_t *place_for(ldr_arena_t *a, ldr_arena_extent_t *x,
                           const ldr_slice_t *slice)
{
    for (uint32_t at = slice->first; at > x->first; at -= LDR_SLICE_PAGES) {
        if (a->slice_state[at / LDR_SLICE_PAGES - 1] == SLICE_FRESH) {
            return &a->next[at - 1];
        }
    }
    return &x->free_head;
}

void ldr_arena_slice_give(ldr_arena_t *a, const ldr_slice_t *slice, bool ok)
{
    uint32_t extent = ldr_arena_extent_of(a, slice->first);
    ldr_arena_extent_t *x = &a->extents[extent];
    bool owned = x->state == LDR_EXTENT_OWNED;

    if (!LDR_HOLDS(x->hand_count > 0)) {
        return; /* it was given back before */
    }
    a->slice_state[slice->first / LDR_SLICE_PAGES] =
        ok ? SLICE_FRESH : SLICE_BLANK;
    x->hand_count--;
    if (owned) {
        a->owners[x->tenant].hand_count--;
    }
    if (ok) {
        uint32_t *link = place_for(a, x, slice);

        /* Last first, so that taking pages gives them in ascending order. */
        for (uint32_t i = slice->count; i-- > 0;) {
            a->next[slice->first + i] = *link;
            *link = slice->first + i;
        }
        x->ready_count += slice->count;
        x->free_count += slice->count;
        a->ready_count += slice->count;
        a->free_count += slice->count;
        if (owned) {
            open_front(a, extent, slice->count);
        }
    } else {
        x->blank_count += slice->count;
        x->blank_hint = (uint32_t)ldr_min64(x->blank_hint, slice->first);
        if (owned) {
            a->owners[x->tenant].blank_count += slice->count;
        }
    }
    check_empty(a, extent);
}

/* ---- pages ---- */

static void note_taken(ldr_arena_t *a, uint32_t page)
{
    if (page % LDR_SLICE_PAGES == LDR_SLICE_PAGES - 1) {
        a->slice_state[page / LDR_SLICE_PAGES] = SLICE_READY;
    }
}

uint32_t ldr_arena_take(ldr_arena_t *a, uint32_t tenant, uint32_t count)
{
    ldr_owner_t *owner = &a->owners[tenant];
    uint32_t head = LDR_NIL;
    uint32_t *link = &head;

    if (count == 0 || owner->free_count < count ||
        (owner->pages_max != 0 &&
         (uint64_t)owner->used_count + count > owner->pages_max)) {
        return LDR_NIL;
    }
    owner->free_count -= count;
    owner->used_count += count;
    a->free_count -= count;
    while (count > 0) {
        uint32_t extent = owner->open - 1;
        ldr_arena_extent_t *x = &a->extents[extent];

        LDR_ASSERT(x->state == LDR_EXTENT_OWNED && x->free_count > 0);
        uint32_t take = count < x->free_count ? count : x->free_count;
        uint32_t last = x->free_head;

        *link = last;
        for (uint32_t i = 1; i < take; i++) {
            note_taken(a, last);
            last = a->next[last];
        }
        note_taken(a, last);
        link = &a->next[last];
        x->free_head = *link;
        x->free_count -= take;
        count -= take;
        if (x->free_count == 0) {
            open_unlink(a, extent);
        }
    }
    *link = LDR_NIL;
    return head;
}

void ldr_arena_hand(ldr_arena_t *a, uint32_t head, uint32_t holder)
{
    for (uint32_t page = head; page != LDR_NIL; page = a->next[page]) {
        a->holder[page] = holder + 1;
    }
}

/* Their memory is to be trimmed, too. */
static void give_overdue(ldr_arena_t *a, uint32_t extent, uint32_t count)
{
    ldr_arena_extent_t *x = &a->extents[extent];

    x->ready_count -= count;
    a->ready_count -= count;
    x->trimmed = 0;
    a->emptied = true;
}

uint32_t ldr_arena_give(ldr_arena_t *a, uint32_t head)
{
    uint32_t given = 0;

    while (head != LDR_NIL) {
        uint32_t extent = ldr_arena_extent_of(a, head);
        ldr_arena_extent_t *x = &a->extents[extent];
        uint32_t last = head;
        uint32_t count = 1;

        a->holder[head] = 0;
        while (a->next[last] != LDR_NIL &&
               ldr_arena_extent_of(a, a->next[last]) == extent) {
            last = a->next[last];
            a->holder[last] = 0;
            count++;
        }
        uint32_t rest = a->next[last];
        if (!LDR_HOLDS(x->tenant != LDR_NIL &&
                       a->owners[x->tenant].used_count >= count)) {
            return given; /* they are nobody's: given back before */
        }
        given += count;
        a->owners[x->tenant].used_count -= count;
        if (x->state == LDR_EXTENT_OVERDUE) {
            give_overdue(a, extent, count);
        } else {
            a->next[last] = x->free_head;
            x->free_head = head;
            x->free_count += count;
            a->free_count += count;
        }
        if (x->state == LDR_EXTENT_OWNED) {
            open_front(a, extent, count);
        } else {
            check_empty(a, extent);
        }
        head = rest;
    }
    return given;
}

/* ---- what was handed over ---- */

#define UNSETTLED UINT32_MAX /* the holder of a page that is not yet kept */

bool ldr_arena_is_ready(const ldr_arena_t *a, uint32_t page)
{
    return a->slice_state[page / LDR_SLICE_PAGES] >= SLICE_FRESH;
}

bool ldr_arena_adopt(ldr_arena_t *a, uint32_t extent, int fd, uint32_t tenant,
                     const uint8_t *ready)
{
    ldr_arena_extent_t *x = &a->extents[extent];
    ldr_extent_t memory = {0};

    if (x->state != LDR_EXTENT_FREE || x->blank_count != x->count ||
        (a->backed &&
         !ldr_extent_adopt(&memory, fd, (size_t)x->count * LDR_PAGE))) {
        return false;
    }
    if (a->backed) {
        ldr_extent_destroy(&x->memory);
        x->memory = memory;
    }
    for (uint32_t at = x->first; at < x->first + x->count;
         at += LDR_SLICE_PAGES) {
        uint32_t end = (uint32_t)ldr_min64((uint64_t)at + LDR_SLICE_PAGES,
                                           x->first + x->count);

        if (ready[(at - x->first) / LDR_SLICE_PAGES] == 0) {
            continue;
        }
        a->slice_state[at / LDR_SLICE_PAGES] = SLICE_READY;
        for (uint32_t page = at; page < end; page++) {
            a->holder[page] = UNSETTLED;
        }
        x->blank_count -= end - at;
        x->ready_count += end - at;
        a->ready_count += end - at;
    }
    if (tenant != LDR_NIL) {
        a->unowned--;
        own(a, extent, tenant);
    }
    return true;
}

uint32_t ldr_arena_keep(ldr_arena_t *a, uint32_t tenant, const uint32_t *pages,
                        uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const ldr_arena_extent_t *x =
            &a->extents[ldr_arena_extent_of(a, pages[i])];

        if (a->holder[pages[i]] != UNSETTLED || x->tenant != tenant) {
            while (i-- > 0) {
                a->holder[pages[i]] = UNSETTLED;
            }
            return LDR_NIL;
        }
        a->holder[pages[i]] = 0;
        a->next[pages[i]] = i + 1 < count ? pages[i + 1] : LDR_NIL;
    }
    a->owners[tenant].used_count += count;
    return pages[0];
}

void ldr_arena_settle(ldr_arena_t *a, uint32_t extent)
{
    ldr_arena_extent_t *x = &a->extents[extent];
    uint32_t gained = 0;

    /* Last first, so that taking pages gives them in ascending order. */
    for (uint32_t page = x->first + x->count; page-- > x->first;) {
        if (a->holder[page] == UNSETTLED) {
            a->holder[page] = 0;
            a->next[page] = x->free_head;
            x->free_head = page;
            gained++;
        }
    }
    x->free_count += gained;
    a->free_count += gained;
    if (gained > 0 && x->state == LDR_EXTENT_OWNED) {
        open_front(a, extent, gained);
    }
}
