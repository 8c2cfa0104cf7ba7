/*
 * What the tier holds, in memory, against a naive model: random objects that
 * share shards, told again and again, dropped, removals, resets. LARDER_SEED
 * repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "tier/shared/map.h"
#include "store/index.h"

enum { SPACES = 3, SHARDS = 2, ROWS_MAX = 12 };
enum { NONE = -1 };

static uint64_t seed;
static ldr_rand_t rnd;

static uint32_t below(uint32_t limit)
{
    return (uint32_t)ldr_rand_below(&rnd, limit);
}

static int setup(void **arg)
{
    (void)arg;
    ldr_rand_seed(&rnd, seed);
    ldr_fault_disarm_all();
    return 0;
}

/* ---- a world of names and objects ---- */

typedef struct thing {
    ldr_object_t object;
    ldr_manifest_row_t rows[ROWS_MAX];
    uint32_t names[ROWS_MAX];
    bool known; /* the model's: it is in the map */
} thing_t;

/* A shard as the model knows it. */
typedef struct fact {
    int thing; /* that holds it, or NONE */
    uint32_t row;
    uint32_t removed_s; /* 0: never */
} fact_t;

typedef struct world {
    uint32_t names, things;
    thing_t *thing;
    fact_t *fact;
    uint32_t epoch[SPACES];
} world_t;

static void space_id(uint32_t space, uint8_t id[LDR_ID_BYTES])
{
    memset(id, 0, LDR_ID_BYTES);
    id[0] = 's';
    id[LDR_ID_BYTES - 1] = (uint8_t)space;
}

static uint32_t space_of(uint32_t name)
{
    return name / SHARDS % SPACES;
}

static ldr_manifest_row_t row_of(uint32_t name)
{
    ldr_manifest_row_t row = {.shard = (uint8_t)(name % SHARDS),
                              .shards = SHARDS,
                              .group = (uint8_t)(name / 7 % 3)};

    ldr_put32(row.key, name / SHARDS / SPACES);
    return row;
}

static void make_thing(thing_t *t, uint32_t names, uint32_t epochs)
{
    uint32_t space = below(SPACES);
    uint32_t at = 0;

    memset(t, 0, sizeof(*t));
    for (unsigned i = 0; i < LDR_ID_BYTES; i++) {
        t->object.id[i] = (uint8_t)ldr_rand_next(&rnd);
    }
    space_id(space, t->object.space_id);
    t->object.epoch = below(epochs);
    t->object.written_s = 100 + 100 * below(3);
    /* A space has so many names at least; no object holds one twice. */
    uint32_t most = names / (SPACES * SHARDS) * SHARDS;
    t->object.rows = below((most < ROWS_MAX ? most : ROWS_MAX) + 1);
    uint32_t name = below(names);
    for (uint32_t i = 0; i < t->object.rows; i++) {
        do {
            name = (name + 1) % names;
        } while (space_of(name) != space);
        t->names[i] = name;
        t->rows[i] = row_of(name);
        t->rows[i].block = (uint16_t)at;
        t->rows[i].blocks = (uint16_t)(2 + below(5));
        at += t->rows[i].blocks;
    }
    t->object.used_blocks = at + 2 + below(3);
}

static void world_make(world_t *w, uint32_t names, uint32_t things,
                       uint32_t epochs)
{
    memset(w, 0, sizeof(*w));
    w->names = names;
    w->things = things;
    w->thing = calloc(things, sizeof(*w->thing));
    w->fact = calloc(names, sizeof(*w->fact));
    assert_true(w->thing != NULL && w->fact != NULL);
    for (uint32_t i = 0; i < names; i++) {
        w->fact[i].thing = NONE;
    }
    for (uint32_t i = 0; i < things; i++) {
        make_thing(&w->thing[i], names, epochs);
    }
}

static void world_free(world_t *w)
{
    free(w->thing);
    free(w->fact);
}

/* ---- the model ---- */

static void model_epoch(world_t *w, uint32_t space, uint32_t epoch)
{
    if (epoch <= w->epoch[space]) {
        return;
    }
    w->epoch[space] = epoch;
    for (uint32_t i = 0; i < w->names; i++) {
        if (space_of(i) == space) {
            w->fact[i].thing = NONE;
        }
    }
}

static void model_add(world_t *w, uint32_t number)
{
    thing_t *t = &w->thing[number];
    uint32_t space = t->object.space_id[LDR_ID_BYTES - 1];

    t->known = true;
    model_epoch(w, space, t->object.epoch);
    for (uint32_t i = 0;
         t->object.epoch == w->epoch[space] && i < t->object.rows; i++) {
        fact_t *f = &w->fact[t->names[i]];

        if (f->removed_s >= t->object.written_s ||
            (f->thing != NONE && memcmp(w->thing[f->thing].object.id,
                                        t->object.id, LDR_ID_BYTES) <= 0)) {
            continue;
        }
        f->thing = (int)number;
        f->row = i;
    }
}

static void model_drop(world_t *w, uint32_t number)
{
    thing_t *t = &w->thing[number];

    t->known = false;
    for (uint32_t i = 0; i < t->object.rows; i++) {
        if (w->fact[t->names[i]].thing == (int)number) {
            w->fact[t->names[i]].thing = NONE;
        }
    }
}

static bool model_remove(world_t *w, uint32_t name, uint32_t when_s)
{
    fact_t *f = &w->fact[name];

    f->removed_s = f->removed_s > when_s ? f->removed_s : when_s;
    if (f->thing == NONE || w->thing[f->thing].object.written_s > when_s) {
        return false;
    }
    f->thing = NONE;
    return true;
}

/* ---- comparing ---- */

static uint32_t space_number(ldr_map_t *map, uint32_t space)
{
    uint8_t id[LDR_ID_BYTES];

    space_id(space, id);
    return ldr_map_space(map, id);
}

static void check_name(const world_t *w, ldr_map_t *map, uint32_t name)
{
    uint32_t space = space_number(map, space_of(name));
    ldr_manifest_row_t row = row_of(name);
    const fact_t *f = &w->fact[name];
    ldr_object_place_t place;

    ldr_map_prefetch(map, space, row.key, row.group, row.shard);
    bool found =
        ldr_map_find(map, space, row.key, row.group, row.shard, &place);
    assert_int_equal(found, f->thing != NONE);
    if (found) {
        const thing_t *t = &w->thing[f->thing];

        assert_memory_equal(place.id, t->object.id, LDR_ID_BYTES);
        assert_int_equal(place.object, ldr_map_object(map, t->object.id));
        assert_int_equal(place.block, t->rows[f->row].block);
        assert_int_equal(place.blocks, t->rows[f->row].blocks);
    }
}

static void check_thing(const world_t *w, ldr_map_t *map, uint32_t number)
{
    const thing_t *t = &w->thing[number];
    uint32_t at = ldr_map_object(map, t->object.id);
    uint32_t dead = t->object.used_blocks;

    assert_int_equal(at != LDR_NIL, t->known);
    if (!t->known) {
        return;
    }
    const ldr_map_object_t *o = ldr_map_at(map, at);
    assert_true(at < ldr_map_top(map));
    assert_non_null(o);
    for (uint32_t i = 0; i < t->object.rows; i++) {
        if (w->fact[t->names[i]].thing == (int)number) {
            dead -= t->rows[i].blocks;
        }
    }
    assert_memory_equal(o->id, t->object.id, LDR_ID_BYTES);
    assert_int_equal(o->dead_blocks, dead);
    assert_int_equal(o->blocks, t->object.used_blocks);
    assert_int_equal(o->epoch, t->object.epoch);
    assert_int_equal(o->written_s, t->object.written_s);
}

static void check_all(const world_t *w, ldr_map_t *map)
{
    ldr_map_stats_t stats;
    uint64_t objects = 0, shards = 0, blocks = 0;

    for (uint32_t i = 0; i < w->names; i++) {
        check_name(w, map, i);
        shards += w->fact[i].thing != NONE;
    }
    for (uint32_t i = 0; i < w->things; i++) {
        check_thing(w, map, i);
        objects += w->thing[i].known;
        blocks += w->thing[i].known ? w->thing[i].object.used_blocks : 0;
    }
    ldr_map_stats(map, &stats);
    assert_int_equal(stats.objects, objects);
    assert_int_equal(stats.shards, shards);
    assert_int_equal(stats.blocks, blocks);
    assert_true(ldr_map_check(map));
}

/* ---- tests ---- */

static void random_step(world_t *w, ldr_map_t *map, uint32_t epochs)
{
    uint32_t which = below(100);
    uint32_t number = below(w->things);
    const thing_t *t = &w->thing[number];

    if (which < 60) {
        assert_true(ldr_map_add(map, &t->object, below(1000), t->rows));
        model_add(w, number);
    } else if (which < 85) {
        if (t->known) {
            ldr_map_drop(map, ldr_map_object(map, t->object.id));
            model_drop(w, number);
        }
    } else if (which < 99) {
        uint32_t name = below(w->names);
        uint32_t space = space_number(map, space_of(name));
        uint32_t when_s = 50 + below(300);
        ldr_manifest_row_t row = row_of(name);

        assert_int_equal(ldr_map_remove(map, space, &row, when_s),
                         model_remove(w, name, when_s));
    } else if (below(20) == 0) {
        uint32_t space = below(SPACES), epoch = below(epochs);

        ldr_map_set_epoch(map, space_number(map, space), epoch);
        model_epoch(w, space, epoch);
        assert_int_equal(ldr_map_epoch(map, space_number(map, space)),
                         w->epoch[space]);
    }
}

static void run(uint32_t names, uint32_t things, uint32_t epochs,
                uint32_t steps, uint32_t check_every)
{
    ldr_map_t *map = ldr_map_create(ldr_rand_next(&rnd));
    world_t w;

    assert_non_null(map);
    world_make(&w, names, things, epochs);
    for (uint32_t i = 1; i <= steps; i++) {
        random_step(&w, map, epochs);
        if (i % check_every == 0) {
            check_all(&w, map);
        }
    }
    check_all(&w, map);
    world_free(&w);
    ldr_map_destroy(map);
}

static void test_model_small(void **arg)
{
    (void)arg;
    for (int i = 0; i < 30; i++) {
        run(6 + below(60), 1 + below(30), 1 + below(4), 400, 1);
    }
}

/* Enough for segments to split and to be joined again. */
static void test_model_large(void **arg)
{
    (void)arg;
    run(40000, 8000, 1, 60000, 20000);
    run(40000, 8000, 2, 40000, 20000);
}

/* Much comes and nearly all of it goes, so that segments are joined while they
 * still hold what was dropped, and numbers are used again soon after. */
static void test_model_waves(void **arg)
{
    enum { THINGS = 9000 };
    ldr_map_t *map = ldr_map_create(5);
    world_t w;

    (void)arg;
    world_make(&w, 60000, THINGS, 1);
    for (int wave = 0; wave < 6; wave++) {
        for (uint32_t i = 0; i < THINGS; i++) {
            const thing_t *t = &w.thing[i];

            if (i % 2 == (uint32_t)wave % 2 || below(40) == 0) {
                assert_true(ldr_map_add(map, &t->object, 0, t->rows));
                model_add(&w, i);
            }
        }
        check_all(&w, map);
        for (uint32_t n = 0; n < 3 * THINGS; n++) {
            uint32_t i = below(THINGS);

            if (w.thing[i].known) {
                ldr_map_drop(map, ldr_map_object(map, w.thing[i].object.id));
                model_drop(&w, i);
            } else if (below(4) == 0) {
                assert_true(
                    ldr_map_add(map, &w.thing[i].object, 0, w.thing[i].rows));
                model_add(&w, i);
            }
        }
        check_all(&w, map);
    }
    world_free(&w);
    ldr_map_destroy(map);
}

/* Two maps that were told the same in different orders find the same. A removal
 * may come between two copies, one written before it and one after: whether the
 * later is still known depends on the order, but never what was removed. */
static void test_orders(void **arg)
{
    enum { TOLD = 300 };

    (void)arg;
    for (int round = 0; round < 40; round++) {
        bool removals = round % 2 != 0;
        uint32_t order[TOLD];
        ldr_map_t *maps[2];
        world_t w;

        world_make(&w, 90, TOLD, 1 + below(3));
        for (uint32_t i = 0; i < TOLD; i++) {
            order[i] = i;
        }
        for (unsigned m = 0; m < 2; m++) {
            maps[m] = ldr_map_create(ldr_rand_next(&rnd));
            assert_non_null(maps[m]);
            for (uint32_t i = 0; i < TOLD; i++) {
                uint32_t k = i + below(TOLD - i), number = order[k];
                thing_t *t = &w.thing[number];

                order[k] = order[i];
                order[i] = number;
                if (removals && number % 9 == 0) {
                    ldr_manifest_row_t row = row_of(number % w.names);
                    uint32_t space =
                        space_number(maps[m], space_of(number % w.names));

                    ldr_map_remove(maps[m], space, &row, 250);
                    w.fact[number % w.names].removed_s = 250;
                } else {
                    assert_true(ldr_map_add(maps[m], &t->object, 0, t->rows));
                }
            }
            assert_true(ldr_map_check(maps[m]));
        }
        for (uint32_t i = 0; i < w.names; i++) {
            ldr_manifest_row_t row = row_of(i);
            ldr_object_place_t place[2];
            bool found[2];

            for (unsigned m = 0; m < 2; m++) {
                found[m] =
                    ldr_map_find(maps[m], space_number(maps[m], space_of(i)),
                                 row.key, row.group, row.shard, &place[m]);
                assert_true(
                    !found[m] ||
                    w.fact[i].removed_s <
                        ldr_map_at(maps[m], place[m].object)->written_s);
            }
            if (w.fact[i].removed_s != 0) {
                continue;
            }
            assert_int_equal(found[0], found[1]);
            if (found[0]) {
                assert_memory_equal(place[0].id, place[1].id, LDR_ID_BYTES);
            }
        }
        ldr_map_destroy(maps[0]);
        ldr_map_destroy(maps[1]);
        world_free(&w);
    }
}

static void make_rows(thing_t *t) /* two at least */
{
    do {
        make_thing(t, 30, 1);
    } while (t->object.rows < 2);
    t->object.written_s = 5000;
}

static bool is_found(const ldr_map_t *map, uint32_t space,
                     const ldr_manifest_row_t *row)
{
    ldr_object_place_t place;
    return ldr_map_find(map, space, row->key, row->group, row->shard, &place);
}

#define REMOVED_S(row)                                                         \
    ldr_map_removed_s(map, space, (row)->key, (row)->group, (row)->shard)

/* Both sides of a removal see to it that they are on theirs. */
static void test_times(void **arg)
{
    ldr_map_t *map = ldr_map_create(1);
    thing_t t;
    ldr_object_place_t place;

    (void)arg;
    make_rows(&t);
    assert_true(ldr_map_add(map, &t.object, 0, t.rows));
    uint32_t space = ldr_map_space_find(map, t.object.space_id);
    assert_int_equal(ldr_map_write_s(map, space, 1000), 1000);
    uint32_t when_s = ldr_map_remove_s(map, space, 1000);
    assert_int_equal(when_s, 5000);
    assert_int_equal(ldr_map_remove_s(map, space, 6000), 6000);
    assert_true(ldr_map_remove(map, space, &t.rows[0], when_s));
    assert_false(ldr_map_remove(map, space, &t.rows[0], when_s));
    assert_true(ldr_map_add(map, &t.object, 0, t.rows)); /* told again */
    assert_false(is_found(map, space, &t.rows[0]));
    t.object.id[0] ^= 1;
    t.object.written_s = ldr_map_write_s(map, space, 1000);
    assert_int_equal(t.object.written_s, 5001);
    assert_true(ldr_map_add(map, &t.object, 0, t.rows));
    assert_true(ldr_map_find(map, space, t.rows[0].key, t.rows[0].group,
                             t.rows[0].shard, &place));
    assert_memory_equal(place.id, t.object.id, LDR_ID_BYTES);
    ldr_map_destroy(map);
}

/* A removal is of the writes that are under way too: they are known to the map
 * from when they ask for their time on, not only once they are added. */
static void test_removes_what_is_being_written(void **arg)
{
    ldr_map_t *map = ldr_map_create(9);
    thing_t t;
    ldr_manifest_row_t other = {.shards = 1};

    (void)arg;
    make_rows(&t);
    uint32_t space = ldr_map_space(map, t.object.space_id);
    memset(other.key, 0x5a, sizeof(other.key));
    ldr_map_remove(map, space, &other, ldr_map_remove_s(map, space, 1000));
    t.object.written_s = ldr_map_write_s(map, space, 1000);
    assert_int_equal(t.object.written_s, 1001);
    /* Within the same second, before the write has ended. */
    ldr_map_remove(map, space, &t.rows[0], ldr_map_remove_s(map, space, 1000));
    assert_true(ldr_map_add(map, &t.object, 0, t.rows));
    assert_false(is_found(map, space, &t.rows[0]));
    ldr_map_destroy(map);
}

static void forget(ldr_map_t *map, uint32_t before_s)
{
    for (unsigned pieces = 0; ldr_map_forget(map, before_s); pieces++) {
        assert_true(pieces < 100000);
    }
}

/* What was removed is forgotten when it can be of nothing any more, and not
 * before: whoever tells of the object again does not bring it back. */
static void test_forgets(void **arg)
{
    ldr_map_t *map = ldr_map_create(4);
    ldr_map_stats_t full, after;
    ldr_manifest_row_t row = {.shards = 1};
    thing_t t;

    (void)arg;
    make_rows(&t);
    assert_true(ldr_map_add(map, &t.object, 0, t.rows));
    uint32_t space = ldr_map_space_find(map, t.object.space_id);
    for (uint32_t i = 0; i < 50000; i++) { /* of others, which are no more */
        ldr_put32(row.key, i);
        ldr_map_remove(map, space, &row, 4000 + i % 900);
    }
    assert_true(ldr_map_remove(map, space, &t.rows[0], 5500));
    ldr_map_stats(map, &full);
    forget(map, 4900);
    ldr_map_stats(map, &after);
    assert_true(after.bytes < full.bytes / 2);
    assert_int_equal(REMOVED_S(&row), 0);
    /* The object has the record: nothing since it was written is forgotten. */
    forget(map, 9000);
    assert_true(ldr_map_add(map, &t.object, 0, t.rows));
    assert_false(is_found(map, space, &t.rows[0]));
    assert_true(is_found(map, space, &t.rows[1]));
    ldr_map_drop(map, ldr_map_object(map, t.object.id));
    forget(map, 5500);
    assert_int_equal(REMOVED_S(&t.rows[0]), 5500);
    forget(map, 5501);
    assert_int_equal(REMOVED_S(&t.rows[0]), 0);
    ldr_map_destroy(map);
}

/* Old news counts, whatever was forgotten before. */
static void test_old_news(void **arg)
{
    ldr_map_t *map = ldr_map_create(4);
    thing_t t, other;

    (void)arg;
    make_rows(&t);
    assert_true(ldr_map_add(map, &t.object, 0, t.rows));
    uint32_t space = ldr_map_space_find(map, t.object.space_id);
    forget(map, 9000);
    assert_true(ldr_map_remove(map, space, &t.rows[0], 5000));
    for (unsigned i = 0; i < 8; i++) { /* the table is swept meanwhile */
        make_thing(&other, 1000000, 1);
        ldr_map_add(map, &other.object, 0, other.rows);
        ldr_map_drop(map, ldr_map_object(map, other.object.id));
    }
    assert_true(ldr_map_add(map, &t.object, 0, t.rows));
    assert_false(is_found(map, space, &t.rows[0]));
    ldr_map_destroy(map);
}

/* Memory is given back when much was dropped, numbers are used again. */
static void test_shrinks(void **arg)
{
    ldr_map_t *map = ldr_map_create(2);
    ldr_map_stats_t empty, full, after;
    thing_t t;

    (void)arg;
    ldr_map_stats(map, &empty);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 20000; i++) {
            make_thing(&t, 1000000, 1);
            assert_true(ldr_map_add(map, &t.object, 0, t.rows));
        }
        ldr_map_stats(map, &full);
        assert_true(full.shards > 90000);
        for (uint32_t i = 0; i < ldr_map_top(map); i++) {
            ldr_map_drop(map, i);
        }
        ldr_map_stats(map, &after);
        assert_int_equal(after.objects + after.shards + after.blocks, 0);
        assert_true(ldr_map_check(map));
    }
    assert_true(ldr_map_top(map) < 40000); /* of 60,000 objects */
    assert_true(after.bytes < full.bytes * 3 / 4);
    ldr_map_destroy(map);
}

/* 16 bytes in a table between 7/16 and 7/8 full, and the objects. */
static void test_memory(void **arg)
{
    ldr_map_t *map = ldr_map_create(3);
    ldr_map_stats_t s;
    thing_t t;

    (void)arg;
    do {
        make_thing(&t, 100, 1);
    } while (t.object.rows != ROWS_MAX);
    for (uint32_t i = 1; i <= 30000; i++) {
        ldr_put32(t.object.id, i);
        for (uint32_t k = 0; k < ROWS_MAX; k++) {
            ldr_put32(t.rows[k].key, i);
            t.rows[k].shard = (uint8_t)k;
        }
        assert_true(ldr_map_add(map, &t.object, 0, t.rows));
        if (i % 3000 == 0) {
            ldr_map_stats(map, &s);
            assert_int_equal(s.shards, (uint64_t)i * ROWS_MAX);
            uint64_t cells = s.shards + s.objects;
            assert_true(s.bytes <
                        250000 + cells * 16 * 40 / 16 + s.objects * 80);
        }
    }
    ldr_map_destroy(map);
}

/* Each allocation fails in turn: what is there is right, and the same calls
 * made again do the rest. */
static void test_no_memory(void **arg)
{
    world_t w;
    uint64_t nth = 1;
    bool fired = true;

    (void)arg;
    world_make(&w, 24000, 3000, 2);
    for (; fired; nth += 1 + nth / 8) {
        ldr_fault_arm(LDR_FAULT_alloc, nth, 1);
        ldr_map_t *map = ldr_map_create(4);
        for (uint32_t i = 0; map != NULL && i < w.things; i++) {
            ldr_object_t *o = &w.thing[i].object;

            if (!ldr_map_add(map, o, 0, w.thing[i].rows)) {
                assert_true(ldr_map_check(map));
                assert_true(ldr_map_add(map, o, 0, w.thing[i].rows));
            }
        }
        fired = ldr_fault_fired(LDR_FAULT_alloc) > 0;
        ldr_fault_disarm_all();
        if (map != NULL) {
            memset(w.epoch, 0, sizeof(w.epoch));
            for (uint32_t i = 0; i < w.names; i++) {
                w.fact[i].thing = NONE;
            }
            for (uint32_t i = 0; i < w.things; i++) {
                model_add(&w, i);
            }
            check_all(&w, map);
        }
        ldr_map_destroy(map);
    }
    assert_true(nth > 12);
    world_free(&w);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_model_small, setup),
        cmocka_unit_test_setup(test_model_large, setup),
        cmocka_unit_test_setup(test_model_waves, setup),
        cmocka_unit_test_setup(test_orders, setup),
        cmocka_unit_test_setup(test_times, setup),
        cmocka_unit_test_setup(test_removes_what_is_being_written, setup),
        cmocka_unit_test_setup(test_forgets, setup),
        cmocka_unit_test_setup(test_old_news, setup),
        cmocka_unit_test_setup(test_shrinks, setup),
        cmocka_unit_test_setup(test_memory, setup),
        cmocka_unit_test_setup(test_no_memory, setup),
    };
    const char *text = getenv("LARDER_SEED");

    seed = text != NULL ? strtoull(text, NULL, 0) : 20260810;
    print_message("seed: LARDER_SEED=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
