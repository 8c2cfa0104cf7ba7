/*
 * Which secret of a tenant is the right one.
 *
 * The operator's word counts for good: where a check value was given, no other
 * one is accepted, and what directories recorded earlier is put right when
 * something is saved. Without it the first one under which something is saved,
 * removed or reset is the tenant's: whoever opens a space and does nothing
 * fixes nothing. Until then spaces of several secrets may be open; those that
 * turn out to be another's can be read (they hold nothing) and not written.
 *
 * What is remembered, and compared in constant time, is a check value. Nothing
 * that a client is told has one in it.
 */
#include <openssl/crypto.h>
#include <string.h>

#include "base/config.h"
#include "base/hash.h"
#include "base/text.h"
#include "net/auth.h"
#include "node/node.h"

/* ---- what follows from a secret ---- */

bool ldr_tenant_key(const void *secret, size_t secret_bytes, const char *name,
                    uint8_t key[32])
{
    ldr_piece_t parts[] = {{"larder shared 1", 15}, {name, strlen(name)}};

    return ldr_hmac_sha256(secret, secret_bytes, parts, 2, key);
}

bool ldr_tenant_check(const void *secret, size_t secret_bytes, const char *name,
                      uint8_t check[LDR_ID_BYTES])
{
    ldr_piece_t parts[] = {{"larder check 1", 14}, {name, strlen(name)}};
    uint8_t digest[32];
    bool ok = ldr_hmac_sha256(secret, secret_bytes, parts, 2, digest);

    if (ok) {
        memcpy(check, digest, LDR_ID_BYTES);
    }
    return ok;
}

static bool key_check(const uint8_t key[32], uint8_t check[LDR_ID_BYTES])
{
    ldr_piece_t parts[] = {{"larder key check 1", 18}, {key, 32}};
    uint8_t digest[32];
    bool ok = ldr_sha256(parts, 2, digest);

    if (ok) {
        memcpy(check, digest, LDR_ID_BYTES);
    }
    return ok;
}

bool ldr_secret_check(const void *secret, size_t secret_bytes, const char *name,
                      ldr_secret_check_t *out)
{
    uint8_t key[32];

    *out = (ldr_secret_check_t){.has_key = true};
    bool ok = ldr_tenant_check(secret, secret_bytes, name, out->check) &&
              ldr_tenant_key(secret, secret_bytes, name, key) &&
              key_check(key, out->key);
    OPENSSL_cleanse(key, sizeof(key));
    return ok;
}

void ldr_secret_check_text(const ldr_secret_check_t *c,
                           char text[LDR_SECRET_CHECK_TEXT + 1])
{
    ldr_hex(c->check, LDR_ID_BYTES, text);
    ldr_hex(c->key, LDR_ID_BYTES, text + 2 * (size_t)LDR_ID_BYTES);
}

bool ldr_secret_check_parse(const char *text, ldr_secret_check_t *out)
{
    *out = (ldr_secret_check_t){.has_key = true};
    return strlen(text) == LDR_SECRET_CHECK_TEXT &&
           ldr_unhex(text, LDR_ID_BYTES, out->check) &&
           ldr_unhex(text + 2 * (size_t)LDR_ID_BYTES, LDR_ID_BYTES, out->key);
}

bool ldr_secret_sent(const ldr_space_info_t *info, ldr_secret_check_t *out)
{
    *out = (ldr_secret_check_t){.has_key = info->has_key};
    memcpy(out->check, info->tenant_check, LDR_ID_BYTES);
    return !info->has_key || key_check(info->key, out->key);
}

bool ldr_secret_check_same(const ldr_secret_check_t *a,
                           const ldr_secret_check_t *b)
{
    bool keys = a->has_key && b->has_key;
    int differ = CRYPTO_memcmp(a->check, b->check, LDR_ID_BYTES);
    int key_differs = CRYPTO_memcmp(a->key, b->key, LDR_ID_BYTES);

    return (differ | (keys ? key_differs : 0)) == 0;
}

bool ldr_secret_refused(const ldr_node_t *node, uint32_t space)
{
    ldr_node_held(node);

    const ldr_space_t *s = &node->store.spaces[space];
    const ldr_tenant_t *t =
        s->tenant != LDR_NIL ? &node->store.tenants[s->tenant] : NULL;

    return s->opened && t != NULL && t->secret_known &&
           !ldr_secret_check_same(&t->secret, &s->secret);
}

/* ---- refusing ---- */

/* Said once: whoever has a token could fill the log. */
void ldr_secret_tell_refused(ldr_host_t *host, ldr_tenant_t *t)
{
    if (!t->refused_logged) {
        t->refused_logged = true;
        ldr_host_say(host, LARDER_LOG_WARN,
                     "tenant '%s': a client with another secret was refused; "
                     "the next ones are only counted",
                     t->name);
    }
}

static larder_status_t refuse(ldr_node_t *node, ldr_tenant_t *t)
{
    ldr_secret_tell_refused(&node->host, t);
    if (t->secret_given && t->secret.none) {
        return ldr_fail(LARDER_E_SECRET,
                        "tenant '%s' has no secret in the daemon's "
                        "configuration: open it without secret_file, or give "
                        "the daemon the same file (its option secret_file)",
                        t->name);
    }
    if (t->secret_given) {
        return ldr_fail(LARDER_E_SECRET,
                        "tenant '%s' has another secret in the daemon's "
                        "configuration: use that secret_file",
                        t->name);
    }
    return ldr_fail(LARDER_E_SECRET,
                    "tenant '%s' is in use under another secret: give all its "
                    "clients the same secret_file; the daemon's configuration "
                    "can say which one ([tenant %s], secret_file)",
                    t->name, t->name);
}

/* ---- deciding ---- */

larder_status_t ldr_secret_meet(ldr_node_t *node, uint32_t tenant,
                                const ldr_secret_check_t *secret)
{
    ldr_node_held(node);

    ldr_tenant_t *t = &node->store.tenants[tenant];

    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *tier = node->order[i];
        larder_status_t st = tier->ops->check_secret != NULL
                                 ? tier->ops->check_secret(tier, tenant, secret)
                                 : LARDER_OK;

        if (st != LARDER_OK) {
            return st;
        }
    }
    return t->secret_known && !ldr_secret_check_same(&t->secret, secret)
               ? refuse(node, t)
               : LARDER_OK;
}

larder_status_t ldr_secret_open(ldr_node_t *node, uint32_t space,
                                const ldr_secret_check_t *secret)
{
    ldr_node_held(node);

    ldr_space_t *s = &node->store.spaces[space];

    /* A space's id follows from the secret: who has another is guessing. One
     * that was opened before the operator spoke is not that one's any more. */
    if (s->opened && !ldr_secret_check_same(&s->secret, secret) &&
        !ldr_secret_refused(node, space)) {
        return refuse(node, &node->store.tenants[s->tenant]);
    }
    /* Clients without a key do not make it forgotten. */
    if (!s->opened || secret->has_key || ldr_secret_refused(node, space)) {
        s->secret = *secret;
    }
    s->opened = true;
    return LARDER_OK;
}

larder_status_t ldr_secret_settle(ldr_node_t *node, uint32_t space)
{
    ldr_node_held(node);

    const ldr_space_t *s = &node->store.spaces[space];

    if (!s->opened || s->tenant == LDR_NIL) {
        return LARDER_OK;
    }
    ldr_tenant_t *t = &node->store.tenants[s->tenant];
    if (ldr_secret_refused(node, space)) {
        return refuse(node, t);
    }
    if (!t->secret_known) {
        t->secret = s->secret;
        t->secret_known = true;
    } else if (!t->secret.has_key && s->secret.has_key) {
        memcpy(t->secret.key, s->secret.key, LDR_ID_BYTES);
        t->secret.has_key = true;
    }
    if (!t->secret_recorded) {
        t->secret_recorded = true;
        for (unsigned i = 0; i < node->tier_count; i++) {
            node->order[i]->ops->adopt_secret(node->order[i], space);
        }
    }
    return LARDER_OK;
}

bool ldr_secret_learn(ldr_host_t *host, uint32_t tenant,
                      const uint8_t check[LDR_ID_BYTES])
{
    ldr_node_t *node = (ldr_node_t *)host;
    ldr_store_t *store = &node->store;
    ldr_tenant_t *t = &store->tenants[tenant];

    ldr_node_held(node);
    if (t->secret_known) {
        return false;
    }
    memcpy(t->secret.check, check, LDR_ID_BYTES);
    t->secret_known = true;
    /* It may come late, and spaces be open. */
    for (uint32_t i = 0; i < store->space_count; i++) {
        if (store->spaces[i].tenant == tenant && !ldr_secret_refused(node, i)) {
            ldr_secret_settle(node, i);
        }
    }
    return true;
}

/* ---- the operator's word ---- */

/* The secret of a file, as a check value. */
static larder_status_t read_secret(const ldr_tenant_config_t *t,
                                   ldr_secret_check_t *out)
{
    uint8_t secret[LDR_SECRET_MAX + 2];
    size_t bytes;
    larder_status_t st = ldr_tenant_secret_read(t->secret_file, secret, &bytes);

    if (st == LARDER_OK && !ldr_secret_check(secret, bytes, t->name, out)) {
        st = ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
    }
    explicit_bzero(secret, sizeof(secret));
    return st;
}

larder_status_t ldr_secret_configured(const ldr_tenant_config_t *t,
                                      ldr_secret_check_t *out, bool *given_p)
{
    ldr_secret_check_t value = {.has_key = true};

    *given_p = true;
    if (t->secret_check[0] != '\0' &&
        !ldr_secret_check_parse(t->secret_check, &value)) {
        return ldr_fail(LARDER_E_INVALID,
                        "secret_check of tenant %s: write the 64 digits that "
                        "`larder secret FILE --tenant %s` prints",
                        t->name, t->name);
    }
    if (t->secret_file[0] != '\0') {
        larder_status_t st = read_secret(t, out);

        if (st == LARDER_OK && t->secret_check[0] != '\0' &&
            !ldr_secret_check_same(out, &value)) {
            st = ldr_fail(LARDER_E_INVALID,
                          "secret_check of tenant %s is not that of its "
                          "secret_file %s: keep one of them",
                          t->name, t->secret_file);
        }
        return st;
    }
    if (t->secret_check[0] != '\0') {
        *out = value;
        return LARDER_OK;
    }
    /* That of tenant default is known to everybody, and no other is right. */
    *given_p = strcmp(t->name, "default") == 0;
    if (*given_p &&
        !ldr_secret_check(LDR_PUBLIC_SECRET, sizeof(LDR_PUBLIC_SECRET) - 1,
                          t->name, out)) {
        return ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
    }
    out->none = *given_p;
    return LARDER_OK;
}

void ldr_secret_give(ldr_node_t *node, uint32_t tenant,
                     const ldr_secret_check_t *secret)
{
    ldr_node_held(node);

    ldr_tenant_t *t = &node->store.tenants[tenant];
    bool news = secret != NULL && (!t->secret_given ||
                                   !ldr_secret_check_same(&t->secret, secret));

    bool another =
        news && t->secret_known && !ldr_secret_check_same(&t->secret, secret);

    if (another && (t->secret_given || t->secret_recorded)) {
        ldr_host_say(&node->host, LARDER_LOG_WARN,
                     "tenant '%s': its secret is another now: clients with the "
                     "one before are refused, and what they saved is not found",
                     t->name);
    }
    t->secret_given = secret != NULL;
    if (!news) {
        return;
    }
    t->secret = *secret;
    t->secret_known = true;
    t->secret_recorded = t->secret_recorded && !another;
    t->refused_logged = false;
    for (unsigned i = 0; i < node->tier_count; i++) {
        if (node->order[i]->ops->replace_secret != NULL) {
            node->order[i]->ops->replace_secret(node->order[i], tenant);
        }
    }
}
