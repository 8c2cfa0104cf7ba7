/*
 * doctor: a directory of the SSD tier. Is it there, may it be written, what is
 * it on, has it room, how fast is it. The file that is written has no name,
 * or none any more before the first byte is in it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/doctor.h"

#define TEST_BYTES ((uint64_t)256 << 20)
#define TEST_NS ((uint64_t)1200000000)   /* of writing, and of reading */
#define PART_BYTES ((size_t)8 << 20)     /* of one call */
#define SLOW_BYTES ((uint64_t)300 << 20) /* a second; prefill is faster */

typedef struct disk {
    const ldr_doctor_t *d;
    char path[LDR_PATH_MAX]; /* the directory, or the nearest above it */
    bool missing;            /* the directory itself is not there */
    struct statfs fs;
    bool direct;
    uint64_t write_rate, read_rate; /* bytes a second */
} disk_t;

/* ---- what it is ---- */

/* The nearest directory above that is there. */
static bool find_path(disk_t *k)
{
    struct stat st;

    snprintf(k->path, sizeof(k->path), "%s", k->d->subject);
    while (stat(k->path, &st) != 0) {
        char *slash = strrchr(k->path, '/');

        if (errno != ENOENT) {
            return false;
        }
        k->missing = true;
        if (slash == NULL) {
            snprintf(k->path, sizeof(k->path), ".");
        } else {
            slash[slash == k->path ? 1 : 0] = '\0';
        }
    }
    if (!S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
        return false;
    }
    return true;
}

static const struct {
    long type;
    const char *name, *problem;
} systems[] = {
    {0x01021994, "tmpfs", "is memory: a restart keeps nothing"},
    {0x858458f6, "ramfs", "is memory: a restart keeps nothing"},
    {0x794c7630, "overlay",
     "is a container's own layer: slow, and gone with "
     "it"},
    {0x6969, "nfs",
     "is a network file system: others' speed, and locks that "
     "may hang"},
    {0xff534d42, "cifs", "is a network file system"},
    {0x65735546, "fuse", "is a file system in a process: slow"},
    {0xef53, "ext4", NULL},
    {0x58465342, "xfs", NULL},
    {0x9123683e, "btrfs", NULL},
    {0x2fc12fc1, "zfs", NULL},
    {0xf2f52010, "f2fs", NULL},
};

static const char *system_name(const disk_t *k, const char **problem_p)
{
    *problem_p = NULL;
    for (size_t i = 0; i < sizeof(systems) / sizeof(systems[0]); i++) {
        if (systems[i].type == (long)k->fs.f_type) {
            *problem_p = systems[i].problem;
            return systems[i].name;
        }
    }
    return "file system";
}

/* Bytes that Larder's files in it take already. */
static uint64_t own_bytes(const disk_t *k)
{
    DIR *dir = k->missing ? NULL : opendir(k->path);
    struct dirent *entry;
    uint64_t bytes = 0;
    struct stat st;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if ((strncmp(entry->d_name, "larder.", 7) == 0 ||
             strncmp(entry->d_name, "segment-", 8) == 0) &&
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
            bytes += (uint64_t)st.st_blocks * 512;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return bytes;
}

/* ---- how fast it is ---- */

/* A file without a name in the directory: nothing can be left behind. */
static int nameless(disk_t *k, int flags)
{
    char path[LDR_PATH_MAX + 32];
    int fd = open(k->path, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);

    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT &&
                    errno != EINVAL)) {
        return fd;
    }
    snprintf(path, sizeof(path), "%s/larder.doctor.%d", k->path, (int)getpid());
    fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | flags, 0600);
    int error = errno;
    if (fd >= 0 || error == EINVAL) {
        unlink(path); /* also where O_DIRECT was refused after making it */
    }
    errno = error;
    return fd;
}

static uint64_t now_ns(void)
{
    return ldr_now_ns(&ldr_clock_real);
}

/* Moves up to max bytes for a while. Gives them, or 0 after an error. */
static uint64_t file_move(int fd, uint8_t *part, uint64_t max, bool writing,
                          uint64_t *rate_p)
{
    uint64_t begin = now_ns(), done = 0;

    while (done < max && now_ns() - begin < TEST_NS) {
        size_t bytes = (size_t)ldr_min64(PART_BYTES, max - done);
        ssize_t n = writing ? pwrite(fd, part, bytes, (off_t)done)
                            : pread(fd, part, bytes, (off_t)done);
        if (n <= 0) {
            return 0;
        }
        done += (uint64_t)n;
        if (n % (ssize_t)LDR_BLOCK != 0) {
            break;
        }
    }
    if (writing && fdatasync(fd) != 0) {
        return 0;
    }
    *rate_p = done * 1000000000 / (now_ns() - begin + 1);
    return done;
}

/* 0, or the errno of what failed. */
static int disk_measure(disk_t *k)
{
    uint64_t free_bytes = k->fs.f_bavail * (uint64_t)k->fs.f_bsize;
    uint64_t max =
        ldr_min64(TEST_BYTES, free_bytes / 4) / LDR_BLOCK * LDR_BLOCK;
    uint8_t *part = ldr_alloc_blocks(PART_BYTES);
    ldr_rand_t random;
    int fd = nameless(k, O_DIRECT), error = 0;

    k->direct = fd >= 0;
    if (fd < 0 && errno == EINVAL) {
        fd = nameless(k, 0);
    }
    if (fd < 0 || part == NULL) {
        error = part == NULL ? ENOMEM : errno;
    } else if (max < LDR_BLOCK) {
        error = ENOSPC;
    } else {
        /* Some disks are fast with zeros. */
        ldr_rand_seed(&random, 1);
        for (size_t i = 0; i < PART_BYTES; i += 8) {
            ldr_put64(part + i, ldr_rand_next(&random));
        }
        max = file_move(fd, part, max, true, &k->write_rate);
        error = max == 0 ? errno : 0;
        if (error == 0 && !k->direct) {
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        }
        if (error == 0 && file_move(fd, part, max, false, &k->read_rate) == 0) {
            error = errno != 0 ? errno : EIO;
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    ldr_free(part);
    return error;
}

/* ---- what is said ---- */

/* False: there is not enough, and it was said. */
static bool room_ok(const disk_t *k)
{
    uint64_t room = k->fs.f_bavail * (uint64_t)k->fs.f_bsize + own_bytes(k);
    uint64_t ssd = k->d->config->options.ssd;
    char want[32], has[32], cure[64];

    if (ssd <= room) {
        return true;
    }
    ldr_human_bytes(ssd, want, sizeof(want));
    ldr_human_bytes(room, has, sizeof(has));
    snprintf(cure, sizeof(cure), "--ssd %lluM",
             (unsigned long long)(room / 10 * 9 >> 20));
    ldr_doctor_say(k->d, LDR_VERDICT_BAD, cure,
                   "%s: ssd is %s, and only %s are free", k->path, want, has);
    return false;
}

static void say_speed(const disk_t *k)
{
    const char *problem, *name = system_name(k, &problem);
    bool slow = ldr_min64(k->write_rate, k->read_rate) < SLOW_BYTES;
    ldr_doctor_verdict_t verdict = LDR_VERDICT_WARN;
    const char *cure = NULL;

    if (problem != NULL) {
        cure = "choose a directory on a local disk, like a mounted volume";
    } else if (!k->direct) {
        problem = "has no O_DIRECT: the page cache takes memory, too";
        cure = "choose a directory on ext4 or xfs";
    } else if (slow) {
        problem = "is slow: loading may take longer than computing";
        cure = "choose a directory on an NVMe disk";
    } else {
        verdict = LDR_VERDICT_OK;
    }
    ldr_doctor_t d = *k->d;
    d.writes = k->write_rate;
    d.reads = k->read_rate;
    ldr_doctor_say(&d, verdict, cure,
                   "%s: %s, writes %.2f GB/s, reads %.2f GB/s%s%s%s%s",
                   k->d->subject, name, (double)k->write_rate / 1e9,
                   (double)k->read_rate / 1e9, k->direct ? "" : " (cached)",
                   k->missing ? "; is made at start" : "",
                   problem != NULL ? "; " : "", problem != NULL ? problem : "");
}

void ldr_doctor_disk(const ldr_doctor_t *d)
{
    disk_t k = {.d = d};
    int error;

    if (d->subject == NULL) {
        ldr_doctor_say(d, LDR_VERDICT_SKIP,
                       "larder doctor DIR looks at a directory",
                       "no directory is configured: DRAM only");
        return;
    }
    if (!find_path(&k) || statfs(k.path, &k.fs) != 0) {
        ldr_doctor_say(d, LDR_VERDICT_BAD, "choose another --dir", "%s: %s",
                       d->subject, strerror(errno));
        return;
    }
    error = disk_measure(&k);
    if (error != 0) {
        ldr_doctor_say(d, LDR_VERDICT_BAD, "choose another --dir",
                       "%s: cannot be written: %s", k.path, strerror(error));
    } else if (room_ok(&k)) {
        say_speed(&k);
    }
}
