/*
 * Reading a trace, plain or compressed.
 *
 * raw[from..to) was read and not used yet; the file is read again only when
 * that is empty. `inside` is true within a compressed stream: an end of the
 * file there is an error. One thread.
 */
#include "plan/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#if LDR_HAVE_ZLIB
#include <zlib.h>
#endif
#if LDR_HAVE_ZSTD
#include <zstd.h>
#endif

#define RAW_BYTES ((size_t)256 << 10)
#define PATH_SHOWN 200

typedef enum format { PLAIN, GZIP, ZSTD } format_t;

struct ldr_input {
    int fd;
    bool own_fd;
    bool ended;  /* the file has no more */
    bool inside; /* a compressed stream has begun and not ended */
    format_t format;
    uint64_t at, size;
    size_t from, to; /* of raw that is not used yet */
    char path[PATH_SHOWN];
#if LDR_HAVE_ZLIB
    z_stream gzip;
#endif
#if LDR_HAVE_ZSTD
    ZSTD_DStream *zstd;
#endif
    uint8_t raw[RAW_BYTES];
};

/* Fills raw if all of it was used. False: an error. */
static bool read_raw(ldr_input_t *in)
{
    if (in->from < in->to || in->ended) {
        return true;
    }
    ssize_t n;
    do {
        n = read(in->fd, in->raw, RAW_BYTES);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        ldr_fail(LARDER_E_IO, "%s: cannot be read: %s", in->path,
                 strerror(errno));
        return false;
    }
    in->from = 0;
    in->to = (size_t)n;
    in->at += (uint64_t)n;
    in->ended = n == 0;
    return true;
}

#if LDR_HAVE_ZLIB || LDR_HAVE_ZSTD
static ssize_t broken(const ldr_input_t *in, const char *what)
{
    ldr_fail(LARDER_E_CORRUPT, "%s: its %s data %s", in->path,
             in->format == GZIP ? "gzip" : "zstd", what);
    return -1;
}
#endif

#if LDR_HAVE_ZLIB
static larder_status_t open_gzip(ldr_input_t *in)
{
    /* 16: a gzip header is expected; 15: any window. */
    return inflateInit2(&in->gzip, 16 + 15) == Z_OK
               ? LARDER_OK
               : ldr_fail(LARDER_E_NO_MEMORY, "%s: no memory for gzip",
                          in->path);
}

static ssize_t read_gzip(ldr_input_t *in, void *to, size_t bytes)
{
    in->gzip.next_out = to;
    in->gzip.avail_out = (uInt)bytes;
    while (in->gzip.avail_out == bytes) {
        if (!read_raw(in)) {
            return -1;
        }
        if (in->from == in->to) {
            return in->inside ? broken(in, "ends too early") : 0;
        }
        in->gzip.next_in = in->raw + in->from;
        in->gzip.avail_in = (uInt)(in->to - in->from);
        in->inside = true;
        int code = inflate(&in->gzip, Z_NO_FLUSH);
        in->from = in->to - in->gzip.avail_in;
        if (code == Z_STREAM_END) { /* another one may follow */
            in->inside = false;
            code = inflateReset(&in->gzip);
        }
        if (code != Z_OK && code != Z_BUF_ERROR) {
            return broken(in, "is damaged");
        }
    }
    return (ssize_t)(bytes - in->gzip.avail_out);
}
#endif

#if LDR_HAVE_ZSTD
static larder_status_t open_zstd(ldr_input_t *in)
{
    in->zstd = ZSTD_createDStream();
    if (in->zstd == NULL || ZSTD_isError(ZSTD_initDStream(in->zstd))) {
        return ldr_fail(LARDER_E_NO_MEMORY, "%s: no memory for zstd", in->path);
    }
    /* What `zstd --long=31` writes, and no more memory than that. */
    ZSTD_DCtx_setParameter(in->zstd, ZSTD_d_windowLogMax, 31);
    return LARDER_OK;
}

static ssize_t read_zstd(ldr_input_t *in, void *to, size_t bytes)
{
    ZSTD_outBuffer out = {to, bytes, 0};

    while (out.pos == 0) {
        if (!read_raw(in)) {
            return -1;
        }
        if (in->from == in->to && !in->inside) {
            return 0;
        }
        ZSTD_inBuffer raw = {in->raw, in->to, in->from};
        size_t left = ZSTD_decompressStream(in->zstd, &out, &raw);
        if (ZSTD_isError(left)) {
            return broken(in, "is damaged");
        }
        if (in->from == in->to && in->ended && out.pos == 0) {
            return broken(in, "ends too early");
        }
        in->from = raw.pos;
        in->inside = left != 0;
    }
    return (ssize_t)out.pos;
}
#endif

/* By the first bytes; an error where the library for it is not there. */
static larder_status_t detect(ldr_input_t *in)
{
    static const uint8_t gzip[] = {0x1f, 0x8b};
    static const uint8_t zstd[] = {0x28, 0xb5, 0x2f, 0xfd};

    /* A pipe may give them one by one. */
    while (in->to < sizeof(zstd) && !in->ended) {
        ssize_t n = read(in->fd, in->raw + in->to, RAW_BYTES - in->to);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return ldr_fail(LARDER_E_IO, "%s: cannot be read: %s", in->path,
                            strerror(errno));
        }
        in->to += (size_t)n;
        in->at += (uint64_t)n;
        in->ended = n == 0;
    }
    if (in->to >= sizeof(gzip) && memcmp(in->raw, gzip, sizeof(gzip)) == 0) {
        in->format = GZIP;
#if LDR_HAVE_ZLIB
        return open_gzip(in);
#else
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "%s: compressed with gzip, and this larder was built "
                        "without zlib: install zlib1g-dev and build it again, "
                        "or unpack the file",
                        in->path);
#endif
    }
    if (in->to >= sizeof(zstd) && memcmp(in->raw, zstd, sizeof(zstd)) == 0) {
        in->format = ZSTD;
#if LDR_HAVE_ZSTD
        return open_zstd(in);
#else
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "%s: compressed with zstd, and this larder was built "
                        "without it: install libzstd-dev and build it again, "
                        "or unpack the file",
                        in->path);
#endif
    }
    return LARDER_OK;
}

larder_status_t ldr_input_open(const char *path, ldr_input_t **input_p)
{
    ldr_input_t *in = ldr_alloc(sizeof(*in));
    struct stat info;

    *input_p = NULL;
    if (in == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "%s: no memory to read it", path);
    }
    in->own_fd = strcmp(path, "-") != 0;
    strncpy(in->path, in->own_fd ? path : "standard input", PATH_SHOWN - 1);
    in->fd = in->own_fd ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    if (in->fd < 0) {
        larder_status_t st =
            ldr_fail(LARDER_E_IO, "%s: %s", in->path, strerror(errno));
        ldr_free(in);
        return st;
    }
    if (fstat(in->fd, &info) == 0 && S_ISREG(info.st_mode)) {
        in->size = (uint64_t)info.st_size;
    }
    larder_status_t st = detect(in);
    if (st != LARDER_OK) {
        ldr_input_close(in);
        return st;
    }
    *input_p = in;
    return LARDER_OK;
}

ssize_t ldr_input_read(ldr_input_t *in, void *to, size_t bytes)
{
    /* zlib counts in 32 bits. */
    bytes = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30;
#if LDR_HAVE_ZLIB
    if (in->format == GZIP) {
        return read_gzip(in, to, bytes);
    }
#endif
#if LDR_HAVE_ZSTD
    if (in->format == ZSTD) {
        return read_zstd(in, to, bytes);
    }
#endif
    if (!read_raw(in)) {
        return -1;
    }
    size_t n = in->to - in->from < bytes ? in->to - in->from : bytes;
    memcpy(to, in->raw + in->from, n);
    in->from += n;
    return (ssize_t)n;
}

uint64_t ldr_input_at(const ldr_input_t *in)
{
    return in->at;
}

uint64_t ldr_input_size(const ldr_input_t *in)
{
    return in->size;
}

void ldr_input_close(ldr_input_t *in)
{
    if (in == NULL) {
        return;
    }
#if LDR_HAVE_ZLIB
    if (in->format == GZIP) {
        inflateEnd(&in->gzip);
    }
#endif
#if LDR_HAVE_ZSTD
    if (in->zstd != NULL) {
        ZSTD_freeDStream(in->zstd);
    }
#endif
    if (in->own_fd) {
        close(in->fd);
    }
    ldr_free(in);
}
