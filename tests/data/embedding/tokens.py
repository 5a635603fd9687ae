"""Makes tokens.json: what `tokenizers` makes of difficult texts with the tokenizers of the fixtures."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from tokenizers import Tokenizer

HERE = Path(__file__).parent
NAMES = ("bert", "xlm-roberta", "modernbert", "bert-reranker", "bge-reranker")
TEXTS = [
    "Where do penguins live?",
    "  a  b\tc\n d ",
    "El pingüino vive — ¡sí! — en el sur; 12 345.",
    "日本語のテキスト and English",
    "naïve café ﬁne ① ½ ＡＢＣ",
    "[CLS] hello [SEP] <s> </s> <mask> [MASK]",
    "ümlaut Ünlü İstanbul ß",
    "e\u0301 e\u0301\u0301 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "x" * 150 + " y",
    "don't stop",
    "\x00\x01a\u200db\ufffd",
    "",
    " ",
    "한국어 가각",
    "a▁b",
    "ﷺ test Ⅷ ™",
    "\u1e9b\u0323 \u0344 \u01c4 ﬃ",
    "line\r\nend\u2028next\u00a0space\u3000wide",
    "penguinspenguinspenguins",
    "\u0e01\u0e33 \u0915\u094d\u0937\u093f",
]


def main() -> None:
    goldens = {}
    for name in NAMES:
        with tarfile.open(HERE / f"{name}.tar.xz") as archive:
            file = archive.extractfile(f"{name}/tokenizer.json")
            assert file
            tokenizer = Tokenizer.from_str(file.read().decode())
        pairs = [tokenizer.encode(text, "penguins") for text in TEXTS]
        goldens[name] = {
            "ids": [tokenizer.encode(text).ids for text in TEXTS],
            "pairs": [[pair.ids, pair.type_ids] for pair in pairs],
        }
    (HERE / "tokens.json").write_text(json.dumps({"texts": TEXTS, **goldens}) + "\n")


if __name__ == "__main__":
    main()
