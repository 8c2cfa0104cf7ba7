/*
 * The kernel's arithmetic: its tables, powers and factors against ldr_crc32c(),
 * for shards of any length, cut into units in any order; and the kernel's own
 * source, compiled for the CPU, against what the stand-in does in its place.
 * LARDER_SEED repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

#include "base/copy.h"
#include "gpu/emulate.h"
#include "gpu/kernel.h"
#include "support/real.h"

enum { UNIT = 16 << 10, UNITS = 4096 };

static ldr_rand_t rnd;
static uint32_t tables[LDR_GPU_TABLES];
static ldr_gpu_powers_t powers;

static size_t below(uint64_t bound)
{
    return (size_t)ldr_rand_below(&rnd, bound);
}

static uint8_t *some(size_t bytes)
{
    uint8_t *data = malloc(bytes);

    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word = ldr_rand_next(&rnd);

        memcpy(data + i, &word, 8);
    }
    return data;
}

static int setup(void **state)
{
    (void)state;
    ldr_rand_seed(&rnd, real_seed());
    ldr_gpu_tables(tables);
    ldr_gpu_powers(&powers);
    return 0;
}

/* ---- factors ---- */

static void test_factors(void **state)
{
    const uint32_t one = 0x80000000u; /* x^0 */

    (void)state;
    assert_int_equal(ldr_gpu_factor(&powers, 0), one);
    for (uint64_t n = 0; n < 12 * LDR_GPU_POWER; n += 16) {
        assert_int_equal(ldr_gpu_factor(&powers, n),
                         ldr_crc32c_combine(one, 0, n));
    }
    for (int i = 0; i < 4000; i++) {
        uint64_t n = 16 * below(LARDER_VALUE_MAX / 16 + 1);

        assert_int_equal(ldr_gpu_factor(&powers, n),
                         ldr_crc32c_combine(one, 0, n));
    }
    /* The largest shard has its powers. */
    assert_true(LARDER_VALUE_MAX / LDR_GPU_POWER < LDR_GPU_POWERS);
    assert_int_equal(ldr_gpu_factor(&powers, LARDER_VALUE_MAX),
                     ldr_crc32c_combine(one, 0, LARDER_VALUE_MAX));
}

/* ---- shards ---- */

/* Units of a shard, of random lengths, in random order. */
static uint32_t cut(ldr_gpu_unit_t *units, size_t bytes, size_t most)
{
    uint32_t count = 0;

    for (size_t at = 0, n; at < bytes; at += n) {
        n = 16 * (1 + below(most / 16));
        n = n < bytes - at ? n : bytes - at;
        assert_true(count < UNITS);
        units[count++] = (ldr_gpu_unit_t){
            .from = at,
            .words = (uint16_t)(n / 16),
            .factor = ldr_gpu_factor(&powers, bytes - at - n),
        };
    }
    for (uint32_t i = count; i > 1; i--) {
        uint32_t other = (uint32_t)below(i);
        ldr_gpu_unit_t u = units[i - 1];

        units[i - 1] = units[other];
        units[other] = u;
    }
    return count;
}

static void check_shard(size_t bytes, size_t most)
{
    static ldr_gpu_unit_t units[UNITS];
    uint8_t *data = some(bytes), *copy = malloc(bytes);
    uint32_t sum = 0, count = cut(units, bytes, most);

    memset(copy, 0, bytes);
    for (uint32_t i = 0; i < count; i++) {
        const ldr_gpu_unit_t *u = &units[i];

        sum ^= emulate_unit(tables, i % 5 == 0 ? NULL : copy + u->from,
                            data + u->from, u, LDR_GPU_CHECK);
    }
    assert_int_equal(ldr_gpu_crc(&powers, sum, bytes),
                     ldr_crc32c(0, data, bytes));
    for (uint32_t i = 0; i < count; i++) {
        const ldr_gpu_unit_t *u = &units[i];

        if (i % 5 == 0) { /* only summed up: now without the sum */
            assert_int_equal(
                emulate_unit(tables, copy + u->from, data + u->from, u, 0), 0);
        }
    }
    assert_memory_equal(copy, data, bytes);
    free(copy);
    free(data);
}

static void test_small(void **state)
{
    (void)state;
    for (size_t bytes = 16; bytes <= 40 * 16 * 32; bytes += 16) {
        if (bytes < 3000 || below(8) == 0) {
            check_shard(bytes, bytes); /* a unit or few */
            check_shard(bytes, 16);    /* many */
            check_shard(bytes, 16 + 16 * below(70));
        }
    }
}

static void test_any(void **state)
{
    (void)state;
    for (int i = 0; i < (REAL_SANITIZED ? 40 : 150); i++) {
        size_t bytes = 16 * (1 + below((size_t)1 << (4 + below(13))));

        check_shard(bytes, bytes / 2000 > UNIT ? bytes / 2000 : UNIT);
    }
}

static void test_large(void **state)
{
    (void)state;
    check_shard(LARDER_VALUE_MAX, 2 * UNIT);
    check_shard(LARDER_VALUE_MAX / 2 - 16 * below(1000), UNIT);
}

/* ---- the source ---- */

/* Behind the source, with block.h before it. */
static const char after[] =
    "\nstatic const struct unit *units; static u32 count, flags, *sums;\n"
    "static const u32 *tables;\n"
    "static void body(void)\n"
    "{ larder_move(units, count, tables, sums, flags); }\n"
    "int run(const struct unit *u, u32 n, const u32 *t, u32 *s, u32 c,"
    " u32 grid)\n"
    "{ int ok = 1;\n"
    "  units = u; count = n; tables = t; sums = s; flags = c;\n"
    "  block_main = body; blockDim.x = BLOCK_THREADS; gridDim.x = grid;\n"
    "  block_threads = calloc(BLOCK_THREADS, sizeof(*block_threads));\n"
    "  for (u32 b = 0; b < grid; b++) { blockIdx.x = b; ok &= block_run(); }\n"
    "  free(block_threads);\n"
    "  return ok; }\n";

typedef int (*run_fn)(const ldr_gpu_unit_t *units, uint32_t count,
                      const uint32_t *tables, uint32_t *sums, uint32_t flags,
                      uint32_t grid);

static run_fn build(const char *dir)
{
    char path[300], object[300], command[1200], here[PATH_MAX];
    void *at = NULL;

    assert_non_null(realpath("tests/gpu/block.h", here)); /* ctest's folder */
    snprintf(path, sizeof(path), "%s/move.c", dir);
    snprintf(object, sizeof(object), "%s/move.so", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    const char *linkage = strstr(ldr_gpu_source, "extern \"C\"");
    assert_non_null(linkage);
    fprintf(file, "#include \"%s\"\n%.*s%s%s", here,
            (int)(linkage - ldr_gpu_source), ldr_gpu_source,
            linkage + strlen("extern \"C\""), after);
    fclose(file);
    snprintf(command, sizeof(command),
             "cc -x c -std=gnu11 -w -O1 -shared -fPIC -o %s %s", object, path);
    assert_int_equal(system(command), 0);
    void *library = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    at = dlsym(library, "run");
    run_fn run;
    memcpy(&run, &at, sizeof(run));
    return run;
}

enum { MANY = 700, AREA = 1 << 20, SUMS = 4 };

/* Units in an area, of random lengths, and what becomes of them: on the left
 * by the source, on the right by the emulation. */
typedef struct both {
    ldr_gpu_unit_t units[MANY] __attribute__((aligned(16)));
    uint32_t count, flags, sums[2][SUMS];
    uint8_t *data, *copy[2];
} both_t;

static void both_make(both_t *b, uint32_t count, size_t most)
{
    size_t at = 0;

    b->count = 0;
    memset(b->sums, 0, sizeof(b->sums));
    memset(b->copy[0], 0, AREA);
    memset(b->copy[1], 0, AREA);
    while (b->count < count) {
        size_t words = 1 + below(most / 16);
        ldr_gpu_unit_t u = {
            .words = (uint16_t)words,
            .row = (uint16_t)words,
            .shard = (uint32_t)below(SUMS),
            .factor = (uint32_t)ldr_rand_next(&rnd),
        };

        if (below(3) > 0) { /* rows of any size, the last one whole or not */
            u.row = (uint16_t)(1 + below(words));
            u.gap = (uint32_t)below(1 + AREA / 64 / words);
        }
        size_t reach = emulate_reach(&u, true);
        if (at + reach > AREA) {
            break;
        }
        uint8_t *to = below(5) == 0 ? NULL : b->copy[1] + at;
        u.from = (uintptr_t)b->data + at;
        u.to = to != NULL ? (uintptr_t)b->copy[0] + at : 0;
        b->sums[1][u.shard] ^=
            emulate_unit(tables, to, b->data + at, &u, b->flags);
        b->units[b->count++] = u;
        at += reach;
    }
}

static void test_source(void **state)
{
    static both_t b;
    char dir[200];

    (void)state;
    if (system("cc --version >/dev/null 2>&1") != 0) {
        skip();
    }
    assert_true(real_dir_make(dir, sizeof(dir), "kernel"));
    run_fn run = build(dir);
    b.data = some(AREA);
    b.copy[0] = malloc(AREA);
    b.copy[1] = malloc(AREA);
    for (int round = 0; round < (REAL_SANITIZED ? 40 : 200); round++) {
        /* Few large ones, or so many that a block turns more than once. */
        bool few = round % 3 == 0;

        b.flags = (round % 7 != 0 ? LDR_GPU_CHECK : 0) |
                  (below(2) == 0 ? LDR_GPU_LOAD : 0);
        both_make(&b, 1 + (uint32_t)below(few ? 20 : MANY), few ? UNIT : 1024);
        assert_true(run(b.units, b.count, tables, b.sums[0], b.flags,
                        1 + (uint32_t)below(4)));
        assert_memory_equal(b.sums[0], b.sums[1], sizeof(b.sums[0]));
        assert_memory_equal(b.copy[0], b.copy[1], AREA);
    }
    free(b.copy[0]);
    free(b.copy[1]);
    free(b.data);
    real_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factors), cmocka_unit_test(test_small),
        cmocka_unit_test(test_any),     cmocka_unit_test(test_large),
        cmocka_unit_test(test_source),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
