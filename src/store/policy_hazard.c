/*
 * Curves of hazard and worth. Pure arithmetic on the caller's ldr_hazard_t,
 * with the node's lock or in a simulation's only thread.
 *
 * `worth` of a row is that of the last rebuild, or of the class's first need;
 * between two rebuilds only `uses` and `waits` grow. Rows of classes that were
 * never needed are not looked at, and class_end is above all that were.
 */
#include "store/policy_hazard.h"

#define PRIOR_RETURN 0.3f /* the hazard nobody has seen: this over age */
#define PRIOR_USES 1.0f   /* what it weighs, in uses in each bin */
#define PRIOR_SCALE 20.0f /* the same of a class beside the common curve */
#define PRIOR_OVER 0.05f  /* the scale of classes said to be over */

static float bin_width(uint32_t bin)
{
    return (float)(1u << ldr_age_bits(bin));
}

void ldr_hazard_use(ldr_hazard_t *h, uint32_t class, uint32_t age, float weight)
{
    h->rows[class].uses[ldr_age_bin(age)] += weight;
}

void ldr_hazard_wait(ldr_hazard_t *h, uint32_t class, uint32_t from,
                     uint32_t to, float weight)
{
    float *waits = h->rows[class].waits;
    uint32_t bin = ldr_age_bin(from), last = ldr_age_bin(to);

    for (; bin < last; bin++) {
        uint32_t end = ldr_age_from(bin + 1);

        waits[bin] += weight * (float)(end - from);
        from = end;
    }
    if (from < to) {
        waits[bin] += weight * (float)(to - from);
    }
}

/* ---- hazards ---- */

static float bin_at(const float *row, int bin)
{
    return bin < 0 || bin >= (int)LDR_AGES ? 0 : row[bin];
}

/* Means over neighbours; what is beyond the ends counts as nothing. Waits grow
 * with the width of a bin: only as parts of it can they be averaged. */
static void smooth(const float *in, float *out, bool by_width)
{
    float part[LDR_AGES];

    for (uint32_t b = 0; b < LDR_AGES; b++) {
        part[b] = by_width ? in[b] / bin_width(b) : in[b];
    }
    for (int b = 0; b < (int)LDR_AGES; b++) {
        out[b] = (bin_at(part, b - 2) + 2 * bin_at(part, b - 1) + 3 * part[b] +
                  2 * bin_at(part, b + 1) + bin_at(part, b + 2)) /
                 9 * (by_width ? bin_width((uint32_t)b) : 1);
    }
}

/* The common curve: of sessions, each beside its scale. */
static void base_update(ldr_hazard_t *h)
{
    float uses[LDR_AGES] = {0}, waits[LDR_AGES] = {0};
    float uses_s[LDR_AGES], waits_s[LDR_AGES];

    for (uint32_t c = LDR_CLASS_SESSION; c < h->class_end; c++) {
        for (uint32_t b = 0; h->seen[c] && b < LDR_AGES; b++) {
            uses[b] += h->rows[c].uses[b];
            waits[b] += h->rows[c].waits[b] * h->scale[c];
        }
    }
    smooth(uses, uses_s, false);
    smooth(waits, waits_s, true);
    for (uint32_t b = 0; b < LDR_AGES; b++) {
        float prior =
            PRIOR_RETURN / ((float)ldr_age_from(b) + bin_width(b) / 2);

        h->base[b] =
            (uses_s[b] + PRIOR_USES) / (waits_s[b] + PRIOR_USES / prior);
    }
}

/* A level of a factor: what was seen beside what the others let expect. */
static void factor_update(ldr_hazard_t *h, float *factor, uint32_t levels,
                          uint32_t each, const float *seen,
                          const float *expected)
{
    float s[LDR_LEVELS] = {0}, e[LDR_LEVELS] = {0};

    for (uint32_t c = LDR_CLASS_SESSION; c < h->class_end; c++) {
        uint32_t level = (c - LDR_CLASS_SESSION) / each % levels;

        s[level] += seen[c];
        e[level] += expected[c] * h->scale[c] / factor[level];
    }
    for (uint32_t i = 0; i < levels; i++) {
        factor[i] = (PRIOR_SCALE + s[i]) / (PRIOR_SCALE + e[i]);
    }
    for (uint32_t c = LDR_CLASS_SESSION; c < LDR_CLASSES; c++) {
        uint32_t k = c - LDR_CLASS_SESSION;

        h->scale[c] = h->app[k / (LDR_TURNS * LDR_GROWTHS)] *
                      h->turn[k / LDR_GROWTHS % LDR_TURNS] *
                      h->growth[k % LDR_GROWTHS];
    }
}

static void scales_update(ldr_hazard_t *h)
{
    float seen[LDR_CLASSES] = {0}, expected[LDR_CLASSES] = {0};

    for (uint32_t c = 0; c < LDR_CLASS_SESSION || c < h->class_end; c++) {
        float first = c < LDR_CLASS_STRAY ? PRIOR_OVER : 1.0f;

        for (uint32_t b = 0; h->seen[c] && b < LDR_AGES; b++) {
            seen[c] += h->rows[c].uses[b];
            expected[c] += h->rows[c].waits[b] * h->base[b];
        }
        if (c < LDR_CLASS_SESSION) {
            h->scale[c] =
                (PRIOR_SCALE * first + seen[c]) / (PRIOR_SCALE + expected[c]);
        }
    }
    factor_update(h, h->turn, LDR_TURNS, LDR_GROWTHS, seen, expected);
    factor_update(h, h->growth, LDR_GROWTHS, 1, seen, expected);
    factor_update(h, h->app, LDR_APPS, LDR_TURNS * LDR_GROWTHS, seen, expected);
}

/* ---- worth ---- */

/*
 * From the last bin to the first: what begins with a bin is worth its own part,
 * or, if what follows is worth more, both together. Groups of bins that are
 * worth the same stand on a stack.
 */
static void worth_update(const float *hazard, float *worth)
{
    float gain[LDR_AGES], time[LDR_AGES], left[LDR_AGES];
    uint32_t top = 0;

    for (uint32_t b = LDR_AGES; b-- > 0;) {
        float x = hazard[b] * bin_width(b);
        float stay = 1 / (1 + x);
        float g = x * stay, t = bin_width(b) * stay, l = stay;

        while (top > 0 && gain[top - 1] * t > g * time[top - 1]) {
            top--;
            g += l * gain[top];
            t += l * time[top];
            l *= left[top];
        }
        gain[top] = g;
        time[top] = t;
        left[top++] = l;
        worth[b] = g / t;
    }
}

static void row_update(ldr_hazard_t *h, uint32_t class)
{
    float hazard[LDR_AGES];

    for (uint32_t b = 0; b < LDR_AGES; b++) {
        hazard[b] = h->base[b] * h->scale[class];
    }
    worth_update(hazard, h->rows[class].worth);
}

void ldr_hazard_begin(ldr_hazard_t *h, uint32_t class)
{
    h->seen[class] = true;
    h->class_end = h->class_end > class ? h->class_end : class + 1;
    row_update(h, class);
}

void ldr_hazard_init(ldr_hazard_t *h)
{
    for (uint32_t i = 0; i < LDR_LEVELS; i++) {
        h->app[i] = h->turn[i] = h->growth[i] = 1;
    }
    for (uint32_t c = 0; c < LDR_CLASSES; c++) {
        h->scale[c] = 1;
    }
    ldr_hazard_rebuild(h, 1);
}

void ldr_hazard_rebuild(ldr_hazard_t *h, float fade)
{

    for (uint32_t i = 0; i < 2; i++) {
        base_update(h);
        scales_update(h);
    }
    for (uint32_t c = 0; c < h->class_end; c++) {
        ldr_hazard_row_t *row = &h->rows[c];

        if (!h->seen[c]) {
            continue;
        }
        row_update(h, c); /* by what is about to fade */
        for (uint32_t b = 0; b < LDR_AGES; b++) {
            row->uses[b] *= fade;
            row->waits[b] *= fade;
        }
    }
}
