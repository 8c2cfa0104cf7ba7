/*
 * Which space a member means. It names it by the number that the other gave it
 * on the same connection; what is of a space that was not opened is neither
 * sent nor taken.
 */
#include "base/copy.h"
#include "net/pool.h"
#include "server/peer_rig.h"
#include "tier/peer/homes.h"

#define BYTES 4096u

static const setting_t no_saves[] = {{"peer_save", "never"}, {NULL, NULL}};

static ldr_peer_node_t *node_of(member_t *m, unsigned place)
{
    char name[16];

    snprintf(name, sizeof(name), "n%u", place);
    ldr_host_lock(&m->node->host);
    ldr_peer_node_t *n = ldr_peers_named(m->peers, name);
    ldr_host_unlock(&m->node->host);
    need(n != NULL);
    return n;
}

/* ---- what is taken ---- */

/* A request about one key of this space, with its bytes if it is a PUT. Gives
 * how many bytes of body. */
static size_t compose(uint8_t *body, unsigned opcode, uint32_t space,
                      unsigned key, const uint8_t *data)
{
    ldr_peer_head_t head = {.space = space, .count = 1, .shards = 1};
    ldr_peer_name_t name = {.key = name_of(key), .room = BYTES};
    ldr_peer_home_t home = {.key = name_of(key), .member = 1};
    ldr_peer_handoff_t word = {.what = LARDER_HANDOFF_RENEW, .space = space};
    ldr_peer_shard_t shard = {
        .key = name_of(key),
        .shards = 1,
        .length = BYTES,
        .crc = ldr_crc32c(0, data, BYTES),
    };

    if (opcode == LDR_OP_PEER_HANDOFF) {
        return ldr_put_peer_handoff(body, &word);
    }
    size_t at = ldr_put_peer_head(body, &head);
    if (opcode == LDR_OP_PEER_PUT) {
        ldr_put_peer_shard(body + at, &shard);
        return at + LDR_PEER_SHARD_BYTES;
    }
    if (opcode == LDR_OP_PEER_HOME) {
        ldr_put_peer_home(body + at, &home);
        return at + LDR_PEER_HOME_BYTES;
    }
    name.room = opcode == LDR_OP_PEER_ASK ? 0 : BYTES;
    ldr_put_peer_name(body + at, &name);
    return at + LDR_PEER_NAME_BYTES;
}

/* Says it to the member, on a connection that has opened the space or has not.
 * OK: it answered. */
static larder_status_t say(member_t *m, ldr_peer_node_t *to, unsigned opcode,
                           bool opens, unsigned key)
{
    rig_t *r = m->rig;
    bool put = opcode == LDR_OP_PEER_PUT;
    struct iovec iov = {r->data, BYTES};
    ldr_stop_t stop = {NULL, sim_now(r->net) + 500 * SIM_MS};
    ldr_call_t *got = NULL;
    ldr_talk_t v = {0};

    content(key, r->data, BYTES);
    need(ldr_peer_talk_begin(to, &v, opens ? m->peers->spaces[m->space] : NULL,
                             &stop) == LARDER_OK);
    v.call.opcode = (uint16_t)opcode;
    v.call.bytes = (uint32_t)compose(ldr_body(v.call.buffer), opcode, v.space,
                                     key, r->data);
    ldr_conn_t *c = ldr_conn_of(v.link);
    larder_status_t st =
        ldr_conn_send(c, &v.call, &iov, put, put ? BYTES : 0, &stop);
    while (st == LARDER_OK && !v.call.done) {
        st = ldr_conn_recv(c, &stop, &got);
    }
    if (st != LARDER_OK) {
        ldr_conn_forget(c, &v.call, 0);
    }
    ldr_peer_talk_end(&v, st);
    return st;
}

/* Whatever is said of a space that the connection has not opened ends it, and
 * nothing comes of it; also where the number is that of a space here. */
static void test_not_opened(void **state)
{
    static const unsigned opcodes[] = {LDR_OP_PEER_ASK, LDR_OP_PEER_GET,
                                       LDR_OP_PEER_HOME, LDR_OP_PEER_HANDOFF,
                                       LDR_OP_PEER_PUT};
    rig_t *r = peers_new(2, no_saves);
    member_t *m = &r->members[1], *there = &r->members[2];
    ldr_peer_node_t *to = node_of(m, 2);

    (void)state;
    need(there->space == 0);
    need(save(there, 99, BYTES) == LARDER_OK); /* makes memory resident */
    for (unsigned i = 0; i < sizeof(opcodes) / sizeof(*opcodes); i++) {
        need(say(m, to, opcodes[i], false, 1) == LARDER_E_OFFLINE);
        need(chunk_of(there, 1) == LDR_NIL);
        sim_sleep(r->net, 5000 * SIM_MS); /* until it is called again */
    }
    for (unsigned i = 0; i < sizeof(opcodes) / sizeof(*opcodes); i++) {
        need(say(m, to, opcodes[i], true, 1) == LARDER_OK);
    }
    need(chunk_of(there, 1) != LDR_NIL);
    peers_free(r);
}

/* ---- what is sent ---- */

/* Another space than the one that all members have opened. */
static uint32_t open_other(member_t *m)
{
    ldr_space_info_t info = {
        .space_id = {1}, .tenant = "default", .has_key = true};
    uint32_t space;

    need(ldr_node_space(m->node, &info, &space) == LARDER_OK);
    return space;
}

/* Shards that wait for it to be brought to others, or are on their way. */
static uint64_t queued(member_t *m)
{
    const ldr_behind_t *q = &m->node->store.queues[LDR_PEER_QUEUE];

    ldr_host_lock(&m->node->host);
    uint64_t count = q->count + q->hands[0] + q->hands[1];
    ldr_host_unlock(&m->node->host);
    return count;
}

static larder_status_t flush(member_t *m)
{
    ldr_stop_t stop = {NULL, sim_now(m->rig->net) + 2000 * SIM_MS};

    return ldr_node_flush(m->node, LARDER_TIER_PEER, &stop);
}

/* What could not be brought to its owner goes along in a takeover. The new
 * daemon brings it there once somebody has opened its space: until then it
 * waits, and nobody waits for it. */
static void test_taken_over(void **state)
{
    rig_t *r = peers_new(2, NULL);
    member_t *m = &r->members[1], *there = &r->members[2];
    unsigned one = key_of(r, 1, 2, 1), two = key_of(r, one + 1, 2, 1);
    uint32_t first = m->space, other;
    ldr_handover_t handover = {0};

    (void)state;
    member_down(there);
    sim_sleep(r->net, 1000 * SIM_MS);
    need(save(m, one, BYTES) == LARDER_OK);
    m->space = other = open_other(m);
    need(save(m, two, BYTES) == LARDER_OK);
    need(other != first && queued(m) == 2);
    r->handover = &handover;
    member_down(m);
    member_up(r, 1, NULL);
    need(handover.fd_count > 0 && m->space == first);
    ldr_handover_free(&handover);
    r->handover = NULL;
    member_up(r, 2, NULL);
    sim_sleep(r->net, 5000 * SIM_MS); /* they meet */
    need(chunk_of(there, one) != LDR_NIL && queued(m) == 1);
    uint64_t began_ns = sim_now(r->net);
    need(flush(m) == LARDER_OK && sim_now(r->net) - began_ns < 10 * SIM_MS);
    need(chunk_of(there, two) == LDR_NIL);
    need(open_other(m) == other);
    sim_sleep(r->net, 20 * SIM_MS); /* it is woken: a few round trips */
    need(queued(m) == 0 && chunk_of(there, two) == LDR_NIL);
    there->space = open_other(there);
    need(chunk_of(there, one) == LDR_NIL && chunk_of(there, two) != LDR_NIL);
    peers_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_opened),
        cmocka_unit_test(test_taken_over),
    };

    return rig_main(tests, sizeof(tests) / sizeof(tests[0]));
}
