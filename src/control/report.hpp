// How a worker's error reaches its launcher, or who started it by hand.
#pragma once

#include <string>

#include "base/error.hpp"

namespace tessera::control {

// The environment variable by which a launcher says where a worker's error goes, as one JSON object and a newline.
inline constexpr const char* kErrorDescriptor = "TESSERA_ERROR_FD";

// From now on an error of this process, or of the program that it becomes, goes to this descriptor as a JSON object and a newline.
void report_errors_to(int descriptor);

// Called by a worker that fails: hands the error to the launcher, or prints it when there is none.
void report_error(const Error& error);

// What report_error writes, and where to.
std::string text_of_report(const Error& error);
int descriptor_of_reports();

}  // namespace tessera::control
