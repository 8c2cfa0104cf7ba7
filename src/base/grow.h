/* The rule of larder.h for structs that grow, in one place. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

/* Of parameters: last is the newest bit that this library knows. E_UNSUPPORTED:
 * the caller has set a newer one. */
larder_status_t ldr_mask_check(uint64_t field_mask, uint64_t last);

/* Of a struct that begins with struct_bytes and is to be filled. E_INVALID: it
 * is NULL, or the caller did not set its size. */
larder_status_t ldr_out_check(const void *out);

/* Fills it with as much as it has room for; from is the library's own, which
 * begins with struct_bytes too. */
void ldr_out_fill(void *out, const void *from, size_t bytes);

/* Of a struct that begins with struct_bytes and is read: that it has the bytes
 * that this library reads, and zeros behind them. */
larder_status_t ldr_in_check(const void *in, size_t bytes);
