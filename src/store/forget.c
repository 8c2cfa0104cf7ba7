/*
 * Forgetting a tenant, on a directory that this process has opened and nobody
 * else uses. One thread. The superblock in memory is changed only after all
 * records were looked at, except rows that were added for new spaces; it is
 * written once.
 */
#include "store/forget.h"

#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/store.h"

typedef struct walk {
    ldr_super_t *super;
    const uint8_t *tenant;
    ldr_forgotten_t *out;
    uint32_t last; /* row of the superblock that was found last */
    bool full;
    bool seen[LDR_SUPER_SPACES_MAX];
    uint32_t epoch[LDR_SUPER_SPACES_MAX]; /* the highest of its records */
} walk_t;

/* The row of the space, added if it is new; LDR_NIL: there is no room. */
static uint32_t row_of(walk_t *w, const uint8_t *id)
{
    ldr_super_t *super = w->super;
    uint32_t i = w->last; /* records of one space follow each other */

    if (i < super->space_count &&
        memcmp(super->spaces[i].id, id, LDR_ID_BYTES) == 0) {
        return i;
    }
    for (i = 0; i < super->space_count; i++) {
        if (memcmp(super->spaces[i].id, id, LDR_ID_BYTES) == 0) {
            return i;
        }
    }
    if (i == LDR_SUPER_SPACES_MAX) {
        return LDR_NIL;
    }
    super->spaces[i].epoch = 0;
    memcpy(super->spaces[i].id, id, LDR_ID_BYTES);
    super->space_count++;
    return i;
}

static bool record_look(void *arg, uint32_t segment, const ldr_record_t *record)
{
    walk_t *w = arg;

    (void)segment;
    if (memcmp(record->space_id, w->tenant, LDR_TENANT_TAG_BYTES) != 0) {
        return true;
    }
    uint32_t row = row_of(w, record->space_id);
    if (row == LDR_NIL) {
        w->full = true;
        return true;
    }
    w->last = row;
    w->out->records += record->kind != LDR_RECORD_TOMBSTONE;
    w->out->spaces += !w->seen[row];
    w->seen[row] = true;
    w->epoch[row] = (uint32_t)ldr_max64(w->epoch[row], record->epoch);
    return true;
}

/* Spaces bear four bytes of their tenant's id: another's may be the same. */
static bool is_alone(const ldr_super_t *super, const uint8_t *tenant)
{
    for (uint32_t i = 0; i < super->tenant_count; i++) {
        const uint8_t *id = super->tenants[i].id;

        if (memcmp(id, tenant, LDR_TENANT_TAG_BYTES) == 0 &&
            memcmp(id, tenant, LDR_ID_BYTES) != 0) {
            return false;
        }
    }
    return true;
}

static void segment_drop(walk_t *w)
{
    ldr_super_t *super = w->super;

    for (uint32_t i = 0; i < super->space_count; i++) {
        if (w->seen[i]) {
            super->spaces[i].epoch =
                (uint32_t)ldr_max64(super->spaces[i].epoch, w->epoch[i]) + 1;
        }
    }
    for (uint32_t i = 0; i < super->tenant_count; i++) {
        if (memcmp(super->tenants[i].id, w->tenant, LDR_ID_BYTES) == 0) {
            super->tenants[i] = super->tenants[--super->tenant_count];
            w->out->secret = true;
        }
    }
}

larder_status_t ldr_disk_forget(ldr_disk_t *d,
                                const uint8_t tenant[LDR_ID_BYTES],
                                ldr_forgotten_t *out)
{
    walk_t *w = ldr_alloc(sizeof(*w));
    ldr_recovery_t found;

    *out = (ldr_forgotten_t){0};
    if (w == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory");
    }
    w->super = d->super;
    w->tenant = tenant;
    w->out = out;
    larder_status_t st = ldr_disk_recover(d, false, record_look, w, &found);
    if (st == LARDER_OK && (w->full || !is_alone(d->super, tenant))) {
        st = ldr_fail(LARDER_E_LIMIT,
                      w->full ? "%s: its superblock has no room for the resets "
                                "of all the tenant's spaces: wipe the directory"
                              : "%s: another tenant's spaces have names that "
                                "begin alike: wipe the directory",
                      d->path);
    }
    if (st == LARDER_OK) {
        segment_drop(w);
        if (out->secret || out->spaces > 0) {
            st = ldr_disk_super_write(d);
        }
    }
    ldr_free(w);
    return st;
}
