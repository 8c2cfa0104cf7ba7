/* The few forms of msgpack that KV events need, into a buffer that grows. What
 * does not fit for lack of memory sets failed, and nothing more is added. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ldr_pack {
    uint8_t *at;
    size_t capacity, bytes;
    bool failed;
} ldr_pack_t;

void ldr_pack_nil(ldr_pack_t *p);
void ldr_pack_uint(ldr_pack_t *p, uint64_t value);
void ldr_pack_double(ldr_pack_t *p, double value);
void ldr_pack_text(ldr_pack_t *p, const char *text); /* up to 65,535 bytes */
void ldr_pack_bytes(ldr_pack_t *p, const void *data, size_t bytes); /* 255 */
/* So many items, or pairs, follow. */
void ldr_pack_array(ldr_pack_t *p, uint32_t count);
void ldr_pack_map(ldr_pack_t *p, uint32_t count); /* up to 65,535 */
/* What was packed elsewhere. */
void ldr_pack_add(ldr_pack_t *p, const void *data, size_t bytes);
