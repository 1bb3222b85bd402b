/* Key files: writing, reading, and everything that is refused. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#include "proto/keyfile.h"

/* The pairs of the ZeroMQ manual (zmq_curve(7)). */
#define SERVER_PUBLIC "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
#define SERVER_SECRET "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
#define CLIENT_PUBLIC "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"

#define PAIR "version = 1\npublic = \"" SERVER_PUBLIC "\"\nsecret = \"" SERVER_SECRET "\"\n"

static char folder[] = "/tmp/adtopk-keyfile-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static const char *file_with(const char *name, const char *text, size_t size, mode_t mode)
{
    const char *path = path_of(name);
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
    }
}

/* Every public key of a pair is accepted. One in 32 secret keys looks like a public one. */
static void test_which_is_public(void **state)
{
    unsigned suspicious = 0;

    (void)state;
    assert_true(keyfile_may_be_public(SERVER_PUBLIC));
    assert_true(keyfile_may_be_public(CLIENT_PUBLIC));
    assert_false(keyfile_may_be_public(SERVER_SECRET));
    assert_false(keyfile_may_be_public("0000000000000000000000000000000000000000"));
    for (unsigned i = 0; i < 100; i++) {
        char public_key[KEYFILE_KEY_SIZE], secret_key[KEYFILE_KEY_SIZE];

        assert_int_equal(zmq_curve_keypair(public_key, secret_key), 0);
        assert_true(keyfile_may_be_public(public_key));
        suspicious += keyfile_may_be_public(secret_key) ? 1 : 0;
    }
    assert_in_range(suspicious, 0, 20); /* 3 are expected */
}

/* Keys are decoded as libzmq decodes them. A changed character is often not Z85, or too large. */
static void test_decode(void **state)
{
    unsigned keys = 0, others = 0;

    (void)state;
    for (unsigned i = 0; i < 40 * 96; i++) {
        char key[KEYFILE_KEY_SIZE] = SERVER_PUBLIC;
        uint8_t expected[KEYFILE_KEY_BYTES] = {0}, bytes[KEYFILE_KEY_BYTES] = {0};
        bool is_key;

        key[i / 96] = (char)(' ' + i % 96);
        is_key = zmq_z85_decode(expected, key) != NULL;
        assert_int_equal(keyfile_decode(key, bytes), is_key);
        if (is_key) {
            assert_memory_equal(bytes, expected, sizeof bytes);
        }
        keys += is_key;
        others += !is_key;
    }
    assert_true(keys > 1000 && others > 300);
}

static void test_generate(void **state)
{
    const char *path = path_of("generated");
    char public_key[KEYFILE_KEY_SIZE], again[KEYFILE_KEY_SIZE];
    struct keyfile_pair pair;
    struct error err = {.code = ADTOPK_OK};
    struct stat info;

    (void)state;
    assert_int_equal(keyfile_generate(path, public_key, &err), ADTOPK_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(keyfile_load(path, &pair, &err), ADTOPK_OK);
    assert_string_equal(pair.public_key, public_key);
    assert_true(keyfile_is_key(pair.secret_key));
    keyfile_wipe(&pair);
    assert_string_equal(pair.secret_key, "");

    assert_int_equal(keyfile_generate(path, again, &err), ADTOPK_ERR_SYSTEM);
    assert_contains(err.text, path);
    assert_contains(err.text, "File exists");
    assert_int_equal(keyfile_load(path, &pair, &err), ADTOPK_OK);
    assert_string_equal(pair.public_key, public_key); /* the failed read changed nothing */
    keyfile_wipe(&pair);
}

static void test_generate_through_a_link(void **state)
{
    char target[256], public_key[KEYFILE_KEY_SIZE];
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    (void)snprintf(target, sizeof(target), "%s", path_of("target"));
    assert_int_equal(symlink(target, path_of("link")), 0);
    assert_int_equal(keyfile_generate(path_of("link"), public_key, &err), ADTOPK_ERR_SYSTEM);
    assert_int_equal(access(target, F_OK), -1);
}

static void test_generate_on_a_full_disk(void **state)
{
    const struct rlimit none = {0, RLIM_INFINITY};
    struct rlimit before;
    char public_key[KEYFILE_KEY_SIZE];
    struct error err = {.code = ADTOPK_OK};
    enum adtopk_status status;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0); /* main() ignores SIGXFSZ */
    status = keyfile_generate(path_of("full"), public_key, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, ADTOPK_ERR_SYSTEM);
    assert_contains(err.text, "cannot be written");
    assert_int_equal(access(path_of("full"), F_OK), -1); /* no part of a file is left */
}

static void test_public_file(void **state)
{
    const char text[] = "# node 1\r\n\n version=1 \npublic\t=\t\"" CLIENT_PUBLIC "\"";
    struct keyfile_pair pair;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_int_equal(
        keyfile_parse("text", text, sizeof(text) - 1, zmq_curve_public, &pair, &err), ADTOPK_OK);
    assert_string_equal(pair.public_key, CLIENT_PUBLIC);
    assert_int_equal(keyfile_load(file_with("public", text, sizeof(text) - 1, 0600), &pair, &err),
        ADTOPK_ERR_ARGUMENT);
    assert_contains(err.text, "secret is missing");
}

static void test_modes(void **state)
{
    const char *path = file_with("modes", PAIR, sizeof(PAIR) - 1, 0600);

    (void)state;
    for (unsigned mode = 0; mode < 0100; mode++) {
        struct keyfile_pair pair;
        struct error err = {.code = ADTOPK_OK};
        char shown[16];

        assert_int_equal(chmod(path, 0600 | mode), 0);
        if (mode == 0) {
            assert_int_equal(keyfile_load(path, &pair, &err), ADTOPK_OK);
            assert_string_equal(pair.secret_key, SERVER_SECRET);
            continue;
        }
        (void)snprintf(shown, sizeof(shown), "mode %04o", 0600 | mode);
        assert_int_equal(keyfile_load(path, &pair, &err), ADTOPK_ERR_DENIED);
        assert_contains(err.text, path);
        assert_contains(err.text, shown);
        assert_contains(err.text, (mode & 0022) != 0 ? "write" : "read");
        assert_string_equal(pair.secret_key, "");
    }
}

static void test_what_is_no_file(void **state)
{
    struct keyfile_pair pair;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_int_equal(keyfile_load(path_of("missing"), &pair, &err), ADTOPK_ERR_SYSTEM);
    assert_contains(err.text, "/missing: cannot be opened: No such file");
    assert_int_equal(keyfile_load(folder, &pair, &err), ADTOPK_ERR_DENIED);
    assert_contains(err.text, "not a regular file");
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    assert_int_equal(keyfile_load(path_of("fifo"), &pair, &err), ADTOPK_ERR_DENIED);
    assert_int_equal(keyfile_load("/dev/zero", &pair, &err), ADTOPK_ERR_DENIED);
}

static void test_owner(void **state)
{
    const char *path = file_with("foreign", PAIR, sizeof(PAIR) - 1, 0600);
    struct keyfile_pair pair;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    if (geteuid() != 0) {
        return; /* only root can give a file away */
    }
    assert_int_equal(chown(path, 12345, 12345), 0);
    assert_int_equal(keyfile_load(path, &pair, &err), ADTOPK_ERR_DENIED);
    assert_contains(err.text, "belongs to user 12345");
}

struct wrong {
    const char *text;
    const char *complaint;
};

static void test_wrong_content(void **state)
{
    static const struct wrong wrongs[] = {
        {"", "version is missing"},
        {"version = 1\n", "public is missing"},
        {"public = \"" SERVER_PUBLIC "\"\n", "version is missing"},
        {"version = 1\nsecret = \"" SERVER_SECRET "\"\n", "public is missing"},
        {"version = 2\n" PAIR, ":1: only version = 1"},
        {"version = 01\n", ":1: only version = 1"},
        {PAIR "version = 1\n", ":4: version occurs twice"},
        {PAIR "public = \"" SERVER_PUBLIC "\"\n", ":4: this key occurs twice"},
        {PAIR "secret = \"" SERVER_SECRET "\"\n", ":4: this key occurs twice"},
        {PAIR "\n# fine\nowner = 7\n", ":6: neither version nor public nor secret"},
        {PAIR "rubbish\n", ":4: not of the form NAME = VALUE"},
        {"version = 1\npublic = " SERVER_PUBLIC "\n", ":2: a key of 40 characters in quotes"},
        {"version = 1\npublic = \"" SERVER_PUBLIC "\n", ":2: a key of 40 characters in quotes"},
        {"version = 1\npublic = \"" SERVER_PUBLIC "a\"\n", ":2: a key of 40 characters in quotes"},
        {"version = 1\npublic = \"" SERVER_PUBLIC "\" # mine\n", ":2: a key of 40 characters"},
        {"version = 1\npublic = \"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf~\"\n",
            ":2: the key is not valid Z85"},
        {"version = 1\npublic = \"#####:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]\"\n",
            ":2: the key is not valid Z85"}, /* more than 32 bits in a group */
        {"version = 1\npublic = \"" CLIENT_PUBLIC "\"\nsecret = \"" SERVER_SECRET "\"\n",
            "does not belong to the secret"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        const char *path = file_with("wrong", wrongs[i].text, strlen(wrongs[i].text), 0600);
        struct keyfile_pair pair;
        struct error err = {.code = ADTOPK_OK};

        assert_int_equal(keyfile_load(path, &pair, &err), ADTOPK_ERR_ARGUMENT);
        assert_contains(err.text, path);
        assert_contains(err.text, wrongs[i].complaint);
        assert_null(strstr(err.text, SERVER_SECRET));
        assert_string_equal(pair.secret_key, "");
    }
}

/* Who only looks at a file is told first that it is no pair. */
static void test_look(void **state)
{
    struct keyfile_pair pair;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_int_equal(
        keyfile_look(file_with("look", "hello\n", 6, 0644), &pair, &err), ADTOPK_ERR_ARGUMENT);
    assert_contains(err.text, ":1: not of the form NAME = VALUE; this is no key pair");
    assert_int_equal(keyfile_look(file_with("open", PAIR, sizeof(PAIR) - 1, 0644), &pair, &err),
        ADTOPK_ERR_DENIED);
    assert_contains(err.text, "mode 0644");
    assert_string_equal(pair.secret_key, "");
    assert_int_equal(
        keyfile_look(file_with("pair", PAIR, sizeof(PAIR) - 1, 0600), &pair, &err), ADTOPK_OK);
    assert_string_equal(pair.public_key, SERVER_PUBLIC);
    assert_int_equal(keyfile_look("/dev/zero", &pair, &err), ADTOPK_ERR_DENIED);
}

static void test_size(void **state)
{
    char text[KEYFILE_SIZE_MAX + 1];
    struct keyfile_pair pair;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    memset(text, '\n', sizeof(text));
    memcpy(text, PAIR, sizeof(PAIR) - 1);
    assert_int_equal(
        keyfile_load(file_with("long", text, sizeof(text) - 1, 0600), &pair, &err), ADTOPK_OK);
    assert_int_equal(keyfile_load(file_with("longer", text, sizeof(text), 0600), &pair, &err),
        ADTOPK_ERR_ARGUMENT);
    assert_contains(err.text, "longer than 4096 bytes");
    text[KEYFILE_SIZE_MAX - 1] = '\0';
    assert_int_equal(keyfile_load(file_with("nul", text, sizeof(text) - 1, 0600), &pair, &err),
        ADTOPK_ERR_ARGUMENT);
    assert_contains(err.text, "a NUL does not belong");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_which_is_public),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_generate),
        cmocka_unit_test(test_generate_through_a_link),
        cmocka_unit_test(test_generate_on_a_full_disk),
        cmocka_unit_test(test_public_file),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_what_is_no_file),
        cmocka_unit_test(test_owner),
        cmocka_unit_test(test_wrong_content),
        cmocka_unit_test(test_look),
        cmocka_unit_test(test_size),
    };

    (void)signal(SIGXFSZ, SIG_IGN);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
