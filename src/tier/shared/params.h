/* What follows the '?' of a back end's url: name=value, with & between. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct ldr_url_param {
    const char *name;
    char *value; /* "" before it was read */
    size_t size; /* of its room */
} ldr_url_param_t;

/* False: another name, one that comes twice, an empty value, or one that does
 * not fit. Percent escapes are decoded. */
bool ldr_url_params(const char *text, const ldr_url_param_t *params,
                    size_t count);
