#include <algorithm>
#include <charconv>
#include <set>

#include "plan/schedule/schedule.hpp"

namespace tessera::plan {
namespace {

constexpr const char* kScheduleFormat = "tessera-schedule";
constexpr std::int64_t kScheduleVersion = 1;
constexpr int kMostMicroBatches = 1 << 20;
constexpr const char* kSlotForm = "F, B or W, then CHUNK.MICRO_BATCH: F0.3";

// The stages of a pipeline rank, as the file names them.
std::string placement_name(Schedule schedule) {
  return is_v_shaped(schedule) ? "v" : schedule == Schedule::interleaved ? "interleaved" : "plain";
}

Slot read_slot(const ConfigNode& node) {
  const std::string word = node.as_string();
  const auto wrong = [&] { return node.error("found " + word, kSlotForm); };
  Slot slot;
  if (word.size() < 4 || std::string_view("FBW").find(word[0]) == std::string_view::npos) throw wrong();
  const char* at = word.data() + 1;
  const char* end = word.data() + word.size();
  if (*(end - 1) == '+') {
    slot.with_next = true;
    --end;
  }
  const auto number = [&](int& out, char behind) {
    const auto [next, error] = std::from_chars(at, end, out);
    if (error != std::errc() || next == at || out < 0 || out >= kMostMicroBatches) throw wrong();
    if (behind != '\0' && (next == end || *next != behind)) throw wrong();
    at = behind != '\0' ? next + 1 : next;
  };
  number(slot.chunk, '.');
  number(slot.micro_batch, '\0');
  if (at != end) throw wrong();
  slot.forward = word[0] == 'F';
  if (word[0] == 'W') slot.part = Backward::weight;
  return slot;
}

std::vector<Slot> read_order(const ConfigNode& node) {
  std::vector<Slot> order;
  std::set<std::pair<int, int>> halved;
  for (const ConfigNode& item : node.items()) {
    order.push_back(read_slot(item));
    if (order.back().part == Backward::weight) halved.insert({order.back().chunk, order.back().micro_batch});
  }
  for (Slot& slot : order)
    if (!slot.forward && slot.part == Backward::whole && halved.contains({slot.chunk, slot.micro_batch})) slot.part = Backward::input;
  return order;
}

// What one pass of one micro-batch through one chunk has come to.
enum class State { none, forwarded, halfway, done };

// Why a pipeline rank cannot work in this order, or nothing.
std::string fault_of(const std::vector<Slot>& order, int pipeline_rank, const Pipeline& pipeline, Schedule schedule, int micro_batches) {
  std::vector<State> states(static_cast<std::size_t>(pipeline.chunks) * micro_batches, State::none);
  const auto at = [&](int chunk, int m) -> State& { return states[static_cast<std::size_t>(chunk) * micro_batches + m]; };
  const auto adjacent = [&](int chunk, int step) {
    for (int other = 0; other < pipeline.chunks; ++other)
      if (stage_at(schedule, pipeline_rank, other, pipeline.size) == stage_at(schedule, pipeline_rank, chunk, pipeline.size) + step)
        return other;
    return -1;
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Slot& slot = order[i];
    if (slot.chunk >= pipeline.chunks) return text(to_text(slot), " is of a chunk that the rank does not have: it has ", pipeline.chunks);
    if (slot.micro_batch >= micro_batches)
      return text(to_text(slot), " is of a micro-batch that the step does not have: it has ", micro_batches);
    if (slot.with_next && (!slot.forward || i + 1 == order.size() || order[i + 1].forward || order[i + 1].part == Backward::weight))
      return text(to_text(slot), " can only overlap with a backward pass that follows it");
    State& state = at(slot.chunk, slot.micro_batch);
    const State needed = slot.forward ? State::none : slot.part == Backward::weight ? State::halfway : State::forwarded;
    if (state > needed) return text(to_text(slot), " comes twice");
    if (state < needed) return text(to_text(slot), " comes before what it needs");
    // The stage before (behind) it on the same rank hands over directly.
    const int source = slot.part == Backward::weight ? -1 : adjacent(slot.chunk, slot.forward ? -1 : 1);
    if (source >= 0 && at(source, slot.micro_batch) < (slot.forward ? State::forwarded : State::halfway))
      return text(to_text(slot), " comes before what it needs");
    state = slot.forward ? State::forwarded : slot.part == Backward::input ? State::halfway : State::done;
  }
  for (int c = 0; c < pipeline.chunks; ++c)
    for (int m = 0; m < micro_batches; ++m)
      if (at(c, m) != State::done) return text("micro-batch ", m, " does not pass chunk ", c, " forward and backward");
  return {};
}

int chunks_in(const Orders& orders) {
  int chunks = 1;
  for (const auto& order : orders)
    for (const Slot& slot : order) chunks = std::max(chunks, slot.chunk + 1);
  return chunks;
}

// A stage for every pipeline rank and chunk, each on the ranks of its pipeline rank.
void check_placement(const Plan& plan) {
  const Pipeline pipeline = pipeline_of(plan);
  const int stages = static_cast<int>(plan.stages.size());
  const std::string name = name_of(plan.schedule);
  if (pipeline.size * pipeline.chunks != stages)
    refuse(plan.where, text("schedule ", name, " has ", stages, " stages"),
           is_v_shaped(plan.schedule) ? "an even number: two on each rank" : "as many on every rank");
  for (int c = 1; c < pipeline.chunks; ++c)
    for (int pipeline_rank = 0; pipeline_rank < pipeline.size; ++pipeline_rank) {
      const int stage = stage_at(plan.schedule, pipeline_rank, c, pipeline.size);
      if (plan.stages[stage].ranks != plan.stages[pipeline_rank].ranks)
        refuse(plan.stages[stage].where,
               text("stage ", stage, " does not stand on the ranks of stage ", pipeline_rank, " as schedule ", name, " needs it"),
               "the same ranks in the same order");
    }
  std::vector<int> stage_of(plan.world_size(), -1);
  for (int pipeline_rank = 0; pipeline_rank < pipeline.size; ++pipeline_rank)
    for (int rank : plan.stages[pipeline_rank].ranks) {
      if (stage_of[rank] >= 0)
        refuse(plan.stages[pipeline_rank].where, text("rank ", rank, " is in stage ", stage_of[rank], " and in stage ", pipeline_rank),
               "each rank once");
      stage_of[rank] = pipeline_rank;
    }
  for (int rank = 0; rank < plan.world_size(); ++rank)
    if (stage_of[rank] < 0) refuse(plan.ranks[rank].where, text("rank ", rank, " is in no stage"), "each rank once");
}

}  // namespace

std::string to_text(const Slot& slot) {
  const char kind = slot.forward ? 'F' : slot.part == Backward::weight ? 'W' : 'B';
  return text(kind, slot.chunk, '.', slot.micro_batch, slot.with_next ? "+" : "");
}

Orders read_orders(const ConfigNode& node) {
  Orders orders;
  for (const ConfigNode& order : node.items()) orders.push_back(read_order(order));
  return orders;
}

void check_schedule(const Plan& plan) {
  check_placement(plan);
  if (plan.order.empty()) return;
  const Pipeline pipeline = pipeline_of(plan);
  if (static_cast<int>(plan.order.size()) != pipeline.size)
    refuse(plan.where, text("its order is for ", plan.order.size(), " ranks of a pipeline"), text(pipeline.size));
  for (int pipeline_rank = 0; pipeline_rank < pipeline.size; ++pipeline_rank) {
    // Each order names every chunk and micro-batch at least twice; so it bounds what the check has to hold.
    if (static_cast<std::int64_t>(plan.order[pipeline_rank].size()) / 2 / pipeline.chunks < plan.micro_batches)
      refuse(
          plan.where, text("its order has ", plan.order[pipeline_rank].size(), " slots for rank ", pipeline_rank, " of the pipeline"),
          text("a forward and a backward pass for each of ", plan.micro_batches, " micro-batches in each of ", pipeline.chunks, " stages"));
    if (const std::string fault =
            fault_of(plan.order[pipeline_rank], pipeline_rank, pipeline, plan.schedule, static_cast<int>(plan.micro_batches));
        !fault.empty())
      refuse(plan.where, text("its order, rank ", pipeline_rank, " of the pipeline: ", fault),
             "every pass of every micro-batch once, in order");
  }
}

ScheduleFile read_schedule(const ConfigNode& node) {
  node.allow_only({"format", "version", "placement", "micro_batches", "ranks"});
  if (node.at("format").as_string() != kScheduleFormat) throw node.at("format").error("this is no schedule", kScheduleFormat);
  if (const std::int64_t version = node.at("version").as_int(); version != kScheduleVersion)
    throw node.at("version").error(text("version ", version, " cannot be read"), text("version ", kScheduleVersion));
  ScheduleFile file;
  file.where = node.where();
  const std::string placement = node.at("placement").as_choice({"plain", "interleaved", "v"});
  for (const Schedule known : {Schedule::one_f_one_b, Schedule::interleaved, Schedule::zb_v})
    if (placement == placement_name(known)) file.placement = known;
  file.micro_batches = static_cast<int>(node.at("micro_batches").as_int_between(1, kMostMicroBatches));
  const std::vector<ConfigNode> ranks = node.at("ranks").items();
  if (ranks.empty()) throw node.at("ranks").error("a pipeline without ranks has nothing to do");
  for (const ConfigNode& rank : ranks) file.orders.push_back(read_order(rank));
  const int chunks = file.placement == Schedule::zb_v ? 2 : file.placement == Schedule::interleaved ? chunks_in(file.orders) : 1;
  // Each rank names every chunk and micro-batch at least twice, which bounds what a reader has to hold.
  for (std::size_t pipeline_rank = 0; pipeline_rank < ranks.size(); ++pipeline_rank) {
    if (file.orders[pipeline_rank].size() / 2 < static_cast<std::size_t>(chunks) * file.micro_batches)
      throw ranks[pipeline_rank].error(
          text("it has ", file.orders[pipeline_rank].size(), " slots"),
          text("a forward and a backward pass for each of ", file.micro_batches, " micro-batches in each of ", chunks, " chunks"));
    const std::string fault = fault_of(file.orders[pipeline_rank], static_cast<int>(pipeline_rank),
                                       {static_cast<int>(ranks.size()), chunks}, file.placement, file.micro_batches);
    if (!fault.empty()) throw ranks[pipeline_rank].error(fault, "every pass of every micro-batch once, in order");
  }
  return file;
}

ScheduleFile load_schedule(const std::filesystem::path& path) { return read_schedule(ConfigNode::load(path)); }

void use_schedule(const ScheduleFile& file, Plan& plan) {
  const Pipeline pipeline = pipeline_of(plan);
  const int chunks = file.placement == Schedule::one_f_one_b ? 1 : chunks_in(file.orders);
  const auto wrong = [&](const std::string& found, const std::string& expected) {
    throw Error(ErrorCode::invalid_config, "the schedule does not fit the plan: " + found, file.where, expected);
  };
  if (placement_name(file.placement) != placement_name(plan.schedule))
    wrong(text("its placement is ", placement_name(file.placement)),
          text(placement_name(plan.schedule), ", as the plan's schedule ", name_of(plan.schedule), " has it"));
  if (static_cast<int>(file.orders.size()) != pipeline.size || chunks != pipeline.chunks)
    wrong(text("it is for ", file.orders.size(), " ranks of ", chunks, " chunks"), text(pipeline.size, " ranks of ", pipeline.chunks));
  if (file.micro_batches != plan.micro_batches) wrong(text("it has ", file.micro_batches, " micro-batches"), text(plan.micro_batches));
  plan.order = file.orders;
}

std::string to_yaml(const ScheduleFile& file) {
  std::string out = text("format: ", kScheduleFormat, "\nversion: ", kScheduleVersion, "\nplacement: ", placement_name(file.placement),
                         "\nmicro_batches: ", file.micro_batches, "\nranks:\n");
  for (const auto& order : file.orders) {
    out += "  - [";
    for (std::size_t i = 0; i < order.size(); ++i) out += (i == 0 ? "" : ", ") + to_text(order[i]);
    out += "]\n";
  }
  return out;
}

Schedule read_schedule_name(const ConfigNode& node) {
  std::vector<std::string> names;
  for (int schedule = 0; schedule <= static_cast<int>(Schedule::dualpipe_v); ++schedule)
    names.push_back(name_of(static_cast<Schedule>(schedule)));
  return static_cast<Schedule>(std::find(names.begin(), names.end(), node.as_choice(names)) - names.begin());
}

}  // namespace tessera::plan
