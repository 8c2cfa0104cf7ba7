/* doctor: runs the checks, each in a child with a deadline, and shows what
 * they say. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config_int.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/doctor.h"
#include "cli/measured.h"

#define CHECK_NS ((uint64_t)10 * 1000000000) /* the time of one check */
#define REAP_NS ((uint64_t)1000000000)       /* for one that was killed */
#define KEPT_MAX 65536u                      /* more than all disks say */

static const char *const verdict_names[LDR_VERDICT_COUNT] = {"ok", "warn",
                                                             "bad", "skip"};

/* Fields of ldr_doctor_t, in its order. */
static const char *const speed_names[] = {
    LDR_MEASURED_WRITES, LDR_MEASURED_READS, LDR_MEASURED_COPIES};
#define SPEEDS (sizeof(speed_names) / sizeof(speed_names[0]))

/* What a check says: one write to the pipe, so it comes whole. */
typedef struct record {
    ldr_doctor_verdict_t verdict;
    uint64_t speeds[SPEEDS];
    char found[700];
    char cure[500];
} record_t;

_Static_assert(sizeof(record_t) <= 4096, "a pipe takes it whole");

typedef struct check {
    const char *name;
    void (*run)(const ldr_doctor_t *d);
} check_t;

static const check_t host_checks[] = {
    {"kernel", ldr_doctor_kernel},   {"cpu", ldr_doctor_cpu},
    {"memory", ldr_doctor_memory},   {"hugepages", ldr_doctor_huge},
    {"memlock", ldr_doctor_memlock}, {"numa", ldr_doctor_numa},
    {"io_uring", ldr_doctor_uring},  {"ktls", ldr_doctor_ktls},
    {"key", ldr_doctor_key},         {"clock", ldr_doctor_clock},
    {"ntp", ldr_doctor_ntp},         {"gpu", ldr_doctor_gpu},
};
static const check_t shared_check = {"shared", ldr_doctor_shared};
static const check_t disk_check = {"disk", ldr_doctor_disk};
static const check_t cluster_check = {"cluster", ldr_doctor_cluster};

typedef struct session {
    const ldr_args_t *args;
    ldr_doctor_t doctor;
    unsigned counts[LDR_VERDICT_COUNT];
    char kept_text[KEPT_MAX];
    ldr_text_t kept; /* for `larder plan` */
} session_t;

/* ---- what checks use ---- */

void ldr_doctor_say(const ldr_doctor_t *d, ldr_doctor_verdict_t verdict,
                    const char *cure, const char *format, ...)
{
    record_t record = {.verdict = verdict,
                       .speeds = {d->writes, d->reads, d->copies}};
    va_list args;

    va_start(args, format);
    vsnprintf(record.found, sizeof(record.found), format, args);
    va_end(args);
    snprintf(record.cure, sizeof(record.cure), "%s", cure != NULL ? cure : "");
    if (write(d->pipe, &record, sizeof(record)) != sizeof(record)) {
        _exit(1); /* nobody listens any more */
    }
}

bool ldr_doctor_line(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;

    if (fd >= 0) {
        close(fd);
    }
    if (n < 0) {
        return false;
    }
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return true;
}

bool ldr_doctor_choice(const char *path, char *text, size_t size)
{
    char line[256];
    char *open, *end;

    if (!ldr_doctor_line(path, line, sizeof(line)) ||
        (open = strchr(line, '[')) == NULL ||
        (end = strchr(open, ']')) == NULL) {
        return false;
    }
    *end = '\0';
    snprintf(text, size, "%s", open + 1);
    return true;
}

/* ---- showing ---- */

#define JSON_MAX 8192u

static void to_json(const char *check, const char *subject, const record_t *r,
                    char line[JSON_MAX])
{
    ldr_json_t j = {.t = ldr_text(line, JSON_MAX)};

    ldr_json_begin(&j, NULL, '{');
    ldr_json_text(&j, "check", check);
    ldr_json_text(&j, "verdict", verdict_names[r->verdict]);
    if (subject != NULL) {
        ldr_json_text(&j, "subject", subject);
    }
    ldr_json_text(&j, "found", r->found);
    ldr_json_text(&j, "do", r->cure);
    for (size_t i = 0; i < SPEEDS; i++) {
        if (r->speeds[i] > 0) {
            ldr_json_number(&j, speed_names[i], r->speeds[i]);
        }
    }
    ldr_json_end(&j, '}');
}

static void record_show(session_t *s, const record_t *r)
{
    const char *check = s->doctor.check;
    char line[JSON_MAX];

    s->counts[r->verdict]++;
    to_json(check, s->doctor.subject, r, line);
    if (r->speeds[0] > 0 || r->speeds[2] > 0) { /* for `larder plan` */
        ldr_text_add(&s->kept, "%s\n", line);
    }
    if (ldr_args_has(s->args, LDR_FLAG_JSON)) {
        printf("%s\n", line);
    } else {
        printf("%-4s  %-10s  %s%s%s\n", verdict_names[r->verdict], check,
               r->found, r->cure[0] != '\0' ? " -> " : "", r->cure);
    }
    fflush(stdout); /* the next one may take its time */
}

/* ---- running ---- */

static uint64_t now_ns(void)
{
    return ldr_now_ns(&ldr_clock_real);
}

static int left_ms(uint64_t deadline)
{
    uint64_t at = now_ns();

    return at >= deadline ? 0 : (int)((deadline - at) / 1000000 + 1);
}

/* Shows what comes until the child has closed its end. False: too late. */
static bool listen_to(session_t *s, int fd, uint64_t deadline, unsigned *said)
{
    struct pollfd in = {.fd = fd, .events = POLLIN};
    record_t record;

    for (;;) {
        int ready = poll(&in, 1, left_ms(deadline));
        if (ready == 0) {
            return false;
        }
        ssize_t n = ready > 0 ? read(fd, &record, sizeof(record)) : -1;
        if (n == (ssize_t)sizeof(record)) {
            record_show(s, &record);
            (*said)++;
        } else if (n >= 0 || errno != EINTR) {
            return true;
        }
    }
}

/* The child's end. One that hangs in the kernel is left to it. */
static int child_reap(pid_t child, bool wait_for_it)
{
    uint64_t deadline = now_ns() + REAP_NS;
    int status = 0;

    if (wait_for_it) {
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
        return status;
    }
    while (waitpid(child, &status, WNOHANG) == 0 && left_ms(deadline) > 0) {
        poll(NULL, 0, 5);
    }
    return status;
}

static void check_run(session_t *s, const check_t *check, const char *subject)
{
    record_t problem = {.verdict = LDR_VERDICT_BAD};
    unsigned said = 0;
    int fds[2];

    s->doctor.check = check->name;
    s->doctor.subject = subject;
    fflush(stdout);
    if (pipe2(fds, O_CLOEXEC) != 0) {
        snprintf(problem.found, sizeof(problem.found), "no pipe: %s",
                 strerror(errno));
        record_show(s, &problem);
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        s->doctor.pipe = fds[1];
        check->run(&s->doctor);
        _exit(0);
    }
    close(fds[1]);
    bool ended = child > 0 && listen_to(s, fds[0], now_ns() + CHECK_NS, &said);
    close(fds[0]);
    if (child < 0) {
        snprintf(problem.found, sizeof(problem.found), "no process: %s",
                 strerror(errno));
    } else if (!ended) {
        kill(child, SIGKILL);
        child_reap(child, false);
        snprintf(problem.found, sizeof(problem.found),
                 "%s%sdid not end within %llu s and was given up",
                 subject != NULL ? subject : "", subject != NULL ? ": " : "",
                 (unsigned long long)(CHECK_NS / 1000000000));
    } else {
        int status = child_reap(child, true);
        if (WIFSIGNALED(status)) {
            snprintf(problem.found, sizeof(problem.found),
                     "the check was ended by signal %d", WTERMSIG(status));
        } else if (said == 0) {
            snprintf(problem.found, sizeof(problem.found),
                     "the check said nothing");
        }
    }
    if (problem.found[0] != '\0') {
        record_show(s, &problem);
    }
}

static void run_all(session_t *s)
{
    const ldr_options_t *o = &s->doctor.config->options;

    for (size_t i = 0; i < sizeof(host_checks) / sizeof(host_checks[0]); i++) {
        check_run(s, &host_checks[i], NULL);
    }
    check_run(s, &shared_check, o->shared[0] != '\0' ? o->shared : NULL);
    for (unsigned i = 0; i < o->dir_count; i++) {
        check_run(s, &disk_check, o->dirs[i]);
    }
    if (o->dir_count == 0) {
        check_run(s, &disk_check, NULL);
    }
}

/* ---- the command ---- */

/* PLACE stands for the directories, and for what its URL says. */
static int place_apply(const ldr_args_t *args, ldr_config_t *c)
{
    const char *place = args->operands[0];
    ldr_options_t url;
    char value[LDR_OPTION_TEXT];
    larder_status_t st;

    if (strncmp(place, "unix:", 5) == 0 || strncmp(place, "tcp:", 4) == 0) {
        return ldr_cli_usage(args,
                             "%s: PLACE is a directory of this host, or "
                             "an embed: URL",
                             place);
    }
    if (strncmp(place, "embed:", 6) != 0) {
        st = ldr_config_dir(c, place, "PLACE", true);
        return st == LARDER_OK ? LDR_EXIT_OK
                               : ldr_cli_usage(args, "%s", ldr_fail_text());
    }
    if (ldr_options_parse(place, &url) != LARDER_OK) {
        return ldr_cli_usage(args, "%s", ldr_fail_text());
    }
    for (size_t i = 0; i < ldr_option_count; i++) {
        const unsigned both = LDR_WHERE_EMBED | LDR_WHERE_SERVE;

        if ((ldr_option_table[i].where & both) == both) {
            ldr_option_get(&url, i, value, sizeof(value));
            ldr_option_set(&c->options, i, value);
        }
    }
    memcpy(c->options.dirs, url.dirs, sizeof(url.dirs));
    c->options.dir_count = url.dir_count;
    return LDR_EXIT_OK;
}

/* --shared and --login, over what is configured. */
static int shared_apply(const ldr_args_t *args, ldr_config_t *c)
{
    const char *url = args->values[LDR_FLAG_SHARED];
    const char *login = args->values[LDR_FLAG_LOGIN];
    larder_status_t st = LARDER_OK;

    if (url != NULL) {
        st = ldr_option_set(&c->options, LDR_OPTION_shared, url);
    }
    if (st == LARDER_OK && login != NULL) {
        st = ldr_option_set(&c->options, LDR_OPTION_shared_login, login);
    }
    return st == LARDER_OK ? LDR_EXIT_OK
                           : ldr_cli_usage(args, "%s", ldr_fail_text());
}

/* Only with a disk that was measured: another may have been before. */
static void speeds_keep(const session_t *s)
{
    char path[LDR_MEASURED_PATH];

    if (strstr(s->kept_text, "\"" LDR_MEASURED_WRITES "\":") == NULL ||
        s->kept.length >= sizeof(s->kept_text) || !ldr_measured_path(path)) {
        return;
    }
    int error = ldr_measured_keep(path, s->kept_text);
    if (error != 0) {
        fprintf(stderr,
                "larder doctor: %s: %s: `larder plan` will not know "
                "these speeds\n",
                path, strerror(error));
    }
}

int ldr_cmd_doctor(const ldr_args_t *args)
{
    char flag[] = "--config";
    char *argv[2] = {flag, (char *)args->values[LDR_FLAG_CONFIG]};
    session_t s = {.args = args};
    s.kept = ldr_text(s.kept_text, sizeof(s.kept_text));
    ldr_config_t *c = NULL;
    int code = LDR_EXIT_OK;

    if (ldr_config_load(argv[1] != NULL ? 2 : 0, argv, &c) != LARDER_OK) {
        return ldr_cli_fail(args, "%s", ldr_fail_text());
    }
    if (args->operand_count == 1) {
        code = place_apply(args, c);
    }
    if (code == LDR_EXIT_OK) {
        code = shared_apply(args, c);
    }
    if (code == LDR_EXIT_OK) {
        s.doctor.config = c;
        if (ldr_args_has(args, LDR_FLAG_CLUSTER)) {
            check_run(&s, &cluster_check, NULL);
        } else {
            run_all(&s);
            speeds_keep(&s);
        }
        if (!ldr_args_has(args, LDR_FLAG_JSON)) {
            printf("%u ok, %u to improve, %u bad, %u skipped\n",
                   s.counts[LDR_VERDICT_OK], s.counts[LDR_VERDICT_WARN],
                   s.counts[LDR_VERDICT_BAD], s.counts[LDR_VERDICT_SKIP]);
        }
        code = s.counts[LDR_VERDICT_BAD] > 0 ? LDR_EXIT_NO : LDR_EXIT_OK;
    }
    ldr_config_free(c);
    return code;
}
