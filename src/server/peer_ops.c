/* What members ask of this node: see peer.h. */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/mem.h"
#include "node/load.h"
#include "node/promise.h"
#include "server/peer.h"
#include "tier/peer/homes.h"

#define ROWS_MAX 256u /* of a GET or a PUT */
#define SLICE 64u     /* chunks looked up before others get the lock */
#define PIECE ((size_t)256 << 10)

static const uint8_t *body_of(const ldr_peer_conn_t *c)
{
    return c->in + LDR_FRAME_BYTES;
}

bool ldr_peer_do_space(ldr_peer_conn_t *c)
{
    char tenant[LDR_TENANT_MAX + 1];
    ldr_space_msg_t m;
    uint32_t space = 0;

    if (!ldr_get_peer_space(body_of(c), c->frame.body, tenant, &m) ||
        tenant[0] == '\0') {
        return false;
    }
    ldr_space_info_t info = {.tenant = tenant, .has_key = true};
    memcpy(info.space_id, m.id, sizeof(info.space_id));
    memcpy(info.tenant_check, m.check, sizeof(info.tenant_check));
    memcpy(info.key, m.key, sizeof(info.key));
    memcpy(info.label, m.label, sizeof(info.label));
    larder_status_t st = ldr_node_space(c->server->node, &info, &space);
    if (st != LARDER_OK) {
        return ldr_peer_refuse(c, st);
    }
    c->opened[space / 8] |= (uint8_t)(1u << space % 8);
    return ldr_peer_reply(c, LARDER_OK,
                          ldr_put_number(c->out + LDR_FRAME_BYTES, space), NULL,
                          0, 0);
}

/* Reads the head, and whether both know the same epoch of the space. OK; MISS:
 * it was refused; E_INVALID: it is malformed, or of a space that was not opened
 * here. */
static larder_status_t take_head(ldr_peer_conn_t *c, uint32_t row_bytes,
                                 ldr_peer_head_t *head)
{
    ldr_node_t *node = c->server->node;

    if (!ldr_get_peer_head(body_of(c), c->frame.body, row_bytes, head) ||
        head->count == 0 || !ldr_peer_opened(c, head->space)) {
        return LARDER_E_INVALID;
    }
    ldr_node_lock(node);
    bool same = node->store.spaces[head->space].epoch == head->epoch;
    ldr_node_unlock(node);
    if (!same) {
        ldr_fail(LARDER_E_STALE, "the space has another epoch here");
        return LARDER_MISS;
    }
    return LARDER_OK;
}

/* ---- ASK ---- */

/* A reply that is being written. */
typedef struct finding {
    uint8_t *out;
    size_t at;
    ldr_peer_node_t *others[LDR_OTHERS_MAX];
    uint32_t other_count, other_max;
    uint32_t after;  /* the entry that was found last */
    uint32_t wall_s; /* these three are of this hold of the lock */
    uint64_t now_ns;
    bool hot;
    bool promised; /* chunks that have not come; this is the last */
    ldr_peer_name_t awaited;
} finding_t;

/* The place of a member among the others of the reply, from 1 on; 0: there is
 * no room for it. */
static uint32_t place_of(finding_t *f, ldr_peer_node_t *other)
{
    for (uint32_t i = 0; i < f->other_count; i++) {
        if (f->others[i] == other) {
            return i + 1;
        }
    }
    if (f->other_count == f->other_max) {
        return 0;
    }
    f->others[f->other_count++] = other;
    return f->other_count;
}

/* The row that was written last. */
static uint8_t *row_of(const ldr_peer_head_t *head, const finding_t *f)
{
    return f->out + f->at - LDR_PEER_FOUND_BYTES * (size_t)head->shards;
}

/* What is not here of a chunk may be with other members: they are put in the
 * places of the row that are empty. The second owner begins with the second of
 * them: where the last that was announced is wrong, the other is asked as well.
 * With the lock. */
static void add_homes(ldr_peer_conn_t *c, const ldr_peer_head_t *head,
                      const ldr_peer_name_t *name, const ldr_name_t *n,
                      finding_t *f)
{
    ldr_peers_t *p = c->server->peers;
    uint8_t *row = row_of(head, f);
    ldr_peer_node_t *all[LDR_HOMES_KNOWN], *nodes[LDR_HOMES_KNOWN];
    unsigned known = ldr_home_find(p, n->fingerprint, head->epoch, NULL, all);
    unsigned count =
        ldr_home_find(p, n->fingerprint, head->epoch, c->peer, nodes);
    ldr_peer_copy_t copy = {name->key, head->space, name->group,
                            (uint16_t)head->shards};
    ldr_peer_node_t *owners[LDR_HOME_RANKS];
    uint32_t next = 0;

    if (count > 1) {
        ldr_peers_owners(p, &name->key, false, LDR_HOME_RANKS, owners, &next);
        next = next < LDR_HOME_RANKS ? next : 0;
    }
    for (uint32_t i = 0; i < head->shards && count > 0; i++) {
        uint8_t *at = row + LDR_PEER_FOUND_BYTES * (size_t)i;

        if ((name->room & LDR_ASK_HOMES) != 0 && ldr_peer_found_none(at)) {
            uint32_t place = place_of(f, nodes[next++ % count]);

            ldr_put_peer_found(
                at, &(ldr_peer_found_t){place > 0 ? LDR_FOUND_AT : 0, place});
        }
    }
    if (count > 0 && count == known && (name->room & LDR_ASK_MS) > 0 &&
        ldr_home_read(c->peer, n->fingerprint, head->epoch)) {
        ldr_copy_want(p, &copy);
    }
}

/* What of one chunk is here. Gives its entry. With the lock. */
static uint32_t find_row(ldr_peer_conn_t *c, const ldr_peer_head_t *head,
                         const ldr_peer_name_t *name, const ldr_name_t *n,
                         finding_t *f)
{
    ldr_node_t *node = c->server->node;
    ldr_store_t *store = &node->store;
    larder_cause_t cause;
    larder_tier_t tier;
    uint32_t entry = ldr_store_find(store, n, f->after, f->wall_s, &cause);
    ldr_sought_t sought = {n, entry, 0, true};
    bool whole = true;

    for (; sought.number < head->shards;
         sought.number++, f->at += LDR_PEER_FOUND_BYTES) {
        uint32_t bytes = 0, place = 0;
        bool has = entry != LDR_NIL &&
                   sought.number < ldr_index_at(&store->index, entry)->shards &&
                   ldr_node_usable(node, &sought, &tier, &bytes, &cause);

        if (has && f->hot && (name->room & LDR_ASK_OTHERS) != 0) {
            ldr_peer_node_t *other =
                ldr_hot_other(c->peer, n->fingerprint, sought.number);

            place = other != NULL ? place_of(f, other) : 0;
            c->peer->n.sent_on += place > 0;
        }
        ldr_put_peer_found(f->out + f->at,
                           &(ldr_peer_found_t){has ? bytes : 0, place});
        whole = whole && has;
    }
    if (!whole) {
        add_homes(c, head, name, n, f);
    }
    f->after = entry != LDR_NIL ? entry : f->after; /* the next one here */
    return entry;
}

/* The row was written last: what it lacks and is promised is said to be so.
 * With the lock. */
static void note_promised(ldr_peer_conn_t *c, const ldr_peer_head_t *head,
                          const ldr_peer_name_t *name, finding_t *f)
{
    static const ldr_peer_found_t promised = {LDR_FOUND_PROMISED, 0};
    uint8_t *row = row_of(head, f);
    bool lacks = false;

    for (uint32_t i = 0; i < head->shards; i++) {
        lacks |= ldr_peer_found_none(row + LDR_PEER_FOUND_BYTES * (size_t)i);
    }
    if (!lacks || !ldr_promise_open(c->server->node, head->space, name->group,
                                    &name->key)) {
        return;
    }
    for (uint32_t i = 0; i < head->shards; i++) {
        uint8_t *at = row + LDR_PEER_FOUND_BYTES * (size_t)i;

        if (ldr_peer_found_none(at)) {
            ldr_put_peer_found(at, &promised);
        }
    }
    f->promised = true;
    f->awaited = *name;
}

/* The rows [i, end). With the lock. */
static void find_slice(ldr_peer_conn_t *c, const ldr_peer_head_t *head,
                       uint32_t i, uint32_t end, finding_t *f)
{
    ldr_node_t *node = c->server->node;
    ldr_store_t *store = &node->store;
    uint32_t count = end - i, chunks[SLICE];
    ldr_peer_name_t asked[SLICE];
    ldr_name_t names[SLICE];
    bool good[SLICE];

    f->wall_s = ldr_wall_s(node->clock);
    f->now_ns = ldr_now_ns(node->clock);
    f->hot = ldr_hot_any(c->server->peers, f->now_ns);
    for (uint32_t k = 0; k < count; k++) {
        good[k] = ldr_get_peer_name(
            head->rows + (size_t)(i + k) * LDR_PEER_NAME_BYTES, &asked[k]);
        names[k] =
            ldr_store_name(store, head->space, asked[k].group, &asked[k].key);
    }
    ldr_store_prefetch(store, names, count, chunks);
    for (uint32_t k = 0; k < count; k++) {
        if (chunks[k] != LDR_NIL) {
            ldr_peer_lease_prefetch(c->peer, chunks[k]);
        }
    }
    for (uint32_t k = 0; k < count; k++) {
        if (!good[k] || node->mode != LDR_MODE_ON) {
            memset(f->out + f->at, 0, LDR_PEER_FOUND_BYTES * head->shards);
            f->at += LDR_PEER_FOUND_BYTES * head->shards;
            continue;
        }
        uint32_t entry = find_row(c, head, &asked[k], &names[k], f);
        uint32_t chunk = entry != LDR_NIL
                             ? ldr_index_at(&store->index, entry)->resident
                             : LDR_NIL;
        uint32_t ms = asked[k].room & LDR_ASK_MS;
        if (chunk != LDR_NIL && ms > 0) {
            ldr_peer_lease_take(c->peer, chunk, head->shards, ms, f->now_ns);
        }
        if ((asked[k].room & LDR_ASK_PROMISED) != 0) {
            note_promised(c, head, &asked[k], f);
        }
    }
}

bool ldr_peer_do_ask(ldr_peer_conn_t *c)
{
    ldr_node_t *node = c->server->node;
    ldr_peer_head_t head;
    larder_status_t st = take_head(c, LDR_PEER_NAME_BYTES, &head);
    finding_t f = {.out = c->out + LDR_FRAME_BYTES, .after = LDR_NIL};

    if (st == LARDER_MISS) {
        return ldr_peer_refuse(c, LARDER_E_STALE);
    }
    if (st != LARDER_OK || head.shards == 0 ||
        head.count > ldr_peer_ask_rows(head.shards)) {
        return false;
    }
    f.at = ldr_put_peer_head(f.out, &head);
    f.other_max = (uint32_t)ldr_min64(
        LDR_OTHERS_MAX,
        (LDR_BODY_MAX - f.at -
         (size_t)head.count * LDR_PEER_FOUND_BYTES * head.shards) /
            LDR_PEER_OTHER_BYTES);
    for (uint32_t i = 0; i < head.count;) {
        uint32_t end = (uint32_t)ldr_min64(head.count, i + SLICE);

        ldr_node_lock(node);
        find_slice(c, &head, i, end, &f);
        ldr_node_unlock(node);
        i = end;
    }
    if (f.promised) {
        ldr_node_lock(node);
        ldr_peer_watch(c, head.space, &f.awaited);
        ldr_node_unlock(node);
    }
    for (uint32_t i = 0; i < f.other_count; i++, f.at += LDR_PEER_OTHER_BYTES) {
        ldr_put_peer_other(f.out + f.at, f.others[i]->id);
    }
    return ldr_peer_reply(c, LARDER_OK, f.at, NULL, 0, 0);
}

/* ---- GET ---- */

typedef struct getting {
    ldr_peer_name_t names[ROWS_MAX];
    larder_item_t items[ROWS_MAX];
    ldr_load_t loads[ROWS_MAX];
    struct iovec *iov;
    uint32_t iov_count;
    uint64_t bytes;
} getting_t;

static bool begin_loads(ldr_peer_conn_t *c, const ldr_peer_head_t *head,
                        getting_t *g)
{
    ldr_node_t *node = c->server->node;
    bool waits = false;

    for (uint32_t i = 0; i < head->count; i++) {
        if (!ldr_get_peer_name(head->rows + (size_t)i * LDR_PEER_NAME_BYTES,
                               &g->names[i])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < head->count; i++) {
        g->items[i] = (larder_item_t){.key = &g->names[i].key,
                                      .group = g->names[i].group,
                                      .shard = g->names[i].shard};
        g->loads[i] = (ldr_load_t){
            .target = {head->space, LARDER_SHARDS_MAX, &g->items[i]},
            .own = true,
        };
        waits |= !ldr_load_begin(node, &g->loads[i]);
    }
    if (waits) {
        ldr_node_reads_go(node);
    }
    return true;
}

/* The row of a shard that was found and is held, or of one that was not. */
static void fill_row(ldr_peer_conn_t *c, const getting_t *g, uint32_t i,
                     ldr_peer_shard_t *row)
{
    ldr_node_t *node = c->server->node;
    const ldr_load_t *load = &g->loads[i];

    *row = (ldr_peer_shard_t){
        .key = g->names[i].key,
        .group = g->names[i].group,
        .shard = g->names[i].shard,
        .shards = g->names[i].shard + 1u,
        .status = load->status == LARDER_OK ? LARDER_OK : LARDER_MISS,
    };
    if (load->status != LARDER_OK) {
        return;
    }
    ldr_node_lock(node);
    const ldr_shard_t *sh = &node->store.shards[load->shard];
    const ldr_chunk_t *k = &node->store.chunks[sh->chunk];

    if (k->entry == LDR_NIL) { /* removed or reset meanwhile */
        row->status = LARDER_MISS;
    } else {
        row->shards = ldr_index_at(&node->store.index, k->entry)->shards;
        row->parent = k->parent;
        row->length = sh->length;
        row->crc = sh->crc;
        row->written_s = k->written_s;
        row->expires_s = k->expires_s;
        row->depth = k->depth;
        row->pinned = k->pinned;
    }
    ldr_node_unlock(node);
}

/* Waits for a load. Its bytes are checked by who gets them; here only if he
 * got them wrong, so that what was damaged here is dropped. */
static void settle(ldr_peer_conn_t *c, const ldr_peer_name_t *name,
                   ldr_load_t *load)
{
    ldr_node_t *node = c->server->node;

    if (load->status == LARDER_PENDING) {
        ldr_load_wait(node, load, c->stop.deadline_ns);
    }
    if (load->status == LARDER_OK && (name->room & LDR_GET_CHECK) != 0) {
        ldr_load_check(node, load);
    }
}

static size_t collect(ldr_peer_conn_t *c, const ldr_peer_head_t *head,
                      getting_t *g)
{
    ldr_node_t *node = c->server->node;
    uint8_t *out = c->out + LDR_FRAME_BYTES;
    size_t at = ldr_put_peer_head(out, head);
    uint32_t room = 0;

    for (uint32_t i = 0; i < head->count; i++) {
        settle(c, &g->names[i], &g->loads[i]);
        if (g->loads[i].status == LARDER_OK) {
            room += ldr_node_iov(node, g->loads[i].shard, NULL, 0);
        }
    }
    g->iov = ldr_alloc((room + 1) * sizeof(*g->iov));
    for (uint32_t i = 0; i < head->count; i++) {
        ldr_peer_shard_t row;

        fill_row(c, g, i, &row);
        if (row.status == LARDER_OK &&
            (g->iov == NULL ||
             row.length > (g->names[i].room & ~LDR_GET_CHECK) ||
             g->bytes + row.length > LDR_PAYLOAD_MAX)) {
            row.status = LARDER_E_BUSY;
            row.length = 0;
        }
        if (row.status == LARDER_OK) {
            g->iov_count +=
                ldr_node_iov(node, g->loads[i].shard, g->iov + g->iov_count,
                             room - g->iov_count);
            g->bytes += row.length;
        }
        ldr_put_peer_shard(out + at, &row);
        at += LDR_PEER_SHARD_BYTES;
    }
    return at;
}

bool ldr_peer_do_get(ldr_peer_conn_t *c)
{
    ldr_node_t *node = c->server->node;
    ldr_peer_head_t head;
    larder_status_t st = take_head(c, LDR_PEER_NAME_BYTES, &head);

    if (st == LARDER_MISS) {
        return ldr_peer_refuse(c, LARDER_E_STALE);
    }
    getting_t *g = st == LARDER_OK && head.count <= ROWS_MAX
                       ? ldr_alloc(sizeof(*g))
                       : NULL;
    if (g == NULL || !begin_loads(c, &head, g)) {
        ldr_free(g);
        return false;
    }
    size_t bytes = collect(c, &head, g);
    bool good =
        ldr_peer_reply(c, LARDER_OK, bytes, g->iov, g->iov_count, g->bytes);
    ldr_node_lock(node);
    c->peer->n.served_bytes += g->bytes;
    for (uint32_t i = 0; i < head.count; i++) {
        bool sent = good && g->loads[i].status == LARDER_OK;

        c->peer->n.served += sent;
        if (sent) {
            ldr_name_t n = ldr_store_name(&node->store, head.space,
                                          g->names[i].group, &g->names[i].key);

            ldr_peer_lease_sent(c->peer, g->loads[i].chunk, g->names[i].shard);
            ldr_hot_sent(c->peer, n.fingerprint, g->names[i].shard);
        }
    }
    ldr_node_unlock(node);
    for (uint32_t i = 0; i < head.count; i++) {
        ldr_load_end(node, &g->loads[i], false);
    }
    ldr_free(g->iov);
    ldr_free(g);
    return good;
}

/* ---- HOME ---- */

bool ldr_peer_do_home(ldr_peer_conn_t *c)
{
    ldr_node_t *node = c->server->node;
    ldr_peer_head_t head;
    larder_status_t st = take_head(c, LDR_PEER_HOME_BYTES, &head);

    if (st == LARDER_MISS) {
        return ldr_peer_refuse(c, LARDER_E_STALE);
    }
    if (st != LARDER_OK) {
        return false;
    }
    for (uint32_t i = 0; i < head.count;) {
        uint32_t end = (uint32_t)ldr_min64(head.count, i + SLICE);

        ldr_node_lock(node);
        bool same = node->store.spaces[head.space].epoch == head.epoch;
        for (; i < end; i++) {
            ldr_peer_home_t row;

            if (same &&
                ldr_get_peer_home(head.rows + (size_t)i * LDR_PEER_HOME_BYTES,
                                  &row)) {
                ldr_home_hear(c->peer, head.space, &row);
            }
        }
        ldr_node_unlock(node);
    }
    return ldr_peer_reply(c, LARDER_OK, 0, NULL, 0, 0);
}

/* ---- PUT ---- */

/* Payload that is not wanted. */
static bool dump(ldr_peer_conn_t *c, uint64_t bytes)
{
    uint8_t *waste = ldr_alloc(PIECE);
    bool good = waste != NULL;

    while (good && bytes > 0) {
        struct iovec iov = {waste, ldr_min64(bytes, PIECE)};

        good = ldr_peer_move(c, &iov, 1, true, c->stop.deadline_ns);
        bytes -= iov.iov_len;
    }
    ldr_free(waste);
    return good;
}

/* Whether this shard may come in now, and room for it. With PRESENT and the
 * like its payload is dumped. */
static larder_status_t reserve(ldr_peer_conn_t *c, uint32_t space, bool kept,
                               const ldr_peer_shard_t *row, uint32_t *shard_p)
{
    ldr_node_t *node = c->server->node;
    ldr_store_t *store = &node->store;
    uint32_t now_s = ldr_wall_s(node->clock);
    larder_item_t item = {
        .key = &row->key,
        .parent = &row->parent,
        .group = row->group,
        .shard = row->shard,
        .depth = row->depth,
        .flags = row->pinned ? LARDER_PUT_PIN : 0,
        .ttl_ms = row->expires_s > now_s
                      ? (row->expires_s - now_s) * (uint64_t)1000
                      : 0,
    };
    ldr_target_t target = {space, row->shards, &item};

    if (row->expires_s != 0 && row->expires_s <= now_s) {
        return LARDER_E_STALE;
    }
    ldr_node_lock(node);
    bool owes = ldr_peer_owes(c->peer, store->spaces[space].id, &row->key,
                              row->group, row->shard);
    bool room = !owes && ldr_peers_fly(c->server->peers, row->length);
    ldr_node_unlock(node);
    if (owes || !room) {
        return owes ? LARDER_E_STALE : LARDER_E_BUSY;
    }
    larder_status_t st = ldr_node_reserve(node, &target, row->length, shard_p);
    ldr_node_lock(node);
    if (st == LARDER_OK) {
        store->shards[*shard_p].tier = LARDER_TIER_PEER;
        store->shards[*shard_p].kept = kept;
        store->chunks[store->shards[*shard_p].chunk].written_s = row->written_s;
    } else {
        ldr_peers_land(c->server->peers, row->length);
    }
    ldr_node_unlock(node);
    return st == LARDER_PENDING ? LARDER_E_BUSY : st;
}

/* Its bytes, straight into its pages, and summed. */
static bool fill(ldr_peer_conn_t *c, const ldr_peer_shard_t *row,
                 uint32_t shard, uint32_t *crc_p)
{
    const ldr_node_t *node = c->server->node;
    struct iovec *iov = ldr_alloc(LDR_READ_IOV * sizeof(*iov));
    uint32_t crc = 0;
    uint32_t n = iov != NULL ? ldr_arena_iov(&node->store.arena,
                                             node->store.shards[shard].page,
                                             row->length, iov, LDR_READ_IOV)
                             : 0;
    bool good = n > 0;

    for (uint32_t i = 0; i < n && good; i++) {
        for (size_t at = 0; at < iov[i].iov_len && good;) {
            struct iovec piece = {(uint8_t *)iov[i].iov_base + at,
                                  ldr_min64(iov[i].iov_len - at, PIECE)};

            good = ldr_peer_move(c, &piece, 1, true, c->stop.deadline_ns);
            crc = good ? ldr_crc32c(crc, piece.iov_base, piece.iov_len) : crc;
            at += piece.iov_len;
        }
    }
    ldr_free(iov);
    *crc_p = crc;
    return good;
}

/* What was saved for others goes first once a tier of this node's own has it.
 * Where none is to write it, it stays as long as anything else. With the lock.
 */
static void cool(ldr_store_t *store, uint32_t shard,
                 const ldr_peer_shard_t *row)
{
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *k = &store->chunks[sh->chunk];

    /* The lock was dropped since it was committed. */
    if (sh->state == LDR_SHARD_READY && k->holds == 0 &&
        memcmp(&k->key, &row->key, sizeof(k->key)) == 0 && k->shards == shard &&
        sh->next == LDR_NIL &&
        (((unsigned)sh->queued << 1) & ~store->others) != 0) {
        ldr_store_cool(store, sh->chunk, false);
    }
}

/* One shard of a PUT. False: the connection is over. */
static bool take_shard(ldr_peer_conn_t *c, const ldr_peer_head_t *head,
                       const ldr_peer_shard_t *row, larder_status_t *st_p)
{
    ldr_node_t *node = c->server->node;
    uint32_t shard = LDR_NIL, crc = 0;

    *st_p = reserve(c, head->space, head->shards == LDR_PUT_KEPT, row, &shard);
    if (*st_p != LARDER_OK) {
        return dump(c, row->length);
    }
    bool good = fill(c, row, shard, &crc);
    ldr_node_lock(node);
    bool right = good && crc == row->crc &&
                 node->store.chunks[node->store.shards[shard].chunk].epoch ==
                     head->epoch;
    ldr_peers_land(c->server->peers, row->length);
    node->store.now_ds = (uint32_t)(ldr_now_ns(node->clock) / 100000000u);
    c->peer->n.wrong += good && crc != row->crc;
    ldr_node_unlock(node);
    if (!right) {
        ldr_node_abort(node, shard);
        *st_p = crc != row->crc ? LARDER_E_CORRUPT : LARDER_E_STALE;
        return good;
    }
    *st_p = ldr_node_commit(node, shard, crc, 0);
    ldr_node_lock(node);
    if (*st_p == LARDER_OK) {
        cool(&node->store, shard, row);
    }
    c->peer->n.taken += *st_p == LARDER_OK;
    c->peer->n.taken_bytes += *st_p == LARDER_OK ? row->length : 0;
    ldr_node_unlock(node);
    return true;
}

bool ldr_peer_do_put(ldr_peer_conn_t *c)
{
    uint8_t *out = c->out + LDR_FRAME_BYTES;
    ldr_peer_head_t head;
    larder_status_t st = take_head(c, LDR_PEER_SHARD_BYTES, &head);
    uint64_t payload = 0;
    size_t at = 0;

    if (st == LARDER_OK && ldr_peers_leaving(c->server->peers)) {
        st = LARDER_MISS; /* its sender meets this node again, and hears it */
        ldr_fail(LARDER_E_STALE, "this member is leaving: it takes nothing");
    }
    if (st == LARDER_MISS) {
        return dump(c, c->frame.payload) && ldr_peer_refuse(c, LARDER_E_STALE);
    }
    if (st != LARDER_OK || head.count > ROWS_MAX) {
        return false;
    }
    at = ldr_put_peer_head(out, &head);
    for (uint32_t i = 0; i < head.count; i++) {
        ldr_peer_shard_t row;

        if (!ldr_get_peer_shard(head.rows + (size_t)i * LDR_PEER_SHARD_BYTES,
                                &row) ||
            row.length == 0 || (payload += row.length) > c->frame.payload ||
            !take_shard(c, &head, &row, &st)) {
            return false;
        }
        ldr_put_peer_status(out + at, st);
        at += LDR_PEER_STATUS_BYTES;
    }
    return payload == c->frame.payload &&
           ldr_peer_reply(c, LARDER_OK, at, NULL, 0, 0);
}

/* ---- MEASURE ---- */

bool ldr_peer_do_measure(ldr_peer_conn_t *c)
{
    struct iovec iov[LDR_PAYLOAD_MAX / PIECE];
    uint32_t want, count = 0;

    if (!ldr_get_number(body_of(c), c->frame.body, &want) ||
        want > LDR_PAYLOAD_MAX || !dump(c, c->frame.payload)) {
        return false;
    }
    uint8_t *piece = ldr_alloc(PIECE);
    for (uint64_t left = piece != NULL ? want : 0; left > 0; count++) {
        iov[count] = (struct iovec){piece, ldr_min64(left, PIECE)};
        left -= iov[count].iov_len;
    }
    bool good =
        piece != NULL && ldr_peer_reply(c, LARDER_OK, 0, iov, count, want);
    ldr_free(piece);
    return good;
}
