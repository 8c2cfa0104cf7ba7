/* One list under one lock; see asking.h. */
#include "server/asking.h"

#include <stdio.h>

#include "base/log.h"
#include "base/thread.h"

/* NULL: none will come. */
static ldr_question_t *next(ldr_asking_t *a, bool *stop)
{
    ldr_mutex_lock(&a->lock);
    while (a->head == NULL && !a->stop) {
        pthread_cond_wait(&a->wake, &a->lock);
    }
    ldr_question_t *q = a->head;
    if (q != NULL) {
        a->head = q->next;
        a->end = a->head != NULL ? a->end : &a->head;
    }
    *stop = a->stop;
    ldr_mutex_unlock(&a->lock);
    return q;
}

static void *asking_main(void *arg)
{
    ldr_asking_t *a = arg;
    ldr_question_t *q;
    bool stop;

    while ((q = next(a, &stop)) != NULL) {
        ldr_fail_clear();
        q->status =
            stop ? ldr_fail(LARDER_E_CLOSED, "the node ends")
                 : a->query(a->arg, q->tenant, q->body != NULL ? q->body : "",
                            q->bytes, &q->text, &q->length);
        snprintf(q->why, sizeof(q->why), "%s", ldr_fail_text());
        q->answered = true;
        a->answered(q);
    }
    return NULL;
}

bool ldr_asking_open(ldr_asking_t *a)
{
    a->end = &a->head;
    if (pthread_cond_init(&a->wake, NULL) != 0) {
        return false;
    }
    ldr_mutex_init(&a->lock);
    return true;
}

bool ldr_asking_put(ldr_asking_t *a, ldr_question_t *q)
{
    ldr_mutex_lock(&a->lock);
    a->started = a->started ||
                 (!a->stop &&
                  ldr_thread_start(&a->thread, "larder-query", asking_main, a));
    bool takes = a->started && !a->stop;
    if (takes) {
        q->next = NULL;
        *a->end = q;
        a->end = &q->next;
        pthread_cond_signal(&a->wake);
    }
    ldr_mutex_unlock(&a->lock);
    return takes;
}

void ldr_asking_stop(ldr_asking_t *a)
{
    ldr_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_signal(&a->wake);
    ldr_mutex_unlock(&a->lock);
    if (a->started) {
        pthread_join(a->thread, NULL);
    }
}

void ldr_asking_close(ldr_asking_t *a)
{
    pthread_cond_destroy(&a->wake);
    pthread_mutex_destroy(&a->lock);
}
