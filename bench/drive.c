/* Runs one model on one device over a fixed token stream and prints what it measured as JSON:
 * the same for llama.cpp alone (--device EMU0) and for ATS (--device ATS0). Called by
 * bench/compare/compare.py; it can be called by hand as well.
 *
 * llama-bench would feed random tokens; an expert model's speed depends on which tokens come,
 * so every system gets the same ones here. Decoding is forced: the next token is the
 * stream's, whatever the model says.
 *
 * With --phases it decodes while the machine has more or less load (bench/load/phases.h). */
#include "drive_measure.h"
#include "drive_model.h"
#include "drive_options.h"

#include "cpu_speed.h"
#include "token_stream.h"

#include <stdio.h>
#include <stdlib.h>

static int32_t *make_stream(const struct drive_options *o, int32_t n_vocab)
{
    const struct token_stream stream = {.seed = o->seed,
                                        .n_vocab = (uint32_t)n_vocab,
                                        .n_topics = TOKEN_STREAM_TOPICS,
                                        .mean_stay_tokens = TOKEN_STREAM_STAY_TOKENS};
    int32_t *tokens = malloc(o->n_ctx * sizeof(*tokens));
    if (tokens != NULL && !token_stream_fill(&stream, tokens, o->n_ctx)) {
        free(tokens);
        return NULL;
    }
    return tokens;
}

static void print_result(const struct drive_run *run, ggml_backend_dev_t device, double loaded_s)
{
    json_t *result =
        json_pack("{s:s, s:s, s:s, s:f, s:f, s:O}", "model", run->options->model, "device",
                  run->options->device, "description",
                  device == NULL ? "CPU" : ggml_backend_dev_description(device), "load_s", loaded_s,
                  "cpu_speed", run->options->cpu_speed, "tests", run->tests);
    if (run->phases != NULL) {
        json_object_set(result, "phases", run->phases);
    }
    json_dumpf(result, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(result);
}

int main(int argc, char **argv)
{
    struct drive_options o = drive_options_parse(argc, argv);
    drive_start(&o);
    ggml_backend_dev_t device = drive_device(&o);
    if (!o.check && o.cpu_speed <= 0) {
        o.cpu_speed = bench_cpu_speed_best(2);
    }
    const double begin = drive_now_s();
    struct llama_model *model = drive_load(&o, device);
    struct drive_run run = {
        .options = &o, .context = drive_context(&o, model), .tests = json_array()};
    const double loaded = drive_now_s() - begin;
    run.counters = bench_counters_new();
    run.tokens = make_stream(&o, llama_vocab_n_tokens(llama_model_get_vocab(model)));
    if (run.counters == NULL || run.tokens == NULL) {
        fprintf(stderr, "drive: out of memory, or a vocabulary too small for the token stream\n");
        return 1;
    }
    run.core =
        (struct quiet_core){.speed = o.cpu_speed,
                            .patience_s = o.patience_s,
                            .moves = o.n_threads == 1 && bench_counters_are_emulated(run.counters)};
    if (!o.check) {
        drive_measure(&run);
    }
    print_result(&run, device, loaded);
    json_decref(run.tests);
    json_decref(run.phases);
    free(run.tokens);
    bench_counters_free(run.counters);
    llama_free(run.context);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
