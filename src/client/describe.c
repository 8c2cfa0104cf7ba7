/* Telling a daemon what an engine calls its chunks. */
#include <string.h>

#include "base/bytes.h"
#include "base/grow.h"
#include "base/hash.h"
#include "client/client.h"
#include "wire/describe.h"

/* Text that fits a field of so many bytes, its end included. */
static bool take_text(const char *text, char *to, size_t size)
{
    size_t length = text != NULL ? strnlen(text, size) : 0;

    if (length == size) {
        return false;
    }
    memset(to, 0, size);
    if (length > 0) {
        memcpy(to, text, length);
    }
    return true;
}

static bool take_params(const larder_space_t *space,
                        const larder_describe_params_t *p,
                        ldr_describe_msg_t *m)
{
    uint64_t mask = p->field_mask;

    *m = (ldr_describe_msg_t){
        .count = 1,
        .chunk_tokens = space->chunk_tokens,
        .block_tokens = p->block_tokens,
        .group_idx = p->group_idx,
        .window = (mask & LARDER_DESCRIBE_WINDOW) != 0 ? p->window : 0,
        .group = p->group,
        .hash_bytes = (uint8_t)ldr_min64(p->hash_bytes, UINT8_MAX),
        .flags = (mask & LARDER_DESCRIBE_NUMBERS) != 0 && p->is_numbers != 0
                     ? LDR_DESCRIBE_NUMBERS
                     : 0,
    };
    const char *kind = (mask & LARDER_DESCRIBE_KIND) != 0 ? p->kind : NULL;
    return take_text(p->pod, m->pod, sizeof(m->pod)) &&
           take_text(p->model, m->model, sizeof(m->model)) &&
           take_text(kind, m->kind, sizeof(m->kind)) && m->pod[0] != '\0' &&
           m->model[0] != '\0' && strchr(m->pod, '@') == NULL &&
           p->group < LARDER_GROUPS_MAX &&
           (m->flags == 0 || m->hash_bytes == 8) && ldr_describe_bytes(m) > 0;
}

/* As many chunks as one message has room for. */
static uint32_t chunks_max(const ldr_describe_msg_t *m)
{
    ldr_describe_msg_t one = *m;
    size_t head = LDR_DESCRIBE_HEAD_BYTES;

    one.count = 1;
    return (uint32_t)ldr_min64(LDR_DESCRIBE_CHUNKS,
                               (LDR_BODY_MAX - head) /
                                   (ldr_describe_bytes(&one) - head));
}

/* Of the blocks from one token to another. */
static bool digest_of(ldr_describe_msg_t *m, const uint32_t *tokens,
                      size_t from, size_t to)
{
    bool ok = true;

    for (; ok && from < to; from += m->block_tokens) {
        ok = ldr_token_digest(m->digest, tokens + from,
                              (size_t)m->block_tokens * sizeof(*tokens));
    }
    return ok;
}

static larder_status_t send_all(larder_space_t *space, ldr_describe_msg_t *m,
                                const uint32_t *tokens, size_t first,
                                size_t count, uint64_t deadline_ns)
{
    const size_t size = m->chunk_tokens;
    const size_t hashes = size / m->block_tokens * m->hash_bytes;
    larder_status_t st = LARDER_OK;

    for (size_t sent = 0; sent < count && st == LARDER_OK;) {
        m->count = (uint32_t)ldr_min64(count - sent, chunks_max(m));
        m->tokens = (const uint8_t *)(tokens + (first + sent) * size);
        st = space->lar->backend->describe(space, m, deadline_ns);
        if (!digest_of(m, tokens, (first + sent) * size,
                       (first + sent + m->count) * size)) {
            return ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
        }
        m->keys += (size_t)m->count * LARDER_KEY_BYTES;
        m->hashes += m->count * hashes;
        memcpy(m->parent, m->hashes - m->hash_bytes, m->hash_bytes);
        m->flags |= LDR_DESCRIBE_PARENT;
        sent += m->count;
    }
    return st;
}

larder_status_t larder_describe(larder_space_t *space, const larder_key_t *keys,
                                size_t first, size_t count,
                                const uint32_t *tokens, const void *hashes,
                                const void *parent,
                                const larder_describe_params_t *params,
                                uint32_t timeout_ms)
{
    larder_status_t st = ldr_space_check(space);
    ldr_describe_msg_t m;

    if (st != LARDER_OK) {
        return st;
    }
    if (keys == NULL || count == 0 || count > UINT32_MAX ||
        first > UINT32_MAX || tokens == NULL || hashes == NULL ||
        params == NULL || (parent == NULL) != (first == 0)) {
        return ldr_fail(LARDER_E_INVALID, "keys, tokens, hashes or parent");
    }
    st = ldr_mask_check(params->field_mask, LARDER_DESCRIBE_NUMBERS);
    if (st != LARDER_OK) {
        return st;
    }
    if (!take_params(space, params, &m)) {
        return ldr_fail(LARDER_E_INVALID,
                        "pod, model, block_tokens, hash_bytes or group: see "
                        "larder_describe_params_t");
    }
    if (space->lar->backend->describe == NULL) {
        return LARDER_DECLINED;
    }
    m.keys = keys->hash;
    m.hashes = hashes;
    if (parent != NULL) {
        memcpy(m.parent, parent, m.hash_bytes);
        m.flags |= LDR_DESCRIBE_PARENT;
    }
    if (!digest_of(&m, tokens, 0, first * space->chunk_tokens)) {
        return ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
    }
    return send_all(space, &m, tokens, first, count,
                    ldr_deadline(space->lar, timeout_ms));
}
