/*
 * larder cluster: the cluster as one of its nodes sees it, from that node's
 * metrics; and a member that is to leave, by the daemon's own socket.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "cli/cli.h"
#include "cli/top.h"
#include "server/server.h"

#define WAIT_S 60u
#define LOOK_NS 200000000
#define VERB_NS ((uint64_t)10 * 1000000000u)

/* ---- reading ---- */

typedef struct seen {
    ldr_prom_t prom;
    char source[LDR_PROM_VALUE], cluster[LDR_PROM_VALUE];
    char self[LDR_PROM_VALUE], view[LDR_PROM_VALUE];
    char trouble[LDR_PROM_VALUE];
    char silent[LDR_PROM_VALUE + 64]; /* who does not answer; empty: all do */
} seen_t;

#define NAME(metric) ldr_metric_table[LDR_METRIC_##metric].name
#define INFO NAME(cluster_info)

static double of_member(const seen_t *s, const char *name, const char *member)
{
    return ldr_prom_sum(&s->prom, name, LDR_WHERE("member", member));
}

static bool answers(const seen_t *s, const char *member)
{
    return strcmp(member, s->self) == 0 ||
           of_member(s, NAME(peer_well), member) > 0;
}

static void silent_find(seen_t *s)
{
    char first[LDR_PROM_VALUE], name[LDR_PROM_VALUE];
    unsigned count = 0;

    for (size_t i = 0; i < s->prom.count; i++) {
        const ldr_sample_t *sample = &s->prom.samples[i];

        if (strcmp(sample->name, NAME(member_info)) == 0 &&
            ldr_prom_label(sample, "member", name) && !answers(s, name) &&
            count++ == 0) {
            memcpy(first, name, sizeof(first));
        }
    }
    if (count == 1) {
        snprintf(s->silent, sizeof(s->silent), "%s does not answer", first);
    } else if (count > 1) {
        snprintf(s->silent, sizeof(s->silent),
                 "%u members do not answer, %s among them", count, first);
    }
}

/* An exit code; LDR_EXIT_NO: the node is in no cluster. */
static int cluster_look(const ldr_args_t *args, larder_t *lar, seen_t *s)
{
    char *text = NULL;
    larder_status_t st = ldr_top_fetch(lar, &text);

    memset(s, 0, sizeof(*s));
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    if (!ldr_prom_parse(text, &s->prom)) {
        return ldr_cli_fail(args, "the node's metrics cannot be read");
    }
    ldr_prom_text(&s->prom, INFO, LDR_ANYWHERE, "source", s->source);
    ldr_prom_text(&s->prom, INFO, LDR_ANYWHERE, "cluster", s->cluster);
    ldr_prom_text(&s->prom, INFO, LDR_ANYWHERE, "member", s->self);
    ldr_prom_text(&s->prom, INFO, LDR_ANYWHERE, "view", s->view);
    ldr_prom_text(&s->prom, NAME(cluster_trouble), LDR_ANYWHERE, "reason",
                  s->trouble);
    if (s->source[0] == '\0') {
        ldr_cli_fail(args, "this node is in no cluster (option cluster), or "
                           "you are not its user");
        ldr_prom_free(&s->prom);
        return LDR_EXIT_NO;
    }
    silent_find(s);
    return LDR_EXIT_OK;
}

static uint64_t metric_of(const seen_t *s, const char *name)
{
    return (uint64_t)ldr_prom_sum(&s->prom, name, LDR_ANYWHERE);
}

static uint64_t members_in(const seen_t *s, const char *state)
{
    return (uint64_t)ldr_prom_sum(&s->prom, NAME(cluster_members),
                                  LDR_WHERE("state", state));
}

/* Why it is not healthy; NULL: it is. */
static const char *ill(const seen_t *s)
{
    if (s->trouble[0] != '\0') {
        return s->trouble;
    }
    if (metric_of(s, NAME(cluster_registered)) == 0) {
        return "this node is not among the members";
    }
    if (metric_of(s, NAME(cluster_source_up)) == 0) {
        return "the source of members does not answer; the last view stands";
    }
    if (ldr_prom_sum(&s->prom, NAME(cluster_held_seconds), LDR_ANYWHERE) > 0) {
        return "a view without most of the members is held back";
    }
    if (metric_of(s, NAME(cluster_refused_members)) > 0) {
        return "a member is refused; the log says which and why";
    }
    return s->silent[0] != '\0' ? s->silent : NULL;
}

/* ---- showing ---- */

static void show_status(const ldr_args_t *args, const seen_t *s)
{
    const char *why = ill(s);

    if (ldr_args_has(args, LDR_FLAG_JSON)) {
        printf("{\"source\":");
        ldr_json_string(stdout, s->source);
        printf(",\"cluster\":");
        ldr_json_string(stdout, s->cluster);
        printf(",\"member\":");
        ldr_json_string(stdout, s->self);
        printf(",\"view\":");
        ldr_json_string(stdout, s->view);
        printf(",\"owners\":%llu,\"leaving\":%llu,\"weightless\":%llu,"
               "\"refused\":%llu,\"healthy\":%s,\"why\":",
               (unsigned long long)members_in(s, "owner"),
               (unsigned long long)members_in(s, "leaving"),
               (unsigned long long)members_in(s, "weightless"),
               (unsigned long long)metric_of(s, NAME(cluster_refused_members)),
               why == NULL ? "true" : "false");
        ldr_json_string(stdout, why != NULL ? why : "");
        printf("}\n");
        return;
    }
    printf("%s%s, by %s: %llu owners, %llu leaving, %llu of weight 0\n",
           s->cluster[0] != '\0' ? "cluster " : "a cluster", s->cluster,
           s->source, (unsigned long long)members_in(s, "owner"),
           (unsigned long long)members_in(s, "leaving"),
           (unsigned long long)members_in(s, "weightless"));
    printf("this node: %s; view %s\n", s->self, s->view);
    printf("%s%s\n",
           why == NULL ? "healthy" : "not healthy: ", why != NULL ? why : "");
}

static void show_member(const ldr_args_t *args, const seen_t *s,
                        const ldr_sample_t *sample, bool weights)
{
    char name[LDR_PROM_VALUE], address[LDR_PROM_VALUE], zone[LDR_PROM_VALUE];
    char version[LDR_PROM_VALUE];

    if (!ldr_prom_label(sample, "member", name) ||
        !ldr_prom_label(sample, "address", address) ||
        !ldr_prom_label(sample, "zone", zone) ||
        !ldr_prom_label(sample, "version", version)) {
        return;
    }
    double weight = of_member(s, NAME(member_weight), name);
    double share = of_member(s, NAME(member_share), name);
    double owned = of_member(s, NAME(member_owned), name);
    const char *state = share == 0    ? "leaving"
                        : weight == 0 ? "weightless"
                        : share < 1   ? "new"
                                      : "owner";
    if (ldr_args_has(args, LDR_FLAG_JSON)) {
        printf("{\"member\":");
        ldr_json_string(stdout, name);
        printf(",\"address\":");
        ldr_json_string(stdout, address);
        printf(",\"zone\":");
        ldr_json_string(stdout, zone);
        printf(",\"version\":");
        ldr_json_string(stdout, version);
        printf(",\"state\":\"%s\",\"weight\":%.0f,\"share\":%.3f,"
               "\"owned\":%.3f,\"self\":%s,\"answers\":%s}\n",
               state, weight, share, owned,
               strcmp(name, s->self) == 0 ? "true" : "false",
               answers(s, name) ? "true" : "false");
    } else if (weights) {
        printf("%-24s %10.0f %9.1f %% %9.1f %%\n", name, weight, 100 * share,
               100 * owned);
    } else {
        printf("%-24s %-8s %-28s %-12s %s%s\n", name, state, address,
               zone[0] != '\0' ? zone : "-", version[0] != '\0' ? version : "-",
               strcmp(name, s->self) == 0 ? "  (this node)"
               : answers(s, name)         ? ""
                                          : "  (does not answer)");
    }
}

static void show_members(const ldr_args_t *args, const seen_t *s, bool weights)
{
    if (!ldr_args_has(args, LDR_FLAG_JSON)) {
        if (weights) {
            printf("%-24s %10s %11s %11s\n", "member", "weight", "of it",
                   "owns");
        } else {
            printf("%-24s %-8s %-28s %-12s %s\n", "member", "state", "address",
                   "zone", "version");
        }
    }
    for (size_t i = 0; i < s->prom.count; i++) {
        if (strcmp(s->prom.samples[i].name, NAME(member_info)) == 0) {
            show_member(args, s, &s->prom.samples[i], weights);
        }
    }
}

/* ---- the commands ---- */

static int wait_healthy(const ldr_args_t *args, larder_t *lar, uint64_t wait_s)
{
    const struct timespec pause = {0, LOOK_NS};
    uint64_t until_ns =
        ldr_now_ns(&ldr_clock_real) + wait_s * UINT64_C(1000000000);
    char why[LDR_PROM_VALUE];
    seen_t s;

    for (;;) {
        int code = cluster_look(args, lar, &s);

        if (code != LDR_EXIT_OK) {
            return code;
        }
        const char *text = ill(&s);
        snprintf(why, sizeof(why), "%s", text != NULL ? text : "");
        if (text == NULL) {
            show_status(args, &s);
        }
        ldr_prom_free(&s.prom);
        if (text == NULL) {
            return LDR_EXIT_OK;
        }
        if (ldr_now_ns(&ldr_clock_real) >= until_ns) {
            ldr_cli_fail(args, "not healthy after %llu s: %s",
                         (unsigned long long)wait_s, why);
            return LDR_EXIT_NO;
        }
        nanosleep(&pause, NULL);
    }
}

/* Waits until the daemon behind the socket sees the member leave, or be back:
 * a member that is drained from elsewhere confirms it by its session. */
static int wait_member(const ldr_args_t *args, const char *path,
                       const char *name, const char *text)
{
    const struct timespec pause = {0, LOOK_NS};
    bool back = ldr_args_has(args, LDR_FLAG_UNDO), done = false;
    uint64_t until_ns = ldr_now_ns(&ldr_clock_real) + VERB_NS;
    char url[LDR_UNIX_PATH_MAX + 8];
    larder_t *lar = NULL;
    seen_t s;

    snprintf(url, sizeof(url), "unix:%s", path);
    int code = ldr_cli_open(args, url, &lar);
    while (code == LDR_EXIT_OK && !done) {
        code = cluster_look(args, lar, &s);
        if (code == LDR_EXIT_OK) {
            done = (of_member(&s, NAME(member_share), name) > 0) == back;
            ldr_prom_free(&s.prom);
        }
        if (code == LDR_EXIT_OK && !done &&
            ldr_now_ns(&ldr_clock_real) >= until_ns) {
            ldr_cli_fail(args,
                         "%s has not confirmed it within %llu s: is it up, and "
                         "does `larder cluster status` call this node healthy?",
                         name, (unsigned long long)(VERB_NS / 1000000000u));
            code = LDR_EXIT_NO;
        }
        if (!done) {
            nanosleep(&pause, NULL);
        }
    }
    if (lar != NULL) {
        larder_close(&lar, 1000);
    }
    if (code == LDR_EXIT_OK) {
        printf("%s\n", text);
    }
    return code;
}

/* drain NODE [SOCKET], or SOCKET alone: the node behind it. No name of a member
 * has a slash. */
static int drain(const ldr_args_t *args)
{
    char path[LDR_UNIX_PATH_MAX], verb[96], text[512];
    const char *name = NULL, *socket = NULL;

    for (int i = 1; i < args->operand_count; i++) {
        const char *one = args->operands[i];

        if (strchr(one, '/') != NULL && socket == NULL) {
            socket = one + (strncmp(one, "unix:", 5) == 0 ? 5 : 0);
        } else if (name == NULL && ldr_tenant_name_ok(one)) {
            name = one;
        } else {
            return ldr_cli_usage(args, "'%s' cannot be a member's name", one);
        }
    }
    if (name == NULL && socket == NULL) {
        return ldr_cli_usage(args, "which member? larder cluster drain NODE");
    }
    ldr_socket_default(path);
    if (socket != NULL &&
        (strstr(socket, "://") != NULL ||
         (size_t)snprintf(path, sizeof(path), "%s", socket) >= sizeof(path))) {
        return ldr_cli_usage(args,
                             "%s: drain needs a daemon's socket: give its "
                             "path",
                             socket);
    }
    snprintf(verb, sizeof(verb), "%s%s%s",
             ldr_args_has(args, LDR_FLAG_UNDO) ? "return" : "leave",
             name != NULL ? " " : "", name != NULL ? name : "");
    larder_status_t st = ldr_admin_say(path, verb, text, sizeof(text),
                                       ldr_now_ns(&ldr_clock_real) + VERB_NS);
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    if (name != NULL) {
        return wait_member(args, path, name, text);
    }
    printf("%s\n", text);
    return LDR_EXIT_OK;
}

static int cluster_show(const ldr_args_t *args, larder_t *lar, const char *what)
{
    seen_t s;
    int code = cluster_look(args, lar, &s);

    if (code != LDR_EXIT_OK) {
        return code;
    }
    if (strcmp(what, "status") == 0) {
        show_status(args, &s);
    } else {
        show_members(args, &s, strcmp(what, "weights") == 0);
    }
    ldr_prom_free(&s.prom);
    return LDR_EXIT_OK;
}

int ldr_cmd_cluster(const ldr_args_t *args)
{
    static const char *const names[] = {"status", "members", "weights",
                                        "wait-healthy", "drain"};
    const char *what = args->operand_count > 0 ? args->operands[0] : "status";
    /* The place is the operand behind the verb. */
    ldr_args_t rest = *args;
    uint64_t wait_s = WAIT_S;
    char url[LDR_CLI_URL];
    larder_t *lar = NULL;
    size_t i = 0;

    while (i < 5 && strcmp(what, names[i]) != 0) {
        i++;
    }
    if (i == 5) {
        return ldr_cli_usage(args,
                             "'%s' is not one of status, members, weights, "
                             "wait-healthy, drain",
                             what);
    }
    if (strcmp(what, "drain") == 0) {
        return drain(args);
    }
    if (args->operand_count > 2) {
        return ldr_cli_usage(args, "one URL at most");
    }
    if (rest.operand_count > 0) {
        rest.operands++;
        rest.operand_count--;
    }
    int code = ldr_cli_number(args, LDR_FLAG_TIMEOUT, 0, 86400, &wait_s);
    if (code == LDR_EXIT_OK) {
        code = ldr_cli_open(args, ldr_cli_place(&rest, url), &lar);
    }
    if (code != LDR_EXIT_OK) {
        return code;
    }
    code = strcmp(what, "wait-healthy") == 0 ? wait_healthy(args, lar, wait_s)
                                             : cluster_show(args, lar, what);
    larder_close(&lar, 1000);
    return code;
}
