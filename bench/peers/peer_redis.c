/* Redis and Valkey: RESP, a batch as a pipeline of SET or GET. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

#define AHEAD_BYTES ((size_t)8 << 20) /* asked for before they are read */

struct peer {
    conn_t conn;
    size_t size;
    char head[BATCH_MAX][128];
    struct iovec pieces[3 * BATCH_MAX];
};

static peer_t *redis_open(const char *where, size_t size)
{
    peer_t *peer = must_alloc(sizeof(*peer));

    conn_open(&peer->conn, where);
    peer->size = size;
    return peer;
}

static int key_of(char key[KEY_MAX], const value_t *v)
{
    return snprintf(key, KEY_MAX, "v%u:%u", v->generation, v->number);
}

/* A command of one word and a key, as piece i. */
static void key_command(peer_t *peer, unsigned i, const char *word,
                        const value_t *value)
{
    char key[KEY_MAX];
    int length = key_of(key, value);

    peer->pieces[i].iov_base = peer->head[i];
    peer->pieces[i].iov_len = (size_t)snprintf(
        peer->head[i], sizeof(peer->head[i]),
        "*2\r\n$%zu\r\n%s\r\n$%d\r\n%s\r\n", strlen(word), word, length, key);
}

static void redis_put(peer_t *peer, const value_t *values, unsigned count)
{
    char key[KEY_MAX];

    for (unsigned i = 0; i < count; i++) {
        struct iovec *p = &peer->pieces[3 * i];
        int length = key_of(key, &values[i]);

        p[0].iov_base = peer->head[i];
        p[0].iov_len =
            (size_t)snprintf(peer->head[i], sizeof(peer->head[i]),
                             "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%zu\r\n", length,
                             key, peer->size);
        p[1] = (struct iovec){values[i].data, peer->size};
        p[2] = (struct iovec){"\r\n", 2};
    }
    conn_send(&peer->conn, peer->pieces, 3 * count);
    for (unsigned i = 0; i < count; i++) {
        const char *line = conn_line(&peer->conn);

        if (strcmp(line, "+OK") != 0) {
            fail("SET: %s", line);
        }
    }
}

static void receive_value(peer_t *peer, const value_t *value)
{
    const char *line = conn_line(&peer->conn);
    char end[2];

    if (line[0] != '$' ||
        strtoll(line + 1, NULL, 10) != (long long)peer->size) {
        fail("GET: %s instead of %zu bytes", line, peer->size);
    }
    conn_receive(&peer->conn, value->data, peer->size);
    conn_receive(&peer->conn, end, sizeof(end));
}

/* The server copies every reply that it cannot send at once: with more than a
 * few MiB asked for ahead it slows down to a third. */
static void redis_get(peer_t *peer, const value_t *values, unsigned count)
{
    size_t fits = AHEAD_BYTES / peer->size;
    unsigned ahead = fits < 2 ? 2 : fits > count ? count : (unsigned)fits;
    unsigned sent = 0;

    for (unsigned i = 0; i < count; i++) {
        unsigned first = sent;

        while (sent < count && sent < i + ahead) {
            key_command(peer, sent, "GET", &values[sent]);
            sent++;
        }
        conn_send(&peer->conn, &peer->pieces[first], sent - first);
        receive_value(peer, &values[i]);
    }
}

static void redis_remove(peer_t *peer, const value_t *values, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        key_command(peer, i, "DEL", &values[i]);
    }
    conn_send(&peer->conn, peer->pieces, count);
    for (unsigned i = 0; i < count; i++) {
        const char *line = conn_line(&peer->conn);

        if (strcmp(line, ":1") != 0) {
            fail("DEL: %s", line);
        }
    }
}

static void redis_close(peer_t *peer)
{
    conn_close(&peer->conn);
    free(peer);
}

const peer_ops_t peer_redis = {
    .name = "redis",
    .open = redis_open,
    .put = redis_put,
    .get = redis_get,
    .remove = redis_remove,
    .close = redis_close,
};
