/*
 * STATS's reply. A head with the numbers of everything, then
 *
 *   counters   of the node or tenant
 *   misses     by cause
 *   disks      each: lengths of two texts, flags, counters, path, reason
 *   shared     the same, none or one: url, reason
 *
 * Counters are told by their places, which base/figures.h gives them.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/figures.h"
#include "wire/wire.h"
#include "wire/wire_int.h"

#define HEAD_BYTES 16u
#define PART_HEAD_BYTES 8u

#define X(place, field, ...) [place] = offsetof(STATS, field),
#define STATS larder_stats_t
static const uint16_t counters[] = {LDR_STATE_STATS_MAP(X)
                                        LDR_EVENT_STATS_MAP(X)};
#undef STATS
#define STATS larder_disk_stats_t
static const uint16_t disk_counters[] = {LDR_DISK_STATS_MAP(X)};
#undef STATS
#define STATS larder_shared_stats_t
static const uint16_t shared_counters[] = {LDR_SHARED_STATS_MAP(X)};
#undef STATS
#undef X

#define LENGTH(array) ((unsigned)(sizeof(array) / sizeof(*(array))))
#define FIELD(type, field) sizeof(((type *)0)->field)

/* A field that is added to a struct and not to its list does not compile. */
#define NOT_COUNTERS 11u /* struct_bytes, disks, shared, client_* */
_Static_assert(sizeof(larder_stats_t) ==
                   (LENGTH(counters) + NOT_COUNTERS) * sizeof(uint64_t) +
                       FIELD(larder_stats_t, misses) +
                       FIELD(larder_stats_t, disk) +
                       FIELD(larder_stats_t, shared_tier),
               "every field is sent, or the client's own");
_Static_assert(sizeof(larder_disk_stats_t) ==
                   LENGTH(disk_counters) * sizeof(uint64_t) +
                       offsetof(larder_disk_stats_t, bytes_max) +
                       FIELD(larder_disk_stats_t, reserved),
               "every field is sent");
_Static_assert(sizeof(larder_shared_stats_t) ==
                   LENGTH(shared_counters) * sizeof(uint64_t) +
                       offsetof(larder_shared_stats_t, objects) +
                       FIELD(larder_shared_stats_t, reserved),
               "every field is sent");
_Static_assert(HEAD_BYTES + sizeof(larder_stats_t) +
                       (LARDER_STATS_DISKS_MAX + 1) * PART_HEAD_BYTES <=
                   LDR_STATS_BYTES_MAX,
               "it fits");

/* ---- writing ---- */

static size_t put_numbers(uint8_t *at, const void *from,
                          const uint16_t *offsets, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        uint64_t value;

        memcpy(&value, (const uint8_t *)from + offsets[i], sizeof(value));
        ldr_put64(at + (size_t)i * 8, value);
    }
    return (size_t)count * 8;
}

/* A disk or the shared tier. */
static size_t put_part(uint8_t *at, const void *from, const uint16_t *offsets,
                       unsigned count, uint32_t flags, const char *name,
                       const char *reason)
{
    size_t name_bytes = strlen(name), reason_bytes = strlen(reason);
    size_t n = PART_HEAD_BYTES;

    ldr_put16(at, (uint16_t)name_bytes);
    ldr_put16(at + 2, (uint16_t)reason_bytes);
    ldr_put32(at + 4, flags);
    n += put_numbers(at + n, from, offsets, count);
    memcpy(at + n, name, name_bytes);
    memcpy(at + n + name_bytes, reason, reason_bytes);
    return n + name_bytes + reason_bytes;
}

size_t ldr_put_stats(uint8_t *at, const larder_stats_t *m)
{
    const larder_shared_stats_t *s = &m->shared_tier;
    size_t n = HEAD_BYTES;

    ldr_put16(at, LENGTH(counters));
    ldr_put16(at + 2, LARDER_CAUSE_COUNT);
    ldr_put16(at + 4, (uint16_t)m->disks);
    ldr_put16(at + 6, LENGTH(disk_counters));
    ldr_put16(at + 8, m->shared != 0);
    ldr_put16(at + 10, LENGTH(shared_counters));
    ldr_put32(at + 12, 0);
    n += put_numbers(at + n, m, counters, LENGTH(counters));
    for (unsigned i = 0; i < LARDER_CAUSE_COUNT; i++, n += 8) {
        ldr_put64(at + n, m->misses[i]);
    }
    for (uint64_t i = 0; i < m->disks; i++) {
        const larder_disk_stats_t *d = &m->disk[i];

        n += put_part(at + n, d, disk_counters, LENGTH(disk_counters),
                      d->on != 0, d->path, d->reason);
    }
    if (m->shared != 0) {
        n +=
            put_part(at + n, s, shared_counters, LENGTH(shared_counters),
                     (uint32_t)(s->on != 0) | (uint32_t)(s->writable != 0) << 1,
                     s->url, s->reason);
    }
    return n;
}

/* ---- reading ---- */

typedef struct body {
    const uint8_t *at;
    size_t left;
} body_t;

/* NULL: there are fewer. */
static const uint8_t *take(body_t *b, size_t bytes)
{
    const uint8_t *at = b->at;

    if (bytes > b->left) {
        return NULL;
    }
    b->at += bytes;
    b->left -= bytes;
    return at;
}

/* Of those that were sent the ones that are known here. */
static bool get_numbers(body_t *b, unsigned sent, void *to,
                        const uint16_t *offsets, unsigned known)
{
    const uint8_t *at = take(b, (size_t)sent * 8);

    for (unsigned i = 0; at != NULL && i < sent && i < known; i++) {
        uint64_t value = ldr_get64(at + (size_t)i * 8);

        memcpy((uint8_t *)to + offsets[i], &value, sizeof(value));
    }
    return at != NULL;
}

/* As much as there is room for; no control characters. */
static bool get_words(body_t *b, size_t bytes, char *to, size_t size)
{
    const uint8_t *at = take(b, bytes);

    for (size_t i = 0; at != NULL && i < bytes && i < size - 1; i++) {
        to[i] = at[i] < 0x20 || at[i] == 0x7f ? '?' : (char)at[i];
    }
    return at != NULL;
}

/* *to is zeroed. */
static bool get_disk(body_t *b, unsigned sent, larder_disk_stats_t *to)
{
    const uint8_t *at = take(b, PART_HEAD_BYTES);

    if (at == NULL) {
        return false;
    }
    to->on = ldr_get32(at + 4) & 1u;
    return get_numbers(b, sent, to, disk_counters, LENGTH(disk_counters)) &&
           get_words(b, ldr_get16(at), to->path, sizeof(to->path)) &&
           get_words(b, ldr_get16(at + 2), to->reason, sizeof(to->reason));
}

/* *to is zeroed. */
static bool get_shared(body_t *b, unsigned sent, larder_shared_stats_t *to)
{
    const uint8_t *at = take(b, PART_HEAD_BYTES);

    if (at == NULL) {
        return false;
    }
    to->on = ldr_get32(at + 4) & 1u;
    to->writable = ldr_get32(at + 4) >> 1 & 1u;
    return get_numbers(b, sent, to, shared_counters, LENGTH(shared_counters)) &&
           get_words(b, ldr_get16(at), to->url, sizeof(to->url)) &&
           get_words(b, ldr_get16(at + 2), to->reason, sizeof(to->reason));
}

bool ldr_get_stats(const uint8_t *at, size_t bytes, larder_stats_t *m)
{
    body_t b = {at, bytes};

    if (take(&b, HEAD_BYTES) == NULL || ldr_get32(at + 12) != 0 ||
        ldr_get16(at + 8) > 1) {
        return false;
    }
    unsigned misses = ldr_get16(at + 2), disks = ldr_get16(at + 4);
    unsigned disk_sent = ldr_get16(at + 6), shared_sent = ldr_get16(at + 10);

    memset(m->misses, 0, sizeof(m->misses));
    memset(m->disk, 0, sizeof(m->disk));
    memset(&m->shared_tier, 0, sizeof(m->shared_tier));
    bool ok = get_numbers(&b, ldr_get16(at), m, counters, LENGTH(counters));
    const uint8_t *miss = take(&b, (size_t)misses * 8);
    ok = ok && miss != NULL;
    for (unsigned i = 0; ok && i < misses; i++) {
        m->misses[ldr_wire_cause(i)] += ldr_get64(miss + (size_t)i * 8);
    }
    m->disks = 0;
    for (unsigned i = 0; ok && i < disks; i++) {
        larder_disk_stats_t more = {0};
        larder_disk_stats_t *disk =
            m->disks < LARDER_STATS_DISKS_MAX ? &m->disk[m->disks++] : &more;

        ok = get_disk(&b, disk_sent, disk);
    }
    m->shared = ldr_get16(at + 8);
    ok = ok && (m->shared == 0 || get_shared(&b, shared_sent, &m->shared_tier));
    return ok && b.left == 0;
}
