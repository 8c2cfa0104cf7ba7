/* put and get: one shard, from and to a file. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli/cli.h"

/* One shard named on the command line. */
typedef struct shard {
    ldr_session_t session;
    larder_key_t key;
    char key_hex[LDR_HEX_BYTES(LARDER_KEY_BYTES)];
    larder_item_t item;
    struct iovec iov;
} shard_t;

static const char *file_of(const ldr_args_t *args)
{
    return args->operands[2];
}

static bool is_standard(const char *file)
{
    return strcmp(file, "-") == 0;
}

/* ---- names ---- */

/* 64 hex digits are the key itself. */
static bool key_parse(const char *text, larder_key_t *key)
{
    return strlen(text) == 2 * LARDER_KEY_BYTES &&
           ldr_unhex_any(text, LARDER_KEY_BYTES, key->hash);
}

/* Any other text is a name: the extra bytes of a chain of one chunk with the
 * one token 0. */
static int key_find(const ldr_args_t *args, shard_t *s)
{
    static const uint32_t token;
    const char *name = args->operands[1];
    larder_extra_t extra = {name, strlen(name)};
    larder_chain_params_t params = {.field_mask = LARDER_CHAIN_EXTRA,
                                    .extra = &extra};
    size_t count = 0;
    larder_status_t st = LARDER_OK;

    if (!key_parse(name, &s->key)) {
        st = larder_chain(s->session.space, &token, 1, &params, &s->key, 1,
                          &count);
        if (st == LARDER_OK && count != 1) {
            return ldr_cli_usage(args, "with --chunk-tokens a KEY must be "
                                       "64 hex digits");
        }
    }
    ldr_hex(s->key.hash, LARDER_KEY_BYTES, s->key_hex);
    return st == LARDER_OK ? LDR_EXIT_OK : ldr_cli_status(args, st);
}

/* The numbers of the command line, before anything is opened. */
static int item_parse(const ldr_args_t *args, shard_t *s)
{
    uint64_t shards = 1, shard = 0, group = 0, ttl_s = 0;
    int code =
        ldr_cli_number(args, LDR_FLAG_SHARDS, 1, LARDER_SHARDS_MAX, &shards);

    if (code == LDR_EXIT_OK) {
        code = ldr_cli_number(args, LDR_FLAG_SHARD, 0, LARDER_SHARDS_MAX - 1,
                              &shard);
    }
    if (code == LDR_EXIT_OK && shard >= shards) {
        code =
            ldr_cli_usage(args,
                          "--shard %llu: with --shards %llu the last one is "
                          "%llu: give --shards the number that the space "
                          "has, as it was saved with",
                          (unsigned long long)shard, (unsigned long long)shards,
                          (unsigned long long)shards - 1);
    }
    if (code == LDR_EXIT_OK) {
        code = ldr_cli_number(args, LDR_FLAG_GROUP, 0, LARDER_GROUPS_MAX - 1,
                              &group);
    }
    if (code == LDR_EXIT_OK) {
        code = ldr_cli_number(args, LDR_FLAG_TTL, 1, UINT32_MAX / 1000, &ttl_s);
    }
    if (code == LDR_EXIT_OK && args->operands[1][0] == '\0') {
        code = ldr_cli_usage(args, "the KEY is empty");
    }
    s->item = (larder_item_t){
        .key = &s->key,
        .shard = (uint16_t)shard,
        .group = (uint16_t)group,
        .ttl_ms = (uint32_t)ttl_s * 1000,
        .flags = ldr_args_has(args, LDR_FLAG_PIN) ? LARDER_PUT_PIN : 0,
    };
    return code;
}

static larder_status_t item_run(shard_t *s, larder_op_t op)
{
    larder_status_t st =
        larder_run(s->session.space, op, &s->item, 1,
                   &(larder_op_params_t){.field_mask = LARDER_OP_TIMEOUT,
                                         .timeout_ms = LARDER_FOREVER});

    return st != LARDER_OK ? st : s->item.status;
}

/* ---- files ---- */

static int too_large(const ldr_args_t *args)
{
    return ldr_cli_fail(args,
                        "%s: is larger than %zu bytes, the most that one "
                        "shard can have",
                        file_of(args), LARDER_VALUE_MAX);
}

/* All of the file, into s->iov; bytes: LARDER_VALUE_MAX + 1. */
static int file_load(const ldr_args_t *args, uint8_t *bytes, shard_t *s)
{
    const char *file = file_of(args);
    int fd = is_standard(file) ? STDIN_FILENO : open(file, O_RDONLY);
    size_t size = 0;
    ssize_t n = -1;

    while (fd >= 0 && size <= LARDER_VALUE_MAX &&
           (n = read(fd, bytes + size, LARDER_VALUE_MAX + 1 - size)) != 0) {
        if (n > 0) {
            size += (size_t)n;
        } else if (errno != EINTR) {
            break;
        }
    }
    if (n < 0) {
        ldr_cli_fail(args, "%s: cannot be read: %s", file, strerror(errno));
    }
    if (fd > STDIN_FILENO) {
        close(fd);
    }
    if (n >= 0 && size > LARDER_VALUE_MAX) {
        return too_large(args);
    }
    if (n >= 0 && size == 0) {
        return ldr_cli_fail(args, "%s: is empty, which a shard cannot be",
                            file);
    }
    s->iov = (struct iovec){bytes, size};
    return n < 0 ? LDR_EXIT_FAILED : LDR_EXIT_OK;
}

static int file_save(const ldr_args_t *args, const uint8_t *bytes, size_t size)
{
    const char *file = file_of(args);
    int fd = is_standard(file) ? STDOUT_FILENO
                               : open(file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    size_t done = 0;
    ssize_t n = 0;

    while (fd >= 0 && done < size) {
        n = write(fd, bytes + done, size - done);
        if (n < 0 && errno != EINTR) {
            break;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    bool ok = fd >= 0 && done == size;
    if (!ok) {
        ldr_cli_fail(args, "%s: cannot be written: %s", file, strerror(errno));
    }
    /* Some file systems tell only now. */
    if (fd > STDERR_FILENO && close(fd) != 0 && ok) {
        ok = false;
        ldr_cli_fail(args, "%s: cannot be written: %s", file, strerror(errno));
    }
    return ok ? LDR_EXIT_OK : LDR_EXIT_FAILED;
}

/* ---- put ---- */

static int put_report(const ldr_args_t *args, const shard_t *s)
{
    const char *word = s->item.status == LARDER_PRESENT    ? "present"
                       : s->item.status == LARDER_DECLINED ? "declined"
                                                           : "stored";

    if (ldr_args_has(args, LDR_FLAG_JSON)) {
        printf("{\"status\":\"%s\",\"key\":\"%s\",\"bytes\":%zu}\n", word,
               s->key_hex, s->iov.iov_len);
    } else {
        printf("%s %s\n", word, s->key_hex);
    }
    return LDR_EXIT_OK;
}

static int put_run(const ldr_args_t *args, shard_t *s)
{
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};
    larder_status_t st;
    int code = key_find(args, s);

    if (code != LDR_EXIT_OK) {
        return code;
    }
    s->item.iov = &s->iov;
    s->item.iov_count = 1;
    st = item_run(s, LARDER_OP_PUT);
    if (st == LARDER_E_TIER_OFF) {
        return ldr_cli_fail(args, "the node saves nothing: it is paused "
                                  "(`larder resume`)");
    }
    if (st < 0) {
        return ldr_cli_status(args, st);
    }
    /* A daemon writes it down in its own time, if it has a disk at all. */
    if (ldr_place_remote(args->operands[0])) {
        return put_report(args, s);
    }
    st = larder_flush(s->session.lar, LARDER_TIER_SSD, LARDER_FOREVER);
    if (st == LARDER_E_DROPPED &&
        larder_stats(s->session.lar, &stats) == LARDER_OK &&
        stats.saves_dropped_size > 0) {
        return ldr_cli_fail(args, "%s: does not fit a segment of the directory",
                            file_of(args));
    }
    return st == LARDER_OK ? put_report(args, s) : ldr_cli_status(args, st);
}

int ldr_cmd_put(const ldr_args_t *args)
{
    shard_t s = {0};
    struct stat about;
    int code = item_parse(args, &s);

    if (code != LDR_EXIT_OK) {
        return code;
    }
    if (!is_standard(file_of(args)) && stat(file_of(args), &about) == 0 &&
        S_ISREG(about.st_mode) && (uint64_t)about.st_size > LARDER_VALUE_MAX) {
        return too_large(args);
    }
    uint8_t *bytes = ldr_reserve(LARDER_VALUE_MAX + 1);
    if (bytes == NULL) {
        return ldr_cli_fail(args, "not enough memory");
    }
    code = file_load(args, bytes, &s);
    if (code == LDR_EXIT_OK) {
        code = ldr_session_open(args, true, true, &s.session);
        if (code == LDR_EXIT_OK) {
            code = put_run(args, &s);
        }
        code = ldr_session_close(args, &s.session, code);
    }
    ldr_unreserve(bytes, LARDER_VALUE_MAX + 1);
    return code;
}

/* ---- get ---- */

static int get_miss(const ldr_args_t *args, const shard_t *s)
{
    const char *cause = larder_cause_text(s->item.cause);

    if (ldr_args_has(args, LDR_FLAG_JSON)) {
        /* Where the bytes would have gone is no place for this. */
        fprintf(is_standard(file_of(args)) ? stderr : stdout,
                "{\"status\":\"miss\",\"key\":\"%s\",\"cause\":\"%s\"}\n",
                s->key_hex, cause);
    } else {
        fprintf(stderr, "larder get: %s: miss (%s)\n", args->operands[1],
                cause);
    }
    return LDR_EXIT_NO;
}

static int get_load(const ldr_args_t *args, shard_t *s, uint8_t *bytes)
{
    s->iov = (struct iovec){bytes, s->item.length};
    s->item.iov = &s->iov;
    s->item.iov_count = 1;
    larder_status_t st = item_run(s, LARDER_OP_GET);
    if (st == LARDER_MISS) {
        return get_miss(args, s);
    }
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    int code = file_save(args, bytes, s->item.length);
    if (code == LDR_EXIT_OK && ldr_args_has(args, LDR_FLAG_JSON)) {
        fprintf(is_standard(file_of(args)) ? stderr : stdout,
                "{\"status\":\"loaded\",\"key\":\"%s\",\"bytes\":%zu}\n",
                s->key_hex, s->item.length);
    }
    return code;
}

static int get_run(const ldr_args_t *args, shard_t *s)
{
    int code = key_find(args, s);

    if (code != LDR_EXIT_OK) {
        return code;
    }
    /* How long it is; the load itself checks everything. */
    larder_status_t st = item_run(s, LARDER_OP_EXISTS);
    if (st == LARDER_MISS) {
        return get_miss(args, s);
    }
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    size_t reserved = s->item.length;
    uint8_t *bytes = ldr_reserve(reserved);
    if (bytes == NULL) {
        return ldr_cli_fail(args, "not enough memory");
    }
    code = get_load(args, s, bytes);
    ldr_unreserve(bytes, reserved);
    return code;
}

int ldr_cmd_get(const ldr_args_t *args)
{
    shard_t s = {0};
    int code = item_parse(args, &s);

    if (code != LDR_EXIT_OK) {
        return code;
    }
    code = ldr_session_open(args, false, true, &s.session);
    if (code == LDR_EXIT_OK) {
        code = get_run(args, &s);
    }
    return ldr_session_close(args, &s.session, code);
}
