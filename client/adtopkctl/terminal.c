#include "client/adtopkctl/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "client/adtopkctl/text.h"

static struct termios terminal_before;
static volatile sig_atomic_t terminal_is_open, terminal_ended, terminal_resized;
static volatile sig_atomic_t terminal_listens; /* waits for a key, which a signal ends */

static const char terminal_enter[] = "\033[?1049h\033[?25l\033[H\033[2J";
static const char terminal_leave[] = "\033[0m\033[?25h\033[?1049l";

static void terminal_write(const char *text, size_t size)
{
    while (size > 0) {
        const ssize_t written = write(STDOUT_FILENO, text, size);

        if (written < 0 && errno != EINTR) {
            return; /* there is nobody to tell */
        }
        text += written > 0 ? written : 0;
        size -= written > 0 ? (size_t)written : 0;
    }
}

static void terminal_take(void)
{
    struct termios raw = terminal_before;

    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    terminal_is_open = 1;
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    terminal_write(terminal_enter, sizeof(terminal_enter) - 1);
}

/* Calls only what a signal handler may. A signal that comes meanwhile begins it anew, since its
 * handler may end the program. */
void terminal_close(void)
{
    if (terminal_is_open) {
        terminal_write(terminal_leave, sizeof(terminal_leave) - 1);
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
        terminal_is_open = 0;
    }
}

/* ------------------------------------------------------------------ signals */

/* The program may wait for a daemon that hangs. Then it has nothing to tidy up but the terminal. */
static void terminal_on_end(int number)
{
    (void)number;
    terminal_ended = 1;
    if (!terminal_listens) {
        terminal_close();
        _exit(0);
    }
}

static void terminal_on_resize(int number)
{
    (void)number;
    terminal_resized = 1;
}

/* A fault of this program: it ends as without this handler. */
static void terminal_on_fault(int number)
{
    terminal_close();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

/* Ctrl-Z: gives the terminal back meanwhile. */
static void terminal_on_stop(int number)
{
    const int code = errno;

    (void)number;
    terminal_close();
    (void)raise(SIGSTOP);
    terminal_take();
    terminal_resized = 1;
    errno = code;
}

static void terminal_catch(int number, void (*handler)(int number))
{
    struct sigaction action = {.sa_handler = handler};

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(number, &action, NULL);
}

static void terminal_catch_all(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        terminal_catch(ends[i], terminal_on_end);
    }
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        terminal_catch(faults[i], terminal_on_fault);
    }
    terminal_catch(SIGTSTP, terminal_on_stop);
    terminal_catch(SIGWINCH, terminal_on_resize);
    terminal_catch(SIGPIPE, SIG_IGN);
}

bool terminal_open(void)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) ||
        tcgetattr(STDIN_FILENO, &terminal_before) != 0) {
        return false;
    }
    (void)atexit(terminal_close);
    terminal_catch_all();
    terminal_take();
    return true;
}

void terminal_size(size_t *columns, size_t *rows)
{
    struct winsize size;
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;

    *columns = known ? size.ws_col : TEXT_COLUMNS;
    *rows = known && size.ws_row > 0 ? size.ws_row : 24;
}

/* ------------------------------------------------------------------ keys */

/* Waits for a byte; -1: none came, or a signal did. */
static int terminal_byte(int wait_ms)
{
    struct pollfd poll_in = {.fd = STDIN_FILENO, .events = POLLIN};
    unsigned char byte;
    int ready;

    terminal_listens = 1;
    ready = terminal_ended ? 0 : poll(&poll_in, 1, wait_ms);
    terminal_listens = 0;
    if (ready <= 0) {
        return -1;
    }
    if (read(STDIN_FILENO, &byte, 1) == 1) {
        return byte;
    }
    terminal_ended = 1; /* it could be read, but there is nothing: the terminal is gone */
    return -1;
}

/* "ESC [ A": an arrow. */
static int terminal_escape(void)
{
    const int first = terminal_byte(20);
    const int second = first == '[' || first == 'O' ? terminal_byte(20) : -1;

    return second == 'A' ? TERMINAL_UP : second == 'B' ? TERMINAL_DOWN : 27;
}

int terminal_key(int wait_ms)
{
    const int byte = terminal_ended || terminal_resized ? -1 : terminal_byte(wait_ms);

    if (terminal_ended) {
        return TERMINAL_GONE;
    }
    if (terminal_resized) {
        terminal_resized = 0;
        return TERMINAL_RESIZED;
    }
    return byte < 0 ? TERMINAL_NOTHING : byte == 27 ? terminal_escape() : byte;
}
