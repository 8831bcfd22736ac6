#include "train/store.hpp"

#include <ATen/ops/zeros.h>
#include <algorithm>

#include "nn/optimizer.hpp"
#include "train/unpadded.hpp"

namespace tessera::train {

using checkpoint::Piece;
using program::Bucket;
using program::BucketEntry;

struct Store::Segment {
  int bucket;
  BucketEntry entry;
  std::int64_t begin;  // within the bucket
  std::int64_t end;
};

namespace {

bool releases_grads(const Bucket& bucket) { return bucket.zero >= 2 && bucket.whole == 0; }

}  // namespace

Store::Store(const model::ModelSpec& model, const program::Program& program, model::Precision precision,
             const model::OptimizerSpec& optimizer, at::Device device)
    : model_(model), program_(program), precision_(precision), device_(device), instances_(model_.blocks()) {
  const auto f32 = at::TensorOptions(device).dtype(at::kFloat);
  const auto flat = [&](std::int64_t count, at::ScalarType type, bool released) {
    at::Tensor out = nn::releasable(count, type, device);
    return released ? out : out.zero_();
  };
  for (const Bucket& bucket : program_.buckets) {
    BucketState state;
    const std::int64_t shard = bucket.shard_count();
    const bool single = precision == model::Precision::f32;
    const at::ScalarType type = single ? at::kFloat : at::kBFloat16;
    state.shard_begin = bucket.shard_begin();
    state.shard_end = state.shard_begin + shard;
    if (bucket.whole > 0) {
      // Parts of the first dimension lie one after the other.
      const BucketEntry& part = bucket.entries.front();
      const nn::BlockPlacement placement = placement_of(part);
      ensure(spec_of(part).split_dim == 0 || placement.tensor_size == 1,
             "a parameter that stages cut differently is cut in its first dimension");
      const std::int64_t begin = placement.tensor_rank * part.count;
      state.whole_grads = flat(std::max(bucket.whole, begin + bucket.count), at::kFloat, false);
      state.grads = state.whole_grads.narrow(0, begin, bucket.count);
    } else {
      state.grads = flat(bucket.count, at::kFloat, releases_grads(bucket));
    }
    if (program_.stale) state.fresh_grads = at::zeros({bucket.count}, f32);
    state.shard_grads = bucket.zero >= 2 ? at::zeros({shard}, f32) : state.grads.narrow(0, state.shard_begin, shard);
    state.values = flat(bucket.count, type, bucket.zero == 3);
    state.shard_values = bucket.zero == 3 ? at::zeros({shard}, f32.dtype(type)) : state.values.narrow(0, state.shard_begin, shard);
    state.master = single ? state.shard_values : at::zeros({shard}, f32);
    if (optimizer.kind == model::OptimizerKind::adamw) {
      state.exp_avg = at::zeros({shard}, f32);
      state.exp_avg_sq = at::zeros({shard}, f32);
    } else if (optimizer.momentum != 0) {
      state.exp_avg = at::zeros({shard}, f32);
    }
    buckets_.push_back(std::move(state));
  }
  for (const program::Chunk& chunk : program_.chunks)
    for (int b = chunk.first_block; b < chunk.last_block; ++b) blocks_.emplace(b, nn::make_block(*instances_[b].spec, placement_of(b)));
  bind_blocks();
  for (int b = 0; b < bucket_count(); ++b) {
    const Bucket& bucket = program_.buckets[b];
    if (bucket.zero == 3) release_values(b);
    if (releases_grads(bucket)) release_grads(b);
  }
}

const model::ParameterSpec& Store::spec_of(const BucketEntry& entry) const {
  return instances_[entry.block].spec->parameters[entry.parameter];
}

std::string Store::name_of(const BucketEntry& entry) const {
  const auto& spec = spec_of(entry);
  return spec.tied_to.empty() ? instances_[entry.block].parameter_name(spec) : spec.tied_to;
}

nn::BlockPlacement Store::placement_of(int block) const {
  const program::Cut& cut = program_.cut_of(block);
  return {cut.tp_index, cut.tp_size, cut.expert_index, cut.expert_size, program_.strategy_of(block).whole_experts, device_};
}

nn::BlockPlacement Store::placement_of(const BucketEntry& entry) const { return placement_of(entry.block).of(spec_of(entry)); }

bool Store::owns(const BucketEntry& entry) const {
  const model::ParameterSpec& spec = spec_of(entry);
  return spec.tied_to.empty() && (spec.split_dim >= 0 || placement_of(entry).tensor_rank == 0);
}

void Store::bind_blocks() {
  struct View {
    int bucket;
    at::Tensor value;
    at::Tensor grad;
  };
  std::map<std::string, View> views;
  for (int b = 0; b < bucket_count(); ++b)
    for (const BucketEntry& entry : program_.buckets[b].entries) {
      const auto shape = nn::shard_shape(spec_of(entry), placement_of(entry));
      views[name_of(entry)] = {
          b, buckets_[b].values.narrow(0, entry.offset, entry.count).view(shape),
          (program_.stale ? buckets_[b].fresh_grads : buckets_[b].grads).narrow(0, entry.offset, entry.count).view(shape)};
    }
  for (const auto& [b, block] : blocks_) {
    std::vector<nn::Parameter> parameters;
    for (const auto& spec : instances_[b].spec->parameters) {
      if (spec.sparse) continue;
      const std::string name = instances_[b].parameter_name(spec);
      const auto& [bucket, value, grad] = views.at(spec.tied_to.empty() ? name : spec.tied_to);
      if (releases_grads(program_.buckets[bucket])) buckets_of_[b].insert(bucket);
      parameters.push_back({&spec, name, value, grad});
    }
    block->bind(std::move(parameters));
  }
}

void Store::initialize(std::uint64_t seed) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    BucketState& state = buckets_[b];
    const bool in_place = device_.is_cpu() && precision_ == model::Precision::f32 && program_.buckets[b].zero < 3;
    at::Tensor whole = in_place ? state.values : at::zeros({program_.buckets[b].count}, at::TensorOptions().dtype(at::kFloat));
    for (const BucketEntry& entry : program_.buckets[b].entries) {
      at::Tensor value = whole.narrow(0, entry.offset, entry.count).view(nn::shard_shape(spec_of(entry), placement_of(entry)));
      nn::initialize(spec_of(entry), name_of(entry), seed, placement_of(entry), value);
    }
    if (!in_place) set_values(static_cast<int>(b), whole);
  }
}

void Store::set_values(int bucket, const at::Tensor& whole) {
  BucketState& state = buckets_.at(bucket);
  const at::Tensor own = whole.narrow(0, state.shard_begin, state.shard_end - state.shard_begin);
  if (program_.buckets[bucket].zero == 3)
    state.shard_values.copy_(own);
  else
    state.values.copy_(whole);
  if (precision_ != model::Precision::f32) state.master.copy_(own);
}

at::Tensor Store::present_values(int bucket) const {
  const BucketState& state = buckets_.at(static_cast<std::size_t>(bucket));
  at::Tensor whole = state.values.to(at::kCPU, at::kFloat);
  whole.narrow(0, state.shard_begin, state.shard_end - state.shard_begin).copy_(state.master);
  return whole;
}

void Store::zero_grads() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) zero_grads(static_cast<int>(b));
}

void Store::zero_grads(int bucket) {
  BucketState& state = buckets_.at(bucket);
  (program_.buckets[bucket].zero >= 2 ? state.shard_grads : program_.buckets[bucket].whole > 0 ? state.whole_grads : state.grads).zero_();
}

void Store::keep_for_next_step(int bucket) {
  BucketState& state = buckets_.at(bucket);
  state.grads.copy_(state.fresh_grads);
  state.fresh_grads.zero_();
}

void Store::release_values(int bucket) { nn::release(buckets_.at(bucket).values); }

void Store::release_grads(int bucket) {
  const at::Tensor& grads = buckets_.at(bucket).grads;
  if (releases_grads(program_.buckets[bucket]))
    nn::release(grads);
  else
    grads.zero_();  // a part of others' memory
}

void Store::hold_grads(int block) {
  if (const auto found = buckets_of_.find(block); found != buckets_of_.end())
    for (const int bucket : found->second)
      if (nn::hold(buckets_[bucket].grads)) buckets_[bucket].grads.zero_();
}

std::vector<Store::Segment> Store::segments(int bucket) const {
  std::vector<Segment> out;
  const BucketState& state = buckets_[bucket];
  for (const BucketEntry& entry : program_.buckets[bucket].entries) {
    const std::int64_t begin = std::max(entry.offset, state.shard_begin);
    const std::int64_t end = std::min(entry.offset + entry.count, state.shard_end);
    if (begin < end) out.push_back({bucket, entry, begin, end});
  }
  return out;
}

double Store::squared_norm() const {
  nn::Tensors counted;
  for (std::size_t b = 0; b < buckets_.size(); ++b) add_counted_grads(static_cast<int>(b), counted);
  return nn::squared_norm(counted);
}

double Store::squared_norm(int bucket) const {
  nn::Tensors counted;
  add_counted_grads(bucket, counted);
  return nn::squared_norm(counted);
}

void Store::add_counted_grads(int bucket, nn::Tensors& counted) const {
  if (program_.buckets[bucket].copy > 0) return;
  const BucketState& state = buckets_[bucket];
  for (const Segment& segment : segments(bucket))
    if (const model::ParameterSpec& spec = spec_of(segment.entry); owns(segment.entry) && spec.buffer_momentum == 0 && spec.sign_rate == 0)
      counted.push_back(state.shard_grads.narrow(0, segment.begin - state.shard_begin, segment.end - segment.begin));
}

void Store::step(int bucket, const model::OptimizerSpec& optimizer, double lr, double grad_scale, std::int64_t step) {
  BucketState& state = buckets_[bucket];
  const std::vector<Segment> all = segments(bucket);
  const auto alike = [&](const Segment& a, const Segment& b) {
    const model::ParameterSpec &x = spec_of(a.entry), &y = spec_of(b.entry);
    return x.decay == y.decay && x.buffer_momentum == y.buffer_momentum && x.sign_rate == y.sign_rate;
  };
  for (std::size_t i = 0; i < all.size();) {
    // Neighbours that are stepped alike are stepped in one call.
    std::size_t j = i + 1;
    while (j < all.size() && all[j].begin == all[j - 1].end && alike(all[j], all[i])) ++j;
    const std::int64_t count = all[j - 1].end - all[i].begin;
    const std::int64_t offset = all[i].begin - state.shard_begin;
    const double decay = spec_of(all[i].entry).decay ? optimizer.weight_decay : 0.0;
    const double momentum = spec_of(all[i].entry).buffer_momentum, rate = spec_of(all[i].entry).sign_rate;
    at::Tensor master = state.master.narrow(0, offset, count);
    at::Tensor grad = state.shard_grads.narrow(0, offset, count);
    at::Tensor compute;
    if (precision_ != model::Precision::f32) compute = state.shard_values.narrow(0, offset, count);
    at::Tensor first = state.exp_avg.defined() && momentum == 0 && rate == 0 ? state.exp_avg.narrow(0, offset, count) : at::Tensor();
    if (momentum > 0) {
      // buffer - momentum * (buffer - mean)
      nn::sgd_step(master, grad, first, compute,
                   {.lr = momentum, .momentum = 0, .weight_decay = 1, .first_step = step == 1, .grad_scale = -1});
    } else if (rate > 0) {
      nn::sgd_step(master, grad.sign(), first, compute,
                   {.lr = rate, .momentum = 0, .weight_decay = 0, .first_step = step == 1, .grad_scale = 1});
    } else if (optimizer.kind == model::OptimizerKind::adamw) {
      at::Tensor second = state.exp_avg_sq.narrow(0, offset, count);
      nn::adamw_step(master, grad, first, second, compute,
                     {lr, optimizer.beta1, optimizer.beta2, optimizer.epsilon, decay, step, grad_scale});
    } else {
      nn::sgd_step(master, grad, first, compute, {lr, optimizer.momentum, decay, step == 1, grad_scale});
    }
    i = j;
  }
}

Piece Store::piece(const Segment& segment, const std::string& suffix, const at::Tensor& flat, std::int64_t flat_begin) const {
  const model::ParameterSpec spec = spec_of(segment.entry).unstacked();
  const nn::BlockPlacement placement = placement_of(segment.entry);
  Piece piece;
  piece.name = name_of(segment.entry) + suffix;
  piece.shape = spec.shape;
  piece.split_dim = placement.tensor_size > 1 ? spec.split_dim : -1;
  piece.split_index = piece.split_dim >= 0 ? placement.tensor_rank : 0;
  piece.split_size = piece.split_dim >= 0 ? placement.tensor_size : 1;
  const Unpadded shard(spec, placement);
  const std::int64_t begin = segment.begin - segment.entry.offset;
  // Of experts that are spread, those of other ranks stand before this rank's.
  const std::int64_t before = spec.expert_dim == 0 ? placement.expert_rank * shard.before(segment.entry.count) : 0;
  piece.flat_begin = before + shard.before(begin);
  piece.flat_end = before + shard.before(segment.end - segment.entry.offset);
  piece.data = shard.pack(flat.narrow(0, segment.begin - flat_begin, segment.end - segment.begin), begin).cpu();
  return piece;
}

void Store::add_piece(std::vector<Piece>& out, const Segment& segment, const std::string& suffix, const at::Tensor& flat,
                      std::int64_t flat_begin) const {
  Piece one = piece(segment, suffix, flat, flat_begin);
  if (one.flat_begin < one.flat_end) out.push_back(std::move(one));
}

std::vector<Piece> Store::pieces() const {
  std::vector<Piece> out;
  for (int b = 0; b < bucket_count(); ++b)
    for (Piece& piece : pieces(b)) out.push_back(std::move(piece));
  return out;
}

std::vector<Piece> Store::pieces(int bucket, Holds holds) const {
  std::vector<Piece> out;
  if (holds == Holds::own && program_.buckets[bucket].copy > 0) return out;
  const BucketState& state = buckets_[bucket];
  for (const Segment& segment : segments(bucket)) {
    if (holds == Holds::own && !owns(segment.entry)) continue;
    add_piece(out, segment, "", state.master, state.shard_begin);
    if (state.exp_avg_sq.defined()) {
      add_piece(out, segment, ".exp_avg", state.exp_avg, state.shard_begin);
      add_piece(out, segment, ".exp_avg_sq", state.exp_avg_sq, state.shard_begin);
    } else if (state.exp_avg.defined()) {
      add_piece(out, segment, ".momentum", state.exp_avg, state.shard_begin);
    }
  }
  return out;
}

std::vector<Piece> Store::gradient_pieces() const {
  std::vector<Piece> out;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (program_.buckets[b].copy > 0) continue;
    for (const Segment& segment : segments(static_cast<int>(b)))
      if (owns(segment.entry)) add_piece(out, segment, ".grad", buckets_[b].shard_grads, buckets_[b].shard_begin);
  }
  return out;
}

void Store::load(const checkpoint::Reader& reader, bool with_optimizer) {
  load(
      [&](std::vector<Piece>& pieces) {
        for (Piece& piece : pieces) reader.read_piece(piece);
      },
      with_optimizer);
}

void Store::load(const Fill& fill, bool with_optimizer, const std::set<std::string>& wanted) {
  struct Place {
    Segment segment;
    at::Tensor flat;
    std::int64_t flat_begin;
  };
  std::vector<Piece> pieces;
  std::vector<Place> places;
  const auto want = [&](const Segment& segment, const std::string& suffix, const at::Tensor& flat, std::int64_t flat_begin) {
    if (!wanted.empty() && !wanted.contains(name_of(segment.entry))) return;
    pieces.push_back(piece(segment, suffix, flat, flat_begin));
    places.push_back({segment, flat, flat_begin});
  };
  // The values of computation need every element, the optimizer state only this rank's shard.
  const bool in_place = device_.is_cpu() && precision_ == model::Precision::f32;
  std::map<int, at::Tensor> wholes;
  for (int b = 0; b < bucket_count(); ++b) {
    const BucketState& state = buckets_[b];
    if (program_.buckets[b].zero == 3) {
      for (const Segment& segment : segments(b)) want(segment, "", state.master, state.shard_begin);
    } else {
      at::Tensor& whole = wholes[b];
      whole = in_place ? state.values : present_values(b);
      for (const BucketEntry& entry : program_.buckets[b].entries) want({b, entry, entry.offset, entry.offset + entry.count}, "", whole, 0);
    }
    if (!with_optimizer) continue;
    for (const Segment& segment : segments(b)) {
      if (state.exp_avg_sq.defined()) {
        want(segment, ".exp_avg", state.exp_avg, state.shard_begin);
        want(segment, ".exp_avg_sq", state.exp_avg_sq, state.shard_begin);
      } else if (state.exp_avg.defined()) {
        want(segment, ".momentum", state.exp_avg, state.shard_begin);
      }
    }
  }
  fill(pieces);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& [segment, flat, flat_begin] = places[i];
    Unpadded(spec_of(segment.entry), placement_of(segment.entry))
        .unpack(pieces[i].data, flat.narrow(0, segment.begin - flat_begin, segment.end - segment.begin),
                segment.begin - segment.entry.offset);
  }
  for (int b = 0; b < bucket_count(); ++b) {
    BucketState& state = buckets_[b];
    if (program_.buckets[b].zero == 3)
      state.shard_values.copy_(state.master);
    else if (!in_place)
      set_values(b, wholes.at(b));
  }
}

}  // namespace tessera::train
