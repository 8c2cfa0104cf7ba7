/*
 * The limit of what moves through memory: plain copies of the same pool to or
 * from memory of the arena's kind, by memcpy and by each of Larder's own
 * copies, by one thread or several.
 */
#include <string.h>

#include "base/copy.h"
#include "bench.h"

bool ldr_copying_create(ldr_copying_t *c)
{
    c->anonymous = ldr_pool_create(c->bytes);
    return c->anonymous != NULL && ldr_bench_extent(&c->extent, c->bytes);
}

void ldr_copying_destroy(ldr_copying_t *c)
{
    ldr_pool_destroy(c->anonymous, c->bytes);
    ldr_extent_destroy(&c->extent);
}

/* A thread's part. */
typedef struct part {
    uint8_t *to;
    const uint8_t *from;
    uint64_t bytes, size;
    bool plain; /* memcpy */
} part_t;

static bool part_run(void *arg)
{
    const part_t *p = arg;

    for (uint64_t at = 0; at + p->size <= p->bytes; at += p->size) {
        if (p->plain) {
            memcpy(p->to + at, p->from + at, p->size);
        } else {
            ldr_copy(p->to + at, p->from + at, p->size);
        }
    }
    return true;
}

/* GB/s of one pass. */
static double pass(const ldr_copying_t *c, bool plain, uint8_t *store,
                   uint64_t size)
{
    part_t parts[LDR_TOGETHER_MAX];
    uint64_t each = c->bytes / c->threads / size * size;

    for (unsigned i = 0; i < c->threads; i++) {
        parts[i] = (part_t){.to = (c->get ? c->pool : store) + i * each,
                            .from = (c->get ? store : c->pool) + i * each,
                            .bytes = each,
                            .size = size,
                            .plain = plain};
    }
    double seconds =
        ldr_bench_together(c->threads, true, part_run, parts, sizeof(parts[0]));
    return seconds > 0 ? (double)(each * c->threads) * 1e-9 / seconds : 0;
}

void ldr_copies_round(const ldr_copying_t *c, ldr_copies_t *l, uint64_t size)
{
    l->count = 1;
    while (l->count < LDR_COPIES_MAX &&
           ldr_copy_variant_at(l->count - 1) != NULL) {
        l->count++;
    }
    for (unsigned i = 0; i < l->count; i++) {
        if (i > 0) {
            ldr_copy_select(i - 1);
        }
        ldr_samples_add(&l->memfd[i], pass(c, i == 0, c->extent.base, size));
        ldr_samples_add(&l->anonymous[i], pass(c, i == 0, c->anonymous, size));
    }
    ldr_copy_select(0);
}

double ldr_copies_best(ldr_copies_t *l, bool anonymous, double p,
                       const char **name_p)
{
    double most = 0;

    for (unsigned i = 0; i < l->count; i++) {
        double v =
            ldr_samples_at(anonymous ? &l->anonymous[i] : &l->memfd[i], p);

        if (v > most) {
            most = v;
            *name_p = i == 0 ? "memcpy" : ldr_copy_variant_at(i - 1);
        }
    }
    return most;
}
