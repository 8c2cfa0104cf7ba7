/*
 * A cluster as a node has it: the options, one thread that drives the source
 * and lets time pass, and what the node and its peers ask.
 */
#include "cluster/cluster.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cluster/cluster_int.h"
#include "net/dns.h"

#define NS_PER_MS UINT64_C(1000000)

static const ldr_source_t *const sources[] = {
    &ldr_source_static,
    &ldr_source_dns,
    &ldr_source_etcd,
};

/* ---- options ---- */

larder_status_t ldr_member_name_check(const char *what, const char *name)
{
    if (ldr_tenant_name_ok(name)) { /* the same characters and length */
        return LARDER_OK;
    }
    return ldr_fail(LARDER_E_INVALID,
                    "%s '%.70s': a member's name has 1 to 63 letters, digits, "
                    "dots, dashes or underscores",
                    what, name);
}

static const ldr_source_t *source_of(const char *option, const char **text_p)
{
    for (size_t i = 0; i < sizeof(sources) / sizeof(*sources); i++) {
        size_t length = strlen(sources[i]->name);

        if (strncmp(option, sources[i]->name, length) == 0 &&
            option[length] == ':') {
            *text_p = option + length + 1;
            return sources[i];
        }
    }
    ldr_fail(LARDER_E_INVALID,
             "option cluster: '%.60s': write static:NAME=HOST:PORT,..., "
             "static:/FILE, dns:NAME or etcd://HOST:PORT,.../NAME",
             option);
    return NULL;
}

/* A gibibyte lent is a weight of 1. */
static uint32_t weight_auto(const ldr_options_t *o)
{
    uint64_t lent = o->dir_count > 0 ? o->ssd * o->dir_count : o->dram;
    uint64_t weight = lent >> 30;

    return weight < 1                ? 1
           : weight > LDR_WEIGHT_MAX ? LDR_WEIGHT_MAX
                                     : (uint32_t)weight;
}

static larder_status_t read_weight(const ldr_options_t *o, uint32_t *weight_p)
{
    uint64_t value = 0;

    *weight_p = weight_auto(o);
    if (strcmp(o->member_weight, "auto") == 0) {
        return LARDER_OK;
    }
    if (!ldr_parse_uint(o->member_weight, &value) || value > LDR_WEIGHT_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "option member_weight: '%s': write auto, or a number "
                        "up to %u; 0 lends nothing",
                        o->member_weight, LDR_WEIGHT_MAX);
    }
    *weight_p = (uint32_t)value;
    return LARDER_OK;
}

static larder_status_t read_self(ldr_cluster_t *c)
{
    const ldr_options_t *o = &c->options;
    larder_status_t st = LARDER_OK;

    if (o->member_name[0] != '\0') {
        st = ldr_member_name_check("option member_name:", o->member_name);
        if (st == LARDER_OK) {
            snprintf(c->self.name, sizeof(c->self.name), "%.63s",
                     o->member_name);
        }
    } else if (!ldr_host_label(c->self.name, sizeof(c->self.name)) ||
               !ldr_tenant_name_ok(c->self.name)) {
        st = ldr_fail(LARDER_E_INVALID, "this host's name is no name of a "
                                        "member: set member_name");
    }
    if (st == LARDER_OK && o->member_zone[0] != '\0') {
        st = ldr_member_name_check("option member_zone:", o->member_zone);
        snprintf(c->self.zone, sizeof(c->self.zone), "%.63s", o->member_zone);
    }
    if (st == LARDER_OK) {
        st = read_weight(o, &c->self.weight);
    }
    c->self.id = ldr_member_id(c->self.name);
    c->self.share = LDR_SHARE_FULL;
    snprintf(c->self.version, sizeof(c->self.version), "%d.%d.%d",
             LARDER_VERSION_MAJOR, LARDER_VERSION_MINOR, LARDER_VERSION_PATCH);
    return st;
}

static larder_status_t read_secrets(ldr_cluster_t *c)
{
    if (c->options.cluster_secret[0] == '\0') {
        return ldr_fail(LARDER_E_INVALID,
                        "option cluster is set and cluster_secret is not: name "
                        "a file with a secret that all members have "
                        "(`openssl rand -hex 32` makes one)");
    }
    larder_status_t st = ldr_tokens_read(c->options.cluster_secret, c->secrets,
                                         &c->secret_count);
    char why[400];

    if (st != LARDER_OK) {
        snprintf(why, sizeof(why), "%s", ldr_fail_text());
        st = ldr_fail(st, "option cluster_secret: %s", why);
    }
    return st;
}

/* ---- views ---- */

/* Makes a new view if what is believed has changed. With the lock; true:
 * the caller says so to whoever wants to know, without it. */
static bool view_judge(ldr_cluster_t *c)
{
    ldr_members_t *m = &c->members;
    uint64_t held = m->held;

    if (!ldr_members_judge(m, ldr_now_ns(c->clock), c->source_ok)) {
        if (m->held != held) {
            ldr_warn(&c->log,
                     "cluster: %s names %zu members of %zu: the view stands "
                     "until that has persisted for %u s",
                     c->source->name, m->answer_count, m->believed_count,
                     LDR_GUARD_MS / 1000);
        }
        return false;
    }
    if (!c->source->shares) {
        c->registered = false;
    }
    for (size_t i = 0; i < m->believed_count && !c->source->shares; i++) {
        if (m->believed[i].id == c->self.id) {
            m->believed[i].leaving = c->leaving;
            c->registered = true;
        }
    }
    if (ldr_views_same(&c->views, m->believed, (uint32_t)m->believed_count)) {
        return false;
    }
    if (!ldr_views_publish(&c->views, m->believed, (uint32_t)m->believed_count,
                           c->self.id, c->generation + 1)) {
        ldr_error(&c->log, "cluster: no new view: %s", ldr_fail_text());
        return false;
    }
    __atomic_store_n(&c->generation, c->generation + 1, __ATOMIC_RELEASE);
    c->views_count++;
    return true;
}

static void say_changed(ldr_cluster_t *c)
{
    const ldr_view_t *v = ldr_cluster_view(c);

    ldr_info(&c->log,
             "cluster: view %02x%02x%02x%02x: %u members, this node is %s",
             v->hash[0], v->hash[1], v->hash[2], v->hash[3], v->count,
             v->self == LDR_NOBODY             ? "not one of them"
             : v->members[v->self].leaving     ? "leaving"
             : v->members[v->self].weight == 0 ? "one that lends nothing"
                                               : "an owner");
    ldr_view_give(v);
    if (c->changed != NULL) {
        c->changed(c->arg);
    }
}

static void judge_and_say(ldr_cluster_t *c)
{
    ldr_mutex_lock(&c->lock);
    bool fresh = view_judge(c);
    ldr_mutex_unlock(&c->lock);
    if (fresh) {
        say_changed(c);
    }
}

uint64_t ldr_cluster_generation(const ldr_cluster_t *c)
{
    return __atomic_load_n(&c->generation, __ATOMIC_ACQUIRE);
}

/* ---- from the source ---- */

void ldr_cluster_answer(ldr_cluster_t *c, const ldr_member_t *members,
                        uint32_t count)
{
    ldr_mutex_lock(&c->lock);
    bool taken = ldr_members_answer(&c->members, members, count);
    ldr_mutex_unlock(&c->lock);
    if (!taken) {
        ldr_error(&c->log, "cluster: no memory for %u members", count);
        return;
    }
    ldr_cluster_source_good(c);
    judge_and_say(c);
    ldr_cluster_wake(c);
}

void ldr_cluster_source_good(ldr_cluster_t *c)
{
    ldr_mutex_lock(&c->lock);
    bool was = c->source_ok;
    bool before = c->failures > 0;
    c->source_ok = true;
    c->source_ns = ldr_now_ns(c->clock);
    ldr_mutex_unlock(&c->lock);
    if (!was && before) {
        ldr_info(&c->log, "cluster: %s answers again", c->source->name);
    }
}

void ldr_cluster_source_bad(ldr_cluster_t *c)
{
    ldr_mutex_lock(&c->lock);
    bool was = c->source_ok || c->failures == 0;
    c->source_ok = false;
    c->failures++;
    ldr_mutex_unlock(&c->lock);
    if (was) {
        ldr_warn(&c->log, "cluster: %s: %s; the last view stands",
                 c->source->name, ldr_fail_text());
    }
}

void ldr_cluster_trouble(ldr_cluster_t *c, const char *format, ...)
{
    char text[sizeof(c->trouble)];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ldr_mutex_lock(&c->lock);
    bool fresh = strcmp(text, c->trouble) != 0;
    memcpy(c->trouble, text, sizeof(text));
    ldr_mutex_unlock(&c->lock);
    if (fresh && text[0] != '\0') {
        ldr_error(&c->log, "cluster: %s", text);
    }
}

void ldr_cluster_wake(ldr_cluster_t *c)
{
    ldr_mutex_lock(&c->lock);
    c->woken = true;
    c->threads->wake(c->threads->arg, &c->wake, true);
    ldr_mutex_unlock(&c->lock);
}

/* ---- the thread ---- */

static void *cluster_main(void *arg)
{
    ldr_cluster_t *c = arg;

    ldr_mutex_lock(&c->lock);
    while (!c->stop) {
        c->woken = false;
        ldr_mutex_unlock(&c->lock);
        uint64_t next_ns = c->source->step(c);
        judge_and_say(c);
        ldr_mutex_lock(&c->lock);
        uint64_t tick_ns = ldr_members_next(&c->members, ldr_now_ns(c->clock));
        next_ns = tick_ns < next_ns ? tick_ns : next_ns;
        if (!c->stop && !c->woken && ldr_now_ns(c->clock) < next_ns) {
            c->threads->wait(c->threads->arg, &c->wake, &c->lock, next_ns);
        }
    }
    ldr_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- opening ---- */

static void cluster_destroy(ldr_cluster_t *c)
{
    ldr_views_destroy(&c->views);
    ldr_members_destroy(&c->members);
    pthread_cond_destroy(&c->leave_cond);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
    memset(c->secrets, 0, sizeof(c->secrets));
    ldr_free(c);
}

static ldr_cluster_t *cluster_create(const ldr_cluster_params_t *p)
{
    ldr_cluster_t *c = ldr_alloc(sizeof(*c));

    if (c == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory for a cluster");
        return NULL;
    }
    c->options = *p->options;
    c->log = p->log;
    c->clock = p->clock != NULL ? p->clock : &ldr_clock_real;
    c->threads = p->threads != NULL ? p->threads : &ldr_threads_real;
    c->http = p->http;
    c->dns = p->dns != NULL ? p->dns : &ldr_dns_real;
    c->changed = p->changed;
    c->arg = p->arg;
    ldr_rand_seed(&c->rand, p->seed != 0 ? p->seed : ldr_rand_entropy());
    c->self.run = ldr_rand_next(&c->rand) | 1; /* 0 is none */
    c->opened_ns = ldr_now_ns(c->clock);
    c->members.ramp_s = (uint32_t)c->options.cluster_ramp_s;
    ldr_mutex_init(&c->lock);
    if (!ldr_cond_init(&c->wake) || !ldr_cond_init(&c->leave_cond) ||
        !ldr_views_publish(&c->views, NULL, 0, 0, 0)) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory for a cluster");
        cluster_destroy(c);
        return NULL;
    }
    return c;
}

/* All that the options say, nothing started. */
static larder_status_t configure(ldr_cluster_t *c)
{
    const char *text = "";
    larder_status_t st = read_self(c);

    if (st == LARDER_OK) {
        st = read_secrets(c);
    }
    const ldr_source_t *source =
        st == LARDER_OK ? source_of(c->options.cluster, &text) : NULL;
    if (source == NULL) {
        return st != LARDER_OK ? st : LARDER_E_INVALID;
    }
    c->source = source;
    c->members.shares = source->shares;
    return source->read(c, text);
}

larder_status_t ldr_cluster_open(const ldr_cluster_params_t *params,
                                 ldr_cluster_t **cluster_p)
{
    ldr_cluster_t *c = cluster_create(params);
    larder_status_t st = c != NULL ? configure(c) : LARDER_E_NO_MEMORY;

    *cluster_p = NULL;
    if (st == LARDER_OK) {
        st = c->source->start(c);
    }
    if (st == LARDER_OK) {
        c->runs = c->threads->start(c->threads->arg, &c->thread,
                                    "larder-cluster", cluster_main, c);
        st = c->runs
                 ? st
                 : ldr_fail(LARDER_E_NO_MEMORY, "no thread for the cluster");
    }
    if (st != LARDER_OK) {
        ldr_cluster_close(c);
        return st;
    }
    *cluster_p = c;
    return LARDER_OK;
}

void ldr_cluster_close(ldr_cluster_t *c)
{
    if (c == NULL) {
        return;
    }
    ldr_mutex_lock(&c->lock);
    __atomic_store_n(&c->stop, true, __ATOMIC_RELEASE);
    c->threads->wake(c->threads->arg, &c->wake, true);
    ldr_mutex_unlock(&c->lock);
    if (c->runs) {
        c->threads->join(c->threads->arg, c->thread);
    }
    if (c->source != NULL) {
        c->source->close(c);
    }
    cluster_destroy(c);
}

larder_status_t ldr_cluster_check(const ldr_options_t *options)
{
    const ldr_cluster_params_t params = {.options = options, .seed = 1};
    ldr_cluster_t *c = cluster_create(&params);

    if (c == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    larder_status_t st = configure(c);
    ldr_cluster_close(c);
    return st;
}

larder_status_t ldr_cluster_reload(ldr_cluster_t *c,
                                   const ldr_options_t *options)
{
    uint32_t weight = 0;
    larder_status_t st = read_weight(options, &weight);

    if (st == LARDER_OK && c->source->reload != NULL) {
        st = c->source->reload(c);
    }
    if (st == LARDER_OK && c->source->shares) {
        ldr_mutex_lock(&c->lock);
        c->self.weight = weight;
        ldr_mutex_unlock(&c->lock);
        ldr_cluster_wake(c);
    }
    return st;
}

/* ---- this node ---- */

ldr_self_t ldr_cluster_self(const ldr_cluster_t *c)
{
    return (ldr_self_t){c->self.id, c->self.run, c->self.name, c->self.address,
                        c->name};
}

larder_status_t ldr_cluster_leave(ldr_cluster_t *c, bool back,
                                  uint64_t deadline_ns)
{
    larder_status_t st = LARDER_OK;

    ldr_mutex_lock(&c->lock);
    c->leaving = !back;
    ldr_mutex_unlock(&c->lock);
    judge_and_say(c);
    if (!c->source->shares) {
        return LARDER_OK;
    }
    ldr_cluster_wake(c);
    ldr_mutex_lock(&c->lock);
    while (c->registered && c->leaving_recorded != !back &&
           ldr_now_ns(c->clock) < deadline_ns) {
        c->threads->wait(c->threads->arg, &c->leave_cond, &c->lock,
                         deadline_ns);
    }
    if (c->registered && c->leaving_recorded != !back) {
        st = ldr_fail(LARDER_E_DEADLINE,
                      "%s has not recorded yet that %s %s; it is tried on",
                      c->source->name, c->self.name,
                      back ? "is back" : "leaves");
    }
    ldr_mutex_unlock(&c->lock);
    return st;
}

void ldr_cluster_returns(ldr_cluster_t *c)
{
    ldr_mutex_lock(&c->lock);
    c->returning = true;
    ldr_mutex_unlock(&c->lock);
    if (c->source->shares) {
        ldr_cluster_wake(c);
    }
}

larder_status_t ldr_cluster_drain(ldr_cluster_t *c, const char *name, bool back)
{
    const ldr_view_t *v = ldr_cluster_view(c);
    bool known = ldr_view_find(v, ldr_member_id(name)) != LDR_NOBODY;

    ldr_view_give(v);
    if (strcmp(name, c->self.name) == 0 && !(back && c->source->shares)) {
        /* What is not recorded at once is tried on. */
        (void)ldr_cluster_leave(c, back, 0);
        return LARDER_OK;
    }
    if (!c->source->shares) {
        return LARDER_PENDING;
    }
    if (!known) {
        return ldr_fail(LARDER_E_INVALID, "no member is named '%.64s'", name);
    }
    ldr_mutex_lock(&c->lock);
    bool busy = c->order[0] != '\0';
    if (!busy) {
        snprintf(c->order, sizeof(c->order), "%.63s", name);
        c->order_back = back;
    }
    if (back && strcmp(name, c->self.name) == 0) {
        c->leaving = false; /* however it was said that it leaves */
    }
    ldr_mutex_unlock(&c->lock);
    ldr_cluster_wake(c);
    return busy ? ldr_fail(LARDER_E_BUSY, "etcd has not recorded yet what was "
                                          "asked before: try again")
                : LARDER_OK;
}

/* ---- peers ---- */

const ldr_token_t *ldr_cluster_secrets(const ldr_cluster_t *c,
                                       unsigned *count_p)
{
    *count_p = c->secret_count;
    return c->secrets;
}

larder_status_t ldr_cluster_claim(ldr_cluster_t *c, const ldr_claim_t *claim)
{
    const char *name = claim->name;

    if (!ldr_tenant_name_ok(name)) {
        return ldr_fail(LARDER_E_DENIED, "a peer gives no name of a member");
    }
    if (strcmp(claim->cluster, c->name) != 0) {
        return ldr_fail(LARDER_E_DENIED,
                        "member '%s' is of the cluster '%.64s', this node (%s) "
                        "of '%s': look at option cluster on both",
                        name, claim->cluster, c->self.name, c->name);
    }
    if (claim->version_major != LARDER_VERSION_MAJOR) {
        return ldr_fail(LARDER_E_VERSION,
                        "member '%s' runs larder %u.x and this node (%s) %d.x: "
                        "members of one cluster have the same major version",
                        name, claim->version_major, c->self.name,
                        LARDER_VERSION_MAJOR);
    }
    if (strcmp(name, c->self.name) == 0) {
        return ldr_fail(LARDER_E_DENIED,
                        "two nodes are named '%s': %s. Give one of them "
                        "another member_name",
                        name,
                        claim->run == c->self.run
                            ? "a member's address leads to this node itself"
                            : "this one and the one that calls");
    }
    if (claim->live_run != 0 && claim->live_run != claim->run) {
        const ldr_view_t *v = ldr_cluster_view(c);
        uint32_t at = ldr_view_find(v, ldr_member_id(name));
        bool known = at != LDR_NOBODY && v->members[at].run == claim->run;

        ldr_view_give(v);
        if (!known) { /* else the source knows it as the newer one */
            return ldr_fail(LARDER_E_DENIED,
                            "two nodes are named '%s', and this node (%s) has "
                            "a session with the other one: give one of them "
                            "another member_name",
                            name, c->self.name);
        }
    }
    return LARDER_OK;
}

void ldr_cluster_peer_says(ldr_cluster_t *c, uint64_t id, uint64_t run,
                           bool leaving)
{
    ldr_mutex_lock(&c->lock);
    ldr_members_say(&c->members, id, run, leaving);
    ldr_mutex_unlock(&c->lock);
    judge_and_say(c);
}

/* ---- what people see ---- */

void ldr_cluster_stats(ldr_cluster_t *c, ldr_cluster_stats_t *s)
{
    uint64_t now_ns = ldr_now_ns(c->clock);

    memset(s, 0, sizeof(*s));
    s->source = c->source->name;
    ldr_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->members.believed_count; i++) {
        const ldr_member_t *m = &c->members.believed[i];

        s->leaving += m->leaving;
        s->owners += !m->leaving && m->weight > 0;
    }
    s->members = c->members.believed_count;
    s->views = c->views_count;
    s->held = c->members.held;
    s->held_ms =
        c->members.holding ? (now_ns - c->members.held_ns) / NS_PER_MS : 0;
    s->refused = c->refused;
    s->source_ok = c->source_ok;
    s->source_failures = c->failures;
    s->source_age_ms =
        (now_ns - (c->source_ns != 0 ? c->source_ns : c->opened_ns)) /
        NS_PER_MS;
    s->registered = c->registered;
    memcpy(s->trouble, c->trouble, sizeof(s->trouble));
    ldr_mutex_unlock(&c->lock);
}
