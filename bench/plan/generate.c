/*
 * A trace of any length, on standard output: chats that go on by a few blocks a
 * turn, begin with one of some templates, and end for good when their place is
 * taken by a new one.
 *
 *   generate REFERENCES [SESSIONS [SEED [dense]]]
 *
 * Ids are hashes, 64 bits, unless "dense" is said: then they are numbered as
 * they come, as in public traces, which larder reads without a table.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEMPLATES 200
#define TEMPLATE_BLOCKS 8
#define CHAIN_MAX 128
#define GOES_ON 70 /* of 100 requests */

typedef struct session {
    uint32_t count;
    uint64_t chain[CHAIN_MAX];
} session_t;

static uint64_t seed = 1;

static uint64_t draw(uint64_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 11) % below;
}

static uint64_t new_id(bool dense)
{
    static uint64_t next;
    uint64_t id = next++;

    if (dense) {
        return id;
    }
    id = (id ^ id >> 30) * 0xbf58476d1ce4e5b9u;
    id = (id ^ id >> 27) * 0x94d049bb133111ebu;
    return id ^ id >> 31;
}

static void grow(session_t *s, uint64_t blocks, bool dense)
{
    while (blocks-- > 0 && s->count < CHAIN_MAX) {
        s->chain[s->count++] = new_id(dense);
    }
}

static void print(const session_t *s, uint64_t at_ms)
{
    static char text[CHAIN_MAX * 24 + 200];
    char *to = text;

    to += sprintf(to,
                  "{\"timestamp\": %" PRIu64 ", \"input_length\": %u, "
                  "\"output_length\": 300, \"hash_ids\": [",
                  at_ms, s->count * 512 - 100);
    for (uint32_t i = 0; i < s->count; i++) {
        char digits[24];
        int n = 0;

        for (uint64_t id = s->chain[i]; n == 0 || id > 0; id /= 10) {
            digits[n++] = (char)('0' + id % 10);
        }
        if (i > 0) {
            *to++ = ',';
            *to++ = ' ';
        }
        while (n > 0) {
            *to++ = digits[--n];
        }
    }
    memcpy(to, "]}\n", 3);
    fwrite(text, 1, (size_t)(to - text) + 3, stdout);
}

int main(int argc, char **argv)
{
    uint64_t references = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    uint64_t sessions = argc > 2 ? strtoull(argv[2], NULL, 10) : 100000;
    bool dense = argc > 4 && strcmp(argv[4], "dense") == 0;
    session_t *all = calloc(sessions, sizeof(*all));
    static session_t templates[TEMPLATES];
    uint64_t at_ms = 0;

    if (all == NULL) {
        return 1;
    }
    seed = argc > 3 ? strtoull(argv[3], NULL, 10) | 1 : 1;
    for (uint64_t done = 0; done < references; at_ms += draw(20)) {
        session_t *s = &all[draw(sessions)];

        if (s->count == 0 || s->count > CHAIN_MAX - 12 ||
            draw(100) >= GOES_ON) {
            session_t *t = &templates[draw(TEMPLATES)];

            if (t->count == 0) {
                grow(t, 1 + draw(TEMPLATE_BLOCKS), dense);
            }
            *s = *t;
        }
        grow(s, 1 + draw(12), dense);
        print(s, at_ms);
        done += s->count;
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
