// Internal: TensorBoard's event files: records of tensorflow.Event in TFRecord framing (length, masked crc32c, data, masked
// crc32c), encoded by hand, as four fields are all that is needed.
// https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/line_file.hpp"

namespace tessera::observe {

// CRC-32C (Castagnoli), as in RFC 3720.
std::uint32_t crc32c(std::string_view data);

class TensorBoardWriter {
 public:
  // A new event file in `folder`, which is made. TensorBoard drops what earlier files say of steps from `next_step` on.
  TensorBoardWriter(const std::filesystem::path& folder, std::int64_t next_step);
  void scalars(std::int64_t step, const std::vector<std::pair<std::string_view, double>>& values);

 private:
  void record(const std::string& event);
  LineFile file_;
};

}  // namespace tessera::observe
