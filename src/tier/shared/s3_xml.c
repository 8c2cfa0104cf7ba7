/* What S3 servers say: pages of listings, errors, ranges. Pure functions. */
#include <errno.h>
#include <string.h>

#include "base/text.h"
#include "tier/shared/s3.h"

/* A tag and the text behind it, up to the next one. */
typedef struct tag {
    const char *name; /* a closing one begins with '/' */
    size_t bytes;
    const char *text;
    size_t text_bytes;
    bool empty; /* "<name/>" */
} tag_t;

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '-' || c == ':' ||
           c == '.';
}

static bool is(const char *at, size_t bytes, const char *word)
{
    return strlen(word) == bytes && memcmp(at, word, bytes) == 0;
}

/* The next tag from *at_p on. False: there is none. */
static bool next_tag(const char **at_p, const char *end, tag_t *tag)
{
    const char *open = memchr(*at_p, '<', (size_t)(end - *at_p));
    const char *close =
        open != NULL ? memchr(open, '>', (size_t)(end - open)) : NULL;

    if (close == NULL) {
        return false;
    }
    const char *at = open + 1 + (open[1] == '/' || open[1] == '?');
    while (is_name(*at)) {
        at++;
    }
    tag->name = open + 1;
    tag->bytes = (size_t)(at - tag->name);
    tag->empty = close[-1] == '/';
    tag->text = close + 1;
    open = memchr(tag->text, '<', (size_t)(end - tag->text));
    *at_p = open != NULL ? open : end;
    tag->text_bytes = (size_t)(*at_p - tag->text);
    return tag->bytes > 0; /* no comment, CDATA or DOCTYPE */
}

/* Whether nothing but text stands in it: its end is next, and is taken. */
static bool take_leaf(const char **at_p, const char *end, tag_t *tag)
{
    tag_t close;

    if (tag->empty) {
        tag->text_bytes = 0;
        return true;
    }
    return next_tag(at_p, end, &close) && close.bytes == tag->bytes + 1 &&
           close.name[0] == '/' &&
           memcmp(close.name + 1, tag->name, tag->bytes) == 0;
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
    tag_t key; /* of the object under way; no name: none yet */
    uint64_t bytes;
    bool has_size, said; /* the page says whether there is more */
} listing_t;

/* False: it is not as it must be. */
static bool take_field(listing_t *l, const tag_t *tag)
{
    ldr_s3_page_t *page = l->page;

    if (is(tag->name, tag->bytes, "Key")) {
        l->key = *tag;
        return true;
    }
    if (is(tag->name, tag->bytes, "Size")) {
        l->has_size = number_of(tag->text, tag->text_bytes, &l->bytes);
        return l->has_size;
    }
    if (is(tag->name, tag->bytes, "IsTruncated")) {
        l->said = true;
        page->truncated = is(tag->text, tag->text_bytes, "true");
        return page->truncated || is(tag->text, tag->text_bytes, "false");
    }
    return ldr_xml_unescape(tag->text, tag->text_bytes, page->token,
                            sizeof(page->token));
}

static bool take_object(listing_t *l)
{
    ldr_s3_page_t *page = l->page;
    bool whole = l->key.name != NULL && l->has_size;

    /* What needs escapes is nobody's of ours. */
    if (whole && page->answer == 0 &&
        memchr(l->key.text, '&', l->key.text_bytes) == NULL) {
        page->answer =
            page->fn(page->arg, l->key.text, l->key.text_bytes, l->bytes);
    }
    l->key.name = NULL;
    l->has_size = false;
    return whole;
}

bool ldr_s3_page_parse(const char *text, size_t bytes, ldr_s3_page_t *page)
{
    static const char *const fields[] = {"Key", "Size", "IsTruncated",
                                         "NextContinuationToken"};
    const char *at = text, *end = text + bytes;
    listing_t l = {.page = page};
    bool begun = false, ended = false, ok = true;
    tag_t tag;

    page->answer = 0;
    page->truncated = false;
    page->token[0] = '\0';
    while (ok && next_tag(&at, end, &tag)) {
        bool field = false;

        for (unsigned i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
            field = field || is(tag.name, tag.bytes, fields[i]);
        }
        if (!begun) {
            begun = is(tag.name, tag.bytes, "ListBucketResult");
            ok = begun || is(tag.name, tag.bytes, "?xml");
        } else if (is(tag.name, tag.bytes, "/Contents")) {
            ok = take_object(&l);
        } else if (field) {
            ok = take_leaf(&at, end, &tag) && take_field(&l, &tag);
        }
        ended = is(tag.name, tag.bytes, "/ListBucketResult");
    }
    return ok && at == end && ended && l.said &&
           (!page->truncated || page->token[0] != '\0');
}

/* ---- errors ---- */

void ldr_s3_error_code(const char *text, size_t bytes, char *code, size_t size)
{
    const char *at = text, *end = text + bytes;
    size_t n = 0;
    tag_t tag;

    code[0] = '\0';
    while (next_tag(&at, end, &tag)) {
        if (is(tag.name, tag.bytes, "Code") && tag.text_bytes < size) {
            while (n < tag.text_bytes && is_name(tag.text[n])) {
                n++;
            }
            if (n == tag.text_bytes) {
                memcpy(code, tag.text, n);
                code[n] = '\0';
            }
            return;
        }
    }
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
