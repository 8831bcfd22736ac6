// Internal: dropout of activations of which this rank may hold a part of the rows. What is dropped depends on the seed of the step, the
// sample, the block, the site and an element's place in its sample alone: it is the same however the rows are cut, and whenever it is
// computed.
#pragma once

#include "nn/tensor_parallel.hpp"

namespace tessera::nn {

// Where a block drops.
enum Site : int { kScores, kAttended, kFeedForward, kCrossScores, kCrossAttended, kActivated, kEmbedded = 0 };

class RowDropout {
 public:
  RowDropout(const model::BlockSpec& spec, Site site);

  bool drops(const Pass& pass) const { return probability_ > 0 && pass.drops; }
  // x: this rank's rows [own, width]. Nothing where the pass does not drop.
  void apply(at::Tensor& x, const Rows& rows, const Pass& pass) const;
  // The same for a gradient. Returns a new tensor, or `grad` if the pass does not drop.
  at::Tensor applied(const at::Tensor& grad, const Rows& rows, const Pass& pass) const;

 private:
  double probability_;
  Site site_;
};

// The probability that the block's dimensions say.
double dropped_share(const model::BlockSpec& spec);

}  // namespace tessera::nn
