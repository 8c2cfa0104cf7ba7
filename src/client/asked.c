/*
 * Counting a request once. An engine that asks for a chain matches it, perhaps
 * a shorter part of it again, stages what was found and loads that; only the
 * first of these asks the node for something. A space's handle remembers what
 * it asked for, so that it can say of the others that they ask again.
 *
 * It remembers the last requests and chunks only, and forgets the oldest:
 * nothing depends on it but the figures of hits (docs/reference/metrics.md).
 *
 * Any thread may call. The space's asked_lock guards what is remembered; no
 * other lock is taken with it.
 */
#include "base/bytes.h"
#include "base/thread.h"
#include "client/client.h"

#define AGAIN_S 10u /* a request's matches and its stage come within this */
#define LOAD_S 60u  /* and its loads */
#define ENDS 4u     /* keys looked at: another chain may have taken a place */

static uint32_t now_s(const larder_space_t *space)
{
    return (uint32_t)(ldr_now_ns(space->lar->clock) / 1000000000u);
}

static ldr_asked_chunk_t *place_of(larder_space_t *space, uint64_t head)
{
    return &space->asked_chunks[head % LDR_ASKED_CHUNKS];
}

static uint16_t mark_of(uint64_t head)
{
    return head / LDR_ASKED_CHUNKS & 0x3fff;
}

static uint64_t head_of(const larder_key_t *key)
{
    /* A hash: any part of it will do that its run does not share. */
    return ldr_get64(key->hash + 16);
}

/* The request that asked for this chunk, and the chunk. NULL: none did, or too
 * long ago. With the lock. */
static ldr_asked_t *who_asked(larder_space_t *space, const larder_key_t *key,
                              uint32_t now, uint32_t within_s,
                              ldr_asked_chunk_t *chunk)
{
    uint64_t head = head_of(key);

    *chunk = *place_of(space, head);
    ldr_asked_t *a = &space->asked[chunk->number % LDR_ASKED_MAX];
    return chunk->head == mark_of(head) && chunk->number != 0 &&
                   (uint16_t)a->number == chunk->number &&
                   now - a->s <= within_s
               ? a
               : NULL;
}

bool ldr_asked_before(larder_space_t *space, const larder_key_t *keys,
                      size_t count, uint32_t group, bool holds)
{
    uint32_t now = now_s(space);
    bool before = false;

    ldr_mutex_lock(&space->asked_lock);
    for (size_t i = 0; i < ldr_min64(count, ENDS); i++) {
        ldr_asked_chunk_t chunk;
        ldr_asked_t *a =
            who_asked(space, &keys[count - 1 - i], now, AGAIN_S, &chunk);

        if (a != NULL) {
            /* All of it by the same call is another request. */
            bool another = i == 0 && chunk.last && a->group == group && !holds;

            before = !a->used && !another;
            a->used |= holds;
            break;
        }
    }
    ldr_mutex_unlock(&space->asked_lock);
    return before;
}

/* With the lock. */
static uint32_t number_new(larder_space_t *space, uint32_t group, bool used)
{
    uint32_t number = ++space->asked_number;

    /* 0 is none, also of the part that chunks keep. */
    number = (uint16_t)number == 0 ? ++space->asked_number : number;
    space->asked[number % LDR_ASKED_MAX] = (ldr_asked_t){
        .number = number,
        .s = now_s(space),
        .group = group,
        .used = used,
    };
    return number;
}

void ldr_asked_note(larder_space_t *space, const larder_key_t *keys,
                    size_t count, uint32_t group, size_t found, bool holds)
{
    ldr_mutex_lock(&space->asked_lock);
    uint32_t number = number_new(space, group, holds);
    for (size_t i = 0; i < count; i++) {
        uint64_t head = head_of(&keys[i]);

        *place_of(space, head) = (ldr_asked_chunk_t){
            .head = mark_of(head),
            .number = (uint16_t)number,
            .found = i < found,
            .last = i + 1 == count,
        };
    }
    ldr_mutex_unlock(&space->asked_lock);
}

bool ldr_asked_items(larder_space_t *space, larder_op_t kind,
                     const larder_item_t *items, size_t count)
{
    bool get = kind == LARDER_OP_GET;
    uint32_t now = now_s(space), used = 0;
    size_t before = 0;

    ldr_mutex_lock(&space->asked_lock);
    for (size_t i = 0; i < count; i++) {
        ldr_asked_chunk_t chunk;
        ldr_asked_t *a = items[i].key != NULL
                             ? who_asked(space, items[i].key, now,
                                         get ? LOAD_S : AGAIN_S, &chunk)
                             : NULL;

        if (a != NULL && get) {
            before += chunk.found;
        } else if (a != NULL && (!a->used || a->number == used)) {
            before++;
            a->used = true;
            used = a->number; /* by this batch, all of which belongs to it */
        }
    }
    ldr_mutex_unlock(&space->asked_lock);
    return 2 * before > count; /* a batch is one or the other */
}

void ldr_asked_existed(larder_space_t *space, const larder_item_t *items,
                       size_t count)
{
    ldr_mutex_lock(&space->asked_lock);
    uint32_t number = number_new(space, LDR_ASKED_GROUPS, true);
    for (size_t i = 0; i < count; i++) {
        if (items[i].key != NULL && items[i].status == LARDER_OK) {
            uint64_t head = head_of(items[i].key);

            *place_of(space, head) =
                (ldr_asked_chunk_t){.head = mark_of(head),
                                    .number = (uint16_t)number,
                                    .found = true};
        }
    }
    ldr_mutex_unlock(&space->asked_lock);
}
