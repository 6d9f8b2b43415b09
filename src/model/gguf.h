/* Reads a model's description from a GGUF file: metadata and tensor shapes only.
 *
 * Files in parts (NAME-00001-of-0000N.gguf) are read from the first part on.
 * Uses ggml's reader of GGUF; tensor data need not be there, so files written
 * for planning (metadata alone) work too. Not thread-safe: ggml's log is
 * silenced meanwhile. */
#ifndef ATS_MODEL_GGUF_H
#define ATS_MODEL_GGUF_H

#include "model/model.h"

/* NULL with an error that names the file and, where it is one, the tensor or key.
 * Caller frees with ats_model_free. */
struct ats_model *ats_model_read(const char *path, struct ats_error *err);

#endif
