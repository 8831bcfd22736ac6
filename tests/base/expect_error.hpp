// What an action throws, so that a test can look at each part of the error.
#pragma once

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace tessera::testing {

template <typename Action>
Error error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::internal, "nothing was thrown"};
}

}  // namespace tessera::testing
