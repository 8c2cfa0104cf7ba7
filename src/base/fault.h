/*
 * Named fault points in the real code.
 *
 * if (LDR_FAULT(ssd_write)) { error = -EIO; } stands where the failure would
 * come from. Every point is in the list below and nowhere else. A point that
 * is armed fires on its nth pass, for `times` passes (0: for ever). Disarmed
 * points cost one relaxed load; -DLDR_FAULTS=0 compiles them out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LDR_FAULT_MAP(X)                                                       \
    X(alloc)           /* memory of the process */                             \
    X(extent_create)   /* a memfd, or its mapping */                           \
    X(extent_hang)     /* a memfd takes its time, while it is armed */         \
    X(extent_populate) /* pages made resident */                               \
    X(extent_share)    /* a descriptor for a session */                        \
    X(thread_create)                                                           \
    X(io_open)                                                                 \
    X(io_allocate) /* ENOSPC */                                                \
    X(io_lock)                                                                 \
    X(io_read) /* EIO */                                                       \
    X(io_read_short)                                                           \
    X(io_write) /* EIO */                                                      \
    X(io_write_short)                                                          \
    X(io_sync)           /* EIO */                                             \
    X(io_intr)           /* EINTR or EAGAIN from the kernel */                 \
    X(io_hang)           /* no answer while it is armed; io=plain */           \
    X(io_submit_partial) /* the ring takes fewer than offered */               \
    X(io_uring_denied)   /* as under a container's seccomp profile */          \
    X(log_hang)          /* a log's file takes no line while it is armed */    \
    X(crc_in)            /* a bit flips between copy and checksum */           \
    X(copy_out)          /* a bit flips in DRAM before a load */               \
    X(shm_die)           /* the daemon ends while a client copies */           \
    X(extent_map)        /* a client cannot map what it was handed */          \
    X(seg_short)         /* it names fewer bytes than there are */             \
    X(seg_outside)       /* it names pages that are not there */               \
    X(dir_read)          /* EIO, in the back ends dir and 3fs */               \
    X(dir_write)         /* EIO */                                             \
    X(dir_full)          /* ENOSPC */                                          \
    X(dir_short)         /* fewer bytes than asked for */                      \
    X(dir_slow)          /* a read takes 50 ms longer */                       \
    X(dir_sync)          /* EIO, of a file or of a directory */                \
    X(dir_rename)        /* EIO */                                             \
    X(dir_no_replace)    /* no renameat2(), as on NFS */                       \
    X(dir_taken)         /* a name that is taken is given all the same */      \
    X(dir_kept)          /* what is put over something is not seen */          \
    X(dir_behind)        /* a listing that shows nothing yet */                \
    X(dir_folder)        /* EINVAL, when a directory is synced */              \
    X(dir_stale)         /* ESTALE, as on NFS */

typedef enum ldr_fault {
#define X(name) LDR_FAULT_##name,
    LDR_FAULT_MAP(X)
#undef X
        LDR_FAULT_COUNT
} ldr_fault_t;

#ifndef LDR_FAULTS
#define LDR_FAULTS 1
#endif

#if LDR_FAULTS
#define LDR_FAULT(name) ldr_fault_hit(LDR_FAULT_##name)
#else
#define LDR_FAULT(name) false
#endif

/* Whether some point is armed: the one word the fast path looks at. */
extern uint32_t ldr_fault_armed;

bool ldr_fault_fire(ldr_fault_t point);

static inline bool ldr_fault_hit(ldr_fault_t point)
{
    return __builtin_expect(
               __atomic_load_n(&ldr_fault_armed, __ATOMIC_RELAXED) != 0, 0) &&
           ldr_fault_fire(point);
}

/* Fires on pass number nth (1: the next), then on the times-1 after it. */
void ldr_fault_arm(ldr_fault_t point, uint64_t nth, uint64_t times);
void ldr_fault_disarm_all(void);
uint64_t ldr_fault_passes(ldr_fault_t point); /* since armed */
uint64_t ldr_fault_fired(ldr_fault_t point);  /* since armed */
const char *ldr_fault_name(ldr_fault_t point);

/* Arms points from "name:nth:times,...", as in the variable LARDER_FAULTS.
 * Gives false, arming nothing, if it does not parse. */
bool ldr_fault_parse(const char *text);
