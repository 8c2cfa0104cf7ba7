/* Who has a directory open, said so that one can go on. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "cli/cli.h"
#include "net/holder.h"
#include "net/socket.h"

#define ASK_NS 1000000000u

/* The process that listens at a socket; 0: none, or it cannot be seen. */
static int listener_of(const char *path)
{
    ldr_peer_t peer = {.pid_fd = -1};
    int fd = ldr_connect_unix(path, ldr_now_ns(&ldr_clock_real) + ASK_NS);

    ldr_fail_clear();
    if (fd < 0) {
        return 0;
    }
    if (ldr_peer_of(fd, &peer) == 0 && peer.pid_fd >= 0) {
        close(peer.pid_fd);
    }
    close(fd);
    return (int)peer.pid;
}

bool ldr_cli_owner(const char *dir, ldr_dir_owner_t *o)
{
    char lock[LDR_PATH_MAX], path[LDR_UNIX_PATH_MAX];
    ldr_holder_t holder;

    memset(o, 0, sizeof(*o));
    if ((size_t)snprintf(lock, sizeof(lock), "%s/%s", dir, LDR_LOCK_NAME) >=
            sizeof(lock) ||
        !ldr_holder_of_lock(lock, &holder)) {
        return false;
    }
    o->pid = holder.pid;
    ldr_holder_text(&holder, o->text, sizeof(o->text));
    if (ldr_holder_socket(o->pid, path, sizeof(path))) {
        snprintf(o->url, sizeof(o->url), "unix:%s", path);
        return true;
    }
    /* Another user's: its descriptors are not shown, but it may answer. */
    ldr_socket_default(path);
    if (listener_of(path) == o->pid) {
        snprintf(o->url, sizeof(o->url), "unix:%s", path);
    }
    return true;
}

/* How to end it, in words. */
static void how_to_stop(int pid, const char *url, char *text, size_t size)
{
    if (url[0] != '\0') {
        snprintf(text, size,
                 "stop it first (kill %d, or systemctl stop larder)", pid);
    } else {
        snprintf(text, size,
                 "it has the directory open by itself: end process %d first",
                 pid);
    }
}

/* Whether the command also works by a daemon's URL. */
static bool asks_daemons(const char *command)
{
    return strcmp(command, "fsck") != 0 && strcmp(command, "wipe") != 0;
}

int ldr_cli_in_use(const ldr_args_t *args, const char *dir)
{
    ldr_dir_owner_t o;
    char stop[128];

    if (!ldr_cli_owner(dir, &o)) {
        return ldr_cli_fail(args,
                            "%s: in use by a node that cannot be seen from "
                            "here (in another container, or on another host): "
                            "stop it first, then: larder %s %s",
                            dir, args->command, dir);
    }
    if (o.url[0] != '\0' && asks_daemons(args->command)) {
        return ldr_cli_fail(args, "%s: in use by %s: ask it: larder %s %s%s",
                            dir, o.text, args->command, o.url,
                            args->operand_count > 1 ? " ..." : "");
    }
    how_to_stop(o.pid, o.url, stop, sizeof(stop));
    return ldr_cli_fail(args, "%s: in use by %s%s%s: %s, then: larder %s %s",
                        dir, o.text, o.url[0] != '\0' ? ", at " : "", o.url,
                        stop, args->command, dir);
}

int ldr_cli_no_dir(const ldr_args_t *args, const char *url)
{
    larder_stats_t *stats = NULL;
    larder_t *lar = NULL;
    char dir[LDR_PATH_MAX] = "DIR", stop[128] = "stop it first";
    larder_open_params_t quiet = {.field_mask = LARDER_OPEN_LOG,
                                  .log = ldr_log_silent};
    larder_stats_t own = {.struct_bytes = sizeof(own)};

    if (strncmp(url, "unix:", 5) == 0) {
        char path[LDR_UNIX_PATH_MAX];

        snprintf(path, sizeof(path), "%.*s", (int)strcspn(url + 5, "?"),
                 url + 5);
        int pid = listener_of(path);

        if (pid != 0) {
            how_to_stop(pid, url, stop, sizeof(stop));
        }
    }
    if (larder_open(url, &quiet, &lar) == LARDER_OK &&
        larder_stats(lar, &own) == LARDER_OK) {
        stats = &own;
    }
    if (stats != NULL && stats->disks > 0) {
        snprintf(dir, sizeof(dir), "%s", stats->disk[0].path);
    }
    larder_close(&lar, 1000);
    return ldr_cli_usage(args,
                         "%s: %s works on a directory that no node has open, "
                         "not on a daemon: %s, then: larder %s %s",
                         url, args->command, stop, args->command, dir);
}
