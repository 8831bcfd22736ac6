#include "checkpoint/best.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "checkpoint/json_integer.hpp"

namespace tessera::checkpoint {

std::string text_of(const Best& best) {
  return nlohmann::ordered_json{{"step", best.step}, {"validation_loss", best.validation_loss}}.dump() + "\n";
}

Best parse_best(const std::string& text, const std::filesystem::path& path) {
  try {
    const auto json = nlohmann::json::parse(text);
    const Best best{integer_of(json.at("step")), json.at("validation_loss").get<double>()};
    if (best.step < 0) throw std::invalid_argument("a step before the first");
    return best;
  } catch (const std::exception& problem) {
    throw Error(ErrorCode::corrupt, tessera::text("the file is not as it should be: ", problem.what()), {path.string(), 0, 0, -1, {}},
                "{\"step\": STEP, \"validation_loss\": LOSS}", "remove the file, and name a step instead of the best one");
  }
}

}  // namespace tessera::checkpoint
