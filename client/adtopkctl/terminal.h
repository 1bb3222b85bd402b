/*
 * The terminal while a program draws on all of it: keys come one by one, and another screen is
 * shown, so that the user's own is there again afterwards.
 */
#ifndef ADTOPK_TERMINAL_H
#define ADTOPK_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

/* Keys that are no characters. */
enum terminal_key {
    TERMINAL_NOTHING = -1, /* no key within the time */
    TERMINAL_GONE = -2,    /* a signal wants the end, or the terminal is gone */
    TERMINAL_UP = 1000,
    TERMINAL_DOWN,
    TERMINAL_RESIZED
};

/** Takes standard input and output over. False: they are no terminal. Whatever ends the process,
 * but SIGKILL, gives them back. */
bool terminal_open(void);

/** Gives them back; may be called twice. */
void terminal_close(void);

void terminal_size(size_t *columns, size_t *rows);

/** A key within so many milliseconds; UTF-8 comes byte by byte. */
int terminal_key(int wait_ms);

#endif
