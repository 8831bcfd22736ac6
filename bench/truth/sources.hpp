// Internal: what is known about the sources of the published rows beyond their columns.
#pragma once

#include "rows.hpp"

namespace tessera::truth {

std::string cell(const Cells& row, const std::string& column);  // empty when there is none
double number(const Cells& row, const std::string& column, double otherwise);
bool contains(const std::string& text, const std::string& part);
std::string lower(std::string text);

// The software stack, what it does, and the architectures that a source names without describing them.
void describe(const std::string& source, const Cells& cells, Row& row);

}  // namespace tessera::truth
