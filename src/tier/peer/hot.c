/*
 * Hot chunks: what several members fetched from this node within a second. Who
 * asks for one of those is told of a member that fetched it, by chance, or
 * fetches it here: so that a prompt that all want at once does not wait for the
 * links of one member. All of it is soft: a member may have dropped it again,
 * and then it is fetched here after all.
 *
 * With the node's lock. Sets of 4, in which the oldest one makes room.
 */
#include "base/bytes.h"
#include "base/mem.h"
#include "tier/peer/peer.h"

#define SETS 4096u
#define WAYS 4u
#define KNOWN 4u             /* members that are remembered of a shard */
#define HOT 3u               /* and that make it hot */
#define WHILE_NS 1000000000u /* if they fetched it in this time */

typedef struct spot {
    uint64_t print; /* 0: free */
    uint64_t since_ns;
    uint16_t members[KNOWN];
    uint32_t count; /* that fetched it; the last ones are known */
} spot_t;

struct ldr_hot {
    uint64_t until_ns; /* nothing is hot from then on */
    spot_t sets[SETS][WAYS];
};

ldr_hot_t *ldr_hot_open(void)
{
    return ldr_reserve(sizeof(ldr_hot_t));
}

void ldr_hot_close(ldr_hot_t *h)
{
    if (h != NULL) {
        ldr_unreserve(h, sizeof(*h));
    }
}

static uint64_t print_of(uint64_t fingerprint, uint32_t number)
{
    uint64_t print =
        (fingerprint ^ (uint64_t)number << 57) * UINT64_C(0x9e3779b97f4a7c15);

    return print != 0 ? print : 1;
}

static spot_t *set_of(ldr_hot_t *h, uint64_t print)
{
    return h->sets[print >> 40 & (SETS - 1)];
}

static unsigned known(const spot_t *s)
{
    return s->count < KNOWN ? s->count : KNOWN;
}

void ldr_hot_sent(ldr_peer_node_t *to, uint64_t fingerprint, uint32_t number)
{
    ldr_peers_t *p = to->tier;
    uint64_t print = print_of(fingerprint, number), now_ns = ldr_peers_now(p);
    spot_t *set = set_of(p->hot, print), *s = &set[0];

    ldr_host_held(p->host);
    for (unsigned i = 0; i < WAYS; i++) {
        if (set[i].print == print) {
            s = &set[i];
            break;
        }
        s = set[i].since_ns < s->since_ns ? &set[i] : s;
    }
    if (s->print != print || now_ns - s->since_ns > WHILE_NS) {
        *s = (spot_t){.print = print, .since_ns = now_ns};
    }
    for (unsigned i = 0; i < known(s); i++) {
        if (s->members[i] == to->number) {
            return;
        }
    }
    s->members[s->count++ % KNOWN] = to->number;
    if (s->count >= HOT) {
        p->hot->until_ns = now_ns + 2 * WHILE_NS;
    }
}

bool ldr_hot_any(const ldr_peers_t *p, uint64_t now_ns)
{
    return now_ns <= p->hot->until_ns;
}

ldr_peer_node_t *ldr_hot_other(ldr_peer_node_t *asks, uint64_t fingerprint,
                               uint32_t number)
{
    ldr_peers_t *p = asks->tier;
    uint64_t print = print_of(fingerprint, number), now_ns = ldr_peers_now(p);
    const spot_t *set = set_of(p->hot, print);

    ldr_host_held(p->host);
    for (unsigned i = 0; i < WAYS; i++) {
        const spot_t *s = &set[i];

        if (s->print != print || s->count < HOT ||
            now_ns - s->since_ns > 2 * WHILE_NS) {
            continue;
        }
        uint64_t pick = ldr_rand_below(&p->host->rand, known(s) + 1);
        ldr_peer_node_t *other =
            pick > 0 ? p->nodes[s->members[pick - 1]] : NULL;
        return other != NULL && other != asks && ldr_peer_well(other) ? other
                                                                      : NULL;
    }
    return NULL;
}
