/*
 * Moving shards, piece by piece.
 *
 * A piece takes the next slot of the copier, in turn. Before a slot is used
 * again the host waits until its last piece is done; so at most LDR_GPU_SLOTS
 * pieces are under way, and nothing that the device reads is changed under it.
 */
#include <sys/prctl.h>
#include <time.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/iov.h"
#include "base/mem.h"
#include "gpu/gpu_int.h"

#define SPIN_NS 20000u /* a look at the device is cheap for so long, */
#define SPIN_END_NS                                                            \
    500000u          /* or so long, for the end: somebody waits for it; */
#define NAP_NS 20000 /* then this long between two */

/* A place in a list of pages. */
typedef struct place {
    const ldr_page_rows_t *rows;
    uint32_t row;
    uint64_t at; /* in the row */
} place_t;

typedef struct move {
    larder_gpu_t *gpu;
    ldr_gpu_copier_t *copier;
    ldr_gpu_copy_t *copy;
    ldr_gpu_way_t way;
    uint32_t shard; /* the one that is cut up */
    uint64_t left;  /* bytes of it */
    place_t page;
    ldr_cursor_t host;
    size_t reach;       /* bytes from the host's cursor on, registered as one */
    ldr_cu_ptr_t there; /* the cursor's address on the device */
    unsigned next;      /* slot */
    uint64_t bytes, done;
    size_t piece;           /* of the last */
    bool sent;              /* it was, as far as its buffer (ahead.c) */
    larder_status_t status; /* of the shard that was begun last */
    bool odd;               /* it has a page that no kernel can move */
} move_t;

static larder_status_t late(void)
{
    return ldr_fail(LARDER_E_DEADLINE, "a copy was not over in time");
}

/* ---- which way ---- */

/* What there is to know of a list, in one pass. */
typedef struct look {
    uint64_t bytes;
    uintptr_t bits; /* that addresses and lengths have */
    bool gap;       /* a part of it is nothing, or nowhere */
} look_t;

static look_t iov_look(const struct iovec *iov, uint32_t count)
{
    look_t l = {0, 0, false};

    for (uint32_t i = 0; i < count; i++) {
        uintptr_t at = (uintptr_t)iov[i].iov_base, bytes = iov[i].iov_len;

        l.bytes += bytes;
        l.bits |= at | bytes;
        l.gap |= (at == 0) | (bytes == 0);
    }
    return l;
}

/* The same for pages. A gap too wide for the kernel counts as not aligned. */
static look_t look_at_pages(const ldr_page_rows_t *rows, uint32_t count)
{
    look_t l = {0, 0, false};

    for (uint32_t i = 0; i < count; i++) {
        const ldr_page_rows_t *r = &rows[i];

        l.bytes += r->bytes * r->count;
        l.bits |= (uintptr_t)r->base | r->bytes;
        if (r->count != 1) {
            l.bits |= r->stride | ((r->stride - r->bytes) / 16 > UINT32_MAX);
        }
        l.gap |= (r->base == NULL) | (r->bytes == 0) | (r->count == 0);
    }
    return l;
}

static bool reached(larder_gpu_t *gpu, const struct iovec *iov, uint32_t count)
{
    ldr_cu_ptr_t there;

    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *at = iov[i].iov_base;

        for (size_t left = iov[i].iov_len, n; left > 0; left -= n, at += n) {
            n = ldr_gpu_reach(gpu, at, left, &there);
            if (n == 0) {
                return false;
            }
        }
    }
    return true;
}

/* By the host's lists. The pages' are long: a shard's are looked at when it is
 * begun, while those before it move. */
static larder_status_t way_choose(move_t *m)
{
    const ldr_gpu_copy_t *copy = m->copy;
    uint64_t bytes = 0, runs = 0;
    bool kernel = m->gpu->kernel != NULL && !m->odd, reach = true;

    for (uint32_t i = 0; i < copy->count; i++) {
        const ldr_gpu_shard_t *s = &copy->shards[i];
        look_t host = iov_look(s->host, s->host_count);

        if (host.bytes == 0 || host.bytes > LARDER_VALUE_MAX || host.gap) {
            return ldr_fail(LARDER_E_SIZE, "shard %u: %llu bytes here", i,
                            (unsigned long long)host.bytes);
        }
        kernel = kernel && host.bits % 16 == 0;
        reach = reach && reached(m->gpu, s->host, s->host_count);
        bytes += host.bytes;
        runs += s->host_count;
    }
    m->way = !kernel                           ? LDR_GPU_PLAIN
             : !reach                          ? LDR_GPU_BOUNCE
             : bytes / runs >= m->gpu->run_min ? LDR_GPU_STAGED
                                               : LDR_GPU_DIRECT;
    if (copy->forced && (m->way <= LDR_GPU_DIRECT || copy->way > m->way)) {
        m->way = copy->way;
    }
    m->bytes = bytes;
    return LARDER_OK;
}

static bool by_cpu(const move_t *m)
{
    return m->way == LDR_GPU_BOUNCE || m->way == LDR_GPU_PLAIN;
}

/* ---- cutting up ---- */

/* m->odd: this way it cannot be moved, but by another. */
static larder_status_t begin_shard(move_t *m)
{
    const ldr_gpu_shard_t *s = &m->copy->shards[m->shard];
    larder_status_t st = m->copy->list != NULL
                             ? m->copy->list(m->copy->arg, m->shard)
                             : LARDER_OK;

    if (st != LARDER_OK) {
        return st;
    }
    look_t pages = look_at_pages(s->pages, s->page_count);
    m->page = (place_t){s->pages, 0, 0};
    m->host = (ldr_cursor_t){s->host, 0};
    m->left = iov_look(s->host, s->host_count).bytes;
    m->reach = 0;
    if (pages.bytes != m->left || pages.gap) {
        return ldr_fail(LARDER_E_SIZE,
                        "shard %u: %llu bytes here, and its pages have %llu",
                        m->shard, (unsigned long long)m->left,
                        (unsigned long long)pages.bytes);
    }
    m->odd = m->way != LDR_GPU_PLAIN && pages.bits % 16 != 0;
    return m->odd ? LARDER_E_INVALID : LARDER_OK;
}

/* Goes on with the next shard. False: there is none, or m->status says why
 * not. */
static bool next_shard(move_t *m)
{
    if (m->shard + 1 == m->copy->count) {
        return false;
    }
    m->shard++;
    m->status = begin_shard(m);
    return m->status == LARDER_OK;
}

/* The next bytes on the host are the last run's, or a new run's; other: they
 * are registered apart from it, and no copy may span both. NULL: there is no
 * room for a run. */
static ldr_gpu_run_t *run_for(const move_t *m, ldr_gpu_slot_t *slot,
                              uint8_t *host, bool other)
{
    ldr_gpu_run_t *last =
        slot->run_count > 0 ? &slot->runs[slot->run_count - 1] : NULL;

    if (last != NULL && !other && last->host + last->bytes == host &&
        last->shard == m->shard) {
        return last;
    }
    if (slot->run_count == LDR_GPU_RUNS) {
        return NULL;
    }
    last = &slot->runs[slot->run_count++];
    *last = (ldr_gpu_run_t){host, slot->bytes, 0, m->shard};
    return last;
}

static bool nowhere(const ldr_gpu_copy_t *copy, const uint8_t *page)
{
    return copy->nowhere != NULL && page >= copy->nowhere &&
           page < copy->nowhere + copy->nowhere_bytes;
}

static uint8_t *page_here(const move_t *m)
{
    const place_t *p = &m->page;

    return p->rows->base + p->row * p->rows->stride + p->at;
}

/* Bytes that are taken next, of at most so many: of a row, or whole rows if
 * `rows` and there are some. */
static size_t page_take(const move_t *m, size_t most, bool rows)
{
    const place_t *p = &m->page;
    const ldr_page_rows_t *r = p->rows;
    uint64_t left = r->bytes * (r->count - p->row);

    if (!rows || r->count == 1 || p->at > 0 || most < r->bytes) {
        return ldr_min64(r->bytes - p->at, most);
    }
    return left <= most ? left : most / r->bytes * r->bytes;
}

/* Goes on by so many bytes, as page_take() gave them. */
static void page_go(move_t *m, size_t bytes)
{
    place_t *p = &m->page;
    const ldr_page_rows_t *r = p->rows;

    if (bytes + p->at == r->bytes * (r->count - p->row)) {
        *p = (place_t){r + 1, 0, 0};
        return;
    }
    p->at += bytes;
    if (p->at >= r->bytes) {
        p->row += (uint32_t)(p->at / r->bytes);
        p->at = 0;
    }
}

/* Cuts so many bytes, contiguous on the host, into units for the kernel; gives
 * how many found room. This is all that the CPU does for a byte: it has to keep
 * up with the link when pages are small. */
static size_t cut_units(move_t *m, ldr_gpu_slot_t *slot, size_t bytes)
{
    const ldr_gpu_copy_t *copy = m->copy;
    const ldr_gpu_powers_t *powers = by_cpu(m) ? NULL : m->gpu->powers;
    uint64_t near =
        m->way == LDR_GPU_DIRECT ? m->there : slot->buffer + slot->bytes;
    uint64_t left = m->left;
    size_t done = 0;

    while (done < bytes && slot->unit_count < LDR_GPU_UNITS) {
        const ldr_page_rows_t *rows = m->page.rows;
        uint8_t *page = page_here(m);
        size_t n = page_take(m, ldr_min64(bytes - done, LDR_GPU_UNIT), true);

        left -= n;
        ldr_gpu_unit_t *u = &slot->units[slot->unit_count++];
        bool skip = copy->load && nowhere(copy, page);
        bool apart = n > rows->bytes;
        u->from = copy->load ? near + done : (uintptr_t)page;
        u->to = skip ? 0 : copy->load ? (uintptr_t)page : near + done;
        u->words = (uint16_t)(n / 16);
        u->row = apart ? (uint16_t)(rows->bytes / 16) : u->words;
        u->gap = apart ? (uint32_t)((rows->stride - rows->bytes) / 16) : 0;
        u->shard = m->shard;
        u->factor = powers != NULL ? ldr_gpu_factor(powers, left) : 0;
        done += n;
        page_go(m, n);
    }
    return done;
}

/* The same, for copies row by row. */
static size_t cut_leaves(move_t *m, ldr_gpu_slot_t *slot, size_t bytes)
{
    size_t done = 0;

    while (done < bytes && slot->leaf_count < LDR_GPU_UNITS) {
        uint8_t *page = page_here(m);
        size_t n = page_take(m, bytes - done, false);

        if (!m->copy->load || !nowhere(m->copy, page)) {
            slot->leaves[slot->leaf_count++] =
                (ldr_gpu_leaf_t){(uintptr_t)page, slot->bytes + done, n};
        }
        done += n;
        page_go(m, n);
    }
    return done;
}

/* What is contiguous on the host from here on, up to the piece's size. False:
 * the piece is full, or all shards are cut up, or m->status says why not. */
static bool piece_cut(move_t *m, ldr_gpu_slot_t *slot, size_t piece)
{
    ldr_gpu_run_t *run = NULL;

    if (m->left == 0 && !next_shard(m)) {
        return false;
    }
    if (slot->unit_count == LDR_GPU_UNITS ||
        slot->leaf_count == LDR_GPU_UNITS) {
        return false; /* before a run is begun that would stay empty */
    }
    uint8_t *host = ldr_cursor_here(&m->host);
    size_t n = ldr_min64(ldr_cursor_left(&m->host), piece - slot->bytes);
    n = ldr_min64(n, m->left);
    bool other = !by_cpu(m) && m->reach == 0;
    if (other) {
        m->reach =
            ldr_gpu_reach(m->gpu, host, ldr_cursor_left(&m->host), &m->there);
    }
    if (!by_cpu(m)) {
        n = ldr_min64(n, m->reach);
    }
    if (n > 0 && m->way != LDR_GPU_DIRECT) {
        run = run_for(m, slot, host, other);
        n = run != NULL ? n : 0;
    }
    if (n > 0) {
        n = m->way == LDR_GPU_PLAIN ? cut_leaves(m, slot, n)
                                    : cut_units(m, slot, n);
    }
    if (n == 0) {
        return false;
    }
    if (run != NULL) {
        run->bytes += n;
    }
    if (!by_cpu(m)) {
        m->reach -= n;
        m->there += n;
    }
    slot->bytes += n;
    m->left -= n;
    ldr_cursor_go(&m->host, n);
    return true;
}

/* How large the next piece may be: small ones first and last, when the second
 * part of the way has nothing to do beside the first. */
static size_t piece_size(move_t *m)
{
    uint64_t half = (m->bytes - m->done) / 2;

    m->piece = m->piece == 0 ? LDR_GPU_PIECE_MIN : 2 * m->piece;
    m->piece = ldr_min64(m->piece, LDR_GPU_PIECE);
    return ldr_min64(m->piece,
                     ldr_max64(LDR_GPU_PIECE_MIN, half / 4096 * 4096));
}

/* ---- one piece ---- */

/* The CPU's part of it. */
static void bounce(move_t *m, ldr_gpu_slot_t *slot)
{
    for (uint32_t i = 0; i < slot->run_count; i++) {
        const ldr_gpu_run_t *run = &slot->runs[i];
        uint32_t *crc = &m->copy->shards[run->shard].crc;
        uint8_t *at = slot->bounce + run->at;

        *crc = m->copy->load ? ldr_copy_crc32c(*crc, at, run->host, run->bytes)
                             : ldr_copy_crc32c(*crc, run->host, at, run->bytes);
    }
}

static ldr_cu_t engine(move_t *m, const ldr_gpu_slot_t *slot)
{
    return ldr_gpu_engine(m->gpu, m->copier, slot, m->way, m->copy->load);
}

static ldr_cu_t kernel(move_t *m, ldr_gpu_slot_t *slot)
{
    larder_gpu_t *gpu = m->gpu;
    uint32_t count = slot->unit_count;
    uint32_t flags =
        (by_cpu(m) ? 0 : LDR_GPU_CHECK) | (m->copy->load ? LDR_GPU_LOAD : 0);
    unsigned warps = LDR_GPU_THREADS / 32;
    unsigned grid = (unsigned)ldr_min64(gpu->grid, ldr_div_up(count, warps));
    void *arguments[] = {&slot->units_there, &count, &gpu->tables,
                         &m->copier->sums, &flags};

    return gpu->cuda->launch(gpu->kernel, grid, 1, 1, LDR_GPU_THREADS, 1, 1, 0,
                             m->copier->kernel, arguments, NULL);
}

/* Sets the piece going: both parts, the second after the first. */
static ldr_cu_t piece_start(move_t *m, ldr_gpu_slot_t *slot)
{
    const ldr_cuda_t *cuda = m->gpu->cuda;
    ldr_cu_stream_t copy = m->copier->copy, kern = m->copier->kernel;
    bool load = m->copy->load;
    ldr_cu_stream_t last = load ? kern : copy;
    ldr_cu_t result = 0;

    slot->busy = true; /* whatever comes of it: wait for it */
    if (m->way == LDR_GPU_DIRECT) {
        result = kernel(m, slot);
        last = kern;
    } else if (m->way == LDR_GPU_PLAIN) {
        result = engine(m, slot);
        last = copy;
    } else {
        if (!m->sent) {
            result = load ? engine(m, slot) : kernel(m, slot);
        }
        if (result == 0 && !m->sent) {
            result = cuda->event_record(slot->half, load ? copy : kern);
        }
        if (result == 0) {
            result = cuda->stream_wait(last, slot->half, 0);
        }
        if (result == 0) {
            result = load ? kernel(m, slot) : engine(m, slot);
        }
    }
    return result != 0 ? result : cuda->event_record(slot->done, last);
}

/* Waits until the slot's piece is done. */
static larder_status_t piece_finish(move_t *m, ldr_gpu_slot_t *slot,
                                    uint64_t spin_ns)
{
    const ldr_cuda_t *cuda = m->gpu->cuda;
    const struct timespec nap = {0, NAP_NS};
    uint64_t begin_ns = ldr_now_ns(&ldr_clock_real);
    ldr_cu_t result;

    if (!slot->busy) {
        return LARDER_OK;
    }
    while ((result = cuda->event_query(slot->done)) == LDR_CU_NOT_READY) {
        if (ldr_now_ns(&ldr_clock_real) - begin_ns > spin_ns) {
            nanosleep(&nap, NULL);
        }
    }
    if (result != 0) {
        return ldr_cuda_status(cuda, result, "a copy");
    }
    slot->busy = false;
    if (by_cpu(m) && !m->copy->load) {
        bounce(m, slot);
    }
    return LARDER_OK;
}

static larder_status_t piece(move_t *m, ldr_gpu_slot_t *slot, bool *more_p)
{
    larder_status_t st = piece_finish(m, slot, SPIN_NS);

    if (st == LARDER_OK && by_cpu(m)) {
        st = ldr_gpu_slot_bounce(m->gpu, slot);
    }
    if (st == LARDER_OK &&
        ldr_now_ns(&ldr_clock_real) >= m->copy->deadline_ns) {
        st = late();
    }
    if (st != LARDER_OK) {
        return st;
    }
    slot->unit_count = slot->run_count = slot->leaf_count = 0;
    slot->bytes = 0;
    size_t size = slot->ahead_count > 0 ? slot->ahead_bytes : piece_size(m);
    while (piece_cut(m, slot, size)) {
    }
    m->sent = ldr_gpu_is_ahead(slot) && m->way == LDR_GPU_STAGED;
    m->piece = m->sent ? LDR_GPU_PIECE : m->piece;
    if (m->status != LARDER_OK) {
        return m->status;
    }
    m->done += slot->bytes;
    *more_p = slot->bytes > 0;
    if (!*more_p) {
        return m->left == 0 ? LARDER_OK
                            : ldr_fail(LARDER_E_STALE,
                                       "memory was unregistered meanwhile");
    }
    if (by_cpu(m) && m->copy->load) {
        bounce(m, slot);
    }
    return ldr_cuda_status(m->gpu->cuda, piece_start(m, slot), "a copy");
}

/* ---- the whole ---- */

static larder_status_t move_run(move_t *m)
{
    const ldr_cuda_t *cuda = m->gpu->cuda;
    ldr_gpu_copier_t *copier = m->copier;
    size_t count = m->copy->count;
    bool more = true;
    ldr_cu_t result = 0;

    if (!by_cpu(m)) {
        result = cuda->set32(copier->sums, 0, count, copier->kernel);
    }
    larder_status_t st = ldr_cuda_status(cuda, result, "a copy");
    while (st == LARDER_OK && more) {
        st = piece(m, &copier->slot[m->next], &more);
        m->next = (m->next + 1) % LDR_GPU_SLOTS;
    }
    if (st == LARDER_OK && !by_cpu(m)) { /* behind all kernels */
        result = cuda->to_host(copier->sums_here, copier->sums,
                               count * sizeof(uint32_t), copier->kernel);
        st = ldr_cuda_status(cuda, result, "a copy's checksums");
    }
    for (unsigned i = 0; i < LDR_GPU_SLOTS && st == LARDER_OK; i++) {
        st = piece_finish(m, &copier->slot[m->next],
                          m->copy->load ? SPIN_END_NS : SPIN_NS);
        m->next = (m->next + 1) % LDR_GPU_SLOTS;
    }
    if (st == LARDER_OK && !by_cpu(m)) {
        st = ldr_cuda_status(cuda, cuda->stream_sync(copier->kernel),
                             "a copy's checksums");
    }
    for (uint32_t i = 0; st == LARDER_OK && !by_cpu(m) && i < count; i++) {
        ldr_gpu_shard_t *s = &m->copy->shards[i];

        s->crc = ldr_gpu_crc(m->gpu->powers, copier->sums_here[i],
                             iov_look(s->host, s->host_count).bytes);
    }
    return st;
}

/* After a failure: nothing may be under way. */
static void slots_settle(move_t *m)
{
    ldr_cu_t result = ldr_gpu_copier_sync(m->gpu, m->copier);

    if (result != 0 &&
        !__atomic_exchange_n(&m->gpu->broken, true, __ATOMIC_RELAXED)) {
        ldr_error(&m->gpu->log,
                  "GPU %d does not answer any more (%d): nothing is loaded or "
                  "saved until the engine is restarted",
                  m->gpu->device, result);
    }
}

/* Chooses the way and begins the first shard; again, if it needs another. */
static larder_status_t shard_begin(move_t *m)
{
    larder_status_t st;

    do {
        st = way_choose(m);
        m->shard = 0;
        m->done = m->piece = 0;
        m->status = LARDER_OK;
        m->odd = false;
        if (st == LARDER_OK) {
            st = begin_shard(m);
        }
    } while (m->odd);
    return st;
}

/* Its pages are not known yet: what needs none of them is done, and they are
 * waited for. */
static larder_status_t early(move_t *m)
{
    ldr_gpu_copy_t *copy = m->copy;
    ldr_cu_t result = m->way == LDR_GPU_STAGED
                          ? ldr_gpu_ahead(m->gpu, m->copier, copy, m->bytes)
                          : 0;
    larder_status_t st = ldr_cuda_status(m->gpu->cuda, result, "a copy");

    st = st == LARDER_OK ? copy->ready(copy->arg, &copy->after) : st;
    st = st == LARDER_OK ? shard_begin(m) : st;
    return st == LARDER_OK ? ldr_gpu_await(m->gpu, copy) : st;
}

/* In the context, after what comes first. */
static larder_status_t move_carry_out(move_t *m)
{
    ldr_gpu_copy_t *copy = m->copy;
    larder_status_t st =
        ldr_gpu_copier_take(m->gpu, copy->deadline_ns, &m->copier);

    if (st != LARDER_OK) {
        return st;
    }
    ldr_gpu_ahead_forget(m->copier);
    if (copy->ready != NULL && (st = early(m)) != LARDER_OK) {
        slots_settle(m);
        ldr_gpu_copier_give(m->gpu, m->copier);
        return st;
    }
    do {
        for (uint32_t i = 0; i < copy->count; i++) {
            copy->shards[i].crc = 0;
        }
        st = move_run(m);
        if (st != LARDER_OK) {
            slots_settle(m);
        }
        /* odd: all once more, by another way */
    } while (m->odd && (st = shard_begin(m)) == LARDER_OK);
    ldr_gpu_copier_give(m->gpu, m->copier);
    return st;
}

larder_status_t ldr_gpu_move(larder_gpu_t *gpu, ldr_gpu_copy_t *copy)
{
    move_t m = {.gpu = gpu, .copy = copy};
    larder_status_t st = LARDER_OK;
    int slack; /* of this thread's timers: naps here are shorter than that */

    if (copy->count == 0) {
        return LARDER_OK;
    }
    if (copy->count > LDR_GPU_SHARDS_MAX) {
        return ldr_fail(LARDER_E_INVALID, "%u shards in one copy", copy->count);
    }
    if (__atomic_load_n(&gpu->broken, __ATOMIC_RELAXED)) {
        return ldr_fail(LARDER_E_IO, "the GPU does not answer any more");
    }
    st = copy->ready == NULL ? shard_begin(&m) : way_choose(&m);
    st = st == LARDER_OK ? ldr_gpu_enter(gpu) : st;
    if (st != LARDER_OK) {
        return st;
    }
    slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1000L);
    st = copy->ready == NULL ? ldr_gpu_await(gpu, copy) : LARDER_OK;
    if (st == LARDER_OK) {
        st = move_carry_out(&m);
    }
    prctl(PR_SET_TIMERSLACK, slack > 0 ? (long)slack : 0L);
    ldr_gpu_leave(gpu);
    larder_gpu_stats_t *stats = &gpu->stats;
    uint64_t *ways[] = {&stats->staged, &stats->direct, &stats->bounced,
                        &stats->plain};
    ldr_gpu_count(ways[m.way], 1);
    ldr_gpu_count(copy->load ? &stats->loaded_bytes : &stats->saved_bytes,
                  st == LARDER_OK ? m.bytes : 0);
    ldr_gpu_count(&stats->failures, st != LARDER_OK && st != LARDER_E_CANCELED);
    return st;
}
