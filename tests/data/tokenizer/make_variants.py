#!/usr/bin/env python3
"""Make variants.json: what the Hugging Face tokenizers library does with variants of a tokenizer.

Each variant is a set of changes to a file (a key path, such as "model.ignore_merges", and its new
value), with texts, their ids, and the text decoded from them. The files are the tokenizer.json of
tiny-qwen3-moe, and spm.json, a small one of the kind that comes from SentencePiece, with the parts
of Mixtral's own; it is trained here if it is not there. Needs the Python package tokenizers; both
were made with version 0.23.3.
"""
import json
import os
import random
import sys

from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = os.path.join(HERE, "..", "tiny-qwen3-moe", "tokenizer.json")
SPM = os.path.join(HERE, "spm.json")

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
GPT2_PREFIX = dict(GPT2, add_prefix_space=True)
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve"
         r"|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(regex=None, string=None, behavior="Isolated", invert=False):
    pattern = {"Regex": regex} if string is None else {"String": string}
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(first_id, *tokens):
    """Tokens as (content, flags): s special, n normalized, w single_word, l lstrip, r rstrip."""
    return [{"id": first_id + i, "content": content, "single_word": "w" in flags,
             "lstrip": "l" in flags, "rstrip": "r" in flags, "normalized": "n" in flags,
             "special": "s" in flags} for i, (content, flags) in enumerate(tokens)]


ADDED = added(2045, ("<|endoftext|>", "s"), ("<|im_start|>", "s"), ("<|im_end|>", "s"),
              ("<|im_end|>x", ""), ("<left>", "sl"), ("<right>", "sr"), ("<both>", "lr"),
              ("word", "w"), ("\u00e9t\u00e9", "n"), ("caf\u0065\u0301", "n"), (" the", ""),
              ("tool call", ""), ("\u2581", ""), ("<A>", ""), ("<A><B>", ""))
BOS = {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
                  {"Sequence": {"id": "A", "type_id": 0}},
                  {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
       "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [2046], "tokens": ["<|im_start|>"]},
                          "<|endoftext|>": {"id": "<|endoftext|>", "ids": [2045, 2045],
                                            "tokens": ["<|endoftext|>", "<|endoftext|>"]}}}

TEXTS = [
    "", " ", "  ", "a", "Hello, world!", "  two  spaces ", "It's WE'LL they're 'tis", "x=12345678+9;\n\n",
    "\ttab\r\n\r\nnew\n  line \n", "caf\u00e9 cafe\u0301 \u212b \uac00\u1100\u1161 \ufb01 \u01c6", "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f",
    "\U0001f600\U0001f44d\U0001f3fd \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439 42\u00bd \u0663\u0664 \u2167",
    "a<|endoftext|>b <|im_end|>x <|im_end|> c", "a <left> b  <right>  c \n<both>\t d", "word words a word, word_ sword \u00e9word",
    "\u00e9t\u00e9 e\u0301te\u0301 caf\u00e9 cafe\u0301", "the the<A><B><A> tool call \u2581x\u2581", "<left> <left>  <right> <right><both>",
    "\u00a0\u2003wide\u3000 \u180e \u200b \u2028\u0085x", "CamelCaseHTTPServer's x86_64 /path//to\n", "a'S b\u2019s '\u017f don'T",
    "0\u0301\u0302 \u0b95\u0bcd \u05d0\u05b8 \u0627\u064e\u0651", "\x00\x01\x7f\x1c\x1d \x0b\x0c", "!!!???...---___***", "\U0001d54f\U00010348\U000e0041",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa          b",
]

PUNCT = r"[,.;!]"
VARIANTS = {
    "as it is": {},
    "no normalizer": {"normalizer": None},
    "NFD": {"normalizer": {"type": "NFD"}},
    "NFKC": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}},
    "NFKD then NFC": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "NFC"}]}},
    "gpt2": {"normalizer": None, "pre_tokenizer": GPT2},
    "gpt2 with a space before": {"normalizer": None, "pre_tokenizer": GPT2_PREFIX, "added_tokens": ADDED},
    "llama3": {"normalizer": None, "pre_tokenizer": sequence(split(LLAMA3), BYTES), "model.ignore_merges": True,
               "post_processor": {"type": "Sequence", "processors": [
                   {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, BOS]}},
    "llama3 removed inverted": {"normalizer": None,
                                "pre_tokenizer": sequence(split(LLAMA3, behavior="Removed", invert=True), BYTES)},
    "deepseek": {"normalizer": {"type": "Sequence", "normalizers": []},
                 "pre_tokenizer": sequence(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                                           split(DEEPSEEK), BYTES)},
    "o200k": {"pre_tokenizer": sequence(split(O200K), BYTES)},
    "removed": {"pre_tokenizer": sequence(split(PUNCT, behavior="Removed"), BYTES)},
    "removed inverted": {"pre_tokenizer": sequence(split(PUNCT, behavior="Removed", invert=True), BYTES)},
    "with previous": {"pre_tokenizer": sequence(split(PUNCT, behavior="MergedWithPrevious"), BYTES)},
    "with previous inverted": {"pre_tokenizer": sequence(
        split(PUNCT, behavior="MergedWithPrevious", invert=True), BYTES)},
    "with next": {"pre_tokenizer": sequence(split(PUNCT, behavior="MergedWithNext"), BYTES)},
    "with next inverted": {"pre_tokenizer": sequence(split(PUNCT, behavior="MergedWithNext", invert=True), BYTES)},
    "contiguous": {"pre_tokenizer": sequence(split(PUNCT, behavior="Contiguous"), BYTES)},
    "contiguous inverted": {"pre_tokenizer": sequence(split(PUNCT, behavior="Contiguous", invert=True), BYTES)},
    "empty matches": {"pre_tokenizer": sequence(split(r"x*"), BYTES)},
    "literal": {"pre_tokenizer": sequence(split(string="."), split(string="'", behavior="Removed"), BYTES)},
    "lines": {"pre_tokenizer": sequence(split(r"^.+$"), BYTES)},
    "spaces": {"pre_tokenizer": sequence(split(r"\s"), split(r"[\s!]+"), split(r"\S"), BYTES)},
    "digits": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, GPT2)},
    "digits together": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, GPT2_PREFIX)},
    "added tokens": {"added_tokens": ADDED},
    "added tokens, not normalized": {"added_tokens": ADDED, "normalizer": None},
    "merges as text": {"model.merges": "text"},
    "pieces that are tokens": {"model.ignore_merges": True},
}


def metaspace(scheme, cut):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cut}


SPM_ADDED = added(0, ("<unk>", "s"), ("<s>", "s"), ("</s>", "s")) + added(
    600, ("<left>", "sl"), ("<right>", "rn"), ("word", "wn"), ("tool call", "n"), ("<0x4Z>", ""))
SPM_VARIANTS = {
    "spm": {},
    "spm, added tokens": {"added_tokens": SPM_ADDED},
    "spm, unknown": {"model.byte_fallback": False},
    "spm, unknown, each": {"model.byte_fallback": False, "model.fuse_unk": False},
    "spm, pieces that are tokens": {"model.ignore_merges": True, "pre_tokenizer": metaspace("always", True),
                                    "normalizer": None},
    "spm, metaspace first": {"pre_tokenizer": metaspace("first", False), "normalizer": None,
                             "added_tokens": SPM_ADDED, "post_processor": None},
    "spm, metaspace first, cut": {"pre_tokenizer": metaspace("first", True), "normalizer": None,
                                  "added_tokens": SPM_ADDED},
    "spm, metaspace always": {"pre_tokenizer": metaspace("always", False), "normalizer": {"type": "NFC"},
                              "added_tokens": SPM_ADDED},
    "spm, metaspace never": {"pre_tokenizer": metaspace("never", True), "normalizer": None},
    "spm, metaspace after split": {"normalizer": None, "pre_tokenizer": sequence(
        split(string="."), {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True})},
    "spm, no strip": {"decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}]}},
    "spm, NFKC": {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Replace", "pattern": {"String": "  "}, "content": " "},
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}},
}


def train_spm():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, limit_alphabet=80, show_progress=False)
    text = open(os.path.join(HERE, "..", "tiny-qwen3-moe", "golden", "heldout_english.txt"), encoding="utf-8")
    tokenizer.train_from_iterator((word for line in text for word in line.split()), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    result = json.loads(tokenizer.to_str())
    result["added_tokens"] = result["added_tokens"][:3]  # the bytes are no added tokens
    json.dump(result, open(SPM, "w", encoding="utf-8"), ensure_ascii=True)


def changed(base, changes):
    result = json.loads(json.dumps(base))
    for path, value in changes.items():
        *parents, last = path.split(".")
        at = result
        for key in parents:
            at = at[key]
        at[last] = [" ".join(pair) for pair in base["model"]["merges"]] if path == "model.merges" else value
    return result


def random_text(rng):
    pool = rng.choice(["ab .,!'\n", " \t\n\r\u00a0\u2003\u3000\u180e\u0085x1", "aA1'sStTmMlLdD ", "word <left>right both",
                       "\u00e9e\u0301\u4f60\u3042\u30a2\u0e2a\u0627\u064e\u05d0\u0b95\u0bcd\uac00\u1161 '", "".join(TEXTS)])
    pieces = list(pool) + ["<|im_end|>", "<left>", "<right>", "<both>", "word", " the", "\n\n", "   "]
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 40)))


def encode_all(path, variants, rng):
    base = json.load(open(path, encoding="utf-8"))
    for name, changes in variants.items():
        tokenizer = Tokenizer.from_str(json.dumps(changed(base, changes)))
        cases = []
        for text in TEXTS + [random_text(rng) for _ in range(6)]:
            ids = tokenizer.encode(text).ids
            cases.append([text, ids, tokenizer.decode(ids, skip_special_tokens=False)])
        yield {"name": name, "base": os.path.relpath(path, os.path.join(HERE, "..")), "changes": changes,
               "cases": cases}


def main():
    if not os.path.exists(SPM):
        train_spm()
    rng = random.Random(1)
    result = list(encode_all(BASE, VARIANTS, rng)) + list(encode_all(SPM, SPM_VARIANTS, rng))
    with open(os.path.join(HERE, "variants.json"), "w", encoding="utf-8") as out:
        out.write("[\n")
        for i, variant in enumerate(result):
            out.write(json.dumps(variant, ensure_ascii=True) + (",\n" if i + 1 < len(result) else "\n"))
        out.write("]\n")


if __name__ == "__main__":
    sys.exit(main())
