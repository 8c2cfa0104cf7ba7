/*
 * What may be written down to SSD, so that disks do not wear out: a budget of
 * bytes a day, and admission by the second use. The node and `larder plan` run
 * this very code. Pure: no clock, no locks.
 *
 * Second use: a shard is written down once it is used again after its first
 * save: by a load, a save that finds it present, or a save after it was evicted
 * from DRAM in between. For the last, prints of shards that were used once are
 * remembered, also of those that are gone: 4 bytes each, in sets of 8 of which
 * the one used longest ago makes room.
 *
 * Budget: bytes flow into a bucket at an even pace, up to an hour's share, and
 * whatever is written is taken out of it. While there is any left a record may
 * be written, whatever its size, so the bucket can be below zero. It begins
 * empty, or a node that keeps starting again would write more than it may.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* ---- second use ---- */

typedef struct ldr_admit {
    uint32_t *tags; /* NULL: everything is admitted */
    uint64_t sets;  /* a power of two */
} ldr_admit_t;

/* Remembers about so many that were used once; 0: admits everything. False: no
 * memory. */
bool ldr_admit_open(ldr_admit_t *a, uint64_t remembered);
void ldr_admit_close(ldr_admit_t *a);

/* Whoever has this print is used. True: it may be written down. */
bool ldr_admit_use(ldr_admit_t *a, uint64_t print);

/* How many a node remembers that has so many bytes of SSD: twice as many as
 * there are shards in it, were they of 256 KiB. */
uint64_t ldr_admit_remembered(uint64_t ssd_bytes);

/* ---- budget ---- */

#define LDR_BUDGET_BURSTS 24u /* a day: an hour's share can be saved up */

typedef struct ldr_budget {
    double a_ns;  /* bytes that flow in; 0: no limit */
    double most;  /* that the bucket holds */
    double level; /* that are in it; may be below 0 */
    uint64_t at_ns;
} ldr_budget_t;

void ldr_budget_open(ldr_budget_t *b, double bytes_a_day, uint64_t now_ns);
/* Whether a record may be written now. */
bool ldr_budget_allows(ldr_budget_t *b, uint64_t now_ns);
/* So much was written, allowed or not. */
void ldr_budget_spend(ldr_budget_t *b, double bytes);
