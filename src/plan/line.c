/* Parses one line of a trace. The line and its arrays belong to one caller. */
#include "plan/line.h"

#include <string.h>

#include "base/mem.h"

#define NESTING_MAX 64
#define SAFE_DIGITS 19 /* of any number below 2^64 */

typedef struct cursor {
    const char *at, *end;
    const char *why; /* what was wrong first */
} cursor_t;

static bool wrong(cursor_t *c, const char *why)
{
    c->why = c->why != NULL ? c->why : why;
    return false;
}

static inline void skip_space(cursor_t *c)
{
    const char *at = c->at, *end = c->end;

    while (at < end && *at <= ' ' &&
           (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n')) {
        at++;
    }
    c->at = at;
}

/* Past this character and the space before it. */
static inline bool take_char(cursor_t *c, char what)
{
    skip_space(c);
    if (c->at < c->end && *c->at == what) {
        c->at++;
        return true;
    }
    return false;
}

static bool is_digit(const cursor_t *c)
{
    return c->at < c->end && *c->at >= '0' && *c->at <= '9';
}

static bool take_digits(cursor_t *c, uint64_t *value_p)
{
    const char *at = c->at, *end = c->end;
    uint64_t value = 0;

    if (!is_digit(c)) {
        return wrong(c, "a number without sign is expected");
    }
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        unsigned digit = (unsigned)(*at - '0');

        if (at - c->at >= SAFE_DIGITS && value > (UINT64_MAX - digit) / 10) {
            return wrong(c, "a number is too large");
        }
        value = value * 10 + digit;
    }
    c->at = at;
    *value_p = value;
    return true;
}

/* A time or a length; what stands behind a point is left out. */
static bool take_amount(cursor_t *c, uint64_t max, uint64_t *value_p)
{
    skip_space(c);
    if (!take_digits(c, value_p)) {
        return false;
    }
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!is_digit(c)) {
            return wrong(c, "a number ends with a point");
        }
        while (is_digit(c)) {
            c->at++;
        }
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        return wrong(c, "a number has an exponent");
    }
    return *value_p <= max || wrong(c, "a number is too large");
}

/* The text between the quotes, escapes as they stand. */
static bool take_string(cursor_t *c, const char **text_p, size_t *bytes_p)
{
    if (!take_char(c, '"')) {
        return wrong(c, "a string is expected");
    }
    const char *at = c->at, *end = c->end;
    while (at < end && *at != '"') {
        at += *at == '\\' && end - at > 1 ? 2 : 1;
    }
    if (at >= end) {
        return wrong(c, "a string has no end");
    }
    *text_p = c->at;
    *bytes_p = (size_t)(at - c->at);
    c->at = at + 1;
    return true;
}

/* A number, or true, false, null: anything that is one word. */
static bool skip_word(cursor_t *c)
{
    const char *from = c->at;

    while (c->at < c->end &&
           ((*c->at >= '0' && *c->at <= '9') || (*c->at | 32) == 'e' ||
            (*c->at >= 'a' && *c->at <= 'z') || *c->at == '-' ||
            *c->at == '+' || *c->at == '.')) {
        c->at++;
    }
    return c->at > from || wrong(c, "a value is expected");
}

/* Any value, of a field that is not ours. It is only looked at for its end. */
static bool skip_value(cursor_t *c)
{
    char closing[NESTING_MAX];
    unsigned depth = 0;
    const char *text;
    size_t bytes;

    do {
        skip_space(c);
        char now = c->at < c->end ? *c->at : '\0';
        if (now == '"') {
            if (!take_string(c, &text, &bytes)) {
                return false;
            }
        } else if (now == '{' || now == '[') {
            if (depth == NESTING_MAX) {
                return wrong(c, "values are nested too deep");
            }
            closing[depth++] = now == '{' ? '}' : ']';
            c->at++;
        } else if (depth > 0 && now == closing[depth - 1]) {
            depth--;
            c->at++;
        } else if (depth > 0 && (now == ',' || now == ':')) {
            c->at++;
        } else if (!skip_word(c)) {
            return false;
        }
    } while (depth > 0);
    return true;
}

static bool take_ids(cursor_t *c, ldr_line_t *line)
{
    line->count = 0;
    if (!take_char(c, '[')) {
        return wrong(c, "hash_ids is no array");
    }
    if (take_char(c, ']')) {
        return true;
    }
    do {
        if (line->count == LDR_LINE_IDS_MAX) {
            return wrong(c, "hash_ids has too many");
        }
        if (!ldr_grow(&line->ids, &line->capacity, line->count + 1u,
                      sizeof(*line->ids))) {
            return wrong(c, "no memory for hash_ids");
        }
        skip_space(c);
        if (!take_digits(c, &line->ids[line->count])) {
            return false;
        }
        line->count++;
    } while (take_char(c, ','));
    return take_char(c, ']') || wrong(c, "hash_ids has no end");
}

enum { HAS_TIME = 1, HAS_INPUT = 2, HAS_IDS = 4, HAS_ALL = 7 };

static bool take_field(cursor_t *c, ldr_line_t *line, unsigned *has)
{
    const char *name;
    size_t bytes;
    uint64_t value;

#define IS(text) (bytes == sizeof(text) - 1 && memcmp(name, text, bytes) == 0)
    if (!take_string(c, &name, &bytes)) {
        return false;
    }
    if (!take_char(c, ':')) {
        return wrong(c, "a field has no value");
    }
    if (IS("hash_ids")) {
        *has |= HAS_IDS;
        return take_ids(c, line);
    }
    if (IS("timestamp")) {
        *has |= HAS_TIME;
        return take_amount(c, UINT64_MAX / 2, &line->at_ms);
    }
    uint32_t *to = IS("input_length")    ? &line->input_tokens
                   : IS("output_length") ? &line->output_tokens
                   : IS("hint")          ? &line->hint
                   : IS("block_tokens")  ? &line->block_tokens
                                         : NULL;
    if (to == NULL) {
        return skip_value(c);
    }
    *has |= to == &line->input_tokens ? HAS_INPUT : 0;
    if (!take_amount(c, UINT32_MAX, &value)) {
        return false;
    }
    *to = (uint32_t)value;
    return true;
#undef IS
}

const char *ldr_line_parse(ldr_line_t *line, const char *text, size_t bytes)
{
    cursor_t c = {text, text + bytes, NULL};
    unsigned has = 0;

    line->count = 0;
    line->output_tokens = 0;
    line->hint = 0;
    line->block_tokens = 0;
    if (!take_char(&c, '{')) {
        return "it is no JSON object";
    }
    if (!take_char(&c, '}')) {
        do {
            if (!take_field(&c, line, &has)) {
                return c.why;
            }
        } while (take_char(&c, ','));
        if (!take_char(&c, '}')) {
            return "the object has no end";
        }
    }
    skip_space(&c);
    if (c.at != c.end) {
        return "something stands behind the object";
    }
    if (has != HAS_ALL) {
        return (has & HAS_IDS) == 0    ? "it has no hash_ids"
               : (has & HAS_TIME) == 0 ? "it has no timestamp"
                                       : "it has no input_length";
    }
    return NULL;
}

void ldr_line_free(ldr_line_t *line)
{
    ldr_free(line->ids);
    *line = (ldr_line_t){0};
}
