/*
 * Plain TCP over loopback: the floor of the traffic between nodes.
 */
#ifndef PERF_TCP_H
#define PERF_TCP_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/error.h"

/** Two ends of a connection, without Nagle's delay. Errors: SYSTEM. */
enum adtopk_status tcp_pair(int fd[2], struct error *err);

void tcp_close(int fd[2]);

/** All of it, or false. */
bool tcp_send(int fd, const void *bytes, size_t size);
bool tcp_receive(int fd, void *bytes, size_t size);

/** Sends and receives `size` bytes at the same time, so that two ends that both send a lot do not
 * wait for each other. */
bool tcp_exchange(int fd, const void *out, void *in, size_t size);

#endif
