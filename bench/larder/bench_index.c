/*
 * match, index: the index of a node that knows many chunks.
 *
 * The chunks are entered as a directory's tables are when it is opened, by
 * ldr_ssd_apply(), into a node with a disk that is on; nothing is read from
 * it. Each chain has 1,000 chunks. "interleaved" enters eight chains at a time
 * chunk by chunk, as eight requests that save at once leave them.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "bench.h"
#include "client/client.h"
#include "tier/ssd/ssd.h"

#define BLOCKS 257u /* of a record of 1 MiB */
#define SEGMENT_ROWS 1000u
#define SHARDS 8u /* of a chunk, where it has several */

typedef struct known {
    ldr_bench_t *bench;
    const char *name;
    ldr_bench_node_t node;
    ldr_node_t *inner;
    char dir[256];
    ldr_record_t record; /* what all have in common */
    uint64_t count;      /* entered */
} known_t;

/* In place of the node's space, one whose chunks have so many shards. */
static bool known_cut(known_t *k, uint32_t shards)
{
    larder_space_params_t p = {.field_mask = LARDER_SPACE_SHARDS,
                               .descriptor = LDR_BENCH_SPACE,
                               .descriptor_bytes = strlen(LDR_BENCH_SPACE),
                               .shards = shards};

    larder_space_close(&k->node.space);
    return larder_space_open(k->node.lar, &p, &k->node.space) == LARDER_OK;
}

static bool known_open(known_t *k, ldr_bench_t *b, const char *name,
                       uint64_t entries, uint32_t shards)
{
    *k = (known_t){.bench = b, .name = name};
    snprintf(k->dir, sizeof(k->dir), "%s/%s", b->dir, name);
    if (!ldr_known_open(&k->node, &k->inner, k->dir, name, entries * shards) ||
        (shards > 1 && !known_cut(k, shards))) {
        return false;
    }
    k->record = (ldr_record_t){
        .kind = LDR_RECORD_SHARD,
        .shards = (uint16_t)shards,
        .length = 1 << 20,
        .written_s = ldr_wall_s(&ldr_clock_real),
    };
    memcpy(k->record.space_id, k->inner->store.spaces[k->node.space->number].id,
           LDR_ID_BYTES);
    return true;
}

static void known_close(known_t *k)
{
    ldr_bench_close(&k->node);
    ldr_bench_remove(k->dir);
}

/* Enters, or with a tombstone removes, chunk n: one of chain n /
 * LDR_KNOWN_CHAIN. */
static void known_enter(known_t *k, uint64_t n, ldr_record_kind_t kind)
{
    ldr_record_t *r = &k->record;

    r->kind = kind;
    r->depth = (uint32_t)(n % LDR_KNOWN_CHAIN);
    ldr_bench_key(n, &r->key);
    memset(&r->parent, 0, sizeof(r->parent));
    if (r->depth > 0) {
        ldr_bench_key(n - 1, &r->parent);
    }
    for (r->shard = 0; r->shard < r->shards; r->shard++, k->count++) {
        r->block = 1 + (uint32_t)(k->count % SEGMENT_ROWS) * BLOCKS;
        ldr_ssd_apply(&ldr_ssds_of(&k->inner->host)->disks[0],
                      (uint32_t)(k->count / SEGMENT_ROWS) & 0xfffff, r);
    }
}

/* Chunks begin...end, `together` chains at a time. */
static void known_fill(known_t *k, uint64_t begin, uint64_t end,
                       unsigned together)
{
    for (uint64_t at = begin; at < end;
         at += (uint64_t)together * LDR_KNOWN_CHAIN) {
        for (uint64_t i = 0; i < LDR_KNOWN_CHAIN; i++) {
            for (uint64_t c = 0; c < together; c++) {
                uint64_t n = at + c * LDR_KNOWN_CHAIN + i;

                if (n < end) {
                    known_enter(k, n, LDR_RECORD_SHARD);
                }
            }
        }
    }
}

/* ---- match ---- */

static bool match_one(ldr_bench_t *b, uint64_t entries, unsigned together,
                      uint32_t shards)
{
    static ldr_samples_t us; /* large */
    char more[80];
    known_t k;

    ldr_bench_progress(b, "match", "filling the index");
    bool ok = known_open(&k, b, "match", entries, shards);
    if (ok) {
        known_fill(&k, 0, entries, together);
        ok = ldr_known_match(b, k.node.space, entries, LDR_KNOWN_CHAIN, &us);
    }
    known_close(&k);
    if (!ok) {
        return ldr_bench_fail(b, "match", "a chain did not match");
    }
    snprintf(more, sizeof(more), ",\"p99\":%.4g,\"samples\":%u",
             ldr_samples_at(&us, 0.99), us.count);
    ldr_figure_t f = {
        .name = "match",
        .variant = shards > 1     ? "8 shards, median"
                   : together > 1 ? "interleaved, median"
                                  : "cold, median",
        .bytes = entries,
        .value = ldr_samples_median(&us),
        .unit = "us",
        .goal_kind = LDR_GOAL_MAX,
        .goal = shards > 1 ? 150 : 100,
        .more = more,
    };
    ldr_bench_report(b, &f);
    f.variant = shards > 1     ? "8 shards, p99"
                : together > 1 ? "interleaved, p99"
                               : "cold, p99";
    f.value = ldr_samples_at(&us, 0.99);
    f.goal_kind = LDR_GOAL_NONE;
    f.more = NULL;
    ldr_bench_report(b, &f);
    return true;
}

bool ldr_bench_match(ldr_bench_t *b)
{
    const uint64_t large = 100000000;
    bool ok = match_one(b, large / 10, 1, 1) &&
              match_one(b, large / 10, 8, 1) &&
              match_one(b, large / 100, 1, SHARDS);

    if (!ok || (!b->named && b->seconds < 10)) {
        return ok;
    }
    if (ldr_memory_limit() < large * 80) {
        return ldr_bench_fail(b, "match", "too little memory for 100 M");
    }
    return match_one(b, large, 1, 1);
}

/* ---- index ---- */

static bool index_report(known_t *k, const char *variant, double goal)
{
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};

    if (larder_stats(k->node.lar, &stats) != LARDER_OK || stats.entries == 0) {
        return false;
    }
    ldr_figure_t f = {
        .name = "index",
        .variant = variant,
        .bytes = stats.entries,
        .value = (double)stats.entry_bytes / (double)stats.entries,
        .unit = "B/entry",
        .goal_kind = LDR_GOAL_MAX,
        .goal = goal,
    };
    ldr_bench_report(k->bench, &f);
    return true;
}

/* Half of the chains go, and as many others come, four times over. */
static void index_churn(known_t *k, uint64_t entries)
{
    uint64_t first = 0, end = entries;
    ldr_rand_t r;

    ldr_rand_seed(&r, 9);
    for (int turn = 0; turn < 4; turn++) {
        uint64_t from = end;

        for (uint64_t n = first; n < from; n++) {
            if (ldr_rand_next(&r) & 1) {
                known_enter(k, n, LDR_RECORD_TOMBSTONE);
                end++;
            }
        }
        end = end / LDR_KNOWN_CHAIN * LDR_KNOWN_CHAIN;
        known_fill(k, from, end, 8);
        first = from;
    }
}

bool ldr_bench_index(ldr_bench_t *b)
{
    const uint64_t entries = 1000000;
    known_t k;
    bool ok = known_open(&k, b, "index", entries, 1);

    if (ok) {
        known_fill(&k, 0, entries, 1);
        ok = index_report(&k, "chains", 64);
        index_churn(&k, entries);
        ok = ok && index_report(&k, "after churn", 64);
    }
    known_close(&k);
    if (ok) {
        ok = known_open(&k, b, "index", entries, SHARDS);
        if (ok) {
            known_fill(&k, 0, entries, 1);
            ok = index_report(&k, "8 shards", 64 + 7 * 8);
        }
        known_close(&k);
    }
    return ok ? ok : ldr_bench_fail(b, "index", "no entries");
}
