/*
 * Reads and writes the file of measured speeds. It is replaced whole, so that a
 * reader never sees half of it.
 */
#include "cli/measured.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool ldr_measured_path(char path[LDR_MEASURED_PATH])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;

    if (state != NULL && state[0] == '/') {
        n = snprintf(path, LDR_MEASURED_PATH, "%s/larder/doctor.json", state);
    } else if (home != NULL && home[0] == '/') {
        n = snprintf(path, LDR_MEASURED_PATH,
                     "%s/.local/state/larder/doctor.json", home);
    }
    return n > 0 && n < (int)LDR_MEASURED_PATH;
}

/* The number of this name in an object; 0: it has none. In its texts a quote
 * stands behind a backslash, so that none looks like a name. */
static double field(const char *object, const char *name)
{
    char text[40];
    int length = snprintf(text, sizeof(text), "\"%s\":", name);
    const char *at = strstr(object, text);

    return at != NULL ? strtod(at + length, NULL) : 0;
}

int ldr_measured_read(const char *path, ldr_measured_t *m)
{
    FILE *f = fopen(path, "re");
    char line[4096]; /* more than the doctor says of anything */

    *m = (ldr_measured_t){0};
    if (f == NULL) {
        return errno;
    }
    while (fgets(line, sizeof(line), f) != NULL) {
        double copies = field(line, LDR_MEASURED_COPIES);

        m->write += field(line, LDR_MEASURED_WRITES);
        m->read += field(line, LDR_MEASURED_READS);
        m->dram = copies > 0 ? copies : m->dram;
    }
    fclose(f);
    return m->read > 0 && m->write > 0 ? 0 : ENODATA;
}

/* The folders that the file is in, as far as they are missing. */
static int make_folders(const char *path)
{
    char folder[LDR_MEASURED_PATH];

    snprintf(folder, sizeof(folder), "%s", path);
    for (char *at = folder + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
            return errno;
        }
        *at = '/';
    }
    return 0;
}

int ldr_measured_keep(const char *path, const char *lines)
{
    char fresh[LDR_MEASURED_PATH + 16];
    int error = make_folders(path);

    if (error != 0) {
        return error;
    }
    snprintf(fresh, sizeof(fresh), "%s.%d", path, (int)getpid());
    FILE *f = fopen(fresh, "we");
    if (f == NULL) {
        return errno;
    }
    error = fputs(lines, f) < 0 ? errno : 0;
    if (fclose(f) != 0 && error == 0) {
        error = errno;
    }
    if (error == 0 && rename(fresh, path) != 0) {
        error = errno;
    }
    if (error != 0) {
        unlink(fresh);
    }
    return error;
}
