#include "profile/extent.hpp"

#include <gmock/gmock.h>

#include "base/expect_error.hpp"

namespace tessera::profile {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

Extent extent_in(const std::string& yaml) { return read_extent(ConfigNode::parse(yaml, "c.yaml")); }

TEST(Extent, ReadsBackExactlyWhatItWrites) {
  Extent extent;
  extent.add("parameters", 174594957312.0);
  extent.add("network", 100.0 / 3);
  extent.add("network", 400);
  extent.with = {"bf16", "a \"kind\": #1"};
  extent.assumed = {"network"};
  EXPECT_EQ(extent_in(to_yaml(extent)), extent);
  EXPECT_TRUE(extent_in(to_yaml(extent)).ranges.at("network").holds(100.0 / 3));
}

// A source that does not say its network leaves the range to those that do.
TEST(Extent, WhatIsStatedCountsBeforeWhatIsAssumed) {
  const Extent assumed = extent_in("{network: [50, 800], tensor: [2, 8], with: [recompute full], assumed: [network, recompute full]}");
  const Extent stated = extent_in("{network: [200, 400], tensor: [4, 16]}");
  Extent out = assumed;
  out.add(stated);
  EXPECT_EQ(out.ranges.at("network"), (Range{200, 400}));
  EXPECT_EQ(out.ranges.at("tensor"), (Range{2, 16}));
  EXPECT_EQ(out.assumed, std::set<std::string>{"recompute full"});
  Extent other = stated;
  other.add(assumed);
  EXPECT_EQ(other, out);
  Extent twice = assumed;
  twice.add(extent_in("{network: [40, 60], assumed: [network]}"));
  EXPECT_EQ(twice.ranges.at("network"), (Range{40, 800}));
  EXPECT_TRUE(twice.assumed.contains("network"));
}

TEST(Extent, KeepsWhatOneStepHadAtOnce) {
  Extent one;
  for (const char* name : {"devices", "tokens", "tensor", "ring", "chunks"}) one.add(name, 2);
  one.combine();
  EXPECT_EQ(one.together, (std::set<std::set<std::string>>{{"ring", "tensor"}}));
  Extent more;
  for (const char* name : {"tensor", "zero-1", "zb-h2"}) more.add(name, 2);
  more.combine();
  Extent all = one;
  all.add(more);
  EXPECT_TRUE(all.had_together({"tensor", "zb-h2"}));
  EXPECT_FALSE(all.had_together({"ring", "zb-h2"}));
  EXPECT_EQ(extent_in(to_yaml(all)), all);
  // A smaller set says nothing new.
  Extent less;
  for (const char* name : {"tensor", "zero-1"}) less.add(name, 2);
  less.combine();
  all.add(less);
  EXPECT_EQ(all.together.size(), 2u);
  less.add(all);
  EXPECT_EQ(less.together, all.together);
  EXPECT_THAT(error_of([] { extent_in("{tensor: [1, 8], together: [[tensor, ring]]}"); }).what(), HasSubstr("'ring' is no exchange"));
}

TEST(Extent, RefusesWhatIsNoRange) {
  for (const char* yaml : {"{tensor: [8, 1]}", "{tensor: [1]}", "{tensor: 8}", "{tensor: [-1, 8]}", "{tensor: [1, 1e30]}"}) {
    const Error error = error_of([&] { extent_in(yaml); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_config) << yaml;
    EXPECT_THAT(error.what(), HasSubstr("[least, most]")) << yaml;
  }
  EXPECT_THAT(error_of([] { extent_in("{tensors: [1, 8]}"); }).what(), HasSubstr("did you mean 'tensor'?"));
  EXPECT_THAT(error_of([] { extent_in("{tensor: [1, 8], assumed: [network]}"); }).what(), HasSubstr("neither a range nor in `with`"));
}

}  // namespace
}  // namespace tessera::profile
