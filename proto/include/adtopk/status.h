/*
 * Status codes: the one list shared by the client library, the messages and the daemon.
 *
 * The numbers are part of the wire format: a code is never renumbered, new ones are appended.
 */
#ifndef ADTOPK_STATUS_H
#define ADTOPK_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum adtopk_status {
    /** It worked. */
    ADTOPK_OK = 0,
    /** Not an error: the step was withdrawn on every rank, because a gradient held NaN or Inf, or
     * 2^120 or more. */
    ADTOPK_NONFINITE = 1,
    /** An argument is out of its range; the message names it. */
    ADTOPK_ERR_ARGUMENT = 2,
    /** The call is not allowed now (a push before commit, a wait for a tensor that was not pushed).
     */
    ADTOPK_ERR_STATE = 3,
    /** Memory could not be reserved; the message has the numbers. */
    ADTOPK_ERR_MEMORY = 4,
    /** The daemon cannot be reached, or went away. */
    ADTOPK_ERR_UNREACHABLE = 5,
    /** The caller may not: no permission, a wrong or missing key, or too many sessions. */
    ADTOPK_ERR_DENIED = 6,
    /** Ranks disagree: world size, policy, a tensor's name, type or shape, a step's loss scale, a
     * duplicate rank. */
    ADTOPK_ERR_MISMATCH = 7,
    /** A time limit ran out; the message names the peer, tensor or rank that was waited for. */
    ADTOPK_ERR_TIMEOUT = 8,
    /** A rank of this job died or left, or its node was lost; the message names it. */
    ADTOPK_ERR_PEER = 9,
    /** The other side sent something that breaks the protocol. */
    ADTOPK_ERR_PROTOCOL = 10,
    /** A residual that should have survived is gone; of calls for checkpoints: a folder or a file
     * is missing, or damaged. */
    ADTOPK_ERR_LOST = 11,
    /** The operating system refused a call; the message names it and its reason. */
    ADTOPK_ERR_SYSTEM = 12,
    /** A policy document is wrong; the message names the key. */
    ADTOPK_ERR_POLICY = 13,
    /** Not an error: what the call waits for has not come within its time; nothing has changed. */
    ADTOPK_PENDING = 14,
    /** Not an error: a signal ended the wait, as options.interruptible asks; nothing has changed.
     */
    ADTOPK_INTERRUPTED = 15
};

/** A short constant name of a status code, such as "mismatch"; "unknown" for other values. */
const char *adtopk_status_name(enum adtopk_status status);

#ifdef __cplusplus
}
#endif
#endif
