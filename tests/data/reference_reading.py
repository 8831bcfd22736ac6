"""usage: reference_reading.py FOLDER NAMES...: loads each tokenizer with the `tokenizers` package; NAME.out gets texts and their ids."""

import random
import struct
import sys

from tokenizers import Tokenizer

from reference_texts import SENTENCES, make_pieces

texts = SENTENCES + make_pieces(random.Random(11), "".join(SENTENCES) * 5, 30000)[-2000:] + ["a<|endoftext|>b", "<|endoftext|>"]
for name in sys.argv[2:]:
    tokenizer = Tokenizer.from_file(f"{sys.argv[1]}/{name}")
    with open(f"{sys.argv[1]}/{name}.out", "wb") as file:
        file.write(struct.pack("<I", len(texts)))
        for text in texts:
            data, ids = text.encode("utf-8"), tokenizer.encode(text, add_special_tokens=False).ids
            file.write(struct.pack("<I", len(data)) + data + struct.pack(f"<{len(ids) + 1}I", len(ids), *ids))
