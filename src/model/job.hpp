// What a train.yaml says: the model, the data, how to train, on which cluster, and how to parallelize. Plain data; the room that uses a
// section says what its values mean.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "model/image_spec.hpp"
#include "model/model.hpp"

namespace tessera::model {

struct TokenizerSpec {
  std::string kind = "bpe";    // bpe (trained here), hf (tokenizer.json), sentencepiece (.model), bytes
  std::int64_t vocab = 8192;   // for bpe
  std::filesystem::path file;  // for hf and sentencepiece
};

// A file of text, JSONL or Parquet, or a folder of them.
struct SourceSpec {
  std::filesystem::path path;
  // The share of all samples that are of this source, over the sum of all weights. Either all sources have one or none.
  std::optional<double> weight = std::nullopt;
  Where where = {};
};

enum class OnError { stop, skip };

// Where documents stand in records: lines of JSONL, rows of Parquet.
struct RecordSpec {
  std::string field = "text";  // the text's key
  // The keys of a prompt and of its answer, in place of `field`; empty: documents have no prompts. Only answers are targets.
  std::string prompt;
  std::string answer;
  std::string label;                 // the key of a text's class, for models that tell classes of texts; empty: texts have none
  OnError on_error = OnError::stop;  // at a record, or an image, that cannot be read

  bool has_prompts() const { return !answer.empty(); }
  // Whether the data must come in records, which plain text has not.
  bool of_records() const { return has_prompts() || !label.empty(); }
};

// Masked language modelling (Devlin et al. 2019, section 3.1), or span corruption (Raffel et al. 2020, section 3.1.4).
struct MaskSpec {
  double share = 0.15;  // of the tokens of a sample that are to be predicted
  std::string token;    // the tokenizer's token that stands for a masked one; empty: it is chosen as data/masks.hpp says
  double span = 3;      // with decoder_seq: tokens of a span on average
  std::optional<std::int64_t> decoder_seq;  // of the model's decoder, which writes whole spans; none: tokens are masked one by one
};

// Samples of lengths of their own, up to model.seq.
struct LengthSpec {
  // documents: each document is a sample. The others are of synthetic data: how lengths are distributed.
  //   lognormal  the logarithm's standard deviation is a third of what lies between the median and model.seq
  //   pareto     half of the samples are longer than the median, a quarter longer than twice that, and so on
  //   uniform    all lengths are equally likely; without a median
  enum class Kind { documents, lognormal, pareto, uniform } kind = Kind::documents;
  std::int64_t median = 0;
};

// How a line of a click log says its label, its numbers and its categories (data/clicks/click_format.hpp). The last three have columns
// with names.
enum class ClickFormat { criteo, libsvm, libffm, multislot, csv, parquet };
constexpr bool names_columns(ClickFormat format) { return format >= ClickFormat::multislot; }

// A column whose values are categories, and how a value becomes an id.
//   hash        of its text, modulo the rows of its table where the model declares them
//   number      it is one
//   vocabulary  its place in a list of values, from 1; 0 of those that are not in it
struct CategoryColumn {
  enum class Ids { hash, number, vocabulary };
  std::string name;
  Ids ids = Ids::hash;
  std::filesystem::path file;  // of vocabulary: a value a line; empty: the values of the lines that train
  std::int64_t least = 1;      // of those, the values that occur at least so often
};

// Which columns of a click log a model reads.
struct ClickColumns {
  std::string label;
  std::vector<std::string> dense;
  std::vector<CategoryColumn> categories;  // of each table one
  std::string history;                     // of models with a history (model/forms.hpp)
  std::vector<std::string> names;          // of all columns, where no first line says them
  char separator = ',';                    // of csv
  char lists = '|';                        // of csv: stands between the values of a category with several look-ups, or of a history
  Where where;
};

struct DataSpec {
  std::vector<SourceSpec> sources;  // none, and not synthetic: the job can be planned, but has nothing to train on
  bool synthetic = false;           // seeded random tokens, or images
  RecordSpec records;
  TokenizerSpec tokenizer;
  double train_fraction = 0.95;       // of each source; the rest, of text from its end, is for validation
  bool separate_documents = false;    // attention stays within a document, and its positions begin at 0
  std::optional<LengthSpec> lengths;  // none: all samples have model.seq tokens
  std::optional<MaskSpec> mask;       // of models that predict what is masked; none: targets are the next tokens
  ImageSpec images;                   // of models that read images
  std::optional<ClickFormat> format;  // of models that read clicks; none of synthetic data
  ClickColumns columns;               // of formats with named columns
  double negatives = 1;               // of models that read clicks: the share of training samples labelled 0 that is kept
  int workers = 0;  // threads of each rank that make the samples of the next step; 0: one for text and clicks, four for images
  Where where;
};

enum class OptimizerKind { adamw, sgd };
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of parameters with ParameterSpec::decay; adamw: decoupled, sgd: added to the gradient
  double momentum = 0.0;      // sgd
  double clip = 1.0;          // the largest global gradient norm; 0: gradients are not clipped
};

enum class LrScheduleKind { cosine, linear, constant, wsd };  // wsd: warm-up, stable, decay
enum class DecayShape { linear, cosine, sqrt, exponential };  // sqrt: 1 - sqrt(progress); exponential: min_ratio^progress
struct LrScheduleSpec {
  LrScheduleKind kind = LrScheduleKind::cosine;
  std::int64_t warmup = 0;                      // steps
  double min_ratio = 0.1;                       // lr at the last step over the peak lr (cosine, linear, wsd)
  std::int64_t decay = 0;                       // wsd: the last so many steps
  DecayShape decay_shape = DecayShape::linear;  // wsd
};

// Training ends after `patience` evaluations in a row that have not lowered the validation loss by more than `min_gain`.
struct EarlyStopSpec {
  std::int64_t patience = 0;
  double min_gain = 0;  // nats a token, below the loss of the last evaluation that gained
};

// Whether samples and experts are placed so that fewer rows cross from host to host (train/placement.hpp).
enum class PlacementKind { off, samples, samples_and_experts };
struct PlacementSpec {
  PlacementKind kind = PlacementKind::off;
  std::int64_t every = 32;  // steps after which experts may be moved
  Where where;
};

struct TrainSpec {
  std::int64_t steps = 200;
  std::int64_t global_batch = 32;  // sequences per step
  OptimizerSpec optimizer;
  LrScheduleSpec lr_schedule;
  Precision precision = Precision::f32;
  std::uint64_t seed = 1;
  std::filesystem::path init;        // weights to start from: RUN, RUN@STEP, a checkpoint or a Hugging Face folder; empty: from the seed
  std::int64_t eval_every = 0;       // steps; 0: only at the end
  std::int64_t eval_sequences = 64;  // at most this many validation sequences each time
  std::optional<EarlyStopSpec> early_stop;
  bool rebalance = true;  // take another plan when hosts become slow or fast, where the planner chose this one
  PlacementSpec placement;
};

// What a push does to a row of a table (ps::OptimizerSpec), as the train.yaml names it.
struct TableOptimizerSpec {
  std::string kind = "adagrad";  // adagrad, adam, sgd, ftrl
  double lr = 0.05;
  double epsilon = 1e-8;
  double initial_moment = 0;
  bool row_moment = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double l1 = 0;
  double l2 = 0;
  double beta = 1;
  std::optional<double> clip_norm;  // of each row's gradient
  LrScheduleSpec schedule = {.kind = LrScheduleKind::constant};
};

// When a key of a table gets a row, as the train.yaml says it (ps::Admission).
struct AdmissionSpec {
  int after = 1;
  std::optional<double> probability;
};
// When a row goes (ps::Eviction).
struct EvictionSpec {
  std::optional<int> unseen;  // periods
  std::optional<double> below;
};
// From how many shows on a row has how many values (ps::GrowthStep).
struct GrowthStepSpec {
  double seen = 0;
  int dimension = 0;
};
// What is special about some of the model's tables (ps::SlotLifecycle).
struct TableLifecycleSpec {
  std::vector<int> tables;
  double lr_scale = 1;
  std::optional<AdmissionSpec> admission;
  std::optional<EvictionSpec> eviction;
  std::vector<GrowthStepSpec> growth;  // empty: as all tables'
  Where where;
};
// How rows come and go (ps::Lifecycle).
struct LifecycleSpec {
  std::int64_t period = 0;  // steps
  double decay = 0.98;
  double click_weight = 1;
  double unclicked_weight = 0.1;
  AdmissionSpec admission;
  std::int64_t waiting_keys = std::int64_t{1} << 22;
  int forget_after = 7;  // periods
  EvictionSpec eviction;
  std::vector<GrowthStepSpec> growth;
  std::vector<TableLifecycleSpec> tables;
};

// Where the tables of a model that reads clicks lie, and what they are.
struct ParameterServerSpec {
  std::vector<std::string> places;  // HOST:PORT of each server; empty: some ranks of the run hold them (plan::Plan::servers)
  int threads = 0;                  // without places: servers of a host that has some; 0: the planner chooses
  std::filesystem::path disk;       // without places: where rows lie that memory has no room for; empty: all are in memory
  Bytes memory{0};                  // of the table in each of these servers, where there is a disk
  TableOptimizerSpec optimizer;
  std::string initializer = "uniform";  // uniform, normal, zero
  double initial_scale = 0.01;
  std::string rows = "fp32";                // fp32, bf16, int8: how a server stores values
  std::string wire = "fp32";                // likewise: how values and gradients cross the network
  std::string consistency = "synchronous";  // asynchronous (ps::Consistency), geo (ps/geo.hpp): when ranks see each other's steps
  int staleness = 1;                        // of asynchronous tables, in steps
  std::optional<LifecycleSpec> lifecycle;   // none: rows stay
  int exchange_every = 10;                  // steps; of geo
  Seconds reconnect{10};                    // for which ranks try to reach a server that is gone, before the run ends
  Where where;
  // Whether rows may be pulled beside the step before the one that reads them, whose gradients they then miss.
  bool allows_rows_ahead() const { return consistency == "asynchronous" && staleness >= 1; }
};

// `cluster:` as written: auto, a file, {local: {devices: N, threads: T}} or {lab: {...}}.
struct ClusterChoice {
  enum class Kind { automatic, file, local, lab } kind = Kind::automatic;
  std::filesystem::path file;
  int devices = 0;  // local: worker processes; lab: hosts
  int threads = 0;  // local: threads of each; 0 shares the cores evenly
  double gbit = 0;  // lab
  double cpu = 0;   // lab: cores per host
  Where where;
};

// `parallel:` as written: auto, a plan file, or degrees. The planner chooses what is 0, empty or no value here.
struct ParallelChoice {
  enum class Kind { automatic, plan_file, degrees } kind = Kind::automatic;
  std::filesystem::path file;
  int dp = 0;
  int pp = 0;
  int tp = 0;
  int cp = 0;
  int ep = 0;
  std::optional<ContextKind> context;  // where cp is more than 1
  std::optional<int> zero;
  int threads = 0;  // per rank
  std::int64_t micro_batches = 0;
  int chunks = 0;         // stages of a rank, under the interleaved schedule
  std::string schedule;   // 1f1b, gpipe, interleaved, zb-h1, zb-h2, zb-v, dualpipe-v
  std::string recompute;  // none, selective, full
  // Where tp is more than 1 (plan::Strategy::sequence_parallel). No value: on accelerators, whose calibrations say what it takes.
  std::optional<bool> sequence_parallel;
  // With data.lengths: samples that fit on fewer ranks than cp are cut among these (plan::Lengths).
  bool flexible_groups = true;
  std::optional<bool> delayed_exchange;  // gradients are reduced while the next step begins (plan::Plan::delayed_exchange)
  int staleness = 0;                     // 1: they are reduced during all of the next step, and used after it (plan::Plan::staleness)
  Where where;
};

struct CheckpointSpec {
  std::int64_t every = 0;  // steps; 0: only at the end and on Ctrl-C
  std::int64_t keep = 3;   // complete checkpoints kept
  bool best = false;       // also keep the one with the lowest validation loss
};

struct LogSpec {
  std::int64_t every = 0;  // steps between two lines that training leaves behind; 0: it chooses
};

struct JobSpec {
  std::string name;  // of the run; default: the YAML's folder or file stem
  ModelSpec model;
  DataSpec data;
  TrainSpec train;
  ParameterServerSpec parameter_servers;
  ClusterChoice cluster;
  ParallelChoice parallel;
  CheckpointSpec checkpoint;
  LogSpec log;
  std::vector<std::string> on_end;  // a program and its arguments, started when the run has ended; empty: none
  std::string resolved_yaml;        // the whole file with overrides applied
  std::filesystem::path file;
};

// Reads a train.yaml, applies `key=value` overrides in order, and checks every key and type. Relative paths are relative to the YAML's
// folder; those of overrides, which were typed in a shell, to the current one. A Hugging Face config.json is read as a job with this
// model and all else by default. Throws invalid_config.
JobSpec read_job(const std::filesystem::path& path, const std::vector<std::string>& overrides = {});
JobSpec read_job(const ConfigNode& root);
// parameter_servers.servers: a list of HOST:PORT. Throws invalid_config.
std::vector<std::string> read_server_places(const ConfigNode& node);
// The train.yaml with the overrides applied and all paths absolute: it means the same in every folder. Throws as read_job.
std::string portable_yaml(const std::filesystem::path& path, const std::vector<std::string>& overrides = {});

// The learning rate of `step` (0-based) of `steps`: linear warm-up from lr/warmup, then the schedule.
double learning_rate(const TrainSpec& train, std::int64_t step);
// That of the tables' optimizer, by its own schedule over the same steps.
double table_learning_rate(const JobSpec& job, std::int64_t step);

}  // namespace tessera::model
