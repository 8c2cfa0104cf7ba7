/* What the files of this folder share. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "larder/larder.h"

/* Whether this side has such a status. */
bool ldr_wire_status_known(int32_t status);

/* What it is to this side: LARDER_CAUSE_OTHER if it does not know it. */
larder_cause_t ldr_wire_cause(uint32_t cause);
