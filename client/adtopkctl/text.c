#include "client/adtopkctl/text.h"

#include <pwd.h>
#include <stdint.h>
#include <string.h>

#include "proto/utf8.h"

static size_t text_width = TEXT_COLUMNS;

void text_set_width(size_t columns)
{
    text_width = columns;
}

size_t text_get_width(void)
{
    return text_width;
}

double text_number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

const cJSON *text_member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

bool text_true(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
}

bool text_is(const cJSON *object, const char *name, const char *wanted)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsString(item) && strcmp(item->valuestring, wanted) == 0;
}

/* ------------------------------------------------------------------ other people's names */

/* The character at `clean`, which is valid UTF-8. */
static uint32_t text_character(const char *clean)
{
    const unsigned char *byte = (const unsigned char *)clean;

    return byte[0] < 0x80   ? byte[0]
           : byte[0] < 0xE0 ? (byte[0] & 0x1Fu) << 6 | (byte[1] & 0x3Fu)
           : byte[0] < 0xF0 ? (byte[0] & 0x0Fu) << 12 | (byte[1] & 0x3Fu) << 6 | (byte[2] & 0x3Fu)
                            : (byte[0] & 0x07u) << 18 | (byte[1] & 0x3Fu) << 12 |
                                  (byte[2] & 0x3Fu) << 6 | (byte[3] & 0x3Fu);
}

/* Columns that terminals give to a character: 2 to those of East Asia and to pictures, 0 to accents
 * that combine with the one before. */
static size_t text_character_columns(uint32_t character)
{
    static const struct {
        uint32_t first, last;
        size_t columns;
    } ranges[] = {{0x300, 0x36F, 0}, {0x1100, 0x115F, 2}, {0x1AB0, 0x1AFF, 0}, {0x1DC0, 0x1DFF, 0},
        {0x20D0, 0x20FF, 0}, {0x2E80, 0x303E, 2}, {0x3041, 0xA4CF, 2}, {0xAC00, 0xD7A3, 2},
        {0xF900, 0xFAFF, 2}, {0xFE00, 0xFE0F, 0}, {0xFE20, 0xFE2F, 0}, {0xFE30, 0xFE6F, 2},
        {0xFF00, 0xFF60, 2}, {0xFFE0, 0xFFE6, 2}, {0x1F300, 0x1F64F, 2}, {0x1F680, 0x1F6FF, 2},
        {0x1F900, 0x1FAFF, 2}, {0x20000, 0x3FFFD, 2}};

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        if (character >= ranges[i].first && character <= ranges[i].last) {
            return ranges[i].columns;
        }
    }
    return 1;
}

size_t text_columns(const char *clean)
{
    size_t columns = 0;

    for (; *clean != '\0'; clean += utf8_length(clean)) {
        columns += text_character_columns(text_character(clean));
    }
    return columns;
}

/* The end of the longest beginning of at most so many columns, with its combining accents. */
static char *text_beginning(char *clean, size_t columns)
{
    size_t used = 0;

    while (*clean != '\0') {
        used += text_character_columns(text_character(clean));
        if (used > columns) {
            break;
        }
        clean += utf8_length(clean);
    }
    return clean;
}

/* The shortest beginning that leaves at most so many columns behind it. */
static char *text_ending(char *clean, size_t columns)
{
    size_t left = text_columns(clean);

    while (left > columns) {
        left -= text_character_columns(text_character(clean));
        clean += utf8_length(clean);
    }
    while (*clean != '\0' && text_character_columns(text_character(clean)) == 0) {
        clean += utf8_length(clean);
    }
    return clean;
}

static void drop_middle(char *clean, size_t columns)
{
    size_t head = columns > 2 ? (columns - 1) / 2 : columns;
    char *gap = text_beginning(clean, head);
    char *end = columns > 2 ? text_ending(clean, columns - 2 - head) : clean + strlen(clean);

    if (columns > 2) {
        /* At least two columns go, but they may be one character of two bytes or more. */
        *gap++ = '.';
        *gap++ = '.';
    }
    memmove(gap, end, strlen(end) + 1);
}

bool text_is_over(const cJSON *job)
{
    return text_is(job, "state", "done") || text_is(job, "state", "failed");
}

const char *text_clean(const char *from, size_t columns, char out[TEXT_SIZE])
{
    size_t size = 0;

    while (*from != '\0') {
        size_t length = utf8_length(from);
        bool good = length > 0 && !utf8_is_control(from) && !utf8_is_format(from);
        size_t taken = good ? length : 1;

        if (size + taken >= TEXT_SIZE) {
            break;
        }
        memcpy(out + size, good ? from : "?", taken);
        size += taken;
        from += length > 0 ? length : 1;
    }
    out[size] = '\0';
    if (text_columns(out) > columns) {
        drop_middle(out, columns);
    }
    return out;
}

const char *text_string(const cJSON *object, const char *name, size_t columns, char out[TEXT_SIZE])
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return text_clean(cJSON_IsString(item) ? item->valuestring : "-", columns, out);
}

/* By columns of the terminal and not, as printf would, by bytes. */
void text_pad(FILE *out, const char *clean, size_t width)
{
    size_t used = text_columns(clean);

    (void)fprintf(out, "%s%*s", clean, used < width ? (int)(width - used) : 0, "");
}

void text_column(FILE *out, const cJSON *object, const char *name, size_t width)
{
    char shown[TEXT_SIZE];

    text_pad(out, text_string(object, name, width, shown), width);
}

/* Word by word, as a sentence may be longer than TEXT_SIZE. */
void text_fill(FILE *out, size_t column, size_t indent, const char *sentence)
{
    bool first = true;

    while (*sentence != '\0') {
        const size_t length = strcspn(sentence, " ");
        char word[TEXT_SIZE], clean[TEXT_SIZE];
        size_t width;

        (void)snprintf(word, sizeof(word), "%.*s", (int)length, sentence);
        width = text_columns(text_clean(word, TEXT_SIZE, clean));
        if (!first && column + 1 + width > text_width) {
            (void)fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
            first = true;
        }
        (void)fprintf(out, "%s%s", first ? "" : " ", clean);
        column += width + (first ? 0 : 1);
        first = false;
        sentence += sentence[length] == '\0' ? length : length + 1;
    }
    (void)fprintf(out, "\n");
}

void text_wrapped(FILE *out, const char *lead, const char *sentence)
{
    (void)fprintf(out, "  %s ", lead);
    text_fill(out, 3 + text_columns(lead), 4, sentence);
}

/* ------------------------------------------------------------------ quantities */

static const char *scaled(
    double count, const char *const units[], size_t unit_count, char out[TEXT_SIZE])
{
    size_t unit = 0;

    while (count >= 999.5 && unit + 1 < unit_count) {
        count /= 1000;
        unit++;
    }
    (void)snprintf(out, TEXT_SIZE, "%.*f%s",
        unit == 0 || count >= 99.95 ? 0
        : count >= 9.995            ? 1
                                    : 2,
        count, units[unit]);
    return out;
}

const char *text_bytes(double count, char out[TEXT_SIZE])
{
    static const char *const units[] = {" B", " kB", " MB", " GB", " TB", " PB"};

    return scaled(count, units, sizeof(units) / sizeof(units[0]), out);
}

const char *text_count(double count, char out[TEXT_SIZE])
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P"};

    return scaled(count, units, sizeof(units) / sizeof(units[0]), out);
}

const char *text_time(double us, char out[TEXT_SIZE])
{
    if (us < 999.5) {
        (void)snprintf(out, TEXT_SIZE, "%.0f us", us);
    } else if (us < 999.5e3) {
        (void)snprintf(out, TEXT_SIZE, "%.3g ms", us / 1e3);
    } else {
        (void)snprintf(out, TEXT_SIZE, us < 999.5e6 ? "%.3g s" : "%.0f s", us / 1e6);
    }
    return out;
}

const char *text_duration(double seconds, char out[TEXT_SIZE])
{
    double minutes = seconds / 60;

    if (seconds < 60) {
        (void)snprintf(out, TEXT_SIZE, "%.0f s", seconds);
    } else if (minutes < 60) {
        (void)snprintf(out, TEXT_SIZE, "%.0f min", minutes);
    } else if (minutes < 48 * 60) {
        (void)snprintf(out, TEXT_SIZE, "%.1f h", minutes / 60);
    } else {
        (void)snprintf(out, TEXT_SIZE, "%.1f days", minutes / 60 / 24);
    }
    return out;
}

const char *text_s(double count)
{
    return count < 1 || count > 1 ? "s" : "";
}

const char *text_round_trip(const cJSON *peer, char out[TEXT_SIZE])
{
    double us = text_number(peer, "round_trip_us");

    (void)snprintf(out, TEXT_SIZE, us > 0 ? "%.2f ms" : "-", us / 1000);
    return out;
}

const char *text_user(double uid, size_t columns, char out[TEXT_SIZE])
{
    bool fits = uid >= 0 && uid < 4294967295.0;
    const struct passwd *user = fits ? getpwuid((uid_t)uid) : NULL;

    if (user != NULL) {
        return text_clean(user->pw_name, columns, out);
    }
    (void)snprintf(out, TEXT_SIZE, "%.0f", uid);
    return out;
}

void text_job(FILE *out, const cJSON *job)
{
    char name[TEXT_SIZE];
    char run[TEXT_SIZE];

    (void)fprintf(out, "job %s, run %s", text_string(job, "name", 30, name),
        text_string(job, "run_id", 24, run));
}

const char *text_pid(const cJSON *object, char out[TEXT_SIZE])
{
    if (!cJSON_IsNumber(text_member(object, "pid"))) {
        return "-";
    }
    (void)snprintf(out, TEXT_SIZE, "%.0f", text_number(object, "pid"));
    return out;
}
