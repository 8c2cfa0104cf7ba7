/* Walking lists of buffers: a cursor, and dropping off the front. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/iov.h"

#define BYTES 300u
#define PARTS_MAX 12u

/* Cuts data into parts, some of them empty. */
static unsigned parts(ldr_rand_t *rand, uint8_t *data, struct iovec *iov)
{
    unsigned count = 0;
    size_t at = 0;

    while (at < BYTES) {
        size_t n = ldr_rand_below(rand, 80);

        n = count + 1 == PARTS_MAX ? BYTES - at : ldr_min64(n, BYTES - at);
        iov[count++] = (struct iovec){data + at, n};
        at += n;
    }
    return count;
}

static void test_cursor(void **state)
{
    uint8_t data[BYTES], out[BYTES];
    struct iovec iov[PARTS_MAX];
    ldr_rand_t rand;

    (void)state;
    ldr_rand_seed(&rand, 1);
    for (unsigned turn = 0; turn < 1000; turn++) {
        size_t done = 0;

        for (unsigned i = 0; i < BYTES; i++) {
            data[i] = (uint8_t)ldr_rand_next(&rand);
        }
        unsigned count = parts(&rand, data, iov);
        ldr_cursor_t c = {iov, 0};
        while (done < BYTES) {
            size_t n =
                ldr_min64(ldr_cursor_left(&c), 1 + ldr_rand_below(&rand, 40));

            memcpy(out + done, ldr_cursor_here(&c), n);
            ldr_cursor_go(&c, n);
            done += n;
        }
        assert_memory_equal(out, data, BYTES);
        assert_int_equal(c.at, 0);
        assert_true(c.iov <= iov + count);
    }
}

static void test_drop(void **state)
{
    uint8_t data[BYTES];
    struct iovec iov[PARTS_MAX];
    ldr_rand_t rand;

    (void)state;
    ldr_rand_seed(&rand, 2);
    for (unsigned turn = 0; turn < 1000; turn++) {
        unsigned count = parts(&rand, data, iov);
        unsigned first = ldr_iov_drop(iov, count, 0);
        size_t done = 0;

        while (done < BYTES) {
            size_t n = ldr_min64(BYTES - done, ldr_rand_below(&rand, 120));
            size_t left = 0;

            assert_ptr_equal(iov[first].iov_base, data + done);
            assert_true(iov[first].iov_len > 0);
            first += ldr_iov_drop(iov + first, count - first, n);
            done += n;
            for (unsigned i = first; i < count; i++) {
                left += iov[i].iov_len;
            }
            assert_int_equal(left, BYTES - done);
        }
        assert_int_equal(first, count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_drop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
