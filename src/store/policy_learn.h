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

typedef struct ldr_learn {
    float uses[LDR_CLASSES][LDR_AGES];
    float waits[LDR_CLASSES][LDR_AGES]; /* in tenths of a second */
    float worth[LDR_CLASSES][LDR_AGES];
    float base[LDR_AGES]; /* the common curve */
    float app[LDR_APPS], turn[LDR_TURNS], delta[LDR_DELTAS];
    float length[LDR_LENGTHS];
    uint32_t apps_seen; /* bits; what others would be worth is not known */
    /* Rows of worth are worked out when one is asked for: of some 500 classes
     * few are in use. A row is good if it is as of the last rebuild. */
    uint32_t version;
    uint32_t as_of[LDR_CLASSES];
    bool seen[LDR_CLASSES]; /* something was counted, ever */
} ldr_learn_t;

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
    if (learn->as_of[class] != learn->version) {
        ldr_learn_row_update(learn, class);
    }
    return learn->worth[class];
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
