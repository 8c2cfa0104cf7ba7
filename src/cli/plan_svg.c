/* larder plan --html: charts over capacity, one line for each policy. */
#include <math.h>
#include <stdio.h>

#include "cli/plan.h"
#include "cli/plan_html.h"

enum { WIDTH = 860, HEIGHT = 400, LEFT = 56, RIGHT = 108, TOP = 16, FOOT = 56 };

#define PLOT_W (WIDTH - LEFT - RIGHT)
#define PLOT_H (HEIGHT - TOP - FOOT)
#define LABEL_GAP 16.0

static double x_of(const ldr_axes_t *a, double blocks)
{
    double at =
        log(blocks / a->blocks_min) / log(a->blocks_max / a->blocks_min);

    return LEFT + PLOT_W * at;
}

static double y_of(const ldr_axes_t *a, double value)
{
    return TOP + PLOT_H * (1 - value / a->value_max);
}

/* A step of 1, 2 or 5 times a power of ten: about five to the top. */
static double step_for(double max)
{
    double power = pow(10, floor(log10(max / 5)));
    double times = max / 5 / power;

    return power * (times > 5 ? 10 : times > 2 ? 5 : times > 1 ? 2 : 1);
}

static void grid(FILE *f, const ldr_axes_t *a)
{
    double step = step_for(a->value_max);
    char text[32];

    for (double v = 0; v <= a->value_max * 1.0001; v += step) {
        fprintf(f,
                "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" "
                "y2=\"%.1f\"/><text class=\"tick\" x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%g</text>\n",
                LEFT, WIDTH - RIGHT, y_of(a, v), y_of(a, v), LEFT - 8,
                y_of(a, v) + 4, v * a->scale);
    }
    /* Ticks at 1, 2 and 5 times powers of ten, in bytes and in shares. */
    for (double p = pow(10, floor(log10(a->blocks_min * a->block_bytes)));
         p <= a->blocks_max * a->block_bytes; p *= 10) {
        for (int m = 1; m <= 5; m += m == 1 ? 1 : 3) {
            double blocks = p * m / a->block_bytes;

            if (blocks < a->blocks_min || blocks > a->blocks_max) {
                continue;
            }
            fprintf(f,
                    "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" "
                    "y2=\"%d\"/>",
                    x_of(a, blocks), x_of(a, blocks), TOP + PLOT_H,
                    TOP + PLOT_H + 5);
            fprintf(f,
                    "<text class=\"tick\" x=\"%.1f\" y=\"%d\" "
                    "text-anchor=\"middle\">%s</text>\n",
                    x_of(a, blocks), TOP + PLOT_H + 20,
                    ldr_plan_bytes(p * m, text, sizeof(text)));
        }
    }
    fprintf(f,
            "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>"
            "<text class=\"name\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">"
            "capacity of DRAM</text>\n",
            LEFT, WIDTH - RIGHT, TOP + PLOT_H, TOP + PLOT_H, LEFT + PLOT_W / 2,
            HEIGHT - 12);
}

static void curve_line(FILE *f, const ldr_axes_t *a, const ldr_series_t *s)
{
    fprintf(f, "<polyline class=\"line c%u%s\" points=\"", s->color,
            s->dashed ? " dashed" : "");
    for (unsigned i = 0; i < s->count; i++) {
        fprintf(f, "%.1f,%.1f ", x_of(a, s->blocks[i]), y_of(a, s->values[i]));
    }
    fprintf(f, "\"/>\n");
    for (unsigned i = 0; i < s->count; i++) {
        char size[32];

        fprintf(
            f,
            "<circle class=\"dot c%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\">"
            "<title>%s, %s: %.3g%s</title></circle>\n",
            s->color, x_of(a, s->blocks[i]), y_of(a, s->values[i]), s->name,
            ldr_plan_bytes(s->blocks[i] * a->block_bytes, size, sizeof(size)),
            s->values[i] * a->scale, a->unit);
    }
}

/* Names at the ends of the lines, pushed apart where they would touch. */
static void labels(FILE *f, const ldr_axes_t *a, const ldr_series_t *series,
                   unsigned count)
{
    double at[LDR_SERIES_MAX];
    unsigned order[LDR_SERIES_MAX];

    for (unsigned i = 0; i < count; i++) {
        unsigned j = i;

        at[i] = series[i].count > 0
                    ? y_of(a, series[i].values[series[i].count - 1])
                    : TOP;
        for (; j > 0 && at[order[j - 1]] > at[i]; j--) {
            order[j] = order[j - 1];
        }
        order[j] = i;
    }
    for (unsigned i = 1; i < count; i++) {
        double least = at[order[i - 1]] + LABEL_GAP;

        at[order[i]] = fmax(at[order[i]], least);
    }
    double over = count > 0 ? at[order[count - 1]] - (TOP + PLOT_H) : 0;
    for (unsigned i = 0; i < count; i++) {
        const ldr_series_t *s = &series[order[i]];

        if (s->count > 0) {
            fprintf(f,
                    "<text class=\"label c%u\" x=\"%d\" y=\"%.1f\">%s</text>\n",
                    s->color, WIDTH - RIGHT + 10,
                    at[order[i]] - fmax(0, over) + 4, s->name);
        }
    }
}

void ldr_plan_chart(FILE *f, const ldr_axes_t *a, const ldr_series_t *series,
                    unsigned count, const char *title)
{
    fprintf(f,
            "<figure><figcaption>%s</figcaption><svg viewBox=\"0 0 %d %d\" "
            "role=\"img\" aria-label=\"%s\">\n",
            title, WIDTH, HEIGHT, title);
    grid(f, a);
    for (unsigned i = 0; i < count; i++) {
        curve_line(f, a, &series[i]);
    }
    labels(f, a, series, count);
    fprintf(f, "</svg></figure>\n");
}
