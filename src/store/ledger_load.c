/*
 * Reading the ledger: which of its two files counts, and what it says. By the
 * thread that opens the directory; writes nothing. Damage is no failure: what
 * cannot be read is missing, and `trusted` says whether the list of segments is
 * whole.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/options.h"
#include "store/ledger_int.h"

static void entry_take(ldr_ledger_t *l, const ldr_ledger_entry_t *e)
{
    switch (e->kind) {
    case LDR_LEDGER_USED:
    case LDR_LEDGER_CLOSED:
        ldr_ledger_set_use(
            l, e->segment,
            (ldr_use_t){e->sequence, e->nonce, e->kind == LDR_LEDGER_CLOSED});
        break;
    case LDR_LEDGER_FREE:
        ldr_ledger_set_use(l, e->segment, (ldr_use_t){0});
        break;
    case LDR_LEDGER_REMOVED:
        ldr_ledger_add_row(l, e, false);
        break;
    }
}

/* Takes the blocks of a piece, which begins with block `at`. Gives how many
 * were good. Those that were synced before a good one was written are good, or
 * were damaged since. */
static uint32_t piece_take(ldr_ledger_t *l, uint32_t at, uint32_t count)
{
    ldr_ledger_block_t b;
    uint32_t good = 0;

    for (uint32_t i = at; i < at + count; i++) {
        if (!ldr_entries_parse(l->piece + (size_t)(i - at) * LDR_BLOCK,
                               &l->header, i, &b)) {
            continue;
        }
        for (uint32_t k = 0; k < b.count; k++) {
            entry_take(l, &b.entries[k]);
        }
        l->trusted = l->trusted && l->gap >= i - b.unsynced;
        l->gap += l->gap == i;
        l->next = i + 1;
        good++;
    }
    return good;
}

/* What the active file says. It ends where nothing more of its generation is,
 * which is not before all that its header vouches for. */
static void entries_load(ldr_ledger_t *l)
{
    uint32_t good = 1;

    l->trusted = true;
    l->next = l->gap = 1;
    l->sequence = l->header.sequence;
    for (uint32_t at = 1; at < l->header.blocks && good > 0;
         at += LDR_LEDGER_PIECE) {
        uint32_t count =
            (uint32_t)ldr_min64(LDR_LEDGER_PIECE, l->header.blocks - at);
        int error =
            ldr_io_read_at(l->io, l->files[l->active], (uint64_t)at * LDR_BLOCK,
                           l->piece, (size_t)count * LDR_BLOCK);

        l->trusted = l->trusted && error == 0;
        good = error == 0 ? piece_take(l, at, count) : 1;
    }
    l->trusted = l->trusted && l->gap > l->header.first;
    l->stale = l->gap < l->next; /* a hole that a cut left */
    if (!l->trusted) {
        l->states[l->active] = LDR_LEDGER_BAD;
    }
}

int ldr_ledger_file_open(ldr_ledger_t *l, int i, int flags)
{
    char name[LDR_LEDGER_NAME_BYTES], path[LDR_PATH_MAX];

    ldr_ledger_name((unsigned)i, name);
    if (snprintf(path, sizeof(path), "%s/%s", l->path, name) >=
        (int)sizeof(path)) {
        return -ENAMETOOLONG;
    }
    return l->io->ops->open(l->io, path, flags | LDR_IO_DIRECT);
}

/* Opens a file and reads its header. */
static ldr_ledger_file_t header_load(ldr_ledger_t *l, int i,
                                     const uint8_t *dir_id,
                                     ldr_ledger_header_t *header)
{
    uint64_t size = 0;
    int file = ldr_ledger_file_open(l, i, l->readonly ? LDR_IO_READONLY : 0);

    l->files[i] = file < 0 ? -1 : file;
    if (file < 0) {
        return file == -ENOENT ? LDR_LEDGER_ABSENT : LDR_LEDGER_BAD;
    }
    int error = l->io->ops->size(l->io, file, &size);
    if (error == 0 && size < LDR_BLOCK) {
        return size == 0 ? LDR_LEDGER_EMPTY : LDR_LEDGER_BAD;
    }
    if (error == 0) {
        error = ldr_io_read_at(l->io, file, 0, l->piece, LDR_BLOCK);
    }
    if (error != 0) {
        return LDR_LEDGER_BAD;
    }
    ldr_parse_t parsed = ldr_ledger_parse(l->piece, header);
    if (parsed == LDR_PARSE_EMPTY) {
        return LDR_LEDGER_EMPTY;
    }
    return parsed == LDR_PARSE_OK && header->blocks <= size / LDR_BLOCK &&
                   memcmp(header->dir_id, dir_id, LDR_ID_BYTES) == 0
               ? LDR_LEDGER_GOOD
               : LDR_LEDGER_BAD;
}

static void ledger_load(ldr_ledger_t *l, const uint8_t *dir_id)
{
    for (int i = 0; i < LDR_LEDGERS; i++) {
        ldr_ledger_header_t header;

        l->states[i] = header_load(l, i, dir_id, &header);
        if (l->states[i] == LDR_LEDGER_GOOD &&
            (l->active < 0 || header.generation > l->header.generation)) {
            l->active = i;
            l->header = header;
        }
    }
    memcpy(l->header.dir_id, dir_id, LDR_ID_BYTES);
    if (l->active >= 0) {
        entries_load(l);
    }
    ldr_ledger_sort(l);
    l->written = l->row_count;
    for (int i = 0; i < LDR_LEDGERS; i++) {
        l->stale |= l->states[i] != LDR_LEDGER_GOOD;
    }
}

uint64_t ldr_ledger_size(const ldr_ledger_t *l)
{
    return (uint64_t)l->header.blocks * LDR_BLOCK;
}

void ldr_ledger_fit(ldr_ledger_t *l, uint64_t bytes)
{
    l->want = (uint32_t)(ldr_max64(bytes, LDR_LEDGER_BYTES_LEAST) / LDR_BLOCK);
    l->stale |= l->want != l->header.blocks;
}

larder_status_t ldr_ledger_open(ldr_ledger_t *l,
                                const ldr_ledger_params_t *params)
{
    memset(l, 0, sizeof(*l));
    l->io = params->io;
    l->path = params->path;
    l->rand = params->rand;
    l->readonly = params->readonly;
    l->active = -1;
    for (int i = 0; i < LDR_LEDGERS; i++) {
        l->files[i] = -1;
    }
    l->uses = ldr_reserve(LDR_SEGMENTS_MAX * sizeof(*l->uses));
    l->rows = ldr_reserve(LDR_LEDGER_ROWS_MAX * sizeof(*l->rows));
    l->piece = ldr_alloc_blocks(((size_t)LDR_LEDGER_PIECE * LDR_BLOCK));
    if (l->uses == NULL || l->rows == NULL || l->piece == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    ledger_load(l, params->dir_id);
    l->want = (uint32_t)ldr_max64(l->header.blocks,
                                  LDR_LEDGER_BYTES_LEAST / LDR_BLOCK);
    return LARDER_OK;
}

void ldr_ledger_close(ldr_ledger_t *l)
{
    for (int i = 0; l->io != NULL && i < LDR_LEDGERS; i++) {
        if (l->files[i] >= 0) {
            l->io->ops->close(l->io, l->files[i]);
        }
    }
    ldr_unreserve(l->uses, LDR_SEGMENTS_MAX * sizeof(*l->uses));
    ldr_unreserve(l->rows, LDR_LEDGER_ROWS_MAX * sizeof(*l->rows));
    ldr_free(l->piece);
    memset(l, 0, sizeof(*l));
}
