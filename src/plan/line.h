/*
 * A line of a trace in Mooncake's form:
 *
 *   {"timestamp": 27482, "input_length": 6955, "output_length": 52,
 *    "hash_ids": [46, 47, 2353, 2354]}
 *
 * in any order of the fields, with any others between them. A hash id stands
 * for a block of tokens together with all before it. "hint", a number of
 * LDR_HINT_* bits, may be there too, and "block_tokens", how many tokens a
 * block has.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LDR_LINE_IDS_MAX (1u << 24) /* blocks of one request */

typedef struct ldr_line {
    uint64_t at_ms;
    uint32_t input_tokens;
    uint32_t output_tokens; /* 0 where it is not said */
    uint32_t hint;          /* the same */
    uint32_t block_tokens;  /* the same */
    uint32_t count;
    size_t capacity; /* of ids */
    uint64_t *ids;   /* grows as needed; ldr_line_free() */
} ldr_line_t;

/* NULL, or what is wrong with it: then the rest of *line means nothing. */
const char *ldr_line_parse(ldr_line_t *line, const char *text, size_t bytes);
void ldr_line_free(ldr_line_t *line);
