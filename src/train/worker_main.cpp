// tessera-worker: one rank of a job, started by launchers and by the `tessera` command; the one place that joins the torch
// rooms with the observing ones.

#include <ATen/Parallel.h>
#include <torch/version.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>

#include "base/config.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/secret.hpp"
#include "base/standard_output.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/hugging_face.hpp"
#include "checkpoint/torchvision.hpp"
#include "cluster/cluster.hpp"
#include "control/report.hpp"
#include "control/stop_signals.hpp"
#include "model/forms.hpp"
#include "model/job.hpp"
#include "model/plugin.hpp"
#include "model/warnings.hpp"
#include "nn/memory.hpp"
#include "observe/other_servers.hpp"
#include "observe/progress.hpp"
#include "observe/resume.hpp"
#include "observe/run_files.hpp"
#include "plan/plan.hpp"
#include "plan/schedule/schedule.hpp"
#include "train/loop.hpp"
#include "train/own_servers.hpp"
#include "train/plugin_model.hpp"
#include "train/rebalance.hpp"
#include "train/tables.hpp"
#include "train/traffic.hpp"
#include "train/worker_commands.hpp"

namespace tessera {
namespace {

struct TrainArguments {
  std::string yaml;
  std::vector<std::string> overrides;
  std::vector<std::string> changed;
  std::string plan;
  std::string cluster;
  std::string profile;
  std::string run;
  bool resume = false;
  bool json = false;
  bool quiet = false;
  bool prepare = false;
  bool overwrite = false;
  std::int64_t stop_after = 0;
  std::string gradients;
  train::RankOptions rank;
};

// Rank 0 writes the run's files and shows the progress; the others are silent.
class RunObserver final : public train::LoopObserver {
 public:
  RunObserver(const TrainArguments& arguments, const model::JobSpec& job, const plan::Plan& plan, const cluster::ClusterSpec& cluster,
              const std::optional<profile::Profile>& profile, const train::Trainer& trainer, double unigram_entropy)
      : job_(job),
        json_(arguments.json && !arguments.quiet),
        unigram_entropy_(unigram_entropy),
        run_(arguments.run),
        named_servers_(!job.parameter_servers.places.empty() && plan.servers.empty()),
        trainer_(trainer),
        // A run that is complete is only evaluated again.
        writer_(arguments.run, trainer.next_step(), trainer.next_step() + (train::is_complete(job, trainer) ? 0 : 1)),
        // Of samples that all have the full length.
        flops_per_sample_(job.data.lengths ? 0 : model::training_flops_per_sample(job.model).value) {
    if (profile) rebalancer_.emplace(job, cluster, *profile);
    for (const plan::RankPlace& place : plan.ranks) {
      const cluster::Device& device = cluster.groups.at(static_cast<std::size_t>(place.group)).device;
      peak_ += device.peak_of(plan.precision).value * (device.cores > 0 ? place.threads : 1);
    }
    if (json_ || arguments.quiet) return;
    observe::ProgressOptions options = observe::ProgressOptions::from_environment();
    options.counted = model::counted_in(job.model);
    progress_ = std::make_unique<observe::Progress>(job.train.steps, trainer.next_step(), job.log.every, std::move(options));
  }

  void on_step(const train::StepReport& report) override {
    observe::StepMetrics metrics;
    metrics.step = report.step;
    metrics.loss = report.loss;
    metrics.tokens = report.tokens;
    metrics.seconds = report.seconds.value;
    metrics.tokens_per_s = static_cast<double>(report.tokens) / report.seconds.value;
    const double flops = flops_per_sample_ * static_cast<double>(job_.train.global_batch) / report.seconds.value;
    metrics.tflops = flops / 1e12;
    metrics.mfu = peak_ > 0 ? flops / peak_ : 0;
    metrics.grad_norm = report.grad_norm;
    metrics.lr = report.lr;
    metrics.memory = report.peak_memory.value;
    writer_.step(metrics);
    if (json_)
      std::printf("%s\n", observe::to_json(metrics).c_str()), std::fflush(stdout);
    else if (progress_)
      progress_->step(metrics);
  }

  void on_evaluation(std::int64_t steps, const train::EvaluationReport& report, bool stops_early) override {
    observe::EvaluationMetrics metrics{steps, report.loss, stops_early};
    const bool classifies = model::classifies(job_.model);
    if (classifies) metrics.accuracy = static_cast<double>(report.correct) / static_cast<double>(report.tokens);
    metrics.auc = report.auc;
    writer_.evaluation(metrics);
    if (json_) std::printf("%s\n", observe::to_json(metrics).c_str()), std::fflush(stdout);
    std::string line = text("validation loss ", fixed(report.loss, 4), " after ", steps, " steps");
    line += classifies                         ? text(" (accuracy ", fixed(100 * *metrics.accuracy, 2), " %)")
            : report.auc                       ? text(" (AUC ", fixed(*report.auc, 4), ")")
            : !model::reads_clicks(job_.model) ? text(" (perplexity ", fixed(std::exp(report.loss), 4), against_unigrams(report.loss), ")")
                                               : std::string();
    if (progress_)
      progress_->evaluation(steps, report.loss, line);
    else
      log::info(line);
  }

  void on_saved(std::int64_t steps) override { note(text("checkpoint of step ", steps)); }

  void on_warning(const std::string& warning) override {
    if (progress_)
      progress_->warning(warning);
    else
      log::warning(warning);
  }

  void on_note(const std::string& line) override { note(line); }

  std::optional<plan::Plan> on_other_speeds(const std::vector<train::SpeedChange>& changes, const train::MeasuredLinks& links) override {
    const bool measured = !links.samples.empty();
    if (measured) {
      const std::string found = rebalancer_->take_links(trainer_.plan(), links.samples);
      note(text("after step ", trainer_.next_step(), " the links between hosts were measured again in ", to_text(links.seconds), ": ",
                found));
      write_whole(real_file_system(), run_ / "profile.json", profile::to_json(rebalancer_->profile()));
    }
    const std::optional<train::Rebalanced> answer = rebalancer_->answer(trainer_.plan(), changes);
    if (!answer) {
      if (measured) note(text("after step ", trainer_.next_step(), " the plan stays: no other one is expected to be 3 % faster"));
      return {};
    }
    note(text("after step ", trainer_.next_step(), " ", answer->words));
    // Who goes on with the run goes on under this plan.
    write_whole(real_file_system(), run_ / "plan.json", plan::to_json(answer->plan));
    write_whole(real_file_system(), run_ / "cluster.yaml", cluster::to_yaml(answer->cluster));
    return answer->plan;
  }

  std::vector<std::string> wanted_servers() override {
    if (!named_servers_) return {};
    try {
      return observe::asked_servers(run_);
    } catch (const Error& error) {
      on_warning(error.what());
      tolerate([&] { observe::forget_request(run_); });
      return {};
    }
  }

  void on_other_servers(const train::OtherServers& other) override {
    std::string places;
    for (const std::string& place : other.places) places += (places.empty() ? "" : ", ") + place;
    if (other.refused.empty())
      note(text("after step ", other.after_step, " the run goes on with the parameter servers ", places, ": ", other.rows,
                " rows were copied in ", to_text(other.beside), " beside steps, and steps waited ", to_text(other.stood)));
    else
      on_warning(text("the run keeps its parameter servers, and has not taken ", places, ": ", other.refused));
    say_taken(other);
  }

  void on_early_stop(std::int64_t steps, const train::ValidationHistory& history) override {
    std::string line =
        text("stopped early after ", steps, " of ", job_.train.steps, " steps: ", history.without_gain,
             history.without_gain == 1 ? " evaluation has" : " evaluations in a row have", " not lowered the validation loss");
    if (job_.train.early_stop->min_gain > 0) line += text(" by ", job_.train.early_stop->min_gain);
    if (history.best) line += text("; the lowest was ", fixed(history.best->validation_loss, 4), " after ", history.best->step, " steps");
    if (json_) std::printf("%s\n", observe::json_object({{"stopped_early", line}}).c_str()), std::fflush(stdout);
    note(line);
  }

  void finish() {
    if (progress_) progress_->finish();
    const std::vector<std::string> left = wanted_servers();
    if (!left.empty()) say_taken({.places = left, .after_step = trainer_.next_step(), .refused = "the run has ended"});
  }

 private:
  std::string against_unigrams(double loss) const {
    if (unigram_entropy_ <= 0) return {};
    const double gain = unigram_entropy_ - loss;
    return text("; unigram entropy ", fixed(unigram_entropy_, 4), ": ", fixed(std::abs(gain), 4), " nats ", gain >= 0 ? "better" : "worse");
  }

  // A disk that is full ends no training.
  template <typename Work>
  void tolerate(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      on_warning(error.what());
    }
  }

  void say_taken(const train::OtherServers& other) {
    tolerate([&] {
      observe::say_servers_taken(run_, {.places = other.places,
                                        .after_step = other.after_step,
                                        .rows = other.rows,
                                        .beside = other.beside.value,
                                        .stood = other.stood.value,
                                        .refused = other.refused});
    });
  }

  // Shown where there is a progress; recorded in any case.
  void note(const std::string& line) {
    if (progress_)
      progress_->note(line);
    else
      log::info(line);
  }

  const model::JobSpec& job_;
  const bool json_;
  const double unigram_entropy_;
  const std::filesystem::path run_;
  const bool named_servers_;
  const train::Trainer& trainer_;
  std::optional<train::Rebalancer> rebalancer_;
  observe::RunWriter writer_;
  const double flops_per_sample_;
  double peak_ = 0;
  std::unique_ptr<observe::Progress> progress_;
};

class SilentObserver final : public train::LoopObserver {
 public:
  void on_step(const train::StepReport&) override {}
  void on_evaluation(std::int64_t, const train::EvaluationReport&, bool) override {}
  void on_saved(std::int64_t) override {}
  void on_warning(const std::string&) override {}
  void on_note(const std::string&) override {}
  void on_early_stop(std::int64_t, const train::ValidationHistory&) override {}
};

void write_memory(const std::filesystem::path& run, int rank) {
  write_whole(real_file_system(), run / "memory" / text("rank-", rank, ".json"),
              text("{\"rank\": ", rank, ", \"peak_resident\": ", train::peak_resident().value, "}\n"));
}

// Ranks that were started with other files would compute something else together, and not notice.
std::string task_of(const TrainArguments& arguments, const model::JobSpec& job, const plan::Plan& plan) {
  const ConfigNode root = ConfigNode::parse(job.resolved_yaml, "train.yaml");
  std::string all = text(TESSERA_VERSION, plan::to_json(plan), job.model.fingerprint(), arguments.resume, arguments.stop_after);
  for (const char* section : {"train", "checkpoint"})
    if (root.has(section)) all += root.at(section).to_yaml();
  return text(job.name, " ", hash128_hex(all).substr(0, 8));
}

void check_same_data(const data::Dataset& dataset, comm::Communicator& comm) {
  const data::TextDataset* sequences = data::as_text(dataset);
  const std::string own = text(dataset.tokenizer() != nullptr ? dataset.tokenizer()->fingerprint() : "", " ", dataset.content_hash());
  std::int64_t least = static_cast<std::int64_t>(hash64(own) >> 1);
  std::int64_t most = least;
  comm.world().all_reduce(&least, 1, comm::DataType::i64, comm::Reduction::min).wait();
  comm.world().all_reduce(&most, 1, comm::DataType::i64, comm::Reduction::max).wait();
  if (least != most)
    throw Error(ErrorCode::invalid_config,
                sequences != nullptr ? "the ranks do not read the same text, or not with the same tokenizer"
                                     : "the ranks do not read the same samples",
                {{}, 0, 0, comm.rank(), {}}, "the same data section, and the same files behind it, on all hosts");
}

// Each rank writes its part of a checkpoint into the run's folder.
void check_shared(const std::filesystem::path& run, comm::Communicator& comm) {
  std::int64_t mark = comm.rank() == 0 ? static_cast<std::int64_t>(std::random_device()()) : 0;
  comm.world().broadcast(&mark, 1, comm::DataType::i64, 0).wait();
  const std::filesystem::path file = run / "memory" / text("seen-", mark);
  if (comm.rank() == 0) write_whole(real_file_system(), file, "");
  comm.world().barrier().wait();
  std::int64_t seen = std::filesystem::exists(file) ? 1 : 0;
  comm.world().all_reduce(&seen, 1, comm::DataType::i64, comm::Reduction::min).wait();
  if (comm.rank() == 0) real_file_system().remove_all(file);
  if (seen == 0)
    throw Error(ErrorCode::invalid_config, "not every rank sees the run's folder, where each writes its part of a checkpoint",
                {run.string(), 0, 0, comm.rank(), {}}, "a folder on a file system that all hosts share", "name one with --run");
}

// The checkpoint that train.init stands for; a Hugging Face folder or a file with a state dict becomes one of the run's own, of step 0.
std::filesystem::path initial_weights(const model::JobSpec& job, const std::filesystem::path& checkpoints, comm::Communicator& comm) {
  const std::filesystem::path& init = job.train.init;
  const bool hugging_face = std::filesystem::exists(init / "config.json") && !std::filesystem::exists(init / "manifest.json");
  const bool state_dict = std::filesystem::is_regular_file(init);
  if (!hugging_face && !state_dict) return train::checkpoint_of(init);
  if (comm.rank() == 0) {
    std::string anew;
    for (const std::string& name :
         (hugging_face ? checkpoint::import_hf_weights : checkpoint::import_state_dict)(init, job.model, job.train.seed, checkpoints))
      anew += (anew.empty() ? "" : ", ") + name;
    if (!anew.empty())
      log::show(text(anew, " begin with initial weights: ", init.string(), " has none for ", job.model.dim("classes"), " classes"));
  }
  comm.world().barrier().wait();
  return checkpoint::step_folder(checkpoints, 0);
}

// A rank may have to wait for another's whole share of a step, or of a checkpoint on a slow disk.
Seconds deadline_of(const plan::Plan& plan, const model::ModelSpec& model) {
  constexpr Seconds kLeast(300);
  constexpr double kStateBytes = 12;  // of a parameter: weight and two moments
  constexpr double kSlowDisk = 20e6;  // bytes a second
  const Seconds disk(static_cast<double>(model.parameter_count()) * kStateBytes / kSlowDisk);
  return std::max({kLeast, disk, plan.predicted ? plan.predicted->step * 20 : kLeast});
}

Error stopped_after(std::int64_t step, std::int64_t steps, bool saved) {
  return {ErrorCode::interrupted,
          text("stopped after step ", step, " of ", steps, ", as a signal asked", saved ? ", with a checkpoint" : ""),
          {},
          {},
          saved ? "go on with --resume" : ""};
}

void train_rank(const TrainArguments& arguments) {
  const Where rank_only{{}, 0, 0, arguments.rank.rank, {}};
  control::end_when_asked(
      Error(ErrorCode::interrupted, "stopped before the first step, as a signal asked; there was nothing to save", rank_only));
  // A terminal or pipe that goes away ends no training: what would be shown is in the log.
  std::signal(SIGPIPE, SIG_IGN);
  const bool prepares = arguments.prepare && arguments.rank.rank == 0;
  // Warnings about what all ranks read are said once: by rank 0, or by the `tessera train` that started it.
  std::optional<log::Silence> said_elsewhere;
  if (!prepares) said_elsewhere.emplace();
  const std::filesystem::path run = arguments.run;
  model::JobSpec job = model::read_job(arguments.yaml, arguments.overrides);
  const plan::Plan plan = plan::load_plan(arguments.plan);
  // What the launcher saw: a worker that is held to some of the cores cannot tell for itself.
  cluster::ClusterSpec cluster = arguments.cluster.empty() ? cluster::resolve(job.cluster) : cluster::load_cluster(arguments.cluster);
  std::optional<profile::Profile> profile;
  if (!arguments.profile.empty()) profile = profile::load_profile(arguments.profile);
  if (profile && arguments.cluster.empty()) cluster = profile::at_measured_speeds(cluster, *profile);
  plan::check(plan, job, cluster);
  plan::check_trained(plan, job.model);
  model::check_has_blocks(job.model, job.train.precision, {.file = job.file.string(), .block = {}});
  if (plan.world_size() != arguments.rank.world)
    throw Error(ErrorCode::invalid_config, text("the plan is for ", plan.world_size(), " ranks"),
                {arguments.plan, 0, 0, arguments.rank.rank, {}}, text("a plan for the ", arguments.rank.world, " ranks that were started"),
                "start as many workers as the plan has ranks, or make another plan");
  if (arguments.rank.rank < 0 || arguments.rank.rank >= plan.world_size())
    throw Error(ErrorCode::invalid_config, text("there is no rank ", arguments.rank.rank), {arguments.plan, 0, 0, -1, {}},
                text("0 to ", plan.world_size() - 1));
  const observe::IfExists if_exists = observe::if_exists_of(arguments.resume, arguments.overwrite);
  if (prepares) {
    observe::check_run(run, if_exists);
    for (const std::string& warning : model::warnings_of(job)) log::warning(warning);
  }
  const at::Device device = train::device_of(plan, cluster, arguments.rank.rank);
  train::set_host_threads(plan, arguments.rank.rank, device);
  // Servers of the run's own have its secret.
  if (!plan.servers.empty()) ::setenv(kServersSecretVariable, arguments.rank.secret().c_str(), 1);
  const auto comm = arguments.rank.connect(task_of(arguments, job, plan), deadline_of(plan, job.model), device);
  std::optional<observe::RunLock> lock;
  std::optional<train::OwnServers> servers;
  // Destroyed after an error has been told to the other ranks.
  std::unique_ptr<data::Dataset> dataset;
  std::optional<train::Trainer> held;
  std::optional<Error> stopped;
  try {
    dataset = data::open_dataset(job.data, job.model, job.train.seed);
    const data::TextDataset* sequences = data::as_text(*dataset);
    check_same_data(*dataset, *comm);
    if (prepares) {
      for (const std::string& note : dataset->notes()) log::show(note);
      // As `tessera train` does for the ranks that it starts: a run that exists is touched when there is nothing left to refuse.
      const std::string yaml = model::portable_yaml(arguments.yaml, arguments.overrides);
      if (arguments.resume) observe::show_changes(observe::check_resumed(job, yaml, *dataset, run, arguments.changed));
      if (!arguments.resume) train::check_servers(job, *comm);
      lock.emplace(observe::make_run(run, if_exists, job, yaml, plan, cluster, *dataset));
    }
    if (arguments.rank.rank == 0) real_file_system().create_directories(run / "memory");
    check_shared(run, *comm);
    if (arguments.rank.rank == 0) {
      said_elsewhere.reset();
      log::set_file(run / "log.txt");
    }
    if (!plan.servers.empty()) {
      job.parameter_servers.places =
          servers.emplace(plan, job.parameter_servers, *comm, arguments.rank.address(), arguments.rank.secret()).places();
    }
    train::Trainer& trainer = held.emplace(job, plan, *dataset, *comm, device);
    const std::filesystem::path checkpoints = run / "checkpoints";
    if (arguments.resume) {
      // Rank 0 looks, so that all ranks load the same one.
      std::int64_t step = -1;
      if (arguments.rank.rank == 0) {
        checkpoint::clean(real_file_system(), checkpoints);
        step = checkpoint::Reader(checkpoint::find(checkpoints)).state().step;
        checkpoint::set_aside_after(real_file_system(), checkpoints, step);
      }
      comm->world().broadcast(&step, 1, comm::DataType::i64, 0).wait();
      trainer.load(checkpoint::step_folder(checkpoints, step));
    } else if (!job.train.init.empty()) {
      trainer.begin_with(initial_weights(job, checkpoints, *comm));
    } else {
      trainer.initialize();
    }
    const bool rebalance = job.train.rebalance && profile;
    const train::LoopOptions options{checkpoints,
                                     arguments.stop_after,
                                     arguments.gradients.empty(),
                                     rebalance,
                                     cluster.groups.at(static_cast<std::size_t>(plan.ranks.front().group)).network.name,
                                     &control::stop_when_asked()};
    train::LoopOutcome outcome;
    if (arguments.rank.rank == 0) {
      observe::forget_request(run);  // of a process before
      RunObserver observer(arguments, job, plan, cluster, profile, trainer,
                           sequences != nullptr && sequences->tokenizer() != nullptr && trainer.validates()
                               ? sequences->unigram_entropy_of_validation()
                               : 0);
      outcome = train::run_loop(job, trainer, real_file_system(), options, observer);
      observer.finish();
    } else {
      SilentObserver observer;
      outcome = train::run_loop(job, trainer, real_file_system(), options, observer);
    }
    if (!arguments.gradients.empty()) trainer.save_gradients(real_file_system(), arguments.gradients);
    const std::string trace = trainer.chrome_trace();
    if (arguments.rank.rank == 0) write_whole(real_file_system(), run / "trace.json", trace);
    write_memory(run, arguments.rank.rank);
    const train::TrafficByDimension sent = train::difference(trainer.sent(), outcome.sent_before);
    const std::optional<train::PlacementReport> placement = trainer.placement();
    if (arguments.rank.rank == 0) {
      const std::int64_t steps = trainer.next_step() - outcome.plan_since;
      // By the lengths of samples every step sends something else.
      const auto planned = trainer.plan().lengths ? std::nullopt : std::optional(train::planned(trainer.plan(), job.model, steps));
      write_whole(real_file_system(), run / "traffic.json", train::to_json(sent, planned, steps, placement));
    }
    const std::string tables = trainer.tables_report();
    if (!tables.empty()) write_whole(real_file_system(), run / "servers.json", tables);
    comm->world().barrier().wait();
    if (outcome.stopped) stopped = stopped_after(trainer.next_step(), job.train.steps, options.keep);
  } catch (const Error& error) {
    comm->abort(error.message());
    throw;
  } catch (const std::exception& error) {  // libtorch's, or no memory
    comm->abort(error.what());
    throw;
  }
  if (stopped) throw *stopped;
}

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "One rank of a training job");
  auto arguments = std::make_shared<TrainArguments>();
  command->add_option("train_yaml", arguments->yaml)->required();
  command->add_option("--plan", arguments->plan)->required();
  command->add_option("--cluster", arguments->cluster, "The cluster that the plan was made for");
  command->add_option("--profile", arguments->profile,
                      "What the plan was made from: with it the plan is made anew, between two steps, when hosts or links between them "
                      "become slow or fast");
  command->add_option("--run", arguments->run, "The run's folder")->required();
  command->add_option("--set", arguments->overrides)->type_name("KEY=VALUE");
  command->add_flag("--resume", arguments->resume);
  command->add_flag("--json", arguments->json);
  command->add_flag("--quiet", arguments->quiet);
  command->add_flag("--prepare", arguments->prepare, "Make the run's folder first, which must not exist, or must with --resume");
  command->add_flag("--overwrite", arguments->overwrite, "With --prepare: replace it");
  command->add_option("--change", arguments->changed, "With --prepare and --resume: what of the data may be others")->delimiter(',');
  command->add_option("--stop-after", arguments->stop_after, "Make at most this many steps");
  command->add_option("--gradients", arguments->gradients, "Write the last step's gradients to this folder, and no checkpoint");
  arguments->rank.add_to(*command);
  command->callback([arguments] { train_rank(*arguments); });
}

void parse_and_run(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    app.exit(done);
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::invalid_config, text("tessera-worker: ", error.what()), {}, {}, "`tessera-worker --help` shows what it takes");
  }
}

int run(int argc, char** argv) {
  CLI::App app("tessera-worker: one rank of a job; started by launchers and by the tessera command", "tessera-worker");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("tessera-worker " TESSERA_VERSION ", torch " TORCH_VERSION));
  add_train(app);
  train::add_commands(app);
  nn::configure_memory();
  model::set_plugin_reader(train::read_plugin_model);
  try {
    parse_and_run(app, argc, argv);
    flush_standard_output();
    return 0;
  } catch (const Error& error) {
    control::report_error(error);
    return exit_code(error.code());
  } catch (const std::exception& error) {
    // libtorch has no type of its own for what its allocator of CPU memory is refused.
    const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
                        std::string_view(error.what()).find("allocate memory") != std::string_view::npos;
    const Error wrapped =
        memory ? Error(ErrorCode::resource_exhausted, "out of memory", {}, {}, "use a smaller micro-batch, recomputation or more ranks")
               : Error(ErrorCode::internal, error.what());
    control::report_error(wrapped);
    return exit_code(wrapped.code());
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const int code = tessera::run(argc, argv);
  std::fflush(nullptr);
  // What is ours is closed by now. To take libtorch's registries apart lasts a third as long as a worker that does nothing.
  ::_exit(code);
}
