/*
 * What tests on real engines share: a directory of their own, values that say
 * what they are, and short forms of the public calls.
 *
 * A value holds its id, its generation and a pattern of both over its whole
 * length, so that any byte of another value, or of another generation, shows.
 */
#pragma once

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "larder/larder.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REAL_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REAL_SANITIZED 1
#endif
#endif
#ifndef REAL_SANITIZED
#define REAL_SANITIZED 0
#endif

/* ---- numbers from the environment ---- */

static inline uint64_t real_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text != NULL && *text != '\0' ? strtoull(text, NULL, 0) : otherwise;
}

/* Printed, so that a failure can be repeated. */
static inline uint64_t real_seed(void)
{
    uint64_t seed = real_number("LARDER_SEED", 0);

    if (seed == 0) {
        seed = ldr_rand_entropy() >> 16;
    }
    printf("seed=%llu (LARDER_SEED repeats it)\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

static inline uint64_t real_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* Between two looks at something that has no condition to wait for. */
static inline void real_pause(void)
{
    struct timespec t = {0, 500000};

    nanosleep(&t, NULL);
}

/* ---- directories ---- */

static inline bool real_dir_make(char *path, size_t size, const char *name)
{
    const char *parent = getenv("TMPDIR");

    snprintf(path, size, "%s/larder-%s-XXXXXX",
             parent != NULL && *parent != '\0' ? parent : "/tmp", name);
    return mkdtemp(path) != NULL;
}

/* Deletes what is in the directory, one level deep, and leaves it. */
static inline void real_dir_empty(const char *path)
{
    char file[512];
    struct dirent *entry;
    DIR *dir = opendir(path);

    if (dir == NULL) {
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
            unlink(file);
        }
    }
    closedir(dir);
}

static inline void real_dir_remove(const char *path)
{
    real_dir_empty(path);
    rmdir(path);
}

/* ---- keys and values ---- */

static inline uint64_t real_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline larder_key_t real_key(uint64_t id)
{
    larder_key_t key;

    for (size_t i = 0; i < LARDER_KEY_BYTES; i += 8) {
        uint64_t word = real_mix(id * 4 + i / 8 + 0x9e3779b97f4a7c15u);
        memcpy(key.hash + i, &word, 8);
    }
    return key;
}

/* Pseudo-random, the same for the same id: not a multiple of a block. */
static inline size_t real_bytes(uint64_t id, size_t min, size_t max)
{
    return min + real_mix(id + 77) % (max - min + 1);
}

static inline uint64_t real_word(uint64_t id, uint64_t generation, size_t i)
{
    return (id * 0x9e3779b97f4a7c15u ^ generation * 0xd1b54a32d192ed03u) +
           (uint64_t)i * 0xa0761d6478bd642fu;
}

static inline void real_fill(void *value, size_t bytes, uint64_t id,
                             uint64_t generation)
{
    uint8_t *to = value;
    uint64_t head[2] = {id, generation};

    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = i < 16 ? head[i / 8] : real_word(id, generation, i);
        memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

/* Whether these are the bytes of the id, of whatever generation. */
static inline bool real_check(const void *value, size_t bytes, uint64_t id,
                              uint64_t *generation_p)
{
    const uint8_t *from = value;
    uint64_t head[2];

    if (bytes < sizeof(head)) {
        return false;
    }
    memcpy(head, from, sizeof(head));
    if (head[0] != id) {
        return false;
    }
    for (size_t i = 16; i < bytes; i += 8) {
        uint64_t word = real_word(id, head[1], i);
        if (memcmp(from + i, &word, bytes - i < 8 ? bytes - i : 8) != 0) {
            return false;
        }
    }
    *generation_p = head[1];
    return true;
}

/* ---- calls ---- */

static inline larder_status_t real_space(larder_t *lar, const char *name,
                                         larder_space_t **space_p)
{
    larder_space_params_t params = {
        .descriptor = name,
        .descriptor_bytes = strlen(name),
    };

    return larder_space_open(lar, &params, space_p);
}

/* One item. The status of the item, or of the call if that failed. */
static inline larder_status_t real_run(larder_space_t *space, larder_op_t op,
                                       uint64_t id, void *value, size_t bytes,
                                       larder_item_t *item)
{
    larder_key_t key = real_key(id);
    struct iovec iov = {value, bytes};
    larder_status_t st;

    *item = (larder_item_t){.key = &key, .iov = &iov, .iov_count = 1};
    st = larder_run(space, op, item, 1, NULL);
    item->key = NULL;
    item->iov = NULL;
    return st != LARDER_OK ? st : item->status;
}

static inline larder_status_t real_put(larder_space_t *space, uint64_t id,
                                       uint64_t generation, void *value,
                                       size_t bytes)
{
    larder_item_t item;

    real_fill(value, bytes, id, generation);
    return real_run(space, LARDER_OP_PUT, id, value, bytes, &item);
}

static inline bool real_stats(larder_t *lar, larder_stats_t *stats)
{
    *stats = (larder_stats_t){.struct_bytes = sizeof(*stats)};
    return larder_stats(lar, stats) == LARDER_OK;
}

/* Nothing is to be said: tests that provoke warnings keep them off stderr. */
static inline void real_log_none(void *arg, larder_log_level_t level,
                                 const char *line)
{
    (void)arg;
    (void)level;
    if (getenv("LARDER_TEST_LOG") != NULL) {
        fprintf(stderr, "%s\n", line);
    }
}

static inline larder_status_t real_open(const char *url, larder_t **lar_p)
{
    larder_open_params_t params = {
        .field_mask = LARDER_OPEN_LOG,
        .log = real_log_none,
    };

    return larder_open(url, &params, lar_p);
}
