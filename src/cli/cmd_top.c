/*
 * larder top: what a node does, in a terminal, from its metrics alone. Any URL
 * will do; a daemon shows everything to its own user and to root, and to
 * others what concerns their tenant.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/top.h"

#define INTERVAL_S 2u
#define COLUMNS_MIN 40
#define COLUMNS_PLAIN 255 /* where there is no terminal to be narrow */

/* ---- showing ---- */

static void show_plain(const ldr_top_screen_t *s)
{
    for (unsigned i = 0; i < s->count; i++) {
        printf("%s\n", s->lines[i].text);
    }
}

/* Over what is there, so that nothing flickers. */
static void show_terminal(const ldr_top_screen_t *s, bool colour)
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

/* ---- reading ---- */

typedef struct watch {
    ldr_top_t top;
    const ldr_args_t *args;
    larder_t *lar;
    uint64_t now_ns; /* of the last reading that came */
} watch_t;

larder_status_t ldr_top_fetch(larder_t *lar, char **text_p)
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

/* One reading more. What was there stays when none is available. */
static void metrics_read(watch_t *w)
{
    uint64_t now_ns = ldr_now_ns(&ldr_clock_real);
    ldr_prom_t fresh;
    char *text;

    w->top.last = ldr_top_fetch(w->lar, &text);
    if (w->top.last == LARDER_OK && !ldr_prom_parse(text, &fresh)) {
        w->top.last = LARDER_E_CORRUPT;
    }
    if (w->top.last != LARDER_OK) {
        return;
    }
    ldr_prom_free(&w->top.before);
    w->top.before = w->top.now;
    w->top.now = fresh;
    w->top.s = w->now_ns != 0 ? (double)(now_ns - w->now_ns) / 1e9 : 0;
    w->now_ns = now_ns;
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

static void terminal_size(ldr_top_screen_t *s)
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
    /* A screen that is being written is written to its end; poll() wakes up
     * nevertheless. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

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

static int run_terminal(watch_t *w, ldr_top_screen_t *s, uint64_t interval_ns)
{
    bool colour = getenv("NO_COLOR") == NULL;
    uint64_t next_ns = ldr_now_ns(&ldr_clock_real);

    catch_signals();
    terminal_enter();
    do {
        uint64_t now_ns = ldr_now_ns(&ldr_clock_real);

        resized = 0;
        if (now_ns >= next_ns) {
            metrics_read(w);
            next_ns = now_ns + interval_ns;
        }
        terminal_size(s);
        ldr_top_compose(&w->top, s);
        show_terminal(s, colour);
    } while (wait_until(next_ns));
    terminal_leave();
    return LDR_EXIT_OK;
}

static int run_once(watch_t *w, ldr_top_screen_t *s, uint64_t interval_ns)
{
    struct timespec pause = {(time_t)(interval_ns / 1000000000u),
                             (long)(interval_ns % 1000000000u)};

    metrics_read(w);
    if (w->top.last == LARDER_OK) {
        nanosleep(&pause, NULL); /* there are no rates without two readings */
        metrics_read(w);
    }
    if (w->top.last != LARDER_OK) {
        return ldr_cli_status(w->args, w->top.last);
    }
    s->columns = COLUMNS_PLAIN;
    ldr_top_compose(&w->top, s);
    show_plain(s);
    return LDR_EXIT_OK;
}

int ldr_cmd_top(const ldr_args_t *args)
{
    char url[LDR_CLI_URL];
    watch_t w = {.args = args};
    uint64_t interval_s = INTERVAL_S;
    int code = ldr_cli_number(args, LDR_FLAG_INTERVAL, 1, 3600, &interval_s);

    if (code != LDR_EXIT_OK) {
        return code;
    }
    w.top.url = ldr_cli_place(args, url);
    ldr_top_screen_t *s = ldr_alloc(sizeof(*s));
    code = s != NULL ? ldr_cli_open(args, w.top.url, &w.lar)
                     : ldr_cli_status(args, LARDER_E_NO_MEMORY);
    if (code != LDR_EXIT_OK) {
        ldr_free(s);
        return code;
    }
    bool once = ldr_args_has(args, LDR_FLAG_ONCE) || !isatty(STDOUT_FILENO) ||
                tcgetattr(STDIN_FILENO, &terminal_before) != 0;
    code = once ? run_once(&w, s, interval_s * 1000000000u)
                : run_terminal(&w, s, interval_s * 1000000000u);
    larder_close(&w.lar, 1000);
    ldr_prom_free(&w.top.now);
    ldr_prom_free(&w.top.before);
    ldr_free(s);
    return code;
}
