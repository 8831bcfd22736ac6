// Which replica computes which sample of a step, and which rank holds which experts, such that fewer rows cross from host to host: from
// what the model's own routers choose (after NetMoE, ICLR 2025). Without tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"
#include "program/program.hpp"

namespace tessera::train {

// Replicas whose rows reach the same experts without leaving the host are one class, and the sets of experts that a class reaches so are
// those of the holders: holder i holds experts [i * each, (i + 1) * each) of every group of ranks over which experts are spread.
struct Seats {
  std::vector<int> blocks;                 // those with experts, by index in the model
  std::int64_t experts = 0;                // of each
  std::vector<std::vector<bool>> crosses;  // [class][holder]: whether rows of such a replica for such experts leave its host
  std::vector<int> class_of_place;         // by place in the step's batch
  std::vector<int> class_of_rank;          // by world rank

  int classes() const { return static_cast<int>(crosses.size()); }
  int holders() const { return static_cast<int>(crosses.front().size()); }
  std::int64_t experts_each() const { return experts / holders(); }
};

// `programs` are those of all ranks of a plan that plan::check lets place samples.
Seats seats_of(const model::ModelSpec& model, const plan::Plan& plan, const std::vector<program::Program>& programs);

// How many copies a token of each kind has sent to each holder, on average.
class TokenRates {
 public:
  static constexpr std::int64_t kUnit = 1'000'000;  // all copies of a token
  // `copies` i64 [vocabulary, holders]. Tokens that were seen rarely count in part as the average token.
  TokenRates(std::span<const std::int64_t> copies, int holders);
  // By holder: what a sample is expected to send, in units of kUnit for all copies of a token.
  std::vector<std::int64_t> expected(std::span<const std::int32_t> tokens) const;

 private:
  int holders_;
  std::vector<std::int64_t> rates_;  // [vocabulary, holders]
};

// The sample of each place, such that what leaves its host is least; `copies` [sample][holder], in any unit. A sample whose own place is of
// the class that it is given stays there.
std::vector<std::int64_t> place_samples(const Seats& seats, const std::vector<std::vector<std::int64_t>>& copies);
// What leaves its host when place p has sample samples[p]; in the same unit.
std::int64_t crossing(const Seats& seats, const std::vector<std::vector<std::int64_t>>& copies, const std::vector<std::int64_t>& samples);

// The new label of each expert of one block, such that the rows that leave their host, plus `move` for each expert whose holder is on
// another host than before, are fewest. `copies`: [experts, classes], the copies of rows by expert and class of replicas. An expert that
// stays keeps its label.
std::vector<int> place_experts(const Seats& seats, std::span<const std::int64_t> copies, std::int64_t move);
std::int64_t crossing(const Seats& seats, std::span<const std::int64_t> copies);

}  // namespace tessera::train
