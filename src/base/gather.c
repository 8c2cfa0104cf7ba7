/* Copies between one piece of memory and many: see gather.h. */
#include "base/gather.h"

#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"

#define STAGE 4096u
#define LINE 64u
#define AHEAD 32u        /* buffers that are asked for before their turn */
#define AHEAD_BYTES 512u /* of each, at most */
/* Rows from so many bytes on, at a line's begin, are written past the caches:
 * else the CPU reads every line before it is overwritten. */
#define ROW_NT_MIN 128u

/* Asks for the buffer that comes AHEAD buffers later. */
static inline void prefetch_later(const ldr_list_t *list)
{
    const struct iovec *later = list->at.iov + AHEAD;

    if (later < list->end) {
        size_t bytes = ldr_min64(later->iov_len, AHEAD_BYTES);

        for (size_t i = 0; i < bytes; i += LINE) {
            __builtin_prefetch((const uint8_t *)later->iov_base + i, 0, 3);
        }
    }
}

/* Where the list goes on behind this buffer; NULL: it ends. */
static inline const void *next_of(const ldr_list_t *list)
{
    return list->at.iov + 1 < list->end ? list->at.iov[1].iov_base : NULL;
}

/* A large buffer: its pages, and those of the next, are looked up early. */
static inline void ask_large(const ldr_list_t *list)
{
    if (list->at.at == 0 && list->at.iov + 1 < list->end) {
        ldr_copy_prefetch(list->at.iov[1].iov_base, list->at.iov[1].iov_len);
    }
}

/* Small buffers, at most STAGE bytes of them; gives how many. */
static size_t collect(uint8_t *stage, ldr_list_t *from, size_t bytes)
{
    size_t done = 0;

    bytes = ldr_min64(bytes, STAGE);
    while (done < bytes) {
        size_t left = ldr_cursor_left(&from->at);
        size_t take = ldr_min64(bytes - done, left);

        if (left >= LDR_COPY_NT_MIN) {
            break;
        }
        prefetch_later(from);
        memcpy(stage + done, ldr_cursor_here(&from->at), take);
        done += take;
        ldr_cursor_go(&from->at, take);
    }
    return done;
}

uint32_t ldr_gather(uint32_t crc, void *to, ldr_list_t *from, size_t bytes)
{
    _Alignas(LINE) uint8_t stage[STAGE];
    uint8_t *at = to;

    while (bytes > 0) {
        size_t left = ldr_cursor_left(&from->at), done;

        if (left >= LDR_COPY_NT_MIN) {
            done = ldr_min64(bytes, left);
            ask_large(from);
            crc = ldr_copy_piece(crc, at, ldr_cursor_here(&from->at), done,
                                 done == left ? next_of(from) : NULL);
            ldr_cursor_go(&from->at, done);
        } else {
            done = collect(stage, from, bytes);
            crc = ldr_copy_piece(crc, at, stage, done, NULL);
        }
        at += done;
        bytes -= done;
    }
    return crc;
}

static inline void put_row(uint8_t *to, const uint8_t *from, size_t bytes)
{
    if (bytes >= ROW_NT_MIN && (uintptr_t)to % LINE == 0) {
        ldr_copy_row(to, from, bytes);
    } else {
        memcpy(to, from, bytes);
    }
}

/* So many bytes to small buffers. */
static void spread(ldr_list_t *to, const uint8_t *from, size_t bytes)
{
    while (bytes > 0) {
        size_t take = ldr_min64(bytes, ldr_cursor_left(&to->at));

        put_row(ldr_cursor_here(&to->at), from, take);
        from += take;
        bytes -= take;
        ldr_cursor_go(&to->at, take);
    }
}

/* Bytes of the small buffers from here on, at most STAGE. */
static size_t small_ahead(const ldr_list_t *to, size_t bytes)
{
    const struct iovec *iov = to->at.iov;
    size_t sum = ldr_cursor_left(&to->at);

    bytes = ldr_min64(bytes, STAGE);
    while (sum < bytes && ++iov < to->end && iov->iov_len < LDR_COPY_NT_MIN) {
        sum += iov->iov_len;
    }
    return ldr_min64(sum, bytes);
}

uint32_t ldr_scatter(uint32_t crc, ldr_list_t *to, const void *from,
                     size_t bytes, bool check)
{
    const uint8_t *at = from;

    while (bytes > 0) {
        size_t left = ldr_cursor_left(&to->at), done;

        if (left >= LDR_COPY_NT_MIN) {
            done = ldr_min64(bytes, left);
            ask_large(to);
            if (check) {
                crc = ldr_copy_piece(crc, ldr_cursor_here(&to->at), at, done,
                                     done < bytes ? at + done : NULL);
            } else {
                ldr_copy_piece_plain(ldr_cursor_here(&to->at), at, done,
                                     done < bytes ? at + done : NULL);
            }
            ldr_cursor_go(&to->at, done);
        } else {
            done = small_ahead(to, bytes);
            crc = check ? ldr_crc32c(crc, at, done) : crc;
            spread(to, at, done);
        }
        at += done;
        bytes -= done;
    }
    return crc;
}
