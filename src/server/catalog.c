/*
 * The catalogue's tables.
 *
 * Invariants, with the lock: a description that is not gone is in its tenant's
 * list and in the bucket of its print; each of its uses is in the list of its
 * block. A block is in its two buckets as long as it has a use. bytes is the
 * sum of what its tenants have, without descriptions that are gone.
 */
#include <stddef.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/catalog_int.h"

#define TABLE_MIN 1024u
#define TABLE_MAX (1u << 22)
/* Descriptions that were dropped and not published yet; beyond, engines have to
 * wait for the publisher. */
#define GONE_MAX 65536u

const char *const ldr_medium_names[LDR_MEDIA] = {"CPU", "STORAGE", "STORAGE"};

/* ---- hashing: seeded, for clients choose what is hashed ---- */

static uint64_t bits_mix(uint64_t x)
{
    x = (x ^ x >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

static uint32_t bucket_of(const ldr_catalog_t *c, uint32_t scope,
                          const uint8_t *bytes, size_t count)
{
    uint64_t x = bits_mix(c->seed[0] + scope);

    for (size_t i = 0; i < count; i += 8) {
        x = bits_mix((x ^ ldr_get64(bytes + i)) + c->seed[1]);
    }
    return (uint32_t)(x >> 32) & c->mask;
}

static block_t **hash_bucket(ldr_catalog_t *c, uint32_t scope,
                             const uint8_t *hash)
{
    return &c->hashes[bucket_of(c, scope, hash, LDR_BLOCK_HASH_MAX)];
}

static block_t **digest_bucket(ldr_catalog_t *c, uint32_t scope,
                               const uint8_t *digest)
{
    return &c->digests[bucket_of(c, scope, digest, LDR_DIGEST_BYTES)];
}

static description_t **print_bucket(ldr_catalog_t *c, uint64_t print)
{
    return &c->prints[(uint32_t)(bits_mix(print ^ c->seed[0]) >> 32) & c->mask];
}

block_t *ldr_catalog_block(ldr_catalog_t *c, const ldr_source_t *source,
                           const uint8_t hash[LDR_BLOCK_HASH_MAX])
{
    block_t *b = *hash_bucket(c, source->scope, hash);

    while (b != NULL && (b->scope != source->scope ||
                         memcmp(b->hash, hash, LDR_BLOCK_HASH_MAX) != 0)) {
        b = b->next_hash;
    }
    return b;
}

/* Whether a chunk of the source has it. */
static bool described_by(const block_t *b, const ldr_source_t *source)
{
    const use_t *u = b->uses;

    while (u != NULL && u->of->source->number != source->number) {
        u = u->next;
    }
    return u != NULL;
}

block_t *ldr_catalog_digest(ldr_catalog_t *c, const ldr_source_t *source,
                            const uint8_t digest[LDR_DIGEST_BYTES],
                            const block_t *after)
{
    block_t *b = after != NULL ? after->next_digest
                               : *digest_bucket(c, source->scope, digest);

    while (b != NULL && (b->scope != source->scope ||
                         memcmp(b->digest, digest, LDR_DIGEST_BYTES) != 0 ||
                         !described_by(b, source))) {
        b = b->next_digest;
    }
    return b;
}

description_t *ldr_catalog_first(ldr_catalog_t *c, uint64_t print)
{
    return *print_bucket(c, print);
}

/* ---- blocks ---- */

static block_t *block_add(ldr_catalog_t *c, const ldr_source_t *source,
                          const uint8_t *hash, const uint8_t *digest)
{
    block_t *b = ldr_catalog_block(c, source, hash);

    if (b != NULL) {
        return b;
    }
    b = ldr_alloc(sizeof(*b));
    if (b != NULL) {
        b->scope = source->scope;
        memcpy(b->hash, hash, LDR_BLOCK_HASH_MAX);
        memcpy(b->digest, digest, LDR_DIGEST_BYTES);
        block_t **h = hash_bucket(c, source->scope, hash);
        block_t **d = digest_bucket(c, source->scope, digest);
        b->next_hash = *h;
        *h = b;
        b->next_digest = *d;
        *d = b;
        c->block_count++;
    }
    return b;
}

static void block_free(ldr_catalog_t *c, block_t *b)
{
    block_t **h = hash_bucket(c, b->scope, b->hash);
    block_t **d = digest_bucket(c, b->scope, b->digest);

    while (*h != b) {
        h = &(*h)->next_hash;
    }
    *h = b->next_hash;
    while (*d != b) {
        d = &(*d)->next_digest;
    }
    *d = b->next_digest;
    c->block_count--;
    ldr_free(b);
}

static void use_end(ldr_catalog_t *c, use_t *u)
{
    block_t *b = u->block;

    if (b == NULL) {
        return;
    }
    if (u->prev != NULL) {
        u->prev->next = u->next;
    } else {
        b->uses = u->next;
    }
    if (u->next != NULL) {
        u->next->prev = u->prev;
    }
    u->block = NULL;
    if (b->uses == NULL) {
        block_free(c, b);
    }
}

/* ---- descriptions ---- */

static size_t description_bytes(const ldr_source_t *s)
{
    return sizeof(description_t) +
           ldr_source_blocks(s) * (sizeof(use_t) + sizeof(block_t)) +
           (size_t)s->chunk_tokens * sizeof(uint32_t);
}

static ldr_describer_t *describer(ldr_catalog_t *c, uint32_t tenant)
{
    for (size_t i = 0; i < c->tenant_count; i++) {
        if (c->tenants[i].tenant == tenant) {
            return &c->tenants[i];
        }
    }
    if (!ldr_grow(&c->tenants, &c->tenant_capacity, c->tenant_count + 1,
                  sizeof(*c->tenants))) {
        return NULL;
    }
    c->tenants[c->tenant_count].tenant = tenant;
    return &c->tenants[c->tenant_count++];
}

void ldr_catalog_dirty(ldr_catalog_t *c, description_t *d)
{
    if (c->watched && !d->dirty) {
        d->dirty = true;
        d->next_dirty = NULL;
        *c->dirty_end = d;
        c->dirty_end = &d->next_dirty;
    }
}

void ldr_catalog_free(ldr_catalog_t *c, description_t *d)
{
    for (uint32_t i = 0; i < ldr_source_blocks(d->source); i++) {
        use_end(c, &d->uses[i]);
    }
    d->source->descriptions--;
    ldr_free(d);
}

/* Puts it at the end of its tenant's list, or takes it out. */
static void list_add(ldr_describer_t *t, description_t *d)
{
    d->newer = NULL;
    d->older = t->newest;
    *(t->newest != NULL ? &t->newest->newer : &t->oldest) = d;
    t->newest = d;
}

static void list_remove(ldr_describer_t *t, description_t *d)
{
    *(d->older != NULL ? &d->older->newer : &t->oldest) = d->newer;
    *(d->newer != NULL ? &d->newer->older : &t->newest) = d->older;
}

/* The catalogue does not know the chunk any more. What was published of it is
 * the publisher's to take back. */
static void description_drop(ldr_catalog_t *c, ldr_describer_t *t,
                             description_t *d)
{
    description_t **link = print_bucket(c, d->print);

    while (*link != d) {
        link = &(*link)->next_print;
    }
    *link = d->next_print;
    list_remove(t, d);
    t->bytes -= description_bytes(d->source);
    c->bytes -= description_bytes(d->source);
    c->description_count--;
    d->gone = true;
    if (d->published != 0 || d->dirty) {
        c->gone_count++;
        ldr_catalog_dirty(c, d);
    } else {
        ldr_catalog_free(c, d);
    }
}

/* The tenant with most gives up its oldest, until all of it fits. */
static void make_room(ldr_catalog_t *c)
{
    while (c->bytes > c->bytes_max) {
        ldr_describer_t *most = &c->tenants[0];

        for (size_t i = 1; i < c->tenant_count; i++) {
            if (c->tenants[i].bytes > most->bytes) {
                most = &c->tenants[i];
            }
        }
        c->dropped++;
        description_drop(c, most, most->oldest);
    }
}

static description_t *description_find(ldr_catalog_t *c,
                                       const ldr_source_t *source,
                                       uint64_t print, const larder_key_t *key)
{
    description_t *d = ldr_catalog_first(c, print);

    while (d != NULL && (d->print != print || d->source != source ||
                         memcmp(&d->key, key, sizeof(*key)) != 0)) {
        d = d->next_print;
    }
    return d;
}

/* ---- sources ---- */

static bool source_is(const ldr_source_t *s, const ldr_source_t *other)
{
    return memcmp(&s->tenant, &other->tenant,
                  offsetof(ldr_source_t, descriptions) -
                      offsetof(ldr_source_t, tenant)) == 0;
}

/* Whether subscribers get both in one topic, and cannot tell blocks of the two
 * apart. */
static bool same_scope(const ldr_catalog_t *c, const ldr_source_t *a,
                       const ldr_source_t *b)
{
    return a->tenant == b->tenant && a->group_idx == b->group_idx &&
           a->hash_bytes == b->hash_bytes && a->numbers == b->numbers &&
           strcmp(a->model, b->model) == 0 &&
           (c->by_node || strcmp(a->pod, b->pod) == 0);
}

/* NULL: there are too many. */
static ldr_source_t *source_of(ldr_catalog_t *c, const ldr_source_t *wanted)
{
    uint32_t at = c->source_count, scope = 0;

    for (uint32_t i = 0; i < c->source_count; i++) {
        if (source_is(c->sources[i], wanted)) {
            return c->sources[i];
        }
        if (same_scope(c, c->sources[i], wanted)) {
            scope = c->sources[i]->scope;
        }
        if (c->sources[i]->descriptions == 0) {
            at = i;
        }
    }
    if (at == LDR_SOURCES_MAX) {
        return NULL;
    }
    ldr_source_t *s = ldr_alloc(sizeof(*s));
    if (s != NULL) {
        memcpy(s, wanted, sizeof(*s));
        s->number = ++c->source_next;
        s->scope = scope != 0 ? scope : s->number;
        if (at < c->source_count) {
            ldr_free(c->sources[at]);
        } else {
            c->source_count++;
        }
        c->sources[at] = s;
    }
    return s;
}

/* ---- describing ---- */

/* One chunk of a message. */
typedef struct chunk {
    const larder_key_t *key;
    uint64_t print;
    const uint8_t *tokens, *hashes;
    const uint8_t *parent; /* NULL: none */
    uint8_t *digest;       /* of all before it, and then with it */
} chunk_t;

/* Its blocks, and that it uses them. False: no memory. */
static bool add_uses(ldr_catalog_t *c, description_t *d, const chunk_t *chunk)
{
    const ldr_source_t *s = d->source;
    size_t bytes = (size_t)s->block_tokens * 4;

    for (uint32_t b = 0; b < ldr_source_blocks(s); b++) {
        uint8_t hash[LDR_BLOCK_HASH_MAX] = {0};
        use_t *u = &d->uses[b];

        memcpy(hash, chunk->hashes + (size_t)b * s->hash_bytes, s->hash_bytes);
        if (!ldr_token_digest(chunk->digest, chunk->tokens + b * bytes,
                              bytes)) {
            return false;
        }
        u->block = block_add(c, s, hash, chunk->digest);
        if (u->block == NULL) {
            return false;
        }
        u->of = d;
        u->next = u->block->uses;
        if (u->next != NULL) {
            u->next->prev = u;
        }
        u->block->uses = u;
    }
    return true;
}

static description_t *description_new(ldr_catalog_t *c, ldr_source_t *s,
                                      const chunk_t *chunk)
{
    uint32_t blocks = ldr_source_blocks(s);
    description_t *d = ldr_alloc(sizeof(*d) + blocks * sizeof(use_t) +
                                 (size_t)s->chunk_tokens * sizeof(uint32_t));

    if (d == NULL) {
        return NULL;
    }
    d->print = chunk->print;
    d->source = s;
    d->key = *chunk->key;
    d->has_parent = chunk->parent != NULL;
    if (d->has_parent) {
        memcpy(d->parent, chunk->parent, s->hash_bytes);
    }
    d->tokens = (uint32_t *)&d->uses[blocks];
    for (uint32_t i = 0; i < s->chunk_tokens; i++) {
        d->tokens[i] = ldr_get32(chunk->tokens + (size_t)i * 4);
    }
    s->descriptions++;
    if (!add_uses(c, d, chunk)) {
        ldr_catalog_free(c, d);
        return NULL;
    }
    return d;
}

/* Whether the engine still calls its blocks so: one that was restarted may hash
 * otherwise. */
static bool same_hashes(const description_t *d, const chunk_t *chunk)
{
    const ldr_source_t *s = d->source;
    uint32_t b = 0;

    while (b < ldr_source_blocks(s) &&
           memcmp(d->uses[b].block->hash,
                  chunk->hashes + (size_t)b * s->hash_bytes,
                  s->hash_bytes) == 0) {
        b++;
    }
    return b == ldr_source_blocks(s);
}

/* False: no memory. */
static bool take_chunk(ldr_catalog_t *c, ldr_source_t *s, const chunk_t *chunk)
{
    ldr_describer_t *t = describer(c, s->tenant);
    description_t *d =
        t != NULL ? description_find(c, s, chunk->print, chunk->key) : NULL;

    if (d != NULL && !same_hashes(d, chunk)) {
        description_drop(c, t, d); /* withdrawn before the new is announced */
        d = NULL;
    }
    if (d != NULL) { /* it is known: only its age changes */
        use_t *last = &d->uses[ldr_source_blocks(s) - 1];

        memcpy(chunk->digest, last->block->digest, LDR_DIGEST_BYTES);
        list_remove(t, d);
        list_add(t, d);
        return true;
    }
    d = t != NULL ? description_new(c, s, chunk) : NULL;
    if (d == NULL) {
        return false;
    }
    description_t **link = print_bucket(c, d->print);
    d->next_print = *link;
    *link = d;
    list_add(t, d);
    t->bytes += description_bytes(s);
    c->bytes += description_bytes(s);
    c->description_count++;
    ldr_catalog_dirty(c, d);
    return true;
}

static larder_status_t description_take(ldr_catalog_t *c,
                                        const ldr_source_t *wanted,
                                        const ldr_describe_msg_t *m)
{
    uint8_t digest[LDR_DIGEST_BYTES];
    const uint8_t *parent =
        (m->flags & LDR_DESCRIBE_PARENT) != 0 ? m->parent : NULL;

    if (c->gone_count > GONE_MAX) {
        return ldr_fail(LARDER_E_BUSY, "too many descriptions at once");
    }
    ldr_source_t *s = source_of(c, wanted);
    if (s == NULL) {
        return ldr_fail(LARDER_E_LIMIT, "%u engines have described chunks",
                        LDR_SOURCES_MAX);
    }
    const size_t hashes = (size_t)ldr_source_blocks(s) * m->hash_bytes;
    memcpy(digest, m->digest, sizeof(digest));
    for (uint32_t i = 0; i < m->count; i++) {
        chunk_t chunk = {
            .key = (const larder_key_t *)m->keys + i,
            .tokens = m->tokens + (size_t)i * m->chunk_tokens * 4,
            .hashes = m->hashes + i * hashes,
            .parent = parent,
            .digest = digest,
        };

        chunk.print =
            ldr_store_name(&c->node->store, s->space, s->group, chunk.key)
                .fingerprint;
        if (!take_chunk(c, s, &chunk)) {
            return ldr_fail(LARDER_E_NO_MEMORY,
                            "not enough memory for a description");
        }
        parent = chunk.hashes + hashes - m->hash_bytes;
    }
    make_room(c);
    return LARDER_OK;
}

larder_status_t ldr_catalog_describe(ldr_catalog_t *c, uint32_t tenant,
                                     uint32_t space, uint32_t shards,
                                     const ldr_describe_msg_t *m)
{
    ldr_source_t wanted;

    memset(&wanted, 0, sizeof(wanted)); /* it is compared byte by byte */
    wanted.tenant = tenant;
    wanted.space = space;
    wanted.shards = shards;
    wanted.chunk_tokens = m->chunk_tokens;
    wanted.block_tokens = m->block_tokens;
    wanted.group_idx = m->group_idx;
    wanted.window = m->window;
    wanted.group = m->group;
    wanted.hash_bytes = m->hash_bytes;
    wanted.numbers = (m->flags & LDR_DESCRIBE_NUMBERS) != 0;
    memcpy(wanted.pod, m->pod, sizeof(wanted.pod));
    memcpy(wanted.model, m->model, sizeof(wanted.model));
    memcpy(wanted.kind, m->kind, sizeof(wanted.kind));
    ldr_mutex_lock(&c->lock);
    larder_status_t st = description_take(c, &wanted, m);
    ldr_mutex_unlock(&c->lock);
    return st;
}

void ldr_catalog_stats(ldr_catalog_t *c, ldr_catalog_stats_t *out)
{
    ldr_mutex_lock(&c->lock);
    *out = (ldr_catalog_stats_t){
        .descriptions = c->description_count,
        .blocks = c->block_count,
        .bytes = c->bytes,
        .sources = c->source_count,
        .dropped = c->dropped,
    };
    ldr_mutex_unlock(&c->lock);
}

#define LDR_ROW ldr_catalog_stats_t
static const ldr_row_t rows[] = {LDR_ROWS(LDR_CATALOG_FIGURES)};
#undef LDR_ROW

void ldr_catalog_expose(ldr_catalog_t *c, ldr_exposition_t *e)
{
    ldr_catalog_stats_t stats;

    if (c != NULL) {
        ldr_catalog_stats(c, &stats);
        ldr_figures_put(e, rows, &(ldr_subject_t){&stats, {NULL}}, 1);
    }
}

/* ---- life ---- */

ldr_catalog_t *ldr_catalog_open(ldr_node_t *node, uint64_t bytes_max)
{
    ldr_catalog_t *c = ldr_alloc(sizeof(*c));
    uint64_t table = TABLE_MIN;

    if (c == NULL) {
        return NULL;
    }
    while (table < bytes_max / 512 && table < TABLE_MAX) {
        table *= 2;
    }
    ldr_mutex_init(&c->lock);
    c->node = node;
    c->bytes_max = bytes_max;
    c->mask = (uint32_t)table - 1;
    c->seed[0] = ldr_rand_entropy();
    c->seed[1] = ldr_rand_entropy();
    c->dirty_end = &c->dirty;
    c->prints = ldr_alloc(table * sizeof(*c->prints));
    c->hashes = ldr_alloc(table * sizeof(*c->hashes));
    c->digests = ldr_alloc(table * sizeof(*c->digests));
    if (c->prints == NULL || c->hashes == NULL || c->digests == NULL) {
        ldr_catalog_close(c);
        return NULL;
    }
    return c;
}

void ldr_catalog_close(ldr_catalog_t *c)
{
    if (c == NULL) {
        return;
    }
    if (c->changes != NULL) {
        ldr_node_lock(c->node);
        c->node->store.changes = NULL;
        ldr_node_unlock(c->node);
    }
    for (size_t i = 0; i < c->tenant_count; i++) {
        while (c->tenants[i].oldest != NULL) {
            description_drop(c, &c->tenants[i], c->tenants[i].oldest);
        }
    }
    while (c->dirty != NULL) { /* all of them are gone */
        description_t *d = c->dirty;

        c->dirty = d->next_dirty;
        ldr_catalog_free(c, d);
    }
    for (uint32_t i = 0; i < c->source_count; i++) {
        ldr_free(c->sources[i]);
    }
    ldr_free(c->tenants);
    ldr_free(c->prints);
    ldr_free(c->hashes);
    ldr_free(c->digests);
    ldr_free(c->changes);
    ldr_free(c->copied);
    ldr_free(c->away.keys);
    ldr_free(c->away.rows);
    pthread_mutex_destroy(&c->lock);
    ldr_free(c);
}
