/* What an engine described: checked, and made a layout. */
#include "layout/layout.h"

#include <inttypes.h>
#include <stdlib.h>

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

static uint32_t table_count(const larder_layout_params_t *p)
{
    return (p->field_mask & LARDER_LAYOUT_TABLES) != 0 ? p->table_count
                                                       : p->group_count;
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

/* Layers of one table are in use at the same time: a load of both would write
 * the same bytes twice, and be refused each time. */
static larder_status_t check_pair(const larder_layout_params_t *p,
                                  uint32_t group, uint32_t layer,
                                  uint32_t other, uint32_t before)
{
    const larder_layer_t *a = &p->groups[group].layers[layer];
    const larder_layer_t *b = &p->groups[other].layers[before];

    if (ldr_layer_table(p, group, layer) != ldr_layer_table(p, other, before)) {
        return LARDER_OK;
    }
    if (p->groups[group].block_tokens != p->groups[other].block_tokens) {
        return ldr_fail(LARDER_E_INVALID,
                        "groups %u and %u share table %u, and have blocks of "
                        "%u and %u tokens",
                        other, group, ldr_layer_table(p, group, layer),
                        p->groups[other].block_tokens,
                        p->groups[group].block_tokens);
    }
    return layers_overlap(a, b, p->block_count)
               ? ldr_fail(LARDER_E_OVERLAP,
                          "layer %s of group %u overlaps layer %s: name each "
                          "of a table's pages once",
                          name_of(a->name), group, name_of(b->name))
               : LARDER_OK;
}

/* Against all layers that come before it. */
static larder_status_t check_apart(const larder_layout_params_t *p,
                                   uint32_t group, uint32_t layer)
{
    larder_status_t st = LARDER_OK;

    if (ldr_layer_table(p, group, layer) >= table_count(p)) {
        return ldr_fail(LARDER_E_INVALID, "layer %s of group %u: no table %u",
                        name_of(p->groups[group].layers[layer].name), group,
                        ldr_layer_table(p, group, layer));
    }
    for (uint32_t g = 0; g <= group; g++) {
        uint32_t count = g < group ? p->groups[g].layer_count : layer;

        for (uint32_t i = 0; i < count && st == LARDER_OK; i++) {
            st = check_pair(p, group, layer, g, i);
        }
    }
    return st;
}

static larder_status_t check_group(const larder_layout_params_t *p, uint32_t i)
{
    const larder_group_t *g = &p->groups[i];

    if (g->rule > LARDER_RULE_LAST) {
        return ldr_fail(LARDER_E_INVALID, "group %u: there is no rule %d", i,
                        (int)g->rule);
    }
    if (g->block_tokens == 0 || p->chunk_tokens % g->block_tokens != 0) {
        return ldr_fail(
            LARDER_E_INVALID,
            "group %u: a chunk of %u tokens is not a multiple of its "
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

/* ---- checking what is inside pages ---- */

#define PARTS_MAX 64u
#define MODEL_LAYERS_MAX 65536u
#define PIECES_MAX ((uint64_t)1 << 22) /* of one page */

/* A part of one of the model's layers. */
typedef struct placed {
    const larder_part_t *part; /* part->layer: in whose pages it lies */
    uint32_t layer;
} placed_t;

static int placed_order(const void *a, const void *b)
{
    const placed_t *x = a, *y = b;

    return (x->part->layer > y->part->layer) -
           (x->part->layer < y->part->layer);
}

/* A row of one head. */
typedef struct piece {
    uint64_t first, end; /* in the page */
    uint32_t layer;
} piece_t;

static int piece_order(const void *a, const void *b)
{
    const piece_t *x = a, *y = b;

    return (x->first > y->first) - (x->first < y->first);
}

/* Whether the part's rows lie inside its page. */
static bool part_inside(const larder_group_t *g, const larder_pages_t *d,
                        const larder_part_t *part)
{
    uint64_t rows = g->block_tokens / d->row_tokens, heads, last;

    return part->layer < g->layer_count && part->bytes > 0 &&
           !__builtin_mul_overflow(part->head_stride,
                                   (uint64_t)d->head_count - 1, &heads) &&
           !__builtin_mul_overflow(part->row_stride, rows - 1, &last) &&
           !__builtin_add_overflow(last, heads, &last) &&
           !__builtin_add_overflow(last, part->offset, &last) &&
           !__builtin_add_overflow(last, part->bytes, &last) &&
           last <= g->layers[part->layer].bytes;
}

/* Whether no byte of a page is in two rows of its parts: of one layer's, or
 * of two layers'. */
static larder_status_t check_rows(const larder_group_t *g,
                                  const larder_pages_t *d,
                                  const placed_t *parts, uint32_t part_count,
                                  uint32_t group)
{
    uint32_t rows = g->block_tokens / d->row_tokens;
    uint64_t of_part = (uint64_t)d->head_count * rows, n = 0;
    larder_status_t st = LARDER_OK;

    if (of_part > PIECES_MAX / part_count) {
        return ldr_fail(LARDER_E_SIZE,
                        "layer %u of group %u: more than %" PRIu64
                        " rows in a page",
                        parts->layer, group, PIECES_MAX);
    }
    piece_t *pieces = ldr_alloc(of_part * part_count * sizeof(*pieces));
    if (pieces == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a layout");
    }
    for (uint32_t i = 0; i < part_count; i++) {
        const larder_part_t *part = parts[i].part;

        for (uint64_t k = 0; k < of_part; k++) {
            uint64_t at = part->offset + k / rows * part->head_stride +
                          k % rows * part->row_stride;

            pieces[n++] = (piece_t){at, at + part->bytes, parts[i].layer};
        }
    }
    qsort(pieces, n, sizeof(*pieces), piece_order);
    for (uint64_t i = 1; i < n && st == LARDER_OK; i++) {
        uint32_t a = pieces[i - 1].layer, b = pieces[i].layer;

        if (pieces[i].first < pieces[i - 1].end) {
            st = ldr_fail(LARDER_E_OVERLAP,
                          "two rows of a page, of layers %u and %u of group "
                          "%u, share bytes: check the offsets and the strides "
                          "of their parts",
                          a < b ? a : b, a < b ? b : a, group);
        }
    }
    ldr_free(pieces);
    return st;
}

/* The same for all pages of a group: those of several layers may be one. */
static larder_status_t check_places(const larder_group_t *g,
                                    const larder_pages_t *d, uint32_t group)
{
    uint32_t count = 0, end;
    larder_status_t st = LARDER_OK;

    if (d->page_count == 0) {
        return LARDER_OK;
    }
    placed_t *parts = ldr_alloc((size_t)d->page_count * d->pages[0].part_count *
                                sizeof(*parts));
    if (parts == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a layout");
    }
    for (uint32_t i = 0; i < d->page_count; i++) {
        for (uint32_t k = 0; k < d->pages[i].part_count; k++) {
            parts[count++] =
                (placed_t){&d->pages[i].parts[k], d->pages[i].layer};
        }
    }
    qsort(parts, count, sizeof(*parts), placed_order);
    for (uint32_t i = 0; i < count && st == LARDER_OK; i = end) {
        for (end = i + 1;
             end < count && parts[end].part->layer == parts[i].part->layer;) {
            end++;
        }
        st = check_rows(g, d, &parts[i], end - i, group);
    }
    ldr_free(parts);
    return st;
}

static larder_status_t check_page(const larder_layout_params_t *p,
                                  uint32_t group, const larder_page_t *page)
{
    const larder_group_t *g = &p->groups[group];
    const larder_pages_t *d = &p->pages[group];
    const larder_page_t *first = &d->pages[0];

    if (page->parts == NULL || page->part_count == 0 ||
        page->part_count > PARTS_MAX || page->part_count != first->part_count) {
        return ldr_fail(LARDER_E_INVALID,
                        "layer %u of group %u: a page has 1 to %u parts, as "
                        "many as every layer of the group",
                        page->layer, group, PARTS_MAX);
    }
    for (uint32_t i = 0; i < page->part_count; i++) {
        const larder_part_t *part = &page->parts[i];

        if (!part_inside(g, d, part)) {
            return ldr_fail(LARDER_E_SIZE,
                            "part %u of layer %u of group %u does not lie "
                            "inside its page",
                            i, page->layer, group);
        }
        if (part->bytes != first->parts[i].bytes) {
            return ldr_fail(LARDER_E_INVALID,
                            "part %u of layer %u of group %u has rows of "
                            "%" PRIu64 " bytes, other layers of %" PRIu64,
                            i, page->layer, group, part->bytes,
                            first->parts[i].bytes);
        }
    }
    return LARDER_OK;
}

/* Layers come in ascending order, and are the model's. */
static larder_status_t check_model_layers(const larder_layout_params_t *p,
                                          uint32_t group)
{
    const larder_pages_t *d = &p->pages[group];
    bool good = d->model_layers != NULL && d->model_layer_count > 0;

    for (uint32_t i = 0; good && i < d->model_layer_count; i++) {
        good = d->model_layers[i] < p->model_layers &&
               (i == 0 || d->model_layers[i] > d->model_layers[i - 1]);
    }
    for (uint32_t i = 0, k = 0; good && i < d->page_count; i++, k++) {
        while (k < d->model_layer_count &&
               d->model_layers[k] < d->pages[i].layer) {
            k++;
        }
        good =
            k < d->model_layer_count && d->model_layers[k] == d->pages[i].layer;
    }
    return good ? LARDER_OK
                : ldr_fail(LARDER_E_INVALID,
                           "group %u: model_layers and pages come in ascending "
                           "order, each once, of a model of %u layers",
                           group, p->model_layers);
}

static larder_status_t check_pages(const larder_layout_params_t *p,
                                   uint32_t group)
{
    const larder_group_t *g = &p->groups[group];
    const larder_pages_t *d = &p->pages[group];

    if (d->heads == 0 || d->heads > MODEL_LAYERS_MAX || d->row_tokens == 0 ||
        g->block_tokens % d->row_tokens != 0 ||
        (g->rule == LARDER_RULE_LAST && d->row_tokens != g->block_tokens)) {
        return ldr_fail(LARDER_E_INVALID,
                        "group %u: %u heads, rows of %u tokens, blocks of %u",
                        group, d->heads, d->row_tokens, g->block_tokens);
    }
    if (d->page_count > 0 &&
        (d->pages == NULL || d->head_count == 0 || d->head_first >= d->heads ||
         d->head_count > d->heads - d->head_first)) {
        return ldr_fail(LARDER_E_INVALID,
                        "group %u: pages is NULL, or %u heads from %u on are "
                        "not among %u",
                        group, d->head_count, d->head_first, d->heads);
    }
    larder_status_t st = check_model_layers(p, group);

    for (uint32_t i = 0; i < d->page_count && st == LARDER_OK; i++) {
        st = check_page(p, group, &d->pages[i]);
    }
    return st == LARDER_OK ? check_places(g, d, group) : st;
}

static bool described(const larder_layout_params_t *p)
{
    return (p->field_mask & LARDER_LAYOUT_PAGES) != 0 && p->pages != NULL;
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
    if ((p->field_mask & LARDER_LAYOUT_TABLES) != 0 &&
        (p->layer_tables == NULL || p->table_count == 0 ||
         p->table_count > LARDER_TABLES_MAX)) {
        return ldr_fail(LARDER_E_INVALID,
                        "layer_tables is NULL, or there are %u block tables, "
                        "not 1 to %u",
                        p->table_count, LARDER_TABLES_MAX);
    }
    larder_status_t st = check_regions(p);

    for (uint32_t i = 0; i < p->group_count && st == LARDER_OK; i++) {
        st = check_group(p, i);
    }
    if (st == LARDER_OK && described(p) &&
        (p->model_layers == 0 || p->model_layers > MODEL_LAYERS_MAX)) {
        st = ldr_fail(LARDER_E_INVALID, "a model has 1 to %u layers, not %u",
                      MODEL_LAYERS_MAX, p->model_layers);
    }
    for (uint32_t i = 0; i < p->group_count && st == LARDER_OK && described(p);
         i++) {
        st = check_pages(p, i);
    }
    return st;
}

/* ---- making ---- */

_Static_assert(LDR_HEAD_SLICES_MAX *LDR_LAYER_RANGES_MAX <= LARDER_SHARDS_MAX,
               "every model's slices have numbers");

/* Room for all groups' slices and strips. */
static larder_layout_t *layout_new(const larder_layout_params_t *p,
                                   const ldr_cut_t *cut)
{
    larder_layout_t *layout = ldr_alloc(sizeof(*layout));
    uint64_t slices = 0, strips = 0;

    for (uint32_t i = 0; i < p->group_count; i++) {
        slices += ldr_group_slices(p, i, cut);
        strips += ldr_group_strips(p, i, cut);
    }
    if (layout != NULL) {
        layout->slice = ldr_alloc((slices + 1) * sizeof(*layout->slice));
        layout->strips = ldr_alloc((strips + 1) * sizeof(*layout->strips));
        if (layout->slice == NULL || layout->strips == NULL) {
            larder_layout_destroy(&layout);
        }
    }
    return layout;
}

larder_status_t larder_layout_create(const larder_layout_params_t *params,
                                     larder_layout_t **layout_p)
{
    uint32_t slice = 0, strip = 0;
    ldr_cut_t made = {.heads = 1, .ranges = 1}, *cut = NULL;

    if (params == NULL || layout_p == NULL) {
        return ldr_fail(LARDER_E_INVALID, "params or layout_p is NULL");
    }
    larder_status_t st =
        ldr_mask_check(params->field_mask, LARDER_LAYOUT_TABLES);
    st = st == LARDER_OK ? check(params) : st;
    if (st != LARDER_OK) {
        return st;
    }
    if (described(params)) {
        made = ldr_cut_make(params->pages, params->group_count,
                            params->model_layers);
        cut = &made;
    }
    larder_layout_t *layout = layout_new(params, cut);
    if (layout == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a layout");
    }
    layout->chunk_tokens = params->chunk_tokens;
    layout->block_count = params->block_count;
    layout->has_null = (params->field_mask & LARDER_LAYOUT_NULL_BLOCK) != 0;
    layout->null_block = layout->has_null ? params->null_block : 0;
    layout->gpu =
        (params->field_mask & LARDER_LAYOUT_GPU) != 0 ? params->gpu : NULL;
    layout->table_count = table_count(params);
    layout->group_count = params->group_count;
    layout->described = cut != NULL;
    layout->slices = made.heads * made.ranges;
    layout->all = true;
    for (uint32_t i = 0; i < params->group_count && st == LARDER_OK; i++) {
        st = ldr_group_make(layout, i, params, cut, &slice, &strip);
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
        ldr_free((*layout_p)->slice);
        ldr_free((*layout_p)->strips);
        ldr_free(*layout_p);
        *layout_p = NULL;
    }
}

/* NULL: there is no such group. */
static const ldr_group_t *group_of(const larder_layout_t *layout,
                                   uint16_t group)
{
    return layout != NULL && group < layout->group_count ? &layout->group[group]
                                                         : NULL;
}

uint32_t larder_layout_slices(const larder_layout_t *layout)
{
    return layout != NULL ? layout->slices : 0;
}

uint32_t larder_layout_saves(const larder_layout_t *layout, uint16_t group)
{
    const ldr_group_t *g = group_of(layout, group);

    return g != NULL ? g->whole_count : 0;
}

uint32_t larder_layout_loads(const larder_layout_t *layout, uint16_t group)
{
    const ldr_group_t *g = group_of(layout, group);

    return g != NULL ? g->slice_end - g->slice : 0;
}

size_t larder_layout_bytes(const larder_layout_t *layout, uint16_t group)
{
    const ldr_group_t *g = group_of(layout, group);

    return g != NULL ? g->bytes : 0;
}

uint32_t larder_layout_first_block(const larder_layout_t *layout,
                                   uint16_t group)
{
    const ldr_group_t *g = group_of(layout, group);

    return g != NULL ? g->first_block : 0;
}
