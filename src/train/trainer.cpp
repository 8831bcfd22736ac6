#include "train/trainer.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <cmath>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>

#include "base/clock.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "model/forms.hpp"
#include "nn/device.hpp"
#include "nn/sequence.hpp"
#include "program/chrome_trace.hpp"
#include "train/auc.hpp"
#include "train/batch_loader.hpp"
#include "train/clocks.hpp"
#include "train/measure_links.hpp"
#include "train/meter.hpp"
#include "train/relabel.hpp"
#include "train/run_tables.hpp"
#include "train/said.hpp"
#include "train/speed_meter.hpp"
#include "train/uneven_steps.hpp"

namespace tessera::train {

namespace {

constexpr std::size_t kTracedSteps = 8;

// When a step ran, on this host's clock.
struct TracedStep {
  std::int64_t step = 0;
  const program::Program* program = nullptr;
  nn::Interval whole;
  nn::Interval samples;  // reading them
  nn::Interval zeroing;  // the gradients
  nn::Interval norm;
  std::vector<InstructionSpan> spans;
};

}  // namespace

struct Trainer::Impl {
  const model::JobSpec& job;
  const plan::Plan plan;
  const data::Dataset& dataset;
  comm::Communicator& comm;
  std::optional<UnevenSteps> uneven;  // where samples have different lengths
  program::Program program;
  Store store;
  Executor executor;
  std::optional<Executor> evaluator;  // while evaluating
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  ValidationHistory loaded_history;
  std::optional<double> finished_norm;  // squared, of a step that finish() has made
  std::deque<TracedStep> traced;        // the last kTracedSteps
  std::optional<SpeedMeter> meter;      // from the first call of watch_speed() on
  bool compare_speeds = false;          // the last step says that the meter's window is over
  bool news_of_servers = false;         // the last step says that some rank has some
  bool stepping = false;                // from a step's first optimizer step to its end
  std::optional<Placer> placer;         // where the job places samples
  std::int64_t next_step = -1;          // of next_samples
  std::shared_future<StepSamples> next_samples;
  Saver saver;
  BatchLoader loader;
  std::shared_future<Batches> loading;  // of the next step
  RunTables tables;
  std::map<std::int64_t, Executor> by_passes;  // where samples have different lengths: of steps with so many passes of this rank

  Impl(const model::JobSpec& job, const plan::Plan& plan, const data::Dataset& dataset, comm::Communicator& comm, at::Device device)
      : job(job),
        plan(plan),
        dataset(dataset),
        comm(comm),
        uneven(plan.lengths ? std::optional<UnevenSteps>(std::in_place, dataset, plan, job.model, comm) : std::nullopt),
        program(uneven ? uneven->program(1) : program::compile(plan, job.model).at(comm.rank())),
        store(job.model, program, plan.precision, job.train.optimizer, device),
        executor(program, job.model, plan.precision, store, comm),
        saver(comm),
        loader(dataset, job.data.workers > 0             ? job.data.workers
                        : model::reads_images(job.model) ? 4
                                                         : 1),
        tables(job, this->plan, comm) {
    if (job.train.placement.kind == model::PlacementKind::off) return;
    placer.emplace(job, this->plan, program::compile(plan, job.model), dataset, comm);
    executor.count_routes(&placer->routes());
  }

  // Micro-batches of so many samples whose samples are held at once: all validation images of a data set may be more than the memory.
  std::int64_t held_while_evaluating(std::int64_t samples) const {
    constexpr std::int64_t kMostNumbers = 1 << 26;
    std::int64_t numbers = 0;
    for (const data::Field& field : dataset.fields()) numbers += field.count();
    return std::max<std::int64_t>(1, kMostNumbers / (samples * numbers));
  }

  // What the last run, or finish(), has ended of the step before it.
  void keep_late_spans() {
    if (traced.empty()) return;
    const auto& late = executor.late_spans();
    traced.back().spans.insert(traced.back().spans.end(), late.begin(), late.end());
  }

  SaveRequest save_request(FileSystem& files, const std::filesystem::path& folder, std::int64_t keep, const ValidationHistory& history) {
    SaveRequest request{
        .files = &files, .folder = folder, .keep = keep, .best = {}, .state = {}, .beside = tables.begin_save(folder, step)};
    if (job.checkpoint.best) request.best = history.best;
    request.state.step = step;
    request.state.tokens = tokens;
    request.state.plan_json = plan::to_json(plan);
    request.state.train_yaml = job.resolved_yaml;
    request.state.model_fingerprint = job.model.fingerprint();
    request.state.seed = job.train.seed;
    history.write(request.state.extra);
    return request;
  }

  // Samples of an evaluation's micro-batch: as many as those of training have, where the replicas of each stage divide them.
  std::int64_t evaluated_at_once() const {
    std::int64_t divisor = 1;
    for (const plan::Stage& stage : plan.stages)
      for (const plan::StrategyRun& run : stage.runs) divisor = std::lcm(divisor, std::int64_t{run.strategy.dp});
    return std::max<std::int64_t>(1, plan.samples() / divisor) * divisor;
  }

  // Of a step's samples, by their places.
  BatchLoader::FillSample fill_of(std::shared_future<StepSamples> samples) const {
    return [this, samples = std::move(samples)](std::int64_t place, const std::vector<data::Row>& rows) {
      dataset.fill(std::shared_future(samples).get().draws.at(static_cast<std::size_t>(place)), rows);
      return true;
    };
  }

  // Whoever first asks for them, a thread of the loader's where it goes ahead, places them.
  std::shared_future<StepSamples> samples_of(std::int64_t step) {
    if (step == std::exchange(next_step, step)) return next_samples;
    std::vector<data::Draw> draws = dataset.draws(step, plan.global_batch);
    next_samples =
        placer
            ? std::async(std::launch::deferred, placer->placing(std::move(draws))).share()
            : std::async(std::launch::deferred, [draws = std::move(draws)] { return StepSamples{.draws = draws, .numbers = {}}; }).share();
    return next_samples;
  }

  // Under their new labels experts are what they were: a step may follow, or a checkpoint.
  void relabel(const ExpertLabels& labels) {
    executor.settle();
    for (int bucket = 0; bucket < store.bucket_count(); ++bucket) saver.keep(bucket);
    relabel_experts(store, comm, job.model, labels);
  }

  // What this rank computes on of samples that were loaded.
  Batches own_parts(const program::Program& program, Batches batches, const StepSamples& samples = {}) const {
    for (std::size_t k = 0; k < batches.size(); ++k)
      for (nn::Batch& whole : batches[k]) {
        const program::Cut& cut = program.cuts[k];
        whole.numbers = samples.numbers;
        whole.seed = seed_of(job.train.seed, static_cast<std::uint64_t>(step));
        whole = nn::moved_to(store.device(), nn::own_part(std::move(whole), {cut.context_size, cut.context_index}));
      }
    return batches;
  }

  // What this rank computes on.
  struct Work {
    Batches batches;
    std::vector<comm::Group> context_groups;
  };

  Work work_of(UnevenPasses passes) const {
    for (nn::Batch& batch : passes.batches) batch = nn::moved_to(store.device(), std::move(batch));
    // All blocks are cut alike.
    return {Batches(program.cuts.size(), passes.batches), std::move(passes.context_groups)};
  }

  // In the next step, while that of the one behind it is made ready.
  Work next_work(const std::shared_future<StepSamples>& samples) {
    const bool last = step + 1 >= job.train.steps;
    Work work;
    if (uneven) {
      work = work_of(uneven->take(step));
      if (!last) uneven->begin(step + 1);
    } else {
      Batches loaded = loader.take(step, program, fill_of(samples));
      work.batches = own_parts(program, std::move(loaded), samples.get());
      loading = last ? std::shared_future<Batches>() : loader.begin(step + 1, program, fill_of(samples_of(step + 1)));
    }
    return work;
  }

  Executor& executor_of(const Work& work) {
    if (!uneven) return executor;
    const std::int64_t passes = std::ssize(work.context_groups);
    const auto found = by_passes.find(passes);
    if (found != by_passes.end()) return found->second;
    return by_passes.try_emplace(passes, uneven->program(passes), job.model, plan.precision, store, comm).first->second;
  }

  // With the gradients of an earlier run, which nothing needs any more then.
  void step_late(int bucket, std::int64_t of) {
    stepping = true;
    saver.keep(bucket);
    store.step(bucket, job.train.optimizer, model::learning_rate(job.train, of), 1.0, of + 1);
    store.zero_grads(bucket);
  }
};

Trainer::Trainer(const model::JobSpec& job, const plan::Plan& plan, const data::Dataset& dataset, comm::Communicator& comm,
                 at::Device device)
    : impl_(std::make_unique<Impl>(job, plan, dataset, comm, device)) {}
Trainer::~Trainer() {
  impl_->executor.settle();
  for (auto& [passes, executor] : impl_->by_passes) executor.settle();
  if (impl_->evaluator) impl_->evaluator->settle();
}

namespace {

[[noreturn]] void refuse_infinite(std::int64_t step) {
  throw Error(ErrorCode::corrupt,
              text("the gradient of step ", step + 1, " is not finite, and parameters were stepped with it before that was known"), {},
              "finite gradients, where plans delay their exchange",
              "go on from the last checkpoint with --resume, under a plan without delayed_exchange: it leaves such steps out");
}

}  // namespace

void Trainer::initialize() {
  ensure(!impl_->executor.unfinished(), "parameters are set before the first step");
  for (int bucket = 0; bucket < impl_->store.bucket_count(); ++bucket) impl_->saver.keep(bucket);
  impl_->store.initialize(impl_->job.train.seed);
  impl_->step = 0;
  impl_->tokens = 0;
  impl_->loaded_history = {};
}

void Trainer::load(const std::filesystem::path& checkpoint, bool whole) {
  ensure(!impl_->executor.unfinished(), "parameters are set before the first step");
  const checkpoint::Reader reader(checkpoint);
  const std::string expected = impl_->job.model.fingerprint();
  if (reader.state().model_fingerprint != expected)
    throw Error(ErrorCode::invalid_config, "the checkpoint is of another model (" + reader.state().model_fingerprint + ")",
                {checkpoint.string(), 0, 0, -1, {}}, "a checkpoint of model " + expected,
                "use the model section of the train.yaml that the run was started with");
  for (int bucket = 0; bucket < impl_->store.bucket_count(); ++bucket) impl_->saver.keep(bucket);
  impl_->store.load(reader, whole);
  impl_->step = whole ? reader.state().step : 0;
  if (whole) impl_->tables.resume_from(checkpoint, impl_->step);
  impl_->tokens = whole ? reader.state().tokens : 0;
  impl_->loaded_history = whole ? ValidationHistory::read(reader.state().extra) : ValidationHistory();
}

void Trainer::begin_with(const std::filesystem::path& checkpoint) {
  load(checkpoint, false);
  impl_->tables.begin_with(checkpoint, checkpoint::Reader(checkpoint).state().step);
}

HeldState Trainer::held_state(Holds holds) const {
  Impl& self = *impl_;
  if (self.stepping || self.executor.unfinished())
    throw Error(ErrorCode::corrupt,
                text("this rank's state is no step's: step ", self.step + 1, " ended in the midst of its optimizer steps"),
                {{}, 0, 0, self.comm.rank(), {}}, {}, "go on from a snapshot, or from the last checkpoint");
  self.executor.settle();
  HeldState out;
  out.state.step = self.step;
  out.state.tokens = self.tokens;
  out.state.seed = self.job.train.seed;
  self.loaded_history.write(out.state.extra);
  for (int bucket = 0; bucket < self.store.bucket_count(); ++bucket)
    for (checkpoint::Piece& piece : self.store.pieces(bucket, holds)) out.pieces.push_back(std::move(piece));
  return out;
}

void Trainer::load(const HeldState& held) {
  Impl& self = *impl_;
  ensure(!self.executor.unfinished(), "parameters are set before the first step");
  const checkpoint::State state = agreed_state(self.comm, held);
  for (int bucket = 0; bucket < self.store.bucket_count(); ++bucket) self.saver.keep(bucket);
  self.store.load([&](std::vector<checkpoint::Piece>& wanted) { fill_from_all(self.comm, held.pieces, wanted); }, true);
  self.step = state.step;
  self.tokens = state.tokens;
  self.loaded_history = ValidationHistory::read(state.extra);
}

bool Trainer::change_plan(const std::optional<plan::Plan>& plan) {
  comm::Communicator& comm = impl_->comm;
  const std::string json = said_by(0, plan && comm.rank() == 0 ? plan::to_json(*plan) : std::string(), comm.world());
  if (json.empty()) return false;
  finish();
  impl_->tables.finish();
  const HeldState held = held_state(Holds::own);
  const std::unique_ptr<Impl> before =
      std::exchange(impl_, std::make_unique<Impl>(impl_->job, plan::read_plan(ConfigNode::parse(json, "plan.json")), impl_->dataset, comm,
                                                  impl_->store.device()));
  impl_->tables.stay_at(before->tables);
  load(held);
  return true;
}

std::optional<OtherServers> Trainer::follow_servers(const std::vector<std::string>& wanted) {
  if (std::exchange(impl_->news_of_servers, false)) {
    finish();
    impl_->tables.follow(wanted);
  }
  return impl_->tables.other_servers();
}

std::optional<OtherServers> Trainer::unsaid_servers() const { return impl_->tables.unsaid_servers(); }
bool Trainer::moves_servers() const { return impl_->tables.moves(); }

const plan::Plan& Trainer::plan() const { return impl_->plan; }

MeasuredLinks Trainer::measure_links(const std::string& link) {
  finish();
  const Meter meter(impl_->comm, Seconds(0));
  const Seconds begin = real_clock().now();
  MeasuredLinks out;
  out.samples = train::measure_links(meter, impl_->comm, link, first_ranks(impl_->plan));
  out.seconds = Seconds(meter.slowest((real_clock().now() - begin).value));
  Seconds steps(0);
  for (const TracedStep& step : impl_->traced) steps += step.whole.end - step.whole.begin;
  const double step = meter.slowest(steps.value / static_cast<double>(std::max<std::size_t>(1, impl_->traced.size())));
  if (step > 0) out.steps = out.seconds.value / step;
  return out;
}

void Trainer::save(FileSystem& files, const std::filesystem::path& folder, std::int64_t keep, const ValidationHistory& history) {
  finish();
  impl_->saver.save(impl_->save_request(files, folder, keep, history), impl_->store.pieces());
}

void Trainer::begin_save(FileSystem& files, const std::filesystem::path& folder, std::int64_t keep, const ValidationHistory& history) {
  finish();
  std::vector<std::vector<checkpoint::Piece>> pieces;
  for (int bucket = 0; bucket < impl_->store.bucket_count(); ++bucket) pieces.push_back(impl_->store.pieces(bucket));
  impl_->saver.begin(impl_->save_request(files, folder, keep, history), std::move(pieces));
}

std::optional<SaveOutcome> Trainer::poll_save() { return impl_->saver.poll(); }
std::optional<SaveOutcome> Trainer::wait_for_save() { return impl_->saver.wait(); }

void Trainer::save_gradients(FileSystem& files, const std::filesystem::path& folder) {
  ensure(impl_->executor.unfinished() || !impl_->plan.delayed_exchange, "late gradients are saved before the step that uses them is made");
  impl_->executor.wait_for_exchange();
  checkpoint::State state;
  state.step = impl_->step;
  state.model_fingerprint = impl_->job.model.fingerprint();
  impl_->saver.save({.files = &files, .folder = folder, .keep = {}, .best = {}, .state = state}, impl_->store.gradient_pieces());
}

std::int64_t Trainer::next_step() const { return impl_->step; }

const ValidationHistory& Trainer::loaded_history() const { return impl_->loaded_history; }

StepReport Trainer::step(bool wish_to_stop, const std::vector<std::string>& wanted_servers) {
  Impl& self = *impl_;
  TracedStep traced;
  traced.step = self.step;
  traced.whole.begin = traced.samples.begin = real_clock().now();
  const std::shared_future<StepSamples> placed = self.samples_of(self.step);
  Impl::Work work = self.next_work(placed);
  self.tables.hold(self.program, work.batches, self.step, self.loading);
  const StepSamples& samples = placed.get();
  Executor& executor = self.executor_of(work);
  executor.read_tables(self.tables.get());
  traced.program = &executor.program();

  const model::OptimizerSpec& optimizer = self.job.train.optimizer;
  StepReport report;
  report.step = self.step;
  report.tokens = self.uneven ? self.uneven->tokens(self.step) : self.plan.global_batch * self.dataset.targets_per_sample();
  report.lr = model::learning_rate(self.job.train, self.step);
  const bool delayed = self.plan.delayed_exchange;
  const bool first = !self.executor.unfinished();
  traced.samples.end = traced.zeroing.begin = real_clock().now();
  if (first) self.store.zero_grads();
  traced.zeroing.end = real_clock().now();
  // Every rank knows what counts in the whole batch: the mean is that of one device, however the batch is cut.
  std::int64_t counted = 0;
  for (const data::Draw& draw : samples.draws) counted += self.dataset.counted_targets(draw.sample);
  const Scalars scalars = executor.run(
      work.batches, 1.0 / static_cast<double>(std::max<std::int64_t>(1, counted)),
      {wish_to_stop, self.meter && self.meter->due(), self.tables.has_news(wanted_servers)},
      [&](int bucket, const Scalars& sums) {
        if (delayed) return self.step_late(bucket, self.step - 1);
        if (!std::isfinite(sums.squared_norm)) return;
        const double norm = std::sqrt(sums.squared_norm);
        const double scale = optimizer.clip > 0 ? std::min(1.0, optimizer.clip / (norm + 1e-6)) : 1.0;
        self.stepping = true;
        self.saver.keep(bucket);
        self.store.step(bucket, optimizer, report.lr, scale, self.step + 1);
      },
      work.context_groups);
  report.loss = scalars.loss / std::max(1.0, scalars.tokens);
  if (delayed && !std::isfinite(scalars.squared_norm)) refuse_infinite(self.step - 1);
  report.grad_norm =
      std::sqrt(delayed && first ? self.finished_norm.value_or(std::numeric_limits<double>::quiet_NaN()) : scalars.squared_norm);
  report.skipped = !std::isfinite(scalars.squared_norm);
  report.stop = scalars.stop > 0;
  self.news_of_servers = scalars.servers > 0;
  self.compare_speeds = scalars.compare > 0;
  report.peak_memory = self.store.device().is_cpu() ? peak_resident() : nn::peak_memory(self.store.device());
  ++self.step;
  self.stepping = false;
  self.tokens += report.tokens;
  traced.whole.end = real_clock().now();
  report.seconds = traced.whole.end - traced.whole.begin;
  self.keep_late_spans();
  traced.spans = executor.spans();
  traced.norm = executor.norm();
  self.traced.push_back(std::move(traced));
  if (self.traced.size() > kTracedSteps) self.traced.pop_front();
  if (self.placer) {
    const auto labels = self.placer->after_step(samples);
    if (labels) {
      finish();
      self.relabel(*labels);
    }
    report.seconds = real_clock().now() - self.traced.back().whole.begin;
  }
  return report;
}

std::optional<PlacementReport> Trainer::placement() const { return impl_->placer ? std::optional(impl_->placer->report()) : std::nullopt; }

void Trainer::finish() {
  Impl& self = *impl_;
  self.tables.wait();
  if (!self.executor.unfinished()) return;
  double squared = self.executor.finish([&](int bucket, const Scalars&) { self.step_late(bucket, self.step - 1); });
  self.keep_late_spans();
  self.comm.world().all_reduce(&squared, 1, comm::DataType::f64).wait();
  if (!std::isfinite(squared)) refuse_infinite(self.step - 1);
  self.stepping = false;
  self.finished_norm = squared;
}

bool Trainer::validates() const { return impl_->dataset.validation_samples() > 0; }

namespace {

void add(const Scalars& scalars, EvaluationReport& report) {
  report.loss += scalars.loss;
  report.tokens += static_cast<std::int64_t>(scalars.tokens);
  report.correct += static_cast<std::int64_t>(scalars.correct);
}

}  // namespace

void Trainer::read_rows(ps::ServingTable rows) { impl_->tables.read(impl_->program, std::move(rows)); }

EvaluationReport Trainer::evaluate(std::int64_t sequences, at::Tensor* scored_samples) {
  ensure(validates(), "an evaluation needs validation sequences");
  finish();
  Impl& self = *impl_;
  const std::int64_t available = self.dataset.validation_samples();
  const std::int64_t wanted = sequences > 0 ? std::min(sequences, available) : available;
  EvaluationReport report;
  nn::Tensors scored = {at::empty({2, 0}, at::kFloat)};
  if (self.uneven) {
    for (std::int64_t begin = 0; begin < wanted; begin += self.plan.global_batch) {
      const Impl::Work work = self.work_of(self.uneven->validation(begin, std::min(wanted - begin, self.plan.global_batch)));
      Executor& evaluator = self.evaluator.emplace(self.uneven->evaluation(std::ssize(work.context_groups)), self.job.model,
                                                   self.plan.precision, self.store, self.comm);
      add(evaluator.run(work.batches, 1.0, {}, {}, work.context_groups), report);
      self.evaluator.reset();
    }
    report.loss /= static_cast<double>(report.tokens);
    return report;
  }
  const std::int64_t samples = self.evaluated_at_once();
  const std::int64_t micro_batches = std::max<std::int64_t>(1, (wanted + samples - 1) / samples);
  for (std::int64_t begin = 0; begin < micro_batches; begin += self.held_while_evaluating(samples)) {
    const std::int64_t count = std::min(micro_batches - begin, self.held_while_evaluating(samples));
    const program::Program program = program::compile_evaluation(self.plan, self.job.model, count, samples).at(self.comm.rank());
    // Where it throws it must outlive the error: its buffers may still be received into.
    Executor& evaluator = self.evaluator.emplace(program, self.job.model, self.plan.precision, self.store, self.comm);
    Batches batches = self.own_parts(program, self.loader.load(program, [&](std::int64_t sample, const auto& rows) {
      if (begin * samples + sample >= wanted) return false;
      self.dataset.fill_validation(begin * samples + sample, rows);
      return true;
    }));
    self.tables.hold(program, batches, std::nullopt, {});
    evaluator.read_tables(self.tables.get());
    add(evaluator.run(batches, 1.0, {}, {}), report);
    scored.insert(scored.end(), evaluator.scored().begin(), evaluator.scored().end());
    self.evaluator.reset();
  }
  report.loss /= static_cast<double>(report.tokens);
  if (model::reads_clicks(self.job.model)) {
    const at::Tensor all = at::cat(scored, 1);
    report.auc = area_under_curve(self.comm, all);
    if (self.job.data.negatives < 1) report.loss = calibrated_log_loss(self.comm, all, self.job.data.negatives);
    if (scored_samples != nullptr) {
      *scored_samples = all;
      scored_samples->select(0, 0).add_(std::log(self.job.data.negatives));
    }
  }
  return report;
}

namespace {

// On rank 0, what all ranks have written; empty elsewhere.
void gather(comm::Communicator& comm, program::ChromeTrace& trace) {
  std::vector<std::int64_t> sizes(comm.world_size());
  const auto own = static_cast<std::int64_t>(trace.events().size());
  comm.world().all_gather(&own, sizes.data(), 1, comm::DataType::i64).wait();
  constexpr std::uint32_t kTag = 0;
  if (comm.rank() != 0) {
    comm.world().send(std::as_bytes(std::span(trace.events())), 0, kTag).wait();
    return;
  }
  for (int rank = 1; rank < comm.world_size(); ++rank) {
    std::string events(sizes[rank], ' ');
    comm.world().receive(std::as_writable_bytes(std::span(events)), rank, kTag).wait();
    trace.append(events);
  }
}

}  // namespace

std::string Trainer::tables_report() {
  finish();
  return impl_->tables.report(impl_->step);
}

std::string Trainer::chrome_trace() {
  finish();
  Impl& self = *impl_;
  const program::Program& program = self.program;
  const Seconds offset = ahead(self.comm);
  double origin = self.traced.empty() ? std::numeric_limits<double>::max() : (self.traced.front().whole.begin + offset).value;
  self.comm.world().all_reduce(&origin, 1, comm::DataType::f64, comm::Reduction::min).wait();
  const Seconds shift = offset - Seconds(origin);
  program::ChromeTrace trace;
  trace.add_rank(program);
  for (const TracedStep& step : self.traced) {
    trace.add_step(*step.program, step.step, step.whole.begin + shift, step.whole.end + shift);
    const std::pair<const char*, const nn::Interval*> works[] = {
        {"samples", &step.samples}, {"zero_gradients", &step.zeroing}, {"gradient_norm", &step.norm}};
    for (const auto& [name, work] : works)
      if (work->end > work->begin) trace.add_work(*step.program, name, step.step, work->begin + shift, work->end + shift);
    for (const InstructionSpan& span : step.spans) {
      trace.add(*step.program, span.instruction, step.step, span.begin + shift, span.end + shift);
      for (const nn::Interval& exchange : span.exchanges)
        trace.add_exposed(*step.program, span.instruction, step.step, exchange.begin + shift, exchange.end + shift);
    }
  }
  gather(self.comm, trace);
  return self.comm.rank() == 0 ? trace.to_json() : std::string();
}

std::vector<SpeedChange> Trainer::watch_speed() {
  Impl& self = *impl_;
  // Where every step has passes of its own, none is like the last.
  if (self.comm.world_size() == 1 || self.uneven) return {};
  if (!self.meter) self.meter.emplace(program::compile(self.plan, self.job.model), self.comm);
  // Exchanges that go on are known a step later.
  const std::size_t back = self.plan.delayed_exchange ? 2 : 1;
  if (self.traced.size() < back) return {};
  const TracedStep& traced = self.traced[self.traced.size() - back];
  program::TracedRank step{{traced.whole.begin, traced.whole.end}, {}, {}};
  for (const InstructionSpan& span : traced.spans) {
    program::TracedInstruction& instruction = step.instructions[span.instruction];
    instruction.op = self.program.instructions[static_cast<std::size_t>(span.instruction)].op;
    instruction.time = {span.begin, span.end};
    for (const nn::Interval& exchange : span.exchanges) instruction.exchanges.push_back({exchange.begin, exchange.end});
  }
  return self.meter->add(step, std::exchange(self.compare_speeds, false));
}

TrafficByDimension Trainer::sent() const { return train::sent(impl_->comm); }

Bytes peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("VmHWM:")) continue;
    std::istringstream fields(line.substr(6));
    std::int64_t kibibytes = 0;
    fields >> kibibytes;
    return Bytes(kibibytes * 1024);
  }
  return Bytes(0);
}

}  // namespace tessera::train
