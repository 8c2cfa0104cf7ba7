/*
 * Kernels, compiled on the machine that runs them, and kept in a file for the
 * next process. No state: the file is replaced whole, and its checksum says
 * whether it is right.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "gpu/cuda.h"

#define IMAGE_MAX ((size_t)16 << 20)
#define SUM_BYTES 32u
#define LOG_MAX 4096u

typedef struct CUprog_st *program_t;

#define NVRTC_MAP(X)                                                           \
    X(version, nvrtcVersion, (int *major, int *minor))                         \
    X(create, nvrtcCreateProgram,                                              \
      (program_t * p, const char *source, const char *name, int header_count,  \
       const char *const *headers, const char *const *includes))               \
    X(compile, nvrtcCompileProgram,                                            \
      (program_t p, int count, const char *const *options))                    \
    X(image_bytes, nvrtcGetCUBINSize, (program_t p, size_t * bytes))           \
    X(image, nvrtcGetCUBIN, (program_t p, char *image))                        \
    X(log_bytes, nvrtcGetProgramLogSize, (program_t p, size_t * bytes))        \
    X(log, nvrtcGetProgramLog, (program_t p, char *log))                       \
    X(destroy, nvrtcDestroyProgram, (program_t * p))

typedef struct nvrtc {
#define X(name, symbol, parameters) int(*name) parameters;
    NVRTC_MAP(X)
#undef X
} nvrtc_t;

static larder_status_t library_load(const char *path, nvrtc_t *n)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12",
                                        "libnvrtc.so"};
    const char *named = getenv("LARDER_NVRTC");
    void *library = NULL, *at;

    path = named != NULL ? named : path;
    bool given = path != NULL && path[0] != 0;
    if (given) {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    for (size_t i = 0;
         library == NULL && !given && i < sizeof(names) / sizeof(names[0]);
         i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (library == NULL) {
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "no libnvrtc, which compiles GPU kernels: name it in "
                        "LARDER_NVRTC (PyTorch for CUDA brings it)");
    }
#define X(name, symbol, parameters)                                            \
    at = dlsym(library, #symbol);                                              \
    memcpy(&n->name, &at, sizeof(at));                                         \
    if (at == NULL) {                                                          \
        return ldr_fail(LARDER_E_UNSUPPORTED, "libnvrtc has no " #symbol);     \
    }
    NVRTC_MAP(X)
#undef X
    return LARDER_OK;
}

/* ---- what was compiled before ---- */

/* Its file, in a folder that is made if need be; false: there is none. */
static bool cache_path(const uint8_t sum[SUM_BYTES], int architecture,
                       char *path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    char folder[400];
    int n;

    if (cache != NULL && cache[0] == '/') {
        n = snprintf(folder, sizeof(folder), "%s", cache);
    } else if (home != NULL && home[0] == '/') {
        n = snprintf(folder, sizeof(folder), "%s/.cache", home);
    } else {
        return false;
    }
    if (n < 0 || (size_t)n + 8 >= sizeof(folder)) {
        return false;
    }
    mkdir(folder, 0700);
    snprintf(folder + n, sizeof(folder) - (size_t)n, "/larder");
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
        return false;
    }
    n = snprintf(path, size, "%s/move-sm%d-%02x%02x%02x%02x%02x%02x.cubin",
                 folder, architecture, sum[0], sum[1], sum[2], sum[3], sum[4],
                 sum[5]);
    return n > 0 && (size_t)n < size;
}

/* The file begins with the digest of the rest: a damaged one is compiled
 * again. Only a file of this user, that nobody else writes, is run. */
static void *cache_read(const char *path, size_t *bytes_p)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    uint8_t *image = NULL, want[SUM_BYTES], sum[SUM_BYTES];
    size_t bytes = 0;

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        st.st_uid == geteuid() && (st.st_mode & 022) == 0 &&
        st.st_size > (off_t)SUM_BYTES && st.st_size <= (off_t)IMAGE_MAX) {
        bytes = (size_t)st.st_size - SUM_BYTES;
        image = ldr_alloc(bytes);
    }
    if (image != NULL) {
        ldr_piece_t piece = {image, bytes};

        if (pread(fd, want, SUM_BYTES, 0) != (ssize_t)SUM_BYTES ||
            pread(fd, image, bytes, SUM_BYTES) != (ssize_t)bytes ||
            !ldr_sha256(&piece, 1, sum) || memcmp(want, sum, SUM_BYTES) != 0) {
            ldr_free(image);
            image = NULL;
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    *bytes_p = bytes;
    return image;
}

/* As a whole or not at all; that it fails is nobody's loss. */
static void cache_write(const char *path, const void *image, size_t bytes)
{
    ldr_piece_t piece = {image, bytes};
    uint8_t sum[SUM_BYTES];
    char new[600];
    int n = snprintf(new, sizeof(new), "%s.%ld", path, (long)getpid());

    if (n < 0 || (size_t)n >= sizeof(new) || !ldr_sha256(&piece, 1, sum)) {
        return;
    }
    int fd = open(new, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        return;
    }
    bool ok = write(fd, sum, SUM_BYTES) == (ssize_t)SUM_BYTES &&
              write(fd, image, bytes) == (ssize_t)bytes;
    ok = close(fd) == 0 && ok;
    if (!ok || rename(new, path) != 0) {
        unlink(new);
    }
}

/* ---- compiling ---- */

static larder_status_t program_compile(const nvrtc_t *n, program_t program,
                                       int architecture, void **image_p,
                                       size_t *bytes_p)
{
    char which[40], log[LOG_MAX] = "";
    const char *options[] = {which};
    size_t bytes = 0;

    snprintf(which, sizeof(which), "--gpu-architecture=sm_%d", architecture);
    if (n->compile(program, 1, options) != 0) {
        if (n->log_bytes(program, &bytes) == 0 && bytes <= sizeof(log)) {
            n->log(program, log);
        }
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "libnvrtc cannot compile for sm_%d: %.300s",
                        architecture, log);
    }
    if (n->image_bytes(program, &bytes) != 0 || bytes == 0 ||
        bytes > IMAGE_MAX) {
        return ldr_fail(LARDER_E_UNSUPPORTED, "libnvrtc gave no code");
    }
    char *image = ldr_alloc(bytes);
    if (image == NULL || n->image(program, image) != 0) {
        ldr_free(image);
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for a kernel");
    }
    *image_p = image;
    *bytes_p = bytes;
    return LARDER_OK;
}

larder_status_t ldr_nvrtc_compile(const char *source, const char *library,
                                  int architecture, void **image_p,
                                  size_t *bytes_p)
{
    nvrtc_t n = {0};
    int version[2] = {0, 0};
    uint8_t sum[SUM_BYTES];
    char path[560];
    program_t program = NULL;
    larder_status_t st = library_load(library, &n);

    if (st != LARDER_OK) {
        return st;
    }
    n.version(&version[0], &version[1]);
    ldr_piece_t pieces[] = {{source, strlen(source)},
                            {version, sizeof(version)}};
    bool cached = ldr_sha256(pieces, 2, sum) &&
                  cache_path(sum, architecture, path, sizeof(path));
    if (cached && (*image_p = cache_read(path, bytes_p)) != NULL) {
        return LARDER_OK;
    }
    if (n.create(&program, source, "larder.cu", 0, NULL, NULL) != 0) {
        return ldr_fail(LARDER_E_UNSUPPORTED, "libnvrtc gave no program");
    }
    st = program_compile(&n, program, architecture, image_p, bytes_p);
    n.destroy(&program);
    if (st == LARDER_OK && cached) {
        cache_write(path, *image_p, *bytes_p);
    }
    return st;
}
