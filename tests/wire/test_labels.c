/* Labels of spaces come from anybody, and are shown to people. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/text.h"
#include "wire/wire.h"

static void test_clean(void **s)
{
    char label[LARDER_LABEL_MAX + 1];
    char all[256], many[300];

    (void)s;
    ldr_label_clean("Qwen3-8B bf16", 13, label);
    assert_string_equal(label, "Qwen3-8B bf16");
    ldr_label_clean("Qwen3-8B bf16", 8, label);
    assert_string_equal(label, "Qwen3-8B");
    ldr_label_clean("<b>\"'&\\{}", 10, label); /* whoever shows it quotes it */
    assert_string_equal(label, "<b>\"'&\\{}");
    ldr_label_clean("\x1b[2J\n\xc3\xa9\x7f", 8, label);
    assert_string_equal(label, "?[2J????");
    memset(many, 'm', sizeof(many));
    ldr_label_clean(many, sizeof(many), label);
    assert_int_equal(strlen(label), LARDER_LABEL_MAX);
    ldr_label_clean(NULL, 0, label);
    assert_string_equal(label, "");
    for (unsigned i = 1; i < sizeof(all); i++) {
        all[0] = (char)i;
        ldr_label_clean(all, 1, label);
        assert_int_equal(label[0], i >= ' ' && i <= '~' ? (int)i : '?');
        assert_int_equal(label[1], 0);
    }
}

static void test_wire(void **s)
{
    uint8_t at[LDR_SPACE_MSG_BYTES + 1] = {0};
    ldr_space_msg_t m = {.label = "0123456789012345678901234567890123456789"
                                  "012345678901234567890123"};
    ldr_space_msg_t got;
    size_t n = ldr_put_space(at, &m);

    (void)s;
    assert_int_equal(n, LDR_SPACE_MSG_BYTES);
    assert_true(ldr_get_space(at, n, &got));
    assert_string_equal(got.label, m.label);
    /* One more than there is room for. */
    ldr_put32(at + LDR_SPACE_HEAD_BYTES - 4, LARDER_LABEL_MAX + 1);
    assert_false(ldr_get_space(at, n + 1, &got));
    /* A length that is not the label's. */
    for (uint32_t length = 0; length < LARDER_LABEL_MAX; length++) {
        ldr_put32(at + LDR_SPACE_HEAD_BYTES - 4, length);
        assert_false(ldr_get_space(at, n, &got));
    }
    /* What must not reach a terminal, and what comes behind a NUL. */
    ldr_put32(at + LDR_SPACE_HEAD_BYTES - 4, 8);
    memcpy(at + LDR_SPACE_HEAD_BYTES, "\x1b[31m\xff\0x", 8);
    assert_true(ldr_get_space(at, LDR_SPACE_HEAD_BYTES + 8, &got));
    assert_string_equal(got.label, "?[31m?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_wire),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
