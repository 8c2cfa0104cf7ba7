/*
 * Invariants:
 * - A slot has the page as the user sees it (now) and as the disk would still
 *   show it if no unsynced sector had arrived (durable). Sectors whose bit in
 *   dirty is clear are alike in both; dirty == 0: the same page. NULL: zeros.
 * - Pages are shared between slots, files and clones; only a page with one
 *   reference is ever written.
 */
#include "sim/simfile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

/* Out of memory ends the test: the disk itself never fails by accident. */
void *simgrown(void *p, size_t bytes)
{
    p = realloc(p, bytes);
    if (p == NULL) {
        perror("simdisk");
        abort();
    }
    return p;
}

static simpage_t *page_ref(simpage_t *page)
{
    if (page != NULL) {
        __atomic_add_fetch(&page->refs, 1, __ATOMIC_RELAXED);
    }
    return page;
}

static void page_put(simpage_t *page)
{
    if (page != NULL &&
        __atomic_sub_fetch(&page->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        free(page);
    }
}

/* The page's bytes, to be written: first makes it nobody else's. */
static uint8_t *page_own(simpage_t **page_p)
{
    simpage_t *old = *page_p;

    if (old == NULL || __atomic_load_n(&old->refs, __ATOMIC_ACQUIRE) > 1) {
        simpage_t *page = simgrown(NULL, sizeof(*page));

        page->refs = 1;
        if (old != NULL) {
            memcpy(page->data, old->data, SIM_PAGE_BYTES);
        } else {
            memset(page->data, 0, SIM_PAGE_BYTES);
        }
        page_put(old);
        *page_p = page;
    }
    return (*page_p)->data;
}

static void page_copy_out(const simpage_t *page, size_t at, void *data,
                          size_t bytes)
{
    if (page != NULL) {
        memcpy(data, page->data + at, bytes);
    } else {
        memset(data, 0, bytes);
    }
}

static void slot_settle(simslot_t *slot)
{
    page_put(slot->durable);
    slot->durable = page_ref(slot->now);
    slot->dirty = 0;
}

static simslot_t *file_slot(simfile_t *file, uint64_t offset)
{
    size_t i = (size_t)(offset / SIM_PAGE_BYTES);

    if (i >= file->slot_count) {
        size_t count = i + 1 + i / 4;
        file->slots = simgrown(file->slots, count * sizeof(simslot_t));
        memset(file->slots + file->slot_count, 0,
               (count - file->slot_count) * sizeof(simslot_t));
        file->slot_count = count;
    }
    return &file->slots[i];
}

/* A sector that is written again before a sync: the disk may have got to it
 * in between. */
static void sector_rewritten(simmedium_t *medium, simslot_t *slot,
                             unsigned sector)
{
    size_t at = (size_t)sector * medium->sector_bytes;

    if (simmedium_coin(medium)) {
        page_copy_out(slot->now, at, page_own(&slot->durable) + at,
                      medium->sector_bytes);
    }
}

/* Writes within one page; data NULL: zeros. */
void simfile_write(simmedium_t *medium, simfile_t *file, uint64_t offset,
                   const uint8_t *data, size_t bytes)
{
    simslot_t *slot = file_slot(file, offset);
    size_t at = (size_t)(offset % SIM_PAGE_BYTES);
    unsigned last = (unsigned)((at + bytes - 1) / medium->sector_bytes);

    for (unsigned i = (unsigned)(at / medium->sector_bytes); i <= last; i++) {
        if (slot->dirty >> i & 1) {
            sector_rewritten(medium, slot, i);
        }
        slot->dirty |= (uint64_t)1 << i;
    }
    uint8_t *to = page_own(&slot->now) + at;
    if (data != NULL) {
        memcpy(to, data, bytes);
    } else {
        memset(to, 0, bytes);
    }
    file->size = ldr_max64(file->size, offset + bytes);
}

void simfile_read(const simfile_t *file, uint64_t offset, uint8_t *data,
                  size_t bytes)
{
    while (bytes > 0) {
        size_t i = (size_t)(offset / SIM_PAGE_BYTES);
        size_t at = (size_t)(offset % SIM_PAGE_BYTES);
        size_t part = (size_t)ldr_min64(bytes, SIM_PAGE_BYTES - at);

        page_copy_out(i < file->slot_count ? file->slots[i].now : NULL, at,
                      data, part);
        offset += part;
        data += part;
        bytes -= part;
    }
}

/* The user makes it shorter or longer: unsynced, as any change. */
void simfile_resize(simmedium_t *medium, simfile_t *file, uint64_t bytes)
{
    uint64_t page_end = ldr_div_up(bytes, SIM_PAGE_BYTES) * SIM_PAGE_BYTES;

    if (bytes < file->size) {
        uint64_t tail_end = ldr_min64(page_end, file->size);
        if (tail_end > bytes) {
            simfile_write(medium, file, bytes, NULL,
                          (size_t)(tail_end - bytes));
        }
        for (size_t i = (size_t)(page_end / SIM_PAGE_BYTES);
             i < file->slot_count; i++) {
            page_put(file->slots[i].now);
            file->slots[i].now = NULL;
            file->slots[i].dirty =
                file->slots[i].durable != NULL
                    ? UINT64_MAX >> (64 - SIM_PAGE_BYTES / medium->sector_bytes)
                    : 0;
        }
    }
    file->size = bytes;
}

/* Cuts it off, for good. */
void simfile_trim(simfile_t *file, uint64_t bytes)
{
    size_t keep = (size_t)ldr_div_up(bytes, SIM_PAGE_BYTES);
    size_t at = (size_t)(bytes % SIM_PAGE_BYTES);

    for (size_t i = keep; i < file->slot_count; i++) {
        page_put(file->slots[i].now);
        page_put(file->slots[i].durable);
        file->slots[i] = (simslot_t){NULL, NULL, 0};
    }
    if (at > 0 && keep <= file->slot_count) {
        simslot_t *slot = &file->slots[keep - 1];
        if (slot->now != NULL) {
            memset(page_own(&slot->now) + at, 0, SIM_PAGE_BYTES - at);
        }
        if (slot->dirty == 0) {
            slot_settle(slot);
        } else if (slot->durable != NULL) {
            memset(page_own(&slot->durable) + at, 0, SIM_PAGE_BYTES - at);
        }
    }
    file->size = bytes;
    file->durable_size = bytes;
}

void simfile_sync(simfile_t *file)
{
    for (size_t i = 0; i < file->slot_count; i++) {
        if (file->slots[i].dirty != 0) {
            slot_settle(&file->slots[i]);
        }
    }
    file->durable_size = file->size;
}

/* Swarm: single lost sectors, single kept ones, all and nothing are each as
 * likely as an even mix. */
simfate_t simfate_draw(simmedium_t *medium)
{
    static const unsigned lost[] = {0, 8, 85, 128, 248, 256};
    static const unsigned garbled[] = {0, 0, 4, 85};
    simfate_t fate;

    fate.lost = lost[ldr_rand_below(&medium->rand, 6)];
    fate.garbled = garbled[ldr_rand_below(&medium->rand, 4)];
    return fate;
}

static void sector_garble(simmedium_t *medium, simslot_t *slot, size_t at)
{
    uint8_t *to = page_own(&slot->now) + at;

    if (simmedium_coin(medium)) { /* torn inside: new bytes, then old ones */
        size_t kept = ldr_rand_below(&medium->rand, medium->sector_bytes);
        page_copy_out(slot->durable, at + kept, to + kept,
                      medium->sector_bytes - kept);
        return;
    }
    for (size_t i = 0; i < medium->sector_bytes; i += 8) {
        ldr_put64(to + i, ldr_rand_next(&medium->rand));
    }
}

static void slot_power_cut(simmedium_t *medium, simslot_t *slot, simfate_t fate)
{
    for (uint64_t left = slot->dirty; left != 0; left &= left - 1) {
        size_t at =
            (size_t)__builtin_ctzll(left) * (size_t)medium->sector_bytes;
        uint64_t draw = ldr_rand_next(&medium->rand);

        if ((draw & 255) < fate.garbled) {
            sector_garble(medium, slot, at);
        } else if ((draw >> 8 & 255) < fate.lost) {
            page_copy_out(slot->durable, at, page_own(&slot->now) + at,
                          medium->sector_bytes);
        }
    }
    slot_settle(slot);
}

void simfile_power_cut(simmedium_t *medium, simfile_t *file, simfate_t fate)
{
    for (size_t i = 0; i < file->slot_count; i++) {
        if (file->slots[i].dirty != 0) {
            slot_power_cut(medium, &file->slots[i], fate);
        }
    }
    if (file->size != file->durable_size) {
        simfile_trim(file,
                     simmedium_coin(medium) ? file->size : file->durable_size);
    }
}

/* fdatasync failed. Whoever tries again and believes a success is wrong: some
 * of the sectors are gone for good, and no longer known as unsynced. */
void simfile_sync_failed(simmedium_t *medium, simfile_t *file)
{
    for (size_t i = 0; i < file->slot_count; i++) {
        simslot_t *slot = &file->slots[i];
        for (uint64_t left = slot->dirty; left != 0; left &= left - 1) {
            size_t at =
                (size_t)__builtin_ctzll(left) * (size_t)medium->sector_bytes;
            uint64_t draw = ldr_rand_below(&medium->rand, 3);

            if (draw == 0) { /* stays unsynced */
                continue;
            }
            if (draw == 1) {
                page_copy_out(slot->now, at, page_own(&slot->durable) + at,
                              medium->sector_bytes);
            } else {
                page_copy_out(slot->durable, at, page_own(&slot->now) + at,
                              medium->sector_bytes);
            }
            slot->dirty &= ~(left & -left);
        }
    }
}

simfile_t *simfile_new(void)
{
    simfile_t *file = simgrown(NULL, sizeof(*file));

    memset(file, 0, sizeof(*file));
    file->lock_holder = -1;
    return file;
}

simfile_t *simfile_clone(const simfile_t *file)
{
    simfile_t *copy = simfile_new();

    copy->size = file->size;
    copy->durable_size = file->durable_size;
    copy->slot_count = file->slot_count;
    if (file->slot_count > 0) {
        copy->slots = simgrown(NULL, file->slot_count * sizeof(simslot_t));
    }
    for (size_t i = 0; i < file->slot_count; i++) {
        copy->slots[i].now = page_ref(file->slots[i].now);
        copy->slots[i].durable = page_ref(file->slots[i].durable);
        copy->slots[i].dirty = file->slots[i].dirty;
    }
    return copy;
}

void simfile_free(simfile_t *file)
{
    for (size_t i = 0; i < file->slot_count; i++) {
        page_put(file->slots[i].now);
        page_put(file->slots[i].durable);
    }
    free(file->slots);
    free(file);
}

void simfile_damage(simfile_t *file, uint64_t offset, const uint8_t *data,
                    size_t bytes)
{
    while (bytes > 0) {
        simslot_t *slot = file_slot(file, offset);
        size_t at = (size_t)(offset % SIM_PAGE_BYTES);
        size_t part = (size_t)ldr_min64(bytes, SIM_PAGE_BYTES - at);

        memcpy(page_own(&slot->now) + at, data, part);
        if (slot->dirty == 0) {
            slot_settle(slot);
        } else {
            memcpy(page_own(&slot->durable) + at, data, part);
        }
        offset += part;
        data += part;
        bytes -= part;
    }
}

uint64_t simfile_unsynced(const simfile_t *file)
{
    uint64_t count = 0;

    for (size_t i = 0; i < file->slot_count; i++) {
        count += (uint64_t)__builtin_popcountll(file->slots[i].dirty);
    }
    return count;
}
