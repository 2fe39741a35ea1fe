#include "model/ffn.h"

#include "base/mem.h"

static enum eep_status find_parts(const struct eep_model_config *config,
                                  const struct eep_ckpt *ckpt, enum eep_role gate, uint32_t layer,
                                  uint32_t expert, const struct eep_tensor *parts_out[3])
{
    for (int part = 0; part < 3; part++) {
        EEP_TRY(eep_model_tensor(config, ckpt, gate + part, layer, expert, &parts_out[part]));
    }
    return EEP_OK;
}

static struct eep_ffn_shape shape_of(const struct eep_tensor *const parts[3])
{
    struct eep_ffn_shape shape = {.dtype = EEP_BF16,
                                  .hidden = (uint32_t)parts[0]->shape[1],
                                  .width = (uint32_t)parts[0]->shape[0]};

    for (int part = 0; part < 3; part++) {
        if (parts[part]->dtype != EEP_BF16) {
            shape.dtype = EEP_F32;
        }
    }
    return shape;
}

enum eep_status eep_ffn_shape(const struct eep_model_config *config, const struct eep_ckpt *ckpt,
                              enum eep_role gate, uint32_t layer, uint32_t expert,
                              struct eep_ffn_shape *shape_out)
{
    const struct eep_tensor *parts[3];

    EEP_TRY(find_parts(config, ckpt, gate, layer, expert, parts));
    *shape_out = shape_of(parts);
    return EEP_OK;
}

uint64_t eep_ffn_content_bytes(const struct eep_ffn_shape *shape)
{
    return eep_ffn_gate_up_bytes(shape->dtype, shape->hidden, shape->width) +
           eep_ffn_down_bytes(shape->dtype, shape->hidden, shape->width);
}

uint64_t eep_ffn_frame_bytes(const struct eep_ffn_shape *shape)
{
    return eep_round_up(eep_ffn_content_bytes(shape), EEP_PAGE);
}

void eep_ffn_describe(const struct eep_ffn_shape *s, const void *frame,
                      struct eep_ffn_weights *weights_out)
{
    const unsigned char *gate_up = frame;

    *weights_out = (struct eep_ffn_weights){
        .dtype = s->dtype,
        .hidden = s->hidden,
        .width = s->width,
        .gate_up = gate_up,
        .down = gate_up + eep_ffn_gate_up_bytes(s->dtype, s->hidden, s->width)};
}

enum eep_status eep_ffn_pack(const struct eep_model_config *config, const struct eep_ckpt *ckpt,
                             const struct eep_kernels *kernels, enum eep_role gate, uint32_t layer,
                             uint32_t expert, void *frame, struct eep_ffn_weights *weights_out)
{
    const struct eep_tensor *parts[3];

    EEP_TRY(find_parts(config, ckpt, gate, layer, expert, parts));
    const struct eep_ffn_shape s = shape_of(parts);
    unsigned char *gate_up = frame;
    unsigned char *up = gate_up + eep_panels_bytes(s.dtype, 1, s.hidden); /* one panel further */
    unsigned char *down = gate_up + eep_ffn_gate_up_bytes(s.dtype, s.hidden, s.width);

    kernels->pack(s.dtype, s.width, s.hidden, parts[0]->dtype, parts[0]->data, gate_up, 2);
    kernels->pack(s.dtype, s.width, s.hidden, parts[1]->dtype, parts[1]->data, up, 2);
    kernels->pack(s.dtype, s.hidden, s.width, parts[2]->dtype, parts[2]->data, down, 1);
    eep_ffn_describe(&s, frame, weights_out);
    return EEP_OK;
}
