/* The data path through shared memory: its leases and reservations. */
#pragma once

#include "client/shm.h"
#include "client/transfer.h"

static inline ldr_shm_session_t *ldr_transfer_shm(ldr_transfer_t *t)
{
    return ldr_shm_of(t->talk.link);
}

/* ---- segments (shm_path.c) ---- */

/* The checksum of bytes in place, or E_DEADLINE and the like. */
larder_status_t ldr_pieces_crc(const ldr_clock_t *clock,
                               const ldr_piece_map_t *pieces, uint32_t count,
                               const ldr_stop_t *stop, uint32_t *crc_p);
/* Zeros behind a shard's bytes, up to the end of their block. */
void ldr_pieces_pad(const ldr_piece_map_t *p);

/* ---- what stays (shm_lease.c, shm_room.c) ---- */

/* One shard that is held. */
typedef struct ldr_held_shard {
    uint64_t lease;
    uint32_t piece, piece_count;
    bool checked;
} ldr_held_shard_t;

/* What a lease holds; rooms of a reservation have their numbers themselves. */
typedef struct ldr_held {
    ldr_shm_session_t *session; /* a reference */
    bool staged;                /* it has a STAGE's hold, of this number */
    uint64_t stage;
    ldr_held_shard_t *shards;
    uint32_t count;
    ldr_piece_map_t *pieces;
    uint32_t piece_count, piece_capacity;
} ldr_held_t;

/* With a reference to the session, for so many shards; NULL: no memory. */
ldr_held_t *ldr_held_new(ldr_shm_session_t *s, uint32_t shards);
/* What it holds has been given back. */
void ldr_held_free(ldr_held_t *h);
/* Maps a row's segments behind those that are there; *piece_p: the first. */
larder_status_t ldr_held_map(ldr_held_t *h, const ldr_result_row_t *row,
                             const uint8_t *segs, const ldr_stop_t *stop,
                             uint32_t *piece_p);

larder_status_t ldr_shm_keep(ldr_talk_t *v, larder_lease_t *lease,
                             uint64_t number);
larder_status_t ldr_shm_reserve(larder_space_t *space, larder_item_t *items,
                                size_t count, uint64_t deadline_ns,
                                larder_lease_t *lease);
larder_status_t ldr_shm_commit(larder_lease_t *lease, const uint8_t *keep,
                               const uint32_t *crcs, uint64_t deadline_ns);
