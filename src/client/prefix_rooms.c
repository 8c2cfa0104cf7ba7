/*
 * A save in two halves: room is reserved before the bytes are there, and
 * filled when they are. Between the two nothing is copied and nobody waits; the
 * second half waits for no answer where the daemon needs to give none. It may
 * be made by several threads, each of which takes one shard after the other.
 *
 * Shards that were to be saved are numbered in the order of the enumeration;
 * those from n * BATCH to (n + 1) * BATCH - 1 share a reservation, leases[n]
 * (NULL: none of them has room). A shard's status is that of its reserve, and
 * then that of its end:
 *   OK               it has room, until the lease is committed or released
 *   E_FULL, E_LIMIT  there was no room, perhaps for the others' sake: it is
 *                    put the usual way once those are committed
 *   others           final
 */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/fault.h"
#include "base/gather.h"
#include "base/mem.h"
#include "client/prefix.h"
#include "client/transfer.h"

#define BATCH LDR_ASK_ITEMS /* one RESERVE, and one COMMIT */
/* Bytes copied between looks at the clock. */
#define RUN_MAX ((size_t)1 << 20)
#define SEGMENT_MIN 4096u /* what a reserved shard consists of */
#define WORKERS_MAX 8u    /* threads that share the shards of a fill, */
/* if it has so many bytes: less is copied before a thread would have come. */
#define SHARE_MIN ((size_t)1 << 20)

typedef struct shard {
    ldr_shard_at_t at;
    larder_status_t status;
} shard_t;

/* Lists for the shard that a thread is at. */
typedef struct worker {
    struct iovec *from, *to;
} worker_t;

struct larder_rooms {
    larder_space_t *space;
    const larder_layout_t *layout;
    uint32_t skipped; /* had no blocks when they were reserved */
    uint32_t count;
    shard_t *shards;
    larder_lease_t **leases;
    uint32_t from_max, to_max; /* of each worker's lists */
    uint32_t worker_count;
    worker_t workers[WORKERS_MAX];
    struct iovec *lists; /* of all workers */
};

static size_t shard_bytes(const larder_rooms_t *r, const shard_t *p)
{
    return r->layout->slice[p->at.slice].bytes;
}

/* Frees it; its leases are gone or nobody's. */
static void rooms_free(larder_rooms_t *r)
{
    ldr_free(r->shards);
    ldr_free(r->leases);
    ldr_free(r->lists);
    ldr_free(r);
}

static bool workers_new(larder_rooms_t *r, size_t count)
{
    size_t each = (size_t)r->from_max + r->to_max;

    r->worker_count = (uint32_t)ldr_min64(count, WORKERS_MAX);
    r->lists = ldr_alloc(r->worker_count * each * sizeof(*r->lists));
    for (uint32_t i = 0; i < r->worker_count && r->lists != NULL; i++) {
        r->workers[i].from = r->lists + i * each;
        r->workers[i].to = r->workers[i].from + r->from_max;
    }
    return r->lists != NULL;
}

/* With room for what a save of move has at most; filling allocates nothing. */
static larder_rooms_t *rooms_new(larder_space_t *space,
                                 const larder_layout_t *layout,
                                 const larder_move_t *m)
{
    larder_rooms_t *r = ldr_alloc(sizeof(*r));
    size_t chunks = m->end / layout->chunk_tokens, shards = 0;
    size_t bytes = 0;

    if (r == NULL) {
        return NULL;
    }
    chunks -= ldr_min64(chunks, m->begin / layout->chunk_tokens);
    r->space = space;
    r->layout = layout;
    for (uint32_t g = 0; g < layout->group_count; g++) {
        r->from_max =
            (uint32_t)ldr_max64(r->from_max, layout->group[g].pieces_max);
        bytes = ldr_max64(bytes, layout->group[g].bytes_max);
        shards += chunks * layout->group[g].whole_count;
    }
    shards = ldr_max64(shards, 1);
    r->to_max = (uint32_t)(bytes / SEGMENT_MIN) + 1;
    r->shards = ldr_alloc(shards * sizeof(*r->shards));
    r->leases = ldr_alloc(ldr_div_up(shards, BATCH) * sizeof(larder_lease_t *));
    if (r->shards == NULL || r->leases == NULL || !workers_new(r, shards)) {
        rooms_free(r);
        return NULL;
    }
    return r;
}

void larder_rooms_release(larder_rooms_t **rooms_p)
{
    if (rooms_p == NULL || *rooms_p == NULL) {
        return;
    }
    larder_rooms_t *r = *rooms_p;

    *rooms_p = NULL;
    for (uint32_t i = 0; i < r->count; i += BATCH) {
        larder_release(&r->leases[i / BATCH]);
    }
    rooms_free(r);
}

/* ---- reserving ---- */

/* The shards, without those whose blocks are not there. */
static larder_status_t shards_list(larder_rooms_t *r, const larder_move_t *m)
{
    ldr_saves_t saves = {.layout = r->layout, .move = m};

    while (ldr_saves_next(&saves)) {
        ldr_segments_t segments = {.iov = r->workers[0].from,
                                   .max = r->from_max};
        larder_status_t st =
            ldr_layout_segments(r->layout, saves.at, m->tables,
                                (ldr_span_t){0, UINT32_MAX}, NULL, &segments);

        if (st == LARDER_MISS) {
            r->skipped++;
        } else if (st != LARDER_OK) {
            return st;
        } else {
            r->shards[r->count++] = (shard_t){
                .at = saves.at,
                .status = LARDER_E_DEADLINE,
            };
        }
    }
    return LARDER_OK;
}

/* Room for the shards from this one on that share a lease. */
static larder_status_t rooms_reserve(larder_rooms_t *r, const larder_move_t *m,
                                     uint64_t deadline_ns, uint32_t first,
                                     larder_item_t *items, size_t *lengths)
{
    uint32_t count = (uint32_t)ldr_min64(BATCH, r->count - first);
    larder_lease_t **lease_p = &r->leases[first / BATCH];
    shard_t *shards = &r->shards[first];

    for (uint32_t i = 0; i < count; i++) {
        items[i] = ldr_move_item(r->layout, m, shards[i].at);
        lengths[i] = shard_bytes(r, &shards[i]);
    }
    larder_status_t st =
        larder_reserve(r->space, items, lengths, count,
                       ldr_prefix_left_ms(r->space->lar, deadline_ns), lease_p);
    if (st != LARDER_OK && st != LARDER_E_LIMIT) {
        return st;
    }
    if (*lease_p != NULL) {
        (*lease_p)->silent = true;
    }
    for (uint32_t i = 0; i < count; i++) {
        shards[i].status = st == LARDER_OK ? items[i].status : st;
    }
    return LARDER_OK;
}

static larder_status_t reserve_all(larder_rooms_t *r, const larder_move_t *m)
{
    const larder_t *lar = r->space->lar;
    uint64_t deadline_ns = ldr_deadline(lar, m->timeout_ms);
    size_t most = ldr_min64(BATCH, r->count);
    larder_item_t *items = ldr_alloc(ldr_max64(most, 1) * sizeof(*items));
    size_t *lengths = ldr_alloc(ldr_max64(most, 1) * sizeof(*lengths));
    larder_status_t st =
        items != NULL && lengths != NULL
            ? LARDER_OK
            : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a save");

    for (uint32_t i = 0; i < r->count && st == LARDER_OK; i += BATCH) {
        if (i > 0 && ldr_now_ns(lar->clock) >= deadline_ns) {
            break;
        }
        st = rooms_reserve(r, m, deadline_ns, i, items, lengths);
    }
    ldr_free(items);
    ldr_free(lengths);
    return st;
}

larder_status_t larder_prefix_reserve(larder_space_t *space,
                                      const larder_layout_t *layout,
                                      larder_move_t *move,
                                      larder_rooms_t **rooms_p)
{
    larder_status_t st = ldr_prefix_check(space, layout);

    st = st == LARDER_OK ? ldr_move_check(layout, LARDER_OP_PUT, move) : st;
    if (st == LARDER_OK && rooms_p == NULL) {
        st = ldr_fail(LARDER_E_INVALID, "rooms_p is NULL");
    }
    if (st == LARDER_OK && layout->gpu != NULL) {
        st = ldr_fail(LARDER_E_UNSUPPORTED, "a GPU's memory is saved whole");
    }
    if (st != LARDER_OK) {
        return st;
    }
    larder_rooms_t *r = rooms_new(space, layout, move);
    if (r == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a save");
    }
    st = shards_list(r, move);
    if (st == LARDER_OK) {
        ldr_move_announce(space, move,
                          ldr_deadline(space->lar, move->timeout_ms));
        st = reserve_all(r, move);
    }
    if (st != LARDER_OK) {
        larder_rooms_release(&r);
        return st;
    }
    ldr_move_clear(move);
    move->skipped = r->skipped;
    for (uint32_t i = 0; i < r->count; i++) {
        const shard_t *p = &r->shards[i];

        ldr_move_note(move, p->status, LARDER_CAUSE_NONE, shard_bytes(r, p));
    }
    *rooms_p = r;
    return LARDER_OK;
}

/* ---- filling ---- */

/* Copies the shard that lies in a worker's `from` to its place in `to`. The
 * caller fences, whatever came of it: the room may be another's next. */
static larder_status_t shard_copy(const larder_t *lar, const worker_t *worker,
                                  uint32_t from_count, uint32_t to_count,
                                  uint64_t deadline_ns, uint32_t *crc_p)
{
    ldr_list_t from = ldr_list(worker->from, from_count);
    size_t looked = RUN_MAX; /* bytes since a look at the clock */
    uint32_t crc = 0;

    for (uint32_t i = 0; i < to_count; i++) {
        uint8_t *to = worker->to[i].iov_base;

        for (size_t at = 0; at < worker->to[i].iov_len;) {
            size_t take = ldr_min64(worker->to[i].iov_len - at, RUN_MAX);

            if (looked >= RUN_MAX) {
                if (ldr_now_ns(lar->clock) >= deadline_ns) {
                    return LARDER_E_DEADLINE;
                }
                looked = 0;
            }
            crc = ldr_gather(crc, to + at, &from, take);
            at += take;
            looked += take;
        }
        if (LDR_FAULT(crc_in)) {
            to[0] ^= 1;
        }
    }
    *crc_p = crc;
    return LARDER_OK;
}

/* Shards that share a lease, on their way to their rooms. Threads only read
 * it, except the two counters and what is of their shards: statuses, crcs and
 * keep. */
typedef struct filling {
    const larder_rooms_t *rooms;
    const larder_move_t *move;
    const larder_lease_t *lease;
    uint64_t deadline_ns;
    shard_t *shards;
    uint32_t count;
    uint32_t *crcs;
    uint8_t *keep;
    uint32_t next;   /* shard; atomic */
    uint32_t worker; /* atomic */
} filling_t;

/* Fills the room of item number i of the lease. MISS: its blocks are not there
 * any more. */
static larder_status_t fill_one(const filling_t *f, const worker_t *worker,
                                uint32_t i)
{
    const larder_rooms_t *r = f->rooms;
    const shard_t *p = &f->shards[i];
    ldr_segments_t segments = {.iov = worker->from, .max = r->from_max};
    uint32_t count = 0;
    larder_status_t st =
        ldr_layout_segments(r->layout, p->at, f->move->tables,
                            (ldr_span_t){0, UINT32_MAX}, NULL, &segments);

    if (st != LARDER_OK) {
        return st;
    }
    st = larder_reserve_segments(f->lease, i, worker->to, r->to_max, &count);
    if (st == LARDER_E_STALE) {
        st = LARDER_E_OFFLINE; /* the daemon that had the room is gone */
    }
    if (st == LARDER_OK) {
        st = shard_copy(r->space->lar, worker, segments.count, count,
                        f->deadline_ns, &f->crcs[i]);
        ldr_copy_fence();
    }
    return st;
}

static bool within(const larder_rooms_t *r, const larder_move_t *m,
                   const shard_t *p)
{
    uint32_t tokens = r->layout->chunk_tokens;

    return p->at.chunk >= m->begin / tokens && p->at.chunk < m->end / tokens;
}

/* One thread: whatever is left, shard by shard. */
static void fill_some(void *arg)
{
    filling_t *f = arg;
    uint32_t worker = __atomic_fetch_add(&f->worker, 1, __ATOMIC_RELAXED);
    uint32_t i;

    if (worker >= f->rooms->worker_count) {
        return;
    }
    while ((i = __atomic_fetch_add(&f->next, 1, __ATOMIC_RELAXED)) < f->count) {
        shard_t *p = &f->shards[i];

        if (p->status == LARDER_OK && within(f->rooms, f->move, p)) {
            p->status = fill_one(f, &f->rooms->workers[worker], i);
            f->keep[i] = p->status == LARDER_OK;
        }
    }
}

/* Whether there is enough to copy for several threads. */
static bool shared(const filling_t *f)
{
    size_t bytes = 0;

    for (uint32_t i = 0; i < f->count && bytes < SHARE_MIN; i++) {
        bytes += f->shards[i].status == LARDER_OK
                     ? shard_bytes(f->rooms, &f->shards[i])
                     : 0;
    }
    return bytes >= SHARE_MIN;
}

/* Fills and commits those from this one on that share a lease, or gives them
 * back. */
static void rooms_fill(larder_rooms_t *r, const larder_move_t *m,
                       larder_team_fn team, uint64_t deadline_ns,
                       uint32_t first)
{
    larder_lease_t **lease_p = &r->leases[first / BATCH];
    larder_status_t statuses[BATCH] = {LARDER_OK};
    uint32_t crcs[BATCH];
    uint8_t keep[BATCH] = {0};
    filling_t f = {.rooms = r,
                   .move = m,
                   .lease = *lease_p,
                   .deadline_ns = deadline_ns,
                   .shards = &r->shards[first],
                   .count = (uint32_t)ldr_min64(BATCH, r->count - first),
                   .crcs = crcs,
                   .keep = keep};

    if (*lease_p == NULL) {
        return;
    }
    if (team != NULL && shared(&f)) {
        team(fill_some, &f, 0, 0);
        f.worker = 0;
    }
    fill_some(&f); /* what nobody has taken */
    larder_status_t st =
        larder_commit(lease_p, keep, crcs, statuses,
                      ldr_prefix_left_ms(r->space->lar, deadline_ns));
    for (uint32_t i = 0; i < f.count; i++) {
        if (keep[i] != 0) {
            f.shards[i].status = statuses[i] != LARDER_OK ? statuses[i] : st;
        }
    }
}

/* Puts those for which there was no room, now that the others hold none. */
static larder_status_t put_rest(larder_rooms_t *r, larder_move_t *m,
                                uint64_t deadline_ns)
{
    ldr_batch_t b = {.space = r->space,
                     .layout = r->layout,
                     .move = m,
                     .op = LARDER_OP_PUT,
                     .deadline_ns = deadline_ns};
    larder_status_t st = ldr_batch_begin(&b);

    for (uint32_t i = 0; i < r->count && st == LARDER_OK; i++) {
        const shard_t *p = &r->shards[i];

        if ((p->status == LARDER_E_FULL || p->status == LARDER_E_LIMIT) &&
            within(r, m, p)) {
            st = ldr_batch_add(&b, p->at, (ldr_span_t){0, UINT32_MAX});
            if (st == LARDER_MISS) {
                m->skipped++;
                st = LARDER_OK;
            }
        }
    }
    if (st == LARDER_OK) {
        st = ldr_batch_flush(&b);
    }
    ldr_batch_end(&b);
    return st;
}

static larder_status_t fill_all(larder_rooms_t *r, larder_move_t *m,
                                larder_team_fn team)
{
    uint64_t deadline_ns = ldr_deadline(r->space->lar, m->timeout_ms);
    bool rest = false;

    ldr_move_clear(m);
    m->skipped = r->skipped;
    for (uint32_t i = 0; i < r->count; i += BATCH) {
        rooms_fill(r, m, team, deadline_ns, i);
    }
    for (uint32_t i = 0; i < r->count; i++) {
        const shard_t *p = &r->shards[i];

        if (!within(r, m, p)) {
            continue;
        }
        if (p->status == LARDER_MISS) {
            m->skipped++;
        } else if (p->status == LARDER_E_FULL || p->status == LARDER_E_LIMIT) {
            rest = true;
        } else {
            ldr_move_note(m, p->status, LARDER_CAUSE_NONE, shard_bytes(r, p));
        }
    }
    return rest ? put_rest(r, m, deadline_ns) : LARDER_OK;
}

larder_status_t larder_prefix_fill_by(larder_rooms_t **rooms_p,
                                      larder_move_t *move, larder_team_fn team)
{
    if (rooms_p == NULL || *rooms_p == NULL) {
        return ldr_fail(LARDER_E_INVALID, "the rooms are NULL");
    }
    larder_rooms_t *r = *rooms_p;
    larder_status_t st = ldr_prefix_check(r->space, r->layout);

    st = st == LARDER_OK ? ldr_move_check(r->layout, LARDER_OP_PUT, move) : st;
    if (st == LARDER_OK) {
        st = fill_all(r, move, team);
    }
    larder_rooms_release(rooms_p);
    return st;
}

larder_status_t larder_prefix_fill(larder_rooms_t **rooms_p,
                                   larder_move_t *move)
{
    return larder_prefix_fill_by(rooms_p, move, NULL);
}
