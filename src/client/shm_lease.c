/* Leases and reservations by shared memory. */
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "client/shm_ops.h"

#define TRIES_MAX 3u   /* for what had no room, with nothing coming of it */
#define NAP_NS 1000000 /* in between */

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

    if (need > h->piece_room) {
        uint32_t room = need < 64 ? 64 : 2 * need;
        ldr_piece_map_t *more = ldr_alloc(room * sizeof(*more));

        if (more == NULL) {
            return ldr_fail(LARDER_E_NO_MEMORY,
                            "not enough memory for a lease");
        }
        if (h->piece_count > 0) {
            memcpy(more, h->pieces, h->piece_count * sizeof(*more));
        }
        ldr_free(h->pieces);
        h->pieces = more;
        h->piece_room = room;
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
    ldr_end_row_t ends[LDR_SHM_ITEMS];
    uint32_t n = 0;

    for (uint32_t i = first; i < h->count; i++) {
        ends[n++] = (ldr_end_row_t){
            .lease = h->shards[i].lease,
            .how = h->shards[i].checked ? LDR_END_CHECKED : LDR_END_PLAIN,
        };
        if (n == LDR_SHM_ITEMS || i + 1 == h->count) {
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

typedef struct stage {
    ldr_talk_t talk;
    ldr_shm_session_t *session;
    const larder_lease_t *lease;
    const larder_key_t *keys;
    uint16_t group;
    uint32_t total; /* shards to be leased */
    uint32_t
        asked; /* of them: in a request that was answered or is under way */
    ldr_held_t *held;
    uint64_t bytes; /* of whole chunks */
    uint64_t part;  /* of the chunk that is not whole yet */
    larder_cause_t cause;
    larder_status_t status;
    bool cut; /* a shard is missing: the prefix ends */
    ldr_shm_window_t window[2];
} stage_t;

static larder_item_t stage_item(const stage_t *s, uint32_t at)
{
    return (larder_item_t){
        .key = &s->keys[at / s->lease->shards],
        .group = s->group,
        .shard = (uint16_t)(at % s->lease->shards),
    };
}

static void stage_ask(stage_t *s, ldr_shm_window_t *w)
{
    ldr_buffer_t *buffer = w->call.buffer;

    if (buffer == NULL) {
        buffer = w->call.buffer = ldr_buffer_take(s->talk.remote);
    }
    if (buffer == NULL) {
        s->status = ldr_fail(LARDER_E_NO_MEMORY, "not enough memory");
        return;
    }
    w->count = (uint32_t)ldr_min64(LDR_SHM_ITEMS, s->total - s->asked);
    w->call.opcode = LDR_OP_LEASE;
    w->call.bytes = (uint32_t)ldr_put_places(
        ldr_body(buffer), &s->talk, s->lease, s->group, s->asked, w->count);
    s->status = ldr_shm_send(s->session, &w->call, &s->talk.stop);
    w->sent = s->status == LARDER_OK;
    s->asked += w->sent ? w->count : 0;
}

/* The bytes of a leased shard are right. */
static bool stage_check(stage_t *s, const ldr_result_row_t *row,
                        ldr_held_shard_t *shard)
{
    uint32_t crc = 0;

    if (s->talk.remote->options.verify == LDR_VERIFY_GET ||
        (s->talk.remote->options.verify == LDR_VERIFY_ENTRY &&
         (row->flags & LDR_RESULT_CHECKED) != 0)) {
        return true;
    }
    s->status =
        ldr_pieces_crc(s->talk.remote->clock, s->held->pieces + shard->piece,
                       row->seg_count, &s->talk.stop, &crc);
    if (s->status != LARDER_OK) {
        return false;
    }
    shard->checked = crc == row->crc;
    if (!shard->checked) {
        s->cause = LARDER_CAUSE_CORRUPT;
    }
    return shard->checked;
}

/* Keeps a leased shard; false: the prefix ends before it. */
static bool stage_keep(stage_t *s, const ldr_result_row_t *row,
                       const uint8_t *segs)
{
    ldr_held_t *h = s->held;
    ldr_held_shard_t *shard = &h->shards[h->count];

    *shard =
        (ldr_held_shard_t){.lease = row->lease, .piece_count = row->seg_count};
    s->status = ldr_held_map(h, row, segs, &s->talk.stop, &shard->piece);
    if (s->status != LARDER_OK) {
        return false;
    }
    h->count++;
    if (!stage_check(s, row, shard)) {
        uint32_t at = h->count - 1;
        larder_item_t item = stage_item(s, at), *wrong = &item;

        release_from(h, at);
        if (s->cause == LARDER_CAUSE_CORRUPT) {
            ldr_report(&s->talk, &wrong, 1);
        }
        return false;
    }
    s->part += row->length;
    if (h->count % s->lease->shards == 0) {
        s->bytes += s->part;
        s->part = 0;
    }
    return true;
}

/* Takes a reply's rows in order. False: it has to be asked again from the
 * first that was not taken. */
static bool stage_rows(stage_t *s, const ldr_shm_window_t *w,
                       const ldr_results_t *results)
{
    ldr_rows_t rows = {.results = results};
    bool again = false;

    for (uint32_t i = 0; i < w->count; i++) {
        ldr_result_row_t row;
        const uint8_t *segs;
        bool ended = s->cut || again || s->status != LARDER_OK;

        if (!ldr_rows_next(&rows, &row, &segs)) {
            ldr_shm_die(s->session);
            s->status = LARDER_E_OFFLINE;
            return true;
        }
        if (row.status == LARDER_OK) {
            uint32_t had = s->held->count;

            if (!ended && !stage_keep(s, &row, segs)) {
                s->cut = true;
            }
            if (s->held->count == had) {
                ldr_end_row_t end = {.lease = row.lease};

                ldr_shm_ends(s->session, LDR_OP_RELEASE, &end, 1);
            }
        } else if (!ended && row.status == LARDER_PENDING) {
            again = true;
        } else if (!ended) {
            s->cut = true;
            s->cause = row.cause;
            if (row.status < 0 && s->held->count > 0) {
                s->cause = LARDER_CAUSE_FULL; /* a limit: what is held stays */
            } else if (row.status < 0) {
                s->status = row.status;
            }
        }
    }
    return !again;
}

static bool stage_reply(stage_t *s, ldr_shm_window_t *w, ldr_results_t *results)
{
    s->status = ldr_shm_wait(s->session, &w->call, &s->talk.stop);
    w->sent = false;
    if (s->status != LARDER_OK) {
        return false;
    }
    s->talk.heard = true;
    if (ldr_frame_status(&w->call.reply) < 0) {
        s->status = ldr_reply_failed(&w->call.reply, ldr_body(w->call.buffer));
    } else if (!ldr_get_results(ldr_body(w->call.buffer), w->call.reply.body,
                                results) ||
               results->count != w->count) {
        ldr_shm_die(s->session);
        s->status = LARDER_E_OFFLINE;
    }
    return s->status == LARDER_OK;
}

static void stage_run(stage_t *s)
{
    ldr_results_t results;
    unsigned now = 0, tries = 0;

    while (s->status == LARDER_OK && !s->cut &&
           (s->asked < s->total || s->window[now].sent)) {
        ldr_shm_window_t *w = &s->window[now];
        uint32_t before = s->held->count;

        if (!w->sent) {
            stage_ask(s, w);
        }
        if (s->status != LARDER_OK || !stage_reply(s, w, &results)) {
            break;
        }
        /* The next ones are read from disk while these are checked. */
        if (s->asked < s->total && ldr_rows_ok(&results) == w->count) {
            stage_ask(s, &s->window[1 - now]);
        }
        if (!stage_rows(s, w, &results)) {
            s->asked = s->held->count;
            tries = s->held->count > before ? 0 : tries + 1;
            if (tries == TRIES_MAX) {
                s->cut = true;
                s->cause = LARDER_CAUSE_FULL;
            } else if (tries > 0) {
                ldr_nap(s->talk.remote, NAP_NS);
            }
        } else {
            now = 1 - now;
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        if (s->window[i].sent) {
            ldr_shm_abandon(s->session, &s->window[i].call);
        }
        ldr_buffer_give(s->talk.remote, s->window[i].call.buffer);
    }
}

larder_status_t ldr_shm_map(larder_space_t *space, larder_lease_t *lease,
                            const larder_key_t *keys, uint16_t group,
                            uint64_t deadline_ns, larder_match_t *match)
{
    ldr_stop_t stop = {NULL, deadline_ns};
    ldr_held_t *h = lease->held;
    stage_t s = {
        .lease = lease,
        .keys = keys,
        .group = group,
        .total = lease->total,
        .cause = LARDER_CAUSE_NONE,
        .held = h,
        .session = h->session,
    };
    larder_status_t st =
        ldr_talk_begin(&s.talk, space->lar->remote, &space->ref, &stop);

    if (st != LARDER_OK) {
        lease->chunks = 0;
        return ldr_mapped(st, LARDER_CAUSE_NONE, 0, 0, match);
    }
    ldr_free(h->shards);
    h->shards = ldr_alloc(s.total * sizeof(*h->shards));
    if (h->shards == NULL) {
        s.status =
            ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a lease");
    } else if (ldr_shm_of(s.talk.link) != h->session) {
        s.status = LARDER_E_OFFLINE; /* the daemon that held it is gone */
    }
    stage_run(&s);
    uint32_t chunks = h->count / lease->shards;
    if (s.status < 0 && s.status != LARDER_E_DEADLINE) {
        chunks = 0; /* a daemon that died holds nothing */
    }
    release_from(h, chunks * lease->shards);
    ldr_talk_end(&s.talk,
                 s.status == LARDER_E_NO_MEMORY ? LARDER_OK : s.status);
    lease->chunks = chunks;
    return ldr_mapped(s.status, s.cause, chunks, s.bytes, match);
}

/* ---- using and ending ---- */

larder_status_t ldr_shm_segments(const larder_lease_t *lease, uint32_t at,
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

void ldr_shm_drop(larder_lease_t *lease)
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
