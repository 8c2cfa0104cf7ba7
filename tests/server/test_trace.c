/* The trace of requests: several tell of them at once, and nobody waits. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "server/trace.h"

#define TELLERS 4u
#define EACH 500u
#define LONG 3000u

typedef struct fixture {
    char path[64];
    ldr_server_metrics_t *metrics;
    ldr_log_t log;
    ldr_trace_t *trace;
    ldr_clock_t clock;
    uint64_t wall_ms;
    larder_key_t keys[LONG];
} fixture_t;

static uint64_t now_ns(void *arg)
{
    (void)arg;
    return ldr_now_ns(&ldr_clock_real);
}

static uint64_t wall_ms(void *arg)
{
    return ((fixture_t *)arg)->wall_ms;
}

static void quiet(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));
    int fd;

    assert_non_null(f);
    snprintf(f->path, sizeof(f->path), "/tmp/larder-trace-test-XXXXXX");
    fd = mkstemp(f->path);
    assert_true(fd >= 0);
    close(fd);
    f->log = (ldr_log_t){quiet, NULL};
    assert_true(ldr_metrics_create(&ldr_clock_real, &f->metrics));
    f->clock = (ldr_clock_t){now_ns, wall_ms, f};
    f->wall_ms = 1700000000123;
    ldr_trace_params_t p = {f->path, (uint64_t)1 << 30, f->metrics, &f->log,
                            &f->clock};
    assert_int_equal(ldr_trace_open(&p, &f->trace), LARDER_OK);
    for (uint32_t i = 0; i < LONG; i++) {
        memcpy(&f->keys[i], &i, sizeof(i));
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    ldr_metrics_destroy(f->metrics);
    unlink(f->path);
    free(f);
    return 0;
}

static uint64_t event(const fixture_t *f, ldr_event_t which)
{
    return __atomic_load_n(&f->metrics->events[which], __ATOMIC_RELAXED);
}

/* Lines of the file; the longest of them in *chunks_p. */
static unsigned lines(const fixture_t *f, unsigned *chunks_p)
{
    FILE *file = fopen(f->path, "r");
    unsigned count = 0, chunks = 1;
    int c;

    assert_non_null(file);
    *chunks_p = 0;
    while ((c = fgetc(file)) != EOF) {
        chunks += c == ',';
        if (c == '\n') {
            count++;
            chunks -= 5; /* between the fields */
            *chunks_p = chunks > *chunks_p ? chunks : *chunks_p;
            chunks = 1;
        }
    }
    assert_int_equal(chunks, 1); /* the last one has its end */
    fclose(file);
    return count;
}

typedef struct teller {
    fixture_t *f;
    uint32_t number;
} teller_t;

static void *tell(void *arg)
{
    const teller_t *t = arg;

    for (uint32_t i = 0; i < EACH; i++) {
        ldr_announce_t a = {.keys = t->f->keys,
                            .count = 1 + i % 40,
                            .id = 1 + i * TELLERS + t->number};

        ldr_trace_request(t->f->trace, 0, &a);
    }
    return NULL;
}

static void test_at_once(void **state)
{
    fixture_t *f = *state;
    pthread_t threads[TELLERS];
    teller_t tellers[TELLERS];
    unsigned chunks;

    for (uint32_t i = 0; i < TELLERS; i++) {
        tellers[i] = (teller_t){f, i};
        assert_int_equal(pthread_create(&threads[i], NULL, tell, &tellers[i]),
                         0);
    }
    for (uint32_t i = 0; i < TELLERS; i++) {
        pthread_join(threads[i], NULL);
    }
    ldr_trace_close(f->trace);
    assert_int_equal(event(f, LDR_EVENT_TRACE_WRITTEN), TELLERS * EACH);
    assert_int_equal(event(f, LDR_EVENT_TRACE_REPEATED), 0);
    assert_int_equal(lines(f, &chunks), TELLERS * EACH);
    assert_int_equal(chunks, 40);
}

/* More than the buffer holds: some are left out, none is lost uncounted, and
 * lines longer than what is written at once are whole. */
static void test_too_many(void **state)
{
    fixture_t *f = *state;
    unsigned chunks;

    for (uint32_t i = 0; i < 1000; i++) {
        ldr_announce_t a = {.keys = f->keys, .count = LONG, .id = i + 1};

        ldr_trace_request(f->trace, 0, &a);
    }
    ldr_trace_close(f->trace);
    uint64_t written = event(f, LDR_EVENT_TRACE_WRITTEN);
    assert_int_equal(written + event(f, LDR_EVENT_TRACE_DROPPED), 1000);
    assert_true(written >= 80 && written < 1000);
    assert_int_equal(lines(f, &chunks), written);
    assert_int_equal(chunks, LONG);
}

/* A save whose chain begins with one that was told of is that request's. */
static void test_saves(void **state)
{
    fixture_t *f = *state;
    ldr_announce_t stage = {.keys = f->keys + 10, .count = 5};
    ldr_announce_t save = {.keys = f->keys + 10, .count = 9, .saves = true};
    ldr_announce_t other = {.keys = f->keys + 50, .count = 9, .saves = true};
    ldr_announce_t over = {
        .keys = f->keys + 70, .count = 9, .hint = LARDER_HINT_OVER};
    ldr_announce_t none = {.keys = f->keys};
    unsigned chunks;

    ldr_trace_request(f->trace, 0, &stage);
    ldr_trace_request(f->trace, 0, &save);
    ldr_trace_request(f->trace, 0, &other);
    ldr_trace_request(f->trace, 0, &other);
    ldr_trace_request(f->trace, 1, &other); /* of another space */
    ldr_trace_request(f->trace, 0, &over);
    ldr_trace_request(f->trace, 0, &none);
    ldr_trace_request(NULL, 0, &stage);
    ldr_trace_close(f->trace);
    assert_int_equal(lines(f, &chunks), 3);
    assert_int_equal(event(f, LDR_EVENT_TRACE_REPEATED), 2);
    assert_int_equal(event(f, LDR_EVENT_TRACE_DROPPED), 0);
}

/* A chain without an id is the same request within a second, and another one
 * after it. */
static void test_times(void **state)
{
    fixture_t *f = *state;
    ldr_announce_t a = {.keys = f->keys, .count = 3};
    FILE *file;
    unsigned chunks;
    char line[256] = "";

    ldr_trace_request(f->trace, 0, &a);
    f->wall_ms += 1000;
    ldr_trace_request(f->trace, 0, &a);
    f->wall_ms += 1001;
    ldr_trace_request(f->trace, 0, &a);
    ldr_trace_close(f->trace);
    assert_int_equal(event(f, LDR_EVENT_TRACE_REPEATED), 1);
    assert_int_equal(lines(f, &chunks), 2);
    file = fopen(f->path, "r");
    assert_non_null(fgets(line, sizeof(line), file));
    assert_non_null(strstr(line, "\"timestamp\":1700000000123,"));
    assert_non_null(fgets(line, sizeof(line), file));
    assert_non_null(strstr(line, "\"timestamp\":1700000002124,"));
    fclose(file);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_at_once),
        TEST(test_too_many),
        TEST(test_saves),
        TEST(test_times),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
