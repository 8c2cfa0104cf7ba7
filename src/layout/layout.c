/* What an engine described, checked; the one enumeration; segment lists. */
#include "layout/layout.h"

#include <inttypes.h>

#include "base/bytes.h"
#include "base/grow.h"
#include "base/log.h"
#include "base/mem.h"

/* ---- checking ---- */

static const char *name_of(const char *name)
{
    return name != NULL ? name : "(no name)";
}

static larder_status_t check_region(const larder_region_t *r, uint32_t i)
{
    uintptr_t end;

    if (r->base == NULL || r->bytes == 0 ||
        __builtin_add_overflow((uintptr_t)r->base, r->bytes, &end)) {
        return ldr_fail(LARDER_E_INVALID,
                        "region %u (%s): no memory of %zu bytes at %p", i,
                        name_of(r->name), r->bytes, r->base);
    }
    return LARDER_OK;
}

/* Regions are allocations: they share no byte. */
static larder_status_t check_regions(const larder_layout_params_t *p)
{
    for (uint32_t i = 0; i < p->region_count; i++) {
        const larder_region_t *a = &p->regions[i];
        larder_status_t st = check_region(a, i);

        for (uint32_t k = 0; k < i && st == LARDER_OK; k++) {
            const larder_region_t *b = &p->regions[k];
            const uint8_t *x = a->base, *y = b->base;

            if (x < y + b->bytes && y < x + a->bytes) {
                st = ldr_fail(LARDER_E_OVERLAP,
                              "region %u (%s) overlaps region %u (%s): "
                              "register each allocation once",
                              i, name_of(a->name), k, name_of(b->name));
            }
        }
        if (st != LARDER_OK) {
            return st;
        }
    }
    return LARDER_OK;
}

static larder_status_t check_layer(const larder_layout_params_t *p,
                                   uint32_t group, const larder_layer_t *l)
{
    uint64_t end;

    if (l->region >= p->region_count) {
        return ldr_fail(LARDER_E_INVALID,
                        "layer %s of group %u: there is no region %u",
                        name_of(l->name), group, l->region);
    }
    if (l->bytes == 0 || l->stride < l->bytes) {
        return ldr_fail(LARDER_E_INVALID,
                        "layer %s of group %u: pages of %" PRIu64
                        " bytes, %" PRIu64 " apart",
                        name_of(l->name), group, l->bytes, l->stride);
    }
    const larder_region_t *r = &p->regions[l->region];

    if (__builtin_mul_overflow(l->stride, (uint64_t)p->block_count - 1, &end) ||
        __builtin_add_overflow(end, l->bytes, &end) ||
        __builtin_add_overflow(end, l->offset, &end) || end > r->bytes) {
        return ldr_fail(LARDER_E_SIZE,
                        "layer %s of group %u: block %u ends behind region "
                        "%u (%s) of %zu bytes",
                        name_of(l->name), group, p->block_count - 1, l->region,
                        name_of(r->name), r->bytes);
    }
    return LARDER_OK;
}

/* Whether two layers with pages equally far apart share a byte. */
static bool layers_overlap(const larder_layer_t *a, const larder_layer_t *b,
                           uint32_t block_count)
{
    uint64_t all = a->stride * (block_count - 1);
    uint64_t apart;

    if (a->region != b->region || a->stride != b->stride ||
        a->offset >= b->offset + all + b->bytes ||
        b->offset >= a->offset + all + a->bytes) {
        return false;
    }
    if (a->offset > b->offset) {
        const larder_layer_t *c = a;

        a = b;
        b = c;
    }
    apart = (b->offset - a->offset) % a->stride;
    return apart < a->bytes || a->stride - apart < b->bytes;
}

/* Layers of one group are in use at the same time: a load of both would write
 * the same bytes twice, and be refused each time. */
static larder_status_t check_apart(const larder_layout_params_t *p,
                                   uint32_t group, uint32_t layer)
{
    const larder_layer_t *l = p->groups[group].layers;

    for (uint32_t i = 0; i < layer; i++) {
        if (layers_overlap(&l[i], &l[layer], p->block_count)) {
            return ldr_fail(LARDER_E_OVERLAP,
                            "layer %s of group %u overlaps layer %s: name each "
                            "of a group's pages once",
                            name_of(l[layer].name), group, name_of(l[i].name));
        }
    }
    return LARDER_OK;
}

static larder_status_t check_group(const larder_layout_params_t *p, uint32_t i)
{
    const larder_group_t *g = &p->groups[i];

    if (g->rule > LARDER_RULE_LAST) {
        return ldr_fail(LARDER_E_INVALID, "group %u: there is no rule %d", i,
                        (int)g->rule);
    }
    if (g->block_tokens == 0 || p->chunk_tokens % g->block_tokens != 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "group %u: a chunk of %u tokens is no multiple of its "
                        "block of %u",
                        i, p->chunk_tokens, g->block_tokens);
    }
    if (g->rule == LARDER_RULE_TRAILING && g->window_tokens < 2) {
        return ldr_fail(LARDER_E_INVALID, "group %u: a window of %u tokens", i,
                        g->window_tokens);
    }
    if (g->layer_count > 0 && (g->layers == NULL || p->block_count == 0)) {
        return ldr_fail(LARDER_E_INVALID,
                        "group %u: layers is NULL, or there are no blocks", i);
    }
    for (uint32_t k = 0; k < g->layer_count; k++) {
        larder_status_t st = check_layer(p, i, &g->layers[k]);

        st = st == LARDER_OK ? check_apart(p, i, k) : st;
        if (st != LARDER_OK) {
            return st;
        }
    }
    return LARDER_OK;
}

static larder_status_t check(const larder_layout_params_t *p)
{
    if (p->chunk_tokens == 0 || p->groups == NULL || p->group_count == 0 ||
        p->group_count > LARDER_GROUPS_MAX ||
        (p->regions == NULL && p->region_count > 0)) {
        return ldr_fail(LARDER_E_INVALID,
                        "a layout has chunks of at least one token and 1 to %u "
                        "groups",
                        LARDER_GROUPS_MAX);
    }
    larder_status_t st = check_regions(p);

    for (uint32_t i = 0; i < p->group_count && st == LARDER_OK; i++) {
        st = check_group(p, i);
    }
    return st;
}

/* ---- making ---- */

/* The first block that a prefix of so many tokens, whole blocks, needs. All
 * else about who needs what follows from this. */
static uint64_t first_needed(const ldr_group_t *g, uint64_t tokens)
{
    if (g->rule == LARDER_RULE_LAST && tokens > 0) {
        return tokens / g->block_tokens - 1;
    }
    if (g->rule == LARDER_RULE_TRAILING && tokens >= g->window_tokens) {
        return (tokens - g->window_tokens + 1) / g->block_tokens;
    }
    return 0;
}

/* Sets what follows from the description. */
static larder_status_t group_make(larder_layout_t *layout, uint32_t number,
                                  const larder_layout_params_t *p,
                                  uint32_t *layer_p)
{
    const larder_group_t *from = &p->groups[number];
    ldr_group_t *g = &layout->group[number];
    uint64_t bytes = 0, more;

    g->rule = from->rule;
    g->block_tokens = from->block_tokens;
    g->window_tokens = from->window_tokens;
    g->chunk_blocks = p->chunk_tokens / from->block_tokens;
    g->first_block = (uint32_t)first_needed(g, p->chunk_tokens);
    g->need = (ldr_need_t){
        .chunks =
            g->rule == LARDER_RULE_ALL ? LDR_NEED_ALL
            : g->rule == LARDER_RULE_LAST
                ? 1
                : (uint32_t)ldr_div_up(g->window_tokens - 1, p->chunk_tokens),
        .group = (uint16_t)number,
    };
    g->layer = *layer_p;
    for (uint32_t i = 0; i < from->layer_count; i++) {
        const larder_layer_t *l = &from->layers[i];

        layout->layers[(*layer_p)++] = (ldr_layer_t){
            .base = (uint8_t *)p->regions[l->region].base + l->offset,
            .stride = l->stride,
            .bytes = l->bytes,
        };
        if (__builtin_mul_overflow(
                l->bytes, (uint64_t)g->chunk_blocks - g->first_block, &more) ||
            __builtin_add_overflow(bytes, more, &bytes) ||
            bytes > LARDER_VALUE_MAX) {
            return ldr_fail(LARDER_E_SIZE,
                            "group %u: a chunk of %u tokens has more than %zu "
                            "bytes: use smaller chunks",
                            number, p->chunk_tokens, LARDER_VALUE_MAX);
        }
    }
    g->layer_end = *layer_p;
    uint64_t pages =
        (uint64_t)from->layer_count * (g->chunk_blocks - g->first_block);
    if (pages > LARDER_IOV_MAX) {
        return ldr_fail(LARDER_E_SIZE,
                        "group %u: a chunk of %u tokens has %" PRIu64
                        " pages, more than %u: use smaller chunks",
                        number, p->chunk_tokens, pages, LARDER_IOV_MAX);
    }
    g->shard_bytes = (size_t)bytes;
    g->shard_pages = (uint32_t)pages;
    layout->all = layout->all && g->rule == LARDER_RULE_ALL;
    return LARDER_OK;
}

larder_status_t larder_layout_create(const larder_layout_params_t *params,
                                     larder_layout_t **layout_p)
{
    uint64_t layers = 0;
    uint32_t next = 0;

    if (params == NULL || layout_p == NULL) {
        return ldr_fail(LARDER_E_INVALID, "params or layout_p is NULL");
    }
    larder_status_t st = ldr_mask_check(params->field_mask, LARDER_LAYOUT_GPU);
    st = st == LARDER_OK ? check(params) : st;
    if (st != LARDER_OK) {
        return st;
    }
    for (uint32_t i = 0; i < params->group_count; i++) {
        layers += params->groups[i].layer_count;
    }
    larder_layout_t *layout = ldr_alloc(sizeof(*layout));
    if (layout != NULL) {
        layout->layers = ldr_alloc((layers + 1) * sizeof(*layout->layers));
    }
    if (layout == NULL || layout->layers == NULL) {
        ldr_free(layout);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a layout");
    }
    layout->chunk_tokens = params->chunk_tokens;
    layout->block_count = params->block_count;
    layout->has_null = (params->field_mask & LARDER_LAYOUT_NULL_BLOCK) != 0;
    layout->null_block = layout->has_null ? params->null_block : 0;
    layout->gpu =
        (params->field_mask & LARDER_LAYOUT_GPU) != 0 ? params->gpu : NULL;
    layout->group_count = params->group_count;
    layout->all = true;
    for (uint32_t i = 0; i < params->group_count && st == LARDER_OK; i++) {
        st = group_make(layout, i, params, &next);
    }
    if (st != LARDER_OK) {
        larder_layout_destroy(&layout);
        return st;
    }
    *layout_p = layout;
    return LARDER_OK;
}

void larder_layout_destroy(larder_layout_t **layout_p)
{
    if (layout_p != NULL && *layout_p != NULL) {
        ldr_free((*layout_p)->layers);
        ldr_free(*layout_p);
        *layout_p = NULL;
    }
}

size_t larder_layout_bytes(const larder_layout_t *layout, uint16_t group)
{
    return layout != NULL && group < layout->group_count
               ? layout->group[group].shard_bytes
               : 0;
}

uint32_t larder_layout_first_block(const larder_layout_t *layout,
                                   uint16_t group)
{
    return layout != NULL && group < layout->group_count
               ? layout->group[group].first_block
               : 0;
}

/* ---- the enumeration ---- */

ldr_span_t ldr_need_span(const ldr_need_t *need, uint32_t chunks)
{
    return (ldr_span_t){chunks > need->chunks ? chunks - need->chunks : 0,
                        chunks};
}

ldr_span_t ldr_layout_needs(const larder_layout_t *layout, uint32_t group,
                            uint32_t chunks)
{
    return ldr_need_span(&layout->group[group].need, chunks);
}

uint32_t ldr_layout_list_needs(const larder_layout_t *layout,
                               ldr_need_t needs[LARDER_GROUPS_MAX])
{
    for (uint32_t g = 0; g < layout->group_count; g++) {
        needs[g] = layout->group[g].need;
    }
    return layout->group_count;
}

ldr_span_t ldr_layout_reads(const larder_layout_t *layout, uint32_t group,
                            uint32_t tokens)
{
    const ldr_group_t *g = &layout->group[group];

    return (ldr_span_t){(uint32_t)first_needed(g, tokens),
                        tokens / g->block_tokens};
}

ldr_span_t ldr_layout_blocks(const larder_layout_t *layout, uint32_t group,
                             uint32_t chunk)
{
    const ldr_group_t *g = &layout->group[group];
    uint32_t begin = chunk * g->chunk_blocks;

    return (ldr_span_t){begin + g->first_block, begin + g->chunk_blocks};
}

/* What ends below the missing chunk, or the same if none is missing. */
static uint32_t without_missing(const ldr_need_t *need, uint32_t chunks,
                                const uint8_t *here)
{
    ldr_span_t span = ldr_need_span(need, chunks);

    /* The first that is missing: a prefix that does not need it ends before
     * it, with rule all and trailing; with rule last before the only one. */
    for (uint32_t i = span.first; i < span.end; i++) {
        if (here[i] == 0) {
            return i;
        }
    }
    return chunks;
}

uint32_t ldr_needs_longest(const ldr_need_t *needs, uint32_t need_count,
                           uint32_t chunks, const uint8_t *const *here)
{
    for (bool again = true; again && chunks > 0;) {
        again = false;
        for (uint32_t i = 0; i < need_count; i++) {
            if (here[i] != NULL) {
                uint32_t now = without_missing(&needs[i], chunks, here[i]);

                again = again || now < chunks;
                chunks = now;
            }
        }
    }
    return chunks;
}

/* ---- segments ---- */

static void append(ldr_segments_t *out, uint8_t *base, uint64_t bytes)
{
    struct iovec *last = out->count > 0 ? &out->iov[out->count - 1] : NULL;

    if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == base) {
        last->iov_len += bytes;
        return;
    }
    out->iov[out->count++] = (struct iovec){base, bytes};
}

/* The page of the block at a place of the table; NULL: the null block, which
 * has none. MISS: the table does not reach there. */
static larder_status_t page_at(const larder_layout_t *layout,
                               const ldr_layer_t *layer,
                               const larder_table_t *table, uint32_t place,
                               uint8_t **page_p)
{
    if (place < table->first || place - table->first >= table->count) {
        return LARDER_MISS;
    }
    uint32_t id = table->ids[place - table->first];

    *page_p = NULL;
    if (layout->has_null && id == layout->null_block) {
        return LARDER_OK;
    }
    if (id >= layout->block_count) {
        return ldr_fail(LARDER_E_INVALID, "block %u of %u, at place %u", id,
                        layout->block_count, place);
    }
    *page_p = layer->base + id * layer->stride;
    return LARDER_OK;
}

/* The same for a load, which needs the place. */
static larder_status_t load_page(const larder_layout_t *layout, uint32_t group,
                                 const ldr_layer_t *layer,
                                 const larder_table_t *table, uint32_t place,
                                 uint8_t **page_p)
{
    larder_status_t st = page_at(layout, layer, table, place, page_p);

    return st != LARDER_MISS ? st
                             : ldr_fail(LARDER_E_INVALID,
                                        "the table of group %u has no place %u",
                                        group, place);
}

larder_status_t ldr_layout_places(const larder_layout_t *layout, uint32_t group,
                                  uint32_t chunk, const larder_table_t *table,
                                  ldr_span_t wanted)
{
    const ldr_layer_t *layer = &layout->layers[layout->group[group].layer];
    ldr_span_t blocks = ldr_layout_blocks(layout, group, chunk);
    larder_status_t st = LARDER_OK;

    for (uint32_t place = blocks.first; place < blocks.end && st == LARDER_OK;
         place++) {
        uint8_t *page = NULL;

        if (place >= wanted.first && place < wanted.end) {
            st = load_page(layout, group, layer, table, place, &page);
        }
    }
    return st;
}

larder_status_t ldr_layout_segments(const larder_layout_t *layout,
                                    uint32_t group, uint32_t chunk,
                                    const larder_table_t *table,
                                    ldr_span_t wanted, uint8_t *scratch,
                                    ldr_segments_t *out)
{
    const ldr_group_t *g = &layout->group[group];
    ldr_span_t blocks = ldr_layout_blocks(layout, group, chunk);
    bool load = scratch != NULL;

    out->count = 0;
    if (out->max < g->shard_pages) {
        return ldr_fail(LARDER_E_SIZE, "room for %u segments of %u", out->max,
                        g->shard_pages);
    }
    for (uint32_t l = g->layer; l < g->layer_end; l++) {
        const ldr_layer_t *layer = &layout->layers[l];

        for (uint32_t place = blocks.first; place < blocks.end; place++) {
            bool want = place >= wanted.first && place < wanted.end;
            uint8_t *page = NULL;
            larder_status_t st = LARDER_OK;

            if (!load) {
                st = page_at(layout, layer, table, place, &page);
                st = st == LARDER_OK && page == NULL ? LARDER_MISS : st;
            } else if (want) {
                st = load_page(layout, group, layer, table, place, &page);
            }
            if (st != LARDER_OK) {
                return st;
            }
            if (page == NULL) {
                page = scratch;
                scratch += layer->bytes;
            }
            append(out, page, layer->bytes);
        }
    }
    return LARDER_OK;
}
