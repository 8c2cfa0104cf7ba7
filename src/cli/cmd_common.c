/* What the commands share: messages, places, sessions. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/config.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/cli.h"
#include "store/ledger.h"
#include "net/auth.h"

#define SCHEME "embed:"
#define JSON_BYTES 16384u /* more than any value of an option, escaped */
#define FILE_MAX 65536u   /* bytes of a descriptor in a file */
#define BUFFER_BYTES (FILE_MAX + 1 + LDR_SECRET_MAX + 2) /* and a secret */
#define DRAM_DEFAULT "128M" /* enough for the largest value, and soon there */
#define IO_THREADS 2u
#define IN_USE "in use by another node" /* of LDR_IN_USE_TEXT */
#define SEGMENTS_MIN 5u /* the fewest that a directory is opened with */

/* ---- messages ---- */

static void message_say(const ldr_args_t *args, const char *format,
                        va_list list)
{
    fflush(stdout);
    fprintf(stderr, "larder %s: ", args->command);
    vfprintf(stderr, format, list);
}

int ldr_cli_fail(const ldr_args_t *args, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    message_say(args, format, list);
    va_end(list);
    fputc('\n', stderr);
    return LDR_EXIT_FAILED;
}

int ldr_cli_usage(const ldr_args_t *args, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    message_say(args, format, list);
    va_end(list);
    fprintf(stderr, "\n`larder %s --help` says more\n", args->command);
    return LDR_EXIT_USAGE;
}

int ldr_cli_status(const ldr_args_t *args, larder_status_t status)
{
    const char *text = larder_last_error();

    return text[0] != '\0'
               ? ldr_cli_fail(args, "%s", text)
               : ldr_cli_fail(args, "%s", larder_status_text(status));
}

int ldr_cli_number(const ldr_args_t *args, ldr_flag_t flag, uint64_t min,
                   uint64_t max, uint64_t *value_p)
{
    static const char *const names[] = {
#define X(name, flag, value, text) flag,
        LDR_FLAG_MAP(X)
#undef X
    };
    const char *text = args->values[flag];
    char *end = NULL;

    if (text == NULL) {
        return LDR_EXIT_OK;
    }
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 ||
        value < min || value > max) {
        return ldr_cli_usage(args, "--%s %s: give a number from %llu to %llu",
                             names[flag], text, (unsigned long long)min,
                             (unsigned long long)max);
    }
    *value_p = value;
    return LDR_EXIT_OK;
}

void ldr_json_string(FILE *out, const char *text)
{
    char json[JSON_BYTES];
    ldr_text_t t = ldr_text(json, sizeof(json));

    ldr_text_json(&t, text);
    fputs(json, out);
}

void ldr_human_bytes(uint64_t bytes, char *text, size_t size)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes / 1024;
    size_t unit = 0;

    if (bytes < 1024) {
        snprintf(text, size, "%llu B", (unsigned long long)bytes);
        return;
    }
    while (value >= 1024 && unit < 3) {
        value /= 1024;
        unit++;
    }
    snprintf(text, size, "%.1f %s", value, units[unit]);
}

/* ---- places ---- */

static bool is_url(const char *text)
{
    return strncmp(text, SCHEME, strlen(SCHEME)) == 0;
}

bool ldr_place_remote(const char *text)
{
    return strncmp(text, "unix:", 5) == 0 || strncmp(text, "tcp://", 6) == 0;
}

/* A URL with a slip in it, "tpc://HOST" or "UNIX:PATH", is no path that
 * somebody means: "./" before it says so. */
static bool is_mistyped(const char *text)
{
    static const char *const words[] = {SCHEME, "unix:", "tcp:"};
    bool is = strncmp(text + strcspn(text, "/:"), "://", 3) == 0;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        is |= strncasecmp(text, words[i], strlen(words[i])) == 0;
    }
    return is && !is_url(text);
}

/* "HOST:PORT" where there is no directory of that name. */
static bool is_address(const char *text)
{
    char host[LDR_HOST_MAX];
    uint16_t port;

    return ldr_parse_address(text, strlen(text), host, &port) &&
           access(text, F_OK) != 0;
}

/* Adds a string to the URL; false: it does not fit. */
static bool url_add(ldr_cli_place_t *p, const char *text)
{
    size_t used = strlen(p->url);

    return (size_t)snprintf(p->url + used, sizeof(p->url) - used, "%s", text) <
           sizeof(p->url) - used;
}

/* A path as a DIR of a URL: what has a meaning there is escaped. */
static bool url_add_path(ldr_cli_place_t *p, const char *path)
{
    bool ok = true;

    for (; *path != '\0' && ok; path++) {
        char text[4] = {*path, '\0'};

        if (*path == '%' || *path == ',' || *path == '?') {
            snprintf(text, sizeof(text), "%%%02X", *path);
        }
        ok = url_add(p, text);
    }
    return ok;
}

static bool url_has(const ldr_cli_place_t *p, const char *option)
{
    const char *at = strchr(p->url, '?');

    for (; at != NULL; at = strchr(at, '&')) {
        at++;
        if (strncmp(at, option, strlen(option)) == 0 &&
            at[strlen(option)] == '=') {
            return true;
        }
    }
    return false;
}

/* Sets an option that the URL leaves open. */
static bool url_default(ldr_cli_place_t *p, const char *option,
                        const char *value)
{
    if (url_has(p, option)) {
        return true;
    }
    return url_add(p, strchr(p->url, '?') != NULL ? "&" : "?") &&
           url_add(p, option) && url_add(p, "=") && url_add(p, value);
}

int ldr_place_parse(const ldr_args_t *args, ldr_cli_place_t **place_p)
{
    const char *text = args->operands[0];
    ldr_cli_place_t *p = ldr_alloc(sizeof(*p));

    *place_p = p;
    if (ldr_place_remote(text)) {
        return ldr_cli_no_dir(args, text);
    }
    if (is_mistyped(text)) {
        return ldr_cli_usage(
            args,
            "%s: is not the URL of a node: write a path, embed:DIR, "
            "unix:PATH or tcp://HOST:PORT (a directory of "
            "that name: ./%s)",
            text, text);
    }
    if (is_address(text)) {
        return ldr_cli_usage(args,
                             "%s: there is no such directory; a daemon at that "
                             "address is tcp://%s (a directory of that name: "
                             "./%s)",
                             text, text, text);
    }
    if (p == NULL || ldr_io_plain_create(IO_THREADS, &p->io) != 0) {
        return ldr_cli_fail(args, "not enough memory");
    }
    if (!(is_url(text) ? url_add(p, text)
                       : url_add(p, SCHEME) && url_add_path(p, text))) {
        return ldr_cli_usage(args, "the URL is too long");
    }
    if (ldr_options_parse(p->url, &p->options) != LARDER_OK) {
        return ldr_cli_usage(args, "%s", ldr_fail_text());
    }
    if (p->options.dir_count == 0) {
        return ldr_cli_usage(args, "%s names no directory", text);
    }
    return LDR_EXIT_OK;
}

static int dir_look(const ldr_args_t *args, ldr_cli_place_t *p, unsigned i,
                    bool make)
{
    const char *dir = p->options.dirs[i];
    ldr_fsck_look_t *look = &p->look[i];
    larder_status_t st = ldr_fsck_look(p->io, dir, look);

    if (st == LARDER_E_INVALID && make) {
        return LDR_EXIT_OK; /* opening makes it */
    }
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    if (!make && !look->super && look->segments == 0) {
        return ldr_cli_fail(args, "%s: is not a directory of Larder's", dir);
    }
    uint64_t bytes =
        ldr_max64(look->segments, SEGMENTS_MIN) * look->segment_bytes +
        2 * LDR_SUPER_BYTES;
    /* One of an earlier version gets a ledger beside what it has. */
    bytes += look->ledger_bytes > 0
                 ? look->ledger_bytes
                 : LDR_LEDGERS * ldr_ledger_bytes(bytes + bytes / 32 +
                                                  4 * LDR_LEDGER_BYTES_MIN);
    p->ssd_bytes = ldr_max64(p->ssd_bytes, bytes);
    return LDR_EXIT_OK;
}

int ldr_place_open(const ldr_args_t *args, bool make, ldr_cli_place_t **place_p)
{
    char ssd[32];
    int code = ldr_place_parse(args, place_p);
    ldr_cli_place_t *p = *place_p;

    for (unsigned i = 0; code == LDR_EXIT_OK && i < p->options.dir_count; i++) {
        code = dir_look(args, p, i, make);
    }
    if (code != LDR_EXIT_OK) {
        return code;
    }
    /* What is there is not to be shrunk for want of an option. */
    p->ssd_bytes = ldr_max64(p->ssd_bytes, p->options.ssd);
    snprintf(ssd, sizeof(ssd), "%llu", (unsigned long long)p->ssd_bytes);
    if (!url_default(p, "ssd", ssd) || !url_default(p, "dram", DRAM_DEFAULT)) {
        return ldr_cli_usage(args, "the URL is too long");
    }
    return LDR_EXIT_OK;
}

void ldr_place_close(ldr_cli_place_t **place_p)
{
    ldr_cli_place_t *p = *place_p;

    if (p != NULL && p->io != NULL) {
        p->io->ops->destroy(p->io);
    }
    ldr_free(p);
    *place_p = NULL;
}

/* ---- sessions ---- */

/* A small file as a whole. */
static int file_read(const ldr_args_t *args, const char *path, uint8_t *bytes,
                     size_t *size_p)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = -1;

    *size_p = 0;
    while (fd >= 0 && *size_p <= FILE_MAX &&
           (n = read(fd, bytes + *size_p, FILE_MAX + 1 - *size_p)) > 0) {
        *size_p += (size_t)n;
    }
    if (n < 0) {
        ldr_cli_fail(args, "%s: cannot be read: %s", path, strerror(errno));
    } else if (*size_p > FILE_MAX || *size_p == 0) {
        ldr_cli_fail(args, "%s: has not 1 to %u bytes", path, FILE_MAX);
        n = -1;
    }
    if (fd >= 0) {
        close(fd);
    }
    return n < 0 ? LDR_EXIT_FAILED : LDR_EXIT_OK;
}

int ldr_cli_sure(const ldr_args_t *args, const char *where, const char *what,
                 ...)
{
    char answer[16] = "";
    va_list list;

    if (ldr_args_has(args, LDR_FLAG_YES)) {
        return LDR_EXIT_OK;
    }
    if (!isatty(STDIN_FILENO)) {
        return ldr_cli_usage(args,
                             "%s: not wiped: there is no terminal to ask at; "
                             "give --yes",
                             where);
    }
    va_start(list, what);
    vfprintf(stderr, what, list);
    va_end(list);
    fprintf(stderr, " in %s? Type yes: ", where);
    if (fgets(answer, sizeof(answer), stdin) == NULL ||
        strcmp(answer, "yes\n") != 0) {
        return ldr_cli_fail(args, "%s: not wiped", where);
    }
    return LDR_EXIT_OK;
}

int ldr_cli_tenant(const ldr_args_t *args, const char *name)
{
    return ldr_tenant_name_ok(name)
               ? LDR_EXIT_OK
               : ldr_cli_usage(args,
                               "--tenant %s: write 1 to 63 of A-Z a-z 0-9 . "
                               "_ -",
                               name);
}

/* What the flags say; buffer: BUFFER_BYTES. */
static int space_params(const ldr_args_t *args, uint8_t *buffer,
                        larder_space_params_t *p)
{
    uint64_t shards = 1, chunk_tokens = 1;
    uint8_t *secret = buffer + FILE_MAX + 1;
    int code =
        ldr_cli_number(args, LDR_FLAG_SHARDS, 1, LARDER_SHARDS_MAX, &shards);

    if (code == LDR_EXIT_OK) {
        code = ldr_cli_number(args, LDR_FLAG_CHUNK_TOKENS, 1, 65536,
                              &chunk_tokens);
    }
    p->field_mask = LARDER_SPACE_SHARDS | LARDER_SPACE_CHUNK_TOKENS;
    p->shards = (uint32_t)shards;
    p->chunk_tokens = (uint32_t)chunk_tokens;
    p->descriptor = ldr_args_has(args, LDR_FLAG_SPACE)
                        ? args->values[LDR_FLAG_SPACE]
                        : "cli";
    p->descriptor_bytes = strlen(p->descriptor);
    if (ldr_args_has(args, LDR_FLAG_LABEL)) {
        p->field_mask |= LARDER_SPACE_LABEL;
        p->label = args->values[LDR_FLAG_LABEL];
    }
    if (ldr_args_has(args, LDR_FLAG_TENANT)) {
        p->field_mask |= LARDER_SPACE_TENANT;
        p->tenant = args->values[LDR_FLAG_TENANT];
        int bad = ldr_cli_tenant(args, p->tenant);
        if (bad != LDR_EXIT_OK) {
            return bad;
        }
    }
    if (code == LDR_EXIT_OK && ldr_args_has(args, LDR_FLAG_SPACE_FILE)) {
        if (ldr_args_has(args, LDR_FLAG_SPACE)) {
            return ldr_cli_usage(args, "give --space or --space-file");
        }
        p->descriptor = buffer;
        code = file_read(args, args->values[LDR_FLAG_SPACE_FILE], buffer,
                         &p->descriptor_bytes);
    }
    if (code == LDR_EXIT_OK && ldr_args_has(args, LDR_FLAG_SECRET_FILE)) {
        p->field_mask |= LARDER_SPACE_SECRET;
        p->secret = secret;
        if (ldr_tenant_secret_read(args->values[LDR_FLAG_SECRET_FILE], secret,
                                   &p->secret_bytes) != LARDER_OK) {
            code = ldr_cli_fail(args, "%s", ldr_fail_text());
        }
    }
    return code;
}

/* Warnings to stderr, except one that the command is about to fail with. */
static void log_line(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    if (level > LARDER_LOG_WARN || strcmp(line, ldr_fail_text()) != 0) {
        ldr_log_line(NULL, level, NULL, line);
    }
}

int ldr_cli_open(const ldr_args_t *args, const char *url, larder_t **lar_p)
{
    larder_open_params_t params = {.field_mask = LARDER_OPEN_LOG,
                                   .log = log_line};
    larder_status_t st = larder_open(url, &params, lar_p);

    if (st == LARDER_E_LOCKED) {
        char text[LDR_PATH_MAX];
        char *end;

        snprintf(text, sizeof(text), "%s", ldr_fail_text());
        end = strstr(text, ": " IN_USE);
        if (end != NULL) { /* behind the directory's name */
            *end = '\0';
            return ldr_cli_in_use(args, text);
        }
    }
    return st == LARDER_OK          ? LDR_EXIT_OK
           : st == LARDER_E_INVALID ? ldr_cli_usage(args, "%s", ldr_fail_text())
                                    : ldr_cli_status(args, st);
}

int ldr_cli_dirs_on(const ldr_args_t *args, larder_t *lar)
{
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};
    larder_status_t st = larder_stats(lar, &stats);

    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    for (uint64_t i = 0; i < stats.disks; i++) {
        const larder_disk_stats_t *d = &stats.disk[i];

        if (!d->on && strstr(d->reason, IN_USE) != NULL) {
            return ldr_cli_in_use(args, d->path);
        }
        if (!d->on && strncmp(d->reason, d->path, strlen(d->path)) == 0) {
            return ldr_cli_fail(args, "%s", d->reason);
        }
        if (!d->on) {
            return ldr_cli_fail(args, "%s: is off: %s", d->path, d->reason);
        }
    }
    return LDR_EXIT_OK;
}

const char *ldr_cli_place(const ldr_args_t *args, char url[LDR_CLI_URL])
{
    if (args->operand_count > 0) {
        return args->operands[0];
    }
    snprintf(url, LDR_CLI_URL, "unix:");
    ldr_socket_default(url + strlen(url));
    return url;
}

int ldr_session_open(const ldr_args_t *args, bool make, bool with_space,
                     ldr_session_t *s)
{
    larder_space_params_t params = {0};
    larder_status_t st = LARDER_OK;
    uint8_t *buffer = ldr_alloc(BUFFER_BYTES);
    char url[LDR_CLI_URL];
    const char *place = ldr_cli_place(args, url);
    int code = LDR_EXIT_OK;

    memset(s, 0, sizeof(*s));
    if (buffer == NULL) {
        return ldr_cli_fail(args, "not enough memory");
    }
    if (with_space) {
        code = space_params(args, buffer, &params);
    }
    if (code == LDR_EXIT_OK && !ldr_place_remote(place)) {
        code = ldr_place_open(args, make, &s->place);
    }
    if (code == LDR_EXIT_OK) {
        code = ldr_cli_open(args, s->place != NULL ? s->place->url : place,
                            &s->lar);
    }
    /* What is in a directory that is off is not known: it is no miss. */
    if (code == LDR_EXIT_OK && s->place != NULL) {
        code = ldr_cli_dirs_on(args, s->lar);
    }
    if (code == LDR_EXIT_OK && with_space) {
        st = larder_space_open(s->lar, &params, &s->space);
    }
    explicit_bzero(buffer, BUFFER_BYTES);
    ldr_free(buffer);
    return st == LARDER_OK ? code : ldr_cli_status(args, st);
}

int ldr_session_close(const ldr_args_t *args, ldr_session_t *s, int code)
{
    larder_status_t st;

    larder_space_close(&s->space);
    st = larder_close(&s->lar, LARDER_FOREVER);
    if (s->place != NULL) {
        ldr_place_close(&s->place);
    }
    return st != LARDER_OK && code == LDR_EXIT_OK ? ldr_cli_status(args, st)
                                                  : code;
}
