/* The tiers there are. Alone in its file: a program that has one more brings a
 * table of its own. */
#include <stddef.h>

#include "tier/peer/peer.h"
#include "tier/shared/shared.h"
#include "tier/ssd/ssd.h"

const ldr_tier_ops_t *const ldr_tier_rows[] = {&ldr_tier_ssd, &ldr_tier_shared,
                                               &ldr_tier_peer, NULL};
