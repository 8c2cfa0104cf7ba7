/* The options of connectors, for those who cannot see the table. */
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/mem.h"
#include "larder/larder.h"

const char *larder_connector_option_name(size_t index)
{
    for (size_t i = 0; i < ldr_option_count; i++) {
        if ((ldr_option_table[i].where & LDR_WHERE_CONNECTOR) != 0 &&
            index-- == 0) {
            return ldr_option_table[i].name;
        }
    }
    return NULL;
}

static larder_status_t unknown(const char *name)
{
    const char *near =
        ldr_option_nearest(name, strlen(name), LDR_WHERE_CONNECTOR);

    return ldr_fail(LARDER_E_INVALID, "unknown option '%s'%s%s%s", name,
                    near != NULL ? "; did you mean " : "",
                    near != NULL ? near : "",
                    near != NULL ? "?" : "; `larder options` lists them");
}

larder_status_t larder_connector_option(const char *name, const char *value,
                                        uint64_t *number_p, char *text,
                                        size_t size)
{
    if (name == NULL || number_p == NULL || text == NULL || size == 0) {
        return ldr_fail(LARDER_E_INVALID, "name, number_p, text or size");
    }
    int i = ldr_option_find(name, strlen(name));
    if (i < 0 || (ldr_option_table[i].where & LDR_WHERE_CONNECTOR) == 0) {
        return unknown(name);
    }
    ldr_options_t *o = ldr_alloc(sizeof(*o));
    if (o == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for options");
    }
    larder_status_t st = ldr_option_set(
        o, (size_t)i, value != NULL ? value : ldr_option_table[i].value);
    if (st == LARDER_OK && ldr_option_get(o, (size_t)i, text, size) >= size) {
        st = ldr_fail(LARDER_E_SIZE, "option %s needs more than %zu bytes",
                      name, size);
    }
    if (st == LARDER_OK) {
        *number_p = ldr_option_number(o, (size_t)i);
    }
    ldr_free(o);
    return st;
}

larder_status_t larder_default_socket(char *text, size_t size)
{
    char path[LDR_UNIX_PATH_MAX];

    if (text == NULL) {
        return ldr_fail(LARDER_E_INVALID, "text is NULL");
    }
    ldr_socket_default(path);
    return (size_t)snprintf(text, size, "%s", path) < size
               ? LARDER_OK
               : ldr_fail(LARDER_E_SIZE, "the path needs more than %zu bytes",
                          size);
}
