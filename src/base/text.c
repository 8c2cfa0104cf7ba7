/*
 * Text into a buffer of fixed size. The buffer belongs to one caller; there is
 * no other state.
 */
#include "base/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ldr_text_add(ldr_text_t *t, const char *format, ...)
{
    size_t left = t->length < t->size ? t->size - t->length : 0;
    va_list args;

    va_start(args, format);
    int n = vsnprintf(left > 0 ? t->at + t->length : NULL, left, format, args);
    va_end(args);
    t->length += n > 0 ? (size_t)n : 0;
}

void ldr_text_char(ldr_text_t *t, char c)
{
    if (t->length + 1 < t->size) {
        t->at[t->length] = c;
        t->at[t->length + 1] = '\0';
    }
    t->length++;
}

void ldr_text_u64(ldr_text_t *t, uint64_t value)
{
    ldr_text_add(t, "%" PRIu64, value);
}

void ldr_text_i64(ldr_text_t *t, int64_t value)
{
    ldr_text_add(t, "%" PRId64, value);
}

void ldr_text_fixed(ldr_text_t *t, uint64_t value, unsigned decimals)
{
    uint64_t unit = 1;

    for (unsigned i = 0; i < decimals; i++) {
        unit *= 10;
    }
    ldr_text_u64(t, value / unit);
    value %= unit;
    if (value == 0) {
        return;
    }
    while (value % 10 == 0) {
        value /= 10;
        decimals--;
    }
    ldr_text_add(t, ".%0*" PRIu64, (int)decimals, value);
}

/* How many bytes of well-formed UTF-8 one character here takes; 0: none. */
static unsigned utf8(const unsigned char *s)
{
    static const struct {
        unsigned char mask, lead, low, high; /* of the second byte */
    } forms[] = {
        {0xff, 0xe0, 0xa0, 0xbf}, {0xff, 0xed, 0x80, 0x9f},
        {0xff, 0xf0, 0x90, 0xbf}, {0xff, 0xf4, 0x80, 0x8f},
        {0xf0, 0xe0, 0x80, 0xbf}, {0xf8, 0xf0, 0x80, 0xbf},
        {0xe0, 0xc0, 0x80, 0xbf},
    };

    if (s[0] < 0x80) {
        return 1;
    }
    if (s[0] < 0xc2 || s[0] > 0xf4) {
        return 0;
    }
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if ((s[0] & forms[i].mask) != forms[i].lead) {
            continue;
        }
        if (s[1] < forms[i].low || s[1] > forms[i].high) {
            return 0;
        }
        unsigned bytes = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
        for (unsigned k = 2; k < bytes; k++) {
            if ((s[k] & 0xc0) != 0x80) {
                return 0;
            }
        }
        return bytes;
    }
    return 0;
}

void ldr_text_json(ldr_text_t *t, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;

    ldr_text_char(t, '"');
    while (*s != '\0') {
        unsigned bytes = utf8(s);

        if (bytes == 0) {
            ldr_text_add(t, "\\ufffd");
            bytes = 1;
        } else if (*s == '"' || *s == '\\') {
            ldr_text_char(t, '\\');
            ldr_text_char(t, (char)*s);
        } else if (*s < 0x20 || *s == 0x7f) {
            ldr_text_add(t, "\\u%04x", *s);
        } else {
            ldr_text_add(t, "%.*s", (int)bytes, (const char *)s);
        }
        s += bytes;
    }
    ldr_text_char(t, '"');
}

void ldr_label_clean(const char *from, size_t bytes,
                     char to[LARDER_LABEL_MAX + 1])
{
    memset(to, 0, LARDER_LABEL_MAX + 1);
    for (size_t i = 0; i < bytes && i < LARDER_LABEL_MAX && from[i] != '\0';
         i++) {
        to[i] = from[i] < ' ' || from[i] > '~' ? '?' : from[i];
    }
}

void ldr_hex(const uint8_t *data, size_t bytes, char *text)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < bytes; i++) {
        *text++ = digits[data[i] >> 4];
        *text++ = digits[data[i] & 15];
    }
    *text = '\0';
}

int ldr_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool ldr_unhex64(const char *text, unsigned digits, uint64_t *value)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < digits; i++) {
        int d = ldr_hex_digit(text[i]);

        if (d < 0 || (text[i] >= 'A' && text[i] <= 'F')) {
            return false;
        }
        v = v << 4 | (unsigned)d;
    }
    *value = v;
    return true;
}

bool ldr_unhex(const char *text, size_t count, uint8_t *bytes)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t v;

        if (!ldr_unhex64(text + 2 * i, 2, &v)) {
            return false;
        }
        bytes[i] = (uint8_t)v;
    }
    return true;
}

bool ldr_unhex_any(const char *text, size_t count, uint8_t *bytes)
{
    for (size_t i = 0; i < count; i++) {
        int high = ldr_hex_digit(text[2 * i]);
        int low = high >= 0 ? ldr_hex_digit(text[2 * i + 1]) : -1;

        if (low < 0) {
            return false;
        }
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

ldr_unescaped_t ldr_url_unescape(const char *text, size_t length, char *to,
                                 size_t size)
{
    size_t used = 0;

    for (size_t i = 0; i < length; i++) {
        uint8_t c = (uint8_t)text[i];

        if (c == '%') {
            if (length - i < 3 || !ldr_unhex_any(text + i + 1, 1, &c)) {
                return LDR_UNESCAPED_BAD;
            }
            i += 2;
        }
        if (c == 0) {
            return LDR_UNESCAPED_ZERO;
        }
        if (used + 1 >= size) {
            return LDR_UNESCAPED_LONG;
        }
        to[used++] = (char)c;
    }
    memset(to + used, 0, size - used);
    return LDR_UNESCAPED;
}
