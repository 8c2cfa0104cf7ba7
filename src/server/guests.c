/* Tenants as sessions see them: tokens, uids, quotas. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "server/server_int.h"

/* A tenant may move what its rate gives in this time at once. */
#define BURST_S 0.25
#define WINDOWS_MIN 16u /* private windows that any node has memory for */
#define ADMIN_MORE 16u  /* sessions beyond all: the operator shall get in */

ldr_guest_t *ldr_guest_find(ldr_server_t *server, const char *name)
{
    ldr_guest_t *found = NULL;

    ldr_mutex_lock(&server->guest_lock);
    for (unsigned i = 0; i < server->guest_count; i++) {
        ldr_guest_t *g = server->guests[i];

        if (g->enabled && strcmp(g->config.name, name) == 0) {
            found = g;
        }
    }
    ldr_mutex_unlock(&server->guest_lock);
    return found;
}

bool ldr_guest_has_uid(const ldr_guest_t *guest, uid_t uid)
{
    for (unsigned i = 0; i < guest->uid_count; i++) {
        if (guest->uids[i] == uid) {
            return true;
        }
    }
    return guest->uid_any;
}

bool ldr_guests_open(const ldr_server_t *server)
{
    unsigned others = 0;

    LDR_HELD(&server->guest_lock);
    for (unsigned i = 0; i < server->guest_count; i++) {
        const ldr_guest_t *g = server->guests[i];

        others += g->enabled && strcmp(g->config.name, "default") != 0;
    }
    return others == 0 ||
           server->config->options.listen_open == LDR_LISTEN_OPEN_ON;
}

/* "1000,1001" or "any". The configuration has checked it. */
static void parse_uids(ldr_guest_t *g, const char *text)
{
    g->uid_any = strcmp(text, "any") == 0;
    while (!g->uid_any && *text != '\0' && g->uid_count < LDR_UIDS_MAX) {
        char *end;

        g->uids[g->uid_count++] = (uid_t)strtoul(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
    }
}

static ldr_guest_t *guest_named(ldr_server_t *server, const char *name)
{
    LDR_HELD(&server->guest_lock);
    for (unsigned i = 0; i < server->guest_count; i++) {
        if (strcmp(server->guests[i]->config.name, name) == 0) {
            return server->guests[i];
        }
    }
    if (server->guest_count == LDR_GUESTS_MAX) {
        return NULL;
    }
    ldr_guest_t *g = ldr_alloc(sizeof(*g));
    if (g != NULL) {
        snprintf(g->config.name, sizeof(g->config.name), "%s", name);
        g->tenant = LDR_NIL;
        g->index = server->guest_count;
        server->guests[g->index] = g;
        __atomic_store_n(&server->guest_count, g->index + 1, __ATOMIC_RELAXED);
    }
    return g;
}

/* All of a tenant's settings, before any of them is put to use. */
typedef struct fresh {
    ldr_guest_t guest;
    ldr_secret_check_t secret;
    bool has_secret;
} fresh_t;

static larder_status_t read_guest(const ldr_config_t *config,
                                  const ldr_tenant_config_t *t, fresh_t *out)
{
    memset(out, 0, sizeof(*out));
    out->guest.config = *t;
    parse_uids(&out->guest, t->uids);
    if (strcmp(t->name, "default") == 0 && config->options.uids[0] != '\0') {
        parse_uids(&out->guest, config->options.uids);
    }
    larder_status_t st =
        ldr_secret_configured(t, &out->secret, &out->has_secret);
    return st != LARDER_OK || t->token_file[0] == '\0'
               ? st
               : ldr_tokens_read(t->token_file, out->guest.tokens,
                                 &out->guest.token_count);
}

/* Sessions look at its name, rate and connections without the lock: the first
 * never changes, the others are atomic. */
static void take_config(ldr_guest_t *g, const ldr_tenant_config_t *t)
{
    memcpy(g->config.token_file, t->token_file, sizeof(t->token_file));
    memcpy(g->config.secret_file, t->secret_file, sizeof(t->secret_file));
    memcpy(g->config.secret_check, t->secret_check, sizeof(t->secret_check));
    memcpy(g->config.cert, t->cert, sizeof(t->cert));
    memcpy(g->config.uids, t->uids, sizeof(t->uids));
    g->config.dram = t->dram;
    g->config.ssd = t->ssd;
    __atomic_store_n(&g->config.rate, t->rate, __ATOMIC_RELAXED);
    __atomic_store_n(&g->config.connections, t->connections, __ATOMIC_RELAXED);
}

static larder_status_t apply(ldr_server_t *server, const fresh_t *f)
{
    const ldr_tenant_config_t *t = &f->guest.config;
    ldr_tenant_params_t params = {
        .name = t->name,
        .dram_max = t->dram,
        .ssd_max = t->ssd,
        .secret = f->has_secret ? &f->secret : NULL,
    };
    uint32_t tenant;
    larder_status_t st = ldr_node_tenant(server->node, &params, &tenant);

    if (st != LARDER_OK) {
        return st;
    }
    ldr_mutex_lock(&server->guest_lock);
    ldr_guest_t *g = guest_named(server, t->name);
    if (g != NULL) {
        take_config(g, t);
        if (g->tenant != tenant) {
            g->tenant = tenant;
        }
        memcpy(g->tokens, f->guest.tokens, sizeof(g->tokens));
        g->token_count = f->guest.token_count;
        memcpy(g->uids, f->guest.uids, sizeof(g->uids));
        g->uid_count = f->guest.uid_count;
        g->uid_any = f->guest.uid_any;
        g->enabled = true;
    }
    ldr_mutex_unlock(&server->guest_lock);
    return g != NULL ? LARDER_OK
                     : ldr_fail(LARDER_E_LIMIT, "more than %u tenants",
                                LDR_GUESTS_MAX);
}

larder_status_t ldr_guests_check(const ldr_config_t *config)
{
    fresh_t *one = ldr_alloc(sizeof(*one));
    larder_status_t st = LARDER_OK;

    if (one == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for tenants");
    }
    for (unsigned i = 0; i < config->tenant_count && st == LARDER_OK; i++) {
        st = read_guest(config, &config->tenants[i], one);
    }
    explicit_bzero(one, sizeof(*one));
    ldr_free(one);
    return st;
}

larder_status_t ldr_guests_load(ldr_server_t *server,
                                const ldr_config_t *config)
{
    fresh_t *all = ldr_alloc(config->tenant_count * sizeof(*all));
    larder_status_t st = LARDER_OK;

    if (all == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for tenants");
    }
    /* First everything is read, so that a bad file changes nothing. */
    for (unsigned i = 0; i < config->tenant_count && st == LARDER_OK; i++) {
        st = read_guest(config, &config->tenants[i], &all[i]);
    }
    for (unsigned i = 0; i < config->tenant_count && st == LARDER_OK; i++) {
        st = apply(server, &all[i]);
    }
    if (st == LARDER_OK) {
        ldr_mutex_lock(&server->guest_lock);
        for (unsigned i = 0; i < server->guest_count; i++) {
            ldr_guest_t *g = server->guests[i];

            g->enabled = ldr_config_tenant(config, g->config.name) != NULL;
        }
        ldr_mutex_unlock(&server->guest_lock);
    }
    explicit_bzero(all, config->tenant_count * sizeof(*all));
    ldr_free(all);
    return st;
}

/* ---- quotas ---- */

/* Where there are several tenants one may have as many sessions as are still
 * free, and so leaves half of them to the others. */
static larder_status_t may_enter(const ldr_server_t *server,
                                 const ldr_guest_t *guest, bool admin)
{
    uint64_t most = server->sessions_max + (admin ? ADMIN_MORE : 0);
    uint64_t own_most = ldr_guest_connections(guest);

    LDR_HELD(&server->guest_lock);
    LDR_ASSERT(guest->sessions <= server->session_count);
    if (own_most > 0 && guest->sessions >= own_most) {
        ldr_metrics_refused(server->metrics, LDR_REFUSAL_QUOTA);
        return ldr_fail(LARDER_E_LIMIT,
                        "tenant '%s' has its %llu connections: close some, or "
                        "raise its key connections",
                        guest->config.name, (unsigned long long)own_most);
    }
    if (server->session_count >= most ||
        (ldr_guests_several(server) &&
         guest->sessions >= most - server->session_count)) {
        ldr_metrics_refused(server->metrics, LDR_REFUSAL_SESSIONS);
        return ldr_fail(LARDER_E_LIMIT,
                        "tenant '%s' has %llu of the daemon's %llu "
                        "connections, and all have %llu: close some, or raise "
                        "option sessions",
                        guest->config.name, (unsigned long long)guest->sessions,
                        (unsigned long long)server->sessions_max,
                        (unsigned long long)server->session_count);
    }
    return LARDER_OK;
}

larder_status_t ldr_guest_enter(ldr_server_t *server, ldr_guest_t *guest,
                                bool admin)
{
    ldr_mutex_lock(&server->guest_lock);
    larder_status_t st = may_enter(server, guest, admin);
    if (st == LARDER_OK) {
        guest->sessions++;
        server->session_count++;
    }
    ldr_mutex_unlock(&server->guest_lock);
    return st;
}

void ldr_guest_leave(ldr_server_t *server, ldr_guest_t *guest)
{
    ldr_mutex_lock(&server->guest_lock);
    LDR_ASSERT(guest->sessions > 0 && guest->sessions <= server->session_count);
    guest->sessions--;
    server->session_count--;
    ldr_mutex_unlock(&server->guest_lock);
}

/* Windows are resident and no part of dram: what all may have together. */
static uint64_t windows_max(const ldr_options_t *o)
{
    return ldr_max64(o->dram / 4, WINDOWS_MIN * o->strict_window);
}

/* Where there are several tenants one may have as much as is still free, and so
 * leaves half of it to the others. */
bool ldr_guest_window(ldr_server_t *server, ldr_guest_t *guest, uint64_t bytes)
{
    uint64_t max = windows_max(&server->config->options);
    uint64_t all =
        __atomic_add_fetch(&server->window_bytes, bytes, __ATOMIC_RELAXED);
    uint64_t own =
        __atomic_add_fetch(&guest->window_bytes, bytes, __ATOMIC_RELAXED);

    if (all <= max &&
        (!ldr_guests_several(server) || own <= max - (all - bytes))) {
        return true;
    }
    ldr_guest_window_gone(server, guest, bytes);
    return false;
}

void ldr_guest_window_gone(ldr_server_t *server, ldr_guest_t *guest,
                           uint64_t bytes)
{
    uint64_t all =
        __atomic_fetch_sub(&server->window_bytes, bytes, __ATOMIC_RELAXED);
    uint64_t own =
        __atomic_fetch_sub(&guest->window_bytes, bytes, __ATOMIC_RELAXED);

    LDR_ASSERT(all >= bytes && own >= bytes);
}

bool ldr_guest_may(ldr_guest_t *guest, uint64_t now_ns)
{
    uint64_t rate = ldr_guest_rate(guest);

    if (rate == 0) {
        return true;
    }
    uint64_t last = __atomic_load_n(&guest->bucket_ns, __ATOMIC_RELAXED);
    if (now_ns > last &&
        __atomic_compare_exchange_n(&guest->bucket_ns, &last, now_ns, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        double more = last == 0 ? BURST_S : (double)(now_ns - last) / 1e9;
        int64_t burst = (int64_t)(BURST_S * (double)rate);
        int64_t filled = __atomic_add_fetch(
            &guest->bucket, (int64_t)(more * (double)rate), __ATOMIC_RELAXED);

        if (filled > burst) {
            __atomic_sub_fetch(&guest->bucket, filled - burst,
                               __ATOMIC_RELAXED);
        }
    }
    return __atomic_load_n(&guest->bucket, __ATOMIC_RELAXED) > 0;
}

larder_status_t ldr_guest_busy(const ldr_guest_t *guest)
{
    return ldr_fail(
        LARDER_E_BUSY, "tenant '%s' is over its rate of %llu bytes a second",
        guest->config.name, (unsigned long long)ldr_guest_rate(guest));
}

void ldr_guest_moved(ldr_guest_t *guest, uint64_t bytes)
{
    if (ldr_guest_rate(guest) > 0) {
        __atomic_sub_fetch(&guest->bucket, (int64_t)bytes, __ATOMIC_RELAXED);
    }
}
