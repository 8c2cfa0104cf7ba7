/*
 * Composing and parsing the ledger's structures: format.c for a directory's
 * second account. A block of it is sealed with the identity of its generation,
 * so that one of an earlier generation of the file, or of another directory,
 * does not pass.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "store/format_int.h"

static const char ledger_magic[MAGIC_BYTES + 1] = "LARDERLG";
static const char entries_magic[MAGIC_BYTES + 1] = "LARDERLE";

enum {
    LEDGER_DIR_ID = AT_BODY,
    LEDGER_GENERATION = 32, /* u64 */
    LEDGER_NONCE = 40,      /* u64; up to here under every seal of its blocks */
    LEDGER_SEQUENCE = 48,   /* u64 */
    LEDGER_BLOCKS = 56,     /* u32 */
    LEDGER_FIRST = 60,      /* u32 */
    LEDGER_END = 64
};

enum {
    ENTRIES_GENERATION = AT_BODY, /* u64 */
    ENTRIES_NONCE = 24,           /* u64 */
    ENTRIES_NUMBER = 32,          /* u32 */
    ENTRIES_COUNT = 36,           /* u32 */
    ENTRIES_UNSYNCED = 40,        /* u32, then 20 bytes zero */
    ENTRIES_FIRST = 64,
    ENTRY_KEY = 0,       /* of a segment: u64 nonce, then zero */
    ENTRY_SPACE_ID = 32, /* of a segment: zero */
    ENTRY_SEQUENCE = 48, /* u64 */
    ENTRY_BLOCK = 56,    /* u32; of a segment: its number */
    ENTRY_EPOCH = 60,    /* u32 */
    ENTRY_GROUP = 64,    /* u16, as all from here */
    ENTRY_SHARD = 66,
    ENTRY_KIND = 68,
    ENTRY_ZERO = 70,
    ENTRY_BYTES = 72,
    ENTRIES_END = ENTRIES_FIRST + LDR_LEDGER_ENTRIES * ENTRY_BYTES
};

static_assert(LEDGER_END + SEAL_BYTES <= LDR_BLOCK, "on-disk");
static_assert(ENTRIES_END == 4024, "on-disk");
static_assert(ENTRIES_END + SEAL_BYTES <= LDR_BLOCK, "on-disk");

void ldr_ledger_name(unsigned file, char name[LDR_LEDGER_NAME_BYTES])
{
    snprintf(name, LDR_LEDGER_NAME_BYTES, "larder.ledger-%u",
             file % LDR_LEDGERS);
}

bool ldr_ledger_named(const char *name)
{
    char same[LDR_LEDGER_NAME_BYTES];
    bool is = false;

    for (unsigned i = 0; i < LDR_LEDGERS; i++) {
        ldr_ledger_name(i, same);
        is = is || strcmp(name, same) == 0;
    }
    return is;
}

/* The blocks of one generation of one directory's ledger begin their seals with
 * this. */
static uint32_t ledger_seed(const ldr_ledger_header_t *header)
{
    uint8_t identity[LEDGER_SEQUENCE - AT_BODY];

    memcpy(identity, header->dir_id, LDR_ID_BYTES);
    ldr_put64(identity + (LEDGER_GENERATION - AT_BODY), header->generation);
    ldr_put64(identity + (LEDGER_NONCE - AT_BODY), header->nonce);
    return ldr_crc32c(0, identity, sizeof(identity));
}

void ldr_ledger_compose(const ldr_ledger_header_t *header, uint8_t *block)
{
    ldr_format_begin(block, LDR_BLOCK, ledger_magic);
    memcpy(block + LEDGER_DIR_ID, header->dir_id, LDR_ID_BYTES);
    ldr_put64(block + LEDGER_GENERATION, header->generation);
    ldr_put64(block + LEDGER_NONCE, header->nonce);
    ldr_put64(block + LEDGER_SEQUENCE, header->sequence);
    ldr_put32(block + LEDGER_BLOCKS, header->blocks);
    ldr_put32(block + LEDGER_FIRST, header->first);
    ldr_format_seal(block, LDR_BLOCK, 0);
}

ldr_parse_t ldr_ledger_parse(const uint8_t *block, ldr_ledger_header_t *header)
{
    ldr_parse_t parse = ldr_format_check(block, LDR_BLOCK, ledger_magic, 0);

    if (parse != LDR_PARSE_OK) {
        return parse;
    }
    if (ldr_get32(block + LEDGER_FIRST) >= ldr_get32(block + LEDGER_BLOCKS)) {
        return LDR_PARSE_BAD;
    }
    memcpy(header->dir_id, block + LEDGER_DIR_ID, LDR_ID_BYTES);
    header->generation = ldr_get64(block + LEDGER_GENERATION);
    header->nonce = ldr_get64(block + LEDGER_NONCE);
    header->sequence = ldr_get64(block + LEDGER_SEQUENCE);
    header->blocks = ldr_get32(block + LEDGER_BLOCKS);
    header->first = ldr_get32(block + LEDGER_FIRST);
    return LDR_PARSE_OK;
}

static void entry_compose(const ldr_ledger_entry_t *e, uint8_t *p)
{
    ldr_put64(p + ENTRY_SEQUENCE, e->sequence);
    ldr_put16(p + ENTRY_KIND, (uint16_t)e->kind);
    if (e->kind != LDR_LEDGER_REMOVED) {
        ldr_put64(p + ENTRY_KEY, e->nonce);
        ldr_put32(p + ENTRY_BLOCK, e->segment);
        return;
    }
    memcpy(p + ENTRY_KEY, e->key.hash, LARDER_KEY_BYTES);
    memcpy(p + ENTRY_SPACE_ID, e->space_id, LDR_ID_BYTES);
    ldr_put32(p + ENTRY_BLOCK, e->block);
    ldr_put32(p + ENTRY_EPOCH, e->epoch);
    ldr_put16(p + ENTRY_GROUP, e->group);
    ldr_put16(p + ENTRY_SHARD, e->shard);
}

static bool entry_parse(const uint8_t *p, ldr_ledger_entry_t *e)
{
    *e = (ldr_ledger_entry_t){
        .kind = (ldr_ledger_kind_t)ldr_get16(p + ENTRY_KIND),
        .sequence = ldr_get64(p + ENTRY_SEQUENCE),
    };
    if (e->kind == LDR_LEDGER_USED || e->kind == LDR_LEDGER_FREE ||
        e->kind == LDR_LEDGER_CLOSED) {
        e->segment = ldr_get32(p + ENTRY_BLOCK);
        e->nonce = ldr_get64(p + ENTRY_KEY);
        return e->segment < LDR_SEGMENTS_MAX &&
               (e->kind == LDR_LEDGER_FREE || e->sequence > 0);
    }
    memcpy(e->key.hash, p + ENTRY_KEY, LARDER_KEY_BYTES);
    memcpy(e->space_id, p + ENTRY_SPACE_ID, LDR_ID_BYTES);
    e->block = ldr_get32(p + ENTRY_BLOCK);
    e->epoch = ldr_get32(p + ENTRY_EPOCH);
    e->group = ldr_get16(p + ENTRY_GROUP);
    e->shard = ldr_get16(p + ENTRY_SHARD);
    return e->kind == LDR_LEDGER_REMOVED && e->sequence > 0 &&
           e->group < LARDER_GROUPS_MAX && e->shard < LARDER_SHARDS_MAX;
}

void ldr_entries_compose(const ldr_ledger_block_t *entries,
                         const ldr_ledger_header_t *header, uint8_t *block)
{
    ldr_format_begin(block, LDR_BLOCK, entries_magic);
    ldr_put64(block + ENTRIES_GENERATION, header->generation);
    ldr_put64(block + ENTRIES_NONCE, header->nonce);
    ldr_put32(block + ENTRIES_NUMBER, entries->number);
    ldr_put32(block + ENTRIES_COUNT, entries->count);
    ldr_put32(block + ENTRIES_UNSYNCED, entries->unsynced);
    for (uint32_t i = 0; i < entries->count; i++) {
        entry_compose(&entries->entries[i],
                      block + ENTRIES_FIRST + (size_t)i * ENTRY_BYTES);
    }
    ldr_format_seal(block, LDR_BLOCK, ledger_seed(header));
}

bool ldr_entries_parse(const uint8_t *block, const ldr_ledger_header_t *header,
                       uint32_t number, ldr_ledger_block_t *entries)
{
    uint32_t count = ldr_get32(block + ENTRIES_COUNT);
    uint32_t unsynced = ldr_get32(block + ENTRIES_UNSYNCED);

    if (ldr_format_check(block, LDR_BLOCK, entries_magic,
                         ledger_seed(header)) != LDR_PARSE_OK ||
        ldr_get64(block + ENTRIES_GENERATION) != header->generation ||
        ldr_get64(block + ENTRIES_NONCE) != header->nonce ||
        ldr_get32(block + ENTRIES_NUMBER) != number || unsynced >= number ||
        count > LDR_LEDGER_ENTRIES) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!entry_parse(block + ENTRIES_FIRST + (size_t)i * ENTRY_BYTES,
                         &entries->entries[i])) {
            return false;
        }
    }
    entries->number = number;
    entries->count = count;
    entries->unsynced = unsynced;
    return true;
}
