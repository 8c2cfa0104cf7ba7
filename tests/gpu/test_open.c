/*
 * Opening a GPU: what is missing is said, and what was compiled is kept. Each
 * case in a process of its own, since the driver is loaded once.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "gpu/gpu_rig.h"

#define NOTHING "/nonexistent/library.so"

/* ---- processes ---- */

/* In a child, where a check that fails ends it. */
#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s; said: %s; last error: %s\n", __FILE__, \
                    __LINE__, #condition, rig_said, larder_last_error());      \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

static void in_child(void (*fn)(void))
{
    int status = -1;

    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static bool says(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

/* Opens it and closes it again; nothing is left. */
static larder_status_t open_once(void)
{
    standin_counts_t before, after;
    larder_gpu_t *gpu = NULL;

    si.standin_counts(&before);
    larder_status_t st = rig_gpu_open(&gpu);
    CHECK((st == LARDER_OK) == (gpu != NULL));
    larder_gpu_close(&gpu);
    CHECK(gpu == NULL);
    si.standin_counts(&after);
    const char *failed = si.standin_failed();
    CHECK(after.contexts == before.contexts);
    CHECK(after.errors == 0 && si.standin_depth() == 0);
    CHECK((after.modules == before.modules && after.device == before.device &&
           after.streams == before.streams && after.host == before.host &&
           after.events == before.events) ||
          (failed != NULL && says(failed, "CtxPush"))); /* when it closed */
    CHECK(si.standin_mode() == 0 ||
          (failed != NULL && says(failed, "CaptureMode")));
    CHECK(si.nvrtc_standin_programs() == 0);
    return st;
}

/* ---- the driver ---- */

static void no_driver(void)
{
    setenv("LARDER_CUDA", NOTHING, 1);
    CHECK(open_once() == LARDER_E_UNSUPPORTED);
    CHECK(says(larder_last_error(), "no CUDA driver"));
    CHECK(says(larder_last_error(), NOTHING));
    /* It may come later. */
    setenv("LARDER_CUDA", STANDIN_CUDA, 1);
    CHECK(open_once() == LARDER_OK);
}

static void no_symbol(void)
{
    setenv("LARDER_CUDA", STANDIN_NVRTC, 1);
    CHECK(open_once() == LARDER_E_UNSUPPORTED);
    CHECK(says(larder_last_error(), "has no cuInit"));
    CHECK(says(larder_last_error(), STANDIN_NVRTC));
}

static void no_init(void)
{
    si.standin_machine(100, 0, 0);
    CHECK(open_once() != LARDER_OK);
    CHECK(says(larder_last_error(), "cuInit"));
    CHECK(says(larder_last_error(), "CUDA_ERROR_NO_DEVICE"));
    si.standin_machine(0, 1, 8);
    CHECK(open_once() == LARDER_OK);
}

static void no_device(void)
{
    larder_gpu_params_t params = {.field_mask = LARDER_GPU_DEVICE, .device = 3};
    larder_gpu_t *gpu = NULL;

    si.standin_hollow(true);
    CHECK(larder_gpu_open(&params, &gpu) == LARDER_E_IO);
    CHECK(gpu == NULL);
    CHECK(says(larder_last_error(), "cuDeviceGet"));
    CHECK(says(larder_last_error(), "CUDA_ERROR_INVALID_DEVICE"));
    params.field_mask = 0; /* then it is not looked at */
    CHECK(larder_gpu_open(&params, &gpu) == LARDER_OK);
    larder_gpu_close(&gpu);
    si.standin_machine(0, 4, 1);
    params.field_mask = LARDER_GPU_DEVICE;
    CHECK(larder_gpu_open(&params, &gpu) == LARDER_OK);
    larder_gpu_close(&gpu);
    CHECK(open_once() == LARDER_OK);
}

static void arguments(void)
{
    larder_gpu_stats_t s = {.struct_bytes = sizeof(s)};
    larder_gpu_t *gpu = NULL;

    CHECK(larder_gpu_open(NULL, NULL) == LARDER_E_INVALID);
    larder_gpu_close(NULL);
    larder_gpu_close(&gpu);
    CHECK(larder_gpu_open(NULL, &gpu) == LARDER_OK);
    CHECK(larder_gpu_stats(gpu, NULL) == LARDER_E_INVALID);
    CHECK(larder_gpu_stats(NULL, &s) == LARDER_E_INVALID);
    CHECK(larder_gpu_stats(gpu, &s) == LARDER_OK);
    CHECK(s.failures == 0 && s.registered_bytes == 0);
    s = (larder_gpu_stats_t){.struct_bytes = 8, .failures = 7};
    CHECK(larder_gpu_stats(gpu, &s) == LARDER_OK);
    CHECK(s.struct_bytes == 8 && s.failures == 7);
    s.struct_bytes = 7;
    CHECK(larder_gpu_stats(gpu, &s) == LARDER_E_INVALID);
    larder_gpu_close(&gpu);
    CHECK(gpu == NULL);
}

/* A driver that has the call for many copies, and refuses it. */
static void no_batches(void)
{
    larder_gpu_t *gpu = NULL;

    si.standin_hollow(true);
    si.standin_refuse_batches(true);
    CHECK(larder_gpu_open(NULL, &gpu) == LARDER_OK);
    CHECK(!gpu->batch && gpu->kernel != NULL);
    larder_gpu_close(&gpu);
}

/* Every call of the driver fails once; without a compiler too. */
static void in_turn(void)
{
    uint64_t n = 1;

    si.nvrtc_standin_fail(NVRTC_COMPILE);
    do {
        si.standin_reset();
        si.standin_fail_at(n++, 2, STANDIN_ONCE);
        larder_status_t st = open_once();
        CHECK(st == LARDER_OK || larder_last_error()[0] != 0);
    } while (si.standin_failed() != NULL);
    si.nvrtc_standin_fail(NVRTC_NONE);
    n = 1;
    do {
        si.standin_reset(); /* the thread's capture mode too */
        si.standin_fail_at(n, 2, STANDIN_ONCE);
        n += 1 + n / 40;
        larder_status_t st = open_once();
        CHECK(st == LARDER_OK || larder_last_error()[0] != 0);
    } while (si.standin_failed() != NULL);
    CHECK(n > 10);
}

static void test_driver(void **state)
{
    (void)state;
    in_child(no_driver);
    in_child(no_symbol);
    in_child(no_init);
    in_child(no_device);
    in_child(no_batches);
    in_child(arguments);
    in_child(in_turn);
}

/* ---- the compiler ---- */

/* There is no kernel, and the log says why. */
static void check_plain(const char *why)
{
    CHECK(open_once() == LARDER_OK);
    CHECK(says(rig_said, "page by page"));
    CHECK(says(rig_said, why));
    CHECK(larder_last_error()[0] == 0);
}

static void no_compiler(void)
{
    setenv("LARDER_NVRTC", NOTHING, 1);
    check_plain("LARDER_NVRTC");
    CHECK(si.nvrtc_standin_compiled() == 0);
    setenv("LARDER_NVRTC", STANDIN_CUDA, 1);
    check_plain("libnvrtc has no nvrtcVersion");
}

static void cannot_compile(void)
{
    const int steps[] = {NVRTC_CREATE, NVRTC_COMPILE, NVRTC_SIZE, NVRTC_IMAGE};
    const char *const words[] = {"program", "this does not compile", "code",
                                 "kernel"};

    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        si.nvrtc_standin_fail(steps[i]);
        check_plain(words[i]);
    }
    si.nvrtc_standin_fail(NVRTC_NONE);
    CHECK(open_once() == LARDER_OK);
    CHECK(rig_said[0] == 0);
    CHECK(says(si.nvrtc_standin_options(), "--gpu-architecture=sm_90"));
}

/* The path that the engine gives, where the environment has none. */
static void named(void)
{
    larder_gpu_params_t params = {
        .field_mask = LARDER_GPU_NVRTC | LARDER_GPU_LOG,
        .nvrtc = STANDIN_NVRTC,
        .log = rig_log,
    };
    larder_gpu_t *gpu = NULL;

    unsetenv("LARDER_NVRTC");
    si.standin_hollow(true);
    CHECK(larder_gpu_open(&params, &gpu) == LARDER_OK);
    larder_gpu_close(&gpu);
    CHECK(si.nvrtc_standin_compiled() == 1);
    CHECK(rig_said[0] == 0);
}

static void test_compiler(void **state)
{
    (void)state;
    in_child(no_compiler);
    in_child(cannot_compile);
    in_child(named);
}

/* ---- what was compiled before ---- */

static char cache[200];

/* Opens it; whether it was compiled. */
static bool compiles(void)
{
    int before = si.nvrtc_standin_compiled();

    CHECK(open_once() == LARDER_OK);
    CHECK(rig_said[0] == 0); /* there is a kernel */
    return si.nvrtc_standin_compiled() > before;
}

/* The one file of the cache; how many there are. */
static int find_file(const char *dir, char path[600])
{
    struct dirent *entry;
    DIR *d = opendir(dir);
    int n = 0;

    while (d != NULL && (entry = readdir(d)) != NULL) {
        if (entry->d_name[0] != '.') {
            snprintf(path, 600, "%s/%.200s", dir, entry->d_name);
            n++;
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

static void keeps(void)
{
    char dir[300], path[600];
    struct stat st;

    setenv("XDG_CACHE_HOME", cache, 1);
    snprintf(dir, sizeof(dir), "%s/larder", cache);
    CHECK(compiles());
    CHECK(find_file(dir, path) == 1);
    CHECK(stat(path, &st) == 0 && (st.st_mode & 077) == 0);
    CHECK(stat(dir, &st) == 0 && (st.st_mode & 077) == 0);
    CHECK(!compiles());
    CHECK(!compiles());
    si.nvrtc_standin_version(13, 1); /* other code may come of it */
    CHECK(compiles());
    CHECK(find_file(dir, path) == 2);
    CHECK(!compiles());
    si.nvrtc_standin_version(12, 9);
    CHECK(!compiles());
    /* With what is kept, it need not be able to. */
    si.nvrtc_standin_fail(NVRTC_COMPILE);
    CHECK(!compiles());
}

static void write_file(const char *path, const uint8_t *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_TRUNC);

    CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
}

static void damaged(void)
{
    char dir[300], path[600];
    uint8_t data[400];

    setenv("XDG_CACHE_HOME", cache, 1);
    snprintf(dir, sizeof(dir), "%s/larder", cache);
    CHECK(compiles());
    CHECK(find_file(dir, path) == 1);
    int fd = open(path, O_RDONLY);
    ssize_t bytes = read(fd, data, sizeof(data));
    close(fd);
    CHECK(bytes > 32 && bytes < (ssize_t)sizeof(data));
    for (ssize_t i = 0; i < bytes; i += 7) {
        data[i] ^= 1;
        write_file(path, data, (size_t)bytes);
        data[i] ^= 1;
        CHECK(compiles());
        CHECK(!compiles()); /* it is whole again */
    }
    for (ssize_t n = 0; n < bytes; n += 9) {
        write_file(path, data, (size_t)n);
        CHECK(compiles());
    }
    CHECK(find_file(dir, path) == 1); /* nothing else is left there */
}

static void of_others(void)
{
    char dir[300], path[600], other[700];
    const mode_t modes[] = {0666, 0660, 0602, 0620};

    setenv("XDG_CACHE_HOME", cache, 1);
    snprintf(dir, sizeof(dir), "%s/larder", cache);
    CHECK(compiles());
    CHECK(find_file(dir, path) == 1);
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        CHECK(chmod(path, modes[i]) == 0);
        CHECK(compiles());
        CHECK(!compiles()); /* by a file of its own */
    }
    if (geteuid() == 0) {
        CHECK(chown(path, 12345, (gid_t)-1) == 0);
        CHECK(compiles());
        CHECK(!compiles());
    }
    snprintf(other, sizeof(other), "%s.other", path); /* a link is not it */
    CHECK(rename(path, other) == 0 && symlink(other, path) == 0);
    CHECK(compiles());
    CHECK(!compiles());
}

/* Without a place to keep it in, it is compiled every time. */
static void no_place(void)
{
    char path[300];

    CHECK(compiles() && compiles());
    setenv("XDG_CACHE_HOME", "here", 1); /* not from / on */
    CHECK(compiles() && compiles());
    setenv("XDG_CACHE_HOME", "/nonexistent/cache", 1);
    CHECK(compiles() && compiles());
    char *long_path = calloc(1, 5000);
    memset(long_path, '/', 4999);
    setenv("XDG_CACHE_HOME", long_path, 1);
    CHECK(compiles() && compiles());
    free(long_path);
    snprintf(path, sizeof(path), "%s/larder", cache);
    int fd = open(path, O_CREAT | O_WRONLY, 0600); /* a file is in the way */
    close(fd);
    setenv("XDG_CACHE_HOME", cache, 1);
    CHECK(compiles() && compiles());
    unlink(path);
    unsetenv("XDG_CACHE_HOME"); /* at home, then */
    setenv("HOME", cache, 1);
    CHECK(compiles() && !compiles());
    snprintf(path, sizeof(path), "%s/.cache/larder", cache);
    CHECK(access(path, F_OK) == 0);
}

static void in_cache(void (*fn)(void))
{
    char path[300];

    assert_true(real_dir_make(cache, sizeof(cache), "gpu-cache"));
    in_child(fn);
    const char *const dirs[] = {"/larder", "/.cache/larder", "/.cache"};
    for (size_t i = 0; i < COUNT_OF(dirs); i++) {
        snprintf(path, sizeof(path), "%s%s", cache, dirs[i]);
        real_dir_remove(path);
    }
    assert_int_equal(rmdir(cache), 0);
}

static void test_cache(void **state)
{
    (void)state;
    in_cache(keeps);
    in_cache(damaged);
    in_cache(of_others);
    in_cache(no_place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_driver),
        cmocka_unit_test(test_compiler),
        cmocka_unit_test(test_cache),
    };

    rig_load();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
