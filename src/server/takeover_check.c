/*
 * Whether addresses can be listened on, and directories used, once the daemon
 * that runs has ended. What is in use now has to be its, as far as that can be
 * seen (net/holder.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "net/holder.h"
#include "server/session.h"

static larder_status_t check_one(const char *option, const char *text,
                                 size_t length, pid_t old)
{
    ldr_address_t address;

    if (!ldr_address_parse(text, length, &address)) {
        return ldr_fail(LARDER_E_INVALID,
                        "%s: '%.*s' is not host:port or [host]:port", option,
                        (int)length, text);
    }
    int fd = ldr_listen_tcp(&address, "");
    if (fd >= 0) {
        close(fd);
        return LARDER_OK;
    }
    if (fd != -EADDRINUSE) {
        return ldr_fail(LARDER_E_IO, "%s: %.*s: cannot listen: %s", option,
                        (int)length, text, strerror(-fd));
    }
    unsigned port = (unsigned)strtoul(address.port, NULL, 10);
    return old == 0 || ldr_holder_may_be((int)old, port)
               ? LARDER_OK
               : ldr_fail(LARDER_E_LOCKED,
                          "%s: %.*s is in use by another program than the "
                          "daemon that runs",
                          option, (int)length, text);
}

larder_status_t ldr_takeover_check(const ldr_config_t *config, int fd)
{
    const ldr_options_t *o = &config->options;
    const char *at = o->listen;
    ldr_peer_t old = {.pid_fd = -1};

    if (ldr_peer_of(fd, &old) == 0 && old.pid_fd >= 0) {
        close(old.pid_fd);
    }
    ldr_predecessor_t owner = {ldr_holder_may_lock, old.pid};
    larder_status_t st = ldr_node_check(o, &owner);
    while (*at != '\0' && st == LARDER_OK) {
        size_t length = strcspn(at, ",");

        st = check_one("listen", at, length, old.pid);
        at += length + (at[length] == ',');
    }
    if (st != LARDER_OK || strcmp(o->admin, "none") == 0) {
        return st;
    }
    st = ldr_admin_check(o->admin);
    /* It does without an address that nobody asked for: ports.c. */
    return st == LARDER_OK && !ldr_config_is_default(config, LDR_OPTION_admin)
               ? check_one("admin", o->admin, strlen(o->admin), old.pid)
               : st;
}
