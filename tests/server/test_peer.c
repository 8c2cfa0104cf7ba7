/* What members of a cluster hold for each other, and take from each other. */
#include "server/peer_rig.h"

static const setting_t no_saves[] = {{"peer_save", "never"}, {NULL, NULL}};

/* ---- admit ---- */

/* Reserves as a fetch from that tier does, and commits. */
static bool arrives(member_t *m, unsigned key, larder_tier_t tier,
                    uint32_t *shard_p)
{
    ldr_store_t *s = &m->node->store;
    larder_key_t name = name_of(key);
    ldr_reserve_t r = {
        .name = ldr_store_name(s, m->space, 0, &name),
        .shards = 1,
        .length = 4096,
        .state = LDR_SHARD_READING,
    };

    need(ldr_store_reserve(s, LDR_NIL, &r, shard_p) == LARDER_OK);
    s->shards[*shard_p].tier = (uint8_t)tier;
    return ldr_store_commit(s, *shard_p, 0, true);
}

/* What was removed comes back neither from a member nor from the shared tier,
 * for a minute; what is read from a disk was not removed there. */
static void test_admit(void **state)
{
    static const larder_tier_t tiers[] = {LARDER_TIER_PEER, LARDER_TIER_SHARED,
                                          LARDER_TIER_SSD};
    rig_t *r = peers_new(2, no_saves);
    member_t *m = &r->members[1];
    ldr_store_t *s = &m->node->store;

    (void)state;
    need(save(m, 99, 4096) == LARDER_OK); /* makes memory resident */
    for (unsigned i = 0; i < 3; i++) {
        larder_key_t name = name_of(i);
        uint32_t shard;

        ldr_host_lock(&m->node->host);
        s->now_ds = (uint32_t)(sim_now(r->net) / 100000000u);
        ldr_store_removed(s, ldr_store_name(s, m->space, 0, &name).fingerprint,
                          0);
        bool came = arrives(m, i, tiers[i], &shard);
        need(came == (tiers[i] == LARDER_TIER_SSD));
        need(s->shards[shard].admitted == came);
        if (came) {
            ldr_store_release(s, s->shards[shard].chunk);
        } else {
            ldr_store_abort(s, shard);
            s->now_ds += LDR_ARRIVAL_DS + 1;
            need(arrives(m, i, tiers[i], &shard));
            ldr_store_release(s, s->shards[shard].chunk);
        }
        ldr_host_unlock(&m->node->host);
    }
    peers_free(r);
}

/* ---- leases ---- */

/* What a member said it has is there when it is fetched, whatever is saved
 * there in between; without a lease it is gone. */
static void test_lease(void **state)
{
    rig_t *r = peers_new(2, no_saves);
    unsigned key = key_of(r, 1, 2, 1);
    larder_tier_t tier;

    (void)state;
    for (unsigned lease = 0; lease < 2; lease++) {
        need(save(&r->members[2], key, 65536) == LARDER_OK);
        need(ask(&r->members[1], key, 1, lease));
        need((leased(&r->members[2], 1) > 0) == lease);
        churn(&r->members[2], 100 * lease);
        larder_status_t st = fetch(&r->members[1], key, 500, &tier);
        need(st == (lease ? LARDER_OK : LARDER_MISS));
        need(!lease || tier == LARDER_TIER_PEER);
        need(leased(&r->members[2], 1) == 0); /* the fetch ends it */
        key = key_of(r, key + 1, 2, 1);
    }
    peers_free(r);
}

/* A lease ends 5 s after it was last asked for, also if its member is gone. */
static void test_lease_ends(void **state)
{
    rig_t *r = peers_new(2, no_saves);
    unsigned key = key_of(r, 1, 2, 1), other = key_of(r, key + 1, 1, 2);

    (void)state;
    need(save(&r->members[2], key, 65536) == LARDER_OK);
    need(save(&r->members[2], other, 65536) == LARDER_OK);
    need(ask(&r->members[1], key, 1, true));
    sim_sleep(r->net, 4000 * SIM_MS);
    need(leased(&r->members[2], 1) == 65536);
    need(ask(&r->members[1], other, 1, true));
    need(leased(&r->members[2], 1) == 131072);
    sim_sleep(r->net, 3000 * SIM_MS);
    need(leased(&r->members[2], 1) == 65536);
    sim_sleep(r->net, 4000 * SIM_MS);
    need(leased(&r->members[2], 1) == 0);
    need(ask(&r->members[1], key, 1, true));
    need(leased(&r->members[2], 1) == 65536);
    member_down(&r->members[1]);
    sim_sleep(r->net, 6500 * SIM_MS);
    need(leased(&r->members[2], 1) == 0);
    peers_free(r);
}

/* A member has leases on a quarter of another's DRAM at most, all on half. */
static void test_lease_bounds(void **state)
{
    enum { KEYS = 10, BYTES = 524288 };
    rig_t *r = peers_new(4, no_saves);
    member_t *m = &r->members[4];
    unsigned key = 1;
    uint64_t sum = 0;

    (void)state;
    for (unsigned i = 0; i < KEYS; i++) {
        key = key_of(r, key + 1, 4, 0);
        need(save(m, key, BYTES) == LARDER_OK);
        for (unsigned k = 1; k <= 3; k++) {
            need(ask(&r->members[k], key, 1, true));
        }
    }
    for (unsigned k = 1; k <= 3; k++) {
        need(leased(m, k) <= (8u << 20) / 4);
        sum += leased(m, k);
    }
    need(leased(m, 1) >= (8u << 20) / 4 - BYTES);
    need(sum <= (8u << 20) / 2 && sum > (8u << 20) / 2 - BYTES);
    churn(m, 0);
    peers_free(r);
}

/* The shard in DRAM, or LDR_NIL. With the lock. */
static uint32_t shard_of(const member_t *m, unsigned key)
{
    ldr_store_t *s = &m->node->store;
    larder_key_t name = name_of(key);
    ldr_name_t n = ldr_store_name(s, m->space, 0, &name);
    larder_cause_t cause;
    uint32_t entry = ldr_store_find(s, &n, LDR_NIL, 0, &cause);

    return entry != LDR_NIL ? ldr_store_resident(s, entry, 0) : LDR_NIL;
}

/* A member does not look at what it sends. What came wrong from its memory is
 * a miss, and it drops it: it hears of it, and looks. */
static void test_damaged_at_its_holder(void **state)
{
    rig_t *r = peers_new(2, no_saves);
    unsigned key = key_of(r, 1, 2, 1), well = key_of(r, key + 1, 2, 1);
    member_t *here = &r->members[1], *there = &r->members[2];
    ldr_store_t *s = &there->node->store;
    larder_tier_t tier;

    (void)state;
    need(save(there, key, 65536) == LARDER_OK);
    need(save(there, well, 65536) == LARDER_OK);
    ldr_host_lock(&there->node->host);
    uint32_t shard = shard_of(there, key);
    need(shard != LDR_NIL);
    ldr_arena_page(&s->arena, s->shards[shard].page)[100] ^= 1;
    ldr_host_unlock(&there->node->host);
    need(ask(here, key, 1, true) && ask(here, well, 1, true));
    need(fetch(here, key, 500, &tier) == LARDER_MISS);
    need(fetch(here, well, 500, &tier) == LARDER_OK);
    ldr_host_lock(&here->node->host);
    need(ldr_peers_named(here->peers, "n2")->n.wrong == 1);
    need(shard_of(here, key) == LDR_NIL);
    ldr_host_unlock(&here->node->host);
    ldr_host_lock(&there->node->host);
    need(shard_of(there, key) == LDR_NIL);
    need(shard_of(there, well) != LDR_NIL);
    ldr_host_unlock(&there->node->host);
    peers_free(r);
}

/* What is queued for a member wakes one lane, not all of them. */
static void test_one_lane_wakes(void **state)
{
    rig_t *r = peers_new(2, no_saves);
    member_t *m = &r->members[1];

    (void)state;
    ldr_host_lock(&m->node->host);
    ldr_peer_node_t *n = ldr_peers_named(m->peers, "n2");
    ldr_lane_wake(n, true); /* begins one, and then another */
    ldr_lane_wake(n, true);
    ldr_host_unlock(&m->node->host);
    sim_sleep(r->net, 10 * SIM_MS); /* there is nothing to do: they wait */
    ldr_host_lock(&m->node->host);
    need(n->lanes[0].idle && n->lanes[1].idle && n->lanes[2].idle);
    ldr_lane_wake(n, false);
    need(!n->lanes[0].idle && n->lanes[1].idle && n->lanes[2].idle);
    ldr_lane_wake(n, true);
    need(!n->lanes[1].idle && n->lanes[2].idle);
    ldr_lane_wake(n, false); /* the first one is busy: another can ask */
    need(!n->lanes[2].idle);
    ldr_host_unlock(&m->node->host);
    sim_sleep(r->net, 10 * SIM_MS);
    ldr_host_lock(&m->node->host);
    need(n->lanes[0].idle && n->lanes[1].idle && n->lanes[2].idle);
    ldr_host_unlock(&m->node->host);
    peers_free(r);
}

/* A small shard keeps a page from others. */
static void test_lease_counts_pages(void **state)
{
    rig_t *r = peers_new(2, no_saves);
    member_t *m = &r->members[2];
    unsigned key = key_of(r, 1, 2, 0);

    (void)state;
    need(save(m, key, 4096) == LARDER_OK);
    need(ask(&r->members[1], key, 1, true));
    need(leased(m, 1) == LDR_PAGE);
    peers_free(r);
}

typedef struct waiting {
    member_t *member;
    unsigned key;
    larder_status_t status;
    larder_tier_t tier;
} waiting_t;

static void *fetch_main(void *arg)
{
    waiting_t *w = arg;

    w->status = fetch(w->member, w->key, 20000, &w->tier);
    return NULL;
}

/* What waits for its turn to be fetched is asked for again before the lease
 * ends. */
static void test_lease_renewed(void **state)
{
    rig_t *r = peers_new(2, no_saves);
    unsigned key = key_of(r, 1, 2, 1);
    waiting_t w = {.member = &r->members[1], .key = key};
    ldr_peers_t *p = r->members[1].peers;
    uint64_t room = p->host->options.peer_dram;

    (void)state;
    need(save(&r->members[2], key, 65536) == LARDER_OK);
    need(ask(&r->members[1], key, 1, true));
    ldr_host_lock(p->host);
    need(ldr_peers_fly(p, room)); /* so the fetch has to wait */
    ldr_host_unlock(p->host);
    unsigned thread = sim_start(r->net, fetch_main, &w);
    for (unsigned i = 0; i < 12; i++) {
        sim_sleep(r->net, 1000 * SIM_MS);
        churn(&r->members[2], 100 * i);
    }
    ldr_host_lock(p->host);
    ldr_peers_land(p, room);
    ldr_host_unlock(p->host);
    sim_join(r->net, thread);
    need(w.status == LARDER_OK && w.tier == LARDER_TIER_PEER);
    peers_free(r);
}

/* ---- hints ---- */

/* What a member has that does not own it is found if a hint names that member;
 * a name that is none, or one that lacks it, changes nothing. */
static void test_hint(void **state)
{
    rig_t *r = peers_new(4, no_saves);
    unsigned key = key_of(r, 1, 2, 3), owned = key_of(r, key + 1, 2, 3);
    larder_tier_t tier;

    (void)state;
    need(save(&r->members[4], key, 65536) == LARDER_OK);
    need(save(&r->members[2], owned, 65536) == LARDER_OK);
    need(ask_with(&r->members[1], key, 1, true, "nobody"));
    need(fetch(&r->members[1], key, 500, &tier) == LARDER_MISS);
    need(ask_with(&r->members[1], key, 1, true, "n4")); /* although absent */
    need(leased(&r->members[4], 1) == 65536);
    need(fetch(&r->members[1], key, 500, &tier) == LARDER_OK);
    need(tier == LARDER_TIER_PEER);
    uint64_t began_ns = sim_now(r->net);
    need(ask_with(&r->members[1], owned, 1, true, "n4"));
    need(sim_now(r->net) - began_ns < 5 * SIM_MS); /* all at once */
    need(fetch(&r->members[1], owned, 500, &tier) == LARDER_OK);
    /* Bytes come from the one that is named, if it has them. */
    owned = key_of(r, owned + 1, 2, 3);
    need(save(&r->members[2], owned, 65536) == LARDER_OK);
    need(save(&r->members[4], owned, 65536) == LARDER_OK);
    need(ask_with(&r->members[1], owned, 1, true, "n4"));
    need(fetch(&r->members[1], owned, 500, &tier) == LARDER_OK);
    need(leased(&r->members[4], 1) == 0);
    need(leased(&r->members[2], 1) == 65536);
    peers_free(r);
}

/* ---- what many want ---- */

/* Shards that members asked others for in vain, and that the first one told
 * them to get elsewhere. */
static void count(rig_t *r, uint64_t *sent_on_p, uint64_t *failed_p)
{
    *sent_on_p = *failed_p = 0;
    for (unsigned k = 1; k <= r->count; k++) {
        const member_t *m = &r->members[k];

        ldr_host_lock(&m->node->host);
        for (unsigned i = 0; i < m->peers->node_count; i++) {
            *sent_on_p += k == 1 ? m->peers->nodes[i]->n.sent_on : 0;
            *failed_p += m->peers->nodes[i]->n.fetch_failed;
        }
        ldr_host_unlock(&m->node->host);
    }
}

/* What three members have fetched, others are told to fetch from them; if they
 * have it no more, it comes from the owner. */
static void test_hot(void **state)
{
    enum { KEYS = 12 };
    rig_t *r = peers_new(8, no_saves);
    unsigned key = 1;
    uint64_t sent_on, failed;
    larder_tier_t tier;

    (void)state;
    for (unsigned i = 0; i < 2 * KEYS; i++) {
        key = key_of(r, key + 1, 1, 0);
        need(save(&r->members[1], key, 65536) == LARDER_OK);
        for (unsigned k = 2; k <= 8; k++) {
            member_t *m = &r->members[k];

            if (k == 5 && i >= KEYS) { /* the first ones drop it again */
                for (unsigned d = 2; d <= 4; d++) {
                    churn(&r->members[d], 1000 * i);
                }
            }
            need(ask(m, key, 1, true));
            need(fetch(m, key, 500, &tier) == LARDER_OK);
            need(tier == LARDER_TIER_PEER);
        }
        count(r, &sent_on, &failed);
        need(i >= KEYS || failed == 0);
        need(i != KEYS - 1 || sent_on > KEYS);
    }
    need(failed > 0); /* so it was tried, and none was a miss */
    peers_free(r);
}

#define ROUND 32u /* chunks of a chain: a quarter of DRAM */

static void save_chain(member_t *m, unsigned first)
{
    rig_t *r = m->rig;

    for (unsigned i = 0; i < ROUND; i++) {
        larder_key_t name = name_of(first + i), parent = name_of(first + i - 1);
        struct iovec iov = {r->data, 65536};
        larder_item_t item = {.key = &name,
                              .parent = i > 0 ? &parent : NULL,
                              .depth = i,
                              .iov = &iov,
                              .iov_count = 1};
        ldr_target_t target = {m->space, 1, &item};
        ldr_stop_t stop = {NULL, sim_now(r->net) + 500 * SIM_MS};

        content(first + i, r->data, 65536);
        ldr_node_put(m->node, &target, false, &stop);
        need(item.status == LARDER_OK);
    }
}

/* Leases are on some chunks of each chain that a member has. What it saves then
 * drives out the others of these, and not itself before its owners have it. */
static void test_lease_of_each_chain(void **state)
{
    static const setting_t lru[] = {{"policy", "lru"}, {NULL, NULL}};
    larder_tier_t tier;

    (void)state;
    for (unsigned p = 0; p < 2; p++) {
        rig_t *r = peers_new(5, p > 0 ? lru : NULL);

        for (unsigned first = 1; first < 40 * ROUND; first += ROUND) {
            ldr_stop_t stop = {NULL, sim_now(r->net) + 2000 * SIM_MS};

            save_chain(&r->members[2], first);
            need(ldr_peer_flush(&r->members[2].peers->base, &stop) ==
                 LARDER_OK);
            need(ask(&r->members[1], first, ROUND, true));
            for (unsigned i = 0; i < ROUND; i++) {
                need(fetch(&r->members[1], first + i, 500, &tier) == LARDER_OK);
            }
        }
        peers_free(r);
    }
}

/* ---- what is cold ---- */

/* Saves until the key has left the member's DRAM, and one that is older is
 * still there. */
static void leaves_before(member_t *m, unsigned key, unsigned older)
{
    for (unsigned i = 0; i < 256 && chunk_of(m, key) != LDR_NIL; i++) {
        need(chunk_of(m, older) != LDR_NIL);
        larder_status_t st = save(m, 2000000 + 1000 * key + i, 65536);
        need(st == LARDER_OK || st == LARDER_DECLINED);
    }
    need(chunk_of(m, key) == LDR_NIL && chunk_of(m, older) != LDR_NIL);
}

/* What was fetched goes before what was saved here, until it is used again. A
 * use right after the fetch is of the same request. */
static void test_fetched_is_cold(void **state)
{
    rig_t *r = peers_new(2, no_saves);
    member_t *m = &r->members[1];
    unsigned own = key_of(r, 1, 1, 2), one = key_of(r, 1, 2, 1),
             two = key_of(r, one + 1, 2, 1);
    larder_tier_t tier;

    (void)state;
    need(save(m, own, 65536) == LARDER_OK);
    need(save(&r->members[2], one, 65536) == LARDER_OK);
    need(save(&r->members[2], two, 65536) == LARDER_OK);
    need(ask(m, one, 1, true) && ask(m, two, 1, true));
    need(fetch(m, one, 500, &tier) == LARDER_OK);
    need(fetch(m, two, 500, &tier) == LARDER_OK);
    need(fetch(m, one, 500, &tier) == LARDER_OK && tier == LARDER_TIER_DRAM);
    need(m->node->store.chunks[chunk_of(m, one)].transient);
    sim_sleep(r->net, 6000 * SIM_MS);
    need(fetch(m, two, 500, &tier) == LARDER_OK && tier == LARDER_TIER_DRAM);
    need(!m->node->store.chunks[chunk_of(m, two)].transient);
    leaves_before(m, one, own);
    need(chunk_of(m, two) != LDR_NIL);
    peers_free(r);
}

/* What was saved for others goes first once it is on this member's disk; what
 * is read is like anything else from then on. */
static void test_taken_leaves(void **state)
{
    rig_t *r = peers_with(2, true, NULL);
    member_t *m = &r->members[2];
    unsigned own = key_of(r, 1, 2, 1), one = key_of(r, own + 1, 2, 1),
             two = key_of(r, one + 1, 2, 1);
    larder_tier_t tier;

    (void)state;
    need(save(m, own, 65536) == LARDER_OK);
    need(save(&r->members[1], one, 65536) == LARDER_OK);
    need(save(&r->members[1], two, 65536) == LARDER_OK);
    sim_sleep(r->net, 3000 * SIM_MS); /* it is brought, and written */
    need(!m->node->store.chunks[chunk_of(m, own)].transient);
    need(m->node->store.chunks[chunk_of(m, one)].transient);
    need(fetch(m, two, 500, &tier) == LARDER_OK && tier == LARDER_TIER_DRAM);
    need(!m->node->store.chunks[chunk_of(m, two)].transient);
    leaves_before(m, one, own);
    need(fetch(m, one, 500, &tier) == LARDER_OK && tier == LARDER_TIER_SSD);
    peers_free(r);
}

/* ---- epochs ---- */

#define SPACES 5000u /* more than one MEET has room for */

static void open_spaces(member_t *m, uint32_t *spaces)
{
    ldr_space_info_t info = {.tenant = "default", .has_key = true};

    for (uint32_t i = 0; i < SPACES; i++) {
        ldr_put32(info.space_id, i + 1);
        need(ldr_node_space(m->node, &info, &spaces[i]) == LARDER_OK);
    }
}

static uint32_t epoch_of(member_t *m, uint32_t space)
{
    ldr_host_lock(&m->node->host);
    uint32_t epoch = m->node->store.spaces[space].epoch;
    ldr_host_unlock(&m->node->host);
    return epoch;
}

/* A reset reaches the other member, however many spaces were reset before; in
 * a request, and in the reply to one. */
static void test_many_epochs(void **state)
{
    static uint32_t one[SPACES], two[SPACES];
    rig_t *r = peers_new(2, no_saves);
    member_t *a = &r->members[1], *b = &r->members[2];

    (void)state;
    open_spaces(a, one);
    open_spaces(b, two);
    ldr_host_lock(&a->node->host);
    for (uint32_t i = 0; i + 1 < SPACES; i++) {
        ldr_store_set_epoch(&a->node->store, one[i], 1000 + i);
    }
    ldr_host_unlock(&a->node->host);
    need(ldr_node_reset(a->node, one[SPACES - 1],
                        sim_now(r->net) + 2000 * SIM_MS) == LARDER_OK);
    for (uint32_t i = 0; i < SPACES; i++) {
        need(epoch_of(a, one[i]) > 0);
        need(epoch_of(a, one[i]) == epoch_of(b, two[i]));
    }
    /* Nobody can connect to the first: it hears by its own calls only. */
    ldr_peer_server_close(a->server);
    a->server = NULL;
    need(ldr_node_reset(b->node, two[SPACES - 1],
                        sim_now(r->net) + 2000 * SIM_MS) == LARDER_PARTIAL);
    need(epoch_of(a, one[SPACES - 1]) != epoch_of(b, two[SPACES - 1]));
    sim_sleep(r->net, 6000 * SIM_MS);
    need(epoch_of(a, one[SPACES - 1]) == epoch_of(b, two[SPACES - 1]));
    peers_free(r);
}

/* ---- members that do not answer, and no memory here ---- */

#define HELD_MAX 256u
#define BYTES 65536u

static ldr_peer_node_t *node_of(member_t *m, unsigned place)
{
    char name[16];

    snprintf(name, sizeof(name), "n%u", place);
    ldr_host_lock(&m->node->host);
    ldr_peer_node_t *n = ldr_peers_node(m->peers, name);
    ldr_host_unlock(&m->node->host);
    return n;
}

static larder_cause_t cause_of_miss(member_t *m, unsigned key)
{
    larder_key_t name = name_of(key);
    larder_item_t item = {.key = &name};
    ldr_load_t load = {.target = {m->space, 1, &item}};

    need(ldr_load_begin(m->node, &load) && load.status == LARDER_MISS);
    ldr_load_end(m->node, &load, false);
    return load.cause;
}

/* Saves, and holds what was saved, until there is no memory left. */
static unsigned hold_all(member_t *m, larder_key_t *names, larder_item_t *items,
                         ldr_load_t *loads)
{
    unsigned count = 0;

    while (count < HELD_MAX && save(m, 5000 + count, BYTES) == LARDER_OK) {
        names[count] = name_of(5000 + count);
        items[count] = (larder_item_t){.key = &names[count]};
        loads[count] = (ldr_load_t){.target = {m->space, 1, &items[count]}};
        need(ldr_load_begin(m->node, &loads[count]));
        need(loads[count].status == LARDER_OK);
        count++;
    }
    need(count > 0 && count < HELD_MAX);
    return count;
}

/* A fetch for which this node has no memory is a miss that says so. The member
 * is not blamed: its connections stay, and the next fetch uses them. */
static void test_full_here(void **state)
{
    static larder_key_t names[HELD_MAX];
    static larder_item_t items[HELD_MAX];
    static ldr_load_t loads[HELD_MAX];
    rig_t *r = peers_new(2, no_saves);
    member_t *m = &r->members[1];
    unsigned key = key_of(r, 1, 2, 1);
    ldr_peer_node_t *peer = node_of(m, 2);
    larder_tier_t tier;

    (void)state;
    need(save(&r->members[2], key, BYTES) == LARDER_OK);
    unsigned held = hold_all(m, names, items, loads);
    need(ask(m, key, 1, true));
    uint64_t met = peer->n.met, failed = peer->n.fetch_failed;
    need(cause_of_miss(m, key) == LARDER_CAUSE_FULL);
    need(ldr_peer_well(peer) && peer->n.fetch_failed == failed);
    for (unsigned i = 0; i < held; i++) {
        ldr_load_end(m->node, &loads[i], false);
    }
    need(fetch(m, key, 500, &tier) == LARDER_OK && tier == LARDER_TIER_PEER);
    need(peer->n.met == met); /* so nothing was connected again */
    peers_free(r);
}

/* One of three owners falls silent. A request for a chunk of each ends in time:
 * it has what the others own, and the third is unknown. The others are well. As
 * soon as the third is heard it is asked again, because silence is no answer.
 */
static void test_one_is_silent(void **state)
{
    static const setting_t short_calls[] = {
        {"peer_save", "never"}, {"peer_timeout_ms", "100"}, {NULL, NULL}};
    rig_t *r = peers_new(4, short_calls);
    member_t *m = &r->members[1];
    unsigned keys[3] = {0}, first = 1;
    larder_tier_t tier;

    (void)state;
    /* Three keys in a row that the three others own. */
    for (;; first++) {
        unsigned seen = 0;

        for (unsigned i = 0; i < 3; i++) {
            keys[i] = first + i;
            seen |= 1u << member_of(r, keys[i], 0);
        }
        if (seen == (1u << 2 | 1u << 3 | 1u << 4)) {
            break;
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        need(save(&r->members[member_of(r, keys[i], 0)], keys[i], BYTES) ==
             LARDER_OK);
    }
    uint64_t begin_ns = sim_now(r->net);
    sim_cut(r->net, 3, 1, true);
    need(ask(m, first, 3, true));
    need(sim_now(r->net) - begin_ns <= 100 * SIM_MS); /* peer_match_ms is 50 */
    for (unsigned i = 0; i < 3; i++) {
        if (member_of(r, keys[i], 0) == 3) {
            need(cause_of_miss(m, keys[i]) == LARDER_CAUSE_OFFLINE);
        } else {
            need(fetch(m, keys[i], 100, &tier) == LARDER_OK);
            need(tier == LARDER_TIER_PEER);
        }
    }
    need(ldr_peer_well(node_of(m, 2)) && ldr_peer_well(node_of(m, 4)));
    sim_sleep(r->net, 100 * SIM_MS); /* the call ends without an answer */
    sim_cut(r->net, 3, 1, false);
    sim_sleep(r->net, 110 * SIM_MS); /* and the pause after it */
    need(sim_now(r->net) - begin_ns < 450 * SIM_MS); /* less than for absent */
    for (unsigned i = 0; i < 3; i++) {
        ask(m, keys[i], 1, true);
        need(fetch(m, keys[i], 100, &tier) == LARDER_OK);
    }
    peers_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admit),
        cmocka_unit_test(test_lease),
        cmocka_unit_test(test_lease_ends),
        cmocka_unit_test(test_lease_bounds),
        cmocka_unit_test(test_damaged_at_its_holder),
        cmocka_unit_test(test_one_lane_wakes),
        cmocka_unit_test(test_lease_counts_pages),
        cmocka_unit_test(test_lease_renewed),
        cmocka_unit_test(test_hint),
        cmocka_unit_test(test_lease_of_each_chain),
        cmocka_unit_test(test_hot),
        cmocka_unit_test(test_fetched_is_cold),
        cmocka_unit_test(test_taken_leaves),
        cmocka_unit_test(test_many_epochs),
        cmocka_unit_test(test_full_here),
        cmocka_unit_test(test_one_is_silent),
    };

    return rig_main(tests, sizeof(tests) / sizeof(tests[0]));
}
