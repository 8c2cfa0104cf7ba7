#include "sim/simtree.h"

#include <stdlib.h>
#include <string.h>

static simfile_t *file_new(simtree_t *tree)
{
    simfile_t *file = simfile_new();

    file->next = tree->files;
    tree->files = file;
    return file;
}

void simtree_put(simtree_t *tree, simfile_t *file)
{
    simfile_t **link = &tree->files;

    if (file == NULL || --file->refs > 0) {
        return;
    }
    while (*link != file) {
        link = &(*link)->next;
    }
    *link = file->next;
    simfile_free(file);
}

/* Without double and trailing slashes. NULL: too long. */
const char *simtree_normal(const char *path, char *buffer)
{
    size_t length = 0;

    for (; *path != '\0'; path++) {
        if (*path == '/' && length > 0 && buffer[length - 1] == '/') {
            continue;
        }
        if (length + 1 >= SIM_PATH_BYTES) {
            return NULL;
        }
        buffer[length++] = *path;
    }
    if (length > 1 && buffer[length - 1] == '/') {
        length--;
    }
    buffer[length] = '\0';
    return buffer;
}

/* Length of the directory's part of a path, without the slash. */
size_t simtree_parent_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? 0 : (size_t)(slash - path);
}

bool simtree_is_in(const char *path, const char *dir)
{
    size_t length = simtree_parent_length(path);

    if (strcmp(dir, ".") == 0 || strcmp(dir, "/") == 0) {
        return length == 0 && (strchr(path, '/') != NULL) == (dir[0] == '/');
    }
    return strlen(dir) == length && memcmp(path, dir, length) == 0;
}

bool simtree_has_dir(const simtree_t *tree, const char *path, size_t length)
{
    if (length == 0 || (length == 1 && (*path == '.' || *path == '/'))) {
        return true;
    }
    for (size_t i = 0; i < tree->dir_count; i++) {
        if (strlen(tree->dirs[i]) == length &&
            memcmp(tree->dirs[i], path, length) == 0) {
            return true;
        }
    }
    return false;
}

static char *copy_text(const char *text, size_t length)
{
    char *copy = simgrown(NULL, length + 1);

    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

void simtree_add_dir(simtree_t *tree, const char *path, size_t length)
{
    tree->dirs =
        simgrown(tree->dirs, (tree->dir_count + 1) * sizeof(tree->dirs[0]));
    tree->dirs[tree->dir_count++] = copy_text(path, length);
}

void simtree_make_dirs(simtree_t *tree, const char *path)
{
    for (size_t i = 1; i <= strlen(path); i++) {
        if ((path[i] == '/' || path[i] == '\0') &&
            !simtree_has_dir(tree, path, i)) {
            simtree_add_dir(tree, path, i);
        }
    }
}

simentry_t *simtree_entry(const simtree_t *tree, const char *path)
{
    for (size_t i = 0; i < tree->entry_count; i++) {
        if (strcmp(tree->entries[i].path, path) == 0) {
            return &tree->entries[i];
        }
    }
    return NULL;
}

simfile_t *simtree_file(const simtree_t *tree, const char *path)
{
    char buffer[SIM_PATH_BYTES];
    simentry_t *entry;

    path = simtree_normal(path, buffer);
    entry = path != NULL ? simtree_entry(tree, path) : NULL;
    return entry != NULL ? entry->now : NULL;
}

simentry_t *simtree_add_entry(simtree_t *tree, const char *path)
{
    tree->entries = simgrown(tree->entries, (tree->entry_count + 1) *
                                                sizeof(tree->entries[0]));
    simentry_t *entry = &tree->entries[tree->entry_count++];
    *entry = (simentry_t){copy_text(path, strlen(path)), NULL, NULL};
    return entry;
}

void simentry_mean(simtree_t *tree, simentry_t *entry, simfile_t *file)
{
    simfile_t *old = entry->now;

    entry->now = file;
    if (file != NULL) {
        file->refs++;
        file->links++;
    }
    if (old != NULL) {
        old->links--;
        simtree_put(tree, old);
    }
}

void simentry_settle(simtree_t *tree, simentry_t *entry)
{
    simfile_t *old = entry->durable;

    entry->durable = entry->now;
    if (entry->now != NULL) {
        entry->now->refs++;
    }
    simtree_put(tree, old);
}

simfile_t *simtree_create(simtree_t *tree, const char *path)
{
    simentry_t *entry = simtree_entry(tree, path);

    if (entry == NULL) {
        entry = simtree_add_entry(tree, path);
    }
    simentry_mean(tree, entry, file_new(tree));
    return entry->now;
}

void simtree_clear(simtree_t *tree)
{
    for (size_t i = 0; i < tree->entry_count; i++) {
        simentry_mean(tree, &tree->entries[i], NULL);
        simentry_settle(tree, &tree->entries[i]);
        free(tree->entries[i].path);
    }
    for (size_t i = 0; i < tree->dir_count; i++) {
        free(tree->dirs[i]);
    }
    free(tree->entries);
    free(tree->dirs);
}

static simfile_t *twin_of(simfile_t *file)
{
    return file != NULL ? file->twin : NULL;
}

void simtree_clone(simtree_t *copy, const simtree_t *tree)
{
    simfile_t **end = &copy->files;

    for (simfile_t *file = tree->files; file != NULL; file = file->next) {
        file->twin = simfile_clone(file);
        *end = file->twin;
        end = &file->twin->next;
        file->twin->refs = 1; /* until its entries are known */
    }
    for (size_t i = 0; i < tree->dir_count; i++) {
        simtree_add_dir(copy, tree->dirs[i], strlen(tree->dirs[i]));
    }
    for (size_t i = 0; i < tree->entry_count; i++) {
        simentry_t *entry = simtree_add_entry(copy, tree->entries[i].path);
        simentry_mean(copy, entry, twin_of(tree->entries[i].durable));
        simentry_settle(copy, entry);
        simentry_mean(copy, entry, twin_of(tree->entries[i].now));
    }
    for (simfile_t *file = copy->files, *next; file != NULL; file = next) {
        next = file->next;
        simtree_put(copy, file); /* gone, if only a handle kept it */
    }
}
