/*
 * The ledger, and what it says that there ought to be: segments that are gone
 * or of another use, and removals that no segment has.
 */

#include "base/bytes.h"
#include "store/fsck_int.h"

larder_status_t ldr_fsck_ledger_open(ldr_fsck_t *f)
{
    ldr_ledger_params_t params = {
        .io = f->io,
        .path = f->path,
        .rand = &f->rand,
        .dir_id = f->super->dir_id,
        .readonly = !f->repair,
    };
    larder_status_t st = ldr_ledger_open(&f->ledger, &params);

    /* The nonce of a generation need not be a secret, only another. */
    ldr_rand_seed(&f->rand,
                  ldr_get64(f->super->dir_id) + f->ledger.header.generation);
    return st;
}

/* ---- its files ---- */

/* Damage that is mended when the ledger is written. */
static void ledger_found(ldr_fsck_t *f, ldr_fsck_kind_t kind, uint32_t segment,
                         uint32_t block)
{
    f->segment = segment;
    ldr_fsck_found(f, kind, block, NULL, 0);
    if (ldr_fsck_kinds[kind].damage) {
        f->ledger_damage++;
        if (segment != LDR_NIL) {
            f->segments[segment].damage--;
        }
    }
}

/* Both are written when there is one at all; if not, that was cut short. */
static bool is_made(const ldr_ledger_t *l)
{
    bool made = false;

    for (int i = 0; i < LDR_LEDGERS; i++) {
        made = made || l->states[i] == LDR_LEDGER_GOOD ||
               l->states[i] == LDR_LEDGER_BAD;
    }
    return made;
}

static void files_check(ldr_fsck_t *f)
{
    const ldr_ledger_t *l = &f->ledger;

    if (!is_made(l)) {
        if (f->file_count > 0) {
            ledger_found(f, LDR_FSCK_LEDGER_NONE, LDR_NIL, 0);
        }
        return;
    }
    for (uint32_t i = 0; i < LDR_LEDGERS; i++) {
        if (l->states[i] != LDR_LEDGER_GOOD &&
            (l->states[i] != LDR_LEDGER_EMPTY || f->file_count > 0)) {
            ledger_found(f, LDR_FSCK_LEDGER_BAD, LDR_NIL, i);
        }
    }
}

/* ---- segments ---- */

/* As an open does: recover.c. */
static bool is_behind(const ldr_fsck_t *f)
{
    const ldr_ledger_t *l = &f->ledger;
    uint32_t newer = 0;

    for (uint32_t i = 0; i < f->segment_count; i++) {
        if (f->segments[i].state == LDR_FSCK_SEGMENT_USED &&
            f->segments[i].sequence > l->sequence) {
            newer += 1 + (ldr_ledger_use_of(l, i).sequence != 0);
        }
    }
    return newer > 1;
}

/* Says what is not as the ledger has it. */
static void segment_compare(ldr_fsck_t *f, uint32_t segment, bool behind)
{
    ldr_fsck_segment_t *s = &f->segments[segment];
    bool known = ldr_ledger_use_of(&f->ledger, segment).sequence != 0;

    f->segment = segment;
    if (s->state == LDR_FSCK_SEGMENT_USED &&
        ldr_ledger_judge(&f->ledger, segment, s->sequence, s->nonce) ==
            LDR_VERDICT_STALE) {
        s->state = LDR_FSCK_SEGMENT_CLEAR;
        ldr_fsck_found(f, known ? LDR_FSCK_SEGMENT_OLD : LDR_FSCK_SEGMENT_OVER,
                       0, NULL, 0);
    } else if (known && !behind &&
               (s->state == LDR_FSCK_SEGMENT_NONE ||
                s->state == LDR_FSCK_SEGMENT_FREE)) {
        ledger_found(f, LDR_FSCK_SEGMENT_LOST, segment, 0);
    }
    f->report->segments_lost += known && !behind &&
                                s->state != LDR_FSCK_SEGMENT_USED &&
                                s->state != LDR_FSCK_SEGMENT_LEFT;
}

/* The list becomes what was found. */
static void segment_list(ldr_fsck_t *f, uint32_t segment)
{
    const ldr_fsck_segment_t *s = &f->segments[segment];
    ldr_use_t known = ldr_ledger_use_of(&f->ledger, segment);
    ldr_use_t use = {s->sequence, s->nonce,
                     known.closed && known.sequence == s->sequence};

    if (s->state == LDR_FSCK_SEGMENT_LEFT) {
        use = known.sequence != 0 ? known : LDR_USE_UNKNOWN;
    } else if (s->state != LDR_FSCK_SEGMENT_USED) {
        use = (ldr_use_t){0};
    }
    ldr_ledger_found(&f->ledger, segment, use);
}

void ldr_fsck_ledger_check(ldr_fsck_t *f)
{
    ldr_ledger_t *l = &f->ledger;
    uint32_t slots = (uint32_t)ldr_max64(l->use_slots, f->segment_count);
    bool behind = is_behind(f);

    files_check(f);
    if (behind && l->active >= 0) {
        ledger_found(f, LDR_FSCK_LEDGER_OLD, LDR_NIL, (uint32_t)l->active);
    }
    for (uint32_t i = 0; i < slots; i++) {
        segment_compare(f, i, behind || !l->trusted);
    }
    for (uint32_t i = 0; i < slots; i++) {
        segment_list(f, i); /* not before all were compared */
    }
    ldr_ledger_listed(l);
}

void ldr_fsck_ledger_repair(ldr_fsck_t *f)
{
    ldr_ledger_t *l = &f->ledger;

    ldr_ledger_settle(l);
    if (ldr_ledger_whole(l) || !is_made(l)) {
        return; /* one that was never made is left to the next open */
    }
    int error = ldr_ledger_write(l);
    if (error == 0) {
        f->report->repaired += f->ledger_damage;
        return;
    }
    f->segment = LDR_NIL;
    ldr_fsck_found(f, LDR_FSCK_LEDGER_UNREPAIRED, 0, NULL, error);
}
