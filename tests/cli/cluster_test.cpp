// tessera cluster
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/command_helper.hpp"
#include "cluster/cluster.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

TEST(ClusterCommand, DiscoverWritesAFileThatDescribesThisHost) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "cluster.yaml";
  const CommandResult result = run_tessera({"cluster", "discover", "-o", path.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("cluster: " + path.string()));
  EXPECT_EQ(cluster::load_cluster(path).fingerprint(), cluster::discover_host().fingerprint());
}

TEST(ClusterCommand, DiscoverPrintsTheSameAsYamlAndAsJson) {
  const CommandResult yaml = run_tessera({"cluster", "discover"});
  const CommandResult json = run_tessera({"cluster", "discover", "--json"});
  ASSERT_EQ(yaml.exit_code, 0) << yaml.err;
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const auto found = cluster::read_cluster(ConfigNode::parse(yaml.out, "stdout"));
  const auto object = nlohmann::json::parse(json.out);
  EXPECT_EQ(object.at("fingerprint"), found.fingerprint());
  EXPECT_EQ(object.at("groups").at(0).at("device").at("cores"), found.groups.at(0).device.cores);
}

TEST(ClusterCommand, DiscoverNamesWhatIsNoFolder) {
  const TemporaryFolder folder;
  folder.write("file", "");
  const CommandResult result = run_tessera({"cluster", "discover", "-o", (folder.path() / "file" / "c.yaml").string()});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("file"));
}

TEST(ClusterCommand, ListNamesEachKnownDeviceAndLink) {
  const CommandResult table = run_tessera({"cluster", "list"});
  const CommandResult json = run_tessera({"cluster", "list", "--json"});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const auto object = nlohmann::json::parse(json.out);
  EXPECT_EQ(object.at("devices").size(), cluster::known_devices().size());
  EXPECT_EQ(object.at("links").size(), cluster::known_links().size());
  for (const cluster::Device& device : cluster::known_devices()) EXPECT_THAT(table.out, HasSubstr("\n" + device.name + " "));
  for (const cluster::Link& link : cluster::known_links()) EXPECT_THAT(table.out, HasSubstr("\n" + link.name + " "));
}

TEST(ClusterCommand, NeedsToBeToldWhat) {
  const CommandResult result = run_tessera({"cluster"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("tessera cluster --help"));
}

}  // namespace
}  // namespace tessera::cli
