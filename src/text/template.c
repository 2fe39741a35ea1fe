/* Post-processors: ids put before and after the whole text. */
#include <string.h>

#include "base/mem.h"
#include "text/text_int.h"

#define WHERE "post_processor"
#define DEPTH_MAX 8

/* Append the ids of one special token of a template. */
static enum eep_status add_special(const char *path, const json_t *special, const json_t *tokens,
                                   struct eep_id_list *list)
{
    const json_t *name = json_object_get(special, "id");
    const json_t *ids =
        json_is_string(name)
            ? json_object_get(json_object_get(tokens, json_string_value(name)), "ids")
            : NULL;

    if (!json_is_array(ids)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: special_tokens has no ids for '%.200s'", path,
                        WHERE, json_is_string(name) ? json_string_value(name) : "?");
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        uint32_t id;

        EEP_TRY(eep_text_id(path, json_string_value(name), json_array_get(ids, i), &id));
        EEP_TRY(eep_id_append(list, id));
    }
    return EEP_OK;
}

static enum eep_status load_template(const char *path, const json_t *json,
                                     struct eep_template *template)
{
    const json_t *single = json_object_get(json, "single");
    const json_t *tokens = json_object_get(json, "special_tokens");
    bool after = false;

    if (!json_is_array(single)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: a TemplateProcessing without single", path, WHERE);
    }
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *special = json_object_get(item, "SpecialToken");
        const json_t *id = json_object_get(json_object_get(item, "Sequence"), "id");

        if (special != NULL) {
            EEP_TRY(
                add_special(path, special, tokens, after ? &template->after : &template->before));
        } else if (!after && json_is_string(id) && strcmp(json_string_value(id), "A") == 0) {
            after = true;
        } else {
            return eep_text_unsupported(path, WHERE, "TemplateProcessing of that form");
        }
    }
    return after ? EEP_OK : eep_text_unsupported(path, WHERE, "TemplateProcessing without A");
}

static enum eep_status load(const char *path, const json_t *json, int depth,
                            struct eep_template *template);

static enum eep_status load_sequence(const char *path, const json_t *json, int depth,
                                     struct eep_template *template)
{
    const json_t *list = json_object_get(json, "processors");

    if (!json_is_array(list)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: a Sequence without a list of processors", path,
                        WHERE);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        EEP_TRY(load(path, json_array_get(list, i), depth + 1, template));
    }
    return EEP_OK;
}

static enum eep_status load(const char *path, const json_t *json, int depth,
                            struct eep_template *template)
{
    const char *type;

    EEP_TRY(eep_text_type(path, WHERE, json, &type));
    if (strcmp(type, "ByteLevel") == 0) {
        return EEP_OK; /* it changes offsets only */
    }
    if (strcmp(type, "Sequence") == 0 && depth < DEPTH_MAX) {
        return load_sequence(path, json, depth, template);
    }
    if (strcmp(type, "TemplateProcessing") != 0) {
        return eep_text_unsupported(path, WHERE, type);
    }
    if (template->before.count + template->after.count > 0) {
        return eep_text_unsupported(path, WHERE, "a second TemplateProcessing");
    }
    return load_template(path, json, template);
}

enum eep_status eep_template_load(const char *path, const json_t *json,
                                  struct eep_template *template_out)
{
    struct eep_template template;

    memset(&template, 0, sizeof(template));
    enum eep_status status =
        json == NULL || json_is_null(json) ? EEP_OK : load(path, json, 0, &template);

    if (status != EEP_OK) {
        eep_template_free(&template);
        return status;
    }
    *template_out = template;
    return EEP_OK;
}

void eep_template_free(struct eep_template *template)
{
    eep_mem_free(template->before.ids);
    eep_mem_free(template->after.ids);
    memset(template, 0, sizeof(*template));
}
