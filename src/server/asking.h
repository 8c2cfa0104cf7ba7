/* The thread that answers POST /query: a question may wait for other members,
 * and the admin's other pages must not wait for it. Questions are answered one
 * after the other. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

/* A POST whose body is being received; then its question; then its answer. */
typedef struct ldr_question {
    uint32_t tenant;
    char *body;
    size_t bytes, capacity;
    bool large; /* too large: the rest is read and dropped */
    void *connection;
    struct ldr_question *next;
    /* the answer: */
    bool answered;
    larder_status_t status;
    char *text; /* of LARDER_OK */
    size_t length;
    char why[256]; /* else */
} ldr_question_t;

typedef struct ldr_asking {
    /* As ldr_admin_source_t has it. */
    larder_status_t (*query)(void *arg, uint32_t tenant, const char *body,
                             size_t bytes, char **text_p, size_t *length_p);
    void *arg;
    /* Called in the thread: from then on the question is the asker's again. */
    void (*answered)(ldr_question_t *q);
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    ldr_question_t *head, **end;
    pthread_t thread;
    bool started; /* with the first question */
    bool stop;
} ldr_asking_t;

/* query, arg and answered are set. False: no memory. */
bool ldr_asking_open(ldr_asking_t *a);
/* False: it has been stopped, or cannot start. */
bool ldr_asking_put(ldr_asking_t *a, ldr_question_t *q);
/* Waits for the question that is being answered; those behind it are told that
 * they are not. */
void ldr_asking_stop(ldr_asking_t *a);
void ldr_asking_close(ldr_asking_t *a); /* after that */
