#include "sim/simetcd.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/log.h"

#define KEYS_MAX 256u
#define LEASES_MAX 4096u
#define EVENTS_MAX 65536u
#define TEXT 2048u
#define SLICE_NS (50 * SIM_MS)
#define CONNECT_NS (3000 * SIM_MS)

typedef struct kv {
    char key[256], value[TEXT];
    uint64_t lease, created, modified;
} kv_t;

typedef struct lease {
    uint64_t id, ttl_ns, until_ns;
} lease_t;

typedef struct event {
    uint64_t revision;
    bool gone;
    kv_t kv;
} event_t;

typedef struct way {
    sim_etcd_t *etcd;
    unsigned node;
    ldr_http_t http;
} way_t;

struct sim_etcd {
    sim_net_t *net;
    uint64_t revision, compacted, next_lease, epoch, calls;
    kv_t keys[KEYS_MAX];
    unsigned key_count;
    lease_t leases[LEASES_MAX];
    unsigned lease_count;
    event_t *events[EVENTS_MAX];
    unsigned event_count;
    bool stopped[SIM_ETCD_SERVERS], down[SIM_ETCD_SERVERS];
    bool mute[SIM_ETCD_SERVERS], cut[SIM_ETCD_NODES];
    way_t ways[SIM_ETCD_NODES];
};

/* ---- the store ---- */

static void record(sim_etcd_t *e, const kv_t *kv, bool gone)
{
    event_t *event = calloc(1, sizeof(*event));

    if (event == NULL || e->event_count == EVENTS_MAX) {
        abort();
    }
    *event = (event_t){e->revision, gone, *kv};
    e->events[e->event_count++] = event;
}

static kv_t *find(sim_etcd_t *e, const char *key)
{
    for (unsigned i = 0; i < e->key_count; i++) {
        if (strcmp(e->keys[i].key, key) == 0) {
            return &e->keys[i];
        }
    }
    return NULL;
}

static void put(sim_etcd_t *e, const char *key, const char *value,
                uint64_t lease)
{
    kv_t *kv = find(e, key);

    e->revision++;
    if (kv == NULL) {
        if (e->key_count == KEYS_MAX) {
            abort();
        }
        kv = &e->keys[e->key_count++];
        memset(kv, 0, sizeof(*kv));
        snprintf(kv->key, sizeof(kv->key), "%s", key);
        kv->created = e->revision;
    }
    snprintf(kv->value, sizeof(kv->value), "%s", value);
    kv->modified = e->revision;
    kv->lease = lease;
    record(e, kv, false);
}

static void delete_at(sim_etcd_t *e, unsigned i)
{
    kv_t kv = e->keys[i];

    e->revision++;
    kv.modified = e->revision;
    kv.value[0] = '\0';
    record(e, &kv, true);
    e->keys[i] = e->keys[--e->key_count];
}

static void end_lease(sim_etcd_t *e, unsigned i)
{
    uint64_t id = e->leases[i].id;

    for (unsigned k = 0; k < e->key_count;) {
        if (e->keys[k].lease == id) {
            delete_at(e, k);
        } else {
            k++;
        }
    }
    e->leases[i] = e->leases[--e->lease_count];
}

static bool has_quorum(const sim_etcd_t *e)
{
    unsigned well = 0;

    for (unsigned i = 0; i < SIM_ETCD_SERVERS; i++) {
        well += !e->stopped[i] && !e->down[i];
    }
    return well > SIM_ETCD_SERVERS / 2;
}

static void expire(sim_etcd_t *e)
{
    for (unsigned i = 0; has_quorum(e) && i < e->lease_count;) {
        if (e->leases[i].until_ns <= sim_now(e->net)) {
            end_lease(e, i);
        } else {
            i++;
        }
    }
}

/* ---- text ---- */

typedef struct out {
    const ldr_http_request_t *r;
    bool wanted;
} out_t;

static void say(out_t *o, const char *text)
{
    /* In two pieces: nobody may count on whole answers. */
    size_t bytes = strlen(text), half = bytes / 2;

    o->wanted = o->wanted && (half == 0 || o->r->take(o->r->arg, text, half)) &&
                o->r->take(o->r->arg, text + half, bytes - half);
}

static void base64(const char *text, char *out)
{
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)text,
                    (int)strlen(text));
}

static void unbase64(const char *in, char *out, size_t size)
{
    unsigned char raw[2 * TEXT];
    size_t bytes = strlen(in);
    int got = bytes < sizeof(raw)
                  ? EVP_DecodeBlock(raw, (const void *)in, (int)bytes)
                  : -1;

    if (got < 0) {
        abort();
    }
    size_t length = (size_t)got - (bytes > 0 && in[bytes - 1] == '=') -
                    (bytes > 1 && in[bytes - 2] == '=');
    if (length >= size) {
        abort();
    }
    memcpy(out, raw, length);
    out[length] = '\0';
}

static void kv_text(const kv_t *kv, char *out, size_t size)
{
    char key[512], value[2 * TEXT];

    base64(kv->key, key);
    base64(kv->value, value);
    snprintf(out, size,
             "{\"key\":\"%s\",\"create_revision\":\"%llu\","
             "\"mod_revision\":\"%llu\",\"version\":\"1\",\"value\":\"%s\","
             "\"lease\":\"%llu\"}",
             key, (unsigned long long)kv->created,
             (unsigned long long)kv->modified, value,
             (unsigned long long)kv->lease);
}

static void header_text(const sim_etcd_t *e, char *out, size_t size)
{
    snprintf(out, size,
             "\"header\":{\"cluster_id\":\"1\",\"member_id\":\"2\","
             "\"revision\":\"%llu\",\"raft_term\":\"2\"}",
             (unsigned long long)e->revision);
}

/* What a request may have, wherever it stands in it. */
typedef struct request {
    char key[256], end[256], value[TEXT];
    uint64_t id, ttl, lease, mod_revision, start, newer;
} request_t;

static void read_request(ldr_json_reader_t *r, request_t *q)
{
    char name[64], text[2 * TEXT];

    ldr_json_open(r, '{');
    while (ldr_json_name(r, name, sizeof(name))) {
        if (strcmp(name, "key") == 0 || strcmp(name, "range_end") == 0 ||
            strcmp(name, "value") == 0) {
            if (!ldr_json_read_text(r, text, sizeof(text))) {
                abort();
            }
            unbase64(text,
                     name[0] == 'k'   ? q->key
                     : name[0] == 'r' ? q->end
                                      : q->value,
                     name[0] == 'v' ? TEXT : 256);
        } else if (strcmp(name, "ID") == 0) {
            ldr_json_u64(r, &q->id);
        } else if (strcmp(name, "TTL") == 0) {
            ldr_json_u64(r, &q->ttl);
        } else if (strcmp(name, "lease") == 0) {
            ldr_json_u64(r, &q->lease);
        } else if (strcmp(name, "mod_revision") == 0) {
            ldr_json_u64(r, &q->mod_revision);
        } else if (strcmp(name, "start_revision") == 0) {
            ldr_json_u64(r, &q->start);
        } else if (strcmp(name, "min_mod_revision") == 0) {
            ldr_json_u64(r, &q->newer);
        } else if (strcmp(name, "compare") == 0 ||
                   strcmp(name, "success") == 0 ||
                   strcmp(name, "failure") == 0) {
            ldr_json_open(r, '[');
            while (ldr_json_item(r)) {
                read_request(r, q);
            }
        } else if (strcmp(name, "create_request") == 0 ||
                   strcmp(name, "request_put") == 0 ||
                   strcmp(name, "request_range") == 0) {
            read_request(r, q);
        } else {
            ldr_json_skip(r);
        }
    }
}

/* ---- calls ---- */

static long do_range(sim_etcd_t *e, const request_t *q, out_t *o)
{
    char text[4 * TEXT], header[256];
    unsigned count = 0, shown = 0;

    header_text(e, header, sizeof(header));
    snprintf(text, sizeof(text), "{%s,\"kvs\":[", header);
    say(o, text);
    for (unsigned i = 0; i < e->key_count; i++) {
        const kv_t *kv = &e->keys[i];

        if (strcmp(kv->key, q->key) < 0 || strcmp(kv->key, q->end) >= 0) {
            continue;
        }
        count++;
        if (kv->modified >= q->newer) {
            say(o, shown++ > 0 ? "," : "");
            kv_text(kv, text, sizeof(text));
            say(o, text);
        }
    }
    snprintf(text, sizeof(text), "],\"count\":\"%u\"}", count);
    say(o, text);
    return 200;
}

static long do_txn(sim_etcd_t *e, const request_t *q, out_t *o)
{
    kv_t *kv = find(e, q->key);
    bool good = (kv != NULL ? kv->modified : 0) == q->mod_revision;
    bool leased = false;
    char text[4 * TEXT], header[256], inner[3 * TEXT] = "";

    for (unsigned i = 0; i < e->lease_count; i++) {
        leased = leased || e->leases[i].id == q->lease;
    }
    if (good && !leased) {
        say(o, "{\"error\":\"etcdserver: requested lease not found\","
               "\"code\":5}");
        return 404;
    }
    if (good) {
        put(e, q->key, q->value, q->lease);
    } else if (kv != NULL) {
        kv_text(kv, inner, sizeof(inner));
    }
    header_text(e, header, sizeof(header));
    if (good) {
        snprintf(text, sizeof(text),
                 "{%s,\"succeeded\":true,\"responses\":[{\"response_put\":"
                 "{\"header\":{\"revision\":\"%llu\"}}}]}",
                 header, (unsigned long long)e->revision);
    } else {
        snprintf(text, sizeof(text),
                 "{%s,\"responses\":[{\"response_range\":{\"header\":{},"
                 "\"kvs\":[%s],\"count\":\"1\"}}]}",
                 header, inner);
    }
    say(o, text);
    return 200;
}

static long do_lease(sim_etcd_t *e, const char *path, const request_t *q,
                     out_t *o)
{
    char text[512], header[256];
    lease_t *lease = NULL;

    header_text(e, header, sizeof(header));
    if (strcmp(path, "lease/grant") == 0) {
        if (e->lease_count == LEASES_MAX) {
            abort();
        }
        lease = &e->leases[e->lease_count++];
        *lease = (lease_t){++e->next_lease, q->ttl * 1000 * SIM_MS,
                           sim_now(e->net) + q->ttl * 1000 * SIM_MS};
        snprintf(text, sizeof(text), "{%s,\"ID\":\"%llu\",\"TTL\":\"%llu\"}",
                 header, (unsigned long long)lease->id,
                 (unsigned long long)q->ttl);
        say(o, text);
        return 200;
    }
    unsigned i = 0;
    while (i < e->lease_count && e->leases[i].id != q->id) {
        i++;
    }
    if (strcmp(path, "lease/revoke") == 0) {
        if (i < e->lease_count) {
            end_lease(e, i);
        }
        say(o, "{}");
        return 200;
    }
    if (i < e->lease_count) {
        lease = &e->leases[i];
        lease->until_ns = sim_now(e->net) + lease->ttl_ns;
        snprintf(text, sizeof(text),
                 "{\"result\":{%s,\"ID\":\"%llu\",\"TTL\":\"%llu\"}}\n", header,
                 (unsigned long long)q->id,
                 (unsigned long long)(lease->ttl_ns / 1000 / SIM_MS));
    } else {
        snprintf(text, sizeof(text), "{\"result\":{%s,\"ID\":\"%llu\"}}\n",
                 header, (unsigned long long)q->id);
    }
    say(o, text);
    return 200;
}

/* ---- watches ---- */

static void say_event(sim_etcd_t *e, const event_t *event, out_t *o)
{
    char text[4 * TEXT], kv[3 * TEXT];

    (void)e;
    kv_text(&event->kv, kv, sizeof(kv));
    snprintf(text, sizeof(text),
             "{\"result\":{\"header\":{\"revision\":\"%llu\"},\"events\":[{%s"
             "\"kv\":%s}]}}\n",
             (unsigned long long)event->revision,
             event->gone ? "\"type\":\"DELETE\"," : "", kv);
    say(o, text);
}

static bool is_canceled(const ldr_http_request_t *r)
{
    return r->canceled != NULL &&
           __atomic_load_n(r->canceled, __ATOMIC_ACQUIRE);
}

static int do_watch(sim_etcd_t *e, unsigned node, unsigned server,
                    const request_t *q, out_t *o)
{
    uint64_t epoch = e->epoch, next = q->start;
    unsigned at = 0;
    char text[512], header[256];

    header_text(e, header, sizeof(header));
    snprintf(text, sizeof(text), "{\"result\":{%s,\"created\":true}}\n",
             header);
    say(o, text);
    if (q->start <= e->compacted) {
        snprintf(text, sizeof(text),
                 "{\"result\":{%s,\"canceled\":true,\"compact_revision\":"
                 "\"%llu\"}}\n",
                 header, (unsigned long long)e->compacted);
        say(o, text);
        return o->wanted ? 0 : -ECANCELED;
    }
    while (o->wanted) {
        if (is_canceled(o->r)) {
            return -ECANCELED;
        }
        if (e->down[server] || (epoch != e->epoch && !e->cut[node])) {
            return e->down[server] ? -ECONNRESET : 0;
        }
        expire(e);
        if (!e->stopped[server] && !e->mute[server] && !e->cut[node]) {
            for (; at < e->event_count && o->wanted; at++) {
                const char *key = e->events[at]->kv.key;

                if (e->events[at]->revision >= next &&
                    strcmp(key, q->key) >= 0 && strcmp(key, q->end) < 0) {
                    next = e->events[at]->revision;
                    say_event(e, e->events[at], o);
                }
            }
        }
        sim_sleep(e->net, SLICE_NS);
    }
    return -ECANCELED;
}

/* ---- HTTP ---- */

/* Until the server answers; 0, or why it does not. */
static int reach(sim_etcd_t *e, unsigned node, unsigned server,
                 const ldr_http_request_t *r)
{
    uint64_t limit_ns = r->timeout_ms > 0 ? r->timeout_ms * SIM_MS : CONNECT_NS;
    uint64_t until_ns = sim_now(e->net) + limit_ns;

    sim_sleep(e->net, (1 + ldr_rand_below(sim_rand(e->net), 20)) * SIM_MS);
    for (;;) {
        if (is_canceled(r)) {
            return -ECANCELED;
        }
        if (e->down[server] && !e->cut[node]) {
            ldr_fail(LARDER_E_OFFLINE, "e%u: connection refused", server);
            return -ECONNREFUSED;
        }
        if (!e->stopped[server] && !e->cut[node] && has_quorum(e)) {
            return 0;
        }
        if (sim_now(e->net) >= until_ns) {
            ldr_fail(LARDER_E_OFFLINE, "e%u: no answer", server);
            return -ETIMEDOUT;
        }
        sim_sleep(e->net, SLICE_NS);
    }
}

static int sim_post(void *arg, const ldr_http_request_t *r, long *status_p)
{
    way_t *way = arg;
    sim_etcd_t *e = way->etcd;
    unsigned server = 0;
    char path[64] = "";
    request_t *q = calloc(1, sizeof(*q));
    ldr_json_reader_t reader = ldr_json_reader(r->body, strlen(r->body));
    out_t o = {r, true};

    *status_p = 0;
    if (q == NULL ||
        sscanf(r->url, "http://e%u:1/v3/%63s", &server, path) != 2) {
        abort();
    }
    e->calls++;
    int error = reach(e, way->node, server, r);
    if (error == 0) {
        *status_p = 200;
        expire(e);
        read_request(&reader, q);
        if (reader.broken) {
            abort();
        }
        if (strcmp(path, "watch") == 0) {
            error = do_watch(e, way->node, server, q, &o);
        } else if (strcmp(path, "kv/range") == 0) {
            *status_p = do_range(e, q, &o);
        } else if (strcmp(path, "kv/put") == 0) {
            put(e, q->key, q->value, 0);
            say(&o, "{}");
        } else if (strcmp(path, "kv/deleterange") == 0) {
            sim_etcd_put(e, q->key, NULL);
            say(&o, "{}");
        } else if (strcmp(path, "kv/txn") == 0) {
            *status_p = do_txn(e, q, &o);
        } else {
            *status_p = do_lease(e, path, q, &o);
        }
        /* Carried out, and the answer is lost on its way. */
        if (error == 0 && ldr_rand_below(sim_rand(e->net), 100) == 0) {
            ldr_fail(LARDER_E_OFFLINE, "e%u: connection reset", server);
            error = -ECONNRESET;
        }
    }
    free(q);
    return error;
}

/* ---- control ---- */

sim_etcd_t *sim_etcd_new(sim_net_t *net)
{
    sim_etcd_t *e = calloc(1, sizeof(*e));

    if (e == NULL) {
        abort();
    }
    e->net = net;
    e->revision = 1;
    for (unsigned i = 0; i < SIM_ETCD_NODES; i++) {
        e->ways[i] = (way_t){e, i, {sim_post, &e->ways[i]}};
    }
    return e;
}

void sim_etcd_free(sim_etcd_t *e)
{
    for (unsigned i = 0; i < e->event_count; i++) {
        free(e->events[i]);
    }
    free(e);
}

const char *sim_etcd_url(void)
{
    return "etcd://e0:1,e1:1,e2:1/sim";
}

const ldr_http_t *sim_etcd_http(sim_etcd_t *e, unsigned node)
{
    return &e->ways[node].http;
}

void sim_etcd_stop(sim_etcd_t *e, unsigned server, bool stopped)
{
    e->stopped[server] = stopped;
}

void sim_etcd_down(sim_etcd_t *e, unsigned server, bool down)
{
    e->down[server] = down;
}

void sim_etcd_mute(sim_etcd_t *e, unsigned server, bool mute)
{
    e->mute[server] = mute;
}

void sim_etcd_cut(sim_etcd_t *e, unsigned node, bool cut)
{
    e->cut[node] = cut;
}

void sim_etcd_end_watches(sim_etcd_t *e)
{
    e->epoch++;
}

void sim_etcd_compact(sim_etcd_t *e)
{
    e->compacted = e->revision;
}

void sim_etcd_expire(sim_etcd_t *e)
{
    while (e->lease_count > 0) {
        end_lease(e, 0);
    }
}

void sim_etcd_put(sim_etcd_t *e, const char *key, const char *value)
{
    kv_t *kv = find(e, key);

    if (value != NULL) {
        put(e, key, value, 0);
    } else if (kv != NULL) {
        delete_at(e, (unsigned)(kv - e->keys));
    }
}

unsigned sim_etcd_keys(sim_etcd_t *e)
{
    expire(e);
    return e->key_count;
}

uint64_t sim_etcd_calls(const sim_etcd_t *e)
{
    return e->calls;
}
