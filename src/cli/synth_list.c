/* `ats synth --list`: sizes of the known models, worked out from their descriptions. */
#include "base/parse.h"
#include "cli/cli.h"
#include "cli/synth.h"
#include "cli/synth_mix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool measure(const struct synth_spec *spec, uint32_t layers, uint32_t n_vocab,
                    uint64_t *bytes, struct ats_error *err)
{
    struct synth_model model = {.meta = gguf_init_empty()};
    const bool ok = synth_describe_spec(&model, spec, layers, n_vocab, err);
    *bytes = synth_bytes(&model);
    synth_free(&model);
    return ok;
}

uint32_t synth_layers_for(const struct synth_spec *spec, uint32_t n_vocab, uint64_t bytes,
                          struct ats_error *err)
{
    const uint32_t period = synth_spec_period(spec);
    uint32_t layers = 0;
    for (uint32_t n = period; n <= spec->layers; n += period) {
        uint64_t size = 0;
        if (!measure(spec, n, n_vocab, &size, err)) {
            return 0;
        }
        if (size > bytes) {
            char text[32];
            if (n == period) {
                ats_fail(err, "--size is too small: %s with %u layer%s has %s", spec->name, n,
                         n == 1 ? "" : "s", ats_format_bytes(size, text, sizeof text));
            }
            break;
        }
        layers = n;
    }
    return layers;
}

static bool list_one(const char *name, struct ats_error *err)
{
    struct synth_spec s;
    uint64_t full = 0;
    uint64_t outer = 0; /* what does not belong to a layer */
    uint64_t bench = 0;
    if (!synth_spec_read(&s, name, err) || !measure(&s, s.layers, s.vocabulary, &full, err) ||
        !measure(&s, 0, s.vocabulary, &outer, err) ||
        !measure(&s, s.benchmark_layers, s.vocabulary, &bench, err)) {
        return false;
    }
    char experts[32] = "-";
    if (s.experts > 0) {
        snprintf(experts, sizeof experts, "%u/%u%s", s.experts, s.experts_used,
                 s.shared_feed_forward > 0 ? "+1" : "");
    }
    char text[3][32];
    printf("%-18s %-9s %-6s %3u %-9s %-9s %-8s %3u %s\n", s.name, s.arch, synth_mix_name(s.mix),
           s.layers, ats_format_bytes(full, text[0], 32),
           ats_format_bytes((full - outer) / s.layers, text[1], 32), experts, s.benchmark_layers,
           ats_format_bytes(bench, text[2], 32));
    return true;
}

static bool list_all(struct ats_error *err)
{
    size_t n = 0;
    char **names = synth_spec_names(&n, err);
    if (names == NULL) {
        return false;
    }
    printf("%-18s %-9s %-6s %3s %-9s %-9s %-8s %3s %s\n", "model", "arch", "types", "lay", "size",
           "per layer", "experts", "use", "then");
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        ok = ok && list_one(names[i], err);
        free(names[i]);
    }
    free(names);
    if (ok) {
        printf("\nlay: layers of the full model; use, then: layers of the file that is written by\n"
               "default, and its size. experts: of a layer, used per token, shared.\n");
    }
    return ok;
}

/* What a tensor is for; the first part that its name has decides. */
static const struct {
    const char *part;
    const char *role;
} roles[] = {
    {"norm", "norms"},
    {"token_embd", "token embedding"},
    {"_exps.", "experts"},
    {"_shexp", "shared expert"},
    {"ffn_gate_inp", "router"},
    {"ssm_", "linear attention"},
    {"attn_qkv", "linear attention"},
    {"attn_gate", "linear attention"},
    {"attn_", "attention"},
    {"ffn_", "feed-forward"},
    {"output.weight", "output"},
    {"", "other"},
};
enum { N_ROLES = sizeof roles / sizeof roles[0] };

static const char *role_of(const char *name)
{
    size_t i = 0;
    while (strstr(name, roles[i].part) == NULL) {
        i++;
    }
    return roles[i].role;
}

static void print_role(const struct synth_model *model, const char *role)
{
    uint64_t bytes = 0;
    size_t n = 0;
    uint64_t by_type[GGML_TYPE_COUNT] = {0};
    for (size_t i = 0; i < model->n_tensors; i++) {
        const struct synth_tensor *t = &model->tensors[i];
        if (strcmp(role_of(t->name), role) == 0) {
            const uint64_t size =
                (uint64_t)ggml_row_size(t->type, t->ne[0]) * (uint64_t)(t->ne[1] * t->ne[2]);
            bytes += size;
            by_type[t->type] += size;
            n++;
        }
    }
    if (n == 0) {
        return;
    }
    char text[32];
    printf("%-18s %5zu tensors  %-9s ", role, n, ats_format_bytes(bytes, text, sizeof text));
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        if (by_type[type] > 0) {
            printf(" %s %.0f %%", ggml_type_name((enum ggml_type)type),
                   100.0 * (double)by_type[type] / (double)bytes);
        }
    }
    putchar('\n');
}

static bool list_roles(const struct synth_spec *spec, struct ats_error *err)
{
    struct synth_model model = {.meta = gguf_init_empty()};
    const bool ok = synth_describe_spec(&model, spec, spec->layers, spec->vocabulary, err);
    if (ok) {
        char text[32];
        printf("%s: %u layers, %zu tensors, %s\n", spec->title, spec->layers, model.n_tensors,
               ats_format_bytes(synth_bytes(&model), text, sizeof text));
        for (size_t i = 0; i < N_ROLES; i++) {
            if (i == 0 || strcmp(roles[i].role, roles[i - 1].role) != 0) {
                print_role(&model, roles[i].role);
            }
        }
    }
    synth_free(&model);
    return ok;
}

bool synth_list(const struct synth_spec *spec, struct ats_error *err)
{
    return spec != NULL ? list_roles(spec, err) : list_all(err);
}
