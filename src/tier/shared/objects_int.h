/*
 * Inside the tier. One lock, tier->lock, guards everything that is not said to
 * be otherwise; it is held for bookkeeping only, never across a call of the
 * back end or out of the tier, and taken inside the node's lock. The workers'
 * lock is taken inside it.
 *
 * A volume is what the tier knows of one tenant. Its work is done by chores:
 * jobs of which a volume has one of each kind, so that no two of a kind run at
 * once. The clockwork (ldr_objects_turn()) adds those that are due.
 *
 * Invariants, which ldr_objects_check() looks at
 *  1. A chore is busy from when its job is added until that is done.
 *  2. published <= added, of what must not be forgotten.
 *  3. `readers` are the helpers that are busy, and the chore POLL while it
 *     counts itself: LDR_READERS at most.
 *  4. An array's count is at most its room.
 *  5. Everything in the map holds: ldr_map_check().
 * What functions below say they need the lock for, they assert.
 */
#pragma once

#include <pthread.h>

#include "base/text.h"
#include "tier/shared/objects.h"

#define LDR_NODE_BYTES 8u
#define LDR_OBJECTS_ID_MAX 64u /* bytes of larder.tier that count */
#define LDR_READERS 8u         /* jobs that read manifests at once */
#define LDR_TRIES_MAX 3u       /* before a manifest is called bad */
#define LDR_VICTIMS 64u
#define LDR_COMPACT_MAX 64u /* objects made one */
#define LDR_SUSPECTS 16u    /* asked for by name in one pass */

/* Seconds. */
#define LDR_ROLE_S 60u
#define LDR_ROLE_MARGIN_S 10u
#define LDR_USED_S 60u   /* between two announcements of a use */
#define LDR_USES_S 10u   /* that uses are gathered */
#define LDR_GONE_S 3600u /* that a removal is remembered */
/* That manifests carry a removal, and maps remember it, at least: it stays
 * while there is an object of which it may be. */
#define LDR_REMOVED_S (30u * 86400)

/* ---- a set of ids, with a time each ---- */

typedef struct ldr_ids {
    struct ldr_ids_item *items; /* a power of two of them, or none */
    size_t capacity, count;
} ldr_ids_t;

struct ldr_ids_item {
    uint8_t id[LDR_ID_BYTES];
    uint32_t time_s; /* 0: free */
};

/* The time, or 0. */
uint32_t ldr_ids_find(const ldr_ids_t *ids, const uint8_t id[LDR_ID_BYTES]);
/* Keeps the time of one that is there. False: no memory. */
bool ldr_ids_add(ldr_ids_t *ids, const uint8_t id[LDR_ID_BYTES],
                 uint32_t time_s);
/* The same, but of two times the later one counts. */
bool ldr_ids_latest(ldr_ids_t *ids, const uint8_t id[LDR_ID_BYTES],
                    uint32_t time_s);
/* Forgets what is older. */
void ldr_ids_prune(ldr_ids_t *ids, uint32_t before_s);
void ldr_ids_clear(ldr_ids_t *ids);

/* ---- manifests that were listed ---- */

typedef enum ldr_known_state {
    LDR_KNOWN_NEW,  /* to be read */
    LDR_KNOWN_READ, /* all of it is in the map */
    LDR_KNOWN_BAD   /* not under this key, or broken */
} ldr_known_state_t;

typedef struct ldr_known_manifest {
    uint8_t node[LDR_NODE_BYTES];
    uint64_t sequence;
    uint64_t bytes;   /* 0: not known */
    uint32_t objects; /* entries of objects in it */
    uint8_t state;
    uint8_t missed; /* listings in a row that lacked it */
    uint8_t tries;  /* for nothing: it may have been a lack of memory */
} ldr_known_manifest_t;

/* ---- the cleaner of a volume ---- */

typedef enum ldr_role {
    LDR_ROLE_NONE,
    LDR_ROLE_TAKING, /* written; to be read back */
    LDR_ROLE_HELD
} ldr_role_t;

typedef struct ldr_candidate {
    uint8_t id[LDR_ID_BYTES];
    uint32_t blocks;
    uint64_t weight; /* more goes first */
} ldr_candidate_t;

/* Objects that should be made one with others. */
typedef struct ldr_compactable {
    uint32_t count;
    uint64_t blocks; /* that live */
    bool holes;      /* one is worth it for its dead blocks alone */
    bool full;       /* another did not fit into one object with them */
} ldr_compactable_t;

/* What one look over the map gathers. */
typedef struct ldr_pass {
    ldr_candidate_t worst[LDR_VICTIMS]; /* by weight, the heaviest first */
    uint32_t worst_count;
    uint8_t dead[LDR_VICTIMS][LDR_ID_BYTES]; /* to go in any case */
    uint32_t dead_count;
    uint8_t suspects[LDR_SUSPECTS][LDR_ID_BYTES]; /* perhaps not there */
    uint32_t suspect_count, suspect_last;         /* a number */
    /* Objects of cleaner.compact_space that could be one. */
    uint8_t inputs[LDR_COMPACT_MAX][LDR_ID_BYTES];
    uint32_t input_epoch, input_first;
    ldr_compactable_t sum; /* of them */
    uint64_t input_rows;
    bool thorough; /* a single dead record is enough in an old object */
} ldr_pass_t;

/* Touched by the volume's chore CLEAN only, and read with the lock where no
 * such chore is under way; but stats read the role at any time, so the chore
 * changes that with the lock. */
typedef struct ldr_cleaner {
    ldr_role_t role;
    uint64_t role_at_ns;
    uint64_t pass_at_ns, scan_at_ns, merge_at_ns, compact_at_ns, rewrite_at_ns;
    uint64_t thorough_at_ns, epochs_at_ns, figure_at_ns, forget_at_ns;
    unsigned turn; /* whose it is, of those that take turns: clean.c */
    /* Removed once what says so is published. */
    uint8_t victims[LDR_VICTIMS][LDR_ID_BYTES];
    uint32_t victim_count;
    uint64_t victims_after; /* volume->added then */
    /* The walk over names: T/o/XX/ after this one. */
    unsigned prefix;
    char after[LDR_OBJECT_NAME_MAX + 1];
    uint32_t cycle;      /* walks that were finished, in this role */
    uint32_t cycle_s[2]; /* when this one and the last began */
    uint8_t *marks;      /* by object: the cycle that saw it, low bits; where
                          * names say nothing, in which it was asked for */
    size_t marks_capacity;
    ldr_ids_t bad; /* objects that do not authenticate, since when */
    /* The space whose objects are made one next, and the objects from which on
     * those, and suspects, are looked for. */
    uint32_t compact_space, compact_start, suspect_start;
    ldr_pass_t pass;
} ldr_cleaner_t;

/* ---- a tenant's volume ---- */

typedef enum ldr_chore_kind {
    LDR_CHORE_CHECK,
    LDR_CHORE_RESET,
    LDR_CHORE_POLL,
    LDR_CHORE_PUBLISH,
    LDR_CHORE_CLEAN,
    LDR_CHORES
} ldr_chore_kind_t;

typedef struct ldr_volume ldr_volume_t;

typedef struct ldr_chore {
    ldr_job_t job; /* arg: the chore */
    ldr_volume_t *volume;
    bool busy;
    uint64_t at_ns; /* not before */
} ldr_chore_t;

/* By ldr_map_space()'s number. */
typedef struct ldr_volume_space {
    uint8_t id[LDR_ID_BYTES];
    bool used;           /* the node has asked for it */
    uint32_t node_epoch; /* the epoch that the node knows */
    uint32_t wanted; /* an epoch that the tier has yet to hear of; 0: none */
    uint32_t listed; /* the highest that the last listing has; 0: none */
    bool resetting;  /* `wanted` must be nobody else's; nothing is found */
    /* A reset is listed that is not there: nothing is found below its epoch. */
    uint32_t lost;
    /* The oldest object with a record that is not found: as the cleaner's last
     * pass has seen it, and so far in this one. UINT32_MAX: none. */
    uint32_t dead_s, dead_next_s;
    ldr_compactable_t
        compactable; /* all that could be made one, as the last pass saw */
} ldr_volume_space_t;

struct ldr_volume {
    ldr_objects_t *tier;
    uint8_t id[LDR_ID_BYTES]; /* these four: fixed */
    char hex[2 * LDR_ID_BYTES + 1];
    char name[64];
    /* Changes when the check begins, if another one waits: nothing was done
     * with the one before. */
    ldr_seal_t seal, next;
    bool reseal;
    ldr_chore_t chores[LDR_CHORES];

    bool checked; /* T/check is ours */
    bool refused; /* ... or is not */
    bool garbled; /* ... or is nobody's: the volume is off until it is */
    bool vacant;  /* ... or is not there, and is not put before it is claimed */
    bool claims;
    /* The tier is another than the one all below is about: it is forgotten
     * before anything else is done. See replaced.c. */
    bool outdated;
    bool ready; /* manifests and resets were read, not too long ago */
    /* It was not to be believed any more since the turn under way has begun:
     * what that has listed may be too old. */
    bool distrusted;
    char reason[160];
    ldr_map_t *map;
    ldr_volume_space_t *spaces;
    size_t space_count, space_capacity;
    /* Objects that were removed, or are bad: since gone_s, and those that were
     * before. Each is known for LDR_GONE_S at least. */
    ldr_ids_t gone, gone_old;
    uint32_t gone_s;

    /* Polling. */
    ldr_known_manifest_t *known;
    size_t known_count, known_capacity;
    ldr_known_manifest_t
        *unread; /* read one by one by all readers of this turn */
    size_t unread_count, unread_capacity, unread_next;
    ldr_chore_t helpers[LDR_READERS - 1];
    unsigned readers; /* of this turn, that have not ended */
    int poll_error;
    bool poll_again; /* something went while it was read */
    ldr_ids_t early; /* uses of objects that this turn may still read of */
    unsigned rounds; /* before it was ready */
    unsigned lost;   /* spaces with a reset that is */
    uint64_t poll_began_ns;
    uint64_t polled_ns;  /* when the last whole turn began */
    uint64_t miss_at_ns; /* when resets that are not listed are looked for */

    /* Publishing. What is added goes to `pending`, then as it is to `sending`,
     * which is put until that succeeds. added and published count what must
     * not be forgotten: a writer, or whoever waits, compares. */
    ldr_manifest_t pending, sending;
    uint64_t sequence, sending_sequence;
    uint64_t added, sending_added, published;
    uint64_t pending_since_ns;
    uint32_t pending_objects, sending_objects;
    bool urgent;
    bool sealed;                   /* `sending` is; the chore's own */
    uint8_t (*uses)[LDR_ID_BYTES]; /* objects whose `use_waits` is set */
    size_t use_count, use_capacity;
    uint64_t uses_at_ns;

    ldr_cleaner_t cleaner;
};

/* Removing the data of tenants that no node has open: see clean_idle.c. All
 * volumes of a node share it. `busy` and at_ns change with the tier's lock; the
 * rest belongs to the chore that has set `busy`. */
typedef struct ldr_idle {
    bool busy;
    uint64_t at_ns;   /* of the next piece */
    uint64_t role_ns; /* when the role is to be taken or renewed */
    bool mine;        /* the role was this node's when it was renewed last */
    /* Contents of files sizes/T, since when they were seen: by the tenant's id
     * and WHEN. */
    ldr_ids_t seen;
    char after[LDR_OBJECT_NAME_MAX + 1]; /* the file looked at last; "": none */
    /* The tenant whose data is being removed; "": none. */
    char hex[2 * LDR_ID_BYTES + 1];
    bool manifests;                   /* its objects are gone */
    char at[LDR_OBJECT_NAME_MAX + 1]; /* the name looked at last; "": none */
    uint64_t removed;                 /* objects */
} ldr_idle_t;

/* The caller's log, for all that the tier, its workers and its back end have to
 * say: calls that hang when the tier is closed may come back when the log is
 * no more, and say nothing then. */
typedef struct ldr_objects_log {
    ldr_log_t to;
    pthread_mutex_t lock;
    pthread_cond_t quiet; /* nobody is using it */
    unsigned users;
    bool closed;
} ldr_objects_log_t;

struct ldr_objects {
    ldr_objects_params_t params; /* fixed, as these; log: to ours */
    ldr_objects_log_t log;
    ldr_workers_t *workers;
    uint8_t node[LDR_NODE_BYTES];
    uint64_t node_number; /* the same, as it is written in hex */
    uint64_t timeout_ns, retry_ns, poll_ns, publish_ns;
    char kind[12];

    pthread_mutex_t lock;
    /* The tier's id, as it was seen last, and how often it was another. */
    uint8_t id[LDR_OBJECTS_ID_MAX];
    size_t id_bytes;
    bool has_id;
    uint32_t replaced;
    pthread_cond_t changed; /* what somebody may wait for has happened */
    pthread_cond_t wheel;   /* the clockwork has something to do, or to end */
    ldr_rand_t rand;
    ldr_volume_t **volumes;
    size_t volume_count, volume_capacity;
    ldr_objects_state_t state; /* the workers'; read without the lock */
    bool looked;               /* at the medium, once */
    bool closing, stopping;
    bool woken;      /* the clockwork is to look once more */
    bool compacting; /* some volume is: it takes memory */
    ldr_idle_t idle;
    /* Workers that seal what they are to write, and those that wait for their
     * turn: see objects_write.c. */
    unsigned cpus, sealing, to_seal;
    pthread_cond_t sealed;
    ldr_objects_stats_t n;
    uint64_t turns; /* of the clockwork */
    pthread_t clockwork;
    bool has_clockwork;
    ldr_objects_t *left; /* behind: see ldr_objects_close() */
};

/* ---- objects.c ---- */

/* Whether the invariants hold: looks at all volumes, and with maps at all that
 * they hold. With the lock. */
bool ldr_objects_check(const ldr_objects_t *t, bool maps);
/* Adds the chores that are due. True: some were. */
bool ldr_objects_turn(ldr_objects_t *t);
/* Has the clockwork look now. With the lock. */
void ldr_objects_wake(ldr_objects_t *t);
/* An id for an object: random after as many zero bits as it is old, and a one.
 * The age is how often its records were rewritten. Of two copies of a shard
 * the map keeps that with the lower id: the one that was made of others, so
 * that whoever hears in whatever order that those are gone finds it. Takes the
 * lock. */
void ldr_objects_new_id(ldr_objects_t *t, unsigned age,
                        uint8_t id[LDR_ID_BYTES]);
unsigned ldr_id_age(const uint8_t id[LDR_ID_BYTES]);
/* With the lock, which is given up meanwhile: until is(arg), or false. */
bool ldr_objects_wait(ldr_objects_t *t, bool (*is)(const void *arg),
                      const void *arg, uint64_t deadline_ns);

/* ---- objects_volumes.c ---- */

ldr_volume_t *ldr_objects_volume(ldr_objects_t *t,
                                 uint32_t tenant); /* NULL: none */
void ldr_volume_destroy(ldr_volume_t *p);
/* With the lock. The space's note, made if it is new; NULL: no memory. */
ldr_volume_space_t *ldr_volume_space(ldr_volume_t *p,
                                     const uint8_t id[LDR_ID_BYTES],
                                     uint32_t *number_p);

/* ---- replaced.c ---- */

/* Which tier it is, in a probe of storage that makes itself one: if another
 * than before, all that is known is forgotten. */
int ldr_objects_recognize(ldr_objects_t *t, ldr_backend_t *b,
                          uint64_t deadline_ns);
/* Whether the volume may be begun again: no chore of it is under way but,
 * maybe, CHECK. With the lock. */
bool ldr_volume_idle(const ldr_volume_t *p);
/* Forgets what is known of the tier that was there. By CHECK, while the volume
 * is idle; takes the lock. False: no memory. */
bool ldr_volume_forget(ldr_volume_t *p);

/* ---- objects_calls.c: names and calls of the back end from chores ---- */

/* tenant: its id in hex. */
void ldr_name_object(const char *tenant, const uint8_t id[LDR_ID_BYTES],
                     char name[LDR_OBJECT_NAME_MAX + 1]);
void ldr_name_manifest(const char *tenant, const ldr_known_manifest_t *k,
                       char name[LDR_OBJECT_NAME_MAX + 1]);
void ldr_name_epoch(const ldr_volume_t *p, const uint8_t space[LDR_ID_BYTES],
                    uint32_t epoch, char name[LDR_OBJECT_NAME_MAX + 1]);
void ldr_name_of(const char *tenant, const char *rest,
                 char name[LDR_OBJECT_NAME_MAX + 1]);

/* The tier of a chore's job. */
static inline ldr_objects_t *ldr_tier_of(const ldr_job_t *job)
{
    return ((const ldr_chore_t *)job->arg)->volume->tier;
}

/* job: a chore's, from its work(). Each call has timeout_ms, whatever the job
 * had; a listing as often as it takes. */
int ldr_call_get(ldr_job_t *job, const char *name, uint64_t offset, void *data,
                 size_t bytes);
int ldr_call_put(ldr_job_t *job, const char *name, const void *data,
                 size_t bytes, unsigned flags);
/* 0 too if there is none. */
int ldr_call_remove(ldr_job_t *job, const char *name);
int ldr_call_size(ldr_job_t *job, const char *name, uint64_t *bytes_p);
int ldr_call_exists(ldr_job_t *job, const char *name);
int ldr_call_list(ldr_job_t *job, const char *prefix, const char *after,
                  int (*fn)(void *arg, const char *name, uint64_t bytes),
                  void *arg);
/* All of a small object (at most room bytes). */
int ldr_call_get_all(ldr_job_t *job, const char *name, uint8_t *data,
                     size_t size, size_t *bytes_p);
/* An object that is two numbers, "FIRST SECOND\n" in hex: 64 and 32 bits.
 * -EBADMSG: it is something else. */
int ldr_call_get_pair(ldr_job_t *job, const char *name, uint64_t *first_p,
                      uint64_t *second_p);
int ldr_call_put_pair(ldr_job_t *job, const char *name, uint64_t first,
                      uint32_t second, unsigned flags);
/* The tail of an object: what it is, and its records (room for
 * LDR_OBJECT_ROWS_MAX). -EBADMSG: not under this key, or none. */
int ldr_call_tail(ldr_volume_t *p, ldr_job_t *job, ldr_object_t *object,
                  ldr_record_t *records);

/* ---- the chores ---- */

int ldr_check_work(ldr_volume_t *p, ldr_job_t *job);
int ldr_reset_work(ldr_volume_t *p, ldr_job_t *job);
int ldr_poll_work(ldr_volume_t *p, ldr_job_t *job);
int ldr_publish_work(ldr_volume_t *p, ldr_job_t *job);
int ldr_clean_work(ldr_volume_t *p, ldr_job_t *job);

/* When there is something to do, or UINT64_MAX; with the lock. The chore's
 * at_ns is heeded besides. */
uint64_t ldr_reset_at(const ldr_volume_t *p);
uint64_t ldr_publish_at(const ldr_volume_t *p);
uint64_t ldr_clean_at(const ldr_volume_t *p);

/* One of the readers has ended; with the lock. */
void ldr_poll_ended(ldr_volume_t *p, int error);
/* Whether the last whole turn is too old: who knows what was reset since. With
 * the lock. */
bool ldr_poll_old(const ldr_volume_t *p, uint64_t now_ns);
/* What is known is not to be believed before another turn. With the lock. */
void ldr_poll_distrust(ldr_volume_t *p);

/* ---- reset.c ---- */

/* With the lock: the number of a space whose epoch is to be written, or
 * LDR_NIL. */
uint32_t ldr_reset_wanted(const ldr_volume_t *p);

typedef struct ldr_reset {
    uint8_t space[LDR_ID_BYTES];
    uint32_t epoch;
    uint32_t lost; /* what is listed and not there; 0: it is */
} ldr_reset_t;

typedef struct ldr_resets {
    ldr_reset_t *at; /* to be freed */
    size_t count, capacity;
    size_t skip; /* bytes of a name before SPACE */
} ldr_resets_t;

/* The resets that are listed, in the order of names. */
int ldr_reset_list(ldr_volume_t *p, ldr_job_t *job, ldr_resets_t *list);
/* Reads and checks one: -EBADMSG: not under this key. */
int ldr_reset_read(ldr_volume_t *p, ldr_job_t *job,
                   const uint8_t space[LDR_ID_BYTES], uint32_t epoch,
                   uint32_t *written_s_p);
/* The space has this epoch, if that is higher than what is known. Tells the
 * node. Takes the lock. False: no memory. */
bool ldr_volume_raise(ldr_volume_t *p, const uint8_t space[LDR_ID_BYTES],
                      uint32_t epoch);
/* Tells the node what it does not know yet. Takes the lock. */
void ldr_volume_notify(ldr_volume_t *p);

/* ---- poll.c ---- */

/* With the lock: since when the object is gone, or 0. */
uint32_t ldr_volume_gone_since(const ldr_volume_t *p,
                               const uint8_t id[LDR_ID_BYTES]);

/* With the lock: there is such a manifest, all of which is known. */
void ldr_volume_know(ldr_volume_t *p, const ldr_known_manifest_t *k);
void ldr_volume_unknow(ldr_volume_t *p, const ldr_known_manifest_t *k);
/* All of a tenant's manifest, to be freed. */
int ldr_manifest_get(ldr_job_t *job, const char *tenant,
                     const ldr_known_manifest_t *k, uint8_t **data_p,
                     size_t *bytes_p);

/* ---- publish.c ---- */

/* With the lock: to be published. False: no memory, or too much waits. */
bool ldr_volume_publish(ldr_volume_t *p, const ldr_manifest_entry_t *e,
                        bool urgent);
/* With the lock: an object is new; in the map, and for all to hear. False: no
 * memory, and it is in neither: one that only we know helps nobody. */
bool ldr_volume_add(ldr_volume_t *p, const ldr_manifest_entry_t *e,
                    bool urgent);
/* With the lock: an object was used then, for all to hear. */
void ldr_volume_used(ldr_volume_t *p, const uint8_t id[LDR_ID_BYTES],
                     uint32_t used_s);
/* With the lock: an object is no more; from the map, and for all to hear.
 * False: no memory to say so. */
bool ldr_volume_gone(ldr_volume_t *p, const uint8_t id[LDR_ID_BYTES]);

/* ---- objects_write.c ---- */

void ldr_rows_of(const ldr_record_t *records, uint32_t count,
                 ldr_manifest_row_t *rows);

/* ---- clean*.c ---- */

typedef struct ldr_role_file {
    bool there, mine;
    bool others; /* another node has it, and it has not expired */
} ldr_role_file_t;

/* The file of a role. Junk in it holds none. */
int ldr_role_read(ldr_job_t *job, const char *name, ldr_role_file_t *l);
int ldr_role_write(ldr_job_t *job, const char *name, bool over,
                   uint32_t seconds);
/* Takes or renews the role. */
int ldr_role_work(ldr_volume_t *p, ldr_job_t *job);
/* Gives it up if it is held; at close. */
void ldr_role_end(ldr_volume_t *p, ldr_job_t *job);
/* Each does a bounded piece. */
int ldr_scan_work(ldr_volume_t *p, ldr_job_t *job);
int ldr_merge_work(ldr_volume_t *p, ldr_job_t *job);
int ldr_compact_work(ldr_volume_t *p, ldr_job_t *job);
int ldr_epochs_work(ldr_volume_t *p, ldr_job_t *job);
/* Writes sizes/T: the tenant is open. */
int ldr_figure_work(ldr_volume_t *p, ldr_job_t *job);
/* With the lock: bytes of a volume's objects, tables and footers too, about. */
uint64_t ldr_volume_held(const ldr_volume_t *p);

/* With the lock: when the next piece of ldr_idle_work() is due. */
uint64_t ldr_idle_at(const ldr_objects_t *t);
int ldr_idle_work(ldr_volume_t *p, ldr_job_t *job);
/* With the lock: the object was there in this cycle. */
void ldr_clean_mark(ldr_cleaner_t *c, uint32_t number);
/* With the lock: removes these once all have heard; at most LDR_VICTIMS. */
void ldr_clean_doom(ldr_volume_t *p, const uint8_t (*ids)[LDR_ID_BYTES],
                    uint32_t count);
