/*
 * Makes weight caches for script tests.
 *
 *     wcache_make fill DIR MODEL   fill a cache from a checkpoint: one seat, every expert once, and
 * again in spare slots those that fit wcache_make dirty DIR MODEL  attach to it and end in the
 * middle of an in-place move wcache_make hold DIR MODEL   attach to it, say "attached", stay until
 * standard input ends
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "model/config.h"
#include "model/ffn.h"
#include "wcache/wcache.h"

struct maker {
    struct eep_ckpt *ckpt;
    struct eep_model_config config;
    const struct eep_kernels *kernels;
    struct eep_layout *layout;
    struct eep_wcache *cache;
    uint64_t frame_bytes;
};

static uint32_t model_layer(const struct maker *m, uint32_t moe_layer)
{
    uint32_t layer = 0;

    while (!m->config.layer_is_moe[layer] || moe_layer-- > 0) {
        layer++;
    }
    return layer;
}

static enum eep_status attach(struct maker *m, const char *dir, const char *model)
{
    struct eep_wcache_params params = {.dir = dir,
                                       .engine = "wcache_make",
                                       .engine_id = 42,
                                       .follows = true,
                                       .keep = true,
                                       .spare_frames = 2,
                                       .node_seats = 1,
                                       .source = model,
                                       .timeout_ns = 10 * EEP_NS_PER_S};
    struct eep_ffn_shape shape;

    EEP_TRY(eep_ckpt_open(model, &m->ckpt));
    EEP_TRY(eep_model_config_read(m->ckpt, &m->config));
    EEP_TRY(eep_kernels_find(NULL, &m->kernels));
    EEP_TRY(eep_layout_initial(m->config.moe_layers, m->config.experts, 1, 0, &m->layout));
    EEP_TRY(eep_ffn_shape(&m->config, m->ckpt, EEP_ROLE_EXPERT_GATE, model_layer(m, 0), 0, &shape));
    m->frame_bytes = eep_ffn_frame_bytes(&shape);
    params.key = (struct eep_wcache_key){.packing = 1,
                                         .dtype = (uint32_t)shape.dtype,
                                         .layers = m->config.moe_layers,
                                         .experts = m->config.experts,
                                         .seats = 1,
                                         .slots_per_seat = m->layout->slots_per_seat,
                                         .frame_bytes = m->frame_bytes,
                                         .node = "here"};
    params.phys2log = m->layout->phys2log;
    return eep_wcache_open(&params, &m->cache);
}

static enum eep_status fill(struct maker *m)
{
    bool fill;

    EEP_TRY(eep_wcache_seat_open(m->cache, (struct eep_seat){0}, EEP_NS_PER_S, &fill));
    for (uint32_t layer = 0; fill && layer < m->layout->layers; layer++) {
        for (uint32_t p = 0; p < eep_layout_slots(m->layout); p++) {
            const struct eep_slot slot = {p};
            const int32_t expert = eep_layout_expert(m->layout, layer, slot);
            struct eep_wcache_frame frame;
            struct eep_ffn_weights weights;
            void *bytes;

            if (!eep_wcache_slot_frame(m->cache, layer, slot, &frame)) {
                continue;
            }
            EEP_TRY(eep_wcache_frame_begin(m->cache, frame, &bytes));
            memset(bytes, 0, m->frame_bytes);
            EEP_TRY(eep_ffn_pack(&m->config, m->ckpt, m->kernels, EEP_ROLE_EXPERT_GATE,
                                 model_layer(m, layer), (uint32_t)expert, bytes, &weights));
            EEP_TRY(eep_wcache_frame_end(m->cache, frame, layer,
                                         (struct eep_expert){(uint32_t)expert}, NULL, NULL));
        }
    }
    return fill ? eep_wcache_seat_end(m->cache, (struct eep_seat){0}) : EEP_OK;
}

static enum eep_status leave_dirty(struct maker *m)
{
    struct eep_wcache_frame frame;
    void *bytes;

    EEP_TRY(eep_wcache_begin(m->cache, (uint32_t[]){0}, 1, eep_wcache_version(m->cache)));
    EEP_TRY(eep_wcache_take_in_place(m->cache, 0, (struct eep_slot){1}, &frame));
    EEP_TRY(eep_wcache_frame_begin(m->cache, frame, &bytes));
    memset(bytes, 0xa5, 64);
    return EEP_OK;
}

int main(int argc, char **argv)
{
    struct maker m = {.frame_bytes = 0};
    enum eep_status status;

    if (argc != 4) {
        fprintf(stderr, "usage: wcache_make fill|dirty|hold DIR MODEL\n");
        return 2;
    }
    status = attach(&m, argv[2], argv[3]);
    if (status == EEP_OK) {
        status = fill(&m);
    }
    if (status == EEP_OK && strcmp(argv[1], "dirty") == 0) {
        status = leave_dirty(&m);
        _exit(status == EEP_OK ? 0 : 1); /* without a close: the move is left as it is */
    }
    if (status == EEP_OK && strcmp(argv[1], "hold") == 0) {
        puts("attached");
        fflush(stdout);
        while (getchar() != EOF) {
        }
    }
    if (status != EEP_OK) {
        fprintf(stderr, "wcache_make: %s\n", eep_error_text());
    }
    eep_wcache_close(m.cache);
    eep_layout_destroy(m.layout);
    eep_model_config_free(&m.config);
    eep_ckpt_close(m.ckpt);
    return status == EEP_OK ? 0 : 1;
}
