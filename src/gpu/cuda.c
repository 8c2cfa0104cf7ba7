/*
 * The driver, loaded at run time. The table is filled once, under `lock`, and
 * constant after that; it is never unloaded.
 */
#include "gpu/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"

enum { CU_OUT_OF_MEMORY = 2 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ldr_cuda_t table;
static bool loaded;

/* Every symbol, or the name of the first that is missing and must not be. */
static const char *symbols_fill(void *library, ldr_cuda_t *cuda)
{
    void *at;

#define X(name, symbol, parameters)                                            \
    at = dlsym(library, #symbol);                                              \
    memcpy(&cuda->name, &at, sizeof(at));                                      \
    if (at == NULL) {                                                          \
        return #symbol;                                                        \
    }
    LDR_CUDA_MAP(X)
#undef X
#define X(name, symbol, parameters)                                            \
    at = dlsym(library, #symbol);                                              \
    memcpy(&cuda->name, &at, sizeof(at));
    LDR_CUDA_NEWER_MAP(X)
#undef X
    return NULL;
}

const ldr_cuda_t *ldr_cuda(void)
{
    const ldr_cuda_t *found = NULL;

    ldr_mutex_lock(&lock);
    if (!loaded) {
        const char *named = getenv("LARDER_CUDA");
        const char *path = named != NULL ? named : "libcuda.so.1";
        /* Never closed: threads of its own may run in it. */
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

        if (library == NULL) {
            ldr_fail(LARDER_E_UNSUPPORTED,
                     "no CUDA driver: %s; install NVIDIA's driver", dlerror());
        } else {
            ldr_cuda_t new;
            const char *missing = symbols_fill(library, &new);
            ldr_cu_t result = missing == NULL ? new.init(0) : 0;

            if (missing != NULL) {
                ldr_fail(LARDER_E_UNSUPPORTED,
                         "%s has no %s: NVIDIA's driver is too old", path,
                         missing);
            } else if (result != 0) {
                ldr_cuda_status(&new, result, "cuInit");
            } else {
                table = new;
                loaded = true;
            }
        }
    }
    if (loaded) {
        found = &table;
    }
    ldr_mutex_unlock(&lock);
    return found;
}

larder_status_t ldr_cuda_status(const ldr_cuda_t *cuda, ldr_cu_t result,
                                const char *what)
{
    const char *name = NULL, *text = NULL;

    if (result == 0) {
        return LARDER_OK;
    }
    if (cuda->error_name(result, &name) != 0 || name == NULL) {
        name = "unknown";
    }
    if (cuda->error_text(result, &text) != 0 || text == NULL) {
        text = "no text";
    }
    return ldr_fail(result == CU_OUT_OF_MEMORY ? LARDER_E_NO_MEMORY
                                               : LARDER_E_IO,
                    "%s: %s (%d): %s", what, name, result, text);
}
