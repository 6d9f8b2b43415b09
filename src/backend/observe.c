#include "backend/observe.h"

#include "backend/buffer.h"
#include "backend/experts_fill.h"
#include "trace/file.h"
#include "trace/recorder.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OBSERVED = ATS_TRACE_MAX_LANES };

typedef void (*ended_t)(void *data, uint64_t tag, double begin_us, double end_us);

/* Slots that the commands to come touch: ats_observe_slots. */
struct slots_noted {
    const struct ats_expert_store *store; /* NULL: none */
    const struct ats_expert_fill *fill;
    const int32_t *slots;
    const int32_t *experts;
    uint32_t n;
};

/* A stream of ours that is recorded. Used by the stream's thread. */
struct ats_observed_stream {
    struct slots_noted noted;
    uint64_t pass_begin_ns;
    uint64_t given_ns; /* when a lane was given what came just before, in this split; 0: nothing */
    uint64_t n_built;  /* plans that were told of */
    uint32_t context;
    int cpu_lane;
    uint32_t pass; /* passes begun */
    uint32_t n_tokens;
    int32_t split;
    bool in_pass;
    bool in_use; /* under `lock` */
};

/* A backend instance that is recorded. */
struct observed {
    _Atomic(ggml_backend_t) backend; /* NULL: free, or no longer used */
    bool in_use;                     /* under `lock` */
    struct ats_observed_stream *stream;
    enum ats_trace_role role;
    int lane;
    void (*tag)(ggml_backend_t backend, uint64_t tag); /* NULL: it has no clock for us */

    /* the command that was told of last: an emulated graph is told of operator by operator. Used by
     * whoever tells, one at a time, and when the backend is gone. */
    struct ats_trace_record ran;
};

static struct ats_ggml_functions original;
static const struct ats_config *config;
static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* of the tables' entries coming and going */
static struct ats_observed_stream streams[MOST_OBSERVED];
static struct observed observed[MOST_OBSERVED];
static atomic_uint n_observed; /* entries behind these have never been used */
static atomic_ullong next_number = 1;

static struct observed *find(ggml_backend_t backend)
{
    const unsigned n = atomic_load_explicit(&n_observed, memory_order_acquire);
    for (unsigned i = 0; i < n; i++) {
        if (atomic_load_explicit(&observed[i].backend, memory_order_acquire) == backend) {
            return &observed[i];
        }
    }
    return NULL;
}

/* ---- records ---- */

/* Cut to size, and printable: names come from files. */
static void set_name(char *to, size_t size, const char *name)
{
    size_t n = 0;
    for (; n + 1 < size && name[n] != '\0'; n++) {
        const bool printable = name[n] >= ' ' && name[n] <= '~';
        to[n] = (char)(printable ? name[n] : '?');
    }
    to[n] = '\0';
}

/* The tensor's, cut to size, with whatever stands behind its end: looking for that takes longer.
 * Whoever reads the recording makes names printable. `to` has less room than a tensor's name. */
static void take_name(char *to, size_t size, const struct ggml_tensor *tensor)
{
    _Static_assert(ATS_TRACE_NAME <= GGML_MAX_NAME && ATS_TRACE_LAST <= GGML_MAX_NAME,
                   "a name of a record is cut from a tensor's");
    memcpy(to, tensor->name, size - 1);
    to[size - 1] = '\0';
}

/* Fills in a new record, which has yet to begin: the clock is read last, right before ggml is
 * called. */
static void make(struct ats_trace_record *record, const struct observed *o,
                 enum ats_trace_kind kind)
{
    const struct ats_observed_stream *stream = o->stream;
    memset(record, 0, sizeof(*record));
    record->kind = (uint8_t)kind;
    record->lane = (uint8_t)o->lane;
    record->pass = stream->in_pass ? stream->pass : 0;
    record->split = stream->in_pass ? stream->split : ATS_TRACE_NO_SPLIT;
}

/* The stream whose pass the calling thread runs, by its accelerator; or NULL. */
static _Thread_local const struct observed *current;

/* Another stream's thread may wait for this one's accelerator, and so may its own between passes.
 */
static bool is_in_own_pass(const struct observed *o)
{
    return current != NULL && current->stream == o->stream;
}

/* Commands of a split that follow each other share a reading of the clock, which is most of what a
 * record costs: between them is only the bookkeeping. After the host has waited or computed it may
 * do more before the next one. */
static void begin(struct ats_trace_record *record, const struct observed *o)
{
    const uint64_t given_ns = is_in_own_pass(o) ? o->stream->given_ns : 0;
    record->begin_ns = given_ns != 0 ? given_ns : ats_trace_now_ns();
}

static void end(struct ats_trace_record *record)
{
    record->end_ns = ats_trace_now_ns();
    ats_trace_add(record);
}

/* The accelerator has been given something; or the CPU, which has computed it by now. */
static void end_given(struct ats_trace_record *record, const struct observed *o)
{
    end(record);
    if (is_in_own_pass(o)) {
        o->stream->given_ns = o->role != ATS_TRACE_CPU ? record->end_ns : 0;
    }
}

static void end_wait(struct ats_trace_record *record, const struct observed *o)
{
    end(record);
    if (is_in_own_pass(o)) {
        o->stream->given_ns = 0;
    }
}

/* Numbers a command, and has the accelerator tell of it under that number. */
static void make_command(struct ats_trace_record *record, struct observed *o,
                         enum ats_trace_kind kind)
{
    make(record, o, kind);
    record->number = atomic_fetch_add_explicit(&next_number, 1, memory_order_relaxed);
    if (o->tag != NULL) {
        o->tag(atomic_load_explicit(&o->backend, memory_order_relaxed), record->number);
    }
}

static void tell_ran(struct observed *o)
{
    if (o->ran.number != 0) {
        ats_trace_add(&o->ran);
        o->ran.number = 0;
    }
}

/* A command has ended on the accelerator, or an operator of one; on a thread of the accelerator. */
static void ended(void *data, uint64_t tag, double begin_us, double end_us)
{
    struct observed *o = data;
    const uint64_t end_ns = (uint64_t)(end_us * 1e3);
    if (o->ran.number == tag) {
        o->ran.end_ns = end_ns;
        return;
    }
    tell_ran(o);
    o->ran = (struct ats_trace_record){
        .begin_ns = (uint64_t)(begin_us * 1e3),
        .end_ns = end_ns,
        .number = tag,
        .kind = ATS_TRACE_RAN,
        .lane = (uint8_t)o->lane,
        .split = ATS_TRACE_NO_SPLIT,
    };
}

/* ---- operands ---- */

static ggml_backend_buffer_t buffer_of(const struct ggml_tensor *tensor)
{
    return tensor->view_src != NULL ? tensor->view_src->buffer : tensor->buffer;
}

/* Rows of a tensor, one after the other, each of a single expert. */
struct rows {
    const char *base;
    const char *name;
    size_t bytes;   /* of each */
    size_t stride;  /* from one to the next */
    bool by_expert; /* an expert's row has its number, and not its slot's */
};

/* Whether what is noted of slots says more of a tensor than that it is touched. */
static bool find_rows(const struct slots_noted *noted, const struct ggml_tensor *tensor,
                      struct rows *rows)
{
    const struct ats_expert_store *store = noted->store;
    if (store == NULL) {
        return false;
    }
    const struct ats_expert_fill *fill = noted->fill;
    if (fill != NULL && buffer_of(tensor) == fill->place.buffer &&
        tensor->data == fill->place.data) {
        *rows =
            (struct rows){fill->place.data, fill->place.name, fill->of.bytes, fill->of.bytes, true};
        return true;
    }
    if (fill != NULL && tensor == &fill->slots) {
        *rows = (struct rows){tensor->data, fill->place.name, fill->of.bytes, tensor->nb[1], false};
        return true;
    }
    for (uint32_t p = 0; p < store->slots.n_parts; p++) {
        const struct ggml_tensor *part = &store->in_vram[p];
        if (buffer_of(tensor) == store->buffer && tensor->data == part->data) {
            *rows = (struct rows){part->data, part->name, store->slots.part_bytes[p],
                                  store->slots.part_bytes[p], false};
            return true;
        }
    }
    return false;
}

/* Adds an operand for each noted row that lies in [offset, offset + size) of the tensor. False:
 * nothing is noted of the tensor. */
static bool add_rows(const struct observed *o, const struct ats_trace_record *command,
                     enum ats_trace_kind kind, const struct ggml_tensor *tensor, size_t offset,
                     size_t size)
{
    const struct slots_noted *noted = &o->stream->noted;
    struct rows rows;
    if (o->role == ATS_TRACE_CPU || !find_rows(noted, tensor, &rows)) {
        return false;
    }
    struct ats_trace_record record = *command;
    record.kind = (uint8_t)kind;
    record.end_ns = record.begin_ns;
    record.space = (uint64_t)(uintptr_t)buffer_of(tensor);
    record.bytes = rows.bytes;
    set_name(record.name, sizeof(record.name), rows.name);
    for (uint32_t i = 0; i < noted->n; i++) {
        const int32_t slot = noted->slots != NULL ? noted->slots[i] : (int32_t)i;
        const int32_t expert = noted->experts != NULL ? noted->experts[i] : slot;
        const int32_t row = rows.by_expert ? expert : slot;
        const size_t at = rows.stride * (size_t)row;
        if (row >= 0 && expert >= 0 && at >= offset && at + rows.bytes <= offset + size) {
            record.address = (uint64_t)(uintptr_t)rows.base + at;
            record.count = (uint32_t)expert + 1;
            ats_trace_add(&record);
        }
    }
    return true;
}

static void add_operand(const struct observed *o, const struct ats_trace_record *command,
                        enum ats_trace_kind kind, const struct ggml_tensor *tensor)
{
    if (tensor->data == NULL || add_rows(o, command, kind, tensor, 0, SIZE_MAX / 2)) {
        return;
    }
    struct ats_trace_record record = *command;
    record.kind = (uint8_t)kind;
    record.end_ns = record.begin_ns;
    record.space = o->role == ATS_TRACE_CPU ? 0 : (uint64_t)(uintptr_t)buffer_of(tensor);
    record.address = (uint64_t)(uintptr_t)tensor->data;
    record.bytes = ggml_nbytes(tensor);
    record.count = 0;
    take_name(record.name, sizeof(record.name),
              tensor->view_src != NULL ? tensor->view_src : tensor);
    ats_trace_add(&record);
}

static bool does_something(const struct ggml_tensor *node)
{
    switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return false;
    default:
        return !ggml_is_empty(node);
    }
}

/* What these are to write into is an operand of theirs too, and not read. */
static bool is_destination(const struct ggml_tensor *node, int source)
{
    return (node->op == GGML_OP_CPY && source == 1) ||
           (node->op == GGML_OP_SET_ROWS && source == 2);
}

static void add_operands(const struct observed *o, const struct ats_trace_record *command,
                         const struct ggml_cgraph *graph)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor *node = graph->nodes[i];
        if (!does_something(node)) {
            continue;
        }
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (node->src[s] != NULL && !is_destination(node, s)) {
                add_operand(o, command, ATS_TRACE_READ, node->src[s]);
            }
        }
        add_operand(o, command, ATS_TRACE_WRITE, node);
    }
}

/* First and last operator, and how many. */
static void describe_graph(struct ats_trace_record *record, const struct ggml_cgraph *graph)
{
    const struct ggml_tensor *first = NULL;
    const struct ggml_tensor *last = NULL;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (does_something(graph->nodes[i])) {
            last = graph->nodes[i];
            first = first == NULL ? last : first;
            record->count++;
        }
    }
    if (first != NULL && last != NULL) {
        take_name(record->name, sizeof(record->name), first);
        take_name(record->last, sizeof(record->last), last);
    }
}

/* ---- in place of ggml's functions ---- */

static enum ggml_status graph_compute_async(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    struct observed *o = find(backend);
    if (o == NULL) {
        return original.fn_ggml_backend_graph_compute_async(backend, graph);
    }
    struct ats_trace_record record;
    make_command(&record, o, ATS_TRACE_COMPUTE);
    describe_graph(&record, graph);
    begin(&record, o);
    if (ats_trace_wants_operands()) {
        add_operands(o, &record, graph);
    }
    const enum ggml_status status = original.fn_ggml_backend_graph_compute_async(backend, graph);
    end_given(&record, o);
    return status;
}

static void make_copy(struct ats_trace_record *record, struct observed *o, enum ats_trace_kind kind,
                      const struct ggml_tensor *tensor, const void *host, size_t offset,
                      size_t size)
{
    make_command(record, o, kind);
    record->space = (uint64_t)(uintptr_t)buffer_of(tensor);
    record->address = (uint64_t)(uintptr_t)tensor->data + offset;
    record->host = (uint64_t)(uintptr_t)host;
    record->bytes = size;
    take_name(record->name, sizeof(record->name), tensor);
}

static void tensor_set_async(ggml_backend_t backend, struct ggml_tensor *tensor, const void *data,
                             size_t offset, size_t size)
{
    struct observed *o = find(backend);
    if (o == NULL || size == 0) {
        original.fn_ggml_backend_tensor_set_async(backend, tensor, data, offset, size);
        return;
    }
    struct ats_trace_record record;
    make_copy(&record, o, ATS_TRACE_TO_DEVICE, tensor, data, offset, size);
    begin(&record, o);
    if (ats_trace_wants_operands()) {
        add_rows(o, &record, ATS_TRACE_WRITE, tensor, offset, size);
    }
    original.fn_ggml_backend_tensor_set_async(backend, tensor, data, offset, size);
    end_given(&record, o);
}

/* What is put together lies without gaps: stride_tensor is size. Of the source, which has gaps, as
 * many bytes are noted as there are. */
static void tensor_set_2d_async(ggml_backend_t backend, struct ggml_tensor *tensor,
                                const void *data, size_t offset, size_t size, size_t n_copies,
                                size_t stride_tensor, size_t stride_data)
{
    struct observed *o = find(backend);
    if (o == NULL || size == 0) {
        original.fn_ggml_backend_tensor_set_2d_async(backend, tensor, data, offset, size, n_copies,
                                                     stride_tensor, stride_data);
        return;
    }
    struct ats_trace_record record;
    make_copy(&record, o, ATS_TRACE_TO_DEVICE, tensor, data, offset, size * n_copies);
    begin(&record, o);
    if (ats_trace_wants_operands()) {
        add_rows(o, &record, ATS_TRACE_WRITE, tensor, offset, size * n_copies);
    }
    original.fn_ggml_backend_tensor_set_2d_async(backend, tensor, data, offset, size, n_copies,
                                                 stride_tensor, stride_data);
    end_given(&record, o);
}

static void tensor_get_async(ggml_backend_t backend, const struct ggml_tensor *tensor, void *data,
                             size_t offset, size_t size)
{
    struct observed *o = find(backend);
    if (o == NULL || size == 0) {
        original.fn_ggml_backend_tensor_get_async(backend, tensor, data, offset, size);
        return;
    }
    struct ats_trace_record record;
    make_copy(&record, o, ATS_TRACE_TO_HOST, tensor, data, offset, size);
    begin(&record, o);
    original.fn_ggml_backend_tensor_get_async(backend, tensor, data, offset, size);
    end_given(&record, o);
}

static void synchronize(ggml_backend_t backend)
{
    const struct observed *o = find(backend);
    if (o == NULL) {
        original.fn_ggml_backend_synchronize(backend);
        return;
    }
    struct ats_trace_record record;
    make(&record, o, ATS_TRACE_SYNCHRONIZE);
    begin(&record, o);
    original.fn_ggml_backend_synchronize(backend);
    end_wait(&record, o);
}

static void event_record(ggml_backend_event_t event, ggml_backend_t backend)
{
    const struct observed *o = find(backend);
    if (o == NULL) {
        original.fn_ggml_backend_event_record(event, backend);
        return;
    }
    struct ats_trace_record record;
    make(&record, o, ATS_TRACE_EVENT_RECORD);
    record.event = (uint64_t)(uintptr_t)event;
    begin(&record, o);
    original.fn_ggml_backend_event_record(event, backend);
    end_given(&record, o);
}

static void event_wait(ggml_backend_t backend, ggml_backend_event_t event)
{
    struct observed *o = find(backend);
    if (o == NULL) {
        original.fn_ggml_backend_event_wait(backend, event);
        return;
    }
    struct ats_trace_record record;
    make_command(&record, o, ATS_TRACE_EVENT_WAIT);
    record.event = (uint64_t)(uintptr_t)event;
    begin(&record, o);
    original.fn_ggml_backend_event_wait(backend, event);
    end_given(&record, o);
}

static void event_synchronize(ggml_backend_event_t event)
{
    const struct observed *o = current; /* events are of a device, and do not say who asks */
    if (o == NULL) {
        original.fn_ggml_backend_event_synchronize(event);
        return;
    }
    struct ats_trace_record record;
    make(&record, o, ATS_TRACE_EVENT_SYNC);
    record.event = (uint64_t)(uintptr_t)event;
    begin(&record, o);
    original.fn_ggml_backend_event_synchronize(event);
    end_wait(&record, o);
}

/* The address is another backend's soon; the entry, when nothing is told of it any more. */
static void backend_free(ggml_backend_t backend)
{
    struct observed *o = find(backend);
    if (o != NULL) {
        atomic_store_explicit(&o->backend, NULL, memory_order_release);
    }
    original.fn_ggml_backend_free(backend);
    if (o != NULL) {
        tell_ran(o);
        pthread_mutex_lock(&lock);
        o->in_use = false;
        pthread_mutex_unlock(&lock);
    }
}

/* ---- streams ---- */

static struct observed *take_entry(void)
{
    pthread_mutex_lock(&lock);
    struct observed *o = NULL;
    for (unsigned i = 0; i < MOST_OBSERVED && o == NULL; i++) {
        o = observed[i].in_use ? NULL : &observed[i];
    }
    if (o != NULL) {
        o->in_use = true;
        const unsigned behind = (unsigned)(o - observed) + 1;
        if (behind > atomic_load_explicit(&n_observed, memory_order_relaxed)) {
            atomic_store_explicit(&n_observed, behind, memory_order_release);
        }
    }
    pthread_mutex_unlock(&lock);
    return o;
}

static struct ats_trace_lane describe(const struct ats_stream *stream, enum ats_trace_role role)
{
    ggml_backend_dev_t dev = role == ATS_TRACE_CPU ? stream->device->cpu : stream->device->accel;
    struct ats_trace_lane lane = {
        .context = stream->observed->context,
        .role = (uint8_t)role,
        .emulated = role != ATS_TRACE_CPU &&
                    strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev)), "EMU") == 0,
    };
    set_name(lane.device, sizeof(lane.device), ggml_backend_dev_name(dev));
    set_name(lane.description, sizeof(lane.description), ggml_backend_dev_description(dev));
    return lane;
}

/* Records a backend instance from now on. Where there is no room it is not recorded, which the
 * recording tells. */
static struct observed *watch(struct ats_stream *stream, ggml_backend_t backend,
                              enum ats_trace_role role)
{
    void (*observe)(ggml_backend_t, ended_t, void *) = NULL;
    void (*tag)(ggml_backend_t, uint64_t) = NULL;
    struct ats_trace_lane lane = describe(stream, role);
    lane.has_clock = ats_backend_proc(backend, "ats_backend_observe", &observe) &&
                     ats_backend_proc(backend, "ats_backend_tag", &tag);
    const int index = ats_trace_lane(&lane);
    struct observed *o = index < 0 ? NULL : take_entry();
    if (o == NULL) {
        return NULL;
    }
    o->stream = stream->observed;
    o->role = role;
    o->lane = index;
    o->tag = lane.has_clock ? tag : NULL;
    o->ran = (struct ats_trace_record){0};
    if (lane.has_clock) {
        observe(backend, ended, o);
    }
    atomic_store_explicit(&o->backend, backend, memory_order_release);
    return o;
}

void ats_observe_stream(struct ats_stream *stream)
{
    if (config == NULL) {
        return;
    }
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < MOST_OBSERVED && stream->observed == NULL; i++) {
        if (!streams[i].in_use) {
            streams[i] = (struct ats_observed_stream){
                .in_use = true, .context = i, .pass = streams[i].pass, .split = ATS_TRACE_NO_SPLIT};
            stream->observed = &streams[i];
        }
    }
    pthread_mutex_unlock(&lock);
    if (stream->observed == NULL) {
        return;
    }
    const struct observed *cpu = watch(stream, stream->cpu.backend, ATS_TRACE_CPU);
    watch(stream, stream->accel, ATS_TRACE_COMPUTE_STREAM);
    stream->observed->cpu_lane = cpu != NULL ? cpu->lane : -1;
}

void ats_observe_transfer(struct ats_stream *stream, ggml_backend_t transfer)
{
    if (stream->observed != NULL) {
        watch(stream, transfer,
              transfer == stream->staging.transfer ? ATS_TRACE_TRANSFER_STREAM
                                                   : ATS_TRACE_SECOND_TRANSFER_STREAM);
    }
}

void ats_observe_stream_end(struct ats_stream *stream)
{
    if (stream->observed != NULL) {
        pthread_mutex_lock(&lock);
        stream->observed->in_use = false;
        pthread_mutex_unlock(&lock);
        stream->observed = NULL;
    }
}

/* ---- what ggml's interface does not tell ---- */

/* Adds a record of the stream as a whole, begun at `begin_ns`. */
static void add_of_stream(const struct ats_observed_stream *s, struct ats_trace_record *record)
{
    if (s->cpu_lane >= 0) {
        record->lane = (uint8_t)s->cpu_lane;
        record->pass = s->pass;
        record->split = ATS_TRACE_NO_SPLIT;
        end(record);
    }
}

void ats_observe_staging(struct ats_stream *stream, bool there)
{
    struct ats_observed_stream *s = stream->observed;
    if (s == NULL || stream->staging.buffer == NULL) {
        return;
    }
    struct ats_trace_record record = {
        .begin_ns = ats_trace_now_ns(),
        .kind = ATS_TRACE_STAGING,
        .space = (uint64_t)(uintptr_t)stream->staging.buffer,
        .address = (uint64_t)(uintptr_t)stream->staging.base,
        .bytes = there ? stream->staging.size : 0,
    };
    set_name(record.name, sizeof(record.name), "staging memory");
    add_of_stream(s, &record);
}

void ats_observe_store(struct ats_stream *stream, const struct ats_expert_store *store, bool there)
{
    struct ats_observed_stream *s = stream->observed;
    if (s == NULL) {
        return;
    }
    struct ats_trace_record record = {
        .begin_ns = ats_trace_now_ns(),
        .kind = ATS_TRACE_STAGING,
        .space = (uint64_t)(uintptr_t)store->buffer,
        .address = (uint64_t)(uintptr_t)store->in_vram[0].data,
        .bytes = there ? store->bytes : 0,
    };
    set_name(record.name, sizeof(record.name), store->in_vram[0].name);
    add_of_stream(s, &record);
}

void ats_observe_slots(struct ats_stream *stream, const struct ats_expert_store *store,
                       const struct ats_expert_fill *fill, const int32_t *slots,
                       const int32_t *experts, uint32_t n)
{
    if (stream->observed != NULL) {
        stream->observed->noted = (struct slots_noted){store, fill, slots, experts, n};
    }
}

void ats_observe_pass(struct ats_stream *stream, const struct ggml_cgraph *cgraph)
{
    struct ats_observed_stream *s = stream->observed;
    if (s == NULL) {
        return;
    }
    s->pass++;
    s->in_pass = true;
    s->split = ATS_TRACE_NO_SPLIT;
    s->given_ns = 0;
    s->n_tokens = ats_graph_tokens(cgraph);
    s->n_built = stream->n_built;
    s->pass_begin_ns = ats_trace_now_ns();
    current = find(stream->accel);
}

void ats_observe_planned(struct ats_stream *stream)
{
    struct ats_observed_stream *s = stream->observed;
    if (s != NULL && stream->n_built != s->n_built) {
        s->n_built = stream->n_built;
        struct ats_trace_record record = {.begin_ns = s->pass_begin_ns, .kind = ATS_TRACE_PLAN};
        set_name(record.name, sizeof(record.name), "plan");
        add_of_stream(s, &record);
    }
}

void ats_observe_pass_end(struct ats_stream *stream)
{
    struct ats_observed_stream *s = stream->observed;
    if (s == NULL) {
        return;
    }
    struct ats_trace_record record = {
        .begin_ns = s->pass_begin_ns, .kind = ATS_TRACE_PASS, .count = s->n_tokens};
    add_of_stream(s, &record);
    s->in_pass = false;
    s->given_ns = 0;
    current = NULL;
}

/* A command of the CPU's, with operands; without them there is nothing to see. */
void ats_observe_move(struct ats_stream *stream, const char *name, const void *from, const void *to,
                      size_t bytes)
{
    struct observed *o =
        stream->observed == NULL || !ats_trace_wants_operands() ? NULL : find(stream->cpu.backend);
    if (o == NULL) {
        return;
    }
    struct ats_trace_record record;
    make_command(&record, o, ATS_TRACE_COMPUTE);
    set_name(record.name, sizeof(record.name), name);
    begin(&record, o);
    struct ats_trace_record operand = record;
    operand.kind = ATS_TRACE_READ;
    operand.end_ns = record.begin_ns;
    operand.address = (uint64_t)(uintptr_t)from;
    operand.bytes = bytes;
    ats_trace_add(&operand);
    operand.kind = ATS_TRACE_WRITE;
    operand.address = (uint64_t)(uintptr_t)to;
    ats_trace_add(&operand);
    record.count = 1;
    end_given(&record, o);
}

void ats_observe_split(struct ats_stream *stream, int32_t split)
{
    if (stream->observed != NULL) {
        stream->observed->split = split;
        stream->observed->given_ns = 0;
    }
}

/* ---- start and end ---- */

/* To stderr and not to ggml's log: at exit the program's own log may be gone. */
static void write_at_exit(void)
{
    struct ats_trace trace;
    struct ats_error err = {"out of memory"};
    if (!ats_trace_snapshot(&trace)) {
        fprintf(stderr, "ats: no recording written to %s (ATS_TRACE): %s\n", config->trace,
                err.text);
        return;
    }
    if (!ats_trace_write(&trace, config->trace, &err)) {
        fprintf(stderr, "ats: %s (ATS_TRACE)\n", err.text);
    } else if (trace.dropped > 0) {
        fprintf(stderr,
                "ats: the recording %s lacks the oldest %llu records, for want of memory; "
                "ATS_TRACE_MEMORY sets how much there is\n",
                config->trace, (unsigned long long)trace.dropped);
    }
    ats_trace_free(&trace);
}

bool ats_observe_start(const struct ats_config *with, struct ats_error *err)
{
    if (with->trace == NULL || config != NULL) {
        return true;
    }
    if (!ats_trace_start(with->trace_memory, with->trace_operands, err)) {
        return false;
    }
    config = with;
    original = ats_ggml;
    ats_ggml.fn_ggml_backend_graph_compute_async = graph_compute_async;
    ats_ggml.fn_ggml_backend_tensor_set_async = tensor_set_async;
    ats_ggml.fn_ggml_backend_tensor_set_2d_async = tensor_set_2d_async;
    ats_ggml.fn_ggml_backend_tensor_get_async = tensor_get_async;
    ats_ggml.fn_ggml_backend_synchronize = synchronize;
    ats_ggml.fn_ggml_backend_event_record = event_record;
    ats_ggml.fn_ggml_backend_event_wait = event_wait;
    ats_ggml.fn_ggml_backend_event_synchronize = event_synchronize;
    ats_ggml.fn_ggml_backend_free = backend_free;
    if (atexit(write_at_exit) != 0) {
        return ats_fail(err, "cannot have the recording written at exit");
    }
    return true;
}
