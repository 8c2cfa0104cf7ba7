#include "larder/larder.h"

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
