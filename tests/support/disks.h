/* The disks of a node's SSD tier, for tests that look inside. */
#pragma once

#include "node/node.h"
#include "tier/ssd/ssd.h"

static inline ldr_ssds_t *ssds_of(const ldr_node_t *node)
{
    return ldr_ssds_of(&node->host);
}

static inline ldr_ssd_t *disks_of(const ldr_node_t *node)
{
    return ssds_of(node)->disks;
}
