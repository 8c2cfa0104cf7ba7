/* Whose disk keeps a chunk, and who knows of it (tier/peer/homes.h). */
#include "server/peer_rig.h"
#include "tier/peer/homes.h"

static const setting_t writer[] = {{"home", "writer"}, {NULL, NULL}};

/* ---- looking ---- */

static uint32_t entry_of(member_t *m, unsigned key)
{
    ldr_store_t *s = &m->node->store;
    larder_key_t name = name_of(key);
    larder_cause_t cause;
    ldr_name_t n = ldr_store_name(s, m->space, 0, &name);

    return ldr_store_find(s, &n, LDR_NIL, 1, &cause);
}

static bool on_disk(member_t *m, unsigned key)
{
    ldr_host_lock(&m->node->host);
    uint32_t entry = entry_of(m, key);
    bool is =
        entry != LDR_NIL && ldr_index_has_loc(&m->node->store.index, entry);
    ldr_host_unlock(&m->node->host);
    return is;
}

/* Only on its disk from here on. */
static void evict(member_t *m, unsigned key)
{
    ldr_host_lock(&m->node->host);
    uint32_t entry = entry_of(m, key);
    need(entry != LDR_NIL);
    uint32_t chunk = ldr_index_at(&m->node->store.index, entry)->resident;
    if (chunk != LDR_NIL) {
        ldr_store_evict_chunk(&m->node->store, chunk);
    }
    need(ldr_index_has_loc(&m->node->store.index, entry));
    ldr_host_unlock(&m->node->host);
}

static void forget(member_t *m, unsigned key)
{
    ldr_host_lock(&m->node->host);
    ldr_store_forget(&m->node->store, entry_of(m, key));
    ldr_host_unlock(&m->node->host);
}

/* How many homes a member knows of the key. */
static unsigned homes(member_t *m, unsigned key)
{
    const ldr_store_t *s = &m->node->store;
    larder_key_t name = name_of(key);
    ldr_peer_node_t *nodes[LDR_HOMES_KNOWN];

    ldr_host_lock(&m->node->host);
    unsigned n = ldr_home_find(
        m->peers, ldr_store_name(s, m->space, 0, &name).fingerprint,
        s->spaces[m->space].epoch, NULL, nodes);
    ldr_host_unlock(&m->node->host);
    return n;
}

static ldr_peer_node_t *other(member_t *m, unsigned place)
{
    char name[16];

    snprintf(name, sizeof(name), "n%u", place);
    return ldr_peers_node(m->peers, name);
}

static larder_status_t read_of(member_t *m, unsigned key)
{
    larder_tier_t tier;

    ask(m, key, 1, true);
    return fetch(m, key, 500, &tier);
}

static void wait(rig_t *r, unsigned ms)
{
    sim_sleep(r->net, ms * SIM_MS);
}

/* ---- saves and reads ---- */

/* The writer's disk has it and no other; every other member finds it, at the
 * cost of one round trip more. */
static void test_stays_with_its_writer(void **state)
{
    rig_t *r = peers_with(4, true, writer);
    unsigned key = key_of(r, 1, 2, 3);
    larder_tier_t tier;

    (void)state;
    need(save(&r->members[1], key, 65536) == LARDER_OK);
    wait(r, 500);
    need(on_disk(&r->members[1], key));
    need(homes(&r->members[2], key) == 1 && homes(&r->members[3], key) == 1);
    need(chunk_of(&r->members[2], key) == LDR_NIL);
    evict(&r->members[1], key);
    uint64_t began_ns = sim_now(r->net);
    need(ask(&r->members[4], key, 1, true));
    need(sim_now(r->net) - began_ns < 5 * SIM_MS);
    need(fetch(&r->members[4], key, 500, &tier) == LARDER_OK);
    need(tier == LARDER_TIER_PEER);
    need(read_of(&r->members[2], key) == LARDER_OK); /* it knows itself */
    wait(r, 500);
    for (unsigned i = 2; i <= 4; i++) {
        need(!on_disk(&r->members[i], key));
    }
    peers_free(r);
}

/* What the home says it has it keeps in DRAM for the reader. */
static void test_lease_at_home(void **state)
{
    rig_t *r = peers_with(4, true, writer);
    unsigned key = key_of(r, 1, 2, 3);
    larder_tier_t tier;

    (void)state;
    need(save(&r->members[1], key, 65536) == LARDER_OK);
    wait(r, 300);
    need(ask(&r->members[4], key, 1, true));
    need(leased(&r->members[1], 4) == 65536);
    wait(r, 3000); /* a whole lease, not that of a second holder */
    need(leased(&r->members[1], 4) == 65536);
    need(fetch(&r->members[4], key, 500, &tier) == LARDER_OK);
    need(leased(&r->members[1], 4) == 0);
    peers_free(r);
}

/* Shards of one chunk that two members saved are found together. */
static void test_two_homes(void **state)
{
    rig_t *r = peers_with(5, true, writer);
    unsigned key = key_of(r, 1, 2, 3);
    larder_key_t name = name_of(key);

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        member_t *m = &r->members[i == 0 ? 1 : 4];
        struct iovec iov = {r->data, 4096};
        larder_item_t item = {
            .key = &name, .iov = &iov, .iov_count = 1, .shard = i};
        ldr_target_t target = {m->space, 2, &item};
        ldr_stop_t stop = {NULL, sim_now(r->net) + 500 * SIM_MS};

        ldr_node_put(m->node, &target, false, &stop);
        need(item.status == LARDER_OK);
    }
    wait(r, 300);
    need(homes(&r->members[2], key) == 2);
    member_t *m = &r->members[5];
    ldr_query_t *q = ldr_node_ask_begin(m->node, m->space, 2,
                                        sim_now(r->net) + 500 * SIM_MS);
    need(ldr_node_ask_add(m->node, q, 0, &name, 1) == LARDER_OK);
    need(ldr_node_ask(m->node, q));
    ldr_node_ask_wait(m->node, q);
    ldr_node_ask_end(m->node, q);
    for (unsigned i = 0; i < 2; i++) {
        larder_item_t item = {.key = &name, .shard = i};
        ldr_load_t load = {.target = {m->space, 2, &item}};

        if (!ldr_load_begin(m->node, &load)) {
            ldr_node_reads_go(m->node);
            ldr_load_wait(m->node, &load, sim_now(r->net) + 500 * SIM_MS);
        }
        need(load.status == LARDER_OK && load.tier == LARDER_TIER_PEER);
        ldr_load_end(m->node, &load, false);
    }
    peers_free(r);
}

/* At the second read by others the owner has a copy, on its disk. */
static void test_owner_takes_a_copy(void **state)
{
    rig_t *r = peers_with(6, true, writer);
    unsigned key = key_of(r, 1, 2, 3);

    (void)state;
    need(save(&r->members[1], key, 65536) == LARDER_OK);
    wait(r, 300);
    need(read_of(&r->members[4], key) == LARDER_OK);
    wait(r, 500);
    need(chunk_of(&r->members[2], key) == LDR_NIL);
    need(read_of(&r->members[5], key) == LARDER_OK);
    wait(r, 1000);
    need(on_disk(&r->members[2], key) && !on_disk(&r->members[3], key));
    need(r->members[2].peers->copied == 1);
    member_down(&r->members[1]);
    need(read_of(&r->members[6], key) == LARDER_OK);
    peers_free(r);
}

/* ---- homes that are wrong ---- */

static void test_reset_ends_homes(void **state)
{
    rig_t *r = peers_with(4, true, writer);
    unsigned key = key_of(r, 1, 2, 3);

    (void)state;
    need(save(&r->members[1], key, 65536) == LARDER_OK);
    wait(r, 300);
    need(homes(&r->members[2], key) == 1);
    need(ldr_node_reset(r->members[4].node, r->members[4].space,
                        sim_now(r->net) + 1000 * SIM_MS) == LARDER_OK);
    for (unsigned i = 1; i <= 4; i++) {
        need(homes(&r->members[i], key) == 0);
        need(read_of(&r->members[i], key) == LARDER_MISS);
    }
    need(save(&r->members[1], key, 65536) == LARDER_OK);
    wait(r, 1000);
    need(homes(&r->members[2], key) == 1 && homes(&r->members[3], key) == 1);
    need(read_of(&r->members[4], key) == LARDER_OK);
    peers_free(r);
}

/* A wrong one is dropped by the first who was sent there for nothing; unless it
 * is new, because what was lacking may have been saved since. */
static void test_wrong_home(void **state)
{
    rig_t *r = peers_with(5, true, writer);
    unsigned key = key_of(r, 1, 2, 3);

    (void)state;
    need(save(&r->members[1], key, 65536) == LARDER_OK);
    wait(r, 1000);
    forget(&r->members[1], key);
    need(read_of(&r->members[4], key) == LARDER_MISS);
    wait(r, 500);
    need(homes(&r->members[2], key) == 1);
    wait(r, LDR_HOME_NEW_S * 1000);
    need(read_of(&r->members[4], key) == LARDER_MISS);
    wait(r, 500);
    need(homes(&r->members[2], key) == 0 && homes(&r->members[3], key) == 0);
    ldr_host_lock(&r->members[4].node->host);
    need(other(&r->members[4], 1)->n.home_wrong == 2);
    ldr_host_unlock(&r->members[4].node->host);
    peers_free(r);
}

/* ---- announcing again ---- */

/* An owner that was restarted is told again, also of what is on disks only. */
static void test_restarted_owner(void **state)
{
    enum { KEYS = 20 };
    rig_t *r = peers_with(4, true, writer);
    unsigned keys[KEYS], key = 1;

    (void)state;
    for (unsigned i = 0; i < KEYS; i++) {
        keys[i] = key = key_of(r, key + 1, 2, 3);
        need(save(&r->members[1], key, 8192) == LARDER_OK);
    }
    wait(r, 1000);
    for (unsigned i = 0; i < KEYS; i += 2) {
        evict(&r->members[1], keys[i]);
    }
    for (unsigned i = 2; i <= 3; i++) {
        member_down(&r->members[i]);
        member_up(r, i, writer);
        need(homes(&r->members[i], keys[0]) == 0);
    }
    wait(r, 10000);
    for (unsigned i = 0; i < KEYS; i++) {
        need(homes(&r->members[2], keys[i]) == 1);
        need(homes(&r->members[3], keys[i]) == 1);
        need(read_of(&r->members[4], keys[i]) == LARDER_OK);
    }
    peers_free(r);
}

/* What was saved while the owner could not be reached it is told of later. */
static void test_cut_owner(void **state)
{
    rig_t *r = peers_with(4, true, writer);
    unsigned key = key_of(r, 1, 2, 3);

    (void)state;
    sim_cut(r->net, 1, 2, true);
    sim_cut(r->net, 2, 1, true);
    need(save(&r->members[1], key, 65536) == LARDER_OK);
    wait(r, 3000);
    need(homes(&r->members[2], key) == 0 && homes(&r->members[3], key) == 1);
    sim_cut(r->net, 1, 2, false);
    sim_cut(r->net, 2, 1, false);
    wait(r, 10000);
    need(homes(&r->members[2], key) == 1);
    peers_free(r);
}

/* More than can be kept for a member that is away: it is told of everything
 * once it is back. */
static void test_too_much_to_tell(void **state)
{
    rig_t *r = peers_with(3, true, writer);
    member_t *m = &r->members[1];
    unsigned key = key_of(r, 1, 2, 3);

    (void)state;
    need(save(m, key, 4096) == LARDER_OK);
    wait(r, 300);
    ldr_host_lock(&m->node->host);
    ldr_peer_node_t *n = other(m, 2);
    n->here_busy = true; /* nothing is said */
    uint32_t shard =
        m->node->store
            .chunks[ldr_index_at(&m->node->store.index, entry_of(m, key))
                        ->resident]
            .shards;
    ldr_chunk_t *c = &m->node->store.chunks[m->node->store.shards[shard].chunk];
    larder_key_t right = c->key;
    for (unsigned i = 0; i < LDR_HERE_MAX + 10; i++) {
        c->key = name_of(key_of(r, 1, 2, 3)); /* placed alike, all different */
        ldr_put32(c->key.hash + 20, i);
        m->node->store.shards[shard].announced = 0;
        ldr_home_announce(m->peers, shard);
    }
    c->key = right;
    need(n->here_rows == LDR_HERE_MAX && n->here_all);
    n->here_busy = false;
    ldr_host_unlock(&m->node->host);
    uint64_t walks = m->peers->walks;
    wait(r, 5000);
    ldr_host_lock(&m->node->host);
    need(n->here_rows == 0 && !n->here_all && m->peers->walks > walks);
    ldr_host_unlock(&m->node->host);
    peers_free(r);
}

/* ---- who is no home ---- */

/* No disk, or this node leaves: the owner is brought the bytes. */
static void test_goes_to_the_owner(void **state)
{
    static const setting_t automatic[] = {{"home", "auto"}, {NULL, NULL}};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        rig_t *r = peers_with(3, i == 2, i == 0 ? automatic : writer);
        unsigned key = key_of(r, 1, 2, 3);

        if (i == 2) {
            ldr_cluster_leave(r->members[1].cluster, false, 0);
            wait(r, 1000);
        }
        need(save(&r->members[1], key, 65536) == LARDER_OK);
        wait(r, 500);
        need(chunk_of(&r->members[2], key) != LDR_NIL);
        need(homes(&r->members[2], key) == 0);
        peers_free(r);
    }
}

/* Keeps all memory of a member for itself: nobody can save there. */
static void fill_up(member_t *m)
{
    static larder_key_t names[256];
    static larder_item_t items[256];
    static ldr_load_t loads[256];
    unsigned i = 0;

    for (; i < 256 && save(m, 5000 + i, 65536) == LARDER_OK; i++) {
        names[i] = name_of(5000 + i);
        items[i] = (larder_item_t){.key = &names[i]};
        loads[i] = (ldr_load_t){.target = {m->space, 1, &items[i]}};
        need(ldr_load_begin(m->node, &loads[i]));
    }
    need(i > 0 && i < 256);
}

/* What the owner was to keep, and does not take after all, this node's disk
 * keeps: where the owner is gone, and where it has no room. */
static void test_owner_takes_nothing(void **state)
{
    (void)state;
    for (unsigned full = 0; full < 2; full++) {
        rig_t *r = peers_with(2, true, NULL);
        member_t *m = &r->members[1];
        unsigned key = key_of(r, 1, 2, 1);

        need(save(m, key, 4096) == LARDER_OK);
        wait(r, 1000);
        need(on_disk(&r->members[2], key) && !on_disk(m, key));
        if (full) {
            fill_up(&r->members[2]);
        } else {
            sim_cut(r->net, 2, 1, true);
        }
        key = key_of(r, key + 1, 2, 1);
        need(save(m, key, 4096) == LARDER_OK);
        wait(r, 3000);
        need(chunk_of(&r->members[2], key) == LDR_NIL || !full);
        need(on_disk(m, key));
        peers_free(r);
    }
}

/* A member that keeps no homes is brought what it owns; one that cannot be told
 * of homes finds it with the owner the next time. */
static void test_older_build(void **state)
{
    rig_t *r = peers_with(4, true, writer);
    unsigned key = key_of(r, 1, 2, 3), next = key_of(r, key + 1, 2, 3);

    (void)state;
    ldr_host_lock(&r->members[1].node->host);
    other(&r->members[1], 2)->homes = false;
    ldr_host_unlock(&r->members[1].node->host);
    need(save(&r->members[1], key, 65536) == LARDER_OK);
    wait(r, 500);
    need(chunk_of(&r->members[2], key) != LDR_NIL);
    ldr_host_lock(&r->members[1].node->host);
    other(&r->members[1], 2)->homes = true;
    ldr_host_unlock(&r->members[1].node->host);
    need(save(&r->members[1], next, 65536) == LARDER_OK);
    wait(r, 500);
    need(chunk_of(&r->members[2], next) == LDR_NIL);
    for (unsigned i = 2; i <= 3; i++) {
        ldr_host_lock(&r->members[4].node->host);
        other(&r->members[4], i)->homes = false; /* it asks as they do */
        ldr_host_unlock(&r->members[4].node->host);
        ldr_host_lock(&r->members[i].node->host);
        other(&r->members[i], 4)->homes = false;
        ldr_host_unlock(&r->members[i].node->host);
    }
    need(read_of(&r->members[4], next) == LARDER_MISS);
    wait(r, 1000);
    need(read_of(&r->members[4], next) == LARDER_OK);
    peers_free(r);
}

/* With two copies the writer's disk is one of them. */
static void test_copies(void **state)
{
    static const setting_t two[] = {
        {"home", "writer"}, {"copies", "2"}, {NULL, NULL}};
    rig_t *r = peers_with(4, true, two);
    unsigned key = key_of(r, 1, 2, 3), own = key_of(r, 1, 1, 2);

    (void)state;
    need(save(&r->members[1], key, 65536) == LARDER_OK);
    need(save(&r->members[1], own, 65536) == LARDER_OK);
    wait(r, 1500);
    for (unsigned i = 1; i <= 4; i++) {
        need(on_disk(&r->members[i], key) == (i <= 2));
        need(on_disk(&r->members[i], own) == (i <= 2));
    }
    need(homes(&r->members[3], key) == 1);
    peers_free(r);
}

/* ---- the table ---- */

/* It does not grow beyond what it was given; what is used stays. */
static void test_bounds(void **state)
{
    static const setting_t few[] = {
        {"home", "writer"}, {"peer_homes", "256"}, {NULL, NULL}};
    rig_t *r = peers_with(2, true, few);
    ldr_peers_t *p = r->members[1].peers;
    ldr_peer_node_t *nodes[LDR_HOMES_KNOWN];
    ldr_peer_node_t *n;

    (void)state;
    ldr_host_lock(p->host);
    n = other(&r->members[1], 2);
    ldr_host_unlock(p->host);
    for (uint64_t i = 1; i <= 5000; i++) {
        if (i % 50 == 0) {
            wait(r, 1000);
        }
        ldr_host_lock(p->host);
        ldr_home_put(n, i * 0x9e3779b97f4a7c15u, 1);
        (void)ldr_home_read(n, 0x9e3779b97f4a7c15u, 1);
        need(ldr_homes_count(p->homes) <= 256);
        ldr_host_unlock(p->host);
    }
    ldr_host_lock(p->host);
    need(ldr_homes_count(p->homes) > 200);
    need(p->homes_dropped == 5000 - ldr_homes_count(p->homes));
    need(ldr_home_find(p, 0x9e3779b97f4a7c15u, 1, NULL, nodes) == 1);
    need(ldr_home_find(p, 0x9e3779b97f4a7c15u, 2, NULL, nodes) == 0);
    ldr_host_unlock(p->host);
    peers_free(r);
}

/* A home of a member whose entry another one has taken since is not found. */
static void test_entry_taken(void **state)
{
    rig_t *r = peers_with(3, true, writer);
    member_t *m = &r->members[1];
    unsigned key = key_of(r, 1, 1, 2);
    larder_key_t name = name_of(key);
    const ldr_store_t *s = &m->node->store;

    (void)state;
    ldr_host_lock(&m->node->host);
    uint64_t print = ldr_store_name(s, m->space, 0, &name).fingerprint;
    uint32_t epoch = s->spaces[m->space].epoch;
    uint64_t count = ldr_homes_count(m->peers->homes);
    ldr_home_put(other(m, 2), print, epoch);
    ldr_home_put(other(m, 3), print, epoch);
    ldr_host_unlock(&m->node->host);
    need(homes(m, key) == 2);
    wait(r, 2000);
    for (unsigned left = 2; left > 0; left--) {
        ldr_host_lock(&m->node->host);
        other(m, 1 + left)->since_s =
            (uint32_t)(sim_now(r->net) / (1000 * SIM_MS));
        ldr_host_unlock(&m->node->host);
        need(homes(m, key) == left - 1);
    }
    need(ldr_homes_count(m->peers->homes) == count);
    peers_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stays_with_its_writer),
        cmocka_unit_test(test_lease_at_home),
        cmocka_unit_test(test_two_homes),
        cmocka_unit_test(test_owner_takes_a_copy),
        cmocka_unit_test(test_reset_ends_homes),
        cmocka_unit_test(test_wrong_home),
        cmocka_unit_test(test_restarted_owner),
        cmocka_unit_test(test_cut_owner),
        cmocka_unit_test(test_too_much_to_tell),
        cmocka_unit_test(test_goes_to_the_owner),
        cmocka_unit_test(test_owner_takes_nothing),
        cmocka_unit_test(test_older_build),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_entry_taken),
    };

    return rig_main(tests, sizeof(tests) / sizeof(*tests));
}
