/* What the two halves of the on-disk format share: how every structure begins
 * and ends. */
#pragma once

#include "store/format.h"

enum { MAGIC_BYTES = 8, SEAL_BYTES = 4 };

/* How every structure but a row begins. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8, /* u32, then 4 bytes zero */
    AT_BODY = 16
};

/* All zero except magic and version. */
void ldr_format_begin(uint8_t *block, size_t bytes, const char *magic);
/* seed: what the checksum starts from. */
void ldr_format_seal(uint8_t *block, size_t bytes, uint32_t seed);
/* Magic, version and seal. */
ldr_parse_t ldr_format_check(const uint8_t *block, size_t bytes,
                             const char *magic, uint32_t seed);
