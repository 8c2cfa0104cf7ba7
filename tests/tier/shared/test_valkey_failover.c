/*
 * Valkey's failover, as clients see it that keep their connections: the server
 * that they lead to is a replica all at once, and whoever connects to the same
 * address anew gets another one.
 */
#include "tier/shared/servers.h"
#include "tier/shared/valkey.h"

#define CONNECTIONS 16u
#define DONE "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:1\r\n"

/* Takes puts: on connections from before it failed, it is a replica then. */
typedef struct standin {
    int fd;
    unsigned port;
    pthread_t thread;
    const char *refusal;   /* of a replica */
    bool failed_over;      /* atomic */
    bool stop;             /* atomic */
    unsigned old, current; /* puts by old and by new connections */
} standin_t;

static void answer(standin_t *s, int fd, bool is_new)
{
    char question[4096];
    bool failed = __atomic_load_n(&s->failed_over, __ATOMIC_ACQUIRE);
    const char *text = failed && !is_new ? s->refusal : DONE;

    /* A small put comes in one piece. */
    ssize_t bytes = read(fd, question, sizeof(question) - 1);
    question[bytes > 0 ? bytes : 0] = '\0';
    if (strstr(question, "CLUSTER") != NULL) {
        text = "-ERR This instance has cluster support disabled\r\n";
        (void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
    } else if (bytes > 0) {
        *(is_new ? &s->current : &s->old) += 1;
        (void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
    }
}

static void *standin_main(void *arg)
{
    standin_t *s = arg;
    struct pollfd fds[1 + CONNECTIONS] = {{.fd = s->fd, .events = POLLIN}};
    bool is_new[1 + CONNECTIONS] = {false};
    unsigned count = 1;

    while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) {
        if (poll(fds, count, 20) <= 0) {
            continue;
        }
        for (unsigned i = 1; i < count; i++) {
            if (fds[i].revents & (POLLHUP | POLLERR)) {
                fds[i].events = 0;
            } else if (fds[i].revents != 0) {
                answer(s, fds[i].fd, is_new[i]);
            }
        }
        if (fds[0].revents != 0 && count <= CONNECTIONS) {
            is_new[count] = __atomic_load_n(&s->failed_over, __ATOMIC_ACQUIRE);
            fds[count++] =
                (struct pollfd){.fd = ldr_accept(s->fd), .events = POLLIN};
        }
    }
    while (count > 0) {
        close(fds[--count].fd);
    }
    return NULL;
}

static int put(ldr_backend_t *b)
{
    char byte = 'x';
    struct iovec iov = {&byte, 1};

    return b->ops->put(b, "t/o/a", &iov, 1, 0, in_ms(30000));
}

static void fail_over(const char *refusal, int error)
{
    standin_t s = {.refusal = refusal};
    char url[64];
    ldr_backend_params_t p = {.url = url, .login = "", .threads = 4};
    ldr_backend_t *b;
    ldr_valkey_conn_t *conns[3];

    s.fd = server_listen(&s.port);
    assert_int_equal(pthread_create(&s.thread, NULL, standin_main, &s), 0);
    snprintf(url, sizeof(url), "valkey://127.0.0.1:%u", s.port);
    assert_int_equal(ldr_backend_open(&p, &b), LARDER_OK);
    ldr_valkey_t *v = (ldr_valkey_t *)b;
    /* Two that are idle, and one that is in use meanwhile. */
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(ldr_valkey_take(v, 0, in_ms(30000), &conns[i]), 0);
    }
    ldr_valkey_give(v, conns[0], true);
    ldr_valkey_give(v, conns[1], true);
    assert_int_equal(put(b), 0);
    assert_int_equal(put(b), 0);
    __atomic_store_n(&s.failed_over, true, __ATOMIC_RELEASE);
    assert_int_equal(put(b), error);
    ldr_valkey_give(v, conns[2], true);
    assert_int_equal(put(b), 0);
    assert_int_equal(put(b), 0);
    b->ops->destroy(b);
    __atomic_store_n(&s.stop, true, __ATOMIC_RELEASE);
    pthread_join(s.thread, NULL);
    assert_int_equal(s.old, 3);
    assert_int_equal(s.current, 2);
}

static void test_failover(void **state)
{
    (void)state;
    fail_over("+OK\r\n-READONLY a replica\r\n-READONLY a replica\r\n"
              "-EXECABORT nothing\r\n",
              -EROFS);
    fail_over("+OK\r\n-MOVED 1 a:1\r\n-MOVED 1 a:1\r\n"
              "-EXECABORT nothing\r\n",
              -ENOTSUP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_failover)};

    unsetenv("LARDER_SHARED_PASSWORD");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
