/* A stand-in for libnvrtc: what it compiles is a fixed text, that the driver's
 * stand-in takes for larder_move. For tests only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/kernel.h"
#include "gpu/standin.h"

typedef struct program {
    int compiled;
    char image[100];
} program_t;

#define X(type, name, parameters) type name parameters;
NVRTC_STANDIN_MAP(X)
#undef X

int nvrtcVersion(int *major, int *minor);
int nvrtcCreateProgram(program_t **p, const char *source, const char *name,
                       int header_count, const char *const *headers,
                       const char *const *includes);
int nvrtcCompileProgram(program_t *p, int count, const char *const *options);
int nvrtcGetCUBINSize(program_t *p, size_t *bytes);
int nvrtcGetCUBIN(program_t *p, char *image);
int nvrtcGetProgramLogSize(program_t *p, size_t *bytes);
int nvrtcGetProgramLog(program_t *p, char *log);
int nvrtcDestroyProgram(program_t **p);

static int failing, version[2] = {12, 9}, compiled, programs;
static char last_options[200];
static const char log_text[] = "stand-in: this does not compile";

void nvrtc_standin_fail(int step)
{
    failing = step;
}

void nvrtc_standin_version(int major, int minor)
{
    version[0] = major;
    version[1] = minor;
}

int nvrtc_standin_compiled(void)
{
    return compiled;
}

int nvrtc_standin_programs(void)
{
    return programs;
}

const char *nvrtc_standin_options(void)
{
    return last_options;
}

int nvrtcVersion(int *major, int *minor)
{
    *major = version[0];
    *minor = version[1];
    return 0;
}

int nvrtcCreateProgram(program_t **p, const char *source, const char *name,
                       int header_count, const char *const *headers,
                       const char *const *includes)
{
    if (failing == NVRTC_CREATE || header_count != 0 || headers != NULL ||
        includes != NULL || name == NULL ||
        strstr(source, LDR_GPU_ENTRY) == NULL) {
        return 3;
    }
    *p = calloc(1, sizeof(**p));
    programs++;
    return 0;
}

int nvrtcCompileProgram(program_t *p, int count, const char *const *options)
{
    compiled++;
    last_options[0] = 0;
    for (int i = 0; i < count; i++) {
        size_t used = strlen(last_options);

        snprintf(last_options + used, sizeof(last_options) - used, "%s ",
                 options[i]);
    }
    if (failing == NVRTC_COMPILE) {
        return 6;
    }
    snprintf(p->image, sizeof(p->image), STANDIN_IMAGE "%.60s", last_options);
    p->compiled = 1;
    return 0;
}

int nvrtcGetCUBINSize(program_t *p, size_t *bytes)
{
    *bytes = p->compiled ? strlen(p->image) + 1 : 0;
    return failing == NVRTC_SIZE ? 4 : 0;
}

int nvrtcGetCUBIN(program_t *p, char *image)
{
    if (failing == NVRTC_IMAGE || !p->compiled) {
        return 4;
    }
    memcpy(image, p->image, strlen(p->image) + 1);
    return 0;
}

int nvrtcGetProgramLogSize(program_t *p, size_t *bytes)
{
    (void)p;
    *bytes = sizeof(log_text);
    return 0;
}

int nvrtcGetProgramLog(program_t *p, char *log)
{
    (void)p;
    memcpy(log, log_text, sizeof(log_text));
    return 0;
}

int nvrtcDestroyProgram(program_t **p)
{
    free(*p);
    *p = NULL;
    programs--;
    return 0;
}
