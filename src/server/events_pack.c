/* KV events as msgpack: see events_pack.h. */
#include "server/events_pack.h"

static void pack_pair(ldr_pack_t *p, const char *name, const char *value)
{
    ldr_pack_text(p, name);
    ldr_pack_text(p, value);
}

static void pack_number(ldr_pack_t *p, const char *name, uint64_t value)
{
    ldr_pack_text(p, name);
    ldr_pack_uint(p, value);
}

static void pack_owner(ldr_pack_t *p, bool owned)
{
    if (owned) {
        pack_pair(p, "ownership", "larder");
    }
}

void ldr_event_pack_cleared(ldr_pack_t *p, bool owned)
{
    ldr_pack_map(p, 1 + owned);
    pack_pair(p, "type", "AllBlocksCleared");
    pack_owner(p, owned);
}

static void pack_hash(ldr_pack_t *p, const ldr_source_t *s, const uint8_t *hash)
{
    uint64_t number = 0;

    if (!s->numbers) {
        ldr_pack_bytes(p, hash, s->hash_bytes);
        return;
    }
    for (unsigned i = 0; i < 8; i++) {
        number = number << 8 | hash[i];
    }
    ldr_pack_uint(p, number);
}

/* What only BlockStored has. */
static void pack_tokens(ldr_pack_t *p, const ldr_catalog_change_t *c)
{
    const ldr_source_t *s = c->source;
    uint32_t tokens = c->count * s->block_tokens;

    ldr_pack_text(p, "parent_block_hash");
    if (c->parent != NULL) {
        pack_hash(p, s, c->parent);
    } else {
        ldr_pack_nil(p);
    }
    ldr_pack_text(p, "token_ids");
    ldr_pack_array(p, tokens);
    for (uint32_t i = 0; i < tokens; i++) {
        ldr_pack_uint(p, c->tokens[i]);
    }
    pack_number(p, "block_size", s->block_tokens);
    ldr_pack_text(p, "lora_id");
    ldr_pack_nil(p);
    ldr_pack_text(p, "lora_name");
    ldr_pack_nil(p);
    pack_pair(p, "kv_cache_spec_kind", s->kind);
}

void ldr_event_pack(ldr_pack_t *p, const ldr_catalog_change_t *c, bool owned)
{
    ldr_pack_map(p, (c->stored ? 11 : 5) + owned);
    pack_pair(p, "type", c->stored ? "BlockStored" : "BlockRemoved");
    ldr_pack_text(p, "block_hashes");
    ldr_pack_array(p, c->count);
    for (uint32_t i = 0; i < c->count; i++) {
        pack_hash(p, c->source, c->hashes + (size_t)i * LDR_BLOCK_HASH_MAX);
    }
    pack_pair(p, "medium", ldr_medium_names[c->medium]);
    pack_number(p, "group_idx", c->source->group_idx);
    pack_pair(p, "locality", c->medium == LDR_MEDIUM_AWAY ? "REMOTE" : "LOCAL");
    pack_owner(p, owned);
    if (c->stored) {
        pack_tokens(p, c);
    }
}
