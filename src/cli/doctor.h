/*
 * `larder doctor`: each check looks at one thing of the host, in a process of
 * its own with a bound on its time, and says what it found and what to do. What
 * a node says itself when it starts (a mistake in the configuration, a token
 * that cannot be read, a socket or a port that is in use) is not repeated here.
 * No check leaves anything behind, also when it is killed: files it makes have
 * no name any more when it writes to them. What was measured is kept for
 * `larder plan` (see measured.h).
 */
#pragma once

#include "base/config.h"

typedef enum ldr_doctor_verdict {
    LDR_VERDICT_OK,
    LDR_VERDICT_WARN, /* it works, but not as well as it could */
    LDR_VERDICT_BAD,  /* it will not work */
    LDR_VERDICT_SKIP, /* cannot be known here, or is not needed */
    LDR_VERDICT_COUNT
} ldr_doctor_verdict_t;

typedef struct ldr_doctor {
    const ldr_config_t *config;
    const char *check;   /* the name of the one that runs */
    const char *subject; /* the directory or address it is about, or NULL */
    int pipe;            /* to whom it says it */
    /* Bytes a second that it measured, for `larder plan`; 0: not these. They
     * are fields of the JSON object, apart from what people read. */
    uint64_t writes, reads, copies;
} ldr_doctor_t;

/* One line. cure: what to do, a command where there is one; NULL: nothing. */
void ldr_doctor_say(const ldr_doctor_t *d, ldr_doctor_verdict_t verdict,
                    const char *cure, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The first line of a file, without its newline. False: cannot be read. */
bool ldr_doctor_line(const char *path, char *text, size_t size);

/* The word that a kernel setting has in brackets: "always [madvise] never". */
bool ldr_doctor_choice(const char *path, char *text, size_t size);

/* ---- the checks ---- */

/* doctor_host.c */
void ldr_doctor_kernel(const ldr_doctor_t *d);
void ldr_doctor_cpu(const ldr_doctor_t *d);
void ldr_doctor_clock(const ldr_doctor_t *d);
void ldr_doctor_ntp(const ldr_doctor_t *d);
void ldr_doctor_uring(const ldr_doctor_t *d);
void ldr_doctor_gpu(const ldr_doctor_t *d);

/* doctor_memory.c */
void ldr_doctor_memory(const ldr_doctor_t *d);
void ldr_doctor_huge(const ldr_doctor_t *d);
void ldr_doctor_memlock(const ldr_doctor_t *d);
void ldr_doctor_numa(const ldr_doctor_t *d);

/* doctor_disk.c */
void ldr_doctor_disk(const ldr_doctor_t *d);

/* doctor_shared.c */
void ldr_doctor_shared(const ldr_doctor_t *d);

/* doctor_cluster.c: of the daemon that runs with this configuration. */
void ldr_doctor_cluster(const ldr_doctor_t *d);

/* doctor_link.c: bytes a second from a member and to it; 0: none came. */
typedef struct ldr_doctor_speed {
    double in, out;
} ldr_doctor_speed_t;

typedef struct ldr_doctor_link {
    ldr_doctor_speed_t bare, spoken; /* by a bare socket, as members speak */
} ldr_doctor_link_t;

/* For about so long, and most_ns at most for each way and direction; the first
 * one that fails is the last. What was measured is there after a failure,
 * too; a link that was measured before keeps the better figures. E_DEADLINE:
 * bytes did not come through in time. */
larder_status_t ldr_doctor_link(const ldr_options_t *o, const char *address,
                                uint64_t ns, uint64_t most_ns,
                                ldr_doctor_link_t *link);

/* doctor_net.c */
void ldr_doctor_ktls(const ldr_doctor_t *d);
void ldr_doctor_key(const ldr_doctor_t *d);
