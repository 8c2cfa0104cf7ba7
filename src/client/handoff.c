/* Hand-offs between engines: see larder.h and docs/guide/handoff.md. */
#include <string.h>

#include "base/hash.h"
#include "client/prefix.h"
#include "node/promise.h"

static larder_status_t check_token(const larder_token_t *token)
{
    static const larder_token_t none;

    return token != NULL && memcmp(token, &none, sizeof(none)) != 0
               ? LARDER_OK
               : ldr_fail(LARDER_E_INVALID, "token is NULL, or all zeros");
}

larder_status_t larder_promise(larder_space_t *space,
                               const larder_layout_t *layout,
                               const larder_key_t *keys, size_t count,
                               const larder_token_t *token, uint32_t timeout_ms,
                               char member[LARDER_MEMBER_BYTES])
{
    char name[LARDER_MEMBER_BYTES] = "";
    larder_status_t st = ldr_prefix_check(space, layout);
    ldr_need_t needs[LARDER_GROUPS_MAX];

    st = st == LARDER_OK ? check_token(token) : st;
    if (st != LARDER_OK) {
        return st;
    }
    if (keys == NULL || count == 0) {
        return ldr_fail(LARDER_E_INVALID, "keys or count");
    }
    if (count > LDR_HANDOFF_KEYS) {
        return ldr_fail(LARDER_E_LIMIT, "%zu chunks in one promise, of %zu",
                        count, (size_t)LDR_HANDOFF_KEYS);
    }
    ldr_prefix_t p = {
        .needs = needs,
        .need_count = ldr_layout_list_needs(layout, needs),
        .keys = keys,
        .count = (uint32_t)count,
    };
    st = space->lar->backend->promise(
        space, &p, token, ldr_deadline(space->lar, timeout_ms), name);
    if (st == LARDER_OK && member != NULL) {
        memcpy(member, name, sizeof(name));
    }
    return st;
}

larder_status_t larder_handoff(larder_space_t *space,
                               const larder_token_t *token,
                               larder_handoff_t what, const char *member,
                               uint32_t timeout_ms)
{
    larder_status_t st = ldr_space_check(space);

    st = st == LARDER_OK ? check_token(token) : st;
    if (st != LARDER_OK) {
        return st;
    }
    if (what < LARDER_HANDOFF_ANSWERED || what >= LARDER_HANDOFF_COUNT) {
        return ldr_fail(LARDER_E_INVALID, "%d is not one of LARDER_HANDOFF_*",
                        (int)what);
    }
    member = member != NULL ? member : "";
    if (strnlen(member, LARDER_MEMBER_BYTES) == LARDER_MEMBER_BYTES) {
        return ldr_fail(LARDER_E_INVALID,
                        "the name of a member has up to %u bytes",
                        LARDER_MEMBER_BYTES - 1);
    }
    return space->lar->backend->handoff(space, token, what, member,
                                        ldr_deadline(space->lar, timeout_ms));
}

larder_status_t larder_seal(const larder_space_t *space, const void *data,
                            size_t bytes, uint8_t seal[LARDER_KEY_BYTES])
{
    static const char label[] = "larder seal 1";
    larder_status_t st = ldr_space_check(space);

    if (st != LARDER_OK) {
        return st;
    }
    if (seal == NULL || (data == NULL && bytes > 0)) {
        return ldr_fail(LARDER_E_INVALID, "data or seal is NULL");
    }
    const ldr_piece_t pieces[] = {{label, sizeof(label)}, {data, bytes}};
    return ldr_hmac_sha256(space->root, sizeof(space->root), pieces, 2, seal)
               ? LARDER_OK
               : ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
}
