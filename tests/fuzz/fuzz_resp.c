/*
 * What a Valkey server may answer, any bytes, in pieces of any size. The first
 * byte says what was asked, the second how the pieces are cut. Nothing outside
 * of the caller's memory is touched, and what is accepted fits the question.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tier/shared/valkey.h"

#define ROOM 64u
#define GUARD 0xa5

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

typedef struct source {
    const uint8_t *data;
    size_t bytes, piece;
} source_t;

static void require(int ok)
{
    if (!ok) {
        abort();
    }
}

static ssize_t fill(void *arg, const struct iovec *iov, unsigned count)
{
    source_t *s = arg;
    size_t left = s->piece < s->bytes ? s->piece : s->bytes, done = 0;

    if (s->bytes == 0) {
        return -ECONNRESET;
    }
    for (unsigned i = 0; i < count && left > 0; i++) {
        size_t step = iov[i].iov_len < left ? iov[i].iov_len : left;
        if (step > 0) {
            memcpy(iov[i].iov_base, s->data, step);
        }
        s->data += step;
        s->bytes -= step;
        left -= step;
        done += step;
    }
    require(done > 0); /* it was asked for nothing */
    return (ssize_t)done;
}

static void check_range(ldr_resp_t *r)
{
    uint8_t room[ROOM + 2];
    struct iovec iov[] = {{room + 1, 3}, {NULL, 0}, {room + 4, ROOM - 3}};
    uint64_t got = 0;

    memset(room, GUARD, sizeof(room));
    if (ldr_resp_range(r, iov, 3, ROOM, &got) == 0) {
        require(got <= ROOM);
        for (size_t i = 1 + got; i < sizeof(room); i++) {
            require(room[i] == GUARD);
        }
    }
    require(room[0] == GUARD && room[ROOM + 1] == GUARD);
}

static void check_names(ldr_resp_t *r)
{
    static ldr_valkey_name_t names[LDR_VALKEY_PAGE];
    unsigned count = 0;

    if (ldr_resp_names(r, "t/", "t/b", names, LDR_VALKEY_PAGE, &count) == 0) {
        require(count <= LDR_VALKEY_PAGE);
        for (unsigned i = 0; i < count; i++) {
            require(ldr_object_name_ok(names[i]));
            require(strncmp(names[i], "t/", 2) == 0);
            require(strcmp(i > 0 ? names[i - 1] : "t/b", names[i]) < 0);
        }
    }
}

static void check_server(void *arg, const ldr_valkey_range_t *range)
{
    (void)arg;
    require(range->from <= range->to && range->to < LDR_VALKEY_SLOTS);
    require(strlen(range->address.host) < sizeof(range->address.host));
    require(strlen(range->address.port) < sizeof(range->address.port));
}

static void check_line(const uint8_t *data, size_t bytes)
{
    ldr_resp_item_t item;
    uint8_t *exact = malloc(bytes > 0 ? bytes : 1);

    require(exact != NULL);
    memcpy(exact, data, bytes);
    if (ldr_resp_line(exact, bytes, &item)) {
        require(strchr("+-:$*", item.kind) != NULL);
        require(strlen(item.text) == item.length);
        require(ldr_resp_errno(item.text) < 0);
    }
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    source_t source;
    int64_t number[2] = {0};
    static ldr_resp_t r;

    if (bytes < 2) {
        return 0;
    }
    source = (source_t){data + 2, bytes - 2, 1u + data[1]};
    memset(&r, 0, sizeof(r));
    r.fill = fill;
    r.arg = &source;
    ldr_resp_begin(&r);
    switch (data[0] % 7) {
    case 0:
        check_range(&r);
        break;
    case 1:
        check_names(&r);
        break;
    case 2:
        (void)ldr_resp_exec(&r, number);
        break;
    case 3:
        if (ldr_resp_number(&r, &number[0]) == 0) {
            require(number[0] >= 0);
        }
        break;
    case 4:
        (void)ldr_resp_word(&r, "OK");
        break;
    case 5:
        (void)ldr_resp_slots(&r, check_server, NULL);
        break;
    default:
        check_line(data + 2, bytes - 2);
    }
    require(r.error <= 0 && strlen(r.text) < sizeof(r.text));
    return 0;
}
