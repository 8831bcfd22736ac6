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

std::vector<OperationPointer> SelfMessages::take_all() {
  const std::lock_guard lock(mutex_);
  std::vector<OperationPointer> all;
  for (auto& [key, queue] : waiting_) all.insert(all.end(), queue.begin(), queue.end());
  waiting_.clear();
  return all;
}

std::vector<OperationPointer> SelfMessages::list() {
  const std::lock_guard lock(mutex_);
  std::vector<OperationPointer> all;
  for (auto& [key, queue] : waiting_) all.insert(all.end(), queue.begin(), queue.end());
  return all;
}

}  // namespace tessera::comm
