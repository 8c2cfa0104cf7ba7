/* doctor: memory, and the limits of the process. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/doctor.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_BYTES ((size_t)2 << 20)
#define PROBE_BYTES ((size_t)4 << 20)
#define COPY_BYTES ((size_t)64 << 20)
#define COPY_TIMES 3
#define NODES "/sys/devices/system/node"
#define THP "/sys/kernel/mm/transparent_hugepage/"

/* ---- how much there is ---- */

/* A line of /proc/meminfo in bytes; 0: not there. */
static uint64_t meminfo(const char *name)
{
    FILE *f = fopen("/proc/meminfo", "re");
    unsigned long long kib = 0;
    char line[128];

    while (f != NULL && kib == 0 && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            kib = strtoull(line + strlen(name), NULL, 10);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return (uint64_t)kib << 10;
}

/* Bytes a second that one thread copies; 0: no memory for it. */
static double copy_speed(void)
{
    uint8_t *from = ldr_reserve(COPY_BYTES), *to = ldr_reserve(COPY_BYTES);
    double best = 0;

    for (int i = 0; from != NULL && to != NULL && i < COPY_TIMES; i++) {
        memset(from, i, COPY_BYTES); /* the first time it becomes memory */
        memset(to, i, COPY_BYTES);
        uint64_t began = ldr_now_ns(&ldr_clock_real);
        memcpy(to, from, COPY_BYTES);
        uint64_t took = ldr_now_ns(&ldr_clock_real) - began;

        if (to[COPY_BYTES - 1] == (uint8_t)i && took > 0) {
            double speed = (double)COPY_BYTES * 1e9 / (double)took;

            best = speed > best ? speed : best;
        }
    }
    if (from != NULL) {
        ldr_unreserve(from, COPY_BYTES);
    }
    if (to != NULL) {
        ldr_unreserve(to, COPY_BYTES);
    }
    return best;
}

void ldr_doctor_memory(const ldr_doctor_t *d)
{
    uint64_t dram = d->config->options.dram;
    uint64_t need = dram + dram / 8 + ((uint64_t)64 << 20); /* with tables */
    uint64_t limit = ldr_memory_limit(), machine = meminfo("MemTotal:");
    uint64_t left = meminfo("MemAvailable:");
    bool cgroup = machine != 0 && limit < machine;
    char want[32], may[32], now[32], cure[200];

    ldr_human_bytes(need, want, sizeof(want));
    ldr_human_bytes(limit, may, sizeof(may));
    ldr_human_bytes(left, now, sizeof(now));
    if (limit == UINT64_MAX) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL,
                       "neither the machine nor a cgroup says how much there "
                       "is");
    } else if (need > limit) {
        snprintf(cure, sizeof(cure), "--dram %lluM%s",
                 (unsigned long long)(limit / 2 >> 20),
                 cgroup ? ", or raise the limit: systemctl set-property "
                          "larder.service MemoryMax=..., or "
                          "resources.limits.memory of the pod"
                        : "");
        ldr_doctor_say(d, LDR_VERDICT_BAD, cure,
                       "dram needs %s in all, and the %s has %s", want,
                       cgroup ? "cgroup" : "machine", may);
    } else if (left != 0 && need > left) {
        ldr_doctor_say(
            d, LDR_VERDICT_WARN, "end what uses it, or choose a smaller --dram",
            "dram needs %s in all, and only %s are free now", want, now);
    } else {
        ldr_doctor_t with = *d;

        with.copies = (uint64_t)copy_speed();
        ldr_doctor_say(&with, LDR_VERDICT_OK, NULL,
                       "dram needs %s in all; the %s has %s, %s free now, "
                       "copies %.2f GB/s",
                       want, cgroup ? "cgroup" : "machine", may, now,
                       (double)with.copies / 1e9);
    }
}

/* ---- huge pages ---- */

/* Bytes of this mapping that are huge pages; by what the kernel shows. */
static uint64_t huge_bytes(const void *base)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    unsigned long long kib = 0;
    char line[512], begin[32];
    bool here = false;

    snprintf(begin, sizeof(begin), "%lx-", (unsigned long)base);
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (line[0] >= 'A' && line[0] <= 'Z') {
            if (here && (strncmp(line, "ShmemPmdMapped:", 15) == 0 ||
                         strncmp(line, "FilePmdMapped:", 14) == 0)) {
                kib += strtoull(strchr(line, ':') + 1, NULL, 10);
            }
        } else {
            here = strncmp(line, begin, strlen(begin)) == 0;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return (uint64_t)kib << 10;
}

void ldr_doctor_huge(const ldr_doctor_t *d)
{
    char shmem[64] = "unknown", enabled[64] = "unknown";
    ldr_extent_t extent;

    ldr_doctor_choice(THP "shmem_enabled", shmem, sizeof(shmem));
    ldr_doctor_choice(THP "enabled", enabled, sizeof(enabled));
    if (!ldr_extent_create(&extent, PROBE_BYTES)) {
        ldr_doctor_say(d, LDR_VERDICT_BAD,
                       "allow memfd_create in the seccomp profile",
                       "no memfd for the arena: %s", strerror(errno));
        return;
    }
    /* As the node does it; once more by hand for the reason. */
    bool resident = ldr_extent_populate(&extent, 0, PROBE_BYTES);
    int error =
        madvise(extent.base, PROBE_BYTES, MADV_COLLAPSE) != 0 ? errno : 0;
    uint64_t huge = huge_bytes(extent.base);
    ldr_extent_destroy(&extent);

    if (!resident) {
        ldr_doctor_say(d, LDR_VERDICT_BAD, "free some memory",
                       "4 MiB of arena cannot be made resident");
    } else if (huge == PROBE_BYTES) {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "all of 4 MiB of arena became huge pages "
                       "(shmem_enabled %s, enabled %s)",
                       shmem, enabled);
    } else if (error == EINVAL && access(THP "enabled", F_OK) != 0) {
        ldr_doctor_say(d, LDR_VERDICT_WARN,
                       "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
                       "this kernel has no transparent huge pages");
    } else {
        ldr_doctor_say(
            d, LDR_VERDICT_WARN,
            strcmp(shmem, "deny") == 0 || strcmp(shmem, "never") == 0
                ? "echo advise | sudo tee " THP "shmem_enabled"
                : "Linux 6.1 or newer, which has MADV_COLLAPSE; or "
                  "echo always | sudo tee " THP "shmem_enabled",
            "%llu of 2 huge pages for 4 MiB of arena (MADV_COLLAPSE: %s; "
            "shmem_enabled %s, enabled %s): copies are slower",
            (unsigned long long)(huge / HUGE_BYTES),
            error != 0 ? strerror(error) : "ok", shmem, enabled);
    }
}

/* ---- limits ---- */

void ldr_doctor_memlock(const ldr_doctor_t *d)
{
    uint64_t dram = d->config->options.dram;
    bool gpu = access("/proc/driver/nvidia/version", F_OK) == 0;
    struct rlimit limit;
    char may[32];

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL, "cannot be asked: %s",
                       strerror(errno));
        return;
    }
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= dram) {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "as much memory as dram may be locked");
        return;
    }
    ldr_human_bytes(limit.rlim_cur, may, sizeof(may));
    if (gpu) {
        ldr_doctor_say(d, LDR_VERDICT_WARN,
                       "LimitMEMLOCK=infinity in the unit, or `ulimit -l "
                       "unlimited` before larder serve",
                       "%s may be locked, less than dram: a GPU or an RDMA "
                       "card that reads the arena needs all of it",
                       may);
    } else {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "%s may be locked; without a GPU no more is needed",
                       may);
    }
}

/* ---- NUMA ---- */

void ldr_doctor_numa(const ldr_doctor_t *d)
{
    const char *set = d->config->options.numa;
    char online[128] = "";

    if (!ldr_doctor_line(NODES "/online", online, sizeof(online))) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL,
                       NODES "/online cannot be read");
    } else if (strpbrk(online, ",-") != NULL && set[0] == '\0') {
        ldr_doctor_say(d, LDR_VERDICT_WARN,
                       "--numa 0, or the node whose engines or GPUs use it",
                       "NUMA nodes %s, and numa is not set: the arena lies "
                       "where the daemon happens to run",
                       online);
    } else {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL, "NUMA nodes %s%s%s", online,
                       set[0] != '\0' ? "; numa is " : "", set);
    }
}
