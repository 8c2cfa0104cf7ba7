/*
 * Where a prompt is: questions of routers, by the questions' thread, and what
 * the publisher asks of other members. A question goes through the sources, one
 * at a time, with the catalogue's lock; the node's lock is taken inside it for
 * each block. Members are asked with neither.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "server/catalog_int.h"

#define SLICE 256u /* blocks that are looked for under one lock */

/* One question to one source. */
typedef struct walk {
    ldr_catalog_t *c;
    const ldr_catalog_ask_t *ask;
    ldr_catalog_answer_t *out;
    size_t blocks; /* of the prompt, in blocks of the source */
    uint8_t digests[SLICE][LDR_DIGEST_BYTES];
    uint64_t looks;     /* that are left */
    larder_key_t *keys; /* of chunks from the first on */
    size_t key_capacity, key_count;
} walk_t;

/* A block of the prompt, if the catalogue has it: by its tokens there may be
 * more of them, after this one. */
static block_t *block_at(walk_t *w, size_t i, const block_t *after)
{
    const ldr_source_t *s = &w->out->source;

    if (w->ask->hashes == NULL) {
        return ldr_catalog_digest(w->c, s, w->digests[i % SLICE], after);
    }
    return after != NULL
               ? NULL
               : ldr_catalog_block(w->c, s,
                                   w->ask->hashes + i * LDR_BLOCK_HASH_MAX);
}

/* Makes ready for a slice of blocks that begins here: hashing takes longer than
 * looking them up. Gives their number. */
static size_t slice_make(walk_t *w, size_t first)
{
    uint32_t tokens = w->out->source.block_tokens;
    size_t count = ldr_min64(SLICE, w->blocks - first);
    uint8_t digest[LDR_DIGEST_BYTES] = {0};

    if (w->ask->hashes != NULL) {
        return count;
    }
    if (first > 0) {
        memcpy(digest, w->digests[SLICE - 1], sizeof(digest));
    }
    for (size_t i = 0; i < count; i++) {
        if (!ldr_token_digest(digest, w->ask->tokens + (first + i) * tokens,
                              (size_t)tokens * 4)) {
            return i;
        }
        memcpy(w->digests[i], digest, sizeof(digest));
    }
    return count;
}

/* Bits: the media of this node in which one of the block's chunks is. */
static uint8_t media_of_block(walk_t *w, const block_t *b)
{
    const uint8_t all = (1u << LDR_MEDIA_HERE) - 1;
    uint8_t found = 0;

    for (use_t *u = b->uses; u != NULL && found != all; u = u->next) {
        description_t *d = u->of;

        if (w->looks == 0) {
            w->out->cut = true;
            break;
        }
        w->looks--;
        if (d->asked != w->c->asks) {
            ldr_node_lock(w->c->node);
            d->asked_media = ldr_catalog_media(w->c, d);
            ldr_node_unlock(w->c->node);
            d->asked = w->c->asks;
        }
        found |= d->asked_media & all;
    }
    return found;
}

/* The chunk that ends with this block, if one does, is the next of the keys. */
static bool note_key(walk_t *w, const block_t *b)
{
    uint32_t last = ldr_source_blocks(&w->out->source) - 1;

    for (use_t *u = b->uses; u != NULL; u = u->next) {
        if (u == &u->of->uses[last] && !u->of->gone &&
            u->of->source->number == w->out->source.number) {
            if (!ldr_grow(&w->keys, &w->key_capacity, w->key_count + 1,
                          sizeof(*w->keys))) {
                return false;
            }
            w->keys[w->key_count++] = u->of->key;
            return true;
        }
    }
    return false;
}

/* Takes the catalogue's lock, for few blocks at a time: what is forgotten in
 * between is not found. */
static void walk_blocks(walk_t *w)
{
    uint32_t per = ldr_source_blocks(&w->out->source);
    bool in[LDR_MEDIA_HERE], any = true, chunks = true;
    size_t i = 0, end = 0;

    for (unsigned m = 0; m < LDR_MEDIA_HERE; m++) {
        in[m] = true;
    }
    while (i == end && i < w->blocks && (any || chunks)) {
        end = i + slice_make(w, i);
        if (end == i) {
            return;
        }
        ldr_mutex_lock(&w->c->lock);
        for (; i < end && (any || chunks); i++) {
            const block_t *b = block_at(w, i, NULL);
            bool ends = chunks && i % per == per - 1, noted = false;
            uint8_t media = 0;

            if (b == NULL) {
                break;
            }
            for (; b != NULL; b = block_at(w, i, b)) {
                media |= any ? media_of_block(w, b) : 0;
                noted = noted || (ends && note_key(w, b));
            }
            for (unsigned m = 0; m < LDR_MEDIA_HERE; m++) {
                in[m] = in[m] && (media >> m & 1u) != 0;
                w->out->blocks[m] += in[m];
            }
            any = any && media != 0;
            w->out->any += any;
            chunks = chunks && (!ends || noted);
        }
        ldr_mutex_unlock(&w->c->lock);
    }
}

/* Counts a chunk that comes from this member. */
static void count_member(ldr_catalog_answer_t *out, const char *name)
{
    uint32_t i = 0;

    while (i < out->member_count && strcmp(out->members[i].name, name) != 0) {
        i++;
    }
    if (i == LDR_ANSWER_MEMBERS) {
        return;
    }
    if (i == out->member_count) {
        snprintf(out->members[i].name, sizeof(out->members[i].name), "%s",
                 name);
        out->member_count++;
    }
    out->members[i].chunks++;
}

ldr_query_t *ldr_catalog_ask_members(ldr_node_t *node, const ldr_keys_t *of,
                                     uint64_t deadline_ns)
{
    ldr_query_t *q =
        ldr_node_ask_begin(node, of->space, of->shards, deadline_ns);

    if (q == NULL) {
        return NULL;
    }
    q->lease = false; /* nobody is going to fetch it */
    if (ldr_node_ask_add(node, q, of->group, of->keys, of->count) !=
        LARDER_OK) {
        ldr_node_ask_end(node, q);
        return NULL;
    }
    if (!ldr_node_ask(node, q)) {
        return NULL; /* it is over, and freed */
    }
    ldr_node_ask_wait(node, q);
    return q;
}

/* What of the chunks a load would find, here or elsewhere. Asks other nodes,
 * and waits for them as long as a match does. */
static void walk_chunks(walk_t *w, uint64_t deadline_ns)
{
    ldr_node_t *node = w->c->node;
    const ldr_source_t *s = &w->out->source;
    const ldr_keys_t of = {s->space, s->shards, s->group, w->keys,
                           w->key_count};
    ldr_query_t *q = ldr_catalog_ask_members(node, &of, deadline_ns);

    for (size_t i = 0; i < w->key_count; i++) {
        ldr_places_t p;

        ldr_node_lock(node);
        ldr_node_places(node, s->space, s->shards, s->group, &w->keys[i], &p);
        if (p.found && p.member != NULL) {
            count_member(w->out, p.member);
        }
        ldr_node_unlock(node);
        if (!p.found) {
            break;
        }
        w->out->chunks++;
        w->out->tiers[p.tier]++;
    }
    if (q != NULL) {
        ldr_node_ask_end(node, q);
    }
}

static bool source_fits(const ldr_source_t *s, const ldr_catalog_ask_t *ask,
                        const char *label)
{
    return s->tenant == ask->tenant && s->descriptions > 0 &&
           (ask->model == NULL || strcmp(s->model, ask->model) == 0) &&
           (ask->pod == NULL || strcmp(s->pod, ask->pod) == 0) &&
           (ask->label == NULL || strcmp(label, ask->label) == 0) &&
           (ask->hashes == NULL || s->hash_bytes == ask->hash_bytes);
}

uint32_t ldr_catalog_ask(ldr_catalog_t *c, const ldr_catalog_ask_t *ask,
                         ldr_catalog_answer_t *answers, uint32_t max)
{
    uint32_t count = 0;
    uint64_t looks = LDR_ASK_LOOKS;
    uint64_t deadline_ns = ldr_now_ns(c->node->clock) +
                           c->node->options.peer_match_ms * (uint64_t)1000000;

    for (uint32_t i = 0; count < max; i++) {
        ldr_catalog_answer_t *out = &answers[count];
        walk_t w = {.c = c, .ask = ask, .out = out, .looks = looks};

        memset(out, 0, sizeof(*out));
        ldr_mutex_lock(&c->lock);
        if (i >= c->source_count) {
            ldr_mutex_unlock(&c->lock);
            break;
        }
        const ldr_source_t *s = c->sources[i];
        ldr_node_lock(c->node);
        memcpy(out->label, c->node->store.spaces[s->space].label,
               sizeof(out->label));
        ldr_node_unlock(c->node);
        bool fits = source_fits(s, ask, out->label);
        if (fits) {
            out->source = *s;
            w.blocks = ask->hashes != NULL ? ask->hash_count
                                           : ask->token_count / s->block_tokens;
            c->asks++;
        }
        ldr_mutex_unlock(&c->lock);
        if (fits) {
            walk_blocks(&w);
            looks = w.looks;
            walk_chunks(&w, deadline_ns);
            count++;
        }
        ldr_free(w.keys);
    }
    return count;
}
