/* Requests: from a frame to its reply. All in the loop of their session, which
 * keeps a few of them for the next; session.h says what holds of them. */
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "server/session.h"

#define FREE_MAX 64u           /* requests kept for the next */
#define KEEP_BYTES (64u << 10) /* a larger buffer is not kept */
#define ITEM_CAPACITY_MIN 64u

/* ---- memory ---- */

ldr_request_t *ldr_request_new(ldr_session_t *s)
{
    ldr_server_loop_t *home = s->home;
    ldr_request_t *r = home->free_requests;

    LDR_DEBUG_ASSERT(ldr_loop_is_here(&home->loop));
    LDR_ASSERT((r != NULL) == (home->free_count > 0));
    if (r != NULL) {
        LDR_ASSERT(r->idle && !r->queued && r->home == home);
        home->free_requests = r->free_next;
        home->free_count--;
        r->idle = false;
    } else {
        r = ldr_alloc(sizeof(*r));
        if (r == NULL) {
            return NULL;
        }
        r->home = home;
    }
    r->session = s;
    r->tenant = s->tenant;
    r->parked = false;
    r->via = &s->socket;
    r->count = r->next = r->pending = 0;
    r->space = LDR_NIL;
    r->bytes_in = r->bytes_out = 0;
    r->staging = NULL;
    r->stage = NULL;
    r->ask = NULL;
    r->job = NULL;
    r->finish = NULL;
    r->bounce = NULL;
    r->text = NULL;
    r->text_bytes = 0;
    r->status = LARDER_OK;
    r->prev = r->next_waiting = NULL;
    r->begin_ns = ldr_server_now(s->server);
    s->requests++;
    __atomic_add_fetch(&s->server->request_count, 1, __ATOMIC_RELAXED);
    return r;
}

bool ldr_request_grow(ldr_request_t *r, size_t bytes)
{
    if (bytes <= r->capacity) {
        return true;
    }
    size_t capacity = ldr_max64(bytes, 4096);
    uint8_t *more = ldr_alloc(capacity);
    if (more == NULL) {
        return false;
    }
    if (r->capacity > 0) {
        memcpy(more, r->bytes, r->capacity);
    }
    ldr_free(r->bytes);
    r->bytes = more;
    r->capacity = capacity;
    return true;
}

bool ldr_request_batch(ldr_request_t *r, uint32_t count)
{
    if (count > r->item_capacity) {
        uint32_t capacity =
            count < ITEM_CAPACITY_MIN ? ITEM_CAPACITY_MIN : count;

        ldr_free(r->items);
        ldr_free(r->results);
        ldr_free(r->loads);
        ldr_free(r->shard_of);
        ldr_free(r->works);
        ldr_free(r->wants);
        r->items = ldr_alloc(capacity * sizeof(*r->items));
        r->results = ldr_alloc(capacity * sizeof(*r->results));
        r->loads = ldr_alloc(capacity * sizeof(*r->loads));
        r->shard_of = ldr_alloc(capacity * sizeof(*r->shard_of));
        r->works = ldr_alloc(capacity * sizeof(*r->works));
        r->wants = ldr_alloc(capacity * sizeof(*r->wants));
        r->item_capacity = r->items != NULL && r->results != NULL &&
                                   r->loads != NULL && r->shard_of != NULL &&
                                   r->works != NULL && r->wants != NULL
                               ? capacity
                               : 0;
        if (r->item_capacity == 0) {
            return false;
        }
    }
    memset(r->items, 0, count * sizeof(*r->items));
    memset(r->results, 0, count * sizeof(*r->results));
    memset(r->works, 0, count * sizeof(*r->works));
    for (uint32_t i = 0; i < count; i++) {
        r->shard_of[i] = LDR_NIL;
    }
    r->count = count;
    return true;
}

static void request_destroy(ldr_request_t *r)
{
    ldr_free(r->bytes);
    ldr_free(r->items);
    ldr_free(r->results);
    ldr_free(r->loads);
    ldr_free(r->shard_of);
    ldr_free(r->works);
    ldr_free(r->wants);
    ldr_free(r->iov);
    ldr_free(r);
}

void ldr_request_free(ldr_request_t *r)
{
    ldr_server_loop_t *home = r->home;

    LDR_DEBUG_ASSERT(ldr_loop_is_here(&home->loop));
    if (!LDR_HOLDS(!r->idle && !r->queued)) {
        return;
    }
    LDR_ASSERT(r->session == NULL || r->session->requests > 0);
    if (r->session != NULL && r->session->requests-- == LDR_SESSION_REQUESTS) {
        ldr_session_warm(r->session); /* it may go on */
        ldr_loop_post(&home->loop, &r->session->again);
    }
    uint64_t under_way =
        __atomic_fetch_sub(&home->server->request_count, 1, __ATOMIC_RELAXED);
    LDR_ASSERT(under_way > 0);
    ldr_free(r->text);
    r->text = NULL;
    if (home->free_count >= FREE_MAX || r->capacity > KEEP_BYTES ||
        r->item_capacity > ITEM_CAPACITY_MIN) {
        request_destroy(r);
        return;
    }
    r->session = NULL;
    r->idle = true;
    r->free_next = home->free_requests;
    home->free_requests = r;
    home->free_count++;
}

void ldr_requests_destroy(ldr_server_loop_t *home)
{
    while (home->free_requests != NULL) {
        ldr_request_t *r = home->free_requests;

        home->free_requests = r->free_next;
        request_destroy(r);
    }
}

/* ---- replies ---- */

/* Counts the request, and charges its tenant for the payload. */
static void request_record(ldr_request_t *r, larder_status_t st)
{
    ldr_session_t *s = r->session;

    LDR_ASSERT(!r->idle);
    ldr_request_note_t n = {
        .opcode = r->frame.opcode,
        .transport = (uint8_t)ldr_session_transport(s),
        .tenant = r->tenant != NULL ? r->tenant->number : LDR_NIL,
        .space = r->space,
        .status = st,
        .bytes_in = r->bytes_in,
        .bytes_out = r->bytes_out,
        .ns = ldr_server_now(s->server) - r->begin_ns,
    };

    ldr_metrics_request(s->server->metrics, &n);
    if (r->tenant != NULL) {
        ldr_server_tenant_moved(r->tenant, r->bytes_in + r->bytes_out);
    }
}

/* Sends a composed frame: in home->reply, or with pieces of the arena. */
static void send_frame(ldr_session_t *s, ldr_channel_t *via, size_t bytes,
                       ldr_out_t *out)
{
    if (out == NULL) {
        out = ldr_session_out(s, via, s->home->reply, bytes);
        if (out == NULL) { /* it went out as it was */
            return;
        }
    }
    ldr_session_queue(s, via, out);
}

static size_t compose(ldr_request_t *r, larder_status_t st, const void *body,
                      size_t bytes, uint32_t payload)
{
    uint8_t *reply = r->home->reply;

    LDR_ASSERT(!r->idle);
    ldr_frame_t frame = {
        .opcode = r->frame.opcode,
        .flags = LDR_FRAME_REPLY,
        .id = r->frame.id,
        .epoch = r->session->epoch,
        .body = (uint32_t)bytes,
        .payload = payload,
        .arg = (uint32_t)(int32_t)st,
    };

    if (bytes > 0 && body != reply + LDR_FRAME_BYTES) {
        memcpy(reply + LDR_FRAME_BYTES, body, bytes);
    }
    ldr_frame_put(reply, &frame, !r->via->stream.ops->messages);
    return LDR_FRAME_BYTES + bytes;
}

void ldr_reply(ldr_request_t *r, larder_status_t st, const void *body,
               size_t bytes)
{
    ldr_session_t *s = r->session;

    request_record(r, st);
    if ((r->frame.flags & LDR_FRAME_SILENT) == 0) {
        send_frame(s, r->via, compose(r, st, body, bytes, 0), NULL);
    }
    ldr_request_free(r);
}

void ldr_reply_fail(ldr_request_t *r, larder_status_t st)
{
    char text[LDR_TEXT_MAX];
    size_t bytes = strlen(ldr_fail_text());

    bytes = bytes < sizeof(text) ? bytes : sizeof(text);
    memcpy(text, ldr_fail_text(), bytes);
    ldr_reply(r, st, text, bytes);
}

void ldr_reply_fds(ldr_request_t *r, const void *body, size_t bytes,
                   const int *fds, unsigned fd_count)
{
    ldr_session_t *s = r->session;
    ldr_out_t *out = ldr_alloc(sizeof(*out));
    size_t all = compose(r, LARDER_OK, body, bytes, 0);

    request_record(r, LARDER_OK);
    if (out != NULL) {
        out->head = ldr_alloc(all);
    }
    if (out == NULL || out->head == NULL) {
        ldr_free(out);
        for (unsigned i = 0; i < fd_count; i++) {
            close(fds[i]);
        }
        ldr_request_free(r);
        ldr_session_end(s, "not enough memory");
        return;
    }
    memcpy(out->head, r->home->reply, all);
    out->head_bytes = out->left = all;
    memcpy(out->fds, fds, fd_count * sizeof(*fds));
    out->fd_count = fd_count;
    ldr_session_queue(s, &s->socket, out);
    ldr_request_free(r);
}

void ldr_session_notify(ldr_session_t *s, ldr_opcode_t opcode, const void *body,
                        size_t bytes)
{
    uint8_t *reply = s->home->reply;
    ldr_frame_t frame = {
        .opcode = (uint16_t)opcode,
        .epoch = s->epoch,
        .body = (uint32_t)bytes,
        .arg = LARDER_FOREVER,
    };

    memcpy(reply + LDR_FRAME_BYTES, body, bytes);
    ldr_frame_put(reply, &frame, true);
    send_frame(s, &s->socket, LDR_FRAME_BYTES + bytes, NULL);
}

void ldr_session_pulse(ldr_session_t *s)
{
    ldr_frame_t frame = {
        .opcode = LDR_OP_PING,
        .flags = LDR_FRAME_REPLY,
        .epoch = s->epoch,
        .arg = LARDER_OK,
    };

    ldr_frame_put(s->home->reply, &frame, true);
    send_frame(s, &s->socket, LDR_FRAME_BYTES, NULL);
}

/* ---- results ---- */

/* The item's segments behind those that are there, if they fit. */
static bool put_segs(ldr_request_t *r, uint32_t i, uint32_t *segs_p)
{
    ldr_session_t *s = r->session;
    ldr_seg_t segs[LDR_READ_IOV];
    uint32_t n =
        s->bounce != NULL
            ? ldr_bounce_segs(s, r->results[i].lease, segs, LDR_READ_IOV)
            : ldr_node_segs(s->server->node, r->shard_of[i], segs,
                            LDR_READ_IOV);
    size_t rows = LDR_FRAME_BYTES + LDR_RESULTS_HEAD_BYTES +
                  (size_t)r->count * LDR_RESULT_BYTES;
    size_t at = rows + (size_t)*segs_p * LDR_SEG_BYTES;

    if (n > LDR_READ_IOV ||
        at + (size_t)n * LDR_SEG_BYTES > LDR_FRAME_BYTES + LDR_BODY_MAX) {
        return false;
    }
    for (uint32_t k = 0; k < n; k++) {
        ldr_put_seg(r->home->reply + at + (size_t)k * LDR_SEG_BYTES, &segs[k]);
    }
    r->results[i].seg_count = n;
    *segs_p += n;
    return true;
}

/* What a result leads to does not fit the reply: the client asks again. */
static void take_back(ldr_request_t *r, uint32_t i)
{
    ldr_hold_t *hold = ldr_hold_find(
        r->session, r->results[i].lease,
        r->frame.opcode == LDR_OP_LEASE ? LDR_HOLD_LEASE : LDR_HOLD_RESERVE);

    if (hold != NULL) {
        ldr_hold_undo(r->session, hold);
    }
    r->results[i] = (ldr_result_row_t){.status = LARDER_PENDING};
}

/* The pieces of the arena that a GET's reply carries; their chunks stay held
 * until they are sent. NULL: not enough memory. */
static ldr_out_t *payload_out(ldr_request_t *r, uint64_t *payload_p)
{
    ldr_node_t *node = r->session->server->node;
    ldr_out_t *out = ldr_alloc(sizeof(*out));
    uint32_t pieces = 0, chunks = 0;

    for (uint32_t i = 0; i < r->count; i++) {
        if (r->shard_of[i] != LDR_NIL) {
            pieces += ldr_node_iov(node, r->shard_of[i], NULL, 0);
            chunks++;
        }
    }
    if (out == NULL) {
        return NULL;
    }
    out->pieces = ldr_alloc(pieces * sizeof(*out->pieces));
    out->chunks = ldr_alloc(chunks * sizeof(*out->chunks));
    if (out->pieces == NULL || out->chunks == NULL) {
        ldr_out_free(r->session, out);
        return NULL;
    }
    out->unsent.at = out->pieces;
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->shard_of[i] != LDR_NIL) {
            uint32_t had = out->unsent.count;

            out->unsent.count += ldr_node_iov(node, r->shard_of[i],
                                              out->pieces + had, pieces - had);
            out->chunks[out->chunk_count++] = r->loads[i].chunk;
            *payload_p += r->results[i].length;
        }
    }
    out->left = *payload_p;
    return out;
}

void ldr_reply_results(ldr_request_t *r, bool segs, bool payload)
{
    ldr_session_t *s = r->session;
    uint8_t *body = r->home->reply + LDR_FRAME_BYTES;
    uint32_t seg_count = 0;
    uint64_t bytes_out = 0;
    ldr_out_t *out = NULL;

    if (payload) {
        out = payload_out(r, &bytes_out);
        if (out == NULL) {
            for (uint32_t i = 0; i < r->count; i++) {
                if (r->shard_of[i] != LDR_NIL) {
                    ldr_node_release(s->server->node, r->loads[i].chunk);
                }
            }
            ldr_reply_fail(r, ldr_fail(LARDER_E_NO_MEMORY,
                                       "not enough memory in the daemon"));
            return;
        }
        r->bytes_out = bytes_out;
    }
    bool full = false; /* once one did not fit, order says: none after it */
    for (uint32_t i = 0; segs && i < r->count; i++) {
        if (r->results[i].status != LARDER_OK) {
            continue;
        }
        full = full || !put_segs(r, i, &seg_count);
        if (full) {
            take_back(r, i);
        } else if (r->frame.opcode == LDR_OP_LEASE) {
            r->bytes_out += r->results[i].length;
        } else {
            r->bytes_in += r->results[i].length;
        }
    }
    size_t at = ldr_put_results(body, r->count, seg_count);
    for (uint32_t i = 0; i < r->count; i++) {
        ldr_put_result(body + at, &r->results[i]);
        at += LDR_RESULT_BYTES;
    }
    at += (size_t)seg_count * LDR_SEG_BYTES;
    if (out == NULL) {
        ldr_reply(r, LARDER_OK, body, at);
        return;
    }
    request_record(r, LARDER_OK);
    out->head_bytes = compose(r, LARDER_OK, body, at, (uint32_t)bytes_out);
    out->head = ldr_alloc(out->head_bytes);
    if (out->head == NULL) {
        ldr_out_free(s, out);
        ldr_request_free(r);
        ldr_session_end(s, "not enough memory");
        return;
    }
    memcpy(out->head, r->home->reply, out->head_bytes);
    out->left += out->head_bytes;
    ldr_session_queue(s, &s->socket, out);
    ldr_request_free(r);
}

/* ---- beginning ---- */

static const ldr_handler_t handlers[] = {
    [LDR_OP_HELLO] = ldr_handle_hello,
    [LDR_OP_AUTH] = ldr_handle_auth,
    [LDR_OP_PING] = ldr_handle_ping,
    [LDR_OP_ATTACH] = ldr_handle_attach,
    [LDR_OP_EXTENT] = ldr_handle_extent,
    [LDR_OP_REVOKED] = ldr_handle_revoked,
    [LDR_OP_SPACE] = ldr_handle_space,
    [LDR_OP_RESET] = ldr_handle_reset,
    [LDR_OP_MATCH] = ldr_handle_match,
    [LDR_OP_ANNOUNCE] = ldr_handle_announce,
    [LDR_OP_STAGE] = ldr_handle_stage,
    [LDR_OP_HANDOFF] = ldr_handle_handoff,
    [LDR_OP_LIST] = ldr_handle_list,
    [LDR_OP_DESCRIBE] = ldr_handle_describe,
    [LDR_OP_EXISTS] = ldr_handle_exists,
    [LDR_OP_REMOVE] = ldr_handle_remove,
    [LDR_OP_FLUSH] = ldr_handle_flush,
    [LDR_OP_STATS] = ldr_handle_stats,
    [LDR_OP_METRICS] = ldr_handle_metrics,
    [LDR_OP_REPORT] = ldr_handle_report,
    [LDR_OP_GET] = ldr_handle_get,
    [LDR_OP_PUT] = ldr_handle_put,
    [LDR_OP_LEASE] = ldr_handle_lease,
    [LDR_OP_RELEASE] = ldr_handle_release,
    [LDR_OP_RESERVE] = ldr_handle_reserve,
    [LDR_OP_COMMIT] = ldr_handle_commit,
    [LDR_OP_ADMIN] = ldr_handle_admin,
};

void ldr_request_bad(ldr_request_t *r, ldr_refusal_t refusal, const char *why)
{
    ldr_session_t *s = r->session;

    ldr_metrics_refused(s->server->metrics, refusal);
    ldr_request_free(r);
    ldr_session_end(s, why);
}

/* Whether its reply gives something that is then the client's to give back or
 * to use: it cannot be unwanted. */
static bool reply_matters(unsigned opcode)
{
    switch (opcode) {
    case LDR_OP_HELLO:
    case LDR_OP_AUTH:
    case LDR_OP_ATTACH:
    case LDR_OP_EXTENT:
    case LDR_OP_SPACE:
    case LDR_OP_GET:
    case LDR_OP_LEASE:
    case LDR_OP_STAGE:
    case LDR_OP_RESERVE:
        return true;
    default:
        return false;
    }
}

void ldr_request_begin(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    const ldr_frame_t *f = &r->frame;
    bool hello = f->opcode == LDR_OP_HELLO || f->opcode == LDR_OP_AUTH;
    bool messages = r->via->stream.ops->messages;
    bool before = hello || (f->opcode == LDR_OP_ADMIN && s->admin);
    ldr_handler_t handler = f->opcode < sizeof(handlers) / sizeof(handlers[0])
                                ? handlers[f->opcode]
                                : NULL;

    __atomic_store_n(&r->home->asked_ns, r->begin_ns, __ATOMIC_RELAXED);
    r->body = r->bytes + LDR_FRAME_BYTES;
    r->deadline_ns = f->arg == LARDER_FOREVER
                         ? UINT64_MAX
                         : r->begin_ns + (uint64_t)f->arg * 1000000u;
    if (s->state == LDR_SESSION_NEW && !before) {
        ldr_metrics_auth_fail(s->server->metrics, LDR_AUTH_FAIL_BEFORE);
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED,
                        "a request before it was let in");
    } else if (handler == NULL || (f->flags & LDR_FRAME_REPLY) != 0) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "an unknown opcode");
    } else if (f->payload != 0 && (f->opcode != LDR_OP_PUT || messages)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED,
                        "payload with a request that has none");
    } else if (s->state == LDR_SESSION_OPEN && f->epoch != s->epoch) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED,
                        "a request of another session");
    } else if ((s->state == LDR_SESSION_OPEN && hello) ||
               (messages &&
                (f->opcode == LDR_OP_ATTACH || f->opcode == LDR_OP_EXTENT))) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED,
                        "a request at the wrong time or place");
    } else if ((f->flags & LDR_FRAME_SILENT) != 0 && reply_matters(f->opcode)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED,
                        "a silent request whose reply matters");
    } else if (!ldr_ask_first(r, handler)) {
        handler(r);
    }
}

bool ldr_request_asks(const ldr_request_t *r)
{
    return (r->flags & LDR_BATCH_AGAIN) == 0;
}

/* ---- waiting ---- */

void ldr_request_later(ldr_request_t *r, void (*go_on)(ldr_request_t *r))
{
    LDR_ASSERT(r->session->begun == NULL);
    r->go_on = go_on;
    r->session->begun = r;
    if (r->via->stream.ops->messages) { /* who reads bytes looks for it */
        ldr_turn_wait(r->session);
    }
}

void ldr_request_go_on(ldr_session_t *s)
{
    ldr_request_t *r = s->begun;

    s->begun = NULL;
    r->go_on(r);
    if (s->begun == NULL) {
        ldr_session_warm(s); /* its ring was left as it was */
    }
}

void ldr_request_wait(ldr_request_t *r)
{
    ldr_session_t *s = r->session;

    LDR_ASSERT(!r->idle && s->waiting != r && r->prev == NULL);
    r->prev = NULL;
    r->next_waiting = s->waiting;
    if (s->waiting != NULL) {
        s->waiting->prev = r;
    }
    s->waiting = r;
    ldr_server_due(s->home, r->parked ? ldr_server_now(s->server) + LDR_PARK_NS
                                      : r->deadline_ns);
}

void ldr_request_unwait(ldr_request_t *r)
{
    LDR_ASSERT(r->prev != NULL ? r->prev->next_waiting == r
                               : r->session->waiting == r);
    if (r->prev != NULL) {
        r->prev->next_waiting = r->next_waiting;
    } else {
        r->session->waiting = r->next_waiting;
    }
    if (r->next_waiting != NULL) {
        r->next_waiting->prev = r->prev;
    }
    r->prev = r->next_waiting = NULL;
}

void ldr_request_expire(ldr_request_t *r, larder_status_t why)
{
    if (r->job != NULL) {
        return; /* it ends by its own deadline */
    }
    if (r->ask != NULL) {
        ldr_ask_expire(r);
        return;
    }
    if (r->frame.opcode == LDR_OP_LEASE || r->frame.opcode == LDR_OP_GET) {
        ldr_loads_expire(r, why);
    } else if (r->frame.opcode == LDR_OP_STAGE) {
        ldr_stage_expire(r, why);
    } else {
        r->status = why;
        ldr_save_again(r);
    }
}
