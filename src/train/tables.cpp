#include "train/tables.hpp"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "base/clock.hpp"
#include "base/secret.hpp"
#include "checkpoint/checkpoint.hpp"
#include "data/clicks/keys.hpp"
#include "model/forms.hpp"

namespace tessera::train {
namespace {

// A rank may evaluate or save for that long while others wait for it.
constexpr Seconds kPatience(600);

const std::vector<std::string>& places_of(const model::JobSpec& job) {
  if (job.parameter_servers.places.empty())
    throw Error(ErrorCode::invalid_config, "the model's tables lie on parameter servers, and none are named",
                {.file = job.file.string(), .block = {}}, "parameter_servers: {servers: [HOST:PORT, ...]}",
                "start them with `tessera ps serve`; `tessera train` has its own beside the ranks");
  return job.parameter_servers.places;
}

constexpr const char* kFolder = "tables-";

// Beside the checkpoint's own, "step-000050".
std::filesystem::path folder_of(const std::filesystem::path& checkpoints, std::int64_t step) {
  const std::string name = checkpoint::step_folder({}, step).string();
  return checkpoints / (kFolder + name.substr(name.find('-') + 1));
}

}  // namespace

ps::TableSpec table_of(const model::JobSpec& job) {
  const model::ParameterServerSpec& servers = job.parameter_servers;
  const model::TableOptimizerSpec& optimizer = servers.optimizer;
  const auto real = [](double value) { return static_cast<float>(value); };
  ps::TableSpec table;
  table.name = job.name;
  table.dimension = static_cast<int>(job.model.blocks().at(static_cast<std::size_t>(model::tables_block(job.model))).spec->dim("dim"));
  table.type = servers.rows == "fp32" ? ps::RowType::fp32 : servers.rows == "bf16" ? ps::RowType::bf16 : ps::RowType::int8;
  table.optimizer.rule = optimizer.kind == "adagrad" ? ps::Rule::adagrad
                         : optimizer.kind == "adam"  ? ps::Rule::adam
                         : optimizer.kind == "sgd"   ? ps::Rule::sgd
                                                     : ps::Rule::ftrl;
  table.optimizer.row_moment = optimizer.row_moment;
  table.optimizer.learning_rate = real(optimizer.lr);
  table.optimizer.epsilon = real(optimizer.epsilon);
  table.optimizer.initial_moment = real(optimizer.initial_moment);
  table.optimizer.beta1 = real(optimizer.beta1);
  table.optimizer.beta2 = real(optimizer.beta2);
  table.optimizer.l1 = real(optimizer.l1);
  table.optimizer.l2 = real(optimizer.l2);
  table.optimizer.beta = real(optimizer.beta);
  if (optimizer.clip_norm) table.optimizer.clip_norm = real(*optimizer.clip_norm);
  table.initializer.kind = servers.initializer == "uniform"  ? ps::InitialValues::uniform
                           : servers.initializer == "normal" ? ps::InitialValues::normal
                                                             : ps::InitialValues::zero;
  table.initializer.scale = real(servers.initial_scale);
  table.initializer.seed = job.train.seed;
  table.consistency = servers.consistency == "synchronous" ? ps::Consistency::synchronous : ps::Consistency::asynchronous;
  table.staleness = servers.staleness;
  return table;
}

Tables::Tables(const model::JobSpec& job, const std::optional<ps::Worker>& worker)
    : name_(job.name),
      where_(job.parameter_servers.where),
      client_(places_of(job), servers_secret_from_environment(), {.deadline = kPatience, .interrupted = &interrupted_, .worker = worker}) {
  const ps::TableSpec table = table_of(job);
  table_ = client_.open(table);
  dimension_ = table.dimension;
}

Tables::~Tables() {
  // An error of this rank may be why others will not end the steps that are waited for.
  interrupted_ = std::uncaught_exceptions() > 0;
  if (going_on_.valid()) going_on_.wait();
}

std::shared_future<Seconds> Tables::go_on_with(std::function<void()> work) {
  const Seconds begin = real_clock().now();
  // What has ended keeps nothing of what was before it.
  going_on_ = std::async(std::launch::async, [before = std::move(going_on_), begin, work = std::move(work)]() mutable {
                if (before.valid()) std::exchange(before, {}).get();
                std::exchange(work, nullptr)();
                return real_clock().now() - begin;
              }).share();
  return going_on_;
}

void Tables::wait() {
  if (going_on_.valid()) going_on_.get();
}

void Tables::require_empty() {
  wait();
  std::uint64_t rows = 0;
  for (const auto& server : client_.status())
    for (const ps::TableStatus& table : server.tables)
      if (table.name == name_) rows += table.rows;
  if (rows > 0)
    throw Error(ErrorCode::invalid_config,
                text("the parameter servers hold ", rows, " rows of a table '", name_, "' already, which another run has trained"), where_,
                "servers without a table of this run", "start servers anew, or give the run another name");
}

void Tables::hold(std::vector<nn::Batch>& batches, std::optional<std::int64_t> step) {
  if (step && next_ && next_->step == step) {
    held_ = std::exchange(next_, nullptr);
  } else {
    held_ = std::make_shared<Held>();
    held_->step = step;
    held_->batches = batches;
    std::int64_t samples = 0;
    for (const nn::Batch& batch : batches) samples += batch.at("keys").size(0);
    const at::Tensor& first = batches.front().at("keys");
    held_->lookups = first.size(2);
    held_->rows = at::empty({samples, first.size(1), dimension_}, first.options().dtype(at::kFloat));
    held_->gradients = at::empty_like(held_->rows);
  }
  std::int64_t begin = 0;
  for (nn::Batch& batch : batches) {
    const std::int64_t count = batch.at("keys").size(0);
    batch.tensors["rows"] = held_->rows.narrow(0, begin, count);
    batch.tensors["row_gradients"] = held_->gradients.narrow(0, begin, count);
    begin += count;
  }
}

void Tables::hold_next(std::function<std::vector<nn::Batch>()> batches) { next_batches_ = std::move(batches); }

nn::Exchange Tables::pull() {
  const nn::Exchange own = rows();
  if (!next_batches_) return own;
  // A step's batches have the shapes of those before it.
  next_ = std::make_shared<Held>();
  next_->step = *held_->step + 1;
  next_->lookups = held_->lookups;
  next_->rows = at::empty_like(held_->rows);
  next_->gradients = at::empty_like(held_->gradients);
  return nn::Exchange(next_->there = go_on_with([this, next = next_, batches = std::exchange(next_batches_, nullptr)] {
                        next->batches = batches();
                        fetch(*next, 1);
                      }));
}

nn::Exchange Tables::rows() {
  if (!held_->there.valid()) held_->there = go_on_with([this, held = held_] { fetch(*held, 0); });
  return nn::Exchange(held_->there);
}

nn::Exchange Tables::push(bool leave_out) {
  return nn::Exchange(go_on_with([this, held = held_, leave_out] {
    if (!leave_out) give_back(*held);
    client_.end_step();
  }));
}

void Tables::find_keys(Held& held) {
  for (const nn::Batch& batch : held.batches) {
    const at::Tensor keys = batch.at("keys").cpu();
    for (const std::int64_t key : std::span(keys.data_ptr<std::int64_t>(), static_cast<std::size_t>(keys.numel()))) {
      if (static_cast<ps::Key>(key) != data::kNoKey) {
        held.keys.push_back(static_cast<ps::Key>(key));
        held.present.push_back(held.places);
      }
      ++held.places;
    }
  }
  held.batches.clear();
}

// Beside a step, whose threads are not to be disturbed: without tensors' operations, which take all that there are.
void Tables::fetch(Held& held, int ahead) {
  find_keys(held);
  const ps::Absent absent = held.step ? ps::Absent::create : ps::Absent::zeros;
  const auto all = static_cast<std::size_t>(held.rows.numel());
  if (held.is_plain()) return client_.pull(table_, held.keys, {held.rows.data_ptr<float>(), all}, absent, ahead);
  std::vector<float> values(held.keys.size() * static_cast<std::size_t>(dimension_));
  client_.pull(table_, held.keys, values, absent, ahead);
  const at::Tensor host = held.rows.is_cpu() ? held.rows : at::empty_like(held.rows, at::kCPU);
  auto* const sums = host.data_ptr<float>();
  std::fill_n(sums, all, 0.0f);
  for (std::size_t i = 0; i < held.present.size(); ++i)
    for (std::int64_t d = 0; d < dimension_; ++d)
      sums[held.present[i] / held.lookups * dimension_ + d] +=
          values[i * static_cast<std::size_t>(dimension_) + static_cast<std::size_t>(d)];
  if (!held.rows.is_cpu()) held.rows.copy_(host);
}

void Tables::give_back(const Held& held) {
  if (held.is_plain()) {
    client_.push(table_, held.keys, {held.gradients.data_ptr<float>(), static_cast<std::size_t>(held.gradients.numel())});
    return;
  }
  const at::Tensor host = held.gradients.cpu();
  // Each look-up of a sum has the sum's gradient.
  std::vector<float> each(held.keys.size() * static_cast<std::size_t>(dimension_));
  for (std::size_t i = 0; i < held.present.size(); ++i)
    std::copy_n(host.data_ptr<float>() + held.present[i] / held.lookups * dimension_, dimension_,
                each.data() + i * static_cast<std::size_t>(dimension_));
  client_.push(table_, held.keys, each);
}

void Tables::save(const std::filesystem::path& checkpoints, std::int64_t step) {
  wait();
  client_.wait_for_workers();
  client_.begin_save(folder_of(checkpoints, step));
  client_.finish_save();
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kFolder) || entry.path() == folder_of(checkpoints, step)) continue;
    if (!std::filesystem::exists(checkpoints / ("step-" + name.substr(std::string_view(kFolder).size()))))
      std::filesystem::remove_all(entry.path());
  }
}

void Tables::load(const std::filesystem::path& checkpoint, std::int64_t step) {
  const std::filesystem::path folder = folder_of(checkpoint.parent_path(), step);
  if (!std::filesystem::exists(folder))
    throw Error(ErrorCode::not_found, text("the rows of the model's tables are not beside ", checkpoint.string()),
                {.file = folder.string(), .block = {}}, "what the servers have saved with the checkpoint");
  wait();
  client_.load(folder);
}

}  // namespace tessera::train
