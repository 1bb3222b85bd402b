#include "daemon/device/rule.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/order.h"
#include "kernels/base/convert.h"
#include "kernels/kernels.h"

#define RULE_ROOM CHUNK /* least entries of a list: smaller tensors come whole */

const struct question rule_none = {
    .ask = {.list = {.position = {.arena = ENGINE_NOWHERE}, .value = {.arena = ENGINE_NOWHERE}}}};

struct rule {
    struct cpu_survey survey; /* first: what the sparsifier asks */
    struct rule *next;
    struct feed *feed;
    const struct engine_order *order;
    const struct engine_memory *memory;
    struct engine_result *result; /* of the order */
    struct sparsifier_choice choice;
    struct question question;
    struct page_answer answer;
    struct sparse list[2]; /* of `room` entries: the candidates, and what is asked for next */
    uint64_t room;
    unsigned known; /* the list with the candidates */
    bool failed;    /* something was not answered */
};

static uint32_t rule_key(float magnitude)
{
    return convert_bits(magnitude) & 0x7fffffffu;
}

/* ------------------------------------------------------------------ questions */

/* The order that asks: an ADD of nothing, with the stamp of the pass. */
static struct engine_order rule_order(const struct rule *rule)
{
    struct engine_order order = *rule->order;

    order.residual.momentum = engine_nowhere;
    order.parts = 0;
    order.ledger = engine_nowhere;
    order.lost = engine_nowhere;
    order.add = (struct engine_add){
        .unscale = 1, .params = {.beta = 1, .gamma = 1}, .hints = engine_nowhere};
    return order;
}

/* The list that is asked for; nowhere if it has no entries. */
static struct engine_list rule_wants(const struct sparse *list, uint64_t entries)
{
    return (struct engine_list){
        .position = entries > 0 ? engine_here(list->position) : engine_nowhere,
        .value = entries > 0 ? engine_here(list->value) : engine_nowhere,
        .count = entries};
}

/* Asks the worker. lists: entries that come back, in the list that has no candidates. */
static void rule_ask(struct rule *rule, const struct page_ask *ask, uint64_t lists)
{
    struct engine_order order = rule_order(rule);
    struct engine_result result = {.status = ADTOPK_OK};

    rule->answer = (struct page_answer){.magnitude = 0};
    rule->question = (struct question){.ask = *ask, .answer = &rule->answer};
    rule->question.ask.list = rule_wants(&rule->list[1 - rule->known], lists);
    if (rule->failed || !feed_ask(rule->feed, &order, &rule->question, &result) ||
        result.status != ADTOPK_OK) {
        rule->failed = true;
        rule->answer = (struct page_answer){.magnitude = 0};
    }
}

/* The survey gets a list of `count` entries as candidates: all elements from the key on. */
static void rule_knows(struct rule *rule, unsigned list, uint64_t count, uint32_t complete)
{
    rule->known = list;
    rule->list[list].count = count;
    rule->survey.candidate = &rule->list[list];
    rule->survey.lists = 1;
    rule->survey.complete = complete;
}

/* Makes candidates of a list that was asked for, if there was room for all of it. */
static void rule_learns(struct rule *rule, uint32_t least, unsigned list)
{
    if (!rule->failed && least > 0 && rule->answer.reach.count <= rule->room) {
        rule_knows(rule, list, rule->answer.reach.count, least);
    }
}

static uint64_t rule_reach(struct rule *rule, uint32_t least)
{
    rule_ask(rule, &(struct page_ask){.question = PAGE_REACH, .least = least}, rule->room);
    rule_learns(rule, least, 1 - rule->known);
    return rule->answer.reach.count;
}

static uint64_t rule_count(struct cpu_survey *survey, uint32_t least, uint64_t most)
{
    (void)most;
    return rule_reach((struct rule *)survey, least);
}

static void rule_copy(const struct sparse *list, uint64_t count, struct sparse *out)
{
    (void)memcpy(out->position, list->position, count * sizeof(*out->position));
    (void)memcpy(out->value, list->value, count * sizeof(*out->value));
    out->count = count;
}

static uint64_t rule_take(
    struct cpu_survey *survey, uint32_t least, uint64_t most, struct sparse *out)
{
    struct rule *rule = (struct rule *)survey;
    const uint64_t count = rule_reach(rule, least);

    assert(most <= rule->room);
    if (count <= most) {
        rule_copy(&rule->list[rule->known], count, out);
    }
    return count;
}

static struct stats rule_tail(struct cpu_survey *survey, uint32_t least, bool squares)
{
    struct rule *rule = (struct rule *)survey;

    (void)squares;
    rule_ask(rule, &(struct page_ask){.question = PAGE_REACH, .least = least}, 0);
    return rule->answer.reach;
}

static float rule_ranked(struct cpu_survey *survey, uint64_t start, uint64_t stride, uint64_t rank)
{
    struct rule *rule = (struct rule *)survey;

    rule_ask(rule,
        &(struct page_ask){.question = PAGE_RANKED, .start = start, .stride = stride, .rank = rank},
        0);
    return rule->answer.magnitude;
}

/* The least key above a list's smallest one. */
static uint32_t rule_above(const struct sparse *list, uint64_t count)
{
    uint32_t least = INT32_MAX - 1;

    for (uint64_t i = 0; i < count; i++) {
        const uint32_t key = rule_key(list->value[i]);
        least = key < least ? key : least;
    }
    return least + 1;
}

/* The list has all elements above its smallest one, so it makes better candidates than the ones
 * before, which were fewer than k. */
static void rule_top(struct cpu_survey *survey, uint64_t k, struct sparse *out)
{
    struct rule *rule = (struct rule *)survey;
    const unsigned list = 1 - rule->known;

    assert(k <= rule->room);
    out->count = 0;
    if (k == 0) {
        return;
    }
    rule_ask(rule, &(struct page_ask){.question = PAGE_TOP, .rank = k}, k);
    if (!rule->failed) {
        rule_copy(&rule->list[list], k, out);
        rule_knows(rule, list, k, rule_above(out, k));
    }
}

static const struct survey_reader rule_reader = {.count = rule_count,
    .take = rule_take,
    .tail = rule_tail,
    .ranked = rule_ranked,
    .top = rule_top};

/* ------------------------------------------------------------------ a rule's life */

static void rule_drop(struct rule *rule)
{
    for (unsigned i = 0; i < 2; i++) {
        free(rule->list[i].position);
        free(rule->list[i].value);
    }
    free(rule);
}

/* Room for about as many candidates as a good guess brings (survey_hint()), and more, since
 * residuals change from turn to turn. */
static bool rule_reserve(struct rule *rule)
{
    const uint64_t twice = 2 * rule->choice.count;
    const uint64_t room = twice > RULE_ROOM ? twice : RULE_ROOM;

    rule->room = room < rule->order->numel ? room : rule->order->numel;
    for (unsigned i = 0; i < 2; i++) {
        rule->list[i] = (struct sparse){.position = malloc(rule->room * sizeof(uint32_t)),
            .value = malloc(rule->room * sizeof(float)),
            .capacity = rule->room};
        if (rule->list[i].position == NULL || rule->list[i].value == NULL) {
            return false;
        }
    }
    return true;
}

/* From which key on the first list is. */
static uint32_t rule_guess(const struct rule *rule)
{
    const float guess = rule->order->add.state.threshold;

    return rule->room == rule->order->numel ? 1 : guess > 0 ? rule_key(guess) : 0;
}

const struct question *rule_add(struct rule **rules, struct engine_batch *batch, unsigned at)
{
    struct rule *rule = calloc(1, sizeof(*rule));

    if (rule == NULL) {
        return NULL;
    }
    rule->order = &batch->order[at];
    rule->memory = batch->memory;
    rule->result = &batch->result[at];
    rule->choice = order_choice(rule->order);
    if (!rule_reserve(rule)) {
        rule_drop(rule);
        return NULL;
    }
    rule->question = (struct question){.ask = {.question = PAGE_BESIDE,
                                           .least = rule_guess(rule),
                                           .all = rule->choice.need != SURVEY_NO_STATS},
        .answer = &rule->answer};
    rule->question.ask.list =
        rule_wants(&rule->list[0], rule->question.ask.least > 0 ? rule->room : 0);
    rule->next = *rules;
    *rules = rule;
    return &rule->question;
}

static void rule_run(struct rule *rule, void *scratch)
{
    const struct engine_add *add = &rule->order->add;
    const struct sparsifier_turn turn = order_turn(add);
    struct sparse out = {.position = engine_address(rule->memory, add->list.position),
        .value = engine_address(rule->memory, add->list.value),
        .capacity = add->list.count};

    survey_open(&rule->survey, &rule_reader, rule->order->numel, scratch);
    if (rule->choice.need != SURVEY_NO_STATS) {
        rule->survey.base.stats =
            survey_describe(rule->order->numel, rule->choice.need, &rule->answer.all);
    }
    rule_learns(rule, rule->question.ask.least, 0);
    sparsifier_table[add->sparsifier]->select(
        &turn, &add->state, &rule->survey.base, &rule->result->state, &out);
    rule->result->count = out.count;
}

void rule_select(struct rule **rules, struct feed *feed, bool selects)
{
    struct rule *rule = *rules;
    void *scratch = NULL;

    *rules = rule->next;
    if (selects && rule->result->status == ADTOPK_OK) {
        scratch = malloc(survey_scratch(rule->order->numel));
        rule->failed = scratch == NULL;
    }
    if (scratch != NULL) {
        rule->feed = feed;
        rule_run(rule, scratch);
    }
    if (rule->failed) {
        *rule->result = (struct engine_result){.status = ADTOPK_ERR_MEMORY};
    }
    free(scratch);
    rule_drop(rule);
}
