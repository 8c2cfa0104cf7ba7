/*
 * Members by SRV records: a record's target names a member, by its first label,
 * and where it is. Addresses alone are refused: they say where, not who, and a
 * member that came back at another address would be another.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/cluster_int.h"
#include "cluster/placement.h"

#define NS_PER_S UINT64_C(1000000000)
#define AGAIN_MIN_S 1u /* between two questions */
#define AGAIN_MAX_S 30u
#define RECORDS 64u /* items at first */

typedef struct dns {
    char name[LDR_HOST_MAX];
    ldr_srv_t *records;
    ldr_member_t *members;
    size_t capacity, member_capacity;
    uint32_t failed;  /* in a row */
    uint64_t next_ns; /* not asked before */
} dns_t;

/* A name that a resolver made of an address: 10-1-2-3. */
static bool is_address(const char *label)
{
    return strspn(label, "0123456789-") == strlen(label) &&
           strchr(label, '-') != NULL;
}

/* False, with the trouble said: this record names nobody. */
static bool read_record(ldr_cluster_t *c, const ldr_srv_t *srv, bool weights,
                        ldr_member_t *m)
{
    size_t label = strcspn(srv->target, ".");

    memset(m, 0, sizeof(*m));
    if (label == 0 || label >= sizeof(m->name) || srv->port == 0) {
        ldr_cluster_trouble(c, "dns: '%.100s' port %u names no member",
                            srv->target, srv->port);
        return false;
    }
    memcpy(m->name, srv->target, label);
    if (!ldr_tenant_name_ok(m->name) || is_address(m->name)) {
        ldr_cluster_trouble(c,
                            "dns: the target '%.100s' does not begin with "
                            "a member's name: "
                            "use a StatefulSet, or records with host names",
                            srv->target);
        return false;
    }
    m->id = ldr_member_id(m->name);
    snprintf(m->address, sizeof(m->address), "%s:%u", srv->target, srv->port);
    m->weight = weights ? srv->weight : 1;
    m->share = LDR_SHARE_FULL;
    return true;
}

static bool is_twice(ldr_cluster_t *c, const dns_t *d, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t k = i + 1; k < count; k++) {
            if (d->members[i].id == d->members[k].id) {
                ldr_cluster_trouble(c,
                                    "dns: two members are named '%s': %.80s "
                                    "and %.80s; the last view stands",
                                    d->members[i].name, d->members[i].address,
                                    d->members[k].address);
                return true;
            }
        }
    }
    return false;
}

/* RFC 2782: a weight of 0 in all of them says nothing about weights. */
static void records_answer(ldr_cluster_t *c, dns_t *d, uint32_t count)
{
    bool weights = false, self = false;

    for (uint32_t i = 0; i < count; i++) {
        weights = weights || d->records[i].weight > 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!read_record(c, &d->records[i], weights, &d->members[i])) {
            return;
        }
        self = self || d->members[i].id == c->self.id;
    }
    if (is_twice(c, d, count)) {
        return;
    }
    if (count == 0 || self) {
        ldr_cluster_trouble(c, "%s", "");
    } else {
        ldr_cluster_trouble(c,
                            "dns: %s has no record for this node, '%s': it "
                            "owns nothing",
                            d->name, c->self.name);
    }
    ldr_cluster_answer(c, d->members, count);
}

static bool reserve_members(dns_t *d, uint32_t count)
{
    return ldr_grow(&d->records, &d->capacity, count, sizeof(*d->records)) &&
           ldr_grow(&d->members, &d->member_capacity, count,
                    sizeof(*d->members));
}

/* Asks once; gives how many seconds later it is asked again. */
static uint32_t records_ask(ldr_cluster_t *c, dns_t *d)
{
    uint32_t count = 0, ttl_s = 0;
    bool addresses = false;
    int error = reserve_members(d, RECORDS) ? 0 : -ENOMEM;

    if (error == 0) {
        error = c->dns->srv(c->dns->arg, d->name, d->records,
                            (uint32_t)d->capacity, &count, &ttl_s, &addresses);
    }
    if (error == 0 && count > d->capacity) {
        error = count <= LDR_MEMBERS_MAX && reserve_members(d, count) ? -EAGAIN
                                                                      : -ENOMEM;
        if (error == -EAGAIN) {
            return 0; /* again, with that capacity */
        }
    }
    if (error == -ENODATA && addresses) {
        ldr_cluster_trouble(c,
                            "dns: %s has addresses but no SRV records: an "
                            "address says where a node is, not who",
                            d->name);
    }
    if (error == 0 || error == -ENOENT || (error == -ENODATA && !addresses)) {
        d->failed = 0;
        records_answer(c, d, count);
    } else {
        d->failed++;
        if (error == -ENODATA) {
            ldr_fail(LARDER_E_INVALID, "%s has no SRV records", d->name);
        }
        ldr_cluster_source_bad(c);
        ttl_s = d->failed;
    }
    ttl_s = ttl_s < AGAIN_MIN_S ? AGAIN_MIN_S : ttl_s;
    return ttl_s > AGAIN_MAX_S ? AGAIN_MAX_S : ttl_s;
}

static uint64_t dns_step(ldr_cluster_t *c)
{
    dns_t *d = c->state;

    if (ldr_now_ns(c->clock) >= d->next_ns) {
        uint32_t wait_s = records_ask(c, d);

        d->next_ns = ldr_now_ns(c->clock) + wait_s * NS_PER_S;
    }
    return d->next_ns;
}

/* ---- the source ---- */

static larder_status_t dns_read(ldr_cluster_t *c, const char *text)
{
    dns_t *d = ldr_alloc(sizeof(*d));

    if (d == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the members");
    }
    c->state = d;
    if (text[0] == '\0' || strpbrk(text, " /:") != NULL) {
        return ldr_fail(LARDER_E_INVALID,
                        "option cluster: 'dns:%s': write dns:NAME, a name "
                        "that has SRV records",
                        text);
    }
    if (strcmp(c->options.member_weight, "auto") != 0 ||
        c->options.member_address[0] != '\0' ||
        c->options.member_zone[0] != '\0') {
        return ldr_fail(LARDER_E_INVALID,
                        "options member_address, member_zone and member_weight "
                        "have no meaning with cluster=dns: the records have "
                        "address and weight, and cannot carry a zone");
    }
    snprintf(d->name, sizeof(d->name), "%s", text);
    snprintf(c->name, sizeof(c->name), "%s", text);
    return LARDER_OK;
}

static larder_status_t dns_start(ldr_cluster_t *c)
{
    (void)c;
    return LARDER_OK;
}

static void dns_close(ldr_cluster_t *c)
{
    dns_t *d = c->state;

    if (d != NULL) {
        ldr_free(d->records);
        ldr_free(d->members);
        ldr_free(d);
    }
}

const ldr_source_t ldr_source_dns = {
    "dns", false, dns_read, dns_start, NULL, dns_step, dns_close,
};
