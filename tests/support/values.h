/*
 * Names and values of the tests, all made from small numbers: what a get gave
 * can be judged without having kept what was put.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

#define VALUE_BYTES_MAX ((size_t)300 << 10)

/* One shard. Its versions are the values put under that name one after the
 * other: 1, 2, ... They differ in every byte but a few, and in length. */
typedef struct name {
    uint16_t space, shard;
    uint32_t key;
} name_t;

uint64_t test_mix(uint64_t x);

larder_key_t test_key(uint32_t key);

/* 1 byte to VALUE_BYTES_MAX, small ones more often. */
size_t value_bytes(name_t name, uint32_t version);
void value_fill(name_t name, uint32_t version, uint8_t *data);
bool value_is(name_t name, uint32_t version, const uint8_t *data, size_t bytes);

/* The seed that is at work, for test_failed() to tell. */
void test_seed(uint64_t seed);

/* A broken promise: says where and with which seed, and aborts. */
void test_failed(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));

#define require(ok, ...)                                                       \
    do {                                                                       \
        if (!(ok)) {                                                           \
            test_failed(__FILE__, __LINE__, __VA_ARGS__);                      \
        }                                                                      \
    } while (0)

/* A number from the environment, or what it is without. */
uint64_t test_env(const char *name, uint64_t value);
/* The same for how often something is done. Without a word from outside it is
 * less under the thread sanitizer, which is slow, and has nothing to say about
 * nodes without threads. */
uint64_t test_count(const char *name, uint64_t count);
