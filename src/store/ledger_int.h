/* What the two halves of the ledger share: what it knows and how it is written
 * (ledger.c), and how it is read (ledger_load.c). */
#pragma once

#include "store/ledger.h"

#define LDR_LEDGER_PIECE 256u /* blocks read or written at a time */
/* In memory; a directory of an earlier version may have as many tombstones. */
#define LDR_LEDGER_ROWS_MAX ((uint32_t)1 << 19)

void ldr_ledger_set_use(ldr_ledger_t *l, uint32_t segment, ldr_use_t use);
/* False: there is no room. */
bool ldr_ledger_add_row(ldr_ledger_t *l, const ldr_ledger_entry_t *entry,
                        bool seen);
/* By place, and each of them once. */
void ldr_ledger_sort(ldr_ledger_t *l);
/* A file number, or a negative errno. */
int ldr_ledger_file_open(ldr_ledger_t *l, int i, int flags);
