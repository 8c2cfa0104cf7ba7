/*
 * Disks of which one is slow, or hangs: whose read has its turn.
 */
#include "node/disk_rig.h"
#include "node/load.h"

#define SEGMENT_BYTES ((uint64_t)1 << 20)
#define SEGMENTS 64u
#define LOADS 128u
#define SLOTS 4u

/* Reads are held back until the test lets them go. */
static struct {
    const ldr_io_ops_t *disk; /* how it does */
    ldr_io_ops_t ops;
    ldr_io_req_t *reqs[SLOTS]; /* in the order of submission */
    unsigned count;
    uint32_t next[2]; /* by disk: the load whose read comes next */
    unsigned wrong;   /* reads that were not next, or one too many */
} held;

static struct {
    larder_key_t key;
    larder_item_t item;
    ldr_load_t load;
} loads[LOADS];

static uint32_t load_of(uint32_t shard)
{
    uint32_t i = 0;

    while (i < LOADS && loads[i].load.shard != shard) {
        i++;
    }
    return i;
}

static void hold_back(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const ldr_read_t *read = reqs[i]->arg;

        if (reqs[i]->kind != LDR_IO_READ) {
            held.disk->submit(io, &reqs[i], 1);
            continue;
        }
        uint32_t disk = ldr_loc_disk(read->loc);
        held.wrong += load_of(read->shard) != held.next[disk] ||
                      read->node->ssds[disk].reads_flying > SLOTS / 2;
        held.next[disk] += 2;
        held.reqs[held.count++] = reqs[i];
    }
}

static void let_go(fixture_t *f, unsigned at)
{
    ldr_io_req_t *req = held.reqs[at];

    held.count--;
    memmove(held.reqs + at, held.reqs + at + 1,
            (held.count - at) * sizeof(*held.reqs));
    held.disk->submit(simdisk_io(f->disk), &req, 1);
}

static int setup(void **state)
{
    fixture_t *f = fixture_make(state, SEGMENTS, SEGMENT_BYTES);

    snprintf(f->rig.options.dirs[1], LDR_PATH_MAX, "/ssd2");
    f->rig.options.dir_count = 2;
    f->rig.options.dram = 64 << 20;
    f->rig.options.io_depth = SLOTS;
    return fixture_open(f);
}

/* What is asked for next lies on the other disk; all of it on disk only. */
static void fill(fixture_t *f)
{
    for (uint32_t i = 0; i < LOADS; i++) {
        name_t name = {0, 0, i};

        assert_int_equal(rig_put(&f->rig, name, 1), LARDER_OK);
        rig_step_disk(&f->rig, i % 2, 100);
        assert_int_equal(ldr_loc_disk(rig_loc(&f->rig, name)), i % 2);
    }
    rig_close(&f->rig);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
}

static void begin(fixture_t *f, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        loads[i].key = test_key(i);
        loads[i].item = (larder_item_t){.key = &loads[i].key};
        loads[i].load = (ldr_load_t){
            .target = {f->rig.spaces[0]->number, 1, &loads[i].item}};
        assert_false(ldr_load_begin(f->rig.node, &loads[i].load));
    }
    ldr_node_reads_go(f->rig.node);
}

/* Where a read of the first disk is, or else the one submitted first. */
static unsigned fastest(void)
{
    for (unsigned i = 0; i < held.count; i++) {
        const ldr_read_t *read = held.reqs[i]->arg;

        if (ldr_loc_disk(read->loc) == 0) {
            return i;
        }
    }
    return 0;
}

/* Two requests for more than there are slots, and the second disk answers only
 * when the first has nothing to do: for neither is a read of the second request
 * submitted while one of the first waits. */
static void test_turns(void **state)
{
    fixture_t *f = *state;
    ldr_io_t *io = simdisk_io(f->disk);
    unsigned done = 0;

    fill(f);
    held.disk = io->ops;
    held.ops = *io->ops;
    held.ops.submit = hold_back;
    held.next[1] = 1;
    io->ops = &held.ops;
    begin(f, 0, LOADS / 2);
    begin(f, LOADS / 2, LOADS);
    for (; held.count > 0; done++) {
        let_go(f, fastest());
    }
    io->ops = held.disk;
    assert_int_equal(held.wrong, 0);
    assert_int_equal(done, LOADS);
    for (uint32_t i = 0; i < LOADS; i++) {
        assert_int_equal(loads[i].load.status, LARDER_OK);
        ldr_load_end(f->rig.node, &loads[i].load, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_turns, setup, teardown),
    };

    return cmocka_run_group_tests_name("node/disks", tests, NULL, NULL);
}
