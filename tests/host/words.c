#include "tests/host/words.h"

void *words_begin(struct words *words, Adtopk__PeerMessage__KindCase kind)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field(&adtopk__peer_message__descriptor, (unsigned)kind);

    adtopk__peer_message__init(&words->message);
    protobuf_c_message_init(field->descriptor, &words->said);
    words->message.kind_case = kind;
    words->message.join = &words->said.join; /* the pointers of all kinds lie at the same place */
    return &words->said;
}

void words_policy(struct words *words, const struct words_of_policy *of)
{
    static const Adtopk__PeerMessage__KindCase kinds[] = {ADTOPK__PEER_MESSAGE__KIND_POLICY_ASK,
        ADTOPK__PEER_MESSAGE__KIND_POLICY_PROPOSE, ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER,
        ADTOPK__PEER_MESSAGE__KIND_POLICY_END};

    (void)words_begin(words, kinds[of->part]);
    if (of->part == 0) {
        words->said.policy_ask.policy = of->policy;
    } else if (of->part == 1) {
        words->said.policy_propose.policy = of->policy;
        words->said.policy_propose.attempt = of->attempt;
    } else if (of->part == 2) {
        words->said.policy_answer.version = of->version;
        words->said.policy_answer.attempt = of->attempt;
        words->said.policy_answer.status = of->status;
        words->said.policy_answer.text = of->text;
    } else {
        words->said.policy_end.version = of->version;
        words->said.policy_end.status = of->status;
        words->said.policy_end.node = of->node;
        words->said.policy_end.text = of->text;
    }
}
