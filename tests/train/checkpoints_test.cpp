// What one plan has saved, in place or beside its steps, any other goes on from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "checkpoint/checkpoint.hpp"
#include "train/job_helper.hpp"
#include "train/skip_model_helper.hpp"

namespace tessera::train {
namespace {

using plan::Schedule;

// Of mixtures of experts, so that there is something of every kind to cut.
const std::vector<Degrees> kLayouts = {
    {.dp = 1},
    {.dp = 2, .zero = 1, .micro_batches = 2},
    {.dp = 4, .zero = 3, .recompute = model::Recompute::full, .ep = 4},
    {.dp = 4, .zero = 2, .micro_batches = 2, .shards = 2, .ep = 2},
    {.dp = 2, .tp = 2, .zero = 3, .sequence_parallel = true, .ep = 2},
    {.pp = 3, .micro_batches = 4, .schedule = Schedule::gpipe},
    {.dp = 2, .pp = 2, .zero = 1, .micro_batches = 2, .schedule = Schedule::interleaved, .chunks = 2, .ep = 2},
    {.pp = 2, .tp = 2, .micro_batches = 4, .schedule = Schedule::zb_v, .chunks = 2},
    {.tp = 2, .zero = 2, .cp = 2, .context = model::ContextKind::ring},
    {.dp = 2, .pp = 2, .zero = 2, .micro_batches = 4, .schedule = Schedule::zb_h1},
};

// Their masks are all the random state that training has: functions of seed, step, sample and block.
model::JobSpec job_with_dropout() { return tiny_gpt_job(", dropout: 0.2"); }

// None of them cuts a block.
const std::vector<Degrees> kWholeLayouts = {
    {.dp = 1},
    {.dp = 4, .zero = 3},
    {.dp = 2, .pp = 2, .zero = 1, .micro_batches = 4, .schedule = Schedule::zb_h1},
    {.pp = 4, .micro_batches = 4},
};

// A rank's part of training, with the losses on rank 0.
std::vector<double> on_plan(const model::JobSpec& job, const Degrees& degrees,
                            const std::function<std::vector<double>(Trainer&, comm::Communicator&)>& work) {
  const plan::Plan plan = plan_of(job, degrees);
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  std::vector<double> losses;
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    std::vector<double> mine = work(trainer, comm);
    if (comm.rank() == 0) losses = std::move(mine);
  });
  return losses;
}

// Two steps, a save beside the third one, and its loss.
double saved_beside_a_step(const model::JobSpec& job, const Degrees& degrees, const std::filesystem::path& folder) {
  return on_plan(job, degrees,
                 [&](Trainer& trainer, comm::Communicator&) {
                   trainer.initialize();
                   trainer.step();
                   trainer.step();
                   trainer.begin_save(real_file_system(), folder, 3);
                   const double loss = trainer.step().loss;
                   const auto ended = trainer.wait_for_save();
                   EXPECT_TRUE(ended && ended->steps == 2 && !ended->error);
                   EXPECT_FALSE(trainer.poll_save() || trainer.wait_for_save()) << "it is said once";
                   return std::vector<double>{loss};
                 })
      .front();
}

// Names of what does not have the same bits in both.
std::vector<std::string> different(const checkpoint::Reader& a, const checkpoint::Reader& b) {
  std::vector<std::string> out;
  if (a.tensors().size() != b.tensors().size()) out.push_back(text(a.tensors().size(), " and ", b.tensors().size(), " tensors"));
  for (const auto& tensor : a.tensors()) {
    const at::Tensor mine = a.read(tensor.name);
    const at::Tensor other = b.has(tensor.name) ? b.read(tensor.name) : at::Tensor();
    if (!other.defined() || mine.sizes() != other.sizes() || mine.nbytes() != other.nbytes() ||
        std::memcmp(mine.data_ptr(), other.data_ptr(), mine.nbytes()) != 0)
      out.push_back(tensor.name);
  }
  return out;
}

// Saves under each layout and loads under each: the tensors that the other layout would save are the same bits, and its next step is that
// of a run that was never interrupted, so that it has the same samples and the same masks.
void expect_any_goes_on_from_any(const model::JobSpec& job, const std::vector<Degrees>& layouts) {
  const TemporaryFolder scratch;
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    const auto folder = scratch.path() / text(from);
    const double expected = saved_beside_a_step(job, layouts[from], folder);
    const checkpoint::Reader saved(checkpoint::find(folder));
    for (const Degrees& to : layouts) {
      const auto again = scratch.path() / "again";
      const double loss = on_plan(job, to, [&](Trainer& trainer, comm::Communicator&) {
                            trainer.load(checkpoint::step_folder(folder, 2));
                            trainer.save(real_file_system(), again, 3);
                            return std::vector<double>{trainer.step().loss};
                          }).front();
      const std::string what = text(to_text(layouts[from]), " -> ", to_text(to));
      const checkpoint::Reader copy(checkpoint::find(again));
      EXPECT_THAT(different(saved, copy), testing::IsEmpty()) << what;
      EXPECT_EQ(copy.state().step, saved.state().step) << what;
      EXPECT_EQ(copy.state().tokens, saved.state().tokens) << what;
      EXPECT_EQ(copy.state().seed, saved.state().seed) << what;
      EXPECT_EQ(copy.state().extra, saved.state().extra) << what;
      if (&to == &layouts[from])
        EXPECT_EQ(loss, expected) << what;
      else
        EXPECT_NEAR(loss, expected, 1e-5 * expected) << what;
      std::filesystem::remove_all(again);
    }
  }
}

TEST(Checkpoints, OfTenLayoutsAreLoadedUnderEachOfTheTen) { expect_any_goes_on_from_any(tiny_experts_job(), kLayouts); }
TEST(Checkpoints, HoldBuffers) { expect_any_goes_on_from_any(skip_job(), kWholeLayouts); }
TEST(Checkpoints, HoldWhatMasksAreDrawnFrom) {
  std::vector<Degrees> layouts = kWholeLayouts;
  layouts.push_back({.tp = 2, .cp = 2, .context = model::ContextKind::ulysses});
  layouts.push_back({.dp = 2, .tp = 2, .zero = 2, .sequence_parallel = true});
  expect_any_goes_on_from_any(job_with_dropout(), layouts);
}

// A disk that is slow to name the best checkpoint.
class TardyDisk final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    if (path.filename().string().starts_with("best")) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return real_file_system().create(path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override { real_file_system().rename(from, to); }
  void sync_directory(const std::filesystem::path& path) override { real_file_system().sync_directory(path); }
  void create_directories(const std::filesystem::path& path) override { real_file_system().create_directories(path); }
  void remove_all(const std::filesystem::path& path) override { real_file_system().remove_all(path); }
};

TEST(Checkpoints, ARankThatTidiesUpLeavesWhatOthersBeginMeanwhile) {
  const TemporaryFolder scratch;
  model::JobSpec job = tiny_job();
  job.checkpoint.best = true;
  std::array<TardyDisk, 2> disks;
  on_plan(job, {.dp = 2, .zero = 1}, [&](Trainer& trainer, comm::Communicator& comm) {
    ValidationHistory history;
    const auto expect_saved = [&] {
      const auto ended = trainer.wait_for_save();
      ASSERT_TRUE(ended);
      EXPECT_FALSE(ended->error) << ended->error->what();
    };
    trainer.initialize();
    for (std::int64_t step = 1; step <= 3; ++step) {
      trainer.step();
      history.add(step, 4.0 - static_cast<double>(step), 0);
      if (step > 1) expect_saved();
      trainer.begin_save(disks[static_cast<std::size_t>(comm.rank())], scratch.path(), 1, history);
    }
    expect_saved();
    return std::vector<double>{0};
  });
  EXPECT_THAT(checkpoint::list(scratch.path()), testing::ElementsAre(3));
}

// A disk that is full while `full` is set.
class FillingDisk final : public FileSystem {
 public:
  std::atomic<bool> full{false};

  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    if (full) throw_errno("write", path, ENOSPC);
    return real_file_system().create(path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override { real_file_system().rename(from, to); }
  void sync_directory(const std::filesystem::path& path) override { real_file_system().sync_directory(path); }
  void create_directories(const std::filesystem::path& path) override { real_file_system().create_directories(path); }
  void remove_all(const std::filesystem::path& path) override { real_file_system().remove_all(path); }
};

TEST(Checkpoints, OneThatFailsBesideAStepIsToldOnAllRanksAndLeavesTheOneBefore) {
  const TemporaryFolder scratch;
  std::array<FillingDisk, 4> disks;
  on_plan(tiny_job(), {.dp = 4, .zero = 1}, [&](Trainer& trainer, comm::Communicator& comm) {
    FillingDisk& disk = disks[static_cast<std::size_t>(comm.rank())];
    trainer.initialize();
    trainer.step();
    trainer.begin_save(disk, scratch.path(), 3);
    trainer.step();
    const auto first = trainer.wait_for_save();
    EXPECT_TRUE(first && !first->error);

    disk.full = comm.rank() == 2;
    trainer.begin_save(disk, scratch.path(), 3);
    trainer.step();
    const auto second = trainer.wait_for_save();
    EXPECT_TRUE(second && second->error && second->steps == 2);
    if (second && second->error) {
      EXPECT_EQ(second->error->code(), ErrorCode::io);
      EXPECT_THAT(second->error->what(), testing::HasSubstr("No space left on device"));
      if (comm.rank() != 2) {
        EXPECT_THAT(second->error->what(), testing::HasSubstr("rank 2: "));
      }
    }
    comm.world().barrier().wait();
    EXPECT_EQ(checkpoint::Reader(checkpoint::find(scratch.path())).state().step, 1);

    disk.full = false;
    trainer.begin_save(disk, scratch.path(), 3);
    const auto third = trainer.wait_for_save();
    EXPECT_TRUE(third && !third->error);
    EXPECT_EQ(checkpoint::Reader(checkpoint::find(scratch.path())).state().step, 3);
    return std::vector<double>();
  });
}

// Steps change parameters in place; a checkpoint has those that were there when it was begun, though its disk is slow.
class SlowDisk final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
    return real_file_system().create(path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override { real_file_system().rename(from, to); }
  void sync_directory(const std::filesystem::path& path) override { real_file_system().sync_directory(path); }
  void create_directories(const std::filesystem::path& path) override { real_file_system().create_directories(path); }
  void remove_all(const std::filesystem::path& path) override { real_file_system().remove_all(path); }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards open_
  std::condition_variable opened_;
  bool open_ = false;
};

TEST(Checkpoints, StepsGoOnWhileTheDiskIsSlow) {
  const TemporaryFolder scratch;
  SlowDisk disk;
  on_plan(tiny_job(), {.dp = 2, .zero = 3}, [&](Trainer& trainer, comm::Communicator& comm) {
    trainer.initialize();
    trainer.step();
    trainer.save(real_file_system(), scratch.path() / "in-place", 3);
    trainer.begin_save(disk, scratch.path() / "beside", 3);
    for (int i = 0; i < 3; ++i) trainer.step();
    EXPECT_FALSE(trainer.poll_save()) << "nothing was written yet";
    comm.world().barrier().wait();
    disk.open();
    EXPECT_TRUE(trainer.wait_for_save());
    return std::vector<double>();
  });
  const checkpoint::Reader beside(checkpoint::find(scratch.path() / "beside"));
  EXPECT_THAT(different(checkpoint::Reader(checkpoint::find(scratch.path() / "in-place")), beside), testing::IsEmpty());
}

}  // namespace
}  // namespace tessera::train
