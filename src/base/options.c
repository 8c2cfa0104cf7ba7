/*
 * Parses URLs and option values by the table in options.h. No state: the caller
 * owns the ldr_options_t, which nobody else may read until the call returns.
 */
#include "base/options.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

#define NUMBER_MAX 64 /* bytes of a number, decoded, with its NUL */
#define SHOWN_MAX 80  /* bytes of a part of the URL shown in an error text */

enum {
    EMBED = LDR_WHERE_EMBED,
    TCP = LDR_WHERE_TCP,
    CLIENT = LDR_WHERE_CLIENT,
    SERVE = LDR_WHERE_SERVE,
    RELOAD = LDR_WHERE_RELOAD,
    CONNECTOR = LDR_WHERE_CONNECTOR
};

const ldr_option_info_t ldr_option_table[] = {
#define X(name, kind, where, def, min, max, text)                              \
    {#name, #kind, def, text, min, max, where},
    LDR_OPTION_MAP(X)
#undef X
};
const size_t ldr_option_count = LDR_OPTION_COUNT;

static const size_t offsets[] = {
#define X(name, kind, where, def, min, max, text) offsetof(ldr_options_t, name),
    LDR_OPTION_MAP(X)
#undef X
};
/* A bit for each option that was seen in a URL. */
__extension__ typedef unsigned __int128 seen_t;
_Static_assert(LDR_OPTION_COUNT <= 128, "seen_t has a bit for each");

/* The words of ENUM options, in the order of their values. */
static const struct {
    int option;
    const char *words[5];
} enums[] = {
    {LDR_OPTION_ssd_admit, {"always", "second"}},
    {LDR_OPTION_io, {"auto", "uring", "plain"}},
    {LDR_OPTION_verify, {"load", "entry", "get"}},
    {LDR_OPTION_policy, {"learned", "lru"}},
    {LDR_OPTION_connect, {"now", "lazy"}},
    {LDR_OPTION_tls, {"off", "on"}},
    {LDR_OPTION_cluster_tls, {"off", "on"}},
    {LDR_OPTION_admin_open, {"off", "on"}},
    {LDR_OPTION_query, {"off", "on"}},
    {LDR_OPTION_events_open, {"off", "on"}},
    {LDR_OPTION_events_ownership, {"off", "on"}},
    {LDR_OPTION_events_topics, {"engines", "node", "pool"}},
    {LDR_OPTION_listen_open, {"off", "on"}},
    {LDR_OPTION_isolation, {"shared", "strict"}},
    {LDR_OPTION_mode, {"on"}},
    {LDR_OPTION_log, {"text", "json"}},
    {LDR_OPTION_log_level, {"error", "warn", "info", "debug"}},
    {LDR_OPTION_pages, {"auto", "rank", "slices", "shared"}},
    {LDR_OPTION_load, {"auto", "always", "never"}},
    {LDR_OPTION_save, {"all", "prompt", "never"}},
    {LDR_OPTION_home, {"auto", "owner", "writer"}},
    {LDR_OPTION_peer_save, {"all", "reused", "never"}},
};

static const struct {
    const char *prefix, *shape;
    unsigned where;
} schemes[] = {
    [LDR_SCHEME_EMBED] = {"embed:", "embed:DIR[,DIR...]", LDR_WHERE_EMBED},
    [LDR_SCHEME_UNIX] = {"unix:", "unix:PATH", LDR_WHERE_UNIX},
    [LDR_SCHEME_TCP] = {"tcp://", "tcp://HOST:PORT[,HOST:PORT...]",
                        LDR_WHERE_TCP},
};

/* A part of the URL: not terminated, not decoded. */
typedef struct part {
    const char *text;
    size_t length;
} part_t;

#define SHOW(p) (int)((p).length < SHOWN_MAX ? (p).length : SHOWN_MAX), (p).text

/* Cuts off and gives the part before the next separator. *more_p says whether
 * there was one, so that an empty last part is not lost. */
static part_t part_cut(part_t *rest, char separator, bool *more_p)
{
    const char *end =
        rest->length > 0 ? memchr(rest->text, separator, rest->length) : NULL;
    part_t first = *rest;

    *more_p = end != NULL;
    if (end != NULL) {
        first.length = (size_t)(end - rest->text);
        rest->text = end + 1;
        rest->length -= first.length + 1;
    } else {
        rest->text += rest->length;
        rest->length = 0;
    }
    return first;
}

/* ---- the table ---------------------------------------------------------- */

int ldr_option_find(const char *name, size_t length)
{
    for (size_t i = 0; i < ldr_option_count; i++) {
        if (strlen(ldr_option_table[i].name) == length &&
            memcmp(ldr_option_table[i].name, name, length) == 0) {
            return (int)i;
        }
    }
    return -1;
}

const char *ldr_option_nearest(const char *name, size_t length, unsigned where)
{
    const char *best = NULL;
    unsigned best_edits = UINT_MAX;

    for (size_t i = 0; i < ldr_option_count; i++) {
        unsigned edits =
            ldr_text_distance(ldr_option_table[i].name, name, length);

        if ((ldr_option_table[i].where & where) != 0 && edits < best_edits) {
            best = ldr_option_table[i].name;
            best_edits = edits;
        }
    }
    return best;
}

const char *const *ldr_option_words(size_t index)
{
    for (size_t i = 0; i < sizeof(enums) / sizeof(enums[0]); i++) {
        if ((size_t)enums[i].option == index) {
            return enums[i].words;
        }
    }
    return NULL;
}

/* Where a list goes on: ", " or, before the last, " and ". */
static const char *list_gap(unsigned done, bool last, const char *word)
{
    return done == 0 ? "" : last ? word : ", ";
}

/* "1 to 64", or of sizes "2M to 16T". */
static void add_range(ldr_text_t *out, const char *kind, uint64_t min,
                      uint64_t max)
{
    char from[24], to[24];

    if (kind[0] == 'S') {
        ldr_size_text(min, from, sizeof(from));
        ldr_size_text(max, to, sizeof(to));
        ldr_text_add(out, "%s to %s", from, to);
    } else {
        ldr_text_add(out, "%llu to %llu", (unsigned long long)min,
                     (unsigned long long)max);
    }
}

larder_status_t ldr_parse_value(const char *who, const char *kind, uint64_t min,
                                uint64_t max, const char *text,
                                uint64_t *value_p)
{
    bool is_size = kind[0] == 'S';
    uint64_t value;
    char range[64];

    if (!(is_size ? ldr_parse_size(text, &value)
                  : ldr_parse_uint(text, &value))) {
        return ldr_fail(LARDER_E_INVALID, "%s: '%.*s' is no %s", who, SHOWN_MAX,
                        text,
                        is_size ? "size; write bytes, or a number with K, M, "
                                  "G or T, like 64M"
                                : "number");
    }
    if (value < min || value > max) {
        ldr_text_t out = ldr_text(range, sizeof(range));

        add_range(&out, kind, min, max);
        return ldr_fail(LARDER_E_INVALID, "%s: %.*s is not in the range of %s",
                        who, SHOWN_MAX, text, range);
    }
    *value_p = value;
    return LARDER_OK;
}

size_t ldr_option_range(size_t index, char *text, size_t size)
{
    const ldr_option_info_t *info = &ldr_option_table[index];
    const char *const *words = ldr_option_words(index);
    ldr_text_t out = ldr_text(text, size);

    if (words != NULL) {
        for (unsigned i = 0; words[i] != NULL; i++) {
            ldr_text_add(&out, "%s%s",
                         list_gap(i, words[i + 1] == NULL, " or "), words[i]);
        }
    } else if (info->kind[0] != 'T') {
        add_range(&out, info->kind, info->min, info->max);
    } else {
        ldr_text_add(&out, "at most %llu bytes", (unsigned long long)info->max);
    }
    return out.length;
}

size_t ldr_where_text(unsigned where, char *text, size_t size)
{
    static const struct {
        unsigned bit;
        const char *text;
    } places[] = {
        {LDR_WHERE_EMBED, "embed: URLs"},    {LDR_WHERE_UNIX, "unix: URLs"},
        {LDR_WHERE_TCP, "tcp:// URLs"},      {LDR_WHERE_SERVE, "larder serve"},
        {LDR_WHERE_CONNECTOR, "connectors"},
    };
    ldr_text_t out = ldr_text(text, size);
    unsigned left = where & ~(unsigned)LDR_WHERE_RELOAD;
    unsigned done = 0;

    for (unsigned i = 0; left != 0 && i < sizeof(places) / sizeof(places[0]);
         i++) {
        if ((left & places[i].bit) != 0) {
            left &= ~places[i].bit;
            ldr_text_add(&out, "%s%s", list_gap(done++, left == 0, " and "),
                         places[i].text);
        }
    }
    return out.length;
}

/* ---- values ------------------------------------------------------------- */

static larder_status_t enum_set(size_t index, const char *text,
                                uint64_t *value_p)
{
    const char *const *words = ldr_option_words(index);
    char range[128];

    for (uint64_t v = 0; words[v] != NULL; v++) {
        if (strcmp(words[v], text) == 0) {
            *value_p = v;
            return LARDER_OK;
        }
    }
    if (index == LDR_OPTION_mode && strcmp(text, "observe") == 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "option mode: 'observe' is gone: use `larder serve "
                        "--trace FILE`, and then `larder plan FILE`");
    }
    ldr_option_range(index, range, sizeof(range));
    return ldr_fail(LARDER_E_INVALID, "option %s: '%.*s' is not %s",
                    ldr_option_table[index].name, SHOWN_MAX, text, range);
}

/* What a TEXT must look like, or NULL if it does. */
static const char *text_wrong(size_t index, const char *text)
{
    uint64_t nodes, threads;

    switch (index) {
    case LDR_OPTION_tenant:
        return ldr_tenant_name_ok(text)
                   ? NULL
                   : "is no tenant: write 1 to 63 of A-Z a-z 0-9 . _ -";
    case LDR_OPTION_socket:
        return strlen(text) < LDR_UNIX_PATH_MAX
                   ? NULL
                   : "is too long: the path of a socket has at most 107 bytes";
    case LDR_OPTION_socket_mode:
        return strlen(text) >= 3 && strspn(text, "01234567") == strlen(text) &&
                       (strlen(text) == 3 ||
                        (strlen(text) == 4 && text[0] == '0'))
                   ? NULL
                   : "are no permissions: write them in octal, 000 to 0777";
    case LDR_OPTION_uids:
        return ldr_uids_ok(text)
                   ? NULL
                   : "is not a list of uids: write numbers with commas, or any";
    case LDR_OPTION_numa:
        return ldr_parse_numa(text, &nodes)
                   ? NULL
                   : "is not a list of NUMA nodes: write 0 to 63 with commas";
    case LDR_OPTION_save_threads:
        return strcmp(text, "auto") == 0 ||
                       (ldr_parse_uint(text, &threads) && threads <= 16)
                   ? NULL
                   : "is no number of threads: write 0 to 16, or auto";
    case LDR_OPTION_admin:
        return strcmp(text, "none") == 0 || ldr_addresses_ok(text, 1)
                   ? NULL
                   : "is no address: write host:port, [::1]:port, or none";
    case LDR_OPTION_listen:
        return text[0] == '\0' || ldr_addresses_ok(text, LDR_ADDRESSES_MAX)
                   ? NULL
                   : "is not a list of addresses: write host:port with commas, "
                     "at most 16";
    default:
        return NULL;
    }
}

static larder_status_t text_set(ldr_options_t *o, size_t index,
                                const char *text)
{
    const ldr_option_info_t *info = &ldr_option_table[index];
    const char *wrong = text_wrong(index, text);
    size_t length = strlen(text);

    for (size_t i = 0; i < length && wrong == NULL; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            wrong = "has a control character in it";
        }
    }
    if (wrong != NULL) {
        return ldr_fail(LARDER_E_INVALID, "option %s: '%.*s' %s", info->name,
                        SHOWN_MAX, text, wrong);
    }
    if (length < info->min || length > info->max) {
        return ldr_fail(LARDER_E_INVALID,
                        "option %s: '%.*s' has %zu bytes, not %llu to %llu",
                        info->name, SHOWN_MAX, text, length,
                        (unsigned long long)info->min,
                        (unsigned long long)info->max);
    }
    char *field = (char *)o + offsets[index];
    memset(field, 0, LDR_OPTION_TEXT); /* equal options are equal bytes */
    memcpy(field, text, length);
    return LARDER_OK;
}

larder_status_t ldr_option_set(ldr_options_t *o, size_t index, const char *text)
{
    const ldr_option_info_t *info = &ldr_option_table[index];
    uint64_t value = 0;
    char who[64];

    if (info->kind[0] == 'T') {
        return text_set(o, index, text);
    }
    snprintf(who, sizeof(who), "option %s", info->name);
    larder_status_t st = info->kind[0] == 'E'
                             ? enum_set(index, text, &value)
                             : ldr_parse_value(who, info->kind, info->min,
                                               info->max, text, &value);
    if (st != LARDER_OK) {
        return st;
    }
    memcpy((char *)o + offsets[index], &value, sizeof(value));
    return LARDER_OK;
}

size_t ldr_option_get(const ldr_options_t *o, size_t index, char *text,
                      size_t size)
{
    const ldr_option_info_t *info = &ldr_option_table[index];
    const char *field = (const char *)o + offsets[index];
    uint64_t value;

    if (info->kind[0] == 'T') {
        return (size_t)snprintf(text, size, "%s", field);
    }
    memcpy(&value, field, sizeof(value));
    if (info->kind[0] == 'E') {
        return (size_t)snprintf(text, size, "%s",
                                ldr_option_words(index)[value]);
    }
    if (info->kind[0] == 'S') {
        return ldr_size_text(value, text, size);
    }
    return (size_t)snprintf(text, size, "%llu", (unsigned long long)value);
}

void ldr_options_default(ldr_options_t *o)
{
    memset(o, 0, sizeof(*o));
    for (size_t i = 0; i < ldr_option_count; i++) {
        ldr_option_set(o, i, ldr_option_table[i].value);
    }
}

uint64_t ldr_option_number(const ldr_options_t *o, size_t index)
{
    uint64_t value = 0;

    if (ldr_option_table[index].kind[0] != 'T') {
        memcpy(&value, (const char *)o + offsets[index], sizeof(value));
    }
    return value;
}

/* ---- the URL ------------------------------------------------------------ */

/* Decodes percent escapes into out, with a NUL. what names the part. */
static larder_status_t part_decode(part_t p, const char *what, char *out,
                                   size_t out_bytes)
{
    switch (ldr_url_unescape(p.text, p.length, out, out_bytes)) {
    case LDR_UNESCAPED_BAD:
        return ldr_fail(LARDER_E_INVALID,
                        "%s '%.*s': '%%' must be followed by two hex digits; "
                        "write %%25 for the character itself",
                        what, SHOW(p));
    case LDR_UNESCAPED_ZERO:
        return ldr_fail(LARDER_E_INVALID, "%s '%.*s': %%00 in it", what,
                        SHOW(p));
    case LDR_UNESCAPED_LONG:
        return ldr_fail(LARDER_E_INVALID,
                        "%s '%.*s...' is longer than %zu bytes", what, SHOW(p),
                        out_bytes - 1);
    default:
        return LARDER_OK;
    }
}

larder_status_t ldr_options_add_dir(ldr_options_t *o, const char *dir)
{
    char *to = o->dirs[o->dir_count < LDR_DISKS_MAX ? o->dir_count : 0];
    size_t length = strlen(dir);

    if (length == 0) {
        return ldr_fail(LARDER_E_INVALID, "directory %u has an empty name",
                        o->dir_count + 1);
    }
    if (o->dir_count == LDR_DISKS_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "directory '%.*s': at most %d directories", SHOWN_MAX,
                        dir, LDR_DISKS_MAX);
    }
    if (length >= LDR_PATH_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "directory '%.*s...' is longer than %d bytes",
                        SHOWN_MAX, dir, LDR_PATH_MAX - 1);
    }
    /* One name for one directory: "kv/" is "kv". */
    while (length > 1 && dir[length - 1] == '/') {
        length--;
    }
    memset(to, 0, LDR_PATH_MAX);
    memcpy(to, dir, length);
    for (unsigned i = 0; i < o->dir_count; i++) {
        if (strcmp(o->dirs[i], to) == 0) {
            larder_status_t st =
                ldr_fail(LARDER_E_INVALID, "directory '%s' is named twice", to);
            memset(to, 0, LDR_PATH_MAX);
            return st;
        }
    }
    o->dir_count++;
    return LARDER_OK;
}

static larder_status_t parse_dirs(ldr_options_t *o, part_t dirs)
{
    larder_status_t st = LARDER_OK;
    char dir[LDR_PATH_MAX];
    bool more = dirs.length > 0;

    while (more && st == LARDER_OK) {
        st = part_decode(part_cut(&dirs, ',', &more), "directory", dir,
                         sizeof(dir));
        if (st == LARDER_OK) {
            st = ldr_options_add_dir(o, dir);
        }
    }
    return st;
}

static larder_status_t parse_path(ldr_options_t *o, part_t path)
{
    char text[LDR_UNIX_PATH_MAX];
    larder_status_t st = part_decode(path, "socket", text, sizeof(text));

    if (st == LARDER_OK && text[0] == '\0') {
        st = ldr_fail(LARDER_E_INVALID,
                      "the URL names no socket: write unix:PATH");
    }
    if (st == LARDER_OK) {
        memcpy(o->address, text, sizeof(text));
    }
    return st;
}

static larder_status_t parse_hosts(ldr_options_t *o, part_t hosts)
{
    larder_status_t st =
        part_decode(hosts, "address", o->address, sizeof(o->address));
    char host[LDR_HOST_MAX];
    unsigned count = 0;
    bool more = true;
    uint16_t port;

    if (st != LARDER_OK) {
        return st;
    }
    hosts = (part_t){o->address, strlen(o->address)};
    while (more) {
        part_t p = part_cut(&hosts, ',', &more);
        if (!ldr_parse_address(p.text, p.length, host, &port) || port == 0) {
            return ldr_fail(LARDER_E_INVALID,
                            "address '%.*s': write HOST:PORT, with a port "
                            "from 1 to 65535",
                            SHOW(p));
        }
        if (++count > LDR_ADDRESSES_MAX) {
            return ldr_fail(LARDER_E_INVALID,
                            "address '%.*s': at most %d addresses", SHOW(p),
                            LDR_ADDRESSES_MAX);
        }
    }
    if (!ldr_addresses_ok(o->address, LDR_ADDRESSES_MAX)) {
        return ldr_fail(LARDER_E_INVALID, "an address is named twice in '%.*s'",
                        SHOWN_MAX, o->address);
    }
    return LARDER_OK;
}

/* Which option this is; a negative status if it may not stand here. */
static int option_name(part_t name, unsigned scheme)
{
    int i = ldr_option_find(name.text, name.length);
    const char *near;
    char where[128];

    if (i >= 0 && (ldr_option_table[i].where & schemes[scheme].where) != 0) {
        return i;
    }
    if (i >= 0) {
        ldr_where_text(ldr_option_table[i].where, where, sizeof(where));
        return ldr_fail(LARDER_E_INVALID,
                        "option %s has no meaning in %s URLs; it is for %s",
                        ldr_option_table[i].name, schemes[scheme].prefix,
                        where);
    }
    near = ldr_option_nearest(name.text, name.length, schemes[scheme].where);
    return ldr_fail(LARDER_E_INVALID,
                    "unknown option '%.*s'%s%s%s; `larder options` lists them",
                    SHOW(name), near != NULL ? "; did you mean " : "",
                    near != NULL ? near : "", near != NULL ? "?" : "");
}

static larder_status_t parse_option(ldr_options_t *o, part_t p, seen_t *seen_p)
{
    char value[LDR_OPTION_TEXT];
    bool has_value, is_text;
    part_t rest = p;
    part_t name = part_cut(&rest, '=', &has_value);
    larder_status_t st;
    int i;

    if (name.length == 0 || !has_value) {
        return ldr_fail(LARDER_E_INVALID, "option '%.*s': write name=value",
                        SHOW(p));
    }
    i = option_name(name, (unsigned)o->scheme);
    if (i < 0) {
        return (larder_status_t)i;
    }
    is_text = ldr_option_table[i].kind[0] == 'T';
    if (rest.length == 0 && !is_text) {
        return ldr_fail(LARDER_E_INVALID, "option '%.*s': write name=value",
                        SHOW(p));
    }
    if ((*seen_p >> i & 1) != 0) {
        return ldr_fail(LARDER_E_INVALID, "option %s is given twice",
                        ldr_option_table[i].name);
    }
    *seen_p |= (seen_t)1 << i;
    st = part_decode(rest, "value", value,
                     is_text ? sizeof(value) : (size_t)NUMBER_MAX);
    return st == LARDER_OK ? ldr_option_set(o, (size_t)i, value) : st;
}

static larder_status_t parse_scheme(const char *url, ldr_options_t *o,
                                    part_t *rest_p)
{
    for (int i = 0; url != NULL && i <= LDR_SCHEME_TCP; i++) {
        size_t length = strlen(schemes[i].prefix);

        if (strncmp(url, schemes[i].prefix, length) == 0) {
            o->scheme = i;
            rest_p->text = url + length;
            rest_p->length = strlen(url + length);
            return LARDER_OK;
        }
    }
    return ldr_fail(LARDER_E_INVALID,
                    "URL '%.*s': write %s, %s or %s, then [?name=value&...]",
                    SHOWN_MAX, url != NULL ? url : "(null)", schemes[0].shape,
                    schemes[1].shape, schemes[2].shape);
}

larder_status_t ldr_options_parse(const char *url, ldr_options_t *o)
{
    static larder_status_t (*const parse[])(ldr_options_t *, part_t) = {
        [LDR_SCHEME_EMBED] = parse_dirs,
        [LDR_SCHEME_UNIX] = parse_path,
        [LDR_SCHEME_TCP] = parse_hosts,
    };
    ldr_options_t parsed;
    part_t rest = {0}, address;
    seen_t seen = 0;
    bool more;
    larder_status_t st;

    ldr_options_default(&parsed);
    st = parse_scheme(url, &parsed, &rest);
    if (st != LARDER_OK) {
        return st;
    }
    address = part_cut(&rest, '?', &more);
    st = parse[parsed.scheme](&parsed, address);
    while (more && st == LARDER_OK) {
        st = parse_option(&parsed, part_cut(&rest, '&', &more), &seen);
    }
    if (st == LARDER_OK) {
        *o = parsed;
    }
    return st;
}
