/* The library's version, its ABI's number and its constants, for callers that
 * cannot read larder.h. Constants and pure functions only. */
#include "larder/larder.h"

#include <string.h>

#include "base/copy.h"
#include "base/fault.h"

#ifndef LARDER_COMMIT
#define LARDER_COMMIT "unknown"
#endif
#ifndef LARDER_BUILD_TYPE
#define LARDER_BUILD_TYPE "unknown"
#endif
#ifndef LDR_HAVE_URING
#define LDR_HAVE_URING 0
#endif

#if LDR_HAVE_URING
#define URING ", io_uring"
#else
#define URING ""
#endif
#if LDR_FAULTS
#define FAULTS ", fault points"
#else
#define FAULTS ""
#endif

#define TEXT(x) #x
#define NUMBER(x) TEXT(x)
#define VERSION                                                                \
    NUMBER(LARDER_VERSION_MAJOR)                                               \
    "." NUMBER(LARDER_VERSION_MINOR) "." NUMBER(LARDER_VERSION_PATCH)

const char *larder_version(void)
{
    return VERSION " (commit " LARDER_COMMIT ", " LARDER_BUILD_TYPE URING FAULTS
                   ")";
}

uint32_t larder_crc32c(uint32_t crc, const void *bytes, size_t count)
{
    return ldr_crc32c(crc, bytes, count);
}

uint32_t larder_abi(void)
{
    return LARDER_ABI;
}

uint64_t larder_constant(const char *name)
{
#define ONE(constant)                                                          \
    {                                                                          \
#constant, constant                                                    \
    }
    static const struct {
        const char *name;
        uint64_t value;
    } all[] = {
        ONE(LARDER_TIER_COUNT),  ONE(LARDER_TIERS_MAX),
        ONE(LARDER_CAUSE_COUNT), ONE(LARDER_CAUSES_MAX),
        ONE(LARDER_KEY_BYTES),   ONE(LARDER_STATS_DISKS_MAX),
        ONE(LARDER_SHARDS_MAX),  ONE(LARDER_VALUE_MAX),
    };
#undef ONE

    for (size_t i = 0; name != NULL && i < sizeof(all) / sizeof(*all); i++) {
        if (strcmp(name, all[i].name) == 0) {
            return all[i].value;
        }
    }
    return 0;
}
