/*
 * Whose turn it is. A loop goes round: its tasks, its rings, its descriptors,
 * and again. In each round a tenant has a turn of TURN_NS; what its sessions
 * take beyond that is owed, and paid for with the turns of the next rounds. A
 * session whose tenant has used its turn is not read from but waits, behind
 * those of its tenant that wait already. So a request waits for one turn of
 * each other tenant, whatever they ask for and by however many sessions. Peers
 * that are not authenticated are one tenant here.
 *
 * Where nobody else has work a round takes microseconds: nobody waits for
 * nothing.
 *
 * Invariants, of a loop and in its thread
 *  1. A session is in the list of its share exactly while it `waits_turn`; what
 *     share it has does not change meanwhile, and it is NEW or OPEN.
 *  2. A share with sessions that wait is in the loop's list, once.
 *  3. A share owes a time that is not below zero.
 */
#include "server/session.h"

#define TURN_NS 500000

static ldr_share_t *share_of(const ldr_session_t *s)
{
    unsigned index =
        s->tenant != NULL ? s->tenant->index : LDR_SERVER_TENANTS_MAX;

    LDR_DEBUG_ASSERT(ldr_loop_is_here(&s->home->loop));
    LDR_ASSERT(index <= LDR_SERVER_TENANTS_MAX);
    return &s->home->shares[index];
}

/* What is left of its turn; 0 or less: nothing. */
static int64_t left(const ldr_server_loop_t *home, ldr_share_t *share)
{
    uint64_t rounds = home->round - share->round;

    LDR_ASSERT(share->used_ns >= 0 && home->round >= share->round);
    share->round = home->round;
    if (rounds >= (uint64_t)share->used_ns / TURN_NS + 1) {
        share->used_ns = 0;
    } else {
        share->used_ns -= (int64_t)rounds * TURN_NS;
    }
    return TURN_NS - share->used_ns;
}

int64_t ldr_turn_left(const ldr_session_t *s)
{
    return left(s->home, share_of(s));
}

bool ldr_turn_ring(const ldr_session_t *s)
{
    ldr_share_t *share = share_of(s);

    if (left(s->home, share) <= 0 || share->ring_round == s->home->round) {
        return false;
    }
    share->ring_round = s->home->round;
    return true;
}

void ldr_turn_used(const ldr_session_t *s, uint64_t ns)
{
    share_of(s)->used_ns += (int64_t)ns;
}

void ldr_turn_wait(ldr_session_t *s)
{
    ldr_share_t *share = share_of(s);

    if (s->waits_turn) {
        return;
    }
    LDR_ASSERT(ldr_session_speaks(s));
    s->waits_turn = true;
    s->turn_next = NULL;
    s->turn_prev = share->last;
    *(share->last != NULL ? &share->last->turn_next : &share->first) = s;
    share->last = s;
    if (!share->listed) {
        ldr_share_t **link = &s->home->turns;

        while (*link != NULL) {
            link = &(*link)->next;
        }
        *link = share;
        share->next = NULL;
        share->listed = true;
    }
}

void ldr_turn_quit(ldr_session_t *s)
{
    ldr_share_t *share = share_of(s);

    if (s->waits_turn) {
        LDR_ASSERT(s->turn_prev != NULL ? s->turn_prev->turn_next == s
                                        : share->first == s);
        LDR_ASSERT(s->turn_next != NULL ? s->turn_next->turn_prev == s
                                        : share->last == s);
        *(s->turn_prev != NULL ? &s->turn_prev->turn_next : &share->first) =
            s->turn_next;
        *(s->turn_next != NULL ? &s->turn_next->turn_prev : &share->last) =
            s->turn_prev;
        s->waits_turn = false;
    }
}

bool ldr_turns_check(const ldr_server_loop_t *home)
{
    for (const ldr_share_t *share = home->turns; share != NULL;
         share = share->next) {
        const ldr_session_t *before = NULL;

        for (const ldr_session_t *s = share->first; s != NULL;
             s = s->turn_next) {
            if (!s->waits_turn || !ldr_session_speaks(s) ||
                share_of(s) != share || s->turn_prev != before) {
                return false;
            }
            before = s;
        }
        if (!share->listed || share->last != before) {
            return false;
        }
    }
    return true;
}

bool ldr_turns_run(ldr_server_loop_t *home)
{
    ldr_share_t **link = &home->turns;

    home->round++;
    while (*link != NULL) {
        ldr_share_t *share = *link;

        while (share->first != NULL && left(home, share) > 0) {
            ldr_session_t *s = share->first;

            ldr_turn_quit(s);
            ldr_session_read(s); /* may wait again */
        }
        if (share->first == NULL) {
            *link = share->next;
            share->listed = false;
        } else {
            link = &share->next;
        }
    }
    return home->turns != NULL;
}
