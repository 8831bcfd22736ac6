"""usage: reference_training.py TEXT_FILE OUT_FOLDER VOCAB: trains byte-level BPE with the `tokenizers` package, saves trained.json."""

import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

text, out, vocab = open(sys.argv[1], encoding="utf-8", newline="").read(), sys.argv[2], int(sys.argv[3])
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<|endoftext|>"], show_progress=False,
                                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tokenizer.save(out + "/trained.json")
