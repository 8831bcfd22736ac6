// The front door of the data room: from files of text or images to the samples of a training step.
//
//   readers   (source.hpp)       text, JSONL and Parquet files, also compressed, and folders of them, as documents of valid UTF-8
//   tokenizers (tokenizer.hpp)   byte-level BPE trained here, tokenizer.json, SentencePiece models, bytes
//   cache     (token_cache.hpp)  the token stream in a memory-mapped file that is built once
//   dataset   (dataset.hpp)      samples, split, global order and exact resume, of text and of images
//   text      (text_dataset.hpp) sequences of tokens, of several sources mixed
#pragma once

#include "data/dataset.hpp"       // IWYU pragma: export
#include "data/progress.hpp"      // IWYU pragma: export
#include "data/source.hpp"        // IWYU pragma: export
#include "data/text_dataset.hpp"  // IWYU pragma: export
#include "data/token_cache.hpp"   // IWYU pragma: export
#include "data/tokenizer.hpp"     // IWYU pragma: export
