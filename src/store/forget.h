/* Forgetting one tenant of a directory that no node uses. */
#pragma once

#include "store/disk.h"

typedef struct ldr_forgotten {
    bool secret;      /* the check value of one was recorded */
    uint32_t spaces;  /* with records */
    uint64_t records; /* dead ones among them */
} ldr_forgotten_t;

/*
 * Drops what an opened directory knows of the tenant: the check value of its
 * secret, and all that was saved in its spaces, which are reset. Others are not
 * touched, and it is one write of the superblock: all of it, or nothing.
 * E_LIMIT: there is no room for the resets, and nothing was changed.
 */
larder_status_t ldr_disk_forget(ldr_disk_t *d,
                                const uint8_t tenant[LDR_ID_BYTES],
                                ldr_forgotten_t *out);
