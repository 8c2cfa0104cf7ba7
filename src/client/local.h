/* The parts of the embedded backend: local.c, local_lease.c. */
#pragma once

#include "client/client.h"

larder_status_t ldr_local_stage(larder_space_t *space,
                                const ldr_prefix_t *prefix,
                                const larder_stage_params_t *worth,
                                uint64_t deadline_ns, larder_lease_t **lease_p,
                                larder_match_t *match);
larder_status_t ldr_local_segments(const larder_lease_t *lease, uint32_t at,
                                   struct iovec *seg, uint32_t seg_max,
                                   uint32_t *seg_count_p);
void ldr_local_drop(larder_lease_t *lease);
larder_status_t ldr_local_reserve(larder_space_t *space, larder_item_t *items,
                                  size_t count, uint64_t deadline_ns,
                                  larder_lease_t *lease);
larder_status_t ldr_local_commit(larder_lease_t *lease, const uint8_t *keep,
                                 const uint32_t *crcs, uint64_t deadline_ns);
