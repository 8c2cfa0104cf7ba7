/*
 * Whole records, with the right checksums, in the place of another: what a file
 * that was used again, or a disk that mixes up its blocks, might give back. A
 * load finds every field that is not the one it looks for, and misses.
 */
#include "tier/ssd/disk_rig.h"

static const name_t name = {0, 0, 1};

static int setup(void **state)
{
    return fixture_open(fixture_make(state, 8, 256 * LDR_BLOCK));
}

/* Saves it, so that it is on disk and nowhere else. */
static ldr_loc_t save(fixture_t *f)
{
    ldr_store_t *store = &f->rig.node->store;

    assert_int_equal(rig_put(&f->rig, name, 1), LARDER_OK);
    rig_step(&f->rig, 1000);
    ldr_loc_t loc = rig_loc(&f->rig, name);
    assert_int_not_equal(loc, 0);
    ldr_node_lock(f->rig.node);
    while (ldr_store_evict(store, store->spaces[0].tenant)) {
    }
    ldr_node_unlock(f->rig.node);
    assert_int_equal(rig_loc(&f->rig, name), loc);
    return loc;
}

typedef void (*change_t)(ldr_record_t *r);

/* Puts what change() makes of its record in its place. */
static void forge(fixture_t *f, ldr_loc_t loc, change_t change)
{
    ldr_segment_header_t header =
        ldr_disk_header(&disks_of(f->rig.node)[0].disk, ldr_loc_segment(loc));
    uint32_t at = ldr_loc_block(loc) + ldr_loc_blocks(loc) - 1;
    uint8_t block[LDR_BLOCK];
    ldr_record_t record;
    char path[64];

    snprintf(path, sizeof(path), "/ssd/segment-%06u", ldr_loc_segment(loc));
    assert_true(simdisk_read_raw(f->disk, path, (uint64_t)at * LDR_BLOCK, block,
                                 LDR_BLOCK));
    assert_true(ldr_record_parse(block, &header, at, &record));
    change(&record);
    ldr_record_compose(&record, &header, block);
    assert_true(simdisk_write_raw(f->disk, path, (uint64_t)at * LDR_BLOCK,
                                  block, LDR_BLOCK));
}

static void nothing(ldr_record_t *r)
{
    (void)r;
}

static void key(ldr_record_t *r)
{
    r->key.hash[31] ^= 1;
}

static void space(ldr_record_t *r)
{
    r->space_id[LDR_ID_BYTES - 1] ^= 1;
}

static void epoch(ldr_record_t *r)
{
    r->epoch++;
}

static void group(ldr_record_t *r)
{
    r->group++;
}

static void shard(ldr_record_t *r)
{
    r->shard++;
    r->shards++;
}

static void kind(ldr_record_t *r)
{
    r->kind = LDR_RECORD_TOMBSTONE;
}

/* It ends at the same descriptor, and begins later. */
static void begin(ldr_record_t *r)
{
    r->block++;
    r->length -= LDR_BLOCK;
}

static void checksum(ldr_record_t *r)
{
    r->payload_crc ^= 1;
}

static void test_every_field(void **state)
{
    static const change_t changes[] = {key,   space, epoch, group,
                                       shard, kind,  begin, checksum};
    fixture_t *f = *state;
    size_t bytes;

    forge(f, save(f), nothing);
    assert_int_equal(rig_get(&f->rig, name, &bytes), LARDER_OK);
    for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
        assert_int_equal(rig_remove(&f->rig, name), LARDER_OK);
        forge(f, save(f), changes[i]);
        assert_int_equal(rig_get(&f->rig, name, &bytes), LARDER_MISS);
        assert_int_equal(f->rig.cause, LARDER_CAUSE_CORRUPT);
        /* And is not asked for again. */
        assert_int_equal(rig_loc(&f->rig, name), 0);
        assert_int_equal(rig_put(&f->rig, name, 1), LARDER_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_field, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
