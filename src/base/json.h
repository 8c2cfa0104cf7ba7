/* JSON into a text of fixed size. */
#pragma once

#include "base/text.h"

typedef struct ldr_json {
    ldr_text_t t;
    bool comma; /* something stands before in this object or array */
    /* The object of the last name that had a dot: so many bytes; 0: none. */
    const char *inside;
    size_t inside_length;
} ldr_json_t;

/* name NULL: a member of an array. "a.b" is b in an object a, which ends before
 * the first name that is not of it. */
void ldr_json_key(ldr_json_t *j, const char *name);
void ldr_json_begin(ldr_json_t *j, const char *name, char brace);
void ldr_json_end(ldr_json_t *j, char brace);
void ldr_json_number(ldr_json_t *j, const char *name, uint64_t value);
void ldr_json_text(ldr_json_t *j, const char *name, const char *value);
void ldr_json_truth(ldr_json_t *j, const char *name, bool value);
