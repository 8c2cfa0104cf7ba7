/*
 * JSON that somebody else wrote, read from front to back. A reader that found
 * something broken stays broken: every later call fails, so that only the end
 * needs to be looked at.
 *
 *   ldr_json_open(&r, '{');
 *   while (ldr_json_name(&r, name, sizeof(name))) {
 *       if (strcmp(name, "id") == 0) {
 *           ldr_json_u64(&r, &id);
 *       } else {
 *           ldr_json_skip(&r);
 *       }
 *   }
 *
 * An array the same way, with ldr_json_item().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ldr_json_reader {
    const char *at, *end;
    bool broken;
} ldr_json_reader_t;

static inline ldr_json_reader_t ldr_json_reader(const char *text, size_t bytes)
{
    return (ldr_json_reader_t){text, text + bytes, false};
}

/* '{' or '['. */
bool ldr_json_open(ldr_json_reader_t *r, char brace);
/* The next name of an object, before its value; false: the object has ended,
 * or it is broken. A name that does not fit is cut. */
bool ldr_json_name(ldr_json_reader_t *r, char *name, size_t size);
/* Whether there is one more item in the array. */
bool ldr_json_item(ldr_json_reader_t *r);

/* Values. A text that does not fit is cut, and false is given, but nothing is
 * broken; escapes become UTF-8. A number may stand in quotes. */
bool ldr_json_read_text(ldr_json_reader_t *r, char *text, size_t size);
bool ldr_json_u64(ldr_json_reader_t *r, uint64_t *value_p);
bool ldr_json_bool(ldr_json_reader_t *r, bool *value_p);
void ldr_json_skip(ldr_json_reader_t *r); /* whatever it is */
