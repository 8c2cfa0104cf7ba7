/*
 * This node's key in etcd: its lease, its value, and that it stays there;
 * etcd.h has the whole of it. Everything runs in the cluster's thread, to which
 * all belongs that stands above e->lock in etcd.h. It takes c->lock (the
 * cluster's) and e->lock (of what the watch has read) one after the other, each
 * for a few fields, and neither across a call of etcd.
 */
#include "cluster/etcd.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "net/socket.h"

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)
#define KEEP_NS (LDR_ETCD_LEASE_S * NS_PER_S * 4 / 15) /* 4 s of 15 */
#define LOOK_NS (12 * NS_PER_S)                        /* at the watch */
#define AGAIN_NS NS_PER_S           /* after a look that found it behind */
#define RETRY_NS (NS_PER_S / 2)     /* after a failure */
#define TAKEN_NS (2 * NS_PER_S)     /* while another has the name */
#define ANSWER_NS (100 * NS_PER_MS) /* between two answers */
#define RAMP_NS NS_PER_S

/* ---- what is written ---- */

static ldr_member_t member_to_write(ldr_etcd_t *e)
{
    ldr_cluster_t *c = e->c;

    ldr_mutex_lock(&c->lock);
    ldr_member_t m = c->self;
    m.leaving = c->leaving || c->drained;
    bool returning = c->returning;
    ldr_mutex_unlock(&c->lock);
    m.share = LDR_SHARE_FULL;
    if (!returning && e->joined_ns != 0) {
        m.share = ldr_ramp(ldr_now_ns(c->clock) - e->joined_ns,
                           (uint32_t)c->options.cluster_ramp_s);
    }
    return m;
}

static bool is_written(const ldr_etcd_t *e, const ldr_member_t *m)
{
    return e->modified != 0 && e->written.share == m->share &&
           e->written.leaving == m->leaving && e->written.weight == m->weight;
}

/* Notes whether etcd has recorded this node, and wakes the thread that waits
 * for that. */
static void set_registered(ldr_etcd_t *e, bool registered)
{
    ldr_cluster_t *c = e->c;

    ldr_mutex_lock(&c->lock);
    c->registered = registered;
    c->leaving_recorded = registered && e->written.leaving;
    c->threads->wake(c->threads->arg, &c->leave_cond, true);
    ldr_mutex_unlock(&c->lock);
}

/* ---- the lease ---- */

static bool grant(ldr_etcd_t *e)
{
    char body[64], name[32];

    snprintf(body, sizeof(body), "{\"TTL\":\"%u\"}", LDR_ETCD_LEASE_S);
    if (!ldr_etcd_call(e, &e->keeper, "lease/grant", body)) {
        return false;
    }
    ldr_json_reader_t r =
        ldr_json_reader(e->keeper.reply, e->keeper.reply_bytes);
    ldr_json_open(&r, '{');
    while (ldr_json_name(&r, name, sizeof(name))) {
        if (strcmp(name, "ID") == 0) {
            ldr_json_u64(&r, &e->lease);
        } else {
            ldr_json_skip(&r);
        }
    }
    if (r.broken || e->lease == 0) {
        e->lease = 0;
        ldr_fail(LARDER_E_OFFLINE, "etcd grants no lease");
    }
    return e->lease != 0;
}

/* {"result":{"ID":...,"TTL":"15"}}; without a TTL the lease is lost. */
static bool lease_renew(ldr_etcd_t *e)
{
    uint64_t ttl = 0;
    bool answered = false;
    char body[64], name[32];

    snprintf(body, sizeof(body), "{\"ID\":\"%llu\"}",
             (unsigned long long)e->lease);
    if (!ldr_etcd_call(e, &e->keeper, "lease/keepalive", body)) {
        return false;
    }
    ldr_json_reader_t r =
        ldr_json_reader(e->keeper.reply, e->keeper.reply_bytes);
    ldr_json_open(&r, '{');
    while (ldr_json_name(&r, name, sizeof(name))) {
        if (strcmp(name, "result") == 0) {
            ldr_json_open(&r, '{');
            while (ldr_json_name(&r, name, sizeof(name))) {
                if (strcmp(name, "TTL") == 0) {
                    ldr_json_u64(&r, &ttl);
                } else {
                    ldr_json_skip(&r);
                }
            }
            answered = !r.broken;
            break; /* one answer is enough, whatever stands behind it */
        }
        ldr_json_skip(&r); /* an error */
    }
    if (!answered) {
        ldr_fail(LARDER_E_OFFLINE, "etcd does not say whether it keeps the "
                                   "lease");
        return false;
    }
    if (ttl == 0) {
        ldr_warn(&e->c->log, "cluster: etcd has lost this node's lease; it "
                             "registers again");
        e->lease = 0;
        e->modified = 0;
        set_registered(e, false);
    }
    e->keep_ns = ldr_now_ns(e->c->clock) + KEEP_NS;
    return true;
}

/* ---- the key ---- */

typedef struct answer {
    bool succeeded, has_kv;
    uint64_t revision;
    ldr_etcd_kv_t kv; /* what is there instead */
} answer_t;

/* [{"response_range":{"kvs":[{...}]}}] */
static void read_responses(ldr_json_reader_t *r, answer_t *a)
{
    char name[32];

    ldr_json_open(r, '[');
    while (ldr_json_item(r)) {
        ldr_json_open(r, '{');
        while (ldr_json_name(r, name, sizeof(name))) {
            if (strcmp(name, "response_range") != 0) {
                ldr_json_skip(r);
                continue;
            }
            ldr_json_open(r, '{');
            while (ldr_json_name(r, name, sizeof(name))) {
                if (strcmp(name, "kvs") != 0) {
                    ldr_json_skip(r);
                    continue;
                }
                ldr_json_open(r, '[');
                while (ldr_json_item(r)) {
                    ldr_etcd_read_kv(r, &a->kv);
                    a->has_kv = true;
                }
            }
        }
    }
}

/* Writes the value if the comparison holds, and else reads what is there. */
static bool transact(ldr_etcd_t *e, const ldr_member_t *m, uint64_t modified,
                     answer_t *a)
{
    enum {
        BODY = 4 * LDR_ETCD_BASE64(LDR_ETCD_KEY) +
               LDR_ETCD_BASE64(LDR_ETCD_VALUE) + 512
    };
    char *body = ldr_alloc(BODY);
    char value[LDR_ETCD_VALUE], coded[LDR_ETCD_BASE64(LDR_ETCD_VALUE)];
    char path[LDR_ETCD_KEY], key[LDR_ETCD_BASE64(LDR_ETCD_KEY)], name[32];

    memset(a, 0, sizeof(*a));
    if (body == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory for a request");
        return false;
    }
    ldr_etcd_compose(e->c, m, value);
    ldr_etcd_base64(value, coded);
    snprintf(path, sizeof(path), "%smembers/%s", e->prefix, m->name);
    ldr_etcd_base64(path, key);
    snprintf(body, BODY,
             "{\"compare\":[{\"key\":\"%s\",\"target\":\"MOD\","
             "\"mod_revision\":\"%llu\"}],"
             "\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"%s\","
             "\"lease\":\"%llu\"}}],"
             "\"failure\":[{\"request_range\":{\"key\":\"%s\"}}]}",
             key, (unsigned long long)modified, key, coded,
             (unsigned long long)e->lease, key);
    bool done = ldr_etcd_call(e, &e->keeper, "kv/txn", body);
    ldr_free(body);
    if (!done) {
        return false;
    }
    ldr_json_reader_t r =
        ldr_json_reader(e->keeper.reply, e->keeper.reply_bytes);
    ldr_json_open(&r, '{');
    while (ldr_json_name(&r, name, sizeof(name))) {
        if (strcmp(name, "header") == 0) {
            a->revision = ldr_etcd_read_header(&r);
        } else if (strcmp(name, "succeeded") == 0) {
            ldr_json_bool(&r, &a->succeeded);
        } else if (strcmp(name, "responses") == 0) {
            read_responses(&r, a);
        } else {
            ldr_json_skip(&r);
        }
    }
    if (r.broken) {
        ldr_fail(LARDER_E_OFFLINE, "an answer of etcd cannot be read");
    }
    return !r.broken;
}

/* Whether the key that is there is this node's own: of this run, or, as long as
 * this run has had none, of the one before its restart. Else says who has the
 * name. */
static bool is_own(ldr_etcd_t *e, const answer_t *a)
{
    const ldr_member_t *self = &e->c->self;
    ldr_member_t there;
    const char *why = ldr_etcd_parse(e->c, a->kv.value, &there);

    if (why == NULL &&
        (there.run == self->run ||
         (!e->had_key && strcmp(there.address, self->address) == 0))) {
        return true;
    }
    ldr_cluster_trouble(
        e->c,
        "two nodes are named '%s': the other one is at %s%s%s. "
        "This one is no member until that name is free: give "
        "it another member_name, or wait %u s if the other one "
        "has ended",
        self->name, there.address[0] != '\0' ? there.address : "(unknown)",
        why != NULL ? ", and " : "", why != NULL ? why : "", LDR_ETCD_LEASE_S);
    return false;
}

/* Creates the key or changes it. *taken_p: another node has it. */
static bool write_key(ldr_etcd_t *e, bool *taken_p)
{
    ldr_member_t m = member_to_write(e);
    answer_t *a = ldr_alloc(sizeof(*a));
    bool done = false;

    *taken_p = false;
    if (a == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory for a request");
        return false;
    }
    if (e->joined_ns == 0) {
        e->joined_ns = ldr_now_ns(e->c->clock);
        m = member_to_write(e);
    }
    /* A revision of 0: there is no key. A call that was carried out although
     * it was not answered leaves one of this run. */
    bool asked = transact(e, &m, e->modified, a);
    if (asked && !a->succeeded && a->has_kv) {
        if (is_own(e, a)) {
            asked = transact(e, &m, a->kv.modified, a);
        } else {
            *taken_p = true;
        }
    }
    if (asked && a->succeeded) {
        e->modified = a->revision;
        e->had_key = true;
        e->written = m;
        ldr_cluster_trouble(e->c, "%s", "");
        set_registered(e, true);
        done = true;
    } else {
        e->modified = 0;
        if (asked && !*taken_p) {
            ldr_fail(LARDER_E_OFFLINE, "the key changed meanwhile");
        }
        if (!asked && strstr(ldr_fail_text(), "lease not found") != NULL) {
            e->lease = 0;
        }
    }
    ldr_free(a);
    return done;
}

/* ---- other members ---- */

/* A key that stands until it is taken away: that member sees it. */
static bool carry_out_order(ldr_etcd_t *e)
{
    ldr_cluster_t *c = e->c;
    char name[LDR_MEMBER_NAME], path[LDR_ETCD_KEY];
    char key[LDR_ETCD_BASE64(LDR_ETCD_KEY)], body[sizeof(key) + 64];

    ldr_mutex_lock(&c->lock);
    memcpy(name, c->order, sizeof(name));
    bool back = c->order_back;
    ldr_mutex_unlock(&c->lock);
    if (name[0] == '\0') {
        return true;
    }
    snprintf(path, sizeof(path), "%sdrain/%s", e->prefix, name);
    ldr_etcd_base64(path, key);
    snprintf(body, sizeof(body), "{\"key\":\"%s\"%s}", key,
             back ? "" : ",\"value\":\"MQ==\"");
    if (!ldr_etcd_call(e, &e->keeper, back ? "kv/deleterange" : "kv/put",
                       body)) {
        return false;
    }
    ldr_mutex_lock(&c->lock);
    c->order[0] = '\0';
    ldr_mutex_unlock(&c->lock);
    return true;
}

/* ---- a look at the watch ---- */

/* A server that is stopped says nothing in its stream, for ever. Another one
 * is asked whether there is something that the stream has not told: a key that
 * is newer, or another number of keys. Twice in a row, the stream begins
 * again. */
static bool watch_check(ldr_etcd_t *e)
{
    char key[LDR_ETCD_BASE64(LDR_ETCD_KEY)], end[LDR_ETCD_BASE64(LDR_ETCD_KEY)];
    char body[2 * sizeof(key) + 160], last[LDR_ETCD_KEY], name[32];
    uint64_t count = 0, newer = 0;

    ldr_mutex_lock(&e->lock);
    uint64_t revision = e->revision, have = e->count + e->foreign;
    ldr_mutex_unlock(&e->lock);
    snprintf(last, sizeof(last), "%s", e->prefix);
    last[strlen(last) - 1]++;
    ldr_etcd_base64(e->prefix, key);
    ldr_etcd_base64(last, end);
    snprintf(body, sizeof(body),
             "{\"key\":\"%s\",\"range_end\":\"%s\",\"limit\":\"1\","
             "\"keys_only\":true,\"min_mod_revision\":\"%llu\"}",
             key, end, (unsigned long long)revision + 1);
    if (!ldr_etcd_call(e, &e->keeper, "kv/range", body)) {
        return false;
    }
    ldr_json_reader_t r =
        ldr_json_reader(e->keeper.reply, e->keeper.reply_bytes);
    ldr_json_open(&r, '{');
    while (ldr_json_name(&r, name, sizeof(name))) {
        if (strcmp(name, "count") == 0) {
            ldr_json_u64(&r, &count);
        } else if (strcmp(name, "kvs") == 0) {
            ldr_json_open(&r, '[');
            while (ldr_json_item(&r)) {
                ldr_json_skip(&r);
                newer++;
            }
        } else {
            ldr_json_skip(&r);
        }
    }
    ldr_mutex_lock(&e->lock);
    bool behind =
        !r.broken && e->revision == revision && (newer > 0 || count != have);
    ldr_mutex_unlock(&e->lock);
    e->stale = behind ? e->stale + 1 : 0;
    e->look_ns = ldr_now_ns(e->c->clock) + (behind ? AGAIN_NS : LOOK_NS);
    if (e->stale >= 2) {
        ldr_warn(&e->c->log,
                 "cluster: the watch of %s is silent although "
                 "members changed: it begins again elsewhere",
                 e->servers[e->watcher.server]);
        e->stale = 0;
        __atomic_store_n(&e->cancel, true, __ATOMIC_RELEASE);
    }
    return true;
}

/* ---- the source ---- */

/* A key that somebody else deleted or wrote over is written again. */
static void look_for_own(ldr_etcd_t *e)
{
    if (e->modified != 0 && !ldr_etcd_has_own(e, e->modified)) {
        ldr_warn(&e->c->log, "cluster: this node's key in etcd is gone; it "
                             "registers again");
        e->modified = 0;
        set_registered(e, false);
    }
}

/* One thing that is due. False, with a text: etcd did not answer. */
static bool do_what_is_due(ldr_etcd_t *e, bool *taken_p)
{
    uint64_t now_ns = ldr_now_ns(e->c->clock);
    ldr_member_t m = member_to_write(e);

    *taken_p = false;
    if (e->lease == 0) {
        if (!grant(e)) {
            return false;
        }
        e->keep_ns = now_ns + KEEP_NS;
    }
    if (now_ns >= e->keep_ns && !lease_renew(e)) {
        return false;
    }
    if (e->lease == 0) {
        return true; /* lost: at once again */
    }
    if (!is_written(e, &m)) {
        return write_key(e, taken_p) || *taken_p;
    }
    return carry_out_order(e) && (now_ns < e->look_ns || watch_check(e));
}

static uint64_t next_ns(ldr_etcd_t *e)
{
    uint64_t now_ns = ldr_now_ns(e->c->clock), next = e->keep_ns;
    ldr_member_t m = member_to_write(e);

    if (e->lease == 0 || !is_written(e, &m)) {
        next = now_ns;
    }
    next = e->look_ns < next ? e->look_ns : next;
    if (m.share < LDR_SHARE_FULL && now_ns + RAMP_NS < next) {
        next = now_ns + RAMP_NS;
    }
    next = next > e->retry_ns ? next : e->retry_ns;
    ldr_mutex_lock(&e->lock);
    if (e->dirty && e->answered_ns + ANSWER_NS < next) {
        next = e->answered_ns + ANSWER_NS;
    }
    ldr_mutex_unlock(&e->lock);
    return next;
}

static uint64_t etcd_step(ldr_cluster_t *c)
{
    ldr_etcd_t *e = c->state;
    uint64_t now_ns = ldr_now_ns(c->clock);
    bool taken = false;

    if (now_ns >= e->answered_ns + ANSWER_NS) {
        e->answered_ns = now_ns;
        ldr_etcd_answer(e);
        look_for_own(e);
    }
    if (now_ns >= e->retry_ns) {
        bool good = do_what_is_due(e, &taken);

        ldr_mutex_lock(&e->lock);
        bool watching = e->watching;
        ldr_mutex_unlock(&e->lock);
        if (good && watching) {
            ldr_cluster_source_good(c);
        } else if (!good && !__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE)) {
            ldr_cluster_source_bad(c);
        }
        if (!good || taken) {
            e->retry_ns = ldr_now_ns(c->clock) + (taken ? TAKEN_NS : RETRY_NS);
        }
    }
    return next_ns(e);
}

static larder_status_t etcd_start(ldr_cluster_t *c)
{
    ldr_etcd_t *e = c->state;

    if (c->http == NULL) {
        larder_status_t st = ldr_http_real(&c->http);

        if (st != LARDER_OK) {
            return st;
        }
    }
    ldr_mutex_lock(&c->lock);
    e->keeper.server = (unsigned)ldr_rand_below(&c->rand, e->server_count);
    e->watcher.server = (unsigned)ldr_rand_below(&c->rand, e->server_count);
    ldr_mutex_unlock(&c->lock);
    e->keeper.canceled = &c->stop;
    e->watcher.canceled = &e->cancel;
    e->look_ns = ldr_now_ns(c->clock) + LOOK_NS;
    e->runs = c->threads->start(c->threads->arg, &e->thread, "larder-etcd",
                                ldr_etcd_watch, e);
    return e->runs ? LARDER_OK
                   : ldr_fail(LARDER_E_NO_MEMORY, "no thread for etcd's watch");
}

/* The key goes with its lease: the others need not wait for its end. */
static void revoke(ldr_etcd_t *e)
{
    char body[64];

    e->keeper.canceled = NULL;
    e->server_count = e->server_count > 0 ? 1 : 0; /* one try */
    memmove(e->servers[0], e->servers[e->keeper.server], sizeof(e->servers[0]));
    e->keeper.server = 0;
    snprintf(body, sizeof(body), "{\"ID\":\"%llu\"}",
             (unsigned long long)e->lease);
    (void)ldr_etcd_call(e, &e->keeper, "lease/revoke", body);
}

static void etcd_close(ldr_cluster_t *c)
{
    ldr_etcd_t *e = c->state;

    if (e == NULL) {
        return;
    }
    __atomic_store_n(&c->stop, true, __ATOMIC_RELEASE);
    __atomic_store_n(&e->cancel, true, __ATOMIC_RELEASE);
    if (e->runs) {
        c->threads->join(c->threads->arg, e->thread);
        if (e->lease != 0) {
            revoke(e);
        }
    }
    ldr_free(e->keeper.reply);
    ldr_free(e->watcher.reply);
    ldr_free(e->line);
    ldr_free(e->entries);
    ldr_free(e->answer);
    pthread_mutex_destroy(&e->lock);
    ldr_free(e);
}

/* ---- the option ---- */

static larder_status_t read_servers(ldr_etcd_t *e, const char *text,
                                    size_t bytes)
{
    ldr_address_t address;

    for (size_t at = 0; at < bytes;) {
        size_t length = strcspn(text + at, ",/");

        if (e->server_count == LDR_ETCD_SERVERS_MAX || length == 0 ||
            !ldr_address_parse(text + at, length, &address)) {
            return ldr_fail(LARDER_E_INVALID,
                            "option cluster: '%.*s' is no server of etcd: "
                            "write 1 to %u of HOST:PORT, with commas between",
                            (int)length, text + at, LDR_ETCD_SERVERS_MAX);
        }
        memcpy(e->servers[e->server_count++], text + at, length);
        at += length + (text[at + length] == ',');
    }
    return LARDER_OK;
}

/* tls=on, ca=FILE, cert=FILE, key=FILE. */
static larder_status_t read_query(ldr_etcd_t *e, const char *text)
{
    while (text[0] != '\0') {
        size_t length = strcspn(text, "&"), name = strcspn(text, "=");
        const char *value = text + name + 1;
        size_t bytes = name < length ? length - name - 1 : 0;
        char *to = name == 2 && memcmp(text, "ca", 2) == 0     ? e->ca
                   : name == 4 && memcmp(text, "cert", 4) == 0 ? e->cert
                   : name == 3 && memcmp(text, "key", 3) == 0  ? e->key
                                                               : NULL;

        if (name == 3 && memcmp(text, "tls", 3) == 0 && bytes == 2 &&
            memcmp(value, "on", 2) == 0) {
            e->tls = true;
        } else if (to != NULL && bytes > 0 && bytes < LDR_PATH_MAX) {
            memcpy(to, value, bytes);
            e->tls = true;
        } else {
            return ldr_fail(LARDER_E_INVALID,
                            "option cluster: '%.*s': write tls=on, ca=FILE, "
                            "cert=FILE or key=FILE, with & between",
                            (int)length, text);
        }
        text += length + (text[length] == '&');
    }
    return LARDER_OK;
}

/* Where others reach this node. */
static larder_status_t read_address(ldr_cluster_t *c)
{
    static const char *const anywhere[] = {"0.0.0.0", "::", "0"};
    const char *from = c->options.member_address;
    ldr_address_t address;

    if (!ldr_address_parse(from, strlen(from), &address) ||
        strcmp(address.port, "0") == 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "option member_address: '%s': write HOST:PORT, where "
                        "other members reach this node",
                        from);
    }
    for (size_t i = 0; i < sizeof(anywhere) / sizeof(*anywhere); i++) {
        if (strcmp(address.host, anywhere[i]) == 0) {
            return ldr_fail(LARDER_E_INVALID,
                            "option member_address: %s is no address that "
                            "others could connect to",
                            from);
        }
    }
    snprintf(c->self.address, sizeof(c->self.address), "%s", from);
    return LARDER_OK;
}

static larder_status_t etcd_read(ldr_cluster_t *c, const char *text)
{
    ldr_etcd_t *e = ldr_alloc(sizeof(*e));
    size_t servers, name;

    if (e == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the members");
    }
    c->state = e;
    e->c = c;
    ldr_mutex_init(&e->lock);
    text += strncmp(text, "//", 2) == 0 ? 2 : 0;
    servers = strcspn(text, "/");
    larder_status_t st = read_servers(e, text, servers);
    const char *path = text + servers + (text[servers] == '/');
    name = strcspn(path, "?");
    if (st == LARDER_OK &&
        (name == 0 || name >= LDR_MEMBER_NAME || servers == 0)) {
        st = ldr_fail(LARDER_E_INVALID, "option cluster: write "
                                        "etcd://HOST:PORT,.../NAME, with the "
                                        "name of the cluster");
    }
    if (st == LARDER_OK) {
        memcpy(c->name, path, name);
        st = ldr_member_name_check("option cluster: cluster", c->name);
    }
    if (st == LARDER_OK) {
        st = read_query(e, path + name + (path[name] == '?'));
    }
    snprintf(e->prefix, sizeof(e->prefix), "/larder/%s/", c->name);
    return st == LARDER_OK ? read_address(c) : st;
}

const ldr_source_t ldr_source_etcd = {
    "etcd", true, etcd_read, etcd_start, NULL, etcd_step, etcd_close,
};
