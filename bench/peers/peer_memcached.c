/* memcached: its text protocol, a batch as one get of many keys, or as sets
 * sent one after the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

struct peer {
    conn_t conn;
    size_t size;
    char line[16 + BATCH_MAX * KEY_MAX];
    char head[BATCH_MAX][128];
    struct iovec pieces[3 * BATCH_MAX];
};

static peer_t *memcached_open(const char *where, size_t size)
{
    peer_t *peer = must_alloc(sizeof(*peer));

    conn_open(&peer->conn, where);
    peer->size = size;
    return peer;
}

static void key_of(char key[KEY_MAX], const value_t *v)
{
    snprintf(key, KEY_MAX, "v%u:%u", v->generation, v->number);
}

static void memcached_put(peer_t *peer, const value_t *values, unsigned count)
{
    char key[KEY_MAX];

    for (unsigned i = 0; i < count; i++) {
        struct iovec *p = &peer->pieces[3 * i];

        key_of(key, &values[i]);
        p[0].iov_base = peer->head[i];
        p[0].iov_len = (size_t)snprintf(peer->head[i], sizeof(peer->head[i]),
                                        "set %s 0 0 %zu\r\n", key, peer->size);
        p[1] = (struct iovec){values[i].data, peer->size};
        p[2] = (struct iovec){"\r\n", 2};
    }
    conn_send(&peer->conn, peer->pieces, 3 * count);
    for (unsigned i = 0; i < count; i++) {
        const char *line = conn_line(&peer->conn);

        if (strcmp(line, "STORED") != 0) {
            fail("set: %s", line);
        }
    }
}

static void memcached_get(peer_t *peer, const value_t *values, unsigned count)
{
    char key[KEY_MAX], want[128], end[2];
    int at = snprintf(peer->line, sizeof(peer->line), "get");

    for (unsigned i = 0; i < count; i++) {
        key_of(key, &values[i]);
        at += snprintf(peer->line + at, sizeof(peer->line) - (size_t)at, " %s",
                       key);
    }
    at += snprintf(peer->line + at, sizeof(peer->line) - (size_t)at, "\r\n");
    struct iovec piece = {peer->line, (size_t)at};
    conn_send(&peer->conn, &piece, 1);
    for (unsigned i = 0; i < count; i++) {
        const char *line = conn_line(&peer->conn);

        key_of(key, &values[i]);
        snprintf(want, sizeof(want), "VALUE %s 0 %zu", key, peer->size);
        if (strcmp(line, want) != 0) {
            fail("get: '%s' instead of '%s'", line, want);
        }
        conn_receive(&peer->conn, values[i].data, peer->size);
        conn_receive(&peer->conn, end, sizeof(end));
    }
    const char *line = conn_line(&peer->conn);
    if (strcmp(line, "END") != 0) {
        fail("get: '%s' instead of END", line);
    }
}

static void memcached_remove(peer_t *peer, const value_t *values,
                             unsigned count)
{
    char key[KEY_MAX];

    for (unsigned i = 0; i < count; i++) {
        key_of(key, &values[i]);
        peer->pieces[i].iov_base = peer->head[i];
        peer->pieces[i].iov_len = (size_t)snprintf(
            peer->head[i], sizeof(peer->head[i]), "delete %s\r\n", key);
    }
    conn_send(&peer->conn, peer->pieces, count);
    for (unsigned i = 0; i < count; i++) {
        const char *line = conn_line(&peer->conn);

        if (strcmp(line, "DELETED") != 0) {
            fail("delete: %s", line);
        }
    }
}

static void memcached_close(peer_t *peer)
{
    conn_close(&peer->conn);
    free(peer);
}

const peer_ops_t peer_memcached = {
    .name = "memcached",
    .open = memcached_open,
    .put = memcached_put,
    .get = memcached_get,
    .remove = memcached_remove,
    .close = memcached_close,
};
