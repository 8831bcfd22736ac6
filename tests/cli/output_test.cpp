// Where the standard output takes nothing, and what options that are no numbers are answered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

CommandResult into_full_disk(const std::string& arguments, const CommandOptions& options = {}) {
  return run_command({"sh", "-c", "exec '" + tessera_path() + "' " + arguments + " > /dev/full"}, options);
}

TEST(Output, ThatIsLostIsAnError) {
  const TemporaryFolder folder;
  folder.write("text.txt", "to be or not to be\n");
  folder.write("job.yaml",
               "model: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 512}\n"
               "data: {source: synthetic}\ntrain: {global_batch: 8}\n");
  std::string words;
  for (int i = 0; i < 400; ++i) words += text("word ", i * i, " and ", i, "\n");
  folder.write("words.txt", words);
  folder.write("text.yaml",
               "model: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 300}\n"
               "data: {source: words.txt, tokenizer: {kind: bpe, vocab: 300}}\ntrain: {global_batch: 8, steps: 2}\n");
  folder.write("runs/one/train.yaml", "name: one\nmodel: {arch: llama}\n");
  folder.write("runs/two/train.yaml", "name: two\nmodel: {arch: llama}\n");
  for (const char* arguments : {"--help",
                                "--version",
                                "plan --help",
                                "completion bash",
                                "cluster list",
                                "cluster list --json",
                                "runs --folder .",
                                "runs --folder . --json",
                                "runs show one",
                                "runs show one --json",
                                "runs compare one two",
                                "runs rename one three",
                                "runs delete two --yes",
                                "runs delete three --yes --json",
                                "init --yes --source text.txt",
                                "plan job.yaml",
                                "plan job.yaml --json",
                                "data inspect text.txt",
                                "data tokenizer words.txt --vocab 300",
                                "data pack text.yaml",
                                "data split text.yaml",
                                "data split text.yaml --json",
                                "data batch text.yaml",
                                "data encode tokenizer.json < text.txt"}) {
    const CommandResult result = into_full_disk(arguments, {folder.path(), {}});
    EXPECT_EQ(result.exit_code, 4) << arguments;
    EXPECT_THAT(result.err, HasSubstr("error: cannot write to the standard output: ")) << arguments;
  }
}

TEST(Output, AnErrorThatDoesNotFitThereIsSaidOnStderr) {
  const CommandResult result = into_full_disk("doctr --json");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean `doctor`?"));
}

TEST(Numbers, ThatAreNoneAreAnsweredWithWhatWasExpected) {
  struct Case {
    std::vector<std::string> arguments;
    std::string said;
  };
  for (const Case& one : std::vector<Case>{
           {{"plan", "job.yaml", "--top", "-1"}, "--top: found '-1', expected a whole number from 0 to 1000"},
           {{"plan", "job.yaml", "--seconds", "nan"}, "--seconds: found 'nan', expected a number above 0"},
           {{"plan", "job.yaml", "--seconds", "1e400"}, "--seconds: found '1e400', expected a number above 0"},
           {{"verify", "job.yaml", "--steps", "many"}, "--steps: found 'many', expected a whole number from 1"},
           {{"verify", "job.yaml", "--tolerance", "nan"}, "--tolerance: found 'nan', expected a number above 0"},
           {{"generate", "run", "--max-tokens", "1.5"}, "--max-tokens: found '1.5', expected a whole number, at least 0"},
           {{"generate", "run", "--temperature", "nan"}, "--temperature: found 'nan', expected a number, at least 0"},
           {{"generate", "run", "--temperature", "inf"}, "--temperature: found 'inf', expected a number, at least 0"},
           {{"generate", "run", "--top-p", "-1e300"}, "--top-p: found '-1e300', expected a number from 0 to 1"},
           {{"eval", "run", "--sequences", "99999999999999999999"}, "--sequences: found '99999999999999999999', expected a whole number"},
           {{"worker", "job.yaml", "--plan", "plan.json", "--rank", "1.5"}, "--rank: found '1.5', expected a whole number, at least 0"},
           {{"worker", "job.yaml", "--plan", "plan.json", "--world", "0"}, "--world: found '0', expected a whole number, at least 1"},
           {{"data", "tokenizer", "text.txt", "--vocab", "1e9"}, "--vocab: found '1e9', expected a whole number from 1 to"},
           {{"data", "inspect", "text.txt", "--samples", "-1"}, "--samples: found '-1', expected a whole number, at least 0"},
           {{"calibrate", "rows.csv", "--rows", "1,two"}, "--rows: found 'two', expected a whole number, at least 1"},
           {{"init", "--vocab", "1"}, "--vocab: found '1', expected a whole number from 257 to 1048576"}}) {
    const CommandResult spoken = run_tessera(one.arguments);
    EXPECT_EQ(spoken.exit_code, 2);
    EXPECT_THAT(spoken.err, HasSubstr(one.said));
    EXPECT_LT(spoken.err.size(), 200U) << spoken.err;
    if (one.arguments.front() == "worker") continue;  // it has no --json
    std::vector<std::string> written = one.arguments;
    written.emplace_back("--json");
    EXPECT_THAT(nlohmann::json::parse(run_tessera(written).out).at("error").at("message").get<std::string>(), HasSubstr(one.said));
  }
}

}  // namespace
}  // namespace tessera::cli
