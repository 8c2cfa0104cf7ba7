/* doctor: ports, congestion control, TLS in the kernel and its key. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/doctor.h"
#include "net/holder.h"
#include "net/socket.h"

#ifndef TCP_ULP
#define TCP_ULP 31
#endif

#define IPV4 "/proc/sys/net/ipv4/"

/* ---- congestion control ---- */

static bool has_word(const char *words, const char *word)
{
    size_t length = strlen(word);

    while (*words != '\0') {
        size_t next = strcspn(words, " ");

        if (next == length && memcmp(words, word, length) == 0) {
            return true;
        }
        words += next + (words[next] == ' ');
    }
    return false;
}

void ldr_doctor_congestion(const ldr_doctor_t *d)
{
    const char *want = d->config->options.congestion;
    char machine[64] = "unknown", allowed[128] = "reno", cure[300];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error = 0;

    ldr_doctor_line(IPV4 "tcp_congestion_control", machine, sizeof(machine));
    if (fd < 0) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL, "no TCP socket: %s",
                       strerror(errno));
        return;
    }
    if (want[0] != '\0' && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, want,
                                      (socklen_t)strlen(want)) != 0) {
        error = errno;
    }
    close(fd);
    ldr_doctor_line(IPV4 "tcp_allowed_congestion_control", allowed,
                    sizeof(allowed));
    if (error == 0 && geteuid() == 0 && !has_word(allowed, want)) {
        error = EPERM; /* for the daemon's user, who is not root */
    }
    if (want[0] == '\0') {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL, "the machine's: %s", machine);
    } else if (error == 0) {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "%s can be set on a socket; the machine's is %s", want,
                       machine);
    } else {
        if (error == EPERM) {
            snprintf(cure, sizeof(cure),
                     "sudo sysctl -w net.ipv4.tcp_allowed_congestion_control="
                     "\"%s %s\"",
                     allowed, want);
        } else {
            snprintf(cure, sizeof(cure), "sudo modprobe tcp_%s", want);
        }
        ldr_doctor_say(d, LDR_VERDICT_WARN, cure,
                       "%s cannot be set on a socket%s: %s; the machine's, %s, "
                       "is used",
                       want, geteuid() == 0 ? " by anybody but root" : "",
                       strerror(error), machine);
    }
}

/* ---- TLS in the kernel ---- */

/* 0: a connection on loopback took TLS; else an errno. */
static int ktls_try(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(a);
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error = 0;

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (server < 0 || client < 0 ||
        bind(server, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        listen(server, 1) != 0 ||
        getsockname(server, (struct sockaddr *)&a, &bytes) != 0 ||
        connect(client, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        setsockopt(client, IPPROTO_TCP, TCP_ULP, "tls", 3) != 0) {
        error = errno;
    }
    if (client >= 0) {
        close(client);
    }
    if (server >= 0) {
        close(server);
    }
    return error;
}

void ldr_doctor_ktls(const ldr_doctor_t *d)
{
    bool on = d->config->options.tls == LDR_TLS_ON;
    int error = ktls_try();

    if (error == 0) {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "the kernel can encrypt TLS connections");
    } else {
        ldr_doctor_say(
            d, on ? LDR_VERDICT_WARN : LDR_VERDICT_SKIP,
            on ? "sudo modprobe tls" : NULL,
            "the kernel cannot encrypt TLS connections (%s)%s", strerror(error),
            on ? ": the daemon does, which costs a copy" : "; tls is off");
    }
}

/* ---- the key of the certificate ---- */

void ldr_doctor_key(const ldr_doctor_t *d)
{
    const char *path = d->config->options.tls_key;
    char cure[LDR_OPTION_TEXT + 16];
    struct stat st;

    if (path[0] == '\0') {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL, "tls_key is not set");
    } else if (stat(path, &st) == 0 && (st.st_mode & S_IRWXO) != 0) {
        snprintf(cure, sizeof(cure), "chmod o= %s", path);
        ldr_doctor_say(d, LDR_VERDICT_WARN, cure,
                       "option tls_key: %s: everybody on this host can read it",
                       path);
    } else {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL, "option tls_key: %s", path);
    }
}

/* ---- addresses ---- */

/* Larder's own daemon, the one of this configuration, may have it. Another one,
 * or anybody else, keeps the daemon from starting, or from its dashboard where
 * nobody has asked for this very port. */
static void say_held(const ldr_doctor_t *d, const char *option, unsigned port)
{
    bool spare = d->subject == d->config->options.admin &&
                 ldr_config_is_default(d->config, LDR_OPTION_admin);
    char cure[160], who[96], path[LDR_UNIX_PATH_MAX];
    ldr_holder_t holder;

    ldr_holder_of_port(port, &holder);
    ldr_holder_text(&holder, who, sizeof(who));
    if (holder.pid != 0 && strcmp(holder.name, "larder") == 0 &&
        ldr_config_socket(d->config, path) &&
        ldr_cli_listener(path) == holder.pid) {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL,
                       "%s: in use by this configuration's own daemon, process "
                       "%d",
                       d->subject, holder.pid);
        return;
    }
    if (holder.pid == 0) {
        snprintf(cure, sizeof(cure),
                 "sudo ss -ltnp 'sport = :%u' says who; or choose another %s",
                 port, option);
    } else {
        snprintf(cure, sizeof(cure), "stop it, or choose another %s", option);
    }
    ldr_doctor_say(d, spare ? LDR_VERDICT_WARN : LDR_VERDICT_BAD, cure,
                   "%s: taken: %s%s listens there%s", d->subject,
                   strcmp(holder.name, "larder") == 0 ? "another " : "", who,
                   spare ? "; a daemon would serve without its dashboard and "
                           "metrics"
                         : "; a daemon would not start");
}

void ldr_doctor_port(const ldr_doctor_t *d)
{
    bool admin = d->subject == d->config->options.admin;
    const char *option = admin ? "--admin" : "--listen";
    ldr_address_t address;
    char cure[80];

    if (admin && strcmp(d->subject, "none") == 0) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL, "admin is none");
        return;
    }
    if (!ldr_address_parse(d->subject, strlen(d->subject), &address)) {
        return; /* options refused it before */
    }
    int fd = ldr_bind_tcp(&address, ""); /* as the daemon would */
    if (fd >= 0) {
        close(fd);
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL, "%s: free, for %s", d->subject,
                       option);
    } else if (fd == -EADDRINUSE) {
        say_held(d, option, (unsigned)strtoul(address.port, NULL, 10));
    } else if (fd == -EACCES) {
        ldr_doctor_say(d, LDR_VERDICT_BAD,
                       "choose a port above 1023, or "
                       "AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit",
                       "%s: not allowed", d->subject);
    } else {
        snprintf(cure, sizeof(cure),
                 "choose another %s; ip address shows what there is", option);
        ldr_doctor_say(d, LDR_VERDICT_BAD, cure, "%s", ldr_fail_text());
    }
}
