#include "plan/schedule/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <numeric>

namespace tessera::plan {
namespace {

// Writes an order down, counting the micro-batches of each kind of slot. Micro-batches from `count` on are left out: some
// schedules are drawn for at least so many as fill the pipeline, and stay valid when the surplus is dropped.
class Writer {
 public:
  explicit Writer(int count) : count_(count) {}

  void forward(int chunk, bool with_next = false) { add({true, forwards_[chunk]++, chunk, Backward::whole, with_next}); }
  void backward(int chunk) { add({false, backwards_[chunk]++, chunk}); }
  void input(int chunk) {
    put_off_.push_back({false, backwards_[chunk], chunk, Backward::weight});
    add({false, backwards_[chunk]++, chunk, Backward::input});
  }
  // The weight half that has waited longest, of any chunk.
  void weight() { put(put_off_.begin()); }
  void weight_of(int chunk) { put(std::ranges::find(put_off_, chunk, &Slot::chunk)); }
  // A forward pass overlapped with a whole backward pass of another chunk.
  void together(int forward_chunk, int backward_chunk) {
    forward(forward_chunk, forwards_[forward_chunk] < count_ && backwards_[backward_chunk] < count_);
    backward(backward_chunk);
  }
  int forwards(int chunk) const { return forwards_[chunk]; }
  bool weights_left() const { return !put_off_.empty(); }
  std::vector<Slot> take() { return std::move(order_); }

 private:
  void add(const Slot& slot) {
    if (slot.micro_batch < count_) order_.push_back(slot);
  }
  void put(std::deque<Slot>::iterator first) {
    if (first == put_off_.end()) return;
    add(*first);
    put_off_.erase(first);
  }

  int count_;
  int forwards_[2] = {0, 0};
  int backwards_[2] = {0, 0};
  std::deque<Slot> put_off_;
  std::vector<Slot> order_;
};

// `ahead` forwards, then a forward and a backward in turn.
std::vector<Slot> in_turn(const std::vector<Slot>& forwards, const std::vector<Slot>& backwards, std::ptrdiff_t ahead) {
  ahead = std::min(ahead, std::ssize(forwards));
  std::vector<Slot> order(forwards.begin(), forwards.begin() + ahead);
  for (std::ptrdiff_t i = ahead; i < std::ssize(forwards); ++i) {
    order.push_back(forwards[i]);
    order.push_back(backwards[i - ahead]);
  }
  order.insert(order.end(), backwards.end() - ahead, backwards.end());
  return order;
}

std::vector<Slot> plain(int ahead, int micro_batches) {
  std::vector<Slot> forwards;
  std::vector<Slot> backwards;
  for (int m = 0; m < micro_batches; ++m) {
    forwards.push_back({true, m});
    backwards.push_back({false, m});
  }
  return in_turn(forwards, backwards, ahead);
}

std::vector<Slot> interleaved(int pipeline_rank, int pipeline_size, int micro_batches, int chunks) {
  // Fewer micro-batches than pipeline ranks: as if the group were full. Otherwise groups of `pipeline_size` or evenly more, for a smaller
  // one at the end would leave the pipeline idle.
  const int count = std::max(micro_batches, pipeline_size);
  const int groups = count / pipeline_size;
  std::vector<Slot> forwards;
  std::vector<Slot> backwards;
  int first = 0;
  for (int g = 0; g < groups; ++g) {
    const int size = count / groups + (g < count % groups ? 1 : 0);
    for (int c = 0; c < chunks; ++c)
      for (int m = first; m < first + size; ++m) {
        forwards.push_back({true, m, c});
        backwards.push_back({false, m, chunks - 1 - c});
      }
    first += size;
  }
  const int largest = count / groups + (count % groups > 0 ? 1 : 0);
  const int ahead = 2 * (pipeline_size - pipeline_rank - 1) + (chunks - 1) * largest;
  std::vector<Slot> order = in_turn(forwards, backwards, ahead);
  std::erase_if(order, [&](const Slot& slot) { return slot.micro_batch >= micro_batches; });
  return order;
}

// 1F1B that runs `ahead` forwards ahead and puts each weight half off by `lag` backward passes.
std::vector<Slot> split(int ahead, int lag, int micro_batches) {
  Writer writer(micro_batches);
  ahead = std::min(ahead, micro_batches);
  for (int m = 0; m < ahead; ++m) writer.forward(0);
  for (int m = 0; m < micro_batches; ++m) {
    if (writer.forwards(0) < micro_batches) writer.forward(0);
    writer.input(0);
    if (m >= lag) writer.weight();
  }
  while (writer.weights_left()) writer.weight();
  return writer.take();
}

std::vector<Slot> zb_v(int pipeline_rank, int pipeline_size, int micro_batches) {
  const int count = std::max(micro_batches, 2 * pipeline_size - 1);
  const int behind = pipeline_size - pipeline_rank;
  Writer writer(micro_batches);
  const auto whole = [&](int chunk) {
    writer.input(chunk);
    writer.weight_of(chunk);
  };
  for (int i = 0; i < 2 * behind - 1; ++i) writer.forward(0);
  for (int i = 0; i < pipeline_rank; ++i) {
    writer.forward(1);
    writer.forward(0);
  }
  for (int i = 0; i < behind; ++i) {
    writer.forward(1);
    whole(1);
  }
  while (writer.forwards(1) < count) {
    if (writer.forwards(0) < count) writer.forward(0);
    whole(0);
    writer.forward(1);
    whole(1);
  }
  for (int i = 0; i < pipeline_rank; ++i) {
    writer.input(0);
    writer.input(1);
  }
  for (int i = 0; i < behind; ++i) whole(0);
  for (const int chunk : {1, 0})
    for (int i = 0; i < pipeline_rank; ++i) writer.weight_of(chunk);
  return writer.take();
}

std::vector<Slot> dualpipe_v(int pipeline_rank, int pipeline_size, int micro_batches) {
  const int count = std::max(micro_batches, 2 * pipeline_size);
  const int behind = pipeline_size - pipeline_rank - 1;
  Writer writer(micro_batches);
  for (int i = 0; i < 2 * behind; ++i) writer.forward(0);
  for (int i = 0; i <= pipeline_rank; ++i) {
    writer.forward(0);
    writer.forward(1);
  }
  for (int i = 0; i < behind; ++i) {
    writer.input(1);
    writer.weight();
    writer.forward(1);
  }
  for (int i = 0; i < count - 2 * pipeline_size + pipeline_rank + 1; ++i) {
    if (i == 0 && behind == 0) {
      // At the turning point the first pair would wait for itself.
      writer.forward(0);
      writer.backward(1);
    } else {
      writer.together(0, 1);
    }
    writer.together(1, 0);
  }
  for (int i = 0; i < behind; ++i) {
    writer.backward(1);
    writer.together(1, 0);
  }
  // While the pipeline drains, the second half of the backward passes put their weight halves off.
  int drained = 0;
  const auto drain = [&](int chunk) {
    if (drained++ > pipeline_rank)
      writer.input(chunk);
    else
      writer.backward(chunk);
  };
  for (int i = 0; i <= pipeline_rank; ++i) {
    drain(1);
    drain(0);
  }
  for (int i = 0; i < behind; ++i) {
    writer.weight();
    drain(0);
  }
  while (writer.weights_left()) writer.weight();
  return writer.take();
}

}  // namespace

bool splits_backward(Schedule schedule) {
  return schedule != Schedule::one_f_one_b && schedule != Schedule::gpipe && schedule != Schedule::interleaved;
}

bool is_v_shaped(Schedule schedule) { return schedule == Schedule::zb_v || schedule == Schedule::dualpipe_v; }

int stage_at(Schedule schedule, int pipeline_rank, int chunk, int pipeline_size) {
  return is_v_shaped(schedule) && chunk == 1 ? 2 * pipeline_size - 1 - pipeline_rank : pipeline_rank + chunk * pipeline_size;
}

Pipeline pipeline_of(const Plan& plan) {
  const int stages = static_cast<int>(plan.stages.size());
  int chunks = is_v_shaped(plan.schedule) ? 2 : 1;
  if (plan.schedule == Schedule::interleaved)
    chunks = static_cast<int>(std::ranges::count(plan.stages, plan.stages.front().ranks, &Stage::ranks));
  return {stages / std::max(1, chunks), chunks};
}

std::vector<Slot> order_of(Schedule schedule, int pipeline_rank, int pipeline_size, int micro_batches, int chunks) {
  switch (schedule) {
    case Schedule::one_f_one_b: return plain(pipeline_size - pipeline_rank - 1, micro_batches);
    case Schedule::gpipe: return plain(micro_batches, micro_batches);
    case Schedule::interleaved: return interleaved(pipeline_rank, pipeline_size, micro_batches, chunks);
    case Schedule::zb_h1: return split(pipeline_size - pipeline_rank - 1, pipeline_rank, micro_batches);
    case Schedule::zb_h2: return split(2 * (pipeline_size - pipeline_rank - 1), 2 * pipeline_rank, micro_batches);
    case Schedule::zb_v: return zb_v(pipeline_rank, pipeline_size, micro_batches);
    case Schedule::dualpipe_v: return dualpipe_v(pipeline_rank, pipeline_size, micro_batches);
  }
  return {};
}

std::vector<Slot> fitted_order(int pipeline_rank, int pipeline_size, int micro_batches, const StageTimes& times) {
  // Until its first backward pass a pipeline rank waits for a round trip to the last one, which forward passes can fill; and at the end
  // the first pipeline rank waits as long for its last backward pass, which weight halves put off can fill on the pipeline ranks behind it.
  const double round_trip = (times.forward + times.backward_input + times.message + times.message).value;
  const int behind = pipeline_size - pipeline_rank - 1;
  const int ahead = std::min(2 * behind + 1, static_cast<int>(std::ceil(behind * round_trip / times.forward.value)));
  const double lag = std::min<double>(micro_batches, std::ceil(pipeline_rank * round_trip / times.backward_weight.value));
  return split(ahead, static_cast<int>(lag), micro_batches);
}

std::vector<Slot> order_of(const Plan& plan, int pipeline_rank) {
  if (!plan.order.empty()) return plan.order.at(pipeline_rank);
  const Pipeline pipeline = pipeline_of(plan);
  return order_of(plan.schedule, pipeline_rank, pipeline.size, static_cast<int>(plan.micro_batches), pipeline.chunks);
}

std::int64_t in_flight(Schedule schedule, int pipeline_rank, int pipeline_size, std::int64_t micro_batches) {
  switch (schedule) {
    case Schedule::gpipe: return micro_batches;
    case Schedule::zb_h1: return std::min<std::int64_t>(pipeline_size, micro_batches);
    case Schedule::zb_h2: return std::min<std::int64_t>(2 * pipeline_size - 1, micro_batches);
    default: return std::min<std::int64_t>(pipeline_size - pipeline_rank, micro_batches);
  }
}

std::vector<std::vector<int>> peaks_in_flight(std::span<const Slot> order, int chunks) {
  std::vector<int> now(chunks, 0);
  std::vector<std::vector<int>> out;
  const auto covers = [](const std::vector<int>& a, const std::vector<int>& b) { return std::ranges::equal(a, b, std::greater_equal()); };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Slot& slot = order[i];
    if (!slot.forward && slot.part != Backward::input) --now[slot.chunk];
    if (!slot.forward) continue;
    ++now[slot.chunk];
    // It still rises.
    if (i + 1 < order.size() && order[i + 1].forward) continue;
    if (std::ranges::any_of(out, [&](const auto& peak) { return covers(peak, now); })) continue;
    std::erase_if(out, [&](const auto& peak) { return covers(now, peak); });
    out.push_back(now);
  }
  return out;
}

std::int64_t most_bytes(std::span<const Slot> order, std::span<const ChunkBytes> bytes) {
  std::int64_t bytes_in_flight = 0;
  std::int64_t most = 0;
  for (const Slot& slot : order) {
    const ChunkBytes& chunk = bytes[slot.chunk];
    bytes_in_flight += slot.forward                   ? chunk.saved
                       : slot.part == Backward::whole ? -chunk.saved
                       : slot.part == Backward::input ? chunk.saved_for_weight - chunk.saved
                                                      : -chunk.saved_for_weight;
    most = std::max(most, bytes_in_flight);
  }
  return most;
}

std::vector<int> exchange_order(const Plan& plan, const std::vector<std::int64_t>& buckets) {
  std::vector<int> out(buckets.size());
  std::iota(out.begin(), out.end(), 0);
  if (!plan.delayed_exchange) return out;
  const double early = plan.exchanged_early * static_cast<double>(std::accumulate(buckets.begin(), buckets.end(), std::int64_t{0}));
  auto turn = out.begin();
  for (std::int64_t before = 0; turn != out.end() && static_cast<double>(before) < early; ++turn) before += buckets[*turn];
  std::reverse(turn, out.end());
  return out;
}

}  // namespace tessera::plan
