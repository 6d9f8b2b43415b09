#include "models.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH = 128 };

static char folder[64];
static char paths[N_MODELS][PATH];
static char lora[PATH];
static pid_t owner;

static void remove_models(void)
{
    if (getpid() != owner) {
        return; /* a scenario ends */
    }
    for (size_t i = 0; i < N_MODELS; i++) {
        unlink(paths[i]);
    }
    unlink(lora);
    rmdir(folder);
}

static void run_synth(const char *options)
{
    char command[1024];
    snprintf(command, sizeof(command), "ATS_LLAMA_SRC='%s' '%s' synth %s >/dev/null",
             ATS_TEST_LLAMA_SRC, ATS_TEST_COMMAND, options);
    if (system(command) != 0) {
        fprintf(stderr, "cannot make a model: %s\n", command);
        exit(1);
    }
}

void models_make(void)
{
    static const char *const options[N_MODELS] = {
        [MODEL_DENSE] = "--arch llama --layers 3 --embd 64 --ff 96 --heads 4 --kv-heads 2",
        [MODEL_EXPERTS] = "--arch qwen3moe --layers 2 --embd 64 --ff 32 --heads 4 --kv-heads 2 "
                          "--experts 8 --experts-used 2 --type f16",
        [MODEL_RECURRENT] = "--arch mamba --layers 3 --embd 64",
        [MODEL_HYBRID] = "--arch qwen3next --layers 4 --embd 128 --ff 32 --heads 4 --kv-heads 2 "
                         "--experts 4 --experts-used 2",
        [MODEL_CONVOLUTION] =
            "--arch lfm2 --layers 4 --embd 64 --ff 96 --heads 4 --kv-heads 2 --type q4_0",
        [MODEL_EMBEDDING] = "--arch bert --layers 2 --embd 64 --ff 96 --heads 4 --kv-heads 4",
        [MODEL_WIDE_EXPERTS] = "--arch qwen3moe --layers 2 --embd 128 --ff 1024 --heads 4 "
                               "--kv-heads 2 --experts 8 --experts-used 2 --type f16",
        [MODEL_LARGE] = "--arch llama",
    };
    strcpy(folder, "/tmp/ats-test-models-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        exit(1);
    }
    owner = getpid();
    atexit(remove_models);
    char text[512];
    for (size_t i = 0; i < N_MODELS; i++) {
        snprintf(paths[i], PATH, "%s/%zu.gguf", folder, i);
        snprintf(text, sizeof(text), "%s --seed %zu --out %s", options[i], i + 3, paths[i]);
        run_synth(text);
    }
    snprintf(lora, PATH, "%s/lora.gguf", folder);
    snprintf(text, sizeof(text), "--lora-for %s --rank 4 --out %s", paths[MODEL_DENSE], lora);
    run_synth(text);
}

const char *model_path(enum model_kind kind)
{
    return paths[kind];
}

const char *lora_path(void)
{
    return lora;
}

void models_start(void)
{
    llama_log_set(scenario_keep_log, NULL);
    scenario_load_backends();
    llama_backend_init();
}

struct llama_model *model_load(const char *path, const char *devices, enum llama_load_mode mode)
{
    ggml_backend_dev_t list[4] = {NULL};
    char names[64];
    snprintf(names, sizeof(names), "%s", devices);
    char *rest = names;
    for (size_t n = 0; rest != NULL && *rest != '\0' && n < 3;) {
        list[n++] = device_named(strsep(&rest, ","));
    }
    struct llama_model_params params = llama_model_default_params();
    params.devices = list;
    params.n_gpu_layers = list[0] != NULL ? 999 : 0;
    params.load_mode = mode;
    params.use_extra_bufts = false; /* repacked weights round differently */
    return llama_model_load_from_file(path, params);
}

struct llama_context_params context_params(void)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = 256;
    params.n_ubatch = 16;
    params.n_seq_max = 1;
    params.n_threads = compute_threads();
    params.n_threads_batch = compute_threads();
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return params;
}

llama_token text_token(uint64_t text, size_t i)
{
    struct ats_rng rng = {.state = text * 1000003 + i};
    return (llama_token)(300 + ats_rng_below(&rng, 20000));
}

int32_t decode_text(struct llama_context *ctx, uint64_t text, size_t first, size_t n,
                    llama_seq_id seq)
{
    struct llama_batch batch = llama_batch_init((int32_t)n, 0, 1);
    for (size_t i = 0; i < n; i++) {
        batch.token[i] = text_token(text, first + i);
        batch.pos[i] = (llama_pos)(first + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = seq;
        batch.logits[i] = i + 1 == n;
    }
    batch.n_tokens = (int32_t)n;
    const int32_t result = llama_decode(ctx, batch);
    llama_batch_free(batch);
    return result;
}

size_t logits_size(const struct llama_context *ctx)
{
    return (size_t)llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
}
