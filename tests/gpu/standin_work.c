/*
 * The stand-in's memory and its streams.
 *
 * A stream is a queue. An operation is done only when somebody asks: a part of
 * it, of a stream that chance picks among those that may go on. So copies and
 * kernels of several streams mix as they never would in a test on a device, and
 * what was changed or given back too early gives wrong bytes or an error.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/emulate.h"
#include "gpu/standin_int.h"

#define DEVICE_BYTES ((size_t)16 << 30) /* of addresses */
#define PAGE ((size_t)4096)
#define HOLLOW_BYTES ((size_t)64 << 10)
#define POISON_BYTES ((size_t)64 << 10)

standin_t standin = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .rand = 88172645463325252u,
    .devices = 1,
    .processors = 132,
};
struct CUctx_st standin_context;
__thread int standin_thread_depth, standin_thread_mode;

void standin_error(const char *format, ...)
{
    size_t used = strlen(standin.errors);
    va_list args;

    standin.counts.errors++;
    if (used + 2 < sizeof(standin.errors)) {
        va_start(args, format);
        vsnprintf(standin.errors + used, sizeof(standin.errors) - used, format,
                  args);
        va_end(args);
        used = strlen(standin.errors);
        snprintf(standin.errors + used, sizeof(standin.errors) - used, "\n");
    }
}

uint64_t standin_random(uint64_t bound)
{
    uint64_t x = standin.rand;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    standin.rand = x;
    return (x >> 11) % bound;
}

/* ---- memory ---- */

static bool overlap(uint64_t a, size_t a_bytes, uint64_t b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static range_t *find(range_t *ranges, uint32_t count, uint64_t at)
{
    for (uint32_t i = 0; i < count; i++) {
        if (at - ranges[i].at < ranges[i].bytes) {
            return &ranges[i];
        }
    }
    return NULL;
}

bool standin_device_alloc(uint64_t *at, size_t bytes)
{
    size_t room = (bytes + 2 * PAGE - 1) / PAGE * PAGE; /* and a gap */

    if (standin.shadow == NULL) {
        standin.device_base =
            mmap(NULL, DEVICE_BYTES, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        standin.shadow =
            mmap(NULL, DEVICE_BYTES, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (standin.device_base == MAP_FAILED || standin.shadow == MAP_FAILED) {
            abort();
        }
    }
    if (bytes == 0 || room > DEVICE_BYTES / 4 ||
        standin.device_count == STANDIN_RANGES) {
        return false;
    }
    if (standin.next_byte + room > DEVICE_BYTES) {
        standin.next_byte = 0;
    }
    for (uint32_t i = 0; i < standin.device_count;) {
        const range_t *r = &standin.device[i];
        uint64_t begin = (uintptr_t)standin.device_base + standin.next_byte;

        i++;
        if (overlap(begin, room, r->at, r->bytes + PAGE)) {
            standin.next_byte = (r->at - (uintptr_t)standin.device_base +
                                 r->bytes + 2 * PAGE - 1) /
                                PAGE * PAGE;
            i = 0;
        }
    }
    *at = (uintptr_t)standin.device_base + standin.next_byte;
    /* Not zeros, as new memory is; a part of it is enough. */
    memset(standin.shadow + standin.next_byte, 0xd5,
           bytes < POISON_BYTES ? bytes : POISON_BYTES);
    standin.next_byte += room;
    standin.device[standin.device_count++] = (range_t){*at, bytes, false};
    standin.counts.device++;
    return true;
}

static bool take_away(range_t *ranges, uint32_t *count, uint64_t at,
                      size_t *bytes)
{
    range_t *r = find(ranges, *count, at);

    if (r == NULL || r->at != at) {
        return false;
    }
    *bytes = r->bytes;
    if (standin_touched(at, r->bytes) > 0) {
        standin_error("memory is given back with work under way in it");
    }
    *r = ranges[--*count];
    return true;
}

bool standin_device_free(uint64_t at)
{
    size_t bytes;

    if (!take_away(standin.device, &standin.device_count, at, &bytes)) {
        standin_error("cuMemFree of what was not allocated");
        return false;
    }
    madvise(standin.shadow + (at - (uintptr_t)standin.device_base), bytes,
            MADV_DONTNEED);
    standin.counts.device--;
    return true;
}

bool standin_host_add(uint64_t at, size_t bytes, bool registered)
{
    /* Whole pages are locked. */
    uint64_t first = at / PAGE * PAGE;
    size_t whole = (at + bytes + PAGE - 1) / PAGE * PAGE - first;

    for (uint32_t i = 0; i < standin.host_count; i++) {
        if (overlap(first, whole, standin.host[i].at, standin.host[i].bytes)) {
            return false;
        }
    }
    if (standin.host_count == STANDIN_RANGES) {
        return false;
    }
    standin.host[standin.host_count++] = (range_t){at, bytes, registered};
    return true;
}

bool standin_host_remove(uint64_t at, bool registered)
{
    const range_t *r = standin_host_find(at);
    size_t bytes;

    return r != NULL && r->registered == registered &&
           take_away(standin.host, &standin.host_count, at, &bytes);
}

const range_t *standin_host_find(uint64_t at)
{
    return find(standin.host, standin.host_count, at);
}

bool standin_is_device(uint64_t at)
{
    return at - (uintptr_t)standin.device_base < DEVICE_BYTES;
}

uint8_t *standin_resolve(uint64_t at, size_t bytes, bool mapped,
                         const char *what)
{
    bool device = standin_is_device(at);
    uint64_t real = device ? at : at - STANDIN_THERE;
    const range_t *r = device ? find(standin.device, standin.device_count, real)
                       : mapped ? standin_host_find(real)
                                : NULL;

    if (r == NULL || real + bytes > r->at + r->bytes) {
        standin_error("%s: %zu bytes at %#llx: %s", what, bytes,
                      (unsigned long long)at,
                      r == NULL ? "nothing is there" : "it ends before");
        return NULL;
    }
    return device ? standin.shadow + (at - (uintptr_t)standin.device_base)
                  : (uint8_t *)(uintptr_t)real;
}

void standin_memory_reset(void)
{
    while (standin.device_count > 0) {
        standin_device_free(standin.device[0].at);
    }
    for (uint32_t i = 0; i < standin.host_count; i++) {
        if (!standin.host[i].registered) {
            free((void *)(uintptr_t)standin.host[i].at);
        }
    }
    standin.host_count = 0;
}

/* ---- operations ---- */

/* A part of what is left, or all. */
static size_t part(size_t left)
{
    return standin_random(4) == 0 ? 1 + standin_random(left) : left;
}

static void do_copy(op_t *op)
{
    size_t n = part(op->bytes - op->at);
    uint64_t far = op->to != 0 ? op->to : op->from;
    uint8_t *there = standin_resolve(far, op->bytes, false, "a copy");
    uint8_t *here = op->snapshot != NULL ? op->snapshot : op->here;
    const range_t *r = standin_host_find((uintptr_t)op->here);

    if (op->snapshot == NULL && r == NULL) {
        standin_error("a copy: the host's memory is gone");
        there = NULL;
    }
    if (there != NULL && op->to != 0) {
        memcpy(there + op->at, here + op->at, n);
    } else if (there != NULL) {
        memcpy(here + op->at, there + op->at, n);
    }
    op->at += n;
}

static void do_unit(const op_t *op, const ldr_gpu_unit_t *u,
                    const uint32_t *tables)
{
    const char *what = "the kernel";
    bool load = (op->flags & LDR_GPU_LOAD) != 0;
    uint8_t *from =
        standin_resolve(u->from, emulate_reach(u, !load), true, what);
    uint8_t *to =
        u->to != 0 ? standin_resolve(u->to, emulate_reach(u, load), true, what)
                   : NULL;
    uint32_t *sums = (uint32_t *)(void *)standin_resolve(
        op->sums, ((size_t)u->shard + 1) * sizeof(*sums), false, "sums");

    if (from == NULL || sums == NULL || (u->to != 0 && to == NULL)) {
        return;
    }
    if ((u->from | u->to) % 16 != 0 || u->words == 0 ||
        u->words > LDR_GPU_WORDS || (u->gap != 0 && u->row == 0)) {
        standin_error("the kernel: a unit is not aligned, or none");
        return;
    }
    uint32_t sum = emulate_unit(tables, to, from, u, op->flags);
    sums[u->shard] ^= sum;
}

static void do_kernel(op_t *op)
{
    size_t n = part(op->count - op->at);
    const uint8_t *units = standin_resolve(
        op->units, op->count * sizeof(ldr_gpu_unit_t), true, "units");
    const uint8_t *tables = standin_resolve(
        op->tables, LDR_GPU_TABLES * sizeof(uint32_t), false, "tables");

    for (; n > 0; n--, op->at++) {
        uint64_t which = (op->first + op->at * op->stride) % op->count;
        ldr_gpu_unit_t unit;

        if (units != NULL && tables != NULL) {
            memcpy(&unit, units + which * sizeof(unit), sizeof(unit));
            do_unit(op, &unit, (const uint32_t *)(const void *)tables);
        }
    }
}

static void do_set(op_t *op)
{
    uint8_t *to = standin_resolve(op->to, op->bytes, false, "cuMemsetD32");

    for (size_t i = 0; to != NULL && i < op->bytes; i += 4) {
        memcpy(to + i, &op->value, 4);
    }
    op->at = op->bytes;
}

void standin_forget(record_t *record)
{
    if (record != NULL && --record->users == 0) {
        free(record);
    }
}

static void pop(struct CUstream_st *s)
{
    op_t *op = s->head;

    s->head = op->next;
    s->tail = s->head != NULL ? s->tail : NULL;
    standin_forget(op->record);
    free(op->snapshot);
    free(op);
    standin.counts.pending--;
}

static void step(struct CUstream_st *s)
{
    op_t *op = s->head;
    bool over = true;

    if (standin.hollow &&
        (op->kind == OP_KERNEL || op->bytes >= HOLLOW_BYTES)) {
        pop(s);
        return;
    }
    switch (op->kind) {
    case OP_COPY:
        do_copy(op);
        over = op->at == op->bytes;
        break;
    case OP_SET:
        do_set(op);
        break;
    case OP_KERNEL:
        do_kernel(op);
        over = op->at == op->count;
        break;
    case OP_RECORD:
        op->record->done = true;
        break;
    case OP_WAIT:
        break;
    }
    if (over) {
        pop(s);
    }
}

/* ---- queues ---- */

static bool may_go(const struct CUstream_st *s)
{
    return s->head != NULL &&
           (s->head->kind != OP_WAIT || s->head->record->done);
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

void standin_queue(ldr_cu_stream_t s, op_t op)
{
    op_t *new = malloc(sizeof(*new));

    *new = op;
    new->next = NULL;
    if (op.kind == OP_KERNEL) { /* its units in some order */
        new->first = (uint32_t)standin_random(op.count);
        do {
            new->stride = 1 + (uint32_t)standin_random(op.count);
        } while (gcd(new->stride, op.count) != 1);
    }
    if (s->tail != NULL) {
        s->tail->next = new;
    } else {
        s->head = new;
    }
    s->tail = new;
    standin.counts.pending++;
}

/* One step of some stream that may go on; false: there is none. Often the same
 * one is favoured, so that others fall far behind. */
static bool any_step(void)
{
    uint32_t count = 0, can[64];

    for (uint32_t i = 0; i < standin.live_count; i++) {
        if (may_go(&standin.streams[standin.live[i]])) {
            can[count++] = standin.live[i];
        }
    }
    if (count == 0) {
        return false;
    }
    if (standin_random(16) == 0) {
        standin.favourite = can[standin_random(count)];
    }
    struct CUstream_st *s = &standin.streams[standin.favourite];
    if (!s->alive || !may_go(s) || standin_random(4) == 0) {
        s = &standin.streams[can[standin_random(count)]];
    }
    step(s);
    return true;
}

void standin_progress(void)
{
    uint64_t steps = standin_random(3) == 0 ? 0 : 1ull << standin_random(8);

    while (steps > 0 && any_step()) {
        steps--;
    }
}

void standin_run_all(ldr_cu_stream_t s)
{
    while (s->head != NULL) {
        if (!any_step()) {
            standin_error("a stream waits for ever");
            standin_drop(s);
        }
    }
}

void standin_drop(ldr_cu_stream_t s)
{
    while (s->head != NULL) {
        if (s->head->record != NULL) {
            s->head->record->done = true;
        }
        pop(s);
    }
}

static uint64_t touched_by(const op_t *op, uint64_t at, size_t bytes)
{
    uint64_t n = 0;

    if (op->kind == OP_COPY || op->kind == OP_SET) {
        n = (op->snapshot == NULL && op->here != NULL &&
             overlap((uintptr_t)op->here, op->bytes, at, bytes)) ||
            overlap(op->to != 0 ? op->to : op->from, op->bytes, at, bytes);
    } else if (op->kind == OP_KERNEL) {
        const uint8_t *units = standin_resolve(
            op->units, op->count * sizeof(ldr_gpu_unit_t), true, "units");
        ldr_gpu_unit_t u;

        n = overlap(op->units & ~STANDIN_THERE, op->count * sizeof(u), at,
                    bytes) ||
            overlap(op->sums, 4, at, bytes) ||
            overlap(op->tables, 4, at, bytes);
        for (uint32_t i = 0; units != NULL && i < op->count && n == 0; i++) {
            memcpy(&u, units + i * sizeof(u), sizeof(u));
            bool load = (op->flags & LDR_GPU_LOAD) != 0;
            n = overlap(u.from & ~STANDIN_THERE, emulate_reach(&u, !load), at,
                        bytes) ||
                overlap(u.to & ~STANDIN_THERE, emulate_reach(&u, load), at,
                        bytes);
        }
    }
    return n;
}

uint64_t standin_touched(uint64_t at, size_t bytes)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < standin.live_count; i++) {
        const op_t *op = standin.streams[standin.live[i]].head;

        for (; op != NULL; op = op->next) {
            n += touched_by(op, at, bytes);
        }
    }
    return n;
}
