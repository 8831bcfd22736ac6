// tessera_bench_comm PREFIX: rank and world from RANK and WORLD_SIZE, the meeting place from RENDEZVOUS. ONE_RING keeps groups off two
// levels; HOST names the host that the rank counts as.
#include <cstdlib>
#include <iostream>

#include "base/secret.hpp"
#include "comm/comm.hpp"
#include "commands.hpp"

namespace {

using namespace tessera;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value) throw Error(ErrorCode::invalid_config, text("the environment variable ", name, " is not set"));
  return value;
}

void run(const comm::Group& group, const bench::Call& call) {
  const std::size_t count = call.bytes / sizeof(float);
  const std::size_t share = count / static_cast<std::size_t>(group.size());
  constexpr auto kType = comm::DataType::f32;
  if (call.operation == "all_reduce") return group.all_reduce(call.in.data(), count, kType).wait();
  if (call.operation == "reduce_scatter") return group.reduce_scatter(call.in.data(), call.out.data(), share, kType).wait();
  if (call.operation == "all_gather") return group.all_gather(call.in.data(), call.out.data(), share, kType).wait();
  if (call.operation == "broadcast") return group.broadcast(call.in.data(), count, kType, 0).wait();
  if (call.operation == "all_to_all") return group.all_to_all(call.in.data(), call.out.data(), share, kType).wait();
  // There and back between ranks 0 and 1.
  if (group.rank() > 1) return;
  const std::span<float> data(call.in.data(), count);
  for (int turn = 0; turn < 2; ++turn) {
    if (group.rank() == turn) {
      group.send(std::as_bytes(data), 1 - turn, 0).wait();
    } else {
      group.receive(std::as_writable_bytes(data), turn, 0).wait();
    }
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  try {
    if (argument_count != 2) throw Error(ErrorCode::invalid_config, "usage: tessera_bench_comm PREFIX");
    comm::Options options;
    options.rank = std::stoi(variable("RANK"));
    options.world_size = std::stoi(variable("WORLD_SIZE"));
    options.rendezvous = variable("RENDEZVOUS");
    options.task = "bench";
    options.secret = secret_from_environment().value_or(std::string());
    options.two_levels = std::getenv("ONE_RING") == nullptr;
    if (const char* host = std::getenv("HOST")) options.host = host;
    const auto communicator = comm::Communicator::connect(options);
    const comm::Group world = communicator->world();
    bench::serve(
        options.rank, arguments[1], [&](const bench::Call& call) { run(world, call); }, [&] { world.barrier().wait(); });
    return 0;
  } catch (const Error& error) {
    std::cerr << "tessera_bench_comm: " << error.what() << "\n";
    return exit_code(error.code());
  }
}
