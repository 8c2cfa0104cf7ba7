/*
 * Tenants as sessions see them: tokens, uids, quotas.
 *
 * Invariants, with server->tenant_lock: session_count is the sum of all
 * tenants' sessions; bounce_bytes (atomic) that of their bounce_bytes. A
 * tenant is never freed, so that a pointer to one stays good without the lock;
 * one that is not in the configuration any more is not enabled.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "server/server_int.h"

/* A tenant may move what its rate gives in this time at once. */
#define BURST_S 0.25
#define BOUNCE_BUFFERS_MIN                                                     \
    16u                /* bounce buffers that any node has memory for          \
                        */
#define ADMIN_MORE 16u /* sessions beyond all: the operator shall get in */

ldr_server_tenant_t *ldr_server_tenant_find(ldr_server_t *server,
                                            const char *name)
{
    ldr_server_tenant_t *found = NULL;

    ldr_mutex_lock(&server->tenant_lock);
    for (unsigned i = 0; i < server->tenant_count; i++) {
        ldr_server_tenant_t *tenant = server->tenants[i];

        if (tenant->enabled && strcmp(tenant->config.name, name) == 0) {
            found = tenant;
        }
    }
    ldr_mutex_unlock(&server->tenant_lock);
    return found;
}

bool ldr_server_tenants_open(const ldr_server_t *server)
{
    unsigned others = 0;

    LDR_HELD(&server->tenant_lock);
    for (unsigned i = 0; i < server->tenant_count; i++) {
        const ldr_server_tenant_t *tenant = server->tenants[i];

        others +=
            tenant->enabled && strcmp(tenant->config.name, "default") != 0;
    }
    return others == 0 ||
           server->config->options.listen_open == LDR_LISTEN_OPEN_ON;
}

static ldr_server_tenant_t *tenant_named(ldr_server_t *server, const char *name)
{
    LDR_HELD(&server->tenant_lock);
    for (unsigned i = 0; i < server->tenant_count; i++) {
        if (strcmp(server->tenants[i]->config.name, name) == 0) {
            return server->tenants[i];
        }
    }
    if (server->tenant_count == LDR_SERVER_TENANTS_MAX) {
        return NULL;
    }
    ldr_server_tenant_t *tenant = ldr_alloc(sizeof(*tenant));
    if (tenant != NULL) {
        snprintf(tenant->config.name, sizeof(tenant->config.name), "%s", name);
        tenant->number = LDR_NIL;
        tenant->index = server->tenant_count;
        server->tenants[tenant->index] = tenant;
        __atomic_store_n(&server->tenant_count, tenant->index + 1,
                         __ATOMIC_RELAXED);
    }
    return tenant;
}

/* All of a tenant's settings, before any of them is put to use. */
typedef struct fresh {
    ldr_server_tenant_t tenant;
    ldr_secret_check_t secret;
    bool has_secret;
} fresh_t;

static larder_status_t read_tenant(const ldr_tenant_config_t *t, fresh_t *out)
{
    memset(out, 0, sizeof(*out));
    out->tenant.config = *t;
    larder_status_t st =
        ldr_secret_configured(t, &out->secret, &out->has_secret);
    return st != LARDER_OK || t->token_file[0] == '\0'
               ? st
               : ldr_tokens_read(t->token_file, out->tenant.tokens,
                                 &out->tenant.token_count);
}

/* Sessions look at its name, rate and connections without the lock: the first
 * never changes, the others are atomic. */
static void take_config(ldr_server_tenant_t *tenant,
                        const ldr_tenant_config_t *t)
{
    memcpy(tenant->config.token_file, t->token_file, sizeof(t->token_file));
    memcpy(tenant->config.secret_file, t->secret_file, sizeof(t->secret_file));
    memcpy(tenant->config.secret_check, t->secret_check,
           sizeof(t->secret_check));
    memcpy(tenant->config.cert, t->cert, sizeof(t->cert));
    memcpy(tenant->config.uids, t->uids, sizeof(t->uids));
    tenant->config.dram = t->dram;
    tenant->config.ssd = t->ssd;
    __atomic_store_n(&tenant->config.rate, t->rate, __ATOMIC_RELAXED);
    __atomic_store_n(&tenant->config.connections, t->connections,
                     __ATOMIC_RELAXED);
}

static larder_status_t tenant_apply(ldr_server_t *server, const fresh_t *f)
{
    const ldr_tenant_config_t *t = &f->tenant.config;
    ldr_tenant_params_t params = {
        .name = t->name,
        .dram_max = t->dram,
        .ssd_max = t->ssd,
        .secret = f->has_secret ? &f->secret : NULL,
    };
    uint32_t number;
    larder_status_t st = ldr_node_tenant(server->node, &params, &number);

    if (st != LARDER_OK) {
        return st;
    }
    ldr_mutex_lock(&server->tenant_lock);
    ldr_server_tenant_t *tenant = tenant_named(server, t->name);
    if (tenant != NULL) {
        take_config(tenant, t);
        tenant->number = number;
        memcpy(tenant->tokens, f->tenant.tokens, sizeof(tenant->tokens));
        tenant->token_count = f->tenant.token_count;
        tenant->enabled = true;
    }
    ldr_mutex_unlock(&server->tenant_lock);
    return tenant != NULL ? LARDER_OK
                          : ldr_fail(LARDER_E_LIMIT, "more than %u tenants",
                                     LDR_SERVER_TENANTS_MAX);
}

larder_status_t ldr_server_tenants_check(const ldr_config_t *config)
{
    fresh_t *one = ldr_alloc(sizeof(*one));
    larder_status_t st = LARDER_OK;

    if (one == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for tenants");
    }
    for (unsigned i = 0; i < config->tenant_count && st == LARDER_OK; i++) {
        st = read_tenant(&config->tenants[i], one);
    }
    explicit_bzero(one, sizeof(*one));
    ldr_free(one);
    return st;
}

larder_status_t ldr_server_tenants_load(ldr_server_t *server,
                                        const ldr_config_t *config)
{
    fresh_t *all = ldr_alloc(config->tenant_count * sizeof(*all));
    larder_status_t st = LARDER_OK;

    if (all == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for tenants");
    }
    /* First everything is read, so that a bad file changes nothing. */
    for (unsigned i = 0; i < config->tenant_count && st == LARDER_OK; i++) {
        st = read_tenant(&config->tenants[i], &all[i]);
    }
    for (unsigned i = 0; i < config->tenant_count && st == LARDER_OK; i++) {
        st = tenant_apply(server, &all[i]);
    }
    if (st == LARDER_OK) {
        ldr_mutex_lock(&server->tenant_lock);
        for (unsigned i = 0; i < server->tenant_count; i++) {
            ldr_server_tenant_t *tenant = server->tenants[i];

            tenant->enabled =
                ldr_config_tenant(config, tenant->config.name) != NULL;
        }
        ldr_mutex_unlock(&server->tenant_lock);
    }
    explicit_bzero(all, config->tenant_count * sizeof(*all));
    ldr_free(all);
    return st;
}

/* ---- quotas ---- */

/* Where there are several tenants one may have as many sessions as are still
 * free, and so leaves half of them to the others. */
static larder_status_t may_enter(const ldr_server_t *server,
                                 const ldr_server_tenant_t *tenant, bool admin)
{
    uint64_t most = server->sessions_max + (admin ? ADMIN_MORE : 0);
    uint64_t own_most = ldr_server_tenant_connections(tenant);

    LDR_HELD(&server->tenant_lock);
    LDR_ASSERT(tenant->sessions <= server->session_count);
    if (own_most > 0 && tenant->sessions >= own_most) {
        ldr_metrics_refused(server->metrics, LDR_REFUSAL_QUOTA);
        return ldr_fail(LARDER_E_LIMIT,
                        "tenant '%s' has its %llu connections: close some, or "
                        "raise its key connections",
                        tenant->config.name, (unsigned long long)own_most);
    }
    if (server->session_count >= most ||
        (ldr_server_tenants_several(server) &&
         tenant->sessions >= most - server->session_count)) {
        ldr_metrics_refused(server->metrics, LDR_REFUSAL_SESSIONS);
        return ldr_fail(LARDER_E_LIMIT,
                        "tenant '%s' has %llu of the daemon's %llu "
                        "connections, and all have %llu: close some, or raise "
                        "option sessions",
                        tenant->config.name,
                        (unsigned long long)tenant->sessions,
                        (unsigned long long)server->sessions_max,
                        (unsigned long long)server->session_count);
    }
    return LARDER_OK;
}

larder_status_t ldr_server_tenant_enter(ldr_server_t *server,
                                        ldr_server_tenant_t *tenant, bool admin)
{
    ldr_mutex_lock(&server->tenant_lock);
    larder_status_t st = may_enter(server, tenant, admin);
    if (st == LARDER_OK) {
        tenant->sessions++;
        server->session_count++;
    }
    ldr_mutex_unlock(&server->tenant_lock);
    return st;
}

void ldr_server_tenant_leave(ldr_server_t *server, ldr_server_tenant_t *tenant)
{
    ldr_mutex_lock(&server->tenant_lock);
    LDR_ASSERT(tenant->sessions > 0 &&
               tenant->sessions <= server->session_count);
    tenant->sessions--;
    server->session_count--;
    ldr_mutex_unlock(&server->tenant_lock);
}

/* Windows are resident and no part of dram: what all may have together. */
static uint64_t bounce_max(const ldr_options_t *o)
{
    return ldr_max64(o->dram / 4, BOUNCE_BUFFERS_MIN * o->strict_window);
}

/* Where there are several tenants one may have as much as is still free, and so
 * leaves half of it to the others. */
bool ldr_server_tenant_bounce(ldr_server_t *server, ldr_server_tenant_t *tenant,
                              uint64_t bytes)
{
    uint64_t max = bounce_max(&server->config->options);
    uint64_t all =
        __atomic_add_fetch(&server->bounce_bytes, bytes, __ATOMIC_RELAXED);
    uint64_t own =
        __atomic_add_fetch(&tenant->bounce_bytes, bytes, __ATOMIC_RELAXED);

    if (all <= max &&
        (!ldr_server_tenants_several(server) || own <= max - (all - bytes))) {
        return true;
    }
    ldr_server_tenant_bounce_gone(server, tenant, bytes);
    return false;
}

void ldr_server_tenant_bounce_gone(ldr_server_t *server,
                                   ldr_server_tenant_t *tenant, uint64_t bytes)
{
    uint64_t all =
        __atomic_fetch_sub(&server->bounce_bytes, bytes, __ATOMIC_RELAXED);
    uint64_t own =
        __atomic_fetch_sub(&tenant->bounce_bytes, bytes, __ATOMIC_RELAXED);

    LDR_ASSERT(all >= bytes && own >= bytes);
}

bool ldr_server_tenant_may(ldr_server_tenant_t *tenant, uint64_t now_ns)
{
    uint64_t rate = ldr_server_tenant_rate(tenant);

    if (rate == 0) {
        return true;
    }
    uint64_t last = __atomic_load_n(&tenant->bucket_ns, __ATOMIC_RELAXED);
    if (now_ns > last &&
        __atomic_compare_exchange_n(&tenant->bucket_ns, &last, now_ns, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        double more = last == 0 ? BURST_S : (double)(now_ns - last) / 1e9;
        int64_t burst = (int64_t)(BURST_S * (double)rate);
        int64_t filled = __atomic_add_fetch(
            &tenant->bucket, (int64_t)(more * (double)rate), __ATOMIC_RELAXED);

        if (filled > burst) {
            __atomic_sub_fetch(&tenant->bucket, filled - burst,
                               __ATOMIC_RELAXED);
        }
    }
    return __atomic_load_n(&tenant->bucket, __ATOMIC_RELAXED) > 0;
}

larder_status_t ldr_server_tenant_busy(const ldr_server_tenant_t *tenant)
{
    return ldr_fail(LARDER_E_BUSY,
                    "tenant '%s' is over its rate of %llu bytes a second",
                    tenant->config.name,
                    (unsigned long long)ldr_server_tenant_rate(tenant));
}

void ldr_server_tenant_moved(ldr_server_tenant_t *tenant, uint64_t bytes)
{
    if (ldr_server_tenant_rate(tenant) > 0) {
        __atomic_sub_fetch(&tenant->bucket, (int64_t)bytes, __ATOMIC_RELAXED);
    }
}
