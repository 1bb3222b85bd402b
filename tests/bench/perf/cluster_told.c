#include "tests/bench/perf/cluster_told.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/control/connection.h"
#include "client/control/exchange.h"

#define TIMEOUT_MS 5000

static const char *const told_phases[TOLD_PHASES] = {"select", "exchange", "reduce", "settle"};

static const char *told_socket(void)
{
    const char *path = getenv("ADTOPK_CONTROL_SOCKET");

    return path != NULL && *path != '\0' ? path : CONTROL_DEFAULT_SOCKET;
}

/* The daemon's document; NULL, and why, without one. */
static cJSON *told_ask(const Adtopk__ControlRequest *request, struct error *problem)
{
    struct error err = {.code = ADTOPK_OK};
    char *text = NULL;
    enum connection_end end;
    cJSON *document = NULL;

    if (connection_ask(told_socket(), TIMEOUT_MS, request, NULL, &text, -1, &end, &err) ==
        ADTOPK_OK) {
        document = cJSON_Parse(text);
        free(text);
    }
    if (document == NULL && problem != NULL) {
        *problem = err;
    }
    return document;
}

static const cJSON *told_member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static double told_number(const cJSON *object, const char *name)
{
    const cJSON *item = told_member(object, name);

    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static bool told_is(const cJSON *object, const char *name, const char *text)
{
    const char *value = cJSON_GetStringValue(told_member(object, name));

    return value != NULL && strcmp(value, text) == 0;
}

bool told_daemon(struct told_daemon *told, struct error *problem)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlStatus status = ADTOPK__CONTROL_STATUS__INIT;
    const cJSON *network;
    cJSON *document;

    request.version = 1;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_STATUS;
    request.status = &status;
    document = told_ask(&request, problem);
    network = told_member(document, "network");
    *told = (struct told_daemon){.node = told_number(document, "node"),
        .network_us = told_number(network, "cpu_us"),
        .loop_us = told_number(told_member(document, "loop"), "cpu_us"),
        .encrypts = network == NULL                           ? NAN
                    : told_is(network, "protection", "curve") ? 1
                                                              : 0};
    cJSON_Delete(document);
    return !isnan(told->node);
}

/* The daemon keeps jobs of earlier runs, which may have the same name. */
static const cJSON *told_find_job(const cJSON *document, const char *run)
{
    const cJSON *job;

    cJSON_ArrayForEach(job, told_member(document, "jobs"))
    {
        if (told_is(job, "run_id", run) && told_is(job, "state", "active")) {
            return job;
        }
    }
    return NULL;
}

bool told_job(const char *name, const char *run, struct told_job *told)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlStats stats = ADTOPK__CONTROL_STATS__INIT;
    const cJSON *job;
    cJSON *document;
    double steps;

    request.version = 1;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_STATS;
    request.stats = &stats;
    stats.job = (char *)(uintptr_t)name;
    stats.no_tensors = true;
    document = told_ask(&request, NULL);
    job = told_find_job(document, run);
    steps = told_number(job, "steps");
    told->wire_bytes = told_number(job, "wire_bytes_sent") / steps;
    told->nonzeros = told_number(job, "nonzeros_sent") / steps;
    for (unsigned i = 0; i < TOLD_PHASES; i++) {
        told->phase_us[i] =
            told_number(told_member(job, "phase_seconds"), told_phases[i]) * 1e6 / steps;
    }
    cJSON_Delete(document);
    return steps > 0;
}
