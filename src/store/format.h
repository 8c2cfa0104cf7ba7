/*
 * The on-disk format: pure functions between structs and bytes.
 * docs/concepts/format.md is its description; both change together, with
 * LDR_FORMAT_VERSION.
 *
 * A directory holds
 *   larder.lock        locked while a node uses the directory
 *   larder.super       two copies of the superblock
 *   larder.ledger-N    two: which segments are in use, and what was removed
 *   segment-NNNNNN     fixed size; block 0 header, records, table, footer
 *
 * A record is its payload, padded with zeros to blocks, then one block that
 * begins with its descriptor. A tombstone has no payload.
 *
 * Everything is little-endian. Every structure carries a magic, its own
 * checksum (CRC-32C over the bytes before it), and what ties it to its place:
 * the directory, the segment's sequence and nonce, the block.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/io.h"
#include "larder/larder.h"

#define LDR_FORMAT_VERSION 1u
#define LDR_ID_BYTES 16
#define LDR_SUPER_BYTES (128u * 1024) /* one copy */
#define LDR_SUPER_SPACES_MAX 2000u
#define LDR_SUPER_TENANTS_MAX 1000u
#define LDR_ROW_BYTES 128u

/* ---- names of files ---- */

#define LDR_LOCK_NAME "larder.lock"
/* Somebody else has locked it: with the directory. */
#define LDR_IN_USE_TEXT                                                        \
    "%s: in use by another node (a daemon, or an engine's own): stop it, or "  \
    "ask it by its URL, unix:PATH"
#define LDR_SUPER_NAME "larder.super"
#define LDR_LEDGERS 2
#define LDR_LEDGER_NAME_BYTES 16
#define LDR_SEGMENTS_MAX 0xfffffu
#define LDR_SEGMENT_NAME_BYTES 16

void ldr_segment_name(uint32_t segment, char name[LDR_SEGMENT_NAME_BYTES]);
/* False: not the name of a segment, to the letter. */
bool ldr_segment_number(const char *name, uint32_t *segment_p);
void ldr_ledger_name(unsigned file, char name[LDR_LEDGER_NAME_BYTES]);
bool ldr_ledger_named(const char *name);

/* ---- superblock ---- */

typedef struct ldr_super_space {
    uint8_t id[LDR_ID_BYTES];
    uint32_t epoch; /* > 0; spaces not listed are at epoch 0 */
} ldr_super_space_t;

typedef struct ldr_super_tenant {
    uint8_t id[LDR_ID_BYTES];    /* hash of the name */
    uint8_t check[LDR_ID_BYTES]; /* check value of its secret */
} ldr_super_tenant_t;

typedef struct ldr_super {
    uint8_t dir_id[LDR_ID_BYTES];
    uint64_t generation;    /* the higher copy wins */
    uint64_t segment_bytes; /* of every segment in the directory */
    uint32_t space_count;
    uint32_t tenant_count;
    ldr_super_space_t spaces[LDR_SUPER_SPACES_MAX];
    ldr_super_tenant_t tenants[LDR_SUPER_TENANTS_MAX];
} ldr_super_t;

typedef enum ldr_parse {
    LDR_PARSE_OK,
    LDR_PARSE_EMPTY,   /* all zero: never written */
    LDR_PARSE_VERSION, /* ours, but of a version that is not known here */
    LDR_PARSE_BAD      /* anything else */
} ldr_parse_t;

/* The version that a block of Larder's says it has. */
uint32_t ldr_format_version(const uint8_t *block);
/* The directory has a block that was parsed as LDR_PARSE_VERSION, at the start
 * of this segment (LDR_NIL: of the superblock): LARDER_E_VERSION, and what to
 * do. */
larder_status_t ldr_format_unknown(const char *dir, uint32_t segment,
                                   const uint8_t *block);

/* block: LDR_SUPER_BYTES, all of them written. */
void ldr_super_compose(const ldr_super_t *super, uint8_t *block);
ldr_parse_t ldr_super_parse(const uint8_t *block, ldr_super_t *super);

/* ---- segment header: block 0 ---- */

typedef struct ldr_segment_header {
    uint8_t dir_id[LDR_ID_BYTES];
    uint32_t segment;  /* the number in the file's name */
    uint64_t sequence; /* > 0, higher for every use of any segment */
    uint64_t nonce;    /* random per use; seeds all checksums within */
    uint64_t segment_bytes;
} ldr_segment_header_t;

/* block: LDR_BLOCK bytes. */
void ldr_header_compose(const ldr_segment_header_t *header, uint8_t *block);
ldr_parse_t ldr_header_parse(const uint8_t *block,
                             ldr_segment_header_t *header);

/* ---- records ---- */

typedef enum ldr_record_kind {
    LDR_RECORD_SHARD = 1,
    LDR_RECORD_TOMBSTONE = 2
} ldr_record_kind_t;

enum { LDR_RECORD_PINNED = 1 };
enum { LDR_CODEC_RAW = 0 };

/* What the descriptor of a record says, and a row of the table: a row is the
 * same without payload_crc. */
typedef struct ldr_record {
    ldr_record_kind_t kind;
    larder_key_t key;
    larder_key_t parent; /* zero: none */
    uint8_t space_id[LDR_ID_BYTES];
    uint32_t epoch;
    uint16_t group;
    uint16_t shard;
    uint16_t shards;
    uint16_t codec;
    uint32_t flags;
    uint32_t depth;
    uint32_t block;  /* where the payload starts */
    uint32_t length; /* of the payload, bytes */
    uint32_t written_s;
    uint32_t expires_s;
    uint32_t payload_crc; /* plain CRC-32C of the payload */
} ldr_record_t;

/* Blocks of a record, its descriptor included. */
static inline uint32_t ldr_record_blocks(uint32_t length)
{
    return (length + LDR_BLOCK - 1) / LDR_BLOCK + 1;
}

/* Composes the descriptor's block (LDR_BLOCK bytes, the rest zero). The stored
 * payload checksum is that of the payload seeded with the descriptor's, so
 * that neither passes with another's partner. */
void ldr_record_compose(const ldr_record_t *record,
                        const ldr_segment_header_t *header, uint8_t *block);

/* descriptor_block: the block number that these bytes were read from. Accepts
 * only a descriptor written there in this use of this segment. On success
 * payload_crc is the plain CRC-32C that the payload must have. */
bool ldr_record_parse(const uint8_t *block, const ldr_segment_header_t *header,
                      uint32_t descriptor_block, ldr_record_t *record);

/* ---- the table that closes a segment ---- */

/* Blocks of a table of so many rows, footer included. */
uint32_t ldr_table_blocks(uint32_t rows);

void ldr_row_compose(const ldr_record_t *record, uint8_t *row);
/* Checks every field on its own, but not the place, which may lead anywhere. */
bool ldr_row_fields(const uint8_t *row, ldr_record_t *record);
/* Checks every field that could lead out of the segment, too. */
bool ldr_row_parse(const uint8_t *row, const ldr_segment_header_t *header,
                   ldr_record_t *record);

typedef struct ldr_footer {
    uint32_t rows;
    uint32_t used_blocks; /* header and records */
    uint32_t table_crc;   /* over the rows */
} ldr_footer_t;

/* The footer is the segment's last block; the rows end right before it:
 * they start at block segment_blocks - ldr_table_blocks(rows). */
void ldr_footer_compose(const ldr_footer_t *footer,
                        const ldr_segment_header_t *header, uint8_t *block);
bool ldr_footer_parse(const uint8_t *block, const ldr_segment_header_t *header,
                      ldr_footer_t *footer);

/* ---- the ledger ---- */

/* Block 0 of a ledger's file. */
typedef struct ldr_ledger_header {
    uint8_t dir_id[LDR_ID_BYTES];
    uint64_t generation; /* of the two files the higher one counts */
    uint64_t nonce;      /* random; seeds the checksums of its blocks */
    uint64_t sequence;   /* the highest that a segment was given before */
    uint32_t blocks;     /* of the file */
    uint32_t first;      /* blocks that were written before the header was */
} ldr_ledger_header_t;

/* block: LDR_BLOCK bytes. */
void ldr_ledger_compose(const ldr_ledger_header_t *header, uint8_t *block);
ldr_parse_t ldr_ledger_parse(const uint8_t *block, ldr_ledger_header_t *header);

typedef enum ldr_ledger_kind {
    LDR_LEDGER_USED = 1, /* the segment is in use: sequence, nonce */
    LDR_LEDGER_FREE = 2, /* it is not any more */
    LDR_LEDGER_REMOVED = 3,
    LDR_LEDGER_CLOSED = 4 /* as USED, and it has a table */
} ldr_ledger_kind_t;

/* What a block of the ledger says, so many times at most. Of a removal,
 * sequence and block are where its tombstone stood first. */
#define LDR_LEDGER_ENTRIES 55u
typedef struct ldr_ledger_entry {
    ldr_ledger_kind_t kind;
    uint32_t segment; /* of all but REMOVED */
    uint64_t sequence, nonce;
    uint32_t block, epoch;
    uint16_t group, shard;
    larder_key_t key;
    uint8_t space_id[LDR_ID_BYTES];
} ldr_ledger_entry_t;

typedef struct ldr_ledger_block {
    uint32_t number;   /* of the block in the file */
    uint32_t unsynced; /* blocks right before it that were written with it */
    uint32_t count;
    ldr_ledger_entry_t entries[LDR_LEDGER_ENTRIES];
} ldr_ledger_block_t;

void ldr_entries_compose(const ldr_ledger_block_t *entries,
                         const ldr_ledger_header_t *header, uint8_t *block);
/* Accepts only what was written there in this generation. */
bool ldr_entries_parse(const uint8_t *block, const ldr_ledger_header_t *header,
                       uint32_t number, ldr_ledger_block_t *entries);
