/*
 * A daemon for the figures: `larder serve`, by the program beside this one,
 * since the two are of one build.
 *
 * It dies with the process that started it (the kernel sees to it), and its
 * directory lies in that of the run, which is removed at the end.
 */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench.h"
#include "cli/program.h"

#define START_SECONDS 60.0 /* an index of 10 M takes a few */
#define STOP_SECONDS 15.0
#define ARGS_MAX 40u
#define ENVIRONMENT_MAX 512u

/* ---- a certificate ---- */

static bool extend(X509 *x, int nid, const char *value)
{
    X509V3_CTX ctx;

    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, x, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = e != NULL && X509_add_ext(x, e, -1) == 1;
    X509_EXTENSION_free(e);
    return ok;
}

static bool fill_certificate(X509 *x, EVP_PKEY *pkey)
{
    X509_NAME *name = X509_get_subject_name(x);

    return X509_set_version(x, 2) == 1 &&
           ASN1_INTEGER_set(X509_get_serialNumber(x), 1) == 1 &&
           X509_gmtime_adj(X509_getm_notBefore(x), -3600) != NULL &&
           X509_gmtime_adj(X509_getm_notAfter(x), 86400) != NULL &&
           X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                      (const unsigned char *)"localhost", -1,
                                      -1, 0) == 1 &&
           X509_set_issuer_name(x, name) == 1 &&
           X509_set_pubkey(x, pkey) == 1 &&
           extend(x, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1") &&
           X509_sign(x, pkey, EVP_sha256()) > 0;
}

/* A key and a certificate for localhost, signed with itself. */
static bool make_certificate(const char *cert, const char *key)
{
    EVP_PKEY *pkey = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    mode_t mask = umask(077);
    FILE *to_cert = fopen(cert, "we"), *to_key = fopen(key, "we");

    umask(mask);
    bool ok =
        pkey != NULL && x != NULL && to_cert != NULL && to_key != NULL &&
        fill_certificate(x, pkey) && PEM_write_X509(to_cert, x) == 1 &&
        PEM_write_PrivateKey(to_key, pkey, NULL, NULL, 0, NULL, NULL) == 1;
    if (to_cert != NULL) {
        ok = fclose(to_cert) == 0 && ok;
    }
    if (to_key != NULL) {
        ok = fclose(to_key) == 0 && ok;
    }
    X509_free(x);
    EVP_PKEY_free(pkey);
    return ok;
}

/* ---- starting ---- */

unsigned ldr_bench_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unsigned port = 0;

    if (fd >= 0) {
        if (bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 &&
            getsockname(fd, (struct sockaddr *)&a, &bytes) == 0) {
            port = ntohs(a.sin_port);
        }
        close(fd);
    }
    return port;
}

/* argv of the daemon: flags with their values in one buffer. */
typedef struct command {
    char *argv[ARGS_MAX];
    unsigned count;
    char text[4096];
    size_t used;
} command_t;

static void add(command_t *c, const char *word)
{
    size_t bytes = strlen(word) + 1;

    if (c->count + 1 < ARGS_MAX && c->used + bytes <= sizeof(c->text)) {
        memcpy(c->text + c->used, word, bytes);
        c->argv[c->count++] = c->text + c->used;
        c->used += bytes;
    }
}

static void add_flag(command_t *c, const char *flag, const char *value)
{
    add(c, flag);
    add(c, value);
}

static void add_number(command_t *c, const char *flag, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    add_flag(c, flag, text);
}

static void compose(command_t *c, const ldr_daemon_t *d,
                    const ldr_daemon_params_t *p)
{
    add(c, "larder");
    add(c, "serve");
    add_flag(c, "--socket", d->local + strlen("unix:"));
    add_flag(c, "--listen", d->tcp + strlen("tcp://"));
    add_flag(c, "--listen_open", "on");
    add_flag(c, "--admin", "none");
    add_flag(c, "--log-level", "warn");
    add_flag(c, "--drain-ms", "1000");
    add_number(c, "--dram", p->dram);
    if (p->tls) {
        add_flag(c, "--tls", "on");
        add_flag(c, "--tls-cert", d->cert);
        add_flag(c, "--tls-key", d->key);
    }
    if (p->ssd_dir != NULL) {
        add_flag(c, "--dir", p->ssd_dir);
        add_number(c, "--ssd", p->ssd);
    }
    for (unsigned i = 0; p->more != NULL && p->more[i] != NULL; i++) {
        add(c, p->more[i]);
    }
}

/* What the user configured for a daemon is not meant for this one. */
static void environment(char **to)
{
    unsigned n = 0;

    for (char **e = environ; *e != NULL && n + 1 < ENVIRONMENT_MAX; e++) {
        if (strncmp(*e, "LARDER_", 7) != 0) {
            to[n++] = *e;
        }
    }
    to[n] = NULL;
}

static pid_t launch(const ldr_daemon_t *d, const ldr_daemon_params_t *p)
{
    static command_t c; /* large, and there when the child needs it */
    static char *env[ENVIRONMENT_MAX];
    static char program[PATH_MAX];
    pid_t parent = getpid();

    memset(&c, 0, sizeof(c));
    compose(&c, d, p);
    environment(env);
    if (!ldr_program_beside("larder", program)) {
        return -1;
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent) {
            execve(program, c.argv, env);
            fprintf(stderr, "larder bench: cannot start %s: %s\n", program,
                    strerror(errno));
        }
        _exit(127);
    }
    return child;
}

/* Whether it takes connections. */
static bool answers(const char *url)
{
    larder_t *lar = NULL;
    bool ok = larder_open(url, NULL, &lar) == LARDER_OK;

    larder_close(&lar, LARDER_FOREVER);
    return ok;
}

static bool wait_ready(ldr_daemon_t *d)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    double end = ldr_bench_now() + START_SECONDS;
    const char *path = d->local + strlen("unix:");
    struct stat s;

    while (ldr_bench_now() < end) {
        if (waitpid(d->pid, NULL, WNOHANG) == d->pid) {
            d->pid = 0;
            return false; /* it has said why itself */
        }
        if (stat(path, &s) == 0 && answers(d->local)) {
            return true;
        }
        nanosleep(&pause, NULL);
    }
    return false;
}

bool ldr_daemon_start(ldr_daemon_t *d, ldr_bench_t *b,
                      const ldr_daemon_params_t *p)
{
    *d = (ldr_daemon_t){0};
    snprintf(d->dir, sizeof(d->dir), "%s/%s", b->dir, p->name);
    snprintf(d->local, sizeof(d->local), "unix:%s/larder.sock", d->dir);
    snprintf(d->tcp, sizeof(d->tcp), "tcp://127.0.0.1:%u", ldr_bench_port());
    snprintf(d->cert, sizeof(d->cert), "%s/cert.pem", d->dir);
    snprintf(d->key, sizeof(d->key), "%s/key.pem", d->dir);
    if (strlen(d->local) - strlen("unix:") >= LDR_UNIX_PATH_MAX) {
        fprintf(stderr,
                "larder bench: %s: too long for a socket; choose "
                "another --dir\n",
                d->dir);
        return false;
    }
    if (mkdir(d->dir, 0700) != 0 ||
        (p->tls && !make_certificate(d->cert, d->key))) {
        return false;
    }
    d->pid = launch(d, p);
    if (d->pid > 0 && wait_ready(d)) {
        return true;
    }
    ldr_daemon_stop(d);
    return false;
}

void ldr_daemon_stop(ldr_daemon_t *d)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    double end = ldr_bench_now() + STOP_SECONDS;
    bool gone = d->pid <= 0;

    if (!gone) {
        kill(d->pid, SIGTERM);
    }
    while (!gone && ldr_bench_now() < end) {
        gone = waitpid(d->pid, NULL, WNOHANG) == d->pid;
        if (!gone) {
            nanosleep(&pause, NULL);
        }
    }
    if (!gone) {
        kill(d->pid, SIGKILL);
        waitpid(d->pid, NULL, 0);
    }
    d->pid = 0;
    if (d->dir[0] != '\0') {
        ldr_bench_remove(d->dir);
    }
}

/* ---- what it costs ---- */

/* How often a thread was given the CPU. */
static uint64_t task_runs(const char *path)
{
    unsigned long long run = 0, waited = 0, runs = 0;
    FILE *f = fopen(path, "re");

    if (f == NULL) {
        return 0;
    }
    if (fscanf(f, "%llu %llu %llu", &run, &waited, &runs) != 3) {
        runs = 0;
    }
    fclose(f);
    return runs;
}

uint64_t ldr_bench_runs(pid_t pid)
{
    char path[320];
    const struct dirent *e;
    uint64_t runs = 0;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    while (tasks != NULL && (e = readdir(tasks)) != NULL) {
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof(path), "/proc/%d/task/%.20s/schedstat",
                     (int)pid, e->d_name);
            runs += task_runs(path);
        }
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return runs;
}

double ldr_bench_cpu(pid_t pid)
{
    clockid_t clock;
    struct timespec t = {0};

    if (clock_getcpuclockid(pid, &clock) != 0 ||
        clock_gettime(clock, &t) != 0) {
        return 0;
    }
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
