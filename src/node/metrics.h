/*
 * A node's part of the metrics, and what those who show its figures need.
 */
#pragma once

#include <stdint.h>

#include "base/metrics.h"
#include "node/node.h"

/* Writes the rows of LDR_METRIC_NODE_MAP. tenant: only what concerns this one;
 * LDR_NIL: everything. */
void ldr_node_expose(ldr_node_t *node, uint32_t tenant, ldr_exposition_t *e);

/* The counters of all tenants together. */
void ldr_node_counters(ldr_node_t *node, ldr_counters_t *out);

/* How long reads and writes of a tier below DRAM took. */
void ldr_node_times(ldr_node_t *node, larder_tier_t tier,
                    ldr_histogram_t *reads, ldr_histogram_t *writes);

/* The tenant's name; one only seen on disk has none, and is shown by its id.
 * False: there is none with this number. */
bool ldr_node_tenant_label(ldr_node_t *node, uint32_t tenant,
                           char name[LDR_NAME_MAX]);
const char *ldr_mode_label(ldr_mode_t mode);

#define LDR_SPACES_SHOWN 50u
/* The busiest spaces, busiest first, and before all others those that were
 * asked for something within the hour; gives how many. tenant: of this one;
 * LDR_NIL: of all. known_p: how many there are. */
unsigned ldr_node_busiest(ldr_node_t *node, uint32_t tenant,
                          ldr_space_stats_t rows[LDR_SPACES_SHOWN],
                          uint32_t *known_p);
/* How a space is shown: what of its id is its own, behind its tenant's tag. */
#define LDR_SPACE_LABEL 9u
void ldr_space_label(const uint8_t id[LDR_ID_BYTES],
                     char text[LDR_SPACE_LABEL]);
/* Loads, from whichever tier; and those that failed, for whatever cause. */
uint64_t ldr_counters_hits(const ldr_counters_t *n);
uint64_t ldr_counters_misses(const ldr_counters_t *n);

/* Bytes written to disks for each byte of a save, in thousandths. */
uint64_t ldr_write_amplification(const larder_stats_t *s);
