/* What `ats simulate` is given: models by file or name, machines by rig. */
#include "cli/cli.h"
#include "cli/paths.h"
#include "cli/probe.h"
#include "cli/simulate.h"
#include "cli/synth.h"
#include "model/gguf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- models ---- */

static bool is_file_name(const char *name)
{
    const size_t n = strlen(name);
    return strchr(name, '/') != NULL || (n > 5 && strcmp(name + n - 5, ".gguf") == 0) ||
           access(name, F_OK) == 0;
}

/* Writes the metadata of a described model, without weights, to `path`. */
static bool write_metadata(const char *name, uint32_t layers, const char *path,
                           struct ats_error *err)
{
    struct synth_spec spec;
    if (!synth_spec_read(&spec, name, err)) {
        return false;
    }
    const uint32_t period = synth_spec_period(&spec);
    if (layers > spec.layers || layers % period != 0) {
        return ats_fail(err, "--layers %u: %s has %u layers, and fewer in multiples of %u", layers,
                        spec.name, spec.layers, period);
    }
    struct synth_model model = {.meta = gguf_init_empty(), .seed = 1, .is_meta_only = true};
    const bool good = synth_describe_spec(&model, &spec, layers > 0 ? layers : spec.layers,
                                          spec.vocabulary, err) &&
                      synth_write(&model, path, err);
    synth_free(&model);
    return good;
}

static struct ats_model *described_model(const char *name, uint32_t layers, struct ats_error *err)
{
    const char *folder = getenv("TMPDIR");
    char *path =
        cli_format("%s/ats-simulate-XXXXXX", folder != NULL && folder[0] != '\0' ? folder : "/tmp");
    const int fd = mkstemp(path);
    struct ats_model *model = NULL;
    if (fd < 0) {
        ats_fail(err, "cannot make a temporary file %s: %s", path, strerror(errno));
    } else {
        close(fd);
        if (write_metadata(name, layers, path, err)) {
            model = ats_model_read(path, err);
        }
        unlink(path);
    }
    free(path);
    return model;
}

struct ats_model *simulate_model(const char *name, uint32_t layers, struct ats_error *err)
{
    const size_t n = strlen(name);
    const bool is_json = n > 5 && strcmp(name + n - 5, ".json") == 0;
    if (!is_json && is_file_name(name)) {
        if (layers > 0) {
            ats_fail(err, "--layers is for names of models; %s has the layers that it has", name);
            return NULL;
        }
        return ats_model_read(name, err);
    }
    return described_model(name, layers, err);
}

/* ---- machines ---- */

/* What the library says of an emulated rig's scale on this host, or NULL. */
static json_t *find_scale(const json_t *root)
{
    size_t i;
    json_t *device;
    json_array_foreach(json_object_get(root, "accelerators"), i, device)
    {
        json_t *scale = json_object_get(json_object_get(device, "emulation"), "scale");
        if (scale != NULL) {
            return scale;
        }
    }
    return NULL;
}

static const char *first_message(const json_t *root)
{
    const char *text = json_string_value(json_array_get(json_object_get(root, "messages"), 0));
    return text != NULL ? text : "the backend library does not say how it would scale the rig";
}

/* The library measures this host with the CPU backend of the llama.cpp at hand, as it does when a
 * rig is emulated, so the simulator predicts with the same figures. */
static bool scale_to_host(const char *path, const struct ats_rig *rig,
                          struct ats_sim_machine *machine, double *factor, struct ats_error *err)
{
    char *llama_bin = paths_llama_bin(NULL, err);
    char *backend = llama_bin != NULL ? paths_backend(err) : NULL;
    setenv("ATS_EMULATE", path, 1);
    json_t *root = backend != NULL ? probe_devices(llama_bin, backend, false, err) : NULL;
    unsetenv("ATS_EMULATE");
    const json_t *scale = find_scale(root);
    if (scale != NULL) {
        double matvec_gbps[ATS_FAMILIES] = {0};
        struct ats_device_rates rates = rig->rates;
        const json_t *host = json_object_get(scale, "host");
        *factor = json_number_value(json_object_get(scale, "factor"));
        ats_rates_scale(&rates, *factor);
        for (int i = 0; i < ATS_FAMILIES; i++) {
            char key[40];
            snprintf(key, sizeof key, "matvec_%s_gbps", ats_family_name((enum ats_type_family)i));
            matvec_gbps[i] = json_number_value(json_object_get(host, key));
        }
        const double gflops = json_number_value(json_object_get(host, "matmul_gflops"));
        ats_sim_machine_scale(machine, &rates, matvec_gbps,
                              gflops > 0 ? gflops : rig->cpu_gflops * *factor);
    } else if (root != NULL) {
        ats_fail(err, "%.400s", first_message(root));
    }
    const bool good = scale != NULL;
    json_decref(root);
    free(backend);
    free(llama_bin);
    return good;
}

static bool scale_by(const char *text, const struct ats_rig *rig, struct ats_sim_machine *machine,
                     double *factor, struct ats_error *err)
{
    char *end;
    errno = 0;
    *factor = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(*factor >= 1e-4 && *factor <= 1e4)) {
        return ats_fail(err, "--scale '%s' is neither 'host' nor a number from 0.0001 to 10000",
                        text);
    }
    struct ats_device_rates rates = rig->rates;
    ats_rates_scale(&rates, *factor);
    ats_sim_machine_scale(machine, &rates, NULL, rig->cpu_gflops * *factor);
    return true;
}

bool simulate_machine(const char *name, const char *scale,
                      const struct ats_sim_overheads *overheads, struct ats_sim_machine *machine,
                      double *factor, struct ats_error *err)
{
    char path[4096];
    struct ats_rig rig;
    *factor = 1;
    if (!ats_rig_find(name, path, sizeof path, err) || !ats_rig_read(path, &rig, err)) {
        return false;
    }
    *machine = ats_sim_machine_of(&rig, overheads);
    if (scale == NULL) {
        return true;
    }
    return strcmp(scale, "host") == 0 ? scale_to_host(path, &rig, machine, factor, err)
                                      : scale_by(scale, &rig, machine, factor, err);
}
