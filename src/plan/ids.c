#include "plan/ids.h"

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"
#include "store/index.h"

#define SLOTS_MIN ((uint64_t)1 << 16)

uint64_t ldr_ids_hash(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

/* The slot with this id, or the free one where it would go. */
static uint64_t find(const ldr_ids_t *ids, uint64_t id)
{
    uint64_t mask = ids->slots - 1;
    uint64_t i = ldr_ids_hash(id) & mask;

    while (ids->numbers[i] != 0 && ids->keys[i] != id) {
        i = (i + 1) & mask;
    }
    return i;
}

static void drop_table(ldr_ids_t *ids)
{
    if (ids->keys != NULL) {
        ldr_unreserve(ids->keys, ids->slots * sizeof(*ids->keys));
    }
    if (ids->numbers != NULL) {
        ldr_unreserve(ids->numbers, ids->slots * sizeof(*ids->numbers));
    }
}

static bool grow(ldr_ids_t *ids)
{
    ldr_ids_t more = *ids;

    more.slots = ids->slots == 0 ? SLOTS_MIN : ids->slots * 2;
    more.keys = ldr_reserve(more.slots * sizeof(*more.keys));
    more.numbers = ldr_reserve(more.slots * sizeof(*more.numbers));
    if (more.keys == NULL || more.numbers == NULL) {
        drop_table(&more);
        return false;
    }
    for (uint64_t i = 0; i < ids->slots; i++) {
        if (ids->numbers[i] != 0) {
            uint64_t to = find(&more, ids->keys[i]);

            more.keys[to] = ids->keys[i];
            more.numbers[to] = ids->numbers[i];
        }
    }
    drop_table(ids);
    *ids = more;
    return true;
}

uint32_t ldr_ids_get(ldr_ids_t *ids, uint64_t id)
{
    if (id < ids->plain) {
        return (uint32_t)id;
    }
    if (ids->count >= LDR_NIL - 1) {
        return LDR_NIL;
    }
    if (id == ids->count && ids->plain == ids->count) {
        ids->plain++;
        return ids->count++;
    }
    uint64_t used = ids->count - ids->plain;
    if (used >= ids->slots / 10 * 7 && !grow(ids)) {
        return LDR_NIL;
    }
    uint64_t i = find(ids, id);
    if (ids->numbers[i] == 0) {
        ids->keys[i] = id;
        ids->numbers[i] = ++ids->count;
    }
    return ids->numbers[i] - 1;
}

void ldr_ids_free(ldr_ids_t *ids)
{
    drop_table(ids);
    *ids = (ldr_ids_t){0};
}
