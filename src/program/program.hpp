// What one rank does in one training step: a short list of instructions with explicit dependencies. The simulator runs it
// against a clock, the trainer with tensors.
#pragma once

#include <string>
#include <vector>

#include "base/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

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
  reduce_tied,       // gradients of a parameter that several stages hold, over `group`; `bucket` holds it
  reduce_gradients,  // of `bucket` over `group`: all-reduce, or reduce-scatter when the bucket is sharded
  reduce_norm,       // the step's scalars over all ranks: squared gradient norm, loss, tokens
  optimizer_step,    // of `bucket`, or of this rank's shard of it; of the step before where gradients are exchanged late
  gather_parameters  // of `bucket` over `group`, after a sharded step
};
const char* name_of(Op op);
// Runs on the rank's compute threads; everything else is communication and runs beside it.
bool is_compute(Op op);

struct Instruction {
  Op op = Op::forward;
  int micro_batch = -1;
  int first_block = -1;
  int last_block = -1;
  int peer = -1;           // world rank
  int bucket = -1;         // index into Program::buckets
  int group = -1;          // index into Program::groups
  Bytes bytes{};           // moved by this rank's communication
  std::vector<int> after;  // indices of instructions of this program that must be complete
  // Where gradients are exchanged while the next step begins: those of the step before that must be complete, and whether this one
  // finishes that step. In the first step there is nothing to finish.
  std::vector<int> after_previous = {};
  bool finishes_previous = false;
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

// Parameters whose gradients are reduced and stepped together, of blocks that are cut and sharded alike. Data-parallel peers have
// the same bucket layout.
struct Bucket {
  std::vector<BucketEntry> entries;
  std::int64_t count = 0;  // elements, padded to a multiple of the shard count
  int group = -1;          // data-parallel group; -1 when alone
  bool sharded = false;    // ZeRO: each member steps count / size elements
};

// A stage that the rank holds.
struct Chunk {
  int stage = 0;
  int first_block = 0;
  int last_block = 0;
  std::vector<bool> recompute;  // by block - first_block; never of a block without inputs or of the loss
};

struct Program {
  int rank = 0;
  bool training = true;  // false: forward passes and the loss alone
  // In model order; one unless the schedule is interleaved or V-shaped. `stage`, first_block, last_block and `recompute` below
  // are those of the first.
  std::vector<Chunk> chunks;
  int stage = 0;
  int dp_index = 0;
  int dp_size = 1;
  int tp_index = 0;
  int tp_size = 1;
  int tensor_group = -1;  // index into groups; -1 when tp_size is 1
  int first_block = 0;
  int last_block = 0;
  std::int64_t micro_batch_size = 1;  // samples of each micro-batch on this rank
  std::int64_t samples = 1;           // of each micro-batch on all replicas
  std::int64_t samples_before = 0;    // of these, on the replicas before this one
  std::int64_t micro_batches = 1;
  std::vector<bool> recompute;  // by block - first_block
  std::vector<CommGroup> groups;
  std::vector<Bucket> buckets;
  // In issue order; compute instructions run strictly in this order, communication starts when its dependencies are met,
  // in this order within one group or peer.
  std::vector<Instruction> instructions;

  // Which of the step's global_batch samples (indices into its ordered list) micro-batch m of this rank holds: consecutive.
  std::int64_t first_sample(std::int64_t m) const { return m * samples + samples_before; }
  // Whether exchanges of a step go on in the next one.
  bool delayed = false;
  // Index into chunks of the one that holds `block`; -1 when the rank does not.
  int chunk_of(int block) const;
};

// One program per rank. Pure. `plan` must have passed plan::check.
std::vector<Program> compile(const plan::Plan& plan, const model::ModelSpec& model);
// Those of some ranks, in the order given.
std::vector<Program> compile(const plan::Plan& plan, const model::ModelSpec& model, const std::vector<int>& ranks);

// Where all ranks of every stage do the same, one program for each stage: those of the first ranks of each pipeline rank, in the order
// given. Between stages that are cut differently one message stands for all, and has their bytes.
std::vector<Program> compile_folded(const plan::Plan& plan, const model::ModelSpec& model, const std::vector<int>& ranks);

// The programs of an evaluation: the same ranks, stages and groups, but forward passes only. Each replica of the first stage computes
// `micro_batches` micro-batches of `micro_batch_size` samples.
std::vector<Program> compile_evaluation(const plan::Plan& plan, const model::ModelSpec& model, std::int64_t micro_batches,
                                        std::int64_t micro_batch_size);

// So many steps as one program each: what waits for the step before then waits in the same program.
std::vector<Program> unrolled(std::vector<Program> programs, int steps);

// Proves what must hold for any schedule: each micro-batch passes each block forward once and backward once, the input half
// before the weight half, in order; each pass waits for what it needs; every send has its receive in the same order on its peer;
// no set of ranks can wait for each other in a circle, however little the transport buffers; members of a group issue the same
// collectives in the same order; a delayed step is finished before its parameters are used. Linear in the number of instructions. Throws
// invalid_config with rank and instruction.
void check(const std::vector<Program>& programs);
// Of programs that stand for others which do the same: `program_of` says by rank which.
void check(const std::vector<Program>& programs, const std::vector<int>& program_of);

// What a rank holds while it runs its program.
struct ActivationBytes {
  Bytes saved;             // of one micro-batch in one chunk, from its forward pass on
  Bytes saved_for_weight;  // of these, what backward_weight still needs after backward_input
};
struct MemoryBudget {
  Bytes fixed;                          // weights, gradients, optimizer state, buffers
  Bytes workspace;                      // while a block computes
  std::vector<ActivationBytes> chunks;  // by chunk
  Bytes limit;
};
// The most that the rank holds at once: fixed + workspace + activations in instruction order.
Bytes peak_memory(const Program& program, const MemoryBudget& budget);
// Also that every rank stays within its limit; `budgets` by program. Throws resource_exhausted naming the rank.
void check(const std::vector<Program>& programs, const std::vector<MemoryBudget>& budgets);

// For people and tests: one line an instruction.
std::string to_text(const Program& program);

}  // namespace tessera::program
