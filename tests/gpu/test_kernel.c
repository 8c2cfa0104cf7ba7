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
    for (uint64_t n = 0; n < 3 * 4096; n += 16) {
        assert_int_equal(ldr_gpu_factor(&powers, n),
                         ldr_crc32c_combine(one, 0, n));
    }
    for (int i = 0; i < 4000; i++) {
        uint64_t n = 16 * below(LARDER_VALUE_MAX / 16 + 1);

        assert_int_equal(ldr_gpu_factor(&powers, n),
                         ldr_crc32c_combine(one, 0, n));
    }
    /* The largest shard has its powers. */
    assert_true(LARDER_VALUE_MAX / 4096 < LDR_GPU_POWERS);
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
            .bytes = (uint32_t)n,
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
                            data + u->from, u->bytes, u->factor, true);
    }
    assert_int_equal(ldr_gpu_crc(&powers, sum, bytes),
                     ldr_crc32c(0, data, bytes));
    for (uint32_t i = 0; i < count; i++) {
        const ldr_gpu_unit_t *u = &units[i];

        if (i % 5 == 0) { /* only summed up: now without the sum */
            assert_int_equal(emulate_unit(tables, copy + u->from,
                                          data + u->from, u->bytes, u->factor,
                                          false),
                             0);
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

/* What CUDA has and C has not. A warp's lanes run one after the other, twice:
 * first to learn their sums, then lane 0 to take part in what they say. */
static const char before[] =
    "#define __device__\n#define __global__\n#define __forceinline__ static\n"
    "#define __launch_bounds__(n)\n#define __shared__ static\n"
    "#define __syncthreads()\n"
    "typedef struct { unsigned x, y, z, w; } uint4;\n"
    "static struct { unsigned x; } threadIdx, blockIdx, blockDim, gridDim;\n"
    "static unsigned first, others;\n"
    "static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)\n"
    "{ uint4 v = {x, y, z, w}; return v; }\n"
    "static unsigned __shfl_xor_sync(unsigned m, unsigned v, int k)\n"
    "{ (void)m; if (k != 16) return 0;\n"
    "  if (first) { others ^= v; return 0; } return others ^ v; }\n"
    "static void atomicXor(unsigned *p, unsigned v) { if (!first) *p ^= v; }\n";
static const char after[] =
    "\nvoid run(const struct unit *u, u32 count, const u32 *tables, u32 *sums,"
    " u32 check, u32 grid)\n"
    "{ blockDim.x = 256; gridDim.x = grid; first = 1; others = 0;\n"
    "  blockIdx.x = 0;\n"
    "  for (u32 i = 0; i < 256; i++) {\n"
    "    threadIdx.x = i; larder_move(u, 0, tables, sums, 0); }\n"
    "  for (u32 b = 0; b < grid; b++) for (u32 w = 0; w < 8; w++) {\n"
    "    blockIdx.x = b; first = 1; others = 0;\n"
    "    for (u32 i = 0; i < 32; i++) {\n"
    "      threadIdx.x = 32 * w + i; larder_move(u, count, tables, sums,"
    " check); }\n"
    "    first = 0; threadIdx.x = 32 * w;\n"
    "    larder_move(u, count, tables, sums, check); } }\n";

typedef void (*run_fn)(const ldr_gpu_unit_t *units, uint32_t count,
                       const uint32_t *tables, uint32_t *sums, uint32_t check,
                       uint32_t grid);

static run_fn build(const char *dir)
{
    char path[300], object[300], command[700];
    size_t size = sizeof(before) + sizeof(after) + strlen(ldr_gpu_source);
    char *source = malloc(size);
    void *at = NULL;

    snprintf(path, sizeof(path), "%s/move.c", dir);
    snprintf(object, sizeof(object), "%s/move.so", dir);
    snprintf(source, size, "%s%s%s", before, ldr_gpu_source, after);
    char *linkage = strstr(source, "extern \"C\"");
    assert_non_null(linkage);
    memset(linkage, ' ', strlen("extern \"C\""));
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(source, file);
    fclose(file);
    free(source);
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

static void test_source(void **state)
{
    char dir[200];
    uint32_t sums[2][4] = {{0}};

    (void)state;
    if (system("cc --version >/dev/null 2>&1") != 0) {
        skip();
    }
    assert_true(real_dir_make(dir, sizeof(dir), "kernel"));
    run_fn run = build(dir);
    for (int round = 0; round < 300; round++) {
        /* Each warp has one unit: that is how `run` tells them apart. */
        uint32_t count = 1 + (uint32_t)below(8), check = round % 7 != 0;
        ldr_gpu_unit_t units[8], there[8];
        uint8_t *data = some(8 * UNIT), *copy[2];

        for (int k = 0; k < 2; k++) {
            copy[k] = calloc(8, UNIT);
        }
        for (uint32_t i = 0; i < count; i++) {
            units[i] = (ldr_gpu_unit_t){
                .from = (uintptr_t)data + i * UNIT,
                .to = below(4) == 0 ? 0 : (uintptr_t)copy[0] + i * UNIT,
                .bytes = (uint32_t)(16 * (1 + below(UNIT / 16))),
                .shard = (uint32_t)below(4),
                .factor = (uint32_t)ldr_rand_next(&rnd),
            };
            there[i] = units[i];
            there[i].to = units[i].to == 0 ? 0
                                           : units[i].to - (uintptr_t)copy[0] +
                                                 (uintptr_t)copy[1];
            uint32_t sum =
                emulate_unit(tables, (uint8_t *)(uintptr_t)there[i].to,
                             (const uint8_t *)(uintptr_t)units[i].from,
                             units[i].bytes, units[i].factor, check);
            sums[1][units[i].shard] ^= sum;
        }
        run(units, count, tables, sums[0], check, 1 + (uint32_t)below(3));
        assert_memory_equal(sums[0], sums[1], sizeof(sums[0]));
        assert_memory_equal(copy[0], copy[1], 8 * UNIT);
        free(copy[0]);
        free(copy[1]);
        free(data);
    }
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
