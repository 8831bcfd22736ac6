#include <algorithm>

#include "base/error.hpp"
#include "plan/closed_form.hpp"
#include "plan/loads.hpp"
#include "plan/schedule.hpp"

namespace tessera::plan {
namespace {

// In place of a part: all of a stage's devices.
constexpr int kWhole = -1;

// One micro-batch through a place of the pipeline, and a step of it.
struct PlaceLoad {
  BlockLoad sum;        // over its blocks
  double resplit = 0;   // both passes
  double messages = 0;  // both directions
  double forward = 0;
  double backward = 0;
  double fill = 0;
  double once = 0;  // a step
  double passes() const { return forward + backward + messages; }
};

class LoadedPrediction {
 public:
  LoadedPrediction(const Plan& plan, Loads& loads)
      : plan_(plan), loads_(loads), pipeline_(pipeline_of(plan)), samples_(plan.global_batch / plan.micro_batches) {
    for (const Stage& stage : plan.stages) devices_.push_back(loads.devices_of(plan, stage));
    for (int place = 0; place < pipeline_.places; ++place) places_.push_back(load_of(place));
  }

  Prediction predict() const {
    const auto m = static_cast<double>(plan_.micro_batches);
    const auto busy = [&](const PlaceLoad& place) { return m * place.passes() - place.fill + (plan_.delayed_exchange ? 0 : place.once); };
    const PlaceLoad& slowest =
        *std::max_element(places_.begin(), places_.end(), [&](const auto& a, const auto& b) { return busy(a) < busy(b); });
    double fill = 0;
    for (const PlaceLoad& place : places_) fill += place.fill;
    double host = 0;
    for (const int devices : devices_) host = std::max(host, loads_.step_host(devices));
    Prediction out;
    out.step = Seconds((plan_.delayed_exchange ? delayed_passes() : busy(slowest) + fill) + host);
    const BlockLoad& sum = slowest.sum;
    double bubble = fill - slowest.fill;
    double exchange = sum.exchange;
    if (plan_.delayed_exchange) {
      // The exchange of the place, and of those that it waits for, stands in the bubble as far as there is one.
      const double rest = out.step.value - host - m * slowest.passes() - sum.optimizer;
      bubble = std::min(bubble, rest);
      exchange = rest - bubble;
    }
    const std::pair<const char*, double> parts[] = {{"matrix products", m * sum.products},
                                                    {"attention", m * sum.attention},
                                                    {"elementwise", m * sum.elementwise},
                                                    {"computed again", m * sum.again},
                                                    {"tensor-parallel exchange", m * sum.tensor_exchange},
                                                    {"context-parallel exchange", m * sum.context_exchange},
                                                    {"expert exchange", m * sum.expert_exchange},
                                                    {"parameter exchange", m * sum.parameter_exchange},
                                                    {"re-splitting", m * slowest.resplit},
                                                    {"host", m * sum.host + host},
                                                    {"messages between stages", m * slowest.messages},
                                                    {"bubble", bubble},
                                                    {"gradient exchange", exchange},
                                                    {"optimizer", sum.optimizer}};
    for (const auto& [name, seconds] : parts)
      if (seconds != 0) out.parts.emplace_back(name, Seconds(seconds));
    // On several kinds of device passes take what the slowest does in each block, and the parts are of one kind.
    const auto devices = static_cast<std::size_t>(&slowest - places_.data());
    if (loads_.parts_of(devices_[devices]).parts.size() > 1) {
      double rest = out.step.value;
      for (const auto& [name, seconds] : out.parts) rest -= seconds.value;
      if (rest > 0) out.parts.emplace_back("other devices", Seconds(rest));
    }
    out.memory.resize(plan_.ranks.size());
    double busy_ranks = 0;
    for (int place = 0; place < pipeline_.places; ++place) {
      std::size_t rank = 0;
      const Stage& stage = plan_.stages[static_cast<std::size_t>(place)];
      for_parts(place, [&](int part, std::size_t last) {
        double bytes = 0;
        for (const auto& [name, term] : memory(place, part)) bytes += term;
        for (; rank < last; ++rank) out.memory[static_cast<std::size_t>(stage.ranks[rank])] = Bytes(static_cast<std::int64_t>(bytes));
      });
      const PlaceLoad& load = places_[static_cast<std::size_t>(place)];
      const double stepped = plan_.delayed_exchange ? load.sum.optimizer : load.once;
      busy_ranks += (m * load.passes() + stepped + host) * static_cast<double>(plan_.stages[static_cast<std::size_t>(place)].ranks.size());
    }
    out.bubble = std::max(0.0, 1 - busy_ranks / (out.step.value * static_cast<double>(plan_.ranks.size())));
    return out;
  }

  // With the exchanges of each place in the next step, before its first pass. From the first pass of place k on, the chain of a step
  // goes over the busiest of the places behind it back to k, whose own exchange and optimizer then come before its next first pass:
  //   T >= max over i >= k of (m (f + b)_i - fill_i)  +  sum over j >= k of fill_j  +  once_k   for every k.
  double delayed_passes() const {
    double out = 0;
    double busiest = 0;
    double fill = 0;
    for (auto place = places_.rbegin(); place != places_.rend(); ++place) {
      busiest = std::max(busiest, static_cast<double>(plan_.micro_batches) * place->passes() - place->fill);
      fill += place->fill;
      out = std::max(out, busiest + fill + place->once);
    }
    return out;
  }

  // Of a rank of one part of the devices; kWhole: as blocks are priced.
  std::vector<std::pair<std::string, double>> memory(int place, int part) const {
    const int devices = devices_[static_cast<std::size_t>(place)];
    const std::vector<StageDevices::Part>& parts = loads_.parts_of(devices).parts;
    if (parts.size() == 1) part = kWhole;
    const bool tied_elsewhere = !holds_first_block(place);
    BlockLoad sum;
    std::vector<ChunkBytes> saved;
    const double samples =
        part == kWhole ? loads_.samples_per_rank(devices, plan_.stages[static_cast<std::size_t>(place)].width(), samples_)
                       : static_cast<double>(parts[static_cast<std::size_t>(part)].samples) / parts[static_cast<std::size_t>(part)].ranks;
    double buffers = 0;
    for (int chunk = 0; chunk < pipeline_.chunks; ++chunk) {
      const int stage = stage_at(plan_.schedule, place, chunk, pipeline_.places);
      double bytes = 0;
      for_blocks(stage, part, [&](int, const BlockLoad& load, const Strategy&, const Strategy*) {
        bytes += load.saved;
        add(sum, load, tied_elsewhere);
      });
      saved.push_back({static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(bytes)});
      buffers = std::max(buffers, samples * boundary_buffers(loads_, plan_, stage));
    }
    const auto activations = static_cast<double>(most_bytes(order_of(plan_, place), saved));
    return {{"process", loads_.process_bytes(part == kWhole ? devices : parts[static_cast<std::size_t>(part)].group)},
            {"weights", sum.weights},
            {"gradients", sum.gradients},
            {"optimizer state", sum.optimizer_state},
            {"tied parameters", sum.tied_bytes},
            {"activations", activations},
            {"workspace", sum.workspace},
            {"communication buffers", buffers}};
  }

  // The place and the part of the devices on which a rank is.
  std::pair<int, int> seat_of(int rank) const {
    for (int place = 0; place < pipeline_.places; ++place) {
      const std::vector<int>& ranks = plan_.stages[static_cast<std::size_t>(place)].ranks;
      const auto found = std::find(ranks.begin(), ranks.end(), rank);
      if (found == ranks.end()) continue;
      int out = kWhole;
      for_parts(place, [&](int part, std::size_t last) {
        if (out == kWhole && static_cast<std::size_t>(found - ranks.begin()) < last) out = part;
      });
      return {place, out};
    }
    throw Error(ErrorCode::internal, text("rank ", rank, " is in no stage"));
  }

  int place_of(int stage) const {
    for (int place = 0; place < pipeline_.places; ++place)
      for (int chunk = 0; chunk < pipeline_.chunks; ++chunk)
        if (stage_at(plan_.schedule, place, chunk, pipeline_.places) == stage) return place;
    return stage % pipeline_.places;
  }

 private:
  // visit(part, index behind its last rank in the stage)
  template <typename Visit>
  void for_parts(int place, const Visit& visit) const {
    const std::vector<StageDevices::Part>& parts = loads_.parts_of(devices_[static_cast<std::size_t>(place)]).parts;
    const auto width = static_cast<std::size_t>(plan_.stages[static_cast<std::size_t>(place)].width());
    if (parts.size() == 1) return visit(0, width);
    std::size_t last = 0;
    for (std::size_t part = 0; part < parts.size(); ++part)
      visit(static_cast<int>(part), last += static_cast<std::size_t>(parts[part].ranks));
  }

  // visit(block, load, strategy, strategy of the block before in the stage or nullptr)
  template <typename Visit>
  void for_blocks(int stage, int part, const Visit& visit) const {
    const Stage& of = plan_.stages[static_cast<std::size_t>(stage)];
    const int devices = devices_[static_cast<std::size_t>(stage)];
    const Strategy* before = nullptr;
    for (const StrategyRun& run : of.runs)
      for (int b = run.first; b < run.last; ++b) {
        const int repeat = loads_.repeat_of()[static_cast<std::size_t>(b)];
        if (part != kWhole)
          visit(b, loads_.priced_on(repeat, devices, static_cast<std::size_t>(part), run.strategy, samples_), run.strategy, before);
        else
          visit(b, loads_.block(repeat, devices, run.strategy, samples_), run.strategy, before);
        before = &run.strategy;
      }
  }

  PlaceLoad load_of(int place) const {
    PlaceLoad out;
    for (int chunk = 0; chunk < pipeline_.chunks; ++chunk) add_stage(stage_at(plan_.schedule, place, chunk, pipeline_.places), place, out);
    // With fewer micro-batches as if backward passes were whole and stages not interleaved.
    const bool enough = plan_.micro_batches >= least_micro_batches(plan_.schedule, pipeline_.places);
    const Fill fill = fill_of(enough ? plan_.schedule : Schedule::one_f_one_b, pipeline_.chunks,
                              loads_.weight_pass_bubble(devices_[static_cast<std::size_t>(place)]));
    out.fill = fill.forward * out.forward + fill.backward * (out.backward + out.messages);
    out.once = out.sum.exchange + out.sum.optimizer;
    return out;
  }

  void add_stage(int index, int place, PlaceLoad& out) const {
    const Stage& stage = plan_.stages[static_cast<std::size_t>(index)];
    const int devices = devices_[static_cast<std::size_t>(index)];
    const bool tied_elsewhere = !holds_first_block(place);
    for_blocks(index, kWhole, [&](int block, const BlockLoad& load, const Strategy& strategy, const Strategy* before) {
      add(out.sum, load, tied_elsewhere);
      out.forward += load.forward;
      out.backward += load.backward();
      if (before == nullptr) return;
      const double resplit = loads_.resplit(loads_.repeat_of()[static_cast<std::size_t>(block)], devices, *before, strategy, samples_);
      out.resplit += 2 * resplit;
      out.forward += resplit;
      out.backward += resplit;
    });
    out.forward += loads_.micro_batch_host(devices);
    out.sum.host += loads_.micro_batch_host(devices);
    if (index + 1 == static_cast<int>(plan_.stages.size())) return;
    const Stage& next = plan_.stages[static_cast<std::size_t>(index) + 1];
    if (next.ranks == stage.ranks) return;
    out.messages += loads_.messages(loads_.input_bytes(loads_.repeat_of()[static_cast<std::size_t>(next.first_block())], samples_), devices,
                                    stage.width(), devices_[static_cast<std::size_t>(index) + 1], next.width());
  }

  // The first block owns what others tie.
  bool holds_first_block(int place) const {
    for (int chunk = 0; chunk < pipeline_.chunks; ++chunk)
      if (stage_at(plan_.schedule, place, chunk, pipeline_.places) == 0) return true;
    return false;
  }

  static void add(BlockLoad& sum, const BlockLoad& load, bool tied_elsewhere) {
    sum.exchange += load.exchange + (tied_elsewhere ? load.tied_exchange : 0);
    sum.optimizer += load.optimizer;
    sum.weights += load.weights;
    sum.gradients += load.gradients;
    sum.optimizer_state += load.optimizer_state;
    sum.tied_bytes += tied_elsewhere ? load.tied_bytes : 0;
    sum.workspace = std::max(sum.workspace, load.workspace);
    sum.products += load.products;
    sum.attention += load.attention;
    sum.elementwise += load.elementwise;
    sum.again += load.again;
    sum.tensor_exchange += load.tensor_exchange;
    sum.context_exchange += load.context_exchange;
    sum.expert_exchange += load.expert_exchange;
    sum.parameter_exchange += load.parameter_exchange;
    sum.host += load.host;
  }

  const Plan& plan_;
  Loads& loads_;
  const Pipeline pipeline_;
  const std::int64_t samples_;
  std::vector<int> devices_;  // by stage
  std::vector<PlaceLoad> places_;
};

}  // namespace

double boundary_buffers(const Loads& loads, const Plan& plan, int stage) {
  const Stage& of = plan.stages[static_cast<std::size_t>(stage)];
  const auto whole = [&](int block) { return loads.input_bytes(loads.repeat_of()[static_cast<std::size_t>(block)], 1); };
  double bytes = 0;
  if (stage > 0) bytes = whole(of.first_block());
  if (stage + 1 < static_cast<int>(plan.stages.size())) bytes = std::max(bytes, whole(of.last_block()));
  return 4 * bytes;
}

Prediction predict(const Plan& plan, Loads& loads) { return LoadedPrediction(plan, loads).predict(); }

std::vector<std::pair<std::string, double>> memory_terms(const Plan& plan, int rank, Loads& loads) {
  const LoadedPrediction prediction(plan, loads);
  const auto [place, part] = prediction.seat_of(rank);
  return prediction.memory(place, part);
}

double bytes_held(const Plan& plan, int stage, Loads& loads) {
  const LoadedPrediction prediction(plan, loads);
  double out = 0;
  for (const auto& [name, bytes] : prediction.memory(prediction.place_of(stage), kWhole)) out += bytes;
  return out;
}

}  // namespace tessera::plan
