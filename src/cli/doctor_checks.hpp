// Internal: what `tessera doctor` looks at, one function a subject. Each reads this host only and never throws: what
// cannot be found out is said in the finding.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace tessera::cli {

enum class Status {
  ok,
  absent,  // not there, and not needed for training on this host
  missing  // needed, and not there or too small
};

struct Finding {
  std::string name;  // "cpu", "shared memory"
  Status status = Status::ok;
  std::string value;   // what was found
  std::string advice;  // how to get it; empty when ok
};

// The host: doctor_host.cpp.
Finding check_cpu();
Finding check_instructions();
Finding check_memory();
Finding check_shared_memory(const std::filesystem::path& mount = "/dev/shm");
// `mode`: the kernel's file that says who gets huge pages.
Finding check_huge_pages(const std::filesystem::path& mode = "/sys/kernel/mm/transparent_hugepage/enabled");
Finding check_open_files();
Finding check_locked_memory();
Finding check_disk(const std::filesystem::path& folder);
// Whether files can be made in `folder`, or where it does not exist yet, in the nearest folder above it.
Finding check_writable(const std::string& name, const std::filesystem::path& folder, const std::string& advice);
std::vector<Finding> check_network();

// Software and accelerators: doctor_software.cpp.
Finding check_accelerators();
Finding check_ucx();
// Runs `WORKER --version`; waits at most `deadline`.
Finding check_worker(const std::filesystem::path& worker, Seconds deadline);
Finding check_program(const std::string& name, const std::string& program, const std::string& advice);

// tessera-worker beside this executable, where `train` looks for it; empty when there is none.
std::filesystem::path find_worker();
// The file that the shell would run; empty when there is none.
std::filesystem::path find_on_path(const std::string& program);

}  // namespace tessera::cli
