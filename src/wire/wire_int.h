/* What the files of this folder share. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Whether this version has such a status. */
bool ldr_wire_status_known(int32_t status);
