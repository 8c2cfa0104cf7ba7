/* Lines of a trace: what is a request, what is not, and why. */
#include "plan/line.h"

#include "plan/rig.h"

static const char *parse(ldr_line_t *line, const char *text)
{
    return ldr_line_parse(line, text, strlen(text));
}

static void test_good(void **state)
{
    ldr_line_t line = {0};

    (void)state;
    assert_null(parse(&line, "{\"timestamp\": 27482, \"input_length\": 6955, "
                             "\"output_length\": 52, \"hash_ids\": [46, 47, "
                             "18446744073709551615]}"));
    assert_int_equal(line.at_ms, 27482);
    assert_int_equal(line.input_tokens, 6955);
    assert_int_equal(line.output_tokens, 52);
    assert_int_equal(line.count, 3);
    assert_int_equal(line.ids[0], 46);
    assert_int_equal(line.ids[1], 47);
    assert_true(line.ids[2] == UINT64_MAX);
    assert_int_equal(line.hint, 0);
    assert_int_equal(line.block_tokens, 0);
    ldr_line_free(&line);
}

static void test_tolerant(void **state)
{
    static const char *const texts[] = {
        /* another order, no output, spaces everywhere, a fraction */
        "\t{ \"hash_ids\" : [ 7 , 8 ] , \"input_length\" : 1024 , "
        "\"timestamp\" : 12.75 } \r",
        /* fields of others, with all that JSON has */
        "{\"a\":{\"hash_ids\":[1,{\"b\":\"]}\\\"\"}],\"x\":-1.5e+9},"
        "\"timestamp\":12,\"t\":true,\"n\":null,\"hash_ids\":[7,8],"
        "\"s\":\"\\\\\",\"e\":[],\"o\":{},\"input_length\":1024}",
        "{\"timestamp\":12,\"input_length\":1024,\"hash_ids\":[7,8]}",
    };
    ldr_line_t line = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        line.output_tokens = 99; /* of an earlier line */
        const char *why = parse(&line, texts[i]);

        assert_string_equal(why != NULL ? why : "", "");
        assert_int_equal(line.at_ms, 12);
        assert_int_equal(line.input_tokens, 1024);
        assert_int_equal(line.output_tokens, 0);
        assert_int_equal(line.count, 2);
        assert_int_equal(line.ids[1], 8);
    }
    assert_null(parse(&line, "{\"timestamp\":1,\"input_length\":0,"
                             "\"hash_ids\":[],\"hint\":4,"
                             "\"block_tokens\":256}"));
    assert_int_equal(line.block_tokens, 256);
    assert_int_equal(line.count, 0);
    assert_int_equal(line.hint, 4);
    ldr_line_free(&line);
}

#define REST ",\"input_length\":1,\"hash_ids\":[1]}"

static void test_bad(void **state)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"hello", "it is no JSON object"},
        {"[1]", "it is no JSON object"},
        {"{}", "it has no hash_ids"},
        {"{\"input_length\":1,\"hash_ids\":[1]}", "it has no timestamp"},
        {"{\"timestamp\":1,\"hash_ids\":[1]}", "it has no input_length"},
        {"{\"timestamp\":1" REST "x", "something stands behind the object"},
        {"{\"timestamp\":1" REST "{}", "something stands behind the object"},
        {"{\"timestamp\":-1" REST, "a number without sign is expected"},
        {"{\"timestamp\":\"1\"" REST, "a number without sign is expected"},
        {"{\"timestamp\":1e3" REST, "a number has an exponent"},
        {"{\"timestamp\":1." REST, "a number ends with a point"},
        {"{\"timestamp\":99999999999999999999" REST, "a number is too large"},
        {"{\"input_length\":4294967296}", "a number is too large"},
        {"{\"hash_ids\":7}", "hash_ids is no array"},
        {"{\"hash_ids\":[1,]}", "a number without sign is expected"},
        {"{\"hash_ids\":[1.5]}", "hash_ids has no end"},
        {"{\"hash_ids\":[18446744073709551616]}", "a number is too large"},
        {"{\"hash_ids\":[1", "hash_ids has no end"},
        {"{\"timestamp\":1", "the object has no end"},
        {"{\"timestamp\" 1}", "a field has no value"},
        {"{timestamp:1}", "a string is expected"},
        {"{\"timest", "a string has no end"},
        {"{\"a\\", "a string has no end"},
        {"{\"a\":}", "a value is expected"},
        {"{\"a\":[1}", "a value is expected"},
    };
    ldr_line_t line = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *why = parse(&line, cases[i].text);

        if (why == NULL || strcmp(why, cases[i].why) != 0) {
            fail_msg("%s: %s, not %s", cases[i].text, why ? why : "accepted",
                     cases[i].why);
        }
    }
    ldr_line_free(&line);
}

static void test_nesting(void **state)
{
    char text[400];
    ldr_line_t line = {0};

    (void)state;
    for (int depth = 60; depth < 70; depth++) {
        int used = snprintf(text, sizeof(text), "{\"a\":");

        memset(text + used, '[', (size_t)depth);
        memset(text + used + depth, ']', (size_t)depth);
        snprintf(text + used + 2 * depth, 80, ",\"timestamp\":1" REST);
        assert_true((parse(&line, text) == NULL) == (depth <= 64));
    }
    ldr_line_free(&line);
}

/* Cut anywhere, a line is refused and nothing behind its end is read. */
static void test_cut(void **state)
{
    static const char text[] =
        "{\"timestamp\": 2.5, \"x\": [\"\\\"\", {}], \"input_length\": 69, "
        "\"hash_ids\": [46, 47]}";
    ldr_line_t line = {0};

    (void)state;
    for (size_t bytes = 0; bytes < sizeof(text) - 1; bytes++) {
        char *copy = malloc(bytes + 1); /* for the address sanitizer */

        assert_non_null(copy);
        memcpy(copy, text, bytes);
        assert_non_null(ldr_line_parse(&line, copy, bytes));
        free(copy);
    }
    assert_null(ldr_line_parse(&line, text, sizeof(text) - 1));
    ldr_line_free(&line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good), cmocka_unit_test(test_tolerant),
        cmocka_unit_test(test_bad),  cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
