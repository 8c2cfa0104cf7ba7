/*
 * The superblocks, which keep tenants and epochs.
 *
 * disk.super is guarded by the node's lock; its bytes are the disk's while
 * super_busy. One writing at a time, in steps, the next one from the completion
 * of the one before: nobody holds anything while a disk works, and who waits
 * for it does so until a deadline.
 */
#include <errno.h>
#include <string.h>

#include "tier/ssd/ssd.h"

/* Left in a superblock for resets that were let through at the same time. */
#define RESETS_SLACK 64u

static ldr_super_space_t *super_space(ldr_super_t *super, const uint8_t *id)
{
    for (uint32_t i = 0; i < super->space_count; i++) {
        if (memcmp(super->spaces[i].id, id, LDR_ID_BYTES) == 0) {
            return &super->spaces[i];
        }
    }
    return NULL;
}

ldr_super_tenant_t *ldr_super_tenant(const ldr_ssd_t *ssd, const uint8_t *id)
{
    ldr_super_t *super = ssd->disk.super;

    for (uint32_t i = 0; i < super->tenant_count; i++) {
        if (memcmp(super->tenants[i].id, id, LDR_ID_BYTES) == 0) {
            return &super->tenants[i];
        }
    }
    return NULL;
}

/* Takes the node's tenants over into the superblock: those that came while the
 * disk was off, and what the operator says of others; true if one was new. */
static bool take_over_tenants(ldr_ssd_t *ssd)
{
    const ldr_store_t *store = &ssd->host->store;
    ldr_super_t *super = ssd->disk.super;
    bool changed = false;

    for (uint32_t i = 0; i < store->tenant_count; i++) {
        const ldr_tenant_t *t = &store->tenants[i];
        ldr_super_tenant_t *row = ldr_super_tenant(ssd, t->id);

        if (!t->secret_known ||
            (row == NULL && super->tenant_count == LDR_SUPER_TENANTS_MAX) ||
            (row != NULL &&
             (!t->secret_given ||
              memcmp(row->check, t->secret.check, LDR_ID_BYTES) == 0))) {
            continue;
        }
        if (row == NULL) {
            row = &super->tenants[super->tenant_count++];
            memcpy(row->id, t->id, LDR_ID_BYTES);
        }
        memcpy(row->check, t->secret.check, LDR_ID_BYTES);
        changed = true;
    }
    return changed;
}

/* Takes the node's epochs over into the superblock; true if one was new. */
static bool take_over_epochs(ldr_ssd_t *ssd, bool *full_p)
{
    ldr_store_t *store = &ssd->host->store;
    ldr_super_t *super = ssd->disk.super;
    bool changed = false;

    *full_p = false;
    for (uint32_t i = 0; i < store->space_count; i++) {
        const ldr_space_t *space = &store->spaces[i];
        ldr_super_space_t *known = super_space(super, space->id);

        if (space->epoch == 0 ||
            (known != NULL && known->epoch >= space->epoch)) {
            continue;
        }
        if (known == NULL) {
            if (super->space_count == LDR_SUPER_SPACES_MAX) {
                *full_p = true;
                continue;
            }
            known = &super->spaces[super->space_count++];
            memcpy(known->id, space->id, LDR_ID_BYTES);
        }
        known->epoch = space->epoch;
        changed = true;
    }
    return changed;
}

/* ---- writing it ---- */

static larder_status_t is_late(const ldr_ssd_t *ssd)
{
    return ldr_fail(LARDER_E_DEADLINE, "%s: the disk does not answer",
                    ssd->params.path);
}

/* With the lock. Whoever has waited for it may be gone. */
static void super_finish(ldr_ssd_t *ssd, int error)
{
    if (error != 0) {
        ldr_disk_super_failed(&ssd->disk, ssd->super_step, error);
    }
    ssd->super_busy = false;
    ssd->super_ended = ssd->super_begun;
    ssd->super_error = error;
    ssd->super_stale = error != 0;
    if (error != 0 && ssd->on) {
        ldr_ssd_off(ssd, "write the superblock", error);
    }
    if (ssd->super_missed) {
        ldr_ssd_wake(ssd);
    }
    pthread_cond_broadcast(&ssd->host->changed);
}

static void super_done(ldr_io_req_t *req);

static void super_send(ldr_ssd_t *ssd)
{
    ldr_io_req_t *req = &ssd->super_req;

    ldr_disk_super_step(&ssd->disk, ssd->super_step, req);
    req->done = super_done;
    req->arg = ssd;
    ldr_io_submit(ssd->host->io, &req, 1);
}

static void super_done(ldr_io_req_t *req)
{
    ldr_ssd_t *ssd = req->arg;
    int error = req->error;

    if (error == 0 && ssd->super_step + 1 < LDR_SUPER_STEPS) {
        ssd->super_step++;
        super_send(ssd);
        return;
    }
    ldr_host_lock(ssd->host);
    super_finish(ssd, error);
    ldr_host_unlock(ssd->host);
}

/* In a node without threads: all of it, at once. */
static void super_run(ldr_ssd_t *ssd)
{
    int error = 0;

    while (error == 0 && ssd->super_step < LDR_SUPER_STEPS) {
        ldr_disk_super_step(&ssd->disk, ssd->super_step, &ssd->super_req);
        error = ldr_io_run(ssd->host->io, &ssd->super_req);
        ssd->super_step += error == 0;
    }
    ldr_host_lock(ssd->host);
    super_finish(ssd, error);
    ldr_host_unlock(ssd->host);
}

/* With the lock, which it drops. Nobody writes it now. */
static larder_status_t write_super(ldr_ssd_t *ssd, uint64_t deadline_ns)
{
    ldr_host_t *host = ssd->host;
    uint64_t mine = ++ssd->super_begun;

    ssd->super_busy = true;
    ssd->super_step = 0;
    ldr_disk_super_begin(&ssd->disk);
    ldr_host_unlock(host);
    if (host->manual) {
        super_run(ssd);
    } else {
        super_send(ssd);
    }
    ldr_host_lock(host);
    /* One that was begun later has all of this one in it. */
    while (ssd->super_ended < mine) {
        if (!ldr_host_wait(host, deadline_ns)) {
            return is_late(ssd); /* it ends by itself */
        }
    }
    return ssd->super_error == 0
               ? LARDER_OK
               : ldr_fail(LARDER_E_IO, "%s: cannot write larder.super: %s",
                          ssd->params.path, strerror(-ssd->super_error));
}

/* Until nobody writes it. With the lock. */
static larder_status_t await_super(ldr_ssd_t *ssd, uint64_t deadline_ns)
{
    while (ssd->super_busy) {
        if (!ldr_host_wait(ssd->host, deadline_ns)) {
            ssd->super_missed = true; /* the disk's thread does it then */
            return is_late(ssd);
        }
    }
    return LARDER_OK;
}

/* With the lock. */
static larder_status_t update_super(ldr_ssd_t *ssd, bool always,
                                    uint64_t deadline_ns)
{
    larder_status_t st = await_super(ssd, deadline_ns);
    bool full;

    if (st != LARDER_OK) {
        return st;
    }
    bool changed = take_over_epochs(ssd, &full);
    changed |= take_over_tenants(ssd);
    changed |= ssd->super_stale || always;
    if (full) {
        return ldr_fail(LARDER_E_LIMIT,
                        "%s: its superblock has room for %u spaces that were "
                        "reset: wipe it",
                        ssd->params.path, LDR_SUPER_SPACES_MAX);
    }
    return changed ? write_super(ssd, deadline_ns) : LARDER_OK;
}

larder_status_t ldr_ssd_super_update(ldr_ssd_t *ssd, bool always,
                                     uint64_t deadline_ns)
{
    ldr_host_lock(ssd->host);
    larder_status_t st = update_super(ssd, always, deadline_ns);
    ldr_host_unlock(ssd->host);
    return st;
}

larder_status_t ldr_ssd_epochs(ldr_tier_t *tier, uint32_t space,
                               uint64_t deadline_ns, bool *raised_p)
{
    const ldr_ssds_t *t = (const ldr_ssds_t *)tier;
    ldr_host_t *host = t->host;
    larder_status_t st = LARDER_OK;

    (void)space;
    *raised_p = false;
    ldr_host_lock(host);
    for (unsigned i = 0; i < t->count; i++) {
        ldr_ssd_t *ssd = &t->disks[i];

        if (!ssd->opened) {
            st = ldr_fail(LARDER_E_IO,
                          "%s: is off and could not record the reset",
                          ssd->params.path);
            continue;
        }
        larder_status_t one = update_super(ssd, false, deadline_ns);
        if (one == LARDER_E_DEADLINE) {
            st =
                one; /* it may be recorded yet; if it fails the disk goes off */
        } else if (one != LARDER_OK) {
            ssd->super_stale = true;
            ldr_ssd_off(ssd, "record a reset", -EIO);
            st = LARDER_E_IO;
        }
    }
    ldr_host_unlock(host);
    return st;
}

/* Whether the superblock has room for the reset of one space more; where there
 * are several tenants one has half of it at most. With the lock. */
static bool has_room(const ldr_ssd_t *ssd, const uint8_t *id)
{
    ldr_super_t *super = ssd->disk.super;
    uint32_t own = 0;
    uint32_t left = LDR_SUPER_SPACES_MAX - super->space_count;
    for (uint32_t i = 0; i < super->space_count; i++) {
        own += memcmp(super->spaces[i].id, id, LDR_TENANT_TAG_BYTES) == 0;
    }
    return super_space(super, id) != NULL ||
           (left > RESETS_SLACK &&
            (super->tenant_count < 2 || own < LDR_SUPER_SPACES_MAX / 2));
}

/* Asked before anything is reset: a disk that has no room to record it would
 * have to go off, for every tenant, and stay so. With the lock. */
larder_status_t ldr_ssd_can_reset(ldr_tier_t *tier, uint32_t space)
{
    const ldr_ssds_t *t = (const ldr_ssds_t *)tier;
    const uint8_t *id = t->host->store.spaces[space].id;

    for (unsigned i = 0; i < t->count; i++) {
        const ldr_ssd_t *ssd = &t->disks[i];

        if (ssd->opened && !has_room(ssd, id)) {
            return ldr_fail(LARDER_E_LIMIT,
                            "%s: its superblock has no room for one more space "
                            "that was reset, nothing was: wipe the directory",
                            ssd->params.path);
        }
    }
    return LARDER_OK;
}
