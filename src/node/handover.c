/*
 * Handing memory over, and taking it: see handover.h. ldr_handover_make() and
 * ldr_handover_use() run while no other thread has the node. The functions that
 * say what stays behind may be called by any thread, and take the node's lock.
 */
#include "node/handover.h"

#include "base/log.h"
#include "store/handover.h"

void ldr_handover_free(ldr_handover_t *h)
{
    for (uint32_t i = 0; i < h->fd_count; i++) {
        if (h->fds[i] >= 0) {
            ldr_extent_unshare(h->fds[i]);
        }
    }
    ldr_free(h->fds);
    ldr_extent_destroy(&h->list);
    *h = (ldr_handover_t){0};
}

/* With the lock. */
static void stays(ldr_node_t *node, uint32_t shard)
{
    ldr_arena_t *a = &node->store.arena;

    for (uint32_t page = node->store.shards[shard].page; page != LDR_NIL;
         page = a->next[page]) {
        a->extents[ldr_arena_extent_of(a, page)].stays = true;
    }
}

void ldr_node_stays(ldr_node_t *node, uint32_t shard)
{
    ldr_node_lock(node);
    stays(node, shard);
    ldr_node_unlock(node);
}

void ldr_handover_stay(ldr_node_t *node)
{
    const ldr_store_t *s = &node->store;

    ldr_node_lock(node);
    for (uint32_t i = 0; node->store_opened && i < s->chunk_top; i++) {
        const ldr_chunk_t *c = &s->chunks[i];

        for (uint32_t k = c->holds > 0 ? c->shards : LDR_NIL; k != LDR_NIL;
             k = s->shards[k].next) {
            stays(node, k);
        }
    }
    ldr_node_unlock(node);
}

/* ---- giving ---- */

static bool share_extents(const ldr_arena_t *a, const ldr_handover_plan_t *plan,
                          ldr_handover_t *h)
{
    h->fds = ldr_alloc((plan->extent_count + 1) * sizeof(*h->fds));
    if (h->fds == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < plan->extent_count; i++) {
        int fd = ldr_extent_share(&a->extents[plan->extents[i]].memory);

        if (fd < 0) {
            return false;
        }
        h->fds[h->fd_count++] = fd;
    }
    return true;
}

void ldr_handover_make(ldr_node_t *node, ldr_handover_t *h)
{
    const ldr_store_t *s = &node->store;
    bool mapped = node->options.isolation != LDR_ISOLATION_STRICT;
    uint64_t all_bytes =
        (uint64_t)(s->arena.ready_count - s->arena.free_count) * LDR_PAGE;
    ldr_handover_plan_t plan;

    *h = (ldr_handover_t){.left_bytes = all_bytes};
    if (!ldr_handover_plan(s, &plan)) {
        return;
    }
    if (ldr_extent_create(&h->list, plan.bytes) &&
        ldr_extent_populate(&h->list, 0, plan.bytes) &&
        share_extents(&s->arena, &plan, h)) {
        ldr_handover_write(s, &plan, mapped, h->list.base);
        h->left_bytes = plan.left_bytes;
    } else {
        ldr_handover_free(h);
        h->left_bytes = all_bytes;
    }
    ldr_handover_unplan(&plan);
}

/* ---- taking ---- */

void ldr_handover_use(ldr_node_t *node, ldr_handover_t *h)
{
    ldr_store_t *s = &node->store;
    bool strict = node->options.isolation == LDR_ISOLATION_STRICT;
    ldr_handover_sum_t sum = {0};
    const char *why = ldr_handover_check(s, h->list.base, h->list.bytes);

    if (why == NULL && ldr_handover_extents(h->list.base) != h->fd_count) {
        why = "not all of its extents came along";
    }
    if (why == NULL && strict && ldr_handover_mapped(h->list.base)) {
        why = "clients could map its memory, and isolation is strict now";
    }
    if (why != NULL) {
        ldr_warn(&node->log, "the memory of the daemon before is not used: %s",
                 why);
        return;
    }
    ldr_node_lock(node);
    ldr_node_tick(node);
    ldr_handover_take(s, h->list.base, h->fds, ldr_wall_s(node->clock), &sum);
    ldr_store_met(s);
    ldr_node_unlock(node);
    h->left_bytes += sum.left_bytes;
    ldr_info(&node->log,
             "%u chunks with %llu bytes in DRAM were taken over, %llu bytes "
             "were given up",
             sum.chunks, (unsigned long long)sum.bytes,
             (unsigned long long)h->left_bytes);
}
