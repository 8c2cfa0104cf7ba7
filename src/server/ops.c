/*
 * The requests that move no payload. ldr_handle_*() and finish_*() run in the
 * thread of the session's loop, job_*() in a job's thread, where they may wait
 * for a disk. A request is in one of the two at a time, so it needs no lock.
 */
#include <string.h>

#include "base/mem.h"
#include "node/list.h"
#include "server/catalog.h"
#include "server/session.h"
#include "server/monitor.h"
#include "server/trace.h"

#define METRICS_BYTES_MAX ((size_t)256 << 10)
#define ROWS_MAX 256u /* that one request looks at in one go */

static void job(ldr_request_t *r, void (*run)(ldr_request_t *r),
                void (*finish)(ldr_request_t *r))
{
    r->job = run;
    r->finish = finish;
    if (!ldr_job(r)) {
        ldr_job_refuse(r);
    }
}

/* The error text of the job's thread goes along to the loop's. */
static void keep_text(ldr_request_t *r)
{
    size_t bytes = strlen(ldr_fail_text());

    r->text = r->status != LARDER_OK && bytes > 0 ? ldr_alloc(bytes) : NULL;
    if (r->text != NULL) {
        memcpy(r->text, ldr_fail_text(), bytes);
        r->text_bytes = bytes;
    }
}

static void finish_status(ldr_request_t *r)
{
    ldr_reply(r, r->status, r->text,
              r->text_bytes < LDR_TEXT_MAX ? r->text_bytes : LDR_TEXT_MAX);
}

static void finish_results(ldr_request_t *r)
{
    ldr_reply_results(r, false, false);
}

bool ldr_request_space(ldr_request_t *r, uint32_t space)
{
    ldr_session_t *s = r->session;

    if (space >= s->space_count) {
        ldr_reply_fail(r, ldr_fail(LARDER_E_SPACE,
                                   "space %u was not opened in this session",
                                   space));
        return false;
    }
    r->space = s->spaces[space].number;
    r->shards = s->spaces[space].shards;
    return true;
}

/* ---- spaces ---- */

static void job_space(ldr_request_t *r)
{
    ldr_fail_clear();
    r->status = ldr_node_space(r->home->server->node, &r->info, &r->number);
    keep_text(r);
}

static void finish_space(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    uint8_t body[LDR_NUMBER_BYTES];

    if (r->status == LARDER_OK && s->spaces == NULL) {
        s->spaces = ldr_alloc(LDR_SESSION_SPACES * sizeof(*s->spaces));
    }
    if (r->status == LARDER_OK && s->spaces == NULL) {
        r->status = LARDER_E_NO_MEMORY;
    }
    uint32_t at = 0;
    while (r->status == LARDER_OK && at < s->space_count &&
           (s->spaces[at].number != r->number ||
            s->spaces[at].shards != r->shards)) {
        at++;
    }
    if (at == LDR_SESSION_SPACES) {
        r->status = LARDER_E_LIMIT;
    }
    if (r->status != LARDER_OK) {
        finish_status(r);
        return;
    }
    if (at == s->space_count) {
        s->spaces[s->space_count++] =
            (ldr_session_space_t){r->number, r->shards};
    }
    ldr_reply(r, LARDER_OK, body, ldr_put_number(body, at));
}

void ldr_handle_space(ldr_request_t *r)
{
    ldr_space_msg_t m;

    if (!ldr_get_space(r->body, r->frame.body, &m) || m.shards < 1 ||
        m.shards > LARDER_SHARDS_MAX) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed space");
        return;
    }
    r->info = (ldr_space_info_t){.tenant = r->tenant->config.name};
    memcpy(r->info.space_id, m.id, sizeof(r->info.space_id));
    memcpy(r->info.tenant_check, m.check, sizeof(r->info.tenant_check));
    r->info.has_key = true;
    memcpy(r->info.label, m.label, sizeof(r->info.label));
    memcpy(r->info.key, m.key, sizeof(r->info.key));
    r->shards = m.shards;
    /* A disk that hangs must not keep those out who need only memory. */
    if (ldr_node_space_known(r->home->server->node, &r->info, &r->number)) {
        r->status = LARDER_OK;
        finish_space(r);
    } else {
        job(r, job_space, finish_space);
    }
}

static void job_reset(ldr_request_t *r)
{
    ldr_fail_clear();
    r->status = ldr_node_reset(r->home->server->node, r->space, r->deadline_ns);
    keep_text(r);
}

void ldr_handle_reset(ldr_request_t *r)
{
    uint32_t space;

    if (!ldr_get_number(r->body, r->frame.body, &space)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed reset");
    } else if (ldr_request_space(r, space)) {
        job(r, job_reset, finish_status);
    }
}

/* ---- looking ---- */

void ldr_handle_announce(ldr_request_t *r)
{
    ldr_announce_msg_t m;

    if (!ldr_get_announce(r->body, r->frame.body, &m)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed announce");
        return;
    }
    if (!ldr_request_space(r, m.space)) {
        return;
    }
    ldr_announce_t a = {
        .keys = (const larder_key_t *)m.keys,
        .count = m.count,
        .chunk_tokens = m.chunk_tokens,
        .tokens = m.tokens,
        .hint = m.hint,
        .id = m.id,
        .saves = m.saves != 0,
    };
    ldr_trace_request(r->home->server->trace, r->space, &a);
    ldr_node_announce(r->home->server->node, r->space, &a);
    ldr_reply(r, LARDER_OK, NULL, 0);
}

void ldr_handle_describe(ldr_request_t *r)
{
    ldr_server_t *server = r->home->server;
    ldr_describe_msg_t m;

    if (!ldr_get_describe(r->body, r->frame.body, &m)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed description");
        return;
    }
    if (!ldr_request_space(r, m.space)) {
        return;
    }
    larder_status_t st =
        server->catalog != NULL
            ? ldr_catalog_describe(server->catalog, r->tenant->number, r->space,
                                   r->shards, &m)
            : ldr_fail(LARDER_E_UNSUPPORTED, "neither query nor events is on");
    if (st != LARDER_OK) {
        ldr_reply_fail(r, st);
        return;
    }
    ldr_reply(r, LARDER_OK, NULL, 0);
}

static void take_result(ldr_request_t *r, uint32_t i)
{
    r->results[i].status = r->items[i].status;
    r->results[i].cause = r->items[i].cause;
    r->results[i].length = r->items[i].length;
}

bool ldr_save_present(ldr_request_t *r, uint32_t i)
{
    ldr_node_t *node = r->home->server->node;
    ldr_store_t *store = &node->store;
    const larder_item_t *item = &r->items[i];
    larder_tier_t tier;
    larder_cause_t cause;
    uint32_t bytes;

    ldr_node_lock(node);
    ldr_name_t name = ldr_store_name(store, r->space, item->group, item->key);
    uint32_t entry =
        ldr_store_find(store, &name, LDR_NIL, ldr_wall_s(node->clock), &cause);
    ldr_sought_t sought = {&name, entry, item->shard, false};
    bool present =
        node->mode == LDR_MODE_ON &&
        ldr_node_usable(node, &sought, &tier, &bytes, &cause) &&
        (tier == LARDER_TIER_DRAM || node->tiers[tier - 1]->ops->keeps);
    uint32_t shard = present && entry != LDR_NIL
                         ? ldr_store_resident(store, entry, item->shard)
                         : LDR_NIL;
    if (shard != LDR_NIL) {
        ldr_node_used(node, shard);
    }
    ldr_node_unlock(node);
    return present;
}

/* Asked before a save by TCP, so that what is present is not sent: that is a
 * save that found it. */
static void ask_save(ldr_request_t *r, uint32_t i)
{
    bool present = ldr_save_present(r, i);

    r->results[i].status = present ? LARDER_OK : LARDER_MISS;
    if (present) {
        ldr_node_count_save(r->home->server->node, r->space, LARDER_PRESENT);
    }
}

/* Not all at once: others have work for the loop as well. */
static void exists_on(ldr_request_t *r)
{
    uint32_t end =
        r->count - r->next > ROWS_MAX ? r->next + ROWS_MAX : r->count;

    for (; r->next < end; r->next++) {
        uint32_t i = r->next;

        if (r->items[i].key == NULL) {
            continue; /* refused for its fields */
        }
        if ((r->flags & LDR_BATCH_QUIET) != 0) {
            ask_save(r, i);
        } else {
            ldr_target_t target = {r->space, r->shards, &r->items[i]};

            ldr_node_exists(r->home->server->node, &target,
                            ldr_request_asks(r));
            take_result(r, i);
        }
    }
    if (r->next < r->count) {
        ldr_request_later(r, exists_on);
    } else {
        ldr_reply_results(r, false, false);
    }
}

void ldr_handle_exists(ldr_request_t *r)
{
    if (ldr_request_names(r)) {
        exists_on(r);
    }
}

/* ---- removing, reporting ---- */

/* Items that cannot be divide the batch: what is good goes in runs, of no more
 * than a tier takes at once: the node is locked meanwhile. */
static void job_remove(ldr_request_t *r)
{
    ldr_stop_t stop = {&r->home->server->job_stop, r->deadline_ns};
    uint32_t begin = 0;

    for (uint32_t i = 0; i <= r->count; i++) {
        bool good = i < r->count && r->items[i].key != NULL;

        if (good && i - begin < LDR_REMOVE_MAX) {
            continue;
        }
        if (i > begin) {
            ldr_node_remove(r->home->server->node, r->space, r->items + begin,
                            i - begin, &stop);
            for (uint32_t k = begin; k < i; k++) {
                take_result(r, k);
            }
        }
        begin = good ? i : i + 1;
    }
}

void ldr_handle_remove(ldr_request_t *r)
{
    if (ldr_request_names(r)) {
        job(r, job_remove, finish_results);
    }
}

/* A client found these wrong: the daemon looks for itself, and drops what
 * really is. Each is read whole, so many may take long. */
static void job_report(ldr_request_t *r)
{
    ldr_node_t *node = r->home->server->node;
    ldr_stop_t stop = {&r->home->server->job_stop, r->deadline_ns};

    for (uint32_t i = 0; i < r->count; i++) {
        ldr_load_t load = {.target = {r->space, r->shards, &r->items[i]}};

        if (r->items[i].key == NULL) {
            continue;
        }
        if (ldr_host_stopped(&node->host, &stop) != LARDER_OK) {
            r->results[i].status = LARDER_E_DEADLINE;
            continue;
        }
        if (!ldr_load_begin(node, &load)) {
            ldr_node_reads_go(node);
            ldr_load_wait(node, &load, r->deadline_ns);
        }
        if (load.status == LARDER_OK) {
            ldr_load_check(node, &load);
        }
        ldr_load_end(node, &load, false);
        r->results[i].status = load.status;
        r->results[i].cause = load.cause;
    }
}

void ldr_handle_report(ldr_request_t *r)
{
    if (!ldr_request_names(r)) {
        return;
    }
    ldr_metrics_event(r->home->server->metrics, LDR_EVENT_REPORTS, r->count);
    job(r, job_report, finish_results);
}

/* ---- the rest ---- */

/* The daemon may be told to end meanwhile: that is a deadline, too. */
static void job_flush(ldr_request_t *r)
{
    ldr_server_t *server = r->home->server;
    ldr_stop_t stop = {&server->job_stop, r->deadline_ns};

    ldr_fail_clear();
    r->status = ldr_node_flush(server->node, (larder_tier_t)r->number, &stop);
    if (r->status == LARDER_E_CANCELED) {
        r->status = LARDER_E_DEADLINE;
    }
    keep_text(r);
}

void ldr_handle_flush(ldr_request_t *r)
{
    if (!ldr_get_number(r->body, r->frame.body, &r->number)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed flush");
    } else if (r->number >= LARDER_TIER_COUNT) {
        ldr_reply_fail(r, ldr_fail(LARDER_E_UNSUPPORTED,
                                   "tier %u: this daemon (%s) has none such",
                                   r->number, larder_version()));
    } else {
        job(r, job_flush, finish_status);
    }
}

/* Figures of the whole node are the operator's; others see their own. */
static uint32_t sees(const ldr_request_t *r)
{
    return r->session->admin ? LDR_NIL : r->tenant->number;
}

void ldr_handle_stats(ldr_request_t *r)
{
    larder_stats_t stats;
    uint8_t body[LDR_STATS_BYTES_MAX];

    if (r->frame.body != 0) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed stats");
        return;
    }
    ldr_node_stats(r->home->server->node, sees(r), &stats);
    ldr_reply(r, LARDER_OK, body, ldr_put_stats(body, &stats));
}

static void job_metrics(ldr_request_t *r)
{
    ldr_server_t *server = r->home->server;

    r->text = ldr_alloc(METRICS_BYTES_MAX);
    if (r->text == NULL) {
        r->status = ldr_fail(LARDER_E_NO_MEMORY, "not enough memory");
        return;
    }
    r->text_bytes = ldr_server_metrics_text(
        server->node, server->metrics, r->number, r->text, METRICS_BYTES_MAX);
    if (r->text_bytes > METRICS_BYTES_MAX - 1) {
        r->text_bytes = METRICS_BYTES_MAX - 1;
    }
}

static void finish_text(ldr_request_t *r)
{
    ldr_reply(r, r->status, r->text, r->text_bytes);
}

void ldr_handle_metrics(ldr_request_t *r)
{
    if (r->frame.body != 0) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed metrics");
        return;
    }
    r->number = sees(r);
    job(r, job_metrics, finish_text);
}

/* One page. Other tenants' are not seen, whoever asks. */
static void job_list(ldr_request_t *r)
{
    ldr_node_t *node = r->home->server->node;
    ldr_stop_t stop = {&r->home->server->job_stop, r->deadline_ns};
    ldr_listed_t *rows = ldr_alloc(LDR_LIST_ROWS * sizeof(*rows));
    size_t room = LDR_LIST_HEAD_BYTES + LDR_LIST_ROWS * LDR_LIST_ROW_BYTES;
    uint32_t count = 0, now_s = ldr_wall_s(node->clock);

    ldr_fail_clear();
    r->text = rows != NULL ? ldr_alloc(room) : NULL;
    r->status = r->text != NULL
                    ? ldr_node_list(node, r->tenant->number, &r->number, rows,
                                    &count, &stop)
                    : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory");
    if (r->status != LARDER_OK) {
        ldr_free(r->text);
        keep_text(r);
        ldr_free(rows);
        return;
    }
    uint8_t *at = (uint8_t *)r->text;
    r->text_bytes = ldr_put_list(at, r->number, count);
    for (uint32_t i = 0; i < count; i++) {
        const ldr_listed_t *l = &rows[i];
        ldr_list_row_t row = {
            .key = l->key,
            .group = l->group,
            .shard = l->shard,
            .shards = l->shards,
            .flags = (uint16_t)((l->has_key ? LDR_LIST_KEY : 0) |
                                (l->dram ? LDR_LIST_DRAM : 0) |
                                (l->ssd ? LDR_LIST_SSD : 0) |
                                (l->pinned ? LDR_LIST_PINNED : 0)),
            .length = l->length,
            .age_s = l->written_s != 0 && now_s > l->written_s
                         ? now_s - l->written_s
                         : 0,
            .expires_s = l->expires_s,
            .depth = l->depth,
        };

        memcpy(row.space, l->space_id, sizeof(row.space));
        memcpy(row.label, l->label, sizeof(row.label));
        ldr_put_listed(at + r->text_bytes, &row);
        r->text_bytes += LDR_LIST_ROW_BYTES;
    }
    ldr_free(rows);
}

static void finish_list(ldr_request_t *r)
{
    if (r->status == LARDER_OK) {
        finish_text(r);
    } else {
        finish_status(r);
    }
}

void ldr_handle_list(ldr_request_t *r)
{
    if (!ldr_get_number(r->body, r->frame.body, &r->number)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed list");
    } else {
        job(r, job_list, finish_list);
    }
}

void ldr_handle_ping(ldr_request_t *r)
{
    if (r->frame.body != 0) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed ping");
    } else {
        ldr_reply(r, LARDER_OK, NULL, 0);
    }
}
