#include "tests/sim/liar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/bits.h"
#include "proto/codec.h"
#include "proto/payload_frame.h"
#include "tests/host/words.h"
#include "tests/sim/failure.h"

void liar_say_of(
    struct liar *liar, uint16_t peer, uint64_t sender_job, Adtopk__PeerMessage *message)
{
    Adtopk__PeerAbout about = ADTOPK__PEER_ABOUT__INIT;
    size_t size;
    uint8_t *bytes;

    about.owner = 1000;
    about.name = (char *)(uintptr_t) "job";
    about.run_id = (char *)(uintptr_t) "1";
    about.run = liar->run;
    about.sender_job = sender_job;
    about.receiver_job = liar->job[peer];
    message->about = &about;
    bytes = sim_must(codec_pack(&message->base, &size));
    (void)ghost_say(&liar->ghost, peer, LINK_CONTROL, bytes, size);
    free(bytes);
}

void liar_say(struct liar *liar, uint16_t peer, Adtopk__PeerMessage *message)
{
    liar_say_of(liar, peer, 1, message);
}

void liar_say_join(struct liar *liar, uint16_t peer, uint32_t rank, uint32_t ranks, bool reply,
    Adtopk__PeerView *known)
{
    struct words words;
    Adtopk__PeerJoin *join = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_JOIN);
    uint32_t *list = sim_alloc((ranks + 1) * sizeof(*list));

    for (uint32_t r = 0; r < ranks; r++) {
        list[r] = rank + r;
    }
    join->world_size = 3;
    join->ranks = list;
    join->n_ranks = ranks;
    join->policy = liar->policy;
    join->exchanges = liar->exchanges;
    join->tensors = liar->tensor;
    join->n_tensors = liar->tensors;
    join->view = liar->view;
    join->reply = reply;
    join->known = known;
    join->grows = known != NULL;
    liar_say(liar, peer, &words.message);
    free(list);
}

/* Contributes to a round what node 0 did, perhaps with a few bits changed. */
static void echo(struct liar *liar, const struct buffer *frame)
{
    struct world *world = liar->ghost.world;
    uint8_t *bytes = sim_alloc(frame->size);

    (void)memcpy(bytes, frame->bytes, frame->size);
    store_u16(bytes + AT_SOURCE, LIAR_NODE);
    if (world_chance(world, liar->rate / 20)) {
        uint64_t at = world_random(world, frame->size);
        bytes[at] ^= (uint8_t)(1u << world_random(world, 8));
        liar->lies++;
    }
    store_u32(bytes + AT_CRC, frame_crc(bytes, frame->size));
    (void)ghost_say(&liar->ghost, 0, LINK_BULK, bytes, frame->size);
    (void)ghost_say(&liar->ghost, 1, LINK_BULK, bytes, frame->size);
    free(bytes);
}

/* The honest part: joins, agrees to views, and keeps the rounds going. */
static void answer(struct liar *liar, uint16_t peer, const Adtopk__PeerMessage *message)
{
    if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN) {
        const Adtopk__PeerJoin *join = message->join;
        liar->policy = join->policy;
        if (liar->tensor == NULL) {
            liar->tensors = join->n_tensors;
            liar->tensor = sim_alloc(join->n_tensors * sizeof(uint64_t) + 1);
            (void)memcpy(liar->tensor, join->tensors, join->n_tensors * sizeof(uint64_t));
        }
        if (join->reply) {
            liar_say_join(liar, peer, 2, 1, false, NULL);
        }
    } else if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_FAIL) {
        (void)snprintf(liar->told, sizeof(liar->told), "%s", message->fail->text);
    } else if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_PREPARE) {
        struct words words;
        Adtopk__PeerState *peer_state = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_STATE);
        peer_state->view = liar->view = message->prepare->view;
        liar->run = message->prepare->run;
        peer_state->steps_done = liar->steps;
        if (!liar->silent) {
            liar_say(liar, peer, &words.message);
        }
    }
}

static void hear(
    struct ghost *ghost, uint16_t peer, enum link_lane lane, const struct buffer *heard)
{
    struct liar *liar = ghost->context;
    struct payload_header header;

    if (lane == LINK_CONTROL) {
        Adtopk__PeerMessage *message = (Adtopk__PeerMessage *)codec_unpack(
            &adtopk__peer_message__descriptor, heard->bytes, heard->size, CODEC_PEER_MAX, NULL);
        if (message != NULL && message->about->owner == 1000) {
            liar->job[peer] = message->about->sender_job;
            answer(liar, peer, message);
        }
        codec_free((ProtobufCMessage *)message);
    } else if (payload_peek(&header, heard->bytes, heard->size, NULL) == ADTOPK_OK && peer == 0 &&
               header.kind < 2) {
        liar->steps = header.number;
        if (liar->hangs_at == 0 || liar->steps < liar->hangs_at) {
            echo(liar, heard);
        }
    }
    if (liar->view > 0 && liar->once != NULL) {
        liar->once(liar, liar->variant);
        liar->once = NULL;
    }
    if (liar->view > 0 && world_chance(ghost->world, liar->rate)) {
        liar_lie(liar);
    }
}

/* Three nodes of one rank each; the ghost plays the third, and only job 0 has a rank there. */
struct world *liar_world_under(struct liar *liar, uint64_t seed, const char *policy)
{
    double rate = liar->rate;
    struct scenario scenario = failure_scenario(policy);
    struct world *world;

    scenario.seed = seed;
    scenario.nodes = 3;
    scenario.ranks_per_node = 1;
    scenario.tensors = 0x209;
    scenario.steps = 12;
    scenario.loss = seed % 3 == 0 ? 0.05 : 0;
    scenario.wait = seed % 2 == 0 ? 0.3 : 0;
    scenario.operator_every_us = rate > 0 && seed % 4 < 2 ? 30000 : 0;
    world = world_create(&scenario);
    world->job[0].may_fail = world->job[0].forged = true;
    world->job[1].trainers = 2;
    world->trainer[2].state = TRAINER_DONE;
    world->trainer[5].state = TRAINER_DONE;
    world->trainer[3].says_world_size = world->trainer[4].says_world_size = 2;
    liar->ghost.hear = hear;
    liar->ghost.context = liar;
    ghost_start(world, LIAR_NODE, &liar->ghost);
    return world;
}

struct world *liar_world(struct liar *liar, uint64_t seed)
{
    return liar_world_under(liar, seed, POLICY_WITH(",\"sparse_collective\":\"auto\""));
}

void liar_end(struct liar *liar, struct world *world)
{
    ghost_stop(&liar->ghost);
    free(liar->tensor);
    world_destroy(world);
}
