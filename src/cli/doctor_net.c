/* doctor: TLS in the kernel, and its key. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/doctor.h"

#ifndef TCP_ULP
#define TCP_ULP 31
#endif

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
