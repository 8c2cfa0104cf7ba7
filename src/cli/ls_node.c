/* ls: what a running node has of one's tenant, asked page by page. */
#include <inttypes.h>
#include <time.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "client/client.h"
#include "node/list.h"
#include "node/metrics.h"

#define BUSY_NS ((uint64_t)10 * 1000000000u) /* that others may list */

static const char *tier_of(const ldr_list_row_t *r)
{
    bool dram = (r->flags & LDR_LIST_DRAM) != 0;

    return (r->flags & LDR_LIST_SSD) == 0 ? "dram" : dram ? "dram+ssd" : "ssd";
}

static void row_json(const ldr_list_row_t *r)
{
    char key[LDR_HEX_BYTES(LARDER_KEY_BYTES)];
    char space[LDR_HEX_BYTES(LDR_ID_BYTES)];

    ldr_hex(r->key.hash, LARDER_KEY_BYTES, key);
    ldr_hex(r->space, LDR_ID_BYTES, space);
    if ((r->flags & LDR_LIST_KEY) != 0) {
        printf("{\"key\":\"%s\"", key);
    } else {
        printf("{\"key\":null");
    }
    printf(",\"space\":\"%s\",\"group\":%u,\"shard\":%u,\"shards\":%u,"
           "\"bytes\":%u,\"age_s\":%u,\"expires_s\":%u,\"depth\":%u,"
           "\"pinned\":%s,\"tier\":\"%s\",\"label\":",
           space, r->group, r->shard, r->shards, r->length, r->age_s,
           r->expires_s, r->depth,
           (r->flags & LDR_LIST_PINNED) != 0 ? "true" : "false", tier_of(r));
    ldr_json_string(stdout, r->label);
    printf("}\n");
}

static void row_line(const ldr_list_row_t *r)
{
    char key[LDR_HEX_BYTES(LARDER_KEY_BYTES)] = "(cannot be read)";
    char space[LDR_SPACE_LABEL], age[16];

    if ((r->flags & LDR_LIST_KEY) != 0) {
        ldr_hex(r->key.hash, LARDER_KEY_BYTES, key);
    }
    ldr_space_label(r->space, space);
    ldr_ls_age(r->age_s, age, sizeof(age));
    printf("%-64s  %s  %5u  %5u  %9u  %5s  %5u  %-8s  %s\n", key, space,
           r->group, r->shard, r->length, age, r->depth, tier_of(r), r->label);
}

/* One page; somebody else may be listing. */
static larder_status_t page_read(larder_t *lar, uint32_t *cursor_p,
                                 ldr_list_row_t rows[LDR_LIST_ROWS],
                                 uint32_t *count_p)
{
    uint64_t until = ldr_now_ns(&ldr_clock_real) + BUSY_NS;
    const struct timespec pause = {.tv_nsec = 20000000};
    larder_status_t st;

    while ((st = ldr_remote_list(lar, cursor_p, rows, LDR_LIST_ROWS,
                                 count_p)) == LARDER_E_BUSY &&
           ldr_now_ns(&ldr_clock_real) < until) {
        nanosleep(&pause, NULL);
    }
    return st;
}

static int node_list(const ldr_args_t *args, larder_t *lar, const char *url)
{
    static ldr_list_row_t rows[LDR_LIST_ROWS];
    bool json = ldr_args_has(args, LDR_FLAG_JSON);
    uint64_t shards = 0, bytes = 0;
    uint32_t cursor = 0, count;
    char human[32];

    while (cursor != LDR_LIST_END) {
        larder_status_t st = page_read(lar, &cursor, rows, &count);

        if (st == LARDER_E_UNSUPPORTED) {
            return ldr_cli_fail(args,
                                "%s: the daemon there is of an older version "
                                "and cannot list: update it",
                                url);
        }
        if (st != LARDER_OK) {
            return ldr_cli_status(args, st);
        }
        if (shards == 0 && !json && (count > 0 || cursor == LDR_LIST_END)) {
            printf("%-64s  %-8s  %5s  %5s  %9s  %5s  %5s  %-8s  %s\n", "KEY",
                   "SPACE", "GROUP", "SHARD", "BYTES", "AGE", "DEPTH", "TIER",
                   "LABEL");
        }
        for (uint32_t i = 0; i < count; i++) {
            (json ? row_json : row_line)(&rows[i]);
            bytes += rows[i].length;
        }
        shards += count;
    }
    if (!json) {
        ldr_human_bytes(bytes, human, sizeof(human));
        printf("%s: %" PRIu64 " shard%s, %s, of this tenant\n", url, shards,
               shards == 1 ? "" : "s", human);
    }
    return LDR_EXIT_OK;
}

int ldr_ls_node(const ldr_args_t *args, const char *url)
{
    larder_t *lar = NULL;

    if (ldr_args_has(args, LDR_FLAG_ALL)) {
        return ldr_cli_usage(args,
                             "%s: a node does not know dead records: --all is "
                             "for a directory that no node has open",
                             url);
    }
    int code = ldr_cli_open(args, url, &lar);
    if (code == LDR_EXIT_OK) {
        code = node_list(args, lar, url);
    }
    larder_close(&lar, 1000);
    return code;
}

int ldr_ls_in_use(const ldr_args_t *args, const char *dir)
{
    ldr_dir_owner_t o;

    if (ldr_args_has(args, LDR_FLAG_ALL) || !ldr_cli_owner(dir, &o) ||
        o.url[0] == '\0') {
        return ldr_cli_in_use(args, dir);
    }
    fprintf(stderr, "larder ls: %s: in use by %s: asking it at %s\n", dir,
            o.text, o.url);
    return ldr_ls_node(args, o.url);
}
