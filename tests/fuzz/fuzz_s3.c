/*
 * What an S3 server may answer, any bytes: pages of listings, errors, ranges.
 * The first byte says which. The text lies in memory of exactly its size.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tier/shared/s3.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int ok)
{
    if (!ok) {
        abort();
    }
}

typedef struct text {
    const char *at;
    size_t bytes;
    unsigned keys;
} text_t;

/* Keys lie in the text. */
static int key(void *arg, const char *at, size_t bytes, uint64_t size)
{
    text_t *t = arg;

    require(at >= t->at && bytes <= t->bytes &&
            (size_t)(at - t->at) <= t->bytes - bytes);
    require(memchr(at, '<', bytes) == NULL && memchr(at, '&', bytes) == NULL);
    require(size < UINT64_MAX / 2);
    return ++t->keys == 100;
}

static void check_page(const char *text, size_t bytes)
{
    text_t t = {text, bytes, 0};
    ldr_s3_page_t page = {.fn = key, .arg = &t};

    if (ldr_s3_page_parse(text, bytes, &page)) {
        require(memchr(page.token, '\0', sizeof(page.token)) != NULL);
        require(!page.truncated || page.token[0] != '\0');
        require(t.keys <= 100);
    }
}

static void check_error(const char *text, size_t bytes)
{
    char code[32];

    memset(code, 'x', sizeof(code));
    ldr_s3_error_code(text, bytes, code, sizeof(code));
    require(memchr(code, '\0', sizeof(code)) != NULL);
    for (const char *c = code; *c != '\0'; c++) {
        require(*c > ' ' && *c <= '~');
    }
    require(ldr_s3_errno(404, code) < 0);
}

static void check_rest(const char *text, size_t bytes)
{
    uint64_t first = 1, last = 0;
    char to[40];

    if (ldr_s3_content_range(text, bytes, &first, &last)) {
        require(first <= last);
    }
    if (ldr_xml_unescape(text, bytes, to, sizeof(to))) {
        require(memchr(to, '\0', sizeof(to)) != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) {
        return 0;
    }
    char *text = malloc(bytes);
    require(text != NULL);
    memcpy(text, data + 1, bytes - 1);
    switch (data[0] % 3) {
    case 0:
        check_page(text, bytes - 1);
        break;
    case 1:
        check_error(text, bytes - 1);
        break;
    default:
        check_rest(text, bytes - 1);
    }
    free(text);
    return 0;
}
