#include "control/host_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/expect_error.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::control {
namespace {

using tessera::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Error refusal(const std::string& content) {
  return error_of([&] { parse_hosts(content, "hosts"); });
}

TEST(HostFile, ReadsHostsInTheirOrder) {
  const auto hosts = parse_hosts(
      "# the lab\n"
      "node-1 slots=2\n"
      "\n"
      "  alice@node-2.lab\tslots=16 address=10.0.0.2   # by hand\n"
      "[fe80::1%eth0] address=fe80::1\r\n"
      "10.0.0.4",
      "hosts");
  EXPECT_THAT(hosts, ElementsAre(Host{"node-1", 2, {}}, Host{"alice@node-2.lab", 16, "10.0.0.2"}, Host{"[fe80::1%eth0]", {}, "fe80::1"},
                                 Host{"10.0.0.4", {}, {}}));
  EXPECT_EQ(hosts[1].where.line, 4);
  EXPECT_EQ(hosts[1].where.file, "hosts");
  EXPECT_EQ(parse_hosts(to_text(hosts), "again"), hosts);
}

TEST(HostFile, SaysAllThatIsWrongWithItsLine) {
  const Error error = refusal("node-1 slot=2\nnode-2 slots=many\nnode-3 slots=0\nnode-4 slots=1 slots=2\nnode-5 address\n");
  std::vector<std::string> said;
  for (const Error& one : error.each()) said.push_back(one.what());
  EXPECT_THAT(said, ElementsAre(HasSubstr("hosts:1: 'slot=2' behind the host's name; expected HOST [slots=N] [address=ADDRESS]"),
                                HasSubstr("hosts:2: slots=many; expected slots=N, the ranks that the host may run at most: 1 to 4096"),
                                HasSubstr("hosts:3: slots=0"), HasSubstr("hosts:4: slots= stands twice"),
                                HasSubstr("hosts:5: 'address' has no value")));
  EXPECT_THAT(said[0], HasSubstr("did you mean slots=...?"));
}

// ssh would take such a name for an option, and run what it names.
TEST(HostFile, TakesNoOptionForAHost) {
  for (const std::string name : {"-oProxyCommand=evil", "alice@-oProxyCommand=evil", "a;b", "$(evil)", "@node", "node@", "a@b@c"})
    EXPECT_THAT(refusal(name + "\n").message(), HasSubstr("is no name of a host")) << name;
  EXPECT_THAT(refusal("node address=-x\n").message(), HasSubstr("address=-x"));
}

TEST(HostFile, ListsAHostOnce) {
  EXPECT_THAT(refusal("a\nb\na slots=2\n").what(), HasSubstr("hosts:3: 'a' is in line 1 already; expected each host once"));
}

TEST(HostFile, ListsAtLeastOneHost) {
  EXPECT_THAT(refusal("# none\n\n").what(), HasSubstr("hosts: no host is listed; expected HOST"));
  const TemporaryFolder folder;
  EXPECT_EQ(error_of([&] { read_host_file(folder.path() / "absent"); }).code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace tessera::control
