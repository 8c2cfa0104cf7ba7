#include "sim/simstore.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/simstore_int.h"

static const char *const kind_names[SIMSTORE_KINDS] = {
    "put", "get", "size", "list", "remove", "health"};

/* ---- items ---- */

/* Where the name is, or would be. */
static size_t place_of(const simstore_t *s, const char *name, bool *found)
{
    size_t low = 0, high = s->count;

    *found = false;
    while (low < high) {
        size_t mid = (low + high) / 2;
        int order = strcmp(s->items[mid]->name, name);

        if (order == 0) {
            *found = true;
            return mid;
        }
        if (order < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

static item_t *item_of(const simstore_t *s, const char *name)
{
    bool found;
    size_t at = place_of(s, name, &found);

    return found ? s->items[at] : NULL;
}

static void erase(simstore_t *s, const char *name)
{
    bool found;
    size_t at = place_of(s, name, &found);
    item_t *item = s->items[at];
    ghost_t *ghost = &s->ghosts[s->buried++ % REMEMBERED];

    s->changes++;
    memcpy(ghost->name, item->name, sizeof(ghost->name));
    ghost->born = item->born;
    ghost->died = s->changes;
    ghost->bytes = item->bytes;
    s->used -= item->bytes;
    memmove(&s->items[at], &s->items[at + 1],
            (s->count - at - 1) * sizeof(s->items[0]));
    s->count--;
    free(item->data);
    free(item);
}

static item_t *make(simstore_t *s, const char *name)
{
    bool found;
    size_t at = place_of(s, name, &found);

    if (found) {
        return s->items[at];
    }
    if (s->count == s->room) {
        s->room = s->room * 2 + 64;
        s->items = realloc(s->items, s->room * sizeof(s->items[0]));
    }
    memmove(&s->items[at + 1], &s->items[at],
            (s->count - at) * sizeof(s->items[0]));
    s->count++;
    s->items[at] = calloc(1, sizeof(item_t));
    snprintf(s->items[at]->name, sizeof(s->items[at]->name), "%s", name);
    s->items[at]->born = ++s->changes;
    return s->items[at];
}

static void fill(simstore_t *s, item_t *item, uint8_t *data, size_t bytes)
{
    s->used += bytes - item->bytes;
    free(item->data);
    item->data = data;
    item->bytes = bytes;
    item->evicted = false;
}

/* ---- what may happen to a call ---- */

static int fail(int error, const char *kind, const char *name)
{
    ldr_fail(LARDER_E_IO, "simulated %s of %s: %s", kind, name,
             strerror(-error));
    return error;
}

/* Whether this call is among those that were told to fail. */
static int armed(view_t *v, simstore_kind_t kind)
{
    uint64_t seen = ++v->armed[kind].seen, nth = v->armed[kind].nth;

    if (nth == 0 || seen < nth ||
        (v->armed[kind].times != 0 && seen >= nth + v->armed[kind].times)) {
        return 0;
    }
    return v->armed[kind].error;
}

/* Begins a call: takes the lock. 0: it takes place; else an error, and
 * *lands_p says whether it takes place all the same. */
static int begin(view_t *v, simstore_kind_t kind, bool *lands_p)
{
    simstore_t *s = v->store;

    if (v->before != NULL) {
        v->before(v->before_arg);
    }
    pthread_mutex_lock(&s->lock);
    *lands_p = false;
    while (v->hangs[kind]) {
        v->hanging++;
        pthread_cond_broadcast(&s->woken);
        pthread_cond_wait(&s->woken, &s->lock);
        v->hanging--;
    }
    v->calls++;
    if (!v->crashed && v->crash_at != 0 && v->calls >= v->crash_at) {
        v->crashed = true;
        *lands_p = ldr_rand_below(&s->rand, 2) == 0;
        return -EIO;
    }
    if (v->crashed) {
        return -EIO;
    }
    if (s->away) {
        return -ENODEV;
    }
    int error = armed(v, kind);
    if (error == 0 && v->noise > 0 &&
        ldr_rand_below(&s->rand, 1000) < v->noise) {
        error = ldr_rand_below(&s->rand, 2) == 0 ? -EIO : -ETIMEDOUT;
    }
    *lands_p = error == -ETIMEDOUT && ldr_rand_below(&s->rand, 2) == 0;
    return error;
}

/* ---- the calls ---- */

static int put_now(simstore_t *s, const char *name, const struct iovec *iov,
                   unsigned count, unsigned flags)
{
    size_t bytes = 0;
    item_t *item = item_of(s, name);

    if (s->read_only) {
        return -EROFS;
    }
    if (item != NULL && !item->evicted && (flags & LDR_OBJECT_NEW)) {
        return -EEXIST;
    }
    for (unsigned i = 0; i < count; i++) {
        bytes += iov[i].iov_len;
    }
    uint64_t before = item != NULL ? item->bytes : 0;
    if (s->capacity != 0 && s->used - before + bytes > s->capacity) {
        return -ENOSPC;
    }
    uint8_t *data = malloc(bytes + 1);
    size_t at = 0;
    for (unsigned i = 0; i < count; i++) {
        memcpy(data + at, iov[i].iov_base, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    fill(s, make(s, name), data, bytes);
    return 0;
}

static int sim_put(ldr_backend_t *b, const char *name, const struct iovec *iov,
                   unsigned count, unsigned flags, uint64_t deadline_ns)
{
    view_t *v = (view_t *)b;
    bool lands;
    int error = begin(v, SIMSTORE_PUT, &lands);

    (void)deadline_ns;
    if (!ldr_object_name_ok(name)) {
        fprintf(stderr, "simstore: %s is no name\n", name);
        abort();
    }
    if (error == 0) {
        error = put_now(v->store, name, iov, count, flags);
    } else if (lands) {
        put_now(v->store, name, iov, count, flags);
    }
    pthread_mutex_unlock(&v->store->lock);
    return error == 0 ? 0 : fail(error, kind_names[SIMSTORE_PUT], name);
}

static int get_now(const simstore_t *s, const char *name, uint64_t offset,
                   const struct iovec *iov, unsigned count)
{
    const item_t *item = item_of(s, name);

    if (item == NULL || item->evicted) {
        return -ENOENT;
    }
    for (unsigned i = 0; i < count; i++) {
        if (offset > item->bytes || iov[i].iov_len > item->bytes - offset) {
            return -ENODATA;
        }
        memcpy(iov[i].iov_base, item->data + offset, iov[i].iov_len);
        offset += iov[i].iov_len;
    }
    return 0;
}

static int sim_get(ldr_backend_t *b, const char *name, uint64_t offset,
                   const struct iovec *iov, unsigned count,
                   uint64_t deadline_ns)
{
    view_t *v = (view_t *)b;
    bool lands;
    int error = begin(v, SIMSTORE_GET, &lands);

    (void)deadline_ns;
    if (error == 0) {
        error = get_now(v->store, name, offset, iov, count);
    }
    if (error == 0 && offset == 0 && v->garbled_times > 0 &&
        strcmp(name, v->garbled) == 0) {
        v->garbled_times--;
        *(uint8_t *)iov[0].iov_base ^= 1;
    }
    pthread_mutex_unlock(&v->store->lock);
    return error == 0 ? 0 : fail(error, kind_names[SIMSTORE_GET], name);
}

static int sim_size(ldr_backend_t *b, const char *name, uint64_t *bytes_p,
                    uint64_t deadline_ns)
{
    view_t *v = (view_t *)b;
    bool lands;
    int error = begin(v, SIMSTORE_SIZE, &lands);
    const item_t *item = item_of(v->store, name);

    (void)deadline_ns;
    if (error == 0 && (item == NULL || item->evicted)) {
        error = -ENOENT;
    } else if (error == 0) {
        *bytes_p = item->bytes;
    }
    pthread_mutex_unlock(&v->store->lock);
    return error == 0 ? 0 : fail(error, kind_names[SIMSTORE_SIZE], name);
}

static int sim_exists(ldr_backend_t *b, const char *name, uint64_t deadline_ns)
{
    uint64_t bytes;

    return sim_size(b, name, &bytes, deadline_ns);
}

static int sim_remove(ldr_backend_t *b, const char *name, uint64_t deadline_ns)
{
    view_t *v = (view_t *)b;
    bool lands;
    int error = begin(v, SIMSTORE_REMOVE, &lands);
    bool there = item_of(v->store, name) != NULL;

    (void)deadline_ns;
    if (error == 0 && v->store->read_only) {
        error = -EROFS;
    } else if (error == 0 && !there) {
        error = -ENOENT;
    }
    if (there && (error == 0 || lands)) {
        erase(v->store, name);
    }
    pthread_mutex_unlock(&v->store->lock);
    return error == 0 ? 0 : fail(error, kind_names[SIMSTORE_REMOVE], name);
}

typedef struct listed {
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint64_t bytes;
} listed_t;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const listed_t *)a)->name, ((const listed_t *)b)->name);
}

static void note(listed_t *list, size_t *count, const char *prefix,
                 const char *after, const char *name, uint64_t bytes)
{
    if (strncmp(name, prefix, strlen(prefix)) == 0 &&
        (after == NULL || strcmp(name, after) > 0)) {
        snprintf(list[*count].name, sizeof(list[*count].name), "%s", name);
        list[(*count)++].bytes = bytes;
    }
}

/* What there was at that time. A name that was there twice is listed once. */
static size_t snapshot(const simstore_t *s, const char *prefix,
                       const char *after, uint64_t then, listed_t *list)
{
    size_t count = 0, kept = 0;

    for (size_t i = 0; i < s->count; i++) {
        if (s->items[i]->born <= then) {
            note(list, &count, prefix, after, s->items[i]->name,
                 s->items[i]->bytes);
        }
    }
    uint64_t first = s->buried > REMEMBERED ? s->buried - REMEMBERED : 0;
    for (uint64_t i = first; i < s->buried; i++) {
        const ghost_t *g = &s->ghosts[i % REMEMBERED];

        if (g->born <= then && g->died > then) {
            note(list, &count, prefix, after, g->name, g->bytes);
        }
    }
    qsort(list, count, sizeof(list[0]), by_name);
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || strcmp(list[kept - 1].name, list[i].name) != 0) {
            list[kept++] = list[i];
        }
    }
    return kept;
}

/* Another page is asked for, unless it is too late. */
static int turn_page(view_t *v, uint64_t deadline_ns)
{
    if (v->before != NULL) {
        v->before(v->before_arg);
    }
    return ldr_now_ns(v->clock) >= deadline_ns ? -ETIMEDOUT : 0;
}

static int sim_list(ldr_backend_t *b, const char *prefix, const char *after,
                    int (*fn)(void *arg, const char *name, uint64_t bytes),
                    void *arg, uint64_t deadline_ns)
{
    view_t *v = (view_t *)b;
    simstore_t *s = v->store;
    bool lands;
    int error = begin(v, SIMSTORE_LIST, &lands);

    if (error != 0) {
        pthread_mutex_unlock(&s->lock);
        return fail(error, kind_names[SIMSTORE_LIST], prefix);
    }
    uint64_t then = s->changes;
    if (v->stale > 0 && ldr_rand_below(&s->rand, 1000) < v->stale) {
        uint64_t by = v->stale == 1000
                          ? v->stale_by
                          : ldr_rand_below(&s->rand, v->stale_by + 1);

        then = by < then ? then - by : 0;
    }
    listed_t *list = malloc((s->count + REMEMBERED) * sizeof(*list));
    size_t count = snapshot(s, prefix, after, then, list);
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < count && error == 0; i++) {
        if (v->page > 0 && i > 0 && i % v->page == 0) {
            error = turn_page(v, deadline_ns);
        }
        if (error == 0) {
            error = fn(arg, list[i].name, list[i].bytes);
        }
    }
    free(list);
    return error;
}

static int sim_health(ldr_backend_t *b, uint64_t deadline_ns)
{
    view_t *v = (view_t *)b;
    bool lands;
    int error = begin(v, SIMSTORE_HEALTH, &lands);

    (void)deadline_ns;
    if (error == 0 && item_of(v->store, LDR_OBJECTS_ID_NAME) == NULL) {
        error = -ENODEV;
    }
    pthread_mutex_unlock(&v->store->lock);
    return error == 0 ? 0 : fail(error, kind_names[SIMSTORE_HEALTH], "it");
}

static void sim_destroy(ldr_backend_t *b)
{
    simstore_t *s = ((view_t *)b)->store;

    free(b);
    pthread_mutex_lock(&s->lock);
    s->backends--;
    pthread_mutex_unlock(&s->lock);
}

static const ldr_backend_ops_t ops = {
    .name = "sim",
    .makes_itself = true,
    .put = sim_put,
    .get = sim_get,
    .size = sim_size,
    .list = sim_list,
    .remove = sim_remove,
    .health = sim_health,
    .destroy = sim_destroy,
};

/* ---- the store ---- */

simstore_t *simstore_create(uint64_t seed)
{
    simstore_t *s = calloc(1, sizeof(*s));

    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->woken, NULL);
    ldr_rand_seed(&s->rand, seed);
    simstore_write(s, LDR_OBJECTS_ID_NAME, "sim", 3);
    return s;
}

void simstore_destroy(simstore_t *s)
{
    for (size_t i = 0; i < s->count; i++) {
        free(s->items[i]->data);
        free(s->items[i]);
    }
    free(s->items);
    pthread_cond_destroy(&s->woken);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

ldr_backend_t *simstore_backend(simstore_t *store)
{
    view_t *v = calloc(1, sizeof(*v));

    v->ops = ops;
    v->ops.exists = store->evicts ? sim_exists : NULL;
    v->base.ops = &v->ops;
    v->store = store;
    pthread_mutex_lock(&store->lock);
    store->backends++;
    pthread_mutex_unlock(&store->lock);
    return &v->base;
}

unsigned simstore_backends(simstore_t *s)
{
    pthread_mutex_lock(&s->lock);
    unsigned n = s->backends;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void simstore_capacity(simstore_t *s, uint64_t bytes)
{
    pthread_mutex_lock(&s->lock);
    s->capacity = bytes;
    pthread_mutex_unlock(&s->lock);
}

void simstore_read_only(simstore_t *s, bool yes)
{
    pthread_mutex_lock(&s->lock);
    s->read_only = yes;
    pthread_mutex_unlock(&s->lock);
}

void simstore_evicts(simstore_t *s, bool yes)
{
    pthread_mutex_lock(&s->lock);
    s->evicts = yes;
    pthread_mutex_unlock(&s->lock);
}

void simstore_away(simstore_t *s, bool yes)
{
    pthread_mutex_lock(&s->lock);
    s->away = yes;
    pthread_mutex_unlock(&s->lock);
}

uint64_t simstore_bytes(simstore_t *s, const char *prefix)
{
    uint64_t bytes = 0;

    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->count; i++) {
        if (strncmp(s->items[i]->name, prefix, strlen(prefix)) == 0) {
            bytes += s->items[i]->bytes;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return bytes;
}

unsigned simstore_count(simstore_t *s, const char *prefix)
{
    unsigned n = 0;

    while (simstore_name(s, prefix, n) != NULL) {
        n++;
    }
    return n;
}

const char *simstore_name(simstore_t *s, const char *prefix, unsigned i)
{
    const char *name = NULL;

    pthread_mutex_lock(&s->lock);
    for (size_t k = 0; k < s->count && name == NULL; k++) {
        if (strncmp(s->items[k]->name, prefix, strlen(prefix)) == 0 &&
            i-- == 0) {
            name = s->items[k]->name;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return name;
}

bool simstore_flip(simstore_t *s, const char *name, uint64_t bit)
{
    pthread_mutex_lock(&s->lock);
    item_t *item = item_of(s, name);
    bool there = item != NULL && bit / 8 < item->bytes;
    if (there) {
        item->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    pthread_mutex_unlock(&s->lock);
    return there;
}

bool simstore_lose(simstore_t *s, const char *name)
{
    char copy[LDR_OBJECT_NAME_MAX + 1];

    snprintf(copy, sizeof(copy), "%s", name);
    pthread_mutex_lock(&s->lock);
    bool there = item_of(s, copy) != NULL;
    if (there) {
        erase(s, copy);
    }
    pthread_mutex_unlock(&s->lock);
    return there;
}

bool simstore_evict(simstore_t *s, const char *name)
{
    pthread_mutex_lock(&s->lock);
    item_t *item = item_of(s, name);
    if (item != NULL) {
        item->evicted = true;
    }
    pthread_mutex_unlock(&s->lock);
    return item != NULL;
}

bool simstore_rename(simstore_t *s, const char *from, const char *to)
{
    pthread_mutex_lock(&s->lock);
    const item_t *item = item_of(s, from);
    size_t bytes = item != NULL ? item->bytes : 0;
    uint8_t *copy = malloc(bytes + 1);
    if (item != NULL) {
        memcpy(copy, item->data, bytes);
    }
    pthread_mutex_unlock(&s->lock);
    bool done = item != NULL && simstore_write(s, to, copy, bytes) &&
                simstore_lose(s, from);
    free(copy);
    return done;
}

bool simstore_write(simstore_t *s, const char *name, const void *data,
                    size_t bytes)
{
    uint8_t *copy = malloc(bytes + 1);

    memcpy(copy, data, bytes);
    pthread_mutex_lock(&s->lock);
    fill(s, make(s, name), copy, bytes);
    pthread_mutex_unlock(&s->lock);
    return true;
}
