/* What S3 servers say: pages of listings, errors, ranges. Pure functions. */
#include <errno.h>
#include <string.h>

#include "tier/shared/params.h"
#include "tier/shared/s3.h"

#define DEPTH_MAX 8u

/* ---- XML ---- */

typedef struct xml_name {
    const char *at;
    size_t bytes;
} xml_name_t;

typedef struct xml {
    const char *at, *end;
    xml_name_t open[DEPTH_MAX];
    unsigned depth;
    const char *text; /* where that of the innermost begins */
    bool leaf;        /* the innermost had no element yet */
    bool done;        /* the outermost has ended */
} xml_t;

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '-' || c == ':' ||
           c == '.';
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static xml_name_t take_name(xml_t *x)
{
    xml_name_t name = {x->at, 0};

    while (x->at < x->end && is_name(*x->at)) {
        x->at++;
    }
    name.bytes = (size_t)(x->at - name.at);
    return name;
}

/* Up to and with '>'; *empty_p: "/>". Attributes' values may hold anything but
 * their quote and '<'. */
static bool skip_to_end(xml_t *x, bool *empty_p)
{
    char quote = '\0';

    *empty_p = false;
    for (; x->at < x->end; x->at++) {
        char c = *x->at;
        if (c == '<') {
            return false;
        }
        if (quote != '\0') {
            quote = c == quote ? '\0' : quote;
        } else if (c == '"' || c == '\'') {
            quote = c;
        } else if (c == '>') {
            *empty_p = x->at[-1] == '/';
            x->at++;
            return true;
        }
    }
    return false;
}

static bool tell(const xml_t *x, const char *text_end,
                 bool (*fn)(void *arg, const ldr_xml_item_t *item), void *arg)
{
    xml_name_t name = x->open[x->depth - 1];
    xml_name_t parent =
        x->depth > 1 ? x->open[x->depth - 2] : (xml_name_t){"", 0};
    const ldr_xml_item_t item = {
        .name = name.at,
        .name_bytes = name.bytes,
        .parent = parent.at,
        .parent_bytes = parent.bytes,
        .text = x->leaf ? x->text : "",
        .text_bytes = x->leaf ? (size_t)(text_end - x->text) : 0,
        .leaf = x->leaf,
    };

    return fn(arg, &item);
}

/* x->at is behind the '<'. */
static bool take_tag(xml_t *x,
                     bool (*fn)(void *arg, const ldr_xml_item_t *item),
                     void *arg)
{
    const char *before = x->at - 1;
    bool closing = x->at < x->end && *x->at == '/', empty;

    x->at += closing;
    xml_name_t name = take_name(x);
    if (name.bytes == 0 || x->done || !skip_to_end(x, &empty)) {
        return false;
    }
    if (!closing) {
        if (x->depth == DEPTH_MAX) {
            return false;
        }
        x->open[x->depth++] = name;
        x->leaf = true;
        x->text = x->at;
        if (!empty) {
            return true;
        }
        before = x->at;
    } else if (empty || x->depth == 0 ||
               x->open[x->depth - 1].bytes != name.bytes ||
               memcmp(x->open[x->depth - 1].at, name.at, name.bytes) != 0) {
        return false;
    }
    if (!tell(x, before, fn, arg)) {
        return false;
    }
    x->depth--;
    x->leaf = false;
    x->done = x->depth == 0;
    return true;
}

bool ldr_xml_scan(const char *text, size_t bytes,
                  bool (*fn)(void *arg, const ldr_xml_item_t *item), void *arg)
{
    xml_t x = {.at = text, .end = text + bytes};
    bool empty;

    while (x.at < x.end && is_space(*x.at)) {
        x.at++;
    }
    if (x.end - x.at > 5 && memcmp(x.at, "<?xml", 5) == 0) {
        x.at++;
        if (!skip_to_end(&x, &empty) || x.at[-2] != '?') {
            return false;
        }
    }
    while (x.at < x.end) {
        char c = *x.at++;
        if (c == '<') {
            if (!take_tag(&x, fn, arg)) {
                return false;
            }
        } else if (c == '\0' || (x.depth == 0 && !is_space(c))) {
            return false;
        }
    }
    return x.done;
}

/* One that stands for a character of ASCII: how long it is; 0: none. */
static size_t escape_of(const char *text, size_t bytes, char *c)
{
    static const struct {
        const char *text;
        char c;
    } names[] = {
        {"&amp;", '&'},  {"&lt;", '<'},    {"&gt;", '>'},
        {"&quot;", '"'}, {"&apos;", '\''},
    };
    unsigned value = 0;
    size_t i = 2;

    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        size_t length = strlen(names[n].text);
        if (bytes >= length && memcmp(text, names[n].text, length) == 0) {
            *c = names[n].c;
            return length;
        }
    }
    if (bytes < 4 || text[1] != '#') {
        return 0;
    }
    unsigned base = text[2] == 'x' ? 16 : 10;
    i += base == 16;
    for (; i < bytes && i < 7 && text[i] != ';'; i++) {
        unsigned digit = (unsigned)ldr_hex_digit(text[i]);
        if (digit >= base) {
            return 0;
        }
        value = value * base + digit;
    }
    if (i == bytes || text[i] != ';' || value == 0 || value > 126) {
        return 0;
    }
    *c = (char)value;
    return i + 1;
}

bool ldr_xml_unescape(const char *text, size_t bytes, char *to, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; n++) {
        char c = text[i];
        size_t step = 1;
        if (c == '&') {
            step = escape_of(text + i, bytes - i, &c);
        }
        if (step == 0 || n + 1 >= size) {
            return false;
        }
        to[n] = c;
        i += step;
    }
    if (size == 0) {
        return false;
    }
    to[n] = '\0';
    return true;
}

/* ---- pages ---- */

static bool is(const char *at, size_t bytes, const char *word)
{
    return strlen(word) == bytes && memcmp(at, word, bytes) == 0;
}

static bool number_of(const char *at, size_t bytes, uint64_t *value_p)
{
    uint64_t value = 0;

    if (bytes == 0 || bytes > 18) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] < '0' || at[i] > '9') {
            return false;
        }
        value = value * 10 + (uint64_t)(at[i] - '0');
    }
    *value_p = value;
    return true;
}

typedef struct listing {
    ldr_s3_page_t *page;
    const char *key; /* of the object under way; NULL: none yet */
    size_t key_bytes;
    uint64_t bytes;
    bool has_size;
    bool whole, said; /* it is a listing, and says whether there is more */
} listing_t;

static bool listing_field(listing_t *l, const ldr_xml_item_t *item)
{
    if (is(item->name, item->name_bytes, "IsTruncated")) {
        l->said = true;
        l->page->truncated = is(item->text, item->text_bytes, "true");
        return l->page->truncated || is(item->text, item->text_bytes, "false");
    }
    if (is(item->name, item->name_bytes, "NextContinuationToken")) {
        return ldr_xml_unescape(item->text, item->text_bytes, l->page->token,
                                sizeof(l->page->token));
    }
    if (is(item->name, item->name_bytes, "Contents")) {
        if (l->key == NULL || !l->has_size) {
            return false;
        }
        /* What needs escapes is nobody's of ours. */
        if (l->page->answer == 0 && memchr(l->key, '&', l->key_bytes) == NULL) {
            l->page->answer =
                l->page->fn(l->page->arg, l->key, l->key_bytes, l->bytes);
        }
        l->key = NULL;
        l->has_size = false;
    }
    return true;
}

static bool listing_item(void *arg, const ldr_xml_item_t *item)
{
    listing_t *l = arg;

    if (item->parent_bytes == 0) {
        l->whole = is(item->name, item->name_bytes, "ListBucketResult");
        return l->whole;
    }
    if (is(item->parent, item->parent_bytes, "ListBucketResult")) {
        return listing_field(l, item);
    }
    if (!is(item->parent, item->parent_bytes, "Contents")) {
        return true;
    }
    if (is(item->name, item->name_bytes, "Key")) {
        l->key = item->text;
        l->key_bytes = item->text_bytes;
        return item->leaf;
    }
    if (is(item->name, item->name_bytes, "Size")) {
        l->has_size = number_of(item->text, item->text_bytes, &l->bytes);
        return l->has_size;
    }
    return true;
}

bool ldr_s3_page_parse(const char *text, size_t bytes, ldr_s3_page_t *page)
{
    listing_t l = {.page = page};

    page->answer = 0;
    page->truncated = false;
    page->token[0] = '\0';
    return ldr_xml_scan(text, bytes, listing_item, &l) && l.whole && l.said &&
           (!page->truncated || page->token[0] != '\0');
}

/* ---- errors ---- */

typedef struct error_code {
    char *code;
    size_t size;
} error_code_t;

static bool error_item(void *arg, const ldr_xml_item_t *item)
{
    error_code_t *e = arg;

    if (is(item->parent, item->parent_bytes, "Error") &&
        is(item->name, item->name_bytes, "Code") &&
        item->text_bytes < e->size) {
        for (size_t i = 0; i < item->text_bytes; i++) {
            if (!is_name(item->text[i])) {
                return false;
            }
        }
        memcpy(e->code, item->text, item->text_bytes);
        e->code[item->text_bytes] = '\0';
        return false; /* no need to look further */
    }
    return true;
}

void ldr_s3_error_code(const char *text, size_t bytes, char *code, size_t size)
{
    error_code_t e = {code, size};

    code[0] = '\0';
    (void)ldr_xml_scan(text, bytes, error_item, &e);
}

int ldr_s3_errno(long status, const char *code)
{
    static const struct {
        const char *code;
        int error;
    } codes[] = {
        {"NoSuchKey", ENOENT},
        {"NoSuchBucket", ENODEV},
        {"InvalidBucketName", ENODEV},
        {"PreconditionFailed", EEXIST},
        {"ConditionalRequestConflict", EBUSY},
        {"OperationAborted", EBUSY},
        {"SlowDown", EBUSY},
        {"ServiceUnavailable", EBUSY},
        {"Busy", EBUSY},
        {"InvalidRange", ENODATA},
        {"QuotaExceeded", ENOSPC},
        {"XMinioStorageFull", ENOSPC},
        {"XMinioAdminBucketQuotaExceeded", ENOSPC},
        {"EntityTooLarge", EFBIG},
        {"NotImplemented", ENOTSUP},
        {"PermanentRedirect", ENOTSUP},
        {"TemporaryRedirect", ENOTSUP},
        {"RequestTimeout", ETIMEDOUT},
    };
    static const struct {
        long status;
        int error;
    } statuses[] = {
        {404, ENOENT},  {412, EEXIST},  {401, EACCES},    {403, EACCES},
        {416, ENODATA}, {409, EBUSY},   {429, EBUSY},     {503, EBUSY},
        {507, ENOSPC},  {501, ENOTSUP}, {413, EFBIG},     {405, EROFS},
        {301, ENOTSUP}, {307, ENOTSUP}, {408, ETIMEDOUT}, {504, ETIMEDOUT},
    };

    if (status >= 200 && status < 300) {
        return 0;
    }
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        if (strcmp(codes[i].code, code) == 0) {
            return -codes[i].error;
        }
    }
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        if (statuses[i].status == status) {
            return -statuses[i].error;
        }
    }
    return -EIO;
}

/* ---- ranges ---- */

bool ldr_s3_content_range(const char *text, size_t bytes, uint64_t *first_p,
                          uint64_t *last_p)
{
    const char *end = text + bytes;

    if (bytes < 6 || memcmp(text, "bytes ", 6) != 0) {
        return false;
    }
    text += 6;
    const char *dash = memchr(text, '-', (size_t)(end - text));
    const char *slash = memchr(text, '/', (size_t)(end - text));
    return dash != NULL && slash != NULL && dash < slash &&
           number_of(text, (size_t)(dash - text), first_p) &&
           number_of(dash + 1, (size_t)(slash - dash - 1), last_p) &&
           *first_p <= *last_p;
}
