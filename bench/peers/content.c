/* What values contain. Also a shared library, for the client in Python. */
#include "peer.h"

/* From word to word; odd, so that no two places of a value are the same. */
#define STEP 0xd1342543de82ef95u

static uint64_t first_word(uint32_t number, uint32_t generation)
{
    uint64_t x = ((uint64_t)generation << 32 | number) + 1;

    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
}

void content_make(void *data, size_t size, uint32_t number, uint32_t generation)
{
    uint64_t word = first_word(number, generation), *p = data;

    for (size_t i = 0; i < size / 8; i++) {
        p[i] = word + i * STEP;
    }
}

bool content_is(const void *data, size_t size, uint32_t number,
                uint32_t generation)
{
    uint64_t word = first_word(number, generation), wrong = 0;
    const uint64_t *p = data;

    for (size_t i = 0; i < size / 8; i++) {
        wrong |= p[i] ^ (word + i * STEP);
    }
    return wrong == 0;
}
