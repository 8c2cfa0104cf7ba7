/* reset and flush. */
#include "cli/cli.h"

static int reset_run(const ldr_args_t *args, larder_space_t *space)
{
    larder_status_t st = larder_space_reset(space, LARDER_FOREVER);

    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    printf(ldr_args_has(args, LDR_FLAG_JSON) ? "{\"status\":\"reset\"}\n"
                                             : "the space is empty now\n");
    return LDR_EXIT_OK;
}

int ldr_cmd_reset(const ldr_args_t *args)
{
    ldr_session_t session;
    int code = ldr_session_open(args, false, true, &session);

    if (code == LDR_EXIT_OK) {
        code = reset_run(args, session.space);
    }
    return ldr_session_close(args, &session, code);
}

/* Opening recovers, closing writes the tables: the wait between them is for
 * what reclaim may still be moving. */
static int flush_run(const ldr_args_t *args, larder_t *lar)
{
    larder_status_t st = larder_flush(lar, LARDER_TIER_SSD, LARDER_FOREVER);

    if (st == LARDER_E_TIER_OFF) {
        int code = ldr_cli_dirs_on(args, lar);

        return code != LDR_EXIT_OK
                   ? code
                   : ldr_cli_fail(args, "no directory of the node is on: its "
                                        "log says why");
    }
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    printf(ldr_args_has(args, LDR_FLAG_JSON) ? "{\"status\":\"flushed\"}\n"
                                             : "everything is on disk\n");
    return LDR_EXIT_OK;
}

int ldr_cmd_flush(const ldr_args_t *args)
{
    ldr_session_t session;
    int code = ldr_session_open(args, false, false, &session);

    if (code == LDR_EXIT_OK) {
        code = flush_run(args, session.lar);
    }
    return ldr_session_close(args, &session, code);
}
