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

static void check_dirs(const ldr_options_t *o)
{
    require(o->dir_count <= LDR_DISKS_MAX);
    for (unsigned i = 0; i < o->dir_count; i++) {
        require(memchr(o->dirs[i], '\0', LDR_PATH_MAX) != NULL);
        require(o->dirs[i][0] != '\0');
        for (unsigned j = 0; j < i; j++) {
            require(strcmp(o->dirs[i], o->dirs[j]) != 0);
        }
    }
}

static void check_address(const ldr_options_t *o)
{
    size_t length = strnlen(o->address, sizeof(o->address));

    require(length < sizeof(o->address));
    require(o->scheme == LDR_SCHEME_EMBED ? length == 0 : length > 0);
    require(o->scheme == LDR_SCHEME_EMBED || o->dir_count == 0);
    require(o->scheme != LDR_SCHEME_UNIX || length < LDR_UNIX_PATH_MAX);
    require(o->scheme != LDR_SCHEME_TCP ||
            ldr_addresses_ok(o->address, LDR_ADDRESSES_MAX));
}

#define CHECK_SIZE(field, min, max)                                            \
    require((field) + 1 >= (uint64_t)(min) + 1 && (field) <= (max))
#define CHECK_UINT CHECK_SIZE
#define CHECK_ENUM CHECK_SIZE
#define CHECK_TEXT(field, min, max)                                            \
    require(strnlen(field, sizeof(field)) + 1 >= (size_t)(min) + 1 &&          \
            strnlen(field, sizeof(field)) <= (max))

/* Every value in its range; written out, it reads as the same. */
static void check_accepted(const ldr_options_t *o)
{
    ldr_options_t again = *o;

    check_dirs(o);
    check_address(o);
#define X(name, kind, where, def, min, max, text)                              \
    CHECK_##kind(o->name, min, max);
    LDR_OPTION_MAP(X)
#undef X
    for (size_t i = 0; i < ldr_option_count; i++) {
        char text[LDR_OPTION_TEXT];

        require(ldr_option_get(o, i, text, sizeof(text)) < sizeof(text));
        require(ldr_option_set(&again, i, text) == LARDER_OK);
    }
    require(memcmp(o, &again, sizeof(again)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const schemes[] = {"embed:", "unix:", "tcp://", ""};
    ldr_options_t o, before;
    uint64_t size = 42;
    char *url;

    if (bytes == 0) {
        return 0;
    }
    /* The first byte says which scheme is put before the rest, if any, so that
     * not every input must find it. */
    const char *scheme = schemes[data[0] % 4];
    size_t skip = strlen(scheme);
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
