/* Why a load missed, what became of a save, and how both are told. */
#include "client/support.h"

#include <ctype.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "store/arena.h"

#define NODE "dram=8M&ssd=64M"

/* ---- misses ---- */

static void test_evicted(void **state)
{
    enum { EVICTED = 1000, PAGES = 128 };
    fix_t *f = fix(state);
    unsigned told = 0;

    fix_open_dram(f, "dram=8M");
    for (uint64_t i = 0; i < EVICTED + PAGES; i++) {
        assert_status(put_n(f->space, i, LDR_PAGE), LARDER_OK);
    }
    assert_int_equal(stats_of(f->lar).evicted_chunks, EVICTED);
    for (uint64_t i = 0; i < EVICTED; i++) {
        larder_item_t item = get_n(f->space, i, LDR_PAGE);

        assert_status(item.status, LARDER_MISS);
        told += item.cause == LARDER_CAUSE_EVICTED;
    }
    print_message("%u of %u misses said evicted\n", told, EVICTED);
    assert_true(told >= 950);
    for (uint64_t i = EVICTED; i < EVICTED + PAGES; i++) {
        assert_status(get_n(f->space, i, LDR_PAGE).status, LARDER_OK);
    }
    /* What was never here says so. */
    told = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        told += exists_n(f->space, 100000 + i).cause == LARDER_CAUSE_ABSENT;
    }
    assert_true(told >= 950);
    larder_stats_t s = stats_of(f->lar);
    assert_int_equal(
        s.misses[LARDER_CAUSE_EVICTED] + s.misses[LARDER_CAUSE_ABSENT], 2000);
    assert_int_equal(s.loads_dram, PAGES);
}

static void test_stale(void **state)
{
    fix_t *f = fix(state);
    larder_key_t key = key_of(3);
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open(f, NODE);
    for (uint64_t i = 0; i < 10; i++) {
        assert_status(put_n(f->space, i, 1000), LARDER_OK);
    }
    assert_status(larder_space_reset(f->space, 0), LARDER_OK);
    assert_int_equal(get_n(f->space, 1, 1000).cause, LARDER_CAUSE_STALE);
    assert_int_equal(exists_n(f->space, 2).cause, LARDER_CAUSE_STALE);
    assert_status(larder_match(f->space, &key, 1, 0, &m), LARDER_OK);
    assert_int_equal(m.cause, LARDER_CAUSE_STALE);
    assert_int_equal(stats_of(f->lar).misses[LARDER_CAUSE_STALE], 2);
    assert_int_equal(stats_of(f->lar).resets, 1);
}

/* A bit flips in DRAM. What is also on disk comes back from there. */
static void test_corrupt_in_dram(void **state)
{
    fix_t *f = fix(state);

    need_arena(f);
    fix_open(f, NODE);
    assert_status(put_n(f->space, 1, 100000), LARDER_OK);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    ldr_fault_arm(LDR_FAULT_copy_out, 1, 1);
    larder_item_t item = get_n(f->space, 1, 100000);
    assert_status(item.status, LARDER_MISS);
    assert_int_equal(item.cause, LARDER_CAUSE_CORRUPT);
    assert_status(get_n(f->space, 1, 100000).status, LARDER_OK);
    larder_stats_t s = stats_of(f->lar);
    assert_int_equal(s.loads_ssd, 1);
    assert_int_equal(s.misses[LARDER_CAUSE_CORRUPT], 1);
}

static void test_corrupt_in_dram_only(void **state)
{
    fix_t *f = fix(state);

    need_arena(f);
    fix_open_dram(f, "dram=8M");
    for (unsigned i = 0; i < 3; i++) {
        assert_status(put_n(f->space, 1, 100000), LARDER_OK);
        /* Between the copy and the checksum, or later in memory. */
        if (i == 1) {
            assert_status(
                run_one(f->space, LARDER_OP_REMOVE, 1, 0, NULL, 0).status,
                LARDER_OK);
            ldr_fault_arm(LDR_FAULT_crc_in, 1, 1);
            assert_status(put_n(f->space, 1, 100000), LARDER_OK);
        } else {
            ldr_fault_arm(LDR_FAULT_copy_out, 1, 1);
        }
        assert_int_equal(get_n(f->space, 1, 100000).cause,
                         LARDER_CAUSE_CORRUPT);
        assert_status(get_n(f->space, 1, 100000).status, LARDER_MISS);
        assert_int_equal(stats_of(f->lar).dram_used_bytes, 0);
    }
}

/* Finds the contents of number n in a segment file: its name and place. */
static off_t find_on_disk(const fix_t *f, uint64_t n, char *path, size_t size)
{
    uint8_t want[64], block[4096];
    DIR *dir = opendir(f->dir);
    struct dirent *e;
    off_t found = -1;

    content(n, want, sizeof(want));
    while (found < 0 && (e = readdir(dir)) != NULL) {
        if (strncmp(e->d_name, "segment-", 8) != 0) {
            continue;
        }
        snprintf(path, size, "%s/%s", f->dir, e->d_name);
        int fd = open(path, O_RDONLY);
        for (off_t at = 0; found < 0 && pread(fd, block, 4096, at) == 4096;
             at += 4096) {
            found = memcmp(block, want, sizeof(want)) == 0 ? at : -1;
        }
        close(fd);
    }
    closedir(dir);
    assert_true(found >= 0);
    return found;
}

static void flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    uint8_t byte;

    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x20;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void test_corrupt_on_disk(void **state)
{
    enum { BYTES = 20001 };
    /* The first byte, the last, one between, and the descriptor's first. */
    static const off_t at[] = {0, BYTES - 1, 9000, 20480};
    fix_t *f = fix(state);
    char path[512];

    for (unsigned pass = 0; pass < 2; pass++) {
        const char *node = pass == 0 ? NODE : NODE "&verify=entry";
        fix_open(f, node);
        for (uint64_t i = 0; i < COUNT_OF(at) + 2; i++) {
            assert_status(put_n(f->space, i, BYTES), LARDER_OK);
        }
        fix_close(f);
        for (uint64_t i = 0; i < COUNT_OF(at); i++) {
            off_t begin = find_on_disk(f, i, path, sizeof(path));

            flip(path, begin + at[i]);
        }
        fix_open(f, node);
        for (uint64_t i = 0; i < COUNT_OF(at); i++) {
            larder_item_t item = get_n(f->space, i, BYTES);

            assert_status(item.status, LARDER_MISS);
            assert_int_equal(item.cause, LARDER_CAUSE_CORRUPT);
            /* It is not offered again, and can be put again. */
            assert_status(exists_n(f->space, i).status, LARDER_MISS);
            assert_status(put_n(f->space, i, BYTES), LARDER_OK);
            assert_status(get_n(f->space, i, BYTES).status, LARDER_OK);
        }
        assert_int_equal(stats_of(f->lar).misses[LARDER_CAUSE_CORRUPT],
                         COUNT_OF(at));
        for (uint64_t i = COUNT_OF(at); i < COUNT_OF(at) + 2; i++) {
            assert_status(get_n(f->space, i, BYTES).status, LARDER_OK);
        }
        assert_status(larder_space_reset(f->space, 0), LARDER_OK);
        fix_close(f);
        remove_dir(f->dir);
    }
}

/* Time passes with every look at the clock: no get is in time. */
static void test_late(void **state)
{
    fix_t *f = fix(state);
    larder_op_params_t params = {.field_mask = LARDER_OP_TIMEOUT,
                                 .timeout_ms = 5};
    uint8_t data[3][70000];
    struct iovec iov[3];
    larder_key_t keys[3];
    larder_item_t items[3];

    fix_open_sim(f, NODE);
    for (uint64_t i = 0; i < 3; i++) {
        assert_status(put_n(f->space, i, sizeof(data[i])), LARDER_OK);
        keys[i] = key_of(i);
        iov[i] = (struct iovec){data[i], sizeof(data[i])};
    }
    /* Late at the start, between items, in the middle of a copy. */
    for (uint64_t tick_ms = 1; tick_ms <= 6; tick_ms++) {
        uint64_t before = stats_of(f->lar).misses[LARDER_CAUSE_DEADLINE];
        unsigned late = 0;

        for (int i = 0; i < 3; i++) {
            items[i] = (larder_item_t){
                .key = &keys[i], .iov = &iov[i], .iov_count = 1};
        }
        f->clock.tick_ns = tick_ms * 1000000;
        assert_status(larder_run(f->space, LARDER_OP_GET, items, 3, &params),
                      LARDER_OK);
        f->clock.tick_ns = 0;
        for (int i = 0; i < 3; i++) {
            late += items[i].status == LARDER_MISS;
            assert_true(items[i].status == LARDER_OK ||
                        items[i].cause == LARDER_CAUSE_DEADLINE);
        }
        assert_in_range(late, 1, 3);
        assert_int_equal(stats_of(f->lar).misses[LARDER_CAUSE_DEADLINE],
                         before + late);
    }
}

/* ---- a failing disk ---- */

/* Waits, by asking, until the tier takes what is saved again. */
static void until_on(fix_t *f)
{
    while (stats_of(f->lar).disk[0].on == 0) {
        larder_flush(f->lar, LARDER_TIER_SSD, 1);
    }
}

static void test_reads_fail(void **state)
{
    enum { CHUNKS = 10 };
    fix_t *f = fix(state);
    larder_key_t key = key_of(9);
    unsigned causes[LARDER_CAUSE_COUNT] = {0};
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open(f, NODE);
    for (uint64_t i = 0; i < CHUNKS; i++) {
        assert_status(put_n(f->space, i, 10000), LARDER_OK);
    }
    fix_close(f);
    fix_open(f, NODE "&retry_ms=3600000");
    ldr_fault_arm(LDR_FAULT_io_read, 1, 0);
    for (uint64_t i = 0; i < CHUNKS; i++) {
        larder_item_t item = get_n(f->space, i, 10000);

        assert_status(item.status, LARDER_MISS);
        causes[item.cause]++;
    }
    /* Some errors, then the disk is off and nobody waits for it. */
    assert_in_range(causes[LARDER_CAUSE_IO], 1, 5);
    assert_int_equal(causes[LARDER_CAUSE_IO] + causes[LARDER_CAUSE_TIER_OFF],
                     CHUNKS);
    assert_int_equal(exists_n(f->space, 9).cause, LARDER_CAUSE_TIER_OFF);
    assert_status(larder_match(f->space, &key, 1, 0, &m), LARDER_OK);
    assert_int_equal(m.cause, LARDER_CAUSE_TIER_OFF);
    larder_stats_t s = stats_of(f->lar);
    assert_int_equal(s.disk[0].on, 0);
    assert_true(strlen(s.disk[0].reason) > 0);
    assert_int_equal(s.disk[0].read_errors, causes[LARDER_CAUSE_IO]);
    assert_int_equal(s.misses[LARDER_CAUSE_IO], causes[LARDER_CAUSE_IO]);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, 0), LARDER_E_TIER_OFF);
    /* The node goes on in DRAM; what the disk holds may be put again. */
    assert_status(put_n(f->space, 9, 10000), LARDER_OK);
    assert_status(get_n(f->space, 9, 10000).status, LARDER_OK);
    ldr_fault_disarm_all();
    larder_space_close(&f->space);
    larder_close(&f->lar, 0);
    /* Nothing was lost by it. */
    fix_open(f, NODE);
    for (uint64_t i = 0; i < CHUNKS; i++) {
        assert_status(get_n(f->space, i, 10000).status, LARDER_OK);
    }
}

static void test_writes_fail(void **state)
{
    fix_t *f = fix(state);

    fix_open(f, NODE "&retry_ms=1");
    assert_status(put_n(f->space, 0, 10000), LARDER_OK);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    ldr_fault_arm(LDR_FAULT_io_write, 1, 0);
    uint64_t n = 1;
    while (stats_of(f->lar).disk[0].on != 0) {
        assert_status(put_n(f->space, n, 10000), LARDER_OK);
        larder_status_t st =
            larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER);
        assert_true(st == LARDER_E_DROPPED || st == LARDER_E_TIER_OFF);
        assert_status(get_n(f->space, n, 10000).status, LARDER_OK);
        n++;
    }
    larder_stats_t s = stats_of(f->lar);
    assert_true(s.disk[0].write_errors > 0);
    assert_true(strlen(s.disk[0].reason) > 0);
    /* A reset that cannot be recorded says so, and holds all the same. */
    assert_status(larder_space_reset(f->space, 0), LARDER_E_IO);
    assert_status(get_n(f->space, 1, 10000).status, LARDER_MISS);
    ldr_fault_disarm_all();
    until_on(f);
    assert_status(put_n(f->space, 2, 10000), LARDER_OK);
    larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER); /* tells old drops */
    fix_close(f);
    fix_open(f, NODE);
    assert_status(get_n(f->space, 2, 10000).status, LARDER_OK);
    /* The reset was made up for when the disk came back. */
    assert_status(get_n(f->space, 0, 10000).status, LARDER_MISS);
    assert_status(get_n(f->space, 1, 10000).status, LARDER_MISS);
}

/* ---- saves ---- */

static void test_flush_dropped(void **state)
{
    fix_t *f = fix(state);

    /* Nobody writes until somebody waits: the first ones must make room. */
    fix_open_sim(f, NODE);
    for (uint64_t i = 0; i < 12; i++) {
        assert_status(put_n(f->space, i, 1u << 20), LARDER_OK);
    }
    assert_int_equal(stats_of(f->lar).saves_dropped_evicted, 4);
    assert_status(larder_flush(f->lar, LARDER_TIER_DRAM, 0), LARDER_OK);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER),
                  LARDER_E_DROPPED);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER),
                  LARDER_OK); /* told once */
}

static void test_larger_than_segment(void **state)
{
    fix_t *f = fix(state);

    fix_open(f, "dram=16M&ssd=64M&segment=2M");
    assert_status(put_n(f->space, 1, 3u << 20), LARDER_OK);
    assert_status(put_n(f->space, 2, 1u << 20), LARDER_OK);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER),
                  LARDER_E_DROPPED);
    assert_int_equal(stats_of(f->lar).saves_dropped_size, 1);
    assert_status(get_n(f->space, 1, 3u << 20).status, LARDER_OK);
    fix_close(f);
    fix_open(f, "dram=16M&ssd=64M&segment=2M");
    assert_status(get_n(f->space, 1, 3u << 20).status, LARDER_MISS);
    assert_status(get_n(f->space, 2, 1u << 20).status, LARDER_OK);
}

/* Every put is counted under exactly one outcome. */
static void test_saves_add_up(void **state)
{
    fix_t *f = fix(state);
    larder_op_params_t verify = {.field_mask = LARDER_OP_FLAGS,
                                 .flags = LARDER_VERIFY_PUT};
    larder_match_t m = {.struct_bytes = sizeof(m)};
    larder_lease_t *lease = NULL;
    uint8_t data[100] = {1};
    struct iovec iov = {data, sizeof(data)};
    larder_key_t keys[8];
    uint64_t puts = 0;

    fix_open_dram(f, "dram=8M");
    for (uint64_t i = 0; i < 8; i++, puts++) {
        keys[i] = key_of(i);
        assert_status(put_n(f->space, i, 1u << 20), LARDER_OK);
    }
    for (uint64_t i = 0; i < 5; i++, puts++) {
        assert_status(put_n(f->space, i, 77), LARDER_PRESENT);
    }
    larder_item_t item = {.key = &keys[0], .iov = &iov, .iov_count = 1};
    assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, &verify), 0);
    assert_status(item.status, LARDER_E_MISMATCH);
    item.key = NULL;
    assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, NULL), 0);
    assert_status(item.status, LARDER_E_INVALID);
    puts += 2;
    assert_status(larder_stage(f->space, keys, 8, 0, 0, &lease, &m), 0);
    assert_status(put_n(f->space, 100, 10), LARDER_E_FULL);
    larder_release(&lease);
    bool stop = true;
    item.key = &keys[7];
    ldr_target_t t = {f->space->number, 1, &item};
    ldr_stop_t at = {&stop, UINT64_MAX};
    ldr_node_put(f->lar->node, &t, false, &at);
    puts += 2;
    larder_stats_t s = stats_of(f->lar);
    assert_int_equal(s.saves_stored, 8);
    assert_int_equal(s.saves_present, 5);
    assert_int_equal(s.saves_mismatch, 1);
    assert_int_equal(s.saves_failed, 1);
    assert_int_equal(s.saves_full, 1);
    assert_int_equal(s.saves_canceled, 1);
    assert_int_equal(s.saves_stored + s.saves_present + s.saves_mismatch +
                         s.saves_full + s.saves_canceled + s.saves_failed +
                         s.saves_stale,
                     puts);
    assert_int_equal(s.saved_bytes, 8u << 20);
}

/* ---- metrics ---- */

static size_t name_length(const char *s)
{
    size_t n = 0;

    while (isalnum((unsigned char)s[n]) || s[n] == '_' || s[n] == ':') {
        n++;
    }
    return isdigit((unsigned char)s[0]) ? 0 : n;
}

/* {name="value",...}, with what a value must escape. Gives its end. */
static const char *labels(const char *s)
{
    do {
        s++;
        size_t n = name_length(s);
        assert_true(n > 0);
        s += n;
        assert_int_equal(*s++, '=');
        assert_int_equal(*s++, '"');
        for (; *s != '"'; s++) {
            assert_true(*s != '\0' && *s != '\n');
            if (*s == '\\') {
                s++;
                assert_true(*s == '\\' || *s == '"' || *s == 'n');
            }
        }
        s++;
    } while (*s == ',');
    assert_int_equal(*s++, '}');
    return s;
}

/* A sample's family was introduced by HELP and TYPE right before. */
static unsigned parse_metrics(const char *text)
{
    char help[100] = "", type[100] = "", kind[20];
    unsigned samples = 0;

    for (const char *s = text; *s != '\0';) {
        const char *end = strchr(s, '\n');

        assert_non_null(end); /* the last line ends, too */
        if (sscanf(s, "# HELP %99s", help) == 1) {
            assert_true(end - s > (long)strlen(help) + 8);
        } else if (sscanf(s, "# TYPE %99s %19s", type, kind) == 2) {
            assert_string_equal(help, type);
            assert_true(strcmp(kind, "counter") == 0 ||
                        strcmp(kind, "gauge") == 0 ||
                        strcmp(kind, "histogram") == 0);
        } else {
            size_t n = name_length(s), family = strlen(type);

            assert_true(n >= family);
            assert_memory_equal(s, type, family);
            /* A histogram's samples have names of their own. */
            assert_true(n == family ||
                        (strcmp(kind, "histogram") == 0 && s[family] == '_'));
            s += n;
            s = *s == '{' ? labels(s) : s;
            assert_int_equal(*s++, ' ');
            char *number_end;
            strtod(s, &number_end);
            assert_ptr_equal(number_end, end);
            samples++;
        }
        s = end + 1;
    }
    return samples;
}

static void test_metrics(void **state)
{
    fix_t *f = fix(state);
    char dir[200], *text;
    size_t length = 0, again = 0;

    snprintf(dir, sizeof(dir), "%.150s", f->dir);
    assert_true(snprintf(f->dir, sizeof(f->dir), "%s/qu\"ote\\slash", dir) <
                (int)sizeof(f->dir));
    fix_open(f, NODE);
    assert_status(put_n(f->space, 1, 1000), LARDER_OK);
    assert_status(get_n(f->space, 2, 1000).status, LARDER_MISS);
    assert_status(larder_metrics(f->lar, NULL, 0, &length), LARDER_OK);
    text = malloc(length + 100);
    assert_status(larder_metrics(f->lar, text, length + 100, &again), 0);
    assert_int_equal(strlen(text), again);
    assert_in_range(parse_metrics(text), 30, 500);
    assert_non_null(strstr(text, ",outcome=\"stored\"} 1\n"));
    assert_non_null(strstr(text, ",cause=\"absent\"} 1\n"));
    assert_non_null(strstr(text, "qu\\\"ote\\\\slash\"} "));
    free(text);
    fix_close(f);
    remove_dir(f->dir);
    snprintf(f->dir, sizeof(f->dir), "%s", dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_evicted, "plain"),
        BOTH(test_stale),
        BOTH(test_corrupt_in_dram),
        ONE(test_corrupt_in_dram_only, "plain"),
        BOTH(test_corrupt_on_disk),
        EMBED_ONE(test_late, "plain"),
        EMBED_BOTH(test_reads_fail),
        EMBED_BOTH(test_writes_fail),
        EMBED_ONE(test_flush_dropped, "plain"),
        BOTH(test_larger_than_segment),
        EMBED_ONE(test_saves_add_up, "plain"),
        EMBED_BOTH(test_metrics),
    };

    return cmocka_run_group_tests_name("client/causes", tests, NULL, NULL);
}
