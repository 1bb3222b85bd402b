/* adtopkctl: asks the daemon of this node how things are, and changes them. */
#include "client/adtopkctl/options.h"
#include "client/adtopkctl/run.h"

int main(int argc, char **argv)
{
    struct options options;
    struct error err = {.code = ADTOPK_OK};

    if (options_parse(&options, argc, argv, &err) != ADTOPK_OK) {
        run_complain(err.text);
        (void)fprintf(stderr, "adtopkctl --help lists commands and options\n");
        return EXIT_USAGE;
    }
    if (options.value[OPTION_HELP] != NULL) {
        options_help(stdout, &options);
        return (int)run_flushed(EXIT_OK);
    }
    if (options.value[OPTION_VERSION] != NULL) {
        (void)printf("adtopkctl " ADTOPK_VERSION "\n");
        return (int)run_flushed(EXIT_OK);
    }
    return (int)run_command(&options);
}
