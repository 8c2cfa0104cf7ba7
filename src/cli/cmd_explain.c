/*
 * explain: what became of a recent request of an engine on this host. The
 * engines' connectors leave one line for each request in files of the runtime
 * directory; this reads them. A line is key=value pairs with tabs between, in
 * which \xNN stands for a character.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/config.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/cli.h"

#define FILE_BYTES_MAX (4u << 20) /* engines write 1 MiB at most */
#define SHOWN_MAX 20u

/* X(name, key, is a number) */
#define FIELD_MAP(X)                                                           \
    X(ID, "id", false)                                                         \
    X(TIME, "time_ms", true)                                                   \
    X(ENGINE, "engine", true)                                                  \
    X(CHUNK_TOKENS, "chunk_tokens", true)                                      \
    X(PROMPT, "prompt_tokens", true)                                           \
    X(LIMIT, "limit_chunks", true)                                             \
    X(LOCAL, "local_tokens", true)                                             \
    X(MATCHED, "matched_chunks", true)                                         \
    X(STAGED, "staged_chunks", true)                                           \
    X(DRAM, "dram_bytes", true)                                                \
    X(SSD, "ssd_bytes", true)                                                  \
    X(SHARED, "shared_bytes", true)                                            \
    X(LOADED, "loaded_tokens", true)                                           \
    X(FAILED, "failed_tokens", true)                                           \
    X(MISSED, "missed_tokens", true)                                           \
    X(REASON, "reason", false)                                                 \
    X(SAVED, "saved_chunks", true)                                             \
    X(PREEMPTIONS, "preemptions", true)                                        \
    X(LOOKUP_MS, "lookup_ms", true)                                            \
    X(STAGE_MS, "stage_ms", true)                                              \
    X(COPY_MS, "copy_ms", true)                                                \
    X(RESUME_MS, "resume_ms", true)                                            \
    X(HALF, "handoff", false)                                                  \
    X(HALF_TOKENS, "handoff_tokens", true)                                     \
    X(HALF_MEMBER, "handoff_member", false)                                    \
    X(HALF_WHY, "handoff_why", false)                                          \
    X(HALF_EARLY, "handoff_early", true)                                       \
    X(HALF_WHOLE, "handoff_whole", true)                                       \
    X(PROMISED_MS, "handoff_promised_ms", true)                                \
    X(SAVED_MS, "handoff_saved_ms", true)                                      \
    X(ANSWERED_MS, "handoff_answered_ms", true)                                \
    X(WAITED_MS, "handoff_waited_ms", true)

typedef enum field {
#define X(name, key, number) FIELD_##name,
    FIELD_MAP(X)
#undef X
        FIELD_COUNT
} field_t;

static const struct {
    const char *key;
    bool number;
} fields[FIELD_COUNT] = {
#define X(name, key, number) {key, number},
    FIELD_MAP(X)
#undef X
};

/* Why not more was loaded, or handed off, for people. */
static const struct {
    const char *name, *text;
} reasons[] = {
    {"absent", "the store does not have it"},
    {"evicted", "it was evicted to make room"},
    {"corrupt", "it was damaged, and dropped"},
    {"stale", "the space was reset meanwhile"},
    {"deadline", "the node did not answer in lookup_ms"},
    {"late", "lookup and staging took longer than lookup_ms"},
    {"tier_off", "it is on a disk that is switched off"},
    {"full", "the node's dram had no room to stage it"},
    {"crowded", "other requests' prefixes took all that may be held in dram"},
    {"io", "it could not be read from disk"},
    {"offline", "the node could not be reached"},
    {"denied", "the node does not let this engine in; its log says why"},
    {"version", "the node and this engine speak no common version"},
    {"paused", "the node is paused"},
    {"other", "a cause that the node knows and this engine is too old for"},
    {"slower", "computing it was expected to be faster (option load)"},
    {"tier", "it is in a tier that the request excludes"},
    {"skip", "the request asked not to load"},
    {"off", "this engine only saves (kv_role, option load)"},
    {"images", "its images have no lasting name"},
    {"reset", "vLLM has reset the cache, and the node has not heard of it"},
    {"short", "the prompt is shorter than a chunk and a token"},
    {"load", "the load failed, and it was computed; the engine's log says why"},
    {"engine", "the engine took less than was offered"},
    {"error", "an error; the engine's log says which"},
    /* of hand-offs only */
    {"unable", "this engine cannot hand off, or take, this prompt; its log"
               " says why"},
    {"promise", "the node did not take the promise: the other side finds what"
                " was saved, and does not wait for the rest"},
    {"ended", "the request ended before all of its prompt was computed"},
    {"busy", "other saves held too many of the engine's blocks"},
    {"malformed", "the hand-off in the request is not as an engine writes it"},
    {"forged", "the hand-off's seal is wrong: it was altered, or is another"
               " tenant's"},
    {"space", "it is of another model, dtype or layout, or of an engine with"
              " other hand-offs"},
    {"prompt", "it is of another prompt, salt, adapter or image"},
    {"member", "the node that it names is no member of this node's cluster"},
};

typedef struct record {
    const char *values[FIELD_COUNT]; /* NULL: not there */
    uint64_t order;                  /* as read: breaks ties of time */
} record_t;

typedef struct records {
    record_t *all;
    size_t count, capacity;
    char **texts; /* what the records point into */
    size_t text_count, text_capacity;
    uint64_t lines; /* that were read, wanted or not */
    bool no_memory;
} records_t;

static uint64_t field_number(const record_t *r, field_t field)
{
    return r->values[field] != NULL ? strtoull(r->values[field], NULL, 10) : 0;
}

/* ---- reading ---- */

/* \xNN into its character, in place. One that could do things to a terminal
 * stays as it is written. */
static void unescape(char *text)
{
    char *to = text;

    for (; *text != '\0'; text++) {
        int high =
            text[0] == '\\' && text[1] == 'x' ? ldr_hex_digit(text[2]) : -1;
        int low = high >= 0 ? ldr_hex_digit(text[3]) : -1;
        int c = low >= 0 ? high * 16 + low : 0;

        if (c >= 0x20 && c < 0x7f) {
            *to++ = (char)c;
            text += 3;
        } else {
            *to++ = *text;
        }
    }
    *to = '\0';
}

/* As JSON has them: 0, 17, 0.25 */
static bool is_number(const char *text)
{
    const char *digits = "0123456789";
    size_t whole = strspn(text, digits);

    if (whole == 0 || (text[0] == '0' && whole > 1)) {
        return false;
    }
    if (text[whole] == '.') {
        size_t part = strspn(text + whole + 1, digits);

        return part > 0 && text[whole + 1 + part] == '\0';
    }
    return text[whole] == '\0';
}

/* A line without its newline. False: it is none of a record. */
static bool parse_line(char *text, record_t *r)
{
    char *next;

    *r = (record_t){.order = 0};
    for (; text != NULL; text = next) {
        char *tab = strchr(text, '\t');
        char *equal;

        next = tab != NULL ? tab + 1 : NULL;
        if (tab != NULL) {
            *tab = '\0';
        }
        equal = strchr(text, '=');
        if (equal == NULL) {
            return false;
        }
        *equal = '\0';
        for (int i = 0; i < FIELD_COUNT; i++) {
            if (strcmp(text, fields[i].key) == 0 &&
                (!fields[i].number || is_number(equal + 1))) {
                unescape(equal + 1);
                r->values[i] = equal + 1;
            }
        }
    }
    return r->values[FIELD_ID] != NULL && r->values[FIELD_TIME] != NULL;
}

/* Adds those lines whose id begins with wanted; "": all of them. */
static void parse_text(records_t *out, char *text, const char *wanted)
{
    char *next;
    record_t r;

    for (; *text != '\0' && !out->no_memory; text = next) {
        size_t length = strcspn(text, "\n");

        next = text + length + (text[length] == '\n');
        text[length] = '\0';
        if (!parse_line(text, &r)) {
            continue;
        }
        r.order = out->lines++;
        if (strncmp(r.values[FIELD_ID], wanted, strlen(wanted)) != 0) {
            continue;
        }
        if (!ldr_grow(&out->all, &out->capacity, out->count + 1, sizeof(r))) {
            out->no_memory = true;
            return;
        }
        out->all[out->count++] = r;
    }
}

/* A file's bytes and a NUL; NULL: they cannot be had. */
static char *read_file(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat about;
    char *text = NULL;
    size_t done = 0;
    ssize_t got = 1;

    if (fd < 0) {
        return NULL;
    }
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
        about.st_size <= FILE_BYTES_MAX) {
        text = ldr_alloc((size_t)about.st_size + 1);
    }
    while (text != NULL && done < (size_t)about.st_size && got > 0) {
        got = read(fd, text + done, (size_t)about.st_size - done);
        done += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    if (text != NULL) {
        text[done] = '\0';
        for (size_t i = 0; i < done; i++) {
            unsigned char c = (unsigned char)text[i];

            if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
                text[i] = '?'; /* nothing of it may reach a terminal */
            }
        }
    }
    return text;
}

static bool is_ours(const char *name)
{
    size_t length = strlen(name);

    return strncmp(name, "vllm-", 5) == 0 && length > 9 &&
           strcmp(name + length - 4, ".log") == 0;
}

/* Reads all files of the directory. False: it cannot be read. */
static bool read_all(const char *path, const char *wanted, records_t *out)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;

    if (dir == NULL) {
        return false;
    }
    while (!out->no_memory && (entry = readdir(dir)) != NULL) {
        char *text = is_ours(entry->d_name)
                         ? read_file(dirfd(dir), entry->d_name)
                         : NULL;

        if (text == NULL) {
            continue;
        }
        if (!ldr_grow(&out->texts, &out->text_capacity, out->text_count + 1,
                      sizeof(*out->texts))) {
            ldr_free(text);
            out->no_memory = true;
            break;
        }
        out->texts[out->text_count++] = text;
        parse_text(out, text, wanted);
    }
    closedir(dir);
    return true;
}

static void records_free(records_t *r)
{
    for (size_t i = 0; i < r->text_count; i++) {
        ldr_free(r->texts[i]);
    }
    ldr_free(r->texts);
    ldr_free(r->all);
}

static int by_time(const void *left, const void *right)
{
    const record_t *a = left, *b = right;
    uint64_t ta = field_number(a, FIELD_TIME), tb = field_number(b, FIELD_TIME);

    if (ta != tb) {
        return ta < tb ? -1 : 1;
    }
    return (a->order > b->order) - (a->order < b->order);
}

/* Leaves those with this very id, if there are any. */
static void prefer_exact(records_t *r, const char *wanted)
{
    size_t exact = 0;

    for (size_t i = 0; i < r->count; i++) {
        if (strcmp(r->all[i].values[FIELD_ID], wanted) == 0) {
            r->all[exact++] = r->all[i];
        }
    }
    r->count = exact > 0 ? exact : r->count;
}

/* ---- showing ---- */

static void show_json(const record_t *r)
{
    bool more = false;

    for (int i = 0; i < FIELD_COUNT; i++) {
        if (r->values[i] == NULL) {
            continue;
        }
        printf("%c\"%s\":", more ? ',' : '{', fields[i].key);
        if (fields[i].number) {
            printf("%s", r->values[i]);
        } else {
            ldr_json_string(stdout, r->values[i]);
        }
        more = true;
    }
    printf("}\n");
}

static void when(const record_t *r, const char *format, char *text, size_t size)
{
    time_t seconds = (time_t)(field_number(r, FIELD_TIME) / 1000);
    struct tm parts;

    if (localtime_r(&seconds, &parts) == NULL ||
        strftime(text, size, format, &parts) == 0) {
        snprintf(text, size, "?");
    }
}

static const char *reason_of(const record_t *r)
{
    return r->values[FIELD_REASON] != NULL ? r->values[FIELD_REASON] : "";
}

static const char *reason_text(const char *reason)
{
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        if (strcmp(reasons[i].name, reason) == 0) {
            return reasons[i].text;
        }
    }
    return "for a reason that this version does not know";
}

static const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

static void show_store(const record_t *r)
{
    uint64_t size = field_number(r, FIELD_CHUNK_TOKENS);
    uint64_t matched = field_number(r, FIELD_MATCHED);
    char dram[32], ssd[32], shared[32];

    if (r->values[FIELD_MATCHED] == NULL) {
        printf("  matched   not looked up\n");
        return;
    }
    ldr_human_bytes(field_number(r, FIELD_DRAM), dram, sizeof(dram));
    ldr_human_bytes(field_number(r, FIELD_SSD), ssd, sizeof(ssd));
    ldr_human_bytes(field_number(r, FIELD_SHARED), shared, sizeof(shared));
    printf("  matched   %" PRIu64 " chunk%s in the store, %" PRIu64 " tokens",
           matched, plural(matched), matched * size);
    if (field_number(r, FIELD_STAGED) > 0) {
        bool any = field_number(r, FIELD_SHARED) > 0;

        printf("; %" PRIu64 " staged (%s from dram, %s from ssd%s%s%s)",
               field_number(r, FIELD_STAGED), dram, ssd, any ? ", " : "",
               any ? shared : "", any ? " from the shared tier" : "");
    }
    printf("\n");
}

static void show_times(const record_t *r)
{
    static const struct {
        field_t field;
        const char *name;
    } times[] = {{FIELD_LOOKUP_MS, "lookup"},
                 {FIELD_STAGE_MS, "stage"},
                 {FIELD_COPY_MS, "copy"},
                 {FIELD_RESUME_MS, "resume"}};

    printf("  times    ");
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        const char *value = r->values[times[i].field];

        printf("%s %s %s%s", i > 0 ? "," : "", times[i].name,
               value != NULL ? value : "-", value != NULL ? " ms" : "");
    }
    printf("\n");
}

/* ", promised at 0.4 ms"; nothing if it did not happen. */
static void show_at(const record_t *r, field_t field, const char *what)
{
    if (r->values[field] != NULL) {
        printf(", %s at %s ms", what, r->values[field]);
    }
}

/* A request's half of a hand-off (docs/guide/handoff.md). */
static void show_half(const record_t *r)
{
    const char *side = r->values[FIELD_HALF], *why = r->values[FIELD_HALF_WHY];
    const char *member = r->values[FIELD_HALF_MEMBER];
    bool gives = side != NULL && strcmp(side, "prefill") == 0;

    if (side == NULL) {
        return;
    }
    if (gives) {
        printf("  gave      %" PRIu64 " tokens to a decode engine",
               field_number(r, FIELD_HALF_TOKENS));
        show_at(r, FIELD_PROMISED_MS, "promised");
        show_at(r, FIELD_SAVED_MS, "last saves");
        show_at(r, FIELD_ANSWERED_MS, "answered");
    } else {
        printf("  took      %s of a hand-off",
               field_number(r, FIELD_HALF_WHOLE) != 0 ? "all"
               : r->values[FIELD_WAITED_MS] != NULL   ? "a part"
                                                      : "nothing");
        if (member != NULL && member[0] != '\0') {
            printf(" from %s", member);
        }
        if (field_number(r, FIELD_HALF_EARLY) != 0) {
            printf(", which had not been answered");
        }
        show_at(r, FIELD_WAITED_MS, "staged");
    }
    if (why != NULL && why[0] != '\0') {
        printf("; %s (%s)", why, reason_text(why));
    }
    printf("\n");
}

static void record_show(const record_t *r)
{
    uint64_t size = field_number(r, FIELD_CHUNK_TOKENS);
    uint64_t limit = field_number(r, FIELD_LIMIT);
    uint64_t saved = field_number(r, FIELD_SAVED);
    uint64_t again = field_number(r, FIELD_PREEMPTIONS);
    const char *reason = reason_of(r);
    char at[32];

    when(r, "%F %T", at, sizeof(at));
    printf("request %s\n", r->values[FIELD_ID]);
    printf("  came      %s, to vLLM's engine process %" PRIu64 "\n", at,
           field_number(r, FIELD_ENGINE));
    printf("  prompt    %" PRIu64 " tokens; %" PRIu64 " chunk%s of %" PRIu64
           " could be loaded, %" PRIu64 " tokens\n",
           field_number(r, FIELD_PROMPT), limit, plural(limit), size,
           limit * size);
    printf("  local     %" PRIu64 " tokens in vLLM's own cache\n",
           field_number(r, FIELD_LOCAL));
    show_store(r);
    printf("  loaded    %" PRIu64 " tokens\n", field_number(r, FIELD_LOADED));
    if (field_number(r, FIELD_FAILED) > 0) {
        printf("  failed    %" PRIu64 " tokens\n",
               field_number(r, FIELD_FAILED));
    }
    if (reason[0] != '\0') {
        printf("  missed    %" PRIu64 " tokens: %s (%s)\n",
               field_number(r, FIELD_MISSED), reason, reason_text(reason));
    } else {
        printf("  missed    nothing\n");
    }
    printf("  saved     %" PRIu64 " chunk%s\n", saved, plural(saved));
    show_half(r);
    if (again > 0) {
        printf("  preempted %" PRIu64 " time%s; this is since the last\n",
               again, plural(again));
    }
    show_times(r);
}

static void show_list(const record_t *all, size_t count)
{
    char at[32];

    printf("%-8s  %7s  %7s  %7s  %7s  %-8s  %s\n", "CAME", "PROMPT", "LOCAL",
           "LOADED", "MISSED", "WHY", "REQUEST");
    for (size_t i = 0; i < count; i++) {
        const record_t *r = &all[i];

        when(r, "%T", at, sizeof(at));
        printf("%-8s  %7" PRIu64 "  %7" PRIu64 "  %7" PRIu64 "  %7" PRIu64
               "  %-8s  %s\n",
               at, field_number(r, FIELD_PROMPT), field_number(r, FIELD_LOCAL),
               field_number(r, FIELD_LOADED), field_number(r, FIELD_MISSED),
               reason_of(r)[0] != '\0' ? reason_of(r) : "-",
               r->values[FIELD_ID]);
    }
}

/* ---- all of it ---- */

/* The newest of them, oldest first. */
static void show_all(const ldr_args_t *args, const records_t *r)
{
    size_t first = r->count > SHOWN_MAX ? r->count - SHOWN_MAX : 0;

    if (!ldr_args_has(args, LDR_FLAG_JSON) && args->operand_count == 0) {
        show_list(r->all + first, r->count - first);
        return;
    }
    for (size_t i = first; i < r->count; i++) {
        if (ldr_args_has(args, LDR_FLAG_JSON)) {
            show_json(&r->all[i]);
        } else {
            printf("%s", i > first ? "\n" : "");
            record_show(&r->all[i]);
        }
    }
}

/* explain/ beside the default socket: where connectors write. */
static void default_dir(char *path, size_t size)
{
    char socket[LDR_UNIX_PATH_MAX];

    ldr_socket_default(socket);
    char *slash = strrchr(socket, '/');
    snprintf(path, size, "%.*s/explain",
             slash != NULL ? (int)(slash - socket) : 0, socket);
}

static int explain(const ldr_args_t *args, const char *dir, const char *wanted,
                   records_t *r)
{
    if (!read_all(dir, wanted, r)) {
        int error = errno;

        ldr_cli_fail(args,
                     "%s: %s; engines of this user write there when they use "
                     "Larder (--dir: elsewhere)",
                     dir, strerror(error));
        return error == ENOENT ? LDR_EXIT_NO : LDR_EXIT_FAILED;
    }
    if (r->no_memory) {
        return ldr_cli_fail(args, "not enough memory");
    }
    if (wanted[0] != '\0') {
        prefer_exact(r, wanted);
    }
    if (r->count == 0) {
        ldr_cli_fail(args,
                     "no %s%s in %s, which keeps %" PRIu64
                     " requests that have ended (per engine, the last 1 to "
                     "2 MiB of lines; `larder explain` lists the newest)",
                     wanted[0] != '\0' ? "request " : "requests", wanted, dir,
                     r->lines);
        return LDR_EXIT_NO;
    }
    qsort(r->all, r->count, sizeof(*r->all), by_time);
    show_all(args, r);
    return LDR_EXIT_OK;
}

int ldr_cmd_explain(const ldr_args_t *args)
{
    char standard[LDR_UNIX_PATH_MAX + 16];
    const char *dir = args->values[LDR_FLAG_DIR];
    records_t r = {.count = 0};

    default_dir(standard, sizeof(standard));
    int code = explain(args, dir != NULL ? dir : standard,
                       args->operand_count > 0 ? args->operands[0] : "", &r);
    records_free(&r);
    return code;
}
