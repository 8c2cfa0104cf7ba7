/*
 * Spaces, tenants, epochs, and the superblocks that keep them.
 *
 * disk.super is guarded by the node's lock; its bytes are the disk's while
 * super_busy. One writing at a time, in steps, the next one from the completion
 * of the one before: nobody holds anything while a disk works, and who waits
 * for it does so until a deadline.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "node/node.h"
#include "node/shared.h"
#include "node/ssd.h"

#define SPACES_PER_TENANT_MAX 8192u
/* Left in a superblock for resets that were let through at the same time. */
#define RESETS_SLACK 64u
/* That a reset from elsewhere waits for a disk. */
#define SUPER_NS 5000000000u

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
    const ldr_store_t *store = &ssd->node->store;
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
    ldr_store_t *store = &ssd->node->store;
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

static larder_status_t late(const ldr_ssd_t *ssd)
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
    pthread_cond_broadcast(&ssd->node->changed);
}

static void super_done(ldr_io_req_t *req);

static void super_send(ldr_ssd_t *ssd)
{
    ldr_io_req_t *req = &ssd->super_req;

    ldr_disk_super_step(&ssd->disk, ssd->super_step, req);
    req->done = super_done;
    req->arg = ssd;
    ldr_io_submit(ssd->node->io, &req, 1);
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
    ldr_node_lock(ssd->node);
    super_finish(ssd, error);
    ldr_node_unlock(ssd->node);
}

/* In a node without threads: all of it, at once. */
static void super_run(ldr_ssd_t *ssd)
{
    int error = 0;

    while (error == 0 && ssd->super_step < LDR_SUPER_STEPS) {
        ldr_disk_super_step(&ssd->disk, ssd->super_step, &ssd->super_req);
        error = ldr_io_run(ssd->node->io, &ssd->super_req);
        ssd->super_step += error == 0;
    }
    ldr_node_lock(ssd->node);
    super_finish(ssd, error);
    ldr_node_unlock(ssd->node);
}

/* With the lock, which it drops. Nobody writes it now. */
static larder_status_t write_super(ldr_ssd_t *ssd, uint64_t deadline_ns)
{
    ldr_node_t *node = ssd->node;
    uint64_t mine = ++ssd->super_begun;

    ssd->super_busy = true;
    ssd->super_step = 0;
    ldr_disk_super_begin(&ssd->disk);
    ldr_node_unlock(node);
    if (node->manual) {
        super_run(ssd);
    } else {
        super_send(ssd);
    }
    ldr_node_lock(node);
    /* One that was begun later has all of this one in it. */
    while (ssd->super_ended < mine) {
        if (!ldr_node_wait(node, deadline_ns)) {
            return late(ssd); /* it ends by itself */
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
        if (!ldr_node_wait(ssd->node, deadline_ns)) {
            ssd->super_missed = true; /* the disk's thread does it then */
            return late(ssd);
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
    ldr_node_lock(ssd->node);
    larder_status_t st = update_super(ssd, always, deadline_ns);
    ldr_node_unlock(ssd->node);
    return st;
}

/* ---- tenants and spaces ---- */

void ldr_tenant_id(const char *name, uint8_t id[LDR_ID_BYTES])
{
    ldr_piece_t parts[] = {{"larder tenant 1", 15}, {name, strlen(name)}};
    uint8_t digest[32] = {0};

    /* All zero if it fails: no tenant's id, see new_tenant(). */
    if (!ldr_sha256(parts, 2, digest)) {
        memset(digest, 0, sizeof(digest));
    }
    memcpy(id, digest, LDR_ID_BYTES);
}

/* The node's own id of a space: it begins with its tenant's tag. */
static bool node_space_id(const uint8_t *tenant_id, const uint8_t *space_id,
                          uint8_t id[LDR_ID_BYTES])
{
    ldr_piece_t parts[] = {{"larder id 2", 11},
                           {tenant_id, LDR_ID_BYTES},
                           {space_id, LDR_ID_BYTES}};
    uint8_t digest[32];

    if (!ldr_sha256(parts, 3, digest)) {
        return false;
    }
    memcpy(id, tenant_id, LDR_TENANT_TAG_BYTES);
    memcpy(id + LDR_TENANT_TAG_BYTES, digest,
           LDR_ID_BYTES - LDR_TENANT_TAG_BYTES);
    return true;
}

/* The tenant's number, added if it is new. With the lock. */
static larder_status_t new_tenant(ldr_node_t *node, const char *name,
                                  const uint8_t *id, uint32_t *tenant_p)
{
    static const uint8_t none[LDR_ID_BYTES];
    ldr_store_t *store = &node->store;

    if (memcmp(id, none, sizeof(none)) == 0) {
        return ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
    }
    *tenant_p = ldr_store_tenant(store, id);
    if (*tenant_p == LDR_NIL) {
        return store->tenant_count == LDR_TENANTS_MAX
                   ? ldr_fail(LARDER_E_LIMIT,
                              "tenant '%s': the node has %u others", name,
                              LDR_TENANTS_MAX)
                   : ldr_fail(LARDER_E_NO_MEMORY,
                              "not enough memory for tenant '%s'", name);
    }
    ldr_tenant_t *t = &store->tenants[*tenant_p];
    snprintf(t->name, sizeof(t->name), "%s", name);
    return LARDER_OK;
}

larder_status_t ldr_node_tenant(ldr_node_t *node,
                                const ldr_tenant_params_t *params,
                                uint32_t *tenant_p)
{
    uint8_t id[LDR_ID_BYTES];

    if (params->name[0] == '\0' || strlen(params->name) > LDR_TENANT_MAX) {
        return ldr_fail(LARDER_E_INVALID, "a tenant's name has 1 to %u bytes",
                        LDR_TENANT_MAX);
    }
    ldr_tenant_id(params->name, id);
    ldr_node_lock(node);
    larder_status_t st = new_tenant(node, params->name, id, tenant_p);
    if (st == LARDER_OK) {
        ldr_store_limits(&node->store, *tenant_p, params->dram_max,
                         params->ssd_max);
        ldr_secret_give(node, *tenant_p, params->secret);
    }
    ldr_node_unlock(node);
    return st;
}

/* The number of the tenant's space, added if it is new. With the lock. */
static uint32_t new_space(ldr_store_t *store, uint32_t tenant,
                          const uint8_t *id)
{
    const ldr_tenant_t *t = &store->tenants[tenant];
    uint32_t space = LDR_NIL;

    for (uint32_t i = 0; i < store->space_count && space == LDR_NIL; i++) {
        if (memcmp(store->spaces[i].id, id, LDR_ID_BYTES) == 0) {
            space = i;
        }
    }
    /* One tenant must not use up what there is for all. */
    if (space == LDR_NIL && t->space_count < SPACES_PER_TENANT_MAX) {
        space = ldr_store_space(store, id);
    }
    if (space != LDR_NIL) {
        ldr_store_space_of(store, space, tenant);
    }
    return space;
}

/* Needs only memory. With the lock. */
static larder_status_t open_space(ldr_node_t *node,
                                  const ldr_space_info_t *info,
                                  uint32_t *space_p)
{
    uint8_t tenant_id[LDR_ID_BYTES], id[LDR_ID_BYTES];
    ldr_secret_check_t secret;
    uint32_t tenant;

    ldr_tenant_id(info->tenant, tenant_id);
    if (!node_space_id(tenant_id, info->space_id, id) ||
        !ldr_secret_sent(info, &secret)) {
        return ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
    }
    larder_status_t st = new_tenant(node, info->tenant, tenant_id, &tenant);
    if (st == LARDER_OK) {
        st = ldr_secret_meet(node, tenant, &secret);
    }
    if (st != LARDER_OK) {
        return st;
    }
    uint32_t space = new_space(&node->store, tenant, id);
    if (space == LDR_NIL) {
        return ldr_fail(LARDER_E_LIMIT, "tenant '%s': too many spaces",
                        info->tenant);
    }
    *space_p = space;
    return ldr_secret_open(node, space, &secret);
}

larder_status_t ldr_node_space(ldr_node_t *node, const ldr_space_info_t *info,
                               uint32_t *space_p)
{
    ldr_node_lock(node);
    larder_status_t st = open_space(node, info, space_p);
    ldr_node_unlock(node);
    return st == LARDER_OK ? ldr_shared_space(node, *space_p, info) : st;
}

bool ldr_node_space_known(ldr_node_t *node, const ldr_space_info_t *info,
                          uint32_t *space_p)
{
    if (node->shared != NULL) { /* which is to hear of the tenant */
        return false;
    }
    ldr_node_lock(node);
    bool known = open_space(node, info, space_p) == LARDER_OK;
    ldr_node_unlock(node);
    return known;
}

static larder_status_t record_epochs(ldr_node_t *node, uint64_t deadline_ns)
{
    larder_status_t st = LARDER_OK;

    ldr_node_lock(node);
    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_t *ssd = &node->ssds[i];

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
    ldr_node_unlock(node);
    return st;
}

larder_status_t ldr_node_record_epochs(ldr_node_t *node)
{
    return record_epochs(node, ldr_now_ns(node->clock) + SUPER_NS);
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
static larder_status_t check_reset(const ldr_node_t *node, uint32_t space)
{
    const uint8_t *id = node->store.spaces[space].id;

    for (unsigned i = 0; i < node->ssd_count; i++) {
        const ldr_ssd_t *ssd = &node->ssds[i];

        if (ssd->opened && !has_room(ssd, id)) {
            return ldr_fail(LARDER_E_LIMIT,
                            "%s: its superblock has no room for one more space "
                            "that was reset, nothing was: wipe the directory",
                            ssd->params.path);
        }
    }
    return LARDER_OK;
}

larder_status_t ldr_node_reset(ldr_node_t *node, uint32_t space,
                               uint64_t deadline_ns)
{
    ldr_node_lock(node);
    larder_status_t limit = ldr_secret_settle(node, space);
    if (limit == LARDER_OK) {
        limit = check_reset(node, space);
    }
    if (limit == LARDER_OK) {
        /* From here on nothing that was put before is found. */
        ldr_space_t *s = &node->store.spaces[space];
        ldr_store_set_epoch(&node->store, space, s->epoch + 1);
        s->above = ldr_ssds_opened(node) ? 0 : s->epoch;
        LDR_COUNT(&node->store, space, resets, 1);
    }
    ldr_node_unlock(node);
    if (limit != LARDER_OK) {
        return limit;
    }
    /* The disks first: a tier that does not answer takes what time there is. */
    bool raised = false;
    larder_status_t st = record_epochs(node, deadline_ns);
    larder_status_t shared =
        ldr_shared_reset(node, space, deadline_ns, &raised);
    if (raised && st == LARDER_OK) {
        st = record_epochs(node, deadline_ns);
    }
    return st != LARDER_OK ? st : shared;
}
