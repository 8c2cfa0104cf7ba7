/*
 * A daemon on the same host, through shared memory.
 *
 * A session is a unix socket, a pair of rings, and the extents of the arena
 * that were handed out to it. Requests travel through the rings; the socket
 * carries extents, their revocation, and the news of the daemon's death. It is
 * read by one thread, the session's watcher.
 *
 * Sending: whoever has send_lock writes into the ring. Receiving: of the
 * threads that wait for replies one leads: it reads the ring and hands each
 * reply to whom it belongs; when it has its own it lets another lead.
 *
 * A reply that nobody waits for any more is late: leases in it are released,
 * reservations given back, by whoever reads it; while such replies are to be
 * expected the watcher looks for them now and then.
 *
 * Life: the handle's connecting thread makes sessions; calls wait for one by
 * their own deadlines. A session is used by reference (shm->lock) by calls and
 * leases. One that died stays in the list of old ones until nobody refers to it
 * and its watcher has ended, and is freed after the next connect, or by close.
 *
 * Extents: mapped twice, for reading and for writing, both without the risk of
 * SIGBUS, since their size is sealed. Users count under map_lock; an extent is
 * unmapped when it has been revoked, or its session is dead, and nobody uses
 * it. Leases are users: their addresses stay good until they are released. To
 * unmap much takes long: the watcher does it, with no lock held, and lives
 * until the last extent is gone.
 *
 * Locks: shm->lock, recv_lock, send_lock, socket_lock and map_lock are each
 * taken with none of the others held.
 */
#pragma once

#include "client/remote.h"
#include "net/ring.h"

#define LDR_SHM_BUCKETS 64u

typedef struct ldr_shm_session ldr_shm_session_t;

/* An extent, as it is mapped here. */
typedef struct ldr_mapping {
    uint32_t extent, generation;
    uint8_t *read, *write;
    size_t bytes;
    uint32_t users;
    larder_gpu_t *gpu;        /* the watcher's: with which it is registered */
    bool registering;         /* with the GPU, just now: by the watcher */
    bool revoked;             /* unmap it and say so, once it has no users */
    struct ldr_mapping *next; /* of its bucket */
} ldr_mapping_t;

/* An EXTENT request under way. It stays in the session's list until its reply
 * comes, also if the caller has given up. If the caller still waits then
 * (awaited), it is done, and the caller frees it; else it is freed at once. */
typedef struct ldr_map_ask {
    uint64_t id;
    uint32_t extent;
    bool awaited, done;
    larder_status_t status;
    struct ldr_map_ask *next;
} ldr_map_ask_t;

struct ldr_shm_session {
    ldr_link_t link; /* first */
    struct ldr_shm *shm;
    ldr_shm_session_t *next_old;
    unsigned refs; /* under shm->lock */
    bool ended;    /* under shm->lock: the watcher's last act */
    bool dead;     /* atomic: nothing more comes or goes */
    bool leave;    /* atomic: the watcher waits for no lease */

    int fd, doorbell, wake_fd;
    pthread_t watcher;
    bool watched;
    uint32_t page_bytes;
    bool strict;
    bool loose;       /* atomic: commits may still be on their way */
    uint64_t next_id; /* atomic */

    void *ring_map;
    ldr_ring_pair_t ring;
    ldr_stream_t rings; /* the pair, as a transport's */

    pthread_mutex_t send_lock;
    struct {
        ldr_end_row_t *rows; /* that found no room in the ring */
        uint32_t count, capacity;
    } unsent[2]; /* RELEASE, COMMIT */

    pthread_mutex_t recv_lock;
    ldr_call_t *waiting;
    bool leads;                       /* somebody reads the ring */
    uint8_t *message;                 /* whoever leads: where it reads to */
    unsigned spin_misses, spin_skips; /* his, too */
    uint64_t heard_ns;                /* atomic: when the last message came */
    bool pinging;                     /* atomic: a ping is under way */
    uint64_t abandoned;    /* replies to come that nobody waits for */
    uint64_t abandoned_ns; /* the first of them that nothing was heard since */

    pthread_mutex_t socket_lock; /* for sending; and fd is closed under it */
    pthread_mutex_t map_lock;
    pthread_cond_t mapped;
    ldr_mapping_t *maps[LDR_SHM_BUCKETS];
    ldr_map_ask_t *asks; /* at most one of an extent */
    bool sweep;          /* an extent may be ready to go */
    bool sweeping; /* one goes: nothing is asked for until REVOKED is sent */
};

typedef struct ldr_shm {
    ldr_remote_t *remote;
    pthread_mutex_t lock;
    pthread_cond_t changed;     /* connected, or failed to */
    ldr_shm_session_t *session; /* NULL: none, or it died */
    ldr_shm_session_t *old;
    bool connecting;
    larder_gpu_t *gpu; /* atomic, set once: registers what is mapped */
    pthread_t warmer;  /* maps what is there already, for the GPU */
    bool warms, warm_stop;
    uint64_t connect_ns;    /* since when */
    uint64_t failures;      /* counted, for who waited: the last one is */
    larder_status_t failed; /* this */
    char failed_text[512];
} ldr_shm_t;

static inline ldr_shm_session_t *ldr_shm_of(ldr_link_t *link)
{
    return (ldr_shm_session_t *)link;
}

static inline uint64_t ldr_shm_now(const ldr_shm_session_t *s)
{
    return ldr_now_ns(s->link.remote->clock);
}

static inline bool ldr_shm_dead(const ldr_shm_session_t *s)
{
    return __atomic_load_n(&s->dead, __ATOMIC_ACQUIRE);
}

/* LARDER_OK, or why whoever waits until last_ns stops now. */
static inline larder_status_t ldr_shm_stopped(const ldr_shm_session_t *s,
                                              const ldr_stop_t *stop,
                                              uint64_t last_ns)
{
    const ldr_stop_t last = {stop->canceled, last_ns};

    return ldr_shm_dead(s) ? LARDER_E_OFFLINE
                           : ldr_stopped(s->link.remote->clock, &last);
}

/* ---- sessions (shm.c) ---- */

extern const ldr_links_t ldr_links_shm;

/* It cannot be used any more: wakes everybody. From any thread, no locks. */
void ldr_shm_die(ldr_shm_session_t *s);
/* Wakes the watcher. */
void ldr_shm_ring(ldr_shm_session_t *s);
void ldr_shm_ref(ldr_shm_session_t *s);
void ldr_shm_unref(ldr_shm_session_t *s);

/* ---- rings (shm_ring.c) ---- */

/* Sends the request in the call's buffer; it then waits for its reply. */
larder_status_t ldr_shm_send(ldr_shm_session_t *s, ldr_call_t *call,
                             const ldr_stop_t *stop);
/* Waits for the reply. E_...: it gave up, nothing will touch the buffer. */
larder_status_t ldr_shm_wait(ldr_shm_session_t *s, ldr_call_t *call,
                             const ldr_stop_t *stop);
/* Gives up waiting. */
void ldr_shm_abandon(ldr_shm_session_t *s, ldr_call_t *call);
larder_status_t ldr_shm_call(ldr_link_t *link, ldr_call_t *call,
                             const ldr_stop_t *stop);
/* RELEASE or COMMIT without a reply; what finds no room goes later. */
void ldr_shm_ends(ldr_shm_session_t *s, uint16_t opcode,
                  const ldr_end_row_t *rows, uint32_t count);
/* The watcher's: reads late replies, if nobody else reads. */
void ldr_shm_look(ldr_shm_session_t *s);
/* Wakes everybody who waits for replies. */
void ldr_shm_wake_all(ldr_shm_session_t *s);

/* ---- extents (shm_map.c) ---- */

/* The watcher's: the reply to an EXTENT came (fd < 0: it failed). */
void ldr_map_arrived(ldr_shm_session_t *s, const ldr_frame_t *frame,
                     const uint8_t *body, int fd);
void ldr_map_revoke(ldr_shm_session_t *s, const ldr_extent_msg_t *m);
/* What was asked for and never answered. */
void ldr_asks_free(ldr_shm_session_t *s);
/* Called by the watcher. Unmaps revoked extents that have no users (of a dead
 * session all that have none) and wakes the threads that wait for that. True:
 * some are left. */
bool ldr_map_sweep(ldr_shm_session_t *s);
/* The watcher's, of a dead session: tells the daemon that nothing is left. */
void ldr_map_left(ldr_shm_session_t *s);
/* Maps every extent that the tenant has now, for a GPU that is to reach them.
 * Ends early, with no harm, if it is told to or something fails. */
void ldr_map_warm(ldr_shm_session_t *s, const ldr_stop_t *stop);
/* A frame on the socket; 0 or a negative errno. Of a dead session only REVOKED:
 * nothing may be asked for behind the last one. */
int ldr_shm_socket_send(ldr_shm_session_t *s, uint16_t opcode, uint16_t flags,
                        uint64_t id, const void *body, size_t bytes,
                        uint64_t deadline_ns);

/* A shard's segments, checked and mapped: each is a user of its mapping. */
typedef struct ldr_piece_map {
    ldr_mapping_t *map;
    size_t offset, bytes;
} ldr_piece_map_t;

/* Maps row's segments (at: the first of them) into pieces, which has room for
 * as many. Gives none if one cannot be had. E_CORRUPT: they cannot be. */
larder_status_t ldr_map_segs(ldr_shm_session_t *s, const ldr_result_row_t *row,
                             const uint8_t *at, const ldr_stop_t *stop,
                             ldr_piece_map_t *pieces);
void ldr_unmap_segs(ldr_shm_session_t *s, const ldr_piece_map_t *pieces,
                    uint32_t count);
/* Waits until none of them is being registered with a GPU, no longer than
 * that. */
void ldr_map_await_gpu(ldr_shm_session_t *s, const ldr_piece_map_t *pieces,
                       uint32_t count, const ldr_stop_t *stop,
                       uint64_t until_ns);
