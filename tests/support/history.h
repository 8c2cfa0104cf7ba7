/*
 * What was put, removed and reset, and so what a get may give: a miss, or the
 * bytes of a put that was answered OK and not removed or reset since. There
 * can be several such puts of one name: what was forgotten can be put again.
 */
#pragma once

#include "support/rig.h"

typedef struct past {
    uint32_t floor; /* versions up to it were removed or reset */
    uint32_t top;   /* versions up to it were put */
    bool flushed;   /* it was on disk and synced after the last put */
} past_t;

typedef struct history {
    uint32_t keys;
    past_t *past;  /* by history_at() */
    uint32_t size; /* of it */
} history_t;

void history_init(history_t *h, uint32_t keys);
void history_free(history_t *h);

/* Every name has a number below h->size. */
uint32_t history_at(const history_t *h, name_t name);
name_t history_name(const history_t *h, uint32_t at);
name_t history_draw(const history_t *h, ldr_rand_t *rand);

/* The operations, booked as they were answered. */
larder_status_t history_put(history_t *h, rig_t *rig, name_t name);
larder_status_t history_remove(history_t *h, rig_t *rig, name_t name);
larder_status_t history_reset(history_t *h, rig_t *rig, uint32_t space);
larder_status_t history_flush(history_t *h, rig_t *rig);
/* All that is on disk is synced as well. */
void history_synced(history_t *h, const rig_t *rig);
/* Gets and judges: true for a hit. */
bool history_get(const history_t *h, rig_t *rig, name_t name);

/* Gets all that was ever put. must: by name, what has to be there, or NULL.
 * Gives the hits. */
uint32_t history_verify(const history_t *h, rig_t *rig, const bool *must);
