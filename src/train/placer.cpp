#include "train/placer.hpp"

#include <algorithm>
#include <array>

#include "base/clock.hpp"

namespace tessera::train {
namespace {

// Sums are shared after 1, 2, 4, 8, 16 steps, and then after each 16.
constexpr std::int64_t kShareEvery = 16;

bool shares_after(std::int64_t steps) { return steps % kShareEvery == 0 || (steps < kShareEvery && (steps & (steps - 1)) == 0); }

const model::BlockSpec& block_of(const model::JobSpec& job, int index) {
  return *job.model.blocks().at(static_cast<std::size_t>(index)).spec;
}

std::int64_t copies_of(const model::JobSpec& job, const Seats& seats) {
  std::int64_t copies = 0;
  for (const int block : seats.blocks) copies += block_of(job, block).dim("experts_per_token");
  return copies;
}

// A copy goes to its expert with its weight, and its output comes back; so do the gradients, and what is computed again goes again.
std::int64_t bytes_of_copy(const model::JobSpec& job, const plan::Plan& plan, const Seats& seats) {
  const std::int64_t once = 2 * block_of(job, seats.blocks.front()).dim("hidden") * model::element_size(plan.precision).value +
                            static_cast<std::int64_t>(sizeof(float));
  const bool again = plan.stages.front().strategy_of(seats.blocks.front()).recompute == model::Recompute::full;
  return once * (again ? 3 : 2);
}

std::int64_t bytes_of_expert(const model::JobSpec& job, const Seats& seats) {
  std::int64_t elements = 0;
  for (const model::ParameterSpec& parameter : block_of(job, seats.blocks.front()).parameters)
    if (parameter.expert_dim == 0) elements += parameter.count() / seats.experts;
  const model::OptimizerSpec& optimizer = job.train.optimizer;
  const std::int64_t states = optimizer.kind == model::OptimizerKind::adamw ? 3 : optimizer.momentum != 0 ? 2 : 1;
  return elements * states * static_cast<std::int64_t>(sizeof(float));
}

StepSamples placed(std::vector<data::Draw> draws, const data::Dataset& dataset, const Seats& seats, const TokenRates& rates,
                   std::int64_t copies_a_token) {
  const Seconds begin = real_clock().now();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(dataset.fields().front().count()));
  std::vector<std::int32_t> targets(tokens.size());
  std::vector<std::vector<std::int64_t>> copies;
  for (const data::Draw& draw : draws) {
    dataset.fill(draw, {std::span(tokens), std::span(targets)});
    copies.push_back(rates.expected(tokens));
  }
  StepSamples out;
  const auto numbers = std::make_shared<const std::vector<std::int64_t>>(place_samples(seats, copies));
  for (const std::int64_t number : *numbers) out.draws.push_back(draws[static_cast<std::size_t>(number)]);
  out.crossing = static_cast<double>(crossing(seats, copies, *numbers)) * static_cast<double>(copies_a_token) / TokenRates::kUnit;
  out.numbers = numbers;
  out.solving = real_clock().now() - begin;
  return out;
}

}  // namespace

Placer::Placer(const model::JobSpec& job, const plan::Plan& plan, const std::vector<program::Program>& programs,
               const data::Dataset& dataset, comm::Communicator& comm)
    : dataset_(dataset),
      spec_(job.train.placement),
      held_seats_(std::make_shared<const Seats>(seats_of(job.model, plan, programs))),
      seats_(*held_seats_),
      copies_a_token_(copies_of(job, seats_)),
      bytes_a_copy_(bytes_of_copy(job, plan, seats_)),
      bytes_an_expert_(bytes_of_expert(job, seats_)),
      all_(comm.group(comm.world().ranks(), "placement")),
      class_(seats_.class_of_rank.at(static_cast<std::size_t>(comm.rank()))),
      routes_(seats_.blocks, seats_.experts, seats_.holders(), job.model.dim("vocab")),
      tokens_(routes_.of_tokens().size()),
      experts_(routes_.of_experts().size() * static_cast<std::size_t>(seats_.classes())) {
  ensure(dataset.fields().front().name == "tokens", "samples are placed by their tokens");
  window_.resize(tokens_.size() + experts_.size());
}

std::function<StepSamples()> Placer::placing(std::vector<data::Draw> draws) const {
  return [draws = std::move(draws), &dataset = dataset_, seats = held_seats_, rates = rates_, copies = copies_a_token_] {
    return rates ? placed(draws, dataset, *seats, *rates, copies) : StepSamples{.draws = draws, .numbers = {}};
  };
}

void Placer::add_own(const StepSamples& samples) {
  const std::vector<std::int64_t>& of_experts = routes_.of_experts();
  std::int64_t crossed = 0;
  const std::vector<bool>& crosses = seats_.crosses[static_cast<std::size_t>(class_)];
  for (std::size_t row = 0; row < of_experts.size(); ++row) {
    window_[tokens_.size() + index(row, class_)] += of_experts[row];
    const std::int64_t label = static_cast<std::int64_t>(row) % seats_.experts;
    if (crosses[static_cast<std::size_t>(label / seats_.experts_each())]) crossed += of_experts[row];
  }
  for (std::size_t i = 0; i < tokens_.size(); ++i) window_[i] += routes_.of_tokens()[i];
  routes_.clear();
  ++report_.steps;
  crossed_ += crossed;
  if (!samples.numbers) return;
  ++report_.placed;
  crossed_placed_ += crossed;
  predicted_ += samples.crossing;
  report_.solving += samples.solving;
}

void Placer::share() {
  all_.all_reduce(window_.data(), window_.size(), comm::DataType::i64).wait();
  for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] += window_[i];
  for (std::size_t i = 0; i < experts_.size(); ++i) experts_[i] += window_[tokens_.size() + i];
  std::fill(window_.begin(), window_.end(), 0);
  rates_ = std::make_shared<const TokenRates>(tokens_, seats_.holders());
}

std::optional<ExpertLabels> Placer::after_step(const StepSamples& samples) {
  add_own(samples);
  ++since_moved_;
  ++experts_steps_;
  const bool considers = experts_steps_ % spec_.every == 0;
  if (considers || shares_after(since_moved_)) share();
  if (!considers) return {};
  std::optional<ExpertLabels> labels;
  if (spec_.kind == model::PlacementKind::samples_and_experts) labels = move_experts();
  if (labels) {
    std::fill(tokens_.begin(), tokens_.end(), 0);
    rates_.reset();
    since_moved_ = 0;
  } else {
    // What routers chose long ago counts less and less.
    for (std::int64_t& count : tokens_) count /= 2;
  }
  std::fill(experts_.begin(), experts_.end(), 0);
  experts_steps_ = 0;
  return labels;
}

std::optional<ExpertLabels> Placer::move_experts() {
  ExpertLabels out;
  const std::size_t width = static_cast<std::size_t>(seats_.experts) * static_cast<std::size_t>(seats_.classes());
  for (std::size_t b = 0; b < seats_.blocks.size(); ++b) {
    const std::span copies(experts_.data() + b * width, width);
    // In copies, as many as would cost as much in the steps that were counted: an expert is moved where that pays within as many steps.
    const std::vector<int> labels = place_experts(seats_, copies, bytes_an_expert_ / bytes_a_copy_);
    std::int64_t moved = 0;
    for (std::size_t expert = 0; expert < labels.size(); ++expert) moved += labels[expert] == static_cast<int>(expert) ? 0 : 1;
    if (moved == 0) continue;
    report_.moved_experts += moved;
    report_.moved += Bytes(moved * bytes_an_expert_);
    out[seats_.blocks[b]] = labels;
  }
  if (out.empty()) return {};
  ++report_.relabellings;
  return out;
}

PlacementReport Placer::report() const {
  std::array<std::int64_t, 2> sums = {crossed_, crossed_placed_};
  all_.all_reduce(sums.data(), sums.size(), comm::DataType::i64).wait();
  PlacementReport out = report_;
  out.crossed = Bytes(sums[0] * bytes_a_copy_);
  out.crossed_placed = Bytes(sums[1] * bytes_a_copy_);
  out.predicted = Bytes(static_cast<std::int64_t>(predicted_ * static_cast<double>(bytes_a_copy_)));
  return out;
}

}  // namespace tessera::train
