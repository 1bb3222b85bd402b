/*
 * Gradients in a GPU's memory, of a rank that has come back to another daemon (beside.c). The
 * context's lock is held in all calls. Errors end the context.
 */
#ifndef ADTOPK_CLIENT_BESIDE_H
#define ADTOPK_CLIENT_BESIDE_H

#include "client/src/context.h"

/** Maps a batch's new arena beside the old one; comeback.arena has its host memory. */
enum adtopk_status client_beside_map(
    adtopk_context *context, const struct client_reply *reply, unsigned batch);

/** Takes away the arena of a daemon that went away before the step was over, with its host memory.
 * It is the one beside the old one, or the only one of a batch that is not ready. Errors: MEMORY.
 */
enum adtopk_status client_beside_drop(
    adtopk_context *context, unsigned batch, struct client_mapping *host);

/** Whether there are arenas beside the old ones. */
bool client_beside_is_there(const adtopk_context *context);

/** Whether the device had not made all copies when one of the functions below last looked. */
bool client_beside_moves(const adtopk_context *context);

/** Copies the gradients that streams have written since the last call, and the updates that the
 * daemon has delivered. Waits for nothing. */
enum adtopk_status client_beside_tend(adtopk_context *context);

/** The same, and waits until the copies are made. */
enum adtopk_status client_beside_bring(adtopk_context *context);

/** The step is over: waits for the device, and puts the new arenas in the place of the old ones. */
enum adtopk_status client_beside_settle(adtopk_context *context);

#endif
