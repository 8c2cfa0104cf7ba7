/* Larder, by its public header: a batch is one larder_run(). */
#include <stdlib.h>
#include <string.h>

#include "larder/larder.h"
#include "peer.h"

struct peer {
    larder_t *lar;
    larder_space_t *space;
    size_t size;
    larder_key_t keys[BATCH_MAX];
    struct iovec pieces[BATCH_MAX];
    larder_item_t items[BATCH_MAX];
};

static peer_t *open_url(const char *where, size_t size)
{
    static const char words[] = "bench/peers";
    peer_t *peer = must_alloc(sizeof(*peer));
    larder_space_params_t params = {.field_mask = LARDER_SPACE_CHUNK_TOKENS,
                                    .descriptor = words,
                                    .descriptor_bytes = sizeof(words) - 1,
                                    .chunk_tokens = 2};

    peer->size = size;
    if (larder_open(where, NULL, &peer->lar) != LARDER_OK ||
        larder_space_open(peer->lar, &params, &peer->space) != LARDER_OK) {
        fail("%s: %s", where, larder_last_error());
    }
    return peer;
}

/* Keys as everybody else has them: none is the parent of another. */
static void run(peer_t *peer, larder_op_t op, const value_t *values,
                unsigned count)
{
    size_t hashed;

    for (unsigned i = 0; i < count; i++) {
        uint32_t tokens[2] = {values[i].generation, values[i].number};
        larder_item_t *item = &peer->items[i];

        if (larder_chain(peer->space, tokens, 2, NULL, &peer->keys[i], 1,
                         &hashed) != LARDER_OK) {
            fail("larder_chain: %s", larder_last_error());
        }
        peer->pieces[i] = (struct iovec){values[i].data, peer->size};
        *item = (larder_item_t){.key = &peer->keys[i],
                                .iov = &peer->pieces[i],
                                .iov_count = op != LARDER_OP_REMOVE};
    }
    larder_status_t st = larder_run(peer->space, op, peer->items, count, NULL);
    if (st != LARDER_OK) {
        fail("larder_run: %s: %s", larder_status_text(st), larder_last_error());
    }
    for (unsigned i = 0; i < count; i++) {
        larder_item_t *item = &peer->items[i];

        if (item->status != LARDER_OK ||
            (op == LARDER_OP_GET && item->length != peer->size)) {
            fail("larder_run: %s, cause %s", larder_status_text(item->status),
                 larder_cause_text(item->cause));
        }
    }
}

static void larder_put(peer_t *peer, const value_t *values, unsigned count)
{
    run(peer, LARDER_OP_PUT, values, count);
}

static void larder_get(peer_t *peer, const value_t *values, unsigned count)
{
    run(peer, LARDER_OP_GET, values, count);
}

static void larder_remove(peer_t *peer, const value_t *values, unsigned count)
{
    run(peer, LARDER_OP_REMOVE, values, count);
}

static void close_url(peer_t *peer)
{
    larder_space_close(&peer->space);
    larder_close(&peer->lar, 5000);
    free(peer);
}

const peer_ops_t peer_larder = {
    .name = "larder",
    .open = open_url,
    .put = larder_put,
    .get = larder_get,
    .remove = larder_remove,
    .close = close_url,
};
