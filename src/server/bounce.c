/* Bounce buffers of isolation=strict; bounce.h has their invariants, and which
 * thread may touch what. */
#include "server/bounce.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/mem.h"
#include "server/session.h"

/* Touched by the session's loop only; job threads touch the bytes of pages
 * that a request or a hold has. A bounce buffer that a job still works on
 * outlives its session: users counts the jobs and the session. */
struct ldr_bounce {
    ldr_server_t *server;
    ldr_server_tenant_t *tenant; /* who is charged for it */
    ldr_extent_t extent;
    uint32_t page_count, free_count, free_head;
    uint32_t *next; /* per page */
    unsigned users; /* atomic */
    bool mapped;    /* by its client, perhaps */
};

/* What a hold in a bounce buffer is: its pages. */
typedef struct strict {
    ldr_bounce_t *bounce;
    uint32_t page; /* first of its list */
    uint32_t length;
    uint32_t space; /* of a reservation, for counting */
} strict_t;

/* ---- the bounce buffer ---- */

larder_status_t ldr_bounce_create(ldr_server_t *server,
                                  ldr_server_tenant_t *tenant,
                                  ldr_bounce_t **bounce_p)
{
    uint64_t bytes = server->config->options.strict_window;
    ldr_bounce_t *w = ldr_alloc(sizeof(*w));

    if (w == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    if (!ldr_server_tenant_bounce(server, tenant, bytes)) {
        ldr_free(w);
        return LARDER_E_LIMIT;
    }
    w->server = server;
    w->tenant = tenant;
    w->page_count = w->free_count = (uint32_t)(bytes / LDR_PAGE);
    w->next = ldr_alloc(w->page_count * sizeof(*w->next));
    w->users = 1;
    if (w->next == NULL ||
        !ldr_extent_create(&w->extent, (size_t)w->page_count * LDR_PAGE) ||
        !ldr_extent_populate(&w->extent, 0, w->extent.bytes)) {
        ldr_bounce_destroy(w);
        return LARDER_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < w->page_count; i++) {
        w->next[i] = i + 1 < w->page_count ? i + 1 : LDR_NIL;
    }
    *bounce_p = w;
    return LARDER_OK;
}

/* Who says that it has unmapped it, and has not, keeps no memory that is not
 * counted any more: what it touches then is its own. From who did not say so
 * nothing is taken. */
static void bounce_empty(const ldr_bounce_t *w)
{
    if (!w->mapped && !ldr_extent_empty(&w->extent, 0, w->extent.bytes)) {
        ldr_warn(&w->server->log,
                 "a bounce buffer's memory is not given back: %s",
                 strerror(errno));
    }
}

void ldr_bounce_destroy(ldr_bounce_t *w)
{
    unsigned users =
        w != NULL ? __atomic_fetch_sub(&w->users, 1, __ATOMIC_ACQ_REL) : 0;

    LDR_ASSERT(w == NULL || users > 0);
    if (users == 1) {
        LDR_ASSERT(w->free_count == w->page_count);
        bounce_empty(w);
        ldr_extent_destroy(&w->extent);
        ldr_server_tenant_bounce_gone(w->server, w->tenant,
                                      w->server->config->options.strict_window);
        ldr_free(w->next);
        ldr_free(w);
    }
}

larder_status_t ldr_bounce_view(ldr_bounce_t *w, const ldr_extent_msg_t *want,
                                ldr_extent_view_t *view)
{
    if (want->extent != LDR_BOUNCE_EXTENT || want->generation != 1) {
        return ldr_fail(LARDER_E_STALE, "extent %u is not this session's",
                        want->extent);
    }
    *view = (ldr_extent_view_t){
        .fd = fcntl(w->extent.fd, F_DUPFD_CLOEXEC, 0),
        .bytes = w->extent.bytes,
        .ready_bytes = w->extent.bytes,
    };
    w->mapped = w->mapped || view->fd >= 0;
    return view->fd >= 0 ? LARDER_OK
                         : ldr_fail(LARDER_E_NO_MEMORY, "no descriptor left");
}

bool ldr_bounce_mapped(const ldr_bounce_t *w)
{
    return w != NULL && w->mapped;
}

void ldr_bounce_unmapped(ldr_bounce_t *w)
{
    if (w != NULL) {
        w->mapped = false;
    }
}

/* NULL: the bounce buffer is full, or there is no memory. */
static strict_t *pages_take(ldr_bounce_t *w, uint32_t length)
{
    uint32_t count = ldr_arena_pages(length);
    strict_t *x = count <= w->free_count ? ldr_alloc(sizeof(*x)) : NULL;

    if (x == NULL) {
        return NULL;
    }
    uint32_t last = w->free_head;
    for (uint32_t i = 1; i < count; i++) {
        LDR_ASSERT(last < w->page_count);
        last = w->next[last];
    }
    LDR_ASSERT(last < w->page_count);
    x->bounce = w;
    x->page = w->free_head;
    x->length = length;
    w->free_head = w->next[last];
    w->next[last] = LDR_NIL;
    w->free_count -= count;
    return x;
}

static void pages_give(strict_t *x)
{
    ldr_bounce_t *w = x->bounce;
    uint32_t count = 1, last = x->page;

    LDR_ASSERT(last < w->page_count);
    while (w->next[last] != LDR_NIL) {
        last = w->next[last];
        count++;
    }
    LDR_ASSERT(count == ldr_arena_pages(x->length));
    LDR_ASSERT(count <= w->page_count - w->free_count);
    w->next[last] = w->free_head;
    w->free_head = x->page;
    w->free_count += count;
    ldr_free(x);
}

void ldr_bounce_give(ldr_bounce_t *w, ldr_hold_t *hold)
{
    const strict_t *x = hold->strict;

    LDR_ASSERT(x != NULL && x->bounce == w);
    pages_give(hold->strict);
    hold->strict = NULL;
}

uint32_t ldr_bounce_segs(ldr_session_t *s, uint64_t lease, ldr_seg_t *segs,
                         uint32_t max)
{
    ldr_hold_t *hold = ldr_hold_find(s, lease, LDR_HOLD_LEASE);
    uint32_t n = 0, end = LDR_NIL;

    if (hold == NULL) {
        hold = ldr_hold_find(s, lease, LDR_HOLD_RESERVE);
    }
    if (hold == NULL) {
        return 0;
    }
    const strict_t *x = hold->strict;
    uint32_t left = x->length;
    for (uint32_t p = x->page; left > 0; p = x->bounce->next[p]) {
        uint32_t take = left < LDR_PAGE ? left : LDR_PAGE;

        if (p != end) {
            n++;
            if (n <= max) {
                segs[n - 1] = (ldr_seg_t){LDR_BOUNCE_EXTENT, 1, p, 0};
            }
        }
        if (n <= max) {
            segs[n - 1].bytes += take;
        }
        end = p + 1;
        left -= take;
    }
    return n;
}

/* Copies between the bounce buffer's pages and pieces of the arena; gives the
 * checksum of what was copied. */
static uint32_t bounce_copy(const strict_t *x, const struct iovec *iov,
                            bool out)
{
    uint32_t page = x->page, crc = 0;
    size_t left = x->length;
    ldr_cursor_t at = {iov, 0};

    while (left > 0) {
        uint8_t *mine = x->bounce->extent.base + (size_t)page * LDR_PAGE;
        size_t page_left = left < LDR_PAGE ? left : LDR_PAGE;

        for (size_t done = 0; done < page_left;) {
            uint8_t *theirs = ldr_cursor_here(&at);
            size_t some = ldr_min64(page_left - done, ldr_cursor_left(&at));

            crc = out ? ldr_copy_crc32c(crc, mine + done, theirs, some)
                      : ldr_copy_crc32c(crc, theirs, mine + done, some);
            done += some;
            ldr_cursor_go(&at, some);
        }
        left -= page_left;
        page = x->bounce->next[page];
    }
    return crc;
}

/* ---- what a request has of the bounce buffer while a job works on it ---- */

static bool works_begin(ldr_request_t *r, void (*run)(ldr_request_t *r),
                        void (*finish)(ldr_request_t *r))
{
    ldr_bounce_t *w = r->session->bounce;

    LDR_ASSERT(r->bounce == NULL);
    __atomic_add_fetch(&w->users, 1, __ATOMIC_RELAXED);
    r->bounce = w;
    r->job = run;
    r->finish = finish;
    if (ldr_job(r)) {
        return true;
    }
    r->job = NULL;
    r->bounce = NULL;
    ldr_bounce_destroy(w);
    return false;
}

static void works_end(ldr_request_t *r)
{
    ldr_bounce_destroy(r->bounce);
    r->bounce = NULL;
}

/* What a COMMIT that nobody carries out has of the bounce buffer and the arena.
 */
static void give_up(ldr_request_t *r, uint32_t i, larder_status_t why)
{
    ldr_node_t *node = r->home->server->node;
    const strict_t *x = r->works[i];

    if (r->shard_of[i] != LDR_NIL) {
        ldr_node_abort(node, r->shard_of[i]);
        ldr_node_count_save(node, x->space, why);
        r->shard_of[i] = LDR_NIL;
    }
    pages_give(r->works[i]);
    r->works[i] = NULL;
}

void ldr_bounce_forget(ldr_request_t *r)
{
    ldr_node_t *node = r->home->server->node;

    if (r->bounce == NULL) {
        return;
    }
    for (uint32_t i = 0; r->frame.opcode != LDR_OP_ATTACH && i < r->count;
         i++) {
        if (r->frame.opcode == LDR_OP_LEASE && r->shard_of[i] != LDR_NIL) {
            ldr_node_release(node, r->loads[i].chunk);
            r->shard_of[i] = LDR_NIL;
        }
        if (r->works[i] != NULL) {
            give_up(r, i, LARDER_E_CANCELED);
        }
    }
    works_end(r);
}

/* ---- LEASE ---- */

static void job_lease(ldr_request_t *r)
{
    ldr_node_t *node = r->home->server->node;
    struct iovec iov[LDR_READ_IOV];

    for (uint32_t i = 0; i < r->count; i++) {
        strict_t *x = r->works[i];

        if (x == NULL) {
            continue;
        }
        ldr_node_iov(node, r->shard_of[i], iov, LDR_READ_IOV);
        if (bounce_copy(x, iov, true) != r->results[i].crc) {
            /* Found wrong: dropped as a load would. */
            ldr_load_check(node, &r->loads[i]);
            r->results[i] = (ldr_result_row_t){.status = LARDER_MISS,
                                               .cause = LARDER_CAUSE_CORRUPT};
        } else {
            r->results[i].flags = LDR_RESULT_CHECKED;
        }
    }
}

/* A lease in the bounce buffer holds nothing of the arena. */
static void finish_lease(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_node_t *node = s->server->node;

    for (uint32_t i = 0; i < r->count; i++) {
        strict_t *x = r->works[i];
        ldr_hold_t hold = {.kind = LDR_HOLD_LEASE, .strict = x};

        if (r->shard_of[i] != LDR_NIL) {
            ldr_node_release(node, r->loads[i].chunk);
        }
        if (x == NULL) {
            continue;
        }
        r->works[i] = NULL;
        r->results[i].lease = r->results[i].status == LARDER_OK
                                  ? ldr_hold_add(s, &hold)
                                  : UINT64_MAX;
        if (r->results[i].lease == UINT64_MAX) {
            pages_give(x);
            if (r->results[i].status == LARDER_OK) {
                r->results[i] = (ldr_result_row_t){.status = LARDER_PENDING};
            }
        }
    }
    works_end(r);
    ldr_reply_results(r, true, false);
}

/* What is staged (its name has no room) stays for as long as its holder likes:
 * it leaves half of the bounce buffer to loads and saves, or the loads that it
 * is staged for would wait for it. A larger shard is staged where it is alone.
 */
static bool leaves_room(const ldr_request_t *r, uint32_t i)
{
    const ldr_bounce_t *w = r->session->bounce;
    uint32_t count = ldr_arena_pages(r->results[i].length);

    return r->wants[i].bytes > 0 || w->free_count == w->page_count ||
           w->free_count >= count + w->page_count / 2;
}

void ldr_bounce_lease(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_node_t *node = s->server->node;
    ldr_bounce_t *w = s->bounce;
    bool some = false;

    for (uint32_t i = 0; i < r->count; i++) {
        if (r->shard_of[i] == LDR_NIL) {
            continue;
        }
        if (leaves_room(r, i)) {
            r->works[i] = pages_take(w, (uint32_t)r->results[i].length);
        }
        if (r->works[i] == NULL) {
            ldr_node_release(node, r->loads[i].chunk);
            r->shard_of[i] = LDR_NIL;
            bool later = w->free_count < w->page_count;
            r->results[i] = (ldr_result_row_t){
                .status = later ? LARDER_PENDING : LARDER_E_LIMIT};
        }
        some |= r->works[i] != NULL;
    }
    if (!some) {
        ldr_reply_results(r, false, false);
        return;
    }
    if (!works_begin(r, job_lease, finish_lease)) {
        for (uint32_t i = 0; i < r->count; i++) {
            if (r->works[i] != NULL) {
                ldr_node_release(node, r->loads[i].chunk);
                pages_give(r->works[i]);
                r->works[i] = NULL;
            }
        }
        ldr_job_refuse(r);
    }
}

/* ---- RESERVE and COMMIT ---- */

bool ldr_bounce_fits(const ldr_bounce_t *w, uint64_t length)
{
    return ldr_arena_pages(length) <= w->free_count;
}

bool ldr_bounce_take(ldr_bounce_t *w, ldr_hold_t *hold)
{
    strict_t *x = pages_take(w, hold->length);

    if (x != NULL) {
        x->space = hold->space;
    }
    hold->strict = x;
    return x != NULL;
}

/* From the bounce buffer into the arena, if it is what the client says it is.
 */
static larder_status_t bring_in(ldr_request_t *r, uint32_t i)
{
    ldr_node_t *node = r->home->server->node;
    struct iovec iov[LDR_READ_IOV];
    uint32_t shard = r->shard_of[i], crc = r->results[i].crc;
    uint64_t begin_ns = ldr_server_now(r->home->server);

    r->shard_of[i] = LDR_NIL; /* committed or aborted from here on */
    ldr_node_iov(node, shard, iov, LDR_READ_IOV);
    if (bounce_copy(r->works[i], iov, false) != crc) {
        ldr_node_abort(node, shard);
        ldr_metrics_event(r->home->server->metrics, LDR_EVENT_CHECKSUM_MISMATCH,
                          1);
        return LARDER_E_CORRUPT;
    }
    return ldr_node_commit(node, shard, crc,
                           ldr_server_now(r->home->server) - begin_ns);
}

static void job_commit(ldr_request_t *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->works[i] != NULL) {
            const strict_t *x = r->works[i];

            r->results[i].status = bring_in(r, i);
            ldr_node_count_save(r->home->server->node, x->space,
                                r->results[i].status);
        }
    }
}

static void finish_commit(ldr_request_t *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->works[i] != NULL) {
            pages_give(r->works[i]);
            r->works[i] = NULL;
        }
    }
    works_end(r);
    ldr_reply_results(r, false, false);
}

void ldr_bounce_commit(ldr_request_t *r)
{
    if (!works_begin(r, job_commit, finish_commit)) {
        for (uint32_t i = 0; i < r->count; i++) {
            if (r->works[i] != NULL) {
                give_up(r, i, LARDER_E_BUSY);
                r->results[i].status = LARDER_E_BUSY;
            }
        }
        ldr_reply_results(r, false, false);
    }
}
