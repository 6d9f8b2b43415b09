#include "gguf_out.h"

#include "base/replace.h"

#include <errno.h>
#include <string.h>

bool gguf_out_begin(struct gguf_out *out, size_t n_tensors, size_t bytes, struct ats_error *err)
{
    const struct ggml_init_params params = {
        .mem_size = bytes + n_tensors * (ggml_tensor_overhead() + GGML_MEM_ALIGN),
    };
    *out = (struct gguf_out){.meta = gguf_init_empty(), .tensors = ggml_init(params)};
    if (out->meta == NULL || out->tensors == NULL) {
        gguf_out_end(out);
        return ats_fail(err, "out of memory for a model of %zu bytes", bytes);
    }
    return true;
}

enum ggml_type gguf_out_type(enum ggml_type type, int64_t columns)
{
    return columns % ggml_blck_size(type) == 0 ? type : GGML_TYPE_F16;
}

void gguf_out_add(struct gguf_out *out, const char *name, enum ggml_type type, int n_dims,
                  const int64_t *ne, const float *data)
{
    struct ggml_tensor *tensor = ggml_new_tensor(out->tensors, type, n_dims, ne);
    ggml_set_name(tensor, name);
    if (type == GGML_TYPE_F32) {
        memcpy(tensor->data, data, ggml_nbytes(tensor));
    } else {
        ggml_quantize_chunk(type, data, tensor->data, 0, ggml_nrows(tensor), ne[0], NULL);
    }
    gguf_add_tensor(out->meta, tensor);
}

bool gguf_out_write(const struct gguf_out *out, const char *path, struct ats_error *err)
{
    struct ats_replace file;
    if (!ats_replace_begin(&file, path)) {
        return ats_fail(err, "cannot write %s: %s", path, strerror(errno));
    }
    const bool ok = gguf_write_to_file_ptr(out->meta, file.out, false);
    return ats_replace_end(&file, ok) ||
           ats_fail(err, "cannot write %s: %s", path, strerror(errno));
}

void gguf_out_end(struct gguf_out *out)
{
    gguf_free(out->meta);
    ggml_free(out->tensors);
    *out = (struct gguf_out){0};
}
