#include "search/least_work.hpp"

#include <gtest/gtest.h>

#include "plan/plan_helper.hpp"

namespace tessera::search {
namespace {

// The bound by which outer choices are looked at in turn, and left out before anything is priced.
TEST(LeastWork, IsNoMoreThanThePriceOfAnyPlan) {
  const cluster::ClusterSpec cluster = plan::gpu_cluster(2, 8, "a100-40");
  for (const char* model : {"llama-2-7b", "mixtral-8x7b", "gpt3-6.7b", "t5-large", "resnet50", "deepfm-criteo"})
    for (const bool pipelines : {false, true}) {
      const model::JobSpec job = plan::preset_job(model, 64);
      BlockProblem problem{.model = job.model, .cluster = cluster, .global_batch = 64, .tolerance = 1e-3, .effort = 100'000, .top = 30};
      if (!pipelines) problem.space.most_stages = 1;
      cost::CostModel cost_model(job.model, cluster, problem.precision);
      const LeastWork work(problem, cost_model);
      const BlockAnswer answer = search(problem);
      for (const plan::Plan& plan : answer.plans) {
        const cost::WarmUp fill = cost::warm_up_of(plan.schedule, 1, cost_model.weight_pass_bubble(0));
        const double least = work.step(0, plan.stages.front().width(), static_cast<int>(plan.stages.size()), plan.micro_batches, fill);
        EXPECT_LE(least, plan.predicted->step.value) << model;
      }
    }
}

}  // namespace
}  // namespace tessera::search
