/*
 * What people see of the disks: figures and metrics, read with the node's lock,
 * and records for a list. For these the lock is held to find the segments and
 * to make sure that they stay (readers), and not while their blocks are read.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "tier/ssd/ssd.h"

#define READS 32u /* descriptors read at once */

/* ---- figures ---- */

static void disk_stats(const ldr_ssd_t *ssd, larder_disk_stats_t *out)
{
    snprintf(out->path, sizeof(out->path), "%s", ssd->params.path);
    snprintf(out->reason, sizeof(out->reason), "%s",
             ldr_ssd_hangs(ssd) ? "the disk does not answer" : ssd->reason);
    out->on = ssd->on;
    out->bytes_max = ssd->params.bytes;
    out->segments = ssd->files;
    out->segments_lost = ssd->segments_lost;
    if (ssd->opened) {
        out->bytes_used =
            ssd->files * ssd->disk.segment_bytes + 2 * LDR_SUPER_BYTES +
            LDR_LEDGERS * (uint64_t)ssd->disk.ledger.want * LDR_BLOCK;
    }
    out->written_bytes = ssd->written_bytes;
    out->carried_bytes = ssd->carried_bytes;
    out->read_bytes = ssd->read_bytes;
    out->write_errors = ssd->write_errors;
    out->read_errors = ssd->read_errors;
}

void ldr_ssd_stats(ldr_tier_t *tier, bool whole, larder_stats_t *out)
{
    const ldr_ssds_t *t = (const ldr_ssds_t *)tier;

    ldr_host_held(t->host);
    for (unsigned i = 0; i < t->count; i++) {
        out->ssd_max_bytes += t->disks[i].params.bytes;
        if (whole) {
            disk_stats(&t->disks[i], &out->disk[i]);
        }
    }
    out->disks = whole ? t->count : 0;
    out->io_uring = strcmp(t->host->io->ops->name, "io_uring") == 0;
}

void ldr_ssd_queue_lengths(ldr_tier_t *tier, ldr_queues_t *out)
{
    const ldr_ssds_t *t = (const ldr_ssds_t *)tier;

    ldr_host_held(t->host);
    out->dirty_shards += t->host->store.queues[LDR_SSD_QUEUE].count;
    out->reads_waiting += t->reads_waiting;
    out->reads_flying += t->reads_flying;
    for (unsigned i = 0; i < t->count; i++) {
        const ldr_filling_t *f = t->disks[i].disk.filling;

        out->writes_flying += f[0].flying + f[1].flying;
    }
}

void ldr_ssd_times(ldr_tier_t *tier, ldr_histogram_t *reads,
                   ldr_histogram_t *writes)
{
    const ldr_ssds_t *t = (const ldr_ssds_t *)tier;
    ldr_histogram_t h;

    for (unsigned i = 0; i < t->count; i++) {
        ldr_histogram_read(&t->disks[i].read_times, &h);
        ldr_histogram_merge(reads, &h);
        ldr_histogram_read(&t->disks[i].write_times, &h);
        ldr_histogram_merge(writes, &h);
    }
}

void ldr_ssd_metrics(ldr_tier_t *tier, ldr_exposition_t *e)
{
    const ldr_ssds_t *t = (const ldr_ssds_t *)tier;
    ldr_disk_figures_t disks[LDR_DISKS_MAX] = {0};
    ldr_subject_t subjects[LDR_DISKS_MAX];

    ldr_host_lock(t->host);
    for (unsigned i = 0; i < t->count; i++) {
        disk_stats(&t->disks[i], &disks[i].s);
        disks[i].reads = &t->disks[i].read_times;
        disks[i].writes = &t->disks[i].write_times;
        subjects[i] = (ldr_subject_t){&disks[i], {disks[i].s.path}};
    }
    ldr_host_unlock(t->host);
    ldr_figures_put(e, ldr_rows_disk, subjects, t->count);
}

/* ---- records ---- */

/* Up to READS of them, on their way. */
typedef struct look {
    ldr_looked_t *rows;
    uint32_t count;
    uint8_t *blocks;       /* one for each */
    ldr_loc_t locs[READS]; /* 0: it is not on a disk any more */
    ldr_segment_header_t headers[READS];
    ldr_io_req_t reqs[READS], *list[READS];
    struct iovec iov[READS];
    uint32_t reads;
} look_t;

static ldr_segment_t *segment_of(const ldr_ssds_t *t, ldr_loc_t loc)
{
    return &t->disks[ldr_loc_disk(loc)].disk.segments[ldr_loc_segment(loc)];
}

/* Finds the places, and has their segments stay until look_end(). */
static void look_begin(const ldr_ssds_t *t, look_t *l)
{
    const ldr_index_t *index = &t->host->store.index;

    ldr_host_lock(t->host);
    for (uint32_t i = 0; i < l->count; i++) {
        const ldr_looked_t *row = &l->rows[i];
        const ldr_entry_t *e = ldr_index_at(index, row->entry);
        ldr_loc_t loc =
            e->fingerprint == row->fingerprint && row->number < e->shards
                ? ldr_index_loc(index, row->entry, row->number)
                : 0;

        l->locs[i] = ldr_ssds_disk(t, loc) != NULL ? loc : 0;
        if (l->locs[i] == 0) {
            continue;
        }
        segment_of(t, loc)->readers++; /* it is not filled again meanwhile */
        l->headers[i] = ldr_disk_header(&t->disks[ldr_loc_disk(loc)].disk,
                                        ldr_loc_segment(loc));
        l->iov[i] =
            (struct iovec){l->blocks + (size_t)i * LDR_BLOCK, LDR_BLOCK};
        l->reqs[i] = (ldr_io_req_t){
            .kind = LDR_IO_READ,
            .file = segment_of(t, loc)->file, /* open while it has readers */
            .offset = (ldr_loc_block(loc) + (uint64_t)ldr_loc_blocks(loc) - 1) *
                      LDR_BLOCK,
            .iov = &l->iov[i],
            .iov_count = 1,
        };
        l->list[l->reads++] = &l->reqs[i];
    }
    ldr_host_unlock(t->host);
}

static void look_end(const ldr_ssds_t *t, look_t *l)
{
    ldr_host_lock(t->host);
    for (uint32_t i = 0; i < l->count; i++) {
        ldr_looked_t *row = &l->rows[i];
        ldr_loc_t loc = l->locs[i];

        if (loc == 0) {
            continue;
        }
        ldr_segment_t *segment = segment_of(t, loc);
        LDR_ASSERT(segment->readers > 0);
        if (--segment->readers == 0) {
            ldr_ssd_wake(&t->disks[ldr_loc_disk(loc)]);
        }
        if (l->reqs[i].error != 0 ||
            !ldr_record_parse(l->iov[i].iov_base, &l->headers[i],
                              ldr_loc_block(loc) + ldr_loc_blocks(loc) - 1,
                              &row->record)) {
            continue;
        }
        ldr_name_t name = ldr_store_name(&t->host->store, row->space,
                                         row->record.group, &row->record.key);
        row->found = name.fingerprint == row->fingerprint;
    }
    ldr_host_unlock(t->host);
}

void ldr_ssd_records(ldr_tier_t *tier, ldr_looked_t *rows, uint32_t count,
                     const ldr_stop_t *stop)
{
    const ldr_ssds_t *t = (const ldr_ssds_t *)tier;
    look_t *l = ldr_alloc(sizeof(*l));
    uint8_t *blocks = ldr_alloc_blocks(READS * LDR_BLOCK);

    for (uint32_t at = 0; l != NULL && blocks != NULL && at < count &&
                          ldr_host_stopped(t->host, stop) == LARDER_OK;
         at += READS) {
        *l = (look_t){.rows = rows + at,
                      .count = (uint32_t)ldr_min64(count - at, READS),
                      .blocks = blocks};
        look_begin(t, l);
        ldr_io_run_all(t->host->io, l->list, l->reads);
        look_end(t, l);
    }
    ldr_free(blocks);
    ldr_free(l);
}
