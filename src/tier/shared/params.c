#include "tier/shared/params.h"

#include <string.h>

int ldr_hex_digit(int c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static bool decode(const char *from, size_t bytes, char *to, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++, n++) {
        char c = from[i];
        if (c == '%') {
            int high = i + 2 < bytes ? ldr_hex_digit(from[i + 1]) : -1;
            int low = high >= 0 ? ldr_hex_digit(from[i + 2]) : -1;
            if (low < 0) {
                return false;
            }
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (c == '\0' || n + 1 >= size) {
            return false;
        }
        to[n] = c;
    }
    to[n] = '\0';
    return n > 0;
}

bool ldr_url_params(const char *text, const ldr_url_param_t *params,
                    size_t count)
{
    for (;;) {
        size_t bytes = strcspn(text, "&");
        size_t name = strcspn(text, "=&");
        const ldr_url_param_t *p = NULL;

        for (size_t i = 0; i < count; i++) {
            if (strlen(params[i].name) == name &&
                memcmp(params[i].name, text, name) == 0) {
                p = &params[i];
            }
        }
        if (p == NULL || name >= bytes || p->value[0] != '\0' ||
            !decode(text + name + 1, bytes - name - 1, p->value, p->size)) {
            return false;
        }
        if (text[bytes] == '\0') {
            return true;
        }
        text += bytes + 1;
    }
}
