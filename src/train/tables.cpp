#include "train/tables.hpp"

#include <exception>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/secret.hpp"
#include "checkpoint/checkpoint.hpp"
#include "data/clicks/keys.hpp"
#include "model/forms.hpp"

namespace tessera::train {
namespace {

// A rank may evaluate or save for that long while others wait for it.
constexpr Seconds kPatience(600);

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

const std::vector<std::string>& places_of(const model::JobSpec& job) {
  if (job.parameter_servers.places.empty())
    throw Error(ErrorCode::invalid_config, "the model's tables lie on parameter servers, and none are named",
                {.file = job.file.string(), .block = {}}, "parameter_servers: {servers: [HOST:PORT, ...]}",
                "start them with `tessera ps serve`; `tessera train` starts one itself on this host");
  return job.parameter_servers.places;
}

constexpr const char* kFolder = "tables-";

}  // namespace

// Beside the checkpoint's own, "step-000050".
std::filesystem::path tables_folder(const std::filesystem::path& checkpoints, std::int64_t step) {
  const std::string name = checkpoint::step_folder({}, step).string();
  return checkpoints / (kFolder + name.substr(name.find('-') + 1));
}

Tables::Tables(const model::JobSpec& job, const std::optional<ps::Worker>& worker)
    : name_(job.name),
      where_(job.parameter_servers.where),
      client_(std::in_place, places_of(job), servers_secret_from_environment(),
              ps::ClientOptions{.deadline = kPatience, .interrupted = &interrupted_, .worker = worker}),
      goes_ahead_(worker && job.parameter_servers.consistency == "asynchronous" && job.parameter_servers.staleness >= 1) {
  const ps::TableSpec table = table_of(job);
  table_ = client_->open(table);
  dimension_ = table.dimension;
}

Tables::Tables(const model::JobSpec& job, ps::ServingTable finished)
    : name_(job.name),
      where_(job.parameter_servers.where),
      finished_(std::move(finished)),
      dimension_(table_of(job).dimension),
      goes_ahead_(false) {
  if (finished_->dimension() != dimension_)
    throw Error(ErrorCode::invalid_config, text("the table's rows have ", finished_->dimension(), " values"), where_,
                text(dimension_, ", as the model says"));
}

Tables::~Tables() {
  // An error of this rank may be why others will not end the steps that are waited for.
  interrupted_ = std::uncaught_exceptions() > 0;
  if (going_on_.valid()) going_on_.wait();
}

void Tables::go_on_with(std::function<void()> work) {
  going_on_ = std::async(std::launch::async, [before = std::move(going_on_), work = std::move(work)]() mutable {
    if (before.valid()) before.get();
    work();
  });
}

void Tables::wait() {
  if (going_on_.valid()) going_on_.get();
}

void Tables::require_empty() {
  wait();
  std::uint64_t rows = 0;
  for (const auto& server : client_->status())
    for (const ps::TableStatus& table : server.tables)
      if (table.name == name_) rows += table.rows;
  if (rows > 0)
    throw Error(ErrorCode::invalid_config,
                text("the parameter servers hold ", rows, " rows of a table '", name_, "' already, which another run has trained"), where_,
                "servers without a table of this run", "start servers anew, or give the run another name");
}

Tables::Pulled Tables::keys_of(const std::vector<nn::Batch>& batches) {
  Pulled out;
  for (const nn::Batch& batch : batches) {
    const at::Tensor keys = batch.at("keys").cpu();
    for (const std::int64_t key : std::span(keys.data_ptr<std::int64_t>(), static_cast<std::size_t>(keys.numel()))) {
      if (static_cast<ps::Key>(key) != data::kNoKey) {
        out.keys.push_back(static_cast<ps::Key>(key));
        out.present.push_back(out.places);
      }
      ++out.places;
    }
  }
  return out;
}

void Tables::fetch(Pulled& pulled, ps::Absent absent, int ahead) {
  pulled.values.resize(pulled.keys.size() * static_cast<std::size_t>(dimension_));
  if (finished_) {
    ensure(absent == ps::Absent::zeros, "finished rows are not trained");
    finished_->find(pulled.keys, pulled.values);
    return;
  }
  client_->pull(table_, pulled.keys, pulled.values, absent, ahead);
}

void Tables::begin_pull(std::function<std::vector<nn::Batch>()> batches) {
  if (!goes_ahead_) return;
  go_on_with([this, batches = std::move(batches)] {
    Pulled next = keys_of(batches());
    fetch(next, ps::Absent::create, 1);
    next_ = std::move(next);
  });
}

void Tables::pull(std::vector<nn::Batch>& batches, ps::Absent absent) {
  wait();
  pulled_ = keys_of(batches);
  if (next_ && next_->keys == pulled_.keys && absent == ps::Absent::create) {
    pulled_ = std::move(*next_);
    next_.reset();
  } else {
    fetch(pulled_, absent, 0);
  }
  const at::Tensor& first = batches.front().at("keys");
  const std::int64_t tables = first.size(1);
  lookups_ = first.size(2);
  at::Tensor values = at::from_blob(pulled_.values.data(), {std::ssize(pulled_.keys), dimension_}, at::kFloat);
  if (std::ssize(pulled_.present) < pulled_.places) {
    const at::Tensor present = at::from_blob(pulled_.present.data(), {std::ssize(pulled_.present)}, at::kLong);
    values = at::zeros({pulled_.places, dimension_}, at::kFloat).index_copy_(0, present, values);
  }
  values = values.view({-1, tables, lookups_, dimension_}).sum(2).to(first.device());
  gradients_ = at::zeros_like(values);
  std::int64_t begin = 0;
  for (nn::Batch& batch : batches) {
    const std::int64_t count = batch.at("keys").size(0);
    batch.tensors["rows"] = values.narrow(0, begin, count);
    batch.tensors["row_gradients"] = gradients_.narrow(0, begin, count);
    begin += count;
  }
}

void Tables::end_step(bool leave_out) {
  if (leave_out) return go_on_with([this] { client_->end_step(); });
  // Each look-up of a sum has the sum's gradient.
  at::Tensor each = gradients_.cpu().unsqueeze(2).expand({-1, -1, lookups_, -1}).reshape({-1, dimension_});
  if (std::ssize(pulled_.present) < pulled_.places)
    each = each.index_select(0, at::from_blob(pulled_.present.data(), {std::ssize(pulled_.present)}, at::kLong));
  go_on_with([this, keys = std::move(pulled_.keys), each = each.contiguous()] {
    client_->push(table_, keys, {each.data_ptr<float>(), static_cast<std::size_t>(each.numel())});
    client_->end_step();
  });
}

void Tables::save(const std::filesystem::path& checkpoints, std::int64_t step) {
  wait();
  client_->wait_for_workers();
  client_->begin_save(tables_folder(checkpoints, step));
  client_->finish_save();
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kFolder) || entry.path() == tables_folder(checkpoints, step)) continue;
    if (!std::filesystem::exists(checkpoints / ("step-" + name.substr(std::string_view(kFolder).size()))))
      std::filesystem::remove_all(entry.path());
  }
}

void Tables::load(const std::filesystem::path& checkpoint, std::int64_t step) {
  const std::filesystem::path folder = tables_folder(checkpoint.parent_path(), step);
  if (!std::filesystem::exists(folder))
    throw Error(ErrorCode::not_found, text("the rows of the model's tables are not beside ", checkpoint.string()),
                {.file = folder.string(), .block = {}}, "what the servers have saved with the checkpoint");
  wait();
  client_->load(folder);
}

}  // namespace tessera::train
