/*
 * ls: what a directory holds, read offline from its tables. A node that runs is
 * asked instead (ls_node.c).
 *
 * Whether a record counts is decided as an open would: of the records of one
 * shard the last one written wins, a tombstone cancels those before it, and
 * one of an earlier epoch or past its time counts for nothing.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "node/metrics.h"
#include "store/disk.h"

typedef enum row_state {
    LIVE,
    REPLACED,
    REMOVED,
    STALE,
    EXPIRED,
    TOMBSTONE
} row_state_t;

static const char *const state_words[] = {
    "live", "replaced", "removed", "stale", "expired", "tombstone",
};

typedef struct row {
    ldr_record_t record;
    uint64_t order;    /* in which it was found */
    uint64_t sequence; /* where it was written: of a carried tombstone, */
    uint32_t block;    /* where it stood first, as an open takes it */
    row_state_t state;
} row_t;

typedef struct list {
    const ldr_disk_t *disk;
    row_t *rows;
    size_t count, capacity;
    bool no_memory;
} list_t;

/* ---- gathering ---- */

static bool list_add(void *arg, uint32_t segment, const ldr_record_t *record)
{
    list_t *list = arg;

    if (!ldr_grow(&list->rows, &list->capacity, list->count + 1,
                  sizeof(*list->rows))) {
        list->no_memory = true;
        return false;
    }
    row_t *row = &list->rows[list->count];
    *row = (row_t){
        .record = *record,
        .order = list->count,
        .sequence = segment == LDR_NIL
                        ? 0 /* the ledger has it; it says where it stood */
                        : list->disk->segments[segment].sequence,
        .block = record->block,
    };
    if (record->kind == LDR_RECORD_TOMBSTONE &&
        ldr_get64(record->parent.hash) != 0) {
        row->sequence = ldr_get64(record->parent.hash);
        row->block = ldr_get32(record->parent.hash + 8);
    }
    list->count++;
    return true;
}

/* ---- judging ---- */

static int compare_names(const ldr_record_t *a, const ldr_record_t *b)
{
    int order = memcmp(a->space_id, b->space_id, LDR_ID_BYTES);

    if (order == 0) {
        order = memcmp(a->key.hash, b->key.hash, LARDER_KEY_BYTES);
    }
    if (order == 0) {
        order = (int)a->group - (int)b->group;
    }
    return order != 0 ? order : (int)a->shard - (int)b->shard;
}

static int by_order(const void *left, const void *right)
{
    const row_t *a = left, *b = right;

    return (a->order > b->order) - (a->order < b->order);
}

static int by_name(const void *left, const void *right)
{
    const row_t *a = left, *b = right;
    int order = compare_names(&a->record, &b->record);

    if (order == 0) {
        order = (a->sequence > b->sequence) - (a->sequence < b->sequence);
    }
    return order != 0 ? order : (a->block > b->block) - (a->block < b->block);
}

/* The epoch of a space: the superblock's, or a later one that a record of a
 * reset under way proves. Its rows are [from, count), sorted by name. */
static uint32_t epoch_of(const ldr_super_t *super, const list_t *list,
                         uint64_t from)
{
    const uint8_t *id = list->rows[from].record.space_id;
    uint32_t epoch = 0;

    for (uint32_t i = 0; i < super->space_count; i++) {
        if (memcmp(super->spaces[i].id, id, LDR_ID_BYTES) == 0) {
            epoch = super->spaces[i].epoch;
        }
    }
    for (uint64_t i = from;
         i < list->count &&
         memcmp(list->rows[i].record.space_id, id, LDR_ID_BYTES) == 0;
         i++) {
        epoch = (uint32_t)ldr_max64(epoch, list->rows[i].record.epoch);
    }
    return epoch;
}

/* after: the next row of the same shard, or NULL. */
static row_state_t row_judge(const row_t *row, const row_t *after,
                             uint32_t epoch, uint32_t now_s)
{
    const ldr_record_t *r = &row->record;

    if (r->kind == LDR_RECORD_TOMBSTONE) {
        return TOMBSTONE;
    }
    if (r->epoch < epoch) {
        return STALE;
    }
    if (after != NULL) {
        return after->record.kind == LDR_RECORD_TOMBSTONE ? REMOVED : REPLACED;
    }
    return r->expires_s != 0 && r->expires_s <= now_s ? EXPIRED : LIVE;
}

static void list_judge(list_t *list, const ldr_super_t *super, uint32_t now_s)
{
    uint32_t epoch = 0;

    if (list->count == 0) {
        return;
    }
    qsort(list->rows, list->count, sizeof(*list->rows), by_name);
    for (uint64_t i = 0; i < list->count; i++) {
        row_t *row = &list->rows[i];
        const row_t *after = i + 1 < list->count ? row + 1 : NULL;

        if (i == 0 || memcmp(row->record.space_id, row[-1].record.space_id,
                             LDR_ID_BYTES) != 0) {
            epoch = epoch_of(super, list, i);
        }
        if (after != NULL && compare_names(&row->record, &after->record) != 0) {
            after = NULL;
        }
        row->state = row_judge(row, after, epoch, now_s);
    }
    qsort(list->rows, list->count, sizeof(*list->rows), by_order);
}

/* ---- showing ---- */

void ldr_ls_age(uint32_t age_s, char *text, size_t size)
{
    if (age_s < 120) {
        snprintf(text, size, "%us", age_s);
    } else if (age_s < 2 * 3600) {
        snprintf(text, size, "%um", age_s / 60);
    } else if (age_s < 2 * 86400) {
        snprintf(text, size, "%uh", age_s / 3600);
    } else {
        snprintf(text, size, "%ud", age_s / 86400);
    }
}

static void row_json(const row_t *row, const char *dir, uint32_t age_s)
{
    char key[LDR_HEX_BYTES(LARDER_KEY_BYTES)];
    char space[LDR_HEX_BYTES(LDR_ID_BYTES)];
    const ldr_record_t *r = &row->record;

    ldr_hex(r->key.hash, LARDER_KEY_BYTES, key);
    ldr_hex(r->space_id, LDR_ID_BYTES, space);
    printf("{\"key\":\"%s\",\"space\":\"%s\",\"group\":%u,\"shard\":%u,"
           "\"shards\":%u,\"bytes\":%u,\"age_s\":%u,\"expires_s\":%u,"
           "\"depth\":%u,\"pinned\":%s,\"state\":\"%s\",\"dir\":",
           key, space, r->group, r->shard, r->shards, r->length, age_s,
           r->expires_s, r->depth,
           (r->flags & LDR_RECORD_PINNED) != 0 ? "true" : "false",
           state_words[row->state]);
    ldr_json_string(stdout, dir);
    printf("}\n");
}

static void row_line(const row_t *row, uint32_t age_s, bool with_state)
{
    char key[LDR_HEX_BYTES(LARDER_KEY_BYTES)];
    char space[LDR_SPACE_LABEL];
    char age[16];
    const ldr_record_t *r = &row->record;

    ldr_hex(r->key.hash, LARDER_KEY_BYTES, key);
    ldr_space_label(r->space_id, space);
    ldr_ls_age(age_s, age, sizeof(age));
    printf("%s  %s  %5u  %5u  %9u  %5s  %5u%s%s\n", key, space, r->group,
           r->shard, r->length, age, r->depth, with_state ? "  " : "",
           with_state ? state_words[row->state] : "");
}

static void list_show(const ldr_args_t *args, const list_t *list,
                      const char *dir, uint32_t now_s)
{
    bool all = ldr_args_has(args, LDR_FLAG_ALL);
    bool json = ldr_args_has(args, LDR_FLAG_JSON);
    uint64_t live = 0, bytes = 0;
    char human[32];

    if (!json) {
        printf("%-64s  %-8s  %5s  %5s  %9s  %5s  %5s%s\n", "KEY", "SPACE",
               "GROUP", "SHARD", "BYTES", "AGE", "DEPTH", all ? "  STATE" : "");
    }
    for (uint64_t i = 0; i < list->count; i++) {
        const row_t *row = &list->rows[i];
        uint32_t written_s = row->record.written_s;
        uint32_t age_s = now_s > written_s ? now_s - written_s : 0;

        live += row->state == LIVE;
        bytes += row->state == LIVE ? row->record.length : 0;
        if (!all && row->state != LIVE) {
            continue;
        }
        if (json) {
            row_json(row, dir, age_s);
        } else {
            row_line(row, age_s, all);
        }
    }
    if (!json) {
        ldr_human_bytes(bytes, human, sizeof(human));
        printf("%s: %" PRIu64 " shard%s, %s\n", dir, live, live == 1 ? "" : "s",
               human);
    }
}

/* ---- all of it ---- */

static int ls_dir(const ldr_args_t *args, ldr_cli_place_t *place, unsigned i)
{
    static const ldr_log_t log;
    uint32_t now_s = ldr_wall_s(&ldr_clock_real);
    ldr_disk_params_t params = {
        .io = place->io,
        .log = &log,
        .path = place->options.dirs[i],
        .bytes = place->ssd_bytes,
    };
    const ldr_fsck_look_t *look = &place->look[i];
    ldr_recovery_t found;
    ldr_disk_t disk;
    list_t list = {.disk = &disk};

    if (look->segment_bytes == 0 && look->segments == 0 &&
        look->version_unknown == 0) {
        list_show(args, &list, params.path, now_s); /* never finished */
        return LDR_EXIT_OK;
    }
    larder_status_t st = ldr_disk_open(&disk, &params);
    if (st == LARDER_E_LOCKED) {
        return ldr_ls_in_use(args, params.path);
    }
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    st = ldr_disk_recover(&disk, false, list_add, &list, &found);
    if (st == LARDER_OK && list.no_memory) {
        st = LARDER_E_NO_MEMORY;
    }
    if (st == LARDER_OK) {
        list_judge(&list, disk.super, now_s);
        list_show(args, &list, params.path, now_s);
    }
    ldr_disk_close(&disk);
    ldr_free(list.rows);
    return st == LARDER_OK ? LDR_EXIT_OK : ldr_cli_status(args, st);
}

int ldr_cmd_ls(const ldr_args_t *args)
{
    char url[LDR_CLI_URL];
    const char *where = ldr_cli_place(args, url);
    ldr_cli_place_t *place;

    if (ldr_place_remote(where)) {
        return ldr_ls_node(args, where);
    }
    int code = ldr_place_open(args, false, &place);

    for (unsigned i = 0; code == LDR_EXIT_OK && i < place->options.dir_count;
         i++) {
        code = ls_dir(args, place, i);
    }
    ldr_place_close(&place);
    return code;
}
