/*
 * Opening and closing a handle; spaces, chains, matches, and the small calls.
 *
 * State: larder_t (client.h). lar->lock guards its lists of spaces and leases;
 * it is never held while the backend is called. fork_count is written by the
 * child of a fork only, before it has a second thread.
 *
 * Invariants
 *  1. A space is in lar->spaces from before the backend hears of it until after
 *     it was closed, and has a slot that no other space of the handle has.
 *  2. Closing a handle sets `lar` of its spaces and leases to NULL: they answer
 *     E_CLOSED from then on, and are still freed by their owner.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/grow.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/thread.h"
#include "client/client.h"
#include "node/stage.h"
#include "client/remote.h"

#define DESCRIPTOR_MAX 65536u
#define TENANT_MAX 63u
#define CHUNK_TOKENS_MAX 65536u
#define RUN_BYTES ((uint64_t)16 << 20) /* that a cluster places as one */
#define CHUNK_TOKENS_DEFAULT 256u

/* ---- checks ---- */

/* Counts forks on the child's side: a handle from before is the parent's. */
static uint64_t fork_count;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void forked(void)
{
    fork_count++;
}

static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, forked);
}

/* Says it once for each handle: its owner may read only that handle's log. */
static larder_status_t poisoned(larder_t *lar)
{
    if (!__atomic_exchange_n(&lar->poison_logged, true, __ATOMIC_RELAXED)) {
        ldr_error(lar->log, "%s; this process gets no more answers from larder",
                  ldr_broken_text());
    }
    return ldr_fail(LARDER_E_POISONED,
                    "%s: restart this process, and report the defect",
                    ldr_broken_text());
}

larder_status_t ldr_handle_check(larder_t *lar)
{
    ldr_fail_clear();
    if (lar == NULL) {
        return ldr_fail(LARDER_E_INVALID, "the handle is NULL");
    }
    if (lar->fork_count != fork_count) {
        return ldr_fail(LARDER_E_FORKED,
                        "the handle was opened by the parent process: open "
                        "one of your own");
    }
    return ldr_broken_text() == NULL ? LARDER_OK : poisoned(lar);
}

larder_status_t ldr_space_check(const larder_space_t *space)
{
    if (space == NULL) {
        return ldr_fail(LARDER_E_INVALID, "the space is NULL");
    }
    if (space->lar == NULL) {
        return ldr_fail(LARDER_E_CLOSED, "the space's handle is closed");
    }
    return ldr_handle_check(space->lar);
}

uint64_t ldr_deadline(const larder_t *lar, uint32_t timeout_ms)
{
    if (timeout_ms == LARDER_FOREVER) {
        return UINT64_MAX;
    }
    if (timeout_ms == 0) {
        timeout_ms = (uint32_t)lar->options->timeout_ms;
    }
    return ldr_now_ns(lar->clock) + (uint64_t)timeout_ms * 1000000u;
}

const char *larder_last_error(void)
{
    return ldr_fail_text();
}

/* ---- open and close ---- */

static void handle_free(larder_t *lar)
{
    if (lar != NULL) {
        explicit_bzero(lar->secret, sizeof(lar->secret));
        ldr_free(lar);
    }
}

/* A handle without a backend, with the secret of its spaces. */
static larder_status_t handle_new(const ldr_options_t *options,
                                  larder_t **lar_p)
{
    larder_t *lar = ldr_alloc(sizeof(*lar));

    if (lar == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a handle");
    }
    if (options->secret_file[0] != '\0') {
        larder_status_t st = ldr_tenant_secret_read(
            options->secret_file, lar->secret, &lar->secret_bytes);

        if (st != LARDER_OK) {
            handle_free(lar);
            return st;
        }
    } else {
        lar->secret_bytes = sizeof(LDR_PUBLIC_SECRET) - 1;
        memcpy(lar->secret, LDR_PUBLIC_SECRET, lar->secret_bytes);
    }
    pthread_once(&fork_once, fork_watch);
    lar->fork_count = fork_count;
    *lar_p = lar;
    return LARDER_OK;
}

larder_status_t ldr_handle_open(ldr_node_t *node, larder_t **lar_p)
{
    larder_t *lar;
    larder_status_t st = handle_new(&node->options, &lar);

    if (st != LARDER_OK) {
        return st;
    }
    lar->backend = &ldr_handle_local;
    lar->leasing = &ldr_leases_local;
    lar->node = node;
    lar->options = &node->options;
    lar->clock = node->clock;
    lar->log = &node->log;
    lar->manual = node->manual;
    st = ldr_ops_create(lar);
    if (st != LARDER_OK) {
        handle_free(lar);
        return st;
    }
    *lar_p = lar;
    return LARDER_OK;
}

static larder_status_t open_embedded(const ldr_options_t *options,
                                     const ldr_log_t *log, larder_t **lar_p)
{
    ldr_node_env_t env = {.log = *log};
    ldr_node_t *node;
    larder_status_t st = ldr_node_open(options, &env, &node);

    if (st != LARDER_OK) {
        return st;
    }
    st = ldr_handle_open(node, lar_p);
    if (st != LARDER_OK) {
        ldr_node_close(node, 0);
    }
    return st;
}

larder_status_t ldr_handle_connect(const ldr_options_t *options,
                                   const ldr_net_env_t *env, larder_t **lar_p)
{
    larder_t *lar;
    larder_status_t st = handle_new(options, &lar);

    if (st != LARDER_OK) {
        return st;
    }
    st = ldr_remote_open(lar, options, env);
    if (st == LARDER_OK) {
        st = ldr_ops_create(lar);
        if (st != LARDER_OK) {
            lar->backend->close(lar, 0);
        }
    }
    if (st != LARDER_OK) {
        handle_free(lar);
        return st;
    }
    *lar_p = lar;
    return LARDER_OK;
}

larder_status_t larder_open(const char *url, const larder_open_params_t *params,
                            larder_t **lar_p)
{
    ldr_log_t log = {0};

    ldr_fail_clear();
    if (url == NULL || lar_p == NULL) {
        return ldr_fail(LARDER_E_INVALID, "url or lar_p is NULL");
    }
    uint64_t mask = params != NULL ? params->field_mask : 0;
    larder_status_t st = ldr_mask_check(mask, LARDER_OPEN_LOG);
    if (st != LARDER_OK) {
        return st;
    }
    if ((mask & LARDER_OPEN_LOG) != 0) {
        log = (ldr_log_t){params->log, params->log_arg};
    }
    ldr_options_t *options = ldr_alloc(sizeof(*options)); /* many texts */
    if (options == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a handle");
    }
    const ldr_net_env_t env = {
        .log = log,
        .clock = &ldr_clock_real,
        .threads = &ldr_threads_real,
        .seed = ldr_rand_entropy(),
    };
    st = ldr_options_parse(url, options);
    if (st == LARDER_OK) {
        st = options->scheme == LDR_SCHEME_EMBED
                 ? open_embedded(options, &log, lar_p)
                 : ldr_handle_connect(options, &env, lar_p);
    }
    ldr_free(options);
    return st;
}

larder_status_t larder_close(larder_t **lar_p, uint32_t timeout_ms)
{
    if (lar_p == NULL || *lar_p == NULL) {
        return LARDER_OK;
    }
    larder_t *lar = *lar_p;
    larder_status_t st = ldr_handle_check(lar);

    *lar_p = NULL;
    if (st == LARDER_E_FORKED) {
        return st; /* the threads and locks are the parent's */
    }
    uint64_t deadline_ns = ldr_deadline(lar, timeout_ms);
    ldr_ops_destroy(lar);
    ldr_leases_close(lar);
    for (larder_space_t *s = lar->spaces; s != NULL; s = s->next) {
        s->lar = NULL;
    }
    st = lar->backend->close(lar, deadline_ns);
    handle_free(lar);
    return st;
}

/* ---- spaces ---- */

/* session: a daemon's tenant; NULL: there is none. */
static larder_status_t space_check(const larder_space_params_t *p,
                                   const char *session)
{
    if (p->tenant == NULL || p->tenant[0] == '\0' ||
        strlen(p->tenant) > TENANT_MAX) {
        return ldr_fail(LARDER_E_INVALID, "a tenant's name has 1 to %u bytes",
                        TENANT_MAX);
    }
    if (session != NULL && strcmp(p->tenant, session) != 0) {
        return ldr_fail(LARDER_E_DENIED,
                        "tenant '%s' in a session of tenant '%s': put "
                        "tenant=%s into the URL",
                        p->tenant, session, p->tenant);
    }
    if (p->secret == NULL || p->secret_bytes == 0) {
        return ldr_fail(LARDER_E_INVALID, "the secret of tenant '%s' is empty",
                        p->tenant);
    }
    if (p->shards < 1 || p->shards > LARDER_SHARDS_MAX) {
        return ldr_fail(LARDER_E_INVALID, "%u shards: 1 to %u are possible",
                        p->shards, LARDER_SHARDS_MAX);
    }
    if (p->chunk_tokens < 1 || p->chunk_tokens > CHUNK_TOKENS_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "%u tokens a chunk: 1 to %u are "
                        "possible",
                        p->chunk_tokens, CHUNK_TOKENS_MAX);
    }
    if (p->page_tokens > 0 && p->chunk_tokens % p->page_tokens != 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "pages of %u tokens do not divide a chunk of %u",
                        p->page_tokens, p->chunk_tokens);
    }
    return LARDER_OK;
}

static larder_status_t space_params(const larder_t *lar,
                                    const larder_space_params_t *p,
                                    larder_space_params_t *out)
{
    /* A daemon knows a session's tenant, and believes nobody else. */
    const char *session = lar->remote != NULL ? lar->options->tenant : NULL;

    if (p == NULL || p->descriptor == NULL || p->descriptor_bytes == 0 ||
        p->descriptor_bytes > DESCRIPTOR_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "a space needs a descriptor of 1 to %u bytes",
                        DESCRIPTOR_MAX);
    }
    larder_status_t st =
        ldr_mask_check(p->field_mask, LARDER_SPACE_PAGE_TOKENS);
    if (st != LARDER_OK) {
        return st;
    }
    *out = (larder_space_params_t){
        .descriptor = p->descriptor,
        .descriptor_bytes = p->descriptor_bytes,
        .tenant = session != NULL ? session : "default",
        .secret = lar->secret,
        .secret_bytes = lar->secret_bytes,
        .shards = 1,
        .chunk_tokens = CHUNK_TOKENS_DEFAULT,
    };
    if ((p->field_mask & LARDER_SPACE_TENANT) != 0) {
        out->tenant = p->tenant;
    }
    if ((p->field_mask & LARDER_SPACE_SECRET) != 0) {
        out->secret = p->secret;
        out->secret_bytes = p->secret_bytes;
    }
    if ((p->field_mask & LARDER_SPACE_SHARDS) != 0) {
        out->shards = p->shards;
    }
    if ((p->field_mask & LARDER_SPACE_CHUNK_TOKENS) != 0) {
        out->chunk_tokens = p->chunk_tokens;
    }
    if ((p->field_mask & LARDER_SPACE_LABEL) != 0) {
        out->label = p->label;
    }
    if ((p->field_mask & LARDER_SPACE_CHUNK_BYTES) != 0) {
        out->chunk_bytes = p->chunk_bytes;
    }
    if ((p->field_mask & LARDER_SPACE_PAGE_TOKENS) != 0) {
        out->page_tokens = p->page_tokens;
    }
    return space_check(out, session);
}

/* The space's root and ids: nobody can compute them without the secret. */
static bool space_names(const larder_space_params_t *p, larder_space_t *space)
{
    uint8_t fixed[12], digest[32];
    ldr_piece_t parts[] = {
        {"larder space 1", 14},
        {fixed, sizeof(fixed)},
        {p->tenant, strlen(p->tenant)},
        {p->descriptor, p->descriptor_bytes},
    };
    ldr_piece_t id[] = {{"larder id 1", 11}, {space->root, 32}};

    /* The name's length keeps name and descriptor apart. */
    ldr_put32(fixed, (uint32_t)strlen(p->tenant));
    ldr_put32(fixed + 4, p->shards);
    ldr_put32(fixed + 8, p->chunk_tokens);
    if (!ldr_hmac_sha256(p->secret, p->secret_bytes, parts, 4, space->root) ||
        !ldr_sha256(id, 2, digest)) {
        return false;
    }
    memcpy(space->ref.id, digest, sizeof(space->ref.id));
    if (p->label != NULL) {
        ldr_label_clean(p->label, LARDER_LABEL_MAX, space->ref.label);
    }
    return ldr_tenant_check(p->secret, p->secret_bytes, p->tenant,
                            space->ref.check) &&
           ldr_tenant_key(p->secret, p->secret_bytes, p->tenant,
                          space->ref.key);
}

/* The first place in the sessions' tables that no space of the handle has.
 * With lar->lock. */
static uint32_t free_slot(const larder_t *lar)
{
    for (uint32_t slot = 0;; slot++) {
        const larder_space_t *s = lar->spaces;

        while (s != NULL && s->ref.slot != slot) {
            s = s->next;
        }
        if (s == NULL) {
            return slot;
        }
    }
}

static void space_unlink(larder_t *lar, larder_space_t *space)
{
    ldr_mutex_lock(&lar->lock);
    if (space->prev != NULL) {
        space->prev->next = space->next;
    } else {
        lar->spaces = space->next;
    }
    if (space->next != NULL) {
        space->next->prev = space->prev;
    }
    ldr_mutex_unlock(&lar->lock);
}

/* The chunks of a run, at most. */
static uint32_t run_of(uint64_t chunk_bytes)
{
    uint32_t run = 1;

    while (chunk_bytes > 0 && run < LDR_RUN_CHUNKS &&
           chunk_bytes <= RUN_BYTES / (2 * run)) {
        run *= 2;
    }
    return run;
}

larder_status_t larder_space_open(larder_t *lar,
                                  const larder_space_params_t *params,
                                  larder_space_t **space_p)
{
    larder_space_params_t p = {0};
    larder_status_t st = ldr_handle_check(lar);

    if (st == LARDER_OK) {
        st = space_p == NULL ? ldr_fail(LARDER_E_INVALID, "space_p is NULL")
                             : space_params(lar, params, &p);
    }
    if (st != LARDER_OK) {
        return st;
    }
    larder_space_t *space = ldr_alloc(sizeof(*space));
    if (space == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a space");
    }
    ldr_mutex_init(&space->asked_lock);
    space->lar = lar;
    space->shards = space->ref.shards = p.shards;
    space->chunk_tokens = p.chunk_tokens;
    space->page_tokens = p.page_tokens;
    space->run = run_of(p.page_tokens > 0 ? 0 : p.chunk_bytes);
    if (!space_names(&p, space)) {
        ldr_free(space);
        return ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
    }
    /* It has its place before a backend is told of it. */
    ldr_mutex_lock(&lar->lock);
    space->ref.slot = lar->remote != NULL ? free_slot(lar) : 0;
    space->ref.uid = ++lar->space_uid;
    space->next = lar->spaces;
    if (space->next != NULL) {
        space->next->prev = space;
    }
    lar->spaces = space;
    ldr_mutex_unlock(&lar->lock);
    st = lar->backend->space_open(lar, space, p.tenant);
    if (st != LARDER_OK) {
        space_unlink(lar, space);
        ldr_free(space);
        return st;
    }
    *space_p = space;
    return LARDER_OK;
}

void larder_space_close(larder_space_t **space_p)
{
    if (space_p == NULL || *space_p == NULL) {
        return;
    }
    larder_space_t *space = *space_p;
    larder_t *lar = space->lar;

    *space_p = NULL;
    if (lar != NULL) {
        if (ldr_handle_check(lar) == LARDER_E_FORKED) {
            return;
        }
        space_unlink(lar, space);
    }
    ldr_free(space);
}

larder_status_t larder_space_reset(larder_space_t *space, uint32_t timeout_ms)
{
    larder_status_t st = ldr_space_check(space);

    return st != LARDER_OK ? st
                           : space->lar->backend->reset(
                                 space, ldr_deadline(space->lar, timeout_ms));
}

/* ---- chains ---- */

/* root: what the chain begins with, or goes on after. begun: that is a key, or
 * made of a salt. */
static bool chain_of(const larder_space_t *space, const uint8_t root[32],
                     bool begun, const larder_key_t *parent,
                     const uint32_t *tokens, const larder_extra_t *extra,
                     larder_key_t *keys, size_t count)
{
    if (space->page_tokens > 0) {
        return ldr_chain_pages(begun ? root : NULL, tokens, space->chunk_tokens,
                               space->page_tokens, extra, keys, count);
    }
    return ldr_chain_runs(root, tokens, space->chunk_tokens, extra, space->run,
                          parent != NULL ? ldr_run_next(parent) : 0, keys,
                          count);
}

larder_status_t larder_chain(const larder_space_t *space,
                             const uint32_t *tokens, size_t token_count,
                             const larder_chain_params_t *params,
                             larder_key_t *keys, size_t keys_max,
                             size_t *count_p)
{
    static const larder_chain_params_t none;
    const larder_chain_params_t *p = params != NULL ? params : &none;
    uint8_t root[32];

    larder_status_t st = ldr_space_check(space);
    st = st == LARDER_OK ? ldr_mask_check(p->field_mask, LARDER_CHAIN_EXTRA)
                         : st;
    if (st != LARDER_OK) {
        return st;
    }
    if (count_p == NULL || (token_count > 0 && tokens == NULL)) {
        return ldr_fail(LARDER_E_INVALID, "tokens or count_p is NULL");
    }
    size_t count = token_count / space->chunk_tokens;
    if (count > keys_max || (count > 0 && keys == NULL)) {
        return ldr_fail(LARDER_E_SIZE, "%zu keys do not fit %zu", count,
                        keys_max);
    }
    bool parent = (p->field_mask & LARDER_CHAIN_PARENT) && p->parent != NULL;
    bool salt = (p->field_mask & LARDER_CHAIN_SALT) && p->salt_bytes > 0;
    const larder_extra_t *extra =
        (p->field_mask & LARDER_CHAIN_EXTRA) ? p->extra : NULL;
    if ((parent && salt) || (salt && p->salt == NULL)) {
        return ldr_fail(LARDER_E_INVALID,
                        "a salt goes with the start of a chain, not a parent");
    }
    for (size_t i = 0; extra != NULL && i < count; i++) {
        if (extra[i].bytes > 0 && extra[i].data == NULL) {
            return ldr_fail(LARDER_E_INVALID, "extra %zu is NULL", i);
        }
    }
    memcpy(root, parent ? p->parent->hash : space->root, 32);
    ldr_piece_t piece = {salt ? p->salt : NULL, salt ? p->salt_bytes : 0};
    if ((salt && !ldr_hmac_sha256(space->root, 32, &piece, 1, root)) ||
        !chain_of(space, root, parent || salt, parent ? p->parent : NULL,
                  tokens, extra, keys, count)) {
        return ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
    }
    *count_p = count;
    return LARDER_OK;
}

larder_status_t larder_match(larder_space_t *space, const larder_key_t *keys,
                             size_t count, uint16_t group, larder_match_t *out)
{
    larder_status_t st = ldr_space_check(space);

    if (st != LARDER_OK) {
        return st;
    }
    if ((count > 0 && keys == NULL) || group >= LARDER_GROUPS_MAX ||
        count > UINT32_MAX) {
        return ldr_fail(LARDER_E_INVALID, "keys or group");
    }
    st = ldr_out_check(out);
    if (st != LARDER_OK) {
        return st;
    }
    larder_match_t match;
    larder_t *lar = space->lar;
    uint64_t deadline_ns =
        lar->node != NULL ? UINT64_MAX : ldr_deadline(lar, 0);
    bool asks =
        count > 0 && !ldr_asked_before(space, keys, count, group, false);
    ldr_need_t need = {LDR_NEED_ALL, group};
    ldr_prefix_t prefix = {.needs = &need,
                           .need_count = 1,
                           .keys = keys,
                           .count = (uint32_t)count,
                           .asks = asks};
    st = lar->backend->match(space, &prefix, deadline_ns, &match);
    if (st == LARDER_OK) {
        ldr_out_fill(out, &match, sizeof(match));
    }
    if (st == LARDER_OK && asks) {
        ldr_asked_note(space, keys, count, group, match.chunks, false);
    }
    return st;
}

/* ---- the rest ---- */

larder_status_t larder_flush(larder_t *lar, larder_tier_t tier,
                             uint32_t timeout_ms)
{
    larder_status_t st = ldr_handle_check(lar);

    if (st != LARDER_OK) {
        return st;
    }
    if ((unsigned)tier >= LARDER_TIER_COUNT) {
        return ldr_fail(LARDER_E_INVALID, "tier %d", (int)tier);
    }
    return lar->backend->flush(lar, tier, ldr_deadline(lar, timeout_ms));
}

larder_status_t larder_stats(larder_t *lar, larder_stats_t *out)
{
    larder_status_t st = ldr_handle_check(lar);
    larder_stats_t all = {0};

    st = st == LARDER_OK ? ldr_out_check(out) : st;
    if (st != LARDER_OK) {
        return st;
    }
    st = lar->backend->stats(lar, ldr_deadline(lar, 0), &all);
    if (st == LARDER_OK || lar->remote != NULL) {
        ldr_out_fill(out, &all, sizeof(all));
    }
    return st;
}

larder_status_t larder_metrics(larder_t *lar, char *text, size_t size,
                               size_t *length_p)
{
    larder_status_t st = ldr_handle_check(lar);

    if (st != LARDER_OK) {
        return st;
    }
    if (length_p == NULL || (text == NULL && size > 0)) {
        return ldr_fail(LARDER_E_INVALID, "text or length_p is NULL");
    }
    return lar->backend->metrics(lar, ldr_deadline(lar, 0), text, size,
                                 length_p);
}
