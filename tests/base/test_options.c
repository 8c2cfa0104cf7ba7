/* The URL and its options: what is accepted, and what each refusal says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/options.h"

static void accept(const char *url, ldr_options_t *o)
{
    memset(o, 0xee, sizeof(*o));
    if (ldr_options_parse(url, o) != LARDER_OK) {
        fail_msg("%s: %s", url, ldr_fail_text());
    }
}

/* Refused, with this in the text, and the options untouched. */
static void refuse(const char *url, const char *why)
{
    ldr_options_t o, before;

    memset(&o, 0xee, sizeof(o));
    memset(&before, 0xee, sizeof(before));
    ldr_fail_clear();
    assert_int_equal(ldr_options_parse(url, &o), LARDER_E_INVALID);
    assert_memory_equal(&o, &before, sizeof(o));
    if (strstr(ldr_fail_text(), why) == NULL) {
        fail_msg("%s: '%s' lacks '%s'", url, ldr_fail_text(), why);
    }
}

static void test_defaults(void **s)
{
    ldr_options_t o, parsed;

    (void)s;
    memset(&o, 0xee, sizeof(o));
    ldr_options_default(&o);
    assert_int_equal(o.dir_count, 0);
    assert_int_equal(o.dram, (uint64_t)256 << 20);
    assert_int_equal(o.ssd, (uint64_t)4 << 30);
    assert_int_equal(o.segment, 0);
    assert_int_equal(o.io, LDR_IO_AUTO);
    assert_int_equal(o.verify, LDR_VERIFY_LOAD);
    assert_int_equal(o.timeout_ms, 10000);
    accept("embed:", &parsed);
    assert_memory_equal(&o, &parsed, sizeof(o));
}

/* A URL of a scheme in which the option may stand, or NULL. */
static const char *url_for(unsigned where)
{
    return (where & LDR_WHERE_EMBED) != 0  ? "embed:"
           : (where & LDR_WHERE_UNIX) != 0 ? "unix:/s"
           : (where & LDR_WHERE_TCP) != 0  ? "tcp://h:1"
                                           : NULL;
}

/* The bounds of a number are taken, and what is beyond them is not. */
static void check_edges(const ldr_option_info_t *info, const char *base)
{
    ldr_options_t o;
    char url[128];

    for (int high = 0; high < 2; high++) {
        uint64_t edge = high ? info->max : info->min;
        snprintf(url, sizeof(url), "%s?%s=%llu", base, info->name,
                 (unsigned long long)edge);
        accept(url, &o);
        snprintf(url, sizeof(url), "%s?%s=%llu", base, info->name,
                 (unsigned long long)(high ? edge + 1 : edge - 1));
        if (high || edge > 0) {
            refuse(url, "not in the range");
        }
    }
}

/* Every default can be written out, is in range, and is the default. */
static void test_table(void **s)
{
    ldr_options_t o, want;

    (void)s;
    assert_int_equal(ldr_option_count, LDR_OPTION_COUNT);
    for (size_t i = 0; i < ldr_option_count; i++) {
        const ldr_option_info_t *info = &ldr_option_table[i];
        const char *base = url_for(info->where);
        char url[128], text[LDR_OPTION_TEXT];

        assert_int_equal(ldr_option_find(info->name, strlen(info->name)), i);
        assert_true(strlen(info->text) > 0);
        assert_true((info->where & ~(unsigned)LDR_WHERE_RELOAD) != 0);
        assert_true((info->where & LDR_WHERE_RELOAD) == 0 ||
                    (info->where & LDR_WHERE_SERVE) != 0);
        ldr_options_default(&o);
        ldr_option_get(&o, i, text, sizeof(text));
        assert_string_equal(text, info->value);
        if (base == NULL) {
            continue; /* test_config has those of serve alone */
        }
        snprintf(url, sizeof(url), "%s?%s=%s", base, info->name, info->value);
        accept(base, &want);
        accept(url, &o);
        assert_memory_equal(&o, &want, sizeof(o));
        if (info->kind[0] == 'S' || info->kind[0] == 'U') {
            check_edges(info, base);
        }
    }
}

/* ENUMs have as many words as values, and each word reads as its value. */
static void test_words(void **s)
{
    (void)s;
    for (size_t i = 0; i < ldr_option_count; i++) {
        const ldr_option_info_t *info = &ldr_option_table[i];
        const char *const *words = ldr_option_words(i);
        ldr_options_t o;
        char text[LDR_OPTION_TEXT];
        uint64_t count = 0;

        assert_int_equal(words != NULL, info->kind[0] == 'E');
        for (; words != NULL && words[count] != NULL; count++) {
            ldr_options_default(&o);
            assert_int_equal(ldr_option_set(&o, i, words[count]), LARDER_OK);
            ldr_option_get(&o, i, text, sizeof(text));
            assert_string_equal(text, words[count]);
        }
        if (words != NULL) {
            assert_int_equal(count, info->max + 1);
        }
    }
}

/* An option stands where the table says, and elsewhere is refused by name with
 * the places where it may. */
static void test_where(void **s)
{
    static const struct {
        const char *base;
        unsigned where;
    } schemes[] = {
        {"embed:", LDR_WHERE_EMBED},
        {"unix:/s", LDR_WHERE_UNIX},
        {"tcp://h:1", LDR_WHERE_TCP},
    };
    ldr_options_t o;

    (void)s;
    for (size_t i = 0; i < ldr_option_count * 3; i++) {
        const ldr_option_info_t *info = &ldr_option_table[i / 3];
        char url[128], want[128], where[96];

        snprintf(url, sizeof(url), "%s?%s=%s", schemes[i % 3].base, info->name,
                 info->value);
        if ((info->where & schemes[i % 3].where) != 0) {
            accept(url, &o);
            continue;
        }
        ldr_where_text(info->where, where, sizeof(where));
        snprintf(want, sizeof(want), "option %s has no meaning in", info->name);
        refuse(url, want);
        snprintf(want, sizeof(want), "it is for %s", where);
        refuse(url, want);
    }
    refuse("embed:?tls=on", "it is for tcp:// URLs and larder serve");
    refuse("unix:/s?dram=1G", "in unix: URLs; it is for embed: URLs and larder "
                              "serve");
    refuse("tcp://h:1?admin=none", "it is for larder serve");
    refuse("embed:?spin_us=1", "unix: URLs, tcp:// URLs and larder serve");
}

static void test_schemes(void **s)
{
    char url[LDR_ADDRESS_MAX + 64];
    ldr_options_t o;

    (void)s;
    accept("embed:/kv", &o);
    assert_int_equal(o.scheme, LDR_SCHEME_EMBED);
    assert_string_equal(o.address, "");
    accept("unix:/run/a%3Fb.sock?tenant=t.1_-&token_file=%2Fa%26b&spin_us=0",
           &o);
    assert_int_equal(o.scheme, LDR_SCHEME_UNIX);
    assert_string_equal(o.address, "/run/a?b.sock");
    assert_string_equal(o.tenant, "t.1_-");
    assert_string_equal(o.token_file, "/a&b");
    assert_int_equal(o.spin_us, 0);
    assert_int_equal(o.dir_count, 0);
    accept("tcp://a.b:1,[::1]:65535,10.0.0.1:9400,[fe80::1%25eth0]:7?tls=on"
           "&congestion=&connections=8&connect=lazy",
           &o);
    assert_int_equal(o.scheme, LDR_SCHEME_TCP);
    assert_string_equal(o.address, "a.b:1,[::1]:65535,10.0.0.1:9400,"
                                   "[fe80::1%eth0]:7");
    assert_int_equal(o.tls, LDR_TLS_ON);
    assert_string_equal(o.congestion, "");
    assert_int_equal(o.connections, 8);
    assert_int_equal(o.connect, LDR_CONNECT_LAZY);

    snprintf(url, sizeof(url), "unix:/%0106d", 0);
    accept(url, &o);
    snprintf(url, sizeof(url), "unix:/%0107d", 0);
    refuse(url, "longer than 107 bytes");
    snprintf(url, sizeof(url), "tcp://h:1");
    for (int i = 2; i <= LDR_ADDRESSES_MAX; i++) {
        size_t used = strlen(url);
        snprintf(url + used, sizeof(url) - used, ",h:%d", i);
    }
    accept(url, &o);
    strncat(url, ",h:99", 6);
    refuse(url, "at most 16 addresses");
}

static void test_refused_addresses(void **s)
{
    static const char *const bad[] = {
        "",           "a",      "a:",
        ":1",         "a:0",    "a:65536",
        "a:1,",       ",a:1",   "a:1,,b:2",
        "a:1x",       "a:-1",   "a:+1",
        "a: 1",       "a b:1",  "::1:80",
        "[::1]80",    "[::1]",  "[::1:80",
        "[]:80",      "[x]:80", "[1.2.3.4]:80",
        "a/b:1",      "u@h:1",  "a:123456",
        "[::1%25]:1", "a:1:2",  "[",
        "]:1",        "[:1",    "a:1/",
    };
    char url[128];

    (void)s;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(url, sizeof(url), "tcp://%s", bad[i]);
        refuse(url, "write HOST:PORT");
    }
    refuse("tcp://a:1,b:2,a:1", "named twice");
    refuse("unix:", "names no socket");
    refuse("unix:?tenant=a", "names no socket");
    refuse("unix:/a%", "two hex digits");
    refuse("tcp:/a:1", "tcp://HOST:PORT");
    refuse("tcp:a:1", "unix:PATH");
}

static void test_refused_texts(void **s)
{
    static const char *const bad[][2] = {
        {"unix:/s?tenant=", "option tenant: '' is no tenant"},
        {"unix:/s?tenant=a%20b", "option tenant: 'a b' is no tenant: write 1"},
        {"unix:/s?tenant=a/b", "A-Z a-z 0-9 . _ -"},
        {"unix:/s?token_file=a%0Ab", "control character"},
        {"unix:/s?token_file=a%7f", "control character"},
        {"tcp://h:1?congestion=0123456789012345",
         "option congestion: '0123456789012345' has 16 bytes, not 0 to 15"},
        {"tcp://h:1?tls=maybe", "option tls: 'maybe' is not off or on"},
        {"tcp://h:1?connections=0",
         "option connections: 0 is not in the range of 1 to 64"},
        {"unix:/s?connect=later", "'later' is not now or lazy"},
        {"embed:?dram=1", "option dram: 1 is not in the range of 2M to 16T"},
    };
    char url[600];

    (void)s;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        refuse(bad[i][0], bad[i][1]);
    }
    snprintf(url, sizeof(url), "unix:/s?token_file=%0255d", 1);
    accept(url, &(ldr_options_t){0});
    snprintf(url, sizeof(url), "unix:/s?token_file=%0256d", 1);
    refuse(url, "longer than 255 bytes");
    snprintf(url, sizeof(url), "unix:/s?tenant=%063d", 1);
    accept(url, &(ldr_options_t){0});
    snprintf(url, sizeof(url), "unix:/s?tenant=%064d", 1);
    refuse(url, "is no tenant");
}

/* Texts of options that only serve has. */
static void test_serve_texts(void **s)
{
    static const struct {
        int option;
        const char *text, *why; /* NULL: taken */
    } rows[] = {
        {LDR_OPTION_socket_mode, "660", NULL},
        {LDR_OPTION_socket_mode, "0600", NULL},
        {LDR_OPTION_socket_mode, "", "in octal, 000 to 0777"},
        {LDR_OPTION_socket_mode, "66", "octal"},
        {LDR_OPTION_socket_mode, "668", "octal"},
        {LDR_OPTION_socket_mode, "1777", "octal"},
        {LDR_OPTION_socket_mode, "00777", "octal"},
        {LDR_OPTION_uids, "", NULL},
        {LDR_OPTION_uids, "any", NULL},
        {LDR_OPTION_uids, "0,1000,4294967294", NULL},
        {LDR_OPTION_uids, "4294967295", "not a list of uids"},
        {LDR_OPTION_uids, "any,1", "not a list of uids"},
        {LDR_OPTION_uids, "1,", "numbers with commas, or any"},
        {LDR_OPTION_uids, ",1", "not a list of uids"},
        {LDR_OPTION_uids, "1 2", "not a list of uids"},
        {LDR_OPTION_uids, "root", "option uids: 'root'"},
        {LDR_OPTION_numa, "0", NULL},
        {LDR_OPTION_numa, "0,1,63", NULL},
        {LDR_OPTION_numa, "64", "not a list of NUMA nodes"},
        {LDR_OPTION_numa, "0-1", "write 0 to 63 with commas"},
        {LDR_OPTION_admin, "none", NULL},
        {LDR_OPTION_admin, "[::1]:0", NULL},
        {LDR_OPTION_admin, "", "is no address"},
        {LDR_OPTION_admin, "9464", "write host:port"},
        {LDR_OPTION_admin, "a:1,b:1", "is no address"},
        {LDR_OPTION_listen, "", NULL},
        {LDR_OPTION_listen, "0.0.0.0:9400,[::]:9400", NULL},
        {LDR_OPTION_listen, "none", "not a list of addresses"},
        {LDR_OPTION_listen, "a:1,a:1", "not a list of addresses"},
        {LDR_OPTION_socket, "none", NULL},
        {LDR_OPTION_mode, "paused", "option mode: 'paused' is not on"},
        {LDR_OPTION_mode, "on", NULL},
        {LDR_OPTION_mode, "observe",
         "option mode: 'observe' is gone: use `larder serve --trace FILE`, "
         "and then `larder plan FILE`"},
        {LDR_OPTION_log_level, "trace", "error, warn, info or debug"},
        {LDR_OPTION_loops, "65",
         "option loops: 65 is not in the range of 0 to "
         "64"},
        {LDR_OPTION_window, "1", "1M to 16G"},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ldr_options_t o;
        larder_status_t st;
        char text[LDR_OPTION_TEXT];

        ldr_options_default(&o);
        ldr_fail_clear();
        st = ldr_option_set(&o, (size_t)rows[i].option, rows[i].text);
        if (rows[i].why == NULL) {
            assert_int_equal(st, LARDER_OK);
            ldr_option_get(&o, (size_t)rows[i].option, text, sizeof(text));
            assert_string_equal(text, rows[i].text);
        } else if (st != LARDER_E_INVALID ||
                   strstr(ldr_fail_text(), rows[i].why) == NULL) {
            fail_msg("'%s': %d '%s' lacks '%s'", rows[i].text, st,
                     ldr_fail_text(), rows[i].why);
        }
    }
}

static void test_lists(void **s)
{
    uint64_t nodes = 42;

    (void)s;
    assert_true(ldr_uids_has("any", 7));
    assert_true(ldr_uids_has("0,1000,7", 7));
    assert_true(ldr_uids_has("7", 7));
    assert_false(ldr_uids_has("", 7));
    assert_false(ldr_uids_has("0,77,70", 7));
    assert_false(ldr_uids_has("7,x", 7)); /* no list: nobody */
    assert_false(ldr_uids_has("any", UINT32_MAX));
    assert_true(ldr_parse_numa("", &nodes));
    assert_int_equal(nodes, 0);
    assert_true(ldr_parse_numa("0,63,2", &nodes));
    assert_true(nodes == ((uint64_t)1 << 63 | 5));
    assert_true(ldr_host_is_loopback("127.255.0.1"));
    assert_true(ldr_host_is_loopback("::1"));
    assert_true(ldr_host_is_loopback("localhost"));
    assert_false(ldr_host_is_loopback("128.0.0.1"));
    assert_false(ldr_host_is_loopback("0.0.0.0"));
    assert_false(ldr_host_is_loopback("::"));
    assert_false(ldr_host_is_loopback("localhost.evil"));
}

static void test_nearest(void **s)
{
    static const struct {
        const char *text, *near;
    } rows[] = {
        {"dream", "dram"},
        {"drma", "dram"},
        {"DRAM", "dram"},
        {"io-depth", "io_depth"},
        {"logl_evel", "log_level"},
        {"adnim", "admin"},
        {"loop", "loops"},
        {"is", "io"},
        {"tls_client_c", "tls_client_ca"},
        {"frobnicate", NULL},
        {"", NULL},
        {"xy", NULL},
        {"tenant", NULL}, /* one of clients, not of serve */
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", NULL},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *near = ldr_option_nearest(
            rows[i].text, strlen(rows[i].text), LDR_WHERE_SERVE);
        if (rows[i].near == NULL
                ? near != NULL
                : near == NULL || strcmp(near, rows[i].near) != 0) {
            fail_msg("'%s' is near '%s'", rows[i].text,
                     near != NULL ? near : "none");
        }
    }
    refuse("embed:/a?dream=1G", "did you mean dram?");
    refuse("unix:/a?tennant=a", "did you mean tenant?");
}

static void test_values(void **s)
{
    ldr_options_t o;

    (void)s;
    accept("embed:/kv?dram=1G&ssd=8G&io=plain&verify=entry&io_depth=64"
           "&tickets=%31%36",
           &o);
    assert_int_equal(o.dir_count, 1);
    assert_string_equal(o.dirs[0], "/kv");
    assert_int_equal(o.dram, (uint64_t)1 << 30);
    assert_int_equal(o.ssd, (uint64_t)8 << 30);
    assert_int_equal(o.io, LDR_IO_PLAIN);
    assert_int_equal(o.verify, LDR_VERIFY_ENTRY);
    assert_int_equal(o.io_depth, 64);
    assert_int_equal(o.tickets, 16);
    assert_int_equal(o.workers, 2);
    accept("embed:?io=uring", &o);
    assert_int_equal(o.io, LDR_IO_URING);
    assert_int_equal(o.dir_count, 0);
}

static void test_dirs(void **s)
{
    char url[LDR_DISKS_MAX * 8 + 600] = "embed:";
    ldr_options_t o;

    (void)s;
    accept("embed:/a,b/c,/d%2Ce%3f%25,%c3%a4///,/", &o);
    assert_int_equal(o.dir_count, 5);
    assert_string_equal(o.dirs[0], "/a");
    assert_string_equal(o.dirs[1], "b/c");
    assert_string_equal(o.dirs[2], "/d,e?%");
    assert_string_equal(o.dirs[3], "\xc3\xa4");
    assert_string_equal(o.dirs[4], "/");

    for (int i = 0; i < LDR_DISKS_MAX; i++) {
        char dir[16];
        snprintf(dir, sizeof(dir), "%s/d%02d", i > 0 ? "," : "", i);
        strncat(url, dir, sizeof(url) - strlen(url) - 1);
    }
    accept(url, &o);
    assert_int_equal(o.dir_count, LDR_DISKS_MAX);
    assert_string_equal(o.dirs[LDR_DISKS_MAX - 1], "/d15");
    strncat(url, ",/more", sizeof(url) - strlen(url) - 1);
    refuse(url, "at most 16 directories");

    memset(url + 6, 'x', LDR_PATH_MAX - 1);
    url[6 + LDR_PATH_MAX - 1] = '\0';
    accept(url, &o);
    assert_int_equal(strlen(o.dirs[0]), LDR_PATH_MAX - 1);
    strncat(url, "x", 2);
    refuse(url, "longer than 255 bytes");
}

static void test_refused(void **s)
{
    (void)s;
    refuse(NULL, "embed:DIR");
    refuse("", "embed:DIR");
    refuse("embed", "embed:DIR");
    refuse("Embed:/a", "embed:DIR");
    refuse("http://a", "URL 'http://a'");
    refuse("/var/cache", "URL '/var/cache'");
    refuse("embed:,", "directory 1 has an empty name");
    refuse("embed:/a,", "directory 2 has an empty name");
    refuse("embed:/a,,/b", "directory 2 has an empty name");
    refuse("embed:/a,/b,/a", "'/a' is named twice");
    refuse("embed:/a,/a/", "'/a' is named twice");
    refuse("embed:/a,/%61", "'/a' is named twice");
    refuse("embed:/a%", "two hex digits");
    refuse("embed:/a%4", "two hex digits");
    refuse("embed:/a%4,41", "two hex digits");
    refuse("embed:/a%4g", "two hex digits");
    refuse("embed:/a%00b", "%00");
    refuse("embed:?dram=64M%00", "%00");
    refuse("embed:/a?", "name=value");
    refuse("embed:/a?dram=1G&", "name=value");
    refuse("embed:/a?&dram=1G", "name=value");
    refuse("embed:/a?dram", "option 'dram': write name=value");
    refuse("embed:/a?dram=", "name=value");
    refuse("embed:/a?=1G", "name=value");
    refuse("embed:/a?dram=1G&dram=1G", "option dram is given twice");
    refuse("embed:/a?dream=1G", "unknown option 'dream'");
    refuse("embed:/a?dra=1G", "unknown option 'dra'");
    refuse("embed:/a?dramm=1G", "unknown option 'dramm'");
    refuse("embed:/a?d%72am=1G", "unknown option");
    refuse("embed:/a?io=fast", "option io: 'fast'");
    refuse("embed:/a?io=fast", "auto, uring or plain");
    refuse("embed:/a?verify=", "name=value");
    refuse("embed:/a?verify=auto", "option verify: 'auto'");
    refuse("embed:/a?dram=1X", "option dram: '1X' is no size");
    refuse("embed:/a?dram=1GB", "is no size");
    refuse("embed:/a?dram=1G?ssd=1G", "is no size");
    refuse("embed:/a?dram=1G=2G", "is no size");
    refuse("embed:/a?dram=-1", "is no size");
    refuse("embed:/a?dram=+64M", "is no size");
    refuse("embed:/a?dram= 64M", "is no size");
    refuse("embed:/a?dram=0x4000000", "is no size");
    refuse("embed:/a?dram=1.5G", "is no size");
    refuse("embed:/a?dram=1", "option dram: 1 is not in the range");
    refuse("embed:/a?io_depth=1K", "option io_depth: '1K' is no number");
    refuse("embed:/a?io_depth=1 ", "is no number");
    refuse("embed:/a?io_depth=18446744073709551616", "is no number");
    refuse("embed:/a?workers=0", "1 to 64");
    refuse("embed:/a?workers=00000000000000000000000000000000000000000000000"
           "000000000000000000000001",
           "longer than");
}

static void test_sizes(void **s)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"1", 1},
        {"007", 7},
        {"1K", 1024},
        {"64M", (uint64_t)64 << 20},
        {"3G", (uint64_t)3 << 30},
        {"5T", (uint64_t)5 << 40},
        {"0T", 0},
        {"18446744073709551615", UINT64_MAX},
        {"16777215T", (uint64_t)16777215 << 40},
    };
    static const char *const bad[] = {
        "",   "K",  "1k", "1 K", " 1",        "1KK",
        "1B", "-1", "+1", "1e3", "16777216T", "18446744073709551616",
        "1P", "0x", ".5",
    };

    (void)s;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        uint64_t bytes = 42;
        assert_true(ldr_parse_size(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t bytes = 42;
        if (ldr_parse_size(bad[i], &bytes)) {
            fail_msg("'%s' was taken for a size", bad[i]);
        }
        assert_int_equal(bytes, 42);
    }
    assert_false(ldr_parse_size(NULL, &(uint64_t){0}));
}

/* Error texts hold however long the URL is. */
static void test_long(void **s)
{
    const size_t length = 100000;
    char *url = malloc(length + 1);

    (void)s;
    memset(url, 'a', length);
    url[length] = '\0';
    refuse(url, "embed:DIR");
    memcpy(url, "embed:", 6);
    refuse(url, "longer than");
    memcpy(url, "embed:?", 7);
    refuse(url, "name=value");
    url[1000] = '=';
    refuse(url, "unknown option 'aaa");
    memcpy(url, "embed:?dram=", 12);
    refuse(url, "longer than");
    memset(url + 6, ',', length - 6);
    refuse(url, "empty name");
    free(url);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_where),
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_refused_addresses),
        cmocka_unit_test(test_refused_texts),
        cmocka_unit_test(test_serve_texts),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_dirs),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
