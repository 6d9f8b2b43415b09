/* The ggml that this library is loaded into.
 *
 * libggml-ats.so does not link against ggml. A process may hold ggml under any
 * file name (libggml-base.so.0, libggml-base.so, inside an executable) and may
 * have loaded it privately (Node.js does), so the dynamic linker cannot be
 * relied on to find the right one. Instead, the first call into this library
 * looks up the module that called it (ggml's registry) and takes every
 * function from that module and its dependencies.
 *
 * Include this header instead of ggml's own. The names below are macros for
 * entries of `ats_ggml`: code reads as if it called ggml directly.
 *
 * Thread-safety: written once by ats_ggml_bind before anything else of this
 * library runs; read-only afterwards. */
#ifndef ATS_BIND_GGML_BIND_H
#define ATS_BIND_GGML_BIND_H

#include "base/error.h"

#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml-impl.h>
#include <ggml.h>
#include <gguf.h>

/* Every function of ggml that the library uses. */
#define ATS_GGML_FUNCTIONS(X)                                                                      \
    X(ggml_version)                                                                                \
    X(ggml_log_internal)                                                                           \
    X(ggml_nbytes)                                                                                 \
    X(ggml_nelements)                                                                              \
    X(ggml_row_size)                                                                               \
    X(ggml_type_name)                                                                              \
    X(ggml_op_name)                                                                                \
    X(ggml_op_desc)                                                                                \
    X(ggml_status_to_string)                                                                       \
    X(ggml_is_empty)                                                                               \
    X(ggml_is_contiguous)                                                                          \
    X(ggml_is_quantized)                                                                           \
    X(ggml_threadpool_params_init)                                                                 \
    X(ggml_backend_register)                                                                       \
    X(ggml_backend_dev_count)                                                                      \
    X(ggml_backend_dev_get)                                                                        \
    X(ggml_backend_dev_by_type)                                                                    \
    X(ggml_backend_dev_name)                                                                       \
    X(ggml_backend_dev_description)                                                                \
    X(ggml_backend_dev_memory)                                                                     \
    X(ggml_backend_dev_type)                                                                       \
    X(ggml_backend_dev_get_props)                                                                  \
    X(ggml_backend_dev_backend_reg)                                                                \
    X(ggml_backend_dev_init)                                                                       \
    X(ggml_backend_dev_buffer_type)                                                                \
    X(ggml_backend_dev_host_buffer_type)                                                           \
    X(ggml_backend_dev_supports_op)                                                                \
    X(ggml_backend_reg_name)                                                                       \
    X(ggml_backend_reg_get_proc_address)                                                           \
    X(ggml_backend_free)                                                                           \
    X(ggml_backend_synchronize)                                                                    \
    X(ggml_backend_graph_compute_async)                                                            \
    X(ggml_backend_tensor_set)                                                                     \
    X(ggml_backend_tensor_get)                                                                     \
    X(ggml_backend_tensor_set_async)                                                               \
    X(ggml_backend_tensor_get_async)                                                               \
    X(ggml_backend_tensor_set_2d_async)                                                            \
    X(ggml_backend_tensor_memset)                                                                  \
    X(ggml_backend_tensor_alloc)                                                                   \
    X(ggml_backend_view_init)                                                                      \
    X(ggml_backend_buft_alloc_buffer)                                                              \
    X(ggml_backend_buft_get_alignment)                                                             \
    X(ggml_backend_buft_get_max_size)                                                              \
    X(ggml_backend_buft_get_alloc_size)                                                            \
    X(ggml_backend_buft_is_host)                                                                   \
    X(ggml_backend_buffer_init)                                                                    \
    X(ggml_backend_buffer_free)                                                                    \
    X(ggml_backend_buffer_get_base)                                                                \
    X(ggml_backend_buffer_get_size)                                                                \
    X(ggml_backend_buffer_set_usage)                                                               \
    X(ggml_backend_buffer_clear)                                                                   \
    X(ggml_backend_event_new)                                                                      \
    X(ggml_backend_event_free)                                                                     \
    X(ggml_backend_event_record)                                                                   \
    X(ggml_backend_event_wait)                                                                     \
    X(ggml_backend_event_synchronize)

#define ATS_GGML_MEMBER(f) __typeof__(f) *fn_##f;
struct ats_ggml_functions {
    ATS_GGML_FUNCTIONS(ATS_GGML_MEMBER)
};
#undef ATS_GGML_MEMBER

extern struct ats_ggml_functions ats_ggml;

/* Binds to the ggml of the module that holds `caller` (an address in it, as
 * from __builtin_return_address). Idempotent. Fails if a function is missing
 * or the version differs from the one this library was built for. */
bool ats_ggml_bind(const void *caller, struct ats_error *err);

/* Logs through ggml, so that the host program decides where it goes. */
#define ats_log_info(...) ggml_log_internal(GGML_LOG_LEVEL_INFO, "ats: " __VA_ARGS__)
#define ats_log_warn(...) ggml_log_internal(GGML_LOG_LEVEL_WARN, "ats: " __VA_ARGS__)
#define ats_log_error(...) ggml_log_internal(GGML_LOG_LEVEL_ERROR, "ats: " __VA_ARGS__)

#ifndef ATS_GGML_BIND_IMPLEMENTATION
#define ggml_version(...) ats_ggml.fn_ggml_version(__VA_ARGS__)
#define ggml_log_internal(...) ats_ggml.fn_ggml_log_internal(__VA_ARGS__)
#define ggml_nbytes(...) ats_ggml.fn_ggml_nbytes(__VA_ARGS__)
#define ggml_nelements(...) ats_ggml.fn_ggml_nelements(__VA_ARGS__)
#define ggml_row_size(...) ats_ggml.fn_ggml_row_size(__VA_ARGS__)
#define ggml_type_name(...) ats_ggml.fn_ggml_type_name(__VA_ARGS__)
#define ggml_op_name(...) ats_ggml.fn_ggml_op_name(__VA_ARGS__)
#define ggml_op_desc(...) ats_ggml.fn_ggml_op_desc(__VA_ARGS__)
#define ggml_status_to_string(...) ats_ggml.fn_ggml_status_to_string(__VA_ARGS__)
#define ggml_is_empty(...) ats_ggml.fn_ggml_is_empty(__VA_ARGS__)
#define ggml_is_contiguous(...) ats_ggml.fn_ggml_is_contiguous(__VA_ARGS__)
#define ggml_is_quantized(...) ats_ggml.fn_ggml_is_quantized(__VA_ARGS__)
#define ggml_threadpool_params_init(...) ats_ggml.fn_ggml_threadpool_params_init(__VA_ARGS__)
#define ggml_backend_register(...) ats_ggml.fn_ggml_backend_register(__VA_ARGS__)
#define ggml_backend_dev_count(...) ats_ggml.fn_ggml_backend_dev_count(__VA_ARGS__)
#define ggml_backend_dev_get(...) ats_ggml.fn_ggml_backend_dev_get(__VA_ARGS__)
#define ggml_backend_dev_by_type(...) ats_ggml.fn_ggml_backend_dev_by_type(__VA_ARGS__)
#define ggml_backend_dev_name(...) ats_ggml.fn_ggml_backend_dev_name(__VA_ARGS__)
#define ggml_backend_dev_description(...) ats_ggml.fn_ggml_backend_dev_description(__VA_ARGS__)
#define ggml_backend_dev_memory(...) ats_ggml.fn_ggml_backend_dev_memory(__VA_ARGS__)
#define ggml_backend_dev_type(...) ats_ggml.fn_ggml_backend_dev_type(__VA_ARGS__)
#define ggml_backend_dev_get_props(...) ats_ggml.fn_ggml_backend_dev_get_props(__VA_ARGS__)
#define ggml_backend_dev_backend_reg(...) ats_ggml.fn_ggml_backend_dev_backend_reg(__VA_ARGS__)
#define ggml_backend_dev_init(...) ats_ggml.fn_ggml_backend_dev_init(__VA_ARGS__)
#define ggml_backend_dev_buffer_type(...) ats_ggml.fn_ggml_backend_dev_buffer_type(__VA_ARGS__)
#define ggml_backend_dev_host_buffer_type(...)                                                     \
    ats_ggml.fn_ggml_backend_dev_host_buffer_type(__VA_ARGS__)
#define ggml_backend_dev_supports_op(...) ats_ggml.fn_ggml_backend_dev_supports_op(__VA_ARGS__)
#define ggml_backend_reg_name(...) ats_ggml.fn_ggml_backend_reg_name(__VA_ARGS__)
#define ggml_backend_reg_get_proc_address(...)                                                     \
    ats_ggml.fn_ggml_backend_reg_get_proc_address(__VA_ARGS__)
#define ggml_backend_free(...) ats_ggml.fn_ggml_backend_free(__VA_ARGS__)
#define ggml_backend_synchronize(...) ats_ggml.fn_ggml_backend_synchronize(__VA_ARGS__)
#define ggml_backend_graph_compute_async(...)                                                      \
    ats_ggml.fn_ggml_backend_graph_compute_async(__VA_ARGS__)
#define ggml_backend_tensor_set(...) ats_ggml.fn_ggml_backend_tensor_set(__VA_ARGS__)
#define ggml_backend_tensor_get(...) ats_ggml.fn_ggml_backend_tensor_get(__VA_ARGS__)
#define ggml_backend_tensor_set_async(...) ats_ggml.fn_ggml_backend_tensor_set_async(__VA_ARGS__)
#define ggml_backend_tensor_get_async(...) ats_ggml.fn_ggml_backend_tensor_get_async(__VA_ARGS__)
#define ggml_backend_tensor_set_2d_async(...)                                                      \
    ats_ggml.fn_ggml_backend_tensor_set_2d_async(__VA_ARGS__)
#define ggml_backend_tensor_memset(...) ats_ggml.fn_ggml_backend_tensor_memset(__VA_ARGS__)
#define ggml_backend_tensor_alloc(...) ats_ggml.fn_ggml_backend_tensor_alloc(__VA_ARGS__)
#define ggml_backend_view_init(...) ats_ggml.fn_ggml_backend_view_init(__VA_ARGS__)
#define ggml_backend_buft_alloc_buffer(...) ats_ggml.fn_ggml_backend_buft_alloc_buffer(__VA_ARGS__)
#define ggml_backend_buft_get_alignment(...)                                                       \
    ats_ggml.fn_ggml_backend_buft_get_alignment(__VA_ARGS__)
#define ggml_backend_buft_get_max_size(...) ats_ggml.fn_ggml_backend_buft_get_max_size(__VA_ARGS__)
#define ggml_backend_buft_get_alloc_size(...)                                                      \
    ats_ggml.fn_ggml_backend_buft_get_alloc_size(__VA_ARGS__)
#define ggml_backend_buft_is_host(...) ats_ggml.fn_ggml_backend_buft_is_host(__VA_ARGS__)
#define ggml_backend_buffer_init(...) ats_ggml.fn_ggml_backend_buffer_init(__VA_ARGS__)
#define ggml_backend_buffer_free(...) ats_ggml.fn_ggml_backend_buffer_free(__VA_ARGS__)
#define ggml_backend_buffer_get_base(...) ats_ggml.fn_ggml_backend_buffer_get_base(__VA_ARGS__)
#define ggml_backend_buffer_get_size(...) ats_ggml.fn_ggml_backend_buffer_get_size(__VA_ARGS__)
#define ggml_backend_buffer_set_usage(...) ats_ggml.fn_ggml_backend_buffer_set_usage(__VA_ARGS__)
#define ggml_backend_buffer_clear(...) ats_ggml.fn_ggml_backend_buffer_clear(__VA_ARGS__)
#define ggml_backend_event_new(...) ats_ggml.fn_ggml_backend_event_new(__VA_ARGS__)
#define ggml_backend_event_free(...) ats_ggml.fn_ggml_backend_event_free(__VA_ARGS__)
#define ggml_backend_event_record(...) ats_ggml.fn_ggml_backend_event_record(__VA_ARGS__)
#define ggml_backend_event_wait(...) ats_ggml.fn_ggml_backend_event_wait(__VA_ARGS__)
#define ggml_backend_event_synchronize(...) ats_ggml.fn_ggml_backend_event_synchronize(__VA_ARGS__)
#endif

#endif
