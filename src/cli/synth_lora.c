/* A LoRA adapter with random weights for the query, value and feed-forward-down
 * matrices of a GGUF model. */
#include "cli/cli.h"
#include "cli/synth.h"

#include <math.h>
#include <string.h>

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text);
    size_t end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_target(const char *name)
{
    return ends_with(name, ".attn_q.weight") || ends_with(name, ".attn_v.weight") ||
           ends_with(name, ".ffn_down.weight");
}

static bool describe(struct synth_model *model, const struct gguf_context *base, const char *path,
                     uint32_t rank, struct ats_error *err)
{
    int64_t arch_key = gguf_find_key(base, "general.architecture");
    if (arch_key < 0 || gguf_get_kv_type(base, arch_key) != GGUF_TYPE_STRING) {
        return ats_fail(err, "%s has no general.architecture: not a model", path);
    }
    gguf_set_val_str(model->meta, "general.architecture", gguf_get_val_str(base, arch_key));
    gguf_set_val_str(model->meta, "general.type", "adapter");
    gguf_set_val_str(model->meta, "adapter.type", "lora");
    gguf_set_val_f32(model->meta, "adapter.lora.alpha", (float)rank);
    for (int64_t i = 0; i < gguf_get_n_tensors(base); i++) {
        const char *name = gguf_get_tensor_name(base, i);
        const int64_t *ne = gguf_get_tensor_ne(base, i);
        if (!is_target(name) || ne[2] != 1 || strlen(name) + strlen(".lora_a") >= GGML_MAX_NAME) {
            continue;
        }
        synth_add(model, GGML_TYPE_F32, 1.0f / sqrtf((float)ne[0]), ne[0], rank, 0, "%s.lora_a",
                  name);
        synth_add(model, GGML_TYPE_F32, 1.0f / sqrtf((float)rank), rank, ne[1], 0, "%s.lora_b",
                  name);
    }
    if (model->n_tensors == 0) {
        return ats_fail(err, "%s has no attn_q, attn_v or ffn_down matrix to adapt", path);
    }
    return true;
}

bool synth_describe_lora(struct synth_model *model, const char *base, uint32_t rank,
                         struct ats_error *err)
{
    struct gguf_init_params params = {.no_alloc = true, .ctx = NULL};
    struct gguf_context *meta = gguf_init_from_file(base, params);
    if (meta == NULL) {
        return ats_fail(err, "cannot read the model %s: missing, cut short, or not GGUF", base);
    }
    bool ok = describe(model, meta, base, rank, err);
    gguf_free(meta);
    return ok;
}
