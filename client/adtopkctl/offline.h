/*
 * Commands that need no daemon.
 */
#ifndef ADTOPK_OFFLINE_H
#define ADTOPK_OFFLINE_H

#include "client/adtopkctl/options.h"
#include "client/adtopkctl/run.h"

enum exit_code offline_policy_check(const struct options *options);
enum exit_code offline_policy_keys(const struct options *options);
enum exit_code offline_sparsifiers(const struct options *options);
enum exit_code offline_keygen(const struct options *options);
enum exit_code offline_key_show(const struct options *options);
enum exit_code offline_checkpoint_check(const struct options *options);

#endif
