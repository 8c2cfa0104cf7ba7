/*
 * Memory. Everything the library allocates goes through here, so that tests
 * can fail each allocation in turn and count them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, or NULL. */
void *ldr_alloc(size_t bytes);
/* The same, on a boundary of LDR_BLOCK (for direct I/O); bytes are rounded
 * up to it. */
void *ldr_alloc_blocks(size_t bytes);
void ldr_free(void *p);
/* Makes room for `need` items in an array from ldr_alloc(); array_p: where the
 * pointer to it lies. What is new is zero. False: no memory, and it is what it
 * was. */
bool ldr_grow(void *array_p, size_t *capacity, size_t need, size_t item_bytes);

/* How often ldr_alloc*() were called in this process. */
uint64_t ldr_alloc_count(void);

/*
 * Address space for a table that grows: zeroed, and backed by memory only
 * where it was touched. NULL if it cannot be had.
 */
void *ldr_reserve(size_t bytes);
/* The same, in huge pages where the kernel gives them. */
void *ldr_reserve_huge(size_t bytes);
void ldr_unreserve(void *p, size_t bytes);
/* Gives back the memory behind some blocks of such a table: zeros again. */
void ldr_reserve_clear(void *p, size_t bytes);

/*
 * An extent of the arena: a memfd that other processes can map. Kept out of
 * core dumps.
 */
typedef struct ldr_extent {
    int fd;
    uint8_t *base;
    size_t bytes;
} ldr_extent_t;

bool ldr_extent_create(ldr_extent_t *extent, size_t bytes);
/* One that another process made, of just this size, which nobody can shrink or
 * seal. The descriptor is the extent's from now on, or the caller's still if
 * this fails. */
bool ldr_extent_adopt(ldr_extent_t *extent, int fd, size_t bytes);
/* Makes [offset, offset+bytes) resident, with huge pages where the kernel
 * gives them. False: not enough memory. */
bool ldr_extent_populate(ldr_extent_t *extent, size_t offset, size_t bytes);
/* Gives back the memory behind [offset, offset+bytes), whoever else has it
 * mapped: who touches it again finds zeros, in memory that the kernel counts as
 * its own. False: it stays. */
bool ldr_extent_empty(const ldr_extent_t *extent, size_t offset, size_t bytes);
/* Unmaps and closes it. Other processes that have it keep its memory. */
void ldr_extent_destroy(ldr_extent_t *extent);
/* A descriptor of the extent for somebody else, or -1. */
int ldr_extent_share(const ldr_extent_t *extent);
/* Nobody took it. */
void ldr_extent_unshare(int fd);

/* The extent's pages come from this NUMA node as long as it has some: before
 * any is made resident. A preference, since a binding would have the kernel end
 * the process when that node is full. */
bool ldr_extent_bind(const ldr_extent_t *extent, unsigned node);
/* Whether memory can be placed on that node: 0 or a negative errno. Without
 * NUMA in the kernel node 0 is all there is. */
int ldr_numa_check(unsigned node);

/* The machine's memory, or the least limit of the process's cgroup and those
 * above it. */
uint64_t ldr_memory_limit(void);

/* How many files the process may have open. */
uint32_t ldr_file_limit(void);
/* Raises it as far as this user may, and gives it. */
uint32_t ldr_file_limit_raise(void);
