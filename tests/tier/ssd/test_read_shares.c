/*
 * Two disks of which one does not answer: it has its share of what reads need,
 * and no more, so that the other goes on.
 */
#include <dirent.h>

#include "tier/ssd/disk_rig.h"
#include "node/load.h"
#include "support/real.h"

enum {
    HANGS = 0, /* disks */
    WORKS = 1,
    KEYS = 12, /* on each of them: more than there are slots */
    HELD_MAX = 64,
    THREADS = 3,
    DEPTH = 8,
};

/* ---- reads that do not come back ---- */

/* In the place of the node's engine: keeps reads of the disk that hangs. */
static struct {
    ldr_io_t io;
    ldr_io_ops_t ops;
    ldr_node_t *node;
    ldr_io_t *real;
    ldr_io_req_t *held[HELD_MAX];
    unsigned count;
} jam;

static bool is_jammed(const ldr_io_req_t *req)
{
    const ldr_disk_t *d = &disks_of(jam.node)[HANGS].disk;

    for (uint32_t i = 0; i < d->segment_count; i++) {
        if (req->kind == LDR_IO_READ && d->segments[i].file == req->file) {
            return true;
        }
    }
    return false;
}

static void jam_submit(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count)
{
    (void)io;
    for (unsigned i = 0; i < count; i++) {
        if (is_jammed(reqs[i])) {
            assert_true(jam.count < HELD_MAX);
            jam.held[jam.count++] = reqs[i];
        } else {
            ldr_io_submit(jam.real, &reqs[i], 1);
        }
    }
}

static void jam_begin(ldr_node_t *node)
{
    jam.node = node;
    jam.real = node->io;
    jam.ops = *node->io->ops;
    jam.ops.submit = jam_submit;
    jam.io.ops = &jam.ops;
    jam.count = 0;
    node->io = &jam.io;
}

static void jam_end(void)
{
    jam.node->io = jam.real;
    jam.node = NULL;
    ldr_io_submit(jam.real, jam.held, jam.count);
}

/* ---- the node ---- */

static name_t name(unsigned disk, uint32_t i)
{
    return (name_t){0, 0, disk * KEYS + i};
}

/* Each disk has keys of its own, and memory has none. */
static int setup(void **state)
{
    fixture_t *f = fixture_make(state, 8, 256 * LDR_BLOCK);
    ldr_options_t *o = &f->rig.options;

    snprintf(o->dirs[1], sizeof(o->dirs[1]), "/other");
    o->dir_count = 2;
    o->dram = 8 << 20;
    fixture_open(f);
    assert_true(ssds_of(f->rig.node)->read_count < KEYS);
    for (unsigned disk = 0; disk < 2; disk++) {
        for (uint32_t i = 0; i < KEYS; i++) {
            assert_int_equal(rig_put(&f->rig, name(disk, i), 1), LARDER_OK);
        }
        rig_step_disk(&f->rig, disk, UINT32_MAX);
    }
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0), LARDER_OK);
    assert_int_equal(rig_close(&f->rig), LARDER_OK);
    fixture_open(f);
    for (unsigned disk = 0; disk < 2; disk++) {
        for (uint32_t i = 0; i < KEYS; i++) {
            ldr_loc_t loc = rig_loc(&f->rig, name(disk, i));

            assert_true(loc != 0 && ldr_loc_disk(loc) == disk);
        }
    }
    return 0;
}

/* Also after a failure: closing waits for reads. */
static int unjam(void **state)
{
    if (jam.node != NULL) {
        jam_end();
    }
    return teardown(state);
}

typedef struct one {
    ldr_load_t load;
    larder_item_t item;
    larder_key_t key;
} one_t;

static void begin(fixture_t *f, one_t *one, name_t n)
{
    one->key = test_key(n.key);
    one->item = (larder_item_t){.key = &one->key};
    one->load =
        (ldr_load_t){.target = {f->rig.spaces[0]->number, 1, &one->item}};
    assert_false(ldr_load_begin(f->rig.node, &one->load));
    ldr_node_reads_go(f->rig.node);
}

/* Asked for more than there are slots, the disk that hangs has half of them.
 * The other one's reads find some, however many wait before them; and those
 * that waited are read when the disk answers. */
static void test_other_goes_on(void **state)
{
    fixture_t *f = *state;
    ldr_node_t *node = f->rig.node;
    static one_t stuck[KEYS], one;

    jam_begin(node);
    for (uint32_t i = 0; i < KEYS; i++) {
        begin(f, &stuck[i], name(HANGS, i));
    }
    assert_int_equal(jam.count, ssds_of(node)->read_count / 2);
    for (uint32_t i = 0; i < KEYS; i++) {
        begin(f, &one, name(WORKS, i));
        assert_int_equal(one.load.status, LARDER_OK);
        ldr_load_end(node, &one.load, false);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        assert_int_equal(stuck[i].load.status, LARDER_PENDING);
    }
    jam_end();
    for (uint32_t i = 0; i < KEYS; i++) {
        assert_int_equal(stuck[i].load.status, LARDER_OK);
        ldr_load_end(node, &stuck[i].load, false);
    }
    assert_int_equal(ssds_of(node)->reads_waiting, 0);
    assert_int_equal(ssds_of(node)->reads_flying, 0);
}

/* ---- engines ---- */

/* Sums up what fn finds in the files of this name, one for each entry of a
 * folder of /proc. */
static unsigned in_proc(const char *folder, const char *name,
                        unsigned (*fn)(FILE *file))
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    unsigned sum = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        char path[400];

        snprintf(path, sizeof(path), "%s/%s%s", folder, entry->d_name, name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (file != NULL) {
            sum += fn(file);
            fclose(file);
        }
    }
    closedir(dir);
    return sum;
}

static unsigned is_io_thread(FILE *file)
{
    char text[32] = "";

    return fgets(text, sizeof(text), file) != NULL &&
           strncmp(text, "larder-io-", 10) == 0;
}

/* Of a descriptor; 0: it is no ring. */
static unsigned ring_entries(FILE *file)
{
    unsigned mask, entries = 0;
    char line[200];

    while (fgets(line, sizeof(line), file) != NULL) {
        entries = sscanf(line, "SqMask: %x", &mask) == 1 ? mask + 1 : entries;
    }
    return entries;
}

/* What the node of these directories has, by that engine. */
static void open_dirs(char dirs[2][200], unsigned count, const char *engine,
                      unsigned *threads_p, unsigned *entries_p)
{
    char url[600];
    larder_t *lar = NULL;

    snprintf(url, sizeof(url),
             "embed:%s%s%s?dram=8M&ssd=32M&segment=4M&io=%s&io_threads=%d&"
             "io_depth=%d",
             dirs[0], count == 2 ? "," : "", count == 2 ? dirs[1] : "", engine,
             THREADS, DEPTH);
    assert_int_equal(real_open(url, &lar), LARDER_OK);
    *threads_p = in_proc("/proc/self/task", "/comm", is_io_thread);
    *entries_p = in_proc("/proc/self/fdinfo", "", ring_entries);
    assert_int_equal(larder_close(&lar, LARDER_FOREVER), LARDER_OK);
}

/* A disk that hangs keeps as many threads, or entries of the ring, as it has
 * requests, its own and half of the loads: the other has what it needs. */
static void test_each_brings_its_own(void **state)
{
    unsigned threads, entries;
    char dirs[2][200];

    (void)state;
    assert_true(real_dir_make(dirs[0], sizeof(dirs[0]), "disks"));
    assert_true(real_dir_make(dirs[1], sizeof(dirs[1]), "disks"));
    for (unsigned count = 1; count <= 2; count++) {
        open_dirs(dirs, count, "plain", &threads, &entries);
        assert_int_equal(threads, count == 1
                                      ? THREADS
                                      : THREADS + DEPTH / 2 + LDR_SSD_REQUESTS);
        open_dirs(dirs, count, "auto", &threads, &entries);
        if (threads == 0 && entries > 0) { /* a ring, and the kernel tells */
            assert_true(entries >= DEPTH + count * LDR_SSD_REQUESTS);
        }
    }
    real_dir_remove(dirs[0]);
    real_dir_remove(dirs[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_other_goes_on, setup, unjam),
        cmocka_unit_test(test_each_brings_its_own),
    };

    return cmocka_run_group_tests_name("ssd/read_shares", tests, NULL, NULL);
}
