#include "support/rig.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WALL_BASE_S 1700000000u

static uint64_t rig_now_ns(void *arg)
{
    return ((rig_t *)arg)->now_ns;
}

static uint64_t rig_wall_ms(void *arg)
{
    return WALL_BASE_S * 1000 + ((rig_t *)arg)->now_ns / 1000000u;
}

static void quiet(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    if (getenv("LARDER_LOG") != NULL) {
        printf("log %d: %s\n", (int)level, line);
    }
}

uint64_t rig_ssd(uint32_t segments, uint64_t segment_bytes)
{
    uint64_t bytes = 2 * LDR_SUPER_BYTES + segments * segment_bytes;

    return bytes + LDR_LEDGERS * ldr_ledger_bytes(bytes + bytes / 32);
}

void rig_init(rig_t *rig, simdisk_t *disk, uint64_t seed, uint32_t segments,
              uint64_t segment_bytes)
{
    /* Nodes come and go by the thousand: their memory stays with us. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    memset(rig, 0, sizeof(*rig));
    rig->disk = disk;
    rig->seed = seed;
    rig->now_ns = 1000000000u;
    rig->clock = (ldr_clock_t){rig_now_ns, rig_wall_ms, rig};
    ldr_options_default(&rig->options);
    snprintf(rig->options.dirs[0], LDR_PATH_MAX, "/ssd");
    rig->options.dir_count = 1;
    rig->options.dram = 2 << 20;
    rig->options.ssd = rig_ssd(segments, segment_bytes);
    rig->options.segment = segment_bytes;
    rig->options.io_depth = 4;
    rig->options.tickets = 1;
    rig->buffer = malloc(VALUE_BYTES_MAX);
    require(rig->buffer != NULL, "out of memory");
}

void rig_free(rig_t *rig)
{
    require(rig->lar == NULL, "the rig is still open");
    free(rig->buffer);
    rig->buffer = NULL;
}

uint32_t rig_shards(uint32_t space)
{
    return space == 1 ? 2 : 1;
}

static larder_status_t spaces_open(rig_t *rig)
{
    larder_status_t st = LARDER_OK;

    uint32_t count = rig->first_only ? 1 : RIG_SPACES;

    for (uint32_t i = 0; i < count && st == LARDER_OK; i++) {
        char text[16];
        larder_space_params_t p = {
            .field_mask = LARDER_SPACE_SHARDS,
            .descriptor = text,
            .shards = rig_shards(i),
            .tenant = RIG_OTHER,
        };

        if (rig->tenants && i == RIG_SPACES - 1) {
            p.field_mask |= LARDER_SPACE_TENANT;
        }

        p.descriptor_bytes =
            (size_t)snprintf(text, sizeof(text), "space %u", i);
        st = larder_space_open(rig->lar, &p, &rig->spaces[i]);
    }
    return st;
}

larder_status_t rig_open(rig_t *rig)
{
    ldr_node_env_t env = {
        .io = simdisk_io(rig->disk),
        .clock = &rig->clock,
        .seed = test_mix(rig->seed++) | 1,
        .manual = true,
        .log = {quiet, NULL},
        .tenants = rig->limits,
        .tenant_count = rig->limit_count,
        .handover = rig->handover,
    };
    ldr_node_t *node;
    larder_status_t st = ldr_node_open(&rig->options, &env, &node);

    if (st != LARDER_OK) {
        return st;
    }
    st = ldr_handle_open(node, &rig->lar);
    require(st == LARDER_OK, "handle: %s", larder_status_text(st));
    rig->node = node;
    st = spaces_open(rig);
    if (st != LARDER_OK) {
        rig_close(rig);
    }
    return st;
}

larder_status_t rig_close(rig_t *rig)
{
    larder_status_t st = larder_close(&rig->lar, 0);

    rig->node = NULL;
    for (uint32_t i = 0; i < RIG_SPACES; i++) {
        larder_space_close(&rig->spaces[i]);
    }
    return st;
}

unsigned rig_step(rig_t *rig, unsigned max)
{
    unsigned did = 0;

    while (did < max && ldr_node_step(rig->node)) {
        did++;
    }
    return did;
}

unsigned rig_step_disk(rig_t *rig, unsigned disk, unsigned max)
{
    unsigned did = 0;

    ldr_node_lock(rig->node);
    while (did < max && ldr_ssd_step(&disks_of(rig->node)[disk])) {
        did++;
    }
    ldr_node_unlock(rig->node);
    return did;
}

void rig_sleep(rig_t *rig, uint64_t ms)
{
    rig->now_ns += ms * 1000000u;
}

larder_item_t rig_item(rig_t *rig, name_t name, larder_key_t *key,
                       struct iovec *iov, size_t bytes)
{
    *key = test_key(name.key);
    *iov = (struct iovec){rig->buffer, bytes};
    return (larder_item_t){
        .key = key,
        .shard = name.shard,
        .iov = iov,
        .iov_count = 1,
        .depth = name.key % RIG_CHAIN,
    };
}

/* Runs it and gives the item's own status. */
static larder_status_t run_one(rig_t *rig, larder_op_t op, name_t name,
                               larder_item_t *item)
{
    larder_status_t st = larder_run(rig->spaces[name.space], op, item, 1, NULL);

    return st == LARDER_OK ? item->status : st;
}

larder_status_t rig_put(rig_t *rig, name_t name, uint32_t version)
{
    larder_key_t key, parent = test_key(name.key - 1);
    struct iovec iov;
    larder_item_t item =
        rig_item(rig, name, &key, &iov, value_bytes(name, version));

    if (item.depth > 0) {
        item.parent = &parent;
    }
    value_fill(name, version, rig->buffer);
    return run_one(rig, LARDER_OP_PUT, name, &item);
}

larder_status_t rig_get(rig_t *rig, name_t name, size_t *bytes_p)
{
    larder_key_t key;
    struct iovec iov;
    larder_item_t item = rig_item(rig, name, &key, &iov, VALUE_BYTES_MAX);
    larder_status_t st = run_one(rig, LARDER_OP_GET, name, &item);

    *bytes_p = item.length;
    rig->cause = item.cause;
    return st;
}

larder_status_t rig_remove(rig_t *rig, name_t name)
{
    larder_key_t key;
    struct iovec iov;
    larder_item_t item = rig_item(rig, name, &key, &iov, 1);

    return run_one(rig, LARDER_OP_REMOVE, name, &item);
}

bool rig_exists(rig_t *rig, name_t name)
{
    larder_key_t key;
    struct iovec iov;
    larder_item_t item = rig_item(rig, name, &key, &iov, 1);

    return run_one(rig, LARDER_OP_EXISTS, name, &item) == LARDER_OK;
}

ldr_loc_t rig_loc(const rig_t *rig, name_t name)
{
    const ldr_store_t *store = &rig->node->store;
    uint32_t space = rig->spaces[name.space]->number;
    larder_key_t key = test_key(name.key);
    ldr_name_t n = ldr_store_name(store, space, 0, &key);
    uint32_t entry =
        ldr_index_find(&store->index, n.fingerprint, space, 0, LDR_NIL);

    if (entry == LDR_NIL) {
        return 0;
    }
    const ldr_entry_t *e = ldr_index_at(&store->index, entry);
    if (e->epoch != store->spaces[space].epoch ||
        (e->expires_s != 0 && e->expires_s <= ldr_wall_s(&rig->clock))) {
        return 0;
    }
    return ldr_index_loc(&store->index, entry, name.shard);
}
