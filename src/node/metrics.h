/*
 * A node's part of the metrics, and what those who show its figures need.
 */
#pragma once

#include <stdint.h>

#include "base/metrics.h"
#include "node/node.h"

/* What the whole node has and does, besides its tenants, spaces and tiers. */
typedef struct ldr_node_figures {
    larder_stats_t s;
    ldr_queues_t q;
    uint64_t spaces;
    uint64_t mode[LDR_MODE_PAUSED + 1]; /* 1: it is in this one */
    uint64_t poisoned;
    /* Bytes written to disks for each byte of a save. */
    ldr_milli_t write_amplification;
    const ldr_histogram_t *load_times, *save_times;
} ldr_node_figures_t;

void ldr_node_figures(ldr_node_t *node, ldr_node_figures_t *out);

extern const ldr_row_t ldr_rows_tenant[], ldr_rows_space[], ldr_rows_node[];

/* Figures of tenants that others have: structs of so many bytes, one for each
 * tenant by its number. */
typedef struct ldr_more {
    const ldr_row_t *rows;
    const void *at;
    size_t bytes;
} ldr_more_t;

/* Writes the metrics of LDR_EMBEDDED_FIGURES. tenant: only what concerns this
 * one; LDR_NIL: everything. more: NULL: none. */
void ldr_node_expose(ldr_node_t *node, uint32_t tenant, const ldr_more_t *more,
                     ldr_exposition_t *e);

/* The counters of all tenants together. */
void ldr_node_counters(ldr_node_t *node, ldr_counters_t *out);
ldr_sums_t ldr_counters_sums(const ldr_counters_t *n);

/* How long reads and writes of a tier below DRAM took. */
void ldr_node_times(ldr_node_t *node, larder_tier_t tier,
                    ldr_histogram_t *reads, ldr_histogram_t *writes);

/* The tenant's name; one only seen on disk has none, and is shown by its id.
 * False: there is none with this number. */
bool ldr_node_tenant_label(ldr_node_t *node, uint32_t tenant,
                           char name[LDR_NAME_MAX]);

/* Names of places in arrays; NULL: nothing is counted there. */
const char *ldr_mode_label(unsigned mode);
const char *ldr_cause_label(unsigned cause);
const char *ldr_tier_label(unsigned tier); /* of those in the table */

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
