/*
 * A simulated disk behind the I/O seam: deterministic, in memory, able to
 * fail in every way a disk does. The same seed and the same calls give the
 * same disk, byte for byte.
 *
 * Time does not pass: submit() carries out the requests of one call at once,
 * in an order drawn from the seed, and calls done() before it returns. A
 * submit() from inside done() queues, and is carried out before the outermost
 * submit() returns; so done() must not wait for I/O. A disk is used by one
 * thread at a time; clones share nothing that a second thread could harm.
 *
 * What survives a power cut:
 * - of each sector written since the last sync of its file: the new bytes,
 *   the old ones, or garbage. A sector written twice since may also show the
 *   bytes between.
 * - the length of a file since its last sync: the new one or the old one;
 * - names made or removed since the last sync_dir() of their directory: done
 *   or not, each on its own;
 * - everything else, as it was.
 *
 * "Operations" are what a power cut can fall into: writes, syncs, and changes
 * of names and lengths. Reads are not counted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/io.h"

typedef struct simdisk simdisk_t;

/* The sector is what the disk writes whole or not: 512, or a multiple up to
 * LDR_BLOCK; 0 for 512. */
simdisk_t *simdisk_create(uint64_t seed, unsigned sector_bytes);
/* Called for each new one that is no clone: what else must begin anew. NULL:
 * nothing. */
extern void (*simdisk_fresh)(void);
/* Unlike io->ops->destroy(), which only closes all files: the disk outlives
 * its user. */
void simdisk_destroy(simdisk_t *disk);
ldr_io_t *simdisk_io(simdisk_t *disk);

/* All that is drawn from now on comes from this seed. */
void simdisk_seed(simdisk_t *disk, uint64_t seed);

/*
 * A copy with nothing open, locked or armed: what another process would find
 * if this one were killed now. Costs microseconds; bytes are shared until
 * one of the two is written.
 */
simdisk_t *simdisk_clone(const simdisk_t *disk);

/* ------------------------------------------------------------- power */

/* Cuts the power now. All files are closed; all calls give -EIO until the
 * disk is rebooted. */
void simdisk_power_cut(simdisk_t *disk);
void simdisk_reboot(simdisk_t *disk);
bool simdisk_is_off(const simdisk_t *disk);

/* Operations so far. */
uint64_t simdisk_ops(const simdisk_t *disk);
/* Cuts the power in the middle of operation number op (the first is 1). */
void simdisk_cut_at(simdisk_t *disk, uint64_t op);

/*
 * fn is called in the middle of each operation; a simdisk_clone_cut() in it
 * gives a disk, rebooted, on which the power went then. So one run of a
 * workload serves for cuts in all its operations, many at each. fn must not
 * change the disk itself.
 */
void simdisk_on_op(simdisk_t *disk, void (*fn)(void *arg, simdisk_t *disk),
                   void *arg);
simdisk_t *simdisk_clone_cut(const simdisk_t *disk, uint64_t seed);

/* Sectors whose fate a power cut would draw. */
uint64_t simdisk_unsynced(const simdisk_t *disk);

/* ------------------------------------------------------------ faults */

typedef enum simdisk_kind {
    SIMDISK_OPEN,
    SIMDISK_ALLOCATE,
    SIMDISK_LOCK,
    SIMDISK_MAKE_DIR,
    SIMDISK_SYNC_DIR,
    SIMDISK_UNLINK,
    SIMDISK_LIST,
    SIMDISK_READ,
    SIMDISK_WRITE, /* some of the sectors may have been written */
    SIMDISK_SYNC,  /* each unsynced sector: synced, still unsynced, or lost */
    SIMDISK_WRITE_LOST,        /* acknowledged and dropped; no error */
    SIMDISK_WRITE_MISDIRECTED, /* lands on another block; no error */
    SIMDISK_KINDS
} simdisk_kind_t;

/* The nth call of the kind from now (1: the next), and the times-1 after it
 * (0: all), give error: a negative errno. Replaces what was armed for it. */
void simdisk_fail(simdisk_t *disk, simdisk_kind_t kind, uint64_t nth,
                  uint64_t times, int error);
void simdisk_fail_none(simdisk_t *disk);
/* All writes, or allocations, of what has this path give error. The path is
 * the caller's, and stays. */
void simdisk_fail_file(simdisk_t *disk, simdisk_kind_t kind, const char *path,
                       int error);
uint64_t simdisk_failed(const simdisk_t *disk, simdisk_kind_t kind);

/* Room for the sum of all lengths; -ENOSPC beyond. At first without bound. */
void simdisk_set_capacity(simdisk_t *disk, uint64_t bytes);
uint64_t simdisk_used(const simdisk_t *disk);

/* ------------------------------ behind the user's back, durable at once */

/* Gives false where there is no such file or byte. */
bool simdisk_flip(simdisk_t *disk, const char *path, uint64_t bit);
bool simdisk_truncate(simdisk_t *disk, const char *path, uint64_t bytes);
bool simdisk_write_raw(simdisk_t *disk, const char *path, uint64_t offset,
                       const void *data, size_t bytes);

/* As the user would read it now. */
bool simdisk_read_raw(const simdisk_t *disk, const char *path, uint64_t offset,
                      void *data, size_t bytes);
/* Of the file's length, or UINT64_MAX where there is none. */
uint64_t simdisk_size(const simdisk_t *disk, const char *path);
/* Path number i of the files that exist, in no special order; NULL: no more. */
const char *simdisk_path(const simdisk_t *disk, unsigned i);
