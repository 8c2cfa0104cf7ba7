/*
 * What an operation costs besides its own work: after warm-up no allocation,
 * in any thread, and no system call but those that are listed here and in
 * docs/concepts/threads.md.
 *
 * Allocations are counted by functions that stand before the C library's.
 * System calls of the calling thread are trapped by a seccomp filter, in a
 * child process that installs it once it has warmed up. Controls show that
 * both can fail.
 */
#include "client/support.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/mem.h"
#include "node/node.h"

enum { OPS = 10000, BYTES = 4000, KEYS = 4096, CHAIN = 8 };

/* ---- counting allocations ---- */

static uint64_t allocation_count;
static bool counting;

#if !SANITIZED
static void count_one(void)
{
    if (__atomic_load_n(&counting, __ATOMIC_RELAXED)) {
        __atomic_add_fetch(&allocation_count, 1, __ATOMIC_RELAXED);
    }
}

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t boundary, size_t bytes);

void *malloc(size_t bytes)
{
    count_one();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    count_one();
    return __libc_calloc(count, bytes);
}

void *realloc(void *p, size_t bytes)
{
    count_one();
    return __libc_realloc(p, bytes);
}

void *memalign(size_t boundary, size_t bytes)
{
    count_one();
    return __libc_memalign(boundary, bytes);
}

void *aligned_alloc(size_t boundary, size_t bytes)
{
    count_one();
    return __libc_memalign(boundary, bytes);
}

int posix_memalign(void **p, size_t boundary, size_t bytes)
{
    count_one();
    *p = __libc_memalign(boundary, bytes);
    return *p != NULL ? 0 : ENOMEM;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd,
           off_t offset)
{
    count_one();
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}
#endif

static void count_begin(void)
{
    __atomic_store_n(&allocation_count, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&counting, true, __ATOMIC_RELAXED);
}

static uint64_t count_end(void)
{
    __atomic_store_n(&counting, false, __ATOMIC_RELAXED);
    return __atomic_load_n(&allocation_count, __ATOMIC_RELAXED);
}

/* ---- the work ---- */

static larder_key_t keys[KEYS];
static uint8_t data[BYTES], out[BYTES];

static void make_keys(void)
{
    for (uint64_t i = 0; i < KEYS; i++) {
        keys[i] = key_of(i);
    }
    content(1, data, BYTES);
}

/* Keys come round, so that in the long run each put evicts or is present. */
static bool one_op(larder_space_t *space, larder_op_t op, uint64_t n)
{
    struct iovec iov = {op == LARDER_OP_PUT ? data : out, BYTES};
    larder_item_t item = {.key = &keys[n % KEYS],
                          .parent =
                              n % CHAIN != 0 ? &keys[(n - 1) % KEYS] : NULL,
                          .depth = (uint32_t)(n % CHAIN),
                          .iov = &iov,
                          .iov_count = 1};

    return larder_run(space, op, &item, 1, NULL) == LARDER_OK &&
           item.status >= LARDER_OK;
}

/* One of each, on what was put just now and on what was put long ago. */
static bool all_ops(larder_space_t *space, uint64_t n)
{
    const larder_key_t *chain = &keys[n % KEYS / CHAIN * CHAIN];
    larder_match_t m = {.struct_bytes = sizeof(m)};
    larder_lease_t *lease = NULL;

    bool ok = one_op(space, LARDER_OP_PUT, n) &&
              one_op(space, LARDER_OP_GET, n) &&
              one_op(space, LARDER_OP_GET, n + KEYS / 2) &&
              one_op(space, LARDER_OP_EXISTS, n) &&
              larder_match(space, chain, CHAIN, 0, &m) == LARDER_OK &&
              larder_stage(space, chain, CHAIN, 0, 0, &lease, &m) >= 0;
    larder_release(&lease);
    return ok;
}

static bool run_ops(larder_space_t *space, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (!all_ops(space, first + i)) {
            return false;
        }
    }
    return true;
}

/* Until the arena was turned over, and the disk as well. */
static bool warm_up(fix_t *f)
{
    larder_stats_t s = {.struct_bytes = sizeof(s)};
    uint64_t n = 0;

    do {
        if (!run_ops(f->space, n, 1000)) {
            return false;
        }
        n += 1000;
        if (larder_flush(f->lar, LARDER_TIER_DRAM, 0) != LARDER_OK ||
            larder_stats(f->lar, &s) != LARDER_OK) {
            return false;
        }
        if (s.disks > 0) {
            larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER);
        }
    } while (
        n < KEYS || s.dram_resident_bytes < s.dram_bytes ||
        (s.disks > 0 && s.disk[0].written_bytes < 2 * s.disk[0].bytes_max));
    return s.evicted_chunks > 1000;
}

static void test_counter_can_count(void **state)
{
    (void)state;
    if (SANITIZED) {
        skip();
    }
    count_begin();
    void *volatile a = malloc(10);
    void *volatile b = aligned_alloc(4096, 4096);
    void *c = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *d = ldr_alloc(100);
    assert_true(count_end() >= 4);
    free(a);
    free(b);
    munmap(c, 4096);
    ldr_free(d);
}

static void no_allocation(fix_t *f)
{
    uint64_t ours = ldr_alloc_count();
    larder_ticket_t ticket;
    larder_completion_t done;
    size_t n;

    assert_true(warm_up(f));
    larder_stats_t before = stats_of(f->lar);
    ours = ldr_alloc_count();
    count_begin();
    bool ok = run_ops(f->space, 0, OPS);
    for (uint64_t i = 0; i < 1000 && ok; i++) { /* as tickets, too */
        struct iovec iov = {out, BYTES};
        larder_item_t item = {.key = &keys[i], .iov = &iov, .iov_count = 1};

        ok = larder_submit(f->space, LARDER_OP_GET, &item, 1, NULL, &ticket) ==
                 LARDER_OK &&
             larder_drain(f->lar, &done, 1, LARDER_FOREVER, &n) == LARDER_OK;
    }
    uint64_t allocations = count_end();
    assert_true(ok);
    assert_int_equal(ldr_alloc_count(), ours);
    if (!SANITIZED) {
        assert_int_equal(allocations, 0);
    }
    larder_stats_t after = stats_of(f->lar);
    assert_true(after.evicted_chunks >= before.evicted_chunks + 1000);
    print_message(
        "%llu evictions, %llu loads from ssd, %llu bytes written, "
        "no allocation\n",
        (unsigned long long)(after.evicted_chunks - before.evicted_chunks),
        (unsigned long long)(after.loads_ssd - before.loads_ssd),
        (unsigned long long)(after.disk[0].written_bytes -
                             before.disk[0].written_bytes));
    if (after.disks > 0) {
        assert_true(after.loads_ssd > before.loads_ssd);
        assert_true(after.disk[0].written_bytes > before.disk[0].written_bytes);
    }
}

static void test_no_allocation_dram(void **state)
{
    fix_t *f = fix(state);

    fix_open_dram(f, "dram=8M");
    no_allocation(f);
}

static void test_no_allocation_ssd(void **state)
{
    fix_t *f = fix(state);

    fix_open(f, "dram=8M&ssd=8M");
    no_allocation(f);
}

/* ---- trapping system calls ---- */

enum { TRAPPED = 3 };

static bool control; /* a trap is what is wanted */

static void on_trap(int signal, siginfo_t *info, void *context)
{
    char text[] = "forbidden system call 0000\n";

    (void)signal;
    (void)context;
    for (int i = 25, n = info->si_syscall; i > 21; i--, n /= 10) {
        text[i] = (char)('0' + n % 10);
    }
    if (!control && write(2, text, sizeof(text) - 1) < 0) {
        _exit(TRAPPED + 1);
    }
    _exit(TRAPPED);
}

/* From here on this thread may make these system calls, write its findings
 * and exit. False: the kernel does not filter. */
static bool allow_only(const int *allowed, unsigned count)
{
    struct sock_filter code[32];
    unsigned n = 0;
    /* restart_syscall: the kernel goes on with a wait that it interrupted. */
    const int always[] = {SYS_write, SYS_exit_group, SYS_exit, SYS_rt_sigreturn,
                          SYS_restart_syscall};
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};

    sigaction(SIGSYS, &action, NULL);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                             offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < COUNT_OF(always) + count; i++) {
        int nr =
            i < COUNT_OF(always) ? always[i] : allowed[i - COUNT_OF(always)];

        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                 (unsigned)nr, 0, 1);
        code[n++] =
            (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    struct sock_fprog program = {(unsigned short)n, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* How a child that does fn ended; exit code 9: no filters here. */
static int child_end(bool (*fn)(fix_t *f), fix_t *f)
{
    int status = -1;

    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(fn(f) ? 0 : 1);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void filter_or_leave(const int *allowed, unsigned count)
{
    if (!allow_only(allowed, count)) {
        _exit(9);
    }
}

static bool forbidden_call(fix_t *f)
{
    (void)f;
    control = true;
    filter_or_leave(NULL, 0);
    return syscall(SYS_getppid) != 0;
}

static bool clock_call(fix_t *f)
{
    (void)f;
    control = true;
    filter_or_leave(NULL, 0);
    return ldr_now_ns(&ldr_clock_real) > 0 && ldr_wall_s(&ldr_clock_real) > 0;
}

static int clock_syscall = -1; /* allowed where the vDSO does not help */

static int with_clock(int *allowed, int count)
{
    if (clock_syscall >= 0) {
        allowed[count++] = clock_syscall;
    }
    return count;
}

/* Skips where there is nothing to test with. */
static void need_filter(void)
{
    if (SANITIZED) {
        skip(); /* their runtimes make system calls of their own */
    }
    int end = child_end(forbidden_call, NULL);
    if (end == 9) {
        print_message("SKIPPED, NOT TESTED: no seccomp filters here\n");
        skip();
    }
    assert_int_equal(end, TRAPPED); /* the filter can fail */
    if (child_end(clock_call, NULL) != 0) {
        print_message("clock_gettime is a system call here: allowed\n");
        clock_syscall = SYS_clock_gettime;
    }
}

/* DRAM only, nobody else at work: none at all, not even a futex. */
static bool dram_ops(fix_t *f)
{
    int allowed[1];

    if (larder_open("embed:?io=plain&dram=8M", NULL, &f->lar) != LARDER_OK) {
        return false;
    }
    larder_space_params_t p = {.descriptor = "model", .descriptor_bytes = 5};
    uint32_t tokens[512] = {0};
    larder_key_t chain[2];
    size_t n;
    if (larder_space_open(f->lar, &p, &f->space) != LARDER_OK || !warm_up(f)) {
        return false;
    }
    filter_or_leave(allowed, (unsigned)with_clock(allowed, 0));
    return run_ops(f->space, 0, OPS) &&
           larder_chain(f->space, tokens, 512, NULL, chain, 2, &n) == LARDER_OK;
}

static void test_syscalls_dram(void **state)
{
    fix_t *f = fix(state);

    need_filter();
    assert_int_equal(child_end(dram_ops, f), 0);
}

/* With a disk: a futex wakes its threads. Loads from it are submitted by the
 * caller where that is a system call. */
static bool ssd_ops(fix_t *f)
{
    int allowed[3] = {SYS_futex};
    int count = 1;

    if (try_open(f, "dram=8M&ssd=8M", &f->lar) != LARDER_OK) {
        return false;
    }
    larder_space_params_t p = {.descriptor = "model", .descriptor_bytes = 5};
    if (larder_space_open(f->lar, &p, &f->space) != LARDER_OK || !warm_up(f)) {
        return false;
    }
#ifdef SYS_io_uring_enter
    if (strcmp(f->engine, "uring") == 0) {
        allowed[count++] = SYS_io_uring_enter;
    }
#endif
    filter_or_leave(allowed, (unsigned)with_clock(allowed, count));
    return run_ops(f->space, 0, OPS / 4);
}

static void test_syscalls_ssd(void **state)
{
    fix_t *f = fix(state);

    need_filter();
    assert_int_equal(child_end(ssd_ops, f), 0);
}

/* With a disk, but of what lies in DRAM: a futex at most. */
static bool ssd_dram_ops(fix_t *f)
{
    int allowed[2] = {SYS_futex};
    bool ok = true;

    if (try_open(f, "dram=8M&ssd=8M", &f->lar) != LARDER_OK) {
        return false;
    }
    larder_space_params_t p = {.descriptor = "model", .descriptor_bytes = 5};
    if (larder_space_open(f->lar, &p, &f->space) != LARDER_OK || !warm_up(f)) {
        return false;
    }
    filter_or_leave(allowed, (unsigned)with_clock(allowed, 1));
    for (uint64_t i = 0; i < OPS && ok; i++) {
        larder_match_t m = {.struct_bytes = sizeof(m)};

        ok = one_op(f->space, LARDER_OP_PUT, i) &&
             one_op(f->space, LARDER_OP_EXISTS, i) &&
             larder_match(f->space, &keys[i % KEYS], 1, 0, &m) == LARDER_OK &&
             (m.tier_chunks[LARDER_TIER_DRAM] == 0 ||
              one_op(f->space, LARDER_OP_GET, i));
    }
    return ok;
}

static void test_syscalls_ssd_in_dram(void **state)
{
    fix_t *f = fix(state);

    need_filter();
    assert_int_equal(child_end(ssd_dram_ops, f), 0);
}

/* Tickets: a futex wakes the worker, a read clears the event descriptor. */
static bool ticket_ops(fix_t *f)
{
    int allowed[3] = {SYS_futex, SYS_read};
    larder_ticket_t ticket;
    larder_completion_t done;
    size_t n;
    bool ok = true;

    if (larder_open("embed:?io=plain&dram=8M", NULL, &f->lar) != LARDER_OK) {
        return false;
    }
    larder_space_params_t p = {.descriptor = "model", .descriptor_bytes = 5};
    if (larder_space_open(f->lar, &p, &f->space) != LARDER_OK || !warm_up(f)) {
        return false;
    }
    filter_or_leave(allowed, (unsigned)with_clock(allowed, 2));
    for (uint64_t i = 0; i < OPS / 4 && ok; i++) {
        struct iovec iov = {i % 2 == 0 ? data : out, BYTES};
        larder_item_t item = {
            .key = &keys[i / 2 % KEYS], .iov = &iov, .iov_count = 1};

        ok = larder_submit(f->space, i % 2 == 0 ? LARDER_OP_PUT : LARDER_OP_GET,
                           &item, 1, NULL, &ticket) == LARDER_OK &&
             larder_drain(f->lar, &done, 1, LARDER_FOREVER, &n) == LARDER_OK &&
             item.status >= LARDER_OK;
    }
    return ok;
}

static void test_syscalls_tickets(void **state)
{
    fix_t *f = fix(state);

    need_filter();
    assert_int_equal(child_end(ticket_ops, f), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counter_can_count),
        EMBED_ONE(test_no_allocation_dram, "plain"),
        EMBED_BOTH(test_no_allocation_ssd),
        EMBED_ONE(test_syscalls_dram, "plain"),
        EMBED_BOTH(test_syscalls_ssd),
        EMBED_BOTH(test_syscalls_ssd_in_dram),
        EMBED_ONE(test_syscalls_tickets, "plain"),
    };

    ldr_host_walker = NULL; /* which allocates: see support/checks.c */
    make_keys();
    return cmocka_run_group_tests_name("client/hotpath", tests, NULL, NULL);
}
