/*
 * One file of the simulated disk: its bytes as the user sees them, and what a
 * power cut would leave of them. See simdisk.h for the rules.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

#define SIM_PAGE_BYTES 32768u /* 64 sectors of 512: a bit of dirty for each */

typedef struct simpage {
    unsigned refs;
    uint8_t data[SIM_PAGE_BYTES];
} simpage_t;

typedef struct simslot {
    simpage_t *now, *durable;
    uint64_t dirty; /* a bit per sector written since the last sync */
} simslot_t;

typedef struct simfile {
    uint64_t size, durable_size;
    size_t slot_count;
    simslot_t *slots;

    /* The disk's own. */
    struct simfile *next;
    struct simfile *twin;  /* its copy, while a clone is made */
    unsigned refs;         /* entries, now or durable, and handles */
    unsigned links, opens; /* names that mean it now; handles */
    int lock_holder;       /* a file number, or -1 */
} simfile_t;

/* What decides: the disk's randomness and its sector. */
typedef struct simmedium {
    ldr_rand_t rand;
    unsigned sector_bytes;
} simmedium_t;

/* How a power cut treats unsynced sectors: chances in 256. */
typedef struct simfate {
    unsigned lost, garbled;
} simfate_t;

static inline bool simmedium_coin(simmedium_t *medium)
{
    return ldr_rand_next(&medium->rand) >> 63;
}

/* realloc() that does not fail. */
void *simgrown(void *p, size_t bytes);

simfile_t *simfile_new(void);
simfile_t *simfile_clone(const simfile_t *file);
void simfile_free(simfile_t *file);

void simfile_read(const simfile_t *file, uint64_t offset, uint8_t *data,
                  size_t bytes);
/* Must not cross a page. data NULL: zeros. */
void simfile_write(simmedium_t *medium, simfile_t *file, uint64_t offset,
                   const uint8_t *data, size_t bytes);
/* The user makes it shorter or longer: unsynced, as any change. */
void simfile_resize(simmedium_t *medium, simfile_t *file, uint64_t bytes);
void simfile_sync(simfile_t *file);
void simfile_sync_failed(simmedium_t *medium, simfile_t *file);

simfate_t simfate_draw(simmedium_t *medium);
void simfile_power_cut(simmedium_t *medium, simfile_t *file, simfate_t fate);
uint64_t simfile_unsynced(const simfile_t *file);

/* Damage: durable at once. */
void simfile_trim(simfile_t *file, uint64_t bytes);
void simfile_damage(simfile_t *file, uint64_t offset, const uint8_t *data,
                    size_t bytes);
