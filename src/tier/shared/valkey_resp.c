/* RESP: questions are composed, answers read. No call to the kernel here. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/iov.h"
#include "tier/shared/valkey.h"

/* ---- lines ---- */

/* Decimal digits, a minus before them if it is allowed; no zeros ahead. */
static bool number_of(const uint8_t *at, size_t bytes, int64_t *value_p)
{
    bool minus = bytes > 0 && at[0] == '-';
    uint64_t value = 0;

    if (minus) {
        at++;
        bytes--;
    }
    if (bytes == 0 || bytes > 18 || (at[0] == '0' && (bytes > 1 || minus))) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] < '0' || at[i] > '9') {
            return false;
        }
        value = value * 10 + (uint64_t)(at[i] - '0');
    }
    *value_p = minus ? -(int64_t)value : (int64_t)value;
    return true;
}

bool ldr_resp_line(const uint8_t *line, size_t bytes, ldr_resp_item_t *item)
{
    if (bytes == 0 || bytes > LDR_RESP_LINE) {
        return false;
    }
    item->kind = (char)line[0];
    item->value = 0;
    item->length = 0;
    item->text[0] = '\0';
    switch (line[0]) {
    case '+':
    case '-':
        /* For messages: nothing that could end or hide a line. */
        for (size_t i = 1; i < bytes; i++) {
            item->text[i - 1] =
                line[i] >= ' ' && line[i] <= '~' ? (char)line[i] : '?';
        }
        item->length = bytes - 1;
        item->text[bytes - 1] = '\0';
        return true;
    case ':':
        return number_of(line + 1, bytes - 1, &item->value);
    case '$':
    case '*':
        return number_of(line + 1, bytes - 1, &item->value) &&
               item->value >= -1;
    default:
        return false;
    }
}

int ldr_resp_errno(const char *text)
{
    static const struct {
        const char *word;
        int error;
    } table[] = {
        {"OOM", ENOSPC},        {"READONLY", EROFS},   {"MISCONF", EROFS},
        {"NOREPLICAS", EROFS},  {"NOAUTH", EACCES},    {"WRONGPASS", EACCES},
        {"NOPERM", EACCES},     {"DENIED", EACCES},    {"LOADING", EBUSY},
        {"BUSY", EBUSY},        {"MASTERDOWN", EBUSY}, {"TRYAGAIN", EBUSY},
        {"CLUSTERDOWN", EBUSY}, {"MOVED", ENOTSUP},    {"ASK", ENOTSUP},
        {"CROSSSLOT", ENOTSUP},
    };
    size_t word = strcspn(text, " ");

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strlen(table[i].word) == word &&
            memcmp(text, table[i].word, word) == 0) {
            return -table[i].error;
        }
    }
    if (strncmp(text, "ERR max number of clients", 25) == 0) {
        return -EBUSY;
    }
    return -EIO;
}

/* ---- reading ---- */

static int proto(const char *what)
{
    ldr_fail(LARDER_E_IO, "the server does not speak RESP as it should: %s",
             what);
    return -EPROTO;
}

void ldr_resp_begin(ldr_resp_t *r)
{
    r->error = 0;
    r->text[0] = '\0';
}

/* More into the buffer, whose bytes are moved to its beginning. */
static int fill_buffer(ldr_resp_t *r)
{
    if (r->at > 0) {
        memmove(r->buffer, r->buffer + r->at, r->end - r->at);
        r->end -= r->at;
        r->at = 0;
    }
    struct iovec iov = {r->buffer + r->end, sizeof(r->buffer) - r->end};
    ssize_t got = r->fill(r->arg, &iov, 1);
    if (got < 0) {
        return (int)got;
    }
    r->end += (size_t)got;
    return 0;
}

int ldr_resp_next(ldr_resp_t *r, ldr_resp_item_t *item)
{
    size_t looked = 0;

    for (;;) {
        const uint8_t *from = r->buffer + r->at;
        size_t have = r->end - r->at;
        const uint8_t *cr = memchr(from + looked, '\r', have - looked);

        if (cr != NULL && (size_t)(cr - from) + 1 < have) {
            size_t bytes = (size_t)(cr - from);
            if (cr[1] != '\n' || !ldr_resp_line(from, bytes, item)) {
                return proto("a line");
            }
            r->at += bytes + 2;
            break;
        }
        looked = cr != NULL ? (size_t)(cr - from) : have;
        if (looked > LDR_RESP_LINE) {
            return proto("a line without end");
        }
        int error = fill_buffer(r);
        if (error != 0) {
            return error;
        }
    }
    if (item->kind == '-' && r->error == 0) {
        size_t bytes = item->length < sizeof(r->text) - 1 ? item->length
                                                          : sizeof(r->text) - 1;
        memcpy(r->text, item->text, bytes);
        r->text[bytes] = '\0';
        r->error = ldr_resp_errno(r->text);
    }
    return 0;
}

static int take_end(ldr_resp_t *r)
{
    while (r->end - r->at < 2) {
        int error = fill_buffer(r);
        if (error != 0) {
            return error;
        }
    }
    if (r->buffer[r->at] != '\r' || r->buffer[r->at + 1] != '\n') {
        return proto("a value's end");
    }
    r->at += 2;
    return 0;
}

int ldr_resp_payload(ldr_resp_t *r, const struct iovec *iov, unsigned count,
                     uint64_t bytes)
{
    ldr_iov_t left = {iov, count, 0};
    struct iovec parts[LDR_IOV_PARTS];
    /* What the buffer has of it already. */
    size_t had = ldr_iov_copy(&left, r->buffer + r->at,
                              (size_t)ldr_min64(bytes, r->end - r->at), true);

    r->at += had;
    bytes -= had;
    while (bytes > 0) {
        unsigned n = ldr_iov_next(&left, bytes, parts, LDR_IOV_PARTS);
        if (n == 0) {
            return proto("a value that is too long");
        }
        ssize_t got = r->fill(r->arg, parts, n);
        if (got < 0) {
            return (int)got;
        }
        bytes -= (uint64_t)got;
        ldr_iov_skip(&left, (size_t)got);
    }
    return take_end(r);
}

/* ---- answers ---- */

int ldr_resp_word(ldr_resp_t *r, const char *word)
{
    ldr_resp_item_t item;
    int error = ldr_resp_next(r, &item);

    if (error != 0 || item.kind == '-') {
        return error;
    }
    return item.kind == '+' && strcmp(item.text, word) == 0
               ? 0
               : proto("another answer");
}

int ldr_resp_number(ldr_resp_t *r, int64_t *value_p)
{
    ldr_resp_item_t item;
    int error = ldr_resp_next(r, &item);

    *value_p = 0;
    if (error != 0 || item.kind == '-') {
        return error;
    }
    *value_p = item.value;
    return item.kind == ':' && item.value >= 0 ? 0 : proto("no number");
}

/* A number, +OK or nil. */
static int exec_item(ldr_resp_t *r, int64_t *number_p)
{
    ldr_resp_item_t item;
    int error = ldr_resp_next(r, &item);

    *number_p = 0;
    if (error != 0 || item.kind == '-') {
        return error;
    }
    if (item.kind == ':') {
        *number_p = item.value;
    } else if (item.kind == '+') {
        *number_p = 1;
    } else if (item.kind != '$' || item.value != -1) {
        return proto("another answer");
    }
    return 0;
}

int ldr_resp_exec(ldr_resp_t *r, int64_t number[2])
{
    ldr_resp_item_t item;
    int error = ldr_resp_word(r, "OK");

    number[0] = number[1] = 0;
    /* Each of the four is answered, whatever became of the one before. */
    for (unsigned i = 0; i < 2 && error == 0; i++) {
        error = ldr_resp_word(r, "QUEUED");
    }
    if (error == 0) {
        error = ldr_resp_next(r, &item);
    }
    if (error != 0 || item.kind == '-') {
        return error; /* r->error is the command's, not EXECABORT */
    }
    if (item.kind != '*' || item.value != 2) {
        return proto("another answer");
    }
    for (unsigned i = 0; i < 2 && error == 0; i++) {
        error = exec_item(r, &number[i]);
    }
    return error;
}

int ldr_resp_range(ldr_resp_t *r, const struct iovec *iov, unsigned count,
                   uint64_t bytes, uint64_t *got_p)
{
    ldr_resp_item_t item;
    int error = ldr_resp_next(r, &item);

    *got_p = 0;
    if (error != 0 || item.kind == '-') {
        return error;
    }
    if (item.kind != '$' || item.value < 0 || (uint64_t)item.value > bytes) {
        return proto("not the range that was asked for");
    }
    *got_p = (uint64_t)item.value;
    return ldr_resp_payload(r, iov, count, *got_p);
}

/* One of a page. */
static int take_name(ldr_resp_t *r, const char *prefix, const char *before,
                     char *name)
{
    ldr_resp_item_t item;
    int error = ldr_resp_next(r, &item);

    if (error != 0) {
        return error;
    }
    if (item.kind != '$' || item.value < 1 ||
        item.value > (int64_t)LDR_OBJECT_NAME_MAX) {
        return proto("no name in its list");
    }
    struct iovec iov = {name, (size_t)item.value};
    error = ldr_resp_payload(r, &iov, 1, (uint64_t)item.value);
    if (error != 0) {
        return error;
    }
    name[item.value] = '\0';
    if (!ldr_object_name_ok(name) || strlen(name) != (size_t)item.value ||
        strncmp(name, prefix, strlen(prefix)) != 0 ||
        (before != NULL && strcmp(name, before) <= 0)) {
        return proto("a name that does not belong in its list");
    }
    return 0;
}

int ldr_resp_names(ldr_resp_t *r, const char *prefix, const char *after,
                   ldr_valkey_name_t *names, unsigned most, unsigned *count_p)
{
    ldr_resp_item_t item;
    int error = ldr_resp_next(r, &item);

    *count_p = 0;
    if (error != 0 || item.kind == '-') {
        return error;
    }
    if (item.kind != '*' || item.value < 0 || item.value > (int64_t)most) {
        return proto("no list");
    }
    for (unsigned i = 0; i < (unsigned)item.value && error == 0; i++) {
        error = take_name(r, prefix, i > 0 ? names[i - 1] : after, names[i]);
    }
    *count_p = error == 0 ? (unsigned)item.value : 0;
    return error;
}

/* ---- a cluster's slots ---- */

#define DEPTH_MAX 4u  /* of lists in lists, in what is passed over */
#define LIST_MAX 1024 /* servers of a range, and what is said of one */

/* One item, whatever it is. */
static int pass_over(ldr_resp_t *r, unsigned depth)
{
    uint8_t text[LDR_RESP_LINE];
    ldr_resp_item_t item;
    int error = ldr_resp_next(r, &item);

    if (error == 0 && item.kind == '$' && item.value >= 0) {
        struct iovec iov = {text, sizeof(text)};
        error = ldr_resp_payload(r, &iov, 1, (uint64_t)item.value);
    } else if (error == 0 && item.kind == '*') {
        if (depth == 0 || item.value > LIST_MAX) {
            return proto("a list that is too long");
        }
        for (int64_t i = 0; i < item.value && error == 0; i++) {
            error = pass_over(r, depth - 1);
        }
    }
    return error;
}

static int take_host(ldr_resp_t *r, char host[LDR_HOST_MAX])
{
    ldr_resp_item_t item;
    int error = ldr_resp_next(r, &item);

    host[0] = '\0';
    if (error != 0 || (item.kind == '$' && item.value == -1)) {
        return error;
    }
    if (item.kind != '$' || item.value >= (int64_t)LDR_HOST_MAX) {
        return proto("no host of a cluster");
    }
    struct iovec iov = {host, (size_t)item.value};
    error = ldr_resp_payload(r, &iov, 1, (uint64_t)item.value);
    host[item.value] = '\0';
    for (int64_t i = 0; i < item.value && error == 0; i++) {
        if (host[i] <= ' ' || host[i] > '~') {
            return proto("no host of a cluster");
        }
    }
    return error;
}

/* A whole number from low to high. */
static int take_number(ldr_resp_t *r, int64_t low, int64_t high,
                       int64_t *value_p)
{
    int error = ldr_resp_number(r, value_p);

    return error != 0 ? error
           : r->error != 0 || *value_p < low || *value_p > high
               ? proto("a number of a cluster")
               : 0;
}

/* The head of a list of so many items or more. */
static int take_list(ldr_resp_t *r, int64_t low, int64_t high, int64_t *count_p)
{
    ldr_resp_item_t item = {0};
    int error = ldr_resp_next(r, &item);

    *count_p = item.value;
    return error != 0 ? error
           : item.kind != '*' || item.value < low || item.value > high
               ? proto("no list of a cluster")
               : 0;
}

static int take_server(ldr_resp_t *r, ldr_address_t *address)
{
    int64_t items, port = 0;
    int error = take_list(r, 2, LIST_MAX, &items);

    error = error != 0 ? error : take_host(r, address->host);
    error = error != 0 ? error : take_number(r, 0, 65535, &port);
    for (int64_t i = 2; i < items && error == 0; i++) {
        error = pass_over(r, DEPTH_MAX);
    }
    snprintf(address->port, sizeof(address->port), "%u", (unsigned)port);
    return error;
}

int ldr_resp_slots(ldr_resp_t *r,
                   void (*fn)(void *arg, const ldr_valkey_range_t *range),
                   void *arg)
{
    ldr_resp_item_t item;
    int error = ldr_resp_next(r, &item);

    if (error != 0 || item.kind == '-') {
        return error;
    }
    if (item.kind != '*' || item.value < 0 ||
        item.value > (int64_t)LDR_VALKEY_SLOTS) {
        return proto("no list of slots");
    }
    for (int64_t i = 0; i < item.value && error == 0; i++) {
        ldr_valkey_range_t range = {0};
        int64_t items = 0, from = 0, to = 0;

        error = take_list(r, 3, LIST_MAX, &items);
        error =
            error != 0 ? error : take_number(r, 0, LDR_VALKEY_SLOTS - 1, &from);
        error = error != 0 ? error
                           : take_number(r, from, LDR_VALKEY_SLOTS - 1, &to);
        range.from = (unsigned)from;
        range.to = (unsigned)to;
        for (; range.replica + 2 < items && error == 0; range.replica++) {
            error = take_server(r, &range.address);
            if (error == 0) {
                fn(arg, &range);
            }
        }
    }
    return error;
}

/* ---- questions ---- */

void ldr_resp_ask(ldr_text_t *t, unsigned args)
{
    ldr_text_add(t, "*%u\r\n", args);
}

void ldr_resp_arg(ldr_text_t *t, const char *arg)
{
    ldr_text_add(t, "$%zu\r\n%s\r\n", strlen(arg), arg);
}

void ldr_resp_command(ldr_text_t *t, ...)
{
    va_list words;
    const char *word;
    unsigned count = 0;

    va_start(words, t);
    while (va_arg(words, const char *) != NULL) {
        count++;
    }
    va_end(words);
    ldr_resp_ask(t, count);
    va_start(words, t);
    while ((word = va_arg(words, const char *)) != NULL) {
        ldr_resp_arg(t, word);
    }
    va_end(words);
}

void ldr_resp_arg_number(ldr_text_t *t, uint64_t value)
{
    char digits[24];
    ldr_text_t text = ldr_text(digits, sizeof(digits));

    ldr_text_u64(&text, value);
    ldr_resp_arg(t, digits);
}

void ldr_resp_arg_head(ldr_text_t *t, uint64_t bytes)
{
    ldr_text_add(t, "$");
    ldr_text_u64(t, bytes);
    ldr_text_add(t, "\r\n");
}
