/*
 * A plan: a trace, a cache or two of some size, and what comes of it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "plan/model.h"
#include "plan/sim.h"
#include "plan/tape.h"

typedef struct ldr_plan_times {
    double mean_s, p50_s, p99_s;
} ldr_plan_times_t;

typedef struct ldr_plan_case {
    const ldr_sim_ops_t *sim;
    uint64_t blocks;     /* of DRAM */
    uint64_t ssd_blocks; /* 0: no such tier */
    bool ssd_second;     /* written down at the second use only */
    double ssd_writes;   /* bytes a day that may be; 0: no limit */
    uint32_t nodes;      /* that share them; 0: one */
    uint32_t run_blocks; /* that stay together on a node */
} ldr_plan_case_t;

typedef struct ldr_plan_result {
    ldr_plan_case_t what;
    double share;      /* blocks of DRAM, of the trace's different ones */
    double references; /* as many as the trace has */
    double hits;       /* of them, in any tier */
    double ssd_hits;   /* of them, not in DRAM */
    double late;       /* on SSD, but not up in time: no hits */
    double tokens, hit_tokens;
    double prefill_s, saved_s; /* to compute all, and what was not computed */
    double load_tokens;        /* loaded, since it paid */
    ldr_plan_times_t with, without;
    double ssd_written, ssd_carried; /* blocks */
    double ssd_bytes_a_day;          /* both */
    /* Blocks that were not written, by cause, and hits that this has cost. */
    double ssd_refused_first, ssd_refused_budget;
    double ssd_dropped; /* before the disk came to them */
    double ssd_lost_hits;
    double busiest; /* node, by what it had to do, over the mean */
    double cpu_s;   /* of one core, for the simulation */
    double took_s;  /* real time of the simulation */
} ldr_plan_result_t;

/* Now and then: requests done, of how many. NULL: nobody wants to know. */
typedef struct ldr_plan_watch {
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
} ldr_plan_watch_t;

/* Different blocks of the whole trace. */
double ldr_plan_distinct(const ldr_tape_t *tape);

/* Hits of the whole trace for these on the tape. */
double ldr_plan_hits(const ldr_tape_t *tape, double hits);

larder_status_t ldr_plan_run(ldr_tape_t *tape, const ldr_model_t *model,
                             const ldr_plan_case_t *what,
                             const ldr_plan_watch_t *watch,
                             ldr_plan_result_t *result);
