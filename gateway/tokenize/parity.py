"""Texts on which two encoders show whether they are the same: digits, scripts, emoji, white space, code, odd characters."""

from __future__ import annotations

import random

CORPUS: tuple[str, ...] = (
    "",
    " ",
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "I'm you're we've they'll it's don't I'D WE'VE o'clock 'tis",
    "3.14159 2026-11-30 1,000,000 0xff 1e-9 12345678901234567890",
    "٠١٢٣٤٥٦٧٨٩ ०१२३४५६७८९ 零一二三 ０１２３ ①②③ ½ ² ₃ Ⅷ",
    "def f(x):\n    return {k: v for k, v in x.items()}\n\n\tif x >= 0 and y != 1: pass  # note\n",
    '<div class="a">&amp; <!-- x --></div>\n{"k": [1, 2.5, null, "\\u00e9"]}\nSELECT * FROM t WHERE a=\'b\';',
    "https://example.com/a/b?c=d&e=%20#f user@example.com C:\\Users\\x /usr/local/bin",
    "naïve café résumé Ångström e\u0301 vs é, A\u030a vs Å, n\u0303o",
    "今天天气很好，我们去公园吧。「日本語」のテキスト、カタカナ。ｶﾀｶﾅ",
    "한국어 텍스트입니다. \u1112\u1161\u11ab\u1100\u1173\u11af",
    "Привет, мир! Ёлка. Здравствуйте. Українська їжак",
    "مرحبا بالعالم \u202bאבג שלום\u202c \u200fabc\u200e",
    "हिन्दी में पाठ ไทยไม่มีช่องว่าง தமிழ் বাংলা ქართული Ελληνικά",
    "🎉🎉👍🏽 family 👨‍👩‍👧 flags 🇩🇪🇫🇷 ❤️ ☃ ©®™ 🏴\U000e0067\U000e0062\U000e007f",
    "Z\u0351\u036b\u0343a\u0326\u0323l\u0340\u0342g\u0334\u0321o\u0358",
    "zero\u200bwidth\u200djoin\ufeffbom soft\u00adhyphen nb\u00a0space thin\u2009space line\u2028sep para\u2029sep",
    "\x00\x01\x04\x07\x1b[0m\x7f\x85\x9f",
    "   leading and trailing   ",
    "tabs\tand\t\ttabs \t mixed\t \n\t\n",
    "line\nline\r\nline\rline\n\r\n\n\r\r\n \n  \r\n",
    "form\x0cfeed vertical\x0btab \x0c\n \x0b\r\n",
    "a" * 70 + " " * 33 + "b",
    " " * 200 + "x" + "\n" * 60 + "y",
    "!?.,;:-_()[]{}<>@#$%^&*+=|\\/~`'\" ... !!! ??? --- ___ === *** ///",
    "camelCase snake_case kebab-case SCREAMING_SNAKE PascalCase iPhone15Pro x86_64 v1.2.3-rc4",
    "∀x∈ℝ: ∃y ≥ x² → ∑ᵢ aᵢ ≠ ∞ ∴ √2 ≈ 1.414 ⟨ψ|φ⟩ 𝔘𝔫𝔦 𝒸ℴ𝒹ℯ",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<s>[INST] hi [/INST] </s><unk><pad><|endoftext|><|begin_of_text|><bos><eos>",
    "<|im_start <|im_end|> > <| im_end |> <|im_end|><|im_end|> <<|im_end|>>",
    "ﬁ ﬂ ﬀ Ｆｕｌｌｗｉｄｔｈ ǅ ß ẞ İ ı ſ K Å",
    "\U0010ffff\ufffd\ue000\ufdd0 private and noncharacters",
)


def mixtures(count: int, seed: int) -> list[str]:
    """`count` texts of pieces cut at random out of the corpus and joined; the same for the same seed."""
    source = random.Random(seed)
    texts: list[str] = []
    for _ in range(count):
        pieces: list[str] = []
        for _ in range(source.randint(2, 7)):
            text = source.choice(CORPUS)
            start = source.randint(0, len(text))
            pieces.append(text[start : start + source.randint(1, 24)])
        texts.append(source.choice(("", " ", "\n")).join(pieces))
    return texts
