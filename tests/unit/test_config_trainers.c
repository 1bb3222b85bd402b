/* Trainers on other machines, in the configuration. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/settings/config.h"

static char file_path[] = "/tmp/adtopk-config-XXXXXX";

static char *no_variable(const char *name)
{
    (void)name;
    return NULL;
}

/* Loads a file with this text, and one flag if `flag` is not NULL. */
static enum adtopk_status load(
    struct config *config, const char *text, const char *flag, const char *value, struct error *err)
{
    char *argv[] = {"adtopkd", "--config", file_path, (char *)flag, (char *)value, NULL};
    enum config_action action;
    struct faults faults = {.count = 0};
    FILE *file = fopen(file_path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    config_load(config, flag != NULL ? 5 : 3, argv, no_variable, &action, &faults);
    return faults_first(&faults, err);
}

static void assert_flag_refused(const char *flag, const char *value, const char *words)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK};

    assert_int_equal(load(&config, "{}", flag, value, &err), ADTOPK_ERR_STATE);
    config_free(&config);
    if (strstr(err.text, words) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", err.text, words);
    }
}

#define KEY_A "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
#define KEY_B "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
#define ELSEWHERE "\"trainers_listen\": \"tcp://10.0.0.1:7500\", "
#define HERE "\"trainers_listen\": \"tcp://127.0.0.1:7500\", "
#define KEYED ELSEWHERE "\"key_file\": \"/k\", "

static void test_trainers(void **state)
{
    static const char *const good[] = {HERE "\"trainers_owner\": \"root\", \"insecure\": true",
        HERE "\"trainers_owner\": 1000, \"insecure\": true",
        ELSEWHERE "\"trainers_owner\": 0, \"insecure\": true",
        KEYED "\"trainers\": [{\"key\": \"" KEY_A "\", \"owner\": \"root\"}, {\"owner\": 5, "
              "\"key\": \"" KEY_B "\"}]"};
    static const char *const bad[][2] = {{HERE "\"node\": 1", "either trainers"},
        {"\"trainers_owner\": 0", "trainers_listen, the address for trainers, is needed"},
        {ELSEWHERE "\"trainers_owner\": 0", "every user of any machine"},
        {HERE "\"trainers_owner\": 0", "every user of this machine"},
        {HERE "\"trainers_owner\": \"nobody-of-this-name\"", "no user"},
        {HERE "\"trainers_owner\": -1", "a user's name or number"},
        {HERE "\"trainers_owner\": 4294967295", "a user's name or number"},
        {HERE "\"trainers_owner\": 1.5", "a user's name or number"},
        {HERE "\"trainers_owner\": 0, \"key_file\": \"/k\", \"trainers\": [{\"key\": \"" KEY_A
              "\", \"owner\": 1}]",
            "either trainers"},
        {"\"trainers_listen\": \"ipc:///x\", \"trainers_owner\": 0", "tcp://HOST:PORT"},
        {HERE "\"trainers\": [{\"key\": \"" KEY_A "\", \"owner\": 1}]", "key_file is needed"},
        {KEYED "\"trainers\": {}", "an array"}, {KEYED "\"trainers\": [5]", "\"owner\": USER}"},
        {KEYED "\"trainers\": [{\"key\": \"" KEY_A "\"}]", "\"owner\": USER}"},
        {KEYED "\"trainers\": [{\"key\": \"short\", \"owner\": 1}]", "the key has 5 bytes"},
        {KEYED "\"trainers\": [{\"key\": \"" KEY_A "\", \"owner\": 1, \"x\": 1}]", "unknown key"},
        {KEYED "\"trainers\": [{\"key\": \"" KEY_A "\", \"owner\": 1}, {\"key\": \"" KEY_A
               "\", \"owner\": 2}]",
            "occurs twice"}};
    struct config config;
    char text[512];

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct error err = {.code = ADTOPK_OK};

        (void)snprintf(text, sizeof text, "{%s}", good[i]);
        if (load(&config, text, NULL, NULL, &err) != ADTOPK_OK) {
            fail_msg("%s", err.text);
        }
        if (i == 3) {
            assert_int_equal(config.trainer_count, 2);
            assert_int_equal(config.trainers[0].owner, 0);
            assert_string_equal(config.trainers[1].key, KEY_B);
            assert_int_equal(config.trainers[1].owner, 5);
        }
        config_free(&config);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct error err = {.code = ADTOPK_OK};

        (void)snprintf(text, sizeof text, "{%s}", bad[i][0]);
        assert_int_not_equal(load(&config, text, NULL, NULL, &err), ADTOPK_OK);
        config_free(&config);
        if (strstr(err.text, bad[i][1]) == NULL) {
            fail_msg("\"%s\" lacks \"%s\"", err.text, bad[i][1]);
        }
    }
}

static void test_trainers_as_text(void **state)
{
    struct config config;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_int_equal(
        load(&config, "{" KEYED "\"node\": 1}", "--trainers", KEY_A "=root," KEY_B "=7", &err),
        ADTOPK_OK);
    assert_int_equal(config.trainer_count, 2);
    assert_string_equal(config.trainers[0].key, KEY_A);
    assert_int_equal(config.trainers[1].owner, 7);
    config_free(&config);
    assert_flag_refused("--trainers", KEY_A, "KEY=USER");
    assert_flag_refused("--trainers", "short=root", "KEY=USER");
    assert_flag_refused("--trainers", KEY_A "=", "KEY=USER");
    assert_flag_refused("--trainers-owner", "99999999999", "no user");
}

static int make_file(void **state)
{
    const int descriptor = mkstemp(file_path);

    (void)state;
    return descriptor >= 0 ? close(descriptor) : -1;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(file_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trainers),
        cmocka_unit_test(test_trainers_as_text),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
