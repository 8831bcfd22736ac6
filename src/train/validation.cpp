#include "train/validation.hpp"

#include <cmath>

namespace tessera::train {
namespace {

constexpr const char* kBestStep = "validation.best_step";
constexpr const char* kBestLoss = "validation.best_loss";
constexpr const char* kGained = "validation.gained";
constexpr const char* kWithoutGain = "validation.without_gain";

}  // namespace

bool ValidationHistory::add(std::int64_t steps, double loss, double min_gain) {
  const bool finite = std::isfinite(loss);
  if (finite && (!gained || loss < *gained - min_gain)) {
    gained = loss;
    without_gain = 0;
  } else {
    ++without_gain;
  }
  if (!finite || (best && loss >= best->validation_loss)) return false;
  best = checkpoint::Best{steps, loss};
  return true;
}

void ValidationHistory::write(std::map<std::string, double>& extra) const {
  extra[kWithoutGain] = static_cast<double>(without_gain);
  if (gained) extra[kGained] = *gained;
  if (!best) return;
  extra[kBestStep] = static_cast<double>(best->step);
  extra[kBestLoss] = best->validation_loss;
}

ValidationHistory ValidationHistory::read(const std::map<std::string, double>& extra) {
  ValidationHistory history;
  const auto find = [&](const char* key) -> std::optional<double> {
    const auto found = extra.find(key);
    return found == extra.end() ? std::nullopt : std::optional(found->second);
  };
  history.gained = find(kGained);
  history.without_gain = static_cast<std::int64_t>(find(kWithoutGain).value_or(0));
  if (const auto step = find(kBestStep), loss = find(kBestLoss); step && loss)
    history.best = checkpoint::Best{static_cast<std::int64_t>(*step), *loss};
  return history;
}

}  // namespace tessera::train
