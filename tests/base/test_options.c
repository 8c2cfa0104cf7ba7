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

/* Every default can be written out, is in range, and is the default. */
static void test_table(void **s)
{
    ldr_options_t o, want;

    (void)s;
    ldr_options_default(&want);
    for (size_t i = 0; i < ldr_option_count; i++) {
        const ldr_option_info_t *info = &ldr_option_table[i];
        char url[128];
        snprintf(url, sizeof(url), "embed:?%s=%s", info->name, info->value);
        accept(url, &o);
        assert_memory_equal(&o, &want, sizeof(o));
        assert_true(info->min < info->max);
        assert_true(strlen(info->text) > 0);
        if (strcmp(info->kind, "ENUM") == 0) {
            continue;
        }
        for (int high = 0; high < 2; high++) {
            uint64_t edge = high ? info->max : info->min;
            snprintf(url, sizeof(url), "embed:?%s=%llu", info->name,
                     (unsigned long long)edge);
            accept(url, &o);
            snprintf(url, sizeof(url), "embed:?%s=%llu", info->name,
                     (unsigned long long)(high ? edge + 1 : edge - 1));
            if (high || edge > 0) {
                refuse(url, "not in the range");
            }
        }
    }
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
    refuse("embed:,", "directory 1 of the URL has an empty name");
    refuse("embed:/a,", "directory 2 of the URL has an empty name");
    refuse("embed:/a,,/b", "directory 2 of the URL has an empty name");
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
    refuse("embed:/a?dream=1G", " dram ssd segment io ");
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
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_table),
        cmocka_unit_test(test_values),   cmocka_unit_test(test_dirs),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
