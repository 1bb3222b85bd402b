/* The configuration: the values of each layer, the layer that wins, and the words of refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/settings/config.h"
#include "daemon/settings/config_option.h"
#include "daemon/settings/endpoint.h"

#define MAX_ARGUMENTS 16

static char file_path[] = "/tmp/adtopk-test-config-XXXXXX";

static int make_file(void **state)
{
    int fd = mkstemp(file_path);

    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    (void)unlink(file_path); /* test_reload() may have removed it */
    return 0;
}

static void write_bytes(const char *text, size_t size)
{
    FILE *stream = fopen(file_path, "we");

    assert_non_null(stream);
    assert_int_equal(fwrite(text, 1, size, stream), size);
    assert_int_equal(fclose(stream), 0);
}

/* Loads `text` as the file, then these arguments, which end with NULL. */
static enum adtopk_status load(struct config *config, const char *text, struct error *err, ...)
{
    char *argv[MAX_ARGUMENTS] = {"adtopkd", "--config", file_path};
    enum config_action action = CONFIG_RUN;
    struct faults faults = {.count = 0};
    int argc = 3;
    va_list arguments;
    char *argument;

    write_bytes(text, strlen(text));
    va_start(arguments, err);
    while ((argument = va_arg(arguments, char *)) != NULL) {
        argv[argc++] = argument;
    }
    va_end(arguments);
    config_load(config, argc, argv, getenv, &action, &faults);
    return faults_first(&faults, err);
}

static enum adtopk_status check_policy(const struct config *config, struct error *err)
{
    struct faults faults = {.count = 0};

    config_check_policy(config, &faults);
    return faults_first(&faults, err);
}

static void assert_refused(const char *text, const char *words, unsigned line)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK};
    char place[64];

    assert_int_not_equal(load(&config, text, &err, NULL), ADTOPK_OK);
    config_free(&config);
    (void)snprintf(place, sizeof(place), "%s:%u:", file_path, line);
    if (strstr(err.text, words) == NULL || (line > 0 && strstr(err.text, place) == NULL)) {
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", err.text, words, place);
    }
}

static void assert_flag_refused(const char *flag, const char *value, const char *words)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK};

    assert_int_equal(load(&config, "{}", &err, flag, value, NULL), ADTOPK_ERR_STATE);
    config_free(&config);
    if (strstr(err.text, words) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", err.text, words);
    }
}

static void test_defaults(void **state)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_int_equal(load(&config, "{}", &err, NULL), ADTOPK_OK);
    assert_int_equal(config.node, 0);
    assert_string_equal(config.listen, "");
    assert_int_equal(config.peer_count, 0);
    assert_string_equal(config.socket, "/run/adtopk/trainers/adtopkd.sock");
    assert_string_equal(config.control_socket, "/run/adtopk/control/adtopkd.sock");
    assert_string_equal(config.control_group, "adtopk");
    assert_string_equal(config.session_group, "");
    assert_int_equal(config.jobs_visible, VISIBLE_ALL);
    assert_null(config.policy);
    assert_false(config.insecure);
    assert_int_equal(config.log_level, LEVEL_INFO);
    config_free(&config);
}

static void test_whole_file(void **state)
{
    static const char text[] =
        "{\n \"node\": 1, \"listen\": \"tcp://127.0.0.1:7401\",\n"
        " \"peers\": [{\"node\": 0, \"endpoint\": \"tcp://127.0.0.1:7400\"},\n"
        "           {\"endpoint\": \"tcp://[::1]:7402\", \"node\": 2}],\n"
        " \"socket\": \"/tmp/a\\u0062c\", \"control_socket\": \"/tmp/c\",\n"
        " \"workers\": 3, \"log_level\": \"debug\", \"log_format\": \"json\",\n"
        " \"policy\": {\"density\": 0.01, \"x\": [1, \"}\\\"\", {}]},\n"
        " \"insecure\": true, \"part_size\": 65536, \"window\": 1048576,\n"
        " \"peer_timeout_ms\": 400, \"heartbeat_ms\": 100}\n";
    struct config config;
    struct error err = {.code = ADTOPK_OK, .text = ""};

    (void)state;
    assert_int_equal(load(&config, text, &err, NULL), ADTOPK_OK);
    assert_int_equal(config.node, 1);
    assert_string_equal(config.listen, "tcp://127.0.0.1:7401");
    assert_int_equal(config.peer_count, 2);
    assert_int_equal(config.peers[1].node, 2);
    assert_string_equal(config.peers[1].endpoint, "tcp://[::1]:7402");
    assert_string_equal(config.socket, "/tmp/abc");
    assert_int_equal(config.compute.workers, 3);
    assert_int_equal(config.log_level, LEVEL_DEBUG);
    assert_int_equal(config.log_format, LOG_FORMAT_JSON);
    assert_string_equal(config.policy, "{\"density\": 0.01, \"x\": [1, \"}\\\"\", {}]}");
    assert_true(config.insecure);
    assert_int_equal(config.link.part_size, 65536);
    assert_int_equal(config.link.window, 1048576);
    assert_int_equal(config.link.peer_timeout_ms, 400);
    assert_int_equal(config.link.heartbeat_ms, 100);
    config_free(&config);
}

static void test_layers(void **state)
{
    static const char text[] = "{\"workers\": 1, \"window\": 100000, \"part_size\": 5000}";
    struct config config;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_int_equal(setenv("ADTOPK_WORKERS", "2", 1), 0);
    assert_int_equal(setenv("ADTOPK_WINDOW", "200000", 1), 0);
    assert_int_equal(load(&config, text, &err, "--workers", "3", "--insecure", NULL), ADTOPK_OK);
    assert_int_equal(config.compute.workers, 3);
    assert_int_equal(config.link.window, 200000);
    assert_int_equal(config.link.part_size, 5000);
    assert_true(config.insecure);
    config_free(&config);
    assert_int_equal(setenv("ADTOPK_WINDOW", "2e5", 1), 0);
    assert_int_equal(load(&config, text, &err, NULL), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "ADTOPK_WINDOW"));
    config_free(&config);
    assert_int_equal(unsetenv("ADTOPK_WORKERS"), 0);
    assert_int_equal(unsetenv("ADTOPK_WINDOW"), 0);
}

static void test_file_is_strict(void **state)
{
    (void)state;
    assert_refused("{\n\"node\": 1,\n\"nodes\": 2}", "\"nodes\": unknown key", 3);
    assert_refused("{\n\"node\": 1,\n\n\"node\": 1}", "\"node\": this key occurs twice", 4);
    assert_refused("{\"policy\": {\"a\": [\n1,\n2]},\n\"Node\": 1}", "\"Node\": unknown key", 4);
    assert_refused("{\n\"node\": \"1\"}", "a whole number", 2);
    assert_refused("{\n\"node\": 1.5}", "a whole number", 2);
    assert_refused("{\n\"node\": -1}", "-1 is not a whole number from 0 to 65534", 2);
    assert_refused("{\"node\": 1e999}", "a whole number", 1);
    assert_refused("{\n\n\"node\": 65535}", "65535 is not from 0 to 65534", 3);
    assert_refused("{\"insecure\": 1}", "true or false", 1);
    assert_refused("{\"socket\": []}", "a text", 1);
    assert_refused("{\"socket\": \"\"}", "0 bytes", 1);
    assert_refused("{\"policy\": \"{}\"}", "an object", 1);
    assert_refused(
        "{\"log_level\": \"loud\"}", "\"loud\" is not one of: error, warning, info, debug", 1);
    assert_refused("{\"peers\": {}}", "an array", 1);
    assert_refused("{\"seeds\": [{\"node\": 1}]}", "\"seeds\"[0]", 1);
    assert_refused("{\"peers\": [{\"node\": 1, \"endpoint\": \"\"}]}", "\"peers\"[0]", 1);
    assert_refused("{\"peers\": [7]}", "\"peers\"[0]", 1);
    assert_refused("{\"peers\": [{\"node\": 1, \"node\": 1}]}", "repeated key \"node\"", 1);
    assert_refused("{\"peers\": [{\"port\": 1}]}", "unknown key \"port\"", 1);
    assert_refused("{\"node\": 1}\n\n{}", "after the end", 3);
    assert_refused("{\"node\": 1}\nx", "after the end", 2);
    assert_refused("{\"node\": 1\n,}", "a comma before \"}\"", 2);
    assert_refused("{\n\"node\":", "is never closed", 1);
    assert_refused("", "the file is empty", 0);
    assert_refused("\n \t\r\n", "the file is empty", 0);
    assert_refused("[]", "an object", 1);
    assert_refused("\xEF\xBB\xBF{}", "byte 0xef", 1);
    assert_refused("{\"node\":\f1}", "byte 0x0c", 1);
}

static void assert_file_refused(char *path, enum adtopk_status expected, const char *words)
{
    char *argv[] = {"adtopkd", "--config", path, NULL};
    struct config config;
    enum config_action action;
    struct faults faults = {.count = 0};
    struct error err = {.code = ADTOPK_OK};

    config_load(&config, 3, argv, getenv, &action, &faults);
    assert_int_equal(faults_first(&faults, &err), expected);
    assert_non_null(strstr(err.text, words));
    config_free(&config);
}

static void test_nul_in_file(void **state)
{
    static const char text[] = "{\"node\": 1}\0{\"node\": 2}";

    (void)state;
    write_bytes(text, sizeof(text) - 1);
    assert_file_refused(file_path, ADTOPK_ERR_ARGUMENT, "byte 0x00");
}

static void test_long_and_missing_file(void **state)
{
    size_t size = (1u << 20) + 1;
    char *spaces = malloc(size + 1);

    (void)state;
    assert_non_null(spaces);
    memset(spaces, ' ', size);
    spaces[size] = '\0';
    assert_refused(spaces, "is longer than", 0);
    free(spaces);
    assert_file_refused(
        "/nonexistent/adtopkd.json", ADTOPK_ERR_SYSTEM, "/nonexistent/adtopkd.json: No such file");
}

static void test_settings_fit_each_other(void **state)
{
    (void)state;
    assert_refused(
        "{\"peers\": [{\"node\": 1, \"endpoint\": \"tcp://127.0.0.1:1\"}]}", "listen is needed", 0);
    assert_refused("{\"listen\": \"tcp://127.0.0.1:1\", \"peers\": [{\"node\": 0, \"endpoint\": "
                   "\"tcp://127.0.0.1:2\"}]}",
        "peer 0 has this node's own id", 0);
    assert_refused("{\"listen\": \"tcp://127.0.0.1:1\", \"peers\": [{\"node\": 1, \"endpoint\": "
                   "\"tcp://127.0.0.1:2\"}, {\"node\": 1, \"endpoint\": \"tcp://127.0.0.1:3\"}]}",
        "peer 1 occurs twice", 0);
    assert_refused("{\"listen\": \"tcp://127.0.0.1:1\", \"peers\": [{\"node\": 1, \"endpoint\": "
                   "\"tcp://127.0.0.1:1\"}]}",
        "peer 1: tcp://127.0.0.1:1 is where this node itself listens", 0);
    assert_refused("{\n\n\"socket\": \"a.sock\"}", "socket: \"a.sock\" is not an absolute path", 3);
    assert_refused(
        "{\"control_socket\": \"./c\"}", "control_socket: \"./c\" is not an absolute path", 0);
    assert_refused("{\"listen\": \"tcp://10.0.0.1:7400\"}", "--insecure", 0);
    assert_refused("{\"listen\": \"tcp://*:7400\"}", "--insecure", 0);
    assert_refused("{\"listen\": \"ipc:///tmp/x\"}", "tcp://HOST:PORT", 0);
    assert_refused("{\"socket\": \"/tmp/x\", \"control_socket\": \"/tmp/x\"}", "both /tmp/x", 0);
    assert_refused("{\n\"heartbeat_ms\": 3000}", "heartbeat_ms", 2);
    assert_refused("{\"window\": 70000,\n\"part_size\": 1000000}", "part_size", 2);
}

static void test_flags(void **state)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_int_equal(load(&config, "{}", &err, "--listen=tcp://127.0.0.1:7400", "--peers",
                         "1=tcp://127.0.0.1:7401,3=tcp://127.0.0.1:7403", "--log-level=error",
                         "--insecure=false", "--policy", "{\"density\": 0.5}", NULL),
        ADTOPK_OK);
    assert_int_equal(config.peer_count, 2);
    assert_int_equal(config.peers[1].node, 3);
    assert_string_equal(config.peers[0].endpoint, "tcp://127.0.0.1:7401");
    assert_string_equal(config.policy, "{\"density\": 0.5}");
    config_free(&config);
    assert_flag_refused("--wrokers", "3", "unknown option");
    assert_flag_refused("--workers", NULL, "needs a value");
    assert_flag_refused("--workers", "many", "--workers: \"many\"");
    assert_flag_refused("--workers", "99999999999999999999", "--workers");
    assert_flag_refused("--help=x", NULL, "--help takes no value");
    assert_flag_refused("--insecure=maybe", NULL, "neither true nor false");
    assert_flag_refused("--peers", "1", "N=ENDPOINT");
    assert_flag_refused("--peers", "70000=tcp://127.0.0.1:1", "node 70000");
    assert_flag_refused("--policy", "[1]", "an object");
    assert_flag_refused("--policy", "{} {}", "after the end");
    assert_flag_refused("stray", NULL, "unexpected argument");
}

/* A fault in a policy may show later, so the source of the policy must be known then. */
static void test_policy_source(void **state)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK};
    char where[CONFIG_SOURCE_SIZE];
    char expected[64];

    (void)state;
    assert_int_equal(load(&config, "{\n\n\"policy\": {}}", &err, NULL), ADTOPK_OK);
    (void)snprintf(expected, sizeof(expected), "%s:3", file_path);
    config_where(&config, "policy", where);
    assert_string_equal(where, expected);
    config_free(&config);
    assert_int_equal(setenv("ADTOPK_POLICY", "{}", 1), 0);
    assert_int_equal(load(&config, "{\"policy\": {}}", &err, NULL), ADTOPK_OK);
    config_where(&config, "policy", where);
    assert_string_equal(where, "ADTOPK_POLICY");
    config_free(&config);
    assert_int_equal(unsetenv("ADTOPK_POLICY"), 0);
    assert_int_equal(load(&config, "{}", &err, "--policy", "{}", NULL), ADTOPK_OK);
    config_where(&config, "policy", where);
    assert_string_equal(where, "--policy");
    config_free(&config);
}

/* The policy starts in line 2 of the file. */
static void assert_policy_refused(const char *policy, const char *words, unsigned line)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK};
    char text[2048];
    char place[64];

    (void)snprintf(text, sizeof(text), "{\"node\": 1,\n\"policy\": %s}", policy);
    assert_int_equal(load(&config, text, &err, NULL), ADTOPK_OK);
    assert_int_equal(check_policy(&config, &err), ADTOPK_ERR_POLICY);
    config_free(&config);
    (void)snprintf(place, sizeof(place), "%s:%u:", file_path, line);
    if (strstr(err.text, words) == NULL || strstr(err.text, place) == NULL) {
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", err.text, words, place);
    }
}

static void test_policy_lines(void **state)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_policy_refused("{\"densty\": 1}", "densty", 2);
    assert_policy_refused("{\n\"density\": 0.1,\n\n\"scope\": \"nod\"}", "scope", 5);
    assert_policy_refused("{\n\"density\": 0.1,\n\"density\": 0.2}", "density", 4);
    assert_policy_refused("{\"density\":\n\n[1,\n2]}", "density", 4);
    assert_policy_refused("{\"rules\": [\n{\"match\": \"a*\", \"density\": 0.1},\n"
                          "{\"match\": \"b\",\n\n\"density\": 7}]}",
        "density", 6);
    assert_policy_refused("{\"rules\": [{\"match\": \"a*\", \"density\": 0.1},\n"
                          "{\n\"density\": 0.2}]}",
        "match", 3);
    assert_int_equal(load(&config, "{\"policy\": {\n\n}}", &err, NULL), ADTOPK_OK);
    assert_int_equal(check_policy(&config, &err), ADTOPK_OK);
    config_free(&config);
    assert_int_equal(load(&config, "{}", &err, "--policy", "{\n\"x\": 1}", NULL), ADTOPK_OK);
    assert_int_equal(check_policy(&config, &err), ADTOPK_ERR_POLICY);
    assert_memory_equal(err.text, "--policy:2:1: unknown key", 25);
    config_free(&config);
}

static void assert_reload(struct config *running, const char *text, const char *words)
{
    struct config fresh;
    struct error err = {.code = ADTOPK_OK};
    enum adtopk_status status;

    write_bytes(text, strlen(text));
    status = config_reload(running, &fresh, getenv, &err);
    if (words == NULL) {
        assert_int_equal(status, ADTOPK_OK);
    } else {
        assert_int_not_equal(status, ADTOPK_OK);
        if (strstr(err.text, words) == NULL) {
            fail_msg("\"%s\" lacks \"%s\"", err.text, words);
        }
    }
    config_free(&fresh);
}

#define LISTEN "\"listen\": \"tcp://127.0.0.1:1\", "
#define PEER(node, port) "{\"node\": " node ", \"endpoint\": \"tcp://127.0.0.1:" port "\"}"

static void test_reload(void **state)
{
    static char *argv[] = {"adtopkd", "--config", file_path, "--workers=2", NULL};
    static const char text[] = "{" LISTEN "\"peers\": [" PEER("1", "2") "]}";
    struct config running;
    struct config fresh;
    struct error err = {.code = ADTOPK_OK};
    struct faults faults = {.count = 0};
    enum config_action action;

    (void)state;
    write_bytes(text, strlen(text));
    config_load(&running, 4, argv, getenv, &action, &faults);
    assert_int_equal(faults.count, 0);
    assert_reload(&running, text, NULL);
    assert_reload(&running,
        "{" LISTEN "\"log_level\": \"debug\", \"policy\": {}, \"peers\": [" PEER("3", "4") "," PEER(
            "1", "2") "]}",
        NULL);
    assert_reload(&running, "{" LISTEN "\"workers\": 7, \"peers\": [" PEER("1", "2") "]}", NULL);
    assert_reload(&running, "{" LISTEN "\n\"peers\": []}", ":2: \"peers\": to remove node 1 needs");
    assert_reload(
        &running, "{" LISTEN "\n\"peers\": [" PEER("1", "3") "]}", "to move node 1 needs");
    assert_reload(&running, "{" LISTEN "\"peers\": [" PEER("1", "2") "],\n\"socket\": \"/s\"}",
        ":2: \"socket\" needs a restart");
    assert_reload(&running,
        "{\"policy\": {\n\"densty\": 1}, " LISTEN "\"peers\": [" PEER("1", "2") "]}",
        ":2:1: unknown key \"densty\"; did you mean \"density\"?");
    assert_reload(&running, "{", "is never closed");
    assert_reload(&running, "", "is empty");
    assert_int_equal(unlink(file_path), 0);
    assert_int_equal(mkfifo(file_path, 0600), 0);
    assert_int_equal(config_reload(&running, &fresh, getenv, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "is not a regular file"));
    config_free(&fresh);
    assert_int_equal(unlink(file_path), 0);
    config_free(&running);
}

/* All faults are reported at once, each at its place, without faults that follow from others. */
static void test_all_faults(void **state)
{
    static const char text[] =
        "{\"lisen\": 1,\n"
        " \"listen\": 7,\n"
        " \"log_level\": \"inof\",\n"
        " \"peers\": [{\"node\": 1, \"endpont\": \"x\"},\n"
        "  {\"node\": 2, \"endpoint\": 5}, {\"node\": \"3\", \"endpoint\": \"a\"}],\n"
        " \"socket\": \"a\", \"control_socket\": \"a\",\n"
        " \"heartbeat_ms\": 5000, \"window\": 70000}";
    static const char *const sentences[] = {
        "unknown option \"--wrokers\"; did you mean \"--workers\"?",
        "1:2: \"lisen\": unknown key; did you mean \"listen\"?\n  {\"lisen\": 1,\n   ^",
        "2:12: \"listen\": a text is needed here\n   \"listen\": 7,\n             ^",
        ("3:15: \"log_level\": \"inof\" is not one of: error, warning, info, debug; did you mean "
         "\"info\"?"),
        "4:24: \"peers\"[0]: unknown key \"endpont\"; did you mean \"endpoint\"?",
        "5:27: \"peers\"[1]: a text as \"endpoint\" is needed here",
        "5:40: \"peers\"[2]: a whole number", "ADTOPK_WORKERS: \"x\" is not",
        "6:12: socket: \"a\" is not an absolute path",
        "6:35: control_socket: \"a\" is not an absolute path",
        "6:35: socket and control_socket are both a", "7:18: heartbeat_ms 5000 is more than half",
        "part_size 1048576 is more than window 70000"};
    char *argv[] = {"adtopkd", "--config", file_path, "--wrokers", "2", NULL};
    struct config config;
    enum config_action action;
    struct faults faults = {.count = 0};

    (void)state;
    write_bytes(text, strlen(text));
    assert_int_equal(setenv("ADTOPK_WORKERS", "x", 1), 0);
    config_load(&config, 5, argv, getenv, &action, &faults);
    assert_int_equal(unsetenv("ADTOPK_WORKERS"), 0);
    for (unsigned i = 0; i < sizeof(sentences) / sizeof(sentences[0]); i++) {
        if (i >= faults.count || strstr(faults.fault[i].text, sentences[i]) == NULL) {
            fail_msg("\"%s\" lacks \"%s\"", faults.fault[i].text, sentences[i]);
        }
    }
    assert_int_equal(faults.count, sizeof(sentences) / sizeof(sentences[0]));
    assert_int_equal(faults.fault[0].code, ADTOPK_ERR_STATE);
    config_free(&config);
}

/* One fault has one sentence: nothing follows from an address that is none. */
static void test_one_fault(void **state)
{
    static const char *const texts[] = {"{\"listen\": \"tcp://10.0.0.1\"}",
        "{\"trainers_listen\": \"tcp://127.0.0.1:7500\", \"key_file\": \"/k\"}"};
    char *argv[] = {"adtopkd", "--config", file_path, NULL};

    (void)state;
    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct config config;
        enum config_action action;
        struct faults faults = {.count = 0};

        write_bytes(texts[i], strlen(texts[i]));
        config_load(&config, 3, argv, getenv, &action, &faults);
        assert_int_equal(faults.count, 1);
        config_free(&config);
    }
}

static void assert_machine(const char *text, const char *words)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK, .text = ""};
    struct faults faults = {.count = 0};

    assert_int_equal(load(&config, text, &err, NULL), ADTOPK_OK);
    config_check_machine(&config, &faults);
    config_free(&config);
    assert_int_equal(faults.count, words != NULL ? 1 : 0);
    if (words != NULL && strstr(faults.fault[0].text, words) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", faults.fault[0].text, words);
    }
}

/* Things that the machine lacks. Things that a default needs, or that systemd makes, may be
 * missing. */
static void test_machine(void **state)
{
    (void)state;
    assert_machine("{}", NULL);
    assert_machine("{\"socket\": \"/run/adtopk/a\", \"control_socket\": \"/tmp/x\"}", NULL);
    assert_machine("{\"control_group\": \"root\"}", NULL);
    assert_machine("{\n\"control_group\": \"no-such-group\"}",
        ":2:18: control_group: this system has no group \"no-such-group\"");
    assert_machine("{\"session_group\": \"no-such-group\"}",
        "session_group: this system has no group \"no-such-group\"");
    assert_machine("{\"socket\": \"/no/such/a.sock\"}",
        ":1:12: socket: the folder /no/such: No such file or directory");
    assert_machine("{\"control_socket\": \"/dev/null/a\"}", "/dev/null is not a folder");
    assert_machine("{\"key_file\": \"/no/such/key\"}", "key_file: the folder /no/such");
    assert_machine("{\"key_file\": \"/tmp/no-such-key\"}", "/tmp/no-such-key");
}

static void test_equal_endpoints(void **state)
{
    (void)state;
    assert_refused("{" LISTEN "\"peers\": [" PEER("1", "2") ",\n" PEER("2", "2") "]}",
        "peer 2: tcp://127.0.0.1:2 is the endpoint of peer 1 too", 2);
    assert_refused("{\"trainers_owner\": 0, \"trainers_listen\": \"tcp://127.0.0.1:2\", " LISTEN
                   "\n\"peers\": [" PEER("1", "2") "]}",
        "peer 1: tcp://127.0.0.1:2 is where this node itself listens", 2);
}

static void test_unknown_variables(void **state)
{
    char *const environment[] = {"HOME=/root", "ADTOPK_LOG_LEVLE=2", "ADTOPK_WORKERS=2",
        "ADTOPK_CONFIG=/x", "ADTOPK_ADDRESS=a", "ADTOPK_JOB=j", "ADTOPK_RUN_ID=1",
        "ADTOPK_CONTROL_SOCKET=/c", "ADTOPK_TEST_LONG=1", "ADTOPK_SIM_SEEDS=1",
        "ADTOPK_OS_RELEASE=/o", "XADTOPK_A=1", "ADTOPK_COLOUR", "ADTOPK_WORKERSS=1", NULL};
    char text[CONFIG_VARIABLE_SIZE];
    size_t at = 0;

    (void)state;
    assert_true(config_unknown_variable(environment, &at, text));
    assert_string_equal(text, "there is no setting for the variable ADTOPK_LOG_LEVLE; did you mean "
                              "\"ADTOPK_LOG_LEVEL\"?");
    assert_true(config_unknown_variable(environment, &at, text));
    assert_string_equal(text, "there is no setting for the variable ADTOPK_COLOUR");
    assert_true(config_unknown_variable(environment, &at, text));
    assert_non_null(strstr(text, "ADTOPK_WORKERSS; did you mean \"ADTOPK_WORKERS\"?"));
    assert_false(config_unknown_variable(environment, &at, text));
}

static void test_changes(void **state)
{
    struct config one;
    struct config other;
    struct error err = {.code = ADTOPK_OK};
    char text[CONFIG_CHANGES_SIZE];

    (void)state;
    assert_int_equal(load(&one, "{}", &err, NULL), ADTOPK_OK);
    assert_int_equal(load(&other,
                         "{\"node\": 7, \"insecure\": true, \"policy\": {\"a\": 1},"
                         "\"socket\": \"/x\", \"log_level\": \"error\"}",
                         &err, NULL),
        ADTOPK_OK);
    config_changes(&one, &other, text);
    assert_string_equal(text, "node, socket, log_level, policy, insecure");
    config_changes(&one, &one, text);
    assert_string_equal(text, "");
    config_free(&one);
    config_free(&other);
}

static const char *setting_text(const cJSON *settings, const char *key, const char *name)
{
    const char *text =
        cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetObjectItem(settings, key), name));

    assert_non_null(text);
    return text;
}

static void test_print(void **state)
{
    FILE *out = tmpfile();
    struct config config;
    struct error err = {.code = ADTOPK_OK};
    char text[16384] = "";
    char where[64];
    cJSON *document;
    const cJSON *settings;

    (void)state;
    assert_non_null(out);
    assert_int_equal(load(&config,
                         "{" LISTEN "\"peers\": [" PEER("1", "2") "],\n"
                                                                  "\"policy\": {\"density\": 0.5}}",
                         &err, "--log-level", "debug", NULL),
        ADTOPK_OK);
    assert_int_equal(config_print(&config, out, &err), ADTOPK_OK);
    config_free(&config);
    rewind(out);
    assert_true(fread(text, 1, sizeof(text) - 1, out) > 0);
    assert_int_equal(fclose(out), 0);
    document = cJSON_Parse(text);
    settings = cJSON_GetObjectItem(document, "settings");
    assert_int_equal(cJSON_GetArraySize(settings), OPTION_COUNT);
    (void)snprintf(where, sizeof(where), "%s:2", file_path);
    assert_string_equal(setting_text(settings, "policy", "source"), where);
    assert_string_equal(setting_text(settings, "log_level", "source"), "--log-level");
    assert_string_equal(setting_text(settings, "log_level", "value"), "debug");
    assert_string_equal(setting_text(settings, "node", "source"), "default");
    cJSON_Delete(document);
}

static void test_endpoints(void **state)
{
    static const char *const good[] = {"tcp://127.0.0.1:1", "tcp://[::1]:65535", "tcp://*:7400",
        "tcp://host-1.example:7400", "tcp://localhost:80"};
    static const char *const bad[] = {"", "tcp://", "tcp://host", "tcp://:7400",
        "tcp://host:", "tcp://host:0", "tcp://host:65536", "tcp://host:7400x", "tcp://host:-1",
        "tcp://::1:7400", "udp://host:7400", "tcp://ho st:7400", "tcp://[]:7400",
        "tcp://host:000001"};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(endpoint_check(good[i], "listen", NULL), ADTOPK_OK);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(endpoint_check(bad[i], "listen", NULL), ADTOPK_ERR_ARGUMENT);
    }
    assert_true(endpoint_is_loopback("tcp://127.5.0.1:1"));
    assert_true(endpoint_is_loopback("tcp://[::1]:1"));
    assert_true(endpoint_is_loopback("tcp://localhost:1"));
    assert_false(endpoint_is_loopback("tcp://128.0.0.1:1"));
    assert_false(endpoint_is_loopback("tcp://0.0.0.0:1"));
    assert_false(endpoint_is_loopback("tcp://127.0.0.1.example:1"));
    assert_false(endpoint_is_loopback("tcp://*:1"));
}

static void test_workers_default(void **state)
{
    (void)state;
    assert_int_equal(config_default_workers(-1), 1);
    assert_int_equal(config_default_workers(1), 1);
    assert_int_equal(config_default_workers(2), 1);
    assert_int_equal(config_default_workers(4), 3);
    assert_int_equal(config_default_workers(64), 4);
    assert_int_equal(config_default_network_threads(-1), 1);
    assert_int_equal(config_default_network_threads(15), 1);
    assert_int_equal(config_default_network_threads(16), 2);
    assert_int_equal(config_default_network_threads(31), 3);
    assert_int_equal(config_default_network_threads(256), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_whole_file),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_file_is_strict),
        cmocka_unit_test(test_nul_in_file),
        cmocka_unit_test(test_long_and_missing_file),
        cmocka_unit_test(test_settings_fit_each_other),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_policy_source),
        cmocka_unit_test(test_policy_lines),
        cmocka_unit_test(test_all_faults),
        cmocka_unit_test(test_one_fault),
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_equal_endpoints),
        cmocka_unit_test(test_changes),
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_unknown_variables),
        cmocka_unit_test(test_endpoints),
        cmocka_unit_test(test_workers_default),
        cmocka_unit_test(test_reload),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
