/* Traces made by hand, and random ones whose chains branch as chats do. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "plan/sim.h"
#include "plan/tape.h"

/* What reading a trace said of its lines. */
typedef struct rig_bad {
    unsigned count;
    uint64_t lines[16];
    char why[16][64];
} rig_bad_t;

static inline void rig_on_bad(void *arg, uint64_t line, const char *why)
{
    rig_bad_t *bad = arg;

    if (bad->count < 16) {
        bad->lines[bad->count] = line;
        snprintf(bad->why[bad->count], sizeof(bad->why[0]), "%s", why);
    }
    bad->count++;
}

static inline larder_status_t rig_read(const void *text, size_t bytes,
                                       double sample, rig_bad_t *bad,
                                       ldr_tape_t *tape)
{
    char path[] = "/tmp/larder-plan-test-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    for (size_t at = 0; at < bytes;) {
        ssize_t n = write(fd, (const char *)text + at, bytes - at);

        assert_true(n > 0);
        at += (size_t)n;
    }
    close(fd);
    ldr_tape_params_t params = {
        .path = path, .folder = "/tmp", .sample = sample, .block_tokens = 512};
    if (bad != NULL) {
        memset(bad, 0, sizeof(*bad));
        params.watch = (ldr_tape_watch_t){.bad = rig_on_bad, .arg = bad};
    }
    larder_status_t st = ldr_tape_read(&params, tape);
    unlink(path);
    return st;
}

/* "1 2 3;1 2 4": requests, a second apart. */
static inline void rig_tape(const char *requests, ldr_tape_t *tape)
{
    size_t room = 64 + strlen(requests) * 80;
    char *text = malloc(room);
    size_t used = 0;
    unsigned second = 0;

    assert_non_null(text);
    while (*requests != '\0') {
        size_t length = strcspn(requests, ";");
        unsigned count = 0;

        used += (size_t)snprintf(text + used, room - used,
                                 "{\"timestamp\":%u,\"hash_ids\":[",
                                 1000 * second++);
        for (size_t i = 0; i < length; i++) {
            char c = requests[i];

            text[used++] = c == ' ' ? ',' : c;
            count += i == 0 || requests[i - 1] == ' ';
        }
        used += (size_t)snprintf(text + used, room - used,
                                 "],\"input_length\":%u}\n", count * 512);
        requests += length + (requests[length] == ';');
    }
    assert_int_equal(rig_read(text, used, 1, NULL, tape), LARDER_OK);
    free(text);
}

/* Sessions that go on, and new ones that share beginnings. No id is dense. */
static inline void rig_random(uint64_t seed, unsigned requests,
                              ldr_tape_t *tape)
{
    enum { SESSIONS = 20, LENGTH = 30 };
    static uint64_t chains[SESSIONS][LENGTH];
    unsigned lengths[SESSIONS] = {0};
    size_t room = (size_t)requests * LENGTH * 24 + 4096, used = 0;
    char *text = malloc(room);
    uint64_t next = 1000;
    ldr_rand_t r;

    assert_non_null(text);
    ldr_rand_seed(&r, seed);
    for (unsigned i = 0; i < requests; i++) {
        unsigned s = (unsigned)ldr_rand_below(&r, SESSIONS);

        if (lengths[s] == 0 || lengths[s] > LENGTH - 6 ||
            ldr_rand_below(&r, 4) == 0) {
            unsigned from = (unsigned)ldr_rand_below(&r, SESSIONS);
            unsigned keep = (unsigned)ldr_rand_below(&r, lengths[from] / 2 + 1);

            memmove(chains[s], chains[from], keep * sizeof(uint64_t));
            lengths[s] = keep;
        }
        for (uint64_t n = 1 + ldr_rand_below(&r, 5); n > 0; n--) {
            chains[s][lengths[s]++] = next;
            next += 1 + ldr_rand_below(&r, 3);
        }
        used += (size_t)snprintf(text + used, room - used,
                                 "{\"timestamp\":%u,\"input_length\":%u,"
                                 "\"output_length\":1,\"hash_ids\":[",
                                 i * 700, lengths[s] * 512);
        for (unsigned j = 0; j < lengths[s]; j++) {
            used += (size_t)snprintf(text + used, room - used, "%s%llu",
                                     j > 0 ? ", " : "",
                                     (unsigned long long)chains[s][j]);
        }
        used += (size_t)snprintf(text + used, room - used, "]}\n");
    }
    assert_int_equal(rig_read(text, used, 1, NULL, tape), LARDER_OK);
    free(text);
}

/* Hits of a simulation over the whole tape. */
static inline uint64_t rig_hits(const ldr_sim_ops_t *ops, ldr_tape_t *tape,
                                uint32_t capacity)
{
    const ldr_tape_request_t *request;
    const uint32_t *blocks;
    ldr_player_t player;
    uint64_t hits = 0;
    ldr_sim_params_t params = {.capacity = capacity};
    ldr_sim_t *sim = ops->create(ops, tape, &params);

    assert_non_null(sim);
    assert_int_equal(ldr_player_open(tape, &player), LARDER_OK);
    while (ldr_player_next(&player, &request, &blocks) > 0) {
        hits += ops->prefix(sim, blocks, 0, request->count);
        assert_true(ops->use(sim, request, blocks));
    }
    ldr_player_close(&player);
    ops->destroy(sim);
    return hits;
}
