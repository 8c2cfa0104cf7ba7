/*
 * The demo: starts one process after another that each serve the same request,
 * and tells in a table what they loaded, computed and found.
 */
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine.h"

#define SECRET_SUFFIX ".secret"

typedef struct demo {
    char work[PATH_MAX]; /* removed at the end */
    char dir[PATH_MAX];  /* the store; within work unless given */
    unsigned claims, failed;
    result_t first, again, changed, plain, flipped, damaged, healed;
    result_t one, other; /* nodes of a shared tier */
} demo_t;

/* "12,345" in one of a few buffers that take turns. */
static const char *grouped(uint64_t n)
{
    static char ring[8][32];
    static unsigned turn;
    char *at = ring[turn++ % 8] + sizeof(ring[0]) - 1;

    *at = '\0';
    for (int digits = 0; n > 0 || digits == 0; n /= 10, digits++) {
        if (digits > 0 && digits % 3 == 0) {
            *--at = ',';
        }
        *--at = (char)('0' + n % 10);
    }
    return at;
}

static double ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

static bool same(const result_t *a, const result_t *b)
{
    return memcmp(a->logits, b->logits, sizeof(a->logits)) == 0 &&
           memcmp(a->tokens, b->tokens, sizeof(a->tokens)) == 0;
}

static void claim(demo_t *d, bool holds, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void claim(demo_t *d, bool holds, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    printf("  %s  ", holds ? "ok    " : "FAILED");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    d->claims++;
    d->failed += !holds;
}

/* Serves a request in a new process, and prints its row of the table: the
 * name at once, the rest when it is done. */
static bool step(demo_t *d, const char *name, const char *dir,
                 const char *option, const char *other, result_t *r)
{
    char out[PATH_MAX + 16];
    int status = 0;

    snprintf(out, sizeof(out), "%s/result", d->work);
    printf("  %-38s", name);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "engine", "run", dir, out, option, other,
              (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        return fail("cannot start a process: %s", strerror(errno));
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return fail("the process did not succeed (wait status %d)", status);
    }
    if (!result_read(out, r)) {
        return false;
    }
    printf(" %8s %9s %9s ms   ", grouped(r->loaded_chunks * CHUNK_TOKENS),
           grouped(r->computed_tokens),
           grouped((r->first_token_ns + 500000) / 1000000));
    if (r == &d->first) {
        printf("the reference\n");
    } else if (same(r, &d->first)) {
        printf("the same bits\n");
    } else {
        printf("off by %.1e\n", distance(r->logits[0], d->first.logits[0]));
    }
    return true;
}

/* Finds the bytes in a file and changes one of them. */
static bool damage_file(const char *path, const uint8_t *needle,
                        uint64_t *offset_p)
{
    enum { WINDOW = 4 << 20 };
    uint8_t *window = malloc(WINDOW);
    int file = open(path, O_RDWR | O_CLOEXEC);
    bool found = false;
    ssize_t got;

    for (off_t at = 0; window != NULL && file >= 0 && !found;) {
        got = pread(file, window, WINDOW, at);
        if (got < NEEDLE_BYTES) {
            break;
        }
        uint8_t *hit = memmem(window, (size_t)got, needle, NEEDLE_BYTES);
        if (hit != NULL) {
            uint8_t byte = hit[100] ^ 0x10;

            *offset_p = (uint64_t)at + (uint64_t)(hit - window) + 100;
            found = pwrite(file, &byte, 1, (off_t)*offset_p) == 1 &&
                    fsync(file) == 0;
            break;
        }
        at += got - NEEDLE_BYTES + 1;
    }
    if (file >= 0) {
        close(file);
    }
    free(window);
    return found;
}

/* Changes one byte of a saved chunk, wherever in the directory it lies. */
static bool damage(demo_t *d, char *name, size_t size, uint64_t *offset_p)
{
    DIR *dir = opendir(d->dir);
    struct dirent *entry;
    bool found = false;

    while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
        char path[PATH_MAX + 300];

        if (strncmp(entry->d_name, "segment-", 8) == 0) {
            snprintf(path, sizeof(path), "%s/%s", d->dir, entry->d_name);
            snprintf(name, size, "%s", entry->d_name);
            found = damage_file(path, d->again.needle, offset_p);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found || fail("%s: the saved bytes of chunk %d were not found",
                         d->dir, DAMAGED_CHUNK);
}

static void print_head(const demo_t *d)
{
    printf("A prompt of %s tokens, computed once\n\n", grouped(PROMPT_TOKENS));
    printf("  model   transformer, %d layers, width %d, %d heads on %d KV "
           "heads, float32\n",
           T_LAYERS, T_DIM, T_HEADS, T_KV_HEADS);
    printf("  chunk   %d tokens: %s bytes in %d pieces of a paged cache\n",
           CHUNK_TOKENS, grouped(CHUNK_BYTES), CHUNK_PIECES);
    printf("  store   %s\n", d->dir);
    printf("  larder  %s\n\n", larder_version());
    printf("  %-38s %8s %9s %12s   %s\n", "each row is a new process", "loaded",
           "computed", "first token", "logits");
}

static int remove_one(const char *path, const struct stat *info, int kind,
                      struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

static bool remove_tree(const char *path)
{
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 ||
           fail("%s: cannot be removed: %s", path, strerror(errno));
}

/* The secret that all who use the tier have in common. */
static bool make_secret(const char *tier)
{
    char path[PATH_MAX + 32];
    uint64_t random[2];

    snprintf(path, sizeof(path), "%s%s", tier, SECRET_SUFFIX);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool made = file >= 0 &&
                getrandom(random, sizeof(random), 0) == sizeof(random) &&
                dprintf(file, "%016" PRIx64 "%016" PRIx64 "\n", random[0],
                        random[1]) > 0;
    if (file >= 0) {
        close(file);
    }
    return made || fail("%s: %s", path, strerror(errno));
}

/* Two nodes that have nothing in common but a directory and a secret; the first
 * is gone, with all that was its own, when the second begins. */
static bool demo_shared(demo_t *d)
{
    char tier[PATH_MAX + 16], url[PATH_MAX + 32];
    char one[PATH_MAX + 16], other[PATH_MAX + 16];

    snprintf(tier, sizeof(tier), "%s/tier", d->work);
    snprintf(url, sizeof(url), "dir:%s", tier);
    snprintf(one, sizeof(one), "%s/one", d->work);
    snprintf(other, sizeof(other), "%s/other", d->work);
    if (mkdir(tier, 0700) != 0) {
        return fail("%s: %s", tier, strerror(errno));
    }
    if (!make_secret(tier)) {
        return false;
    }
    if (larder_shared_create(url, NULL, TIMEOUT_MS) != LARDER_OK) {
        return fail("%s: %s", url, larder_last_error());
    }
    return step(d, "8 a host with a shared tier saves", one, "--shared", tier,
                &d->one) &&
           remove_tree(one) &&
           step(d, "9 that host is gone, a new one loads", other, "--shared",
                tier, &d->other);
}

static bool demo_steps(demo_t *d, char *name, size_t size, uint64_t *offset_p)
{
    return step(d, "1 computes and saves", d->dir, "--reset", NULL,
                &d->first) &&
           step(d, "2 loads, goes on", d->dir, NULL, NULL, &d->again) &&
           step(d, "3 one token of the prompt changed", d->dir,
                "--change-token", NULL, &d->changed) &&
           step(d, "4 the same, computed without a store", "-",
                "--change-token", NULL, &d->plain) &&
           step(d, "5 one bit flipped after the load", d->dir, "--flip-kv",
                NULL, &d->flipped) &&
           damage(d, name, size, offset_p) &&
           step(d, "6 one saved byte changed on disk", d->dir, NULL, NULL,
                &d->damaged) &&
           step(d, "7 loads again, and tries every token", d->dir, "--probe",
                NULL, &d->healed) &&
           demo_shared(d);
}

static void print_claims(demo_t *d, const char *name, uint64_t offset)
{
    const uint32_t changed = CHANGED_TOKEN / CHUNK_TOKENS;
    const result_t *a = &d->first, *b = &d->again;

    printf("\n");
    claim(d, same(a, b),
          "the logits of %d steps, %s floats, are bit-identical after the "
          "restart",
          STEPS, grouped((uint64_t)STEPS * T_VOCAB));
    claim(d,
          a->loaded_chunks == 0 && b->loaded_chunks == CHUNKS &&
              b->loads_ssd == CHUNKS,
          "%s of %s tokens were not computed again; all came from disk",
          grouped(b->loaded_chunks * CHUNK_TOKENS), grouped(PROMPT_TOKENS));
    claim(d, memcmp(a->blocks, b->blocks, sizeof(a->blocks)) != 0,
          "the pages differ: blocks %u %u %u %u... then, %u %u %u %u... now",
          a->blocks[0], a->blocks[1], a->blocks[2], a->blocks[3], b->blocks[0],
          b->blocks[1], b->blocks[2], b->blocks[3]);
    claim(d, d->changed.loaded_chunks == changed && !same(&d->changed, a),
          "token %s changed: %u chunks before it match, the logits differ",
          grouped(CHANGED_TOKEN), d->changed.matched_chunks);
    claim(d, same(&d->changed, &d->plain),
          "and they are bit-identical to those computed without a store");
    claim(d, d->flipped.loaded_chunks == CHUNKS && !same(&d->flipped, a),
          "one flipped bit among %s loaded bytes: the logits differ",
          grouped((uint64_t)CHUNKS * CHUNK_BYTES));
    claim(d,
          d->damaged.loaded_chunks == DAMAGED_CHUNK &&
              d->damaged.cause == LARDER_CAUSE_CORRUPT && same(&d->damaged, a),
          "byte %s of %s changed: chunk %d is a miss (%s),\n"
          "          computed again, and the logits are bit-identical",
          grouped(offset), name, DAMAGED_CHUNK,
          larder_cause_text(d->damaged.cause));
    claim(d, d->healed.loaded_chunks == CHUNKS && same(&d->healed, a),
          "the next process finds all %d chunks again", CHUNKS);
    claim(d,
          d->healed.probed == CHUNKS * CHUNK_TOKENS &&
              d->healed.probes_seen == d->healed.probed,
          "an exponent bit flipped in the KV of each of %s loaded tokens in "
          "turn:\n          %s were seen in the logits, the least by %.1e",
          grouped(d->healed.probed), grouped(d->healed.probes_seen),
          d->healed.probe_least);
    claim(d,
          d->one.loaded_chunks == 0 && d->other.loaded_chunks == CHUNKS &&
              d->other.loads_shared == CHUNKS && same(&d->other, a),
          "a cold host computed none of %s tokens: all came from the shared\n"
          "          tier, and the logits are bit-identical",
          grouped(d->other.loaded_chunks * CHUNK_TOKENS));
    printf("\n  time to first token: cold %.0f ms, warm %.1f ms "
           "(load %.1f ms): %.0f times faster\n",
           ms(a->first_token_ns), ms(b->first_token_ns), ms(b->load_ns),
           (double)a->first_token_ns / (double)b->first_token_ns);
    printf("  saving %.1f MB to disk took %.0f ms, opening the store again "
           "%.0f ms\n",
           (double)CHUNKS * CHUNK_BYTES / 1e6, ms(a->save_ns), ms(b->open_ns));
}

static int demo(const char *dir)
{
    const char *temp = getenv("TMPDIR");
    demo_t *d = calloc(1, sizeof(*d));
    char name[300] = "";
    uint64_t offset = 0;

    if (d == NULL) {
        return fail("out of memory"), 1;
    }
    snprintf(d->work, sizeof(d->work) - 16, "%s/larder-demo-XXXXXX",
             temp != NULL ? temp : "/tmp");
    if (mkdtemp(d->work) == NULL) {
        fail("%s: %s", d->work, strerror(errno));
        free(d);
        return 1;
    }
    snprintf(d->dir, sizeof(d->dir), "%.*s%s", PATH_MAX - 16,
             dir != NULL ? dir : d->work, dir != NULL ? "" : "/store");
    print_head(d);
    bool done = demo_steps(d, name, sizeof(name), &offset);
    if (done) {
        print_claims(d, name, offset);
        printf("  %u of %u claims hold\n", d->claims - d->failed, d->claims);
    }
    done = done && d->failed == 0;
    remove_tree(d->work);
    free(d);
    return done ? 0 : 1;
}
