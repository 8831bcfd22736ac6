#include "train/loop.hpp"

#include "base/log.hpp"

namespace tessera::train {

LoopOutcome run_loop(const model::JobSpec& job, Trainer& trainer, FileSystem& files, const LoopOptions& options, LoopObserver& observer) {
  LoopOutcome outcome;
  const std::int64_t begin = trainer.next_step();
  const std::int64_t end = options.stop_after > 0 ? std::min(job.train.steps, begin + options.stop_after) : job.train.steps;
  std::int64_t saved_at = begin;
  while (trainer.next_step() < end && !outcome.stopped) {
    const StepReport report = trainer.step(options.stop != nullptr && options.stop->load());
    observer.on_step(report);
    if (report.skipped) log::warning(text("step ", report.step, ": the gradient is not finite; the step was skipped on all ranks"));
    const std::int64_t made = trainer.next_step();
    outcome.stopped = report.stop && made < end;
    const bool last = made == end || outcome.stopped;
    if (!options.keep) continue;
    if (!last && trainer.validates() && job.train.eval_every > 0 && made % job.train.eval_every == 0) {
      outcome.evaluation = trainer.evaluate(job.train.eval_sequences);
      observer.on_evaluation(made, *outcome.evaluation);
    }
    if (!last && job.checkpoint.every > 0 && made % job.checkpoint.every == 0) {
      // A full disk must not end the run: earlier checkpoints are intact, and the next turn tries again.
      try {
        trainer.save(files, options.checkpoints, job.checkpoint.keep);
        saved_at = made;
        observer.on_saved(made);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::io) throw;
        log::warning(text("no checkpoint at step ", made, ": ", error.what()));
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
