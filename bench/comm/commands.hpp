// The loop that both C++ programs of the benchmark share. Commands come to each rank through a named pipe of its own, so
// that a program that is not being measured sleeps in a read.
#pragma once

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::bench {

struct Call {
  std::string operation;  // all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, message
  std::size_t bytes;      // of the whole buffer; message: of the message
  std::vector<float>& in;
  std::vector<float>& out;
};

// Lines "OPERATION BYTES ITERATIONS"; rank 0 answers "SECONDS" per call, averaged over back-to-back calls after some that do not count and
// a barrier.
inline void serve(int rank, const std::string& prefix, const std::function<void(const Call&)>& run, const std::function<void()>& barrier) {
  std::ifstream commands(prefix + "." + std::to_string(rank));
  std::ofstream answers;
  if (rank == 0) answers.open(prefix + ".out");
  std::vector<float> in;
  std::vector<float> out;
  for (std::string line; std::getline(commands, line);) {
    std::istringstream words(line);
    Call call{{}, 0, in, out};
    std::size_t iterations = 0;
    words >> call.operation >> call.bytes >> iterations;
    in.assign(call.bytes / sizeof(float) + 1, 0.0F);
    out.assign(call.bytes / sizeof(float) + 1, 0.0F);
    // A connection that has been idle starts slowly.
    for (std::size_t i = 0; i < 1 + iterations / 4; ++i) run(call);
    barrier();
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < iterations; ++i) run(call);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    barrier();
    if (rank == 0) answers << passed.count() / static_cast<double>(iterations) << std::endl;
  }
}

}  // namespace tessera::bench
