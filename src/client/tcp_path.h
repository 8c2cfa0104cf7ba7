/* The data path over streams: its leases and reservations (tcp_lease.c). */
#pragma once

#include "client/remote.h"
#include "net/pool.h"

larder_status_t ldr_tcp_keep(ldr_talk_t *v, larder_lease_t *lease,
                             uint64_t number);
larder_status_t ldr_tcp_map(larder_space_t *space, larder_lease_t *lease,
                            const larder_key_t *keys, uint16_t group,
                            uint64_t deadline_ns, larder_match_t *match);
larder_status_t ldr_tcp_segments(const larder_lease_t *lease, uint32_t at,
                                 struct iovec *seg, uint32_t seg_max,
                                 uint32_t *seg_count_p);
void ldr_tcp_drop(larder_lease_t *lease);
larder_status_t ldr_tcp_reserve(larder_space_t *space, larder_item_t *items,
                                size_t count, uint64_t deadline_ns,
                                larder_lease_t *lease);
larder_status_t ldr_tcp_commit(larder_lease_t *lease, const uint8_t *keep,
                               const uint32_t *crcs, uint64_t deadline_ns);
