#pragma once

#include <gtest/gtest.h>
#include <functional>
#include <string>

#include "base/error.hpp"

namespace tessera::data {

// What a refusal of a configuration says.
inline std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_config);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace tessera::data
