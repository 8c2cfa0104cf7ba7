/*
 * The one table of figures. Prometheus text, the JSON of /status.json, `larder
 * stat`, what the wire carries and docs/reference/metrics.md are made of it;
 * `larder top` and the dashboard read them by these names.
 *
 * A map has the figures of one struct, row by row:
 *
 *   M(name, TYPE, labels, help)
 *     a metric, whose series follow; TYPE is COUNTER, GAUGE or HISTOGRAM,
 *     labels are a comma list
 *   S(key, label, field)
 *     a series: where its value is, the label that it alone has ("": none),
 *     and what it is called in the JSON (empty: not there)
 *   E(names, label, field)
 *     the same of an array of uint64_t: a series for each i with a names(i)
 *   V(name, TYPE, labels, key, field, help)
 *     a metric of one series
 *   J(key, field)
 *     only in the JSON
 *
 * Metrics without a series here have values that need a label of their own, and
 * are written by hand. A map is expanded where its struct is known.
 */
#pragma once

/* ---- tenants and spaces: ldr_tenant_stats_t, ldr_space_stats_t ---- */

#define LDR_TENANT_FIGURES(M, V, S, E, J)                                      \
    M(asked_chunks_total, COUNTER, "tenant,outcome",                           \
      "Chunks that engines asked for, once each: found or not_found.")         \
    S(found, "found", n.found_chunks)                                          \
    S(, "not_found", sum.not_found)                                            \
    J(asked, n.asked_chunks)                                                   \
    M(loads_total, COUNTER, "tenant,tier",                                     \
      "Shards loaded, by the tier that had them.")                             \
    E(ldr_tier_label, "", n.loads)                                             \
    J(hits, sum.hits)                                                          \
    M(misses_total, COUNTER, "tenant,cause",                                   \
      "Shards that could not be loaded, by cause.")                            \
    E(ldr_cause_label, "", n.misses)                                           \
    J(misses, sum.misses)                                                      \
    M(saves_total, COUNTER, "tenant,outcome", "Saves of shards, by outcome.")  \
    S(saves, "stored", n.saves_stored)                                         \
    S(, "present", n.saves_present)                                            \
    S(, "declined", n.saves_declined)                                          \
    S(, "mismatch", n.saves_mismatch)                                          \
    S(, "full", n.saves_full)                                                  \
    S(, "canceled", n.saves_canceled)                                          \
    S(, "failed", n.saves_failed)                                              \
    S(, "stale", n.saves_stale)                                                \
    S(, "paused", n.saves_paused)                                              \
    M(saves_dropped_total, COUNTER, "tenant,reason",                           \
      "Saved shards that never reached a disk: evicted before it, larger "     \
      "than a segment, or lost by a failed write.")                            \
    S(, "evicted", n.queue_evicted[LARDER_TIER_SSD - 1])                       \
    S(, "size", n.saves_dropped_size)                                          \
    S(, "io", n.saves_dropped_io)                                              \
    M(writes_refused_total, COUNTER, "tenant,reason",                          \
      "Times a shard was not written down to ssd: used once so far, or the "   \
      "day's budget of writes is spent.")                                      \
    S(, "used_once", n.refused_first)                                          \
    S(, "budget", n.refused_budget)                                            \
    M(shared_offers_total, COUNTER, "tenant,outcome",                          \
      "Saved shards offered to the shared tier: written, present there "       \
      "already, evicted before, or failed.")                                   \
    S(, "written", n.offers_written)                                           \
    S(, "present", n.offers_present)                                           \
    S(, "evicted", n.queue_evicted[LARDER_TIER_SHARED - 1])                    \
    S(, "failed", n.offers_failed)                                             \
    M(moved_bytes_total, COUNTER, "tenant,direction,tier",                     \
      "Payload saved and loaded, by tier.")                                    \
    E(ldr_tier_label, "save", n.saved_bytes)                                   \
    E(ldr_tier_label, "load", n.loaded_from)                                   \
    J(saved_bytes, n.saved_bytes)                                              \
    J(loaded_bytes, n.loaded_bytes)                                            \
    V(evicted_chunks_total, COUNTER, "tenant", , n.evicted_chunks,             \
      "Chunks evicted from dram to make room.")                                \
    V(evicted_bytes_total, COUNTER, "tenant", evicted_bytes, n.evicted_bytes,  \
      "Payload evicted from dram to make room.")                               \
    V(passed_chunks_total, COUNTER, "tenant", , n.passed_chunks,               \
      "Chunks passed on to ssd, since what is in dram is worth more.")         \
    M(policy_ranks, GAUGE, "tenant,policy",                                    \
      "1 for what decides which chunks leave dram: learned or lru.")           \
    E(policy_label, "", ranks)                                                 \
    V(policy_switches_total, COUNTER, "tenant", , policy.switches,             \
      "Times that has changed.")                                               \
    V(policy_requests_total, COUNTER, "tenant", , policy.announced,            \
      "Requests that were announced to the policy.")                           \
    M(policy_shadow_hits_total, COUNTER, "tenant,policy",                      \
      "Chunks of these requests that dram had since it was full (learned), "   \
      "and that lru would have had in its place (lru).")                       \
    S(, "learned", policy.hits)                                                \
    S(, "lru", policy.hits_lru)                                                \
    V(policy_bytes, GAUGE, "tenant", , policy.bytes,                           \
      "Memory that the policy takes.")                                         \
    V(reclaimed_shards_total, COUNTER, "tenant", , n.reclaimed_chunks,         \
      "Shards dropped from ssd to make room.")                                 \
    M(handoffs_total, COUNTER, "tenant,outcome",                               \
      "Promises of prefill engines: made, one for each chain and one for its " \
      "tail; those that expired, since nobody renewed them; and those that a " \
      "decode engine asked for when they were over, or that never were.")      \
    S(handoffs, "promised", n.handoffs)                                        \
    S(handoffs_expired, "expired", n.handoffs_expired)                         \
    S(handoffs_late, "late", n.handoffs_late)                                  \
    M(handoff_chunks_total, COUNTER, "tenant,outcome",                         \
      "Promised chunks: came, did not come, or came and were not held, since " \
      "a quarter of dram was.")                                                \
    S(handoff_kept, "kept", n.handoff_kept)                                    \
    S(handoff_failed, "failed", n.handoff_failed)                              \
    S(handoff_unheld, "unheld", n.handoff_unheld)                              \
    V(handoff_held_bytes, GAUGE, "tenant", handoff_held, promised_bytes,       \
      "Memory that is held for hand-offs.")                                    \
    V(removes_total, COUNTER, "tenant", , n.removes, "Shards removed.")        \
    V(resets_total, COUNTER, "tenant", , n.resets, "Spaces reset.")            \
    V(tenant_dram_bytes, GAUGE, "tenant", dram, dram_used_bytes,               \
      "Memory of the dram tier that the tenant uses.")                         \
    V(tenant_dram_max_bytes, GAUGE, "tenant", dram_max, dram_max,              \
      "The tenant's limit in the dram tier; 0: none of its own.")              \
    V(tenant_overdue_bytes, GAUGE, "tenant", , dram_overdue_bytes,             \
      "Memory that the tenant was asked to give up and still keeps; it "       \
      "counts against its share.")                                             \
    V(tenant_ssd_bytes, GAUGE, "tenant", ssd, ssd_bytes,                       \
      "Bytes of the ssd tier that the tenant uses.")                           \
    V(tenant_ssd_max_bytes, GAUGE, "tenant", ssd_max, ssd_max,                 \
      "The tenant's limit in the ssd tier; 0: none of its own.")               \
    V(pinned_bytes, GAUGE, "tenant", , pinned_bytes,                           \
      "Payload that is evicted last.")

#define LDR_SPACE_FIGURES(M, V, S, E, J)                                       \
    M(space_info, GAUGE, "tenant,space,label",                                 \
      "1; the label that engines give the space: a model and its dtype.")      \
    V(space_chunks, GAUGE, "tenant,space", chunks, chunks,                     \
      "Chunks of a space, in any tier; of the 50 busiest spaces.")             \
    V(space_dram_bytes, GAUGE, "tenant,space", dram, dram_bytes,               \
      "Memory of the dram tier that the space uses.")                          \
    V(space_ssd_bytes, GAUGE, "tenant,space", ssd, ssd_bytes,                  \
      "Bytes of the ssd tier that the space uses.")                            \
    M(space_asked_chunks_total, COUNTER, "tenant,space,outcome",               \
      "Chunks of the space that engines asked for: found or not_found.")       \
    S(found, "found", n.found_chunks)                                          \
    S(, "not_found", sum.not_found)                                            \
    J(asked, n.asked_chunks)                                                   \
    M(space_loads_total, COUNTER, "tenant,space,outcome",                      \
      "Loads of shards of the space: hit or miss.")                            \
    S(hits, "hit", sum.hits)                                                   \
    S(misses, "miss", sum.misses)                                              \
    J(saves, n.saves_stored)                                                   \
    M(space_moved_bytes_total, COUNTER, "tenant,space,direction",              \
      "Payload of the space saved and loaded.")                                \
    S(loaded_bytes, "load", n.loaded_bytes)                                    \
    S(saved_bytes, "save", n.saved_bytes)                                      \
    J(evicted_bytes, n.evicted_bytes)

/* ---- the node: ldr_node_figures_t ---- */

#define LDR_NODE_FIGURES(M, V, S, E, J)                                        \
    V(spaces, GAUGE, "", , spaces, "Spaces known to the node.")                \
    V(entries, GAUGE, "", index.chunks, s.entries, "Chunks in the index.")     \
    V(index_bytes, GAUGE, "", index.bytes, s.entry_bytes,                      \
      "Memory of the index.")                                                  \
    V(dram_bytes, GAUGE, "", dram.size, s.dram_bytes,                          \
      "Size of the dram tier.")                                                \
    V(dram_resident_bytes, GAUGE, "", dram.resident, s.dram_resident_bytes,    \
      "Memory of the dram tier that was made resident.")                       \
    V(dram_used_bytes, GAUGE, "", dram.used, s.dram_used_bytes,                \
      "Memory of the dram tier in use.")                                       \
    J(dram.pinned, s.pinned_bytes)                                             \
    V(held_chunks, GAUGE, "", , s.dram_leased_chunks,                          \
      "Chunks held by leases, reservations, copies and writes.")               \
    M(copy_seconds, HISTOGRAM, "direction",                                    \
      "Copies between engines and the dram tier made by the node itself.")     \
    S(, "load", load_times)                                                    \
    S(, "save", save_times)                                                    \
    V(io_uring, GAUGE, "", , s.io_uring,                                       \
      "1: io_uring, 0: threads with plain reads and writes.")                  \
    M(mode, GAUGE, "mode", "1 for the mode the node is in.")                   \
    E(ldr_mode_label, "", mode)                                                \
    V(poisoned, GAUGE, "", , poisoned,                                         \
      "1 once the process has found a broken invariant.")                      \
    J(write_amplification, write_amplification)                                \
    M(write_amplification_ratio, GAUGE, "",                                    \
      "Bytes written to disks for each byte written for a save.")              \
    V(dirty_shards, GAUGE, "", queues.dirty_shards, q.dirty_shards,            \
      "Saved shards that wait to be written down.")                            \
    V(reads_waiting, GAUGE, "", queues.reads_waiting, q.reads_waiting,         \
      "Shards that wait to be read from a disk.")                              \
    V(reads_in_flight, GAUGE, "", queues.reads_flying, q.reads_flying,         \
      "Reads that disks are busy with.")                                       \
    V(writes_in_flight, GAUGE, "", queues.writes_flying, q.writes_flying,      \
      "Batches of shards that disks are busy writing.")

/* ---- tiers: ldr_disk_figures_t, ldr_shared_figures_t ---- */

#define LDR_DISK_FIGURES(M, V, S, E, J)                                        \
    V(disk_on, GAUGE, "path", , s.on,                                          \
      "1 while the disk takes and gives shards.")                              \
    V(disk_max_bytes, GAUGE, "path", size, s.bytes_max,                        \
      "Size that was configured.")                                             \
    V(disk_used_bytes, GAUGE, "path", used, s.bytes_used,                      \
      "Size of its files.")                                                    \
    V(disk_segments, GAUGE, "path", segments, s.segments,                      \
      "Its segment files.")                                                    \
    V(disk_segments_lost_total, COUNTER, "path", lost, s.segments_lost,        \
      "Segments lost by a failed write or sync, or missed at the start.")      \
    V(disk_written_bytes_total, COUNTER, "path", written, s.written_bytes,     \
      "Bytes written for saves.")                                              \
    V(disk_carried_bytes_total, COUNTER, "path", carried, s.carried_bytes,     \
      "Bytes written again by reclaim.")                                       \
    V(disk_read_bytes_total, COUNTER, "path", read, s.read_bytes,              \
      "Bytes read for loads.")                                                 \
    M(disk_errors_total, COUNTER, "path,operation",                            \
      "Failed reads, writes and syncs.")                                       \
    S(read_errors, "read", s.read_errors)                                      \
    S(write_errors, "write", s.write_errors)                                   \
    M(disk_seconds, HISTOGRAM, "path,operation",                               \
      "Reads of a shard and writes of a batch, from submit to completion.")    \
    S(, "read", reads)                                                         \
    S(, "write", writes)

#define LDR_PEER_FIGURES(M, V, S, E, J)                                        \
    M(peer_reason, GAUGE, "member,reason",                                     \
      "1, with the reason, while the member does not answer or one of the "    \
      "two refuses the other; 0, with none, while it is well.")                \
    M(peer_queue_shards, GAUGE, "",                                            \
      "Shards that wait to be brought to the members that own them.")          \
    M(peer_queue_bytes, GAUGE, "", "Bytes of them.")                           \
    M(peer_lag_seconds, GAUGE, "",                                             \
      "How long ago all that was saved had been brought to its owner; 0: it "  \
      "is now.")                                                               \
    V(peer_same_view, GAUGE, "member", same_view, same_view,                   \
      "1 while the member has the same view as this node.")                    \
    V(peer_knows, GAUGE, "member", knows, knows,                               \
      "1 while this node is in the member's view.")                            \
    V(peer_clock_seconds, GAUGE, "member", clock_s, skew_s,                    \
      "How far the member's clock is from this node's.")                       \
    V(peer_round_trip_seconds, GAUGE, "member", trip_us, trip,                 \
      "How long the last exchange of epochs and removals took.")               \
    V(peer_well, GAUGE, "member", well, well,                                  \
      "1 while this node has met the member and it answers.")                  \
    V(peer_behind, GAUGE, "member", , behind,                                  \
      "1 while the member has not heard of every reset and removal.")          \
    V(peer_leased_bytes, GAUGE, "member", , leased,                            \
      "Bytes of dram held for the member until it has fetched them.")          \
    M(peer_asks_total, COUNTER, "member,outcome",                              \
      "Times the member was asked what it has: answered or unanswered.")       \
    S(, "answered", n.answered)                                                \
    S(, "unanswered", n.unanswered)                                            \
    M(peer_shards_total, COUNTER, "member,event",                              \
      "Shards fetched from and sent to the member, and that it fetched from "  \
      "and sent to this node.")                                                \
    S(, "fetched", n.fetched)                                                  \
    S(fetch_failed, "fetch_failed", n.fetch_failed)                            \
    S(wrong, "fetch_wrong", n.wrong)                                           \
    S(, "sent", n.sent)                                                        \
    S(, "present", n.present)                                                  \
    S(send_failed, "send_failed", n.send_failed)                               \
    S(, "served", n.served)                                                    \
    S(, "sent_on", n.sent_on)                                                  \
    S(, "taken", n.taken)                                                      \
    M(peer_bytes_total, COUNTER, "member,direction", "Bytes of them.")         \
    S(fetched_bytes, "fetch", n.fetched_bytes)                                 \
    S(sent_bytes, "send", n.sent_bytes)                                        \
    S(served_bytes, "serve", n.served_bytes)                                   \
    S(taken_bytes, "take", n.taken_bytes)                                      \
    M(peer_homes, GAUGE, "",                                                   \
      "Chunks of which this node knows whose disks have them.")                \
    M(peer_homes_dropped_total, COUNTER, "",                                   \
      "Of those that were forgotten to make room: peer_homes is too small.")   \
    M(peer_copies_total, COUNTER, "",                                          \
      "Chunks that this node fetched for itself because others read them.")    \
    M(peer_homes_total, COUNTER, "member,event",                               \
      "Chunks that the member was told this node's disk has; that it told of " \
      "its own; and that it was asked for because of that, and lacked.")       \
    S(, "announced", n.homes_announced)                                        \
    S(, "heard", n.homes_heard)                                                \
    S(home_wrong, "wrong", n.home_wrong)                                       \
    M(peer_meets_total, COUNTER, "member,outcome",                             \
      "Times epochs and removals were exchanged with the member.")             \
    S(, "ok", n.met)                                                           \
    S(, "failed", n.meet_failed)

#define LDR_SHARED_FIGURES(M, V, S, E, J)                                      \
    M(shared_on, GAUGE, "operation",                                           \
      "1 while the shared tier can be read, and written to.")                  \
    S(, "read", s.on)                                                          \
    S(, "write", s.writable)                                                   \
    M(shared_reason, GAUGE, "reason",                                          \
      "1, with the reason, while the shared tier or a tenant's part of it is " \
      "off or only read; 0, with none, while all is well.")                    \
    V(shared_open_tenants, GAUGE, "", , open,                                  \
      "Tenants without a secret: all who can write to the storage can forge "  \
      "their data there.")                                                     \
    V(shared_objects, GAUGE, "", objects, s.objects,                           \
      "Objects of the shared tier that this node knows of.")                   \
    V(shared_shards, GAUGE, "", shards, s.shards, "Shards in them.")           \
    M(shared_bytes, GAUGE, "kind",                                             \
      "Bytes of them: live, or dead (of no use any more).")                    \
    S(, "live", live_bytes)                                                    \
    S(dead, "dead", s.dead_bytes)                                              \
    J(bytes, s.bytes)                                                          \
    V(shared_map_bytes, GAUGE, "", memory, s.map_bytes,                        \
      "Memory that knowing them takes.")                                       \
    V(shared_waiting_shards, GAUGE, "", waiting, s.waiting_shards,             \
      "Saved shards that wait to be written to the shared tier.")              \
    M(shared_moved_bytes_total, COUNTER, "operation",                          \
      "Bytes this node read from and wrote to the shared tier.")               \
    S(read, "read", s.read_bytes)                                              \
    S(written, "write", s.written_bytes)                                       \
    M(shared_errors_total, COUNTER, "operation",                               \
      "Reads and writes of the shared tier that failed.")                      \
    S(read_errors, "read", s.read_errors)                                      \
    S(write_errors, "write", s.write_errors)                                   \
    M(shared_lost_total, COUNTER, "reason",                                    \
      "Reads of what was gone, or was not what had been written.")             \
    S(gone, "gone", s.gone)                                                    \
    S(corrupt, "corrupt", s.corrupt)                                           \
    M(shared_seconds, HISTOGRAM, "operation",                                  \
      "Reads of a shard and writes of an object.")                             \
    S(, "read", reads)                                                         \
    S(, "write", writes)                                                       \
    V(shared_stuck_calls, GAUGE, "", , stuck,                                  \
      "Calls of the shared tier that hang beyond their deadline.")             \
    V(shared_followed_seconds, GAUGE, "", , polled,                            \
      "How long ago the shared tier was last asked what is new.")              \
    V(shared_cleaner, GAUGE, "", , s.cleaner,                                  \
      "1 while this node cleans up the shared tier.")                          \
    V(shared_cleaned_bytes_total, COUNTER, "", cleaned, s.cleaned_bytes,       \
      "Bytes that it has removed there.")

/* ---- the daemon: ldr_op_count_t, ldr_tenant_count_t, ldr_transport_count_t,
 * ldr_server_metrics_t ---- */

#define LDR_OP_FIGURES(M, V, S, E, J)                                          \
    M(requests_total, COUNTER, "op,status",                                    \
      "Requests answered, by operation and outcome.")                          \
    E(ldr_outcome_label, "", outcomes)                                         \
    V(request_seconds, HISTOGRAM, "op", , latency,                             \
      "Requests, from arrival to reply.")

#define LDR_CLIENT_FIGURES(M, V, S, E, J)                                      \
    M(tenant_requests_total, COUNTER, "tenant,status",                         \
      "Requests of the tenant, by outcome.")                                   \
    E(ldr_outcome_label, "", requests)                                         \
    M(tenant_bytes_total, COUNTER, "tenant,direction",                         \
      "Payload that the tenant's sessions sent in and took out.")              \
    S(bytes_in, "in", bytes_in)                                                \
    S(bytes_out, "out", bytes_out)                                             \
    V(tenant_sessions, GAUGE, "tenant", sessions, sessions,                    \
      "Sessions of the tenant.")                                               \
    V(throttled_requests_total, COUNTER, "tenant", throttled, throttled,       \
      "Requests that the tenant's rate made wait.")

#define LDR_TRANSPORT_FIGURES(M, V, S, E, J)                                   \
    M(transport_bytes_total, COUNTER, "transport,direction",                   \
      "Payload in and out, by transport.")                                     \
    S(, "in", bytes_in)                                                        \
    S(, "out", bytes_out)                                                      \
    V(sessions, GAUGE, "transport", , sessions,                                \
      "Sessions that are authenticated.")                                      \
    V(sessions_opened_total, COUNTER, "transport", , opened,                   \
      "Sessions that were let in.")

#define LDR_SERVER_FIGURES(M, V, S, E, J)                                      \
    V(leases, GAUGE, "", queues.leases, levels[LDR_LEVEL_LEASES],              \
      "Leases held by sessions.")                                              \
    V(reservations, GAUGE, "", queues.reservations,                            \
      levels[LDR_LEVEL_RESERVATIONS], "Reservations held by sessions.")        \
    V(quarantined_leases, GAUGE, "", queues.quarantined,                       \
      levels[LDR_LEVEL_QUARANTINED],                                           \
      "Leases and reservations whose session is gone while its process "       \
      "lives.")                                                                \
    V(jobs_queued, GAUGE, "", queues.jobs_queued,                              \
      levels[LDR_LEVEL_JOBS_QUEUED], "Operations that wait for a thread.")     \
    V(jobs_running, GAUGE, "", queues.jobs_running,                            \
      levels[LDR_LEVEL_JOBS_RUNNING],                                          \
      "Operations that a thread is busy with.")                                \
    V(reply_queue_bytes, GAUGE, "", queues.reply_bytes,                        \
      levels[LDR_LEVEL_REPLY_BYTES],                                           \
      "Bytes of replies that peers did not take yet.")                         \
    V(connecting, GAUGE, "", connecting, levels[LDR_LEVEL_CONNECTING],         \
      "Connections that are not authenticated yet.")                           \
    V(revokes_pending, GAUGE, "", , levels[LDR_LEVEL_REVOKES_PENDING],         \
      "Sessions that were asked to unmap an extent and did not yet.")          \
    V(sessions_died_total, COUNTER, "", , events[LDR_EVENT_SESSIONS_DIED],     \
      "Sessions whose process was found gone.")                                \
    M(errors_total, COUNTER, "status", "Requests that failed, by status.")     \
    E(ldr_failure_label, "", statuses)                                         \
    M(auth_failures_total, COUNTER, "reason", "Peers that were not let in.")   \
    E(ldr_auth_fail_label, "", auth_fails)                                     \
    M(refused_connections_total, COUNTER, "reason",                            \
      "Connections that were refused or ended by the daemon.")                 \
    E(ldr_refusal_label, "", refusals)                                         \
    V(version_refusals_total, COUNTER, "", , refusals[LDR_REFUSAL_VERSION],    \
      "Peers without a protocol version in common.")                           \
    V(abandoned_leases_total, COUNTER, "", ,                                   \
      events[LDR_EVENT_LEASES_ABANDONED],                                      \
      "Leases and reservations taken back from processes that are gone.")      \
    V(reclaimed_extents_total, COUNTER, "", ,                                  \
      events[LDR_EVENT_EXTENTS_RECLAIMED],                                     \
      "Extents of the arena that changed their tenant.")                       \
    V(payload_mismatches_total, COUNTER, "", ,                                 \
      events[LDR_EVENT_CHECKSUM_MISMATCH],                                     \
      "Payloads that did not match their checksum on arrival.")                \
    V(reports_total, COUNTER, "", , events[LDR_EVENT_REPORTS],                 \
      "Shards that a client found wrong.")                                     \
    M(reloads_total, COUNTER, "outcome",                                       \
      "Times the configuration was read again.")                               \
    S(, "ok", events[LDR_EVENT_RELOADS])                                       \
    S(, "failed", events[LDR_EVENT_RELOADS_FAILED])                            \
    V(trace_on, GAUGE, "", , levels[LDR_LEVEL_TRACE_ON],                       \
      "1 while requests are written to a trace.")                              \
    M(traced_requests_total, COUNTER, "outcome",                               \
      "Requests told to the trace: written, repeated (a line has it), or "     \
      "dropped (no room, or the trace has ended).")                            \
    S(, "written", events[LDR_EVENT_TRACE_WRITTEN])                            \
    S(, "repeated", events[LDR_EVENT_TRACE_REPEATED])                          \
    S(, "dropped", events[LDR_EVENT_TRACE_DROPPED])                            \
    M(events_total, COUNTER, "outcome",                                        \
      "Events for routers: published, replayed (sent again to a subscriber "   \
      "that had missed them), or dropped (no memory, or too many topics).")    \
    S(, "published", events[LDR_EVENT_KV_PUBLISHED])                           \
    S(, "replayed", events[LDR_EVENT_KV_REPLAYED])                             \
    S(, "dropped", events[LDR_EVENT_KV_DROPPED])                               \
    V(event_subscriptions, GAUGE, "", , levels[LDR_LEVEL_SUBSCRIPTIONS],       \
      "Subscriptions to these events.")                                        \
    M(slowest_request_seconds, GAUGE, "op,transport,tenant,space,status",      \
      "The slowest requests of the last 10 minutes, one of each kind.")        \
    M(admin_on, GAUGE, "url",                                                  \
      "1 while dashboard and metrics are served there; 0: another program "    \
      "has the port.")                                                         \
    M(build_info, GAUGE, "version,build", "1, with what this daemon is.")

/* What engines have described for routers: ldr_catalog_stats_t. */
#define LDR_CATALOG_FIGURES(M, V, S, E, J)                                     \
    V(descriptions, GAUGE, "", , descriptions,                                 \
      "Chunks that engines have described for routers; of one that several "   \
      "have described, each counts.")                                          \
    V(description_bytes, GAUGE, "", , bytes,                                   \
      "Memory that these take, at most describe_memory.")                      \
    V(description_sources, GAUGE, "", , sources,                               \
      "Engines that have described chunks, each space and group of theirs "    \
      "for "                                                                   \
      "itself.")                                                               \
    V(descriptions_dropped_total, COUNTER, "", , dropped,                      \
      "Descriptions that gave way to newer ones: describe_memory is less "     \
      "than "                                                                  \
      "what engines use.")

/* The cluster, as this node sees it: ldr_cluster_figures_t, and each member of
 * its view: ldr_member_figures_t. */
#define LDR_CLUSTER_FIGURES(M, V, S, E, J)                                     \
    M(cluster_info, GAUGE, "source,cluster,member,view",                       \
      "1, with where members come from, the cluster's name, this node's name " \
      "and the hash of its view.")                                             \
    M(cluster_trouble, GAUGE, "reason",                                        \
      "1, with the reason, while this node is no member as it should be; 0, "  \
      "with none, while all is well.")                                         \
    M(cluster_members, GAUGE, "state",                                         \
      "Members in this node's view: those that own chunks, those that leave, " \
      "and those that lend nothing.")                                          \
    S(owners, "owner", s.owners)                                               \
    S(leaving, "leaving", s.leaving)                                           \
    S(weightless, "weightless", weightless)                                    \
    V(cluster_views_total, COUNTER, "", views, s.views,                        \
      "Views that this node has believed in.")                                 \
    V(cluster_held_total, COUNTER, "", held, s.held,                           \
      "Views that were held back, since more than half of the members were "   \
      "gone.")                                                                 \
    V(cluster_held_seconds, GAUGE, "", held_s, held,                           \
      "How long the last of these has been held back; 0: none is.")            \
    V(cluster_refused_members, GAUGE, "", refused, s.refused,                  \
      "Members that are refused: another secret, another major version, or "   \
      "an address that a newer one has.")                                      \
    V(cluster_registered, GAUGE, "", registered, s.registered,                 \
      "1 while this node is published to the others; with a static list or "   \
      "DNS while it is in it.")                                                \
    V(cluster_source_up, GAUGE, "", , s.source_ok,                             \
      "1 while etcd or DNS answers. While it does not, the last view stands.") \
    V(cluster_source_failures_total, COUNTER, "", source_failures,             \
      s.source_failures, "Calls of etcd or DNS that failed.")                  \
    V(cluster_source_age_seconds, GAUGE, "", source_age_s, age,                \
      "How long ago etcd or DNS last answered.")
#define LDR_MEMBER_FIGURES(M, V, S, E, J)                                      \
    M(member_info, GAUGE, "member,address,zone,version",                       \
      "1 for each member of this node's view.")                                \
    V(member_weight, GAUGE, "member", weight, weight,                          \
      "What the member lends, against the others.")                            \
    V(member_share, GAUGE, "member", share, share,                             \
      "Part of that weight that counts: a new member's grows to 1; 0: it "     \
      "leaves.")                                                               \
    V(member_owned, GAUGE, "member", owned, owned,                             \
      "Part of all chunks that the member owns.")

/* The process: ldr_process_t. These names begin with process_, all others with
 * larder_. */
#define LDR_PROCESS_FIGURES(M, V, S, E, J)                                     \
    V(start_time_seconds, GAUGE, "", , start,                                  \
      "When the daemon started, in seconds since 1970.")                       \
    V(cpu_seconds_total, COUNTER, "", , cpu,                                   \
      "Processor time the daemon has used.")                                   \
    V(resident_memory_bytes, GAUGE, "", process.resident, resident_bytes,      \
      "Memory of the daemon, the arena included.")                             \
    V(threads, GAUGE, "", process.threads, threads, "Threads of the daemon.")  \
    V(open_fds, GAUGE, "", process.fds, fds,                                   \
      "Descriptors the daemon has open.")                                      \
    V(max_fds, GAUGE, "", process.fds_max, fds_max,                            \
      "Descriptors the daemon may have open.")                                 \
    J(process.cpu_us, cpu.value)

/* What an embedded node has, and what a daemon has besides. */
#define LDR_EMBEDDED_FIGURES(M, V, S, E, J)                                    \
    LDR_TENANT_FIGURES(M, V, S, E, J)                                          \
    LDR_SPACE_FIGURES(M, V, S, E, J)                                           \
    LDR_NODE_FIGURES(M, V, S, E, J)                                            \
    LDR_DISK_FIGURES(M, V, S, E, J)                                            \
    LDR_SHARED_FIGURES(M, V, S, E, J)                                          \
    LDR_PEER_FIGURES(M, V, S, E, J)
#define LDR_DAEMON_FIGURES(M, V, S, E, J)                                      \
    LDR_OP_FIGURES(M, V, S, E, J)                                              \
    LDR_CLIENT_FIGURES(M, V, S, E, J)                                          \
    LDR_TRANSPORT_FIGURES(M, V, S, E, J)                                       \
    LDR_SERVER_FIGURES(M, V, S, E, J)                                          \
    LDR_CATALOG_FIGURES(M, V, S, E, J)                                         \
    LDR_CLUSTER_FIGURES(M, V, S, E, J)                                         \
    LDR_MEMBER_FIGURES(M, V, S, E, J)

/*
 * ---- larder_stats() ----
 *
 * The fields of the public structs: `larder stat` shows them in this order, its
 * JSON calls them by their names. X(place, field, from, UNIT, text): the place
 * among the counters of STATS's reply, which never changes, a new field takes
 * the next; where a tenant's or a node's counters have it; text NULL: `larder
 * stat` says it in a line of its own. First what a node has.
 */
#define LDR_STATE_STATS_MAP(X)                                                 \
    X(16, entries, , COUNT, "chunks known")                                    \
    X(17, entry_bytes, , BYTES, "memory of the index")                         \
    X(18, dram_bytes, , BYTES, "dram tier")                                    \
    X(19, dram_resident_bytes, , BYTES, "  resident")                          \
    X(20, dram_used_bytes, , BYTES, "  used")                                  \
    X(21, dram_leased_chunks, , COUNT, "  chunks leased")                      \
    X(22, pinned_bytes, , BYTES, "pinned")                                     \
    X(25, io_uring, , COUNT, "io_uring in use")                                \
    X(26, dram_max_bytes, , BYTES, NULL)                                       \
    X(27, ssd_max_bytes, , BYTES, NULL)

/* Then what it has done since it was opened: of a struct ldr_counters. */
#define LDR_EVENT_STATS_MAP(X)                                                 \
    X(33, asked_chunks, asked_chunks, COUNT, NULL)                             \
    X(34, found_chunks, found_chunks, COUNT, NULL)                             \
    X(0, saves_stored, saves_stored, COUNT, "saves: stored")                   \
    X(1, saves_present, saves_present, COUNT, "  already present")             \
    X(2, saves_mismatch, saves_mismatch, COUNT, "  present with other bytes")  \
    X(3, saves_full, saves_full, COUNT, "  refused, everything leased")        \
    X(4, saves_canceled, saves_canceled, COUNT, "  canceled")                  \
    X(5, saves_failed, saves_failed, COUNT, "  failed")                        \
    X(6, saves_stale, saves_stale, COUNT, "  of a space reset meanwhile")      \
    X(7, saves_dropped_evicted, queue_evicted[LARDER_TIER_SSD - 1], COUNT,     \
      "  dropped: evicted unwritten")                                          \
    X(8, saves_dropped_size, saves_dropped_size, COUNT,                        \
      "  dropped, larger than a segment")                                      \
    X(9, saves_dropped_io, saves_dropped_io, COUNT, "  dropped, write failed") \
    X(14, saved_bytes, saved_bytes, BYTES, "  bytes")                          \
    X(10, loads_dram, loads[LARDER_TIER_DRAM], COUNT, "loads: from dram")      \
    X(11, loads_ssd, loads[LARDER_TIER_SSD], COUNT, "  from ssd")              \
    X(28, loads_shared, loads[LARDER_TIER_SHARED], COUNT,                      \
      "  from the shared tier")                                                \
    X(35, loads_peer, loads[LARDER_TIER_PEER], COUNT, "  from other members")  \
    X(15, loaded_bytes, loaded_bytes, BYTES, "  bytes")                        \
    X(12, evicted_chunks, evicted_chunks, COUNT, "chunks evicted")             \
    X(13, evicted_bytes, evicted_bytes, BYTES, "  bytes")                      \
    X(23, removes, removes, COUNT, "shards removed")                           \
    X(24, resets, resets, COUNT, "spaces reset")                               \
    X(29, offers_written, offers_written, COUNT, "shared tier: written")       \
    X(30, offers_present, offers_present, COUNT, "  already there")            \
    X(31, offers_evicted, queue_evicted[LARDER_TIER_SHARED - 1], COUNT,        \
      "  evicted unwritten")                                                   \
    X(32, offers_failed, offers_failed, COUNT, "  write failed")

#define LDR_DISK_STATS_MAP(X)                                                  \
    X(0, bytes_max, , BYTES, "  may use")                                      \
    X(1, bytes_used, , BYTES, "  uses")                                        \
    X(2, segments, , COUNT, "  segments")                                      \
    X(3, segments_lost, , COUNT, "  segments lost")                            \
    X(4, written_bytes, , BYTES, "  written")                                  \
    X(5, carried_bytes, , BYTES, "  carried")                                  \
    X(6, read_bytes, , BYTES, "  read")                                        \
    X(7, write_errors, , COUNT, "  write errors")                              \
    X(8, read_errors, , COUNT, "  read errors")

#define LDR_SHARED_STATS_MAP(X)                                                \
    X(0, objects, , COUNT, "  objects")                                        \
    X(1, shards, , COUNT, "  shards")                                          \
    X(2, bytes, , BYTES, "  holds")                                            \
    X(3, dead_bytes, , BYTES, "  dead: removed or replaced")                   \
    X(4, map_bytes, , BYTES, "  memory of the map of it")                      \
    X(5, waiting_shards, , COUNT, "  shards that wait for it")                 \
    X(7, written_bytes, , BYTES, "  written")                                  \
    X(6, read_bytes, , BYTES, "  read")                                        \
    X(9, write_errors, , COUNT, "  write errors")                              \
    X(8, read_errors, , COUNT, "  read errors")                                \
    X(10, gone, , COUNT, "  reads of removed objects")                         \
    X(11, corrupt, , COUNT, "  reads with wrong bytes")                        \
    X(12, cleaner, , COUNT, "  cleaned up by this node")                       \
    X(13, cleaned_objects, , COUNT, "  objects removed")                       \
    X(14, cleaned_bytes, , BYTES, "  bytes of them")
