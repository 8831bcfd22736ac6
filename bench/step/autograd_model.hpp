// The model of peer.py, operator for operator, as a user writes it for the autograd adapter.
#pragma once

#include "model/model.hpp"

namespace tessera::bench {

struct LlamaShape {
  std::int64_t layers, hidden, heads, kv_heads, ffn, vocab, seq;
};

// Registers its kinds of blocks: call it once.
model::ModelSpec autograd_model(const LlamaShape& shape);

}  // namespace tessera::bench
