/* Messages of KV events: counted by references, because ZeroMQ's own threads
 * drop theirs. */
#include "server/events_message.h"

#if LDR_HAVE_ZMQ

#include <string.h>
#include <zmq.h>

#include "base/mem.h"

ldr_event_message_t *ldr_event_message_new(size_t bytes)
{
    ldr_event_message_t *m = ldr_alloc(sizeof(*m) + bytes);

    if (m != NULL) {
        m->refs = 1;
        m->bytes = bytes;
    }
    return m;
}

void ldr_event_message_drop(ldr_event_message_t *m)
{
    if (__atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        ldr_free(m);
    }
}

static void dropped(void *data, void *arg)
{
    (void)data;
    ldr_event_message_drop(arg);
}

/* The last part; m NULL: an empty one. */
static bool last_part(zmq_msg_t *part, ldr_event_message_t *m)
{
    if (m == NULL) {
        return zmq_msg_init(part) == 0;
    }
    __atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
    if (zmq_msg_init_data(part, m->data, m->bytes, dropped, m) != 0) {
        ldr_event_message_drop(m);
        return false;
    }
    return true;
}

/* All that needs memory comes first, and a socket refuses the first part only:
 * a message that has begun is never left open. */
int ldr_event_message_send(void *socket, const ldr_piece_t *heads,
                           unsigned count, ldr_event_message_t *m)
{
    zmq_msg_t parts[LDR_EVENT_HEADS + 1];
    unsigned made = 0, sent = 0;

    while (made < count &&
           zmq_msg_init_size(&parts[made], heads[made].bytes) == 0) {
        memcpy(zmq_msg_data(&parts[made]), heads[made].data, heads[made].bytes);
        made++;
    }
    if (made == count && last_part(&parts[made], m)) {
        made++;
    }
    while (made > count && sent < made &&
           zmq_msg_send(&parts[sent], socket,
                        ZMQ_DONTWAIT | (sent < count ? ZMQ_SNDMORE : 0)) >= 0) {
        sent++;
    }
    int error = sent > count ? 0 : zmq_errno();
    for (unsigned i = sent; i < made; i++) {
        zmq_msg_close(&parts[i]);
    }
    return error;
}

#endif
