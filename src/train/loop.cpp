#include "train/loop.hpp"

#include <algorithm>

#include "checkpoint/checkpoint.hpp"
#include "train/link_turns.hpp"
#include "train/measure_links.hpp"

namespace tessera::train {

namespace {

// One bad batch is left out; weights that make every batch bad are not to replace good checkpoints.
constexpr int kMostSkipped = 3;

// `checkpoints`: steps of what was saved, ascending. The last of them may hold weights that make every gradient infinite when no step was
// good since.
[[noreturn]] void refuse_skipped(std::int64_t step, std::vector<std::int64_t> checkpoints) {
  std::string away;
  if (!checkpoints.empty() && checkpoints.back() == step - kMostSkipped) {
    away = text("move the checkpoint of step ", checkpoints.back(), " away, and ");
    checkpoints.pop_back();
  }
  throw Error(ErrorCode::corrupt, text("the gradients of ", kMostSkipped, " steps in a row are not finite; the last was step ", step), {},
              "finite gradients",
              checkpoints.empty()
                  ? "start over with --overwrite and a smaller train.optimizer.lr"
                  : text(away, "go on from that of step ", checkpoints.back(), " with --resume and a smaller train.optimizer.lr"));
}

bool due(std::int64_t every, std::int64_t steps) { return every > 0 && steps % every == 0; }

bool gains_no_more(const model::JobSpec& job, const ValidationHistory& history) {
  return job.train.early_stop && history.without_gain >= job.train.early_stop->patience;
}

}  // namespace

bool is_complete(const model::JobSpec& job, const Trainer& trainer) {
  return trainer.next_step() >= job.train.steps || gains_no_more(job, trainer.loaded_history());
}

LoopOutcome run_loop(const model::JobSpec& job, Trainer& trainer, FileSystem& files, const LoopOptions& options, LoopObserver& observer) {
  LoopOutcome outcome;
  outcome.plan_since = trainer.next_step();
  ValidationHistory history = trainer.loaded_history();
  const double min_gain = job.train.early_stop ? job.train.early_stop->min_gain : 0;
  const std::int64_t begin = trainer.next_step();
  const std::int64_t end = options.stop_after > 0 ? std::min(job.train.steps, begin + options.stop_after) : job.train.steps;
  std::int64_t saved_at = begin;
  int skipped = 0;  // steps in a row
  const bool measures_links = options.rebalance && first_ranks(trainer.plan()).size() > 2;
  LinkTurns turns;
  // Equal on all ranks once they have waited for it.
  const auto note = [&](const std::optional<SaveOutcome>& ended) {
    if (!ended) return;
    if (!ended->error) {
      saved_at = ended->steps;
      return observer.on_saved(saved_at);
    }
    // A full disk must not end the run: earlier checkpoints are intact, and the next turn tries again.
    if (ended->error->code() != ErrorCode::io) throw *ended->error;
    observer.on_warning(text("no checkpoint of step ", ended->steps, ": ", ended->error->what()));
  };
  outcome.stopped_early = begin < end && gains_no_more(job, history);
  while (trainer.next_step() < end && !outcome.stopped && !outcome.stopped_early) {
    const std::vector<std::string> wanted = observer.wanted_servers();
    const StepReport report = trainer.step(options.stop != nullptr && options.stop->load(), wanted);
    observer.on_step(report);
    note(trainer.poll_save());
    if (const std::optional<OtherServers> other = trainer.follow_servers(wanted)) observer.on_other_servers(*other);
    const std::vector<SpeedChange> changes = trainer.watch_speed();
    for (const SpeedChange& change : changes) change.warns ? observer.on_warning(change.words) : observer.on_note(change.words);
    const bool of_ranks = std::any_of(changes.begin(), changes.end(), [](const SpeedChange& change) { return change.rank >= 0; });
    const bool of_links = measures_links && turns.due(changes, trainer.next_step());
    if (options.rebalance && (of_ranks || of_links) && trainer.next_step() < end && !trainer.moves_servers()) {
      note(trainer.wait_for_save());
      const MeasuredLinks links = of_links ? trainer.measure_links(options.network) : MeasuredLinks();
      const bool changed = trainer.change_plan(observer.on_other_speeds(changes, links));
      if (of_links) turns.measured(trainer.next_step(), links.steps, changed);
      if (changed) {
        outcome.plan_since = trainer.next_step();
        outcome.sent_before = trainer.sent();
      }
    }
    const std::int64_t made = trainer.next_step();
    skipped = report.skipped ? skipped + 1 : 0;
    if (skipped == kMostSkipped) {
      note(trainer.wait_for_save());
      refuse_skipped(made, checkpoint::list(options.checkpoints));
    }
    if (report.skipped) observer.on_warning(text("the gradient of step ", made, " is not finite; the step was skipped on all ranks"));
    outcome.stopped = report.stop && made < end;
    if (!options.keep) continue;
    bool best = false;
    if (trainer.validates() && !outcome.stopped && (made == end || due(job.train.eval_every, made))) {
      outcome.evaluation = trainer.evaluate(job.train.eval_sequences);
      best = history.add(made, outcome.evaluation->loss, min_gain);
      outcome.stopped_early = made < end && gains_no_more(job, history);
      observer.on_evaluation(made, *outcome.evaluation, outcome.stopped_early);
    }
    if (made == end || outcome.stopped || outcome.stopped_early) continue;
    if ((best && job.checkpoint.best) || (skipped == 0 && due(job.checkpoint.every, made))) {
      note(trainer.wait_for_save());
      trainer.begin_save(files, options.checkpoints, job.checkpoint.keep, history);
    }
  }
  if (const std::optional<OtherServers> other = trainer.unsaid_servers()) observer.on_other_servers(*other);
  note(trainer.wait_for_save());
  if (!options.keep) return outcome;
  if (trainer.next_step() > saved_at) {
    trainer.save(files, options.checkpoints, job.checkpoint.keep, history);
    observer.on_saved(trainer.next_step());
  }
  if (outcome.stopped_early) observer.on_early_stop(trainer.next_step(), history);
  // A run that had nothing left to do says what it has come to.
  if (!outcome.evaluation && !outcome.stopped && trainer.validates()) {
    outcome.evaluation = trainer.evaluate(job.train.eval_sequences);
    observer.on_evaluation(trainer.next_step(), *outcome.evaluation, outcome.stopped_early);
  }
  return outcome;
}

}  // namespace tessera::train
