/*
 * Exit codes, and where the other program is. The command line has one thread.
 */
#include "cli/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/fault.h"

#if LDR_FAULTS
static bool arm_faults(void)
{
    const char *faults = getenv("LARDER_FAULTS");

    if (faults == NULL || ldr_fault_parse(faults)) {
        return true;
    }
    fprintf(stderr, "larder: LARDER_FAULTS is NAME[:NTH:TIMES],...; names:");
    for (int i = 0; i < LDR_FAULT_COUNT; i++) {
        fprintf(stderr, " %s", ldr_fault_name((ldr_fault_t)i));
    }
    fprintf(stderr, "\n");
    return false;
}
#else
static bool arm_faults(void)
{
    return true;
}
#endif

bool ldr_program_begin(void)
{
    ldr_check_abort();
    return arm_faults();
}

int ldr_program_end(int code)
{
    /* What was printed may be all that the caller wanted. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "larder: cannot write to standard output\n");
        return code != LDR_EXIT_OK ? code : LDR_EXIT_FAILED;
    }
    return code;
}

bool ldr_program_beside(const char *name, char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);

    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    size_t size = slash != NULL ? (size_t)(path + PATH_MAX - slash) : 0;
    return slash != NULL && (size_t)snprintf(slash, size, "/%s", name) < size;
}
