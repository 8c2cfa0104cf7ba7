/*
 * Views of a static list: who is in them, who owns what, who may hold them, and
 * who is refused.
 */
#include <pthread.h>
#include <stdlib.h>

#include "cluster/options.h"

#include "base/clock.h"
#include "cluster/cluster.h"

#define SECRET "0123456789abcdef0123456789abcdef\n"

static char secret[LDR_PATH_MAX];

static int begin(void **state)
{
    (void)state;
    put_file(secret, SECRET);
    return 0;
}

static int end(void **state)
{
    (void)state;
    return unlink(secret);
}

static ldr_cluster_t *open_as(const char *cluster, const char *name)
{
    ldr_options_t o = options_of(cluster, name, secret);
    ldr_cluster_params_t p = {.options = &o, .seed = 7};
    ldr_cluster_t *c = NULL;

    if (ldr_cluster_open(&p, &c) != LARDER_OK) {
        fail_msg("%s: %s", cluster, larder_last_error());
    }
    return c;
}

static void test_list(void **state)
{
    ldr_cluster_t *a =
        open_as("static:a=h1:1,b=h2:2/z2,c=[::1]:3/z3/5,d=h:4//0", "b");
    ldr_cluster_t *b =
        open_as("static:d=h:4//0,c=[::1]:3/z3/5,b=h2:2/z2,a=h1:1", "a");
    const ldr_view_t *v = ldr_cluster_view(a), *w = ldr_cluster_view(b);
    uint32_t at = ldr_view_find(v, ldr_member_id("c"));
    ldr_self_t self = ldr_cluster_self(a);

    (void)state;
    assert_int_equal(v->count, 4);
    assert_int_equal(v->generation, 1);
    assert_int_equal(ldr_cluster_generation(a), 1);
    assert_memory_equal(v->hash, w->hash, 32); /* whatever the order */
    assert_string_equal(v->members[v->self].name, "b");
    assert_string_equal(w->members[w->self].name, "a");
    assert_string_equal(self.address, "h2:2");
    assert_int_equal(self.id, ldr_member_id("b"));
    assert_string_equal(v->members[at].address, "[::1]:3");
    assert_string_equal(v->members[at].zone, "z3");
    assert_int_equal(v->members[at].weight, 5);
    assert_int_equal(v->members[at].share, LDR_SHARE_FULL);
    assert_int_equal(ldr_view_find(v, 1), LDR_NOBODY);
    for (uint64_t run = 0; run < 1000; run++) {
        uint32_t mine[LDR_RANKS_MAX], theirs[LDR_RANKS_MAX];

        assert_int_equal(ldr_view_owners(v, run, 2, mine), 2);
        assert_int_equal(ldr_view_owners(w, run, LDR_RANKS_MAX, theirs), 3);
        assert_memory_equal(mine, theirs, 2 * sizeof(mine[0]));
        /* d lends nothing. */
        assert_string_not_equal(v->members[mine[0]].name, "d");
    }
    ldr_view_give(v);
    ldr_view_give(w);
    ldr_cluster_close(a);
    ldr_cluster_close(b);
}

static void test_zones(void **state)
{
    ldr_cluster_t *c =
        open_as("static:a=h:1/x,b=h:2/x,c=h:3/x,d=h:4/y,e=h:5/y", "a");
    const ldr_view_t *v = ldr_cluster_view(c);

    (void)state;
    for (uint64_t run = 0; run < 2000; run++) {
        uint32_t rank[LDR_RANKS_MAX], two[LDR_RANKS_MAX];

        ldr_view_owners(v, run, LDR_RANKS_MAX, rank);
        assert_int_equal(ldr_view_copies(v, run, 2, two), 2);
        assert_int_equal(two[0], rank[0]);
        /* Four ranks of five members have both zones. */
        assert_string_not_equal(v->members[two[0]].zone,
                                v->members[two[1]].zone);
        assert_int_equal(ldr_view_copies(v, run, 3, two), 3);
        assert_true(two[2] != two[0] && two[2] != two[1]);
        assert_int_equal(ldr_view_copies(v, run, 1, two), 1);
        assert_int_equal(two[0], rank[0]);
    }
    ldr_view_give(v);
    ldr_cluster_close(c);
}

static void test_refused(void **state)
{
    static const struct {
        const char *cluster, *name, *text;
    } bad[] = {
        {"a=h:1", "a", "static:NAME"},
        {"static:", "a", "no member"},
        {"static:a=h:1", "b", "'b'"},
        {"static:a=h:1,a=h:2", "a", "two members are named 'a'"},
        {"static:a=h:1,b=h:1", "a", "same address"},
        {"static:a=h", "a", "HOST:PORT"},
        {"static:a=h:0", "a", "HOST:PORT"},
        {"static:a=h:1/z/1000001", "a", "weight"},
        {"static:a=h:1/z/-1", "a", "weight"},
        {"static:a b=h:1", "a", "'a b'"},
        {"static:/no/such/file", "a", "/no/such/file"},
        {"dns:", "a", "dns:NAME"},
        {"consul:x", "a", "static:NAME"},
    };
    ldr_options_t o;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        o = options_of(bad[i].cluster, bad[i].name, secret);
        assert_int_equal(ldr_cluster_check(&o), LARDER_E_INVALID);
        if (strstr(larder_last_error(), bad[i].text) == NULL) {
            fail_msg("%s: %s", bad[i].cluster, larder_last_error());
        }
    }
    o = options_of("static:a=h:1", "a", "");
    assert_int_equal(ldr_cluster_check(&o), LARDER_E_INVALID);
    assert_non_null(strstr(larder_last_error(), "cluster_secret"));
    o = options_of("static:a=h:1", "a", secret);
    set_option(&o, "member_weight", "5");
    assert_int_equal(ldr_cluster_check(&o), LARDER_E_INVALID);
    set_option(&o, "member_weight", "auto");
    assert_int_equal(ldr_cluster_check(&o), LARDER_OK);
}

static void test_claims(void **state)
{
    ldr_cluster_t *c = open_as("static:a=h:1,b=h:2", "a");
    ldr_self_t self = ldr_cluster_self(c);
    ldr_claim_t good = {.name = "b",
                        .cluster = "",
                        .run = 5,
                        .version_major = LARDER_VERSION_MAJOR};
    ldr_claim_t claim = good;
    unsigned count = 0;

    (void)state;
    assert_int_equal(ldr_cluster_claim(c, &claim), LARDER_OK);
    claim.live_run = 5;
    assert_int_equal(ldr_cluster_claim(c, &claim), LARDER_OK);
    claim.live_run = 6;
    assert_int_equal(ldr_cluster_claim(c, &claim), LARDER_E_DENIED);
    assert_non_null(strstr(larder_last_error(), "two nodes are named 'b'"));
    claim = good;
    claim.name = "a";
    assert_int_equal(ldr_cluster_claim(c, &claim), LARDER_E_DENIED);
    assert_non_null(strstr(larder_last_error(), "two nodes are named 'a'"));
    claim.run = self.run;
    assert_int_equal(ldr_cluster_claim(c, &claim), LARDER_E_DENIED);
    assert_non_null(strstr(larder_last_error(), "leads to this node itself"));
    claim = good;
    claim.version_major = LARDER_VERSION_MAJOR + 1;
    assert_int_equal(ldr_cluster_claim(c, &claim), LARDER_E_VERSION);
    assert_non_null(strstr(larder_last_error(), "'b'"));
    claim = good;
    claim.cluster = "other";
    assert_int_equal(ldr_cluster_claim(c, &claim), LARDER_E_DENIED);
    assert_non_null(strstr(larder_last_error(), "'other'"));
    claim = good;
    claim.name = "b\n";
    assert_int_equal(ldr_cluster_claim(c, &claim), LARDER_E_DENIED);
    assert_non_null(ldr_cluster_secrets(c, &count));
    assert_int_equal(count, 1);
    ldr_cluster_close(c);
}

/* Leaving: owns nothing, and is still there. */
static void test_leave(void **state)
{
    ldr_cluster_t *c = open_as("static:a=h:1,b=h:2,c=h:3", "a");
    uint32_t owner;

    (void)state;
    assert_int_equal(ldr_cluster_leave(c, false, 0), LARDER_OK);
    ldr_cluster_peer_says(c, ldr_member_id("b"), 9, true);
    const ldr_view_t *v = ldr_cluster_view(c);
    assert_int_equal(v->count, 3);
    assert_true(v->generation >= 3);
    for (uint64_t run = 0; run < 100; run++) {
        assert_int_equal(ldr_view_owners(v, run, 1, &owner), 1);
        assert_string_equal(v->members[owner].name, "c");
    }
    ldr_view_give(v);
    assert_int_equal(ldr_cluster_leave(c, true, 0), LARDER_OK);
    v = ldr_cluster_view(c);
    assert_false(v->members[v->self].leaving);
    ldr_view_give(v);
    ldr_cluster_close(c);
}

static void on_changed(void *arg)
{
    __atomic_add_fetch((unsigned *)arg, 1, __ATOMIC_RELAXED);
}

static void rewrite(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* A list in a file, read again. */
static void test_file(void **state)
{
    char path[LDR_PATH_MAX], option[LDR_PATH_MAX + 8];
    unsigned changes = 0;
    ldr_cluster_t *c;

    (void)state;
    put_file(path, "# ours\na=h:1\n\n  b=h:2/z \r\n");
    snprintf(option, sizeof(option), "static:%s", path);
    ldr_options_t o = options_of(option, "a", secret);
    ldr_cluster_params_t p = {
        .options = &o, .changed = on_changed, .arg = &changes};
    assert_int_equal(ldr_cluster_open(&p, &c), LARDER_OK);
    assert_int_equal(changes, 1);
    rewrite(path, "a=h:1\nb=h:2/z\nc=h:3\n");
    assert_int_equal(ldr_cluster_reload(c, &o), LARDER_OK);
    const ldr_view_t *v = ldr_cluster_view(c);
    assert_int_equal(v->count, 3);
    uint32_t at = ldr_view_find(v, ldr_member_id("c"));
    assert_int_equal(v->members[at].share, 1); /* a newcomer */
    ldr_view_give(v);
    rewrite(path, "b=h:2\n"); /* without this node */
    assert_int_equal(ldr_cluster_reload(c, &o), LARDER_E_INVALID);
    rewrite(path, "a=h:1\nb=h:2 c=h:3\n");
    assert_int_equal(ldr_cluster_reload(c, &o), LARDER_E_INVALID);
    assert_int_equal(ldr_cluster_generation(c), 2);
    ldr_cluster_close(c);
    unlink(path);
}

/* ---- threads: views come and go under those who read them ---- */

typedef struct readers {
    ldr_cluster_t *c;
    bool stop;
    uint64_t read;
} readers_t;

static void *read_views(void *arg)
{
    readers_t *r = arg;
    uint64_t last = 0, read = 0;

    while (!__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) {
        const ldr_view_t *v = ldr_cluster_view(r->c);
        uint32_t owner = 0;

        assert_true(v->generation >= last);
        last = v->generation;
        for (uint32_t i = 1; i < v->count; i++) {
            assert_true(v->members[i - 1].id < v->members[i].id);
        }
        ldr_view_owners(v, read++, 1, &owner);
        assert_true(owner < v->count);
        ldr_view_give(v);
    }
    __atomic_add_fetch(&r->read, read, __ATOMIC_RELAXED);
    return NULL;
}

static void test_threads(void **state)
{
    readers_t r = {.c = open_as("static:a=h:1,b=h:2,c=h:3", "a")};
    pthread_t thread[4];

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, read_views, &r), 0);
    }
    for (unsigned i = 0; i < 2000; i++) {
        ldr_cluster_peer_says(r.c, ldr_member_id("b"), 9, i % 2 == 0);
    }
    __atomic_store_n(&r.stop, true, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
    }
    assert_int_equal(ldr_cluster_generation(r.c), 2001);
    assert_true(r.read > 0);
    ldr_cluster_close(r.c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),    cmocka_unit_test(test_zones),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_claims),
        cmocka_unit_test(test_leave),   cmocka_unit_test(test_file),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
