/* The homes of chunks that this node is rank 1 or 2 of: see homes.h. */
#include "tier/peer/homes.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"

#define WAYS 8u
#define SAME_READ_S 5u /* asks of one member that count as one read */
#define COPY_READS 2u
#define SECOND_NS UINT64_C(1000000000)

typedef struct home {
    uint64_t print; /* 0: free */
    uint32_t epoch;
    uint32_t put_s;  /* by the monotonic clock, as all here */
    uint32_t used_s; /* put, or read */
    uint16_t reader; /* the last one */
    uint8_t reads;
    uint8_t count;
    uint16_t members[LDR_HOMES_KNOWN]; /* the last one that was put first */
} home_t;

_Static_assert(sizeof(home_t) == 32, "what peer_homes is said to cost");

struct ldr_homes {
    uint64_t sets, count;
    home_t homes[][WAYS];
};

static size_t bytes_of(uint64_t sets)
{
    return sizeof(ldr_homes_t) + sets * WAYS * sizeof(home_t);
}

ldr_homes_t *ldr_homes_open(uint64_t most)
{
    uint64_t sets = 1;

    while (2 * sets * WAYS <= most) {
        sets *= 2;
    }
    ldr_homes_t *h = ldr_reserve(bytes_of(sets));
    if (h != NULL) {
        h->sets = sets;
    }
    return h;
}

void ldr_homes_close(ldr_homes_t *h)
{
    if (h != NULL) {
        ldr_unreserve(h, bytes_of(h->sets));
    }
}

uint64_t ldr_homes_count(const ldr_homes_t *h)
{
    return h->count;
}

static uint32_t now_of(const ldr_peers_t *p)
{
    return (uint32_t)(ldr_peers_now(p) / SECOND_NS);
}

static home_t *set_of(ldr_homes_t *h, uint64_t print)
{
    return h->homes[(print * 0x9e3779b97f4a7c15u >> 20) & (h->sets - 1)];
}

/* Takes the member out, if it is there. */
static void take_out(home_t *h, uint16_t number)
{
    for (unsigned i = 0; i < h->count; i++) {
        if (h->members[i] == number) {
            memmove(h->members + i, h->members + i + 1,
                    (h->count - i - 1u) * sizeof(h->members[0]));
            h->count--;
        }
    }
}

/* Members whose numbers others have got since are taken out. False: there is
 * nobody left, and the home is free. */
static bool is_left(ldr_peers_t *p, home_t *h)
{
    for (unsigned i = h->count; i > 0; i--) {
        if (p->nodes[h->members[i - 1]]->since_s > h->put_s) {
            take_out(h, h->members[i - 1]);
        }
    }
    if (h->count == 0) {
        *h = (home_t){0};
        p->homes->count--;
    }
    return h->count > 0;
}

static home_t *find(ldr_peers_t *p, uint64_t print, uint32_t epoch)
{
    home_t *set = set_of(p->homes, print);

    ldr_host_held(p->host);
    for (unsigned i = 0; print != 0 && i < WAYS; i++) {
        if (set[i].print == print && set[i].epoch == epoch) {
            return is_left(p, &set[i]) ? &set[i] : NULL;
        }
    }
    return NULL;
}

/* The one for this chunk, a new one if there is none. */
static home_t *make(ldr_peers_t *p, uint64_t print, uint32_t epoch)
{
    home_t *set = set_of(p->homes, print), *to = find(p, print, epoch);

    if (to != NULL) {
        return to;
    }
    to = &set[0];
    for (unsigned i = 0; i < WAYS; i++) {
        if (set[i].print == print) { /* of an epoch that is over */
            to = &set[i];
            break;
        }
        if (to->print != 0 &&
            (set[i].print == 0 || set[i].used_s < to->used_s)) {
            to = &set[i];
        }
    }
    p->homes_dropped += to->print != 0 && to->print != print;
    p->homes->count += to->print == 0;
    *to = (home_t){.print = print, .epoch = epoch, .reader = LDR_PEER_NONE};
    return to;
}

void ldr_home_put(ldr_peer_node_t *n, uint64_t fingerprint, uint32_t epoch)
{
    ldr_peers_t *p = n->tier;

    if (fingerprint == 0) {
        return;
    }
    home_t *h = make(p, fingerprint, epoch);
    h->put_s = h->used_s = now_of(p);
    take_out(h, n->number);
    if (h->count == LDR_HOMES_KNOWN) {
        h->count--;
    }
    memmove(h->members + 1, h->members, h->count * sizeof(h->members[0]));
    h->members[0] = n->number;
    h->count++;
}

void ldr_home_gone(ldr_peer_node_t *n, uint64_t fingerprint, uint32_t epoch)
{
    ldr_peers_t *p = n->tier;
    home_t *h = find(p, fingerprint, epoch);

    if (h == NULL || now_of(p) - h->put_s < LDR_HOME_NEW_S) {
        return;
    }
    take_out(h, n->number);
    if (h->count == 0) {
        *h = (home_t){0};
        p->homes->count--;
    }
}

unsigned ldr_home_find(ldr_peers_t *p, uint64_t fingerprint, uint32_t epoch,
                       const ldr_peer_node_t *but,
                       ldr_peer_node_t *nodes[LDR_HOMES_KNOWN])
{
    const home_t *h = find(p, fingerprint, epoch);
    unsigned count = 0;

    for (unsigned i = 0; h != NULL && i < h->count; i++) {
        ldr_peer_node_t *n = p->nodes[h->members[i]];

        if (n != but && n->in_view) {
            nodes[count++] = n;
        }
    }
    return count;
}

bool ldr_home_read(ldr_peer_node_t *reader, uint64_t fingerprint,
                   uint32_t epoch)
{
    ldr_peers_t *p = reader->tier;
    home_t *h = find(p, fingerprint, epoch);
    uint32_t now_s = now_of(p);

    if (h == NULL) {
        return false;
    }
    if (h->reader != reader->number || now_s - h->used_s >= SAME_READ_S) {
        h->reads += h->reads < COPY_READS;
    }
    if (!reader->homes) { /* it cannot be told where else it is */
        h->reads = COPY_READS;
    }
    h->reader = reader->number;
    h->used_s = now_s;
    return h->reads == COPY_READS;
}

bool ldr_home_wants_copy(ldr_peers_t *p, uint64_t fingerprint, uint32_t epoch)
{
    const home_t *h = find(p, fingerprint, epoch);

    return h == NULL || h->reads == COPY_READS;
}

/* ---- copies ---- */

void ldr_copy_want(ldr_peers_t *p, const ldr_peer_copy_t *copy)
{
    ldr_host_held(p->host);
    for (uint32_t i = 0; i < p->copy_count; i++) {
        const ldr_peer_copy_t *c =
            &p->copies[(p->copy_first + i) % LDR_COPIES_MAX];

        if (memcmp(&c->key, &copy->key, sizeof(c->key)) == 0 &&
            c->space == copy->space && c->group == copy->group) {
            return;
        }
    }
    if (p->copy_count < LDR_COPIES_MAX) {
        p->copies[(p->copy_first + p->copy_count++) % LDR_COPIES_MAX] = *copy;
        p->threads->wake(p->threads->arg, &p->copy_work, true);
    }
}

bool ldr_copy_next(ldr_peers_t *p, ldr_peer_copy_t *copy)
{
    ldr_host_held(p->host);
    if (p->copy_count == 0) {
        return false;
    }
    *copy = p->copies[p->copy_first];
    p->copy_first = (p->copy_first + 1) % LDR_COPIES_MAX;
    p->copy_count--;
    return true;
}
