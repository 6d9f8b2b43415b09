/* Preloaded into llama.cpp's own test programs, which are used as they are.
 * Some of them lack what a test on ATS0 needs; each variable adds one thing:
 *
 *   ATS_PEER_LOAD=1      loads all backends before main(): test-llama-archs looks at
 *                        ggml's devices without loading any
 *   ATS_PEER_DEVICE=dev  puts every model that llama_model_load_from_file loads wholly
 *                        on that device, for programs without an option --device
 *   ATS_PEER_LIST=1      lets no backend support any operator: test-backend-ops then
 *                        prints the names of all its cases and computes none
 *   ATS_PEER_LEAK=1      frees no buffer, neither ggml's nor Vulkan's: llvmpipe (Mesa 22.3) keeps
 *                        pointers to the buffers of bindings that a shader does not use, and counts
 *                        references there after they are freed; what then has that memory is
 *                        overwritten */
#include <dlfcn.h>
#include <ggml-backend.h>
#include <llama.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *value_of(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* The function that ours stands in for. POSIX lets a function pointer be kept in a void
 * pointer; C has no cast for it. */
static void find_original(const char *name, void *function)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (symbol == NULL) {
        fprintf(stderr, "peer preload: there is no %s\n", name);
        exit(EXIT_FAILURE);
    }
    memcpy(function, &symbol, sizeof(symbol));
}

__attribute__((constructor)) static void load_backends(void)
{
    if (value_of("ATS_PEER_LOAD") != NULL) {
        ggml_backend_load_all();
    }
}

__attribute__((visibility("default"))) struct llama_model *
llama_model_load_from_file(const char *path, struct llama_model_params params)
{
    struct llama_model *(*original)(const char *, struct llama_model_params) = NULL;
    find_original("llama_model_load_from_file", &original);
    const char *name = value_of("ATS_PEER_DEVICE");
    if (name == NULL) {
        return original(path, params);
    }
    ggml_backend_dev_t devices[] = {ggml_backend_dev_by_name(name), NULL};
    if (devices[0] == NULL) {
        fprintf(stderr, "peer preload: there is no device %s\n", name);
        exit(EXIT_FAILURE);
    }
    const int every_layer = 999;
    params.devices = devices; /* copied while the model loads */
    params.n_gpu_layers = every_layer;
    return original(path, params);
}

__attribute__((visibility("default"))) void ggml_backend_buffer_free(ggml_backend_buffer_t buffer)
{
    if (value_of("ATS_PEER_LEAK") != NULL) {
        return;
    }
    void (*original)(ggml_backend_buffer_t) = NULL;
    find_original("ggml_backend_buffer_free", &original);
    original(buffer);
}

__attribute__((visibility("default"))) bool ggml_backend_supports_op(ggml_backend_t backend,
                                                                     const struct ggml_tensor *op)
{
    if (value_of("ATS_PEER_LIST") != NULL) {
        return false;
    }
    static bool (*original)(ggml_backend_t, const struct ggml_tensor *);
    if (original == NULL) {
        find_original("ggml_backend_supports_op", &original);
    }
    return original(backend, op);
}

/* ---- Vulkan ---- */

typedef void (*vulkan_function)(void);

/* vkDestroyBuffer, vkFreeMemory */
static void keep(void *device, void *object, const void *allocator)
{
    (void)device;
    (void)object;
    (void)allocator;
}

static vulkan_function unless_it_frees(const char *name, vulkan_function function)
{
    const bool frees = strcmp(name, "vkDestroyBuffer") == 0 || strcmp(name, "vkFreeMemory") == 0;
    return frees && value_of("ATS_PEER_LEAK") != NULL ? (vulkan_function)keep : function;
}

/* ggml-vulkan, which finds its functions by these two, is loaded later than this. */
static void find_vulkan(const char *name, void *function)
{
    void *loader = dlopen("libvulkan.so.1", RTLD_NOW);
    void *symbol = loader != NULL ? dlsym(loader, name) : NULL;
    if (symbol == NULL) {
        fprintf(stderr, "peer preload: there is no %s\n", name);
        exit(EXIT_FAILURE);
    }
    memcpy(function, &symbol, sizeof(symbol));
}

__attribute__((visibility("default"))) vulkan_function vkGetDeviceProcAddr(void *device,
                                                                           const char *name)
{
    static vulkan_function (*original)(void *, const char *);
    if (original == NULL) {
        find_vulkan("vkGetDeviceProcAddr", &original);
    }
    return unless_it_frees(name, original(device, name));
}

__attribute__((visibility("default"))) vulkan_function vkGetInstanceProcAddr(void *instance,
                                                                             const char *name)
{
    static vulkan_function (*original)(void *, const char *);
    if (original == NULL) {
        find_vulkan("vkGetInstanceProcAddr", &original);
    }
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        return (vulkan_function)vkGetDeviceProcAddr;
    }
    return unless_it_frees(name, original(instance, name));
}
