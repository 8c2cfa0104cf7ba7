/*
 * What becomes of a source's answers: the guard and the newcomers' ramp.
 *
 * The guard. A member is gone when it was believed in and the source does not
 * name it any more. If, with this answer, more than half of those that were
 * believed in during the last LDR_GUARD_MS are gone, the whole answer waits
 * until each one of them has been missing for LDR_GUARD_MS without a break. So
 * members that vanish one by one are held back like those that vanish at once,
 * and one that comes and goes is not believed to be gone. Time counts only
 * while the source confirms its answer, and at most GUARD_STEP_MS of it for
 * each look: a process that was stopped, or a clock that jumps, has not
 * watched.
 *
 * Members that are added, or that say themselves that they leave, need no
 * guard: nothing that was found before is lost by them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/cluster_int.h"

#define NS_PER_MS UINT64_C(1000000)
#define TICK_NS (1000 * NS_PER_MS)
#define GUARD_STEP_MS 2000u

uint32_t ldr_ramp(uint64_t ns, uint32_t ramp_s)
{
    uint64_t ramp_ns = (uint64_t)ramp_s * 1000 * NS_PER_MS;

    return ns >= ramp_ns ? LDR_SHARE_FULL
                         : 1 + (uint32_t)(ns * (LDR_SHARE_FULL - 1) / ramp_ns);
}

/* Where this id is, or where it would be put in. */
static size_t known_place(const ldr_members_t *m, uint64_t id)
{
    size_t low = 0, high = m->known_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (m->known[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static ldr_known_t *known_find(const ldr_members_t *m, uint64_t id)
{
    size_t at = known_place(m, id);

    return at < m->known_count && m->known[at].id == id ? &m->known[at] : NULL;
}

static int by_id(const void *a, const void *b)
{
    const ldr_member_t *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

/* Adds those of the answer that are new; both are in the order of ids. There is
 * room. */
static void known_merge(ldr_members_t *m)
{
    size_t from = m->known_count, to = m->known_count;
    size_t fresh = 0;

    for (size_t i = 0; i < m->answer_count; i++) {
        fresh += known_find(m, m->answer[i].id) == NULL;
    }
    to += fresh;
    m->known_count += fresh;
    for (size_t i = m->answer_count; fresh > 0 && i-- > 0;) {
        uint64_t id = m->answer[i].id;

        while (from > 0 && m->known[from - 1].id > id) {
            m->known[--to] = m->known[--from];
        }
        if (from == 0 || m->known[from - 1].id != id) {
            m->known[--to] = (ldr_known_t){.id = id};
            fresh--;
        }
    }
}

bool ldr_members_answer(ldr_members_t *m, const ldr_member_t *members,
                        uint32_t count)
{
    if (!ldr_grow(&m->answer, &m->answer_capacity, count, sizeof(*m->answer)) ||
        !ldr_grow(&m->believed, &m->believed_capacity, count,
                  sizeof(*m->believed)) ||
        !ldr_grow(&m->known, &m->known_capacity, m->known_count + count,
                  sizeof(*m->known))) {
        return false;
    }
    if (count > 0) {
        memcpy(m->answer, members, count * sizeof(*members));
        qsort(m->answer, count, sizeof(*m->answer), by_id);
    }
    m->answer_count = count;
    m->has_answer = true;
    known_merge(m);
    for (size_t i = 0, k = 0; i < m->known_count; i++) {
        m->known[i].listed = k < count && m->answer[k].id == m->known[i].id;
        k += m->known[i].listed;
    }
    return true;
}

/* ---- the guard ---- */

static bool gone_lately(const ldr_known_t *k, uint64_t now_ns)
{
    return !k->believed && !k->listed && k->gone_ns != 0 &&
           now_ns - k->gone_ns < LDR_GUARD_MS * NS_PER_MS;
}

/* Whether the answer may be believed now. */
static bool guard(ldr_members_t *m, uint64_t now_ns, bool source_ok)
{
    uint64_t passed_ms = (now_ns - m->judged_ns) / NS_PER_MS;
    size_t before = 0, gone = 0, unsure = 0;

    if (passed_ms > GUARD_STEP_MS) {
        passed_ms = GUARD_STEP_MS;
    }
    m->judged_ns = now_ns;
    for (size_t i = 0; i < m->known_count; i++) {
        ldr_known_t *k = &m->known[i];
        bool missing = k->believed && !k->listed;

        if (!missing) {
            k->missing_ms = 0;
        } else if (k->missing && source_ok) {
            k->missing_ms += (uint32_t)passed_ms;
        }
        k->missing = missing;
        before += k->believed || gone_lately(k, now_ns);
        gone += missing || gone_lately(k, now_ns);
        unsure += missing && k->missing_ms < LDR_GUARD_MS;
    }
    return unsure == 0 || 2 * gone <= before;
}

/* ---- the ramp ---- */

static void arrive(ldr_members_t *m, ldr_known_t *k, uint64_t now_ns)
{
    bool back =
        k->gone_ns != 0 && now_ns - k->gone_ns < LDR_AWAY_MS * NS_PER_MS;

    k->believed = true;
    k->joined_ns = 0;
    if (m->answered && !back && m->ramp_s > 0) {
        k->joined_ns = now_ns > 0 ? now_ns : 1;
    }
}

static uint32_t share_of(const ldr_members_t *m, ldr_known_t *k,
                         uint64_t now_ns)
{
    uint32_t share = LDR_SHARE_FULL;

    if (k->joined_ns != 0) {
        share = ldr_ramp(now_ns - k->joined_ns, m->ramp_s);
    }
    if (share == LDR_SHARE_FULL) {
        k->joined_ns = 0;
    }
    return share;
}

/* ---- what is believed ---- */

/* A peer's own word counts for the run that gave it. */
static bool has_left(const ldr_known_t *k, const ldr_member_t *listed)
{
    return k->left_run != 0 && (listed->run == 0 || listed->run == k->left_run);
}

static void believe(ldr_members_t *m, uint64_t now_ns)
{
    size_t kept = 0, at = 0;

    for (size_t i = 0; i < m->known_count; i++) {
        ldr_known_t k = m->known[i];

        if (k.listed) {
            ldr_member_t *one = &m->believed[at];

            *one = m->answer[at];
            at++;
            if (!k.believed) {
                arrive(m, &k, now_ns);
            }
            if (!m->shares) {
                one->share = share_of(m, &k, now_ns);
            }
            one->leaving = one->leaving || has_left(&k, one);
        } else if (k.believed) {
            k.believed = false;
            k.gone_ns = now_ns > 0 ? now_ns : 1;
        } else if (now_ns - k.gone_ns >= LDR_AWAY_MS * NS_PER_MS) {
            continue; /* it is a newcomer when it comes again */
        }
        m->known[kept++] = k;
    }
    m->known_count = kept;
    m->believed_count = at;
}

bool ldr_members_judge(ldr_members_t *m, uint64_t now_ns, bool source_ok)
{
    if (!m->has_answer) {
        return false;
    }
    if (m->judged_ns == 0) {
        m->judged_ns = now_ns;
    }
    if (m->answered && !guard(m, now_ns, source_ok)) {
        if (!m->holding) {
            m->holding = true;
            m->held_ns = now_ns;
            m->held++;
        }
        return false;
    }
    m->holding = false;
    believe(m, now_ns);
    m->answered = true;
    return true;
}

uint64_t ldr_members_next(const ldr_members_t *m, uint64_t now_ns)
{
    bool ramps = m->holding;

    for (size_t i = 0; i < m->known_count && !ramps; i++) {
        ramps = m->known[i].joined_ns != 0 && m->known[i].believed;
    }
    return ramps ? now_ns + TICK_NS : UINT64_MAX;
}

void ldr_members_say(ldr_members_t *m, uint64_t id, uint64_t run, bool leaving)
{
    ldr_known_t *k = known_find(m, id);

    if (k != NULL) {
        k->left_run = leaving ? run : 0;
    }
}

void ldr_members_destroy(ldr_members_t *m)
{
    ldr_free(m->known);
    ldr_free(m->answer);
    ldr_free(m->believed);
}
