/*
 * Two tenants that fill the node from several threads while their limits
 * change, so that extents go back and forth, and sessions that map extents all
 * the while. Every byte a tenant ever sees in an extent of its is zero or its
 * own, also in a mapping that it keeps; every get gives what was put.
 *
 * LARDER_SECONDS: how long.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "client/client.h"
#include "support/real.h"
#include "support/storecheck.h"

#define MIB ((uint64_t)1 << 20)
#define BYTES 150000u
#define KEYS 200u
#define EXTENTS 8u
#define WATCHDOG_S 200u

typedef struct tenant {
    struct shared *all;
    uint8_t pattern;
    const char *name;
    uint32_t number;
    larder_space_t *space;
    uint64_t puts, hits, maps;
} tenant_t;

typedef struct shared {
    ldr_node_t *node;
    larder_t *lar;
    tenant_t tenants[2];
    bool stop;
    bool revoked[EXTENTS]; /* since it was last looked at */
    uint64_t revokes;
} shared_t;

static bool stopped(const shared_t *s)
{
    return __atomic_load_n(&s->stop, __ATOMIC_RELAXED);
}

/* Failures in threads cannot use cmocka: they end the program. */
#define check(ok)                                                              \
    do {                                                                       \
        if (!(ok)) {                                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #ok);           \
            abort();                                                           \
        }                                                                      \
    } while (0)

static void on_revoke(void *arg, uint32_t extent, uint32_t generation)
{
    shared_t *s = arg;

    (void)generation;
    check(extent < EXTENTS);
    __atomic_store_n(&s->revoked[extent], true, __ATOMIC_RELAXED);
    __atomic_add_fetch(&s->revokes, 1, __ATOMIC_RELAXED);
}

static bool all_are(const uint8_t *data, size_t bytes, uint8_t value)
{
    return data[0] == value && memcmp(data, data + 1, bytes - 1) == 0;
}

static void *saver(void *arg)
{
    tenant_t *t = arg;
    uint8_t *value = malloc(BYTES);
    ldr_rand_t rand;

    ldr_rand_seed(&rand, t->pattern + (uintptr_t)value);
    while (!stopped(t->all)) {
        uint64_t id = ldr_rand_below(&rand, KEYS);
        larder_item_t item;

        memset(value, t->pattern, BYTES);
        larder_status_t st =
            real_run(t->space, LARDER_OP_PUT, id, value, BYTES, &item);
        check(st == LARDER_OK || st == LARDER_PRESENT || st == LARDER_E_FULL);
        __atomic_add_fetch(&t->puts, st == LARDER_OK, __ATOMIC_RELAXED);
        memset(value, 0, BYTES);
        st = real_run(t->space, LARDER_OP_GET, ldr_rand_below(&rand, KEYS),
                      value, BYTES, &item);
        check(st == LARDER_OK || st == LARDER_MISS);
        if (st == LARDER_OK) {
            check(all_are(value, BYTES, t->pattern));
            __atomic_add_fetch(&t->hits, 1, __ATOMIC_RELAXED);
        }
    }
    free(value);
    return NULL;
}

/* Another process's view of an extent: none of the other tenant's bytes. */
static void look(const tenant_t *t, const uint8_t *base, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += LDR_PAGE / 2) {
        uint8_t byte = __atomic_load_n(base + at, __ATOMIC_RELAXED);

        check(byte == 0 || byte == t->pattern);
    }
}

/* Maps one extent, looks until it is revoked or it has looked enough, and once
 * more after it is unmapped for the node: the memory is still the session's. */
static void map_one(tenant_t *t, uint32_t extent)
{
    shared_t *s = t->all;
    ldr_extent_view_t view;

    ldr_node_lock(s->node);
    uint32_t generation = s->node->store.arena.extents[extent].generation;
    ldr_node_unlock(s->node);
    if (!ldr_node_extent_map(s->node, t->number, extent, generation, &view)) {
        return;
    }
    t->maps++;
    uint8_t *base = mmap(NULL, view.bytes, PROT_READ, MAP_SHARED, view.fd, 0);
    check(base != MAP_FAILED);
    close(view.fd);
    __atomic_store_n(&s->revoked[extent], false, __ATOMIC_RELAXED);
    for (int i = 0; i < 20 && !stopped(s) &&
                    !__atomic_load_n(&s->revoked[extent], __ATOMIC_RELAXED);
         i++) {
        look(t, base, view.ready_bytes);
    }
    ldr_node_extent_unmap(s->node, extent, generation);
    for (int i = 0; i < 3; i++) {
        look(t, base, view.ready_bytes);
    }
    munmap(base, view.bytes);
}

static void *mapper(void *arg)
{
    tenant_t *t = arg;

    for (uint32_t i = 0; !stopped(t->all); i++) {
        map_one(t, i % EXTENTS);
    }
    return NULL;
}

static void set_limits(shared_t *s, uint64_t a, uint64_t b)
{
    uint64_t limits[2] = {a, b};

    for (int i = 0; i < 2; i++) {
        ldr_tenant_params_t p = {.name = s->tenants[i].name,
                                 .dram_max = limits[i]};
        uint32_t number;

        assert_int_equal(ldr_node_tenant(s->node, &p, &number), LARDER_OK);
        assert_int_equal(number, s->tenants[i].number);
    }
}

static uint64_t generations(const shared_t *s)
{
    uint64_t sum = 0;

    ldr_node_lock(s->node);
    for (uint32_t i = 0; i < EXTENTS; i++) {
        sum += s->node->store.arena.extents[i].generation - 1;
    }
    ldr_node_unlock(s->node);
    return sum;
}

static void open_all(shared_t *s)
{
    static const char *const names[] = {"default", "other"};
    ldr_node_env_t env = {
        .log = {real_log_none, NULL}, .revoke = on_revoke, .revoke_arg = s};
    ldr_options_t options;

    ldr_options_default(&options);
    options.dram = 2 * EXTENTS * MIB;
    assert_int_equal(ldr_node_open(&options, &env, &s->node), LARDER_OK);
    assert_int_equal(s->node->store.arena.extent_count, EXTENTS);
    assert_int_equal(ldr_handle_open(s->node, &s->lar), LARDER_OK);
    for (int i = 0; i < 2; i++) {
        larder_space_params_t p = {
            .field_mask = LARDER_SPACE_TENANT,
            .descriptor = "model",
            .descriptor_bytes = 5,
            .tenant = names[i],
        };
        tenant_t *t = &s->tenants[i];

        *t = (tenant_t){
            .all = s, .name = names[i], .pattern = i == 0 ? 0xa5 : 0x5a};
        assert_int_equal(larder_space_open(s->lar, &p, &t->space), LARDER_OK);
        t->number = s->node->store.spaces[t->space->number].tenant;
    }
}

static void test_back_and_forth(void **state)
{
    static const uint64_t limits[][2] = {
        {0, 0}, {4 * MIB, 0}, {0, 4 * MIB}, {6 * MIB, 10 * MIB}};
    static shared_t s;
    pthread_t threads[6];
    uint64_t end = real_now_ms() + 1000 * real_number("LARDER_SECONDS", 4);

    (void)state;
    alarm(WATCHDOG_S);
    open_all(&s);
    set_limits(&s, 0, 0);
    for (int i = 0; i < 6; i++) {
        pthread_create(&threads[i], NULL, i < 4 ? saver : mapper,
                       &s.tenants[i % 2]);
    }
    /* Until everything has happened that shall happen. */
    for (unsigned i = 0; real_now_ms() < end || generations(&s) < 20; i++) {
        set_limits(&s, limits[i / 16 % 4][0], limits[i / 16 % 4][1]);
        real_pause();
    }
    __atomic_store_n(&s.stop, true, __ATOMIC_RELAXED);
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("%llu extents moved, %llu revoked",
           (unsigned long long)generations(&s), (unsigned long long)s.revokes);
    for (int i = 0; i < 2; i++) {
        const tenant_t *t = &s.tenants[i];

        printf("; %llu puts, %llu hits, %llu maps", (unsigned long long)t->puts,
               (unsigned long long)t->hits, (unsigned long long)t->maps);
        assert_true(t->puts > 0 && t->hits > 0 && t->maps > 0);
    }
    printf("\n");
    assert_true(s.revokes > 0);
    ldr_node_lock(s.node);
    store_check(&s.node->store);
    assert_int_equal(s.node->store.held_chunks, 0);
    ldr_node_unlock(s.node);
    for (int i = 0; i < 2; i++) {
        larder_space_close(&s.tenants[i].space);
    }
    assert_int_equal(larder_close(&s.lar, 0), LARDER_OK);
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_back_and_forth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
