#include "daemon/job/notes.h"

#include <stdarg.h>
#include <stdio.h>

/* The longest line. */
#define TRACE_SIZE 200
#define NOTE_SIZE 600

void core_trace(struct core *core, const char *format, ...)
{
    char line[TRACE_SIZE];
    va_list args;

    if (core->config.trace == NULL) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    core->config.trace(core->config.trace_context, line);
}

void core_note(struct core *core, const char *format, ...)
{
    char line[NOTE_SIZE];
    va_list args;

    if (core->config.note == NULL) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    core->config.note(core->config.trace_context, line);
}

void core_warn(struct core *core, const char *format, ...)
{
    char line[NOTE_SIZE];
    va_list args;

    if (core->config.warn == NULL) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    core->config.warn(core->config.trace_context, line);
}
