#include "train/uneven_steps.hpp"

#include <ATen/ops/empty.h>
#include <algorithm>
#include <numeric>

#include "nn/sequence.hpp"

namespace tessera::train {
namespace {

const data::TextDataset& text_of(const data::Dataset& dataset) {
  const data::TextDataset* const sequences = data::as_text(dataset);
  ensure(sequences != nullptr, "images have one size");
  return *sequences;
}

}  // namespace

UnevenSteps::UnevenSteps(const data::Dataset& dataset, const plan::Plan& plan, const model::ModelSpec& model, comm::Communicator& comm)
    : dataset_(text_of(dataset)),
      model_(model),
      rank_(comm.rank()),
      global_batch_(plan.global_batch),
      tokens_(plan::tokens_per_rank(plan, model.dim("seq"))),
      lengths_(plan.lengths.value()),
      apart_(plan) {
  plan::Stage& stage = apart_.stages.front();
  for (plan::StrategyRun& run : stage.runs) {
    run.strategy.dp *= run.strategy.cp;
    run.strategy.cp = 1;
  }
  index_ = static_cast<int>(std::find(stage.ranks.begin(), stage.ranks.end(), rank_) - stage.ranks.begin());
  for (const plan::Lengths::Group& group : lengths_.groups) {
    const auto first = stage.ranks.begin() + index_ / group.degree * group.degree;
    if (group.degree > 1) groups_[group.degree] = comm.group({first, first + group.degree}, text("cp", group.degree));
  }
}

program::Program UnevenSteps::program(std::int64_t passes) const {
  plan::Plan plan = apart_;
  plan.micro_batches = passes;
  plan.global_batch = passes * plan.stages.front().width();
  return program::compile(plan, model_, {rank_}).front();
}

program::Program UnevenSteps::evaluation(std::int64_t passes) const {
  return program::compile_evaluation(apart_, model_, passes, apart_.stages.front().width()).at(static_cast<std::size_t>(rank_));
}

UnevenPasses UnevenSteps::take(std::int64_t step) {
  if (!begun_.valid() || begun_step_ != step) return load(step);
  return begun_.get();
}

void UnevenSteps::begin(std::int64_t step) {
  begun_step_ = step;
  begun_ = std::async(std::launch::async, [this, step] { return load(step); });
}

UnevenPasses UnevenSteps::load(std::int64_t step) const {
  const std::vector<data::Draw> draws = dataset_.draws(step, global_batch_);
  std::vector<std::int64_t> lengths;
  for (const data::Draw& draw : draws) lengths.push_back(dataset_.length(draw.sample));
  return load(lengths, [&](std::int64_t sample, const auto& rows) { dataset_.fill(draws[static_cast<std::size_t>(sample)], rows); });
}

UnevenPasses UnevenSteps::validation(std::int64_t first, std::int64_t count) const {
  std::vector<std::int64_t> lengths;
  for (std::int64_t sample = first; sample < first + count; ++sample) lengths.push_back(dataset_.validation_length(sample));
  return load(lengths, [&](std::int64_t sample, const auto& rows) { dataset_.fill_validation(first + sample, rows); });
}

std::int64_t UnevenSteps::tokens(std::int64_t step) const {
  std::int64_t sum = 0;
  for (const data::Draw& draw : dataset_.draws(step, global_batch_)) sum += dataset_.length(draw.sample);
  return sum;
}

UnevenPasses UnevenSteps::load(const std::vector<std::int64_t>& lengths, const Fill& fill) const {
  UnevenPasses out;
  const auto add = [&](const plan::SharedPass& pass) {
    out.batches.push_back(row_of(pass, lengths, fill));
    out.context_groups.push_back(pass.degree > 1 ? groups_.at(pass.degree) : comm::Group());
  };
  for (const plan::SharedPass& pass : plan::deal(lengths, lengths_, apart_.stages.front().width(), tokens_).passes)
    if (pass.first <= index_ && index_ < pass.first + pass.degree) add(pass);
  if (out.batches.empty()) add({index_, 1, {}});
  return out;
}

nn::Batch UnevenSteps::row_of(const plan::SharedPass& pass, const std::vector<std::int64_t>& lengths, const Fill& fill) const {
  const auto length_of = [&](std::int64_t sample) { return lengths[static_cast<std::size_t>(sample)]; };
  std::int64_t count = 0;
  for (const std::int64_t sample : pass.samples) count += length_of(sample);
  const std::vector<data::Field> fields = dataset_.fields();
  const auto size = static_cast<std::size_t>(plan::padded_row(count, pass.degree));
  std::vector<std::vector<std::int32_t>> row;
  for (const data::Field& field : fields) row.emplace_back(size, field.absent);
  std::size_t begin = 0;
  for (const std::int64_t sample : pass.samples) {
    const auto length = static_cast<std::size_t>(length_of(sample));
    std::vector<data::Row> rows;
    for (std::vector<std::int32_t>& values : row) rows.emplace_back(std::span(values).subspan(begin, length));
    fill(sample, rows);
    begin += length;
  }
  nn::Batch whole;
  for (std::size_t f = 0; f < fields.size(); ++f) {
    // Padding is a document of its own.
    if (fields[f].name == "positions") std::iota(row[f].begin() + static_cast<std::ptrdiff_t>(begin), row[f].end(), 0);
    at::Tensor& tensor = whole.tensors[fields[f].name] = at::empty({1, static_cast<std::int64_t>(size)}, at::kLong);
    std::copy(row[f].begin(), row[f].end(), tensor.data_ptr<std::int64_t>());
  }
  return nn::own_part(whole, {pass.degree, index_ - pass.first});
}

}  // namespace tessera::train
