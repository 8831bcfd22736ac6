// Published measurements as plans, models and clusters that can be priced.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "cost/uniform.hpp"

namespace tessera::truth {

using Cells = std::map<std::string, std::string>;  // by column

// Comma-separated, quotes doubled. Throws invalid_config when a line has more cells than the head.
std::vector<Cells> read_table(const std::filesystem::path& path);

struct Row {
  std::string source;  // the file's stem
  int number = 0;      // line of the file after its head, from 1
  std::string model;
  cost::UniformPlan plan;
  cost::Transformer shape;
  cluster::ResourceGroup group;
  std::string stack;
  double measured = 0;  // seconds of a step
  bool experts = false;
  std::string skipped;  // why it cannot be priced; empty: it can
};

// All rows of the tables of step times in a folder, by source. Tables of other things are left out.
std::vector<Row> read_rows(const std::filesystem::path& folder);

// One line for people: the plan in short.
std::string label(const Row& row);

}  // namespace tessera::truth
