// internal: how well scores tell clicks from the rest, and how likely they make what has happened.
#pragma once

#include <ATen/core/Tensor.h>
#include <optional>

#include "comm/comm.hpp"

namespace tessera::train {

// The area under the ROC curve: the probability that a random positive has a higher score than a random negative, equal scores counting
// half. `scored`: f32 [2, samples], scores and labels, 0 or 1. Exact; n log n. None where one of the labels does not occur.
std::optional<double> area_under_curve(const at::Tensor& scored);

// The same over the samples of all ranks, some of which may have none. All ranks call it and get the same value.
std::optional<double> area_under_curve(comm::Communicator& comm, const at::Tensor& scored);

// The mean log-loss over the samples of all ranks, of logits that were learned from a share `negatives` of the samples labelled 0, as what
// they say of all samples: a probability p becomes p / (p + (1 - p) / negatives) (He et al. 2014, section 6.3), and so a logit z becomes z
// + log(negatives). NaN where there are no samples. All ranks call it.
double calibrated_log_loss(comm::Communicator& comm, const at::Tensor& scored, double negatives);

}  // namespace tessera::train
