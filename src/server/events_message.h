/* A message of KV events, on its way into ZeroMQ's queues. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"

/* Shared by the sockets' queues and what is kept for replays. */
typedef struct ldr_event_message {
    uint32_t refs; /* atomic */
    struct ldr_event_message *next;
    uint64_t number;
    uint32_t count; /* of events */
    size_t bytes;
    uint8_t data[];
} ldr_event_message_t;

/* With room for so many bytes, and one reference. NULL: no memory. */
ldr_event_message_t *ldr_event_message_new(size_t bytes);
void ldr_event_message_drop(ldr_event_message_t *m);

#define LDR_EVENT_HEADS 4u

/* Sends the heads, at most LDR_EVENT_HEADS, and as the last part the message,
 * by reference; NULL: an empty one. All of it is taken, or nothing: ZeroMQ's
 * errno, 0 if it was. */
int ldr_event_message_send(void *socket, const ldr_piece_t *heads,
                           unsigned count, ldr_event_message_t *m);
