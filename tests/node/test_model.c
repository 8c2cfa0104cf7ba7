/*
 * Random calls of the public interface against a plain model that knows the
 * promises: what a get may give, when a put may say present, that matches can
 * be staged, that leases keep their bytes, that time runs out, that pins stay
 * within their budget, and that a restart keeps what was on disk.
 *
 * In the second configuration reads, writes and syncs fail at random and the
 * disk runs full. Then more may be missing; nothing else changes, and once the
 * faults are gone the disk is back.
 *
 * LARDER_SEEDS: how many; LARDER_SEED: the first.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "support/rig.h"
#include "support/storecheck.h"

#define KEYS 16u
#define SHARDS 2u /* at most, in any space */
#define VERSIONS 48u
#define LEASES 3u
#define CALLS 70u
#define BATCH 5u

/* One shard as the model sees it. */
typedef struct cell {
    uint32_t floor, top;          /* as in history.h */
    uint32_t expires_s[VERSIONS]; /* of each version */
} cell_t;

typedef struct held {
    larder_lease_t *lease; /* NULL: none */
    uint16_t space;
    uint32_t first_key;
    uint32_t chunks;
    uint32_t version[RIG_CHAIN][SHARDS];
} held_t;

typedef struct model {
    simdisk_t *disk;
    rig_t rig;
    ldr_rand_t rand;
    bool faults;
    cell_t cells[RIG_SPACES][KEYS][SHARDS];
    held_t held[LEASES];
    uint8_t *buffers; /* BATCH of VALUE_BYTES_MAX */
    uint64_t hits, misses, staged, reopens, mismatches, presents;
} model_t;

static uint64_t draw(model_t *m, uint64_t below)
{
    return ldr_rand_below(&m->rand, below);
}

static cell_t *cell_of(model_t *m, name_t name)
{
    return &m->cells[name.space][name.key][name.shard];
}

static name_t draw_name(model_t *m)
{
    name_t name = {.space = (uint16_t)draw(m, RIG_SPACES)};

    name.shard = (uint16_t)draw(m, rig_shards(name.space));
    name.key = (uint32_t)draw(m, KEYS);
    return name;
}

static bool may_give(model_t *m, name_t name, uint32_t version)
{
    const cell_t *cell = cell_of(m, name);
    uint32_t expires_s = cell->expires_s[version];

    return version > cell->floor && version <= cell->top &&
           (expires_s == 0 || ldr_wall_s(&m->rig.clock) < expires_s);
}

static bool may_give_any(model_t *m, name_t name)
{
    for (uint32_t v = cell_of(m, name)->top; v > 0; v--) {
        if (may_give(m, name, v)) {
            return true;
        }
    }
    return false;
}

/* Which version the bytes are; it must be one that may be given. */
static uint32_t judge(model_t *m, name_t name, const uint8_t *data,
                      size_t bytes)
{
    for (uint32_t v = cell_of(m, name)->top; v > 0; v--) {
        if (value_is(name, v, data, bytes)) {
            require(may_give(m, name, v),
                    "space %u key %u shard %u: version %u was removed, reset "
                    "or has expired",
                    name.space, name.key, name.shard, v);
            return v;
        }
    }
    test_failed(__FILE__, __LINE__,
                "space %u key %u shard %u: %zu bytes that nobody put",
                name.space, name.key, name.shard, bytes);
}

static bool leases_held(const model_t *m)
{
    for (uint32_t i = 0; i < LEASES; i++) {
        if (m->held[i].lease != NULL) {
            return true;
        }
    }
    return false;
}

/* ---- batches ---- */

typedef struct batch {
    uint32_t count;
    uint16_t space;
    name_t names[BATCH];
    larder_key_t keys[BATCH], parents[BATCH];
    struct iovec iov[BATCH][3];
    larder_item_t items[BATCH];
} batch_t;

/* Items of one space with buffers of so many bytes, in up to three pieces. */
static void batch_add(model_t *m, batch_t *b, name_t name, size_t bytes)
{
    uint32_t at = b->count++;
    uint8_t *data = m->buffers + at * VALUE_BYTES_MAX;
    uint32_t pieces = bytes < 16 ? 1 : 1 + (uint32_t)draw(m, 3);

    b->space = name.space;
    b->names[at] = name;
    b->keys[at] = test_key(name.key);
    b->items[at] = (larder_item_t){
        .key = &b->keys[at],
        .shard = name.shard,
        .depth = name.key % RIG_CHAIN,
        .iov = b->iov[at],
        .iov_count = pieces,
    };
    if (name.key % RIG_CHAIN > 0) {
        b->parents[at] = test_key(name.key - 1);
        b->items[at].parent = &b->parents[at];
    }
    for (uint32_t i = 0; i < pieces; i++) {
        size_t part = i + 1 == pieces ? bytes : 1 + draw(m, bytes / 2);

        b->iov[at][i] = (struct iovec){data, part};
        data += part;
        bytes -= part;
    }
}

static void batch_run(model_t *m, batch_t *b, larder_op_t op, uint32_t flags)
{
    larder_op_params_t p = {.field_mask = LARDER_OP_FLAGS, .flags = flags};
    larder_status_t st =
        larder_run(m->rig.spaces[b->space], op, b->items, b->count, &p);

    require(st == LARDER_OK, "batch: %s", larder_status_text(st));
}

/* Names of one space, all different: what becomes of the second put of a
 * batch with one name twice is another test's. */
static uint32_t draw_names(model_t *m, name_t *names)
{
    name_t first = draw_name(m);
    uint32_t count = 1 + (uint32_t)draw(m, BATCH);

    for (uint32_t i = 0; i < count; i++) {
        names[i] = first;
        names[i].key = (first.key + i) % KEYS;
    }
    return count;
}

/* ---- the calls ---- */

static void call_put(model_t *m)
{
    static batch_t b;
    name_t names[BATCH];
    uint32_t count = draw_names(m, names);
    bool existed[BATCH];

    b.count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t version = cell_of(m, names[i])->top + 1;

        if (version >= VERSIONS) {
            return;
        }
        existed[i] = rig_exists(&m->rig, names[i]);
        batch_add(m, &b, names[i], value_bytes(names[i], version));
        value_fill(names[i], version, m->buffers + i * VALUE_BYTES_MAX);
        b.items[i].ttl_ms = draw(m, 6) == 0 ? (uint32_t)draw(m, 9000) : 0;
        b.items[i].flags = draw(m, 4) == 0 ? LARDER_PUT_PIN : 0;
    }
    batch_run(m, &b, LARDER_OP_PUT, 0);
    for (uint32_t i = 0; i < count; i++) {
        cell_t *cell = cell_of(m, names[i]);
        uint32_t ttl_ms = b.items[i].ttl_ms;

        switch (b.items[i].status) {
        case LARDER_OK:
            require(!existed[i] || count > 1, "put over what existed");
            cell->expires_s[++cell->top] =
                ttl_ms == 0 ? 0
                            : ldr_wall_s(&m->rig.clock) + (ttl_ms + 999) / 1000;
            break;
        case LARDER_PRESENT:
            require(may_give_any(m, names[i]), "present, but never put");
            m->presents++;
            break;
        case LARDER_E_FULL:
            require(leases_held(m), "full, and nothing is leased");
            break;
        case LARDER_DECLINED:
            require(!m->rig.node->store.queues[0].takes ||
                        m->rig.node->store.queues[0].count > 0,
                    "declined, with a disk that keeps up");
            break;
        default:
            test_failed(__FILE__, __LINE__, "put: %s",
                        larder_status_text(b.items[i].status));
        }
    }
}

/* The version that a get gives, or 0 for a miss. */
static uint32_t get_one(model_t *m, name_t name, larder_cause_t *cause_p)
{
    size_t bytes;
    larder_status_t st = rig_get(&m->rig, name, &bytes);

    *cause_p = m->rig.cause;
    if (st == LARDER_MISS) {
        require(m->rig.cause != LARDER_CAUSE_NONE, "a miss without a cause");
        m->misses++;
        return 0;
    }
    require(st == LARDER_OK, "get: %s", larder_status_text(st));
    m->hits++;
    return judge(m, name, m->rig.buffer, bytes);
}

static void call_get(model_t *m)
{
    static batch_t b;
    name_t names[BATCH];
    uint32_t count = draw_names(m, names);

    b.count = 0;
    for (uint32_t i = 0; i < count; i++) {
        batch_add(m, &b, names[i], VALUE_BYTES_MAX);
    }
    batch_run(m, &b, LARDER_OP_GET, 0);
    for (uint32_t i = 0; i < count; i++) {
        if (b.items[i].status == LARDER_OK) {
            judge(m, names[i], m->buffers + i * VALUE_BYTES_MAX,
                  b.items[i].length);
            m->hits++;
        } else {
            require(b.items[i].status == LARDER_MISS, "get: %s",
                    larder_status_text(b.items[i].status));
            m->misses++;
        }
    }
}

/* What exists is got right after, and what does not is not. */
static void call_exists(model_t *m)
{
    name_t name = draw_name(m);
    larder_cause_t cause;
    bool exists = rig_exists(&m->rig, name);
    uint32_t version = get_one(m, name, &cause);

    /* A tenant's first extent may still be on its way from the other. */
    if (exists && version == 0) {
        require(m->faults || (cause == LARDER_CAUSE_FULL &&
                              (leases_held(m) || m->rig.tenants)),
                "it exists, and is a miss: %s", larder_cause_text(cause));
    }
    require(exists || version == 0, "it does not exist, and is a hit");
}

static void call_remove(model_t *m)
{
    static batch_t b;
    name_t names[BATCH];
    uint32_t count = draw_names(m, names);

    b.count = 0;
    for (uint32_t i = 0; i < count; i++) {
        batch_add(m, &b, names[i], 1);
    }
    batch_run(m, &b, LARDER_OP_REMOVE, 0);
    for (uint32_t i = 0; i < count; i++) {
        larder_status_t st = b.items[i].status;

        if (st == LARDER_OK || st == LARDER_MISS) {
            cell_of(m, names[i])->floor = cell_of(m, names[i])->top;
        }
        require(m->faults || st >= 0, "remove: %s", larder_status_text(st));
        require(!rig_exists(&m->rig, names[i]), "removed, and it exists");
    }
}

static void call_reset(model_t *m)
{
    uint32_t space = (uint32_t)draw(m, RIG_SPACES);
    larder_status_t st = larder_space_reset(m->rig.spaces[space], 0);

    require(st == LARDER_OK || (m->faults && st == LARDER_E_IO), "reset: %s",
            larder_status_text(st));
    for (uint32_t k = 0; k < KEYS && st == LARDER_OK; k++) {
        for (uint32_t i = 0; i < SHARDS; i++) {
            m->cells[space][k][i].floor = m->cells[space][k][i].top;
        }
    }
}

/* The same bytes are present, others are a mismatch. */
static void call_verify_put(model_t *m)
{
    static batch_t b;
    name_t name = draw_name(m);
    larder_cause_t cause;
    uint32_t version = get_one(m, name, &cause);
    bool same = draw(m, 2) == 0;

    if (version == 0) {
        return;
    }
    uint32_t offered = same ? version : VERSIONS;
    b.count = 0;
    batch_add(m, &b, name, value_bytes(name, offered));
    value_fill(name, offered, m->buffers);
    batch_run(m, &b, LARDER_OP_PUT, LARDER_VERIFY_PUT);
    larder_status_t want = same ? LARDER_PRESENT : LARDER_E_MISMATCH;
    require(b.items[0].status == want, "verify_put: %s",
            larder_status_text(b.items[0].status));
    m->mismatches += !same;
}

/* ---- leases ---- */

/* The leased bytes, put together, are the version; 0: find out which. */
static uint32_t lease_judge(model_t *m, const held_t *h, uint32_t chunk,
                            uint16_t shard, uint32_t version)
{
    name_t name = {h->space, shard, h->first_key + chunk};
    struct iovec seg[16];
    uint32_t count = 0;
    size_t bytes = 0;
    larder_status_t st =
        larder_lease_segments(h->lease, chunk, shard, seg, 16, &count);

    require(st == LARDER_OK, "segments: %s", larder_status_text(st));
    for (uint32_t i = 0; i < count; i++) {
        memcpy(m->rig.buffer + bytes, seg[i].iov_base, seg[i].iov_len);
        bytes += seg[i].iov_len;
    }
    if (version == 0) {
        return judge(m, name, m->rig.buffer, bytes);
    }
    require(value_is(name, version, m->rig.buffer, bytes),
            "space %u key %u shard %u: leased bytes changed", name.space,
            name.key, name.shard);
    return version;
}

static void leases_check(model_t *m)
{
    for (uint32_t i = 0; i < LEASES; i++) {
        const held_t *h = &m->held[i];

        for (uint32_t c = 0; h->lease != NULL && c < h->chunks; c++) {
            for (uint16_t s = 0; s < rig_shards(h->space); s++) {
                lease_judge(m, h, c, s, h->version[c][s]);
            }
        }
    }
}

static void lease_end(model_t *m, held_t *h)
{
    leases_check(m);
    larder_release(&h->lease);
}

/* What matches can be staged, unless leases take the room, or what was read
 * for its beginning drives the end of the chain out of a small arena. */
static void call_stage(model_t *m)
{
    held_t *h = &m->held[draw(m, LEASES)];
    larder_key_t keys[RIG_CHAIN];
    larder_match_t match = {.struct_bytes = sizeof(match)},
                   staged = {.struct_bytes = sizeof(staged)};

    if (h->lease != NULL) {
        lease_end(m, h);
    }
    h->space = (uint16_t)draw(m, RIG_SPACES);
    h->first_key = (uint32_t)draw(m, KEYS / RIG_CHAIN) * RIG_CHAIN;
    for (uint32_t i = 0; i < RIG_CHAIN; i++) {
        keys[i] = test_key(h->first_key + i);
    }
    larder_space_t *space = m->rig.spaces[h->space];
    larder_match(space, keys, RIG_CHAIN, 0, &match);
    uint64_t evicted = m->rig.node->store.n.evicted_chunks;
    larder_status_t st =
        larder_stage(space, keys, RIG_CHAIN, 0, 0, &h->lease, &staged);
    require(st == (staged.chunks > 0 ? LARDER_OK : LARDER_MISS), "stage: %s",
            larder_status_text(st));
    require(staged.chunks <= match.chunks, "staged more than matched");
    require(staged.chunks == match.chunks || m->faults ||
                staged.cause == LARDER_CAUSE_FULL ||
                m->rig.node->store.n.evicted_chunks > evicted,
            "matched %u, staged %u: %s", match.chunks, staged.chunks,
            larder_cause_text(staged.cause));
    h->chunks = staged.chunks;
    for (uint32_t c = 0; c < h->chunks; c++) {
        for (uint16_t s = 0; s < rig_shards(h->space); s++) {
            h->version[c][s] = lease_judge(m, h, c, s, 0);
            m->staged++;
        }
    }
}

/* ---- time, disks, restarts ---- */

/* What is on disk when nothing is left to do is there after a restart. */
static void call_reopen(model_t *m)
{
    static bool must[RIG_SPACES][KEYS][SHARDS];
    larder_cause_t cause;

    for (uint32_t i = 0; i < LEASES; i++) {
        lease_end(m, &m->held[i]);
    }
    larder_flush(m->rig.lar, LARDER_TIER_SSD, 0);
    rig_step(&m->rig, 1000);
    for (uint32_t s = 0; s < RIG_SPACES; s++) {
        for (uint32_t k = 0; k < KEYS * rig_shards(s); k++) {
            name_t name = {(uint16_t)s, (uint16_t)(k % rig_shards(s)),
                           k / rig_shards(s)};
            must[s][name.key][name.shard] = rig_loc(&m->rig, name) != 0;
        }
    }
    rig_close(&m->rig);
    /* With a segment that cannot be read its tombstones are gone as well. */
    simdisk_fail_none(m->disk);
    larder_status_t st = rig_open(&m->rig);
    require(st == LARDER_OK, "reopen: %s", larder_last_error());
    for (uint32_t s = 0; s < RIG_SPACES; s++) {
        for (uint32_t k = 0; k < KEYS * rig_shards(s); k++) {
            name_t name = {(uint16_t)s, (uint16_t)(k % rig_shards(s)),
                           k / rig_shards(s)};
            uint32_t version = get_one(m, name, &cause);

            require(version > 0 || m->faults || !must[s][name.key][name.shard],
                    "space %u key %u shard %u: lost by a restart: %s",
                    name.space, name.key, name.shard, larder_cause_text(cause));
        }
    }
    m->reopens++;
}

static void call_fault(model_t *m)
{
    static const simdisk_kind_t kinds[] = {SIMDISK_READ,     SIMDISK_WRITE,
                                           SIMDISK_SYNC,     SIMDISK_OPEN,
                                           SIMDISK_ALLOCATE, SIMDISK_UNLINK};
    simdisk_kind_t kind = kinds[draw(m, 6)];

    if (draw(m, 4) == 0) {
        simdisk_fail_none(m->disk);
        simdisk_set_capacity(m->disk, UINT64_MAX);
    } else if (draw(m, 4) == 0) {
        simdisk_set_capacity(m->disk, simdisk_used(m->disk) + draw(m, 1 << 20));
    } else {
        int error = kind == SIMDISK_ALLOCATE ? -ENOSPC : -EIO;
        simdisk_fail(m->disk, kind, 1 + draw(m, 6), draw(m, 4), error);
    }
}

static void call_time(model_t *m)
{
    rig_sleep(&m->rig, draw(m, m->faults ? 6000 : 2500));
    rig_step(&m->rig, 1000);
}

static void call_flush(model_t *m)
{
    larder_status_t st = larder_flush(m->rig.lar, LARDER_TIER_SSD, 0);

    require(m->faults || st == LARDER_OK || st == LARDER_E_DROPPED ||
                (st == LARDER_E_TIER_OFF && m->rig.options.dir_count == 0),
            "flush: %s", larder_status_text(st));
}

static void call_one(model_t *m)
{
    uint64_t which = draw(m, 100);

    if (which < 34) {
        call_put(m);
    } else if (which < 50) {
        call_get(m);
    } else if (which < 60) {
        call_exists(m);
    } else if (which < 66) {
        call_remove(m);
    } else if (which < 68) {
        call_reset(m);
    } else if (which < 73) {
        call_verify_put(m);
    } else if (which < 82) {
        call_stage(m);
    } else if (which < 87) {
        call_flush(m);
    } else if (which < 92) {
        call_time(m);
    } else if (which < 97) {
        rig_step(&m->rig, 1 + (unsigned)draw(m, 8));
    } else if (which < 99) {
        leases_check(m);
        store_check(&m->rig.node->store);
    } else {
        call_reopen(m);
    }
    if (m->faults && draw(m, 10) == 0) {
        call_fault(m);
    }
}

/* ---- a seed ---- */

static void draw_options(model_t *m)
{
    ldr_options_t *o = &m->rig.options;
    uint64_t kind = draw(m, 8);

    o->dram = (2 + draw(m, 3)) << 20;
    o->verify = draw(m, 2) ? LDR_VERIFY_LOAD : LDR_VERIFY_ENTRY;
    o->pin_max = draw(m, 2) ? 300000 : 0;
    if (draw(m, 3) == 0) {
        m->rig.tenants = true;
        o->dram += 2 << 20;
    }
    if (kind == 0 && !m->faults) {
        o->dir_count = 0;
    } else if (kind == 1) {
        snprintf(o->dirs[1], LDR_PATH_MAX, "/other");
        o->dir_count = 2;
    }
}

/* Faults are over: every disk is back and takes a save. */
static void check_back(model_t *m)
{
    name_t name = {0, 0, KEYS};

    simdisk_fail_none(m->disk);
    simdisk_set_capacity(m->disk, UINT64_MAX);
    for (int i = 0; i < 3; i++) {
        rig_sleep(&m->rig, m->rig.options.retry_ms + 1);
        rig_step(&m->rig, 1000);
        larder_flush(m->rig.lar, LARDER_TIER_SSD, 0);
    }
    for (unsigned i = 0; i < ssds_of(m->rig.node)->count; i++) {
        require(disks_of(m->rig.node)[i].on, "disk %u stays off: %s", i,
                disks_of(m->rig.node)[i].reason);
    }
    require(rig_put(&m->rig, name, 1) == LARDER_OK, "put after the faults");
    larder_status_t st = larder_flush(m->rig.lar, LARDER_TIER_SSD, 0);
    require(st == LARDER_OK, "flush after the faults: %s",
            larder_status_text(st));
    require(m->rig.options.dir_count == 0 || rig_loc(&m->rig, name) != 0,
            "nothing was written");
}

static void run_seed(model_t *m, uint64_t seed, bool faults)
{
    ldr_rand_seed(&m->rand, seed);
    m->faults = faults;
    m->disk = simdisk_create(seed, 0);
    rig_init(&m->rig, m->disk, seed, 5 + (uint32_t)draw(m, 4),
             (96 + draw(m, 64)) * LDR_BLOCK);
    draw_options(m);
    memset(m->cells, 0, sizeof(m->cells));
    require(rig_open(&m->rig) == LARDER_OK, "open: %s", larder_last_error());
    for (uint32_t i = 0; i < CALLS; i++) {
        call_one(m);
    }
    for (uint32_t i = 0; i < LEASES; i++) {
        lease_end(m, &m->held[i]);
    }
    if (m->rig.options.dir_count > 0) {
        check_back(m);
    }
    store_check(&m->rig.node->store);
    require(m->rig.node->store.held_chunks == 0, "something is still held");
    rig_close(&m->rig);
    rig_free(&m->rig);
    simdisk_destroy(m->disk);
}

static void run_seeds(bool faults, uint64_t count)
{
    static model_t m;
    uint64_t first = test_env("LARDER_SEED", 1);

    printf("seed=%llu\n", (unsigned long long)first);
    memset(&m, 0, sizeof(m));
    m.buffers = malloc(BATCH * VALUE_BYTES_MAX);
    for (uint64_t seed = first; seed < first + count; seed++) {
        test_seed(seed);
        run_seed(&m, seed, faults);
    }
    free(m.buffers);
    printf("%llu seeds: %llu hits, %llu misses, %llu presents, %llu "
           "mismatches, %llu staged, %llu reopens\n",
           (unsigned long long)count, (unsigned long long)m.hits,
           (unsigned long long)m.misses, (unsigned long long)m.presents,
           (unsigned long long)m.mismatches, (unsigned long long)m.staged,
           (unsigned long long)m.reopens);
    assert_true(count < 100 || (m.hits > count && m.staged > count &&
                                m.presents > count && m.reopens > count / 4));
}

static void test_promises(void **state)
{
    (void)state;
    run_seeds(false, test_count("LARDER_SEEDS", 2400));
}

static void test_promises_under_faults(void **state)
{
    (void)state;
    run_seeds(true, test_count("LARDER_SEEDS", 2400) / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_promises),
        cmocka_unit_test(test_promises_under_faults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
