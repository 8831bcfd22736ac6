"""Writes tokenizers, texts and the ids that the reference packages give them, for reference_test.cpp.

usage: reference.py TEXT_FILE OUT_FOLDER PIECES

OUT_FOLDER/pieces.bin   u32 count, then u32 length and the UTF-8 bytes of each text
OUT_FOLDER/cases.txt    one line a case: the tokenizer's file name; NAME.ids and NAME.texts lie beside it:
    NAME.ids            for each text: u32 count, u32 ids
    NAME.texts          for the first DECODED texts: u32 length and UTF-8 bytes of the decoded ids
    NAME.long           u32 count, u32 ids of the whole TEXT_FILE (the first LONG characters)
"""

import random
import struct
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from reference_texts import SENTENCES, make_pieces

DECODED = 20000
LONG = 600000

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(texts, vocab, pre, normalizer=None, special=("<|endoftext|>",), **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def split_then_bytes(pattern, *more):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), *more,
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def character_level(texts):
    """The form in which Llama-2's tokenizer.json comes: no pre-tokenizer, spaces as U+2581, bytes for unknown characters."""
    words = [word for text in texts for word in text.split()]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % byte for byte in range(256)]
    tokenizer.train_from_iterator(words, trainers.BpeTrainer(vocab_size=3000, special_tokens=special, limit_alphabet=200, show_progress=False))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def word_pieces(texts, **normalizer):
    """The form in which BERT's tokenizer.json comes."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=3000, special_tokens=special, limit_alphabet=400, show_progress=False))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def save_json(tokenizer, path):
    tokenizer.save(path)


def sentence_model(texts, path, **options):
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    options = {"vocab_size": 4000, "character_coverage": 0.9995, "num_threads": 2, "minloglevel": 2, "hard_vocab_limit": False, **options}
    with open(path, "wb") as out:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, **options)


def with_unused_pieces(source, target):
    """Marks every fifth learned piece of a model file as unused (kind 5)."""
    data, out, at, index = open(source, "rb").read(), bytearray(), 0, 0

    def varint(position):
        value = shift = 0
        while True:
            byte = data[position]
            value |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if byte < 0x80:
                return value, position

    def encoded(value):
        result = bytearray()
        while value > 0x7F:
            result.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes(result + bytes([value]))

    while at < len(data):
        key, begin = varint(at)
        length, begin = varint(begin)
        body = data[begin:begin + length]
        at = begin + length
        if key == 10:
            index += 1
            # A normal piece carries no kind: only its text and its score.
            if index > 300 and index % 5 == 0 and b"\x18" not in body[-2:]:
                body += b"\x18\x05"
        out += encoded(key) + encoded(len(body)) + body
    open(target, "wb").write(out)


def main():
    text_file, out, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    text = open(text_file, encoding="utf-8").read()
    small = [text[start:start + 3000] for start in range(0, 450000, 3000)]
    mixed = small[:100] + SENTENCES * 40

    cases = {}
    cases["gpt2.json"] = byte_level([text[:1500000]], 4096, pre_tokenizers.ByteLevel(add_prefix_space=False))
    cases["gpt2_prefix.json"] = byte_level(mixed, 1500, pre_tokenizers.ByteLevel(add_prefix_space=True))
    cases["llama3.json"] = byte_level(mixed, 3000, split_then_bytes(LLAMA3), special=("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
                                      ignore_merges=True)
    qwen = byte_level(mixed, 2500, split_then_bytes(QWEN2), normalizers.NFC())
    qwen.add_tokens([AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True), AddedToken("king", single_word=True),
                     AddedToken("é!", normalized=True), AddedToken("<both>", lstrip=True, rstrip=True, normalized=False), AddedToken("<|im_end|>", special=True),
                     AddedToken("<|im_end|><left>", normalized=False)])
    cases["qwen2.json"] = qwen
    cases["o200k.json"] = byte_level(mixed, 2500, split_then_bytes(O200K, pre_tokenizers.Digits(individual_digits=True),
                                                                  pre_tokenizers.Split("-", "merged_with_previous")), normalizers.NFKC())
    cases["behaviors.json"] = byte_level(mixed, 1000, pre_tokenizers.Sequence([
        pre_tokenizers.Split("e", "merged_with_next"), pre_tokenizers.Split(Regex(r"\d+"), "contiguous"), pre_tokenizers.Split(Regex(r"[aeiou]*"), "isolated"),
        pre_tokenizers.Split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]), normalizers.NFKD())
    cases["llama2.json"] = character_level(mixed)
    cases["bert_uncased.json"] = word_pieces(mixed)
    cases["bert_cased.json"] = word_pieces(mixed, lowercase=False)

    user = ["<sep>", "▁the▁", "ing", "😀😀"]
    sentence_model(mixed, f"{out}/unigram.model", model_type="unigram", user_defined_symbols=user, control_symbols=["<pad>"])
    sentence_model(mixed, f"{out}/unigram_bytes.model", model_type="unigram", normalization_rule_name="identity", byte_fallback=True,
                   add_dummy_prefix=False, remove_extra_whitespaces=False, vocab_size=3000)
    sentence_model(mixed, f"{out}/bpe.model", model_type="bpe", normalization_rule_name="identity", byte_fallback=True, split_digits=True,
                   remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, user_defined_symbols=user)
    sentence_model(mixed, f"{out}/bpe_suffix.model", model_type="bpe", normalization_rule_name="nfkc_cf", treat_whitespace_as_suffix=True)
    with_unused_pieces(f"{out}/bpe.model", f"{out}/bpe_unused.model")
    with_unused_pieces(f"{out}/unigram.model", f"{out}/unigram_unused.model")
    names = list(cases) + ["unigram.model", "unigram_bytes.model", "bpe.model", "bpe_suffix.model", "bpe_unused.model", "unigram_unused.model"]

    pieces = make_pieces(random.Random(5), text, -(-count // len(names)))
    with open(f"{out}/pieces.bin", "wb") as file:
        file.write(struct.pack("<I", len(pieces)))
        for piece in pieces:
            data = piece.encode("utf-8")
            file.write(struct.pack("<I", len(data)) + data)

    for name in names:
        path = f"{out}/{name}"
        if name.endswith(".json"):
            save_json(cases[name], path)
            tokenizer = Tokenizer.from_file(path)
            ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(pieces, add_special_tokens=False)]
            texts = tokenizer.decode_batch(ids[:DECODED], skip_special_tokens=True)
            long = tokenizer.encode(text[:LONG], add_special_tokens=False).ids
        else:
            processor = sentencepiece.SentencePieceProcessor(model_file=path)
            ids = processor.encode(pieces, num_threads=2)
            texts = processor.decode(ids[:DECODED])
            long = processor.encode(text[:LONG])
        with open(f"{path}.ids", "wb") as file:
            for row in ids:
                file.write(struct.pack(f"<{len(row) + 1}I", len(row), *row))
        with open(f"{path}.texts", "wb") as file:
            for decoded in texts:
                data = decoded.encode("utf-8")
                file.write(struct.pack("<I", len(data)) + data)
        with open(f"{path}.long", "wb") as file:
            file.write(struct.pack(f"<{len(long) + 1}I", len(long), *long))
    with open(f"{out}/long.txt", "w", encoding="utf-8", newline="") as file:
        file.write(text[:LONG])
    with open(f"{out}/cases.txt", "w") as file:
        file.write("\n".join(names) + "\n")


if __name__ == "__main__":
    main()
