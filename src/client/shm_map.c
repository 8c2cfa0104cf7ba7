/*
 * Extents of the arena, as they are mapped in this process.
 *
 * map_lock guards the buckets, the asks and the users of a mapping. It is not
 * held while the kernel maps or unmaps, or while a GPU registers memory.
 *
 * Invariants
 *  1. Of a generation of an extent there is one mapping at most, and one ask.
 *  2. A mapping with users stays mapped, also when it was revoked or the
 *     session is dead. The watcher unmaps it after the last user.
 *  3. REVOKED is sent only after munmap(): until then the daemon keeps the
 *     memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"
#include "client/shm.h"
#include "gpu/gpu.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HUGE_BYTES ((size_t)2 << 20)

/* ---- the table, with map_lock ---- */

static ldr_mapping_t **mapping_bucket(ldr_shm_session_t *s, uint32_t extent)
{
    return &s->maps[extent % LDR_SHM_BUCKETS];
}

static ldr_mapping_t *mapping_find(ldr_shm_session_t *s, uint32_t extent,
                                   uint32_t generation)
{
    ldr_mapping_t *m = *mapping_bucket(s, extent);

    while (m != NULL && (m->extent != extent || m->generation != generation)) {
        m = m->next;
    }
    return m;
}

static void unmap(ldr_mapping_t *map)
{
    if (map->gpu != NULL) {
        ldr_gpu_unregister(map->gpu, map->write, map->bytes);
    }
    if (map->read != NULL) {
        munmap(map->read, map->bytes);
    }
    if (map->write != NULL) {
        munmap(map->write, map->bytes);
    }
    ldr_free(map);
}

/* ---- what was asked for, with map_lock ---- */

static bool is_asked(const ldr_shm_session_t *s, uint32_t extent)
{
    const ldr_map_ask_t *ask = s->asks;

    while (ask != NULL && ask->extent != extent) {
        ask = ask->next;
    }
    return ask != NULL;
}

/* Takes it out of the list, and lets others ask. NULL: there is none. */
static ldr_map_ask_t *ask_take(ldr_shm_session_t *s, uint64_t id)
{
    ldr_map_ask_t **link = &s->asks;

    while (*link != NULL && (*link)->id != id) {
        link = &(*link)->next;
    }
    ldr_map_ask_t *ask = *link;
    if (ask != NULL) {
        *link = ask->next;
        pthread_cond_broadcast(&s->mapped);
    }
    return ask;
}

void ldr_asks_free(ldr_shm_session_t *s)
{
    while (s->asks != NULL) {
        ldr_free(ask_take(s, s->asks->id));
    }
}

/* ---- mapping ---- */

/* Maps on a boundary of huge pages, so that there may be some. */
static uint8_t *map_aligned(int fd, size_t bytes, int protection)
{
    size_t all = bytes + HUGE_BYTES;
    uint8_t *space = mmap(NULL, all, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (space == MAP_FAILED) {
        return MAP_FAILED;
    }
    size_t head = (HUGE_BYTES - (uintptr_t)space % HUGE_BYTES) % HUGE_BYTES;
    uint8_t *at =
        mmap(space + head, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED) {
        munmap(space, all);
        return MAP_FAILED;
    }
    if (head > 0) {
        munmap(space, head);
    }
    munmap(at + bytes, all - head - bytes);
    return at;
}

static uint8_t *map_one(int fd, size_t bytes, size_t ready, bool write)
{
    uint8_t *at =
        map_aligned(fd, bytes, write ? PROT_READ | PROT_WRITE : PROT_READ);

    if (at == MAP_FAILED) {
        return NULL;
    }
    /* A child must not have what it cannot give back; nor a core dump. */
    madvise(at, bytes, MADV_DONTFORK);
    madvise(at, bytes, MADV_DONTDUMP);
    madvise(at, bytes, MADV_HUGEPAGE);
    /* Page tables only: the pages are there. What fails here is made up for
     * at the first touch. */
    if (ready > 0) {
        madvise(at, ready, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    }
    return at;
}

/* Maps what the daemon handed out, after a look at whether it can be trusted
 * never to shrink. NULL: with the error text. */
static ldr_mapping_t *map_extent(const ldr_extent_msg_t *m, int fd, bool bare)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    if (m->bytes == 0 || m->bytes > SIZE_MAX / 2 || m->bytes % 4096 != 0 ||
        fstat(fd, &st) != 0 || (uint64_t)st.st_size < m->bytes || seals < 0 ||
        (seals & F_SEAL_SHRINK) == 0) {
        ldr_fail(LARDER_E_CORRUPT,
                 "extent %u of the daemon is not as large as it says, or not "
                 "sealed",
                 m->extent);
        return NULL;
    }
    ldr_mapping_t *map = ldr_alloc(sizeof(*map));
    if (map == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a mapping");
        return NULL;
    }
    map->extent = m->extent;
    map->generation = m->generation;
    map->bytes = m->bytes;
    size_t ready = bare ? 0 : m->ready_bytes;
    map->read = map_one(fd, map->bytes, ready, false);
    map->write = map_one(fd, map->bytes, ready, true);
    if (map->read == NULL || map->write == NULL || LDR_FAULT(extent_map)) {
        ldr_fail(LARDER_E_NO_MEMORY,
                 "cannot map %zu bytes of the daemon's memory: %s", map->bytes,
                 strerror(errno));
        unmap(map);
        return NULL;
    }
    return map;
}

/* Nobody uses it: the watcher unmaps it, if it is to go. With map_lock. */
static void map_idle(ldr_shm_session_t *s, const ldr_mapping_t *map)
{
    if (map->revoked || ldr_shm_dead(s)) {
        s->sweep = true;
        ldr_shm_ring(s);
    }
}

/* ---- the socket ---- */

int ldr_shm_socket_send(ldr_shm_session_t *s, uint16_t opcode, uint16_t flags,
                        uint64_t id, const void *body, size_t bytes,
                        uint64_t deadline_ns)
{
    uint8_t at[LDR_FRAME_BYTES + LDR_EXTENT_MSG_BYTES];
    ldr_frame_t frame = {
        .opcode = opcode,
        .flags = flags,
        .id = id,
        .epoch = s->link.epoch,
        .body = (uint32_t)bytes,
        .arg = ldr_left_ms(s->link.remote->clock, deadline_ns),
    };
    int error;

    memcpy(at + LDR_FRAME_BYTES, body, bytes);
    ldr_frame_put(at, &frame, true);
    do {
        ldr_mutex_lock(&s->socket_lock);
        bool late = ldr_shm_dead(s) && opcode != LDR_OP_REVOKED;
        error = s->fd < 0 || late
                    ? -EPIPE
                    : ldr_send_fds(s->fd, at, LDR_FRAME_BYTES + bytes, NULL, 0);
        int ready = 1;
        if (error == -EAGAIN) {
            ready =
                ldr_poll(s->fd, POLLOUT,
                         ldr_min64(deadline_ns, ldr_shm_now(s) + LDR_LOOK_NS));
        }
        ldr_mutex_unlock(&s->socket_lock);
        if (ready < 0 || (error == -EAGAIN && ldr_shm_now(s) >= deadline_ns)) {
            break;
        }
    } while (error == -EAGAIN);
    return error;
}

/* Says that the extent is unmapped (UINT32_MAX: that all are). */
static int send_revoked(ldr_shm_session_t *s, const ldr_extent_msg_t *m)
{
    uint8_t body[LDR_EXTENT_MSG_BYTES];
    size_t bytes = ldr_put_extent(body, m);

    return ldr_shm_socket_send(
        s, LDR_OP_REVOKED, LDR_FRAME_SILENT,
        __atomic_add_fetch(&s->next_id, 1, __ATOMIC_RELAXED), body, bytes,
        ldr_shm_now(s) + LDR_LOOK_NS);
}

/* ---- extents that come ---- */

/* The reply to an ask: maps what came with it, which may be mapped already.
 * What is to be used is entered into the table. */
static larder_status_t take_extent(ldr_shm_session_t *s,
                                   const ldr_extent_msg_t *m, int fd,
                                   larder_gpu_t *gpu,
                                   ldr_mapping_t **register_p)
{
    /* Registering it with a GPU makes the page tables too; and who checks
     * nothing that is staged (verify=get) stages for others. */
    bool bare = gpu != NULL || s->link.remote->options.verify == LDR_VERIFY_GET;
    ldr_mapping_t *map = fd >= 0 ? map_extent(m, fd, bare) : NULL;
    larder_status_t st = map != NULL ? LARDER_OK : LARDER_E_NO_MEMORY;

    ldr_mutex_lock(&s->map_lock);
    ldr_mapping_t *there = mapping_find(s, m->extent, m->generation);
    ldr_mapping_t *with_gpu = there; /* it may be older than the GPU */
    if (map != NULL && there == NULL && !ldr_shm_dead(s)) {
        map->next = *mapping_bucket(s, map->extent);
        *mapping_bucket(s, map->extent) = with_gpu = map;
        map = NULL;
    }
    if (gpu != NULL && with_gpu != NULL && with_gpu->gpu == NULL) {
        with_gpu->gpu = gpu;
        with_gpu->registering = true;
        with_gpu->users++; /* nobody unmaps it meanwhile */
        *register_p = with_gpu;
    }
    ldr_mutex_unlock(&s->map_lock);
    if (map != NULL) {
        unmap(map); /* it is there already, or it is too late */
    }
    /* The daemon takes it for mapped. Nobody has asked for it again yet, so
     * this is not taken for the end of a later mapping. */
    if (st != LARDER_OK && there == NULL && send_revoked(s, m) < 0) {
        ldr_shm_die(s);
    }
    return st;
}

void ldr_map_arrived(ldr_shm_session_t *s, const ldr_frame_t *frame,
                     const uint8_t *body, int fd)
{
    larder_gpu_t *gpu = __atomic_load_n(&s->shm->gpu, __ATOMIC_ACQUIRE);
    larder_status_t st = ldr_frame_status(frame);
    ldr_mapping_t *map = NULL; /* is to be registered */
    ldr_extent_msg_t m;

    if (st == LARDER_OK) {
        st = ldr_get_extent(body, frame->body, &m)
                 ? take_extent(s, &m, fd, gpu, &map)
                 : LARDER_E_NO_MEMORY;
    }
    if (fd >= 0) {
        close(fd);
    }
    ldr_mutex_lock(&s->map_lock);
    ldr_map_ask_t *ask = ask_take(s, frame->id);
    if (ask != NULL && ask->awaited) {
        ask->done = true;
        ask->status = st;
    } else {
        ldr_free(ask);
    }
    ldr_mutex_unlock(&s->map_lock);
    if (map != NULL) { /* it can be used already */
        ldr_gpu_register(gpu, map->write, map->bytes);
        ldr_mutex_lock(&s->map_lock);
        map->registering = false;
        pthread_cond_broadcast(&s->mapped);
        if (--map->users == 0) {
            map_idle(s, map);
        }
        ldr_mutex_unlock(&s->map_lock);
    }
}

/* ---- users ---- */

/* With map_lock, which it drops meanwhile. */
static void wait_mapped(ldr_shm_session_t *s, uint64_t last_ns)
{
    ldr_cond_wait_until(&s->mapped, &s->map_lock,
                        ldr_min64(last_ns, ldr_shm_now(s) + LDR_LOOK_NS));
}

/* Asks for the extent and waits until it is there. With map_lock, which it
 * drops meanwhile. One at a time asks for an extent: the daemon answers both,
 * and a REVOKED between the two replies would be the end, for the daemon, of
 * what the second one maps. The same goes for one that is being sent. */
static larder_status_t extent_fetch(ldr_shm_session_t *s, uint32_t extent,
                                    uint32_t generation, const ldr_stop_t *stop)
{
    ldr_extent_msg_t m = {.extent = extent, .generation = generation};
    uint8_t body[LDR_EXTENT_MSG_BYTES];
    uint64_t last_ns = ldr_last_ns(stop);
    larder_status_t st = LARDER_OK;

    while ((s->sweeping || is_asked(s, extent)) && st == LARDER_OK) {
        wait_mapped(s, last_ns);
        st = ldr_shm_stopped(s, stop, last_ns);
    }
    if (st != LARDER_OK || mapping_find(s, extent, generation) != NULL) {
        return st;
    }
    ldr_map_ask_t *ask = ldr_alloc(sizeof(*ask));
    if (ask == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a mapping");
    }
    uint64_t id = __atomic_add_fetch(&s->next_id, 1, __ATOMIC_RELAXED);
    *ask = (ldr_map_ask_t){
        .id = id, .extent = extent, .awaited = true, .next = s->asks};
    s->asks = ask;
    ldr_mutex_unlock(&s->map_lock);
    int error =
        ldr_shm_socket_send(s, LDR_OP_EXTENT, 0, id, body,
                            ldr_put_extent(body, &m), stop->deadline_ns);
    ldr_mutex_lock(&s->map_lock);
    if (error < 0) {
        ask_take(s, id);
        ldr_free(ask);
        return error == -EAGAIN ? LARDER_E_DEADLINE : LARDER_E_OFFLINE;
    }
    while (!ask->done && st == LARDER_OK) {
        st = ldr_shm_stopped(s, stop, last_ns);
        if (st == LARDER_OK) {
            wait_mapped(s, last_ns);
        }
    }
    ask->awaited = false;
    if (ask->done) { /* else the reply finds it */
        st = ask->status;
        ldr_free(ask);
    }
    return st;
}

void ldr_map_warm(ldr_shm_session_t *s, const ldr_stop_t *stop)
{
    larder_status_t st = LARDER_OK;

    for (uint32_t i = 0; !ldr_shm_dead(s) && !s->strict &&
                         (st == LARDER_OK || st == LARDER_E_STALE);
         i++) {
        ldr_mutex_lock(&s->map_lock);
        st = extent_fetch(s, i, LDR_EXTENT_NOW, stop);
        ldr_mutex_unlock(&s->map_lock);
    }
}

/* One more user of the extent, mapping it if it is not yet. With map_lock,
 * which it may drop meanwhile. */
static larder_status_t mapping_take(ldr_shm_session_t *s, const ldr_seg_t *seg,
                                    const ldr_stop_t *stop,
                                    ldr_mapping_t **map_p)
{
    larder_status_t st = LARDER_OK;
    ldr_mapping_t *map = mapping_find(s, seg->extent, seg->generation);

    if (map == NULL && !ldr_shm_dead(s)) {
        st = extent_fetch(s, seg->extent, seg->generation, stop);
        map = mapping_find(s, seg->extent, seg->generation);
    }
    if (map == NULL) { /* dead, or revoked as soon as it came */
        return st == LARDER_OK ? LARDER_E_OFFLINE : st;
    }
    map->users++;
    *map_p = map;
    return LARDER_OK;
}

void ldr_map_revoke(ldr_shm_session_t *s, const ldr_extent_msg_t *m)
{
    ldr_mutex_lock(&s->map_lock);
    ldr_mapping_t *map = mapping_find(s, m->extent, m->generation);
    /* Replies and REVOKEs come in their order, so without a mapping REVOKED was
     * sent already, when it was swept or could not be mapped. */
    if (map != NULL) {
        map->revoked = true;
        s->sweep |= map->users == 0; /* right after this */
    }
    ldr_mutex_unlock(&s->map_lock);
}

/* Takes out what is to go and nobody uses. With map_lock. */
static ldr_mapping_t *take_idle(ldr_shm_session_t *s, bool dead, bool *left_p)
{
    ldr_mapping_t *idle = NULL;

    for (unsigned i = 0; i < LDR_SHM_BUCKETS; i++) {
        for (ldr_mapping_t **link = &s->maps[i]; *link != NULL;) {
            ldr_mapping_t *m = *link;

            if (m->users > 0 || !(dead || m->revoked)) {
                *left_p = true;
                link = &m->next;
            } else {
                *link = m->next;
                m->next = idle;
                idle = m;
            }
        }
    }
    return idle;
}

bool ldr_map_sweep(ldr_shm_session_t *s)
{
    bool dead = ldr_shm_dead(s), left = false;
    ldr_mapping_t *idle = NULL, *next;

    ldr_mutex_lock(&s->map_lock);
    if (s->sweep || dead) {
        idle = take_idle(s, dead, &left);
    }
    s->sweep = false;
    s->sweeping = idle != NULL;
    if (dead) {
        pthread_cond_broadcast(&s->mapped);
    }
    ldr_mutex_unlock(&s->map_lock);
    for (ldr_mapping_t *map = idle; map != NULL; map = next) {
        ldr_extent_msg_t m = {.extent = map->extent,
                              .generation = map->generation};

        next = map->next;
        unmap(map);
        if (!dead && send_revoked(s, &m) < 0) {
            ldr_shm_die(s); /* it would never hear of it */
        }
    }
    if (idle != NULL) {
        ldr_mutex_lock(&s->map_lock);
        s->sweeping = false;
        pthread_cond_broadcast(&s->mapped);
        ldr_mutex_unlock(&s->map_lock);
    }
    return left;
}

void ldr_map_left(ldr_shm_session_t *s)
{
    ldr_extent_msg_t all = {.extent = UINT32_MAX};

    (void)send_revoked(s, &all); /* else it holds it while we live */
}

/* ---- segments ---- */

/* With map_lock. */
static void give(ldr_shm_session_t *s, const ldr_piece_map_t *pieces,
                 uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (--pieces[i].map->users == 0) {
            map_idle(s, pieces[i].map);
        }
    }
}

larder_status_t ldr_map_segs(ldr_shm_session_t *s, const ldr_result_row_t *row,
                             const uint8_t *at, const ldr_stop_t *stop,
                             ldr_piece_map_t *pieces)
{
    uint64_t bytes = 0;
    larder_status_t st = LARDER_OK;
    uint32_t n = 0;

    ldr_mutex_lock(&s->map_lock);
    while (n < row->seg_count && st == LARDER_OK) {
        ldr_seg_t seg;
        ldr_piece_map_t *p = &pieces[n];

        ldr_get_seg(at + (size_t)n * LDR_SEG_BYTES, &seg);
        st = mapping_take(s, &seg, stop, &p->map);
        if (st != LARDER_OK) {
            break;
        }
        n++;
        if (LDR_FAULT(seg_short)) {
            seg.bytes -= seg.bytes / 2;
        }
        if (LDR_FAULT(seg_outside)) { /* the first of them is */
            seg.page = (uint32_t)(p->map->bytes / s->page_bytes) - 1;
        }
        p->offset = (size_t)seg.page * s->page_bytes;
        p->bytes = seg.bytes;
        bytes += seg.bytes;
        if (seg.bytes == 0 || p->offset > p->map->bytes ||
            seg.bytes > p->map->bytes - p->offset) {
            st = LARDER_E_CORRUPT;
        }
    }
    if (st == LARDER_OK && bytes != row->length) {
        st = LARDER_E_CORRUPT;
    }
    if (st != LARDER_OK) {
        give(s, pieces, n);
    }
    ldr_mutex_unlock(&s->map_lock);
    if (st == LARDER_E_CORRUPT) {
        ldr_error(&s->link.remote->log,
                  "%s: a segment is outside of its extent: connecting again",
                  s->link.remote->options.address);
        ldr_shm_die(s);
        st = LARDER_E_OFFLINE;
    }
    return st;
}

void ldr_unmap_segs(ldr_shm_session_t *s, const ldr_piece_map_t *pieces,
                    uint32_t count)
{
    ldr_mutex_lock(&s->map_lock);
    give(s, pieces, count);
    ldr_mutex_unlock(&s->map_lock);
}

void ldr_map_await_gpu(ldr_shm_session_t *s, const ldr_piece_map_t *pieces,
                       uint32_t count, const ldr_stop_t *stop,
                       uint64_t until_ns)
{
    uint64_t last_ns = ldr_min64(until_ns, ldr_last_ns(stop));

    ldr_mutex_lock(&s->map_lock);
    for (uint32_t i = 0; i < count; i++) {
        while (pieces[i].map->registering &&
               ldr_shm_stopped(s, stop, last_ns) == LARDER_OK) {
            wait_mapped(s, last_ns);
        }
    }
    ldr_mutex_unlock(&s->map_lock);
}
