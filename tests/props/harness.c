#include "harness.h"

#include "base/error.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LOG_BYTES = 1 << 20,
    LOG_SHOWN = 3000,
    TIMEOUT_S = 200, /* a hang; the slowest scenario takes a tenth of it */
};

/* What a scenario's process tells its parent. */
struct shared {
    atomic_bool met; /* an injected failure has happened */
};
static struct shared *shared;

/* ---- the log ---- */

static struct {
    pthread_mutex_t lock;
    char text[LOG_BYTES];
    size_t used;
    size_t n_errors;
} log_kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

void scenario_keep_log(enum ggml_log_level level, const char *text, void *data)
{
    (void)data;
    if (level == GGML_LOG_LEVEL_DEBUG) {
        return;
    }
    pthread_mutex_lock(&log_kept.lock);
    /* what the emulator says of its own failures is no report of the library's */
    log_kept.n_errors += level == GGML_LOG_LEVEL_ERROR && strncmp(text, "ats: EMU", 8) != 0;
    if (strstr(text, "injected") != NULL && shared != NULL) {
        atomic_store(&shared->met, true);
    }
    const size_t n = strlen(text);
    if (n >= sizeof(log_kept.text) - log_kept.used) {
        log_kept.used = 0;
    }
    if (n < sizeof(log_kept.text)) {
        memcpy(log_kept.text + log_kept.used, text, n + 1);
        log_kept.used += n;
    }
    pthread_mutex_unlock(&log_kept.lock);
    if (getenv("ATS_TEST_VERBOSE") != NULL) {
        fputs(text, stderr);
    }
}

bool scenario_logged(const char *text)
{
    pthread_mutex_lock(&log_kept.lock);
    const bool found = strstr(log_kept.text, text) != NULL;
    pthread_mutex_unlock(&log_kept.lock);
    return found;
}

size_t scenario_logged_errors(void)
{
    pthread_mutex_lock(&log_kept.lock);
    const size_t n = log_kept.n_errors;
    pthread_mutex_unlock(&log_kept.lock);
    return n;
}

void scenario_forget_log(void)
{
    pthread_mutex_lock(&log_kept.lock);
    log_kept.n_errors = 0;
    log_kept.used = 0;
    log_kept.text[0] = '\0';
    pthread_mutex_unlock(&log_kept.lock);
}

/* ---- scenarios ---- */

/* cmocka catches these while a test runs; in a child they shall have the effect they have in any
 * program (and the report of a sanitizer), so what they did before is remembered. */
static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS};
enum { N_SIGNALS = sizeof(signals) / sizeof(signals[0]) };
static struct sigaction actions[N_SIGNALS];

__attribute__((constructor)) static void remember_actions(void)
{
    for (size_t i = 0; i < N_SIGNALS; i++) {
        sigaction(signals[i], NULL, &actions[i]);
    }
}

void scenario_fail(const char *file, int line, const char *what, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: %s\n  ", file, line, what);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    const size_t from = log_kept.used > LOG_SHOWN ? log_kept.used - LOG_SHOWN : 0;
    fprintf(stderr, "  --- end of the log ---\n%s  ---\n", log_kept.text + from);
    fflush(NULL);
    _exit(1);
}

static void apply(const char *settings)
{
    static const char *const ours[] = {
        "ATS_EMULATE",  "ATS_PROFILE",      "ATS_ACCEL",    "ATS_VRAM",       "ATS_PLACEMENT",
        "ATS_ADAPT",    "ATS_PROMOTE",      "ATS_TRANSFER", "ATS_PLAN_OUT",   "ATS_STATS",
        "ATS_EMU_FAIL", "ATS_EMU_DELAY_US", "ATS_EMU_SEED", "ATS_EMU_MEMORY", "GGML_BACKEND_PATH"};
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        unsetenv(ours[i]);
    }
    unsetenv("ATS_LIVE");
    setenv("ATS_PROFILES", ATS_TEST_PROFILES, 0);
    setenv("ATS_EMULATE", "emu-small", 1);
    setenv("GGML_BACKEND_PATH", ATS_TEST_LIBRARY, 1);
    char *copy = strdup(settings);
    char *rest = copy;
    for (char *word = strsep(&rest, " "); word != NULL; word = strsep(&rest, " ")) {
        char *value = strchr(word, '=');
        if (value != NULL) {
            *value = '\0';
            setenv(word, value + 1, 1);
        }
    }
    free(copy);
}

static bool report(const char *title, const char *settings, int status)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return true;
    }
    fprintf(stderr, "FAILED %s [%s] seed %llu: ", title, settings, (unsigned long long)test_seed());
    if (WIFSIGNALED(status)) {
        const int number = WTERMSIG(status);
        fprintf(stderr, "%s\n", number == SIGALRM ? "it hangs" : strsignal(number));
    } else {
        fprintf(stderr, "exit code %d\n", WEXITSTATUS(status));
    }
    return false;
}

bool scenario_run(const char *title, const char *settings, void (*body)(const void *argument),
                  const void *argument)
{
    (void)test_seed(); /* the child inherits it */
    if (shared == NULL) {
        void *memory =
            mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            perror("mmap");
            return false;
        }
        shared = memory;
    }
    atomic_store(&shared->met, false);
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return false;
    }
    if (child == 0) {
        for (size_t i = 0; i < N_SIGNALS; i++) {
            sigaction(signals[i], &actions[i], NULL);
        }
        alarm(TIMEOUT_S);
        apply(settings);
        ggml_log_set(scenario_keep_log, NULL);
        body(argument);
        fflush(NULL);
        exit(0); /* and not _exit: leaks are looked for at exit */
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
    }
    return report(title, settings, status);
}

struct thread {
    pthread_t id;
    size_t number;
    void (*body)(size_t thread, const void *argument);
    const void *argument;
};

static void *run_thread(void *data)
{
    const struct thread *thread = data;
    thread->body(thread->number, thread->argument);
    return NULL;
}

void scenario_in_threads(size_t n, void (*body)(size_t thread, const void *argument),
                         const void *argument)
{
    enum { MAX_THREADS = 8 };
    struct thread threads[MAX_THREADS];
    CHECK(n <= MAX_THREADS, "%zu threads", n);
    for (size_t i = 0; i < n; i++) {
        threads[i] = (struct thread){.number = i, .body = body, .argument = argument};
        CHECK(pthread_create(&threads[i].id, NULL, run_thread, &threads[i]) == 0, "no thread");
    }
    for (size_t i = 0; i < n; i++) {
        pthread_join(threads[i].id, NULL);
    }
}

bool scenario_met_failure(void)
{
    return shared != NULL && atomic_load(&shared->met);
}

void scenario_load_backends(void)
{
    ggml_backend_load_all_from_path(ATS_TEST_LLAMA_BIN);
    CHECK(ggml_backend_dev_by_name("CPU") != NULL, "no CPU backend in %s", ATS_TEST_LLAMA_BIN);
}

/* ---- devices ---- */

ggml_backend_dev_t device_named(const char *name)
{
    ggml_backend_dev_t device = ggml_backend_dev_by_name(name);
    CHECK(device != NULL, "there is no device %s", name);
    return device;
}

static void *proc_of(ggml_backend_dev_t device, const char *name)
{
    return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name);
}

ggml_backend_t backend_on(ggml_backend_dev_t device)
{
    ggml_backend_t backend = ggml_backend_dev_init(device, NULL);
    CHECK(backend != NULL, "cannot start %s", ggml_backend_dev_name(device));
    void *address = proc_of(device, "ggml_backend_set_n_threads");
    CHECK(address != NULL, "%s takes no thread count", ggml_backend_dev_name(device));
    ggml_backend_set_n_threads_t set_n_threads;
    memcpy(&set_n_threads, &address, sizeof(address));
    set_n_threads(backend, compute_threads());
    return backend;
}

unsigned long long device_counter(const char *name)
{
    typedef char *(*summary_t)(ggml_backend_dev_t);
    ggml_backend_dev_t dev = device_named("ATS0");
    void *address =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), "ats_device_summary");
    CHECK(address != NULL, "no summary");
    summary_t summary;
    memcpy(&summary, &address, sizeof(address));
    char *text = summary(dev);
    CHECK(text != NULL, "no memory for the summary");
    char key[64];
    snprintf(key, sizeof(key), "\"%s\":", name);
    const char *at = strstr(text, key);
    CHECK(at != NULL, "no counter %s in %s", name, text);
    const unsigned long long value = strtoull(at + strlen(key), NULL, 10);
    free(text);
    return value;
}

void inject(const char *device, const char *spec)
{
    typedef bool (*inject_t)(ggml_backend_dev_t, const char *, struct ats_error *);
    void *address = proc_of(device_named(device), "ats_emu_inject");
    CHECK(address != NULL, "%s is not emulated", device);
    inject_t function;
    memcpy(&function, &address, sizeof(address));
    struct ats_error err = {{0}};
    CHECK(function(device_named(device), spec, &err), "%s", err.text);
}

static unsigned weight_at(const unsigned *first, size_t stride, size_t i)
{
    unsigned weight;
    memcpy(&weight, (const char *)first + i * stride, sizeof(weight));
    return weight;
}

size_t draw_weighted(struct ats_rng *rng, const unsigned *first, size_t stride, size_t n)
{
    unsigned total = 0;
    for (size_t i = 0; i < n; i++) {
        total += weight_at(first, stride, i);
    }
    CHECK(total > 0, "nothing to draw from");
    uint64_t ticket = ats_rng_below(rng, total);
    size_t drawn = 0;
    while (ticket >= weight_at(first, stride, drawn)) {
        ticket -= weight_at(first, stride, drawn++);
    }
    return drawn;
}

bool is_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

int compute_threads(void)
{
    return is_sanitized() ? 1 : 2;
}

bool is_chosen(size_t index, size_t n)
{
    return !is_sanitized() || (index + test_seed()) % n < 2;
}
