#include "train/said.hpp"

#include <cstdint>

namespace tessera::train {

std::string said_by(int rank, std::string words, const comm::Group& group) {
  auto size = static_cast<std::int64_t>(words.size());
  group.broadcast(&size, 1, comm::DataType::i64, rank).wait();
  words.resize(static_cast<std::size_t>(size));
  if (size > 0) group.broadcast(words.data(), words.size(), comm::DataType::u8, rank).wait();
  return words;
}

}  // namespace tessera::train
