/*
 * A node that knows many chunks, and how long it takes to match among them; and
 * a directory that does, for figures of a daemon's index: a daemon cannot be
 * handed entries as an embedded node can (see bench_index.c), and saving ten
 * million chunks would fill a disk.
 *
 * A node makes the directory; then segments are added as they are once they
 * are closed, a header and a table each, sparse where the records would be.
 * Opening reads tables only, and a match reads nothing.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "bench.h"
#include "client/client.h"
#include "tier/ssd/ssd.h"

#define SEGMENT_BYTES LDR_GIB
#define SEGMENT_ROWS 200000u
#define LENGTH (1u << 20)
#define SAMPLES 100u
#define FIRST_SEGMENT 100u /* beyond what the node itself may have made */

typedef struct known {
    const char *dir;
    uint8_t dir_id[LDR_ID_BYTES];
    uint8_t space_id[LDR_ID_BYTES];
    uint8_t *table; /* rows and footer of a segment */
    uint64_t count; /* chunks so far */
} known_t;

uint64_t ldr_known_ssd(uint64_t entries)
{
    /* The index has room for an entry every two blocks. */
    return (entries + entries / 4) * 2 * LDR_BLOCK + 8 * LDR_GIB;
}

bool ldr_known_open(ldr_bench_node_t *n, ldr_node_t **inner_p, const char *dir,
                    const char *space, uint64_t entries)
{
    larder_space_params_t params = {.descriptor = space,
                                    .descriptor_bytes = strlen(space)};
    ldr_node_env_t env = {.manual = true}; /* no threads */
    ldr_options_t options;
    char url[512];

    *n = (ldr_bench_node_t){NULL, NULL};
    snprintf(url, sizeof(url), "embed:%s?dram=2M&segment=%llu&ssd=%llu", dir,
             (unsigned long long)SEGMENT_BYTES,
             (unsigned long long)ldr_known_ssd(entries));
    if (ldr_options_parse(url, &options) != LARDER_OK ||
        ldr_node_open(&options, &env, inner_p) != LARDER_OK) {
        return false;
    }
    if (ldr_handle_open(*inner_p, &n->lar) != LARDER_OK) {
        ldr_node_close(*inner_p, 0);
        return false;
    }
    return larder_space_open(n->lar, &params, &n->space) == LARDER_OK &&
           ldr_ssds_of(&(*inner_p)->host)->disks[0].on;
}

bool ldr_known_match(const ldr_bench_t *b, larder_space_t *space,
                     uint64_t entries, unsigned count, ldr_samples_t *us)
{
    static larder_key_t keys[LDR_KNOWN_CHAIN];
    uint64_t bytes = ldr_bench_pool_bytes();
    unsigned asked = count > 0 ? count : 1;
    uint8_t *pool = ldr_pool_create(bytes); /* to empty the caches with */
    double end = ldr_bench_now() + b->seconds;
    /* To empty large caches takes a third of a second each time. */
    unsigned least = b->seconds > 0 && b->seconds < 1 ? SAMPLES / 10 : SAMPLES;
    bool ok = pool != NULL;
    larder_match_t found = {.struct_bytes = sizeof(found)};
    ldr_rand_t r;

    us->count = 0;
    ldr_rand_seed(&r, 7);
    for (unsigned i = 0; ok && (i < least || ldr_bench_now() < end); i++) {
        uint64_t chain = ldr_rand_below(&r, entries / LDR_KNOWN_CHAIN);

        ldr_bench_cool(pool, bytes);
        /* The caller has just hashed them: they are in the cache. */
        for (unsigned c = 0; c < asked; c++) {
            ldr_bench_key(count > 0 ? chain * LDR_KNOWN_CHAIN + c
                                    : UINT64_MAX - i,
                          &keys[c]);
        }
        double begin = ldr_bench_now();
        larder_status_t st = larder_match(space, keys, asked, 0, &found);
        ldr_samples_add(us, (ldr_bench_now() - begin) * 1e6);
        ok = st == LARDER_OK && found.chunks == count;
    }
    ldr_pool_destroy(pool, bytes);
    return ok;
}

/* Has a node make the directory, and asks it what names it has. */
static bool known_begin(known_t *k, uint64_t entries)
{
    ldr_node_t *inner = NULL;
    ldr_bench_node_t n;
    bool ok = ldr_known_open(&n, &inner, k->dir, LDR_BENCH_SPACE, entries);

    if (ok) {
        memcpy(k->dir_id,
               ldr_ssds_of(&inner->host)->disks[0].disk.super->dir_id,
               LDR_ID_BYTES);
        memcpy(k->space_id, inner->store.spaces[n.space->number].id,
               LDR_ID_BYTES);
    }
    ldr_bench_close(&n);
    return ok;
}

static void compose_rows(known_t *k, uint32_t rows, uint8_t *to)
{
    const uint32_t last =
        (uint32_t)(SEGMENT_BYTES / LDR_BLOCK) - ldr_table_blocks(SEGMENT_ROWS);
    const uint32_t blocks = ldr_record_blocks(LENGTH);
    ldr_record_t r = {
        .kind = LDR_RECORD_SHARD,
        .shards = 1,
        .length = LENGTH,
        .written_s = ldr_wall_s(&ldr_clock_real),
    };

    memcpy(r.space_id, k->space_id, LDR_ID_BYTES);
    for (uint32_t i = 0; i < rows; i++) {
        uint64_t n = k->count++;

        r.depth = (uint32_t)(n % LDR_KNOWN_CHAIN);
        r.parent = r.depth > 0 ? r.key : (larder_key_t){{0}};
        ldr_bench_key(n, &r.key);
        /* Somewhere in the segment: nobody will look there. */
        r.block = 1 + i % (last - blocks);
        ldr_row_compose(&r, to + (size_t)i * LDR_ROW_BYTES);
    }
}

static bool write_at(int fd, uint64_t at, const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = pwrite(fd, data, bytes, (off_t)at);

        if (n <= 0) {
            return false;
        }
        data += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool add_segment(known_t *k, uint32_t number, uint32_t rows)
{
    ldr_segment_header_t header = {
        .segment = FIRST_SEGMENT + number,
        .sequence = 1000 + number,
        .nonce = number + 1,
        .segment_bytes = SEGMENT_BYTES,
    };
    size_t table = (size_t)ldr_table_blocks(rows) * LDR_BLOCK;
    uint8_t block[LDR_BLOCK];
    char name[LDR_SEGMENT_NAME_BYTES], path[512];

    memcpy(header.dir_id, k->dir_id, LDR_ID_BYTES);
    memset(k->table, 0, table);
    compose_rows(k, rows, k->table);
    ldr_footer_t footer = {
        .rows = rows,
        .used_blocks = rows + 1,
        .table_crc = ldr_crc32c(0, k->table, (size_t)rows * LDR_ROW_BYTES),
    };
    ldr_footer_compose(&footer, &header, k->table + table - LDR_BLOCK);
    ldr_header_compose(&header, block);
    ldr_segment_name(header.segment, name);
    snprintf(path, sizeof(path), "%s/%s", k->dir, name);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) {
        return false;
    }
    bool ok = ftruncate(fd, (off_t)SEGMENT_BYTES) == 0 &&
              write_at(fd, 0, block, sizeof(block)) &&
              write_at(fd, SEGMENT_BYTES - table, k->table, table);
    return close(fd) == 0 && ok;
}

bool ldr_known_create(const char *dir, uint64_t entries)
{
    size_t table = (size_t)ldr_table_blocks(SEGMENT_ROWS) * LDR_BLOCK;
    known_t k = {.dir = dir};
    bool ok = known_begin(&k, entries);

    k.table = ok ? ldr_alloc_blocks(table) : NULL;
    ok = k.table != NULL;
    for (uint32_t i = 0; k.count < entries && ok; i++) {
        ok = add_segment(&k, i,
                         (uint32_t)ldr_min64(entries - k.count, SEGMENT_ROWS));
    }
    ldr_free(k.table);
    return ok;
}
