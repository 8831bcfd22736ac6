// How long work reports how far it is.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "base/clock.hpp"

namespace tessera::data {

struct Progress {
  std::string stage;    // "reading", "training the tokenizer", "tokenizing", "waiting for another process"
  double fraction = 0;  // of this stage, 0 to 1
};

// Called from the thread that does the work, ten times a second at most; may throw to stop the work.
using ProgressCallback = std::function<void(const Progress&)>;

// Calls a callback, if there is one, not too often. For one thread; keeps a reference.
class ProgressMeter {
 public:
  ProgressMeter(const ProgressCallback& callback, std::string stage) : callback_(callback), stage_(std::move(stage)) {}
  void update(double done, double total) {
    if (!callback_) return;
    const Seconds now = real_clock().now();
    if (now < next_) return;
    next_ = now + Seconds(0.1);
    callback_({stage_, total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0.0});
  }
  // The stage is over.
  void finish() {
    if (callback_) callback_({stage_, 1.0});
  }

 private:
  const ProgressCallback& callback_;
  std::string stage_;
  Seconds next_{};
};

}  // namespace tessera::data
