/* `larder serve`, and the verbs that a running daemon understands. */
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "cli/cli.h"
#include "server/server.h"

#define SINK_MS 1000
#define VERB_TIMEOUT_NS ((uint64_t)10 * 1000000000u)

/* Tells systemd, if it listens (sd_notify's protocol). */
static void notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (path == NULL || strlen(path) >= sizeof(a.sun_path)) {
        return;
    }
    memcpy(a.sun_path, path, strlen(path));
    if (a.sun_path[0] == '@') {
        a.sun_path[0] = '\0'; /* an abstract address */
    }
    socklen_t length =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        if (sendto(fd, state, strlen(state), MSG_NOSIGNAL,
                   (struct sockaddr *)&a, length) < 0) {
            /* Nobody there: nothing depends on it. */
        }
        close(fd);
    }
}

/* Systemd wants to know when a reload began, by the monotonic clock. */
static void notify_reloading(void)
{
    char text[80];

    snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%llu",
             (unsigned long long)(ldr_now_ns(&ldr_clock_real) / 1000));
    notify(text);
}

static void reload(ldr_server_t *server, ldr_config_t **config_p,
                   ldr_log_sink_t *sink, const ldr_log_t *log)
{
    ldr_config_t *config;

    notify_reloading();
    if (ldr_config_reload(*config_p, &config) != LARDER_OK) {
        ldr_server_reload_failed(server);
    } else {
        larder_log_level_t level =
            (larder_log_level_t)config->options.log_level;

        if (config->restart[0] != '\0') {
            ldr_warn(log, "reload: these need a restart and stay: %s",
                     config->restart);
        }
        if (ldr_server_reload(server, config)) {
            ldr_log_sink_set_level(sink, level);
            *config_p = config;
        }
    }
    notify("READY=1");
}

/* Whether nobody has had a session for as long as the option says; *since_ns_p:
 * since when nobody has. */
static bool is_left(ldr_server_t *server, const ldr_options_t *o,
                    uint64_t *since_ns_p)
{
    uint64_t now_ns = ldr_now_ns(&ldr_clock_real);

    if (!ldr_server_is_idle(server)) {
        *since_ns_p = now_ns;
    }
    return o->idle_exit_s != 0 &&
           now_ns - *since_ns_p >= o->idle_exit_s * 1000000000u;
}

/* Waits for signals until one, the server, or that it is not used, says that it
 * is the end. */
static void wait_end(ldr_server_t *server, int signals, ldr_config_t *config,
                     ldr_log_sink_t *sink, const ldr_log_t *log)
{
    struct pollfd fds[] = {{.fd = signals, .events = POLLIN},
                           {.fd = ldr_server_end_fd(server), .events = POLLIN}};
    uint64_t since_ns = ldr_now_ns(&ldr_clock_real);

    for (;;) {
        struct signalfd_siginfo info;

        int n = poll(fds, 2, SINK_MS);

        ldr_log_sink_tick(sink); /* lines that were left out are counted */
        if (is_left(server, &config->options, &since_ns)) {
            ldr_info(log, "no session for %llu s (idle_exit_s): draining",
                     (unsigned long long)config->options.idle_exit_s);
            return;
        }
        if (n <= 0) {
            continue;
        }
        if (fds[1].revents != 0) {
            return;
        }
        if (read(signals, &info, sizeof(info)) != sizeof(info)) {
            continue;
        }
        if (info.ssi_signo == SIGHUP) {
            reload(server, &config, sink, log);
        } else {
            ldr_info(log, "%s: draining",
                     info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
            return;
        }
    }
}

static int serve(ldr_config_t *config, int signals)
{
    ldr_log_sink_params_t p = {
        .fd = STDERR_FILENO,
        .format = config->options.log,
        .level = (larder_log_level_t)config->options.log_level,
    };
    ldr_log_sink_t *sink = ldr_log_sink_open(&p);
    ldr_server_t *server;

    if (sink == NULL) {
        fprintf(stderr, "larder serve: not enough memory\n");
        ldr_config_free(config);
        return LDR_EXIT_FAILED;
    }
    ldr_log_t log = {ldr_log_sink_fn, sink};
    ldr_server_params_t params = {
        .config = config, .log = log, .takeover = config->takeover};
    larder_status_t st = ldr_server_open(&params, &server);
    if (st != LARDER_OK) {
        fprintf(stderr, "larder serve: %s\n", larder_last_error());
        ldr_log_sink_close(sink);
        return st == LARDER_E_INVALID ? LDR_EXIT_USAGE : LDR_EXIT_FAILED;
    }
    ldr_info(&log, "ready: larder %s", larder_version());
    notify("READY=1");
    wait_end(server, signals, config, sink, &log);
    notify("STOPPING=1");
    st = ldr_server_close(server);
    ldr_info(&log, "ended");
    ldr_log_sink_close(sink);
    return st == LARDER_OK ? LDR_EXIT_OK : LDR_EXIT_FAILED;
}

int ldr_cmd_serve(int argc, char **argv)
{
    ldr_config_t *config;
    sigset_t set;

    if (ldr_config_load(argc - 1, argv + 1, &config) != LARDER_OK) {
        fprintf(stderr, "larder serve: %s\n", larder_last_error());
        return LDR_EXIT_USAGE;
    }
    if (config->help) {
        ldr_config_help(stdout);
        ldr_config_free(config);
        return LDR_EXIT_OK;
    }
    /* Before any thread is there: they all block what this one waits for. */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    int signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (signals < 0) {
        perror("larder serve: signalfd");
        ldr_config_free(config);
        return LDR_EXIT_FAILED;
    }
    int code = serve(config, signals);
    close(signals);
    return code;
}

/* ---- pause, resume ---- */

int ldr_cmd_verb(const ldr_args_t *args)
{
    char path[LDR_UNIX_PATH_MAX], text[512];
    const char *given = args->operand_count > 0 ? args->operands[0] : NULL;

    if (given != NULL) {
        if (strncmp(given, "unix:", 5) == 0) {
            given += 5;
        } else if (strstr(given, "://") != NULL) {
            return ldr_cli_usage(args,
                                 "%s: '%s' goes by the daemon's own socket: "
                                 "give its path",
                                 given, args->command);
        }
        if ((size_t)snprintf(path, sizeof(path), "%s", given) >= sizeof(path)) {
            return ldr_cli_usage(args, "%s: too long for a socket", given);
        }
    } else {
        ldr_socket_default(path);
    }
    larder_status_t st =
        ldr_admin_say(path, args->command, text, sizeof(text),
                      ldr_now_ns(&ldr_clock_real) + VERB_TIMEOUT_NS);
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    printf("%s\n", text);
    return LDR_EXIT_OK;
}
