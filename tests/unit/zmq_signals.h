/*
 * Signals in the middle of a message: zmq_msg_send() can end as if one came before its last part
 * was taken. A test that uses it is linked with -Wl,--wrap=zmq_msg_send.
 */
#ifndef ADTOPK_TEST_ZMQ_SIGNALS_H
#define ADTOPK_TEST_ZMQ_SIGNALS_H

#include <stdbool.h>

/** Whether every other call that sends the last part of a message ends with EINTR. */
void zmq_signals(bool come);

/** How many calls ended so. */
unsigned zmq_signals_count(void);

#endif
