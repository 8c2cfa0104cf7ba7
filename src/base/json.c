/* Writes JSON. A writer belongs to one caller; there is no other state. */
#include "base/json.h"

#include <string.h>

/* Enters the object that the name is of, and leaves the one before; gives the
 * rest of the name. */
static const char *name_enter(ldr_json_t *j, const char *name)
{
    const char *dot = name != NULL ? strchr(name, '.') : NULL;
    size_t length = dot != NULL ? (size_t)(dot - name) : 0;

    if (length != j->inside_length ||
        (length > 0 && memcmp(name, j->inside, length) != 0)) {
        if (j->inside_length > 0) {
            ldr_text_char(&j->t, '}');
            j->comma = true;
        }
        if (length > 0) {
            ldr_text_add(&j->t, "%s\"%.*s\":{", j->comma ? "," : "",
                         (int)length, name);
            j->comma = false;
        }
    }
    j->inside = name;
    j->inside_length = length;
    return dot != NULL ? dot + 1 : name;
}

void ldr_json_key(ldr_json_t *j, const char *name)
{
    name = name_enter(j, name);
    if (j->comma) {
        ldr_text_char(&j->t, ',');
    }
    if (name != NULL) {
        ldr_text_add(&j->t, "\"%s\":", name);
    }
    j->comma = true;
}

void ldr_json_begin(ldr_json_t *j, const char *name, char brace)
{
    ldr_json_key(j, name);
    ldr_text_char(&j->t, brace);
    j->comma = false;
}

void ldr_json_end(ldr_json_t *j, char brace)
{
    name_enter(j, NULL);
    ldr_text_char(&j->t, brace);
    j->comma = true;
}

void ldr_json_number(ldr_json_t *j, const char *name, uint64_t value)
{
    ldr_json_key(j, name);
    ldr_text_u64(&j->t, value);
}

void ldr_json_text(ldr_json_t *j, const char *name, const char *value)
{
    ldr_json_key(j, name);
    ldr_text_json(&j->t, value);
}

void ldr_json_truth(ldr_json_t *j, const char *name, bool value)
{
    ldr_json_key(j, name);
    ldr_text_add(&j->t, "%s", value ? "true" : "false");
}
