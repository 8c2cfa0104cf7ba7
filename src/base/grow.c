/*
 * Parameter structs and result structs of other sizes than ours. Pure
 * functions.
 */
#include "base/grow.h"

#include <string.h>

#include "base/bytes.h"
#include "base/log.h"

static uint64_t struct_bytes(const void *at)
{
    uint64_t bytes;

    memcpy(&bytes, at, sizeof(bytes));
    return bytes;
}

larder_status_t ldr_mask_check(uint64_t field_mask, uint64_t last)
{
    return field_mask < 2 * last
               ? LARDER_OK
               : ldr_fail(LARDER_E_UNSUPPORTED,
                          "field_mask %#llx: this is larder %s, which knows "
                          "bits up to %#llx: update the library",
                          (unsigned long long)field_mask, larder_version(),
                          (unsigned long long)last);
}

larder_status_t ldr_out_check(const void *out)
{
    return out != NULL && struct_bytes(out) >= sizeof(uint64_t)
               ? LARDER_OK
               : ldr_fail(LARDER_E_INVALID,
                          "set struct_bytes to the size of your struct");
}

void ldr_out_fill(void *out, const void *from, size_t bytes)
{
    uint64_t filled = ldr_min64(struct_bytes(out), bytes);

    memcpy(out, from, filled);
    memcpy(out, &filled, sizeof(filled));
}

larder_status_t ldr_in_check(const void *in, size_t bytes)
{
    if (in == NULL || struct_bytes(in) < bytes) {
        return ldr_fail(LARDER_E_INVALID,
                        "set struct_bytes to the size of your struct, at least "
                        "%zu bytes",
                        bytes);
    }
    for (size_t i = bytes; i < struct_bytes(in); i++) {
        if (((const uint8_t *)in)[i] != 0) {
            return ldr_fail(LARDER_E_UNSUPPORTED,
                            "byte %zu of a struct is set: this is larder %s, "
                            "which knows %zu of them: update the library",
                            i, larder_version(), bytes);
        }
    }
    return LARDER_OK;
}
