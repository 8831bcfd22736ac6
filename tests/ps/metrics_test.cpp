// What Prometheus is told of servers.
#include "ps/metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "ps/messages.hpp"

namespace tessera::ps {
namespace {

using testing::HasSubstr;
using testing::Not;

ObservedServer observed(const std::string& place, std::optional<std::string> backup) {
  return {.place = place, .status = ServerStatus{.backup = std::move(backup), .workers = 0, .slowest = 0, .fastest = 0, .tables = {}}};
}

TEST(Metrics, SayWhichLeadersGoOnAlone) {
  const ObservedServer with_backup = observed("a:1", "b:1"), without = observed("a:2", ""), of_no_pair = observed("a:3", {});
  const ObservedServer standby{.place = "a:4"};
  const std::string page = metrics_text(std::vector{with_backup, without, of_no_pair, standby});
  EXPECT_THAT(page, HasSubstr("# TYPE tessera_ps_has_backup gauge\n"));
  EXPECT_THAT(page, HasSubstr("tessera_ps_has_backup{server=\"a:1\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("tessera_ps_has_backup{server=\"a:2\"} 0\n"));
  EXPECT_THAT(page, Not(HasSubstr("tessera_ps_has_backup{server=\"a:3\"}")));
  EXPECT_THAT(page, Not(HasSubstr("tessera_ps_has_backup{server=\"a:4\"}")));
  EXPECT_THAT(page, HasSubstr("tessera_ps_leads{server=\"a:4\"} 0\n"));
}

TEST(Metrics, AStatusCrossesTheNetworkWithItsBackup) {
  for (const std::optional<std::string>& backup :
       {std::optional<std::string>(), std::optional<std::string>(""), std::optional<std::string>("b:1")})
    EXPECT_EQ(status_from_json(to_json(*observed("a:1", backup).status)).backup, backup);
}

}  // namespace
}  // namespace tessera::ps
