#include "support/values.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

uint64_t test_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

larder_key_t test_key(uint32_t key)
{
    larder_key_t out;

    for (int i = 0; i < LARDER_KEY_BYTES; i += 8) {
        ldr_put64(out.hash + i, test_mix((uint64_t)key << 8 | (uint64_t)i));
    }
    return out;
}

static uint64_t value_seed(name_t name, uint32_t version)
{
    return test_mix((uint64_t)name.key << 32 | version) ^
           test_mix((uint64_t)name.space << 16 | name.shard);
}

size_t value_bytes(name_t name, uint32_t version)
{
    uint64_t draw = test_mix(value_seed(name, version));
    size_t max = VALUE_BYTES_MAX;

    if (draw % 100 < 40) {
        max = 4200;
    } else if (draw % 100 < 80) {
        max = 40000;
    } else if (draw % 100 < 96) {
        max = 140000;
    }
    return 1 + (size_t)(draw >> 32) % max;
}

/* The next eight bytes of a value. */
static inline uint64_t value_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state ^ *state >> 29;
}

void value_fill(name_t name, uint32_t version, uint8_t *data)
{
    size_t left = value_bytes(name, version);
    uint64_t state = value_seed(name, version);

    while (left > 0) {
        uint64_t word = value_next(&state);
        size_t take = left < 8 ? left : 8;

        memcpy(data, &word, take);
        data += take;
        left -= take;
    }
}

bool value_is(name_t name, uint32_t version, const uint8_t *data, size_t bytes)
{
    uint64_t state = value_seed(name, version);
    uint64_t word, there;

    if (bytes != value_bytes(name, version)) {
        return false;
    }
    for (; bytes >= 8; bytes -= 8, data += 8) {
        word = value_next(&state);
        memcpy(&there, data, 8);
        if (there != word) {
            return false;
        }
    }
    word = value_next(&state);
    return memcmp(data, &word, bytes) == 0;
}

static uint64_t seed_at_work;

void test_seed(uint64_t seed)
{
    seed_at_work = seed;
}

void test_failed(const char *file, int line, const char *format, ...)
{
    va_list args;

    fflush(stdout);
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nseed=%llu\n", (unsigned long long)seed_at_work);
    abort();
}

uint64_t test_count(const char *name, uint64_t count)
{
#if defined(__SANITIZE_THREAD__)
    count = count / 20 + 1;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    count = count / 20 + 1;
#endif
#endif
    return test_env(name, count);
}

uint64_t test_env(const char *name, uint64_t value)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 0) : value;
}
