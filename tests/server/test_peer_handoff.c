/* Hand-offs between members: who waits for what another node was promised. */
#include "node/promise.h"
#include "server/peer_rig.h"

#define SECOND (1000 * SIM_MS)
#define KEYS 4u
#define BYTES LDR_PAGE
#define SOON (20 * SIM_MS) /* a few round trips */

static const setting_t no_saves[] = {{"peer_save", "never"}, {NULL, NULL}};
static const ldr_need_t all = {LDR_NEED_ALL, 0};

static larder_token_t token_of(unsigned first)
{
    larder_token_t token = {{1}};

    ldr_put32(token.bytes + 4, first);
    return token;
}

/* A prefill engine promises keys [first, first + KEYS) to the member. */
static void promise(member_t *m, unsigned first)
{
    larder_key_t keys[KEYS];
    larder_token_t token = token_of(first);
    ldr_prefix_t p = {.space = m->space,
                      .shards = 1,
                      .needs = &all,
                      .need_count = 1,
                      .keys = keys,
                      .count = KEYS};

    for (unsigned i = 0; i < KEYS; i++) {
        keys[i] = name_of(first + i);
    }
    need(ldr_promise_make(m->node, &p, &token, 7) == LARDER_OK);
}

static larder_status_t tell(member_t *m, unsigned first, larder_handoff_t what)
{
    larder_token_t token = token_of(first);

    return ldr_promise_tell(m->node, m->space, &token, what);
}

static uint32_t promised_pages(const member_t *m)
{
    const ldr_store_t *s = &m->node->store;

    return s->tenants[s->spaces[m->space].tenant].promised_pages;
}

/* The decode side's node asks, in a thread, and then fetches what it can. */
typedef struct taker {
    member_t *member;
    const char *from;
    unsigned first, came;
    uint64_t seconds;
    bool over;
    uint64_t began_ns, ended_ns;
    unsigned thread;
} taker_t;

static void *take_main(void *arg)
{
    taker_t *t = arg;
    member_t *m = t->member;
    sim_net_t *net = m->rig->net;
    larder_tier_t tier;

    t->began_ns = sim_now(net);
    ldr_query_t *q = ldr_node_ask_begin(m->node, m->space, 1,
                                        t->began_ns + t->seconds * SECOND);
    q->promised = true;
    snprintf(q->member, sizeof(q->member), "%s", t->from);
    for (unsigned i = 0; i < KEYS; i++) {
        larder_key_t name = name_of(t->first + i);

        need(ldr_node_ask_add(m->node, q, 0, &name, 1) == LARDER_OK);
    }
    if (ldr_node_ask(m->node, q)) {
        ldr_node_ask_wait(m->node, q);
        ldr_node_ask_end(m->node, q);
    }
    t->ended_ns = sim_now(net);
    t->over = true;
    while (t->came < KEYS &&
           fetch(m, t->first + t->came, 500, &tier) == LARDER_OK) {
        t->came++;
    }
    return NULL;
}

static void take(taker_t *t, member_t *m, const char *from, unsigned first)
{
    *t = (taker_t){.member = m, .from = from, .first = first, .seconds = 10};
    t->thread = sim_start(m->rig->net, take_main, t);
}

/* It ended within so long of now. */
static void ends(taker_t *t, uint64_t within_ns, unsigned came)
{
    sim_net_t *net = t->member->rig->net;
    uint64_t now_ns = sim_now(net);

    sim_join(net, t->thread);
    need(t->ended_ns <= now_ns + within_ns);
    need(t->came == came);
}

/* It waits until the last chunk has come, and then has all of them; others that
 * ask the same member meanwhile are not held up. */
static void test_waits(void **state)
{
    rig_t *r = peers_new(3, no_saves);
    member_t *from = &r->members[1], *to = &r->members[2];
    taker_t t;

    (void)state;
    promise(from, 1);
    take(&t, to, "n1", 1);
    for (unsigned i = 0; i < KEYS - 1; i++) {
        sim_sleep(r->net, 1500 * SIM_MS);
        need(save(from, 1 + i, BYTES) == LARDER_OK);
        uint64_t began_ns = sim_now(r->net);
        need(ask_with(to, 500 + i, 1, true, "n1"));
        need(sim_now(r->net) - began_ns < 5 * SIM_MS);
        need(!t.over);
    }
    sim_sleep(r->net, 300 * SIM_MS);
    need(save(from, KEYS, BYTES) == LARDER_OK);
    ends(&t, SOON, KEYS);
    peers_free(r);
}

/* What is there already is not waited for, nor what nobody has promised. */
static void test_no_wait(void **state)
{
    rig_t *r = peers_new(3, no_saves);
    member_t *from = &r->members[1];
    taker_t t;

    (void)state;
    for (unsigned i = 1; i <= KEYS; i++) {
        need(save(from, i, BYTES) == LARDER_OK);
    }
    promise(from, 1);
    take(&t, &r->members[2], "n1", 1);
    ends(&t, SOON, KEYS);
    take(&t, &r->members[2], "n1", 100);
    ends(&t, 100 * SIM_MS, 0);
    take(&t, &r->members[2], "nobody", 1);
    ends(&t, 100 * SIM_MS, KEYS); /* they are in its DRAM by now */
    peers_free(r);
}

/* The prefill side gives up, or its session ends: so does the wait, with what
 * came. */
static void test_failed(void **state)
{
    rig_t *r = peers_new(3, no_saves);
    member_t *from = &r->members[1];
    taker_t t;

    (void)state;
    for (unsigned gone = 0; gone < 2; gone++) {
        unsigned first = 1 + 100 * gone;

        promise(from, first);
        take(&t, &r->members[2], "n1", first);
        need(save(from, first, BYTES) == LARDER_OK);
        sim_sleep(r->net, 2 * SECOND);
        need(!t.over);
        if (gone) {
            ldr_promise_owner_gone(from->node, 7);
        } else {
            need(tell(from, first, LARDER_HANDOFF_FAILED) == LARDER_OK);
        }
        ends(&t, SOON, 1);
    }
    peers_free(r);
}

/* Nothing comes: it ends by its deadline. */
static void test_deadline(void **state)
{
    rig_t *r = peers_new(2, no_saves);
    taker_t t;

    (void)state;
    promise(&r->members[1], 1);
    take(&t, &r->members[2], "n1", 1);
    ends(&t, 10 * SECOND + SOON, 0);
    need(t.ended_ns - t.began_ns >= 10 * SECOND);
    sim_sleep(r->net, 3 * SECOND); /* what is left of it ends by itself */
    peers_free(r);
}

/* The nodes no longer reach each other, or the prefill side's node ends: the
 * decode side goes on long before its deadline. */
static void test_partition(void **state)
{
    rig_t *r = peers_new(2, no_saves);
    taker_t t;

    (void)state;
    promise(&r->members[1], 1);
    take(&t, &r->members[2], "n1", 1);
    sim_sleep(r->net, 500 * SIM_MS);
    need(!t.over);
    sim_cut(r->net, 1, 2, true);
    sim_cut(r->net, 2, 1, true);
    ends(&t, 4 * SECOND, 0); /* it asks each second, for peer_timeout_ms */
    sim_cut(r->net, 1, 2, false);
    sim_cut(r->net, 2, 1, false);
    sim_sleep(r->net, 10 * SECOND);
    take(&t, &r->members[2], "n1", 1);
    sim_sleep(r->net, 500 * SIM_MS);
    need(!t.over);
    member_down(&r->members[1]);
    ends(&t, 4 * SECOND, 0);
    peers_free(r);
}

/* The word that the chunk has come is lost with its connection: it is asked
 * for again within a second. */
static void test_lost_word(void **state)
{
    rig_t *r = peers_new(2, no_saves);
    taker_t t;

    (void)state;
    promise(&r->members[1], 1);
    take(&t, &r->members[2], "n1", 1);
    sim_sleep(r->net, 300 * SIM_MS);
    sim_cut(r->net, 1, 2, true);
    for (unsigned i = 1; i <= KEYS; i++) {
        need(save(&r->members[1], i, BYTES) == LARDER_OK);
    }
    sim_sleep(r->net, 50 * SIM_MS);
    sim_break_place(r->net, 1);
    sim_cut(r->net, 1, 2, false);
    need(!t.over);
    ends(&t, 2 * SECOND, KEYS);
    peers_free(r);
}

/* Many at once, in any order: none waits for another. */
static void test_many(void **state)
{
    enum { MANY = 48 };
    rig_t *r = peers_new(2, no_saves);
    taker_t t[MANY];

    (void)state;
    for (unsigned i = 0; i < MANY; i++) {
        promise(&r->members[1], 1 + 10 * i);
        take(&t[i], &r->members[2], "n1", 1 + 10 * i);
    }
    sim_sleep(r->net, 500 * SIM_MS);
    for (unsigned i = 0; i < MANY; i++) {
        unsigned k = (i * 29) % MANY;

        for (unsigned j = 0; j < KEYS; j++) {
            need(save(&r->members[1], 1 + 10 * k + j, 4096) == LARDER_OK);
        }
        ends(&t[k], SOON, KEYS);
        need(tell(&r->members[1], 1 + 10 * k, LARDER_HANDOFF_OVER) ==
             LARDER_OK);
    }
    peers_free(r);
}

/* RENEW and OVER reach the member that has the promise. A name that is no
 * member's is refused. */
static void test_passed_on(void **state)
{
    rig_t *r = peers_new(3, no_saves);
    member_t *from = &r->members[1], *to = &r->members[2];
    larder_token_t token = token_of(1);

    (void)state;
    promise(from, 1);
    for (unsigned i = 1; i <= KEYS; i++) {
        need(save(from, i, BYTES) == LARDER_OK);
    }
    need(tell(from, 1, LARDER_HANDOFF_ANSWERED) == LARDER_OK);
    need(promised_pages(from) == KEYS);
    sim_sleep(r->net, 25 * SECOND);
    need(ldr_peers_handoff(to->peers, "n1", to->space, &token,
                           LARDER_HANDOFF_RENEW) == LARDER_OK);
    sim_sleep(r->net, 25 * SECOND);
    ldr_promise_expire(from->node);
    need(promised_pages(from) == KEYS);
    need(ldr_peers_handoff(to->peers, "n1", to->space, &token,
                           LARDER_HANDOFF_OVER) == LARDER_OK);
    sim_sleep(r->net, SOON);
    need(promised_pages(from) == 0);
    need(tell(from, 1, LARDER_HANDOFF_RENEW) == LARDER_MISS);
    need(ldr_peers_handoff(to->peers, "n4", to->space, &token,
                           LARDER_HANDOFF_RENEW) == LARDER_E_INVALID);
    peers_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits),     cmocka_unit_test(test_no_wait),
        cmocka_unit_test(test_failed),    cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_partition), cmocka_unit_test(test_lost_word),
        cmocka_unit_test(test_many),      cmocka_unit_test(test_passed_on),
    };

    return rig_main(tests, sizeof(tests) / sizeof(tests[0]));
}
