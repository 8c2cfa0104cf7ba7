/*
 * What the learned policy knows of reuse: for each class of runs the hazard of
 * a use by age, and from that the worth of what has this class and age.
 *
 * Age is the number of requests since the last use. It is cut into bins of
 * equal ratio, four to a doubling, so that no scale is built in. For each class
 * and bin there are the uses seen and the time waited, both fading; their ratio
 * is the hazard. Each class has its own curve. While little is known of it,
 * this is the common curve, scaled; and before anything is known the hazard is
 * inverse to age, which ranks as LRU does.
 *
 * The worth of a class at an age is the Gittins index of waiting: the most, of
 * all times to give up, of P(used before) / E[time held until then]. So
 * something that is never used in its first seconds, but often in its first
 * minute, is kept through the seconds.
 *
 * Failure: counts are floats that fade, so none can overflow. Wrong counts make
 * a wrong order, and nothing else: the guard notices.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LDR_AGES 80u
#define LDR_AGE_UNITS 16u /* of a request: ages are counted in these */

enum {
    LDR_LEVELS = 8, /* of a factor, at most */
    LDR_APPS = 4,
    LDR_TURNS = 8,
    LDR_GROWTHS = 7,
    LDR_GAPS = 6,
    LDR_USES = 3,

    LDR_CLASS_LAST, /* a last chunk that is not full */
    LDR_CLASS_SUPERSEDED,
    LDR_CLASS_CLOSED,
    LDR_CLASS_STRAY,
    LDR_CLASS_SHARED, /* by own gap and frequency */
    LDR_CLASS_SESSION = LDR_CLASS_SHARED + LDR_GAPS * LDR_USES,
    LDR_CLASSES = LDR_CLASS_SESSION + LDR_APPS * LDR_TURNS * LDR_GROWTHS,
};

typedef struct ldr_hazard_row {
    float uses[LDR_AGES];
    float waits[LDR_AGES]; /* in units of age */
    float worth[LDR_AGES]; /* at the beginning of each bin */
} ldr_hazard_row_t;

typedef struct ldr_hazard {
    float base[LDR_AGES];     /* the common curve */
    float scale[LDR_CLASSES]; /* of a class beside it */
    /* Of sessions the scale is a product of these. */
    float app[LDR_LEVELS], turn[LDR_LEVELS], growth[LDR_LEVELS];
    bool seen[LDR_CLASSES]; /* it was needed, ever: others have no row */
    uint32_t class_end;     /* no class from here on was */
    ldr_hazard_row_t rows[LDR_CLASSES];
} ldr_hazard_t;

/* The bin of an age. */
static inline uint32_t ldr_age_bin(uint32_t age)
{
    if (age < 16) {
        return 0;
    }
    uint32_t e = 31u - (uint32_t)__builtin_clz(age);
    uint32_t bin = 1 + (e - 4) * 4 + ((age >> (e - 2)) & 3);

    return bin < LDR_AGES ? bin : LDR_AGES - 1;
}

/* Where a bin begins. */
static inline uint32_t ldr_age_from(uint32_t bin)
{
    return bin == 0 ? 0 : (4 + ((bin - 1) & 3)) << ((bin - 1) / 4 + 2);
}

/* A bin is as wide as two to the power of this, and begins at a multiple. */
static inline uint32_t ldr_age_bits(uint32_t bin)
{
    return bin == 0 ? 4 : (bin - 1) / 4 + 2;
}

static inline uint32_t ldr_class_session(uint32_t app, uint32_t turn,
                                         uint32_t growth)
{
    return LDR_CLASS_SESSION + (app * LDR_TURNS + turn) * LDR_GROWTHS + growth;
}

/* What something of that class and age is worth: a line between bins. */
static inline float ldr_hazard_worth(const ldr_hazard_t *h, uint32_t class,
                                     uint32_t age)
{
    const float *worth = h->rows[class].worth;
    uint32_t bin = ldr_age_bin(age);
    uint32_t bits = ldr_age_bits(bin);

    if (bin + 1 == LDR_AGES) {
        return worth[bin];
    }
    float part = (float)(age & ((1u << bits) - 1)) / (float)(1u << bits);

    return worth[bin] + part * (worth[bin + 1] - worth[bin]);
}

void ldr_hazard_begin(ldr_hazard_t *h, uint32_t class);

/* Before anything of the class is counted, or its worth is asked for. */
static inline void ldr_hazard_need(ldr_hazard_t *h, uint32_t class)
{
    if (!h->seen[class]) {
        ldr_hazard_begin(h, class);
    }
}

/* Something of the class was used at that age. */
void ldr_hazard_use(ldr_hazard_t *h, uint32_t class, uint32_t age,
                    float weight);
/* Something of the class waited, from one age to another. */
void ldr_hazard_wait(ldr_hazard_t *h, uint32_t class, uint32_t from,
                     uint32_t to, float weight);
/* Of zeroed memory. */
void ldr_hazard_init(ldr_hazard_t *h);
/* Works out what all classes are worth, then fades the counts. */
void ldr_hazard_rebuild(ldr_hazard_t *h, float fade);
