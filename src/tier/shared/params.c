/* Parses the parameters of a back end's URL. Pure functions. */
#include "tier/shared/params.h"

#include <string.h>

#include "base/text.h"

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
        if (p == NULL || name + 1 >= bytes || p->value[0] != '\0' ||
            ldr_url_unescape(text + name + 1, bytes - name - 1, p->value,
                             p->size) != LDR_UNESCAPED) {
            return false;
        }
        if (text[bytes] == '\0') {
            return true;
        }
        text += bytes + 1;
    }
}
