#include "profile/calibration.hpp"

#include <gmock/gmock.h>

#include "base/expect_error.hpp"

namespace tessera::profile {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

TEST(Calibration, EveryKnownOneIsWithinPhysicsAndSaysItsRows) {
  ASSERT_FALSE(known_calibrations().empty());
  for (const Calibration& calibration : known_calibrations()) {
    for (double share : {calibration.matmul, calibration.matmul_fp8, calibration.matmul_fp4, calibration.attention_share,
                         calibration.memory, calibration.inside, calibration.network}) {
      EXPECT_GT(share, 0.05) << calibration.name;
      EXPECT_LE(share, 1) << calibration.name;
    }
    EXPECT_FALSE(calibration.fitted_on.empty()) << calibration.name;
  }
}

TEST(Calibration, ReadsBackWhatItWrites) {
  for (const Calibration& calibration : known_calibrations()) {
    const std::string yaml = to_yaml(calibration);
    const Calibration back = read_calibration(ConfigNode::parse(yaml, "c.yaml"));
    EXPECT_EQ(to_yaml(back), yaml);
    EXPECT_EQ(back.attention, calibration.attention);
  }
}

TEST(Calibration, NamesTheNearestParameter) {
  const Error error =
      error_of([] { read_calibration(ConfigNode::parse("name: x\naccelerator: y\nstack: z\nparameters:\n  matmull: 0.5\n", "c.yaml")); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  EXPECT_THAT(error.what(), HasSubstr("did you mean 'matmul'?"));
  EXPECT_THAT(error.what(), HasSubstr("c.yaml:5"));
}

TEST(Calibration, RefusesParametersOutOfRange) {
  for (const auto& [value, expected] :
       {std::pair("-1", "a number from 0"), std::pair("-0.0", "a share of at least"), std::pair("1e-300", "a share of at least"),
        std::pair("1e300", "a number from 0"), std::pair(".inf", "expected a number"), std::pair(".nan", "expected a number")}) {
    const Error error = error_of([&] {
      read_calibration(ConfigNode::parse(text("name: x\naccelerator: y\nstack: z\nparameters: {memory: ", value, "}\n"), "c.yaml"));
    });
    EXPECT_THAT(error.what(), HasSubstr(expected)) << value;
  }
}

TEST(Calibration, IsFoundByFamilyAndStack) {
  EXPECT_EQ(calibration_for("a100-40", "megatron-2022").name, "a100/megatron-2022");
  EXPECT_EQ(calibration_for("gb200").name, "b200/megatron-bridge");
  EXPECT_EQ(calibration_for("h200").accelerator, "h100");
  EXPECT_EQ(calibration_for("p40").name, "");
}

TEST(Calibration, EveryParameterCanBeReached) {
  Calibration calibration;
  for (const std::string& name : parameter_names()) {
    double* value = parameter(calibration, name);
    ASSERT_NE(value, nullptr);
    *value = 0.125;
    EXPECT_THAT(to_yaml(calibration), HasSubstr(name + ": 0.125"));
  }
  EXPECT_EQ(parameter(calibration, "magic"), nullptr);
}

TEST(Calibration, NamesAreReadBackWhateverIsInThem) {
  Calibration calibration;
  calibration.name = "a \"quoted\" one: \\ # and so on";
  calibration.fitted_on = {"row \"1\""};
  const Calibration back = read_calibration(ConfigNode::parse(to_yaml(calibration), "calibration.yaml"));
  EXPECT_EQ(back.name, calibration.name);
  EXPECT_EQ(back.fitted_on, calibration.fitted_on);
}

}  // namespace
}  // namespace tessera::profile
