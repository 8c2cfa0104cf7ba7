/*
 * How long a node takes to join a tier: until it can answer a match. It makes
 * a tier in a directory whose manifests name so many chunks (the objects are
 * not there: a match does not touch them), opens it as a node does, and looks
 * chunks up. bench/results/shared.md has the figures.
 *
 *   join DIR CHUNKS MANIFESTS [LANES]    DIR must not exist
 *
 * bench/results/shared.md, "Joining", has how to build it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "tier/shared/objects.h"

enum { ROWS = 32, ROW_BLOCKS = 129, LOOKUPS = 1000 };

static const ldr_seal_t seal = {.mac = {1}};
static const uint8_t tenant_id[LDR_ID_BYTES] = {0xaa};
static const uint8_t space_id[LDR_ID_BYTES] = {0x50};

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, ldr_fail_text());
    exit(1);
}

static double seconds(void)
{
    return (double)ldr_now_ns(&ldr_clock_real) * 1e-9;
}

/* Chunk number i. */
static void key_of(uint64_t i, uint8_t key[LARDER_KEY_BYTES])
{
    ldr_rand_t r;

    ldr_rand_seed(&r, i + 1);
    for (unsigned b = 0; b < LARDER_KEY_BYTES; b += 8) {
        ldr_put64(key + b, ldr_rand_next(&r));
    }
}

static void add_object(ldr_manifest_t *m, uint64_t number)
{
    static ldr_manifest_row_t rows[ROWS];
    ldr_manifest_entry_t e = {.kind = LDR_MANIFEST_OBJECT, .rows = rows};
    uint8_t key[LARDER_KEY_BYTES];

    key_of(UINT64_MAX / 2 + number, key);
    memcpy(e.object.id, key, LDR_ID_BYTES);
    memcpy(e.object.space_id, space_id, LDR_ID_BYTES);
    e.object.written_s = ldr_wall_s(&ldr_clock_real);
    e.object.rows = ROWS;
    e.object.used_blocks = ROWS * ROW_BLOCKS;
    for (unsigned i = 0; i < ROWS; i++) {
        key_of(number * ROWS + i, key);
        memcpy(rows[i].key, key, LDR_MANIFEST_KEY);
        rows[i].shards = 1;
        rows[i].block = (uint16_t)(i * ROW_BLOCKS);
        rows[i].blocks = ROW_BLOCKS;
        rows[i].depth = (uint32_t)(number * ROWS + i) & 0xffff;
    }
    if (!ldr_manifest_add(m, &e)) {
        die("manifest");
    }
}

static void put_manifest(const char *dir, ldr_manifest_t *m, uint64_t sequence)
{
    char path[512];
    ldr_manifest_head_t head = {.node_id = {1}, .sequence = sequence};

    memcpy(head.tenant_id, tenant_id, LDR_ID_BYTES);
    if (!ldr_manifest_finish(m, &head, &seal)) {
        die("manifest");
    }
    snprintf(path, sizeof(path), "%s/aa%030d/m/%016x-%016llx", dir, 0, 0x01,
             (unsigned long long)sequence);
    FILE *file = fopen(path, "w");
    if (file == NULL || fwrite(m->data, m->bytes, 1, file) != 1 ||
        fclose(file) != 0) {
        die(path);
    }
    ldr_manifest_clear(m);
}

static ldr_objects_t *open_tier(const char *url, unsigned lanes, uint32_t *tenant)
{
    ldr_objects_t *tier;
    ldr_objects_params_t p = {
        .url = url,
        .threads = lanes,
        .timeout_ms = 30000,
        .retry_ms = 5000,
        .poll_ms = 1000,
        .publish_ms = 1000,
        .orphan_s = 86400,
        .clock = &ldr_clock_real,
    };

    if (ldr_objects_open(&p, &tier) != LARDER_OK ||
        ldr_objects_tenant(tier, tenant_id, "default", &seal,
                        ldr_now_ns(&ldr_clock_real) + 60000000000u,
                        tenant) != LARDER_OK) {
        die("tier");
    }
    return tier;
}

static void make(const char *dir, const char *url, uint64_t chunks,
                 uint64_t manifests)
{
    char path[512];
    uint32_t tenant;
    uint64_t objects = chunks / ROWS, each = ldr_div_up(objects, manifests);
    uint64_t deadline_ns = ldr_now_ns(&ldr_clock_real) + 60000000000u;
    ldr_manifest_t m = {0};

    if (mkdir(dir, 0777) != 0 ||
        ldr_objects_make(url, "", deadline_ns) != LARDER_OK) {
        die(dir);
    }
    ldr_objects_close(open_tier(url, 1, &tenant), deadline_ns);
    snprintf(path, sizeof(path), "%s/aa%030d/m", dir, 0);
    mkdir(path, 0777);
    for (uint64_t i = 0; i < objects; i++) {
        add_object(&m, i);
        if ((i + 1) % each == 0 || i + 1 == objects) {
            put_manifest(dir, &m, i / each);
        }
    }
}

static void join(const char *url, uint64_t chunks, unsigned lanes)
{
    ldr_objects_stats_t s;
    ldr_object_place_t place;
    larder_key_t key;
    uint32_t tenant;
    unsigned found = 0;
    double begin = seconds();
    ldr_objects_t *tier = open_tier(url, lanes, &tenant);
    uint32_t space = ldr_objects_space(tier, tenant, space_id, 0);
    double joined = seconds();

    for (unsigned i = 0; i < LOOKUPS; i++) {
        key_of(chunks / ROWS * ROWS / LOOKUPS * i, key.hash);
        found += ldr_objects_find(tier, tenant, space, 0, &key, 0, 0, &place);
    }
    double end = seconds();
    ldr_objects_stats(tier, &s);
    printf("%llu chunks in %llu manifests, %u lanes: joined in %.3f s; "
           "%u of %u found, %.1f us; map %.1f MB\n",
           (unsigned long long)s.shards, (unsigned long long)s.manifests_read,
           lanes, joined - begin, found, (unsigned)LOOKUPS,
           (end - joined) * 1e6, (double)s.map_bytes * 1e-6);
    ldr_objects_close(tier, ldr_now_ns(&ldr_clock_real) + 10000000000u);
}

int main(int argc, char **argv)
{
    char url[512];

    if (argc < 4) {
        fprintf(stderr, "usage: join DIR CHUNKS MANIFESTS [LANES]\n");
        return 1;
    }
    uint64_t chunks = strtoull(argv[2], NULL, 0);
    snprintf(url, sizeof(url), "dir:%s", argv[1]);
    make(argv[1], url, chunks, strtoull(argv[3], NULL, 0));
    for (unsigned i = 0; i < 3; i++) {
        join(url, chunks, argc > 4 ? (unsigned)strtoul(argv[4], NULL, 0) : 4);
    }
    return 0;
}
