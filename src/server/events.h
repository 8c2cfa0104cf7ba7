/*
 * KV events of the node, by ZeroMQ, as vLLM's engines publish theirs
 * (docs/guide/routing.md).
 *
 * A *topic* is kv@POD@MODEL: what one engine has described and this node has;
 * or kv@node:NODE@MODEL: what any engine has described and this node has; or
 * kv@pool:NODE@MODEL: what any has described, this node has not, and its loads
 * would find elsewhere.
 * Its messages are numbered without gaps, from the time at which the topic
 * began (in microseconds), so that numbers grow over restarts. The first
 * message clears what was believed of the topic, and so does the first after a
 * subscriber has asked for everything again. A number that a subscriber has
 * missed it can ask for (replay), and if that is not kept any more, for
 * everything.
 *
 * One thread does all of it. It looks at what the catalogue notes every
 * LDR_EVENTS_MS, and at all descriptions every LDR_EVENTS_LOOK_MS; so often it
 * asks other members for what is not here, if there is a pool. No save and
 * no load waits for it, and no subscriber can make it wait: what a subscriber
 * does not read is dropped for that subscriber.
 */
#pragma once

#include <stdint.h>

#include "base/log.h"
#include "larder/larder.h"
#include "server/catalog.h"
#include "server/metrics.h"

#define LDR_EVENTS_MS 20
#define LDR_EVENTS_LOOK_MS 10000u
#define LDR_EVENTS_NODE 64u

typedef struct ldr_events ldr_events_t;

typedef struct ldr_events_params {
    const char *url;     /* PUB binds there: tcp://HOST:PORT or ipc://PATH */
    const char *replay;  /* ROUTER binds there; "": none */
    uint32_t tenant;     /* whose chunks, by the node's number */
    uint64_t keep_bytes; /* of messages, for replays */
    ldr_catalog_t *catalog;
    const ldr_clock_t *clock;
    ldr_server_metrics_t *metrics;
    ldr_log_t log;
    /* Files: the secret key of both sockets, and the public keys of those that
     * may connect. "": everybody that reaches the sockets may. */
    const char *key, *clients;
    bool owned;                 /* events name their owner */
    unsigned topics;            /* LDR_EVENTS_TOPICS_* */
    char node[LDR_EVENTS_NODE]; /* its name in topics */
} ldr_events_params_t;

/* E_UNSUPPORTED: built without libzmq. */
larder_status_t ldr_events_check(const char *url);
/* E_IO: it cannot be bound. */
larder_status_t ldr_events_open(const ldr_events_params_t *params,
                                ldr_events_t **events_p);
void ldr_events_close(ldr_events_t *e); /* NULL is fine */
