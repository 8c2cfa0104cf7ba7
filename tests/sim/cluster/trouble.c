/* What goes wrong in the simulated cluster: see world.h. Each kind ends well:
 * after it nothing is cut, stopped or down but nodes that have not joined. */
#include "sim/cluster/world.h"

static void cut(world_t *w, unsigned a, unsigned b, unsigned ways, bool how)
{
    if (ways & 1) {
        sim_cut(w->net, a, b, how);
    }
    if (ways & 2) {
        sim_cut(w->net, b, a, how);
    }
}

static void wait_ms(world_t *w, uint64_t most)
{
    sim_sleep(w->net, some(w, most) * SIM_MS);
}

/* A time in which little is done, so that it costs little. */
static void wait_long(world_t *w, uint64_t ns)
{
    w->idle++;
    sim_sleep(w->net, ns);
    w->idle--;
}

/* For how long something is away: mostly short, and now and then for longer
 * than a lease, or than the guard holds a view. */
static void wait_away(world_t *w)
{
    switch (w->etcd != NULL ? some(w, 12) : 11) {
    case 0:
        wait_long(w, 50 * SECOND);
        break;
    case 1:
        wait_long(w, (14 + some(w, 6)) * SECOND);
        break;
    default:
        wait_ms(w, 600);
    }
}

static void crash(world_t *w)
{
    sim_node_t *n = take_node(w, true);

    if (n != NULL) {
        bool wipe = some(w, 4) == 0;

        node_crash(n, some(w, 3) == 0);
        wait_away(w);
        node_up(n, wipe);
        n->busy = false;
    }
}

static void crash_two(world_t *w)
{
    sim_node_t *a = take_node(w, true), *b = take_node(w, true);

    if (a != NULL) {
        node_crash(a, false);
    }
    if (b != NULL) {
        node_crash(b, some(w, 2) == 0);
        wait_away(w);
        node_up(b, some(w, 4) == 0);
        b->busy = false;
    }
    if (a != NULL) {
        wait_ms(w, 300);
        node_up(a, false);
        a->busy = false;
    }
}

static void cut_pair(world_t *w)
{
    unsigned a = 1 + (unsigned)some(w, w->count);
    unsigned b = 1 + (unsigned)some(w, w->count);
    unsigned ways = 1 + (unsigned)some(w, 3);

    tell(w, "cut: n%u and n%u, ways %u", a, b, ways);
    w->n.cuts++;
    cut(w, a, b, ways, true);
    wait_ms(w, 1200);
    cut(w, a, b, ways, false);
    tell(w, "mended: n%u and n%u", a, b);
}

/* Some on one side, the others on the other, one way or both; now and then with
 * etcd on the other side. */
static void partition(world_t *w)
{
    uint64_t side = some(w, (uint64_t)1 << w->count);
    unsigned ways = 1 + (unsigned)some(w, 3);
    bool etcd = w->etcd != NULL && some(w, 2) == 0;

    for (int how = 1; how >= 0; how--) {
        tell(w, "%s: sides %llx, ways %u%s", how ? "partition" : "mended",
             (unsigned long long)side, ways, etcd ? ", etcd too" : "");
        for (unsigned a = 1; a <= w->count; a++) {
            for (unsigned b = 1; b <= w->count; b++) {
                if ((side >> (a - 1) & 1) == 1 && (side >> (b - 1) & 1) == 0) {
                    cut(w, a, b, ways, how == 1);
                }
            }
            if (etcd && (side >> (a - 1) & 1) == 1) {
                sim_etcd_cut(w->etcd, a, how == 1);
            }
        }
        if (how == 1) {
            w->n.cuts++;
            wait_away(w);
        }
    }
}

static void slow(world_t *w)
{
    sim_path_t *path = sim_path(w->net);

    path->delay_max_ns = (1 + some(w, 60)) * SIM_MS;
    path->window = 1000 + some(w, 100000);
    tell(w, "slow: up to %u ms, window %u",
         (unsigned)(path->delay_max_ns / SIM_MS), (unsigned)path->window);
    wait_ms(w, 800);
    path->delay_max_ns = 200000;
    path->window = (size_t)256 << 10;
    sim_path_changed(w->net);
    tell(w, "fast again");
}

static void stop(world_t *w)
{
    sim_node_t *n = take_node(w, true);

    if (n != NULL) {
        uint64_t ns = some(w, 1500) * SIM_MS;

        node_stop(n, ns);
        sim_sleep(w->net, ns);
        n->busy = false;
    }
}

static void jump(world_t *w)
{
    sim_node_t *n = take_node(w, true);
    static const int64_t by_s[] = {-3600, -5, 5, 3600, 100000};
    int64_t s = by_s[some(w, 5)];

    if (n != NULL) {
        tell(w, "the wall clock of n%u jumps by %lld s", n->place,
             (long long)s);
        n->wall_s += s;
        w->forgetful = w->forgetful || s > 86400;
        n->busy = false;
        wait_ms(w, 300);
    }
}

static void etcd_trouble(world_t *w)
{
    unsigned first = (unsigned)some(w, SIM_ETCD_SERVERS);
    unsigned count = 1 + (unsigned)some(w, SIM_ETCD_SERVERS);
    uint64_t what = some(w, 7);

    if (w->etcd == NULL) {
        return;
    }
    w->n.stalls++;
    tell(w, "etcd: trouble %llu, servers %u from %u", (unsigned long long)what,
         count, first);
    for (int how = 1; how >= 0; how--) {
        for (unsigned i = 0; i < count; i++) {
            unsigned server = (first + i) % SIM_ETCD_SERVERS;

            if (what <= 1) {
                sim_etcd_stop(w->etcd, server, how == 1);
            } else if (what == 2) {
                sim_etcd_down(w->etcd, server, how == 1);
            } else if (what == 3) {
                sim_etcd_mute(w->etcd, server, how == 1);
            }
        }
        if (how == 1 && what <= 3) {
            wait_long(w, some(w, 40) * SECOND);
        }
    }
    if (what == 4) {
        sim_etcd_expire(w->etcd);
    } else if (what == 5) {
        sim_etcd_end_watches(w->etcd);
    } else if (what == 6) {
        sim_etcd_compact(w->etcd);
        sim_etcd_end_watches(w->etcd);
    }
    wait_long(w, SECOND);
}

/* One more member, or one fewer. */
static void change(world_t *w)
{
    bool join = some(w, 2) == 0;
    unsigned up = 0;

    for (unsigned i = 0; i < w->count; i++) {
        up += w->nodes[i].up && !w->nodes[i].busy;
    }
    sim_node_t *n =
        w->etcd != NULL && (join || up > 3) ? take_node(w, !join) : NULL;
    if (n == NULL) {
        return;
    }
    if (join) {
        w->n.joins++;
        node_up(n, some(w, 2) == 0);
        wait_ms(w, 3000);
    } else {
        node_leave(n);
        wait_ms(w, 1000);
    }
    n->busy = false;
}

static void trouble(world_t *w)
{
    static void (*const kinds[])(world_t * w) = {
        crash, crash, crash_two, cut_pair,     cut_pair, partition, partition,
        slow,  stop,  jump,      etcd_trouble, change,   change,
    };
    uint64_t what = some(w, 15);

    if (what < sizeof(kinds) / sizeof(*kinds)) {
        kinds[what](w);
    } else if (what == 13) {
        tell(w, "all connections break");
        sim_break_all(w->net);
    }
    wait_ms(w, 200);
}

void troubles(world_t *w, unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        trouble(w);
    }
}
