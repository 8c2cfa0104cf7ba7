/*
 * Everything at once: threads that put, get, match, stage, remove, reset,
 * flush, look at figures, open and close spaces, submit and cancel tickets, on
 * a node whose DRAM evicts and whose disks reclaim all the time; then a close
 * with tickets and leases outstanding. To be run under the thread sanitizer.
 *
 * What is checked: bytes belong to their key, to a generation no older than
 * the last reset that had returned, and a key that only one thread touches is
 * gone once that thread removed it.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/transport.h"
#include "support/real.h"

#define BYTES_MIN 20000u
#define BYTES_MAX 200000u
#define WATCHDOG_S (REAL_SANITIZED ? 600u : 120u)

enum { KEYS = 150, SPACES = 2, CHAIN = 8, BATCH = 4, SLOTS = 24, PUTTERS = 2 };
enum { OWN_KEYS = 100000 }; /* keys from here on belong to one thread */

/* What the threads of one round share. */
typedef struct round {
    larder_t *lar;
    larder_space_t *space[SPACES]; /* the first is reset again and again */
    uint64_t seed, ops;
    uint64_t generation; /* of the next reset, or the one under way */
    uint64_t floor;      /* nothing older is left */
    uint64_t inflight[PUTTERS + 1]; /* generation that a put under way has */
    uint64_t hits, misses, resets, canceled;
    const char *failed; /* the first thing that went wrong */
    int failed_line;
    larder_ticket_t tickets[SLOTS]; /* for the one who cancels */
    uint64_t running; /* until all changes are made the others go on */
} round_t;

typedef struct actor {
    round_t *r;
    unsigned number;
    ldr_rand_t rand;
    uint8_t *value; /* BATCH * BYTES_MAX */
    pthread_t thread;
} actor_t;

/* cmocka cannot fail from another thread: the first failure is noted. */
#define expect(r, condition)                                                   \
    do {                                                                       \
        if (!(condition)) {                                                    \
            note(r, #condition, __LINE__);                                     \
        }                                                                      \
    } while (0)

static void note(round_t *r, const char *what, int line)
{
    const char *none = NULL;

    if (__atomic_compare_exchange_n(&r->failed, &none, what, false,
                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        __atomic_store_n(&r->failed_line, line, __ATOMIC_SEQ_CST);
    }
}

static uint64_t load(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

static void store(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}

static void add(uint64_t *at)
{
    __atomic_add_fetch(at, 1, __ATOMIC_RELAXED);
}

static uint64_t below(actor_t *a, uint64_t bound)
{
    return ldr_rand_below(&a->rand, bound);
}

static size_t bytes_of(uint64_t id)
{
    return real_bytes(id, BYTES_MIN, BYTES_MAX);
}

/* ---- generations ---- */

/* The generation that a put will carry, announced before the put begins: one
 * that overlaps a reset may be stored after it with the generation before. */
static uint64_t announce(round_t *r, unsigned who)
{
    uint64_t generation;

    do {
        generation = load(&r->generation);
        store(&r->inflight[who], generation);
    } while (load(&r->generation) != generation);
    return generation;
}

static void reset(round_t *r)
{
    uint64_t next = load(&r->generation) + 1;

    store(&r->generation, next);
    /* Who puts an older one now may come after the reset; others cannot. */
    uint64_t floor = next;
    for (unsigned i = 0; i <= PUTTERS; i++) {
        uint64_t other = load(&r->inflight[i]);
        floor = other < floor ? other : floor;
    }
    larder_status_t st = larder_space_reset(r->space[0], 0);
    expect(r, st == LARDER_OK);
    store(&r->floor, floor);
    add(&r->resets);
}

static void check_value(round_t *r, const void *value, size_t bytes,
                        uint64_t id, unsigned space, uint64_t floor)
{
    uint64_t generation = 0;

    expect(r, bytes == bytes_of(id));
    expect(r, real_check(value, bytes, id, &generation));
    expect(r, space != 0 || generation >= floor);
    add(&r->hits);
}

/* ---- what threads do ---- */

static void put_some(actor_t *a, unsigned who)
{
    round_t *r = a->r;
    unsigned space = (unsigned)below(a, SPACES);
    larder_item_t items[BATCH];
    larder_key_t keys[BATCH], parents[BATCH];
    struct iovec iov[BATCH][2];
    uint64_t first = below(a, KEYS);
    uint64_t generation = announce(r, who);

    for (unsigned i = 0; i < BATCH; i++) {
        uint64_t id = (first + i) % KEYS;
        uint8_t *value = a->value + (size_t)i * BYTES_MAX;

        keys[i] = real_key(id);
        parents[i] = real_key((id + KEYS - 1) % KEYS);
        real_fill(value, bytes_of(id), id, generation);
        iov[i][0] = (struct iovec){value, 1000};
        iov[i][1] = (struct iovec){value + 1000, bytes_of(id) - 1000};
        items[i] = (larder_item_t){
            .key = &keys[i],
            .parent = id > 0 ? &parents[i] : NULL,
            .depth = (uint32_t)id,
            .iov = iov[i],
            .iov_count = 2,
            .flags = below(a, 20) == 0 ? LARDER_PUT_PIN : 0,
        };
    }
    expect(r, larder_run(r->space[space], LARDER_OP_PUT, items, BATCH, NULL) ==
                  LARDER_OK);
    store(&r->inflight[who], UINT64_MAX);
    for (unsigned i = 0; i < BATCH; i++) {
        larder_status_t st = items[i].status;
        /* Declined: the disk is behind with what the policy refuses. */
        expect(r, st == LARDER_OK || st == LARDER_PRESENT ||
                      st == LARDER_DECLINED || st == LARDER_E_STALE ||
                      st == LARDER_E_FULL);
    }
}

static void get_some(actor_t *a)
{
    round_t *r = a->r;
    unsigned space = (unsigned)below(a, SPACES);
    larder_item_t items[BATCH];
    larder_key_t keys[BATCH];
    struct iovec iov[BATCH];
    uint64_t first = below(a, KEYS);
    uint64_t floor = load(&r->floor);

    for (unsigned i = 0; i < BATCH; i++) {
        keys[i] = real_key((first + i) % KEYS);
        iov[i] = (struct iovec){a->value + (size_t)i * BYTES_MAX, BYTES_MAX};
        items[i] =
            (larder_item_t){.key = &keys[i], .iov = &iov[i], .iov_count = 1};
    }
    expect(r, larder_run(r->space[space], LARDER_OP_GET, items, BATCH, NULL) ==
                  LARDER_OK);
    for (unsigned i = 0; i < BATCH; i++) {
        if (items[i].status == LARDER_OK) {
            check_value(r, iov[i].iov_base, items[i].length, (first + i) % KEYS,
                        space, floor);
        } else {
            expect(r, items[i].status == LARDER_MISS &&
                          items[i].cause != LARDER_CAUSE_NONE &&
                          items[i].cause != LARDER_CAUSE_CORRUPT);
            add(&r->misses);
        }
    }
}

/* Copies a leased shard out, piece by piece. */
static size_t gather(const larder_lease_t *lease, uint32_t chunk, uint8_t *to)
{
    struct iovec seg[8];
    uint32_t count = 0;
    size_t bytes = 0;

    if (larder_lease_segments(lease, chunk, 0, seg, 8, &count) != LARDER_OK) {
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        memcpy(to + bytes, seg[i].iov_base, seg[i].iov_len);
        bytes += seg[i].iov_len;
    }
    return bytes;
}

static void stage_some(actor_t *a, larder_lease_t **keep)
{
    round_t *r = a->r;
    unsigned space = (unsigned)below(a, SPACES);
    uint64_t first = below(a, KEYS - CHAIN);
    uint64_t floor = load(&r->floor);
    larder_key_t keys[CHAIN];
    larder_match_t match = {.struct_bytes = sizeof(match)};
    bool by_name = transport_is("tcp") || transport_is("tls");

    for (unsigned i = 0; i < CHAIN; i++) {
        keys[i] = real_key(first + i);
    }
    expect(r,
           larder_match(r->space[space], keys, CHAIN, 0, &match) == LARDER_OK);
    expect(r, match.chunks <= CHAIN);
    larder_release(keep); /* held from one time to the next */
    larder_status_t st =
        larder_stage(r->space[space], keys, CHAIN, 0, 0, keep, &match);
    if (st != LARDER_OK) {
        expect(r, st == LARDER_MISS);
        return;
    }
    for (uint32_t i = 0; i < match.chunks; i++) {
        size_t bytes = gather(*keep, i, a->value);
        if (bytes == 0 && by_name) {
            continue; /* removed before it was fetched */
        }
        check_value(r, a->value, bytes, first + i, space, floor);
    }
}

/* A key of this thread alone. */
static void own_key(actor_t *a, uint64_t id)
{
    round_t *r = a->r;
    larder_space_t *space = r->space[1];
    larder_item_t item;
    uint64_t generation;
    larder_status_t st = real_put(space, id, 5, a->value, bytes_of(id));

    expect(r, st == LARDER_OK || st == LARDER_DECLINED || st == LARDER_E_FULL);
    st = real_run(space, LARDER_OP_GET, id, a->value, BYTES_MAX, &item);
    expect(r, st == LARDER_MISS ||
                  (st == LARDER_OK && item.length == bytes_of(id) &&
                   real_check(a->value, item.length, id, &generation)));
    st = real_run(space, LARDER_OP_REMOVE, id, NULL, 0, &item);
    expect(r, st == LARDER_OK || st == LARDER_MISS);
    st = real_run(space, LARDER_OP_EXISTS, id, NULL, 0, &item);
    expect(r, st == LARDER_MISS);
    st = real_run(space, LARDER_OP_GET, id, a->value, BYTES_MAX, &item);
    expect(r, st == LARDER_MISS);
}

/* Removes what others put. */
static void remove_some(actor_t *a)
{
    larder_item_t item;
    larder_status_t st =
        real_run(a->r->space[below(a, SPACES)], LARDER_OP_REMOVE,
                 below(a, KEYS), NULL, 0, &item);

    expect(a->r, st == LARDER_OK || st == LARDER_MISS);
}

static void look(actor_t *a)
{
    round_t *r = a->r;
    larder_stats_t stats;
    size_t length = 0;

    expect(r, transport_stats(r->lar, &stats) == LARDER_OK);
    expect(r, stats.dram_used_bytes <= stats.dram_bytes);
    expect(r, stats.disks == 2 && stats.disk[0].on && stats.disk[1].on);
    expect(r, stats.disk[0].bytes_used <= stats.disk[0].bytes_max);
    expect(r, larder_metrics(r->lar, (char *)a->value, BYTES_MAX, &length) ==
                  LARDER_OK);
    expect(r, length > 0 && length < BYTES_MAX);
}

static void open_space(actor_t *a)
{
    round_t *r = a->r;
    larder_space_t *space = NULL;
    uint64_t id = OWN_KEYS + 1000000u * (a->number + 1u);
    larder_item_t item;
    char name[32];

    snprintf(name, sizeof(name), "space %u", (unsigned)below(a, 50));
    expect(r, real_space(r->lar, name, &space) == LARDER_OK);
    if (space != NULL) {
        real_put(space, id, 1, a->value, BYTES_MIN);
        real_run(space, LARDER_OP_GET, id, a->value, BYTES_MAX, &item);
        if (below(a, 4) == 0) {
            expect(r, larder_space_reset(space, 0) == LARDER_OK);
        }
        larder_space_close(&space);
    }
}

/* ---- tickets ---- */

typedef struct slot {
    larder_item_t item;
    larder_key_t key;
    struct iovec iov;
    uint64_t id, floor;
    unsigned space, number;
    larder_op_t op;
    bool busy;
} slot_t;

static void submit(actor_t *a, slot_t *slot, uint8_t *value)
{
    round_t *r = a->r;
    uint64_t generation = announce(r, PUTTERS);
    larder_op_params_t params = {
        .field_mask = LARDER_OP_USER | LARDER_OP_TIMEOUT,
        .user = slot,
        .timeout_ms = below(a, 8) == 0 ? 1 : LARDER_FOREVER,
    };
    larder_ticket_t ticket = 0;

    slot->op = (larder_op_t)below(a, LARDER_OP_COUNT);
    slot->id = below(a, KEYS);
    /* A put that is only queued could come after any number of resets. */
    slot->space = slot->op == LARDER_OP_PUT ? 1 : (unsigned)below(a, SPACES);
    slot->floor = load(&r->floor);
    slot->key = real_key(slot->id);
    slot->iov = (struct iovec){value, BYTES_MAX};
    if (slot->op == LARDER_OP_PUT) {
        slot->iov.iov_len = bytes_of(slot->id);
        real_fill(value, slot->iov.iov_len, slot->id, generation);
    }
    store(&r->inflight[PUTTERS], UINT64_MAX);
    slot->item =
        (larder_item_t){.key = &slot->key, .iov = &slot->iov, .iov_count = 1};
    larder_status_t st = larder_submit(r->space[slot->space], slot->op,
                                       &slot->item, 1, &params, &ticket);
    expect(r, st == LARDER_OK || st == LARDER_E_BUSY);
    slot->busy = st == LARDER_OK;
    store(&r->tickets[slot->number], ticket);
}

static void complete(round_t *r, slot_t *slot)
{
    larder_status_t st = slot->item.status;

    expect(r, slot->busy);
    slot->busy = false;
    if (slot->op == LARDER_OP_GET && st == LARDER_OK) {
        check_value(r, slot->iov.iov_base, slot->item.length, slot->id,
                    slot->space, slot->floor);
        /* From here on the buffer is ours: nobody may write to it. */
        memset(slot->iov.iov_base, 0x5a, 64);
    } else {
        expect(r, st != LARDER_PENDING);
        expect(r, st >= 0 || st == LARDER_E_CANCELED ||
                      st == LARDER_E_DEADLINE || st == LARDER_E_STALE ||
                      st == LARDER_E_FULL);
        if (st == LARDER_E_CANCELED) {
            add(&r->canceled);
        }
    }
}

static bool submit_all(actor_t *a, slot_t *slots, uint8_t *values)
{
    bool any = false;

    for (unsigned i = 0; i < SLOTS; i++) {
        uint8_t *value = values + (size_t)i * BYTES_MAX;

        if (!slots[i].busy) {
            slots[i].number = i;
            submit(a, &slots[i], value);
            any |= slots[i].busy;
        }
    }
    return any;
}

/* Ends with tickets in flight: their memory is freed after the close. */
static slot_t *ticket_slots;
static uint8_t *ticket_values;

static void *tickets_main(void *arg)
{
    actor_t *a = arg;
    round_t *r = a->r;
    larder_completion_t done[8];
    size_t count;

    while (load(&r->running) > 0) {
        submit_all(a, ticket_slots, ticket_values);
        count = 0;
        expect(r, larder_drain(r->lar, done, 8, 100, &count) == LARDER_OK);
        for (size_t k = 0; k < count; k++) {
            expect(r, done[k].status == LARDER_OK);
            complete(r, done[k].user);
        }
    }
    submit_all(a, ticket_slots, ticket_values);
    return NULL;
}

/* ---- threads ---- */

static void *put_main(void *arg)
{
    actor_t *a = arg;

    while (load(&a->r->running) > 0) {
        put_some(a, a->number);
    }
    return NULL;
}

static void *get_main(void *arg)
{
    actor_t *a = arg;

    while (load(&a->r->running) > 0) {
        get_some(a);
    }
    return NULL;
}

static void *stage_main(void *arg)
{
    actor_t *a = arg;
    larder_lease_t *lease = NULL;

    while (load(&a->r->running) > 0) {
        stage_some(a, &lease);
    }
    larder_release(&lease);
    return NULL;
}

static void *change_main(void *arg)
{
    actor_t *a = arg;

    round_t *r = a->r;

    for (uint64_t i = 0; i < r->ops; i++) {
        switch (i % 8) {
        case 1:
            reset(r);
            break;
        case 3: {
            larder_status_t st =
                larder_flush(r->lar, LARDER_TIER_SSD, LARDER_FOREVER);
            expect(r, st == LARDER_OK || st == LARDER_E_DROPPED);
            break;
        }
        case 4:
        case 5:
            remove_some(a);
            break;
        default:
            own_key(a, OWN_KEYS + below(a, 20));
        }
    }
    store(&r->running, 0);
    return NULL;
}

static void *look_main(void *arg)
{
    actor_t *a = arg;
    round_t *r = a->r;

    for (uint64_t i = 0; load(&r->running) > 0; i++) {
        look(a);
        larder_status_t st =
            larder_cancel(r->lar, load(&r->tickets[below(a, SLOTS)]));
        expect(r, st == LARDER_OK || st == LARDER_MISS);
        if (i % 8 == 0) {
            open_space(a);
        }
    }
    return NULL;
}

static void run_threads(round_t *r)
{
    static void *(*const mains[])(void *) = {
        put_main,     put_main,    get_main,  stage_main,
        tickets_main, change_main, look_main, get_main};
    enum { ACTORS = sizeof(mains) / sizeof(mains[0]) };
    actor_t actors[ACTORS];

    for (unsigned i = 0; i < ACTORS; i++) {
        actors[i] = (actor_t){.r = r, .number = i};
        ldr_rand_seed(&actors[i].rand, r->seed * 100 + i);
        actors[i].value = malloc((size_t)BATCH * BYTES_MAX);
        assert_non_null(actors[i].value);
        assert_int_equal(
            pthread_create(&actors[i].thread, NULL, mains[i], &actors[i]), 0);
    }
    for (unsigned i = 0; i < ACTORS; i++) {
        pthread_join(actors[i].thread, NULL);
        free(actors[i].value);
    }
}

/* ---- rounds ---- */

static larder_lease_t *some_lease(round_t *r)
{
    larder_lease_t *lease = NULL;
    larder_match_t match = {.struct_bytes = sizeof(match)};

    for (uint64_t id = 0; id < KEYS && lease == NULL; id++) {
        larder_key_t key = real_key(id);
        larder_stage(r->space[1], &key, 1, 0, 0, &lease, &match);
    }
    return lease;
}

static void run_round(const char *options, uint64_t seed, uint64_t ops)
{
    char dirs[2][256], url[1024];
    round_t r = {.seed = seed, .ops = ops, .generation = 1, .running = 1};
    larder_stats_t stats;

    memset(r.inflight, 0xff, sizeof(r.inflight));
    ticket_slots = calloc(SLOTS, sizeof(*ticket_slots));
    ticket_values = malloc((size_t)SLOTS * BYTES_MAX);
    assert_true(ticket_slots != NULL && ticket_values != NULL);
    for (int i = 0; i < 2; i++) {
        assert_true(real_dir_make(dirs[i], sizeof(dirs[i]), "threads"));
    }
    snprintf(url, sizeof(url), "embed:%s,%s?%s", dirs[0], dirs[1], options);
    larder_open_params_t params = {.field_mask = LARDER_OPEN_LOG,
                                   .log = real_log_none};
    assert_int_equal(transport_open(url, &params, &r.lar), LARDER_OK);
    assert_int_equal(real_space(r.lar, "first", &r.space[0]), LARDER_OK);
    assert_int_equal(real_space(r.lar, "second", &r.space[1]), LARDER_OK);

    run_threads(&r);
    larder_lease_t *lease = some_lease(&r);
    assert_int_equal(transport_stats(r.lar, &stats), LARDER_OK);
    larder_status_t st = transport_close(&r.lar, 0);
    if (r.failed != NULL) {
        fail_msg("line %d: %s", r.failed_line, r.failed);
    }
    assert_true(st == LARDER_OK || st == LARDER_E_DEADLINE);
    assert_int_equal(real_put(r.space[0], 1, 1, ticket_values, 64),
                     LARDER_E_CLOSED);
    larder_release(&lease);
    larder_space_close(&r.space[0]);
    larder_space_close(&r.space[1]);
    free(ticket_slots);
    free(ticket_values);
    printf("%llu hits (%llu from ssd), %llu misses, %llu resets, %llu "
           "evicted, %llu canceled, %llu MiB written\n",
           (unsigned long long)r.hits, (unsigned long long)stats.loads_ssd,
           (unsigned long long)r.misses, (unsigned long long)r.resets,
           (unsigned long long)stats.evicted_chunks,
           (unsigned long long)r.canceled,
           (unsigned long long)(stats.disk[0].written_bytes +
                                stats.disk[1].written_bytes) >>
               20);
    /* The round is about these: without them it showed nothing. */
    assert_true(r.hits > 0 && r.resets > 0 && stats.evicted_chunks > 0);
    assert_true(stats.loads_ssd > 0 && stats.resets > 0 && stats.removes > 0);
    for (int i = 0; i < 2; i++) {
        real_dir_remove(dirs[i]);
    }
}

static void run_rounds(const char *options)
{
    uint64_t rounds = real_number("LARDER_ROUNDS", 1);
    uint64_t ops = real_number("LARDER_OPS", 80);
    uint64_t seed = real_seed();

    alarm(WATCHDOG_S);
    for (uint64_t i = 0; i < rounds; i++) {
        run_round(options, seed + i, ops);
    }
    alarm(0);
}

static void test_plain(void **state)
{
    (void)state;
    run_rounds("dram=16M&ssd=32M&segment=2M&io=plain&io_threads=3&sync_ms=20&"
               "workers=2&tickets=16");
}

static void test_auto(void **state)
{
    (void)state;
    run_rounds("dram=8M&ssd=48M&io=auto&io_depth=2&sync_ms=5&verify=entry");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_auto),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
