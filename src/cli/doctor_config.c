/* doctor: the configuration, and the files it names. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/doctor.h"
#include "net/auth.h"
#include "net/socket.h"
#include "node/node.h"

void ldr_doctor_config(const ldr_doctor_t *d)
{
    const ldr_config_t *c = d->config;
    unsigned set = 0;

    if (d->config_bad != NULL) {
        ldr_doctor_say(d, LDR_VERDICT_BAD,
                       "mend that; the other checks take the defaults", "%s",
                       d->config_bad);
        return;
    }
    for (size_t i = 0; i < ldr_option_count; i++) {
        set += strcmp(c->source[i], "default") != 0;
    }
    ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                   "%s%s; %u options set, %u directories, %u tenants",
                   c->file[0] != '\0' ? "read from " : "no file", c->file, set,
                   c->options.dir_count, c->tenant_count);
}

/* Whether the daemon would take it. It knows what a token is. */
static bool token_ok(const ldr_doctor_t *d, const ldr_tenant_config_t *tenant)
{
    ldr_token_t tokens[LDR_TOKENS_MAX];
    unsigned count;
    larder_status_t st = ldr_tokens_read(tenant->token_file, tokens, &count);

    explicit_bzero(tokens, sizeof(tokens));
    if (st != LARDER_OK) {
        ldr_doctor_say(d, LDR_VERDICT_BAD, NULL, "token of tenant %s: %s",
                       tenant->name, ldr_fail_text());
    }
    return st == LARDER_OK;
}

/* Nor of its secret. */
static bool secret_ok(const ldr_doctor_t *d, const ldr_tenant_config_t *tenant)
{
    ldr_secret_check_t check;
    bool given;
    larder_status_t st = ldr_secret_configured(tenant, &check, &given);

    if (st != LARDER_OK) {
        ldr_doctor_say(d, LDR_VERDICT_BAD, NULL, "secret of tenant %s: %s",
                       tenant->name, ldr_fail_text());
    }
    return st == LARDER_OK;
}

/* What is wrong with the key, which others must not read; true: nothing. */
static bool key_ok(const ldr_doctor_t *d, const char *path)
{
    struct stat st;
    char cure[LDR_OPTION_TEXT + 64];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool ok = true;

    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        snprintf(cure, sizeof(cure),
                 "ls -l %s; the daemon's user must be able "
                 "to read it",
                 path);
        ldr_doctor_say(d, LDR_VERDICT_BAD, cure, "option tls_key: %s: %s", path,
                       fd < 0 ? strerror(errno) : "is no file");
        ok = false;
    } else if ((st.st_mode & 07) != 0) {
        snprintf(cure, sizeof(cure), "chmod o= %s", path);
        ldr_doctor_say(d, LDR_VERDICT_WARN, cure,
                       "option tls_key: %s: everybody on this host can read it",
                       path);
        ok = false;
    }
    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

void ldr_doctor_secrets(const ldr_doctor_t *d)
{
    const ldr_config_t *c = d->config;
    unsigned count = 0, good = 0;

    for (unsigned i = 0; i < c->tenant_count; i++) {
        if (c->tenants[i].token_file[0] != '\0') {
            count++;
            good += token_ok(d, &c->tenants[i]);
        }
        if (c->tenants[i].secret_file[0] != '\0' ||
            c->tenants[i].secret_check[0] != '\0') {
            count++;
            good += secret_ok(d, &c->tenants[i]);
        }
    }
    if (c->options.tls_key[0] != '\0') {
        count++;
        good += key_ok(d, c->options.tls_key);
    }
    if (count == 0) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL,
                       "no tokens, secrets or key are configured");
    } else if (good == count) {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "%u tokens, secrets and keys can be read, by few",
                       count);
    }
}

void ldr_doctor_tls(const ldr_doctor_t *d)
{
    const ldr_options_t *o = &d->config->options;
    ldr_tls_params_t params = {
        .server = true,
        .cert = o->tls_cert,
        .key = o->tls_key,
        .ca = o->tls_client_ca[0] != '\0' ? o->tls_client_ca : NULL};
    ldr_tls_t *tls = NULL;

    if (o->tls != LDR_TLS_ON) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL, "tls is off");
    } else if (ldr_tls_create(&params, &tls) != LARDER_OK) {
        ldr_doctor_say(d, LDR_VERDICT_BAD, NULL, "%s", ldr_fail_text());
    } else {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "certificate and key belong together: %s", o->tls_cert);
        ldr_tls_destroy(tls);
    }
}
