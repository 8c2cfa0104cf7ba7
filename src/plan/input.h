/*
 * A file of text as a stream of bytes: plain, or compressed with gzip or zstd,
 * told apart by its first bytes and not by its name. Only buffers are held.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "larder/larder.h"

typedef struct ldr_input ldr_input_t;

/* "-" is standard input. */
larder_status_t ldr_input_open(const char *path, ldr_input_t **input_p);
/* Up to `bytes` bytes; 0: the end; -1: it cannot be read, with the text of
 * ldr_fail(). */
ssize_t ldr_input_read(ldr_input_t *input, void *to, size_t bytes);
/* Bytes of the file that were read, and all it has; 0: not known. */
uint64_t ldr_input_at(const ldr_input_t *input);
uint64_t ldr_input_size(const ldr_input_t *input);
void ldr_input_close(ldr_input_t *input);
