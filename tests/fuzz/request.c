#include "tests/fuzz/request.h"

unsigned fuzz_byte(struct fuzz_input *input)
{
    if (input->size == 0) {
        return 0;
    }
    input->size--;
    return *input->data++;
}

unsigned fuzz_number(struct fuzz_input *input)
{
    const unsigned high = fuzz_byte(input);

    return high << 8 | fuzz_byte(input);
}

static void request_open(struct fuzz_request *made, uint32_t version, struct fuzz_input *input)
{
    static char *const jobs[] = {"job", "silent", "failing", "refused"};

    adtopk__local_open__init(&made->open);
    made->open.version = version;
    made->open.job = jobs[fuzz_byte(input) % 4];
    made->open.run_id = jobs[0];
    made->open.world_size = 1;
    made->request.open = &made->open;
}

static void request_register(struct fuzz_request *made, struct fuzz_input *input)
{
    static char *const names[] = {"a", "b", "c", "", "\x01"};

    adtopk__local_tensor__init(&made->tensor);
    adtopk__local_register__init(&made->batch);
    made->shape[0] = fuzz_number(input) % 4000;
    made->shape[1] = 1 + fuzz_byte(input) % 4;
    made->tensor.name = names[fuzz_byte(input) % 5];
    made->tensor.forms = fuzz_byte(input);
    made->tensor.n_shape = 2;
    made->tensor.shape = made->shape;
    made->list[0] = &made->tensor;
    made->batch.n_tensors = 1;
    made->batch.tensors = made->list;
    made->request.register_ = &made->batch;
}

void fuzz_request_make(
    struct fuzz_request *made, unsigned kind, uint32_t version, struct fuzz_input *input)
{
    adtopk__local_request__init(&made->request);
    adtopk__local_commit__init(&made->commit);
    adtopk__local_mapped__init(&made->mapped);
    adtopk__local_leave__init(&made->leave);
    made->request.kind_case = (Adtopk__LocalRequest__KindCase)kind;
    switch (made->request.kind_case) {
    case ADTOPK__LOCAL_REQUEST__KIND_OPEN: request_open(made, version, input); break;
    case ADTOPK__LOCAL_REQUEST__KIND_REGISTER: request_register(made, input); break;
    case ADTOPK__LOCAL_REQUEST__KIND_COMMIT: made->request.commit = &made->commit; break;
    case ADTOPK__LOCAL_REQUEST__KIND_MAPPED: made->request.mapped = &made->mapped; break;
    default:
        made->request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_LEAVE;
        made->request.leave = &made->leave;
        break;
    }
}
