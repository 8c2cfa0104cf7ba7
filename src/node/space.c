/* Spaces, tenants, epochs, and the superblocks that keep them. */
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

static ldr_super_space_t *super_space(ldr_super_t *super, const uint8_t *id)
{
    for (uint32_t i = 0; i < super->space_count; i++) {
        if (memcmp(super->spaces[i].id, id, LDR_ID_BYTES) == 0) {
            return &super->spaces[i];
        }
    }
    return NULL;
}

static ldr_super_tenant_t *super_tenant(ldr_super_t *super, const uint8_t *id)
{
    for (uint32_t i = 0; i < super->tenant_count; i++) {
        if (memcmp(super->tenants[i].id, id, LDR_ID_BYTES) == 0) {
            return &super->tenants[i];
        }
    }
    return NULL;
}

/* Takes tenants over that came while the disk was off; true if one was new. */
static bool take_over_tenants(ldr_ssd_t *ssd)
{
    const ldr_store_t *store = &ssd->node->store;
    ldr_super_t *super = ssd->disk.super;
    bool changed = false;

    for (uint32_t i = 0; i < store->tenant_count; i++) {
        const ldr_tenant_t *t = &store->tenants[i];

        if (t->check_known && super->tenant_count < LDR_SUPER_TENANTS_MAX &&
            super_tenant(super, t->id) == NULL) {
            ldr_super_tenant_t *known = &super->tenants[super->tenant_count++];

            memcpy(known->id, t->id, LDR_ID_BYTES);
            memcpy(known->check, t->check, LDR_ID_BYTES);
            changed = true;
        }
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

/* super_lock is held. */
static larder_status_t write_super(ldr_ssd_t *ssd)
{
    larder_status_t st = ldr_disk_super_write(&ssd->disk);

    ldr_node_lock(ssd->node);
    ssd->super_stale = st != LARDER_OK;
    ldr_node_unlock(ssd->node);
    return st;
}

larder_status_t ldr_ssd_super_update(ldr_ssd_t *ssd, bool always)
{
    larder_status_t st = LARDER_OK;
    bool full;

    pthread_mutex_lock(&ssd->super_lock);
    ldr_node_lock(ssd->node);
    bool changed = take_over_epochs(ssd, &full);
    changed |= take_over_tenants(ssd);
    changed |= ssd->super_stale || always;
    ldr_node_unlock(ssd->node);
    if (full) {
        st = ldr_fail(LARDER_E_LIMIT,
                      "%s: its superblock has room for %u spaces that were "
                      "reset: wipe it",
                      ssd->params.path, LDR_SUPER_SPACES_MAX);
    } else if (changed) {
        st = write_super(ssd);
    }
    pthread_mutex_unlock(&ssd->super_lock);
    return st;
}

/* Remembers the tenant's check value, or compares it. */
static larder_status_t check_tenant(ldr_ssd_t *ssd, const uint8_t *tenant_id,
                                    const ldr_space_info_t *info)
{
    ldr_super_t *super = ssd->disk.super;
    larder_status_t st = LARDER_OK;

    pthread_mutex_lock(&ssd->super_lock);
    ldr_super_tenant_t *known = super_tenant(super, tenant_id);
    if (known != NULL) {
        if (memcmp(known->check, info->tenant_check, LDR_ID_BYTES) != 0) {
            st = ldr_fail(LARDER_E_SECRET,
                          "%s: holds data of tenant '%s' under another secret: "
                          "use that secret, or wipe the directory",
                          ssd->params.path, info->tenant);
        }
    } else if (super->tenant_count == LDR_SUPER_TENANTS_MAX) {
        st = ldr_fail(LARDER_E_LIMIT, "%s: more than %u tenants",
                      ssd->params.path, LDR_SUPER_TENANTS_MAX);
    } else {
        known = &super->tenants[super->tenant_count++];
        memcpy(known->id, tenant_id, LDR_ID_BYTES);
        memcpy(known->check, info->tenant_check, LDR_ID_BYTES);
        if (write_super(ssd) != LARDER_OK) {
            ldr_node_lock(ssd->node);
            ldr_ssd_off(ssd, "write the superblock", -EIO);
            ldr_node_unlock(ssd->node);
        }
    }
    pthread_mutex_unlock(&ssd->super_lock);
    return st;
}

static bool is_open(ldr_ssd_t *ssd, bool *on_p)
{
    ldr_node_lock(ssd->node);
    bool opened = ssd->opened;
    *on_p = ssd->on;
    ldr_node_unlock(ssd->node);
    return opened;
}

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
    }
    ldr_node_unlock(node);
    return st;
}

/* With the lock. */
static larder_status_t new_space(ldr_node_t *node, const ldr_space_info_t *info,
                                 const uint8_t *tenant_id, const uint8_t *id,
                                 uint32_t *space_p)
{
    ldr_store_t *store = &node->store;
    uint32_t known = store->space_count;
    uint32_t tenant;
    larder_status_t st = new_tenant(node, info->tenant, tenant_id, &tenant);

    if (st != LARDER_OK) {
        return st;
    }
    ldr_tenant_t *t = &store->tenants[tenant];
    if (!t->check_known) {
        memcpy(t->check, info->tenant_check, LDR_ID_BYTES);
        t->check_known = true;
    }
    uint32_t space = LDR_NIL;
    for (uint32_t i = 0; i < known && space == LDR_NIL; i++) {
        if (memcmp(store->spaces[i].id, id, LDR_ID_BYTES) == 0) {
            space = i;
        }
    }
    /* One tenant must not use up what there is for all. */
    if (space == LDR_NIL && t->space_count < SPACES_PER_TENANT_MAX) {
        space = ldr_store_space(store, id);
    }
    if (space == LDR_NIL) {
        return ldr_fail(LARDER_E_LIMIT, "tenant '%s': too many spaces",
                        info->tenant);
    }
    ldr_store_space_of(store, space, tenant);
    *space_p = space;
    return LARDER_OK;
}

larder_status_t ldr_node_space(ldr_node_t *node, const ldr_space_info_t *info,
                               uint32_t *space_p)
{
    uint8_t tenant_id[LDR_ID_BYTES], id[LDR_ID_BYTES];
    bool on;

    ldr_tenant_id(info->tenant, tenant_id);
    if (!node_space_id(tenant_id, info->space_id, id)) {
        return ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
    }
    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_t *ssd = &node->ssds[i];

        if (is_open(ssd, &on) && on) {
            larder_status_t st = check_tenant(ssd, tenant_id, info);

            if (st != LARDER_OK) {
                return st;
            }
        }
    }
    ldr_node_lock(node);
    larder_status_t st = new_space(node, info, tenant_id, id, space_p);
    ldr_node_unlock(node);
    return st == LARDER_OK ? ldr_shared_space(node, *space_p, info) : st;
}

larder_status_t ldr_node_record_epochs(ldr_node_t *node)
{
    larder_status_t st = LARDER_OK;
    bool on;

    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_t *ssd = &node->ssds[i];

        if (!is_open(ssd, &on)) {
            st = ldr_fail(LARDER_E_IO,
                          "%s: is off and could not record the reset",
                          ssd->params.path);
            continue;
        }
        if (ldr_ssd_super_update(ssd, false) != LARDER_OK) {
            ldr_node_lock(node);
            ssd->super_stale = true;
            ldr_ssd_off(ssd, "record a reset", -EIO);
            ldr_node_unlock(node);
            st = LARDER_E_IO;
        }
    }
    return st;
}

/* Whether the superblock has room for the reset of one space more; where there
 * are several tenants one has half of it at most. */
static bool has_room(ldr_ssd_t *ssd, const uint8_t *id)
{
    uint32_t own = 0;

    pthread_mutex_lock(&ssd->super_lock);
    ldr_super_t *super = ssd->disk.super;
    uint32_t left = LDR_SUPER_SPACES_MAX - super->space_count;
    for (uint32_t i = 0; i < super->space_count; i++) {
        own += memcmp(super->spaces[i].id, id, LDR_TENANT_TAG_BYTES) == 0;
    }
    bool room = super_space(super, id) != NULL ||
                (left > RESETS_SLACK &&
                 (super->tenant_count < 2 || own < LDR_SUPER_SPACES_MAX / 2));
    pthread_mutex_unlock(&ssd->super_lock);
    return room;
}

/* Asked before anything is reset: a disk that has no room to record it would
 * have to go off, for every tenant, and stay so. */
static larder_status_t check_reset(ldr_node_t *node, uint32_t space)
{
    uint8_t id[LDR_ID_BYTES];
    bool on;

    ldr_node_lock(node);
    memcpy(id, node->store.spaces[space].id, sizeof(id));
    ldr_node_unlock(node);
    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_t *ssd = &node->ssds[i];

        if (is_open(ssd, &on) && !has_room(ssd, id)) {
            return ldr_fail(LARDER_E_LIMIT,
                            "%s: its superblock has no room for one more space "
                            "that was reset, nothing was: wipe the directory",
                            ssd->params.path);
        }
    }
    return LARDER_OK;
}

larder_status_t ldr_node_reset(ldr_node_t *node, uint32_t space)
{
    larder_status_t limit = check_reset(node, space);

    if (limit != LARDER_OK) {
        return limit;
    }
    /* From here on nothing that was put before is found. */
    ldr_node_lock(node);
    ldr_store_set_epoch(&node->store, space,
                        node->store.spaces[space].epoch + 1);
    LDR_COUNT(&node->store, space, resets, 1);
    ldr_node_unlock(node);

    larder_status_t shared = ldr_shared_reset(node, space);
    larder_status_t st = ldr_node_record_epochs(node);
    return st != LARDER_OK ? st : shared;
}
