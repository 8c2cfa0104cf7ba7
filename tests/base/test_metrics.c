/* The table of metrics and the text made of it; texts in fixed buffers. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/metrics.h"

/* ---- the table ---- */

static bool ends(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

/* What Prometheus asks of names, and what we ask of help. */
static void test_table(void **state)
{
    (void)state;
    for (int i = 0; i < LDR_METRIC_COUNT; i++) {
        const ldr_metric_info_t *m = &ldr_metric_table[i];

        assert_true(strncmp(m->name, "larder_", 7) == 0 ||
                    strncmp(m->name, "process_", 8) == 0);
        for (const char *c = m->name; *c != '\0'; c++) {
            assert_true(islower((unsigned char)*c) || *c == '_');
        }
        assert_int_equal(ends(m->name, "_total"),
                         m->type == LDR_METRIC_TYPE_COUNTER);
        assert_true(m->type != LDR_METRIC_TYPE_HISTOGRAM ||
                    ends(m->name, "_seconds"));
        assert_true(isupper((unsigned char)m->help[0]) ||
                    isdigit((unsigned char)m->help[0]));
        assert_true(ends(m->help, "."));
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(m->name, ldr_metric_table[k].name);
        }
    }
}

/* ---- the text ---- */

static void test_values(void **state)
{
    ldr_exposition_t e;
    char text[2000];

    (void)state;
    ldr_exposition_init(&e, text, sizeof(text));
    ldr_metric_put(&e, LDR_METRIC_entries, LDR_NO_LABELS,
                   18446744073709551615u);
    ldr_metric_put(&e, LDR_METRIC_loads_total, LDR_LABELS("a", "dram"), 1);
    ldr_metric_put(&e, LDR_METRIC_loads_total, LDR_LABELS("q\"b\\s\nn", "ssd"),
                   2);
    ldr_metric_put_fixed(&e, LDR_METRIC_cpu_seconds_total, LDR_NO_LABELS,
                         1500000, 6);
    assert_string_equal(
        text,
        "# HELP larder_entries Chunks in the index.\n"
        "# TYPE larder_entries gauge\n"
        "larder_entries 18446744073709551615\n"
        "# HELP larder_loads_total Shards loaded, by the tier that had them.\n"
        "# TYPE larder_loads_total counter\n"
        "larder_loads_total{tenant=\"a\",tier=\"dram\"} 1\n"
        "larder_loads_total{tenant=\"q\\\"b\\\\s\\nn\",tier=\"ssd\"} 2\n"
        "# HELP process_cpu_seconds_total Processor time the daemon has used.\n"
        "# TYPE process_cpu_seconds_total counter\n"
        "process_cpu_seconds_total 1.5\n");
    assert_int_equal(e.text.length, strlen(text));
}

/* A metric has one turn: values after it would make the text invalid. */
static void test_one_turn(void **state)
{
    ldr_exposition_t e;
    char text[2000];

    (void)state;
    ldr_exposition_init(&e, text, sizeof(text));
    ldr_metric_put(&e, LDR_METRIC_entries, LDR_NO_LABELS, 1);
    ldr_metric_put(&e, LDR_METRIC_leases, LDR_NO_LABELS, 2);
    size_t length = e.text.length;
    ldr_metric_put(&e, LDR_METRIC_entries, LDR_NO_LABELS, 3);
    assert_int_equal(e.text.length, length);
}

/* ---- rows ---- */

typedef struct record {
    int64_t level;
    uint32_t few;
    uint32_t is;
    uint64_t some[3], count;
    ldr_milli_t ratio;
    ldr_histogram_t times;
    const ldr_histogram_t *others;
} record_t;

/* The second place has no name. */
static const char *names(unsigned i)
{
    return i == 1 ? NULL : i == 0 ? "dram" : "ssd";
}

#define FIGURES(M, V, S, E, J)                                                 \
    V(leases, GAUGE, "", queues.leases, level, "")                             \
    V(jobs_queued, GAUGE, "", queues.few, few, "")                             \
    V(trace_on, GAUGE, "", on, is, "")                                         \
    J(only, count)                                                             \
    M(space_info, GAUGE, "tenant,space,label", "")                             \
    M(moved_bytes_total, COUNTER, "tenant,direction,tier", "")                 \
    E(names, "save", count)                                                    \
    E(names, "load", some)                                                     \
    V(write_amplification_ratio, GAUGE, "", ratio.is, ratio, "")               \
    M(disk_seconds, HISTOGRAM, "path,operation", "")                           \
    S(, "read", times)                                                         \
    S(, "write", others)

#define LDR_ROW record_t
static const ldr_row_t rows[] = {LDR_ROWS(FIGURES)};
#undef LDR_ROW

/* Each metric once, of all subjects; those without a series not at all. */
static void test_rows(void **state)
{
    record_t a = {-3, 4, 1, {5, 6, 7}, 8, {1500}, {{0}, 0}, NULL};
    record_t b = a;
    ldr_subject_t subjects[] = {{&a, {"a"}}, {&b, {"b"}}};
    ldr_exposition_t e;
    char text[20000];

    (void)state;
    a.others = &b.times;
    b.others = &a.times;
    ldr_exposition_init(&e, text, sizeof(text));
    ldr_figures_put(&e, rows, subjects, 2);
    assert_true(e.text.length < sizeof(text));
    assert_null(strstr(text, "space_info"));
#define HAS(s) assert_non_null(strstr(text, "\n" s "\n"))
    HAS("larder_leases -3\nlarder_leases -3");
    HAS("larder_jobs_queued 4");
    HAS("larder_trace_on 1\nlarder_trace_on 1\n# HELP larder_moved_bytes_total "
        "Payload saved and loaded, by tier.\n"
        "# TYPE larder_moved_bytes_total counter\n"
        "larder_moved_bytes_total{tenant=\"a\",direction=\"save\",tier="
        "\"dram\"}"
        " 8\n"
        "larder_moved_bytes_total{tenant=\"a\",direction=\"load\",tier="
        "\"dram\"}"
        " 5\n"
        "larder_moved_bytes_total{tenant=\"a\",direction=\"load\",tier=\"ssd\"}"
        " 7\n"
        "larder_moved_bytes_total{tenant=\"b\",direction=\"save\",tier="
        "\"dram\"}"
        " 8");
    HAS("larder_write_amplification_ratio 1.5");
    HAS("larder_disk_seconds_count{path=\"b\",operation=\"write\"} 0");
#undef HAS
}

static void test_rows_json(void **state)
{
    record_t a = {-3, 4, 1, {5, 6, 7}, 8, {1500}, {{0}, 0}, NULL};
    char text[2000];
    ldr_json_t j = {.t = ldr_text(text, sizeof(text))};

    (void)state;
    ldr_json_begin(&j, NULL, '{');
    ldr_json_text(&j, "name", "a");
    ldr_figures_json(&j, rows, &a);
    ldr_json_begin(&j, "list", '[');
    ldr_json_number(&j, NULL, 1);
    ldr_json_truth(&j, NULL, false);
    ldr_json_end(&j, ']');
    ldr_json_number(&j, "last.one", 1);
    ldr_json_number(&j, "last.two", 2);
    ldr_json_end(&j, '}');
    assert_string_equal(text,
                        "{\"name\":\"a\",\"queues\":{\"leases\":0,\"few\":4},"
                        "\"on\":1,\"only\":8,\"ratio\":{\"is\":1.5},"
                        "\"list\":[1,false],\"last\":{\"one\":1,\"two\":2}}");
}

#define ONE(M, V, S, E, J) V(request_seconds, HISTOGRAM, "op", , times, "")
#define LDR_ROW record_t
static const ldr_row_t histogram_rows[] = {LDR_ROWS(ONE)};
#undef LDR_ROW

static void test_histogram(void **state)
{
    ldr_exposition_t e;
    record_t r = {0};
    char text[8000];

    (void)state;
    ldr_histogram_add(&r.times, 1000);       /* the first bucket, to its brim */
    ldr_histogram_add(&r.times, 1001);       /* the second */
    ldr_histogram_add(&r.times, 1500000000); /* 1.5 s */
    ldr_histogram_add(&r.times, 100000000000); /* 100 s: in none */
    ldr_exposition_init(&e, text, sizeof(text));
    ldr_figures_put(&e, histogram_rows, &(ldr_subject_t){&r, {"get"}}, 1);
    assert_true(e.text.length < sizeof(text));
#define HAS(s) assert_non_null(strstr(text, "\nlarder_request_seconds" s "\n"))
    assert_non_null(strstr(text, "# TYPE larder_request_seconds histogram\n"));
    HAS("_bucket{op=\"get\",le=\"0.000001\"} 1");
    HAS("_bucket{op=\"get\",le=\"0.000002\"} 2");
    HAS("_bucket{op=\"get\",le=\"1.048576\"} 2");
    HAS("_bucket{op=\"get\",le=\"2.097152\"} 3");
    HAS("_bucket{op=\"get\",le=\"16.777216\"} 3");
    HAS("_bucket{op=\"get\",le=\"+Inf\"} 4");
    HAS("_sum{op=\"get\"} 101.500002001");
    HAS("_count{op=\"get\"} 4");
#undef HAS
}

/* The length is the same whatever the room, and nothing is written behind it.
 */
static void test_no_room(void **state)
{
    char whole[2000], part[300];
    ldr_exposition_t e;

    (void)state;
    for (size_t size = 0; size < sizeof(part); size++) {
        memset(part, '#', sizeof(part));
        ldr_exposition_init(&e, whole, sizeof(whole));
        ldr_metric_put(&e, LDR_METRIC_loads_total, LDR_LABELS("t", "dram"),
                       12345);
        size_t length = e.text.length;
        ldr_exposition_init(&e, part, size);
        ldr_metric_put(&e, LDR_METRIC_loads_total, LDR_LABELS("t", "dram"),
                       12345);
        assert_int_equal(e.text.length, length);
        if (size > 0) {
            size_t shown = strnlen(part, size);

            assert_true(shown < size);
            assert_memory_equal(part, whole, shown);
        }
        for (size_t i = size; i < sizeof(part); i++) {
            assert_int_equal(part[i], '#');
        }
    }
}

/* ---- texts ---- */

static const char *fixed(uint64_t value, unsigned decimals)
{
    static char text[64];
    ldr_text_t t = ldr_text(text, sizeof(text));

    ldr_text_fixed(&t, value, decimals);
    assert_int_equal(t.length, strlen(text));
    return text;
}

static void test_fixed(void **state)
{
    (void)state;
    assert_string_equal(fixed(0, 3), "0");
    assert_string_equal(fixed(5, 0), "5");
    assert_string_equal(fixed(1500, 3), "1.5");
    assert_string_equal(fixed(1005, 3), "1.005");
    assert_string_equal(fixed(1000, 9), "0.000001");
    assert_string_equal(fixed(UINT64_MAX, 9), "18446744073.709551615");
}

static void json_is(const char *from, const char *want)
{
    char text[200];
    ldr_text_t t = ldr_text(text, sizeof(text));

    ldr_text_json(&t, from);
    assert_string_equal(text, want);
}

static void test_json(void **state)
{
    (void)state;
    json_is("", "\"\"");
    json_is("a\"b\\c/", "\"a\\\"b\\\\c/\"");
    json_is("\n\t\x01\x7f", "\"\\u000a\\u0009\\u0001\\u007f\"");
    json_is("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
            "\"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80\"");
    /* Cut off, overlong, a surrogate, beyond the last, a lone byte. */
    json_is("a\xc3", "\"a\\ufffd\"");
    json_is("\xe2\x82", "\"\\ufffd\\ufffd\"");
    json_is("\xc0\xaf", "\"\\ufffd\\ufffd\"");
    json_is("\xe0\x80\xaf", "\"\\ufffd\\ufffd\\ufffd\"");
    json_is("\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\"");
    json_is("\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
    json_is("\xff!", "\"\\ufffd!\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),     cmocka_unit_test(test_values),
        cmocka_unit_test(test_one_turn),  cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_no_room),   cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_json),      cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rows_json),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
