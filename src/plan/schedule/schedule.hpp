// The order in which a rank works through its micro-batches, and how many of them, or of their bytes, are in flight meanwhile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "plan/plan.hpp"

namespace tessera::plan {

// A pipeline of `size` pipeline ranks, each of which holds `chunks` stages. A pipeline rank is a position in the pipeline: with data
// and tensor parallelism several world ranks share one.
struct Pipeline {
  int size = 1;
  int chunks = 1;
};
// Of a plan that has passed check.
Pipeline pipeline_of(const Plan& plan);
bool is_v_shaped(Schedule schedule);
// Whether backward passes run as two halves, with other passes between them.
bool splits_backward(Schedule schedule);
// The stage that is chunk `chunk` of a pipeline rank: pipeline_rank + chunk x pipeline_size, or
// 2 x pipeline_size - 1 - pipeline_rank for the way back of a V.
int stage_at(Schedule schedule, int pipeline_rank, int chunk, int pipeline_size);

// What a pipeline rank does in a step, in order. Only the interleaved schedule reads `chunks`; V-shaped schedules have two. `micro_batches`
// may be any number from 1 on.
//   gpipe        Huang et al. 2019: all forwards, then all backwards.
//   one_f_one_b  Narayanan et al. 2019 (PipeDream-Flush): pipeline_size - pipeline_rank - 1 forwards ahead, then one of each in turn.
//   interleaved  Narayanan et al. 2021 (arXiv 2104.04473, section 2.2): groups of micro-batches pass the chunks in turn. Groups
//                are of `pipeline_size` micro-batches, or evenly larger where that does not divide.
//   zb_h1, zb_h2 Qi et al. 2023 (arXiv 2401.10241, section 2): 1F1B with the weight halves delayed so that every pipeline rank has as
//                many micro-batches in flight as the first one: pipeline_size under H1; 2 x pipeline_size - 1 under H2, which also
//                runs that far ahead.
//   zb_v         Qi et al. 2023 (section 6) and 2024 (arXiv 2405.15362): two chunks a pipeline rank in a V; as much in flight as 1F1B has.
//   dualpipe_v   DeepSeek 2025 (github.com/deepseek-ai/DualPipe): one arm of DualPipe, folded; in the middle each forward pass
//                runs overlapped with a backward pass of the other chunk.
std::vector<Slot> order_of(Schedule schedule, int pipeline_rank, int pipeline_size, int micro_batches, int chunks = 1);
// How long one micro-batch takes through one stage, the same for every stage.
struct StageTimes {
  Seconds forward;
  Seconds backward_input;
  Seconds backward_weight;  // a whole backward pass takes both halves
  Seconds message;          // to the next pipeline rank
};
// ZB-H2 fitted to unequal times (Qi et al. 2023, section 3, found there by search as ZB-2p): every pipeline rank runs ahead, and delays its
// weight halves, so far that no rank idles, except for rounding to whole passes. A rank holds the activations of up to
// 2 x pipeline_size micro-batches, and what the delayed weight halves need. `times`: forward and both halves above zero.
std::vector<Slot> fitted_order(int pipeline_rank, int pipeline_size, int micro_batches, const StageTimes& times);
// The order that a plan says: its own, or that of its schedule.
std::vector<Slot> order_of(const Plan& plan, int pipeline_rank);

// How many micro-batches are in flight at once, by chunk: at all moments of the order at which no other has as many of every chunk. A
// micro-batch is in flight from its forward pass to the end of its backward pass (both halves).
std::vector<std::vector<int>> peaks_in_flight(std::span<const Slot> order, int chunks);
// The most in flight at once under a schedule with one stage a rank, by its closed form.
std::int64_t in_flight(Schedule schedule, int pipeline_rank, int pipeline_size, std::int64_t micro_batches);
// Bytes of the activations of one micro-batch in one chunk.
struct ChunkBytes {
  std::int64_t saved = 0;             // by the forward pass
  std::int64_t saved_for_weight = 0;  // what the weight half still needs after the input half, gradients included
};
// The most bytes of activations in flight at once; `bytes` is by chunk.
std::int64_t most_bytes(std::span<const Slot> order, std::span<const ChunkBytes> bytes);

// Throws invalid_config when the stages do not stand on the ranks as the schedule needs them, or when the plan's own order leaves out or
// doubles a pass, or has a pass before one that it needs.
void check_schedule(const Plan& plan);
// Throws invalid_config, as check and check_schedule do: "the plan cannot run: " and the message.
[[noreturn]] void refuse(const Where& where, const std::string& message, const std::string& expected, const std::string& hint = {});
// "F0.3": forward pass of chunk 0, micro-batch 3; B backward; W weight half. A B whose W stands in the same order is the input
// half alone. A trailing "+" overlaps the slot with the next one.
std::string to_text(const Slot& slot);
Orders read_orders(const ConfigNode& node);

// A schedule of one's own (docs/file-formats.md#schedule).
struct ScheduleFile {
  Schedule placement = Schedule::one_f_one_b;  // how stages stand on pipeline ranks
  int micro_batches = 1;
  Orders orders;
  Where where = {};
};
// Throws invalid_config with file and line.
ScheduleFile read_schedule(const ConfigNode& node);
ScheduleFile load_schedule(const std::filesystem::path& path);
// Sets the plan's schedule and order to those of the file. Throws invalid_config when the plan has another number of pipeline ranks, chunks
// or micro-batches.
void use_schedule(const ScheduleFile& file, Plan& plan);
std::string to_yaml(const ScheduleFile& file);

// Reads the name of a schedule, as name_of writes it.
Schedule read_schedule_name(const ConfigNode& node);

// The order in which a rank reduces its buckets, as indices into `buckets`: the elements of each bucket, listed in the order in which their
// gradients become complete. Plan::exchanged_early says how many go in that order.
std::vector<int> exchange_order(const Plan& plan, const std::vector<std::int64_t>& buckets);

}  // namespace tessera::plan
