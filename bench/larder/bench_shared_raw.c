/*
 * What shared-get and shared-put are compared with: plain files, the same with
 * tags and names, the back end alone, redis-benchmark.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/text.h"
#include "base/thread.h"
#include "bench_shared.h"
#include "tier/shared/seal.h"

/* ---- plain files ---- */

typedef struct part {
    ldr_sharing_t *s;
    bool write;
    ldr_way_t how;
    const int *files; /* of raw reads, one for each object */
} part_t;

#define PATH_BYTES 310u

static void raw_path(const ldr_sharing_t *s, ldr_way_t how, unsigned n,
                     char *path)
{
    snprintf(path, PATH_BYTES, "%s/.bench-raw-%u-%u%s", s->dir, s->round, n,
             how == LDR_WAY_SEALED ? "-s" : "");
}

/* The name that a sealed one has first. */
static void temp_path(const ldr_sharing_t *s, unsigned n, char *path)
{
    snprintf(path, PATH_BYTES, "%s/.bench-raw-%u-%u-t", s->dir, s->round, n);
}

#define STEP ((size_t)128 << 10) /* as the tier does it */

/* What the tier does to the bytes of a record: a tag, and when it seals them
 * their checksum. */
static bool reckon(const uint8_t *data, size_t bytes, bool seals)
{
    const ldr_seal_t seal = {.mac = {1}};
    const uint8_t id[LDR_ID_BYTES] = {2};
    uint8_t tag[LDR_TAG_BYTES];
    ldr_gcm_t gcm;

    ldr_gcm_begin(&gcm, &seal, id, LDR_SEALING_RECORD, 0, false);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = ldr_min64(bytes - at, STEP);
        if (seals) {
            ldr_crc32c(0, data + at, n);
        }
        ldr_gcm_data(&gcm, NULL, data + at, n);
    }
    return ldr_gcm_tag(&gcm, tag);
}

static bool write_file(const char *path, const uint8_t *from)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600);
    bool ok =
        fd >= 0 &&
        pwrite(fd, from, LDR_SHARING_BYTES, 0) == (ssize_t)LDR_SHARING_BYTES &&
        fsync(fd) == 0;

    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

/* What nobody may see half of: another name first, and the folder made durable
 * after the right one. */
static bool give_name(const ldr_sharing_t *s, const char *temp,
                      const char *path)
{
    int fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && rename(temp, path) == 0 && fsync(fd) == 0;

    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

static bool raw_write(const part_t *p, unsigned object)
{
    const ldr_sharing_t *s = p->s;
    const uint8_t *from = s->source + object * LDR_SHARING_BYTES;
    char path[PATH_BYTES], temp[PATH_BYTES];
    bool ok = true;

    raw_path(s, p->how, object, path);
    if (p->how != LDR_WAY_SEALED) {
        return write_file(path, from);
    }
    for (unsigned i = 0; i < s->records; i++) {
        ok = ok && reckon(from + i * s->size, s->size, true);
    }
    temp_path(s, object, temp);
    return ok && write_file(temp, from) && give_name(s, temp, path);
}

static bool raw_read(const part_t *p, unsigned object, unsigned record)
{
    const ldr_sharing_t *s = p->s;
    uint64_t at = record * s->size;
    uint8_t *to = s->target + object * LDR_SHARING_BYTES + at;

    return pread(p->files[object], to, s->size, (off_t)at) ==
               (ssize_t)s->size &&
           (p->how != LDR_WAY_SEALED || reckon(to, s->size, false));
}

/* The same by the back end, below the tier: no seals, no records. */
static void bare_name(const ldr_sharing_t *s, unsigned object, char *name)
{
    ldr_hex(s->tenant_id, LDR_ID_BYTES, name);
    snprintf(name + (size_t)2 * LDR_ID_BYTES,
             LDR_OBJECT_NAME_MAX - 2 * LDR_ID_BYTES, "/b/%u-%u", s->round,
             object);
}

static bool bare_write(const ldr_sharing_t *s, unsigned object)
{
    struct iovec iov = {s->source + object * LDR_SHARING_BYTES,
                        LDR_SHARING_BYTES};
    char name[LDR_OBJECT_NAME_MAX + 1];

    bare_name(s, object, name);
    return s->bare->ops->put(s->bare, name, &iov, 1, 0,
                             ldr_sharing_deadline()) == 0;
}

static bool bare_read(const ldr_sharing_t *s, unsigned object, unsigned record)
{
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint64_t at = record * s->size;
    struct iovec iov = {s->target + object * LDR_SHARING_BYTES + at, s->size};

    bare_name(s, object, name);
    return s->bare->ops->get(s->bare, name, at, &iov, 1,
                             ldr_sharing_deadline()) == 0;
}

static void note_error(ldr_sharing_t *s, int error)
{
    ldr_mutex_lock(&s->lock);
    if (s->failed++ == 0) {
        s->error = -error;
    }
    ldr_mutex_unlock(&s->lock);
}

/* Whoever is done takes the next object to write, or record to read. */
static bool raw_part(void *arg)
{
    const part_t *p = arg;
    ldr_sharing_t *s = p->s;
    unsigned records = p->write ? 1 : s->records;
    unsigned count = LDR_SHARING_OBJECTS * records;
    bool ok = true;

    for (unsigned i; ok && (i = atomic_fetch_add(&s->next, 1)) < count;) {
        unsigned object = i / records, record = i % records;

        if (p->how == LDR_WAY_BACKEND) {
            ok =
                p->write ? bare_write(s, object) : bare_read(s, object, record);
        } else {
            ok = p->write ? raw_write(p, object) : raw_read(p, object, record);
        }
    }
    if (!ok && p->how != LDR_WAY_LIMIT) { /* without a limit it goes on */
        note_error(s, errno != 0 ? errno : EIO);
    }
    return ok;
}

void ldr_sharing_remove(ldr_sharing_t *s)
{
    char path[PATH_BYTES];

    for (; s->dir[0] != '\0'; s->round--) {
        for (unsigned i = 0; i < LDR_SHARING_OBJECTS; i++) {
            raw_path(s, LDR_WAY_LIMIT, i, path);
            unlink(path);
            raw_path(s, LDR_WAY_SEALED, i, path);
            unlink(path);
            temp_path(s, i, path);
            unlink(path);
        }
        if (s->round == 0) {
            break;
        }
    }
}

/* With and without tags the same files are read. False: one is not there. */
static bool files_open(const ldr_sharing_t *s, int *files)
{
    char path[PATH_BYTES];
    bool ok = true;

    for (unsigned i = 0; i < LDR_SHARING_OBJECTS; i++) {
        raw_path(s, LDR_WAY_LIMIT, i, path);
        files[i] = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        ok = ok && files[i] >= 0;
    }
    return ok;
}

static void files_close(const int *files)
{
    for (unsigned i = 0; i < LDR_SHARING_OBJECTS; i++) {
        if (files[i] >= 0) {
            close(files[i]);
        }
    }
}

double ldr_sharing_round(ldr_sharing_t *s, ldr_way_t how, bool write)
{
    part_t parts[LDR_SHARING_THREADS];
    int files[LDR_SHARING_OBJECTS];
    bool opened = !write && how != LDR_WAY_BACKEND;
    double seconds = 0;

    for (unsigned i = 0; i < LDR_SHARING_THREADS; i++) {
        parts[i] = (part_t){.s = s, .write = write, .how = how, .files = files};
    }
    atomic_store(&s->next, 0);
    if (!opened || files_open(s, files)) {
        seconds = ldr_bench_together(LDR_SHARING_THREADS, false, raw_part,
                                     parts, sizeof(parts[0]));
    }
    if (opened) {
        files_close(files);
    }
    return seconds;
}

/* ---- redis-benchmark ---- */

double ldr_sharing_redis(const ldr_sharing_t *s)
{
    char host[128], command[400], line[256];
    uint64_t bytes = s->get ? s->size : LDR_SHARING_BYTES;
    unsigned port = 6379;
    double rate = 0;

    if (sscanf(s->url, "valkey://%127[^:/?]:%u", host, &port) < 1 ||
        strspn(host, "abcdefghijklmnopqrstuvwxyz0123456789.-") !=
            strlen(host)) {
        return 0;
    }
    snprintf(command, sizeof(command),
             "redis-benchmark -h %s -p %u -t %s -d %llu -c %u -n %llu --csv "
             "2>/dev/null",
             host, port, s->get ? "set,get" : "set", (unsigned long long)bytes,
             LDR_SHARING_THREADS,
             (unsigned long long)(ldr_sharing_bytes() / bytes));
    FILE *out = popen(command, "re");
    while (out != NULL && fgets(line, sizeof(line), out) != NULL) {
        char what[8];
        double rps;

        if (sscanf(line, "\"%7[A-Z]\",\"%lf\"", what, &rps) == 2 &&
            strcmp(what, s->get ? "GET" : "SET") == 0) {
            rate = rps * (double)bytes;
        }
    }
    if (out != NULL) {
        pclose(out);
    }
    return rate;
}
