/*
 * The scripts are short: they hand the words of the command line to this program, which knows its
 * commands and options, asks the daemon for jobs, and reads the table of a policy's keys.
 */
#include "client/adtopkctl/complete.h"

#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/text.h"
#include "client/control/connection.h"
#include "daemon/policy/policy.h"

#define ASK_MS 500 /* a user waits for a completion */

/* Bash cuts words at "=", and replaces the part behind it. */
static const char bash_script[] =
    "_adtopkctl() {\n"
    "    local i word=() last cur reply\n"
    "    for ((i = 1; i <= COMP_CWORD; i++)); do\n"
    "        cur=${COMP_WORDS[i]}\n"
    "        last=$((${#word[@]} - 1))\n"
    "        if ((last >= 0)) && [[ $cur == = || ${word[last]} == *= ]] && ((i > 1)); then\n"
    "            word[last]+=$cur\n"
    "        else\n"
    "            word+=(\"$cur\")\n"
    "        fi\n"
    "    done\n"
    "    last=${word[${#word[@]} - 1]}\n"
    "    COMPREPLY=()\n"
    "    while IFS= read -r reply; do\n"
    "        [[ $last == *=* && $COMP_WORDBREAKS == *=* ]] && reply=${reply#*=}\n"
    "        [[ $last == *:* && $COMP_WORDBREAKS == *:* ]] && reply=${reply#*:}\n"
    "        COMPREPLY+=(\"$reply\")\n"
    "    done < <(\"$1\" completion words -- \"${word[@]}\" 2>/dev/null)\n"
    "    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace\n"
    "}\n"
    "complete -o default -F _adtopkctl adtopkctl\n";

static const char zsh_script[] =
    "#compdef adtopkctl\n"
    "_adtopkctl() {\n"
    "    local -a reply\n"
    "    reply=(${(f)\"$($words[1] completion words -- \"${(@)words[2,CURRENT]}\" "
    "2>/dev/null)\"})\n"
    "    if (( ${#reply} )); then\n"
    "        compadd -S '' -- ${(M)reply:#*=}\n"
    "        compadd -- ${reply:#*=}\n"
    "    else\n"
    "        _files\n"
    "    fi\n"
    "}\n"
    "if [ \"$funcstack[1]\" = _adtopkctl ]; then\n"
    "    _adtopkctl \"$@\"\n"
    "else\n"
    "    compdef _adtopkctl adtopkctl\n"
    "fi\n";

static const char fish_script[] =
    "function __adtopkctl_words\n"
    "    set -l before (commandline -opc)\n"
    "    set -l program $before[1]\n"
    "    set -e before[1]\n"
    "    $program completion words -- $before (commandline -ct) 2>/dev/null\n"
    "end\n"
    "complete -c adtopkctl -a '(__adtopkctl_words)'\n";

static bool complete_begins(const char *word, const char *prefix)
{
    return strncmp(word, prefix, strlen(prefix)) == 0;
}

static void complete_print(const char *word, const char *prefix)
{
    if (complete_begins(word, prefix)) {
        (void)printf("%s\n", word);
    }
}

/* ------------------------------------------------------------------ words */

/* Names that a shell would have to quote are left out: the script could not do that right. */
static bool complete_is_plain(const char *name)
{
    return name[0] != '\0' && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+@%") ==
               strlen(name);
}

/* Whether a job before this one has its name. */
static bool complete_is_repeated(const cJSON *jobs, const cJSON *job, const char *name)
{
    const cJSON *other = jobs->child;

    while (other != job && !text_is(other, "name", name)) {
        other = other->next;
    }
    return other != job;
}

/* The socket that the words before the last one name, else that of this program's own options. */
static const char *complete_socket(const struct options *options)
{
    const char *path = run_socket_path(options);

    for (unsigned i = 1; i + 1 < options->arguments; i++) {
        const char *word = options->argument[i];

        if (complete_begins(word, "--socket=")) {
            path = word + strlen("--socket=");
        } else if (strcmp(word, "--socket") == 0 && i + 2 < options->arguments) {
            path = options->argument[++i];
        }
    }
    return path;
}

/* Jobs that live or have ended. Without a daemon there are none. */
static void complete_jobs(const struct options *options, const char *prefix)
{
    struct question question;
    struct error err;
    char *text = NULL;
    cJSON *document;
    const cJSON *jobs_shown, *job;
    enum connection_end end;

    question_begin(&question, COMMAND_JOBS, NULL, options);
    if (connection_ask(complete_socket(options), ASK_MS, &question.request, NULL, &text, -1, &end,
            &err) != ADTOPK_OK) {
        return;
    }
    document = cJSON_Parse(text);
    jobs_shown = text_member(document, "jobs");
    cJSON_ArrayForEach(job, jobs_shown)
    {
        const cJSON *name = text_member(job, "name");

        if (cJSON_IsString(name) && complete_is_plain(name->valuestring) &&
            !complete_is_repeated(jobs_shown, job, name->valuestring)) {
            complete_print(name->valuestring, prefix);
        }
    }
    cJSON_Delete(document);
    free(text);
}

static void complete_keys(const char *prefix)
{
    struct policy_key_info info;
    char word[TEXT_SIZE];

    for (unsigned i = 0; policy_key(i, &info); i++) {
        (void)snprintf(word, sizeof(word), "%.200s=", info.name);
        complete_print(word, prefix);
    }
}

/* The values that the key's description names: those in quotes, and true or false. */
static void complete_key_values(const struct policy_key_info *info, const char *prefix)
{
    const char *at = info->values;
    char word[TEXT_SIZE];

    if (strcmp(at, "true or false") == 0) {
        for (int i = 0; i < 2; i++) {
            (void)snprintf(word, sizeof(word), "%.200s=%s", info->name, i == 0 ? "true" : "false");
            complete_print(word, prefix);
        }
    }
    while ((at = strchr(at, '"')) != NULL) {
        const size_t length = strcspn(at + 1, "\"");

        if (strcspn(at + 1, " ") > length) { /* an example such as "as 1% bf16" is no value */
            (void)snprintf(word, sizeof(word), "%.200s=%.*s", info->name, (int)length, at + 1);
            complete_print(word, prefix);
        }
        at += length + (at[length + 1] == '"' ? 2 : 1);
    }
}

static void complete_values(const char *prefix)
{
    const size_t length = strcspn(prefix, "=");
    struct policy_key_info info;

    for (unsigned i = 0; policy_key(i, &info); i++) {
        if (strlen(info.name) == length && strncmp(info.name, prefix, length) == 0) {
            complete_key_values(&info, prefix);
        }
    }
}

static enum exit_code complete_words(const struct options *options)
{
    const unsigned words = options->arguments - 1;
    const char *prefix = words > 0 ? options->argument[words] : "";

    switch (options_complete(stdout, options->argument + 1, words)) {
    case COMPLETE_JOBS: complete_jobs(options, prefix); break;
    case COMPLETE_KEYS: complete_keys(prefix); break;
    case COMPLETE_VALUES: complete_values(prefix); break;
    case COMPLETE_NOTHING: break;
    }
    return run_flushed(EXIT_OK);
}

enum exit_code complete_run(const struct options *options)
{
    const char *what = options->argument[0];
    const char *script = strcmp(what, "bash") == 0   ? bash_script
                         : strcmp(what, "zsh") == 0  ? zsh_script
                         : strcmp(what, "fish") == 0 ? fish_script
                                                     : NULL;

    if (strcmp(what, "words") == 0) {
        return complete_words(options);
    }
    if (script == NULL || options->arguments > 1) {
        run_complain("completion is there for bash, fish and zsh");
        return EXIT_USAGE;
    }
    (void)fputs(script, stdout);
    return run_flushed(EXIT_OK);
}
