/* What the parts of the configuration share. */
#pragma once

#include "base/config.h"

#define LDR_CONFIG_BYTES_MAX (1u << 20) /* of a file */
#define LDR_CONFIG_LINE_MAX 1024

/* Sets an option and remembers its source. */
larder_status_t ldr_config_set(ldr_config_t *c, size_t index, const char *value,
                               const char *source);

/* Puts "SOURCE: " before this thread's error text, and gives the status. */
larder_status_t ldr_config_fail(const char *source, larder_status_t st);

/* Which option of serve this is; a negative status, with a text that names
 * the nearest, if it is none. what: "flag --" or "key ". */
int ldr_config_option(const char *name, size_t length, const char *what);

/* Adds to the directories of this layer; the first one replaces those of the
 * layers below. */
larder_status_t ldr_config_dir(ldr_config_t *c, const char *dir,
                               const char *source, bool first);

/* Reads the file c->file into c (config_file.c). */
larder_status_t ldr_config_read(ldr_config_t *c);

/* The same with its text; name stands for the file in texts. */
larder_status_t ldr_config_parse(ldr_config_t *c, const char *name,
                                 const char *text, size_t bytes);

/* All defaults, with the tenant "default". NULL: no memory. */
ldr_config_t *ldr_config_new(void);

/* What one value alone cannot say: options that need or exclude others. */
larder_status_t ldr_config_check(const ldr_config_t *c);
