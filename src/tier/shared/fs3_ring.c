/*
 * A transfer through a ring: cut into slots of the buffer, several in flight,
 * which come back in any order and may be short.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/iov.h"
#include "base/mem.h"
#include "tier/shared/fs3_int.h"

#define ENTRIES 64
/* One wait is no longer: the library waits by the wall clock, which may jump.
 */
#define WAIT_NS 50000000u

/* ---- opening ---- */

void ldr_fs3_ring_close(ldr_fs3_ring_t *r)
{
    for (int i = 0; i < 2; i++) {
        if (r->rings[i].handle != NULL) {
            r->api->ior_destroy(&r->rings[i]);
        }
    }
    if (r->buffer.base != NULL) {
        r->api->iov_destroy(&r->buffer);
    }
    ldr_free(r);
}

ldr_fs3_ring_t *ldr_fs3_ring_open(const ldr_hf3fs_t *api, const char *mount,
                                  int *error_p)
{
    ldr_fs3_ring_t *r = ldr_alloc(sizeof(*r));
    int error;

    if (r == NULL) {
        *error_p = -ENOMEM;
        return NULL;
    }
    r->api = api;
    error = api->iov_create(&r->buffer, mount, LDR_FS3_SLOT * LDR_FS3_SLOTS,
                            LDR_FS3_SLOT, -1);
    if (error != 0) {
        memset(&r->buffer, 0, sizeof(r->buffer));
    }
    for (int i = 0; i < 2 && error == 0; i++) {
        /* Depth 0: as soon as they are there. */
        error =
            api->ior_create(&r->rings[i], mount, ENTRIES, i == 1, 0, 0, -1, 0);
        if (error != 0) {
            memset(&r->rings[i], 0, sizeof(r->rings[i]));
        }
    }
    if (error != 0) {
        ldr_fs3_ring_close(r);
        *error_p = error < 0 ? error : -error;
        return NULL;
    }
    return r;
}

/* ---- moving ---- */

/* Between a slot and what the transfer's bytes from `at` on lie in. */
static void ring_copy(const ldr_fs3_transfer_t *t, uint64_t at, uint8_t *slot,
                      size_t bytes)
{
    ldr_iov_t pieces = {t->iov, t->count, 0};

    ldr_iov_skip(&pieces, at);
    ldr_iov_copy(&pieces, slot, bytes, !t->writing);
}

static uint8_t *slot_base(const ldr_fs3_ring_t *r, unsigned number)
{
    return r->buffer.base + number * LDR_FS3_SLOT;
}

/* What is left of a slot. */
static int issue(ldr_fs3_ring_t *r, const ldr_fs3_transfer_t *t,
                 unsigned number)
{
    ldr_fs3_slot_t *slot = &r->slots[number];
    int way = !t->writing;
    int index = r->api->prep_io(&r->rings[way], &r->buffer, !t->writing,
                                slot_base(r, number) + slot->done, t->fd,
                                (size_t)(t->offset + slot->at + slot->done),
                                slot->bytes - slot->done,
                                (const void *)(uintptr_t)number);

    if (index < 0) {
        return index;
    }
    r->flying[way]++;
    return 0;
}

/* Fills free slots from *next_p on. -EAGAIN is no error while some fly. */
static int issue_more(ldr_fs3_ring_t *r, const ldr_fs3_transfer_t *t,
                      uint64_t *next_p)
{
    int error = 0;

    for (unsigned i = 0; i < LDR_FS3_SLOTS && *next_p < t->total; i++) {
        ldr_fs3_slot_t *slot = &r->slots[i];

        if (slot->busy) {
            continue;
        }
        *slot = (ldr_fs3_slot_t){
            .busy = true,
            .at = *next_p,
            .bytes = (uint32_t)ldr_min64(LDR_FS3_SLOT, t->total - *next_p)};
        if (t->writing) {
            ring_copy(t, slot->at, slot_base(r, i), slot->bytes);
        }
        error = issue(r, t, i);
        if (error != 0) {
            slot->busy = false;
            break;
        }
        *next_p += slot->bytes;
    }
    return error == -EAGAIN && r->flying[!t->writing] > 0 ? 0 : error;
}

/* What has come back of a slot's I/O. */
static int landed(ldr_fs3_ring_t *r, const ldr_fs3_transfer_t *t,
                  const ldr_hf3fs_cqe_t *cqe)
{
    uintptr_t number = (uintptr_t)cqe->userdata;
    ldr_fs3_slot_t *slot = &r->slots[number % LDR_FS3_SLOTS];

    if (number >= LDR_FS3_SLOTS || !slot->busy ||
        cqe->result > (int64_t)(slot->bytes - slot->done)) {
        return -EIO;
    }
    if (cqe->result <= 0) {
        slot->busy = false;
        return cqe->result < 0 ? (int)cqe->result
               : t->writing    ? -EIO
                               : -ENODATA;
    }
    slot->done += (uint32_t)cqe->result;
    if (slot->done < slot->bytes) {
        int error = issue(r, t, (unsigned)number);

        slot->busy = error == 0;
        return error;
    }
    if (!t->writing) {
        ring_copy(t, slot->at, slot_base(r, (unsigned)number), slot->bytes);
    }
    slot->busy = false;
    return 0;
}

/* Takes in what comes within `ns`; a negative errno, or how many. */
static int ring_reap(ldr_fs3_ring_t *r, int way, uint64_t ns,
                     ldr_hf3fs_cqe_t *cqes)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)ns;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    int n = r->api->wait_for_ios(&r->rings[way], cqes, LDR_FS3_SLOTS,
                                 ns > 0 ? 1 : 0, &until);
    if (n == -ETIMEDOUT || n == -EAGAIN || n == -EINTR) {
        return 0;
    }
    if (n > 0) {
        r->flying[way] -= (unsigned)n <= r->flying[way] ? (unsigned)n : 0;
    }
    return n;
}

int ldr_fs3_ring_move(ldr_fs3_ring_t *r, const ldr_fs3_transfer_t *t)
{
    ldr_hf3fs_cqe_t cqes[LDR_FS3_SLOTS];
    int way = !t->writing, error = 0;
    uint64_t next = 0;

    memset(r->slots, 0, sizeof(r->slots));
    for (;;) {
        if (error == 0) {
            error = issue_more(r, t, &next);
        }
        if (r->flying[way] == 0) {
            return error;
        }
        int submitted = r->api->submit_ios(&r->rings[way]);
        error = error == 0 && submitted < 0 ? submitted : error;
        uint64_t now = ldr_now_ns(t->clock);
        if (now >= t->deadline_ns) {
            return -ETIMEDOUT;
        }
        int n =
            ring_reap(r, way, ldr_min64(WAIT_NS, t->deadline_ns - now), cqes);
        if (n < 0) {
            return n;
        }
        for (int i = 0; i < n; i++) {
            int result = error == 0 ? landed(r, t, &cqes[i]) : 0;
            error = error == 0 ? result : error;
        }
    }
}

bool ldr_fs3_ring_idle(ldr_fs3_ring_t *r)
{
    ldr_hf3fs_cqe_t cqes[LDR_FS3_SLOTS];

    for (int way = 0; way < 2; way++) {
        while (r->flying[way] > 0) {
            if (ring_reap(r, way, 0, cqes) <= 0) {
                return false;
            }
        }
    }
    return true;
}
