/*
 * The daemon's side of a pair of rings whose other side writes what it likes.
 * The input is a program: the client's scribbles and the daemon's calls. What
 * the daemon reads was in the ring, within what the client had published; and
 * it notices what cannot be.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "net/ring.h"

#define MASK (LDR_RING_BYTES - 1)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int ok)
{
    if (!ok) {
        abort();
    }
}

typedef struct input {
    const uint8_t *at;
    size_t left;
} input_t;

static uint32_t take(input_t *in, unsigned bytes)
{
    uint32_t value = 0;

    for (unsigned i = 0; i < bytes && in->left > 0; i++, in->left--) {
        value |= (uint32_t)*in->at++ << 8 * i;
    }
    return value;
}

/* Mostly steps of 8 that are small, for a program must get somewhere. */
static uint32_t take_distance(input_t *in)
{
    uint32_t how = take(in, 1);

    return how < 160   ? take(in, 1) * 8
           : how < 220 ? take(in, 3) * 8
                       : take(in, 4);
}

typedef struct state {
    uint8_t *map;
    ldr_ring_shared_t *shared;
    ldr_ring_pair_t server, client;
} state_t;

/* What a program wrote to, to be cleaned up after it: all of the map each time
 * would take longer than the rest. */
enum { STEPS = 64, SPANS = 2 * STEPS };

static struct {
    uint8_t *at;
    size_t bytes;
} spans[SPANS];
static unsigned span_count;

static void soil(uint8_t *at, size_t bytes)
{
    require(span_count < SPANS);
    spans[span_count].at = at;
    spans[span_count++].bytes = bytes;
}

/* What a message of so many bytes may write to. */
static void soil_ring(const ldr_ring_t *ring, size_t bytes)
{
    size_t offset = ring->position & MASK;
    size_t first = LDR_RING_BYTES - offset;

    bytes += 12;
    soil(ring->data + offset, bytes < first ? bytes : first);
    if (bytes > first) {
        bytes -= first;
        soil(ring->data, bytes < LDR_RING_BYTES ? bytes : LDR_RING_BYTES);
    }
}

static uint8_t in_byte(const state_t *s, uint32_t position)
{
    return s->server.in.data[position & MASK];
}

static void server_read(state_t *s, size_t max)
{
    ldr_ring_t *ring = &s->server.in;
    const uint32_t from = ring->position, there = *ring->tail - from;
    const bool was_broken = ring->broken;
    uint8_t *to = malloc(max > 0 ? max : 1);

    require(to != NULL);
    ptrdiff_t n = ldr_ring_read(ring, to, max);
    require(n >= -1 && (n <= 0 || (size_t)n <= max));
    require((n < 0) == ring->broken);
    if (n <= 0) {
        require(ring->position == from);
        require(n < 0 || there == 0);
    } else {
        uint32_t record = ((uint32_t)n + 4 + 7) & ~7u;
        require(!was_broken && record <= there && there <= LDR_RING_BYTES);
        require(ring->position == from + record &&
                *ring->head == from + record);
        for (uint32_t i = 0; i < (uint32_t)n; i++) {
            require(to[i] == in_byte(s, from + 4 + i));
        }
    }
    free(to);
}

static void server_write(state_t *s, size_t bytes)
{
    ldr_ring_t *ring = &s->server.out;
    const uint32_t from = ring->position, used = from - *ring->head;
    const bool possible = used <= LDR_RING_BYTES && used % 8 == 0;
    static uint8_t message[LDR_RING_BYTES + 16];
    const struct iovec pieces[2] = {{message, bytes / 3},
                                    {message + bytes / 3, bytes - bytes / 3}};

    soil_ring(ring, bytes <= LDR_RING_MESSAGE_MAX ? bytes : 0);
    bool fits = ldr_ring_fits(ring, bytes);
    bool written = ldr_ring_write(ring, pieces, 2);
    require(written == (fits && bytes > 0));
    require(!written || possible);
    require(possible || bytes > LDR_RING_MESSAGE_MAX || ring->broken);
    require(ring->position ==
            (written ? from + (uint32_t)((bytes + 4 + 7) & ~(size_t)7) : from));
    require(!written || *ring->tail == ring->position);
}

static void client_write(state_t *s, size_t bytes)
{
    static const uint8_t text[256];
    struct iovec piece = {(void *)(uintptr_t)text, bytes};

    /* Our own writer keeps to multiples of 8; scribbles are made elsewhere. */
    s->client.out.position = *s->client.out.tail & ~7u;
    s->client.out.broken = false;
    soil_ring(&s->client.out, bytes);
    (void)ldr_ring_write(&s->client.out, &piece, 1);
}

static void step(state_t *s, input_t *in)
{
    uint32_t value, at;

    switch (take(in, 1) % 9) {
    case 0:
        s->shared->to_server.tail = s->server.in.position + take_distance(in);
        break;
    case 1:
        s->shared->to_client.head = s->server.out.position - take_distance(in);
        break;
    case 2: /* a length where the daemon will look for one */
        value = take(in, take(in, 1) < 200 ? 1 : 4);
        at = s->server.in.position & MASK & ~7u;
        memcpy(s->server.in.data + at, &value, 4);
        soil(s->server.in.data + at, 4);
        break;
    case 3: /* anything, anywhere */
        at = take(in, 3) % LDR_RING_MAP_BYTES;
        s->map[at] = (uint8_t)take(in, 1);
        soil(s->map + at, 1);
        break;
    case 4:
        client_write(s, take(in, 1));
        break;
    case 5:
    case 6:
        server_read(s, take(in, 1) < 128 ? 4096 : take(in, 1));
        break;
    case 7:
        server_write(s, take(in, 1) < 250 ? take(in, 1)
                                          : take(in, 3) % (LDR_RING_BYTES + 9));
        break;
    default:
        s->shared->to_client.sleeps = take(in, 1);
        require(!ldr_ring_must_wake(&s->server.out) ||
                s->shared->to_client.sleeps == 0);
        require(ldr_ring_sleep_begin(&s->server.in) ==
                !ldr_ring_ready(&s->server.in));
        ldr_ring_sleep_end(&s->server.in);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    /* Exactly as large as it is mapped, so that a sanitizer sees its ends. */
    static uint8_t *map;
    input_t in = {data, bytes};
    state_t s;

    if (map == NULL) {
        map = aligned_alloc(64, LDR_RING_MAP_BYTES);
        require(map != NULL);
        memset(map, 0, LDR_RING_MAP_BYTES);
    }
    s.map = map;
    s.shared = (void *)map;
    ldr_ring_init(&s.server, map, true);
    ldr_ring_init(&s.client, map, false);
    /* From somewhere near the end of the ring, or of the positions. */
    uint32_t start =
        take(&in, 1) % 2 == 0 ? (uint32_t)-64 : LDR_RING_BYTES - 64;
    s.shared->to_server.tail = s.shared->to_server.head = start;
    s.shared->to_client.tail = s.shared->to_client.head = start;
    s.server.in.position = s.server.out.position = start;
    for (unsigned i = 0; i < STEPS && in.left > 0; i++) {
        step(&s, &in);
    }
    memset(map, 0, sizeof(ldr_ring_shared_t));
    while (span_count > 0) {
        span_count--;
        memset(spans[span_count].at, 0, spans[span_count].bytes);
    }
    return 0;
}
