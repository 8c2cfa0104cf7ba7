/* fsck: src/store/fsck.h, shown to people and scripts. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "store/index.h"

#define TICK_NS 200000000u /* between two lines of progress */

typedef struct watch {
    const ldr_args_t *args;
    const char *dir;
    bool json, repair;
    bool bar; /* stderr is a terminal */
    uint64_t shown_ns;
} watch_t;

static void bar_clear(const watch_t *w)
{
    if (w->bar) {
        fprintf(stderr, "\r\033[K");
    }
}

static void on_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    watch_t *w = arg;
    uint64_t now_ns = ldr_now_ns(&ldr_clock_real);

    if (!w->bar || now_ns - w->shown_ns < TICK_NS) {
        return;
    }
    char done[32], total[32];
    ldr_human_bytes(done_bytes, done, sizeof(done));
    ldr_human_bytes(total_bytes, total, sizeof(total));
    fprintf(stderr, "\r%s: %s of %s (%.0f %%)\033[K", w->dir, done, total,
            total_bytes > 0 ? 100.0 * (double)done_bytes / (double)total_bytes
                            : 100.0);
    w->shown_ns = now_ns;
}

static void finding_json(const watch_t *w, const ldr_fsck_finding_t *f)
{
    char hex[LDR_HEX_BYTES(LARDER_KEY_BYTES)];

    printf("{\"finding\":\"%s\",\"damage\":%s,\"dir\":",
           ldr_fsck_kinds[f->kind].word,
           ldr_fsck_kinds[f->kind].damage ? "true" : "false");
    ldr_json_string(stdout, w->dir);
    if (f->segment == LDR_NIL) {
        printf(",\"%s\":%u", ldr_fsck_of_ledger(f->kind) ? "ledger" : "copy",
               f->block);
    } else {
        printf(",\"segment\":%u,\"block\":%u", f->segment, f->block);
    }
    if (f->record != NULL) {
        ldr_hex(f->record->key.hash, LARDER_KEY_BYTES, hex);
        printf(",\"key\":\"%s\",\"group\":%u,\"shard\":%u", hex,
               f->record->group, f->record->shard);
    }
    if (f->error != 0) {
        printf(",\"error\":");
        ldr_json_string(stdout, strerror(-f->error));
    }
    printf("}\n");
}

static void finding_line(const ldr_fsck_finding_t *f, bool repair)
{
    const ldr_fsck_kind_info_t *kind = &ldr_fsck_kinds[f->kind];
    char hex[LDR_HEX_BYTES(LARDER_KEY_BYTES)];

    printf("%s ", kind->damage ? "DAMAGE" : "note  ");
    if (f->segment == LDR_NIL && ldr_fsck_of_ledger(f->kind)) {
        printf("larder.ledger-%u: %s", f->block, kind->text);
    } else if (f->segment == LDR_NIL) {
        printf("larder.super copy %u: %s", f->block, kind->text);
    } else {
        printf("segment-%06u block %u: %s", f->segment, f->block, kind->text);
    }
    if (f->error != 0) {
        printf(": %s", strerror(-f->error));
    }
    if (f->record != NULL) {
        ldr_hex(f->record->key.hash, LARDER_KEY_BYTES, hex);
        printf(" (key %s, group %u, shard %u)", hex, f->record->group,
               f->record->shard);
    }
    printf("%s%s\n", repair ? "; repair: " : "", repair ? kind->repair : "");
}

static void on_found(void *arg, const ldr_fsck_finding_t *finding)
{
    watch_t *w = arg;

    bar_clear(w);
    if (w->json) {
        finding_json(w, finding);
    } else {
        finding_line(finding, w->repair &&
                                  finding->kind != LDR_FSCK_UNREPAIRED &&
                                  finding->kind != LDR_FSCK_LEDGER_UNREPAIRED);
    }
}

static void summary(const watch_t *w, const ldr_fsck_report_t *r)
{
    char bytes[32];

    if (w->json) {
        printf("{\"dir\":");
        ldr_json_string(stdout, w->dir);
        printf(",\"clean\":%s,\"segments\":%" PRIu64
               ",\"segments_free\":%" PRIu64 ",\"segments_lost\":%" PRIu64
               ",\"records\":%" PRIu64 ",\"tombstones\":%" PRIu64
               ",\"payload_bytes\":%" PRIu64 ",\"damage\":%" PRIu64
               ",\"notes\":%" PRIu64 ",\"repaired\":%" PRIu64 "}\n",
               r->damage == r->repaired ? "true" : "false", r->segments,
               r->segments_free, r->segments_lost, r->records, r->tombstones,
               r->payload_bytes, r->damage, r->notes, r->repaired);
        return;
    }
    ldr_human_bytes(r->payload_bytes, bytes, sizeof(bytes));
    printf("%s: %s; good records: %" PRIu64 " (%s), tombstones: %" PRIu64
           ", segments: %" PRIu64 " (%" PRIu64 " free, %" PRIu64 " lost)\n",
           w->dir, r->damage > r->repaired ? "DAMAGED" : "clean", r->records,
           bytes, r->tombstones, r->segments, r->segments_free,
           r->segments_lost);
    if (r->damage > 0) {
        printf("%" PRIu64 " damaged, %" PRIu64 " repaired%s\n", r->damage,
               r->repaired,
               w->repair ? "" : "; run it with --repair to mend it");
    }
}

static int fsck_dir(const ldr_args_t *args, ldr_cli_place_t *place, unsigned i)
{
    ldr_fsck_report_t report;
    watch_t w = {
        .args = args,
        .dir = place->options.dirs[i],
        .json = ldr_args_has(args, LDR_FLAG_JSON),
        .repair = ldr_args_has(args, LDR_FLAG_REPAIR),
        .bar = isatty(STDERR_FILENO) != 0,
    };
    ldr_fsck_ops_t ops = {on_found, on_progress, &w};
    larder_status_t st = ldr_fsck(place->io, w.dir, w.repair, &ops, &report);

    bar_clear(&w);
    if (st == LARDER_E_CORRUPT) {
        ldr_cli_status(args, st);
        return LDR_EXIT_NO;
    }
    if (st == LARDER_E_LOCKED) {
        return ldr_cli_in_use(args, w.dir);
    }
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    summary(&w, &report);
    return report.damage > report.repaired ? LDR_EXIT_NO : LDR_EXIT_OK;
}

int ldr_cmd_fsck(const ldr_args_t *args)
{
    ldr_cli_place_t *place;
    int worst = ldr_place_parse(args, &place);

    for (unsigned i = 0; worst < LDR_EXIT_USAGE && i < place->options.dir_count;
         i++) {
        int code = fsck_dir(args, place, i);

        worst = code > worst ? code : worst;
    }
    ldr_place_close(&place);
    return worst;
}
