/*
 * A cluster of Valkey or Redis servers: which server has which keys.
 *
 * A cluster has 16,384 slots; a key belongs to one of them, by a hash of what
 * stands between its braces. An object's string and the set with its name must
 * change in one transaction, and so must be in one slot: both carry the same
 * tag. There are LDR_VALKEY_TAGS of them, one in each equal part of the slots,
 * so that objects spread evenly over any number of servers that is well below.
 *
 * The map of slots is asked of any server that is known: at first, after a
 * server has said MOVED, and after one could not be reached, since another may
 * have its slots after a failover. While nobody answers, the old map stands.
 * What a map says is only where to ask: a server that does not have a slot says
 * so, and never does what it was asked for.
 *
 * Any worker may call. The map is read and replaced with v->lock, and asked for
 * without it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/valkey.h"

#define AGAIN_NS 100000000u /* between two questions for the map */
#define PATIENCE 4u         /* one server gets this part of the time left */

/* ---- tags ---- */

/* CRC-16/XMODEM, by which clusters hash keys. */
static unsigned hash_slot(const char *text)
{
    unsigned crc = 0;

    for (; *text != '\0'; text++) {
        crc ^= (unsigned)(uint8_t)*text << 8;
        for (unsigned bit = 0; bit < 8; bit++) {
            crc = (crc << 1) ^ ((crc & 0x8000u) != 0 ? 0x1021u : 0);
        }
        crc &= 0xffffu;
    }
    return crc % LDR_VALKEY_SLOTS;
}

void ldr_valkey_make_tags(ldr_valkey_t *v)
{
    char text[sizeof(v->tags[0].text)];

    /* The smallest number that is hashed into the part. */
    for (unsigned n = 0, made = 0; made < LDR_VALKEY_TAGS; n++) {
        snprintf(text, sizeof(text), "%u", n);
        unsigned slot = hash_slot(text);
        unsigned part = slot / (LDR_VALKEY_SLOTS / LDR_VALKEY_TAGS);

        if (v->tags[part].text[0] == '\0') {
            memcpy(v->tags[part].text, text, sizeof(text));
            v->tags[part].slot = (uint16_t)slot;
            made++;
        }
    }
}

unsigned ldr_valkey_tag(const char *name)
{
    return hash_slot(name) % LDR_VALKEY_TAGS;
}

/* ---- servers ---- */

unsigned ldr_valkey_node(ldr_valkey_t *v, const ldr_address_t *address)
{
    ldr_valkey_node_t *made = ldr_alloc(sizeof(*made));
    unsigned node = 0;

    ldr_mutex_lock(&v->lock);
    while (node < v->node_count &&
           (strcmp(v->nodes[node]->address.host, address->host) != 0 ||
            strcmp(v->nodes[node]->address.port, address->port) != 0)) {
        node++;
    }
    if (node == LDR_VALKEY_NODES || (node == v->node_count && made == NULL)) {
        node = LDR_VALKEY_NO_NODE;
    } else if (node == v->node_count) {
        made->address = *address;
        v->nodes[v->node_count++] = made;
        made = NULL;
    }
    ldr_mutex_unlock(&v->lock);
    ldr_free(made);
    return node;
}

/* ---- the map of slots ---- */

typedef struct learning {
    ldr_valkey_t *v;
    const char *host; /* of the server that was asked */
    bool full;        /* there are more servers than fit */
    uint16_t owner[LDR_VALKEY_SLOTS];
} learning_t;

static void learn_range(void *arg, const ldr_valkey_range_t *range)
{
    learning_t *l = arg;
    ldr_address_t address = range->address;

    if (strcmp(address.host, "?") == 0 || strcmp(address.port, "0") == 0) {
        return; /* the cluster does not know it itself */
    }
    if (address.host[0] == '\0') {
        snprintf(address.host, sizeof(address.host), "%s", l->host);
    }
    unsigned node = ldr_valkey_node(l->v, &address);
    l->full |= node == LDR_VALKEY_NO_NODE;
    for (unsigned i = range->from; range->replica == 0 && i <= range->to; i++) {
        l->owner[i] = (uint16_t)node;
    }
}

static void learned(ldr_valkey_t *v, ldr_valkey_kind_t kind,
                    const learning_t *l)
{
    ldr_mutex_lock(&v->lock);
    v->kind = kind;
    v->stale = false;
    if (kind == LDR_VALKEY_CLUSTER) {
        memcpy(v->owner, l->owner, sizeof(v->owner));
    }
    ldr_mutex_unlock(&v->lock);
}

/* What the server's answer means. */
static int judge(ldr_valkey_t *v, const ldr_resp_t *answer, const learning_t *l,
                 bool known)
{
    if (l->full) {
        ldr_fail(LARDER_E_LIMIT, "a cluster of more than %u servers",
                 LDR_VALKEY_NODES);
        return -E2BIG;
    }
    if (answer->error == 0) {
        learned(v, LDR_VALKEY_CLUSTER, l);
        return 0;
    }
    /* It has no clusters, or does not let us ask: one that is a cluster's all
     * the same will say MOVED. */
    if (!known && answer->error != -EBUSY && v->seed_count == 1) {
        learned(v, LDR_VALKEY_SINGLE, l);
        return 0;
    }
    ldr_fail(LARDER_E_IO, "%s port %s: CLUSTER SLOTS: %s", l->host,
             v->nodes[0]->address.port, answer->text);
    return answer->error;
}

static int ask_slots(ldr_valkey_t *v, unsigned node, bool known,
                     uint64_t deadline_ns)
{
    char text[64];
    ldr_text_t ask = ldr_text(text, sizeof(text));
    learning_t *l = ldr_alloc(sizeof(*l));
    ldr_valkey_conn_t *conn = NULL;

    if (l == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory for a cluster's slots");
        return -ENOMEM;
    }
    l->v = v;
    memset(l->owner, 0xff, sizeof(l->owner)); /* LDR_VALKEY_NO_NODE */
    ldr_resp_command(&ask, "CLUSTER", "SLOTS", NULL);
    struct iovec iov = {text, ask.length};
    int error = ldr_valkey_take(v, node, deadline_ns, &conn);
    if (error == 0) {
        ldr_mutex_lock(&v->lock);
        l->host = v->nodes[node]->address.host;
        ldr_mutex_unlock(&v->lock);
        ldr_resp_begin(&conn->resp);
        error = ldr_valkey_send(conn, &iov, 1);
        error =
            error != 0 ? error : ldr_resp_slots(&conn->resp, learn_range, l);
        bool good = error == 0;
        error = good ? judge(v, &conn->resp, l, known) : error;
        ldr_valkey_give(v, conn, good);
    }
    ldr_free(l);
    return error;
}

int ldr_valkey_learn(ldr_valkey_t *v, uint64_t deadline_ns)
{
    uint64_t now = ldr_now_ns(&ldr_clock_real);
    int error = -EBUSY;

    ldr_mutex_lock(&v->lock);
    bool known = v->kind != LDR_VALKEY_UNKNOWN;
    bool asks = !known || (v->kind == LDR_VALKEY_CLUSTER && v->stale &&
                           now - v->learned_ns >= AGAIN_NS);
    unsigned count = v->node_count;
    /* Not always the same one first: it may be the one that is gone. */
    unsigned first = known ? (unsigned)(now / AGAIN_NS) % count : 0;
    if (asks) {
        v->learned_ns = now;
    }
    ldr_mutex_unlock(&v->lock);
    if (!asks) {
        return 0;
    }
    for (unsigned i = 0; i < count && error != 0 && now < deadline_ns; i++) {
        uint64_t until =
            count - i == 1 ? deadline_ns : now + (deadline_ns - now) / PATIENCE;

        error = ask_slots(v, (first + i) % count, known, until);
        now = ldr_now_ns(&ldr_clock_real);
    }
    return known ? 0 : error;
}

void ldr_valkey_doubt(ldr_valkey_t *v)
{
    ldr_mutex_lock(&v->lock);
    v->stale = true;
    if (v->kind == LDR_VALKEY_SINGLE) {
        v->kind = LDR_VALKEY_UNKNOWN; /* is another one at its address? */
    }
    ldr_mutex_unlock(&v->lock);
}

int ldr_valkey_route(ldr_valkey_t *v, unsigned tag, unsigned *node_p)
{
    ldr_mutex_lock(&v->lock);
    unsigned node =
        v->kind == LDR_VALKEY_CLUSTER ? v->owner[v->tags[tag].slot] : 0;
    if (node == LDR_VALKEY_NO_NODE) {
        v->stale = true;
    }
    ldr_mutex_unlock(&v->lock);
    *node_p = node;
    if (node == LDR_VALKEY_NO_NODE) {
        ldr_fail(LARDER_E_IO, "the cluster has no server for slot %u",
                 v->tags[tag].slot);
        return -EBUSY;
    }
    return 0;
}

bool ldr_valkey_redirected(ldr_valkey_t *v, const ldr_valkey_conn_t *conn,
                           unsigned *node_p, bool *ask_p)
{
    const char *text = conn->resp.text;
    bool moved = strncmp(text, "MOVED ", 6) == 0;
    ldr_address_t address = {0};
    char *end;

    *ask_p = strncmp(text, "ASK ", 4) == 0;
    if (!moved && !*ask_p) {
        return false;
    }
    unsigned long slot = strtoul(strchr(text, ' ') + 1, &end, 10);
    const char *port = strrchr(end, ':');
    if (slot >= LDR_VALKEY_SLOTS || *end != ' ' || port == NULL ||
        (size_t)(port - end) > sizeof(address.host) ||
        strlen(port + 1) >= sizeof(address.port)) {
        return false;
    }
    memcpy(address.host, end + 1, (size_t)(port - end - 1));
    snprintf(address.port, sizeof(address.port), "%s", port + 1);
    if (address.host[0] == '\0') { /* on the same host */
        ldr_mutex_lock(&v->lock);
        memcpy(address.host, v->nodes[conn->node]->address.host,
               sizeof(address.host));
        ldr_mutex_unlock(&v->lock);
    }
    *node_p = ldr_valkey_node(v, &address);
    if (*node_p == LDR_VALKEY_NO_NODE) {
        return false;
    }
    if (moved) {
        ldr_mutex_lock(&v->lock);
        v->owner[slot] = (uint16_t)*node_p;
        v->stale = true;
        ldr_mutex_unlock(&v->lock);
    }
    return true;
}
