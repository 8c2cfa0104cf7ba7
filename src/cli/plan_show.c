/* larder plan: its tables, for people and for scripts. */
#include <stdio.h>

#include "cli/plan.h"

const char *ldr_plan_bytes(double bytes, char *text, size_t size)
{
    static const char units[] = " kMGTPE";
    unsigned i = 0;

    while (bytes >= 999.5 && i < sizeof(units) - 2) {
        bytes /= 1000;
        i++;
    }
    if (i == 0) {
        snprintf(text, size, "%.0f B", bytes);
    } else {
        snprintf(text, size, "%.3g %cB", bytes, units[i]);
    }
    return text;
}

static double rate(double part, double all)
{
    return all > 0 ? part / all : 0;
}

double ldr_plan_refused(const ldr_plan_result_t *r, double refused)
{
    return rate(refused,
                r->ssd_written + r->ssd_refused_first + r->ssd_refused_budget);
}

static double hours(const ldr_plan_book_t *book)
{
    return (double)book->tape->duration_ms / 3600e3;
}

/* Another capacity of the same policy: the next larger, or else the next
 * smaller one. */
static const ldr_plan_result_t *neighbour(const ldr_plan_book_t *book,
                                          unsigned number)
{
    const ldr_plan_result_t *r = &book->results[number];
    const ldr_plan_result_t *above = NULL, *below = NULL;

    for (unsigned i = 0; i < book->count; i++) {
        const ldr_plan_result_t *o = &book->results[i];

        if (o->what.sim != r->what.sim) {
            continue;
        }
        if (o->what.blocks > r->what.blocks &&
            (above == NULL || o->what.blocks < above->what.blocks)) {
            above = o;
        } else if (o->what.blocks < r->what.blocks &&
                   (below == NULL || o->what.blocks > below->what.blocks)) {
            below = o;
        }
    }
    return above != NULL ? above : below;
}

bool ldr_plan_worth(const ldr_plan_book_t *book, unsigned number,
                    ldr_plan_worth_t *worth_p)
{
    const ldr_plan_result_t *r = &book->results[number];
    const ldr_plan_result_t *o = neighbour(book, number);

    if (o == NULL) {
        return false;
    }
    double gb = ((double)o->what.blocks - (double)r->what.blocks) *
                ldr_plan_block_bytes(book->args) / 1e9;
    /* Plus 0, so that nothing is not less than nothing. */
    worth_p->hit_rate = rate(o->hits - r->hits, r->references) / gb + 0.0;
    worth_p->saved_s_hour =
        rate((o->saved_s - r->saved_s) / gb, hours(book)) + 0.0;
    return true;
}

/* ---- for scripts ---- */

static void json_times(const char *name, const ldr_plan_times_t *t)
{
    printf(",\"%s\":{\"mean\":%.4g,\"p50\":%.4g,\"p99\":%.4g}", name,
           t->mean_s * 1e3, t->p50_s * 1e3, t->p99_s * 1e3);
}

static void json_result(const ldr_plan_book_t *book, unsigned number)
{
    const ldr_plan_args_t *p = book->args;
    const ldr_plan_result_t *r = &book->results[number];
    const ldr_plan_size_t *size = &p->sizes[number % p->size_count];
    ldr_plan_worth_t worth;

    printf("{\"policy\":\"%s\",\"capacity\":%.6g,\"blocks\":%llu,"
           "\"bytes\":%.0f,\"hit_rate\":%.4f,\"hits\":%.0f,"
           "\"references\":%.0f,\"distinct\":%.0f,\"requests\":%llu",
           r->what.sim->name, size->bytes > 0 ? r->share : size->share,
           (unsigned long long)r->what.blocks,
           (double)r->what.blocks * ldr_plan_block_bytes(p),
           rate(r->hits, r->references), r->hits, r->references,
           ldr_plan_distinct(book->tape),
           (unsigned long long)book->tape->requests);
    printf(",\"token_hit_rate\":%.4f,\"time_saved\":%.4f",
           rate(r->hit_tokens, r->tokens), rate(r->saved_s, r->prefill_s));
    json_times("first_token_ms", &r->with);
    json_times("first_token_without_ms", &r->without);
    if (r->what.ssd_blocks > 0) {
        printf(",\"ssd_blocks\":%llu,\"dram_hit_rate\":%.4f,"
               "\"ssd_hit_rate\":%.4f,\"late_hit_rate\":%.4f,"
               "\"ssd_bytes_a_day\":%.4g,\"write_amplification\":%.3f",
               (unsigned long long)r->what.ssd_blocks,
               rate(r->hits - r->ssd_hits, r->references),
               rate(r->ssd_hits, r->references), rate(r->late, r->references),
               r->ssd_bytes_a_day, 1 + rate(r->ssd_carried, r->ssd_written));
    }
    if (r->what.ssd_blocks > 0 && p->model.ssd_write_bytes_per_s > 0) {
        printf(",\"ssd_dropped\":%.0f", r->ssd_dropped);
    }
    if (r->what.ssd_blocks > 0 && ldr_plan_limited(p)) {
        printf(",\"ssd_admit\":\"%s\",\"ssd_writes\":%llu,"
               "\"ssd_refused_first\":%.0f,\"ssd_refused_budget\":%.0f,"
               "\"ssd_lost_hit_rate\":%.4f",
               p->ssd_second ? "second" : "always",
               (unsigned long long)p->ssd_writes, r->ssd_refused_first,
               r->ssd_refused_budget, rate(r->ssd_lost_hits, r->references));
    }
    if (p->model.engines > 0) {
        printf(",\"engines\":%u", p->model.engines);
    }
    if (p->nodes > 1) {
        printf(",\"nodes\":%u,\"node_run\":%u,\"busiest_node\":%.3f", p->nodes,
               p->run_blocks, r->busiest);
    }
    if (ldr_plan_worth(book, number, &worth)) {
        printf(",\"gb_hit_rate\":%.3g,\"gb_saved_s_per_hour\":%.3g",
               worth.hit_rate, worth.saved_s_hour);
    }
    printf(",\"sample\":%.6g,\"bad_lines\":%llu,\"references_per_s\":%.3g,"
           "\"references_per_cpu_s\":%.3g,\"read_per_s\":%.3g}\n",
           book->tape->sample, (unsigned long long)book->tape->bad,
           rate((double)book->tape->references, r->took_s),
           rate((double)book->tape->references, r->cpu_s),
           rate((double)book->tape->all, book->tape->took_s));
}

void ldr_plan_json(const ldr_plan_book_t *book)
{
    const ldr_plan_args_t *p = book->args;

    for (unsigned i = 0; i < book->count; i++) {
        json_result(book, i);
    }
    for (unsigned i = 0; i < p->sim_count * book->point_count; i++) {
        const ldr_plan_result_t *r = &book->points[i];

        printf("{\"curve\":\"%s\",\"capacity\":%.6g,\"blocks\":%llu,"
               "\"bytes\":%.0f,\"hit_rate\":%.4f}\n",
               r->what.sim->name, r->share, (unsigned long long)r->what.blocks,
               (double)r->what.blocks * ldr_plan_block_bytes(p),
               rate(r->hits, r->references));
    }
}

/* ---- for people ---- */

static void show_trace(const ldr_plan_book_t *book)
{
    const ldr_plan_args_t *p = book->args;
    const ldr_tape_t *t = book->tape;
    double all = ldr_plan_distinct(t);
    char text[32];

    printf("%s: %llu requests in %.0f s, %llu blocks of %u tokens, %.0f of "
           "them different\n",
           p->trace, (unsigned long long)t->requests,
           (double)t->duration_ms / 1e3, (unsigned long long)t->all,
           p->model.block_tokens, all);
    printf("%s: %.0f bytes per token: a block is %s", p->model_name,
           p->model.bytes_per_token,
           ldr_plan_bytes(ldr_plan_block_bytes(p), text, sizeof(text)));
    printf(", all of them %s\n",
           ldr_plan_bytes(all * ldr_plan_block_bytes(p), text, sizeof(text)));
    printf("prefill %.0f tokens/s at the start of a prompt, half of it at "
           "%.0f\n",
           p->model.prefill_rate, p->model.slow_tokens);
    if (p->nodes > 1) {
        printf("%u nodes with an equal share of the capacity, %u block%s of a "
               "chain together (optimal: one that has all of it)\n",
               p->nodes, p->run_blocks, p->run_blocks == 1 ? "" : "s");
    }
    if (t->sample < 1) {
        printf("sampled: %.3g %% of the blocks; all figures are estimates\n",
               100 * t->sample);
    }
}

static void show_result(const ldr_plan_book_t *book, unsigned number, bool ssd)
{
    const ldr_plan_result_t *r = &book->results[number];
    ldr_plan_worth_t worth;
    char size[32], daily[32];

    printf("%-8s %7.2f %% %9s %8.1f %% %7.1f %% %7.1f %%", r->what.sim->name,
           100 * r->share,
           ldr_plan_bytes((double)r->what.blocks *
                              ldr_plan_block_bytes(book->args),
                          size, sizeof(size)),
           100 * rate(r->hits, r->references),
           100 * rate(r->hit_tokens, r->tokens),
           100 * rate(r->saved_s, r->prefill_s));
    if (ssd) {
        printf(" %7.1f %% %9s %5.2f", 100 * rate(r->ssd_hits, r->references),
               ldr_plan_bytes(r->ssd_bytes_a_day, daily, sizeof(daily)),
               1 + rate(r->ssd_carried, r->ssd_written));
    }
    if (ssd && ldr_plan_limited(book->args)) {
        printf(" %7.1f %% %7.1f %% %7.1f %%",
               100 * ldr_plan_refused(r, r->ssd_refused_first),
               100 * ldr_plan_refused(r, r->ssd_refused_budget),
               100 * rate(r->ssd_lost_hits, r->references));
    }
    printf(" %8.0f %8.0f %8.0f", r->with.mean_s * 1e3, r->with.p50_s * 1e3,
           r->with.p99_s * 1e3);
    if (ldr_plan_worth(book, number, &worth)) {
        printf(" %9.2f s/h", worth.saved_s_hour);
    }
    printf("\n");
}

void ldr_plan_show(const ldr_plan_book_t *book)
{
    const ldr_plan_args_t *p = book->args;
    bool ssd = book->count > 0 && book->results[0].what.ssd_blocks > 0;

    show_trace(book);
    printf("\n%-8s %9s %9s %10s %9s %9s", "policy", "capacity", "size",
           "hit rate", "tokens", "time");
    if (ssd) {
        printf(" %9s %9s %5s", "from ssd", "written/d", "ampl.");
    }
    if (ssd && ldr_plan_limited(p)) {
        printf(" %9s %9s %9s", "used once", "budget", "hits lost");
    }
    printf(" %8s %8s %8s %13s\n", "mean ms", "p50", "p99", "next GB saves");
    for (unsigned i = 0; i < book->count; i++) {
        if (i > 0 && i % p->size_count == 0) {
            printf("\n");
        }
        show_result(book, i, ssd);
    }
    if (book->count > 0) {
        const ldr_plan_times_t *t = &book->results[0].without;

        printf("\nfirst token without a cache: mean %.0f ms, p50 %.0f, p99 "
               "%.0f. ",
               t->mean_s * 1e3, t->p50_s * 1e3, t->p99_s * 1e3);
        if (p->model.engines > 0) {
            printf("Waiting for one of %u engines is counted.\n",
                   p->model.engines);
        } else {
            printf("No waiting is counted.\n");
        }
    }
    for (unsigned i = 0; i < book->count; i++) {
        const ldr_plan_result_t *r = &book->results[i];

        if (r->ssd_dropped > 0) {
            printf("%s, %.2f %%: %.1f %% of what was to be written had left "
                   "DRAM before the disk came to it\n",
                   r->what.sim->name, 100 * r->share,
                   100 * rate(r->ssd_dropped, r->ssd_written + r->ssd_dropped));
        }
    }
    for (unsigned i = 0; i < book->count && p->nodes > 1; i++) {
        const ldr_plan_result_t *r = &book->results[i];

        if (r->busiest > 0) {
            printf("%s, %.2f %%: the busiest node has %.1f times its share\n",
                   r->what.sim->name, 100 * r->share, r->busiest);
        }
    }
    for (unsigned i = 0; i < p->sim_count * book->point_count; i++) {
        const ldr_plan_result_t *r = &book->points[i];

        if (i % book->point_count == 0) {
            printf("\ncurve of %s\n", r->what.sim->name);
        }
        char size[32];
        printf("%8.2f %% %9s %8.1f %%\n", 100 * r->share,
               ldr_plan_bytes((double)r->what.blocks * ldr_plan_block_bytes(p),
                              size, sizeof(size)),
               100 * rate(r->hits, r->references));
    }
}
