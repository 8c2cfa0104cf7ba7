/*
 * Values to a node and back, for the figures of the DRAM tier and of a daemon:
 * a pool is put, or got, by one or several callers at once, and compared
 * outside the timed part.
 */
#include "bench.h"

bool ldr_moving_create(ldr_moving_t *m, bool get)
{
    uint64_t bytes = ldr_bench_pool_bytes();

    *m = (ldr_moving_t){
        .get = get,
        .bytes = bytes,
        .pool = ldr_pool_create(bytes),
        .other = ldr_pool_create(bytes),
    };
    m->copying = (ldr_copying_t){
        .get = get, .threads = 1, .bytes = bytes, .pool = m->pool};
    if (m->pool == NULL || m->other == NULL ||
        !ldr_copying_create(&m->copying)) {
        return false;
    }
    ldr_pool_random(m->pool, bytes, 1);
    ldr_pool_random(m->other, bytes, 2);
    return true;
}

void ldr_moving_destroy(ldr_moving_t *m)
{
    ldr_pool_destroy(m->pool, m->bytes);
    ldr_pool_destroy(m->other, m->bytes);
    ldr_copying_destroy(&m->copying);
}

/* Carries the operation out for all of `other`, under the keys from first on.
 */
static bool move_other(ldr_moving_t *m, larder_space_t *space, larder_op_t op,
                       uint64_t size, uint64_t first)
{
    ldr_set_t set;

    if (!ldr_set_create(&set, m->other, m->bytes, size)) {
        return false;
    }
    ldr_set_name(&set, first);
    bool ok = ldr_set_run(&set, space, op, 0, set.count);
    ldr_set_destroy(&set);
    return ok;
}

bool ldr_moving_fill(ldr_moving_t *m, larder_space_t *space, ldr_set_t *set)
{
    uint64_t first = m->keys;

    m->keys += set->count;
    ldr_set_name(set, first);
    return !m->get || move_other(m, space, LARDER_OP_PUT, set->size, first);
}

/* A caller's part of a set. */
typedef struct part {
    ldr_set_t *set;
    larder_space_t *space;
    larder_op_t op;
    size_t begin, end, each;
} part_t;

static bool part_run(void *arg)
{
    const part_t *p = arg;

    return ldr_set_run_by(p->set, p->space, p->op, p->begin, p->end, p->each);
}

/* The set once; seconds, or 0. */
static double pass(ldr_moving_t *m, const ldr_callers_t *c, ldr_set_t *set)
{
    part_t parts[LDR_CALLERS_MAX];
    size_t share = set->count / c->count;

    for (unsigned i = 0; i < c->count; i++) {
        parts[i] = (part_t){
            .set = set,
            .space = c->space[i],
            .op = m->get ? LARDER_OP_GET : LARDER_OP_PUT,
            .begin = i * share,
            .end = i + 1 < c->count ? (i + 1) * share : set->count,
            .each = c->each,
        };
    }
    double cpu = ldr_bench_cpu(m->daemon);
    double all = m->all_cpu != NULL ? m->all_cpu(m->all_arg) : 0;
    double seconds = ldr_bench_together(c->count, c->spread, part_run, parts,
                                        sizeof(parts[0]));
    m->cpu = ldr_bench_cpu(m->daemon) - cpu;
    m->all = m->all_cpu != NULL ? m->all_cpu(m->all_arg) - all : 0;
    return seconds;
}

static double round_get(ldr_moving_t *m, const ldr_callers_t *c, ldr_set_t *set)
{
    double seconds = pass(m, c, set);

    m->why = seconds > 0 ? NULL : ldr_set_missed(set);
    if (seconds > 0 &&
        !ldr_pool_verify(m->pool, m->other, set->count * set->size)) {
        m->why = "a get gave wrong bytes";
        seconds = 0;
    }
    return seconds;
}

/* New keys each time: the arena is full, and each save evicts another. */
static double round_put(ldr_moving_t *m, const ldr_callers_t *c, ldr_set_t *set)
{
    uint64_t bytes = set->count * set->size;
    uint64_t first = m->keys;

    m->keys += set->count;
    ldr_set_name(set, first);
    ldr_pool_stamp(m->pool, bytes, first);
    double seconds = pass(m, c, set);

    m->why = "a put was refused";
    if (seconds == 0) {
        return 0;
    }
    m->why = "what was put did not come back";
    return move_other(m, c->space[0], LARDER_OP_GET, set->size, first) &&
                   ldr_pool_verify(m->other, m->pool, bytes)
               ? seconds
               : 0;
}

double ldr_moving_round(ldr_moving_t *m, const ldr_callers_t *c, ldr_set_t *set)
{
    return m->get ? round_get(m, c, set) : round_put(m, c, set);
}
