/* Reading a trace: numbers for ids, bad lines, long ones, sampling. */
#include "plan/ids.h"
#include "plan/rig.h"
#include "store/index.h"

static void test_play(void **state)
{
    static const char text[] =
        "{\"timestamp\":5000,\"input_length\":1025,\"output_length\":7,"
        "\"hash_ids\":[90,17,4]}\n"
        "\n"
        "{\"timestamp\":6000,\"input_length\":0,\"hash_ids\":[]}\r\n"
        "{\"timestamp\":5500,\"input_length\":600,\"hash_ids\":[90,5]}";
    const ldr_tape_request_t *request;
    const uint32_t *blocks;
    ldr_player_t player;
    ldr_tape_t tape;

    (void)state;
    assert_int_equal(rig_read(text, sizeof(text) - 1, 1, NULL, &tape),
                     LARDER_OK);
    assert_int_equal(tape.requests, 3);
    assert_int_equal(tape.references, 5);
    assert_int_equal(tape.all, 5);
    assert_int_equal(tape.distinct, 4);
    assert_int_equal(tape.longest, 3);
    assert_int_equal(tape.lines, 4);
    assert_int_equal(tape.bad, 0);
    assert_int_equal(tape.back, 1);
    assert_int_equal(tape.duration_ms, 1000);
    assert_int_equal(tape.input_tokens, 1625);
    assert_int_equal(ldr_player_open(&tape, &player), LARDER_OK);
    assert_int_equal(ldr_player_next(&player, &request, &blocks), 1);
    assert_int_equal(request->at_ms, 0);
    assert_int_equal(request->input_tokens, 1025);
    assert_int_equal(request->output_tokens, 7);
    assert_int_equal(request->count, 3);
    assert_memory_equal(blocks, ((uint32_t[]){0, 1, 2}), 12);
    assert_int_equal(ldr_player_next(&player, &request, &blocks), 1);
    assert_int_equal(request->count, 0);
    assert_int_equal(request->at_ms, 1000);
    assert_int_equal(ldr_player_next(&player, &request, &blocks), 1);
    assert_int_equal(request->at_ms, 1000); /* time does not go back */
    assert_memory_equal(blocks, ((uint32_t[]){0, 3}), 8);
    assert_int_equal(ldr_player_next(&player, &request, &blocks), 0);
    assert_int_equal(ldr_player_next(&player, &request, &blocks), 0);
    ldr_player_close(&player);
    ldr_tape_close(&tape);
}

static void test_bad_lines(void **state)
{
    static const char text[] =
        "{\"timestamp\":1,\"input_length\":1,\"hash_ids\":[1]}\n"
        "nonsense\n"
        "\n"
        "{\"timestamp\":1,\"input_length\":1}\n"
        "{\"timestamp\":1,\"input_length\":1,\"hash_ids\":[2]}\n"
        "{\"timestamp\":1,";
    rig_bad_t bad;
    ldr_tape_t tape;

    (void)state;
    assert_int_equal(rig_read(text, sizeof(text) - 1, 1, &bad, &tape),
                     LARDER_OK);
    assert_int_equal(tape.requests, 2);
    assert_int_equal(tape.bad, 3);
    assert_int_equal(bad.count, 3);
    assert_int_equal(bad.lines[0], 2);
    assert_string_equal(bad.why[0], "it is no JSON object");
    assert_int_equal(bad.lines[1], 4);
    assert_string_equal(bad.why[1], "it has no hash_ids");
    assert_int_equal(bad.lines[2], 6);
    ldr_tape_close(&tape);
}

/* A line that no buffer holds is one bad line, and the next one is read. */
static void test_long_line(void **state)
{
    static const char good[] =
        "\n{\"timestamp\":1,\"input_length\":1,\"hash_ids\":[1]}\n";
    size_t bytes = (size_t)65 << 20;
    char *text = malloc(2 * bytes + sizeof(good));
    rig_bad_t bad;
    ldr_tape_t tape;

    (void)state;
    assert_non_null(text);
    memset(text, '[', 2 * bytes + sizeof(good));
    memcpy(text + bytes, good, sizeof(good) - 1);
    assert_int_equal(rig_read(text, 2 * bytes + sizeof(good), 1, &bad, &tape),
                     LARDER_OK);
    assert_int_equal(tape.requests, 1);
    assert_int_equal(tape.lines, 3);
    assert_int_equal(bad.count, 2);
    assert_int_equal(bad.lines[0], 1);
    assert_string_equal(bad.why[0], "it is longer than 64 MiB");
    assert_int_equal(bad.lines[1], 3); /* without a newline at its end */
    ldr_tape_close(&tape);
    free(text);
}

/* Requests larger than every buffer, and many small ones behind them. */
static void test_large_requests(void **state)
{
    enum { LARGE = 300000, SMALL = 20000 };
    size_t room = (size_t)LARGE * 8 + (size_t)SMALL * 80, used = 0;
    char *text = malloc(room);
    const ldr_tape_request_t *request;
    const uint32_t *blocks;
    ldr_player_t player;
    ldr_tape_t tape;

    (void)state;
    assert_non_null(text);
    used += (size_t)snprintf(text, room,
                             "{\"timestamp\":0,\"input_length\":"
                             "1,\"hash_ids\":[0");
    for (unsigned i = 1; i < LARGE; i++) {
        used += (size_t)snprintf(text + used, room - used, ",%u", i);
    }
    used += (size_t)snprintf(text + used, room - used, "]}\n");
    for (unsigned i = 0; i < SMALL; i++) {
        used += (size_t)snprintf(text + used, room - used,
                                 "{\"timestamp\":0,\"input_length\":1,"
                                 "\"hash_ids\":[%u]}\n",
                                 i);
    }
    assert_int_equal(rig_read(text, used, 1, NULL, &tape), LARDER_OK);
    free(text);
    assert_int_equal(tape.distinct, LARGE);
    assert_int_equal(ldr_player_open(&tape, &player), LARDER_OK);
    assert_int_equal(ldr_player_next(&player, &request, &blocks), 1);
    for (unsigned i = 0; i < LARGE; i++) {
        assert_int_equal(blocks[i], i);
    }
    for (unsigned i = 0; i < SMALL; i++) {
        assert_int_equal(ldr_player_next(&player, &request, &blocks), 1);
        assert_int_equal(blocks[0], i);
    }
    assert_int_equal(ldr_player_next(&player, &request, &blocks), 0);
    ldr_player_close(&player);
    ldr_tape_close(&tape);
}

static void test_ids(void **state)
{
    enum { PLAIN = 1000, OTHERS = 200000 };
    ldr_id_map_t ids = {0};

    (void)state;
    for (uint32_t i = 0; i < PLAIN; i++) {
        assert_int_equal(ldr_id_map_get(&ids, i), i);
    }
    assert_int_equal(ids.slots, 0); /* they need no table */
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < OTHERS; i++) {
            uint64_t id = UINT64_MAX - i * i;

            assert_int_equal(ldr_id_map_get(&ids, id), PLAIN + i);
        }
        /* Would be next in line, had there been no others. */
        assert_int_equal(ldr_id_map_get(&ids, PLAIN), PLAIN + OTHERS);
        assert_int_equal(ldr_id_map_get(&ids, 7), 7);
    }
    assert_int_equal(ids.count, PLAIN + OTHERS + 1);
    ldr_id_map_free(&ids);
}

static void test_future(void **state)
{
    uint32_t next[8];
    ldr_tape_t tape;

    (void)state;
    rig_tape("5 6 7;5 6;9;5 9", &tape);
    assert_true(ldr_tape_future(&tape));
    assert_true(ldr_tape_future(&tape)); /* is there already */
    assert_true(ldr_tape_pread(tape.future_fd, next, sizeof(next), 0));
    assert_memory_equal(
        next, ((uint32_t[]){3, 4, LDR_NIL, 6, LDR_NIL, 7, LDR_NIL, LDR_NIL}),
        sizeof(next));
    ldr_tape_close(&tape);
}

/* About that share of the blocks, the same ones each time, in order. */
static void test_sample(void **state)
{
    ldr_tape_t whole, part;
    char text[] =
        "{\"timestamp\":1,\"input_length\":1,\"hash_ids\":[      ]}\n";
    size_t line = sizeof(text) - 1;
    char *all = malloc(2 * 4000 * line);

    (void)state;
    assert_non_null(all);
    for (unsigned i = 0; i < 8000; i++) {
        char number[8];

        snprintf(number, sizeof(number), "%6u", i % 4000);
        memcpy(strchr(text, '[') + 1, number, 6);
        memcpy(all + i * line, text, line);
    }
    assert_int_equal(rig_read(all, 8000 * line, 1, NULL, &whole), LARDER_OK);
    assert_int_equal(rig_read(all, 8000 * line, 0.25, NULL, &part), LARDER_OK);
    assert_int_equal(whole.references, 8000);
    assert_int_equal(part.all, 8000);
    assert_int_equal(part.requests, 8000);
    assert_int_equal(part.references, 2 * part.distinct);
    assert_in_range(part.distinct, 850, 1150);
    ldr_tape_close(&whole);
    ldr_tape_close(&part);
    free(all);
}

static void test_no_file(void **state)
{
    ldr_tape_params_t params = {.path = "/nonexistent/trace", .sample = 1};
    ldr_tape_t tape;

    (void)state;
    assert_int_equal(ldr_tape_read(&params, &tape), LARDER_E_IO);
    assert_non_null(strstr(ldr_fail_text(), "/nonexistent/trace"));
    params = (ldr_tape_params_t){
        .path = "/dev/null", .folder = "/nonexistent", .sample = 1};
    assert_int_equal(ldr_tape_read(&params, &tape), LARDER_E_IO);
    assert_non_null(strstr(ldr_fail_text(), "TMPDIR"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_play),      cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_long_line), cmocka_unit_test(test_large_requests),
        cmocka_unit_test(test_ids),       cmocka_unit_test(test_future),
        cmocka_unit_test(test_sample),    cmocka_unit_test(test_no_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
