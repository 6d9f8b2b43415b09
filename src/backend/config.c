#include "backend/config.h"

#include "base/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a prompt or an answer; a context is shorter. */
enum { MOST_SESSION_TOKENS = 1 << 24 };

static const char *value_of(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* The files that ATS_PLAN_OUT writes for the second device and those behind it. */
static bool read_other_devices(const char *path, struct ats_placement_table *table,
                               struct ats_error *err)
{
    char more[4096];
    bool ok = true;
    for (int device = 1; ok; device++) {
        snprintf(more, sizeof(more), "%s.ATS%d", path, device);
        if (access(more, F_OK) != 0) {
            break;
        }
        ok = ats_placement_read_more(more, table, err);
    }
    return ok;
}

static bool read_rule(const char *text, struct ats_config *config, struct ats_error *err)
{
    struct ats_error reason = {{0}};
    if (ats_rule_parse(text, &config->rule, &reason)) {
        return true;
    }
    if (reason.text[0] != '\0') {
        return ats_fail(err, "ATS_PLACEMENT: %.400s", reason.text);
    }
    if (access(text, F_OK) != 0) {
        return ats_fail(err,
                        "ATS_PLACEMENT=%s is neither a rule (auto, fill, host, vram, random:SEED) "
                        "nor an existing plan file",
                        text);
    }
    if (!ats_placement_read(text, &config->table, &reason) ||
        !read_other_devices(text, &config->table, &reason)) {
        return ats_fail(err, "ATS_PLACEMENT: %.400s", reason.text);
    }
    config->rule = (struct ats_rule){.kind = ATS_RULE_TABLE, .table = &config->table};
    return true;
}

/* Models of tests have weights of a few KiB, with rows by the power of two: the last piece is
 * smaller. */
static const struct ats_piece_rule pieces_of_tests = {
    .most_bytes = 2048, .most_dense_bytes = 2048, .row_tile = 24, .least_rows = 4};

static bool read_promotion(const char *text, struct ats_config *config, struct ats_error *err)
{
    static const struct {
        const char *name;
        enum ats_promotion_kind kind;
        const struct ats_piece_rule *pieces;
        enum ats_used_kind used;
        bool tight_used;
    } names[] = {{"auto", ATS_PROMOTE_FASTER, &ats_piece_rule_default, ATS_USED_IF_FASTER, false},
                 {"none", ATS_PROMOTE_NONE, &ats_piece_rule_default, ATS_USED_NEVER, false},
                 {"all", ATS_PROMOTE_ALL, &ats_piece_rule_default, ATS_USED_NEVER, false},
                 {"used", ATS_PROMOTE_ALL, &pieces_of_tests, ATS_USED_IF_FASTER, true},
                 {"pieces", ATS_PROMOTE_ALL, &pieces_of_tests, ATS_USED_NEVER, false}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i].name) == 0) {
            config->promotion.kind = names[i].kind;
            config->promotion.used = names[i].used;
            config->promotion.tight_used = names[i].tight_used;
            config->pieces = *names[i].pieces;
            return true;
        }
    }
    struct ats_error reason = {{0}};
    config->promotion.kind = ATS_PROMOTE_RANDOM;
    config->promotion.tight_used = true;
    config->pieces = pieces_of_tests;
    if (strncmp(text, "random:", 7) == 0 &&
        ats_parse_u64(text + 7, UINT64_MAX, &config->promotion.seed, &reason)) {
        return true;
    }
    return ats_fail(err, "ATS_PROMOTE=%.200s is none of auto, none, all, pieces, used, random:SEED",
                    text);
}

static bool read_transfer(const char *text, struct ats_config *config, struct ats_error *err)
{
    if (strcmp(text, "async") != 0 && strcmp(text, "serial") != 0) {
        return ats_fail(err, "ATS_TRANSFER=%.200s is neither async nor serial", text);
    }
    config->transfer = text[0] == 'a' ? ATS_TRANSFER_ASYNC : ATS_TRANSFER_SERIAL;
    return true;
}

static bool read_experts(const char *text, struct ats_config *config, struct ats_error *err)
{
    static const char *const names[] = {[ATS_EXPERTS_AUTO] = "auto",
                                        [ATS_EXPERTS_WHOLE] = "whole",
                                        [ATS_EXPERTS_SLICES] = "slices"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i]) == 0) {
            config->experts = (enum ats_experts_kind)i;
            return true;
        }
    }
    return ats_fail(err, "ATS_EXPERTS=%.200s is none of auto, whole, slices", text);
}

/* A rule that is there for tests draws promotions at random too; one that keeps a model on one
 * side keeps it there. */
static enum ats_promotion_kind promotion_of(enum ats_rule_kind rule)
{
    switch (rule) {
    case ATS_RULE_HOST:
        return ATS_PROMOTE_NONE;
    case ATS_RULE_RANDOM:
        return ATS_PROMOTE_RANDOM;
    default:
        return ATS_PROMOTE_FASTER;
    }
}

static bool read_profile(const char *text, struct ats_config *config, struct ats_error *err)
{
    config->use_profile = text == NULL || strcmp(text, "off") != 0;
    config->profile =
        config->use_profile && text != NULL && strcmp(text, "auto") != 0 ? text : NULL;
    return config->profile == NULL || access(config->profile, R_OK) == 0 ||
           ats_fail(err, "ATS_PROFILE=%.200s is neither auto, nor off, nor a file that can be read",
                    text);
}

static bool read_adapt(const char *text, struct ats_config *config, struct ats_error *err)
{
    struct ats_error reason = {{0}};
    if (text == NULL || strcmp(text, "auto") == 0) {
        return true;
    }
    if (strcmp(text, "off") == 0) {
        config->adapt = ATS_ADAPT_OFF;
        return true;
    }
    config->adapt = ATS_ADAPT_RANDOM;
    return (strncmp(text, "random:", 7) == 0 &&
            ats_parse_u64(text + 7, UINT64_MAX, &config->adapt_seed, &reason)) ||
           ats_fail(err, "ATS_ADAPT=%.200s is none of auto, off, random:SEED", text);
}

static bool read_session(const char *text, struct ats_config *config, struct ats_error *err)
{
    config->session = ats_workload_default();
    if (text == NULL) {
        return true;
    }
    char prompt[32];
    uint64_t tokens[2];
    struct ats_error reason = {{0}};
    const char *colon = strchr(text, ':');
    const size_t length = colon == NULL ? sizeof(prompt) : (size_t)(colon - text);
    if (length < sizeof(prompt)) {
        memcpy(prompt, text, length);
        prompt[length] = '\0';
        if (ats_parse_u64(prompt, MOST_SESSION_TOKENS, &tokens[0], &reason) &&
            ats_parse_u64(colon + 1, MOST_SESSION_TOKENS, &tokens[1], &reason) && tokens[0] > 0 &&
            tokens[1] > 0) {
            config->session.prompt_tokens = (uint32_t)tokens[0];
            config->session.decode_tokens = (uint32_t)tokens[1];
            return true;
        }
    }
    return ats_fail(err,
                    "ATS_SESSION=%.200s is not PROMPT:ANSWER, two numbers of tokens from 1 to %d",
                    text, MOST_SESSION_TOKENS);
}

static bool read_trace(struct ats_config *config, struct ats_error *err)
{
    const char *memory = value_of("ATS_TRACE_MEMORY");
    const char *check = value_of("ATS_TRACE_CHECK");
    struct ats_error reason = {{0}};
    config->trace_memory = (size_t)128 << 20; /* some 900000 records, minutes of decoding */
    if (memory != NULL && !ats_parse_bytes(memory, &config->trace_memory, &reason)) {
        return ats_fail(err, "ATS_TRACE_MEMORY: %.400s", reason.text);
    }
    if (check != NULL && strcmp(check, "0") != 0 && strcmp(check, "1") != 0) {
        return ats_fail(err, "ATS_TRACE_CHECK=%.200s is neither 0 nor 1", check);
    }
    config->trace_operands = check != NULL && check[0] == '1';
    return true;
}

static bool read_live(const char *text, struct ats_config *config, struct ats_error *err)
{
    config->live = text == NULL || strcmp(text, "off") != 0;
    return text == NULL || strcmp(text, "auto") == 0 || !config->live || text[0] == '/' ||
           ats_fail(err,
                    "ATS_LIVE=%.200s is neither auto, nor off, nor the path of a folder from "
                    "the root on",
                    text);
}

bool ats_config_read(struct ats_config *config, struct ats_error *err)
{
    *config = (struct ats_config){
        .accel = value_of("ATS_ACCEL"),
        .plan_out = value_of("ATS_PLAN_OUT"),
        .stats = value_of("ATS_STATS"),
        .trace = value_of("ATS_TRACE"),
        .rule = {.kind = ATS_RULE_AUTO},
    };
    if (!read_live(value_of("ATS_LIVE"), config, err)) {
        return false;
    }
    const char *budget = value_of("ATS_VRAM");
    if (budget != NULL) {
        struct ats_error reason = {{0}};
        if (!ats_parse_bytes(budget, &config->budget, &reason)) {
            return ats_fail(err, "ATS_VRAM: %.400s", reason.text);
        }
        config->has_budget = true;
    }
    const char *rule = value_of("ATS_PLACEMENT");
    if (rule != NULL && !read_rule(rule, config, err)) {
        return false;
    }
    const enum ats_promotion_kind kind = promotion_of(config->rule.kind);
    config->promotion = (struct ats_promotion){
        .kind = kind, .seed = config->rule.seed, .tight_used = kind == ATS_PROMOTE_RANDOM};
    config->pieces = kind == ATS_PROMOTE_RANDOM ? pieces_of_tests : ats_piece_rule_default;
    const char *promotion = value_of("ATS_PROMOTE");
    if (promotion != NULL && !read_promotion(promotion, config, err)) {
        return false;
    }
    const char *experts = value_of("ATS_EXPERTS");
    if (experts != NULL && !read_experts(experts, config, err)) {
        return false;
    }
    const char *transfer = value_of("ATS_TRANSFER");
    return (transfer == NULL || read_transfer(transfer, config, err)) &&
           read_session(value_of("ATS_SESSION"), config, err) &&
           read_profile(value_of("ATS_PROFILE"), config, err) &&
           read_adapt(value_of("ATS_ADAPT"), config, err) && read_trace(config, err);
}
