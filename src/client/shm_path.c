/* Transfers through shared memory: a shard's bytes lie in mapped segments. */
#include "client/shm_path.h"

#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/fault.h"
#include "base/gather.h"

#define RUN_MAX                                                                \
    ((size_t)1 << 20) /* bytes copied between looks at the clock               \
                       */
#define BLOCK 4096u   /* the disk gets whole ones */

#define FIRST_BYTES ((uint64_t)512 << 10)
#define LEASE_BYTES (64u << 20) /* of buffers, in one LEASE */
#define SAVE_BYTES (8u << 20)   /* in one RESERVE */
/* After so many the daemon is told what is done with: meanwhile more is copied,
 * whereas the next transfer would have to wait until it has heard it all. */
#define END_BYTES (512u << 10)
/* With a GPU: each request is a copy of its own, which has to begin and end. */
#define GPU_LEASE_BYTES ((uint64_t)2 << 30)
#define GPU_SAVE_BYTES ((uint64_t)512 << 20)

/* ---- requests ---- */

/* While the first reply is waited for nothing is copied, and the daemon takes
 * as long as it has items: so that request is small, and the next, which is
 * answered while it is copied, has the rest. A GPU gets all of them in one
 * list; and a daemon that has to share this CPU answers nothing while something
 * is copied. */
static void shm_begin(ldr_transfer_t *t)
{
    const ldr_shm_session_t *s = ldr_transfer_shm(t);
    bool gpu = t->op != NULL && t->op->gpu != NULL;
    bool load = t->op != NULL && t->op->kind == LARDER_OP_GET;
    bool beside = ldr_ring_beside(&s->ring.in);

    t->ahead = 1;
    t->most_bytes = load ? (gpu ? GPU_LEASE_BYTES : LEASE_BYTES)
                         : (gpu ? GPU_SAVE_BYTES : SAVE_BYTES);
    t->first_bytes = gpu || beside ? t->most_bytes : FIRST_BYTES;
    t->answers = s->strict;
    t->end_bytes = beside || (s->strict && !load) ? UINT64_MAX : END_BYTES;
}

static larder_status_t shm_send(ldr_transfer_t *t, ldr_ask_t *q)
{
    return ldr_shm_send(ldr_transfer_shm(t), &q->call, &t->talk.stop);
}

static larder_status_t shm_recv(ldr_transfer_t *t, ldr_ask_t **q_p)
{
    ldr_ask_t *q = t->ask;

    while (!q->sent) {
        q++; /* one is, and only one */
    }
    *q_p = q;
    return ldr_shm_wait(ldr_transfer_shm(t), &q->call, &t->talk.stop);
}

static void shm_done(ldr_transfer_t *t, ldr_ask_t *q)
{
    (void)t;
    (void)q;
}

static void shm_forget(ldr_transfer_t *t, ldr_ask_t *q)
{
    ldr_shm_abandon(ldr_transfer_shm(t), &q->call);
}

static void shm_breaks(ldr_link_t *link)
{
    ldr_shm_die(ldr_shm_of(link));
}

static larder_status_t shm_end(ldr_link_t *link, uint16_t opcode,
                               const ldr_end_row_t *rows, uint32_t count)
{
    ldr_shm_ends(ldr_shm_of(link), opcode, rows, count);
    return ldr_shm_dead(ldr_shm_of(link)) ? LARDER_E_OFFLINE : LARDER_OK;
}

/* ---- bytes ---- */

larder_status_t ldr_pieces_crc(const ldr_clock_t *clock,
                               const ldr_piece_map_t *pieces, uint32_t count,
                               const ldr_stop_t *stop, uint32_t *crc_p)
{
    uint32_t crc = 0;

    for (uint32_t i = 0; i < count; i++) {
        for (size_t at = 0; at < pieces[i].bytes;) {
            size_t take = ldr_min64(pieces[i].bytes - at, RUN_MAX);
            larder_status_t st = ldr_stopped(clock, stop);

            if (st != LARDER_OK) {
                return st;
            }
            crc = ldr_crc32c(crc, pieces[i].map->read + pieces[i].offset + at,
                             take);
            at += take;
        }
    }
    *crc_p = crc;
    return LARDER_OK;
}

void ldr_pieces_pad(const ldr_piece_map_t *p)
{
    /* What the disk gets beyond the payload must not be somebody's. Pages are
     * whole blocks, so this is still the shard's own. */
    memset(p->map->write + p->offset + p->bytes, 0,
           ldr_min64((BLOCK - p->bytes % BLOCK) % BLOCK,
                     p->map->bytes - p->offset - p->bytes));
}

static larder_status_t pieces_out(ldr_transfer_t *t, const larder_item_t *item,
                                  const ldr_piece_map_t *pieces, uint32_t count,
                                  bool check, uint32_t *crc_p)
{
    ldr_list_t to = ldr_list(item->iov, item->iov_count);
    uint32_t crc = 0;

    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *from = pieces[i].map->read + pieces[i].offset;

        for (size_t at = 0, take; at < pieces[i].bytes; at += take) {
            larder_status_t st = ldr_talk_stopped(&t->talk);

            if (st != LARDER_OK) {
                return st;
            }
            take = ldr_min64(pieces[i].bytes - at, RUN_MAX);
            crc = ldr_scatter(crc, &to, from + at, take, check);
        }
    }
    *crc_p = crc;
    /* Of a daemon that is gone nobody knows what it has become. */
    return ldr_shm_dead(ldr_transfer_shm(t)) && !check ? LARDER_E_OFFLINE
                                                       : LARDER_OK;
}

static larder_status_t shm_copy_out(ldr_transfer_t *t, ldr_ask_t *q,
                                    const larder_item_t *item,
                                    const ldr_result_row_t *row,
                                    const uint8_t *segs, bool check,
                                    uint32_t *crc_p)
{
    ldr_piece_map_t pieces[LDR_SHARD_SEGS];
    ldr_shm_session_t *s = ldr_transfer_shm(t);
    larder_status_t st = ldr_map_segs(s, row, segs, &t->talk.stop, pieces);

    (void)q;
    if (st != LARDER_OK) {
        return st;
    }
    if (LDR_FAULT(copy_out)) {
        pieces[0].map->write[pieces[0].offset + pieces[0].bytes / 2] ^= 4;
    }
    if (LDR_FAULT(shm_die)) {
        ldr_shm_die(s);
    }
    st = pieces_out(t, item, pieces, row->seg_count, check, crc_p);
    ldr_copy_fence(); /* whatever came of it */
    ldr_unmap_segs(s, pieces, row->seg_count);
    return st;
}

static larder_status_t pieces_in(ldr_transfer_t *t, const larder_item_t *item,
                                 const ldr_piece_map_t *pieces, uint32_t count,
                                 uint32_t *crc_p)
{
    ldr_list_t from = ldr_list(item->iov, item->iov_count);
    uint32_t crc = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint8_t *to = pieces[i].map->write + pieces[i].offset;

        for (size_t at = 0, take; at < pieces[i].bytes; at += take) {
            larder_status_t st = ldr_talk_stopped(&t->talk);

            if (st == LARDER_OK && ldr_shm_dead(ldr_transfer_shm(t))) {
                st = LARDER_E_OFFLINE;
            }
            if (st != LARDER_OK) {
                return st;
            }
            take = ldr_min64(pieces[i].bytes - at, RUN_MAX);
            crc = ldr_gather(crc, to + at, &from, take);
        }
        if (LDR_FAULT(crc_in)) {
            to[0] ^= 1;
        }
        ldr_pieces_pad(&pieces[i]);
    }
    *crc_p = crc;
    return LARDER_OK;
}

static larder_status_t shm_copy_in(ldr_transfer_t *t, const larder_item_t *item,
                                   const ldr_result_row_t *row,
                                   const uint8_t *segs, uint32_t *crc_p)
{
    ldr_piece_map_t pieces[LDR_SHARD_SEGS];
    ldr_shm_session_t *s = ldr_transfer_shm(t);
    larder_status_t st = ldr_map_segs(s, row, segs, &t->talk.stop, pieces);

    if (st != LARDER_OK) {
        return st;
    }
    st = pieces_in(t, item, pieces, row->seg_count, crc_p);
    ldr_copy_fence(); /* whatever came of it: the room may be another's next */
    ldr_unmap_segs(s, pieces, row->seg_count);
    if (LDR_FAULT(shm_die)) {
        ldr_shm_die(s);
    }
    return st;
}

static larder_status_t shm_sum(ldr_transfer_t *t, const ldr_result_row_t *row,
                               const uint8_t *segs, uint32_t *crc_p)
{
    ldr_piece_map_t pieces[LDR_SHARD_SEGS];
    ldr_shm_session_t *s = ldr_transfer_shm(t);
    larder_status_t st = ldr_map_segs(s, row, segs, &t->talk.stop, pieces);

    if (st == LARDER_OK) {
        st = ldr_pieces_crc(t->talk.remote->clock, pieces, row->seg_count,
                            &t->talk.stop, crc_p);
        ldr_unmap_segs(s, pieces, row->seg_count);
    }
    return st;
}

const ldr_data_path_t ldr_data_path_shm = {
    .links = &ldr_links_shm,
    .get = LDR_OP_LEASE,
    .put = LDR_OP_RESERVE,
    .begin = shm_begin,
    .send = shm_send,
    .recv = shm_recv,
    .done = shm_done,
    .forget = shm_forget,
    .breaks = shm_breaks,
    .copy_out = shm_copy_out,
    .copy_in = shm_copy_in,
    .sum = shm_sum,
    .end = shm_end,
    .keep = ldr_shm_keep,
    .leasing = &ldr_leases_shm,
};
