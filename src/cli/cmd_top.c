/*
 * larder top: what a node does, in a terminal, from its metrics alone. Any URL
 * will do; a daemon shows everything to its own user and to root, and to
 * others what concerns their tenant.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/prom.h"

#define LINES_MAX 200u
#define LINE_MAX_BYTES 256u
#define VALUES_MAX 64u
#define INTERVAL_S 2u
#define COLUMNS_MIN 40
#define COLUMNS_PLAIN 255 /* where there is no terminal to be narrow */

/* ---- the screen ---- */

typedef struct line {
    bool head; /* shown bold */
    char text[LINE_MAX_BYTES];
} line_t;

typedef struct screen {
    line_t lines[LINES_MAX];
    unsigned count;
    int columns, rows; /* rows 0: as many as there are */
} screen_t;

static void line(screen_t *s, bool head, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void line(screen_t *s, bool head, const char *format, ...)
{
    va_list args;

    if (s->count == LINES_MAX) {
        return;
    }
    line_t *l = &s->lines[s->count++];
    l->head = head;
    va_start(args, format);
    vsnprintf(l->text, sizeof(l->text), format, args);
    va_end(args);
    /* Names may hold anything: nothing of it may reach the terminal. */
    for (char *c = l->text; *c != '\0'; c++) {
        if (*c < ' ' || *c > '~') {
            *c = '?';
        }
    }
    size_t columns = (size_t)s->columns;
    if (strlen(l->text) > columns && columns < sizeof(l->text)) {
        l->text[columns] = '\0';
    }
}

static void show_plain(const screen_t *s)
{
    for (unsigned i = 0; i < s->count; i++) {
        printf("%s\n", s->lines[i].text);
    }
}

/* Over what is there, so that nothing flickers. */
static void show_terminal(const screen_t *s, bool colour)
{
    unsigned rows = s->rows > 0 ? (unsigned)s->rows : s->count;

    printf("\033[H");
    for (unsigned i = 0; i < s->count && i < rows; i++) {
        bool bold = s->lines[i].head && colour;

        printf("%s%s%s\033[K%s", bold ? "\033[1m" : "", s->lines[i].text,
               bold ? "\033[0m" : "", i + 1 < rows ? "\n" : "");
    }
    if (s->count < rows) {
        printf("\033[J");
    }
    fflush(stdout);
}

/* ---- numbers, each in a few columns ---- */

typedef struct figure {
    char text[16];
} figure_t;

static figure_t scaled(double x, double step, const char *const *units,
                       unsigned count)
{
    figure_t f;
    unsigned i = 0;

    while (i + 1 < count && x >= step * 0.9995) {
        x /= step;
        i++;
    }
    snprintf(f.text, sizeof(f.text), "%.*f%s",
             x == 0 || x >= 99.95 ? 0
             : x >= 9.995         ? 1
                                  : 2,
             x, units[i]);
    return f;
}

static figure_t bytes(double x)
{
    static const char *const units[] = {"B", "K", "M", "G", "T", "P"};

    return scaled(x > 0 ? x : 0, 1024, units, 6);
}

static figure_t count(double x)
{
    static const char *const units[] = {"", "k", "M", "G"};
    figure_t f = scaled(x > 0 ? x : 0, 1000, units, 4);

    if (x > 0 && x < 1000 && x == (double)(int)x) {
        snprintf(f.text, sizeof(f.text), "%d", (int)x);
    }
    return f;
}

static figure_t seconds(double x)
{
    static const char *const units[] = {"us", "ms", "s"};
    figure_t none = {"-"};

    return x > 0 ? scaled(x * 1e6, 1000, units, 3) : none;
}

static figure_t percent(double part, double all)
{
    figure_t f = {"-"};

    if (all > 0) {
        snprintf(f.text, sizeof(f.text), "%.1f%%", 100 * part / all);
    }
    return f;
}

static void bar(double part, double all, char text[24])
{
    int full = all > 0 ? (int)(20 * part / all + 0.5) : 0;

    full = full < 0 ? 0 : full > 20 ? 20 : full;
    memset(text, '#', (size_t)full);
    memset(text + full, '.', (size_t)(20 - full));
    text[20] = '\0';
}

/* ---- what is shown ---- */

typedef struct top {
    const ldr_args_t *args;
    larder_t *lar;
    const char *url;
    ldr_prom_t now, before;
    double s;             /* between the two readings */
    uint64_t now_ns;      /* of the last reading that came */
    larder_status_t last; /* of the last one, come or not */
} top_t;

/* How much it grew, a second. */
static double rate(const top_t *t, const char *name, const char *const *where)
{
    double now = ldr_prom_sum(&t->now, name, where);
    double before = ldr_prom_sum(&t->before, name, where);

    /* Less than before: another daemon, which began again. */
    return t->s > 0 && now >= before ? (now - before) / t->s : 0;
}

static double level(const top_t *t, const char *name)
{
    return ldr_prom_sum(&t->now, name, LDR_ANYWHERE);
}

static void put_title(const top_t *t, screen_t *s)
{
    char wall[16] = "", version[LDR_PROM_VALUE] = "";
    const char *mode = "on";
    time_t now = time(NULL);
    struct tm tm;
    double start = level(t, "process_start_time_seconds");

    if (localtime_r(&now, &tm) != NULL) {
        strftime(wall, sizeof(wall), "%H:%M:%S", &tm);
    }
    ldr_prom_values(&t->now, "larder_build_info", "version", &version, 1);
    if (ldr_prom_sum(&t->now, "larder_mode", LDR_WHERE("mode", "paused")) > 0) {
        mode = "PAUSED";
    } else if (ldr_prom_sum(&t->now, "larder_mode",
                            LDR_WHERE("mode", "observe")) > 0) {
        mode = "observing";
    }
    line(s, true, "larder %s  %s", version, t->url);
    if (t->last != LARDER_OK) {
        line(s, true, "%s  GONE: %s; what is below is from before", wall,
             larder_status_text(t->last));
    } else if (start > 0) {
        uint64_t up = (uint64_t)((double)now > start ? (double)now - start : 0);

        line(s, false, "%s  mode %s  up %" PRIu64 " d %02" PRIu64 ":%02" PRIu64,
             wall, mode, up / 86400, up / 3600 % 24, up / 60 % 60);
    } else {
        line(s, false, "%s  mode %s", wall, mode);
    }
}

static void put_glance(const top_t *t, screen_t *s)
{
    double dram = rate(t, "larder_loads_total", LDR_WHERE("tier", "dram"));
    double ssd = rate(t, "larder_loads_total", LDR_WHERE("tier", "ssd"));
    double misses = rate(t, "larder_misses_total", LDR_ANYWHERE);
    double found =
        rate(t, "larder_matched_chunks_total", LDR_WHERE("outcome", "found"));
    double asked = rate(t, "larder_matched_chunks_total", LDR_ANYWHERE);
    double would =
        rate(t, "larder_observed_loads_total", LDR_WHERE("outcome", "hit"));
    double watched = rate(t, "larder_observed_loads_total", LDR_ANYWHERE);
    double loads = dram + ssd + misses;

    if (watched > 0) {
        line(s, true, "observing: %s of %s shards/s would have hit",
             percent(would, watched).text, count(watched).text);
    }
    line(s, false,
         "hit rate %7s   dram %7s   ssd %7s   loads/s %7s   matched %7s",
         percent(dram + ssd, loads).text, percent(dram, loads).text,
         percent(ssd, loads).text, count(loads).text,
         percent(found, asked).text);
    line(s, false, "loading  %6s/s  ssd %6s/s   saving %6s/s  to disks %6s/s",
         bytes(rate(t, "larder_moved_bytes_total",
                    LDR_WHERE("direction", "load")))
             .text,
         bytes(rate(t, "larder_moved_bytes_total",
                    LDR_WHERE("direction", "load", "tier", "ssd")))
             .text,
         bytes(rate(t, "larder_moved_bytes_total",
                    LDR_WHERE("direction", "save")))
             .text,
         bytes(rate(t, "larder_disk_written_bytes_total", LDR_ANYWHERE) +
               rate(t, "larder_disk_carried_bytes_total", LDR_ANYWHERE))
             .text);
}

static void put_levels(const top_t *t, screen_t *s)
{
    double dram = level(t, "larder_dram_bytes");
    double used = level(t, "larder_dram_used_bytes");
    double disk = level(t, "larder_disk_max_bytes");
    double disk_used = level(t, "larder_disk_used_bytes");
    char left[24], right[24];

    bar(used, dram, left);
    bar(disk_used, disk, right);
    line(s, false, "dram [%s] %s of %s", left, bytes(used).text,
         bytes(dram).text);
    if (disk > 0) {
        line(s, false, "ssd  [%s] %s of %s", right, bytes(disk_used).text,
             bytes(disk).text);
    }
    if (!ldr_prom_has(&t->now, "larder_sessions", LDR_ANYWHERE)) {
        line(s, false, "held %s  to be written %s  reads waiting %s",
             count(level(t, "larder_held_chunks")).text,
             count(level(t, "larder_dirty_shards")).text,
             count(level(t, "larder_reads_waiting")).text);
        return;
    }
    line(s, false,
         "sessions %s  leases %s  reserved %s  quarantined %s  jobs %s  to be "
         "written %s",
         count(level(t, "larder_sessions")).text,
         count(level(t, "larder_leases")).text,
         count(level(t, "larder_reservations")).text,
         count(level(t, "larder_quarantined_leases")).text,
         count(level(t, "larder_jobs_queued")).text,
         count(level(t, "larder_dirty_shards")).text);
}

/* One row for each operation that happened. */
static void put_ops(const top_t *t, screen_t *s)
{
    static char ops[VALUES_MAX][LDR_PROM_VALUE];
    size_t n = ldr_prom_values(&t->now, "larder_requests_total", "op", ops,
                               VALUES_MAX);
    bool head = false;

    for (size_t i = 0; i < n; i++) {
        const char *const *where = LDR_WHERE("op", ops[i]);
        ldr_buckets_t b;

        ldr_prom_buckets(&t->now, &t->before, "larder_request_seconds", where,
                         &b);
        if (ldr_buckets_count(&b) <= 0) {
            continue;
        }
        if (!head) {
            line(s, true, "%-12s %9s %8s %8s %8s %8s %8s", "OPERATION", "RATE",
                 "P50", "P90", "P99", "P99.9", "FAILED");
            head = true;
        }
        double failed = rate(t, "larder_requests_total", where) -
                        rate(t, "larder_requests_total",
                             LDR_WHERE("op", ops[i], "status", "ok")) -
                        rate(t, "larder_requests_total",
                             LDR_WHERE("op", ops[i], "status", "miss"));
        line(s, false, "%-12.12s %7s/s %8s %8s %8s %8s %6s/s", ops[i],
             count(t->s > 0 ? ldr_buckets_count(&b) / t->s : 0).text,
             seconds(ldr_buckets_quantile(&b, 0.5)).text,
             seconds(ldr_buckets_quantile(&b, 0.9)).text,
             seconds(ldr_buckets_quantile(&b, 0.99)).text,
             seconds(ldr_buckets_quantile(&b, 0.999)).text, count(failed).text);
    }
}

static void put_tenants(const top_t *t, screen_t *s)
{
    static char names[VALUES_MAX][LDR_PROM_VALUE];
    size_t n = ldr_prom_values(&t->now, "larder_loads_total", "tenant", names,
                               VALUES_MAX);

    if (n > 0) {
        line(s, true, "%-16s %7s %8s %8s %8s %9s %9s", "TENANT", "HITS", "DRAM",
             "LIMIT", "SSD", "LOADING", "EVICTING");
    }
    for (size_t i = 0; i < n; i++) {
        const char *const *where = LDR_WHERE("tenant", names[i]);
        double hits = rate(t, "larder_loads_total", where);
        double misses = rate(t, "larder_misses_total", where);
        double max =
            ldr_prom_sum(&t->now, "larder_tenant_dram_max_bytes", where);

        line(
            s, false, "%-16.16s %7s %8s %8s %8s %7s/s %7s/s", names[i],
            percent(hits, hits + misses).text,
            bytes(ldr_prom_sum(&t->now, "larder_tenant_dram_bytes", where))
                .text,
            max > 0 ? bytes(max).text : "-",
            bytes(ldr_prom_sum(&t->now, "larder_tenant_ssd_bytes", where)).text,
            bytes(rate(t, "larder_moved_bytes_total",
                       LDR_WHERE("tenant", names[i], "direction", "load")))
                .text,
            bytes(rate(t, "larder_evicted_bytes_total", where)).text);
    }
}

/* What goes wrong now: counters by one label. */
static void put_troubles(const top_t *t, screen_t *s)
{
    static const struct {
        const char *what, *name, *label;
    } kinds[] = {
        {"miss", "larder_misses_total", "cause"},
        {"request", "larder_errors_total", "status"},
        {"not written", "larder_saves_dropped_total", "reason"},
        {"not let in", "larder_auth_failures_total", "reason"},
        {"connection", "larder_refused_connections_total", "reason"},
        {"disk", "larder_disk_errors_total", "operation"},
    };
    static char values[VALUES_MAX][LDR_PROM_VALUE];
    bool head = false;

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        size_t n = ldr_prom_values(&t->now, kinds[k].name, kinds[k].label,
                                   values, VALUES_MAX);

        for (size_t i = 0; i < n; i++) {
            const char *const *where = LDR_WHERE(kinds[k].label, values[i]);
            double all = ldr_prom_sum(&t->now, kinds[k].name, where);

            if (all <= 0) {
                continue;
            }
            if (!head) {
                line(s, true, "%-12s %-16s %9s %9s", "TROUBLE", "CAUSE", "RATE",
                     "ALL");
                head = true;
            }
            line(s, false, "%-12s %-16.16s %7s/s %9s", kinds[k].what, values[i],
                 count(rate(t, kinds[k].name, where)).text, count(all).text);
        }
    }
}

static void put_disks(const top_t *t, screen_t *s)
{
    static char paths[VALUES_MAX][LDR_PROM_VALUE];
    size_t n = ldr_prom_values(&t->now, "larder_disk_on", "path", paths, 16);

    if (n > 0) {
        line(s, true, "%-5s %8s %8s %9s %9s %7s %8s  %s", "DISK", "USED", "OF",
             "READ", "WRITE", "ERRORS", "READ P99", "DIRECTORY");
    }
    for (size_t i = 0; i < n; i++) {
        const char *const *where = LDR_WHERE("path", paths[i]);
        bool on = ldr_prom_sum(&t->now, "larder_disk_on", where) > 0;
        ldr_buckets_t b;

        ldr_prom_buckets(&t->now, &t->before, "larder_disk_seconds",
                         LDR_WHERE("path", paths[i], "operation", "read"), &b);
        line(s, false, "%-5s %8s %8s %7s/s %7s/s %7s %8s  %s",
             on ? "on" : "OFF",
             bytes(ldr_prom_sum(&t->now, "larder_disk_used_bytes", where)).text,
             bytes(ldr_prom_sum(&t->now, "larder_disk_max_bytes", where)).text,
             bytes(rate(t, "larder_disk_read_bytes_total", where)).text,
             bytes(rate(t, "larder_disk_written_bytes_total", where) +
                   rate(t, "larder_disk_carried_bytes_total", where))
                 .text,
             count(ldr_prom_sum(&t->now, "larder_disk_errors_total", where))
                 .text,
             seconds(ldr_buckets_quantile(&b, 0.99)).text, paths[i]);
    }
}

static void put_shared(const top_t *t, screen_t *s)
{
    static char kinds[VALUES_MAX][LDR_PROM_VALUE];
    const char *const *read = LDR_WHERE("operation", "read");
    const char *const *write = LDR_WHERE("operation", "write");

    if (ldr_prom_values(&t->now, "larder_shared_on", "operation", kinds, 2) ==
        0) {
        return;
    }
    bool on = ldr_prom_sum(&t->now, "larder_shared_on", read) > 0;
    bool writable = ldr_prom_sum(&t->now, "larder_shared_on", write) > 0;
    line(s, true, "%-9s %8s %8s %9s %9s %7s %8s", "SHARED", "HOLDS", "SHARDS",
         "READ", "WRITE", "ERRORS", "WAITING");
    line(s, false, "%-9s %8s %8s %7s/s %7s/s %7s %8s",
         writable ? "on"
         : on     ? "READ ONLY"
                  : "OFF",
         bytes(level(t, "larder_shared_bytes")).text,
         count(level(t, "larder_shared_shards")).text,
         bytes(rate(t, "larder_shared_moved_bytes_total", read)).text,
         bytes(rate(t, "larder_shared_moved_bytes_total", write)).text,
         count(level(t, "larder_shared_errors_total")).text,
         count(level(t, "larder_shared_waiting_shards")).text);
    size_t reasons =
        ldr_prom_values(&t->now, "larder_shared_reason", "reason", kinds, 2);
    for (size_t i = 0; i < reasons && kinds[i][0] != '\0'; i++) {
        line(s, false, "  %s", kinds[i]);
    }
    if (level(t, "larder_shared_open_tenants") > 0) {
        line(s, false, "  %.0f tenants without a secret",
             level(t, "larder_shared_open_tenants"));
    }
}

static void compose(const top_t *t, screen_t *s)
{
    s->count = 0;
    put_title(t, s);
    put_glance(t, s);
    put_levels(t, s);
    put_ops(t, s);
    put_tenants(t, s);
    put_disks(t, s);
    put_shared(t, s);
    put_troubles(t, s);
}

/* ---- reading ---- */

static larder_status_t fetch(larder_t *lar, char **text_p)
{
    size_t size = 65536, length = 0;

    for (;;) {
        char *text = ldr_alloc(size);

        if (text == NULL) {
            return LARDER_E_NO_MEMORY;
        }
        larder_status_t st = larder_metrics(lar, text, size, &length);
        if (st == LARDER_OK && length < size) {
            *text_p = text;
            return LARDER_OK;
        }
        ldr_free(text);
        if (st != LARDER_OK) {
            return st;
        }
        size = length + 4096;
    }
}

/* One reading more. What was there stays when none is to be had. */
static void look(top_t *t)
{
    uint64_t now_ns = ldr_now_ns(&ldr_clock_real);
    ldr_prom_t fresh;
    char *text;

    t->last = fetch(t->lar, &text);
    if (t->last == LARDER_OK && !ldr_prom_parse(text, &fresh)) {
        t->last = LARDER_E_CORRUPT;
    }
    if (t->last != LARDER_OK) {
        return;
    }
    ldr_prom_free(&t->before);
    t->before = t->now;
    t->now = fresh;
    t->s = t->now_ns != 0 ? (double)(now_ns - t->now_ns) / 1e9 : 0;
    t->now_ns = now_ns;
}

/* ---- the terminal ---- */

static volatile sig_atomic_t signaled, resized;

static void on_signal(int number)
{
    if (number == SIGWINCH || number == SIGCONT) {
        resized = 1;
    } else {
        signaled = number;
    }
}

static struct termios terminal_before;

static void terminal_enter(void)
{
    struct termios raw = terminal_before;

    raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    printf("\033[?1049h\033[?25l"); /* another screen, and no cursor */
    fflush(stdout);
}

static void terminal_leave(void)
{
    printf("\033[?25h\033[?1049l");
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
}

static void terminal_size(screen_t *s)
{
    struct winsize w;

    s->columns = 80;
    s->rows = 24;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0) {
        s->columns = w.ws_col > COLUMNS_MIN ? w.ws_col : COLUMNS_MIN;
        s->rows = w.ws_row;
    }
}

/* Stopped from the keyboard: as it was before, until it goes on. */
static void terminal_stop(void)
{
    signaled = 0;
    terminal_leave();
    raise(SIGSTOP);
    terminal_enter();
    resized = 1;
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT,  SIGTERM,  SIGHUP,
                                  SIGTSTP, SIGWINCH, SIGCONT};
    struct sigaction action = {.sa_handler = on_signal};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        sigaction(numbers[i], &action, NULL);
    }
}

/* Waits for the time, a key or a signal. False: it is the end. */
static bool wait_until(uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now_ns = ldr_now_ns(&ldr_clock_real);
        struct pollfd in = {STDIN_FILENO, POLLIN, 0};
        char key = 0;

        if (signaled == SIGTSTP) {
            terminal_stop();
        }
        if (signaled != 0) {
            return false;
        }
        if (resized || now_ns >= deadline_ns) {
            return true;
        }
        if (poll(&in, 1, (int)((deadline_ns - now_ns) / 1000000) + 1) > 0) {
            ssize_t n = read(STDIN_FILENO, &key, 1);

            if (n == 0 || (n < 0 && errno != EINTR) || key == 'q' ||
                key == 'Q') {
                return false;
            }
        }
    }
}

static int run_terminal(top_t *t, screen_t *s, uint64_t interval_ns)
{
    bool colour = getenv("NO_COLOR") == NULL;
    uint64_t next_ns = ldr_now_ns(&ldr_clock_real);

    catch_signals();
    terminal_enter();
    do {
        uint64_t now_ns = ldr_now_ns(&ldr_clock_real);

        resized = 0;
        if (now_ns >= next_ns) {
            look(t);
            next_ns = now_ns + interval_ns;
        }
        terminal_size(s);
        compose(t, s);
        show_terminal(s, colour);
    } while (wait_until(next_ns));
    terminal_leave();
    return LDR_EXIT_OK;
}

static int run_once(top_t *t, screen_t *s, uint64_t interval_ns)
{
    struct timespec pause = {(time_t)(interval_ns / 1000000000u),
                             (long)(interval_ns % 1000000000u)};

    look(t);
    if (t->last == LARDER_OK) {
        nanosleep(&pause, NULL); /* there are no rates without two readings */
        look(t);
    }
    if (t->last != LARDER_OK) {
        return ldr_cli_status(t->args, t->last);
    }
    s->columns = COLUMNS_PLAIN;
    compose(t, s);
    show_plain(s);
    return LDR_EXIT_OK;
}

int ldr_cmd_top(const ldr_args_t *args)
{
    char url[LDR_UNIX_PATH_MAX + 8] = "unix:";
    top_t t = {.args = args};
    uint64_t interval_s = INTERVAL_S;
    int code = ldr_cli_number(args, LDR_FLAG_INTERVAL, 1, 3600, &interval_s);

    if (code != LDR_EXIT_OK) {
        return code;
    }
    if (args->operand_count > 0) {
        t.url = args->operands[0];
    } else {
        ldr_socket_default(url + strlen(url));
        t.url = url;
    }
    screen_t *s = ldr_alloc(sizeof(*s));
    larder_status_t st =
        s != NULL ? larder_open(t.url, NULL, &t.lar) : LARDER_E_NO_MEMORY;
    if (st != LARDER_OK) {
        ldr_free(s);
        return ldr_cli_status(args, st);
    }
    bool once = ldr_args_has(args, LDR_FLAG_ONCE) || !isatty(STDOUT_FILENO) ||
                tcgetattr(STDIN_FILENO, &terminal_before) != 0;
    code = once ? run_once(&t, s, interval_s * 1000000000u)
                : run_terminal(&t, s, interval_s * 1000000000u);
    larder_close(&t.lar, 1000);
    ldr_prom_free(&t.now);
    ldr_prom_free(&t.before);
    ldr_free(s);
    return code;
}
