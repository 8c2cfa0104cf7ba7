/* The configuration checked as a whole, and shown. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config_int.h"
#include "base/json.h"
#include "base/log.h"

/* ---- what belongs together ---- */

static bool any_token(const ldr_config_t *c)
{
    for (unsigned i = 0; i < c->tenant_count; i++) {
        if (c->tenants[i].token_file[0] != '\0') {
            return true;
        }
    }
    return false;
}

static larder_status_t check_tls(const ldr_config_t *c)
{
    const ldr_options_t *o = &c->options;
    static const int files[] = {LDR_OPTION_tls_cert, LDR_OPTION_tls_key,
                                LDR_OPTION_tls_client_ca};

    if (o->tls == LDR_TLS_ON) {
        int missing = o->tls_cert[0] == '\0'  ? LDR_OPTION_tls_cert
                      : o->tls_key[0] == '\0' ? LDR_OPTION_tls_key
                                              : -1;
        return missing < 0
                   ? LARDER_OK
                   : ldr_fail(LARDER_E_INVALID,
                              "option tls is on (%s), but %s is not set: add "
                              "%s = FILE",
                              c->source[LDR_OPTION_tls],
                              ldr_option_table[missing].name,
                              ldr_option_table[missing].name);
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char value[LDR_OPTION_TEXT];

        if (ldr_option_get(o, (size_t)files[i], value, sizeof(value)) > 0) {
            return ldr_fail(LARDER_E_INVALID,
                            "option %s is '%s' (%s), but tls is off: add "
                            "tls = on",
                            ldr_option_table[files[i]].name, value,
                            c->source[files[i]]);
        }
    }
    return LARDER_OK;
}

/* Beyond this host nobody gets in without a proof of who they are. */
static larder_status_t check_listen(const ldr_config_t *c)
{
    const ldr_options_t *o = &c->options;
    const char *at = o->listen;
    char host[LDR_HOST_MAX];
    uint16_t port;

    if (strcmp(o->socket, "none") == 0 && at[0] == '\0') {
        return ldr_fail(LARDER_E_INVALID,
                        "option socket is none (%s) and listen is empty: "
                        "nobody could connect",
                        c->source[LDR_OPTION_socket]);
    }
    if (any_token(c) || o->tls_client_ca[0] != '\0') {
        return LARDER_OK;
    }
    while (at[0] != '\0') {
        size_t length = strcspn(at, ",");

        if (ldr_parse_address(at, length, host, &port) &&
            !ldr_host_is_loopback(host)) {
            return ldr_fail(
                LARDER_E_INVALID,
                "option listen: %.*s (%s) can be reached from other hosts, "
                "and nothing says who may come in: add `token_file = FILE` "
                "in a section [tenant NAME] of the config file, or tls with "
                "tls_client_ca",
                (int)length, at, c->source[LDR_OPTION_listen]);
        }
        at += length + (at[length] == ',' ? 1 : 0);
    }
    return LARDER_OK;
}

/* Nor is anything shown beyond this host unless that was asked for. */
bool ldr_config_is_default(const ldr_config_t *c, unsigned option)
{
    return strcmp(c->source[option], "default") == 0;
}

static larder_status_t check_admin(const ldr_config_t *c)
{
    const ldr_options_t *o = &c->options;
    char host[LDR_HOST_MAX];
    uint16_t port;

    if (o->admin_open == LDR_ADMIN_OPEN_ON ||
        !ldr_parse_address(o->admin, strlen(o->admin), host, &port) ||
        ldr_host_is_loopback(host)) { /* none is no address */
        return LARDER_OK;
    }
    return ldr_fail(LARDER_E_INVALID,
                    "option admin: %s (%s) can be reached from other hosts, "
                    "who could read metrics and health there: add "
                    "`admin_open = on` (--admin_open on) if they may, or use "
                    "127.0.0.1:%u",
                    o->admin, c->source[LDR_OPTION_admin], port);
}

/* Events contain prompts. */
static larder_status_t check_events_at(const ldr_config_t *c, unsigned option,
                                       const char *url)
{
    static const char tcp[] = "tcp://", ipc[] = "ipc://";
    char host[LDR_HOST_MAX];
    uint16_t port;

    if (url[0] == '\0' || strncmp(url, ipc, sizeof(ipc) - 1) == 0) {
        return LARDER_OK;
    }
    const char *address = url + sizeof(tcp) - 1;
    if (strncmp(url, tcp, sizeof(tcp) - 1) != 0 ||
        !ldr_parse_address(address, strlen(address), host, &port)) {
        return ldr_fail(LARDER_E_INVALID,
                        "option %s: %s (%s) is neither tcp://HOST:PORT nor "
                        "ipc://PATH",
                        ldr_option_table[option].name, url, c->source[option]);
    }
    if (c->options.events_open == LDR_EVENTS_OPEN_ON ||
        c->options.events_key[0] != '\0' || ldr_host_is_loopback(host)) {
        return LARDER_OK;
    }
    return ldr_fail(LARDER_E_INVALID,
                    "option %s: %s (%s) can be reached from other hosts, who "
                    "could read prompts there: set `events_key` and "
                    "`events_clients`, add `events_open = on` (--events_open "
                    "on) if all of them may, or use tcp://127.0.0.1:%u",
                    ldr_option_table[option].name, url, c->source[option],
                    port);
}

static larder_status_t check_events(const ldr_config_t *c)
{
    larder_status_t st =
        check_events_at(c, LDR_OPTION_events, c->options.events);

    if ((c->options.events_key[0] != '\0') !=
        (c->options.events_clients[0] != '\0')) {
        return ldr_fail(LARDER_E_INVALID,
                        "options events_key and events_clients: set both, or "
                        "none");
    }
    if (strchr(c->options.events_node, '@') != NULL) {
        return ldr_fail(LARDER_E_INVALID,
                        "option events_node: %s (%s) has an @, which parts "
                        "topics",
                        c->options.events_node,
                        c->source[LDR_OPTION_events_node]);
    }
    return st == LARDER_OK ? check_events_at(c, LDR_OPTION_events_replay,
                                             c->options.events_replay)
                           : st;
}

/* What is tenant default's may be an option, or stand in its section. */
static larder_status_t check_default(const ldr_config_t *c, size_t option,
                                     const char *own)
{
    char value[LDR_OPTION_TEXT];

    ldr_option_get(&c->options, option, value, sizeof(value));
    if (own[0] == '\0' || value[0] == '\0' || strcmp(own, value) == 0) {
        return LARDER_OK;
    }
    return ldr_fail(LARDER_E_INVALID,
                    "option %s (%s) and %s of [tenant default] are both set: "
                    "keep one",
                    ldr_option_table[option].name, c->source[option],
                    ldr_option_table[option].name);
}

static larder_status_t check_tenants(const ldr_config_t *c)
{
    larder_status_t st = check_default(c, LDR_OPTION_uids, c->tenants[0].uids);

    if (st == LARDER_OK) {
        st =
            check_default(c, LDR_OPTION_secret_file, c->tenants[0].secret_file);
    }
    if (st != LARDER_OK) {
        return st;
    }
    for (unsigned i = 0; i < c->tenant_count; i++) {
        const ldr_tenant_config_t *t = &c->tenants[i];

        if (t->cert[0] == '\0') {
            continue;
        }
        if (c->options.tls_client_ca[0] == '\0') {
            return ldr_fail(LARDER_E_INVALID,
                            "cert of tenant %s: '%s' is never asked for: add "
                            "tls_client_ca = FILE",
                            t->name, t->cert);
        }
        for (unsigned j = 0; j < i; j++) {
            if (strcmp(c->tenants[j].cert, t->cert) == 0) {
                return ldr_fail(LARDER_E_INVALID,
                                "cert of tenant %s: '%s' is that of tenant %s",
                                t->name, t->cert, c->tenants[j].name);
            }
        }
    }
    return LARDER_OK;
}

larder_status_t ldr_config_check(const ldr_config_t *c)
{
    larder_status_t st = check_tls(c);

    if (st == LARDER_OK) {
        st = check_listen(c);
    }
    if (st == LARDER_OK) {
        st = check_admin(c);
    }
    if (st == LARDER_OK) {
        st = check_events(c);
    }
    return st == LARDER_OK ? check_tenants(c) : st;
}

/* ---- what it comes to ---- */

const ldr_tenant_config_t *ldr_config_tenant(const ldr_config_t *c,
                                             const char *name)
{
    for (unsigned i = 0; i < c->tenant_count; i++) {
        if (strcmp(c->tenants[i].name, name) == 0) {
            return &c->tenants[i];
        }
    }
    return NULL;
}

static bool socket_in(const char *directory, size_t length, char *path)
{
    if (directory == NULL || length == 0) {
        return false;
    }
    return snprintf(path, LDR_UNIX_PATH_MAX, "%.*s/larder.sock", (int)length,
                    directory) < LDR_UNIX_PATH_MAX;
}

void ldr_socket_default(char path[LDR_UNIX_PATH_MAX])
{
    const char *runtime = getenv("RUNTIME_DIRECTORY");
    const char *session = getenv("XDG_RUNTIME_DIR");

    /* systemd gives several directories with colons between. */
    if (!socket_in(runtime, runtime != NULL ? strcspn(runtime, ":") : 0,
                   path) &&
        !socket_in(session, session != NULL ? strlen(session) : 0, path)) {
        snprintf(path, LDR_UNIX_PATH_MAX, "/tmp/larder-%u/larder.sock",
                 (unsigned)geteuid());
    }
}

bool ldr_config_socket(const ldr_config_t *c, char path[LDR_UNIX_PATH_MAX])
{
    const char *set = c->options.socket;

    if (strcmp(set, "none") == 0) {
        return false;
    }
    if (set[0] != '\0') {
        snprintf(path, LDR_UNIX_PATH_MAX, "%s", set);
    } else {
        ldr_socket_default(path);
    }
    return true;
}

/* ---- /config ---- */

static void json_option(ldr_json_t *j, const ldr_config_t *c, size_t i)
{
    const ldr_option_info_t *info = &ldr_option_table[i];
    char value[LDR_OPTION_TEXT];

    ldr_option_get(&c->options, i, value, sizeof(value));
    ldr_json_begin(j, NULL, '{');
    ldr_json_text(j, "name", info->name);
    ldr_json_text(j, "value", value);
    ldr_json_text(j, "default", info->value);
    ldr_json_text(j, "source", c->source[i]);
    ldr_json_truth(j, "reload", (info->where & LDR_WHERE_RELOAD) != 0);
    ldr_json_text(j, "text", info->text);
    ldr_json_end(j, '}');
}

#define JSON_SIZE ldr_json_number
#define JSON_UINT ldr_json_number
#define JSON_TEXT ldr_json_text

static void json_tenant(ldr_json_t *j, const ldr_tenant_config_t *t)
{
    ldr_tenant_config_t shown = *t;

    if (shown.secret_check[0] != '\0') { /* clients are told apart by it */
        snprintf(shown.secret_check, sizeof(shown.secret_check), "given");
    }
    ldr_json_begin(j, NULL, '{');
    ldr_json_text(j, "name", t->name);
#define X(name, kind, min, max, text) JSON_##kind(j, #name, shown.name);
    LDR_TENANT_MAP(X)
#undef X
    ldr_json_end(j, '}');
}

size_t ldr_config_json(const ldr_config_t *c, char *text, size_t size)
{
    ldr_json_t j = {.t = ldr_text(text, size)};

    ldr_json_begin(&j, NULL, '{');
    ldr_json_text(&j, "file", c->file);
    ldr_json_text(&j, "restart", c->restart);
    ldr_json_begin(&j, "dirs", '[');
    for (unsigned i = 0; i < c->options.dir_count; i++) {
        ldr_json_text(&j, NULL, c->options.dirs[i]);
    }
    ldr_json_end(&j, ']');
    ldr_json_text(&j, "dirs_source", c->dir_source);
    ldr_json_begin(&j, "options", '[');
    for (size_t i = 0; i < ldr_option_count; i++) {
        if ((ldr_option_table[i].where & LDR_WHERE_SERVE) != 0) {
            json_option(&j, c, i);
        }
    }
    ldr_json_end(&j, ']');
    ldr_json_begin(&j, "tenants", '[');
    for (unsigned i = 0; i < c->tenant_count; i++) {
        json_tenant(&j, &c->tenants[i]);
    }
    ldr_json_end(&j, ']');
    ldr_json_end(&j, '}');
    ldr_text_char(&j.t, '\n');
    return j.t.length;
}

/* ---- --help ---- */

static void help_line(FILE *out, int option, const char *value,
                      const char *text)
{
    const ldr_option_info_t *info = &ldr_option_table[option];
    char left[40];

    snprintf(left, sizeof(left), "--%s %s", info->name, value);
    fprintf(out, "  %-23s %s%s%s%s\n", left, text,
            info->value[0] != '\0' ? " (" : "", info->value,
            info->value[0] != '\0' ? ")" : "");
}

void ldr_config_help(FILE *out)
{
    unsigned count = 0;

    for (size_t i = 0; i < ldr_option_count; i++) {
        count += (ldr_option_table[i].where & LDR_WHERE_SERVE) != 0;
    }
    fprintf(out,
            "usage: larder serve [--config FILE] [--NAME VALUE]... "
            "[--takeover]\n"
            "Runs a node for the engines of this host and, with --listen, of "
            "others.\n\n"
            "what it may use\n");
    help_line(out, LDR_OPTION_dram, "SIZE", "memory of the arena");
    fprintf(out, "  %-23s %s\n", "--dir DIR",
            "directory of the SSD tier; repeat it for more");
    help_line(out, LDR_OPTION_ssd, "SIZE", "bytes in each directory");
    fprintf(out, "who gets in\n");
    help_line(out, LDR_OPTION_socket, "PATH",
              "Unix socket; if not set, in the runtime directory");
    help_line(out, LDR_OPTION_uids, "UID,...|any",
              "who may connect besides root and its own user");
    help_line(out, LDR_OPTION_listen, "HOST:PORT,...",
              "TCP; beyond this host it needs tokens or certs");
    help_line(out, LDR_OPTION_tls, "on|off",
              "with --tls_cert FILE --tls_key FILE");
    fprintf(out, "how it runs\n");
    help_line(out, LDR_OPTION_admin, "HOST:PORT|none", "metrics, dashboard");
    help_line(out, LDR_OPTION_log_level, "LEVEL", "error, warn, info, debug");
    help_line(out, LDR_OPTION_log, "text|json", "format of log lines");
    help_line(out, LDR_OPTION_drain_ms, "MS", "time to end after SIGTERM");
    fprintf(out,
            "  %-23s %s\n\n"
            "Every option can also be a line `name = value` in FILE, or "
            "LARDER_NAME in the\n"
            "environment; tenants are sections of FILE.\n"
            "`larder options --serve` lists all %u.\n",
            "--takeover", "take over from the daemon on the same socket",
            count);
}
