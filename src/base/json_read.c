/*
 * Reads JSON. A reader belongs to one caller; there is no other state. Once it
 * is broken every call fails.
 */
#include "base/json_read.h"

#include <string.h>

#define NESTING_MAX 64

static bool broken(ldr_json_reader_t *r)
{
    r->broken = true;
    return false;
}

/* The next character that is no space; 0: the end. */
static char next_char(ldr_json_reader_t *r)
{
    while (
        !r->broken && r->at < r->end &&
        (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) {
        r->at++;
    }
    return !r->broken && r->at < r->end ? *r->at : '\0';
}

static bool char_take(ldr_json_reader_t *r, char what)
{
    if (next_char(r) != what) {
        return false;
    }
    r->at++;
    return true;
}

bool ldr_json_open(ldr_json_reader_t *r, char brace)
{
    return char_take(r, brace) || broken(r);
}

/* Past the comma before the next one; false: the end. */
static bool more(ldr_json_reader_t *r, char end)
{
    if (char_take(r, end) || r->broken) {
        return false;
    }
    (void)char_take(r, ','); /* the first has none before it */
    return next_char(r) != '\0' || broken(r);
}

/* ---- strings ---- */

typedef struct sink {
    char *to;
    size_t size, used;
    bool cut; /* something did not fit */
} sink_t;

static bool sink_put(sink_t *s, char c)
{
    if (s->used + 1 < s->size) {
        s->to[s->used++] = c;
    } else {
        s->cut = true;
    }
    return true;
}

static bool put_utf8(sink_t *s, uint32_t code)
{
    if (code < 0x80) {
        return sink_put(s, (char)code);
    }
    if (code < 0x800) {
        return sink_put(s, (char)(0xc0 | code >> 6)) &&
               sink_put(s, (char)(0x80 | (code & 63)));
    }
    if (code < 0x10000) {
        return sink_put(s, (char)(0xe0 | code >> 12)) &&
               sink_put(s, (char)(0x80 | (code >> 6 & 63))) &&
               sink_put(s, (char)(0x80 | (code & 63)));
    }
    return sink_put(s, (char)(0xf0 | code >> 18)) &&
           sink_put(s, (char)(0x80 | (code >> 12 & 63))) &&
           sink_put(s, (char)(0x80 | (code >> 6 & 63))) &&
           sink_put(s, (char)(0x80 | (code & 63)));
}

static bool hex4(ldr_json_reader_t *r, uint32_t *code_p)
{
    uint32_t code = 0;

    if (r->end - r->at < 4) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        char c = *r->at++;
        char low = (char)(c | 32);

        if (c >= '0' && c <= '9') {
            code = code << 4 | (uint32_t)(c - '0');
        } else if (low >= 'a' && low <= 'f') {
            code = code << 4 | (uint32_t)(low - 'a' + 10);
        } else {
            return false;
        }
    }
    *code_p = code;
    return true;
}

/* Behind the backslash. */
static bool escape(ldr_json_reader_t *r, sink_t *s)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = *r->at++;
    const char *found = strchr(from, c);
    uint32_t code, low;

    if (c != '\0' && found != NULL) {
        return sink_put(s, to[found - from]);
    }
    if (c != 'u' || !hex4(r, &code)) {
        return false;
    }
    if (code >= 0xd800 && code < 0xdc00 && r->end - r->at >= 6 &&
        r->at[0] == '\\' && r->at[1] == 'u') {
        r->at += 2;
        if (!hex4(r, &low) || low < 0xdc00 || low > 0xdfff) {
            return false;
        }
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    return code != 0 && put_utf8(s, code);
}

static bool read_string(ldr_json_reader_t *r, sink_t *s)
{
    if (!char_take(r, '"')) {
        return broken(r);
    }
    while (r->at < r->end && *r->at != '"') {
        char c = *r->at++;
        bool good = (unsigned char)c >= 32;

        if (c == '\\') {
            good = r->at < r->end && escape(r, s);
        } else if (good) {
            good = sink_put(s, c);
        }
        if (!good) {
            return broken(r);
        }
    }
    if (s->size > 0) {
        s->to[s->used] = '\0';
    }
    return char_take(r, '"') || broken(r);
}

/* ---- values ---- */

bool ldr_json_name(ldr_json_reader_t *r, char *name, size_t size)
{
    sink_t s = {name, size, 0, false};

    return more(r, '}') && read_string(r, &s) &&
           (char_take(r, ':') || broken(r));
}

bool ldr_json_item(ldr_json_reader_t *r)
{
    return more(r, ']');
}

bool ldr_json_read_text(ldr_json_reader_t *r, char *text, size_t size)
{
    sink_t s = {text, size, 0, false};

    return read_string(r, &s) && !s.cut;
}

bool ldr_json_u64(ldr_json_reader_t *r, uint64_t *value_p)
{
    bool quoted = char_take(r, '"');
    uint64_t value = 0;

    if (next_char(r) < '0' || next_char(r) > '9') {
        return broken(r);
    }
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') {
        unsigned digit = (unsigned)(*r->at++ - '0');

        if (value > (UINT64_MAX - digit) / 10) {
            return broken(r);
        }
        value = value * 10 + digit;
    }
    *value_p = value;
    return !quoted || char_take(r, '"') || broken(r);
}

bool ldr_json_bool(ldr_json_reader_t *r, bool *value_p)
{
    char first = next_char(r);
    const char *word = first == 't' ? "true" : "false";
    size_t bytes = strlen(word);

    if ((size_t)(r->end - r->at) < bytes || memcmp(r->at, word, bytes) != 0) {
        return broken(r);
    }
    r->at += bytes;
    *value_p = first == 't';
    return true;
}

/* A number, true, false or null. */
static void skip_word(ldr_json_reader_t *r)
{
    const char *from = r->at;

    while (r->at < r->end &&
           ((*r->at >= '0' && *r->at <= '9') ||
            ((*r->at | 32) >= 'a' && (*r->at | 32) <= 'z') || *r->at == '-' ||
            *r->at == '+' || *r->at == '.')) {
        r->at++;
    }
    if (r->at == from) {
        broken(r);
    }
}

void ldr_json_skip(ldr_json_reader_t *r)
{
    char ends[NESTING_MAX], name[1];
    unsigned depth = 0;

    do {
        /* Before a value, in the object or array that ends[depth - 1] ends. */
        if (depth > 0 &&
            !(ends[depth - 1] == '}' ? ldr_json_name(r, name, sizeof(name))
                                     : ldr_json_item(r))) {
            depth--;
            continue;
        }
        char c = next_char(r);
        if (c == '{' || c == '[') {
            if (depth == NESTING_MAX) {
                broken(r);
                return;
            }
            ends[depth++] = c == '{' ? '}' : ']';
            r->at++;
        } else if (c == '"') {
            sink_t s = {name, sizeof(name), 0, false};
            read_string(r, &s);
        } else {
            skip_word(r);
        }
    } while (depth > 0 && !r->broken);
}
