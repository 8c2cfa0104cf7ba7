/*
 * Opening a directory whose files hold anything. The first byte of the input
 * chooses what the rest is:
 *
 *   0  a segment file
 *   1  what follows a valid header in one
 *   2  fields of records, rows and footer, which are composed with the right
 *      checksums and put where the input says
 *   3  a superblock
 *   4  fields of a superblock
 *
 * The node opens it or refuses it, gets, puts, flushes and closes. A record of
 * key k has the payload k k k ..., so a get that succeeds can be judged.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "support/rig.h"

#define SEGMENT_BLOCKS 32u
#define SEGMENT_BYTES (SEGMENT_BLOCKS * LDR_BLOCK)
#define KEYS 8u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The rest of the input; zeros when it is used up. */
typedef struct input {
    const uint8_t *data;
    size_t bytes;
} input_t;

static uint32_t take(input_t *in, size_t width)
{
    uint8_t value[4] = {0};
    size_t n = in->bytes < width ? in->bytes : width;

    if (n > 0) {
        memcpy(value, in->data, n);
    }
    in->data += n;
    in->bytes -= n;
    return ldr_get32(value);
}

static void put_file(simdisk_t *disk, const char *path, const uint8_t *data,
                     size_t bytes)
{
    ldr_io_t *io = simdisk_io(disk);

    io->ops->make_dir(io, "/ssd");
    int file = io->ops->open(io, path, LDR_IO_CREATE);
    require(file >= 0 && io->ops->allocate(io, file, bytes) == 0, "%s", path);
    io->ops->close(io, file);
    require(simdisk_write_raw(disk, path, 0, data, bytes), "%s", path);
}

/* ---- superblocks ---- */

static void put_super(simdisk_t *disk, input_t *in, unsigned mode)
{
    static ldr_super_t super;
    static uint8_t block[2 * LDR_SUPER_BYTES];

    memset(block, 0, sizeof(block));
    memset(&super, 0, sizeof(super));
    super.generation = 1;
    super.segment_bytes = SEGMENT_BYTES;
    if (mode == 4) {
        super.generation = take(in, 4);
        super.segment_bytes = take(in, 2) * (uint64_t)LDR_BLOCK / 2;
        super.space_count = take(in, 1);
        super.tenant_count = take(in, 1);
        for (uint32_t i = 0; i < super.space_count; i++) {
            super.spaces[i].id[0] = (uint8_t)i;
            super.spaces[i].epoch = take(in, 1);
        }
    }
    ldr_super_compose(&super, block);
    memcpy(block + LDR_SUPER_BYTES, block, LDR_SUPER_BYTES);
    if (mode == 3 && in->bytes > 0) {
        size_t at = take(in, 4) % LDR_SUPER_BYTES;
        size_t n = ldr_min64(in->bytes, sizeof(block) - at);
        memcpy(block + at, in->data, n);
    }
    put_file(disk, "/ssd/larder.super", block, sizeof(block));
}

/* ---- segments ---- */

static ldr_record_t draw_record(input_t *in, const uint8_t *space_id)
{
    uint32_t key = take(in, 1) % KEYS;
    ldr_record_t r = {
        .kind = (ldr_record_kind_t)(take(in, 1) % 4),
        .key = test_key(key),
        .parent = test_key(key + take(in, 1) % 3),
        .epoch = take(in, 1) % 4,
        .group = (uint16_t)(take(in, 1) % 3 * 63),
        .shard = (uint16_t)(take(in, 1) % 3),
        .shards = (uint16_t)(take(in, 1) % 66),
        .flags = take(in, 1) % 3,
        .depth = take(in, 4),
        .block = take(in, 1) % (SEGMENT_BLOCKS + 2),
        .length = take(in, 4) % 70000,
        .expires_s = take(in, 1) ? 0 : 5,
    };

    memcpy(r.space_id, space_id, LDR_ID_BYTES);
    return r;
}

/* Writes the record where it says, as far as that is inside. */
static void put_record(uint8_t *segment, const ldr_segment_header_t *header,
                       ldr_record_t *r, uint8_t fill, bool right)
{
    uint64_t at = (uint64_t)r->block * LDR_BLOCK;
    uint64_t end =
        at + (uint64_t)(ldr_record_blocks(r->length) - 1) * LDR_BLOCK;
    uint8_t payload[LDR_BLOCK];
    uint32_t left = r->length;

    memset(payload, fill, sizeof(payload));
    r->payload_crc = right ? 0 : 1;
    while (left > 0) {
        uint32_t n = left < LDR_BLOCK ? left : LDR_BLOCK;

        r->payload_crc = ldr_crc32c(r->payload_crc, payload, n);
        left -= n;
    }
    if (end + LDR_BLOCK <= SEGMENT_BYTES) {
        memset(segment + at, fill, r->length);
        ldr_record_compose(r, header, segment + end);
    }
}

static void compose(uint8_t *segment, const ldr_segment_header_t *header,
                    input_t *in, const uint8_t *space_id)
{
    uint32_t count = take(in, 1) % 40;
    uint32_t rows = take(in, 1) % 80;
    uint32_t blocks = ldr_table_blocks(rows);
    uint8_t *table = segment + (size_t)(SEGMENT_BLOCKS - blocks) * LDR_BLOCK;
    ldr_footer_t footer = {.rows = rows, .used_blocks = take(in, 1) % 40};

    for (uint32_t i = 0; i < count; i++) {
        bool placed = take(in, 1) % 8 != 0;
        bool right = take(in, 1) % 8 != 0;
        uint8_t key = in->bytes > 0 ? in->data[0] % KEYS : 0;
        ldr_record_t r = draw_record(in, space_id);

        if (placed) {
            put_record(segment, header, &r, key, right);
        }
        if (i < rows) {
            ldr_row_compose(&r, table + (size_t)i * LDR_ROW_BYTES);
        }
    }
    footer.table_crc = ldr_crc32c(0, table, (size_t)rows * LDR_ROW_BYTES);
    if (rows > 0) {
        ldr_footer_compose(&footer, header,
                           segment + SEGMENT_BYTES - LDR_BLOCK);
    }
}

static void put_segment(simdisk_t *disk, input_t *in, unsigned mode,
                        const uint8_t *space_id)
{
    static uint8_t segment[SEGMENT_BYTES];
    ldr_segment_header_t header = {.sequence = 1 + take(in, 1),
                                   .nonce = 0,
                                   .segment_bytes = SEGMENT_BYTES};
    size_t at = mode == 0 ? 0 : LDR_BLOCK;

    memset(segment, 0, sizeof(segment));
    if (mode < 2) {
        memcpy(segment + at, in->data,
               ldr_min64(in->bytes, SEGMENT_BYTES - at));
    } else {
        compose(segment, &header, in, space_id);
    }
    if (mode != 0) {
        ldr_header_compose(&header, segment);
    }
    put_file(disk, "/ssd/segment-000000", segment, sizeof(segment));
}

/* ---- use ---- */

static void use(rig_t *rig)
{
    for (uint16_t space = 0; space < 2; space++) {
        for (uint32_t key = 0; key < KEYS; key++) {
            for (uint16_t shard = 0; shard < rig_shards(space); shard++) {
                name_t name = {space, shard, key};
                size_t got = 0;

                if (rig_get(rig, name, &got) == LARDER_OK) {
                    for (size_t i = 0; i < got; i++) {
                        require(rig->buffer[i] == key, "other bytes");
                    }
                }
            }
        }
    }
    for (uint32_t key = 0; key < KEYS; key += 2) {
        rig_put(rig, (name_t){2, 0, 100 + key}, 1);
        rig_remove(rig, (name_t){0, 0, key});
    }
    larder_flush(rig->lar, LARDER_TIER_SSD, 0);
    rig_step(rig, 100);
}

/* The id of space 0, which records must bear to be got from it. */
static void learn_space(uint8_t *id)
{
    simdisk_t *disk = simdisk_create(1, 0);
    rig_t rig;

    rig_init(&rig, disk, 1, 6, SEGMENT_BYTES);
    require(rig_open(&rig) == LARDER_OK, "open");
    memcpy(id, rig.node->store.spaces[rig.spaces[0]->number].id, LDR_ID_BYTES);
    rig_close(&rig);
    rig_free(&rig);
    simdisk_destroy(disk);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint8_t space_id[LDR_ID_BYTES];
    static bool learned;
    rig_t rig;

    if (bytes == 0) {
        return 0;
    }
    if (!learned) {
        learn_space(space_id);
        learned = true;
    }
    unsigned mode = data[0] % 5;
    input_t in = {data + 1, bytes - 1};
    simdisk_t *disk = simdisk_create(1, 0);
    put_super(disk, &in, mode);
    if (mode < 3) {
        put_segment(disk, &in, mode, space_id);
    }
    rig_init(&rig, disk, 1, 6, SEGMENT_BYTES);
    rig.options.dram = 8 * LDR_PAGE; /* quick to make resident */
    /* Twice: what the first open repaired, the second finds. */
    for (int i = 0; i < 2 && rig_open(&rig) == LARDER_OK; i++) {
        use(&rig);
        rig_close(&rig);
    }
    rig_free(&rig);
    simdisk_destroy(disk);
    return 0;
}
