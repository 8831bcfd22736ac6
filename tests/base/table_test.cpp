#include "base/table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::ElementsAre;
using Align = Table::Align;

TEST(DisplayWidth, CountsWhatATerminalShows) {
  EXPECT_EQ(display_width(""), 0);
  EXPECT_EQ(display_width("run-1"), 5);
  EXPECT_EQ(display_width("größe"), 5);
  EXPECT_EQ(display_width("e\xCC\x81t\xC3\xA9"), 3);  // a combining accent, and one that is part of its letter
  EXPECT_EQ(display_width("模型"), 4);
  EXPECT_EQ(display_width("\xFF\xFE"), 2);
}

TEST(Wrapped, BreaksBetweenWordsAndKeepsFiguresWithTheirUnits) {
  EXPECT_THAT(wrapped("", 10), ElementsAre(""));
  EXPECT_THAT(wrapped("one two three", 8), ElementsAre("one two", "three"));
  EXPECT_THAT(wrapped("takes 12.5 GiB of it", 14), ElementsAre("takes 12.5 GiB", "of it"));
  EXPECT_THAT(wrapped("dp 2 x pp 1 x tp 2, zero 1, 1f1b", 16), ElementsAre("dp 2 x pp 1 x", "tp 2,", "zero 1, 1f1b"));
  EXPECT_THAT(wrapped("a-name-without-spaces", 8), ElementsAre("a-name-w", "ithout-s", "paces"));
  EXPECT_THAT(wrapped("模型模型", 5), ElementsAre("模型", "模型"));
}

TEST(Fitted, WrapsTheLinesThatAreTooLongAlone) {
  const std::string text = "short\n\nrank 0 holds weights 288 MiB, gradients 576 MiB\n";
  EXPECT_EQ(fitted(text, 0), text);
  EXPECT_EQ(fitted(text, 30), "short\n\nrank 0 holds weights 288 MiB,\ngradients 576 MiB\n");
}

TEST(Table, AlignsByWhatATerminalShows) {
  Table table({{"name", Align::left}, {"loss", Align::right}});
  table.add({"größe", "1.25"});
  table.add({"模型", "10.50"});
  EXPECT_EQ(table.text(0),
            "name    loss\n"
            "größe   1.25\n"
            "模型   10.50\n");
}

TEST(Table, WrapsWordsAndNeverFigures) {
  Table table({{"run", Align::wrapped}, {"tokens/s", Align::right}, {"plan", Align::wrapped}});
  table.add({"a", "12.3 k", "dp 2 x pp 2 x tp 1, zero 1, 1f1b"});
  EXPECT_EQ(table.text(80),
            "run  tokens/s  plan\n"
            "a      12.3 k  dp 2 x pp 2 x tp 1, zero 1, 1f1b\n");
  EXPECT_EQ(table.text(40),
            "run  tokens/s  plan\n"
            "a      12.3 k  dp 2 x pp 2 x tp 1,\n"
            "               zero 1, 1f1b\n");
}

}  // namespace
}  // namespace tessera
