/* larder plan: what the files of the command share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/cli.h"
#include "plan/plan.h"

#define LDR_PLAN_SIZES 32 /* capacities, and policies, of one command */

/* "5%", or bytes. */
typedef struct ldr_plan_size {
    double share;   /* of the trace's different blocks, where bytes is 0 */
    uint64_t bytes; /* 0: a share was given */
} ldr_plan_size_t;

typedef struct ldr_plan_args {
    const char *trace;
    ldr_plan_size_t sizes[LDR_PLAN_SIZES];
    unsigned size_count;
    const ldr_sim_ops_t *sims[LDR_PLAN_SIZES];
    unsigned sim_count;
    ldr_plan_size_t ssd; /* neither: no such tier */
    bool ssd_second;
    uint64_t ssd_writes; /* bytes a day; 0: no limit */
    const char *model_name;
    ldr_model_t model;          /* block_tokens 0: as the trace says */
    uint32_t nodes, run_blocks; /* 0 nodes: not asked for */
    double sample;
    unsigned curve; /* more capacities, so many, for the curve */
    const char *html;
    bool skip_bad;
    bool json;
} ldr_plan_args_t;

/* What came of it, in the order of the command line: all capacities of the
 * first policy, then of the second. */
typedef struct ldr_plan_book {
    const ldr_plan_args_t *args;
    const ldr_tape_t *tape;
    ldr_plan_result_t *results;
    unsigned count;
    /* The curve: points for each policy, the capacities rising. */
    ldr_plan_result_t *points;
    unsigned point_count; /* of each policy */
} ldr_plan_book_t;

/* What the next GB adds, seen from one result to the next larger one of the
 * same policy (or, for the largest, from the one before). False: there is no
 * other. */
typedef struct ldr_plan_worth {
    double hit_rate;     /* of all references, for a GB */
    double saved_s_hour; /* prefill time, for a GB and an hour of the trace */
} ldr_plan_worth_t;

bool ldr_plan_worth(const ldr_plan_book_t *book, unsigned number,
                    ldr_plan_worth_t *worth_p);

/* The command line. Gives an exit code; *done_p: there is nothing left to do.
 */
int ldr_plan_parse(const ldr_args_t *args, int argc, char **argv,
                   ldr_plan_args_t *p, bool *done_p);

void ldr_plan_show(const ldr_plan_book_t *book);
void ldr_plan_json(const ldr_plan_book_t *book);
/* False: it cannot be written; errno says why. */
bool ldr_plan_html(const ldr_plan_book_t *book, const char *path);

/* Whether there are limits to what is written to SSD. */
static inline bool ldr_plan_limited(const ldr_plan_args_t *args)
{
    return args->ssd_second || args->ssd_writes > 0;
}

/* Of what might have been written to SSD, the part that was not. */
double ldr_plan_refused(const ldr_plan_result_t *r, double refused);

/* "64.0 GB", with powers of ten, as sizes are bought. */
const char *ldr_plan_bytes(double bytes, char *text, size_t size);
double ldr_plan_block_bytes(const ldr_plan_args_t *args);
