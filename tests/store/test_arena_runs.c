/* Free pages lie in long runs, whatever the order in which they became
 * resident. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/index.h"
#include "store/arena.h"

enum { T = 3 }; /* the tenant */

#define MIB ((uint64_t)1 << 20)

/* So many pages, one after the other; they are taken for good. */
static void take_run(ldr_arena_t *a, uint32_t first, uint32_t count)
{
    uint32_t page = ldr_arena_take(a, T, count);

    for (uint32_t i = 0; i < count; i++, page = a->next[page]) {
        assert_int_equal(page, first + i);
    }
    assert_int_equal(page, LDR_NIL);
}

/* Whatever the order in which slices come, their pages are free in one run. */
static void test_slices_in_one_run(void **state)
{
    enum { N = LDR_SLICE_PAGES };
    ldr_arena_t a;
    ldr_slice_t s[4];

    (void)state;
    for (unsigned order = 0; order < 256; order++) {
        unsigned seen = 0;

        assert_int_equal(ldr_arena_init(&a, 256 * MIB, false, 0), LARDER_OK);
        assert_int_equal(ldr_arena_extent_pages(&a), 4 * N);
        assert_true(ldr_arena_claim(&a, T, false));
        for (int i = 0; i < 4; i++) {
            assert_true(ldr_arena_slice_take(&a, T, &s[i]));
        }
        for (unsigned i = 0; i < 4; i++) {
            unsigned which = order >> (2 * i) & 3;

            if ((seen & 1u << which) == 0) {
                ldr_arena_slice_give(&a, &s[which], true);
                seen |= 1u << which;
            }
        }
        if (seen == 15) {
            take_run(&a, 0, 4 * N);
        }
        ldr_arena_destroy(&a);
    }
    /* Some are taken meanwhile. */
    assert_int_equal(ldr_arena_init(&a, 256 * MIB, false, 0), LARDER_OK);
    assert_true(ldr_arena_claim(&a, T, false));
    for (int i = 0; i < 4; i++) {
        assert_true(ldr_arena_slice_take(&a, T, &s[i]));
    }
    ldr_arena_slice_give(&a, &s[0], true);
    take_run(&a, 0, 5);
    ldr_arena_slice_give(&a, &s[1], true);
    take_run(&a, 5, 2 * N - 5);
    ldr_arena_slice_give(&a, &s[3], true);
    ldr_arena_slice_give(&a, &s[2], true); /* behind one that is all taken */
    take_run(&a, 2 * N, 2 * N);
    assert_int_equal(a.free_count, 0);
    ldr_arena_destroy(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_in_one_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
