#!/usr/bin/env python3
"""Small random models with what the stored checkpoints do not have, and their references.

Needs numpy. An independent forward pass in float64, written from the models' descriptions: run it
in this folder to make the directories beside it and reference.json anew (the same bytes).

  mixtral-window     sliding_window 3, shorter than the prompt
  qwen3-bias         attention_bias true: q, k, v and o have biases
  qwen3-sparse-step  decoder_sparse_step 2: every second layer is MoE; three layers
  qwen2-shared       no q/k/v biases, ungrouped heads, a gated shared expert, norm_topk_prob true
"""
import json
import os
import struct

import numpy as np

IDS = [3, 7, 1, 30, 12, 5]
BASE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            head_dim=8, vocab_size=32, num_experts_per_tok=2, hidden_act="silu",
            rms_norm_eps=1e-6, rope_theta=10000.0, max_position_embeddings=128,
            tie_word_embeddings=False, torch_dtype="float32")
MODELS = {
    "mixtral-window": dict(BASE, model_type="mixtral", num_local_experts=4, intermediate_size=12,
                           sliding_window=3),
    "qwen3-bias": dict(BASE, model_type="qwen3_moe", num_experts=4, moe_intermediate_size=12,
                       intermediate_size=20, norm_topk_prob=True, decoder_sparse_step=1,
                       mlp_only_layers=[], attention_bias=True),
    "qwen3-sparse-step": dict(BASE, model_type="qwen3_moe", num_experts=4,
                              moe_intermediate_size=12, intermediate_size=20, num_hidden_layers=3,
                              norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[],
                              attention_bias=False),
    "qwen2-shared": dict(BASE, model_type="qwen2_moe", num_experts=6, moe_intermediate_size=10,
                         intermediate_size=20, shared_expert_intermediate_size=14,
                         num_key_value_heads=2, norm_topk_prob=True, decoder_sparse_step=1,
                         mlp_only_layers=[], qkv_bias=False, use_sliding_window=False),
}


class Model:
    def __init__(self, config, seed):
        self.c = config
        self.random = np.random.default_rng(seed)
        self.tensors = {}
        self.make()

    def add(self, name, *shape):
        values = self.random.standard_normal(shape) / np.sqrt(shape[-1]) * 1.5
        if "norm" in name:
            values = 1 + 0.3 * self.random.standard_normal(shape)
        self.tensors[name] = values.astype(np.float32)

    def is_moe(self, layer):
        step = self.c.get("decoder_sparse_step", 1)
        return (layer + 1) % step == 0

    def ffn(self, prefix, width, names=("gate_proj", "up_proj", "down_proj")):
        hidden = self.c["hidden_size"]
        self.add(f"{prefix}.{names[0]}.weight", width, hidden)
        self.add(f"{prefix}.{names[1]}.weight", width, hidden)
        self.add(f"{prefix}.{names[2]}.weight", hidden, width)

    def make(self):
        c = self.c
        hidden, dim = c["hidden_size"], c["head_dim"]
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.add("model.embed_tokens.weight", c["vocab_size"], hidden)
        for layer in range(c["num_hidden_layers"]):
            p = f"model.layers.{layer}"
            self.add(f"{p}.input_layernorm.weight", hidden)
            self.add(f"{p}.post_attention_layernorm.weight", hidden)
            for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                self.add(f"{p}.self_attn.{name}_proj.weight", rows * dim, hidden)
                if c.get("attention_bias"):
                    self.add(f"{p}.self_attn.{name}_proj.bias", rows * dim)
            self.add(f"{p}.self_attn.o_proj.weight", hidden, heads * dim)
            if c.get("attention_bias"):
                self.add(f"{p}.self_attn.o_proj.bias", hidden)
            if c["model_type"] == "qwen3_moe":
                self.add(f"{p}.self_attn.q_norm.weight", dim)
                self.add(f"{p}.self_attn.k_norm.weight", dim)
            self.make_mlp(layer, p)
        self.add("model.norm.weight", hidden)
        self.add("lm_head.weight", c["vocab_size"], hidden)

    def make_mlp(self, layer, p):
        c = self.c
        if c["model_type"] == "mixtral":
            self.add(f"{p}.block_sparse_moe.gate.weight", c["num_local_experts"], c["hidden_size"])
            for e in range(c["num_local_experts"]):
                self.ffn(f"{p}.block_sparse_moe.experts.{e}", c["intermediate_size"],
                         ("w1", "w3", "w2"))
        elif not self.is_moe(layer):
            self.ffn(f"{p}.mlp", c["intermediate_size"])
        else:
            self.add(f"{p}.mlp.gate.weight", c["num_experts"], c["hidden_size"])
            for e in range(c["num_experts"]):
                self.ffn(f"{p}.mlp.experts.{e}", c["moe_intermediate_size"])
            if "shared_expert_intermediate_size" in c:
                self.ffn(f"{p}.mlp.shared_expert", c["shared_expert_intermediate_size"])
                self.add(f"{p}.mlp.shared_expert_gate.weight", 1, c["hidden_size"])

    def w(self, name):
        return self.tensors[name].astype(np.float64)

    def norm(self, x, name):
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"])
        return x / scale * self.w(name)

    def linear(self, x, name):
        y = x @ self.w(name + ".weight").T
        return y + self.w(name + ".bias") if name + ".bias" in self.tensors else y

    def rotate(self, x):
        dim = self.c["head_dim"]
        frequency = self.c["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
        angle = np.arange(x.shape[0])[:, None] * frequency
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        a, b = x[..., : dim // 2], x[..., dim // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, x, p):
        c, rows = self.c, x.shape[0]
        heads, kv_heads, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        q = self.linear(x, f"{p}.q_proj").reshape(rows, heads, dim)
        k = self.linear(x, f"{p}.k_proj").reshape(rows, kv_heads, dim)
        v = self.linear(x, f"{p}.v_proj").reshape(rows, kv_heads, dim)
        if f"{p}.q_norm.weight" in self.tensors:
            q, k = self.norm(q, f"{p}.q_norm.weight"), self.norm(k, f"{p}.k_norm.weight")
        q, k = self.rotate(q), self.rotate(k)
        out = np.zeros((rows, heads, dim))
        window = c.get("sliding_window") or rows
        for i in range(rows):
            first = max(0, i - window + 1)
            for h in range(heads):
                g = h * kv_heads // heads
                s = k[first: i + 1, g] @ q[i, h] / np.sqrt(dim)
                s = np.exp(s - s.max())
                out[i, h] = s / s.sum() @ v[first: i + 1, g]
        return self.linear(out.reshape(rows, -1), f"{p}.o_proj")

    def run_ffn(self, x, prefix, names=("gate_proj", "up_proj", "down_proj")):
        g = self.linear(x, f"{prefix}.{names[0]}")
        return self.linear(g / (1 + np.exp(-g)) * self.linear(x, f"{prefix}.{names[1]}"),
                           f"{prefix}.{names[2]}")

    def moe(self, x, layer):
        c = self.c
        mixtral = c["model_type"] == "mixtral"
        p = f"model.layers.{layer}." + ("block_sparse_moe" if mixtral else "mlp")
        names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        scores = self.linear(x, f"{p}.gate")
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        y = np.zeros_like(x)
        for i, row in enumerate(scores):
            best = sorted(range(len(row)), key=lambda e: (-row[e], e))[: c["num_experts_per_tok"]]
            total = row[best].sum() if mixtral or c["norm_topk_prob"] else 1.0
            for e in best:
                y[i] += row[e] / total * self.run_ffn(x[i: i + 1], f"{p}.experts.{e}", names)[0]
        if "shared_expert_intermediate_size" in c:
            gate = 1 / (1 + np.exp(-self.linear(x, f"{p}.shared_expert_gate")))
            y += gate * self.run_ffn(x, f"{p}.shared_expert")
        return y

    def mixes(self, layer):
        return self.c["model_type"] == "mixtral" or self.is_moe(layer)

    def logits(self):
        x = self.w("model.embed_tokens.weight")[IDS]
        for layer in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{layer}"
            x = x + self.attention(self.norm(x, f"{p}.input_layernorm.weight"), f"{p}.self_attn")
            z = self.norm(x, f"{p}.post_attention_layernorm.weight")
            x = x + (self.moe(z, layer) if self.mixes(layer) else self.run_ffn(z, f"{p}.mlp"))
        return self.linear(self.norm(x, "model.norm.weight"), "lm_head")

    def write(self, folder):
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/config.json", "w") as file:
            json.dump(self.c, file, indent=1)
            file.write("\n")
        header, offset = {}, 0
        for name, value in self.tensors.items():
            header[name] = dict(dtype="F32", shape=list(value.shape),
                                data_offsets=[offset, offset + value.nbytes])
            offset += value.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(f"{folder}/model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for value in self.tensors.values():
                file.write(value.tobytes())


def rounded(matrix):
    return [[round(float(v), 6) for v in row] for row in matrix]


def main():
    reference = {"_made_with": f"numpy {np.__version__}, float64", "_ids": IDS}
    for seed, (name, config) in enumerate(MODELS.items()):
        model = Model(config, seed)
        model.write(name)
        x = np.sin(np.arange(3 * config["hidden_size"])).reshape(3, -1)
        reference[name] = {
            "logits": rounded(model.logits()),
            "moe": {str(layer): {"x": rounded(x), "y": rounded(model.moe(np.round(x, 6), layer))}
                    for layer in range(config["num_hidden_layers"]) if model.mixes(layer)},
        }
    with open("reference.json", "w") as file:
        json.dump(reference, file, indent=0)
        file.write("\n")


main()
