// Internal. Messages of a rank to itself, matched in memory. Thread-safe.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/operation.hpp"

namespace tessera::comm {

class SelfMessages {
 public:
  // The partner of this send or receive, if it was here already; otherwise keeps the operation.
  OperationPointer match(const OperationPointer& operation);
  // One that is still unmatched, forgotten here; none when there is none.
  OperationPointer take_one();

 private:
  std::mutex mutex_;  // guards waiting_
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::deque<OperationPointer>> waiting_;
};

}  // namespace tessera::comm
