/*
 * A stranger at a node's ports, for test_keys.py:
 *
 *   test-stranger keygen PATH                      makes a key file and prints the public key
 *   test-stranger KIND ENDPOINT KEY SECONDS        attacks, and prints how often
 *
 * KIND:
 * - unknown-key: CURVE to the node's KEY, under a new key each time
 * - plaintext: ZeroMQ without encryption
 * - token: to the bulk port, with made-up tokens
 * - rubbish: bytes that are not ZeroMQ
 * - flood: connections that send nothing
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "daemon/link/packet.h"
#include "proto/keyfile.h"

#define PACKETS 20    /* sent on each ZeroMQ connection */
#define PATIENCE_MS 2 /* between two packets */

struct target {
    const char *endpoint;
    const char *key;
    void *zmq;
};

static int fail(const char *what)
{
    (void)fprintf(stderr, "test-stranger: %s\n", what);
    exit(1);
}

static void set(void *socket, int name, const void *value, size_t size)
{
    if (zmq_setsockopt(socket, name, value, size) != 0) {
        (void)fail(zmq_strerror(zmq_errno()));
    }
}

static void set_mechanism(void *socket, const char *kind, const char *server)
{
    char public_key[KEYFILE_KEY_SIZE], secret_key[KEYFILE_KEY_SIZE];

    if (strcmp(kind, "plaintext") == 0) {
        return;
    }
    if (zmq_curve_keypair(public_key, secret_key) != 0) {
        (void)fail("no keys");
    }
    if (strcmp(kind, "token") == 0) {
        set(socket, ZMQ_PLAIN_USERNAME, "1", 1);
        set(socket, ZMQ_PLAIN_PASSWORD, public_key, strlen(public_key));
        return;
    }
    set(socket, ZMQ_CURVE_SERVERKEY, server, strlen(server));
    set(socket, ZMQ_CURVE_PUBLICKEY, public_key, strlen(public_key));
    set(socket, ZMQ_CURVE_SECRETKEY, secret_key, strlen(secret_key));
}

/* Connects under node 1's name, and sends packets that are valid if the node believes the name. */
static void knock_zmq(const struct target *target, const char *kind)
{
    const struct packet packet = {
        .type = PACKET_HELLO, .source = 1, .destination = 0, .source_incarnation = 1};
    const struct timespec patience = {.tv_nsec = PATIENCE_MS * 1000000L};
    const int linger = 0;
    uint8_t bytes[PACKET_HEADER_SIZE];
    void *socket = zmq_socket(target->zmq, ZMQ_PUSH);

    packet_encode(&packet, bytes);
    set(socket, ZMQ_LINGER, &linger, sizeof(linger));
    set(socket, ZMQ_ROUTING_ID, "1", 1);
    set_mechanism(socket, kind, target->key);
    if (zmq_connect(socket, target->endpoint) != 0) {
        (void)fail(zmq_strerror(zmq_errno()));
    }
    for (int i = 0; i < PACKETS; i++) {
        (void)zmq_send(socket, bytes, sizeof(bytes), ZMQ_DONTWAIT);
        (void)nanosleep(&patience, NULL);
    }
    (void)zmq_close(socket);
}

static void knock_tcp(const struct target *target, const char *kind)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
        .sin_port = htons((uint16_t)strtoul(strrchr(target->endpoint, ':') + 1, NULL, 10)),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint8_t rubbish[1024];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || getrandom(rubbish, sizeof(rubbish), 0) != sizeof(rubbish)) {
        (void)fail("no socket, or nothing to send");
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
        strcmp(kind, "rubbish") == 0) {
        rubbish[0] &= 0x7F; /* a greeting begins with 255 */
        (void)send(fd, rubbish, sizeof(rubbish), MSG_NOSIGNAL);
    }
    (void)close(fd);
}

static double clock_s(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int hammer(const char *kind, struct target *target, double seconds)
{
    bool tcp = strcmp(kind, "rubbish") == 0 || strcmp(kind, "flood") == 0;
    double end = clock_s() + seconds;
    unsigned count = 0;

    target->zmq = zmq_ctx_new();
    for (; clock_s() < end; count++) {
        if (tcp) {
            knock_tcp(target, kind);
        } else {
            knock_zmq(target, kind);
        }
    }
    (void)zmq_ctx_term(target->zmq);
    (void)printf("%u\n", count);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "keygen") == 0) {
        char public_key[KEYFILE_KEY_SIZE];
        struct error err = {.code = ADTOPK_OK};

        if (keyfile_generate(argv[2], public_key, &err) != ADTOPK_OK) {
            return fail(err.text);
        }
        (void)printf("%s\n", public_key);
        return 0;
    }
    if (argc != 5) {
        return fail("usage: test-stranger keygen PATH | KIND ENDPOINT KEY SECONDS");
    }
    return hammer(
        argv[1], &(struct target){.endpoint = argv[2], .key = argv[3]}, strtod(argv[4], NULL));
}
