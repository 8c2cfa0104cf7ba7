/* Members that are at another address from one moment to the next. */
#include "server/peer_rig.h"

#define BYTES 4096u

static char list[64];

static const setting_t by_list[] = {{"cluster", list}, {NULL, NULL}};

/* Where the list has the second member from now on. */
static void write_list(unsigned port)
{
    FILE *file = fopen(list + strlen("static:"), "w");

    need(file != NULL);
    need(fprintf(file, "n1=sim:1\nn2=sim:%u\n", port) > 0);
    need(fclose(file) == 0);
}

static rig_t *two(unsigned port)
{
    snprintf(list, sizeof(list), "static:/tmp/larder-peer-list-%ld",
             (long)getpid());
    write_list(port);
    return peers_new(2, by_list);
}

static void end(rig_t *r)
{
    peers_free(r);
    unlink(list + strlen("static:"));
}

/* The first member hears that the second one has moved. */
static void moves(rig_t *r, unsigned port)
{
    write_list(port);
    need(ldr_cluster_reload(r->members[1].cluster,
                            &r->members[1].node->host.options) == LARDER_OK);
}

/* The first member cannot read what a connection takes. */
static void break_files(rig_t *r, bool broken)
{
    ldr_options_t *o = &r->members[1].node->host.options;

    o->cluster_tls = broken ? LDR_TLS_ON : LDR_TLS_OFF;
    snprintf(o->cluster_ca, sizeof(o->cluster_ca), "/nonexistent/ca.pem");
}

static larder_status_t reset(member_t *m)
{
    return ldr_node_reset(m->node, m->space,
                          sim_now(m->rig->net) + 2000 * SIM_MS);
}

/* A way that cannot be made is tried again until it can. */
static void test_tried_again(void **state)
{
    rig_t *r = two(3); /* nobody is there */
    member_t *m = &r->members[1];

    (void)state;
    need(reset(m) == LARDER_PARTIAL);
    break_files(r, true);
    moves(r, 2);
    sim_sleep(r->net, 3000 * SIM_MS);
    need(reset(m) == LARDER_PARTIAL);
    break_files(r, false);
    sim_sleep(r->net, 3000 * SIM_MS);
    need(reset(m) == LARDER_OK);
    end(r);
}

/* What was queued for a member goes on when it moves, also where the way to its
 * new address cannot be made. */
static void test_work_goes_on(void **state)
{
    rig_t *r = two(2);
    member_t *m = &r->members[1], *there = &r->members[2];
    unsigned key = 0, keys[100];

    (void)state;
    sim_cut(r->net, 2, 1, true);
    for (unsigned i = 0; i < 100; i++) {
        keys[i] = key = key_of(r, key + 1, 2, 1);
        need(save(m, key, BYTES) == LARDER_OK);
    }
    sim_sleep(r->net, 100 * SIM_MS); /* some in hand, and some wait */
    break_files(r, true);
    moves(r, 3);
    sim_sleep(r->net, 5000 * SIM_MS);
    break_files(r, false);
    sim_cut(r->net, 2, 1, false);
    moves(r, 2);
    sim_sleep(r->net, 10000 * SIM_MS);
    for (unsigned i = 0; i < 100; i++) {
        need(chunk_of(there, keys[i]) != LDR_NIL);
    }
    end(r);
}

/* However often a member moves, no connection to where it was remains. */
static void test_moves_often(void **state)
{
    rig_t *r = two(2);
    member_t *m = &r->members[1];

    (void)state;
    for (unsigned i = 0; i < LDR_PEERS_MAX + 100; i++) {
        moves(r, 3 + i % 2);
        ldr_host_lock(&m->node->host);
        ldr_peers_look(m->peers);
        ldr_host_unlock(&m->node->host);
        sim_sleep(r->net, 20 * SIM_MS);
    }
    moves(r, 2);
    sim_sleep(r->net, 3000 * SIM_MS);
    need(reset(m) == LARDER_OK);
    end(r);
}

/* A list with the second member, or without it, and so many of which nobody has
 * heard before. */
static void lists(rig_t *r, bool second, unsigned first, unsigned count)
{
    FILE *file = fopen(list + strlen("static:"), "w");

    need(file != NULL);
    fprintf(file, "n1=sim:1\n%s", second ? "n2=sim:2\n" : "");
    for (unsigned i = first; i < first + count; i++) {
        fprintf(file, "x%u=sim:%u\n", i, 100 + i); /* nobody is there */
    }
    need(fclose(file) == 0);
    need(ldr_cluster_reload(r->members[1].cluster,
                            &r->members[1].node->host.options) == LARDER_OK);
}

/* Members that have lanes, or a way. */
static unsigned awake(member_t *m)
{
    unsigned count = 0;

    ldr_host_lock(&m->node->host);
    for (unsigned i = 0; i < m->peers->node_count; i++) {
        const ldr_peer_node_t *n = m->peers->nodes[i];

        count += n->way != NULL || ldr_lanes_run(n);
    }
    ldr_host_unlock(&m->node->host);
    return count;
}

/* However many members come and go, new ones are met, and those that are gone
 * cost neither threads nor connections. One that comes back is met again. */
static void test_come_and_go(void **state)
{
    enum { SOME = 128 };
    rig_t *r = two(2);
    member_t *m = &r->members[1];
    unsigned names = 0;

    (void)state;
    need(reset(m) == LARDER_OK);
    while (names < LDR_PEERS_MAX + SOME) {
        lists(r, false, names, SOME);
        names += SOME;
        sim_sleep(r->net, 100000 * SIM_MS); /* also until a view is believed */
        need(awake(m) >= SOME && awake(m) <= SOME + 1);
    }
    lists(r, true, 0, 0);
    sim_sleep(r->net, 100000 * SIM_MS);
    need(awake(m) == 1);
    need(m->peers->node_count == LDR_PEERS_MAX);
    need(reset(m) == LARDER_OK);
    end(r);
}

static unsigned in_view(member_t *m)
{
    unsigned count = 0;

    ldr_host_lock(&m->node->host);
    for (unsigned i = 0; i < m->peers->node_count; i++) {
        count += m->peers->nodes[i]->in_view;
    }
    ldr_host_unlock(&m->node->host);
    return count;
}

/* More at once than there are entries: those that have none are tried again,
 * and met once others are gone. */
static void test_too_many(void **state)
{
    rig_t *r = two(2);
    member_t *m = &r->members[1];

    (void)state;
    member_down(&r->members[2]);
    lists(r, false, 0, LDR_PEERS_MAX);
    sim_sleep(r->net, 5000 * SIM_MS);
    need(in_view(m) == LDR_PEERS_MAX - 1);
    sim_sleep(r->net, 60000 * SIM_MS);
    need(in_view(m) == LDR_PEERS_MAX);
    end(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tried_again), cmocka_unit_test(test_work_goes_on),
        cmocka_unit_test(test_moves_often), cmocka_unit_test(test_come_and_go),
        cmocka_unit_test(test_too_many),
    };

    return rig_main(tests, sizeof(tests) / sizeof(tests[0]));
}
