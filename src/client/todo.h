/* The items of a batch that are still to be asked for. */
#pragma once

#include <stdint.h>

#include "larder/larder.h"

/* In order; those that have to be asked for again go to the end. */
typedef struct ldr_todo {
    uint16_t item[LARDER_BATCH_MAX];
    uint32_t head, count;
} ldr_todo_t;

static inline void ldr_todo_push(ldr_todo_t *t, uint32_t item)
{
    t->item[(t->head + t->count++) % LARDER_BATCH_MAX] = (uint16_t)item;
}

static inline uint32_t ldr_todo_pop(ldr_todo_t *t)
{
    uint32_t item = t->item[t->head];

    t->head = (t->head + 1) % LARDER_BATCH_MAX;
    t->count--;
    return item;
}
