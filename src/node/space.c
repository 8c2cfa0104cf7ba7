/*
 * Spaces, tenants, and epochs.
 *
 * Under the node's lock, except while a tier records a reset. An epoch only
 * grows; what was saved under a lower one is never found again. A tenant's
 * secret check value is set once.
 */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "node/node.h"

#define SPACES_PER_TENANT_MAX 8192u
#define EPOCHS_NS                                                              \
    5000000000u /* that a reset from elsewhere waits for a tier                \
                 */

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
    st = ldr_secret_open(node, space, &secret);
    if (st == LARDER_OK && info->label[0] != '\0') {
        memcpy(node->store.spaces[space].label, info->label,
               sizeof(info->label));
    }
    return st;
}

larder_status_t ldr_node_space(ldr_node_t *node, const ldr_space_info_t *info,
                               uint32_t *space_p)
{
    ldr_node_lock(node);
    larder_status_t st = open_space(node, info, space_p);
    ldr_node_unlock(node);
    for (unsigned i = 0; i < node->tier_count && st == LARDER_OK; i++) {
        ldr_tier_t *t = node->order[i];

        if (t->ops->use_space != NULL) {
            st = t->ops->use_space(t, *space_p, info);
        }
    }
    return st;
}

bool ldr_node_space_known(ldr_node_t *node, const ldr_space_info_t *info,
                          uint32_t *space_p)
{
    for (unsigned i = 0; i < node->tier_count; i++) {
        if (node->order[i]->ops->use_space != NULL) {
            return false; /* it is to hear of the tenant */
        }
    }
    ldr_node_lock(node);
    bool known = open_space(node, info, space_p) == LARDER_OK;
    ldr_node_unlock(node);
    return known;
}

/* Every tier hears of the node's epochs. space: as for ldr_tier_ops_t. raised:
 * by the caller, or NULL: by nobody. */
static larder_status_t tell_epochs(ldr_host_t *host, uint32_t space,
                                   const ldr_tier_t *raised,
                                   uint64_t deadline_ns)
{
    larder_status_t st = LARDER_OK;

    for (unsigned i = 0; i < host->tier_count; i++) {
        ldr_tier_t *t = host->order[i];
        bool again = false;

        if (t == raised) {
            continue;
        }
        larder_status_t one = t->ops->epochs(t, space, deadline_ns, &again);
        /* Those before it have recorded less. */
        for (unsigned k = 0; k < i && again && st == LARDER_OK; k++) {
            bool ignored;

            st = host->order[k]->ops->epochs(host->order[k], LDR_NIL,
                                             deadline_ns, &ignored);
        }
        st = st != LARDER_OK ? st : one;
    }
    return st;
}

larder_status_t ldr_host_epochs(ldr_host_t *host, const ldr_tier_t *raised)
{
    return tell_epochs(host, LDR_NIL, raised,
                       ldr_now_ns(host->clock) + EPOCHS_NS);
}

void ldr_host_epochs_later(ldr_host_t *host, const ldr_tier_t *raised)
{
    ldr_host_held(host);
    for (unsigned i = 0; i < host->tier_count; i++) {
        ldr_tier_t *t = host->order[i];

        if (t != raised) {
            t->ops->epochs_later(t);
        }
    }
}

/* Asked before anything is reset: a tier that has no room to record it would
 * have to go off, for every tenant, and stay so. With the lock. */
static larder_status_t check_reset(ldr_node_t *node, uint32_t space)
{
    larder_status_t st = LARDER_OK;

    for (unsigned i = 0; i < node->tier_count && st == LARDER_OK; i++) {
        ldr_tier_t *t = node->order[i];

        if (t->ops->can_reset != NULL) {
            st = t->ops->can_reset(t, space);
        }
    }
    return st;
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
        ldr_store_set_epoch(
            &node->store, space,
            node->cluster == NULL
                ? s->epoch + 1
                : ldr_epoch_next(s->epoch, ldr_rand_next(&node->rand)));
        s->above = node->store.disks_absent == 0 ? 0 : s->epoch;
        LDR_COUNT(&node->store, space, resets, 1);
    }
    ldr_node_unlock(node);
    if (limit != LARDER_OK) {
        return limit;
    }
    /* The cheapest first: one that does not answer takes what time there is. */
    return tell_epochs(&node->host, space, NULL, deadline_ns);
}
