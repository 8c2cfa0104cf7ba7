#include "larder/larder.h"

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

#define TEXT(x) #x
#define NUMBER(x) TEXT(x)

const char *larder_version(void)
{
    return NUMBER(LARDER_VERSION_MAJOR) "." NUMBER(
        LARDER_VERSION_MINOR) "." NUMBER(LARDER_VERSION_PATCH) " ("
                                                               "commit"
                                                               " " LARDER_COMMIT
                                                               ","
                                                               " " LARDER_BUILD_TYPE
#if LDR_HAVE_URING
                                                               ", io_uring"
#endif
#if LDR_FAULTS
                                                               ", fault points"
#endif
                                                               ")";
}
