/*
 * The parser of serve's file on any bytes. What it accepts keeps the promises
 * of the tables: values in range, directories distinct, tenants named once,
 * "default" first; and it can be shown. What it refuses says where.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_int.h"
#include "base/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int ok)
{
    if (!ok) {
        abort();
    }
}

#define CHECK_SIZE(field, max) require((field) <= (max))
#define CHECK_UINT CHECK_SIZE
#define CHECK_TEXT(field, max) require(strnlen(field, sizeof(field)) <= (max))

static void check_tenants(const ldr_config_t *c)
{
    require(c->tenant_count >= 1 && c->tenant_count <= LDR_CONFIG_TENANTS_MAX);
    require(strcmp(c->tenants[0].name, "default") == 0);
    for (unsigned i = 0; i < c->tenant_count; i++) {
        const ldr_tenant_config_t *t = &c->tenants[i];

        require(ldr_tenant_name_ok(t->name));
        require(ldr_config_tenant(c, t->name) == t);
        require(ldr_uids_ok(t->uids));
#define X(name, kind, min, max, text) CHECK_##kind(t->name, max);
        LDR_TENANT_MAP(X)
#undef X
    }
}

static void check_accepted(const ldr_config_t *c)
{
    ldr_options_t again = c->options;
    size_t length = ldr_config_json(c, NULL, 0);
    char *text = malloc(length + 1);

    check_tenants(c);
    for (size_t i = 0; i < ldr_option_count; i++) {
        char value[LDR_OPTION_TEXT];

        ldr_option_get(&c->options, i, value, sizeof(value));
        require(ldr_option_set(&again, i, value) == LARDER_OK);
        require(strcmp(c->source[i], "default") == 0 ||
                ((ldr_option_table[i].where & LDR_WHERE_SERVE) != 0 &&
                 strncmp(c->source[i], "f:", 2) == 0));
    }
    require(memcmp(&again, &c->options, sizeof(again)) == 0);
    for (unsigned i = 0; i < c->options.dir_count; i++) {
        for (unsigned j = 0; j < i; j++) {
            require(strcmp(c->options.dirs[i], c->options.dirs[j]) != 0);
        }
    }
    if (text != NULL) {
        require(ldr_config_json(c, text, length + 1) == length);
        require(strlen(text) == length);
    }
    free(text);
    if (ldr_config_check(c) != LARDER_OK) {
        require(ldr_fail_text()[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ldr_config_t *c = ldr_config_new();
    char *text = malloc(bytes > 0 ? bytes : 1);

    if (c != NULL && text != NULL) {
        if (bytes > 0) {
            memcpy(text, data, bytes);
        }
        ldr_fail_clear();
        if (ldr_config_parse(c, "f", text, bytes) == LARDER_OK) {
            check_accepted(c);
        } else {
            require(strncmp(ldr_fail_text(), "f:", 2) == 0);
        }
    }
    free(text);
    ldr_config_free(c);
    return 0;
}
