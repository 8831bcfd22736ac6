// Deals the samples of a step, which differ in length, to the ranks: long samples are cut among many ranks, short ones follow each other on
// few. FlexSP (Wang et al. 2024, arXiv 2412.01523) solves a linear program for this; here it is a list schedule with local search, which
// takes milliseconds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.hpp"

namespace tessera::plan {

// One forward and backward pass over some samples, which are concatenated to a row that consecutive ranks share.
struct SharedPass {
  int first = 0;   // index of the first of its ranks in the stage, a multiple of the degree
  int degree = 1;  // ranks
  std::vector<std::int64_t> samples;
};

struct UnevenBatch {
  // Each rank makes its passes in this order, so that no two of them wait for each other.
  std::vector<SharedPass> passes;
  double seconds = 0;  // until the last rank has finished
  double bound = 0;    // no layout takes less at the prices of `lengths`
  double idle = 0;     // share of it, 0..1, in which ranks have finished their passes; the mean over the ranks
};

// The length that a row of so many tokens is padded to, so that `degree` ranks can cut it in twice as many parts.
std::int64_t padded_row(std::int64_t tokens, int degree);
// Tokens that a rank holds at once under a plan for samples of different lengths: those of its micro-batch if all samples had the full
// length `seq`.
std::int64_t tokens_per_rank(const Plan& plan, std::int64_t seq);

// Deals samples of these lengths to `ranks` ranks, which the widest group's degree divides. A rank holds at most `tokens` at once, padding
// included. The result is the same on every machine. Throws resource_exhausted for samples that the widest group cannot hold. Takes
// milliseconds for 512 samples on 64 ranks.
UnevenBatch deal(std::span<const std::int64_t> samples, const Lengths& lengths, int ranks, std::int64_t tokens);
// UnevenBatch::bound, without dealing.
double least_seconds(std::span<const std::int64_t> samples, const Lengths& lengths, int ranks, std::int64_t tokens);

}  // namespace tessera::plan
