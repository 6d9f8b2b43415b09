/* An ATS device: one accelerator (any other ggml GPU device) and the CPU, offered
 * to llama.cpp as one device.
 *
 * Ownership: devices live as long as the process, as ggml's registry has no way
 * to give them back.
 *
 * Locking: `lock` guards where tensors live. Whoever runs a graph or touches
 * tensor data holds it for reading; whoever places, moves or frees tensors holds
 * it for writing, and then no graph of this device is between its first and its
 * last split. A validity set of a record that is not a weight changes under the
 * read lock, by the one context that owns the tensor. */
#ifndef ATS_BACKEND_DEVICE_H
#define ATS_BACKEND_DEVICE_H

#include "backend/config.h"
#include "bind/ggml_bind.h"
#include "plan/rates.h"
#include "plan/staging.h"

#include <pthread.h>
#include <stdatomic.h>

struct ats_buffer;
struct ats_profile;
struct ats_stream;

/* Counters of a device, for the summary. */
struct ats_device_counters {
    atomic_ullong graphs;      /* graph computations */
    atomic_ullong plans_built; /* graph plans built; the rest were reused */
    atomic_ullong splits;      /* splits executed */
    atomic_ullong last_splits; /* splits of the latest graph */
    atomic_ullong copied_to_accel_bytes;
    atomic_ullong copied_to_host_bytes;
    atomic_ullong promoted_bytes; /* of those to the accelerator: weights into staging memory */
    atomic_ullong shared_columns; /* that the CPU computed meanwhile (share.h) */
    atomic_ullong used_matrices;  /* of experts, that passed by use (used.h) */
    atomic_ullong used_rounds;    /* that they took: several, where a place had too little room */
    atomic_ullong expert_hits;    /* columns that the accelerator computed from slots */
    atomic_ullong expert_misses;  /* columns of the same regions that the CPU computed */
    atomic_ullong expert_bytes;   /* copied into slots while decoding */
    atomic_ullong prompt_tokens;  /* of passes of more than one token */
    atomic_ullong prompt_ns;      /* that these passes took, without making plans */
    atomic_ullong answer_tokens;  /* of passes of one token */
    atomic_ullong answer_ns;
    atomic_ullong cpu_ns;     /* of all passes: the CPU side computed */
    atomic_ullong accel_ns;   /* the accelerator had work, as far as the host could see */
    atomic_ullong stalled_ns; /* the host waited for a weight on the link */
    atomic_ullong replans;    /* times that graphs were planned anew for how fast things are now */
    atomic_ullong rollbacks;  /* times that such a plan was taken back */
    atomic_ullong replan_ns;  /* that passes took longer for it */
    atomic_ullong beside;     /* of all plans, those that were made beside passes, and taken */
    atomic_ullong beside_ns;  /* in which plans were made beside passes */
    atomic_int replan_reason; /* of the latest: enum ats_watch_reason (plan/watch.h) */
};

struct ats_device {
    struct ggml_backend_device ggml;
    struct ggml_backend_buffer_type buffer_type;
    const struct ats_config *config;
    char name[16];         /* ATS0, ATS1, ... */
    char description[160]; /* what it wraps */
    ggml_backend_dev_t accel;
    ggml_backend_dev_t cpu;
    ggml_backend_buffer_type_t accel_buffer_type;
    bool keeps_time; /* what the accelerator takes means something: not so in exact emulation */
    size_t n_peers;  /* ATS devices in this process, among which host memory is shared */
    struct ats_plan_rates rates;        /* that its graphs are planned by; under the lock */
    struct ats_profile *profile;        /* that they are from, or NULL: they are assumed */
    int profile_tries;                  /* to get it */
    bool is_decided;                    /* it was predicted what is faster for the latest model */
    bool slices;                        /* experts by slice, by that prediction */
    struct ats_staging_way staging_way; /* of the next stream that takes staging memory */

    pthread_rwlock_t lock;
    struct ats_buffer *buffers; /* all buffers of this device, a doubly linked list */
    struct ats_stream *streams; /* all backend instances, likewise */
    size_t vram_budget;         /* bytes that may be taken from the accelerator */
    size_t vram_used;           /* bytes taken: weights, state, compute memory */
    bool budget_known;
    size_t vram_wanted;    /* the budget at the start; others may have made it smaller (follow.h) */
    size_t vram_before;    /* bytes that the accelerator said were free then */
    bool squeezed;         /* slots or staging memory were given up for others */
    double return_wait_us; /* since bringing weights back has failed: 0, or the wait */
    _Atomic double follow_due_us; /* when to look next what is free */
    atomic_bool accel_lost;       /* see loss.h */
    bool told_no_staging;         /* the log has that there is no room for staging memory */
    bool told_no_slices;          /* the log has that the rule allows no experts by slice */
    bool told_pageable;           /* the log has that weights cannot be pinned */
    bool told_cpu_only;           /* the log has the reason why the accelerator is not used */
    /* counts changes of weights after they were loaded: copies of older bytes are void */
    atomic_ullong weights_generation;
    atomic_ullong epoch; /* counts moves out of VRAM; a graph plan of an older epoch is void */

    struct ats_device_counters counters;
};

/* Finds the accelerators and creates a device for each, all or none. Called once, when the
 * library is loaded. False with an error if the configuration names a device that
 * does not exist or memory runs out; no accelerator at all is not an error. */
bool ats_devices_create(const struct ats_config *config, ggml_backend_reg_t reg,
                        struct ats_error *err);

size_t ats_device_count(void);
struct ats_device *ats_device_at(size_t index);

/* The device of a ggml device handle of this library. */
static inline struct ats_device *ats_device_of(ggml_backend_dev_t dev)
{
    return dev->context;
}

/* Sets the VRAM budget on first use: what the user asked for, clamped to what is
 * free, or what is free less a margin. Needs the write lock. */
void ats_device_settle_budget(struct ats_device *device);

/* Bytes that may still be taken from the accelerator. */
static inline size_t ats_device_vram_left(const struct ats_device *device)
{
    return device->vram_budget > device->vram_used ? device->vram_budget - device->vram_used : 0;
}

/* Bytes of host memory that can still be used without swapping, 0 if unknown. */
size_t ats_host_memory_available(size_t *total);

#endif
