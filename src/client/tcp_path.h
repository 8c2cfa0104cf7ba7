/* The data path over streams: its leases and reservations (tcp_lease.c). */
#pragma once

#include "client/remote.h"
#include "net/pool.h"

larder_status_t ldr_tcp_keep(ldr_talk_t *v, larder_lease_t *lease,
                             uint64_t number);
