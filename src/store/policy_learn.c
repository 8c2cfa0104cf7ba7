#include "store/policy_learn.h"

#define PRIOR_RETURN 0.3f  /* the hazard nobody has seen: this over age */
#define PRIOR_USES 1.0f    /* what it weighs, in uses at each age */
#define PRIOR_FACTOR 20.0f /* the same for a level of a factor */
#define PRIOR_CLASS 10.0f  /* for the scale of a class with its own curve */
#define PRIOR_CURVE 0.5f   /* and for its curve, at each age */
#define PRIOR_OVER 0.05f   /* the scale of classes said to be over */

static float width(uint32_t age)
{
    return (float)(1u << ldr_learn_bits(age));
}

static float prior(uint32_t age)
{
    return PRIOR_RETURN / ((float)ldr_learn_from(age) + width(age) / 2);
}

void ldr_learn_use(ldr_learn_t *learn, uint32_t class, uint32_t ds,
                   float weight)
{
    learn->seen[class] = true;
    ldr_learn_need(learn, class)->uses[ldr_learn_age(ds)] += weight;
}

void ldr_learn_wait(ldr_learn_t *learn, uint32_t class, uint32_t from_ds,
                    uint32_t to_ds, float weight)
{
    float *waits = ldr_learn_need(learn, class)->waits;
    uint32_t age = ldr_learn_age(from_ds), last = ldr_learn_age(to_ds);

    learn->seen[class] = true;
    for (; age < last; age++) {
        uint32_t end = ldr_learn_from(age + 1);

        waits[age] += weight * (float)(end - from_ds);
        from_ds = end;
    }
    if (from_ds < to_ds) {
        waits[age] += weight * (float)(to_ds - from_ds);
    }
}

/* Of a class of which something was counted. */
static const ldr_learn_row_t *row_seen(const ldr_learn_t *learn, uint32_t class)
{
    return &learn->rows[learn->row_of[class] - 1u];
}

/* ---- classes made of factors ---- */

typedef struct ldr_levels {
    uint32_t app, turn, delta, length;
} ldr_levels_t;

static ldr_levels_t levels_of(uint32_t class)
{
    return (ldr_levels_t){
        .app = class / (LDR_TURNS * LDR_DELTAS * LDR_LENGTHS),
        .turn = class / (LDR_DELTAS * LDR_LENGTHS) % LDR_TURNS,
        .delta = class / LDR_LENGTHS % LDR_DELTAS,
        .length = class % LDR_LENGTHS,
    };
}

/* How many of the first classes can have been seen: most have no app. */
static uint32_t bodies(const ldr_learn_t *learn)
{
    uint32_t apps = 32u - (uint32_t)__builtin_clz(learn->apps_seen | 1);

    return apps * LDR_TURNS * LDR_DELTAS * LDR_LENGTHS;
}

static float scale_of(const ldr_learn_t *learn, uint32_t class)
{
    ldr_levels_t l = levels_of(class);

    return learn->app[l.app] * learn->turn[l.turn] * learn->delta[l.delta] *
           learn->length[l.length];
}

static float at(const float *row, int age)
{
    return age < 0 || age >= (int)LDR_AGES ? 0 : row[age];
}

/* A weighted mean over neighbours; ages beyond the ends count as nothing. */
static void smooth(const float *in, float *out)
{
    for (int a = 0; a < (int)LDR_AGES; a++) {
        out[a] = (at(in, a - 2) + 2 * at(in, a - 1) + 3 * in[a] +
                  2 * at(in, a + 1) + at(in, a + 2)) /
                 9;
    }
}

/* Waits are time, and grow with the width of the age: only as parts of it can
 * they be averaged. */
static void smooth_waits(const float *in, float *out)
{
    float part[LDR_AGES];

    for (uint32_t a = 0; a < LDR_AGES; a++) {
        part[a] = in[a] / width(a);
    }
    smooth(part, out);
    for (uint32_t a = 0; a < LDR_AGES; a++) {
        out[a] *= width(a);
    }
}

static void base_update(ldr_learn_t *learn)
{
    float uses[LDR_AGES] = {0}, waits[LDR_AGES] = {0};
    float uses_s[LDR_AGES], waits_s[LDR_AGES];
    uint32_t count = bodies(learn);

    for (uint32_t c = 0; c < count; c++) {
        if (!learn->seen[c]) {
            continue;
        }
        const ldr_learn_row_t *row = row_seen(learn, c);
        float scale = scale_of(learn, c);
        for (uint32_t a = 0; a < LDR_AGES; a++) {
            uses[a] += row->uses[a];
            waits[a] += row->waits[a] * scale;
        }
    }
    smooth(uses, uses_s);
    smooth_waits(waits, waits_s);
    for (uint32_t a = 0; a < LDR_AGES; a++) {
        learn->base[a] =
            (uses_s[a] + PRIOR_USES) / (waits_s[a] + PRIOR_USES / prior(a));
    }
}

/* One factor's levels from what was seen and what the others let expect. */
static void factor_update(ldr_learn_t *learn, float *factor, uint32_t count,
                          uint32_t which, const float *seen,
                          const float *expected)
{
    float s[LDR_TURNS] = {0}, e[LDR_TURNS] = {0};
    uint32_t classes = bodies(learn);

    for (uint32_t c = 0; c < classes; c++) {
        if (!learn->seen[c]) {
            continue;
        }
        ldr_levels_t l = levels_of(c);
        uint32_t level = which == 0   ? l.app
                         : which == 1 ? l.turn
                         : which == 2 ? l.delta
                                      : l.length;

        s[level] += seen[c];
        e[level] += expected[c] * scale_of(learn, c) / factor[level];
    }
    for (uint32_t i = 0; i < count; i++) {
        factor[i] = (PRIOR_FACTOR + s[i]) / (PRIOR_FACTOR + e[i]);
    }
}

static void factors_update(ldr_learn_t *learn)
{
    float seen[LDR_CLASS_BODIES], expected[LDR_CLASS_BODIES];
    uint32_t count = bodies(learn);

    for (uint32_t c = 0; c < count; c++) {
        seen[c] = expected[c] = 0;
        if (!learn->seen[c]) {
            continue;
        }
        const ldr_learn_row_t *row = row_seen(learn, c);
        for (uint32_t a = 0; a < LDR_AGES; a++) {
            seen[c] += row->uses[a];
            expected[c] += row->waits[a] * learn->base[a];
        }
    }
    factor_update(learn, learn->turn, LDR_TURNS, 1, seen, expected);
    factor_update(learn, learn->delta, LDR_DELTAS, 2, seen, expected);
    factor_update(learn, learn->length, LDR_LENGTHS, 3, seen, expected);
    if (learn->apps_seen > 1) {
        factor_update(learn, learn->app, LDR_APPS, 0, seen, expected);
    }
}

/* ---- worth ---- */

/*
 * From the last age to the first: what begins at an age is worth its own part,
 * or, if what follows is worth more, both together. Blocks of ages that are
 * worth the same stand on a stack.
 */
static void worth_update(const float *hazard, float *worth)
{
    float gain[LDR_AGES], time[LDR_AGES], left[LDR_AGES];
    uint32_t top = 0;

    for (uint32_t a = LDR_AGES; a-- > 0;) {
        float x = hazard[a] * width(a);
        float stay = 1 / (1 + x);
        float g = x * stay, t = width(a) * stay, l = stay;

        while (top > 0 && gain[top - 1] * t > g * time[top - 1]) {
            top--;
            g += l * gain[top];
            t += l * time[top];
            l *= left[top];
        }
        gain[top] = g;
        time[top] = t;
        left[top++] = l;
        worth[a] = g / t;
    }
}

/* The curve of a class of its own: the common one, scaled, and then bent to
 * what was seen at each age. */
static void own_curve(const ldr_learn_t *learn, uint32_t class, float *hazard)
{
    const ldr_learn_row_t *row = row_seen(learn, class);
    float uses[LDR_AGES], waits[LDR_AGES];
    float seen = 0, expected = 0;
    float first = class < LDR_CLASS_LAST ? 1.0f : PRIOR_OVER;

    for (uint32_t a = 0; a < LDR_AGES; a++) {
        seen += row->uses[a];
        expected += row->waits[a] * learn->base[a];
    }
    float scale = (PRIOR_CLASS * first + seen) / (PRIOR_CLASS + expected);
    smooth(row->uses, uses);
    smooth_waits(row->waits, waits);
    for (uint32_t a = 0; a < LDR_AGES; a++) {
        hazard[a] = (uses[a] + PRIOR_CURVE) /
                    (waits[a] + PRIOR_CURVE / (scale * learn->base[a]));
    }
}

/* Of a class made of factors, or of which nothing was seen at the last rebuild:
 * so it may be done at any time until the next. */
void ldr_learn_row_update(ldr_learn_t *learn, uint32_t class)
{
    float scale = class < LDR_CLASS_BODIES ? scale_of(learn, class)
                  : class < LDR_CLASS_LAST ? 1.0f
                                           : PRIOR_OVER;
    float hazard[LDR_AGES];

    for (uint32_t a = 0; a < LDR_AGES; a++) {
        hazard[a] = learn->base[a] * scale;
    }
    ldr_learn_row_t *row = ldr_learn_need(learn, class);
    worth_update(hazard, row->worth);
    row->as_of = learn->version;
}

static void fade_row(float *row, float by)
{
    for (uint32_t a = 0; a < LDR_AGES; a++) {
        row[a] *= by;
    }
}

void ldr_learn_rebuild(ldr_learn_t *learn, float fade)
{
    float hazard[LDR_AGES];

    for (uint32_t i = 0; i < 2; i++) {
        base_update(learn);
        factors_update(learn);
    }
    learn->version++;
    for (uint32_t c = 0; c < LDR_CLASSES; c++) {
        if (!learn->seen[c]) {
            continue;
        }
        ldr_learn_row_t *row = ldr_learn_need(learn, c);
        if (c >= LDR_CLASS_BODIES) { /* by what is about to fade */
            own_curve(learn, c, hazard);
            worth_update(hazard, row->worth);
            row->as_of = learn->version;
        }
        fade_row(row->uses, fade);
        fade_row(row->waits, fade);
    }
}

void ldr_learn_init(ldr_learn_t *learn)
{
    for (uint32_t i = 0; i < LDR_TURNS; i++) {
        learn->turn[i] = 1;
        learn->app[i % LDR_APPS] = 1;
        learn->delta[i % LDR_DELTAS] = 1;
        learn->length[i % LDR_LENGTHS] = 1;
    }
    learn->apps_seen = 1;
    ldr_learn_rebuild(learn, 1);
}
