/*
 * Copies and checksums: the choice of the fastest variant that this CPU has,
 * and the polynomials of CRC-32C from which the tables are made.
 *
 * State: the tables, `usable` and `current`. All are written once, by the first
 * call (pthread_once), and `current` last (release): who sees it sees the
 * tables. Only tests change `current` later. Any thread may call; there is no
 * lock.
 */
#include "base/copy.h"

#include <pthread.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy_internal.h"

#define CRC_POLY 0x82f63b78u /* P without x^32, reflected */
#define CRC_ONE 0x80000000u  /* x^0 */
#define PAGE 4096u
#define PREFETCH_MAX (16 * PAGE) /* more would push out the first of it */

ldr_crc_tables_t ldr_crc_tables;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const ldr_copy_ops_t *current; /* NULL: not chosen yet */
static const ldr_copy_ops_t *usable[5];

/* ---- polynomials -------------------------------------------------------- */

static inline uint32_t poly_times_x(uint32_t a)
{
    return a >> 1 ^ (CRC_POLY & (0u - (a & 1)));
}

static uint32_t poly_mul(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    /* From the highest power of b down: Horner's rule. */
    for (int bit = 0; bit < 32; bit++) {
        product = poly_times_x(product) ^ (a & (0u - (b >> bit & 1)));
    }
    return product;
}

/* x^n mod P */
static uint32_t poly_power(unsigned n)
{
    uint32_t power = CRC_ONE;

    while (n-- > 0) {
        power = poly_times_x(power);
    }
    return power;
}

/*
 * 128 bits hold low * x^64 + high, both 64 bits wide and reflected. The product
 * of two such words, taken as 128 reflected bits, carries one x too many; so
 * moving on by n bits takes x^(n+63) and x^(n-1). The 32 bits of a power stand
 * at the top of its word.
 */
static ldr_crc_fold_t fold_by(unsigned bytes)
{
    unsigned n = bytes * 8;

    return (ldr_crc_fold_t){(uint64_t)poly_power(n + 63) << 32,
                            (uint64_t)poly_power(n - 1) << 32};
}

#if defined(__aarch64__)
static void lane_fill(ldr_crc_tables_t *t)
{
    const uint32_t lane = poly_power(8 * LDR_CRC_LANE);

    for (int k = 0; k < 4; k++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            t->lane[k][byte] = poly_mul(byte << 8 * k, lane);
        }
    }
}
#endif

static void tables_fill(ldr_crc_tables_t *t)
{
    uint32_t base = poly_power(8); /* x^(8 * 256^k) */

    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int k = 0; k < 8; k++) {
            state = poly_mul(state, poly_power(8));
            t->slice[k][byte] = state;
        }
    }
    for (int k = 0; k < 8; k++) {
        t->power[k][0] = CRC_ONE;
        for (int digit = 1; digit < 256; digit++) {
            t->power[k][digit] = poly_mul(t->power[k][digit - 1], base);
        }
        base = poly_mul(t->power[k][255], base);
    }
    t->fold_64 = fold_by(64);
    t->fold_256 = fold_by(256);
#if defined(__aarch64__)
    lane_fill(t);
#endif
}

/* ---- the variant for any CPU -------------------------------------------- */

static bool portable_usable(void)
{
    return true;
}

static uint32_t portable_crc(uint32_t state, const uint8_t *data, size_t bytes)
{
    const uint32_t(*t)[256] = ldr_crc_tables.slice;

    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint32_t a = state ^ ldr_get32(data);
        uint32_t b = ldr_get32(data + 4);
        state = t[7][a & 255] ^ t[6][a >> 8 & 255] ^ t[5][a >> 16 & 255] ^
                t[4][a >> 24] ^ t[3][b & 255] ^ t[2][b >> 8 & 255] ^
                t[1][b >> 16 & 255] ^ t[0][b >> 24];
    }
    for (; bytes > 0; data++, bytes--) {
        state = state >> 8 ^ t[0][(state ^ *data) & 255];
    }
    return state;
}

static void portable_copy(uint8_t *to, const uint8_t *from, size_t bytes,
                          const uint8_t *next)
{
    (void)next;
    memcpy(to, from, bytes);
}

/* Block by block, so that the second reading finds it in the cache. */
static uint32_t portable_copy_crc(uint32_t state, uint8_t *to,
                                  const uint8_t *from, size_t bytes,
                                  const uint8_t *next)
{
    (void)next;
    while (bytes > 0) {
        size_t step = bytes < 4096 ? bytes : 4096;
        memcpy(to, from, step);
        state = portable_crc(state, from, step);
        to += step;
        from += step;
        bytes -= step;
    }
    return state;
}

static const ldr_copy_ops_t portable = {
    .name = "portable",
    .usable = portable_usable,
    .crc = portable_crc,
    .copy = portable_copy,
    .copy_crc = portable_copy_crc,
};

/* ---- the choice --------------------------------------------------------- */

static void kernel_choose(void)
{
    static const ldr_copy_ops_t *const known[] = {
#if defined(__x86_64__)
        &ldr_copy_avx512_amd,
        &ldr_copy_avx512,
        &ldr_copy_avx2,
        &ldr_copy_sse42,
#elif defined(__aarch64__)
        &ldr_copy_armv8,
#endif
        &portable,
    };
    unsigned count = 0;

    tables_fill(&ldr_crc_tables);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i]->usable()) {
            usable[count++] = known[i];
        }
    }
    /* Release: who sees the choice sees the tables. Pairs with ops(). */
    __atomic_store_n(&current, usable[0], __ATOMIC_RELEASE);
}

static inline const ldr_copy_ops_t *ops(void)
{
    const ldr_copy_ops_t *o = __atomic_load_n(&current, __ATOMIC_ACQUIRE);

    if (__builtin_expect(o == NULL, 0)) {
        pthread_once(&once, kernel_choose);
        o = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    }
    return o;
}

const char *ldr_copy_variant(void)
{
    return ops()->name;
}

const char *ldr_copy_variant_at(unsigned index)
{
    ops();
    return index < sizeof(usable) / sizeof(usable[0]) && usable[index] != NULL
               ? usable[index]->name
               : NULL;
}

void ldr_copy_select(unsigned index)
{
    if (ldr_copy_variant_at(index) != NULL) {
        __atomic_store_n(&current, usable[index], __ATOMIC_RELEASE);
    }
}

/* ---- the functions ------------------------------------------------------ */

uint32_t ldr_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return ~ops()->crc(~crc, data, bytes);
}

uint32_t ldr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes)
{
    ops(); /* the tables */
    for (int k = 0; b_bytes > 0; k++, b_bytes >>= 8) {
        if ((b_bytes & 255) != 0) {
            crc_a = poly_mul(crc_a, ldr_crc_tables.power[k][b_bytes & 255]);
        }
    }
    return crc_a ^ crc_b;
}

void ldr_copy_prefetch(const void *at, size_t bytes)
{
    bytes = bytes < PREFETCH_MAX ? bytes : PREFETCH_MAX;
    for (size_t i = 0; i < bytes; i += PAGE) {
        __builtin_prefetch((const void *)((uintptr_t)at + i), 0, 1);
    }
}

static inline void fence(const ldr_copy_ops_t *o)
{
    if (o->fence != NULL) {
        o->fence();
    }
}

void ldr_copy_fence(void)
{
    fence(ops());
}

void ldr_copy_piece_plain(void *to, const void *from, size_t bytes,
                          const void *next)
{
    if (bytes >= LDR_COPY_NT_MIN) {
        ops()->copy(to, from, bytes, next);
    } else if (bytes > 0) {
        memcpy(to, from, bytes);
    }
}

void ldr_copy_row(void *to, const void *from, size_t bytes)
{
    ops()->copy(to, from, bytes, NULL);
}

void ldr_copy(void *to, const void *from, size_t bytes)
{
    ldr_copy_piece_plain(to, from, bytes, NULL);
    if (bytes >= LDR_COPY_NT_MIN) {
        fence(ops());
    }
}

static inline uint32_t copy_piece(const ldr_copy_ops_t *o, uint32_t crc,
                                  void *to, const void *from, size_t bytes,
                                  const void *next)
{
    if (bytes >= LDR_COPY_NT_MIN) {
        return ~o->copy_crc(~crc, to, from, bytes, next);
    }
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return ~o->crc(~crc, from, bytes);
}

uint32_t ldr_copy_piece(uint32_t crc, void *to, const void *from, size_t bytes,
                        const void *next)
{
    return copy_piece(ops(), crc, to, from, bytes, next);
}

uint32_t ldr_copy_crc32c(uint32_t crc, void *to, const void *from, size_t bytes)
{
    const ldr_copy_ops_t *o = ops();

    crc = copy_piece(o, crc, to, from, bytes, NULL);
    if (bytes >= LDR_COPY_NT_MIN) {
        fence(o);
    }
    return crc;
}
