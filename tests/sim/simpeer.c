#include "sim/simpeer.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "wire/wire.h"

typedef struct value {
    larder_key_t key;
    uint8_t *data;
    size_t bytes;
    uint32_t crc;
} value_t;

typedef struct conn {
    sim_peer_t *peer;
    ldr_stream_t stream;
    unsigned thread;
    unsigned leases; /* of this session: gone with it */
    uint8_t *frame;  /* a frame and its body, then the reply */
    uint8_t *payload;
    uint64_t epoch;
} conn_t;

struct sim_peer {
    sim_net_t *net;
    unsigned port;
    ldr_listening_t from;
    unsigned acceptor;
    conn_t conns[SIM_PEER_CONNS];
    unsigned conn_count;
    uint64_t stopped_ns, pace_min_ns, pace_max_ns;
    value_t values[SIM_PEER_SHARDS];
    unsigned value_count;
    sim_peer_counts_t counts;
};

/* ---- bytes ---- */

/* All of it, whatever the direction; false: the connection is over. */
static bool move(conn_t *c, void *data, size_t bytes, bool in)
{
    struct iovec iov = {data, bytes};

    while (iov.iov_len > 0) {
        ssize_t n = in ? ldr_stream_read(&c->stream, &iov, 1)
                       : ldr_stream_write(&c->stream, &iov, 1);

        if (n == -EAGAIN) {
            ldr_stream_poll(&c->stream, in ? POLLIN : POLLOUT, UINT64_MAX);
        } else if (n < 0) {
            return false;
        } else {
            iov.iov_base = (uint8_t *)iov.iov_base + n;
            iov.iov_len -= (size_t)n;
        }
    }
    return true;
}

static bool reply(conn_t *c, const ldr_frame_t *to, larder_status_t st,
                  size_t body, size_t payload)
{
    ldr_frame_t frame = {.opcode = to->opcode,
                         .flags = LDR_FRAME_REPLY,
                         .id = to->id,
                         .epoch = c->epoch,
                         .body = (uint32_t)body,
                         .payload = (uint32_t)payload,
                         .arg = (uint32_t)(int32_t)st};

    if ((to->flags & LDR_FRAME_SILENT) != 0) {
        return true;
    }
    ldr_frame_put(c->frame, &frame, true);
    c->peer->counts.requests++;
    return move(c, c->frame, LDR_FRAME_BYTES + body, false) &&
           move(c, c->payload, payload, false);
}

/* ---- what it keeps ---- */

static value_t *find(sim_peer_t *peer, const larder_key_t *key)
{
    for (unsigned i = 0; i < peer->value_count; i++) {
        if (memcmp(&peer->values[i].key, key, sizeof(*key)) == 0) {
            return &peer->values[i];
        }
    }
    return NULL;
}

static larder_status_t keep(sim_peer_t *peer, const ldr_save_row_t *row,
                            const uint8_t *data)
{
    if (find(peer, &row->key) != NULL) {
        return LARDER_PRESENT;
    }
    if (ldr_crc32c(0, data, row->length) != row->crc) {
        return LARDER_E_CORRUPT;
    }
    if (peer->value_count == SIM_PEER_SHARDS) {
        return LARDER_E_FULL;
    }
    value_t *v = &peer->values[peer->value_count++];
    *v = (value_t){row->key, malloc(row->length), row->length, row->crc};
    memcpy(v->data, data, row->length);
    return LARDER_OK;
}

/* ---- requests ---- */

static bool do_names(conn_t *c, const ldr_frame_t *f, const uint8_t *body)
{
    uint8_t *out = c->frame + LDR_FRAME_BYTES;
    static const size_t max = SIM_PEER_VALUE * 4;
    ldr_result_row_t rows[LARDER_BATCH_MAX > 1024 ? 1024 : LARDER_BATCH_MAX];
    ldr_batch_msg_t batch;
    size_t payload = 0;

    if (!ldr_get_batch(body, f->body, LDR_NAME_BYTES, &batch) ||
        batch.count > 1024) {
        return false;
    }
    for (uint32_t i = 0; i < batch.count; i++) {
        ldr_name_row_t name;

        ldr_get_name(batch.rows + (size_t)i * LDR_NAME_BYTES, &name);
        const value_t *v = find(c->peer, &name.key);
        rows[i] = (ldr_result_row_t){.status = LARDER_MISS,
                                     .cause = LARDER_CAUSE_ABSENT};
        if (v == NULL) {
            continue;
        }
        rows[i] = (ldr_result_row_t){
            .status = LARDER_OK, .length = v->bytes, .crc = v->crc};
        if (f->opcode == LDR_OP_GET && v->bytes > name.room) {
            rows[i].status = LARDER_E_SIZE;
        } else if (f->opcode == LDR_OP_GET && payload + v->bytes > max) {
            rows[i].status = LARDER_PENDING;
        } else if (f->opcode == LDR_OP_GET) {
            memcpy(c->payload + payload, v->data, v->bytes);
            payload += v->bytes;
        } else if (f->opcode == LDR_OP_LEASE) {
            rows[i].lease = ++c->leases;
            c->peer->counts.leases++;
        }
    }
    size_t at = ldr_put_results(out, batch.count, 0);
    for (uint32_t i = 0; i < batch.count; i++, at += LDR_RESULT_BYTES) {
        ldr_put_result(out + at, &rows[i]);
    }
    return reply(c, f, LARDER_OK, at, payload);
}

static bool do_put(conn_t *c, const ldr_frame_t *f, const uint8_t *body)
{
    ldr_batch_msg_t batch;
    ldr_result_row_t rows[64];
    size_t used = 0;

    if (!ldr_get_batch(body, f->body, LDR_SAVE_BYTES, &batch) ||
        batch.count > 64) {
        return false;
    }
    for (uint32_t i = 0; i < batch.count; i++) {
        ldr_save_row_t row;

        ldr_get_save(batch.rows + (size_t)i * LDR_SAVE_BYTES, &row);
        rows[i] = (ldr_result_row_t){
            .status = keep(c->peer, &row, c->payload + used)};
        used += row.length;
    }
    uint8_t *out = c->frame + LDR_FRAME_BYTES;
    size_t at = ldr_put_results(out, batch.count, 0);
    for (uint32_t i = 0; i < batch.count; i++, at += LDR_RESULT_BYTES) {
        ldr_put_result(out + at, &rows[i]);
    }
    return reply(c, f, LARDER_OK, at, 0);
}

static bool do_hello(conn_t *c, const ldr_frame_t *f, const uint8_t *body)
{
    ldr_welcome_t welcome = {.version = LDR_WIRE_VERSION_MAX,
                             .epoch = ++c->peer->counts.hellos,
                             .program = "simulated"};
    ldr_hello_t hello;

    if (!ldr_get_hello(body, f->body, &hello)) {
        return false;
    }
    c->epoch = welcome.epoch;
    return reply(c, f, LARDER_OK,
                 ldr_put_welcome(c->frame + LDR_FRAME_BYTES, &welcome), 0);
}

static bool do_release(conn_t *c, const ldr_frame_t *f, const uint8_t *body)
{
    ldr_ends_t ends;

    if (!ldr_get_ends(body, f->body, &ends)) {
        return false;
    }
    c->leases -= ends.count;
    c->peer->counts.leases -= ends.count;
    return reply(c, f, LARDER_OK, 0, 0);
}

/* False: it cannot be, and the session ends. */
static bool carry_out(conn_t *c, const ldr_frame_t *f, const uint8_t *body)
{
    switch (f->opcode) {
    case LDR_OP_HELLO:
        return do_hello(c, f, body);
    case LDR_OP_SPACE:
        return reply(c, f, LARDER_OK,
                     ldr_put_number(c->frame + LDR_FRAME_BYTES, 0), 0);
    case LDR_OP_PING:
        c->peer->counts.pings++;
        return reply(c, f, LARDER_OK, 0, 0);
    case LDR_OP_EXISTS:
    case LDR_OP_GET:
    case LDR_OP_LEASE:
        return do_names(c, f, body);
    case LDR_OP_RELEASE:
        return do_release(c, f, body);
    case LDR_OP_PUT:
        return do_put(c, f, body);
    default:
        return reply(c, f, LARDER_E_UNSUPPORTED, 0, 0);
    }
}

static void *conn_main(void *arg)
{
    conn_t *c = arg;
    sim_peer_t *peer = c->peer;
    ldr_frame_t f;
    bool lives = true;

    c->frame = malloc(LDR_FRAME_BYTES + LDR_BODY_MAX);
    c->payload = malloc(SIM_PEER_VALUE * 4);
    uint8_t *body = malloc(LDR_BODY_MAX);
    while (lives && move(c, c->frame, LDR_FRAME_BYTES, true) &&
           ldr_frame_get(c->frame, LDR_BODY_MAX, &f) == LDR_FRAME_OK &&
           f.payload <= SIM_PEER_VALUE * 4 &&
           move(c, c->frame + LDR_FRAME_BYTES, f.body, true) &&
           ldr_frame_check(c->frame, &f) &&
           move(c, c->payload, f.payload, true)) {
        memcpy(body, c->frame + LDR_FRAME_BYTES, f.body);
        if (peer->pace_max_ns > 0 && f.opcode != LDR_OP_PING) {
            sim_sleep(peer->net, peer->pace_min_ns +
                                     ldr_rand_below(sim_rand(peer->net),
                                                    peer->pace_max_ns -
                                                        peer->pace_min_ns + 1));
        }
        lives = carry_out(c, &f, body);
    }
    peer->counts.leases -= c->leases; /* they end with their holder */
    c->leases = 0;
    ldr_stream_close(&c->stream);
    free(c->frame);
    free(c->payload);
    free(body);
    return NULL;
}

static void *accept_main(void *arg)
{
    sim_peer_t *peer = arg;
    ldr_stream_t s;

    while (peer->from.ops->accept(&peer->from, UINT64_MAX, &s) == 0) {
        if (peer->conn_count == SIM_PEER_CONNS) {
            abort();
        }
        conn_t *c = &peer->conns[peer->conn_count++];
        *c = (conn_t){.peer = peer, .stream = s};
        c->thread = sim_start(peer->net, conn_main, c);
        sim_stop(peer->net, c->thread, peer->stopped_ns);
    }
    return NULL;
}

/* ---- life ---- */

void sim_peer_restart(sim_peer_t *peer)
{
    peer->from = sim_listen(peer->net, peer->port);
    peer->acceptor = sim_start(peer->net, accept_main, peer);
}

sim_peer_t *sim_peer_new(sim_net_t *net, unsigned port)
{
    sim_peer_t *peer = calloc(1, sizeof(*peer));

    peer->net = net;
    peer->port = port;
    sim_peer_restart(peer);
    return peer;
}

void sim_peer_stop(sim_peer_t *peer, uint64_t until_ns)
{
    peer->stopped_ns = until_ns;
    sim_stop(peer->net, peer->acceptor, until_ns);
    for (unsigned i = 0; i < peer->conn_count; i++) {
        sim_stop(peer->net, peer->conns[i].thread, until_ns);
    }
}

void sim_peer_pace(sim_peer_t *peer, uint64_t min_ns, uint64_t max_ns)
{
    peer->pace_min_ns = min_ns;
    peer->pace_max_ns = max_ns;
}

void sim_peer_kill(sim_peer_t *peer)
{
    sim_peer_stop(peer, 0);
    sim_kill(peer->net, peer->port);
    sim_join(peer->net, peer->acceptor);
    for (unsigned i = 0; i < peer->conn_count; i++) {
        sim_join(peer->net, peer->conns[i].thread);
    }
    peer->conn_count = 0;
}

void sim_peer_free(sim_peer_t *peer)
{
    sim_peer_kill(peer);
    for (unsigned i = 0; i < peer->value_count; i++) {
        free(peer->values[i].data);
    }
    free(peer);
}

sim_peer_counts_t sim_peer_counts(const sim_peer_t *peer)
{
    return peer->counts;
}
