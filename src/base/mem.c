/*
 * Memory: allocations, extents (memfds that other processes map), NUMA, and
 * what limits the kernel sets.
 *
 * State: the count of allocations, atomic. An extent is the caller's, who sees
 * to it that one thread at a time changes it; populating two parts of one
 * extent at once is allowed. The seals are set before anybody else can have the
 * file.
 */
#define _GNU_SOURCE
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/io.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define LDR_HUGE ((size_t)2 << 20)

/* Nobody may shrink what others have mapped (no SIGBUS), nor forbid writing,
 * which would also keep its memory from being given back: other processes have
 * the same file, and can add any seal that is not sealed itself. */
#define EXTENT_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* linux/mempolicy.h: MPOL_PREFERRED. */
#define POLICY_PREFERRED 1

static uint64_t alloc_count;

void *ldr_alloc(size_t bytes)
{
    __atomic_add_fetch(&alloc_count, 1, __ATOMIC_RELAXED);
    if (LDR_FAULT(alloc)) {
        return NULL;
    }
    return calloc(1, bytes > 0 ? bytes : 1);
}

void *ldr_alloc_blocks(size_t bytes)
{
    __atomic_add_fetch(&alloc_count, 1, __ATOMIC_RELAXED);
    if (LDR_FAULT(alloc) || bytes > SIZE_MAX - LDR_BLOCK) {
        return NULL;
    }
    bytes = ldr_div_up(bytes > 0 ? bytes : 1, LDR_BLOCK) * LDR_BLOCK;
    void *p = aligned_alloc(LDR_BLOCK, bytes);
    if (p != NULL) {
        memset(p, 0, bytes);
    }
    return p;
}

void ldr_free(void *p)
{
    free(p);
}

bool ldr_grow(void *array_p, size_t *capacity, size_t need, size_t item_bytes)
{
    void *array, *larger;
    size_t next = *capacity * 2 + 16;

    if (need <= *capacity) {
        return true;
    }
    next = next > need ? next : need;
    larger = ldr_alloc(next * item_bytes);
    if (larger == NULL) {
        return false;
    }
    memcpy(&array, array_p, sizeof(array)); /* a pointer of any type */
    if (*capacity > 0) {
        memcpy(larger, array, *capacity * item_bytes);
    }
    ldr_free(array);
    memcpy(array_p, &larger, sizeof(larger));
    *capacity = next;
    return true;
}

uint64_t ldr_alloc_count(void)
{
    return __atomic_load_n(&alloc_count, __ATOMIC_RELAXED);
}

void *ldr_reserve(size_t bytes)
{
    __atomic_add_fetch(&alloc_count, 1, __ATOMIC_RELAXED);
    if (LDR_FAULT(alloc)) {
        return NULL;
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void *ldr_reserve_huge(size_t bytes)
{
    void *p = ldr_reserve(bytes);

    if (p != NULL) {
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    }
    return p;
}

void ldr_reserve_clear(void *p, size_t bytes)
{
    if (madvise(p, bytes, MADV_DONTNEED) != 0) {
        memset(p, 0, bytes); /* locked in memory */
    }
}

void ldr_unreserve(void *p, size_t bytes)
{
    if (p != NULL) {
        munmap(p, bytes);
    }
}

/* Maps the file, on a boundary of huge pages, or the kernel cannot collapse
 * it. */
static bool extent_map(ldr_extent_t *extent, int fd, size_t bytes)
{
    uint8_t *space = mmap(NULL, bytes + LDR_HUGE, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
        return false;
    }
    size_t head = (LDR_HUGE - (uintptr_t)space % LDR_HUGE) % LDR_HUGE;
    void *base = mmap(space + head, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, fd, 0);
    if (base == MAP_FAILED) {
        munmap(space, bytes + LDR_HUGE);
        return false;
    }
    if (head > 0) {
        munmap(space, head);
    }
    munmap(space + head + bytes, LDR_HUGE - head);
    madvise(base, bytes, MADV_DONTDUMP);
    extent->fd = fd;
    extent->base = base;
    extent->bytes = bytes;
    return true;
}

bool ldr_extent_create(ldr_extent_t *extent, size_t bytes)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    if (LDR_FAULT(extent_create)) {
        return false;
    }
    while (LDR_FAULT(extent_hang)) {
        nanosleep(&pause, NULL);
    }
    int fd = memfd_create("larder-extent", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return false;
    }
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, EXTENT_SEALS) != 0 ||
        !extent_map(extent, fd, bytes)) {
        close(fd);
        return false;
    }
    return true;
}

bool ldr_extent_adopt(ldr_extent_t *extent, int fd, size_t bytes)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    /* An older program has set all but the last. */
    if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 &&
        (seals & F_SEAL_SEAL) == 0 &&
        fcntl(fd, F_ADD_SEALS, EXTENT_SEALS) == 0) {
        seals = fcntl(fd, F_GET_SEALS);
    }
    return !LDR_FAULT(extent_create) && seals >= 0 &&
           (seals & EXTENT_SEALS) == EXTENT_SEALS && fstat(fd, &st) == 0 &&
           S_ISREG(st.st_mode) && st.st_size == (off_t)bytes &&
           extent_map(extent, fd, bytes);
}

bool ldr_extent_populate(ldr_extent_t *extent, size_t offset, size_t bytes)
{
    uint8_t *p = extent->base + offset;

    if (LDR_FAULT(extent_populate)) {
        return false;
    }
    if (madvise(p, bytes, MADV_POPULATE_WRITE) != 0) {
        /* Kernels before 5.14: reserve in the file, which fails where a touch
         * would raise SIGBUS, then touch. */
        if (fallocate(extent->fd, 0, (off_t)offset, (off_t)bytes) != 0) {
            return false;
        }
        for (size_t i = 0; i < bytes; i += 4096) {
            ((volatile uint8_t *)p)[i] = 0;
        }
    }
    madvise(p, bytes, MADV_COLLAPSE); /* huge where the kernel can */
    return true;
}

bool ldr_extent_empty(const ldr_extent_t *extent, size_t offset, size_t bytes)
{
    return extent->base == NULL ||
           fallocate(extent->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     (off_t)offset, (off_t)bytes) == 0;
}

void ldr_extent_destroy(ldr_extent_t *extent)
{
    if (extent->base != NULL) {
        munmap(extent->base, extent->bytes);
        close(extent->fd);
        extent->base = NULL;
    }
}

int ldr_extent_share(const ldr_extent_t *extent)
{
    return LDR_FAULT(extent_share) ? -1 : fcntl(extent->fd, F_DUPFD_CLOEXEC, 3);
}

void ldr_extent_unshare(int fd)
{
    close(fd);
}

/* ---- NUMA ---- */

/* 0 or a negative errno. */
static int prefer(void *base, size_t bytes, unsigned node)
{
    unsigned long mask = node < 64 ? 1ul << node : 0;

    if (mask == 0) {
        return -EINVAL;
    }
    /* The kernel reads one bit less than it is told. */
    if (syscall(SYS_mbind, base, bytes, POLICY_PREFERRED, &mask, 65ul, 0u) ==
        0) {
        return 0;
    }
    return errno == ENOSYS && node == 0 ? 0 : -errno;
}

bool ldr_extent_bind(const ldr_extent_t *extent, unsigned node)
{
    return prefer(extent->base, extent->bytes, node) == 0;
}

int ldr_numa_check(unsigned node)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        return -ENOMEM;
    }
    int error = prefer(p, bytes, node);
    munmap(p, bytes);
    return error;
}

/* ---- limits ---- */

static uint64_t file_number(const char *path)
{
    unsigned long long value = 0;
    FILE *f = fopen(path, "re");

    if (f == NULL) {
        return UINT64_MAX;
    }
    if (fscanf(f, "%llu", &value) != 1) { /* "max", or no number */
        value = UINT64_MAX;
    }
    fclose(f);
    return value;
}

/* The least limit in a cgroup and those above it; path is cut on the way. */
static uint64_t cgroup_limit(const char *root, char *path, const char *file)
{
    char name[640];
    uint64_t limit = UINT64_MAX;

    for (;;) {
        snprintf(name, sizeof(name), "%s%s/%s", root, path, file);
        limit = ldr_min64(limit, file_number(name));
        char *slash = strrchr(path, '/');
        if (slash == NULL) {
            return limit;
        }
        *slash = '\0';
    }
}

/* A line of /proc/self/cgroup is "number:controllers:path". */
static uint64_t cgroup_line_limit(char *line)
{
    char *controllers = strchr(line, ':');
    char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

    if (path == NULL) {
        return UINT64_MAX;
    }
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (controllers[1] == '\0') {
        return cgroup_limit("/sys/fs/cgroup", path, "memory.max");
    }
    return strstr(controllers, "memory") != NULL
               ? cgroup_limit("/sys/fs/cgroup/memory", path,
                              "memory.limit_in_bytes")
               : UINT64_MAX;
}

uint64_t ldr_memory_limit(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t limit = UINT64_MAX;
    char line[512];
    FILE *f = fopen("/proc/self/cgroup", "re");

    if (pages > 0 && page_bytes > 0) {
        limit = (uint64_t)pages * (uint64_t)page_bytes;
    }
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        limit = ldr_min64(limit, cgroup_line_limit(line));
    }
    if (f != NULL) {
        fclose(f);
    }
    return limit;
}

uint32_t ldr_file_limit_raise(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* else it stays as it is */
    }
    return ldr_file_limit();
}

uint32_t ldr_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT32_MAX) {
        return INT32_MAX;
    }
    return (uint32_t)limit.rlim_cur;
}
