/* How adtopkctl ends. --help lists these, too. */
#ifndef ADTOPK_EXIT_CODE_H
#define ADTOPK_EXIT_CODE_H

enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3,
    EXIT_DENIED = 4,
    EXIT_DEGRADED = 5,
    EXIT_UNKNOWN = 6 /* the answer could not be determined */
};

#endif
