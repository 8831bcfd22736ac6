#include "train/tables.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <span>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/secret.hpp"
#include "checkpoint/checkpoint.hpp"
#include "data/clicks/keys.hpp"
#include "model/forms.hpp"
#include "ps/first_rows.hpp"
#include "ps/saves.hpp"
#include "train/table_spec.hpp"

namespace tessera::train {
namespace {

// A rank may evaluate or save for that long while others wait for it.
constexpr Seconds kPatience(600);

const std::vector<std::string>& places_of(const model::JobSpec& job) {
  if (job.parameter_servers.places.empty())
    throw Error(ErrorCode::invalid_config, "the model's tables lie on parameter servers, and none are named",
                {.file = job.file.string(), .block = {}}, "parameter_servers: {servers: [HOST:PORT, ...]}",
                "start them with `tessera ps serve`; a run that names none has its own in its ranks' processes");
  return job.parameter_servers.places;
}

constexpr const char *kFolder = "tables-", *kRows = ".rows";

// The keys that batches may have, and the names of what they get for them.
struct Field {
  const char *keys, *rows, *gradients;
  bool summed;  // over the look-ups of a table
};
constexpr Field kFields[] = {{"keys", "rows", "row_gradients", true}, {"history", "history_rows", "history_gradients", false}};

bool changes(const model::LrScheduleSpec& schedule) { return schedule.kind != model::LrScheduleKind::constant || schedule.warmup > 0; }

// Of one save in the folder of another, which stands behind it. False where the disk does not do that.
bool shares_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  try {
    std::filesystem::create_directories(to);
    for (const auto& entry : std::filesystem::directory_iterator(from))
      if (entry.path().extension() == kRows) std::filesystem::create_hard_link(entry.path(), to / entry.path().filename());
    std::filesystem::copy_file(from / "tables.json", to / "tables.json");
    return true;
  } catch (const std::filesystem::filesystem_error& problem) {
    log::debug(text("all rows are saved: ", problem.what()));
    return false;
  }
}

std::uintmax_t bytes_in(const std::filesystem::path& folder) {
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == kRows) bytes += entry.file_size();
  return bytes;
}

// Saves of steps that have no checkpoint, but for this one; what cannot go now goes at the next save.
void remove_others(const std::filesystem::path& checkpoints, const std::filesystem::path& folder) try {
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kFolder) || entry.path() == folder) continue;
    if (!std::filesystem::exists(checkpoints / ("step-" + name.substr(std::string_view(kFolder).size()))))
      std::filesystem::remove_all(entry.path());
  }
} catch (const std::filesystem::filesystem_error& problem) {
  log::warning(text("rows of an earlier checkpoint were not removed: ", problem.what()));
}

// The rows that servers have saved with a checkpoint.
std::filesystem::path rows_beside(const std::filesystem::path& checkpoint, std::int64_t step) {
  const std::filesystem::path folder = tables_folder(checkpoint.parent_path(), step);
  if (!std::filesystem::exists(folder))
    throw Error(ErrorCode::not_found, text("the rows of the model's tables are not beside ", checkpoint.string()),
                {.file = folder.string(), .block = {}}, "what the servers have saved with the checkpoint");
  return folder;
}

// Of the run that made the checkpoint. Servers save all of their tables: those of other runs, and sums beside those of copies.
ps::SavedRows saved_rows(const std::filesystem::path& checkpoint, std::int64_t step) {
  const std::filesystem::path folder = rows_beside(checkpoint, step);
  const std::vector<ps::SavedTable> tables = ps::read_saved_folder(folder).tables;
  if (tables.size() == 1) return {.folder = folder, .table = tables.front().name};
  return {.folder = folder,
          .table = model::read_job(std::filesystem::absolute(checkpoint).parent_path().parent_path() / "train.yaml").name};
}

// What servers are asked to open.
ps::TableSpec opened_of(const model::JobSpec& job) {
  const ps::TableSpec table = table_of(job);
  return job.parameter_servers.consistency == "geo" ? ps::exchanged(table) : table;
}

std::span<float> floats_of(const at::Tensor& tensor) { return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())}; }

}  // namespace

// Beside the checkpoint's own, "step-000050".
std::filesystem::path tables_folder(const std::filesystem::path& checkpoints, std::int64_t step) {
  const std::string name = checkpoint::step_folder({}, step).string();
  return checkpoints / (kFolder + name.substr(name.find('-') + 1));
}

void check_servers(const model::JobSpec& job, comm::Communicator& comm) {
  if (!model::reads_clicks(job.model) || job.parameter_servers.places.empty()) return;
  Tables(job, std::nullopt, comm).require_empty();
}

void check_first_rows(const model::JobSpec& job, const std::filesystem::path& checkpoint, std::int64_t step) {
  ps::check_first_rows(saved_rows(checkpoint, step), opened_of(job));
}

template <typename Work>
auto Tables::asked(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::interrupted || !failed_ || !failure_) throw;
    throw Error(failure_->code(), text(failure_->message(), "; this rank waited for rows of its tables meanwhile, and ", error.message()),
                failure_->where(), failure_->expected(), failure_->hint());
  }
}

namespace {

std::optional<ps::Worker> worker_of(std::optional<ps::Worker> worker, const std::string& run) {
  if (worker) worker->name = run;
  return worker;
}

}  // namespace

Tables::Tables(const model::JobSpec& job, const std::optional<ps::Worker>& worker, comm::Communicator& comm)
    : name_(job.name),
      where_(job.parameter_servers.where),
      comm_(&comm),
      client_(std::in_place, places_of(job), servers_secret_from_environment(),
              ps::ClientOptions{.deadline = kPatience,
                                .reconnect = job.parameter_servers.reconnect,
                                .interrupted = interrupted_.get(),
                                .worker = worker_of(worker, job.name)}),
      synchronous_(job.parameter_servers.consistency == "synchronous"),
      reconnect_(job.parameter_servers.reconnect),
      exchange_every_(job.parameter_servers.exchange_every),
      sets_rate_(worker && worker->index == 0 && changes(job.parameter_servers.optimizer.schedule)),
      period_(worker && worker->index == 0 && job.parameter_servers.lifecycle ? job.parameter_servers.lifecycle->period : 0),
      counts_(worker && job.parameter_servers.lifecycle),
      places_(places_of(job)) {
  const ps::TableSpec table = table_of(job);
  dimension_ = table.dimension;
  comm_->on_failure([this](const Error& error) {
    if (failed_) return;
    try {
      failure_ = error;
    } catch (const std::bad_alloc&) {
      // The rank is out of memory; what waits then ends in its own words.
    }
    failed_ = true;
    *interrupted_ = true;
  });
  try {
    asked([&] {
      table_ = client_->open(opened_of(job));
      if (job.parameter_servers.consistency == "geo" && worker) copy_.emplace(*client_, table);
    });
  } catch (...) {
    comm_->on_failure({});
    throw;
  }
}

Tables::Tables(const model::JobSpec& job, ps::ServingTable finished)
    : name_(job.name), where_(job.parameter_servers.where), finished_(std::move(finished)), dimension_(table_of(job).dimension) {
  if (finished_->dimension() != dimension_)
    throw Error(ErrorCode::invalid_config, text("the table's rows have ", finished_->dimension(), " values"), where_,
                text(dimension_, ", as the model says"));
}

Tables::~Tables() {
  // An error of this rank may be why others will not end the steps that are waited for.
  if (std::uncaught_exceptions() > 0) *interrupted_ = true;
  if (going_on_.valid()) going_on_.wait();
  if (comm_ != nullptr) comm_->on_failure({});
}

std::shared_future<Seconds> Tables::go_on_with(std::function<void()> work) {
  const Seconds begin = real_clock().now();
  // What has ended keeps nothing of what was before it.
  going_on_ = std::async(std::launch::async, [this, before = std::move(going_on_), begin, work = std::move(work)]() mutable {
                const auto own = std::exchange(work, nullptr);
                if (before.valid()) std::exchange(before, {}).get();
                asked(own);
                return real_clock().now() - begin;
              }).share();
  return going_on_;
}

void Tables::wait() {
  if (going_on_.valid()) going_on_.get();
}

std::vector<ps::ServerStatus> Tables::status() {
  wait();
  return asked([&] { return client_->status(); });
}

ps::Staleness Tables::staleness() {
  wait();
  return client_->staleness();
}

void Tables::require_empty() {
  std::uint64_t rows = 0;
  for (const ps::ServerStatus& server : status())
    for (const ps::TableStatus& table : server.tables)
      if (table.name == name_) rows += table.rows;
  if (rows > 0)
    throw Error(ErrorCode::invalid_config,
                text("the parameter servers hold ", rows, " rows of a table '", name_, "' already, which another run has trained"), where_,
                "servers without a table of this run",
                "start servers anew (with another --log, where they have one), or give the run another name");
}

void Tables::hold(std::vector<nn::Batch>& batches, const std::optional<Step>& step) {
  if (!step) exchange();
  if (step && next_ && next_->step == step->number) {
    held_ = std::exchange(next_, nullptr);
  } else {
    held_ = std::make_shared<Held>();
    if (step) held_->step = step->number;
    held_->batches = batches;
    std::int64_t samples = 0;
    for (const nn::Batch& batch : batches) samples += batch.at("keys").size(0);
    for (const Field& field : kFields) {
      const at::Tensor first = batches.front().find(field.keys);
      if (!first.defined()) continue;
      Part& part = held_->parts.emplace_back();
      part.lookups = field.summed ? first.size(2) : 1;
      part.rows = at::empty({samples, first.size(1), dimension_}, first.options().dtype(at::kFloat));
      part.gradients = at::empty_like(part.rows);
    }
  }
  if (step) held_->learning_rate = step->learning_rate;
  std::size_t of = 0;
  for (const Field& field : kFields) {
    if (!batches.front().find(field.keys).defined()) continue;
    const Part& part = held_->parts.at(of++);
    std::int64_t begin = 0;
    for (nn::Batch& batch : batches) {
      const std::int64_t count = batch.at("keys").size(0);
      batch.tensors[field.rows] = part.rows.narrow(0, begin, count);
      batch.tensors[field.gradients] = part.gradients.narrow(0, begin, count);
      begin += count;
    }
  }
}

void Tables::hold_next(std::function<std::vector<nn::Batch>()> batches) { next_batches_ = std::move(batches); }

nn::Exchange Tables::pull() {
  nn::Exchange own = rows();
  // Beside the step that begins, whose own changes are then of the next round.
  if (held_->step && unexchanged_ >= exchange_every_) exchange();
  if (!next_batches_) return own;
  // A step's batches have the shapes of those before it.
  const auto next = std::make_shared<Held>();
  next->step = *held_->step + 1;
  for (const Part& part : held_->parts) {
    Part& of_next = next->parts.emplace_back();
    of_next.lookups = part.lookups;
    if (copy_) continue;  // which brings them to itself alone
    of_next.rows = at::empty_like(part.rows);
    of_next.gradients = at::empty_like(part.gradients);
  }
  next->there = go_on_with([this, next, batches = std::exchange(next_batches_, nullptr)] {
    next->batches = batches();
    if (!copy_) return fetch(*next, 1);
    find_keys(*next);
    copy_->fetch(next->keys);
  });
  if (copy_) return own;
  next_ = next;
  return nn::Exchange(next_->there);
}

nn::Exchange Tables::rows() {
  if (!held_->there.valid()) held_->there = go_on_with([this, held = held_] { fetch(*held, 0); });
  return nn::Exchange(held_->there);
}

nn::Exchange Tables::push(bool leave_out) {
  if (copy_) ++unexchanged_;
  return nn::Exchange(go_on_with([this, held = held_, leave_out] {
    if (!leave_out) give_back(*held);
    if (copy_) return;
    if (period_ > 0 && (*held->step + 1) % period_ == 0) client_->end_period(table_);
    client_->end_step();
  }));
}

void Tables::exchange() {
  if (!copy_ || unexchanged_ == 0) return;
  unexchanged_ = 0;
  go_on_with([this] { copy_->exchange(); });
}

void Tables::finish() {
  exchange();
  wait();
  asked([&] { client_->wait_for_workers(); });
}

void Tables::go_on_at(const std::vector<std::string>& places, std::uint64_t run) {
  asked([&] {
    client_->go_on_at(places, servers_secret_from_environment(), run);
    places_ = places;
    // Servers that come new know the table as it was opened.
    if (learning_rate_) client_->set_learning_rate(table_, *learning_rate_);
  });
}

void Tables::find_keys(Held& held) const {
  std::size_t of = 0;
  for (const Field& field : kFields) {
    if (!held.batches.front().find(field.keys).defined()) continue;
    for (const nn::Batch& batch : held.batches) {
      const at::Tensor keys = batch.at(field.keys).cpu();
      const at::Tensor labels = counts_ ? batch.at("labels").cpu() : at::Tensor();
      const std::int64_t of_sample = keys.numel() / std::max<std::int64_t>(1, keys.size(0));
      for (std::int64_t i = 0; i < keys.numel(); ++i, ++held.places) {
        const auto key = static_cast<ps::Key>(keys.data_ptr<std::int64_t>()[i]);
        if (key == data::kNoKey) continue;
        held.keys.push_back(key);
        held.present.push_back(held.places);
        if (counts_) held.impressions.push_back({.shows = 1, .clicks = labels.data_ptr<std::int64_t>()[i / of_sample] > 0 ? 1.0f : 0.0f});
      }
    }
    held.parts.at(of++).end = held.places;
  }
  held.batches.clear();
}

void Tables::bring(const Held& held, std::span<float> values, int ahead) {
  if (finished_) {
    ensure(!held.step, "finished rows are not trained");
    finished_->find(held.keys, values);
    return;
  }
  if (copy_ && held.step) return copy_->pull(held.keys, values);
  client_->pull(table_, held.keys, values, held.step ? ps::Absent::create : ps::Absent::zeros, ahead);
}

// Beside a step, whose threads are not to be disturbed: without tensors' operations, which take all that there are.
void Tables::fetch(Held& held, int ahead) {
  find_keys(held);
  if (held.is_plain()) return bring(held, floats_of(held.parts.front().rows), ahead);
  const auto dimension = static_cast<std::size_t>(dimension_);
  std::vector<float> values(held.keys.size() * dimension);
  bring(held, values, ahead);
  std::size_t i = 0;
  std::int64_t begin = 0;
  for (Part& part : held.parts) {
    const at::Tensor host = part.rows.is_cpu() ? part.rows : at::empty_like(part.rows, at::kCPU);
    const std::span<float> sums = floats_of(host);
    std::ranges::fill(sums, 0.0f);
    for (; i < held.present.size() && held.present[i] < part.end; ++i) {
      float* const sum = sums.data() + static_cast<std::size_t>((held.present[i] - begin) / part.lookups) * dimension;
      for (std::size_t d = 0; d < dimension; ++d) sum[d] += values[i * dimension + d];
    }
    if (!part.rows.is_cpu()) part.rows.copy_(host);
    begin = part.end;
  }
}

void Tables::give_back(const Held& held) {
  if (held.is_plain()) return step_rows(held, floats_of(held.parts.front().gradients));
  const auto dimension = static_cast<std::size_t>(dimension_);
  // Each look-up of a sum has the sum's gradient.
  std::vector<float> each(held.keys.size() * dimension);
  std::size_t i = 0;
  std::int64_t begin = 0;
  for (const Part& part : held.parts) {
    const at::Tensor host = part.gradients.cpu();
    for (; i < held.present.size() && held.present[i] < part.end; ++i)
      std::copy_n(host.data_ptr<float>() + static_cast<std::size_t>((held.present[i] - begin) / part.lookups) * dimension, dimension,
                  each.data() + i * dimension);
    begin = part.end;
  }
  step_rows(held, each);
}

void Tables::step_rows(const Held& held, std::span<const float> gradients) {
  const auto rate = static_cast<float>(held.learning_rate);
  if (copy_) {
    copy_->set_learning_rate(rate);
    copy_->push(held.keys, gradients);
    return;
  }
  if (sets_rate_ && learning_rate_ != rate) {
    // A server that the pull asked for no row has waited for nobody, and the step before, of a synchronous table, is to be made with the
    // rate of its own.
    if (synchronous_) client_->wait_for_workers();
    client_->set_learning_rate(table_, rate);
    learning_rate_ = rate;
  }
  client_->push(table_, held.keys, gradients, held.impressions);
}

std::function<void()> Tables::begin_save(const std::filesystem::path& checkpoints, std::int64_t step) {
  const std::filesystem::path folder = tables_folder(checkpoints, step);
  std::shared_ptr<ps::Client> client;
  std::exception_ptr failed;
  bool behind = false;
  try {
    wait();
    asked([&] {
      client_->wait_for_workers();
      client = std::make_shared<ps::Client>(
          places_, servers_secret_from_environment(),
          ps::ClientOptions{.deadline = kPatience, .reconnect = reconnect_, .interrupted = interrupted_.get()});
      behind = 2 * (saved_->all - saved_->base) < saved_->base && shares_files(saved_->folder, folder);
      client->begin_save(folder, behind ? ps::SnapshotRows::changed : ps::SnapshotRows::all);
    });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) throw;
    failed = std::current_exception();
  } catch (const std::filesystem::filesystem_error& problem) {
    failed = std::make_exception_ptr(Error(ErrorCode::io, problem.what()));
  }
  auto token = std::make_shared<char>();
  saving_ = token;
  return [client, failed, behind, token, checkpoints, folder, saved = saved_, interrupted = interrupted_] {
    const Saved before = std::exchange(*saved, {});
    if (failed) std::rethrow_exception(failed);
    try {
      client->finish_save();
      const std::uintmax_t all = bytes_in(folder);
      *saved = {.folder = folder, .base = behind ? before.base : all, .all = all};
    } catch (const std::filesystem::filesystem_error& problem) {
      throw Error(ErrorCode::io, problem.what());
    }
    remove_others(checkpoints, folder);
  };
}

void Tables::load(const std::filesystem::path& checkpoint, std::int64_t step) {
  const std::filesystem::path folder = rows_beside(checkpoint, step);
  wait();
  asked([&] { client_->load(folder); });
}

void Tables::begin_with(const std::filesystem::path& checkpoint, std::int64_t step) {
  const ps::SavedRows from = saved_rows(checkpoint, step);
  wait();
  asked([&] { ps::put_first_rows(*client_, table_, from); });
}

}  // namespace tessera::train
