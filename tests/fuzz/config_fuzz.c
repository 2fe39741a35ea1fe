/* config.json, and after a NUL the index, over the shards of a small model. */
#include "ckpt/ckpt.h"
#include "fuzz.h"
#include "model/config.h"

#define MODEL "/tests/data/cases/model/ok-qwen3/"

/* The shards of the model, as links. */
static void link_shards(void)
{
    static const char *const names[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    static int done;
    const char *source = getenv("EEP_SRC");

    FUZZ_CHECK(source != NULL);
    for (int i = 0; !done && i < 2; i++) {
        char target[2 * FUZZ_PATH_MAX], path[2 * FUZZ_PATH_MAX];

        snprintf(target, sizeof(target), "%s" MODEL "%s", source, names[i]);
        snprintf(path, sizeof(path), "%s/%s", fuzz_dir_get(), names[i]);
        FUZZ_CHECK(symlink(target, path) == 0);
    }
    done = 1;
}

static void check_accepted(const struct eep_ckpt *ckpt)
{
    struct eep_model_config config;
    const struct eep_tensor *tensor;

    if (eep_model_config_read(ckpt, &config) != EEP_OK) {
        FUZZ_CHECK(strstr(eep_error_text(), "config.json") != NULL);
        return;
    }
    FUZZ_CHECK(config.top_k >= 1 && config.top_k <= config.experts);
    FUZZ_CHECK(config.heads % config.kv_heads == 0 && config.head_dim % 2 == 0);
    FUZZ_CHECK(config.moe_layers >= 1 && config.moe_layers <= config.layers);
    FUZZ_CHECK(config.eos_count <= EEP_MODEL_MAX_EOS);
    if (eep_model_check_tensors(&config, ckpt) == EEP_OK) {
        uint32_t layer = config.layers - 1;

        for (int role = 0; role < EEP_ROLE_COUNT; role++) {
            if (eep_model_has_role(&config, (enum eep_role)role, layer)) {
                FUZZ_CHECK(eep_model_tensor(&config, ckpt, (enum eep_role)role, layer, 0,
                                            &tensor) == EEP_OK);
            }
        }
    }
    eep_model_config_free(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t first = fuzz_first_part(data, bytes);
    struct eep_ckpt *ckpt;

    link_shards();
    fuzz_write("config.json", data, first);
    fuzz_write("model.safetensors.index.json", data + first + (first < bytes),
               bytes - first - (first < bytes));
    if (eep_ckpt_open(fuzz_dir_get(), &ckpt) == EEP_OK) {
        check_accepted(ckpt);
        eep_ckpt_close(ckpt);
    }
    return 0;
}
