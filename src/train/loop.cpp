#include "train/loop.hpp"

namespace tessera::train {

namespace {

// One bad batch is left out; weights that make every batch bad are not to replace good checkpoints.
constexpr int kMostSkipped = 3;

}  // namespace

LoopOutcome run_loop(const model::JobSpec& job, Trainer& trainer, FileSystem& files, const LoopOptions& options, LoopObserver& observer) {
  LoopOutcome outcome;
  const std::int64_t begin = trainer.next_step();
  const std::int64_t end = options.stop_after > 0 ? std::min(job.train.steps, begin + options.stop_after) : job.train.steps;
  std::int64_t saved_at = begin;
  int skipped = 0;  // steps in a row
  while (trainer.next_step() < end && !outcome.stopped) {
    const StepReport report = trainer.step(options.stop != nullptr && options.stop->load());
    observer.on_step(report);
    const std::int64_t made = trainer.next_step();
    if (report.skipped) observer.on_warning(text("the gradient of step ", made, " is not finite; the step was skipped on all ranks"));
    skipped = report.skipped ? skipped + 1 : 0;
    if (skipped == kMostSkipped) {
      // Weights that a checkpoint holds and no step has computed with since may be the ones that were ruined.
      const bool saved_ruined = saved_at > 0 && saved_at == made - skipped;
      throw Error(ErrorCode::corrupt, text("the gradients of ", skipped, " steps in a row are not finite; the last was step ", made), {},
                  "finite gradients",
                  saved_ruined ? text("move the checkpoint of step ", saved_at,
                                      " away, and go on from the one before it with --resume and a ", "smaller train.optimizer.lr")
                               : "go on from the last checkpoint with --resume and a smaller train.optimizer.lr");
    }
    outcome.stopped = report.stop && made < end;
    const bool last = made == end || outcome.stopped;
    if (!options.keep) continue;
    if (!last && trainer.validates() && job.train.eval_every > 0 && made % job.train.eval_every == 0) {
      outcome.evaluation = trainer.evaluate(job.train.eval_sequences);
      observer.on_evaluation(made, *outcome.evaluation);
    }
    if (!last && skipped == 0 && job.checkpoint.every > 0 && made % job.checkpoint.every == 0) {
      // A full disk must not end the run: earlier checkpoints are intact, and the next turn tries again.
      try {
        trainer.save(files, options.checkpoints, job.checkpoint.keep);
        saved_at = made;
        observer.on_saved(made);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::io) throw;
        observer.on_warning(text("no checkpoint of step ", made, ": ", error.what()));
      }
    }
  }
  if (!options.keep) return outcome;
  if (trainer.next_step() > saved_at) {
    trainer.save(files, options.checkpoints, job.checkpoint.keep);
    observer.on_saved(trainer.next_step());
  }
  if (!outcome.stopped && trainer.validates()) {
    outcome.evaluation = trainer.evaluate(job.train.eval_sequences);
    observer.on_evaluation(trainer.next_step(), *outcome.evaluation);
  }
  return outcome;
}

}  // namespace tessera::train
