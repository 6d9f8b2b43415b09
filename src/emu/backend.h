/* What backend.c offers to the device and to the registry. */
#ifndef ATS_EMU_BACKEND_H
#define ATS_EMU_BACKEND_H

#include "emu/emu.h"
#include "emu/stream.h"

void ats_emu_set_n_threads(ggml_backend_t backend, int n_threads);
void ats_emu_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void *data);

ggml_backend_event_t ats_emu_event_new(ggml_backend_dev_t dev);
void ats_emu_event_free(ggml_backend_dev_t dev, ggml_backend_event_t event);
void ats_emu_event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event);

#endif
