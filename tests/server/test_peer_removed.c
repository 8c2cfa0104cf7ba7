/* Removals that members forget, and whom they cost something. */
#include "server/peer_rig.h"

#define BYTES 4096u
#define MANY (LDR_REMOVALS_MAX + 1000u)

static const setting_t three[] = {
    {"cluster", "static:n1=sim:1,n2=sim:2,n3=sim:3"}, {NULL, NULL}};

/* For a member that can be called, and calls nobody. */
static const setting_t silent[] = {
    {"cluster", "static:n1=sim:8,n2=sim:9,n3=sim:3"}, {NULL, NULL}};

/* Two of three members; nobody has heard of the third one. */
static rig_t *two_of_three(void)
{
    rig_t *r = peers_new(2, three);

    r->count = 3;
    return r;
}

static larder_status_t remove_all(member_t *m, unsigned first, unsigned count)
{
    larder_key_t *names = calloc(count, sizeof(*names));
    larder_item_t *items = calloc(count, sizeof(*items));

    for (unsigned i = 0; i < count; i++) {
        names[i] = name_of(first + i);
        items[i] = (larder_item_t){.key = &names[i]};
    }
    /* What is more would be forgotten before others have heard of it. */
    for (unsigned done = 0; done < count; done += LARDER_BATCH_MAX) {
        unsigned left = count - done;
        ldr_stop_t stop = {NULL, sim_now(m->rig->net) + 2000 * SIM_MS};

        ldr_node_remove(m->node, m->space, items + done,
                        left < LARDER_BATCH_MAX ? left : LARDER_BATCH_MAX,
                        &stop);
    }
    larder_status_t st = items[0].status;
    free(names);
    free(items);
    return st;
}

/* More than a day goes by for what is on the lists. */
static void age(rig_t *r)
{
    r->wall_s += LDR_REMOVALS_KEPT_S + 10;
}

static uint32_t epoch_of(member_t *m)
{
    ldr_host_lock(&m->node->host);
    uint32_t epoch = m->node->store.spaces[m->space].epoch;
    ldr_host_unlock(&m->node->host);
    return epoch;
}

/* It has heard of all that this member knows. */
static bool node_informed(member_t *m, const char *name)
{
    ldr_host_lock(&m->node->host);
    const ldr_peer_node_t *n = ldr_peers_named(m->peers, name);
    bool informed = n != NULL && n->informed == m->peers->wanted;
    ldr_host_unlock(&m->node->host);
    return informed;
}

static void cut(rig_t *r, unsigned place, bool off)
{
    for (unsigned i = 1; i <= r->count; i++) {
        if (i != place) {
            sim_cut(r->net, place, i, off);
            sim_cut(r->net, i, place, off);
        }
    }
}

/* A member that begins with nothing has missed nothing: what the others have
 * stays, whatever they have forgotten. */
static void test_newcomer(void **state)
{
    rig_t *r = two_of_three();
    member_t *m = &r->members[1];

    (void)state;
    need(save(m, 1, BYTES) == LARDER_OK);
    remove_all(m, 100, 1);
    age(r);
    remove_all(m, 101, 1); /* makes it forget the first */
    need(m->peers->removal_first > 1);
    uint32_t epoch = epoch_of(m);
    member_up(r, 3, three);
    sim_sleep(r->net, 3000 * SIM_MS);
    need(node_informed(m, "n3"));
    need(epoch_of(m) == epoch && chunk_of(m, 1) != LDR_NIL);
    peers_free(r);
}

/* One that brings something along may have missed a removal of before. */
static void test_with_memory(void **state)
{
    rig_t *r = two_of_three();
    member_t *m = &r->members[1];
    ldr_handover_t handover = {0};

    (void)state;
    member_up(r, 3, three);
    cut(r, 3, true);
    need(save(&r->members[3], 1, BYTES) == LARDER_OK);
    sim_sleep(r->net, 1000 * SIM_MS);
    r->handover = &handover;
    member_down(&r->members[3]);
    remove_all(m, 1, 1);
    age(r);
    remove_all(m, 101, 1);
    uint32_t epoch = epoch_of(m);
    member_up(r, 3, three);
    need(handover.fd_count > 0 && chunk_of(&r->members[3], 1) != LDR_NIL);
    ldr_handover_free(&handover);
    r->handover = NULL;
    cut(r, 3, false);
    sim_sleep(r->net, 5000 * SIM_MS);
    need(node_informed(m, "n3"));
    need(epoch_of(m) != epoch && epoch_of(&r->members[3]) == epoch_of(m));
    need(chunk_of(&r->members[3], 1) == LDR_NIL);
    peers_free(r);
}

/* Whether a removal's id is in the set. */
static bool has_id(const ldr_peers_t *p, uint64_t id)
{
    uint64_t at = id % (2 * LDR_REMOVALS_MAX);

    while (p->removal_ids[at] != 0 && p->removal_ids[at] != id) {
        at = (at + 1) % (2 * LDR_REMOVALS_MAX);
    }
    return p->removal_ids[at] == id;
}

/* So does one that began with nothing, but before the last removal that was
 * forgotten, since there were too many. And what is on the list is known. */
static void test_too_many(void **state)
{
    rig_t *r = two_of_three();
    member_t *m = &r->members[1];
    const ldr_peers_t *p = m->peers;
    uint32_t ids = 0;

    (void)state;
    member_up(r, 3, three);
    cut(r, 3, true);
    sim_sleep(r->net, 120000 * SIM_MS);
    remove_all(m, 1, MANY);
    need(p->removal_first == MANY - LDR_REMOVALS_MAX + 1);
    for (uint32_t i = 0; i < p->removal_count; i++) {
        uint64_t at = p->removal_first + i;

        need(has_id(p, p->removals[at % LDR_REMOVALS_MAX].row.id));
    }
    for (uint32_t i = 0; i < 2 * LDR_REMOVALS_MAX; i++) {
        ids += p->removal_ids[i] != 0;
    }
    need(ids == LDR_REMOVALS_MAX);
    uint32_t epoch = epoch_of(m);
    cut(r, 3, false);
    sim_sleep(r->net, 5000 * SIM_MS);
    need(node_informed(m, "n3"));
    need(epoch_of(m) != epoch && epoch_of(&r->members[3]) == epoch_of(m));
    peers_free(r);
}

/* Nor does it help that it is called, and told what is still on the list,
 * before it has said what it has heard of. */
static void test_called_first(void **state)
{
    rig_t *r = two_of_three();
    member_t *m = &r->members[1];

    (void)state;
    member_up(r, 3, silent);
    cut(r, 3, true);
    need(save(&r->members[3], 1, BYTES) == LARDER_OK);
    sim_sleep(r->net, 120000 * SIM_MS);
    remove_all(m, 1, MANY);
    uint32_t epoch = epoch_of(m);
    cut(r, 3, false);
    sim_sleep(r->net, 10000 * SIM_MS);
    need(node_informed(m, "n3"));
    need(epoch_of(m) != epoch && epoch_of(&r->members[3]) == epoch_of(m));
    need(chunk_of(&r->members[3], 1) == LDR_NIL);
    peers_free(r);
}

/* After a reset what was removed before it is of no interest. */
static void test_reset_before(void **state)
{
    rig_t *r = two_of_three();
    member_t *m = &r->members[1];

    (void)state;
    member_up(r, 3, three);
    cut(r, 3, true);
    sim_sleep(r->net, 120000 * SIM_MS);
    remove_all(m, 1, LDR_REMOVALS_MAX + 10); /* some forgotten, some not */
    ldr_node_reset(m->node, m->space, sim_now(r->net) + 2000 * SIM_MS);
    remove_all(m, 1, LDR_REMOVALS_MAX);
    uint32_t epoch = epoch_of(m);
    need(save(m, 7, BYTES) == LARDER_OK);
    cut(r, 3, false);
    sim_sleep(r->net, 5000 * SIM_MS);
    need(node_informed(m, "n3"));
    need(epoch_of(m) == epoch && epoch_of(&r->members[3]) == epoch);
    peers_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_newcomer),
        cmocka_unit_test(test_with_memory),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_called_first),
        cmocka_unit_test(test_reset_before),
    };

    return rig_main(tests, sizeof(tests) / sizeof(tests[0]));
}
