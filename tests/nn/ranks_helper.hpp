// Ranks as processes of a test.
#pragma once

#include <functional>

#include "comm/comm.hpp"

namespace tessera::nn::test {

// Runs body(group) in `size` processes; their failed expectations and errors fail the test. No process outlives it.
void in_ranks(int size, const std::function<void(const comm::Group&)>& body);

}  // namespace tessera::nn::test
