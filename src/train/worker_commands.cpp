#include "train/worker_commands.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/sub.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "base/secret.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/hugging_face.hpp"
#include "checkpoint/torchvision.hpp"
#include "cluster/processors.hpp"
#include "comm/sockets.hpp"
#include "data/data.hpp"
#include "model/forms.hpp"
#include "model/job.hpp"
#include "model/plugin.hpp"
#include "model/run_name.hpp"
#include "model/spec_json.hpp"
#include "nn/device.hpp"
#include "plan/plan.hpp"
#include "train/finished.hpp"
#include "train/generate.hpp"
#include "train/measure.hpp"
#include "train/tables.hpp"
#include "train/trainer.hpp"

namespace tessera::train {
namespace {

void add_compare(CLI::App& app) {
  struct Arguments {
    std::string ours;
    std::string reference;
    std::string output;
    RankOptions rank;
  };
  CLI::App* command = app.add_subcommand("compare", "How far the tensors of two checkpoints are apart, the farthest first");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("ours", arguments->ours)->required();
  command->add_option("reference", arguments->reference)->required();
  command->add_option("--output", arguments->output)->required();
  arguments->rank.add_to(*command);
  command->callback([arguments] {
    const auto newest = [](const std::string& folder) {
      const auto found = checkpoint::latest(folder);
      if (!found) throw Error(ErrorCode::not_found, "no usable checkpoint", {folder, 0, 0, -1, {}});
      return checkpoint::Reader(*found);
    };
    const checkpoint::Reader ours = newest(arguments->ours);
    const checkpoint::Reader reference = newest(arguments->reference);
    std::vector<std::pair<double, std::string>> differences;
    for (const auto& tensor : reference.tensors()) {
      const at::Tensor expected = reference.read(tensor.name).to(at::kDouble);
      const at::Tensor difference = at::sub(ours.read(tensor.name).to(at::kDouble), expected);
      differences.emplace_back(difference.norm().item<double>() / std::max(1e-30, expected.norm().item<double>()), tensor.name);
    }
    std::sort(differences.rbegin(), differences.rend());
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const auto& [difference, name] : differences) out.push_back({{"name", name}, {"difference", difference}});
    write_whole(real_file_system(), arguments->output, out.dump() + "\n");
  });
}

// The same section in the file that it comes from, where errors have lines, unless an override has changed it since.
ConfigNode section_in(const std::string& file, const ConfigNode& section) {
  if (file.empty()) return section;
  const ConfigNode root = ConfigNode::load(file);
  if (root.is_map() && root.has("model") && root.at("model").is_map() && root.at("model").has("plugin") &&
      model::portable_plugin_section(root.at("model")) == section.to_yaml())
    return root.at("model");
  return ConfigNode::parse(section.to_yaml(), file + " with --set, the model section");
}

void add_model(CLI::App& app) {
  struct Arguments {
    std::string section;
    std::string file;
    std::string output;
  };
  CLI::App* command = app.add_subcommand("model", "Describe the model of a plug-in to a program without libtorch");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("section", arguments->section, "A file with the model section, whose paths are absolute")->required();
  command->add_option("--file", arguments->file, "Where it comes from, for errors");
  command->add_option("--output", arguments->output)->required();
  command->callback([arguments] {
    const ConfigNode section = section_in(arguments->file, ConfigNode::load(arguments->section));
    write_whole(real_file_system(), arguments->output, model::to_json(model::read_model(section)));
  });
}

void add_device(CLI::App& app) {
  struct Arguments {
    std::string plan;
    std::string cluster;
    RankOptions rank;
  };
  CLI::App* command = app.add_subcommand("device", "Fail where this rank of a plan has no device to compute on");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--plan", arguments->plan)->required();
  command->add_option("--cluster", arguments->cluster)->required();
  arguments->rank.add_to(*command);
  command->callback(
      [arguments] { device_of(plan::load_plan(arguments->plan), cluster::load_cluster(arguments->cluster), arguments->rank.rank); });
}

void add_servers(CLI::App& app) {
  struct Arguments {
    std::string yaml;
    RankOptions rank;
  };
  CLI::App* command = app.add_subcommand("servers", "Fail where the parameter servers that a run names would not begin it");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("train_yaml", arguments->yaml)->required();
  arguments->rank.add_to(*command);
  command->callback([arguments] {
    const model::JobSpec job = model::read_job(arguments->yaml);
    const auto comm = comm::Communicator::connect({});
    check_servers(job, *comm);
  });
}

void add_measure(CLI::App& app) {
  struct Arguments {
    std::string yaml;
    std::vector<std::string> overrides;
    std::string output;
    MeasureOptions options;
    RankOptions rank;
    int hosts = 0;
  };
  CLI::App* command = app.add_subcommand("measure", "Measure blocks and collectives, all ranks at once");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("train_yaml", arguments->yaml)->required();
  command->add_option("--output", arguments->output)->required();
  command->add_option("--threads", arguments->options.threads);
  command->add_option("--link", arguments->options.link, "What joins the workers");
  command->add_option("--per-host", arguments->options.per_host, "Workers on each host; 0: all are on one");
  command->add_option("--hosts", arguments->hosts, "With --per-host: how many hosts there must be");
  command->add_option("--budget", arguments->options.budget.value, "Seconds for blocks, and again for communication")->required();
  command->add_option("--sample", arguments->options.sample.value, "Seconds that a sample lasts at least");
  command->add_option("--set", arguments->overrides)->type_name("KEY=VALUE");
  arguments->rank.add_to(*command);
  command->callback([arguments] {
    const model::JobSpec job = model::read_job(arguments->yaml, arguments->overrides);
    const int wanted = arguments->hosts * arguments->options.per_host;
    if (wanted > 0 && arguments->rank.world != wanted)
      throw Error(ErrorCode::invalid_config, text("the launcher started ", arguments->rank.world, " workers"), {},
                  text(wanted, ": ", arguments->options.per_host, " on each of ", arguments->hosts, " hosts"),
                  "where it starts one on each host, give each one device in the cluster file (devices_per_node: 1)");
    const auto comm = arguments->rank.connect("measure");
    const profile::Profile profile = measure(job, *comm, arguments->options);
    if (arguments->rank.rank == 0) write_whole(real_file_system(), arguments->output, profile::to_json(profile));
    comm->world().barrier().wait();
  });
}

// RUN or RUN@STEP: the run's job, the checkpoint, its tokenizer.
struct LoadedRun {
  std::filesystem::path folder;
  model::JobSpec job;
  std::filesystem::path checkpoint;

  explicit LoadedRun(const std::string& words) {
    const model::RunName name = model::find_run(words);
    folder = name.folder;
    job = model::read_job(folder / "train.yaml");
    checkpoint = checkpoint::find(folder / "checkpoints", name.step);
  }
  std::filesystem::path tokenizer_file() const {
    for (const char* name : {"tokenizer.json", "tokenizer.model"})
      if (std::filesystem::exists(folder / name)) return folder / name;
    throw Error(ErrorCode::not_found, "the run has no tokenizer", {folder.string(), 0, 0, -1, {}}, "tokenizer.json or tokenizer.model",
                "copy the tokenizer that the model was trained with there");
  }
};

void add_generate(CLI::App& app) {
  struct Arguments {
    std::string run;
    std::string prompt;
    std::int64_t max_tokens = 200;
    Sampling sampling;
    bool json = false;
  };
  CLI::App* command = app.add_subcommand("generate", "Write text with a trained model");
  auto arguments = std::make_shared<Arguments>();
  arguments->sampling.temperature = 0.8;
  arguments->sampling.top_k = 40;
  command->add_option("run", arguments->run, "RUN or RUN@STEP")->required();
  command->add_option("--prompt", arguments->prompt);
  command->add_option("--max-tokens", arguments->max_tokens);
  command->add_option("--temperature", arguments->sampling.temperature);
  command->add_option("--top-k", arguments->sampling.top_k);
  command->add_option("--top-p", arguments->sampling.top_p);
  command->add_option("--seed", arguments->sampling.seed);
  command->add_flag("--json", arguments->json);
  command->callback([arguments] {
    const LoadedRun run(arguments->run);
    if (!model::predicts_next_token(run.job.model))
      throw Error(ErrorCode::invalid_config,
                  text("the run's model (", run.job.model.arch, ") does not predict the next token of a text, and cannot continue one"),
                  {run.folder.string(), 0, 0, -1, {}}, "a run of a model that predicts the next token, such as llama",
                  "`tessera eval` measures how well it does what it learns");
    const auto tokenizer = data::load_tokenizer(run.tokenizer_file());
    Predictor predictor(run.job.model, run.checkpoint);
    data::StreamingDecoder decoder(*tokenizer);
    std::string written;
    const auto show = [&](const std::string& piece) {
      written += piece;
      if (!arguments->json) std::cout << piece << std::flush;
    };
    if (!arguments->json) std::cout << arguments->prompt << std::flush;
    const std::uint32_t end = tokenizer->end_of_text().value_or(static_cast<std::uint32_t>(tokenizer->vocab_size()));
    predictor.generate(tokenizer->encode(arguments->prompt), arguments->max_tokens, arguments->sampling, end, [&](std::uint32_t token) {
      if (token < tokenizer->vocab_size()) show(decoder.push(token));
      return true;
    });
    show(decoder.finish());
    if (arguments->json)
      std::cout << nlohmann::json{{"prompt", arguments->prompt}, {"text", written}}.dump() << "\n";
    else
      std::cout << "\n";
  });
}

// All of another text, in the tokens that the run's model knows.
model::DataSpec all_of(const std::string& text, const LoadedRun& run) {
  model::DataSpec data;
  data.sources = {{.path = text, .where = {.file = text, .block = {}}}};
  data.records = run.job.data.records;
  data.separate_documents = run.job.data.separate_documents;
  data.mask = run.job.data.mask;
  data.tokenizer.file = run.tokenizer_file();
  data.tokenizer.kind = data.tokenizer.file.extension() == ".model" ? "sentencepiece" : "hf";
  data.train_fraction = 0;
  data.where.file = text;
  return data;
}

// All of another click log, read as the run's.
model::DataSpec all_of_log(const std::string& log, const LoadedRun& run) {
  for (const model::CategoryColumn& column : run.job.data.columns.categories)
    if (column.ids == model::CategoryColumn::Ids::vocabulary && column.file.empty())
      throw Error(ErrorCode::invalid_config,
                  text("the values of column '", column.name, "' have ids from the log that the model was trained with, and ", log,
                       " does not say them"),
                  run.job.data.columns.where, "a vocabulary in a file, or ids: hash", "evaluate on the lines that the run holds back");
  model::DataSpec data = run.job.data;
  data.sources = {{.path = log, .where = {.file = log, .block = {}}}};
  data.synthetic = false;
  data.train_fraction = 0;
  data.negatives = 1;
  data.where.file = log;
  return data;
}

// A line for each sample, behind a first one with names.
void write_predictions(const std::string& file, const at::Tensor& scored) {
  const at::Tensor probabilities = scored.select(0, 0).sigmoid().contiguous(), labels = scored.select(0, 1).contiguous();
  std::string out = "label,probability\n";
  for (std::int64_t i = 0; i < probabilities.numel(); ++i) {
    std::array<char, 64> line;
    const int length = std::snprintf(line.data(), line.size(), "%d,%.9g\n", static_cast<int>(labels.data_ptr<float>()[i]),
                                     static_cast<double>(probabilities.data_ptr<float>()[i]));
    out.append(line.data(), static_cast<std::size_t>(length));
  }
  write_whole(real_file_system(), file, out);
}

std::string named(const model::DataSpec& data) {
  std::string out = data.synthetic ? "synthetic" : "";
  for (const model::SourceSpec& source : data.sources) out += (out.empty() ? "" : ", ") + source.path.string();
  return out;
}

void add_eval(CLI::App& app) {
  struct Arguments {
    std::string run;
    std::string text, log, predictions;
    std::int64_t sequences = 0;
    bool json = false;
  };
  CLI::App* command = app.add_subcommand("eval", "Loss and perplexity of a run's checkpoint on its validation text, or on another");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("run", arguments->run, "RUN or RUN@STEP")->required();
  command->add_option("--text", arguments->text, "A source of another text");
  command->add_option("--log", arguments->log, "Another click log");
  command->add_option("--predictions", arguments->predictions, "Where the label and the probability of each sample are written, as CSV");
  command->add_option("--sequences", arguments->sequences, "At most this many (0: all)");
  command->add_flag("--json", arguments->json);
  command->callback([arguments] {
    const LoadedRun run(arguments->run);
    plan::Plan plan;
    plan.precision = run.job.train.precision;
    plan.global_batch = 4;
    plan.ranks.push_back({});
    plan.stages.push_back({{0}, {{0, run.job.model.block_count(), {}}}});
    const bool images = model::reads_images(run.job.model), clicks = model::reads_clicks(run.job.model);
    const bool classifies = model::classifies(run.job.model);
    if (!arguments->text.empty() && (classifies || clicks))
      throw Error(ErrorCode::invalid_config,
                  text("the run's model ", images   ? "reads images"
                                           : clicks ? "reads click logs"
                                                    : "tells the classes that its own texts have"),
                  run.job.data.where, "no --text");
    if (!clicks && !(arguments->log.empty() && arguments->predictions.empty()))
      throw Error(ErrorCode::invalid_config, text("the run's model (", run.job.model.arch, ") reads no click logs"),
                  {.file = run.folder.string(), .block = {}}, "no --log and no --predictions");
    const model::DataSpec data = !arguments->log.empty()    ? all_of_log(arguments->log, run)
                                 : !arguments->text.empty() ? all_of(arguments->text, run)
                                                            : run.job.data;
    const auto dataset = data::open_dataset(data, run.job.model, run.job.train.seed);
    const auto comm = comm::Communicator::connect({});
    model::JobSpec job = run.job;
    job.train.optimizer.kind = model::OptimizerKind::sgd;  // no optimizer state is needed
    job.train.optimizer.momentum = 0;
    Trainer trainer(job, plan, *dataset, *comm);
    if (!trainer.validates())
      throw Error(ErrorCode::invalid_config,
                  text("the run has no validation ", images   ? "images"
                                                     : clicks ? "lines"
                                                              : "text"),
                  run.job.data.where, "data.split.train below 1");
    trainer.load(run.checkpoint, false);
    if (clicks)
      if (std::optional<ps::ServingTable> rows = finished_rows(run.folder, run.checkpoint, run.job)) trainer.read_rows(std::move(*rows));
    at::Tensor scored;
    const EvaluationReport report = trainer.evaluate(arguments->sequences, &scored);
    const std::string place =
        run.folder.string() + ", " + run.checkpoint.filename().string() + (arguments->log.empty() ? "" : ", on " + arguments->log);
    if (clicks) {
      if (!arguments->predictions.empty()) write_predictions(arguments->predictions, scored);
      const nlohmann::ordered_json out = {{"loss", report.loss},
                                          {"auc", report.auc ? nlohmann::ordered_json(*report.auc) : nlohmann::ordered_json(nullptr)},
                                          {"samples", report.tokens},
                                          {"checkpoint", run.checkpoint.filename().string()}};
      if (arguments->json)
        std::printf("%s\n", out.dump().c_str());
      else
        std::printf("%s: loss %.4f nats a sample, AUC %s, over %lld samples\n", place.c_str(), report.loss,
                    report.auc ? fixed(*report.auc, 4).c_str() : "of one label alone", static_cast<long long>(report.tokens));
      return;
    }
    if (classifies) {
      const double accuracy = static_cast<double>(report.correct) / static_cast<double>(report.tokens);
      const nlohmann::ordered_json out = {{"loss", report.loss},
                                          {"accuracy", accuracy},
                                          {model::counted_in(run.job.model), report.tokens},
                                          {"checkpoint", run.checkpoint.filename().string()}};
      if (arguments->json)
        std::printf("%s\n", out.dump().c_str());
      else
        std::printf("%s: loss %.4f nats %s, accuracy %.2f %%, over %lld %s\n", place.c_str(), report.loss, images ? "an image" : "a text",
                    100 * accuracy, static_cast<long long>(report.tokens), images ? "images" : "texts");
      return;
    }
    const data::TextDataset* sequences = data::as_text(*dataset);
    const double entropy = sequences != nullptr && sequences->tokenizer() != nullptr ? sequences->unigram_entropy_of_validation() : 0;
    const nlohmann::ordered_json out = {{"loss", report.loss},
                                        {"perplexity", std::exp(report.loss)},
                                        {"tokens", report.tokens},
                                        {"unigram_entropy", entropy},
                                        {"checkpoint", run.checkpoint.filename().string()},
                                        {"text", named(data)}};
    if (arguments->json)
      std::printf("%s\n", out.dump().c_str());
    else
      std::printf("%s%s%s: loss %.4f nats a token, perplexity %.2f, over %lld tokens (unigram entropy %.4f)\n", place.c_str(),
                  arguments->text.empty() ? "" : ", on ", arguments->text.c_str(), report.loss, std::exp(report.loss),
                  static_cast<long long>(report.tokens), entropy);
  });
}

void add_logits(CLI::App& app) {
  struct Arguments {
    std::string run;
    std::vector<std::uint32_t> tokens;
  };
  CLI::App* command = app.add_subcommand(
      "logits", "The logits after each of the given tokens, one line of numbers a token; of a classifier one line for all of them");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("run", arguments->run)->required();
  command->add_option("--tokens", arguments->tokens, "Token ids")->required()->delimiter(',');
  command->callback([arguments] {
    const LoadedRun run(arguments->run);
    for (std::uint32_t token : arguments->tokens)
      if (token >= static_cast<std::uint64_t>(run.job.model.dim("vocab")))
        throw Error(ErrorCode::invalid_config, text("token ", token, " is outside the vocabulary"), {},
                    text("ids below ", run.job.model.dim("vocab")));
    Predictor predictor(run.job.model, run.checkpoint);
    const std::vector<float> logits = predictor.logits(arguments->tokens);
    const std::size_t vocab = logits.size() / (model::classifies(run.job.model) ? 1 : arguments->tokens.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
      std::printf("%.9g%c", static_cast<double>(logits[i]), (i + 1) % vocab == 0 ? '\n' : ' ');
  });
}

void add_export(CLI::App& app) {
  struct Arguments {
    std::string run;
    std::string directory;
    bool bf16 = false;
    bool torchvision = false;
    bool serving = false;
    std::string rows;
  };
  CLI::App* command = app.add_subcommand("export", "Write a run's checkpoint for other software");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("run", arguments->run)->required();
  command->add_option("--to", arguments->directory, "The folder for Hugging Face transformers, or with --torchvision the file")->required();
  command->add_flag("--torchvision", arguments->torchvision, "A state dict");
  command->add_flag("--bf16", arguments->bf16, "Weights rounded to bf16");
  command->add_flag("--serving", arguments->serving, "A serving directory");
  command->add_option("--rows", arguments->rows, "Of a serving directory: fp32, bf16 or int8");
  command->callback([arguments] {
    const LoadedRun run(arguments->run);
    const auto step = static_cast<long long>(checkpoint::Reader(run.checkpoint).state().step);
    if (arguments->torchvision) {
      checkpoint::export_torchvision(run.checkpoint, run.job.model, arguments->directory);
      std::printf("%s: the weights of %s after %lld steps; torchvision's %s reads it with load_state_dict(load_file(\"%s\"))\n",
                  arguments->directory.c_str(), run.folder.c_str(), step, run.job.model.arch.c_str(), arguments->directory.c_str());
      return;
    }
    if (arguments->serving) {
      static const std::map<std::string, ps::RowType> kTypes = {
          {"fp32", ps::RowType::fp32}, {"bf16", ps::RowType::bf16}, {"int8", ps::RowType::int8}};
      const auto type = arguments->rows.empty() ? std::nullopt : std::optional(kTypes.at(arguments->rows));
      const ServingReport report = export_serving(run.folder, run.checkpoint, run.job, type, arguments->directory);
      std::printf("%s: the weights and %llu rows of %s after %lld steps; `tessera serve-table %s --listen HOST:PORT` answers look-ups\n",
                  arguments->directory.c_str(), static_cast<unsigned long long>(report.rows), run.folder.c_str(), step,
                  arguments->directory.c_str());
      return;
    }
    std::optional<std::filesystem::path> tokenizer;
    if (!run.job.data.sources.empty()) tokenizer = run.tokenizer_file();
    checkpoint::export_hf(run.checkpoint, run.job.model, tokenizer, arguments->directory, checkpoint::kLargestWeightFile,
                          arguments->bf16 ? checkpoint::ExportType::bf16 : checkpoint::ExportType::f32);
    std::printf("%s: the weights of %s after %lld steps, in %s; transformers reads it with from_pretrained(\"%s\")\n",
                arguments->directory.c_str(), run.folder.c_str(), step, arguments->bf16 ? "bf16" : "fp32", arguments->directory.c_str());
  });
}

void add_import(CLI::App& app) {
  struct Arguments {
    std::string directory;
    std::string run;
    std::string source;
  };
  CLI::App* command = app.add_subcommand("import", "Make a run from a Hugging Face folder");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("directory", arguments->directory)->required();
  command->add_option("--run", arguments->run, "The run's folder")->required();
  command->add_option("--source", arguments->source, "What the run's data.source is to be");
  command->callback([arguments] {
    checkpoint::import_hf(arguments->directory, arguments->run, arguments->source);
    const model::JobSpec job = model::read_job(std::filesystem::path(arguments->run) / "train.yaml");
    std::printf("%s: %s parameters in %lld blocks, from %s\n", arguments->run.c_str(),
                count_text(static_cast<double>(job.model.parameter_count())).c_str(), static_cast<long long>(job.model.block_count()),
                arguments->directory.c_str());
  });
}

}  // namespace

namespace {

// The first of these environment variables that is set, or the first of all.
std::string set_one(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (std::getenv(name) != nullptr) return name;
  return *names.begin();
}

}  // namespace

void RankOptions::add_to(CLI::App& app) {
  // torchrun's, Open MPI's, those of MPICH and Intel MPI, and Slurm's, which also stand in what mpirun starts within a Slurm job.
  app.add_option("--rank", rank, "This process's rank")->envname(set_one({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}));
  app.add_option("--world", world, "How many ranks there are")
      ->envname(set_one({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}));
  app.add_option("--rendezvous", rendezvous, "HOST:PORT where rank 0 listens (else MASTER_ADDR and MASTER_PORT)");
}

std::string RankOptions::place() const {
  const char* address = std::getenv("MASTER_ADDR");
  const char* port = std::getenv("MASTER_PORT");
  return rendezvous.empty() && address != nullptr && port != nullptr ? text(address, ":", port) : rendezvous;
}

std::string RankOptions::address() const {
  const std::string own = world > 1 ? comm::local_address_towards(comm::parse_host_port(place())) : std::string();
  return own.empty() ? "127.0.0.1" : own;
}

std::string RankOptions::secret() const { return secret_from_environment().value_or(std::string()); }

std::unique_ptr<comm::Communicator> RankOptions::connect(const std::string& task, std::optional<Seconds> deadline,
                                                         at::Device device) const {
  comm::Options options;
  options.deadline = deadline.value_or(options.deadline);
  options.rank = rank;
  options.world_size = world;
  options.task = task;
  options.rendezvous = place();
  if (device.is_cuda() && world > 1) options.cuda_device = device.index();
  if (world > 1) options.secret = secret();
  if (options.rendezvous.empty() && world > 1)
    throw Error(ErrorCode::invalid_config, "no place to meet the other ranks was given", {},
                "--rendezvous HOST:PORT, or MASTER_ADDR and MASTER_PORT");
  return comm::Communicator::connect(options);
}

at::Device device_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster, int rank) {
  const plan::RankPlace& place = plan.ranks.at(static_cast<std::size_t>(rank));
  return nn::device_of(cluster.groups.at(static_cast<std::size_t>(place.group)).device.vendor, place.device);
}

void set_host_threads(const plan::Plan& plan, int rank, at::Device device) {
  const plan::RankPlace& place = plan.ranks.at(static_cast<std::size_t>(rank));
  if (device.is_cpu()) {
    if (std::getenv("OMP_NUM_THREADS") == nullptr && place.threads > 0) at::set_num_threads(place.threads);
    return;
  }
  const auto beside = std::count_if(plan.ranks.begin(), plan.ranks.end(),
                                    [&](const plan::RankPlace& other) { return other.group == place.group && other.node == place.node; });
  at::set_num_threads(std::max(1, static_cast<int>(cluster::usable_processors().size()) / static_cast<int>(beside)));
}

std::filesystem::path checkpoint_of(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "manifest.json")) return path;
  const model::RunName run = model::find_run(path.string());
  return checkpoint::find(run.folder / "checkpoints", run.step);
}

void add_commands(CLI::App& app) {
  add_model(app);
  add_device(app);
  add_servers(app);
  add_measure(app);
  add_compare(app);
  add_generate(app);
  add_eval(app);
  add_logits(app);
  add_export(app);
  add_import(app);
}

}  // namespace tessera::train
