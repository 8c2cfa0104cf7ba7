/*
 * Leases by shared memory: what is read in place.
 *
 * An ldr_held_t belongs to its larder_lease_t, and is used by one thread at a
 * time until the lease is published; from then on it does not change until the
 * lease is dropped, so that any thread may read it without a lock. It is a user
 * of each extent that its pieces lie in, and holds a reference to its session.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "client/shm_path.h"

#define TRIES_MAX 3u /* for what had no room, with nothing coming of it */

ldr_held_t *ldr_held_new(ldr_shm_session_t *s, uint32_t shards)
{
    ldr_held_t *h = ldr_alloc(sizeof(*h));

    if (h != NULL) {
        h->shards = ldr_alloc(shards * sizeof(*h->shards));
    }
    if (h == NULL || h->shards == NULL) {
        ldr_free(h);
        ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a lease");
        return NULL;
    }
    ldr_shm_ref(s);
    h->session = s;
    return h;
}

/* What it holds has been given back. */
void ldr_held_free(ldr_held_t *h)
{
    ldr_unmap_segs(h->session, h->pieces, h->piece_count);
    ldr_shm_unref(h->session);
    ldr_free(h->shards);
    ldr_free(h->pieces);
    ldr_free(h);
}

/* Maps a row's segments behind those that are there. */
larder_status_t ldr_held_map(ldr_held_t *h, const ldr_result_row_t *row,
                             const uint8_t *segs, const ldr_stop_t *stop,
                             uint32_t *piece_p)
{
    uint32_t need = h->piece_count + row->seg_count;

    if (need > h->piece_capacity) {
        uint32_t capacity = need < 64 ? 64 : 2 * need;
        ldr_piece_map_t *more = ldr_alloc(capacity * sizeof(*more));

        if (more == NULL) {
            return ldr_fail(LARDER_E_NO_MEMORY,
                            "not enough memory for a lease");
        }
        if (h->piece_count > 0) {
            memcpy(more, h->pieces, h->piece_count * sizeof(*more));
        }
        ldr_free(h->pieces);
        h->pieces = more;
        h->piece_capacity = capacity;
    }
    larder_status_t st =
        ldr_map_segs(h->session, row, segs, stop, h->pieces + h->piece_count);
    if (st == LARDER_OK) {
        *piece_p = h->piece_count;
        h->piece_count = need;
    }
    return st;
}

/* Releases the shards from this one on. */
static void release_from(ldr_held_t *h, uint32_t first)
{
    ldr_end_row_t ends[LDR_ASK_ITEMS];
    uint32_t n = 0;

    for (uint32_t i = first; i < h->count; i++) {
        ends[n++] = (ldr_end_row_t){
            .lease = h->shards[i].lease,
            .how = h->shards[i].checked ? LDR_END_CHECKED : LDR_END_PLAIN,
        };
        if (n == LDR_ASK_ITEMS || i + 1 == h->count) {
            ldr_shm_ends(h->session, LDR_OP_RELEASE, ends, n);
            n = 0;
        }
    }
    if (first < h->count) {
        uint32_t piece = h->shards[first].piece;

        ldr_unmap_segs(h->session, h->pieces + piece, h->piece_count - piece);
        h->piece_count = piece;
        h->count = first;
    }
}

/* ---- staging ---- */

larder_status_t ldr_shm_keep(ldr_talk_t *v, larder_lease_t *lease,
                             uint64_t number)
{
    ldr_shm_session_t *s = ldr_shm_of(v->link);
    ldr_held_t *h = ldr_held_new(s, 1);

    if (h == NULL) {
        ldr_end_row_t end = {.lease = number};

        ldr_shm_ends(s, LDR_OP_RELEASE, &end, 1);
        return LARDER_E_NO_MEMORY;
    }
    h->staged = true;
    h->stage = number;
    lease->held = h;
    return LARDER_OK;
}

/* ---- reading in place ---- */

/* Shards of one group, leased in order by their places in what is staged. */
typedef struct in_place {
    const larder_lease_t *lease;
    const larder_key_t *keys;
    uint16_t group;
    uint32_t asked; /* shards in a request that was answered or is under way */
    unsigned tries;
    ldr_held_t *held;
    uint64_t bytes; /* of whole chunks */
    uint64_t part;  /* of the chunk that is not whole yet */
    larder_cause_t cause;
} in_place_t;

/* The next ones are asked for while these are checked, if all are there. */
static bool place_more(const ldr_transfer_t *t, const ldr_results_t *answered)
{
    const in_place_t *p = t->own;

    return p->asked < p->lease->total &&
           (answered == NULL || ldr_rows_ok(answered) == answered->count);
}

static void place_ask(ldr_transfer_t *t, ldr_ask_t *q)
{
    in_place_t *p = t->own;

    q->count = (uint32_t)ldr_min64(LDR_ASK_ITEMS, p->lease->total - p->asked);
    q->call.opcode = LDR_OP_LEASE;
    q->call.bytes =
        (uint32_t)ldr_put_places(ldr_body(q->call.buffer), &t->talk, p->lease,
                                 p->group, p->asked, q->count);
    p->asked += q->count;
}

/* The bytes of a leased shard are right. */
static bool place_check(ldr_transfer_t *t, const ldr_result_row_t *row,
                        ldr_held_shard_t *shard)
{
    in_place_t *p = t->own;
    uint64_t verify = t->talk.remote->options.verify;
    uint32_t crc = 0;

    if (verify == LDR_VERIFY_GET || (verify == LDR_VERIFY_ENTRY &&
                                     (row->flags & LDR_RESULT_CHECKED) != 0)) {
        return true;
    }
    t->status =
        ldr_pieces_crc(t->talk.remote->clock, p->held->pieces + shard->piece,
                       row->seg_count, &t->talk.stop, &crc);
    shard->checked = t->status == LARDER_OK && crc == row->crc;
    if (t->status == LARDER_OK && !shard->checked) {
        p->cause = LARDER_CAUSE_CORRUPT;
    }
    return shard->checked;
}

/* Keeps a leased shard; false: the prefix ends before it. */
static bool place_keep(ldr_transfer_t *t, const ldr_result_row_t *row,
                       const uint8_t *segs)
{
    in_place_t *p = t->own;
    ldr_held_t *h = p->held;
    uint32_t at = h->count;
    ldr_held_shard_t *shard = &h->shards[at];

    *shard =
        (ldr_held_shard_t){.lease = row->lease, .piece_count = row->seg_count};
    t->status = ldr_held_map(h, row, segs, &t->talk.stop, &shard->piece);
    if (t->status != LARDER_OK) {
        return false;
    }
    h->count++;
    if (!place_check(t, row, shard)) {
        larder_item_t item = {.key = &p->keys[at / p->lease->shards],
                              .group = p->group,
                              .shard = (uint16_t)(at % p->lease->shards)};
        larder_item_t *wrong = &item;

        release_from(h, at);
        if (p->cause == LARDER_CAUSE_CORRUPT) {
            ldr_report(&t->talk, &wrong, 1);
        }
        return false;
    }
    p->part += row->length;
    if (h->count % p->lease->shards == 0) {
        p->bytes += p->part;
        p->part = 0;
    }
    return true;
}

/* The prefix ends before a shard that could not be leased. */
static void place_cut(ldr_transfer_t *t, const ldr_result_row_t *row)
{
    in_place_t *p = t->own;

    t->over = true;
    p->cause = row->cause;
    if (row->status < 0 && p->held->count > 0) {
        p->cause = LARDER_CAUSE_FULL; /* a limit: what is held stays */
    } else if (row->status < 0) {
        t->status = row->status;
    }
}

/* Takes a reply's rows in order; from the first that is pending on it is asked
 * again. */
static void place_take(ldr_transfer_t *t, ldr_ask_t *q,
                       const ldr_results_t *results)
{
    in_place_t *p = t->own;
    ldr_rows_t rows = {.results = results};
    uint32_t before = p->held->count;
    bool again = false;

    for (uint32_t i = 0; i < q->count; i++) {
        ldr_result_row_t row;
        const uint8_t *segs;
        bool ended = t->over || again || t->status != LARDER_OK;

        if (!ldr_transfer_row(t, NULL, &rows, &row, &segs)) {
            return;
        }
        if (row.status == LARDER_OK) {
            uint32_t had = p->held->count;

            if (!ended && !place_keep(t, &row, segs)) {
                t->over = true;
            }
            if (p->held->count == had) {
                ldr_end_row_t end = {.lease = row.lease};

                ldr_shm_ends(p->held->session, LDR_OP_RELEASE, &end, 1);
            }
        } else if (!ended && row.status == LARDER_PENDING) {
            again = true;
        } else if (!ended) {
            place_cut(t, &row);
        }
    }
    t->progress = p->held->count > before;
    p->asked = again ? p->held->count : p->asked;
    p->tries = t->progress || !again ? 0 : p->tries + 1;
    if (p->tries == TRIES_MAX) {
        t->over = true;
        p->cause = LARDER_CAUSE_FULL;
    }
}

static larder_status_t shm_map(larder_space_t *space, larder_lease_t *lease,
                               const larder_key_t *keys, uint16_t group,
                               uint64_t deadline_ns, larder_match_t *match)
{
    static const ldr_transfer_ops_t ops = {
        .more = place_more, .ask = place_ask, .take = place_take};
    ldr_stop_t stop = {NULL, deadline_ns};
    ldr_held_t *h = lease->held;
    in_place_t p = {.lease = lease, .keys = keys, .group = group, .held = h};
    ldr_transfer_t t;
    larder_status_t st =
        ldr_transfer_begin(&t, space->lar, NULL, &space->ref, &stop, &ops);

    if (st != LARDER_OK) {
        lease->chunks = 0;
        return ldr_mapped(st, LARDER_CAUSE_NONE, 0, 0, match);
    }
    t.own = &p;
    ldr_free(h->shards);
    h->shards = ldr_alloc(lease->total * sizeof(*h->shards));
    if (h->shards == NULL) {
        t.status =
            ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a lease");
    } else if (ldr_transfer_shm(&t) != h->session) {
        t.status = LARDER_E_OFFLINE; /* the daemon that held it is gone */
    }
    ldr_transfer_run(&t);
    st = t.status;
    uint32_t chunks = h->count / lease->shards;
    if (st < 0 && st != LARDER_E_DEADLINE) {
        chunks = 0; /* a daemon that died holds nothing */
    }
    release_from(h, chunks * lease->shards);
    ldr_transfer_end(&t, st == LARDER_E_NO_MEMORY ? LARDER_OK : st);
    lease->chunks = chunks;
    return ldr_mapped(st, p.cause, chunks, p.bytes, match);
}

/* ---- using and ending ---- */

static larder_status_t shm_segments(const larder_lease_t *lease, uint32_t at,
                                    struct iovec *seg, uint32_t seg_max,
                                    uint32_t *seg_count_p)
{
    const ldr_held_t *h = lease->held;
    const ldr_room_t *room = lease->reserved ? &lease->rooms[at] : NULL;
    uint32_t first = room != NULL ? room->seg : h->shards[at].piece;
    uint32_t count = room != NULL ? room->seg_count : h->shards[at].piece_count;

    if (ldr_shm_dead(h->session)) {
        return ldr_fail(LARDER_E_STALE,
                        "the daemon that held it is gone: release the lease");
    }
    for (uint32_t i = 0; i < count && i < seg_max; i++) {
        const ldr_piece_map_t *p = &h->pieces[first + i];

        seg[i] = (struct iovec){(room != NULL ? p->map->write : p->map->read) +
                                    p->offset,
                                p->bytes};
    }
    *seg_count_p = count;
    return count <= seg_max ? LARDER_OK : LARDER_E_SIZE;
}

static void shm_drop(larder_lease_t *lease)
{
    ldr_held_t *h = lease->held;

    if (h == NULL) {
        return;
    }
    for (uint32_t i = 0; i < lease->room_count; i++) {
        if (lease->rooms[i].status == LARDER_OK) {
            ldr_end_row_t end = {.lease = lease->rooms[i].lease,
                                 .how = LDR_END_ABORT};

            ldr_shm_ends(h->session, LDR_OP_COMMIT, &end, 1);
        }
    }
    release_from(h, 0);
    if (h->staged) {
        ldr_end_row_t end = {.lease = h->stage};

        ldr_shm_ends(h->session, LDR_OP_RELEASE, &end, 1);
    }
    ldr_held_free(h);
    lease->held = NULL;
}

const ldr_lease_ops_t ldr_leases_shm = {
    .map = shm_map,
    .segments = shm_segments,
    .drop = shm_drop,
    .reserve = ldr_shm_reserve,
    .commit = ldr_shm_commit,
};
