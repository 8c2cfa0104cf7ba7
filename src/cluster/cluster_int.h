/* What the parts of a cluster share. */
#pragma once

#include "cluster/cluster.h"

#define LDR_SLOTS 256u /* views that are held or current at once */

/* ---- views (view.c) ---- */

/* The current view and those that somebody still holds. `current` is the slot
 * of the one in its lowest byte, and above that how often it was taken. When
 * the view is replaced that number goes to the view's own count, from which
 * every giving back takes one: it is free when that is 0. */
typedef struct ldr_views {
    uint64_t current;                 /* atomic */
    struct ldr_view *slot[LDR_SLOTS]; /* atomic */
} ldr_views_t;

/* Makes a view of members in any order and has it be the current one. False,
 * with a text: no memory, two with one id, or all slots are held; the one
 * before stays. One thread at a time. */
bool ldr_views_publish(ldr_views_t *views, const ldr_member_t *members,
                       uint32_t count, uint64_t self, uint64_t generation);
/* Whether the current view is of these: no more than that needs to be made. */
bool ldr_views_same(ldr_views_t *views, const ldr_member_t *members,
                    uint32_t count);
void ldr_views_destroy(ldr_views_t *views);

/* ---- members (members.c) ---- */

/* Everybody that was named in the last hour, by id. */
typedef struct ldr_known {
    uint64_t id;
    bool listed;         /* by the last answer of the source */
    bool believed;       /* in the view */
    bool missing;        /* believed, and not listed ... */
    uint32_t missing_ms; /* ... for so long */
    uint64_t joined_ns;  /* its ramp began; 0: it has none */
    uint64_t gone_ns;    /* it was believed until then */
    uint64_t left_run;   /* this run of it said that it leaves; 0: none */
} ldr_known_t;

typedef struct ldr_members {
    uint32_t ramp_s;
    bool shares;     /* the source says them */
    bool has_answer; /* the source has answered ... */
    bool answered;   /* ... and that was believed */

    ldr_known_t *known; /* by id */
    size_t known_count, known_capacity;
    ldr_member_t *answer; /* the last answer; sorted by id */
    size_t answer_count, answer_capacity;
    ldr_member_t *believed; /* what the view is made of */
    size_t believed_count, believed_capacity;

    uint64_t judged_ns;
    bool holding;     /* the guard holds the answer back ... */
    uint64_t held_ns; /* ... since */
    uint64_t held;    /* so often */
} ldr_members_t;

/* The source's answer, whole. False: no memory; all is as it was. */
bool ldr_members_answer(ldr_members_t *m, const ldr_member_t *members,
                        uint32_t count);
/* Lets time pass. source_ok: the source confirms its last answer; the guard's
 * time passes only then. True: m->believed may be another now. */
bool ldr_members_judge(ldr_members_t *m, uint64_t now_ns, bool source_ok);
/* When to judge again; UINT64_MAX: after the next answer. */
uint64_t ldr_members_next(const ldr_members_t *m, uint64_t now_ns);
/* See ldr_cluster_peer_says(). */
void ldr_members_say(ldr_members_t *m, uint64_t id, uint64_t run, bool leaving);
void ldr_members_destroy(ldr_members_t *m);
/* The share after so long on the ramp. */
uint32_t ldr_ramp(uint64_t ns, uint32_t ramp_s);

/* ---- sources ---- */

typedef struct ldr_source ldr_source_t;

struct ldr_source {
    const char *name;
    bool shares; /* members publish their own share, leaving and run */
    /* Reads the option, without its scheme; sets c->name (of the cluster),
     * c->self.address and c->state. Nothing is started. */
    larder_status_t (*read)(ldr_cluster_t *c, const char *text);
    larder_status_t (*start)(ldr_cluster_t *c);
    /* The options were read again. NULL: it has nothing to read. */
    larder_status_t (*reload)(ldr_cluster_t *c);
    /* In the cluster's thread: asks, answers; gives when to be called again. */
    uint64_t (*step)(ldr_cluster_t *c);
    /* After the cluster's thread has ended, or none was started; also after a
     * read or start that failed. */
    void (*close)(ldr_cluster_t *c);
};

extern const ldr_source_t ldr_source_static, ldr_source_dns, ldr_source_etcd;

struct ldr_cluster {
    ldr_options_t options;
    ldr_log_t log;
    const ldr_clock_t *clock;
    const ldr_threads_t *threads;
    const ldr_http_t *http;
    const ldr_dns_t *dns;
    void (*changed)(void *arg);
    void *arg;

    const ldr_source_t *source;
    void *state;             /* the source's */
    char name[LDR_HOST_MAX]; /* of the cluster */
    ldr_member_t self;       /* except share and leaving */
    ldr_token_t secrets[LDR_TOKENS_MAX];
    unsigned secret_count;
    ldr_views_t views;

    pthread_mutex_t lock;      /* everything below */
    pthread_cond_t wake;       /* the thread */
    pthread_cond_t leave_cond; /* who waits for leave() */
    pthread_t thread;
    bool runs, stop; /* stop: atomic, calls under way look at it */
    bool woken;
    ldr_rand_t rand;
    ldr_members_t members;
    uint64_t generation;
    bool returning;
    char order[LDR_MEMBER_NAME]; /* a member to drain; "": none */
    bool order_back;             /* or to have back */
    bool drained;                /* the source says that it shall leave */
    bool leaving;                /* wanted ... */
    bool leaving_recorded; /* ... and what the source has recorded of it */
    uint64_t opened_ns;
    uint64_t views_count, refused, failures;
    bool source_ok, registered;
    uint64_t source_ns; /* its last good answer */
    char trouble[256];
};

/* From a source. members: its whole answer. */
void ldr_cluster_answer(ldr_cluster_t *c, const ldr_member_t *members,
                        uint32_t count);
/* The source has confirmed its last answer, or a call failed: the thread's
 * error text is what is wrong (logged when it changes). */
void ldr_cluster_source_good(ldr_cluster_t *c);
void ldr_cluster_source_bad(ldr_cluster_t *c);
/* What is wrong although the source answers; "": nothing. Logged when it
 * changes. */
void ldr_cluster_trouble(ldr_cluster_t *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Has step() called soon. */
void ldr_cluster_wake(ldr_cluster_t *c);

/* A name that a member may have: 1 to 63 of [A-Za-z0-9._-]. */
larder_status_t ldr_member_name_check(const char *what, const char *name);
