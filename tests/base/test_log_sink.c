/* The daemon's log: what a line looks like, which are written, and that no
 * reader, however slow, holds up a writer. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/options.h"
#include "base/thread.h"

#define SECOND 1000000000ull

/* A sink into a pipe, with a clock that stands still until it is moved. */
typedef struct rig {
    int read_fd, write_fd;
    uint64_t now_ns;
    ldr_clock_t clock;
    ldr_log_sink_t *sink;
    ldr_log_t log;
    char text[1 << 16];
} rig_t;

static uint64_t rig_now(void *arg)
{
    return ((rig_t *)arg)->now_ns;
}

static void rig_open(rig_t *r, uint64_t format, larder_log_level_t level,
                     unsigned rate)
{
    ldr_log_sink_params_t params = {
        .format = format, .level = level, .rate = rate, .clock = &r->clock};
    int fds[2];

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    r->read_fd = fds[0];
    r->write_fd = params.fd = fds[1];
    assert_int_equal(fcntl(r->read_fd, F_SETFL, O_NONBLOCK), 0);
    r->now_ns = 12 * SECOND + 345678901;
    r->clock = (ldr_clock_t){rig_now, NULL, r};
    r->sink = ldr_log_sink_open(&params);
    assert_non_null(r->sink);
    r->log = (ldr_log_t){ldr_log_sink_fn, r->sink};
}

/* What was written since the last time. */
static const char *rig_read(rig_t *r)
{
    ssize_t n = read(r->read_fd, r->text, sizeof(r->text) - 1);

    r->text[n > 0 ? n : 0] = '\0';
    return r->text;
}

static void rig_close(rig_t *r)
{
    ldr_log_sink_close(r->sink);
    close(r->read_fd);
    close(r->write_fd);
}

static unsigned lines(const char *text, const char *with)
{
    unsigned count = 0;

    while ((text = strstr(text, with)) != NULL) {
        count++;
        text += strlen(with);
    }
    return count;
}

/* The digits of a pattern stand for any digit. */
static bool looks_like(const char *text, const char *pattern)
{
    for (; *pattern != '\0'; pattern++, text++) {
        bool digit = *pattern >= '0' && *pattern <= '9';
        if (digit ? *text < '0' || *text > '9' : *text != *pattern) {
            return false;
        }
    }
    return true;
}

/* ---- tests ---- */

static void test_text(void **s)
{
    static rig_t r;
    const char *text;
    time_t before = time(NULL), when;
    struct tm utc = {0};

    (void)s;
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_INFO, 0);
    ldr_info(&r.log, "opened %s", "/kv");
    text = rig_read(&r);
    assert_true(looks_like(text, "0000-00-00T00:00:00.000Z "));
    assert_string_equal(text + 25, "12.345678 info: opened /kv\n");
    assert_non_null(strptime(text, "%Y-%m-%dT%H:%M:%S", &utc));
    when = timegm(&utc);
    assert_true(when >= before && when <= time(NULL));
    ldr_warn(&r.log, "a");
    assert_non_null(strstr(rig_read(&r), " warn: a\n"));
    ldr_error(&r.log, "b");
    assert_non_null(strstr(rig_read(&r), " error: b\n"));
    rig_close(&r);
}

static void test_levels(void **s)
{
    static rig_t r;

    (void)s;
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_WARN, 0);
    ldr_info(&r.log, "quiet");
    ldr_debug(&r.log, "quiet");
    assert_string_equal(rig_read(&r), "");
    assert_false(ldr_log_sink_wants(r.sink, LARDER_LOG_INFO));
    ldr_log_sink_set_level(r.sink, LARDER_LOG_DEBUG);
    ldr_debug(&r.log, "now");
    assert_non_null(strstr(rig_read(&r), " debug: now\n"));
    ldr_log_sink_set_level(r.sink, LARDER_LOG_ERROR);
    ldr_warn(&r.log, "quiet");
    ldr_log_sink_fn(r.sink, LARDER_LOG_WARN, "quiet");
    ldr_log_sink_fn(r.sink, (larder_log_level_t)17, "no level");
    assert_string_equal(rig_read(&r), "");
    ldr_error(&r.log, "loud");
    assert_non_null(strstr(rig_read(&r), " error: loud\n"));
    rig_close(&r);
}

/* No name can make a line of its own. */
static void test_text_escapes(void **s)
{
    static rig_t r;

    (void)s;
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_INFO, 0);
    ldr_info(&r.log, "name '%s'", "a\nb\x1b[2J\x7f\xc3\xa4\\");
    assert_non_null(
        strstr(rig_read(&r), "name 'a\\x0ab\\x1b[2J\\x7f\xc3\xa4\\'\n"));
    rig_close(&r);
}

static void test_json(void **s)
{
    static rig_t r;
    char line[400];
    const char *text;

    (void)s;
    rig_open(&r, LDR_LOG_JSON, LARDER_LOG_INFO, 0);
    ldr_warn(&r.log, "say \"%s\"", "a\nb\\\x01\xc3\xa4\xff\xc3");
    text = rig_read(&r);
    assert_true(looks_like(text, "{\"time\":\"0000-00-00T00:00:00.000Z\","
                                 "\"mono\":00.000000,\"level\":\""));
    assert_non_null(strstr(
        text, "\"level\":\"warn\",\"msg\":\"say \\\"a\\u000ab\\\\\\u0001\xc3"
              "\xa4\\ufffd\\ufffd\\\"\"}\n"));

    /* Every byte there is: one line, all of it printable or UTF-8. */
    for (int i = 0; i < 255; i++) {
        line[i] = (char)(i + 1);
    }
    line[255] = '\0';
    ldr_log_sink_fn(r.sink, LARDER_LOG_INFO, line);
    text = rig_read(&r);
    assert_int_equal(lines(text, "\n"), 1);
    assert_string_equal(text + strlen(text) - 3, "\"}\n");
    for (const char *at = text; at[1] != '\0'; at++) {
        assert_true((unsigned char)*at >= 0x20 && (unsigned char)*at < 0x7f);
    }
    assert_int_equal(lines(text, "\\ufffd"), 128);
    rig_close(&r);
}

/* The longest there can be is still one line of at most PIPE_BUF bytes. */
static void test_long(void **s)
{
    static rig_t r;
    static char line[5000];

    (void)s;
    rig_open(&r, LDR_LOG_JSON, LARDER_LOG_INFO, 0);
    memset(line, 0x01, sizeof(line) - 1);
    ldr_log_sink_fn(r.sink, LARDER_LOG_INFO, line);
    assert_int_equal(lines(rig_read(&r), "\"}\n"), 1);
    assert_true(strlen(r.text) <= 4096);
    assert_true(lines(r.text, "\\u0001") >= 500);
    rig_close(&r);
}

static void test_journal(void **s)
{
    static rig_t r;
    ldr_log_sink_params_t params = {
        .format = LDR_LOG_TEXT, .level = LARDER_LOG_DEBUG, .clock = &r.clock};
    struct stat st;
    char stream[64];

    (void)s;
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_DEBUG, 0);
    assert_int_equal(fstat(r.write_fd, &st), 0);
    snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    params.fd = r.write_fd;
    ldr_log_sink_close(r.sink);
    r.sink = r.log.arg = ldr_log_sink_open(&params);
    ldr_error(&r.log, "a");
    ldr_warn(&r.log, "b");
    ldr_info(&r.log, "c");
    ldr_debug(&r.log, "d");
    assert_string_equal(rig_read(&r), "<3>error: a\n<4>warn: b\n"
                                      "<6>info: c\n<7>debug: d\n");
    params.format = LDR_LOG_JSON;
    ldr_log_sink_close(r.sink);
    r.sink = r.log.arg = ldr_log_sink_open(&params);
    ldr_warn(&r.log, "b");
    assert_int_equal(strncmp(rig_read(&r), "<4>{\"time\":\"", 12), 0);

    /* Another stream is the journal's: this one was redirected. */
    setenv("JOURNAL_STREAM", "1:1", 1);
    params.format = LDR_LOG_TEXT;
    ldr_log_sink_close(r.sink);
    r.sink = r.log.arg = ldr_log_sink_open(&params);
    ldr_info(&r.log, "c");
    assert_true(looks_like(rig_read(&r), "0000-00-00T"));
    unsetenv("JOURNAL_STREAM");
    rig_close(&r);
}

static void test_rate(void **s)
{
    static rig_t r;
    const char *text;

    (void)s;
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_INFO, 3);
    for (int i = 0; i < 10; i++) {
        ldr_warn(&r.log, "disk %d failed", i);
        ldr_info(&r.log, "another kind");
    }
    text = rig_read(&r);
    assert_int_equal(lines(text, "failed\n"), 3);
    assert_int_equal(lines(text, "another kind\n"), 3);
    assert_null(strstr(text, "suppressed"));

    /* The second is over: any line tells, of each kind. */
    r.now_ns += SECOND;
    ldr_error(&r.log, "third kind");
    text = rig_read(&r);
    assert_non_null(strstr(text, "warn: 7 similar lines suppressed, the last: "
                                 "disk 9 failed\n"));
    assert_non_null(strstr(text, "info: 7 similar lines suppressed, the last: "
                                 "another kind\n"));
    assert_non_null(strstr(text, "third kind\n"));

    /* And begins anew. */
    ldr_warn(&r.log, "disk %d failed", 77);
    assert_non_null(strstr(rig_read(&r), "disk 77 failed\n"));
    rig_close(&r);
}

/* Without a format, lines that differ in their digits are of one kind. */
static void test_rate_of_texts(void **s)
{
    static rig_t r;
    char line[64];

    (void)s;
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_INFO, 2);
    for (int i = 0; i < 1000; i++) {
        snprintf(line, sizeof(line), "session %d ended", i * 7);
        ldr_log_sink_fn(r.sink, LARDER_LOG_INFO, line);
    }
    assert_int_equal(lines(rig_read(&r), "ended\n"), 2);
    ldr_log_sink_tick(r.sink); /* too early */
    assert_string_equal(rig_read(&r), "");
    r.now_ns += SECOND;
    ldr_log_sink_tick(r.sink);
    assert_int_equal(lines(rig_read(&r), "998 similar lines suppressed"), 1);
    ldr_log_sink_tick(r.sink); /* once */
    assert_string_equal(rig_read(&r), "");
    for (int i = 0; i < 5; i++) {
        ldr_log_sink_fn(r.sink, LARDER_LOG_INFO, "at the end");
    }
    rig_read(&r);
    ldr_log_sink_close(r.sink);
    r.sink = NULL;
    assert_int_equal(lines(rig_read(&r), "3 similar lines suppressed"), 1);
    rig_close(&r);
}

/* More kinds than are remembered: nothing is lost without a word. */
static void test_many_kinds(void **s)
{
    static rig_t r;
    unsigned written = 0, told = 0;

    (void)s;
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_INFO, 1);
    for (int i = 0; i < 2000; i++) {
        char line[64];

        snprintf(line, sizeof(line), "kind %c%c%c.", 'a' + i % 26,
                 'a' + i / 26 % 26, 'a' + i / 676 % 26);
        for (int k = 0; k < 2; k++) {
            ldr_log_sink_fn(r.sink, LARDER_LOG_INFO, line);
        }
        rig_read(&r);
        written += lines(r.text, "info: kind");
        told += lines(r.text, "1 similar lines suppressed");
    }
    ldr_log_sink_close(r.sink);
    r.sink = NULL;
    rig_read(&r);
    told += lines(r.text, "1 similar lines suppressed");
    assert_int_equal(written, 2000);
    assert_int_equal(told, 2000);
    rig_close(&r);
}

/* A reader that does not read costs lines, not time. */
static void test_full_pipe(void **s)
{
    static rig_t r;
    static char rest[1 << 17];
    unsigned lost = 0;
    size_t used = 0;
    ssize_t n;
    char *note;

    (void)s;
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_INFO, 1u << 30);
    for (int i = 0; i < 5000; i++) {
        ldr_info(&r.log, "line %04d of many, with some text behind it", i);
    }
    while ((n = read(r.read_fd, rest + used, sizeof(rest) - 1 - used)) > 0) {
        used += (size_t)n;
    }
    unsigned kept = lines(rest, "behind it\n");
    assert_in_range(kept, 100, 4999);
    ldr_info(&r.log, "read again");
    note = strstr(rig_read(&r), "warn: ");
    assert_non_null(note);
    assert_int_equal(sscanf(note, "warn: %u lines were lost", &lost), 1);
    assert_int_equal(kept + lost, 5000);
    assert_non_null(strstr(note, "read again\n"));
    close(r.read_fd); /* and one that went away raises no signal */
    ldr_info(&r.log, "nobody hears this");
    r.read_fd = open("/dev/null", O_RDONLY);
    rig_close(&r);
}

/* ---- a file ---- */

static size_t file_read(rig_t *r)
{
    ssize_t n = pread(r->write_fd, r->text, sizeof(r->text) - 1, 0);

    r->text[n > 0 ? n : 0] = '\0';
    return strlen(r->text);
}

/* A file that hangs costs lines, not time. (What is written is there at once,
 * unless the thread that writes it waits longer for a core than a line for it.)
 */
static void test_file(void **s)
{
    static rig_t r;
    unsigned lost = 0, kept;

    (void)s;
    alarm(60);
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_INFO, 1u << 30);
    ldr_log_sink_close(r.sink);
    close(r.write_fd);
    r.write_fd = memfd_create("log", MFD_CLOEXEC);
    ldr_log_sink_params_t params = {.fd = r.write_fd,
                                    .format = LDR_LOG_TEXT,
                                    .level = LARDER_LOG_INFO,
                                    .rate = 1u << 30,
                                    .clock = &r.clock};
    r.sink = r.log.arg = ldr_log_sink_open(&params);
    ldr_info(&r.log, "first");
    while (file_read(&r) == 0) {
    }
    assert_non_null(strstr(r.text, "info: first\n"));

    ldr_fault_arm(LDR_FAULT_log_hang, 1, 0);
    for (int i = 0; i < 5000; i++) {
        ldr_info(&r.log, "line %04d of many", i);
    }
    ldr_fault_disarm_all();
    while (file_read(&r) == 0 || strstr(r.text, "line 0500") == NULL) {
    }
    /* The next that is written is told what was not. */
    do {
        ldr_info(&r.log, "again");
        file_read(&r);
    } while (strstr(r.text, "again\n") == NULL);
    kept = lines(r.text, "of many\n");
    char *note = strstr(r.text, "warn: ");
    assert_non_null(note);
    assert_int_equal(sscanf(note, "warn: %u lines were lost", &lost), 1);
    assert_in_range(kept, 500, 4999);
    assert_true(kept + lost >= 5000); /* some that said "again", too */
    rig_close(&r);
    alarm(0);
}

/* Nor does it hold up the end. */
static void test_file_hangs_at_the_end(void **s)
{
    static rig_t r;
    static ldr_log_sink_t *left; /* stays in sight */

    (void)s;
    alarm(60);
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_INFO, 0);
    ldr_log_sink_close(r.sink);
    int file = memfd_create("log", MFD_CLOEXEC);
    ldr_log_sink_params_t params = {
        .fd = file, .format = LDR_LOG_TEXT, .level = LARDER_LOG_INFO};
    left = r.sink = r.log.arg = ldr_log_sink_open(&params);
    ldr_fault_arm(LDR_FAULT_log_hang, 1, 0);
    ldr_info(&r.log, "not written");
    ldr_log_sink_close(left);
    r.sink = NULL;
    ldr_fault_disarm_all();
    rig_close(&r);
    alarm(0);
}

#define WRITERS 4
#define EACH 500

static void *writer(void *arg)
{
    rig_t *r = arg;

    for (int i = 0; i < EACH; i++) {
        ldr_info(&r->log, "one whole line, number %d, and its end", i);
    }
    return NULL;
}

static void *reader(void *arg)
{
    rig_t *r = arg;
    static char all[1 << 19];
    size_t used = 0;
    ssize_t n;

    while ((n = read(r->read_fd, all + used, sizeof(all) - 1 - used)) > 0) {
        used += (size_t)n;
    }
    return all;
}

/* Lines of several threads are whole. */
static void test_threads(void **s)
{
    static rig_t r;
    pthread_t writers[WRITERS], reading;
    unsigned whole = 0, lost = 0;
    void *all;

    (void)s;
    rig_open(&r, LDR_LOG_TEXT, LARDER_LOG_INFO, 1u << 30);
    assert_int_equal(fcntl(r.read_fd, F_SETFL, 0), 0);
    assert_true(ldr_thread_start(&reading, "reader", reader, &r));
    for (int i = 0; i < WRITERS; i++) {
        assert_true(ldr_thread_start(&writers[i], "writer", writer, &r));
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(writers[i], NULL);
    }
    ldr_log_sink_close(r.sink);
    close(r.write_fd);
    pthread_join(reading, &all);
    close(r.read_fd);
    for (char *line = all; *line != '\0'; line = strchr(line, '\n') + 1) {
        unsigned n;

        assert_true(looks_like(line, "0000-00-00T00:00:00.000Z 00.000000 "));
        line += 35;
        if (sscanf(line, "warn: %u lines were lost", &n) == 1) {
            lost += n;
            continue;
        }
        assert_int_equal(strncmp(line, "info: one whole line, number ", 29), 0);
        assert_non_null(strchr(line, '\n'));
        assert_int_equal(
            strncmp(strchr(line, '\n') - 13, ", and its end\n", 14), 0);
        whole++;
    }
    assert_true(whole + lost <= WRITERS * EACH);
    assert_true(whole >= 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_text_escapes),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_journal),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_rate_of_texts),
        cmocka_unit_test(test_many_kinds),
        cmocka_unit_test(test_full_pipe),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_file_hangs_at_the_end),
        cmocka_unit_test(test_threads),
    };

    unsetenv("JOURNAL_STREAM");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
