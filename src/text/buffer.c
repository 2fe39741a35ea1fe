/* Growing blocks, and members of tokenizer.json with messages that name them. */
#include <string.h>

#include "base/mem.h"
#include "text/text_int.h"

#define ROOM_MIN 64

enum eep_status eep_text_grow(void *items, size_t *room, size_t used, size_t count, size_t size)
{
    void *old, *grown;

    if (count <= *room) {
        return EEP_OK;
    }
    size_t more = EEP_MAX(EEP_MAX(count, *room + *room / 2), (size_t)ROOM_MIN);

    EEP_TRY(eep_mem_alloc(more, size, "text being encoded", &grown));
    memcpy(&old, items, sizeof(old));
    if (used > 0) {
        memcpy(grown, old, used * size);
    }
    eep_mem_free(old);
    memcpy(items, &grown, sizeof(grown));
    *room = more;
    return EEP_OK;
}

enum eep_status eep_text_append(struct eep_text_buffer *buffer, const char *data, size_t bytes)
{
    if (bytes == 0) {
        return EEP_OK;
    }
    EEP_TRY(eep_text_grow(&buffer->data, &buffer->room, buffer->size, buffer->size + bytes, 1));
    memcpy(buffer->data + buffer->size, data, bytes);
    buffer->size += bytes;
    return EEP_OK;
}

void eep_text_buffer_free(struct eep_text_buffer *buffer)
{
    eep_mem_free(buffer->data);
    memset(buffer, 0, sizeof(*buffer));
}

enum eep_status eep_id_append(struct eep_id_list *list, uint32_t id)
{
    EEP_TRY(eep_text_grow(&list->ids, &list->room, list->count, list->count + 1, sizeof(id)));
    list->ids[list->count++] = id;
    return EEP_OK;
}

const json_t *eep_text_get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

enum eep_status eep_text_type(const char *path, const char *where, const json_t *component,
                              const char **type_out)
{
    const json_t *type = json_object_get(component, "type");

    if (!json_is_string(type)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s is not an object with a type", path, where);
    }
    *type_out = json_string_value(type);
    return EEP_OK;
}

enum eep_status eep_text_bool(const char *path, const char *where, const json_t *object,
                              const char *key, bool absent, bool *value_out)
{
    const json_t *value = eep_text_get(object, key);

    if (value != NULL && !json_is_boolean(value)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: %s is neither true nor false", path, where, key);
    }
    *value_out = value != NULL ? json_is_true(value) : absent;
    return EEP_OK;
}

enum eep_status eep_text_id(const char *path, const char *where, const json_t *value,
                            uint32_t *id_out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= (json_int_t)EEP_TOKEN_IDS_MAX) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: the id of '%.200s' is not an integer from 0 to %u",
                        path, where, EEP_TOKEN_IDS_MAX - 1);
    }
    *id_out = (uint32_t)json_integer_value(value);
    return EEP_OK;
}
