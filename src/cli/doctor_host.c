/* doctor: the kernel, the CPU, the clock, io_uring and the GPU's driver. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/io.h"
#include "base/mem.h"
#include "cli/doctor.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define CLOCKS "/sys/devices/system/clocksource/clocksource0/"
#define CLOCK_READS 20000u
#define CLOCK_SLOW_NS 250u /* more than this, and it is a system call */

/* ---- the kernel ---- */

static bool has_pidfd(void)
{
    long fd = syscall(SYS_pidfd_open, getpid(), 0);

    if (fd >= 0) {
        close((int)fd);
    }
    return fd >= 0;
}

static bool has_peer_pidfd(void)
{
    int fds[2], pidfd = -1;
    socklen_t bytes = sizeof(pidfd);
    bool has = false;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        return false;
    }
    has = getsockopt(fds[0], SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0;
    if (has) {
        close(pidfd);
    }
    close(fds[0]);
    close(fds[1]);
    return has;
}

static bool has_populate(void)
{
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool has = p != MAP_FAILED && madvise(p, 4096, MADV_POPULATE_WRITE) == 0;

    if (p != MAP_FAILED) {
        munmap(p, 4096);
    }
    return has;
}

void ldr_doctor_kernel(const ldr_doctor_t *d)
{
    bool pidfd = has_pidfd(), peer = has_peer_pidfd(),
         populate = has_populate();
    struct utsname name;

    if (uname(&name) != 0) {
        snprintf(name.release, sizeof(name.release), "unknown");
        snprintf(name.machine, sizeof(name.machine), "unknown");
    }
    if (!pidfd) {
        ldr_doctor_say(d, LDR_VERDICT_BAD,
                       "Linux 5.3 or newer, and a seccomp profile that allows "
                       "pidfd_open",
                       "%s %s: no pidfd: the death of a client cannot be seen",
                       name.release, name.machine);
    } else if (!peer || !populate) {
        ldr_doctor_say(d, LDR_VERDICT_WARN,
                       populate ? "Linux 6.5 or newer" : "Linux 5.14 or newer",
                       "%s %s: pidfd%s; no %s%s%s: %s", name.release,
                       name.machine, populate ? ", MADV_POPULATE_WRITE" : "",
                       populate ? "" : "MADV_POPULATE_WRITE",
                       !populate && !peer ? ", no " : "",
                       peer ? "" : "SO_PEERPIDFD",
                       populate ? "clients are watched by the number of their "
                                  "process"
                                : "the arena is made resident more slowly");
    } else {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "%s %s: pidfd, SO_PEERPIDFD, MADV_POPULATE_WRITE",
                       name.release, name.machine);
    }
}

void ldr_doctor_cpu(const ldr_doctor_t *d)
{
    const char *variant = ldr_copy_variant();
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    if (strcmp(variant, "portable") == 0) {
        ldr_doctor_say(d, LDR_VERDICT_WARN,
                       "a CPU (or a virtual machine's CPU model) with SSE 4.2 "
                       "or ARMv8 CRC",
                       "%ld CPUs; checksums in plain C: several times slower",
                       cpus);
    } else {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "%ld CPUs; copies and checksums by %s", cpus, variant);
    }
}

/* ---- the clock ---- */

/* How long one reading takes, in ns: the best of a few rounds. */
static uint64_t clock_cost(void)
{
    uint64_t best = UINT64_MAX;

    for (int round = 0; round < 5; round++) {
        uint64_t begin = ldr_now_ns(&ldr_clock_real);
        for (unsigned i = 0; i < CLOCK_READS; i++) {
            (void)ldr_now_ns(&ldr_clock_real);
        }
        uint64_t took = (ldr_now_ns(&ldr_clock_real) - begin) / CLOCK_READS;
        best = took < best ? took : best;
    }
    return best;
}

void ldr_doctor_clock(const ldr_doctor_t *d)
{
    char source[64] = "unknown", available[256] = "", cure[200];
    struct timespec resolution = {0};
    uint64_t cost = clock_cost();

    ldr_doctor_line(CLOCKS "current_clocksource", source, sizeof(source));
    ldr_doctor_line(CLOCKS "available_clocksource", available,
                    sizeof(available));
    clock_getres(CLOCK_MONOTONIC, &resolution);
    if (cost > CLOCK_SLOW_NS) {
        snprintf(cure, sizeof(cure), "%s",
                 strstr(available, "tsc") != NULL && strcmp(source, "tsc") != 0
                     ? "echo tsc | sudo tee " CLOCKS "current_clocksource"
                     : "boot with tsc=reliable where the CPU has an invariant "
                       "TSC");
        ldr_doctor_say(d, LDR_VERDICT_WARN, cure,
                       "clock source %s: a reading takes %llu ns, which is a "
                       "system call each time",
                       source, (unsigned long long)cost);
    } else if (resolution.tv_sec > 0 || resolution.tv_nsec > 1000) {
        ldr_doctor_say(
            d, LDR_VERDICT_WARN, "a kernel with CONFIG_HIGH_RES_TIMERS",
            "clock source %s: steps of %ld ns", source, resolution.tv_nsec);
    } else {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "clock source %s: %llu ns a reading, steps of %ld ns",
                       source, (unsigned long long)cost, resolution.tv_nsec);
    }
}

void ldr_doctor_ntp(const ldr_doctor_t *d)
{
    struct timex state = {.modes = 0};
    int result = adjtimex(&state);

    if (result < 0) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL,
                       "the kernel does not say whether the clock is "
                       "synchronised: %s",
                       strerror(errno));
    } else if (result == TIME_ERROR || (state.status & STA_UNSYNC) != 0) {
        ldr_doctor_say(d, LDR_VERDICT_WARN, "sudo timedatectl set-ntp true",
                       "the wall clock is not synchronised: times in logs and "
                       "of what expires may be off");
    } else {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "the wall clock is synchronised, within %ld ms",
                       state.maxerror / 1000);
    }
}

/* ---- io_uring ---- */

/* A block of this program, read through a ring. 0 or a negative errno. */
static int uring_try(void)
{
    ldr_io_t *io = NULL;
    void *block = ldr_alloc_blocks(LDR_BLOCK);
    int result = ldr_io_uring_create(4, &io);

    if (result == 0 && block != NULL) {
        int file = io->ops->open(io, "/proc/self/exe", LDR_IO_READONLY);
        result =
            file >= 0 ? ldr_io_read_at(io, file, 0, block, LDR_BLOCK) : file;
        if (file >= 0) {
            io->ops->close(io, file);
        }
    }
    if (io != NULL) {
        io->ops->destroy(io);
    }
    ldr_free(block);
    return result;
}

void ldr_doctor_uring(const ldr_doctor_t *d)
{
    static const char sysctl[] = "/proc/sys/kernel/io_uring_disabled";
    int error = -uring_try();
    uint64_t set = d->config->options.io;
    char off[16] = "";
    const char *cure;

    if (error == 0) {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "a ring was set up and has read a block%s",
                       set == LDR_IO_PLAIN ? "; but io is plain" : "");
        return;
    }
    ldr_doctor_line(sysctl, off, sizeof(off));
    if (off[0] != '\0' && off[0] != '0') {
        cure = "sudo sysctl -w kernel.io_uring_disabled=0";
    } else if (!LDR_HAVE_URING) {
        cure = "build with liburing-dev installed";
    } else {
        cure = "Linux 5.6 or newer, and a seccomp profile that allows "
               "io_uring_setup, io_uring_enter and io_uring_register";
    }
    ldr_doctor_say(d, set == LDR_IO_URING ? LDR_VERDICT_BAD : LDR_VERDICT_WARN,
                   cure, "cannot be used: %s%s%s; %s", strerror(error),
                   off[0] != '\0' ? ", kernel.io_uring_disabled=" : "", off,
                   set == LDR_IO_URING ? "and io is uring"
                                       : "disks are served by threads");
}

/* ---- the GPU ---- */

/* "NVRM version: NVIDIA UNIX ... 580.159.04  Release ...": the number. */
static bool gpu_driver(char *version, size_t size)
{
    char line[256];
    char *save = NULL;

    if (!ldr_doctor_line("/proc/driver/nvidia/version", line, sizeof(line))) {
        return false;
    }
    snprintf(version, size, "of unknown version");
    for (char *word = strtok_r(line, " ", &save); word != NULL;
         word = strtok_r(NULL, " ", &save)) {
        if (strchr(word, '.') != NULL &&
            strspn(word, "0123456789.") == strlen(word)) {
            snprintf(version, size, "%s", word);
            break;
        }
    }
    return true;
}

void ldr_doctor_gpu(const ldr_doctor_t *d)
{
    char version[64];
    bool driver = gpu_driver(version, sizeof(version));
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(int *) = NULL;
    int cuda = 0;

    if (library != NULL) {
        void *symbol = dlsym(library, "cuDriverGetVersion");
        memcpy(&get_version, &symbol, sizeof(symbol));
    }
    if (!driver && library == NULL) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL, "no NVIDIA driver here");
    } else if (!driver) {
        ldr_doctor_say(d, LDR_VERDICT_WARN,
                       "start the container with the GPU (--gpus all), or "
                       "load the driver: sudo modprobe nvidia",
                       "libcuda.so.1 is there, but no driver is loaded");
    } else if (get_version == NULL) {
        ldr_doctor_say(d, LDR_VERDICT_WARN,
                       "install the package libcuda1, or run the container "
                       "with NVIDIA_DRIVER_CAPABILITIES=compute",
                       "a driver is loaded, but libcuda.so.1 cannot be: %s",
                       library == NULL ? dlerror() : "it lacks symbols");
    } else {
        get_version(&cuda);
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL, "NVIDIA driver %s, CUDA %d.%d",
                       version, cuda / 1000, cuda % 1000 / 10);
    }
}
