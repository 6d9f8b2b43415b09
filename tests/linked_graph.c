#include "linked_graph.h"

#include <string.h>

/* the entry point of the linked library */
ggml_backend_reg_t ggml_backend_init(void);

ggml_backend_dev_t linked_device(const char *name, const char *folder)
{
    static bool loaded;
    if (!loaded) {
        loaded = true;
        if (folder != NULL) {
            ggml_backend_load_all_from_path(folder);
        } else {
            ggml_backend_load_all();
        }
        ggml_backend_register(ggml_backend_init());
    }
    return ggml_backend_dev_by_name(name);
}

bool linked_graph_begin(struct linked_graph *g, size_t most_tensors)
{
    const struct ggml_init_params params = {
        .mem_size =
            most_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(most_tensors, false),
        .no_alloc = true,
    };
    *g = (struct linked_graph){.weights = ggml_init(params), .ops = ggml_init(params)};
    if (g->weights == NULL || g->ops == NULL) {
        return false;
    }
    g->cgraph = ggml_new_graph_custom(g->ops, most_tensors, false);
    return g->cgraph != NULL;
}

bool linked_graph_end(struct linked_graph *g, ggml_backend_dev_t dev, struct ggml_tensor *output)
{
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(dev);
    ggml_set_output(output);
    ggml_build_forward_expand(g->cgraph, output);
    g->weight_buffer = ggml_backend_alloc_ctx_tensors_from_buft(g->weights, type);
    if (g->weight_buffer == NULL) {
        return false;
    }
    ggml_backend_buffer_set_usage(g->weight_buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(g->weight_buffer, 0);
    g->allocator = ggml_gallocr_new(type);
    return g->allocator != NULL && ggml_gallocr_alloc_graph(g->allocator, g->cgraph);
}

void linked_graph_free(struct linked_graph *g)
{
    if (g->allocator != NULL) {
        ggml_gallocr_free(g->allocator);
    }
    ggml_backend_buffer_free(g->weight_buffer); /* NULL is allowed */
    ggml_free(g->ops);
    ggml_free(g->weights);
    memset(g, 0, sizeof(*g));
}
