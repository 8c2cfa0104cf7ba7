/* The configuration of serve: where values come from, which one counts, what
 * each refusal says, and what a reload changes. */
#include "base/config_support.h"

static void test_defaults(void **s)
{
    ldr_config_t *c = accept("");
    ldr_options_t want;

    (void)s;
    ldr_options_default(&want);
    assert_memory_equal(&c->options, &want, sizeof(want));
    for (int i = 0; i < LDR_OPTION_COUNT; i++) {
        assert_string_equal(c->source[i], "default");
    }
    assert_string_equal(c->dir_source, "default");
    assert_int_equal(c->tenant_count, 1);
    assert_string_equal(c->tenants[0].name, "default");
    assert_string_equal(c->file, "");
    assert_false(c->help);
    assert_false(c->takeover);
    ldr_config_free(c);
    ldr_config_free(NULL);
}

static void test_precedence(void **s)
{
    ldr_config_t *c;

    (void)s;
    setenv("LARDER_SSD", "6G", 1);
    setenv("LARDER_IO_DEPTH", "7", 1);
    setenv("LARDER_DIR", "/e1,/e2/", 1);
    c = accept_file("dram = 1G\nssd=2G\n\n  io_depth\t=  8 \nadmin = none\n"
                    "dir = /f1\ndir = /f2\n",
                    "--io-depth 9 --log_level=debug --takeover");
    assert_int_equal(c->options.dram, (uint64_t)1 << 30);
    assert_int_equal(c->options.ssd, (uint64_t)6 << 30);
    assert_int_equal(c->options.io_depth, 9);
    assert_int_equal(c->options.log_level, LARDER_LOG_DEBUG);
    assert_true(c->takeover);
    expect_source(c, LDR_OPTION_dram, 1);
    assert_string_equal(c->source[LDR_OPTION_ssd], "LARDER_SSD");
    assert_string_equal(c->source[LDR_OPTION_io_depth], "--io-depth");
    assert_string_equal(c->source[LDR_OPTION_log_level], "--log_level");
    expect_source(c, LDR_OPTION_admin, 5);
    assert_string_equal(c->source[LDR_OPTION_sync_ms], "default");
    assert_string_equal(c->file, path);
    assert_int_equal(c->options.dir_count, 2);
    assert_string_equal(c->options.dirs[1], "/e2");
    assert_string_equal(c->dir_source, "LARDER_DIR");
    ldr_config_free(c);

    unsetenv("LARDER_DIR");
    c = accept_file("dir = /f1\ndir = /f2\n", "");
    assert_string_equal(c->options.dirs[0], "/f1");
    assert_int_equal(c->options.dir_count, 2);
    ldr_config_free(c);
    c = accept_file("dir = /f1\ndir = /f2\n", "--dir /g --dir=/h --dir /i");
    assert_int_equal(c->options.dir_count, 3);
    assert_string_equal(c->options.dirs[0], "/g");
    assert_string_equal(c->dir_source, "--dir");
    ldr_config_free(c);
    unsetenv("LARDER_SSD");
    unsetenv("LARDER_IO_DEPTH");

    write_file("dram = 3G\n");
    setenv("LARDER_CONFIG", path, 1);
    c = accept("");
    assert_int_equal(c->options.dram, (uint64_t)3 << 30);
    ldr_config_free(c);
    c = accept("--config /dev/null");
    assert_int_equal(c->options.dram, (uint64_t)256 << 20);
    ldr_config_free(c);
    unsetenv("LARDER_CONFIG");
}

/* Each option of serve by each way; the others by none. */
static void test_every_option(void **s)
{
    (void)s;
    for (int i = 0; i < LDR_OPTION_COUNT; i++) {
        const ldr_option_info_t *info = &ldr_option_table[i];
        char flags[128], text[128], name[64];
        ldr_config_t *c;

        /* Its own default, so that it goes with the others. */
        snprintf(flags, sizeof(flags), "--%s=%s", info->name, info->value);
        snprintf(text, sizeof(text), "%s = %s\n", info->name, info->value);
        snprintf(name, sizeof(name), "LARDER_%s", info->name);
        for (char *at = name; *at != '\0'; at++) {
            *at = *at >= 'a' && *at <= 'z' ? (char)(*at - 0x20) : *at;
        }
        setenv(name, info->value, 1);
        if ((info->where & LDR_WHERE_SERVE) == 0) {
            refuse(flags, "no meaning in larder serve; it is for ");
            refuse_file(text, 1, info->name);
            c = accept(""); /* not ours to judge */
            assert_string_equal(c->source[i], "default");
            ldr_config_free(c);
        } else {
            c = accept("");
            assert_string_equal(c->source[i], name);
            ldr_config_free(c);
            c = accept(flags);
            assert_int_equal(strncmp(c->source[i], "--", 2), 0);
            ldr_config_free(c);
            unsetenv(name);
            c = accept_file(text, "");
            expect_source(c, i, 1);
            ldr_config_free(c);
        }
        unsetenv(name);
    }
}

static void test_refused_flags(void **s)
{
    static const char *const rows[][2] = {
        {"dram=1G", "'dram=1G' is no flag; write --name VALUE"},
        {"-d 1G", "'-d' is no flag"},
        {"--", "'--' is no flag"},
        {"--=1", "is no flag"},
        {"/var/kv", "--dir DIR"},
        {"--dram", "--dram needs a value: 2M to 16T"},
        {"--dir", "--dir needs a value: a path"},
        {"--config", "--config needs a value"},
        {"--log", "--log needs a value: text or json"},
        {"--dream 1G", "unknown flag --dream; did you mean dram?"},
        {"--frobnicate 1", "`larder options --serve` lists them"},
        {"--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 1",
         "unknown flag --aaaaaaaa"},
        {"--takeover=yes", "unknown flag --takeover"},
        {"--dram 1G --dram 2G", "--dram is given twice"},
        {"--io-depth 1 --io_depth=1", "--io_depth is given twice"},
        {"--config /a --config /b", "--config is given twice"},
        {"--config /nonexistent/f", "/nonexistent/f cannot be read: No such"},
        {"--config /", "config file / cannot be read: Is a directory"},
        {"--config=", "write the path of a file"},
        {"--dram 1", "--dram: option dram: 1 is not in the range of 2M to 16T"},
        {"--dram=lots", "--dram: option dram: 'lots' is no size"},
        {"--tenant a", "option tenant has no meaning in larder serve"},
        {"--dir /a --dir /a", "--dir: directory '/a' is named twice"},
        {"--dir=", "has an empty name"},
        {"--tls on", "tls is on (--tls), but tls_cert is not set"},
        {"--tls on --tls_cert c", "tls_key is not set: add tls_key = FILE"},
        {"--tls_key k", "option tls_key is 'k' (--tls_key), but tls is off"},
        {"--tls_client_ca k", "add tls = on"},
        {"--socket none", "socket is none (--socket) and listen is empty"},
        {"--listen 0.0.0.0:1",
         "0.0.0.0:1 (--listen) can be reached from other"},
        {"--listen 127.0.0.1:1,[::]:1", "[::]:1 (--listen) can be reached"},
        {"--listen node7:1", "add `token_file = FILE` in a section [tenant"},
        {"--admin 0.0.0.0:1", "0.0.0.0:1 (--admin) can be reached from other"},
        {"--admin [::]:1", "add `admin_open = on` (--admin_open on) if they"},
        {"--admin node7:9464", "or use 127.0.0.1:9464"},
        {"--admin_open maybe", "option admin_open: 'maybe' is not off or on"},
        {"--uids me", "numbers with commas, or any"},
    };
    char many[512] = "";

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        refuse(rows[i][0], rows[i][1]);
    }
    for (int i = 0; i <= LDR_DISKS_MAX; i++) {
        size_t used = strlen(many);
        snprintf(many + used, sizeof(many) - used, "--dir /%d ", i);
    }
    refuse(many, "at most 16 directories");
    for (int i = 0; i < 2; i++) {
        ldr_config_t *c = accept(i == 0 ? "--dram 0 --help" : "-h --frob");
        assert_int_equal(c->help, 1);
        ldr_config_free(c);
    }
}

static void test_refused_environment(void **s)
{
    static const char *const rows[][3] = {
        {"LARDER_DRAM", "", "LARDER_DRAM: option dram: '' is no size"},
        {"LARDER_LOOPS", "65", "LARDER_LOOPS: option loops: 65 is not in"},
        {"LARDER_LOG", "xml", "LARDER_LOG: option log: 'xml' is not text or"},
        {"LARDER_DIR", "/a,", "LARDER_DIR: directory 2 has an empty name"},
        {"LARDER_DIR", "/a,,/b", "LARDER_DIR: directory 2 has an empty name"},
        {"LARDER_DIR", "/a,/b,/a", "LARDER_DIR: directory '/a' is named twice"},
        {"LARDER_CONFIG", "/nonexistent/f", "cannot be read"},
    };
    ldr_config_t *c;

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        setenv(rows[i][0], rows[i][1], 1);
        refuse("", rows[i][2]);
        unsetenv(rows[i][0]);
    }
    /* What Kubernetes says of a service of that name. */
    setenv("LARDER_PORT", "tcp://10.0.0.1:9464", 1);
    setenv("LARDER_SERVICE_HOST", "10.0.0.1", 1);
    setenv("LARDER_CONGESTION", "", 1);
    setenv("LARDER_DIR", "", 1);
    setenv("LARDER_CONFIG", "", 1);
    c = accept("");
    assert_string_equal(c->options.congestion, "");
    assert_int_equal(c->options.dir_count, 0);
    ldr_config_free(c);
    unsetenv("LARDER_PORT");
    unsetenv("LARDER_SERVICE_HOST");
    unsetenv("LARDER_CONGESTION");
    unsetenv("LARDER_DIR");
    unsetenv("LARDER_CONFIG");
}

static ldr_config_t *reload(const ldr_config_t *old, const char *text)
{
    ldr_config_t *c = NULL;

    write_file(text);
    if (ldr_config_reload(old, &c) != LARDER_OK) {
        fail_msg("%s: %s", text, ldr_fail_text());
    }
    return c;
}

static void test_reload(void **s)
{
    ldr_config_t *old = accept_file("dram = 1G\nlog_level = info\ndir = /a\n"
                                    "drain_ms = 5\n[tenant a]\nrate = 1\n",
                                    "--idle_exit_s 9 --io_depth 5");
    ldr_config_t *c =
        reload(old, "dram = 2G\nlog_level = debug\nuids = any\n"
                    "io_depth = 7\nidle_exit_s = 3\nadmin = none\n"
                    "dir = /a\n[tenant b]\nrate = 2\n");

    (void)s;
    /* What may change did; flags still count more; the rest is as it was. */
    assert_int_equal(c->options.log_level, LARDER_LOG_DEBUG);
    assert_string_equal(c->options.uids, "any");
    assert_string_equal(c->tenants[0].uids, "any");
    assert_int_equal(c->options.drain_ms, 10000);
    assert_int_equal(c->options.idle_exit_s, 9);
    assert_int_equal(c->options.io_depth, 5);
    assert_int_equal(c->options.dram, (uint64_t)1 << 30);
    expect_source(c, LDR_OPTION_dram, 1);
    assert_string_equal(c->options.admin, "127.0.0.1:9464");
    assert_string_equal(c->restart, "dram admin");
    assert_int_equal(c->tenant_count, 2);
    assert_string_equal(c->tenants[1].name, "b");
    assert_null(ldr_config_tenant(c, "a"));
    ldr_config_free(old);

    old = c; /* one reload after the other */
    c = reload(old, "dir = /a\ndir = /b\ndram = 1G\n");
    assert_string_equal(c->restart, "dir");
    assert_int_equal(c->options.dir_count, 1);
    assert_string_equal(c->tenants[0].uids, "");
    ldr_config_free(c);

    c = reload(old, "dir = /a\ndram = 1G\n");
    assert_string_equal(c->restart, "");
    ldr_config_free(c);

    write_file("dram = 1\n");
    c = old;
    assert_int_equal(ldr_config_reload(old, &c), LARDER_E_INVALID);
    assert_null(c);
    ldr_config_free(old);
}

/* Addresses stay open until a restart: their tokens may not go before. */
static void test_reload_keeps_doors(void **s)
{
    ldr_config_t *c, *old = accept_file("listen = 0.0.0.0:1\n"
                                        "[tenant a]\ntoken_file = /t\n",
                                        "");

    (void)s;
    write_file("");
    assert_int_equal(ldr_config_reload(old, &c), LARDER_E_INVALID);
    assert_null(c);
    assert_non_null(strstr(ldr_fail_text(), "can be reached from other"));
    ldr_config_free(old);

    old = accept_file("admin = 0.0.0.0:1\nadmin_open = on\n", "");
    c = reload(old, "");
    assert_string_equal(c->restart, "admin admin_open");
    assert_string_equal(c->options.admin, "0.0.0.0:1");
    ldr_config_free(c);
    write_file("admin = 0.0.0.0:1\n");
    assert_int_equal(ldr_config_reload(old, &c), LARDER_E_INVALID);
    assert_null(c);
    assert_non_null(strstr(ldr_fail_text(), "admin_open = on"));
    ldr_config_free(old);
}

static void test_socket(void **s)
{
    char where[LDR_UNIX_PATH_MAX], want[LDR_UNIX_PATH_MAX], longest[200];
    const char *session = getenv("XDG_RUNTIME_DIR");
    char *kept = session != NULL ? strdup(session) : NULL;
    ldr_config_t *c = accept("--socket /a/b");

    (void)s;
    assert_true(ldr_config_socket(c, where));
    assert_string_equal(where, "/a/b");
    ldr_config_free(c);
    c = accept("--socket none --listen 127.0.0.1:0");
    assert_false(ldr_config_socket(c, where));
    ldr_config_free(c);

    c = accept("");
    setenv("RUNTIME_DIRECTORY", "/run/larder:/run/more", 1);
    assert_true(ldr_config_socket(c, where));
    assert_string_equal(where, "/run/larder/larder.sock");
    snprintf(longest, sizeof(longest), "/%0150d", 0);
    setenv("RUNTIME_DIRECTORY", longest, 1);
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    assert_true(ldr_config_socket(c, where));
    assert_string_equal(where, "/run/user/7/larder.sock");
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("XDG_RUNTIME_DIR");
    snprintf(want, sizeof(want), "/tmp/larder-%u/larder.sock",
             (unsigned)geteuid());
    assert_true(ldr_config_socket(c, where));
    assert_string_equal(where, want);
    ldr_config_free(c);
    if (kept != NULL) {
        setenv("XDG_RUNTIME_DIR", kept, 1);
        free(kept);
    }
}

static void test_json(void **s)
{
    ldr_config_t *c = accept_file("dir = \"/a b\"\n[tenant a]\n"
                                  "token_file = /t\\q\n"
                                  "secret_check = 0123456789abcdef\n",
                                  "--dram 4G");
    size_t length = ldr_config_json(c, NULL, 0);
    char *text = malloc(length + 1);
    char small[100];

    (void)s;
    assert_int_equal(ldr_config_json(c, text, length + 1), length);
    assert_int_equal(strlen(text), length);
    assert_non_null(strstr(text, "{\"name\":\"dram\",\"value\":\"4G\","
                                 "\"default\":\"256M\",\"source\":\"--dram\","
                                 "\"reload\":false,"));
    assert_non_null(strstr(text, "\"dirs\":[\"/a b\"]"));
    assert_non_null(strstr(text, "{\"name\":\"a\",\"token_file\":\"/t\\\\q\","
                                 "\"secret_file\":\"\",\"secret_check\":"
                                 "\"given\",\"cert\":\"\",\"uids\":\"\","
                                 "\"dram\":0,"));
    assert_null(strstr(text, "0123")); /* not by what clients are told apart */
    assert_null(strstr(text, "\"name\":\"workers\"")); /* not one of serve */
    assert_int_equal(ldr_config_json(c, small, sizeof(small)), length);
    assert_int_equal(strlen(small), sizeof(small) - 1);
    assert_memory_equal(small, text, sizeof(small) - 1);
    free(text);
    ldr_config_free(c);
}

/* A screen of 24 lines and 80 columns, with flags and defaults that exist. */
static void test_help(void **s)
{
    char text[8192] = "", expected[64];
    FILE *out = fmemopen(text, sizeof(text), "w");
    unsigned lines = 0, serve = 0;

    (void)s;
    ldr_config_help(out);
    fclose(out);
    for (char *line = text; *line != '\0'; lines++) {
        size_t length = strcspn(line, "\n");

        assert_true(length <= 80);
        char *flag = strstr(line, "--");
        if (strncmp(line, "  --", 4) == 0) {
            size_t n = strcspn(flag + 2, " ");
            int i = ldr_option_find(flag + 2, n);
            if (i < 0) {
                assert_true(strncmp(flag, "--dir ", 6) == 0 ||
                            strncmp(flag, "--takeover ", 11) == 0);
            } else {
                assert_true((ldr_option_table[i].where & LDR_WHERE_SERVE) != 0);
            }
        }
        line += length + (line[length] == '\n' ? 1 : 0);
    }
    assert_in_range(lines, 15, 24);
    for (size_t i = 0; i < ldr_option_count; i++) {
        serve += (ldr_option_table[i].where & LDR_WHERE_SERVE) != 0;
    }
    snprintf(expected, sizeof(expected),
             "`larder options --serve` lists all "
             "%u.",
             serve);
    assert_non_null(strstr(text, expected));
    assert_non_null(strstr(text, "(256M)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_every_option),
        cmocka_unit_test(test_refused_flags),
        cmocka_unit_test(test_refused_environment),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_reload_keeps_doors),
        cmocka_unit_test(test_socket),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_help),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
