#include "observe/resume.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <array>

#include "base/expect_error.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::observe {
namespace {

using ::testing::HasSubstr;

std::string yaml_of(const std::string& arch, const std::string& data) {
  return "model: {arch: " + arch + ", hidden: 32, layers: 1, heads: 2, ffn: 64, seq: 32, vocab: 300}\ndata: {source: synthetic" + data +
         "}\ntrain: {global_batch: 2}\n";
}

std::vector<ConfigDifference> resumed(const std::filesystem::path& run, const std::string& yaml,
                                      const std::vector<std::string>& changed = {}) {
  const model::JobSpec job = model::read_job(ConfigNode::parse(yaml, "train.yaml"));
  return check_resumed(job, yaml, *data::open_dataset(job.data, job.model, job.train.seed), run, changed);
}

TEST(Resume, OtherMasksAreOtherData) {
  for (const auto& [arch, key, same, other] :
       std::vector<std::array<std::string, 4>>{{"bert", "data.mask.share", ", mask: {share: 0.15}", ", mask: {share: 0.3}"},
                                               {"t5", "data.mask.share", ", mask: {share: 0.15, span: 3}", ", mask: {share: 0.3}"},
                                               {"t5", "data.mask.span", ", mask: {span: 3}", ", mask: {span: 4}"}}) {
    const TemporaryFolder folder;
    const model::JobSpec job = model::read_job(folder.write("train.yaml", yaml_of(arch, "")));
    write_data_identity(folder.path(), data_identity(job, *data::open_dataset(job.data, job.model, job.train.seed)));
    EXPECT_TRUE(resumed(folder.path(), yaml_of(arch, "")).empty());
    EXPECT_TRUE(resumed(folder.path(), yaml_of(arch, same)).empty()) << same;
    const Error error = testing::error_of([&] { resumed(folder.path(), yaml_of(arch, other)); });
    EXPECT_THAT(error.what(), HasSubstr("the run would go on with other data than it was trained on: " + key)) << other;
    EXPECT_EQ(resumed(folder.path(), yaml_of(arch, other), {key}).size(), 1) << other;
  }
}

}  // namespace
}  // namespace tessera::observe
