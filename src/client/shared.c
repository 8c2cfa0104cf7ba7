#include "base/clock.h"
#include "tier/shared/objects.h"

larder_status_t larder_shared_create(const char *url, const char *login,
                                     uint32_t timeout_ms)
{
    uint64_t now_ns = ldr_now_ns(&ldr_clock_real);

    if (url == NULL) {
        return ldr_fail(LARDER_E_INVALID, "no url");
    }
    ldr_fail_clear();
    return ldr_objects_make(url, login != NULL ? login : "",
                            timeout_ms == LARDER_FOREVER
                                ? UINT64_MAX
                                : now_ns + timeout_ms * UINT64_C(1000000));
}
