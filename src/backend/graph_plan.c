#include "backend/graph_plan.h"

#include "backend/decide.h"
#include "backend/experts_fill.h"
#include "backend/place.h"
#include "backend/promotion.h"
#include "backend/residency.h"
#include "backend/used.h"
#include "plan/sides.h"

#include <stdlib.h>
#include <string.h>

struct builder {
    struct ats_stream *stream;
    struct ats_device *device;
    const struct ggml_cgraph *cgraph;
    struct ats_description description;
    enum ats_side *sides;
    struct ats_staged *staged; /* promoted or held weights, in the order of their use */
    size_t n_staged;
    bool without_promotion;
    bool without_use; /* of experts alone that the pass uses (plan/used.h) */
    bool beside;      /* the device and the stream are at work, and stay as they are */
    struct ats_plan_rates rates;
    struct ats_expert_region *regions;
    size_t n_regions;
    struct ats_schedule schedule;
    struct ats_graph_plan *plan;
    struct ats_error *err;
};

/* ---- sides ---- */

/* Leaves only the CPU to every operator that it supports. */
static void avoid_accel(struct builder *b)
{
    for (size_t i = 0; i < b->description.graph.n_ops; i++) {
        if ((b->description.ops[i].supported & ATS_ON(ATS_HOST)) != 0) {
            b->description.ops[i].supported = ATS_ON(ATS_HOST);
        }
    }
    for (size_t r = 0; r < b->description.graph.n_roots; r++) {
        struct ats_location *location = &b->description.locations[r];
        location->accel_can = location->accel_can && !location->host_can;
    }
}

/* ---- memory ---- */

/* Compute memory on the accelerator for the graph's compute buffers. */
static bool take_mirrors(struct builder *b, struct ats_error *err)
{
    for (size_t r = 0; r < b->description.graph.n_roots; r++) {
        const struct ats_location *location = &b->description.locations[r];
        if (location->buffer != NULL && location->record == NULL &&
            !ats_mirror_take(location->buffer, b->stream->accel, err)) {
            return false;
        }
    }
    return true;
}

static bool take_record(struct builder *b, struct ats_record *record)
{
    if (record == NULL || record->block != NULL) {
        return true;
    }
    if (b->beside) {
        return false;
    }
    struct ats_error first = {{0}};
    if (ats_vram_take(b->device, &record, 1, &first)) {
        return true;
    }
    return ats_residency_make_room(b->device, ats_vram_bytes(b->device, &record->as_made),
                                   b->stream->accel, b->err) &&
           ats_vram_take(b->device, &record, 1, b->err);
}

/* VRAM for everything that the accelerator's operators touch. False beside a pass if any is to be
 * taken. */
static bool take_operands(struct builder *b)
{
    for (size_t i = 0; i < b->description.graph.n_ops; i++) {
        const struct ats_op *op = &b->description.ops[i];
        if (b->sides[i] != ATS_ACCEL || op->write < 0) {
            continue;
        }
        for (uint32_t n = 0; n <= op->n_reads; n++) {
            const size_t root =
                n < op->n_reads ? b->description.reads[op->first_read + n] : (size_t)op->write;
            const struct ats_root *r = &b->description.roots[root];
            if (!r->promoted && !r->held && !r->sliced &&
                !take_record(b, b->description.locations[root].record)) {
                return false;
            }
        }
    }
    return true;
}

/* Whether a run looks where the bytes are. Weights that a graph only reads do not move without its
 * plan becoming void; state does, where another graph writes it. */
static bool is_checked_at_run(const struct ats_location *location)
{
    return location->buffer != NULL &&
           (location->record == NULL || location->written || !location->record->is_weight);
}

/* Brings weights that this graph only reads to where they are read, now, under the write lock:
 * they may be shared with other contexts. All else is brought when it runs. False beside a pass if
 * any is to be brought. */
static bool bring_read_only(struct builder *b)
{
    for (size_t r = 0; r < b->description.graph.n_roots; r++) {
        const struct ats_location *location = &b->description.locations[r];
        struct ats_record *record = location->record;
        if (record == NULL || is_checked_at_run(location)) {
            continue;
        }
        const ats_side_set needs = b->schedule.needs[r];
        for (int side = 0; side < ATS_SIDES; side++) {
            const bool lacks = (needs & ~record->valid & ATS_ON(side)) != 0;
            if (lacks && (b->beside || !ats_record_bring(record, (enum ats_side)side,
                                                         b->stream->accel, b->err))) {
                return false;
            }
        }
    }
    return true;
}

/* ---- experts ---- */

static bool find_experts(struct builder *b)
{
    return ats_experts_find(&b->description, b->cgraph, &b->regions, &b->n_regions) ||
           ats_fail(b->err, "out of memory");
}

/* Gives the graph's experts slots, and marks what both sides compute. */
static void take_experts(struct builder *b)
{
    ats_experts_take(b->stream, &b->description, b->cgraph, b->regions, b->n_regions);
    ats_describe_homes(&b->description); /* biases have moved */
    ats_experts_mark(b->stream, &b->description, b->cgraph, b->regions, b->n_regions);
}

/* The tables of the regions that are marked, by their splits. */
static bool fill_regions(struct builder *b)
{
    struct ats_graph_plan *plan = b->plan;
    plan->regions = calloc(b->n_regions + 1, sizeof(*plan->regions));
    if (plan->regions == NULL) {
        return ats_fail(b->err, "out of memory");
    }
    for (size_t s = 0; s < b->schedule.n_splits; s++) {
        const struct ats_split *split = &b->schedule.splits[s];
        const uint32_t region = split->n_ops > 0 ? b->description.ops[split->first_op].region : 0;
        if (region == 0) {
            continue;
        }
        struct ats_expert_run *run = &plan->regions[plan->n_regions++];
        if (!ats_expert_run_make(b->stream, &b->description, b->cgraph, &b->regions[region - 1],
                                 run, b->err)) {
            return false;
        }
        run->profile_us[ATS_HOST] = plan->splits[s].profile_us[ATS_HOST];
        run->profile_us[ATS_ACCEL] = plan->splits[s].profile_us[ATS_ACCEL];
        plan->splits[s].experts = run;
    }
    return true;
}

/* Whether the weight of the step is read by the region. */
static bool is_of_region(const struct builder *b, const struct ats_expert_region *region,
                         const struct ats_used_step *step)
{
    for (size_t i = region->first; i < region->first + region->n; i++) {
        if (b->cgraph->nodes[i] == step->node) {
            return true;
        }
    }
    return false;
}

static bool fill_shares(struct builder *b)
{
    struct ats_graph_plan *plan = b->plan;
    size_t n_inputs = 0;
    for (size_t s = 0; s < b->schedule.n_splits; s++) {
        const uint32_t number = b->schedule.splits[s].share;
        const size_t n =
            number != 0 ? ats_share_inputs(b->stream, b->cgraph, &b->regions[number - 1]) : 0;
        n_inputs = n > n_inputs ? n : n_inputs;
    }
    plan->shares = calloc(b->n_regions + 1, sizeof(*plan->shares));
    plan->share_inputs = malloc((n_inputs + 1) * sizeof(*plan->share_inputs));
    if (plan->shares == NULL || plan->share_inputs == NULL) {
        return ats_fail(b->err, "out of memory");
    }
    for (size_t s = 0; s < b->schedule.n_splits; s++) {
        if (b->schedule.splits[s].share == 0) {
            continue;
        }
        const struct ats_expert_region *region = &b->regions[b->schedule.splits[s].share - 1];
        struct ats_share *share = &plan->shares[plan->n_shares++];
        if (!ats_share_make(b->stream, &b->description, b->cgraph, region, plan->share_inputs,
                            share, b->err)) {
            return false;
        }
        plan->splits[s].share = share;
        for (size_t i = 0; i < plan->n_promotions; i++) {
            struct ats_used_step *step = plan->promotions[i].used;
            if (step != NULL && is_of_region(b, region, step)) {
                step->share = share;
            }
        }
    }
    return true;
}

/* ---- the plan's tables ---- */

static struct ats_transfer transfer_of(const struct ats_location *location)
{
    struct ats_transfer transfer = {
        .buffer = location->buffer,
        .record = location->record,
        .begin = location->begin,
        .bytes = location->bytes,
    };
    if (location->record == NULL && ats_accel_buffer(location) != NULL) {
        const char *host = location->buffer->base + location->begin;
        transfer.accel = ats_raw_tensor(ats_accel_buffer(location),
                                        ats_accel_address(location, host), location->bytes);
        ats_name_after(&transfer.accel, location->tensor);
    }
    return transfer;
}

static bool fill_externals(struct builder *b)
{
    struct ats_graph_plan *plan = b->plan;
    plan->externals = calloc(b->description.graph.n_roots + 1, sizeof(*plan->externals));
    if (plan->externals == NULL) {
        return false;
    }
    for (size_t r = 0; r < b->description.graph.n_roots; r++) {
        const struct ats_location *location = &b->description.locations[r];
        if (b->schedule.needs[r] != 0 && is_checked_at_run(location)) {
            plan->externals[plan->n_externals++] = (struct ats_external){
                .transfer = transfer_of(location), .needs = b->schedule.needs[r]};
        }
    }
    return true;
}

static bool fill_copies(struct builder *b)
{
    struct ats_graph_plan *plan = b->plan;
    plan->copies = calloc(b->schedule.n_copies + 1, sizeof(*plan->copies));
    if (plan->copies == NULL) {
        return false;
    }
    for (size_t c = 0; c < b->schedule.n_copies; c++) {
        plan->copies[plan->n_copies++] =
            transfer_of(&b->description.locations[b->schedule.copies[c]]);
    }
    return true;
}

/* The weight's bytes, or those of a piece: its rows of each expert. */
static struct ats_part part_of(const struct builder *b, const struct ats_staged *staged)
{
    const struct ats_record *record = b->description.locations[staged->root].record;
    const struct ats_pieces *pieces = &b->description.roots[staged->root].pieces;
    const struct ggml_tensor *matrix = &record->as_made;
    if (pieces->n <= 1 || b->description.roots[staged->root].by_use) {
        return (struct ats_part){.bytes = record->bytes, .n = 1};
    }
    return (struct ats_part){
        .offset = (size_t)staged->piece * pieces->rows * matrix->nb[1],
        .bytes = ats_piece_rows(pieces, (uint64_t)matrix->ne[1], staged->piece) * matrix->nb[1],
        .n = (size_t)matrix->ne[2],
        .stride = matrix->nb[2],
    };
}

/* The parcel of a matrix whose earlier ones come before it in the plan. */
static bool fill_used(struct builder *b, const struct ats_staged *staged,
                      struct ats_promotion_step *promotion)
{
    promotion->parcel = staged->piece;
    promotion->used = staged->piece > 0 ? promotion[-1].used
                                        : ats_used_make(b->stream, &b->description, staged->root,
                                                        &b->description.used[staged->root], b->err);
    if (promotion->used != NULL) {
        ats_used_set_place(promotion->used, promotion->parcel, &promotion->accel);
    }
    return promotion->used != NULL;
}

static bool fill_promotions(struct builder *b)
{
    struct ats_graph_plan *plan = b->plan;
    plan->promotions = calloc(b->n_staged + 1, sizeof(*plan->promotions));
    if (plan->promotions == NULL) {
        return false;
    }
    for (size_t i = 0; i < b->n_staged; i++) {
        const struct ats_staged *staged = &b->staged[i];
        const struct ats_location *location = &b->description.locations[staged->root];
        const struct ats_staging_area *area = &b->stream->staging;
        const struct ggml_tensor accel =
            ats_words_tensor(area->buffer, area->base + staged->offset, staged->bytes);
        const struct ats_part part = part_of(b, staged);
        const struct ats_root *root = &b->description.roots[staged->root];
        plan->promotions[plan->n_promotions++] = (struct ats_promotion_step){
            .record = location->record,
            .part = part,
            .accel = accel,
            .bytes = part.n * part.bytes,
            .padding = root->by_use ? 0 : staged->bytes - part.n * part.bytes,
            /* what stays is copied once, and then found as a whole */
            .fill = root->held || root->by_use
                        ? NULL
                        : ats_expert_fill_make(b->stream, &b->rates.costs, location->record, &part,
                                               &accel),
            .after_split = staged->after == ATS_STAGED_AT_ONCE
                               ? ATS_NO_SPLIT
                               : (int32_t)b->staged[staged->after].last_split,
        };
        ats_name_after(&plan->promotions[i].accel, &location->record->as_made);
        if (root->by_use && !fill_used(b, staged, &plan->promotions[i])) {
            return false;
        }
    }
    plan->chunk = b->description.chunk;
    for (size_t i = 0; i < plan->n_promotions; i++) {
        plan->has_fills =
            plan->has_fills || plan->promotions[i].fill != NULL ||
            (plan->promotions[i].used != NULL && plan->promotions[i].used->store != NULL);
    }
    if (b->n_staged > 0 && b->description.roots[b->staged[0].root].held) {
        plan->held = ats_promotion_name(&b->description, b->staged, b->n_staged);
    }
    return true;
}

static bool computes(const struct builder *b, const struct ats_split *split)
{
    for (uint32_t i = 0; i < split->n_ops; i++) {
        if (b->description.ops[split->first_op + i].write != ATS_NO_ROOT) {
            return true;
        }
    }
    return false;
}

/* What the split takes by the profile, without the drift that it is planned by. */
static void note_profile(const struct builder *b, const struct ats_split *split,
                         struct ats_plan_split *out)
{
    const struct ats_drift *drift = &b->stream->meter.watch.planned;
    for (uint32_t i = 0; i < split->n_ops; i++) {
        const struct ats_op *op = &b->description.ops[split->first_op + i];
        for (int side = 0; side < ATS_SIDES && op->write != ATS_NO_ROOT; side++) {
            out->profile_us[side] += op->cost_us[side] / (float)drift->side[side] /
                                     (float)(split->n_pieces > 0 ? split->n_pieces : 1);
        }
    }
}

/* What the split computes. */
static bool make_graph(struct builder *b, const struct ats_split *split, struct ggml_cgraph *graph)
{
    struct ats_graph_plan *plan = b->plan;
    if (split->by_use) { /* it has graphs of its own */
        return true;
    }
    if (split->n_pieces > 0) {
        const struct ats_staging_area *area = &b->stream->staging;
        struct ats_piece_op *op = &plan->piece_ops[plan->n_piece_ops++];
        if (!ats_piece_op_make(&b->description, b->staged[split->first_promotion].root,
                               split->piece, &plan->promotions[split->first_promotion].accel,
                               area->base + area->ring, op, b->err)) {
            return false;
        }
        *graph = op->graph;
        return true;
    }
    const bool on_accel = split->side == ATS_ACCEL;
    *graph = ats_graph_slice(on_accel ? &plan->stand_ins.graph : b->cgraph,
                             on_accel ? plan->stand_ins.nodes : plan->host_nodes, split->first_op,
                             split->n_ops);
    return true;
}

static bool fill_splits(struct builder *b)
{
    struct ats_graph_plan *plan = b->plan;
    const size_t n_nodes = b->description.graph.n_ops;
    plan->splits = calloc(b->schedule.n_splits + 1, sizeof(*plan->splits));
    plan->host_nodes = calloc(n_nodes + 1, sizeof(struct ggml_tensor *));
    plan->piece_ops = calloc(b->schedule.n_promotions + 1, sizeof(*plan->piece_ops));
    if (plan->splits == NULL || plan->host_nodes == NULL || plan->piece_ops == NULL) {
        return false;
    }
    memcpy(plan->host_nodes, b->cgraph->nodes, n_nodes * sizeof(struct ggml_tensor *));
    for (size_t s = 0; s < b->schedule.n_splits; s++) {
        const struct ats_split *split = &b->schedule.splits[s];
        const bool on_accel = split->side == ATS_ACCEL;
        plan->splits[plan->n_splits++] = (struct ats_plan_split){
            .side = split->side,
            .computes = computes(b, split),
            .first_copy = split->first_copy,
            .n_copies = split->n_copies,
            .first_promotion = split->first_promotion,
            .n_promotions = split->n_promotions,
            .by_use = split->by_use,
        };
        if (!make_graph(b, split, &plan->splits[s].graph)) {
            return false;
        }
        note_profile(b, split, &plan->splits[s]);
        if (!on_accel && split->n_copies > 0 && !b->beside) {
            ats_landing_open(b->stream);
        }
    }
    return true;
}

static struct ats_plan_ranges *ranges_of(struct ats_graph_plan *plan, struct ats_buffer *buffer)
{
    for (size_t i = 0; i < plan->n_ranges; i++) {
        if (plan->ranges[i].buffer == buffer) {
            return &plan->ranges[i];
        }
    }
    struct ats_plan_ranges *ranges = &plan->ranges[plan->n_ranges++];
    ranges->buffer = buffer;
    return ranges;
}

/* The state after the graph. Memory is recycled, so the roots are taken in the order of
 * their last writing: a later one covers an earlier one. */
static bool fill_final_state(struct builder *b)
{
    struct ats_graph_plan *plan = b->plan;
    const size_t n_roots = b->description.graph.n_roots;
    const size_t n_ops = b->description.graph.n_ops;
    int32_t *written_by = malloc((n_ops + 1) * sizeof(*written_by));
    plan->ranges = calloc(n_roots + 1, sizeof(*plan->ranges));
    plan->records = calloc(n_roots + 1, sizeof(*plan->records));
    bool ok = written_by != NULL && plan->ranges != NULL && plan->records != NULL;
    if (ok) {
        memset(written_by, -1, (n_ops + 1) * sizeof(*written_by));
    }
    for (size_t r = 0; ok && r < n_roots; r++) {
        if (b->schedule.final[r] != 0) {
            written_by[b->description.locations[r].last_write] = (int32_t)r;
        }
    }
    for (size_t i = 0; ok && i < n_ops; i++) {
        if (written_by[i] < 0) {
            continue;
        }
        const struct ats_location *location = &b->description.locations[written_by[i]];
        const ats_side_set valid = b->schedule.final[written_by[i]];
        if (location->record != NULL) {
            plan->records[plan->n_records++] =
                (struct ats_plan_record){.record = location->record, .valid = valid};
        } else if (location->buffer != NULL) {
            struct ats_plan_ranges *ranges = ranges_of(plan, location->buffer);
            ok = ats_range_map_set(&ranges->map, location->begin, location->begin + location->bytes,
                                   valid);
        }
    }
    free(written_by);
    return ok;
}

/* ---- building ---- */

static bool fill_plan(struct builder *b)
{
    if (!ats_stand_ins_make(&b->description, b->cgraph, b->sides, &b->schedule, &b->plan->stand_ins,
                            b->err)) {
        return false;
    }
    if (!fill_externals(b) || !fill_copies(b) || !fill_promotions(b) || !fill_splits(b) ||
        !fill_final_state(b)) {
        return b->err->text[0] == '\0' && ats_fail(b->err, "out of memory");
    }
    ats_promotions_arm(b->stream, b->plan);
    return fill_regions(b) && fill_shares(b);
}

/* False: out of memory. */
static bool choose_promotion(struct builder *b)
{
    if (b->without_promotion) {
        return true;
    }
    ats_shares_find(b->stream, &b->description, b->cgraph, b->regions, b->n_regions);
    const bool ok = ats_promotion_choose(b->stream, &b->description, !b->without_use);
    if (ok) {
        ats_shares_mark(&b->description, b->cgraph, b->regions, b->n_regions);
    }
    return ok;
}

/* Places what is new, decides the sides and takes memory. Weights may have to move out of
 * VRAM to make room, which makes the decisions void: then the device's epoch has changed. */
static bool decide(struct builder *b, bool without_accel)
{
    struct ats_device *device = b->device;
    struct ats_error reason = {{0}};
    ats_device_settle_budget(device);
    if (!without_accel) {
        ats_decide_rates(b->stream, &b->description);
    }
    const bool host_rule = device->config->rule.kind == ATS_RULE_HOST;
    bool use_accel = !without_accel && device->vram_budget > 0;
    if (use_accel && !host_rule && !take_mirrors(b, &reason)) {
        if (!device->told_cpu_only) {
            ats_log_warn("%s: computing on the CPU only: %s\n", device->name, reason.text);
            device->told_cpu_only = true;
        }
        use_accel = false;
    }
    if (use_accel) {
        ats_experts_make_way(b->stream, &b->description);
        ats_promotion_reserve(b->stream, &b->description);
        ats_decide_homes(b->stream, &b->description, b->cgraph);
        ats_experts_want(b->stream, &b->description, b->cgraph, b->regions, b->n_regions);
    } else {
        avoid_accel(b);
    }
    if (!ats_place_new(b->stream, &b->description, use_accel, b->err)) {
        return false;
    }
    ats_describe_homes(&b->description);
    if (use_accel) {
        take_experts(b);
    }
    if (use_accel && !choose_promotion(b)) {
        return ats_fail(b->err, "out of memory");
    }
    if (!ats_choose_sides(&b->description.graph, &device->config->rule, &b->rates.costs,
                          b->stream->n_built, b->sides)) {
        return ats_fail(b->err, "out of memory");
    }
    for (size_t i = 0; i < b->description.graph.n_ops; i++) {
        if (b->sides[i] == ATS_ACCEL && b->description.ops[i].write != ATS_NO_ROOT) {
            /* nothing is left to take but for the rule `host` */
            return take_mirrors(b, b->err) && take_operands(b);
        }
    }
    return true;
}

/* ---- decisions beside a pass ---- */

/* Whether the graph has all that it needs of the device, so that decisions are the only thing that
 * is new. */
static bool has_all(const struct builder *b)
{
    for (size_t r = 0; r < b->description.graph.n_roots; r++) {
        const struct ats_location *location = &b->description.locations[r];
        const struct ats_buffer *buffer = location->buffer;
        if (buffer == NULL) {
            continue;
        }
        const bool may_pass = b->stream->staging.buffer != NULL && location->record != NULL &&
                              ats_record_is_host_weight(location->record);
        if ((location->record == NULL && buffer->mirror == NULL) ||
            (may_pass && !buffer->pin_tried)) {
            return false;
        }
    }
    return true;
}

/* As decide() does where everything has its place already. False: it has not, or memory is out. */
static bool decide_beside(struct builder *b)
{
    if (!has_all(b)) {
        return false;
    }
    ats_describe_homes(&b->description);
    ats_experts_mark(b->stream, &b->description, b->cgraph, b->regions, b->n_regions);
    return choose_promotion(b) &&
           ats_choose_sides(&b->description.graph, &b->device->config->rule, &b->rates.costs,
                            b->stream->n_built, b->sides) &&
           take_operands(b);
}

/* Describes the graph and decides, until the decisions hold. What fails may not fail again, such as
 * a copy; what fails twice is left to the CPU. */
static bool settle(struct builder *b)
{
    enum { ATTEMPTS = 4 };
    bool settled = false;
    bool without_accel = false;
    int n_failures = 0;
    for (int attempt = 1; !settled; attempt++) {
        ats_description_free(&b->description);
        free(b->sides);
        b->sides = calloc((size_t)b->cgraph->n_nodes + 1, sizeof(*b->sides));
        if (b->sides == NULL) {
            return ats_fail(b->err, "out of memory");
        }
        const uint64_t epoch = b->device->epoch;
        free(b->regions);
        b->regions = NULL;
        b->rates = ats_plan_rates_drifted(&b->device->rates, &b->stream->meter.watch.planned);
        const bool ok =
            ats_describe(b->device, &b->rates, b->cgraph, b->beside, &b->description, b->err) &&
            find_experts(b) && (b->beside ? decide_beside(b) : decide(b, without_accel));
        if (b->beside && !ok) {
            return false;
        }
        /* weights that were moved to make room have new homes, or rates are new: decide again */
        settled = ok && b->device->epoch == epoch;
        if (!ok && without_accel) {
            return false;
        }
        n_failures += !ok;
        without_accel = n_failures > 1 || attempt + 1 >= ATTEMPTS;
    }
    if (b->err->text[0] != '\0') { /* an attempt that was taken back */
        ats_log_warn("%s: %s; planned again\n", b->device->name, b->err->text);
        b->err->text[0] = '\0';
    }
    return ats_schedule_build(&b->description.graph, b->sides, &b->schedule) ||
           ats_fail(b->err, "out of memory");
}

static bool uses_some(const struct ats_description *d)
{
    for (size_t r = 0; r < d->graph.n_roots; r++) {
        if (d->roots[r].by_use) {
            return true;
        }
    }
    return false;
}

static bool build(struct builder *b)
{
    if (!settle(b)) {
        return false;
    }
    while (
        !ats_promotion_stage(b->stream, &b->description, &b->schedule, &b->staged, &b->n_staged)) {
        /* they do not fit together: experts as a whole, or all used where they are */
        ats_schedule_free(&b->schedule);
        if (b->without_promotion) {
            return ats_fail(b->err, "out of memory");
        }
        b->without_promotion = b->without_use || !uses_some(&b->description);
        b->without_use = true;
        if (!settle(b)) {
            return false;
        }
    }
    return bring_read_only(b) && fill_plan(b);
}

void ats_graph_plan_free(struct ats_graph_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    for (size_t i = 0; i < plan->n_ranges; i++) {
        ats_range_map_free(&plan->ranges[i].map);
    }
    ats_promotions_disarm(plan);
    ats_stand_ins_free(&plan->stand_ins);
    for (size_t i = 0; i < plan->n_regions; i++) {
        ats_expert_run_free(&plan->regions[i]);
    }
    free(plan->regions);
    for (size_t i = 0; i < plan->n_shares; i++) {
        ats_share_free(&plan->shares[i]);
    }
    free(plan->shares);
    free(plan->share_inputs);
    for (size_t i = 0; i < plan->n_promotions; i++) {
        ats_expert_fill_free(plan->promotions[i].fill);
        if (plan->promotions[i].parcel == 0) {
            ats_used_step_free(plan->promotions[i].used);
        }
    }
    free(plan->promotions);
    for (size_t i = 0; i < plan->n_piece_ops; i++) {
        ats_piece_op_free(&plan->piece_ops[i]);
    }
    free(plan->piece_ops);
    free(plan->host_nodes);
    free(plan->externals);
    free(plan->copies);
    free(plan->splits);
    free(plan->ranges);
    free(plan->records);
    ats_graph_plan_free(plan->next);
    free(plan);
}

static struct ats_graph_plan *finish(struct builder *b, bool ok)
{
    b->plan->uid = b->cgraph->uid;
    b->plan->epoch = b->device->epoch;
    b->plan->n_rates = b->stream->n_rates;
    b->plan->rates = b->rates;
    b->plan->n_tokens = ats_graph_tokens(b->cgraph);
    ats_schedule_free(&b->schedule);
    ats_description_free(&b->description);
    free(b->sides);
    free(b->staged);
    free(b->regions);
    if (!ok) {
        ats_graph_plan_free(b->plan);
        return NULL;
    }
    return b->plan;
}

static struct ats_graph_plan *build_plan(struct ats_stream *stream,
                                         const struct ggml_cgraph *cgraph, struct ats_error *err)
{
    struct builder b = {.stream = stream,
                        .device = stream->device,
                        .cgraph = cgraph,
                        .plan = calloc(1, sizeof(*b.plan)),
                        .err = err};
    if (b.plan == NULL) {
        ats_fail(err, "out of memory");
        return NULL;
    }
    pthread_rwlock_wrlock(&stream->device->lock);
    struct ats_graph_plan *plan = finish(&b, build(&b));
    pthread_rwlock_unlock(&stream->device->lock);
    stream->n_built++;
    stream->device->counters.plans_built++;
    return plan;
}

struct ats_graph_plan *ats_graph_plan_beside(struct ats_stream *stream,
                                             const struct ggml_cgraph *cgraph, uint64_t epoch)
{
    struct ats_error err = {{0}};
    struct builder b = {.stream = stream,
                        .device = stream->device,
                        .cgraph = cgraph,
                        .beside = true,
                        .plan = calloc(1, sizeof(*b.plan)),
                        .err = &err};
    if (b.plan == NULL) {
        return NULL;
    }
    pthread_rwlock_rdlock(&stream->device->lock);
    struct ats_graph_plan *plan = finish(&b, stream->device->epoch == epoch && build(&b));
    pthread_rwlock_unlock(&stream->device->lock);
    return plan;
}

/* ---- the stream's memory of plans ---- */

static void move_to_front(struct ats_stream *stream, size_t i)
{
    struct ats_graph_plan *plan = stream->plans[i];
    memmove(&stream->plans[1], &stream->plans[0], i * sizeof(struct ats_graph_plan *));
    stream->plans[0] = plan;
}

static size_t find(const struct ats_stream *stream, const struct ggml_cgraph *cgraph)
{
    /* a graph without an identity may be another one at the same address */
    for (size_t k = 0; cgraph->uid != 0 && k < ATS_PLAN_CACHE; k++) {
        if (stream->plans[k] != NULL && stream->plans[k]->uid == cgraph->uid) {
            return k;
        }
    }
    return ATS_PLAN_CACHE - 1;
}

/* A new plan in place of one that the accelerator may still run, whose memory both use. Leaves the
 * old one if there is none. */
static struct ats_graph_plan *replace(struct ats_stream *stream, size_t i,
                                      const struct ggml_cgraph *cgraph, struct ats_error *err)
{
    struct ats_graph_plan *old = stream->plans[i];
    struct ats_graph_plan *plan = NULL;
    ggml_backend_synchronize(&stream->ggml);
    if (old != NULL && old->next != NULL && old->next->epoch == stream->device->epoch &&
        old->next->uid == cgraph->uid) {
        plan = old->next;
        old->next = NULL;
        stream->n_built++;
        stream->device->counters.plans_built++;
        stream->device->counters.beside++;
    } else {
        plan = build_plan(stream, cgraph, err);
    }
    if (plan != NULL) {
        ats_graph_plan_free(old);
        stream->plans[i] = plan;
    }
    return plan;
}

struct ats_graph_plan *ats_graph_plan_get(struct ats_stream *stream,
                                          const struct ggml_cgraph *cgraph, struct ats_error *err)
{
    const size_t i = find(stream, cgraph);
    struct ats_graph_plan *plan = stream->plans[i];
    const bool known = plan != NULL && cgraph->uid != 0 && plan->uid == cgraph->uid &&
                       plan->epoch == stream->device->epoch;
    const bool is_old = known && plan->n_rates != stream->n_rates;
    /* until there is a plan by the new rates, that by the old ones is as right */
    if (!known || (is_old && (plan->next != NULL || plan->needs_more))) {
        const double since_us = ats_meter_now_us();
        plan = replace(stream, i, cgraph, err);
        if (plan == NULL) {
            return NULL;
        }
        if (is_old) {
            stream->device->counters.replan_ns +=
                (unsigned long long)(1e3 * (ats_meter_now_us() - since_us));
        }
    }
    move_to_front(stream, i);
    stream->rates = plan->rates;
    return plan;
}
