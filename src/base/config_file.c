/* The file of `larder serve`: lines and sections. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/config_int.h"
#include "base/log.h"
#include "base/mem.h"

#define SHOWN_MAX 60

static const struct {
    const char *name, *kind;
    size_t offset;
    uint64_t min, max;
} keys[] = {
#define X(name, kind, min, max, text)                                          \
    {#name, #kind, offsetof(ldr_tenant_config_t, name), min, max},
    LDR_TENANT_MAP(X)
#undef X
};
#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

/* Where the reading is. */
typedef struct reader {
    ldr_config_t *c;
    unsigned line;
    bool seen_dir;
    unsigned option_line[LDR_OPTION_COUNT]; /* 0: not seen */
    int tenant;                             /* -1: before the sections */
    unsigned key_line[KEY_COUNT];           /* of this section */
    bool seen_default;
    char source[LDR_SOURCE_MAX];
} reader_t;

/* A piece of a line, spaces around it taken off. */
typedef struct piece {
    const char *text;
    size_t length;
} piece_t;

#define SHOW(p) (int)((p).length < SHOWN_MAX ? (p).length : SHOWN_MAX), (p).text

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static piece_t piece_trim(const char *text, size_t length)
{
    while (length > 0 && is_space(text[0])) {
        text++;
        length--;
    }
    while (length > 0 && is_space(text[length - 1])) {
        length--;
    }
    return (piece_t){text, length};
}

/* ---- sections ---- */

static larder_status_t tenant_add(ldr_config_t *c, piece_t name)
{
    if (c->tenant_count == LDR_CONFIG_TENANTS_MAX) {
        return ldr_fail(LARDER_E_INVALID, "tenant '%.*s': at most %u tenants",
                        SHOW(name), LDR_CONFIG_TENANTS_MAX);
    }
    if (!ldr_grow(&c->tenants, &c->tenant_capacity, c->tenant_count + 1u,
                  sizeof(*c->tenants))) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for tenant '%.*s'",
                        SHOW(name));
    }
    memcpy(c->tenants[c->tenant_count++].name, name.text, name.length);
    return LARDER_OK;
}

static larder_status_t section(reader_t *r, piece_t line)
{
    static const char word[] = "tenant";
    const size_t word_bytes = strlen(word);
    piece_t inner =
        piece_trim(line.text + 1, line.length > 2 ? line.length - 2 : 0);
    char text[64] = "";

    if (line.text[line.length - 1] != ']' || inner.length <= word_bytes ||
        memcmp(inner.text, word, word_bytes) != 0 ||
        !is_space(inner.text[word_bytes])) {
        return ldr_fail(LARDER_E_INVALID,
                        "unknown section '%.*s': write [tenant NAME]",
                        SHOW(line));
    }
    piece_t name =
        piece_trim(inner.text + word_bytes, inner.length - word_bytes);
    if (name.length < sizeof(text)) {
        memcpy(text, name.text, name.length);
    }
    if (!ldr_tenant_name_ok(text)) {
        return ldr_fail(LARDER_E_INVALID,
                        "tenant '%.*s': write 1 to 63 of A-Z a-z 0-9 . _ -",
                        SHOW(name));
    }
    memset(r->key_line, 0, sizeof(r->key_line));
    for (unsigned i = 0; i < r->c->tenant_count; i++) {
        if (strcmp(r->c->tenants[i].name, text) != 0) {
            continue;
        }
        if (i > 0 || r->seen_default) {
            return ldr_fail(LARDER_E_INVALID, "tenant %s is there twice", text);
        }
        r->seen_default = true;
        r->tenant = 0;
        return LARDER_OK;
    }
    larder_status_t st = tenant_add(r->c, name);
    r->tenant = (int)r->c->tenant_count - 1;
    return st;
}

/* ---- keys of a tenant ---- */

static larder_status_t key_unknown(piece_t name)
{
    const char *near = NULL;
    unsigned best = UINT_MAX;
    int option = ldr_option_find(name.text, name.length);

    if (option >= 0 &&
        (ldr_option_table[option].where & LDR_WHERE_SERVE) != 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "%s is not a key of a tenant but an option: it has to "
                        "stand before the first section",
                        ldr_option_table[option].name);
    }
    for (size_t i = 0; i < KEY_COUNT; i++) {
        unsigned edits =
            ldr_text_distance(keys[i].name, name.text, name.length);
        if (edits < best) {
            best = edits;
            near = keys[i].name;
        }
    }
    return ldr_fail(LARDER_E_INVALID, "unknown key '%.*s' of a tenant%s%s%s",
                    SHOW(name),
                    near != NULL ? "; did you mean " : "; there are:",
                    near != NULL ? near :
#define X(key, kind, min, max, text) " " #key
                                 LDR_TENANT_MAP(X),
#undef X
                    near != NULL ? "?" : "");
}

/* A value of the right kind, in its range. */
static larder_status_t key_set(ldr_tenant_config_t *t, size_t k,
                               const char *value)
{
    char *field = (char *)t + keys[k].offset;
    char who[128];
    uint64_t number = 0;

    if (keys[k].kind[0] == 'T') {
        if (strlen(value) > keys[k].max) {
            return ldr_fail(LARDER_E_INVALID,
                            "%s of tenant %s: '%.*s...' has more than %llu "
                            "bytes",
                            keys[k].name, t->name, SHOWN_MAX, value,
                            (unsigned long long)keys[k].max);
        }
        if (strcmp(keys[k].name, "uids") == 0 && !ldr_uids_ok(value)) {
            return ldr_fail(LARDER_E_INVALID,
                            "uids of tenant %s: '%.*s' is not a list of uids: "
                            "write numbers with commas, or any",
                            t->name, SHOWN_MAX, value);
        }
        memcpy(field, value, strlen(value) + 1);
        return LARDER_OK;
    }
    snprintf(who, sizeof(who), "%s of tenant %s", keys[k].name, t->name);
    larder_status_t st = ldr_parse_value(who, keys[k].kind, keys[k].min,
                                         keys[k].max, value, &number);
    if (st == LARDER_OK) {
        memcpy(field, &number, sizeof(number));
    }
    return st;
}

static larder_status_t tenant_key(reader_t *r, piece_t name, const char *value)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strlen(keys[i].name) != name.length ||
            memcmp(keys[i].name, name.text, name.length) != 0) {
            continue;
        }
        if (r->key_line[i] != 0) {
            return ldr_fail(LARDER_E_INVALID,
                            "%s is given twice, first in "
                            "line %u",
                            keys[i].name, r->key_line[i]);
        }
        r->key_line[i] = r->line;
        return key_set(&r->c->tenants[r->tenant], i, value);
    }
    return key_unknown(name);
}

/* ---- lines ---- */

static larder_status_t option_line(reader_t *r, piece_t name, const char *value)
{
    if (name.length == 3 && memcmp(name.text, "dir", 3) == 0) {
        bool first = !r->seen_dir;
        r->seen_dir = true;
        return ldr_config_dir(r->c, value, r->source, first);
    }
    int i = ldr_config_option(name.text, name.length, "key ");
    if (i < 0) {
        return (larder_status_t)i;
    }
    if (r->option_line[i] != 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "option %s is given twice, first in line %u",
                        ldr_option_table[i].name, r->option_line[i]);
    }
    r->option_line[i] = r->line;
    return ldr_config_set(r->c, (size_t)i, value, r->source);
}

/* Takes the quotes off, or what follows a # behind a space. */
static larder_status_t value_copy(piece_t v, char *value, size_t size)
{
    if (v.length > 0 && v.text[0] == '"') {
        const char *end = memchr(v.text + 1, '"', v.length - 1);
        piece_t rest = {NULL, 0};

        if (end != NULL) {
            rest = piece_trim(end + 1, (size_t)(v.text + v.length - end) - 1);
        }
        if (end == NULL || (rest.length > 0 && rest.text[0] != '#')) {
            return ldr_fail(LARDER_E_INVALID,
                            "value %.*s: the quotes are not closed at its end",
                            SHOW(v));
        }
        v = (piece_t){v.text + 1, (size_t)(end - v.text) - 1};
    } else {
        for (size_t i = 0; i < v.length; i++) {
            if (v.text[i] == '#' && (i == 0 || is_space(v.text[i - 1]))) {
                v = piece_trim(v.text, i);
            }
        }
    }
    for (size_t i = 0; i < v.length; i++) {
        if ((unsigned char)v.text[i] < 0x20 || v.text[i] == 0x7f) {
            return ldr_fail(LARDER_E_INVALID,
                            "there is a control character in the value");
        }
    }
    if (v.length >= size) {
        return ldr_fail(LARDER_E_INVALID, "value '%.*s...' is too long",
                        SHOW(v));
    }
    memcpy(value, v.text, v.length);
    value[v.length] = '\0';
    return LARDER_OK;
}

static larder_status_t read_line(reader_t *r, const char *text, size_t length)
{
    char value[LDR_CONFIG_LINE_MAX];
    piece_t line = piece_trim(text, length);
    const char *equals;
    larder_status_t st;

    if (length >= LDR_CONFIG_LINE_MAX) {
        return ldr_fail(LARDER_E_INVALID, "the line is longer than %d bytes",
                        LDR_CONFIG_LINE_MAX - 1);
    }
    if (line.length == 0 || line.text[0] == '#') {
        return LARDER_OK;
    }
    if (memchr(line.text, '\0', line.length) != NULL) {
        return ldr_fail(LARDER_E_INVALID, "there is a zero byte in the line");
    }
    if (line.text[0] == '[') {
        return section(r, line);
    }
    equals = memchr(line.text, '=', line.length);
    if (equals == NULL || equals == line.text) {
        return ldr_fail(LARDER_E_INVALID,
                        "'%.*s': write name = value, [tenant NAME] or # a "
                        "comment",
                        SHOW(line));
    }
    piece_t name = piece_trim(line.text, (size_t)(equals - line.text));
    size_t left = (size_t)(line.text + line.length - equals) - 1;
    st = value_copy(piece_trim(equals + 1, left), value, sizeof(value));
    if (st != LARDER_OK) {
        return st;
    }
    return r->tenant < 0 ? option_line(r, name, value)
                         : tenant_key(r, name, value);
}

larder_status_t ldr_config_parse(ldr_config_t *c, const char *name,
                                 const char *text, size_t bytes)
{
    static const char mark[] = "\xef\xbb\xbf"; /* some editors begin so */
    reader_t r = {.c = c, .tenant = -1};
    larder_status_t st = LARDER_OK;
    size_t at = bytes >= 3 && memcmp(text, mark, 3) == 0 ? 3 : 0;

    while (at < bytes && st == LARDER_OK) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;

        r.line++;
        snprintf(r.source, sizeof(r.source), "%s:%u", name, r.line);
        st = read_line(&r, text + at, length);
        if (st != LARDER_OK) {
            ldr_config_fail(r.source, st);
        }
        at += length + 1;
    }
    return st;
}

larder_status_t ldr_config_read(ldr_config_t *c)
{
    char *text = ldr_alloc(LDR_CONFIG_BYTES_MAX + 1);
    larder_status_t st = LARDER_OK;
    size_t used = 0;
    ssize_t n = -1;

    if (text == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory to read %s", c->file);
    }
    int fd = open(c->file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    while (fd >= 0 && used <= LDR_CONFIG_BYTES_MAX) {
        n = read(fd, text + used, LDR_CONFIG_BYTES_MAX + 1 - used);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            break;
        }
        used += n > 0 ? (size_t)n : 0;
    }
    if (n < 0) {
        st = ldr_fail(LARDER_E_INVALID, "config file %s cannot be read: %s",
                      c->file, strerror(errno));
    } else if (used > LDR_CONFIG_BYTES_MAX) {
        st = ldr_fail(LARDER_E_INVALID, "config file %s has more than 1 MiB",
                      c->file);
    } else {
        st = ldr_config_parse(c, c->file, text, used);
    }
    if (fd >= 0) {
        close(fd);
    }
    ldr_free(text);
    return st;
}
