/*
 * The URL parser on any text. What it accepts keeps the promises of the table:
 * values in range, directories distinct, terminated and not empty. What it
 * refuses leaves the options untouched and says why.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int ok)
{
    if (!ok) {
        abort();
    }
}

static void check_accepted(const ldr_options_t *o)
{
    require(o->dir_count <= LDR_DISKS_MAX);
    for (unsigned i = 0; i < o->dir_count; i++) {
        require(memchr(o->dirs[i], '\0', LDR_PATH_MAX) != NULL);
        require(o->dirs[i][0] != '\0');
        for (unsigned j = 0; j < i; j++) {
            require(strcmp(o->dirs[i], o->dirs[j]) != 0);
        }
    }
#define X(name, kind, def, min, max, text)                                     \
    require(o->name + 1 >= (uint64_t)(min) + 1 && o->name <= (max));
    LDR_OPTION_MAP(X)
#undef X
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char scheme[] = "embed:";
    ldr_options_t o, before;
    uint64_t size = 42;
    char *url;

    if (bytes == 0) {
        return 0;
    }
    /* The first byte says whether the scheme is put before the rest, so that
     * not every input must find it. */
    size_t skip = data[0] % 2 == 0 ? strlen(scheme) : 0;
    url = malloc(skip + bytes);
    if (url == NULL) {
        return 0;
    }
    memcpy(url, scheme, skip);
    memcpy(url + skip, data + 1, bytes - 1);
    url[skip + bytes - 1] = '\0';

    memset(&o, 0xee, sizeof(o));
    memset(&before, 0xee, sizeof(before));
    ldr_fail_clear();
    if (ldr_options_parse(url, &o) == LARDER_OK) {
        check_accepted(&o);
    } else {
        require(memcmp(&o, &before, sizeof(o)) == 0);
        require(ldr_fail_text()[0] != '\0');
    }
    require(ldr_parse_size(url + skip, &size) || size == 42);
    free(url);
    return 0;
}
