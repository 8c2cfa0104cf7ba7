/*
 * The catalogue: what engines call the chunks of this node, for routers.
 *
 * A node knows a chunk by a key that it cannot work out from tokens. So engines
 * describe chunks (wire/describe.h), and the catalogue keeps what they say: of
 * each chunk its tokens, and of each of the engine's blocks in it the engine's
 * own hash. It answers where a prompt is (queries), and finds what has changed
 * for who publishes it (events.h).
 *
 * A *source* is an engine's view of a space: pod, model, block size and group.
 * Two engines that use one space are two sources, since they may hash blocks
 * differently. A *description* is one chunk of one source. A *block* may be
 * part of several chunks, which differ behind it, or are of several sources of
 * one topic: it is stored while one of them is.
 *
 * Bounds: bytes_max for all tenants together, for each at most an equal part
 * among those that have described something, and the oldest description of the
 * tenant goes first; LDR_SOURCES_MAX sources, of which one that has nothing
 * left gives way.
 *
 * One lock guards all of it. It is taken before the node's lock, never inside
 * it, and not held across anything that waits.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/metrics.h"
#include "node/node.h"
#include "wire/describe.h"

#define LDR_SOURCES_MAX 256u

typedef struct ldr_catalog ldr_catalog_t;

typedef enum ldr_medium {
    LDR_MEDIUM_CPU,     /* all of the chunk is in dram */
    LDR_MEDIUM_STORAGE, /* all is on disks, or some in dram and the rest there
                         */
    LDR_MEDIA_HERE,
    /* Not all of it is here, and a load would find the rest at other members or
     * in the shared tier. */
    LDR_MEDIUM_AWAY = LDR_MEDIA_HERE,
    LDR_MEDIA
} ldr_medium_t;

/* "CPU", "STORAGE", "STORAGE". */
extern const char *const ldr_medium_names[LDR_MEDIA];

typedef struct ldr_source {
    uint32_t number;                /* of all there ever were */
    uint32_t scope;                 /* the number of one of its topic's */
    uint32_t tenant, space, shards; /* the node's numbers */
    uint32_t chunk_tokens, block_tokens, group_idx, window;
    uint16_t group;
    uint8_t hash_bytes;
    bool numbers; /* hashes are numbers */
    char pod[LDR_DESCRIBE_POD], model[LDR_DESCRIBE_MODEL];
    char kind[LDR_DESCRIBE_KIND];
    uint64_t descriptions;
} ldr_source_t;

/* NULL: no memory. */
ldr_catalog_t *ldr_catalog_open(ldr_node_t *node, uint64_t bytes_max);
void ldr_catalog_close(ldr_catalog_t *c); /* NULL is fine */

/* Takes a description. E_LIMIT: too many sources; E_NO_MEMORY. */
larder_status_t ldr_catalog_describe(ldr_catalog_t *c, uint32_t tenant,
                                     uint32_t space, uint32_t shards,
                                     const ldr_describe_msg_t *m);

typedef struct ldr_catalog_stats {
    uint64_t descriptions, blocks, bytes, sources, dropped;
} ldr_catalog_stats_t;

void ldr_catalog_stats(ldr_catalog_t *c, ldr_catalog_stats_t *out);
/* As metrics. NULL: nothing. */
void ldr_catalog_expose(ldr_catalog_t *c, ldr_exposition_t *e);

/* ---- questions ---- */

#define LDR_ASK_TOKENS 1048576u /* that one question may have */
#define LDR_ASK_HASHES 65536u
/* Chunks whose place one question may look up. */
#define LDR_ASK_LOOKS 65536u

/* Tokens, or hashes of one source's blocks, from the start of a prompt. model:
 * the engine's name of it; label: the space's; NULL: any. */
typedef struct ldr_catalog_ask {
    uint32_t tenant;
    const char *model, *label, *pod;
    const uint32_t *tokens;
    size_t token_count;
    const uint8_t *hashes; /* LDR_BLOCK_HASH_MAX apart */
    uint8_t hash_bytes;
    size_t hash_count;
} ldr_catalog_ask_t;

#define LDR_ANSWER_MEMBERS 32u

/* What of it a load would fetch from one member. */
typedef struct ldr_answer_member {
    char name[64];
    uint64_t chunks;
} ldr_answer_member_t;

/* The longest prefix, as one source sees it. */
typedef struct ldr_catalog_answer {
    ldr_source_t source;
    char label[LARDER_LABEL_MAX + 1];
    /* Blocks from the first on that are all in a medium, and in any. */
    uint64_t blocks[LDR_MEDIA_HERE], any;
    /* Chunks from the first on that a load would find, also in tiers of other
     * nodes, by the slowest tier that each needs. */
    uint64_t chunks, tiers[LARDER_TIERS_MAX];
    /* By the member that a chunk of another node's would come from; those of
     * more members than there is room for are in tiers only. */
    ldr_answer_member_t members[LDR_ANSWER_MEMBERS];
    uint32_t member_count;
    bool cut; /* LDR_ASK_LOOKS was not enough: it may be longer */
} ldr_catalog_answer_t;

/* Gives the number of answers, at most max: one for each source that fits. */
uint32_t ldr_catalog_ask(ldr_catalog_t *c, const ldr_catalog_ask_t *ask,
                         ldr_catalog_answer_t *answers, uint32_t max);

/* ---- changes, for one publisher ---- */

/* Blocks of one chunk that a medium has now, or has no longer. Pointers are
 * good during the call. */
typedef struct ldr_catalog_change {
    const ldr_source_t *source;
    ldr_medium_t medium;
    bool stored;
    uint32_t count;        /* of hashes */
    const uint8_t *hashes; /* LDR_BLOCK_HASH_MAX apart */
    /* stored: */
    const uint8_t *parent; /* NULL: none */
    const uint32_t *tokens;
} ldr_catalog_change_t;

/* Called with the catalogue's lock. */
typedef void (*ldr_catalog_fn)(void *arg, const ldr_catalog_change_t *change);

/* From now on changes are noted. by_node: all sources of a model have one
 * topic, and not those of each pod. False: no memory. Before anything else uses
 * the catalogue. */
bool ldr_catalog_watch(ldr_catalog_t *c, bool by_node);
/* Tells of changes since the last call, looking at so many descriptions at
 * most. True: call it again. */
bool ldr_catalog_changes(ldr_catalog_t *c, uint32_t looks, ldr_catalog_fn fn,
                         void *arg);
/* The next calls look at every description: some changes are not noted, such as
 * an expiry, or a disk that is switched off. */
void ldr_catalog_look_again(ldr_catalog_t *c);
/* What has a topic. */
typedef struct ldr_topic_of {
    uint32_t tenant;
    uint32_t media;  /* bits */
    const char *pod; /* NULL: all pods */
    const char *model;
} ldr_topic_of_t;

/* Whether something of this topic is described, or was told of and is not
 * withdrawn yet. For an ldr_catalog_fn: the lock is taken. */
bool ldr_catalog_described(const ldr_catalog_t *c, const ldr_topic_of_t *topic);
/* The next calls tell of all that this topic has, as if nothing of it had been
 * published. */
void ldr_catalog_republish(ldr_catalog_t *c, const ldr_topic_of_t *topic);
/*
 * Finds out what of this tenant's chunks LDR_MEDIUM_AWAY has, in rounds: a
 * round begins with ldr_catalog_away_begin(), if none is under way. A call
 * looks for at most LDR_AWAY_BATCH chunks, and asks other members for them,
 * which takes peer_match_ms at most. True: call it again. Only the publisher's
 * thread calls them.
 */
#define LDR_AWAY_BATCH 256u

void ldr_catalog_away_begin(ldr_catalog_t *c, uint32_t tenant);
bool ldr_catalog_away(ldr_catalog_t *c);
