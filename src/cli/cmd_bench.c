/*
 * larder bench: becomes the program larder-bench, which has all that measures
 * (bench/larder). The one beside this program comes first, since the two are of
 * one build; the PATH is for those who install them apart.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

int ldr_cmd_bench(char **argv)
{
    char program[] = "larder-bench", path[PATH_MAX];
    const char *tried = program;
    int error = ENOENT;

    argv[0] = program;
    if (ldr_program_beside(program, path)) {
        tried = path;
        execv(path, argv);
        error = errno;
    }
    execvp(program, argv);
    fprintf(stderr,
            "larder bench: cannot start %s: %s; there is none on the PATH "
            "either. It is installed with larder: by `make install`, or by the "
            "Python package larder-kv\n",
            tried, strerror(error));
    return LDR_EXIT_FAILED;
}
