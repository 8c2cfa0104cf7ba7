/* The kernel's source, and the arithmetic it shares with the host:
 * polynomials over GF(2) modulo that of CRC-32C, with the bits reversed, so
 * that x^0 is the highest bit. */
#include "gpu/kernel.h"

#define POLYNOMIAL 0x82f63b78u
#define ONE 0x80000000u

#define SOURCE(...) #__VA_ARGS__

/* clang-format off */
const char ldr_gpu_source[] = SOURCE(
typedef unsigned int u32;
typedef unsigned long long u64;

struct unit {
    u64 from, to;
    unsigned short words, row;
    u32 shard, factor, gap;
};

/* x * t, where t's tables are those of a constant. */
__device__ __forceinline__ u32 times(const u32 *t, u32 x)
{
    return t[x & 255] ^ t[256 + ((x >> 8) & 255)] ^
           t[512 + ((x >> 16) & 255)] ^ t[768 + (x >> 24)];
}

__device__ __forceinline__ u32 product(u32 a, u32 b)
{
    u32 p = 0;
    for (int i = 0; i < 32; i++) {
        p ^= (u32)((int)a >> 31) & b;
        a <<= 1;
        b = (b >> 1) ^ ((b & 1) ? 0x82f63b78u : 0u);
    }
    return p;
}

/* A warp moves a unit. */
__device__ __forceinline__ void move_unit(const struct unit *u, const u32 *t,
                                          u32 lane, u32 *sums, u32 flags)
{
    const uint4 *from = (const uint4 *)u->from;
    uint4 *to = (uint4 *)u->to;
    const int words = u->words;
    const u32 check = flags & 1u;
    const u32 gap_from = (flags & 2u) ? 0u : u->gap;
    const u32 gap_to = (flags & 2u) ? u->gap : 0u;
    /* i / row is i * inverse >> 20, for i and row up to 1024. */
    const u32 inverse = u->gap ? (1u << 20) / u->row + 1 : 0u;
    u32 sum = 0;
    /* The last row is whole: what lacks in the first counts as zeros. */
    for (int at = (int)lane - ((32 - (words & 31)) & 31); at < words;
         at += 256) {
        uint4 v[8];
        for (int k = 0; k < 8; k++) {
            const int i = at + 32 * k;
            const u64 before = ((u32)i * inverse) >> 20;
            v[k] = i >= 0 && i < words ? from[i + before * gap_from]
                                       : make_uint4(0u, 0u, 0u, 0u);
        }
        for (int k = 0; k < 8; k++) {
            const int i = at + 32 * k;
            if (i < words) {
                if (i >= 0 && to) {
                    const u64 before = ((u32)i * inverse) >> 20;
                    to[i + before * gap_to] = v[k];
                }
                if (check) {
                    u32 c = times(t, v[k].x);
                    c = times(t, c ^ v[k].y);
                    c = times(t, c ^ v[k].z);
                    c = times(t, c ^ v[k].w);
                    sum = times(t + 1024, sum) ^ c;
                }
            }
        }
    }
    if (check) {
        sum = product(sum, t[2048 + lane]);
        for (int k = 16; k > 0; k >>= 1) {
            sum ^= __shfl_xor_sync(0xffffffffu, sum, k);
        }
        if (lane == 0) {
            atomicXor(&sums[u->shard], product(sum, u->factor));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
larder_move(const struct unit *units, u32 count, const u32 *tables, u32 *sums,
            u32 flags)
{
    __shared__ u32 t[2080];
    __shared__ uint4 list[128];
    const u32 even = (count + gridDim.x - 1) / gridDim.x;
    const u32 share = even < 64 ? even : 64;
    for (u32 i = threadIdx.x; i < 2080; i += blockDim.x) {
        t[i] = tables[i];
    }
    /* A block's units come from the host's memory in one go, not one by one:
     * each time is a way over the link, behind what is copied meanwhile. */
    for (u32 n = blockIdx.x * share; n < count; n += gridDim.x * share) {
        const u32 here = count - n < share ? count - n : share;
        for (u32 i = threadIdx.x; i < 2 * here; i += blockDim.x) {
            list[i] = ((const uint4 *)(units + n))[i];
        }
        __syncthreads();
        for (u32 k = threadIdx.x >> 5; k < here; k += blockDim.x >> 5) {
            move_unit((const struct unit *)(list + 2 * k), t, threadIdx.x & 31,
                      sums, flags);
        }
        __syncthreads();
    }
}
);
/* clang-format on */

uint32_t ldr_gpu_product(uint32_t a, uint32_t b)
{
    uint32_t p = 0;

    for (unsigned i = 0; i < 32; i++) { /* no branch could be foretold */
        p ^= b & (0 - (a >> 31));
        a <<= 1;
        b = (b >> 1) ^ (POLYNOMIAL & (0 - (b & 1)));
    }
    return p;
}

/* x^n */
static uint32_t power(uint32_t n)
{
    uint32_t p = ONE, square = ONE >> 1;

    for (; n != 0; n >>= 1) {
        if ((n & 1) != 0) {
            p = ldr_gpu_product(p, square);
        }
        square = ldr_gpu_product(square, square);
    }
    return p;
}

static void table(uint32_t *t, uint32_t constant)
{
    for (uint32_t byte = 0; byte < 4; byte++) {
        for (uint32_t i = 0; i < 256; i++) {
            t[byte * 256 + i] = ldr_gpu_product(i << (8 * byte), constant);
        }
    }
}

void ldr_gpu_tables(uint32_t tables[LDR_GPU_TABLES])
{
    table(tables, power(32));
    table(tables + 1024, power(32 * 128));
    for (uint32_t lane = 0; lane < 32; lane++) {
        tables[2048 + lane] = power((31 - lane) * 128);
    }
}

void ldr_gpu_powers(ldr_gpu_powers_t *powers)
{
    const uint32_t small = power(16 * 8), large = power(LDR_GPU_POWER * 8);
    uint32_t p = ONE;

    for (uint32_t i = 0; i < LDR_GPU_POWER / 16; i++) {
        powers->small[i] = p;
        p = ldr_gpu_product(p, small);
    }
    p = ONE;
    for (uint32_t i = 0; i < LDR_GPU_POWERS; i++) {
        powers->large[i] = p;
        p = ldr_gpu_product(p, large);
    }
}

uint32_t ldr_gpu_crc(const ldr_gpu_powers_t *powers, uint32_t sum,
                     uint64_t bytes)
{
    /* As if the shard's bits before its first were all ones. */
    return ~(sum ^ ldr_gpu_product(0xffffffffu, ldr_gpu_factor(powers, bytes)));
}
