/*
 * Leases and reservations by TCP. A lease keeps its shards in the daemon's
 * DRAM; they are fetched when somebody looks at them. A reservation is memory
 * of this process, sent at its commit.
 *
 * Any thread may use a lease: its lock guards what was fetched, and is not held
 * while one of them fetches.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/mem.h"
#include "base/thread.h"
#include "client/tcp_path.h"
#include "client/transfer.h"

#define SUM_BYTES ((size_t)1 << 20) /* between looks at the clock */

typedef struct held_shard {
    uint64_t length;
    uint8_t *memory; /* once it was fetched */
    bool fetching;   /* somebody does */
} held_shard_t;

typedef struct held {
    ldr_conn_t *conn;
    uint64_t session; /* of the connection, whose the leases are */
    uint64_t stage;   /* the STAGE's hold, in that session */
    larder_key_t *keys;
    uint16_t group;
    uint32_t count;
    held_shard_t *shards;
    pthread_mutex_t lock; /* of what was fetched; not held meanwhile */
    pthread_cond_t fetched;
} held_t;

larder_status_t ldr_tcp_keep(ldr_talk_t *v, larder_lease_t *lease,
                             uint64_t number)
{
    ldr_conn_t *conn = ldr_conn_of(v->link);
    held_t *h = ldr_alloc(sizeof(*h));

    if (h == NULL) {
        ldr_conn_release(conn, conn->session, &number, 1);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a lease");
    }
    h->conn = conn;
    h->session = conn->session;
    h->stage = number;
    ldr_mutex_init(&h->lock);
    ldr_cond_init(&h->fetched);
    lease->held = h;
    return LARDER_OK;
}

static void held_free(held_t *h)
{
    for (uint32_t i = 0; i < h->count; i++) {
        ldr_free(h->shards[i].memory);
    }
    ldr_conn_release(h->conn, h->session, &h->stage, 1);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->fetched);
    ldr_free(h->shards);
    ldr_free(h->keys);
    ldr_free(h);
}

/* ---- reading in place ---- */

static larder_item_t held_item(const held_t *h, uint32_t shards, uint32_t at)
{
    return (larder_item_t){
        .key = &h->keys[at / shards],
        .group = h->group,
        .shard = (uint16_t)(at % shards),
    };
}

/* Asks how long the shards are; the first that is gone ends the prefix. */
static larder_status_t ask_lengths(ldr_talk_t *v, held_t *h,
                                   const larder_lease_t *lease,
                                   larder_cause_t *cause_p)
{
    larder_item_t items[LDR_ASK_FEW];
    const larder_item_t *rows[LDR_ASK_FEW];
    larder_status_t st = LARDER_OK;
    bool cut = false;

    while (st == LARDER_OK && !cut && h->count < lease->total) {
        uint32_t n = (uint32_t)ldr_min64(LDR_ASK_FEW, lease->total - h->count);
        ldr_results_t results;

        for (uint32_t i = 0; i < n; i++) {
            items[i] = held_item(h, lease->shards, h->count + i);
            rows[i] = &items[i];
        }
        st =
            ldr_ask_names(v, LDR_OP_EXISTS, LDR_BATCH_AGAIN, rows, n, &results);
        for (uint32_t i = 0; st == LARDER_OK && i < n && !cut; i++) {
            ldr_result_row_t row = {.status = LARDER_MISS};

            cut = !ldr_get_result(results.rows + (size_t)i * LDR_RESULT_BYTES,
                                  &row) ||
                  row.status != LARDER_OK;
            if (cut) {
                *cause_p = row.cause;
            } else {
                h->shards[h->count++] = (held_shard_t){.length = row.length};
            }
        }
    }
    return st;
}

static bool held_alloc(held_t *h, uint32_t chunks, uint32_t shards)
{
    h->shards = ldr_alloc((size_t)chunks * shards * sizeof(*h->shards));
    h->keys = ldr_alloc(chunks * sizeof(*h->keys));
    return h->shards != NULL && h->keys != NULL;
}

static larder_status_t tcp_map(larder_space_t *space, larder_lease_t *lease,
                               const larder_key_t *keys, uint16_t group,
                               uint64_t deadline_ns, larder_match_t *match)
{
    ldr_stop_t stop = {NULL, deadline_ns};
    held_t *h = lease->held;
    larder_cause_t cause = LARDER_CAUSE_NONE;
    uint64_t bytes = 0;
    ldr_talk_t v;

    if (!held_alloc(h, lease->chunks, lease->shards)) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a lease");
    }
    memcpy(h->keys, keys, lease->chunks * sizeof(*keys));
    h->group = group;
    larder_status_t st =
        ldr_talk_begin(&v, space->lar->remote, &space->ref, &stop);
    if (st == LARDER_OK) {
        st = ask_lengths(&v, h, lease, &cause);
        ldr_talk_end(&v, st);
    }
    uint32_t chunks = h->count / lease->shards;
    lease->chunks = st < 0 && st != LARDER_E_DEADLINE ? 0 : chunks;
    h->count = lease->chunks * lease->shards;
    for (uint32_t i = 0; i < h->count; i++) {
        bytes += h->shards[i].length;
    }
    return ldr_mapped(st, cause, lease->chunks, bytes, match);
}

/* ---- using and ending ---- */

/* Fetches a leased shard into memory of its own. */
static larder_status_t fetch(const larder_lease_t *lease, const held_t *h,
                             uint32_t at, uint64_t deadline_ns,
                             uint8_t **memory_p)
{
    const held_shard_t *shard = &h->shards[at];
    uint8_t *memory = ldr_alloc(shard->length);
    struct iovec iov = {memory, shard->length};
    larder_item_t item = held_item(h, lease->shards, at);
    ldr_op_t op = {
        .lar = lease->lar,
        .kind = LARDER_OP_GET,
        .ref = lease->space,
        .shards = lease->shards,
        .items = &item,
        .count = 1,
        .flags = LDR_BATCH_AGAIN, /* it is staged */
        .deadline_ns = deadline_ns,
    };

    if (memory == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a shard");
    }
    item.iov = &iov;
    item.iov_count = 1;
    ldr_remote_get(&op);
    if (item.status == LARDER_OK && item.length == shard->length) {
        *memory_p = memory;
        return LARDER_OK;
    }
    ldr_free(memory);
    if (item.status < 0 && item.status != LARDER_E_SIZE) {
        return item.status;
    }
    return item.cause == LARDER_CAUSE_OFFLINE ? LARDER_E_OFFLINE
           : item.cause == LARDER_CAUSE_DEADLINE
               ? LARDER_E_DEADLINE
               : ldr_fail(LARDER_E_STALE,
                          "the daemon does not have it any more: release the "
                          "lease");
}

/* The shard's memory; the first to ask fetches it, others wait for that. */
static larder_status_t fetched(const larder_lease_t *lease, held_t *h,
                               uint32_t at, uint8_t **memory_p)
{
    held_shard_t *shard = &h->shards[at];
    const ldr_threads_t *threads = lease->lar->remote->threads;
    ldr_stop_t stop = {NULL, ldr_deadline(lease->lar, 0)};
    larder_status_t st = LARDER_OK;

    ldr_mutex_lock(&h->lock);
    while (shard->fetching && st == LARDER_OK) {
        threads->wait(threads->arg, &h->fetched, &h->lock, stop.deadline_ns);
        if (shard->fetching) {
            st = ldr_stopped(lease->lar->clock, &stop);
        }
    }
    if (st == LARDER_OK && shard->memory == NULL) {
        uint8_t *memory = NULL;

        shard->fetching = true;
        ldr_mutex_unlock(&h->lock);
        st = fetch(lease, h, at, stop.deadline_ns, &memory);
        ldr_mutex_lock(&h->lock);
        shard->fetching = false;
        shard->memory = memory;
        threads->wake(threads->arg, &h->fetched, true);
    }
    *memory_p = shard->memory;
    ldr_mutex_unlock(&h->lock);
    return st;
}

static larder_status_t tcp_segments(const larder_lease_t *lease, uint32_t at,
                                    struct iovec *seg, uint32_t seg_max,
                                    uint32_t *seg_count_p)
{
    larder_status_t st = LARDER_OK;
    struct iovec one;

    if (lease->reserved) {
        one = (struct iovec){lease->rooms[at].memory, lease->rooms[at].length};
    } else {
        held_t *h = lease->held;
        uint8_t *memory = NULL;

        if (seg_max > 0) {
            st = fetched(lease, h, at, &memory);
        }
        one = (struct iovec){memory, h->shards[at].length};
    }
    if (st != LARDER_OK) {
        return st;
    }
    *seg_count_p = 1;
    if (seg_max == 0) {
        return LARDER_E_SIZE;
    }
    seg[0] = one;
    return LARDER_OK;
}

static void tcp_drop(larder_lease_t *lease)
{
    for (uint32_t i = 0; i < lease->room_count; i++) {
        ldr_free(lease->rooms[i].memory);
        lease->rooms[i].memory = NULL;
    }
    if (lease->held != NULL) {
        held_free(lease->held);
        lease->held = NULL;
    }
}

/* ---- in place ---- */

/* What is there is not to be written; the rest gets memory. */
static larder_status_t rooms_ask(ldr_talk_t *v, const larder_item_t *items,
                                 larder_lease_t *lease)
{
    const larder_item_t *rows[LDR_ASK_ITEMS];
    uint32_t index[LDR_ASK_ITEMS], n = 0;
    ldr_results_t results;
    larder_status_t st = LARDER_OK;

    for (uint32_t i = 0; i < lease->room_count && st == LARDER_OK; i++) {
        if (lease->rooms[i].status == LARDER_OK) {
            rows[n] = &items[i];
            index[n++] = i;
        }
        if (n == 0 || (n < LDR_ASK_ITEMS && i + 1 < lease->room_count)) {
            continue;
        }
        st =
            ldr_ask_names(v, LDR_OP_EXISTS, LDR_BATCH_QUIET, rows, n, &results);
        for (uint32_t k = 0; k < n && st == LARDER_OK; k++) {
            ldr_result_row_t row;

            if (ldr_get_result(results.rows + (size_t)k * LDR_RESULT_BYTES,
                               &row) &&
                row.status == LARDER_OK) {
                lease->rooms[index[k]].status = LARDER_PRESENT;
            }
        }
        n = 0;
    }
    return st;
}

static larder_status_t tcp_reserve(larder_space_t *space, larder_item_t *items,
                                   size_t count, uint64_t deadline_ns,
                                   larder_lease_t *lease)
{
    ldr_stop_t stop = {NULL, deadline_ns};
    ldr_talk_t v;
    larder_status_t st =
        ldr_talk_begin(&v, space->lar->remote, &space->ref, &stop);

    if (st == LARDER_OK) {
        st = rooms_ask(&v, items, lease);
        ldr_talk_end(&v, st);
    }
    for (size_t i = 0; i < count; i++) {
        ldr_room_t *room = &lease->rooms[i];

        if (room->status != LARDER_OK) {
            continue;
        }
        room->status = st;
        if (st == LARDER_OK) {
            room->save = ldr_row_save(&items[i], room->length);
            room->memory = ldr_alloc(room->length);
            room->status =
                room->memory != NULL ? LARDER_OK : LARDER_E_NO_MEMORY;
        }
    }
    return LARDER_OK;
}

/* Whether the bytes are what their writer says: OK, E_CORRUPT, or why there is
 * no time to look. */
static larder_status_t room_right(const larder_lease_t *lease,
                                  const uint32_t *crcs, uint32_t i,
                                  const ldr_stop_t *stop)
{
    const ldr_room_t *room = &lease->rooms[i];
    uint32_t crc = 0;

    if (crcs == NULL) {
        return LARDER_OK;
    }
    for (size_t at = 0; at < room->length;) {
        size_t take = ldr_min64(room->length - at, SUM_BYTES);
        larder_status_t st = ldr_stopped(lease->lar->clock, stop);

        if (st != LARDER_OK) {
            return st;
        }
        crc = ldr_crc32c(crc, room->memory + at, take);
        at += take;
    }
    return crc == crcs[i] ? LARDER_OK : LARDER_E_CORRUPT;
}

/* Rooms become items of a put. */
static uint32_t rooms_items(larder_lease_t *lease, const uint8_t *keep,
                            const uint32_t *crcs, const ldr_stop_t *stop,
                            larder_item_t *items, struct iovec *iov,
                            uint32_t *index)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < lease->room_count; i++) {
        ldr_room_t *room = &lease->rooms[i];
        const ldr_save_row_t *save = &room->save;

        if (room->status != LARDER_OK) {
            continue;
        }
        room->status = keep != NULL && keep[i] == 0
                           ? LARDER_E_CANCELED
                           : room_right(lease, crcs, i, stop);
        if (room->status == LARDER_OK) {
            iov[n] = (struct iovec){room->memory, room->length};
            items[n] = (larder_item_t){
                .key = &save->key,
                .parent = save->has_parent ? &save->parent : NULL,
                .depth = save->depth,
                .group = save->group,
                .shard = save->shard,
                .flags = save->flags,
                .ttl_ms = save->ttl_ms,
                .iov = &iov[n],
                .iov_count = 1,
            };
            index[n++] = i;
        }
    }
    return n;
}

static larder_status_t tcp_commit(larder_lease_t *lease, const uint8_t *keep,
                                  const uint32_t *crcs, uint64_t deadline_ns)
{
    uint32_t count = lease->room_count;
    larder_item_t *items = ldr_alloc(count * sizeof(*items));
    struct iovec *iov = ldr_alloc(count * sizeof(*iov));
    uint32_t *index = ldr_alloc(count * sizeof(*index));
    larder_status_t st = LARDER_OK;

    if (items != NULL && iov != NULL && index != NULL) {
        ldr_stop_t stop = {NULL, deadline_ns};
        uint32_t n = rooms_items(lease, keep, crcs, &stop, items, iov, index);
        ldr_op_t op = {
            .lar = lease->lar,
            .kind = LARDER_OP_PUT,
            .ref = lease->space,
            .shards = lease->space.shards,
            .items = items,
            .count = n,
            .deadline_ns = deadline_ns,
        };

        if (n > 0) {
            ldr_remote_put(&op);
        }
        for (uint32_t i = 0; i < n; i++) {
            lease->rooms[index[i]].status = items[i].status;
        }
    } else {
        st = ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a commit");
    }
    for (uint32_t i = 0; i < count; i++) {
        ldr_free(lease->rooms[i].memory);
        lease->rooms[i].memory = NULL;
    }
    ldr_free(items);
    ldr_free(iov);
    ldr_free(index);
    return st;
}

const ldr_lease_ops_t ldr_leases_tcp = {
    .map = tcp_map,
    .segments = tcp_segments,
    .drop = tcp_drop,
    .reserve = tcp_reserve,
    .commit = tcp_commit,
};
