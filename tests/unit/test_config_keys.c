/* The settings for keys: how they are read, and the words with which combinations are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/settings/config.h"

#define KEY_A "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
#define KEY_B "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
#define SECRET "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6" /* the secret key of KEY_A */
#define KEY_C "0000000000000000000000000000000000000000"
#define HERE "--listen=tcp://127.0.0.1:7400"
#define BEYOND "--listen=tcp://10.0.0.1:7400"
#define PEER "1=tcp://127.0.0.1:7410"
#define KEY_FILE "--key-file=/etc/adtopk/node.key"

static char folder[] = "/tmp/adtopk-config-keys-XXXXXX";

static char *no_variable(const char *name)
{
    static char file[128];

    if (strcmp(name, "ADTOPK_CONFIG") != 0) {
        return NULL;
    }
    (void)snprintf(file, sizeof(file), "%s/config", folder);
    return file;
}

static void write_file(const char *name, const char *text)
{
    char path[128];
    FILE *stream;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    stream = fopen(path, "we");
    assert_non_null(stream);
    assert_true(fputs(text, stream) >= 0);
    assert_int_equal(fclose(stream), 0);
}

/* Loads the file `text` and up to 7 flags. NULL ends the flags. */
static enum adtopk_status load(
    struct config *config, const char *text, const char *const *flags, struct error *err)
{
    static char *argv[9] = {"adtopkd"};
    enum config_action action;
    struct faults faults = {.count = 0};
    int argc = 1;

    write_file("config", text);
    while (flags[argc - 1] != NULL) {
        argv[argc] = (char *)(uintptr_t)flags[argc - 1];
        argc++;
    }
    config_load(config, argc, argv, no_variable, &action, &faults);
    return faults_first(&faults, err);
}

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void assert_refused_text(const char *text, const char *const *flags, const char *words)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK};

    assert_int_not_equal(load(&config, text, flags, &err), ADTOPK_OK);
    config_free(&config);
    if (strstr(err.text, words) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", err.text, words);
    }
}

#define assert_refused(flags, words) assert_refused_text("{}", flags, words)

static void assert_taken(struct config *config, const char *text, const char *const *flags)
{
    struct error err = {.code = ADTOPK_OK};

    if (load(config, text, flags, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
}

static void test_values(void **state)
{
    struct config config;
    char endpoint[CONFIG_ENDPOINT_SIZE];

    (void)state;
    assert_taken(&config, "{}", FLAGS(HERE));
    assert_string_equal(config.key_file, "");
    assert_int_equal(config.data_protection, PROTECTION_CURVE);
    assert_false(config_bulk_endpoint(&config, endpoint));
    assert_null(config_unprotected(&config));
    config_free(&config);

    assert_taken(&config,
        "{\"listen\": \"tcp://10.0.0.1:7400\", \"key_file\": \"/k\", \"data_protection\": \"none\","
        " \"peers\": [{\"node\": 1, \"endpoint\": \"tcp://10.0.0.2:7400\", \"key\": \"" KEY_A
        "\"}, {\"node\": 2, \"endpoint\": \"tcp://10.0.0.3:7400\", \"key\": [\"" KEY_B
        "\", \"" KEY_C "\"]}]}",
        FLAGS("--log-level=error"));
    assert_string_equal(config.key_file, "/k");
    assert_string_equal(config.peers[0].keys[0], KEY_A);
    assert_string_equal(config.peers[0].keys[1], "");
    assert_string_equal(config.peers[1].keys[0], KEY_B);
    assert_string_equal(config.peers[1].keys[1], KEY_C);
    assert_true(config_bulk_endpoint(&config, endpoint));
    assert_string_equal(endpoint, "tcp://10.0.0.1:7401");
    assert_non_null(strstr(config_unprotected(&config), "bulk"));
    config_free(&config);
}

/* The grammar of the flag. Keys may contain '#' and '='. */
static void test_flag(void **state)
{
    struct config config;

    (void)state;
    assert_taken(&config, "{}",
        FLAGS(HERE, KEY_FILE, "--peers",
            "1=tcp://127.0.0.1:7410#" KEY_A ";" KEY_B ",2=tcp://[::1]:7420#" KEY_C));
    assert_int_equal(config.peer_count, 2);
    assert_string_equal(config.peers[0].endpoint, "tcp://127.0.0.1:7410");
    assert_string_equal(config.peers[0].keys[0], KEY_A);
    assert_string_equal(config.peers[0].keys[1], KEY_B);
    assert_string_equal(config.peers[1].endpoint, "tcp://[::1]:7420");
    assert_string_equal(config.peers[1].keys[0], KEY_C);
    config_free(&config);
    assert_refused(FLAGS(HERE, KEY_FILE, "--peers", PEER "#"), "the key of node 1 has 0 bytes");
    assert_refused(
        FLAGS(HERE, KEY_FILE, "--peers", PEER "#short"), "the key of node 1 has 5 bytes");
    assert_refused(
        FLAGS(HERE, KEY_FILE, "--peers", PEER "#" KEY_A ";"), "the key of node 1 has 0 bytes");
    assert_refused(
        FLAGS(HERE, KEY_FILE, "--peers", PEER "#" KEY_A "x"), "the key of node 1 has 41 bytes");
    assert_refused(FLAGS(HERE, KEY_FILE, "--peers", PEER "#" KEY_A ";" KEY_B ";" KEY_C),
        "node 1 has more than 2 keys");
}

static void test_json(void **state)
{
    static const struct {
        const char *key;
        const char *words;
    } wrong[] = {
        {"7", "a text, or an array of texts"},
        {"[]", "a text, or an array of texts"},
        {"[7]", "a text, or an array of texts"},
        {"{}", "a text, or an array of texts"},
        {"\"\"", "the key of node 1 has 0 bytes"},
        {"[\"" KEY_A "\", \"\"]", "the key of node 1 has 0 bytes"},
        {"\"" KEY_A "\", \"key\": \"" KEY_B "\"", "repeated key \"key\""},
        {"[\"" KEY_A "\", \"" KEY_B "\", \"" KEY_C "\"]", "more than 2 keys"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char text[512];

        (void)snprintf(text, sizeof(text),
            "{\"peers\": [{\"node\": 1, \"endpoint\": \"tcp://127.0.0.1:1\", \"key\": %s}]}",
            wrong[i].key);
        assert_refused_text(text, FLAGS(HERE, KEY_FILE), wrong[i].words);
        assert_refused_text(text, FLAGS(HERE, KEY_FILE), "\"peers\"[0]");
    }
}

static void test_what_needs_keys(void **state)
{
    struct config config;

    (void)state;
    assert_refused(FLAGS(BEYOND), "listen: tcp://10.0.0.1:7400 leads beyond this machine");
    assert_refused(FLAGS(BEYOND), "key_file");
    assert_refused(FLAGS(HERE, "--peers=1=tcp://10.0.0.2:1"), "peer 1: tcp://10.0.0.2:1 leads");
    assert_refused(
        FLAGS(BEYOND, KEY_FILE, "--peers=1=tcp://10.0.0.2:1"), "peer 1: it has no \"key\"");
    assert_refused(
        FLAGS(BEYOND, KEY_FILE, "--insecure", "--peers=1=tcp://10.0.0.2:1"), "has no \"key\"");
    assert_refused(FLAGS(HERE, "--peers=" PEER "#" KEY_A), "peer 1: it has a \"key\", but this");
    assert_refused(FLAGS(HERE, "--key-file=node.key"), "\"node.key\" is not an absolute path");
    assert_refused(
        FLAGS(HERE, KEY_FILE, "--peers=" PEER "#" KEY_A ";" KEY_A), "two keys are the same");
    assert_refused(
        FLAGS(HERE, KEY_FILE, "--peers=" PEER "#" KEY_A ",3=tcp://127.0.0.1:7430#" KEY_B ";" KEY_A),
        "peer 3: it has the key of peer 1");
    assert_taken(&config, "{}", FLAGS(BEYOND, KEY_FILE, "--peers=1=tcp://10.0.0.2:1#" KEY_A));
    assert_null(config_unprotected(&config));
    config_free(&config);
    assert_taken(&config, "{}", FLAGS(BEYOND, "--insecure", "--peers=1=tcp://10.0.0.2:1"));
    assert_non_null(strstr(config_unprotected(&config), "insecure"));
    assert_null(config_unreachable(&config));
    config_free(&config);
    assert_taken(&config, "{}", FLAGS(HERE, "--peers=" PEER));
    assert_null(config_unreachable(&config));
    config_free(&config);
    assert_taken(&config, "{}", FLAGS(HERE, "--insecure", "--peers=1=tcp://10.0.0.2:1"));
    assert_non_null(strstr(config_unreachable(&config), "listen"));
    config_free(&config);
}

static void test_bulk(void **state)
{
    struct config config;
    char endpoint[CONFIG_ENDPOINT_SIZE];

    (void)state;
    assert_refused(FLAGS(HERE, "--data-protection=none"), "key_file is missing");
    assert_refused(FLAGS(HERE, "--data-protection=some"), "\"some\" is not one of: curve, none");
    assert_refused(FLAGS(HERE, KEY_FILE, "--bulk-listen=tcp://127.0.0.1:1"), "only used with");
    assert_refused(
        FLAGS(HERE, KEY_FILE, "--data-protection=none", "--bulk-listen=tcp://127.0.0.1:7400"),
        "bulk_listen and listen are both");
    assert_refused(
        FLAGS(HERE, KEY_FILE, "--data-protection=none", "--bulk-listen=ipc:///x"), "bulk_listen");
    assert_refused(FLAGS("--listen=tcp://127.0.0.1:65535", KEY_FILE, "--data-protection=none"),
        "is the last one");
    assert_taken(&config, "{}",
        FLAGS(HERE, KEY_FILE, "--data-protection=none", "--bulk-listen=tcp://127.0.0.1:9"));
    assert_true(config_bulk_endpoint(&config, endpoint));
    assert_string_equal(endpoint, "tcp://127.0.0.1:9");
    config_free(&config);
}

static void test_loading(void **state)
{
    struct config config;
    struct keyfile_pair pair;
    struct error err = {.code = ADTOPK_OK};
    char path[128], public_key[KEYFILE_KEY_SIZE];

    (void)state;
    assert_taken(&config, "{}", FLAGS(HERE));
    assert_int_equal(config_load_keys(&config, &pair, &err), ADTOPK_OK);
    assert_string_equal(pair.public_key, "");
    config_free(&config);

    assert_taken(&config, "{}", FLAGS(HERE, KEY_FILE, "--peers", PEER "#" KEY_A));
    (void)snprintf(path, sizeof(path), "%s/key", folder);
    (void)snprintf(config.key_file, sizeof(config.key_file), "%s", path);
    assert_int_equal(config_load_keys(&config, &pair, &err), ADTOPK_ERR_SYSTEM);
    assert_non_null(strstr(err.text, "--key-file: key_file: "));
    assert_non_null(strstr(err.text, path));
    assert_int_equal(keyfile_generate(path, public_key, &err), ADTOPK_OK);
    assert_int_equal(config_load_keys(&config, &pair, &err), ADTOPK_OK);
    assert_string_equal(pair.public_key, public_key);
    memcpy(config.peers[0].keys[1], public_key, sizeof(public_key));
    assert_int_equal(config_load_keys(&config, &pair, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "peer 1: it has this node's own key"));
    assert_string_equal(pair.secret_key, "");
    config_free(&config);
}

/* The daemon notices a secret key in the place of a public one, and prints it nowhere. */
static void test_secret_in_public(void **state)
{
    struct config config;
    struct keyfile_pair pair;
    struct faults faults = {.count = 0};
    struct error err = {.code = ADTOPK_OK};
    char path[128], text[512], public_key[KEYFILE_KEY_SIZE];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/own", folder);
    assert_int_equal(keyfile_generate(path, public_key, &err), ADTOPK_OK);
    assert_int_equal(keyfile_load(path, &pair, &err), ADTOPK_OK);
    (void)snprintf(text, sizeof(text),
        "{\"key_file\": \"%s\",\n\"peers\": [\n{\"node\": 1, \"endpoint\": \"tcp://127.0.0.1:1\", "
        "\"key\": \"%s\"},\n{\"node\": 2, \"endpoint\": \"tcp://127.0.0.1:2\", "
        "\"key\": [\"%s\", \"%s\"]}]}",
        path, KEY_A, pair.secret_key, SECRET);
    assert_taken(&config, text, FLAGS(HERE));
    config_check_machine(&config, &faults);
    assert_int_equal(faults.count, 2);
    assert_non_null(strstr(faults.fault[0].text, ":4:1: peer 2: this is the secret key of this"));
    assert_non_null(strstr(faults.fault[1].text, "peer 2: this is no public key"));
    for (unsigned i = 0; i < faults.count; i++) {
        assert_null(strstr(faults.fault[i].text, pair.secret_key));
        assert_null(strstr(faults.fault[i].text, "JTKVSB"));
    }
    config_free(&config);
    keyfile_wipe(&pair);
}

/* A running daemon takes other keys. It does not take another kind of protection. */
static void test_reload(void **state)
{
    struct config running, fresh;
    struct error err = {.code = ADTOPK_OK};
    char changes[CONFIG_CHANGES_SIZE];

    (void)state;
#define DOCUMENT(keys, more)                                                                       \
    "{\"peers\": [{\"node\": 1, \"endpoint\": \"tcp://127.0.0.1:1\", \"key\": " keys "}]" more "}"
    assert_taken(&running, DOCUMENT("\"" KEY_A "\"", ", \"key_file\": \"/a\""), FLAGS(HERE));
    write_file("config", DOCUMENT("[\"" KEY_A "\", \"" KEY_B "\"]", ", \"key_file\": \"/b\""));
    assert_int_equal(config_reload(&running, &fresh, no_variable, &err), ADTOPK_OK);
    config_changes(&running, &fresh, changes);
    assert_string_equal(changes, "peers, key_file");
    config_free(&fresh);
    write_file("config",
        DOCUMENT("\"" KEY_A "\"", ", \"key_file\": \"/a\", \"data_protection\": \"none\""));
    assert_int_equal(config_reload(&running, &fresh, no_variable, &err), ADTOPK_ERR_STATE);
    assert_non_null(strstr(err.text, "\"data_protection\" needs a restart"));
    config_free(&fresh);
    config_free(&running);

    assert_taken(
        &running, "{\"seeds\": [{\"node\": 1, \"endpoint\": \"tcp://127.0.0.1:1\"}]}", FLAGS(HERE));
    write_file("config", "{}");
    assert_int_equal(config_reload(&running, &fresh, no_variable, &err), ADTOPK_ERR_STATE);
    assert_non_null(strstr(err.text, "\"seeds\": to remove node 1 needs a restart"));
    config_free(&fresh);
    config_free(&running);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[64];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

#define SEED "--seeds=2=tcp://127.0.0.1:7420"

/* Seeds are peers in a list of their own; a peer without an endpoint takes this node as its seed.
 */
static void test_seeds(void **state)
{
    struct config config;
    FILE *out = tmpfile();
    char printed[32768] = "";
    struct error err;

    (void)state;
    assert_taken(&config,
        "{\"listen\": \"tcp://0.0.0.0:7400\", \"advertise\": \"tcp://10.0.0.1:7400\","
        " \"key_file\": \"/k\","
        " \"seeds\": [{\"node\": 1, \"endpoint\": \"tcp://10.0.0.2:7400\", \"key\": \"" KEY_A
        "\"}], \"peers\": [{\"node\": 2, \"key\": \"" KEY_B "\"}]}",
        FLAGS("--log-level=error"));
    assert_int_equal(config.peer_count, 2);
    assert_true(config_find_peer(&config, 1)->seed);
    assert_false(config_find_peer(&config, 2)->seed);
    assert_string_equal(config_find_peer(&config, 2)->endpoint, "");
    assert_string_equal(config_advertised(&config), "tcp://10.0.0.1:7400");
    assert_non_null(out);
    assert_int_equal(config_print(&config, out, &err), ADTOPK_OK);
    rewind(out);
    (void)fread(printed, 1, sizeof(printed) - 1, out);
    (void)fclose(out);
    assert_non_null(strstr(printed, "\"seeds\""));
    assert_null(strstr(printed, "\"endpoint\":\t\"\""));
    config_free(&config);

    assert_taken(&config, "{}", FLAGS(HERE, "--peers=3=,1=tcp://127.0.0.1:7410", SEED));
    assert_null(config_unreachable(&config)); /* nobody knows yet where node 3 is */
    assert_int_equal(config.peer_count, 3);
    assert_string_equal(config_find_peer(&config, 3)->endpoint, "");
    assert_string_equal(config_advertised(&config), "tcp://127.0.0.1:7400");
    config_free(&config);

    assert_refused(FLAGS(SEED), "listen is needed");
    assert_refused(FLAGS(HERE, "--seeds=2="), "the endpoint of node 2 has 0 bytes");
    assert_refused(FLAGS(HERE, "--node=2", SEED), "peer 2 has this node's own id");
    assert_refused(FLAGS(HERE, "--seeds=2=tcp://127.0.0.1:7400"), "where this node itself listens");
    assert_refused(FLAGS(HERE, "--advertise=tcp://127.0.0.1:7420", SEED),
        "peer 2: tcp://127.0.0.1:7420 is where this node itself listens");
    assert_refused(FLAGS(HERE, "--peers=2=", SEED), "peer 2 occurs twice");
    assert_refused(FLAGS(HERE, "--advertise=tcp://127.0.0.1:7400"), "there are none");
    assert_refused(FLAGS(HERE, "--advertise=here", SEED), "not of the form tcp:");
    assert_refused(FLAGS("--listen=tcp://*:7400", "--insecure", SEED), "address in numbers");
    assert_refused(FLAGS("--listen=tcp://localhost:7400", SEED), "address in numbers");
    assert_refused(FLAGS(HERE, "--advertise=tcp://localhost:7400", SEED), "address in numbers");
    assert_refused(FLAGS(HERE, "--seeds=2=tcp://10.0.0.2:7400"), "leads beyond this machine");
    assert_refused(FLAGS(HERE, KEY_FILE, SEED), "peer 2: it has no \"key\"");
    assert_refused(
        FLAGS(HERE, KEY_FILE, "--peers=1=#" KEY_A, SEED "#" KEY_A), "it has the key of peer");
    assert_refused_text("{\n\"listen\": \"tcp://127.0.0.1:7400\",\n"
                        "\"seeds\": [{\"node\": 2}]}",
        FLAGS("--log-level=error"), "3:11: \"seeds\"[0]: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_flag),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_what_needs_keys),
        cmocka_unit_test(test_bulk),
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_secret_in_public),
        cmocka_unit_test(test_reload),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
