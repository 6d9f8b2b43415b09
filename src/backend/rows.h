/* Rows of numbers in an accelerator's memory, and operators that gather some and put them to their
 * places. Tensors without names; what they point to must outlive them. */
#ifndef ATS_BACKEND_ROWS_H
#define ATS_BACKEND_ROWS_H

#include "backend/stream.h"

/* [ne0, n] f32, one row behind the other. */
struct ggml_tensor ats_rows_at(int64_t ne0, int64_t n, ggml_backend_buffer_t buffer, void *at);

/* [n] i32. */
struct ggml_tensor ats_list_at(int64_t n, ggml_backend_buffer_t buffer, void *at);

/* Another number of rows, or numbers. */
void ats_rows_resize(struct ggml_tensor *rows, int64_t n);
void ats_list_resize(struct ggml_tensor *list, int64_t n);

/* GET_ROWS: the listed rows of `from` to a place of their own. */
struct ggml_tensor ats_rows_gather(struct ggml_tensor *from, struct ggml_tensor *list,
                                   const struct ggml_tensor *to);

/* SET_ROWS: rows to those of `to` that are listed. */
struct ggml_tensor ats_rows_put(struct ggml_tensor *rows, struct ggml_tensor *list,
                                struct ggml_tensor *to);

/* A graph of `n` such operators, which is another one each time: it has no identity. Each has one
 * user. False: out of memory. Free it with ats_graph_free_counts. */
bool ats_rows_graph(struct ggml_cgraph *graph, struct ggml_tensor **nodes, int n);

#endif
