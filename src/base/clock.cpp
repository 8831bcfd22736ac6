#include "base/clock.hpp"

#include <thread>

namespace tessera {
namespace {

class RealClock final : public Clock {
 public:
  Seconds now() const override {
    return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
  }
  void sleep(Seconds duration) override { std::this_thread::sleep_for(std::chrono::duration<double>(duration.value)); }
};

}  // namespace

Clock& real_clock() {
  static RealClock clock;
  return clock;
}

}  // namespace tessera
