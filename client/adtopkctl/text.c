#include "client/adtopkctl/text.h"

#include <pwd.h>
#include <string.h>

#include "proto/utf8.h"

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

static size_t characters(const char *clean)
{
    size_t count = 0;

    for (; *clean != '\0'; clean++) {
        count += ((unsigned char)*clean & 0xC0) != 0x80 ? 1 : 0;
    }
    return count;
}

/* The first byte of character number `skip`. */
static char *character(char *clean, size_t skip)
{
    while (skip > 0) {
        clean += utf8_length(clean);
        skip--;
    }
    return clean;
}

static void drop_middle(char *clean, size_t columns)
{
    size_t all = characters(clean);
    size_t head = columns > 2 ? (columns - 1) / 2 : columns;
    size_t tail = columns > 2 ? columns - 2 - head : 0;
    char *gap = character(clean, head);
    char *end = character(clean, all - tail);

    if (columns > 2) {
        *gap++ = '.';
        *gap++ = '.'; /* at least two characters go */
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
    if (characters(out) > columns) {
        drop_middle(out, columns);
    }
    return out;
}

const char *text_string(const cJSON *object, const char *name, size_t columns, char out[TEXT_SIZE])
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return text_clean(cJSON_IsString(item) ? item->valuestring : "-", columns, out);
}

/* By characters and not, as printf would, by bytes. */
void text_pad(FILE *out, const char *clean, size_t width)
{
    size_t used = characters(clean);

    (void)fprintf(out, "%s%*s", clean, used < width ? (int)(width - used) : 0, "");
}

void text_column(FILE *out, const cJSON *object, const char *name, size_t width)
{
    char shown[TEXT_SIZE];

    text_pad(out, text_string(object, name, width, shown), width);
}

void text_fill(FILE *out, size_t column, size_t indent, const char *sentence)
{
    char clean[TEXT_SIZE];
    char *word = clean;
    bool first = true;

    (void)text_clean(sentence, TEXT_SIZE, clean);
    while (*word != '\0') {
        size_t length = strcspn(word, " ");
        bool last = word[length] == '\0';
        size_t width;

        word[length] = '\0';
        width = characters(word);
        if (!first && column + 1 + width > TEXT_COLUMNS) {
            (void)fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
            first = true;
        }
        (void)fprintf(out, "%s%s", first ? "" : " ", word);
        column += width + (first ? 0 : 1);
        first = false;
        word += last ? length : length + 1;
    }
    (void)fprintf(out, "\n");
}

void text_wrapped(FILE *out, const char *lead, const char *sentence)
{
    (void)fprintf(out, "  %s ", lead);
    text_fill(out, 3 + characters(lead), 4, sentence);
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
