#include "base/options.h"

#include <string.h>

#include "base/log.h"

#define SCHEME "embed:"
#define VALUE_MAX 64 /* bytes of a value, decoded, with its NUL */
#define SHOWN_MAX 80 /* bytes of a part of the URL shown in an error text */

const ldr_option_info_t ldr_option_table[] = {
#define X(name, kind, def, min, max, text) {#name, #kind, def, text, min, max},
    LDR_OPTION_MAP(X)
#undef X
};
const size_t ldr_option_count =
    sizeof(ldr_option_table) / sizeof(ldr_option_table[0]);

static const size_t offsets[] = {
#define X(name, kind, def, min, max, text) offsetof(ldr_options_t, name),
    LDR_OPTION_MAP(X)
#undef X
};
_Static_assert(sizeof(offsets) / sizeof(offsets[0]) <= 64,
               "a bit of a word says which options were seen");

static const char all_names[] =
#define X(name, kind, def, min, max, text) " " #name
    LDR_OPTION_MAP(X);
#undef X

/* The words of ENUM options, in the order of their values. */
static const struct {
    const char *option;
    const char *words[4];
} enums[] = {
    {"io", {"auto", "uring", "plain"}},
    {"verify", {"load", "entry"}},
};

/* A part of the URL: not terminated, not decoded. */
typedef struct part {
    const char *text;
    size_t length;
} part_t;

#define SHOW(p) (int)((p).length < SHOWN_MAX ? (p).length : SHOWN_MAX), (p).text

/* Cuts off and gives the part before the next separator. *more_p says whether
 * there was one, so that an empty last part is not lost. */
static part_t part_cut(part_t *rest, char separator, bool *more_p)
{
    const char *end =
        rest->length > 0 ? memchr(rest->text, separator, rest->length) : NULL;
    part_t first = *rest;

    *more_p = end != NULL;
    if (end != NULL) {
        first.length = (size_t)(end - rest->text);
        rest->text = end + 1;
        rest->length -= first.length + 1;
    } else {
        rest->text += rest->length;
        rest->length = 0;
    }
    return first;
}

/* ---- values ------------------------------------------------------------- */

/* Decimal digits, at least one, of a number below 2^64. Gives what follows
 * them, or NULL. */
static const char *parse_digits(const char *text, uint64_t *value_p)
{
    uint64_t value = 0;

    if (*text < '0' || *text > '9') {
        return NULL;
    }
    for (; *text >= '0' && *text <= '9'; text++) {
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value)) {
            return NULL;
        }
    }
    *value_p = value;
    return text;
}

bool ldr_parse_size(const char *text, uint64_t *bytes_p)
{
    static const char units[] = "KMGT";
    uint64_t value;
    unsigned shift = 0;

    text = text != NULL ? parse_digits(text, &value) : NULL;
    if (text == NULL) {
        return false;
    }
    if (*text != '\0') {
        const char *unit = strchr(units, *text++);
        if (unit == NULL) {
            return false;
        }
        shift = 10 * (unsigned)(unit - units + 1);
    }
    if (*text != '\0' || value > UINT64_MAX >> shift) {
        return false;
    }
    *bytes_p = value << shift;
    return true;
}

static bool parse_enum(const char *option, const char *text, uint64_t *value_p)
{
    for (size_t i = 0; i < sizeof(enums) / sizeof(enums[0]); i++) {
        if (strcmp(enums[i].option, option) != 0) {
            continue;
        }
        for (uint64_t v = 0; enums[i].words[v] != NULL; v++) {
            if (strcmp(enums[i].words[v], text) == 0) {
                *value_p = v;
                return true;
            }
        }
    }
    return false;
}

static larder_status_t option_set(ldr_options_t *o, size_t index,
                                  const char *text)
{
    const ldr_option_info_t *info = &ldr_option_table[index];
    uint64_t value = 0;

    if (info->kind[0] == 'E') {
        if (!parse_enum(info->name, text, &value)) {
            return ldr_fail(LARDER_E_INVALID,
                            "option %s: '%s' is not one of its values (%s)",
                            info->name, text, info->text);
        }
    } else if (info->kind[0] == 'S') {
        if (!ldr_parse_size(text, &value)) {
            return ldr_fail(LARDER_E_INVALID,
                            "option %s: '%s' is no size; write bytes, or a "
                            "number with K, M, G or T, like 64M",
                            info->name, text);
        }
    } else {
        const char *end = parse_digits(text, &value);
        if (end == NULL || *end != '\0') {
            return ldr_fail(LARDER_E_INVALID, "option %s: '%s' is no number",
                            info->name, text);
        }
    }
    if (value < info->min || value > info->max) {
        return ldr_fail(LARDER_E_INVALID,
                        "option %s: %s is not in the range of %llu to %llu",
                        info->name, text, (unsigned long long)info->min,
                        (unsigned long long)info->max);
    }
    memcpy((char *)o + offsets[index], &value, sizeof(value));
    return LARDER_OK;
}

void ldr_options_default(ldr_options_t *o)
{
    memset(o, 0, sizeof(*o));
    for (size_t i = 0; i < ldr_option_count; i++) {
        option_set(o, i, ldr_option_table[i].value);
    }
}

/* ---- the URL ------------------------------------------------------------ */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes percent escapes into out, with a NUL. what names the part. */
static larder_status_t part_decode(part_t p, const char *what, char *out,
                                   size_t out_bytes)
{
    size_t used = 0;

    for (size_t i = 0; i < p.length; i++) {
        char c = p.text[i];
        if (c == '%') {
            int high = i + 1 < p.length ? hex_digit(p.text[i + 1]) : -1;
            int low = i + 2 < p.length ? hex_digit(p.text[i + 2]) : -1;
            if (high < 0 || low < 0) {
                return ldr_fail(LARDER_E_INVALID,
                                "%s '%.*s': '%%' must be followed by two hex "
                                "digits; write %%25 for the character itself",
                                what, SHOW(p));
            }
            c = (char)(high << 4 | low);
            i += 2;
            if (c == '\0') {
                return ldr_fail(LARDER_E_INVALID, "%s '%.*s': %%00 in it", what,
                                SHOW(p));
            }
        }
        if (used + 1 >= out_bytes) {
            return ldr_fail(LARDER_E_INVALID,
                            "%s '%.*s...' is longer than %zu bytes", what,
                            SHOW(p), out_bytes - 1);
        }
        out[used++] = c;
    }
    out[used] = '\0';
    return LARDER_OK;
}

static larder_status_t parse_dir(ldr_options_t *o, part_t p)
{
    larder_status_t st;
    char *dir;

    if (p.length == 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "directory %u of the URL has an empty name",
                        o->dir_count + 1);
    }
    if (o->dir_count == LDR_DISKS_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "directory '%.*s': at most %d directories", SHOW(p),
                        LDR_DISKS_MAX);
    }
    dir = o->dirs[o->dir_count];
    st = part_decode(p, "directory", dir, LDR_PATH_MAX);
    if (st != LARDER_OK) {
        return st;
    }
    /* One name for one directory: "kv/" is "kv". */
    for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/'; n--) {
        dir[n - 1] = '\0';
    }
    for (unsigned i = 0; i < o->dir_count; i++) {
        if (strcmp(o->dirs[i], dir) == 0) {
            return ldr_fail(LARDER_E_INVALID, "directory '%s' is named twice",
                            dir);
        }
    }
    o->dir_count++;
    return LARDER_OK;
}

static larder_status_t parse_option(ldr_options_t *o, part_t p,
                                    uint64_t *seen_p)
{
    char value[VALUE_MAX];
    bool has_value;
    part_t rest = p;
    part_t name = part_cut(&rest, '=', &has_value);
    size_t i = 0;
    larder_status_t st;

    if (name.length == 0 || !has_value || rest.length == 0) {
        return ldr_fail(LARDER_E_INVALID, "option '%.*s': write name=value",
                        SHOW(p));
    }
    while (i < ldr_option_count &&
           (strlen(ldr_option_table[i].name) != name.length ||
            memcmp(ldr_option_table[i].name, name.text, name.length) != 0)) {
        i++;
    }
    if (i == ldr_option_count) {
        return ldr_fail(LARDER_E_INVALID, "unknown option '%.*s'; there are:%s",
                        SHOW(name), all_names);
    }
    if ((*seen_p >> i & 1) != 0) {
        return ldr_fail(LARDER_E_INVALID, "option %s is given twice",
                        ldr_option_table[i].name);
    }
    *seen_p |= (uint64_t)1 << i;
    st = part_decode(rest, "value", value, sizeof(value));
    return st == LARDER_OK ? option_set(o, i, value) : st;
}

larder_status_t ldr_options_parse(const char *url, ldr_options_t *o)
{
    ldr_options_t parsed;
    part_t rest, dirs;
    uint64_t seen = 0;
    bool has_options, more;
    larder_status_t st = LARDER_OK;

    if (url == NULL || strncmp(url, SCHEME, strlen(SCHEME)) != 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "URL '%.*s': write embed:DIR[,DIR...][?name=value&...]",
                        SHOWN_MAX, url != NULL ? url : "(null)");
    }
    ldr_options_default(&parsed);
    rest.text = url + strlen(SCHEME);
    rest.length = strlen(rest.text);
    dirs = part_cut(&rest, '?', &has_options);

    more = dirs.length > 0;
    while (more && st == LARDER_OK) {
        st = parse_dir(&parsed, part_cut(&dirs, ',', &more));
    }
    more = has_options;
    while (more && st == LARDER_OK) {
        st = parse_option(&parsed, part_cut(&rest, '&', &more), &seen);
    }
    if (st == LARDER_OK) {
        *o = parsed;
    }
    return st;
}
