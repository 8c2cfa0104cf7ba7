/*
 * How a node may find out what a shared tier holds, measured: manifests that it
 * follows, or probes for names when a request arrives. bench/shared/run.py
 * builds and runs it; docs/concepts/shared.md has what followed.
 *
 *   finding seal                        sealing and opening records
 *   finding write-manifests DIR CHUNKS  what a merged tier would hold
 *   finding read-manifests DIR          a node that joins
 *   finding write-names DIR CHUNKS      an empty file for each object
 *   finding probe-names DIR CHUNKS [warm]  by stat(), bisected
 *   finding write-redis SOCKET CHUNKS   a key for each object and each chunk
 *   finding probe-redis SOCKET CHUNKS   by EXISTS
 *
 * Chunk i of CHUNKS is in object i / ROWS. A prompt begins at an object; how
 * much of it is stored is drawn anew each time.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/mem.h"
#include "tier/shared/map.h"
#include "tier/shared/object.h"

enum { ROWS = 32, ROW_BLOCKS = 129, ROUNDS = 400, PROMPT_MAX = 1000 };

#define MERGED_BYTES ((size_t)64 << 20)

static const uint32_t prompts[] = {10, 100, 1000};
static const ldr_seal_t keys = {.mac = {1}, .cipher = {2}};
static ldr_rand_t rnd;

static void die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    exit(1);
}

static double now(void)
{
    return (double)ldr_now_ns(&ldr_clock_real) * 1e-9;
}

/* Of this thread, on a processor: others use the machine too. */
static double worked(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The key of a chunk, and the id of an object: as random as a hash. */
static void make_id(uint64_t number, uint64_t kind, uint8_t id[LDR_ID_BYTES])
{
    ldr_put64(id, mix(number * 2 + 0x9e3779b97f4a7c15u * kind));
    ldr_put64(id + 8, mix(number * 2 + 1 + 0x9e3779b97f4a7c15u * kind));
}

enum { CHUNK = 1, OBJECT = 2 };

/* What the process has in memory. */
static double resident_mib(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;

    if (f == NULL || fscanf(f, "%*u %lu", &pages) != 1) {
        die("/proc/self/statm");
    }
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median and 99th of 100, in microseconds. */
static void show(const char *what, double *seconds, unsigned count)
{
    qsort(seconds, count, sizeof(*seconds), by_value);
    printf("%-44s %9.1f us   p99 %9.1f us\n", what, seconds[count / 2] * 1e6,
           seconds[count * 99 / 100] * 1e6);
}

/* ---- seals ---- */

static void measure_seal(uint32_t length, bool encrypts)
{
    enum { PIECE = 64 << 10 };
    uint32_t count = (128u << 20) / length; /* more than the caches hold */
    uint32_t blocks = ldr_record_blocks(length);
    size_t stride = (size_t)blocks * LDR_BLOCK;
    uint8_t *pool = ldr_alloc_blocks(stride * count);
    uint8_t *sealed = ldr_alloc_blocks(stride * count);
    struct iovec iov[64];
    unsigned pieces = length / PIECE;
    ldr_seal_t seal = keys;
    ldr_object_t object = {.epoch = 1};
    ldr_record_t r = {.kind = LDR_RECORD_SHARD, .shards = 1, .length = length};

    if (pool == NULL || sealed == NULL) {
        die("no memory");
    }
    seal.encrypts = encrypts;
    memset(pool, 0x5a, stride * count);
    memset(sealed, 0, stride * count);
    r.payload_crc = ldr_crc32c(0, pool, length);
    /* The best of five. Encrypted, opening is in place, so that each turn seals
     * anew. */
    double best[2] = {1e9, 1e9};
    for (int turn = 0; turn < 10; turn++) {
        int opens = turn % 2;
        double begin = worked();

        for (uint32_t i = 0; i < count; i++) {
            uint8_t *from = pool + i * stride, *to = sealed + i * stride;
            uint8_t *block = to + stride - LDR_BLOCK;

            /* Pages of an arena are anywhere: here, backwards. */
            for (unsigned k = 0; k < pieces; k++) {
                iov[k] = (struct iovec){
                    (opens && encrypts
                         ? to + (size_t)k * PIECE
                         : from + (size_t)(pieces - 1 - k) * PIECE),
                    PIECE};
            }
            bool ok = opens ? ldr_object_unseal(&seal, &object, 0, block, iov,
                                                pieces, &r) == LDR_UNSEAL_OK
                            : ldr_object_seal(&seal, &object, &r, iov, pieces,
                                              to, block);
            if (!ok) {
                die("%s of record %u failed", opens ? "opening" : "sealing", i);
            }
        }
        double spent = worked() - begin;
        best[opens] = spent < best[opens] ? spent : best[opens];
    }
    for (int opens = 0; opens < 2; opens++) {
        printf("%s %4u KiB %-13s %6.2f GB/s %8.1f us each\n",
               opens ? "open" : "seal", length >> 10,
               encrypts ? "encrypted" : "authenticated",
               (double)length * count / best[opens] * 1e-9,
               best[opens] / count * 1e6);
    }
    ldr_free(pool);
    ldr_free(sealed);
}

static void seal_main(void)
{
    for (int encrypts = 0; encrypts < 2; encrypts++) {
        measure_seal(512u << 10, encrypts != 0);
        measure_seal(1u << 20, encrypts != 0);
    }
}

/* ---- manifests ---- */

static void put_manifest(const char *dir, unsigned number, ldr_manifest_t *m)
{
    ldr_manifest_head_t head = {.sequence = number};
    char path[4096];

    if (!ldr_manifest_finish(m, &head, &keys)) {
        die("no memory");
    }
    snprintf(path, sizeof(path), "%s/0123456789abcdef-%016x", dir, number);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (size_t at = 0; fd >= 0 && at < m->bytes;) {
        ssize_t n = write(fd, m->data + at, m->bytes - at);

        if (n <= 0) {
            die("%s: %s", path, strerror(errno));
        }
        at += (size_t)n;
    }
    if (fd < 0 || fsync(fd) != 0 || close(fd) != 0) {
        die("%s: %s", path, strerror(errno));
    }
    ldr_manifest_clear(m);
}

static void write_manifests(const char *dir, uint64_t chunks)
{
    ldr_manifest_t m = {0};
    ldr_manifest_row_t rows[ROWS];
    ldr_manifest_entry_t e = {.kind = LDR_MANIFEST_OBJECT, .rows = rows};
    unsigned number = 0;
    uint64_t bytes = 0;
    double begin = now();

    mkdir(dir, 0700);
    e.object.rows = ROWS;
    e.object.used_blocks = ROWS * ROW_BLOCKS;
    for (uint64_t o = 0; o < chunks / ROWS; o++) {
        make_id(o, OBJECT, e.object.id);
        for (uint32_t i = 0; i < ROWS; i++) {
            rows[i] = (ldr_manifest_row_t){.shards = 1,
                                           .block = (uint16_t)(i * ROW_BLOCKS),
                                           .blocks = ROW_BLOCKS,
                                           .depth = i};
            make_id(o * ROWS + i, CHUNK, rows[i].key);
        }
        if (!ldr_manifest_add(&m, &e)) {
            die("no memory");
        }
        if (m.bytes > MERGED_BYTES - 2000 || o + 1 == chunks / ROWS) {
            bytes += m.bytes;
            put_manifest(dir, number++, &m);
        }
    }
    printf("%u manifests, %.1f MB, %.1f bytes a chunk, written in %.2f s\n",
           number, (double)bytes * 1e-6, (double)bytes / (double)chunks,
           now() - begin);
}

static void ignore(void *arg, const ldr_manifest_entry_t *e)
{
    *(uint64_t *)arg += e->object.rows;
}

static void tell(void *arg, const ldr_manifest_entry_t *e)
{
    if (!ldr_map_add(arg, &e->object, 0, e->rows)) {
        die("no memory");
    }
}

static void lookups(const ldr_map_t *map, uint64_t chunks, uint32_t prompt,
                    bool absent, bool near)
{
    static double spent[ROUNDS];
    static uint8_t ids[PROMPT_MAX][LDR_ID_BYTES];
    char what[80];
    ldr_object_place_t place;

    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t first = ldr_rand_below(&rnd, chunks - prompt);
        unsigned found = 0;

        for (uint32_t i = 0; i < prompt; i++) {
            make_id(absent ? chunks + first + i : first + i, CHUNK, ids[i]);
        }
        double begin = now();
        for (uint32_t i = 0; i < prompt; i++) {
            if (near && i + 16 < prompt) {
                ldr_map_prefetch(map, 0, ids[i + 16], 0, 0);
            }
            found += ldr_map_find(map, 0, ids[i], 0, 0, &place);
        }
        spent[round] = now() - begin;
        if (found != (absent ? 0 : prompt)) {
            die("%u of %u found", found, prompt);
        }
    }
    snprintf(what, sizeof(what), "%u lookups, %s, %s", prompt,
             absent ? "absent" : "present", near ? "prefetched" : "plain");
    show(what, spent, ROUNDS);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a directory, in their order. */
static unsigned list(const char *dir, char **names, unsigned room)
{
    DIR *d = opendir(dir);
    unsigned count = 0;

    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] != '.' && count < room) {
            names[count++] = strdup(e->d_name);
        }
    }
    if (d == NULL) {
        die("%s: %s", dir, strerror(errno));
    }
    closedir(d);
    qsort(names, count, sizeof(*names), by_name);
    return count;
}

static uint8_t *read_file(const char *dir, const char *name, size_t *bytes_p)
{
    char path[4096];
    struct stat st;
    size_t at = 0;
    ssize_t n = 1;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) != 0) {
        die("%s: %s", path, strerror(errno));
    }
    uint8_t *data = malloc((size_t)st.st_size);
    while (data != NULL && n > 0 && at < (size_t)st.st_size) {
        n = read(fd, data + at, (size_t)st.st_size - at);
        at += n > 0 ? (size_t)n : 0;
    }
    close(fd);
    if (data == NULL || at != (size_t)st.st_size) {
        die("%s: cannot read it", path);
    }
    *bytes_p = at;
    return data;
}

static void read_manifests(const char *dir)
{
    enum { NAMES = 4096 };
    static char *names[NAMES];
    double begin = now(), reading = 0, checking = 0, telling = 0;
    double memory = resident_mib();
    unsigned count = list(dir, names, NAMES);
    double listing = now() - begin;
    ldr_map_t *map = ldr_map_create(1);
    ldr_map_stats_t stats;
    uint64_t rows = 0;

    for (unsigned i = 0; i < count; i++) {
        ldr_manifest_head_t head = {0};
        size_t bytes;
        double t0 = now();
        uint8_t *data = read_file(dir, names[i], &bytes);
        reading += now() - t0;
        double t1 = worked();
        /* Once for the time of checking alone, once to tell the map. */
        if (!ldr_manifest_parse(data, bytes, &keys, &head, ignore, &rows)) {
            die("%s: forged", names[i]);
        }
        double t2 = worked();
        ldr_manifest_parse(data, bytes, &keys, &head, tell, map);
        double t3 = worked();
        checking += t2 - t1;
        telling += t3 - t2 - (t2 - t1);
        free(data);
    }
    ldr_map_stats(map, &stats);
    printf("%" PRIu64 " chunks in %" PRIu64 " objects, %u manifests\n",
           stats.shards, stats.objects, count);
    printf("list %.3f s, read %.3f s; work: check %.3f s, tell the map %.3f s; "
           "%.3f s\n",
           listing, reading, checking, telling,
           listing + reading + checking + telling);
    printf("map %.1f MB, %.1f bytes a chunk; resident +%.1f MiB\n",
           (double)stats.bytes * 1e-6,
           (double)stats.bytes / (double)stats.shards, resident_mib() - memory);
    for (int i = 0; i < 12; i++) {
        lookups(map, rows, prompts[i / 4], i / 2 % 2 != 0, i % 2 != 0);
    }
    begin = now();
    ldr_map_set_epoch(map, 0, 1);
    printf("a reset of all of it %.1f us\n", (now() - begin) * 1e6);
    ldr_map_destroy(map);
}

/* ---- names in a directory ---- */

/* An object's name from its last chunk's key, which a prober can compute. */
static void object_name(char *path, size_t room, const char *dir, uint64_t o)
{
    uint8_t id[LDR_ID_BYTES];
    size_t at;

    make_id(o * ROWS + ROWS - 1, CHUNK, id);
    at = (size_t)snprintf(path, room, "%s/%02x/", dir, id[0]);
    for (unsigned i = 0; i < LDR_ID_BYTES; i++) {
        at += (size_t)snprintf(path + at, room - at, "%02x", id[i]);
    }
}

static void write_names(const char *dir, uint64_t chunks)
{
    char path[4096];
    double begin = now();

    mkdir(dir, 0700);
    for (unsigned i = 0; i < 256; i++) {
        snprintf(path, sizeof(path), "%s/%02x", dir, i);
        mkdir(path, 0700);
    }
    for (uint64_t o = 0; o < chunks / ROWS; o++) {
        object_name(path, sizeof(path), dir, o);
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        if (fd < 0) {
            die("%s: %s", path, strerror(errno));
        }
        close(fd);
    }
    printf("%" PRIu64 " files in %.1f s\n", chunks / ROWS, now() - begin);
}

/* How many of a prompt's `runs` objects are there, of which the first
 * `stored` are: by bisection, since a prefix is saved front to back. */
static uint32_t bisect(uint32_t runs, bool (*there)(void *arg, uint32_t run),
                       void *arg, unsigned *probes)
{
    uint32_t low = 0, high = runs;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        ++*probes;
        if (there(arg, middle)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

typedef struct prompt {
    const char *dir;
    uint64_t first; /* object */
    uint32_t stored;
    uint64_t objects;
    int fd; /* of Redis */
} prompt_t;

/* Names behind what is stored are those of chunks that nobody has. */
static uint64_t run_object(const prompt_t *p, uint32_t run)
{
    return run < p->stored ? p->first + run : p->objects + p->first + run;
}

static bool stat_there(void *arg, uint32_t run)
{
    const prompt_t *p = arg;
    char path[4096];
    struct stat st;

    object_name(path, sizeof(path), p->dir, run_object(p, run));
    return stat(path, &st) == 0;
}

static void drop_caches(void)
{
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);

    sync();
    if (fd < 0 || write(fd, "3\n", 2) != 2) {
        die("cold names need root: /proc/sys/vm/drop_caches");
    }
    close(fd);
}

static prompt_t draw(uint64_t objects, uint32_t runs)
{
    return (prompt_t){.first = ldr_rand_below(&rnd, objects - runs),
                      .stored = (uint32_t)ldr_rand_below(&rnd, runs + 1),
                      .objects = objects};
}

static void probe_names(const char *dir, uint64_t chunks, bool only_warm)
{
    static double spent[ROUNDS];
    char what[80];

    for (int warm = only_warm; warm < 2; warm++) {
        for (unsigned k = 0; k < sizeof(prompts) / sizeof(*prompts); k++) {
            uint32_t runs = (prompts[k] + ROWS - 1) / ROWS;
            unsigned probes = 0;

            if (!warm) {
                drop_caches();
            }
            for (unsigned round = 0; round < ROUNDS; round++) {
                prompt_t p = draw(chunks / ROWS, runs);
                unsigned unused = 0;

                p.dir = dir;
                if (warm) {
                    bisect(runs, stat_there, &p, &unused);
                }
                double begin = now();
                if (bisect(runs, stat_there, &p, &probes) != p.stored) {
                    die("wrong answer");
                }
                spent[round] = now() - begin;
            }
            snprintf(what, sizeof(what), "%u chunks, %s, %.1f probes",
                     prompts[k], warm ? "warm" : "cold",
                     (double)probes / ROUNDS);
            show(what, spent, ROUNDS);
        }
    }
}

/* ---- Redis ---- */

static int redis_connect(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        die("%s: %s", path, strerror(errno));
    }
    return fd;
}

static void write_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);

        if (n <= 0) {
            die("Redis: %s", strerror(errno));
        }
        data += n;
        bytes -= (size_t)n;
    }
}

/* Sends commands of which each is answered by one line, and counts ":1". */
static unsigned exchange(int fd, const char *data, size_t bytes,
                         unsigned answers)
{
    static char buffer[1 << 16];
    unsigned lines = 0, ones = 0;
    bool begins = true, number = false;

    write_all(fd, data, bytes);
    while (lines < answers) {
        ssize_t n = read(fd, buffer, sizeof(buffer));

        if (n <= 0) {
            die("Redis: it hung up");
        }
        for (ssize_t i = 0; i < n; i++) {
            if (begins && buffer[i] == '-') {
                die("Redis: %.*s", (int)(n - i), buffer + i);
            }
            ones += number && buffer[i] == '1';
            number = begins && buffer[i] == ':';
            begins = buffer[i] == '\n';
            lines += begins;
        }
    }
    return ones;
}

static size_t command(char *to, const char *verb, char kind, uint64_t number)
{
    uint8_t id[LDR_ID_BYTES];
    bool set = strcmp(verb, "SET") == 0;
    size_t at;

    make_id(number, CHUNK, id);
    at = (size_t)sprintf(to, "*%d\r\n$%zu\r\n%s\r\n$33\r\n%c", set ? 3 : 2,
                         strlen(verb), verb, kind);
    for (unsigned i = 0; i < LDR_ID_BYTES; i++) {
        at += (size_t)sprintf(to + at, "%02x", id[i]);
    }
    return at + (size_t)sprintf(to + at, set ? "\r\n$1\r\n1\r\n" : "\r\n");
}

static void write_redis(const char *path, uint64_t chunks)
{
    enum { BATCH = 1000 };
    static char data[BATCH * 128];
    int fd = redis_connect(path);
    double begin = now();

    for (int kind = 0; kind < 2; kind++) {
        uint64_t count = kind == 0 ? chunks / ROWS : chunks;

        for (uint64_t i = 0; i < count; i += BATCH) {
            size_t bytes = 0;
            unsigned n = 0;

            for (; n < BATCH && i + n < count; n++) {
                bytes += command(data + bytes, "SET", kind == 0 ? 'o' : 'c',
                                 kind == 0 ? (i + n) * ROWS + ROWS - 1 : i + n);
            }
            exchange(fd, data, bytes, n);
        }
    }
    printf("%" PRIu64 " keys in %.1f s\n", chunks / ROWS + chunks,
           now() - begin);
    close(fd);
}

static bool redis_there(void *arg, uint32_t run)
{
    const prompt_t *p = arg;
    char data[256];
    size_t bytes =
        command(data, "EXISTS", 'o', run_object(p, run) * ROWS + ROWS - 1);

    return exchange(p->fd, data, bytes, 1) == 1;
}

static void probe_redis(const char *path, uint64_t chunks)
{
    static double spent[2][ROUNDS];
    static char data[PROMPT_MAX * 128];
    int fd = redis_connect(path);
    char what[80];

    for (unsigned k = 0; k < sizeof(prompts) / sizeof(*prompts); k++) {
        uint32_t runs = (prompts[k] + ROWS - 1) / ROWS;
        unsigned probes = 0;

        for (unsigned round = 0; round < ROUNDS; round++) {
            prompt_t p = draw(chunks / ROWS, runs);
            size_t bytes = 0;

            p.fd = fd;
            double begin = now();
            if (bisect(runs, redis_there, &p, &probes) != p.stored) {
                die("wrong answer");
            }
            spent[0][round] = now() - begin;
            begin = now();
            for (uint32_t i = 0; i < prompts[k]; i++) {
                bytes += command(data + bytes, "EXISTS", 'c',
                                 run_object(&p, i / ROWS) * ROWS + i % ROWS);
            }
            exchange(fd, data, bytes, prompts[k]);
            spent[1][round] = now() - begin;
        }
        snprintf(what, sizeof(what), "%u chunks, objects, %.1f round trips",
                 prompts[k], (double)probes / ROUNDS);
        show(what, spent[0], ROUNDS);
        snprintf(what, sizeof(what), "%u chunks, each, 1 round trip",
                 prompts[k]);
        show(what, spent[1], ROUNDS);
    }
    close(fd);
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    const char *where = argc > 2 ? argv[2] : "";
    uint64_t chunks = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;

    ldr_rand_seed(&rnd, 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(verb, "seal") == 0) {
        seal_main();
    } else if (strcmp(verb, "read-manifests") == 0) {
        read_manifests(where);
    } else if (chunks / ROWS < 2 * PROMPT_MAX) {
        die("usage: see the head of finding.c; at least %d chunks",
            2 * PROMPT_MAX * ROWS);
    } else if (strcmp(verb, "write-manifests") == 0) {
        write_manifests(where, chunks);
    } else if (strcmp(verb, "write-names") == 0) {
        write_names(where, chunks);
    } else if (strcmp(verb, "probe-names") == 0) {
        probe_names(where, chunks, argc > 4 && strcmp(argv[4], "warm") == 0);
    } else if (strcmp(verb, "write-redis") == 0) {
        write_redis(where, chunks);
    } else if (strcmp(verb, "probe-redis") == 0) {
        probe_redis(where, chunks);
    } else {
        die("%s: no such measurement", verb);
    }
    return 0;
}
