#include "plan/warnings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/plan_helper.hpp"

namespace tessera::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Of a plan whose three replicas take shares of a micro-batch of 8.
std::vector<std::string> said(const std::string& model_section, std::vector<Share> shares) {
  const model::JobSpec job = model::read_job(
      ConfigNode::parse(text("model: ", model_section, "\ndata: {source: synthetic}\ntrain: {global_batch: 8}\n"), "train.yaml"));
  Plan plan;
  plan.ranks = {{0, 0, 0}, {0, 0, 1}, {0, 0, 2}};
  plan.stages = {{{0, 1, 2}, {{0, job.model.block_count(), {.dp = 3}}}, std::move(shares)}};
  return warnings_of(plan, job.model, cpu_cluster(4));
}

TEST(Warnings, NameUnequalSharesOfBatchNormByDevice) {
  const std::string resnet = "{arch: resnet18, image: 64, classes: 10", vgg = "{arch: vgg11, image: 32, classes: 10";
  EXPECT_THAT(said(resnet + "}", {{1, 4}, {2, 4}}), ElementsAre(AllOf(HasSubstr("replicas take 4 and 2 samples of a micro-batch"),
                                                                      HasSubstr("set model.batch_norm to synchronized"))));
  EXPECT_THAT(said(vgg + ", norm: true}", {{1, 5}, {1, 1}, {1, 2}}), ElementsAre(HasSubstr("5, 2 and 1 samples")));
  EXPECT_THAT(said(resnet + "}", {{1, 2}, {2, 4}}), IsEmpty());
  EXPECT_THAT(said(resnet + "}", {}), IsEmpty());
  EXPECT_THAT(said(resnet + ", batch_norm: synchronized}", {{1, 4}, {2, 4}}), IsEmpty());
  EXPECT_THAT(said(vgg + "}", {{1, 4}, {2, 4}}), IsEmpty());
}

}  // namespace
}  // namespace tessera::plan
