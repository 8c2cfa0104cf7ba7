/*
 * What the default policy has learned: how soon runs of a class are used again,
 * and what a class is worth at an age.
 *
 * Time since the last use is cut into ages of equal ratio, four to a doubling,
 * from 1.6 s to 19 days, so that no time scale is built in. For each class and
 * age there are uses seen and time waited, both fading; their ratio is the
 * hazard of a use. Classes made of factors (application, turn, growth, length)
 * share one curve, scaled by a number for each level of each factor; others
 * have curves of their own, drawn to the common one while little is known.
 *
 * The worth of a class at an age is the Gittins index of waiting: the most, of
 * all times to give up, of P(used before) / E[time held until then]. So
 * something that is never used in its first seconds, but often in its first
 * minute, is kept through the seconds.
 *
 * Before anything is seen the hazard is inverse to age, which is LRU.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LDR_AGES 80u

enum {
    LDR_APPS = 4,
    LDR_TURNS = 8,
    LDR_DELTAS = 7,
    LDR_LENGTHS = 3,
    LDR_GAPS = 6,
    LDR_USES = 3,

    LDR_CLASS_BODY = 0, /* app, turn, delta, length */
    LDR_CLASS_BODIES = LDR_APPS * LDR_TURNS * LDR_DELTAS * LDR_LENGTHS,
    LDR_CLASS_SHARED = LDR_CLASS_BODIES, /* own gap, own uses */
    LDR_CLASS_LAST = LDR_CLASS_SHARED + LDR_GAPS * LDR_USES,
    LDR_CLASS_SUPERSEDED,
    LDR_CLASS_CLOSED,
    LDR_CLASS_STRAY,
    LDR_CLASSES
};

/* What is known of a class. */
typedef struct ldr_learn_row {
    float uses[LDR_AGES];
    float waits[LDR_AGES]; /* in tenths of a second */
    float worth[LDR_AGES];
    uint32_t as_of; /* the rebuild that worth is of */
} ldr_learn_row_t;

typedef struct ldr_learn {
    float base[LDR_AGES]; /* the common curve */
    float app[LDR_APPS], turn[LDR_TURNS], delta[LDR_DELTAS];
    float length[LDR_LENGTHS];
    uint32_t apps_seen; /* bits; what others would be worth is not known */
    /* What rows are worth is worked out when one is asked for: of some 500
     * classes few are in use. It is good if it is as of the last rebuild. */
    uint32_t version;
    bool seen[LDR_CLASSES]; /* something was counted, ever */
    /* Rows in the order in which they were first needed, so that those in use
     * lie together and others take no memory; + 1, 0: not yet. */
    uint16_t row_of[LDR_CLASSES];
    uint32_t row_count;
    ldr_learn_row_t rows[LDR_CLASSES];
} ldr_learn_t;

/* The row of a class, of zeros if it is new. */
static inline ldr_learn_row_t *ldr_learn_need(ldr_learn_t *learn,
                                              uint32_t class)
{
    if (learn->row_of[class] == 0) {
        learn->row_of[class] = (uint16_t)++learn->row_count;
    }
    return &learn->rows[learn->row_of[class] - 1u];
}

/* The age that so many tenths of a second are. */
static inline uint32_t ldr_learn_age(uint32_t ds)
{
    if (ds < 16) {
        return 0;
    }
    uint32_t e = 31u - (uint32_t)__builtin_clz(ds);
    uint32_t age = 1 + (e - 4) * 4 + ((ds >> (e - 2)) & 3);

    return age < LDR_AGES ? age : LDR_AGES - 1;
}

/* Where an age begins. */
static inline uint32_t ldr_learn_from(uint32_t age)
{
    return age == 0 ? 0 : (4 + ((age - 1) & 3)) << ((age - 1) / 4 + 2);
}

/* It is as long as two to the power of this, and begins at a multiple of
 * that. */
static inline uint32_t ldr_learn_bits(uint32_t age)
{
    return age == 0 ? 4 : (age - 1) / 4 + 2;
}

static inline uint32_t ldr_learn_body(uint32_t app, uint32_t turn,
                                      uint32_t delta, uint32_t length)
{
    return LDR_CLASS_BODY +
           ((app * LDR_TURNS + turn) * LDR_DELTAS + delta) * LDR_LENGTHS +
           length;
}

void ldr_learn_row_update(ldr_learn_t *learn, uint32_t class);

/* What the class is worth at the beginning of each age. */
static inline const float *ldr_learn_row(ldr_learn_t *learn, uint32_t class)
{
    const ldr_learn_row_t *row = ldr_learn_need(learn, class);

    if (row->as_of != learn->version) {
        ldr_learn_row_update(learn, class);
    }
    return row->worth;
}

/* What something of the class is worth so long after its last use: the table
 * has it for the beginnings of ages, between them lies a straight line. */
static inline float ldr_learn_worth(ldr_learn_t *learn, uint32_t class,
                                    uint32_t ds)
{
    const float *worth = ldr_learn_row(learn, class);
    uint32_t age = ldr_learn_age(ds);
    uint32_t bits = ldr_learn_bits(age);

    if (age + 1 == LDR_AGES) {
        return worth[age];
    }
    float part = (float)(ds & ((1u << bits) - 1)) / (float)(1u << bits);

    return worth[age] + part * (worth[age + 1] - worth[age]);
}

/* Of zeroed memory, of which it leaves alone what only further applications
 * would need. */
void ldr_learn_init(ldr_learn_t *learn);

/* Something of the class was used, so long after its last use. */
void ldr_learn_use(ldr_learn_t *learn, uint32_t class, uint32_t ds,
                   float weight);
/* Something of the class waited from one time to another since its last use. */
void ldr_learn_wait(ldr_learn_t *learn, uint32_t class, uint32_t from_ds,
                    uint32_t to_ds, float weight);
/* Works out everything anew, and fades what was seen. */
void ldr_learn_rebuild(ldr_learn_t *learn, float fade);
