/* What the files of this folder share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

/* Whether this side has such a status. */
bool ldr_wire_status_known(int32_t status);

/* What it is to this side: LARDER_CAUSE_OTHER if it does not know it. */
larder_cause_t ldr_wire_cause(uint32_t cause);

/* Text of a fixed width: zeros after it up to the width, no control
 * characters. */
void ldr_wire_put_text(uint8_t *at, const char *text, size_t width);
bool ldr_wire_get_text(const uint8_t *at, size_t width, char *text);
