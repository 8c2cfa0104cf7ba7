/*
 * The stack of leaf-first LRU, as bits along a line of time.
 *
 * Invariants: each block that was seen has one bit, at used_at - 1; `live` bits
 * are set; the tree of sums counts them by CHUNK moments; `now` is behind them
 * all. One thread; everything is freed before ldr_curve_run() returns but the
 * hits.
 */
#include "plan/curve.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"

#define CHUNK 512u /* moments that one sum stands for */
#define WORDS (CHUNK / 64)
#define MOMENTS_MIN (1u << 20)

/*
 * The line of time. Each block that was seen has one moment, that of its last
 * use, and its bit there is set. When the line is used up, moments are
 * numbered again without gaps.
 */
typedef struct line {
    uint32_t distinct;
    uint32_t live; /* bits that are set */
    uint64_t now;  /* the next moment */
    uint64_t moments;
    uint64_t chunks;
    uint64_t *bits;
    uint32_t *sums;    /* a Fenwick tree over the chunks, from 1 */
    uint32_t *used_at; /* moment + 1 of a block; 0: never */
} line_t;

static void sums_add(line_t *l, uint64_t chunk, uint32_t by)
{
    for (uint64_t i = chunk + 1; i <= l->chunks; i += i & -i) {
        l->sums[i] += by;
    }
}

/* Bits below this moment. */
static uint32_t bits_below(const line_t *l, uint64_t moment)
{
    uint32_t sum = 0;
    uint64_t chunk = moment / CHUNK;

    for (uint64_t i = chunk; i > 0; i -= i & -i) {
        sum += l->sums[i];
    }
    uint64_t word = chunk * WORDS;
    for (; word < moment / 64; word++) {
        sum += (uint32_t)__builtin_popcountll(l->bits[word]);
    }
    uint64_t mask = ((uint64_t)1 << (moment % 64)) - 1;
    return sum + (uint32_t)__builtin_popcountll(l->bits[word] & mask);
}

static void renumber(line_t *l)
{
    for (uint32_t block = 0; block < l->distinct; block++) {
        if (l->used_at[block] != 0) {
            l->used_at[block] = bits_below(l, l->used_at[block] - 1) + 1;
        }
    }
    memset(l->bits, 0, (size_t)(l->chunks * WORDS) * 8);
    memset(l->sums, 0, (size_t)(l->chunks + 1) * 4);
    for (uint64_t moment = 0; moment < l->live; moment++) {
        l->bits[moment / 64] |= (uint64_t)1 << (moment % 64);
    }
    for (uint64_t chunk = 0; chunk * CHUNK < l->live; chunk++) {
        uint64_t left = l->live - chunk * CHUNK;

        sums_add(l, chunk, left < CHUNK ? (uint32_t)left : CHUNK);
    }
    l->now = l->live;
}

static void use(line_t *l, uint32_t block)
{
    uint32_t before = l->used_at[block];

    if (before != 0) {
        uint64_t moment = before - 1;

        l->bits[moment / 64] &= ~((uint64_t)1 << (moment % 64));
        sums_add(l, moment / CHUNK, UINT32_MAX);
        l->live--;
    }
    if (l->now == l->moments) {
        l->used_at[block] = 0;
        renumber(l);
    }
    l->bits[l->now / 64] |= (uint64_t)1 << (l->now % 64);
    sums_add(l, l->now / CHUNK, 1);
    l->live++;
    l->used_at[block] = (uint32_t)++l->now;
}

static void line_close(line_t *l)
{
    if (l->bits != NULL) {
        ldr_unreserve(l->bits, (size_t)(l->chunks * WORDS) * 8);
    }
    if (l->sums != NULL) {
        ldr_unreserve(l->sums, (size_t)(l->chunks + 1) * 4);
    }
    if (l->used_at != NULL) {
        ldr_unreserve(l->used_at, ((size_t)l->distinct + 1) * 4);
    }
}

static bool line_open(line_t *l, const ldr_tape_t *tape)
{
    *l = (line_t){.distinct = tape->distinct};
    /* Twice what can be live: half of the line is free when it is renumbered,
     * so that this costs a reference a constant. */
    l->moments = 2 * (uint64_t)tape->distinct;
    l->moments = l->moments > MOMENTS_MIN ? l->moments : MOMENTS_MIN;
    l->moments =
        l->moments < UINT32_MAX - CHUNK ? l->moments : UINT32_MAX - CHUNK;
    l->chunks = l->moments / CHUNK + 1;
    l->bits = ldr_reserve((size_t)(l->chunks * WORDS) * 8);
    l->sums = ldr_reserve((size_t)(l->chunks + 1) * 4);
    l->used_at = ldr_reserve(((size_t)l->distinct + 1) * 4);
    return l->bits != NULL && l->sums != NULL && l->used_at != NULL;
}

/* Each block's depth in the stack, then their use, the root last. */
static void play(line_t *l, ldr_curve_t *curve, const uint32_t *blocks,
                 uint32_t count)
{
    uint64_t depth = 0; /* of the block before this one, and its used_at */
    uint32_t before = 0;
    uint64_t deepest = 0; /* with a cache of so many, all so far are hits */

    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = l->used_at[blocks[i]];

        if (at == 0) {
            break; /* what comes behind it cannot hit */
        }
        /* Mostly the next below its parent. */
        depth = at + 1 == before ? depth + 1 : l->live - bits_below(l, at - 1);
        deepest = depth > deepest ? depth : deepest;
        curve->hits[deepest]++;
        before = at;
    }
    for (uint32_t i = count; i-- > 0;) {
        use(l, blocks[i]);
    }
}

larder_status_t ldr_curve_run(const ldr_tape_t *tape, ldr_curve_t *curve)
{
    const ldr_tape_request_t *request;
    const uint32_t *blocks;
    ldr_player_t player;
    line_t line;
    int more = -1;

    *curve = (ldr_curve_t){tape->distinct, tape->references, NULL};
    curve->hits = ldr_reserve(((size_t)tape->distinct + 1) * 8);
    bool ok = line_open(&line, tape) && curve->hits != NULL;
    if (!ok) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory for the curve of %u blocks",
                 tape->distinct);
    } else if (ldr_player_open(tape, &player) == LARDER_OK) {
        while ((more = ldr_player_next(&player, &request, &blocks)) > 0) {
            play(&line, curve, blocks, request->count);
        }
        ldr_player_close(&player);
    }
    line_close(&line);
    if (more < 0) {
        ldr_curve_free(curve);
        return ok ? LARDER_E_IO : LARDER_E_NO_MEMORY;
    }
    for (uint32_t c = 1; c <= tape->distinct && c != 0; c++) {
        curve->hits[c] += curve->hits[c - 1];
    }
    return LARDER_OK;
}

uint64_t ldr_curve_hits(const ldr_curve_t *curve, uint64_t capacity)
{
    return curve->hits[capacity < curve->distinct ? capacity : curve->distinct];
}

void ldr_curve_free(ldr_curve_t *curve)
{
    if (curve->hits != NULL) {
        ldr_unreserve(curve->hits, ((size_t)curve->distinct + 1) * 8);
        curve->hits = NULL;
    }
}
