/*
 * What simdisk.c (power, faults, damage) and simdisk_io.c (the seam) share.
 *
 * File numbers are never used twice, so a number kept too long gives -EBADF
 * and never another file.
 */
#pragma once

#include "base/io_posix.h"
#include "sim/simdisk.h"
#include "sim/simtree.h"

typedef struct simhandle {
    int number;
    int flags;
    simfile_t *file;
} simhandle_t;

typedef struct simrule {
    uint64_t first, end, passes, fired; /* first == 0: not armed */
    int error;
    const char *path; /* NULL, or: all calls on this file give path_error */
    int path_error;
} simrule_t;

/* The operation under way. */
typedef struct simop {
    simdisk_kind_t kind;
    simfile_t *file;
    const ldr_io_req_t *req;
    const char *path;
    uint64_t bytes;
} simop_t;

struct simdisk {
    ldr_io_t io; /* first: the seam's pointer is the disk's */
    simmedium_t medium;
    uint64_t capacity;
    simtree_t tree;
    simhandle_t *handles;
    size_t handle_count;
    int next_number;
    ldr_io_list_t queue;
    bool draining;
    bool off;
    uint64_t op_count;
    uint64_t cut_at;
    const simop_t *op;
    void (*on_op)(void *arg, simdisk_t *disk);
    void *on_op_arg;
    simrule_t rules[SIMDISK_KINDS];
};

/* The table of the seam. */
extern const ldr_io_ops_t simdisk_io_ops;

/* Every operation passes here before it takes effect. False: the power went
 * in the middle of it. */
bool simdisk_op_begin(simdisk_t *disk, const simop_t *op);
/* 0, or the error armed for this call of the kind. */
int simdisk_fails(simdisk_t *disk, simdisk_kind_t kind);
/* The same, of a call on a file. */
int simdisk_file_fails(simdisk_t *disk, simdisk_kind_t kind,
                       const simfile_t *file);

/* How much of a write arrives. */
typedef enum simtear {
    SIMTEAR_NONE,
    SIMTEAR_PREFIX,
    SIMTEAR_SOME,
    SIMTEAR_ALL
} simtear_t;

/* Any of them. */
simtear_t simtear_draw(simdisk_t *disk);
/* Writes a request's bytes at offset, or a drawn part of its sectors. */
void simdisk_put(simdisk_t *disk, simfile_t *file, uint64_t offset,
                 const ldr_io_req_t *req, simtear_t tear);
void simdisk_close_all(simdisk_t *disk);
