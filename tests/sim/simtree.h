/*
 * The names of the simulated disk: directories, and entries that mean files.
 *
 * An entry has the file its name means now and the one it durably means. A
 * file lives as long as an entry or a handle refers to it. An entry that means
 * nothing, now and durably, may stay in the table.
 */
#pragma once

#include "sim/simfile.h"

#define SIM_PATH_BYTES 1024u

typedef struct simentry {
    char *path;
    simfile_t *now, *durable;
} simentry_t;

typedef struct simtree {
    simfile_t *files;
    simentry_t *entries;
    size_t entry_count;
    char **dirs;
    size_t dir_count;
} simtree_t;

/* Without double and trailing slashes, in buffer. NULL: too long. */
const char *simtree_normal(const char *path, char *buffer);
/* Length of the directory's part of a path, without the slash. */
size_t simtree_parent_length(const char *path);
bool simtree_is_in(const char *path, const char *dir);

bool simtree_has_dir(const simtree_t *tree, const char *path, size_t length);
void simtree_add_dir(simtree_t *tree, const char *path, size_t length);
void simtree_make_dirs(simtree_t *tree, const char *path);

simentry_t *simtree_entry(const simtree_t *tree, const char *path);
simentry_t *simtree_add_entry(simtree_t *tree, const char *path);
/* What the path means now, or NULL. The only one that takes any spelling. */
simfile_t *simtree_file(const simtree_t *tree, const char *path);
/* An empty file under that name. */
simfile_t *simtree_create(simtree_t *tree, const char *path);
void simentry_mean(simtree_t *tree, simentry_t *entry, simfile_t *file);
void simentry_settle(simtree_t *tree, simentry_t *entry); /* durable */

/* Drops a reference; the last one frees the file. */
void simtree_put(simtree_t *tree, simfile_t *file);

void simtree_clear(simtree_t *tree);
/* Into an empty one. Sets the twin of each file that has a name. */
void simtree_clone(simtree_t *copy, const simtree_t *tree);
