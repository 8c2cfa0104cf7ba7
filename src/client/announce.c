/* Telling a node of requests. */
#include "base/bytes.h"
#include "base/grow.h"
#include "client/client.h"

static void request_tell(larder_space_t *space, const ldr_announce_t *a,
                         uint64_t deadline_ns)
{
    space->lar->backend->announce(space, a, deadline_ns);
    ldr_fail_clear(); /* it is no failure of the call's */
}

void ldr_announce(larder_space_t *space, const larder_key_t *keys, size_t count,
                  bool saves, uint32_t hint, uint64_t deadline_ns)
{
    ldr_announce_t a = {.keys = keys,
                        .count = (uint32_t)ldr_min64(count, UINT32_MAX),
                        .chunk_tokens = space->chunk_tokens,
                        .hint = hint & (LARDER_HINT_CLASS | LARDER_HINT_CLOSED |
                                        LARDER_HINT_TEMPLATE),
                        .saves = saves};

    if (!__atomic_load_n(&space->announces, __ATOMIC_RELAXED)) {
        request_tell(space, &a, deadline_ns);
    }
}

larder_status_t larder_announce(larder_space_t *space, const larder_key_t *keys,
                                size_t count,
                                const larder_announce_params_t *params,
                                uint32_t timeout_ms)
{
    larder_status_t st = ldr_space_check(space);
    uint64_t mask = params != NULL ? params->field_mask : 0;
    uint32_t all = LARDER_HINT_CLASS | LARDER_HINT_CLOSED |
                   LARDER_HINT_TEMPLATE | LARDER_HINT_OVER;

    st = st == LARDER_OK ? ldr_mask_check(mask, LARDER_ANNOUNCE_HINT) : st;
    if (st != LARDER_OK) {
        return st;
    }
    if (keys == NULL || count == 0 || count > UINT32_MAX / LARDER_SHARDS_MAX) {
        return ldr_fail(LARDER_E_INVALID, "keys or count");
    }
    ldr_announce_t a = {
        .keys = keys,
        .count = (uint32_t)count,
        .chunk_tokens = space->chunk_tokens,
        .tokens = (mask & LARDER_ANNOUNCE_TOKENS) != 0 ? params->tokens : 0,
        .hint = (mask & LARDER_ANNOUNCE_HINT) != 0 ? params->hint : 0,
        .id = (mask & LARDER_ANNOUNCE_ID) != 0 ? params->id : 0,
    };
    if ((a.hint & ~all) != 0) {
        return ldr_fail(LARDER_E_INVALID, "hint %#x: see LARDER_HINT_*",
                        a.hint);
    }
    __atomic_store_n(&space->announces, true, __ATOMIC_RELAXED);
    request_tell(space, &a, ldr_deadline(space->lar, timeout_ms));
    return LARDER_OK;
}
