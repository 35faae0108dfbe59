"""Hugging Face folders with a tiny byte-level tokenizer, written in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS = "<s>", "</s>"
SPECIALS = ("<unk>", BOS, EOS, "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>")
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "t"), ("Ġt", "he"), ("u", "s"), ("us", "er"), ("e", "r"))


def write_tokenizer_folder(
    folder: Path,
    *,
    template: str | list[dict[str, str]] | None,
    adds_bos: bool = False,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
) -> Path:
    """tokenizer.json and tokenizer_config.json; adds_bos: the post-processor puts `<s>` in front."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [merge for merge in MERGES if merge != ("us", "er")] + [("us", "er")]
    words = [*SPECIALS, *letters, *dict.fromkeys("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIALS])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, SPECIALS.index(BOS))]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {"bos_token": BOS, "eos_token": {"__type": "AddedToken", "content": EOS}, "unk_token": "<unk>"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
