/* The files of live processes as a reader finds them: of living and dead processes, of other
 * versions, of other people, cut, mutated, and changing while they are read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "seed.h"
#include "top/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char runtime[64]; /* $XDG_RUNTIME_DIR of the test */
static char folder[80];

static int make_folder(void **state)
{
    (void)state;
    strcpy(runtime, "/tmp/ats-test-top-XXXXXX");
    if (mkdtemp(runtime) == NULL) {
        return -1;
    }
    snprintf(folder, sizeof(folder), "%s/ats", runtime);
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    setenv("TMPDIR", runtime, 1);
    setenv("ATS_LIVE", folder, 1); /* and not what other programs publish meanwhile */
    return mkdir(folder, S_IRWXU);
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", runtime);
    return system(command); /* NOLINT(bugprone-command-processor): a name of our own */
}

static struct ats_live_file valid_file(uint32_t n_devices)
{
    struct ats_live_file file;
    memset(&file, 0, sizeof(file));
    file.header = (struct ats_live_file_header){
        .version = ATS_LIVE_VERSION,
        .header_bytes = sizeof(file.header),
        .device_bytes = sizeof(file.devices[0]),
        .n_devices = n_devices,
        .pid = 77,
        .started_s = 1000,
        .program = "llama-server",
    };
    memcpy(file.header.magic, ATS_LIVE_MAGIC, sizeof(file.header.magic));
    for (uint32_t d = 0; d < n_devices; d++) {
        snprintf(file.devices[d].name, ATS_LIVE_NAME, "ATS%u", d);
        strcpy(file.devices[d].accelerator, "EMU");
        file.devices[d].sequence = 2;
        for (int i = 0; i < ATS_LIVE_FIGURES; i++) {
            file.devices[d].figures[i] = UINT64_C(1000) * d + (uint64_t)i;
        }
    }
    return file;
}

static void put_file(const char *name, const void *bytes, size_t n)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, S_IRUSR | S_IWUSR);
    assert_true(file >= 0);
    assert_int_equal(write(file, bytes, n), n);
    close(file);
}

static bool is_there(const char *name)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void remove_from_folder(const char *name)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(unlink(path), 0);
}

/* A child that holds the lock of a file until it is told to end. */
static pid_t hold(const char *name)
{
    char path[200];
    int ready[2];
    char byte;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        const int file = open(path, O_RDWR);
        const bool ok = file >= 0 && fcntl(file, F_SETLK, &whole) == 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* should the test end early */
        if (write(ready[1], ok ? "y" : "n", 1) == 1) {
            pause();
        }
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void end(pid_t child)
{
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static struct ats_live_list scan(void)
{
    struct ats_live_list list;
    assert_true(ats_live_scan(&list));
    return list;
}

static void test_living_and_dead(void **state)
{
    (void)state;
    const struct ats_live_file file = valid_file(2);
    put_file("1-alive.live", &file, ats_live_file_bytes(2));
    put_file("2-dead.live", &file, ats_live_file_bytes(2));
    put_file("3-other.txt", &file, ats_live_file_bytes(2));
    put_file("4-made.new", &file, 10);
    const pid_t child = hold("1-alive.live");
    struct ats_live_list list = scan();
    assert_int_equal(list.n, 1);
    assert_int_equal(list.n_other, 0);
    assert_int_equal(list.processes[0].pid, child); /* who has the lock, not who says so */
    assert_string_equal(list.processes[0].program, "llama-server");
    assert_string_equal(list.processes[0].file, "1-alive.live");
    assert_int_equal(list.processes[0].n_devices, 2);
    assert_string_equal(list.processes[0].devices[1].name, "ATS1");
    assert_int_equal(list.processes[0].devices[1].figures[ATS_LIVE_REPLANS],
                     1000 + ATS_LIVE_REPLANS);
    ats_live_list_free(&list);
    assert_true(is_there("1-alive.live"));
    assert_false(is_there("2-dead.live"));
    remove_from_folder("3-other.txt");
    remove_from_folder("4-made.new"); /* it was too young to be cleared away */

    end(child);
    list = scan();
    assert_int_equal(list.n, 0);
    assert_false(is_there("1-alive.live"));
}

/* A file that its process never named. */
static void test_old_unborn(void **state)
{
    (void)state;
    const struct timespec old[2] = {{.tv_sec = time(NULL) - 100}, {.tv_sec = time(NULL) - 100}};
    char path[200];
    put_file("5-x.new", "", 0);
    snprintf(path, sizeof(path), "%s/5-x.new", folder);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    struct ats_live_list list = scan();
    assert_int_equal(list.n, 0);
    assert_false(is_there("5-x.new"));
}

/* Processes in the order of their numbers, each once, although two of the places are one. */
static void test_order(void **state)
{
    (void)state;
    const struct ats_live_file file = valid_file(1);
    char place[200];
    put_file("8-a.live", &file, ats_live_file_bytes(1));
    put_file("8-b.live", &file, ats_live_file_bytes(1));
    const pid_t second = hold("8-a.live");
    const pid_t first = hold("8-b.live");
    /* $TMPDIR/ats-UID leads to $XDG_RUNTIME_DIR/ats by another name of their parent */
    snprintf(place, sizeof(place), "%s/ats-%u", runtime, (unsigned)geteuid());
    assert_int_equal(rename(folder, place), 0);
    char outer[200];
    snprintf(outer, sizeof(outer), "%s/../%s", runtime, strrchr(runtime, '/') + 1);
    setenv("TMPDIR", outer, 1);
    unsetenv("ATS_LIVE");
    struct ats_live_list list = scan();
    size_t n = 0;
    for (size_t i = 0; i < list.n; i++) { /* others may be there */
        assert_true(i == 0 || list.processes[i - 1].pid < list.processes[i].pid);
        n += list.processes[i].pid == first || list.processes[i].pid == second;
    }
    assert_int_equal(n, 2);
    ats_live_list_free(&list);
    setenv("ATS_LIVE", folder, 1);
    assert_int_equal(rename(place, folder), 0);
    setenv("TMPDIR", runtime, 1);
    end(first);
    end(second);
}

/* What a living process may have there, but no figures of this version. */
static void test_not_figures(void **state)
{
    (void)state;
    const struct ats_live_file good = valid_file(2);
    struct {
        const char *what;
        struct ats_live_file file;
        size_t n;
        const char *error;
    } cases[] = {
        {"empty", good, 0, "too few"},
        {"half a header", good, sizeof(good.header) / 2, "too few"},
        {"a header alone", good, sizeof(good.header), "sizes"},
        {"cut by a byte", good, ats_live_file_bytes(2) - 1, "sizes"},
        {"a byte too long", good, ats_live_file_bytes(2) + 1, "sizes"},
        {"fewer devices than there are", good, ats_live_file_bytes(2), "sizes"},
        {"no device", good, ats_live_file_bytes(0), "sizes"},
        {"too many devices", good, sizeof(good), "sizes"},
        {"other version", good, ats_live_file_bytes(2), "version 2 "},
        {"other magic", good, ats_live_file_bytes(2), "not figures"},
        {"other header", good, ats_live_file_bytes(2), "sizes"},
        {"other devices", good, ats_live_file_bytes(2), "sizes"},
        {"no process", good, ats_live_file_bytes(2), "sizes"},
    };
    cases[5].file.header.n_devices = 1;
    cases[6].file.header.n_devices = 0;
    cases[7].file.header.n_devices = ATS_LIVE_DEVICES + 1;
    cases[8].file.header.version = ATS_LIVE_VERSION + 1;
    cases[9].file.header.magic[7] = 'x';
    cases[10].file.header.header_bytes--;
    cases[11].file.header.device_bytes++;
    cases[12].file.header.pid = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ats_live_process process;
        struct ats_error err = {{0}};
        assert_false(ats_live_parse(&cases[i].file, cases[i].n, &process, &err));
        if (strstr(err.text, cases[i].error) == NULL) {
            fail_msg("%s: %s", cases[i].what, err.text);
        }
        put_file("6-x.live", &cases[i].file, cases[i].n);
        const pid_t child = hold("6-x.live");
        struct ats_live_list list = scan();
        assert_int_equal(list.n, 0);
        assert_int_equal(list.n_other, 1);
        assert_true(is_there("6-x.live")); /* its process lives */
        ats_live_list_free(&list);
        end(child);
    }
    assert_int_equal(scan().n, 0);
}

/* Nothing that a file has in its text reaches a terminal as a command. */
static void test_text_is_printable(void **state)
{
    (void)state;
    struct ats_live_file file = valid_file(1);
    memset(file.header.program, '\033', sizeof(file.header.program));
    memset(file.devices[0].name, 'n', sizeof(file.devices[0].name));
    file.devices[0].accelerator[0] = '\n';
    struct ats_live_process process;
    assert_true(ats_live_parse(&file, ats_live_file_bytes(1), &process, NULL));
    assert_int_equal(strlen(process.program), ATS_LIVE_PROGRAM - 1);
    assert_int_equal(strspn(process.program, "?"), ATS_LIVE_PROGRAM - 1);
    assert_int_equal(strlen(process.devices[0].name), ATS_LIVE_NAME - 1);
    assert_string_equal(process.devices[0].accelerator, "?MU");
}

static void test_mutations(void **state)
{
    (void)state;
    size_t accepted = 0;
    enum { ROUNDS = 20000 };
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct ats_rng rng = test_rng(round);
        /* of the exact size on the heap, so that a sanitizer sees each byte too far */
        const uint32_t n_devices = (uint32_t)test_between(&rng, 1, ATS_LIVE_DEVICES);
        const struct ats_live_file file = valid_file(n_devices);
        size_t n = ats_live_file_bytes(n_devices);
        n = test_chance(&rng, 20) ? (size_t)ats_rng_below(&rng, n + 1) : n;
        char *bytes = malloc(n > 0 ? n : 1);
        memcpy(bytes, &file, n);
        for (uint64_t i = ats_rng_below(&rng, 4); n > 0 && i > 0; i--) {
            const size_t range = test_chance(&rng, 50) && n > 40 ? 40 : n;
            bytes[ats_rng_below(&rng, range)] = (char)ats_rng_next(&rng);
        }
        struct ats_live_process p;
        struct ats_error err = {{0}};
        if (ats_live_parse(bytes, n, &p, &err)) {
            accepted++;
            assert_in_range(p.n_devices, 1, ATS_LIVE_DEVICES);
            assert_true(p.pid > 0);
            assert_non_null(memchr(p.program, '\0', sizeof(p.program)));
            for (uint32_t d = 0; d < p.n_devices; d++) {
                assert_non_null(memchr(p.devices[d].name, '\0', ATS_LIVE_NAME));
                assert_non_null(memchr(p.devices[d].accelerator, '\0', ATS_LIVE_ACCELERATOR));
            }
            (void)ats_live_is_settled(bytes, bytes, n);
        } else {
            assert_true(err.text[0] != '\0');
        }
        free(bytes);
    }
    assert_in_range(accepted, ROUNDS / 20, ROUNDS - ROUNDS / 20);
}

static void test_settled(void **state)
{
    (void)state;
    struct ats_live_file first = valid_file(3);
    struct ats_live_file second = first;
    const size_t n = ats_live_file_bytes(3);
    assert_true(ats_live_is_settled(&first, &second, n));
    second.devices[2].figures[ATS_LIVE_REPLAN_REASON]++;
    assert_false(ats_live_is_settled(&first, &second, n)); /* it was written meanwhile */
    second = first;
    second.devices[1].sequence = first.devices[1].sequence = 3;
    assert_false(ats_live_is_settled(&first, &second, n)); /* it is being written */
    second.devices[1].sequence = first.devices[1].sequence = 4;
    assert_true(ats_live_is_settled(&first, &second, n));
}

/* A writer that never rests: all figures are always of one pass. */
static void test_while_written(void **state)
{
    (void)state;
    struct ats_live_file file = valid_file(1);
    for (int i = 0; i < ATS_LIVE_FIGURES; i++) {
        file.devices[0].figures[i] = 0;
    }
    put_file("7-x.live", &file, ats_live_file_bytes(1));
    char path[200];
    snprintf(path, sizeof(path), "%s/7-x.live", folder);
    const int shared = open(path, O_RDWR);
    struct ats_live_file *live =
        mmap(NULL, ats_live_file_bytes(1), PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
    assert_true(live != MAP_FAILED);
    const pid_t holder = hold("7-x.live");
    const pid_t writer = fork();
    assert_true(writer >= 0);
    if (writer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* should the test end early */
        for (uint64_t pass = 1;; pass++) {
            struct ats_live_file_device *d = &live->devices[0];
            atomic_store(&d->sequence, 2 * pass + 1);
            for (int i = 0; i < ATS_LIVE_FIGURES; i++) {
                atomic_store(&d->figures[i], pass);
            }
            atomic_store(&d->sequence, 2 * pass + 2);
            /* a pass takes far longer than to write or to read of it */
            for (volatile int i = 0; i < 200000; i++) {
            }
        }
    }
    size_t n_changes = 0;
    size_t n_settled = 0;
    uint64_t latest = 0;
    for (int i = 0; i < 500 || (n_changes <= 10 && i < 5000); i++) {
        struct ats_live_list list = scan();
        assert_int_equal(list.n, 1);
        const uint64_t *figures = list.processes[0].devices[0].figures;
        /* a writer that was interrupted for too long is told, and is rare */
        n_settled += list.processes[0].settled;
        for (int f = 1; f < ATS_LIVE_FIGURES && list.processes[0].settled; f++) {
            assert_int_equal(figures[f], figures[0]);
        }
        n_changes += figures[0] != latest;
        latest = figures[0];
        ats_live_list_free(&list);
    }
    end(writer);
    end(holder);
    munmap(live, ats_live_file_bytes(1));
    close(shared);
    remove_from_folder("7-x.live");
    assert_true(n_changes > 10);
    assert_true(n_settled > 250); /* of 500 or more */
}

/* ---- the folder ---- */

static void test_made_privately(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct stat info;
    struct ats_error err = {{0}};
    for (int chosen = 0; chosen < 2; chosen++) { /* by $XDG_RUNTIME_DIR, by $ATS_LIVE */
        if (chosen == 0) {
            unsetenv("ATS_LIVE");
        } else {
            setenv("ATS_LIVE", folder, 1);
        }
        assert_int_equal(rmdir(folder), 0);
        assert_true(ats_live_folder(path, &err));
        assert_string_equal(path, folder);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0700);
        assert_true(ats_live_folder(path, &err)); /* it is there now */
    }
    /* the chosen one or none */
    setenv("ATS_LIVE", "/proc/none", 1);
    assert_false(ats_live_folder(path, &err));
    assert_non_null(strstr(err.text, "/proc/none"));
    setenv("ATS_LIVE", folder, 1);
}

/* Each place that cannot be used leaves the next one. */
static void test_other_places(void **state)
{
    (void)state;
    char path[PATH_MAX];
    char next[128];
    struct ats_error err = {{0}};
    snprintf(next, sizeof(next), "%s/ats-%u", runtime, (unsigned)geteuid());
    unsetenv("ATS_LIVE");
    /* others may write there */
    assert_int_equal(chmod(folder, 0777), 0);
    assert_true(ats_live_folder(path, &err));
    assert_string_equal(path, next);
    assert_int_equal(chmod(folder, 0700), 0);
    /* a link to somewhere, a file, a variable that is no path */
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(symlink(next, folder), 0);
    assert_true(ats_live_folder(path, &err));
    assert_string_equal(path, next);
    assert_int_equal(unlink(folder), 0);
    setenv("XDG_RUNTIME_DIR", "relative", 1);
    assert_true(ats_live_folder(path, &err));
    assert_string_equal(path, next);
    setenv("XDG_RUNTIME_DIR", "", 1);
    assert_true(ats_live_folder(path, &err));
    assert_string_equal(path, next);
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    assert_true(ats_live_folder(path, &err));
    assert_string_equal(path, next);
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    assert_int_equal(mkdir(folder, 0700), 0);
    setenv("ATS_LIVE", folder, 1);
}

/* Only root can give files away. */
static void test_other_owners(void **state)
{
    (void)state;
    enum { SOMEONE = 54321 };
    if (geteuid() != 0) {
        skip();
    }
    char path[PATH_MAX];
    struct ats_error err = {{0}};
    const struct ats_live_file file = valid_file(1);
    put_file("9-x.live", &file, ats_live_file_bytes(1));
    char name[200];
    snprintf(name, sizeof(name), "%s/9-x.live", folder);
    assert_int_equal(chown(name, SOMEONE, SOMEONE), 0);
    struct ats_live_list list = scan();
    assert_int_equal(list.n + list.n_other, 0);
    assert_true(is_there("9-x.live")); /* not ours to remove */
    assert_int_equal(unlink(name), 0);

    unsetenv("ATS_LIVE");
    assert_int_equal(chown(folder, SOMEONE, SOMEONE), 0);
    assert_true(ats_live_folder(path, &err));
    assert_string_not_equal(path, folder);
    assert_int_equal(chown(folder, 0, 0), 0);
    assert_int_equal(chown(runtime, SOMEONE, SOMEONE), 0); /* as after `su` */
    assert_true(ats_live_folder(path, &err));
    assert_string_not_equal(path, folder);
    assert_int_equal(chown(runtime, 0, 0), 0);
    setenv("ATS_LIVE", folder, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_living_and_dead),
        cmocka_unit_test(test_old_unborn),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_not_figures),
        cmocka_unit_test(test_text_is_printable),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_settled),
        cmocka_unit_test(test_while_written),
        cmocka_unit_test(test_made_privately),
        cmocka_unit_test(test_other_places),
        cmocka_unit_test(test_other_owners),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
