#include "daemon/admin/document.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/utf8.h"

#define TEXT_SIZE 256

void document_begin(struct document *document)
{
    *document = (struct document){.root = cJSON_CreateObject()};
    document_count(document, document->root, "schema", DOCUMENT_SCHEMA);
}

char *document_end(struct document *document)
{
    char *text = document->failed ? NULL : cJSON_PrintUnformatted(document->root);

    cJSON_Delete(document->root);
    document->root = NULL;
    return text;
}

static cJSON *document_add(struct document *document, cJSON *parent, const char *name, cJSON *item)
{
    if (item == NULL || parent == NULL || !cJSON_AddItemToObject(parent, name, item)) {
        cJSON_Delete(item);
        document->failed = true;
        return NULL;
    }
    return item;
}

cJSON *document_object(struct document *document, cJSON *parent, const char *name)
{
    return document_add(document, parent, name, cJSON_CreateObject());
}

cJSON *document_array(struct document *document, cJSON *parent, const char *name)
{
    return document_add(document, parent, name, cJSON_CreateArray());
}

static cJSON *document_append_item(struct document *document, cJSON *array, cJSON *item)
{
    if (item == NULL || array == NULL || !cJSON_AddItemToArray(array, item)) {
        cJSON_Delete(item);
        document->failed = true;
        return NULL;
    }
    return item;
}

cJSON *document_append(struct document *document, cJSON *array)
{
    return document_append_item(document, array, cJSON_CreateObject());
}

void document_number(struct document *document, cJSON *parent, const char *name, double number)
{
    (void)document_add(document, parent, name, cJSON_CreateNumber(number));
}

void document_count(struct document *document, cJSON *parent, const char *name, uint64_t count)
{
    char text[24];

    /* cJSON would print it as a floating-point number, which takes ten times as long. */
    (void)snprintf(text, sizeof(text), "%" PRIu64, count);
    (void)document_add(document, parent, name, cJSON_CreateRaw(text));
}

/* As one item: a thousand jobs have many histograms, and an item per number would take the loop
 * tens of milliseconds. */
void document_counts(struct document *document, cJSON *parent, const char *name,
    const uint64_t *count, unsigned counts)
{
    char text[DOCUMENT_COUNTS_MAX * 21 + 3];
    size_t size = 0;

    assert(counts > 0 && counts <= DOCUMENT_COUNTS_MAX);
    for (unsigned i = 0; i < counts; i++) {
        text[size++] = i == 0 ? '[' : ',';
        if (count[i] < 10) {
            text[size++] = (char)('0' + count[i]);
        } else {
            size += (size_t)snprintf(text + size, sizeof(text) - size, "%" PRIu64, count[i]);
        }
    }
    text[size++] = ']';
    text[size] = '\0';
    (void)document_add(document, parent, name, cJSON_CreateRaw(text));
}

void document_bool(struct document *document, cJSON *parent, const char *name, bool value)
{
    (void)document_add(document, parent, name, cJSON_CreateBool(value));
}

void document_null(struct document *document, cJSON *parent, const char *name)
{
    (void)document_add(document, parent, name, cJSON_CreateNull());
}

void document_optional(
    struct document *document, cJSON *parent, const char *name, double number, bool known)
{
    if (known) {
        document_number(document, parent, name, number);
    } else {
        document_null(document, parent, name);
    }
}

void document_pair(struct document *document, cJSON *parent, const char *name, const double pair[2])
{
    (void)document_add(document, parent, name, cJSON_CreateDoubleArray(pair, 2));
}

static const char *document_valid_text(const char *text, char valid[TEXT_SIZE])
{
    size_t size = 0;

    while (*text != '\0') {
        size_t length = utf8_length(text);
        size_t taken = length > 0 ? length : 1;

        if (size + taken >= TEXT_SIZE) {
            break;
        }
        memcpy(valid + size, length > 0 ? text : "?", taken);
        size += taken;
        text += taken;
    }
    valid[size] = '\0';
    return valid;
}

void document_text(struct document *document, cJSON *parent, const char *name, const char *text)
{
    char valid[TEXT_SIZE];

    (void)document_add(
        document, parent, name, cJSON_CreateString(document_valid_text(text, valid)));
}

void document_append_text(struct document *document, cJSON *array, const char *text)
{
    char valid[TEXT_SIZE];

    (void)document_append_item(
        document, array, cJSON_CreateString(document_valid_text(text, valid)));
}

void document_identity(
    struct document *document, cJSON *parent, const char *name, uint64_t identity)
{
    char text[17];

    (void)snprintf(text, sizeof(text), "%016" PRIx64, identity);
    document_text(document, parent, name, text);
}

void document_raw(struct document *document, cJSON *parent, const char *name, const char *json)
{
    (void)document_add(document, parent, name, cJSON_CreateRaw(json));
}
