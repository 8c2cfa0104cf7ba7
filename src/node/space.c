/* Spaces, tenants, epochs, and the superblocks that keep them. */
#include <errno.h>
#include <string.h>

#include "node/node.h"
#include "node/ssd.h"

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
    bool changed = take_over_epochs(ssd, &full) || ssd->super_stale || always;
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
static larder_status_t check_tenant(ldr_ssd_t *ssd,
                                    const ldr_space_info_t *info)
{
    ldr_super_t *super = ssd->disk.super;
    larder_status_t st = LARDER_OK;

    pthread_mutex_lock(&ssd->super_lock);
    ldr_super_tenant_t *known = super_tenant(super, info->tenant_id);
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
        memcpy(known->id, info->tenant_id, LDR_ID_BYTES);
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

larder_status_t ldr_node_space(ldr_node_t *node, const ldr_space_info_t *info,
                               uint32_t *space_p)
{
    bool on;

    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_t *ssd = &node->ssds[i];

        if (is_open(ssd, &on) && on) {
            larder_status_t st = check_tenant(ssd, info);

            if (st != LARDER_OK) {
                return st;
            }
        }
    }
    ldr_node_lock(node);
    uint32_t space = ldr_store_space(&node->store, info->space_id);
    uint32_t tenant = ldr_store_tenant(&node->store, info->tenant_id);
    if (space != LDR_NIL && tenant != LDR_NIL) {
        node->store.spaces[space].tenant = tenant;
    }
    ldr_node_unlock(node);
    if (space == LDR_NIL || tenant == LDR_NIL) {
        return ldr_fail(LARDER_E_LIMIT, "too many spaces or tenants");
    }
    *space_p = space;
    return LARDER_OK;
}

larder_status_t ldr_node_reset(ldr_node_t *node, uint32_t space)
{
    larder_status_t st = LARDER_OK;
    bool on;

    /* From here on nothing that was put before is found. */
    ldr_node_lock(node);
    node->store.spaces[space].epoch++;
    node->store.n.resets++;
    ldr_node_unlock(node);

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
