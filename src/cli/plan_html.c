/* larder plan --html: a page that needs nothing but itself. */
#include "cli/plan_html.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cli/plan.h"
#include "larder/larder.h"

static const char head[] =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n"
    "<title>larder plan</title><style>\n"
    ":root{--bg:#fff;--fg:#1d2430;--dim:#667085;--grid:#e6e9ee;--card:#f6f7f9;"
    "--c0:#2a67c8;--c1:#c2600a;--c2:#13855a;--c3:#7b4bbd;--c4:#6b7280;"
    "--c5:#b8336a}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#14181f;--fg:#e8ebf0;"
    "--dim:#98a2b3;--grid:#2a313c;--card:#1c222b;--c0:#74a9ff;--c1:#f5a04c;"
    "--c2:#4cc793;--c3:#b99af2;--c4:#a4adbb;--c5:#f27fa8}}\n"
    "body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,"
    "sans-serif;margin:0 auto;max-width:920px;padding:32px 24px}\n"
    "h1{font-size:26px;line-height:1.25;margin:0 0 4px}p{margin:0 0 20px;"
    "color:var(--dim)}\n"
    ".tiles{display:flex;flex-wrap:wrap;gap:12px;margin:20px 0}"
    ".tile{background:var(--card);border-radius:10px;padding:12px 16px;"
    "flex:1 1 120px}.tile b{display:block;font-size:24px;line-height:1.2;"
    "font-weight:650}.tile span{color:var(--dim);font-size:13px}\n"
    "figure{margin:28px 0}figcaption{font-weight:600;margin-bottom:6px}"
    "svg{width:100%;height:auto;display:block}\n"
    "text{font:12px system-ui,sans-serif;fill:var(--dim)}"
    ".label{font-weight:600;font-size:13px}.grid{stroke:var(--grid)}"
    ".axis,.mark{stroke:var(--dim)}\n"
    ".line{fill:none;stroke-width:2.5;stroke-linejoin:round}"
    ".dashed{stroke-dasharray:6 5}.dot{stroke:var(--bg);stroke-width:1.5}\n"
    ".line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}"
    ".line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}"
    ".line.c4{stroke:var(--c4)}.line.c5{stroke:var(--c5)}\n"
    ".dot.c0,.label.c0{fill:var(--c0)}.dot.c1,.label.c1{fill:var(--c1)}"
    ".dot.c2,.label.c2{fill:var(--c2)}.dot.c3,.label.c3{fill:var(--c3)}"
    ".dot.c4,.label.c4{fill:var(--c4)}.dot.c5,.label.c5{fill:var(--c5)}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;"
    "font-size:12px;font-variant-numeric:tabular-nums}"
    "th,td{text-align:right;padding:5px 7px;border-bottom:1px solid "
    "var(--grid);white-space:nowrap}th{color:var(--dim);font-weight:600}"
    "th:first-child,td:first-child{text-align:left}\n"
    "</style></head><body>\n";

static double rate(double part, double all)
{
    return all > 0 ? part / all : 0;
}

static void escaped(FILE *f, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", f);
            break;
        case '&':
            fputs("&amp;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            fputc(*text, f);
        }
    }
}

static void tile(FILE *f, const char *value, const char *what)
{
    fprintf(f, "<div class=\"tile\"><b>%s</b><span>%s</span></div>\n", value,
            what);
}

/* The result that the page is about: of `default`, or else of the first
 * policy, the one with the largest capacity. */
static const ldr_plan_result_t *chosen(const ldr_plan_book_t *book)
{
    const ldr_plan_result_t *best = NULL;
    bool found = false;

    for (unsigned i = 0; i < book->count; i++) {
        const ldr_plan_result_t *r = &book->results[i];
        bool ours = r->what.sim == &ldr_sim_default;

        if (best == NULL || (ours && !found) ||
            (r->what.sim == best->what.sim &&
             r->what.blocks > best->what.blocks)) {
            best = r;
            found = found || ours;
        }
    }
    return best;
}

static void intro(FILE *f, const ldr_plan_book_t *book)
{
    const ldr_plan_args_t *p = book->args;
    const ldr_tape_t *t = book->tape;
    const ldr_plan_result_t *r = chosen(book);
    double block = ldr_plan_block_bytes(p);
    double distinct = ldr_plan_distinct(t);
    const char *name = strrchr(p->trace, '/');
    char text[64], size[32], title[64];

    ldr_plan_bytes((double)r->what.blocks * block, size, sizeof(size));
    fprintf(f, "<h1>%.0f %% of the blocks come from %s of DRAM</h1>\n<p>",
            100 * rate(r->hits - r->ssd_hits, r->references), size);
    escaped(f, name != NULL ? name + 1 : p->trace);
    fprintf(f,
            ": %llu requests in %.0f s; %s, %.0f bytes a token; "
            "policy %s. Times %s waiting for an engine.%s</p>\n"
            "<div class=\"tiles\">",
            (unsigned long long)t->requests, (double)t->duration_ms / 1e3,
            p->model_name, p->model.bytes_per_token, r->what.sim->name,
            p->model.engines > 0 ? "with" : "without",
            t->sample < 1 ? " Estimated from a sample of the blocks." : "");
    snprintf(text, sizeof(text), "%.1f %%",
             100 * rate(r->saved_s, r->prefill_s));
    tile(f, text, "of the prefill time saved");
    snprintf(text, sizeof(text), "%.0f ms", r->with.mean_s * 1e3);
    snprintf(title, sizeof(title), "mean first token, %.0f without",
             r->without.mean_s * 1e3);
    tile(f, text, title);
    snprintf(text, sizeof(text), "%.1f %%",
             100 * rate((double)t->all - distinct, (double)t->all));
    tile(f, text, "would hit in an endless cache");
    tile(f, ldr_plan_bytes(distinct * block, text, sizeof(text)),
         "all different blocks");
    if (r->what.ssd_blocks > 0) {
        tile(f, ldr_plan_bytes(r->ssd_bytes_a_day, text, sizeof(text)),
             "written to SSD a day");
    }
    fprintf(f, "</div>\n");
}

static ldr_series_t *series_new(ldr_series_t *s, const ldr_sim_ops_t *sim,
                                unsigned number)
{
    s->name = sim->name;
    s->color = number % 6;
    s->dashed = sim == &ldr_sim_optimal;
    s->count = 0;
    return s;
}

static void point_add(ldr_series_t *s, double blocks, double value)
{
    if (s->count < LDR_SERIES_POINTS) {
        s->blocks[s->count] = blocks;
        s->values[s->count++] = value;
    }
}

static void hit_chart(FILE *f, const ldr_plan_book_t *book,
                      ldr_series_t *series)
{
    const ldr_plan_args_t *p = book->args;
    const ldr_plan_result_t *first = &book->points[0];
    const ldr_plan_result_t *last = &book->points[book->point_count - 1];
    ldr_axes_t a = {
        .blocks_min = (double)first->what.blocks,
        .blocks_max =
            fmax((double)last->what.blocks, (double)first->what.blocks + 1),
        .block_bytes = ldr_plan_block_bytes(p),
        .value_max = 0.05,
        .scale = 100,
        .unit = " %",
    };

    for (unsigned i = 0; i < p->sim_count; i++) {
        ldr_series_t *s = series_new(&series[i], p->sims[i], i);

        for (unsigned j = 0; j < book->point_count; j++) {
            const ldr_plan_result_t *r =
                &book->points[i * book->point_count + j];

            point_add(s, (double)r->what.blocks, rate(r->hits, r->references));
        }
        for (unsigned j = 0; j < s->count; j++) {
            a.value_max = fmax(a.value_max, s->values[j] * 1.05);
        }
    }
    ldr_plan_chart(f, &a, series, p->sim_count,
                   "Hit rate by blocks, % (DRAM alone)");
}

static void time_chart(FILE *f, const ldr_plan_book_t *book,
                       ldr_series_t *series)
{
    const ldr_plan_args_t *p = book->args;
    ldr_axes_t a = {
        .blocks_min = HUGE_VAL,
        .block_bytes = ldr_plan_block_bytes(p),
        .value_max = book->results[0].without.mean_s * 1.1,
        .scale = 1000,
        .unit = " ms",
    };

    for (unsigned i = 0; i < book->count; i++) {
        double blocks = (double)book->results[i].what.blocks;

        a.blocks_min = fmin(a.blocks_min, blocks);
        a.blocks_max = fmax(a.blocks_max, blocks);
    }
    if (a.blocks_max <= a.blocks_min || a.value_max <= 0) {
        return; /* one capacity makes no line */
    }
    for (unsigned i = 0; i < p->sim_count; i++) {
        ldr_series_t *s = series_new(&series[i], p->sims[i], i);

        for (unsigned j = 0; j < p->size_count; j++) {
            const ldr_plan_result_t *r = &book->results[i * p->size_count + j];
            unsigned at = s->count;

            point_add(s, (double)r->what.blocks, r->with.mean_s);
            for (; at > 0 && s->blocks[at - 1] > s->blocks[at]; at--) {
                double blocks = s->blocks[at], value = s->values[at];

                s->blocks[at] = s->blocks[at - 1];
                s->values[at] = s->values[at - 1];
                s->blocks[at - 1] = blocks;
                s->values[at - 1] = value;
            }
        }
    }
    ldr_series_t *none = &series[p->sim_count];
    *none = (ldr_series_t){.name = "no cache", .color = 5, .dashed = true};
    point_add(none, a.blocks_min, book->results[0].without.mean_s);
    point_add(none, a.blocks_max, book->results[0].without.mean_s);
    ldr_plan_chart(f, &a, series, p->sim_count + 1,
                   "Mean time to the first token, ms");
}

static void table_write(FILE *f, const ldr_plan_book_t *book)
{
    bool ssd = book->results[0].what.ssd_blocks > 0;
    bool limited = ssd && ldr_plan_limited(book->args);
    char size[32], daily[32];

    fprintf(f, "<div class=\"scroll\"><table><tr><th>policy<th>capacity"
               "<th>size<th>hit rate<th>tokens<th>time saved");
    if (ssd) {
        fprintf(f, "<th>from SSD<th>written a day<th>amplification");
    }
    if (limited) {
        fprintf(f, "<th>refused: used once<th>budget<th>hits lost");
    }
    fprintf(f, "<th>first token, mean<th>p50<th>p99<th>next GB saves</tr>\n");
    for (unsigned i = 0; i < book->count; i++) {
        const ldr_plan_result_t *r = &book->results[i];
        ldr_plan_worth_t worth;

        fprintf(f,
                "<tr><td>%s<td>%.3g %%<td>%s<td>%.1f %%<td>%.1f %%<td>%.1f %%",
                r->what.sim->name, 100 * r->share,
                ldr_plan_bytes((double)r->what.blocks *
                                   ldr_plan_block_bytes(book->args),
                               size, sizeof(size)),
                100 * rate(r->hits, r->references),
                100 * rate(r->hit_tokens, r->tokens),
                100 * rate(r->saved_s, r->prefill_s));
        if (ssd) {
            fprintf(f, "<td>%.1f %%<td>%s<td>%.2f",
                    100 * rate(r->ssd_hits, r->references),
                    ldr_plan_bytes(r->ssd_bytes_a_day, daily, sizeof(daily)),
                    1 + rate(r->ssd_carried, r->ssd_written));
        }
        if (limited) {
            fprintf(f, "<td>%.1f %%<td>%.1f %%<td>%.1f %%",
                    100 * ldr_plan_refused(r, r->ssd_refused_first),
                    100 * ldr_plan_refused(r, r->ssd_refused_budget),
                    100 * rate(r->ssd_lost_hits, r->references));
        }
        fprintf(f, "<td>%.0f ms<td>%.0f ms<td>%.0f ms", r->with.mean_s * 1e3,
                r->with.p50_s * 1e3, r->with.p99_s * 1e3);
        if (ldr_plan_worth(book, i, &worth)) {
            fprintf(f, "<td>%.3g s/h</tr>\n", worth.saved_s_hour);
        } else {
            fprintf(f, "<td></tr>\n");
        }
    }
    fprintf(f, "</table></div>\n<p>Larder %s, larder plan</p></body></html>\n",
            larder_version());
}

bool ldr_plan_html(const ldr_plan_book_t *book, const char *path)
{
    ldr_series_t *series =
        ldr_alloc((LDR_PLAN_SIZES + 1) * sizeof(ldr_series_t));
    FILE *f = series != NULL ? fopen(path, "w") : NULL;

    if (f == NULL) {
        errno = series == NULL ? ENOMEM : errno;
        ldr_free(series);
        return false;
    }
    fputs(head, f);
    intro(f, book);
    hit_chart(f, book, series);
    time_chart(f, book, series);
    table_write(f, book);
    ldr_free(series);
    bool ok = ferror(f) == 0;
    return fclose(f) == 0 && ok;
}
