/*
 * Members by a list: NAME=HOST:PORT[/ZONE[/WEIGHT]], with commas between, or
 * one a line in a file that is read again when the options are. Everybody is a
 * member from the start, and this node is one of them.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/cluster_int.h"
#include "net/socket.h"

#define FILE_MAX ((size_t)4 << 20)

typedef struct list {
    char path[LDR_PATH_MAX]; /* "": the option has the members */
    ldr_member_t *members;
    size_t count, capacity;
} list_t;

/* ---- reading ---- */

typedef struct piece {
    const char *at;
    size_t bytes;
} piece_t;

/* Up to the separator; what is behind it stays in rest. */
static piece_t piece_cut(piece_t *rest, char separator)
{
    const char *end = memchr(rest->at, separator, rest->bytes);
    piece_t one = {rest->at,
                   end != NULL ? (size_t)(end - rest->at) : rest->bytes};
    size_t skip = one.bytes + (end != NULL);

    *rest = (piece_t){rest->at + skip, rest->bytes - skip};
    return one;
}

static bool piece_copy(piece_t from, char *to, size_t size)
{
    if (from.bytes >= size) {
        return false;
    }
    memcpy(to, from.at, from.bytes);
    to[from.bytes] = '\0';
    return true;
}

static larder_status_t read_member(piece_t text, ldr_member_t *m)
{
    piece_t rest = text;
    piece_t name = piece_cut(&rest, '='), address = piece_cut(&rest, '/');
    bool has_zone = address.at + address.bytes < text.at + text.bytes;
    piece_t zone = piece_cut(&rest, '/'), weight = rest;
    char number[16] = "1";
    uint64_t value = 0;
    ldr_address_t parsed;

    memset(m, 0, sizeof(*m));
    m->share = LDR_SHARE_FULL;
    if (!ldr_address_parse(address.at, address.bytes, &parsed) ||
        strcmp(parsed.port, "0") == 0 ||
        !piece_copy(name, m->name, sizeof(m->name)) ||
        !piece_copy(address, m->address, sizeof(m->address)) ||
        !piece_copy(zone, m->zone, sizeof(m->zone)) ||
        (weight.bytes > 0 && !piece_copy(weight, number, sizeof(number))) ||
        !ldr_parse_uint(number, &value) || value > LDR_WEIGHT_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "option cluster: member '%.*s': write NAME=HOST:PORT, "
                        "NAME=HOST:PORT/ZONE or NAME=HOST:PORT/ZONE/WEIGHT, "
                        "with a weight up to %u",
                        (int)(text.bytes < 80 ? text.bytes : 80), text.at,
                        LDR_WEIGHT_MAX);
    }
    m->weight = (uint32_t)value;
    m->id = ldr_member_id(m->name);
    larder_status_t st =
        ldr_member_name_check("option cluster: member", m->name);
    if (st == LARDER_OK && has_zone && m->zone[0] != '\0') {
        st = ldr_member_name_check("option cluster: zone", m->zone);
    }
    return st;
}

static larder_status_t member_add(list_t *l, const ldr_member_t *m)
{
    for (size_t i = 0; i < l->count; i++) {
        if (l->members[i].id == m->id) {
            return ldr_fail(LARDER_E_INVALID,
                            "option cluster: two members are named '%s' (%s "
                            "and %s)",
                            m->name, l->members[i].address, m->address);
        }
        if (strcmp(l->members[i].address, m->address) == 0) {
            return ldr_fail(LARDER_E_INVALID,
                            "option cluster: members '%s' and '%s' have the "
                            "same address, %s",
                            l->members[i].name, m->name, m->address);
        }
    }
    if (!ldr_grow(&l->members, &l->capacity, l->count + 1, sizeof(*m))) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the members");
    }
    l->members[l->count++] = *m;
    return LARDER_OK;
}

static piece_t piece_trim(piece_t p)
{
    while (p.bytes > 0 && (p.at[0] == ' ' || p.at[0] == '\t')) {
        p.at++;
        p.bytes--;
    }
    while (p.bytes > 0 &&
           (p.at[p.bytes - 1] == ' ' || p.at[p.bytes - 1] == '\t' ||
            p.at[p.bytes - 1] == '\r')) {
        p.bytes--;
    }
    return p;
}

static larder_status_t read_text(list_t *l, piece_t text, char separator)
{
    larder_status_t st = LARDER_OK;
    ldr_member_t m;

    while (text.bytes > 0 && st == LARDER_OK) {
        piece_t one = piece_trim(piece_cut(&text, separator));

        if (separator == '\n' && (one.bytes == 0 || one.at[0] == '#')) {
            continue;
        }
        st = read_member(one, &m);
        if (st == LARDER_OK) {
            st = member_add(l, &m);
        }
    }
    return st;
}

static larder_status_t read_list_file(list_t *l)
{
    char *text = ldr_alloc(FILE_MAX);
    size_t bytes = 0;

    if (text == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the members");
    }
    larder_status_t st =
        ldr_list_read(l->path, "list of members", text, FILE_MAX, &bytes);
    if (st == LARDER_OK && bytes == FILE_MAX) {
        st = ldr_fail(LARDER_E_INVALID, "%s: too long for a list of members",
                      l->path);
    }
    if (st == LARDER_OK) {
        st = read_text(l, (piece_t){text, bytes}, '\n');
    }
    ldr_free(text);
    return st;
}

/* Where this node is in it. */
static larder_status_t find_self(const ldr_cluster_t *c, const list_t *l,
                                 const ldr_member_t **self_p)
{
    for (size_t i = 0; i < l->count; i++) {
        if (l->members[i].id == c->self.id) {
            *self_p = &l->members[i];
            return LARDER_OK;
        }
    }
    return ldr_fail(LARDER_E_INVALID,
                    "option cluster: this node is named '%s', and no member "
                    "of the list is: set member_name to its name there",
                    c->self.name);
}

static larder_status_t static_read(ldr_cluster_t *c, const char *text)
{
    const ldr_member_t *self = NULL;
    list_t *l = ldr_alloc(sizeof(*l));
    larder_status_t st;

    if (l == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the members");
    }
    c->state = l;
    if (strcmp(c->options.member_weight, "auto") != 0 ||
        c->options.member_zone[0] != '\0' ||
        c->options.member_address[0] != '\0') {
        return ldr_fail(LARDER_E_INVALID,
                        "options member_address, member_zone and member_weight "
                        "have no meaning with a static cluster: the list has "
                        "them, NAME=HOST:PORT/ZONE/WEIGHT");
    }
    if (text[0] == '/') {
        snprintf(l->path, sizeof(l->path), "%s", text);
        st = read_list_file(l);
    } else {
        st = read_text(l, (piece_t){text, strlen(text)}, ',');
    }
    if (st == LARDER_OK) {
        st = find_self(c, l, &self);
    }
    if (self != NULL) {
        memcpy(c->self.address, self->address, sizeof(c->self.address));
        memcpy(c->self.zone, self->zone, sizeof(c->self.zone));
        c->self.weight = self->weight;
    }
    return st;
}

/* ---- the source ---- */

static larder_status_t static_start(ldr_cluster_t *c)
{
    const list_t *l = c->state;

    ldr_cluster_answer(c, l->members, (uint32_t)l->count);
    return LARDER_OK;
}

static larder_status_t static_reload(ldr_cluster_t *c)
{
    list_t *l = c->state, fresh = {{0}, NULL, 0, 0};
    const ldr_member_t *self = NULL;

    if (l->path[0] == '\0') {
        return LARDER_OK;
    }
    memcpy(fresh.path, l->path, sizeof(fresh.path));
    larder_status_t st = read_list_file(&fresh);
    if (st == LARDER_OK) {
        st = find_self(c, &fresh, &self);
    }
    if (st == LARDER_OK) {
        ldr_cluster_answer(c, fresh.members, (uint32_t)fresh.count);
    }
    ldr_free(fresh.members);
    return st;
}

static uint64_t static_step(ldr_cluster_t *c)
{
    (void)c;
    return UINT64_MAX;
}

static void static_close(ldr_cluster_t *c)
{
    list_t *l = c->state;

    if (l != NULL) {
        ldr_free(l->members);
        ldr_free(l);
    }
}

const ldr_source_t ldr_source_static = {
    "static",      false,       static_read,  static_start,
    static_reload, static_step, static_close,
};
