#include "train/validation.hpp"

#include <gtest/gtest.h>
#include <limits>

namespace tessera::train {
namespace {

TEST(ValidationHistory, TheBestIsTheLowestLoss) {
  ValidationHistory history;
  EXPECT_TRUE(history.add(10, 3.0, 0));
  EXPECT_FALSE(history.add(20, 3.5, 0));
  EXPECT_TRUE(history.add(30, 2.5, 0));
  EXPECT_FALSE(history.add(40, 2.5, 0)) << "an equal loss replaces nothing";
  EXPECT_EQ(history.best->step, 30);
  EXPECT_EQ(history.best->validation_loss, 2.5);
}

TEST(ValidationHistory, CountsWhatGainsNothing) {
  ValidationHistory history;
  for (const auto& [loss, without_gain] :
       std::initializer_list<std::pair<double, int>>{{3.0, 0}, {2.95, 1}, {2.95, 2}, {2.85, 0}, {3.0, 1}, {2.8, 2}, {2.7, 0}}) {
    history.add(1, loss, 0.1);
    EXPECT_EQ(history.without_gain, without_gain) << loss;
  }
}

TEST(ValidationHistory, SmallStepsAddUp) {
  ValidationHistory history;
  for (const double loss : {3.0, 2.96, 2.92}) history.add(1, loss, 0.1);
  EXPECT_EQ(history.without_gain, 2);
  history.add(1, 2.88, 0.1);
  EXPECT_EQ(history.without_gain, 0);
}

TEST(ValidationHistory, ALossThatIsNotFiniteGainsNothing) {
  ValidationHistory history;
  EXPECT_FALSE(history.add(1, std::numeric_limits<double>::quiet_NaN(), 0));
  EXPECT_FALSE(history.best || history.gained);
  EXPECT_EQ(history.without_gain, 1);
  EXPECT_TRUE(history.add(2, 3.0, 0));
  EXPECT_FALSE(history.add(3, -std::numeric_limits<double>::infinity(), 0));
  EXPECT_EQ(history.best->step, 2);
}

TEST(ValidationHistory, GoesOnFromACheckpoint) {
  ValidationHistory history;
  history.add(10, 3.0, 0.5);
  history.add(20, 2.8, 0.5);
  std::map<std::string, double> extra = {{"of another", 7}};
  history.write(extra);
  EXPECT_EQ(extra.at("of another"), 7);
  ValidationHistory again = ValidationHistory::read(extra);
  EXPECT_EQ(again.best->step, 20);
  EXPECT_EQ(again.best->validation_loss, 2.8);
  EXPECT_EQ(again.without_gain, 1);
  again.add(30, 2.4, 0.5);
  EXPECT_EQ(again.without_gain, 0) << "counted from 3.0";
  const ValidationHistory none = ValidationHistory::read({});
  EXPECT_FALSE(none.best || none.gained);
  EXPECT_EQ(none.without_gain, 0);
}

}  // namespace
}  // namespace tessera::train
