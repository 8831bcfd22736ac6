// Runs one rank's Program with tensors: compute instructions in order on the calling thread, communication beside them as
// soon as its dependencies are met.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "model/tensor_flow.hpp"
#include "nn/block.hpp"
#include "nn/exchange.hpp"
#include "program/program.hpp"
#include "train/store.hpp"

namespace tessera::train {

class Tables;

// Sums over all ranks, equal on all of them. Doubles alone: they are reduced as they stand.
struct Scalars {
  double squared_norm = 0;  // of the gradient; 0 in evaluation
  double loss = 0;          // summed over tokens
  double tokens = 0;
  double correct = 0;  // of them, those that the model finds most likely, where its loss says so (nn::Block::forward)
  double stop = 0;     // how many ranks were asked to stop
  double compare = 0;  // how many ranks wish to compare their speeds after this run
  double servers = 0;  // how many ranks have news of other parameter servers (RunTables::has_news)
};

// What a rank tells all others in a run.
struct Wishes {
  bool stop = false;
  bool compare = false;
  bool servers = false;
};

// This rank's samples, by cut of its blocks (Program::cuts) and micro-batch.
using Batches = std::vector<std::vector<nn::Batch>>;

// When an instruction ran, on the clock of this host. Communication begins when it is handed to the transport and nothing before it in its
// stream is under way, which may be before the other ranks have come to it.
struct InstructionSpan {
  int instruction = 0;
  Seconds begin;
  Seconds end;
  std::vector<nn::Interval> exchanges = {};  // of a pass: in which it communicates with tensor-parallel peers and does not compute
};

// Not thread-safe. Errors of communication and computation come out of run(); after one the Executor is not used again.
class Executor {
 public:
  Executor(program::Program program, const model::ModelSpec& model, model::Precision precision, Store& store, comm::Communicator& comm);

  // Called for each optimizer_step instruction. With a delayed exchange it steps with the gradients of the run before, and the
  // scalars are not known yet.
  using Step = std::function<void(int bucket, const Scalars&)>;

  // One pass over the program. `step` is called after the scalars are known.
  // With a delayed exchange the squared norm is that of the gradients of the run before, 0 in the first.
  // `context_groups`: by micro-batch, the ranks that hold the other parts of its sequences, empty where there are none; without them, those
  // of the program in all micro-batches.
  Scalars run(const Batches& batches, double loss_scale, const Wishes& wishes, const Step& step,
              std::vector<comm::Group> context_groups = {});

  // Where routers count what they choose in forward passes from now on; null: nowhere. It must outlive the Executor.
  void count_routes(nn::RouteCounts* routes) { routes_ = routes; }

  // What brings rows of tables from now on, in programs that read some: it holds the batches of a run before that begins, and outlives all
  // runs.
  void read_tables(Tables* tables) { tables_ = tables; }

  // Whether exchanges of gradients of the last run go on.
  bool unfinished() const { return unfinished_; }
  // Waits for them, so that the buckets hold the gradients of the last run.
  void wait_for_exchange();
  // Waits until nothing of any run is under way in the store's buffers, whether it ended well or not.
  void settle() noexcept;
  // Then makes the steps that the next run would begin with. Returns this rank's part of the squared norm.
  double finish(const Step& step);

  const program::Program& program() const { return program_; }
  // After an evaluation of a model of clicks: what its last block returned after the losses (nn::Block::forward); on the ranks that hold
  // that block.
  const nn::Tensors& scored() const { return scored_; }
  // The last run: computing by its end, then communication in the program's order, without exchanges that go on in the next run.
  const std::vector<InstructionSpan>& spans() const { return spans_; }
  // The exchanges that went on beyond the run before the last one, or, once it is finished, beyond the last.
  const std::vector<InstructionSpan>& late_spans() const { return late_spans_; }
  // When the last run summed the squares of its gradients.
  const nn::Interval& norm() const { return norm_; }

 private:
  using Key = std::pair<int, int>;        // micro-batch, block
  using Crossing = std::pair<Key, bool>;  // of which inputs, and whether it is their gradient

  void begin();
  // The exchanges of the pass, if it is one.
  std::vector<nn::Interval> compute(int index, const Batches& batches, double loss_scale, const Step& step);
  void step_bucket(const program::Instruction& instruction, const Step& step);
  bool goes_on(int index) const;
  void wait_for_previous(int index);
  void ensure_started(int index);
  using Handles = std::vector<std::vector<nn::Exchange>>;
  std::vector<InstructionSpan> communication_spans(const Handles& handles, const std::vector<Seconds>& begins, bool late) const;
  void enter(int block, const program::Instruction& instruction, const Batches& batches, nn::Pass& pass) const;
  void forward(const program::Instruction& instruction, const Batches& batches, nn::Pass& pass);
  void backward(const program::Instruction& instruction, const Batches& batches, nn::Pass& pass);
  nn::Tensors cut_anew(nn::Tensors tensors, int block, int from, int to, nn::Pass& pass) const;
  at::Tensor exchanged_anew(const at::Tensor& flat, int block, int from, int to) const;
  void start(int index);
  void start_ready();
  void release_done();
  void complete(int index);
  bool done(int index) const;
  nn::Exchange communicate(int index);
  void add_up_losses();
  std::vector<model::TensorSpec> tensors_at(int block, int own) const;
  int own_block(const program::Instruction& instruction) const;
  bool is_loss(int block) const { return block + 1 == static_cast<int>(flow_.size()); }
  std::int64_t begin_of(const program::Instruction& message) const;
  void for_crossed(const program::Instruction& message, const std::function<void(std::int64_t held, program::SharedRun run)>& visit) const;
  void put_in_place(const Crossing& crossing);
  at::Tensor& arriving(const program::Instruction& instruction);
  nn::Tensors arrived(const Key& key, bool gradient, nn::Pass& pass);
  static bool is_of_gradient(const program::Instruction& message);
  static std::uint32_t tag_of(const program::Instruction& message);
  nn::Exchange send(int index, std::map<Key, nn::Tensors>& from);
  nn::Exchange receive(int index);
  nn::Exchange gather_inputs(const program::Instruction& instruction);
  void wait(const nn::Exchange& handle, int index) const;
  std::string place() const;
  [[noreturn]] void rethrow_at(const Error& error) const;
  const comm::Group& group(int index) const { return groups_.at(index); }

  // Says to the other ranks what this one is at, from a run's beginning to its end.
  class Telling;

  const program::Program program_;
  const model::ModelSpec model_;
  const model::Precision precision_;
  std::vector<model::BlockInstance> instances_;
  const std::vector<model::BlockFlow> flow_;  // by block
  Store& store_;
  std::vector<comm::Group> groups_;  // as Program::groups
  std::vector<comm::Group> context_groups_;
  comm::Communicator& comm_;
  comm::Group world_;

  // What this rank is at, for a thread of the communicator's: an instruction (-1: none yet), whether it waits for it to be done, and
  // of a pass the block.
  mutable std::atomic<int> at_{-1};
  mutable std::atomic<bool> waiting_{false};
  mutable std::atomic<int> block_{-1};

  // For the step under way.
  std::map<Key, nn::Tensors> activations_;      // all tensors before a block; the inputs of one that is computed again
  std::map<Key, nn::Tensors> gradients_;        // of all tensors before a block
  std::map<Crossing, at::Tensor> arriving_;     // what messages bring of either, flat
  std::map<Crossing, std::vector<int>> apart_;  // messages that have brought, or will bring, parts of it in buffers of their own
  std::map<Crossing, int> unsent_;              // messages that take parts of either and have not begun
  std::map<Key, nn::Saved> saved_;
  std::vector<bool> started_;
  std::vector<bool> executed_;       // compute instructions
  Handles handles_;                  // communication instructions
  std::vector<at::Tensor> buffers_;  // what is being sent, or received apart
  std::vector<int> pending_;         // communication not yet started, in order
  std::vector<int> reducing_;        // reductions of gradients that need memory until they are done
  std::vector<int> sending_;         // messages likewise
  std::vector<nn::Tensors> losses_;  // of micro-batches: their sum, and of how many; where the blocks compute
  nn::Tensors scored_;
  Scalars scalars_;
  std::vector<Seconds> begins_;  // of communication
  std::vector<InstructionSpan> spans_;
  std::vector<InstructionSpan> late_spans_;
  nn::Interval norm_;
  Handles previous_;  // of the run before
  std::vector<Seconds> previous_begins_;
  bool unfinished_ = false;
  Wishes wishes_;
  nn::RouteCounts* routes_ = nullptr;
  Tables* tables_ = nullptr;
};

}  // namespace tessera::train
