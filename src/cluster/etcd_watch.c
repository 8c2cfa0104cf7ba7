/*
 * All keys of the cluster, read once and then kept up to date by etcd's watch.
 * A stream that ends, for whatever reason (a server that stopped, history that
 * was compacted), begins again with reading all keys: nothing is ever missed by
 * it, and no event needs to be remembered.
 *
 * The stream is read in a thread of its own (larder-etcd). What it has read is
 * changed and collected with e->lock, which no call is made under.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "cluster/etcd.h"

#define NS_PER_MS UINT64_C(1000000)
#define AGAIN_MIN_MS 100u
#define AGAIN_MAX_MS 3000u
#define LINE_MAX_BYTES ((size_t)64 << 20)

/* ---- the keys ---- */

static const char members_part[] = "members/", drain_part[] = "drain/";

/* NULL: none of ours. */
static const char *name_of_key(const ldr_etcd_t *e, const char *key,
                               bool *drain_p)
{
    size_t prefix = strlen(e->prefix);

    if (strncmp(key, e->prefix, prefix) != 0) {
        return NULL;
    }
    key += prefix;
    *drain_p = strncmp(key, drain_part, sizeof(drain_part) - 1) == 0;
    if (!*drain_p &&
        strncmp(key, members_part, sizeof(members_part) - 1) != 0) {
        return NULL;
    }
    key += *drain_p ? sizeof(drain_part) - 1 : sizeof(members_part) - 1;
    return ldr_tenant_name_ok(key) ? key : NULL;
}

static ldr_etcd_entry_t *entry_find(ldr_etcd_t *e, const char *name, bool drain)
{
    for (size_t i = 0; i < e->count; i++) {
        if (e->entries[i].drain == drain &&
            strcmp(e->entries[i].name, name) == 0) {
            return &e->entries[i];
        }
    }
    return NULL;
}

static void say_refused(ldr_etcd_t *e, const ldr_etcd_entry_t *one,
                        const char *before)
{
    if (one->refused != NULL &&
        (before == NULL || strcmp(before, one->refused) != 0)) {
        ldr_error(&e->c->log, "cluster: member '%s' is refused: %s", one->name,
                  one->refused);
    }
}

/* A key as it is now; fresh: it was not there before. With the lock; false: no
 * memory. */
static bool put_key(ldr_etcd_t *e, const ldr_etcd_kv_t *kv, bool fresh)
{
    bool drain = false;
    const char *name = name_of_key(e, kv->key, &drain);

    if (name == NULL) {
        e->foreign += fresh;
        return true;
    }
    ldr_etcd_entry_t *one = entry_find(e, name, drain);
    const char *before = one != NULL ? one->refused : NULL;
    if (one == NULL) {
        if (!ldr_grow(&e->entries, &e->capacity, e->count + 1, sizeof(*one))) {
            return false;
        }
        one = &e->entries[e->count++];
        memset(one, 0, sizeof(*one));
        snprintf(one->name, sizeof(one->name), "%.63s", name);
        one->drain = drain;
    }
    one->created = kv->created;
    if (!drain) {
        one->refused = ldr_etcd_parse(e->c, kv->value, &one->member);
        if (one->refused == NULL && strcmp(one->member.name, name) != 0) {
            one->refused = "its key has the name of another";
        }
        say_refused(e, one, before);
    }
    return true;
}

static void remove_key(ldr_etcd_t *e, const ldr_etcd_kv_t *kv)
{
    bool drain = false;
    const char *name = name_of_key(e, kv->key, &drain);
    ldr_etcd_entry_t *one = name != NULL ? entry_find(e, name, drain) : NULL;

    if (one != NULL) {
        *one = e->entries[--e->count];
    } else if (name == NULL && e->foreign > 0) {
        e->foreign--;
    }
}

/* ---- an answer of them ---- */

typedef struct order {
    const ldr_etcd_entry_t *entry;
} order_t;

/* By address; of one address the newest last. */
static int by_address(const void *a, const void *b)
{
    const ldr_etcd_entry_t *x = ((const order_t *)a)->entry;
    const ldr_etcd_entry_t *y = ((const order_t *)b)->entry;
    int order = strcmp(x->member.address, y->member.address);

    return order != 0 ? order
                      : (x->created > y->created) - (x->created < y->created);
}

/* The members of an answer, into e->answer; of two with one address the
 * newer one, whose node has that address now. With the lock. */
static uint32_t members_collect(ldr_etcd_t *e, uint64_t *refused_p,
                                bool *drain_p)
{
    order_t *order = ldr_alloc((e->count + 1) * sizeof(*order));
    uint32_t count = 0, listed = 0;

    *refused_p = 0;
    *drain_p = entry_find(e, e->c->self.name, true) != NULL;
    if (order == NULL || !ldr_grow(&e->answer, &e->answer_capacity,
                                   e->count + 1, sizeof(*e->answer))) {
        ldr_free(order);
        return UINT32_MAX;
    }
    for (size_t i = 0; i < e->count; i++) {
        if (!e->entries[i].drain && e->entries[i].refused == NULL) {
            order[count++].entry = &e->entries[i];
        }
        *refused_p += !e->entries[i].drain && e->entries[i].refused != NULL;
    }
    qsort(order, count, sizeof(*order), by_address);
    for (uint32_t i = 0; i < count; i++) {
        if (i + 1 < count && strcmp(order[i].entry->member.address,
                                    order[i + 1].entry->member.address) == 0) {
            (*refused_p)++;
            continue;
        }
        e->answer[listed++] = order[i].entry->member;
    }
    ldr_free(order);
    return listed;
}

void ldr_etcd_answer(ldr_etcd_t *e)
{
    ldr_cluster_t *c = e->c;
    uint64_t refused = 0;
    bool drain = false;
    uint32_t count = UINT32_MAX;

    ldr_mutex_lock(&e->lock);
    if (e->dirty) {
        count = members_collect(e, &refused, &drain);
        e->dirty = count == UINT32_MAX;
    }
    ldr_mutex_unlock(&e->lock);
    if (count == UINT32_MAX) {
        return;
    }
    ldr_mutex_lock(&c->lock);
    c->refused = refused;
    c->drained = drain;
    ldr_mutex_unlock(&c->lock);
    ldr_cluster_answer(c, e->answer, count);
}

bool ldr_etcd_has_own(ldr_etcd_t *e, uint64_t revision)
{
    ldr_mutex_lock(&e->lock);
    const ldr_etcd_entry_t *own = entry_find(e, e->c->self.name, false);
    bool has = e->revision < revision || (own != NULL && own->refused == NULL &&
                                          own->member.run == e->c->self.run);
    ldr_mutex_unlock(&e->lock);
    return has;
}

static void note_change(ldr_etcd_t *e)
{
    e->dirty = true;
    ldr_mutex_unlock(&e->lock);
    ldr_cluster_wake(e->c);
    ldr_mutex_lock(&e->lock);
}

/* ---- reading all keys ---- */

static void range_body(const ldr_etcd_t *e, char *body, size_t size)
{
    char key[LDR_ETCD_BASE64(LDR_ETCD_KEY)], end[LDR_ETCD_BASE64(LDR_ETCD_KEY)];
    char last[LDR_ETCD_KEY];

    snprintf(last, sizeof(last), "%s", e->prefix);
    last[strlen(last) - 1]++; /* '/' and one more: all that begin with it */
    ldr_etcd_base64(e->prefix, key);
    ldr_etcd_base64(last, end);
    snprintf(body, size, "\"key\":\"%s\",\"range_end\":\"%s\"", key, end);
}

static bool read_all(ldr_etcd_t *e)
{
    ldr_json_reader_t r =
        ldr_json_reader(e->watcher.reply, e->watcher.reply_bytes);
    uint64_t revision = 0;
    bool memory = true;
    ldr_etcd_kv_t *kv = ldr_alloc(sizeof(*kv));
    char name[32];

    if (kv == NULL) {
        return false;
    }
    ldr_mutex_lock(&e->lock);
    e->count = 0;
    e->foreign = 0;
    ldr_json_open(&r, '{');
    while (ldr_json_name(&r, name, sizeof(name))) {
        if (strcmp(name, "header") == 0) {
            revision = ldr_etcd_read_header(&r);
        } else if (strcmp(name, "kvs") == 0) {
            ldr_json_open(&r, '[');
            while (ldr_json_item(&r)) {
                ldr_etcd_read_kv(&r, kv);
                memory = memory && put_key(e, kv, true);
            }
        } else {
            ldr_json_skip(&r);
        }
    }
    bool good = !r.broken && memory && revision > 0;
    e->revision = good ? revision : 0;
    if (good) {
        note_change(e);
    }
    ldr_mutex_unlock(&e->lock);
    ldr_free(kv);
    if (!good) {
        ldr_fail(LARDER_E_OFFLINE, "an answer of etcd cannot be read");
    }
    return good;
}

/* ---- the stream ---- */

/* {"type":"DELETE","kv":{...}}; a put has no type. With the lock. */
static void read_event(ldr_etcd_t *e, ldr_json_reader_t *r, ldr_etcd_kv_t *kv)
{
    char name[32], type[16] = "";

    memset(kv, 0, sizeof(*kv));
    ldr_json_open(r, '{');
    while (ldr_json_name(r, name, sizeof(name))) {
        if (strcmp(name, "type") == 0) {
            ldr_json_read_text(r, type, sizeof(type));
        } else if (strcmp(name, "kv") == 0) {
            ldr_etcd_read_kv(r, kv);
        } else {
            ldr_json_skip(r);
        }
    }
    if (r->broken) {
        return;
    }
    if (strcmp(type, "DELETE") == 0) {
        remove_key(e, kv);
    } else if (!put_key(e, kv, kv->created == kv->modified)) {
        r->broken = true; /* no memory: the stream begins again */
    }
}

/* {"header":..., "created":true, "canceled":true, "events":[...]} */
static void read_result(ldr_etcd_t *e, ldr_json_reader_t *r, ldr_etcd_kv_t *kv)
{
    uint64_t revision = 0;
    bool canceled = false, created = false;
    unsigned events = 0;
    char name[32];

    ldr_json_open(r, '{');
    while (ldr_json_name(r, name, sizeof(name))) {
        if (strcmp(name, "header") == 0) {
            revision = ldr_etcd_read_header(r);
        } else if (strcmp(name, "canceled") == 0) {
            ldr_json_bool(r, &canceled);
        } else if (strcmp(name, "created") == 0) {
            ldr_json_bool(r, &created);
        } else if (strcmp(name, "events") == 0) {
            ldr_json_open(r, '[');
            while (ldr_json_item(r)) {
                read_event(e, r, kv);
                events++;
            }
        } else {
            ldr_json_skip(r);
        }
    }
    /* Its history is compacted, or it ends for another reason. */
    e->ended = e->ended || canceled || r->broken;
    if (r->broken) {
        return;
    }
    e->watching = !canceled;
    /* The revision of the answer that says it was made is that of the server,
     * whatever the stream has still to tell. */
    if (!created && revision > e->revision) {
        e->revision = revision;
    }
    if (events > 0) {
        note_change(e);
    }
}

static void read_line(ldr_etcd_t *e)
{
    ldr_json_reader_t r = ldr_json_reader(e->line, e->line_bytes);
    ldr_etcd_kv_t *kv = ldr_alloc(sizeof(*kv));
    bool result = false;
    char name[32];

    ldr_mutex_lock(&e->lock);
    ldr_json_open(&r, '{');
    while (kv != NULL && ldr_json_name(&r, name, sizeof(name))) {
        if (strcmp(name, "result") == 0) {
            read_result(e, &r, kv);
            result = true;
        } else {
            ldr_json_skip(&r);
        }
    }
    e->ended = e->ended || !result || r.broken; /* {"error":...} */
    ldr_mutex_unlock(&e->lock);
    ldr_free(kv);
}

/* Bytes of the stream: an answer is one line. */
static bool take_stream(void *arg, const char *bytes, size_t count)
{
    ldr_etcd_t *e = arg;

    while (count > 0 && !e->ended) {
        const char *end = memchr(bytes, '\n', count);
        size_t part = end != NULL ? (size_t)(end - bytes) : count;

        if (part > LINE_MAX_BYTES - e->line_bytes ||
            !ldr_grow(&e->line, &e->line_capacity, e->line_bytes + part + 1,
                      1)) {
            return false;
        }
        memcpy(e->line + e->line_bytes, bytes, part);
        e->line_bytes += part;
        if (end != NULL) {
            if (e->line_bytes > 0) {
                read_line(e);
            }
            e->line_bytes = 0;
            part++;
        }
        bytes += part;
        count -= part;
    }
    return !e->ended;
}

/* Reads all keys, and then what changes. False: that did not begin. */
static bool read_and_watch(ldr_etcd_t *e)
{
    char range[2 * LDR_ETCD_KEY + 64], body[2 * LDR_ETCD_KEY + 256];

    range_body(e, range, sizeof(range));
    snprintf(body, sizeof(body), "{%s}", range);
    if (!ldr_etcd_call(e, &e->watcher, "kv/range", body) || !read_all(e)) {
        return false;
    }
    snprintf(body, sizeof(body),
             "{\"create_request\":{%s,\"start_revision\":\"%llu\"}}", range,
             (unsigned long long)e->revision + 1);
    e->line_bytes = 0;
    e->ended = false;
    ldr_etcd_stream(e, &e->watcher, "watch", body, take_stream, e);
    ldr_mutex_lock(&e->lock);
    bool began = e->watching;
    e->watching = false;
    ldr_mutex_unlock(&e->lock);
    return began;
}

static bool is_stopping(const ldr_etcd_t *e)
{
    return __atomic_load_n(&e->c->stop, __ATOMIC_ACQUIRE);
}

/* In slices, so that closing need not wait for it. */
static void pause_ms(ldr_etcd_t *e, uint64_t ms)
{
    for (; ms > 0 && !is_stopping(e); ms -= ms < 50 ? ms : 50) {
        e->c->threads->sleep(e->c->threads->arg, 50 * NS_PER_MS);
    }
}

void *ldr_etcd_watch(void *etcd)
{
    ldr_etcd_t *e = etcd;
    uint64_t again_ms = AGAIN_MIN_MS;

    while (!is_stopping(e)) {
        bool good = read_and_watch(e);

        ldr_etcd_other(e, &e->watcher);
        if (is_stopping(e)) {
            break;
        }
        if (!good) {
            ldr_cluster_source_bad(e->c);
        }
        again_ms = good ? AGAIN_MIN_MS : again_ms * 2;
        again_ms = again_ms < AGAIN_MAX_MS ? again_ms : AGAIN_MAX_MS;
        ldr_mutex_lock(&e->c->lock);
        uint64_t wait_ms =
            again_ms / 2 + ldr_rand_below(&e->c->rand, again_ms / 2 + 1);
        ldr_mutex_unlock(&e->c->lock);
        pause_ms(e, wait_ms);
        __atomic_store_n(&e->cancel, is_stopping(e), __ATOMIC_RELEASE);
    }
    return NULL;
}
