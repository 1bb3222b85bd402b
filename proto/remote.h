/*
 * Limits of the messages between a trainer and a daemon on another machine; remote.proto has the
 * messages.
 *
 * Neither side sends more than REMOTE_WINDOW messages beyond what the other has acknowledged, so no
 * message waits inside ZeroMQ for a reader. That matters because libzmq stops reading a connection
 * whose queue is full, and then its heartbeats fail. Pieces are small because a heartbeat waits
 * behind the piece that is being sent: 256 KiB take four seconds at half a Mbit/s.
 */
#ifndef ADTOPK_REMOTE_H
#define ADTOPK_REMOTE_H

#include "proto/codec.h"

#define REMOTE_VERSION 2u
#define REMOTE_PIECE (1u << 18)                   /* bytes of a gradient or update in one message */
#define REMOTE_OP_SIZE (1u << 20)                 /* bytes of a plain operation, the longest part */
#define REMOTE_HEADER_MAX (CODEC_LOCAL_MAX + 100) /* bytes of a message without its part */
#define REMOTE_WINDOW 32u                         /* messages in flight */
#define REMOTE_ACKNOWLEDGE 8u                     /* after so many without an answer, one is sent */
#define REMOTE_QUEUE 128 /* high-water mark: well-behaved sides never reach it */

#endif
