/* secret: what a daemon can be given in the place of a tenant's secret. */
#include <string.h>

#include "cli/cli.h"
#include "net/auth.h"
#include "node/node.h"

int ldr_cmd_secret(const ldr_args_t *args)
{
    const char *tenant = args->values[LDR_FLAG_TENANT];
    char text[LDR_SECRET_CHECK_TEXT + 1];
    uint8_t secret[LDR_SECRET_MAX + 2];
    ldr_secret_check_t check;
    size_t bytes;

    tenant = tenant != NULL ? tenant : "default";
    int code = ldr_cli_tenant(args, tenant);
    if (code != LDR_EXIT_OK) {
        return code;
    }
    if (ldr_tenant_secret_read(args->operands[0], secret, &bytes) !=
        LARDER_OK) {
        return ldr_cli_fail(args, "%s", ldr_fail_text());
    }
    bool ok = ldr_secret_check(secret, bytes, tenant, &check);
    explicit_bzero(secret, sizeof(secret));
    if (!ok) {
        return ldr_cli_fail(args, "hashing failed");
    }
    ldr_secret_check_text(&check, text);
    if (ldr_args_has(args, LDR_FLAG_JSON)) {
        printf("{\"tenant\":\"%s\",\"secret_check\":\"%s\"}\n", tenant, text);
    } else {
        printf("%s\n", text);
    }
    return LDR_EXIT_OK;
}
