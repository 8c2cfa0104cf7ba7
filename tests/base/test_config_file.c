/* The file of serve: its lines, its sections, its tenants, and what each
 * refusal says. */
#include "base/config_support.h"

#include "base/config_int.h"
#include "base/fault.h"

static void test_refused_files(void **s)
{
    static const struct {
        const char *text;
        unsigned line;
        const char *why;
    } rows[] = {
        {"dram", 1, "'dram': write name = value"},
        {"\n\n= 1G\n", 3, "write name = value"},
        {"# ok\ndream = 1G", 2, "unknown key dream; did you mean dram?"},
        {"frob = 1", 1, "unknown key frob; `larder options --serve`"},
        {"dram = 1", 1, "option dram: 1 is not in the range of 2M to 16T"},
        {"dram =", 1, "option dram: '' is no size"},
        {"dram = 1G\ndram = 2G", 2,
         "option dram is given twice, first in "
         "line 1"},
        {"dir = /a\ndir = /a\n", 2, "directory '/a' is named twice"},
        {"dir =\n", 1, "has an empty name"},
        {"tenant = a", 1, "option tenant has no meaning in larder serve"},
        {"[tenant]", 1, "unknown section '[tenant]': write [tenant NAME]"},
        {"[]", 1, "unknown section"},
        {"[", 1, "unknown section"},
        {"]", 1, "write name = value"},
        {"[tenant a", 1, "unknown section '[tenant a'"},
        {"[tenants a]", 1, "unknown section"},
        {"[tenanta]", 1, "unknown section"},
        {"[space a]", 1, "write [tenant NAME]"},
        {"[tenant a/b]", 1, "tenant 'a/b': write 1 to 63 of"},
        {"[tenant a b]", 1, "tenant 'a b'"},
        {"[tenant a]\n[tenant b]\n[tenant a]", 3, "tenant a is there twice"},
        {"[tenant default]\n[tenant default]", 2, "default is there twice"},
        {"[tenant a]\ndarm = 1G", 2,
         "unknown key 'darm' of a tenant; did you "
         "mean dram?"},
        {"[tenant a]\nfrobnicate = 1", 2,
         "there are: token_file secret_file secret_check cert uids"},
        {"[tenant a]\nloops = 1", 2,
         "loops is not a key of a tenant but an "
         "option"},
        {"[tenant a]\ndram = 1x", 2, "dram of tenant a: '1x' is no size"},
        {"[tenant a]\ndram = 32T", 2,
         "dram of tenant a: 32T is not in the "
         "range of 0 to 16T"},
        {"[tenant a]\nconnections = x", 2,
         "connections of tenant a: 'x' is no "
         "number"},
        {"[tenant a]\nrate=1\nrate=2", 3,
         "rate is given twice, first in line "
         "2"},
        {"[tenant a]\nuids = bob", 2, "uids of tenant a: 'bob' is not a list"},
        {"socket = \"a", 1, "quotes are not closed"},
        {"socket = \"a\" b", 1, "quotes are not closed at its end"},
        {"socket = a\tb", 1, "control character"},
        {"socket = a\x7f", 1, "control character"},
    };
    char line[2048];

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        refuse_file(rows[i].text, rows[i].line, rows[i].why);
    }
    snprintf(line, sizeof(line), "socket = %0300d", 1);
    refuse_file(line, 1, "is too long");
    snprintf(line, sizeof(line), "# ok\nsocket = %01500d", 1);
    refuse_file(line, 2, "the line is longer than 1023 bytes");
    snprintf(line, sizeof(line), "[tenant %064d]", 1);
    refuse_file(line, 1, "write 1 to 63");
    snprintf(line, sizeof(line), "[tenant a]\ntoken_file = %0256d", 1);
    refuse_file(line, 2, "has more than 255 bytes");
}

static void test_zero_bytes_and_ends(void **s)
{
    static const char zero[] = "dram = 1G\0\n";
    static const char windows[] = "\xef\xbb\xbf# made elsewhere\r\n"
                                  "dram = 1G\r\n[tenant a]\r\nrate = 5\r\n";
    ldr_config_t *c = ldr_config_new();

    (void)s;
    assert_int_equal(ldr_config_parse(c, "f", zero, sizeof(zero) - 1),
                     LARDER_E_INVALID);
    assert_non_null(strstr(ldr_fail_text(), "f:1: there is a zero byte"));
    ldr_config_free(c);
    c = ldr_config_new();
    assert_int_equal(ldr_config_parse(c, "f", windows, sizeof(windows) - 1),
                     LARDER_OK);
    assert_int_equal(c->options.dram, (uint64_t)1 << 30);
    assert_int_equal(c->tenants[1].rate, 5);
    ldr_config_free(c);
}

static void test_values_in_files(void **s)
{
    ldr_config_t *c = accept_file("socket = /run/a b#c   # the rest\n"
                                  "admin = \"none\"  # quoted\n"
                                  "numa = \"\"\n"
                                  "listen =\n"
                                  "congestion = # nothing\n"
                                  "dir = \"/a # b\"\n",
                                  "");

    (void)s;
    assert_string_equal(c->options.socket, "/run/a b#c");
    assert_string_equal(c->options.admin, "none");
    assert_string_equal(c->options.numa, "");
    assert_string_equal(c->options.congestion, "");
    assert_string_equal(c->options.dirs[0], "/a # b");
    ldr_config_free(c);
}

static void test_tenants(void **s)
{
    ldr_config_t *c = accept_file("tls = on\ntls_cert = c\ntls_key = k\n"
                                  "tls_client_ca = ca\nlisten = 0.0.0.0:1\n"
                                  "[ tenant   search ]\n"
                                  "token_file = /t\ncert = CN search\n"
                                  "uids = 1,2\ndram = 1G\nssd = 2G\nrate = 3M\n"
                                  "connections = 4\n"
                                  "[tenant default]\nuids = any\n"
                                  "[tenant b]\n",
                                  "");
    const ldr_tenant_config_t *t = ldr_config_tenant(c, "search");

    (void)s;
    assert_int_equal(c->tenant_count, 3);
    assert_string_equal(c->tenants[0].name, "default");
    assert_string_equal(c->tenants[0].uids, "any");
    assert_ptr_equal(t, &c->tenants[1]);
    assert_string_equal(t->token_file, "/t");
    assert_string_equal(t->cert, "CN search");
    assert_string_equal(t->uids, "1,2");
    assert_int_equal(t->dram, (uint64_t)1 << 30);
    assert_int_equal(t->ssd, (uint64_t)2 << 30);
    assert_int_equal(t->rate, 3 << 20);
    assert_int_equal(t->connections, 4);
    assert_int_equal(c->tenants[2].connections, 0);
    assert_null(ldr_config_tenant(c, "c"));
    ldr_config_free(c);

    c = accept("--uids 1000"); /* one place says who may be default */
    assert_string_equal(c->tenants[0].uids, "1000");
    ldr_config_free(c);
}

static void test_many_tenants(void **s)
{
    static char text[64 * 1200];
    size_t used = 0;
    ldr_config_t *c;

    (void)s;
    for (unsigned i = 1; i < LDR_CONFIG_TENANTS_MAX; i++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used,
                                 "[tenant t%u]\nrate = %u\n", i, i);
    }
    c = accept_file(text, "");
    assert_int_equal(c->tenant_count, LDR_CONFIG_TENANTS_MAX);
    for (unsigned i = 1; i < LDR_CONFIG_TENANTS_MAX; i++) {
        assert_int_equal(c->tenants[i].rate, i);
    }
    ldr_config_free(c);
    snprintf(text + used, sizeof(text) - used, "[tenant more]\n");
    refuse_file(text, 2 * LDR_CONFIG_TENANTS_MAX - 1, "at most 1000 tenants");
}

/* What has to go together. */
static void test_together(void **s)
{
    static const char *const bad[][2] = {
        {"[tenant a]\ncert = x\n", "cert of tenant a: 'x' is never asked for"},
        {"tls = on\ntls_cert = c\ntls_key = k\ntls_client_ca = ca\n"
         "[tenant a]\ncert = x\n[tenant b]\ncert = x\n",
         "cert of tenant b: 'x' is that of tenant a"},
        {"uids = 1\n[tenant default]\nuids = 2\n", "are both set: keep one"},
        {"listen = [::]:1\n[tenant a]\nuids = 5\n",
         "can be reached from other"},
        {"admin_open = off\nadmin = 10.0.0.7:1\n", "10.0.0.7:1 ("},
    };
    static const char *const good[] = {
        "listen = 0.0.0.0:1\n[tenant a]\ntoken_file = /t\n",
        ("listen = h:1\ntls = on\ntls_cert = c\ntls_key = k\n"
         "tls_client_ca = ca\n"),
        "listen = 127.0.0.1:1,localhost:2,[::1]:3\n",
        "admin = 0.0.0.0:1\nadmin_open = on\n",
        "admin = localhost:1\n",
        "admin = [::1]:1\n",
        "socket = none\nlisten = 127.0.0.1:0\n",
    };
    char flags[64];

    (void)s;
    snprintf(flags, sizeof(flags), "--config %s", path);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_file(bad[i][0]);
        refuse(flags, bad[i][1]);
    }
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        ldr_config_free(accept_file(good[i], ""));
    }
}

/* The file of the package is one. */
static void test_packaged_file(void **s)
{
    ldr_config_t *c;

    (void)s;
    if (access("deploy/larder.conf", R_OK) != 0) {
        skip();
    }
    c = accept("--config deploy/larder.conf");
    ldr_config_free(c);
}

#if LDR_FAULTS
/* Each allocation fails in turn: a status, and nothing lost or left. */
static void test_no_memory(void **s)
{
    char flags[64];
    unsigned failures = 0;
    larder_status_t st;

    (void)s;
    write_file("[tenant a]\n[tenant b]\n[tenant c]\n");
    snprintf(flags, sizeof(flags), "--config %s --dram 4M", path);
    do {
        ldr_config_t *c = (ldr_config_t *)&c;

        ldr_fault_arm(LDR_FAULT_alloc, failures + 1, 1);
        st = load(flags, &c);
        ldr_fault_disarm_all();
        if (st == LARDER_OK) {
            assert_int_equal(c->tenant_count, 4);
            ldr_config_free(c);
        } else {
            assert_int_equal(st, LARDER_E_NO_MEMORY);
            assert_null(c);
            failures++;
        }
    } while (st != LARDER_OK && failures < 100);
    assert_in_range(failures, 8, 50);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_files),
        cmocka_unit_test(test_zero_bytes_and_ends),
        cmocka_unit_test(test_values_in_files),
        cmocka_unit_test(test_tenants),
        cmocka_unit_test(test_many_tenants),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_packaged_file),
#if LDR_FAULTS
        cmocka_unit_test(test_no_memory),
#endif
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
