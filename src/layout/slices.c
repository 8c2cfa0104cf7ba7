/*
 * How a model is cut into slices, and what of them a rank holds.
 *
 * The cut follows from the model alone, so that every rank of every engine
 * makes the same one. All groups of a space have the same number of slices,
 * since a chunk's shards are counted by space: heads are cut into as many equal
 * ranges as every group allows, and a border between layers that would leave a
 * group without a layer on one side is left out.
 */
#include <inttypes.h>

#include "base/bytes.h"
#include "base/log.h"
#include "layout/layout.h"

#define PIPELINE_MAX 4u /* whose borders are cut at: those of 2 and 4 ranks */
#define WINDOW_UNIT 64u /* tokens; see layout.h */
#define PIECES_MAX ((uint64_t)1 << 20)

/* ---- the cut ---- */

static uint32_t gcd(uint32_t a, uint32_t b)
{
    while (b != 0) {
        uint32_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* The layers before rank number `rank` of a pipeline of so many ranks. Those
 * that are left over go one each to the ranks before the last, as in vLLM. */
static uint32_t pipeline_border(uint32_t layers, uint32_t ranks, uint32_t rank)
{
    uint32_t left = layers % ranks;
    uint32_t plain = ranks - 1 - left; /* ranks at the front with none more */

    return rank * (layers / ranks) + (rank > plain ? rank - plain : 0);
}

/* Whether every group has a layer from first to end - 1. */
static bool all_have(const larder_pages_t *pages, uint32_t group_count,
                     uint32_t first, uint32_t end)
{
    for (uint32_t g = 0; g < group_count; g++) {
        bool has = false;

        for (uint32_t i = 0; i < pages[g].model_layer_count; i++) {
            uint32_t layer = pages[g].model_layers[i];

            has = has || (layer >= first && layer < end);
        }
        if (!has) {
            return false;
        }
    }
    return true;
}

/* The lowest border above `from` of any pipeline, or `layers`. */
static uint32_t next_border(uint32_t layers, uint32_t from)
{
    uint32_t next = layers;

    for (uint32_t ranks = 2; ranks <= PIPELINE_MAX; ranks *= 2) {
        for (uint32_t rank = 1; rank < ranks && ranks <= layers; rank++) {
            uint32_t border = pipeline_border(layers, ranks, rank);

            if (border > from && border < next) {
                next = border;
            }
        }
    }
    return next;
}

ldr_cut_t ldr_cut_make(const larder_pages_t *pages, uint32_t group_count,
                       uint32_t model_layers)
{
    ldr_cut_t cut = {0};
    uint32_t heads = 0;

    for (uint32_t g = 0; g < group_count; g++) {
        heads = gcd(pages[g].heads, heads);
    }
    for (uint32_t n = 1; n <= LDR_HEAD_SLICES_MAX; n++) {
        cut.heads = heads % n == 0 ? n : cut.heads;
    }
    for (uint32_t at = next_border(model_layers, 0); at < model_layers;
         at = next_border(model_layers, at)) {
        if (all_have(pages, group_count, cut.border[cut.ranges], at) &&
            all_have(pages, group_count, at, model_layers)) {
            cut.border[++cut.ranges] = at;
        }
    }
    cut.border[++cut.ranges] = model_layers;
    return cut;
}

/* ---- what a rank holds ---- */

uint64_t ldr_group_slices(const larder_layout_params_t *p, uint32_t group,
                          const ldr_cut_t *cut)
{
    (void)p;
    (void)group;
    return cut != NULL ? (uint64_t)cut->heads * cut->ranges : 1;
}

uint64_t ldr_group_strips(const larder_layout_params_t *p, uint32_t group,
                          const ldr_cut_t *cut)
{
    const larder_pages_t *d = cut != NULL ? &p->pages[group] : NULL;

    if (d == NULL) {
        return p->groups[group].layer_count;
    }
    return d->page_count == 0 ? 0
                              : (uint64_t)d->model_layer_count * d->heads *
                                    d->pages[0].part_count;
}

/* A group while it is made. */
typedef struct making {
    larder_layout_t *layout;
    ldr_group_t *g;
    const larder_layout_params_t *p;
    const larder_group_t *from;
    const larder_pages_t *pages; /* NULL: opaque */
    const ldr_cut_t *cut;
    uint32_t number;
    uint32_t strip; /* the first that is free */
} making_t;

static uint8_t *place_base(const making_t *m, uint32_t layer)
{
    const larder_layer_t *l = &m->from->layers[layer];

    return (uint8_t *)m->p->regions[l->region].base + l->offset;
}

uint32_t ldr_layer_table(const larder_layout_params_t *p, uint32_t group,
                         uint32_t layer)
{
    if ((p->field_mask & LARDER_LAYOUT_TABLES) == 0) {
        return group;
    }
    for (uint32_t g = 0; g < group; g++) {
        layer += p->groups[g].layer_count;
    }
    return p->layer_tables[layer];
}

/* The page of one of the model's layers; NULL: it is another rank's. */
static const larder_page_t *page_of(const larder_pages_t *d, uint32_t layer)
{
    for (uint32_t i = 0; i < d->page_count; i++) {
        if (d->pages[i].layer == layer) {
            return &d->pages[i];
        }
    }
    return NULL;
}

/* The strips of a layer for heads first to end - 1 of the model. */
static void add_strips(making_t *m, uint32_t layer, uint32_t first,
                       uint32_t end, ldr_layout_slice_t *slice)
{
    const larder_pages_t *d = m->pages;
    const larder_page_t *page = page_of(d, layer);

    for (uint32_t i = 0; i < d->pages[0].part_count; i++) {
        for (uint32_t head = first; head < end; head++) {
            ldr_strip_t *s = &m->layout->strips[m->strip++];

            *s = (ldr_strip_t){.bytes = d->pages[0].parts[i].bytes};
            if (page == NULL || head < d->head_first ||
                head - d->head_first >= d->head_count) {
                slice->whole = false;
                continue;
            }
            const larder_part_t *part = &page->parts[i];

            s->base = place_base(m, part->layer) + part->offset +
                      (head - d->head_first) * part->head_stride;
            s->block_stride = m->from->layers[part->layer].stride;
            s->row_stride = part->row_stride;
            s->table = ldr_layer_table(m->p, m->number, part->layer);
        }
    }
}

/* Whether the rank holds anything of the strips. */
static bool any_here(const larder_layout_t *layout,
                     const ldr_layout_slice_t *slice)
{
    for (uint32_t i = slice->strip; i < slice->strip_end; i++) {
        if (layout->strips[i].base != NULL) {
            return true;
        }
    }
    return false;
}

/* Bytes and pieces of a shard. */
static larder_status_t measure(const making_t *m, ldr_layout_slice_t *slice)
{
    const ldr_group_t *g = m->g;
    uint64_t rows = g->chunk_rows - g->first_row, bytes = 0, pieces = 0, more;
    uint64_t blocks = g->chunk_blocks - g->first_block;

    for (uint32_t i = slice->strip; i < slice->strip_end; i++) {
        const ldr_strip_t *s = &m->layout->strips[i];
        bool apart = s->base != NULL && s->row_stride != s->bytes;

        pieces += apart ? rows : blocks;
        slice->tables |= s->base != NULL ? 1ull << s->table : 0;
        if (__builtin_mul_overflow(s->bytes, rows, &more) ||
            __builtin_add_overflow(bytes, more, &bytes) ||
            bytes > LARDER_VALUE_MAX) {
            return ldr_fail(LARDER_E_SIZE,
                            "group %u: a chunk of %u tokens has more than %zu "
                            "bytes in a shard: use smaller chunks",
                            m->number, m->p->chunk_tokens, LARDER_VALUE_MAX);
        }
    }
    uint64_t most = m->cut != NULL ? PIECES_MAX : LARDER_IOV_MAX;
    if (pieces > most) {
        return ldr_fail(LARDER_E_SIZE,
                        "group %u: a chunk of %u tokens has %" PRIu64
                        " pieces, more than %" PRIu64 ": use smaller chunks",
                        m->number, m->p->chunk_tokens, pieces, most);
    }
    slice->bytes = (size_t)bytes;
    slice->pieces = (uint32_t)pieces;
    slice->runs = (uint32_t)(blocks * (slice->strip_end - slice->strip));
    return LARDER_OK;
}

/* Keeps a slice of which the rank holds something. */
static larder_status_t add_slice(making_t *m, ldr_layout_slice_t slice)
{
    ldr_group_t *g = m->g;

    slice.strip_end = m->strip;
    if (!any_here(m->layout, &slice)) {
        m->strip = slice.strip;
        return LARDER_OK;
    }
    larder_status_t st = measure(m, &slice);
    if (st == LARDER_OK) {
        m->layout->slice[g->slice_end++] = slice;
        g->bytes += slice.bytes;
        g->bytes_max = ldr_max64(g->bytes_max, slice.bytes);
        g->pieces_max = (uint32_t)ldr_max64(g->pieces_max, slice.pieces);
        g->runs_max = (uint32_t)ldr_max64(g->runs_max, slice.runs);
        g->whole_count += slice.whole;
    }
    return st;
}

static larder_status_t make_described(making_t *m)
{
    const larder_pages_t *d = m->pages;
    const ldr_cut_t *cut = m->cut;
    uint32_t heads = d->heads / cut->heads;
    larder_status_t st = LARDER_OK;

    for (uint32_t n = 0; n < cut->heads * cut->ranges && st == LARDER_OK; n++) {
        uint32_t range = n % cut->ranges, first = n / cut->ranges * heads;
        ldr_layout_slice_t slice = {
            .strip = m->strip, .number = (uint16_t)n, .whole = true};

        for (uint32_t i = 0; i < d->model_layer_count; i++) {
            uint32_t layer = d->model_layers[i];

            if (layer >= cut->border[range] && layer < cut->border[range + 1]) {
                add_strips(m, layer, first, first + heads, &slice);
            }
        }
        st = add_slice(m, slice);
    }
    return st;
}

static larder_status_t make_opaque(making_t *m)
{
    ldr_layout_slice_t slice = {.strip = m->strip, .whole = true};

    for (uint32_t i = 0; i < m->from->layer_count; i++) {
        const larder_layer_t *l = &m->from->layers[i];

        m->layout->strips[m->strip++] =
            (ldr_strip_t){.base = place_base(m, i),
                          .block_stride = l->stride,
                          .row_stride = l->bytes,
                          .bytes = l->bytes,
                          .table = ldr_layer_table(m->p, m->number, i)};
    }
    return add_slice(m, slice);
}

larder_status_t ldr_group_make(larder_layout_t *layout, uint32_t number,
                               const larder_layout_params_t *p,
                               const ldr_cut_t *cut, uint32_t *slice_p,
                               uint32_t *strip_p)
{
    ldr_group_t *g = &layout->group[number];
    making_t m = {.layout = layout,
                  .g = g,
                  .p = p,
                  .from = &p->groups[number],
                  .pages = cut != NULL ? &p->pages[number] : NULL,
                  .cut = cut,
                  .number = number,
                  .strip = *strip_p};
    uint32_t row_tokens = m.from->block_tokens, unit = row_tokens;

    if (cut != NULL) {
        row_tokens = m.pages->row_tokens;
        unit = row_tokens == 1 ? WINDOW_UNIT : row_tokens;
    }
    g->rule = m.from->rule;
    g->block_tokens = m.from->block_tokens;
    g->window_tokens = m.from->window_tokens;
    g->need.group = (uint16_t)number;
    ldr_group_rule(g, p->chunk_tokens, row_tokens, unit);
    g->slice = g->slice_end = *slice_p;
    larder_status_t st = LARDER_OK;
    if (cut == NULL) {
        st = make_opaque(&m);
    } else if (m.pages->page_count > 0) {
        st = make_described(&m);
    }
    *slice_p = g->slice_end;
    *strip_p = m.strip;
    layout->all = layout->all && g->rule == LARDER_RULE_ALL;
    return st;
}
