/*
 * A trace, read once and kept as two files without a name: the requests, 24
 * bytes each, and their blocks, 4 bytes each, numbered from 0 in the order in
 * which they first came. Every simulation reads it from there, so that the
 * text is parsed once and the trace is never in memory.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "larder/larder.h"

typedef struct ldr_tape_request {
    uint64_t at_ms; /* since the first request, never going back */
    uint32_t input_tokens;
    uint32_t output_tokens;
    uint32_t count; /* blocks */
    uint32_t hint;  /* LDR_HINT_*, where the trace has them */
} ldr_tape_request_t;

typedef struct ldr_tape {
    int request_fd, block_fd;
    int future_fd; /* -1 until ldr_tape_future() */
    uint64_t requests;
    uint64_t references; /* blocks of all requests that are on the tape */
    uint64_t all;        /* and in the trace: more if it was sampled */
    uint64_t input_tokens;
    uint64_t duration_ms; /* from the first request to the last */
    uint64_t lines;       /* of the text, with the bad ones */
    uint64_t bad;         /* of them */
    uint64_t back;        /* requests whose time was before that of another */
    uint32_t distinct;    /* blocks that differ */
    uint32_t longest;     /* blocks of the longest request */
    double took_s;        /* real time of reading it */
    double sample;        /* share of the blocks that is on the tape */
    /* For policies that ask; 0: not known. What was asked for, or else the
     * most that a line says. */
    uint32_t block_tokens;
} ldr_tape_t;

/* Whom reading a trace tells what it finds. Both may be NULL. */
typedef struct ldr_tape_watch {
    void (*bad)(void *arg, uint64_t line, const char *why);
    /* Now and then. Bytes of the file; total 0: not known. */
    void (*progress)(void *arg, uint64_t at, uint64_t total);
    void *arg;
} ldr_tape_watch_t;

typedef struct ldr_tape_params {
    const char *path;   /* "-": standard input */
    const char *folder; /* for the files; NULL: $TMPDIR, or /var/tmp */
    /* 0...1: only blocks whose id has a hash below this share of all hashes. A
     * cache of that share of the capacity then hits as the whole would. */
    double sample;
    uint32_t block_tokens; /* 0: as the lines say */
    ldr_tape_watch_t watch;
} ldr_tape_params_t;

/*
 * Reads a trace. Bad lines are logged, counted and left out: whether that is
 * good enough is for the caller to say. Empty lines do not count.
 */
larder_status_t ldr_tape_read(const ldr_tape_params_t *params,
                              ldr_tape_t *tape);
void ldr_tape_close(ldr_tape_t *tape);

/* A file without a name in folder (as above): a descriptor, or -1 with the
 * text of ldr_fail(). */
int ldr_tape_file(const char *folder);

/* ---- playing it ---- */

typedef struct ldr_player {
    const ldr_tape_t *tape;
    uint64_t request_at; /* next to be read from the file */
    uint64_t block_at;
    uint32_t requests_from, requests_to; /* in hand */
    uint32_t blocks_from, blocks_to;
    uint32_t block_capacity;
    uint32_t ahead_request, ahead_block; /* next to be prefetched */
    ldr_tape_request_t *requests;
    uint32_t *blocks;
} ldr_player_t;

larder_status_t ldr_player_open(const ldr_tape_t *tape, ldr_player_t *player);
/* The next request and its blocks, which stay until the next call. 1: there is
 * one; 0: the end; -1: the file cannot be read, with the text of ldr_fail(). */
int ldr_player_next(ldr_player_t *player, const ldr_tape_request_t **request_p,
                    const uint32_t **blocks_p);
/* The first block of one more of the `most` requests after it, each once, as
 * far as they are in hand. False: no more of them. */
bool ldr_player_ahead(ldr_player_t *player, uint32_t most, uint32_t *block_p);
void ldr_player_close(ldr_player_t *player);

/* Makes the third file: for each reference the place of the next one to the
 * same block, 4 bytes, LDR_NIL for none. False: with the text of ldr_fail(). */
bool ldr_tape_future(ldr_tape_t *tape);

/* All bytes, or false with the text of ldr_fail(). */
bool ldr_tape_pread(int fd, void *to, size_t bytes, uint64_t offset);
bool ldr_tape_pwrite(int fd, const void *from, size_t bytes, uint64_t offset);
