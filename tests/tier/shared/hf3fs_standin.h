/*
 * What a test may tell the library that stands in for 3FS's, and ask it. Both
 * are symbols of the library itself, found with dlsym().
 */
#pragma once

#include <stdint.h>

typedef enum standin_knob {
    STANDIN_DELAY_US,   /* before each I/O is done */
    STANDIN_REORDER,    /* the last one prepared is done first */
    STANDIN_SHORT,      /* no I/O moves more than this; 0: all of it */
    STANDIN_FAIL_NTH,   /* the nth I/O from now on fails; 0: none */
    STANDIN_FAIL_WITH,  /* with this errno; 0: EIO */
    STANDIN_HOLD,       /* nothing is done until it is 0 again */
    STANDIN_REFUSE_IOV, /* iovcreate says this errno */
    STANDIN_REFUSE_IOR, /* iorcreate4 says it */
    STANDIN_REFUSE_FD,  /* reg_fd says it */
    STANDIN_FULL,       /* rings take no more than so many; 0: their size */
    STANDIN_KNOBS
} standin_knob_t;

typedef enum standin_count {
    STANDIN_READS,        /* done, also those that failed */
    STANDIN_WRITES,       /* */
    STANDIN_BYTES,        /* moved */
    STANDIN_OUT_OF_ORDER, /* done before one that was prepared earlier */
    STANDIN_MISUSED,      /* two threads in a ring, an I/O across blocks, ... */
    STANDIN_IOVS,         /* that there are */
    STANDIN_IORS,         /* that there are */
    STANDIN_FDS,          /* registered */
    STANDIN_COUNTS
} standin_count_t;

typedef void standin_set_fn(standin_knob_t knob, int64_t value);
typedef int64_t standin_get_fn(standin_count_t count);
