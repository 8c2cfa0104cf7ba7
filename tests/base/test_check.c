/* Broken invariants: what a process of our own does, and an engine's. */
#include "base/check.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/thread.h"

/* How a child ends that does this. */
static int end_of(void (*act)(pthread_mutex_t *), pthread_mutex_t *lock)
{
    const struct rlimit none = {0, 0};
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &none);
        close(STDERR_FILENO);
        act(lock);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static bool aborts(void (*act)(pthread_mutex_t *), pthread_mutex_t *lock)
{
    int status = end_of(act, lock);

    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void broken(pthread_mutex_t *lock)
{
    LDR_ASSERT(lock == NULL);
}

static void whole(pthread_mutex_t *lock)
{
    LDR_ASSERT(lock != NULL);
    LDR_DEBUG_ASSERT(lock != NULL);
    if (!LDR_HOLDS(lock != NULL)) {
        _exit(1);
    }
}

static void lock_twice(pthread_mutex_t *lock)
{
    ldr_mutex_lock(lock);
    ldr_mutex_lock(lock);
}

static void unlock_free(pthread_mutex_t *lock)
{
    ldr_mutex_unlock(lock);
}

static void not_held(pthread_mutex_t *lock)
{
    LDR_HELD(lock);
}

static void held(pthread_mutex_t *lock)
{
    ldr_mutex_lock(lock);
    LDR_HELD(lock);
    LDR_HELD(lock);
    ldr_mutex_unlock(lock);
    ldr_mutex_lock(lock);
    ldr_mutex_unlock(lock);
}

static void test_aborts(void **state)
{
    pthread_mutex_t lock;

    (void)state;
    ldr_mutex_init(&lock);
    assert_int_equal(end_of(whole, &lock), 0);
    assert_true(aborts(broken, &lock));
}

static void test_locks(void **state)
{
    pthread_mutex_t lock;

    (void)state;
    if (!LDR_DEBUG) {
        skip(); /* locks know their holders in debug builds only */
    }
    ldr_mutex_init(&lock);
    assert_int_equal(end_of(held, &lock), 0);
    assert_true(aborts(not_held, &lock));
    assert_true(aborts(lock_twice, &lock));
    assert_true(aborts(unlock_free, &lock));
}

/* In an engine: the first one is remembered, and nothing ends. */
static void test_remembers(void **state)
{
    int two = 2;

    (void)state;
    ldr_check_remember();
    assert_null(ldr_broken_text());
    LDR_ASSERT(two == 2);
    assert_null(ldr_broken_text());
    assert_false(LDR_HOLDS(two == 3));
    LDR_ASSERT(two == 4);
    assert_non_null(strstr(ldr_broken_text(), "two == 3"));
    assert_non_null(strstr(ldr_broken_text(), "test_check.c:"));
    ldr_check_remember();
    assert_null(ldr_broken_text());
    ldr_check_abort();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aborts),
        cmocka_unit_test(test_locks),
        cmocka_unit_test(test_remembers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
