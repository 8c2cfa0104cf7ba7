/* Whether the invariants of store/policy_learned.h hold: looks at everything.
 */
#pragma once

#include <stdbool.h>

#include "store/policy.h"

bool ldr_policy_default_check(const ldr_policy_t *policy);
