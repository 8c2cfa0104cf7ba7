/* The parts of the embedded backend: local.c, local_lease.c. */
#pragma once

#include "client/client.h"

larder_status_t ldr_local_stage(larder_space_t *space,
                                const ldr_prefix_t *prefix,
                                const larder_stage_params_t *worth,
                                uint64_t deadline_ns, larder_lease_t **lease_p,
                                larder_match_t *match);
