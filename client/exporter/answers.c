#include "client/exporter/answers.h"

#include <stdlib.h>

/* The memory of a response. */
struct answer_memory {
    struct answers *answers;
    char *text;
    size_t size;
};

/* Libmicrohttpd calls it when nobody reads the response any more. */
static void answers_free(void *owner)
{
    struct answer_memory *memory = owner;

    memory->answers->bytes -= memory->size;
    free(memory->text);
    free(memory);
}

static struct MHD_Response *answers_response(struct answers *answers, const struct answer *answer)
{
    struct answer_memory *memory = malloc(sizeof(*memory));
    struct MHD_Response *response;

    if (memory == NULL) {
        return NULL;
    }
    *memory = (struct answer_memory){answers, answer->text, answer->size};
    response = MHD_create_response_from_buffer_with_free_callback_cls(
        answer->size, answer->text, answers_free, memory);
    if (response == NULL) {
        free(memory);
        return NULL;
    }
    answers->bytes += answer->size;
    return response;
}

static bool answers_add_headers(struct MHD_Response *response, const struct answer *answer)
{
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(response, "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'");
    if (answer->code == MHD_HTTP_METHOD_NOT_ALLOWED) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    return MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer->type) == MHD_YES;
}

struct MHD_Response *answers_make(struct answers *answers, struct answer answer)
{
    struct MHD_Response *response = answer.text != NULL ? answers_response(answers, &answer) : NULL;

    if (response == NULL) {
        free(answer.text);
        return NULL;
    }
    if (!answers_add_headers(response, &answer)) {
        MHD_destroy_response(response);
        return NULL;
    }
    return response;
}

bool answers_keep(struct answers *answers, struct kept_answer *kept, struct answer answer)
{
    struct MHD_Response *response = answers_make(answers, answer);

    if (response == NULL) {
        return false;
    }
    *kept = (struct kept_answer){response, answer.code, answer.size};
    answers->kept_bytes += answer.size;
    return true;
}

void answers_drop(struct answers *answers, struct kept_answer *kept)
{
    if (kept->response != NULL) {
        answers->kept_bytes -= kept->size;
        MHD_destroy_response(kept->response);
        *kept = (struct kept_answer){.response = NULL};
    }
}

bool answers_full(const struct answers *answers)
{
    return answers->bytes - answers->kept_bytes >= ANSWERS_OLD_MAX;
}
