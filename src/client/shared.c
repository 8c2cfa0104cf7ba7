/* Makes storage a shared tier. It needs no handle and keeps no state. */
#include "tier/shared/objects.h"

larder_status_t larder_shared_create(const char *url, const char *login,
                                     uint32_t timeout_ms)
{
    if (url == NULL) {
        return ldr_fail(LARDER_E_INVALID, "no url");
    }
    ldr_fail_clear();
    return ldr_objects_make(url, login != NULL ? login : "", timeout_ms);
}
