#include "checkpoint/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "checkpoint/checkpoint_helper.hpp"

namespace tessera::checkpoint {
namespace {

std::string file_of(const std::string& json, std::size_t data_bytes) {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  return length + json + std::string(data_bytes, 'x');
}

SafetensorsHeader read(const std::string& file) { return read_safetensors_header(std::as_bytes(std::span(file)), "weights.safetensors"); }

std::string complaint(const std::string& file) {
  try {
    read(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_THAT(error.what(), testing::HasSubstr("weights.safetensors"));
    return error.what();
  }
  return {};
}

TEST(Safetensors, RefusesWhatDoesNotFollowTheFormat) {
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return "{\"w\":{\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  EXPECT_EQ(complaint(file_of(entry("[2,2]", "[0,16]"), 16)), "");
  EXPECT_EQ(complaint(file_of("{}", 0)), "");
  EXPECT_THAT(complaint(""), testing::HasSubstr("0 bytes"));
  EXPECT_THAT(complaint(std::string(8, '\xff')), testing::HasSubstr("does not fit"));
  EXPECT_THAT(complaint(file_of("{", 0)), testing::HasSubstr("parse error"));
  EXPECT_THAT(complaint(file_of("[]", 0)), testing::HasSubstr("not a map"));
  EXPECT_THAT(complaint(file_of(entry("[2,2]", "[0,12]"), 12)), testing::HasSubstr("does not fit its shape"));
  EXPECT_THAT(complaint(file_of(entry("[-2,2]", "[0,16]"), 16)), testing::HasSubstr("does not fit its shape"));
  EXPECT_THAT(complaint(file_of(entry("[4611686018427387904,4]", "[0,0]"), 0)), testing::HasSubstr("does not fit its shape"));
  EXPECT_THAT(complaint(file_of(entry("[0,4611686018427387904,4]", "[0,0]"), 0)), testing::HasSubstr("does not fit its shape"));
  EXPECT_THAT(complaint(file_of(entry("[2,2.5]", "[0,16]"), 16)), testing::HasSubstr("2.5 in place of a whole number"));
  EXPECT_THAT(complaint(file_of(entry("[2,2]", "[0,18446744073709551632]"), 16)), testing::HasSubstr("in place of a whole number"));
  EXPECT_THAT(complaint(file_of(entry("[2,2]", "[4,20]"), 20)), testing::HasSubstr("does not begin"));
  EXPECT_THAT(complaint(file_of(entry("[2,2]", "[0,16]"), 15)), testing::HasSubstr("15 bytes of data"));
  EXPECT_THAT(complaint(file_of(entry("[2,2]", "[0,16]"), 17)), testing::HasSubstr("17 bytes of data"));
  EXPECT_THAT(complaint(file_of(entry("[2,2]", "[0]"), 16)), testing::HasSubstr("begin and end"));
  const auto fp8 = [](const std::string& shape, const std::string& offsets) {
    return "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  EXPECT_EQ(complaint(file_of(fp8("[3,5]", "[0,15]"), 15)), "");
  EXPECT_THAT(complaint(file_of(fp8("[3,5]", "[0,30]"), 30)), testing::HasSubstr("does not fit its shape"));
  EXPECT_THAT(complaint(file_of(fp8("[3,5]", "[0,15]"), 14)), testing::HasSubstr("14 bytes of data"));
  EXPECT_THAT(complaint(file_of(fp8("[4611686018427387904,4]", "[0,0]"), 0)), testing::HasSubstr("does not fit its shape"));
  EXPECT_THAT(complaint(file_of("{\"w\":{\"dtype\":\"I4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1)), testing::HasSubstr("'I4'"));
  EXPECT_THAT(complaint(file_of("{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1)), testing::HasSubstr("dtype"));
}

TEST(Safetensors, AFileOfOneRankIsReadByTheReferencePackage) {
  if (!has_python()) GTEST_SKIP() << "SKIPPED: no .venv/bin/python";
  const TemporaryFolder folder;
  save(folder.path(), 1, make_tensors(1));
  // Bit for bit: as hexadecimal digits of the bytes.
  std::string expected;
  for (const auto& [name, tensor] : make_tensors(1)) {
    const at::Tensor flat = tensor.contiguous();
    const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
    expected += text(name, " ", tensor.sizes(), " ");
    for (std::size_t i = 0; i < flat.nbytes(); ++i) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
      expected += digits;
    }
    expected += "\n";
  }
  const std::string file = (folder.path() / "step-000001/rank-00000.safetensors").string();
  EXPECT_EQ(python("import torch\nfrom safetensors.torch import load_file\nfor name, t in sorted(load_file('" + file +
                   "').items()):\n  print(name, list(t.shape), t.flatten().view(torch.uint8).numpy().tobytes().hex())\n"),
            expected);
}

}  // namespace
}  // namespace tessera::checkpoint
