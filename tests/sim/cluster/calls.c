/* What clients do, and what every answer is checked against: see world.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cluster/world.h"
#include "tier/peer/peer.h"

/* ---- contents ---- */

static size_t bytes_of(const world_t *w, unsigned key)
{
    size_t most = w->pressure || key % 12 == 0 ? BYTES_MAX : (size_t)20 << 10;

    return 4096 + (key * 7919u) % (most - 4096);
}

/* Bytes tell whose they are: key, version and the node that saved them. */
static void content(const world_t *w, unsigned key, uint32_t version,
                    uint32_t saver, uint8_t *data)
{
    size_t bytes = bytes_of(w, key);

    for (size_t i = 0; i < bytes; i += 64) {
        memset(data + i, (int)(key * 31 + version * 7 + saver * 3 + i / 64),
               ldr_min64(64, bytes - i));
    }
    ldr_put32(data, key);
    ldr_put32(data + 4, version);
    ldr_put32(data + 8, saver);
}

larder_key_t key_name(unsigned key)
{
    larder_key_t k = {{0}};

    ldr_put64(k.hash, key * UINT64_C(0x9e3779b97f4a7c15) + 1);
    return k;
}

/* ---- time ---- */

typedef struct timing {
    uint64_t begin_ns, stopped_ns;
} timing_t;

static timing_t begin_call(sim_node_t *n)
{
    n->users++;
    return (timing_t){sim_now(n->world->net), n->stopped_ns};
}

/* Nobody hears what a dead node answers, or when. */
static void end_call(sim_node_t *n, const timing_t *t, const char *what)
{
    world_t *w = n->world;
    uint64_t took_ns = sim_now(w->net) - t->begin_ns;
    uint64_t stopped_ns = n->stopped_ns - t->stopped_ns;

    n->users--;
    if (n->ghost) {
        return;
    }
    took_ns -= ldr_min64(took_ns, stopped_ns);
    w->n.longest_ns = ldr_max64(w->n.longest_ns, took_ns);
    if (took_ns > TIMEOUT_MS * SIM_MS + LATE_NS) {
        world_fail(w, "a %s on n%u took %llu us, and %u ms are allowed", what,
                   n->place, (unsigned long long)(took_ns / 1000),
                   (unsigned)TIMEOUT_MS);
    }
}

static ldr_stop_t stop_of(sim_node_t *n)
{
    return (ldr_stop_t){NULL, sim_now(n->world->net) + TIMEOUT_MS * SIM_MS};
}

/* ---- saves and loads ---- */

void do_save(sim_node_t *n, unsigned key, uint8_t *data)
{
    world_t *w = n->world;
    key_state_t *k = &w->key[key];
    larder_key_t name = key_name(key);
    struct iovec iov = {data, bytes_of(w, key)};
    larder_item_t item = {.key = &name, .iov = &iov, .iov_count = 1};
    ldr_target_t target = {n->space, 1, &item};
    ldr_stop_t stop = stop_of(n);

    if (k->removing) {
        return;
    }
    timing_t t = begin_call(n);
    k->saves++;
    content(w, key, k->next, n->place, data);
    ldr_node_put(n->node, &target, false, &stop);
    k->saves--;
    w->n.saves += item.status == LARDER_OK;
    end_call(n, &t, "save");
}

static void check_bytes(sim_node_t *n, unsigned key, const uint8_t *data,
                        size_t length, uint32_t floor)
{
    world_t *w = n->world;
    uint32_t version = ldr_get32(data + 4), saver = ldr_get32(data + 8);
    static uint8_t right[BYTES_MAX];

    content(w, key, version, saver, right);
    if (length != bytes_of(w, key) || memcmp(right, data, length) != 0) {
        world_fail(w, "wrong bytes of key %u on n%u", key, n->place);
    }
    if (version > w->key[key].next || saver == 0 || saver > w->count) {
        world_fail(w, "key %u on n%u: version %u of n%u was never saved", key,
                   n->place, version, saver);
    }
    if (version < floor && !n->ghost) {
        world_fail(w,
                   "undone: n%u gives version %u of key %u, saved on n%u; n%u "
                   "has recorded that everything before %u was dropped",
                   n->place, version, key, saver, n->place, floor);
    }
}

/* One of a chain that was asked for. */
static bool load_one(sim_node_t *n, unsigned key, uint8_t *data,
                     const ldr_stop_t *stop, uint32_t floor)
{
    world_t *w = n->world;
    larder_key_t name = key_name(key);
    struct iovec iov = {data, BYTES_MAX};
    larder_item_t item = {.key = &name, .iov = &iov, .iov_count = 1};
    ldr_load_t load = {.target = {n->space, 1, &item}};

    if (!ldr_load_begin(n->node, &load)) {
        ldr_node_reads_go(n->node);
        ldr_load_wait(n->node, &load, stop->deadline_ns);
    }
    bool peer = load.tier == LARDER_TIER_PEER;
    if (load.status == LARDER_OK) {
        ldr_load_copy(n->node, &load, stop);
    }
    uint32_t length = load.length;
    ldr_load_end(n->node, &load, false);
    w->n.loads++;
    if (load.status != LARDER_OK) {
        w->cause = load.cause;
        return false;
    }
    check_bytes(n, key, data, length, floor);
    w->n.hits++;
    w->n.from_peers += peer;
    return true;
}

/* Asks for all of them at once, then loads them. Gives how many were hits. */
static unsigned load_chain(sim_node_t *n, const unsigned *keys, unsigned count,
                           uint8_t *data)
{
    world_t *w = n->world;
    larder_key_t names[CHAIN_MAX];
    uint32_t floors[CHAIN_MAX];
    ldr_stop_t stop = stop_of(n);
    timing_t t = begin_call(n);
    unsigned hits = 0;

    for (unsigned i = 0; i < count; i++) {
        names[i] = key_name(keys[i]);
        floors[i] = w->key[keys[i]].floor[n->place - 1];
    }
    ldr_query_t *ask =
        ldr_node_ask_begin(n->node, n->space, 1, stop.deadline_ns);
    if (ask != NULL &&
        ldr_node_ask_add(n->node, ask, 0, names, count) != LARDER_OK) {
        world_fail(w, "no memory");
    }
    if (ask != NULL && ldr_node_ask(n->node, ask)) {
        ldr_node_ask_wait(n->node, ask);
        ldr_node_ask_end(n->node, ask);
    }
    for (unsigned i = 0; i < count; i++) {
        hits += load_one(n, keys[i], data, &stop, floors[i]);
    }
    end_call(n, &t, "load");
    return hits;
}

bool do_load(sim_node_t *n, unsigned key, uint8_t *data)
{
    return load_chain(n, &key, 1, data) == 1;
}

/* ---- removals and resets ---- */

/* Nobody saves these keys until end_removal(). */
static void begin_removal(world_t *w, unsigned first, unsigned end)
{
    for (unsigned i = first; i < end; i++) {
        while (w->key[i].removing || w->key[i].saves > 0) {
            sim_sleep(w->net, SIM_MS);
        }
        w->key[i].removing = true;
        w->key[i].must = false;
    }
}

/* Whether the member is among those that a partial answer names. */
static bool is_named(const char *text, unsigned place)
{
    char name[8];
    const char *at = strstr(text, "not recorded by ");

    snprintf(name, sizeof(name), "n%u", place);
    while (at != NULL && (at = strstr(at, name)) != NULL) {
        if (at[strlen(name)] < '0' || at[strlen(name)] > '9') {
            return true;
        }
        at++;
    }
    return false;
}

static void bind_floor(world_t *w, const event_t *e, unsigned at)
{
    for (unsigned i = e->first; i < e->end; i++) {
        uint32_t *floor = &w->key[i].floor[at];

        *floor = *floor < e->floor ? e->floor : *floor;
    }
}

/* Who has recorded it: this node, and of the members of its view those that the
 * answer does not name. */
static void end_removal(sim_node_t *n, event_t *e, larder_status_t st)
{
    world_t *w = n->world;
    const ldr_peers_t *p = ldr_peers_of(&n->node->host);
    bool done = st == LARDER_OK || st == LARDER_MISS;
    const char *text = ldr_fail_text();

    if (st == LARDER_PARTIAL && strstr(text, "not recorded by ") == NULL) {
        world_fail(w, "partial on n%u names nobody: %s", n->place, text);
    }
    for (unsigned i = 0; i < p->node_count && (done || st == LARDER_PARTIAL);
         i++) {
        unsigned place = (unsigned)strtoul(p->nodes[i]->name + 1, NULL, 10);

        if (!n->ghost && p->nodes[i]->in_view && place <= w->count &&
            (done || !is_named(text, place))) {
            e->knows[place - 1] = true;
        }
    }
    e->knows[n->place - 1] = !n->ghost && (done || st == LARDER_PARTIAL);
    for (unsigned i = e->first; i < e->end; i++) {
        w->key[i].next++;
        w->key[i].removing = false;
    }
    e->floor = w->key[e->first].next;
    w->n.partial += st == LARDER_PARTIAL;
    tell(w, "n%u: %s of %u..%u, versions below %u: %s", n->place,
         e->reset ? "reset" : "removal", e->first, e->end - 1, e->floor,
         st == LARDER_PARTIAL ? text : larder_status_text(st));
}

bool was_removed(const world_t *w, unsigned key)
{
    bool removed = w->key[key].removing;

    for (unsigned i = 0; i < w->event_count; i++) {
        removed = removed || (!w->events[i].reset && w->events[i].first == key);
    }
    return removed;
}

/* A member that is dead by now has forgotten it again, maybe. */
static void keep_event(world_t *w, event_t *e)
{
    if (w->event_count == EVENTS_MAX) {
        world_fail(w, "too many removals for the test");
    }
    for (unsigned i = 0; i < w->count; i++) {
        e->knows[i] = e->knows[i] && w->nodes[i].up;
        if (e->knows[i]) {
            bind_floor(w, e, i);
        }
    }
    w->events[w->event_count++] = *e;
}

void do_remove(sim_node_t *n, unsigned key)
{
    world_t *w = n->world;
    larder_key_t name = key_name(key);
    larder_item_t item = {.key = &name};
    event_t e = {.first = key, .end = key + 1};

    begin_removal(w, key, key + 1);
    if (!n->up) { /* it died while this waited for saves */
        w->key[key].removing = false;
        return;
    }
    ldr_stop_t stop = stop_of(n);
    timing_t t = begin_call(n);
    ldr_node_remove(n->node, n->space, &item, 1, &stop);
    end_removal(n, &e, item.status);
    end_call(n, &t, "removal");
    w->n.removals++;
    keep_event(w, &e);
}

void do_reset(sim_node_t *n)
{
    world_t *w = n->world;
    event_t e = {.end = w->keys, .reset = true};

    begin_removal(w, 0, w->keys);
    if (!n->up) {
        for (unsigned i = 0; i < w->keys; i++) {
            w->key[i].removing = false;
        }
        return;
    }
    timing_t t = begin_call(n);
    larder_status_t st = ldr_node_reset(n->node, n->space,
                                        sim_now(w->net) + TIMEOUT_MS * SIM_MS);
    /* All keys of the space have versions of their own. */
    uint32_t floors[KEYS_MAX];
    end_removal(n, &e, st);
    for (unsigned i = 0; i < w->keys; i++) {
        floors[i] = w->key[i].next;
    }
    end_call(n, &t, "reset");
    w->n.resets++;
    for (unsigned i = 0; i < w->keys; i++) {
        e.first = i;
        e.end = i + 1;
        e.floor = floors[i];
        keep_event(w, &e);
    }
}

void forget_events(sim_node_t *n, bool disk_lost)
{
    world_t *w = n->world;
    unsigned at = n->place - 1;

    for (unsigned i = 0; i < w->keys; i++) {
        w->key[i].floor[at] = 0;
    }
    for (unsigned i = 0; i < w->event_count; i++) {
        event_t *e = &w->events[i];

        e->knows[at] = e->knows[at] && e->reset && !disk_lost;
        if (e->knows[at]) {
            bind_floor(w, e, at);
        }
    }
}

/* Whether it may still be told of a removal of the key: that drops what it
 * holds, however new it is. */
static bool hears_later(const sim_node_t *n, unsigned key)
{
    const world_t *w = n->world;
    bool later = false;

    for (unsigned i = 0; i < w->event_count; i++) {
        const event_t *e = &w->events[i];

        later = later || (e->first == key && !e->knows[n->place - 1]);
    }
    return later;
}

void note_death(sim_node_t *n)
{
    world_t *w = n->world;

    for (unsigned key = 0; key < w->keys; key++) {
        bool other = false;

        for (unsigned i = 0; i < w->count && !other; i++) {
            sim_node_t *o = &w->nodes[i];

            other =
                o != n && o->up && node_holds(o, key) && !hears_later(o, key);
        }
        w->key[key].must = other && !w->key[key].removing &&
                           (w->key[key].must || node_holds(n, key));
    }
}

/* ---- clients ---- */

void *client_main(void *arg)
{
    sim_node_t *n = arg;
    world_t *w = n->world;
    uint8_t *data = malloc(BYTES_MAX);
    unsigned keys[CHAIN_MAX];

    sim_place(w->net, n->place);
    while (!w->over) {
        unsigned count = 1 + (unsigned)some(w, CHAIN_MAX);
        uint64_t what = some(w, 80);

        if (!n->up || w->quiet) {
            sim_sleep(w->net, 50 * SIM_MS);
            continue;
        }
        for (unsigned i = 0; i < count; i++) {
            keys[i] = (unsigned)some(w, w->keys);
        }
        if (what == 0 && some(w, 4) == 0) {
            do_reset(n);
        } else if (what <= 2) {
            do_remove(n, keys[0]);
        } else if (what < 30) {
            do_save(n, keys[0], data);
        } else {
            load_chain(n, keys, count, data);
        }
        sim_sleep(w->net,
                  some(w, 2 * (w->idle > 0 ? 400 * SIM_MS : w->pace_ns)));
    }
    free(data);
    return NULL;
}
