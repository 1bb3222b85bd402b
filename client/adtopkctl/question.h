/*
 * What a command asks the daemon: the request, how long the answer may take, how it is shown, and
 * what it means for the exit code.
 */
#ifndef ADTOPK_QUESTION_H
#define ADTOPK_QUESTION_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "client/adtopkctl/exit_code.h"
#include "client/adtopkctl/options.h"
#include "proto/control.pb-c.h"

/* A message of each kind; the request points to one of them. */
struct question_body {
    Adtopk__ControlStatus status;
    Adtopk__ControlStats stats;
    Adtopk__ControlJobs jobs;
    Adtopk__ControlPeers peers;
    Adtopk__ControlStores stores;
    Adtopk__ControlTensors tensors;
    Adtopk__ControlRanks ranks;
    Adtopk__ControlPlan plan;
    Adtopk__ControlPolicyGet policy_get;
    Adtopk__ControlPolicySet policy_set;
    Adtopk__ControlPolicyLog policy_log;
    Adtopk__ControlVerify verify;
    Adtopk__ControlCheckpoint checkpoint;
    Adtopk__ControlTrace trace;
    Adtopk__ControlDrain drain;
};

struct question {
    Adtopk__ControlRequest request;
    struct question_body body;
    int timeout_ms;
    void (*show)(FILE *out, const cJSON *document);
    enum exit_code (*judge)(const cJSON *document); /* NULL: whatever it says is good */
};

/** Fills in the question of `command` about `job` (NULL: the command needs none, or is about all),
 * as the options say. The question points to itself and to `job`. */
void question_begin(struct question *question, enum command_id command, const char *job,
    const struct options *options);

#endif
