/* The lobby's lists; lobby.h has what they are for and their invariants. All of
 * it under the lobby's own lock, inside which no other lock is taken. */
#include "server/lobby.h"

#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "base/thread.h"

#define BUCKETS 256u
#define CHECK_EVERY 256u /* newcomers, in debug builds */

enum { ORIGIN_UNKNOWN, ORIGIN_UID, ORIGIN_IPV4, ORIGIN_IPV6 };

typedef struct origin_list origin_list_t;

struct ldr_stranger {
    int fd;            /* -1: nobody reads from it yet */
    origin_list_t *of; /* NULL: it gave way */
    ldr_stranger_t *prev, *next;
};

/* The strangers of one origin, the oldest first. There is one while it has
 * any. */
struct origin_list {
    ldr_origin_t origin;
    unsigned count;
    ldr_stranger_t *first, *last;
    origin_list_t *next; /* of its bucket */
};

struct ldr_lobby {
    pthread_mutex_t lock;
    unsigned max, origin_max;
    unsigned count;   /* of those in lists */
    unsigned leaving; /* gave way, and have not left yet */
    unsigned entered; /* so far */
    origin_list_t *buckets[BUCKETS];
};

/* ---- origins ---- */

static ldr_origin_t ipv4_origin(const void *bytes)
{
    uint32_t address;

    memcpy(&address, bytes, sizeof(address));
    return (ldr_origin_t){address, ORIGIN_IPV4};
}

static ldr_origin_t ipv6_origin(const struct in6_addr *address)
{
    ldr_origin_t origin = {.kind = ORIGIN_IPV6};

    if (IN6_IS_ADDR_V4MAPPED(address)) {
        return ipv4_origin(&address->s6_addr[12]);
    }
    memcpy(&origin.value, address->s6_addr, sizeof(origin.value));
    return origin;
}

ldr_origin_t ldr_origin_of(int fd)
{
    struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
    struct ucred who;
    socklen_t length = sizeof(a), who_bytes = sizeof(who);

    if (getpeername(fd, (struct sockaddr *)&a, &length) != 0) {
        return (ldr_origin_t){0, ORIGIN_UNKNOWN};
    }
    if (a.ss_family == AF_INET) {
        return ipv4_origin(&((struct sockaddr_in *)(void *)&a)->sin_addr);
    }
    if (a.ss_family == AF_INET6) {
        return ipv6_origin(&((struct sockaddr_in6 *)(void *)&a)->sin6_addr);
    }
    if (a.ss_family == AF_UNIX &&
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &who_bytes) == 0) {
        return (ldr_origin_t){who.uid, ORIGIN_UID};
    }
    return (ldr_origin_t){0, ORIGIN_UNKNOWN};
}

static origin_list_t **bucket_of(ldr_lobby_t *lobby, ldr_origin_t origin)
{
    uint64_t hash = (origin.value + origin.kind) * 0x9e3779b97f4a7c15u;

    LDR_HELD(&lobby->lock);
    return &lobby->buckets[hash >> 56];
}

static origin_list_t *list_find(ldr_lobby_t *lobby, ldr_origin_t origin)
{
    origin_list_t *list = *bucket_of(lobby, origin);

    while (list != NULL && (list->origin.value != origin.value ||
                            list->origin.kind != origin.kind)) {
        list = list->next;
    }
    return list;
}

static origin_list_t *list_add(ldr_lobby_t *lobby, ldr_origin_t origin)
{
    origin_list_t **bucket = bucket_of(lobby, origin);
    origin_list_t *list = ldr_alloc(sizeof(*list));

    if (list != NULL) {
        list->origin = origin;
        list->next = *bucket;
        *bucket = list;
    }
    return list;
}

static void list_drop(ldr_lobby_t *lobby, origin_list_t *list)
{
    origin_list_t **link = bucket_of(lobby, list->origin);

    while (*link != list) {
        link = &(*link)->next;
    }
    *link = list->next;
    ldr_free(list);
}

/* ---- strangers ---- */

static void unlink_stranger(ldr_lobby_t *lobby, ldr_stranger_t *s)
{
    origin_list_t *list = s->of;

    LDR_HELD(&lobby->lock);
    LDR_ASSERT(s->prev != NULL ? s->prev->next == s : list->first == s);
    LDR_ASSERT(s->next != NULL ? s->next->prev == s : list->last == s);
    LDR_ASSERT(list->count > 0 && lobby->count >= list->count);
    *(s->prev != NULL ? &s->prev->next : &list->first) = s->next;
    *(s->next != NULL ? &s->next->prev : &list->last) = s->prev;
    s->of = NULL;
    list->count--;
    lobby->count--;
    if (list->count == 0) {
        list_drop(lobby, list);
    }
}

static void link_stranger(ldr_lobby_t *lobby, origin_list_t *list,
                          ldr_stranger_t *s)
{
    s->of = list;
    s->prev = list->last;
    *(list->last != NULL ? &list->last->next : &list->first) = s;
    list->last = s;
    list->count++;
    lobby->count++;
    LDR_ASSERT(list->count <= lobby->origin_max);
    LDR_ASSERT(lobby->count <= lobby->max);
}

/* Whether a list is what it says; adds its strangers up. */
static bool list_check(const origin_list_t *list, unsigned *sum)
{
    const ldr_stranger_t *before = NULL;
    unsigned count = 0;

    for (const ldr_stranger_t *s = list->first; s != NULL; s = s->next) {
        if (s->of != list || s->prev != before || count++ == list->count) {
            return false;
        }
        before = s;
    }
    *sum += count;
    return count > 0 && count == list->count && before == list->last;
}

static bool lobby_check(const ldr_lobby_t *lobby)
{
    unsigned sum = 0;

    LDR_HELD(&lobby->lock);
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (const origin_list_t *l = lobby->buckets[i]; l != NULL;
             l = l->next) {
            if (!list_check(l, &sum)) {
                return false;
            }
        }
    }
    return sum == lobby->count && sum <= lobby->max &&
           lobby->leaving <= lobby->max;
}

bool ldr_lobby_check(ldr_lobby_t *lobby)
{
    ldr_mutex_lock(&lobby->lock);
    bool right = lobby_check(lobby);
    ldr_mutex_unlock(&lobby->lock);
    return right;
}

static origin_list_t *most_crowded(ldr_lobby_t *lobby)
{
    origin_list_t *most = NULL;

    for (unsigned i = 0; i < BUCKETS; i++) {
        for (origin_list_t *l = lobby->buckets[i]; l != NULL; l = l->next) {
            most = most == NULL || l->count > most->count ? l : most;
        }
    }
    return most;
}

/* The list whose oldest gives way to a newcomer of that origin; NULL: there is
 * room. */
static origin_list_t *crowded(ldr_lobby_t *lobby, ldr_origin_t origin)
{
    origin_list_t *own = list_find(lobby, origin);

    if (own != NULL && own->count >= lobby->origin_max) {
        return own;
    }
    return lobby->count >= lobby->max ? most_crowded(lobby) : NULL;
}

static ldr_lobby_found_t origin_enter(ldr_lobby_t *lobby, ldr_origin_t origin,
                                      ldr_stranger_t *s)
{
    origin_list_t *full = crowded(lobby, origin);

    lobby->entered++;
    LDR_DEBUG_ASSERT(lobby->entered % CHECK_EVERY != 0 || lobby_check(lobby));
    if (full != NULL) {
        if (lobby->leaving >= lobby->max) {
            return LDR_LOBBY_FULL;
        }
        ldr_stranger_t *oldest = full->first;

        lobby->leaving++;
        unlink_stranger(lobby, oldest);
        if (oldest->fd >= 0) { /* its own still: it leaves before it closes */
            shutdown(oldest->fd, SHUT_RDWR);
        }
    }
    origin_list_t *list = list_find(lobby, origin);
    if (list == NULL) {
        list = list_add(lobby, origin);
    }
    if (list == NULL) {
        return LDR_LOBBY_FULL;
    }
    link_stranger(lobby, list, s);
    return full != NULL ? LDR_LOBBY_GAVE_WAY : LDR_LOBBY_ROOM;
}

ldr_lobby_found_t ldr_lobby_enter(ldr_lobby_t *lobby, ldr_origin_t origin,
                                  ldr_stranger_t **stranger_p)
{
    ldr_stranger_t *s = ldr_alloc(sizeof(*s));
    ldr_lobby_found_t found = LDR_LOBBY_FULL;

    if (s != NULL) {
        s->fd = -1;
        ldr_mutex_lock(&lobby->lock);
        found = origin_enter(lobby, origin, s);
        ldr_mutex_unlock(&lobby->lock);
    }
    if (found == LDR_LOBBY_FULL) {
        ldr_free(s);
        s = NULL;
    }
    *stranger_p = s;
    return found;
}

bool ldr_lobby_behind(ldr_lobby_t *lobby)
{
    ldr_mutex_lock(&lobby->lock);
    bool behind = lobby->leaving >= lobby->max;
    ldr_mutex_unlock(&lobby->lock);
    return behind;
}

bool ldr_lobby_listen(ldr_lobby_t *lobby, ldr_stranger_t *s, int fd)
{
    ldr_mutex_lock(&lobby->lock);
    bool stays = s->of != NULL;
    s->fd = fd;
    ldr_mutex_unlock(&lobby->lock);
    return stays;
}

void ldr_lobby_leave(ldr_lobby_t *lobby, ldr_stranger_t *s)
{
    if (s == NULL) {
        return;
    }
    ldr_mutex_lock(&lobby->lock);
    if (s->of != NULL) {
        unlink_stranger(lobby, s);
    } else {
        LDR_ASSERT(lobby->leaving > 0);
        lobby->leaving--;
    }
    ldr_mutex_unlock(&lobby->lock);
    ldr_free(s);
}

/* ---- life ---- */

ldr_lobby_t *ldr_lobby_create(unsigned max, unsigned origin_max)
{
    ldr_lobby_t *lobby = ldr_alloc(sizeof(*lobby));

    if (lobby != NULL) {
        ldr_mutex_init(&lobby->lock);
        lobby->max = max;
        lobby->origin_max = origin_max;
    }
    return lobby;
}

void ldr_lobby_destroy(ldr_lobby_t *lobby)
{
    if (lobby != NULL) {
        LDR_DEBUG_ASSERT(lobby->count == 0 && lobby->leaving == 0);
        pthread_mutex_destroy(&lobby->lock);
        ldr_free(lobby);
    }
}
