/*
 * POST /query: parses a question, asks the catalogue, writes the answer. All of
 * it lives for one call in the thread for questions; the catalogue has its own
 * lock.
 */
#include "server/query.h"

#include <string.h>

#include "base/bytes.h"
#include "base/json.h"
#include "base/json_read.h"
#include "base/mem.h"
#include "base/text.h"
#include "node/metrics.h"
#include "server/catalog.h"
#include "server/server_int.h"

#define ANSWERS_MAX 16u /* sources that one answer has */
#define ANSWER_BYTES 6144u

/* ---- who asks ---- */

/* The tenant that has this token. With tenant_lock. */
static ldr_server_tenant_t *tenant_of_token(ldr_server_t *server,
                                            const ldr_token_t *token)
{
    uint8_t nonce[LDR_NONCE_BYTES], mac[LDR_MAC_BYTES];
    ldr_proof_t proof = {nonce, nonce, "query", 0};
    ldr_server_tenant_t *found = NULL;
    unsigned which;

    /* Tokens are compared by a keyed hash, so that the time that this takes
     * says nothing about how much of one was right. */
    if (!ldr_nonce(nonce, sizeof(nonce)) ||
        !ldr_proof_make(token, &proof, false, mac)) {
        return NULL;
    }
    for (unsigned i = 0; i < server->tenant_count; i++) {
        ldr_server_tenant_t *t = server->tenants[i];

        if (ldr_proof_check(t->tokens, t->token_count, &proof, false, mac,
                            &which) &&
            t->enabled) {
            found = t;
        }
    }
    return found;
}

static larder_status_t denied(ldr_server_t *server)
{
    ldr_metrics_auth_fail(server->metrics, LDR_AUTH_FAIL_TOKEN);
    return ldr_fail(LARDER_E_DENIED,
                    "send the tenant's token: Authorization: Bearer TOKEN");
}

larder_status_t ldr_query_tenant(ldr_server_t *server,
                                 const char *authorization, bool here,
                                 uint32_t *tenant_p)
{
    static const char bearer[] = "Bearer ";
    const ldr_server_tenant_t *found = NULL;
    ldr_token_t token = {0};

    if (server->config->options.query == LDR_QUERY_OFF) {
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "query = off: start the daemon with --query on");
    }
    ldr_mutex_lock(&server->tenant_lock);
    if (authorization != NULL) {
        size_t bytes = strlen(authorization), skip = sizeof(bearer) - 1;

        if (bytes > skip && bytes - skip <= sizeof(token.data) &&
            strncasecmp(authorization, bearer, skip) == 0) {
            token.bytes = bytes - skip;
            memcpy(token.data, authorization + skip, token.bytes);
            found = tenant_of_token(server, &token);
            explicit_bzero(&token, sizeof(token));
        }
    } else if (here && ldr_server_tenants_open(server)) {
        /* As by TCP from this host: tenant default, if it has no token. */
        for (unsigned i = 0; i < server->tenant_count; i++) {
            const ldr_server_tenant_t *t = server->tenants[i];

            if (t->enabled && t->token_count == 0 &&
                strcmp(t->config.name, "default") == 0) {
                found = t;
            }
        }
    }
    if (found != NULL) {
        *tenant_p = found->number;
    }
    ldr_mutex_unlock(&server->tenant_lock);
    return found != NULL ? LARDER_OK : denied(server);
}

/* ---- the question ---- */

typedef struct question {
    char model[LDR_DESCRIBE_MODEL], label[LARDER_LABEL_MAX + 1];
    char pod[LDR_DESCRIBE_POD];
    bool has_model, has_label, has_pod;
    uint32_t *tokens;
    size_t token_capacity, token_count;
    uint8_t *hashes;
    size_t hash_capacity, hash_count;
    uint8_t hash_bytes;
    const char *wrong; /* NULL: nothing so far */
} question_t;

static void read_name(ldr_json_reader_t *r, question_t *q, char *text,
                      size_t size, bool *has)
{
    *has = true;
    if (!ldr_json_read_text(r, text, size)) {
        q->wrong = "model, label and pod are texts";
    }
}

static void read_tokens(ldr_json_reader_t *r, question_t *q)
{
    uint64_t value;

    if (!ldr_json_open(r, '[')) {
        return;
    }
    while (q->wrong == NULL && ldr_json_item(r)) {
        if (q->token_count == LDR_ASK_TOKENS) {
            q->wrong = "too many token_ids: 1048576 at most";
        } else if (!ldr_json_u64(r, &value) || value > UINT32_MAX) {
            q->wrong = "token_ids are numbers below 2^32";
        } else if (!ldr_grow(&q->tokens, &q->token_capacity, q->token_count + 1,
                             sizeof(*q->tokens))) {
            q->wrong = "not enough memory";
        } else {
            q->tokens[q->token_count++] = (uint32_t)value;
        }
    }
}

/* Gives the number of bytes; 0: it is no hash. */
static uint8_t read_hex(const char *text, uint8_t *hash)
{
    size_t length = strlen(text);

    return length > 0 && length % 2 == 0 && length <= 2 * LDR_BLOCK_HASH_MAX &&
                   ldr_unhex_any(text, length / 2, hash)
               ? (uint8_t)(length / 2)
               : 0;
}

/* A number, or digits in quotes. Gives the number of bytes; 0: neither. */
static uint8_t read_hash(ldr_json_reader_t *r, uint8_t *hash)
{
    char text[2 * LDR_BLOCK_HASH_MAX + 1];
    uint64_t value;

    while (r->at < r->end && strchr(" \t\r\n", *r->at) != NULL) {
        r->at++;
    }
    if (r->at < r->end && *r->at == '"') {
        return ldr_json_read_text(r, text, sizeof(text)) ? read_hex(text, hash)
                                                         : 0;
    }
    if (!ldr_json_u64(r, &value)) {
        return 0;
    }
    for (unsigned i = 0; i < 8; i++) {
        hash[i] = (uint8_t)(value >> (56 - 8 * i));
    }
    return 8;
}

static void read_hashes(ldr_json_reader_t *r, question_t *q)
{
    if (!ldr_json_open(r, '[')) {
        return;
    }
    while (q->wrong == NULL && ldr_json_item(r)) {
        uint8_t hash[LDR_BLOCK_HASH_MAX] = {0};
        uint8_t bytes = read_hash(r, hash);

        if (q->hash_count == LDR_ASK_HASHES) {
            q->wrong = "too many block_hashes: 65536 at most";
        } else if (bytes == 0 ||
                   (q->hash_count > 0 && bytes != q->hash_bytes)) {
            q->wrong = "block_hashes are numbers below 2^64, or texts of 2 to "
                       "64 hexadecimal digits, all of one length";
        } else if (!ldr_grow(&q->hashes, &q->hash_capacity,
                             (q->hash_count + 1) * LDR_BLOCK_HASH_MAX, 1)) {
            q->wrong = "not enough memory";
        } else {
            memcpy(q->hashes + q->hash_count++ * LDR_BLOCK_HASH_MAX, hash,
                   sizeof(hash));
            q->hash_bytes = bytes;
        }
    }
}

static bool read_question(const char *body, size_t bytes, question_t *q)
{
    ldr_json_reader_t r = ldr_json_reader(body, bytes);
    char name[32];

    ldr_json_open(&r, '{');
    while (q->wrong == NULL && ldr_json_name(&r, name, sizeof(name))) {
        if (strcmp(name, "model") == 0) {
            read_name(&r, q, q->model, sizeof(q->model), &q->has_model);
        } else if (strcmp(name, "label") == 0) {
            read_name(&r, q, q->label, sizeof(q->label), &q->has_label);
        } else if (strcmp(name, "pod") == 0) {
            read_name(&r, q, q->pod, sizeof(q->pod), &q->has_pod);
        } else if (strcmp(name, "token_ids") == 0 && q->tokens == NULL) {
            read_tokens(&r, q);
        } else if (strcmp(name, "block_hashes") == 0 && q->hashes == NULL) {
            read_hashes(&r, q);
        } else {
            ldr_json_skip(&r);
        }
    }
    if (q->wrong == NULL && r.broken) {
        q->wrong = "the body is no JSON object";
    }
    if (q->wrong == NULL && (q->token_count > 0) == (q->hash_count > 0)) {
        q->wrong = "either token_ids or block_hashes are needed";
    }
    return q->wrong == NULL;
}

/* ---- the answer ---- */

static void answer_row(ldr_json_t *j, const ldr_catalog_answer_t *a)
{
    uint32_t size = a->source.chunk_tokens;

    ldr_json_begin(j, NULL, '{');
    ldr_json_text(j, "pod", a->source.pod);
    ldr_json_text(j, "model", a->source.model);
    ldr_json_text(j, "label", a->label);
    ldr_json_number(j, "group_idx", a->source.group_idx);
    ldr_json_number(j, "block_size", a->source.block_tokens);
    ldr_json_number(j, "chunk_tokens", size);
    ldr_json_begin(j, "blocks", '{');
    for (unsigned m = 0; m < LDR_MEDIA_HERE; m++) {
        ldr_json_number(j, ldr_medium_names[m], a->blocks[m]);
    }
    ldr_json_number(j, "any", a->any);
    ldr_json_end(j, '}');
    ldr_json_number(j, "loadable_tokens", a->chunks * size);
    ldr_json_begin(j, "tiers", '{');
    for (unsigned t = 0; t < LARDER_TIERS_MAX; t++) {
        if (ldr_tier_label(t) != NULL) {
            ldr_json_number(j, ldr_tier_label(t), a->tiers[t] * size);
        }
    }
    ldr_json_end(j, '}');
    ldr_json_begin(j, "members", '{');
    for (uint32_t i = 0; i < a->member_count; i++) {
        ldr_json_number(j, a->members[i].name, a->members[i].chunks * size);
    }
    ldr_json_end(j, '}');
    ldr_json_truth(j, "partial", a->cut);
    ldr_json_end(j, '}');
}

larder_status_t ldr_query_answer(ldr_catalog_t *catalog, const char *name,
                                 uint32_t tenant, const char *body,
                                 size_t bytes, char **text_p, size_t *length_p)
{
    question_t q = {0};
    const size_t room = (ANSWERS_MAX + 1) * ANSWER_BYTES;
    const uint32_t wanted = ANSWERS_MAX + 1; /* to see whether there are more */
    ldr_catalog_answer_t *answers = ldr_alloc(wanted * sizeof(*answers));
    char *text = ldr_alloc(room);
    larder_status_t st = LARDER_OK;

    if (answers == NULL || text == NULL) {
        st = ldr_fail(LARDER_E_NO_MEMORY, "not enough memory");
    } else if (!read_question(body, bytes, &q)) {
        st = ldr_fail(LARDER_E_INVALID, "%s", q.wrong);
    } else {
        ldr_catalog_ask_t ask = {
            .tenant = tenant,
            .model = q.has_model ? q.model : NULL,
            .label = q.has_label ? q.label : NULL,
            .pod = q.has_pod ? q.pod : NULL,
            .tokens = q.tokens,
            .token_count = q.token_count,
            .hashes = q.hashes,
            .hash_bytes = q.hash_bytes,
            .hash_count = q.hash_count,
        };
        uint32_t count = ldr_catalog_ask(catalog, &ask, answers, wanted);
        ldr_json_t j = {.t = ldr_text(text, room)};

        ldr_json_begin(&j, NULL, '{');
        ldr_json_text(&j, "node", name);
        ldr_json_begin(&j, "matches", '[');
        for (uint32_t i = 0; i < count && i < ANSWERS_MAX; i++) {
            answer_row(&j, &answers[i]);
        }
        ldr_json_end(&j, ']');
        ldr_json_truth(&j, "partial", count > ANSWERS_MAX);
        ldr_json_end(&j, '}');
        *text_p = text;
        *length_p = ldr_min64(j.t.length, room - 1);
        text = NULL;
    }
    ldr_free(text);
    ldr_free(answers);
    ldr_free(q.tokens);
    ldr_free(q.hashes);
    return st;
}
