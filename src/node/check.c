/*
 * What can be seen to be wrong with a node's options before it is opened, also
 * while another node has its directories: for a daemon that is about to take
 * over from that one, and after which there would be none.
 */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "net/auth.h"
#include "node/node.h"
#include "shared/backend.h"
#include "shared/seal.h"
#include "store/disk.h"

static void silent(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

static const ldr_log_t no_log = {silent, NULL};

static larder_status_t check_io(const ldr_options_t *o)
{
    ldr_io_t *io;
    int error = o->io == LDR_IO_URING ? ldr_io_uring_create(1, &io) : -ENOTSUP;

    if (error == 0) {
        io->ops->destroy(io);
    }
    return error == 0 || o->io != LDR_IO_URING
               ? LARDER_OK
               : ldr_fail(LARDER_E_IO,
                          "io_uring is not to be had here (%s): use io=auto or "
                          "io=plain",
                          strerror(-error));
}

static larder_status_t check_disks(const ldr_options_t *o)
{
    larder_status_t st = LARDER_OK;
    ldr_io_t *io;

    if (o->dir_count == 0 || ldr_io_plain_create(1, &io) != 0) {
        return LARDER_OK;
    }
    for (unsigned i = 0; i < o->dir_count && st == LARDER_OK; i++) {
        ldr_disk_params_t params = {
            .io = io,
            .log = &no_log,
            .path = o->dirs[i],
            .bytes = o->ssd,
            .segment_bytes = o->segment,
        };

        st = ldr_disk_check(&params);
    }
    io->ops->destroy(io);
    return st;
}

/* Its URL and the files with its secrets; the storage is not asked. */
static larder_status_t check_shared(const ldr_options_t *o)
{
    ldr_backend_params_t params = {
        .url = o->shared,
        .login = o->shared_login,
        .lanes = (unsigned)o->shared_lanes,
        .log = no_log,
        .clock = &ldr_clock_real,
    };
    ldr_token_t tokens[LDR_TOKENS_MAX];
    ldr_backend_t *backend;
    unsigned count = 0;

    if (o->shared[0] == '\0') {
        return LARDER_OK;
    }
    larder_status_t st = ldr_backend_open(&params, &backend);
    if (st == LARDER_OK) {
        backend->ops->destroy(backend);
    }
    if (st == LARDER_OK && o->shared_key[0] != '\0') {
        st = ldr_tokens_read(o->shared_key, tokens, &count);
        explicit_bzero(tokens, sizeof(tokens));
    }
    return st;
}

larder_status_t ldr_node_check(const ldr_options_t *o)
{
    larder_status_t st = check_io(o);

    if (st == LARDER_OK) {
        st = check_disks(o);
    }
    return st == LARDER_OK ? check_shared(o) : st;
}
