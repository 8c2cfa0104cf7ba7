/*
 * Disks of which one is slow, or hangs: whose read has its turn, what is left
 * of a disk that goes off, and what to the others.
 */
#include <limits.h>
#include <pthread.h>

#include "tier/ssd/disk_rig.h"
#include "node/load.h"
#include "support/real.h"

#define SEGMENT_BYTES ((uint64_t)1 << 20)
#define SEGMENTS 64u
#define LOADS 128u
#define SLOTS 4u

/* ---- turns ---- */

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
                      read->tier->disks[disk].reads_flying > SLOTS / 2;
        held.next[disk] += 2;
        held.reqs[held.count++] = reqs[i];
    }
}

static void hold_reads(fixture_t *f)
{
    ldr_io_t *io = simdisk_io(f->disk);

    held.disk = io->ops;
    held.ops = *io->ops;
    held.ops.submit = hold_back;
    held.count = held.wrong = held.next[0] = 0;
    held.next[1] = 1;
    io->ops = &held.ops;
}

static void let_go(fixture_t *f, unsigned at)
{
    ldr_io_req_t *req = held.reqs[at];

    held.count--;
    memmove(held.reqs + at, held.reqs + at + 1,
            (held.count - at) * sizeof(*held.reqs));
    held.disk->submit(simdisk_io(f->disk), &req, 1);
}

/* From now on the disk does all at once, and what was held back first. */
static void let_all_go(fixture_t *f)
{
    simdisk_io(f->disk)->ops = held.disk;
    while (held.count > 0) {
        let_go(f, 0);
    }
}

static int end(void **state)
{
    let_all_go(*state); /* where the test has failed */
    return teardown(state);
}

static int setup_one(void **state)
{
    fixture_t *f = fixture_make(state, SEGMENTS, SEGMENT_BYTES);

    f->rig.options.dram = 64 << 20;
    f->rig.options.io_depth = 2;
    return fixture_open(f);
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
        unsigned disk = i % ssds_of(f->rig.node)->count;
        rig_step_disk(&f->rig, disk, 100);
        assert_int_equal(ldr_loc_disk(rig_loc(&f->rig, name)), disk);
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
    unsigned done = 0;

    fill(f);
    hold_reads(f);
    begin(f, 0, LOADS / 2);
    begin(f, LOADS / 2, LOADS);
    for (; held.count > 0; done++) {
        let_go(f, fastest());
    }
    assert_int_equal(held.wrong, 0);
    assert_int_equal(done, LOADS);
    for (uint32_t i = 0; i < LOADS; i++) {
        assert_int_equal(loads[i].load.status, LARDER_OK);
        ldr_load_end(f->rig.node, &loads[i].load, false);
    }
}

/* ---- off ---- */

static larder_status_t get(fixture_t *f, uint32_t key)
{
    name_t name = {0, 0, key};
    size_t bytes;
    larder_status_t st = rig_get(&f->rig, name, &bytes);

    assert_true(st != LARDER_OK || value_is(name, 1, f->rig.buffer, bytes));
    return st;
}

/* Of twenty reads two are with the disk, which does not answer, when it goes
 * off. Nobody waits for any of them then, what the others would have needed is
 * free, and all can be saved again. */
static void test_off(void **state)
{
    enum { WANTED = 20, WITH_DISK = 2 };
    fixture_t *f = *state;
    ldr_node_t *node;

    fill(f);
    node = f->rig.node;
    hold_reads(f);
    begin(f, 0, WANTED);
    assert_int_equal(held.count, WITH_DISK);
    rig_sleep(&f->rig, 6000);
    ldr_load_abandon(node, &loads[0].load, LARDER_E_DEADLINE);
    for (uint32_t i = 0; i < WANTED; i++) {
        const ldr_load_t *load = &loads[i].load;

        assert_int_equal(load->status,
                         i == 0 ? LARDER_E_DEADLINE : LARDER_MISS);
        assert_int_equal(load->cause,
                         i == 0 ? LARDER_CAUSE_NONE : LARDER_CAUSE_TIER_OFF);
        ldr_load_end(node, &loads[i].load, false);
    }
    assert_false(disks_of(node)[0].on);
    assert_int_equal(node->store.held_chunks, WITH_DISK);
    for (uint32_t i = 0; i < WANTED; i += WANTED / 4) {
        assert_int_equal(get(f, i), LARDER_MISS);
        assert_int_equal(f->rig.cause, LARDER_CAUSE_TIER_OFF);
        assert_int_equal(rig_put(&f->rig, (name_t){0, 0, i}, 1), LARDER_OK);
        assert_int_equal(get(f, i), LARDER_OK);
    }
    /* It answers. */
    let_all_go(f);
    assert_int_equal(node->store.held_chunks, 0);
    store_check(&node->store);
    rig_sleep(&f->rig, f->rig.options.retry_ms);
    rig_step(&f->rig, 1000);
    assert_true(disks_of(node)[0].on);
    for (uint32_t i = 0; i < LOADS; i++) {
        assert_int_equal(get(f, i), LARDER_OK);
    }
}

/* ---- one hangs ---- */

enum { BYTES = 4096, PUTS_MAX = 20000, CARRIED_MIN = 16, SOON_MS = 100 };

/* With io=plain: from a reclaim's reads on the first directory does not answer,
 * and each thread that asks it for something stays with that. */
static struct {
    const ldr_io_ops_t *plain;
    ldr_io_ops_t ops;
    char dir[PATH_MAX];
    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t changed;
    bool hangs, over;
} hung = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .changed = PTHREAD_COND_INITIALIZER};

/* How a request that hangs goes on. */
typedef struct later {
    void (*done)(ldr_io_req_t *req);
    void *arg;
} later_t;

static void done_later(ldr_io_req_t *req)
{
    later_t *later = req->arg;

    pthread_mutex_lock(&hung.lock);
    while (!hung.over) {
        pthread_cond_wait(&hung.changed, &hung.lock);
    }
    pthread_mutex_unlock(&hung.lock);
    req->done = later->done;
    req->arg = later->arg;
    free(later);
    req->done(req);
}

static bool in_first(int file)
{
    char link[64], path[PATH_MAX] = "";

    snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
    assert_true(readlink(link, path, sizeof(path) - 1) > 0);
    return strncmp(path, hung.dir, strlen(hung.dir)) == 0;
}

static void submit_hung(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count)
{
    pthread_mutex_lock(&hung.lock);
    hung.hangs |= count >= CARRIED_MIN && reqs[0]->kind == LDR_IO_READ &&
                  in_first(reqs[0]->file);
    for (unsigned i = 0; i < count && hung.hangs; i++) {
        if (in_first(reqs[i]->file)) {
            later_t *later = malloc(sizeof(*later));

            *later = (later_t){reqs[i]->done, reqs[i]->arg};
            reqs[i]->done = done_later;
            reqs[i]->arg = later;
        }
    }
    pthread_mutex_unlock(&hung.lock);
    hung.plain->submit(io, reqs, count);
}

static bool hangs(void)
{
    pthread_mutex_lock(&hung.lock);
    bool now = hung.hangs;
    pthread_mutex_unlock(&hung.lock);
    return now;
}

/* Between two requests: once its disks sleep nobody looks at the table. */
static void hang_later(ldr_node_t *node)
{
    bool idle = false;

    while (!idle) {
        real_pause();
        ldr_node_lock(node);
        idle = disks_of(node)[0].idle && disks_of(node)[1].idle;
        if (idle) {
            hung.plain = node->io->ops;
            hung.ops = *node->io->ops;
            hung.ops.submit = submit_hung;
            node->io->ops = &hung.ops;
        }
        ldr_node_unlock(node);
    }
}

static larder_status_t run(larder_space_t *space, larder_op_t op, uint64_t id,
                           uint32_t timeout_ms)
{
    static uint8_t value[BYTES];
    larder_op_params_t params = {.field_mask = LARDER_OP_TIMEOUT,
                                 .timeout_ms = timeout_ms};
    larder_key_t key = real_key(id);
    struct iovec iov = {value, BYTES};
    larder_item_t item = {
        .key = &key,
        .iov = &iov,
        .iov_count = 1,
        .flags = op == LARDER_OP_PUT ? LARDER_PUT_PIN : 0,
    };
    uint64_t generation;

    real_fill(value, op == LARDER_OP_PUT ? BYTES : 0, id, 1);
    assert_int_equal(larder_run(space, op, &item, 1, &params), LARDER_OK);
    assert_true(op == LARDER_OP_PUT || item.status != LARDER_OK ||
                real_check(value, BYTES, id, &generation));
    return item.status;
}

/* The next one from id on that is on this disk only. */
static uint64_t find(larder_t *lar, larder_space_t *space, unsigned disk,
                     uint64_t id)
{
    ldr_store_t *store = &lar->node->store;
    bool found = false;

    while (!found) {
        larder_key_t key = real_key(++id);
        larder_cause_t cause;

        assert_in_range(id, 1, PUTS_MAX);
        ldr_node_lock(lar->node);
        ldr_name_t name = ldr_store_name(store, space->number, 0, &key);
        uint32_t entry = ldr_store_find(store, &name, LDR_NIL, 0, &cause);
        if (entry != LDR_NIL &&
            ldr_store_resident(store, entry, 0) == LDR_NIL) {
            ldr_loc_t loc = ldr_index_loc(&store->index, entry, 0);

            found = loc != 0 && ldr_loc_disk(loc) == disk;
        }
        ldr_node_unlock(lar->node);
    }
    return id;
}

/* A disk that hangs while reclaim reads what it carries, and with all the loads
 * that it may have: the other goes on. */
static void test_reclaim_hangs(void **state)
{
    char dirs[2][256], url[700];
    larder_t *lar = NULL;
    larder_space_t *space = NULL;
    uint64_t id = 0, first = 0;
    larder_stats_t stats;

    (void)state;
    assert_true(real_dir_make(dirs[0], sizeof(dirs[0]), "disks-a"));
    assert_true(real_dir_make(dirs[1], sizeof(dirs[1]), "disks-b"));
    assert_non_null(realpath(dirs[0], hung.dir));
    snprintf(url, sizeof(url),
             "embed:%s,%s?dram=4M&ssd=8M&segment=1M&pin_max=64M&io=plain&"
             "io_threads=1&io_depth=4",
             dirs[0], dirs[1]);
    assert_int_equal(real_open(url, &lar), LARDER_OK);
    assert_int_equal(real_space(lar, "disks", &space), LARDER_OK);
    hang_later(lar->node);
    while (!hangs()) {
        assert_in_range(++id, 1, PUTS_MAX);
        assert_int_equal(run(space, LARDER_OP_PUT, id, 10000), LARDER_OK);
        if (id % 16 == 0) { /* before it is evicted */
            larder_flush(lar, LARDER_TIER_SSD, SOON_MS);
        }
    }
    for (unsigned i = 0; i < 4; i++) {
        first = find(lar, space, 0, first);
        assert_int_equal(run(space, LARDER_OP_GET, first, SOON_MS),
                         LARDER_MISS);
    }
    larder_status_t st =
        run(space, LARDER_OP_GET, find(lar, space, 1, 0), 2000);
    assert_true(real_stats(lar, &stats));
    pthread_mutex_lock(&hung.lock);
    hung.over = true;
    pthread_cond_broadcast(&hung.changed);
    pthread_mutex_unlock(&hung.lock);
    assert_int_equal(st, LARDER_OK);
    assert_true(stats.disk[1].on);
    assert_int_equal(larder_close(&lar, LARDER_FOREVER), LARDER_OK);
    larder_space_close(&space);
    real_dir_remove(dirs[0]);
    real_dir_remove(dirs[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_turns, setup, end),
        cmocka_unit_test_setup_teardown(test_off, setup_one, end),
        cmocka_unit_test(test_reclaim_hangs),
    };

    return cmocka_run_group_tests_name("ssd/disks", tests, NULL, NULL);
}
