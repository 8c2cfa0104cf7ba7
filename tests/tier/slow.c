#include "tier/slow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/shared.h"
#include "tier/ssd/ssd.h"
#include "sim/simdisk.h"

#define BUCKETS 4096u

/* One shard. Guarded by `lock`, which is taken with a node's lock held. */
typedef struct item {
    struct item *next;
    ldr_record_t record;
    uint8_t *bytes;
} item_t;

typedef struct epoch {
    uint8_t space[LDR_ID_BYTES];
    uint32_t epoch;
} epoch_t;

typedef struct slow {
    ldr_tier_t base;
    pthread_cond_t work;
    pthread_t thread;
    bool thread_started, stop;
    uint32_t head, tail; /* shards that wait to be read, by fetch_next */
} slow_t;

slow_control_t slow_control;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static item_t *buckets[BUCKETS];
static epoch_t epochs[LDR_SPACES_MAX];
static uint32_t epoch_count;
static uint64_t count, reads, writes;

uint64_t slow_count(void)
{
    return count;
}

uint64_t slow_reads(void)
{
    return reads;
}

uint64_t slow_writes(void)
{
    return writes;
}

/* ---- what it holds ---- */

static item_t **place_of(const uint8_t *space_id, const larder_key_t *key,
                         uint32_t group, uint32_t number)
{
    item_t **at = &buckets[ldr_get32(key->hash) % BUCKETS];

    while (*at != NULL &&
           (memcmp(&(*at)->record.key, key, sizeof(*key)) != 0 ||
            memcmp((*at)->record.space_id, space_id, LDR_ID_BYTES) != 0 ||
            (*at)->record.group != group || (*at)->record.shard != number)) {
        at = &(*at)->next;
    }
    return at;
}

static void drop(item_t **at)
{
    item_t *item = *at;

    if (item != NULL) {
        *at = item->next;
        free(item->bytes);
        free(item);
        count--;
    }
}

void slow_wipe(void)
{
    for (unsigned i = 0; i < BUCKETS; i++) {
        while (buckets[i] != NULL) {
            drop(&buckets[i]);
        }
    }
    epoch_count = 0;
    count = reads = writes = 0;
}

static void note_epoch(const uint8_t *id, uint32_t epoch)
{
    for (uint32_t i = 0; i < epoch_count; i++) {
        if (memcmp(epochs[i].space, id, LDR_ID_BYTES) == 0) {
            epochs[i].epoch = epoch > epochs[i].epoch ? epoch : epochs[i].epoch;
            return;
        }
    }
    if (epoch > 0 && epoch_count < LDR_SPACES_MAX) {
        memcpy(epochs[epoch_count].space, id, LDR_ID_BYTES);
        epochs[epoch_count++].epoch = epoch;
    }
}

static bool hangs(void)
{
    return slow_control.hangs || (slow_control.hang[0] != '\0' &&
                                  access(slow_control.hang, F_OK) == 0);
}

/* Every nth. */
static bool fails(unsigned nth)
{
    static unsigned passes;

    return nth > 0 && ++passes % nth == 0;
}

/* ---- reading and writing ---- */

/* The shard's pages are filled, and its loads end. With the node's lock. */
static void read_one(slow_t *t, uint32_t shard)
{
    ldr_host_t *host = t->base.host;
    ldr_store_t *store = &host->store;
    const ldr_shard_t *sh = &store->shards[shard];
    ldr_chunk_t *c = &store->chunks[sh->chunk];
    struct iovec iov[LDR_READ_IOV];
    ldr_record_t record = {0};

    pthread_mutex_lock(&lock);
    item_t *item =
        *place_of(store->spaces[c->space].id, &c->key, c->group, sh->number);
    bool there = item != NULL && item->record.epoch == c->epoch &&
                 item->record.length <= sh->length && c->entry != LDR_NIL;
    if (there) {
        uint32_t n = ldr_arena_iov(&store->arena, sh->page, item->record.length,
                                   iov, LDR_READ_IOV);
        const uint8_t *from = item->bytes;

        record = item->record;
        for (uint32_t i = 0; i < n; i++) {
            memcpy(iov[i].iov_base, from, iov[i].iov_len);
            from += iov[i].iov_len;
        }
        if (slow_control.corrupts) {
            *(uint8_t *)iov[0].iov_base ^= 1;
        }
        reads++;
    }
    pthread_mutex_unlock(&lock);
    if (fails(slow_control.read_fail)) {
        ldr_load_failed(host, shard, LARDER_CAUSE_IO);
        return;
    }
    if (!there) {
        ldr_load_failed(host, shard, LARDER_CAUSE_EVICTED);
        return;
    }
    c->parent = record.parent;
    c->written_s = record.written_s;
    ldr_entry_t *e = ldr_index_at(&store->index, c->entry);
    e->expires_s = ldr_store_earlier(e->expires_s, record.expires_s);
    c->expires_s = e->expires_s;
    ldr_store_set_length(store, shard, record.length);
    if (ldr_store_commit(store, shard, record.payload_crc, false)) {
        if (!slow_control.apart) {
            ldr_host_queue(host, shard, &t->base);
        }
        ldr_load_came(host, shard);
    } else {
        ldr_load_failed(host, shard, LARDER_CAUSE_STALE);
    }
}

/* The oldest that waits, without the lock while it is copied. */
static void write_one(slow_t *t)
{
    ldr_host_t *host = t->base.host;
    ldr_store_t *store = &host->store;
    unsigned queue = ldr_tier_queue(t->base.ops);
    uint32_t shard = store->queues[queue].subqueues[0].head;
    ldr_record_t record = ldr_store_record(store, shard);
    struct iovec iov[LDR_READ_IOV];

    ldr_behind_take(store, queue, shard);
    uint32_t n = ldr_arena_iov(&store->arena, store->shards[shard].page,
                               record.length, iov, LDR_READ_IOV);
    ldr_host_unlock(host);
    item_t *item = malloc(sizeof(*item));
    item->record = record;
    item->bytes = malloc(record.length);
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(item->bytes + at, iov[i].iov_base, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    ldr_host_lock(host);
    const ldr_chunk_t *c = &store->chunks[store->shards[shard].chunk];
    bool wanted = c->entry != LDR_NIL &&
                  c->epoch == store->spaces[c->space].epoch &&
                  !fails(slow_control.write_fail);
    if (wanted) {
        pthread_mutex_lock(&lock);
        drop(
            place_of(record.space_id, &record.key, record.group, record.shard));
        item_t **place =
            place_of(record.space_id, &record.key, record.group, record.shard);
        item->next = *place;
        *place = item;
        count++;
        writes++;
        pthread_mutex_unlock(&lock);
    } else {
        free(item->bytes);
        free(item);
    }
    ldr_behind_done(store, queue, shard, false);
    pthread_cond_broadcast(&host->changed);
}

static uint32_t take_fetch(slow_t *t)
{
    uint32_t shard = t->head;

    t->head = t->base.host->store.shards[shard].fetch_next;
    t->tail = t->head == LDR_NIL ? LDR_NIL : t->tail;
    return shard;
}

static bool slow_step(ldr_tier_t *tier)
{
    slow_t *t = (slow_t *)tier;
    const ldr_behind_t *q =
        &tier->host->store.queues[ldr_tier_queue(tier->ops)];

    if (hangs()) {
        return false;
    }
    if (t->head != LDR_NIL) {
        read_one(t, take_fetch(t));
        pthread_cond_broadcast(&tier->host->changed);
        return true;
    }
    if (q->count > 0) {
        write_one(t);
        return true;
    }
    return false;
}

static void *slow_main(void *arg)
{
    slow_t *t = arg;
    ldr_host_t *host = t->base.host;

    ldr_host_lock(host);
    while (!t->stop) {
        ldr_host_unlock(host);
        usleep(slow_control.delay_ms > 0 ? slow_control.delay_ms * 1000 : 100);
        ldr_host_lock(host);
        if (!t->stop && !slow_step(&t->base)) {
            ldr_host_tell(host);
            ldr_cond_wait_until(&t->work, &host->lock,
                                ldr_now_ns(host->clock) + 20000000u);
        }
    }
    ldr_host_unlock(host);
    return NULL;
}

/* ---- the row ---- */

__attribute__((constructor)) static void reset_control(void)
{
    simdisk_fresh = slow_wipe;
}

static const ldr_tier_ops_t slow_ops;

static void read_control(void)
{
    const char *text = getenv("LARDER_TEST_TIER");
    char copy[256], *rest = copy, *word;

    if (text == NULL) {
        return;
    }
    snprintf(copy, sizeof(copy), "%s", text);
    while ((word = strsep(&rest, ",")) != NULL) {
        slow_control.on = slow_control.on || strcmp(word, "on") == 0;
        slow_control.apart = slow_control.apart || strcmp(word, "apart") == 0;
        sscanf(word, "read_fail=%u", &slow_control.read_fail);
        sscanf(word, "write_fail=%u", &slow_control.write_fail);
        sscanf(word, "delay_ms=%u", &slow_control.delay_ms);
        sscanf(word, "hang=%127s", slow_control.hang);
    }
}

static larder_status_t slow_open(ldr_host_t *host)
{
    read_control();
    if (!slow_control.on) {
        return LARDER_OK;
    }
    slow_t *t = calloc(1, sizeof(*t));
    if (t == NULL || !ldr_cond_init(&t->work)) {
        free(t);
        return LARDER_E_NO_MEMORY;
    }
    t->base = (ldr_tier_t){&slow_ops, host};
    t->head = t->tail = LDR_NIL;
    ldr_host_add_tier(host, &t->base);
    ldr_host_lock(host);
    for (uint32_t i = 0; i < epoch_count; i++) {
        uint32_t space = ldr_store_space(&host->store, epochs[i].space);

        if (space != LDR_NIL) {
            ldr_store_set_epoch(&host->store, space, epochs[i].epoch);
        }
    }
    ldr_host_epochs_later(host, &t->base);
    ldr_host_unlock(host);
    return LARDER_OK;
}

static larder_status_t slow_start(ldr_tier_t *tier)
{
    slow_t *t = (slow_t *)tier;

    t->thread_started =
        !tier->host->manual &&
        ldr_thread_start(&t->thread, "larder-slow", slow_main, t);
    return LARDER_OK;
}

static bool slow_end(ldr_tier_t *tier, uint64_t deadline_ns)
{
    slow_t *t = (slow_t *)tier;

    (void)deadline_ns;
    ldr_host_lock(tier->host);
    t->stop = true;
    pthread_cond_signal(&t->work);
    ldr_host_unlock(tier->host);
    if (t->thread_started) {
        pthread_join(t->thread, NULL);
    }
    ldr_host_lock(tier->host);
    while (t->head != LDR_NIL) {
        ldr_load_failed(tier->host, take_fetch(t), LARDER_CAUSE_DEADLINE);
    }
    ldr_host_unlock(tier->host);
    return true;
}

static void slow_destroy(ldr_tier_t *tier)
{
    slow_t *t = (slow_t *)tier;

    pthread_cond_destroy(&t->work);
    free(t);
}

static uint32_t slow_find(ldr_tier_t *tier, const ldr_sought_t *s,
                          larder_cause_t *cause_p)
{
    const ldr_space_t *space = &tier->host->store.spaces[s->name->space];
    uint32_t now_s = ldr_wall_s(tier->host->clock);
    uint32_t bytes = 0;

    (void)cause_p;
    pthread_mutex_lock(&lock);
    const item_t *item =
        *place_of(space->id, s->name->key, s->name->group, s->number);
    if (item != NULL && item->record.epoch == space->epoch &&
        (item->record.expires_s == 0 || now_s < item->record.expires_s)) {
        bytes = item->record.length;
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

static void slow_fetch(ldr_tier_t *tier, uint32_t shard)
{
    slow_t *t = (slow_t *)tier;
    ldr_shard_t *shards = tier->host->store.shards;

    shards[shard].fetch_next = LDR_NIL;
    if (t->tail != LDR_NIL) {
        shards[t->tail].fetch_next = shard;
    } else {
        t->head = shard;
    }
    t->tail = shard;
}

static void slow_submit(ldr_tier_t *tier)
{
    slow_t *t = (slow_t *)tier;

    ldr_host_lock(tier->host);
    pthread_cond_signal(&t->work);
    ldr_host_unlock(tier->host);
}

static bool slow_accepts(ldr_tier_t *tier, uint32_t space)
{
    (void)tier;
    (void)space;
    return !hangs();
}

static void slow_queue(ldr_tier_t *tier, uint32_t shard)
{
    ldr_behind_push(&tier->host->store, ldr_tier_queue(tier->ops), shard);
}

static larder_status_t slow_flush(ldr_tier_t *tier, const ldr_stop_t *stop)
{
    ldr_host_t *host = tier->host;
    unsigned queue = ldr_tier_queue(tier->ops);
    larder_status_t st = LARDER_OK;

    ldr_host_lock(host);
    uint64_t start = host->store.queues[queue].turn;
    while (st == LARDER_OK && !hangs() &&
           !ldr_behind_drained(&host->store, queue, start)) {
        if (!ldr_host_wait_stop(host, stop)) {
            st = ldr_host_gave_up(host, stop);
        }
    }
    ldr_host_unlock(host);
    return st;
}

static larder_status_t slow_remove(ldr_tier_t *tier, uint32_t space,
                                   uint32_t entry, const larder_item_t *item,
                                   uint64_t *token_p, bool *there_p)
{
    const ldr_space_t *s = &tier->host->store.spaces[space];

    (void)entry;
    (void)token_p;
    pthread_mutex_lock(&lock);
    item_t **at = place_of(s->id, item->key, item->group, item->shard);
    *there_p = *at != NULL && (*at)->record.epoch == s->epoch;
    drop(at);
    pthread_mutex_unlock(&lock);
    return LARDER_OK;
}

static larder_status_t slow_remove_wait(ldr_tier_t *tier, uint32_t space,
                                        const larder_item_t *items, size_t n,
                                        uint64_t token, const ldr_stop_t *stop)
{
    (void)tier;
    (void)space;
    (void)items;
    (void)n;
    (void)token;
    (void)stop;
    return LARDER_OK;
}

static void slow_epochs_later(ldr_tier_t *tier)
{
    const ldr_store_t *store = &tier->host->store;

    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < store->space_count; i++) {
        note_epoch(store->spaces[i].id, store->spaces[i].epoch);
    }
    pthread_mutex_unlock(&lock);
}

static larder_status_t slow_epochs(ldr_tier_t *tier, uint32_t space,
                                   uint64_t deadline_ns, bool *raised_p)
{
    (void)space;
    (void)deadline_ns;
    *raised_p = false;
    ldr_host_lock(tier->host);
    slow_epochs_later(tier);
    ldr_host_unlock(tier->host);
    return LARDER_OK;
}

static void slow_adopt_secret(ldr_tier_t *tier, uint32_t space)
{
    (void)tier;
    (void)space;
}

static const ldr_tier_ops_t slow_ops = {
    .name = "slow",
    .number = (larder_tier_t)SLOW_TIER,
    .speed = 1e8,
    .keeps = true,
    .open = slow_open,
    .start = slow_start,
    .step = slow_step,
    .end = slow_end,
    .destroy = slow_destroy,
    .find = slow_find,
    .fetch = slow_fetch,
    .submit = slow_submit,
    .accepts = slow_accepts,
    .queue = slow_queue,
    .flush = slow_flush,
    .remove = slow_remove,
    .remove_wait = slow_remove_wait,
    .epochs = slow_epochs,
    .epochs_later = slow_epochs_later,
    .adopt_secret = slow_adopt_secret,
};

const ldr_tier_ops_t *const ldr_tier_rows[] = {&ldr_tier_ssd, &ldr_tier_shared,
                                               &slow_ops, NULL};
