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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tried_again),
        cmocka_unit_test(test_work_goes_on),
        cmocka_unit_test(test_moves_often),
    };

    return rig_main(tests, sizeof(tests) / sizeof(tests[0]));
}
