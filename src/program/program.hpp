// What one rank does in one training step: a short list of instructions with explicit dependencies. The simulator runs it
// against a clock, the trainer with tensors.
#pragma once

#include <string>
#include <vector>

#include "base/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "plan/schedule/schedule.hpp"
#include "program/parts.hpp"

namespace tessera::program {

enum class Op {
  forward,   // blocks [first_block, last_block) of micro_batch
  backward,  // backward_input and backward_weight of the same blocks, in one
  backward_input,
  backward_weight,
  send_activation,  // the inputs of block first_block of micro_batch, to `peer`
  receive_activation,
  send_gradient,  // the gradient of the inputs of block first_block, to `peer`
  receive_gradient,
  gather_activation,  // over `group`, tensor-parallel ranks of which each has received another part of what all of them need
  gather_gradient,
  reduce_tied,        // gradients of a parameter that several stages hold, over `group`; `bucket` holds it
  reduce_gradients,   // of `bucket` over `group`: all-reduce, or reduce-scatter when the bucket is sharded; under ZeRO-2 and 3 after each
                      // micro-batch, added to what those before it have left in the rank's shard
  reduce_shards,      // of the rank's shard of `bucket`: all-reduce over `group`, which holds copies of it
  reduce_norm,        // the step's scalars over all ranks: squared gradient norm, loss, tokens
  optimizer_step,     // of `bucket`, or of this rank's shard of it; with delayed reductions, of the previous step
  gather_parameters,  // of `bucket` over `group`: after a sharded step, or under ZeRO-3 before the passes that read them
  pull_rows,          // from parameter servers: what all micro-batches of the step read, or those of the next step (Plan::rows_ahead)
  push_rows           // their gradients of all micro-batches to the servers, which goes on beside the next step
};
const char* name_of(Op op);
// True for passes and optimizer steps, which run on the rank's compute threads. All other instructions communicate, and run beside these.
bool is_compute(Op op);
bool is_send(Op op);              // send_activation and send_gradient
bool is_message(Op op);           // these, and what receives them
bool is_gather_of_inputs(Op op);  // gather_activation and gather_gradient
bool is_of_rows(Op op);           // pull_rows and push_rows

struct Instruction {
  Op op = Op::forward;
  int micro_batch = -1;  // its index in the step
  int first_block = -1;  // of rows: the block that reads them
  int last_block = -1;
  int peer = -1;           // world rank
  int bucket = -1;         // index into Program::buckets
  int group = -1;          // index into Program::groups
  Bytes bytes{};           // of the message, or of the collective's whole buffer
  std::vector<int> after;  // indices of instructions of this program that must be complete
  // Indices of instructions that must be complete in the previous step.
  std::vector<int> after_previous = {};
  // Where gradients are reduced while the next step begins (Program::delayed): whether this instruction belongs to the end of the previous
  // step. The first step skips such instructions.
  bool finishes_previous = false;
  // Of a pass: the buckets under ZeRO-2 and 3 whose gradients it adds to, and those under ZeRO-3 whose gathered parameters nothing needs
  // after it until they are gathered again.
  std::vector<int> adds_to = {};
  std::vector<int> releases = {};
  // Of a message between stages that cut sequences differently: index into Program::crossed; -1 of others.
  int crossed = -1;
  // Of any other message: which bytes it carries, counted from the first sample of the whole micro-batch. They are those of the tensors
  // between two blocks, sample by sample, and of each sample one tensor after the other. Where context parallelism cuts the samples of a
  // replica, what each of its ranks holds of them follows what the rank before it holds.
  Bytes offset = {};
};

// The parts that two ranks hold of the tensors between two stages. A message between them carries the elements of both parts, in order.
struct CrossedParts {
  Part own;
  Part peer;
  std::int64_t each = 0;  // elements of a sample
};

struct CommGroup {
  std::string name;        // "dp.stage0.tp1": equal on all members
  std::vector<int> ranks;  // world ranks in group order
};

// One parameter of one block within a bucket, in flat order.
struct BucketEntry {
  int block = 0;
  int parameter = 0;        // index into BlockSpec::parameters
  std::int64_t offset = 0;  // elements from the bucket's start
  std::int64_t count = 0;   // elements of this rank's tensor-parallel shard
};

// Parameters whose gradients are reduced and stepped together. Their blocks are cut and sharded alike, and data-parallel peers have equal
// buckets. Experts that are spread over ranks stand in buckets of their own, which fewer ranks hold.
struct Bucket {
  std::vector<BucketEntry> entries;
  std::int64_t count = 0;   // elements, padded to a multiple of the shard count
  int zero = 0;             // ZeRO stage of what is sharded; 0 where no rank holds the same parameters
  int group = -1;           // ranks that shard the bucket, or that hold copies of all of it; -1 when alone
  int across = -1;          // where several such groups shard the same parameters: the ranks that hold the same shard
  int shards = 1;           // ranks that shard it: each steps count / shards elements
  int shard = 0;            // which of them this rank steps
  int copy = 0;             // index among the ranks that step the same elements
  std::vector<int> blocks;  // on this rank whose passes read its parameters, ascending
  // Of a parameter that stages hold in different parts: its elements before it is cut, all of which reduce_tied sums over the ranks of all
  // these stages, so that no other reduction follows. 0 of others.
  std::int64_t whole = 0;
  bool sharded() const { return shards > 1; }
  std::int64_t shard_count() const { return count / shards; }
  std::int64_t shard_begin() const { return shard * shard_count(); }
};

// A stage that the rank holds.
struct Chunk {
  int stage = 0;
  int first_block = 0;
  int last_block = 0;
  // By block - first_block. The model's first and last block are never computed again.
  std::vector<plan::Strategy> strategies;
};

// Consecutive blocks of a rank that are cut alike, and which part of them is the rank's. Where the next blocks are cut otherwise, a pass
// cuts the tensors between them anew: of the elements of a micro-batch, rank i of w has the interval [i / w, (i + 1) / w) in either cut,
// and the tensor-parallel ranks of the next one gather theirs. Where one of them cuts sequences, each tensor-parallel rank first gets its
// part of what they hold in the next cut from the ranks that have it in the other one.
struct Cut {
  int first_block = 0;
  int last_block = 0;
  int dp_index = 0;
  int dp_size = 1;
  int tp_index = 0;
  int tp_size = 1;
  int tensor_group = -1;  // index into Program::groups; -1 when tp_size is 1
  int context_index = 0;  // which part of each sequence (nn/sequence.hpp)
  int context_size = 1;
  int context_group = -1;  // index into Program::groups; -1 when context_size is 1
  int anew_group = -1;     // of the ranks that exchange the tensors between the cut before it and this one; -1 where none need to
  int expert_index = 0;    // of the ranks among which its experts are spread
  int expert_size = 1;
  int expert_step = 1;                // how many ranks of its stage come from one of these to the next
  int expert_group = -1;              // index into Program::groups; -1 when expert_size is 1
  int replica_group = -1;             // index into Program::groups, of the replicas that exchange within passes; -1 where none do
  std::int64_t micro_batch_size = 1;  // samples of each micro-batch on this rank
  std::int64_t samples_before = 0;    // of each micro-batch, on the replicas before this one
  // Of what it holds of a sample's `each` elements, the part of the rank that is `ahead` ranks after this one, which has as many samples.
  Part part(std::int64_t each, int ahead = 0) const;
  bool same_layout(const Cut& other) const {
    return dp_size == other.dp_size && context_size == other.context_size && tp_size == other.tp_size;
  }
};

struct Program {
  int rank = 0;
  bool training = true;       // false: forward passes and the loss alone
  std::vector<Chunk> chunks;  // in model order; one unless the schedule is interleaved or V-shaped
  int stage = 0;              // of the first chunk
  std::vector<Cut> cuts;      // in model order, of all blocks
  std::int64_t samples = 1;   // of each micro-batch on all replicas of a stage
  std::int64_t micro_batches = 1;
  std::vector<CommGroup> groups;
  std::vector<Bucket> buckets;
  std::vector<CrossedParts> crossed;
  // In issue order; compute instructions run strictly in this order, communication starts when its dependencies are met,
  // in this order within one group or peer.
  std::vector<Instruction> instructions;

  // Which of the step's global_batch samples (indices into its ordered list) micro-batch m of this rank holds: consecutive.
  std::int64_t first_sample(std::int64_t m, const Cut& cut) const { return m * samples + cut.samples_before; }
  // Index into cuts of that of a block that the rank holds, and the cut.
  int cut_index(int block) const;
  const Cut& cut_of(int block) const { return cuts[cut_index(block)]; }
  // Whether gradients of a step are reduced while the next step begins (Plan::delayed_exchange).
  bool delayed = false;
  // And used at the end of that step (Plan::staleness).
  bool stale = false;
  // Whether pull_rows is for the step after its own (Plan::rows_ahead).
  bool rows_ahead = false;
  // Whether one step waits for instructions of the one before it, or begins on some ranks while others are still at the one before.
  bool crosses_steps() const;
  // Index into chunks of the one that holds `block`; -1 when the rank does not.
  int chunk_of(int block) const;
  const plan::Strategy& strategy_of(int block) const;  // of a block that the rank holds
  // Whether `block` repeats its forward pass before its backward pass.
  bool recomputes(int block) const { return strategy_of(block).recompute == model::Recompute::full; }
};

// One program per rank, by rank. A pure function. `plan` must have passed plan::check.
std::vector<Program> compile(const plan::Plan& plan, const model::ModelSpec& model);
// The programs of some ranks, in the order given.
std::vector<Program> compile(const plan::Plan& plan, const model::ModelSpec& model, const std::vector<int>& ranks);

// For plans in which all ranks of a pipeline rank do the same: the programs of `ranks`, which are the first of each pipeline rank. Each
// program stands for all ranks of its pipeline rank. Between stages that are cut differently, one message stands for all messages and has
// the bytes of all.
std::vector<Program> compile_folded(const plan::Plan& plan, const model::ModelSpec& model, const std::vector<int>& ranks);

// The programs of an evaluation: the same ranks, stages and groups, but forward passes only, of `micro_batches` micro-batches of `samples`
// samples, which the replicas of each stage share evenly: each stage's dp divides them.
std::vector<Program> compile_evaluation(const plan::Plan& plan, const model::ModelSpec& model, std::int64_t micro_batches,
                                        std::int64_t samples);

// Concatenates `steps` copies of each program; dependencies across steps become ordinary ones.
std::vector<Program> unrolled(std::vector<Program> programs, int steps);

// Proves what must hold under any schedule:
//   - each micro-batch passes each block once forward and once backward, in order, the input half before the weight half;
//   - each pass waits for what it needs;
//   - every send has a receive, in the same order on its peer;
//   - the programs do not deadlock, even if the transport buffers nothing;
//   - the members of a group issue the same collectives in the same order;
//   - a delayed step is finished before its parameters are used;
//   - rows of tables are there before a pass reads them, and their gradients are pushed behind the last pass that adds to them.
// Throws invalid_config, which names the rank and the instruction. Linear in the number of instructions.
void check(const std::vector<Program>& programs);
// Checks folded programs: `program_of[rank]` is the index of the program that stands for `rank`.
void check(const std::vector<Program>& programs, const std::vector<int>& program_of);

// What a rank holds while it runs its program.
struct MemoryBudget {
  Bytes fixed;                           // weights, gradients, optimizer state, buffers
  Bytes workspace;                       // while a block computes
  std::vector<plan::ChunkBytes> chunks;  // activations of one micro-batch, by chunk
};
// By how many bytes a pass of a chunk's first block changes what the rank holds of activations.
std::int64_t change_of(const plan::ChunkBytes& of, Op pass);

// Of each look-up of rows of dimension `dim`, where all keys of a batch differ: its key, the row's place at the server, and its values.
inline constexpr Bytes bytes_of_row(std::int64_t dim) { return Bytes(16 + dim * static_cast<std::int64_t>(sizeof(float))); }

// For errors: "rank 3 instruction 17 (forward of micro-batch 2)".
std::string label(const Program& program, int index);
// What who runs it waits for, if it communicates: "activations of micro-batch 3 from rank 2", "the sum of gradients of bucket 1 with ranks
// 0, 4".
std::string awaited(const Program& program, int index);
// What a rank is at: "forward of micro-batch 2", "optimizer_step of bucket 1".
std::string place(const Program& program, int index);

}  // namespace tessera::program
