/*
 * Text into a buffer of fixed size. What does not fit is counted and not
 * written: the caller learns how much room it would have needed. Numbers look
 * the same whatever the process's locale is.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

typedef struct ldr_text {
    char *at;
    size_t size;   /* of the buffer; with 0 nothing is written */
    size_t length; /* of all that was added, without the NUL */
} ldr_text_t;

static inline ldr_text_t ldr_text(char *at, size_t size)
{
    if (size > 0) {
        at[0] = '\0';
    }
    return (ldr_text_t){at, size, 0};
}

void ldr_text_add(ldr_text_t *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void ldr_text_char(ldr_text_t *t, char c);
void ldr_text_u64(ldr_text_t *t, uint64_t value);
void ldr_text_i64(ldr_text_t *t, int64_t value);
/* value / 10^decimals, without needless zeros: (1500, 3) is 1.5. */
void ldr_text_fixed(ldr_text_t *t, uint64_t value, unsigned decimals);
/* A JSON string with its quotes. Bytes that are no UTF-8 become U+FFFD. */
void ldr_text_json(ldr_text_t *t, const char *text);

/* A space's label as it is kept: at most LARDER_LABEL_MAX bytes up to a NUL,
 * printable ASCII. It comes from anybody, and is shown in terminals, in HTML
 * and in metrics. The rest of `to` is zero. */
void ldr_label_clean(const char *from, size_t bytes,
                     char to[LARDER_LABEL_MAX + 1]);

#define LDR_HEX_BYTES(bytes) (2 * (bytes) + 1)
/* Lower-case hex digits and a NUL. */
void ldr_hex(const uint8_t *data, size_t bytes, char *text);
/* The way back: so many bytes, or a number of so many digits; small letters
 * only, so that a value has one form. False: it is none. */
bool ldr_unhex(const char *text, size_t count, uint8_t *bytes);
bool ldr_unhex64(const char *text, unsigned digits, uint64_t *value);
/* So many bytes that a person may have written: letters of either size. */
bool ldr_unhex_any(const char *text, size_t count, uint8_t *bytes);
/* 0 to 15, letters of either size; -1: it is no such digit. */
int ldr_hex_digit(char c);

typedef enum ldr_unescaped {
    LDR_UNESCAPED,
    LDR_UNESCAPED_BAD,  /* a '%' without two digits behind it */
    LDR_UNESCAPED_ZERO, /* a byte 0 */
    LDR_UNESCAPED_LONG  /* it does not fit */
} ldr_unescaped_t;

/* Decodes the percent escapes of a URL; the rest of `to` becomes zero. */
ldr_unescaped_t ldr_url_unescape(const char *text, size_t length, char *to,
                                 size_t size);
