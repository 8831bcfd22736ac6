#include "comm/self_messages.hpp"

namespace tessera::comm {

OperationPointer SelfMessages::match(const OperationPointer& operation) {
  const std::lock_guard lock(mutex_);
  auto& queue = waiting_[{operation->group->key, operation->tag}];
  if (queue.empty() || queue.front()->kind == operation->kind) {
    queue.push_back(operation);
    return nullptr;
  }
  OperationPointer partner = queue.front();
  queue.pop_front();
  if (queue.empty()) waiting_.erase({operation->group->key, operation->tag});
  return partner;
}

OperationPointer SelfMessages::take_one() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return nullptr;
  const auto first = waiting_.begin();
  OperationPointer operation = std::move(first->second.front());
  first->second.pop_front();
  if (first->second.empty()) waiting_.erase(first);
  return operation;
}

}  // namespace tessera::comm
