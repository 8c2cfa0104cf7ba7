/*
 * What an object of the shared tier holds: records, each a payload in whole
 * blocks and one block with its descriptor, then a table of them and a footer
 * block. Pure functions between structs and bytes; docs/concepts/shared.md
 * describes the format.
 *
 * All records of an object are of one space and one epoch of it. A record can
 * be read and checked on its own, with one ranged read and nothing else: its
 * descriptor carries the object's id, its place in it, its full name, the
 * payload's CRC-32C, and a tag under the tenant's key. The tag is
 * AES-256-GCM's, with a key of the object's own (from the tenant's key and the
 * object's random id) and the record's place as nonce, so no pair is used
 * twice. Without encryption descriptor and payload are both authenticated only;
 * with it the payload is encrypted too, and the crc is that of the plain bytes.
 *
 * The payload's CRC-32C was computed when it was saved, and whoever seals
 * checks it: what was damaged between there and the seal never gets a tag. From
 * the seal on the tag alone says that payload and descriptor, and with it the
 * CRC, are what was sealed, to the bit and with any damage but one in 2^128; so
 * a reader looks at nothing else, and hands on the CRC as that of the bytes it
 * has.
 *
 * Storage that others can write to can thus lose records or give back old ones,
 * which is a miss or the very same bytes, but never make them up.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "larder/larder.h"
#include "store/format.h"

#define LDR_OBJECT_VERSION 1u
#define LDR_TAG_BYTES 16u
#define LDR_SEAL_KEY_BYTES 32u
#define LDR_OBJECT_ROWS_MAX 4096u

/* The two keys of a tenant in a tier. */
typedef struct ldr_seal {
    uint8_t mac[LDR_SEAL_KEY_BYTES];    /* from the tenant's secret */
    uint8_t cipher[LDR_SEAL_KEY_BYTES]; /* from its key file */
    bool encrypts;
} ldr_seal_t;

typedef struct ldr_object {
    uint8_t id[LDR_ID_BYTES];       /* random, never used again */
    uint8_t space_id[LDR_ID_BYTES]; /* the node's id of the space */
    uint32_t epoch;                 /* of the space in this tier */
    uint32_t written_s;
    uint32_t rows;
    uint32_t used_blocks; /* of records, before the table */
} ldr_object_t;

/* record.block: where its payload starts, in blocks; record.space_id and epoch
 * are the object's. */

/*
 * Composes the descriptor's block and seals the payload, which lies in iov:
 * length bytes and zeros up to the next block. With encryption the payload's
 * blocks are written to `sealed` (whole blocks; the last is padded), else they
 * are left as they are and sealed is not looked at. record->payload_crc is
 * given, and must be that of the payload. False: libcrypto failed, or the
 * record is none: no length, or not that of iov, or damaged (see below).
 */
bool ldr_object_seal(const ldr_seal_t *seal, const ldr_object_t *object,
                     const ldr_record_t *record, const struct iovec *iov,
                     unsigned iov_count, uint8_t *sealed, uint8_t *block);

/* Whether the payload has its CRC-32C still: which of these it was. */
bool ldr_object_intact(const ldr_record_t *record, const struct iovec *iov,
                       unsigned iov_count);

typedef enum ldr_unseal {
    LDR_UNSEAL_OK,
    LDR_UNSEAL_BAD, /* not what was written there: garbage, or forged */
    LDR_UNSEAL_KEY, /* encrypted, and there is no key, or none was and must */
    LDR_UNSEAL_FAILED, /* libcrypto */
} ldr_unseal_t;

/* The way back: the payload in iov is checked against the tag, and decrypted in
 * place where it was encrypted. object: id and space as expected;
 * its epoch is filled in. at: the block where the payload starts. Only with OK
 * are object and record written to, and the payload good for anything. Key,
 * group and shard are the record's own: the caller compares. */
ldr_unseal_t ldr_object_unseal(const ldr_seal_t *seal, ldr_object_t *object,
                               uint32_t at, const uint8_t *block,
                               const struct iovec *iov, unsigned iov_count,
                               ldr_record_t *record);

/* ---- the table and the footer, for whoever has lost the manifests ---- */

/* Bytes of both for so many rows: whole blocks. */
size_t ldr_object_tail_bytes(uint32_t rows);
/* tail: that many bytes. records: in the order of their blocks. False:
 * libcrypto failed, or they do not fit the object. */
bool ldr_object_tail_compose(const ldr_seal_t *seal, const ldr_object_t *object,
                             const ldr_record_t *records, uint8_t *tail);
/* From the last block of an object: how many bytes its tail has. 0: none. */
size_t ldr_object_tail_find(const uint8_t *last_block);
/* object: the id is given, from the object's name; the rest of it is filled in.
 * records: room for LDR_OBJECT_ROWS_MAX; no payload_crc. False: not whole, not
 * that object's, or not under this key; what object and records then hold is
 * for nobody. */
bool ldr_object_tail_parse(const ldr_seal_t *seal, const uint8_t *tail,
                           size_t bytes, ldr_object_t *object,
                           ldr_record_t *records);
