/*
 * doctor --cluster: what the daemon of this configuration knows of the other
 * members, from its metrics, and the way to each, by a bare socket: how long it
 * takes, and how much it carries.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "cli/doctor.h"
#include "cli/top.h"
#include "net/socket.h"

#define CONNECT_NS 500000000u /* that a member may take to answer */
#define CONNECTS 5u           /* the quickest counts */
#define SKEW_S 2
#define TRIP_MORE_US 20000 /* beside ten bare ones: it is the daemon's */
#define LINKS_NS ((uint64_t)3000000000u) /* to measure all links, as a rule */
#define LINK_NS 600000000u               /* ... and one of them */
#define END_NS ((uint64_t)7000000000u)   /* the last one begins before */
#define STALL_NS 1500000000u /* without a byte: it lets none through */
#define SLOW 4.0             /* times slower than it should be */
#define NAME(metric) ldr_metric_table[LDR_METRIC_##metric].name

/* ---- what is wrong with one that does not meet this node ---- */

static const struct {
    const char *in, *cure;
} cures[] = {
    {"cluster_secret", "give all members the same file cluster_secret"},
    {"secret", "give all members the same file cluster_secret"},
    {"without TLS", "set cluster_tls alike on all members"},
    {"ertificate", "look at cluster_cert, cluster_ca and cluster_cert_name on "
                   "both: who signed it, for which name, until when"},
    {"TLS", "set cluster_tls alike on all members"},
    {"is of the cluster", "set the same option cluster on both"},
    {"major version", "update the older one"},
    {"protocol versions", "update the older one"},
    {"two nodes are named", "give one of them another member_name"},
    {"is expected there", "correct the address of one of them in the list"},
};

static const char *cure_of(const char *why)
{
    for (size_t i = 0; i < sizeof(cures) / sizeof(cures[0]); i++) {
        if (strstr(why, cures[i].in) != NULL) {
            return cures[i].cure;
        }
    }
    return "its log says more: is it up, and does a firewall, or "
           "IPAddressAllow= "
           "of the systemd unit on either host, let its address and port "
           "through?";
}

/* ---- the bare socket ---- */

/* The quickest of some connections, in microseconds; negative: -errno. */
static int64_t connect_us(const char *text)
{
    ldr_address_t address;
    int64_t best = INT64_MAX;

    if (!ldr_address_parse(text, strlen(text), &address)) {
        return -EINVAL;
    }
    for (unsigned i = 0; i < CONNECTS; i++) {
        uint64_t begin_ns = ldr_now_ns(&ldr_clock_real);
        int fd = ldr_connect_tcp(&address, "", begin_ns + CONNECT_NS);

        if (fd < 0) {
            return fd;
        }
        int64_t took =
            (int64_t)((ldr_now_ns(&ldr_clock_real) - begin_ns) / 1000);
        close(fd);
        best = took < best ? took : best;
    }
    return best;
}

/* ---- members ---- */

static double of(const ldr_prom_t *p, const char *name, const char *member)
{
    return ldr_prom_sum(p, name, LDR_WHERE("member", member));
}

/* What the two think of each other. False: nothing is wrong. */
static bool say_wrong(const ldr_doctor_t *d, const ldr_prom_t *p,
                      const char *name)
{
    double skew = of(p, NAME(peer_clock_seconds), name);
    bool wrong = false;

    if (of(p, NAME(peer_knows), name) == 0) {
        ldr_doctor_say(d, LDR_VERDICT_BAD,
                       "add this node to that member's list, or wait for its "
                       "source to name it",
                       "%s does not count this node among the members", name);
        wrong = true;
    } else if (of(p, NAME(peer_same_view), name) == 0) {
        ldr_doctor_say(d, LDR_VERDICT_WARN,
                       "compare `larder cluster members` on both; views differ "
                       "for seconds after a change, and while a new member's "
                       "weight grows",
                       "%s has another view: the two disagree about some "
                       "owners",
                       name);
        wrong = true;
    }
    if (skew > SKEW_S) {
        ldr_doctor_say(d, LDR_VERDICT_WARN,
                       "sudo systemctl enable --now systemd-timesyncd, on both",
                       "the clock of %s is %.0f s off: chunks expire early or "
                       "late there",
                       name, skew);
        wrong = true;
    }
    return wrong;
}

/* ---- what links carry ---- */

/* A member that is well. */
typedef struct link {
    char name[LDR_PROM_VALUE], address[LDR_PROM_VALUE];
    int64_t bare_us;
    larder_status_t status; /* of what follows; E_DENIED: not measured */
    ldr_doctor_link_t speed;
    char why[LDR_PROM_VALUE];
} link_t;

typedef struct links {
    link_t *all;
    size_t count;
    double best; /* of the bare ones */
} links_t;

static double slower(const ldr_doctor_speed_t *s)
{
    return s->in < s->out ? s->in : s->out;
}

static void measure(const ldr_doctor_t *d, link_t *l, uint64_t ns,
                    uint64_t end_ns)
{
    const ldr_options_t *o = &d->config->options;

    if (ldr_now_ns(&ldr_clock_real) + STALL_NS > end_ns) {
        if (l->status == LARDER_PENDING) {
            l->status = ldr_fail(LARDER_E_CANCELED, "no time was left for it");
            snprintf(l->why, sizeof(l->why), "%s", ldr_fail_text());
        }
        return;
    }
    l->status = LARDER_E_DENIED;
    if (o->cluster_secret[0] != '\0' && access(o->cluster_secret, R_OK) == 0) {
        l->status = ldr_doctor_link(o, l->address, ns, STALL_NS, &l->speed);
        snprintf(l->why, sizeof(l->why), "%s",
                 l->status != LARDER_OK ? ldr_fail_text() : "");
    }
}

/* Those that look slow are measured again: a busy host makes a link look slow,
 * and nothing makes it look fast. */
static void measure_all(const ldr_doctor_t *d, links_t *links)
{
    uint64_t ns = ldr_min64(LINKS_NS / (links->count + 1), LINK_NS);
    uint64_t end_ns = ldr_now_ns(&ldr_clock_real) + END_NS;

    for (unsigned turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < links->count; i++) {
            link_t *l = &links->all[i];

            if (turn == 0 || (l->status == LARDER_OK &&
                              slower(&l->speed.bare) * SLOW < links->best)) {
                measure(d, l, ns, end_ns);
            }
        }
        for (size_t i = 0; i < links->count; i++) {
            const ldr_doctor_speed_t *s = &links->all[i].speed.bare;

            links->best = s->in > links->best ? s->in : links->best;
            links->best = s->out > links->best ? s->out : links->best;
        }
    }
}

/* What is wrong with what it carries, and what to do; NULL: nothing. */
static const char *slow_because(const ldr_doctor_t *d, const links_t *links,
                                const link_t *l, const char **cure_p)
{
    const ldr_doctor_speed_t *bare = &l->speed.bare, *spoken = &l->speed.spoken;

    if (slower(bare) * SLOW < links->best) {
        *cure_p = "compare both hosts: ethtool (speed, duplex), ip -s link "
                  "(errors, mtu), sysctl net.ipv4.tcp_rmem, and what else uses "
                  "the link";
        return "this link is slow beside the others, or in one direction";
    }
    if (slower(spoken) * SLOW / 2 < slower(bare)) {
        bool tls = d->config->options.cluster_tls == LDR_TLS_ON;

        *cure_p = tls ? "sudo modprobe tls on both hosts; see also `larder "
                        "doctor`, ktls"
                      : "look for a busy host";
        return tls ? "TLS halves it, or worse" : "the hosts slow it down";
    }
    return NULL;
}

static void say_link(const ldr_doctor_t *d, const ldr_prom_t *p,
                     const links_t *links, const link_t *l)
{
    double trip_us = 1e6 * of(p, NAME(peer_round_trip_seconds), l->name);
    const ldr_doctor_speed_t *bare = &l->speed.bare, *spoken = &l->speed.spoken;
    bool late = trip_us > 10 * (double)l->bare_us + TRIP_MORE_US;
    const char *cure = NULL, *because = NULL;
    char carries[400];

    if (l->status == LARDER_E_DEADLINE && slower(bare) == 0) {
        ldr_doctor_say(d, LDR_VERDICT_BAD,
                       "compare the MTU of both hosts and of all between them "
                       "(ping -M do -s 8972), and look for a firewall",
                       "%s at %s: a bare socket connects in %lld us, but large "
                       "messages do not come through",
                       l->name, l->address, (long long)l->bare_us);
        return;
    }
    if (l->status == LARDER_E_DENIED) {
        snprintf(carries, sizeof(carries),
                 "not measured: the file cluster_secret is not in this "
                 "configuration, or not readable");
    } else if (slower(spoken) == 0) {
        snprintf(carries, sizeof(carries), "not measured: %.300s", l->why);
    } else {
        because = slow_because(d, links, l, &cure);
        snprintf(carries, sizeof(carries),
                 "%.3g GB/s from it and %.3g to it, where a bare socket "
                 "carries %.3g and %.3g%s%s",
                 spoken->in * 1e-9, spoken->out * 1e-9, bare->in * 1e-9,
                 bare->out * 1e-9, because != NULL ? ": " : "",
                 because != NULL ? because : "");
    }
    ldr_doctor_say(
        d, late || because != NULL ? LDR_VERDICT_WARN : LDR_VERDICT_OK,
        because == NULL && late ? "look for a busy host or a slow disk there"
                                : cure,
        "%s at %s: an exchange took %.0f us; a bare socket connects "
        "in %lld us; bytes: %s",
        l->name, l->address, trip_us, (long long)l->bare_us, carries);
}

/* Says what is wrong. False: nothing is, and its link is to be measured. */
static bool check_member(const ldr_doctor_t *d, const ldr_prom_t *p,
                         const char *name, const char *address,
                         int64_t *bare_us_p)
{
    char why[LDR_PROM_VALUE];
    int64_t bare_us = connect_us(address);

    *bare_us_p = bare_us;
    ldr_prom_text(p, NAME(peer_reason), LDR_WHERE("member", name), "reason",
                  why);
    if (bare_us < 0) {
        ldr_doctor_say(d, LDR_VERDICT_BAD, cure_of(""),
                       "%s at %s: no connection: %s", name, address,
                       strerror((int)-bare_us));
    } else if (of(p, NAME(peer_well), name) == 0) {
        ldr_doctor_say(d, LDR_VERDICT_BAD, cure_of(why),
                       "%s at %s: a bare socket connects in %lld us, but the "
                       "two do not meet: %s",
                       name, address, (long long)bare_us,
                       why[0] != '\0' ? why : "not yet");
    } else {
        return say_wrong(d, p, name);
    }
    return true;
}

/* ---- this node ---- */

static void check_self(const ldr_doctor_t *d, const ldr_prom_t *p,
                       const char *self)
{
    char why[LDR_PROM_VALUE];

    ldr_prom_text(p, NAME(cluster_trouble), LDR_ANYWHERE, "reason", why);
    if (why[0] != '\0') {
        ldr_doctor_say(d, LDR_VERDICT_BAD, cure_of(why), "this node, %s: %s",
                       self, why);
    } else if (ldr_prom_sum(p, NAME(cluster_source_up), LDR_ANYWHERE) == 0) {
        ldr_doctor_say(d, LDR_VERDICT_WARN,
                       "look at etcd or DNS; nothing waits for it but joins "
                       "and leaves",
                       "this node, %s: the source of members does not answer",
                       self);
    } else if (ldr_prom_sum(p, NAME(cluster_registered), LDR_ANYWHERE) == 0) {
        ldr_doctor_say(d, LDR_VERDICT_BAD,
                       "set member_name to its name in the list, or look at "
                       "etcd",
                       "this node, %s, is not among the members", self);
    } else {
        ldr_doctor_say(d, LDR_VERDICT_OK, NULL, "this node is the member %s",
                       self);
    }
}

static void check_all(const ldr_doctor_t *d, const ldr_prom_t *p)
{
    char self[LDR_PROM_VALUE];
    links_t links = {.all = ldr_alloc(p->count * sizeof(link_t))};

    ldr_prom_text(p, NAME(cluster_info), LDR_ANYWHERE, "member", self);
    if (self[0] == '\0') {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL,
                       "this node is in no cluster (option cluster), or you "
                       "are not its user");
        ldr_free(links.all);
        return;
    }
    check_self(d, p, self);
    for (size_t i = 0; links.all != NULL && i < p->count; i++) {
        const ldr_sample_t *s = &p->samples[i];
        link_t *l = &links.all[links.count];

        if (strcmp(s->name, NAME(member_info)) == 0 &&
            ldr_prom_label(s, "member", l->name) &&
            ldr_prom_label(s, "address", l->address) &&
            strcmp(l->name, self) != 0 &&
            !check_member(d, p, l->name, l->address, &l->bare_us)) {
            l->status = LARDER_PENDING;
            links.count++;
        }
    }
    measure_all(d, &links);
    for (size_t i = 0; i < links.count; i++) {
        say_link(d, p, &links, &links.all[i]);
    }
    ldr_free(links.all);
}

void ldr_doctor_cluster(const ldr_doctor_t *d)
{
    char path[LDR_UNIX_PATH_MAX], url[LDR_UNIX_PATH_MAX + 24], *text = NULL;
    larder_t *lar = NULL;
    ldr_prom_t prom;

    if (!ldr_config_socket(d->config, path)) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL,
                       "the daemon has no socket (option socket)");
        return;
    }
    snprintf(url, sizeof(url), "unix:%s?timeout_ms=2000", path);
    if (larder_open(url, NULL, &lar) != LARDER_OK ||
        ldr_top_fetch(lar, &text) != LARDER_OK ||
        !ldr_prom_parse(text, &prom)) {
        ldr_doctor_say(d, LDR_VERDICT_BAD,
                       "start it: systemctl start larder, or larder serve",
                       "the daemon of this configuration does not answer: %s",
                       ldr_fail_text());
    } else {
        check_all(d, &prom);
        ldr_prom_free(&prom);
    }
    if (lar != NULL) {
        larder_close(&lar, 1000);
    }
}
