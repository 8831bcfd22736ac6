#include "train/timed_rows.hpp"

#include <pthread.h>

#include <algorithm>
#include <ctime>
#include <future>
#include <unordered_set>

#include "base/clock.hpp"
#include "base/free_port.hpp"
#include "base/secret.hpp"
#include "data/clicks/keys.hpp"
#include "data/dataset.hpp"
#include "ps/server.hpp"
#include "train/table_spec.hpp"

namespace tessera::train {
namespace {

constexpr int kBatches = 4;

double seconds_on(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The keys of some training samples.
std::vector<ps::Key> keys_of(const data::Dataset& dataset, const std::vector<data::Draw>& draws, std::size_t samples) {
  const std::vector<data::Field> fields = dataset.fields();
  std::vector<ps::Key> keys;
  std::vector<std::vector<std::int32_t>> whole(fields.size());
  std::vector<std::vector<float>> real(fields.size());
  std::vector<std::vector<std::uint64_t>> key(fields.size());
  std::vector<data::Row> rows;
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const auto count = static_cast<std::size_t>(fields[f].count());
    if (fields[f].type == data::FieldType::whole) whole[f].resize(count), rows.emplace_back(std::span(whole[f]));
    if (fields[f].type == data::FieldType::real) real[f].resize(count), rows.emplace_back(std::span(real[f]));
    if (fields[f].type == data::FieldType::key) key[f].resize(count), rows.emplace_back(std::span(key[f]));
  }
  for (std::size_t i = 0; i < std::min(samples, draws.size()); ++i) {
    dataset.fill(draws[i], rows);
    for (const std::vector<std::uint64_t>& of_field : key)
      std::copy_if(of_field.begin(), of_field.end(), std::back_inserter(keys), [](std::uint64_t one) { return one != data::kNoKey; });
  }
  return keys;
}

}  // namespace

TimedRows::TimedRows(const model::JobSpec& job, const Meter& meter, int workers) : meter_(meter) {
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const auto samples = static_cast<std::size_t>(std::max<std::int64_t>(1, job.train.global_batch / workers));
  std::size_t most = 0;
  for (int batch = 0; batch < kBatches; ++batch) {
    batches_.push_back(keys_of(*dataset, dataset->draws(batch, job.train.global_batch), samples));
    lookups_ += static_cast<double>(batches_.back().size());
    different_ += static_cast<double>(std::unordered_set<ps::Key>(batches_.back().begin(), batches_.back().end()).size());
    most = std::max(most, batches_.back().size());
  }
  const ps::TableSpec table = table_of(job);
  dimension_ = static_cast<std::size_t>(table.dimension);
  value_bytes_ = ps::row_bytes(table.wire, table.dimension);
  values_.resize(most * dimension_);
  gradients_.assign(most * dimension_, 1e-3f);
  const std::string secret = make_secret(), place = free_loopback_place();
  std::promise<void> listens;
  server_ = std::jthread([&](const std::stop_token& stop) {
    std::optional<ps::Server> server;
    try {
      server.emplace(place, secret);
    } catch (...) {
      return listens.set_exception(std::current_exception());
    }
    listens.set_value();
    try {
      server->serve(stop);
    } catch (const std::exception&) {  // its client hears of it
    }
  });
  listens.get_future().get();
  client_.emplace(std::vector{place}, secret);
  table_ = client_->open(table);
}

TimedRows::Spent TimedRows::now() const {
  clockid_t of_server{};
  ::pthread_getcpuclockid(const_cast<std::jthread&>(server_).native_handle(), &of_server);
  return {.whole = real_clock().now().value, .client = seconds_on(CLOCK_THREAD_CPUTIME_ID), .server = seconds_on(of_server)};
}

void TimedRows::Spent::add(const Spent& before, const Spent& now) {
  whole += now.whole - before.whole;
  client += now.client - before.client;
  server += now.server - before.server;
}

double TimedRows::Spent::seconds(double of_processor, double count) const {
  return of_processor * std::max(1.0, whole / (client + server)) / count;
}

void TimedRows::pass(Spent& pulling, Spent& pushing) {
  for (const std::vector<ps::Key>& keys : batches_) {
    const std::size_t count = keys.size() * dimension_;
    const Spent begin = now();
    client_->pull(table_, keys, std::span(values_).first(count));
    const Spent middle = now();
    client_->push(table_, keys, std::span(gradients_).first(count));
    pulling.add(begin, middle);
    pushing.add(middle, now());
  }
}

void TimedRows::round() {
  Spent pulling, pushing;
  if (passes_ == 0) {
    pass(pulling, pushing);  // makes the rows
    passes_ = meter_.repeats(meter_.time([&] { pass(pulling, pushing); }));
  }
  meter_.warm([&] { pass(pulling, pushing); });
  pulling = pushing = {};
  meter_.together();
  for (int i = 0; i < passes_; ++i) pass(pulling, pushing);
  const double count = passes_ * std::max(1.0, lookups_);
  pull_.client.add(pulling.seconds(pulling.client, count));
  pull_.server.add(pulling.seconds(pulling.server, count));
  push_.client.add(pushing.seconds(pushing.client, count));
  push_.server.add(pushing.seconds(pushing.server, count));
}

bool TimedRows::settled() const {
  const bool here = pull_.client.settled() && pull_.server.settled() && push_.client.settled() && push_.server.settled();
  return meter_.all(here);
}

std::vector<profile::RowsSample> TimedRows::samples() const {
  // A key, a ticket and the values.
  const double bytes = different_ / std::max(1.0, lookups_) * static_cast<double>(sizeof(ps::Key) + sizeof(ps::Ticket) + value_bytes_);
  return {{"pull", meter_.slowest(pull_.client.median()), meter_.slowest(pull_.server.median()), bytes},
          {"push", meter_.slowest(push_.client.median()), meter_.slowest(push_.server.median()), bytes}};
}

}  // namespace tessera::train
