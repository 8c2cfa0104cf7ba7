/*
 * Tickets: submitting, draining, the event descriptor, cancelling, deadlines.
 *
 * To catch a ticket in the middle of its work these tests hold the node's lock
 * themselves: whoever carries it out then waits there.
 */
#include "client/support.h"
#include "support/disks.h"

#include <poll.h>

#define NODE "dram=32M&ssd=128M"

enum { BYTES = 50000, MANY = 200 };

/* A ticket's items and buffers. */
typedef struct job {
    larder_key_t key;
    struct iovec iov;
    larder_item_t item;
    larder_ticket_t ticket;
    unsigned completed;
    uint8_t data[BYTES];
} job_t;

static void job_init(job_t *job, uint64_t n)
{
    job->key = key_of(n);
    job->iov = (struct iovec){job->data, BYTES};
    job->item =
        (larder_item_t){.key = &job->key, .iov = &job->iov, .iov_count = 1};
    job->completed = 0;
}

static larder_status_t job_submit(fix_t *f, larder_op_t op, job_t *job,
                                  uint32_t timeout_ms)
{
    larder_op_params_t params = {.field_mask =
                                     LARDER_OP_USER | LARDER_OP_TIMEOUT,
                                 .timeout_ms = timeout_ms,
                                 .user = job};

    return larder_submit(f->space, op, &job->item, 1, &params, &job->ticket);
}

static bool readable(const fix_t *f)
{
    struct pollfd p = {.fd = larder_event_fd(f->lar), .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

/* Drains until so many have come; each is told once, in bounded helpings. */
static void drain_jobs(fix_t *f, size_t want)
{
    larder_completion_t done[7];
    size_t n;

    while (want > 0) {
        assert_status(
            larder_drain(f->lar, done, COUNT_OF(done), LARDER_FOREVER, &n),
            LARDER_OK);
        assert_in_range(n, 1, COUNT_OF(done));
        assert_true(n <= want);
        for (size_t i = 0; i < n; i++) {
            job_t *job = done[i].user;

            assert_int_equal(done[i].ticket, job->ticket);
            assert_status(done[i].status, LARDER_OK);
            assert_int_not_equal(job->item.status, LARDER_PENDING);
            job->completed++;
        }
        want -= n;
    }
}

static void drain_nothing(fix_t *f)
{
    larder_completion_t done;
    size_t n = 9;

    assert_false(readable(f));
    assert_status(larder_drain(f->lar, &done, 1, 0, &n), LARDER_OK);
    assert_int_equal(n, 0);
    n = 9;
    assert_status(larder_drain(f->lar, &done, 1, 1, &n), LARDER_OK);
    assert_int_equal(n, 0);
}

static void test_all_operations(void **state)
{
    fix_t *f = fix(state);
    job_t *jobs = malloc(MANY * sizeof(*jobs));

    fix_open(f, NODE "&workers=3");
    drain_nothing(f);
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < MANY && pass == 0; i++) {
            job_init(&jobs[i], i);
            content(i, jobs[i].data, BYTES);
            assert_status(job_submit(f, LARDER_OP_PUT, &jobs[i], 0), 0);
        }
        drain_jobs(f, pass == 0 ? MANY : 0);
        drain_nothing(f);
        for (uint64_t i = 0; i < MANY; i++) {
            assert_status(jobs[i].item.status, LARDER_OK);
            job_init(&jobs[i], i);
            memset(jobs[i].data, 0, BYTES);
            assert_status(job_submit(f, LARDER_OP_GET, &jobs[i], 0), 0);
        }
        drain_jobs(f, MANY);
        for (uint64_t i = 0; i < MANY; i++) {
            assert_int_equal(jobs[i].completed, 1);
            assert_status(jobs[i].item.status, LARDER_OK);
            assert_int_equal(jobs[i].item.length, BYTES);
            assert_true(content_is(i, jobs[i].data, BYTES));
        }
        if (pass == 0) { /* once more, from the disk */
            assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER),
                          0);
            fix_close(f);
            fix_open(f, NODE "&workers=3");
        }
    }
    for (uint64_t i = 0; i < MANY; i++) {
        assert_status(
            job_submit(f, i % 2 == 0 ? LARDER_OP_REMOVE : LARDER_OP_EXISTS,
                       &jobs[i], 0),
            LARDER_OK);
    }
    drain_jobs(f, MANY);
    for (uint64_t i = 0; i < MANY; i++) {
        assert_status(jobs[i].item.status, LARDER_OK);
        assert_status(exists_n(f->space, i).status,
                      i % 2 == 0 ? LARDER_MISS : LARDER_OK);
    }
    drain_nothing(f);
    free(jobs);
}

/* A completed ticket's buffers are the caller's again, at once. */
static void test_untouched_after(void **state)
{
    fix_t *f = fix(state);
    job_t *jobs = malloc(8 * sizeof(*jobs));

    fix_open(f, "dram=8M&ssd=64M&workers=2");
    for (uint64_t i = 0; i < 8; i++) {
        assert_status(put_n(f->space, i, BYTES), LARDER_OK);
    }
    fix_close(f);
    fix_open(f, "dram=8M&ssd=64M&workers=2");
    for (uint64_t i = 0; i < 8; i++) {
        job_init(&jobs[i], i);
        assert_status(job_submit(f, LARDER_OP_GET, &jobs[i], 1 + i), 0);
    }
    for (unsigned i = 0; i < 8; i++) {
        larder_completion_t done;
        size_t n;

        assert_status(larder_drain(f->lar, &done, 1, LARDER_FOREVER, &n), 0);
        assert_int_equal(n, 1);
        job_t *job = done.user;
        memset(job, 0xdd, sizeof(*job));
    }
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    fix_close(f);
    for (size_t i = 0; i < 8 * sizeof(*jobs); i++) {
        assert_int_equal(((uint8_t *)jobs)[i], 0xdd);
    }
    free(jobs);
}

static void test_too_many(void **state)
{
    enum { TICKETS = 5 };
    fix_t *f = fix(state);
    job_t *jobs = malloc((TICKETS + 1) * sizeof(*jobs));
    larder_completion_t done[2];
    size_t n;

    fix_open(f, NODE "&tickets=5&workers=1");
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i <= TICKETS; i++) {
            job_init(&jobs[i], i);
            assert_status(job_submit(f, LARDER_OP_EXISTS, &jobs[i], 0),
                          i < TICKETS ? LARDER_OK : LARDER_E_BUSY);
        }
        assert_non_null(strstr(larder_last_error(), "tickets"));
        /* Completed but not drained ones are still in use. */
        while (!readable(f)) {
        }
        assert_status(larder_drain(f->lar, done, 2, LARDER_FOREVER, &n), 0);
        for (size_t i = 0; i < n; i++) {
            ((job_t *)done[i].user)->completed++;
        }
        assert_status(job_submit(f, LARDER_OP_EXISTS, &jobs[TICKETS], 0), 0);
        drain_jobs(f, TICKETS + 1 - n);
        for (unsigned i = 0; i <= TICKETS; i++) {
            assert_int_equal(jobs[i].completed, 1);
        }
        drain_nothing(f);
    }
    free(jobs);
}

/* Readable from the first completion until the last is drained. */
static void test_event_fd(void **state)
{
    fix_t *f = fix(state);
    job_t *jobs = malloc(3 * sizeof(*jobs));
    larder_completion_t done;
    size_t n;

    fix_open(f, NODE "&workers=1");
    assert_true(larder_event_fd(f->lar) >= 0);
    for (unsigned i = 0; i < 3; i++) {
        job_init(&jobs[i], i);
        assert_false(readable(f));
        ldr_node_lock(f->lar->node);
        assert_status(job_submit(f, LARDER_OP_EXISTS, &jobs[i], 0), 0);
        assert_false(readable(f)); /* it cannot have completed */
        ldr_node_unlock(f->lar->node);
        struct pollfd p = {.fd = larder_event_fd(f->lar), .events = POLLIN};
        assert_int_equal(poll(&p, 1, -1), 1);
        /* Completed, if not drained: too late to cancel. */
        assert_status(larder_cancel(f->lar, jobs[i].ticket), LARDER_MISS);
        assert_status(larder_drain(f->lar, &done, 1, 0, &n), LARDER_OK);
        assert_int_equal(n, 1);
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_status(job_submit(f, LARDER_OP_EXISTS, &jobs[i], 0), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_status(larder_drain(f->lar, &done, 1, LARDER_FOREVER, &n), 0);
        assert_ptr_equal(done.user, &jobs[i]); /* oldest first */
    }
    drain_nothing(f);
    free(jobs);
}

/* Canceled while it is carried out, and before it is: in each case it
 * completes once, and what it was to do is not done. */
static void test_cancel(void **state)
{
    fix_t *f = fix(state);
    job_t *jobs = malloc(4 * sizeof(*jobs));
    const larder_op_t ops[4] = {LARDER_OP_GET, LARDER_OP_PUT, LARDER_OP_REMOVE,
                                LARDER_OP_EXISTS};

    fix_open(f, NODE "&workers=1");
    assert_status(put_n(f->space, 0, BYTES), LARDER_OK);
    for (unsigned first = 0; first < 4; first++) {
        larder_stats_t before = stats_of(f->lar);

        ldr_node_lock(f->lar->node);
        for (unsigned i = 0; i < 4; i++) {
            unsigned which = (first + i) % 4;

            job_init(&jobs[i], ops[which] == LARDER_OP_PUT ? 1 : 0);
            memset(jobs[i].data, 0x11, BYTES);
            assert_status(job_submit(f, ops[which], &jobs[i], 0), 0);
        }
        for (unsigned i = 0; i < 4; i++) {
            assert_status(larder_cancel(f->lar, jobs[i].ticket), LARDER_OK);
        }
        ldr_node_unlock(f->lar->node);
        drain_jobs(f, 4);
        for (unsigned i = 0; i < 4; i++) {
            unsigned which = (first + i) % 4;

            assert_int_equal(jobs[i].completed, 1);
            assert_status(larder_cancel(f->lar, jobs[i].ticket), LARDER_MISS);
            /* The first may have begun; exists and remove then go through. */
            if (i > 0 || which < 2) {
                assert_status(jobs[i].item.status, LARDER_E_CANCELED);
            }
        }
        /* What is being written down is held as well. */
        assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
        larder_stats_t after = stats_of(f->lar);
        assert_int_equal(after.saves_canceled, before.saves_canceled + 1);
        assert_int_equal(after.misses[LARDER_CAUSE_DEADLINE], 0);
        assert_int_equal(after.dram_leased_chunks, 0);
        assert_status(exists_n(f->space, 1).status, LARDER_MISS);
        put_n(f->space, 0, BYTES);
        assert_status(get_n(f->space, 0, BYTES).status, LARDER_OK);
    }
    drain_nothing(f);
    free(jobs);
}

static void pass_ms(unsigned ms)
{
    uint64_t end = ldr_now_ns(&ldr_clock_real) + ms * 1000000ull;

    while (ldr_now_ns(&ldr_clock_real) < end) {
    }
}

/* Late before it was begun: a put says so, a load is a miss with its cause. */
static void test_deadline(void **state)
{
    fix_t *f = fix(state);
    job_t *jobs = malloc(4 * sizeof(*jobs));

    fix_open(f, NODE "&workers=1");
    assert_status(put_n(f->space, 0, BYTES), LARDER_OK);
    ldr_node_lock(f->lar->node);
    for (unsigned i = 0; i < 4; i++) {
        job_init(&jobs[i], i == 1 ? 1 : 0);
    }
    assert_status(job_submit(f, LARDER_OP_GET, &jobs[0], 1), LARDER_OK);
    assert_status(job_submit(f, LARDER_OP_PUT, &jobs[1], 1), LARDER_OK);
    assert_status(job_submit(f, LARDER_OP_EXISTS, &jobs[2], 1), LARDER_OK);
    assert_status(job_submit(f, LARDER_OP_GET, &jobs[3], LARDER_FOREVER), 0);
    pass_ms(2);
    ldr_node_unlock(f->lar->node);
    drain_jobs(f, 4);
    assert_status(jobs[0].item.status, LARDER_MISS);
    assert_int_equal(jobs[0].item.cause, LARDER_CAUSE_DEADLINE);
    assert_status(jobs[1].item.status, LARDER_E_DEADLINE);
    assert_status(jobs[2].item.status, LARDER_MISS);
    assert_int_equal(jobs[2].item.cause, LARDER_CAUSE_DEADLINE);
    assert_status(jobs[3].item.status, LARDER_OK);
    assert_status(exists_n(f->space, 1).status, LARDER_MISS);
    larder_stats_t s = stats_of(f->lar);
    assert_int_equal(s.misses[LARDER_CAUSE_DEADLINE], 2);
    assert_int_equal(s.saves_canceled, 1);
    free(jobs);
}

/* Tickets that wait for a disk end at their deadline, or when canceled, and
 * not before the disk answers only by luck: here it answers never. */
static void test_waiting(void **state)
{
    enum { JOBS = 6 };
    fix_t *f = fix(state);
    job_t *jobs = malloc(JOBS * sizeof(*jobs));

    fix_open(f, NODE "&io_depth=1&workers=1");
    for (uint64_t i = 0; i < JOBS; i++) {
        assert_status(put_n(f->space, i, BYTES), LARDER_OK);
    }
    fix_close(f);
    fix_open(f, NODE "&io_depth=1&workers=1");
    /* The only slot for reads is taken away: reads queue behind it. */
    ldr_node_lock(f->lar->node);
    ldr_read_t *slot = ssds_of(f->lar->node)->read_free;
    ssds_of(f->lar->node)->read_free = NULL;
    ldr_node_unlock(f->lar->node);
    for (unsigned i = 0; i < JOBS; i++) {
        job_init(&jobs[i], i);
        assert_status(job_submit(f, LARDER_OP_GET, &jobs[i],
                                 i % 2 == 0 ? 1 : LARDER_FOREVER),
                      LARDER_OK);
    }
    drain_jobs(f, JOBS / 2); /* the late ones */
    for (unsigned i = 1; i < JOBS - 1; i += 2) {
        assert_int_equal(jobs[i].completed, 0);
        assert_status(larder_cancel(f->lar, jobs[i].ticket), LARDER_OK);
    }
    drain_jobs(f, JOBS / 2 - 1);
    for (unsigned i = 0; i < JOBS - 1; i++) {
        assert_int_equal(jobs[i].completed, 1);
        assert_status(jobs[i].item.status,
                      i % 2 == 0 ? LARDER_MISS : LARDER_E_CANCELED);
    }
    assert_int_equal(jobs[0].item.cause, LARDER_CAUSE_DEADLINE);
    /* A blocking call ends as well. */
    larder_op_params_t params = {.field_mask = LARDER_OP_TIMEOUT,
                                 .timeout_ms = 1};
    assert_status(
        larder_run(f->space, LARDER_OP_GET, &jobs[0].item, 1, &params),
        LARDER_OK);
    assert_status(jobs[0].item.status, LARDER_MISS);
    assert_int_equal(jobs[0].item.cause, LARDER_CAUSE_DEADLINE);
    /* The disk is back: the last one gets its bytes. */
    ldr_node_lock(f->lar->node);
    ssds_of(f->lar->node)->read_free = slot;
    ldr_node_unlock(f->lar->node);
    ldr_node_reads_go(f->lar->node);
    drain_jobs(f, 1);
    assert_status(jobs[JOBS - 1].item.status, LARDER_OK);
    assert_true(content_is(JOBS - 1, jobs[JOBS - 1].data, BYTES));
    for (uint64_t i = 0; i < JOBS; i++) {
        assert_status(get_n(f->space, i, BYTES).status, LARDER_OK);
    }
    free(jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_all_operations), BOTH(test_untouched_after),
        BOTH(test_too_many),       EMBED_BOTH(test_event_fd),
        EMBED_BOTH(test_cancel),   EMBED_BOTH(test_deadline),
        EMBED_BOTH(test_waiting),
    };

    return cmocka_run_group_tests_name("client/tickets", tests, NULL, NULL);
}
