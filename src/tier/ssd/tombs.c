/* Tombstones on their way to a segment, and the ledger's word of each. */
#include "base/bytes.h"
#include "tier/ssd/ssd.h"

bool ldr_tomb_is_new(const ldr_record_t *record)
{
    return record->kind == LDR_RECORD_TOMBSTONE &&
           ldr_get64(record->parent.hash) == 0;
}

bool ldr_tombs_have_word(ldr_ssd_t *ssd)
{
    ssd->crowded = ldr_tomb_is_new(&ssd->tombs[ssd->tomb_head]) &&
                   ldr_ledger_full(&ssd->disk.ledger);
    return !ssd->crowded;
}

void ldr_tombs_restore(ldr_ssd_t *ssd)
{
    ldr_record_t record;

    while (ssd->tomb_count < LDR_TOMBS &&
           ldr_ledger_lone(&ssd->disk.ledger, &record)) {
        ssd->tombs[(ssd->tomb_head + ssd->tomb_count) % LDR_TOMBS] = record;
        ssd->tomb_count++;
    }
}
