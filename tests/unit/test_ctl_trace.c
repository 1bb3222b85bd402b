/* Traces of nodes whose clocks differ by known amounts: the estimates must contain the truth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "client/adtopkctl/trace.h"

#define NODES 4
#define STEPS 20
#define TEXT_MAX (1u << 20)
#define HEAD                                                                                       \
    "{\"schema\":1,\"name\":\"j\",\"run_id\":\"0\",\"owner\":0,\"node\":0,\"reason\":\"\","        \
    "\"columns\":[\"us\",\"kind\",\"step\",\"bucket\",\"value\",\"node\",\"view\",\"phase\"],"     \
    "\"kinds\":[\"opened\",\"sent\",\"received\",\"closed\",\"exchange\",\"delivered\",\"odd\"],"  \
    "\"nodes\":["

static const double ahead_us[NODES] = {0, 3e6, -5e5, 40};

/* A node's row at `us` of the true time. */
static size_t put_row(
    char *to, bool first, unsigned node, double us, unsigned kind, unsigned step, unsigned other)
{
    return (size_t)sprintf(to, "%s[%.0f,%u,%u,0,100,%u,1,0]", first ? "" : ",",
        1e7 + us + ahead_us[node], kind, step, other);
}

/* A message in step `step` takes so long. */
static double delay_us(unsigned from, unsigned to, unsigned step)
{
    return 80 + 37 * ((from * 7 + to * 3 + step) % 5) + (from > to ? 25 : 0);
}

/* In every step a node sends to those for which `talks` is true, and gets theirs. */
static char *put_document(bool (*talks)(unsigned from, unsigned to))
{
    char *text = malloc(TEXT_MAX);
    size_t size = (size_t)sprintf(text, HEAD);

    for (unsigned node = 0; node < NODES; node++) {
        bool first = true;
        size += (size_t)sprintf(text + size, "%s{\"node\":%u,\"answered\":true,\"records\":[",
            node > 0 ? "," : "", node);
        for (unsigned step = 0; step < STEPS; step++) {
            const double begin = 1e4 * step;
            size += put_row(text + size, first, node, begin, 0, step, 0);
            first = false;
            size += put_row(text + size, first, node, begin + 1, 4, step, 0);
            for (unsigned other = 0; other < NODES; other++) {
                if (other != node && talks(node, other)) {
                    size += put_row(text + size, false, node, begin + 2, 1, step, other);
                }
                if (other != node && talks(other, node)) {
                    size += put_row(text + size, false, node,
                        begin + 2 + delay_us(other, node, step), 2, step, other);
                }
            }
            size += put_row(text + size, false, node, begin + 900, 5, step, 0);
            size += put_row(text + size, false, node, begin + 950, 3, step, 0);
        }
        size += (size_t)sprintf(text + size, "]}");
    }
    (void)sprintf(text + size, "]}");
    return text;
}

static struct trace *trace_of(const char *text, cJSON **document)
{
    struct trace *trace = calloc(1, sizeof(*trace));
    struct error err;

    *document = cJSON_Parse(text);
    assert_non_null(*document);
    assert_int_equal(trace_add(trace, *document, &err), ADTOPK_OK);
    assert_int_equal(trace_align(trace, &err), ADTOPK_OK);
    return trace;
}

static void trace_drop(struct trace *trace, cJSON *document)
{
    trace_free(trace);
    free(trace);
    cJSON_Delete(document);
}

static bool talks_all(unsigned from, unsigned to)
{
    (void)from;
    (void)to;
    return true;
}

static bool talks_ring(unsigned from, unsigned to)
{
    return (from + 1) % NODES == to;
}

static bool talks_up(unsigned from, unsigned to)
{
    return from < to;
}

static void assert_aligned(bool (*talks)(unsigned from, unsigned to), double error_us)
{
    char *text = put_document(talks);
    cJSON *document;
    struct trace *trace = trace_of(text, &document);

    assert_int_equal(trace->nodes, NODES);
    assert_true(trace->flows >= STEPS * (NODES - 1));
    for (unsigned i = 0; i < NODES; i++) {
        const struct trace_node *node = &trace->node[i];
        assert_true(node->error_us >= 0 && node->error_us <= error_us);
        assert_true(fabs(node->ahead_us - ahead_us[i]) <= node->error_us + 1);
        assert_true(fabs(node->row[0].us - 1e7) <= node->error_us + 1);
    }
    trace_drop(trace, document);
    free(text);
}

static void test_everybody_talks(void **state)
{
    (void)state;
    assert_aligned(talks_all, 130);
}

/* No two nodes talk both ways: the bounds come around the ring. */
static void test_ring(void **state)
{
    (void)state;
    assert_aligned(talks_ring, 400);
}

/* Messages one way only leave the error unknown, and no message comes before it left. */
static void test_one_way(void **state)
{
    char *text = put_document(talks_up);
    cJSON *document;
    struct trace *trace = trace_of(text, &document);

    (void)state;
    for (size_t f = 0; f < trace->flows; f++) {
        const struct trace_flow *flow = &trace->flow[f];
        assert_true(trace->node[flow->to].row[flow->received].us >=
                    trace->node[flow->from].row[flow->sent].us - 0.01);
    }
    assert_true(trace->node[1].error_us < 0);
    trace_drop(trace, document);
    free(text);
}

/* A message that came before it left, whatever the clocks: no estimate, and no endless search. */
static void test_contradiction(void **state)
{
    static const char text[] =
        HEAD "{\"node\":0,\"answered\":true,\"records\":[[100,1,0,0,9,1,1,0],[10,2,0,1,9,1,1,0]]},"
             "{\"node\":1,\"answered\":true,\"records\":[[50,2,0,0,9,0,1,0],[60,1,0,1,9,0,1,0]]}]}";
    cJSON *document;
    struct trace *trace = trace_of(text, &document);

    (void)state;
    assert_int_equal(trace->flows, 2);
    assert_true(trace->node[1].error_us < 0);
    assert_true(trace->node[1].ahead_us == 0);
    trace_drop(trace, document);
}

static void assert_summary(const struct trace *trace, const char *holds)
{
    char *printed = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&printed, &size);

    assert_non_null(out);
    trace_summary(out, trace);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(printed, holds));
    free(printed);
}

/* The question and its answer alone bound the clock of a node that exchanged nothing. */
static void test_question(void **state)
{
    static const char text[] = HEAD
        "{\"node\":0,\"answered\":true,\"asked_us\":1000,\"answered_us\":1000,\"heard_us\":1000,"
        "\"records\":[]},{\"node\":1,\"answered\":true,\"asked_us\":1000,\"answered_us\":51200,"
        "\"heard_us\":1400,\"records\":[]},{\"node\":2,\"answered\":false,\"records\":[]}]}";
    cJSON *document;
    struct trace *trace = trace_of(text, &document);

    (void)state;
    assert_true(trace->node[1].ahead_us == 50000 && trace->node[1].error_us == 200);
    assert_int_equal(trace->silents, 1);
    assert_summary(trace, "; its clock is 50.000 ms ahead of that of node 0, to 0.200 ms\n");
    trace->node[1].ahead_us = -13;
    assert_summary(trace, "; its clock is 0.013 ms behind that of node 0, to 0.200 ms\n");
    trace_drop(trace, document);
}

/* The summary tells the records that a node has, but the trace has not, and why. */
static void test_missing(void **state)
{
    static const char text[] =
        HEAD "{\"node\":0,\"answered\":true,\"missing\":70,\"late\":false,\"records\":[]},"
             "{\"node\":1,\"answered\":true,\"missing\":640,\"late\":true,\"records\":[]}]}";
    char *printed = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&printed, &size);
    cJSON *document;
    struct trace *trace = trace_of(text, &document);

    (void)state;
    trace_summary(out, trace);
    (void)fclose(out);
    assert_string_equal(printed, "node 0: 0 records; 70 earlier ones found no room\n"
                                 "node 1: 0 records; its clock could not be compared with that of "
                                 "node 0; 640 earlier ones did not come in time\n");
    free(printed);
    trace_drop(trace, document);
}

/* A node that was stuck and failed then has written two traces: the later one counts. */
static void test_two_of_a_node(void **state)
{
    static const char stuck[] = HEAD "{\"node\":0,\"answered\":true,\"answered_us\":900,"
                                     "\"records\":[[100,0,0,0,0,0,0,0]]}]}";
    static const char failed[] = HEAD "{\"node\":0,\"answered\":true,\"answered_us\":1500,"
                                      "\"records\":[[100,0,0,0,0,0,0,0],[1400,3,0,0,0,0,0,0]]}]}";

    (void)state;
    for (unsigned turned = 0; turned < 2; turned++) {
        cJSON *one = cJSON_Parse(turned ? failed : stuck);
        cJSON *other = cJSON_Parse(turned ? stuck : failed);
        struct trace *trace = calloc(1, sizeof(*trace));
        struct error err;

        assert_int_equal(trace_add(trace, one, &err), ADTOPK_OK);
        assert_int_equal(trace_add(trace, other, &err), ADTOPK_OK);
        assert_int_equal(trace->nodes, 1);
        assert_int_equal(trace->node[0].rows, 2);
        assert_ptr_equal(trace->first, turned ? one : other);
        assert_int_equal(trace_add(trace, other, &err), turned ? ADTOPK_OK : ADTOPK_ERR_PROTOCOL);
        trace_drop(trace, one);
        cJSON_Delete(other);
    }
}

/* Documents that lie, or are of another kind. */
static void test_rubbish(void **state)
{
    static const char *const refused[] = {"{}", "{\"schema\":1,\"columns\":[\"us\"]}", "[1]",
        HEAD "{\"node\":0,\"answered\":true,\"records\":[]},{\"node\":0,\"answered\":true}]}",
        HEAD "{\"node\":-1,\"answered\":true}]}", HEAD "{\"node\":1e300,\"answered\":true}]}"};
    static const char taken[] = HEAD
        "{\"node\":0,\"answered\":true,\"records\":[1,null,[],[1,2],[1,99,0,0,0,0,0,0],"
        "[1,1e300,0,0,0,0,0,0],"
        "[1,-1,0,0,0,0,0,0],[\"a\",1,0,0,0,0,0,0],[5,6,1e300,1e300,1e300,1e300,1e300,1e300]]}]}";
    char *printed = NULL;
    size_t size = 0;
    cJSON *document;
    struct trace *trace;
    struct error err;
    FILE *out;

    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        trace = calloc(1, sizeof(*trace));
        document = cJSON_Parse(refused[i]);
        assert_int_equal(trace_add(trace, document, &err), ADTOPK_ERR_PROTOCOL);
        trace_drop(trace, document);
    }
    trace = trace_of(taken, &document);
    out = open_memstream(&printed, &size);
    trace_print(out, trace);
    (void)fclose(out);
    trace_drop(trace, document);
    document = cJSON_Parse(printed);
    assert_non_null(document);
    cJSON_Delete(document);
    free(printed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everybody_talks),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_one_way),
        cmocka_unit_test(test_contradiction),
        cmocka_unit_test(test_question),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_two_of_a_node),
        cmocka_unit_test(test_rubbish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
