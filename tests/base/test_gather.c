/* Gathers and scatters over random lists, by every variant of copies, against
 * memcpy() and the checksum of the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/gather.h"
#include "support/values.h"

enum { BYTES = 96 << 10, BUFFERS = 4096, ROOM = 16 * BYTES };

static uint32_t below(ldr_rand_t *r, uint32_t bound)
{
    return (uint32_t)ldr_rand_below(r, bound);
}

/* Buffers in memory, apart by random gaps; gives how many hold `bytes`. */
static uint32_t list_make(ldr_rand_t *r, uint8_t *memory, size_t room,
                          size_t bytes, struct iovec *iov)
{
    static const uint32_t sizes[] = {1, 64, 128, 256, 500, 4095, 4096, 9000};
    uint32_t row = below(r, 3) == 0 ? 0 : sizes[below(r, 8)], count = 0;
    uint8_t *at = memory + below(r, 64);

    while (bytes > 0) {
        size_t take = row != 0 ? row : 1 + below(r, sizes[below(r, 8)]);

        take = take < bytes ? take : bytes;
        require(count < BUFFERS && at + take <= memory + room, "too little");
        iov[count++] = (struct iovec){at, take};
        at += take + (below(r, 4) == 0 ? below(r, 200) : row % 128);
        bytes -= take;
    }
    return count;
}

static void run(ldr_rand_t *r, uint8_t *memory, size_t room, uint8_t *flat,
                struct iovec *iov)
{
    static uint8_t want[BYTES], before[ROOM];
    /* Even of single bytes there are not too many. */
    size_t bytes = 1 + below(r, BUFFERS - 1), at = 0;
    uint32_t count = list_make(r, memory, room, bytes, iov), crc = 0;

    if (below(r, 2) == 0) { /* and a large buffer at the end */
        size_t more = 1 + below(r, BYTES / 2);

        iov[count++] = (struct iovec){memory + room - more, more};
        bytes += more;
    }
    for (uint32_t i = 0; i < count; i++) {
        for (size_t k = 0; k < iov[i].iov_len; k++) {
            want[at] = (uint8_t)ldr_rand_next(r);
            ((uint8_t *)iov[i].iov_base)[k] = want[at++];
        }
    }
    size_t shift = below(r, 3) == 0 ? below(r, 64) : 0;
    ldr_list_t list = ldr_list(iov, count);
    memset(flat, 0xee, BYTES + 128);
    for (at = 0; at < bytes;) {
        size_t take = 1 + below(r, (uint32_t)(bytes - at));

        crc = ldr_gather(crc, flat + shift + at, &list, take);
        at += take;
    }
    ldr_copy_fence();
    assert_memory_equal(flat + shift, want, bytes);
    assert_int_equal(flat[shift + bytes], 0xee);
    assert_int_equal(crc, ldr_crc32c(0, want, bytes));

    bool check = below(r, 2) == 0;
    memset(memory, 0x11, room);
    memcpy(before, memory, room);
    list = ldr_list(iov, count);
    for (at = 0, crc = 0; at < bytes;) {
        size_t take = 1 + below(r, (uint32_t)(bytes - at));

        crc = ldr_scatter(crc, &list, want + at, take, check);
        at += take;
    }
    ldr_copy_fence();
    assert_int_equal(crc, check ? ldr_crc32c(0, want, bytes) : 0);
    at = 0;
    for (uint32_t i = 0; i < count; i++) { /* and nothing beside them */
        memcpy(before + ((uint8_t *)iov[i].iov_base - memory), want + at,
               iov[i].iov_len);
        at += iov[i].iov_len;
    }
    assert_memory_equal(memory, before, room);
}

static void test_lists(void **state)
{
    size_t room = ROOM;
    uint8_t *memory = aligned_alloc(64, room), *flat = malloc(BYTES + 128);
    struct iovec *iov = malloc((BUFFERS + 1) * sizeof(*iov));
    uint64_t seed = test_env("LARDER_SEED", 1);
    ldr_rand_t r;

    (void)state;
    for (unsigned v = 0; ldr_copy_variant_at(v) != NULL; v++) {
        ldr_copy_select(v);
        ldr_rand_seed(&r, seed);
        for (unsigned i = 0; i < 300; i++) {
            run(&r, memory, room, flat, iov);
        }
    }
    ldr_copy_select(0);
    free(memory);
    free(flat);
    free(iov);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
