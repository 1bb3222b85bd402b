/* What a change of policy sets, in words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/policy/policy_key.h"

#define MORE ", ..."

/* Adds a word; false: there is no room for it and for the mark that more follows. */
static bool add_word(char *text, size_t size, const char *word)
{
    const size_t used = strlen(text), comma = used > 0 ? 2 : 0;

    if (used + comma + strlen(word) + sizeof(MORE) > size) {
        (void)snprintf(text + used, size - used, "%s", used > 0 ? MORE : "...");
        return false;
    }
    (void)snprintf(text + used, size - used, "%s%s", comma > 0 ? ", " : "", word);
    return true;
}

/* "KEY=VALUE" as on a command line: no quotes, and fractions without needless digits. */
static void print_setting(
    const struct policy_key *key, const char *value, char word[KEY_VALUE_SIZE])
{
    const size_t length = strlen(value);
    char *end;
    const double number = strtod(value, &end);

    if (key->type == KEY_PLAN) {
        (void)snprintf(word, KEY_VALUE_SIZE, "another %s", key->name);
    } else if (*end == '\0' && strchr(value, '.') != NULL) {
        (void)snprintf(word, KEY_VALUE_SIZE, "%s=%.9g", key->name, number);
    } else if (value[0] == '"') {
        (void)snprintf(word, KEY_VALUE_SIZE, "%s=%.*s", key->name, (int)length - 2, value + 1);
    } else {
        (void)snprintf(word, KEY_VALUE_SIZE, "%s=%s", key->name, value);
    }
}

static bool are_same_rules(const struct policy *a, const struct policy *b)
{
    bool same = a->rules == b->rules;
    const struct policy_key *key;

    for (unsigned r = 0; same && r < a->rules; r++) {
        const struct policy_rule *one = &a->rule[r], *other = &b->rule[r];

        same = one->sets == other->sets && strcmp(one->match, other->match) == 0;
        for (unsigned i = 0; same && (key = policy_key_at(i)) != NULL; i++) {
            same = (one->sets >> i & 1) == 0 ||
                   memcmp((const char *)&one->tensor + key->offset,
                       (const char *)&other->tensor + key->offset, policy_key_size(key)) == 0;
        }
    }
    return same;
}

void policy_difference(const struct policy *from, const struct policy *to, char *text, size_t size)
{
    char before[KEY_VALUE_SIZE], after[KEY_VALUE_SIZE];
    const struct policy_key *key;
    bool fits = true;

    text[0] = '\0';
    for (unsigned i = 0; fits && (key = policy_key_at(i)) != NULL; i++) {
        policy_key_print(key,
            (const char *)(key->tensor ? (const void *)&from->tensor : from) + key->offset, before);
        policy_key_print(
            key, (const char *)(key->tensor ? (const void *)&to->tensor : to) + key->offset, after);
        if (strcmp(before, after) != 0) {
            print_setting(key, after, before);
            fits = add_word(text, size, before);
        }
    }
    if (fits && !are_same_rules(from, to)) {
        (void)add_word(text, size, to->rules > 0 ? "other rules" : "no rules");
    }
}
