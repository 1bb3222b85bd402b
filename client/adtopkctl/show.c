#include "client/adtopkctl/show.h"

#include <string.h>

#define TEXT_SIZE 256

/* ------------------------------------------------------------------ reading a document */

/* A daemon of another version may lack a field: it then shows as 0 or "-". */
static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

/* Names are other people's: nothing in them may command the terminal. At most `columns`
 * characters are taken. */
static const char *text(const cJSON *object, const char *name, size_t columns, char out[TEXT_SIZE])
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    const char *from = cJSON_IsString(item) ? item->valuestring : "-";
    size_t size = 0;

    for (; *from != '\0' && size + 1 < TEXT_SIZE; from++) {
        unsigned char byte = (unsigned char)*from;
        bool starts = (byte & 0xC0) != 0x80;
        bool c1 = byte == 0xC2 && (unsigned char)from[1] < 0xA0;

        if (starts && columns-- == 0) {
            break;
        }
        if (c1) {
            from++;
        }
        out[size++] = byte < 0x20 || byte == 0x7F || c1 ? '?' : *from;
    }
    out[size] = '\0';
    return out;
}

/* Padded by characters and not, as printf would, by bytes. */
static void column(FILE *out, const cJSON *object, const char *name, size_t width)
{
    char shown[TEXT_SIZE];
    size_t used = 0;

    (void)text(object, name, width, shown);
    for (const char *at = shown; *at != '\0'; at++) {
        used += ((unsigned char)*at & 0xC0) != 0x80 ? 1 : 0;
    }
    (void)fprintf(out, "%s%*s", shown, (int)(width - used), "");
}

static bool text_is(const cJSON *object, const char *name, const char *wanted)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsString(item) && strcmp(item->valuestring, wanted) == 0;
}

static const cJSON *list(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* "1.23 MB": three digits and a decimal unit. */
static const char *bytes(double count, char out[TEXT_SIZE])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;

    while (count >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        count /= 1000;
        unit++;
    }
    (void)snprintf(out, TEXT_SIZE, "%.*f %s",
        unit == 0 || count >= 99.95 ? 0
        : count >= 9.995            ? 1
                                    : 2,
        count, units[unit]);
    return out;
}

/* Nothing was acknowledged yet, so nothing was measured: "-". */
static const char *round_trip(const cJSON *peer, char out[TEXT_SIZE])
{
    double us = number(peer, "round_trip_us");

    (void)snprintf(out, TEXT_SIZE, us > 0 ? "%.2f ms" : "-", us / 1000);
    return out;
}

static const char *duration(double seconds, char out[TEXT_SIZE])
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

/* ------------------------------------------------------------------ status */

/* "node N, which ...": the job cannot go on before that node is back. */
static bool waits_for_node(const cJSON *job)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(job, "waiting_for");
    unsigned node;

    return cJSON_IsString(item) && sscanf(item->valuestring, "node %5u", &node) == 1 &&
           strstr(item->valuestring, ", which ") != NULL;
}

static bool job_is_healthy(const cJSON *job)
{
    return text_is(job, "state", "ended") ||
           (text_is(job, "state", "active") && !waits_for_node(job));
}

bool show_is_healthy(const cJSON *document)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list(document, "peers"))
    {
        if (!text_is(item, "state", "up")) {
            return false;
        }
    }
    cJSON_ArrayForEach(item, list(document, "jobs"))
    {
        if (!job_is_healthy(item)) {
            return false;
        }
    }
    return true;
}

static void show_peers(FILE *out, const cJSON *document)
{
    const cJSON *peer;
    char queued[TEXT_SIZE];
    char trip[TEXT_SIZE];

    if (cJSON_GetArraySize(list(document, "peers")) == 0) {
        (void)fprintf(out, "no peers\n");
        return;
    }
    (void)fprintf(out, "  peer  state  round trip     queued\n");
    cJSON_ArrayForEach(peer, list(document, "peers"))
    {
        (void)fprintf(out, "%6.0f  ", number(peer, "node"));
        column(out, peer, "state", 5);
        (void)fprintf(out, "%12s  %9s\n", round_trip(peer, trip),
            bytes(number(peer, "queued_bytes"), queued));
    }
}

static void show_strangers(FILE *out, const cJSON *document)
{
    const cJSON *strangers = list(document, "strangers");

    if (number(strangers, "packets") > 0) {
        (void)fprintf(out,
            "%.0f packets were not for this node or not from a peer of it; the last\n"
            "one was from node %.0f for node %.0f: node ids or peers are configured wrongly\n",
            number(strangers, "packets"), number(strangers, "source"),
            number(strangers, "destination"));
    }
}

static void show_jobs(FILE *out, const cJSON *document)
{
    const cJSON *job;
    char waiting[TEXT_SIZE];
    char reason[TEXT_SIZE];

    if (cJSON_GetArraySize(list(document, "jobs")) == 0) {
        (void)fprintf(out, "no jobs\n");
        return;
    }
    (void)fprintf(
        out, "%-20s%-14s%-10shere of ranks  nodes  view    steps\n", "job", "run", "state");
    cJSON_ArrayForEach(job, list(document, "jobs"))
    {
        column(out, job, "name", 18);
        (void)fprintf(out, "  ");
        column(out, job, "run_id", 12);
        (void)fprintf(out, "  ");
        column(out, job, "state", 8);
        (void)fprintf(out, "  %4.0f of %5.0f  %5.0f  %4.0f  %7.0f\n", number(job, "local_ranks"),
            number(job, "world_size"), number(job, "nodes"), number(job, "view"),
            number(job, "steps_done"));
        if (*text(job, "waiting_for", 66, waiting) != '\0') {
            (void)fprintf(out, "  waits for %s\n", waiting);
        }
        if (*text(job, "reason", TEXT_SIZE, reason) != '\0' && strcmp(reason, "-") != 0) {
            (void)fprintf(out, "  failed: %s\n", reason);
        }
    }
}

void show_status(FILE *out, const cJSON *document)
{
    char version[TEXT_SIZE];
    char up[TEXT_SIZE];

    (void)fprintf(out, "node %.0f: adtopkd %s, pid %.0f, up %s, %.0f sessions\n\n",
        number(document, "node"), text(document, "version", 20, version), number(document, "pid"),
        duration(number(document, "uptime_s"), up), number(document, "sessions"));
    show_peers(out, document);
    show_strangers(out, document);
    (void)fprintf(out, "\n");
    show_jobs(out, document);
}

/* ------------------------------------------------------------------ stats */

static void show_volume(FILE *out, const cJSON *job)
{
    char wire[TEXT_SIZE];
    char payload[TEXT_SIZE];
    char dense[TEXT_SIZE];
    double sent = number(job, "wire_bytes_sent");

    (void)fprintf(out, "  sent        %s on the wire, %s of payload\n", bytes(sent, wire),
        bytes(number(job, "payload_bytes"), payload));
    (void)fprintf(out, "  dense f32   %s would have been one rank's gradients",
        bytes(number(job, "dense_bytes"), dense));
    if (sent > 0) {
        (void)fprintf(out, ", %.1f times the wire", number(job, "dense_bytes") / sent);
    }
    (void)fprintf(out, "\n");
    if (number(job, "nonzeros_sent") > 0) {
        (void)fprintf(out, "  sparse      %.0f non-zeros in %s, %.1f bits each\n",
            number(job, "nonzeros_sent"), bytes(number(job, "sparse_bytes_sent"), payload),
            number(job, "bits_per_nonzero"));
    }
}

static void show_phases(FILE *out, const cJSON *job)
{
    const cJSON *phase;
    unsigned shown = 0;

    (void)fprintf(out, "  time        ");
    cJSON_ArrayForEach(phase, list(job, "phase_seconds"))
    {
        const char *between = shown == 0 ? "" : shown % 3 == 0 ? ",\n              " : ", ";

        if (cJSON_IsNumber(phase)) {
            (void)fprintf(out, "%s%.10s %.3g s", between, phase->string, phase->valuedouble);
            shown++;
        }
    }
    (void)fprintf(out, "\n");
}

static void show_tensors(FILE *out, const cJSON *job)
{
    const cJSON *tensor;
    double omitted = number(job, "tensors_omitted");

    if (cJSON_GetArraySize(list(job, "tensors_detail")) == 0) {
        return; /* the job has ended */
    }
    (void)fprintf(
        out, "\n  %-20s      elements  at most a turn  sparsifier  bucket    turn\n", "tensor");
    cJSON_ArrayForEach(tensor, list(job, "tensors_detail"))
    {
        (void)fprintf(out, "  ");
        column(out, tensor, "name", 20);
        (void)fprintf(out, "  %12.0f  ", number(tensor, "elements"));
        if (number(tensor, "count") > 0) {
            (void)fprintf(out, "%14.0f  ", number(tensor, "count"));
        } else {
            (void)fprintf(out, "           all  ");
        }
        column(out, tensor, "sparsifier", 10);
        (void)fprintf(out, "  %6.0f  %6.0f\n", number(tensor, "bucket"), number(tensor, "turn"));
    }
    if (omitted > 0) {
        (void)fprintf(out, "  and %.0f more\n", omitted);
    }
}

static void show_links(FILE *out, const cJSON *document)
{
    const cJSON *link;
    char sent[TEXT_SIZE];
    char received[TEXT_SIZE];
    char trip[TEXT_SIZE];

    if (cJSON_GetArraySize(list(document, "links")) == 0) {
        return;
    }
    (void)fprintf(
        out, "\n  link  state       sent   received  resent  duplicates  malformed  round trip\n");
    cJSON_ArrayForEach(link, list(document, "links"))
    {
        (void)fprintf(out, "%6.0f  ", number(link, "node"));
        column(out, link, "state", 5);
        (void)fprintf(out, "%11s%11s%8.0f%12.0f%11.0f%12s\n",
            bytes(number(link, "bytes_sent"), sent),
            bytes(number(link, "bytes_received"), received), number(link, "resent"),
            number(link, "duplicates"), number(link, "malformed"), round_trip(link, trip));
    }
}

void show_stats(FILE *out, const cJSON *document)
{
    const cJSON *job;
    char name[TEXT_SIZE];
    char run[TEXT_SIZE];
    char state[TEXT_SIZE];

    if (cJSON_GetArraySize(list(document, "jobs")) == 0) {
        (void)fprintf(out, "no jobs\n");
    }
    cJSON_ArrayForEach(job, list(document, "jobs"))
    {
        (void)fprintf(out, "%sjob %s, run %s, %s\n", job->prev->next != NULL ? "\n" : "",
            text(job, "name", 30, name), text(job, "run_id", 24, run),
            text(job, "state", 12, state));
        (void)fprintf(out, "  steps       %.0f, %.0f of them withdrawn\n", number(job, "steps"),
            number(job, "steps_withdrawn"));
        (void)fprintf(out, "  rounds      %.0f, %.0f of them repeated\n", number(job, "rounds"),
            number(job, "rounds_retried"));
        (void)fprintf(out, "  tensors     %.0f in %.0f buckets, %.0f elements\n",
            number(job, "tensors"), number(job, "buckets"), number(job, "elements"));
        show_volume(out, job);
        show_phases(out, job);
        show_tensors(out, job);
    }
    show_links(out, document);
}
