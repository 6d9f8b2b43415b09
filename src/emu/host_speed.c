#include "emu/host_speed.h"

#include "base/replace.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    WIDTH = 4096,             /* of the matrices, as a model's */
    WEIGHT_BYTES = 384 << 20, /* several times what a server's caches hold */
    BATCH = 512,              /* llama.cpp's default ubatch */
    BATCH_ROWS = 1024,
    BATCH_WIDTH = 2048,
    MATVEC_PASSES = 7,
    MATMUL_PASSES = 3,
    MAX_PASSES = 7,
    /* as f16, as a block scale and as nibbles: small finite numbers */
    WEIGHT_BYTE = 0x2C,
};

static const struct {
    enum ats_type_family family;
    enum ggml_type type;
} families[] = {
    {ATS_FAMILY_Q4, GGML_TYPE_Q4_K},
    {ATS_FAMILY_F16, GGML_TYPE_F16},
    {ATS_FAMILY_MXFP4, GGML_TYPE_MXFP4},
};
enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

int ats_host_threads(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 2 ? (int)cores - 1 : 1;
}

/* ---- measuring ---- */

struct bench {
    ggml_backend_t cpu;
    uint8_t *weights;
    float *input;
    float *output;
};

/* Elements of a block. */
static int64_t block_of(enum ggml_type type)
{
    return type == GGML_TYPE_Q4_K ? 256 : type == GGML_TYPE_MXFP4 ? 32 : 1;
}

static void describe(struct ggml_tensor *t, enum ggml_type type, int64_t width, int64_t rows,
                     void *data)
{
    *t = (struct ggml_tensor){.type = type, .ne = {width, rows, 1, 1}, .data = data};
    const size_t row = ggml_row_size(type, width);
    t->nb[0] = ggml_row_size(type, block_of(type));
    t->nb[1] = row;
    t->nb[2] = row * (size_t)rows;
    t->nb[3] = t->nb[2];
}

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of a product of [width, rows] weights with [width, columns], in microseconds;
 * 0 if it cannot be computed. */
static double product_us(const struct bench *b, enum ggml_type type, int64_t width, int64_t rows,
                         int64_t columns, int passes)
{
    struct ggml_tensor weights;
    struct ggml_tensor input;
    struct ggml_tensor product;
    describe(&weights, type, width, rows, b->weights);
    describe(&input, GGML_TYPE_F32, width, columns, b->input);
    describe(&product, GGML_TYPE_F32, rows, columns, b->output);
    product.op = GGML_OP_MUL_MAT;
    product.flags = GGML_TENSOR_FLAG_COMPUTE;
    product.src[0] = &weights;
    product.src[1] = &input;
    struct ggml_tensor *nodes[1] = {&product};
    struct ggml_tensor *keys[3] = {NULL};
    ggml_bitset_t used[1] = {0};
    int32_t use_counts[3] = {0};
    struct ggml_cgraph graph = {.size = 1,
                                .n_nodes = 1,
                                .nodes = nodes,
                                .use_counts = use_counts,
                                .visited_hash_set = {.size = 3, .used = used, .keys = keys}};
    double times[MAX_PASSES];
    for (int pass = -1; pass < passes; pass++) { /* the first warms up */
        const double begin = now_us();
        if (ggml_backend_graph_compute_async(b->cpu, &graph) != GGML_STATUS_SUCCESS) {
            return 0;
        }
        times[pass < 0 ? 0 : pass] = now_us() - begin;
    }
    qsort(times, (size_t)passes, sizeof(times[0]), compare);
    return times[passes / 2];
}

static bool measure_all(const struct bench *b, struct ats_host_speed *speed)
{
    for (int i = 0; i < N_FAMILIES; i++) {
        const size_t row = ggml_row_size(families[i].type, WIDTH);
        const int64_t rows = (int64_t)(WEIGHT_BYTES / row);
        const double us = product_us(b, families[i].type, WIDTH, rows, 1, MATVEC_PASSES);
        if (us <= 0) {
            return false;
        }
        speed->matvec_gbps[families[i].family] = (double)rows * (double)row / us * 1e-3;
    }
    const double us = product_us(b, GGML_TYPE_Q4_K, BATCH_WIDTH, BATCH_ROWS, BATCH, MATMUL_PASSES);
    speed->matmul_gflops = us > 0 ? 2.0 * BATCH_WIDTH * BATCH_ROWS * BATCH / us * 1e-3 : 0;
    return us > 0;
}

static void read_cpu_model(char *name, size_t size)
{
    snprintf(name, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *colon = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (colon != NULL) {
            snprintf(name, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
            name[strcspn(name, "\n")] = '\0';
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

static void identify(struct ats_host_speed *speed, int threads)
{
    *speed = (struct ats_host_speed){.threads = threads};
    read_cpu_model(speed->cpu, sizeof(speed->cpu));
    snprintf(speed->ggml, sizeof(speed->ggml), "%s", ggml_version());
}

static bool allocate(struct bench *b)
{
    const size_t most_rows = WEIGHT_BYTES / ggml_row_size(GGML_TYPE_MXFP4, WIDTH);
    const size_t outputs = (size_t)BATCH_ROWS * BATCH;
    b->weights = aligned_alloc(64, WEIGHT_BYTES);
    b->input = aligned_alloc(64, (size_t)BATCH_WIDTH * BATCH * sizeof(float));
    b->output = aligned_alloc(
        64, (outputs > most_rows ? outputs : most_rows) * sizeof(float) / 64 * 64 + 64);
    if (b->weights == NULL || b->input == NULL || b->output == NULL) {
        return false;
    }
    memset(b->weights, WEIGHT_BYTE, WEIGHT_BYTES);
    for (size_t i = 0; i < (size_t)BATCH_WIDTH * BATCH; i++) {
        b->input[i] = (float)(i % 7) - 3;
    }
    return true;
}

bool ats_host_speed_measure(ggml_backend_dev_t cpu, int threads, struct ats_host_speed *speed,
                            struct ats_error *err)
{
    identify(speed, threads);
    struct bench bench = {.cpu = ggml_backend_dev_init(cpu, NULL)};
    if (bench.cpu == NULL) {
        return ats_fail(err, "ggml's CPU backend does not start");
    }
    const ggml_backend_set_n_threads_t set_n_threads =
        (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(cpu), "ggml_backend_set_n_threads");
    if (set_n_threads != NULL) {
        set_n_threads(bench.cpu, threads);
    }
    const bool allocated = allocate(&bench);
    const bool ok = allocated && measure_all(&bench, speed);
    free(bench.weights);
    free(bench.input);
    free(bench.output);
    ggml_backend_free(bench.cpu);
    if (!ok) {
        return ats_fail(err,
                        "the CPU's speed cannot be measured: %s; ATS_RIG_SCALE=FACTOR does "
                        "without",
                        allocated ? "ggml fails to compute" : "out of memory");
    }
    return true;
}

/* ---- keeping ---- */

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++) {
        hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001B3);
    }
    return hash;
}

bool ats_host_speed_path(const struct ats_host_speed *speed, char *path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    char folder[PATH_MAX];
    if (cache != NULL && cache[0] == '/') {
        snprintf(folder, sizeof(folder), "%s/ats", cache);
    } else if (home != NULL && home[0] == '/') {
        snprintf(folder, sizeof(folder), "%s/.cache/ats", home);
    } else {
        return false;
    }
    uint64_t hash = UINT64_C(0xCBF29CE484222325); /* FNV-1a */
    hash = hash_text(hash_text(hash, speed->cpu), speed->ggml);
    const int length = snprintf(path, size, "%s/host-speed-%016llx-%d.json", folder,
                                (unsigned long long)hash, speed->threads);
    return length > 0 && (size_t)length < size;
}

static bool load(const char *path, struct ats_host_speed *speed)
{
    json_error_t error;
    json_t *object = json_load_file(path, 0, &error);
    const char *cpu = json_string_value(json_object_get(object, "cpu"));
    const char *version = json_string_value(json_object_get(object, "ggml"));
    bool ok = cpu != NULL && version != NULL && strcmp(cpu, speed->cpu) == 0 &&
              strcmp(version, speed->ggml) == 0 &&
              json_integer_value(json_object_get(object, "threads")) == speed->threads;
    for (int i = 0; ok && i < N_FAMILIES; i++) {
        char key[32];
        snprintf(key, sizeof(key), "matvec_%s_gbps", ats_family_name(families[i].family));
        const double gbps = json_number_value(json_object_get(object, key));
        speed->matvec_gbps[families[i].family] = gbps;
        ok = gbps > 0;
    }
    speed->matmul_gflops = json_number_value(json_object_get(object, "matmul_gflops"));
    ok = ok && speed->matmul_gflops > 0;
    json_decref(object);
    return ok;
}

/* The folder and the one above it; the rest is the user's. */
static void make_folders(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    *slash = '\0';
    if (mkdir(folder, 0777) != 0 && errno == ENOENT) {
        char *above = strrchr(folder, '/');
        *above = '\0';
        mkdir(folder, 0777);
        *above = '/';
        mkdir(folder, 0777);
    }
}

/* Figures that cannot be kept are measured again next time. */
static void save(const char *path, const struct ats_host_speed *speed)
{
    make_folders(path);
    json_t *object = json_pack("{s:s, s:s, s:s, s:i, s:f}", "format", "ats-host-speed-1", "cpu",
                               speed->cpu, "ggml", speed->ggml, "threads", speed->threads,
                               "matmul_gflops", speed->matmul_gflops);
    for (int i = 0; i < N_FAMILIES; i++) {
        char key[32];
        snprintf(key, sizeof(key), "matvec_%s_gbps", ats_family_name(families[i].family));
        json_object_set_new(object, key, json_real(speed->matvec_gbps[families[i].family]));
    }
    struct ats_replace file;
    if (object != NULL && ats_replace_begin(&file, path)) {
        ats_replace_end(&file, json_dumpf(object, file.out, JSON_INDENT(2)) == 0);
    }
    json_decref(object);
}

bool ats_host_speed_get(ggml_backend_dev_t cpu, int threads, struct ats_host_speed *speed,
                        struct ats_error *err)
{
    char path[PATH_MAX];
    identify(speed, threads);
    const bool keeps = ats_host_speed_path(speed, path, sizeof(path));
    const char *anew = getenv("ATS_RIG_MEASURE");
    if (keeps && (anew == NULL || strcmp(anew, "1") != 0) && load(path, speed)) {
        speed->cached = true;
        return true;
    }
    if (!ats_host_speed_measure(cpu, threads, speed, err)) {
        return false;
    }
    if (keeps) {
        save(path, speed);
    }
    return true;
}
