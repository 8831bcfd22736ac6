// What can be made to go wrong in the simulation of the protocol, so that its checks are checked.
#pragma once

namespace tessera::ps::simulation {

enum class Bug {
  none,
  push_is_dropped,  // and acknowledged
  push_is_doubled,
  end_of_step_is_dropped,              // and acknowledged
  pull_does_not_wait,                  // for slower workers
  pull_does_not_wait_and_says_so_not,  // and tells the client that they are as far as it is
  client_numbers_again,                // what it asks again has a number of its own
  leader_answers_before_its_backup,
  backup_misses_pushes,
  backup_misses_ends_of_steps,
  backup_misses_ends_of_periods,
  backup_has_pushes_in_another_order,
  copy_without_clients,  // which messages of theirs were done
  copy_without_results,  // that clients may ask for again
  copy_without_sums,     // of steps that are not over
  copy_without_rows,
  copy_without_waiting,  // keys
  copy_never_ends,
  link_to_backup_asks_again,  // over another connection, as clients do
  standby_takes_clients,
  standby_takes_silence_for_an_end,
  leader_takes_silence_for_an_end,
  one_that_begins_asks_nobody,
  one_that_begins_asks_without_a_name,  // so that nobody sees whether it leads by now
};

}  // namespace tessera::ps::simulation
