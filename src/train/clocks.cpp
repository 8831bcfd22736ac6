#include "train/clocks.hpp"

#include <fstream>

#include "base/clock.hpp"
#include "base/hash.hpp"

namespace tessera::train {
namespace {

std::int64_t boot_of_host() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return static_cast<std::int64_t>(hash64(id) >> 1);
}

}  // namespace

bool on_several_hosts(comm::Communicator& comm) {
  std::int64_t least = boot_of_host();
  std::int64_t most = least;
  comm.world().all_reduce(&least, 1, comm::DataType::i64, comm::Reduction::min).wait();
  comm.world().all_reduce(&most, 1, comm::DataType::i64, comm::Reduction::max).wait();
  return least != most;
}

Seconds ahead(comm::Communicator& comm) {
  const std::int64_t own = boot_of_host();
  std::int64_t first = own;
  comm.world().broadcast(&first, 1, comm::DataType::i64, 0).wait();
  comm.world().barrier().wait();
  const double now = real_clock().now().value;
  double there = now;
  comm.world().broadcast(&there, 1, comm::DataType::f64, 0).wait();
  return own == first ? Seconds(0) : Seconds(there - now);
}

}  // namespace tessera::train
