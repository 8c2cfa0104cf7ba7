/* The values that options and the configuration have, from text. */
#include <arpa/inet.h>
#include <limits.h>
#include <string.h>

#include "base/options.h"
#include "base/text.h"

#define NAME_MAX_BYTES 32 /* longer names are near to no option */

/* Decimal digits, at least one, of a number below 2^64. Gives what follows
 * them, or NULL. */
static const char *parse_digits(const char *text, uint64_t *value_p)
{
    uint64_t value = 0;

    if (*text < '0' || *text > '9') {
        return NULL;
    }
    for (; *text >= '0' && *text <= '9'; text++) {
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value)) {
            return NULL;
        }
    }
    *value_p = value;
    return text;
}

bool ldr_parse_uint(const char *text, uint64_t *value_p)
{
    uint64_t value;

    text = parse_digits(text, &value);
    if (text == NULL || *text != '\0') {
        return false;
    }
    *value_p = value;
    return true;
}

bool ldr_parse_size(const char *text, uint64_t *bytes_p)
{
    static const char units[] = "KMGT";
    uint64_t value;
    unsigned shift = 0;

    text = text != NULL ? parse_digits(text, &value) : NULL;
    if (text == NULL) {
        return false;
    }
    if (*text != '\0') {
        const char *unit = strchr(units, *text++);
        if (unit == NULL) {
            return false;
        }
        shift = 10 * (unsigned)(unit - units + 1);
    }
    if (*text != '\0' || value > UINT64_MAX >> shift) {
        return false;
    }
    *bytes_p = value << shift;
    return true;
}

size_t ldr_size_text(uint64_t bytes, char *text, size_t size)
{
    static const char units[] = "KMGT";
    ldr_text_t out = ldr_text(text, size);
    unsigned unit = 0;

    while (bytes != 0 && bytes % 1024 == 0 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    ldr_text_u64(&out, bytes);
    if (unit > 0) {
        ldr_text_char(&out, units[unit - 1]);
    }
    return out.length;
}

/* ---- addresses ---- */

static bool host_ok(const char *host, bool brackets)
{
    static const char name[] = "abcdefghijklmnopqrstuvwxyz"
                               "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    struct in6_addr six;
    char plain[LDR_HOST_MAX];

    if (!brackets) {
        return host[0] != '\0' && strspn(host, name) == strlen(host);
    }
    /* An interface may follow the address, as in fe80::1%eth0. */
    size_t length = strcspn(host, "%");
    memcpy(plain, host, length);
    plain[length] = '\0';
    return inet_pton(AF_INET6, plain, &six) == 1 &&
           (host[length] == '\0' || host_ok(host + length + 1, false));
}

bool ldr_parse_address(const char *text, size_t length, char host[LDR_HOST_MAX],
                       uint16_t *port_p)
{
    bool brackets = length > 0 && text[0] == '[';
    size_t colon = length, start = brackets ? 1 : 0, host_bytes;
    char digits[6];
    uint64_t port;

    while (colon > 0 && text[colon - 1] != ':') {
        colon--;
    }
    /* colon: just behind the last one */
    if (colon < 2 || length - colon == 0 || length - colon >= sizeof(digits)) {
        return false;
    }
    memcpy(digits, text + colon, length - colon);
    digits[length - colon] = '\0';
    if (brackets && text[colon - 2] != ']') {
        return false;
    }
    host_bytes = colon - 1 - start - (brackets ? 1 : 0);
    if ((brackets && colon < 3) || host_bytes >= LDR_HOST_MAX ||
        memchr(text, '\0', colon) != NULL || !ldr_parse_uint(digits, &port) ||
        port > UINT16_MAX) {
        return false;
    }
    memcpy(host, text + start, host_bytes);
    host[host_bytes] = '\0';
    if (!host_ok(host, brackets)) {
        return false;
    }
    *port_p = (uint16_t)port;
    return true;
}

bool ldr_addresses_ok(const char *list, unsigned max)
{
    const char *at = list;
    char host[LDR_HOST_MAX];
    unsigned count = 0;
    uint16_t port;

    for (;;) {
        size_t length = strcspn(at, ",");

        if (count++ == max || !ldr_parse_address(at, length, host, &port)) {
            return false;
        }
        for (const char *before = list; before < at;
             before += strcspn(before, ",") + 1) {
            if (strcspn(before, ",") == length &&
                memcmp(before, at, length) == 0) {
                return false;
            }
        }
        if (at[length] == '\0') {
            return true;
        }
        at += length + 1;
    }
}

bool ldr_host_is_loopback(const char *host)
{
    struct in_addr four;
    struct in6_addr six;

    if (inet_pton(AF_INET, host, &four) == 1) {
        return ntohl(four.s_addr) >> 24 == 127;
    }
    if (inet_pton(AF_INET6, host, &six) == 1) {
        return IN6_IS_ADDR_LOOPBACK(&six);
    }
    return strcmp(host, "localhost") == 0;
}

/* ---- names and lists ---- */

bool ldr_tenant_name_ok(const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyz"
                               "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strlen(name);

    return length >= 1 && length <= 63 && strspn(name, good) == length;
}

/* Numbers up to max with commas between. With fn it is told each of them. */
static bool each_number(const char *list, uint64_t max,
                        void (*fn)(void *arg, uint64_t value), void *arg)
{
    const char *at = list;
    uint64_t value;

    while ((at = parse_digits(at, &value)) != NULL && value <= max) {
        if (fn != NULL) {
            fn(arg, value);
        }
        if (*at == '\0') {
            return true;
        }
        if (*at++ != ',') {
            return false;
        }
    }
    return false;
}

/* The greatest uid is what the kernel says for "none". */
#define UID_LAST ((uint64_t)UINT32_MAX - 1)

bool ldr_uids_ok(const char *list)
{
    return list[0] == '\0' || strcmp(list, "any") == 0 ||
           each_number(list, UID_LAST, NULL, NULL);
}

typedef struct wanted {
    uint64_t uid;
    bool found;
} wanted_t;

static void uid_compare(void *arg, uint64_t value)
{
    wanted_t *wanted = arg;

    wanted->found = wanted->found || value == wanted->uid;
}

bool ldr_uids_has(const char *list, uint32_t uid)
{
    wanted_t wanted = {uid, false};

    if (uid > UID_LAST) {
        return false;
    }
    return strcmp(list, "any") == 0 ||
           (each_number(list, UID_LAST, uid_compare, &wanted) && wanted.found);
}

static void numa_add(void *arg, uint64_t value)
{
    *(uint64_t *)arg |= (uint64_t)1 << value;
}

bool ldr_parse_numa(const char *list, uint64_t *nodes_p)
{
    uint64_t nodes = 0;

    if (list[0] != '\0' && !each_number(list, 63, numa_add, &nodes)) {
        return false;
    }
    *nodes_p = nodes;
    return true;
}

/* ---- the nearest name ---- */

static char fold(char c)
{
    return c == '-' ? '_' : c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

unsigned ldr_text_distance(const char *name, const char *text, size_t length)
{
    /* Rows of the table of distances between all beginnings of both. */
    unsigned rows[3][NAME_MAX_BYTES + 1];
    size_t n = strlen(name);
    unsigned allowed = n < 4 ? 1 : n < 8 ? 2 : 3;

    if (n > NAME_MAX_BYTES || length > NAME_MAX_BYTES) {
        return UINT_MAX;
    }
    for (size_t j = 0; j <= n; j++) {
        rows[0][j] = (unsigned)j;
    }
    for (size_t i = 1; i <= length; i++) {
        unsigned *row = rows[i % 3], *above = rows[(i - 1) % 3];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            bool same = fold(text[i - 1]) == name[j - 1];
            unsigned best = least(above[j], row[j - 1]) + 1;

            best = least(best, above[j - 1] + (same ? 0 : 1));
            if (i > 1 && j > 1 && fold(text[i - 1]) == name[j - 2] &&
                fold(text[i - 2]) == name[j - 1]) {
                best = least(best, rows[(i - 2) % 3][j - 2] + 1);
            }
            row[j] = best;
        }
    }
    unsigned edits = rows[length % 3][n];
    return edits <= allowed ? edits : UINT_MAX;
}
