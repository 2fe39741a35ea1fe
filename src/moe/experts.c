/*
 * Filling frames. All frames of a rank are of one size (the largest dtype that occurs), so that any
 * expert fits any frame.
 */
#include "moe/experts.h"

#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "model/ffn.h"

struct eep_experts {
    const struct eep_layout *layout;
    struct eep_ffn_weights *slots; /* (layers, physical slots); data NULL where not held */
    unsigned char *frames;         /* own ones; NULL when somebody else holds them */
    uint64_t frames_bytes;
    uint64_t count;
};

/* Calls visit(context, layer, slot, expert) for each slot that the rank executes; stops on error.
 */
static enum eep_status for_each_slot(const struct eep_experts_source *source,
                                     enum eep_status (*visit)(void *context, uint32_t layer,
                                                              struct eep_slot slot,
                                                              uint32_t expert),
                                     void *context)
{
    const struct eep_layout *layout = source->layout;

    for (uint32_t layer = 0; layer < layout->layers; layer++) {
        for (uint32_t p = 0; p < eep_layout_slots(layout); p++) {
            const struct eep_slot slot = {p};
            const uint32_t seat = p / layout->slots_per_seat;
            const int32_t expert = eep_layout_expert(layout, layer, slot);

            if (expert != EEP_NO_EXPERT && source->executors[seat] == source->rank) {
                EEP_TRY(visit(context, layer, slot, (uint32_t)expert));
            }
        }
    }
    return EEP_OK;
}

/* The model's layer of a MoE layer: dense layers are not counted in a layout. */
static uint32_t model_layer(const struct eep_model_config *config, uint32_t moe_layer)
{
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        if (config->layer_is_moe[layer] && moe_layer-- == 0) {
            return layer;
        }
    }
    EEP_ASSERT(!"a MoE layer of the model");
    return 0;
}

struct loader {
    const struct eep_experts_source *source;
    struct eep_experts *experts;
    uint64_t frame_bytes;
    uint64_t count; /* slots visited */
    uint64_t total;
    void (*progress)(void *context, uint64_t loaded, uint64_t total);
    void *context;
};

static enum eep_status measure_slot(void *context, uint32_t layer, struct eep_slot slot,
                                    uint32_t expert)
{
    struct loader *loader = context;
    const struct eep_model_config *config = loader->source->config;
    struct eep_ffn_shape shape;

    (void)slot;
    EEP_TRY(eep_ffn_shape(config, loader->source->ckpt, EEP_ROLE_EXPERT_GATE,
                          model_layer(config, layer), expert, &shape));
    loader->frame_bytes = EEP_MAX(loader->frame_bytes, eep_ffn_frame_bytes(&shape));
    loader->count++;
    return EEP_OK;
}

uint64_t eep_experts_bytes_needed(const struct eep_experts_source *source)
{
    struct loader loader = {.source = source};

    if (for_each_slot(source, measure_slot, &loader) != EEP_OK) {
        return 0; /* the tensors were checked before; loading will say what is wrong */
    }
    return loader.frame_bytes * loader.count;
}

static enum eep_status fill_slot(void *context, uint32_t layer, struct eep_slot slot,
                                 uint32_t expert)
{
    struct loader *loader = context;
    const struct eep_experts_source *source = loader->source;
    struct eep_experts *experts = loader->experts;
    struct eep_ffn_weights *weights =
        &experts->slots[(size_t)layer * eep_layout_slots(experts->layout) + slot.id];

    EEP_TRY(eep_ffn_pack(source->config, source->ckpt, source->kernels, EEP_ROLE_EXPERT_GATE,
                         model_layer(source->config, layer), expert,
                         experts->frames + loader->frame_bytes * experts->count, weights));
    experts->count++;
    if (loader->progress != NULL) {
        loader->progress(loader->context, experts->count, loader->total);
    }
    return EEP_OK;
}

enum eep_status eep_experts_load(const struct eep_experts_source *source,
                                 void (*progress)(void *context, uint64_t loaded, uint64_t total),
                                 void *context, struct eep_experts **experts_out)
{
    struct loader loader = {.source = source, .progress = progress, .context = context};
    struct eep_experts *experts;
    enum eep_status status;

    EEP_TRY(for_each_slot(source, measure_slot, &loader));
    EEP_TRY(eep_mem_alloc(1, sizeof(*experts), "experts", &experts));
    *experts = (struct eep_experts){.layout = source->layout,
                                    .frames_bytes = loader.frame_bytes * loader.count};
    EEP_TRY_GOTO(eep_mem_alloc((size_t)source->layout->layers * eep_layout_slots(source->layout),
                               sizeof(*experts->slots), "slot table", &experts->slots),
                 destroy);
    EEP_TRY_GOTO(eep_mem_map(experts->frames_bytes, "expert frames", &experts->frames), destroy);
    loader.total = loader.count;
    loader.experts = experts;
    EEP_TRY_GOTO(for_each_slot(source, fill_slot, &loader), destroy);
    *experts_out = experts;
    return EEP_OK;

destroy:
    eep_experts_destroy(experts);
    return status;
}

struct attacher {
    const struct eep_experts_source *source;
    struct eep_experts *experts;
    const void *(*frame_of)(void *context, uint32_t layer, struct eep_slot slot);
    void *context;
};

/* Point a slot to a frame that somebody else holds. */
static enum eep_status set_slot(struct eep_experts *experts,
                                const struct eep_experts_source *source, uint32_t layer,
                                struct eep_slot slot, uint32_t expert, const void *frame)
{
    struct eep_ffn_shape shape;

    EEP_TRY(eep_ffn_shape(source->config, source->ckpt, EEP_ROLE_EXPERT_GATE,
                          model_layer(source->config, layer), expert, &shape));
    eep_ffn_describe(&shape, frame,
                     &experts->slots[(size_t)layer * eep_layout_slots(source->layout) + slot.id]);
    experts->count++;
    experts->frames_bytes += eep_ffn_frame_bytes(&shape);
    return EEP_OK;
}

static enum eep_status attach_slot(void *context, uint32_t layer, struct eep_slot slot,
                                   uint32_t expert)
{
    const struct attacher *a = context;

    return set_slot(a->experts, a->source, layer, slot, expert,
                    a->frame_of(a->context, layer, slot));
}

enum eep_status eep_experts_attach(const struct eep_experts_source *source,
                                   const void *(*frame_of)(void *context, uint32_t layer,
                                                           struct eep_slot slot),
                                   void *context, struct eep_experts **experts_out)
{
    struct eep_experts *experts;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(1, sizeof(*experts), "experts", &experts));
    *experts = (struct eep_experts){.layout = source->layout};
    struct attacher attacher = {
        .source = source, .experts = experts, .frame_of = frame_of, .context = context};
    EEP_TRY_GOTO(eep_mem_alloc((size_t)source->layout->layers * eep_layout_slots(source->layout),
                               sizeof(*experts->slots), "slot table", &experts->slots),
                 destroy);
    EEP_TRY_GOTO(for_each_slot(source, attach_slot, &attacher), destroy);
    *experts_out = experts;
    return EEP_OK;

destroy:
    eep_experts_destroy(experts);
    return status;
}

enum eep_status eep_experts_change(struct eep_experts *experts,
                                   const struct eep_experts_source *source, uint32_t layer,
                                   struct eep_slot slot, const void *frame)
{
    struct eep_ffn_weights *weights =
        &experts->slots[(size_t)layer * eep_layout_slots(experts->layout) + slot.id];

    EEP_ASSERT(experts->frames == NULL); /* own ones stay where they are */
    if (weights->gate_up != NULL) {
        experts->count--;
        experts->frames_bytes -= eep_ffn_frame_bytes(&(struct eep_ffn_shape){
            .dtype = weights->dtype, .hidden = weights->hidden, .width = weights->width});
        *weights = (struct eep_ffn_weights){0};
    }
    return frame != NULL ? set_slot(experts, source, layer, slot,
                                    (uint32_t)eep_layout_expert(source->layout, layer, slot), frame)
                         : EEP_OK;
}

void eep_experts_relayout(struct eep_experts *experts, const struct eep_layout *layout)
{
    EEP_ASSERT(layout->layers == experts->layout->layers &&
               eep_layout_slots(layout) == eep_layout_slots(experts->layout));
    experts->layout = layout;
}

enum eep_status eep_experts_pack(const struct eep_experts_source *source, uint32_t layer,
                                 struct eep_expert expert, void *frame, uint64_t frame_bytes)
{
    const uint32_t at = model_layer(source->config, layer);
    struct eep_ffn_weights unused;
    struct eep_ffn_shape shape;

    EEP_TRY(
        eep_ffn_shape(source->config, source->ckpt, EEP_ROLE_EXPERT_GATE, at, expert.id, &shape));
    const uint64_t content = eep_ffn_content_bytes(&shape);
    EEP_ASSERT(content <= frame_bytes);
    memset((unsigned char *)frame + content, 0, frame_bytes - content);
    return eep_ffn_pack(source->config, source->ckpt, source->kernels, EEP_ROLE_EXPERT_GATE, at,
                        expert.id, frame, &unused);
}

enum eep_status eep_experts_content(const struct eep_experts_source *source, uint64_t *bytes_out,
                                    enum eep_dtype *dtype_out)
{
    const struct eep_model_config *c = source->config;

    *bytes_out = 0;
    *dtype_out = EEP_BF16;
    for (uint32_t layer = 0; layer < c->moe_layers; layer++) {
        for (uint32_t e = 0; e < c->experts; e++) {
            struct eep_ffn_shape shape;

            EEP_TRY(eep_ffn_shape(c, source->ckpt, EEP_ROLE_EXPERT_GATE, model_layer(c, layer), e,
                                  &shape));
            *bytes_out = EEP_MAX(*bytes_out, eep_ffn_content_bytes(&shape));
            *dtype_out = shape.dtype == EEP_F32 ? EEP_F32 : *dtype_out;
        }
    }
    return EEP_OK;
}

void eep_experts_destroy(struct eep_experts *experts)
{
    if (experts == NULL) {
        return;
    }
    eep_mem_unmap(experts->frames, experts->frames_bytes);
    eep_mem_free(experts->slots);
    eep_mem_free(experts);
}

const struct eep_ffn_weights *eep_experts_slot(const struct eep_experts *experts, uint32_t layer,
                                               struct eep_slot slot)
{
    const struct eep_ffn_weights *weights =
        &experts->slots[(size_t)layer * eep_layout_slots(experts->layout) + slot.id];

    return weights->gate_up != NULL ? weights : NULL;
}

uint64_t eep_experts_bytes(const struct eep_experts *experts)
{
    return experts->frames_bytes;
}

uint64_t eep_experts_count(const struct eep_experts *experts)
{
    return experts->count;
}
