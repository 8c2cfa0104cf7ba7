/*
 * Hello and authentication. A peer that nobody knows and one with a wrong
 * token are told the same, after the same work: what is wrong is for the log
 * and the metrics only.
 *
 * Runs in the session's loop. How many sessions a tenant has is counted with
 * server->tenant_lock.
 */
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "server/session.h"

static void denied(ldr_request_t *r, ldr_auth_fail_t why, const char *what)
{
    ldr_session_t *s = r->session;

    ldr_metrics_auth_fail(s->server->metrics, why);
    ldr_warn(&s->server->log, "%s: refused as tenant '%s': %s", s->from,
             s->tenant_name, what);
    s->doomed = true; /* the answer goes out, then the session ends */
    ldr_reply_fail(
        r, ldr_fail(LARDER_E_DENIED,
                    "the daemon does not let this client in as tenant '%s': "
                    "its log says why",
                    s->tenant_name));
}

static void let_in(ldr_request_t *r, ldr_server_tenant_t *tenant,
                   const void *body, size_t bytes)
{
    ldr_session_t *s = r->session;
    larder_status_t st = ldr_session_enter(s, tenant);

    if (st != LARDER_OK) {
        ldr_warn(&s->server->log, "%s: refused as tenant '%s': %s", s->from,
                 s->tenant_name, ldr_fail_text());
        s->doomed = true;
        ldr_reply_fail(r, st);
        return;
    }
    r->tenant = tenant;
    ldr_reply(r, LARDER_OK, body, bytes);
}

/* Who may come in without a token; *why_p otherwise. */
static bool by_itself(ldr_session_t *s, const ldr_server_tenant_t *tenant,
                      ldr_auth_fail_t *why_p, const char **what_p)
{
    char name[LDR_TENANT_MAX + 1];

    LDR_HELD(&s->server->tenant_lock);
    *why_p = LDR_AUTH_FAIL_TENANT;
    *what_p = "there is no such tenant in the configuration";
    if (tenant == NULL) {
        return false;
    }
    if (tenant->token_count > 0) {
        *why_p = LDR_AUTH_FAIL_TOKEN;
        *what_p = "the token is not right: not in the tenant's token_file";
        return false;
    }
    if (s->local) {
        *why_p = LDR_AUTH_FAIL_UID;
        *what_p = "its uid is not in the tenant's uids";
        return s->admin || ldr_uids_has(tenant->config.uids, s->peer.uid);
    }
    if (s->server->config->options.tls_client_ca[0] != '\0') {
        ldr_stream_peer_name(&s->socket.stream, name, sizeof(name));
        *why_p = LDR_AUTH_FAIL_CERTIFICATE;
        *what_p = "its certificate has another name than the tenant's cert";
        return tenant->config.cert[0] != '\0' &&
               strcmp(tenant->config.cert, name) == 0;
    }
    /* Nobody can say which user of this host a connection is of. */
    *why_p = LDR_AUTH_FAIL_TOKEN;
    *what_p = "by tcp it needs a token (key token_file)";
    return s->loopback && strcmp(tenant->config.name, "default") == 0 &&
           ldr_server_tenants_open(s->server);
}

static void version_refused(ldr_request_t *r, const ldr_hello_t *hello)
{
    ldr_session_t *s = r->session;

    ldr_metrics_refused(s->server->metrics, LDR_REFUSAL_VERSION);
    larder_status_t st = ldr_fail(
        LARDER_E_VERSION,
        "protocol versions %u to %u are spoken by the client (%s), %u to %u by "
        "the daemon (%s): update the older one",
        hello->version_min, hello->version_max, hello->program,
        LDR_WIRE_VERSION_MIN, LDR_WIRE_VERSION_MAX, larder_version());
    ldr_warn(&s->server->log, "%s: refused: %s", s->from, ldr_fail_text());
    s->doomed = true;
    ldr_reply_fail(r, st);
}

void ldr_handle_hello(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_hello_t hello;
    uint8_t body[LDR_WELCOME_BYTES];
    const char *what;
    ldr_auth_fail_t why;

    if (s->greeted || !ldr_get_hello(r->body, r->frame.body, &hello)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed hello");
        return;
    }
    if (hello.version_min > LDR_WIRE_VERSION_MAX ||
        hello.version_max < LDR_WIRE_VERSION_MIN) {
        version_refused(r, &hello);
        return;
    }
    s->greeted = true;
    memcpy(s->client_nonce, hello.nonce, LDR_NONCE_BYTES);
    memcpy(s->tenant_name, hello.tenant, sizeof(s->tenant_name));
    ldr_server_tenant_t *tenant =
        ldr_server_tenant_find(s->server, s->tenant_name);
    ldr_mutex_lock(&s->server->tenant_lock);
    bool open = by_itself(s, tenant, &why, &what);
    ldr_mutex_unlock(&s->server->tenant_lock);
    ldr_welcome_t welcome = {
        .version = hello.version_max < LDR_WIRE_VERSION_MAX
                       ? hello.version_max
                       : LDR_WIRE_VERSION_MAX,
        .auth = !open,
        .features = hello.features & LDR_FEATURES &
                    ~(s->server->catalog != NULL ? 0u : LDR_FEATURE_DESCRIBE),
        .epoch = s->epoch,
    };
    if (!ldr_nonce(s->server_nonce, sizeof(s->server_nonce))) {
        ldr_request_bad(r, LDR_REFUSAL_MEMORY, "no randomness");
        return;
    }
    memcpy(welcome.nonce, s->server_nonce, LDR_NONCE_BYTES);
    strncpy(welcome.program, larder_version(), sizeof(welcome.program) - 1);
    size_t bytes = ldr_put_welcome(body, &welcome);
    if (open) {
        let_in(r, tenant, body, bytes);
    } else {
        ldr_reply(r, LARDER_OK, body, bytes);
    }
}

/* A tenant's uids, where it has any, are asked for besides its token. */
static bool uid_allowed(const ldr_session_t *s,
                        const ldr_server_tenant_t *tenant)
{
    return !s->local || s->admin || tenant->config.uids[0] == '\0' ||
           ldr_uids_has(tenant->config.uids, s->peer.uid);
}

/* What a client sends that has no token to prove. */
static bool is_blank(const uint8_t *mac)
{
    static const uint8_t none[LDR_MAC_BYTES];

    return memcmp(mac, none, sizeof(none)) == 0;
}

void ldr_handle_auth(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_proof_t proof = {s->client_nonce, s->server_nonce, s->tenant_name,
                         s->epoch};
    ldr_token_t tokens[LDR_TOKENS_MAX];
    unsigned count = 0, which = 0;
    uint8_t mac[LDR_MAC_BYTES];
    bool uid = false;
    const char *what = "its uid is not in the tenant's uids";
    ldr_auth_fail_t why = LDR_AUTH_FAIL_UID;

    if (!s->greeted || r->frame.body != LDR_MAC_BYTES) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed auth");
        return;
    }
    ldr_server_tenant_t *tenant =
        ldr_server_tenant_find(s->server, s->tenant_name);
    ldr_mutex_lock(&s->server->tenant_lock);
    if (tenant != NULL && tenant->enabled) {
        count = tenant->token_count;
        memcpy(tokens, tenant->tokens, sizeof(tokens));
        uid = uid_allowed(s, tenant);
    }
    ldr_mutex_unlock(&s->server->tenant_lock);
    bool right = ldr_proof_check(tokens, count, &proof, false, r->body, &which);
    if (!right || count == 0 ||
        !ldr_proof_make(&tokens[which], &proof, true, mac)) {
        ldr_mutex_lock(&s->server->tenant_lock);
        by_itself(s, tenant, &why, &what);
        ldr_mutex_unlock(&s->server->tenant_lock);
        denied(r, why,
               count > 0 && is_blank(r->body)
                   ? "it sent no token (token_file= in the client's URL)"
                   : what);
    } else if (!uid) {
        denied(r, why, what);
    } else {
        let_in(r, tenant, mac, sizeof(mac));
    }
    explicit_bzero(tokens, sizeof(tokens));
}
