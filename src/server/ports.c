/*
 * The ports that a daemon listens at. They are bound before anything is opened:
 * one that somebody else has is told while there is nothing to undo.
 * Connections are taken only once there is somebody to answer them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "net/holder.h"
#include "server/session.h"

/* What is wrong with an address that cannot be had. */
static void why_not(const char *address, int error, char *text, size_t size)
{
    ldr_address_t a;
    ldr_holder_t holder = {0};
    char who[96];

    if (error != -EADDRINUSE) {
        snprintf(text, size, "%s: cannot listen: %s", address,
                 strerror(-error));
        return;
    }
    if (ldr_address_parse(address, strlen(address), &a)) {
        ldr_holder_of_port((unsigned)strtoul(a.port, NULL, 10), &holder);
    }
    ldr_holder_text(&holder, who, sizeof(who));
    snprintf(text, size, "%s is in use by %s", address, who);
}

larder_status_t ldr_ports_refuse(const char *option, const char *address,
                                 int error)
{
    char why[512];

    why_not(address, error, why, sizeof(why));
    return ldr_fail(error == -EADDRINUSE ? LARDER_E_LOCKED : LARDER_E_IO,
                    "%s: %s: %schoose another --%s HOST:PORT%s", option, why,
                    error == -EADDRINUSE ? "stop it, or " : "", option,
                    strcmp(option, "admin") == 0 ? ", or --admin none" : "");
}

static larder_status_t bind_one(ldr_server_t *server, const char *text,
                                size_t length)
{
    const ldr_options_t *o = &server->config->options;
    char shown[LDR_HOST_MAX + 16];
    ldr_address_t address;

    snprintf(shown, sizeof(shown), "%.*s", (int)length, text);
    if (!ldr_address_parse(text, length, &address)) {
        return LARDER_OK; /* ldr_listen_check() has refused it */
    }
    int fd = ldr_bind_tcp(&address, o->congestion);
    if (fd < 0) {
        return ldr_ports_refuse("listen", shown, fd);
    }
    server->ports[server->port_count++] = fd;
    return LARDER_OK;
}

/* Where nobody has asked for this address the daemon does without. */
static larder_status_t bind_admin(ldr_server_t *server)
{
    const ldr_config_t *config = server->config;
    const char *text = config->options.admin;
    ldr_address_t address;

    if (strcmp(text, "none") == 0 ||
        !ldr_address_parse(text, strlen(text), &address)) {
        return LARDER_OK;
    }
    larder_status_t st = ldr_admin_check(text);
    if (st != LARDER_OK) {
        return st;
    }
    server->admin_fd = ldr_bind_tcp(&address, "");
    if (server->admin_fd >= 0) {
        return LARDER_OK;
    }
    int error = server->admin_fd;
    if (!ldr_config_is_default(config, LDR_OPTION_admin)) {
        return ldr_ports_refuse("admin", text, error);
    }
    ldr_ports_no_admin(server, error);
    return LARDER_OK;
}

void ldr_ports_no_admin(ldr_server_t *server, int error)
{
    const char *address = server->config->options.admin;
    char why[512];

    why_not(address, error, why, sizeof(why));
    ldr_fail_clear();
    ldr_warn(&server->log,
             "admin: no dashboard and no /metrics: %s (choose another --admin "
             "HOST:PORT, or --admin none)",
             why);
}

larder_status_t ldr_ports_bind(ldr_server_t *server)
{
    const char *at = server->config->options.listen;
    larder_status_t st = LARDER_OK;

    while (*at != '\0' && st == LARDER_OK) {
        size_t length = strcspn(at, ",");

        st = bind_one(server, at, length);
        at += length + (at[length] == ',');
    }
    return st == LARDER_OK ? bind_admin(server) : st;
}

int ldr_ports_listen(ldr_server_t *server, unsigned i)
{
    int fd = server->ports[i];

    server->ports[i] = -1;
    if (listen(fd, SOMAXCONN) != 0) {
        int error = -errno;

        close(fd);
        return error;
    }
    return fd;
}

void ldr_ports_close(ldr_server_t *server)
{
    for (unsigned i = 0; i < server->port_count; i++) {
        if (server->ports[i] >= 0) {
            close(server->ports[i]);
        }
    }
    server->port_count = 0;
    if (server->admin_fd >= 0) {
        close(server->admin_fd);
    }
    server->admin_fd = -1;
}
