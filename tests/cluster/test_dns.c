/*
 * Members by SRV records: servers' messages, good and broken; and what becomes
 * of answers, with the resolver and the clock simulated.
 */
#include <errno.h>
#include <stdlib.h>

#include "cluster/options.h"

#include "base/clock.h"
#include "cluster/cluster.h"
#include "sim/simnet.h"

#define S (1000 * SIM_MS)
#define SECRET "0123456789abcdef0123456789abcdef\n"

static char secret[LDR_PATH_MAX];

static int begin_all(void **state)
{
    (void)state;
    put_file(secret, SECRET);
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    return unlink(secret);
}

/* ---- messages ---- */

typedef struct message {
    uint8_t bytes[4096];
    size_t used;
} message_t;

static void put(message_t *m, const void *bytes, size_t count)
{
    memcpy(m->bytes + m->used, bytes, count);
    m->used += count;
}

static void put16(message_t *m, unsigned value)
{
    uint8_t bytes[2] = {(uint8_t)(value >> 8), (uint8_t)value};

    put(m, bytes, 2);
}

/* "a.b" as labels. */
static void put_name(message_t *m, const char *name)
{
    while (*name != '\0') {
        uint8_t length = (uint8_t)strcspn(name, ".");

        put(m, &length, 1);
        put(m, name, length);
        name += length + (name[length] == '.');
    }
    put(m, "", 1);
}

static void begin_message(message_t *m, unsigned answers)
{
    m->used = 0;
    put16(m, 1);      /* id */
    put16(m, 0x8180); /* an answer */
    put16(m, 1);
    put16(m, answers);
    put16(m, 0);
    put16(m, 0);
    put_name(m, "_larder._tcp.kv.example");
    put16(m, 33);
    put16(m, 1);
}

static void put_srv(message_t *m, unsigned weight, unsigned port,
                    const char *target, unsigned ttl)
{
    put16(m, 0xc00c); /* the name of the question */
    put16(m, 33);
    put16(m, 1);
    put16(m, ttl >> 16);
    put16(m, ttl);
    size_t at = m->used;
    put16(m, 0);
    put16(m, 0);
    put16(m, weight);
    put16(m, port);
    put_name(m, target);
    size_t bytes = m->used - at - 2;
    m->bytes[at] = (uint8_t)(bytes >> 8);
    m->bytes[at + 1] = (uint8_t)bytes;
}

static void test_messages(void **state)
{
    ldr_srv_t srv[4];
    uint32_t count, ttl;
    message_t m;

    (void)state;
    begin_message(&m, 3);
    put_srv(&m, 10, 7000, "kv-0.kv.example", 30);
    put16(&m, 0xc00c); /* an address among them */
    put16(&m, 1);
    put16(&m, 1);
    put16(&m, 0);
    put16(&m, 5);
    put16(&m, 4);
    put(&m, "\x0a\0\0\1", 4);
    put_srv(&m, 0, 7001, "kv-1.kv.example", 20);
    assert_int_equal(ldr_srv_parse(m.bytes, m.used, srv, 4, &count, &ttl), 0);
    assert_int_equal(count, 2);
    assert_int_equal(ttl, 20);
    assert_string_equal(srv[0].target, "kv-0.kv.example");
    assert_int_equal(srv[0].port, 7000);
    assert_int_equal(srv[0].weight, 10);
    assert_string_equal(srv[1].target, "kv-1.kv.example");
    /* No room for all: they are counted. */
    assert_int_equal(ldr_srv_parse(m.bytes, m.used, srv, 1, &count, &ttl), 0);
    assert_int_equal(count, 2);
    for (size_t cut = 0; cut < m.used; cut++) {
        assert_int_equal(ldr_srv_parse(m.bytes, cut, srv, 4, &count, &ttl),
                         -EBADMSG);
    }
    begin_message(&m, 1);
    put_srv(&m, 0, 0, "", 5); /* RFC 2782: no such service */
    assert_int_equal(ldr_srv_parse(m.bytes, m.used, srv, 4, &count, &ttl),
                     -ENODATA);
    begin_message(&m, 0);
    assert_int_equal(ldr_srv_parse(m.bytes, m.used, srv, 4, &count, &ttl),
                     -ENODATA);
}

/* Whatever a server sends, nothing is read or written outside. */
static void test_broken(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        ldr_srv_t srv[4];
        uint32_t count, ttl;
        ldr_rand_t rand;
        message_t m;

        ldr_rand_seed(&rand, seed);
        begin_message(&m, 2);
        put_srv(&m, 10, 7000, "kv-0.kv.example", 30);
        put_srv(&m, 10, 7000, "kv-1.kv.example", 30);
        for (unsigned i = 0; i < 4; i++) {
            m.bytes[ldr_rand_below(&rand, m.used)] =
                (uint8_t)ldr_rand_next(&rand);
        }
        size_t bytes = m.used - ldr_rand_below(&rand, 8);
        uint8_t *copy = malloc(bytes); /* the sanitizer sees its end */
        assert_non_null(copy);
        memcpy(copy, m.bytes, bytes);
        (void)ldr_srv_parse(copy, bytes, srv, 4, &count, &ttl);
        free(copy);
    }
}

/* ---- answers ---- */

typedef struct rig {
    sim_net_t *net;
    ldr_cluster_t *c;
    ldr_srv_t records[128];
    uint32_t count;
    int error;
    bool addresses;
    uint64_t asked, hang_ns;
} rig_t;

static int sim_srv(void *arg, const char *name, ldr_srv_t *records,
                   uint32_t max, uint32_t *count_p, uint32_t *ttl_s,
                   bool *addresses)
{
    rig_t *r = arg;

    assert_string_equal(name, "_larder._tcp.kv.example");
    r->asked++;
    sim_sleep(r->net, 5 * SIM_MS + r->hang_ns);
    *count_p = r->count;
    *ttl_s = 5;
    *addresses = r->addresses;
    for (uint32_t i = 0; i < r->count && i < max; i++) {
        records[i] = r->records[i];
    }
    if (r->error == -EHOSTUNREACH) {
        ldr_fail(LARDER_E_OFFLINE, "%s: no server answers", name);
    }
    return r->error;
}

static void set_records(rig_t *r, unsigned bits, unsigned weight)
{
    r->count = 0;
    for (unsigned i = 0; i < 32; i++) {
        if ((bits >> i & 1) != 0) {
            ldr_srv_t *srv = &r->records[r->count++];

            snprintf(srv->target, sizeof(srv->target), "kv-%u.kv.example", i);
            srv->port = 7000;
            srv->weight = (uint16_t)weight;
        }
    }
    r->error = r->count > 0 ? 0 : -ENOENT;
}

static void open_rig(rig_t *r, uint64_t seed)
{
    static ldr_dns_t dns;
    ldr_options_t o = options_of("dns:_larder._tcp.kv.example", "kv-0", secret);

    r->net = sim_net_new(seed);
    dns = (ldr_dns_t){sim_srv, r};
    ldr_cluster_params_t p = {
        .options = &o,
        .clock = sim_clock(r->net),
        .threads = sim_threads(r->net),
        .dns = &dns,
        .seed = seed,
    };
    assert_int_equal(ldr_cluster_open(&p, &r->c), LARDER_OK);
}

static void close_rig(rig_t *r)
{
    ldr_cluster_close(r->c);
    sim_net_free(r->net);
}

static uint32_t members(rig_t *r)
{
    const ldr_view_t *v = ldr_cluster_view(r->c);
    uint32_t count = v->count;

    ldr_view_give(v);
    return count;
}

static void test_answers(void **state)
{
    ldr_cluster_stats_t stats;
    rig_t r = {0};

    (void)state;
    set_records(&r, 0x0f, 25);
    open_rig(&r, 1);
    sim_sleep(r.net, S);
    const ldr_view_t *v = ldr_cluster_view(r.c);
    assert_int_equal(v->count, 4);
    assert_string_equal(v->members[v->self].name, "kv-0");
    assert_string_equal(v->members[v->self].address, "kv-0.kv.example:7000");
    assert_int_equal(v->members[v->self].weight, 25);
    ldr_view_give(v);

    /* More than it has room for at first, and newcomers. */
    for (unsigned i = 0; i < 100; i++) {
        snprintf(r.records[i].target, sizeof(r.records[i].target),
                 "kv-%u.kv.example", i);
        r.records[i].port = 7000;
        r.records[i].weight = 0;
    }
    r.count = 100;
    sim_sleep(r.net, 6 * S);
    v = ldr_cluster_view(r.c);
    assert_int_equal(v->count, 100);
    uint32_t at = ldr_view_find(v, ldr_member_id("kv-99"));
    assert_int_equal(v->members[at].weight, 1); /* all 0 says nothing */
    assert_int_equal(v->members[at].share, 1);
    ldr_view_give(v);

    /* No answer, for as long as it likes. */
    r.error = -EHOSTUNREACH;
    r.hang_ns = 2 * S;
    sim_sleep(r.net, 600 * S);
    assert_int_equal(members(&r), 100);
    ldr_cluster_stats(r.c, &stats);
    assert_int_equal(stats.source_ok, 0);
    assert_true(stats.source_failures > 10);
    r.hang_ns = 0;

    /* The name is gone: that must persist. */
    set_records(&r, 0, 0);
    do {
        sim_sleep(r.net, 100 * SIM_MS);
        ldr_cluster_stats(r.c, &stats);
    } while (stats.held_ms == 0);
    sim_sleep(r.net, 28 * S);
    assert_int_equal(members(&r), 100);
    sim_sleep(r.net, 4 * S);
    assert_int_equal(members(&r), 0);
    assert_int_equal(stats.held, 1);
    /* It is asked as often as the records say, guard or no guard. */
    assert_true(r.asked < 100);
    close_rig(&r);
}

/* What carries no identity, or two of one name, is refused. */
static void test_refused(void **state)
{
    ldr_cluster_stats_t stats;
    rig_t r = {0};

    (void)state;
    set_records(&r, 0x07, 1);
    open_rig(&r, 2);
    sim_sleep(r.net, S);
    assert_int_equal(members(&r), 3);

    r.error = -ENODATA;
    r.addresses = true;
    sim_sleep(r.net, 90 * S);
    ldr_cluster_stats(r.c, &stats);
    assert_non_null(strstr(stats.trouble, "addresses but no SRV records"));
    assert_int_equal(members(&r), 3);

    set_records(&r, 0x07, 1);
    snprintf(r.records[2].target, sizeof(r.records[2].target),
             "10-1-2-3.kv.example");
    sim_sleep(r.net, 90 * S);
    ldr_cluster_stats(r.c, &stats);
    assert_non_null(strstr(stats.trouble, "10-1-2-3.kv.example"));
    assert_int_equal(members(&r), 3);

    snprintf(r.records[2].target, sizeof(r.records[2].target),
             "kv-1.other.example");
    sim_sleep(r.net, 90 * S);
    ldr_cluster_stats(r.c, &stats);
    assert_non_null(strstr(stats.trouble, "two members are named 'kv-1'"));
    assert_int_equal(members(&r), 3);

    set_records(&r, 0x06, 1); /* without this node */
    sim_sleep(r.net, 90 * S);
    ldr_cluster_stats(r.c, &stats);
    assert_non_null(strstr(stats.trouble, "no record for this node"));
    assert_int_equal(members(&r), 2);
    assert_int_equal(stats.registered, 0);

    set_records(&r, 0x07, 1);
    sim_sleep(r.net, 90 * S);
    ldr_cluster_stats(r.c, &stats);
    assert_string_equal(stats.trouble, "");
    assert_int_equal(stats.registered, 1);
    assert_int_equal(members(&r), 3);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, begin_all, end_all);
}
