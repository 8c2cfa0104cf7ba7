/* What was removed lately. Bytes of other nodes that were on their way here
 * meanwhile are not admitted. With the node's lock. */
#include "store/store.h"

static uint64_t removed_print(uint64_t fingerprint, uint32_t number)
{
    return fingerprint ^ (uint64_t)number << 57;
}

void ldr_store_removed(ldr_store_t *s, uint64_t fingerprint, uint32_t number)
{
    uint64_t at = s->removed_count++ % LDR_REMOVED_MAX;

    ldr_store_held(s);
    s->removed[at].print = removed_print(fingerprint, number);
    s->removed[at].at_ds = s->now_ds;
}

bool ldr_store_admit(ldr_store_t *s, uint32_t shard, uint32_t epoch,
                     uint32_t saved_ds)
{
    ldr_shard_t *sh = &s->shards[shard];
    const ldr_chunk_t *c = &s->chunks[sh->chunk];

    if (c->entry == LDR_NIL || epoch != s->spaces[c->space].epoch) {
        return false;
    }
    uint64_t print = removed_print(
        ldr_index_at(&s->index, c->entry)->fingerprint, sh->number);
    for (uint64_t i = s->removed_count; saved_ds != UINT32_MAX && i > 0; i--) {
        uint64_t at = (i - 1) % LDR_REMOVED_MAX;

        if (i + LDR_REMOVED_MAX == s->removed_count) {
            return false; /* more were removed than are remembered */
        }
        if (s->removed[at].at_ds + LDR_ARRIVAL_DS < s->now_ds) {
            break; /* and so are all before it */
        }
        if (s->removed[at].print == print && s->removed[at].at_ds >= saved_ds) {
            return false;
        }
    }
    sh->admitted = 1;
    return true;
}
