/*
 * KV events by ZeroMQ: see events.h.
 *
 * Threads: all of ldr_events_t belongs to the events' thread, from start to
 * join. Another thread may only set `stop`.
 *
 * Invariants
 *  1. A topic's messages are numbered without gaps, and `next` is above all of
 *     them. A restart begins above the numbers of any run before (the wall
 *     clock).
 *  2. kept_bytes of all is the sum of the topics', and each topic's the sum of
 *     its kept messages, oldest first.
 *  3. What a replay goes on with is one of its topic's kept messages, or NULL.
 */
#include "server/events.h"

#if LDR_HAVE_ZMQ

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "server/events_auth.h"
#include "server/events_message.h"
#include "server/events_pack.h"

#define TOPICS_MAX LDR_SOURCES_MAX
#define HOLDER_BYTES (LDR_DESCRIBE_POD + 8u) /* as in a topic */
#define TOPIC_BYTES (HOLDER_BYTES + LDR_DESCRIBE_MODEL + 8u)
#define BATCH_BYTES 65536u /* a message with so many goes out */
#define BATCH_EVENTS 256u
#define LOOKS 1024u     /* descriptions between two looks at the sockets */
#define QUEUE_MAX 1000  /* messages that wait for one subscriber */
#define REQUESTS_MAX 16 /* for replays, between two looks at the catalogue */
#define SUBSCRIPTIONS_MAX 1024 /* ... and that came or went */
#define SECOND_NS UINT64_C(1000000000)
#define AGAIN_NS SECOND_NS /* between two complete republications */
#define REPLAYS_MAX 64u    /* under way; other requests wait */
#define ASKER_BYTES 256u
#define UNREAD_NS (5 * SECOND_NS) /* and a replay's reader is given up */

typedef ldr_event_message_t message_t;

typedef struct topic {
    char name[TOPIC_BYTES];
    char holder[HOLDER_BYTES], model[LDR_DESCRIBE_MODEL];
    ldr_topic_of_t of;
    uint64_t next; /* number of the next message */
    ldr_pack_t pack;
    uint32_t count; /* events in it */
    message_t *oldest, *newest;
    uint64_t kept_bytes;
    bool again;        /* all of it is to be published again */
    uint64_t again_ns; /* when that was last done */
} topic_t;

/* What somebody asked for who has not got all of it yet. Who asks is named
 * first, then what vLLM answers: an empty part, the topic, the number and the
 * payload. */
typedef struct replay {
    uint8_t id[ASKER_BYTES];
    size_t id_bytes;
    char name[TOPIC_BYTES]; /* of the topic */
    size_t name_bytes;
    topic_t *topic;    /* NULL: there is none */
    message_t *at;     /* goes next; NULL: the end, */
    bool cleared;      /* but first that nothing is stored */
    uint64_t taken_ns; /* when one was last taken */
} replay_t;

struct ldr_events {
    ldr_events_params_t p;
    void *context, *pub, *router;
    ldr_events_auth_t *auth; /* NULL: everybody may connect */
    topic_t *topics[TOPICS_MAX];
    unsigned topic_count;
    uint64_t kept_bytes;
    uint64_t look_ns; /* the next look at all descriptions */
    uint64_t begun; /* the last number_begin(), or a number of a topic that was
                       given up: what begins is above all of them */
    replay_t replays[REPLAYS_MAX]; /* in the order of the requests */
    unsigned replay_count;
    pthread_t thread;
    bool full; /* there was no topic left, and the log has it */
    bool started;
    bool stop; /* atomic */
};

/* ---- messages ---- */

static void put_number(uint8_t at[8], uint64_t number)
{
    for (unsigned i = 0; i < 8; i++) {
        at[i] = (uint8_t)(number >> (56 - 8 * i));
    }
}

/* A number beyond those of any run before, and beyond all that this one has
 * given for topics that had not begun. */
static uint64_t number_begin(ldr_events_t *e)
{
    e->begun = ldr_max64(ldr_wall_ms(e->p.clock) * 1000, e->begun + 1);
    return e->begun;
}

static void kept_drop(ldr_events_t *e, topic_t *t)
{
    message_t *m = t->oldest;

    t->oldest = m->next;
    if (t->oldest == NULL) {
        t->newest = NULL;
    }
    t->kept_bytes -= m->bytes;
    e->kept_bytes -= m->bytes;
    for (unsigned i = 0; i < e->replay_count; i++) {
        if (e->replays[i].at == m) {
            e->replays[i].at = m->next;
        }
    }
    ldr_event_message_drop(m);
}

/* The topic with most gives up its oldest, until all of them fit. */
static void kept_bound(ldr_events_t *e)
{
    while (e->kept_bytes > e->p.keep_bytes) {
        topic_t *most = e->topics[0];

        for (unsigned i = 1; i < e->topic_count; i++) {
            if (e->topics[i]->kept_bytes > most->kept_bytes) {
                most = e->topics[i];
            }
        }
        kept_drop(e, most);
    }
}

/* Sends it to all who have subscribed, and keeps it for replays. */
static void publish(ldr_events_t *e, topic_t *t, message_t *m)
{
    uint8_t text[8];

    put_number(text, m->number);
    ldr_event_message_send(
        e->pub,
        (ldr_piece_t[]){{t->name, strlen(t->name)}, {text, sizeof(text)}}, 2,
        m);
    *(t->newest != NULL ? &t->newest->next : &t->oldest) = m;
    t->newest = m;
    t->kept_bytes += m->bytes;
    e->kept_bytes += m->bytes;
    kept_bound(e);
}

/* Publishes what was packed for a topic. Without memory the message is lost,
 * but not its number: subscribers see that one is missing. */
static void flush(ldr_events_t *e, topic_t *t)
{
    if (t->count == 0) {
        return;
    }
    ldr_pack_t head = {0};
    ldr_pack_array(&head, 3);
    ldr_pack_double(&head, (double)ldr_wall_ms(e->p.clock) / 1000);
    ldr_pack_array(&head, t->count);
    ldr_pack_uint(&t->pack, 0); /* data_parallel_rank, behind the events */
    size_t bytes = head.bytes + t->pack.bytes;
    message_t *m =
        head.failed || t->pack.failed ? NULL : ldr_event_message_new(bytes);
    uint64_t number = t->next++;
    if (m != NULL) {
        m->number = number;
        m->count = t->count;
        memcpy(m->data, head.at, head.bytes);
        memcpy(m->data + head.bytes, t->pack.at, t->pack.bytes);
        publish(e, t, m);
    }
    ldr_metrics_event(e->p.metrics,
                      m != NULL ? LDR_EVENT_KV_PUBLISHED : LDR_EVENT_KV_DROPPED,
                      t->count);
    ldr_free(head.at);
    t->pack.bytes = 0;
    t->pack.failed = false;
    t->count = 0;
}

static void flush_all(ldr_events_t *e)
{
    for (unsigned i = 0; i < e->topic_count; i++) {
        flush(e, e->topics[i]);
    }
}

/* ---- topics ---- */

static void topic_clear(const ldr_events_t *e, topic_t *t)
{
    ldr_event_pack_cleared(&t->pack, e->p.owned);
    t->count++;
}

/* Who has it, as topics name that. */
static void name_holder(const ldr_events_t *e, const ldr_catalog_change_t *c,
                        char holder[HOLDER_BYTES])
{
    if (e->p.topics == LDR_EVENTS_TOPICS_ENGINES) {
        snprintf(holder, HOLDER_BYTES, "%s", c->source->pod);
    } else {
        snprintf(holder, HOLDER_BYTES, "%s:%s",
                 c->medium == LDR_MEDIUM_AWAY ? "pool" : "node", e->p.node);
    }
}

/* One of which nothing is described any more, so that all of it is withdrawn,
 * is given up: its engines may be gone for ever. Who is being sent what it had
 * is told that nothing is left. NULL: there is none. */
static topic_t *topic_unused(ldr_events_t *e)
{
    unsigned i = 0;

    while (i < e->topic_count &&
           ldr_catalog_described(e->p.catalog, &e->topics[i]->of)) {
        i++;
    }
    if (i == e->topic_count) {
        return NULL;
    }
    topic_t *t = e->topics[i];
    flush(e, t);
    e->begun = ldr_max64(e->begun, t->next);
    for (unsigned r = 0; r < e->replay_count; r++) {
        if (e->replays[r].topic == t) {
            e->replays[r].cleared |= e->replays[r].at != NULL;
            e->replays[r].topic = NULL;
        }
    }
    while (t->oldest != NULL) {
        kept_drop(e, t);
    }
    ldr_free(t->pack.at);
    memset(t, 0, sizeof(*t));
    return t;
}

/* NULL: there are too many. */
static topic_t *topic_of(ldr_events_t *e, const ldr_catalog_change_t *c)
{
    const uint32_t away = 1u << LDR_MEDIUM_AWAY;
    char holder[HOLDER_BYTES];

    name_holder(e, c, holder);
    for (unsigned i = 0; i < e->topic_count; i++) {
        if (strcmp(e->topics[i]->holder, holder) == 0 &&
            strcmp(e->topics[i]->model, c->source->model) == 0) {
            return e->topics[i];
        }
    }
    bool room = e->topic_count < TOPICS_MAX;
    topic_t *t = room ? ldr_alloc(sizeof(*t)) : topic_unused(e);
    if (t == NULL) {
        return NULL;
    }
    if (room) {
        e->topics[e->topic_count++] = t;
    }
    memcpy(t->holder, holder, sizeof(t->holder));
    memcpy(t->model, c->source->model, sizeof(t->model));
    snprintf(t->name, sizeof(t->name), "kv@%s@%s", t->holder, t->model);
    t->of = (ldr_topic_of_t){
        .tenant = e->p.tenant,
        .media = c->medium == LDR_MEDIUM_AWAY ? away : ~away,
        .pod = e->p.topics == LDR_EVENTS_TOPICS_ENGINES ? t->holder : NULL,
        .model = t->model,
    };
    t->next = number_begin(e);
    topic_clear(e, t);
    return t;
}

/* Called with the catalogue's lock. */
static void on_change(void *arg, const ldr_catalog_change_t *c)
{
    ldr_events_t *e = arg;

    if (c->source->tenant != e->p.tenant) {
        return;
    }
    topic_t *t = topic_of(e, c);
    if (t == NULL) {
        ldr_metrics_event(e->p.metrics, LDR_EVENT_KV_DROPPED, 1);
        if (!e->full) {
            ldr_warn(&e->p.log,
                     "events: %u topics are in use (or there is no memory): "
                     "those of more models and engines are dropped",
                     TOPICS_MAX);
        }
        e->full = true;
        return;
    }
    ldr_event_pack(&t->pack, c, e->p.owned);
    t->count++;
    if (t->count >= BATCH_EVENTS || t->pack.bytes >= BATCH_BYTES) {
        flush(e, t);
    }
}

/* ---- replays ---- */

/* The topic that a request names; without a name the only one. */
static topic_t *topic_named(const ldr_events_t *e, const char *name,
                            size_t bytes)
{
    if (bytes == 0) {
        return e->topic_count == 1 ? e->topics[0] : NULL;
    }
    for (unsigned i = 0; i < e->topic_count; i++) {
        if (strlen(e->topics[i]->name) == bytes &&
            memcmp(e->topics[i]->name, name, bytes) == 0) {
            return e->topics[i];
        }
    }
    return NULL;
}

/* Everything that was asked for is published again, after a message that clears
 * it. What has just been published again waits: who asks now may have come
 * after that began. */
static void publish_again(ldr_events_t *e, topic_t *t)
{
    uint64_t now_ns = ldr_now_ns(e->p.clock);

    if (!t->again || (t->again_ns != 0 && now_ns - t->again_ns < AGAIN_NS)) {
        return;
    }
    t->again = false;
    t->again_ns = now_ns;
    flush(e, t);
    ldr_catalog_republish(e->p.catalog, &t->of);
    e->look_ns = now_ns; /* and what is elsewhere is looked up again */
    topic_clear(e, t);
}

/* One part of a request: up to size bytes of it; -1: there is none. */
static int receive(void *socket, void *at, size_t size, bool *more_p)
{
    int bytes = zmq_recv(socket, at, size, ZMQ_DONTWAIT);
    int more = 0;
    size_t room = sizeof(more);

    if (bytes < 0 || zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &room) != 0) {
        return -1;
    }
    *more_p = more != 0;
    return bytes;
}

/* m NULL: the end, which has no topic. As ldr_event_message_send(). */
static int reply(ldr_events_t *e, const replay_t *r, uint64_t number,
                 message_t *m)
{
    uint8_t text[8];

    put_number(text, number);
    const ldr_piece_t heads[] = {{r->id, r->id_bytes},
                                 {"", 0},
                                 {r->name, m != NULL ? r->name_bytes : 0},
                                 {text, sizeof(text)}};
    return ldr_event_message_send(e->router, heads, 4, m);
}

/* The answer about a topic that has not begun: nothing is stored there, also if
 * the node before this one has published something. */
static int reply_cleared(ldr_events_t *e, const replay_t *r)
{
    ldr_pack_t p = {0};
    int error = ENOMEM;

    ldr_pack_array(&p, 3);
    ldr_pack_double(&p, (double)ldr_wall_ms(e->p.clock) / 1000);
    ldr_pack_array(&p, 1);
    ldr_event_pack_cleared(&p, e->p.owned);
    ldr_pack_uint(&p, 0);
    message_t *m = p.failed ? NULL : ldr_event_message_new(p.bytes);
    if (m != NULL) {
        memcpy(m->data, p.at, p.bytes);
        error = reply(e, r, number_begin(e), m);
        ldr_event_message_drop(m);
    }
    ldr_free(p.at);
    return error;
}

/* Sends as much as the asker's queue takes: 0 if that was all of it. */
static int replay_go_on(ldr_events_t *e, replay_t *r)
{
    int error = r->cleared ? reply_cleared(e, r) : 0;

    r->cleared = error != 0;
    for (int i = 0; error == 0 && r->at != NULL; i++) {
        if (i == QUEUE_MAX) {
            return EAGAIN; /* events go out between */
        }
        error = reply(e, r, r->at->number, r->at);
        if (error == 0) {
            ldr_metrics_event(e->p.metrics, LDR_EVENT_KV_REPLAYED,
                              r->at->count);
            r->at = r->at->next;
            r->taken_ns = ldr_now_ns(e->p.clock);
        }
    }
    return error != 0 ? error : reply(e, r, UINT64_MAX, NULL);
}

static bool same_asker(const replay_t *a, const replay_t *b)
{
    return a->id_bytes == b->id_bytes && memcmp(a->id, b->id, a->id_bytes) == 0;
}

/* Goes on with all of them, of each asker with the first. Those of an asker
 * that does not read, or is gone, are over. */
static void replays_go_on(ldr_events_t *e)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < e->replay_count; i++) {
        replay_t *r = &e->replays[i];
        unsigned before = 0;

        while (before < kept && !same_asker(&e->replays[before], r)) {
            before++;
        }
        int error = EAGAIN;
        if (before == kept) {
            error = replay_go_on(e, r);
        } else {
            r->taken_ns = ldr_max64(r->taken_ns, e->replays[before].taken_ns);
        }
        bool over = error == 0 || error == EHOSTUNREACH ||
                    ldr_now_ns(e->p.clock) - r->taken_ns >= UNREAD_NS;
        if (!over && kept++ != i) {
            e->replays[kept - 1] = *r;
        }
    }
    e->replay_count = kept;
}

/* [who, "", number, topic?]: all messages of the topic from that number on that
 * are kept, then one with the number -1. The number -1 asks for everything.
 * False: there is no request. */
static bool take_request(ldr_events_t *e, replay_t *r)
{
    uint8_t empty[1], number[8];
    bool more = false;
    uint64_t from = 0;
    int id_bytes = receive(e->router, r->id, sizeof(r->id), &more);
    int name_bytes = 0, number_bytes = 0;

    if (id_bytes < 0) {
        return false;
    }
    int empty_bytes = more ? receive(e->router, empty, 1, &more) : -1;
    if (empty_bytes == 0 && more) {
        number_bytes = receive(e->router, number, sizeof(number), &more);
    }
    if (number_bytes == 8 && more) {
        name_bytes = receive(e->router, r->name, sizeof(r->name), &more);
    }
    bool good = id_bytes <= (int)sizeof(r->id) && number_bytes == 8 &&
                name_bytes >= 0 && name_bytes <= (int)sizeof(r->name) && !more;
    while (more && receive(e->router, empty, sizeof(empty), &more) >= 0) {
    }
    if (!good) {
        return true;
    }
    for (unsigned i = 0; i < 8; i++) {
        from = from << 8 | number[i];
    }
    r->id_bytes = (size_t)id_bytes;
    r->name_bytes = (size_t)name_bytes;
    r->topic = topic_named(e, r->name, r->name_bytes);
    r->at = NULL;
    r->cleared = r->topic == NULL && from != UINT64_MAX &&
                 (name_bytes > 0 || e->topic_count == 0);
    r->taken_ns = ldr_now_ns(e->p.clock);
    if (r->topic != NULL) {
        r->name_bytes = strlen(r->topic->name);
        memcpy(r->name, r->topic->name, r->name_bytes);
        r->topic->again |= from == UINT64_MAX;
        r->at = r->topic->oldest;
        while (r->at != NULL && r->at->number < from) {
            r->at = r->at->next;
        }
    }
    e->replay_count++;
    return true;
}

static void serve_replays(ldr_events_t *e)
{
    for (int i = 0; i < REQUESTS_MAX && e->replay_count < REPLAYS_MAX &&
                    take_request(e, &e->replays[e->replay_count]);
         i++) {
    }
    replays_go_on(e);
}

/* ---- the thread ---- */

/* Subscribers come and go: 1 or 0, and a topic. */
static void count_subscriptions(ldr_events_t *e)
{
    bool more = false;
    uint8_t at[1];
    int bytes;

    for (int i = 0; i < SUBSCRIPTIONS_MAX &&
                    (bytes = receive(e->pub, at, sizeof(at), &more)) >= 0;
         i++) {
        if (bytes > 0 && at[0] <= 1) {
            ldr_metrics_level(e->p.metrics, LDR_LEVEL_SUBSCRIPTIONS,
                              at[0] == 1 ? 1 : -1);
        }
        while (more && receive(e->pub, at, sizeof(at), &more) >= 0) {
        }
    }
}

static void *events_main(void *arg)
{
    ldr_events_t *e = arg;
    zmq_pollitem_t items[3] = {{.socket = e->pub, .events = ZMQ_POLLIN}};
    int count = 1;

    if (e->router != NULL) {
        items[count++] =
            (zmq_pollitem_t){.socket = e->router, .events = ZMQ_POLLIN};
    }
    if (e->auth != NULL) {
        items[count++] = (zmq_pollitem_t){
            .socket = ldr_events_auth_socket(e->auth), .events = ZMQ_POLLIN};
    }
    while (!__atomic_load_n(&e->stop, __ATOMIC_ACQUIRE)) {
        bool away = ldr_catalog_away(e->p.catalog);
        bool more = ldr_catalog_changes(e->p.catalog, LOOKS, on_change, e);

        flush_all(e);
        if (e->router != NULL) { /* it waits where there is no place for it */
            items[1].events = e->replay_count < REPLAYS_MAX ? ZMQ_POLLIN : 0;
        }
        zmq_poll(items, count, more || away ? 0 : LDR_EVENTS_MS);
        ldr_events_auth_serve(e->auth);
        count_subscriptions(e);
        if (e->router != NULL) {
            serve_replays(e);
        }
        for (unsigned i = 0; i < e->topic_count; i++) {
            publish_again(e, e->topics[i]);
        }
        uint64_t now_ns = ldr_now_ns(e->p.clock);
        if (now_ns >= e->look_ns) {
            ldr_catalog_look_again(e->p.catalog);
            if (e->p.topics == LDR_EVENTS_TOPICS_POOL) {
                ldr_catalog_away_begin(e->p.catalog, e->p.tenant);
            }
            e->look_ns = now_ns + LDR_EVENTS_LOOK_MS * UINT64_C(1000000);
        }
    }
    return NULL;
}

/* ---- life ---- */

static void *socket_open(ldr_events_t *e, int kind, const char *url)
{
    int most = QUEUE_MAX, none = 0, beat_ms = 10000, one = 1;
    int64_t large = 4096; /* of what others may send here */
    void *s = zmq_socket(e->context, kind);

    if (s == NULL) {
        return NULL;
    }
    zmq_setsockopt(s, ZMQ_SNDHWM, &most, sizeof(most));
    zmq_setsockopt(s, ZMQ_RCVHWM, &most, sizeof(most));
    zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof(none));
    zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &large, sizeof(large));
    zmq_setsockopt(s, ZMQ_HEARTBEAT_IVL, &beat_ms, sizeof(beat_ms));
    zmq_setsockopt(s, ZMQ_IPV6, &one, sizeof(one));
    if (kind == ZMQ_XPUB) { /* every subscription is told, not the first only */
        zmq_setsockopt(s, ZMQ_XPUB_VERBOSER, &one, sizeof(one));
    } else { /* and what a reader's queue has no room for is not dropped */
        zmq_setsockopt(s, ZMQ_ROUTER_MANDATORY, &one, sizeof(one));
    }
    if (!ldr_events_auth_on(e->auth, s) || zmq_bind(s, url) != 0) {
        zmq_close(s);
        return NULL;
    }
    return s;
}

static larder_status_t sockets_open(ldr_events_t *e)
{
    sigset_t all, before;

    /* Its threads inherit the mask: signals are the main thread's. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    e->context = zmq_ctx_new();
    larder_status_t st =
        e->context == NULL
            ? ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for events")
        : e->p.key[0] != '\0'
            ? ldr_events_auth_open(e->context, e->p.key, e->p.clients,
                                   e->p.metrics, &e->auth)
            : LARDER_OK;
    if (st != LARDER_OK) {
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return st;
    }
    /* XPUB is PUB that hears of subscriptions. */
    e->pub = socket_open(e, ZMQ_XPUB, e->p.url);
    const char *what = "events", *url = e->p.url;
    if (e->pub != NULL && e->p.replay[0] != '\0') {
        what = "events_replay";
        url = e->p.replay;
        e->router = socket_open(e, ZMQ_ROUTER, e->p.replay);
    }
    bool good = e->pub != NULL && (e->p.replay[0] == '\0' || e->router != NULL);
    int error = zmq_errno();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return good ? LARDER_OK
                : ldr_fail(LARDER_E_IO, "%s=%s: cannot listen: %s", what, url,
                           zmq_strerror(error));
}

larder_status_t ldr_events_open(const ldr_events_params_t *params,
                                ldr_events_t **events_p)
{
    ldr_events_t *e = ldr_alloc(sizeof(*e));

    if (e == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for events");
    }
    e->p = *params;
    larder_status_t st = sockets_open(e);
    if (st == LARDER_OK &&
        !ldr_catalog_watch(e->p.catalog,
                           e->p.topics != LDR_EVENTS_TOPICS_ENGINES)) {
        st = ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for events");
    }
    if (st == LARDER_OK) {
        e->started =
            ldr_thread_start(&e->thread, "larder-events", events_main, e);
        st = e->started ? LARDER_OK
                        : ldr_fail(LARDER_E_NO_MEMORY,
                                   "the events' thread cannot be started");
    }
    if (st != LARDER_OK) {
        ldr_events_close(e);
        return st;
    }
    ldr_info(&e->p.log, "events: %s", e->p.url);
    *events_p = e;
    return LARDER_OK;
}

void ldr_events_close(ldr_events_t *e)
{
    if (e == NULL) {
        return;
    }
    if (e->started) {
        __atomic_store_n(&e->stop, true, __ATOMIC_RELEASE);
        pthread_join(e->thread, NULL);
    }
    if (e->pub != NULL) {
        zmq_close(e->pub);
    }
    if (e->router != NULL) {
        zmq_close(e->router);
    }
    ldr_events_auth_close(e->auth);
    if (e->context != NULL) {
        zmq_ctx_term(e->context);
    }
    for (unsigned i = 0; i < e->topic_count; i++) {
        while (e->topics[i]->oldest != NULL) {
            kept_drop(e, e->topics[i]);
        }
        ldr_free(e->topics[i]->pack.at);
        ldr_free(e->topics[i]);
    }
    ldr_free(e);
}

larder_status_t ldr_events_check(const char *url)
{
    (void)url;
    return LARDER_OK;
}

#else /* no libzmq */

larder_status_t ldr_events_check(const char *url)
{
    return ldr_fail(LARDER_E_UNSUPPORTED,
                    "events=%s: built without libzmq (Debian: libzmq3-dev)",
                    url);
}

larder_status_t ldr_events_open(const ldr_events_params_t *params,
                                ldr_events_t **events_p)
{
    (void)events_p;
    return ldr_events_check(params->url);
}

void ldr_events_close(ldr_events_t *e)
{
    (void)e;
}

#endif
