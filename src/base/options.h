/*
 * The one table of options, and the URLs that set them.
 *
 * X(name, kind, where, default, min, max, text): kind is SIZE (bytes, with
 * K M G T), UINT, ENUM or TEXT; the default is text and parsed like any value.
 * The bounds of a TEXT are those of its length in bytes. where says in which
 * URLs the option may stand, whether it is one of `larder serve`, and whether
 * that takes a new value at SIGHUP (RELOAD).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

#define LDR_DISKS_MAX 16
#define LDR_PATH_MAX 256
#define LDR_OPTION_TEXT 256   /* bytes of a TEXT, with its NUL */
#define LDR_ADDRESS_MAX 1024  /* bytes of the address of a URL, with its NUL */
#define LDR_ADDRESSES_MAX 16  /* of a tcp:// URL, and in listen */
#define LDR_UNIX_PATH_MAX 108 /* bytes of a socket's path, with its NUL */
#define LDR_HOST_MAX 256

#define LDR_OPTION_MAP(X)                                                      \
    X(dram, SIZE, EMBED | SERVE, "256M", 2u << 20, (uint64_t)1 << 44,          \
      "bytes of the DRAM tier, payload")                                       \
    X(dram_start, SIZE, EMBED | SERVE, "0", 0, (uint64_t)1 << 44,              \
      "bytes of it that are made resident at the start, and kept so ahead of " \
      "what is used; 0: all of it")                                            \
    X(ssd, SIZE, EMBED | SERVE, "4G", 4u << 20, (uint64_t)1 << 46,             \
      "bytes of the SSD tier in each directory")                               \
    X(segment, SIZE, EMBED | SERVE, "0", 0, (uint64_t)1 << 30,                 \
      "bytes of one segment file; 0: chosen by ssd")                           \
    X(ssd_writes, SIZE, EMBED | SERVE, "0", 0, (uint64_t)1 << 50,              \
      "bytes that may be written to each directory a day; 0: no limit")        \
    X(ssd_admit, ENUM, EMBED | SERVE, "always", 0, 1,                          \
      "always; second: what is used a second time is written down")            \
    X(io, ENUM, EMBED | SERVE, "auto", 0, 2,                                   \
      "auto, uring or plain (threads): how disks are read and written")        \
    X(io_depth, UINT, EMBED | SERVE, "32", 1, 1024, "disk requests in flight") \
    X(io_threads, UINT, EMBED | SERVE, "16", 1, 128,                           \
      "threads for each directory when io is plain; with several, some more")  \
    X(verify, ENUM, EMBED | CLIENT, "load", 0, 2,                              \
      "load: check all that is loaded or staged; get: all that is loaded; "    \
      "entry: trust what was checked entering DRAM")                           \
    X(workers, UINT, EMBED | CLIENT, "2", 1, 64,                               \
      "threads that carry out tickets")                                        \
    X(tickets, UINT, EMBED | CLIENT, "256", 1, 65536, "tickets in flight")     \
    X(timeout_ms, UINT, EMBED | CLIENT, "10000", 1, 86400000,                  \
      "deadline of calls that name none")                                      \
    X(pin_max, SIZE, EMBED | SERVE, "0", 0, (uint64_t)1 << 44,                 \
      "bytes each tenant may pin; 0: a quarter of dram")                       \
    X(policy, ENUM, EMBED | SERVE, "learned", 0, 1,                            \
      "what leaves DRAM first: learned: what is least likely to be used "      \
      "again, from what was seen; lru: what was not used for longest")         \
    X(sync_ms, UINT, EMBED | SERVE, "1000", 1, 60000,                          \
      "age of written data when synced")                                       \
    X(retry_ms, UINT, EMBED | SERVE, "5000", 1, 3600000,                       \
      "pause before a disk that is off or full is tried again")                \
    X(shared, TEXT, EMBED | SERVE, "", 0, 255,                                 \
      "the shared tier: dir:/PATH, 3fs:/PATH, s3://BUCKET/PREFIX?endpoint=URL" \
      " or valkey://HOST:PORT; empty: none")                                   \
    X(shared_login, TEXT, EMBED | SERVE, "", 0, 255,                           \
      "file with its password or keys; empty: from the environment")           \
    X(shared_key, TEXT, EMBED | SERVE, "", 0, 255,                             \
      "file with a key of 64 hexadecimal digits: what is written there is "    \
      "encrypted; empty: it is not")                                           \
    X(shared_max, SIZE, EMBED | SERVE, "0", 0, (uint64_t)1 << 60,              \
      "bytes that each tenant may hold in it, of all nodes; 0: no limit")      \
    X(shared_age_s, UINT, EMBED | SERVE, "0", 0, 1u << 30,                     \
      "seconds after its last use that something is removed, and that all of " \
      "a tenant is that no node has open; 0: never")                           \
    X(shared_lanes, UINT, EMBED | SERVE, "8", 2, 64,                           \
      "reads and writes of it at once")                                        \
    X(shared_timeout_ms, UINT, EMBED | SERVE, "5000", 10, 600000,              \
      "deadline of one read or write of it")                                   \
    X(shared_slow_ms, UINT, EMBED | SERVE, "1000", 0, 600000,                  \
      "that reads of it may take on average, for each 8 MiB, before it is "    \
      "turned off for a while; 0: any time")                                   \
    X(shared_poll_ms, UINT, EMBED | SERVE, "1000", 10, 3600000,                \
      "how often it is asked what others have written or reset")               \
    X(cluster, TEXT, SERVE, "", 0, 255,                                        \
      "members: static:NAME=HOST:PORT,... or static:/FILE, dns:NAME, or "      \
      "etcd://HOST:PORT,.../NAME; empty: this node is alone")                  \
    X(cluster_secret, TEXT, SERVE, "", 0, 255,                                 \
      "file with the secret that all members of the cluster have")             \
    X(cluster_tls, ENUM, SERVE, "off", 0, 1,                                   \
      "off or on: members talk to each other by TLS 1.3, and both show a "     \
      "certificate")                                                           \
    X(cluster_cert, TEXT, SERVE, "", 0, 255,                                   \
      "PEM file of this member's certificate, with its chain")                 \
    X(cluster_key, TEXT, SERVE, "", 0, 255, "PEM file of its private key")     \
    X(cluster_ca, TEXT, SERVE, "", 0, 255,                                     \
      "PEM file: who signs the certificates of members")                       \
    X(cluster_cert_name, TEXT, SERVE, "", 0, 253,                              \
      "name that the certificates of all members have; empty: the host of "    \
      "each one's address")                                                    \
    X(cluster_login, TEXT, SERVE, "", 0, 255,                                  \
      "file with user= and password= for etcd; empty: from the environment, "  \
      "or none")                                                               \
    X(cluster_ramp_s, UINT, SERVE, "240", 0, 86400,                            \
      "seconds over which the weight of a new member grows; 0: none")          \
    X(member_name, TEXT, SERVE, "", 0, 63,                                     \
      "this node's name in the cluster, its identity; empty: the host's, up "  \
      "to its first dot")                                                      \
    X(member_address, TEXT, SERVE, "", 0, 255,                                 \
      "HOST:PORT at which other members reach this one, with etcd; a static "  \
      "list and SRV records have it")                                          \
    X(member_zone, TEXT, SERVE, "", 0, 63,                                     \
      "where this node stands, as a rack: copies go to different zones")       \
    X(member_weight, TEXT, SERVE | RELOAD, "auto", 1, 7,                       \
      "what this node lends to the cluster, against the others; 0: nothing; "  \
      "auto: 1 for each GiB of ssd, or of dram where it has no disk")          \
    X(leases, UINT, EMBED | CLIENT, "65536", 1, 1u << 24,                      \
      "leases a handle may hold: staged chunks, and shards that it saves")     \
    X(peer_listen, TEXT, SERVE, "", 0, 255,                                    \
      "where this node listens for the other members, host:port; empty: "      \
      "member_address")                                                        \
    X(peer_match_ms, UINT, SERVE, "50", 1, 60000,                              \
      "how long a match or a load waits for other members to say what they "   \
      "have")                                                                  \
    X(peer_timeout_ms, UINT, SERVE, "2000", 10, 600000,                        \
      "deadline of one call to another member, which is left alone for as "    \
      "long if it does not answer")                                            \
    X(peer_dram, SIZE, SERVE, "256M", 1u << 20, (uint64_t)1 << 40,             \
      "bytes of dram that may be under way from other members at once")        \
    X(peer_lanes, UINT, SERVE, "4", 2, 16, "connections to each other member") \
    X(peer_save, ENUM, SERVE, "all", 0, 2,                                     \
      "what is brought to the member that owns it: all; reused: what is used " \
      "a second time; never")                                                  \
    X(home, ENUM, SERVE, "auto", 0, 2,                                         \
      "whose disk keeps what is saved here: owner: that of the member that "   \
      "owns it; writer: this node's, and the owner knows of it; auto: writer " \
      "where this node has a disk and lends something, else owner")            \
    X(peer_homes, UINT, SERVE, "4194304", 8, 1u << 30,                         \
      "chunks of other members' disks that this node knows of at most, at 32 " \
      "bytes each")                                                            \
    X(copies, UINT, SERVE, "1", 1, 3,                                          \
      "members that keep each chunk, in different zones if they can")          \
    X(tenant, TEXT, CLIENT, "default", 1, 63, "whose session it is")           \
    X(token_file, TEXT, CLIENT, "", 0, 255,                                    \
      "file with the tenant's token; empty: none")                             \
    X(secret_file, TEXT, EMBED | CLIENT | SERVE | CONNECTOR | RELOAD, "", 0,   \
      255,                                                                     \
      "file with the tenant's secret, the same wherever KV is to be shared "   \
      "(serve: that of tenant default); empty: one that everybody knows")      \
    X(connect, ENUM, CLIENT, "now", 0, 1,                                      \
      "now: opening waits for the daemon; lazy: it succeeds without one")      \
    X(connections, UINT, TCP, "2", 1, 64, "connections to each address")       \
    X(spin_us, UINT, CLIENT | SERVE, "50", 0, 1000,                            \
      "how long to spin for a message before sleeping")                        \
    X(breaker_ms, UINT, CLIENT, "1000", 1, 3600000,                            \
      "pause after the node was not reached or did not answer in time")        \
    X(tls, ENUM, TCP | SERVE, "off", 0, 1, "off or on: TLS 1.3 on TCP")        \
    X(tls_ca, TEXT, TCP, "", 0, 255,                                           \
      "PEM file: who signs the daemon's certificate; empty: the system's")     \
    X(tls_cert, TEXT, TCP | SERVE, "", 0, 255,                                 \
      "PEM file of the own certificate, with its chain")                       \
    X(tls_key, TEXT, TCP | SERVE, "", 0, 255, "PEM file of its private key")   \
    X(tls_name, TEXT, TCP, "", 0, 253,                                         \
      "name expected in the daemon's certificate; empty: the host")            \
    X(congestion, TEXT, TCP | SERVE, "cubic", 0, 15,                           \
      "congestion control of TCP connections; empty: the machine's")           \
    X(socket, TEXT, SERVE, "", 0, 255,                                         \
      "path of the Unix socket; empty: larder.sock in the runtime "            \
      "directory; none: no socket")                                            \
    X(socket_mode, TEXT, SERVE, "0660", 1, 4, "its permissions, in octal")     \
    X(uids, TEXT, SERVE | RELOAD, "", 0, 255,                                  \
      "uids that may be tenant default over it, besides root and the "         \
      "daemon's own: numbers with commas, or any")                             \
    X(listen, TEXT, SERVE, "", 0, 255,                                         \
      "TCP addresses, host:port with commas; empty: none")                     \
    X(listen_open, ENUM, SERVE, "off", 0, 1,                                   \
      "off: where other tenants are configured, tenant default needs a token " \
      "by TCP; on: every user of this host may be it there")                   \
    X(tls_client_ca, TEXT, SERVE, "", 0, 255,                                  \
      "PEM file: clients need a certificate that it signed")                   \
    X(admin, TEXT, SERVE, "127.0.0.1:9464", 1, 255,                            \
      "address of metrics and dashboard, host:port; none: off")                \
    X(admin_open, ENUM, SERVE, "off", 0, 1,                                    \
      "off: that address must be loopback; on: other hosts may read metrics "  \
      "and health there")                                                      \
    X(query, ENUM, SERVE, "off", 0, 1,                                         \
      "on: engines describe their chunks, and POST /query on the admin "       \
      "address says where a prompt is; this keeps prompts in memory")          \
    X(events, TEXT, SERVE, "", 0, 255,                                         \
      "where KV events are published, tcp://HOST:PORT or ipc://PATH; empty: "  \
      "nowhere; events contain prompts")                                       \
    X(events_replay, TEXT, SERVE, "", 0, 255,                                  \
      "where subscribers ask for events that they have missed; empty: "        \
      "nowhere")                                                               \
    X(events_open, ENUM, SERVE, "off", 0, 1,                                   \
      "off: these addresses must be loopback; on: other hosts may read what "  \
      "is published")                                                          \
    X(events_key, TEXT, SERVE, "", 0, 255,                                     \
      "file with the secret CURVE key of these addresses; empty: all who "     \
      "reach them may read")                                                   \
    X(events_clients, TEXT, SERVE, "", 0, 255,                                 \
      "file with the public CURVE keys of those that may read, one a line")    \
    X(events_tenant, TEXT, SERVE, "default", 1, 63,                            \
      "whose chunks are published")                                            \
    X(events_topics, ENUM, SERVE, "engines", 0, 2,                             \
      "engines: a topic for each engine; node: one for this node, "            \
      "node:NAME; pool: that, and one for what its loads would find at other " \
      "members and in the shared tier, pool:NAME")                             \
    X(events_node, TEXT, SERVE, "", 0, 63,                                     \
      "NAME in these topics; empty: the member's name, or the host's")         \
    X(events_ownership, ENUM, SERVE | CONNECTOR, "on", 0, 1,                   \
      "on: events name larder as their owner; off: they name no owner, for "   \
      "routers that drop those with an owner, like Dynamo")                    \
    X(describe_memory, SIZE, SERVE, "64M", 1u << 20, (uint64_t)1 << 40,        \
      "bytes of what engines describe, of all tenants; as many of events")     \
    X(loops, UINT, SERVE, "0", 0, 64,                                          \
      "event loop threads; 0: one for every four cores, up to four")           \
    X(jobs, UINT, SERVE, "4", 1, 64,                                           \
      "threads for operations that wait for disks")                            \
    X(sessions, UINT, SERVE, "4096", 1, 65536,                                 \
      "connections at once; where there are several tenants, one may have as " \
      "many as are still free")                                                \
    X(session_leases, UINT, SERVE, "16384", 1, 1u << 24,                       \
      "leases and reservations one session may hold; a staged chunk is one")   \
    X(window, SIZE, SERVE, "64M", 1u << 20, (uint64_t)1 << 34,                 \
      "bytes in flight of one TCP session")                                    \
    X(isolation, ENUM, SERVE, "shared", 0, 1,                                  \
      "shared: one tenant's engines trust each other; strict: none does")      \
    X(strict_window, SIZE, SERVE, "64M", 1u << 20, (uint64_t)1 << 34,          \
      "bytes of a client's bounce buffer when isolation is strict")            \
    X(hello_ms, UINT, SERVE, "3000", 10, 600000,                               \
      "a peer that has not authenticated by then is dropped")                  \
    X(drain_ms, UINT, SERVE | RELOAD, "10000", 0, 3600000,                     \
      "how long SIGTERM waits for sessions and disks")                         \
    X(idle_exit_s, UINT, SERVE | RELOAD, "0", 0, 1u << 30,                     \
      "seconds without a session after which it ends by itself; 0: never")     \
    X(mode, ENUM, SERVE | RELOAD, "on", 0, 0,                                  \
      "on, and nothing else: `larder pause` pauses a node")                    \
    X(numa, TEXT, SERVE, "", 0, 255,                                           \
      "NUMA nodes of the arena, like 0 or 0,1; empty: the kernel's choice")    \
    X(trace, TEXT, SERVE, "", 0, 255,                                          \
      "file for a trace of requests, for larder plan; empty: none")            \
    X(trace_max, SIZE, SERVE, "1G", 4096, (uint64_t)1 << 44,                   \
      "bytes that this file may have")                                         \
    X(log, ENUM, SERVE, "text", 0, 1, "text or json: format of log lines")     \
    X(log_level, ENUM, SERVE | RELOAD, "info", 0, 3,                           \
      "error, warn, info or debug: what is logged")                            \
    X(url, TEXT, CONNECTOR, "", 0, 255,                                        \
      "the node; empty: that of $LARDER_URL, else this host's, which is "      \
      "started if there is none")                                              \
    X(chunk, UINT, CONNECTOR, "0", 0, 65536,                                   \
      "tokens in a chunk; 0: at least 256, a multiple of every block")         \
    X(weights, TEXT, CONNECTOR, "", 0, 255,                                    \
      "a name for the model's weights, where they cannot be looked at, as in " \
      "object storage; a new one with other weights")                          \
    X(pod, TEXT, CONNECTOR, "", 0, 63,                                         \
      "what routers call this engine; empty: as in its KV events' topic "      \
      "kv@POD@MODEL, else the host's name")                                    \
    X(pages, ENUM, CONNECTOR, "auto", 0, 3,                                    \
      "slices: KV is stored by slices of the model where the inside of pages " \
      "is known; shared: likewise, by vLLM and SGLang together; rank: a "      \
      "rank's pages as they are; auto: slices from vLLM, rank from SGLang")    \
    X(page_tokens, UINT, CONNECTOR, "0", 0, 65536,                             \
      "vLLM with pages=shared: --page-size of the SGLang servers")             \
    X(lookup_ms, UINT, CONNECTOR, "500", 0, 60000,                             \
      "how long after its arrival a request may wait for the store")           \
    X(load, ENUM, CONNECTOR, "auto", 0, 2,                                     \
      "auto: what beats computing it; always; never")                          \
    X(load_ms, UINT, CONNECTOR, "10000", 1, 600000, "deadline of a load")      \
    X(load_threads, UINT, CONNECTOR, "2", 1, 64,                               \
      "loads at once, in each worker")                                         \
    X(save, ENUM, CONNECTOR, "all", 0, 2,                                      \
      "all; prompt: not what was generated; never")                            \
    X(save_ms, UINT, CONNECTOR, "250", 1, 600000,                              \
      "deadline of a step's saves; of one beside the steps 2 s, or this if "   \
      "it is more")                                                            \
    X(save_threads, TEXT, CONNECTOR, "auto", 1, 4,                             \
      "saves at once beside the steps, in each worker, 0 to 16; 0: in the "    \
      "step; auto: 1 on a GPU, else 0")                                        \
    X(node_dram, SIZE, CONNECTOR, "0", 0, (uint64_t)1 << 44,                   \
      "dram of a node that is started; 0: a quarter of the memory")            \
    X(node_dram_start, SIZE, CONNECTOR, "1G", 0, (uint64_t)1 << 44,            \
      "its dram_start: it begins with so much, and grows as it is used; 0: "   \
      "with all of it")                                                        \
    X(node_ssd, SIZE, CONNECTOR, "4G", 0, (uint64_t)1 << 46,                   \
      "its ssd; 0: none")                                                      \
    X(node_dir, TEXT, CONNECTOR, "", 0, 255,                                   \
      "its directory; empty: larder in the user's cache directory")            \
    X(node_idle_s, UINT, CONNECTOR, "1800", 0, 1u << 30,                       \
      "its idle_exit_s: it ends after so many seconds without an engine; 0: "  \
      "never")

/* Where an option is valid: bits. */
enum {
    LDR_WHERE_EMBED = 1, /* embed: URLs */
    LDR_WHERE_UNIX = 2,  /* unix: URLs */
    LDR_WHERE_TCP = 4,   /* tcp:// URLs */
    LDR_WHERE_CLIENT = LDR_WHERE_UNIX | LDR_WHERE_TCP,
    LDR_WHERE_SERVE = 8,      /* flags, environment and file of larder serve */
    LDR_WHERE_RELOAD = 16,    /* serve takes a new value at SIGHUP */
    LDR_WHERE_CONNECTOR = 32, /* an engine's connector (python/larder_kv) */
};

/* The values of ENUM options, in the order of their words. log_level has those
 * of larder_log_level_t. */
enum { LDR_IO_AUTO, LDR_IO_URING, LDR_IO_PLAIN };
enum { LDR_ADMIT_ALWAYS, LDR_ADMIT_SECOND };
enum { LDR_POLICY_LEARNED, LDR_POLICY_LRU };
enum { LDR_VERIFY_LOAD, LDR_VERIFY_ENTRY, LDR_VERIFY_GET };
enum { LDR_CONNECT_NOW, LDR_CONNECT_LAZY };
enum { LDR_TLS_OFF, LDR_TLS_ON };
enum { LDR_ADMIN_OPEN_OFF, LDR_ADMIN_OPEN_ON };
enum { LDR_LISTEN_OPEN_OFF, LDR_LISTEN_OPEN_ON };
enum { LDR_QUERY_OFF, LDR_QUERY_ON };
enum { LDR_EVENTS_OPEN_OFF, LDR_EVENTS_OPEN_ON };
enum { LDR_EVENTS_OWNERSHIP_OFF, LDR_EVENTS_OWNERSHIP_ON };
enum {
    LDR_EVENTS_TOPICS_ENGINES,
    LDR_EVENTS_TOPICS_NODE,
    LDR_EVENTS_TOPICS_POOL
};
enum { LDR_ISOLATION_SHARED, LDR_ISOLATION_STRICT };
enum { LDR_LOG_TEXT, LDR_LOG_JSON };
enum { LDR_LOAD_AUTO, LDR_LOAD_ALWAYS, LDR_LOAD_NEVER };
enum { LDR_SAVE_ALL, LDR_SAVE_PROMPT, LDR_SAVE_NEVER };
enum { LDR_HOME_AUTO, LDR_HOME_OWNER, LDR_HOME_WRITER };
enum { LDR_PEER_SAVE_ALL, LDR_PEER_SAVE_REUSED, LDR_PEER_SAVE_NEVER };

enum { LDR_SCHEME_EMBED, LDR_SCHEME_UNIX, LDR_SCHEME_TCP };

/* The place of each option in the table: LDR_OPTION_dram... */
enum {
#define X(name, kind, where, def, min, max, text) LDR_OPTION_##name,
    LDR_OPTION_MAP(X)
#undef X
        LDR_OPTION_COUNT
};

#define LDR_FIELD_SIZE(name) uint64_t name;
#define LDR_FIELD_UINT(name) uint64_t name;
#define LDR_FIELD_ENUM(name) uint64_t name;
#define LDR_FIELD_TEXT(name) char name[LDR_OPTION_TEXT];

typedef struct ldr_options {
    int scheme;                    /* LDR_SCHEME_... */
    char address[LDR_ADDRESS_MAX]; /* unix: the path; tcp: host:port,... */
    char dirs[LDR_DISKS_MAX][LDR_PATH_MAX];
    unsigned dir_count;
#define X(name, kind, where, def, min, max, text) LDR_FIELD_##kind(name)
    LDR_OPTION_MAP(X)
#undef X
} ldr_options_t;

typedef struct ldr_option_info {
    const char *name, *kind, *value, *text; /* value: the default */
    uint64_t min, max;
    unsigned where;
} ldr_option_info_t;

extern const ldr_option_info_t ldr_option_table[];
extern const size_t ldr_option_count;

void ldr_options_default(ldr_options_t *o);

/*
 * Parses a URL:
 *   embed:DIR[,DIR...][?name=value[&name=value...]]
 *   unix:PATH[?...]
 *   tcp://HOST:PORT[,HOST:PORT...][?...]
 * Percent escapes (%2C for a comma in a path) are decoded in DIRs, PATH and
 * values. On failure the error text names the part, and *o is untouched.
 */
larder_status_t ldr_options_parse(const char *url, ldr_options_t *o);

/* The option of this name, or -1. */
int ldr_option_find(const char *name, size_t length);

/* The option valid there whose name is nearest, or NULL if none is near. */
const char *ldr_option_nearest(const char *name, size_t length, unsigned where);

/* Sets one option from text. The error text names option, value and range. */
larder_status_t ldr_option_set(ldr_options_t *o, size_t index,
                               const char *text);

/* Its value as ldr_option_set() would read it. Gives the length it has, as
 * snprintf does. */
size_t ldr_option_get(const ldr_options_t *o, size_t index, char *text,
                      size_t size);

/* The value of one that is no TEXT; 0 of a TEXT. */
uint64_t ldr_option_number(const ldr_options_t *o, size_t index);

/* The words of an ENUM, NULL after the last; NULL for other kinds. */
const char *const *ldr_option_words(size_t index);

/* "1 to 64", "2M to 16T", "auto, uring or plain", "at most 255 bytes". */
size_t ldr_option_range(size_t index, char *text, size_t size);

/* "embed: URLs and larder serve" */
size_t ldr_where_text(unsigned where, char *text, size_t size);

/* Adds a directory; a trailing slash does not count. */
larder_status_t ldr_options_add_dir(ldr_options_t *o, const char *dir);

/* ---- values (option_values.c) ---- */

/* "64M" -> bytes. False if it is no size. */
bool ldr_parse_size(const char *text, uint64_t *bytes_p);
/* Bytes as one would write them: "64M". */
size_t ldr_size_text(uint64_t bytes, char *text, size_t size);

/* Decimal digits of a number below 2^64, and nothing else. */
bool ldr_parse_uint(const char *text, uint64_t *value_p);

/* "host:port", "1.2.3.4:port", "[::1]:port" (host without the brackets; port
 * 0 to 65535). False if it is none. */
bool ldr_parse_address(const char *text, size_t length, char host[LDR_HOST_MAX],
                       uint16_t *port_p);

/* 1 to max addresses with commas between, none of them twice. */
bool ldr_addresses_ok(const char *list, unsigned max);

/* 127.0.0.0/8, ::1 or localhost. */
bool ldr_host_is_loopback(const char *host);

/* 1 to 63 of [A-Za-z0-9._-]. */
bool ldr_tenant_name_ok(const char *name);

/* A number or a size, by its kind ("UINT", "SIZE"), from min to max. who: what
 * an error text calls it. */
larder_status_t ldr_parse_value(const char *who, const char *kind, uint64_t min,
                                uint64_t max, const char *text,
                                uint64_t *value_p);

/* A list of uids: "", "any", or numbers with commas. */
bool ldr_uids_ok(const char *list);
bool ldr_uids_has(const char *list, uint32_t uid);

/* The NUMA nodes of a list as bits (nodes 0 to 63); "" is none. */
bool ldr_parse_numa(const char *list, uint64_t *nodes_p);

/* How many characters must be changed, added or taken away (two swapped count
 * as one) to turn one name into the other; - and _ are the same. UINT_MAX:
 * more than a slip of the hand. */
unsigned ldr_text_distance(const char *name, const char *text, size_t length);
