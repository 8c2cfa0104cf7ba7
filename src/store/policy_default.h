/*
 * The default policy. What it does and why: docs/policy.md; its parts:
 *
 *   policy_learn    what classes of runs are worth, by age
 *   policy_runs     what runs there are, with policy_prints, policy_queue and
 *                   policy_ghosts
 *   policy_request  what a request teaches and changes
 *   policy_guard    who ranks, with policy_shade and policy_stack
 *   policy_default  the table: slots, admission, victims
 */
#pragma once

#include "store/policy.h"
#include "store/policy_runs.h"

#define LDR_PATH_MAX 4096u    /* runs of one chain that are looked at */
#define LDR_REBUILD_LEAST 50u /* requests between new tables */
#define LDR_RECENT 16u        /* requests that would be noticed again */
#define LDR_RECENT_DS 10u     /* without an id: for so long */
#define LDR_TOLD 64u          /* requests whose chunks may still come */
/* A chain that was told of so lately: reads and saves of it are no news. */
#define LDR_TOLD_DS 600u

typedef struct ldr_recent {
    uint64_t id;
    uint64_t print;
    uint32_t count;
    uint32_t seen_ds;
} ldr_recent_t;

/* A request, until so many others came after it. */
typedef struct ldr_told {
    uint32_t stamp;
    uint32_t tail;    /* the last run of its chain */
    uint32_t refused; /* from that depth on; LDR_NIL: nothing was */
} ldr_told_t;

typedef struct ldr_default {
    ldr_policy_t base;
    ldr_runs_t t;
    uint32_t raw_ds; /* the caller's clock */
    bool raw_known;
    float gap_mean;   /* between requests */
    uint32_t last_ds; /* of a request */
    uint32_t wanted;  /* victims are not of the request with this stamp */
    uint32_t path_count;
    uint32_t rebuild_left;
    uint64_t room; /* chunks that the shadows may have */
    bool room_known;
    uint64_t seen; /* resident when there last was no room; 0: not since */
    float lead;    /* hits of the learned shadow over those of LRU */
    float noise;   /* its square */
    float gain;    /* hits of the real cache over what LRU would have had, since
                    * who ranks has changed */
    float gain_noise;
    float doubt; /* sigmas more to lead by, since what led there lost here */
    uint64_t judged, hits_learned, hits_lru; /* since there was no room */
    uint32_t switches;
    uint64_t made_up; /* prints for slots that come without */
    ldr_recent_t recent[LDR_RECENT];
    ldr_told_t told[LDR_TOLD];
    uint64_t told_next;
    uint32_t path[LDR_PATH_MAX];
} ldr_default_t;

void ldr_default_time(ldr_policy_t *policy, uint32_t now_ds);
void ldr_default_request(ldr_policy_t *policy, const ldr_policy_request_t *r);
void ldr_default_close(ldr_policy_t *policy, const ldr_policy_request_t *r);

/* ---- the guard (policy_guard.c) ---- */

/* Chunks of a request that are hit, in the shadows and in the real cache; and
 * that would be, if that were LRU. */
typedef struct ldr_guard_hits {
    uint32_t learned, lru;
    uint32_t real, real_lru;
} ldr_guard_hits_t;

/* Of the runs in the path, before they are used. */
ldr_guard_hits_t ldr_guard_look(const ldr_default_t *d);
/* And when they have been: both shadows see it, and it is said who ranks. */
void ldr_guard_judge(ldr_default_t *d, const ldr_guard_hits_t *hits);

/* What a run would be worth if it were used now. */
static inline float ldr_default_first_worth(const ldr_default_t *d,
                                            uint32_t run)
{
    return ldr_learn_row(d->t.learn, d->t.runs[run].class)[0];
}
