/*
 * doctor --cluster: what the daemon of this configuration knows of the other
 * members, from its metrics, and the way to each, by a bare socket.
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
    return "its log says more: is it up, and does a firewall let the port of "
           "its address through?";
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

static void check_member(const ldr_doctor_t *d, const ldr_prom_t *p,
                         const char *name, const char *address)
{
    char why[LDR_PROM_VALUE];
    int64_t bare_us = connect_us(address);
    double trip_us = 1e6 * of(p, NAME(peer_round_trip_seconds), name);

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
    } else if (!say_wrong(d, p, name)) {
        bool slow = trip_us > 10 * (double)bare_us + TRIP_MORE_US;

        ldr_doctor_say(d, slow ? LDR_VERDICT_WARN : LDR_VERDICT_OK,
                       slow ? "look for a busy host or a slow disk there"
                            : NULL,
                       "%s at %s: an exchange took %.0f us; a bare socket "
                       "connects in %lld us",
                       name, address, trip_us, (long long)bare_us);
    }
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
    char self[LDR_PROM_VALUE], name[LDR_PROM_VALUE], address[LDR_PROM_VALUE];

    ldr_prom_text(p, NAME(cluster_info), LDR_ANYWHERE, "member", self);
    if (self[0] == '\0') {
        ldr_doctor_say(d, LDR_VERDICT_SKIP, NULL,
                       "this node is in no cluster (option cluster), or you "
                       "are not its user");
        return;
    }
    check_self(d, p, self);
    for (size_t i = 0; i < p->count; i++) {
        const ldr_sample_t *s = &p->samples[i];

        if (strcmp(s->name, NAME(member_info)) == 0 &&
            ldr_prom_label(s, "member", name) &&
            ldr_prom_label(s, "address", address) && strcmp(name, self) != 0) {
            check_member(d, p, name, address);
        }
    }
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
