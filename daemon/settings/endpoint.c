#include "daemon/settings/endpoint.h"

#include <arpa/inet.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "tcp://"

bool endpoint_split(const char *endpoint, char host[ENDPOINT_HOST_SIZE], const char **port)
{
    const char *start = endpoint + sizeof(PREFIX) - 1;
    const char *colon = strrchr(endpoint, ':');
    size_t length;

    if (strncmp(endpoint, PREFIX, sizeof(PREFIX) - 1) != 0 || colon < start) {
        return false;
    }
    length = (size_t)(colon - start);
    *port = colon + 1;
    if (length >= 2 && start[0] == '[' && colon[-1] == ']') {
        start++;
        length -= 2;
    } else if (memchr(start, ':', length) != NULL) {
        return false; /* IPv6 without brackets */
    }
    if (length == 0 || length >= ENDPOINT_HOST_SIZE) {
        return false;
    }
    memcpy(host, start, length);
    host[length] = '\0';
    return true;
}

enum adtopk_status endpoint_check(const char *endpoint, const char *what, struct error *err)
{
    char host[ENDPOINT_HOST_SIZE];
    const char *port = "";
    size_t digits;

    if (!endpoint_split(endpoint, host, &port)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "%s: \"%.80s\" is not of the form tcp://HOST:PORT", what, endpoint);
    }
    if (strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%*") !=
        strlen(host)) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "%s: \"%.80s\" is not a host's name or address", what, host);
    }
    digits = strspn(port, "0123456789");
    if (digits == 0 || digits > 5 || port[digits] != '\0' || strtoul(port, NULL, 10) < 1 ||
        strtoul(port, NULL, 10) > 65535) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "%s: \"%.20s\" is not a port from 1 to 65535", what, port);
    }
    return ADTOPK_OK;
}

bool endpoint_is_ipv6(const char *endpoint)
{
    return strchr(endpoint, '[') != NULL;
}

bool endpoint_is_address(const char *endpoint)
{
    char host[ENDPOINT_HOST_SIZE];
    const char *port;
    struct in6_addr any;

    return endpoint_split(endpoint, host, &port) &&
           (inet_pton(AF_INET, host, &any) == 1 || inet_pton(AF_INET6, host, &any) == 1);
}

bool endpoint_is_any(const char *endpoint)
{
    char host[ENDPOINT_HOST_SIZE];
    const char *port;

    return endpoint_split(endpoint, host, &port) &&
           (strchr(host, '*') != NULL || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0);
}

bool endpoint_is_loopback(const char *endpoint)
{
    char host[ENDPOINT_HOST_SIZE];
    const char *port;
    struct in_addr v4;
    struct in6_addr v6;

    if (!endpoint_split(endpoint, host, &port)) {
        return false;
    }
    if (inet_pton(AF_INET, host, &v4) == 1) {
        return (ntohl(v4.s_addr) >> 24) == 127;
    }
    if (inet_pton(AF_INET6, host, &v6) == 1) {
        return IN6_IS_ADDR_LOOPBACK(&v6);
    }
    return strcmp(host, "localhost") == 0;
}
