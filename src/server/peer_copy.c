/*
 * Copies that this node takes of chunks it owns and another member's disk has,
 * because others read them (tier/peer/homes.h). A thread of its own asks for
 * each like a client of this node, and loads it; that it came from a member,
 * and is to be kept, the peer tier knows.
 */
#include "base/bytes.h"
#include "node/load.h"
#include "server/peer.h"
#include "tier/peer/homes.h"

#define LOOK_NS 200000000u /* for the end */

/* Brings one shard into DRAM. True: it came from another member. */
static bool copy_shard(ldr_peer_server_t *s, const ldr_peer_copy_t *copy,
                       uint32_t number, const ldr_stop_t *stop)
{
    larder_item_t item = {
        .key = &copy->key, .group = copy->group, .shard = number};
    ldr_load_t load = {.target = {copy->space, copy->shards, &item}};

    if (!ldr_load_begin(s->node, &load)) {
        ldr_node_reads_go(s->node);
        ldr_load_wait(s->node, &load, stop->deadline_ns);
    }
    bool came = load.status == LARDER_OK && load.tier == LARDER_TIER_PEER;
    ldr_load_end(s->node, &load, false);
    return came;
}

static void take_copy(ldr_peer_server_t *s, const ldr_peer_copy_t *copy)
{
    ldr_host_t *host = &s->node->host;
    ldr_stop_t stop = {&s->stop, ldr_now_ns(s->clock) +
                                     host->options.peer_timeout_ms * 1000000u};
    bool came = false;
    ldr_query_t *ask = ldr_node_ask_begin(s->node, copy->space, copy->shards,
                                          stop.deadline_ns);

    if (ask == NULL) {
        return;
    }
    if (ldr_node_ask_add(s->node, ask, copy->group, &copy->key, 1) !=
        LARDER_OK) {
        ldr_node_ask_end(s->node, ask);
        return;
    }
    if (ldr_node_ask(s->node, ask)) {
        ldr_node_ask_wait(s->node, ask);
        ldr_node_ask_end(s->node, ask);
    }
    for (uint32_t i = 0; i < copy->shards; i++) {
        came |= copy_shard(s, copy, i, &stop);
    }
    ldr_host_lock(host);
    s->peers->copied += came;
    ldr_host_unlock(host);
}

void *ldr_peer_copier(void *server)
{
    ldr_peer_server_t *s = server;
    ldr_host_t *host = &s->node->host;
    ldr_peer_copy_t copy;

    ldr_host_lock(host);
    while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
        if (ldr_copy_next(s->peers, &copy)) {
            ldr_peer_node_t *owner;
            uint32_t mine;

            ldr_peers_owners(s->peers, &copy.key, false, 1, &owner, &mine);
            if (mine == 0) {
                ldr_host_unlock(host);
                take_copy(s, &copy);
                ldr_host_lock(host);
            }
            continue;
        }
        ldr_host_tell(host);
        s->threads->wait(s->threads->arg, &s->peers->copy_work, &host->lock,
                         ldr_now_ns(s->clock) + LOOK_NS);
    }
    ldr_host_unlock(host);
    return NULL;
}
