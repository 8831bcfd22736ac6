#include "observe/other_servers.hpp"

#include <nlohmann/json.hpp>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/file_system.hpp"
#include "model/job.hpp"

namespace tessera::observe {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char *kAsked = "servers-asked.json", *kTaken = "servers-taken.json";

}  // namespace

void ask_for_servers(const std::filesystem::path& run, const std::vector<std::string>& places) {
  real_file_system().remove_all(run / kTaken);
  write_whole(real_file_system(), run / kAsked, Json(places).dump() + "\n");
}

std::vector<std::string> asked_servers(const std::filesystem::path& run) {
  if (!std::filesystem::exists(run / kAsked)) return {};
  return model::read_server_places(ConfigNode::parse(read_whole(run / kAsked), (run / kAsked).string()));
}

void say_servers_taken(const std::filesystem::path& run, const ServersTaken& taken) {
  const Json out{{"servers", taken.places}, {"after_step", taken.after_step}, {"rows", taken.rows},
                 {"beside", taken.beside},  {"stood", taken.stood},           {"refused", taken.refused}};
  write_whole(real_file_system(), run / kTaken, out.dump() + "\n");
  // Another one may have come meanwhile.
  if (asked_servers(run) == taken.places) forget_request(run);
}

void forget_request(const std::filesystem::path& run) { real_file_system().remove_all(run / kAsked); }

std::optional<ServersTaken> servers_taken(const std::filesystem::path& run) {
  if (!std::filesystem::exists(run / kTaken)) return {};
  try {
    const Json in = Json::parse(read_whole(run / kTaken));
    return ServersTaken{.places = in.at("servers").get<std::vector<std::string>>(),
                        .after_step = in.at("after_step"),
                        .rows = in.at("rows"),
                        .beside = in.at("beside"),
                        .stood = in.at("stood"),
                        .refused = in.at("refused")};
  } catch (const Json::exception& problem) {
    throw Error(ErrorCode::corrupt, text("this does not say which servers were taken: ", problem.what()),
                {.file = (run / kTaken).string(), .block = {}});
  }
}

}  // namespace tessera::observe
