/*
 * Where on the tape each block is used next. A walk backwards over the blocks
 * tells it, and reads and writes both files in order; the memory is 4 bytes for
 * each different block while it lasts.
 */
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "plan/tape.h"
#include "store/index.h"

#define AT_ONCE (256u << 10)

static bool walk_back(const ldr_tape_t *tape, int fd, uint32_t *seen,
                      uint32_t *blocks)
{
    uint64_t end = tape->references;

    while (end > 0) {
        uint64_t from = end > AT_ONCE ? end - AT_ONCE : 0;
        size_t bytes = (size_t)(end - from) * 4;

        if (!ldr_tape_pread(tape->block_fd, blocks, bytes, from * 4)) {
            return false;
        }
        for (uint64_t i = end - from; i-- > 0;) {
            uint32_t *last = &seen[blocks[i]];

            /* seen has place + 1, so that 0 becomes LDR_NIL: never. */
            blocks[i] = *last - 1;
            *last = (uint32_t)(from + i) + 1;
        }
        if (!ldr_tape_pwrite(fd, blocks, bytes, from * 4)) {
            return false;
        }
        end = from;
    }
    return true;
}

bool ldr_tape_future(ldr_tape_t *tape)
{
    if (tape->future_fd >= 0) {
        return true;
    }
    if (tape->references >= LDR_NIL) {
        ldr_fail(LARDER_E_LIMIT, "optimal looks at up to %u references",
                 LDR_NIL - 1);
        return false;
    }
    size_t seen_bytes = ((size_t)tape->distinct + 1) * 4;
    uint32_t *seen = ldr_reserve(seen_bytes);
    uint32_t *blocks = ldr_alloc((size_t)AT_ONCE * 4);
    int fd = ldr_tape_file(NULL);
    bool ok = fd >= 0;
    if (seen == NULL || blocks == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory to look into the future");
        ok = false;
    }
    ok = ok && walk_back(tape, fd, seen, blocks);
    if (seen != NULL) {
        ldr_unreserve(seen, seen_bytes);
    }
    ldr_free(blocks);
    if (ok) {
        tape->future_fd = fd;
    } else if (fd >= 0) {
        close(fd);
    }
    return ok;
}
