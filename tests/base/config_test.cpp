#include "base/config.hpp"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "base/expect_error.hpp"
#include "base/temporary_folder.hpp"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

constexpr const char* kText =
    "model:\n"
    "  hidden: 512\n"
    "  tied: true\n"
    "train:\n"
    "  lr: 3.0e-4\n"
    "  betas: [0.9, 0.95]\n"
    "memory: 512 MiB\n";

ConfigNode sample() { return ConfigNode::parse(kText, "train.yaml"); }

TEST(Config, ReadsValuesOfEachType) {
  const ConfigNode root = sample();
  EXPECT_EQ(root.at("model").at("hidden").as_int(), 512);
  EXPECT_TRUE(root.at("model").at("tied").as_bool());
  EXPECT_DOUBLE_EQ(root.at("train").at("lr").as_double(), 3e-4);
  EXPECT_EQ(root.at("train").at("betas").size(), 2u);
  EXPECT_DOUBLE_EQ(root.at("train").at("betas")[1].as_double(), 0.95);
  EXPECT_EQ(root.at("memory").as_bytes(), 512 << 20);
  EXPECT_THAT(root.keys(), ElementsAre("model", "train", "memory"));
  EXPECT_EQ(root.at("train").at("lr").path(), "train.lr");
  EXPECT_EQ(root.at("train").at("betas")[1].path(), "train.betas[1]");
}

TEST(Config, KnowsTheLineAndColumnOfEachValue) {
  const Where where = sample().at("train").at("betas")[1].where();
  EXPECT_EQ(where.file, "train.yaml");
  EXPECT_EQ(where.line, 6);
  EXPECT_EQ(where.column, 16);
}

TEST(Config, NamesLineAndNearestKeyOfATypo) {
  const Error error = error_of([] { ConfigNode::parse("a: 1\nhiden: 512\n", "train.yaml").allow_only({"a", "hidden", "layers"}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  EXPECT_STREQ(error.what(), "train.yaml:2:1: unknown key 'hiden'; expected one of: a, hidden, layers\n  did you mean 'hidden'?");
}

TEST(Config, NamesAllUnknownKeysAtOnce) {
  const Error error = error_of([] {
    ConfigNode::parse("hiden: 1\nlayers: 2\nwombat: 3\nlayers: 4\n", "f").allow_only({"hidden", "layers"});
  });
  ASSERT_EQ(error.each().size(), 3U) << error.what();
  EXPECT_STREQ(error.each()[0].what(), "f:1:1: unknown key 'hiden'; expected one of: hidden, layers\n  did you mean 'hidden'?");
  EXPECT_STREQ(error.each()[1].what(), "f:3:1: unknown key 'wombat'; expected one of: hidden, layers");
  EXPECT_STREQ(error.each()[2].what(), "f:4:1: the key 'layers' stands twice");
}

TEST(Config, GuessesNoKeyThatIsFarAway) {
  const Error error = error_of([] { ConfigNode::parse("wombat: 1\n", "f").allow_only({"hidden", "layers"}); });
  EXPECT_TRUE(error.hint().empty()) << error.hint();
}

TEST(Config, RefusesAKeyThatStandsTwice) {
  const Error error = error_of([] { ConfigNode::parse("a: 1\nb: 2\na: 3\n", "f").allow_only({"a", "b"}); });
  EXPECT_THAT(error.what(), HasSubstr("f:3:1: the key 'a' stands twice"));
}

TEST(Config, SaysWhatAWrongTypeShouldHaveBeen) {
  const ConfigNode root = ConfigNode::parse("n: many\nf: 1.5\nb: yes\ns: [1]\nm: 3 apples\nx: .inf\n", "f");
  EXPECT_STREQ(error_of([&] { root.at("n").as_int(); }).what(), "f:1:4: n: found 'many'; expected a whole number");
  EXPECT_STREQ(error_of([&] { root.at("f").as_int(); }).what(), "f:2:4: f: found '1.5'; expected a whole number");
  EXPECT_STREQ(error_of([&] { root.at("n").as_double(); }).what(), "f:1:4: n: found 'many'; expected a number");
  EXPECT_THAT(error_of([&] { root.at("x").as_double(); }).what(), HasSubstr("expected a number"));
  EXPECT_STREQ(error_of([&] { root.at("b").as_bool(); }).what(), "f:3:4: b: found 'yes'; expected true or false");
  EXPECT_STREQ(error_of([&] { root.at("s").as_string(); }).what(), "f:4:4: s: found a list; expected a text");
  EXPECT_THAT(error_of([&] { root.at("m").as_bytes(); }).what(), HasSubstr("expected a size such as 512 MiB"));
  EXPECT_THAT(error_of([&] { root.at("n").size(); }).what(), HasSubstr("expected a list"));
  EXPECT_THAT(error_of([&] { root.at("n").find("k"); }).what(), HasSubstr("expected a map"));
  EXPECT_THAT(error_of([&] { root.at("s")[1]; }).what(), HasSubstr("has 1 entries; entry 1 was asked for"));
  EXPECT_THAT(error_of([&] { root.at("absent"); }).what(), HasSubstr("the key 'absent' is missing"));
}

TEST(Config, RefusesNumbersThatDoNotFit) {
  const ConfigNode root = ConfigNode::parse("n: 99999999999999999999\nb: 99999999999 TiB\nneg: -1\n", "f");
  EXPECT_THAT(error_of([&] { root.at("n").as_int(); }).what(), HasSubstr("expected a whole number"));
  EXPECT_THAT(error_of([&] { root.at("b").as_bytes(); }).what(), HasSubstr("expected a size"));
  EXPECT_THAT(error_of([&] { root.at("neg").as_bytes(); }).what(), HasSubstr("expected a size"));
  EXPECT_STREQ(error_of([&] { root.at("neg").as_int_at_least(0); }).what(), "f:3:6: neg: found -1; expected a whole number of at least 0");
}

TEST(Config, ReadsSizesInEachUnit) {
  const auto bytes = [](const std::string& size) { return ConfigNode::parse("s: " + size, "f").at("s").as_bytes(); };
  EXPECT_EQ(bytes("1024"), 1024);
  EXPECT_EQ(bytes("16GB"), 16'000'000'000);
  EXPECT_EQ(bytes("1.5 GiB"), 3LL << 29);
  EXPECT_EQ(bytes("2 TiB"), 2LL << 40);
  EXPECT_EQ(bytes("3 kB"), 3000);
}

TEST(Config, NamesTheNearestChoice) {
  const Error error = error_of([] { ConfigNode::parse("kind: cosin\n", "f").at("kind").as_choice({"cosine", "linear"}); });
  EXPECT_STREQ(error.what(), "f:1:7: kind: found 'cosin'; expected one of: cosine, linear\n  did you mean 'cosine'?");
}

TEST(Config, SaysWhereTheSyntaxBreaks) {
  const Error error = error_of([] { ConfigNode::parse("a: 1\nb: [1, 2\n", "broken.yaml"); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  EXPECT_THAT(error.what(), HasSubstr("broken.yaml:"));
  EXPECT_THAT(error.what(), HasSubstr("not valid YAML"));
  EXPECT_GE(error.where().line, 2);
}

TEST(Config, SurvivesDeepNesting) {
  EXPECT_EQ(error_of([] { ConfigNode::parse(std::string(100'000, '['), "deep"); }).code(), ErrorCode::invalid_config);
}

TEST(Config, ReportsAFileThatIsNotThere) {
  const TemporaryFolder folder;
  const Error error = error_of([&] { ConfigNode::load(folder / "absent.yaml"); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.what(), HasSubstr("absent.yaml"));
}

TEST(Config, TreatsAnEmptyDocumentAsAnEmptyMap) {
  const ConfigNode root = ConfigNode::parse("", "empty.yaml");
  EXPECT_FALSE(root.has("a"));
  EXPECT_EQ(root.get("a", std::int64_t{7}), 7);
  EXPECT_TRUE(root.keys().empty());
  EXPECT_EQ(root.with_override("a.b", "3").at("a").at("b").as_int(), 3);
}

TEST(Config, OverridesLeaveTheOriginalAndAllLinesAlone) {
  const ConfigNode root = sample();
  const ConfigNode changed = root.with_override("train.lr", "1").with_override("model.layers", "4");
  EXPECT_DOUBLE_EQ(root.at("train").at("lr").as_double(), 3e-4);
  EXPECT_FALSE(root.at("model").has("layers"));
  EXPECT_DOUBLE_EQ(changed.at("train").at("lr").as_double(), 1);
  EXPECT_EQ(changed.at("model").at("layers").as_int(), 4);
  EXPECT_EQ(changed.at("train").at("betas").where().line, 6);
  EXPECT_EQ(changed.file(), "train.yaml");
}

TEST(Config, NamesTheOverrideThatIsWrong) {
  const ConfigNode changed = sample().with_override("train.lr", "fast").with_override("model.hiden", "4");
  EXPECT_STREQ(error_of([&] { changed.at("train").at("lr").as_double(); }).what(),
               "--set train.lr=fast: train.lr: found 'fast'; expected a number");
  const Error typo = error_of([&] { changed.at("model").allow_only({"hidden", "tied"}); });
  EXPECT_STREQ(typo.what(), "--set model.hiden=4: model: unknown key 'hiden'; expected one of: hidden, tied\n  did you mean 'hidden'?");
  EXPECT_THAT(error_of([&] { sample().with_override("a..b", "1"); }).what(), HasSubstr("empty key"));
  EXPECT_THAT(error_of([&] { sample().with_override("a", "[1"); }).what(), HasSubstr("--set a=[1"));
}

TEST(Config, AnOverriddenScalarBecomesAMap) {
  const ConfigNode root = ConfigNode::parse("parallel: auto\n", "f").with_override("parallel.dp", "2");
  EXPECT_EQ(root.at("parallel").at("dp").as_int(), 2);
}

TEST(Config, AnOverrideMayBeAList) { EXPECT_EQ(sample().with_override("train.betas", "[1, 2, 3]").at("train").at("betas").size(), 3u); }

TEST(Config, AnOverrideNamesAnEntryOfAListByIndexOrByName) {
  const ConfigNode root = ConfigNode::parse("groups: [{name: cpu, nodes: 1}, {name: gpu, nodes: 2}]\n", "f");
  EXPECT_EQ(root.with_override("groups.1.nodes", "4").at("groups")[1].at("nodes").as_int(), 4);
  const ConfigNode named = root.with_override("groups.cpu.nodes", "many");
  EXPECT_EQ(named.at("groups")[1].at("nodes").as_int(), 2);
  EXPECT_STREQ(error_of([&] { named.at("groups")[0].at("nodes").as_int(); }).what(),
               "--set groups.cpu.nodes=many: groups[0].nodes: found 'many'; expected a whole number");
  EXPECT_THAT(error_of([&] { root.with_override("groups.gpus.nodes", "1"); }).what(), HasSubstr("did you mean 'gpu'?"));
}

TEST(Config, WritesJsonWithTypes) {
  EXPECT_EQ(ConfigNode::parse("a: 1\nb: 'x'\nc: [true, 2.5, null]\nd: '7'\n", "f").to_json(),
            R"({"a":1,"b":"x","c":[true,2.5,null],"d":"7"})");
}

TEST(Config, ReadsJson) {
  const ConfigNode root = ConfigNode::parse("{\"a\": {\"b\": [1, 2]}}", "f.json");
  EXPECT_EQ(root.at("a").at("b")[1].as_int(), 2);
}

TEST(Config, WrittenYamlReadsBackTheSame) {
  EXPECT_TRUE(rc::check("maps of numbers and texts", [](const std::map<std::string, std::int64_t>& numbers) {
    ConfigNode root = ConfigNode::parse("{}", "f");
    int index = 0;
    for (const auto& [key, value] : numbers) root = root.with_override("section.key" + std::to_string(index++), std::to_string(value));
    const ConfigNode back = ConfigNode::parse(root.to_yaml(), "g");
    RC_ASSERT(back.to_json() == root.to_json());
    index = 0;
    for (const auto& [key, value] : numbers) RC_ASSERT(back.at("section").at("key" + std::to_string(index++)).as_int() == value);
  }));
}

TEST(Config, AnyTextIsReadOrRefusedWithAnError) {
  EXPECT_TRUE(rc::check("no text gets through to another exception", [](const std::string& content) {
    try {
      const ConfigNode root = ConfigNode::parse(content, "f");
      root.to_json();
    } catch (const Error& error) {
      RC_ASSERT(error.code() == ErrorCode::invalid_config);
    }
  }));
}

TEST(Nearest, FindsLikelyTyposOnly) {
  const std::vector<std::string> words = {"steps", "seed", "schedule"};
  EXPECT_EQ(nearest("stesp", words), "steps");
  EXPECT_EQ(nearest("shedule", words), "schedule");
  EXPECT_EQ(nearest("steps", words), "steps");
  EXPECT_EQ(nearest("zzzzzzzz", words), std::nullopt);
  EXPECT_EQ(nearest("x", {}), std::nullopt);
}

}  // namespace
}  // namespace tessera
